//! Real recorders of this machine, each with a name of its own.

use crate::collector::{Collector, PROGRAM, skipped};
use crate::wait_for;
use coroner_lab::{HostLock, LiveScenario};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub struct Recorder {
    pub dir: tempfile::TempDir,
    child: Child,
}

impl Recorder {
    fn start(collector: &Collector, number: u32) -> Recorder {
        Recorder::start_with(collector, number, "", &[])
    }

    /// With more sections of the configuration, and more arguments.
    pub fn start_with(collector: &Collector, number: u32, sections: &str, arguments: &[&str]) -> Recorder {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let config = "[diagnosis]\nevery = \"10s\"\nmax_cpu = 100.0\n[metrics]\nlisten = \"off\"\n[report]\nevery = \"5s\"\nstacks_every = \"20s\"\n";
        std::fs::write(dir.path().join("coroner.toml"), format!("{config}{sections}")).unwrap();
        let coroner = Path::new(PROGRAM).with_file_name("coroner");
        assert!(coroner.exists(), "{}: build the workspace", coroner.display());
        let mut command = Command::new(coroner);
        command.args(["record", "--config"]).arg(dir.path().join("coroner.toml"));
        command.arg("--dir").arg(dir.path().join("state")).args([
            "--report-to",
            &collector.url(),
            "--report-token-file",
        ]);
        command.arg(collector.file("agent.token")).args([
            "--label",
            &format!("rack={number}"),
            "--cluster",
            "lab",
            "--report-as",
            &format!("node-{number}"),
        ]);
        let child = command.args(arguments).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        Recorder { dir, child }
    }

    fn waiting(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("state/spool")).map_or(0, |files| files.count())
    }

    fn stop(&mut self) {
        assert!(Command::new("kill").arg(self.child.id().to_string()).status().unwrap().success());
        self.child.wait().unwrap();
    }
}

/// Something that works in the kernel.
struct Busy(Child);

impl Busy {
    fn start() -> Busy {
        let mut dd = Command::new("dd");
        Busy(dd.args(["if=/dev/zero", "of=/dev/null", "bs=64k"]).stderr(Stdio::null()).spawn().unwrap())
    }

