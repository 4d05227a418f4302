//! Reading names on a node that must not notice it.

use std::time::{Duration, Instant};

/// The largest symbol table that is read, in bytes of the file: a third of a million functions, of which about two thirds of
/// this are kept.
pub(super) const MOST_OF_ONE: u64 = 8 << 20;
/// All tables together, in memory. Those not asked for longest go first.
pub(super) const MOST_OF_ALL: usize = 16 << 20;

/// What may be spent on reading files in a second, on average; and at once, after a pause.
const EACH_SECOND: Duration = Duration::from_millis(20);
const AT_ONCE: Duration = Duration::from_millis(200);

/// Time passes also while we are kept from running: a long pause is not made up for in full.
const MOST_OVERDRAWN_NS: i64 = 1_000_000_000;

pub(super) struct Sparing {
    pub budget: Budget,
}

impl Sparing {
    pub fn new() -> Sparing {
        Sparing { budget: Budget::new(EACH_SECOND, AT_ONCE) }
    }
}

/// Time that may be spent. What took longer than was left is made up for before the next.
pub(crate) struct Budget {
    each_second: Duration,
    at_once: Duration,
    left_ns: i64,
    filled: Instant,
}

impl Budget {
    pub fn new(each_second: Duration, at_once: Duration) -> Budget {
        Budget { each_second, at_once, left_ns: at_once.as_nanos() as i64, filled: Instant::now() }
    }

    pub fn is_left(&mut self) -> bool {
        self.fill(Instant::now());
        self.left_ns > 0
    }

    pub fn spend<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        self.spent(began);
        done
    }

    /// All the time since then.
    pub fn spent(&mut self, began: Instant) {
        let spent = i64::try_from(began.elapsed().as_nanos()).unwrap_or(i64::MAX);
        self.left_ns = self.left_ns.saturating_sub(spent).max(-MOST_OVERDRAWN_NS);
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        let earned = (passed * self.each_second.as_nanos() as f64) as i64;
        if earned > 0 {
            self.left_ns = self.left_ns.saturating_add(earned).min(self.at_once.as_nanos() as i64);
            self.filled = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_overdrawn_is_made_up_for() {
        let mut budget = Budget::new(Duration::from_millis(20), Duration::from_millis(100));
        assert!(budget.is_left());
        budget.left_ns -= 140_000_000;
        let now = budget.filled;
        budget.fill(now + Duration::from_secs(1));
        assert!(budget.left_ns < 0, "{}", budget.left_ns);
        budget.fill(now + Duration::from_secs(3));
        assert!(budget.left_ns > 0);
        budget.fill(now + Duration::from_secs(3600));
        assert_eq!(budget.left_ns, 100_000_000);
    }
}
