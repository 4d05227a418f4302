//! Evidence as rows of plain tables, and back.
//!
//! [`row!`] lists a struct's fields with their columns, and so says both how a value becomes a row and a row a value. It names
//! every field, so that a new one cannot be forgotten.

use super::RiserKind;
use crate::cgroups::{CgroupCensus, CgroupMount, CgroupOwner, CrowdedParent, StatRead};
use crate::cores::CoreSet;
use crate::log::LogLine;
use crate::nic::{MapSource, Nic, NicQueue, QueueKind};
use crate::tasks::{MemoryHolder, Observer, Process, RayProcess, SchedulingClass, Thread, ThreadKey};
use crate::time::{Clocks, Time};
use crate::units::Unit;
use crate::zombies::ZombieMethod;
use crate::{About, Cost, Unseen};
use coroner_report::{Name, Wall};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, Type, ValueRef};
use rusqlite::{Row, Transaction, params_from_iter};

/// A value in one column.
pub trait Cell: Sized {
    fn put(&self) -> rusqlite::Result<ToSqlOutput<'_>>;
    fn get(cell: ValueRef<'_>) -> FromSqlResult<Self>;
}

/// A struct whose fields are columns, or a part of one.
pub trait Columns: Sized {
    fn names(names: &mut Vec<&'static str>);
    fn put<'a>(&'a self, cells: &mut Vec<ToSqlOutput<'a>>) -> rusqlite::Result<()>;
    fn get(row: &Row<'_>) -> rusqlite::Result<Self>;
}

/// One row of a table whose rows have a growing `id`.
pub trait Stored: Columns {
    const TABLE: &'static str;
    /// The column with the id of the row in another table that this one belongs to.
    const PARENT: Option<&'static str> = None;
}

#[derive(Debug, Clone)]
pub struct Table {
    pub name: &'static str,
    pub columns: Vec<&'static str>,
}

impl Table {
    pub fn of<T: Stored>() -> Table {
        let mut columns: Vec<_> = T::PARENT.into_iter().collect();
        T::names(&mut columns);
        Table { name: T::TABLE, columns }
    }

    pub fn insert(&self) -> String {
        let places = vec!["?"; self.columns.len()].join(", ");
        format!("INSERT INTO {} ({}) VALUES ({places})", self.name, self.columns.join(", "))
    }
}

/// `row!(TYPE in TABLE of PARENT { FIELD: COLUMN, … } with PARTS without OTHERS)`. Parts are fields that have several columns;
/// others are stored elsewhere, if at all. Without `in TABLE`, TYPE is itself a part. `of PARENT` is the column [`Stored::PARENT`].
macro_rules! row {
    ($type:ident in $table:literal $(of $parent:literal)? { $($fields:tt)* } $($more:tt)*) => {
        impl $crate::recording::rows::Stored for $type {
            const TABLE: &'static str = $table;
            $(const PARENT: Option<&'static str> = Some($parent);)?
        }
        row!($type { $($fields)* } $($more)*);
    };
    ($type:ident { $($field:ident: $column:literal),* $(,)? } $(with $($part:ident),+)? $(without $($other:ident),+)?) => {
        impl $crate::recording::rows::Columns for $type {
            fn names(names: &mut Vec<&'static str>) {
                names.extend([$($column),*]);
                $($($crate::recording::rows::names_of(|whole: &$type| &whole.$part, names);)+)?
            }

            fn put<'a>(&'a self, cells: &mut Vec<rusqlite::types::ToSqlOutput<'a>>) -> rusqlite::Result<()> {
                let $type { $($field,)* $($($part,)+)? $($($other: _,)+)? } = self;
                $(cells.push($crate::recording::rows::Cell::put($field)?);)*
                $($($crate::recording::rows::Columns::put($part, cells)?;)+)?
                Ok(())
            }

            fn get(row: &rusqlite::Row<'_>) -> rusqlite::Result<$type> {
                Ok($type {
                    $($field: $crate::recording::rows::cell(row, $column)?,)*
                    $($($part: $crate::recording::rows::Columns::get(row)?,)+)?
                    $($($other: Default::default(),)+)?
                })
            }
        }
    };
}
pub(crate) use row;

/// `optional!(PART, COLUMN)`: a part that may be missing; then COLUMN is NULL.
macro_rules! optional {
    ($part:ident, $column:literal) => {
        impl $crate::recording::rows::Columns for Option<$part> {
            fn names(names: &mut Vec<&'static str>) {
                $part::names(names);
            }

            fn put<'a>(&'a self, cells: &mut Vec<rusqlite::types::ToSqlOutput<'a>>) -> rusqlite::Result<()> {
                if let Some(part) = self {
                    return part.put(cells);
                }
                let mut names = Vec::new();
                $part::names(&mut names);
                cells.extend(names.iter().map(|_| rusqlite::types::ToSqlOutput::from(rusqlite::types::Null)));
                Ok(())
            }

            fn get(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<$part>> {
                if row.get_ref($column)? == rusqlite::types::ValueRef::Null {
                    Ok(None)
                } else {
                    $part::get(row).map(Some)
                }
            }
        }
    };
}
pub(super) use optional;

pub fn names_of<T, P: Columns>(_: fn(&T) -> &P, names: &mut Vec<&'static str>) {
    P::names(names);
}

pub fn cell<T: Cell>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    T::get(row.get_ref(column)?).map_err(|e| not_understood(format!("{column}: {e}")))
}

fn not_understood(what: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Text, what.into())
}

/// Inserts values. `then` gets each value with the id of its row.
pub fn insert_each<T: Stored>(
    tx: &Transaction<'_>,
    parent: Option<i64>,
    items: &[T],
    mut then: impl FnMut(&T, i64) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&Table::of::<T>().insert())?;
    for item in items {
        let mut cells: Vec<ToSqlOutput<'_>> = parent.into_iter().map(ToSqlOutput::from).collect();
        item.put(&mut cells)?;
        let id = insert.insert(params_from_iter(cells))?;
        then(item, id)?;
    }
    Ok(())
}

