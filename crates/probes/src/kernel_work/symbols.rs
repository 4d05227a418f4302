//! Names of kernel functions at sampled addresses. /proc/kallsyms has over 100,000 lines and takes the kernel 50 ms to print, so
//! it is read once per batch of samples.

use std::fs::File;
use std::io::{self, BufReader, Read};

use coroner_evidence::kallsyms::Kallsyms;

use crate::Root;

const KALLSYMS: &str = "/proc/kallsyms";

#[derive(Debug, thiserror::Error)]
pub(crate) enum NoSymbols {
    #[error("{KALLSYMS}: {0}")]
    Unreadable(#[from] io::Error),
    #[error("{KALLSYMS} hides the kernel's addresses")]
    Hidden,
}

/// Checks by the first symbols whether they can be read.
pub(super) fn can_be_read(root: &Root) -> Result<(), NoSymbols> {
    // More than one line: some kernels list per-CPU symbols at address 0 first.
    const FIRST: u64 = 4096;
    let first = BufReader::new(File::open(root.path(KALLSYMS))?.take(FIRST));
    Kallsyms::covering(first, &[])?.map(drop).ok_or(NoSymbols::Hidden)
}

/// Symbols for these sorted addresses.
pub(crate) fn read(root: &Root, addresses: &[u64]) -> Result<Kallsyms, NoSymbols> {
    let list = BufReader::with_capacity(64 << 10, File::open(root.path(KALLSYMS))?);
    // They may have been hidden since the start.
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
        // A stack of one function: looking up its address must give this name.
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
