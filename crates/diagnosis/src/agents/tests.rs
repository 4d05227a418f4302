use super::*;
use coroner_evidence::{
    CgroupOwner, Condition, Enablement, FileState, Process, PullIn, TextFile, Time, Unit, UnitFile, UnitLogLine, Wall,
};
use proptest::prelude::*;

fn enabled(name: &str) -> UnitFile {
    UnitFile { name: name.to_owned(), enablement: Enablement::Enabled, ..UnitFile::default() }
}

/// These files exist with these keys; all others are missing.
fn files(catalogue: &Catalogue, units: &[UnitFile], there: &[(&str, &[&str])]) -> Vec<FileAnswer> {
    let questions = catalogue.questions(units.iter().map(|u| u.name.as_str()));
    let answer = |question: FileQuestion| {
        let state = match there.iter().find(|(path, _)| *path == question.path) {
            Some((path, keys)) => {
                FileState::Present { path: path.to_string(), keys_set: keys.iter().map(|k| k.to_string()).collect() }
            }
            None => FileState::Missing,
        };
        FileAnswer { question, state }
    };
    questions.into_iter().map(answer).collect()
}

fn running(names: &[&str]) -> Option<Vec<Running>> {
    let process = |(i, name): (usize, &&str)| Running {
        pid: 100 + i as u32,
        names: vec![name.to_string()],
        ..Running::default()
    };
    Some(names.iter().enumerate().map(process).collect())
}

/// The same message `times` times, `apart` seconds apart.
fn says(text: &str, times: u64, apart: u64) -> Option<Vec<UnitLogLine>> {
    let line = |i| UnitLogLine { at: Wall(i * apart * 1_000_000_000), text: text.to_owned(), ..UnitLogLine::default() };
    Some((0..times).map(line).collect())
}

fn on_node(units: &[UnitFile], there: &[(&str, &[&str])]) -> Surroundings {
    let mut surroundings = Surroundings {
        booted: true,
        cloud: Some("aws".to_owned()),
        processes: running(&["systemd", "kubelet"]),
        files: files(&Catalogue::built_in(), units, there),
        ..Surroundings::default()
    };
    for unit in units {
        let quiet = Activity {
            active: Some(true),
            restarts_per_hour: Some(0.0),
            cgroup_births_per_hour: Some(0.0),
            log: Some(Vec::new()),
            ..Activity::default()
        };
        surroundings.activity.insert(unit.name.clone(), quiet);
    }
    surroundings
}

fn judged(units: &[UnitFile], surroundings: &Surroundings, name: &str) -> Judgement {
    let judgements = judge(units, &Catalogue::built_in(), surroundings);
    judgements.into_iter().find(|j| j.unit == name).unwrap_or_else(|| panic!("{name} was not judged"))
}

fn kinds(judgement: &Judgement) -> Vec<ReasonKind> {
    judgement.why.iter().map(|r| r.kind).collect()
}

const ECS: &str = "ecs.service";
const CLUSTER: (&str, &[&str]) = ("/etc/ecs/ecs.config", &["ECS_CLUSTER"]);

#[test]
fn the_incident() {
    let units = [enabled(ECS)];
    let mut node = on_node(&units, &[("/etc/ecs/ecs.config", &[])]);
    let activity = node.activity.get_mut(ECS).unwrap();
    // ecs-init restarts its container by itself.
    activity.cgroup_births_per_hour = Some(240.0);
    activity.log = says("[INFO] Agent exited with code 1", 2, 15);
    let ecs = judged(&units, &node, ECS);
    assert_eq!((ecs.verdict, ecs.certainty, ecs.harm), (Verdict::Unused, Certainty::Sure, Harm::Seen));
    use ReasonKind::*;
    assert_eq!(kinds(&ecs), [ConfigMissing, RegistrationErrors, CompetingOwner, CgroupsBorn]);
    assert!(ecs.why[0].text.contains("/etc/ecs/ecs.config does not set ECS_CLUSTER"), "{}", ecs.why[0].text);
    assert!(ecs.why[2].text.contains("the process kubelet[101] runs"));
    assert!(ecs.safe_step.contains("systemctl disable --now ecs.service"), "{}", ecs.safe_step);
    assert!(ecs.does_not_fix.contains("dead memory cgroups") && ecs.does_not_fix.contains("reboots"));
}

