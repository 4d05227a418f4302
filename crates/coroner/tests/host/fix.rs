//! `coroner fix` and `coroner undo` on a real systemd, real cgroups and a real starved NIC: plan, apply, effect, undo, and failures in
//! the middle.
//!
//! Tests that plan for units of their own systemd share the machine. Those whose plan is about the whole node, or about cores, are alone.

use crate::support::*;
use coroner_lab::{Child, HostLock, LiveScenario, node};
use coroner_probes::Root;
use coroner_probes::units::Manager;
use coroner_remedy::steps::{Action, DisableUnit, Hands, IsolateUnit, MaskUnit, StepError};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::AtomicBool;

/// Long enough to plan, apply, measure and undo several times.
fn long(name: &str) -> LiveScenario {
    LiveScenario::start(name, &["--seconds", "1800"]).unwrap_or_else(|e| panic!("{name}: {e:#}"))
}

/// A scenario with its own systemd, and a journal.
struct Node {
    scenario: LiveScenario,
    bus: String,
    root: PathBuf,
    journal: tempfile::TempDir,
}

impl Node {
    fn start(name: &str) -> Node {
        let scenario = long(name);
        let (bus, root) = (fact(&scenario, "bus").to_owned(), PathBuf::from(fact(&scenario, "root")));
        Node { scenario, bus, root, journal: tempfile::tempdir().unwrap() }
    }

    fn journal(&self) -> &str {
        self.journal.path().to_str().unwrap()
    }

    fn args<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let mut args = vec!["fix"];
        args.extend(more);
        args.extend(["--for", "3s", "--bus", &self.bus, "--root", self.root.to_str().unwrap()]);
        args.extend(["--journal", self.journal()]);
        args
    }

    fn plan(&self, more: &[&str]) -> Value {
        let plan = json_of(&coroner(&self.args(&[more, &["--json"]].concat())));
        assert_eq!(plan["schema"], "coroner.fix-plan/1");
        plan
    }

    fn apply(&self, more: &[&str]) -> (Value, Option<i32>) {
        let out = coroner(&self.args(&[more, &["--apply", "--yes", "--json", "--verify-for", "3s"]].concat()));
        let done = json_of(&out);
        assert_eq!(done["schema"], "coroner.fix/1");
        (done, out.status.code())
    }

    fn undo(&self) -> (Value, Option<i32>) {
        let out = coroner(&["undo", "--json", "--journal", self.journal()]);
        let undone = json_of(&out);
        assert_eq!(undone["schema"], "coroner.undo/1");
        (undone, out.status.code())
    }

    fn systemctl(&self, args: &[&str]) -> String {
        let leader = self.scenario.truth.facts["leader"].to_string();
        let out =
            Command::new("nsenter").args(["-t", &leader, "-a", "systemctl"]).args(args).output().expect("nsenter");
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }

    fn enablement(&self) -> String {
        self.systemctl(&["is-enabled", "ecs.service"])
    }

    fn property(&self, name: &str) -> String {
        self.systemctl(&["show", "-P", name, "ecs.service"])
    }

    /// It leaves one file per dead cgroup.
    fn starts(&self) -> usize {
        fs::read_dir(self.root.join("var/lib/ecs")).unwrap().count()
    }

    fn link(&self) -> PathBuf {
        self.root.join("etc/systemd/system/multi-user.target.wants/ecs.service")
    }
}

fn step<'d>(document: &'d Value, kind: &str) -> &'d Value {
    let steps = document["steps"].as_array().unwrap_or_else(|| panic!("no steps in {document:#}"));
    steps.iter().find(|step| step["kind"] == kind).unwrap_or_else(|| panic!("no {kind} in {document:#}"))
}

fn kinds(document: &Value) -> Vec<&str> {
    document["steps"].as_array().unwrap().iter().map(|step| step["kind"].as_str().unwrap()).collect()
}

fn measured<'d>(step: &'d Value, what: &str) -> &'d Value {
    let all = step["measured"].as_array().unwrap();
    all.iter().find(|m| m["what"] == what).unwrap_or_else(|| panic!("{what} was not measured: {step:#}"))
}

