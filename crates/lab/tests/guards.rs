//! The guards, as host tests of other crates use them.

use coroner_lab::guard::Visit;
use coroner_lab::{Cgroup, Child, Hierarchy, HostLock, Netns, TmpfsMount, actors, node, skip};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::{Duration, Instant};

fn sleeper() -> Child {
    Child::spawn("sleep", Command::new("sleep").arg("600")).unwrap()
}

#[test]
fn a_cgroup_is_removed_with_its_children_and_members_on_every_hierarchy() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    for hierarchy in Hierarchy::all().unwrap() {
        // Nobody can join a new v1 cpuset until it has cores.
        if hierarchy.controllers.iter().any(|c| c == "cpuset") && hierarchy.version == 1 {
            continue;
        }
        let mut member = sleeper();
        let group = Cgroup::create(&hierarchy, "guard").unwrap();
        let child = group.child("inner").unwrap();
        child.add(member.pid()).unwrap();
        let listed = fs::read_to_string(format!("/proc/{}/cgroup", member.pid())).unwrap();
        assert!(listed.lines().any(|l| l.ends_with(&child.path())), "{listed}");
        let dir = group.dir().to_owned();
        std::mem::forget(child);
        drop(group);
        assert!(!dir.exists(), "{}", dir.display());
        assert!(member.ended().unwrap().is_some(), "it killed the member");
    }
}

#[test]
fn a_visit_returns_home() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let hierarchy =
        Hierarchy::all().unwrap().into_iter().find(|h| !h.controllers.iter().any(|c| c == "cpuset")).unwrap();
    let group = Cgroup::create(&hierarchy, "visit").unwrap();
    let mine = || fs::read_to_string("/proc/self/cgroup").unwrap();
    let before = mine();
    let visit = Visit::from_home(&group).unwrap();
    visit.go(group.dir()).unwrap();
    assert!(mine().contains(&group.path()));
    drop(visit);
    assert_eq!(mine(), before);
}

#[test]
fn a_panic_drops_everything() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let mut seen = None;
    let result = catch_unwind(AssertUnwindSafe(|| {
        let netns = Netns::create("guard").unwrap();
        let tmpfs = TmpfsMount::create("guard", 1 << 20, 16).unwrap();
        let child = sleeper();
        fs::write(tmpfs.dir().join("file"), "x").unwrap();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(mounts.contains(netns.name()) && mounts.contains(tmpfs.dir().to_str().unwrap()));
        seen = Some((netns.path(), tmpfs.dir().to_owned(), child.pid()));
        panic!("as planned");
    }));
    assert!(result.is_err());
    let (netns, tmpfs, pid) = seen.unwrap();
    assert!(!netns.exists() && !tmpfs.exists());
    assert_eq!(node::start_time(pid), None);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(netns.to_str().unwrap()) && !mounts.contains(tmpfs.to_str().unwrap()));
}

#[test]
fn a_network_namespace_is_new() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let netns = Netns::create("other").unwrap();
    let own = fs::metadata("/proc/self/ns/net").unwrap();
    let other = fs::metadata(netns.path()).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_ne!(own.ino(), other.ino());
    // The test's own thread did not move.
    assert_eq!(own.ino(), fs::metadata("/proc/thread-self/ns/net").unwrap().ino());
}

#[test]
fn a_child_dies_even_if_a_real_time_thread_has_its_core() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let cores = node::allowed_cores().unwrap();
    if cores.len() < 2 {
        return skip("needs two cores");
    }
    let core = *cores.last().unwrap();
    let spin = |comm: &str, priority: &str| {
        let mut command = actors::command("spin");
        Child::spawn(comm, command.args(["--comm", comm, "--cores", &core.to_string(), "--fifo", priority])).unwrap()
    };
    // Keep this test off that core.
    node::pin(None, &cores[..cores.len() - 1]).unwrap();
    let wanting = spin("lab-wanting", "50");
    let is_fifo = |child: &Child| node::task_stat(child.pid()).is_some_and(|s| s.policy == 1);
    eventually("the first one spins", || is_fifo(&wanting));
    let owner = spin("lab-owner", "60");
    eventually("the second one owns the core", || {
        is_fifo(&owner) && node::thread_times(owner.pid()).unwrap().ran_ns > 50_000_000
    });
    // The guard gives up on a process that does not die; it would still be there.
    let pid = wanting.pid();
    drop(wanting);
    assert_eq!(node::start_time(pid), None);
    drop(owner);
}

fn eventually(what: &str, mut look: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(120);
    while !look() {
        assert!(Instant::now() < limit, "gave up waiting until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn v2_controllers_are_enabled_and_disabled_again() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let Some(v2) = Hierarchy::all().unwrap().into_iter().find(|h| h.version == 2) else {
        return skip("no cgroup v2");
    };
    let root = v2.mount_point.join("cgroup.subtree_control");
    let enabled = || fs::read_to_string(&root).unwrap();
    let before = enabled();
    let off = v2.controllers.iter().find(|c| !before.split_ascii_whitespace().any(|b| b == *c));
    let Some(controller) = off else { return skip("every v2 controller is enabled already") };
    let group = Cgroup::with_controller(controller, "v2").unwrap();
    assert!(enabled().contains(controller.as_str()));
    assert!(group.read("cgroup.controllers").unwrap().contains(controller.as_str()));
    assert_eq!(group.counter("cgroup.stat", "nr_descendants ").unwrap(), 0);
    drop(group);
    assert_eq!(enabled(), before);
}
