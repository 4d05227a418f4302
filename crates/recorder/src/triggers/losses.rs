//! Somebody who lost most of the CPU time it asked for, by the wait ledger.
//!
//! Each interval of the ledger is judged by itself, with the thresholds of a diagnosis and two more. Taking turns on full cores is no
//! incident, however little everybody gets: that is a busy node. One culprit may starve these and then those: that is one incident.

use super::super::trigger::{Over, Trigger};
use super::cores::CoreTriggers;
use coroner_diagnosis::case::Case;
use coroner_diagnosis::finding::SubjectKind;
use coroner_diagnosis::rules;
use coroner_diagnosis::waits::losses::{Kind, Loss};
use coroner_evidence::{CoreTimes, Evidence, Observer, Order, Time, WaitLedger};
use std::time::Duration;

/// It lost at least this share of what it asked for.
const LOST: f64 = 0.5;
/// Looks at the cores are kept this far apart: over an interval, shares of a core are exact enough.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longer than an interval of the ledger takes and is late.
const LOOKS_KEPT: Duration = Duration::from_secs(15);
/// Each diagnosis of the recorder is one; older ones are gone.
const MOST_OBSERVERS: usize = 64;

pub struct LossTrigger {
    /// A thread waited at least this long within an interval. Zero: never.
    waited: Duration,
    looks: Vec<CoreTimes>,
    observers: Vec<Observer>,
    going_on: Vec<GoesOn>,
}

/// Reported, and not over.
struct GoesOn {
    trigger: Trigger,
    lasted: Duration,
    until: Time,
}

impl LossTrigger {
    pub fn new(waited: Duration) -> LossTrigger {
        LossTrigger { waited, looks: Vec::new(), observers: Vec::new(), going_on: Vec::new() }
    }

    pub fn look(&mut self, fragment: &Evidence, cores: &CoreTriggers, found: &mut Vec<Trigger>, over: &mut Vec<Over>) {
        if self.waited.is_zero() {
            return;
        }
        for observer in &fragment.observers {
            self.observers.retain(|known| known.pid != observer.pid);
            self.observers.push(*observer);
            let excess = self.observers.len().saturating_sub(MOST_OBSERVERS);
            self.observers.drain(..excess);
        }
        for look in &fragment.core_times {
            if self.looks.last().is_none_or(|last| look.at.since(last.at) >= LOOK_EVERY) {
                self.looks.retain(|kept| look.at.since(kept.at) <= LOOKS_KEPT);
                self.looks.push(look.clone());
            }
        }
        for ledger in &fragment.waits {
            self.judge(ledger, cores, found, over);
        }
    }

    fn judge(&mut self, ledger: &WaitLedger, cores: &CoreTriggers, found: &mut Vec<Trigger>, over: &mut Vec<Over>) {
        let least = self.waited.as_nanos() as u64;
        let mut lost: Vec<Trigger> = Vec::new();
        // Most intervals end here.
        if ledger.accounts.iter().any(|account| account.waited_ns >= least) {
            let evidence = Evidence {
                core_times: self.looks.clone(),
                observers: self.observers.clone(),
                waits: vec![ledger.clone()],
                ..Evidence::default()
            };
            let case = Case::of(&evidence);
            let matters = |loss: &&Loss| {
                let most = loss.victims.first().is_some_and(|v| v.waited_ns >= least && v.lost() >= LOST);
                // A real-time thread that has a core to itself is an incident already.
                let told = loss.kind == Kind::Class && loss.cores.iter().any(|core| cores.told_of(*core, ledger.from));
                loss.kind != Kind::Turns && most && !told
            };
            let mut losses: Vec<&Loss> = case.losses().unwrap_or_default().iter().filter(matters).collect();
            let waited = |loss: &&Loss| loss.victims.iter().map(|v| v.waited_ns).fold(0, u64::saturating_add);
            losses.order_by_key(|loss| std::cmp::Reverse(waited(loss)));
            lost.extend(losses.into_iter().map(|loss| begun(&case, loss)));
        }
        let length = ledger.to.since(ledger.from);
        self.going_on.retain_mut(|known| {
            let before = lost.len();
            lost.retain(|new| !are_one(new, &known.trigger));
            let goes_on = lost.len() < before;
            if goes_on {
                known.lasted += length;
                known.until = ledger.to;
            } else {
                let Trigger { code, subject, by, .. } = known.trigger.clone();
                over.push(Over { code, subject, by, lasted: known.lasted, until: known.until });
            }
            goes_on
        });
        for trigger in lost {
            if !self.going_on.iter().any(|known| are_one(&known.trigger, &trigger)) {
                found.push(trigger.clone());
                self.going_on.push(GoesOn { trigger, lasted: length, until: ledger.to });
            }
        }
    }
}

/// The same culprit in the same way.
fn are_one(one: &Trigger, other: &Trigger) -> bool {
    one.code == other.code && one.by == other.by
}

