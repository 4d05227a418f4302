//! `coroner units` on a real systemd with known units and agents, on broken buses, and on an image.
//!
//! Each scenario has a systemd, a bus and cgroups of its own. Tests that judge a whole diagnosis, or expect no finding, are alone: it also
//! speaks of cgroups that other tests leave. Those that look only at their own units share the machine.

use crate::support::*;
use coroner_lab::{HostLock, LiveScenario};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

/// The findings about units and agents.
const UNIT_CODES: [&str; 7] = [
    "unit-crashloop",
    "unit-churn",
    "unit-failing",
    "container-crashloop",
    "agent-unused",
    "agent-conflict",
    "unit-drift",
];

/// The lab's loops restart a few times a second; a busy machine makes them slower, never faster.
const LOOPS_PER_HOUR: std::ops::RangeInclusive<f64> = 1_800.0..=40_000.0;

/// The audit must have worked: 1 is only for drift, 2 if it could not look.
fn audit_of(output: &Output) -> Value {
    let audit = json_of(output);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(audit["schema"], "coroner.units/1");
    audit
}

fn audit(scenario: &LiveScenario, watch: &str) -> Value {
    audit_of(&coroner(&["units", "--json", "--for", watch, "--bus", fact(scenario, "bus")]))
}

/// Audit and diagnosis of the same seconds.
fn audit_and_diagnosis(scenario: &LiveScenario, watch: &str) -> (Value, Value) {
    let diagnose = ["diagnose", "--json", "--for", watch, "--bus", fact(scenario, "bus")];
    std::thread::scope(|scope| {
        let diagnosis = scope.spawn(|| coroner(&diagnose));
        (audit(scenario, watch), json_of(&diagnosis.join().unwrap()))
    })
}

fn number(scenario: &LiveScenario, name: &str) -> u64 {
    scenario.truth.facts[name].as_u64().unwrap_or_else(|| panic!("{name} of {:?}", scenario.truth.facts))
}

fn unit<'a>(audit: &'a Value, name: &str) -> &'a Value {
    let units = audit["units"].as_array().unwrap_or_else(|| panic!("no units in {audit:#}"));
    let found = units.iter().find(|u| u["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} among {} units; unseen: {:#}", units.len(), audit["unseen"]))
}

fn judgement<'a>(audit: &'a Value, unit: &str) -> &'a Value {
    let judgements = audit["judgements"].as_array().unwrap_or_else(|| panic!("no judgements in {audit:#}"));
    judgements.iter().find(|j| j["unit"] == unit).unwrap_or_else(|| panic!("nothing about {unit}: {judgements:#?}"))
}

fn reasons(judgement: &Value) -> Vec<&str> {
    judgement["why"].as_array().unwrap().iter().map(|r| r["kind"].as_str().unwrap()).collect()
}

fn finding<'d>(document: &'d Value, code: &str, unit: &str) -> &'d Value {
    let about = |f: &&Value| f["code"] == code && f["subject"]["kind"] == "unit" && f["subject"]["name"] == unit;
    let all = findings(document);
    all.iter().find(about).unwrap_or_else(|| panic!("no {code} about {unit} in {all:#?}"))
}

/// Findings about units and agents, one line each.
fn unit_findings(document: &Value) -> Vec<String> {
    let about_units = |f: &&Value| UNIT_CODES.iter().any(|c| f["code"] == *c);
    findings(document).iter().filter(about_units).map(|f| format!("{}: {}", f["code"], f["title"])).collect()
}

fn assert_rate(per_hour: &Value, what: &Value) {
    assert!(per_hour.as_f64().is_some_and(|r| LOOPS_PER_HOUR.contains(&r)), "{per_hour} per hour: {what:#}");
}

/// Counts dead cgroups from before and after it was ready. The last one may still be alive, and the kernel may at any time reclaim the
/// page cache that keeps every second one.
fn assert_zombies(zombies: &Value, at_ready: u64, since: u64) {
    let (least, most) = ((at_ready / 2).saturating_sub(2), at_ready + since + 2);
    let fits = zombies.as_u64().is_some_and(|n| (least..=most).contains(&n));
    assert!(fits, "{zombies} dead cgroups, expected {least} to {most}");
}

