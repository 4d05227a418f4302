//! Exports, read back by others: Python's csv and pyarrow, from PyPI in a venv under target/.

use crate::collector::{Collector, head, now_ns, packed, post, skipped};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

const EVIL: &str = "=cmd|' /C calc'!A0, \"quoted\"\nand more";

/// The programs of a venv under target/ with a package from PyPI; `None` without Python, which is told.
pub fn venv(name: &str, package: &str) -> Option<PathBuf> {
    let run = |program: &Path, arguments: &[&str]| {
        Command::new(program).args(arguments).status().is_ok_and(|status| status.success())
    };
    let python3 = Path::new("python3");
    if !run(python3, &["-c", "import venv"]) {
        skipped(&format!("{package} (needs python3 with venv)"));
        return None;
    }
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let python = venv.join("bin/python");
    assert!(python.exists() || run(python3, &["-m", "venv", venv.to_str().unwrap()]), "no venv in {}", venv.display());
    assert!(run(&python, &["-m", "pip", "install", "--quiet", package]), "{package} could not be installed");
    Some(venv.join("bin"))
}

fn fill(collector: &Collector) -> u64 {
    let began = now_ns() / 60_000_000_000;
    let minute = |n: u64, nodes: u64| json!({"kind": "minute", "minute": (began - n) * 60_000_000_000, "cores": 2, "zombies_dead": n + nodes, "busy_mean": 0.125});
    for node in 0..3_u64 {
        let identity = json!({"kind": "node", "host": if node == 0 { EVIL.to_owned() } else { format!("host-{node}") },
            "attributes": {"zone": (["a", "b", "b"][node as usize]), "node": "collides"}});
        let problem = json!({"key": "a:b", "code": "a", "subject_kind": "node", "subject": "x", "severity": "critical",
            "certainty": null, "title": EVIL, "began_real_ns": null, "ended_real_ns": null});
        let diagnosis = json!({"kind": "diagnosis", "boot_id": "b", "from_real_ns": now_ns() - 1_000_000_000,
            "until_real_ns": now_ns(), "diagnoses": 1, "conclusion": "cause found", "problems": [problem]});
        let incident = json!({"kind": "incident", "schema": "coroner.incident/1", "number": 7, "code": "mark", "subject": "node", "core": null,
            "text": "x", "triggered_real_ns": now_ns(), "from_real_ns": 1, "until_real_ns": 9, "state": "complete", "repeats": 0, "error": null});
        let mut lines = vec![head(&format!("n{node}"), "s", 1), identity, diagnosis, incident];
        // More than one page for one of them.
        lines.extend((0..if node == 1 { 5000 } else { 10 }).map(|n| minute(n, node)));
        let sent = post(&collector.url(), &collector.token("agent.token"), &format!("k{node}"), &packed(&lines));
        assert_eq!(sent.0, 200, "{}", sent.1);
    }
    began
}

const READER: &str = r#"
import csv, json, sys
import pyarrow.parquet as parquet
path = sys.argv[1]
if path.endswith(".csv"):
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, strict=True))
    types = {}
else:
    table = parquet.read_table(path)
    types = {field.name: str(field.type) for field in table.schema}
    rows = table.to_pylist()
print(json.dumps({"rows": rows, "types": types}, default=lambda value: value.isoformat()))
"#;

