//! The BPF programs, loaded, and driven until they are done.

use std::error::Error;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use aya::maps::{Array, MapData, ProgramArray, RingBuf};
use aya::programs::perf_event::{PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent};
use aya::programs::{PerfEvent, Program, RawTracePoint, RawTracePointRunOptions, TestRun};
use aya::{Btf, Ebpf, EbpfLoader, Endianness};

use super::blind::{Blind, Reason, Standing};
use super::kernel_types;
use super::own_fault::FaultingPage;
use super::slots::{self, BATCH_BYTES, FilesWords, Place, Told, WalkCounts, WalkWords};
use super::{Choice, Method};
use crate::Root;
use crate::bpf_objects::bpf_object;

/// MAX_NUMNODES of any kernel (CONFIG_NODES_SHIFT is 10 at most).
const MAX_NODES: u32 = 1024;

/// The kernel holds back an event that comes too often until its next tick; a program that did not run may so be tried again.
const FAULTS_IN_VAIN: u32 = 500;

/// The loaded programs. They run in this thread's context, so they stay with it.
pub(super) struct Kernel {
    ebpf: Ebpf,
    maps: Maps,
    files_loaded: bool,
    _this_thread: PhantomData<*const ()>,
}

enum Drive {
    TestRun(RingBuf<MapData>),
    PageFaults { out: Array<MapData, [u8; BATCH_BYTES]>, page: FaultingPage },
}

type Failure = Box<dyn Error + Send + Sync>;

