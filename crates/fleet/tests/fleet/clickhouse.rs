//! Collectors on ClickHouse: its real engine, from PyPI, behind the part of its HTTP interface that clients use (front.py).

use crate::collector::{Collector, PROGRAM, directory, head, now_ns, packed, post, skipped};
use crate::wait_for;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub const MINUTE: u64 = 60_000_000_000;
pub const LONG: Duration = Duration::from_secs(120);

/// A Python with the engine; `None`, and said, if it cannot be had.
fn python() -> Option<&'static Path> {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = PYTHON.get_or_init(|| {
        let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chdb-venv");
        let python = venv.join("bin/python");
        let run = |program: &Path, arguments: &[&str]| match Command::new(program).args(arguments).output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Err(error.to_string()),
        };
        let has_engine = || run(&python, &["-c", "import chdb, lz4.block"]);
        if has_engine().is_err() {
            run(Path::new("python3"), &["-m", "venv", venv.to_str().unwrap()])?;
            run(&python, &["-m", "pip", "install", "--quiet", "chdb>=4.4", "lz4"])?;
            has_engine()?;
        }
        Ok(python)
    });
    match found {
        Ok(python) => Some(python),
        Err(why) => {
            eprintln!("skipped: the engine of ClickHouse cannot be had: {why}");
            skipped("collectors on ClickHouse (needs python3 with venv, and chdb from PyPI)");
            None
        }
    }
}

pub struct ClickHouse {
    dir: tempfile::TempDir,
    child: Child,
    port: u16,
    password: &'static str,
}

