//! Whether reclaim hurts others: refaults and I/O pressure, compared with the second before it began.

use super::Hands;
use coroner_diagnosis::words::count;
use std::fs;
use std::time::{Duration, Instant};

/// Refaults per second: 8,000 pages are 32 MB/s of reads that nobody needed before.
const REFAULTS: f64 = 8_000.0;
/// By how much I/O pressure (share of time) may exceed the baseline.
const IO_PRESSURE: f64 = 0.2;
/// How long the baseline is measured.
const BASELINE: Duration = Duration::from_secs(1);
/// The time limit if harm cannot be measured.
pub const BLIND: Duration = Duration::from_secs(2);
/// How often harm is checked.
pub const LOOK: Duration = Duration::from_millis(100);

/// Counters that show harm to others. Memory pressure would not: our own reclaim counts there.
pub struct Counted {
    pub at: Instant,
    refaults: Option<u64>,
    io_us: Option<u64>,
}

/// The same per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    refaults: Option<f64>,
    /// Share of time that somebody waited for the disk.
    io: Option<f64>,
}

impl Counted {
    pub fn now() -> Counted {
        Counted { at: Instant::now(), refaults: refaults(), io_us: io_pressure_us() }
    }

    pub fn since(&self, before: &Counted) -> Rates {
        let over = self.at.duration_since(before.at).as_secs_f64().max(0.001);
        let rose = |before: Option<u64>, now: Option<u64>| Some(now?.saturating_sub(before?) as f64 / over);
        Rates { refaults: rose(before.refaults, self.refaults), io: rose(before.io_us, self.io_us).map(|us| us / 1e6) }
    }
}

/// The rates without us: a node that reads a lot anyway is not hurt by us.
pub struct Baseline(Rates);

impl Baseline {
    pub fn measure(hands: &Hands<'_>) -> Baseline {
        let before = Counted::now();
        while before.at.elapsed() < BASELINE && !hands.is_stopped() {
            std::thread::sleep(LOOK);
        }
        Baseline(Counted::now().since(&before))
    }

    /// Says so if no harm can be measured here.
    pub fn blind(&self) -> Option<String> {
        (self.0.refaults.is_none() && self.0.io.is_none()).then(|| {
            format!(
                "Its effect on others could not be measured (no refaults in /proc/vmstat, no /proc/pressure/io), so it was \
                limited to {:.0} s",
                BLIND.as_secs_f64()
            )
        })
    }

    /// Why it must stop, if it hurts. If only one of the two can be read, that one decides alone.
    pub fn exceeded_by(&self, now: &Rates) -> Option<String> {
        let more = |now: Option<f64>, before: Option<f64>| Some((now? - before?).max(0.0));
        let (refaults, io) = (more(now.refaults, self.0.refaults), more(now.io, self.0.io));
        if let Some(refaults) = refaults.filter(|n| *n > REFAULTS) {
            return Some(format!("it hurt others: they had to re-read {} pages per second", count(refaults as u64)));
        }
        // Others may wait for the disk for their own reasons; if there are refaults as well, it is us.
        if let Some(io) = io.filter(|share| *share > IO_PRESSURE)
            && refaults.is_none_or(|n| n > REFAULTS / 10.0)
        {
            return Some(format!("it hurt others: I/O pressure rose by {:.0} percentage points", io * 100.0));
        }
        None
    }
}

fn refaults() -> Option<u64> {
    let vmstat = fs::read_to_string("/proc/vmstat").ok()?;
    // Before Linux 5.9, one number for file and anonymous pages.
    let names = ["workingset_refault_file ", "workingset_refault "];
    names.iter().find_map(|name| vmstat.lines().find_map(|line| line.strip_prefix(name)))?.trim().parse().ok()
}

fn io_pressure_us() -> Option<u64> {
    let text = fs::read_to_string("/proc/pressure/io").ok()?;
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.rsplit_once("total=")?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harm_is_what_exceeds_the_baseline() {
        let rates = |refaults, io| Rates { refaults, io };
        let calm = Baseline(rates(Some(0.0), Some(0.0)));
        assert!(calm.exceeded_by(&rates(Some(9_000.0), Some(0.0))).unwrap().contains("9,000 pages"));
        assert_eq!(
            calm.exceeded_by(&rates(Some(100.0), Some(0.9))),
            None,
            "others wait for the disk, but nothing refaults"
        );
        assert!(calm.exceeded_by(&rates(Some(1_000.0), Some(0.9))).unwrap().contains("90 percentage points"));
        let busy = Baseline(rates(Some(50_000.0), Some(0.8)));
        assert_eq!(busy.exceeded_by(&rates(Some(51_000.0), Some(0.9))), None, "it was like this before");
        // If only one of the two can be read, it decides alone.
        let no_vmstat = Baseline(rates(None, Some(0.0)));
        assert!(no_vmstat.exceeded_by(&rates(None, Some(0.5))).is_some());
        assert_eq!((calm.blind(), no_vmstat.blind()), (None, None));
        let blind = Baseline(Rates::default()).blind().unwrap();
        assert!(blind.contains("limited to 2 s"), "{blind}");
    }
}
