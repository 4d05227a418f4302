//! What dead cgroups hold, from files of live ones: the sums of a live parent minus those of its live children.
//!
//! The sums of a cgroup include everything below it, dead cgroups too. On v1, memory.stat also has what is charged to the cgroup
//! itself, so `total_X(P) − X(P) − Σ total_X(live children)` is exactly what the dead below P hold. On v2 it has only sums: what
//! P itself holds stays in the difference.

use coroner_evidence::Charged;

use crate::counter_file::{Words, decimal, lines};

/// Bytes by kind, and number of dead cgroups, of a cgroup with or without its descendants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Amounts {
    /// Page cache, including shared memory.
    pub cache: u64,
    /// Mapped anonymous memory.
    pub anonymous: u64,
    pub shmem: u64,
    /// On the LRU lists. A page in a per-CPU batch is on none.
    pub file_lists: u64,
    pub anonymous_lists: u64,
    pub unevictable: u64,
    /// `None` if the file does not have it.
    pub swap: Option<u64>,
    pub kernel: Option<u64>,
    /// Dead cgroups; only v2 counts them.
    pub dying: u64,
}

impl Amounts {
    pub const NOTHING: Amounts = Amounts {
        cache: 0,
        anonymous: 0,
        shmem: 0,
        file_lists: 0,
        anonymous_lists: 0,
        unevictable: 0,
        swap: Some(0),
        kernel: Some(0),
        dying: 0,
    };

    /// Combines by kind. A value missing in either is missing in the result.
    fn with(self, other: Amounts, of: impl Fn(u64, u64) -> u64) -> Amounts {
        let both = |a: Option<u64>, b: Option<u64>| Some(of(a?, b?));
        Amounts {
            cache: of(self.cache, other.cache),
            anonymous: of(self.anonymous, other.anonymous),
            shmem: of(self.shmem, other.shmem),
            file_lists: of(self.file_lists, other.file_lists),
            anonymous_lists: of(self.anonymous_lists, other.anonymous_lists),
            unevictable: of(self.unevictable, other.unevictable),
            swap: both(self.swap, other.swap),
            kernel: both(self.kernel, other.kernel),
            dying: of(self.dying, other.dying),
        }
    }

    pub fn plus(self, other: Amounts) -> Amounts {
        self.with(other, u64::saturating_add)
    }

    /// Saturates at 0: the files are read one after another, so with changes in between the parts may exceed the sum.
    pub fn less(self, other: Amounts) -> Amounts {
        self.with(other, u64::saturating_sub)
    }

    pub fn least(self, other: Amounts) -> Amounts {
        self.with(other, u64::min)
    }

    /// Nothing is charged. There may still be dead cgroups.
    pub fn is_nothing(&self) -> bool {
        self.held().total() == 0 && self.swap.unwrap_or(0) == 0
    }

    /// Cache and mapped memory are counted when charged, lists only when a page is put on one. So the lists are used only to
    /// split off unevictable memory and to find what is neither cache nor mapped (the swap cache).
    pub fn held(&self) -> Charged {
        let of_files = self.cache.saturating_sub(self.shmem);
        let swap_backed = self.anonymous.saturating_add(self.shmem);
        let locked_files = self.unevictable.min(of_files.saturating_sub(self.file_lists));
        let locked_others = (self.unevictable - locked_files).min(swap_backed.saturating_sub(self.anonymous_lists));
        let swap_backed = (swap_backed - locked_others).max(self.anonymous_lists);
        let shmem = self.shmem.min(swap_backed);
        Charged {
            file: of_files - locked_files,
            swap_backed,
            unevictable: locked_files.saturating_add(locked_others),
            anonymous: Some(self.anonymous.min(swap_backed - shmem)),
            shmem: Some(shmem),
            kernel: self.kernel,
            swap: self.swap,
        }
    }
}

/// The content of a memory.stat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sums {
    /// Charged to the cgroup itself; nothing on v2, which does not separate it.
    pub own: Amounts,
    /// Including everything below.
    pub all: Amounts,
}

impl Sums {
    /// Charged below the cgroup, to live and dead ones.
    pub fn below(&self) -> Amounts {
        self.all.less(self.own)
    }

    /// v1 (memcg1_stat_format in mm/memcontrol-v1.c, memcg_stat_show before 6.11). `None` if it is another file. Has no kernel
    /// memory.
    pub fn of_v1(text: &[u8]) -> Option<Sums> {
        let (mut own, mut all) = (Kinds::default(), Kinds::default());
        for (name, value) in values(text) {
            match name.strip_prefix(b"total_") {
                Some(name) => all.note_v1(name, value),
                None => own.note_v1(name, value),
            }
        }
        Some(Sums { own: own.amounts()?, all: all.amounts()? })
    }

