//! The BPF programs at the kernel's tracepoints, and their queue.

use std::error::Error;

use aya::maps::{Array, MapData, MapError, Queue};
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader};

use super::event::{self, EVENT_BYTES, Event};
use crate::Root;
use crate::zombies::kernel::{LockedMemory, kernel_types};
use crate::zombies::{Blind, Reason, Standing};

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../../bpf/churn.o");

/// The programs by the tracepoints they belong to.
const PROGRAMS: [(&str, &str); 3] =
    [("made", "cgroup_mkdir"), ("removed", "cgroup_rmdir"), ("freed", "cgroup_release")];

/// struct control: the hierarchy, then what was lost by kind, the first of which is none.
type Control = [u64; 5];

/// So many events at one turn: who makes them faster than we read them shall not keep us for ever.
const AT_ONE_TURN: u32 = 100_000;

/// Drop detaches the programs.
pub(super) struct Programs {
    _ebpf: Ebpf,
    queue: Queue<MapData, [u8; EVENT_BYTES]>,
    control: Array<MapData, Control>,
    lost: [u64; 3],
}

type Failure = Box<dyn Error + Send + Sync>;

impl Programs {
    pub fn attach(root: &Root, hierarchy: u32) -> Result<Programs, Blind> {
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
        let types = kernel_types().map_err(|e| standing.no_btf(&*e))?;
        let _room = standing.is_before(5, 11).then(LockedMemory::raise);
        load(&types, hierarchy)
            .map_err(|e| standing.explain("BPF programs at the kernel's tracepoints for cgroups", &*e))
    }

    /// All that happened since the last time.
    pub fn drain(&mut self, mut tell: impl FnMut(Event)) -> Result<(), MapError> {
        for _ in 0..AT_ONE_TURN {
            match self.queue.pop(0) {
                Ok(bytes) => event::parse(&bytes).into_iter().for_each(&mut tell),
                Err(MapError::ElementNotFound) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// How many were made, removed and freed, since the last time, while the queue was full.
    pub fn newly_lost(&mut self) -> [u64; 3] {
        let Ok([_, _, lost @ ..]) = self.control.get(&0, 0) else { return [0; 3] };
        let before = std::mem::replace(&mut self.lost, lost);
        std::array::from_fn(|i| lost[i].saturating_sub(before[i]))
    }
}

fn load(types: &aya::Btf, hierarchy: u32) -> Result<Programs, Failure> {
    let mut ebpf = EbpfLoader::new().btf(Some(types)).load(OBJECT)?;
    let mut take = |name: &str| ebpf.take_map(name).ok_or_else(|| format!("the BPF object has no map {name}"));
    let queue = Queue::try_from(take("QUEUE")?)?;
    let mut control: Array<MapData, Control> = Array::try_from(take("CONTROL")?)?;
    control.set(0, [u64::from(hierarchy), 0, 0, 0, 0], 0)?;
    // All are verified, which takes a while, before the first begins to count.
    for (name, _) in PROGRAMS {
        program(&mut ebpf, name)?.load()?;
    }
    for (name, tracepoint) in PROGRAMS {
        program(&mut ebpf, name)?.attach(tracepoint)?;
    }
    Ok(Programs { _ebpf: ebpf, queue, control, lost: [0; 3] })
}

fn program<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut RawTracePoint, Failure> {
    let program = ebpf.program_mut(name).ok_or_else(|| format!("the BPF object has no program {name}"))?;
    Ok(program.try_into()?)
}
