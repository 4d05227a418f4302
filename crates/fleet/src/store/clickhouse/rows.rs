//! From a batch to rows of the tables.

use crate::ingest::Batch;
use crate::store::episodes::{Observed, SAME_WITHIN_S};
use crate::store::stacks::slot_of;
use crate::store::write::{Retention, saturated_ms, seconds, thousandths};
use clickhouse::Row;
use coroner_report::Wall;
use ring::digest;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Time, sequence, coroner's version, dropped rows.
type LastBatch = (u32, u64, String, u64);
/// Seen until, until, whether it ended, severity, certainty, title.
type LastSeen = (u32, u32, u8, String, String, String);

#[derive(Row, Serialize, Debug, Clone)]
pub struct ReportRow {
    node: String,
    key: String,
    first_seen: u32,
    last_seen: u32,
    last: LastBatch,
}

#[derive(Row, Serialize, Debug, Clone)]
pub struct IdentityRow {
    node: String,
    since: u32,
    host: Option<String>,
    booted: Option<u32>,
    identity_json: String,
}

#[derive(Row, Serialize, Debug, Clone)]
pub struct BootRow {
    node: String,
    boot_id: String,
    booted: Option<u32>,
    first_seen: u32,
    last_seen: u32,
}

#[derive(Row, Serialize, Debug, Clone)]
pub struct MinuteRow {
    pub node: String,
    pub minute: u32,
    sealed: u32,
    busy_mean: Option<u16>,
    busy_max: Option<u16>,
    worst_core: Option<u16>,
    worst_core_system: Option<u16>,
    saturated_ms: Option<u32>,
    zombies_tracked: Option<u32>,
    zombies_live: Option<u32>,
    zombies_dead: Option<u32>,
    unit_restarts: Option<u32>,
    nic_resets: Option<u32>,
    softnet_drops: Option<u32>,
    oom_kills: Option<u32>,
    cpu_stall_ms: Option<u32>,
    memory_stall_ms: Option<u32>,
    io_stall_ms: Option<u32>,
    lost_samples: Option<u32>,
    starved_queues: Option<u32>,
    throttled_ms: Option<u32>,
    direct_reclaim_pages: Option<u32>,
    own_cpu_ms: Option<u32>,
}

#[derive(Row, Serialize, Debug, Clone)]
pub struct DiagnosedRow {
    node: String,
    first: u32,
    until: u32,
    /// Version, conclusion.
    last: (u64, String),
}

#[derive(Row, Serialize, Debug, Clone)]
pub struct StacksRow {
    slot: u32,
    pub node: String,
    until: u32,
    samples: u64,
    pub stacks: Vec<i64>,
    pub counts: Vec<u64>,
}

#[derive(Row, Serialize, Debug, Clone)]
pub struct TextRow {
    pub id: i64,
    pub stack: String,
    pub used: u32,
}

#[derive(Row, Serialize, Debug, Clone)]
pub struct ObservedRow {
    node: String,
    boot_id: String,
    key: String,
    quarter: u32,
    code: String,
    subject_kind: String,
    subject: String,
    began: u32,
    last: LastSeen,
}

#[derive(Row, Serialize, Debug, Clone)]
pub struct IncidentRow {
    node: String,
    number: u64,
    triggered: u32,
    version: u64,
    code: String,
    key: String,
    state: &'static str,
    incident_json: String,
}

/// Rows for one insert of each table.
#[derive(Debug, Default, Clone)]
pub struct Rows {
    pub reports: Vec<ReportRow>,
    pub identities: Vec<IdentityRow>,
    pub boots: Vec<BootRow>,
    pub minutes: Vec<MinuteRow>,
    pub diagnosed: Vec<DiagnosedRow>,
    pub observed: Vec<ObservedRow>,
    pub incidents: Vec<IncidentRow>,
    pub stacks: Vec<StacksRow>,
    /// Of these stacks.
    pub texts: Vec<TextRow>,
}

/// A time as ClickHouse's DateTime has it.
fn date(seconds: i64) -> u32 {
    seconds.clamp(0, i64::from(u32::MAX)) as u32
}

fn at(wall: Wall) -> u32 {
    date(seconds(wall))
}

fn small(value: Option<u64>) -> Option<u32> {
    value.map(|value| u32::try_from(value).unwrap_or(u32::MAX))
}

