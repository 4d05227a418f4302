//! The fleet in columns: small enough to be sent whole for ten thousand nodes.

use crate::answers::called;
use crate::ingest::printable;
use crate::store::Reader;
use crate::store::hours::Number;
use crate::store::look::{Moment, NodeThen, Trouble};
use crate::store::read::wall;
use coroner_report::Wall;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Attributes that most nodes tell; a hostile node may invent as many as it likes.
const MOST_ATTRIBUTES: usize = 100;
/// An attribute with more values (a serial number) groups nothing.
const MOST_VALUES: usize = 500;
/// Problems that most nodes have.
const MOST_PROBLEMS: usize = 500;

/// `coroner.fleet.map/1`: lists with one entry for each node, in the same order.
#[derive(Debug, Serialize)]
pub struct FleetMap {
    pub schema: &'static str,
    pub at: Wall,
    pub at_s: i64,
    /// The present, not a past moment.
    pub live: bool,
    /// Of what the numbers are: the node's last `minute`, or an `hour`, where minutes are no longer kept.
    pub numbers_of: &'static str,
    /// The earliest moment that can be asked about, and the earliest that has minutes.
    pub from_s: i64,
    pub minutes_from_s: i64,
    /// What to ask for the node by: its host name, or its id where several have that name.
    pub nodes: Vec<String>,
    /// 0 nothing wrong, 1 info, 2 warning, 3 critical; `null` if never diagnosed.
    pub severity: Vec<Option<u8>>,
    pub up_s: Vec<Option<i64>>,
    /// Indexes of the silent ones.
    pub silent: Vec<usize>,
    /// Worst first, then those on most nodes.
    pub problems: Vec<MapProblem>,
    /// Indexes of each node's problems.
    pub has: Vec<Vec<usize>>,
    pub attributes: Vec<MapAttribute>,
    /// Attributes that are too many, or have too many values to group by.
    pub attributes_left_out: usize,
    pub numbers: BTreeMap<&'static str, Vec<Option<Number>>>,
}

#[derive(Debug, Serialize)]
pub struct MapProblem {
    pub key: String,
    pub code: String,
    pub severity: String,
    pub title: String,
    pub nodes: usize,
    /// Of them, nodes that no longer report.
    pub silent: usize,
    /// When the first of these nodes got it.
    pub since_s: i64,
    /// When the last of them did.
    pub last_onset_s: i64,
    /// No node had it more than a day before.
    pub is_new: bool,
}

#[derive(Debug, Serialize)]
pub struct MapAttribute {
    pub name: String,
    pub values: Vec<String>,
    /// Index of each node's value; -1 if it does not tell.
    pub of: Vec<i32>,
}

fn rank(severity: &str) -> u8 {
    match severity {
        "critical" => 3,
        "warning" => 2,
        _ => 1,
    }
}

