//! Loss by the clock: a process says how long it wanted to run and how long it ran.
//!
//! It wants to run from the moment it was due until its turn of work is done; what of that was not its own CPU time, it lost, whoever took
//! it and however the kernel counted. So the truth of a test depends on nothing that the diagnosis reads.

use crate::guard::Child;
use crate::interrupt;
use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a process says what it has had.
const TELL_EVERY_NS: u64 = 50_000_000;

/// CLOCK_MONOTONIC, the same for every process of the node.
pub fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

fn cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A thread's account of itself, told on standard output: `THREAD NOW WANTED GOT`, times in nanoseconds.
#[derive(Debug)]
pub struct Meter {
    thread: usize,
    wanted_ns: u64,
    got_ns: u64,
    /// Since when it wants to run, as far as accounted.
    since_ns: u64,
    cpu_ns: u64,
    told_ns: u64,
}

impl Meter {
    /// For the calling thread.
    pub fn start(thread: usize) -> Result<Meter> {
        let now = now_ns();
        let mut meter = Meter { thread, wanted_ns: 0, got_ns: 0, since_ns: now, cpu_ns: cpu_ns(), told_ns: 0 };
        meter.tell(now)?;
        Ok(meter)
    }

    /// CPU time so far.
    pub fn got_ns(&self) -> u64 {
        self.got_ns
    }

    /// Accounts for the time up to now, in which it wanted to run.
    pub fn account(&mut self) -> Result<()> {
        let (now, cpu) = (now_ns(), cpu_ns());
        self.wanted_ns += now.saturating_sub(self.since_ns);
        self.got_ns += cpu.saturating_sub(self.cpu_ns);
        (self.since_ns, self.cpu_ns) = (now, cpu);
        if now.saturating_sub(self.told_ns) >= TELL_EVERY_NS { self.tell(now) } else { Ok(()) }
    }

    /// Sleeps until `due_ns`, and wants to run from then on, however late it wakes up.
    pub fn sleep_until(&mut self, due_ns: u64) {
        let left = due_ns.saturating_sub(now_ns());
        if left > 0 {
            std::thread::sleep(Duration::from_nanos(left));
            self.since_ns = due_ns;
        }
    }

    fn tell(&mut self, now: u64) -> Result<()> {
        self.told_ns = now;
        let line = format!("{} {now} {} {}\n", self.thread, self.wanted_ns, self.got_ns);
        let mut out = std::io::stdout().lock();
        out.write_all(line.as_bytes()).and_then(|()| out.flush()).context("cannot tell what it has had")
    }
}

/// What a process lost over a stretch of time, all threads together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loss {
    pub wanted_ns: u64,
    pub got_ns: u64,
}

impl Loss {
    pub fn lost_ns(&self) -> u64 {
        self.wanted_ns.saturating_sub(self.got_ns)
    }

    /// Of what it wanted; 0 if it wanted nothing.
    pub fn share(&self) -> f64 {
        if self.wanted_ns == 0 { 0.0 } else { self.lost_ns() as f64 / self.wanted_ns as f64 }
    }
}

/// What a thread told at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    pub at_ns: u64,
    pub wanted_ns: u64,
    pub got_ns: u64,
}

/// What each thread of a process told, in order.
pub type Accounts = BTreeMap<usize, Vec<Told>>;

/// A child that measures its own loss; see [`Meter`].
#[derive(Debug)]
pub struct Measured {
    pub child: Child,
    told: Arc<Mutex<Accounts>>,
}

