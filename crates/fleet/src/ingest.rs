//! From the body of a request to batches. Everything that a node sends is bounded here, before it costs anything.

use coroner_report::batch::{LONGEST_NAME, SCHEMA};
use coroner_report::stacks::{DEEPEST_STACK, LONGEST_STACK, MOST_STACKS};
use coroner_report::{BatchHead, Concluded, HeaviestStacks, Incident, Minute, NodeIdentity, ReportRow, Wall};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

/// Of a request, compressed. Nodes send 128 KiB at most.
pub const MOST_BYTES: usize = 1 << 20;
/// Of a request, once unpacked.
const MOST_UNPACKED: u64 = 8 << 20;
/// 2^N bytes of memory for unpacking.
const MOST_WINDOW_LOG: u32 = 23;
const LONGEST_LINE: u64 = 1 << 20;
const MOST_ATTRIBUTES: usize = 256;
const LONGEST_TEXT: usize = 1024;
const MOST_PROBLEMS: usize = 100;
/// Of all diagnoses of a batch: each is compared with those of its node that came before.
const MOST_PROBLEMS_AT_ONCE: usize = 2000;
/// Of a request; a node that was away sends some thousand.
const MOST_ROWS: u64 = 20_000;
/// An incident lists up to twenty others.
const LONGEST_INCIDENT: usize = 64 << 10;
/// Of one row of stacks, for each second: 512 cores at the highest rate.
const MOST_SAMPLES_A_SECOND: u64 = 512 * 1000;
/// Before the first version of coroner: a clock that was never set.
const EARLIEST: Wall = Wall(1_577_836_800_000_000_000);
/// A node's clock may be wrong; a row of next week would stay the newest for a week.
const MOST_AHEAD: Duration = Duration::from_secs(24 * 3600);

/// What one node said since its last batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    pub head: BatchHead,
    pub node: Option<NodeIdentity>,
    pub minutes: Vec<Minute>,
    pub diagnoses: Vec<Concluded>,
    pub incidents: Vec<Incident>,
    pub stacks: Vec<HeaviestStacks>,
    /// Rows that this version does not know or cannot read.
    pub unknown: u64,
}

impl Batch {
    pub fn rows(&self) -> u64 {
        let rows = self.minutes.len() + self.diagnoses.len() + self.incidents.len() + usize::from(self.node.is_some());
        rows as u64
    }
}

/// Why a request was refused; the same request will be refused again.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Refused {
    /// The node is newer than this collector: it keeps what it has until the collector is upgraded.
    pub fn is_newer(&self) -> bool {
        self.0.contains(NEWER)
    }
}

const NEWER: &str = "is newer than this collector";

fn refused<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(why.into()))
}

/// All batches of a body, a row of zstd frames of JSON lines.
pub fn parse(body: &[u8], now: Wall) -> Result<Vec<Batch>, Refused> {
    let mut decoder = zstd::Decoder::new(body).map_err(|error| Refused(format!("not zstd: {error}")))?;
    decoder.window_log_max(MOST_WINDOW_LOG).map_err(|error| Refused(error.to_string()))?;
    let mut text = BufReader::new(decoder.take(MOST_UNPACKED + 1));
    let (mut batches, mut line, mut number, mut unpacked) = (Vec::<Batch>::new(), Vec::new(), 0u64, 0u64);
    loop {
        line.clear();
        let read = (&mut text).take(LONGEST_LINE + 1).read_until(b'\n', &mut line);
        let read = read.map_err(|error| Refused(format!("after line {number}: {error}")))? as u64;
        if read == 0 {
            let problems = |batch: &Batch| batch.diagnoses.iter().map(|one| one.problems.len()).sum::<usize>();
            return match batches.iter().map(problems).max() {
                None => refused("no batch in it"),
                Some(most) if most > MOST_PROBLEMS_AT_ONCE => {
                    refused(format!("{most} problems in one batch; at most {MOST_PROBLEMS_AT_ONCE} are taken"))
                }
                Some(_) => Ok(batches),
            };
        }
        number += 1;
        unpacked += read;
        if read > LONGEST_LINE || unpacked > MOST_UNPACKED {
            return refused(format!(
                "line {number}: more than {} MiB unpacked, or a line above 1 MiB",
                MOST_UNPACKED >> 20
            ));
        }
        if number > MOST_ROWS {
            return refused(format!("more than {MOST_ROWS} rows"));
        }
        take(&mut batches, &line, now).map_err(|Refused(why)| Refused(format!("line {number}: {why}")))?;
    }
}

