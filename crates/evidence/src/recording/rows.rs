//! Evidence as rows of plain tables, and back.
//!
//! For each kind of evidence: the table's columns, how a value becomes a row, and a row a value. Values are destructured field by
//! field, so that a new field cannot be forgotten.

use crate::cgroups::{CgroupCensus, CgroupMount, CgroupOwner, CrowdedParent, StatRead};
use crate::cores::CoreSet;
use crate::log::LogLine;
use crate::nic::{MapSource, Nic, NicQueue, QueueKind};
use crate::tasks::{Process, RayProcess, SchedulingClass, Thread, ThreadKey};
use crate::time::{Clocks, Time};
use crate::units::Unit;
use crate::{About, Cost, Unseen};
use coroner_report::{Name, Wall};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, Type, ValueRef};
use rusqlite::{Row, Transaction, params};

/// A table whose rows have a growing `id`.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    pub name: &'static str,
    pub columns: &'static [&'static str],
}

impl Table {
    pub fn insert(&self) -> String {
        let places = vec!["?"; self.columns.len()].join(", ");
        format!("INSERT INTO {} ({}) VALUES ({places})", self.name, self.columns.join(", "))
    }
}

/// All bits of a u64 in SQLite's signed integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct U64(pub u64);

impl ToSql for U64 {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok((self.0 as i64).into())
    }
}

impl FromSql for U64 {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<U64> {
        Ok(U64(value.as_i64()? as u64))
    }
}

impl ToSql for Time {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok((self.0 as i64).into())
    }
}

impl FromSql for Time {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Time> {
        U64::column_result(value).map(|n| Time(n.0))
    }
}

impl ToSql for CoreSet {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.to_string().into())
    }
}

impl FromSql for CoreSet {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<CoreSet> {
        CoreSet::parse_list(value.as_str()?).ok_or(FromSqlError::InvalidType)
    }
}

pub fn u64_of(row: &Row<'_>, column: &str) -> rusqlite::Result<u64> {
    row.get::<_, U64>(column).map(|n| n.0)
}

pub fn maybe_u64_of(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<u64>> {
    row.get::<_, Option<U64>>(column).map(|n| n.map(|n| n.0))
}

/// One of a list of known words.
pub fn word_of<T: Copy>(row: &Row<'_>, column: &str, words: &[(T, &str)]) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    let known = words.iter().find(|(_, word)| *word == text);
    known.map(|(value, _)| *value).ok_or_else(|| not_understood(format!("{column} is {text:?}")))
}

fn not_understood(what: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Text, what.into())
}

pub const CLOCKS: Table = Table { name: "clocks", columns: &["at_ns", "real_ns", "boot_ns"] };

pub fn insert_clocks(tx: &Transaction<'_>, items: &[Clocks]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&CLOCKS.insert())?;
    for &Clocks { at, wall, boot_ns } in items {
        insert.execute(params![at, U64(wall.0), U64(boot_ns)])?;
    }
    Ok(())
}

pub fn clocks(row: &Row<'_>) -> rusqlite::Result<Clocks> {
    Ok(Clocks { at: row.get("at_ns")?, wall: Wall(u64_of(row, "real_ns")?), boot_ns: u64_of(row, "boot_ns")? })
}

pub const PROCESSES: Table = Table {
    name: "processes",
    columns: &[
        "at_ns",
        "pid",
        "started_ticks",
        "ppid",
        "comm",
        "command",
        "is_kernel",
        "memory_cgroup",
        "cpu_cgroup",
        "unit",
        "pod_uid",
        "container_id",
        "is_ray",
        "ray_job_id",
        "ray_submission_id",
        "ray_entry_point",
    ],
};

