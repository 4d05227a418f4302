//! Why our BPF programs cannot run here, worded for [`Evidence::unseen`].

use std::error::Error;
use std::io;

use coroner_evidence::Evidence;

use super::object::Failure;
use crate::Root;
use crate::cgroups::parse_release;

/// Why our BPF programs cannot run here, and what would help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Blind {
    pub reason: Reason,
    pub why: String,
    pub how_to_see: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The root is a directory tree, not the running node.
    NotLive,
    /// Turned off by the user.
    Unwanted,
    Capability,
    Lockdown,
    /// Something else forbids it: seccomp, a security module.
    Forbidden,
    Btf,
    /// The kernel lacks what the programs need.
    Kernel,
    /// No memory controller.
    NoMemoryController,
}

impl Blind {
    pub fn new(reason: Reason, why: impl Into<String>, how_to_see: impl Into<String>) -> Blind {
        Blind { reason, why: why.into(), how_to_see: how_to_see.into() }
    }

    pub fn note_as(&self, evidence: &mut Evidence, probe: &str, what: &str) {
        evidence.unseen(probe, what, self.why.clone(), self.how_to_see.clone());
    }
}

pub(crate) const CAP_SYS_ADMIN: u32 = 21;
pub(crate) const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Whether this process may load BPF programs that read kernel memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Effective capabilities; `None` if /proc does not say.
    capabilities: Option<u64>,
    /// Linux version, major and minor.
    version: Option<(u32, u32)>,
    confidential: bool,
}

impl Standing {
    /// The reason if they may not run here.
    pub fn check(root: &Root) -> Result<Standing, Blind> {
        if !root.is_live() {
            return Err(Blind::new(
                Reason::NotLive,
                "this is a directory tree, not the running node",
                "run on the node itself",
            ));
        }
        if !cfg!(all(target_endian = "little", target_pointer_width = "64")) {
            return Err(Blind::new(
                Reason::Kernel,
                "the BPF programs are built for 64-bit little-endian machines only",
                "use an x86-64 or arm64 node",
            ));
        }
        let standing = Standing::read(root);
        standing.forbids().map_or(Ok(standing), Err)
    }

    fn read(root: &Root) -> Standing {
        Standing {
            capabilities: effective_capabilities(root),
            version: root.read_line("/proc/sys/kernel/osrelease").and_then(|text| parse_release(&text)),
            confidential: is_confidential(root),
        }
    }

    fn is_before(&self, major: u32, minor: u32) -> bool {
        self.version.is_some_and(|v| v < (major, minor))
    }

    fn has(&self, capability: u32) -> bool {
        self.capabilities.is_none_or(|set| set >> capability & 1 == 1)
    }

    /// What is known to forbid it, without trying.
    fn forbids(&self) -> Option<Blind> {
        if self.confidential {
            return Some(Blind::new(
                Reason::Lockdown,
                "kernel lockdown is in confidentiality mode: BPF programs may not read kernel memory",
                "boot with lockdown=integrity, or without lockdown",
            ));
        }
        if self.has(CAP_SYS_ADMIN) || (!self.is_before(5, 8) && self.has(CAP_BPF) && self.has(CAP_PERFMON)) {
            return None;
        }
        if self.is_before(5, 8) {
            return Some(Blind::new(
                Reason::Capability,
                "this process lacks CAP_SYS_ADMIN, which BPF needs before Linux 5.8",
                "run as root (in a container: --privileged)",
            ));
        }
        let lacks = match (self.has(CAP_BPF), self.has(CAP_PERFMON)) {
            (false, false) => "CAP_BPF and CAP_PERFMON",
            (false, true) => "CAP_BPF",
            _ => "CAP_PERFMON",
        };
        Some(Blind::new(
            Reason::Capability,
            format!("this process lacks {lacks}, needed to read kernel memory with BPF"),
            "run as root, or with CAP_BPF and CAP_PERFMON (in a container: --privileged)",
        ))
    }

