//! The kernel's tables: the structs of bpf/waits.bpf.c.

use std::collections::HashMap;

use coroner_evidence::Time;

use crate::churn::{long, text_until_nul, word};

/// struct slots: 128 slots of 64 bytes.
pub(super) type SlotBlock = [u64; 1024];
/// struct colds: 512 times throttled and blocked.
pub(super) type ColdBlock = [u64; 1024];
pub(super) const SLOT_BLOCKS: usize = 512;
/// struct used.
pub(super) type UsedBlocks = [u32; SLOT_BLOCKS];
pub(super) const COLD_PER_BLOCK: usize = 512;
const SLOT_COUNT: u32 = 65_536;
const SLOT_WORDS: usize = 8;
const RING: usize = 128;
const RING_WORDS: usize = 1 + 2 * RING;
const CORE_WORDS: usize = 4 + 3 * RING_WORDS + 2 * 32;
/// struct core.
pub(super) type CoreBytes = [u64; CORE_WORDS];
pub(super) const FRAMES: usize = 24;
/// struct party.
pub(super) type PartyBytes = [u8; 104];
/// struct charge.
pub(super) type ChargeBytes = [u8; 16];
/// struct block.
pub(super) type BlockKey = [u8; 24];
/// struct blocked.
pub(super) type BlockBytes = [u8; 40 + 8 * FRAMES];

/// Runners that are no party.
pub(super) const IDLE: u32 = 0;
pub(super) const UNKNOWN: u32 = 1;
pub(super) const OTHERS: u32 = 2;
const FIRST_PARTY: u32 = 4;

const SHORT_LIVED: u8 = 1;
const SECOND_WAY: u8 = 2;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    None,
    Running,
    Waiting,
    Sleeping,
    Blocked,
    Throttled,
}

/// A thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Slot {
    pub tid: u32,
    pub party: u32,
    pub since: u64,
    pub ran: u64,
    pub waited: u64,
    pub throttled: u64,
    pub blocked: u64,
    pub runs: u32,
    pub waits: u32,
    /// Within `turn`.
    pub longest_wait_ns: u64,
    pub core: u32,
    pub state: State,
    pub epoch: u8,
    pub turn: u8,
    pub short_lived: bool,
    /// In 1.024 µs; 0 if it was there before.
    pub born: u32,
}

/// The slots in use, without what is in the other table.
pub(super) fn parse_slots(block: &SlotBlock) -> impl Iterator<Item = (Slot, u32)> {
    let slots = block.as_chunks::<SLOT_WORDS>().0.iter();
    slots.filter(|words| words[0] as u32 != 0).map(|words| {
        let [who, since, ran, waited, counts, debt_longest, small, more] = *words;
        let byte = |at: u32| (small >> (8 * at)) as u8;
        let tid = who as u32;
        let flags = byte(7);
        let state = match byte(4) {
            1 => State::Running,
            2 => State::Waiting,
            3 => State::Sleeping,
            4 => State::Blocked,
            5 => State::Throttled,
            _ => State::None,
        };
        let slot = Slot {
            tid,
            party: (who >> 32) as u32,
            since,
            ran,
            waited,
            throttled: 0,
            blocked: 0,
            runs: counts as u32,
            waits: (counts >> 32) as u32,
            longest_wait_ns: (debt_longest >> 32) << 10,
            core: u32::from((small >> 16) as u16),
            state,
            epoch: byte(5),
            turn: byte(6),
            short_lived: flags & SHORT_LIVED != 0,
            born: (more >> 32) as u32,
        };
        let first = tid & (SLOT_COUNT - 1);
        let second = tid.wrapping_mul(0x9E37_79B1) >> 16;
        (slot, if flags & SECOND_WAY != 0 { second } else { first })
    })
}

/// Who had a core, from when, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Core {
    /// When `tid` came.
    pub switched: u64,
    /// 0: nothing seen in this epoch.
    pub start: u64,
    pub party: u32,
    pub tid: u32,
    pub epoch: u32,
    /// Each change; who had it at the points of a grid; of a wider grid.
    pub past: [Vec<(u64, u32)>; 3],
}

