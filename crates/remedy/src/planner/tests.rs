use super::*;
use crate::facts::{CgroupFacts, UnitFacts};
use crate::steps::StepKind;
use coroner_diagnosis::diagnose;
use coroner_evidence::{
    CgroupMount, Charged, CoreTimes, Enablement, Hold, PinningFile as Pinning, TextFile, Time, Unit, UnitFile, Wall,
    Zombie, ZombieMethod, ZombieScan,
};

const UNIT: &str = "ecs.service";
const PARENT: &str = "/system.slice";

fn at(seconds: u64) -> Time {
    Time::from_secs(200_000 + seconds)
}

fn look(unit: &str, seconds: u64, restarts: u32) -> Unit {
    Unit {
        at: at(seconds),
        name: unit.into(),
        load_state: "loaded".into(),
        active_state: "activating".into(),
        sub_state: "auto-restart".into(),
        restarts: Some(restarts),
        invocation_id: Some(restarts.to_string()),
        cgroup: Some(format!("{PARENT}/{unit}")),
        ..Unit::default()
    }
}

fn zombie(i: u64, held: Charged) -> Zombie {
    let path = format!("{PARENT}/{UNIT}");
    Zombie { id: i, path, references: Some(1), held, born: None, directory_lives: false, serial: i }
}

/// A crashlooping unit that left ten dead cgroups: the first `cached` of them are kept by page cache, the others by files in a tmpfs.
fn crashloop(unit: &str, cached: u64) -> Evidence {
    let zombies = (0..10)
        .map(|i| match i < cached {
            true => zombie(i, Charged { file: 4096, ..Charged::default() }),
            false => zombie(i, Charged { swap_backed: 4096, shmem: Some(4096), ..Charged::default() }),
        })
        .collect();
    let file = |i: u64| Pinning {
        path: Some(format!("/run/ecs/f.{i}")),
        seen_by: None,
        mounted: true,
        filesystem: "tmpfs".into(),
        device: (0, 30),
        inode: i,
        size: 4096,
        deleted: false,
        bytes: 4096,
        zombies: 1,
    };
    let scan = ZombieScan {
        at: at(6),
        took_ns: 1,
        method: ZombieMethod::BpfTestRun,
        version: 2,
        tracked: Some(20),
        live: Some(10),
        dead: Some(10),
        zombies,
        files: (cached..10).map(file).collect(),
        holds: (cached..10).map(|i| Hold { zombie: i as u32, file: (i - cached) as u32, bytes: 4096 }).collect(),
        ..ZombieScan::default()
    };
    let mount = CgroupMount {
        version: 2,
        controllers: vec!["memory".into()],
        mount_point: "/sys/fs/cgroup".into(),
        root: "/".into(),
    };
    let ticks = |s| CoreTimes { at: at(s), cores: Vec::new() };
    Evidence {
        core_times: vec![ticks(0), ticks(6)],
        units: vec![look(unit, 0, 100), look(unit, 6, 124)],
        zombie_scans: vec![scan],
        cgroup_mounts: vec![mount],
        ..Evidence::default()
    }
}

fn facts(unit: &str) -> Facts {
    let about = UnitFacts {
        file_state: "enabled".into(),
        active_state: "activating".into(),
        fragment: format!("/usr/lib/systemd/system/{unit}"),
        is_known: true,
        ..UnitFacts::default()
    };
    let place = CgroupFacts {
        directory: format!("/sys/fs/cgroup{PARENT}").into(),
        lives: true,
        can_reclaim: true,
        cache_bytes: Some(8192),
        empty_children: None,
    };
    Facts {
        live: true,
        units: [(unit.to_owned(), about)].into(),
        cgroups: [(PARENT.to_owned(), place)].into(),
        ..Facts::default()
    }
}

fn planned(evidence: &Evidence, wishes: &Wishes, facts: &Facts) -> Plan {
    plan(evidence, &diagnose(evidence), wishes, facts).unwrap()
}

fn kinds(steps: &[Step]) -> Vec<StepKind> {
    steps.iter().map(|step| step.kind).collect()
}

#[test]
fn a_leaking_crashloop_is_disabled_and_its_page_cache_reclaimed() {
    let evidence = crashloop(UNIT, 4);
    let plan = planned(&evidence, &Wishes::default(), &facts(UNIT));
    // Nobody judged it unused here, so it is not masked.
    assert_eq!(kinds(&plan.steps), [StepKind::DisableUnit, StepKind::FreeZombies], "{plan:#?}");
    assert_eq!(kinds(&plan.alternatives), [StepKind::IsolateUnit]);
    assert_eq!(plan.steps[0].commands, ["systemctl disable --now ecs.service"]);
    assert!(plan.steps[0].reversible && plan.steps[0].dangerous.is_none());
    assert!(!plan.steps[1].reversible);
    assert_eq!(plan.files.len(), 6, "listed, and none of them planned");
    let reboot = plan.reboot.unwrap();
    assert!(reboot.why.contains("6 of the 10") && reboot.why.contains("/run/ecs/f.*"), "{}", reboot.why);
    assert!(reboot.first.unwrap().contains("disable-unit:ecs.service"));
    for step in &plan.steps {
        let words = [&step.title, &step.reason, &step.risk_words, &step.undo, &step.not_fixed];
        assert!(words.iter().all(|words| !words.is_empty()) && !step.commands.is_empty(), "{step:#?}");
    }
}

