//! `coroner zombies` as text.

use super::safe::one_line;
use super::terminal::{bold, dim, good, width, wrap};
use coroner_diagnosis::words::{bytes, count, duration_words, plural};
use coroner_diagnosis::zombies::{FileGroup, Group, Growth, MakerShare, Pin, RateFrom, ZombieReport};
use coroner_evidence::{Born, Charged, Evidence, Order, Time, Zombie, ZombieMethod, probe};
use std::time::Duration;

/// Groups, files and makers shown without --all.
const GROUPS: usize = 10;
const FILES: usize = 5;
const MAKERS: usize = 5;

pub struct Shown {
    pub list: bool,
    pub all: bool,
    pub watched: bool,
    /// From the node now, not from a recording.
    pub is_live: bool,
}

pub fn render(report: &ZombieReport, evidence: &Evidence, shown: &Shown) -> String {
    let width = width();
    let mut out = wrap(&headline(report, evidence), width, 0);
    let held = held_words(&report.held);
    if report.scan.dead != Some(0) && !held.is_empty() {
        out.push_str(&wrap(&format!("They hold {}: {held}.", bytes(report.held.total())), width, 0));
    }
    if let Some(truncated) = &report.scan.truncated {
        out.push_str(&wrap(&format!("Not all of them were reached: {}.", truncated), width, 0));
    }
    for tried in &report.scan.instead_of {
        let text = format!("{} is not available: {}. To use it: {}.", tried.method, tried.why, tried.how_to_see);
        out.push_str(&wrap(&text, width, 0));
    }

    let most = if shown.all { report.groups.len() } else { GROUPS };
    for group in report.groups.iter().take(most) {
        out.push('\n');
        out.push_str(&group_text(group, report.scan.at, width, shown));
    }
    if report.groups.len() > most {
        let rest = &report.groups[most..];
        let dead = rest.iter().filter_map(|g| g.dead).fold(0, u64::saturating_add);
        let dead =
            if rest.iter().any(|g| g.dead.is_none()) { String::new() } else { format!("{} dead in ", count(dead)) };
        let groups = plural(rest.len() as u64, "smaller group", "smaller groups");
        out.push_str(&format!("\nand {dead}{groups} (--all shows them)\n"));
    }
    out.push_str(&makers_text(report, evidence, width, shown));
    out.push_str(&cost_text(report, width));
    if shown.list {
        out.push_str(&list_text(&report.scan.zombies, report.scan.at));
    }
    out.push_str(&unseen_text(evidence, width));
    out.push_str(&dim(&last_line(report, shown)));
    out
}

fn headline(report: &ZombieReport, evidence: &Evidence) -> String {
    let scan = report.scan;
    let node = evidence.node.as_ref();
    let live = scan.live.map(|n| format!(", {} live", count(n))).unwrap_or_default();
    let what = match scan.dead {
        Some(0) => good(&format!("No dead memory cgroups{live}")),
        Some(1) => bold(&format!("1 dead memory cgroup{live}")),
        Some(n) => bold(&format!("{} dead memory cgroups{live}", count(n))),
        None => bold(&format!("An unknown number of dead memory cgroups{live}")),
    };
    let mut place = Vec::new();
    if let Some(host) = node.and_then(|n| n.host.as_deref()) {
        place.push(host.to_owned());
    }
    if let Some(kernel) = node.and_then(|n| n.kernel.as_deref()) {
        place.push(format!("Linux {kernel}"));
    }
    place.push(format!("cgroup v{}", scan.version));
    let how = match scan.method {
        ZombieMethod::BpfTestRun | ZombieMethod::BpfPageFaults => {
            format!(
                "read from the kernel's own lists ({}) in {}",
                scan.method.as_str(),
                duration_words(Duration::from_nanos(scan.took_ns))
            )
        }
        ZombieMethod::CgroupStat => "counted from cgroup.stat (cgroup-stat): parents, but no names or files".to_owned(),
        ZombieMethod::MemoryStat => {
            "computed from memory.stat of their parents (memory-stat): bytes per parent, but no names or files"
                .to_owned()
        }
        ZombieMethod::Count => {
            "cgroups the kernel tracks minus existing directories (count): no names, parents or files".to_owned()
        }
    };
    let mut text = format!("{what} · {} · {how}.", place.join(", "));
    match (report.growth, report.per_hour) {
        (Growth::Growing { by, over }, _) => {
            text.push_str(&format!(" Growing: {} more in the {} watched.", count(by), duration_words(over)));
        }
        (_, Some(rate)) if rate.value >= 0.05 && scan.dead != Some(0) => {
            text.push_str(&match rate.from {
                RateFrom::Births { over } if over >= Duration::from_secs(3590) => {
                    format!(" {} of them were created within the last hour.", count(rate.value.round() as u64))
                }
                _ => format!(" {}.", capital(&rate_words(rate.value, rate.from))),
            });
        }
        (Growth::Steady { over }, _) => {
            text.push_str(&format!(" Not growing in the {} watched.", duration_words(over)))
        }
        _ => {}
    }
    text
}

