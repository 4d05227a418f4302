//! The whole chain: an unneeded unit crashes and is restarted for ever, leaving a dead memory cgroup each time; an agent makes the
//! kernel walk all of them; the core on which that happens also serves a network device, whose driver gives up.
//!
//! Real: systemd and the crashloop, the dead cgroups, the walk, the full core, the starved NAPI thread, the dropped packets. Simulated: a
//! crashloop of 12 days does not fit into a test, so most dead cgroups are made beforehand, with the unit's own path and tmpfs. This
//! kernel lets a NAPI thread run between the steps of a walk, so the walker gets the largest weight on its core and the NAPI thread the
//! smallest. A veth has no driver that resets it, so the lines that ENA would print (2.17 and later, which name the core) are written
//! to the kernel log whenever the NAPI thread has really not run for 5 s.

use super::crashloop_leak::restarting_service;
use super::nic_starved::Wire;
use super::systemd_node::SystemdNode;
use super::zombie_reclaim::Walker;
use super::zombies::{await_maker, tracked_memcgs};
use super::{Need, PATIENCE, Scenario, ms};
use crate::actors;
use crate::guard::Cgroup;
use crate::node;
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub const SCENARIO: Scenario = Scenario {
    name: "the-incident",
    summary: "a crashloop under a real systemd left tens of thousands of dead memory cgroups (--count N), a walk over them starves a NIC's core",
    expects: &["unit-crashloop", "zombie-memcgs", "memcg-walk", "core-saturated", "nic-core-starved", "nic-reset"],
    needs: &[
        Need::Root,
        Need::TwoCores,
        Need::Program("ip", "iproute2"),
        Need::SystemdRoot,
        Need::Program("unshare", "util-linux"),
    ],
    perform,
};

const RESTARTS: u64 = 3;

/// The poll runs when the walker sleeps between two passes. Visiting a dead cgroup takes 0.27 ms: with fewer, a pass would be shorter
/// than the driver's timeout.
const LEAST: u64 = 24_000;
const MOST: u64 = 32_000;
const PACKETS_PER_SECOND: u64 = 10_000;

/// The largest and smallest weight; the default is 1,024 on v1 and 100 on v2.
const LARGEST: [(&str, &str); 2] = [("cpu.shares", "262144"), ("cpu.weight", "10000")];
const SMALLEST: [(&str, &str); 2] = [("cpu.shares", "2"), ("cpu.weight", "1")];

fn perform(stage: &mut Stage) -> Result<()> {
    let core = super::take_core(&mut stage.draw)?;
    let count = stage.count.unwrap_or_else(|| stage.draw.number(LEAST, MOST));
    ensure!((1_000..=100_000).contains(&count), "--count must be from 1000 to 100000");
    let other = format!("collector-{}", stage.draw.tag());
    let agent = stage.draw.one_of(&["ecs", other.as_str()]).unwrap_or("ecs").to_owned();
    let (unit, slice) = (format!("{agent}.service"), format!("agents{}.slice", stage.draw.tag()));
    let exit_status = stage.draw.number(1, 99);
    let delay_ms = stage.draw.number(100, 200);

    let mut node = SystemdNode::boot(stage, |furniture| {
        furniture.spool(&agent)?;
        // One tmpfs page, charged to the cgroup of this start of the unit, outlives both.
        let body = format!("echo $$ > /var/lib/{agent}/f.$$\nexit {exit_status}\n");
        furniture.script(&format!("/usr/libexec/{agent}-agent"), &body)?;
        furniture.unit(&unit, &restarting_service(&agent, delay_ms, &format!("Slice={slice}\n")))
    })?;
    let of_slice = node.memory_dir()?.join(&slice);
    let _pins = Pins::make(stage, &node, &of_slice, &unit, &agent, count)?;
    node.enable(&unit, "multi-user.target")?;
    node.restart(&unit)?;
    let leaked = |node: &SystemdNode| Ok::<u64, anyhow::Error>(node.files_in(&format!("/var/lib/{agent}"))? - 1);
    stage.until("the unit was restarted several times", PATIENCE, || {
        node.expect_running()?;
        let restarted = node.restarts(&unit).is_ok_and(|n| u64::from(n) >= RESTARTS);
        Ok((restarted && leaked(&node)? > RESTARTS).then_some(()))
    })?;

    // Created before the wire, so dropped after it: the NAPI thread goes with the wire.
    let small = share_of_core("small", SMALLEST)?;
    let large = share_of_core("large", LARGEST)?;
    let mut wire = Wire::lay(stage, core, PACKETS_PER_SECOND)?;
    small.add(wire.napi)?;
    let join = large.dir().display().to_string();
    let mut walker = Walker::start(stage, core, &of_slice, &["--join", &join])?;
    let mut driver = Driver::of(&wire, core)?;
    wire.await_starved(stage, &mut walker.child)?;
    stage.until("the driver has given up on its device", PATIENCE, || {
        walker.child.expect_running()?;
        driver.look(&wire)?;
        Ok((driver.resets > 0).then_some(()))
    })?;

    let culprit = walker.child.label();
    let facts = wire.facts(node.facts(json!({
        "unit": unit, "unit_cgroup": format!("{}/{unit}", node.cgroup_of_slice(&slice)?), "exit_status": exit_status,
        "restart_delay_ms": delay_ms, "count": count, "leaked": leaked(&node)?, "core": core, "pid": walker.child.pid(),
        "comm": walker.child.name(), "trust_user_log": true,
    }))?);
    let truth = Truth::new(facts)
        .expect(Expected::new("unit-crashloop").about("unit", &unit))
        .expect(Expected::new("zombie-memcgs"))
        .expect(Expected::new("memcg-walk").about("process", &culprit).by(&culprit))
        .expect(Expected::new("core-saturated").about("core", core.to_string()).by(&culprit))
        .expect(Expected::new("nic-core-starved").by(&culprit))
        .expect(Expected::new("nic-reset").about("nic", &wire.rx))
        .verdict(
            ExpectedVerdict::new("unit-crashloop")
                .about("unit", &unit)
                .by(&unit)
                .then("zombie-memcgs")
                .then("memcg-walk")
                .then("core-saturated")
                .then("nic-core-starved")
                .then("nic-reset")
                .needs_bpf(),
        )
        .forbid(&["cpu-throttled", "memory-reclaim", "unit-churn"]);
    stage.ready(&truth)?;
    let before = (wire.traffic()?, walker.times()?, node.restarts(&unit)?);
    stage.hold(|| {
        node.expect_running()?;
        walker.child.expect_running()?;
        wire.flood.expect_running()?;
        driver.look(&wire)
    })?;
    let mut measured = wire.traffic()?.since(&before.0);
    measured["walker_system_ms"] = json!(ms(walker.times()?.0 - before.1.0));
    measured["restarts"] = json!(node.restarts(&unit)?.saturating_sub(before.2));
    measured["resets_logged"] = json!(driver.resets);
    stage.ended(measured)
}