    /// v2 (memory_stats in mm/memcontrol.c). `None` if it is another file.
    ///
    /// With `slab_stays` (before 5.9) a dead cgroup keeps its slab objects and stacks. Later kernels move them to the parent when
    /// it dies (memcg_reparent_objcgs), so a parent's kernel memory says nothing about its dead children.
    pub fn of_v2(text: &[u8], slab_stays: bool) -> Option<Sums> {
        let mut all = Kinds::default();
        for (name, value) in values(text) {
            match name {
                b"file" => all.cache = Some(value),
                b"anon" => all.anonymous = Some(value),
                b"slab" | b"kernel_stack" if slab_stays => all.kernel = add(all.kernel, value),
                name => all.note(name, value),
            }
        }
        Some(Sums { own: Amounts::NOTHING, all: all.amounts()? })
    }
}

#[derive(Debug, Default)]
struct Kinds {
    cache: Option<u64>,
    anonymous: Option<u64>,
    shmem: Option<u64>,
    file_lists: Option<u64>,
    anonymous_lists: Option<u64>,
    unevictable: Option<u64>,
    swap: Option<u64>,
    kernel: Option<u64>,
}

impl Kinds {
    fn note_v1(&mut self, name: &[u8], value: u64) {
        match name {
            b"cache" => self.cache = Some(value),
            b"rss" => self.anonymous = Some(value),
            // Only if swap is accounted together with memory.
            b"swap" => self.swap = Some(value),
            name => self.note(name, value),
        }
    }

    fn note(&mut self, name: &[u8], value: u64) {
        match name {
            b"shmem" => self.shmem = Some(value),
            b"inactive_file" | b"active_file" => self.file_lists = add(self.file_lists, value),
            b"inactive_anon" | b"active_anon" => self.anonymous_lists = add(self.anonymous_lists, value),
            b"unevictable" => self.unevictable = Some(value),
            _ => {}
        }
    }

    /// All kernels since 4.5 have these; a file without them is another one.
    fn amounts(&self) -> Option<Amounts> {
        Some(Amounts {
            cache: self.cache?,
            anonymous: self.anonymous?,
            shmem: self.shmem?,
            file_lists: self.file_lists?,
            anonymous_lists: self.anonymous_lists?,
            unevictable: self.unevictable?,
            swap: self.swap,
            kernel: self.kernel,
            dying: 0,
        })
    }
}

fn add(sum: Option<u64>, value: u64) -> Option<u64> {
    Some(sum.unwrap_or(0).saturating_add(value))
}

/// The pairs of a file of `name value` lines; other lines are skipped.
fn values(text: &[u8]) -> impl Iterator<Item = (&[u8], u64)> {
    lines(text).filter_map(|(_, line)| {
        let mut words = Words(line);
        Some((words.word()?, words.number()?))
    })
}

/// The value of one name.
pub(super) fn value_of(text: &[u8], name: &str) -> Option<u64> {
    values(text).find(|(n, _)| *n == name.as_bytes()).map(|(_, value)| value)
}

