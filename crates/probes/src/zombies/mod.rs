//! Dead memory cgroups by name: what they hold and which files pin them.
//!
//! No kernel file lists them: a removed cgroup has no directory, and every interface reports the nearest ancestor that has one.
//! But the kernel keeps a dead css, with its name, in its parent's list of children until the last reference is dropped. A small
//! BPF program (bpf/zombies.bpf.c) walks these lists. docs/zombies.md says how, what it needs and what it costs.

mod arithmetic;
mod count;
mod file_names;
mod found;
mod jiffies;
mod kernel;
mod live_tree;
mod look;
mod mounted;
mod own_fault;
mod pins;
mod slots;
mod v1_sums;
mod v2_counts;

#[cfg(test)]
mod host_tests;
#[cfg(test)]
mod look_host_tests;
#[cfg(test)]
mod look_tests;
#[cfg(test)]
mod swap_tests;

use std::time::Duration;

use coroner_evidence::{About, Evidence, Time, Zombie, probe};
use rustix::time::ClockId;

use crate::Root;
pub use crate::bpf::{Blind, Reason};
use crate::root::{clock, now};
use found::FoundDead;
use kernel::{Kernel, RunEnd};
pub(crate) use look::by_name;
pub use look::{Bpf, LookOptions, look};
pub use pins::Pins;

/// How the programs are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// BPF_PROG_TEST_RUN and a ring buffer: since Linux 5.10.
    TestRun,
    /// On page faults of our own thread, into an array map: since Linux 5.4.
    PageFaults,
}

impl Method {
    pub fn as_str(self) -> &'static str {
        match self {
            Method::TestRun => "bpf-test-run",
            Method::PageFaults => "bpf-page-faults",
        }
    }
}

impl Blind {
    /// Notes in the evidence that dead cgroups cannot be named.
    pub fn note(&self, evidence: &mut Evidence) {
        let what = "names of dead memory cgroups and the files that pin them";
        let (why, how) = (self.why.clone(), self.how_to_see.clone());
        evidence.unseen_about(probe::CGROUPS, About::DeadNames, what, why, how);
    }
}

#[derive(Debug, Clone)]
pub struct ScanOptions {
    pub root: Root,
    /// `None`: [`Method::TestRun`], or [`Method::PageFaults`] where the kernel does not support it.
    pub method: Option<Method>,
    /// Also find the files that pin them.
    pub pins: bool,
    /// How many folios of each LRU list of each dead memcg are examined for files.
    pub folios_per_list: u32,
    /// A walk stops after this; its result is then marked truncated.
    pub time_limit: Duration,
}

impl Default for ScanOptions {
    fn default() -> ScanOptions {
        ScanOptions {
            root: Root::live(),
            method: None,
            pins: true,
            folios_per_list: 4096,
            time_limit: Duration::from_secs(10),
        }
    }
}

/// All memory cgroups that the kernel tracks, the dead ones by name.
#[derive(Debug, Clone)]
pub struct Scan {
    pub at: Time,
    pub method: Method,
    /// Cgroup version of the memory controller: 1 or 2.
    pub version: u8,
    /// All of them: the root, live, dead, and those in between.
    pub tracked: u64,
    pub live: u64,
    /// Neither live nor zombies: freed while we looked, or about to be.
    pub leaving: u64,
    /// Oldest first.
    pub zombies: Vec<Zombie>,
    /// Why not all were reached: out of time, or nested too deeply.
    pub truncated: Option<String>,
    /// How often the cgroup at which the walk paused was freed, so that it had to resume from an ancestor.
    pub resumed: u64,
    /// `None` if not requested; the reason if they could not be read.
    pub pins: Option<Result<Pins, String>>,
    pub cost: Cost,
}

/// What the scan took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Reading kernel types and verifying programs.
    pub load: Spent,
    pub walk: Spent,
    /// Checking again those that may have been about to be freed.
    pub settle: Spent,
    /// Building paths.
    pub names: Spent,
    pub pins: Spent,
    /// Program runs during the walk.
    pub runs: u64,
}

impl Cost {
    pub fn total(&self) -> Spent {
        let parts = [self.load, self.walk, self.settle, self.names, self.pins];
        Spent { wall: parts.iter().map(|p| p.wall).sum(), cpu: parts.iter().map(|p| p.cpu).sum() }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    pub wall: Duration,
    pub cpu: Duration,
}

#[derive(Debug)]
struct Watch {
    wall: Time,
    cpu: Time,
}

impl Watch {
    fn start() -> Watch {
        Watch { wall: now(), cpu: clock(ClockId::ThreadCPUTime) }
    }

