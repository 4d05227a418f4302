//! What keeps the dead of a group: files, and what no file explains.

use super::Group;
use super::folding::{self, Item, split};
use super::groups::join_path;
use coroner_evidence::{Charged, Hold, PinningFile, ZombieScan};
use coroner_report::named;
use std::cmp::Reverse;
use std::collections::HashSet;

/// A file that keeps dead cgroups of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin<'e> {
    pub file: &'e PinningFile,
    /// Of this group.
    pub bytes: u64,
    pub zombies: u64,
}

/// Files of one directory with similar names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileGroup {
    /// `/dev/shm/ecs-*`, or the path of the only file. A description if the kernel has forgotten the names, and for the rest.
    pub pattern: String,
    /// The name of the biggest.
    pub example: String,
    pub filesystem: String,
    pub files: u64,
    /// Of these, deleted but still open or mapped.
    pub deleted: u64,
    pub bytes: u64,
    /// Dead cgroups that they keep, each counted once.
    pub zombies: u64,
}

named! {
    pub enum OtherwiseKind {
        /// Anonymous memory of processes that left the cgroup, or that still share it.
        Anonymous = "anonymous memory",
        /// mlocked and SHM_LOCKed pages, ramfs: their files are unknown.
        Unevictable = "locked memory",
        /// Page cache of unknown files: only the first pages of a long list are looked at.
        File = "page cache of other files",
        /// tmpfs or shared memory of unknown files.
        SharedMemory = "shared memory of other files",
        /// On the lists of swap-backed memory; whether it is anonymous or shared is unknown.
        SwapBacked = "anonymous or shared memory",
        Kernel = "kernel memory",
        Swap = "swap",
        /// They hold no listed page, and no kernel memory or swap that is known.
        Unknown = "unknown",
        /// They hold nothing themselves; their dead children do.
        Children = "dead children",
    }
}

/// What keeps them besides known files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Otherwise {
    pub kind: OtherwiseKind,
    /// `None` if unknown.
    pub bytes: Option<u64>,
    /// Dead cgroups that hold some of it; `None` if they are not known one by one.
    pub zombies: Option<u64>,
}

/// File systems whose pages are on the lists of swap-backed memory: tmpfs, and what shares its code (mm/shmem.c).
const SWAP_BACKED: [&str; 2] = ["tmpfs", "devtmpfs"];

/// Gives each group the files that keep its dead, and what else does.
pub fn add<'e>(scan: &'e ZombieScan, group_of: &[u32], groups: &mut [Group<'e>]) {
    let mut otherwise = vec![Tally::default(); groups.len()];
    let mut by_group: Vec<Vec<Hold>> = vec![Vec::new(); groups.len()];
    let parents: HashSet<&str> = if scan.zombies.iter().any(|z| z.held.total() == 0) {
        scan.zombies.iter().map(|z| split(&z.path).0).collect()
    } else {
        HashSet::new()
    };
    let mut holds = scan.holds.iter().peekable();
    for (i, (zombie, &group)) in scan.zombies.iter().zip(group_of).enumerate() {
        let (mut in_files, mut in_shmem, mut any) = (0u64, 0u64, false);
        while let Some(hold) = holds.next_if(|hold| hold.zombie as usize <= i) {
            let Some(file) = scan.files.get(hold.file as usize).filter(|_| hold.zombie as usize == i) else { continue };
            any = true;
            if SWAP_BACKED.contains(&file.filesystem.as_str()) {
                in_shmem = in_shmem.saturating_add(hold.bytes);
            } else {
                in_files = in_files.saturating_add(hold.bytes);
            }
            by_group[group as usize].push(*hold);
        }
        let has_dead_child = || parents.contains(zombie.path.as_str());
        otherwise[group as usize].add(&zombie.held, in_files, in_shmem, any, has_dead_child);
    }

    // Scratch space for all groups: bytes and zombies of each file.
    let mut sums: Vec<(u64, u64)> = vec![(0, 0); scan.files.len()];
    let mut place_of: Vec<usize> = vec![0; scan.files.len()];
    for ((group, holds), tally) in groups.iter_mut().zip(by_group).zip(&otherwise) {
        let mut touched: Vec<u32> = Vec::new();
        for hold in &holds {
            let (bytes, zombies) = &mut sums[hold.file as usize];
            if *zombies == 0 {
                touched.push(hold.file);
            }
            *bytes = bytes.saturating_add(hold.bytes);
            *zombies += 1;
        }
        // The scan lists the biggest first: equals keep its order.
        touched.sort_unstable_by_key(|&at| (Reverse(sums[at as usize].0), at));
        let pin = |&at: &u32| Pin {
            file: &scan.files[at as usize],
            bytes: sums[at as usize].0,
            zombies: sums[at as usize].1,
        };
        group.pinned_by = touched.iter().map(pin).collect();
        let (mut places, place_of_pin) = places(&group.pinned_by);
        for (&at, place) in touched.iter().zip(place_of_pin) {
            sums[at as usize] = (0, 0);
            place_of[at as usize] = place;
        }
        count_zombies(&holds, &place_of, &mut places);
        places.sort_by(|a, b| (b.bytes, b.files).cmp(&(a.bytes, a.files)).then_with(|| a.pattern.cmp(&b.pattern)));
        group.pinned_in = places;
        group.pinned_otherwise = tally.list();
    }
}

