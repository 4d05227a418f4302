use super::*;
use crate::agents::questions;
use crate::rules::test_evidence::{END, cannot_tell, fact, findings, fine, one, start, watched};
use coroner_evidence::{
    CgroupChurn, CgroupOwner, Enablement, FileAnswer, FileState, Maker, Node, Process, TextFile, Unit, UnitFile,
    UnitLogLine, UnitSockets,
};
use std::time::Duration;

fn enabled(name: &str) -> UnitFile {
    UnitFile { name: name.to_owned(), enablement: Enablement::Enabled, ..UnitFile::default() }
}

pub fn process(pid: u32, comm: &str, unit: Option<&str>) -> Process {
    Process {
        at: END,
        pid,
        started: 1,
        ppid: 1,
        comm: comm.to_owned(),
        command: Some(format!("/usr/bin/{comm}")),
        owner: CgroupOwner { unit: unit.map(str::to_owned), ..CgroupOwner::default() },
        ..Process::default()
    }
}

/// Answers the file questions: these files exist, with these keys.
fn answer(evidence: &mut Evidence, there: &[(&str, &[&str])]) {
    let answers = questions(evidence).unwrap().into_iter().map(|question| {
        let state = match there.iter().find(|(path, _)| *path == question.path) {
            Some((path, keys)) => {
                FileState::Present { path: path.to_string(), keys_set: keys.iter().map(|k| k.to_string()).collect() }
            }
            None => FileState::Missing,
        };
        FileAnswer { question, state }
    });
    evidence.agent_files = answers.collect();
}

fn look(at: coroner_evidence::Time, name: &str, restarts: u32) -> Unit {
    Unit {
        at,
        name: name.to_owned(),
        load_state: "loaded".into(),
        active_state: "active".into(),
        sub_state: "running".into(),
        unit_file_state: Some("enabled".into()),
        restarts: Some(restarts),
        invocation_id: Some(restarts.to_string()),
        main_pid: Some(500),
        cgroup: Some(format!("/system.slice/{name}")),
        ..Unit::default()
    }
}

const CLUSTER: (&str, &[&str]) = ("/etc/ecs/ecs.config", &["ECS_CLUSTER"]);

/// ecs.service is enabled and runs quietly beside a process named kubelet; nothing else is known.
fn beside_kubelet(seconds: u64, there: &[(&str, &[&str])]) -> Evidence {
    let mut evidence = Evidence {
        unit_files: vec![enabled("ecs.service")],
        units: vec![look(start(seconds), "ecs.service", 0), look(END, "ecs.service", 0)],
        processes: vec![process(1, "systemd", None), process(77, "kubelet", None)],
        node: Some(Node { cloud: Some("aws".into()), ..Node::default() }),
        ..watched(seconds)
    };
    answer(&mut evidence, there);
    evidence
}

#[test]
fn an_agent_without_configuration_beside_a_kubelet() {
    let f = one(examine(&Case::of(&beside_kubelet(10, &[]))));
    assert_eq!(f.subject, Subject::new(SubjectKind::Unit, "ecs.service"));
    assert_eq!(f.severity, Severity::Info);
    assert!(fact(&f, FactKey::AgentConfiguration).as_str().unwrap().contains("/etc/ecs/ecs.config does not exist"));
    assert!(fact(&f, FactKey::AgentRival).as_str().unwrap().contains("the process kubelet[77] runs"));
    assert_eq!(fact(&f, FactKey::HowSure), "likely");
    assert!(f.remedy.contains("`systemctl disable --now ecs.service && systemctl mask ecs.service"), "{}", f.remedy);
    assert!(f.remedy.contains("It does not fix: dead memory cgroups"), "{}", f.remedy);
    assert!(
        f.title.starts_with("ecs.service starts, but has no work here: its configuration is missing"),
        "{}",
        f.title
    );
    // The same agent, configured: no finding, and no conflict either, as there is only a process name.
    let configured = beside_kubelet(10, &[CLUSTER]);
    fine(examine(&Case::of(&configured)));
    fine(super::super::agent_conflict::examine(&Case::of(&configured)));
}