pub fn insert_processes(tx: &Transaction<'_>, items: &[Process]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&PROCESSES.insert())?;
    let no_ray = RayProcess::default();
    for process in items {
        let Process { at, pid, started, ppid, comm, command, kernel, memory_cgroup, cpu_cgroup, owner, ray } = process;
        let CgroupOwner { unit, pod_uid, container_id } = owner;
        let RayProcess { job_id, submission_id, entry_point } = ray.as_ref().unwrap_or(&no_ray);
        insert.execute(params![
            at,
            pid,
            U64(*started),
            ppid,
            comm,
            command,
            kernel,
            memory_cgroup,
            cpu_cgroup,
            unit,
            pod_uid,
            container_id,
            ray.is_some(),
            job_id,
            submission_id,
            entry_point,
        ])?;
    }
    Ok(())
}

pub fn process(row: &Row<'_>) -> rusqlite::Result<Process> {
    let ray = RayProcess {
        job_id: row.get("ray_job_id")?,
        submission_id: row.get("ray_submission_id")?,
        entry_point: row.get("ray_entry_point")?,
    };
    Ok(Process {
        at: row.get("at_ns")?,
        pid: row.get("pid")?,
        started: u64_of(row, "started_ticks")?,
        ppid: row.get("ppid")?,
        comm: row.get("comm")?,
        command: row.get("command")?,
        kernel: row.get("is_kernel")?,
        memory_cgroup: row.get("memory_cgroup")?,
        cpu_cgroup: row.get("cpu_cgroup")?,
        owner: CgroupOwner {
            unit: row.get("unit")?,
            pod_uid: row.get("pod_uid")?,
            container_id: row.get("container_id")?,
        },
        ray: row.get::<_, bool>("is_ray")?.then_some(ray),
    })
}

pub const THREADS: Table = Table {
    name: "threads",
    columns: &[
        "at_ns",
        "tid",
        "started_ticks",
        "pid",
        "comm",
        "is_kernel",
        "scheduling_class",
        "rt_priority",
        "nice",
        "affinity_cores",
    ],
};

const CLASSES: [SchedulingClass; 8] = [
    SchedulingClass::Other,
    SchedulingClass::Fifo,
    SchedulingClass::RoundRobin,
    SchedulingClass::Batch,
    SchedulingClass::Idle,
    SchedulingClass::Deadline,
    SchedulingClass::Ext,
    SchedulingClass::Unknown,
];

pub fn insert_threads(tx: &Transaction<'_>, items: &[Thread]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&THREADS.insert())?;
    for Thread { at, key, pid, comm, kernel, class, rt_priority, nice, affinity } in items {
        let ThreadKey { tid, started } = key;
        insert.execute(params![
            at,
            tid,
            U64(*started),
            pid,
            comm,
            kernel,
            class.as_str(),
            rt_priority,
            nice,
            affinity
        ])?;
    }
    Ok(())
}

pub fn thread(row: &Row<'_>) -> rusqlite::Result<Thread> {
    Ok(Thread {
        at: row.get("at_ns")?,
        key: ThreadKey { tid: row.get("tid")?, started: u64_of(row, "started_ticks")? },
        pid: row.get("pid")?,
        comm: row.get("comm")?,
        kernel: row.get("is_kernel")?,
        class: word_of(row, "scheduling_class", &CLASSES.map(|c| (c, c.as_str())))?,
        rt_priority: row.get("rt_priority")?,
        nice: row.get("nice")?,
        affinity: row.get("affinity_cores")?,
    })
}

pub const NICS: Table = Table { name: "nics", columns: &["at_ns", "netns", "name", "driver", "bus", "is_up"] };

pub const NIC_QUEUES: Table = Table {
    name: "nic_queues",
    columns: &[
        "nic_id",
        "kind",
        "queue",
        "mapped_by",
        "irq",
        "irq_cores",
        "napi_id",
        "napi_tid",
        "napi_cores",
        "steering_cores",
    ],
};

const QUEUE_KINDS: [(QueueKind, &str); 3] =
    [(QueueKind::Rx, "rx"), (QueueKind::Tx, "tx"), (QueueKind::Combined, "combined")];
const MAP_SOURCES: [(MapSource, &str); 3] =
    [(MapSource::Netlink, "netlink"), (MapSource::Name, "name"), (MapSource::Unmapped, "unmapped")];

