//! Turns the records of a walk into zombies: builds paths, converts pages to bytes, subtracts descendants from sums.

use std::collections::HashMap;
use std::rc::Rc;

use super::jiffies::Timing;
use super::slots::{CssPlace, Dead, SlotRecord, WalkCounts};
use coroner_evidence::{Born, Charged, Zombie};

/// One buffer for all names and a sorted list for lookups: tens of thousands of small strings and hashes would cost more than
/// the walk.
#[derive(Debug, Default)]
pub(super) struct FoundDead {
    names: Vec<u8>,
    /// Sorted by serial number once the walk is over.
    dead: Vec<Corpse>,
    /// Live ancestors of dead cgroups: parent and name.
    ancestors: HashMap<u64, (u64, Name)>,
}

#[derive(Debug, Clone, Copy)]
struct Name {
    start: usize,
    len: usize,
}

#[derive(Debug)]
struct Corpse {
    /// Without its name.
    told: Dead<'static>,
    gone: bool,
    name: Name,
}

impl Corpse {
    fn add_pages(&mut self, file: u64, swap_backed: u64, unevictable: u64) {
        self.told.file = self.told.file.saturating_add(file);
        self.told.swap_backed = self.told.swap_backed.saturating_add(swap_backed);
        self.told.unevictable = self.told.unevictable.saturating_add(unevictable);
    }

    fn pages(&self) -> u64 {
        self.told.file.saturating_add(self.told.swap_backed).saturating_add(self.told.unevictable)
    }
}

impl FoundDead {
    pub fn add(&mut self, told: SlotRecord) {
        match told {
            SlotRecord::Dead(dead) => {
                let name = self.keep(dead.name);
                self.dead.push(Corpse { told: Dead { name: &[], ..dead }, gone: false, name });
            }
            SlotRecord::More { serial, file, swap_backed, unevictable } => {
                // It follows the record it belongs to.
                let last = self.dead.last_mut().filter(|c| c.told.place.serial == serial);
                if let Some(corpse) = last {
                    corpse.add_pages(file, swap_backed, unevictable);
                }
            }
            SlotRecord::Ancestor { serial, parent, name } => {
                let name = self.keep(name);
                self.ancestors.insert(serial, (parent, name));
            }
            SlotRecord::Folio { .. } | SlotRecord::Path { .. } => {}
        }
    }

    fn keep(&mut self, name: &[u8]) -> Name {
        let start = self.names.len();
        self.names.extend_from_slice(name);
        Name { start, len: name.len() }
    }

    /// A later reading of a known one.
    pub fn update(&mut self, told: &SlotRecord) {
        if let SlotRecord::More { serial, file, swap_backed, unevictable } = *told
            && let Some(corpse) = self.corpse(serial)
        {
            corpse.add_pages(file, swap_backed, unevictable);
        }
        if let SlotRecord::Dead(dead) = told
            && let Some(corpse) = self.corpse(dead.place.serial)
        {
            let Dead { place, parent, id, pressure_jiffies, directory_lives, .. } = corpse.told;
            corpse.told = Dead { place, parent, id, pressure_jiffies, directory_lives, name: &[], ..*dead };
        }
    }

    pub fn forget(&mut self, place: CssPlace) {
        if let Some(corpse) = self.corpse(place.serial) {
            corpse.gone = true;
        }
    }

    fn corpse(&mut self, serial: u64) -> Option<&mut Corpse> {
        let index = self.place_of(serial)?;
        self.dead.get_mut(index)
    }

    fn place_of(&self, serial: u64) -> Option<usize> {
        self.dead.binary_search_by_key(&serial, |c| c.told.place.serial).ok()
    }

    /// Call when the walk is over. Drops duplicates, though the walk should send none.
    pub fn sort(&mut self) {
        self.dead.sort_by_key(|c| c.told.place.serial);
        self.dead.dedup_by(|later, earlier| later.told.place.serial == earlier.told.place.serial);
    }

    /// Those without a page on an LRU list or a dead child: they may be about to be freed.
    pub fn suspects(&self) -> Vec<CssPlace> {
        let mut parents: Vec<u64> = self.dead.iter().map(|c| c.told.parent).collect();
        parents.dedup();
        parents.sort_unstable();
        let is_parent = |c: &Corpse| parents.binary_search(&c.told.place.serial).is_ok();
        self.dead
            .iter()
            .filter(|c| c.told.references == Some(0) || (c.pages() == 0 && !is_parent(c)))
            .map(|c| c.told.place)
            .collect()
    }

    /// Drops those that are gone or have no reference left (only the kernel's cleanup is pending). Returns how many.
    pub fn let_go(&mut self) -> u64 {
        let before = self.dead.len();
        self.dead.retain(|c| !c.gone && c.told.references != Some(0));
        (before - self.dead.len()) as u64
    }