/// How a program's run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
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
    pub fn load(root: &Root, choice: Choice) -> Result<Kernel, Blind> {
        if !root.is_live() {
            return Err(Blind::new(
                Reason::NotLive,
                "a directory is examined, not the kernel of a node",
                "run on the node itself",
            ));
        }
        if !cfg!(all(target_endian = "little", target_pointer_width = "64")) {
            return Err(Blind::new(
                Reason::Kernel,
                "the BPF objects are for 64-bit little-endian machines",
                "an x86-64 or arm64 node",
            ));
        }
        let standing = Standing::read(root);
        if let Some(blind) = standing.forbids() {
            return Err(blind);
        }
        let btf = kernel_types().map_err(|e| standing.no_btf(&*e))?;
        let nodes = possible_nodes(&root.read_line("/sys/devices/system/node/possible").unwrap_or_default());
        let _room = standing.is_before(5, 11).then(LockedMemory::raise);
        let load = |method| load_object(&btf, nodes, method).map_err(|e| standing.explain(method_failed(method), &*e));
        match choice {
            Choice::Only(method) => load(method),
            Choice::Best => load(Method::TestRun).or_else(|first| {
                // What is forbidden to one is forbidden to the other; keep the first reason.
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
    pub fn walk(&mut self, limit: Duration, tell: impl FnMut(Told)) -> Result<(WalkCounts, Ended), Failure> {
        self.maps.walk.set(0, slots::walk_from_the_root(), 0)?;
        let ended = self.drive(Which::Walk, limit, tell)?;
        Ok((slots::walk_counts(&self.maps.walk.get(&0, 0)?), ended))
    }

    /// Looks again at one that an earlier walk told; it is told again if it is still there and dead.
    pub fn look(&mut self, place: Place, tell: impl FnMut(Told)) -> Result<(), Failure> {
        let mut words = self.maps.walk.get(&0, 0)?;
        slots::look_at(&mut words, place);
        self.maps.walk.set(0, words, 0)?;
        self.drive(Which::Walk, Duration::from_secs(1), tell)?;
        Ok(())
    }

    /// Tells the folios of up to [`slots::ITEMS`] memcgs, and their files.
    pub fn files(
        &mut self,
        places: &[Place],
        folios_per_list: u32,
        limit: Duration,
        tell: impl FnMut(Told),
    ) -> Result<(FilesWords, Ended), Failure> {
        self.load_files()?;
        self.maps.files.set(0, slots::files_of(places, folios_per_list), 0)?;
        let ended = self.drive(Which::Files, limit, tell)?;
        Ok((self.maps.files.get(&0, 0)?, ended))
    }

    /// The second program is loaded when it is first wanted: verifying it takes a while.
    fn load_files(&mut self) -> Result<(), Failure> {
        if !self.files_loaded {
            load_program(&mut self.ebpf, Which::Files, &mut self.maps.again)?;
            self.files_loaded = true;
        }
        Ok(())
    }

    fn drive(&mut self, which: Which, limit: Duration, mut tell: impl FnMut(Told)) -> Result<Ended, Failure> {
        let started = Instant::now();
        let mut idle = 0;
        loop {
            let (state, told) = match &mut self.maps.drive {
                Drive::TestRun(ring) => {
                    let program: &mut RawTracePoint = program(&mut self.ebpf, which)?.try_into()?;
                    let state = program.test_run(RawTracePointRunOptions::default())?.return_value;
                    let mut told = 0;
                    while let Some(batch) = ring.next() {
                        slots::read(&batch, &mut tell);
                        told += 1;
                    }
                    (state, told)
                }
                Drive::PageFaults { out, page } => {
                    page.touch()?;
                    let (first, second, state) = match which {
                        Which::Walk => control(&self.maps.walk)?,
                        Which::Files => control(&self.maps.files)?,
                    };
                    let (batches, ran) = slots::ran(first, second);
                    for index in 0..batches {
                        slots::read(&out.get(&index, 0)?, &mut tell);
                    }
                    if !ran {
                        std::thread::sleep(Duration::from_millis(1));
                        (u32::MAX, 0)
                    } else {
                        if state != which.done() {
                            match which {
                                Which::Walk => rearm(&mut self.maps.walk)?,
                                Which::Files => rearm(&mut self.maps.files)?,
                            }
                        }
                        (state, batches)
                    }
                }
            };
            if state == which.done() {
                return Ok(Ended::Done);
            }
            idle = if told == 0 { idle + 1 } else { 0 };
            if idle > FAULTS_IN_VAIN {
                return Err(format!("the BPF program `{}` does not run (state {state})", which.name()).into());
            }
            if started.elapsed() > limit {
                return Ok(Ended::OutOfTime);
            }
        }
    }
}

fn control<const N: usize>(map: &Array<MapData, [u64; N]>) -> Result<(u64, u64, u32), Failure> {
    let words = map.get(&0, 0)?;
    Ok((words[0], words[1], slots::state(&words)))
}

fn rearm<const N: usize>(map: &mut Array<MapData, [u64; N]>) -> Result<(), Failure> {
    let mut words = map.get(&0, 0)?;
    slots::arm(&mut words);
    Ok(map.set(0, words, 0)?)
}

fn kernel_types() -> Result<Btf, Failure> {
    let whole = std::fs::read("/sys/kernel/btf/vmlinux")?;
    let cut = kernel_types::cut_down(&whole);
    Ok(Btf::parse(cut.as_deref().unwrap_or(&whole), Endianness::default())?)
}

fn method_failed(method: Method) -> &'static str {
    match method {
        Method::TestRun => "the kernel does not run our BPF program by BPF_PROG_TEST_RUN",
        Method::PageFaults => "the kernel does not run our BPF program at page faults",
    }
}

fn program(ebpf: &mut Ebpf, which: Which) -> Result<&mut Program, Failure> {
    ebpf.program_mut(which.name()).ok_or_else(|| format!("the BPF object has no program {}", which.name()).into())
}

struct Maps {
    walk: Array<MapData, WalkWords>,
    files: Array<MapData, FilesWords>,
    /// The programs call themselves through it; the kernel empties it when it is closed.
    again: ProgramArray<MapData>,
    drive: Drive,
}

fn load_maps(btf: &Btf, nodes: u32, method: Method) -> Result<(Ebpf, Maps), Failure> {
    let object = match method {
        Method::TestRun => bpf_object!("zombies.test_run.o"),
        Method::PageFaults => bpf_object!("zombies.page_faults.o"),
    };
    let mut ebpf = EbpfLoader::new().btf(Some(btf)).override_global("NODES", &nodes, true).load(object)?;
    let mut take = |name: &str| ebpf.take_map(name).ok_or_else(|| format!("the BPF object has no map {name}"));
    let drive = match method {
        Method::TestRun => Drive::TestRun(RingBuf::try_from(take("OUT")?)?),
        Method::PageFaults => Drive::PageFaults { out: Array::try_from(take("OUT")?)?, page: FaultingPage::map()? },
    };
    let maps = Maps {
        walk: Array::try_from(take("WALK")?)?,
        files: Array::try_from(take("FILES")?)?,
        again: ProgramArray::try_from(take("AGAIN")?)?,
        drive,
    };
    Ok((ebpf, maps))
}

fn load_object(btf: &Btf, nodes: u32, method: Method) -> Result<Kernel, Failure> {
    let (mut ebpf, mut maps) = load_maps(btf, nodes, method)?;
    load_program(&mut ebpf, Which::Walk, &mut maps.again)?;
    let mut kernel = Kernel { ebpf, maps, files_loaded: false, _this_thread: PhantomData };
    // Kernels before 5.10 may load it but cannot run it so: find out now.
    if method == Method::TestRun {
        kernel.maps.walk.set(0, slots::walk_from_the_root(), 0)?;
        let program: &mut RawTracePoint = program(&mut kernel.ebpf, Which::Walk)?.try_into()?;
        program.test_run(RawTracePointRunOptions::default())?;
        if let Drive::TestRun(ring) = &mut kernel.maps.drive {
            while ring.next().is_some() {}
        }
    }
    Ok(kernel)
}

fn load_program(ebpf: &mut Ebpf, which: Which, again: &mut ProgramArray<MapData>) -> Result<(), Failure> {
    let fd = match program(ebpf, which)? {
        Program::RawTracePoint(program) => {
            program.load()?;
            program.fd()?.try_clone()?
        }
        Program::PerfEvent(program) => {
            program.load()?;
            let fd = program.fd()?.try_clone()?;
            attach_to_own_faults(program)?;
            fd
        }
        _ => return Err("the BPF object has a program of another type".into()),
    };
    Ok(again.set(which as u32, &fd, 0)?)
}

/// At minor faults of this thread only: nobody else is slowed.
fn attach_to_own_faults(program: &mut PerfEvent) -> Result<(), Failure> {
    let event = PerfEventConfig::Software(SoftwareEvent::PageFaultsMin);
    program.attach(event, PerfEventScope::CallingProcess { cpu: None }, SamplePolicy::Period(1), false)?;
    Ok(())
}

/// `0-3` or `0,2-5`: one more than the last.
fn possible_nodes(list: &str) -> u32 {
    let last = list.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u32>().ok()).max();
    last.map_or(1, |n| n.saturating_add(1)).clamp(1, MAX_NODES)
}

/// Kernels before 5.11 count maps against RLIMIT_MEMLOCK, which is 64 KiB by default. Its drop puts the limit back.
struct LockedMemory(rustix::process::Rlimit);

impl LockedMemory {
    fn raise() -> LockedMemory {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let before = getrlimit(Resource::Memlock);
        let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
        LockedMemory(before)
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        let _ = rustix::process::setrlimit(rustix::process::Resource::Memlock, self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop over the nodes would be followed by the verifier to its end; they are steps instead.
    #[test]
    fn the_verifier_bears_as_many_nodes_as_we_claim() {
        let Some(_lock) = coroner_lab::HostLock::take_as_root() else { return };
        let btf = kernel_types().unwrap();
        for method in [Method::TestRun, Method::PageFaults] {
            let started = Instant::now();
            // Loaded only: this machine has no lists where the last would be.
            let (mut ebpf, mut maps) = load_maps(&btf, MAX_NODES, method).unwrap();
            for which in [Which::Walk, Which::Files] {
                load_program(&mut ebpf, which, &mut maps.again).unwrap();
            }
            eprintln!("{method:?} with {MAX_NODES} nodes: {:?}", started.elapsed());
        }
    }

    #[test]
    fn nodes_are_counted_to_the_last() {
        for (list, nodes) in [("0", 1), ("0-3", 4), ("0,2-5", 6), ("", 1), ("0-4095", MAX_NODES), ("99999999999", 1)] {
            assert_eq!(possible_nodes(list), nodes, "{list}");
        }
    }
}
