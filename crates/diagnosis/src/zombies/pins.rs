//! What keeps the dead of a group: files, and what no file explains.

use super::Group;
use super::folding::{self, Item, split};
use super::groups::join_path;
use coroner_evidence::{Held, Hold, PinningFile, ZombieScan};
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

/// Files of one directory whose names are alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileGroup {
    /// `/dev/shm/ecs-*`, or the one file's path. What is known instead where the kernel has forgotten the names, and of the rest.
    pub pattern: String,
    /// The name of one of them, the biggest.
    pub example: String,
    pub filesystem: String,
    pub files: u64,
    /// Of these, removed but still open or mapped.
    pub deleted: u64,
    pub bytes: u64,
    /// Dead cgroups that are held by them, each once.
    pub zombies: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OtherwiseKind {
    /// Anonymous memory: of processes that moved on without it, or that still share it.
    Anonymous,
    /// mlocked and SHM_LOCKed pages, ramfs: their files cannot be told.
    Unevictable,
    /// Page cache whose file could not be told: of a long list only the first pages are looked at.
    File,
    /// tmpfs or shared memory whose file could not be told.
    SharedMemory,
    /// On the lists of swap-backed memory; nobody looked whether it is anonymous or shared.
    SwapBacked,
    Kernel,
    Swap,
    /// They hold no page that is listed, no kernel memory and no swap that is known.
    Unknown,
    /// They hold nothing themselves; dead children of theirs do.
    Children,
}

impl OtherwiseKind {
    pub fn as_str(self) -> &'static str {
        match self {
            OtherwiseKind::Anonymous => "anonymous memory",
            OtherwiseKind::Unevictable => "locked memory",
            OtherwiseKind::File => "page cache of files not looked up",
            OtherwiseKind::SharedMemory => "shared memory of files not looked up",
            OtherwiseKind::SwapBacked => "anonymous or shared memory",
            OtherwiseKind::Kernel => "kernel memory",
            OtherwiseKind::Swap => "swap",
            OtherwiseKind::Unknown => "unknown",
            OtherwiseKind::Children => "dead children",
        }
    }
}

/// What keeps them besides files that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Otherwise {
    pub kind: OtherwiseKind,
    /// `None` where it is not known how much.
    pub bytes: Option<u64>,
    /// Dead cgroups that hold some of it; `None` where they cannot be told one by one.
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
        let (mut in_files, mut in_shared_memory, mut any) = (0u64, 0u64, false);
        while let Some(hold) = holds.next_if(|hold| hold.zombie as usize <= i) {
            let Some(file) = scan.files.get(hold.file as usize).filter(|_| hold.zombie as usize == i) else { continue };
            any = true;
            if SWAP_BACKED.contains(&file.filesystem.as_str()) {
                in_shared_memory = in_shared_memory.saturating_add(hold.bytes);
            } else {
                in_files = in_files.saturating_add(hold.bytes);
            }
            by_group[group as usize].push(*hold);
        }
        let has_dead_child = || parents.contains(zombie.path.as_str());
        otherwise[group as usize].add(&zombie.held, in_files, in_shared_memory, any, has_dead_child);
    }

    let classes = Classes::of(&scan.files);
    // One scratch for all groups: what of each file is theirs.
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
        let mut pins: Vec<Pin<'e>> = Vec::with_capacity(touched.len());
        let mut places: Vec<(u32, FileGroup)> = Vec::new();
        // The scan has the biggest first: equals stay in its order.
        touched.sort_unstable();
        for &at in &touched {
            let (bytes, zombies) = std::mem::take(&mut sums[at as usize]);
            let file = &scan.files[at as usize];
            pins.push(Pin { file, bytes, zombies });
            place_of[at as usize] = classes.add(&mut places, at, file, bytes);
        }
        count_zombies(&holds, &place_of, &mut places);
        pins.sort_by_key(|pin| Reverse(pin.bytes));
        group.pinned_by = pins;
        group.pinned_in = places.into_iter().map(|(_, place)| place).collect();
        group
            .pinned_in
            .sort_by(|a, b| (b.bytes, b.files).cmp(&(a.bytes, a.files)).then_with(|| a.pattern.cmp(&b.pattern)));
        group.pinned_otherwise = tally.told();
    }
}

/// Where the dead have no names: only what they hold together is known.
pub fn without_files(group: &mut Group<'_>) {
    let mut tally = Tally::default();
    tally.add(&group.held, 0, 0, true, || false);
    group.pinned_otherwise = tally.told();
    for otherwise in &mut group.pinned_otherwise {
        otherwise.zombies = None;
    }
}

/// Files by directory and name pattern; those without a path by file system.
struct Classes {
    names: Vec<String>,
    of: Vec<u32>,
}