    /// The zombies, and where each can be found again.
    pub fn zombies(self, counts: &WalkCounts, timing: Option<&Timing>) -> (Vec<Zombie>, Vec<CssPlace>) {
        // The kernel's counter includes descendants, which are all dead too; and each child holds a reference.
        let mut below: HashMap<u64, (u64, u64)> = HashMap::new();
        // Siblings are mostly adjacent.
        let mut parent = (0, false);
        for corpse in &self.dead {
            if parent.0 != corpse.told.parent {
                parent = (corpse.told.parent, self.place_of(corpse.told.parent).is_some());
            }
            if !parent.1 {
                continue;
            }
            let (pages, children) = below.entry(corpse.told.parent).or_default();
            *pages = pages.saturating_add(corpse.told.kernel_charged);
            *children += 1;
        }
        let knows_kernel = counts.knows_kernel_memory && !counts.unified;
        let page = rustix::param::page_size() as u64;
        let bytes = |pages: u64| pages.saturating_mul(page);

        // Ordered by birth, so the smallest timestamp from here on bounds this one's birth.
        let mut births = vec![None; self.dead.len()];
        let mut earliest = u64::MAX;
        for (corpse, birth) in self.dead.iter().zip(&mut births).rev() {
            if corpse.told.pressure_jiffies != 0 {
                earliest = if counts.unified {
                    earliest.min(corpse.told.pressure_jiffies)
                } else {
                    corpse.told.pressure_jiffies
                };
                *birth = timing.map(|t| Born { at: t.at(earliest), exact: !counts.unified });
            }
        }

        let mut paths = Paths::new(&self);
        let zombies = self
            .dead
            .iter()
            .zip(births)
            .map(|(c, born)| {
                // A dead memcg's counter keeps the charge of kernel memory that was moved to the parent (obj_cgroup, 5.9). Only
                // memory that also holds a reference is really held.
                let of_below = if below.is_empty() { None } else { below.get(&c.told.place.serial) };
                let (of_children, children) = of_below.copied().unwrap_or_default();
                let own = c.told.kernel_charged.saturating_sub(of_children);
                // All its swap together holds one reference: that of the memcg's id.
                let accounted = c.pages().saturating_add(children).saturating_add(u64::from(c.told.swap > 0));
                let unlisted = c.told.references.map(|r| r.saturating_sub(accounted));
                Zombie {
                    id: c.told.id,
                    path: paths.below(c.told.parent, c.name),
                    references: c.told.references,
                    held: Charged {
                        file: bytes(c.told.file),
                        swap_backed: bytes(c.told.swap_backed),
                        unevictable: bytes(c.told.unevictable),
                        anonymous: None,
                        shmem: None,
                        kernel: unlisted.filter(|_| knows_kernel).map(|u| bytes(u.min(own))),
                        swap: counts.knows_swap.then(|| bytes(c.told.swap)),
                    },
                    born,
                    directory_lives: c.told.directory_lives,
                    serial: c.told.place.serial,
                }
            })
            .collect();
        (zombies, self.dead.iter().map(|c| c.told.place).collect())
    }
}

/// Stands for a parent whose name is lost, so that it is not taken for the root.
const UNKNOWN: &str = "?";

/// Paths of parents, each built once.
struct Paths<'f> {
    found: &'f FoundDead,
    /// The root's serial number: the smallest, as it was created first.
    root: u64,
    known: HashMap<u64, Rc<str>>,
    /// The last parent asked for: siblings are mostly adjacent.
    last: Option<(u64, Rc<str>)>,
}

impl<'f> Paths<'f> {
    fn new(found: &'f FoundDead) -> Paths<'f> {
        let parents =
            found.dead.iter().map(|c| c.told.parent).chain(found.ancestors.values().map(|(parent, _)| *parent));
        Paths { found, root: parents.min().unwrap_or(0), known: HashMap::new(), last: None }
    }

    fn below(&mut self, parent: u64, name: Name) -> String {
        let parent = match &self.last {
            Some((serial, path)) if *serial == parent => path.clone(),
            _ => {
                let path = self.of(parent);
                self.last = Some((parent, path.clone()));
                path
            }
        };
        let name = self.text(name);
        let mut path = String::with_capacity(parent.len() + 1 + name.len());
        path.push_str(&parent);
        path.push('/');
        path.push_str(&name);
        path
    }

    fn text(&self, name: Name) -> std::borrow::Cow<'f, str> {
        String::from_utf8_lossy(self.found.names.get(name.start..name.start + name.len).unwrap_or_default())
    }