#[test]
fn a_leaking_crashloop_is_stopped_its_dead_cgroups_freed_and_all_is_undone() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let node = Node::start("crashloop-leak");
    wait_until("it left some", || node.starts() >= 16);
    let link = fs::read_link(node.link()).unwrap();

    let plan = node.plan(&[]);
    assert_eq!(kinds(&plan), ["disable-unit", "mask-unit", "free-zombies"], "{plan:#}");
    assert_eq!(step(&plan, "disable-unit")["commands"][0], "systemctl disable --now ecs.service");
    assert!(
        plan["files"].as_array().unwrap().iter().any(|f| f["path"].as_str().unwrap().contains("/ecs/f.")),
        "{plan:#}"
    );
    assert!(plan["reboot"]["commands"].to_string().contains("systemctl reboot"), "{plan:#}");
    assert_eq!(
        (node.enablement().as_str(), node.journal.path().read_dir().unwrap().count()),
        ("enabled", 0),
        "only planned"
    );
    let before = node.starts();
    wait_until("it still loops", || node.starts() > before);

    let (done, code) = node.apply(&[]);
    let off = step(&done, "disable-unit");
    assert_eq!((&off["effect"], &step(&done, "mask-unit")["effect"]), (&"worked".into(), &"worked".into()), "{done:#}");
    assert_eq!(measured(off, "restarts")["after"], 0.0, "{off:#}");
    assert!(measured(off, "restarts")["before"].as_f64() > Some(1000.0), "{off:#}");
    assert_eq!(measured(off, "growth")["after"], 0.0, "{off:#}");
    let freed = step(&done, "free-zombies");
    let (went, stay) = (freed["after"]["freed"].as_u64().unwrap(), freed["after"]["dead_after"].as_u64().unwrap());
    // Page cache kept half of them, but a kernel short of pages reclaims that by itself, from dead cgroups first.
    let kept_by_files = plan_files(&node).len() as f64;
    let kept_by_cache = measured(freed, "dead")["before"].as_f64().unwrap() - kept_by_files;
    println!("{kept_by_cache} dead cgroups were kept by page cache, {went} of {} were freed", went + stay);
    assert!(went as f64 >= kept_by_cache - 5.0, "page cache kept {kept_by_cache}: {freed:#}");
    assert_eq!((code == Some(0), done["worked"].as_bool()), (went > 0, Some(went > 0)), "{done:#}");
    assert!(stay >= 5, "tmpfs files keep the other half: {freed:#}");
    assert!(freed["words"].as_str().unwrap().contains("f.*"), "it does not say why they stay: {freed:#}");
    assert_eq!((node.enablement().as_str(), node.property("ActiveState").as_str() == "active"), ("masked", false));
    assert!(!node.link().exists());
    let after = node.starts();
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(node.starts(), after, "nothing starts it any more");

    // Only deleting the named files frees the rest.
    let files = plan_files(&node);
    let list = node.journal.path().join("files");
    fs::write(&list, files.join("\n")).unwrap();
    let (undone, code) = node.undo();
    assert_eq!(code, Some(0), "{undone:#}");
    assert_eq!(fs::read_link(node.link()).unwrap(), link);
    assert_eq!(node.enablement(), "enabled");
    let before = node.starts();
    wait_until("it loops as before", || node.starts() > before);
    let how: Vec<&str> = undone["steps"].as_array().unwrap().iter().map(|s| s["how"].as_str().unwrap()).collect();
    assert_eq!(how, ["cannot-be-undone", "restored", "restored"], "the last step first: {undone:#}");
    let (again, code) = node.undo();
    assert_eq!((code, &again["run"]), (Some(0), &Value::Null), "nothing is left to undo: {again:#}");

    // Now delete the files that it left.
    let (done, _) = node.apply(&["--delete-files-from", list.to_str().unwrap()]);
    let deleted = step(&done, "delete-files");
    assert_eq!(deleted["outcome"], "done", "{done:#}");
    assert!(deleted["after"]["freed"].as_u64().unwrap() as usize >= files.len() / 2, "{deleted:#}");
    assert!(files.iter().all(|file| !node.root.join(file.trim_start_matches('/')).exists()));
}

/// The files that keep dead cgroups of the unit.
fn plan_files(node: &Node) -> Vec<String> {
    let files = fs::read_dir(node.root.join("var/lib/ecs")).unwrap().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok()).filter(|name| name.starts_with("f."));
    names.map(|name| format!("/var/lib/ecs/{name}")).collect()
}