fn take(batches: &mut Vec<Batch>, line: &[u8], now: Wall) -> Result<(), Refused> {
    // Names the field and the place; the text of a hostile node is not repeated.
    let row: ReportRow = match (serde_json::from_slice(line), batches.last_mut()) {
        (Ok(row), _) => row,
        // Of another version: the other rows are good.
        (Err(error), Some(batch)) if error.is_data() && !is_head(line) => {
            batch.unknown += 1;
            return Ok(());
        }
        (Err(error), _) => return refused(printable(&error.to_string())),
    };
    if let ReportRow::Batch(head) = row {
        check_head(&head, now)?;
        if batches.first().is_some_and(|first| first.head.node != head.node) {
            return refused("batches of several nodes in one request");
        }
        batches.push(Batch {
            head,
            node: None,
            minutes: Vec::new(),
            diagnoses: Vec::new(),
            incidents: Vec::new(),
            stacks: Vec::new(),
            unknown: 0,
        });
        return Ok(());
    }
    let Some(batch) = batches.last_mut() else { return refused("a row before the head of its batch") };
    let latest = now + MOST_AHEAD;
    match row {
        ReportRow::Batch(_) => {}
        ReportRow::Node(node) => batch.node = Some(checked_node(node)?),
        ReportRow::Minute(minute) if minute.minute > latest => return refused(future("a minute", minute.minute)),
        ReportRow::Minute(minute) => batch.minutes.push(minute),
        ReportRow::Diagnosis(concluded) if concluded.from < EARLIEST => batch.unknown += 1,
        ReportRow::Diagnosis(mut concluded) => {
            if concluded.until > latest {
                return refused(future("a diagnosis", concluded.until));
            }
            if concluded.problems.len() > MOST_PROBLEMS {
                return refused(format!("{} problems; at most {MOST_PROBLEMS} are taken", concluded.problems.len()));
            }
            check_text("a diagnosis", &concluded.boot_id, LONGEST_NAME)?;
            check_text("a diagnosis", &concluded.conclusion, LONGEST_TEXT)?;
            for problem in &concluded.problems {
                check_text("a problem", problem.certainty.as_deref().unwrap_or_default(), LONGEST_NAME)?;
                let texts = [
                    &problem.key,
                    &problem.code,
                    &problem.subject_kind,
                    &problem.subject,
                    &problem.severity,
                    &problem.title,
                ];
                texts.into_iter().try_for_each(|text| check_text("a problem", text, LONGEST_TEXT))?;
            }
            // A clock that goes ahead and is set back must not end what is found later.
            concluded.from = concluded.from.min(now);
            concluded.until = concluded.until.min(now);
            batch.diagnoses.push(concluded);
        }
        ReportRow::Incident(incident) => {
            if incident.triggered > latest {
                return refused(future("an incident", incident.triggered));
            }
            if line.len() > LONGEST_INCIDENT {
                return refused(format!(
                    "an incident of {} KiB; at most {} are taken",
                    line.len() >> 10,
                    LONGEST_INCIDENT >> 10
                ));
            }
            for text in [&incident.code, &incident.subject, &incident.text] {
                check_text("an incident", text, 4 * LONGEST_TEXT)?;
            }
            batch.incidents.push(*incident);
        }
        ReportRow::Stacks(stacks) if stacks.until > latest => return refused(future("stacks", stacks.until)),
        // The clock was set back meanwhile.
        ReportRow::Stacks(stacks) if stacks.from > stacks.until => batch.unknown += 1,
        ReportRow::Stacks(stacks) => batch.stacks.push(checked_stacks(stacks)?),
        ReportRow::Unknown => batch.unknown += 1,
    }
    Ok(())
}

