//! The reader on this node, and on trees that describe other nodes.

use super::*;
use crate::root::now;
use crate::test_tree::{self, wait_for};
use coroner_evidence::{CoreSet, NicQueue, QueueKind};
use std::fs;
use std::process::Command;

/// Two network namespaces joined by a veth pair, removed at the end of the test however it ends.
struct VethPair {
    names: [String; 2],
    /// The device in the second namespace; the name is unique to the test.
    device: String,
}

impl VethPair {
    /// The device in the second namespace uses NAPI threads.
    fn threaded(queues: u32) -> VethPair {
        let unique = format!("{}-{}", std::process::id(), now().0 % 1_000_000);
        let names = [format!("coroner-a-{unique}"), format!("coroner-b-{unique}")];
        let pair = VethPair { names, device: format!("vb{:06}", now().0 % 1_000_000) };
        let ([a, b], vb) = (&pair.names, &pair.device);
        let run = |line: String| run(&line);
        run(format!("ip netns add {a}"));
        run(format!("ip netns add {b}"));
        let n = format!("numrxqueues {queues} numtxqueues {queues}");
        run(format!("ip link add va netns {a} {n} type veth peer name {vb} netns {b} {n}"));
        run(format!("ip -n {a} link set va up"));
        run(format!("ip -n {b} link set {vb} up"));
        // A veth has NAPIs only with GRO (or XDP).
        run(format!("ip netns exec {b} ethtool -K {vb} gro on"));
        run(format!("ip netns exec {b} sh -c 'echo 1 > /sys/class/net/{vb}/threaded'"));
        wait_for("the link is up", || {
            let state = Command::new("ip").args(["-n", b, "link", "show", vb]).output().unwrap().stdout;
            String::from_utf8_lossy(&state).contains("state UP")
        });
        pair
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn run(line: &str) {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

fn can_make_namespaces() -> bool {
    let has_tools =
        || Command::new("sh").args(["-c", "ip -V && ethtool --version"]).output().is_ok_and(|o| o.status.success());
    let can = rustix::process::geteuid().is_root() && has_tools();
    if !can {
        coroner_lab::skip("needs root, ip and ethtool");
    }
    can
}

fn look(method: MapMethod) -> Evidence {
    let mut evidence = Evidence::default();
    NicReader::with_method(Root::live(), method).look_map(now(), &mut evidence);
    evidence
}

#[test]
fn cores_of_this_nodes_hardware_agree_with_proc_irq() {
    let evidence = look(MapMethod::Best);
    for nic in evidence.nics.iter().filter(|n| n.bus.is_some()) {
        assert!(nic.driver.is_some() && !nic.queues.is_empty(), "{nic:?}");
        for queue in nic.queues.iter().filter(|q| q.irq.is_some()) {
            let irq = queue.irq.unwrap();
            let list = fs::read_to_string(format!("/proc/irq/{irq}/effective_affinity_list"))
                .or_else(|_| fs::read_to_string(format!("/proc/irq/{irq}/smp_affinity_list")))
                .unwrap();
            assert_eq!(queue.irq_cores, CoreSet::parse_list(&list), "{} {}", nic.name, queue.label());
        }
    }
    assert!(evidence.nics.iter().all(|n| n.name != "lo"));
}

#[test]
fn both_methods_map_a_virtio_card_to_the_interrupt_with_its_name() {
    let interrupts = fs::read_to_string("/proc/interrupts").unwrap();
    let irq_of = |name: String| {
        let line = interrupts.lines().find(|line| line.ends_with(&format!(" {name}")))?;
        line.split(':').next()?.trim().parse::<u32>().ok()
    };
    for method in [MapMethod::Best, MapMethod::NamesOnly] {
        for nic in look(method).nics.iter().filter(|n| n.driver.as_deref() == Some("virtio_net")) {
            let bus = nic.bus.clone().unwrap();
            for queue in &nic.queues {
                let way = if queue.kind == QueueKind::Rx { "input" } else { "output" };
                let expected = irq_of(format!("{bus}-{way}.{}", queue.index));
                assert!(expected.is_some(), "{nic:?}");
                assert_eq!(queue.irq, expected, "{} by {method:?}", queue.label());
                assert!(queue.cores().is_some());
            }
        }
    }
}

#[test]
fn a_napi_thread_in_another_namespace_is_found_with_its_core() {
    if !can_make_namespaces() {
        return;
    }
    let own = fs::read_link("/proc/thread-self/ns/net").unwrap();
    let pair = VethPair::threaded(2);
    let core = CoreSet::parse_list(&fs::read_to_string("/sys/devices/system/cpu/online").unwrap())
        .unwrap()
        .iter()
        .last()
        .unwrap();
    // Thread ids by name, independent of the reader.
    let threads: Vec<u32> = napi_threads::scan(&Root::live())
        .into_iter()
        .filter(|t| t.comm.starts_with(&format!("napi/{}-", pair.device)))
        .map(|t| t.tid)
        .collect();
    assert_eq!(threads.len(), 2, "{threads:?}");
    for tid in &threads {
        run(&format!("taskset -pc {core} {tid}"));
    }
    for method in [MapMethod::Best, MapMethod::NamesOnly] {
        let mut evidence = Evidence::default();
        let mut reader = NicReader::with_method(Root::live(), method);
        reader.look_map(now(), &mut evidence);
        let nic = evidence.nics.iter().find(|n| n.netns.as_deref() == Some(&pair.names[1])).expect("the device");
        assert_eq!(
            (nic.name.as_str(), nic.driver.as_deref(), nic.up),
            (pair.device.as_str(), Some("veth"), Some(true))
        );
        let polled: Vec<&NicQueue> = nic.queues.iter().filter(|q| q.napi_tid.is_some()).collect();
        assert_eq!(polled.iter().map(|q| q.label()).collect::<Vec<_>>(), ["rx-0", "rx-1"], "{method:?}");
        for queue in &polled {
            assert!(threads.contains(&queue.napi_tid.unwrap()) && queue.needs_core(core), "{queue:?}");
        }
        // The other end has neither hardware nor threads.
        assert!(evidence.nics.iter().all(|n| n.netns.as_deref() != Some(&pair.names[0])));
        // Its counters move with its traffic.
        reader.look_counters(now(), &mut evidence);
        run(&format!("ip -n {} addr add 10.77.0.1/24 dev va", pair.names[0]));
        run(&format!("ip -n {} neigh replace 10.77.0.2 lladdr 02:00:00:00:00:01 dev va", pair.names[0]));
        let send = "exec 3<>/dev/udp/10.77.0.2/9; for i in 1 2 3 4 5; do echo x >&3; done";
        run(&format!("ip netns exec {} bash -c '{send}'; ip -n {} addr flush dev va", pair.names[0], pair.names[0]));
        let subject = format!("{} in netns {}", pair.device, pair.names[1]);
        wait_for("five packets are counted", || {
            reader.look_counters(now(), &mut evidence);
            evidence.counters.moved(Source::NicStatistics, &subject, "rx_packets").is_some_and(|n| n >= 5)
        });
        assert!(evidence.counters.last(Source::Ethtool, &subject, "peer_ifindex").is_some());
        assert_eq!(evidence.counters.last(Source::TxTimeout, &subject, "tx-1"), Some(0));
    }
    assert_eq!(fs::read_link("/proc/thread-self/ns/net").unwrap(), own);
    // We hold no reference to the namespace: its devices are gone once its name is removed.
    let comm = format!("/proc/{}/comm", threads[0]);
    drop(pair);
    wait_for("the namespace is gone", || !fs::read_to_string(&comm).is_ok_and(|comm| comm.starts_with("napi/vb")));
}

#[test]
fn counters_agree_with_ethtool_and_sysfs() {
    let mut evidence = Evidence::default();
    let mut reader = NicReader::new(Root::live());
    let before = now();
    reader.look_counters(before, &mut evidence);
    for nic in look(MapMethod::Best).nics.iter().filter(|n| n.bus.is_some() && n.netns.is_none()) {
        let first = evidence.counters.last(Source::NicStatistics, &nic.name, "rx_packets").expect("rx_packets");
        let later = fs::read_to_string(format!("/sys/class/net/{}/statistics/rx_packets", nic.name)).unwrap();
        assert!(first <= later.trim().parse().unwrap());
        let Ok(output) = Command::new("ethtool").args(["-S", &nic.name]).output() else { continue };
        if !output.status.success() {
            continue;
        }
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut compared = 0;
        for (name, value) in said.lines().filter_map(|line| line.trim().rsplit_once(": ")) {
            let Ok(value) = value.trim().parse::<u64>() else { continue };
            match evidence.counters.last(Source::Ethtool, &nic.name, name) {
                Some(ours) => {
                    assert!(ours <= value, "{name}: {ours} then {value}");
                    compared += 1;
                }
                None => assert!(value == 0 || value < 1000, "{name} = {value} was skipped"),
            }
        }
        assert!(compared > 0, "{said}");
    }
    // A second look records only what changed.
    let mut second = Evidence::default();
    reader.look_counters(now(), &mut second);
    assert_eq!(second.counters.last(Source::TxTimeout, "eth0", "tx-0"), None);
}

#[test]
fn devices_of_a_tree_are_mapped_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| test_tree::write(dir.path(), path, text);
    let link = |target: &str, path: &str| test_tree::link(dir.path(), path, target);
    let pci = "sys/devices/pci0000:20/0000:20:03.0";
    write(&format!("{pci}/msi_irqs/61"), "msix\n");
    link("../../../bus/pci/drivers/ena", &format!("{pci}/driver"));
    for (file, text) in [
        ("flags", "0x1003\n"),
        ("operstate", "up\n"),
        ("ifindex", "2\n"),
        ("threaded", "0\n"),
        ("queues/rx-0/rps_cpus", "00000000,00000000\n"),
        ("queues/tx-0/xps_cpus", "00000080,00000000\n"),
        ("queues/tx-0/tx_timeout", "3\n"),
        ("statistics/rx_packets", "17\n"),
        ("statistics/rx_dropped", "not a number\n"),
    ] {
        write(&format!("sys/class/net/ens5/{file}"), text);
    }
    link("../../../devices/pci0000:20/0000:20:03.0", "sys/class/net/ens5/device");
    write("sys/class/net/veth1/operstate", "lowerlayerdown\n");
    write("sys/class/net/veth1/queues/rx-0/rps_cpus", "1\n");
    write("sys/class/net/lo/flags", "0x9\n");
    write("sys/class/net/bonding_masters", "\n");
    // The device was renamed after its driver requested the interrupt.
    write("proc/interrupts", "  CPU0\n 61:  9  PCI-MSI 1-edge  eth0-Tx-Rx-0\n");
    write("proc/irq/61/smp_affinity_list", "39\n");
    let mut evidence = Evidence::default();
    let mut reader = NicReader::new(Root::at(dir.path()));
    reader.look_map(Time::from_secs(1), &mut evidence);
    reader.look_counters(Time::from_secs(1), &mut evidence);
    let [ens5, veth] = evidence.nics.as_slice() else { panic!("{:?}", evidence.nics) };
    assert_eq!((ens5.driver.as_deref(), ens5.bus.as_deref()), (Some("ena"), Some("0000:20:03.0")));
    assert!(ens5.queues.iter().all(|q| q.needs_core(39)), "{ens5:?}");
    assert_eq!(ens5.queues[0].steering, None);
    assert_eq!(ens5.queues[1].steering, CoreSet::parse_list("39"));
    assert_eq!((veth.up, veth.driver.as_deref(), veth.queues.len()), (Some(false), None, 0));
    assert_eq!(evidence.counters.last(Source::TxTimeout, "ens5", "tx-0"), Some(3));
    assert_eq!(evidence.counters.last(Source::NicStatistics, "ens5", "rx_packets"), Some(17));
    assert_eq!(evidence.counters.last(Source::NicStatistics, "ens5", "rx_dropped"), None);
    assert_eq!(evidence.unseen, []);
}

#[test]
fn missing_sysfs_is_unseen_not_no_devices() {
    let dir = tempfile::tempdir().unwrap();
    let mut evidence = Evidence::default();
    NicReader::new(Root::at(dir.path())).look_map(Time::from_secs(1), &mut evidence);
    assert!(evidence.why_unseen(probe::NICS).is_some_and(|u| u.why.contains("class/net")), "{:?}", evidence.unseen);
}

#[test]
fn a_reader_is_send() {
    fn is_send<T: Send>() {}
    is_send::<NicReader>();
}

#[test]
fn a_card_whose_queues_cannot_be_mapped_is_unseen() {
    let dir = tempfile::tempdir().unwrap();
    let eth0 = dir.path().join("sys/class/net/eth0");
    fs::create_dir_all(eth0.join("queues/rx-0")).unwrap();
    fs::create_dir_all(eth0.join("queues/tx-0")).unwrap();
    fs::write(eth0.join("operstate"), "up\n").unwrap();
    std::os::unix::fs::symlink("../../../f8b3781a-1e82-4818-a1c3-63d806ec15bb", eth0.join("device")).unwrap();
    let mut evidence = Evidence::default();
    NicReader::new(Root::at(dir.path())).look_map(Time::from_secs(1), &mut evidence);
    assert_eq!(evidence.nics[0].queues.len(), 2);
    let unseen = evidence.why_unseen(probe::NICS).expect("its cores are not known");
    assert!(unseen.what.contains("2 of 2 queues of eth0"), "{unseen:?}");
}

#[test]
fn devices_of_a_namespace_that_may_not_be_entered_are_unseen() {
    if !can_make_namespaces() {
        return;
    }
    let pair = VethPair::threaded(1);
    // A thread without CAP_SYS_ADMIN; capabilities are per thread.
    let evidence = std::thread::spawn(|| {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::SYS_ADMIN);
        set_capabilities(None, sets).unwrap();
        look(MapMethod::Best)
    })
    .join()
    .unwrap();
    assert!(evidence.nics.iter().all(|nic| nic.name != pair.device));
    let unseen = evidence.unseen.iter().find(|u| u.what.contains("other network namespaces"));
    assert!(unseen.is_some_and(|u| u.how_to_see.contains("CAP_SYS_ADMIN")), "{:?}", evidence.unseen);
}
