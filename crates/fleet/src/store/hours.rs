//! Hours: minutes rolled up, for looking back further than minutes are kept, and for slopes.
//!
//! There is no job that rolls up: a node's own reports do it, so that the work is spread evenly and late batches are counted as well.

use super::read::NUMBERS;
use coroner_report::Minute;
use rusqlite::{Connection, Row, RowIndex, params};
use std::collections::{BTreeMap, BTreeSet};

pub const HOUR_S: i64 = 3600;
/// Rows of one answer: a week of minutes.
pub const MOST_ROWS: i64 = 7 * 1440;

/// An hour that is not over is rolled up in each quarter, so that little of it is missing if the node falls silent.
pub const QUARTER_S: i64 = 900;

/// Rolls up the hours of these minutes, which are stored already.
pub fn roll(db: &Connection, node_id: i64, minutes: &[Minute], now: i64) -> rusqlite::Result<()> {
    let hours = minutes.iter().filter_map(|minute| {
        let at = super::write::seconds(minute.minute);
        let hour = at / HOUR_S * HOUR_S;
        let ends_quarter = at % QUARTER_S >= QUARTER_S - 60;
        (ends_quarter || hour + HOUR_S <= now).then_some(hour)
    });
    for hour in hours.collect::<BTreeSet<i64>>() {
        db.prepare_cached(
            "INSERT OR REPLACE INTO hours SELECT node_id, ?2, count(*), CAST(round(avg(busy_mean)) AS INTEGER), max(busy_max),
               max(worst_core_system), sum(saturated_ms), max(zombies_tracked), max(zombies_live), max(zombies_dead),
               sum(unit_restarts), sum(nic_resets), sum(softnet_drops), sum(oom_kills), sum(cpu_stall_ms), sum(memory_stall_ms),
               sum(io_stall_ms), sum(lost_samples), max(starved_queues), sum(throttled_ms), sum(direct_reclaim_pages), sum(own_cpu_ms)
             FROM minutes WHERE node_id = ?1 AND minute >= ?2 AND minute < ?2 + 3600 GROUP BY node_id
             -- When minutes have expired, late ones are not the hour.
             HAVING count(*) >= coalesce((SELECT minutes FROM hours WHERE node_id = ?1 AND hour = ?2), 0)",
        )?
        .execute(params![node_id, hour])?;
    }
    Ok(())
}

pub fn expire(db: &Connection, before: i64, most: i64) -> rusqlite::Result<usize> {
    db.prepare_cached(
        "DELETE FROM hours WHERE (node_id, hour) IN
           (SELECT h.node_id, h.hour FROM nodes JOIN hours h ON h.node_id = nodes.id AND h.hour < ?1 LIMIT ?2)",
    )?
    .execute(params![before, most])
}

/// A number of a minute or an hour: a count, or a share.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum Number {
    Count(i64),
    Share(f64),
}

/// Shares are stored in thousandths.
pub fn number(row: &Row<'_>, column: impl RowIndex, unit: f64) -> rusqlite::Result<Option<Number>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(|stored| Number::of(stored, unit)))
}

impl Number {
    pub fn of(stored: i64, unit: f64) -> Number {
        if unit == 1.0 { Number::Count(stored) } else { Number::Share(stored as f64 / 1000.0) }
    }
}

/// One node's numbers over time, in columns.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Series {
    /// `coroner.fleet.minutes/1`
    pub schema: &'static str,
    /// 60: minutes; 3600: hours, of which counts are sums.
    pub step_s: i64,
    /// When each minute or hour began; what is absent was not reported.
    pub at_s: Vec<i64>,
    pub numbers: BTreeMap<&'static str, Vec<Option<Number>>>,
}

