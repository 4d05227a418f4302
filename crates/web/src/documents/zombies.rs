//! `coroner.zombies/1`, documented in docs/json.md.

use coroner_diagnosis::zombies::{Churn, Group, MakerShare, PerHour, Pin, ZombieReport};
use coroner_evidence::{Born, Charged, Clocks, Evidence, Time, Wall, Zombie};
use serde_json::{Value, json};

/// How many files per group are listed unless all are requested: a leak of 60,000 cgroups has 60,000.
const MOST_FILES: usize = 1000;

pub struct ZombieDetail {
    /// List every dead cgroup.
    pub list: bool,
    /// List every file.
    pub all: bool,
}

pub fn document(report: &ZombieReport, evidence: &Evidence, wanted: &ZombieDetail) -> Value {
    let times = Times(evidence.clocks.last().copied());
    let scan = report.scan;
    let node = evidence.node.as_ref();
    let mut document = json!({
        "schema": "coroner.zombies/1",
        "host": node.and_then(|n| n.host.as_deref()),
        "kernel": node.and_then(|n| n.kernel.as_deref()),
        "at": times.of(scan.at),
        "cgroup_version": scan.version,
        "method": scan.method.as_str(),
        "instead_of": scan.instead_of,
        "tracked": scan.tracked,
        "live": scan.live,
        "dead": scan.dead,
        "leaving": scan.leaving,
        // Without groups it is unknown what they hold.
        "bytes": (!report.groups.is_empty() || scan.dead == Some(0)).then(|| held(&report.held)),
        "per_hour": report.per_hour.map(|p| rounded(p.value)),
        "per_hour_from": report.per_hour.map(|p| p.from.as_str()),
        "groups": report.groups.iter().map(|g| group(g, &times, wanted)).collect::<Vec<_>>(),
        "makers": report.makers.iter().map(maker).collect::<Vec<_>>(),
        "churn": report.churn.as_ref().map(|c| churn(c, &times)),
        "cost": cost(report),
        "files_unseen": scan.files_unseen,
        "truncated": scan.truncated,
        "took_ms": scan.took_ns as f64 / 1e6,
        "unseen": evidence.unseen,
    });
    if wanted.list {
        document["zombies"] = scan.zombies.iter().map(|z| zombie(z, &times)).collect();
    }
    document
}

fn group(group: &Group, times: &Times, wanted: &ZombieDetail) -> Value {
    let shown = if wanted.all { group.pinned_by.len() } else { group.pinned_by.len().min(MOST_FILES) };
    let left_out = &group.pinned_by[shown..];
    json!({
        "parent": group.parent,
        "pattern": group.pattern,
        "unit": group.unit,
        "pod_uid": group.pod_uid,
        "container_id": group.container_id,
        "example": group.example,
        "groups_merged": group.rest_of,
        "dead": group.dead,
        "bytes": held(&group.held),
        "bytes_are_partial": group.held_is_partial,
        "oldest": times.of_birth(group.oldest),
        "newest": times.of_birth(group.newest),
        "births_are_exact": group.newest.map(|b| b.exact),
        "first_death": group.first_death.and_then(|t| times.of(t)),
        "last_death": group.last_death.and_then(|t| times.of(t)),
        "per_hour": group.per_hour.map(|p: PerHour| rounded(p.value)),
        "per_hour_from": group.per_hour.map(|p| p.from.as_str()),
        "pinned_by": group.pinned_by[..shown].iter().map(pin).collect::<Vec<_>>(),
        "pinned_by_left_out": {
            "files": left_out.len(),
            "bytes": left_out.iter().map(|p| p.bytes).fold(0, u64::saturating_add),
        },
        "pinned_otherwise": group.pinned_otherwise.iter().map(|o| json!({
            "what": o.kind.as_str(), "bytes": o.bytes, "dead": o.zombies,
        })).collect::<Vec<_>>(),
        "makers": group.makers.iter().map(maker).collect::<Vec<_>>(),
        "churn": group.churn.as_ref().map(|c| churn(c, times)),
    })
}

fn held(held: &Charged) -> Value {
    json!({
        "total": held.total(),
        "file": held.file,
        "anon": held.anonymous,
        "shmem": held.shmem,
        "anon_or_shmem": held.swap_backed,
        "unevictable": held.unevictable,
        "kernel": held.kernel,
        "swap": held.swap,
    })
}