#[test]
fn an_agent_is_limited_and_undo_removes_the_limits() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let node = Node::start("agent-unused");
    let limit = |node: &Node| {
        let cgroup = format!(
            "/sys/fs/cgroup/memory{}/system.slice/ecs.service/memory.limit_in_bytes",
            fact(&node.scenario, "cgroup")
        );
        let v2 = cgroup.replace("/memory/", "/").replace("memory.limit_in_bytes", "memory.max");
        fs::read_to_string(cgroup).or_else(|_| fs::read_to_string(v2)).unwrap().trim().to_owned()
    };
    let own = limit(&node);
    let wanted = ["agent-unused", "ecs.service", "--isolate", "--limit", "MemoryMax=64M"];
    let (done, code) = node.apply(&wanted);
    assert_eq!((code, kinds(&done)), (Some(0), vec!["isolate-unit"]), "{done:#}");
    let drop_in = node.root.join("run/systemd/system/ecs.service.d/50-coroner-isolate.conf");
    assert!(fs::read_to_string(&drop_in).unwrap().contains("MemoryMax=64M"));
    assert_eq!(limit(&node), (64u64 << 20).to_string(), "the kernel has the limit");
    assert_eq!(
        (node.property("RestartUSec").as_str(), node.property("CPUQuotaPerSecUSec").as_str()),
        ("5min", "200ms")
    );
    assert_eq!(node.property("ActiveState"), "active", "it keeps running");

    let (undone, code) = node.undo();
    assert_eq!(code, Some(0), "{undone:#}");
    assert!(!drop_in.parent().unwrap().exists());
    assert_eq!((limit(&node), node.property("RestartUSec").as_str() == "5min"), (own, false));

    // An administrator's later change is left alone.
    node.apply(&wanted);
    fs::write(&drop_in, "[Service]\nMemoryMax=1G\n").unwrap();
    let (undone, code) = node.undo();
    assert_eq!((code, &undone["steps"][0]["how"]), (Some(1), &"changed-since".into()), "{undone:#}");
    assert!(drop_in.exists());

    // Something is in the way of the drop-in: it stops and says so.
    let forced = coroner(&["undo", "--force", "--journal", node.journal()]);
    assert_eq!(forced.status.code(), Some(0), "{}", String::from_utf8_lossy(&forced.stdout));
    fs::write(drop_in.parent().unwrap(), "in the way").unwrap();
    let (failed, code) = node.apply(&wanted);
    assert_eq!((code, &failed["worked"]), (Some(1), &false.into()), "{failed:#}");
    assert!(failed["stopped"].as_str().unwrap().contains("ecs.service.d"), "{failed:#}");
    let (undone, code) = node.undo();
    assert_eq!((code, &undone["run"]), (Some(0), &Value::Null), "nothing was done that could be undone: {undone:#}");
}

/// The owner of the file tree behind --root may have planted links that lead into ours.
#[test]
fn no_link_in_a_foreign_root_leads_out_of_it() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let node = Node::start("agent-unused");
    let outside = tempfile::tempdir().unwrap();
    let nothing_outside = || assert_eq!(outside.path().read_dir().unwrap().count(), 0, "something was created outside");
    let drop_ins = node.root.join("run/systemd/system/ecs.service.d");
    fs::create_dir_all(drop_ins.parent().unwrap()).unwrap();
    for to in [
        outside.path().to_owned(),
        PathBuf::from("../../../../../../..").join(outside.path().strip_prefix("/").unwrap()),
    ] {
        std::os::unix::fs::symlink(&to, &drop_ins).unwrap();
        let (done, code) = node.apply(&["agent-unused", "ecs.service", "--isolate"]);
        assert_eq!((code, &done["worked"]), (Some(1), &false.into()), "{done:#}");
        assert!(done["stopped"].as_str().unwrap().contains("ecs.service.d"), "{done:#}");
        nothing_outside();
        fs::remove_file(&drop_ins).unwrap();
    }

    // Nor on undo: by now, the directory of its links leads out.
    let (done, code) = node.apply(&["agent-unused", "ecs.service", "--step", "disable-unit"]);
    assert_eq!(code, Some(0), "{done:#}");
    let wants = node.link().parent().unwrap().to_owned();
    // An overlay cannot rename directories of its lower layer.
    let links: Vec<_> = fs::read_dir(&wants).into_iter().flatten().flatten().collect();
    let links: Vec<_> = links.iter().map(|link| (link.path(), fs::read_link(link.path()).unwrap())).collect();
    let _ = fs::remove_dir_all(&wants);
    std::os::unix::fs::symlink(outside.path(), &wants).unwrap();
    let (undone, code) = node.undo();
    assert_eq!((code, &undone["steps"][0]["how"]), (Some(1), &"failed".into()), "{undone:#}");
    nothing_outside();
    fs::remove_file(&wants).unwrap();
    fs::create_dir(&wants).unwrap();
    for (link, to) in links {
        std::os::unix::fs::symlink(to, link).unwrap();
    }

    // A machine id behind a link that leads out does not count.
    let id = node.root.join("etc/machine-id");
    let own = fs::read(&id).unwrap();
    let copy = outside.path().join("machine-id");
    fs::write(&copy, &own).unwrap();
    fs::remove_file(&id).unwrap();
    std::os::unix::fs::symlink(&copy, &id).unwrap();
    let (undone, code) = node.undo();
    assert_eq!(code, Some(1), "read through a link that leads out: {undone:#}");
    fs::remove_file(&id).unwrap();
    fs::write(&id, &own).unwrap();

    // All links are back to normal, so undo works. But a unit that fails again is not restored, and undo says so.
    let broken = drop_ins.join("broken.conf");
    fs::create_dir_all(&drop_ins).unwrap();
    fs::write(&broken, "[Service]\nExecStart=\nExecStart=/bin/false\nRestart=no\n").unwrap();
    node.systemctl(&["daemon-reload"]);
    let (undone, code) = node.undo();
    let words = undone["steps"][0]["words"].as_str().unwrap();
    assert_eq!((code, &undone["steps"][0]["how"]), (Some(1), &"failed".into()), "{undone:#}");
    assert!(words.contains("did not stay up (exit-code)") && words.contains("journalctl -u ecs.service"), "{words}");
    assert_eq!(node.enablement(), "enabled", "its links are restored");
    fs::remove_file(&broken).unwrap();
    node.systemctl(&["daemon-reload"]);
    let (undone, code) = node.undo();
    assert_eq!((code, &undone["steps"][0]["how"]), (Some(0), &"restored".into()), "{undone:#}");
    assert_eq!(node.property("ActiveState"), "active");
}