#[test]
fn the_same_agent_configured_is_fine() {
    let units = [enabled(ECS)];
    let mut node = on_node(&units, &[CLUSTER]);
    node.processes = running(&["amazon-ecs-init"]);
    let ecs = judged(&units, &node, ECS);
    assert_eq!((ecs.verdict, kinds(&ecs)), (Verdict::Fine, vec![ReasonKind::Configured]));
    // One failure in its log does not count.
    node.activity.get_mut(ECS).unwrap().log = says("Agent exited with code 1", 1, 15);
    assert_eq!(judged(&units, &node, ECS).verdict, Verdict::Fine);
}

#[test]
fn an_idle_agent_is_judged_mildly() {
    let units = [enabled(ECS)];
    let ecs = judged(&units, &on_node(&units, &[]), ECS);
    assert_eq!((ecs.verdict, ecs.certainty, ecs.harm), (Verdict::Unused, Certainty::Possible, Harm::NotSeen));
    assert!(ecs.why.last().unwrap().text.contains("costs little"));
}

#[test]
fn in_an_image_the_harm_cannot_be_seen() {
    let units = [enabled(ECS), enabled("kubelet.service")];
    let there: &[(&str, &[&str])] = &[("/var/lib/kubelet/config.yaml", &[])];
    let image = Surroundings { files: files(&Catalogue::built_in(), &units, there), ..Surroundings::default() };
    let ecs = judged(&units, &image, ECS);
    assert_eq!((ecs.verdict, ecs.certainty, ecs.harm), (Verdict::Unused, Certainty::Likely, Harm::CannotSee));
    assert!(ecs.why.iter().any(|r| r.text.contains("an image does not show")));
    assert!(ecs.safe_step.contains("--root=DIR disable ecs.service"), "{}", ecs.safe_step);
    // The kubelet is configured, its rival is not.
    assert_eq!(judged(&units, &image, "kubelet.service").verdict, Verdict::Fine);
}

#[test]
fn two_configured_orchestrators_conflict() {
    let units = [enabled(ECS), enabled("kubelet.service")];
    let node = on_node(&units, &[CLUSTER, ("/var/lib/kubelet/config.yaml", &[])]);
    for name in [ECS, "kubelet.service"] {
        let judgement = judged(&units, &node, name);
        assert_eq!((judgement.verdict, judgement.certainty), (Verdict::Conflict, Certainty::Likely), "{name}");
    }
    let docker = [enabled("docker.service"), enabled("containerd.service")];
    assert_eq!(judged(&docker, &on_node(&docker, &[]), "docker.service").verdict, Verdict::Conflict);
    let mut without_kubelet = on_node(&docker, &[]);
    without_kubelet.processes = running(&["dockerd", "containerd"]);
    assert_eq!(judged(&docker, &without_kubelet, "docker.service").verdict, Verdict::Fine);
}

#[test]
fn a_process_name_alone_makes_no_owner() {
    // Beside a mere process named kubelet, a configured agent is fine. With its own configuration the kubelet is an owner.
    let units = [enabled(ECS)];
    let mut node = on_node(&units, &[CLUSTER]);
    assert_eq!(judged(&units, &node, ECS).verdict, Verdict::Fine);
    let kubelet = Catalogue::built_in().get("kubelet").unwrap().clone();
    let question = kubelet.needs[0].questions().next().unwrap();
    let path = question.path.clone();
    node.files.push(FileAnswer { question, state: FileState::Present { path, keys_set: Vec::new() } });
    assert_eq!(judged(&units, &node, ECS).verdict, Verdict::Conflict);
    assert_eq!(judged(&units, &node, "kubelet").rivals, ["amazon-ecs"]);
}

#[test]
fn an_agent_with_connections_may_be_configured_elsewhere() {
    let units = [enabled("datadog-agent.service")];
    let mut node = on_node(&units, &[]);
    let name = "datadog-agent.service";
    assert_eq!(judged(&units, &node, name).verdict, Verdict::Unused);
    node.activity.get_mut(name).unwrap().sockets = Some(Sockets { listening: 1, connected: 4 });
    assert_eq!(judged(&units, &node, name).verdict, Verdict::CannotTell);
    // In a container it has files of its own.
    let mut node = Surroundings { files: node.files, ..on_node(&[], &[]) };
    node.processes = running(&["trace-agent"]);
    node.processes.as_mut().unwrap()[0].contained = true;
    let judgement = judged(&[], &node, "trace-agent");
    assert_eq!(judgement.verdict, Verdict::CannotTell);
    assert!(judgement.why[0].text.contains("runs in a container"), "{judgement}");
}