#[test]
fn harm_makes_it_a_sure_warning() {
    let mut evidence = beside_kubelet(10, &[]);
    evidence.units[1] = look(END, "ecs.service", 40);
    let f = one(examine(&Case::of(&evidence)));
    assert_eq!((f.severity, fact(&f, FactKey::HowSure)), (Severity::Warning, "sure".into()));
    assert!(fact(&f, FactKey::AgentRestarts).as_str().unwrap().contains("4.0 per second"), "{:?}", f.evidence);
    for (parent, pid) in [("/system.slice/ecs.service/task", 9), ("/docker", 500)] {
        let mut evidence = beside_kubelet(10, &[]);
        let maker = Maker { pid, comm: "x".into(), processes: 1, ..Maker::default() };
        evidence.cgroup_churn = vec![CgroupChurn {
            from: start(10),
            to: END,
            parent: parent.into(),
            pattern: "*".into(),
            example: "a".into(),
            born: 5,
            removed: 5,
            freed: 0,
            maker: Some(maker),
        }];
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(
            (f.severity, fact(&f, FactKey::AgentCgroups)),
            (Severity::Warning, "cgroups are made below it, 30 per minute".into())
        );
    }
    // ecs-init restarts its container, which only its log shows.
    let mut evidence = beside_kubelet(10, &[]);
    let real = evidence.clocks[0].wall;
    evidence.unit_log = (0..5)
        .map(|i| UnitLogLine {
            unit: "ecs.service".into(),
            at: real - Duration::from_secs(100) + Duration::from_secs(15 * i),
            text: "level=info msg=\"Agent exited with code 1\"".into(),
            restart: None,
        })
        .collect();
    let f = one(examine(&Case::of(&evidence)));
    assert_eq!(f.severity, Severity::Warning);
    assert!(fact(&f, FactKey::AgentRestarts).as_str().unwrap().contains("4.0 per minute"));
    assert!(fact(&f, FactKey::AgentLog).as_str().unwrap().contains("5 times that it is not registered"));
}

#[test]
fn an_agent_that_idles_for_long_is_still_named() {
    let mut evidence = beside_kubelet(600, &[]);
    let quiet =
        CgroupChurn { from: start(600), to: END, parent: "*".into(), pattern: "*".into(), ..CgroupChurn::default() };
    evidence.cgroup_churn = vec![quiet];
    evidence.unit_sockets =
        vec![UnitSockets { at: END, unit: "ecs.service".into(), processes: 1, listening: 0, connected: 0 }];
    (evidence.units[0].cpu_ns, evidence.units[1].cpu_ns) = (Some(5), Some(5));
    let f = one(examine(&Case::of(&evidence)));
    assert_eq!((f.severity, fact(&f, FactKey::HowSure)), (Severity::Info, "possible".into()));
    assert!(fact(&f, FactKey::AgentSockets).as_str().unwrap().contains("listening or connected"));
    assert!(fact(&f, FactKey::AgentIdle).as_str().unwrap().contains("no CPU in 10 min"));
    // Weak reasons alone decide nothing.
    answer(&mut evidence, &[CLUSTER]);
    fine(examine(&Case::of(&evidence)));
}

#[test]
fn the_same_unit_in_an_image() {
    let mut evidence = Evidence {
        unit_files: vec![enabled("ecs.service"), enabled("kubelet.service")],
        image: Some("/mnt/image".into()),
        // Of the machine that looks at the image, not of the image.
        processes: vec![process(5, "nomad", None)],
        ..Evidence::default()
    };
    answer(&mut evidence, &[("/var/lib/kubelet/config.yaml", &[])]);
    let f = one(examine(&Case::of(&evidence)));
    assert_eq!((f.subject.name.as_str(), f.severity), ("ecs.service", Severity::Warning));
    assert!(f.remedy.contains("systemctl --root=/mnt/image disable ecs.service"), "{}", f.remedy);
    assert!(!f.detail.contains("nomad"));
}

#[test]
fn idle_agents_of_a_stock_image_share_one_finding() {
    let units = [
        "snapd.service",
        "snapd.socket",
        "ModemManager.service",
        "multipathd.service",
        "fwupd-refresh.timer",
        "ssh.service",
    ];
    let mut evidence = Evidence {
        unit_files: units.iter().map(|u| enabled(u)).collect(),
        units: units.iter().flat_map(|u| [look(start(10), u, 0), look(END, u, 0)]).collect(),
        node: Some(Node { hypervisor: Some("KVM".into()), ..Node::default() }),
        ..watched(10)
    };
    answer(&mut evidence, &[]);
    let f = one(examine(&Case::of(&evidence)));
    assert_eq!((f.severity, f.subject.kind), (Severity::Info, SubjectKind::Node));
    let title =
        "4 agents may be unused here: fwupd-refresh.timer, ModemManager.service, multipathd.service and snapd.service";
    assert_eq!(f.title, title);
    assert!(!f.remedy.contains("disable"));
}

