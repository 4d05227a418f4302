//! How many dead memory cgroups nodes have had since they booted, and how many they had when that began to hurt.

use super::hours::HOUR_S;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashMap;

/// Points of one node: the forecast compares each with each.
const MOST_POINTS: usize = 32;
/// A count is that of an onset if it is at most this old.
const AT_ONSET_WITHIN_S: i64 = 2 * 3600;
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
        // The hour in which it booted also has counts of before.
        let begin = booted.map_or(since, |booted| booted.max(since) + HOUR_S - 1) / HOUR_S * HOUR_S;
        let read =
            |row: &rusqlite::Row<'_>| Ok(((row.get::<_, i64>(0)? + HOUR_S).min(now), row.get::<_, i64>(1)? as f64));
        let all: Vec<Point> = hours.query_map(params![id, begin, now], read)?.collect::<rusqlite::Result<_>>()?;
        let one_in = all.len().div_ceil(MOST_POINTS).max(1);
        let (last, few) = (all.len(), all.iter().enumerate());
        let few: Vec<Point> = few.filter(|(at, _)| (last - 1 - at) % one_in == 0).map(|(_, point)| *point).collect();
        if !few.is_empty() {
            found.insert(id, few);
        }
    }
    Ok(found)
}

/// For each node that got one of these problems since then, how many it had when the first one began. What had begun before the node
/// reported says nothing of when it began.
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
        let (first_seen, booted): (Option<i64>, Option<i64>) = (row.get(2)?, row.get(3)?);
        let seen_late =
            booted.is_none_or(|booted| first_seen.is_some_and(|seen| seen - booted > SEEN_BEGINNING_AFTER_S));
        if levels.contains_key(&id) || seen_late && first_seen.is_none_or(|seen| began - seen < SEEN_BEGINNING_AFTER_S)
        {
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