fn share(value: Option<f64>) -> Option<u16> {
    thousandths(value).map(|thousandths| thousandths as u16)
}

/// The later time counts, and at the same time what was sealed later.
fn version(time: u32, sealed: u32) -> u64 {
    u64::from(time) << 32 | u64::from(sealed)
}

/// The same in all collectors. Nobody finds a second text for another's.
fn stack_id(text: &str) -> i64 {
    let mut id = [0; 8];
    id.copy_from_slice(&digest::digest(&digest::SHA256, text.as_bytes()).as_ref()[..8]);
    i64::from_be_bytes(id)
}

impl Rows {
    /// Who reports.
    pub fn report(batch: &Batch, key: &str, now: i64) -> ReportRow {
        let head = &batch.head;
        let last = (at(head.sealed), head.sequence, head.version.clone(), head.dropped.total());
        ReportRow { node: head.node.clone(), key: key.to_owned(), first_seen: date(now), last_seen: date(now), last }
    }

    /// What it says. Rows that would expire at once are left out: with them came a partition for each day of their past.
    pub fn of(batch: &Batch, retention: Retention, now: i64) -> Rows {
        let mut rows = Rows::default();
        let head = &batch.head;
        let (node, sealed) = (&head.node, at(head.sealed));
        let oldest = date(now - retention.episodes_s);
        if let Some(identity) = &batch.node {
            rows.identities.push(IdentityRow {
                node: node.clone(),
                // Its partition must not be one of long ago.
                since: sealed.max(oldest),
                host: identity.host.clone(),
                booted: identity.booted.map(at),
                // Plain strings and maps; it was read from JSON.
                identity_json: serde_json::to_string(identity).unwrap_or_default(),
            });
        }
        if !head.boot_id.is_empty() {
            // Batches may be hours long: what they tell begins before they were sealed.
            let began = batch.minutes.iter().map(|minute| at(minute.minute)).fold(sealed, u32::min);
            let booted = batch.node.as_ref().and_then(|node| node.booted).map(at);
            let boot_id = head.boot_id.clone();
            rows.boots.push(BootRow { node: node.clone(), boot_id, booted, first_seen: began, last_seen: sealed });
        }
        rows.add_minutes(batch, date(now - retention.minutes_s));
        rows.add_stacks(batch, date(now - retention.minutes_s), date(now));
        for concluded in &batch.diagnoses {
            let until = at(concluded.until);
            let conclusion = concluded.conclusion.clone();
            rows.diagnosed.push(DiagnosedRow {
                node: node.clone(),
                first: at(concluded.from),
                until,
                last: (version(until, sealed), conclusion),
            });
            for problem in &concluded.problems {
                let Observed { began, seen_until, has_ended } = Observed::of(problem, concluded);
                let seen_until = date(seen_until);
                if seen_until < oldest {
                    continue;
                }
                let certainty = problem.certainty.clone().unwrap_or_default();
                rows.observed.push(ObservedRow {
                    node: node.clone(),
                    boot_id: concluded.boot_id.clone(),
                    key: problem.key.clone(),
                    quarter: seen_until - seen_until % SAME_WITHIN_S as u32,
                    code: problem.code.clone(),
                    subject_kind: problem.subject_kind.clone(),
                    subject: problem.subject.clone(),
                    began: date(began),
                    last: (
                        seen_until,
                        until,
                        has_ended.into(),
                        problem.severity.clone(),
                        certainty,
                        problem.title.clone(),
                    ),
                });
            }
        }
        // Of one incident's states in a batch, the last.
        let mut last: HashMap<(u64, u32), IncidentRow> = HashMap::new();
        for incident in &batch.incidents {
            let triggered = at(incident.triggered);
            if triggered < oldest {
                continue;
            }
            let row = IncidentRow {
                node: node.clone(),
                number: incident.number,
                triggered,
                version: head.sealed.0 / 1_000_000,
                code: incident.code.clone(),
                key: incident.key.clone().unwrap_or_default(),
                state: incident.state.as_str(),
                incident_json: serde_json::to_string(incident).unwrap_or_default(),
            };
            last.insert((incident.number, triggered), row);
        }
        rows.incidents.extend(last.into_values());
        rows
    }