fn is_head(line: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Kind {
        kind: String,
    }
    serde_json::from_slice(line).is_ok_and(|Kind { kind }| kind == "batch")
}

fn future(what: &str, at: Wall) -> String {
    format!("{what} of {at}, which is more than a day ahead: check the node's clock")
}

fn check_head(head: &BatchHead, now: Wall) -> Result<(), Refused> {
    let major = |schema: &str| schema.rsplit_once('/').map(|(name, version)| (name.to_owned(), version.to_owned()));
    if major(&head.schema) != major(SCHEMA) {
        let version = |schema: &str| schema.strip_prefix("coroner.report/")?.parse::<u32>().ok();
        return match (version(&head.schema), version(SCHEMA)) {
            (Some(theirs), Some(ours)) if theirs > ours => refused(format!("{} {NEWER}", printable(&head.schema))),
            _ => refused(format!("the schema is {}; expected {SCHEMA}", printable(&head.schema))),
        };
    }
    for (what, name) in [("node", &head.node), ("stream", &head.stream)] {
        if name.is_empty() {
            return refused(format!("no {what}"));
        }
    }
    for name in [&head.node, &head.stream, &head.boot_id, &head.version] {
        check_text("the head", name, LONGEST_NAME)?;
    }
    if head.sequence == 0 || head.sequence > i64::MAX as u64 {
        return refused("the sequence is not between 1 and 2^63");
    }
    if head.sealed > now + MOST_AHEAD {
        return refused(future("a batch", head.sealed));
    }
    Ok(())
}

/// What is stored has a bounded length; what is shown is made plain where it is shown.
fn check_text(what: &str, text: &str, longest: usize) -> Result<(), Refused> {
    if text.len() > longest {
        return refused(format!("{what}: a text of {} bytes; at most {longest} are taken", text.len()));
    }
    Ok(())
}

fn checked_node(mut node: NodeIdentity) -> Result<NodeIdentity, Refused> {
    let names = [&node.host, &node.machine_id, &node.boot_id, &node.cluster];
    names.into_iter().flatten().try_for_each(|name| check_text("the node", name, LONGEST_NAME))?;
    for (what, map) in [("attributes", &mut node.attributes), ("labels", &mut node.labels)] {
        if map.len() > MOST_ATTRIBUTES {
            return refused(format!("the node has {} {what}; at most {MOST_ATTRIBUTES} are taken", map.len()));
        }
        map.iter().flat_map(|(name, value)| [name, value]).try_for_each(|text| check_text(what, text, LONGEST_NAME))?;
        *map = std::mem::take(map).into_iter().map(|(name, value)| (printable(&name), printable(&value))).collect();
    }
    node.host = node.host.map(|host| printable(&host));
    node.cluster = node.cluster.map(|cluster| printable(&cluster));
    Ok(node)
}

/// Control characters, and marks that reorder text or hide in it.
pub fn fools(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// One line of plain text, of a bounded length.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if fools(c) { '\u{fffd}' } else { c }).take(300).collect()
}

/// What groups a node: its attributes, labels (as `label:NAME`), and cluster.
pub fn attributes_of(node: &NodeIdentity) -> BTreeMap<String, String> {
    let labels = node.labels.iter().map(|(name, value)| (format!("label:{name}"), value.clone()));
    let cluster = node.cluster.iter().map(|cluster| ("cluster".to_owned(), cluster.clone()));
    node.attributes.clone().into_iter().chain(labels).chain(cluster).collect()
}

