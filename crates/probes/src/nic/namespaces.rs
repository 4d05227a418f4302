//! Finding and entering other network namespaces.
//!
//! Devices of another namespace are in no file that we can open: /sys/class/net shows those of the namespace in which that
//! sysfs was mounted. So a short-lived thread enters the namespace (setns, which needs CAP_SYS_ADMIN) and mounts a detached
//! sysfs there, which exists only as long as its file descriptor. Nothing on the node changes.
//!
//! No socket, sysfs or file of a namespace is kept open between looks: it would keep a pod's namespace alive after the pod is
//! gone, and with it the hardware that was moved into it.

use crate::root::Root;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A network namespace other than ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Its name under /run/netns, else `net:[INODE]`.
    pub label: String,
    inode: u64,
    /// The file to open in order to enter it.
    path: PathBuf,
}

#[derive(Debug, Default)]
pub struct Search {
    pub found: Vec<Namespace>,
    /// Why some may be missing.
    pub incomplete: Option<String>,
}

/// The other network namespaces of the node: named ones first, then those of processes. At most `limit`, within `time`.
pub fn find(root: &Root, limit: usize, time: Duration) -> Search {
    let deadline = Instant::now() + time;
    let mut search = Search::default();
    let Ok(own) = std::fs::metadata(root.path("/proc/self/ns/net")) else {
        search.incomplete = Some("/proc/self/ns/net cannot be read".to_owned());
        return search;
    };
    let mut known = HashSet::from([own.ino()]);
    let mut add = |search: &mut Search, namespace: Namespace| {
        if !known.insert(namespace.inode) {
            return true;
        }
        if search.found.len() >= limit {
            search.incomplete = Some(format!("there are more than {limit} network namespaces"));
            return false;
        }
        search.found.push(namespace);
        true
    };
    for name in root.list("/run/netns").unwrap_or_default() {
        let path = root.path(&format!("/run/netns/{name}"));
        // A name whose namespace is gone is a plain file, on a different file system than the namespaces.
        let Some(there) = std::fs::metadata(&path).ok().filter(|there| there.dev() == own.dev()) else { continue };
        if !add(&mut search, Namespace { label: name, inode: there.ino(), path }) {
            return search;
        }
    }
    // A process whose ns link may not be read can still be recognised as being in our namespace: each namespace has its own
    // /proc/net, whose inode anybody may read.
    let proc_net = |pid: &str| std::fs::metadata(root.path(&format!("/proc/{pid}/net/dev"))).map(|m| m.ino());
    let our_proc_net = proc_net("self").ok();
    let mut hidden = HashSet::new();
    for (i, pid) in root.list("/proc").unwrap_or_default().into_iter().enumerate() {
        if !pid.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        if i % 64 == 0 && Instant::now() > deadline {
            search.incomplete = Some("checking all processes took too long".to_owned());
            break;
        }
        let path = root.path(&format!("/proc/{pid}/ns/net"));
        match std::fs::read_link(&path) {
            Ok(link) => {
                let label = link.to_string_lossy().into_owned();
                let Some(inode) = parse_link(&label) else { continue };
                if !add(&mut search, Namespace { label, inode, path }) {
                    return search;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => match proc_net(&pid) {
                Ok(inode) if Some(inode) != our_proc_net => _ = hidden.insert(Some(inode)),
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => _ = hidden.insert(None),
                _ => {}
            },
            // The process has ended.
            Err(_) => {}
        }
    }
    if !hidden.is_empty() && search.incomplete.is_none() {
        search.incomplete = Some("namespaces of other users' processes are hidden".to_owned());
    }
    search
}

/// `net:[4026531840]`
fn parse_link(link: &str) -> Option<u64> {
    link.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// Runs `look` inside each namespace in turn, on a thread that ends afterwards: the caller never leaves its own namespace.
///
/// Returns the first error of entering one (`None`: all were entered, except those that are already gone).
pub fn visit<'n>(
    namespaces: impl Iterator<Item = &'n Namespace> + Send,
    time: Duration,
    mut look: impl FnMut(&'n Namespace) + Send,
) -> Option<io::Error> {
    let work = || -> Option<io::Error> {
        let deadline = Instant::now() + time;
        let mut first_error = None;
        for namespace in namespaces {
            if Instant::now() > deadline {
                return first_error.or_else(|| Some(io::Error::from(io::ErrorKind::TimedOut)));
            }
            match enter(namespace) {
                Ok(()) => look(namespace),
                // Removed since it was found.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => {
                    first_error.get_or_insert(e);
                }
            }
        }
        first_error
    };
    std::thread::scope(|scope| {
        match std::thread::Builder::new().name("coroner-netns".to_owned()).spawn_scoped(scope, work) {
            Ok(thread) => thread.join().unwrap_or_else(|_| Some(io::Error::other("reading a namespace panicked"))),
            Err(e) => Some(e),
        }
    })
}

fn enter(namespace: &Namespace) -> io::Result<()> {
    let file = File::open(&namespace.path)?;
    // The pid may have been reused.
    if file.metadata()?.ino() != namespace.inode {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    rustix::thread::move_into_link_name_space(file.as_fd(), Some(rustix::thread::LinkNameSpaceType::Network))?;
    Ok(())
}

/// A detached sysfs mount for the namespace of the calling thread.
#[derive(Debug)]
pub struct DetachedSysfs {
    mount: OwnedFd,
}

impl DetachedSysfs {
    /// Needs CAP_SYS_ADMIN and Linux 5.2 (fsopen).
    pub fn mount() -> io::Result<DetachedSysfs> {
        let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(context.as_fd())?;
        let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, read_only)?;
        Ok(DetachedSysfs { mount })
    }

    /// Paths below it start with `class/net`, as under /sys.
    pub fn root(&self) -> Root {
        Root::at(format!("/proc/self/fd/{}", self.mount.as_raw_fd()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_of_network_namespaces_have_an_inode() {
        assert_eq!(parse_link("net:[4026531840]"), Some(4026531840));
        for other in ["mnt:[4026531840]", "net:[x]", "net:[", "net:]", ""] {
            assert_eq!(parse_link(other), None, "{other}");
        }
    }

    #[test]
    fn our_own_namespace_is_not_listed() {
        let own = std::fs::read_link("/proc/self/ns/net").unwrap().to_string_lossy().into_owned();
        let search = find(&Root::live(), 1000, Duration::from_secs(5));
        assert!(search.found.iter().all(|n| n.label != own), "{search:?}");
    }

    #[test]
    fn the_caller_stays_where_it_is_even_if_a_look_panics() {
        let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let here = Namespace {
            label: "here".into(),
            inode: std::fs::metadata("/proc/self/ns/net").unwrap().ino(),
            path: "/proc/self/ns/net".into(),
        };
        let error = visit([here].iter(), Duration::from_secs(5), |_| panic!("on purpose"));
        // Without CAP_SYS_ADMIN the error is EPERM from entering.
        assert!(error.is_some());
        assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), own);
    }
}
