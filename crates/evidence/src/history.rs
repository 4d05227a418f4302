//! The recorder's conclusions, week after week: `history.db` beside its segments, which it outlives.
//!
//! The recorder diagnoses its own node every few minutes. Consecutive diagnoses with the same conclusion are one row of
//! `conclusions`, extended each time; what was wrong meanwhile is in `problems`. So a healthy month is one row. Both tables can
//! also be read with sqlite3. The oldest rows are removed when there are more than [`MOST_CONCLUSIONS`].

use crate::recording::rows::{self, Columns, row};
use crate::recording::{RecordingError, fits, open_beside};
pub use coroner_report::{Concluded, Problem};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// With a new conclusion at every diagnosis, this is reached in about a month; a row and its problems take some 400 bytes.
pub const MOST_CONCLUSIONS: u64 = 20_000;

/// Of all conclusions together: bounds a reader's memory.
const MOST_PROBLEMS: usize = 200_000;

/// "CRNH", SQLite's application_id of the file.
const APPLICATION_ID: i32 = 0x4352_4E48;
const FORMAT: i32 = 1;

pub(crate) const CREATE: &str = "
CREATE TABLE conclusions (
  id INTEGER PRIMARY KEY, boot_id TEXT, from_real_ns INTEGER, until_real_ns INTEGER, diagnoses INTEGER, conclusion TEXT);
CREATE TABLE problems (
  id INTEGER PRIMARY KEY, conclusion_id INTEGER, key TEXT, code TEXT, subject_kind TEXT, subject TEXT, severity TEXT,
  certainty TEXT, title TEXT, began_real_ns INTEGER, ended_real_ns INTEGER);
CREATE INDEX problems_by_conclusion ON problems (conclusion_id);
CREATE VIEW problems_readable AS
  SELECT strftime('%Y-%m-%dT%H:%M:%SZ', coalesce(began_real_ns, from_real_ns) / 1000000000, 'unixepoch') AS began,
         strftime('%Y-%m-%dT%H:%M:%SZ', coalesce(ended_real_ns, until_real_ns) / 1000000000, 'unixepoch') AS last_seen,
         severity, code, subject, title, key
  FROM problems JOIN conclusions ON conclusions.id = conclusion_id ORDER BY conclusion_id, problems.id;
";

row!(Problem in "problems" of "conclusion_id" {
    key: "key", code: "code", subject_kind: "subject_kind", subject: "subject", severity: "severity",
    certainty: "certainty", title: "title", began: "began_real_ns", ended: "ended_real_ns"
});

row!(Concluded in "conclusions" {
    boot_id: "boot_id", from: "from_real_ns", until: "until_real_ns", diagnoses: "diagnoses",
    conclusion: "conclusion"
} without problems);

/// Whether `next` says the same and begins before `last` ended.
fn goes_on(last: &Concluded, next: &Concluded) -> bool {
    let same = |a: &Problem, b: &Problem| {
        (&a.key, &a.severity, &a.certainty, a.ended) == (&b.key, &b.severity, &b.certainty, b.ended)
    };
    last.boot_id == next.boot_id
        && last.conclusion == next.conclusion
        && next.from <= last.until
        && next.until >= last.until
        && last.problems.len() == next.problems.len()
        && last.problems.iter().zip(&next.problems).all(|(a, b)| same(a, b))
}

pub fn path(directory: &Path) -> PathBuf {
    directory.join("history.db")
}

/// Used by the recorder that owns the directory.
pub struct HistoryWriter {
    db: Connection,
    path: PathBuf,
    /// As stored in the file, with its row id.
    last: Option<(i64, Concluded)>,
}

impl HistoryWriter {
    /// Opens the history of a directory, or begins one. A file that is damaged or not ours is renamed to `history.db.damaged` and a
    /// new one begun: the second value says so.
    pub fn open(directory: &Path) -> Result<(HistoryWriter, Option<String>), RecordingError> {
        let path = path(directory);
        let first = match Self::open_file(&path) {
            Ok(writer) => return Ok((writer, None)),
            Err(error) => error,
        };
        let aside = path.with_extension("db.damaged");
        std::fs::rename(&path, &aside)
            .map_err(|_| RecordingError::Other { path: path.clone(), why: first.to_string() })?;
        let told = format!("{}: {first}; renamed it to {} and began a new history", path.display(), aside.display());
        Self::open_file(&path)
            .map(|writer| (writer, Some(told)))
            .map_err(|why| RecordingError::Other { path, why: why.to_string() })
    }

