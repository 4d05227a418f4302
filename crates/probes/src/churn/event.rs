//! One cgroup created, removed or freed, and by whom.

use coroner_evidence::Time;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EventKind {
    Made,
    Removed,
    /// Freed by the kernel after the last reference was dropped.
    Freed,
}

impl EventKind {
    pub const ALL: [EventKind; 3] = [EventKind::Made, EventKind::Removed, EventKind::Freed];
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub pid: u32,
    /// Start time, if known.
    pub began: Option<Time>,
    pub comm: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub at: Time,
    pub kind: EventKind,
    /// The cgroup's id.
    pub id: u64,
    pub path: String,
    /// The acting process, then its known ancestors, up to pid 1. Empty if unknown.
    pub chain: Vec<Process>,
}

impl Event {
    pub fn parent_and_name(&self) -> (&str, &str) {
        match self.path.rsplit_once('/') {
            Some(("", name)) => ("/", name),
            Some((parent, name)) => (parent, name),
            None => ("/", &self.path),
        }
    }
}

/// struct event of bpf/churn.bpf.c.
pub(super) const EVENT_BYTES: usize = 512;
const CHAIN_AT: usize = 24;
const CHAIN: usize = 4;
const PROCESS_BYTES: usize = 32;
const PATH_AT: usize = CHAIN_AT + CHAIN * PROCESS_BYTES;
const PATH_BYTES: usize = EVENT_BYTES - PATH_AT;

/// Parses an event from the BPF programs; `None` if it is of unknown kind.
pub(super) fn parse(bytes: &[u8; EVENT_BYTES]) -> Option<Event> {
    let kind = match word(bytes, 16) {
        1 => EventKind::Made,
        2 => EventKind::Removed,
        3 => EventKind::Freed,
        _ => return None,
    };
    let mut chain = Vec::new();
    if kind != EventKind::Freed {
        for at in (CHAIN_AT..PATH_AT).step_by(PROCESS_BYTES) {
            let pid = word(bytes, at + 8);
            // The end of the chain.
            if pid == 0 || pid > i32::MAX as u32 {
                break;
            }
            let began = Some(Time(long(bytes, at)));
            chain.push(Process { pid, began, comm: text_until_nul(&bytes[at + 16..at + PROCESS_BYTES]) });
        }
    }
    let length = word(bytes, 20) as usize;
    let path = &bytes[PATH_AT..];
    let path = match path.get(..length) {
        Some(whole) => String::from_utf8_lossy(whole).into_owned(),
        // Too long: only its beginning and end were kept.
        None => {
            let (head, tail) = path.split_at(PATH_BYTES / 2);
            format!("{}…{}", String::from_utf8_lossy(head), String::from_utf8_lossy(tail))
        }
    };
    Some(Event { at: Time(long(bytes, 0)), kind, id: long(bytes, 8), path, chain })
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

pub(crate) fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

pub(crate) fn text_until_nul(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(kind: u32, length: u32, path: &[u8]) -> [u8; EVENT_BYTES] {
        let mut bytes = [0; EVENT_BYTES];
        bytes[8] = 7;
        bytes[16..20].copy_from_slice(&kind.to_ne_bytes());
        bytes[20..24].copy_from_slice(&length.to_ne_bytes());
        for (i, (pid, comm)) in [(500u32, "mkdir"), (400, "bash"), (1, "systemd")].into_iter().enumerate() {
            let at = CHAIN_AT + i * PROCESS_BYTES;
            bytes[at] = 9;
            bytes[at + 8..at + 12].copy_from_slice(&pid.to_ne_bytes());
            bytes[at + 16..at + 16 + comm.len()].copy_from_slice(comm.as_bytes());
        }
        bytes[PATH_AT..PATH_AT + path.len()].copy_from_slice(path);
        bytes
    }

    #[test]
    fn an_event_is_read_with_who_did_it() {
        let event = parse(&bytes(1, 12, b"/jobs/job-17rest of an older path")).unwrap();
        assert_eq!((event.kind, event.id, event.path.as_str()), (EventKind::Made, 7, "/jobs/job-17"));
        assert_eq!(event.parent_and_name(), ("/jobs", "job-17"));
        let chain: Vec<_> = event.chain.iter().map(|p| (p.pid, p.comm.as_str())).collect();
        assert_eq!(chain, [(500, "mkdir"), (400, "bash"), (1, "systemd")]);
        assert_eq!(event.chain[0].began, Some(Time(9)));
        assert_eq!(parse(&bytes(3, 3, b"/ab")).unwrap().chain, [], "the kernel frees on its own");
        assert_eq!(parse(&bytes(3, 3, b"/ab")).unwrap().parent_and_name(), ("/", "ab"));
    }

    #[test]
    fn a_long_path_keeps_both_ends() {
        let path: Vec<u8> = std::iter::repeat_n(b'a', PATH_BYTES - 6).chain(*b"/name7").collect();
        let event = parse(&bytes(2, 1000, &path)).unwrap();
        assert_eq!(event.parent_and_name().1, "name7");
        assert!(event.path.contains("a…a"), "{}", event.path);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), EVENT_BYTES), kind in 0u32..5) {
            let mut bytes: [u8; EVENT_BYTES] = bytes.try_into().unwrap();
            bytes[16..20].copy_from_slice(&kind.to_ne_bytes());
            if let Some(event) = parse(&bytes) {
                event.parent_and_name();
            }
        }
    }
}
