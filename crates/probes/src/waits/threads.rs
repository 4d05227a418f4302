//! Threads that wanted to run or were blocked when the kernel's programs began to see. Until something happens to them, only /proc
//! tells: a thread that is starved altogether, one that has its core for itself, one that hangs.

use std::collections::HashSet;

use super::books::Untouched;
use super::places::Places;
use super::tables::{Identity, Snapshot, State, UNKNOWN};
use crate::Root;
use crate::tasks::{parse_schedstat, parse_stat, readable_name};

/// Threads in these states that are kept in mind. A node with more has worse problems.
const MOST: usize = 1000;
/// No thread on a busy core runs as long without a switch.
const LONG_RUN_NS: u64 = 50_000_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub tid: u32,
    pid: u32,
    pub state: State,
    core: u32,
    run_ns: Option<u64>,
    party: Identity,
}

impl Candidate {
    pub fn is_blocked(&self) -> bool {
        self.state == State::Blocked
    }
}

/// All threads that are in state R or D.
pub(super) fn find(root: &Root, places: &mut Places) -> Vec<Candidate> {
    let mut found = Vec::new();
    for name in root.list("/proc").unwrap_or_default() {
        let Ok(pid) = name.parse::<u32>() else { continue };
        for name in root.list(&format!("/proc/{pid}/task")).unwrap_or_default() {
            let Ok(tid) = name.parse::<u32>() else { continue };
            found.extend(look(root, pid, tid, places));
            if found.len() >= MOST {
                return found;
            }
        }
    }
    found
}

/// `None` if it is in another state, or gone.
pub(super) fn look(root: &Root, pid: u32, tid: u32, places: &mut Places) -> Option<Candidate> {
    let text = root.read(&format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let stat = parse_stat(text.as_bytes()).ok()?;
    let state = match stat.state {
        b'R' => State::Waiting,
        b'D' => State::Blocked,
        _ => return None,
    };
    let comm = if pid == tid {
        readable_name(stat.comm)
    } else {
        root.read_line(&format!("/proc/{pid}/comm")).unwrap_or_default()
    };
    let party = Identity {
        pid,
        cgroup: places.inode_of(pid).unwrap_or(0),
        comm,
        policy: stat.policy as u8,
        rt_priority: stat.rt_priority,
        nice: stat.nice,
        kernel: stat.kernel,
        ..Identity::default()
    };
    Some(Candidate { tid, pid, state, core: stat.core, run_ns: run_ns(root, pid, tid), party })
}

/// `None` if it is not as it was.
pub(super) fn again(root: &Root, before: &Candidate, places: &mut Places) -> Option<Candidate> {
    look(root, before.pid, before.tid, places).filter(|now| now.state == before.state)
}

fn run_ns(root: &Root, pid: u32, tid: u32) -> Option<u64> {
    let text = root.read(&format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    parse_schedstat(text.as_bytes()).ok().map(|times| times.run_ns)
}

/// Those of `candidates` that no program has seen and that are as they were. Others are dropped. Cores that saw no switch get who
/// has them.
pub(super) fn untouched(
    root: &Root,
    candidates: &mut Vec<Candidate>,
    snapshot: &mut Snapshot,
    places: &mut Places,
    last_switch: impl Fn(u32) -> Option<u64>,
) -> Vec<Untouched> {
    let seen: HashSet<u32> =
        snapshot.slots.iter().filter(|slot| slot.epoch == snapshot.epoch).map(|slot| slot.tid).collect();
    let epoch = u32::from(snapshot.epoch);
    for core in snapshot.cores.iter_mut().filter(|core| core.epoch != epoch) {
        core.start = 0;
        core.past = Default::default();
    }
    forget_stale(root, snapshot, last_switch);
    let watched = snapshot.to.since(snapshot.from).as_nanos() as u64;
    let mut untouched = Vec::new();
    candidates.retain_mut(|candidate| {
        if seen.contains(&candidate.tid) {
            return false;
        }
        let Some(now) = again(root, candidate, places) else { return false };
        let ran = now.run_ns.zip(candidate.run_ns).map_or(0, |(now, before)| now.saturating_sub(before));
        let runs = candidate.state == State::Waiting && ran > watched / 2;
        let core = snapshot.cores.get_mut(now.core as usize).filter(|core| core.start == 0);
        // A core that switches has told who ran: then this thread has been somewhere else.
        if runs && core.is_none() {
            return false;
        }
        if runs && let Some(core) = core {
            (core.start, core.party, core.tid) = (snapshot.epoch_start.0, now.party.id(), now.tid);
        }
        let state = if runs { State::Running } else { candidate.state };
        *candidate = now;
        let party = candidate.party.clone();
        untouched.push(Untouched { tid: candidate.tid, party, core: candidate.core, state });
        true
    });
    untouched
}

/// A switch may go unseen: then the kernel's table says that a thread runs which sleeps, and that the one that runs waits. So we
/// ask /proc about those that have their core for long. `last_switch` of a core, as the table has it by now: the thread may have left since.
fn forget_stale(root: &Root, snapshot: &mut Snapshot, last_switch: impl Fn(u32) -> Option<u64>) {
    let (to, epoch) = (snapshot.to.0, u32::from(snapshot.epoch));
    for number in 0..snapshot.cores.len() {
        let core = &snapshot.cores[number];
        let long = core.epoch == epoch && core.tid != 0 && to.saturating_sub(core.switched) > LONG_RUN_NS;
        if !long {
            continue;
        }
        // A thread's own directory is not listed in /proc, but it is there.
        let text = root.read(&format!("/proc/{}/stat", core.tid)).unwrap_or_default();
        let runs = parse_stat(text.as_bytes()).is_ok_and(|stat| stat.state == b'R');
        if runs || last_switch(number as u32) != Some(core.switched) {
            continue;
        }
        let from = core.switched;
        for slot in snapshot.slots.iter_mut().filter(|slot| slot.core as usize == number) {
            if matches!(slot.state, State::Running | State::Waiting) {
                slot.state = State::None;
            }
        }
        let core = &mut snapshot.cores[number];
        core.past[0].insert(0, (core.start, core.party));
        (core.start, core.party) = (from, UNKNOWN);
    }
}

/// Threads that waited or were blocked at the end of a slice, for the next one.
pub(super) fn carried(
    root: &Root,
    snapshot: &Snapshot,
    pid_of: impl Fn(u32) -> Option<u32>,
    places: &mut Places,
) -> Vec<Candidate> {
    let hold = |slot: &&super::tables::Slot| {
        slot.epoch == snapshot.epoch && matches!(slot.state, State::Waiting | State::Blocked | State::Running)
    };
    let slots = snapshot.slots.iter().filter(hold).take(MOST);
    let pid = |party, tid: u32| pid_of(party).filter(|pid| *pid != 0).unwrap_or(tid);
    slots.filter_map(|slot| look(root, pid(slot.party, slot.tid), slot.tid, places)).collect()
}