#[test]
fn leaked_cgroups_are_removed_and_that_cannot_be_undone() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let scenario = LiveScenario::start("cgroup-dir-leak", &["--seconds", "1800"]).unwrap();
    let journal = tempfile::tempdir().unwrap();
    let journal = journal.path().to_str().unwrap();
    let memory =
        ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].iter().map(|top| format!("{top}{}", fact(&scenario, "cgroup")));
    let directory = memory.map(PathBuf::from).find(|dir| dir.is_dir()).unwrap();
    let children = || fs::read_dir(&directory).unwrap().flatten().filter(|e| e.file_type().unwrap().is_dir()).count();
    // One with a process in it is never removed.
    let used = directory.join("used");
    fs::create_dir(&used).unwrap();
    let sleeper = Child::spawn("sleep", Command::new("sleep").arg("1800")).unwrap();
    fs::write(used.join("cgroup.procs"), sleeper.pid().to_string()).unwrap();

    let before = children();
    let plan = json_of(&coroner(&["fix", "cgroup-leak", "--for", "3s", "--json"]));
    let planned = step(&plan, "remove-cgroups");
    assert_eq!((&planned["reversible"], &planned["dangerous"]), (&false.into(), &Value::Null), "{planned:#}");
    assert!(planned["not_fixed"].as_str().unwrap().contains(fact(&scenario, "comm")), "who makes them: {planned:#}");
    assert!(children() >= before, "only planned");
    let mut args = vec!["fix", "cgroup-leak", "--for", "3s", "--step", "remove-cgroups", "--apply", "--yes", "--json"];
    args.extend(["--journal", journal]);
    let out = coroner(&args);
    let done = json_of(&out);
    let left = children();
    let stays = used.is_dir();
    drop(sleeper);
    let _ = fs::remove_dir(&used);
    assert!(stays, "one that was in use was removed: {done:#}");
    assert_eq!((out.status.code(), &done["worked"]), (Some(0), &true.into()), "{done:#}");
    let removed = step(&done, "remove-cgroups");
    assert!(removed["after"]["removed"].as_u64().unwrap() as usize >= before - 1, "{removed:#}");
    let counted = measured(removed, "empty-cgroups");
    assert!(counted["before"].as_f64() > Some(2_000.0), "{counted:#}");
    assert_eq!(removed["effect"], "worked", "{removed:#}");
    assert!(left < before / 4, "{left} of {before} are left; a dozen are created each second");

    // Undo must not claim that they were restored.
    let undone = json_of(&coroner(&["undo", "1", "--json", "--journal", journal]));
    assert_eq!(undone["steps"][0]["how"], "cannot-be-undone", "{undone:#}");
    assert!(children() < before / 2, "they were recreated");
}

fn dropped(scenario: &LiveScenario) -> u64 {
    let sender = &scenario.truth.facts["sender"];
    let file = format!("/sys/class/net/{}/statistics/tx_dropped", sender["device"].as_str().unwrap());
    let out =
        Command::new("ip").args(["netns", "exec", sender["netns"].as_str().unwrap(), "cat", &file]).output().unwrap();
    String::from_utf8_lossy(&out.stdout).trim().parse().unwrap()
}

fn affinity(tid: u64) -> String {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
}

