//! The structs of bpf/zombies.bpf.c, byte by byte.
//!
//! Control structs are arrays of words here. Map sizes are checked when the maps are opened, so a changed struct is noticed.

/// Slots of one batch: STEPS.
const SLOTS: usize = 4;
const SLOT_BYTES: usize = 360;
pub(super) const BATCH_BYTES: usize = SLOTS * SLOT_BYTES;
/// Batches per value of the output array.
pub(super) const BATCHES: usize = 4;
/// Offset of the name, which fills the rest of the slot.
const NAME: usize = 104;

/// `struct walk` in words.
pub(super) type WalkWords = [u64; 230];
/// `struct files` in words.
pub(super) type FilesWords = [u64; FIRST_ITEM + 3 * ITEMS];
const FIRST_ITEM: usize = 36;
/// `struct control`: armed, batches, state, reserved.
pub(super) type Control = [u32; 4];
/// Items of `struct files`.
pub(super) const ITEMS: usize = 512;

/// Values of the walk's `state`: START, DONE, LOOK.
pub(super) const WALK_START: u32 = 0;
pub(super) const WALK_DONE: u32 = 4;
pub(super) const WALK_LOOK: u32 = 5;
/// Value of the files program's `state`: FINISHED.
pub(super) const FILES_FINISHED: u32 = 5;

/// A css by its address, valid only while its serial number is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CssPlace {
    pub css: u64,
    pub serial: u64,
}

/// The counts of a walk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WalkCounts {
    pub state: u32,
    pub unified: bool,
    pub runs: u64,
    pub visited: u64,
    pub live: u64,
    pub dead: u64,
    pub leaving: u64,
    pub released: u64,
    pub too_deep: u64,
    pub resumed: u64,
    pub jiffies: u64,
    pub unreadable: bool,
    pub knows_kernel_memory: bool,
    pub knows_swap: bool,
}

