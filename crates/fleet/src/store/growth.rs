//! How many dead memory cgroups nodes have had since they booted, and how many they had when that began to hurt.

use super::hours::HOUR_S;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashMap;

/// Points of one node: the forecast compares each with each.
const MOST_POINTS: usize = 32;
/// A count is that of an onset if it is at most this old.
pub const AT_ONSET_WITHIN_S: i64 = 2 * 3600;
/// A problem that began this soon after the first report may be older.
const SEEN_BEGINNING_AFTER_S: i64 = 15 * 60;

/// When, and how many dead memory cgroups the node had then.
pub type Point = (i64, f64);

/// Of each node since its boot or `since`, evenly over that time, at most one an hour; oldest first. An hour's count is its highest, so it
/// stands at the hour's end. From hours, as a fleet has a hundred million minutes.
pub fn points(db: &Connection, since: i64, now: i64) -> rusqlite::Result<HashMap<i64, Vec<Point>>> {
    let mut nodes = db.prepare(
        "SELECT n.id, coalesce(n.booted, (SELECT first_seen FROM boots b WHERE b.node_id = n.id AND b.boot_id = n.boot_id))
         FROM nodes n",
    )?;
    let mut hours = db.prepare(
        "SELECT hour, zombies_dead FROM hours WHERE node_id = ?1 AND hour >= ?2 AND hour < ?3 AND zombies_dead IS NOT NULL ORDER BY hour",
    )?;
    let mut found = HashMap::new();
    let mut rows = nodes.query([])?;
    while let Some(row) = rows.next()? {
        let (id, booted): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let bounds = params![id, first_hour(booted, since), now];
        let all: Vec<(i64, i64)> = hours.query_map(bounds, read)?.collect::<rusqlite::Result<_>>()?;
        let few = few_of(&all, now);
        if !few.is_empty() {
            found.insert(id, few);
        }
    }
    Ok(found)
}

/// The hour in which it booted also has counts of before.
pub fn first_hour(booted: Option<i64>, since: i64) -> i64 {
    booted.map_or(since, |booted| booted.max(since) + HOUR_S - 1) / HOUR_S * HOUR_S
}

/// Of hours and their counts, oldest first.
pub fn few_of(hours: &[(i64, i64)], now: i64) -> Vec<Point> {
    let one_in = hours.len().div_ceil(MOST_POINTS).max(1);
    let few = hours.iter().enumerate().filter(|(at, _)| (hours.len() - 1 - at).is_multiple_of(one_in));
    few.map(|(_, (hour, dead))| ((hour + HOUR_S).min(now), *dead as f64)).collect()
}

/// When a problem began in a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Onset {
    pub began: i64,
    /// Of the boot.
    pub first_seen: Option<i64>,
    pub booted: Option<i64>,
}

impl Onset {
    /// What had begun before the node reported says nothing of when it began.
    pub fn was_seen(&self) -> bool {
        let first_seen = self.first_seen;
        let seen_late =
            self.booted.is_none_or(|booted| first_seen.is_some_and(|seen| seen - booted > SEEN_BEGINNING_AFTER_S));
        !seen_late || first_seen.is_some_and(|seen| self.began - seen >= SEEN_BEGINNING_AFTER_S)
    }
}

