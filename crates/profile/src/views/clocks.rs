//! Which events tick like a clock. Views that speak of time use one such event: the samples of a tracepoint come when something
//! happens, and page faults say nothing of who had the core.

use crate::model::{Dictionary, EventId, Sample};

/// How well an event's samples stand for time; the better is the larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ticking {
    /// Tracepoints, probes and software counters: not used.
    Not,
    /// Counters that run while a core works, as instructions do.
    WithWork,
    /// Cycles. An idle core has none, so that no samples may mean idle or lost.
    WhileBusy,
    /// A timer that goes on while the core idles (`cpu-clock`). Whether the kernel then hands out samples is another matter: on a
    /// virtual machine with Linux 6.18 one idle core had its samples and the other one none, under perf as well. So a core counts as
    /// sampled while idle only if it was seen idle.
    Always,
}

/// Periods of a timer are nanoseconds; others than these are something else, or nobody said.
const PERIODS: std::ops::RangeInclusive<u64> = 10_000..=10_000_000_000;

impl Ticking {
    /// The nanoseconds that a sample stands for, where its event says so.
    pub(super) fn time_of(self, sample: &Sample) -> Option<u64> {
        self.time_of_period(sample.period)
    }

    pub(super) fn time_of_period(self, period: u64) -> Option<u64> {
        (self == Ticking::Always && PERIODS.contains(&period)).then_some(period)
    }

    fn of(event: &str) -> Ticking {
        let mut name = event;
        if let Some((before, behind)) = event.rsplit_once(':') {
            // `cycles:ppp` is modified, `sched:sched_switch` is a tracepoint.
            if !behind.bytes().all(|byte| b"ukhGHpPSDIWeb".contains(&byte)) {
                return Ticking::Not;
            }
            name = before;
        }
        let parts: Vec<&str> = name.split('/').collect();
        // `cpu_core/cycles/` is cycles of one sort of core.
        name = if let [_, inner, ..] = parts[..] { inner } else { name };
        match name {
            "cpu-clock" | "task-clock" => Ticking::Always,
            // Without a name it is what the recorder takes by default: one of these clocks, and nobody knows which.
            "" | "samples" | "cycles" | "cpu-cycles" | "ref-cycles" | "cycles-ct" | "cycles-t" => Ticking::WhileBusy,
            "page-faults" | "faults" | "minor-faults" | "major-faults" | "context-switches" | "cs"
            | "cpu-migrations" | "migrations" | "alignment-faults" | "emulation-faults" | "cgroup-switches"
            | "bpf-output" | "dummy" | "duration_time" => Ticking::Not,
            _ => Ticking::WithWork,
        }
    }
}

/// Keeps what it learned of each event.
#[derive(Clone, Debug, Default)]
pub struct Clocks {
    events: Vec<Ticking>,
    best: Option<Ticking>,
}

impl Clocks {
    /// How an event ticks. `names` is the same at each call, but for what was added to it.
    pub fn of(&mut self, names: &Dictionary, id: EventId) -> Ticking {
        while self.events.len() <= usize::from(id.0) {
            let event = names.events.get(self.events.len());
            self.events.push(event.map_or(Ticking::Not, |event| Ticking::of(&event.name)));
        }
        self.events[usize::from(id.0)]
    }

    /// How an event ticks that was asked for before.
    pub(super) fn ticking(&self, id: EventId) -> Ticking {
        self.events.get(usize::from(id.0)).copied().unwrap_or(Ticking::Not)
    }

    /// Whether the samples of an event are of use: counters only as long as there is no clock.
    pub fn wants(&mut self, names: &Dictionary, id: EventId) -> bool {
        let ticking = self.of(names, id);
        if ticking == Ticking::Not {
            return false;
        }
        self.best = self.best.max(Some(ticking));
        ticking >= Ticking::WhileBusy || self.best == Some(ticking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_told_from_what_is_none() {
        for (event, want) in [
            ("cpu-clock", Ticking::Always),
            ("cpu-clock:pppH", Ticking::Always),
            ("", Ticking::WhileBusy),
            ("cycles:P", Ticking::WhileBusy),
            ("cpu_core/cycles/P", Ticking::WhileBusy),
            ("cpu/cycles/", Ticking::WhileBusy),
            ("cpu_atom/cpu-cycles/:u", Ticking::WhileBusy),
            ("instructions:u", Ticking::WithWork),
            ("r01c2", Ticking::WithWork),
            ("sched:sched_switch", Ticking::Not),
            ("probe_libc:malloc", Ticking::Not),
            ("page-faults:u", Ticking::Not),
        ] {
            assert_eq!(Ticking::of(event), want, "{event}");
        }
    }
}