impl Classes {
    fn of(files: &[PinningFile]) -> Classes {
        // A file without a path is folded as if its file system were its directory; no path has such a parent.
        let nameless: Vec<Option<String>> = files
            .iter()
            .map(|file| match file.path {
                Some(_) => None,
                None if file.filesystem == PinningFile::BLOCK_DEVICES => Some(file.name()),
                None => Some(format!(
                    "files of {} {}:{} whose names are gone",
                    file.filesystem, file.device.0, file.device.1
                )),
            })
            .collect();
        let named: Vec<usize> = (0..files.len()).filter(|&i| nameless[i].is_none()).collect();
        let folding = folding::fold(named.iter().map(|&i| {
            let (parent, name) = split(files[i].path.as_deref().unwrap_or(""));
            Item { parent, name, count: 1, bytes: files[i].bytes }
        }));
        let name = |class: &folding::Class| match class.rest_of {
            0 => join_path(&class.parent, &class.pattern),
            _ => format!("other files below {}", class.parent),
        };
        let mut names: Vec<String> = folding.classes.iter().map(name).collect();
        let mut of = vec![0u32; files.len()];
        for (&i, class) in named.iter().zip(folding.class_of) {
            of[i] = class;
        }
        for (i, nameless) in nameless.into_iter().enumerate() {
            let Some(name) = nameless else { continue };
            let class = names.iter().position(|n| *n == name).unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            });
            of[i] = class as u32;
        }
        Classes { names, of }
    }

    /// Gives the place of a file. A few at most: one for each class and file system. The first file of each is its example.
    fn add(&self, places: &mut Vec<(u32, FileGroup)>, at: u32, file: &PinningFile, bytes: u64) -> usize {
        let class = self.of[at as usize];
        let same = |(of, place): &(u32, FileGroup)| *of == class && place.filesystem == file.filesystem;
        let Some(known) = places.iter().position(same) else {
            let name = || file.path.clone().unwrap_or_else(|| self.names[class as usize].clone());
            let (filesystem, deleted) = (file.filesystem.clone(), u64::from(file.deleted));
            let place =
                FileGroup { pattern: name(), example: file.name(), filesystem, files: 1, deleted, bytes, zombies: 0 };
            places.push((class, place));
            return places.len() - 1;
        };
        let place = &mut places[known].1;
        if place.files == 1 {
            place.pattern.clone_from(&self.names[class as usize]);
        }
        place.files += 1;
        place.deleted += u64::from(file.deleted);
        place.bytes = place.bytes.saturating_add(bytes);
        known
    }
}

/// How many zombies each place holds. The holds are ordered by zombie, so one that several files hold is met in a row.
fn count_zombies(holds: &[Hold], place_of: &[usize], places: &mut [(u32, FileGroup)]) {
    let mut last: Vec<Option<u32>> = vec![None; places.len()];
    for hold in holds {
        let place = place_of[hold.file as usize];
        if last[place] != Some(hold.zombie) {
            last[place] = Some(hold.zombie);
            places[place].1.zombies += 1;
        }
    }
}

/// What no file explains, by kind: bytes, and the dead that hold some.
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
    fn add(&mut self, held: &Held, in_files: u64, in_shared_memory: u64, any: bool, has_dead_child: impl Fn() -> bool) {
        let mut tell = |kind: OtherwiseKind, bytes: u64| {
            let at = KINDS.iter().position(|&k| k == kind).unwrap_or(0);
            self.kinds[at].0 = self.kinds[at].0.saturating_add(bytes);
            self.kinds[at].1 += 1;
        };
        // Locked pages of old kernels are on a list, so their files are known: more than the other lists hold.
        let locked =
            in_files.saturating_sub(held.file).saturating_add(in_shared_memory.saturating_sub(held.swap_backed));
        let anonymous = held.anonymous.unwrap_or(0);
        let shared = held.shmem.map(|shmem| shmem.saturating_sub(in_shared_memory));
        let swap_backed =
            held.swap_backed.saturating_sub(anonymous).saturating_sub(held.shmem.unwrap_or(in_shared_memory));
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

    fn told(&self) -> Vec<Otherwise> {
        let mut told: Vec<Otherwise> = KINDS
            .into_iter()
            .zip(self.kinds)
            .filter(|(_, (_, zombies))| *zombies > 0)
            .map(|(kind, (bytes, zombies))| Otherwise {
                kind,
                bytes: (!matches!(kind, OtherwiseKind::Unknown | OtherwiseKind::Children)).then_some(bytes),
                zombies: Some(zombies),
            })
            .collect();
        told.sort_by_key(|o| Reverse((o.bytes, o.zombies)));
        told
    }
}