    fn stop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// If not, the skip is told.
pub fn is_root() -> bool {
    let is_root = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0;
    if !is_root {
        skipped("real recorders that report (needs root)");
    }
    is_root
}

#[test]
#[ignore = "three recorders for some minutes, as root: ./check fleet"]
fn real_recorders_report_and_lose_nothing_while_the_collector_is_away() {
    if !is_root() {
        return;
    }
    let mut collector = Collector::start();
    let mut recorders: Vec<Recorder> = (1..=3).map(|number| Recorder::start(&collector, number)).collect();
    let minute = Duration::from_secs(60);
    wait_for("three nodes that diagnosed themselves", 3 * minute, || {
        let nodes = collector.ask("status")["nodes"].clone();
        (nodes["known"] == 3 && nodes["undiagnosed"] == 0).then_some(()).ok_or(nodes.to_string())
    });
    let picked = collector.command(&["nodes", "--where", "rack=2 and cluster=lab"]);
    assert!(picked.1.starts_with("1 of 3 nodes match"), "{picked:?}");

    // What they sampled has arrived, under the names of commands and functions.
    let mut busy = Busy::start();
    wait_for("stacks of three nodes, with what runs here", 3 * minute, || {
        let nodes = collector.rows("SELECT count(DISTINCT node_id) FROM stack_samples WHERE samples > 0");
        let of_busy = collector.rows("SELECT count(*) FROM stacks WHERE stack LIKE 'dd;%[k]'");
        (nodes == 3 && of_busy > 0).then_some(()).ok_or(format!("{nodes} nodes, {of_busy} stacks of dd"))
    });
    busy.stop();
    let svg = collector.file("fleet.svg");
    let drawn =
        collector.command(&["flame", "--where", "rack=1", "--diff-where", "not rack=1", "-o", svg.to_str().unwrap()]);
    assert!(
        drawn.0 == 0 && drawn.1.contains("1 node with rack=1") && drawn.1.contains("2 nodes with not rack=1"),
        "{drawn:?}"
    );
    assert!(std::fs::read_to_string(&svg).unwrap().contains("1 node against 2"));
    let found = collector.ask("stacks?limit=5000");
    let shares: f64 =
        found["stacks"].as_array().unwrap().iter().map(|stack| stack["a"]["share"].as_f64().unwrap()).sum();
    assert!(shares > 0.9 && shares <= 1.0 + 1e-6, "{shares}: {}", found["left_out"]);

    collector.kill();
    wait_for("batches in every spool", 3 * minute, || {
        let waiting: Vec<usize> = recorders.iter().map(Recorder::waiting).collect();
        waiting.iter().all(|count| *count >= 2).then_some(()).ok_or(format!("{waiting:?}"))
    });
    // A recorder that ends meanwhile leaves its batches to the next one.
    recorders[0].stop();
    let left = recorders[0].waiting();
    assert!(left >= 2, "{left}");
    let minutes = collector.rows("SELECT count(*) FROM minutes");
    collector.restart();
    wait_for("empty spools of those that run", 6 * minute, || {
        let waiting: Vec<usize> = recorders[1..].iter().map(Recorder::waiting).collect();
        waiting.iter().all(|count| *count == 0).then_some(()).ok_or(format!("{waiting:?}"))
    });
    wait_for("minutes of those that run", 3 * minute, || {
        let now = collector.rows("SELECT count(*) FROM minutes");
        (now > minutes).then_some(()).ok_or(format!("{minutes} before, {now} now"))
    });
    assert_eq!(recorders[0].waiting(), left, "nobody sends for a recorder that is gone");
    // Streams are without gaps: nothing was dropped on the way.
    assert_eq!(collector.ask("status")["dropped_rows"], 0);
    let shown = collector.command(&["show", "node-2"]);
    assert!(shown.0 == 0 && shown.1.contains("label:rack") && shown.1.contains("kernel"), "{shown:?}");
}

/// A real systemd in namespaces, whose ecs.service has no work there, crashes for ever, and leaves a dead cgroup each time. One of two
/// recorders watches it.
#[test]
#[ignore = "a real systemd that crashloops, as root: ./check fleet"]
fn a_real_crashloop_is_told_with_what_to_do_about_it() {
    let Some(_host) = HostLock::take_as_root() else { return };
    let trouble = LiveScenario::start("crashloop-leak", &["--seconds", "1800"]).unwrap_or_else(|e| panic!("{e:#}"));
    let bus = trouble.truth.facts["bus"].as_str().unwrap().to_owned();
    let collector = Collector::start();
    let _sick = Recorder::start_with(&collector, 1, "", &["--bus", &bus]);
    let _other = Recorder::start(&collector, 2);
    wait_for("the crashloop of node-1, and its unit without work", Duration::from_secs(300), || {
        let sick = collector.ask("nodes?where=problem%3Dunit-crashloop");
        let node = &sick["nodes"][0];
        let is_there = sick["matched"] == 1
            && node["node"] == "node-1"
            && node["attributes"]["agent_unused:amazon-ecs"] == "ecs.service"
            && node["numbers"]["zombies"].as_f64().is_some_and(|dead| dead > 0.0);
        is_there.then_some(()).ok_or(sick.to_string())
    });
    let (code, said, err) = collector.command(&["why", "unit-crashloop"]);
    assert_eq!(code, 0, "{err}");
    let lines = ["ecs.service; it has no work there", "systemctl disable ecs.service", "systemctl mask ecs.service"];
    assert!(lines.iter().all(|line| said.contains(line)), "{said}");
    let status = collector.command(&["status"]).1;
    assert!(status.contains("unit-crashloop:ecs.service"), "{status}");
}
