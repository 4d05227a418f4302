//! Protects the reader from the recording. The file may come from anybody: nothing in its schema may run, only plain tables are
//! read, and rows, cells and queries are bounded.

use super::schema;
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{Type, ValueRef};
use rusqlite::{Connection, Error, Row};
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most rows read from one table. An hour of a node with 192 cores has a tenth of this.
pub const MOST_ROWS: usize = 200_000;

/// Most rows of a (key, value) table and of table unseen.
pub const MOST_PAIRS: usize = 1000;

/// No name, path or line of a log is longer than this.
const MOST_TEXT: usize = 64 << 10;

/// Longest document in a cell: catalogue files, units, kernel work.
const MOST_DOCUMENT: usize = 4 << 20;

/// Largest cell. Chunks are smaller: unpacked, at most [`super::chunk::MAX_PAYLOAD`].
const MOST_CELL: i32 = 16 << 20;

/// By how much a JSON document may grow in memory.
const UNPACKED: usize = 4;

/// SQLite calls back after this many steps.
const STEPS_AT_ONCE: i32 = 1000;

/// Limit for reading one table: some seconds. [`MOST_ROWS`] rows of the widest table take a fifth of it. A page that points to
/// itself would have endless rows.
const MOST_STEPS: u64 = 100_000_000 / STEPS_AT_ONCE as u64;

/// The steps left until the next call of [`Steps::again`].
#[derive(Clone)]
pub struct Steps(std::sync::Arc<AtomicU64>);

impl Steps {
    /// Refills the budget, for another table or query.
    pub fn again(&self) {
        self.0.store(MOST_STEPS, Ordering::Relaxed);
    }
}

/// To be called before anything is read, even the list of tables.
pub fn confine(db: &Connection) -> rusqlite::Result<Steps> {
    db.set_limit(Limit::SQLITE_LIMIT_LENGTH, MOST_CELL)?;
    db.set_limit(Limit::SQLITE_LIMIT_SQL_LENGTH, 100_000)?;
    db.set_limit(Limit::SQLITE_LIMIT_COLUMN, 200)?;
    db.set_limit(Limit::SQLITE_LIMIT_EXPR_DEPTH, 100)?;
    db.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    db.set_limit(Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 1)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    // No mmap: access to it would crash if somebody truncates the file.
    db.execute_batch("PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0; PRAGMA query_only = ON;")?;
    let steps = Steps(std::sync::Arc::new(AtomicU64::new(MOST_STEPS)));
    let left = steps.clone();
    let is_enough = move || left.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_err();
    db.progress_handler(STEPS_AT_ONCE, Some(is_enough))?;
    Ok(steps)
}

/// From here on, queries reach only the plain tables of a recording.
pub fn only_tables(db: &Connection) -> rusqlite::Result<()> {
    let plain = plain_tables(db)?;
    db.authorizer(Some(move |asked: AuthContext<'_>| match asked.action {
        _ if asked.accessor.is_some() => Authorization::Deny,
        AuthAction::Select | AuthAction::Transaction { .. } => Authorization::Allow,
        AuthAction::Read { table_name: "sqlite_master" | "sqlite_schema", .. } => Authorization::Allow,
        AuthAction::Read { table_name, .. } if plain.contains(table_name) => Authorization::Allow,
        AuthAction::Function { function_name: "count" | "coalesce" | "max" | "min" | "sum" } => Authorization::Allow,
        AuthAction::Pragma { pragma_name: "application_id" | "user_version", pragma_value: None } => {
            Authorization::Allow
        }
        _ => Authorization::Deny,
    }))
}

/// Our tables, as we create them.
static OURS: LazyLock<HashMap<String, String>> = LazyLock::new(|| {
    let made = || -> rusqlite::Result<HashMap<String, String>> {
        let db = Connection::open_in_memory()?;
        db.execute_batch(schema::CREATE)?;
        db.execute_batch(crate::history::CREATE)?;
        let mut select = db.prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'table'")?;
        select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    };
    made().unwrap_or_default()
});

/// Those of our tables that are plain: no views, virtual tables or computed columns.
fn plain_tables(db: &Connection) -> rusqlite::Result<HashSet<&'static str>> {
    let mut plain = HashSet::new();
    let mut select = db.prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND rootpage > 0")?;
    let mut found = select.query([])?;
    while let Some(row) = found.next()? {
        let (Ok(name), Ok(sql)) = (row.get_ref(0)?.as_str(), row.get_ref(1)?.as_str()) else { continue };
        if let Some((ours, made)) = OURS.get_key_value(name)
            && (sql == made || has_stored_columns(db, ours)?)
        {
            plain.insert(ours.as_str());
        }
    }
    Ok(plain)
}

/// A table with more columns than ours is fine: columns are read by name. One with computed columns is not.
fn has_stored_columns(db: &Connection, table: &str) -> rusqlite::Result<bool> {
    let mut columns = db.prepare(&format!("PRAGMA table_xinfo({table})"))?;
    let hidden: Vec<i64> = columns.query_map([], |row| row.get(6))?.collect::<rusqlite::Result<_>>()?;
    Ok(!hidden.is_empty() && hidden.iter().all(|hidden| *hidden == 0))
}

/// Whether these exist and [`only_tables`] allows them.
pub fn are_tables(db: &Connection, names: &[&str]) -> bool {
    names.iter().all(|name| is_table(db, name).is_ok())
}

pub fn is_table(db: &Connection, name: &str) -> Result<(), String> {
    match db.prepare(&format!("SELECT count(*) FROM {name}")) {
        Ok(_) => Ok(()),
        Err(Error::SqliteFailure(_, _) | Error::SqlInputError { .. }) => Err("no such table".to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

/// The memory that a row's texts take; an error if one is longer than any we write.
pub fn fits(row: &Row<'_>) -> rusqlite::Result<usize> {
    let mut all: usize = 0;
    let statement: &rusqlite::Statement<'_> = row.as_ref();
    for column in 0..statement.column_count() {
        let ValueRef::Text(text) = row.get_ref(column)? else { continue };
        if text.len() > MOST_TEXT {
            let name = statement.column_name(column)?;
            let is_document = name.ends_with("_json") || name == "text";
            if text.len() > MOST_DOCUMENT || !is_document {
                let why = format!("{name} has {} bytes, more than coroner ever writes", text.len());
                return Err(Error::FromSqlConversionFailure(column, Type::Text, why.into()));
            }
        }
        let is_json = matches!(text.first(), Some(b'[' | b'{'));
        all = all.saturating_add(text.len() * if is_json { UNPACKED } else { 1 });
    }
    Ok(all)
}
