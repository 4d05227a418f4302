//! Turns samples into one [`KernelWork`] per second.

use std::collections::HashMap;

use coroner_evidence::kallsyms::Kallsyms;
use coroner_evidence::kernel_work::{StackMeaning, WorkSum, meaning_of, rows_of};
use coroner_evidence::{KernelWork, Time, WorkKind};

use super::batch::{Batch, SECOND};

/// A shorter last second is merged into the one before.
const SHORTEST: u64 = SECOND / 2;

/// How samples were taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sampling {
    pub to: Time,
    pub rate_hz: u32,
    pub cores: u32,
}

/// Without symbols all work is [`WorkKind::Unnamed`].
pub(super) fn kernel_work(
    batch: &Batch,
    symbols: Option<&Kallsyms>,
    sampling: &Sampling,
    who: &dyn Fn(Option<u32>, Option<u32>) -> (u32, u32, String),
) -> Vec<KernelWork> {
    let mut seconds = seconds(batch.from, sampling);
    if seconds.is_empty() {
        return seconds;
    }
    let last = seconds.len() - 1;
    for (second, lost) in batch.lost.iter().enumerate() {
        let sum = &mut seconds[second.min(last)].lost;
        *sum = sum.saturating_add(*lost);
    }
    let idle = batch.idle_address();
    let nameless = StackMeaning::default().calls(meaning_of(""));
    let meanings = symbols.map(|symbols| {
        batch.meanings(|address| symbols.find(address).map_or_else(|| meaning_of(""), |symbol| symbol.meaning()))
    });
    let mut sums: Vec<_> = seconds.iter().map(|_| HashMap::new()).collect();
    for (key, &samples) in &batch.counts {
        let idle_task = key.pid == Some(0);
        let kind = match &meanings {
            Some(meanings) => meanings.get(key.node as usize).unwrap_or(&nameless).work(idle_task),
            None => (!idle_task || batch.innermost(key.node) != idle).then_some(WorkKind::Unnamed),
        };
        let Some(kind) = kind else { continue };
        let symbol = symbols.zip(batch.innermost(key.node)).and_then(|(symbols, address)| symbols.find(address));
        let symbol = symbol.map_or("", |symbol| symbol.name);
        let sum = WorkSum { core: key.core, task: (key.pid, key.tid), kind, symbol };
        *sums[(key.second as usize).min(last)].entry(sum).or_default() += samples;
    }
    for (second, sums) in seconds.iter_mut().zip(sums) {
        second.rows = rows_of(sums, |(pid, tid)| who(pid, tid), |symbol| symbol);
    }
    seconds
}

/// Empty seconds from the start of the batch to its end.
fn seconds(from: Time, sampling: &Sampling) -> Vec<KernelWork> {
    let (mut seconds, mut begin) = (Vec::new(), from);
    while begin < sampling.to {
        let left = sampling.to.0 - begin.0;
        let end = if left < SECOND + SHORTEST { sampling.to } else { Time(begin.0 + SECOND) };
        let Sampling { rate_hz, cores, .. } = *sampling;
        seconds.push(KernelWork { from: begin, to: end, rate_hz, cores, lost: 0, rows: Vec::new() });
        begin = end;
    }
    seconds
}

#[cfg(test)]
mod tests {
    use super::super::batch::tests::HALT;
    use super::super::symbols::tests::TEXT;
    use super::*;
    use coroner_evidence::WorkRow;

    const BASE: u64 = 0xffff_ffff_8100_0000;
    const SHRINK_NODE: u64 = BASE + 0x110;
    const ITER: u64 = BASE + 0x390;
    const INTERRUPTED: u64 = BASE + 0x610;
    const OTHER: u64 = BASE + 0x710;