pub fn map(reader: &Reader, moment: Moment, kept_from: i64, names: &[&'static str]) -> anyhow::Result<FleetMap> {
    let nodes = reader.nodes_then(moment)?;
    let troubles = reader.troubles(moment)?;
    let old = reader.old_keys(moment.at)?;
    let mut by_id = reader.numbers(moment, names)?;
    let places: HashMap<i64, usize> = nodes.iter().enumerate().map(|(place, node)| (node.id, place)).collect();

    let mut severity: Vec<Option<u8>> = nodes.iter().map(|node| node.is_diagnosed.then_some(0)).collect();
    for trouble in &troubles {
        if let Some(place) = places.get(&trouble.node_id) {
            severity[*place] = severity[*place].max(Some(rank(&trouble.severity)));
        }
    }
    let (problems, has) = problems(&nodes, &troubles, &places, &old);
    let (attributes, attributes_left_out) = attributes(&nodes);
    let mut columns: BTreeMap<&'static str, Vec<Option<Number>>> =
        names.iter().map(|name| (*name, vec![None; nodes.len()])).collect();
    for (place, node) in nodes.iter().enumerate() {
        for (name, value) in names.iter().zip(by_id.remove(&node.id).unwrap_or_default()) {
            if let Some(column) = columns.get_mut(name) {
                column[place] = value;
            }
        }
    }
    Ok(FleetMap {
        schema: "coroner.fleet.map/1",
        at: wall(moment.at),
        at_s: moment.at,
        live: moment.is_live,
        numbers_of: if moment.is_by_hour() { "hour" } else { "minute" },
        from_s: reader.begins()?.unwrap_or(moment.at).max(kept_from).min(moment.at),
        minutes_from_s: moment.minutes_from,
        up_s: nodes.iter().map(|node| node.booted.map(|booted| (moment.at - booted).max(0))).collect(),
        silent: nodes.iter().enumerate().filter(|(_, node)| node.is_silent).map(|(place, _)| place).collect(),
        nodes: names_of(&nodes),
        severity,
        problems,
        has,
        attributes,
        attributes_left_out,
        numbers: columns,
    })
}

fn names_of(nodes: &[NodeThen]) -> Vec<String> {
    let name = |node: &NodeThen| called(&node.node, node.host.as_deref()).to_owned();
    let mut names: HashMap<String, u32> = HashMap::new();
    nodes.iter().for_each(|node| *names.entry(name(node)).or_default() += 1);
    let is_unique = |name: &String| names.get(name) == Some(&1);
    nodes.iter().map(|node| Some(name(node)).filter(is_unique).unwrap_or_else(|| node.node.clone())).collect()
}

fn problems(
    nodes: &[NodeThen],
    troubles: &[Trouble],
    places: &HashMap<i64, usize>,
    old: &HashSet<String>,
) -> (Vec<MapProblem>, Vec<Vec<usize>>) {
    let mut by_key: HashMap<&str, (MapProblem, Vec<usize>)> = HashMap::new();
    let mut placed: Vec<(&usize, &Trouble)> =
        troubles.iter().filter_map(|trouble| Some((places.get(&trouble.node_id)?, trouble))).collect();
    // What the first node says, in whatever order they come.
    placed.sort_by_key(|(place, trouble)| (*place, trouble.began));
    for (place, trouble) in placed {
        let (problem, having) = by_key.entry(&trouble.key).or_insert_with(|| {
            let problem = MapProblem {
                key: trouble.key.clone(),
                code: trouble.code.clone(),
                severity: trouble.severity.clone(),
                title: printable(&trouble.title),
                nodes: 0,
                silent: 0,
                since_s: trouble.began,
                last_onset_s: trouble.began,
                is_new: !old.contains(&trouble.key),
            };
            (problem, Vec::new())
        });
        if rank(&trouble.severity) > rank(&problem.severity) {
            problem.severity = trouble.severity.clone();
        }
        problem.since_s = problem.since_s.min(trouble.began);
        problem.last_onset_s = problem.last_onset_s.max(trouble.began);
        having.push(*place);
    }
    let mut found: Vec<(MapProblem, Vec<usize>)> = by_key.into_values().collect();
    for (problem, having) in &mut found {
        having.sort_unstable();
        having.dedup();
        problem.nodes = having.len();
        problem.silent = having.iter().filter(|place| nodes[**place].is_silent).count();
    }
    found.sort_by(|(a, _), (b, _)| {
        (rank(&b.severity), b.nodes).cmp(&(rank(&a.severity), a.nodes)).then_with(|| a.key.cmp(&b.key))
    });
    found.truncate(MOST_PROBLEMS);
    let mut has = vec![Vec::new(); nodes.len()];
    for (number, (_, having)) in found.iter().enumerate() {
        having.iter().for_each(|place| has[*place].push(number));
    }
    (found.into_iter().map(|(problem, _)| problem).collect(), has)
}

/// What groups a node, in the words of its identity, which are not copied: most nodes say the same.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Told<'a> {
    #[serde(borrow)]
    attributes: BTreeMap<Text<'a>, Text<'a>>,
    #[serde(borrow)]
    labels: BTreeMap<Text<'a>, Text<'a>>,
    #[serde(borrow)]
    cluster: Option<Text<'a>>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// What comes before a name, as in `ingest::attributes_of`, and the name.
type Named<'a> = (&'static str, &'a str);

impl Told<'_> {
    fn of(node: &NodeThen) -> Option<Told<'_>> {
        serde_json::from_str(node.identity.as_deref()?).ok()
    }

    fn each(&self) -> impl Iterator<Item = (Named<'_>, &str)> {
        let cluster = self.cluster.iter().map(|cluster| (("", "cluster"), cluster.0.as_ref()));
        prefixed(&self.attributes, "").chain(prefixed(&self.labels, "label:")).chain(cluster)
    }
}