/// The same with columns for people who read the table.
pub fn insert_readable<T: Stored, const N: usize>(
    tx: &Transaction<'_>,
    items: &[T],
    columns: [&'static str; N],
    cells_of: impl Fn(&T) -> [ToSqlOutput<'_>; N],
) -> rusqlite::Result<()> {
    let mut table = Table::of::<T>();
    table.columns.extend(columns);
    let mut insert = tx.prepare_cached(&table.insert())?;
    for item in items {
        let mut cells = Vec::new();
        item.put(&mut cells)?;
        cells.extend(cells_of(item));
        insert.execute(params_from_iter(cells))?;
    }
    Ok(())
}

pub fn insert<T: Stored>(tx: &Transaction<'_>, items: &[T]) -> rusqlite::Result<()> {
    insert_each(tx, None, items, |_, _| Ok(()))
}

/// Those that belong to the row `parent` of another table.
pub fn insert_below<T: Stored>(tx: &Transaction<'_>, parent: i64, items: &[T]) -> rusqlite::Result<()> {
    insert_each(tx, Some(parent), items, |_, _| Ok(()))
}

/// A table with one row: the latest wins.
pub fn replace<T: Stored>(tx: &Transaction<'_>, item: &T) -> rusqlite::Result<()> {
    let mut table = Table::of::<T>();
    table.columns.insert(0, "id");
    let mut cells = vec![ToSqlOutput::from(1)];
    item.put(&mut cells)?;
    tx.prepare_cached(&table.insert().replace("INSERT", "REPLACE"))?.execute(params_from_iter(cells))?;
    Ok(())
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

macro_rules! cells {
    ($($type:ty),*) => {
        $(impl Cell for $type {
            fn put(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                self.to_sql()
            }

            fn get(cell: ValueRef<'_>) -> FromSqlResult<$type> {
                FromSql::column_result(cell)
            }
        })*
    };
}

cells!(bool, u8, i8, u32, i32, f64, String, Time, CoreSet);

impl Cell for Wall {
    fn put(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        self.0.put()
    }

    fn get(cell: ValueRef<'_>) -> FromSqlResult<Wall> {
        Cell::get(cell).map(Wall)
    }
}

impl Cell for u64 {
    fn put(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok((*self as i64).into())
    }

    fn get(cell: ValueRef<'_>) -> FromSqlResult<u64> {
        Ok(cell.as_i64()? as u64)
    }
}

impl<T: Cell> Cell for Option<T> {
    fn put(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        self.as_ref().map_or(Ok(rusqlite::types::Null.into()), T::put)
    }

    fn get(cell: ValueRef<'_>) -> FromSqlResult<Option<T>> {
        if cell == ValueRef::Null { Ok(None) } else { T::get(cell).map(Some) }
    }
}

/// A list is a JSON document.
impl<T: serde::Serialize + serde::de::DeserializeOwned> Cell for Vec<T> {
    fn put(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(json(self)?.into())
    }

    fn get(cell: ValueRef<'_>) -> FromSqlResult<Vec<T>> {
        serde_json::from_str(cell.as_str()?).map_err(|e| FromSqlError::Other(e.into()))
    }
}

/// `document!(TYPE in TABLE of PARENT: COLUMN)`: a struct that is stored as a JSON document.
macro_rules! document {
    ($type:ident in $table:literal $(of $parent:literal)?: $column:literal) => {
        impl $crate::recording::rows::Stored for $type {
            const TABLE: &'static str = $table;
            $(const PARENT: Option<&'static str> = Some($parent);)?
        }

        impl $crate::recording::rows::Columns for $type {
            fn names(names: &mut Vec<&'static str>) {
                names.push($column);
            }

            fn put<'a>(&'a self, cells: &mut Vec<rusqlite::types::ToSqlOutput<'a>>) -> rusqlite::Result<()> {
                cells.push($crate::recording::rows::json(self)?.into());
                Ok(())
            }

            fn get(row: &rusqlite::Row<'_>) -> rusqlite::Result<$type> {
                $crate::recording::rows::from_json(row.get_ref($column)?.as_str()?)
            }
        }
    };
}
pub(super) use document;

pub fn json<T: serde::Serialize + ?Sized>(value: &T) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))
}