    fn told(batch: &Batch, with: Option<&str>, to: u64) -> Vec<KernelWork> {
        let symbols = with.map(|text| Kallsyms::covering(text.as_bytes(), &batch.addresses()).unwrap().unwrap());
        let sampling = Sampling { to: Time(to), rate_hz: 49, cores: 2 };
        kernel_work(batch, symbols.as_ref(), &sampling, &|pid, tid| {
            let (pid, tid) = (pid.unwrap(), tid.unwrap());
            (pid, tid, format!("{pid}/{tid}"))
        })
    }

    fn row(core: u32, pid: u32, kind: WorkKind, samples: u64, symbol: Option<&str>) -> WorkRow {
        let tid = pid + 1;
        WorkRow { core, pid, tid, comm: format!("{pid}/{tid}"), kind, samples, symbol: symbol.map(str::to_owned) }
    }

    fn mixed() -> Batch {
        let mut batch = Batch::new(Time(SECOND));
        let first = SECOND + 5;
        for _ in 0..10 {
            batch.put(0, 0, first, &[HALT, OTHER]);
        }
        batch.put(1, 7, first, &[ITER, SHRINK_NODE, OTHER]);
        batch.put(1, 7, first, &[SHRINK_NODE, OTHER]);
        batch.put(1, 7, first, &[ITER + 4, SHRINK_NODE, OTHER]);
        batch.put(1, 7, first, &[OTHER]);
        batch.put(0, 0, 2 * SECOND + 5, &[OTHER, INTERRUPTED, HALT]);
        batch.lose(Time(2 * SECOND + 5), 3);
        batch
    }

    #[test]
    fn each_second_has_thread_core_and_kind_of_work() {
        let [first, second] = &told(&mixed(), Some(TEXT), 3 * SECOND + 10)[..] else { panic!("two seconds") };
        assert_eq!((first.from, first.to, first.lost), (Time(SECOND), Time(2 * SECOND), 0));
        let walk = row(1, 7, WorkKind::ReclaimWalk, 3, Some("mem_cgroup_iter"));
        assert_eq!(first.rows, [walk, row(1, 7, WorkKind::Other, 1, Some("something_else"))]);
        assert_eq!((second.from, second.to, second.lost), (Time(2 * SECOND), Time(3 * SECOND + 10), 3));
        assert_eq!(second.rows, [row(0, 0, WorkKind::Interrupt, 1, Some("something_else"))]);
    }

    #[test]
    fn without_symbols_idle_cores_are_still_idle() {
        let [first, second] = &told(&mixed(), None, 3 * SECOND + 10)[..] else { panic!("two seconds") };
        assert_eq!(first.rows, [row(1, 7, WorkKind::Unnamed, 4, None)]);
        assert_eq!(second.rows, [row(0, 0, WorkKind::Unnamed, 1, None)]);
    }

    #[test]
    fn rows_per_second_are_bounded_and_no_sample_is_lost() {
        let mut batch = Batch::new(Time(0));
        let threads = 4 * 128;
        for pid in 1..=threads {
            batch.put(pid % 192, pid, 1, &[OTHER]);
        }
        for core in 0..5 {
            batch.put(core, 77_000, 1, &[SHRINK_NODE]);
        }
        let [second] = &told(&batch, Some(TEXT), SECOND)[..] else { panic!("one second") };
        assert!(second.rows.len() <= 128 + 192, "{}", second.rows.len());
        assert_eq!(second.samples(|_| true), u64::from(threads) + 5);
        assert_eq!(second.rows.iter().filter(|row| row.pid == 77_000).count(), 5, "the busiest process stays");
        assert!(second.rows.iter().any(|row| row.comm == "(others)" && row.pid == 0));
    }

    #[test]
    fn nothing_seen_is_a_second_without_rows() {
        let told = told(&Batch::new(Time(0)), Some(TEXT), 12 * SECOND / 5);
        assert_eq!(told.iter().map(|second| second.rows.len()).collect::<Vec<_>>(), [0, 0]);
        let over: u64 = told.iter().map(|second| second.to.0 - second.from.0).sum();
        assert_eq!(over, 12 * SECOND / 5);
    }
}
