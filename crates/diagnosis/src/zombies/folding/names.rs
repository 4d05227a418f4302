//! Names below one parent: which keep a pattern of their own, and what the others have in common.

use super::{Base, Bases, Kin, SHARE};
use coroner_evidence::pattern_covers;
use std::collections::HashMap;

/// Fewer than this of a kind are put together with others, if the parent has more kinds than a few.
const FLOOR: u64 = 3;
const FEW_KINDS: usize = 3;

/// One that another one covers keeps its line if it has at least this part of all.
const COVERED_SHARE: u64 = 10;

/// What systemd's names end with.
const UNIT_SUFFIXES: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];
const SEPARATORS: [char; 6] = ['-', '_', '.', ':', '@', '\\'];

/// Puts the bases of one parent together.
pub fn put_together(bases: &mut Bases<'_>, of_parent: &[u32], kin: &mut Vec<Kin>) {
    let at = |base: u32| -> Base { bases.all[base as usize] };
    if let &[only] = of_parent {
        let Base { parent, pattern, count, bytes } = at(only);
        kin.push(Kin { parent, pattern, count, bytes, bases: vec![only] });
        return;
    }
    let mut order = of_parent.to_vec();
    order.sort_unstable_by(|&a, &b| at(b).count.cmp(&at(a).count).then_with(|| bases.text(a).cmp(bases.text(b))));
    let total: u64 = order.iter().fold(0, |sum, &base| sum.saturating_add(at(base).count));
    let mut remaining = total;
    let mut kept: Vec<Cluster> = Vec::new();
    let mut left: Vec<u32> = Vec::new();
    for base in order {
        let (count, text) = (at(base).count, bases.text(base));
        let small = count.saturating_mul(COVERED_SHARE) < total;
        if small && let Some(by) = kept.iter_mut().find(|k| pattern_covers(&k.pattern, text)) {
            by.bases.push(base);
        } else if count.saturating_mul(SHARE) >= remaining && (count >= FLOOR || of_parent.len() <= FEW_KINDS) {
            kept.push(Cluster { pattern: text.to_owned(), bases: vec![base] });
        } else {
            left.push(base);
            continue;
        }
        remaining = remaining.saturating_sub(count);
    }
    for wider in [by_first_word as fn(&str) -> String, by_unit_suffix] {
        left = cluster(left, wider, bases, &mut kept);
    }
    if !left.is_empty() {
        let pattern = in_common(left.iter().map(|&base| bases.text(base)));
        match kept.iter_mut().find(|k| k.pattern == pattern) {
            Some(same) => same.bases.extend(left),
            None => kept.push(Cluster { pattern, bases: left }),
        }
    }
    for cluster in kept {
        let pattern = bases.pattern_id(&cluster.pattern);
        let sum = |of: fn(&Base) -> u64| {
            cluster.bases.iter().fold(0u64, |sum, &base| sum.saturating_add(of(&bases.all[base as usize])))
        };
        let (count, bytes) = (sum(|base| base.count), sum(|base| base.bytes));
        let parent = bases.all[of_parent[0] as usize].parent;
        kin.push(Kin { parent, pattern, count, bytes, bases: cluster.bases });
    }
}

#[derive(Debug)]
struct Cluster {
    pattern: String,
    bases: Vec<u32>,
}

/// Those that share something wider and are a part of what is left become one; gives back the others.
fn cluster(left: Vec<u32>, wider: fn(&str) -> String, bases: &Bases<'_>, kept: &mut Vec<Cluster>) -> Vec<u32> {
    let mut index: HashMap<String, usize> = HashMap::new();
    let mut clusters: Vec<(String, u64, Vec<u32>)> = Vec::new();
    let mut remaining = 0u64;
    for base in left {
        let count = bases.all[base as usize].count;
        let key = wider(bases.text(base));
        let i = *index.entry(key).or_insert_with_key(|key| {
            clusters.push((key.clone(), 0, Vec::new()));
            clusters.len() - 1
        });
        clusters[i].1 = clusters[i].1.saturating_add(count);
        clusters[i].2.push(base);
        remaining = remaining.saturating_add(count);
    }
    clusters.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let mut left = Vec::new();
    for (key, count, members) in clusters {
        if let Some(same) = kept.iter_mut().find(|k| k.pattern == key) {
            same.bases.extend(members);
        } else if members.len() > 1 && count.saturating_mul(SHARE) >= remaining {
            let pattern = in_common(members.iter().map(|&base| bases.text(base)));
            match kept.iter_mut().find(|k| k.pattern == pattern) {
                Some(same) => same.bases.extend(members),
                None => kept.push(Cluster { pattern, bases: members }),
            }
        } else {
            left.extend(members);
            continue;
        }
        remaining = remaining.saturating_sub(count);
    }
    left
}

fn unit_suffix(pattern: &str) -> &'static str {
    UNIT_SUFFIXES.into_iter().find(|suffix| pattern.len() > suffix.len() && pattern.ends_with(suffix)).unwrap_or("")
}

/// `job-abc-xyz` → `job-*`; `ecs.service` stays.
fn by_first_word(pattern: &str) -> String {
    let suffix = unit_suffix(pattern);
    let stem = &pattern[..pattern.len() - suffix.len()];
    match stem.find(SEPARATORS) {
        // All separators are ASCII.
        Some(at) => format!("{}*{suffix}", stem[..=at].split('*').next().unwrap_or("")),
        None => pattern.to_owned(),
    }
}

/// `ecs.service` → `*.service`
fn by_unit_suffix(pattern: &str) -> String {
    match unit_suffix(pattern) {
        "" => pattern.to_owned(),
        suffix => format!("*{suffix}"),
    }
}

/// The narrowest pattern with one `*` that covers all of these.
fn in_common<'t>(mut texts: impl Iterator<Item = &'t str>) -> String {
    let Some(first) = texts.next() else { return "*".to_owned() };
    let mut all_alike = true;
    let mut shortest = first.len();
    let mut prefix = first.split('*').next().unwrap_or("");
    let mut suffix = first.rsplit('*').next().unwrap_or("");
    for text in texts {
        all_alike &= text == first;
        shortest = shortest.min(text.len());
        let same = prefix.char_indices().zip(text.chars()).find(|((_, a), b)| a != b || *b == '*');
        prefix = match same {
            Some(((at, _), _)) => &prefix[..at],
            None => &prefix[..prefix.len().min(text.len())],
        };
        let same = suffix.char_indices().rev().zip(text.chars().rev()).take_while(|((_, a), b)| a == b && *b != '*');
        suffix = match same.last() {
            Some(((at, _), _)) => &suffix[at..],
            None => "",
        };
    }
    if all_alike {
        return first.to_owned();
    }
    // `ab` and `ab-ab`: prefix and suffix may not use the same characters twice.
    while prefix.len() + suffix.len() > shortest {
        let mut rest = suffix.chars();
        rest.next();
        suffix = rest.as_str();
    }
    format!("{prefix}*{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_have_in_common() {
        let common = |texts: &[&str]| in_common(texts.iter().copied());
        assert_eq!(common(&["tmp.aBcDeF", "tmp.xYz", "tmp.*"]), "tmp.*");
        assert_eq!(common(&["ab", "ab-ab"]), "ab*");
        assert_eq!(common(&["a.service", "b.service"]), "*.service");
        assert_eq!(common(&["qjwxk", "zzplm"]), "*");
        assert_eq!(common(&["one", "one"]), "one");
        assert_eq!(common(&["zombie_*_qwe", "zombie_*_rte"]), "zombie_*e");
        assert_eq!(common(&["é1", "è1"]), "*1");
    }
}
