//! Names of the kernel's functions at the addresses that were seen. /proc/kallsyms has 100,000 lines and more, and printing them takes the
//! kernel 50 ms: it is read once for a batch of samples.

use std::fs::File;
use std::io::{self, BufReader, Read};

use coroner_evidence::kallsyms::Kallsyms;

use crate::Root;

const KALLSYMS: &str = "/proc/kallsyms";

#[derive(Debug, thiserror::Error)]
pub(super) enum NoSymbols {
    #[error("{KALLSYMS}: {0}")]
    Unreadable(#[from] io::Error),
    #[error("{KALLSYMS} hides the kernel's addresses")]
    Hidden,
}

/// Whether there will be symbols, by the first of them.
pub(super) fn can_be_read(root: &Root) -> Result<(), NoSymbols> {
    // Some kernels begin with what lies at 0 in each core's own memory.
    const FIRST: u64 = 4096;
    let first = BufReader::new(File::open(root.path(KALLSYMS))?.take(FIRST));
    Kallsyms::covering(first, &[])?.map(drop).ok_or(NoSymbols::Hidden)
}

/// Of these sorted addresses.
pub(super) fn read(root: &Root, addresses: &[u64]) -> Result<Kallsyms, NoSymbols> {
    let list = BufReader::with_capacity(64 << 10, File::open(root.path(KALLSYMS))?);
    // Somebody may have hidden them since the beginning.
    Kallsyms::covering(list, addresses)?.ok_or(NoSymbols::Hidden)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use coroner_evidence::WorkKind;
    use coroner_evidence::kernel_work::StackMeaning;

    pub const TEXT: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000100 t shrink_node
ffffffff81000300 t memcg_stat_show.constprop.0
ffffffff81000380 T mem_cgroup_iter
ffffffff81000400 T shrink_folio_list
ffffffff81000500 T do_idle
ffffffff81000600 T asm_sysvec_apic_timer_interrupt
ffffffff81000700 T something_else
";

    #[test]
    fn this_kernel_has_the_functions_that_matter() {
        if let Err(error) = can_be_read(&Root::live()) {
            return coroner_lab::skip(&error.to_string());
        }
        let kernel = Kallsyms::parse(std::fs::read(KALLSYMS).unwrap()).expect("addresses are shown");
        // As a stack of one function: each name must be the one that its address is told by.
        let within = |name: &str| {
            let found = kernel.address_of(name).and_then(|address| kernel.find(address));
            found.map(|symbol| StackMeaning::default().calls(symbol.meaning()))
        };
        let work = |name| within(name).and_then(|stack| stack.work(false));
        assert_eq!(work("mem_cgroup_iter"), Some(WorkKind::StatsWalk));
        assert_eq!(work("try_to_free_pages"), Some(WorkKind::Reclaim));
        assert_eq!(work("handle_mm_fault"), Some(WorkKind::PageFault));
        assert_eq!(work("kernfs_fop_read_iter"), Some(WorkKind::Kernfs));
        assert_eq!(work("handle_irq_event"), Some(WorkKind::Interrupt));
        assert!(within("do_idle").is_some_and(|stack| stack.is_idle(true)));
    }
}
