//! Kernel log lines: a NIC that hung or was reset, a stall, an OOM kill.

use super::super::config::TriggerConfig;
use super::super::trigger::Trigger;
use super::trigger;
use coroner_diagnosis::Code;
use coroner_diagnosis::key::KeySubject;
use coroner_diagnosis::log_events::{
    Event, Family, NicEvent, NicStep, ONE_INCIDENT, OomEvent, OomScope, StallEvent, parse,
};
use coroner_diagnosis::ties::device_named;
use coroner_evidence::{Evidence, LogLine, Nic, QueueKind, Time};
use std::collections::HashMap;
use std::time::Duration;

/// A line with a less precise time may be older than the recorder.
const TIMED: Duration = Duration::from_secs(1);
/// Most subjects remembered; a log that names more is forged or broken.
const MOST_SUBJECTS: usize = 256;
const MOST_NICS: usize = 256;

#[derive(Default)]
pub struct LogTriggers {
    families: Vec<Family>,
    /// Earlier lines do not count. `None` before the first fragment.
    started: Option<Time>,
    /// The highest sequence number so far: a new segment may repeat old lines.
    last_sequence: Option<u64>,
    /// When the last line about this was logged.
    seen: HashMap<(Code, String), Time>,
    nics: Vec<Nic>,
    /// What the kernel logged about the kill it is about to report.
    oom: Option<(u32, OomScope, Option<String>)>,
}

impl LogTriggers {
    pub fn new(config: &TriggerConfig) -> LogTriggers {
        let wanted =
            [(config.nic_reset, Family::Nic), (config.kernel_stall, Family::Stall), (config.oom_kill, Family::Oom)];
        LogTriggers {
            families: wanted.into_iter().filter(|(wanted, _)| *wanted).map(|(_, family)| family).collect(),
            ..LogTriggers::default()
        }
    }

    pub fn look(&mut self, fragment: &Evidence, found: &mut Vec<Trigger>) {
        self.note_nics(&fragment.nics);
        let first = self.started.is_none();
        if first {
            // The first look reads the whole log since boot. The clocks are read just before it.
            let clock = fragment.clocks.iter().map(|c| c.at).min();
            let core = fragment.core_times.iter().map(|c| c.at).min();
            let newest = fragment.log.iter().map(|l| l.at).max();
            self.started = clock.or(core).or(newest);
        }
        let Some(started) = self.started else { return };
        for line in &fragment.log {
            if self.last_sequence.is_some_and(|last| line.sequence <= last) {
                continue;
            }
            self.last_sequence = Some(line.sequence);
            let is_history = first && (line.at <= started || u128::from(line.uncertainty_ns) > TIMED.as_nanos());
            if line.is_from_kernel() && !is_history {
                self.take(line, found);
            }
        }
    }

    fn note_nics(&mut self, nics: &[Nic]) {
        for nic in nics.iter().filter(|nic| nic.netns.is_none()) {
            match self.nics.iter().position(|known| known.name == nic.name) {
                Some(known) => self.nics[known].clone_from(nic),
                None if self.nics.len() < MOST_NICS => self.nics.push(nic.clone()),
                None => {}
            }
        }
    }

    fn take(&mut self, line: &LogLine, found: &mut Vec<Trigger>) {
        let Some(event) = self.families.iter().find_map(|family| parse(&line.text, *family)) else { return };
        let new = match event {
            Event::Nic(event) => self.nic(&event, line),
            Event::Stall(event) => stall(&event, line),
            Event::Oom(event) => self.oom(event, line),
            Event::Xid(_) | Event::ConntrackFull { .. } => None,
        };
        let Some((code, new)) = new else { return };
        // An incident logs many lines; as long as they keep coming, it is the same one.
        let key = (code, new.subject.clone());
        if self.seen.len() >= MOST_SUBJECTS {
            self.seen.retain(|_, at| line.at.since(*at) < ONE_INCIDENT);
        }
        let before = self.seen.insert(key, line.at);
        if before.is_none_or(|before| line.at.since(before) >= ONE_INCIDENT) {
            found.push(new);
        }
    }

    fn nic(&self, event: &NicEvent, line: &LogLine) -> Option<(Code, Trigger)> {
        // Single late completions and kicked queues are normal noise of some drivers. A poll that did not run is how the trouble that
        // the recorder is there for begins.
        if !event.step.is_outage() && event.step != NicStep::PollStarved {
            return None;
        }
        let name = event.device.name(&self.nics).unwrap_or_else(|| "a network device".to_owned());
        let core = event.napi_core.or_else(|| self.core_of(&name, event.queue?));
        let nic = device_named(&self.nics, &name);
        let about = Some(KeySubject::Nic(&nic));
        Some((Code::NicReset, trigger(Code::NicReset, about, name, core, line.at, line.text.clone())))
    }

