use super::*;
use coroner_report::{Problem, StackSamples};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;

const STORED: (&str, &str) = ("200 OK", "{\"batches\":1}");
const REFUSED: (&str, &str) = ("400 Bad Request", "{\"error\":\"bad\"}");
const AWAY: (&str, &str) = ("503 Service Unavailable", "{\"error\":\"away\"}");

/// Answers each request with the next of these; returns their bodies.
fn collector(answers: Vec<(&'static str, &'static str)>) -> (String, JoinHandle<Vec<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let run = move || {
        let answer = |(status, said): (&str, &str)| {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let (mut line, mut length) = (String::new(), 0);
            while stream.read_line(&mut line).unwrap() > 2 {
                if let Some(("content-length", value)) = line.to_lowercase().trim().split_once(": ") {
                    length = value.parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", said.len());
            stream.get_mut().write_all((head + said).as_bytes()).unwrap();
            body
        };
        answers.into_iter().map(answer).collect()
    };
    (url, std::thread::spawn(run))
}

fn reporter(directory: &Path, to: &str) -> Reporter {
    let link = Link::new(&ReportConfig::default(), to, "key".to_owned()).unwrap();
    Reporter {
        node: "node".to_owned(),
        boot_id: "boot".to_owned(),
        every: Duration::from_secs(60),
        cluster: None,
        labels: Default::default(),
        spool: Spool::open(&directory.join("spool"), 64 << 20).unwrap(),
        files: Files::new(directory, "node".to_owned(), false, link.clone()),
        sender: Sender::new(link),
        unsealed: Vec::new(),
        identity: None,
        identified: None,
        directory: directory.to_owned(),
        problems: Vec::new(),
        lost: Arc::default(),
        own: ReportStatus::default(),
        complained: None,
        spool_trouble: None,
        unreadable: 0,
    }
}

fn minute(n: u64) -> ReportRow {
    ReportRow::Minute(Minute { minute: Wall(n * 1_000_000_000), ..Minute::default() })
}

fn diagnosis(problems: usize) -> ReportRow {
    ReportRow::Diagnosis(Concluded { problems: vec![Problem::default(); problems], ..Concluded::default() })
}

fn stacks(length: usize) -> ReportRow {
    let stacks = vec![StackSamples { stack: "x".repeat(length), samples: 1 }];
    ReportRow::Stacks(HeaviestStacks { stacks, ..HeaviestStacks::default() })
}

fn incident(number: u64) -> ReportRow {
    let text = r#"{"schema":"coroner.incident/1","number":3,"code":"mark","subject":"node","core":null,"text":"x",
        "triggered_real_ns":5,"from_real_ns":1,"until_real_ns":9,"state":"open","repeats":0,"error":null}"#;
    let incident: Incident = serde_json::from_str(text).unwrap();
    ReportRow::Incident(Box::new(Incident { number, ..incident }))
}

/// Of each batch.
fn batches(body: &[u8]) -> Vec<Vec<ReportRow>> {
    let mut batches = Vec::new();
    for line in zstd::decode_all(body).unwrap().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice(line).unwrap() {
            ReportRow::Batch(_) => batches.push(Vec::new()),
            row => batches.last_mut().unwrap().push(row),
        }
    }
    batches
}

fn file(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("spool/{number:016}.zst"))
}

#[test]
fn an_unreadable_batch_stops_no_other_and_is_given_up_after_some_tries() {
    let dir = tempfile::tempdir().unwrap();
    let (to, collector) = collector(vec![STORED; 3]);
    let mut reporter = reporter(dir.path(), &to);
    for n in 1..=9 {
        reporter.unsealed.push(minute(n));
        reporter.seal();
    }
    for n in [3, 4, 7] {
        std::fs::remove_file(file(dir.path(), n)).unwrap();
    }
    std::fs::create_dir(file(dir.path(), 7)).unwrap();
    assert_eq!(reporter.send(), BETWEEN);
    assert_eq!(reporter.send(), BETWEEN, "two are gone for good");
    assert!(reporter.complained.as_ref().is_some_and(|told| told.contains("2 batches")), "{:?}", reporter.complained);
    assert_eq!(reporter.send(), BETWEEN);
    let pauses: Vec<_> = (0..MOST_READS).map(|_| reporter.send()).collect();
    assert!(pauses[..5].iter().all(|pause| *pause == READ_AGAIN_AFTER) && pauses[5] == BETWEEN, "{pauses:?}");
    assert_eq!(reporter.send(), BETWEEN);
    assert_eq!((reporter.spool.batches(), reporter.spool.dropped().minutes), (0, 3));
    let sent: Vec<_> = collector.join().unwrap().iter().flat_map(|body| batches(body)).flatten().collect();
    assert_eq!(sent, [1, 2, 5, 6, 8, 9].map(minute));
}

