//! The tables in ClickHouse. Every row has a natural key: stored twice, by two collectors, in any order, it is one row.
//!
//! - A Replacing table keeps, of rows with one key, that of the batch that was sealed last (`FINAL` at reading).
//! - An Aggregating table keeps the least, the greatest or the latest of each column (`min`, `max` at reading); `last` is a tuple
//!   that begins with a time, so that its greatest is its latest.
//! - Tables of the latest state are filled by materialized views, within the insert.
//!
//! Times are seconds since 1970, shares thousandths; what was not seen is NULL.

use super::address::Address;
use super::within;
use crate::store::write::Retention;
use anyhow::{Context, ensure};
use clickhouse::{Client, Row};
use serde::Deserialize;

/// A database of version N is one on which the first N steps were run. Steps are never changed, only added; each may be run again.
const STEPS: &[(&[Table], &[View])] = &[(CREATE, VIEWS)];

struct Table {
    name: &'static str,
    columns: &'static str,
    /// With its argument: `ReplacingMergeTree(sealed)`.
    engine: (&'static str, &'static str),
    /// By day where whole days expire together.
    partition: &'static str,
    key: &'static str,
    expires: Option<Expires>,
}

/// Rows expire so long after the time in this column.
struct Expires {
    after: &'static str,
    kept: Kept,
}

#[derive(Clone, Copy)]
enum Kept {
    AsMinutes,
    /// Longer than what refers to it, of which it was written once a day.
    AsMinutesAndMore,
    AsHours,
    AsProblems,
    ForADay,
}

/// A materialized view: what is inserted into one table, goes into another as well.
struct View {
    name: &'static str,
    to: &'static str,
    query: &'static str,
}

const fn as_problems(after: &'static str) -> Option<Expires> {
    Some(Expires { after, kept: Kept::AsProblems })
}

const AGGREGATING: (&str, &str) = ("AggregatingMergeTree", "");

/// Of a minute, without node and time.
macro_rules! numbers {
    () => {
        "busy_mean Nullable(UInt16) CODEC(T64, ZSTD(1)), busy_max Nullable(UInt16) CODEC(T64, ZSTD(1)),
         worst_core Nullable(UInt16) CODEC(T64, ZSTD(1)), worst_core_system Nullable(UInt16) CODEC(T64, ZSTD(1)),
         saturated_ms Nullable(UInt32) CODEC(T64, ZSTD(1)), zombies_tracked Nullable(UInt32) CODEC(T64, ZSTD(1)),
         zombies_live Nullable(UInt32) CODEC(T64, ZSTD(1)), zombies_dead Nullable(UInt32) CODEC(T64, ZSTD(1)),
         unit_restarts Nullable(UInt32) CODEC(T64, ZSTD(1)), nic_resets Nullable(UInt32) CODEC(T64, ZSTD(1)),
         softnet_drops Nullable(UInt32) CODEC(T64, ZSTD(1)), oom_kills Nullable(UInt32) CODEC(T64, ZSTD(1)),
         cpu_stall_ms Nullable(UInt32) CODEC(T64, ZSTD(1)), memory_stall_ms Nullable(UInt32) CODEC(T64, ZSTD(1)),
         io_stall_ms Nullable(UInt32) CODEC(T64, ZSTD(1)), lost_samples Nullable(UInt32) CODEC(T64, ZSTD(1)),
         starved_queues Nullable(UInt32) CODEC(T64, ZSTD(1)), throttled_ms Nullable(UInt32) CODEC(T64, ZSTD(1)),
         direct_reclaim_pages Nullable(UInt32) CODEC(T64, ZSTD(1)), own_cpu_ms Nullable(UInt32) CODEC(T64, ZSTD(1))"
    };
}

// last: seen until, until, whether it ended, severity, certainty, title. (The client knows no named tuples.)
macro_rules! problem {
    () => {
        "code SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), subject_kind SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
         subject SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
         began SimpleAggregateFunction(min, DateTime) CODEC(DoubleDelta, ZSTD(1)),
         last SimpleAggregateFunction(max, Tuple(DateTime, DateTime, UInt8, String, String, String)) CODEC(ZSTD(1))"
    };
}

