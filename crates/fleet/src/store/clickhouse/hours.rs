//! Rolls minutes up into hours, as `store/hours.rs` does: whoever inserts minutes rolls up their hours before it acknowledges them.
//!
//! An hour is read from all of its minutes, each once, so that it does not matter how often or by whom it is rolled up.

use super::asking::for_questions;
use super::rows::MinuteRow;
use super::within;
use crate::store::hours::{HOUR_S, QUARTER_S};
use anyhow::Context;
use clickhouse::Client;
use std::collections::BTreeSet;

/// What becomes of each number.
const ROLLED: [(&str, &str); 19] = [
    // Half a thousandth upwards, as SQLite rounds.
    ("busy_mean", "toUInt16(floor(avg(busy_mean) + 0.5))"),
    ("busy_max", "max(busy_max)"),
    ("worst_core_system", "max(worst_core_system)"),
    ("saturated_ms", "sum(saturated_ms)"),
    ("zombies_tracked", "max(zombies_tracked)"),
    ("zombies_live", "max(zombies_live)"),
    ("zombies_dead", "max(zombies_dead)"),
    ("unit_restarts", "sum(unit_restarts)"),
    ("nic_resets", "sum(nic_resets)"),
    ("softnet_drops", "sum(softnet_drops)"),
    ("oom_kills", "sum(oom_kills)"),
    ("cpu_stall_ms", "sum(cpu_stall_ms)"),
    ("memory_stall_ms", "sum(memory_stall_ms)"),
    ("io_stall_ms", "sum(io_stall_ms)"),
    ("lost_samples", "sum(lost_samples)"),
    ("starved_queues", "max(starved_queues)"),
    ("throttled_ms", "sum(throttled_ms)"),
    ("direct_reclaim_pages", "sum(direct_reclaim_pages)"),
    ("own_cpu_ms", "sum(own_cpu_ms)"),
];

/// Node and hour, counted since 1970.
type Dirty<'a> = BTreeSet<(&'a str, u32)>;

/// Rolls up the hours of these minutes, which are inserted already.
pub async fn roll(client: &Client, minutes: &[MinuteRow], now: i64) -> anyhow::Result<()> {
    let is_due = |minute: i64| minute % QUARTER_S >= QUARTER_S - 60 || minute / HOUR_S * HOUR_S + HOUR_S <= now;
    let due = minutes.iter().filter(|row| is_due(row.minute.into()));
    let dirty: Dirty<'_> = due.map(|row| (row.node.as_str(), row.minute / HOUR_S as u32)).collect();
    // Most report of the present; what comes late is read on its own, so that it does not make the others be read from as far back.
    let recent = ((now - HOUR_S) / HOUR_S) as u32;
    let (late, present): (Dirty<'_>, Dirty<'_>) = dirty.into_iter().partition(|(_, hour)| *hour < recent);
    for dirty in [late, present] {
        roll_all(client, &dirty).await?;
    }
    Ok(())
}

async fn roll_all(client: &Client, dirty: &Dirty<'_>) -> anyhow::Result<()> {
    let hours = dirty.iter().map(|(_, hour)| i64::from(*hour));
    let (Some(first), Some(last)) = (hours.clone().min(), hours.max()) else { return Ok(()) };
    let nodes: BTreeSet<&str> = dirty.iter().map(|(node, _)| *node).collect();
    let columns: Vec<&str> = ROLLED.iter().map(|(column, _)| *column).collect();
    let values: Vec<&str> = ROLLED.iter().map(|(_, value)| *value).collect();
    let query = format!(
        "INSERT INTO hours (node, hour, version, minutes, {})
         SELECT node, toDateTime(intDiv(toUnixTimestamp(minute), 3600) * 3600) AS begins,
           bitShiftLeft(toUInt64(count()), 48) + toUInt64(toUnixTimestamp64Milli(now64(3))), count(), {}
         FROM minutes FINAL
         WHERE node IN ? AND minute >= toDateTime(?) AND minute < toDateTime(?)
           AND (node, toUInt32(intDiv(toUnixTimestamp(minute), 3600))) IN ?
         GROUP BY node, begins",
        columns.join(", "),
        values.join(", ")
    );
    let rolled = for_questions(client.clone())
        .query(&query)
        .with_setting("max_partitions_per_insert_block", "0")
        .bind(nodes.into_iter().collect::<Vec<_>>())
        .bind(first * HOUR_S)
        .bind((last + 1) * HOUR_S)
        .bind(dirty.iter().collect::<Vec<_>>());
    within(rolled.execute()).await.context("minutes were not rolled up into hours")
}