    fn open_file(path: &Path) -> rusqlite::Result<HistoryWriter> {
        // Created here, so that only its owner may read it. If that fails, SQLite says why.
        let _ = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let db = Connection::open(path)?;
        db.busy_timeout(Duration::from_secs(2))?;
        let format: i32 = db.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        let id: i32 = db.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        match (id, format) {
            (0, 0) => db.execute_batch(&format!(
                "BEGIN; {CREATE} PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT}; COMMIT;"
            ))?,
            (APPLICATION_ID, FORMAT) => {}
            _ => return Err(rusqlite::Error::InvalidQuery),
        }
        let last = last(&db)?;
        Ok(HistoryWriter { db, path: path.to_owned(), last })
    }

    /// Adds a conclusion: a new row, or one more diagnosis in the last one.
    pub fn note(&mut self, concluded: &Concluded) -> Result<(), RecordingError> {
        let noted = match self.last.take() {
            Some((id, last)) if goes_on(&last, concluded) => self.extend(id, last, concluded),
            _ => self.insert(concluded),
        };
        match noted {
            Ok(last) => {
                self.last = Some(last);
                Ok(())
            }
            Err(error) => {
                // What is in the file counts, not what we tried to write.
                self.last = last(&self.db).unwrap_or_default();
                Err(RecordingError::Other { path: self.path.clone(), why: error.to_string() })
            }
        }
    }

    fn extend(&mut self, id: i64, mut last: Concluded, next: &Concluded) -> rusqlite::Result<(i64, Concluded)> {
        last.until = next.until;
        last.diagnoses += next.diagnoses;
        self.db.execute(
            "UPDATE conclusions SET until_real_ns = ?2, diagnoses = ?3 WHERE id = ?1",
            params![id, last.until.0 as i64, last.diagnoses as i64],
        )?;
        Ok((id, last))
    }

    fn insert(&mut self, new: &Concluded) -> rusqlite::Result<(i64, Concluded)> {
        let tx = self.db.transaction()?;
        rows::insert(&tx, std::slice::from_ref(new))?;
        let id = tx.last_insert_rowid();
        rows::insert_below(&tx, id, &new.problems)?;
        let oldest = id - MOST_CONCLUSIONS as i64;
        tx.execute("DELETE FROM problems WHERE conclusion_id <= ?", [oldest])?;
        tx.execute("DELETE FROM conclusions WHERE id <= ?", [oldest])?;
        tx.commit()?;
        Ok((id, new.clone()))
    }
}

/// All of it, oldest first. Nothing if the recorder has not concluded anything yet.
pub fn read(directory: &Path) -> Result<Vec<Concluded>, RecordingError> {
    let path = path(directory);
    let db = match open_beside(&path) {
        Err(RecordingError::Missing { .. } | RecordingError::Empty { .. }) => return Ok(Vec::new()),
        db => db?,
    };
    read_all(&db).map_err(|error| RecordingError::Damaged { path, why: error.to_string() })
}

fn read_all(db: &Connection) -> rusqlite::Result<Vec<Concluded>> {
    let newest =
        format!("SELECT * FROM (SELECT * FROM conclusions ORDER BY id DESC LIMIT {}) ORDER BY id", MOST_CONCLUSIONS);
    let mut select = db.prepare(&newest)?;
    let rows: Vec<(i64, Concluded)> = select.query_map([], concluded)?.collect::<rusqlite::Result<_>>()?;
    let mut left = MOST_PROBLEMS;
    let mut all = Vec::new();
    for (id, row) in rows {
        let problems = problems(db, id)?;
        // No recorder writes that many.
        left = left.checked_sub(problems.len()).ok_or(rusqlite::Error::InvalidQuery)?;
        all.push(Concluded { problems, ..row });
    }
    Ok(all)
}

