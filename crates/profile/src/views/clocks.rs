//! Which events tick like a clock. Views about time use one such event: tracepoint samples come when something happens, and page
//! faults say nothing about who had the core.

use crate::model::{Dictionary, EventId, Sample};

/// How well an event's samples represent time; larger is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ticking {
    /// Tracepoints, probes and software counters: not used.
    Not,
    /// Counters that advance while a core works, such as instructions.
    WithWork,
    /// Cycles. An idle core has none, so missing samples may mean idle or lost.
    WhileBusy,
    /// A timer that ticks on an idle core (`cpu-clock`). The kernel may still deliver no samples: on a virtual machine with Linux
    /// 6.18 one idle core was sampled and the other was not, under perf as well. So a core counts as sampled while idle only if it
    /// was seen idle.
    Always,
}

/// Plausible timer periods in nanoseconds; anything else has another unit or was not recorded.
const PERIODS: std::ops::RangeInclusive<u64> = 10_000..=10_000_000_000;

impl Ticking {
    /// The nanoseconds that a sample represents, if its event tells.
    pub(super) fn time_of(self, sample: &Sample) -> Option<u64> {
        self.time_of_period(sample.period)
    }

    pub(super) fn time_of_period(self, period: u64) -> Option<u64> {
        (self == Ticking::Always && PERIODS.contains(&period)).then_some(period)
    }

    fn of(event: &str) -> Ticking {
        let mut name = event;
        if let Some((before, behind)) = event.rsplit_once(':') {
            // `cycles:ppp` has modifiers, `sched:sched_switch` is a tracepoint.
            if !behind.bytes().all(|byte| b"ukhGHpPSDIWeb".contains(&byte)) {
                return Ticking::Not;
            }
            name = before;
        }
        let parts: Vec<&str> = name.split('/').collect();
        // `cpu_core/cycles/`: cycles of one core type of a hybrid CPU.
        name = if let [_, inner, ..] = parts[..] { inner } else { name };
        match name {
            "cpu-clock" | "task-clock" => Ticking::Always,
            // Unnamed: a recorder's default, so one of these clocks, but unknown which.
            "" | "samples" | "cycles" | "cpu-cycles" | "ref-cycles" | "cycles-ct" | "cycles-t" => Ticking::WhileBusy,
            "page-faults" | "faults" | "minor-faults" | "major-faults" | "context-switches" | "cs"
            | "cpu-migrations" | "migrations" | "alignment-faults" | "emulation-faults" | "cgroup-switches"
            | "bpf-output" | "dummy" | "duration_time" => Ticking::Not,
            _ => Ticking::WithWork,
        }
    }
}

/// Caches how each event ticks.
#[derive(Clone, Debug, Default)]
pub struct Clocks {
    events: Vec<Ticking>,
    best: Option<Ticking>,
}

impl Clocks {
    /// How an event ticks. `names` must be the same at each call; it may grow.
    pub fn of(&mut self, names: &Dictionary, id: EventId) -> Ticking {
        while self.events.len() <= usize::from(id.0) {
            let event = names.events.get(self.events.len());
            self.events.push(event.map_or(Ticking::Not, |event| Ticking::of(&event.name)));
        }
        self.events[usize::from(id.0)]
    }

    /// How an event ticks that [`Clocks::of`] has seen.
    pub(super) fn ticking(&self, id: EventId) -> Ticking {
        self.events.get(usize::from(id.0)).copied().unwrap_or(Ticking::Not)
    }

    /// Whether an event's samples are used: counters only as long as there is no clock.
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
    fn clocks_are_recognised() {
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