fn begun(case: &Case<'_>, loss: &Loss) -> Trigger {
    let finding = rules::of_loss(case, loss);
    let core = loss.cores.first().copied().filter(|_| loss.cores.len() == 1);
    // Processes come and go; what they starve on or weigh stays.
    let subject = match finding.subject.kind {
        SubjectKind::Process => core.map_or_else(String::new, |core| format!("core {core}")),
        _ => finding.subject.name.clone(),
    };
    Trigger {
        code: finding.code.as_str().to_owned(),
        key: finding.key(),
        by: finding.ties.culprits.first().map(|culprit| culprit.comm.clone()),
        core,
        at: loss.when.to,
        since: Some(loss.when.from),
        text: finding.title,
        subject,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::{Account, Charge, CoreTicks, Party, Runner};

    const MS: u64 = 1_000_000;

    /// Ten seconds in which `svc`, on core 1, got this much of what it asked for, and short-lived processes had the rest.
    fn interval(nth: u64, ran_ms: u64, waited_ms: u64, core_0_busy: u64) -> Evidence {
        let at = |second: u64| Time::from_secs(100 + nth * 10 + second);
        let look = |second: u64| {
            let ticks = nth * 1000 + second * 100;
            let full = CoreTicks { core: 1, user: ticks, ..CoreTicks::default() };
            let user = ticks * core_0_busy / 100;
            CoreTimes { at: at(second), cores: vec![CoreTicks { core: 0, user, idle: ticks - user, ..full }, full] }
        };
        let svc = Party { id: 4, pid: Some(100), comm: "svc".into(), ..Party::default() };
        let storm =
            Party { id: 5, parent_pid: Some(99), parent_comm: Some("storm".into()), comm: "sh".into(), ..svc.clone() };
        let account =
            Account { party: 4, tid: Some(100), ran_ns: ran_ms * MS, waited_ns: waited_ms * MS, ..Account::default() };
        let charge = Charge { victim: 4, tid: Some(100), to: Runner::Party(5), core: 1, ns: waited_ms * MS };
        let ledger = WaitLedger {
            from: at(0),
            to: at(10),
            watched_ns: 10_000 * MS,
            parties: vec![svc, Party { pid: None, ..storm }],
            accounts: vec![account],
            charges: vec![charge],
            ..WaitLedger::default()
        };
        Evidence { core_times: (0..=10).map(look).collect(), waits: vec![ledger], ..Evidence::default() }
    }

    fn told(trigger: &mut LossTrigger, evidence: &Evidence) -> (Vec<String>, Vec<Duration>) {
        let (mut found, mut over) = (Vec::new(), Vec::new());
        trigger.look(evidence, &CoreTriggers::new(Duration::from_secs(1)), &mut found, &mut over);
        (found.into_iter().map(|f| format!("{}: {}", f.key, f.text)).collect(), over.iter().map(|o| o.lasted).collect())
    }

    #[test]
    fn a_starved_service_is_one_incident_and_its_end_is_told() {
        let mut trigger = LossTrigger::new(Duration::from_secs(2));
        let nothing = (Vec::new(), Vec::new());
        assert_eq!(told(&mut trigger, &interval(0, 700, 100, 10)), nothing);
        let (found, over) = told(&mut trigger, &interval(1, 700, 4400, 10));
        assert_eq!((found.len(), over.len()), (1, 0), "{found:?}");
        assert_eq!(
            found[0],
            "fork-storm:storm: svc[100] got 14 % of the CPU time it asked for: short-lived processes (sh) of storm[99] had core 1"
        );
        assert_eq!(told(&mut trigger, &interval(2, 500, 4400, 10)), nothing, "the same goes on");
        let (found, over) = told(&mut trigger, &interval(3, 700, 100, 10));
        assert_eq!((found.len(), over), (0, vec![Duration::from_secs(20)]));
    }

    #[test]
    fn a_short_wait_or_half_a_loss_is_none_and_zero_switches_it_off() {
        let mut trigger = LossTrigger::new(Duration::from_secs(2));
        for (nth, (ran, waited)) in [(100, 1500), (4000, 3500)].into_iter().enumerate() {
            assert_eq!(told(&mut trigger, &interval(nth as u64, ran, waited, 10)), (Vec::new(), Vec::new()));
        }
        let mut off = LossTrigger::new(Duration::ZERO);
        assert_eq!(told(&mut off, &interval(0, 700, 4400, 10)), (Vec::new(), Vec::new()));
    }

    /// Two ordinary hogs beside it on full cores: they take turns.
    #[test]
    fn turns_on_full_cores_are_no_incident() {
        let mut evidence = interval(0, 3000, 6900, 100);
        let hog = &mut evidence.waits[0].parties[1];
        (hog.pid, hog.parent_pid, hog.comm) = (Some(99), None, "hog".to_owned());
        assert_eq!(told(&mut LossTrigger::new(Duration::from_secs(2)), &evidence), (Vec::new(), Vec::new()));
    }
}
