//! Stacks of nodes: from a report to a picture.

use crate::collector::{Collector, head, now_ns, packed, post};
use serde_json::{Value, json};

const WALK: &str =
    "kubelet;runtime.goexit.abi0;os.ReadFile;ksys_read_[k];memcg_stat_show_[k];mem_cgroup_nr_lru_pages_[k]";

/// A node in an image, with samples of the last ten minutes.
fn report(node: &str, image: &str, stacks: &[(&str, u64)]) -> Vec<u8> {
    let (now, all) = (now_ns(), stacks.iter().map(|(_, samples)| samples).sum::<u64>());
    let stacks: Vec<Value> =
        stacks.iter().map(|(stack, samples)| json!({"stack": stack, "samples": samples})).collect();
    packed(&[
        head(node, "s", 1),
        json!({"kind": "node", "host": format!("host-{node}"), "attributes": {"image_id": image}}),
        json!({"kind": "stacks", "from": now - 600_000_000_000, "until": now, "samples": all, "stacks": stacks}),
    ])
}

fn send(collector: &Collector, node: &str, body: &[u8]) -> (u16, String) {
    post(&collector.url(), &collector.token("agent.token"), node, body)
}

#[test]
fn the_difference_between_two_images_is_the_walk() {
    let collector = Collector::start();
    for n in 0..20 {
        let node = format!("n{n}");
        let body = match n < 5 {
            // Ten times the cores of the others, so ten times the samples.
            true => report(&node, "ami-bad", &[("python3;main;step", 40_000), (WALK, 10_000)]),
            false => report(&node, "ami-good", &[("python3;main;step", 4_990), (WALK, 10)]),
        };
        assert_eq!(send(&collector, &node, &body).0, 200);
        // The same batch again counts once.
        assert_eq!(send(&collector, &node, &body).0, 200);
    }
    assert_eq!(collector.rows("SELECT count(*) FROM stacks"), 2, "each text once");
    let found = collector.ask("stacks?where=image_id%3Dami-bad&diff_where=image_id%3Dami-good");
    assert_eq!(found["schema"], "coroner.fleet.stacks/1");
    assert_eq!((&found["a"]["nodes"], &found["a"]["samples"]), (&json!(5), &json!(250_000)));
    assert_eq!((&found["b"]["nodes"], &found["b"]["samples"]), (&json!(15), &json!(75_000)));
    let walk = found["stacks"].as_array().unwrap().iter().find(|stack| stack["stack"] == WALK).unwrap();
    assert_eq!((&walk["a"]["share"], &walk["a"]["nodes"]), (&json!(0.2), &json!(5)));
    assert_eq!((&walk["b"]["share"], &walk["b"]["nodes"]), (&json!(0.002), &json!(15)));
    let differs = found["functions"].as_array().unwrap();
    assert!(differs.iter().any(|one| one["function"] == "mem_cgroup_nr_lru_pages_[k]" && one["share_a"] == 0.2));

    let svg = collector.file("x.svg");
    let asked = ["flame", "--where", "image_id=ami-bad", "--diff-where", "not image_id=ami-bad"];
    let (code, out, err) = collector.command(&[&asked[..], &["-o", svg.to_str().unwrap()]].concat());
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("5 nodes with image_id=ami-bad, 250,000 samples"), "{out}");
    assert!(out.contains("against 15 nodes with not image_id=ami-bad, 75,000 samples"), "{out}");
    assert!(out.contains("20.0 %   0.2 %  mem_cgroup_nr_lru_pages_[k]"), "{out}");
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.contains("5 nodes against 15") && picture.contains("mem_cgroup_nr_lru_pages"), "{picture}");
    let (code, out, _) = collector.command(&[&asked[..], &["--json"]].concat());
    let document: Value = serde_json::from_str(&out).unwrap();
    assert!(code == 0 && document["b"]["nodes"] == 15, "{document}");
    // One side alone; to standard output.
    let (code, out, _) = collector.command(&["flame", "--where", "image_id=ami-bad", "-o", "-"]);
    assert!(code == 0 && out.contains("<svg") && out.contains("Flame graph of 5 nodes"), "{out}");
}

