//! What to do about a problem of many nodes, as far as the nodes themselves say it: which unit their diagnoses blame, and whether it has
//! work there.

use crate::answers::NodeSummary;
use crate::commands::{grouped, plural};
use coroner_cohort::Explanation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Attributes by which nodes name a unit that has no work on them: what `coroner fix --image` disables.
pub const UNUSED: &str = "agent_unused:";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Remedy {
    /// The unit that most sick nodes blame.
    pub unit: Option<String>,
    /// Nodes that have the problem now, those that blame the unit, and those of them where it has no work.
    pub sick_now: u64,
    pub blamed_on: u64,
    pub unused_on: u64,
    /// A node to look at first.
    pub example: Option<String>,
    /// The image to mend, if the best explanation is one.
    pub image: Option<String>,
    /// What `coroner fix --image` prints for the unit; empty if no node found that it has no work.
    pub image_lines: Vec<String>,
    pub words: Vec<String>,
}

/// `asked`: the problem's code or key. `None` if nobody has it now.
pub fn remedy(nodes: &[NodeSummary], asked: &str, explanation: &Explanation) -> Option<Remedy> {
    let is_asked_about =
        |node: &&NodeSummary| node.problems.iter().any(|problem| problem.code == asked || problem.key == asked);
    let sick: Vec<&NodeSummary> = nodes.iter().filter(is_asked_about).collect();
    let example = sick.iter().find(|node| !node.is_silent).or(sick.first())?;
    let mut remedy = Remedy {
        sick_now: sick.len() as u64,
        example: Some(example.name().to_owned()),
        image: image_of(explanation),
        ..Remedy::default()
    };
    let mut blamed: BTreeMap<&str, u64> = BTreeMap::new();
    for node in &sick {
        let asked_about = node.problems.iter().filter(|problem| problem.code == asked || problem.key == asked);
        let mut units: Vec<&str> = asked_about.filter_map(|problem| unit_of(problem.subject.as_deref()?)).collect();
        units.sort_unstable();
        units.dedup();
        units.into_iter().for_each(|unit| *blamed.entry(unit).or_default() += 1);
    }
    if let Some((unit, blamed_on)) = blamed.into_iter().max_by_key(|(_, nodes)| *nodes) {
        let is_unused = |node: &&&NodeSummary| {
            node.attributes.iter().any(|(name, value)| name.starts_with(UNUSED) && value == unit)
        };
        remedy.unused_on = sick.iter().filter(is_unused).count() as u64;
        remedy.blamed_on = blamed_on;
        remedy.unit = Some(unit.to_owned());
        if remedy.unused_on > 0 {
            remedy.image_lines = vec![format!("systemctl disable {unit}"), format!("systemctl mask {unit}")];
        }
    }
    remedy.words = words(&remedy, explanation);
    Some(remedy)
}

/// A name that is a word of a shell as it stands; others are not put into commands.
fn unit_of(subject: &str) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
    let is_unit = subject.ends_with(".service") && !subject.starts_with('-') && subject.bytes().all(is_plain);
    is_unit.then_some(subject)
}

fn image_of(explanation: &Explanation) -> Option<String> {
    let best = explanation.cohorts.iter().find(|cohort| !cohort.protective)?;
    let all = std::iter::once(&best.attributes).chain(&best.aliases);
    let mut images = all.flatten().filter(|(name, _)| name.trim_start_matches("label:").starts_with("image"));
    images.next().map(|(_, value)| value.clone())
}

/// What can be another on a node.
const CHANGEABLE: [&str; 7] = ["kernel", "nic_driver", "gpu_driver", "os", "container_runtimes", "kubelet", "image"];

/// `kernel 5.4`, if the best explanation is one thing that can be changed.
fn changeable(explanation: &Explanation) -> Option<String> {
    let best = explanation.cohorts.iter().find(|cohort| !cohort.protective)?;
    let (name, value) = best.attributes.iter().next().filter(|_| best.attributes.len() == 1)?;
    let plain = name.trim_start_matches("label:");
    CHANGEABLE.iter().any(|known| plain.starts_with(known)).then(|| format!("{name} {value}"))
}

