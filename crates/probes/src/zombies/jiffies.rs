//! The kernel's tick count as a time.

use coroner_evidence::Time;
use rustix::time::ClockId;

use crate::Root;
use crate::root::clock;

/// The current tick count and the tick rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Timing {
    hz: u64,
    jiffies: u64,
    now: Time,
}

/// Known values of CONFIG_HZ.
const KNOWN_HZ: [u64; 6] = [100, 250, 300, 1000, 128, 1024];

impl Timing {
    /// `jiffies` was just read by a BPF program; otherwise it is taken from /proc/timer_list.
    pub fn read(root: &Root, jiffies: Option<u64>) -> Option<Timing> {
        let now = clock(ClockId::Monotonic);
        let jiffies = jiffies.or_else(|| of_timer_list(&root.read("/proc/timer_list").ok()?))?;
        Some(Timing { hz: ticks_a_second(jiffies, now)?, jiffies, now })
    }

    pub fn at(&self, jiffies: u64) -> Time {
        let ago = self.jiffies.saturating_sub(jiffies) as u128 * 1_000_000_000 / u128::from(self.hz);
        Time(self.now.0.saturating_sub(ago.min(u128::from(u64::MAX)) as u64))
    }

    #[cfg(test)]
    pub fn for_test(hz: u64, jiffies: u64, now: Time) -> Timing {
        Timing { hz, jiffies, now }
    }
}

fn of_timer_list(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("jiffies: "))?.trim().parse().ok()
}

/// On 64-bit machines the count starts five minutes before 2^32 (INITIAL_JIFFIES, include/linux/jiffies.h) and follows
/// CLOCK_MONOTONIC, so uptime gives the rate. `None` if no known rate fits: no time is better than a wrong one.
fn ticks_a_second(jiffies: u64, now: Time) -> Option<u64> {
    let uptime = now.0 as f64 / 1e9;
    let expected = |hz: u64| (1u64 << 32) as f64 + (uptime - 300.0) * hz as f64;
    let error = |hz: &u64| (expected(*hz) - jiffies as f64).abs();
    let best = KNOWN_HZ.into_iter().min_by(|a, b| error(a).total_cmp(&error(b)))?;
    (error(&best) <= best as f64 * (2.0 + uptime * 0.01)).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_rate_follows_from_the_uptime() {
        for hz in KNOWN_HZ {
            for uptime in [1u64, 250, 299, 301, 6000, 86_400 * 365] {
                let jiffies = ((1i64 << 32) + (uptime as i64 - 300) * hz as i64) as u64;
                let found = ticks_a_second(jiffies, Time::from_secs(uptime));
                // At 300 s all rates meet.
                assert!(found == Some(hz) || (299..=301).contains(&uptime), "{hz} {uptime}: {found:?}");
            }
        }
        assert_eq!(ticks_a_second(12, Time::from_secs(6000)), None);
    }

    #[test]
    fn jiffies_are_read_from_the_timer_list() {
        assert_eq!(of_timer_list("  .last_jiffies   : 3\njiffies: 4296691669\n"), Some(4_296_691_669));
        assert_eq!(of_timer_list("jiffies: x"), None);
    }

    #[test]
    fn the_live_timer_list_agrees_with_the_clock() {
        let Some(timing) = Timing::read(&Root::live(), None) else {
            return coroner_lab::skip("needs /proc/timer_list (root)");
        };
        let boot = timing.at((1u64 << 32) - 300 * timing.hz);
        assert!(boot.0 < 5_000_000_000, "{timing:?}: boot is placed {boot:?} after boot");
    }

    proptest! {
        #[test]
        fn any_count(jiffies: u64, now: u64, then: u64) {
            if let Some(hz) = ticks_a_second(jiffies, Time(now)) {
                Timing { hz, jiffies, now: Time(now) }.at(then);
            }
        }
    }
}