#[test]
fn a_crashloop_is_reported_with_its_rate_and_leaked_cgroups() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let scenario = start_scenario("crashloop-leak", &[]);
    let name = fact(&scenario, "unit").to_owned();
    let dir = tempfile::tempdir().unwrap();
    let recording = dir.path().join("loop.coroner");
    let recording = recording.to_str().unwrap();

    let (live, diagnosis) = audit_and_diagnosis(&scenario, "3s");
    let ecs = unit(&live, &name);
    assert_rate(&ecs["loop"]["per_hour"], ecs);
    assert_eq!(ecs["enablement"], "enabled", "{ecs:#}");
    // The last look may meet it in the moment in which it runs again; then systemd may no longer tell how it ended.
    let runs = ecs["sub_state"] == "running" && ecs["exit_status"].is_null();
    assert!(runs || ecs["exit_status"] == 1, "{ecs:#}");
    assert_eq!(ecs["package"]["name"], fact(&scenario, "package"), "{ecs:#}");
    assert_eq!(ecs["package"]["version"], fact(&scenario, "package_version"), "{ecs:#}");
    let found = finding(&live, "unit-crashloop", &name);
    assert_ne!(found["severity"], "info");
    let leaked = ecs["zombies"].as_u64().unwrap_or_else(|| panic!("its dead cgroups are unknown: {ecs:#}"));
    assert!(found.to_string().contains(&leaked.to_string()), "{leaked} leaked cgroups are not mentioned: {found:#}");
    // It is also an agent that nobody configured.
    let judged = judgement(&live, &name);
    assert_eq!(judged["verdict"], "unused", "{judged:#}");
    assert!(reasons(judged).contains(&"config-missing") && reasons(judged).contains(&"restarts"), "{judged:#}");
    finding(&live, "agent-unused", &name);

    // `diagnose` finds it as well, and so does a recording.
    assert_truth(&scenario.truth, &diagnosis);
    json_of(&coroner(&["record", "--json", "--for", "3s", "--bus", fact(&scenario, "bus"), "-o", recording]));
    let at_ready = number(&scenario, "leaked");
    let measured = scenario.stop().unwrap();
    let since = measured["memcgs_leaked"].as_u64().unwrap();
    assert_zombies(&ecs["zombies"], at_ready, since);

    let recorded = audit_of(&coroner(&["units", "--json", "--from", recording]));
    assert_rate(&unit(&recorded, &name)["loop"]["per_hour"], unit(&recorded, &name));
    finding(&recorded, "unit-crashloop", &name);
}

#[test]
fn reset_failed_does_not_hide_a_crashloop() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let scenario = start_scenario("crashloop-reset", &[]);
    let name = fact(&scenario, "unit").to_owned();
    let live = audit(&scenario, "3s");
    let measured = scenario.stop().unwrap();
    assert!(measured["resets"].as_u64() >= Some(3), "{measured}");
    let ecs = unit(&live, &name);
    assert!(ecs["restarts"].as_u64() <= Some(10), "systemd's own count was reset: {ecs:#}");
    // Restarts that the reset hid may be missing from the rate.
    assert!(ecs["loop"]["per_hour"].as_f64().is_some_and(|r| r > 0.0), "{ecs:#}");
    finding(&live, "unit-crashloop", &name);
}

#[test]
fn a_supervisor_that_respawns_its_child_churns_without_a_restart() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let scenario = start_scenario("supervised-churn", &[]);
    let name = fact(&scenario, "unit").to_owned();
    let (live, diagnosis) = audit_and_diagnosis(&scenario, "3s");
    assert_truth(&scenario.truth, &diagnosis);
    assert_truth(&scenario.truth, &live);
    let supervisor = unit(&live, &name);
    assert_eq!((&supervisor["restarts"], &supervisor["loop"]), (&0.into(), &Value::Null), "{supervisor:#}");
    let churn = supervisor["churn"].as_array().unwrap_or_else(|| panic!("no churn in {supervisor:#}"));
    let of = |kind: &str| churn.iter().find(|c| c["kind"] == kind).unwrap_or_else(|| panic!("no {kind} in {churn:#?}"));
    let cgroups = of("cgroups");
    assert_eq!(cgroups["parent"], fact(&scenario, "unit_cgroup"), "{cgroups:#}");
    let one = format!("{}.7", fact(&scenario, "child"));
    assert!(coroner_evidence::pattern_covers(cgroups["pattern"].as_str().unwrap(), &one), "{one}: {cgroups:#}");
    assert_rate(&cgroups["per_hour"], cgroups);
    let children = of("children");
    assert_eq!(children["comm"], fact(&scenario, "child"), "{children:#}");
    assert_eq!(children["exit_code"], scenario.truth.facts["exit_status"], "{children:#}");
    assert_rate(&children["per_hour"], children);
    let at_ready = number(&scenario, "leaked");
    let measured = scenario.stop().unwrap();
    assert_zombies(&supervisor["zombies"], at_ready, measured["born"].as_u64().unwrap());
}

