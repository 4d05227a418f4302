//! Who makes and removes the cgroups.

use super::Group;
use super::folding::{covers, covers_path};
use super::groups::join_path;
use super::survivors::survivors;
use crate::ties::{Task, Ties};
use coroner_evidence::{CgroupChurn, CgroupOwner, Evidence, Maker, Order, Time, ZombieScan, name_pattern};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// What one process, or several of the same kind, did below one parent to cgroups with similar names.
#[derive(Debug, Clone, PartialEq)]
pub struct MakerShare {
    /// The last of them; `None` if unknown.
    pub maker: Option<Maker>,
    /// How many processes: a script that runs mkdir makes each cgroup with a new one.
    pub processes: u64,
    /// The systemd unit that the maker runs in.
    pub unit: Option<String>,
    /// The unit that the cgroups belong to: systemd makes them on its behalf.
    pub made_unit: Option<String>,
    /// By how much that unit's NRestarts rose meanwhile: 0 if systemd does not count its restarts.
    pub made_unit_restarts: Option<u32>,
    pub parent: String,
    pub pattern: String,
    pub example: String,
    pub born: u64,
    pub removed: u64,
    /// Of those it made, how many are dead and stay; `None` if nobody followed them.
    pub left: Option<u64>,
    /// Births over the watched time; removals if there were no births.
    pub per_minute: f64,
}

/// Fewer stay for a while on any node.
const A_FEW: u64 = 3;

impl MakerShare {
    /// Whether cgroups that it made while we watched are dead and stay.
    pub fn leaks(&self) -> bool {
        self.maker.is_some() && self.left.is_some_and(|left| left >= A_FEW)
    }

    /// For people: `bash[4000] through mkdir, rmdir (600 processes) of cron.service`.
    pub fn name(&self) -> String {
        let Some(maker) = &self.maker else { return "an unknown process".to_owned() };
        let mut name = format!("{}[{}]", maker.comm, maker.pid);
        if let Some(via) = &maker.via {
            name.push_str(&format!(" through {via}"));
        }
        if self.processes > 1 {
            name.push_str(&format!(" ({} processes)", crate::words::count(self.processes)));
        }
        if let (true, None, Some(pid)) = (self.processes > 1, &maker.via, maker.parent_pid) {
            let comm = maker.parent_comm.as_deref().unwrap_or("pid");
            name.push_str(&format!(" started by {comm}[{pid}]"));
        }
        if let Some(unit) = &self.unit {
            name.push_str(&format!(" of {unit}"));
        }
        name
    }

    /// Who is to blame: the unit that the cgroups are made for, rather than systemd, which makes them.
    pub fn ties(&self) -> Ties {
        let task = |maker: &Maker| Task { tid: maker.pid, pid: maker.pid, comm: maker.comm.clone() };
        let unit = self.made_unit.as_ref().or(self.unit.as_ref());
        Ties {
            culprits: self.maker.iter().map(task).collect(),
            units: unit.cloned().into_iter().collect(),
            ..Ties::default()
        }
    }
}

/// Who made those of a group that stay, most first: known by id; or, if nobody followed them, because nothing was freed of all that was
/// removed there.
pub fn leakers<'g>(group: &'g Group<'_>) -> Vec<&'g MakerShare> {
    let mut leakers: Vec<&MakerShare> = match group.makers.iter().any(|share| share.left.is_some()) {
        true => group.makers.iter().filter(|share| share.leaks()).collect(),
        false => {
            let all_stay = group.churn.is_some_and(|churn| churn.leaves_nearly_all());
            group.makers.iter().filter(|share| all_stay && share.maker.is_some() && share.born >= A_FEW).collect()
        }
    };
    leakers.order_by_key(|share| std::cmp::Reverse(share.left.unwrap_or(share.born)));
    leakers
}

/// What was made, removed and freed while watched. What was removed and not freed is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Churn {
    pub from: Time,
    pub to: Time,
    pub born: u64,
    pub removed: u64,
    pub freed: u64,
}

impl Churn {
    /// Hardly anything of what was removed was freed: whoever made these leaves dead ones behind.
    pub fn leaves_nearly_all(&self) -> bool {
        self.removed > 0 && self.freed <= self.removed / 10
    }

    pub fn over(&self) -> Duration {
        self.to.since(self.from)
    }

    fn add(&mut self, row: &CgroupChurn) {
        self.from = self.from.min(row.from);
        self.to = self.to.max(row.to);
        self.born = self.born.saturating_add(row.born);
        self.removed = self.removed.saturating_add(row.removed);
        self.freed = self.freed.saturating_add(row.freed);
    }

