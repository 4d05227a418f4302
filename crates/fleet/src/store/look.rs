//! Looking back: the fleet as it was at a moment, and how many nodes were sick over time.

use super::hours::{HOUR_S, Number, number};
use super::read::{DAY_S, NUMBERS, SILENT_AFTER_S};
use rusqlite::{Connection, Row, params};
use std::collections::{HashMap, HashSet};

/// For a past moment: numbers that are older than this are not those of then.
pub const FRESH_S: i64 = 2 * HOUR_S;
/// A longer history has longer steps.
const LONGEST_BY_HOUR_S: i64 = 32 * DAY_S;
/// Problems of a history, those with the highest peaks.
const MOST_CODES: usize = 12;

/// Which moment is asked about.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub at: i64,
    /// The present: the last that each node said, however long ago.
    pub is_live: bool,
    /// Older minutes are gone; hours are read instead.
    pub minutes_from: i64,
}

impl Moment {
    pub fn is_by_hour(&self) -> bool {
        !self.is_live && self.at < self.minutes_from
    }
}

/// A node as it was.
#[derive(Debug, Clone)]
pub struct NodeThen {
    pub id: i64,
    pub node: String,
    /// Its name of today, by which it is asked for.
    pub host: Option<String>,
    pub booted: Option<i64>,
    pub is_silent: bool,
    pub is_diagnosed: bool,
    /// As JSON: most answers do not need it.
    pub identity: Option<String>,
}

/// The nodes that were known then.
pub fn nodes(db: &Connection, moment: Moment) -> rusqlite::Result<Vec<NodeThen>> {
    let (identity, lives) = if moment.is_live {
        ("identity_json", HashMap::new())
    } else {
        // Before its first identity arrived it was what that says.
        let then = "coalesce(
             (SELECT i.identity_json FROM identities i WHERE i.node_id = nodes.id AND i.since <= ?1 ORDER BY i.since DESC LIMIT 1),
             (SELECT i.identity_json FROM identities i WHERE i.node_id = nodes.id ORDER BY i.since LIMIT 1), identity_json)";
        (then, lives(db, moment.at)?)
    };
    // A spool may bring what happened before the node was first heard of: then its boots know more.
    let sql = format!(
        "SELECT id, node, host, booted, last_seen, first_seen <= ?1, coalesce(diagnosed_from <= ?1, 0), {identity} FROM nodes ORDER BY node"
    );
    let mut rows = db.prepare_cached(&sql)?;
    let mut rows = rows.query([moment.at])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        // By number: looking columns up by name took a third of the time.
        let id: i64 = row.get(0)?;
        let life = lives.get(&id);
        if life.is_none() && !row.get::<_, bool>(5)? {
            continue;
        }
        let (booted, last_seen) = match life {
            Some((booted, last_seen)) => (*booted, *last_seen),
            None if moment.is_live => (row.get(3)?, row.get(4)?),
            None => (None, row.get(4)?),
        };
        found.push(NodeThen {
            id,
            node: row.get(1)?,
            host: row.get(2)?,
            booted,
            is_silent: last_seen < moment.at - SILENT_AFTER_S,
            is_diagnosed: row.get(6)?,
            identity: row.get(7)?,
        });
    }
    Ok(found)
}

/// By node: when the boot of then began, and when it was last heard of.
fn lives(db: &Connection, at: i64) -> rusqlite::Result<HashMap<i64, (Option<i64>, i64)>> {
    let mut boots =
        db.prepare_cached("SELECT node_id, booted, last_seen FROM boots WHERE first_seen <= ?1 ORDER BY first_seen")?;
    let boots = boots.query_map([at], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?;
    // The last one of a node stays.
    boots.collect()
}

/// An episode that went on then.
#[derive(Debug, Clone)]
pub struct Trouble {
    pub node_id: i64,
    pub key: String,
    pub code: String,
    pub severity: String,
    pub title: String,
    pub began: i64,
}

pub fn troubles(db: &Connection, moment: Moment) -> rusqlite::Result<Vec<Trouble>> {
    const COLUMNS: &str = "node_id, key, code, coalesce(severity, ''), coalesce(title, ''), began";
    let open = format!("SELECT {COLUMNS} FROM episodes WHERE ended IS NULL AND began <= ?1");
    let sql = if moment.is_live {
        open
    } else {
        format!(
            "{open} UNION ALL SELECT {COLUMNS} FROM episodes WHERE seen_until >= ?1 AND ended >= ?1 AND began <= ?1"
        )
    };
    let at = if moment.is_live { i64::MAX } else { moment.at };
    let mut rows = db.prepare_cached(&sql)?;
    let trouble = |row: &Row<'_>| {
        Ok(Trouble {
            node_id: row.get(0)?,
            key: row.get(1)?,
            code: row.get(2)?,
            severity: row.get(3)?,
            title: row.get(4)?,
            began: row.get(5)?,
        })
    };
    rows.query_map([at], trouble)?.collect()
}