#[test]
fn what_cannot_be_drawn_is_said() {
    let collector = Collector::start();
    let flame = |args: &[&str]| collector.command(&[&["flame", "-o", "/dev/null"], args].concat());
    let (code, _, err) = flame(&[]);
    assert!(code == 2 && err.contains("no node has reported yet"), "{err}");
    for (node, image) in [("n1", "a"), ("n2", "b")] {
        let body = match node {
            "n1" => report(node, image, &[("x;main", 7)]),
            _ => packed(&[head(node, "s", 1), json!({"kind": "node", "attributes": {"image_id": image}})]),
        };
        assert_eq!(send(&collector, node, &body).0, 200);
    }
    for (args, expected) in [
        (&["--where", "image_id=c"][..], "no node with image_id=c, of 2 known"),
        (&["--where", "image_id=b"], "none of 1 nodes with image_id=b sent stacks in the last 60 min"),
        (&["--where", "image_id=a", "--diff-where", "image_id=b"], "image_id=b sent stacks"),
        (&["--where", "image_id=a", "--diff-where", "image_id=a or image_id=b"], "a node is on both sides: n1"),
        (&["--where", "image_id"], "compared with nothing"),
    ] {
        let (code, out, err) = flame(args);
        assert!(code == 2 && err.contains(expected) && out.is_empty(), "{args:?}: {code} {out} {err}");
    }
    let (code, _, err) = collector.command(&["flame"]);
    assert!(code == 2 && err.contains("-o FILE.svg"), "{err}");
}

#[test]
fn hostile_stacks_are_refused_or_harmless() {
    let collector = Collector::start();
    let row = |stacks: Value, samples: Value| {
        let now = now_ns();
        packed(&[
            head("n1", "s", 1),
            json!({"kind": "stacks", "from": now, "until": now, "samples": samples, "stacks": stacks}),
        ])
    };
    let one = |stack: &str, samples: Value| json!([{"stack": stack, "samples": samples}]);
    let million: Vec<Value> = (0..20_000).map(|n| json!({"stack": format!("f{n}"), "samples": 1})).collect();
    for (what, body) in [
        ("a huge text", row(one(&"x".repeat(100_000), json!(1)), json!(1))),
        ("thousands of stacks", row(json!(million), json!(20_000))),
        ("more than all", row(one("x", json!(5)), json!(1))),
        (
            "a sum that overflows",
            row(json!([{"stack": "x", "samples": u64::MAX}, {"stack": "y", "samples": 2}]), json!(u64::MAX)),
        ),
        (
            "of next week",
            packed(&[head("n1", "s", 1), json!({"kind": "stacks", "from": 1, "until": "2100-01-01T00:00:00Z"})]),
        ),
    ] {
        let (status, said) = send(&collector, "k", &body);
        assert_eq!(status, 400, "{what}: {said}");
    }
    assert_eq!(collector.rows("SELECT count(*) FROM nodes"), 0);
    // Not of this version, whoever sent it: the rest of its batch is stored.
    let (status, said) = send(&collector, "k", &row(one("x", json!(-1)), json!(1)));
    assert_eq!((status, collector.rows("SELECT count(*) FROM stack_samples")), (200, 0), "{said}");
    let evil = "\u{1b}[2Jevil\u{202e};<script>alert(1)</script>;]]>\"'&;f\ng_[k]";
    let body = report("n2", "a", &[(evil, 7)]);
    assert_eq!(send(&collector, "k", &body).0, 200);
    for args in [&["flame", "-o", "-"][..], &["flame", "--json"]] {
        let (code, out, err) = collector.command(args);
        assert_eq!(code, 0, "{err}");
        assert!(!out.contains('\u{1b}') && !out.contains('\u{202e}'), "{out:?}");
        assert!(args[1] == "--json" || !out.contains("<script>alert"), "{out:?}");
    }
    let metrics = collector.text("metrics");
    assert!(
        metrics.contains("coroner_fleet_refused_requests_total 5\n")
            && metrics.contains("refused_stacks_total 0\n")
            && metrics.contains("coroner_fleet_unread_rows_total 1\n"),
        "{metrics}"
    );
}
