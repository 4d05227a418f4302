//! How much kernel memory a memory cgroup takes, dead or alive: its structures, not the pages charged to it.
//!
//! No counter shows it. Most of it is statistics, one copy per core and NUMA node, so it grows with the node: 17 KB with 2 cores,
//! 280 KB with 96 (Linux 5.4). The numbers below are measured: a thousand dead cgroups, each kept by one page in tmpfs, and by how much
//! `SUnreclaim` (less the file's inode) and `Percpu` in /proc/meminfo grew. For any other kernel they are an *estimate*;
//! [`MemcgSize::at_most`] limits it to what the node itself reports.
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
//! On 6.18 the allocations of one mkdir were traced too (kmem and percpu tracepoints): slab 9.9 KB plus 3.6 KB per node; per core
//! 1.6 KB plus 528 bytes per node.

use coroner_evidence::{Evidence, Source};

/// Bytes of one memory cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemcgSize {
    /// In slab caches, mostly kmalloc's.
    pub slab: u64,
    /// Per-core memory, for all possible cores.
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
    /// An estimate, within a tenth on the kernels measured. `kernel` is the release (`5.4.0-216-generic`), assumed new if unknown;
    /// `cores` are the possible ones, which may be more than are online; `nodes` are NUMA nodes: if unknown, pass 1, which makes
    /// the estimate too small rather than too large.
    pub fn estimate(kernel: Option<&str>, cores: u32, nodes: u32) -> MemcgSize {
        let old = kernel.and_then(version).is_some_and(|version| version < (5, 13));
        let growth = if old { BEFORE_5_13 } else { FROM_5_13 };
        let (cores, nodes) = (u64::from(cores.max(1)), u64::from(nodes.max(1)));
        MemcgSize {
            slab: growth.slab + growth.slab_each_node * nodes,
            percpu: cores.saturating_mul(growth.each_core + growth.each_core_and_node * nodes),
        }
    }

    /// Capped at what the node has of such memory in total (`Percpu`, `SUnreclaim`), divided by the memory cgroups it tracks. With
    /// thousands of them they are nearly all of `Percpu`, which makes this a measured upper bound.
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
    fn a_cgroup_costs_more_on_a_big_node() {
        let incident = MemcgSize::estimate(Some("5.4.0-1103-aws"), 96, 1);
        assert!((250_000..350_000).contains(&incident.total()), "{incident:?}");
        assert_eq!(MemcgSize::estimate(None, 4, 1), MemcgSize::estimate(Some("6.18.0"), 4, 1));
        assert_eq!(MemcgSize::estimate(Some("?"), 0, 0), MemcgSize::estimate(None, 1, 1));
        let huge = MemcgSize::estimate(Some("99999999999.1"), u32::MAX, u32::MAX);
        assert!(huge.total() > huge.slab);
    }

    #[test]
    fn the_estimate_never_exceeds_what_the_node_has() {
        let mut evidence = Evidence::default();
        let estimate = MemcgSize::estimate(Some("6.18.44"), 192, 2);
        assert_eq!(estimate.at_most(&evidence, 5_000), estimate, "nothing was seen");
        evidence.counters.push(Source::Meminfo, "", "Percpu", Time(1), 5_000 * 4_000);
        evidence.counters.push(Source::Meminfo, "", "SUnreclaim", Time(1), 1 << 40);
        assert_eq!(estimate.at_most(&evidence, 5_000), MemcgSize { percpu: 4_000, ..estimate });
        assert_eq!(estimate.at_most(&evidence, 0).slab, estimate.slab);
    }
}