impl Measured {
    pub fn spawn(name: impl Into<String>, command: &mut Command) -> Result<Measured> {
        let (child, stdout) = Child::spawn_with_stdout(name, command.stdout(Stdio::piped()))?;
        let told = Arc::new(Mutex::new(Accounts::new()));
        let writer = Arc::clone(&told);
        // Ends when the child does.
        std::thread::Builder::new().name("lab-told".to_owned()).spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some((thread, told)) = parse(&line) {
                    writer.lock().unwrap_or_else(PoisonError::into_inner).entry(thread).or_default().push(told);
                }
            }
        })?;
        Ok(Measured { child, told })
    }

    pub fn between(&self, from_ns: u64, to_ns: u64) -> Loss {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        loss_between(&told, from_ns, to_ns)
    }

    /// Waits until every thread has told about the time up to `to_ns`, as those that lost can do only once they run again. After `patience`,
    /// what was not told counts as lost: who sleeps or runs tells.
    pub fn await_account(&mut self, to_ns: u64, patience: Duration) -> Result<()> {
        let end = Instant::now() + patience;
        loop {
            let complete = |list: &Vec<Told>| list.last().is_some_and(|told| told.at_ns >= to_ns);
            let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).values().all(complete);
            if told || Instant::now() > end || interrupt::requested() {
                return Ok(());
            }
            self.child.expect_running()?;
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// An error if it has not told anything within `patience`.
    pub fn await_first_words(&mut self, patience: Duration) -> Result<()> {
        let end = Instant::now() + patience;
        while self.told.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            self.child.expect_running()?;
            if Instant::now() > end || interrupt::requested() {
                bail!("{} did not start", self.child.label());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

fn parse(line: &str) -> Option<(usize, Told)> {
    let mut numbers = line.split_ascii_whitespace().map(|n| n.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    Some((next()? as usize, Told { at_ns: next()?, wanted_ns: next()?, got_ns: next()? }))
}

/// Between two things that were told, time is spread evenly.
pub fn loss_between(accounts: &Accounts, from_ns: u64, to_ns: u64) -> Loss {
    accounts.values().fold(Loss::default(), |sum, told| {
        let ((wanted, got), (wanted_before, got_before)) = (at(told, to_ns), at(told, from_ns));
        Loss { wanted_ns: sum.wanted_ns + (wanted - wanted_before), got_ns: sum.got_ns + (got - got_before) }
    })
}

fn at(told: &[Told], ns: u64) -> (u64, u64) {
    let after = told.partition_point(|t| t.at_ns <= ns);
    match (after.checked_sub(1).and_then(|i| told.get(i)), told.get(after)) {
        (Some(a), Some(b)) => {
            let part = (ns - a.at_ns) as f64 / (b.at_ns - a.at_ns).max(1) as f64;
            let between = |a: u64, b: u64| a + ((b.saturating_sub(a)) as f64 * part) as u64;
            (between(a.wanted_ns, b.wanted_ns), between(a.got_ns, b.got_ns))
        }
        // It has not run since.
        (Some(last), None) => (last.wanted_ns + (ns - last.at_ns), last.got_ns),
        (None, _) => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn told(at: u64, wanted: u64, got: u64) -> Told {
        Told { at_ns: at * MS, wanted_ns: wanted * MS, got_ns: got * MS }
    }

    #[test]
    fn what_was_not_told_in_the_end_is_lost() {
        let accounts = Accounts::from([(0, vec![told(1000, 0, 0), told(2000, 1000, 900), told(4000, 3000, 1000)])]);
        let loss = loss_between(&accounts, 2000 * MS, 4000 * MS);
        assert_eq!(loss, Loss { wanted_ns: 2000 * MS, got_ns: 100 * MS });
        assert!((loss.share() - 0.95).abs() < 1e-9);
        assert_eq!(loss_between(&accounts, 4000 * MS, 5000 * MS), Loss { wanted_ns: 1000 * MS, got_ns: 0 });
        assert_eq!(loss_between(&accounts, 3000 * MS, 4000 * MS), Loss { wanted_ns: 1000 * MS, got_ns: 50 * MS });
        assert_eq!(loss_between(&Accounts::new(), 0, 9), Loss::default());
    }

    #[test]
    fn threads_are_added_up() {
        let one = vec![told(0, 0, 0), told(100, 100, 100)];
        let other = vec![told(0, 0, 0), told(100, 100, 0)];
        let loss = loss_between(&Accounts::from([(0, one), (1, other)]), 0, 100 * MS);
        assert_eq!((loss.wanted_ns, loss.got_ns, loss.lost_ns()), (200 * MS, 100 * MS, 100 * MS));
    }

    #[test]
    fn a_thread_that_sleeps_wants_nothing() {
        let mut meter = Meter::start(0).unwrap();
        let due = now_ns() + 20 * MS;
        meter.sleep_until(due);
        meter.account().unwrap();
        assert!(now_ns() >= due);
        assert!(meter.wanted_ns <= now_ns() - due);
    }

    #[test]
    fn lines_are_read_as_they_are_told() {
        assert_eq!(parse("1 5 4 3"), Some((1, Told { at_ns: 5, wanted_ns: 4, got_ns: 3 })));
        assert_eq!(parse("1 5 4"), None);
        assert_eq!(parse("x"), None);
    }
}
