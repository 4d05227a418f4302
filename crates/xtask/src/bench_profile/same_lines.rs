//! Whether two tools fold a text to the same lines. Known differences of inferno are applied to our lines first; then every line
//! and its weight must be equal.

use anyhow::Context;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// How our lines compare with inferno's.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Lines that are equal unchanged.
    pub same: usize,
    /// Our lines that had to be changed to compare them, by change. A line may count several times.
    pub changed: BTreeMap<&'static str, usize>,
    /// Lines of either side that still differ.
    pub unexplained: Vec<String>,
}

pub fn compare(ours: &Path, inferno: &Path) -> anyhow::Result<Compared> {
    Ok(compare_stacks(&read(ours)?, &read(inferno)?))
}

fn compare_stacks(ours: &HashMap<String, u64>, inferno: &HashMap<String, u64>) -> Compared {
    let mut compared = Compared::default();
    let mut as_theirs: HashMap<String, u64> = HashMap::new();
    for (stack, weight) in ours {
        let (changed, reasons) = as_inferno(stack);
        if reasons.is_empty() && inferno.get(stack) == Some(weight) {
            compared.same += 1;
        }
        for reason in reasons {
            *compared.changed.entry(reason).or_default() += 1;
        }
        if let Some(changed) = changed {
            *as_theirs.entry(changed).or_default() += weight;
        }
    }
    let differ = |a: &HashMap<String, u64>, b: &HashMap<String, u64>, whose: &str| -> Vec<String> {
        let others = a.iter().filter(|(stack, weight)| b.get(*stack) != Some(*weight));
        others.map(|(stack, weight)| format!("{whose}: {stack} {weight}")).collect()
    };
    compared.unexplained = differ(&as_theirs, inferno, "ours");
    compared.unexplained.extend(differ(inferno, &as_theirs, "inferno"));
    compared
}

/// Our line as inferno prints it, with what was changed; `None` if inferno leaves it out.
fn as_inferno(stack: &str) -> (Option<String>, Vec<&'static str>) {
    let mut reasons = Vec::new();
    let mut frames = stack.split(';');
    let mut line = frames.next().unwrap_or_default().to_owned();
    let mut kept = 0;
    for frame in frames {
        let (reason, frame) = match frame {
            _ if frame.starts_with("(anonymous namespace)") => (Some("without frames of anonymous namespaces"), None),
            _ if frame.starts_with('[') && frame.ends_with(" (deleted)]") => {
                (Some("deleted files unknown"), Some("[unknown] ".to_owned()))
            }
            _ if frame.starts_with("__vdso_") => (Some("the vdso called kernel"), Some(format!("{frame}_[k]"))),
            _ => match frame.split_once("operator()") {
                Some((before, _)) => (Some("operator() cut"), Some(format!("{before}operator"))),
                None => (None, Some(frame.to_owned())),
            },
        };
        reasons.extend(reason.filter(|reason| !reasons.contains(reason)));
        if let Some(frame) = frame {
            line.push(';');
            line.push_str(&frame);
            kept += 1;
        }
    }
    if kept == 0 {
        reasons.push("without events that have no frame left");
        return (None, reasons);
    }
    (Some(line), reasons)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks(lines: &[(&str, u64)]) -> HashMap<String, u64> {
        lines.iter().map(|(stack, weight)| ((*stack).to_owned(), *weight)).collect()
    }

    #[test]
    fn only_known_differences_are_ignored() {
        let ours = [
            ("a;f", 1),
            ("a;[x (deleted)];f", 2),
            ("a;(anonymous namespace)::g;f", 3),
            ("a", 4),
            ("a;__vdso_t", 5),
            ("a;g::operator()<x>", 6),
            ("a;g::operator()<y>", 7),
        ];
        let theirs = stacks(&[("a;f", 4), ("a;[unknown] ;f", 2), ("a;__vdso_t_[k]", 5), ("a;g::operator", 13)]);
        let compared = compare_stacks(&stacks(&ours), &theirs);
        assert!(compared.unexplained.is_empty(), "{compared:?}");
        assert_eq!(compared.changed.values().sum::<usize>(), 6);
    }

    #[test]
    fn a_line_lost_or_miscounted_by_either_is_reported() {
        let both = stacks(&[("a;f", 1), ("a;g (deleted)", 2)]);
        let lost = stacks(&[("a;f", 1)]);
        assert_eq!(compare_stacks(&lost, &both).unexplained, ["inferno: a;g (deleted) 2"]);
        assert_eq!(compare_stacks(&both, &lost).unexplained, ["ours: a;g (deleted) 2"]);
        assert_eq!(compare_stacks(&stacks(&[("a;f", 2)]), &lost).unexplained.len(), 2);
    }
}
