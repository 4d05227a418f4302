//! An endless watch, for the recorder.

use super::nic_thread::NicRequest;
use super::paces::Paces;
use super::said::ReportedUnseen;
use super::zombie_thread::ZombieThread;
use super::{CounterProbes, Watch, WatchOptions, many_zombies, pace::Pace};
use crate::cgroups::Reread;
use crate::identity;
use crate::interrupts::InterruptReader;
use crate::root::{Root, now, own_cpu};
use crate::softirqs::SoftirqReader;
use coroner_evidence::Evidence;
use std::time::Duration;

/// Rarely: though guarded, it is the most expensive file on a sick node.
const STAT_READ_EVERY: Duration = Duration::from_secs(600);

/// State that only an endless watch has.
pub struct Endless {
    pub said: ReportedUnseen,
    zombies: ZombieThread,
    stat_read: Pace,
    /// What is still to be reported anew.
    anew: Anew,
}

/// Spread over several turns, so that none takes long.
#[derive(Debug, Default)]
struct Anew {
    threads_and_counters: bool,
    cgroups: bool,
    nics: bool,
    node: bool,
}

impl Watch {
    /// Watches at the recorder's paces until [`Watch::stop`]. Dead memory cgroups are reported by parent every minute, and by
    /// name at the beginning and after [`Watch::tell_anew`].
    pub fn start_endless(root: Root, options: WatchOptions) -> Watch {
        let cpu_before = own_cpu();
        let kernel_work = options.kernel_work;
        let mut watch = Watch::new(root, options, Duration::MAX, Paces::recorder());
        let mut first = Evidence::default();
        watch.begin(&mut first);
        if kernel_work {
            watch.sample_kernel(many_zombies(&first), &mut first);
        }
        let mut endless = Endless {
            said: ReportedUnseen::default(),
            zombies: ZombieThread::start(watch.root.clone()),
            stat_read: Pace::new(STAT_READ_EVERY, 1),
            anew: Anew::default(),
        };
        endless.stat_read.put_off(now(), Duration::ZERO);
        endless.zombies.turn(&mut first);
        endless.said.leave_new(&mut first);
        watch.endless = Some(endless);
        watch.begun(first, cpu_before, Duration::MAX)
    }

    /// A new segment begins: the next turns report again everything that is otherwise reported once or on change.
    ///
    /// Threads and counters come with the next turn; cgroups, the node, network devices, units, files, containers and dead memory
    /// cgroups within a few seconds. Kernel log and journal lines are not repeated: each is in the segment in which it was read.
    pub fn tell_anew(&mut self) {
        let Some(endless) = &mut self.endless else { return };
        endless.anew = Anew { threads_and_counters: true, cgroups: true, nics: true, node: true };
        endless.said.forget();
        endless.zombies.tell_anew();
        self.tasks.tell_anew();
        // Processes that could not be seen may be gone.
        self.homes.all_seen = true;
        // They remember only what they last reported. New ones also forget what is long gone.
        self.counters = CounterProbes::new(&self.root);
        self.softirqs = SoftirqReader::new(&self.root);
        self.interrupts = InterruptReader::new(&self.root);
        self.cgroups.tell_anew();
        if let Some(churn) = &mut self.churn {
            churn.tell_anew();
        }
        if let Some(exits) = &mut self.exits {
            exits.tell_anew();
        }
        if let Some(waits) = &mut self.waits {
            waits.tell_anew();
        }
        // Before the units, which it forgets.
        if let Some(audit) = &mut self.audit {
            audit.tell_anew();
        }
        self.units.tell_anew();
    }

    pub(super) fn endless_turn(&mut self, evidence: &mut Evidence) {
        let anew = match &mut self.endless {
            Some(endless) => std::mem::take(&mut endless.anew),
            None => Anew::default(),
        };
        let mut later = Anew { threads_and_counters: false, ..anew };
        if anew.threads_and_counters {
            self.look_at_all_threads(evidence);
            self.look_at_counters(evidence);
            self.paces.softirqs.pay(|at| self.softirqs.look(at, evidence));
            self.paces.interrupts.pay(|at| self.interrupts.look(at, evidence));
        } else if anew.cgroups {
            later.cgroups = false;
            self.look_at_cgroups(Reread::Everything, evidence);
        } else if anew.node {
            later.node = false;
            identity::identify(&self.root, evidence);
        }
        if anew.nics {
            later.nics = !self.nics.ask(NicRequest::Anew);
        }
        self.look_at_what_is_due(evidence);
        let Some(endless) = &mut self.endless else { return };
        endless.anew = later;
        endless.zombies.turn(evidence);
        if endless.stat_read.is_due() {
            endless.stat_read.put_off(now(), Duration::ZERO);
            self.cgroups.start_stat_read(now(), evidence);
        }
    }

    /// Quick, as stopping the recorder waits for it. Units, files and network devices were reported a few seconds ago.
    pub(super) fn end_endless(&mut self, evidence: &mut Evidence) {
        self.look_at_all_threads(evidence);
        self.look_at_counters(evidence);
        self.paces.softirqs.pay(|at| self.softirqs.look(at, evidence));
        self.look_at_cgroups(Reread::Affordable, evidence);
        self.log.look(now(), evidence);
        self.nics.collect(Duration::ZERO, evidence);
        self.cgroups.collect_stat_read(evidence);
        self.finish_in_kernel(evidence);
    }
}

#[cfg(test)]
#[path = "endless_host_tests.rs"]
mod host_tests;
