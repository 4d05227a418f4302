//! Dead memory cgroups in an endless watch: how many each parent has, every minute; and each by name when a new segment of the
//! recording begins, or when so many were added that the old names no longer show whose they are.
//!
//! BPF programs are bound to the thread that loaded them, so this has its own. A walk takes about 4 µs per cgroup that the kernel
//! tracks; if that costs too much, it runs less often.

use super::pace::Pace;
use crate::root::{Root, clock, now};
use crate::zombies::{Bpf, LookOptions, ScanOptions, Walker, by_name, look};
use coroner_evidence::{Charged, DeadBelow, Evidence, Order, Zombie, ZombieScan};
use rustix::time::ClockId;
use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(60);
/// If the census counts many more than last reported.
const AT_NEWS: Duration = Duration::from_secs(10);
/// Walks may use this share of one core: 1/1000 = 0.1 %.
const SHARE: u32 = 1000;
/// Time limit of a walk; 60,000 cgroups take a third of a second.
const LIMIT: Duration = Duration::from_secs(3);
/// With at least this many, the files that pin them are searched.
const DEAD_WORTH_FILES: usize = 100;
/// They are named again when both this many and a quarter were added. In total this writes at most five times the last names.
const MORE: u64 = 20;
const QUARTER: u64 = 4;
/// Parents reported, besides the total number of dead.
const MOST_PARENTS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    ByParent,
    ByName,
}

pub struct ZombieThread {
    asks: Sender<Ask>,
    /// With the CPU time it took.
    answers: Receiver<(Evidence, Duration)>,
    is_asked: bool,
    by_name_wanted: bool,
    /// Number at the last look.
    dead: u64,
    pace: Pace,
}

impl ZombieThread {
    pub fn start(root: Root) -> ZombieThread {
        let (asks, asked) = channel();
        let (answer, answers) = channel();
        let work = move || {
            let mut looker = Looker { root, walker: None, named: 0 };
            while let Ok(ask) = asked.recv() {
                let cpu = clock(ClockId::ThreadCPUTime);
                let mut evidence = Evidence::default();
                looker.look(ask, &mut evidence);
                let cost = clock(ClockId::ThreadCPUTime).since(cpu);
                if answer.send((evidence, cost)).is_err() {
                    return;
                }
            }
        };
        // Without a thread there is no answer; the census still has their number.
        let _ = std::thread::Builder::new().name("zombies".to_owned()).spawn(work);
        ZombieThread { asks, answers, is_asked: false, by_name_wanted: true, dead: 0, pace: Pace::new(EVERY, SHARE) }
    }

    /// Makes the next look report each by name.
    pub fn tell_anew(&mut self) {
        self.by_name_wanted = true;
    }

    /// Appends results and starts a new look when due. Never waits.
    pub fn turn(&mut self, evidence: &mut Evidence) {
        if self.is_asked {
            match self.answers.try_recv() {
                Ok((seen, cost)) => {
                    self.is_asked = false;
                    self.pace.put_off(now(), cost);
                    self.dead = seen.zombie_scans.last().and_then(|scan| scan.dead).unwrap_or(self.dead);
                    evidence.append(seen);
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => return self.pace.put_off(now(), Duration::MAX),
            }
        }
        if evidence.cgroup_censuses.iter().filter_map(|c| c.dying).any(|dead| are_many_more(dead, self.dead)) {
            self.pace.hasten(AT_NEWS);
        }
        if self.by_name_wanted || self.pace.is_due() {
            let ask = if self.by_name_wanted { Ask::ByName } else { Ask::ByParent };
            self.is_asked = self.asks.send(ask).is_ok();
            self.by_name_wanted = false;
        }
    }
}

/// The state of the thread.
struct Looker {
    root: Root,
    /// `None` before the first look, and if BPF cannot be used.
    walker: Option<Walker>,
    /// Number when last reported by name.
    named: u64,
}

impl Looker {
    fn look(&mut self, mut ask: Ask, evidence: &mut Evidence) {
        let mut walked = self.walk(ask);
        let dead = walked.as_ref().map_or(0, |scan| scan.zombies.len() as u64);
        if ask == Ask::ByParent && are_many_more(dead, self.named) {
            ask = Ask::ByName;
            // Once more, for the files that pin them.
            walked = self.walk(ask);
        }
        if ask == Ask::ByName {
            self.named = walked.as_ref().map_or(0, |scan| scan.zombies.len() as u64);
        }
        let mut scan = match walked {
            Some(scan) => scan,
            None => {
                // Reports why BPF cannot be used, and works without.
                let options = LookOptions { root: self.root.clone(), bpf: Bpf::Best, pins: false, time_limit: LIMIT };
                let Some(scan) = look(&options, evidence) else { return };
                scan
            }
        };
        if ask == Ask::ByParent && !scan.zombies.is_empty() {
            scan.below = by_parent(&scan.zombies);
            scan.zombies = Vec::new();
        }
        evidence.zombie_scans.push(scan);
    }