fn words(remedy: &Remedy, explanation: &Explanation) -> Vec<String> {
    let example = remedy.example.as_deref().unwrap_or_default();
    let Some(unit) = &remedy.unit else {
        let mut words = vec![format!("run `coroner fix` on one of them, such as {example}: it says what to do there.")];
        words.extend(
            changeable(explanation)
                .map(|it| format!("What differs is {it}: give a few of these nodes another, and ask again.")),
        );
        return words;
    };
    let blamed = format!(
        "{} of {} with the problem now blame {unit}",
        grouped(remedy.blamed_on),
        plural(remedy.sick_now, "node")
    );
    if remedy.image_lines.is_empty() {
        return vec![format!(
            "{blamed}. Find out whether it is needed: `coroner fix --image` on one of them, such as {example}, prints what to change in the image."
        )];
    }
    let unused = match remedy.unused_on == remedy.blamed_on {
        true => "it has no work there".to_owned(),
        false => format!("it has no work on {} of them", grouped(remedy.unused_on)),
    };
    let image = remedy.image.as_ref().map_or_else(String::new, |image| format!(" {image}"));
    let reboot = match explanation.uptime.reboot_helps_for_days {
        Some(days) if days >= 1.5 => format!("; a reboot alone helps for about {days:.0} days"),
        Some(_) => "; a reboot alone helps for a day or less".to_owned(),
        None => String::new(),
    };
    vec![
        format!("{blamed}; {unused}. Add to the image{image} (`coroner fix --image` prints this on a node):"),
        format!("On nodes that run already: `coroner fix`, for example on {example}{reboot}."),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::Episode;
    use coroner_cohort::{Population, Settings};

    fn node(host: &str, subject: &str, unused: Option<&str>) -> NodeSummary {
        let problem = Episode {
            key: format!("zombie-memcgs:{subject}"),
            code: "zombie-memcgs".to_owned(),
            subject: Some(subject.to_owned()),
            ..Episode::default()
        };
        let attributes = unused.map(|unit| (format!("{UNUSED}ecs"), unit.to_owned())).into_iter().collect();
        NodeSummary { host: Some(host.to_owned()), problems: vec![problem], attributes, ..NodeSummary::default() }
    }

    fn of(nodes: &[NodeSummary]) -> Option<Remedy> {
        let explanation = coroner_cohort::explain(&Population::default(), &Settings::default());
        remedy(nodes, "zombie-memcgs", &explanation)
    }

    #[test]
    fn what_no_node_found_to_be_unused_is_not_disabled() {
        let nodes = [node("a", "ecs.service", None), node("b", "ecs.service", None), node("c", "other.service", None)];
        let remedy = of(&nodes).unwrap();
        assert_eq!((remedy.unit.as_deref(), remedy.blamed_on, remedy.sick_now), (Some("ecs.service"), 2, 3));
        assert!(remedy.image_lines.is_empty() && remedy.words[0].contains("Find out whether it is needed"));
        assert!(of(&[]).is_none());

        let nodes = [node("a", "ecs.service", Some("ecs.service")), node("b", "ecs.service", Some("x.service"))];
        let remedy = of(&nodes).unwrap();
        assert_eq!((remedy.unused_on, remedy.image_lines.len()), (1, 2));
        assert!(remedy.words[0].contains("it has no work on 1 of them."), "{:?}", remedy.words);
    }

    #[test]
    fn names_never_become_commands() {
        for hostile in ["-x.service", "a b.service", "a;reboot.service", "$(id).service", "a.slice", "/system.slice/x"]
        {
            let remedy = of(&[node("a", hostile, Some(hostile))]).unwrap();
            assert_eq!((remedy.unit, remedy.image_lines), (None, Vec::new()), "{hostile}");
        }
    }
}
