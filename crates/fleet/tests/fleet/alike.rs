//! Both stores answer alike, whatever is asked, whichever collector is asked, and however often a report came.

use crate::clickhouse::{ClickHouse, Draw, LONG, MINUTE, another, node_bodies, two_collectors};
use crate::collector::{Collector, now_ns, post};
use crate::files::{Fetch, put, report, sha256};
use crate::wait_for;
use serde_json::{Value, json};

const HOUR_S: u64 = 3600;

/// What differs by when a report was received.
fn without_reception(mut document: Value) -> Value {
    match &mut document {
        Value::Object(fields) => {
            for name in ["at", "first_seen", "last_seen"] {
                if fields.get(name).is_some_and(|_| name == "at" || fields.contains_key("is_silent")) {
                    fields.remove(name);
                }
            }
            for value in fields.values_mut() {
                *value = without_reception(value.take());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_reception(item.take())),
        _ => {}
    }
    document
}

/// Where two documents differ first.
fn first_difference(a: &Value, b: &Value, path: &str) -> Option<String> {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => x.keys().chain(y.keys()).find_map(|key| {
            first_difference(
                x.get(key).unwrap_or(&Value::Null),
                y.get(key).unwrap_or(&Value::Null),
                &format!("{path}.{key}"),
            )
        }),
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => {
            x.iter().zip(y).enumerate().find_map(|(at, (x, y))| first_difference(x, y, &format!("{path}[{at}]")))
        }
        _ => (a != b).then(|| format!("{path}: embedded {a}\nClickHouse {b}")),
    }
}

/// Asked at once: answers also tell how long ago something was.
fn compare(embedded: &Collector, collector: &Collector, questions: &[String]) {
    let mut told = Vec::new();
    for question in questions {
        let asked = || [embedded, collector].map(|one| without_reception(one.ask(question)));
        let differ = (0..20).map(|_| asked()).map(|[a, b]| first_difference(&a, &b, "")).take_while(Option::is_some);
        if let Some(Some(differ)) = differ.collect::<Vec<_>>().get(19) {
            told.push(format!("{question}\n{differ}"));
        }
    }
    assert!(told.is_empty(), "{}", told.join("\n\n"));
}

/// Without the columns that tell when reports were received.
fn exported(collector: &Collector, what: &str) -> Vec<String> {
    let text = collector.text(&format!("export?format=csv&what={what}&since={}", 40 * HOUR_S));
    let line = |line: &str| {
        let cells = line.split(',').enumerate().filter(|(at, _)| what != "nodes" || !(4..=5).contains(at));
        cells.map(|(_, cell)| cell).collect::<Vec<_>>().join(",")
    };
    text.lines().map(line).collect()
}

fn compare_exports(embedded: &Collector, collector: &Collector) {
    for what in ["nodes", "minutes", "episodes", "incidents"] {
        let (expected, found) = (exported(embedded, what), exported(collector, what));
        let differs = expected.iter().zip(&found).find(|(a, b)| a != b);
        assert!(expected == found, "{what}: {} and {} lines; {differs:?}", expected.len(), found.len());
        assert!(found.len() > 20, "{what}: {found:?}");
    }
    let minutes = format!("export?format=parquet&what=minutes&where=zone%3Dz1&since={}", 40 * HOUR_S);
    assert!(embedded.bytes(&minutes) == collector.bytes(&minutes));
}

