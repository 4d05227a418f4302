//! Reports to a fleet's collector, if `report.to` names one; otherwise none of this runs and nothing is ever sent.
//!
//! Other threads hand over rows and never wait. The thread "reporter" seals them into batches in the spool once a minute, at once for
//! incidents and for new conclusions, and sends the oldest batches until the collector has acknowledged them all. A thread of its own
//! sends the recordings of incidents that somebody asked the collector for.

mod files;
mod sender;
mod spool;
#[cfg(test)]
mod tests;

use super::config::ReportConfig;
use super::status::{ReportStatus, Status};
use crate::warn;
use anyhow::Context;
use coroner_evidence::{Node, Wall};
use coroner_report::{Concluded, Dropped, HeaviestStacks, Incident, Minute, NodeIdentity, ReportRow};
use files::Files;
use rustix::fs::OFlags;
use sender::{Link, Sender, Sent, chance};
use spool::{Spool, Unreadable};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Rows waiting for the reporter: hours at the usual pace. It waits for the collector for seconds at most.
const MOST_WAITING: usize = 1000;
/// Rows kept in memory while the spool cannot be written.
const MOST_UNSEALED: usize = 2000;
/// Of one batch, each a fraction of what a collector takes; it refuses a larger one with all that is in it.
const MOST_ROWS: usize = 100;
const MOST_UNPACKED: usize = 1 << 20;
const MOST_PROBLEMS: usize = 1000;
/// What follows an urgent row within this time goes with it.
const URGENT_AFTER: Duration = Duration::from_secs(1);
/// Bytes per request, compressed.
const MOST_AT_ONCE: u64 = 128 << 10;
/// Halved with each failure, so often: a slow link, or a collector that one batch upsets, gets a smaller request.
const MOST_HALVINGS: u32 = 7;
/// A batch that cannot be read is tried again after this pause, so often.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(10);
const MOST_READS: u32 = 6;
/// Between two requests while there is more to send: the observer must not load the node, nor all nodes their collector.
const BETWEEN: Duration = Duration::from_millis(200);
/// What the node is, is said again after this time, for a collector that has lost its store.
const IDENTITY_AGAIN_AFTER: Duration = Duration::from_secs(3600);
/// Cores with full seconds that a minute names; a fleet keeps no more.
const MOST_CORES: usize = 8;

/// For threads that have something to report; does nothing if nobody is to be told.
#[derive(Clone, Default)]
pub struct Reports(Option<Handle>);

#[derive(Clone)]
struct Handle {
    rows: SyncSender<ReportRow>,
    lost: Arc<Mutex<Dropped>>,
}

impl Reports {
    /// And what is told by them.
    #[cfg(test)]
    pub fn for_test() -> (Reports, Receiver<ReportRow>) {
        let (rows, told) = sync_channel(MOST_WAITING);
        (Reports(Some(Handle { rows, lost: Arc::default() })), told)
    }

    pub fn minute(&self, minute: &Minute) {
        let mut minute = minute.clone();
        minute.by_core.retain(|core| core.saturated_s > 0.0);
        minute.by_core.truncate(MOST_CORES);
        self.tell(ReportRow::Minute(minute));
    }

    pub fn concluded(&self, concluded: &Concluded) {
        self.tell(ReportRow::Diagnosis(concluded.clone()));
    }

    pub fn incident(&self, incident: &Incident) {
        self.tell(ReportRow::Incident(Box::new(incident.clone())));
    }

    pub fn stacks(&self, stacks: HeaviestStacks) {
        self.tell(ReportRow::Stacks(stacks));
    }

    pub fn node(&self, identity: NodeIdentity) {
        self.tell(ReportRow::Node(identity));
    }

    fn tell(&self, row: ReportRow) {
        let Some(handle) = &self.0 else { return };
        if let Err(unsent) = handle.rows.try_send(row) {
            let row = match unsent {
                std::sync::mpsc::TrySendError::Full(row) | std::sync::mpsc::TrySendError::Disconnected(row) => row,
            };
            spool::count(&mut handle.lost.lock().unwrap_or_else(PoisonError::into_inner), &row);
        }
    }
}

pub struct ReporterThread {
    reports: Reports,
    thread: JoinHandle<()>,
}