/// For each node that got one of these problems since then, how many it had when the first one began that was seen to begin.
pub fn levels_at_onset(db: &Connection, codes: &[&str], since: i64) -> rusqlite::Result<HashMap<i64, f64>> {
    let codes = serde_json::Value::from(codes).to_string();
    let mut onsets = db.prepare(
        "SELECT e.node_id, e.began, b.first_seen, b.booted FROM episodes e
         LEFT JOIN boots b ON b.node_id = e.node_id AND b.boot_id = e.boot_id
         WHERE e.code IN (SELECT value FROM json_each(?1)) AND e.severity IN ('warning', 'critical') AND e.began >= ?2
         ORDER BY e.node_id, e.began",
    )?;
    let mut last_before = db.prepare(
        "SELECT zombies_dead FROM minutes WHERE node_id = ?1 AND minute > ?2 AND minute <= ?3 ORDER BY minute DESC LIMIT 1",
    )?;
    let mut levels = HashMap::new();
    let mut rows = onsets.query(params![codes, since])?;
    while let Some(row) = rows.next()? {
        let (id, began): (i64, i64) = (row.get(0)?, row.get(1)?);
        let onset = Onset { began, first_seen: row.get(2)?, booted: row.get(3)? };
        if levels.contains_key(&id) || !onset.was_seen() {
            continue;
        }
        let dead =
            last_before.query_row(params![id, began - AT_ONSET_WITHIN_S, began], |row| row.get::<_, Option<i64>>(0));
        if let Some(dead) = dead.optional()?.flatten() {
            levels.insert(id, dead as f64);
        }
    }
    Ok(levels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::schema;

    const NOW: i64 = 1_790_000_000;
    const HOUR: i64 = 3600;
    const DAY: i64 = 24 * HOUR;

    fn opened() -> (tempfile::TempDir, Connection) {
        let dir = tempfile::tempdir().unwrap();
        let db = schema::open(&dir.path().join("fleet.db")).unwrap();
        // One transaction, so that thousands of rows cost one write.
        db.execute_batch("BEGIN").unwrap();
        (dir, db)
    }

    fn add_node(db: &Connection, id: i64, booted: Option<i64>, first_seen: i64) {
        let node = "INSERT INTO nodes (id, node, boot_id, booted, first_seen, last_seen) VALUES (?1, 'n' || ?1, 'b', ?2, ?3, ?3)";
        db.execute(node, params![id, booted, first_seen]).unwrap();
        let boot = "INSERT INTO boots VALUES (?1, 'b', ?2, ?3, ?3)";
        db.execute(boot, params![id, booted, first_seen]).unwrap();
    }

    fn add_minute(db: &Connection, id: i64, minute: i64, dead: Option<i64>) {
        let sql = "INSERT INTO minutes (node_id, minute, zombies_dead) VALUES (?1, ?2, ?3)";
        db.execute(sql, params![id, minute, dead]).unwrap();
    }

    fn add_episode(db: &Connection, id: i64, code: &str, severity: &str, began: i64) {
        let sql = "INSERT INTO episodes (node_id, boot_id, key, code, severity, began, seen_until) VALUES (?1, 'b', ?2, ?2, ?3, ?4, ?4)";
        db.execute(sql, params![id, code, severity, began]).unwrap();
    }

    fn add_hour(db: &Connection, id: i64, hour: i64, dead: Option<i64>) {
        let sql = "INSERT INTO hours (node_id, hour, minutes, zombies_dead) VALUES (?1, ?2, 60, ?3)";
        db.execute(sql, params![id, hour, dead]).unwrap();
    }

    #[test]
    fn few_points_since_the_boot_stand_for_many_hours() {
        let (_dir, db) = opened();
        let booted = NOW - 2 * DAY - 600;
        let hour_before = |n: i64| (NOW / HOUR - n) * HOUR;
        add_node(&db, 1, Some(booted), NOW - 5 * DAY);
        for n in 0..5 * 24 {
            // Before its boot, and in the hour of it, it had a million.
            let ends = (hour_before(n) + HOUR).min(NOW);
            let dead = if hour_before(n) < booted { 1_000_000 } else { (ends - booted) / 60 };
            add_hour(&db, 1, hour_before(n), Some(dead));
        }
        add_node(&db, 2, None, hour_before(3));
        for n in 0..6 {
            add_hour(&db, 2, hour_before(n), (n != 1).then_some(7));
        }
        add_node(&db, 3, None, NOW);
        let points = points(&db, NOW - 7 * DAY, NOW).unwrap();
        let of_one = &points[&1];
        assert!((20..=32).contains(&of_one.len()), "{of_one:?}");
        assert_eq!(of_one.last(), Some(&(NOW, ((NOW - booted) / 60) as f64)));
        assert!(of_one.iter().all(|(at, dead)| *at > booted && *dead == ((at - booted) / 60) as f64), "{of_one:?}");
        assert!(of_one.windows(2).all(|pair| pair[0].0 < pair[1].0));
        // Without a boot time, since it was first seen; an unknown count is no point.
        assert_eq!(points[&2].iter().map(|(at, _)| *at).collect::<Vec<_>>(), [hour_before(2), hour_before(1), NOW]);
        assert!(!points.contains_key(&3));
    }

    #[test]
    fn the_level_is_that_of_the_first_onset_that_was_seen() {
        let (_dir, db) = opened();
        let codes = ["zombie-memcgs", "memcg-walk"];
        for (id, booted, first_seen) in [
            (1, NOW - 3 * DAY, NOW - 3 * DAY),
            (2, NOW - 9 * DAY, NOW - DAY),
            (3, NOW - DAY, NOW - DAY),
            (4, NOW - DAY, NOW - DAY),
        ] {
            add_node(&db, id, Some(booted), first_seen);
            for hour in 0..24 {
                add_minute(&db, id, NOW - hour * HOUR, Some(1000 * (24 - hour)));
            }
        }
        add_episode(&db, 1, "memcg-walk", "warning", NOW - 2 * HOUR + 30);
        add_episode(&db, 1, "zombie-memcgs", "critical", NOW - HOUR);
        // It was sick when it first reported.
        add_episode(&db, 2, "memcg-walk", "critical", NOW - DAY + 60);
        add_episode(&db, 3, "zombie-memcgs", "info", NOW - HOUR);
        add_episode(&db, 4, "nic-reset", "critical", NOW - HOUR);
        let levels = levels_at_onset(&db, &codes, NOW - 7 * DAY).unwrap();
        assert_eq!(levels, HashMap::from([(1, 22_000.0)]));
        assert!(levels_at_onset(&db, &codes, NOW - HOUR).unwrap().contains_key(&1));
    }
}
