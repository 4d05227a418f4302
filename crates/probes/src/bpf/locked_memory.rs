//! The locked-memory limit, which old kernels apply to maps and programs.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Kernels before 5.11 count maps and programs against RLIMIT_MEMLOCK (64 KiB by default). Drop restores the limit.
pub(super) struct LockedMemory(Option<Rlimit>);

impl LockedMemory {
    pub fn raise_where_it_counts() -> LockedMemory {
        if !counts(rustix::system::uname().release().to_bytes()) {
            return LockedMemory(None);
        }
        let before = getrlimit(Resource::Memlock);
        let raised = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
        LockedMemory(raised.is_ok().then_some(before))
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            let _ = setrlimit(Resource::Memlock, before);
        }
    }
}

/// An unknown version counts as new: the limit stays, and the kernel reports an error if it is too small.
fn counts(release: &[u8]) -> bool {
    let text = String::from_utf8_lossy(release);
    crate::cgroups::parse_release(&text).is_some_and(|version| version < (5, 11))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_kernels_count_it() {
        for (release, counted) in
            [("5.4.0-216-generic", true), ("5.10.223", true), ("5.11.0", false), ("6.18.4-x", false), ("x", false)]
        {
            assert_eq!(counts(release.as_bytes()), counted, "{release}");
        }
    }
}
