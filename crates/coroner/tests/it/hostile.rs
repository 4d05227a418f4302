//! A stranger's recording: escape sequences, direction marks and markup in any of its texts reach the terminal, a report and the page
//! only as text.

use crate::support::*;
use coroner_evidence::recording::{self, PROBE, Writer};
use rusqlite::Connection;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden");
/// With stacks.
const STACKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../browser-tests/testdata/zombie-reclaim.coroner");

/// Added to every text.
const NASTY: &str = "\x1b]0;owned\x07\x1b[31m\u{9b}2J\u{202e}\u{2066}\u{200f}\u{61c}\u{200b}\u{feff}\u{2028}\r\
                     <img src=x onerror=alert(1)>[x](javascript:alert(1))`|`$(reboot)'\"\nCRITICAL-injected";

/// Where a text is: a column; the strings of one key in a JSON column; or one key's value in a (key, value) table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    table: String,
    column: String,
    key: Option<String>,
}

fn tables(db: &Connection) -> Vec<String> {
    let mut select = db.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
    select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// The columns that may contain text.
fn columns(db: &Connection, table: &str) -> Vec<String> {
    let mut select = db.prepare(&format!("PRAGMA table_info({table})")).unwrap();
    let columns = select.query_map([], |row| Ok((row.get(1)?, row.get(2)?))).unwrap().map(Result::unwrap);
    columns.filter(|(_, kind): &(String, String)| kind == "TEXT" || kind.is_empty()).map(|(name, _)| name).collect()
}

fn is_json(column: &str) -> bool {
    column.ends_with("_json")
}

fn is_of_pairs(table: &str, column: &str) -> bool {
    ["meta", "node"].contains(&table) && column == "value"
}

fn keys(value: &Value, key: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::String(_) => drop(found.insert(key.to_owned())),
        Value::Array(all) => all.iter().for_each(|value| keys(value, key, found)),
        Value::Object(all) => all.iter().for_each(|(key, value)| keys(value, key, found)),
        _ => {}
    }
}

fn poison_json(value: &mut Value, key: &str, wanted: &str) {
    match value {
        Value::String(text) if key == wanted => text.push_str(NASTY),
        Value::Array(all) => all.iter_mut().for_each(|value| poison_json(value, key, wanted)),
        Value::Object(all) => all.iter_mut().for_each(|(key, value)| poison_json(value, key, wanted)),
        _ => {}
    }
}