impl ReporterThread {
    /// `None` if nobody is to be told.
    pub fn start(
        directory: &Path,
        config: &ReportConfig,
        node: &Node,
        status: Arc<Mutex<Status>>,
    ) -> anyhow::Result<Option<ReporterThread>> {
        let Some(to) = &config.to else { return Ok(None) };
        let name = config.node.clone().or_else(|| node.machine_id.clone()).or_else(|| node.host.clone());
        let Some(name) = name else {
            anyhow::bail!(
                "report.to: this node has neither a machine id nor a host name; run systemd-machine-id-setup, or use --report-as"
            );
        };
        let (rows, waiting) = sync_channel(MOST_WAITING);
        let link = Link::new(config, to, node_key(directory)?)?;
        let lost = Arc::new(Mutex::new(Dropped::default()));
        let mut reporter = Reporter {
            node: name.clone(),
            boot_id: node.boot_id.clone().unwrap_or_default(),
            every: config.every,
            cluster: config.cluster.clone(),
            labels: config.labels.clone(),
            spool: Spool::open(&directory.join("spool"), config.max_size)?,
            files: Files::new(directory, name, config.files, link.clone()),
            sender: Sender::new(link),
            unsealed: Vec::new(),
            identity: None,
            identified: None,
            directory: directory.to_owned(),
            problems: Vec::new(),
            lost: Arc::clone(&lost),
            own: ReportStatus::default(),
            complained: None,
            spool_trouble: None,
            unreadable: 0,
        };
        let run = move || reporter.run(&waiting, &status);
        let thread = std::thread::Builder::new().name("reporter".to_owned()).spawn(run)?;
        let reports = Reports(Some(Handle { rows, lost }));
        reports.node(known_identity(directory, NodeIdentity::of(node)));
        Ok(Some(ReporterThread { reports, thread }))
    }

    pub fn reports(&self) -> Reports {
        self.reports.clone()
    }

    /// What was not sent stays in the spool. All other handles must be gone.
    pub fn finish(self) {
        drop(self.reports);
        let _ = self.thread.join();
    }
}

struct Reporter {
    node: String,
    boot_id: String,
    every: Duration,
    cluster: Option<String>,
    labels: std::collections::BTreeMap<String, String>,
    spool: Spool,
    sender: Sender,
    files: Files,
    unsealed: Vec<ReportRow>,
    identity: Option<NodeIdentity>,
    /// When it was last put into a batch; `None`: it is to be.
    identified: Option<Instant>,
    directory: PathBuf,
    /// Keys of the last diagnosis.
    problems: Vec<String>,
    /// Rows that found the channel full.
    lost: Arc<Mutex<Dropped>>,
    own: ReportStatus,
    complained: Option<String>,
    /// Why rows could not be stored, if they could not: it may last while sending goes well.
    spool_trouble: Option<String>,
    /// How often the oldest batch could not be read.
    unreadable: u32,
}

