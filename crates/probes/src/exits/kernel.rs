//! The BPF program on the exit tracepoint, and its counts.

use aya::maps::{Array, HashMap, MapData, MapError};

use super::counts::{self, Counts, Failures, Key};
use crate::Root;
use crate::bpf::{Attached, Blind, Failure, KernelTypes, Object, Standing, bpf_object};

/// Entries of the maps.
const ENTRIES: usize = 4096;

/// struct control: the turn, and the pid whose children are not counted.
type Control = [u32; 2];

/// Drop detaches the program.
pub(super) struct Program {
    _attached: Attached,
    control: Array<MapData, Control>,
    lost: Array<MapData, u64>,
    failed: HashMap<MapData, Key, Failures>,
    well: HashMap<MapData, Key, u64>,
    turn: u32,
    own_pid: u32,
    told_as_lost: u64,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("turn", &self.turn).finish_non_exhaustive()
    }
}

impl Program {
    /// Does not count the children of the process `own_pid`.
    pub fn attach(root: &Root, own_pid: Option<u32>) -> Result<Program, Blind> {
        let standing = Standing::check(root)?;
        let object = bpf_object!("exits.o");
        let types = KernelTypes::of_running_kernel(&[object]).map_err(|e| standing.no_btf(&e))?;
        load(&types, object, own_pid.unwrap_or(0))
            .map_err(|e| standing.explain("cannot run a BPF program on the process exit tracepoint", &e))
    }

    /// All failures since the last call, and the number of those the maps had no room for.
    ///
    /// The kernel continues counting in the next turn. What it still adds to the finished one is returned by the next call.
    pub fn take(&mut self) -> Result<(Vec<Counts>, u64), MapError> {
        self.turn = self.turn.wrapping_add(1);
        self.control.set(0, [self.turn, self.own_pid], 0)?;
        let lost = self.lost.get(&0, 0)?;
        let newly_lost = lost.saturating_sub(std::mem::replace(&mut self.told_as_lost, lost));
        // New entries may appear meanwhile; only we remove them.
        let mut over = Vec::new();
        for key in self.failed.keys().take(2 * ENTRIES) {
            let key = key?;
            if counts::turn_of(&key) != self.turn {
                over.push(key);
            }
        }
        let mut taken = Vec::with_capacity(over.len());
        for key in over {
            let failures = self.failed.get(&key, 0)?;
            // Missing if none succeeded, or so long ago that the entry was evicted.
            let well = self.well.get(&key, 0).unwrap_or(0);
            taken.extend(counts::parse(&key, &failures, well));
            self.failed.remove(&key)?;
        }
        Ok((taken, newly_lost))
    }
}

fn load(types: &KernelTypes, bytes: &[u8], own_pid: u32) -> Result<Program, Failure> {
    let object = Object::load(types, bytes, &[])?;
    let mut control: Array<MapData, Control> = object.map("CONTROL")?;
    control.set(0, [0, own_pid], 0)?;
    let attach = object.program("ended")?.attach_raw_tracepoint(c"sched_process_exit");
    Ok(Program {
        _attached: attach.map_err(|error| Failure::Call { call: "attaching to a tracepoint", error })?,
        control,
        lost: object.map("LOST")?,
        failed: object.map("FAILED")?,
        well: object.map("WELL")?,
        turn: 0,
        own_pid,
        told_as_lost: 0,
    })
}