pub fn from_json<T: serde::de::DeserializeOwned>(text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|e| not_understood(e.to_string()))
}

/// One of a list of known words.
macro_rules! words {
    ($($type:ident),*) => {
        $(impl Cell for $type {
            fn put(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                Ok(self.as_str().into())
            }

            fn get(cell: ValueRef<'_>) -> FromSqlResult<$type> {
                let text = cell.as_str()?;
                $type::parse(text).ok_or_else(|| FromSqlError::Other(format!("it is {text:?}").into()))
            }
        })*
    };
}

words!(RiserKind, SchedulingClass, ZombieMethod, QueueKind, MapSource);

row!(Clocks in "clocks" { at: "at_ns", wall: "real_ns", boot_ns: "boot_ns" });

row!(Process in "processes" {
    at: "at_ns", pid: "pid", started: "started_ticks", ppid: "ppid", comm: "comm", command: "command", kernel: "is_kernel",
    memory_cgroup: "memory_cgroup", cpu_cgroup: "cpu_cgroup"
} with owner, ray);

row!(Observer in "observers" { at: "at_ns", pid: "pid", started: "started_ticks" });

row!(MemoryHolder in "memory_holders" {
    at: "at_ns", pid: "pid", started: "started_ticks", comm: "comm", resident_bytes: "resident_bytes"
});

row!(CgroupOwner { unit: "unit", pod_uid: "pod_uid", container_id: "container_id" });

row!(RayProcess { job_id: "ray_job_id", submission_id: "ray_submission_id", entry_point: "ray_entry_point" });

/// All that is known of a process of Ray may be that it is one.
impl Columns for Option<RayProcess> {
    fn names(names: &mut Vec<&'static str>) {
        names.push("is_ray");
        RayProcess::names(names);
    }

    fn put<'a>(&'a self, cells: &mut Vec<ToSqlOutput<'a>>) -> rusqlite::Result<()> {
        static NOT_RAY: RayProcess = RayProcess { job_id: None, submission_id: None, entry_point: None };
        cells.push(self.is_some().into());
        self.as_ref().unwrap_or(&NOT_RAY).put(cells)
    }

    fn get(row: &Row<'_>) -> rusqlite::Result<Option<RayProcess>> {
        Ok(cell::<bool>(row, "is_ray")?.then_some(RayProcess::get(row)?))
    }
}

row!(Thread in "threads" {
    at: "at_ns", pid: "pid", comm: "comm", kernel: "is_kernel", class: "scheduling_class", rt_priority: "rt_priority",
    nice: "nice", affinity: "affinity_cores"
} with key);