impl Reporter {
    fn run(&mut self, rows: &Receiver<ReportRow>, status: &Mutex<Status>) {
        // The first batch goes out at once; after it, each node has its own second of the minute.
        let mut seal_at = Instant::now() + URGENT_AFTER;
        let mut send_at = seal_at;
        let mut phase = self.every.mul_f64(chance());
        loop {
            let has_batches = self.spool.batches() > 0;
            let next = if has_batches { seal_at.min(send_at) } else { seal_at };
            match rows.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(row) => {
                    if self.take(row) {
                        seal_at = seal_at.min(Instant::now() + URGENT_AFTER);
                    }
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() >= seal_at {
                self.seal();
                seal_at = Instant::now() + self.every + std::mem::take(&mut phase);
            }
            if self.spool.batches() > 0 && Instant::now() >= send_at {
                send_at = Instant::now() + self.send();
            }
            self.show(status);
        }
        self.seal();
        self.show(status);
    }

    /// Returns whether it should be sent at once.
    fn take(&mut self, row: ReportRow) -> bool {
        let urgent = match &row {
            ReportRow::Incident(_) => true,
            ReportRow::Diagnosis(concluded) => {
                let ongoing = concluded.problems.iter().filter(|problem| problem.ended.is_none());
                let problems: Vec<String> = ongoing.map(|problem| problem.key.clone()).collect();
                std::mem::replace(&mut self.problems, problems) != self.problems
            }
            _ => false,
        };
        let row = match row {
            ReportRow::Node(identity) => {
                let mut identity =
                    NodeIdentity { cluster: self.cluster.clone(), labels: self.labels.clone(), ..identity };
                if let Some(model) = cpu_model() {
                    identity.attributes.insert("cpu_model".to_owned(), model);
                }
                if self.identity.as_ref() != Some(&identity) {
                    remember(&self.directory, &identity);
                    (self.identity, self.identified) = (Some(identity), None);
                }
                return false;
            }
            row => row,
        };
        self.unsealed.push(row);
        if self.unsealed.len() > MOST_UNSEALED {
            // The oldest of the least important.
            let least = (0..self.unsealed.len()).min_by_key(|at| importance(&self.unsealed[*at]));
            let gone = self.unsealed.remove(least.unwrap_or(0));
            spool::count(self.spool.dropped(), &gone);
        }
        urgent
    }

    fn seal(&mut self) {
        if let Some(identity) = &self.identity
            && self.identified.is_none_or(|at| at.elapsed() >= IDENTITY_AGAIN_AFTER)
        {
            self.unsealed.insert(0, ReportRow::Node(identity.clone()));
            self.identified = Some(Instant::now());
        }
        let lost = std::mem::take(&mut *self.lost.lock().unwrap_or_else(PoisonError::into_inner));
        self.spool.dropped().add(lost);
        let now = Wall::from(SystemTime::now());
        while !self.unsealed.is_empty() {
            let count = in_one_batch(&self.unsealed);
            if let Err(error) = self.spool.seal(&self.node, &self.boot_id, now, &self.unsealed[..count]) {
                return self.complain_of_spool(format!("{error:#}; what would be reported is kept in memory"));
            }
            // At once: what is stored must not be stored again.
            self.unsealed.drain(..count);
        }
        match self.spool.keep_limit() {
            Ok(()) => self.spool_trouble = None,
            Err(error) => self.complain_of_spool(format!("{error:#}; the spool is larger than report.max_size")),
        }
    }

    /// Sends the oldest batches; returns the pause until the next request.
    fn send(&mut self) -> Duration {
        self.send_at_most(MOST_AT_ONCE >> self.sender.failures().min(MOST_HALVINGS))
    }

    fn send_at_most(&mut self, most: u64) -> Duration {
        let (body, count) = match self.spool.oldest(most) {
            Ok(Some(oldest)) => oldest,
            Ok(None) => return BETWEEN,
            Err(front) => return self.pass_over(front),
        };
        self.unreadable = 0;
        match self.sender.send(&body) {
            Sent::Stored(wanted) => {
                self.files.want(&wanted);
                if self.own.last_success.is_none() || self.complained.is_some() {
                    warn("report: the collector has stored what was sent");
                }
                self.own.requests += 1;
                self.own.sent_batches += count as u64;
                self.own.sent_bytes += body.len() as u64;
                self.own.last_success = Some(Instant::now());
                self.complained = None;
                if let Err(error) = self.spool.remove(count) {
                    self.complain_of_spool(format!("{error:#}"));
                }
                BETWEEN
            }
            // One of several batches was refused: the others must not suffer.
            Sent::Refused(_) if count > 1 => self.send_at_most(0),
            Sent::Refused(why) => {
                self.own.refused_batches += 1;
                self.complain(format!("{why}; this batch is dropped"));
                self.drop_oldest()
            }
            Sent::Later(why, after) => {
                self.own.failures += 1;
                let pause = self.sender.pause(after);
                self.complain(format!("{why}; what is to be reported waits in the spool"));
                pause
            }
        }
    }

    /// A batch that cannot be read must not stop those behind it; but the fault may be over in a moment, or not be its own.
    fn pass_over(&mut self, front: Unreadable) -> Duration {
        if front.is_gone {
            let gone = self.spool.drop_gone();
            self.identified = None;
            self.complain(format!("{}; {gone} batches were removed from the spool and are lost", front.why));
            return BETWEEN;
        }
        self.unreadable = self.unreadable.saturating_add(1);
        if self.unreadable < MOST_READS || !self.spool.another_is_readable() {
            self.complain(format!("{}; it is tried again", front.why));
            return READ_AGAIN_AFTER;
        }
        self.unreadable = 0;
        self.complain(format!("{}; this batch is dropped", front.why));
        self.drop_oldest()
    }

    fn drop_oldest(&mut self) -> Duration {
        // It may have been in there.
        self.identified = None;
        if let Err(error) = self.spool.drop_oldest() {
            self.complain_of_spool(format!("{error:#}"));
        }
        BETWEEN
    }

    /// Warns when the trouble is another one than before.
    fn complain(&mut self, what: String) {
        complain(&mut self.complained, what);
    }

    fn complain_of_spool(&mut self, what: String) {
        complain(&mut self.spool_trouble, what);
    }

    fn show(&mut self, status: &Mutex<Status>) {
        self.own.spool_bytes = self.spool.bytes();
        self.own.spool_batches = self.spool.batches() as u64;
        self.own.dropped = *self.spool.dropped();
        self.own.trouble = self.complained.clone().or_else(|| self.spool_trouble.clone());
        // Plain numbers, valid even if a holder of the lock panicked.
        status.lock().unwrap_or_else(PoisonError::into_inner).report = Some(self.own.clone());
    }
}

fn complain(trouble: &mut Option<String>, what: String) {
    if trouble.as_ref() != Some(&what) {
        warn(&format!("report: {what}"));
        *trouble = Some(what);
    }
}

/// What is dropped last has the highest.
fn importance(row: &ReportRow) -> u8 {
    match row {
        ReportRow::Minute(_) | ReportRow::Stacks(_) | ReportRow::Batch(_) | ReportRow::Unknown => 0,
        ReportRow::Diagnosis(_) => 1,
        ReportRow::Node(_) => 2,
        ReportRow::Incident(_) => 3,
    }
}

/// How many of these rows go into one batch, at least one.
fn in_one_batch(rows: &[ReportRow]) -> usize {
    let (mut bytes, mut problems) = (0, 0);
    for (at, row) in rows.iter().enumerate().take(MOST_ROWS) {
        bytes += serde_json::to_vec(row).map_or(0, |text| text.len());
        if let ReportRow::Diagnosis(concluded) = row {
            problems += concluded.problems.len();
        }
        if at > 0 && (bytes > MOST_UNPACKED || problems > MOST_PROBLEMS) {
            return at;
        }
    }
    rows.len().min(MOST_ROWS)
}

/// Made once, at random; a collector accepts no other one for this node.
fn node_key(directory: &Path) -> anyhow::Result<String> {
    let path = directory.join("node.key");
    let cannot = || format!("cannot use {}", path.display());
    let known = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        read => read.with_context(cannot)?,
    };
    // A disk that was full left an empty one.
    if !known.trim().is_empty() {
        return Ok(known.trim().to_owned());
    }
    let random =
        std::fs::read_to_string("/proc/sys/kernel/random/uuid").context("no random number for the node's key")?;
    store(directory, "node.key", random.as_bytes()).with_context(cannot)?;
    Ok(random.trim().to_owned())
}

/// For the recorder alone to read, and whole or not at all.
fn store(directory: &Path, name: &str, content: &[u8]) -> std::io::Result<()> {
    let part = directory.join(format!("{name}.part"));
    let mut options = std::fs::OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&part)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&part, directory.join(name))
}

const IDENTITY: &str = "identity.json";

/// What only a diagnosis tells, the agents, is what it was before the recorder was restarted, until the first one tells it anew.
fn known_identity(directory: &Path, mut identity: NodeIdentity) -> NodeIdentity {
    let known = std::fs::read(directory.join(IDENTITY)).ok();
    let known = known.and_then(|json| serde_json::from_slice::<NodeIdentity>(&json).ok());
    if let Some(known) = known.filter(|known| known.boot_id.is_some() && known.boot_id == identity.boot_id) {
        for (name, value) in known.attributes {
            identity.attributes.entry(name).or_insert(value);
        }
    }
    identity
}

fn remember(directory: &Path, identity: &NodeIdentity) {
    // Without it, agents are told a few minutes later.
    let _ = serde_json::to_vec(identity).map(|json| store(directory, IDENTITY, &json));
}

/// `None` on architectures whose kernel does not name it.
fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned()).filter(|model| !model.is_empty())
}