const CREATE: &[Table] = &[
    // Who reported, with which key, from when until when; last: of its latest batch, when
    // it was sealed, its sequence, coroner's version, rows dropped so far.
    Table {
        name: "reports",
        columns: "node String, key String, first_seen SimpleAggregateFunction(min, DateTime),
          last_seen SimpleAggregateFunction(max, DateTime),
          last SimpleAggregateFunction(max, Tuple(DateTime, UInt64, String, UInt64)) CODEC(ZSTD(1))",
        engine: AGGREGATING,
        partition: "tuple()",
        key: "(node, key)",
        expires: as_problems("last_seen"),
    },
    // Each identity that a node had, from when; and its latest, which is kept as long as the node is known.
    Table {
        name: "identities",
        columns: "node String, since DateTime, host Nullable(String), booted Nullable(DateTime), identity_json String CODEC(ZSTD(3))",
        engine: ("ReplacingMergeTree", ""),
        partition: "toYYYYMM(since)",
        key: "(node, since)",
        expires: as_problems("since"),
    },
    Table {
        name: "nodes",
        columns: "node String, since DateTime, host Nullable(String), booted Nullable(DateTime), identity_json String CODEC(ZSTD(3))",
        engine: ("ReplacingMergeTree", "since"),
        partition: "tuple()",
        key: "node",
        expires: None,
    },
    Table {
        name: "boots",
        columns: "node String, boot_id String, booted SimpleAggregateFunction(max, Nullable(DateTime)),
          first_seen SimpleAggregateFunction(min, DateTime), last_seen SimpleAggregateFunction(max, DateTime)",
        engine: AGGREGATING,
        partition: "tuple()",
        key: "(node, boot_id)",
        expires: as_problems("last_seen"),
    },
    Table {
        name: "minutes",
        columns: concat!(
            "node String CODEC(ZSTD(1)), minute DateTime CODEC(DoubleDelta, ZSTD(1)), sealed DateTime CODEC(DoubleDelta, ZSTD(1)), ",
            numbers!()
        ),
        engine: ("ReplacingMergeTree", "sealed"),
        partition: "toDate(minute)",
        key: "(node, minute)",
        expires: Some(Expires { after: "minute", kept: Kept::AsMinutes }),
    },
    // version: the minute, and for the same minute when it was sealed.
    Table {
        name: "latest_minutes",
        columns: concat!("node String, minute DateTime, version UInt64, ", numbers!()),
        engine: ("ReplacingMergeTree", "version"),
        partition: "tuple()",
        key: "node",
        expires: Some(Expires { after: "minute", kept: Kept::AsMinutes }),
    },
    // Minutes rolled up (hours.rs). version: of rows of one hour, the one of more minutes counts, and then the later one.
    Table {
        name: "hours",
        columns: concat!(
            "node String CODEC(ZSTD(1)), hour DateTime CODEC(DoubleDelta, ZSTD(1)), version UInt64 CODEC(ZSTD(1)), minutes UInt16 CODEC(T64, ZSTD(1)), ",
            "busy_mean Nullable(UInt16) CODEC(T64, ZSTD(1)), busy_max Nullable(UInt16) CODEC(T64, ZSTD(1)),
             worst_core_system Nullable(UInt16) CODEC(T64, ZSTD(1)), saturated_ms Nullable(UInt64) CODEC(T64, ZSTD(1)),
             zombies_tracked Nullable(UInt32) CODEC(T64, ZSTD(1)), zombies_live Nullable(UInt32) CODEC(T64, ZSTD(1)),
             zombies_dead Nullable(UInt32) CODEC(T64, ZSTD(1)), unit_restarts Nullable(UInt64) CODEC(T64, ZSTD(1)),
             nic_resets Nullable(UInt64) CODEC(T64, ZSTD(1)), softnet_drops Nullable(UInt64) CODEC(T64, ZSTD(1)),
             oom_kills Nullable(UInt64) CODEC(T64, ZSTD(1)), cpu_stall_ms Nullable(UInt64) CODEC(T64, ZSTD(1)),
             memory_stall_ms Nullable(UInt64) CODEC(T64, ZSTD(1)), io_stall_ms Nullable(UInt64) CODEC(T64, ZSTD(1)),
             lost_samples Nullable(UInt64) CODEC(T64, ZSTD(1)), starved_queues Nullable(UInt32) CODEC(T64, ZSTD(1)),
             throttled_ms Nullable(UInt64) CODEC(T64, ZSTD(1)), direct_reclaim_pages Nullable(UInt64) CODEC(T64, ZSTD(1)),
             own_cpu_ms Nullable(UInt64) CODEC(T64, ZSTD(1))"
        ),
        engine: ("ReplacingMergeTree", "version"),
        partition: "toYYYYMM(hour)",
        key: "(node, hour)",
        expires: Some(Expires { after: "hour", kept: Kept::AsHours }),
    },
    // What a row of a node's stacks says: ids of texts, and samples of each.
    Table {
        name: "stack_samples",
        columns: "slot DateTime CODEC(DoubleDelta, ZSTD(1)), node String CODEC(ZSTD(1)), until DateTime CODEC(DoubleDelta, ZSTD(1)),
          samples UInt64 CODEC(T64, ZSTD(1)), stacks Array(Int64) CODEC(ZSTD(6)), counts Array(UInt64) CODEC(T64, ZSTD(1))",
        engine: ("ReplacingMergeTree", ""),
        partition: "toDate(slot)",
        key: "(slot, node, until)",
        expires: Some(Expires { after: "slot", kept: Kept::AsMinutes }),
    },
    // The first 8 bytes of a text's SHA-256, and the text; used: written anew on each day of its use.
    Table {
        name: "stack_texts",
        columns: "id Int64 CODEC(ZSTD(1)), stack String CODEC(ZSTD(3)), used DateTime CODEC(DoubleDelta, ZSTD(1))",
        engine: ("ReplacingMergeTree", "used"),
        partition: "tuple()",
        key: "id",
        expires: Some(Expires { after: "used", kept: Kept::AsMinutesAndMore }),
    },
    // Recordings that somebody asks for. asked, and the first of told, in milliseconds; told: state, bytes so far, of how many, and which
    // collector says so.
    Table {
        name: "wanted",
        columns: "node String, number UInt64, triggered SimpleAggregateFunction(max, DateTime), asked SimpleAggregateFunction(max, UInt64),
          told SimpleAggregateFunction(max, Tuple(UInt64, String, UInt64, UInt64, String)), at SimpleAggregateFunction(max, DateTime)",
        engine: AGGREGATING,
        partition: "tuple()",
        key: "(node, number)",
        expires: Some(Expires { after: "at", kept: Kept::ForADay }),
    },
    // Each node's first diagnosis, and its latest; last: a version, and the conclusion.
    Table {
        name: "diagnosed",
        columns: "node String, first SimpleAggregateFunction(min, DateTime), until SimpleAggregateFunction(max, DateTime),
          last SimpleAggregateFunction(max, Tuple(UInt64, String))",
        engine: AGGREGATING,
        partition: "tuple()",
        key: "node",
        expires: as_problems("until"),
    },
    // Problems as diagnoses saw them. Those of one problem that end within the same quarter of an hour are one row: by the rule of
    // episodes (store/episodes.rs) they are one episode in any case.
    Table {
        name: "observed",
        columns: concat!(
            "node String CODEC(ZSTD(1)), boot_id String CODEC(ZSTD(1)), key LowCardinality(String), quarter DateTime CODEC(DoubleDelta, ZSTD(1)), ",
            problem!()
        ),
        engine: AGGREGATING,
        partition: "toYYYYMM(quarter)",
        key: "(node, boot_id, key, quarter)",
        expires: as_problems("quarter"),
    },
    // The same by problem: began is the first time, last the latest.
    Table {
        name: "problems",
        columns: concat!("node String CODEC(ZSTD(1)), boot_id String CODEC(ZSTD(1)), key LowCardinality(String), ", problem!()),
        engine: AGGREGATING,
        partition: "tuple()",
        key: "(node, boot_id, key)",
        expires: as_problems("tupleElement(last, 1)"),
    },
    Table {
        name: "incidents",
        columns: "node String CODEC(ZSTD(1)), number UInt64, triggered DateTime CODEC(DoubleDelta, ZSTD(1)), version UInt64,
          code LowCardinality(String), key String CODEC(ZSTD(1)), state LowCardinality(String), incident_json String CODEC(ZSTD(3))",
        engine: ("ReplacingMergeTree", "version"),
        partition: "toYYYYMM(triggered)",
        key: "(triggered, node, number)",
        expires: as_problems("triggered"),
    },
];