fn texts(db: &Connection, table: &str, column: &str) -> Vec<String> {
    let sql = format!("SELECT DISTINCT {column} FROM {table} WHERE typeof({column}) = 'text'");
    db.prepare(&sql).unwrap().query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

fn places(db: &Connection) -> Vec<Place> {
    let mut places = Vec::new();
    for table in tables(db) {
        for column in columns(db, &table) {
            let mut found = BTreeSet::new();
            let texts = texts(db, &table, &column);
            if is_json(&column) {
                texts.iter().for_each(|text| keys(&serde_json::from_str(text).unwrap(), "", &mut found));
            }
            let place = |key| Place { table: table.clone(), column: column.clone(), key };
            if is_of_pairs(&table, &column) {
                let sql = format!("SELECT key FROM {table} WHERE typeof(value) = 'text'");
                let mut select = db.prepare(&sql).unwrap();
                places.extend(select.query_map([], |row| Ok(place(Some(row.get(0)?)))).unwrap().map(Result::unwrap));
                continue;
            }
            match is_json(&column) {
                true => places.extend(found.into_iter().map(|key| place(Some(key)))),
                false if !texts.is_empty() => places.push(place(None)),
                false => {}
            }
        }
    }
    places
}

fn poison(db: &Connection, place: &Place) {
    let Place { table, column, key } = place;
    match key {
        None => {
            let sql = format!("UPDATE {table} SET {column} = {column} || ?1 WHERE typeof({column}) = 'text'");
            db.execute(&sql, [NASTY]).unwrap();
        }
        Some(key) if is_of_pairs(table, column) => {
            let sql = format!("UPDATE {table} SET value = value || ?1 WHERE key = ?2");
            db.execute(&sql, [NASTY, key]).unwrap();
        }
        Some(key) => {
            for text in texts(db, table, column) {
                let mut value: Value = serde_json::from_str(&text).unwrap();
                poison_json(&mut value, "", key);
                let sql = format!("UPDATE {table} SET {column} = ?1 WHERE {column} = ?2");
                db.execute(&sql, [&value.to_string(), &text]).unwrap();
            }
        }
    }
}

/// A copy of a recording, with rows in its empty tables, and nasty names also where no column has them.
fn base(from: &Path, to: &Path) {
    let mut evidence = recording::read(from).unwrap().evidence;
    let has_stacks = from == Path::new(STACKS);
    if has_stacks {
        std::fs::copy(from, to).unwrap();
    } else {
        for scan in &mut evidence.zombie_scans {
            scan.zombies.iter_mut().for_each(|zombie| zombie.path.push_str(NASTY));
        }
        let mut writer = Writer::create(to).unwrap();
        writer.append(&evidence).unwrap();
        writer.finish(&[]).unwrap();
    }
    let db = Connection::open(to).unwrap();
    let incident = "INSERT INTO incident VALUES (1, 1, 'mark', 'a subject', 0, 'a text', 1, 1, 2)";
    let riser =
        "INSERT INTO risers VALUES (1, 'command', 'a riser', 0.1, 0.9, 100, 900, 9.0, 1, 1, 'in this', 0.9, '[\"x\"]')";
    let unseen = "INSERT INTO unseen VALUES (1000, 'a probe', 'a thing', 'a reason', 'a way')";
    let container =
        "INSERT INTO containers VALUES (1, 1, 'docker', 'a name', 'a namespace', 'a pod', 'uid', 'id', 9, 1, 1, 1)";
    for sql in [incident, riser, unseen, container] {
        db.execute(sql, []).unwrap();
    }
}

fn damaged(path: &Path) -> usize {
    recording::read(path).unwrap().evidence.unseen.iter().filter(|unseen| unseen.probe == PROBE).count()
}

/// Places that accept only certain words: a row with another one is left out. All other places are free text.
fn closed(base: &Path, scratch: &Path) -> Vec<Place> {
    let all = places(&Connection::open(base).unwrap());
    assert!(all.len() > 80, "{}", all.len());
    let is_closed = |place: &Place| {
        // Another key has another meaning.
        if place.column == "key" {
            return true;
        }
        std::fs::copy(base, scratch).unwrap();
        poison(&Connection::open(scratch).unwrap(), place);
        damaged(scratch) > 0
    };
    let closed: Vec<Place> = all.into_iter().filter(is_closed).collect();
    assert!(closed.len() < 50, "{closed:?}");
    for (table, column) in [("processes", "comm"), ("units", "name"), ("unseen", "why"), ("kernel_log", "text")] {
        assert!(!closed.iter().any(|place| place.table == table && place.column == column), "{closed:?}");
    }
    closed
}

/// Characters that control the terminal, or that nobody sees.
fn is_bad(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{61c}' | '\u{feff}')
}

fn must_be_plain(what: &str, text: &str) {
    if let Some(at) = text.find(is_bad) {
        let from = text[..at].char_indices().rev().nth(60).map_or(0, |(at, _)| at);
        panic!("{what}: {:?}", text[from..].chars().take(100).collect::<String>());
    }
    for line in text.lines() {
        assert!(!line.trim_start().starts_with("CRITICAL-injected"), "{what}: an injected line in\n{text}");
    }
}

/// Nothing of a name may become a tag or a link, except in code.
fn must_be_no_markup(what: &str, report: &str) {
    let mut in_block = false;
    for line in report.lines() {
        in_block ^= line.starts_with("```");
        for (at, _) in line.match_indices("<img").filter(|_| !in_block) {
            let before = &line[..at];
            let ticks = before.replace("\\`", "").matches('`').count();
            assert!(before.ends_with('\\') || ticks % 2 == 1, "{what}: {line}");
        }
    }
}

fn every_command(file: &Path, name: &str) {
    let directory = file.parent().unwrap().join("recorder");
    std::fs::create_dir_all(directory.join("incidents")).unwrap();
    std::fs::copy(file, directory.join("incidents/1.coroner")).unwrap();
    let incident = serde_json::json!({
        "schema": "coroner.incident/1", "number": 1, "code": format!("mark{NASTY}"), "subject": NASTY, "by": NASTY, "core": 0,
        "text": format!("a text{NASTY}"), "triggered_real_ns": 1, "from_real_ns": 1, "until_real_ns": 2,
        "state": "complete", "repeats": 1, "last_repeat_text": NASTY, "error": NASTY,
    });
    std::fs::write(directory.join("incidents/1.json"), incident.to_string()).unwrap();
    let (file, dir) = (file.to_str().unwrap(), directory.to_str().unwrap());
    let commands: &[&[&str]] = &[
        &["diagnose", "-v", "--from", file],
        &["cores", "--all", "--from", file],
        &["zombies", "--all", "--list", "--from", file],
        &["units", "--all", "-v", "--from", file],
        &["fix", "--from", file],
        &["flame", file],
        &["heatmap", file],
        &["monopolies", file],
        &["incidents", "--dir", dir],
        &["incidents", "--dir", dir, "show", "1", "-v"],
    ];
    let run = |args: &[&str], more: &[&str]| {
        let args: Vec<&str> = args.iter().chain(more).copied().collect();
        let out = coroner(&args);
        let what = format!("{name}: {args:?}");
        assert!(matches!(out.status.code(), Some(0..=2)), "{what}: {:?}", out.status);
        must_be_plain(&what, std::str::from_utf8(&out.stderr).unwrap());
        (what, String::from_utf8(out.stdout).unwrap())
    };
    for args in commands {
        let (what, text) = run(args, &[]);
        must_be_plain(&what, &text);
        let (what, mut painted) = run(args, &["--color", "always"]);
        for ours in ["0", "1", "2", "32", "33", "36", "1;31", "1;33"] {
            painted = painted.replace(&format!("\x1b[{ours}m"), "");
        }
        must_be_plain(&what, &painted);
        assert_eq!(painted.lines().count(), text.lines().count(), "{what}");
        let (what, json) = run(args, &["--json"]);
        must_be_plain(&what, &json);
        if !json.is_empty() {
            serde_json::from_str::<Value>(&json).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
    for args in [&["diagnose", "--from", file][..], &["incidents", "--dir", dir, "show", "1"]] {
        let (what, report) = run(args, &["--report", "-"]);
        assert!(report.starts_with("# "), "{what}: {report}");
        // Ours: it keeps @name from being a mention.
        must_be_plain(&what, &report.replace("@\u{200b}", "@"));
        must_be_no_markup(&what, &report);
    }
}

/// Every answer to the page is JSON, and declared as such.
fn every_answer(file: &Path) {
    let mut server = Command::new(CORONER);
    server.arg("view").arg(file).args(["--no-open", "--listen", "127.0.0.1:0"]);
    let mut server = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let ask = |path: &str| -> std::io::Result<String> {
        let mut stream = TcpStream::connect(&address)?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let mut answers = Vec::new();
    for path in
        ["source", "diagnosis", "timeline", "cores", "zombies", "units", "owners", "flame", "heatmap", "incidents"]
    {
        let mut answer = ask(&format!("/api/v1/{path}"));
        while answer.as_ref().is_ok_and(|answer| answer.starts_with("HTTP/1.1 503")) {
            std::thread::sleep(std::time::Duration::from_millis(20));
            answer = ask(&format!("/api/v1/{path}"));
        }
        answers.push((path, answer));
    }
    server.kill().unwrap();
    server.wait().unwrap();
    for (path, answer) in answers {
        let answer = answer.unwrap_or_else(|error| panic!("{path}: {error}"));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let head = head.to_ascii_lowercase();
        assert!(head.contains("\r\ncontent-type: application/json"), "{path}: {head}");
        assert!(head.contains("\r\nx-content-type-options: nosniff"), "{path}: {head}");
        assert!(head.contains("default-src 'none'; script-src 'self'"), "{path}: {head}");
        serde_json::from_str::<Value>(body).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

fn hostile(directory: &Path, from: &Path, name: &str, closed: &[Place]) {
    let path = |what: &str| -> PathBuf { directory.join(what) };
    let (clean, free_text, all_text, no_text) = (path("base"), path("free"), path("all"), path("no-text"));
    base(from, &clean);
    std::fs::copy(&clean, &free_text).unwrap();
    std::fs::copy(&clean, &all_text).unwrap();
    std::fs::copy(&clean, &no_text).unwrap();
    let db = Connection::open(&free_text).unwrap();
    places(&db).iter().filter(|place| !closed.contains(place)).for_each(|place| poison(&db, place));
    drop(db);
    assert_eq!(damaged(&free_text), 0, "{name}");
    every_command(&free_text, name);
    every_answer(&free_text);
    // Every text, also where only certain words are accepted.
    let db = Connection::open(&all_text).unwrap();
    places(&db).iter().for_each(|place| poison(&db, place));
    drop(db);
    every_command(&all_text, name);
    // No text at all.
    let db = Connection::open(&no_text).unwrap();
    for Place { table, column, .. } in places(&db).iter().filter(|place| place.column != "key") {
        let sql = format!(
            "UPDATE OR IGNORE {table} SET {column} = CAST(x'1bff80c228' AS TEXT) WHERE typeof({column}) = 'text'"
        );
        db.execute(&sql, []).unwrap();
    }
    drop(db);
    every_command(&no_text, name);
}

#[test]
fn nothing_in_a_recording_drives_the_terminal_or_becomes_markup() {
    let incident = Path::new(GOLDEN).join("the-incident.coroner");
    let directory = tempfile::tempdir().unwrap();
    let (clean, scratch) = (directory.path().join("clean"), directory.path().join("scratch"));
    base(&incident, &clean);
    let closed = closed(&clean, &scratch);
    for (name, from) in [("the incident", incident.as_path()), ("with stacks", Path::new(STACKS))] {
        let directory = tempfile::tempdir().unwrap();
        hostile(directory.path(), from, name, &closed);
    }
}
