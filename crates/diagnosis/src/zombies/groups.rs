//! Many names become a few groups.

use super::Group;
use coroner_evidence::{CgroupOwner, Held, ZombieScan, name_pattern};
use std::collections::HashMap;

pub fn groups(scan: &ZombieScan) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut index: HashMap<(&str, String), usize> = HashMap::new();
    for zombie in &scan.zombies {
        let (parent, name) = split(&zombie.path);
        let pattern = name_pattern(name);
        let i = *index.entry((parent, pattern.clone())).or_insert_with(|| {
            groups.push(empty(parent.to_owned(), pattern, zombie.path.clone()));
            groups.len() - 1
        });
        let group = &mut groups[i];
        group.dead = Some(group.dead.unwrap_or(0) + 1);
        group.held.add(&zombie.held);
        group.example.clone_from(&zombie.path);
        group.oldest = group.oldest.or(zombie.born);
        group.newest = zombie.born.or(group.newest);
    }
    if scan.zombies.is_empty() {
        for below in &scan.below {
            let mut group = empty(below.parent.clone(), "*".to_owned(), below.parent.clone());
            group.dead = below.dead;
            group.held = below.held;
            groups.push(group);
        }
    }
    groups.sort_by_key(|g| std::cmp::Reverse((g.dead, g.held.total())));
    groups
}

/// Parent and name.
fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((parent, name)) => (parent, name),
        None => ("/", path),
    }
}

fn empty<'e>(parent: String, pattern: String, example: String) -> Group<'e> {
    let owner = CgroupOwner::of_path(&example);
    Group {
        parent,
        pattern,
        unit: owner.unit,
        pod_uid: owner.pod_uid,
        container_id: owner.container_id,
        example,
        dead: None,
        held: Held::default(),
        oldest: None,
        newest: None,
        first_death: None,
        last_death: None,
        per_hour: None,
        pinned_by: Vec::new(),
        pinned_in: Vec::new(),
        pinned_otherwise: Vec::new(),
        makers: Vec::new(),
        rest_of: 0,
    }
}