const VIEWS: &[View] = &[
    View { name: "identities_to_nodes", to: "nodes", query: "SELECT * FROM {database}.identities" },
    View {
        name: "minutes_to_latest",
        to: "latest_minutes",
        query:
            "SELECT * EXCEPT sealed, toUInt64(toUnixTimestamp(minute)) * 4294967296 + toUnixTimestamp(sealed) AS version
          FROM {database}.minutes",
    },
    View { name: "observed_to_problems", to: "problems", query: "SELECT * EXCEPT quarter FROM {database}.observed" },
];

/// Creates what is missing, and sets how long rows are kept. Two collectors may do so at once: every statement may be repeated.
pub async fn prepare(client: &Client, address: &Address, retention: Retention) -> anyhow::Result<()> {
    let database = quoted(&address.database);
    let exists: u64 = within(
        client
            .clone()
            .with_database("system")
            .query("SELECT count() FROM system.databases WHERE name = ?")
            .bind(&address.database)
            .fetch_one(),
    )
    .await?;
    if exists == 0 {
        let create = format!("CREATE DATABASE IF NOT EXISTS {database}{}", on_cluster(address));
        within(client.clone().with_database("system").query_raw(&create).execute())
            .await
            .with_context(|| format!("the database {} does not exist and cannot be created", address.database))?;
    }
    let versions = format!(
        "CREATE TABLE IF NOT EXISTS {database}.schema_version{} (version UInt32, at DateTime DEFAULT now()) ENGINE = {} ORDER BY version",
        on_cluster(address),
        engine(address, ("ReplacingMergeTree", ""))
    );
    within(client.query_raw(&versions).execute()).await?;
    let done: u32 = within(client.query("SELECT max(version) FROM schema_version").fetch_one()).await?;
    ensure!(
        done as usize <= STEPS.len(),
        "the database {} has version {done}; this program knows up to {}. Use the newer one",
        address.database,
        STEPS.len()
    );
    for (step, (tables, views)) in STEPS.iter().enumerate().skip(done as usize) {
        let statements = tables.iter().map(|table| create_table(table, address, retention));
        let statements = statements.chain(views.iter().map(|view| create_view(view, address)));
        for statement in statements {
            within(client.query_raw(&statement).execute())
                .await
                .with_context(|| format!("cannot migrate the database to version {}", step + 1))?;
        }
        insert_version(client, address, step + 1).await?;
    }
    keep(client, address, retention).await
}

