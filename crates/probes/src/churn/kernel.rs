//! The BPF programs on the kernel's tracepoints, and their queue.

use std::ffi::CStr;

use aya::maps::{Array, MapData, MapError, Queue};

use super::event::{self, EVENT_BYTES, Event};
use crate::Root;
use crate::bpf::{Attached, Blind, Failure, KernelTypes, Object, Standing, bpf_object};

/// The programs and their tracepoints.
const PROGRAMS: [(&str, &CStr); 3] =
    [("made", c"cgroup_mkdir"), ("removed", c"cgroup_rmdir"), ("freed", c"cgroup_release")];

/// struct control: the hierarchy, then lost events by kind, of which kind 0 is unused.
type Control = [u64; 5];

/// Events read per turn, so that a fast producer cannot keep us here forever.
const AT_ONE_TURN: u32 = 100_000;

/// Drop detaches the programs.
pub(super) struct Programs {
    _attached: Vec<Attached>,
    queue: Queue<MapData, [u8; EVENT_BYTES]>,
    control: Array<MapData, Control>,
    lost: [u64; 3],
}

impl Programs {
    pub fn attach(root: &Root, hierarchy: u32) -> Result<Programs, Blind> {
        let standing = Standing::check(root)?;
        let object = bpf_object!("churn.o");
        let types = KernelTypes::of_running_kernel(&[object]).map_err(|e| standing.no_btf(&e))?;
        load(&types, object, hierarchy)
            .map_err(|e| standing.explain("cannot run BPF programs on the cgroup tracepoints", &e))
    }

    /// Events since the last call.
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

    /// How many were created, removed and freed while the queue was full, since the last call.
    pub fn newly_lost(&mut self) -> [u64; 3] {
        let Ok([_, _, lost @ ..]) = self.control.get(&0, 0) else { return [0; 3] };
        let before = std::mem::replace(&mut self.lost, lost);
        std::array::from_fn(|i| lost[i].saturating_sub(before[i]))
    }
}

fn load(types: &KernelTypes, bytes: &[u8], hierarchy: u32) -> Result<Programs, Failure> {
    let object = Object::load(types, bytes, &[])?;
    let queue = object.map("QUEUE")?;
    let mut control: Array<MapData, Control> = object.map("CONTROL")?;
    control.set(0, [u64::from(hierarchy), 0, 0, 0, 0], 0)?;
    // Verifying takes a while, so load all programs before the first one starts counting.
    let mut programs = Vec::new();
    for (name, tracepoint) in PROGRAMS {
        programs.push((object.program(name)?, tracepoint));
    }
    let mut attached = Vec::new();
    for (program, tracepoint) in programs {
        let attach = program.attach_raw_tracepoint(tracepoint);
        attached.push(attach.map_err(|error| Failure::Call { call: "attaching to a tracepoint", error })?);
    }
    Ok(Programs { _attached: attached, queue, control, lost: [0; 3] })
}