    fn add_minutes(&mut self, batch: &Batch, oldest: u32) {
        let sealed = at(batch.head.sealed);
        let ms = |us: Option<u64>| small(us.map(|us| us / 1000));
        // A recorder that was restarted within a minute tells of both parts; the later one counts.
        let mut last: HashMap<u32, usize> = HashMap::new();
        for m in &batch.minutes {
            // A minute has one row, wherever within it a node begins.
            let minute = at(m.minute) / 60 * 60;
            if minute < oldest {
                continue;
            }
            let row = MinuteRow {
                node: batch.head.node.clone(),
                minute,
                sealed,
                busy_mean: share(m.busy_mean),
                busy_max: share(m.busy_max),
                worst_core: m.worst_core.map(|core| u16::try_from(core).unwrap_or(u16::MAX)),
                worst_core_system: share(m.worst_core_system),
                saturated_ms: saturated_ms(m).map(date),
                zombies_tracked: small(m.zombies_tracked),
                zombies_live: small(m.zombies_live),
                zombies_dead: small(m.zombies_dead),
                unit_restarts: small(m.unit_restarts),
                nic_resets: small(m.nic_resets),
                softnet_drops: small(m.softnet_drops),
                oom_kills: small(m.oom_kills),
                cpu_stall_ms: ms(m.cpu_stall_us),
                memory_stall_ms: ms(m.memory_stall_us),
                io_stall_ms: ms(m.io_stall_us),
                lost_samples: small(m.lost_samples),
                starved_queues: small(m.starved_queues),
                throttled_ms: ms(m.throttled_us),
                direct_reclaim_pages: small(m.direct_reclaim_pages),
                own_cpu_ms: ms(m.own_cpu_us),
            };
            match last.get(&minute).and_then(|&at| self.minutes.get_mut(at)) {
                Some(earlier) => *earlier = row,
                None => {
                    last.insert(minute, self.minutes.len());
                    self.minutes.push(row);
                }
            }
        }
    }

    fn add_stacks(&mut self, batch: &Batch, oldest: u32, now: u32) {
        // Rows of one node say mostly the same.
        let mut told: HashSet<i64> = HashSet::new();
        for row in &batch.stacks {
            let slot = date(slot_of(row));
            if slot < oldest {
                continue;
            }
            let mut counts: BTreeMap<i64, u64> = BTreeMap::new();
            for stack in &row.stacks {
                let id = stack_id(&stack.stack);
                if told.insert(id) {
                    self.texts.push(TextRow { id, stack: stack.stack.clone(), used: now });
                }
                let sum = counts.entry(id).or_default();
                *sum = sum.saturating_add(stack.samples);
            }
            // In order they take less room: rows are much alike.
            let (stacks, counts) = counts.into_iter().unzip();
            let (node, until) = (batch.head.node.clone(), at(row.until));
            self.stacks.push(StacksRow { slot, node, until, samples: row.samples, stacks, counts });
        }
    }

    pub fn append(&mut self, mut more: Rows) {
        self.reports.append(&mut more.reports);
        self.identities.append(&mut more.identities);
        self.boots.append(&mut more.boots);
        self.minutes.append(&mut more.minutes);
        self.diagnosed.append(&mut more.diagnosed);
        self.observed.append(&mut more.observed);
        self.incidents.append(&mut more.incidents);
        self.stacks.append(&mut more.stacks);
        self.texts.append(&mut more.texts);
    }

    pub fn len(&self) -> usize {
        let Rows { reports, identities, boots, minutes, diagnosed, observed, incidents, stacks, texts } = self;
        reports.len()
            + identities.len()
            + boots.len()
            + minutes.len()
            + diagnosed.len()
            + observed.len()
            + incidents.len()
            + stacks.len()
            + texts.len()
    }

    /// About how much memory they take.
    pub fn bytes(&self) -> usize {
        let texts: usize = self.identities.iter().map(|row| row.identity_json.len()).sum::<usize>()
            + self.incidents.iter().map(|row| row.incident_json.len() + row.key.len()).sum::<usize>()
            + self.texts.iter().map(|row| row.stack.len()).sum::<usize>()
            + self.stacks.iter().map(|row| row.stacks.len() * 16).sum::<usize>()
            + self.observed.iter().map(|row| row.key.len() + row.subject.len() + row.last.5.len()).sum::<usize>();
        // Names of nodes and boots are at most 256 bytes each, mostly 32; texts have none.
        texts + self.texts.len() * 64 + (self.len() - self.texts.len()) * 256
    }
}