#[test]
fn moving_the_thread_away_ends_the_drops_and_is_undone() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let scenario = long("nic-starved");
    let journal = tempfile::tempdir().unwrap();
    let facts = &scenario.truth.facts;
    let (core, pid) = (facts["core"].as_u64().unwrap(), facts["pid"].as_u64().unwrap());
    // The other of two cores; which one starves is random.
    let other = if core == 0 { "1" } else { "0" };
    let name = format!("move-thread:{}[{pid}]", fact(&scenario, "comm"));
    // The lab keeps its own processes off the starved core. On two cores, the culprit moves to theirs, and the sender would
    // starve there instead.
    for own in node::children_of(scenario.pid()).into_iter().filter(|&own| u64::from(own) != pid) {
        node::threads_of(own).into_iter().try_for_each(node::pin_anywhere).unwrap();
    }
    // Once the culprit is gone, others' work on this core must not make the NAPI thread wait: the effect would be partial. No priority
    // helps it against the culprit's SCHED_FIFO.
    let napi = facts["napi"]["tid"].to_string();
    assert!(Command::new("renice").args(["-n", "-20", "-p", &napi]).stdout(Stdio::null()).status().unwrap().success());
    let before = dropped(&scenario);
    wait_until("packets are dropped", || dropped(&scenario) > before);
    let mut args =
        vec!["fix", "core-monopolised", fact(&scenario, "comm"), "--for", "3s", "--cores", other, "--step", &name];
    args.extend(["--apply", "--yes", "--json", "--journal", journal.path().to_str().unwrap()]);
    let out = coroner(&args);
    let done = json_of(&out);
    assert_eq!(out.status.code(), Some(0), "{done:#}");
    let moved = step(&done, "move-thread");
    assert_eq!((&moved["id"], &moved["effect"]), (&name.into(), &"worked".into()), "{moved:#}");
    let wait = measured(moved, "wait");
    // A thread that sleeps whenever its backlog is done waits less than the core is taken.
    assert!(wait["before"].as_f64() > Some(200.0) && wait["after"].as_f64() < Some(100.0), "{wait:#}");
    assert_eq!(measured(moved, "received")["effect"], "worked", "{moved:#}");
    assert_eq!(affinity(pid), other);
    let calm = dropped(&scenario);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let since = dropped(&scenario) - calm;
    assert!(since < 2_000, "{since} of about 20,000 packets were dropped in this second");

    let undone = json_of(&coroner(&["undo", "--json", "--journal", journal.path().to_str().unwrap()]));
    assert_eq!(undone["whole"], true, "{undone:#}");
    assert_eq!(affinity(pid), core.to_string());
    let before = dropped(&scenario);
    wait_until("packets are dropped again", || dropped(&scenario) > before + 1_000);

    // The alternative: an ordinary thread takes turns.
    let mut args =
        vec!["fix", "core-monopolised", "--for", "2s", "--step", "lower-priority", "--apply", "--yes", "--json"];
    args.extend(["--journal", journal.path().to_str().unwrap()]);
    let done = json_of(&coroner(&args));
    assert_eq!(step(&done, "lower-priority")["outcome"], "done", "{done:#}");
    let policy = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().rsplit(' ').nth(11).unwrap().to_owned();
    assert_eq!(policy(), "0");
    coroner(&["undo", "--journal", journal.path().to_str().unwrap()]);
    assert_eq!(policy(), "1", "SCHED_FIFO again");
}

/// A proxy to the bus that hangs up when it sees a word.
struct Proxy {
    _dir: tempfile::TempDir,
    address: String,
}

impl Proxy {
    fn start(bus: &str, until: &'static str) -> Proxy {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus");
        let listener = UnixListener::bind(&path).unwrap();
        let real = bus.strip_prefix("unix:path=").unwrap().to_owned();
        // Ends with the test.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = UnixStream::connect(&real) else { return };
                let (back, forth) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || forward(back, forth, Some(until)));
                std::thread::spawn(move || forward(server, client, None));
            }
        });
        Proxy { address: format!("unix:path={}", path.display()), _dir: dir }
    }
}