    /// Why `what` failed although nothing known forbids it.
    pub fn explain(&self, what: &str, error: &(dyn Error + 'static)) -> Blind {
        let words = in_words(error);
        match errno(error) {
            Some(libc::EPERM | libc::EACCES) if !was_refused_by_verifier(error) => Blind::new(
                Reason::Forbidden,
                format!(
                    "{what}: {words}; the process has the capabilities, so seccomp or a security module forbids it"
                ),
                "run outside the container, or allow bpf and perf_event_open in its seccomp profile",
            ),
            _ => Blind::new(
                Reason::Kernel,
                format!("{what}: {words}{}", self.age()),
                "use Linux 5.4 or later, built with BPF and BTF",
            ),
        }
    }

    pub fn no_btf(&self, error: &(dyn Error + 'static)) -> Blind {
        if matches!(errno(error), Some(libc::EPERM | libc::EACCES)) {
            let why = format!("cannot read /sys/kernel/btf/vmlinux: {}", in_words(error));
            return Blind::new(Reason::Forbidden, why, "run as root");
        }
        Blind::new(
            Reason::Btf,
            format!("no kernel type information (/sys/kernel/btf/vmlinux: {}){}", in_words(error), self.age()),
            "use Linux 5.4 or later, built with CONFIG_DEBUG_INFO_BTF; in a container, mount the host's /sys",
        )
    }

    fn age(&self) -> String {
        match self.version {
            Some((major, minor)) if (major, minor) < (5, 4) => format!("; Linux {major}.{minor} is too old"),
            _ => String::new(),
        }
    }
}

/// Whether kernel lockdown keeps kernel memory confidential.
pub(crate) fn is_confidential(root: &Root) -> bool {
    root.read_line("/sys/kernel/security/lockdown").is_some_and(|modes| modes.contains("[confidentiality]"))
}

pub(crate) fn effective_capabilities(root: &Root) -> Option<u64> {
    let status = root.read("/proc/thread-self/status").or_else(|_| root.read("/proc/self/status"));
    effective(&status.ok()?)
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn chain<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// The errno at the bottom of an error chain, if a system call failed.
fn errno(error: &(dyn Error + 'static)) -> Option<i32> {
    chain(error).find_map(|e| e.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error)
}

/// The whole error chain on one line, outermost first.
fn in_words(error: &(dyn Error + 'static)) -> String {
    let mut words: Vec<String> = Vec::new();
    for error in chain(error) {
        let text: String = error.to_string().lines().next().unwrap_or_default().chars().take(600).collect();
        // Transparent errors repeat their source.
        if !words.iter().any(|said| said.ends_with(&text)) {
            words.push(text);
        }
    }
    words.join(": ")
}

/// The verifier returns EACCES for a program it rejects; that is not a missing permission.
fn was_refused_by_verifier(error: &(dyn Error + 'static)) -> bool {
    let has_words = |e: &(dyn Error + 'static)| matches!(e.downcast_ref(), Some(Failure::Program { words, .. }) if !words.is_empty());
    chain(error).any(has_words) && errno(error) == Some(libc::EACCES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: u64 = (1 << 41) - 1;

    fn standing(capabilities: u64, version: (u32, u32)) -> Standing {
        Standing { capabilities: Some(capabilities), version: Some(version), confidential: false }
    }

    fn why(standing: Standing) -> Option<(Reason, String)> {
        standing.forbids().map(|b| (b.reason, b.why))
    }

    #[test]
    fn the_missing_capability_is_named() {
        assert_eq!(why(standing(ALL, (6, 18))), None);
        assert_eq!(why(standing(1 << CAP_SYS_ADMIN, (5, 4))), None);
        assert_eq!(why(standing(1 << CAP_BPF | 1 << CAP_PERFMON, (5, 8))), None);
        let lacks = |capabilities, version| why(standing(capabilities, version)).expect("forbidden").1;
        assert!(lacks(0, (6, 1)).contains("CAP_BPF and CAP_PERFMON"));
        assert!(lacks(1 << CAP_PERFMON, (6, 1)).contains("lacks CAP_BPF,"));
        assert!(lacks(1 << CAP_BPF, (6, 1)).contains("lacks CAP_PERFMON,"));
        assert!(lacks(1 << CAP_BPF | 1 << CAP_PERFMON, (5, 4)).contains("CAP_SYS_ADMIN"));
    }

    #[test]
    fn lockdown_comes_before_capabilities() {
        let dir = tempfile::tempdir().unwrap();
        let security = dir.path().join("sys/kernel/security");
        std::fs::create_dir_all(&security).unwrap();
        let read = |mode: &str| {
            std::fs::write(security.join("lockdown"), mode).unwrap();
            why(Standing::read(&Root::at(dir.path())))
        };
        assert_eq!(read("none integrity [confidentiality]\n").map(|w| w.0), Some(Reason::Lockdown));
        assert_eq!(read("none [integrity] confidentiality\n"), None, "unknown capabilities forbid nothing");
    }

    #[test]
    fn eperm_without_a_known_cause_blames_seccomp() {
        let denied = aya::maps::MapError::CreateError {
            name: "OUT".into(),
            io_error: io::Error::from_raw_os_error(libc::EPERM),
        };
        let blind = standing(ALL, (6, 1)).explain("cannot make BPF maps", &denied);
        assert_eq!(blind.reason, Reason::Forbidden);
        let old = standing(ALL, (4, 14)).explain("cannot load", &io::Error::from_raw_os_error(libc::EINVAL));
        assert_eq!(old.reason, Reason::Kernel);
        assert!(old.why.contains("Linux 4.14 is too old"), "{}", old.why);
        let missing = standing(ALL, (4, 14)).no_btf(&io::Error::from_raw_os_error(libc::ENOENT));
        assert_eq!(missing.reason, Reason::Btf);
    }

    #[test]
    fn a_program_rejected_by_the_verifier_is_not_a_missing_permission() {
        let refused = |words: &str| Failure::Program {
            name: "walk".into(),
            words: words.into(),
            error: io::Error::from_raw_os_error(libc::EACCES),
        };
        let blind = standing(ALL, (6, 1)).explain("cannot load", &refused("R1 invalid mem access 'scalar'"));
        assert_eq!(blind.reason, Reason::Kernel);
        assert!(blind.why.contains("BPF program walk rejected (R1 invalid mem access 'scalar')"), "{}", blind.why);
        assert_eq!(standing(ALL, (6, 1)).explain("cannot load", &refused("")).reason, Reason::Forbidden);
    }

    proptest! {
        #[test]
        fn any_status_and_release(text in "(CapEff:\\s*[0-9a-fx]{0,20}\n|.{0,20}\n){0,5}") {
            effective(&text);
            parse_release(&text);
        }
    }
}
