//! Why the kernel's work cannot be sampled, worded for [`Evidence::unseen`].

use coroner_evidence::{Evidence, probe};

use super::symbols::NoSymbols;
use crate::Root;
use crate::perf::blind::Sampled;

pub(super) const SAMPLED: Sampled =
    Sampled { probe: probe::KERNEL_SAMPLES, what: "what the kernel spends its time on (stack samples)" };

pub(super) fn no_symbols(root: &Root, error: &NoSymbols, evidence: &mut Evidence) {
    let (why, how_to_see) = match error {
        NoSymbols::Hidden => {
            let restrict = root.read_line("/proc/sys/kernel/kptr_restrict");
            let setting = restrict.map(|value| format!(" (kernel.kptr_restrict is {value})")).unwrap_or_default();
            let how = "run as root with CAP_SYSLOG (in a container: --privileged), with kernel.kptr_restrict below 2";
            (format!("{error}{setting}"), how)
        }
        NoSymbols::Unreadable(_) => {
            (error.to_string(), "run as root with the full /proc mounted, on a kernel built with CONFIG_KALLSYMS")
        }
    };
    evidence.unseen(SAMPLED.probe, SAMPLED.what, why, how_to_see);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tree::tree;

    #[test]
    fn hidden_addresses_name_the_setting() {
        let dir = tree(&[("proc/sys/kernel/kptr_restrict", "1\n")]);
        let mut evidence = Evidence::default();
        no_symbols(&Root::at(dir.path()), &NoSymbols::Hidden, &mut evidence);
        assert_eq!(evidence.unseen[0].probe, probe::KERNEL_SAMPLES);
        assert!(evidence.unseen[0].why.contains("kernel.kptr_restrict is 1"), "{:?}", evidence.unseen);
    }
}