pub(super) fn parse_core(words: &CoreBytes) -> Core {
    let [switched, start, who, epoch] = [0, 1, 2, 3].map(|at| words[at]);
    let ring = |n: usize| {
        let ring = &words[4 + n * RING_WORDS..][..RING_WORDS];
        let head = ring[0] as u32;
        let mut past = Vec::new();
        for back in 1..=RING as u32 {
            let at = 1 + 2 * (head.wrapping_sub(back) as usize % RING);
            if ring[at] == 0 {
                break;
            }
            past.push((ring[at], ring[at + 1] as u32));
        }
        past
    };
    Core {
        switched,
        start,
        party: who as u32,
        tid: (who >> 32) as u32,
        epoch: epoch as u32,
        past: [ring(0), ring(1), ring(2)],
    }
}

/// Who had the core from `from` to `to`: nanoseconds by party. The same walk as in the kernel.
pub(super) fn walk(core: &Core, from: u64, to: u64, into: &mut HashMap<u32, u64>) {
    let mut right = to;
    let mut add = |party: u32, start: u64, right: &mut u64| {
        let start = start.max(from);
        if start < *right {
            *into.entry(party).or_default() += *right - start;
            *right = start;
        }
    };
    if core.start != 0 {
        add(core.party, core.start, &mut right);
    }
    for ring in &core.past {
        for (start, party) in ring {
            add(*party, *start, &mut right);
        }
    }
    if right > from {
        add(UNKNOWN, from, &mut right);
    }
}

/// Who a party is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Identity {
    /// 0: short-lived processes.
    pub pid: u32,
    pub parent: u32,
    /// The inode of its directory.
    pub cgroup: u64,
    pub comm: String,
    pub parent_comm: String,
    pub policy: u8,
    pub rt_priority: u8,
    pub nice: i8,
    pub kernel: bool,
}

/// Sums of those of its threads that ended or are another party now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Folded {
    pub ended: u32,
    pub ran: u64,
    pub waited: u64,
    pub throttled: u64,
    pub blocked: u64,
    pub runs: u64,
    pub waits: u64,
}

pub(super) fn parse_party(bytes: &PartyBytes) -> (Identity, Folded) {
    let identity = Identity {
        pid: word(bytes, 0),
        parent: word(bytes, 4),
        cgroup: long(bytes, 8),
        comm: text_until_nul(&bytes[16..32]),
        parent_comm: text_until_nul(&bytes[32..48]),
        policy: bytes[48],
        rt_priority: bytes[49],
        nice: bytes[50] as i8,
        kernel: bytes[51] != 0,
    };
    let folded = Folded {
        ended: word(bytes, 52),
        ran: long(bytes, 56),
        waited: long(bytes, 64),
        throttled: long(bytes, 72),
        blocked: long(bytes, 80),
        runs: long(bytes, 88),
        waits: long(bytes, 96),
    };
    (identity, folded)
}

impl Identity {
    /// The number that the kernel's program gives it.
    pub fn id(&self) -> u32 {
        let mut comm = [0; 16];
        let name = self.comm.as_bytes();
        let length = name.len().min(15);
        comm[..length].copy_from_slice(&name[..length]);
        let [first, second] = [0, 8].map(|at| long(&comm, at));
        let mut hash = (u64::from(self.pid) ^ u64::from(self.parent) << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash = (hash ^ first).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash ^= hash >> 32;
        let class = u64::from(self.policy) << 48 ^ u64::from(self.rt_priority) << 56 ^ u64::from(self.nice as u8) << 40;
        hash = (hash ^ second ^ class).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^= hash >> 29;
        hash = (hash ^ self.cgroup).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (hash >> 32) as u32 | FIRST_PARTY
    }
}

/// Time that one waited while another had the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ChargeKey {
    /// 0: threads of the party.
    pub tid: u32,
    pub victim: u32,
    pub runner: u32,
    pub core: u32,
}

/// With the turn.
pub(super) fn parse_charge(bytes: &ChargeBytes) -> (ChargeKey, u16) {
    let place = word(bytes, 12);
    let key = ChargeKey { tid: word(bytes, 0), victim: word(bytes, 4), runner: word(bytes, 8), core: place & 0xffff };
    (key, (place >> 16) as u16)
}

/// Blocks of a thread that ended, at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EndedBlock {
    pub tid: u32,
    pub party: u32,
    pub ns: u64,
    pub longest_ns: u64,
    pub times: u64,
    pub waker: String,
    /// Addresses, innermost first. Empty where the kernel keeps a number instead.
    pub frames: Vec<u64>,
    /// The number of the stack, where frames are empty.
    pub stack: u64,
}