    fn sum<'r>(rows: impl Iterator<Item = &'r CgroupChurn>) -> Option<Churn> {
        let mut sum: Option<Churn> = None;
        for row in rows {
            sum.get_or_insert(Churn { from: row.from, to: row.to, born: 0, removed: 0, freed: 0 }).add(row);
        }
        sum
    }
}

/// Over the whole watched time.
pub fn churn(evidence: &Evidence) -> Option<Churn> {
    let mut churn = Churn::sum(evidence.cgroup_churn.iter())?;
    // Quiet stretches have no rows, but were watched too.
    let clocks = || evidence.clocks.iter().map(|c| c.at);
    let looks = evidence.window().map(|w| (w.from, w.to)).or_else(|| Some((clocks().min()?, clocks().max()?)));
    if let Some((from, to)) = looks {
        (churn.from, churn.to) = (churn.from.min(from), churn.to.max(to));
    }
    Some(churn)
}

/// Processes that are alike: each start of a service is another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kind<'e> {
    comm: &'e str,
    parent: Option<u32>,
    cgroup: Option<&'e str>,
}

impl<'e> Kind<'e> {
    pub fn of(maker: &'e Maker) -> Kind<'e> {
        Kind { comm: &maker.comm, parent: maker.parent_pid, cgroup: maker.cgroup.as_deref() }
    }
}

/// Everybody who made or removed cgroups, by what they made; most births first.
pub fn shares(evidence: &Evidence) -> Vec<MakerShare> {
    shares_until(evidence, None, None)
}

/// The same until some time, with the dead of a scan, so that it shows what stays.
pub fn shares_until(evidence: &Evidence, scan: Option<&ZombieScan>, until: Option<Time>) -> Vec<MakerShare> {
    let Some(watched) = churn(evidence) else { return Vec::new() };
    /// Processes of the same kind, and what they made.
    type Key<'e> = (Option<Kind<'e>>, &'e str, &'e str);
    let survivors = survivors(evidence, scan, until);
    let mut index: HashMap<Key<'_>, usize> = HashMap::new();
    let mut shares: Vec<(MakerShare, HashSet<u32>)> = Vec::new();
    // Freeing is the kernel's work.
    let is_meant =
        |row: &&CgroupChurn| (row.born > 0 || row.removed > 0) && until.is_none_or(|until| row.from <= until);
    for row in evidence.cgroup_churn.iter().filter(is_meant) {
        let kind = row.maker.as_ref().map(Kind::of);
        let i = *index.entry((kind, &row.parent, &row.pattern)).or_insert_with(|| {
            let mut share = share(row);
            let key = kind.map(|kind| (kind, row.parent.as_str(), row.pattern.as_str()));
            share.left =
                survivors.as_ref().map(|all| key.and_then(|key| all.get(&key)).map_or(0, |s| s.ids.len() as u64));
            shares.push((share, HashSet::new()));
            shares.len() - 1
        });
        let (share, pids) = &mut shares[i];
        share.born = share.born.saturating_add(row.born);
        share.removed = share.removed.saturating_add(row.removed);
        if let Some(maker) = &row.maker {
            // Short-lived processes act once each; a long-lived one is the same in each row.
            match maker.processes {
                0 | 1 if maker.via.is_none() => drop(pids.insert(maker.pid)),
                n => share.processes = share.processes.saturating_add(n),
            }
            let earlier = share.maker.take().and_then(|earlier| earlier.via);
            share.maker = Some(Maker { via: both(earlier, maker.via.as_deref()), ..maker.clone() });
        }
    }
    let minutes = watched.over().as_secs_f64() / 60.0;
    let mut shares: Vec<MakerShare> = shares
        .into_iter()
        .map(|(mut share, pids)| {
            share.processes = share.processes.saturating_add(pids.len() as u64);
            let happened = if share.born > 0 { share.born } else { share.removed };
            share.per_minute = if minutes > 0.0 { happened as f64 / minutes } else { 0.0 };
            share.made_unit_restarts = share.made_unit.as_ref().and_then(|unit| restarts(evidence, unit));
            share
        })
        .collect();
    shares.order_by(|a, b| {
        (b.born, b.removed)
            .cmp(&(a.born, a.removed))
            .then_with(|| (&a.parent, &a.pattern).cmp(&(&b.parent, &b.pattern)))
    });
    shares
}

