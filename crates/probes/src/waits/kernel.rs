//! The BPF programs on the scheduler's tracepoints, and their tables.

use std::collections::{HashMap as Map, HashSet};
use std::ffi::CStr;
use std::time::Duration;

use aya::maps::stack_trace::StackTraceMap;
use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray};
use coroner_evidence::Time;

use super::tables::{
    self, BlockBytes, BlockKey, COLD_PER_BLOCK, ChargeBytes, ColdBlock, Core, CoreBytes, EndedBlock, Identity,
    PartyBytes, SLOT_BLOCKS, Slot, SlotBlock, Snapshot, UsedBlocks,
};
use crate::Root;
use crate::bpf::{Attached, Blind, Failure, KernelTypes, Object, Program, Standing, TracepointTypes, bpf_object};
use crate::root::now;

/// Waits are summed until they reach this and then charged: shorter ones that are not are lost at a thread's end.
const CHARGE_FROM_NS: u64 = 1_000_000;
/// Entries of the tables, to bound reading while they change.
const MOST_PARTIES: usize = 8192;
const MOST_CHARGES: usize = 16_384;
const MOST_BLOCKS: usize = 1024;
/// A party that nobody belongs to is forgotten after this many looks without news.
const KEPT_LOOKS: u32 = 3;

/// Programs and their tracepoints. The last one switches on the rest.
const PROGRAMS: [(&str, &str, &CStr); 5] = [
    ("wakeup_new", "sched_wakeup_new", c"sched_wakeup_new"),
    ("wakeup", "sched_wakeup", c"sched_wakeup"),
    ("migrate", "sched_migrate_task", c"sched_migrate_task"),
    ("exec", "sched_process_exec", c"sched_process_exec"),
    ("sched_switch", "sched_switch", c"sched_switch"),
];

/// Indices of the table COUNT.
const UNBOOKED_NS: u32 = 4;
const TIMED_NS: u32 = 8;
/// One run in so many is timed.
const TIMED: u64 = 64;

/// The builds of bpf/waits.bpf.c, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Build {
    /// Since Linux 5.9.
    Traced,
    Raw,
    /// For the verifier of Linux 5.4.
    Small,
}

impl Build {
    pub const ALL: [Build; 3] = [Build::Traced, Build::Raw, Build::Small];

    fn object(self) -> &'static [u8] {
        match self {
            Build::Traced => bpf_object!("waits.o"),
            Build::Raw => bpf_object!("waits.raw.o"),
            Build::Small => bpf_object!("waits.small.o"),
        }
    }
}

pub(super) struct Programs {
    programs: Vec<Program>,
    build: Build,
    attached: Vec<Attached>,
    control: Array<MapData, [u64; 5]>,
    slots: Array<MapData, SlotBlock>,
    used: Array<MapData, UsedBlocks>,
    /// When each block of slots last got a thread, and whether it had any when last read.
    known_used: Vec<(u32, bool)>,
    cold: Array<MapData, ColdBlock>,
    cores: Array<MapData, CoreBytes>,
    parties: HashMap<MapData, u32, PartyBytes>,
    charges: HashMap<MapData, ChargeBytes, u64>,
    blocks: HashMap<MapData, BlockKey, BlockBytes>,
    blocked_before: HashMap<MapData, u32, u32>,
    stacks: Option<StackTraceMap<MapData>>,
    counts: PerCpuArray<MapData, u64>,
    unified: bool,
    epoch: u8,
    turn: u32,
    epoch_start: Time,
    turn_start: Time,
    unbooked_ns: u64,
    /// Looks since a party without threads had news.
    idle_looks: Map<u32, u32>,
}

impl std::fmt::Debug for Programs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Programs").field("build", &self.build).field("turn", &self.turn).finish_non_exhaustive()
    }
}

impl Programs {
    /// Loads them; they run from [`Programs::resume`] to [`Programs::pause`]. `unified`: the cpu controller is in the cgroup v2 hierarchy.
    pub fn load(root: &Root, cores: u32, unified: bool) -> Result<Programs, Blind> {
        let standing = Standing::check(root)?;
        let mut failure = None;
        for build in Build::ALL {
            let types = KernelTypes::of_running_kernel(&[build.object()]).map_err(|e| standing.no_btf(&e))?;
            match load(&types, build, cores, unified) {
                Ok(programs) => return Ok(programs),
                // The first is what a kernel of today should take.
                Err(e) => drop(failure.get_or_insert(e)),
            }
        }
        let failure = failure.unwrap_or(Failure::Missing { what: "object", name: "waits".to_owned() });
        Err(standing.explain("cannot run BPF programs on the scheduler's tracepoints", &failure))
    }

    #[cfg(test)]
    pub fn build(&self) -> Build {
        self.build
    }

    pub fn runs(&self) -> bool {
        !self.attached.is_empty()
    }

    pub fn epoch_start(&self) -> Time {
        self.epoch_start
    }