#[test]
#[ignore = "installs ClickHouse's engine from PyPI: ./check fleet"]
fn clickhouse_answers_as_the_embedded_store_does() {
    const NODES: u64 = 20;
    let Some(clickhouse) = ClickHouse::start("") else { return };
    let mut embedded = Collector::start();
    let (first, second) = two_collectors(&clickhouse, &[]);
    // Hours that are not over are rolled up in each quarter, and again with each repeat: all of these are over.
    let hour = 60 * MINUTE;
    let (mut draw, now) = (Draw(2026), now_ns() / hour * hour - 10 * MINUTE);
    let mut nodes: Vec<Vec<Vec<u8>>> = (0..NODES).map(|number| node_bodies(number, now, &mut draw)).collect();
    nodes.iter_mut().for_each(|bodies| bodies.reverse());
    // Nodes in any order among each other, each in its own; to ClickHouse by both collectors, some by both.
    let (mut sent, mut senders) = (0, Vec::new());
    while nodes.iter().any(|bodies| !bodies.is_empty()) {
        let number = draw.below(nodes.len() as u64) as usize;
        let Some(body) = nodes[number].pop() else { continue };
        let (status, said) = post(&embedded.url(), &embedded.token("agent.token"), &format!("key-{number}"), &body);
        assert_eq!(status, 200, "{said}");
        senders.push((number, body));
        sent += 1;
    }
    assert!(sent > 300, "{sent}");
    let token = first.token("agent.token");
    // A node at a time waits for its answer; nodes do not wait for each other.
    let send = |urls_of: &(dyn Fn(usize) -> Vec<String> + Sync)| {
        std::thread::scope(|scope| {
            for number in 0..NODES as usize {
                let own: Vec<&Vec<u8>> = senders.iter().filter(|(of, _)| *of == number).map(|(_, body)| body).collect();
                let token = &token;
                scope.spawn(move || {
                    for (turn, body) in own.into_iter().enumerate() {
                        for url in urls_of(turn) {
                            let (status, said) = post(&url, token, &format!("key-{number}"), body);
                            assert_eq!(status, 200, "{said}");
                        }
                    }
                });
            }
        });
    };
    let (first_url, second_url) = (first.url(), second.url());
    send(&|turn| match turn % 4 {
        0 => vec![first_url.clone()],
        1 => vec![second_url.clone()],
        2 => vec![first_url.clone(), second_url.clone()],
        _ => vec![second_url.clone(), second_url.clone()],
    });
    let (now_s, ago) = (now / 1_000_000_000, |hours: u64| now / 1_000_000_000 - hours * HOUR_S);
    let mut questions = vec![
        "status".to_owned(),
        "nodes".to_owned(),
        "incidents".to_owned(),
        format!("incidents?since={}", 5 * HOUR_S),
        "why".to_owned(),
        "why?condition=zombie-memcgs".to_owned(),
        "why?condition=nic-reset:ena".to_owned(),
        format!("why?condition=zombie-memcgs&since={HOUR_S}"),
        "why?condition=zombies%3E40000".to_owned(),
        "nodes/node-03".to_owned(),
        "nodes/host-04".to_owned(),
        "nodes?where=problem%3Dzombie-memcgs&sort=zombies".to_owned(),
        "map".to_owned(),
        "map?numbers=zombies,busy".to_owned(),
        "history".to_owned(),
        format!("history?from={}&until={}", ago(30), ago(7)),
        "problem?code=zombie-memcgs".to_owned(),
        "problem?code=nic-reset&number=busy".to_owned(),
        format!("problem?code=zombie-memcgs&at={}", ago(9)),
        "next".to_owned(),
        "next?where=zone%3Dz1".to_owned(),
        "nodes/host-05/minutes".to_owned(),
        format!("nodes/node-06/minutes?from={}&until={}", ago(20), ago(3)),
        format!("nodes/node-06/minutes?from={}&until={now_s}", ago(40)),
        format!("stacks?since={}", 4 * HOUR_S),
        format!("stacks?where=image_id%3Dami-bad&diff_where=not%20image_id%3Dami-bad&since={}", 5 * HOUR_S),
        format!("stacks?where=zone%3Dz0&limit=3&since={}", 20 * HOUR_S),
    ];
    questions.extend([1, 2, 5, 11, 17, 23, 29, 35].map(|hours| format!("map?at={}", ago(hours) + 77)));
    compare(&embedded, &first, &questions);
    compare(&embedded, &second, &questions);
    compare_exports(&embedded, &first);
    let status = first.ask("status");
    assert!(status["problems"].as_array().unwrap().len() == 2 && status["nodes"]["known"] == NODES, "{status}");
    assert!(first.ask("incidents")["incidents"].as_array().unwrap().len() > 10);
    assert!(first.ask("nodes/node-03")["history"].as_array().unwrap().len() > 5);
    assert!(first.ask("next")["level"]["median"].as_f64().unwrap() > 1000.0);
    assert!(first.ask(&format!("stacks?since={}", 4 * HOUR_S))["stacks"].as_array().unwrap().len() > 10);
    assert!(first.ask("problem?code=zombie-memcgs")["per_hour"].as_array().unwrap().iter().any(Value::is_number));
    let (code, out, err) = first.command(&["flame", "--where", "image_id=ami-bad", "--since", "4h", "-o", "-"]);
    assert!(code == 0 && out.contains("<svg"), "{err}");
    // A collector that knows nothing of them stores all of them again. Merged or not, it is the same.
    let third = another(&clickhouse, &first, &[]);
    let url = third.url();
    send(&|_| vec![url.clone()]);
    compare(&embedded, &third, &questions);
    compare_exports(&embedded, &third);
    for table in [
        "reports",
        "nodes",
        "boots",
        "minutes",
        "latest_minutes",
        "hours",
        "stack_samples",
        "stack_texts",
        "diagnosed",
        "observed",
        "problems",
        "incidents",
    ] {
        clickhouse.ask(&format!("OPTIMIZE TABLE {table} FINAL"));
    }
    compare(&embedded, &second, &questions);
    // Where minutes are no longer kept, hours are.
    let keep = ["--keep-minutes", "20h"];
    let fourth = another(&clickhouse, &first, &keep);
    embedded.restart_with(&keep);
    let hours: Vec<String> = [21, 26, 33].iter().map(|hours| format!("map?at={}", ago(*hours) + 99)).collect();
    assert_eq!(fourth.ask(&hours[0])["numbers_of"], "hour");
    assert!(fourth.ask(&hours[0])["numbers"]["zombies"].as_array().unwrap().iter().any(Value::is_number));
    compare(&embedded, &fourth, &hours);
}