fn pin(pin: &Pin) -> Value {
    let file = pin.file;
    json!({
        "path": file.path,
        "name": file.name(),
        "filesystem": file.filesystem,
        "device": format!("{}:{}", file.device.0, file.device.1),
        "inode": file.inode,
        "size": file.size,
        "deleted": file.deleted,
        "mounted": file.mounted,
        "seen_by_pid": file.seen_by,
        "bytes": pin.bytes,
        "pages": pin.bytes / rustix::param::page_size() as u64,
        "dead": pin.zombies,
    })
}

fn maker(share: &MakerShare) -> Value {
    let maker = share.maker.as_ref();
    json!({
        "pid": maker.map(|m| m.pid),
        "comm": maker.map(|m| &m.comm),
        "via": maker.and_then(|m| m.via.as_deref()),
        "command": maker.and_then(|m| m.command.as_deref()),
        "parent_pid": maker.and_then(|m| m.parent_pid),
        "parent_comm": maker.and_then(|m| m.parent_comm.as_deref()),
        "cgroup": maker.and_then(|m| m.cgroup.as_deref()),
        "processes": share.processes,
        "unit": share.unit,
        "made_unit": share.made_unit,
        "made_unit_restarts": share.made_unit_restarts,
        "parent": share.parent,
        "pattern": share.pattern,
        "example": share.example,
        "born": share.born,
        "removed": share.removed,
        "left": share.left,
        "per_minute": rounded(share.per_minute),
    })
}

/// Cgroups created, removed and freed while watching.
fn churn(churn: &Churn, times: &Times) -> Value {
    json!({
        "from": times.of(churn.from),
        "to": times.of(churn.to),
        "born": churn.born,
        "removed": churn.removed,
        "freed": churn.freed,
    })
}

fn cost(report: &ZombieReport) -> Value {
    let cost = &report.cost;
    let kernel = cost.kernel.as_ref().map(|k| {
        json!({
            "over_s": rounded(k.over.as_secs_f64()),
            "cores": k.cores,
            "system_s": rounded(k.system.as_secs_f64()),
            "memcg_walk_s": rounded(k.memcg_walk.as_secs_f64()),
            "reclaim_s": rounded(k.reclaim.as_secs_f64()),
            "memcg_walk_share": k.walk_share.map(rounded),
            "reclaim_share": k.reclaim_share.map(rounded),
            "by_task": k.by_task,
            "by_symbol": k.by_symbol,
            "lost": k.lost,
        })
    });
    json!({
        "matters": cost.matters,
        "stats_read": cost.stats_read.as_ref().map(|r| json!({
            "path": r.path, "ms": r.took_ns as f64 / 1e6, "cpu_ms": r.cpu_ns.map(|ns| ns as f64 / 1e6), "finished": r.finished,
        })),
        "kernel": kernel,
        "structures": {
            "slab_bytes": cost.structures.slab_bytes,
            "percpu_bytes": cost.structures.percpu_bytes,
            "estimate_bytes": cost.structures.estimate_bytes,
        },
        "ids": {"used": cost.ids.used, "limit": cost.ids.limit, "held_by_dead": cost.ids.dead_hold},
        "lines": cost.lines.iter().map(|l| json!({
            "kind": l.kind.as_str(), "measured": l.measured, "text": l.text, "how_to_measure": l.how_to_measure,
        })).collect::<Vec<_>>(),
    })
}

fn zombie(zombie: &Zombie, times: &Times) -> Value {
    json!({
        "id": zombie.id,
        "path": zombie.path,
        "references": zombie.references,
        "bytes": held(&zombie.held),
        "born": times.of_birth(zombie.born),
        "birth_is_exact": zombie.born.map(|b| b.exact),
        "directory_lives": zombie.directory_lives,
    })
}

/// Converts the node's times to dates.
struct Times(Option<Clocks>);

impl Times {
    fn of(&self, at: Time) -> Option<Wall> {
        Some(self.0?.wall_of(at))
    }

    fn of_birth(&self, born: Option<Born>) -> Option<Wall> {
        self.of(born?.at)
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