    fn spent(&self) -> Spent {
        Spent { wall: now().since(self.wall), cpu: clock(ClockId::ThreadCPUTime).since(self.cpu) }
    }
}

/// Waits before dead cgroups without pages are checked again. Freeing a removed cgroup takes two RCU grace periods and a few work
/// queue turns.
const LOOKS_AFTER: [Duration; 3] = [Duration::from_millis(10), Duration::from_millis(15), Duration::from_millis(35)];

/// One scan of the live node.
pub fn scan(options: &ScanOptions) -> Result<Scan, Blind> {
    Walker::open(&options.root, options.method)?.scan(options)
}

/// The programs, loaded once for any number of scans. Bound to its thread.
pub struct Walker {
    kernel: Kernel,
    root: Root,
    load: Spent,
}

impl Walker {
    pub fn open(root: &Root, method: Option<Method>) -> Result<Walker, Blind> {
        let watch = Watch::start();
        let kernel = Kernel::load(root, method)?;
        Ok(Walker { kernel, root: root.clone(), load: watch.spent() })
    }

    pub fn method(&self) -> Method {
        self.kernel.method()
    }

    /// `method` and `root` of the options are those of [`Walker::open`].
    pub fn scan(&mut self, options: &ScanOptions) -> Result<Scan, Blind> {
        let failed = |what: &str, e: Box<dyn std::error::Error + Send + Sync>| {
            Blind::new(Reason::Kernel, format!("{what}: {e}"), "report this as a bug, with the kernel version")
        };
        let at = now();
        let mut cost = Cost { load: self.load, ..Cost::default() };

        let watch = Watch::start();
        let mut found = FoundDead::default();
        let (counts, ended) = self
            .kernel
            .walk(options.time_limit, |told| found.add(told))
            .map_err(|e| failed("the walk over the memory cgroups failed", e))?;
        found.sort();
        cost.walk = watch.spent();
        cost.runs = counts.runs;
        if counts.visited == 0 {
            return Err(Blind::new(
                Reason::NoMemoryController,
                "the kernel has no memory controller",
                "boot without cgroup_disable=memory",
            ));
        }

        let watch = Watch::start();
        let gone = self.look_again(&mut found).map_err(|e| failed("a second look at dying cgroups failed", e))?;
        cost.settle = watch.spent();

        let watch = Watch::start();
        let timing = jiffies::Timing::read(&self.root, (counts.jiffies != 0).then_some(counts.jiffies));
        let (zombies, places) = found.zombies(&counts, timing.as_ref());
        cost.names = watch.spent();

        let truncated = match ended {
            RunEnd::OutOfTime => Some(format!("the walk was stopped after {:?}", options.time_limit)),
            RunEnd::Done if counts.unreadable => Some("a cgroup's data could not be read".to_owned()),
            RunEnd::Done if counts.too_deep > 0 => {
                Some(format!("cgroups whose children are nested too deep (over 63 levels): {}", counts.too_deep))
            }
            RunEnd::Done => None,
        };
        let mut scan = Scan {
            at,
            method: self.kernel.method(),
            version: if counts.unified { 2 } else { 1 },
            tracked: counts.visited,
            live: counts.live,
            leaving: counts.leaving + counts.released + gone,
            zombies,
            truncated,
            resumed: counts.resumed,
            pins: None,
            cost,
        };
        if options.pins {
            let watch = Watch::start();
            scan.pins = Some(
                pins::find(&mut self.kernel, &self.root, &mut scan.zombies, &places, options)
                    .map_err(|e| format!("the search for files that pin dead cgroups failed: {e}")),
            );
            scan.cost.pins = watch.spent();
        }
        Ok(scan)
    }

    /// Checks those without pages again: they may be about to be freed. Returns how many are gone.
    fn look_again(&mut self, found: &mut FoundDead) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
        let mut suspects = found.suspects();
        for after in LOOKS_AFTER {
            if suspects.is_empty() {
                break;
            }
            std::thread::sleep(after);
            let mut still = Vec::new();
            for place in suspects {
                let mut there = false;
                self.kernel.look(place, |told| {
                    there = true;
                    found.update(&told);
                })?;
                if there {
                    still.push(place);
                } else {
                    found.forget(place);
                }
            }
            suspects = still;
        }
        Ok(found.let_go())
    }
}
