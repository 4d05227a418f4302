//! Who makes and removes the cgroups.

use super::Group;
use coroner_evidence::{CgroupChurn, CgroupOwner, Maker, Time, pattern_covers};

/// What one process did below one parent to cgroups whose names are alike.
#[derive(Debug, Clone, PartialEq)]
pub struct MakerShare {
    /// `None` for what the kernel freed, which no process does.
    pub maker: Option<Maker>,
    /// The systemd unit that the maker runs in.
    pub unit: Option<String>,
    pub parent: String,
    pub pattern: String,
    pub example: String,
    pub born: u64,
    pub removed: u64,
    pub freed: u64,
    /// First to last look at this churn.
    pub from: Time,
    pub to: Time,
    /// Births; removals where there were no births.
    pub per_minute: f64,
}

/// All churn, by maker, parent and pattern; most births first.
pub fn shares(churn: &[CgroupChurn]) -> Vec<MakerShare> {
    let mut shares: Vec<MakerShare> = Vec::new();
    for row in churn {
        let same = |s: &&mut MakerShare| s.maker == row.maker && s.parent == row.parent && s.pattern == row.pattern;
        match shares.iter_mut().find(same) {
            Some(share) => {
                share.born = share.born.saturating_add(row.born);
                share.removed = share.removed.saturating_add(row.removed);
                share.freed = share.freed.saturating_add(row.freed);
                share.from = share.from.min(row.from);
                share.to = share.to.max(row.to);
            }
            None => shares.push(MakerShare {
                maker: row.maker.clone(),
                unit: row.maker.as_ref().and_then(|m| CgroupOwner::of_path(m.cgroup.as_deref()?).unit),
                parent: row.parent.clone(),
                pattern: row.pattern.clone(),
                example: row.example.clone(),
                born: row.born,
                removed: row.removed,
                freed: row.freed,
                from: row.from,
                to: row.to,
                per_minute: 0.0,
            }),
        }
    }
    for share in &mut shares {
        let minutes = share.to.since(share.from).as_secs_f64() / 60.0;
        let happened = if share.born > 0 { share.born } else { share.removed };
        share.per_minute = if minutes > 0.0 { happened as f64 / minutes } else { 0.0 };
    }
    shares.sort_by_key(|s| std::cmp::Reverse((s.born, s.removed)));
    shares
}

/// Gives each group the churn that is of it.
pub fn join(churn: &[CgroupChurn], groups: &mut [Group<'_>]) {
    for share in shares(churn) {
        let of_it =
            |g: &&mut Group<'_>| pattern_covers(&g.parent, &share.parent) && pattern_covers(&g.pattern, &share.pattern);
        if let Some(group) = groups.iter_mut().find(of_it) {
            group.makers.push(share);
        }
    }
}