    /// Starts seeing. `blocked`: threads in uninterruptible sleep.
    pub fn resume(&mut self, blocked: &[u32]) -> Result<(), Failure> {
        if self.runs() {
            return Ok(());
        }
        let old: Vec<u32> = self.blocked_before.keys().take(MOST_BLOCKS).flatten().collect();
        for tid in old {
            // Only we remove them.
            let _ = self.blocked_before.remove(&tid);
        }
        for tid in blocked {
            // Without room their block counts from when it is looked up.
            let _ = self.blocked_before.insert(tid, 1, 0);
        }
        // Epoch 0: they return at once.
        self.write_control(0)?;
        for (program, (_, _, tracepoint)) in self.programs.iter().zip(PROGRAMS) {
            let attached = match self.build {
                Build::Traced => program.attach_to_its_tracepoint(),
                Build::Raw | Build::Small => program.attach_raw_tracepoint(tracepoint),
            };
            self.attached.push(attached.map_err(|error| Failure::Call { call: "attaching to a tracepoint", error })?);
        }
        self.epoch = self.epoch % 255 + 1;
        self.epoch_start = now();
        self.turn_start = self.epoch_start;
        self.write_control(self.epoch)?;
        Ok(())
    }

    /// A thread that was not blocked when the programs began to see.
    pub fn was_not_blocked(&mut self, tid: u32) {
        let _ = self.blocked_before.remove(&tid);
    }

    fn write_control(&mut self, epoch: u8) -> Result<(), MapError> {
        let crowded = u64::from(self.count(1) > 0);
        let control = [
            CHARGE_FROM_NS,
            self.epoch_start.0,
            self.turn_start.0,
            u64::from(self.turn) | u64::from(self.unified) << 32,
            u64::from(epoch) | crowded << 32,
        ];
        self.control.set(0, control, 0)
    }

    fn count(&self, what: u32) -> u64 {
        self.counts.get(&what, 0).map_or(0, |cores| cores.iter().sum())
    }

    /// What should be rare: no slot, evicted, no room for a party, unbooked ns, running at switch-in, not running at switch-out,
    /// no room for a block.
    #[cfg(test)]
    pub fn rare(&self) -> [u64; 7] {
        [1, 2, 3, 4, 5, 6, 7].map(|what| self.count(what))
    }

    /// What the programs have cost so far, on all cores: some of their runs were timed.
    pub fn cost(&self) -> Duration {
        Duration::from_nanos(self.count(TIMED_NS).saturating_mul(TIMED))
    }

    /// Ends the turn and reads it. With `pause` nothing is seen until [`Programs::resume`].
    pub fn take(&mut self, pause: bool) -> Result<Snapshot, MapError> {
        let (turn, from) = (self.turn, self.turn_start);
        if pause {
            self.attached.clear();
        }
        self.turn = self.turn.wrapping_add(1);
        self.turn_start = now();
        self.write_control(self.epoch)?;
        let mut snapshot = Snapshot {
            epoch_start: self.epoch_start,
            epoch: self.epoch,
            turn,
            from,
            to: self.turn_start,
            cores: self.read_cores()?,
            // Before the slots: a thread that ends meanwhile is in neither, and its sums come with the next turn.
            parties: self.read_parties()?,
            slots: self.read_slots()?,
            ..Snapshot::default()
        };
        snapshot.charges = self.take_charges(turn)?;
        snapshot.blocks = self.take_blocks(turn)?;
        let unbooked = self.count(UNBOOKED_NS);
        snapshot.unbooked_ns = unbooked.saturating_sub(std::mem::replace(&mut self.unbooked_ns, unbooked));
        self.forget_parties(&snapshot);
        Ok(snapshot)
    }

    fn read_cores(&self) -> Result<Vec<Core>, MapError> {
        (0..self.cores.len()).map(|number| Ok(tables::parse_core(&self.cores.get(&number, 0)?))).collect()
    }

    /// When the thread that runs on a core came, as far as was seen.
    pub fn last_switch(&self, core: u32) -> Option<u64> {
        self.cores.get(&core, 0).ok().map(|core| tables::parse_core(&core).switched)
    }

    fn read_slots(&mut self) -> Result<Vec<Slot>, MapError> {
        let mut slots = Vec::new();
        // Slots come in the order of their indices: one block of the other table at a time is enough.
        let mut cold: Option<(u32, ColdBlock)> = None;
        let turns = self.used.get(&0, 0)?;
        for ((number, turn), known) in (0..).zip(turns).zip(&mut self.known_used) {
            if known.0 == turn && !known.1 {
                continue;
            }
            let block = self.slots.get(&number, 0)?;
            *known = (turn, false);
            for (mut slot, index) in tables::parse_slots(&block) {
                known.1 = true;
                let (number, at) = (index / COLD_PER_BLOCK as u32, index as usize % COLD_PER_BLOCK);
                let times = match &cold {
                    Some((known, times)) if *known == number => times,
                    _ => &cold.insert((number, self.cold.get(&number, 0)?)).1,
                };
                (slot.throttled, slot.blocked) = (times[2 * at], times[2 * at + 1]);
                slots.push(slot);
            }
        }
        Ok(slots)
    }