pub fn insert_nics(tx: &Transaction<'_>, items: &[Nic]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&NICS.insert())?;
    let mut insert_queue = tx.prepare_cached(&NIC_QUEUES.insert())?;
    for Nic { at, netns, name, driver, bus, up, queues } in items {
        let nic_id = insert.insert(params![at, netns, name, driver, bus, up])?;
        for queue in queues {
            let NicQueue { kind, index, map, irq, irq_cores, napi_id, napi_tid, napi_cores, steering } = queue;
            let kind = match kind {
                QueueKind::Rx => "rx",
                QueueKind::Tx => "tx",
                QueueKind::Combined => "combined",
            };
            let map = match map {
                MapSource::Netlink => "netlink",
                MapSource::Name => "name",
                MapSource::Unmapped => "unmapped",
            };
            insert_queue
                .execute(params![nic_id, kind, index, map, irq, irq_cores, napi_id, napi_tid, napi_cores, steering])?;
        }
    }
    Ok(())
}

pub fn nic(row: &Row<'_>) -> rusqlite::Result<Nic> {
    Ok(Nic {
        at: row.get("at_ns")?,
        netns: row.get("netns")?,
        name: row.get("name")?,
        driver: row.get("driver")?,
        bus: row.get("bus")?,
        up: row.get("is_up")?,
        queues: Vec::new(),
    })
}

/// A queue, and the id of its NIC.
pub fn nic_queue(row: &Row<'_>) -> rusqlite::Result<(i64, NicQueue)> {
    let queue = NicQueue {
        kind: word_of(row, "kind", &QUEUE_KINDS)?,
        index: row.get("queue")?,
        map: word_of(row, "mapped_by", &MAP_SOURCES)?,
        irq: row.get("irq")?,
        irq_cores: row.get("irq_cores")?,
        napi_id: row.get("napi_id")?,
        napi_tid: row.get("napi_tid")?,
        napi_cores: row.get("napi_cores")?,
        steering: row.get("steering_cores")?,
    };
    Ok((row.get("nic_id")?, queue))
}

pub const CGROUP_MOUNTS: Table =
    Table { name: "cgroup_mounts", columns: &["version", "controllers_json", "mount_point", "root"] };

pub fn insert_cgroup_mounts(tx: &Transaction<'_>, items: &[CgroupMount]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&CGROUP_MOUNTS.insert())?;
    for CgroupMount { version, controllers, mount_point, root } in items {
        insert.execute(params![version, json(controllers)?, mount_point, root])?;
    }
    Ok(())
}

pub fn cgroup_mount(row: &Row<'_>) -> rusqlite::Result<CgroupMount> {
    Ok(CgroupMount {
        version: row.get("version")?,
        controllers: from_json(&row.get::<_, String>("controllers_json")?)?,
        mount_point: row.get("mount_point")?,
        root: row.get("root")?,
    })
}

pub fn json<T: serde::Serialize>(value: &T) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))
}

pub fn from_json<T: serde::de::DeserializeOwned>(text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|e| not_understood(e.to_string()))
}

pub const CGROUP_CENSUSES: Table = Table {
    name: "cgroup_censuses",
    columns: &[
        "at_ns",
        "version",
        "mount_point",
        "live",
        "tracked",
        "dying",
        "dying_source",
        "empty",
        "is_truncated",
        "took_ns",
    ],
};

pub const CROWDED_PARENTS: Table =
    Table { name: "crowded_parents", columns: &["census_id", "path", "children", "empty", "dying", "example"] };

