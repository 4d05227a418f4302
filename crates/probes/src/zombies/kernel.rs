//! The loaded BPF programs, run until they are done.

use std::error::Error;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use aya::maps::{Array, MapData, RingBuf};

use super::Method;
use super::own_fault::FaultingPage;
use super::slots::{self, BATCH_BYTES, BATCHES, Control, CssPlace, FilesWords, SlotRecord, WalkCounts, WalkWords};
use crate::Root;
use crate::bpf::{Attached, Blind, KernelTypes, Object, Program, Reason, Standing, bpf_object};

fn object_of(method: Method) -> &'static [u8] {
    match method {
        Method::TestRun => bpf_object!("zombies.test_run.o"),
        Method::PageFaults => bpf_object!("zombies.page_faults.o"),
    }
}

/// MAX_NUMNODES of any kernel (CONFIG_NODES_SHIFT is 10 at most).
const MAX_NODES: u32 = 1024;

/// The kernel throttles an event that fires too often until the next tick, so a program that did not run is retried this often.
const FAULTS_IN_VAIN: u32 = 500;

/// The loaded programs. They run in this thread's context, so they stay with it.
pub(super) struct Kernel {
    object: Object,
    maps: Maps,
    walk: Loaded,
    /// Loaded on first use: verifying it takes a while.
    files: Option<Loaded>,
    _this_thread: PhantomData<*const ()>,
}

enum Drive {
    TestRun(RingBuf<MapData>),
    PageFaults { out: Array<MapData, [u8; BATCHES * BATCH_BYTES]>, page: FaultingPage },
}

struct Loaded {
    program: Program,
    /// Attached to page faults of this thread.
    _attached: Option<Attached>,
}

type Failure = Box<dyn Error + Send + Sync>;

/// How a program's run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunEnd {
    Done,
    OutOfTime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Walk,
    Files,
}

impl Which {
    fn name(self) -> &'static str {
        match self {
            Which::Walk => "walk",
            Which::Files => "files",
        }
    }

    fn done(self) -> u32 {
        match self {
            Which::Walk => slots::WALK_DONE,
            Which::Files => slots::FILES_FINISHED,
        }
    }
}

impl Kernel {
    pub fn load(root: &Root, method: Option<Method>) -> Result<Kernel, Blind> {
        let standing = Standing::check(root)?;
        let types = KernelTypes::of_running_kernel(&[object_of(Method::TestRun), object_of(Method::PageFaults)])
            .map_err(|e| standing.no_btf(&e))?;
        let nodes = possible_nodes(&root.read_line("/sys/devices/system/node/possible").unwrap_or_default());
        let load =
            |method| load_object(&types, nodes, method).map_err(|e| standing.explain(method_failed(method), &*e));
        match method {
            Some(method) => load(method),
            None => load(Method::TestRun).or_else(|first| {
                // If one is forbidden, so is the other; keep the first reason.
                if first.reason == Reason::Forbidden { Err(first) } else { load(Method::PageFaults) }
            }),
        }
    }

    pub fn method(&self) -> Method {
        match self.maps.drive {
            Drive::TestRun(_) => Method::TestRun,
            Drive::PageFaults { .. } => Method::PageFaults,
        }
    }

    /// Walks the whole tree.
    pub fn walk(&mut self, limit: Duration, tell: impl FnMut(SlotRecord)) -> Result<(WalkCounts, RunEnd), Failure> {
        self.maps.walk.set(0, slots::walk_from_the_root(), 0)?;
        let ended = self.drive(Which::Walk, limit, tell)?;
        Ok((slots::walk_counts(&self.maps.walk.get(&0, 0)?), ended))
    }

    /// Looks again at one found by an earlier walk; it is passed to `tell` if it is still there and dead.
    pub fn look(&mut self, place: CssPlace, tell: impl FnMut(SlotRecord)) -> Result<(), Failure> {
        let mut words = self.maps.walk.get(&0, 0)?;
        slots::look_at(&mut words, place);
        self.maps.walk.set(0, words, 0)?;
        self.drive(Which::Walk, Duration::from_secs(1), tell)?;
        Ok(())
    }

    /// Passes the folios of up to [`slots::ITEMS`] memcgs and their files to `tell`. Items carry their number of listed pages.
    pub fn files(
        &mut self,
        items: &[(CssPlace, u64)],
        folios_per_list: u32,
        limit: Duration,
        tell: impl FnMut(SlotRecord),
    ) -> Result<(FilesWords, RunEnd), Failure> {
        if self.files.is_none() {
            self.files = Some(load_program(&self.object, Which::Files, self.method())?);
        }
        self.maps.files.set(0, slots::files_of(items, folios_per_list), 0)?;
        let ended = self.drive(Which::Files, limit, tell)?;
        Ok((self.maps.files.get(&0, 0)?, ended))
    }