/// Keys that some node had more than a day before that moment: the others are new.
pub fn old_keys(db: &Connection, at: i64) -> rusqlite::Result<HashSet<String>> {
    let mut keys = db.prepare_cached("SELECT DISTINCT key FROM episodes WHERE began < ?1")?;
    keys.query_map([at - DAY_S], |row| row.get(0))?.collect()
}

/// Their names, columns and units.
pub fn known_numbers(names: &[&'static str]) -> Vec<(&'static str, &'static str, f64)> {
    names.iter().filter_map(|name| NUMBERS.into_iter().find(|(known, ..)| known == name)).collect()
}

/// The named numbers of each node's last minute (or hour, where minutes are gone), by the node's row id.
pub fn numbers(
    db: &Connection,
    moment: Moment,
    names: &[&'static str],
) -> rusqlite::Result<HashMap<i64, Vec<Option<Number>>>> {
    let wanted = known_numbers(names);
    if wanted.is_empty() {
        return Ok(HashMap::new());
    }
    let columns: String = wanted.iter().map(|(_, column, _)| format!(", t.{column}")).collect();
    let (table, time) = if moment.is_by_hour() { ("hours", "hour") } else { ("minutes", "minute") };
    // Nodes first: each is one seek.
    let sql = format!(
        "SELECT n.id{columns} FROM nodes n CROSS JOIN {table} t ON t.node_id = n.id AND t.{time} =
           (SELECT max({time}) FROM {table} WHERE node_id = n.id AND {time} <= ?1 AND {time} > ?2)"
    );
    let (until, from) = if moment.is_live { (i64::MAX, i64::MIN) } else { (moment.at, moment.at - FRESH_S) };
    let mut rows = db.prepare_cached(&sql)?;
    let mut rows = rows.query(params![until, from])?;
    let mut found = HashMap::new();
    while let Some(row) = rows.next()? {
        let numbers = wanted.iter().enumerate().map(|(at, (_, _, unit))| number(row, at + 1, *unit));
        found.insert(row.get(0)?, numbers.collect::<rusqlite::Result<_>>()?);
    }
    Ok(found)
}

/// When the first node was first heard of.
pub fn begins(db: &Connection) -> rusqlite::Result<Option<i64>> {
    let boots: Option<i64> = db.query_row("SELECT min(first_seen) FROM boots", [], |row| row.get(0))?;
    let nodes: Option<i64> = db.query_row("SELECT min(first_seen) FROM nodes", [], |row| row.get(0))?;
    Ok(boots.into_iter().chain(nodes).min())
}

/// Sick nodes over time.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct History {
    /// `coroner.fleet.history/1`
    pub schema: &'static str,
    pub from_s: i64,
    pub step_s: i64,
    /// In each step, nodes that had any problem of warning or worse.
    pub sick: Vec<u32>,
    /// The same by code, those of most nodes first.
    pub problems: Vec<CodeHistory>,
    pub left_out: usize,
}

#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct CodeHistory {
    pub code: String,
    pub nodes: Vec<u32>,
}