    fn of(&mut self, serial: u64) -> Rc<str> {
        if let Some(path) = self.known.get(&serial) {
            return path.clone();
        }
        // Upwards to a known path or the root, which has no record; the walk goes 64 levels deep.
        let mut names = Vec::new();
        let mut at = serial;
        let mut base: Rc<str> = "".into();
        for _ in 0..64 {
            if let Some(path) = self.known.get(&at) {
                base = path.clone();
                break;
            }
            let dead = self.found.place_of(at).and_then(|i| self.found.dead.get(i));
            let up = dead.map(|c| (c.told.parent, c.name)).or_else(|| self.found.ancestors.get(&at).copied());
            let Some((parent, name)) = up else {
                // It was freed during the walk, and its own parents are unknown.
                if at != self.root {
                    base = UNKNOWN.into();
                }
                break;
            };
            names.push(name);
            at = parent;
        }
        let mut path = base.to_string();
        for name in names.into_iter().rev() {
            path.push('/');
            path.push_str(&self.text(name));
        }
        let path: Rc<str> = path.into();
        self.known.insert(serial, path.clone());
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dead(serial: u64, parent: u64, name: &str) -> Dead<'_> {
        Dead {
            place: CssPlace { css: 0xffff_0000 + serial, serial },
            parent,
            depth: 1,
            id: serial * 10,
            references: Some(2),
            file: 1,
            swap_backed: 1,
            unevictable: 0,
            kernel_charged: 0,
            swap: 0,
            pressure_jiffies: 0,
            directory_lives: false,
            name: name.as_bytes(),
        }
    }

    fn v1() -> WalkCounts {
        WalkCounts { knows_kernel_memory: true, ..WalkCounts::default() }
    }

    #[test]
    fn a_lost_parent_is_not_taken_for_the_root() {
        let mut found = FoundDead::default();
        found.add(SlotRecord::Ancestor { serial: 2, parent: 1, name: b"a" });
        found.add(SlotRecord::Dead(dead(3, 2, "known")));
        found.add(SlotRecord::Dead(dead(9, 7, "lost")));
        found.sort();
        let paths: Vec<String> = found.zombies(&v1(), None).0.into_iter().map(|z| z.path).collect();
        assert_eq!(paths, ["/a/known", "?/lost"]);
    }

    #[test]
    fn paths_go_through_dead_and_live_ancestors() {
        let mut found = FoundDead::default();
        found.add(SlotRecord::Dead(dead(9, 7, "leaf")));
        found.add(SlotRecord::Dead(dead(7, 4, "pod-x")));
        found.add(SlotRecord::Dead(dead(8, 1, "top")));
        found.add(SlotRecord::Ancestor { serial: 4, parent: 3, name: b"besteffort" });
        found.add(SlotRecord::Ancestor { serial: 3, parent: 1, name: b"kubepods" });
        found.sort();
        let paths: Vec<String> = found.zombies(&v1(), None).0.into_iter().map(|z| z.path).collect();
        assert_eq!(paths, ["/kubepods/besteffort/pod-x", "/top", "/kubepods/besteffort/pod-x/leaf"]);
    }

    #[test]
    fn pages_of_all_numa_nodes_are_summed_at_each_look() {
        let mut found = FoundDead::default();
        let more = |file| SlotRecord::More { serial: 9, file, swap_backed: 1, unevictable: 2 };
        for told in [SlotRecord::Dead(dead(9, 1, "a")), more(3), more(4)] {
            found.add(told);
        }
        found.sort();
        let pages = |found: &FoundDead| {
            found.dead.iter().map(|c| (c.told.file, c.told.swap_backed, c.told.unevictable)).collect::<Vec<_>>()
        };
        assert_eq!(pages(&found), [(8, 3, 4)]);
        for told in [SlotRecord::Dead(dead(9, 1, "a")), more(1)] {
            found.update(&told);
        }
        assert_eq!(pages(&found), [(2, 2, 2)]);
    }

    #[test]
    fn duplicates_are_dropped() {
        let mut found = FoundDead::default();
        found.add(SlotRecord::Dead(dead(9, 1, "a")));
        found.add(SlotRecord::Dead(dead(8, 1, "b")));
        found.add(SlotRecord::Dead(dead(9, 1, "a")));
        found.sort();
        let (zombies, _) = found.zombies(&v1(), None);
        assert_eq!(zombies.iter().map(|z| z.serial).collect::<Vec<_>>(), [8, 9]);
    }

