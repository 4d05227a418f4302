//! Which files keep dead memcgs: the folios on their lists, by file.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::time::Instant;

use super::ScanOptions;
use super::kernel::{Ended, Kernel};
use super::mounted::Mounts;
use super::slots::{self, ITEMS, PathEnd, Place, Told};
use crate::Root;
use coroner_evidence::{Hold, PinningFile, Zombie};

/// The files whose pages dead memcgs hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins {
    /// The one that holds most first.
    pub files: Vec<PinningFile>,
    /// Which zombie is held by which file, by their places in [`super::Scan::zombies`] and `files`; ordered by zombie.
    pub holds: Vec<Hold>,
    /// Folios looked at.
    pub folios: u64,
    /// Lists that were left early, because a folio moved away under our eyes.
    pub torn: u64,
    /// Not all zombies were looked at: out of time.
    pub truncated: bool,
}

/// TMPFS_MAGIC: tmpfs, /dev/shm, memfd, SysV shared memory, devtmpfs.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const ANONYMOUS: u64 = 1;

pub(super) fn find(
    kernel: &mut Kernel,
    root: &Root,
    zombies: &mut [Zombie],
    places: &[Place],
    options: &ScanOptions,
) -> Result<Pins, Box<dyn Error + Send + Sync>> {
    let started = Instant::now();
    let mut gathered = Gathered::default();
    let mut pins = Pins::default();
    // Those that hold no page on a list have no file to tell.
    let listed = |z: &Zombie| z.held.file.saturating_add(z.held.swap_backed).saturating_add(z.held.unevictable);
    let wanted: Vec<u32> = (0..zombies.len() as u32).filter(|&i| listed(&zombies[i as usize]) > 0).collect();
    let page = rustix::param::page_size() as u64;
    for chunk in wanted.chunks(ITEMS) {
        let left = options.time_limit.saturating_sub(started.elapsed());
        if left.is_zero() {
            pins.truncated = true;
            break;
        }
        let items: Vec<(Place, u64)> =
            chunk.iter().map(|&i| (places[i as usize], listed(&zombies[i as usize]) / page)).collect();
        gathered.begin();
        let (words, ended) = kernel.files(&items, options.folios_per_list, left, |told| gathered.add(chunk, told))?;
        let (folios, torn, _) = slots::files_counts(&words);
        pins.folios += folios;
        pins.torn += torn;
        pins.truncated |= ended == Ended::OutOfTime;
    }
    gathered.tell(root, zombies, &mut pins);
    Ok(pins)
}

/// A file by its file system and inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    device: u32,
    inode: u64,
    /// All block devices lie in one file system; there the device tells them apart.
    block_device: u32,
}

#[derive(Debug)]
struct Known {
    key: Key,
    filesystem: String,
    size: u64,
    links: u32,
    shmem: bool,
    path: Option<Within>,
    pages: u64,
    zombies: u64,
    last_zombie: u32,
}

/// A path within a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Within {
    Path(String),
    /// Not in any directory: memfd and the like.
    Name(String),
}

#[derive(Debug, Default)]
struct Gathered {
    files: Vec<Known>,
    by_key: HashMap<Key, u32>,
    holds: Vec<(u32, u32, u64)>,
    split: HashMap<u32, (u64, u64)>,
    /// The file that folios with this mapping belong to, until another one is told.
    current: Option<(u64, Option<u32>)>,
    /// Components of the path that is being told, the file's own first.
    components: Vec<Vec<u8>>,
    directory: Option<String>,
}

impl Gathered {
    /// Another set of memcgs: nothing that was said by address holds on.
    fn begin(&mut self) {
        self.current = None;
        self.components.clear();
        self.directory = None;
    }

    fn add(&mut self, chunk: &[u32], told: Told) {
        match told {
            Told::Folio { item, mapping, pages, file } => {
                let Some(&zombie) = chunk.get(item as usize) else { return };
                let pages = u64::from(pages.min(1 << 20));
                if let Some(file) = file {
                    self.components.clear();
                    self.current = Some((mapping, (!file.unsure).then(|| self.file(&file))));
                }
                if pages == 0 {
                    return;
                }
                if mapping & ANONYMOUS != 0 {
                    self.split.entry(zombie).or_default().0 += pages;
                    return;
                }
                let Some((current, Some(index))) = self.current else { return };
                if current != mapping {
                    return;
                }
                let Some(file) = self.files.get_mut(index as usize) else { return };
                file.pages += pages;
                if file.last_zombie != zombie || file.zombies == 0 {
                    file.zombies += 1;
                    file.last_zombie = zombie;
                }
                let split = self.split.entry(zombie).or_default();
                if file.shmem {
                    split.1 += pages;
                }
                match self.holds.last_mut() {
                    Some((z, f, sum)) if (*z, *f) == (zombie, index) => *sum += pages,
                    _ => self.holds.push((zombie, index, pages)),
                }
            }
            Told::Path { name, end, unsure } => self.component(name, end, unsure),
            Told::Dead(_) | Told::More { .. } | Told::Ancestor { .. } => {}
        }
    }

