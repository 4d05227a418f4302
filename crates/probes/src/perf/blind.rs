//! Why the kernel may not be sampled, worded for [`coroner_evidence::Evidence::unseen`].

use std::io;

use coroner_evidence::Evidence;

use super::cores::Refused;
use crate::Root;
use crate::bpf::{CAP_PERFMON, CAP_SYS_ADMIN, effective_capabilities, is_confidential};

/// What is sampled, worded for [`Evidence::unseen`].
pub(crate) struct Sampled {
    pub probe: &'static str,
    pub what: &'static str,
}

impl Sampled {
    pub fn not_live(&self, evidence: &mut Evidence) {
        let why = "this is a directory tree, not the running node";
        evidence.unseen(self.probe, self.what, why, "run on the node itself");
    }

    pub fn no_cores(&self, why: &str, evidence: &mut Evidence) {
        evidence.unseen(self.probe, self.what, why, "run where /sys is mounted");
    }

    /// perf_event_open or mapping its ring failed.
    pub fn refused(&self, root: &Root, refused: &Refused, evidence: &mut Evidence) {
        let Refused { error, blind, cores } = refused;
        let of_cores = if blind < cores { format!(", on {blind} of {cores} cores") } else { String::new() };
        let (why, how_to_see) = explain(root, error);
        evidence.unseen(self.probe, format!("{}{of_cores}", self.what), why, how_to_see);
    }
}

/// perf_event_open or mapping its ring failed: why, and what to do.
fn explain(root: &Root, error: &io::Error) -> (String, &'static str) {
    const PRIVILEGES: &str = "run as root, or with CAP_PERFMON and CAP_SYSLOG (CAP_SYS_ADMIN before Linux 5.8); in a container: --privileged";
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            if is_confidential(root) {
                let why = "kernel lockdown is in confidentiality mode: sampling is not allowed";
                return (why.to_owned(), "boot with lockdown=integrity, or without lockdown");
            }
            let may_sample = |set: u64| set >> CAP_SYS_ADMIN & 1 == 1 || set >> CAP_PERFMON & 1 == 1;
            if effective_capabilities(root).is_some_and(may_sample) {
                let why = format!(
                    "perf_event_open: {error}; the process has the capabilities, so seccomp or a security module forbids it"
                );
                return (why, "run outside the container, or allow perf_event_open in its seccomp profile");
            }
            let paranoid = root.read_line("/proc/sys/kernel/perf_event_paranoid");
            let setting =
                paranoid.map(|value| format!(", and kernel.perf_event_paranoid is {value}")).unwrap_or_default();
            (format!("perf_event_open: {error}: this process lacks CAP_PERFMON{setting}"), PRIVILEGES)
        }
        Some(libc::EMFILE | libc::ENFILE) => (
            format!("perf_event_open: {error}: it needs one file descriptor per core"),
            "raise the open files limit (ulimit -n)",
        ),
        Some(libc::ENOSYS | libc::ENOENT | libc::EOPNOTSUPP) => {
            (format!("perf_event_open: {error}"), "use a kernel built with CONFIG_PERF_EVENTS")
        }
        _ => (format!("perf_event_open: {error}"), PRIVILEGES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tree::tree;

    #[test]
    fn a_refusal_names_its_cause() {
        let why = |files: &[(&str, &str)], errno| {
            let dir = tree(files);
            explain(&Root::at(dir.path()), &io::Error::from_raw_os_error(errno)).0
        };
        let poor = ("proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n");
        let rich = ("proc/self/status", "CapEff:\t000001ffffffffff\n");
        let paranoid = ("proc/sys/kernel/perf_event_paranoid", "4\n");
        let locked = ("sys/kernel/security/lockdown", "none integrity [confidentiality]\n");
        assert!(
            why(&[poor, paranoid], libc::EACCES).contains("lacks CAP_PERFMON, and kernel.perf_event_paranoid is 4")
        );
        assert!(why(&[rich, paranoid], libc::EPERM).contains("seccomp"));
        assert!(why(&[rich, locked], libc::EPERM).contains("lockdown"));
        assert!(why(&[], libc::EMFILE).contains("one file descriptor per core"));
    }

    #[test]
    fn cores_that_cannot_be_sampled_are_counted() {
        let mut evidence = Evidence::default();
        let error = io::Error::from_raw_os_error(libc::EMFILE);
        let sampled = Sampled { probe: "samples", what: "stacks" };
        sampled.refused(&Root::live(), &Refused { error, blind: 3, cores: 192 }, &mut evidence);
        assert_eq!(evidence.unseen[0].what, "stacks, on 3 of 192 cores");
    }
}
