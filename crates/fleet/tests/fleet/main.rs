//! The collector as a program: what it refuses, what it keeps when it is killed, and real recorders that report to it.

mod alike;
mod clickhouse;
mod collector;
mod export;
mod files;
mod recorders;
mod s3;
mod stacks;

use collector::{Collector, head, minute, packed, post};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
fn hostile_reports_are_refused_and_counted_and_touch_nothing() {
    let collector = Collector::start();
    let (url, token) = (collector.url(), collector.token("agent.token"));
    let good = packed(&[head("n1", "s", 1), minute(0)]);
    assert_eq!(post(&url, &token, "key-1", &good).0, 200);

    let (status, said) = post(&url, "wrong-token-of-somebody", "key-1", &good);
    assert!(status == 401 && said.contains("agent token"), "{status} {said}");
    let (status, said) = post(&url, &token, "another-key", &packed(&[head("n1", "s", 2), minute(1)]));
    assert!(status == 403 && said.contains("another key"), "{status} {said}");
    let labels: serde_json::Map<String, Value> = (0..10_000).map(|n| (format!("l{n}"), json!("x"))).collect();
    let bad: [(&str, Vec<u8>, u16); 6] = [
        ("not zstd", b"hello".to_vec(), 400),
        ("a zip bomb", zstd::encode_all(&vec![b' '; 64 << 20][..], 3).unwrap(), 400),
        ("labels without end", packed(&[head("n2", "s", 1), json!({"kind": "node", "labels": labels})]), 400),
        ("invalid UTF-8", zstd::encode_all(&b"{\"kind\":\"batch\",\"node\":\"\xff\xfe\"}\n"[..], 3).unwrap(), 400),
        (
            "the year 2100",
            packed(&[head("n2", "s", 1), json!({"kind": "minute", "minute": "2100-01-01T00:00:00Z"})]),
            400,
        ),
        ("too large", vec![7; 1200 << 10], 413),
    ];
    for (what, body, expected) in bad {
        let (status, said) = post(&url, &token, "key-2", &body);
        // A client that is still sending may find the connection closed.
        assert!(status == expected || expected == 413 && status == 0, "{what}: {status} {said}");
    }
    let status = collector.ask("status");
    assert_eq!(status["nodes"]["known"], 1, "{status}");
    let metrics = collector.text("metrics");
    assert!(metrics.contains("coroner_fleet_refused_requests_total 6\n"), "{metrics}");
    assert!(metrics.contains("coroner_fleet_unauthorised_requests_total 2\n"), "{metrics}");
    assert_eq!(collector.rows("SELECT count(*) FROM minutes"), 1);
}

#[test]
fn people_need_their_own_token_and_get_clear_errors() {
    let collector = Collector::start();
    let run = |args: &[&str]| collector.command(args);
    let (code, out, _) = run(&["status"]);
    assert!(code == 0 && out.contains("No node has reported yet"), "{out}");
    let node = json!({"kind": "node", "host": "one", "attributes": {"zone": "a"}});
    let sent = post(&collector.url(), &collector.token("agent.token"), "k", &packed(&[head("n1", "s", 1), node]));
    assert_eq!(sent.0, 200, "{}", sent.1);
    let agents = collector.file("agent.token");
    let (code, _, err) = collector.command_with_token(&["status"], &agents);
    assert!(code == 2 && err.contains("token"), "the agents' token reads nothing: {err}");
    for (args, why) in [
        (&["nodes", "--where", "zone"][..], "compared with nothing"),
        (&["show", "../../etc/passwd"], "no node or host"),
        (&["why", "zombies>many"], "a number"),
        (&["nodes", "--sort", "colour"], "no node has an attribute 'colour'"),
        (&["nodes", "--where", "zon=a"], "no node has a field 'zon'"),
        (&["next", "--where", "zon=a"], "no node has a field 'zon'"),
        (&["export", "--format", "csv", "--where", "zon=a"], "no node has a field 'zon'"),
    ] {
        let (code, out, err) = run(args);
        assert!(code == 2 && err.contains(why), "{args:?}: {code} {out} {err}");
    }
    assert_eq!(run(&["why", "not silent"]).0, 0);
}