fn last(db: &Connection) -> rusqlite::Result<Option<(i64, Concluded)>> {
    let row = db.query_row("SELECT * FROM conclusions ORDER BY id DESC LIMIT 1", [], concluded).optional()?;
    row.map(|(id, row)| Ok((id, Concluded { problems: problems(db, id)?, ..row }))).transpose()
}

fn concluded(row: &Row<'_>) -> rusqlite::Result<(i64, Concluded)> {
    fits(row)?;
    Ok((row.get("id")?, Concluded::get(row)?))
}

fn problems(db: &Connection, conclusion: i64) -> rusqlite::Result<Vec<Problem>> {
    let mut select = db.prepare_cached("SELECT * FROM problems WHERE conclusion_id = ? ORDER BY id LIMIT 1000")?;
    select.query_map([conclusion], |row| fits(row).and_then(|_| Problem::get(row)))?.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Wall;

    const MINUTE: u64 = 60_000_000_000;

    /// The diagnosis of the three minutes before minute `until`.
    fn concluded(until: u64, problems: &[Problem]) -> Concluded {
        Concluded {
            boot_id: "b".to_owned(),
            from: Wall((until - 3) * MINUTE),
            until: Wall(until * MINUTE),
            diagnoses: 1,
            conclusion: if problems.is_empty() { "nothing wrong" } else { "cause found" }.to_owned(),
            problems: problems.to_vec(),
        }
    }

    fn problem(key: &str) -> Problem {
        let (severity, certainty) = ("warning".to_owned(), Some("proven".to_owned()));
        Problem { key: key.to_owned(), severity, certainty, began: Some(Wall(7)), ..Problem::default() }
    }

    #[test]
    fn the_same_conclusion_extends_its_row_and_another_adds_one() {
        let dir = tempfile::tempdir().unwrap();
        let ecs = problem("unit-crashloop ecs.service");
        let (mut writer, told) = HistoryWriter::open(dir.path()).unwrap();
        assert_eq!(told, None);
        for until in [3, 6] {
            writer.note(&concluded(until, &[])).unwrap();
        }
        writer.note(&concluded(9, std::slice::from_ref(&ecs))).unwrap();
        drop(writer);
        // The next recorder continues the same row; after a gap, a new row begins.
        let (mut writer, _) = HistoryWriter::open(dir.path()).unwrap();
        writer.note(&concluded(11, std::slice::from_ref(&ecs))).unwrap();
        writer.note(&concluded(60, std::slice::from_ref(&ecs))).unwrap();
        let rows = read(dir.path()).unwrap();
        let told: Vec<_> = rows
            .iter()
            .map(|row| (row.from.0 / MINUTE, row.until.0 / MINUTE, row.diagnoses, row.problems.len()))
            .collect();
        assert_eq!(told, [(0, 6, 2, 0), (6, 11, 2, 1), (57, 60, 1, 1)]);
        assert_eq!(rows[1].problems, [ecs]);
    }

    #[test]
    fn its_size_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, _) = HistoryWriter::open(dir.path()).unwrap();
        writer.note(&concluded(3, &[problem("first")])).unwrap();
        // As if all others had been written before.
        writer
            .db
            .execute("INSERT INTO conclusions (id, boot_id, from_real_ns, until_real_ns, diagnoses, conclusion) VALUES (?, 'b', 0, 0, 1, '')", [MOST_CONCLUSIONS as i64])
            .unwrap();
        writer.last = None;
        writer.note(&concluded(9, &[problem("last")])).unwrap();
        let rows = read(dir.path()).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[1].problems[0].key, "last");
        let left: i64 = writer.db.query_row("SELECT count(*) FROM problems", [], |row| row.get(0)).unwrap();
        assert_eq!(left, 1);
    }

    #[test]
    fn a_damaged_file_is_renamed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), []);
        std::fs::write(path(dir.path()), "this is no database, but it is long enough to be one".repeat(40)).unwrap();
        assert!(read(dir.path()).is_err());
        let (mut writer, told) = HistoryWriter::open(dir.path()).unwrap();
        assert!(told.unwrap().contains("renamed"));
        writer.note(&concluded(3, &[])).unwrap();
        assert_eq!(read(dir.path()).unwrap().len(), 1);
        assert!(dir.path().join("history.db.damaged").exists());
    }
}