fn forward(mut from: UnixStream, mut to: UnixStream, until: Option<&str>) {
    let mut bytes = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        let heard = until.is_some_and(|word| bytes[..read].windows(word.len()).any(|w| w == word.as_bytes()));
        if heard || to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

#[test]
fn a_bus_that_goes_away_in_the_middle_leaves_what_undo_needs() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let mut node = Node::start("crashloop-leak");
    let real = node.bus.clone();
    // The bus goes away after the unit was disabled and before it is stopped.
    let proxy = Proxy::start(&real, "StopUnit");
    node.bus = proxy.address.clone();
    let (done, code) = node.apply(&["--step", "disable-unit", "--step", "mask-unit"]);
    assert_eq!((code, &done["worked"]), (Some(1), &false.into()), "{done:#}");
    let outcomes: Vec<&str> =
        done["steps"].as_array().unwrap().iter().map(|s| s["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["failed", "not-reached"], "{done:#}");
    assert!(done["stopped"].as_str().unwrap().contains("disable-unit:ecs.service"), "{done:#}");
    assert!(done["stopped"].as_str().unwrap().contains("lost the connection to systemd"), "{done:#}");
    assert!(!node.link().exists(), "half of it was done");
    let out = coroner(&["undo", "--json", "--journal", node.journal(), "--bus", &real]);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stdout));
    assert_eq!(node.enablement(), "enabled");
    let before = node.starts();
    wait_until("it loops as before", || node.starts() > before);
}

#[test]
fn killed_between_two_steps_it_can_be_undone() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let node = Node::start("crashloop-leak");
    // On a terminal, it asks before each step.
    let two = ["--apply", "--step", "disable-unit", "--step", "mask-unit"];
    let command: Vec<String> = node.args(&two).iter().map(|arg| format!("'{arg}'")).collect();
    let mut script = Command::new("script")
        .args(["-qefc", &format!("exec timeout --foreground 900 {CORONER} {}", command.join(" ")), "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script");
    let mut said = String::new();
    let mut output = script.stdout.take().unwrap();
    let mut input = script.stdin.take().unwrap();
    let mut read_until = |words: &str| {
        let mut bytes = [0; 1024];
        while !said.contains(words) {
            match output.read(&mut bytes) {
                Ok(n @ 1..) => said.push_str(&String::from_utf8_lossy(&bytes[..n])),
                _ => panic!("it ended before it said {words:?}: {said}"),
            }
        }
    };
    // Input before the question is discarded.
    input.write_all(b"y\ny\n").unwrap();
    read_until("1 of 2. ");
    read_until("[q]uit: ");
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(node.enablement(), "enabled", "nothing happens before the answer");
    input.write_all(b"y\n").unwrap();
    read_until("2 of 2. ");
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", script.id())).unwrap();
    let mut pids = vec![children.split_whitespace().next().unwrap().to_owned()];
    // script starts it through timeout, so that a hanging test ends.
    while let Some(child) = fs::read_to_string(format!("/proc/{0}/task/{0}/children", pids[pids.len() - 1]))
        .ok()
        .and_then(|c| c.split_whitespace().next().map(str::to_owned))
    {
        pids.push(child);
    }
    let coroner_pid = pids.last().unwrap().parse::<i32>().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(coroner_pid).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    drop(input);
    let _ = script.wait();
    assert_eq!(node.enablement(), "disabled", "the first step was done");
    let (undone, code) = node.undo();
    assert_eq!(code, Some(0), "{undone:#}");
    assert_eq!(node.enablement(), "enabled");

    // Killed between intent and action: the journal cannot know, so undo checks.
    let (_, code) = node.apply(&["--step", "disable-unit"]);
    assert_eq!(code, Some(0));
    let newest = newest_journal(node.journal.path());
    let text = fs::read_to_string(&newest).unwrap();
    let intent: Vec<&str> = text.lines().take(2).collect();
    node.undo();
    fs::write(&newest, format!("{}\n{{\"entry\":\"done\",\"st", intent.join("\n"))).unwrap();
    let (undone, code) = node.undo();
    assert_eq!((code, &undone["steps"][0]["how"]), (Some(0), &"already-so".into()), "{undone:#}");
    assert_eq!(node.enablement(), "enabled");
}

fn newest_journal(directory: &Path) -> PathBuf {
    let runs = fs::read_dir(directory).unwrap().flatten().map(|e| e.path());
    runs.filter(|path| path.extension().is_some_and(|e| e == "jsonl")).max().unwrap()
}

#[test]
fn nothing_is_changed_without_a_journal_consent_or_root() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let node = Node::start("crashloop-leak");
    let refused = |out: &Output, words: &str| {
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{words}: {said}");
        assert_eq!(node.enablement(), "enabled", "nothing was changed");
    };
    // A file system of 64 KiB.
    let small = tempfile::tempdir().unwrap();
    let mount =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs"]).arg(small.path()).status();
    assert!(mount.unwrap().success());
    let full = small.path().to_str().unwrap().to_owned();
    let apply = ["--apply", "--yes", "--step", "disable-unit"];
    let args = |journal: &str| -> Vec<String> {
        let mut args: Vec<String> = node.args(&apply).iter().map(|arg| (*arg).to_owned()).collect();
        let at = args.iter().position(|arg| arg == "--journal").unwrap();
        args[at + 1] = journal.to_owned();
        args
    };
    let run = |args: Vec<String>| coroner(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let out = run(args(&full));
    let left = fs::read_dir(small.path()).unwrap().flatten().filter(|e| e.path().extension().is_some()).count();
    let _ = Command::new("umount").arg(small.path()).status();
    refused(&out, "No space left on device");
    assert_eq!(left, 0, "a partial journal is left");

    // Another coroner is applying changes.
    let held = coroner_remedy::Journal::open(node.journal.path()).unwrap();
    refused(&run(args(node.journal())), "is already applying changes");
    drop(held);

    // Nobody to ask, and no --yes.
    let args = node.args(&["--apply"]);
    let out = Command::new(CORONER).args(&args).stdin(Stdio::null()).output().unwrap();
    refused(&out, "--yes");
    // Neither as nobody …
    let copy = readable_copy();
    let args = node.args(&["--apply", "--yes"]);
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"];
    let out = Command::new("setpriv").args(nobody).arg(copy.path()).args(&args).output().unwrap();
    refused(&out, "needs root");
    // … nor from a container without the node's bus.
    let contained = ["--mount", "--pid", "--fork", "--cgroup", "--propagation", "private", "sh", "-c"];
    let inside = "mount -t proc proc /proc && exec \"$0\" fix --apply --yes";
    let out = Command::new("unshare").args(contained).arg(inside).arg(copy.path()).output().unwrap();
    refused(&out, "container");
    // A dangerous step needs its name.
    let out = coroner(&node.args(&["--apply", "--yes", "--allow", "reboot"]));
    refused(&out, "no such step");
}

#[test]
fn units_that_stop_as_unneeded_are_known_before() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let node = Node::start("agent-unused");
    let units = node.root.join("run/systemd/system");
    fs::create_dir_all(units.join("ecs.service.d")).unwrap();
    let write = |name: &str, text: String| fs::write(units.join(name), text).unwrap();
    let service = "[Service]\nExecStart=/bin/sleep 1000\n";
    let unneeded = "[Unit]\nStopWhenUnneeded=yes\n";
    // ecs pulls in near, near pulls in far, and far the kubelet. beside, which is PartOf ecs, also needs far. other, which stays, needs
    // shared and the kubelet.
    write("ecs.service.d/x.conf", "[Unit]\nWants=near.service shared.service beside.service plain.service\n".into());
    write("beside.service", format!("[Unit]\nPartOf=ecs.service\nWants=far.service\n{service}"));
    write("near.service", format!("{unneeded}Requires=far.service\n{service}"));
    write("far.service", format!("{unneeded}Wants=kubelet.service\n{service}"));
    write("kubelet.service", format!("{unneeded}{service}"));
    write("shared.service", format!("{unneeded}{service}"));
    write("plain.service", service.to_owned());
    write("other.service", format!("[Unit]\nWants=shared.service kubelet.service\n{service}"));
    node.systemctl(&["daemon-reload"]);
    node.systemctl(&["start", "other.service"]);
    node.systemctl(&["restart", "ecs.service"]);
    let states = |units: &[&str]| -> Vec<String> { units.iter().map(|u| node.systemctl(&["is-active", u])).collect() };
    let stopping = ["ecs.service", "near.service", "far.service", "beside.service"];
    let staying = ["shared.service", "plain.service", "other.service"];
    wait_until("all are up", || states(&[&stopping[..], &staying, &["kubelet.service"]].concat()) == ["active"; 8]);

    let mut with_it = Manager::connect(&Root::live(), Some(&node.bus))
        .and_then(|mut manager| manager.stops_with("ecs.service"))
        .unwrap();
    with_it.sort();
    assert_eq!(with_it, ["beside.service", "far.service", "near.service"]);
    let plan = node.plan(&["agent-unused", "ecs.service"]);
    let risk = step(&plan, "disable-unit")["risk_words"].as_str().unwrap();
    assert!(with_it.iter().all(|unit| risk.contains(unit)), "{with_it:?} are not mentioned: {risk}");

    // Refused if a protected unit would stop too, unless something else still needs that unit.
    let (stop, say) = (AtomicBool::new(false), |_: &str| {});
    let mut hands = Hands::new(Some(&node.bus), Some(node.root.clone()), &stop, &say);
    let off = Action::DisableUnit(DisableUnit { unit: "ecs.service".into(), has_links: true });
    assert!(off.prepare(&mut hands).is_ok(), "the kubelet would stay");
    write("other.service", format!("[Unit]\nWants=shared.service\n{service}"));
    node.systemctl(&["daemon-reload"]);
    let refused = off.prepare(&mut hands);
    let stops = "kubelet.service stops with ecs.service";
    assert!(matches!(&refused, Err(StepError::Refused(why)) if why.contains(stops)), "{refused:?}");

    // systemd does the same.
    node.systemctl(&["stop", "ecs.service"]);
    let gone = [&stopping[..], &["kubelet.service"]].concat();
    wait_until("they stop", || states(&gone).iter().all(|state| state != "active" && state != "deactivating"));
    assert_eq!(states(&staying), ["active"; 3]);
}

