//! Why the kernel's work cannot be sampled, worded for [`Evidence::unseen`].

use coroner_evidence::{Evidence, probe};

use super::symbols::NoSymbols;
use crate::Root;
use crate::perf::blind::explain;
use crate::perf::cores::Refused;

const WHAT: &str = "what the kernel spends its time on (stack samples)";

pub(super) fn not_live(evidence: &mut Evidence) {
    evidence.unseen(
        probe::KERNEL_SAMPLES,
        WHAT,
        "this is a directory tree, not the running node",
        "run on the node itself",
    );
}

pub(super) fn no_cores(why: &str, evidence: &mut Evidence) {
    evidence.unseen(probe::KERNEL_SAMPLES, WHAT, why, "run where /sys is mounted");
}

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
    evidence.unseen(probe::KERNEL_SAMPLES, WHAT, why, how_to_see);
}

/// perf_event_open or mapping its ring failed.
pub(super) fn refused(root: &Root, refused: &Refused, evidence: &mut Evidence) {
    let Refused { error, blind, cores } = refused;
    let what = if blind < cores { format!("{WHAT}, on {blind} of {cores} cores") } else { WHAT.to_owned() };
    let (why, how_to_see) = explain(root, error);
    evidence.unseen(probe::KERNEL_SAMPLES, what, why, how_to_see);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tree::tree;

    #[test]
    fn cores_that_cannot_be_sampled_are_counted() {
        let mut evidence = Evidence::default();
        let error = std::io::Error::from_raw_os_error(libc::EMFILE);
        refused(&Root::live(), &Refused { error, blind: 3, cores: 192 }, &mut evidence);
        assert!(evidence.unseen[0].what.ends_with("on 3 of 192 cores"), "{:?}", evidence.unseen);
    }

    #[test]
    fn hidden_addresses_name_the_setting() {
        let dir = tree(&[("proc/sys/kernel/kptr_restrict", "1\n")]);
        let mut evidence = Evidence::default();
        no_symbols(&Root::at(dir.path()), &NoSymbols::Hidden, &mut evidence);
        assert_eq!(evidence.unseen[0].probe, probe::KERNEL_SAMPLES);
        assert!(evidence.unseen[0].why.contains("kernel.kptr_restrict is 1"), "{:?}", evidence.unseen);
    }
}
