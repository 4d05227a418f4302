//! Dead memory cgroups of a node that is watched for months: how many there are below which parent every minute, and each by
//! name when a new segment of the recording begins, or when they have become so many more that the names no longer tell whose they are.
//!
//! The BPF programs stay with the thread that loaded them, so this has its own. A walk takes some 4 µs for each cgroup that
//! the kernel tracks; where there are so many that it would cost too much, it is made less often.

use super::pace::Pace;
use crate::root::{Root, clock, now};
use crate::zombies::{Bpf, Choice, LookOptions, ScanOptions, Walker, by_name, look};
use coroner_evidence::{DeadBelow, Evidence, Held, Zombie, ZombieScan};
use rustix::time::ClockId;
use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(60);
/// Where the census counts many more than were told last.
const AT_NEWS: Duration = Duration::from_secs(10);
/// The walks may take this part of one core: 1/1000 = 0.1 %.
const SHARE: u32 = 1000;
/// How long one may take; 60,000 take a third of a second.
const LIMIT: Duration = Duration::from_secs(3);
/// The files that keep them are looked for if there are so many.
const DEAD_WORTH_FILES: usize = 100;
/// So many more, and a quarter more: then they are named anew. All that is written by this is at most five times the last names.
const MORE: u64 = 20;
const QUARTER: u64 = 4;
/// Parents that are told; the number of all the dead is told besides.
const MOST_PARENTS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    ByParent,
    ByName,
}

pub struct ZombieThread {
    asks: Sender<Ask>,
    /// With the CPU time that it took.
    answers: Receiver<(Evidence, Duration)>,
    is_asked: bool,
    by_name_wanted: bool,
    /// How many there were at the last look.
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
        // Without a thread nobody answers, and the census tells at least their number.
        let _ = std::thread::Builder::new().name("zombies".to_owned()).spawn(work);
        ZombieThread { asks, answers, is_asked: false, by_name_wanted: true, dead: 0, pace: Pace::new(EVERY, SHARE) }
    }

    /// The next look tells each of them.
    pub fn tell_anew(&mut self) {
        self.by_name_wanted = true;
    }

    /// Appends what was seen meanwhile, and asks again when it is time. Never waits.
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

/// The thread's own.
struct Looker {
    root: Root,
    /// `None` before the first look, and where BPF cannot be used.
    walker: Option<Walker>,
    /// How many there were when they were last told by name.
    named: u64,
}

impl Looker {
    fn look(&mut self, mut ask: Ask, evidence: &mut Evidence) {
        let mut walked = self.walk(ask);
        let dead = walked.as_ref().map_or(0, |scan| scan.zombies.len() as u64);
        if ask == Ask::ByParent && are_many_more(dead, self.named) {
            ask = Ask::ByName;
            // Once more, for the files that keep them.
            walked = self.walk(ask);
        }
        if ask == Ask::ByName {
            self.named = walked.as_ref().map_or(0, |scan| scan.zombies.len() as u64);
        }
        let mut scan = match walked {
            Some(scan) => scan,
            None => {
                // It says why BPF cannot be used, and does without.
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
            self.walker = Walker::open(&self.root, Choice::Best).ok();
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

/// The dead by the nearest ancestor that lives, those with the most first.
fn by_parent(zombies: &[Zombie]) -> Vec<DeadBelow> {
    let dead: HashSet<&str> = zombies.iter().map(|z| z.path.as_str()).collect();
    let mut parents: HashMap<&str, (u64, Held)> = HashMap::new();
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
    below.sort_unstable_by(|a, b| b.dead.cmp(&a.dead).then_with(|| a.parent.cmp(&b.parent)));
    below.truncate(MOST_PARENTS);
    below
}

/// `/` is its own.
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
        let held = Held { file: 4096, ..Held::default() };
        Zombie { id: 1, path: path.to_owned(), references: None, held, born: None, directory_lives: false, serial: 1 }
    }

    #[test]
    fn names_are_read_again_before_they_tell_of_others() {
        assert!(!are_many_more(19, 0) && are_many_more(20, 0));
        assert!(!are_many_more(1_249, 1_000) && are_many_more(1_250, 1_000));
        assert!(!are_many_more(10, 1_000));
    }

    #[test]
    fn the_dead_below_the_dead_are_told_below_the_living() {
        let zombies = ["/batch/job-1", "/batch/job-1/step", "/batch/job-2", "/top", "/", "/other/x"].map(zombie);
        let below = by_parent(&zombies);
        let told: Vec<(&str, Option<u64>)> = below.iter().map(|b| (b.parent.as_str(), b.dead)).collect();
        assert_eq!(told, [("/batch", Some(3)), ("/", Some(2)), ("/other", Some(1))]);
        assert_eq!(below[0].held.as_ref().unwrap().file, 3 * 4096);
    }
}
