//! Which files pin dead memcgs: the folios on their LRU lists, by file.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::time::Instant;

use super::ScanOptions;
use super::file_names::{FileNames, Within};
use super::kernel::{Kernel, RunEnd};
use super::mounted::Mounts;
use super::slots::{self, CssPlace, ITEMS, SlotRecord};
use crate::Root;
use coroner_evidence::{Hold, PinningFile, Zombie};
/// Cheap, but keyed: users can choose inode numbers (FUSE), so it must not be predictable.
use foldhash::fast::RandomState as Keyed;

/// The files whose pages are charged to dead memcgs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins {
    /// Largest first.
    pub files: Vec<PinningFile>,
    /// Which file pins which zombie, as indices into [`super::Scan::zombies`] and `files`; ordered by zombie.
    pub holds: Vec<Hold>,
    pub folios: u64,
    /// Lists abandoned early because a folio moved while we read.
    pub torn: u64,
    /// Ran out of time before all zombies were scanned.
    pub truncated: bool,
}

/// TMPFS_MAGIC: tmpfs, /dev/shm, memfd, SysV shared memory, devtmpfs.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const ANONYMOUS: u64 = 1;

pub(super) fn find(
    kernel: &mut Kernel,
    root: &Root,
    zombies: &mut [Zombie],
    places: &[CssPlace],
    options: &ScanOptions,
) -> Result<Pins, Box<dyn Error + Send + Sync>> {
    let started = Instant::now();
    let mut gathered = Gathered::of(zombies.len());
    let mut pins = Pins::default();
    // Without a page on an LRU list there is no file to find.
    let listed = |z: &Zombie| z.held.file.saturating_add(z.held.swap_backed).saturating_add(z.held.unevictable);
    let wanted: Vec<u32> = (0..zombies.len() as u32).filter(|&i| listed(&zombies[i as usize]) > 0).collect();
    let page = page_bytes();
    for chunk in wanted.chunks(ITEMS) {
        let left = options.time_limit.saturating_sub(started.elapsed());
        if left.is_zero() {
            pins.truncated = true;
            break;
        }
        let items: Vec<(CssPlace, u64)> =
            chunk.iter().map(|&i| (places[i as usize], listed(&zombies[i as usize]) / page)).collect();
        gathered.begin();
        let (words, ended) = kernel.files(&items, options.folios_per_list, left, |told| gathered.add(chunk, told))?;
        let (folios, torn, _) = slots::files_counts(&words);
        pins.folios += folios;
        pins.torn += torn;
        pins.truncated |= ended == RunEnd::OutOfTime;
    }
    gathered.tell(root, zombies, &mut pins);
    Ok(pins)
}

/// A file by its file system and inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    device: u32,
    inode: u64,
    /// All block devices share one file system; there the device number tells them apart.
    block_device: u32,
}

#[derive(Debug)]
struct KnownFile {
    key: Key,
    /// In [`Gathered::filesystems`].
    filesystem: u32,
    links: u32,
    size: u64,
    within: Option<Within>,
    pages: u64,
    zombies: u32,
    last_zombie: u32,
    shmem: bool,
}

/// Swap-backed pages of one zombie.
#[derive(Debug, Clone, Copy, Default)]
struct Split {
    looked: bool,
    anonymous: u64,
    shmem: u64,
}

#[derive(Debug, Default)]
struct Gathered {
    files: Vec<KnownFile>,
    by_key: HashMap<Key, u32, Keyed>,
    holds: Vec<(u32, u32, u64)>,
    split: Vec<Split>,
    filesystems: Vec<String>,
    names: FileNames,
    /// The mapping read last and the file it belongs to.
    current: Option<(u64, Option<u32>)>,
}

impl Gathered {
    fn of(zombies: usize) -> Gathered {
        Gathered { split: vec![Split::default(); zombies], ..Gathered::default() }
    }