/// The commands of two stretches, without duplicates: the last one may have seen only some of them.
fn both(earlier: Option<String>, later: Option<&str>) -> Option<String> {
    let (Some(mut all), Some(later)) = (earlier.clone(), later) else {
        return earlier.or_else(|| later.map(str::to_owned));
    };
    for command in later.split(", ") {
        if !all.split(", ").any(|known| known == command) {
            all.push_str(", ");
            all.push_str(command);
        }
    }
    Some(all)
}

fn share(row: &CgroupChurn) -> MakerShare {
    let owner = CgroupOwner::of_path(&join_path(&row.parent, &row.pattern));
    MakerShare {
        maker: row.maker.clone(),
        processes: 0,
        unit: row.maker.as_ref().and_then(|m| CgroupOwner::of_path(m.cgroup.as_deref()?).unit),
        made_unit: owner.unit.filter(|unit| !unit.contains('*')),
        made_unit_restarts: None,
        parent: row.parent.clone(),
        pattern: row.pattern.clone(),
        example: row.example.clone(),
        born: 0,
        removed: 0,
        left: None,
        per_minute: 0.0,
    }
}

/// By how much the count of automatic restarts rose; if it was reset, its current value.
fn restarts(evidence: &Evidence, unit: &str) -> Option<u32> {
    let looks = || evidence.units.iter().filter(|u| u.name == unit && u.restarts.is_some());
    let first = looks().min_by_key(|u| u.at)?.restarts?;
    let last = looks().max_by_key(|u| u.at)?.restarts?;
    Some(last.checked_sub(first).unwrap_or(last))
}

