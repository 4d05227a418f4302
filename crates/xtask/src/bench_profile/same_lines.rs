//! Whether two tools fold a text to the same lines, and if not, why.

use anyhow::Context;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// How our lines compare with inferno's.
#[derive(Debug, Default)]
pub struct Compared {
    pub same: usize,
    /// Lines of ours that inferno does not have so, by the reason that is plain from the line.
    pub others: BTreeMap<&'static str, usize>,
    /// Those without a known reason. None are expected.
    pub unexplained: Vec<String>,
}

/// What inferno does otherwise. The first that fits a line of ours is its reason.
const REASONS: &[(&str, &str)] = &[
    ("(deleted)", "deleted files"),
    ("(anonymous namespace)", "anonymous namespaces"),
    ("__vdso", "the vdso is not the kernel"),
    ("operator()", "operator()"),
];

pub fn compare(ours: &Path, inferno: &Path) -> anyhow::Result<Compared> {
    let (ours, inferno) = (read(ours)?, read(inferno)?);
    let mut compared = Compared::default();
    for (stack, weight) in &ours {
        if inferno.get(stack) == Some(weight) {
            compared.same += 1;
            continue;
        }
        let frames = stack.split(';').skip(1);
        // A module's name stands in brackets where its functions have none.
        let spaced = frames.clone().any(|frame| frame.starts_with('[') && frame.contains(' '));
        let known = REASONS.iter().find(|(part, _)| stack.contains(part)).map(|(_, reason)| *reason);
        let reason = match known {
            Some(reason) => Some(reason),
            None if frames.clone().next().is_none() => Some("events without a stack"),
            None if spaced => Some("paths with spaces"),
            None => None,
        };
        match reason {
            Some(reason) => *compared.others.entry(reason).or_default() += 1,
            None => compared.unexplained.push(format!("{stack} {weight}")),
        }
    }
    Ok(compared)
}

/// The sum of all weights.
pub fn weight(path: &Path) -> anyhow::Result<u64> {
    Ok(read(path)?.values().sum())
}

fn read(path: &Path) -> anyhow::Result<HashMap<String, u64>> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    let mut stacks = HashMap::new();
    for line in String::from_utf8_lossy(&bytes).lines() {
        let (stack, weight) = line.rsplit_once(' ').with_context(|| format!("no weight: {line}"))?;
        stacks.insert(stack.to_owned(), weight.parse()?);
    }
    Ok(stacks)
}