pub fn series(db: &Connection, node_id: i64, from: i64, until: i64, by_hour: bool) -> rusqlite::Result<Series> {
    let sql = if by_hour {
        "SELECT *, hour AS at FROM hours WHERE node_id = ?1 AND hour >= ?2 AND hour <= ?3 ORDER BY hour LIMIT ?4"
    } else {
        "SELECT *, minute AS at FROM minutes WHERE node_id = ?1 AND minute >= ?2 AND minute <= ?3 ORDER BY minute LIMIT ?4"
    };
    let mut series = Series::new(by_hour);
    let mut rows = db.prepare_cached(sql)?;
    let mut rows = rows.query(params![node_id, from, until, MOST_ROWS])?;
    while let Some(row) = rows.next()? {
        let mut numbers = [None; NUMBERS.len()];
        for (value, (_, column, unit)) in numbers.iter_mut().zip(NUMBERS) {
            *value = number(row, column, unit)?;
        }
        series.add(row.get("at")?, numbers);
    }
    Ok(series.seen())
}

impl Series {
    pub fn new(by_hour: bool) -> Series {
        let step_s = if by_hour { HOUR_S } else { 60 };
        Series { schema: "coroner.fleet.minutes/1", step_s, at_s: Vec::new(), numbers: BTreeMap::new() }
    }

    pub fn add(&mut self, at: i64, numbers: impl IntoIterator<Item = Option<Number>>) {
        self.at_s.push(at);
        for ((name, ..), value) in NUMBERS.into_iter().zip(numbers) {
            self.numbers.entry(name).or_default().push(value);
        }
    }

    /// What was never seen has no column.
    pub fn seen(mut self) -> Series {
        self.numbers.retain(|_, values| values.iter().any(Option::is_some));
        self
    }
}

/// Growth per hour of a number, by node, from a line through the hours since its boot.
pub fn slopes(
    db: &Connection,
    column: &str,
    from: i64,
    until: i64,
    booted: impl Fn(i64) -> Option<i64>,
) -> rusqlite::Result<BTreeMap<i64, f64>> {
    // Nodes first: hours are ordered by node.
    let sql = format!(
        "SELECT n.id, h.hour, h.{column} FROM nodes n CROSS JOIN hours h ON h.node_id = n.id AND h.hour >= ?1 AND h.hour <= ?2
         WHERE h.{column} IS NOT NULL ORDER BY n.id, h.hour"
    );
    let mut lines = Lines::new(from, booted);
    let mut rows = db.prepare_cached(&sql)?;
    let mut rows = rows.query(params![from, until])?;
    while let Some(row) = rows.next()? {
        lines.add(row.get(0)?, row.get(1)?, row.get(2)?);
    }
    Ok(lines.slopes())
}

/// A line for each node, through its hours since its boot.
pub struct Lines<B> {
    from: i64,
    booted: B,
    lines: BTreeMap<i64, Line>,
}

impl<B: Fn(i64) -> Option<i64>> Lines<B> {
    pub fn new(from: i64, booted: B) -> Lines<B> {
        Lines { from, booted, lines: BTreeMap::new() }
    }

    pub fn add(&mut self, id: i64, hour: i64, value: i64) {
        // The hour of a boot has the numbers from before it.
        if (self.booted)(id).is_none_or(|booted| hour >= booted) {
            self.lines.entry(id).or_default().add((hour - self.from) as f64 / HOUR_S as f64, value as f64);
        }
    }

    pub fn slopes(self) -> BTreeMap<i64, f64> {
        self.lines.into_iter().filter_map(|(id, line)| Some((id, line.slope()?))).collect()
    }
}

/// Sums for a line of least squares.
#[derive(Debug, Default)]
struct Line {
    n: f64,
    x: f64,
    y: f64,
    xy: f64,
    xx: f64,
}

impl Line {
    fn add(&mut self, x: f64, y: f64) {
        self.n += 1.0;
        self.x += x;
        self.y += y;
        self.xy += x * y;
        self.xx += x * x;
    }

    /// Two hours may differ by chance.
    fn slope(&self) -> Option<f64> {
        let spread = self.n * self.xx - self.x * self.x;
        (self.n >= 3.0 && spread > 0.0).then(|| (self.n * self.xy - self.x * self.y) / spread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slope_needs_three_hours() {
        let mut line = Line::default();
        for hour in 0..2 {
            line.add(f64::from(hour), f64::from(hour) * 7.0 + 100.0);
        }
        assert_eq!(line.slope(), None);
        line.add(2.0, 114.0);
        assert!((line.slope().unwrap() - 7.0).abs() < 1e-9);
    }
}
