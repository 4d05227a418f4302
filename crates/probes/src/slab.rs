//! Slab memory of memory cgroups, where the kernel accounts it separately.
//!
//! Since Linux 6.16 memcgs come from their own cache, `mem_cgroup` (mm/memcontrol.c: mem_cgroup_init), whose objects are all memcgs,
//! live and dead. The rest of a memcg (struct cgroup, its statistics), and on older kernels all of it, comes from `kmalloc-*`, which is
//! shared with everything else.
//!
//! Read from /sys/kernel/slab, cache by cache, not from /proc/slabinfo, which counts the free objects of *every* cache with interrupts
//! off, and before 6.10 without a limit: on a node with millions of cached dentries coroner would starve the very network it watches
//! (mm/slub.c: count_partial).

use coroner_evidence::{Evidence, Source, Time, probe};

use crate::counter_file::{Moved, how_to_read};
use crate::root::{ParseError, ReadError, Root};

const SLAB: &str = "/sys/kernel/slab";

/// Caches of memory cgroups. `mem_cgroup_per_node` is usually merged with others of its size; then it is skipped.
const CACHES: [&str; 2] = ["mem_cgroup", "mem_cgroup_per_node"];

/// Reads the number of objects and the size of these caches. A look costs less than 0.1 ms.
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
        const WHAT: &str = "slab memory of memory cgroups";
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
            let why = format!("{SLAB} has no cache for memory cgroups alone: they share the kmalloc caches");
            evidence.unseen(probe::MEMORY, WHAT, why, "use Linux 6.16 or newer with SLUB; until then it is estimated");
        }
    }

    /// Objects and bytes; `None` for a cache that is shared.
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

/// `117 N0=117`: the total, then each NUMA node.
fn parse_first_number(text: &str) -> Result<u64, ParseError> {
    let first = text.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
    first.ok_or_else(|| ParseError::new(1, "a number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tree::{seen, tree};
    use proptest::prelude::*;

    #[test]
    fn a_separate_cache_is_read_and_a_merged_one_skipped() {
        let dir = tree(&[
            ("sys/kernel/slab/mem_cgroup/aliases", "0\n"),
            ("sys/kernel/slab/mem_cgroup/objects", "117 N0=100 N1=17\n"),
            ("sys/kernel/slab/mem_cgroup/slabs", "12 N0=12\n"),
            ("sys/kernel/slab/mem_cgroup/order", "3\n"),
            ("sys/kernel/slab/mem_cgroup_per_node/aliases", "3\n"),
            ("sys/kernel/slab/mem_cgroup_per_node/objects", "900 N0=900\n"),
        ]);
        let evidence = seen(dir.path(), |root, evidence| SlabReader::new(root).look(Time(1), evidence));
        assert_eq!(evidence.counters.subjects(Source::Slab), ["mem_cgroup"]);
        assert_eq!(evidence.counters.last(Source::Slab, "mem_cgroup", "objects"), Some(117));
        let page = rustix::param::page_size() as u64;
        assert_eq!(evidence.counters.last(Source::Slab, "mem_cgroup", "bytes"), Some(12 * 8 * page));
        assert!(evidence.unseen.is_empty(), "{:?}", evidence.unseen);
    }

    #[test]
    fn an_old_kernel_or_a_malformed_file_is_noted() {
        for files in [
            &[("sys/kernel/slab/kmalloc-4k/objects", "1\n")][..],
            &[("sys/kernel/slab/mem_cgroup/aliases", "none\n")],
            &[],
        ] {
            let dir = tree(files);
            let evidence = seen(dir.path(), |root, evidence| SlabReader::new(root).look(Time(1), evidence));
            assert!(!evidence.counters.has(Source::Slab));
            assert_eq!(evidence.unseen.len(), 1, "{:?}", evidence.unseen);
        }
    }

    #[test]
    fn agrees_with_proc_cgroups() {
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
        // Each core may cache some free objects, which SLUB counts as used.
        let spare = 200 * std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        assert!(objects + 50 >= tracked && objects <= tracked + spare, "{objects} objects, {tracked} tracked");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,40}") {
            let _ = parse_first_number(&text);
        }

        #[test]
        fn any_order_is_accepted(order in any::<u64>(), slabs in any::<u64>()) {
            let dir = tree(&[
                ("sys/kernel/slab/mem_cgroup/aliases", "0"), ("sys/kernel/slab/mem_cgroup/objects", "1"),
                ("sys/kernel/slab/mem_cgroup/slabs", &slabs.to_string()), ("sys/kernel/slab/mem_cgroup/order", &order.to_string()),
            ]);
            seen(dir.path(), |root, evidence| SlabReader::new(root).look(Time(1), evidence));
        }
    }
}