    /// Another set of memcgs: addresses of the last one mean nothing any more.
    fn begin(&mut self) {
        self.current = None;
        self.names.begin();
    }

    fn add(&mut self, chunk: &[u32], told: SlotRecord) {
        match told {
            SlotRecord::Folio { item, mapping, pages, file } => {
                let Some(&zombie) = chunk.get(item as usize) else { return };
                let pages = u64::from(pages.min(1 << 20));
                if let Some(file) = file {
                    self.names.next_path();
                    self.current = Some((mapping, (!file.unsure).then(|| self.file(&file))));
                }
                let Some(split) = self.split.get_mut(zombie as usize) else { return };
                if pages == 0 {
                    return;
                }
                if mapping & ANONYMOUS != 0 {
                    split.looked = true;
                    split.anonymous += pages;
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
                split.looked = true;
                if file.shmem {
                    split.shmem += pages;
                }
                match self.holds.last_mut() {
                    Some((z, f, sum)) if (*z, *f) == (zombie, index) => *sum += pages,
                    _ => self.holds.push((zombie, index, pages)),
                }
            }
            SlotRecord::Path { name, end, unsure } => {
                let within = self.names.add(name, end, unsure);
                if let (Some(within), Some((_, Some(index)))) = (within, self.current)
                    && let Some(file) = self.files.get_mut(index as usize)
                {
                    file.within = Some(within);
                }
            }
            SlotRecord::Dead(_) | SlotRecord::More { .. } | SlotRecord::Ancestor { .. } => {}
        }
    }

    fn file(&mut self, file: &slots::File) -> u32 {
        let key = Key {
            device: file.device,
            inode: file.inode,
            block_device: if file.filesystem == PinningFile::BLOCK_DEVICES.as_bytes() { file.block_device } else { 0 },
        };
        let next = self.files.len() as u32;
        let index = *self.by_key.entry(key).or_insert(next);
        if index == next {
            let filesystem = self.filesystem(file.filesystem);
            self.files.push(KnownFile {
                key,
                filesystem,
                size: file.size,
                links: file.links,
                shmem: file.magic == TMPFS_MAGIC,
                within: None,
                pages: 0,
                zombies: 0,
                last_zombie: 0,
            });
        }
        index
    }

    /// The index of a file system's name. There are few, so a linear search will do.
    fn filesystem(&mut self, name: &[u8]) -> u32 {
        let known = self.filesystems.iter().position(|f| f.as_bytes() == name);
        known.unwrap_or_else(|| {
            self.filesystems.push(String::from_utf8_lossy(name).into_owned());
            self.filesystems.len() - 1
        }) as u32
    }

    fn tell(mut self, root: &Root, zombies: &mut [Zombie], pins: &mut Pins) {
        let page = page_bytes();
        for (zombie, split) in zombies.iter_mut().zip(&self.split).filter(|(_, split)| split.looked) {
            zombie.held.anonymous = Some(split.anonymous.saturating_mul(page));
            zombie.held.shmem = Some(split.shmem.saturating_mul(page));
        }
        let mut devices: HashSet<(u32, u32)> = HashSet::new();
        let mut last = None;
        for file in self.files.iter().filter(|f| matches!(f.within, Some(Within::Directory { .. }))) {
            if last.replace(file.key.device) != Some(file.key.device) {
                devices.insert(device(file.key.device));
            }
        }
        let mounts = Mounts::find(root, &devices);
        let of = |i: u32| &self.files[i as usize];
        // A file may be named without any page counted; it pins nothing.
        let mut order: Vec<u32> = (0..self.files.len() as u32).filter(|&i| of(i).pages > 0).collect();
        order.sort_unstable_by_key(|&i| (std::cmp::Reverse(of(i).pages), of(i).key));
        let mut place = vec![0u32; self.files.len()];
        for (to, from) in order.iter().enumerate() {
            place[*from as usize] = to as u32;
        }
        self.holds.sort_unstable();
        pins.holds.reserve_exact(self.holds.len());
        for (zombie, file, pages) in &self.holds {
            let (zombie, file, bytes) = (*zombie, place[*file as usize], pages.saturating_mul(page));
            match pins.holds.last_mut() {
                Some(last) if (last.zombie, last.file) == (zombie, file) => last.bytes += bytes,
                _ => pins.holds.push(Hold { zombie, file, bytes }),
            }
        }
        pins.files.reserve_exact(order.len());
        let mut scratch = String::new();
        for from in order {
            pins.files.push(self.tell_file(of(from), &mounts, &mut scratch));
        }
    }

    fn tell_file(&self, file: &KnownFile, mounts: &Mounts, scratch: &mut String) -> PinningFile {
        let filesystem = self.filesystems.get(file.filesystem as usize).map_or("", String::as_str);
        let on_block_device = filesystem == PinningFile::BLOCK_DEVICES;
        let numbers = device(if on_block_device { file.key.block_device } else { file.key.device });
        if let Some(within) = file.within {
            self.names.write(within, scratch);
        }
        let (path, seen_by, mounted) = match file.within {
            Some(Within::Directory { .. }) => match mounts.locate(numbers, scratch) {
                Some(located) => (Some(located.path), located.seen_by, true),
                None => (Some(scratch.clone()), None, false),
            },
            Some(Within::Nowhere(_)) => ((!on_block_device).then(|| scratch.clone()), None, false),
            None => (None, None, false),
        };
        PinningFile {
            path,
            seen_by,
            mounted,
            filesystem: filesystem.to_owned(),
            device: numbers,
            inode: file.key.inode,
            size: file.size,
            deleted: file.links == 0 && !matches!(file.within, Some(Within::Nowhere(_))) && !on_block_device,
            bytes: file.pages.saturating_mul(page_bytes()),
            zombies: u64::from(file.zombies),
        }
    }
}

fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// The kernel's own dev_t (include/linux/kdev_t.h).
fn device(dev: u32) -> (u32, u32) {
    (dev >> 20, dev & 0xf_ffff)
}

#[cfg(test)]
mod tests {
    use super::super::slots::PathEnd;
    use super::*;
    use proptest::prelude::*;

