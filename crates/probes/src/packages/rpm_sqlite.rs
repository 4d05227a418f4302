//! rpm's database in SQLite (rpm's lib/backend/sqlite.c), the default since rpm 4.16: `Packages(hnum, blob)`, and an index
//! `Basenames(key, hnum, idx)` from file names to packages.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::time::{Duration, Instant};

use coroner_evidence::Package;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};

use super::{PathSet, each_database, invalid, rpm_header};
use crate::tree::{Tree, base_name};

pub const PATHS: &[&str] = &["/usr/lib/sysimage/rpm/rpmdb.sqlite", "/var/lib/rpm/rpmdb.sqlite"];

/// A hostile image may contain a database that keeps its reader busy.
const LIMIT: Duration = Duration::from_secs(10);
const MAX_BLOB: i32 = 256 << 20;

pub fn find(tree: &Tree, wanted: &PathSet, owners: &mut HashMap<String, Package>) -> io::Result<()> {
    each_database(tree, PATHS, |place| find_in(tree, &place.path, wanted, owners).map_err(|e| invalid(e.to_string())))
}

fn find_in(
    tree: &Tree,
    path: &str,
    wanted: &PathSet,
    owners: &mut HashMap<String, Package>,
) -> Result<(), Box<dyn std::error::Error>> {
    // `immutable` keeps SQLite from locking, recovering or writing files next to the database. Changes of a running rpm that are
    // still in the write-ahead log are not seen.
    let file = tree.root().path(path);
    let encoded: String = file
        .to_str()
        .ok_or("its path is not UTF-8")?
        .bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => (b as char).to_string(),
            _ => format!("%{b:02x}"),
        })
        .collect();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(format!("file:{encoded}?immutable=1"), flags)?;
    database.execute_batch("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0;")?;
    database.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_BLOB)?;
    let until = Instant::now() + LIMIT;
    database.progress_handler(100_000, Some(move || Instant::now() > until))?;

    let tables: i64 = database.query_row(
        "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('Packages', 'Basenames')",
        [],
        |row| row.get(0),
    )?;
    let mut packages = BTreeSet::new();
    if tables == 2 {
        let names: BTreeSet<&str> = wanted.paths.keys().map(|p| base_name(p)).collect();
        let mut query = database.prepare("SELECT DISTINCT hnum FROM Basenames WHERE key = ?1")?;
        for name in names {
            for number in query.query_map([name], |row| row.get::<_, i64>(0))? {
                packages.insert(number?);
            }
        }
    } else {
        let mut query = database.prepare("SELECT hnum FROM Packages")?;
        for number in query.query_map([], |row| row.get::<_, i64>(0))? {
            packages.insert(number?);
        }
    }
    let mut query = database.prepare("SELECT blob FROM Packages WHERE hnum = ?1")?;
    for number in packages {
        let blob: Vec<u8> = query.query_row([number], |row| row.get(0))?;
        rpm_header::find(&blob, wanted, owners)?;
    }
    Ok(())
}