/// Gives each group of a scan its churn and its makers.
pub fn join(evidence: &Evidence, scan: &ZombieScan, until: Option<Time>, groups: &mut [Group<'_>]) {
    if evidence.cgroup_churn.is_empty() {
        return;
    }
    for share in shares_until(evidence, Some(scan), until) {
        if let Some(i) = group_of(groups, &share.parent, &share.pattern) {
            groups[i].makers.push(share);
        }
    }
    let mut rows: Vec<Vec<&CgroupChurn>> = vec![Vec::new(); groups.len()];
    for row in &evidence.cgroup_churn {
        if let Some(i) = group_of(groups, &row.parent, &row.pattern) {
            rows[i].push(row);
        }
    }
    for (group, rows) in groups.iter_mut().zip(rows) {
        group.churn = Churn::sum(rows.iter().copied());
        let deaths = || rows.iter().filter(|row| row.removed > 0);
        // A row does not say when within its stretch: at its end at the latest.
        group.first_death = deaths().map(|row| row.to).min();
        group.last_death = deaths().map(|row| row.to).max();
    }
}

/// A group whose members share only their depth: whoever acts at that depth may have nothing to do with it.
fn is_catch_all(group: &Group<'_>) -> bool {
    let any_parent = group.parent.split('/').any(|part| part == "*");
    any_parent || group.pattern == "*" && group.parent == "/"
}

/// The group that churn belongs to: the same parent and pattern before one that merely covers them; never the rest.
pub fn group_of(groups: &[Group<'_>], parent: &str, pattern: &str) -> Option<usize> {
    let own = || groups.iter().enumerate().filter(|(_, g)| g.rest_of == 0);
    // A group whose dead all have the same name has it as its pattern.
    let alike = |g: &Group<'_>| g.pattern == pattern || name_pattern(&g.pattern) == pattern;
    own()
        .find(|(_, g)| g.parent == parent && alike(g))
        .or_else(|| own().find(|(_, g)| !is_catch_all(g) && covers_path(&g.parent, parent) && alike(g)))
        .or_else(|| own().find(|(_, g)| !is_catch_all(g) && covers(&g.parent, &g.pattern, parent, pattern)))
        .map(|(i, _)| i)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{END, start, watched};
    use crate::zombies::report;
    use crate::zombies::test_scan::scan;
    use coroner_evidence::Unit;

    fn maker(pid: u32, comm: &str, cgroup: &str) -> Option<Maker> {
        Some(Maker {
            pid,
            comm: comm.into(),
            processes: 1,
            parent_pid: Some(4000),
            parent_comm: Some("bash".into()),
            cgroup: Some(cgroup.into()),
            ..Maker::default()
        })
    }

    fn row(parent: &str, pattern: &str, born: u64, maker: Option<Maker>) -> CgroupChurn {
        CgroupChurn {
            from: start(120),
            to: END,
            parent: parent.into(),
            pattern: pattern.into(),
            example: pattern.replace('*', "1"),
            born,
            removed: born,
            freed: 0,
            maker,
        }
    }

    #[test]
    fn churn_is_joined_to_its_group() {
        let uid = |i: usize| format!("{i:08x}-1111-2222-3333-444455556666");
        let mut paths: Vec<String> = (0..500).map(|_| "/system.slice/ecs.service".to_owned()).collect();
        paths.extend((0..120).map(|i| format!("/kubepods/burstable/pod{}/{i:064x}", uid(i / 3))));
        let mut evidence = Evidence { zombie_scans: vec![scan(paths)], ..watched(5) };
        let freed = CgroupChurn { freed: 3, removed: 0, ..row("/system.slice", "ecs.service", 0, None) };
        evidence.cgroup_churn = vec![
            row("/system.slice", "ecs.service", 10, maker(1, "systemd", "/init.scope")),
            row(
                &format!("/kubepods/burstable/pod{}", uid(77)),
                "*",
                4,
                maker(900, "runc", "/system.slice/containerd.service"),
            ),
            row("/elsewhere", "x*", 50, maker(70, "loop", "/batch")),
            freed,
        ];
        evidence.units = [0, 0]
            .map(|restarts| Unit { name: "ecs.service".into(), restarts: Some(restarts), ..Unit::default() })
            .into();
        let report = report(&evidence).unwrap();
        let [ecs, pods] = &report.groups[..] else { panic!("{:?}", report.groups.len()) };
        assert_eq!(ecs.makers[0].name(), "systemd[1] of init.scope");
        assert_eq!((ecs.makers[0].born, ecs.makers[0].per_minute), (10, 5.0));
        // systemd counts no restarts, and yet it churns.
        assert_eq!(ecs.makers[0].made_unit.as_deref(), Some("ecs.service"));
        assert_eq!(ecs.makers[0].made_unit_restarts, Some(0));
        let churn = ecs.churn.unwrap();
        assert_eq!((churn.born, churn.removed, churn.freed), (10, 10, 3));
        assert_eq!((ecs.first_death, ecs.last_death), (Some(END), Some(END)), "at the end of the row at the latest");
        assert_eq!(pods.makers[0].unit.as_deref(), Some("containerd.service"));
        // A maker that left nothing behind is listed too, the busiest first.
        assert_eq!(report.makers[0].name(), "loop[70]");
        assert_eq!(report.makers.iter().map(|m| m.born).sum::<u64>(), 64);
    }

    #[test]
    fn the_commands_of_all_seconds_are_named() {
        let through = |via: &str| {
            let maker = Maker { via: Some(via.to_owned()), processes: 9, ..maker(4000, "sh", "/x").unwrap() };
            row("/p", "z*", 5, Some(maker))
        };
        // The watch ended between a mkdir and its rmdir.
        let cgroup_churn = vec![through("mkdir, rmdir"), through("rmdir")];
        let evidence = Evidence { cgroup_churn, ..watched(5) };
        assert_eq!(shares(&evidence)[0].maker.as_ref().unwrap().via.as_deref(), Some("mkdir, rmdir"));
    }

    #[test]
    fn many_short_lived_processes_are_one_maker() {
        let mut evidence = watched(5);
        evidence.cgroup_churn =
            (0..300).map(|i| row("/p", "z*", 1, maker(5000 + i, "mkdir", "/system.slice/cron.service"))).collect();
        let shares = shares(&evidence);
        assert_eq!(shares.len(), 1);
        assert_eq!(shares[0].name(), "mkdir[5299] (300 processes) started by bash[4000] of cron.service");
        let through = Maker { via: Some("mkdir, rmdir".into()), processes: 300, ..maker(4000, "bash", "/x").unwrap() };
        evidence.cgroup_churn = vec![row("/p", "z*", 300, Some(through))];
        let share = &super::shares(&evidence)[0];
        assert_eq!((share.name().as_str(), share.processes), ("bash[4000] through mkdir, rmdir (300 processes)", 300));
    }

    #[test]
    fn rows_that_stand_for_many_belong_to_no_group() {
        let mut evidence = Evidence { zombie_scans: vec![scan((0..30).map(|i| format!("/p/{i}")))], ..watched(5) };
        evidence.cgroup_churn = vec![row("*", "*", 7, None)];
        let report = report(&evidence).unwrap();
        assert!(report.groups[0].makers.is_empty());
        assert_eq!(report.makers[0].born, 7);
    }
}