    fn folio(item: u32, mapping: u64, file: Option<slots::File<'static>>) -> SlotRecord<'static> {
        SlotRecord::Folio { item, mapping, pages: 1, file }
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

    fn path(name: &'static str, end: PathEnd) -> SlotRecord<'static> {
        SlotRecord::Path { name: name.as_bytes(), end, unsure: false }
    }

    fn tell(told: Vec<SlotRecord>) -> Pins {
        let mut gathered = Gathered::of(3);
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
    fn folios_are_summed_by_file_and_the_largest_comes_first() {
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
            // The end of a run cut off its name: the folio comes again with 0 pages.
            SlotRecord::Folio { item: 1, mapping: 0x200, pages: 0, file: file(8, b"ext4", 0) },
            path("big", PathEnd::SameDirectory),
            SlotRecord::Folio { item: 1, mapping: 0x400, pages: 0, file: file(9, b"ext4", 0) },
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
                0 => SlotRecord::Folio {
                    item, mapping, pages: n,
                    file: flag.then(|| slots::File { unsure: n % 7 == 0, ..file(mapping, b"tmpfs", n % 2).unwrap() }),
                },
                1 => path("x", [PathEnd::More, PathEnd::Root, PathEnd::SameDirectory, PathEnd::Cut][n as usize % 4]),
                _ => SlotRecord::Path { name: b"", end: PathEnd::Root, unsure: flag },
            }).collect();
            let pins = tell(told);
            prop_assert_eq!(pins.files.iter().map(|f| f.bytes).sum::<u64>(), pins.holds.iter().map(|h| h.bytes).sum::<u64>());
        }
    }
}