    fn walk(&mut self, ask: Ask) -> Option<ZombieScan> {
        if self.walker.is_none() {
            self.walker = Walker::open(&self.root, None).ok();
        }
        let walker = self.walker.as_mut()?;
        let mut options =
            ScanOptions { root: self.root.clone(), pins: false, time_limit: LIMIT, ..ScanOptions::default() };
        let scan = match walker.scan(&options) {
            Ok(scan) if ask == Ask::ByName && scan.zombies.len() >= DEAD_WORTH_FILES => {
                options.pins = true;
                walker.scan(&options)
            }
            scan => scan,
        };
        if scan.is_err() {
            self.walker = None;
        }
        scan.ok().map(by_name)
    }
}

fn are_many_more(dead: u64, named: u64) -> bool {
    dead >= named.saturating_add((named / QUARTER).max(MORE))
}

/// The dead by their nearest live ancestor, most first.
fn by_parent(zombies: &[Zombie]) -> Vec<DeadBelow> {
    let dead: HashSet<&str> = zombies.iter().map(|z| z.path.as_str()).collect();
    let mut parents: HashMap<&str, (u64, Charged)> = HashMap::new();
    for zombie in zombies {
        let mut parent = parent_of(&zombie.path);
        while parent != "/" && dead.contains(parent) {
            parent = parent_of(parent);
        }
        let (count, held) = parents.entry(parent).or_default();
        *count += 1;
        held.add(&zombie.held);
    }
    let mut below: Vec<DeadBelow> = parents
        .into_iter()
        .map(|(parent, (dead, held))| DeadBelow { parent: parent.to_owned(), dead: Some(dead), held: Some(held) })
        .collect();
    below.order_by(|a, b| b.dead.cmp(&a.dead).then_with(|| a.parent.cmp(&b.parent)));
    below.truncate(MOST_PARENTS);
    below
}

/// `/` is its own parent.
fn parent_of(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zombie(path: &str) -> Zombie {
        let held = Charged { file: 4096, ..Charged::default() };
        Zombie { id: 1, path: path.to_owned(), references: None, held, born: None, directory_lives: false, serial: 1 }
    }

    #[test]
    fn names_are_read_again_after_many_new_ones() {
        assert!(!are_many_more(19, 0) && are_many_more(20, 0));
        assert!(!are_many_more(1_249, 1_000) && are_many_more(1_250, 1_000));
        assert!(!are_many_more(10, 1_000));
    }

    #[test]
    fn nested_dead_are_counted_below_their_live_ancestor() {
        let zombies = ["/batch/job-1", "/batch/job-1/step", "/batch/job-2", "/top", "/", "/other/x"].map(zombie);
        let below = by_parent(&zombies);
        let told: Vec<(&str, Option<u64>)> = below.iter().map(|b| (b.parent.as_str(), b.dead)).collect();
        assert_eq!(told, [("/batch", Some(3)), ("/", Some(2)), ("/other", Some(1))]);
        assert_eq!(below[0].held.as_ref().unwrap().file, 3 * 4096);
    }
}