    fn file(&mut self, file: &slots::File) -> u32 {
        let filesystem = String::from_utf8_lossy(file.filesystem);
        let key = Key {
            device: file.device,
            inode: file.inode,
            block_device: if filesystem == PinningFile::BLOCK_DEVICES { file.block_device } else { 0 },
        };
        let next = self.files.len() as u32;
        let index = *self.by_key.entry(key).or_insert(next);
        if index == next {
            self.files.push(Known {
                key,
                filesystem: filesystem.into_owned(),
                size: file.size,
                links: file.links,
                shmem: file.magic == TMPFS_MAGIC,
                path: None,
                pages: 0,
                zombies: 0,
                last_zombie: 0,
            });
        }
        index
    }

    fn component(&mut self, name: &[u8], end: PathEnd, unsure: bool) {
        self.components.push(name.to_vec());
        let text = |c: &Vec<u8>| String::from_utf8_lossy(c).into_owned();
        let (base, components) = match end {
            PathEnd::More => return,
            PathEnd::SameDirectory => (self.directory.clone().unwrap_or_else(|| "…".to_owned()), &self.components[..]),
            PathEnd::Cut => ("…".to_owned(), &self.components[..]),
            // The last component is the root itself: `/`, or the name of something without a directory.
            PathEnd::Root => (String::new(), &self.components[..self.components.len() - 1]),
        };
        let within = match (end, components) {
            (PathEnd::Root, []) => Within::Name(text(&self.components[0])),
            _ => {
                let mut path = base;
                for component in components.iter().skip(1).rev() {
                    path.push('/');
                    path.push_str(&text(component));
                }
                self.directory = (!unsure && end != PathEnd::Cut).then(|| path.clone());
                path.push('/');
                path.push_str(&text(&components[0]));
                Within::Path(path)
            }
        };
        if unsure || matches!(within, Within::Name(_)) {
            self.directory = None;
        }
        self.components.clear();
        if let (false, Some((_, Some(index)))) = (unsure, self.current)
            && let Some(file) = self.files.get_mut(index as usize)
        {
            file.path = Some(within);
        }
    }

    fn tell(mut self, root: &Root, zombies: &mut [Zombie], pins: &mut Pins) {
        let page = rustix::param::page_size() as u64;
        for (i, zombie) in zombies.iter_mut().enumerate() {
            if let Some((anonymous, shmem)) = self.split.get(&(i as u32)) {
                zombie.held.anonymous = Some(anonymous.saturating_mul(page));
                zombie.held.shmem = Some(shmem.saturating_mul(page));
            }
        }
        let devices: HashSet<(u32, u32)> = self
            .files
            .iter()
            .filter(|f| matches!(f.path, Some(Within::Path(_))))
            .map(|f| device(f.key.device))
            .collect();
        let mounts = Mounts::find(root, &devices);
        let mut order: Vec<u32> = (0..self.files.len() as u32).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(self.files[i as usize].pages), self.files[i as usize].key));
        let mut place = vec![0u32; self.files.len()];
        for (to, from) in order.iter().enumerate() {
            place[*from as usize] = to as u32;
        }
        self.holds.sort_unstable();
        for (zombie, file, pages) in self.holds {
            let file = place[file as usize];
            match pins.holds.last_mut() {
                Some(last) if (last.zombie, last.file) == (zombie, file) => last.bytes += pages * page,
                _ => pins.holds.push(Hold { zombie, file, bytes: pages * page }),
            }
        }
        let mut known: Vec<Option<Known>> = self.files.into_iter().map(Some).collect();
        for from in order {
            if let Some(file) = known[from as usize].take() {
                pins.files.push(file.tell(&mounts, page));
            }
        }
    }
}

impl Known {
    fn tell(self, mounts: &Mounts, page: u64) -> PinningFile {
        let on_block_device = self.filesystem == PinningFile::BLOCK_DEVICES;
        let numbers = device(if on_block_device { self.key.block_device } else { self.key.device });
        let nameless = matches!(self.path, Some(Within::Name(_)));
        let (path, seen_by, mounted) = match self.path {
            Some(Within::Path(path)) => match mounts.locate(numbers, &path) {
                Some(located) => (Some(located.path), located.seen_by, true),
                None => (Some(path), None, false),
            },
            Some(Within::Name(name)) => ((!on_block_device).then_some(name), None, false),
            None => (None, None, false),
        };
        PinningFile {
            path,
            seen_by,
            mounted,
            filesystem: self.filesystem,
            device: numbers,
            inode: self.key.inode,
            size: self.size,
            deleted: self.links == 0 && !nameless && !on_block_device,
            bytes: self.pages.saturating_mul(page),
            zombies: self.zombies,
        }
    }
}