#[test]
fn names_cannot_fool_a_terminal() {
    let collector = Collector::start();
    let node = json!({"kind": "node", "host": "evil\u{1b}[2J\u{202e}", "attributes": {"zone": "\u{1b}]0;x\u{7}"}});
    let problem = json!({"key": "a\u{1b}[1m", "code": "a\u{1b}[1m", "subject_kind": "node", "subject": "x", "severity": "critical",
        "certainty": null, "title": "<script>\u{1b}[31m", "began_real_ns": null, "ended_real_ns": null});
    let now = collector::now_ns();
    let diagnosis = json!({"kind": "diagnosis", "boot_id": "b", "from_real_ns": now - 1_000_000_000, "until_real_ns": now,
        "diagnoses": 1, "conclusion": "cause found\u{1b}", "problems": [problem]});
    let sent =
        post(&collector.url(), &collector.token("agent.token"), "k", &packed(&[head("n1", "s", 1), node, diagnosis]));
    assert_eq!(sent.0, 200, "{}", sent.1);
    let host = collector.ask("nodes")["nodes"][0]["host"].as_str().unwrap().to_owned();
    for args in [&["status"][..], &["nodes"], &["show", &host], &["why"], &["incidents"]] {
        let (code, out, err) = collector.command(args);
        assert_eq!(code, 0, "{err}");
        assert!(!out.contains('\u{1b}') && !out.contains('\u{7}') && !out.contains('\u{202e}'), "{args:?}: {out:?}");
    }
}

/// Killed at any moment, it has everything that it acknowledged, and nothing twice.
#[test]
#[ignore = "kills a collector a hundred times: ./check fleet"]
fn kill_9_loses_nothing_that_was_acknowledged() {
    let mut collector = Collector::start();
    let token = collector.token("agent.token");
    let (stop, so_far) = (AtomicBool::new(false), AtomicU64::new(0));
    let acknowledged = std::thread::scope(|scope| {
        let url = collector.url();
        let sender = scope.spawn(|| {
            let (mut sequence, url) = (1, url);
            while !stop.load(Ordering::Relaxed) {
                // As a node does: the same batch until it is acknowledged.
                if post(&url, &token, "k", &packed(&[head("n1", "s", sequence), minute(sequence)])).0 == 200 {
                    sequence += 1;
                    so_far.store(sequence, Ordering::Relaxed);
                }
            }
            sequence - 1
        });
        for kill in 0..100u64 {
            // On a busy machine it would be killed again and again before it got to work.
            let before = so_far.load(Ordering::Relaxed);
            let until = Instant::now() + Duration::from_secs(30);
            while so_far.load(Ordering::Relaxed) == before && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(kill * 37 % 60));
            collector.kill();
            collector.restart();
        }
        stop.store(true, Ordering::Relaxed);
        sender.join().unwrap()
    });
    assert!(acknowledged >= 100, "only {acknowledged} batches between a hundred kills");
    let stored = collector.rows("SELECT count(*) FROM minutes");
    let sequence = collector.rows("SELECT sequence FROM streams");
    // One may be stored without its acknowledgement having arrived.
    assert!(
        (acknowledged..=acknowledged + 1).contains(&(stored as u64)),
        "{acknowledged} acknowledged, {stored} stored"
    );
    assert_eq!(stored, sequence);
    assert_eq!(collector.rows("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'"), 0);
}

/// Waits until `condition` holds.
fn wait_for(what: &str, longest: Duration, mut condition: impl FnMut() -> Result<(), String>) {
    let until = Instant::now() + longest;
    loop {
        match condition() {
            Ok(()) => return,
            Err(state) if Instant::now() >= until => panic!("not within {longest:?}: {what}: {state}"),
            Err(_) => std::thread::sleep(Duration::from_millis(500)),
        }
    }
}