fn share_of_core(what: &str, share: [(&str, &str); 2]) -> Result<Cgroup> {
    let group = Cgroup::with_controller("cpu", what)?;
    let known = share.into_iter().find(|(file, _)| group.dir().join(file).exists());
    let (file, value) = known.context("a cpu cgroup has neither shares nor weight")?;
    group.write(file, value)?;
    Ok(group)
}

/// Pages that keep most of the dead cgroups. Its drop frees them and waits: shutting down the node with that many is slow.
struct Pins {
    file: PathBuf,
    count: u64,
    /// Where the maker waited between two of them.
    _home: Cgroup,
}

impl Pins {
    /// As the unit itself would: with its path and in its tmpfs.
    fn make(
        stage: &Stage,
        node: &SystemdNode,
        slice: &std::path::Path,
        unit: &str,
        agent: &str,
        count: u64,
    ) -> Result<Pins> {
        let home = Cgroup::with_controller("memory", "maker")?;
        let file = node.root().join(format!("var/lib/{agent}/state"));
        if !slice.is_dir() {
            fs::create_dir(slice).with_context(|| slice.display().to_string())?;
        }
        home.hierarchy().enable(slice, "memory")?;
        let mut command = actors::command("leak");
        command.arg("--parent").arg(slice).arg("--home").arg(home.dir()).args(["--name", unit]);
        command.arg("--file").arg(&file).args(["--count", &count.to_string()]);
        let pins = Pins { file, count, _home: home };
        await_maker(stage, &mut command, count)?;
        Ok(pins)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let before = tracked_memcgs();
        if fs::remove_file(&self.file).is_err() {
            return;
        }
        // Others are created meanwhile, but not that many.
        let enough = |now: u64| before.is_none_or(|before| now + self.count / 10 * 9 <= before);
        let limit = Instant::now() + Duration::from_secs(30);
        while tracked_memcgs().is_some_and(|now| !enough(now)) && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Like the ENA driver, which checks about once a second when a queue was last polled, and resets the device after 5 s.
struct Driver {
    core: u32,
    device: String,
    /// The NAPI thread's run time, and when that value was first seen.
    ran_ns: u64,
    since: Instant,
    resets: u64,
}

const PAUSED_FOR: Duration = Duration::from_secs(5);
/// The same in all runs: lines of earlier runs stay in the log as earlier resets of the same device.
const PCI: &str = "0000:20:03.0";

impl Driver {
    fn of(wire: &Wire, core: u32) -> Result<Driver> {
        let ran_ns = node::thread_times(wire.napi)?.ran_ns;
        Ok(Driver { core, device: wire.rx.clone(), ran_ns, since: Instant::now(), resets: 0 })
    }

    fn look(&mut self, wire: &Wire) -> Result<()> {
        let ran_ns = node::thread_times(wire.napi)?.ran_ns;
        if ran_ns != self.ran_ns {
            (self.ran_ns, self.since) = (ran_ns, Instant::now());
        }
        let silent = self.since.elapsed();
        if silent < PAUSED_FOR {
            return Ok(());
        }
        let (device, core, us) = (&self.device, self.core, silent.as_micros());
        log(&format!(
            "<3>ena {PCI} {device}: TX q 0 is paused for too long (threshold {}). usecs since napi {us}. napi scheduled: 1. \
             napi CPU: {core}. msecs since interrupt: {}",
            PAUSED_FOR.as_micros(),
            silent.as_millis()
        ))?;
        log(&format!(
            "<6>ena {PCI} {device}: Device reset completed successfully, Driver info: Elastic Network Adapter (ENA) v2.17.0g"
        ))?;
        self.since = Instant::now();
        self.resets += 1;
        Ok(())
    }
}

fn log(line: &str) -> Result<()> {
    fs::write("/dev/kmsg", line).context("cannot write to the kernel log")
}