/// The kernel's own dev_t (include/linux/kdev_t.h).
fn device(dev: u32) -> (u32, u32) {
    (dev >> 20, dev & 0xf_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn folio(item: u32, mapping: u64, file: Option<slots::File<'static>>) -> Told<'static> {
        Told::Folio { item, mapping, pages: 1, file }
    }

    fn file(inode: u64, filesystem: &'static [u8], links: u32) -> Option<slots::File<'static>> {
        Some(slots::File {
            inode,
            size: 10,
            magic: if filesystem == b"tmpfs" { TMPFS_MAGIC } else { 1 },
            device: 0x0080_0001,
            block_device: 0x0fe0_0000,
            links,
            has_name: true,
            unsure: false,
            filesystem,
        })
    }

    fn path(name: &'static str, end: PathEnd) -> Told<'static> {
        Told::Path { name: name.as_bytes(), end, unsure: false }
    }

    fn tell(told: Vec<Told>) -> Pins {
        let mut gathered = Gathered::default();
        gathered.begin();
        for told in told {
            gathered.add(&[0, 1, 2], told);
        }
        let dir = tempfile::tempdir().unwrap();
        let mut pins = Pins::default();
        gathered.tell(&Root::at(dir.path()), &mut [], &mut pins);
        pins
    }

    #[test]
    fn folios_of_one_file_are_added_and_the_biggest_comes_first() {
        let pins = tell(vec![
            folio(0, 0x100, file(7, b"tmpfs", 1)),
            path("small", PathEnd::More),
            path("dir", PathEnd::More),
            path("/", PathEnd::Root),
            folio(1, 0x200, file(8, b"ext4", 0)),
            path("big", PathEnd::SameDirectory),
            folio(1, 0x200, None),
            folio(2, 0x200, None),
            folio(2, 0x301, None),
        ]);
        let page = rustix::param::page_size() as u64;
        let told: Vec<_> = pins.files.iter().map(|f| (f.name(), f.bytes / page, f.zombies, f.deleted)).collect();
        assert_eq!(told, [("/dir/big (deleted)".into(), 3, 2, true), ("/dir/small".into(), 1, 1, false)]);
        assert_eq!(
            pins.holds.iter().map(|h| (h.zombie, h.file, h.bytes / page)).collect::<Vec<_>>(),
            [(0, 1, 1), (1, 0, 2), (2, 0, 1)]
        );
    }

    #[test]
    fn memfds_and_block_devices_have_names_but_no_directory() {
        let pins = tell(vec![
            folio(0, 0x100, file(7, b"tmpfs", 0)),
            path("memfd:cache", PathEnd::Root),
            folio(0, 0x200, file(0, b"bdev", 1)),
            folio(0, 0x300, file(9, b"xfs", 1)),
        ]);
        let names: Vec<_> = pins.files.iter().map(|f| (f.name(), f.deleted)).collect();
        assert!(names.contains(&("memfd:cache".into(), false)), "{names:?}");
        assert!(names.contains(&("block device 254:0".into(), false)), "{names:?}");
        assert!(names.contains(&("inode 9 of xfs 8:1".into(), false)), "{names:?}");
    }

    fn any_told() -> impl Strategy<Value = (u8, u32, u64, u32, bool)> {
        (0u8..3, 0u32..5, 0u64..6, any::<u32>(), any::<bool>())
    }

    proptest! {
        #[test]
        fn anything_told_in_any_order(all in proptest::collection::vec(any_told(), 0..40)) {
            let told = all.into_iter().map(|(kind, item, mapping, n, flag)| match kind {
                0 => Told::Folio {
                    item, mapping, pages: n,
                    file: flag.then(|| slots::File { unsure: n % 7 == 0, ..file(mapping, b"tmpfs", n % 2).unwrap() }),
                },
                1 => path("x", [PathEnd::More, PathEnd::Root, PathEnd::SameDirectory, PathEnd::Cut][n as usize % 4]),
                _ => Told::Path { name: b"", end: PathEnd::Root, unsure: flag },
            }).collect();
            let pins = tell(told);
            prop_assert_eq!(pins.files.iter().map(|f| f.bytes).sum::<u64>(), pins.holds.iter().map(|h| h.bytes).sum::<u64>());
        }
    }
}