    /// The only core that serves a transmit queue.
    fn core_of(&self, name: &str, queue: u32) -> Option<u32> {
        let nic = self.nics.iter().find(|nic| nic.name == name)?;
        let serves = |kind| nic.queues.iter().find(|q| q.index == queue && q.kind == kind)?.cores()?.single();
        serves(QueueKind::Tx).or_else(|| serves(QueueKind::Combined))
    }

    fn oom(&mut self, event: OomEvent, line: &LogLine) -> Option<(Code, Trigger)> {
        let (scope, pid, comm) = match event {
            // Logged just before the kill.
            OomEvent::Summary { scope, pid, limit_of, cgroup, .. } => {
                self.oom = Some((pid, scope, limit_of.or(cgroup)));
                return None;
            }
            OomEvent::LimitOf { limit_of, .. } => {
                self.oom = Some((0, OomScope::Cgroup, Some(limit_of)));
                return None;
            }
            OomEvent::Killed { scope, pid, comm, .. } => (scope, pid, comm),
        };
        let said = self.oom.take().filter(|(of, _, _)| *of == pid || *of == 0);
        let scope = scope.or(said.as_ref().map(|(_, scope, _)| *scope));
        let limited = said.and_then(|(_, _, limited)| limited).filter(|_| scope == Some(OomScope::Cgroup));
        let why = match (&limited, scope) {
            (Some(cgroup), _) => format!("cgroup {cgroup} reached its memory limit"),
            (None, Some(OomScope::Cgroup)) => "its cgroup reached its memory limit".to_owned(),
            (None, Some(OomScope::Node)) => "the node ran out of memory".to_owned(),
            (None, None) => "out of memory".to_owned(),
        };
        // Not by pid: a limit that is too low kills one process after another.
        let about = limited.as_deref().map(KeySubject::Cgroup).unwrap_or(KeySubject::Command(&comm));
        let subject = limited.clone().unwrap_or_else(|| comm.clone());
        let text = format!("{comm}[{pid}] was OOM-killed: {why}");
        Some((Code::OomKill, trigger(Code::OomKill, Some(about), subject, None, line.at, text)))
    }
}