#[test]
fn an_administrators_restarts_are_no_finding() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let scenario = start_scenario("admin-restarts", &[]);
    // Both watch while the service is restarted.
    let (live, diagnosis) = audit_and_diagnosis(&scenario, "4s");
    assert_eq!(unit_findings(&live), Vec::<String>::new());
    assert_eq!(unit_findings(&diagnosis), Vec::<String>::new());
    let web = unit(&live, fact(&scenario, "unit"));
    assert_eq!((&web["active_state"], &web["churn"]), (&"active".into(), &Value::Null), "{web:#}");
    let measured = scenario.stop().unwrap();
    assert_eq!(measured["restarted"], 2, "the scenario did not restart it as planned: {measured}");
}

#[test]
fn a_job_that_fails_now_and_then_is_info() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let scenario = start_scenario("failing-oneshot", &[]);
    let (live, diagnosis) = audit_and_diagnosis(&scenario, "3s");
    assert_truth(&scenario.truth, &live);
    assert_eq!(finding(&live, "unit-failing", fact(&scenario, "unit"))["severity"], "info");
    assert_truth(&scenario.truth, &diagnosis);
}

#[test]
fn an_agent_without_configuration_beside_a_kubelet_is_unused() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let scenario = start_scenario("agent-unused", &[]);
    let name = fact(&scenario, "unit");
    let (live, diagnosis) = audit_and_diagnosis(&scenario, "2s");
    assert_truth(&scenario.truth, &live);
    let judged = judgement(&live, name);
    assert_eq!(judged["verdict"], "unused", "{judged:#}");
    assert!(reasons(judged).contains(&"config-missing") && reasons(judged).contains(&"competing-owner"), "{judged:#}");
    let found = finding(&live, "agent-unused", name).to_string();
    for part in ["kubelet", fact(&scenario, "config"), "systemctl disable --now ecs.service"] {
        assert!(found.contains(part), "{part} is not in {found}");
    }
    assert_eq!(unit(&live, name)["enablement"], "enabled");
    assert_truth(&scenario.truth, &diagnosis);

    // The same files, audited as an image.
    let image = audit_of(&coroner(&["units", "--json", "--root", fact(&scenario, "root")]));
    assert_eq!(judgement(&image, name)["verdict"], "unused", "{:#}", judgement(&image, name));
    finding(&image, "agent-unused", name);
}

#[test]
fn a_configured_agent_is_fine_unless_another_owns_the_node() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let configured = start_scenario("agent-configured", &[]);
    let live = audit(&configured, "2s");
    assert_eq!(unit_findings(&live), Vec::<String>::new());
    assert_eq!(judgement(&live, fact(&configured, "unit"))["verdict"], "fine", "{:#}", live["judgements"]);
    drop(configured);
    let beside = start_scenario("agent-conflict", &[]);
    let live = audit(&beside, "2s");
    assert_eq!(judgement(&live, fact(&beside, "unit"))["verdict"], "conflict", "{:#}", live["judgements"]);
    let found = findings(&live).iter().find(|f| f["code"] == "agent-conflict");
    let found = found.unwrap_or_else(|| panic!("no agent-conflict in {:#}", live["findings"])).to_string();
    assert!(found.contains(fact(&beside, "unit")) && found.contains("kubelet"), "{found}");
    assert!(!unit_findings(&live).iter().any(|f| f.contains("agent-unused")), "{:#}", live["findings"]);
}

