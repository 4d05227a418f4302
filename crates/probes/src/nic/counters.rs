//! Which counters of a device are recorded at each look.

use coroner_evidence::{Evidence, Source, Time};

/// The counters of one source of one device, in a fixed order, and what was recorded of them so far.
#[derive(Debug)]
pub struct CounterBlock {
    source: Source,
    subject: String,
    names: Vec<String>,
    last: Vec<Option<u64>>,
    told: Vec<bool>,
    looked: Option<Time>,
}

impl CounterBlock {
    pub fn new(source: Source, subject: String, names: Vec<String>) -> CounterBlock {
        let (last, told) = (vec![None; names.len()], vec![false; names.len()]);
        CounterBlock { source, subject, names, last, told, looked: None }
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Changes the names (a driver's statistics change with its queues), keeping the state of those that remain.
    pub fn rename(&mut self, names: Vec<String>) {
        let mut renamed = CounterBlock::new(self.source, std::mem::take(&mut self.subject), names);
        renamed.looked = self.looked;
        let old: std::collections::HashMap<&str, usize> =
            self.names.iter().enumerate().map(|(i, name)| (name.as_str(), i)).collect();
        for (i, name) in renamed.names.iter().enumerate() {
            if let Some(&was) = old.get(name.as_str()) {
                renamed.last[i] = self.last[was];
                renamed.told[i] = self.told[was];
            }
        }
        *self = renamed;
    }

    /// Records what `first` accepts at the first look, and what changed. A counter that was skipped so far is also recorded
    /// with its previous value, so that the change can be computed.
    pub fn look(
        &mut self,
        at: Time,
        values: impl IntoIterator<Item = Option<u64>>,
        first: impl Fn(&str, u64) -> bool,
        evidence: &mut Evidence,
    ) {
        let counters = &mut evidence.counters;
        for (i, value) in values.into_iter().enumerate().take(self.names.len()) {
            // Unreadable this time: recorded as nothing, not as zero.
            let Some(value) = value else { continue };
            let name = &self.names[i];
            match self.last[i] {
                None => {
                    // A counter that appears later (a queue was added) counts as first seen.
                    if first(name, value) {
                        counters.push(self.source, &self.subject, name, at, value);
                        self.told[i] = true;
                    }
                }
                Some(before) if before != value => {
                    if let (false, Some(then)) = (self.told[i], self.looked) {
                        counters.push(self.source, &self.subject, name, then, before);
                    }
                    counters.push(self.source, &self.subject, name, at, value);
                    self.told[i] = true;
                }
                Some(_) => {}
            }
            self.last[i] = Some(value);
        }
        self.looked = Some(at);
    }
}

/// Whether a driver statistic is recorded at the first look: if it is not zero, or if it counts errors for the whole device, so
/// that errors can be ruled out. Per-queue error counters only if not zero: 100 queues would make thousands of zeros.
pub fn driver_statistic_worth_a_first_look(name: &str, value: u64) -> bool {
    const TROUBLE: &[&str] =
        &["reset", "timeout", "wd_expired", "allowance", "drop", "starv", "missing", "missed", "err"];
    if value != 0 {
        return true;
    }
    let name = name.to_ascii_lowercase();
    TROUBLE.iter().any(|word| name.contains(word)) && !is_of_one_queue(&name)
}

/// `rx0_drops`, `queue_3_tx_missing`, `tx-3.drops`, `[5]: rx_errors`
fn is_of_one_queue(name: &str) -> bool {
    let bytes = name.as_bytes();
    ["rx", "tx", "queue", "ch", "q", "["].iter().any(|word| {
        name.match_indices(word).any(|(at, _)| {
            let starts_word = at == 0 || !bytes[at - 1].is_ascii_alphanumeric();
            let mut rest = bytes[at + word.len()..].iter();
            let next = match rest.next() {
                Some(b'_' | b'-' | b'.') => rest.next(),
                next => next,
            };
            starts_word && next.is_some_and(u8::is_ascii_digit)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::Point;

    #[test]
    fn a_counter_that_starts_to_change_keeps_its_previous_value() {
        let mut block = CounterBlock::new(Source::Ethtool, "eth0".into(), vec!["a".into(), "quiet".into()]);
        let mut evidence = Evidence::default();
        let nonzero = |_: &str, value| value != 0;
        for (second, a) in [(1, 0), (2, 0), (3, 7), (4, 7)] {
            block.look(Time::from_secs(second), [Some(a), Some(0)], nonzero, &mut evidence);
        }
        let point = |second, value| Point { at: Time::from_secs(second), value };
        assert_eq!(evidence.counters.points(Source::Ethtool, "eth0", "a"), [point(2, 0), point(3, 7)]);
        assert_eq!(evidence.counters.names(Source::Ethtool, "eth0"), ["a"]);
    }

    #[test]
    fn a_value_that_cannot_be_read_is_not_zero() {
        let mut block = CounterBlock::new(Source::NicStatistics, "eth0".into(), vec!["a".into()]);
        let mut evidence = Evidence::default();
        for value in [Some(5), None, Some(5)] {
            block.look(Time::from_secs(1), [value], |_, _| true, &mut evidence);
        }
        assert_eq!(evidence.counters.points(Source::NicStatistics, "eth0", "a").len(), 1);
    }

    #[test]
    fn counters_keep_their_state_when_the_driver_lists_them_anew() {
        let mut block = CounterBlock::new(Source::Ethtool, "eth0".into(), vec!["a".into(), "b".into()]);
        let mut evidence = Evidence::default();
        block.look(Time::from_secs(1), [Some(1), Some(2)], |_, _| true, &mut evidence);
        block.rename(vec!["b".into(), "c".into(), "a".into()]);
        block.look(Time::from_secs(2), [Some(2), Some(9), Some(4)], |_, _| true, &mut evidence);
        let moved = |name| evidence.counters.moved(Source::Ethtool, "eth0", name);
        assert_eq!((moved("a"), moved("b"), moved("c")), (Some(3), Some(0), Some(0)));
    }

    #[test]
    fn zero_error_counters_are_recorded_but_not_per_queue() {
        for name in ["tx_timeout", "total_resets", "bw_in_allowance_exceeded", "rx_drops", "wd_expired", "missing_intr"]
        {
            assert!(driver_statistic_worth_a_first_look(name, 0), "{name}");
        }
        for name in
            ["rx0_drops", "queue_3_tx_missed_tx", "tx-3.drops", "[5]: rx_errors", "rx_queue_0_drops", "tx_kicks"]
        {
            assert!(!driver_statistic_worth_a_first_look(name, 0), "{name}");
            assert!(driver_statistic_worth_a_first_look(name, 1), "{name}");
        }
    }
}
