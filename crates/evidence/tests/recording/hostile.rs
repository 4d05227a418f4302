//! Malicious recordings. Nothing here looks at a clock: an unbounded reader would not return.

use crate::scratch::{scratch_file, second};
use coroner_evidence::recording::{
    self, RecordingError, Writer, core_looks, incident, logs, outline, profile, read, rollups,
};
use coroner_evidence::{Evidence, Time, Window};
use proptest::prelude::*;
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn recorded() -> (tempfile::TempDir, PathBuf) {
    let (dir, path) = scratch_file();
    let mut writer = Writer::create(&path).unwrap();
    writer.append(&second(0, 2)).unwrap();
    writer.finish(&[]).unwrap();
    (dir, path)
}

fn change(path: &Path, sql: &str) {
    Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

/// Everything that opens recordings.
fn everybody(path: &Path) -> Result<Evidence, RecordingError> {
    let _ = outline(path);
    let _ = logs(path);
    let _ = recording::nics(path);
    let _ = incident(path);
    let _ = rollups(path);
    let _ = recording::newest_wall(path);
    let all = Window { from: Time(0), to: Time(u64::MAX) };
    let _ = core_looks(path, all, Default::default(), Duration::ZERO, &|time| time.0);
    if let Ok(reader) = profile::ProfileReader::open(path) {
        let _ = (reader.has_profile(), reader.source(), reader.span(), reader.count(), reader.events());
        let _ = reader.chunks(None, &mut || true, &mut |chunk| {
            let _ = chunk.unpack();
            std::ops::ControlFlow::Continue(())
        });
        reader.stacks(&mut |_| std::ops::ControlFlow::Continue(()));
        let mut names = reader.names();
        for number in [0, 1, 2, u32::MAX] {
            let _ = (names.frame(number), names.task(number), names.path(number), names.event(number));
        }
    }
    read(path).map(|recording| recording.evidence)
}

fn told(evidence: &Evidence) -> String {
    evidence.unseen.iter().map(|unseen| format!("{}: {}\n", unseen.what, unseen.why)).collect()
}

fn tables(path: &Path) -> Vec<String> {
    let db = Connection::open(path).unwrap();
    let mut select = db.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
    select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

fn columns(path: &Path, table: &str) -> Vec<(String, String)> {
    let db = Connection::open(path).unwrap();
    let mut select = db.prepare(&format!("PRAGMA table_info({table})")).unwrap();
    select.query_map([], |row| Ok((row.get(1)?, row.get(2)?))).unwrap().map(Result::unwrap).collect()
}

#[test]
fn an_endless_view_in_place_of_any_table_blocks_nobody() {
    let tables = tables(&recorded().1);
    assert!(tables.len() > 40, "{tables:?}");
    for table in &tables {
        let (_dir, path) = recorded();
        let columns: Vec<String> = columns(&path, table).into_iter().map(|(name, _)| format!("n AS {name}")).collect();
        change(
            &path,
            &format!(
                "DROP TABLE {table}; CREATE VIEW {table} AS
                 WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT {} FROM r",
                columns.join(", ")
            ),
        );
        let evidence = everybody(&path).unwrap();
        let is_read =
            !(table.starts_with("profile_") || ["findings", "incident", "risers", "rollups"].contains(&table.as_str()));
        assert_eq!(told(&evidence).contains(table.as_str()), is_read, "{table}: {}", told(&evidence));
    }
}

#[test]
fn computed_columns_and_virtual_tables_are_not_read() {
    let (_dir, path) = recorded();
    change(
        &path,
        "DROP TABLE clocks; CREATE TABLE clocks (id INTEGER PRIMARY KEY, at_ns INTEGER, real_ns AS (at_ns + 1), boot_ns);
         INSERT INTO clocks (at_ns, boot_ns) VALUES (1, 2)",
    );
    let evidence = everybody(&path).unwrap();
    assert!(evidence.clocks.is_empty() && told(&evidence).contains("clocks"), "{}", told(&evidence));

    let (_dir, path) = recorded();
    change(&path, "DROP TABLE node; CREATE VIRTUAL TABLE node USING dbstat");
    let evidence = everybody(&path).unwrap();
    assert!(told(&evidence).contains("table node"), "{}", told(&evidence));

    // Unknown columns, tables and triggers do no harm.
    let (_dir, path) = recorded();
    change(
        &path,
        "ALTER TABLE clocks ADD COLUMN more TEXT; CREATE TABLE more (x); CREATE TRIGGER t AFTER INSERT ON clocks BEGIN DELETE FROM node; END",
    );
    assert_eq!(told(&everybody(&path).unwrap()), told(&second(0, 2)));
}

#[test]
fn more_rows_than_any_node_has_are_left_out_and_reported() {
    for (table, row) in [
        ("processes", "n, 1, n, 1, 1, 'x', 'x', 0, '/a', '/a', 'a.service', NULL, NULL, 0, NULL, NULL, NULL"),
        ("units", "n, 1, 'u' || n, 'loaded', 'active', 'running', '', '', 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL"),
        ("unseen", "n, 'p', 'w' || n, 'y', 'h'"),
        ("series", "n, 'pressure', 's' || n, 'n'"),
        ("node", "'k' || n, 'x'"),
    ] {
        let (_dir, path) = recorded();
        change(
            &path,
            &format!(
                "DELETE FROM {table}; WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 200100)
                 INSERT INTO {table} SELECT {row} FROM r"
            ),
        );
        let evidence = everybody(&path).unwrap();
        assert!(evidence.processes.len() <= 200_000 && evidence.unseen.len() <= 1010, "{table}");
        if table != "node" {
            assert!(told(&evidence).contains(&format!("table {table}: ")), "{table}: {}", told(&evidence));
        }
    }
}

#[test]
fn a_text_of_megabytes_costs_only_its_row() {
    for table in tables(&recorded().1) {
        let (_dir, path) = recorded();
        let texts: Vec<String> =
            columns(&path, &table).into_iter().filter(|(_, kind)| kind == "TEXT").map(|(name, _)| name).collect();
        if texts.is_empty() || table == "meta" || table == "node" {
            continue;
        }
        let sets: Vec<String> = texts.iter().map(|name| format!("{name} = printf('%.*c', 3000000, 'x')")).collect();
        change(
            &path,
            &format!(
                "INSERT OR IGNORE INTO {table} (id) VALUES (1); UPDATE {table} SET {} WHERE id = 1",
                sets.join(", ")
            ),
        );
        let evidence = everybody(&path).unwrap();
        assert!(told(&evidence).len() < 10_000, "{table}");
    }
    let (_dir, path) = recorded();
    change(
        &path,
        "INSERT INTO processes (id, comm) VALUES (1, printf('%.*c', 20000000, 'x')); UPDATE kernel_log SET text = printf('%.*c', 5000000, 'x')",
    );
    let evidence = everybody(&path).unwrap();
    assert!(evidence.log.is_empty(), "{}", evidence.log.len());
    assert!(evidence.processes.iter().all(|process| process.comm.len() < 100_000));
    assert!(
        told(&evidence).contains("kernel_log") && told(&evidence).contains("table processes"),
        "{}",
        told(&evidence)
    );
}

#[test]
fn a_symbol_of_megabytes_is_ignored() {
    let (_dir, path) = recorded();
    change(
        &path,
        "INSERT INTO profile_frames VALUES (1, printf('%.*c', 15000000, 'x'), 1, '', 0, NULL, NULL), (2, 'main', 1, '', 0, NULL, NULL)",
    );
    let reader = profile::ProfileReader::open(&path).unwrap();
    let mut names = reader.names();
    assert!(names.frame(1).is_none());
    assert_eq!(names.frame(2).unwrap().symbol, "main");
}

/// Pages that point to themselves: endless rows for those who only count them.
#[test]
fn a_tree_that_points_to_itself_blocks_nobody() {
    let (_dir, path) = recorded();
    change(&path, "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 5000) INSERT INTO clocks SELECT 1000 + n, n, n, n FROM r;
                   WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 5000) INSERT INTO core_time_chunks SELECT 1000 + n, n, n, n, zeroblob(300) FROM r");
    let root = |table: &str| -> usize {
        let sql = format!("SELECT rootpage FROM sqlite_schema WHERE name = '{table}'");
        Connection::open(&path).unwrap().query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap() as usize
    };
    let roots = [root("clocks"), root("core_time_chunks")];
    let mut bytes = std::fs::read(&path).unwrap();
    for root in roots {
        let page = (root - 1) * 4096;
        assert_eq!(bytes[page], 5, "an interior page");
        let cells = usize::from(u16::from_be_bytes([bytes[page + 3], bytes[page + 4]]));
        assert!(cells > 5);
        // Each of its children is the page itself.
        for cell in 0..cells {
            let at = page + 12 + 2 * cell;
            let at = page + usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
            bytes[at..at + 4].copy_from_slice(&(root as u32).to_be_bytes());
        }
        bytes[page + 8..page + 12].copy_from_slice(&(root as u32).to_be_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    let evidence = everybody(&path).unwrap();
    assert!(told(&evidence).contains("clocks"), "{}", told(&evidence));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Cells of any kind and size anywhere.
    #[test]
    fn any_cell_anywhere_is_survived(
        cells in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..7usize), 1..12),
    ) {
        let (_dir, path) = recorded();
        let all: Vec<(String, String)> = tables(&path)
            .into_iter()
            .flat_map(|table| columns(&path, &table).into_iter().map(move |(column, _)| (table.clone(), column)))
            .collect();
        for (place, row, value) in cells {
            let (table, column) = place.get(&all);
            let value = ["NULL", "-1", "9223372036854775807", "1e308", "x'80ff00'", "printf('%.*c', 100000, '[')", "''"][value];
            let sql = format!("UPDATE OR IGNORE {table} SET {column} = {value} WHERE {column} IN (SELECT {column} FROM {table} LIMIT 3 OFFSET {})", row.index(5));
            // Some columns reject the value.
            let _ = Connection::open(&path).unwrap().execute_batch(&sql);
        }
        let _ = everybody(&path);
    }
}