/// A file with a single number, such as memory.swap.current.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    decimal(text.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn amounts(cache: u64, anonymous: u64, shmem: u64) -> Amounts {
        Amounts { cache, anonymous, shmem, ..Amounts::NOTHING }
    }

    const V1: &str = "cache 100\nrss 7\nshmem 40\nmapped_file 1\nswap 3\ninactive_anon 5\nactive_anon 6\ninactive_file 10\n\
        active_file 20\nunevictable 2\nhierarchical_memory_limit 9223372036854771712\ntotal_cache 1000\ntotal_rss 70\n\
        total_shmem 400\ntotal_swap 30\ntotal_inactive_anon 50\ntotal_active_anon 60\ntotal_inactive_file 100\n\
        total_active_file 200\ntotal_unevictable 20\n";

    #[test]
    fn v1_separates_a_cgroup_from_its_descendants() {
        let sums = Sums::of_v1(V1.as_bytes()).unwrap();
        let below = sums.below();
        assert_eq!((below.cache, below.anonymous, below.shmem, below.swap), (900, 63, 360, Some(27)));
        assert_eq!((below.file_lists, below.anonymous_lists, below.unevictable), (270, 99, 18));
        assert_eq!(below.held().kernel, None, "not in this file on v1");
        // A kernel that does not account swap with memory has no such line, which is not 0.
        let no_swap: String = V1.lines().filter(|l| !l.contains("swap")).map(|l| format!("{l}\n")).collect();
        assert_eq!(Sums::of_v1(no_swap.as_bytes()).unwrap().below().held().swap, None);
        // The other version's file, and a truncated file.
        assert_eq!(Sums::of_v2(V1.as_bytes(), false), None);
        assert_eq!(Sums::of_v1(&V1.as_bytes()[..200]), None);
    }

    const V2: &str = "anon 7\nfile 100\nkernel 50\nkernel_stack 8\nslab 20\nslab_reclaimable 19\nshmem 40\ninactive_anon 5\n\
        active_anon 6\ninactive_file 10\nactive_file 20\nunevictable 2\n";

    #[test]
    fn v2_has_only_sums_and_kernel_memory_only_on_old_kernels() {
        let new = Sums::of_v2(V2.as_bytes(), false).unwrap();
        assert_eq!(new.below(), Amounts { swap: None, kernel: None, ..new.all });
        assert_eq!((new.all.cache, new.all.anonymous, new.all.shmem, new.all.kernel), (100, 7, 40, None));
        assert_eq!(Sums::of_v2(V2.as_bytes(), true).unwrap().all.kernel, Some(28));
        assert_eq!(Sums::of_v1(V2.as_bytes()), None);
    }

    #[test]
    fn kinds_sum_to_what_is_charged() {
        // 60 of files, 40 of shmem, 7 anonymous; some pages are on no list yet.
        let held = Amounts { file_lists: 55, anonymous_lists: 40, ..amounts(100, 7, 40) }.held();
        assert_eq!((held.file, held.swap_backed, held.unevictable), (60, 47, 0));
        assert_eq!((held.shmem, held.anonymous, held.total()), (Some(40), Some(7), 107));
        // Locked shared memory is on neither list.
        let held = Amounts { file_lists: 60, anonymous_lists: 0, unevictable: 40, ..amounts(100, 0, 40) }.held();
        assert_eq!((held.file, held.swap_backed, held.unevictable, held.total()), (60, 0, 40, 100));
        // ramfs.
        let held = Amounts { unevictable: 100, ..amounts(100, 0, 0) }.held();
        assert_eq!((held.file, held.swap_backed, held.unevictable), (0, 0, 100));
        // In the swap cache: neither mapped nor page cache, but on a list.
        let held = Amounts { anonymous_lists: 12, ..amounts(0, 0, 0) }.held();
        assert_eq!((held.swap_backed, held.shmem, held.anonymous, held.total()), (12, Some(0), Some(0), 12));
        assert!(Amounts::NOTHING.is_nothing());
        assert!(!Amounts { swap: Some(1), ..Amounts::NOTHING }.is_nothing());
    }

    fn any_amounts() -> impl Strategy<Value = Amounts> {
        // Small numbers collide, large ones overflow.
        let n = || prop_oneof![0u64..50, any::<u64>()];
        let some = || proptest::option::of(n());
        ((n(), n(), n(), n(), n(), n()), some(), some(), n()).prop_map(|(m, swap, kernel, dying)| Amounts {
            cache: m.0,
            anonymous: m.1,
            shmem: m.2,
            file_lists: m.3,
            anonymous_lists: m.4,
            unevictable: m.5,
            swap,
            kernel,
            dying,
        })
    }

    proptest! {
        #[test]
        fn no_amounts_overflow_or_exceed_what_is_charged(a in any_amounts(), b in any_amounts()) {
            let held = a.held();
            let charged = a.cache.saturating_sub(a.shmem).saturating_add(a.anonymous.saturating_add(a.shmem));
            let in_memory = Charged { kernel: None, ..held }.total();
            prop_assert!(in_memory <= charged.saturating_add(a.anonymous_lists));
            prop_assert!(held.shmem.unwrap().saturating_add(held.anonymous.unwrap()) <= held.swap_backed);
            let (sum, less) = (a.plus(b), a.less(b));
            prop_assert!(sum.cache >= a.cache && less.cache <= a.cache && less.dying <= a.dying);
            prop_assert_eq!(a.least(b), b.least(a));
            prop_assert_eq!(less.swap.is_some(), a.swap.is_some() && b.swap.is_some());
            sum.held();
        }

        #[test]
        fn any_bytes_are_handled(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..500, at in 0usize..500) {
            let mut torn = V1.as_bytes()[..cut.min(V1.len())].to_vec();
            torn.splice(at.min(torn.len())..at.min(torn.len()), bytes.iter().copied());
            for text in [&bytes, &torn] {
                Sums::of_v1(text).map(|s| s.below().held());
                Sums::of_v2(text, true).map(|s| s.below().held());
                value_of(text, "cache");
                number(text);
            }
        }

        #[test]
        fn dead_children_hold_what_live_ones_do_not(
            own in any_amounts(), live in proptest::collection::vec(0u64..1000, 0..5), dead in 0u64..1000,
        ) {
            let bounded = Amounts { shmem: own.shmem % 1000, ..Amounts::NOTHING };
            let child = |shmem: u64| Amounts { cache: shmem, shmem, ..Amounts::NOTHING };
            let children = live.iter().fold(Amounts::NOTHING, |sum, n| sum.plus(child(*n)));
            let sums = Sums { own: bounded, all: bounded.plus(children).plus(child(dead)) };
            let held = sums.below().less(children).held();
            prop_assert_eq!((held.shmem, held.total()), (Some(dead), dead));
        }
    }
}