#[test]
fn what_the_catalogue_leaves_to_people_is_not_disabled() {
    let mut evidence = crashloop(UNIT, 4);
    evidence.unit_files.push(UnitFile {
        name: UNIT.to_owned(),
        enablement: Enablement::Enabled,
        ..UnitFile::default()
    });
    let entry = "schema = \"coroner.catalogue/2\"\n[[agent]]\nname = \"amazon-ecs\"\nunits = [\"ecs.service\"]\nwhat = \"∎\"\n\
                 role = \"security\"\naction = \"manual\"\nadvice = \"ask its owner\"\ndoes_not_fix = \"∎\"\n";
    evidence.catalogues.push(TextFile { path: "ours.toml".to_owned(), text: entry.to_owned() });
    let plan = planned(&evidence, &Wishes::default(), &facts(UNIT));
    assert!(!kinds(&plan.steps).contains(&StepKind::DisableUnit), "{plan:#?}");
    assert_eq!(kinds(&plan.alternatives), [StepKind::IsolateUnit]);
    let refused = plan.refused.iter().find(|refused| refused.what == "disable ecs.service").unwrap();
    assert_eq!(refused.why, "ask its owner");
}

#[test]
fn reclaim_is_planned_only_for_page_cache() {
    let plan = planned(&crashloop(UNIT, 0), &Wishes::default(), &facts(UNIT));
    assert!(!kinds(&plan.steps).contains(&StepKind::FreeZombies), "{plan:#?}");
    assert!(plan.refused.iter().any(|refused| refused.what.contains("reclaim")), "{:?}", plan.refused);
    // v1 would drop too much page cache of others.
    let mut facts = facts(UNIT);
    facts.cgroups.get_mut(PARENT).unwrap().cache_bytes = Some(64 << 30);
    let plan = planned(&crashloop(UNIT, 4), &Wishes::default(), &facts);
    let step = plan.steps.iter().find(|step| step.kind == StepKind::FreeZombies).unwrap();
    assert!(step.dangerous.is_none(), "v2 asks for a bounded amount: {step:#?}");
    assert!(step.risk_words.contains("swappiness=0"), "{}", step.risk_words);
    assert!(step.commands[0].contains(" swappiness=0 > "), "{:?}", step.commands);
    let mut v1 = crashloop(UNIT, 4);
    v1.cgroup_mounts[0].version = 1;
    let plan = planned(&v1, &Wishes::default(), &facts);
    let step = plan.steps.iter().find(|step| step.kind == StepKind::FreeZombies).unwrap();
    assert!(step.dangerous.as_ref().is_some_and(|why| why.contains("64")), "{step:#?}");
    assert!(step.risk_words.contains("swapped out"), "v1 cannot spare it: {}", step.risk_words);
    facts.swap = Some(false);
    let plan = planned(&v1, &Wishes::default(), &facts);
    let step = plan.steps.iter().find(|step| step.kind == StepKind::FreeZombies).unwrap();
    assert!(!step.risk_words.contains("swap"), "there is no swap: {}", step.risk_words);
}

#[test]
fn only_named_files_that_keep_dead_cgroups_are_deleted() {
    let evidence = crashloop(UNIT, 4);
    let wishes = Wishes { delete_files: vec!["/run/ecs/f.7".into()], ..Wishes::default() };
    let steps = planned(&evidence, &wishes, &facts(UNIT)).steps;
    let step = steps.iter().find(|step| step.kind == StepKind::DeleteFiles).unwrap();
    assert_eq!((step.details.as_slice(), step.reversible), (["/run/ecs/f.7".to_owned()].as_slice(), false));
    for other in ["/etc/passwd", "/run/ecs/*", "/run/ecs/f.99", ""] {
        let wishes = Wishes { delete_files: vec![other.into()], ..Wishes::default() };
        let refused = plan(&evidence, &diagnose(&evidence), &wishes, &facts(UNIT));
        assert!(refused.unwrap_err().contains("no dead cgroup"), "{other}");
    }
}

