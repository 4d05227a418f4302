//! From a tree on disk to judgements: unit files, packages, agents' files, catalogue, baseline.

use crate::support::put;
use coroner_diagnosis::agents::baseline::{Aspect, Baseline, compare};
use coroner_diagnosis::agents::{Catalogue, Certainty, Harm, Judgement, Surroundings, Verdict, judge};
use coroner_evidence::UnitFile;
use coroner_probes::tree::Tree;
use coroner_probes::{Root, agent_files, packages, unit_files};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

fn enable(dir: &Path, unit: &str) {
    let wants = dir.join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).unwrap();
    symlink(format!("/usr/lib/systemd/system/{unit}"), wants.join(unit)).unwrap();
}

fn audit(root: &Path) -> (Vec<UnitFile>, Vec<Judgement>) {
    let tree = Tree::open(&Root::at(root)).unwrap();
    let mut units = unit_files::read_tree(&tree).units;
    packages::name_packages(&tree, &mut units);
    let catalogue = Catalogue::built_in();
    let questions = catalogue.questions(units.iter().map(|u| u.name.as_str()));
    let surroundings = Surroundings { files: agent_files::answer(&tree, &questions), ..Surroundings::default() };
    let judgements = judge(&units, &catalogue, &surroundings);
    (units, judgements)
}

/// A Kubernetes node image whose base came with the ECS agent.
fn image(dir: &Path) {
    put(
        dir,
        "usr/lib/systemd/system/ecs.service",
        "[Unit]\nDescription=Container agent\nWants=docker.service\n[Service]\nType=simple\nRestart=on-failure\n\
         RestartPreventExitStatus=5\nRestartSec=10s\nEnvironmentFile=-/etc/ecs/ecs.config\n\
         ExecStart=/usr/libexec/amazon-ecs-init start\n[Install]\nWantedBy=multi-user.target\n",
    );
    put(
        dir,
        "usr/lib/systemd/system/kubelet.service",
        "[Service]\nExecStart=/usr/bin/kubelet\nRestart=always\n[Install]\nWantedBy=multi-user.target\n",
    );
    put(
        dir,
        "usr/lib/systemd/system/sshd.service",
        "[Service]\nExecStart=/usr/sbin/sshd -D\n[Install]\nWantedBy=multi-user.target\n",
    );
    for unit in ["ecs.service", "kubelet.service", "sshd.service"] {
        enable(dir, unit);
    }
    put(dir, "var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n");
    put(dir, "etc/ecs/ecs.config", "");
    put(dir, "var/lib/dpkg/info/amazon-ecs-init.list", "/usr/lib/systemd/system/ecs.service\n");
    put(dir, "var/lib/dpkg/status", "Package: amazon-ecs-init\nVersion: 1.86.3-1\n");
}

#[test]
fn the_agent_that_the_base_image_brought_is_found_before_it_boots() {
    let dir = tempfile::tempdir().unwrap();
    image(dir.path());
    let (units, judgements) = audit(dir.path());
    let of = |name: &str| judgements.iter().find(|j| j.unit == name).unwrap();
    let ecs = of("ecs.service");
    assert_eq!((ecs.verdict, ecs.certainty, ecs.harm), (Verdict::Unused, Certainty::Likely, Harm::CannotSee));
    assert!(ecs.why[0].text.contains("/etc/ecs/ecs.config is empty"), "{ecs}");
    assert!(ecs.why[1].text.contains("kubelet"), "{ecs}");
    assert_eq!(of("kubelet.service").verdict, Verdict::Fine);
    assert_eq!(of("sshd.service").verdict, Verdict::Fine);
    let package = units.iter().find(|u| u.name == "ecs.service").unwrap().package.clone().unwrap();
    assert_eq!((package.name.as_str(), package.version.as_deref()), ("amazon-ecs-init", Some("1.86.3-1")));

    // Once configured, it is not unused, but the node has two owners.
    put(dir.path(), "etc/ecs/ecs.config", "ECS_CLUSTER=training\n");
    let verdicts = |judgements: &[Judgement]| {
        ["ecs.service", "kubelet.service"].map(|n| judgements.iter().find(|j| j.unit == n).unwrap().verdict)
    };
    assert_eq!(verdicts(&audit(dir.path()).1), [Verdict::Conflict; 2]);
    fs::remove_file(dir.path().join("etc/systemd/system/multi-user.target.wants/kubelet.service")).unwrap();
    assert_eq!(verdicts(&audit(dir.path()).1), [Verdict::Fine; 2]);
}

#[test]
fn an_images_changes_are_drift_from_its_baseline() {
    let dir = tempfile::tempdir().unwrap();
    image(dir.path());
    let good = Baseline::of(&audit(dir.path()).0, None, None);
    put(dir.path(), "usr/lib/systemd/system/new-agent.service", "[Service]\nExecStart=/opt/agent\n");
    put(dir.path(), "etc/systemd/system/kubelet.service.d/10-flags.conf", "[Service]\nEnvironment=A=b\n");
    fs::remove_file(dir.path().join("usr/lib/systemd/system/sshd.service")).unwrap();
    let good = Baseline::parse(&good.to_json()).unwrap();
    let drift = compare(&good, &Baseline::of(&audit(dir.path()).0, None, None));
    assert_eq!(drift.new.iter().map(|u| u.name.as_str()).collect::<Vec<_>>(), ["new-agent.service"]);
    assert_eq!(drift.gone.iter().map(|u| u.name.as_str()).collect::<Vec<_>>(), ["sshd.service"]);
    assert_eq!(drift.changed.len(), 1);
    assert_eq!(
        (drift.changed[0].name.as_str(), drift.changed[0].changes[0].what),
        ("kubelet.service", Aspect::Content)
    );
}

#[test]
fn a_plain_debian_has_nothing_unused() {
    let root = coroner_lab::scenarios::systemd_root::location().unwrap();
    if !root.join("lib/systemd/systemd").exists() {
        return coroner_lab::skip("no root file system; make it with coroner-lab root");
    }
    let (units, judgements) = audit(&root);
    assert!(units.len() > 100);
    assert!(!judgements.is_empty());
    for judgement in &judgements {
        assert!(matches!(judgement.verdict, Verdict::Fine | Verdict::CannotTell), "{judgement}");
    }
}

#[test]
fn every_key_of_the_catalogue_is_documented() {
    let docs = include_str!("../../../../docs/catalogue.md");
    let source = include_str!("../../../diagnosis/src/agents/catalogue.rs");
    let forms = &source[source.find("struct FileForm").unwrap()..source.find("impl Catalogue").unwrap()];
    let keys: Vec<&str> = forms
        .lines()
        .filter_map(|l| l.strip_prefix("    ")?.split_once(": "))
        .map(|(key, _)| key)
        .filter(|k| k.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        .collect();
    assert!(keys.len() > 15, "{keys:?}");
    for key in keys {
        assert!(docs.contains(&format!("| `{key}` |")), "{key} is not in docs/catalogue.md");
    }
}