row!(ThreadKey { tid: "tid", started: "started_ticks" });

row!(Nic in "nics" { at: "at_ns", netns: "netns", name: "name", driver: "driver", bus: "bus", up: "is_up" } without queues);

row!(NicQueue in "nic_queues" of "nic_id" {
    kind: "kind", index: "queue", map: "mapped_by", irq: "irq", irq_cores: "irq_cores", napi_id: "napi_id",
    napi_tid: "napi_tid", napi_cores: "napi_cores", steering: "steering_cores"
});

row!(CgroupMount in "cgroup_mounts" {
    version: "version", controllers: "controllers_json", mount_point: "mount_point", root: "root"
});

row!(CgroupCensus in "cgroup_censuses" {
    at: "at_ns", version: "version", mount_point: "mount_point", live: "live", tracked: "tracked", dying: "dying",
    dying_source: "dying_source", empty: "empty", truncated: "is_truncated", took_ns: "took_ns"
} without crowded);

row!(CrowdedParent in "crowded_parents" of "census_id" {
    path: "path", children: "children", empty: "empty", dying: "dying", example: "example"
});

row!(StatRead in "stat_reads" {
    at: "at_ns", path: "path", took_ns: "took_ns", cpu_ns: "cpu_ns", finished: "is_finished"
});

row!(LogLine in "kernel_log" {
    at: "at_ns", uncertainty_ns: "uncertainty_ns", stamp_us: "stamp_us", sequence: "sequence", level: "level",
    facility: "facility", text: "text"
});

// Fields added with the second format are in another table.
row!(Unit in "units" {
    at: "at_ns", name: "name", load_state: "load_state", active_state: "active_state", sub_state: "sub_state",
    unit_file_state: "unit_file_state", result: "result", restarts: "restarts", invocation_id: "invocation_id",
    main_started: "main_started_ns", main_pid: "main_pid", exit_kind: "exit_kind", exit_status: "exit_status",
    restart_delay_us: "restart_delay_us", cgroup: "cgroup"
} without service_type, restart, main_exited, active_since, cpu_ns, memory_bytes, tasks, triggered_by, triggers,
    last_trigger, next_trigger, accepted, connections, conditions_held);

row!(Cost in "cost" { startup_cpu_ms: "startup_cpu_ms", cpu_ms: "cpu_ms", peak_rss_bytes: "peak_rss_bytes" });

impl Stored for Unseen {
    const TABLE: &'static str = "unseen";
}

impl Columns for Unseen {
    fn names(names: &mut Vec<&'static str>) {
        names.extend(["probe", "what", "why", "how_to_see"]);
    }

    fn put<'a>(&'a self, cells: &mut Vec<ToSqlOutput<'a>>) -> rusqlite::Result<()> {
        let Unseen { probe, about, what, why, how_to_see } = self;
        // `cgroups:cpu-quotas` if a rule asks for it.
        let probe = about.map_or_else(|| probe.clone(), |about| format!("{probe}:{}", about.as_str()));
        cells.extend([probe.into(), what.to_sql()?, why.to_sql()?, how_to_see.to_sql()?]);
        Ok(())
    }

    fn get(row: &Row<'_>) -> rusqlite::Result<Unseen> {
        let probe: String = cell(row, "probe")?;
        let about = probe.split_once(':').and_then(|(probe, about)| {
            let about = About::parse(about).or_else(|| Name::new(about).map(About::Other))?;
            Some((probe.to_owned(), about))
        });
        let (probe, about) = about.map_or((probe, None), |(probe, about)| (probe, Some(about)));
        let (what, why, how_to_see) = (cell(row, "what")?, cell(row, "why")?, cell(row, "how_to_see")?);
        Ok(Unseen { probe, about, what, why, how_to_see })
    }
}

/// Repeats are ignored: the table is unique.
pub fn insert_unseen(tx: &Transaction<'_>, items: &[Unseen]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(&Table::of::<Unseen>().insert().replace("INSERT", "INSERT OR IGNORE"))?;
    for unseen in items {
        let mut cells = Vec::new();
        unseen.put(&mut cells)?;
        insert.execute(params_from_iter(cells))?;
    }
    Ok(())
}