fn prefixed<'a>(
    map: &'a BTreeMap<Text<'a>, Text<'a>>,
    prefix: &'static str,
) -> impl Iterator<Item = (Named<'a>, &'a str)> {
    map.iter().map(move |(name, value)| ((prefix, name.0.as_ref()), value.0.as_ref()))
}

fn attributes(nodes: &[NodeThen]) -> (Vec<MapAttribute>, usize) {
    let told: Vec<Told<'_>> = nodes.iter().map(|node| Told::of(node).unwrap_or_default()).collect();
    let mut tell: HashMap<Named<'_>, usize> = HashMap::new();
    for (name, _) in told.iter().flat_map(Told::each) {
        *tell.entry(name).or_default() += 1;
    }
    let all = tell.len();
    let mut names: Vec<(Named<'_>, usize)> = tell.into_iter().collect();
    names.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    names.truncate(MOST_ATTRIBUTES);

    let mut columns: HashMap<Named<'_>, (HashMap<&str, i32>, Vec<i32>)> =
        names.into_iter().map(|(name, _)| (name, (HashMap::new(), vec![-1; nodes.len()]))).collect();
    for (place, told) in told.iter().enumerate() {
        for (name, value) in told.each() {
            let Some((values, of)) = columns.get_mut(&name) else { continue };
            if values.len() <= MOST_VALUES {
                let next = values.len() as i32;
                of[place] = *values.entry(value).or_insert(next);
            }
        }
    }
    let columns = columns.into_iter().filter(|(_, (values, _))| values.len() <= MOST_VALUES);
    let mut columns: Vec<MapAttribute> = columns
        .map(|((prefix, name), (values, of))| {
            let mut ordered: Vec<(&str, i32)> = values.into_iter().collect();
            ordered.sort_by_key(|(_, number)| *number);
            let values = ordered.into_iter().map(|(value, _)| value.to_owned()).collect();
            MapAttribute { name: format!("{prefix}{name}"), values, of }
        })
        .collect();
    columns.sort_by(|a, b| a.name.cmp(&b.name));
    let left_out = all - columns.len();
    (columns, left_out)
}

/// `coroner.fleet.problem/1`: nodes as points of uptime and a number, with how fast it grows.
#[derive(Debug, Serialize)]
pub struct Points {
    pub schema: &'static str,
    pub at: Wall,
    /// A code or a key.
    pub code: String,
    pub number: &'static str,
    pub nodes: Vec<String>,
    pub sick: Vec<bool>,
    pub up_hours: Vec<Option<f64>>,
    pub value: Vec<Option<Number>>,
    /// Growth per hour over the last `slope_hours`, since boot; `null` with less than three hours.
    pub per_hour: Vec<Option<f64>>,
    pub slope_hours: i64,
}

pub fn points(
    reader: &Reader,
    moment: Moment,
    code: &str,
    (name, column, unit): (&'static str, &'static str, f64),
    slope_over_s: i64,
) -> anyhow::Result<Points> {
    let nodes = reader.nodes_then(moment)?;
    let troubles = reader.troubles(moment)?;
    let sick: HashSet<i64> = troubles
        .iter()
        .filter(|trouble| trouble.code == code || trouble.key == code)
        .map(|trouble| trouble.node_id)
        .collect();
    let values = reader.numbers(moment, &[name])?;
    let booted: HashMap<i64, Option<i64>> = nodes.iter().map(|node| (node.id, node.booted)).collect();
    let growth = reader.slopes(column, moment.at - slope_over_s, moment.at, |id| booted.get(&id).copied().flatten())?;
    // Without the sign of a zero.
    let rounded = |value: f64, digits: f64| (value * digits).round() / digits + 0.0;
    Ok(Points {
        schema: "coroner.fleet.problem/1",
        at: wall(moment.at),
        code: code.to_owned(),
        number: name,
        sick: nodes.iter().map(|node| sick.contains(&node.id)).collect(),
        up_hours: nodes
            .iter()
            .map(|node| node.booted.map(|booted| rounded((moment.at - booted).max(0) as f64 / 3600.0, 100.0)))
            .collect(),
        value: nodes.iter().map(|node| values.get(&node.id).and_then(|row| row.first().copied().flatten())).collect(),
        per_hour: nodes.iter().map(|node| growth.get(&node.id).map(|growth| rounded(growth * unit, 1000.0))).collect(),
        slope_hours: slope_over_s / 3600,
        nodes: names_of(&nodes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: usize, identity: &str) -> NodeThen {
        NodeThen {
            id: number as i64,
            node: format!("{number:032x}"),
            host: Some(["a", "b", "b"][number % 3].to_owned()),
            booted: None,
            is_silent: number == 1,
            is_diagnosed: true,
            identity: Some(identity.to_owned()),
        }
    }

    #[test]
    fn attributes_are_columns_and_what_groups_nothing_is_left_out() {
        let with_serial = |n: usize, more: &str| {
            format!(r#"{{"host": "h", "cluster": "pc", "attributes": {{"serial": "s{n}", "zone": "z\u00e9"}}{more}}}"#)
        };
        let mut nodes: Vec<NodeThen> = (0..MOST_VALUES + 2).map(|n| node(n, &with_serial(n, ""))).collect();
        nodes[1] = node(1, &with_serial(1, r#", "labels": {"zone": "mine"}"#));
        nodes[2] = node(2, "no JSON");
        let (columns, left_out) = attributes(&nodes);
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!((names.as_slice(), left_out), (&["cluster", "label:zone", "zone"][..], 1));
        assert_eq!((&columns[1].of[..3], columns[1].values.as_slice()), (&[-1, 0, -1][..], &["mine".to_owned()][..]));
        assert_eq!((&columns[2].of[..3], columns[2].values[0].as_str()), (&[0, 0, -1][..], "zé"));
    }

    #[test]
    fn problems_are_of_nodes_and_the_worst_comes_first() {
        let nodes: Vec<NodeThen> = (0..3).map(|n| node(n, "{}")).collect();
        let trouble = |node_id: i64, key: &str, severity: &str, began: i64| Trouble {
            node_id,
            key: key.to_owned(),
            code: key.to_owned(),
            severity: severity.to_owned(),
            title: "a\u{202e}b".to_owned(),
            began,
        };
        let troubles = [
            trouble(0, "x", "warning", 9),
            trouble(0, "x", "warning", 5),
            trouble(1, "x", "warning", 7),
            trouble(2, "y", "critical", 8),
            trouble(99, "z", "critical", 1),
        ];
        let places = (0..3).map(|n| (n as i64, n)).collect();
        let (found, has) = problems(&nodes, &troubles, &places, &HashSet::from(["x".to_owned()]));
        let said: Vec<_> = found.iter().map(|p| (p.key.as_str(), p.nodes, p.silent, p.since_s, p.is_new)).collect();
        assert_eq!(said, [("y", 1, 0, 8, true), ("x", 2, 1, 5, false)]);
        assert_eq!(has, [vec![1], vec![1], vec![0]]);
        assert_eq!(found[0].title, "a\u{fffd}b");
        let id = |number: usize| format!("{number:032x}");
        assert_eq!(names_of(&nodes), ["a".to_owned(), id(1), id(2)], "a host name of two nodes names neither");
    }
}