fn group_text(group: &Group, now: Time, width: usize, shown: &Shown) -> String {
    let dead = group.dead.map_or_else(|| "dead ones".to_owned(), |n| format!("{} dead", count(n)));
    let mut name = if group.rest_of > 0 {
        format!("in {} other places", count(group.rest_of))
    } else {
        format!("{}  {}", one_line(&group.parent), bold(&one_line(&group.pattern)))
    };
    let owner: Vec<String> = [
        group.unit.as_ref().map(|u| format!("unit {u}")),
        group.pod_uid.as_ref().map(|p| format!("pod {p}")),
        group.container_id.as_ref().map(|c| format!("container {}", c.chars().take(12).collect::<String>())),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !owner.is_empty() {
        name.push_str(&format!("  ({})", one_line(&owner.join(", "))));
    }
    let mut out = format!("{}  {name}\n", bold(&dead));
    let at_least = if group.held_is_partial { "at least " } else { "" };
    let mut facts = vec![format!("hold {at_least}{}", bytes(group.held.total()))];
    let kinds = held_words(&group.held);
    if !kinds.is_empty() {
        facts[0].push_str(&format!(": {kinds}"));
    }
    if let Some(ages) = ages(group, now) {
        facts.push(ages);
    }
    if let (Some(first), Some(last)) = (group.first_death, group.last_death) {
        facts.push(match (ago(now, first), ago(now, last)) {
            (a, b) if a == b => format!("some removed {a} ago, while watching"),
            (a, b) => format!("some removed {a} to {b} ago, while watching"),
        });
    }
    if let Some(rate) = group.per_hour.filter(|r| r.value >= 0.05) {
        facts.push(rate_words(rate.value, rate.from));
    }
    if group.pattern.contains('*') && group.example != group.parent {
        facts.push(format!("e.g. {}", group.example.rsplit('/').next().unwrap_or_default()));
    }
    out.push_str(&wrap(&facts.join(" · "), width, 4));
    out.push_str(&pins_text(group, width, shown));
    if group.makers.iter().any(|m| m.maker.is_some()) {
        out.push_str("    created by\n");
        let makers = group.makers.iter().filter(|m| m.maker.is_some());
        for maker in makers.take(if shown.all { usize::MAX } else { MAKERS }) {
            out.push_str(&wrap(&maker_words(maker, false), width, 6));
        }
    }
    out
}

fn pins_text(group: &Group, width: usize, shown: &Shown) -> String {
    // Largest first, of whatever kind.
    let mut lines: Vec<(u64, String)> = Vec::new();
    let left_out = if shown.all {
        lines.extend(group.pinned_by.iter().map(|pin| (pin.bytes, pin_words(pin))));
        0
    } else {
        lines.extend(group.pinned_in.iter().take(FILES).map(|place| (place.bytes, file_group_words(place))));
        group.pinned_in.len().saturating_sub(FILES)
    };
    for other in &group.pinned_otherwise {
        let amount = other.bytes.map(|b| format!("{} ", bytes(b))).unwrap_or_default();
        let of = other.zombies.map(|n| format!(", {}", of_them(n))).unwrap_or_default();
        lines.push((other.bytes.unwrap_or(0), format!("{amount}{}{of}", other.kind.as_str())));
    }
    if lines.is_empty() {
        return String::new();
    }
    lines.order_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let mut out = "    kept by\n".to_owned();
    for (_, line) in lines {
        out.push_str(&wrap(&line, width, 6));
    }
    if left_out > 0 {
        let places = plural(left_out as u64, "more place", "more places");
        out.push_str(&format!("      and files in {places} (--all lists every file)\n"));
    }
    out
}

fn pin_words(pin: &Pin) -> String {
    let seen_by = pin.file.seen_by.map(|pid| format!(", as seen by process {pid}")).unwrap_or_default();
    let unmounted = if pin.file.mounted || pin.file.path.is_none() { "" } else { ", path within its file system" };
    let file = pin.file;
    format!("{} {} ({}{seen_by}{unmounted}), {}", bytes(pin.bytes), file.name(), file.filesystem, of_them(pin.zombies))
}

fn file_group_words(group: &FileGroup) -> String {
    let files = if group.files == 1 { String::new() } else { format!("{} files, ", count(group.files)) };
    let deleted = match group.deleted {
        0 => "",
        n if n == group.files => ", deleted but still open or mapped",
        _ => ", some deleted but still open or mapped",
    };
    format!(
        "{} {} ({files}{}{deleted}), {}",
        bytes(group.bytes),
        group.pattern,
        group.filesystem,
        of_them(group.zombies)
    )
}

fn of_them(n: u64) -> String {
    format!("keeps {}", count(n))
}

/// Who creates and removes cgroups, whether or not dead ones remain.
fn makers_text(report: &ZombieReport, evidence: &Evidence, width: usize, shown: &Shown) -> String {
    if !shown.watched {
        return String::new();
    }
    let mut out = format!("\n{}\n", bold("What creates and removes cgroups"));
    let makers: Vec<&MakerShare> = report.makers.iter().filter(|m| m.maker.is_some()).collect();
    match evidence.why_unseen(probe::CGROUP_CHURN) {
        Some(unseen) if makers.is_empty() => {
            let text = format!("Not seen: {}. To see it: {}.", unseen.why, unseen.how_to_see);
            out.push_str(&wrap(&text, width, 2));
        }
        None if makers.is_empty() => out.push_str("  No cgroup was created or removed while watching.\n"),
        _ => {}
    }
    let most = if shown.all { makers.len() } else { MAKERS };
    for maker in makers.iter().take(most) {
        out.push_str(&wrap(&maker_words(maker, true), width, 2));
    }
    if makers.len() > most {
        out.push_str(&format!("  and {} more (--all shows them)\n", makers.len() - most));
    }
    if let Some(churn) = report.churn.filter(|c| c.removed > 0) {
        out.push_str(&wrap(
            &format!(
                "Within {}: {} removed, {} freed by the kernel. Removed but not freed means dead.",
                duration_words(churn.over()),
                count(churn.removed),
                count(churn.freed)
            ),
            width,
            2,
        ));
    }
    out
}

fn maker_words(share: &MakerShare, with_place: bool) -> String {
    let mut text = format!(
        "{}: {} created, {} removed, {} per minute",
        share.name(),
        count(share.born),
        count(share.removed),
        tenths(share.per_minute)
    );
    match share.left {
        Some(0) => text.push_str(", none stays"),
        Some(left) => text.push_str(&format!(", {} dead and not freed", count(left))),
        None => {}
    }
    if with_place {
        text.push_str(&format!(", below {} as {}", share.parent, share.pattern));
    }
    if let (Some(unit), Some(0)) = (&share.made_unit, share.made_unit_restarts) {
        text.push_str(&format!(" ({unit}; systemd counts no restart)"));
    }
    if let Some(maker) = &share.maker
        && let Some(command) = maker.command.as_deref().filter(|c| *c != maker.comm)
    {
        text.push_str(&format!(" · {command}"));
    }
    text
}

fn cost_text(report: &ZombieReport, width: usize) -> String {
    if report.scan.dead == Some(0) || report.cost.lines.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", bold("Their cost on this node"));
    if !report.cost.matters.is_empty() {
        out.push_str(&wrap(&report.cost.matters, width, 2));
    }
    for line in &report.cost.lines {
        let how = line.how_to_measure.as_ref().map(|h| format!(" To measure it: {h}.")).unwrap_or_default();
        let text = line.text.trim_end_matches('.');
        out.push_str(&wrap(&format!("- {text}.{how}"), width, 2));
    }
    out
}

fn list_text(zombies: &[Zombie], now: Time) -> String {
    if zombies.is_empty() {
        return String::new();
    }
    let mut out =
        format!("\n{}\n{}", bold("All of them, oldest first"), dim("        id       holds        age  path\n"));
    for z in zombies {
        let age =
            z.born.map_or_else(|| "?".to_owned(), |b| format!("{}{}", if b.exact { "" } else { "≥ " }, ago(now, b.at)));
        out.push_str(&format!("{:>10}  {:>10}  {age:>9}  {}\n", z.id, bytes(z.held.total()), one_line(&z.path)));
    }
    out
}

fn unseen_text(evidence: &Evidence, width: usize) -> String {
    if evidence.unseen.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", bold("Not seen"));
    for unseen in &evidence.unseen {
        let mut text = format!("- {}: {}.", unseen.what, unseen.why.trim_end_matches('.'));
        if !unseen.how_to_see.is_empty() {
            text.push_str(&format!(" To see it: {}.", unseen.how_to_see.trim_end_matches('.')));
        }
        out.push_str(&wrap(&text, width, 2));
    }
    out
}

fn last_line(report: &ZombieReport, shown: &Shown) -> String {
    let mut hints = Vec::new();
    if shown.is_live && !shown.watched {
        hints.push("--watch shows what creates them");
    }
    if !shown.list && !report.scan.zombies.is_empty() {
        hints.push("--list shows each one");
    }
    let hints = if hints.is_empty() { String::new() } else { format!("{}; ", hints.join(", ")) };
    format!("\n{hints}what to do: coroner --explain zombie-memcgs\n")
}

fn held_words(held: &Charged) -> String {
    let (anonymous, shmem) = (held.anonymous.unwrap_or(0), held.shmem.unwrap_or(0));
    let untold = held.swap_backed.saturating_sub(anonymous).saturating_sub(shmem);
    let kinds = [
        (held.file, "page cache"),
        (shmem, "shared memory and tmpfs"),
        (anonymous, "anonymous memory"),
        (untold, "anonymous or shared memory"),
        (held.unevictable, "locked memory"),
        (held.kernel.unwrap_or(0), "kernel memory"),
    ];
    let mut words: Vec<String> =
        kinds.iter().filter(|(n, _)| *n > 0).map(|(n, kind)| format!("{} {kind}", bytes(*n))).collect();
    if let Some(swap) = held.swap.filter(|n| *n > 0) {
        words.push(format!("and {} in swap", bytes(swap)));
    }
    words.join(", ")
}

fn ages(group: &Group, now: Time) -> Option<String> {
    let (oldest, newest) = (group.oldest?, group.newest?);
    if oldest.exact && newest.exact {
        return Some(match (ago(now, oldest.at), ago(now, newest.at)) {
            (a, b) if a == b => format!("created {a} ago"),
            (a, b) => format!("created {a} to {b} ago"),
        });
    }
    let at_least = |b: Born| ago(now, b.at);
    Some(format!("created at least {} ago, the newest at least {} ago", at_least(oldest), at_least(newest)))
}

fn ago(now: Time, at: Time) -> String {
    duration_words(now.since(at))
}

fn rate_words(per_hour: f64, from: RateFrom) -> String {
    let rate = if per_hour >= 10.0 { count(per_hour.round() as u64) } else { tenths(per_hour) };
    match from {
        RateFrom::Births { over } if over < Duration::from_secs(3590) => {
            format!("{rate} per hour (by creation times, {} since boot)", duration_words(over))
        }
        RateFrom::Births { .. } => format!("{} created within the last hour", count(per_hour.round() as u64)),
        RateFrom::Watched { over } => format!("{rate} more per hour (watched for {})", duration_words(over)),
        RateFrom::SinceBoot { over } => {
            format!("{rate} per hour on average over the {} since boot", duration_words(over))
        }
    }
}

fn tenths(value: f64) -> String {
    if value >= 100.0 { count(value.round() as u64) } else { format!("{value:.1}") }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|c| c.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

/// For the progress line: who creates most cgroups.
pub fn at_work(seen: &Evidence) -> Option<String> {
    let (born, removed) = seen
        .cgroup_churn
        .iter()
        .fold((0u64, 0u64), |(b, r), c| (b.saturating_add(c.born), r.saturating_add(c.removed)));
    let maker = seen.cgroup_churn.iter().filter(|c| c.maker.is_some()).max_by_key(|c| c.born)?.maker.as_ref()?;
    Some(format!(
        "{} created, {} removed, most by {}[{}]",
        plural(born, "cgroup", "cgroups"),
        count(removed),
        maker.comm,
        maker.pid
    ))
}
