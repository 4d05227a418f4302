//! Why the kernel may not be sampled, worded for [`coroner_evidence::Evidence::unseen`].

use std::io;

use crate::Root;

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;

/// perf_event_open or mapping its ring failed: why, and what to do.
pub(crate) fn explain(root: &Root, error: &io::Error) -> (String, &'static str) {
    const PRIVILEGES: &str = "run as root, or with CAP_PERFMON and CAP_SYSLOG (CAP_SYS_ADMIN before Linux 5.8); in a container: --privileged";
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            let locked = root.read_line("/sys/kernel/security/lockdown");
            if locked.is_some_and(|modes| modes.contains("[confidentiality]")) {
                let why = "kernel lockdown is in confidentiality mode: sampling is not allowed";
                return (why.to_owned(), "boot with lockdown=integrity, or without lockdown");
            }
            let status = root.read("/proc/thread-self/status").or_else(|_| root.read("/proc/self/status"));
            if may_sample(status.as_deref().unwrap_or_default()) {
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

/// By the effective capabilities of /proc/PID/status.
fn may_sample(status: &str) -> bool {
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    effective.is_some_and(|set| set >> CAP_SYS_ADMIN & 1 == 1 || set >> CAP_PERFMON & 1 == 1)
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
}