#[test]
fn a_way_into_the_node_is_reported_but_not_removed() {
    let mut evidence = beside_kubelet(10, &[CLUSTER]);
    evidence.unit_files.push(enabled("walinuxagent.service"));
    evidence.units.extend([look(start(10), "walinuxagent.service", 0), look(END, "walinuxagent.service", 9)]);
    let f = one(examine(&Case::of(&evidence)));
    assert_eq!((f.subject.name.as_str(), f.severity), ("walinuxagent.service", Severity::Warning));
    assert!(f.remedy.starts_with("Report only: it may be the only way into this node; "), "{}", f.remedy);
}

#[test]
fn a_process_without_a_unit_is_judged_less_surely() {
    // No systemd: waagent was started by hand, at AWS.
    let mut evidence = Evidence {
        processes: vec![process(1, "init", None), process(40, "waagent", None), process(41, "kubelet", None)],
        node: Some(Node { cloud: Some("aws".into()), ..Node::default() }),
        ..watched(10)
    };
    answer(&mut evidence, &[]);
    let f = one(examine(&Case::of(&evidence)));
    assert_eq!(f.subject.kind, SubjectKind::Node, "one kind of reason: {}", f.title);
    let judgements = agents::judgements(&evidence).unwrap();
    let waagent = judgements.iter().find(|j| j.unit == "waagent").unwrap();
    assert_eq!((waagent.pid, waagent.certainty), (Some(40), Certainty::Possible));
    assert!(waagent.why.iter().any(|r| r.kind == ReasonKind::NoUnit && r.text.contains("no unit")));
    // Where a program started by hand keeps its configuration is unknown.
    let kubelet = judgements.iter().find(|j| j.unit == "kubelet").unwrap();
    assert_eq!(kubelet.verdict, Verdict::CannotTell);
    // A process in one of the agent's units belongs to that unit.
    evidence.processes.push(process(42, "amazon-ssm-agent", Some("amazon-ssm-agent.service")));
    evidence.unit_files = vec![UnitFile { enablement: Enablement::Disabled, ..enabled("amazon-ssm-agent.service") }];
    let judgements = agents::judgements(&evidence).unwrap();
    assert!(judgements.iter().any(|j| j.unit == "amazon-ssm-agent.service" && j.pid.is_none()));
    assert!(!judgements.iter().any(|j| j.unit == "amazon-ssm-agent"));
}

#[test]
fn a_users_entry_replaces_ours() {
    let mut evidence = beside_kubelet(10, &[]);
    let entry = |more: &str| {
        format!(
            "schema = \"coroner.catalogue/2\"\n[[agent]]\nname = \"amazon-ecs\"\nunits = [\"ecs.service\"]\nwhat = \"ours\"\n\
             role = \"orchestrator\"\naction = \"manual\"\nadvice = \"ask the platform team\"\ndoes_not_fix = \"anything\"\n{more}"
        )
    };
    let file = |text: String| vec![TextFile { path: "/etc/coroner/catalogue.d/ours.toml".into(), text }];
    evidence.catalogues =
        file(entry("[[agent.needs]]\nkind = \"config\"\npaths = [\"/opt/ecs.conf\"]\nwhat = \"our cluster\"\n"));
    answer(&mut evidence, &[]);
    let f = one(examine(&Case::of(&evidence)));
    assert!(fact(&f, FactKey::AgentConfiguration).as_str().unwrap().contains("/opt/ecs.conf does not exist"));
    assert!(f.remedy.contains("Ask the platform team"), "{}", f.remedy);
    answer(&mut evidence, &[("/opt/ecs.conf", &[])]);
    fine(examine(&Case::of(&evidence)));
    evidence.catalogues = file(entry("ignore = true\n"));
    fine(examine(&Case::of(&evidence)));
    evidence.catalogues = file(entry("ignroe = true\n"));
    for rule in [examine, super::super::agent_conflict::examine] {
        let (because, how) = cannot_tell(rule(&Case::of(&evidence)));
        assert!(because.contains("/etc/coroner/catalogue.d/ours.toml:10: ") && because.contains("ignroe"), "{because}");
        assert!(how.contains("ours.toml"));
    }
}

#[test]
fn without_unit_files_the_manager_is_asked() {
    let mut evidence = beside_kubelet(10, &[]);
    evidence.unit_files.clear();
    assert_eq!(findings(examine(&Case::of(&evidence))).len(), 1);
    let mut nothing = Evidence::default();
    nothing.unseen(probe::UNIT_FILES, "unit files", "no systemd here", "run on the node");
    assert_eq!(cannot_tell(examine(&Case::of(&nothing))).0, "no systemd here");
}
