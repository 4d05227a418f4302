//! Folds many names into a few groups.

use super::folding::{self, Folding, Item, split};
use super::{Group, pins};
use coroner_evidence::{Born, CgroupOwner, Charged, Order, ZombieScan};
use std::cmp::Reverse;

/// The groups of a scan, and for each of its zombies the index of its group.
pub fn groups(scan: &ZombieScan) -> (Vec<Group<'_>>, Vec<u32>) {
    if scan.zombies.is_empty() {
        return (without_names(scan), Vec::new());
    }
    let Folding { classes, mut class_of } = folding::fold(scan.zombies.iter().map(|zombie| {
        let (parent, name) = split(&zombie.path);
        Item { parent, name, count: 1, bytes: zombie.held.total() }
    }));
    let mut groups: Vec<Group<'_>> = classes.into_iter().map(empty).collect();
    // The name that all of a group share, if they do.
    let mut only_name: Vec<Option<&str>> = vec![None; groups.len()];
    let mut youngest: Vec<Option<&str>> = vec![None; groups.len()];
    for (zombie, &class) in scan.zombies.iter().zip(&class_of) {
        let class = class as usize;
        let group = &mut groups[class];
        let (_, name) = split(&zombie.path);
        if group.dead.is_none() {
            only_name[class] = Some(name);
        } else if only_name[class].is_some_and(|only| only != name) {
            only_name[class] = None;
        }
        group.dead = Some(group.dead.unwrap_or(0) + 1);
        group.held.add(&zombie.held);
        if let Some(born) = zombie.born {
            let (earlier, later) = (|old: &Born| old.at <= born.at, |old: &Born| old.at > born.at);
            group.oldest = group.oldest.filter(earlier).or(Some(born));
            group.newest = group.newest.filter(later).or(Some(born));
        }
        youngest[class] = Some(&zombie.path);
    }
    for ((group, only_name), youngest) in groups.iter_mut().zip(only_name).zip(youngest) {
        // It died more than once, with the same name each time.
        if let Some(name) = only_name.filter(|_| group.dead > Some(1)) {
            group.pattern = name.to_owned();
        }
        group.example = youngest.unwrap_or("").to_owned();
        set_owner(group);
    }
    pins::add(scan, &class_of, &mut groups);

    let mut order: Vec<u32> = (0..groups.len() as u32).collect();
    order.order_by_key(|&i| rank(&groups[i as usize]));
    let mut place = vec![0u32; groups.len()];
    for (to, &from) in order.iter().enumerate() {
        place[from as usize] = to as u32;
    }
    for class in &mut class_of {
        *class = place[*class as usize];
    }
    groups.order_by_key(rank);
    (groups, class_of)
}

/// Largest first, the rest last.
fn rank(group: &Group<'_>) -> (bool, Reverse<Option<u64>>, Reverse<u64>) {
    (group.rest_of > 0, Reverse(group.dead), Reverse(group.held.total()))
}

/// If only the parents of the dead are known.
fn without_names(scan: &ZombieScan) -> Vec<Group<'_>> {
    let Folding { classes, class_of } = folding::fold(scan.below.iter().map(|below| Item {
        parent: &below.parent,
        name: "*",
        count: below.dead.unwrap_or(1),
        bytes: below.held.as_ref().map_or(0, Charged::total),
    }));
    let mut groups: Vec<Group<'_>> = classes.into_iter().map(empty).collect();
    let mut uncounted = vec![false; groups.len()];
    for (below, &class) in scan.below.iter().zip(&class_of) {
        let group = &mut groups[class as usize];
        match &below.held {
            Some(held) => group.held.add(held),
            None => group.held_is_partial = true,
        }
        match below.dead {
            Some(dead) => group.dead = Some(group.dead.unwrap_or(0).saturating_add(dead)),
            None => uncounted[class as usize] = true,
        }
        if group.example.is_empty() {
            group.example.clone_from(&below.parent);
        }
    }
    for (group, uncounted) in groups.iter_mut().zip(uncounted) {
        if uncounted {
            group.dead = None;
        }
        set_owner(group);
        pins::without_files(group);
    }
    groups.order_by_key(rank);
    groups
}

fn empty<'e>(class: folding::Class) -> Group<'e> {
    Group {
        parent: class.parent,
        pattern: class.pattern,
        unit: None,
        pod_uid: None,
        container_id: None,
        example: String::new(),
        dead: None,
        held: Charged::default(),
        oldest: None,
        newest: None,
        first_death: None,
        last_death: None,
        per_hour: None,
        pinned_by: Vec::new(),
        pinned_in: Vec::new(),
        pinned_otherwise: Vec::new(),
        makers: Vec::new(),
        churn: None,
        held_is_partial: false,
        rest_of: class.rest_of,
    }
}

/// The owner that the path gives, if it is the same for all: no folded part.
fn set_owner(group: &mut Group<'_>) {
    if group.rest_of > 0 {
        return;
    }
    let owner = CgroupOwner::of_path(&join_path(&group.parent, &group.pattern));
    let whole = |text: &String| !text.contains('*');
    group.unit = owner.unit.filter(whole);
    group.pod_uid = owner.pod_uid.filter(whole);
    group.container_id = owner.container_id.filter(whole);
}

/// `/` and `a` give `/a`.
pub fn join_path(parent: &str, name: &str) -> String {
    format!("{}/{name}", parent.trim_end_matches('/'))
}

#[cfg(test)]
mod tests;