#[test]
#[ignore = "installs ClickHouse's engine from PyPI: ./check fleet"]
fn a_recording_is_asked_for_at_one_collector_and_sent_to_another() {
    let Some(clickhouse) = ClickHouse::start("") else { return };
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("files");
    let (asked, mut other) = two_collectors(&clickhouse, &["--files", files.to_str().unwrap()]);
    let token = asked.token("agent.token");
    let bytes: Vec<u8> = (0..700_000_u32).map(|n| (n / 7) as u8).collect();
    let sum = sha256(&bytes);
    const PIECE: usize = 256 << 10;
    let send = |collector: &Collector, number: u64, offset: usize| {
        let end = bytes.len().min(offset + PIECE);
        let query = format!("{number}/file?node=n1&size={}&sha256={sum}&offset={offset}", bytes.len());
        put(collector, &token, "key-1", &query, &bytes[offset..end])
    };
    let mut sequence = 1;
    let mut wanted = |collector: &Collector, number: u64| {
        wait_for("the wish to arrive", LONG, || {
            sequence += 1;
            let wanted = report(collector, sequence)["wanted"].clone();
            (wanted == json!([{"incident": number}])).then_some(()).ok_or(wanted.to_string())
        });
    };
    report(&other, 1);
    assert_eq!(send(&other, 7, 0).0, 404, "nobody asked for it");
    let fetch = |number: u64, name: &str| {
        let output = dir.path().join(name);
        let arguments = [&format!("host-1/{number}"), "-o", output.to_str().unwrap(), "--timeout", "120s"];
        (Fetch::start(&asked, &arguments), output)
    };
    let (fetching, output) = fetch(7, "x.coroner");
    wanted(&other, 7);
    assert_eq!(put(&other, &token, "key of another", "7/file?node=n1&unsent=gone", &[]).0, 403);
    assert_eq!(send(&other, 7, 0).0, 200);
    let progress = asked.ask("nodes/n1/incidents/7/fetch");
    assert_eq!((&progress["state"], &progress["of"]), (&json!("receiving"), &json!(bytes.len())), "{progress}");
    // A balancer sends the next piece elsewhere: it comes again, until it gets to the one that has the first.
    assert_eq!(send(&asked, 7, PIECE).0, 429);
    assert_eq!(send(&other, 7, PIECE).0, 200);
    assert_eq!(send(&other, 7, 2 * PIECE).0, 200);
    let (code, _, err) = fetching.ended();
    assert_eq!(code, 0, "{err}");
    assert!(std::fs::read(&output).unwrap() == bytes);

    let (fetching, _) = fetch(8, "y.coroner");
    wanted(&other, 8);
    assert_eq!(put(&other, &token, "key-1", "8/file?node=n1&unsent=refused", &[]).0, 200);
    let (code, _, err) = fetching.ended();
    assert!(code == 2 && err.contains("report.files = false"), "{err}");

    // The one that takes it dies: another begins anew.
    let (fetching, output) = fetch(8, "z.coroner");
    wanted(&other, 8);
    assert_eq!(send(&other, 8, 0).0, 200);
    other.kill();
    wait_for("another to take it", LONG, || match send(&asked, 8, PIECE) {
        (409, said) if said.contains("\"offset\":0") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    for offset in [0, PIECE, 2 * PIECE] {
        let (status, said) = send(&asked, 8, offset);
        assert_eq!(status, 200, "{said}");
    }
    let (code, _, err) = fetching.ended();
    assert_eq!(code, 0, "{err}");
    assert!(std::fs::read(&output).unwrap() == bytes);
    // The other finds it, too, without asking the node.
    other.restart();
    assert_eq!(other.ask("nodes/n1/incidents/8/fetch")["state"], "stored");
}
