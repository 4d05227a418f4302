//! Recordings of incidents, from real recorders and from a node that this test plays.

use crate::collector::{Collector, PROGRAM, head, now_ns, packed, post};
use crate::recorders::{Recorder, is_root};
use crate::wait_for;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// The same in each report.
fn incident(number: u64) -> Value {
    static TRIGGERED: OnceLock<u64> = OnceLock::new();
    let triggered = TRIGGERED.get_or_init(now_ns);
    json!({"kind": "incident", "schema": "coroner.incident/1", "number": number, "code": "mark", "subject": "node", "core": null,
        "text": "x", "triggered_real_ns": triggered, "from_real_ns": 1, "until_real_ns": 9, "state": "complete", "repeats": 0, "error": null})
}

/// Ended when it is dropped.
pub struct Fetch(Option<Child>);

impl Fetch {
    pub fn start(collector: &Collector, arguments: &[&str]) -> Fetch {
        let mut command = Command::new(PROGRAM);
        command
            .arg("fetch")
            .args(arguments)
            .args(["--at", &collector.url(), "--token-file"])
            .arg(collector.file("user.token"));
        Fetch(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
    }

    pub fn ended(mut self) -> (i32, String, String) {
        let Output { status, stdout, stderr } = self.0.take().unwrap().wait_with_output().unwrap();
        (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The n-th report of a node; what the collector answers.
pub fn report(collector: &Collector, sequence: u64) -> Value {
    let lines = [head("n1", "s", sequence), json!({"kind": "node", "host": "host-1"}), incident(7), incident(8)];
    let (status, said) = post(&collector.url(), &collector.token("agent.token"), "key-1", &packed(&lines));
    assert_eq!(status, 200, "{said}");
    serde_json::from_str(&said).unwrap()
}

pub fn put(collector: &Collector, token: &str, key: &str, query: &str, bytes: &[u8]) -> (u16, String) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let request = agent.put(format!("{}/api/v1/incidents/{query}", collector.url()));
    let request = request.header("Authorization", format!("Bearer {token}")).header("Coroner-Node-Key", key);
    let mut response = request.send(bytes).unwrap();
    (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
}

pub fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_node_is_told_what_is_wanted_and_sends_it() {
    let mut collector = Collector::start();
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("x.coroner");
    assert_eq!(report(&collector, 1).get("wanted"), None, "nothing is wanted");
    let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n / 7) as u8).collect();
    let sha256 = sha256(&bytes);
    let query = |offset: usize| format!("7/file?node=n1&size={}&sha256={sha256}&offset={offset}", bytes.len());
    let send = |collector: &Collector, offset: usize| {
        let end = bytes.len().min(offset + (200 << 10));
        put(collector, &collector.token("agent.token"), "key-1", &query(offset), &bytes[offset..end])
    };
    assert_eq!(send(&collector, 0).0, 404, "nobody asked for it");

    let fetch = Fetch::start(&collector, &["host-1/7", "--json", "-o", output.to_str().unwrap()]);
    let mut sequence = 1;
    let mut told = |collector: &Collector| {
        sequence += 1;
        report(collector, sequence)["wanted"].clone()
    };
    wait_for("the wish to arrive", MINUTE, || match told(&collector) {
        wanted if wanted == json!([{"incident": 7}]) => Ok(()),
        other => Err(other.to_string()),
    });
    for (token, key, status) in
        [("wrong-token-of-somebody", "key-1", 401), (collector.token("agent.token").as_str(), "key of another", 403)]
    {
        assert_eq!(put(&collector, token, key, &query(0), b"evil").0, status);
    }
    let (status, said) = send(&collector, 0);
    assert!(status == 200 && said.contains(&format!("{}", 200 << 10)), "{status} {said}");
    // The collector is killed; who waits asks again, and the node goes on where it was.
    collector.kill();
    collector.restart();
    wait_for("the rest to be taken", MINUTE, || match send(&collector, 0) {
        (409, said) if said.contains(&format!("{}", 200 << 10)) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(send(&collector, 200 << 10).0, 200);
    let (code, out, err) = fetch.ended();
    assert_eq!(code, 0, "{err}");
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&document["id"], &document["sha256"]), (&json!("n1/7"), &json!(sha256)), "{document}");
    assert!(std::fs::read(&output).unwrap() == bytes);
    let again = Fetch::start(&collector, &["n1/7", "-o", output.to_str().unwrap()]).ended();
    assert!(again.0 == 2 && again.2.contains("never overwritten"), "{again:?}");
    assert_eq!(told(&collector), Value::Null, "it is wanted no longer");

    for (unsent, why) in [("refused", "report.files = false"), ("gone", "no longer has this recording")] {
        let other = dir.path().join("y.coroner");
        let fetch = Fetch::start(&collector, &["n1/8", "-o", other.to_str().unwrap()]);
        wait_for("the second wish", MINUTE, || match told(&collector) {
            wanted if wanted == json!([{"incident": 8}]) => Ok(()),
            other => Err(other.to_string()),
        });
        let query = format!("8/file?node=n1&unsent={unsent}");
        assert_eq!(put(&collector, &collector.token("agent.token"), "key-1", &query, &[]).0, 200);
        let (code, out, err) = fetch.ended();
        assert!(code == 2 && out.is_empty() && err.contains(why), "{code} {out} {err}");
        assert!(!other.exists());
    }
    let listed = collector.command(&["incidents"]);
    assert!(listed.1.contains("n1/7") && listed.1.contains("n1/8"), "{listed:?}");
    assert_eq!(collector.ask("incidents")["incidents"][0]["id"].as_str().map(|id| &id[..3]), Some("n1/"));
}

#[test]
fn a_fetch_that_cannot_succeed_says_so() {
    let collector = Collector::start();
    report(&collector, 1);
    let run = |arguments: &[&str]| Fetch::start(&collector, arguments).ended();
    for (arguments, why) in [
        (&["n1/99"][..], "no incident 99"),
        (&["n2/7"], "no node or host n2"),
        (&["n1"], "expected NODE/NUMBER"),
        (&["n1/7", "--timeout", "1s"], "did not answer within 1 s"),
        (&["n1/7", "-o", "/nonexistent/x.coroner"], "there is no directory /nonexistent"),
        (&["n1/7", "-o", "/tmp"], "is a directory"),
    ] {
        let (code, out, err) = run(arguments);
        assert!(code == 2 && out.is_empty() && err.contains(why), "{arguments:?}: {code} {out} {err}");
    }
    // It last reported an hour ago.
    let db = rusqlite::Connection::open(collector.file("fleet.db")).unwrap();
    db.execute("UPDATE nodes SET last_seen = last_seen - 3600", []).unwrap();
    let (code, _, err) = run(&["n1/8"]);
    assert!(code == 2 && err.contains("n1 is silent") && err.contains("60 min"), "{err}");
}

fn coroner(arguments: &[&str]) -> Output {
    Command::new(Path::new(PROGRAM).with_file_name("coroner")).args(arguments).output().unwrap()
}

#[test]
#[ignore = "two recorders for some minutes, as root: ./check fleet"]
fn a_recording_of_a_real_recorder_is_fetched_and_another_one_refused() {
    if !is_root() {
        return;
    }
    let collector = Collector::start();
    let sections = "[incidents]\nbefore = \"20s\"\nafter = \"5s\"\n";
    let willing = Recorder::start_with(&collector, 1, sections, &[]);
    let unwilling = Recorder::start_with(&collector, 2, sections, &["--report-no-files"]);
    wait_for("two nodes", 3 * MINUTE, || {
        let nodes = collector.ask("status")["nodes"].clone();
        (nodes["known"] == 2).then_some(()).ok_or(nodes.to_string())
    });
    for recorder in [&willing, &unwilling] {
        let state = recorder.dir.path().join("state");
        let marked = coroner(&["mark", "for the fleet", "--dir", state.to_str().unwrap()]);
        assert!(marked.status.success(), "{marked:?}");
    }
    // On a busy machine other incidents may begin, too.
    let marks = || -> Vec<Value> {
        let incidents = collector.ask("incidents")["incidents"].clone();
        incidents.as_array().unwrap().iter().filter(|found| found["incident"]["code"] == "mark").cloned().collect()
    };
    wait_for("both marks", 3 * MINUTE, || {
        let found = marks();
        (found.len() == 2).then_some(()).ok_or(format!("{found:?}"))
    });
    let id_of = |node: &str| {
        let found = marks().into_iter().find(|found| found["node"] == node).unwrap();
        (found["id"].as_str().unwrap().to_owned(), found["incident"]["number"].as_u64().unwrap())
    };
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("x.coroner");
    let name = output.to_str().unwrap();
    let (id, number) = id_of("node-1");
    let (code, out, err) = Fetch::start(&collector, &[&id, "-o", name, "--timeout", "5m"]).ended();
    assert!(code == 0 && out.contains("coroner diagnose --from"), "{code} {out} {err}");
    let original = willing.dir.path().join(format!("state/incidents/{number}.coroner"));
    assert!(std::fs::read(&output).unwrap() == std::fs::read(&original).unwrap());
    let diagnosed = coroner(&["diagnose", "--json", "--from", name]);
    let document: Value = serde_json::from_slice(&diagnosed.stdout).unwrap();
    assert_eq!(document["schema"], "coroner.diagnosis/1", "{diagnosed:?}");

    let refused = dir.path().join("y.coroner");
    let (code, out, err) =
        Fetch::start(&collector, &[&id_of("node-2").0, "-o", refused.to_str().unwrap(), "--timeout", "5m"]).ended();
    assert!(code == 2 && out.is_empty() && err.contains("report.files = false"), "{code} {out} {err}");
    assert!(!refused.exists());

    // Gone from both: it cannot be had any more.
    std::fs::remove_file(original).unwrap();
    std::fs::remove_dir_all(collector.file("files")).unwrap();
    std::fs::create_dir(collector.file("files")).unwrap();
    let (code, _, err) = Fetch::start(&collector, &[&id, "-o", refused.to_str().unwrap(), "--timeout", "5m"]).ended();
    assert!(code == 2 && err.contains("no longer has this recording"), "{code} {err}");
}
