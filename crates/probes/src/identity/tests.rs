use super::*;
use crate::test_tree::{link, write};
use proptest::prelude::*;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

const MACHINE_ID: &str = "0123456789abcdef0123456789abcdef";

/// A GPU node of a Kubernetes cluster with Ray, as seen by root on the node.
fn node() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    write(root, "/etc/machine-id", format!("{MACHINE_ID}\n"));
    write(root, "/etc/os-release", "NAME=\"Ubuntu\"\nPRETTY_NAME=\"Ubuntu 22.04.3 \\\"LTS\\\"\"\n");
    write(root, "/proc/sys/kernel/random/boot_id", "0a1b2c3d-0000-4000-8000-000000000001\n");
    write(root, "/proc/sys/kernel/osrelease", "5.15.0-1050-aws\n");
    write(root, "/proc/sys/kernel/hostname", "ip-10-0-0-1\n");
    write(root, "/proc/sys/kernel/arch", "x86_64\n");
    write(root, "/proc/stat", "cpu  1 2 3\ncpu0 1 2 3\ncpu1 1 2 3\nintr 0\nbtime 1700000000\n");
    write(root, "/proc/meminfo", "MemTotal: 1024 kB\nMemFree: 1 kB\n");
    write(root, "/sys/devices/system/cpu/online", "0-95\n");
    write(root, "/proc/1/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    for (pid, comm) in [(1, "systemd"), (700, "kubelet"), (701, "containerd"), (702, "raylet")] {
        write(root, format!("/proc/{pid}/comm"), format!("{comm}\n"));
    }
    write(root, "/usr/bin/dockerd", "");
    std::fs::create_dir_all(root.join("run/systemd/system")).unwrap();
    link(root, "/proc/self/ns/pid", "pid:[4026531836]");
    link(root, "/proc/self/ns/uts", "uts:[4026531838]");
    link(root, "/proc/1/root", root);
    link(root, "/proc/self/root", root);
    let gpu = "/sys/bus/pci/devices/0000:62:00.0";
    write(root, format!("{gpu}/class"), "0x030200\n");
    write(root, format!("{gpu}/vendor"), "0x10de\n");
    link(root, &format!("{gpu}/driver"), "../../../bus/pci/drivers/nvidia");
    write(root, "/sys/bus/pci/devices/0000:00:03.0/class", "0x030000\n");
    write(root, "/sys/bus/pci/devices/0000:00:03.0/vendor", "0x1d0f\n");
    write(
        root,
        "/proc/driver/nvidia/gpus/0000:62:00.0/information",
        "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 10\nBus Location: \t 0000:62:00.0\n",
    );
    write(
        root,
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version: 12.3.0\n",
    );
    dir
}

fn identify_at(root: &Path) -> (Node, Evidence) {
    let mut evidence = Evidence::default();
    identify(&Root::at(root), &mut evidence);
    (evidence.node.clone().unwrap(), evidence)
}

#[test]
fn a_gpu_node_of_a_cluster() {
    let dir = node();
    let (node, evidence) = identify_at(dir.path());
    assert_eq!(node.machine_id.as_deref(), Some(MACHINE_ID));
    assert_eq!(node.host.as_deref(), Some("ip-10-0-0-1"));
    assert_eq!(node.os.as_deref(), Some("Ubuntu 22.04.3 \"LTS\""));
    assert_eq!(node.booted, Some(Wall(1_700_000_000_000_000_000)));
    assert_eq!((node.cores, node.memory_bytes), (Some(96), Some(1 << 20)));
    assert_eq!(node.cgroup_version.as_deref(), Some("v2"));
    assert_eq!(node.in_container, None);
    assert_eq!(node.systemd, Some(true));
    let kubelet = node.kubelet.unwrap();
    assert_eq!((kubelet.running, kubelet.seen_by.as_str()), (Some(true), "process kubelet"));
    let runtimes: Vec<_> = node.container_runtimes.iter().map(|s| (s.name.as_str(), s.running)).collect();
    assert_eq!(runtimes, [("containerd", Some(true)), ("docker", Some(false))]);
    assert_eq!(node.ray.unwrap().running, Some(true));
    let [gpu] = node.gpus.as_slice() else { panic!("{:?}", node.gpus) };
    assert_eq!(gpu.bus, "0000:62:00.0");
    assert_eq!(gpu.model.as_deref(), Some("NVIDIA H100 80GB HBM3"));
    assert_eq!(gpu.driver.as_deref(), Some("nvidia 535.129.03"));
    assert!(evidence.unseen.is_empty(), "{:?}", evidence.unseen);
}