pub(super) fn turn_of_block(key: &BlockKey) -> u32 {
    word(key, 16)
}

pub(super) fn parse_block(key: &BlockKey, bytes: &BlockBytes) -> EndedBlock {
    let frames = (0..FRAMES).map(|at| long(bytes, 40 + 8 * at)).take_while(|address| *address != 0);
    EndedBlock {
        tid: word(key, 0),
        party: word(key, 4),
        stack: long(key, 8),
        ns: long(bytes, 0),
        longest_ns: long(bytes, 8),
        times: long(bytes, 16),
        waker: text_until_nul(&bytes[24..40]),
        frames: frames.collect(),
    }
}

/// What is read at the end of a turn.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// Since when every switch is seen.
    pub epoch_start: Time,
    pub epoch: u8,
    /// The turn that ended.
    pub turn: u32,
    pub from: Time,
    pub to: Time,
    pub slots: Vec<Slot>,
    pub cores: Vec<Core>,
    pub parties: HashMap<u32, (Identity, Folded)>,
    pub charges: Vec<(ChargeKey, u64)>,
    pub blocks: Vec<EndedBlock>,
    pub unbooked_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_slot_is_read_as_the_kernel_writes_it() {
        let mut block = [0; 1024];
        let small = 7 | 3 << 16 | 4 << 32 | 1 << 40 | 9 << 48 | u64::from(SHORT_LIVED | SECOND_WAY) << 56;
        block[16..24].copy_from_slice(&[70_000 | 44 << 32, 5, 6, 7, 8 | 9 << 32, 10 | 11 << 32, small, 12 << 32]);
        let parsed: Vec<_> = parse_slots(&block).collect();
        let expected = Slot {
            tid: 70_000,
            party: 44,
            since: 5,
            ran: 6,
            waited: 7,
            throttled: 0,
            blocked: 0,
            runs: 8,
            waits: 9,
            longest_wait_ns: 11 << 10,
            core: 3,
            state: State::Blocked,
            epoch: 1,
            turn: 9,
            short_lived: true,
            born: 12,
        };
        assert_eq!(parsed, [(expected, 70_000u32.wrapping_mul(0x9E37_79B1) >> 16)]);
    }

    fn core(start: u64, party: u32, each: &[(u64, u32)], grid: &[(u64, u32)]) -> Core {
        Core { start, party, past: [each.to_vec(), grid.to_vec(), vec![]], ..Core::default() }
    }

    #[test]
    fn a_wait_is_charged_to_those_who_had_the_core() {
        let core = core(90, 10, &[(70, 11), (60, 10)], &[(50, 12), (20, 13)]);
        let charged = |from, to| {
            let mut by = HashMap::new();
            walk(&core, from, to, &mut by);
            by
        };
        assert_eq!(charged(95, 100), HashMap::from([(10, 5)]));
        assert_eq!(charged(65, 100), HashMap::from([(10, 15), (11, 20)]));
        assert_eq!(charged(10, 80), HashMap::from([(11, 10), (10, 10), (12, 10), (13, 30), (UNKNOWN, 10)]));
        assert_eq!(charged(80, 80), HashMap::new());
    }

    proptest! {
        #[test]
        fn a_walk_charges_the_whole_wait(start in 0u64..200, each in proptest::collection::vec((1u64..200, 4u32..9), 0..9),
                                         grid in proptest::collection::vec((1u64..200, 4u32..9), 0..9), from in 0u64..200, length in 0u64..200) {
            let mut by = HashMap::new();
            walk(&core(start, 4, &each, &grid), from, from + length, &mut by);
            prop_assert_eq!(by.values().sum::<u64>(), length);
        }

        #[test]
        fn any_bytes(words in proptest::collection::vec(any::<u64>(), CORE_WORDS), bytes in proptest::collection::vec(any::<u8>(), 256)) {
            parse_slots(&words[..1024.min(CORE_WORDS)].iter().copied().chain(std::iter::repeat(0)).take(1024).collect::<Vec<_>>().try_into().unwrap()).for_each(drop);
            parse_core(&words.try_into().unwrap());
            let (identity, _) = parse_party(&bytes[..104].try_into().unwrap());
            prop_assert!(identity.id() >= FIRST_PARTY);
            parse_charge(&bytes[..16].try_into().unwrap());
            parse_block(&bytes[..24].try_into().unwrap(), &bytes[..40 + 8 * FRAMES].try_into().unwrap());
        }
    }
}
