//! What the node is, from its own files. No program is run and the network is not used.

mod cloud;
mod hardware;
mod place;
mod software;

use coroner_evidence::{CoreSet, Evidence, Node, Wall, probe};

use crate::counter_file::{Words, core_number, lines};
use crate::root::Root;
use crate::tree::Tree;

use place::ObserverPlace;
use software::Processes;

/// Fills [`Evidence::node`].
///
/// Running programs are taken from [`Evidence::processes`] if tasks were read before, else from /proc/PID/comm, which costs
/// some 10 µs per process.
pub fn identify(root: &Root, evidence: &mut Evidence) {
    let place = ObserverPlace::find(root);
    let files = place.node_files.as_ref();
    let processes = Processes::find(root, &place, evidence);
    let cloud = cloud::find(root, files);
    let stat = root.read("/proc/stat").unwrap_or_default();
    let machine_id = files.map(machine_id);
    let node = Node {
        host: host(root, &place),
        machine_id: machine_id.as_ref().and_then(|id| id.as_ref().ok()).cloned(),
        boot_id: root.read_line("/proc/sys/kernel/random/boot_id"),
        kernel: root.read_line("/proc/sys/kernel/osrelease"),
        architecture: architecture(root),
        booted: booted(stat.as_bytes()),
        os: files.and_then(os),
        cores: cores(root, stat.as_bytes()),
        memory_bytes: memory_bytes(root),
        cloud: cloud.name,
        image_id: cloud.image_id,
        zone: cloud.zone,
        instance_type: cloud.instance_type,
        instance_id: cloud.instance_id,
        hypervisor: hardware::hypervisor(root),
        cgroup_version: cgroup_version(root),
        in_container: place.in_container.clone(),
        systemd: files.and_then(systemd),
        kubelet: software::kubelet(&processes, files),
        container_runtimes: software::container_runtimes(&processes, files),
        ray: software::ray(&processes, files),
        gpus: hardware::gpus(root),
    };
    if files.is_none() {
        let why = place.in_container.as_deref().unwrap_or("in a container");
        evidence.unseen(
            probe::NODE,
            "the node's own files: machine id, operating system, image, installed agents",
            format!("coroner runs in a container: {why}"),
            "run on the node itself, or as root in the node's pid namespace (hostPID, --pid=host) with CAP_SYS_PTRACE",
        );
    } else if let Some(Err(why)) = machine_id {
        evidence.unseen(probe::NODE, "the node's machine id", why, "run systemd-machine-id-setup");
    }
    evidence.node = Some(node);
}

/// The kernel's host name if our UTS namespace is the node's; else from the node's file.
fn host(root: &Root, place: &ObserverPlace) -> Option<String> {
    if place.own_host_name {
        root.read_line("/proc/sys/kernel/hostname").filter(|name| name != "(none)")
    } else {
        place.node_files.as_ref()?.read_line("/etc/hostname")
    }
}

/// The check of sd_booted(3).
fn systemd(files: &Root) -> Option<bool> {
    files.path("/run").is_dir().then(|| files.path("/run/systemd/system").is_dir())
}

/// 32 hexadecimal digits (machine-id(5)); images ship it empty or as `uninitialized`. The error says why there is none.
fn machine_id(files: &Root) -> Result<String, String> {
    const PATH: &str = "/etc/machine-id";
    let is_id = |id: &String| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
    if let Some(id) = [PATH, "/var/lib/dbus/machine-id"].iter().filter_map(|path| files.read_line(path)).find(is_id) {
        return Ok(id);
    }
    match files.read(PATH) {
        Ok(_) => Err(format!("{PATH} contains no id")),
        Err(error) if error.is_not_found() => Err(format!("{PATH} is missing")),
        Err(error) => Err(error.to_string()),
    }
}

fn architecture(root: &Root) -> Option<String> {
    if root.is_live() {
        Some(rustix::system::uname().machine().to_string_lossy().into_owned())
    } else {
        // Since Linux 6.1.
        root.read_line("/proc/sys/kernel/arch")
    }
}

/// `btime` of /proc/stat, in seconds. The kernel derives it from the current wall clock, so it changes if that is set.
fn booted(stat: &[u8]) -> Option<Wall> {
    let (_, line) = lines(stat).find(|(_, line)| line.starts_with(b"btime "))?;
    let mut words = Words(line);
    words.word()?;
    words.number()?.checked_mul(1_000_000_000).filter(|ns| *ns > 0).map(Wall)
}

fn cores(root: &Root, stat: &[u8]) -> Option<u32> {
    let online = root.read_line("/sys/devices/system/cpu/online").and_then(|list| CoreSet::parse_list(&list));
    let count = match online {
        Some(online) => online.len(),
        None => lines(stat).filter(|(_, line)| Words(line).word().and_then(core_number).is_some()).count(),
    };
    u32::try_from(count).ok().filter(|count| *count > 0)
}

fn memory_bytes(root: &Root) -> Option<u64> {
    let text = root.read("/proc/meminfo").ok()?;
    lines(text.as_bytes()).find_map(|(number, line)| match crate::memory::parse_meminfo_line(number, line) {
        Ok(Some(("MemTotal", bytes))) => Some(bytes),
        _ => None,
    })
}

fn os(files: &Root) -> Option<String> {
    let text = files.read("/etc/os-release").or_else(|_| files.read("/usr/lib/os-release")).ok()?;
    os_release_value(&text, "PRETTY_NAME").or_else(|| os_release_value(&text, "NAME"))
}

/// The same for an image, whose links must not lead out of it.
pub fn os_of(tree: &Tree) -> Option<String> {
    let read = |path: &str| tree.read(path, MAX_OS_RELEASE).ok();
    let text = read("/etc/os-release").or_else(|| read("/usr/lib/os-release"))?;
    let text = String::from_utf8_lossy(&text);
    os_release_value(&text, "PRETTY_NAME").or_else(|| os_release_value(&text, "NAME"))
}

/// A real one has 400 bytes.
const MAX_OS_RELEASE: u64 = 64 << 10;

/// A value of os-release(5): shell quoting, without expansion.
fn os_release_value(text: &str, key: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='))?.trim();
    let quoted = |quote: char| value.strip_prefix(quote).and_then(|v| v.strip_suffix(quote));
    let inner = quoted('"').or_else(|| quoted('\'')).unwrap_or(value);
    let mut plain = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        plain.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    (!plain.is_empty()).then_some(plain)
}

/// As process 1 sees it, if readable; a container may hide mounts.
fn cgroup_version(root: &Root) -> Option<String> {
    let text = root.read("/proc/1/mountinfo").or_else(|_| root.read("/proc/self/mountinfo")).ok()?;
    cgroup_version_of(&text).map(str::to_owned)
}

fn cgroup_version_of(mountinfo: &str) -> Option<&'static str> {
    // proc(5): the type follows a lone hyphen.
    let types = || mountinfo.lines().filter_map(|line| line.split_once(" - ")?.1.split(' ').next());
    match (types().any(|t| t == "cgroup"), types().any(|t| t == "cgroup2")) {
        (true, true) => Some("hybrid"),
        (true, false) => Some("v1"),
        (false, true) => Some("v2"),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests;
