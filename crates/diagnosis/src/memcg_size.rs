//! What a memory cgroup takes of the kernel's memory, dead or alive: the structures, not the pages charged to it.
//!
//! No counter tells it. Most of it is statistics, one copy for each core and NUMA node, so that it grows with the node: 17 KB with 2
//! cores, 280 KB with 96 (Linux 5.4). The numbers below are measured: a thousand dead cgroups, each kept by one page of a tmpfs, and
//! what `SUnreclaim` (less the inode of the file) and `Percpu` of /proc/meminfo had grown by. They are an *estimate* for any other kernel;
//! [`MemcgSize::at_most`] holds them against what the node itself admits.
//!
//! | kernel | cgroup | cores | nodes | slab | per-core memory | together |
//! |---|---|---|---|---|---|---|
//! | Ubuntu 5.4 | v1 | 4 | 1 | 10,064 | 10,764 | 20,828 |
//! | Ubuntu 5.4 | v1 | 4 | 2 | 11,309 | 12,828 | 24,137 |
//! | Debian 5.10 | v1 | 4 | 1 | 9,900 | 11,780 | 21,680 |
//! | Debian 5.10 | v1 | 4 | 2 | 11,457 | 14,155 | 25,612 |
//! | Debian 6.1 | v2 | 4 | 1 | 14,912 | 7,897 | 22,809 |
//! | Debian 6.1 | v2 | 4 | 2 | 20,233 | 10,747 | 30,980 |
//! | Debian 6.12 | v2 | 4 | 1 | 13,963 | 7,176 | 21,139 |
//! | Debian 6.12 | v2 | 4 | 2 | 18,288 | 9,240 | 27,528 |
//! | 6.18 | v1 | 2 | 1 | 13,186 | 3,931 | 17,117 |
//!
//! On 6.18 the allocations of one mkdir were traced as well (kmem and percpu tracepoints): slab 9.9 KB and 3.6 KB for each node; for
//! each core 1.6 KB and 528 bytes for each node.

use coroner_evidence::{Evidence, Source};

/// Bytes of one memory cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemcgSize {
    /// In slab caches, mostly kmalloc's.
    pub slab: u64,
    /// Per-core memory, of all cores that are possible.
    pub percpu: u64,
}

/// How the parts grow.
struct Growth {
    slab: u64,
    slab_each_node: u64,
    each_core: u64,
    each_core_and_node: u64,
}

/// Two sets of per-core statistics, with and without descendants (vmstats_local).
const BEFORE_5_13: Growth = Growth { slab: 8_600, slab_each_node: 1_400, each_core: 2_260, each_core_and_node: 555 };
/// From 5.13 one set, summed up by rstat.
const FROM_5_13: Growth = Growth { slab: 9_600, slab_each_node: 4_400, each_core: 1_330, each_core_and_node: 590 };

impl MemcgSize {
    /// An estimate, good to a tenth on the kernels measured. `kernel` is the release (`5.4.0-216-generic`), taken for a new one if
    /// it is not known; `cores` are the possible ones, of which there may be more than run; `nodes` are NUMA nodes: 1, if not
    /// known, makes it too small rather than too large.
    pub fn estimate(kernel: Option<&str>, cores: u32, nodes: u32) -> MemcgSize {
        let old = kernel.and_then(version).is_some_and(|version| version < (5, 13));
        let growth = if old { BEFORE_5_13 } else { FROM_5_13 };
        let (cores, nodes) = (u64::from(cores.max(1)), u64::from(nodes.max(1)));
        MemcgSize {
            slab: growth.slab + growth.slab_each_node * nodes,
            percpu: cores.saturating_mul(growth.each_core + growth.each_core_and_node * nodes),
        }
    }

    /// No more than what the node has of such memory in all (`Percpu`, `SUnreclaim`), shared among the memory cgroups it tracks. With
    /// thousands of them they are nearly all of `Percpu`, so that this is then a measurement from above.
    pub fn at_most(self, evidence: &Evidence, tracked: u64) -> MemcgSize {
        let bound = |estimate: u64, counter: &str| match evidence.counters.last(Source::Meminfo, "", counter) {
            Some(all) => estimate.min(all / tracked.max(1)),
            None => estimate,
        };
        MemcgSize { slab: bound(self.slab, "SUnreclaim"), percpu: bound(self.percpu, "Percpu") }
    }

    pub fn total(self) -> u64 {
        self.slab.saturating_add(self.percpu)
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::Time;

    #[test]
    fn the_estimate_is_within_a_tenth_of_every_measurement() {
        for (kernel, cores, nodes, measured) in [
            ("5.4.0-216-generic", 4, 1, 20_828),
            ("5.4.0-216-generic", 4, 2, 24_137),
            ("5.10.0-32-cloud-amd64", 4, 1, 21_680),
            ("5.10.0-32-cloud-amd64", 4, 2, 25_612),
            ("6.1.0-54-cloud-amd64", 4, 1, 22_809),
            ("6.1.0-54-cloud-amd64", 4, 2, 30_980),
            ("6.12.115+deb12-cloud-amd64", 4, 1, 21_139),
            ("6.12.115+deb12-cloud-amd64", 4, 2, 27_528),
            ("6.18.44", 2, 1, 17_117),
        ] {
            let estimate = MemcgSize::estimate(Some(kernel), cores, nodes).total();
            assert!(
                estimate.abs_diff(measured) * 10 <= measured,
                "{kernel} {cores} {nodes}: {estimate} for {measured}"
            );
        }
    }

    #[test]
    fn a_big_node_pays_more_for_each() {
        let incident = MemcgSize::estimate(Some("5.4.0-1103-aws"), 96, 1);
        assert!((250_000..350_000).contains(&incident.total()), "{incident:?}");
        assert_eq!(MemcgSize::estimate(None, 4, 1), MemcgSize::estimate(Some("6.18.0"), 4, 1));
        assert_eq!(MemcgSize::estimate(Some("?"), 0, 0), MemcgSize::estimate(None, 1, 1));
        let huge = MemcgSize::estimate(Some("99999999999.1"), u32::MAX, u32::MAX);
        assert!(huge.total() > huge.slab);
    }

    #[test]
    fn what_the_node_has_not_is_not_claimed() {
        let mut evidence = Evidence::default();
        let estimate = MemcgSize::estimate(Some("6.18.44"), 192, 2);
        assert_eq!(estimate.at_most(&evidence, 5_000), estimate, "nothing was seen");
        evidence.counters.push(Source::Meminfo, "", "Percpu", Time(1), 5_000 * 4_000);
        evidence.counters.push(Source::Meminfo, "", "SUnreclaim", Time(1), 1 << 40);
        assert_eq!(estimate.at_most(&evidence, 5_000), MemcgSize { percpu: 4_000, ..estimate });
        assert_eq!(estimate.at_most(&evidence, 0).slab, estimate.slab);
    }
}