    fn drive(&mut self, which: Which, limit: Duration, mut tell: impl FnMut(SlotRecord)) -> Result<RunEnd, Failure> {
        let started = Instant::now();
        let program = match which {
            Which::Walk => &self.walk.program,
            Which::Files => &self.files.as_ref().ok_or("the program is not loaded")?.program,
        };
        let mut idle = 0;
        loop {
            let (state, told) = match &mut self.maps.drive {
                Drive::TestRun(ring) => {
                    let state = program.run()?;
                    let mut told = 0;
                    while let Some(batch) = ring.next() {
                        slots::read(&batch, &mut tell);
                        told += 1;
                    }
                    (state, told)
                }
                Drive::PageFaults { out, page } => {
                    self.maps.control.set(which as u32, slots::armed(), 0)?;
                    page.touch()?;
                    match slots::ran(self.maps.control.get(&(which as u32), 0)?) {
                        Some((state, batches)) => {
                            let mut left = batches as usize * BATCH_BYTES;
                            for index in 0..batches.div_ceil(BATCHES as u32) {
                                let value = out.get(&index, 0)?;
                                slots::read(&value[..left.min(value.len())], &mut tell);
                                left = left.saturating_sub(value.len());
                            }
                            (state, batches)
                        }
                        None => {
                            std::thread::sleep(Duration::from_millis(1));
                            (u32::MAX, 0)
                        }
                    }
                }
            };
            if state == which.done() {
                return Ok(RunEnd::Done);
            }
            idle = if told == 0 { idle + 1 } else { 0 };
            if idle > FAULTS_IN_VAIN {
                return Err(format!("the BPF program `{}` makes no progress (state {state})", which.name()).into());
            }
            if started.elapsed() > limit {
                return Ok(RunEnd::OutOfTime);
            }
        }
    }
}

fn method_failed(method: Method) -> &'static str {
    match method {
        Method::TestRun => "cannot run the BPF program through BPF_PROG_TEST_RUN",
        Method::PageFaults => "cannot run the BPF program on page faults",
    }
}

struct Maps {
    walk: Array<MapData, WalkWords>,
    files: Array<MapData, FilesWords>,
    control: Array<MapData, Control>,
    drive: Drive,
}

fn load_maps(types: &KernelTypes, nodes: u32, method: Method) -> Result<(Object, Maps), Failure> {
    let object = Object::load(types, object_of(method), &[("NODES", &nodes.to_ne_bytes())])?;
    let drive = match method {
        Method::TestRun => Drive::TestRun(object.map("OUT")?),
        Method::PageFaults => Drive::PageFaults { out: object.map("OUT")?, page: FaultingPage::map()? },
    };
    let maps = Maps { walk: object.map("WALK")?, files: object.map("FILES")?, control: object.map("CONTROL")?, drive };
    Ok((object, maps))
}

fn load_object(types: &KernelTypes, nodes: u32, method: Method) -> Result<Kernel, Failure> {
    let (object, mut maps) = load_maps(types, nodes, method)?;
    let walk = load_program(&object, Which::Walk, method)?;
    // Kernels before 5.10 may load it but cannot run it this way: find out now.
    if let Drive::TestRun(ring) = &mut maps.drive {
        maps.walk.set(0, slots::walk_from_the_root(), 0)?;
        walk.program.run()?;
        while ring.next().is_some() {}
    }
    Ok(Kernel { object, maps, walk, files: None, _this_thread: PhantomData })
}

fn load_program(object: &Object, which: Which, method: Method) -> Result<Loaded, Failure> {
    let program = object.program(which.name())?;
    object.put_program("AGAIN", which as u32, &program)?;
    let attached = match method {
        Method::TestRun => None,
        Method::PageFaults => Some(program.attach_to_own_page_faults()?),
    };
    Ok(Loaded { program, _attached: attached })
}

/// `0-3` or `0,2-5`: the highest number plus one.
fn possible_nodes(list: &str) -> u32 {
    let last = list.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u32>().ok()).max();
    last.map_or(1, |n| n.saturating_add(1)).clamp(1, MAX_NODES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verifier would follow a loop over the nodes to its end, so the program takes them in steps.
    #[test]
    fn the_verifier_accepts_the_maximum_number_of_nodes() {
        let Some(_lock) = coroner_lab::HostLock::take_as_root() else { return };
        let types =
            KernelTypes::of_running_kernel(&[object_of(Method::TestRun), object_of(Method::PageFaults)]).unwrap();
        for method in [Method::TestRun, Method::PageFaults] {
            let started = Instant::now();
            // Only loaded, not run: this machine has no such nodes.
            let (object, _maps) = load_maps(&types, MAX_NODES, method).unwrap();
            for which in [Which::Walk, Which::Files] {
                load_program(&object, which, method).unwrap();
            }
            eprintln!("{method:?} with {MAX_NODES} nodes: {:?}", started.elapsed());
        }
    }

    #[test]
    fn nodes_are_counted_up_to_the_highest_number() {
        for (list, nodes) in [("0", 1), ("0-3", 4), ("0,2-5", 6), ("", 1), ("0-4095", MAX_NODES), ("99999999999", 1)] {
            assert_eq!(possible_nodes(list), nodes, "{list}");
        }
    }
}