pub fn insert_cgroup_censuses(tx: &Transaction<'_>, items: &[CgroupCensus]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&CGROUP_CENSUSES.insert())?;
    let mut insert_parent = tx.prepare_cached(&CROWDED_PARENTS.insert())?;
    for census in items {
        let CgroupCensus {
            at,
            version,
            mount_point,
            live,
            tracked,
            dying,
            dying_source,
            empty,
            crowded,
            truncated,
            took_ns,
        } = census;
        let census_id = insert.insert(params![
            at,
            version,
            mount_point,
            U64(*live),
            tracked.map(U64),
            dying.map(U64),
            dying_source,
            empty.map(U64),
            truncated,
            U64(*took_ns),
        ])?;
        for CrowdedParent { path, children, empty, dying, example } in crowded {
            insert_parent.execute(params![census_id, path, U64(*children), empty.map(U64), dying.map(U64), example])?;
        }
    }
    Ok(())
}

pub fn cgroup_census(row: &Row<'_>) -> rusqlite::Result<CgroupCensus> {
    Ok(CgroupCensus {
        at: row.get("at_ns")?,
        version: row.get("version")?,
        mount_point: row.get("mount_point")?,
        live: u64_of(row, "live")?,
        tracked: maybe_u64_of(row, "tracked")?,
        dying: maybe_u64_of(row, "dying")?,
        dying_source: row.get("dying_source")?,
        empty: maybe_u64_of(row, "empty")?,
        crowded: Vec::new(),
        truncated: row.get("is_truncated")?,
        took_ns: u64_of(row, "took_ns")?,
    })
}

/// A parent, and the id of its census.
pub fn crowded_parent(row: &Row<'_>) -> rusqlite::Result<(i64, CrowdedParent)> {
    let parent = CrowdedParent {
        path: row.get("path")?,
        children: u64_of(row, "children")?,
        empty: maybe_u64_of(row, "empty")?,
        dying: maybe_u64_of(row, "dying")?,
        example: row.get("example")?,
    };
    Ok((row.get("census_id")?, parent))
}

pub const STAT_READS: Table =
    Table { name: "stat_reads", columns: &["at_ns", "path", "took_ns", "cpu_ns", "is_finished"] };

pub fn insert_stat_reads(tx: &Transaction<'_>, items: &[StatRead]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&STAT_READS.insert())?;
    for StatRead { at, path, took_ns, cpu_ns, finished } in items {
        insert.execute(params![at, path, U64(*took_ns), cpu_ns.map(U64), finished])?;
    }
    Ok(())
}

pub fn stat_read(row: &Row<'_>) -> rusqlite::Result<StatRead> {
    Ok(StatRead {
        at: row.get("at_ns")?,
        path: row.get("path")?,
        took_ns: u64_of(row, "took_ns")?,
        cpu_ns: maybe_u64_of(row, "cpu_ns")?,
        finished: row.get("is_finished")?,
    })
}

pub const KERNEL_LOG: Table = Table {
    name: "kernel_log",
    columns: &["at_ns", "uncertainty_ns", "stamp_us", "sequence", "level", "facility", "text"],
};

pub fn insert_log(tx: &Transaction<'_>, items: &[LogLine]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&KERNEL_LOG.insert())?;
    for LogLine { at, uncertainty_ns, stamp_us, sequence, level, facility, text } in items {
        insert.execute(params![at, U64(*uncertainty_ns), U64(*stamp_us), U64(*sequence), level, facility, text])?;
    }
    Ok(())
}

pub fn log_line(row: &Row<'_>) -> rusqlite::Result<LogLine> {
    Ok(LogLine {
        at: row.get("at_ns")?,
        uncertainty_ns: u64_of(row, "uncertainty_ns")?,
        stamp_us: u64_of(row, "stamp_us")?,
        sequence: u64_of(row, "sequence")?,
        level: row.get("level")?,
        facility: row.get("facility")?,
        text: row.get("text")?,
    })
}

pub const UNITS: Table = Table {
    name: "units",
    columns: &[
        "at_ns",
        "name",
        "load_state",
        "active_state",
        "sub_state",
        "unit_file_state",
        "result",
        "restarts",
        "invocation_id",
        "main_started_ns",
        "main_pid",
        "exit_kind",
        "exit_status",
        "restart_delay_us",
        "cgroup",
    ],
};