/// Stacks within the limits, as plain text.
pub fn checked_stacks(mut row: HeaviestStacks) -> Result<HeaviestStacks, Refused> {
    let refused = |why: String| Err(Refused(format!("stacks: {why}")));
    if row.stacks.len() > MOST_STACKS {
        return refused(format!("{} in one row; at most {MOST_STACKS} are taken", row.stacks.len()));
    }
    let listed = row.stacks.iter().try_fold(0u64, |sum, stack| sum.checked_add(stack.samples));
    let most = row.until.since(row.from).as_secs().saturating_add(60).saturating_mul(MOST_SAMPLES_A_SECOND);
    if row.samples > most {
        return refused(format!("{} samples in {} s", row.samples, row.until.since(row.from).as_secs()));
    }
    if listed.is_none_or(|listed| listed > row.samples) {
        return refused(format!("their samples are more than all samples, {}", row.samples));
    }
    for stack in &mut row.stacks {
        let (bytes, frames) = (stack.stack.len(), stack.stack.bytes().filter(|byte| *byte == b';').count() + 1);
        if bytes > LONGEST_STACK || frames > DEEPEST_STACK {
            return refused(format!(
                "a text of {bytes} bytes and {frames} frames; at most {LONGEST_STACK} and {DEEPEST_STACK} are taken"
            ));
        }
        let plain: String = stack.stack.chars().map(|c| if fools(c) { '\u{fffd}' } else { c }).collect();
        // In folded text, '#' begins a comment.
        let plain = plain.trim().replacen('#', "_", usize::from(plain.trim().starts_with('#')));
        stack.stack = if plain.is_empty() { "[unknown]".to_owned() } else { plain };
    }
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const NOW: Wall = Wall(1_790_000_000_000_000_000);

    fn head() -> Value {
        json!({"kind": "batch", "schema": SCHEMA, "node": "n1", "stream": "s", "sequence": 1, "sealed": "2026-09-21T00:00:00Z"})
    }

    fn body(lines: &[Value]) -> Vec<u8> {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        zstd::encode_all(text.as_bytes(), 3).unwrap()
    }

    fn why(lines: &[Value]) -> String {
        parse(&body(lines), NOW).unwrap_err().0
    }

    #[test]
    fn problems_of_a_batch_and_rows_of_a_request_are_bounded() {
        let problems = vec![coroner_report::Problem::default(); 100];
        let concluded = Concluded { from: NOW, until: NOW, problems, ..Concluded::default() };
        let diagnosis = serde_json::to_value(ReportRow::Diagnosis(concluded)).unwrap();
        let lines = |count: usize| [vec![head()], vec![diagnosis.clone(); count]].concat();
        assert_eq!(parse(&body(&lines(20)), NOW).unwrap().len(), 1);
        assert!(why(&lines(21)).contains("2100 problems in one batch"));
        let minutes = [vec![head()], vec![json!({"kind": "minute", "minute": 1}); MOST_ROWS as usize]].concat();
        assert!(why(&minutes).contains("rows"));
    }

    #[test]
    fn several_batches_and_rows_of_newer_versions_are_taken() {
        let minute =
            json!({"kind": "minute", "minute": "2026-09-20T23:59:00Z", "zombies_dead": 70_000, "new_field": [1]});
        let two = [body(&[head(), minute.clone()]), body(&[head(), json!({"kind": "weather", "rain": true}), minute])]
            .concat();
        let batches = parse(&two, NOW).unwrap();
        assert_eq!(batches.len(), 2);
        assert_eq!(batches[0].minutes[0].zombies_dead, Some(70_000));
        assert_eq!((batches[1].unknown, batches[1].minutes.len()), (1, 1));
    }

    /// A node of another version must not lose its good rows.
    #[test]
    fn rows_that_cannot_be_read_are_left_out() {
        let good = json!({"kind": "minute", "minute": "2026-09-20T23:59:00Z"});
        let rows = [
            json!({"kind": "minute", "minute": "2026-09-20T23:58:00Z", "zombies_dead": 5.5}),
            json!({"kind": "incident", "state": "archived"}),
            json!({"kind": "diagnosis", "from_real_ns": 1, "until_real_ns": 2, "boot_id": "", "diagnoses": 1, "conclusion": "", "problems": []}),
        ];
        for row in rows {
            let batches = parse(&body(&[head(), row.clone(), good.clone()]), NOW).unwrap();
            assert_eq!((batches[0].unknown, batches[0].minutes.len()), (1, 1), "{row}");
        }
        assert!(why(&[json!({"kind": "batch", "schema": SCHEMA, "node": 7})]).contains("invalid type"));
    }

    #[test]
    fn a_clock_that_was_set_back_or_goes_ahead_costs_no_batch() {
        let later = NOW + Duration::from_secs(3600);
        let stacks = HeaviestStacks { from: later, until: NOW, ..HeaviestStacks::default() };
        let stacks = serde_json::to_value(ReportRow::Stacks(stacks)).unwrap();
        let concluded = Concluded { from: NOW, until: later, ..Concluded::default() };
        let diagnosis = serde_json::to_value(ReportRow::Diagnosis(concluded)).unwrap();
        let batches = parse(&body(&[head(), stacks, diagnosis]), NOW).unwrap();
        assert_eq!((batches[0].unknown, batches[0].diagnoses[0].until), (1, NOW));
    }

    #[test]
    fn bad_bodies_are_refused_with_the_reason() {
        assert!(parse(b"{}", NOW).unwrap_err().0.contains("after line 0"));
        assert!(parse(&body(&[]), NOW).unwrap_err().0.contains("no batch"));
        assert!(why(&[json!({"kind": "minute", "minute": "2026-09-20T23:59:00Z"})]).contains("before the head"));
        let of = |schema: &str| json!({"kind": "batch", "schema": schema, "node": "n", "stream": "s", "sequence": 1});
        let refused = |schema: &str| parse(&body(&[of(schema)]), NOW).unwrap_err();
        assert!(refused("coroner.report/2").is_newer() && !refused("coroner.report/0").is_newer());
        assert!(refused("weather/1").0.contains("expected coroner.report/1"));
        let other = json!({"kind": "batch", "schema": SCHEMA, "node": "n2", "stream": "s", "sequence": 1});
        assert!(why(&[head(), other]).contains("several nodes"));
        assert!(
            why(&[head(), json!({"kind": "minute", "minute": "2100-01-01T00:00:00Z"})])
                .contains("line 2: a minute of 2100")
        );
        let labels: serde_json::Map<String, Value> = (0..1_000).map(|n| (format!("l{n}"), json!("x"))).collect();
        assert!(why(&[head(), json!({"kind": "node", "labels": labels})]).contains("1000 labels"));
        let long = json!({"kind": "node", "host": "x".repeat(300)});
        assert!(why(&[head(), long]).contains("300 bytes"));
        let mut invalid = zstd::encode_all(&b"{\"kind\":\"batch\",\"node\":\"\xff\"}\n"[..], 3).unwrap();
        assert!(parse(&invalid, NOW).unwrap_err().0.starts_with("line 1: "));
        invalid.truncate(10);
        assert!(parse(&invalid, NOW).is_err());
    }

    #[test]
    fn a_zip_bomb_is_refused_before_it_grows() {
        let bomb = zstd::encode_all(std::io::repeat(b' ').take(200 << 20), 3).unwrap();
        assert!(bomb.len() < MOST_BYTES);
        assert!(parse(&bomb, NOW).unwrap_err().0.contains("MiB"));
        let line = format!("{}{}", head(), " ".repeat(2 << 20));
        assert!(parse(&zstd::encode_all(line.as_bytes(), 3).unwrap(), NOW).is_err());
    }

    #[test]
    fn names_lose_what_could_fool_a_terminal() {
        let node = json!({"kind": "node", "host": "a\u{1b}[2Jb", "attributes": {"zone\u{202e}": "x\ny"}});
        let batches = parse(&body(&[head(), node]), NOW).unwrap();
        let node = batches[0].node.as_ref().unwrap();
        assert_eq!(node.host.as_deref(), Some("a\u{fffd}[2Jb"));
        assert_eq!(node.attributes["zone\u{fffd}"], "x\u{fffd}y");
    }
}