/// It says that it is blind, finds nothing and rules nothing out.
fn assert_blind(document: &Value, how: &str) {
    let unseen = document["unseen"].as_array().unwrap();
    let about_units = unseen.iter().find(|u| u["probe"] == "units");
    let said = about_units.unwrap_or_else(|| panic!("{how}: units are not listed as unseen: {unseen:#?}"));
    assert!(said["why"].as_str().is_some_and(|why| why.contains("bus")), "{how}: {said:#}");
    assert_eq!(unit_findings(document), Vec::<String>::new(), "{how}");
    let ruled_out = document["ruled_out"].as_array().into_iter().flatten();
    let ruled_out: Vec<&str> = ruled_out.filter_map(|r| r["code"].as_str()).collect();
    for code in ["unit-crashloop", "unit-failing"] {
        assert!(!ruled_out.contains(&code), "{how}: {code} was ruled out without a look");
    }
}

/// Looks through all of these buses at the same time.
fn look_through(buses: &Value, look: impl Fn(&str) -> Output + Sync) -> Vec<(String, Value)> {
    let look = &look;
    std::thread::scope(|scope| {
        let looks: Vec<_> = buses
            .as_object()
            .unwrap()
            .iter()
            .map(|(how, address)| {
                let look = scope.spawn(move || {
                    let start = Instant::now();
                    let out = look(address.as_str().unwrap());
                    // The buses hang for as long as the test lasts.
                    assert!(start.elapsed() < Duration::from_secs(120), "{how}: {:?}", start.elapsed());
                    out
                });
                (how.clone(), look)
            })
            .collect();
        looks.into_iter().map(|(how, look)| (how, json_of(&look.join().unwrap()))).collect()
    })
}

#[test]
fn a_hanging_bus_is_reported_in_time_and_hides_nothing_else() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let zombies = start_scenario("zombies", &[]);
    let scenario = start_scenario("hanging-bus", &[]);
    let buses = &scenario.truth.facts["buses"];
    for (how, audit) in look_through(buses, |bus| coroner(&["units", "--json", "--for", "1s", "--bus", bus])) {
        assert_blind(&audit, &how);
        assert!(!audit["cgroups"].as_array().unwrap().is_empty(), "{how}: processes and cgroups are still there");
    }
    for (how, diagnosis) in look_through(buses, |bus| coroner(&["diagnose", "--json", "--for", "1s", "--bus", bus])) {
        assert_blind(&diagnosis, &how);
        assert_truth(&zombies.truth, &diagnosis);
    }
    let came = scenario.stop().unwrap();
    let came = came["connections"].as_object().unwrap();
    assert!(came.values().all(|n| n.as_u64() >= Some(2)), "it did not try each of them: {came:?}");
}

#[test]
fn a_bus_lost_in_the_middle_finds_nothing_and_rules_nothing_out() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let scenario = start_scenario("severed-bus", &[]);
    let buses = &scenario.truth.facts["buses"];
    for (how, diagnosis) in look_through(buses, |bus| coroner(&["diagnose", "--json", "--for", "1s", "--bus", bus])) {
        assert_blind(&diagnosis, &how);
    }
    for (how, audit) in look_through(buses, |bus| coroner(&["units", "--json", "--for", "1s", "--bus", bus])) {
        assert_blind(&audit, &how);
    }
    // Behind them, all is well.
    let live = audit(&scenario, "1s");
    assert_eq!(unit_findings(&live), Vec::<String>::new());
    assert_eq!(unit(&live, fact(&scenario, "unit"))["active_state"], "active");
}

#[test]
fn without_systemd_processes_and_cgroups_are_audited() {
    let Some(_host) = HostLock::share_as_root() else { return };
    if Path::new("/run/systemd/system").exists() {
        return coroner_lab::skip("systemd runs this node");
    }
    let audit = audit_of(&coroner(&["units", "--json", "--for", "1s"]));
    let unseen = audit["unseen"].as_array().unwrap();
    assert!(unseen.iter().any(|u| u["why"].as_str().unwrap().contains("systemd is not running")), "{unseen:#?}");
    assert_eq!(audit["systemd"], false);
    assert!(!audit["cgroups"].as_array().unwrap().is_empty());
}