pub fn insert_units(tx: &Transaction<'_>, items: &[Unit]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&UNITS.insert())?;
    for unit in items {
        let Unit {
            at,
            name,
            load_state,
            active_state,
            sub_state,
            unit_file_state,
            result,
            restarts,
            invocation_id,
            main_started,
            main_pid,
            exit_kind,
            exit_status,
            restart_delay_us,
            cgroup,
            // Fields added with the second format are in another table.
            ..
        } = unit;
        insert.execute(params![
            at,
            name,
            load_state,
            active_state,
            sub_state,
            unit_file_state,
            result,
            restarts,
            invocation_id,
            main_started,
            main_pid,
            exit_kind,
            exit_status,
            restart_delay_us.map(U64),
            cgroup,
        ])?;
        super::unit_rows::insert_unit_details(tx, unit)?;
    }
    Ok(())
}

pub fn unit(row: &Row<'_>) -> rusqlite::Result<Unit> {
    Ok(Unit {
        at: row.get("at_ns")?,
        name: row.get("name")?,
        load_state: row.get("load_state")?,
        active_state: row.get("active_state")?,
        sub_state: row.get("sub_state")?,
        unit_file_state: row.get("unit_file_state")?,
        result: row.get("result")?,
        restarts: row.get("restarts")?,
        invocation_id: row.get("invocation_id")?,
        main_started: row.get("main_started_ns")?,
        main_pid: row.get("main_pid")?,
        exit_kind: row.get("exit_kind")?,
        exit_status: row.get("exit_status")?,
        restart_delay_us: maybe_u64_of(row, "restart_delay_us")?,
        cgroup: row.get("cgroup")?,
        ..Unit::default()
    })
}

pub const UNSEEN: Table = Table { name: "unseen", columns: &["probe", "what", "why", "how_to_see"] };

/// Repeats are ignored: the table is unique.
pub fn insert_unseen(tx: &Transaction<'_>, items: &[Unseen]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&UNSEEN.insert().replace("INSERT", "INSERT OR IGNORE"))?;
    for Unseen { probe, about, what, why, how_to_see } in items {
        // `cgroups:cpu-quotas` if a rule asks for it.
        let probe = about.map_or_else(|| probe.clone(), |about| format!("{probe}:{}", about.as_str()));
        insert.execute(params![probe, what, why, how_to_see])?;
    }
    Ok(())
}

pub fn unseen(row: &Row<'_>) -> rusqlite::Result<Unseen> {
    let probe: String = row.get("probe")?;
    let about = probe.split_once(':').and_then(|(probe, about)| {
        let about = About::parse(about).or_else(|| Name::new(about).map(About::Other))?;
        Some((probe.to_owned(), about))
    });
    let (probe, about) = about.map_or((probe, None), |(probe, about)| (probe, Some(about)));
    Ok(Unseen { probe, about, what: row.get("what")?, why: row.get("why")?, how_to_see: row.get("how_to_see")? })
}

pub const COST: Table = Table { name: "cost", columns: &["startup_cpu_ms", "cpu_ms", "peak_rss_bytes"] };

/// One row: the latest wins.
pub fn replace_cost(tx: &Transaction<'_>, cost: &Cost) -> rusqlite::Result<()> {
    let Cost { startup_cpu_ms, cpu_ms, peak_rss_bytes } = *cost;
    tx.prepare_cached("REPLACE INTO cost (id, startup_cpu_ms, cpu_ms, peak_rss_bytes) VALUES (1, ?, ?, ?)")?
        .execute(params![U64(startup_cpu_ms), U64(cpu_ms), U64(peak_rss_bytes)])?;
    Ok(())
}

pub fn cost(row: &Row<'_>) -> rusqlite::Result<Cost> {
    Ok(Cost {
        startup_cpu_ms: u64_of(row, "startup_cpu_ms")?,
        cpu_ms: u64_of(row, "cpu_ms")?,
        peak_rss_bytes: u64_of(row, "peak_rss_bytes")?,
    })
}