#[test]
fn protected_units_are_never_disabled() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let node = Node::start("agent-conflict");
    let (stop, say) = (AtomicBool::new(false), |_: &str| {});
    let mut hands = Hands::new(Some(&node.bus), Some(node.root.clone()), &stop, &say);
    let off = |unit: &str| Action::DisableUnit(DisableUnit { unit: unit.into(), has_links: true });
    let mask = |unit: &str| Action::MaskUnit(MaskUnit { unit: unit.into() });
    let limits = [("CPUQuota".to_owned(), "1%".to_owned())].into();
    let isolate = Action::IsolateUnit(IsolateUnit { unit: "kubelet.service".into(), limits, persistent: false });
    // dbus.service is the bus itself, and stopping its socket stops it.
    let actions = [
        off("kubelet.service"),
        mask("kubelet.service"),
        isolate,
        off("dbus.service"),
        off("dbus.socket"),
        mask("sysinit.target"),
    ];
    for action in actions {
        let refused = action.prepare(&mut hands);
        assert!(
            matches!(&refused, Err(StepError::Refused(why)) if why.contains("protected")),
            "{action:?}: {refused:?}"
        );
    }
    assert_eq!(node.systemctl(&["is-active", "kubelet.service"]), "active");
    assert!(off("ecs.service").prepare(&mut hands).is_ok(), "other units may be disabled");
    let missing = off("nowhere.service").prepare(&mut hands);
    assert!(matches!(&missing, Err(StepError::Refused(why)) if why.contains("does not know")), "{missing:?}");
    // However a stop propagates, a protected unit is not stopped along.
    let units = node.root.join("run/systemd/system");
    fs::create_dir_all(units.join("kubelet.service.d")).unwrap();
    let write = |name: &str, text: String| fs::write(units.join(name), text).unwrap();
    let service = "[Service]\nExecStart=/bin/sleep 1000\n";
    write("stops-it.service", format!("[Unit]\nPropagatesStopTo=kubelet.service\n{service}"));
    write("asked-of-it.service", service.to_owned());
    write("bound-to-it.service", service.to_owned());
    write(
        "between.service",
        format!("[Unit]\nBindsTo=bound-to-it.service\nPropagatesStopTo=kubelet.service\n{service}"),
    );
    write("kubelet.service.d/x.conf", "[Unit]\nRequisite=asked-of-it.service\nWants=between.service\n".to_owned());
    let many: Vec<String> = (0..300).map(|i| format!("many{i}.service")).collect();
    write("hub.service", format!("[Unit]\nPropagatesStopTo={}\n{service}", many.join(" ")));
    node.systemctl(&["daemon-reload"]);
    for unit in ["stops-it.service", "asked-of-it.service", "bound-to-it.service"] {
        let refused = off(unit).prepare(&mut hands);
        assert!(
            matches!(&refused, Err(StepError::Refused(why)) if why.contains(&format!("kubelet.service stops with {unit}"))),
            "{unit}: {refused:?}"
        );
    }
    let too_many = off("hub.service").prepare(&mut hands);
    assert!(matches!(&too_many, Err(StepError::Refused(why)) if why.contains("more than 256 units")), "{too_many:?}");
    // The guards check again right before acting.
    let before = off("ecs.service").prepare(&mut hands).unwrap();
    write("kubelet.service.d/x.conf", "[Unit]\nRequisite=ecs.service\n".to_owned());
    node.systemctl(&["daemon-reload"]);
    let active = node.property("ActiveState");
    let refused = off("ecs.service").act(&before, &mut hands);
    assert!(matches!(&refused, Err(StepError::Refused(why)) if why.contains("kubelet.service")), "{refused:?}");
    assert_eq!((node.property("ActiveState"), node.enablement().as_str()), (active, "enabled"));
    fs::remove_dir_all(units.join("kubelet.service.d")).unwrap();
    node.systemctl(&["daemon-reload"]);

    // Neither another machine's files are touched, nor a machine whose root is not named.
    for root in [Some("/".into()), None] {
        let mut hands = Hands::new(Some(&node.bus), root, &stop, &say);
        for action in [off("ecs.service"), mask("ecs.service")] {
            let elsewhere = action.prepare(&mut hands);
            assert!(matches!(&elsewhere, Err(StepError::Refused(why)) if why.contains("machine")), "{elsewhere:?}");
        }
    }

    // For an image: a valid shell script that leaves the kubelet alone.
    let node = Node::start("agent-unused");
    let script = stdout(&["fix", "--image", "--root", node.root.to_str().unwrap()]);
    assert!(script.lines().any(|line| line == "systemctl mask ecs.service"), "{script}");
    assert!(script.contains("disable ecs.service") && script.contains("/etc/systemd/system-preset/"), "{script}");
    assert!(
        !script.lines().any(|line| !line.starts_with('#') && (line.contains("ssh") || line.contains("kubelet"))),
        "{script}"
    );
    let mut shell = Command::new("sh").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success(), "{script}");
    // As a provisioner runs it: as root, in the booted image.
    let leader = node.scenario.truth.facts["leader"].to_string();
    let enter = ["-t", &leader, "-a", "sh"];
    let mut shell = Command::new("nsenter").args(enter).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success(), "the script fails in the image");
    assert_eq!(fs::read_link(node.root.join("etc/systemd/system/ecs.service")).unwrap(), Path::new("/dev/null"));
}