#[test]
fn an_empty_tree_yields_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (node, evidence) = identify_at(dir.path());
    assert_eq!(node, Node::default());
    assert!(evidence.why_unseen(probe::NODE).is_some());
}

#[test]
fn hidden_processes_are_not_reported_as_stopped() {
    let dir = node();
    for pid in [1, 700, 701, 702] {
        std::fs::remove_file(dir.path().join(format!("proc/{pid}/comm"))).unwrap();
    }
    write(dir.path(), "/usr/bin/kubelet", "");
    let (node, _) = identify_at(dir.path());
    assert_eq!(node.kubelet.unwrap().running, None);
    assert_eq!(node.container_runtimes[0].running, None);
    assert_eq!(node.ray, None);
}

#[test]
fn known_processes_are_not_read_again() {
    let dir = node();
    let mut evidence = Evidence::default();
    let crio = coroner_evidence::Process { pid: 9, ppid: 1, comm: "crio".to_owned(), ..Default::default() };
    evidence.processes.push(crio);
    identify(&Root::at(dir.path()), &mut evidence);
    let node = evidence.node.unwrap();
    assert!(node.container_runtimes.iter().any(|s| s.name == "cri-o" && s.running == Some(true)));
    assert_eq!(node.kubelet, None);
}

/// A privileged pod with hostPID: the node's processes, the image's files.
#[test]
fn a_pod_with_host_pid_reads_the_node_through_process_1() {
    let host = node();
    let pod = tempfile::tempdir().unwrap();
    for entry in ["proc", "sys"] {
        // The node's own /proc, except for what shows where we are.
        let status = std::process::Command::new("cp")
            .args(["-a"])
            .arg(host.path().join(entry))
            .arg(pod.path())
            .status()
            .unwrap();
        assert!(status.success());
    }
    std::fs::remove_file(pod.path().join("proc/self/root")).unwrap();
    link(pod.path(), "/proc/self/root", pod.path());
    std::fs::remove_file(pod.path().join("proc/self/ns/uts")).unwrap();
    link(pod.path(), "/proc/self/ns/uts", "uts:[4026532500]");
    write(pod.path(), "/proc/sys/kernel/hostname", "debug-pod\n");
    write(pod.path(), "/etc/os-release", "PRETTY_NAME=\"Alpine\"\n");
    write(pod.path(), "/var/run/secrets/kubernetes.io/serviceaccount/namespace", "x");
    write(host.path(), "/etc/hostname", "ip-10-0-0-1\n");

    let (node, evidence) = identify_at(pod.path());
    let how = node.in_container.unwrap();
    assert!(how.contains("root directory") && how.contains("Kubernetes pod"), "{how}");
    assert_eq!(node.os.as_deref(), Some("Ubuntu 22.04.3 \"LTS\""), "the node's system, not the image's");
    assert_eq!(node.machine_id.as_deref(), Some(MACHINE_ID));
    assert_eq!(node.host.as_deref(), Some("ip-10-0-0-1"));
    assert_eq!(node.kubelet.unwrap().running, Some(true));
    assert_eq!(node.systemd, Some(true));
    assert!(evidence.unseen.is_empty(), "{:?}", evidence.unseen);
}

#[test]
fn a_separate_pid_namespace_is_a_container() {
    let dir = node();
    std::fs::remove_file(dir.path().join("proc/self/ns/pid")).unwrap();
    link(dir.path(), "/proc/self/ns/pid", "pid:[4026532198]");
    let (node, _) = identify_at(dir.path());
    assert!(node.in_container.unwrap().contains("pid:[4026532198]"));
}

#[test]
fn a_leftover_dockerenv_is_not_a_container() {
    let dir = node();
    write(dir.path(), "/.dockerenv", "");
    assert_eq!(identify_at(dir.path()).0.in_container, None);
    // Without permission to trace process 1, the mount namespace decides.
    std::fs::remove_file(dir.path().join("proc/1/root")).unwrap();
    link(dir.path(), "/proc/self/ns/mnt", "mnt:[4026531841]");
    assert_eq!(identify_at(dir.path()).0.in_container, None);
    std::fs::remove_file(dir.path().join("proc/self/ns/mnt")).unwrap();
    link(dir.path(), "/proc/self/ns/mnt", "mnt:[4026532700]");
    assert_eq!(identify_at(dir.path()).0.in_container.as_deref(), Some("/.dockerenv exists"));
}