/// A row that is there already: whether rows are taken.
pub async fn say_version(client: &Client, address: &Address) -> anyhow::Result<()> {
    insert_version(client, address, STEPS.len()).await
}

async fn insert_version(client: &Client, address: &Address, version: usize) -> anyhow::Result<()> {
    let insert = format!("INSERT INTO {}.schema_version (version) VALUES ({version})", quoted(&address.database));
    within(client.query_raw(&insert).execute()).await
}

/// Alters how long rows are kept where the options have changed.
async fn keep(client: &Client, address: &Address, retention: Retention) -> anyhow::Result<()> {
    #[derive(Row, Deserialize)]
    struct Found {
        name: String,
        engine_full: String,
    }
    let found: Vec<Found> = within(
        client
            .query("SELECT name, engine_full FROM system.tables WHERE database = ?")
            .bind(&address.database)
            .fetch_all(),
    )
    .await?;
    for table in STEPS.iter().flat_map(|(tables, _)| tables.iter()) {
        let Some(wanted) = expiry(table, retention) else { continue };
        if found.iter().any(|found| found.name == table.name && !found.engine_full.contains(&wanted)) {
            let alter = format!(
                "ALTER TABLE {}.{}{} MODIFY TTL {wanted}",
                quoted(&address.database),
                table.name,
                on_cluster(address)
            );
            within(client.query_raw(&alter).execute())
                .await
                .with_context(|| format!("cannot set how long {} are kept", table.name))?;
        }
    }
    Ok(())
}