pub fn history(db: &Connection, from: i64, until: i64) -> rusqlite::Result<History> {
    let mut counting = Counting::new(from, until);
    let mut rows = db.prepare_cached(
        "SELECT code, node_id, began, ended FROM episodes
         WHERE (ended IS NULL OR seen_until >= ?1) AND began <= ?2 AND severity IN ('warning', 'critical') ORDER BY code, node_id, began",
    )?;
    let mut rows = rows.query([counting.from(), until])?;
    while let Some(row) = rows.next()? {
        counting.add(row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
    }
    Ok(counting.counted())
}

/// Makes a history of serious episodes, which come in the order of their codes, nodes and beginnings.
pub struct Counting {
    history: History,
    until: i64,
    steps: usize,
    all: Vec<(i64, usize, usize)>,
    code: Option<(String, Steps)>,
}

impl Counting {
    pub fn new(from: i64, until: i64) -> Counting {
        let step_s = if until - from > LONGEST_BY_HOUR_S { 6 * HOUR_S } else { HOUR_S };
        let from_s = from.div_euclid(step_s) * step_s;
        let history = History {
            schema: "coroner.fleet.history/1",
            from_s,
            step_s,
            sick: Vec::new(),
            problems: Vec::new(),
            left_out: 0,
        };
        let steps = ((until - from_s) / step_s + 1).max(1) as usize;
        Counting { history, until, steps, all: Vec::new(), code: None }
    }

    /// When its first step begins.
    pub fn from(&self) -> i64 {
        self.history.from_s
    }

    pub fn add(&mut self, code: String, node: i64, began: i64, ended: Option<i64>) {
        let (from, step, most) = (self.history.from_s, self.history.step_s, self.steps as i64 - 1);
        let step_of = |at: i64| ((at.max(from) - from) / step).min(most) as usize;
        let (first, last) = (step_of(began), step_of(ended.unwrap_or(self.until)));
        self.all.push((node, first, last));
        if self.code.as_ref().is_none_or(|(current, _)| *current != code) {
            self.history.take(self.code.replace((code, Steps::new(self.steps))));
        }
        if let Some((_, counted)) = &mut self.code {
            counted.add(node, first, last);
        }
    }

    pub fn counted(mut self) -> History {
        self.history.take(self.code);
        self.all.sort_unstable();
        let mut counted = Steps::new(self.steps);
        self.all.into_iter().for_each(|(node, first, last)| counted.add(node, first, last));
        self.history.sick = counted.nodes();
        self.history
    }
}

impl History {
    /// Keeps those with the highest peaks: codes come from nodes, which may invent as many as they like.
    fn take(&mut self, code: Option<(String, Steps)>) {
        let Some((code, steps)) = code else { return };
        self.problems.push(CodeHistory { code, nodes: steps.nodes() });
        let peak = |problem: &CodeHistory| problem.nodes.iter().copied().max().unwrap_or_default();
        self.problems.sort_by_key(|problem| std::cmp::Reverse(peak(problem)));
        if self.problems.len() > MOST_CODES {
            self.problems.pop();
            self.left_out += 1;
        }
    }
}

/// Counts nodes in steps, each node once in a step. Takes the episodes of one node after the other, in the order of their beginnings.
struct Steps {
    changes: Vec<i64>,
    node: Option<i64>,
    /// The first step in which the node is not counted yet.
    free: usize,
}

impl Steps {
    fn new(steps: usize) -> Steps {
        Steps { changes: vec![0; steps + 1], node: None, free: 0 }
    }

    fn add(&mut self, node: i64, first: usize, last: usize) {
        if self.node != Some(node) {
            (self.node, self.free) = (Some(node), 0);
        }
        let first = first.max(self.free);
        if first <= last {
            self.changes[first] += 1;
            self.changes[last + 1] -= 1;
            self.free = last + 1;
        }
    }

    fn nodes(&self) -> Vec<u32> {
        let mut count = 0;
        let steps = &self.changes[..self.changes.len() - 1];
        steps
            .iter()
            .map(|change| {
                count += change;
                u32::try_from(count).unwrap_or_default()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_counts_once_in_a_step() {
        let mut steps = Steps::new(5);
        for (node, first, last) in [(1, 0, 1), (1, 1, 1), (1, 1, 3), (2, 3, 4), (2, 3, 3)] {
            steps.add(node, first, last);
        }
        assert_eq!(steps.nodes(), [1, 1, 1, 2, 1]);
    }
}