#[test]
fn what_does_not_start_is_fine() {
    let masked = UnitFile { enablement: Enablement::Masked, ..enabled(ECS) };
    let disabled = UnitFile { enablement: Enablement::Disabled, ..enabled(ECS) };
    let condition = Condition { key: "ConditionPathExists".into(), value: "/etc/ecs/on".into(), holds: Some(false) };
    let unmet = UnitFile { conditions: vec![condition], ..enabled(ECS) };
    for unit in [masked, disabled, unmet] {
        let image = Surroundings {
            files: files(&Catalogue::built_in(), std::slice::from_ref(&unit), &[]),
            ..Surroundings::default()
        };
        let ecs = judged(std::slice::from_ref(&unit), &image, ECS);
        assert_eq!((ecs.verdict, kinds(&ecs)), (Verdict::Fine, vec![ReasonKind::NotStarted]), "{:?}", unit.enablement);
    }
    // Disabled, but somebody started it and it loops.
    let unit = UnitFile { enablement: Enablement::Disabled, ..enabled(ECS) };
    let mut node = on_node(std::slice::from_ref(&unit), &[]);
    node.activity.get_mut(ECS).unwrap().restarts_per_hour = Some(900.0);
    assert_eq!(judged(&[unit], &node, ECS).verdict, Verdict::Unused);
}

#[test]
fn static_units_start_by_links_and_timers() {
    let pull = PullIn { by: "multi-user.target".into(), how: "wants".into(), link: "/x".into() };
    let pulled = UnitFile { enablement: Enablement::Static, pulled_in_by: vec![pull], ..enabled("snapd.service") };
    let timer = enabled("apt-daily.timer");
    let by_timer = UnitFile {
        enablement: Enablement::Static,
        triggered_by: vec!["apt-daily.timer".into()],
        ..enabled("apt-daily.service")
    };
    let units = [pulled, timer, by_timer];
    let names = units.iter().map(|u| (u.name.as_str(), u)).collect();
    assert_eq!(start_of(&units[0], &names), Start::Yes("is pulled in by multi-user.target".into()));
    assert_eq!(start_of(&units[2], &names), Start::Yes("is started by apt-daily.timer".into()));
}

#[test]
fn a_way_in_is_reported_and_never_removed() {
    let units = [enabled("amazon-ssm-agent.service"), enabled("google-guest-agent.service")];
    let mut node = on_node(&units, &[]);
    for activity in node.activity.values_mut() {
        activity.restarts_per_hour = Some(500.0);
        activity.log = says("Agent is in hibernate mode. Reducing logging", 2, 600);
    }
    node.processes = None;
    let judgements = judge(&units, &Catalogue::built_in(), &node);
    assert_eq!(judgements.len(), 2);
    for judgement in judgements {
        assert_eq!(judgement.verdict, Verdict::Unused, "{judgement}");
        assert!(judgement.report_only);
        assert_eq!((judgement.action, &judgement.command), (Action::Report, &None), "{judgement}");
    }
}

#[test]
fn an_agent_of_another_cloud() {
    let units = [enabled("walinuxagent.service")];
    let agent = judged(&units, &on_node(&units, &[]), "walinuxagent.service");
    assert_eq!((agent.verdict, kinds(&agent)[0]), (Verdict::Unused, ReasonKind::OtherCloud));
    assert!(agent.why[0].text.contains("azure") && agent.why[0].text.contains("aws"));
    // An image for several clouds: which one is unknown.
    let units = [enabled("walinuxagent.service"), enabled("google-guest-agent.service")];
    let agent = judged(&units, &Surroundings::default(), "walinuxagent.service");
    assert_eq!(agent.verdict, Verdict::CannotTell);
    assert!(agent.why[0].text.contains("azure and gce"));
}

#[test]
fn blindness_is_not_evidence() {
    // The file could not be read, and an image does not show hardware.
    let units = [enabled(ECS), enabled("ModemManager.service")];
    let mut image = Surroundings { files: files(&Catalogue::built_in(), &units, &[]), ..Surroundings::default() };
    for answer in &mut image.files {
        answer.state = FileState::Unseen { why: "/etc/ecs/ecs.config: Permission denied".into() };
    }
    for unit in &units {
        let judgement = judged(&units, &image, &unit.name);
        assert_eq!((judgement.verdict, kinds(&judgement)), (Verdict::CannotTell, vec![ReasonKind::Unseen]));
    }
    // Nobody asked about the files at all.
    assert_eq!(judged(&units, &Surroundings::default(), ECS).verdict, Verdict::CannotTell);
}

