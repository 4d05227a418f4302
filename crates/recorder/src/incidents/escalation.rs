//! Samples a suspected core at a higher rate, within a budget: each sample costs it some microseconds, and it is in trouble already.

use super::super::config::IncidentConfig;
use coroner_evidence::Time;
use std::collections::VecDeque;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
/// Less than this shows too little.
const SHORTEST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Escalation {
    rate: u32,
    at_most: Duration,
    per_hour: Duration,
    /// Granted so far, oldest first: core, from, until.
    granted: VecDeque<(u32, Time, Time)>,
}

impl Escalation {
    pub fn new(config: &IncidentConfig) -> Escalation {
        Escalation {
            rate: config.escalate_rate,
            at_most: config.escalate_for,
            per_hour: config.escalate_per_hour,
            granted: VecDeque::new(),
        }
    }

    /// An incident suspects a core. It gets what is left of the budget, after the cores suspected before it.
    pub fn suspect(&mut self, core: u32, now: Time) {
        if self.rate == 0 {
            return;
        }
        self.forget(now);
        let begin = self.granted.back().map_or(now, |(_, _, until)| (*until).max(now));
        // A core that would wait for longer than an incident lasts is not worth sampling any more.
        let same = self.granted.back().is_some_and(|(last, _, until)| *last == core && *until > now);
        let used: Duration = self.granted.iter().map(|(_, from, until)| until.since(*from)).sum();
        let length = self.at_most.min(self.per_hour.saturating_sub(used));
        if !same && length >= SHORTEST.min(self.at_most) && !length.is_zero() && begin.since(now) <= self.at_most {
            self.granted.push_back((core, begin, begin + length));
        }
    }

    /// The core to sample now, and how often.
    pub fn now(&mut self, now: Time) -> Option<(u32, u32)> {
        self.forget(now);
        let current = self.granted.iter().find(|(_, from, until)| *from <= now && now < *until);
        current.map(|(core, _, _)| (*core, self.rate))
    }

    fn forget(&mut self, now: Time) {
        while self.granted.front().is_some_and(|(_, _, until)| now.since(*until) >= HOUR) {
            self.granted.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Time {
        Time::from_secs(10_000 + second)
    }

    #[test]
    fn one_core_after_the_other_within_the_budget() {
        let mut escalation = Escalation::new(&IncidentConfig::default());
        assert_eq!(escalation.now(at(0)), None);
        escalation.suspect(3, at(0));
        escalation.suspect(3, at(1));
        escalation.suspect(5, at(2));
        assert_eq!(escalation.now(at(9)), Some((3, 999)));
        assert_eq!(escalation.now(at(12)), Some((5, 999)));
        assert_eq!(escalation.now(at(21)), None);
        for n in 0..20 {
            escalation.suspect(7, at(100 + n * 20));
        }
        let seconds = (0..3600).filter(|s| escalation.now(at(*s)).is_some()).count();
        assert_eq!(seconds, 60);
        escalation.suspect(7, at(4000));
        assert_eq!(escalation.now(at(4001)), Some((7, 999)), "an hour later the budget is back");
    }

    #[test]
    fn a_rate_or_time_of_zero_switches_it_off() {
        for config in [
            IncidentConfig { escalate_rate: 0, ..IncidentConfig::default() },
            IncidentConfig { escalate_for: Duration::ZERO, ..IncidentConfig::default() },
            IncidentConfig { escalate_per_hour: Duration::ZERO, ..IncidentConfig::default() },
        ] {
            let mut escalation = Escalation::new(&config);
            escalation.suspect(1, at(0));
            assert_eq!(escalation.now(at(0)), None);
        }
    }
}