fn stall(event: &StallEvent, line: &LogLine) -> Option<(Code, Trigger)> {
    let (core, subject) = match event {
        StallEvent::SoftLockup { core, .. } | StallEvent::HardLockup { core } | StallEvent::RcuCore { core } => {
            (Some(*core), format!("core {core}"))
        }
        StallEvent::Rcu { core, .. } => (*core, core.map_or_else(|| "rcu".to_owned(), |core| format!("core {core}"))),
        StallEvent::RcuThreadStarved { .. } => (None, "rcu".to_owned()),
        StallEvent::HungTask { comm, .. } => (None, comm.clone()),
        // Ten milliseconds in a worker are worth a log line, not an incident.
        StallEvent::WorkqueueHog { .. } => return None,
    };
    let about = match event {
        StallEvent::HungTask { comm, .. } => Some(KeySubject::Command(comm)),
        _ => None,
    };
    Some((Code::KernelStall, trigger(Code::KernelStall, about, subject, core, line.at, line.text.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::{Clocks, CoreSet, MapSource, NicQueue, Wall};

    const PAUSED: &str = "ena 0000:20:03.0 eth0: TX q 5 is paused for too long (threshold 5000000). Time since last napi 6596000 usec. napi scheduled: 1";
    const DONE: &str = "ena 0000:20:03.0 eth0: Device reset completed successfully, Driver info: Elastic Network Adapter (ENA) v2.11.0g";

    fn line(sequence: u64, second: u64, text: &str) -> LogLine {
        let at = Time::from_secs(second);
        LogLine { at, uncertainty_ns: 1000, stamp_us: 0, sequence, level: 3, facility: 0, text: text.to_owned() }
    }

    fn fragment(second: u64, log: Vec<LogLine>) -> Evidence {
        let clocks = vec![Clocks { at: Time::from_secs(second), wall: Wall(0), boot_ns: 0 }];
        Evidence { clocks, log, ..Evidence::default() }
    }

    fn started() -> LogTriggers {
        let mut triggers = LogTriggers::new(&TriggerConfig::default());
        triggers.look(&fragment(100, Vec::new()), &mut Vec::new());
        triggers
    }

    fn look(triggers: &mut LogTriggers, second: u64, log: Vec<LogLine>) -> Vec<Trigger> {
        let mut found = Vec::new();
        triggers.look(&fragment(second, log), &mut found);
        found
    }

    #[test]
    fn lines_older_than_the_recorder_do_not_count() {
        let mut triggers = LogTriggers::new(&TriggerConfig::default());
        let first = vec![line(1, 5, PAUSED), line(2, 99, DONE), line(3, 101, PAUSED)];
        let found = look(&mut triggers, 100, first.clone());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (found[0].code.as_str(), found[0].subject.as_str(), found[0].at),
            ("nic-reset", "eth0", Time::from_secs(101))
        );
        // A new segment repeats all of them.
        assert_eq!(look(&mut triggers, 700, first), []);
    }

    #[test]
    fn one_reset_is_one_incident_however_many_lines_it_logs() {
        let mut triggers = started();
        assert_eq!(look(&mut triggers, 200, vec![line(1, 200, PAUSED), line(2, 201, PAUSED)]).len(), 1);
        assert_eq!(look(&mut triggers, 203, vec![line(3, 203, DONE)]), []);
        assert_eq!(look(&mut triggers, 270, vec![line(4, 270, PAUSED)]).len(), 1);
    }

    #[test]
    fn a_queue_names_its_core() {
        let mut triggers = started();
        let queue = NicQueue {
            kind: QueueKind::Tx,
            index: 5,
            map: MapSource::Name,
            irq: Some(38),
            irq_cores: CoreSet::parse_list("39"),
            ..NicQueue::default()
        };
        let nic = Nic {
            at: Time::from_secs(100),
            netns: None,
            name: "eth0".into(),
            driver: Some("ena".into()),
            bus: Some("0000:20:03.0".into()),
            up: Some(true),
            queues: vec![queue],
        };
        let mut with_nic = fragment(150, vec![line(1, 150, PAUSED)]);
        with_nic.nics = vec![nic];
        let mut found = Vec::new();
        triggers.look(&with_nic, &mut found);
        assert_eq!((found[0].core, found[0].key.as_str()), (Some(39), "nic-reset:ena"));
    }

    #[test]
    fn user_space_lines_and_noise_trigger_nothing() {
        let mut triggers = started();
        let mut forged = line(1, 200, PAUSED);
        forged.facility = 1;
        let noise = [
            forged,
            line(2, 200, "usb 1-1: new device"),
            line(3, 200, "ena 0000:20:03.0 eth0: Found a Tx that wasn't completed on time, qid 3, index 77."),
            line(4, 200, "workqueue: drain_vmap hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND"),
        ];
        assert_eq!(look(&mut triggers, 200, noise.to_vec()), []);
    }

    #[test]
    fn an_oom_kill_names_the_limit_that_was_reached() {
        let mut triggers = started();
        let summary = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/jobs/a,task_memcg=/jobs/a/b,task=python3,pid=77,uid=0";
        let killed = |pid: u32| {
            format!(
                "Memory cgroup out of memory: Killed process {pid} (python3) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0"
            )
        };
        let found = look(&mut triggers, 200, vec![line(1, 200, summary), line(2, 200, &killed(77))]);
        assert_eq!((found.len(), found[0].subject.as_str(), found[0].key.as_str()), (1, "/jobs/a", "oom-kill:/jobs/a"));
        assert_eq!(found[0].text, "python3[77] was OOM-killed: cgroup /jobs/a reached its memory limit");
        let found = look(&mut triggers, 300, vec![line(3, 300, &killed(78))]);
        assert_eq!((found[0].subject.as_str(), found[0].key.as_str()), ("python3", "oom-kill:python3"));
    }

    #[test]
    fn a_soft_lockup_suspects_its_core_and_can_be_switched_off() {
        let lockup = "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [kworker/3:1:77]";
        let found = look(&mut started(), 200, vec![line(1, 200, lockup)]);
        assert_eq!((found[0].code.as_str(), found[0].core), ("kernel-stall", Some(3)));
        let off = TriggerConfig { kernel_stall: false, ..TriggerConfig::default() };
        let mut triggers = LogTriggers::new(&off);
        triggers.look(&fragment(100, Vec::new()), &mut Vec::new());
        assert_eq!(look(&mut triggers, 200, vec![line(1, 200, lockup)]), []);
    }
}