proptest! {
    /// Any log, user catalogue, process or baseline: an answer, no panic.
    #[test]
    fn any_evidence(
        said in prop::collection::vec((0usize..3, any::<u64>(), ".{0,60}"), 0..8),
        catalogue in prop::option::of("(schema = \"coroner.catalogue/2\"\n)?.{0,60}"),
        baseline in prop::option::of(".{0,60}"),
        programs in prop::collection::vec((any::<u32>(), "(kubelet|waagent|.{0,20})", prop::option::of(".{0,30}")), 0..6),
        restarts in prop::collection::vec((any::<u64>(), prop::option::of(any::<u32>()), any::<u64>()), 0..6),
        image in any::<bool>(),
    ) {
        let names = ["ecs.service", "kubelet.service", "é"];
        let evidence = Evidence {
            unit_files: names.iter().map(|n| enabled(n)).collect(),
            units: restarts.iter().map(|(at, restarts, cpu)| Unit {
                at: Time(*at), name: "ecs.service".into(), restarts: *restarts, cpu_ns: Some(*cpu), ..Unit::default()
            }).collect(),
            unit_log: said.into_iter().map(|(unit, wall, text)| UnitLogLine {
                unit: names[unit].to_owned(), at: Wall(wall), text, restart: None,
            }).collect(),
            processes: programs.into_iter().map(|(pid, comm, command)| Process {
                at: Time(0), pid, started: 0, ppid: 0, comm, command, kernel: false, memory_cgroup: None, cpu_cgroup: None,
                owner: CgroupOwner::default(), ray: None,
            }).collect(),
            catalogues: catalogue.map(|text| TextFile { path: "x.toml".into(), text }).into_iter().collect(),
            baseline: baseline.map(|text| TextFile { path: "b.json".into(), text }),
            image: image.then(|| "/mnt".to_owned()),
            ..Evidence::default()
        };
        for judgement in judgements(&evidence).unwrap_or_default() {
            prop_assert!(!(image && judgement.pid.is_some()), "{}", judgement);
        }
        let _ = drift(&evidence).map(|d| d.is_ok());
        let _ = questions(&evidence);
    }

    /// Whatever the surroundings, a way in is never removed and a unit that does not start is fine.
    #[test]
    fn always_and_never(
        names in prop::sample::subsequence(
            vec!["ecs.service", "kubelet.service", "sshd.service", "docker.service", "snapd.service", "nomad.service",
                 "google-guest-agent.service", "multipathd.service", "unknown.service"], 0..9),
        states in prop::collection::vec(0usize..13, 9),
        booted in any::<bool>(),
        cloud in prop::option::of("(aws|gce|azure)"),
        rate in prop::option::of(prop::num::f64::ANY),
        running in prop::sample::subsequence(vec!["kubelet", "dockerd", "nomad", "bash"], 0..4),
    ) {
        let units: Vec<UnitFile> = names.iter().zip(&states)
            .map(|(name, state)| UnitFile { enablement: Enablement::ALL[*state], ..enabled(name) })
            .collect();
        let catalogue = Catalogue::built_in();
        let activity = Activity { restarts_per_hour: rate, cgroup_births_per_hour: rate, ..Activity::default() };
        let surroundings = Surroundings {
            booted,
            cloud,
            processes: self::running(&running),
            files: files(&catalogue, &units, &[]),
            activity: units.iter().map(|u| (u.name.clone(), activity.clone())).collect(),
            ..Surroundings::default()
        };
        let mut judgements = judge(&units, &catalogue, &surroundings);
        judgements.retain(|j| j.pid.is_none());
        prop_assert_eq!(judgements.len(), units.iter().filter(|u| u.name != "unknown.service").count());
        for judgement in judgements {
            prop_assert!(!judgement.report_only || judgement.command.is_none());
            let unit = units.iter().find(|u| u.name == judgement.unit).unwrap();
            if !booted && unit.enablement == Enablement::Masked {
                prop_assert_eq!(judgement.verdict, Verdict::Fine);
            }
            if !booted {
                prop_assert_eq!(judgement.harm, Harm::CannotSee);
                prop_assert!(judgement.verdict != Verdict::Unused || judgement.certainty < Certainty::Sure);
            }
        }
    }
}