/// As ClickHouse writes it itself.
fn expiry(table: &Table, retention: Retention) -> Option<String> {
    const DAY_S: i64 = 86_400;
    let Expires { after, kept } = table.expires.as_ref()?;
    let seconds = match kept {
        Kept::AsMinutes => retention.minutes_s,
        Kept::AsMinutesAndMore => retention.minutes_s.saturating_add(2 * DAY_S),
        Kept::AsHours => retention.hours_s,
        Kept::AsProblems => retention.episodes_s,
        Kept::ForADay => DAY_S,
    };
    Some(format!("{after} + toIntervalSecond({seconds})"))
}

fn quoted(name: &str) -> String {
    format!("`{name}`")
}

fn on_cluster(address: &Address) -> String {
    address.cluster.as_ref().map_or_else(String::new, |cluster| format!(" ON CLUSTER {}", quoted(cluster)))
}

fn engine(address: &Address, (name, argument): (&str, &str)) -> String {
    match (&address.cluster, argument) {
        (None, argument) => format!("{name}({argument})"),
        (Some(_), argument) => {
            let comma = if argument.is_empty() { "" } else { ", " };
            format!(
                "Replicated{name}('/clickhouse/tables/{{shard}}/{{database}}/{{table}}', '{{replica}}'{comma}{argument})"
            )
        }
    }
}

fn create_table(table: &Table, address: &Address, retention: Retention) -> String {
    let ttl = expiry(table, retention).map_or_else(String::new, |expiry| format!(" TTL {expiry}"));
    // What is acknowledged outlives a power failure. Of partitions by day only whole ones are removed, which costs nothing.
    let whole = if table.partition.starts_with("toDate") { ", ttl_only_drop_parts = 1" } else { "" };
    // A question about one node, or one hour, reads little else.
    let granularity = match table.name {
        "minutes" | "hours" | "observed" => ", index_granularity = 2048",
        // The same ids come again and again.
        "stack_samples" => {
            ", index_granularity = 512, min_compress_block_size = 1048576, max_compress_block_size = 4194304"
        }
        _ => "",
    };
    format!(
        "CREATE TABLE IF NOT EXISTS {}.{}{} ({}) ENGINE = {} PARTITION BY {} ORDER BY {}{ttl}
         SETTINGS fsync_after_insert = 1, fsync_part_directory = 1{whole}{granularity}",
        quoted(&address.database),
        table.name,
        on_cluster(address),
        table.columns,
        engine(address, table.engine),
        table.partition,
        table.key
    )
}

fn create_view(view: &View, address: &Address) -> String {
    let database = quoted(&address.database);
    format!(
        "CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.{}{} TO {database}.{} AS {}",
        view.name,
        on_cluster(address),
        view.to,
        view.query.replace("{database}", &database)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETENTION: Retention = Retention { minutes_s: 60, hours_s: 600, episodes_s: 3600 };

    /// Only the text: the engine of the tests has no keeper.
    #[test]
    fn on_a_cluster_tables_are_replicated() {
        let address = Address::parse("clickhouse://h/fleet?cluster=c-1", None).unwrap();
        for table in CREATE {
            let text = create_table(table, &address, RETENTION);
            assert!(text.contains("ON CLUSTER `c-1`") && text.contains("ENGINE = Replicated"), "{text}");
            assert!(text.contains("'/clickhouse/tables/{shard}/{database}/{table}', '{replica}'"), "{text}");
        }
        let minutes = CREATE.iter().find(|table| table.name == "minutes").unwrap();
        let text = create_table(minutes, &address, RETENTION);
        assert!(text.contains("'{replica}', sealed)") && text.contains("TTL minute + toIntervalSecond(60)"), "{text}");
        let alone = Address::parse("clickhouse://h/fleet", None).unwrap();
        let text = create_table(minutes, &alone, RETENTION);
        assert!(text.contains("ENGINE = ReplacingMergeTree(sealed) PARTITION BY toDate(minute)"), "{text}");
        assert!(
            create_view(&VIEWS[0], &address)
                .contains("ON CLUSTER `c-1` TO `fleet`.nodes AS SELECT * FROM `fleet`.identities")
        );
    }
}