#[test]
fn nothing_is_given_up_while_no_batch_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut reporter = reporter(dir.path(), "http://127.0.0.1:1");
    for n in 1..=3 {
        reporter.unsealed.push(incident(n));
        reporter.seal();
        std::fs::remove_file(file(dir.path(), n)).unwrap();
        std::fs::create_dir(file(dir.path(), n)).unwrap();
    }
    for _ in 0..3 * MOST_READS {
        assert_eq!(reporter.send(), READ_AGAIN_AFTER);
    }
    assert_eq!((reporter.spool.batches(), reporter.spool.dropped().total()), (3, 0));
}

#[test]
fn what_waited_for_days_goes_in_batches_that_a_collector_takes() {
    let dir = tempfile::tempdir().unwrap();
    let mut reporter = reporter(dir.path(), "http://127.0.0.1:1");
    let mut rows: Vec<_> = (0..250).map(minute).collect();
    rows.extend((0..70).map(|_| diagnosis(40)));
    rows.extend((0..30).map(|_| stacks(200_000)));
    rows.push(incident(1));
    reporter.unsealed = rows.clone();
    reporter.seal();
    assert!(reporter.unsealed.is_empty() && reporter.spool.batches() > 8);
    let mut sealed = Vec::new();
    while let Some((body, 1)) = reporter.spool.oldest(0).unwrap() {
        let text = zstd::decode_all(&body[..]).unwrap();
        let [batch] = &batches(&body)[..] else { panic!("one batch") };
        let problems = |row: &ReportRow| match row {
            ReportRow::Diagnosis(concluded) => concluded.problems.len(),
            _ => 0,
        };
        assert!(batch.len() <= MOST_ROWS && text.len() < MOST_UNPACKED + 1000, "{} in {}", batch.len(), text.len());
        assert!(batch.iter().map(problems).sum::<usize>() <= MOST_PROBLEMS);
        sealed.extend(batch.clone());
        reporter.spool.remove(1).unwrap();
    }
    assert!(sealed == rows, "all, once and in order: {} of {}", sealed.len(), rows.len());
}

#[test]
fn what_was_sealed_before_an_error_is_not_sealed_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut reporter = reporter(dir.path(), "http://127.0.0.1:1");
    // The second batch cannot be written.
    let part = dir.path().join("spool/0000000000000002.part");
    std::fs::create_dir(&part).unwrap();
    reporter.unsealed = (0..250).map(minute).collect();
    reporter.seal();
    assert_eq!((reporter.spool.batches(), reporter.unsealed.len()), (1, 150));
    assert!(reporter.spool_trouble.as_ref().is_some_and(|told| told.contains("kept in memory")));
    reporter.seal();
    assert_eq!((reporter.unsealed.len(), reporter.spool_trouble.take()), (0, None));
    let (body, _) = reporter.spool.oldest(1 << 20).unwrap().unwrap();
    assert!(batches(&body).concat() == (0..250).map(minute).collect::<Vec<_>>());
}