/// This few files are listed one by one, and so is one that holds more than a fifth of all.
const FEW: usize = 5;
const BIG: u64 = 5;

/// Files by directory, name pattern and file system; those without a path by file system. Also the index of each pin's place.
fn places(pins: &[Pin<'_>]) -> (Vec<FileGroup>, Vec<usize>) {
    let all = pins.iter().fold(0u64, |sum, pin| sum.saturating_add(pin.bytes));
    let is_alone = |pin: &Pin<'_>| pins.len() <= FEW || pin.bytes > all / BIG;
    let folded = || pins.iter().filter(|pin| !is_alone(pin)).filter_map(|pin| pin.file.path.as_deref().zip(Some(pin)));
    let folding = folding::fold(folded().map(|(path, pin)| {
        let (parent, name) = split(path);
        Item { parent, name, count: 1, bytes: pin.bytes }
    }));
    let pattern = |class: u32| match &folding.classes[class as usize] {
        class if class.rest_of > 0 => format!("other files below {}", class.parent),
        class => join_path(&class.parent, &class.pattern),
    };
    let mut class_of = folding.class_of.iter().copied();
    // A few at most: one per class and file system.
    let mut places: Vec<(Option<u32>, FileGroup)> = Vec::new();
    let mut place_of_pin = Vec::with_capacity(pins.len());
    for pin in pins {
        let class = if is_alone(pin) || pin.file.path.is_none() { None } else { class_of.next() };
        let name = || pin.file.path.clone().unwrap_or_else(|| nameless(pin.file));
        let same = |(of, place): &(Option<u32>, FileGroup)| match class {
            Some(_) => *of == class && place.filesystem == pin.file.filesystem,
            None => pin.file.path.is_none() && place.pattern == name(),
        };
        let known = places.iter().position(same);
        if let Some(place) = known.map(|known| &mut places[known].1) {
            if let (1, Some(class)) = (place.files, class) {
                place.pattern = pattern(class);
            }
            place.add(pin);
        } else {
            places.push((class, FileGroup::of(pin, name())));
        }
        place_of_pin.push(known.unwrap_or(places.len() - 1));
    }
    (places.into_iter().map(|(_, place)| place).collect(), place_of_pin)
}

/// How many zombies each place keeps. Holds are sorted by zombie, so those of one zombie are adjacent.
fn count_zombies(holds: &[Hold], place_of: &[usize], places: &mut [FileGroup]) {
    let mut last: Vec<Option<u32>> = vec![None; places.len()];
    for hold in holds {
        let place = place_of[hold.file as usize];
        if last[place] != Some(hold.zombie) {
            last[place] = Some(hold.zombie);
            places[place].zombies += 1;
        }
    }
}

fn nameless(file: &PinningFile) -> String {
    if file.filesystem == PinningFile::BLOCK_DEVICES {
        return file.name();
    }
    format!("files on {} {}:{} whose names are gone", file.filesystem, file.device.0, file.device.1)
}

impl FileGroup {
    fn of(pin: &Pin<'_>, pattern: String) -> FileGroup {
        let (example, filesystem) = (pin.file.name(), pin.file.filesystem.clone());
        let mut group = FileGroup { pattern, example, filesystem, files: 0, deleted: 0, bytes: 0, zombies: 0 };
        group.add(pin);
        group
    }

    fn add(&mut self, pin: &Pin<'_>) {
        self.files += 1;
        self.deleted += u64::from(pin.file.deleted);
        self.bytes = self.bytes.saturating_add(pin.bytes);
    }
}

/// If the dead have no names, only what they hold together is known.
pub fn without_files(group: &mut Group<'_>) {
    let mut tally = Tally::default();
    tally.add(&group.held, 0, 0, true, || false);
    group.pinned_otherwise = tally.list();
    for otherwise in &mut group.pinned_otherwise {
        otherwise.zombies = None;
    }
}

/// What no file explains, by kind: bytes, and how many dead hold some.
#[derive(Debug, Clone, Default)]
struct Tally {
    kinds: [(u64, u64); KINDS.len()],
}

const KINDS: [OtherwiseKind; 9] = [
    OtherwiseKind::Anonymous,
    OtherwiseKind::Unevictable,
    OtherwiseKind::File,
    OtherwiseKind::SharedMemory,
    OtherwiseKind::SwapBacked,
    OtherwiseKind::Kernel,
    OtherwiseKind::Swap,
    OtherwiseKind::Unknown,
    OtherwiseKind::Children,
];

impl Tally {
    fn add(&mut self, held: &Charged, in_files: u64, in_shmem: u64, any: bool, has_dead_child: impl Fn() -> bool) {
        let mut tell = |kind: OtherwiseKind, bytes: u64| {
            let at = KINDS.iter().position(|&k| k == kind).unwrap_or(0);
            self.kinds[at].0 = self.kinds[at].0.saturating_add(bytes);
            self.kinds[at].1 += 1;
        };
        // On old kernels locked pages are on a list, so their files are known: more bytes than the other lists hold.
        let locked = in_files.saturating_sub(held.file).saturating_add(in_shmem.saturating_sub(held.swap_backed));
        let anonymous = held.anonymous.unwrap_or(0);
        let shared = held.shmem.map(|shmem| shmem.saturating_sub(in_shmem));
        let swap_backed = held.swap_backed.saturating_sub(anonymous).saturating_sub(held.shmem.unwrap_or(in_shmem));
        let kinds = [
            (OtherwiseKind::File, held.file.saturating_sub(in_files)),
            (OtherwiseKind::SharedMemory, shared.unwrap_or(0)),
            (OtherwiseKind::SwapBacked, swap_backed),
            (OtherwiseKind::Anonymous, anonymous),
            (OtherwiseKind::Unevictable, held.unevictable.saturating_sub(locked)),
            (OtherwiseKind::Kernel, held.kernel.unwrap_or(0)),
            (OtherwiseKind::Swap, held.swap.unwrap_or(0)),
        ];
        let mut explained = any;
        for (kind, bytes) in kinds {
            if bytes > 0 {
                tell(kind, bytes);
                explained = true;
            }
        }
        if !explained {
            tell(if has_dead_child() { OtherwiseKind::Children } else { OtherwiseKind::Unknown }, 0);
        }
    }

    fn list(&self) -> Vec<Otherwise> {
        let mut list: Vec<Otherwise> = KINDS
            .into_iter()
            .zip(self.kinds)
            .filter(|(_, (_, zombies))| *zombies > 0)
            .map(|(kind, (bytes, zombies))| Otherwise {
                kind,
                bytes: (!matches!(kind, OtherwiseKind::Unknown | OtherwiseKind::Children)).then_some(bytes),
                zombies: Some(zombies),
            })
            .collect();
        list.sort_by_key(|o| Reverse((o.bytes, o.zombies)));
        list
    }
}
