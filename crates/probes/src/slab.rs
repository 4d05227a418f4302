//! Slab memory that belongs to memory cgroups, where the kernel keeps it apart.
//!
//! From Linux 6.16 on memcgs come from a cache of their own, `mem_cgroup` (mm/memcontrol.c: mem_cgroup_init), whose objects are then the
//! memcgs there are, live and dead. The rest of one (struct cgroup, its statistics), and on older kernels all of it, comes from
//! `kmalloc-*`, which everybody uses and nobody can tell apart.
//!
//! Read from /sys/kernel/slab, cache by cache, not from /proc/slabinfo: that counts the free objects of *every* cache, on kernels
//! before 6.10 all of them, with interrupts off: on a node with millions of cached dentries the observer would starve the very network
//! it watches (mm/slub.c: count_partial).

use coroner_evidence::{Evidence, Source, Time, probe};

use crate::counter_file::{Moved, how_to_read};
use crate::root::{ParseError, ReadError, Root};

const SLAB: &str = "/sys/kernel/slab";

/// Caches of memory cgroups. `mem_cgroup_per_node` is mostly merged with others of its size, then it is left out.
const CACHES: [&str; 2] = ["mem_cgroup", "mem_cgroup_per_node"];

/// Reads how many objects these caches hold and what they take. A look costs less than 0.1 ms.
#[derive(Debug)]
pub struct SlabReader {
    root: Root,
    moved: Moved,
}

impl SlabReader {
    pub fn new(root: &Root) -> SlabReader {
        SlabReader { root: root.clone(), moved: Moved::new(Source::Slab) }
    }

    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        const WHAT: &str = "slab memory of memory cgroups, apart from that of others";
        self.moved.begin();
        let mut seen = false;
        for cache in CACHES {
            match self.cache(cache) {
                Ok(Some((objects, bytes))) => {
                    seen = true;
                    self.moved.note(cache, "objects", at, objects, evidence);
                    self.moved.note(cache, "bytes", at, bytes, evidence);
                }
                Ok(None) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    return evidence.unseen(probe::MEMORY, WHAT, error.to_string(), how_to_read(&error));
                }
            }
        }
        if !seen {
            let why = format!("{SLAB} has no cache that is theirs alone: they come from kmalloc, which everybody uses");
            evidence.unseen(probe::MEMORY, WHAT, why, "Linux 6.16 or later with SLUB; else it is estimated");
        }
    }

    /// Objects and bytes; `None` for a cache that serves others as well.
    fn cache(&self, cache: &str) -> Result<Option<(u64, u64)>, ReadError> {
        let number = |file: &str| self.root.read_parsed(&format!("{SLAB}/{cache}/{file}"), parse_first_number);
        if number("aliases")? > 0 {
            return Ok(None);
        }
        let (objects, slabs, order) = (number("objects")?, number("slabs")?, number("order")?);
        let page = rustix::param::page_size() as u64;
        let bytes = u32::try_from(order).ok().and_then(|order| page.checked_shl(order)).unwrap_or(0);
        Ok(Some((objects, slabs.saturating_mul(bytes))))
    }
}

/// `117 N0=117`: all nodes together, then each.
fn parse_first_number(text: &str) -> Result<u64, ParseError> {
    let first = text.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
    first.ok_or_else(|| ParseError::new(1, "a number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join("sys/kernel/slab").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn a_cache_of_its_own_is_read_and_a_merged_one_left_out() {
        let dir = tree(&[
            ("mem_cgroup/aliases", "0\n"),
            ("mem_cgroup/objects", "117 N0=100 N1=17\n"),
            ("mem_cgroup/slabs", "12 N0=12\n"),
            ("mem_cgroup/order", "3\n"),
            ("mem_cgroup_per_node/aliases", "3\n"),
            ("mem_cgroup_per_node/objects", "900 N0=900\n"),
        ]);
        let mut evidence = Evidence::default();
        SlabReader::new(&Root::at(dir.path())).look(Time(1), &mut evidence);
        assert_eq!(evidence.counters.subjects(Source::Slab), ["mem_cgroup"]);
        assert_eq!(evidence.counters.last(Source::Slab, "mem_cgroup", "objects"), Some(117));
        let page = rustix::param::page_size() as u64;
        assert_eq!(evidence.counters.last(Source::Slab, "mem_cgroup", "bytes"), Some(12 * 8 * page));
        assert!(evidence.unseen.is_empty(), "{:?}", evidence.unseen);
    }

    #[test]
    fn an_old_kernel_or_a_broken_file_is_told() {
        for files in [&[("kmalloc-4k/objects", "1\n")][..], &[("mem_cgroup/aliases", "none\n")], &[]] {
            let dir = tree(files);
            let mut evidence = Evidence::default();
            SlabReader::new(&Root::at(dir.path())).look(Time(1), &mut evidence);
            assert!(!evidence.counters.has(Source::Slab));
            assert_eq!(evidence.unseen.len(), 1, "{:?}", evidence.unseen);
        }
    }

    #[test]
    fn there_are_as_many_as_the_kernel_tracks() {
        let Some(_lock) = coroner_lab::HostLock::take_as_root() else { return };
        let mut evidence = Evidence::default();
        SlabReader::new(&Root::live()).look(Time(1), &mut evidence);
        let Some(objects) = evidence.counters.last(Source::Slab, "mem_cgroup", "objects") else {
            return coroner_lab::skip(&format!("{:?}", evidence.unseen));
        };
        let text = std::fs::read_to_string("/proc/cgroups").unwrap();
        let Some(line) = text.lines().find_map(|l| l.strip_prefix("memory\t")) else {
            return coroner_lab::skip("/proc/cgroups does not count memory cgroups");
        };
        let tracked: u64 = line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
        // Each core may keep some free ones at hand, which SLUB counts as used.
        let spare = 200 * std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        assert!(objects + 50 >= tracked && objects <= tracked + spare, "{objects} objects, {tracked} tracked");
    }

    proptest! {
        #[test]
        fn any_text_is_a_number_or_refused(text in ".{0,40}") {
            let _ = parse_first_number(&text);
        }

        #[test]
        fn any_order_is_borne(order in any::<u64>(), slabs in any::<u64>()) {
            let dir = tree(&[
                ("mem_cgroup/aliases", "0"), ("mem_cgroup/objects", "1"),
                ("mem_cgroup/slabs", &slabs.to_string()), ("mem_cgroup/order", &order.to_string()),
            ]);
            let mut evidence = Evidence::default();
            SlabReader::new(&Root::at(dir.path())).look(Time(1), &mut evidence);
        }
    }
}