#[test]
fn protected_units_are_refused_and_units_in_use_are_dangerous() {
    let mut protected = facts("kubelet.service");
    protected.units.get_mut("kubelet.service").unwrap().protected = Some("the node's jobs run under it".into());
    let plan = planned(&crashloop("kubelet.service", 4), &Wishes::default(), &protected);
    assert!(plan.all().all(|step| !step.id.contains("kubelet")), "{plan:#?}");
    assert!(plan.refused.iter().any(|refused| refused.what.contains("kubelet.service")), "{:?}", plan.refused);
    // The list alone protects it, without asking a node.
    let evidence = crashloop("kubelet.service", 4);
    let targets = targets(&evidence, &diagnose(&evidence), &Wishes::default()).unwrap();
    let told = crate::facts::of_evidence(&evidence, &targets);
    assert!(told.units["kubelet.service"].protected.is_some());

    let mut busy = facts("mine.service");
    busy.units.get_mut("mine.service").unwrap().up_for = Some(Duration::from_secs(7200));
    let plan = planned(&crashloop("mine.service", 4), &Wishes::default(), &busy);
    assert!(plan.steps[0].dangerous.as_ref().is_some_and(|why| why.contains("in use")), "{:#?}", plan.steps[0]);
}

#[test]
fn isolate_replaces_disable() {
    let wishes = Wishes { isolate: true, limits: vec![("CPUQuota".into(), "7%".into())], ..Wishes::default() };
    let plan = planned(&crashloop(UNIT, 0), &wishes, &facts(UNIT));
    assert_eq!(kinds(&plan.steps), [StepKind::IsolateUnit]);
    assert_eq!(kinds(&plan.alternatives), [StepKind::DisableUnit]);
    assert!(plan.steps[0].title.contains("CPUQuota=7%"), "{}", plan.steps[0].title);
    assert!(plan.steps[0].commands[1].contains("/run/systemd/system/ecs.service.d/"), "{:?}", plan.steps[0].commands);
}

#[test]
fn a_static_unit_is_stopped_and_masked_and_a_file_in_etc_is_not() {
    let mut facts = facts("mine.service");
    let about = facts.units.get_mut("mine.service").unwrap();
    about.file_state = "static".into();
    let plan = planned(&crashloop("mine.service", 0), &Wishes::default(), &facts);
    assert_eq!(plan.steps[0].commands, ["systemctl stop mine.service"]);
    assert!(kinds(&plan.steps).contains(&StepKind::MaskUnit));
    facts.units.get_mut("mine.service").unwrap().fragment = "/etc/systemd/system/mine.service".into();
    let plan = planned(&crashloop("mine.service", 0), &Wishes::default(), &facts);
    assert!(!kinds(&plan.steps).contains(&StepKind::MaskUnit), "{plan:#?}");
}

#[test]
fn asking_for_an_unknown_finding_or_step_is_an_error() {
    let evidence = crashloop(UNIT, 4);
    let about = |code, subject: &str| Wishes { about: Some((code, Some(subject.to_owned()))), ..Wishes::default() };
    for subject in ["ecs.service", "ecs"] {
        let plan = planned(&evidence, &about(Code::UnitCrashloop, subject), &facts(UNIT));
        assert_eq!(plan.steps[0].id, "disable-unit:ecs.service");
    }
    let wishes = about(Code::UnitCrashloop, "other.service");
    let missing = plan(&evidence, &diagnose(&evidence), &wishes, &facts(UNIT)).unwrap_err();
    assert!(missing.contains("no finding unit-crashloop about other.service") && missing.contains(UNIT), "{missing}");
    let plan = planned(&evidence, &Wishes::default(), &facts(UNIT));
    assert!(plan.chosen(&["reboot".to_owned()]).unwrap_err().contains("disable-unit:ecs.service"));
    assert_eq!(plan.chosen(&["isolate-unit".to_owned()]).unwrap().len(), 1, "also an alternative");
    assert_eq!(plan.chosen(&[]).unwrap().len(), plan.steps.len());
}

#[test]
fn nothing_is_planned_for_what_is_over() {
    let evidence = crashloop(UNIT, 10);
    let mut diagnosis = diagnose(&evidence);
    let ended = TimeSpan { until: Some(Wall(7)), ongoing: false, ..TimeSpan::default() };
    for verdict in &mut diagnosis.conclusion.verdicts {
        (verdict.time, verdict.over) = (ended, ended.until);
    }
    assert_eq!(targets(&evidence, &diagnosis, &Wishes::default()).unwrap(), Targets::default());
    let plan = plan(&evidence, &diagnosis, &Wishes::default(), &Facts::default()).unwrap();
    assert!(plan.is_empty() && plan.causes.is_empty() && plan.by_hand.is_empty(), "{plan:?}");
    let [over] = plan.over.as_slice() else { panic!("{:?}", plan.over) };
    assert_eq!((over.finding.code, over.time), (Code::UnitCrashloop, ended));
    assert!(over.if_it_comes_back.contains(UNIT), "{}", over.if_it_comes_back);
}