#[test]
fn hypervisors() {
    let of = |files: &[(&str, &str)]| {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(path, text)| write(dir.path(), path, text));
        hardware::hypervisor(&Root::at(dir.path()))
    };
    let dmi =
        |vendor, product| of(&[("/sys/class/dmi/id/sys_vendor", vendor), ("/sys/class/dmi/id/product_name", product)]);
    assert_eq!(dmi("Amazon EC2", "m5.large").as_deref(), Some("Amazon EC2"));
    assert_eq!(dmi("Amazon EC2", "m5.metal"), None);
    assert_eq!(dmi("Microsoft Corporation", "Virtual Machine").as_deref(), Some("Microsoft Hyper-V"));
    assert_eq!(dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)").as_deref(), Some("QEMU"));
    assert_eq!(dmi("Dell Inc.", "PowerEdge R740"), None);
    let clock = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
    assert_eq!(of(&[(clock, "tsc kvm-clock \n")]).as_deref(), Some("KVM"));
    assert_eq!(of(&[(clock, "tsc hpet acpi_pm \n")]), None);
    assert!(of(&[("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n")]).is_some());
    assert_eq!(of(&[("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme lahf_lm\n")]), None);
}

#[test]
fn gpus_without_a_driver_and_of_other_vendors() {
    let dir = tempfile::tempdir().unwrap();
    for (bus, class, vendor) in [
        ("0000:01:00.0", "0x030200", "0x10de"),
        ("0000:02:00.0", "0x120000", "0x1002"),
        ("0000:03:00.0", "0x020000", "0x10de"),
        ("0000:04:00.0", "0x030000", "0x1a03"),
    ] {
        write(dir.path(), format!("/sys/bus/pci/devices/{bus}/class"), class);
        write(dir.path(), format!("/sys/bus/pci/devices/{bus}/vendor"), vendor);
    }
    let gpus = hardware::gpus(&Root::at(dir.path()));
    assert_eq!(gpus.iter().map(|g| g.bus.as_str()).collect::<Vec<_>>(), ["0000:01:00.0", "0000:02:00.0"]);
    assert!(gpus.iter().all(|g| g.model.is_none() && g.driver.is_none()));
}

#[test]
fn nvidia_versions() {
    let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (dvs-builder@U16)  Fri Aug 16\n";
    assert_eq!(hardware::nvidia_version(open).as_deref(), Some("560.35.03"));
    assert_eq!(hardware::nvidia_version("GCC version: 12.3.0"), None);
}

#[test]
fn cgroup_versions() {
    let v1 = "31 25 0:27 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n";
    let v2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
    assert_eq!(cgroup_version_of(v1), Some("v1"));
    assert_eq!(cgroup_version_of(v2), Some("v2"));
    assert_eq!(cgroup_version_of(&format!("{v1}{v2}")), Some("hybrid"));
    assert_eq!(cgroup_version_of("22 27 0:21 / /proc rw - proc proc rw\n"), None);
}

/// On the machine that runs the tests, checked by other means.
#[test]
fn this_machine() {
    let mut evidence = Evidence::default();
    let start = Instant::now();
    identify(&Root::live(), &mut evidence);
    println!("identify: {:?}\n{:#?}\n{:#?}", start.elapsed(), evidence.node, evidence.unseen);
    let node = evidence.node.unwrap();
    let uname = rustix::system::uname();
    assert_eq!(node.kernel.as_deref(), uname.release().to_str().ok());
    assert_eq!(node.architecture.as_deref(), uname.machine().to_str().ok());
    let online = std::fs::read_to_string("/proc/stat").unwrap();
    let online = online.lines().filter(|l| l.starts_with("cpu") && !l.starts_with("cpu ")).count();
    assert_eq!(node.cores, Some(online as u32));
    let info = rustix::system::sysinfo();
    assert_eq!(node.memory_bytes, Some(info.totalram as u64 * u64::from(info.mem_unit)));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let booted = node.booted.unwrap().0 / 1_000_000_000;
    assert!(now.abs_diff(booted + info.uptime as u64) <= 2, "booted {booted}, up {}", info.uptime);
}

proptest! {
    #[test]
    fn any_text_is_accepted(text in "\\PC{0,200}", key in "[A-Z_]{0,8}") {
        let _ = os_release_value(&text, &key);
        let _ = cgroup_version_of(&text);
        let _ = booted(text.as_bytes());
        let _ = hardware::nvidia_version(&format!("NVRM version: {text}"));
    }

    #[test]
    fn os_release_survives_quoting(name in "[a-zA-Z0-9 \"\\\\$`.()]{1,40}") {
        let quoted = name.replace('\\', "\\\\").replace('"', "\\\"");
        let text = format!("ID=x\nPRETTY_NAME=\"{quoted}\"\n");
        prop_assert_eq!(os_release_value(&text, "PRETTY_NAME"), Some(name));
    }
}