    #[test]
    fn one_without_pages_is_checked_again_but_a_dead_parent_is_not() {
        let mut found = FoundDead::default();
        let nothing = |serial, parent| Dead { file: 0, swap_backed: 0, ..dead(serial, parent, "x") };
        found.add(SlotRecord::Dead(nothing(2, 1)));
        found.add(SlotRecord::Dead(dead(3, 2, "holds pages")));
        found.add(SlotRecord::Dead(nothing(4, 1)));
        found.add(SlotRecord::Dead(Dead { references: Some(0), ..dead(5, 1, "released") }));
        found.sort();
        let suspects: Vec<u64> = found.suspects().iter().map(|p| p.serial).collect();
        assert_eq!(suspects, [4, 5]);
        found.forget(CssPlace { css: 0, serial: 4 });
        assert_eq!(found.let_go(), 2, "4 is gone, 5 has no reference left");
        let left: Vec<u64> = found.zombies(&v1(), None).0.iter().map(|z| z.serial).collect();
        assert_eq!(left, [2, 3]);
    }

    #[test]
    fn kernel_memory_is_what_is_charged_and_still_referenced() {
        let kernel = |references, own, child| {
            let mut found = FoundDead::default();
            found.add(SlotRecord::Dead(Dead { references: Some(references), kernel_charged: own, ..dead(2, 1, "p") }));
            found.add(SlotRecord::Dead(Dead { kernel_charged: child, ..dead(3, 2, "c") }));
            found.sort();
            found.zombies(&v1(), None).0[0].held.kernel.map(|k| k / rustix::param::page_size() as u64)
        };
        assert_eq!(kernel(2, 1225, 0), Some(0), "moved to the parent: no reference left here");
        assert_eq!(kernel(13, 15, 5), Some(10), "two pages and a child account for three references");
        assert_eq!(kernel(100, 15, 5), Some(10));
        let mut found = FoundDead::default();
        found.add(SlotRecord::Dead(dead(2, 1, "p")));
        assert_eq!(found.zombies(&WalkCounts { unified: true, ..v1() }, None).0[0].held.kernel, None);
    }

    #[test]
    fn swap_is_counted_without_children_and_holds_one_reference() {
        let told = |knows_swap| {
            let mut found = FoundDead::default();
            let swapped =
                Dead { file: 0, swap_backed: 0, references: Some(2), kernel_charged: 9, swap: 300, ..dead(2, 1, "p") };
            found.add(SlotRecord::Dead(swapped));
            found.add(SlotRecord::Dead(Dead { swap: 7, ..dead(3, 2, "c") }));
            found.sort();
            assert!(found.suspects().is_empty(), "a dead parent is no suspect");
            let page = rustix::param::page_size() as u64;
            let (zombies, _) = found.zombies(&WalkCounts { knows_swap, ..v1() }, None);
            zombies
                .iter()
                .map(|z| (z.held.swap.map(|s| s / page), z.held.kernel, z.held.total() / page))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(true), [(Some(300), Some(0), 0), (Some(7), Some(0), 2)]);
        assert_eq!(told(false)[0].0, None);
    }

    #[test]
    fn on_v2_a_later_birth_bounds_an_earlier_one() {
        let timing = Timing::for_test(1000, 10_000, coroner_evidence::Time::from_secs(100));
        let births = |unified| {
            let mut found = FoundDead::default();
            for (serial, jiffies) in [(2, 9000), (3, 5000), (4, 8000)] {
                found.add(SlotRecord::Dead(Dead { pressure_jiffies: jiffies, ..dead(serial, 1, "x") }));
            }
            let (zombies, _) = found.zombies(&WalkCounts { unified, ..v1() }, Some(&timing));
            zombies.iter().map(|z| z.born.unwrap()).map(|b| (b.at.0 / 1_000_000_000, b.exact)).collect::<Vec<_>>()
        };
        assert_eq!(births(false), [(99, true), (95, true), (98, true)]);
        assert_eq!(births(true), [(95, false), (95, false), (98, false)]);
    }

    proptest! {
        #[test]
        fn any_told_tree(told in proptest::collection::vec((0u64..20, 0u64..20, any::<[u64; 6]>(), proptest::collection::vec(any::<u8>(), 0..8), any::<bool>()), 0..40)) {
            let mut found = FoundDead::default();
            for (serial, parent, n, name, is_dead) in &told {
                if *is_dead {
                    found.add(SlotRecord::Dead(Dead {
                        references: (n[0] % 3 > 0).then_some(n[0]), file: n[1], swap_backed: n[2], unevictable: n[3],
                        kernel_charged: n[4], pressure_jiffies: n[5], name, ..dead(*serial, *parent, "")
                    }));
                } else {
                    found.add(SlotRecord::Ancestor { serial: *serial, parent: *parent, name });
                }
            }
            found.sort();
            found.suspects();
            found.let_go();
            for zombie in found.zombies(&v1(), Some(&Timing::for_test(250, 1 << 33, coroner_evidence::Time(7)))).0 {
                prop_assert!(zombie.path.starts_with('/') || zombie.path.starts_with("?/"), "{}", zombie.path);
                prop_assert!(zombie.held.total() >= zombie.held.file);
            }
        }
    }
}
