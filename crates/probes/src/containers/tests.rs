use super::*;
use crate::Root;
use crate::test_tree::write;
use coroner_evidence::{Container, Wall};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

fn seen(root: &Path) -> Evidence {
    let mut evidence = Evidence::default();
    look(&Tree::open(&Root::at(root)).unwrap(), Time::from_secs(5), &mut evidence);
    evidence
}

fn one<'a>(evidence: &'a Evidence, name: &str) -> &'a Container {
    evidence.containers.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("{name}: {evidence:?}"))
}

const UID: &str = "8f1e3c9a-0b7d-4c55-9d2a-6f2b1a0c3e4d";

#[test]
fn a_node_without_containers_reports_nothing() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(seen(dir.path()), Evidence::default());
}

#[test]
fn pods_logged_by_containerd() {
    let dir = tempfile::tempdir().unwrap();
    let pod = format!("var/log/pods/default_trainer-7f5c7d4f9b-abcde_{UID}");
    write(dir.path(), format!("{pod}/worker/41.log"), "2023-11-14T22:13:20.5Z stderr F no GPU\n");
    write(dir.path(), format!("{pod}/worker/42.log"), "2023-11-14T22:18:20.5Z stderr F no GPU\n");
    write(dir.path(), format!("{pod}/worker/42.log.20231114-223000.gz"), "\x1f\u{8b}");
    write(dir.path(), format!("{pod}/istio-proxy/0.log"), "");
    write(dir.path(), "var/log/pods/kube-system_etcd-node_0f3b3a5f2b0c4ab0b5b7b8a2c1d0e9f8/etcd/2.log", "garbage");
    fs::create_dir_all(dir.path().join(&pod).join("new-and-empty")).unwrap();
    write(dir.path(), "var/log/pods/README", "not a pod");

    let evidence = seen(dir.path());
    assert_eq!((evidence.containers.len(), evidence.unseen.len()), (3, 0), "{evidence:?}");
    let worker = one(&evidence, "worker");
    assert_eq!((worker.runtime.as_str(), worker.restarts, worker.at), ("kubelet", 42, Time::from_secs(5)));
    assert_eq!(worker.pod.as_deref(), Some("trainer-7f5c7d4f9b-abcde"));
    assert_eq!((worker.namespace.as_deref(), worker.pod_uid.as_deref()), (Some("default"), Some(UID)));
    assert_eq!(worker.started, Some(Wall(1_700_000_300_500_000_000)));
    assert_eq!(worker.first_started, Some(Wall(1_700_000_000_500_000_000)));
    assert_eq!(one(&evidence, "istio-proxy").restarts, 0);
    assert_eq!(one(&evidence, "etcd").restarts, 2);
}

#[test]
fn pods_logged_by_docker() {
    let dir = tempfile::tempdir().unwrap();
    let id = "86199ab4c77bb43a21bef6b7e711bed3c30baa7dc50de3182de3c73d2ba116b7";
    let log = format!("var/lib/docker/containers/{id}/{id}-json.log");
    write(dir.path(), &log, "{\"log\":\"x\\n\",\"stream\":\"stdout\",\"time\":\"2023-11-14T22:13:20Z\"}\n");
    let place = dir.path().join(format!("var/log/pods/default_web_{UID}/nginx"));
    fs::create_dir_all(&place).unwrap();
    symlink(format!("/{log}"), place.join("7.log")).unwrap();
    let evidence = seen(dir.path());
    let nginx = one(&evidence, "nginx");
    assert_eq!((nginx.restarts, nginx.id.as_deref()), (7, Some(id)));
    assert_eq!(nginx.started, Some(Wall(1_700_000_000_000_000_000)));
}

#[test]
fn containers_of_docker() {
    let dir = tempfile::tempdir().unwrap();
    let config = |name: &str, restarts: u32, state: &str| {
        format!(
            r#"{{"StreamConfig":{{}},"State":{{{state}}},"ID":"{name}0001","Created":"2023-11-14T22:13:20Z","Managed":false,
                "Path":"sh","Args":["-c","exit 3"],"Name":"/{name}","Driver":"overlay2","RestartCount":{restarts}}}"#
        )
    };
    let looping = r#""Running":true,"Paused":false,"Restarting":true,"Pid":0,"ExitCode":3,"Error":"",
        "StartedAt":"2023-11-14T23:13:20Z","FinishedAt":"2023-11-14T23:13:21Z","Health":null"#;
    let running = r#""Running":true,"Restarting":false,"Pid":7,"ExitCode":0,"StartedAt":"2023-11-14T23:13:20Z""#;
    let created = r#""Running":false,"ExitCode":0,"StartedAt":"0001-01-01T00:00:00Z""#;
    write(dir.path(), "etc/docker/daemon.json", r#"{"data-root": "/data/docker/"}"#);
    let at = |name: &str| format!("data/docker/containers/{name}0001/config.v2.json");
    write(dir.path(), at("ecs-agent"), config("ecs-agent", 118, looping));
    write(dir.path(), at("web"), config("web", 0, running));
    write(dir.path(), at("fresh"), config("fresh", 0, created));
    fs::create_dir_all(dir.path().join("data/docker/containers/being-made")).unwrap();

    let evidence = seen(dir.path());
    assert_eq!(
        (evidence.containers.len(), evidence.unseen.len()),
        (2, 0),
        "a stopped container does not loop: {evidence:?}"
    );
    let agent = one(&evidence, "ecs-agent");
    assert_eq!((agent.restarts, agent.exit_code, agent.id.as_deref()), (118, Some(3), Some("ecs-agent0001")));
    assert_eq!(agent.started, Some(Wall(1_700_003_600_000_000_000)));
    assert_eq!(agent.first_started, Some(Wall(1_700_000_000_000_000_000)));
    assert_eq!(one(&evidence, "web").exit_code, None, "it runs");

    write(dir.path(), at("web"), "{ half a fi");
    let evidence = seen(dir.path());
    assert_eq!(evidence.containers.len(), 1);
    assert!(evidence.unseen[0].why.contains("web0001/config.v2.json"), "{:?}", evidence.unseen);
}

#[test]
fn too_many_containers_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..MAX_CONTAINERS + 50 {
        write(dir.path(), format!("var/log/pods/ns_pod-{n}_{UID}/c/0.log"), "");
    }
    let evidence = seen(dir.path());
    assert!(evidence.containers.len() <= MAX_CONTAINERS);
    assert!(evidence.unseen[0].why.starts_with("only "), "{:?}", evidence.unseen);
}
