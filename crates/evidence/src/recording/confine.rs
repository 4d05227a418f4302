//! Keeps a recording from doing anything to who reads it. The file may come from anybody: nothing in its schema may run, only
//! plain tables are read, and no row, cell or query is without an end.

use super::schema;
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{Type, ValueRef};
use rusqlite::{Connection, Error, Row};
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows of one table that are read. An hour of a node with 192 cores has a tenth of it.
pub const MOST_ROWS: usize = 200_000;

/// Rows of a table of (key, value), and things that could not be seen.
pub const MOST_PAIRS: usize = 1000;

/// No name, path or line of a log is longer than this.
const MOST_TEXT: usize = 64 << 10;

/// Documents within a cell: files of the catalogue, units, what the kernel was at work on.
const MOST_DOCUMENT: usize = 4 << 20;

/// A cell. Chunks are smaller: unpacked they have at most [`super::chunk::MAX_PAYLOAD`].
const MOST_CELL: i32 = 16 << 20;

/// What a document in JSON may grow to in memory.
const UNPACKED: usize = 4;

/// SQLite counts its steps in so many at once.
const STEPS_AT_ONCE: i32 = 1000;

/// What reading one table may take: some seconds. [`MOST_ROWS`] rows of the widest table take a fifth of it. A page that leads
/// back to itself has rows without end.
const MOST_STEPS: u64 = 100_000_000 / STEPS_AT_ONCE as u64;

/// How many steps may still be made until the next call of [`Steps::again`].
#[derive(Clone)]
pub struct Steps(std::sync::Arc<AtomicU64>);

impl Steps {
    /// Another table, another question.
    pub fn again(&self) {
        self.0.store(MOST_STEPS, Ordering::Relaxed);
    }
}

/// Before anything is read, also not the list of tables.
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
    // Memory that is mapped goes away with the end of a file that somebody cuts off.
    db.execute_batch("PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0; PRAGMA query_only = ON;")?;
    let steps = Steps(std::sync::Arc::new(AtomicU64::new(MOST_STEPS)));
    let left = steps.clone();
    let is_enough = move || left.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_err();
    db.progress_handler(STEPS_AT_ONCE, Some(is_enough))?;
    Ok(steps)
}

/// From here on queries reach the plain tables of a recording and nothing else, whoever asks.
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

/// Our tables, as we make them.
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

/// Those of our tables that are tables: no views, no virtual tables, no columns that are computed.
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

/// A table with more columns than ours is read by name. One whose columns are computed is not.
fn has_stored_columns(db: &Connection, table: &str) -> rusqlite::Result<bool> {
    let mut columns = db.prepare(&format!("PRAGMA table_xinfo({table})"))?;
    let hidden: Vec<i64> = columns.query_map([], |row| row.get(6))?.collect::<rusqlite::Result<_>>()?;
    Ok(!hidden.is_empty() && hidden.iter().all(|hidden| *hidden == 0))
}

/// Whether these can be read, and are what [`only_tables`] lets through.
pub fn are_tables(db: &Connection, names: &[&str]) -> bool {
    names.iter().all(|name| is_table(db, name).is_ok())
}

pub fn is_table(db: &Connection, name: &str) -> Result<(), String> {
    match db.prepare(&format!("SELECT count(*) FROM {name}")) {
        Ok(_) => Ok(()),
        Err(Error::SqliteFailure(_, _) | Error::SqlInputError { .. }) => Err("there is no such table".to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

/// The bytes that a row's texts take in memory, or that it is not one of ours.
pub fn fits(row: &Row<'_>) -> rusqlite::Result<usize> {
    let mut all: usize = 0;
    let statement: &rusqlite::Statement<'_> = row.as_ref();
    for column in 0..statement.column_count() {
        let ValueRef::Text(text) = row.get_ref(column)? else { continue };
        if text.len() > MOST_TEXT {
            let name = statement.column_name(column)?;
            let is_document = name.ends_with("_json") || name == "text";
            if text.len() > MOST_DOCUMENT || !is_document {
                let why = format!("{name} has {} bytes, more than any has", text.len());
                return Err(Error::FromSqlConversionFailure(column, Type::Text, why.into()));
            }
        }
        let is_json = matches!(text.first(), Some(b'[' | b'{'));
        all = all.saturating_add(text.len() * if is_json { UNPACKED } else { 1 });
    }
    Ok(all)
}