#[test]
#[ignore = "fleet tier: installs pyarrow from PyPI: ./check fleet"]
fn exports_are_read_back_by_other_programs() {
    let Some(python) = venv("pyarrow-venv", "pyarrow>=15").map(|bin| bin.join("python")) else { return };
    let collector = Collector::start();
    let began = fill(&collector);
    let dir = tempfile::tempdir().unwrap();
    let export = |what: &str, format: &str, more: &[&str]| -> Value {
        let file = dir.path().join(format!("{what}.{format}"));
        let name = file.to_str().unwrap();
        let (code, out, err) =
            collector.command(&[&["export", "--what", what, "--format", format, "-o", name, "--json"], more].concat());
        assert_eq!(code, 0, "{err}");
        let told: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(told["bytes"], std::fs::metadata(&file).unwrap().len(), "{told}");
        let read = Command::new(&python).args(["-c", READER, name]).output().unwrap();
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        serde_json::from_slice(&read.stdout).unwrap()
    };
    let minutes = export("minutes", "parquet", &[]);
    assert_eq!(minutes["rows"].as_array().unwrap().len(), 5020);
    assert_eq!(minutes["types"]["minute"], "timestamp[ms, tz=UTC]");
    assert_eq!((&minutes["types"]["zombies"], &minutes["types"]["busy"]), (&json!("int64"), &json!("double")));
    let of_one: Vec<&Value> = minutes["rows"].as_array().unwrap().iter().filter(|row| row["node"] == "n1").collect();
    assert_eq!(of_one.len(), 5000);
    // Oldest first, each once.
    let counts: Vec<i64> = of_one.iter().map(|row| row["zombies"].as_i64().unwrap()).collect();
    assert_eq!(counts, (1..=5000).rev().collect::<Vec<_>>());
    assert_eq!((&of_one[0]["busy"], &of_one[0]["restarts"]), (&json!(0.125), &Value::Null));

    let csv = export("minutes", "csv", &["--where", "zone=b", "--since", "2h"]);
    let rows = csv["rows"].as_array().unwrap();
    // Minutes of the last two hours; the clock went on since they were made.
    assert!((110..=131).contains(&rows.len()), "{} rows", rows.len());
    let newest = rows.iter().find(|row| row["node"] == "n2" && row["zombies"] == "2").unwrap();
    let at = coroner_report::Wall(began * 60_000_000_000).to_string();
    assert_eq!(
        (newest["minute"].as_str(), newest["busy"].as_str(), newest["restarts"].as_str()),
        (Some(at.as_str()), Some("0.125"), Some(""))
    );

    for format in ["csv", "parquet"] {
        let nodes = export("nodes", format, &[]);
        let evil = nodes["rows"].as_array().unwrap().iter().find(|row| row["node"] == "n0").unwrap();
        let host = EVIL.replace('\n', "\u{fffd}");
        let quoted = if format == "csv" { format!("'{host}") } else { host };
        assert_eq!(evil["host"], quoted.as_str());
        assert_eq!(
            (&evil["zone"], &evil["attribute:node"], &evil["worst_problem"]),
            (&json!("a"), &json!("collides"), &json!("a"))
        );
        let episodes = export("episodes", format, &[]);
        assert_eq!(episodes["rows"].as_array().unwrap().len(), 3);
        assert_eq!(episodes["rows"][0]["title"], quoted.as_str());
        let incidents = export("incidents", format, &[]);
        assert!(incidents["rows"].as_array().unwrap().iter().all(|row| row["number"] == "7" || row["number"] == 7));
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 8, "nothing but the files: {left:?}");
}

#[test]
fn an_export_goes_to_stdout_or_says_why_not() {
    let collector = Collector::start();
    fill(&collector);
    let (code, out, _) = collector.command(&["export", "--format", "csv", "--what", "nodes"]);
    assert!(code == 0 && out.starts_with("node,host,") && out.matches("\r\n").count() == 4, "{out}");
    let (code, out, _) = collector.command(&["export", "--format", "csv"]);
    assert!(code == 0 && out.matches("\r\n").count() == 5021, "{}", out.len());
    let agents = collector.file("agent.token");
    let refused = [
        (collector.command(&["export", "--format", "parquet"]), "-o FILE"),
        (collector.command(&["export", "--format", "csv", "--json"]), "-o FILE"),
        (collector.command(&["export", "--format", "csv", "--where", "zone"]), "compared with nothing"),
        (collector.command_with_token(&["export", "--format", "csv"], &agents), "user token"),
    ];
    for ((code, out, err), why) in refused {
        assert!(code == 2 && out.is_empty() && err.contains(why), "{why}: {code} {out} {err}");
    }
}

#[test]
fn forecasts_are_asked_for() {
    let collector = Collector::start();
    fill(&collector);
    let (code, out, err) = collector.command(&["next", "--where", "zone=b"]);
    assert!(code == 0 && out.contains("what hurts is not known") && out.contains("2 nodes: 0 growing"), "{out}{err}");
    let next = collector.ask("next");
    assert_eq!(
        (&next["schema"], &next["nodes"]["asked"], &next["level"]),
        (&json!("coroner.fleet.next/1"), &json!(3), &Value::Null)
    );
}