/// An unbooted Kubernetes node image whose base came with the ECS agent enabled.
fn image(dir: &Path) {
    put(dir, "etc/os-release", "PRETTY_NAME=\"Deep Learning Base\"\nID=ubuntu\n");
    let service = |command: &str| format!("[Service]\nExecStart={command}\n[Install]\nWantedBy=multi-user.target\n");
    let wants = dir.join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).unwrap();
    for (unit, command) in
        [("ecs.service", "/usr/libexec/amazon-ecs-init start"), ("kubelet.service", "/usr/bin/kubelet")]
    {
        put(dir, &format!("usr/lib/systemd/system/{unit}"), &service(command));
        symlink(format!("/usr/lib/systemd/system/{unit}"), wants.join(unit)).unwrap();
    }
    put(dir, "var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n");
    put(dir, "var/lib/dpkg/info/amazon-ecs-init.list", "/usr/lib/systemd/system/ecs.service\n");
    put(dir, "var/lib/dpkg/status", "Package: amazon-ecs-init\nStatus: install ok installed\nVersion: 1.86.3-1\n");
}

#[test]
fn an_image_is_audited_before_it_boots() {
    let dir = tempfile::tempdir().unwrap();
    image(dir.path());
    let run = || coroner(&["units", "--json", "--root", dir.path().to_str().unwrap()]);
    let audit = audit_of(&run());
    let judged = judgement(&audit, "ecs.service");
    assert_eq!(judged["verdict"], "unused", "{judged:#}");
    assert!(reasons(judged).contains(&"config-missing") && reasons(judged).contains(&"competing-owner"), "{judged:#}");
    finding(&audit, "agent-unused", "ecs.service");
    let ecs = unit(&audit, "ecs.service");
    assert_eq!((&ecs["enablement"], &ecs["active_state"]), (&"enabled".into(), &Value::Null), "{ecs:#}");
    assert_eq!(ecs["package"]["name"], "amazon-ecs-init", "{ecs:#}");
    assert_eq!(judgement(&audit, "kubelet.service")["verdict"], "fine");

    // Configured for a cluster, it is no longer unused.
    put(dir.path(), "etc/ecs/ecs.config", "ECS_CLUSTER=training\n");
    fs::remove_file(dir.path().join("etc/systemd/system/multi-user.target.wants/kubelet.service")).unwrap();
    assert_eq!(unit_findings(&audit_of(&run())), Vec::<String>::new());
}

#[test]
fn drift_from_the_baseline_is_exit_code_1() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, file) = (dir.path().join("image"), dir.path().join("good.json"));
    image(&tree);
    let run = || coroner(&["units", "--json", "--root", tree.to_str().unwrap(), "--baseline", file.to_str().unwrap()]);
    let stored = audit_of(&run());
    assert_eq!((file.exists(), &stored["drift"]), (true, &Value::Null), "the first run stores: {:#}", stored["drift"]);
    let same = audit_of(&run());
    for part in ["new", "gone", "changed"] {
        assert_eq!(same["drift"][part], serde_json::json!([]), "{part}");
    }
    put(&tree, "usr/lib/systemd/system/miner.service", "[Service]\nExecStart=/opt/miner\n");
    let out = run();
    let drifted = json_of(&out);
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(drifted["drift"]["new"][0]["name"], "miner.service", "{:#}", drifted["drift"]);
    assert!(findings(&drifted).iter().any(|f| f["code"] == "unit-drift" && f.to_string().contains("miner.service")));
}

#[test]
fn failing_to_examine_is_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().to_str().unwrap();
    for (args, says) in [
        (&["units", "--root", "/nonexistent"][..], "/nonexistent"),
        (&["units", "--root", empty], empty),
        (&["units", "--from", "/dev/null"], "/dev/null"),
        (&["units", "--root", empty, "--bus", "unix:path=/x"], "cannot be used with"),
        (&["units", "--catalogue", "/nonexistent.toml"], "/nonexistent.toml"),
    ] {
        let out = coroner(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(error.contains(says), "{args:?}: {error}");
        assert!(out.stdout.is_empty());
    }
}
