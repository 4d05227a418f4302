use super::*;
use crate::finding::{Code, Fact, Severity, Subject};
use crate::ties::{Task, Ties};
use proptest::prelude::*;

fn finding(code: Code, kind: SubjectKind, name: &str) -> Finding {
    Finding {
        code,
        severity: Severity::Warning,
        subject: Subject::new(kind, name),
        title: String::new(),
        detail: String::new(),
        evidence: Vec::new(),
        remedy: String::new(),
        ties: Ties::default(),
    }
}

fn process(code: Code, comm: &str, pid: u32) -> Finding {
    let task = Task { comm: comm.to_owned(), pid, tid: pid };
    Finding { subject: Subject::process(task), ..finding(code, SubjectKind::Process, "") }
}

fn by(comm: &str, pid: u32, core: u32, unit: Option<&str>) -> Finding {
    Finding {
        ties: Ties {
            cores: vec![core],
            culprits: vec![Task { tid: pid + 1, pid, comm: comm.to_owned() }],
            units: unit.map(str::to_owned).into_iter().collect(),
            ..Ties::default()
        },
        ..finding(Code::CoreSaturated, SubjectKind::Core, &core.to_string())
    }
}

#[test]
fn keys_name_the_unit_the_command_the_function_or_the_device() {
    assert_eq!(by("kubelet", 7, 3, Some("kubelet.service")).key(), "core-saturated:kubelet.service");
    assert_eq!(by("spin", 7, 3, None).key(), "core-saturated:spin");
    let walk = Finding {
        evidence: vec![Fact::new(FactKey::MostlyIn, "mem_cgroup_iter.isra.0", "samples")],
        ..process(Code::MemcgWalk, "kubelet", 4711)
    };
    assert_eq!(walk.key(), "memcg-walk:kubelet:mem_cgroup_iter");
    let nic = |device: &str, netns: Option<&str>, driver: Option<&str>| {
        let queue = Queue {
            device: device.to_owned(),
            netns: netns.map(str::to_owned),
            driver: driver.map(str::to_owned),
            queue: None,
        };
        let ties = Ties { queues: vec![queue], ..Ties::default() };
        Finding { ties, ..finding(Code::NicReset, SubjectKind::Nic, "∎") }.key()
    };
    assert_eq!(nic("eth0", None, Some("ena")), "nic-reset:ena");
    assert_eq!(nic("ens5", Some("blue"), Some("ena")), "nic-reset:ena", "another name on another node");
    assert_eq!(nic("eth0", Some("blue"), None), "nic-reset:eth0");
    assert_eq!(nic("veth12ab34cd", None, None), "nic-reset:veth*");
    assert_eq!(nic("napi/eth0-524", None, None), "nic-reset:napi/eth0");
    assert_eq!(finding(Code::UnitCrashloop, SubjectKind::Unit, "ecs.service").key(), "unit-crashloop:ecs.service");
    assert_eq!(
        finding(Code::UnitCrashloop, SubjectKind::Unit, "user@1000.service").key(),
        "unit-crashloop:user@*.service"
    );
    assert_eq!(finding(Code::CpuSteal, SubjectKind::Node, "cores").key(), "cpu-steal");
    let xid = Fact::new(FactKey::XidDay, 2u64, "kernel log").of(79);
    let gpu = Finding { evidence: vec![xid], ..finding(Code::GpuXid, SubjectKind::Gpu, "0000:0a:00.0") };
    assert_eq!(gpu.key(), "gpu-xid:79");
    let container = finding(Code::ContainerCrashloop, SubjectKind::Container, "prod/web-7d9f8b6c5-x2x4z/app");
    assert_eq!(container.key(), "container-crashloop:prod/web-*/app");
}

#[test]
fn kernel_threads_lose_their_numbers() {
    for (comm, pattern) in [
        ("kworker/3:1H-events", "kworker"),
        ("kworker/u8:2", "kworker"),
        ("ksoftirqd/12", "ksoftirqd"),
        ("napi/eth0-524", "napi/eth0"),
        ("migration/0", "migration"),
        ("kswapd1", "kswapd"),
        ("worker-12", "worker-*"),
        ("python3", "python3"),
        ("ray::IDLE", "ray__IDLE"),
    ] {
        assert_eq!(command_pattern(comm), pattern, "{comm}");
    }
}

fn uuid() -> impl Strategy<Value = String> {
    "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
}

proptest! {
    #[test]
    fn pids_and_core_numbers_do_not_change_a_key(
        comm in "[a-z]{1,12}", unit in proptest::option::of("[a-z-]{1,12}\\.service"), a in (1u32..1 << 22, 0u32..512), b in (1u32..1 << 22, 0u32..512),
    ) {
        prop_assert_eq!(by(&comm, a.0, a.1, unit.as_deref()).key(), by(&comm, b.0, b.1, unit.as_deref()).key());
        let named = |pid: u32| process(Code::ObserverCost, &comm, pid).key();
        prop_assert_eq!(named(a.0), named(b.0));
        for kernel in ["ksoftirqd/", "migration/", "cpuhp/", "kworker/u"] {
            prop_assert_eq!(by(&format!("{kernel}{}", a.1), a.0, a.1, None).key(), by(&format!("{kernel}{}", b.1), b.0, b.1, None).key());
        }
    }

    #[test]
    fn pod_and_container_ids_do_not_change_a_key(pod in uuid(), other in uuid(), id in "[0-9a-f]{64}", other_id in "[0-9a-f]{64}") {
        let v1 = |pod: &str, id: &str| finding(Code::CpuThrottled, SubjectKind::Cgroup, &format!("/kubepods/burstable/pod{pod}/{id}")).key();
        prop_assert_eq!(v1(&pod, &id), v1(&other, &other_id));
        let v2 = |pod: &str, id: &str| {
            let pod = pod.replace('-', "_");
            let path = format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice/cri-containerd-{id}.scope");
            finding(Code::CpuThrottled, SubjectKind::Cgroup, &path).key()
        };
        prop_assert_eq!(v2(&pod, &id), v2(&other, &other_id));
    }

    #[test]
    fn different_units_or_commands_have_different_keys(a in "[a-z]{1,8}([0-9-][a-z]{1,4})?", b in "[a-z]{1,8}([0-9-][a-z]{1,4})?") {
        prop_assume!(a != b);
        let unit = |name: &str| finding(Code::UnitCrashloop, SubjectKind::Unit, &format!("{name}.service")).key();
        prop_assert_ne!(unit(&a), unit(&b));
        prop_assume!(NUMBERED_KERNEL_THREADS.iter().all(|known| !a.starts_with(known) && !b.starts_with(known)));
        prop_assert_ne!(by(&a, 1, 1, None).key(), by(&b, 1, 1, None).key());
    }
}