impl ClickHouse {
    pub fn start(password: &'static str) -> Option<ClickHouse> {
        let dir = directory();
        let (child, port) = front(python()?, dir.path(), 0, password);
        Some(ClickHouse { dir, child, port, password })
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// With the same data, at the same port.
    fn restart(&mut self) {
        (self.child, self.port) = front(python().unwrap(), self.dir.path(), self.port, self.password);
    }

    pub fn store(&self) -> String {
        format!("clickhouse://127.0.0.1:{}/fleet?insert_every=50ms", self.port)
    }

    pub fn ask(&self, query: &str) -> String {
        let mut response = ureq::post(format!("http://127.0.0.1:{}/?database=fleet", self.port)).send(query).unwrap();
        response.body_mut().read_to_string().unwrap().trim().to_owned()
    }

    pub fn count(&self, query: &str) -> u64 {
        self.ask(query).parse().unwrap()
    }
}

impl Drop for ClickHouse {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns when it listens. It ends with its standard input, also when the test is killed.
fn front(python: &Path, dir: &Path, port: u16, password: &str) -> (Child, u16) {
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fleet/front.py"));
    command.args(["--port", &port.to_string(), "--password", password, "--dir"]).arg(dir.join("data"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.split(' ').nth(1).and_then(|port| port.parse().ok());
    (child, port.unwrap_or_else(|| panic!("no ClickHouse: {line:?}")))
}

/// Two collectors on one store share their tokens, as behind a balancer.
pub fn two_collectors(clickhouse: &ClickHouse, more: &[&str]) -> (Collector, Collector) {
    let first = Collector::with(&[&["--store", &clickhouse.store()], more].concat());
    let second = another(clickhouse, &first, more);
    (first, second)
}

/// One more collector on the same store.
pub fn another(clickhouse: &ClickHouse, first: &Collector, more: &[&str]) -> Collector {
    let (agent, user) = (first.file("agent.token"), first.file("user.token"));
    let tokens = ["--agent-token-file", agent.to_str().unwrap(), "--user-token-file", user.to_str().unwrap()];
    let second = Collector::with(&[&["--store", &clickhouse.store()], &tokens[..], more].concat());
    for token in ["agent.token", "user.token"] {
        std::fs::copy(first.file(token), second.file(token)).unwrap();
    }
    second
}

fn http_status(url: &str) -> u16 {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    agent.get(url).call().map_or(0, |response| response.status().as_u16())
}

/// Numbers that look random and are the same each time.
pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

fn at(mut head: Value, sealed: u64, boot: &str) -> Value {
    head["sealed"] = sealed.into();
    head["boot_id"] = boot.into();
    head
}

fn problem(key: &str, severity: &str, title: &str, began: Option<u64>, ended: Option<u64>) -> Value {
    json!({"key": key, "code": key.split(':').next(), "subject_kind": "node", "subject": "x", "severity": severity,
        "certainty": null, "title": title, "began_real_ns": began, "ended_real_ns": ended})
}

/// The bodies of one node's day and a half, in the order in which it sends them: two boots, problems that come and go, incidents, some
/// batches twice.
pub fn node_bodies(number: u64, now: u64, draw: &mut Draw) -> Vec<Vec<u8>> {
    let (node, is_bad) = (format!("node-{number:02}"), number.is_multiple_of(3));
    let mut bodies = Vec::new();
    let mut sequence = 0;
    let begin = now - 36 * 60 * MINUTE;
    let reboot = begin + (12 * 60 + draw.below(60)) * MINUTE;
    let mut at_minute = begin;
    for (boot, until) in [("first", reboot), ("second", now)] {
        let booted = if boot == "first" { begin - 9 * 60 * MINUTE } else { reboot };
        let identity = json!({"kind": "node", "host": format!("host-{number:02}"), "boot_id": boot, "booted": booted,
            "cluster": "c", "labels": {"rack": (number % 4).to_string()},
            "attributes": {"image_id": if is_bad { "ami-bad" } else { "ami-good" }, "boot": boot, "zone": format!("z{}", number % 2)}});
        let mut lines = vec![identity];
        let mut diagnosed = at_minute;
        while at_minute < until {
            at_minute += 10 * MINUTE;
            let dead = draw.below(90_000);
            lines.push(json!({"kind": "minute", "minute": at_minute, "cores": 4, "busy_mean": draw.below(1000) as f64 / 1000.0,
                "zombies_dead": if draw.below(5) == 0 { None } else { Some(dead) }, "cpu_stall_us": draw.below(9_000_000),
                "by_core": [{"core": 0, "busy": 0.5, "system": 0.5, "saturated_s": draw.below(60) as f64}]}));
            if draw.below(2) == 0 {
                // Sometimes the node was not looked at in between.
                let from = if draw.below(8) == 0 { at_minute - MINUTE } else { diagnosed };
                let mut problems = Vec::new();
                if is_bad && draw.below(4) > 0 {
                    let ended = (draw.below(6) == 0).then_some(at_minute - 2 * MINUTE);
                    let severity = ["warning", "critical"][draw.below(2) as usize];
                    problems.push(problem("zombie-memcgs:kubelet", severity, &format!("{dead} dead"), None, ended));
                }
                if draw.below(6) == 0 {
                    problems.push(problem(
                        "nic-reset:ena",
                        "info",
                        "reset",
                        Some(at_minute - draw.below(9) * MINUTE),
                        None,
                    ));
                }
                let conclusion = if problems.is_empty() { "nothing wrong" } else { "cause found" };
                lines.push(
                    json!({"kind": "diagnosis", "boot_id": boot, "from_real_ns": from, "until_real_ns": at_minute,
                    "diagnoses": 1, "conclusion": conclusion, "problems": problems}),
                );
                diagnosed = at_minute;
            }
            if at_minute + 180 * MINUTE > now {
                let stacks: Vec<Value> = (0..1 + draw.below(6))
                    .map(|_| json!({"stack": format!("a;main;f{}", draw.below(12)), "samples": 1 + draw.below(50)}))
                    .collect();
                lines.push(json!({"kind": "stacks", "from": at_minute - 10 * MINUTE, "until": at_minute, "samples": 400, "stacks": stacks}));
            }
            if draw.below(40) == 0 {
                for state in ["open", "complete"] {
                    lines.push(json!({"kind": "incident", "schema": "coroner.incident/1", "number": sequence + 1, "code": "nic-reset",
                        "key": "nic-reset:ena", "subject": "ena", "core": null, "text": "TX queue 0", "triggered_real_ns": at_minute,
                        "from_real_ns": at_minute, "until_real_ns": at_minute + 1, "state": state, "repeats": 0, "error": null}));
                }
            }
            if draw.below(10) == 0 || at_minute >= until {
                sequence += 1;
                let head = at(head(&node, "s", sequence), at_minute, boot);
                let body = packed(&[vec![head], std::mem::take(&mut lines)].concat());
                bodies.extend((0..1 + u64::from(draw.below(5) == 0)).map(|_| body.clone()));
            }
        }
    }
    bodies
}

#[test]
#[ignore = "installs ClickHouse's engine from PyPI: ./check fleet"]
fn two_collectors_lose_nothing_and_store_nothing_twice() {
    const NODES: u64 = 12;
    let Some(mut clickhouse) = ClickHouse::start("") else { return };
    let (first, mut second) = two_collectors(&clickhouse, &[]);
    let token = first.token("agent.token");
    let urls = [first.url(), second.url()];
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let now = now_ns() / MINUTE;
    let told: Vec<u64> = std::thread::scope(|scope| {
        let send = |node: u64| {
            let (urls, token, stop, acknowledged) = (&urls, &token, &stop, &acknowledged);
            scope.spawn(move || {
                let mut sequence = 0;
                while !stop.load(Ordering::Relaxed) {
                    sequence += 1;
                    let minute = json!({"kind": "minute", "minute": (now - 3000 + sequence) * MINUTE, "zombies_dead": sequence});
                    let diagnosis = json!({"kind": "diagnosis", "boot_id": "b", "from_real_ns": (now - 3001 + sequence) * MINUTE,
                        "until_real_ns": (now - 3000 + sequence) * MINUTE, "diagnoses": 1, "conclusion": "cause found",
                        "problems": [problem("a:b", "warning", "t", None, None)]});
                    let mut head = at(head(&format!("n{node}"), "s", sequence), (now - 3000 + sequence) * MINUTE, "b");
                    head["dropped"] = json!({"minutes": 1});
                    let body = packed(&[head, minute, diagnosis]);
                    // To one or the other until it is acknowledged, and now and then once more to both.
                    let mut turn = sequence + node;
                    while post(&urls[turn as usize % 2], token, &format!("k{node}"), &body).0 != 200 {
                        turn += 1;
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                    if sequence.is_multiple_of(3) {
                        urls.iter().for_each(|url| drop(post(url, token, &format!("k{node}"), &body)));
                    }
                }
                sequence
            })
        };
        let senders: Vec<_> = (0..NODES).map(send).collect();
        let progress = |more: u64| {
            let goal = acknowledged.load(Ordering::Relaxed) + more;
            wait_for("more acknowledgements", LONG, || match acknowledged.load(Ordering::Relaxed) {
                so_far if so_far >= goal => Ok(()),
                so_far => Err(format!("{so_far} of {goal}")),
            });
        };
        progress(50);
        for kill in 0..6 {
            std::thread::sleep(Duration::from_millis(kill * 37 % 100));
            second.kill();
            second.restart();
            progress(20);
        }
        // Killed while it inserts, too.
        clickhouse.kill();
        std::thread::sleep(Duration::from_secs(3));
        clickhouse.restart();
        progress(50);
        stop.store(true, Ordering::Relaxed);
        senders.into_iter().map(|sender| sender.join().unwrap()).collect()
    });
    let total: u64 = told.iter().sum();
    assert_eq!(clickhouse.count("SELECT count() FROM minutes FINAL"), total);
    assert_eq!(
        clickhouse.count("SELECT sum(zombies_dead) FROM minutes FINAL"),
        told.iter().map(|n| n * (n + 1) / 2).sum::<u64>()
    );
    assert!(clickhouse.count("SELECT count() FROM minutes") >= total);
    assert_eq!(clickhouse.count("SELECT max(version) FROM schema_version"), 1);
    let status = first.ask("status");
    assert_eq!((&status["nodes"]["known"], &status["nodes"]["sick"]), (&json!(NODES), &json!(NODES)), "{status}");
    assert_eq!(status["dropped_rows"], NODES, "of each node's latest batch: {status}");
    let node = second.ask("nodes/n5");
    assert_eq!(node["history"].as_array().unwrap().len(), 1, "one problem without a gap: {node}");
    assert_eq!(node["node"]["numbers"]["zombies"], told[5] as f64);
}

#[test]
#[ignore = "installs ClickHouse's engine from PyPI: ./check fleet"]
fn without_clickhouse_nothing_is_acknowledged_and_it_recovers_by_itself() {
    let Some(mut clickhouse) = ClickHouse::start("") else { return };
    let store = clickhouse.store();
    let collector = Collector::with(&["--store", &store]);
    let (url, token) = (collector.url(), collector.token("agent.token"));
    let began = now_ns();
    let report = |url: &str, token: &str, sequence: u64| {
        let minute = json!({"kind": "minute", "minute": began - sequence * MINUTE});
        post(url, token, "k", &packed(&[head("n1", "s", sequence), minute]))
    };
    let ready = format!("{url}/readyz");
    assert_eq!((report(&url, &token, 1).0, http_status(&ready)), (200, 200));
    clickhouse.kill();
    let (status, said) = report(&url, &token, 2);
    assert!(status == 503 && said.contains("the store failed: "), "{status} {said}");
    assert_eq!(http_status(&ready), 503);
    let (code, _, err) = collector.command(&["status"]);
    assert!(code == 2 && err.contains("the store could not be read"), "{err}");
    // One that starts meanwhile waits for it.
    let late = Collector::with(&["--store", &store]);
    assert_eq!(report(&late.url(), &late.token("agent.token"), 1).0, 503);
    clickhouse.restart();
    for collector in [&collector, &late] {
        let ready = format!("{}/readyz", collector.url());
        wait_for("recovery", LONG, || (http_status(&ready) == 200).then_some(()).ok_or("not ready".to_owned()));
    }
    assert_eq!(report(&url, &token, 2).0, 200);
    let (status, said) = report(&late.url(), &late.token("agent.token"), 3);
    assert_eq!(status, 200, "{said}");
    assert_eq!(clickhouse.count("SELECT count() FROM minutes FINAL"), 3);
    // Another key cannot speak for the node, whichever collector it asks.
    for collector in [&collector, &late] {
        let forged = packed(&[head("n1", "evil", 1), json!({"kind": "minute", "minute": now_ns()})]);
        let (status, said) = post(&collector.url(), &collector.token("agent.token"), "another-key", &forged);
        assert!(status == 403 && said.contains("another key"), "{status} {said}");
    }
    assert_eq!(clickhouse.count("SELECT count() FROM minutes FINAL"), 3);
}

#[test]
#[ignore = "installs ClickHouse's engine from PyPI: ./check fleet"]
fn what_was_received_is_inserted_before_a_collector_ends() {
    let Some(clickhouse) = ClickHouse::start("") else { return };
    // Inserts are so far apart that the second waits when the collector is told to end.
    let store = clickhouse.store().replace("50ms", "8s");
    let mut collector = Collector::with(&["--store", &store]);
    let (url, token) = (collector.url(), collector.token("agent.token"));
    let report = |sequence: u64| packed(&[head("n1", "s", sequence), json!({"kind": "minute", "minute": now_ns()})]);
    assert_eq!(post(&url, &token, "k", &report(1)).0, 200);
    let waiting = std::thread::spawn(move || post(&url, &token, "k", &report(2)));
    wait_for("the second report", LONG, || {
        let metrics = collector.text("metrics");
        metrics.contains("coroner_fleet_requests_total 2\n").then_some(()).ok_or(metrics)
    });
    collector.terminate();
    let (status, said) = waiting.join().unwrap();
    let stored = clickhouse.count("SELECT max(tupleElement(last, 2)) FROM reports");
    assert_eq!((status, stored), (200, 2), "{said}");
}

#[test]
#[ignore = "installs ClickHouse's engine from PyPI: ./check fleet"]
fn the_schema_is_made_once_and_retention_follows_the_options() {
    let Some(clickhouse) = ClickHouse::start("a secret") else { return };
    let dir = directory();
    let password = dir.path().join("password");
    std::fs::write(&password, "a secret\n").unwrap();
    let store = clickhouse.store();
    let serve = |store: &str, more: &[&str]| {
        let own = directory();
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "--listen", "127.0.0.1:0", "--store", store, "--dir"]).arg(own.path()).args(more);
        let output = command.output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let refused = serve(&store, &[]);
    assert!(refused.contains("Authentication failed") && !refused.contains("a secret"), "{refused}");

    let file = password.to_str().unwrap();
    let ask = |query: &str| {
        let url = format!("http://127.0.0.1:{}/?database=fleet&password=a%20secret", clickhouse.port);
        ureq::post(url).send(query).unwrap().body_mut().read_to_string().unwrap()
    };
    let engine = |table: &str| {
        ask(&format!("SELECT engine_full FROM system.tables WHERE database = 'fleet' AND name = '{table}'"))
    };
    for (keep, seconds) in [("7d", 604_800), ("7d", 604_800), ("2d", 172_800)] {
        let collector = Collector::with(&["--store", &store, "--store-password-file", file, "--keep-minutes", keep]);
        assert_eq!(collector.ask("status")["nodes"]["known"], 0);
        let minutes = engine("minutes");
        assert!(
            minutes.contains(&format!(
                "PARTITION BY toDate(minute) ORDER BY (node, minute) TTL minute + toIntervalSecond({seconds})"
            )),
            "{minutes}"
        );
        assert!(engine("observed").contains("TTL quarter + toIntervalSecond(34560000)"));
        assert!(engine("hours").contains("TTL hour + toIntervalSecond(7776000)"));
        assert_eq!(ask("SELECT count() FROM schema_version FINAL"), "1\n");
    }
    // What is older than that is not kept. The hours of the others are over.
    let collector = Collector::with(&["--store", &store, "--store-password-file", file, "--keep-minutes", "2d"]);
    let days = |days: u64| json!({"kind": "minute", "minute": now_ns() - (days * 1440 + 90) * MINUTE});
    let lines = [&[head("n1", "s", 1)][..], &(0..300).map(days).collect::<Vec<_>>()].concat();
    assert_eq!(post(&collector.url(), &collector.token("agent.token"), "k", &packed(&lines)).0, 200);
    assert_eq!(ask("SELECT count() FROM minutes FINAL"), "2\n");
    drop(collector);
    // Hours are kept for longer, and then they go.
    let keep = ["--store", &store, "--store-password-file", file, "--keep-minutes", "2d"];
    for (keep_hours, left) in [("90d", "2\n"), ("1d", "1\n")] {
        drop(Collector::with(&[&keep[..], &["--keep-hours", keep_hours]].concat()));
        wait_for("hours to expire", LONG, || {
            ask("OPTIMIZE TABLE hours FINAL");
            let hours = ask("SELECT count() FROM hours FINAL");
            (hours == left).then_some(()).ok_or(hours)
        });
    }

    ask("INSERT INTO schema_version (version) VALUES (99)");
    let newer = serve(&store, &["--store-password-file", file]);
    assert!(newer.contains("version 99"), "{newer}");
}
