//! Why the kernel's work cannot be sampled, in words for [`Evidence::unseen`].

use std::io;

use coroner_evidence::{Evidence, probe};

use super::symbols::NoSymbols;
use crate::Root;

const WHAT: &str = "how much of the kernel's work goes into memory cgroups and reclaim";

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;

pub(super) fn not_live(evidence: &mut Evidence) {
    evidence.unseen(
        probe::KERNEL_SAMPLES,
        WHAT,
        "a directory is examined, not the node we run on",
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
            let how =
                "run as root with CAP_SYSLOG (in a container: --privileged); with kernel.kptr_restrict=2 not even then";
            (format!("{error}{setting}"), how)
        }
        NoSymbols::Unreadable(_) => (error.to_string(), "run as root, where /proc is mounted and whole"),
        NoSymbols::Foreign => (error.to_string(), "a kernel that is built with CONFIG_MEMCG and CONFIG_KALLSYMS"),
    };
    evidence.unseen(probe::KERNEL_SAMPLES, WHAT, why, how_to_see);
}

/// perf_event_open or the mapping of its ring failed on `blind` of `cores` cores.
pub(super) fn refused(root: &Root, error: &io::Error, blind: usize, cores: usize, evidence: &mut Evidence) {
    let what = if blind < cores { format!("{WHAT}, on {blind} of {cores} cores") } else { WHAT.to_owned() };
    let (why, how_to_see) = explain(root, error);
    evidence.unseen(probe::KERNEL_SAMPLES, what, why, how_to_see);
}

fn explain(root: &Root, error: &io::Error) -> (String, &'static str) {
    const PRIVILEGES: &str = "run as root, or with CAP_PERFMON and CAP_SYSLOG (before Linux 5.8 CAP_SYS_ADMIN); in a container: --privileged";
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            let locked = root.read_line("/sys/kernel/security/lockdown");
            if locked.is_some_and(|modes| modes.contains("[confidentiality]")) {
                let why = "the kernel is locked down (confidentiality), so that it may not be sampled";
                return (why.to_owned(), "boot with lockdown=integrity or none");
            }
            let status = root.read("/proc/thread-self/status").or_else(|_| root.read("/proc/self/status"));
            if may_sample(status.as_deref().unwrap_or_default()) {
                let why = format!(
                    "perf_event_open: {error}, although the capabilities are there: seccomp or a security module forbids it"
                );
                return (why, "run outside the container, or let its seccomp profile allow perf_event_open");
            }
            let paranoid = root.read_line("/proc/sys/kernel/perf_event_paranoid");
            let setting =
                paranoid.map(|value| format!(", and kernel.perf_event_paranoid is {value}")).unwrap_or_default();
            (format!("perf_event_open: {error}: this process lacks CAP_PERFMON{setting}"), PRIVILEGES)
        }
        Some(libc::EMFILE | libc::ENFILE) => (
            format!("perf_event_open: {error}: one file for each core is needed"),
            "raise the limit of open files (ulimit -n)",
        ),
        Some(libc::ENOSYS | libc::ENOENT | libc::EOPNOTSUPP) => {
            (format!("perf_event_open: {error}"), "a kernel that is built with CONFIG_PERF_EVENTS")
        }
        _ => (format!("perf_event_open: {error}"), PRIVILEGES),
    }
}

/// By the effective capabilities of /proc/PID/status.
fn may_sample(status: &str) -> bool {
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    effective.is_some_and(|set| set >> CAP_SYS_ADMIN & 1 == 1 || set >> CAP_PERFMON & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

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
        assert!(why(&[rich, locked], libc::EPERM).contains("locked down"));
        assert!(why(&[], libc::EMFILE).contains("one file for each core"));
    }

    #[test]
    fn only_some_cores_are_blind() {
        let mut evidence = Evidence::default();
        refused(&Root::live(), &io::Error::from_raw_os_error(libc::EMFILE), 3, 192, &mut evidence);
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