#[test]
fn memory_keeps_incidents_longest() {
    let dir = tempfile::tempdir().unwrap();
    let mut reporter = reporter(dir.path(), "http://127.0.0.1:1");
    for n in 0..600 {
        for row in [incident(n), stacks(10), diagnosis(1), minute(n)] {
            reporter.take(row);
        }
    }
    let left = |reporter: &Reporter| {
        [0, 1, 3].map(|rank| reporter.unsealed.iter().filter(|row| importance(row) == rank).count())
    };
    assert_eq!(left(&reporter), [800, 600, 600]);
    for n in 600..2000 {
        reporter.take(incident(n));
    }
    assert_eq!(left(&reporter), [0, 0, 2000]);
    let dropped = *reporter.spool.dropped();
    assert_eq!((dropped.minutes + dropped.stacks, dropped.diagnoses, dropped.incidents), (1200, 600, 0));
    assert_eq!(reporter.unsealed.last(), Some(&incident(1999)));
}

#[test]
fn requests_get_smaller_while_they_fail() {
    let dir = tempfile::tempdir().unwrap();
    let (to, collector) = collector([vec![AWAY; 8], vec![STORED; 2]].concat());
    let mut reporter = reporter(dir.path(), &to);
    for n in 0..2000 {
        reporter.unsealed.push(minute(n));
        if n % 2 == 0 {
            reporter.seal();
        }
    }
    for _ in 0..10 {
        reporter.send();
    }
    let sizes: Vec<usize> = collector.join().unwrap().iter().map(Vec::len).collect();
    assert!(sizes[0] > 100_000 && sizes[8] <= 1024 && sizes[9] > 100_000, "{sizes:?}");
    assert!(sizes[..8].is_sorted_by(|a, b| a > b), "{sizes:?}");
}

#[test]
fn an_empty_key_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("node.key"), "").unwrap();
    let key = node_key(dir.path()).unwrap();
    assert!(key.len() > 30 && node_key(dir.path()).unwrap() == key);
}

#[test]
fn what_the_node_is_is_told_first_and_again_if_it_may_be_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (to, collector) = collector(vec![STORED, REFUSED, STORED]);
    let mut reporter = reporter(dir.path(), &to);
    let identity = NodeIdentity { host: Some("a".to_owned()), ..NodeIdentity::default() };
    reporter.take(minute(1));
    reporter.take(ReportRow::Node(identity.clone()));
    reporter.take(ReportRow::Node(identity.clone()));
    for n in 2..=4 {
        reporter.seal();
        reporter.send();
        reporter.take(minute(n));
    }
    let sent: Vec<_> = collector.join().unwrap().iter().map(|body| batches(body).concat()).collect();
    let hosts = |rows: &Vec<ReportRow>| {
        let host = |row: &ReportRow| matches!(row, ReportRow::Node(node) if node.host == identity.host);
        rows.iter().map(host).collect::<Vec<bool>>()
    };
    assert_eq!(sent.iter().map(hosts).collect::<Vec<_>>(), [vec![true, false], vec![false], vec![true, false]]);
    // After an hour as well.
    reporter.identified = Instant::now().checked_sub(IDENTITY_AGAIN_AFTER);
    reporter.seal();
    let (body, _) = reporter.spool.oldest(1 << 20).unwrap().unwrap();
    assert_eq!(hosts(&batches(&body).concat()), [true, false]);
}

#[test]
fn agents_outlive_a_restart_of_the_recorder_but_not_a_boot() {
    let dir = tempfile::tempdir().unwrap();
    let of = |boot: &str, attributes: &[(&str, &str)]| NodeIdentity {
        boot_id: Some(boot.to_owned()),
        attributes: attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        ..NodeIdentity::default()
    };
    let started = || of("b1", &[("kernel", "6.2")]);
    assert_eq!(known_identity(dir.path(), started()), started());
    let whole = of("b1", &[("kernel", "6.1"), ("agent:amazon-ecs", "image")]);
    reporter(dir.path(), "http://127.0.0.1:1").take(ReportRow::Node(whole));
    let known = known_identity(dir.path(), started());
    assert_eq!((known.attributes["kernel"].as_str(), known.attributes["agent:amazon-ecs"].as_str()), ("6.2", "image"));
    assert_eq!(known_identity(dir.path(), of("b2", &[])), of("b2", &[]));
    std::fs::write(dir.path().join(IDENTITY), "{").unwrap();
    assert_eq!(known_identity(dir.path(), started()), started());
}