    fn read_parties(&self) -> Result<Map<u32, (Identity, tables::Folded)>, MapError> {
        let mut parties = Map::new();
        for entry in self.parties.iter().take(2 * MOST_PARTIES) {
            let (id, bytes) = entry?;
            parties.insert(id, tables::parse_party(&bytes));
        }
        Ok(parties)
    }

    /// Removes parties that nobody belongs to and that had no news for some looks, so that there is room for others.
    fn forget_parties(&mut self, snapshot: &Snapshot) {
        let mut used: HashSet<u32> = snapshot.slots.iter().map(|slot| slot.party).collect();
        used.extend(snapshot.cores.iter().map(|core| core.party));
        used.extend(snapshot.charges.iter().flat_map(|(charge, _)| [charge.runner, charge.victim]));
        let mut idle_looks = Map::new();
        for id in snapshot.parties.keys().filter(|id| !used.contains(id)) {
            let looks = self.idle_looks.get(id).map_or(0, |looks| looks + 1);
            if looks < KEPT_LOOKS {
                idle_looks.insert(*id, looks);
            } else {
                // A thread of it may have come this moment; then its sums are lost, not another's.
                let _ = self.parties.remove(id);
            }
        }
        self.idle_looks = idle_looks;
    }

    fn take_charges(&mut self, turn: u32) -> Result<Vec<(tables::ChargeKey, u64)>, MapError> {
        let mut over = Vec::new();
        for key in self.charges.keys().take(2 * MOST_CHARGES) {
            let key = key?;
            if tables::parse_charge(&key).1 != turn.wrapping_add(1) as u16 {
                over.push(key);
            }
        }
        let mut taken = Vec::with_capacity(over.len());
        for key in over {
            taken.push((tables::parse_charge(&key).0, self.charges.get(&key, 0)?));
            self.charges.remove(&key)?;
        }
        Ok(taken)
    }

    fn take_blocks(&mut self, turn: u32) -> Result<Vec<EndedBlock>, MapError> {
        let mut over = Vec::new();
        for key in self.blocks.keys().take(2 * MOST_BLOCKS) {
            let key = key?;
            if tables::turn_of_block(&key) != turn.wrapping_add(1) {
                over.push(key);
            }
        }
        let mut taken = Vec::with_capacity(over.len());
        for key in over {
            let mut block = tables::parse_block(&key, &self.blocks.get(&key, 0)?);
            if let Some(stacks) = &self.stacks
                && let Ok(stack) = u32::try_from(block.stack)
                && let Ok(stack) = stacks.get(&stack, 0)
            {
                block.frames = stack.frames().iter().map(|frame| frame.ip).collect();
            }
            taken.push(block);
            self.blocks.remove(&key)?;
        }
        Ok(taken)
    }
}

fn load(types: &KernelTypes, build: Build, cores: u32, unified: bool) -> Result<Programs, Failure> {
    let object = Object::load_sized(types, build.object(), &[], &[("CORES", cores)])?;
    let programs = match build {
        Build::Traced => {
            let names = PROGRAMS.map(|(_, tracepoint, _)| tracepoint);
            let tracepoints = TracepointTypes::of_running_kernel(&names)
                .map_err(|error| Failure::Call { call: "reading the kernel's types", error })?;
            let load = |(name, tracepoint, _)| object.traced_program(name, tracepoint, &tracepoints);
            PROGRAMS.into_iter().map(load).collect::<Result<Vec<_>, _>>()?
        }
        Build::Raw | Build::Small => {
            PROGRAMS.into_iter().map(|(name, ..)| object.program(name)).collect::<Result<Vec<_>, _>>()?
        }
    };
    Ok(Programs {
        programs,
        build,
        attached: Vec::new(),
        control: object.map("CONTROL")?,
        slots: object.map("SLOTS")?,
        used: object.map("USED")?,
        known_used: vec![(0, false); SLOT_BLOCKS],
        cold: object.map("COLD")?,
        cores: object.map("CORES")?,
        parties: object.map("PARTIES")?,
        charges: object.map("CHARGES")?,
        blocks: object.map("BLOCKED_AT")?,
        blocked_before: object.map("BLOCKED_BEFORE")?,
        stacks: if build == Build::Traced { None } else { Some(object.map("STACKS")?) },
        counts: object.map("COUNT")?,
        unified,
        epoch: 0,
        turn: 0,
        epoch_start: Time(0),
        turn_start: Time(0),
        unbooked_ns: 0,
        idle_looks: Map::new(),
    })
}

#[cfg(test)]
pub(super) fn load_build(build: Build, cores: u32) -> Result<Programs, Failure> {
    load(&KernelTypes::of_running_kernel(&[build.object()]).unwrap(), build, cores, false)
}