fn two(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn low(word: u64) -> u32 {
    word as u32
}

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

pub(super) fn walk_from_the_root() -> WalkWords {
    let mut words = [0; 230];
    words[0] = two(WALK_START, 0);
    words
}

/// Makes the next run look at one css again. Keeps what the walk learned about the kernel.
pub(super) fn look_at(words: &mut WalkWords, place: CssPlace) {
    words[0] = two(WALK_LOOK, high(words[0]));
    (words[30], words[31]) = (place.css, place.serial);
}

/// Lets the program run once.
pub(super) fn armed() -> Control {
    [1, 0, 0, 0]
}

/// State and number of filled batches after a run; `None` if it did not run.
pub(super) fn ran(control: Control) -> Option<(u32, u32)> {
    let [armed, batches, state, _] = control;
    (armed == 0).then_some((state, batches))
}

pub(super) fn walk_counts(words: &WalkWords) -> WalkCounts {
    WalkCounts {
        state: low(words[0]),
        unified: high(words[0]) != 0,
        runs: words[2],
        visited: words[3],
        live: words[4],
        dead: words[5],
        leaving: words[6],
        released: words[7],
        too_deep: words[8],
        resumed: words[9],
        jiffies: words[10],
        unreadable: words[11] != 0,
        knows_kernel_memory: words[16] != 0,
        knows_swap: words[29] != 0,
    }
}

/// Items are places and the number of pages on their lists.
pub(super) fn files_of(items: &[(CssPlace, u64)], folios_per_list: u32) -> FilesWords {
    let mut words = [0; FIRST_ITEM + 3 * ITEMS];
    let count = items.len().min(ITEMS);
    words[0] = two(0, count as u32);
    words[3] = two(folios_per_list, 0);
    for ((place, pages), to) in items.iter().zip(words[FIRST_ITEM..].chunks_exact_mut(3)) {
        to.copy_from_slice(&[place.css, place.serial, *pages]);
    }
    words
}

/// (folios, lists abandoned early, memcgs that were gone)
pub(super) fn files_counts(words: &FilesWords) -> (u64, u64, u64) {
    (words[5], words[6], words[7])
}

/// The content of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotRecord<'a> {
    Dead(Dead<'a>),
    /// What the preceding dead one holds on another NUMA node.
    More {
        serial: u64,
        file: u64,
        swap_backed: u64,
        unevictable: u64,
    },
    Ancestor {
        serial: u64,
        parent: u64,
        name: &'a [u8],
    },
    Folio {
        item: u32,
        mapping: u64,
        /// 0: counted before, but its file's name was incomplete.
        pages: u32,
        file: Option<File<'a>>,
    },
    Path {
        name: &'a [u8],
        end: PathEnd,
        unsure: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dead<'a> {
    pub place: CssPlace,
    pub parent: u64,
    pub depth: u32,
    pub id: u64,
    pub references: Option<u64>,
    pub file: u64,
    pub swap_backed: u64,
    pub unevictable: u64,
    pub kernel_charged: u64,
    /// Pages, without its descendants'.
    pub swap: u64,
    pub pressure_jiffies: u64,
    pub directory_lives: bool,
    pub name: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct File<'a> {
    pub inode: u64,
    pub size: u64,
    pub magic: u64,
    pub device: u32,
    pub block_device: u32,
    pub links: u32,
    /// Path slots follow.
    pub has_name: bool,
    pub unsure: bool,
    pub filesystem: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathEnd {
    More,
    Root,
    /// The rest is the same as in the previous path.
    SameDirectory,
    Cut,
}

/// Reads batches in order and skips slots of unknown kind.
pub(super) fn read(batches: &[u8], mut tell: impl FnMut(SlotRecord)) {
    for slot in batches.chunks_exact(SLOT_BYTES) {
        let u32_at =
            |at: usize| slot.get(at..at + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().unwrap_or_default()));
        let u64_at =
            |at: usize| slot.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap_or_default()));
        let name = || slot[NAME..].split(|b| *b == 0).next().unwrap_or_default();
        match u32_at(0) {
            1 => tell(SlotRecord::Dead(Dead {
                place: CssPlace { serial: u64_at(8), css: u64_at(24) },
                parent: u64_at(16),
                depth: u32_at(4),
                id: u64_at(32),
                references: u64::try_from(u64_at(40) as i64).ok(),
                file: u64_at(48),
                swap_backed: u64_at(56),
                unevictable: u64_at(64),
                kernel_charged: u64_at(72),
                pressure_jiffies: u64_at(80),
                directory_lives: u32_at(92) != 0,
                swap: u64_at(96),
                name: name(),
            })),
            2 => tell(SlotRecord::Ancestor { serial: u64_at(8), parent: u64_at(16), name: name() }),
            3 => tell(SlotRecord::Folio {
                item: u32_at(4),
                mapping: u64_at(8),
                pages: u32_at(48),
                file: (u32_at(68) != 0).then(|| File {
                    inode: u64_at(16),
                    size: u64_at(24),
                    magic: u64_at(32),
                    device: u32_at(56),
                    block_device: u32_at(60),
                    links: u32_at(64),
                    has_name: u64_at(40) != 0 && u32_at(76) == 0,
                    unsure: u32_at(76) != 0,
                    filesystem: name(),
                }),
            }),
            5 => tell(SlotRecord::More {
                serial: u64_at(8),
                file: u64_at(48),
                swap_backed: u64_at(56),
                unevictable: u64_at(64),
            }),
            4 => tell(SlotRecord::Path {
                name: name(),
                end: match u32_at(72) {
                    0 => PathEnd::More,
                    1 => PathEnd::Root,
                    2 => PathEnd::SameDirectory,
                    _ => PathEnd::Cut,
                },
                unsure: u32_at(76) != 0,
            }),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_dead_cgroup_is_read_as_written() {
        let mut batch = vec![0; BATCH_BYTES];
        let slot = &mut batch[SLOT_BYTES..2 * SLOT_BYTES];
        slot[0] = 1;
        slot[8..16].copy_from_slice(&77u64.to_le_bytes());
        slot[40..48].copy_from_slice(&(-1i64).to_le_bytes());
        slot[56..64].copy_from_slice(&3u64.to_le_bytes());
        slot[NAME..NAME + 5].copy_from_slice(b"pod-1");
        let mut seen = 0;
        read(&batch, |told| {
            let SlotRecord::Dead(dead) = told else { panic!("{told:?}") };
            assert_eq!((dead.place.serial, dead.references, dead.swap_backed, dead.name), (77, None, 3, &b"pod-1"[..]));
            seen += 1;
        });
        assert_eq!(seen, 1);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..3 * SLOT_BYTES), kinds in proptest::collection::vec(0u8..7, 3)) {
            let mut bytes = bytes;
            for (i, kind) in kinds.iter().enumerate() {
                if let Some(at) = bytes.get_mut(i * SLOT_BYTES..i * SLOT_BYTES + 4) {
                    at.copy_from_slice(&[*kind, 0, 0, 0]);
                }
            }
            read(&bytes, |told| if let SlotRecord::Dead(dead) = told { assert!(dead.name.len() <= 256) });
        }
    }
}
