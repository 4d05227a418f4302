//! Names below one parent: which keep their own pattern, and what the others have in common.

use super::{Base, Bases, Kin, Links, Members, SHARE};
use coroner_evidence::{Order, pattern_covers};
use hashbrown::HashMap;
use std::borrow::Cow;
use std::cmp::Reverse;

/// Fewer than this of a kind are merged with others, if the parent has more than a few kinds.
const FLOOR: u64 = 3;
const FEW_KINDS: usize = 3;

/// A pattern that another one covers keeps its line if it has at least one in this many of all.
const COVERED_SHARE: u64 = 10;

/// How systemd's names end.
const UNIT_SUFFIXES: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];
const SEPARATORS: [char; 6] = ['-', '_', '.', ':', '@', '\\'];

/// Merges the bases of each parent.
pub fn below_each_parent(bases: &mut Bases<'_>, links: &mut Links) -> Vec<Kin> {
    let mut order: Vec<(u32, u32)> = bases.all.iter().zip(0..).map(|(base, i)| (base.parent, i)).collect();
    order.sort_unstable();
    let mut kin: Vec<Kin> = Vec::new();
    for of_parent in order.chunk_by(|a, b| a.0 == b.0) {
        match *of_parent {
            [(_, only)] => kin.push(of_one(bases, only)),
            _ => put_together(bases, of_parent, links, &mut kin),
        }
    }
    kin
}

fn of_one(bases: &Bases<'_>, base: u32) -> Kin {
    let Base { parent, pattern, count, bytes } = bases.all[base as usize];
    Kin { parent, pattern, count, bytes, members: Members::one(base) }
}

fn put_together(bases: &mut Bases<'_>, of_parent: &[(u32, u32)], links: &mut Links, kin: &mut Vec<Kin>) {
    let count_of = |base: u32| bases.all[base as usize].count;
    let mut order: Vec<u32> = of_parent.iter().map(|&(_, base)| base).collect();
    order.order_by_key(|&base| (Reverse(count_of(base)), base));
    let total: u64 = order.iter().fold(0, |sum, &base| sum.saturating_add(count_of(base)));
    let mut remaining = total;
    let mut kept: Vec<Cluster> = Vec::new();
    let mut left: Vec<u32> = Vec::new();
    for base in order {
        let (count, text) = (count_of(base), bases.text(base));
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
    for wider in [by_first_word as fn(&str) -> Cow<'_, str>, by_unit_suffix] {
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
        let mut members = cluster.bases.into_iter().map(|base| of_one(bases, base));
        let Some(mut together) = members.next() else { continue };
        for other in members {
            together.count = together.count.saturating_add(other.count);
            together.bytes = together.bytes.saturating_add(other.bytes);
            links.join(&mut together.members, other.members);
        }
        together.pattern = bases.patterns.id(&cluster.pattern);
        kin.push(together);
    }
}

#[derive(Debug)]
struct Cluster {
    pattern: String,
    bases: Vec<u32>,
}

/// Merges those that share a wider pattern and are enough of what is left; returns the others.
fn cluster(left: Vec<u32>, wider: fn(&str) -> Cow<'_, str>, bases: &Bases<'_>, kept: &mut Vec<Cluster>) -> Vec<u32> {
    let mut index: HashMap<Cow<'_, str>, usize> = HashMap::new();
    let mut clusters: Vec<(u64, Vec<u32>)> = Vec::new();
    let mut remaining = 0u64;
    for base in left {
        let count = bases.all[base as usize].count;
        let i = *index.entry(wider(bases.text(base))).or_insert_with(|| {
            clusters.push((0, Vec::new()));
            clusters.len() - 1
        });
        clusters[i].0 = clusters[i].0.saturating_add(count);
        clusters[i].1.push(base);
        remaining = remaining.saturating_add(count);
    }
    clusters.order_by_key(|(count, _)| Reverse(*count));
    let mut left = Vec::new();
    for (count, members) in clusters {
        if members.len() == 1 || count.saturating_mul(SHARE) < remaining {
            left.extend(members);
            continue;
        }
        let pattern = in_common(members.iter().map(|&base| bases.text(base)));
        match kept.iter_mut().find(|k| k.pattern == pattern) {
            Some(same) => same.bases.extend(members),
            None => kept.push(Cluster { pattern, bases: members }),
        }
        remaining = remaining.saturating_sub(count);
    }
    left
}

fn unit_suffix(pattern: &str) -> &'static str {
    UNIT_SUFFIXES.into_iter().find(|suffix| pattern.len() > suffix.len() && pattern.ends_with(suffix)).unwrap_or("")
}

/// `job-abc-xyz` → `job-*`; `ecs.service` stays.
fn by_first_word(pattern: &str) -> Cow<'_, str> {
    let suffix = unit_suffix(pattern);
    let stem = &pattern[..pattern.len() - suffix.len()];
    match stem.find(SEPARATORS) {
        // All separators are ASCII.
        Some(at) => Cow::Owned(format!("{}*{suffix}", stem[..=at].split('*').next().unwrap_or(""))),
        None => Cow::Borrowed(pattern),
    }
}

/// `ecs.service` → `*.service`
fn by_unit_suffix(pattern: &str) -> Cow<'_, str> {
    match unit_suffix(pattern) {
        "" => Cow::Borrowed(pattern),
        suffix => Cow::Owned(format!("*{suffix}")),
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
    // `ab` and `ab-ab`: prefix and suffix must not overlap.
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
