//! A monitoring agent scans the page tables of a large process without pause, which takes a whole core.

use super::{Need, PATIENCE, REAL_NS, Scenario, ms};
use crate::actors;
use crate::guard::Child;
use crate::node;
use crate::stage::Stage;
use crate::truth::{Expected, ExpectedVerdict, Truth};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::fs;

pub const SCENARIO: Scenario = Scenario {
    name: "observer-smaps",
    summary: "a monitoring agent reads smaps and clears clear_refs of a large process without pause",
    expects: &["observer-cost", "core-saturated"],
    needs: &[Need::Root, Need::TwoCores],
    perform,
};

fn perform(stage: &mut Stage) -> Result<()> {
    let core = super::take_core(&mut stage.draw)?;
    let (agent_comm, job_comm) = (format!("agent-{}", stage.draw.tag()), format!("train-{}", stage.draw.tag()));
    let bytes = stage.draw.number(400, 900) << 20;
    let free = available_memory()?;
    ensure!(free >= 2 * bytes, "needs {} MB of free memory; only {} MB are free", (2 * bytes) >> 20, free >> 20);

    let mut command = actors::command("hold-memory");
    let mut job = Child::spawn(&job_comm, command.args(["--comm", &job_comm, "--bytes", &bytes.to_string()]))?;
    stage.until("the process has its memory", PATIENCE, || {
        job.expect_running()?;
        Ok((resident(job.pid())? >= bytes).then_some(()))
    })?;
    let mut command = actors::command("observe");
    command.args(["--comm", &agent_comm, "--core", &core.to_string(), "--target", &job.pid().to_string()]);
    let mut agent = Child::spawn(&agent_comm, &mut command)?;
    stage.until("the agent is at work in the kernel", PATIENCE, || {
        agent.expect_running()?;
        job.expect_running()?;
        let on_its_core = node::task_stat(agent.pid()).is_some_and(|stat| stat.core == core);
        let (user, system) = ticks(agent.pid())?;
        let ran = node::thread_times(agent.pid())?.ran_ns >= REAL_NS;
        // In ticks of 1/100 s; the first ones include the program's start.
        Ok((on_its_core && ran && system >= 20 && system > 9 * user).then_some(()))
    })?;

    let culprit = agent.label();
    let facts = json!({
        "core": core, "pid": agent.pid(), "comm": agent_comm, "target": {"pid": job.pid(), "comm": job_comm, "bytes": bytes},
    });
    let core_name = core.to_string();
    let truth = Truth::new(facts)
        .expect(Expected::new("observer-cost").about("process", &culprit).by(&culprit))
        .expect(Expected::new("core-saturated").about("core", &core_name).by(&culprit))
        .verdict(ExpectedVerdict::new("observer-cost").about("process", &culprit).by(&culprit).then("core-saturated"))
        .forbid(&["memory-reclaim", "cpu-throttled", "nic-reset", "huge-pages"]);
    stage.ready(&truth)?;
    let before = (ticks(agent.pid())?, node::thread_times(agent.pid())?.ran_ns);
    stage.hold(|| agent.expect_running().and_then(|()| job.expect_running()))?;
    let (user, system) = ticks(agent.pid())?;
    stage.ended(json!({
        "agent_ran_ms": ms(node::thread_times(agent.pid())?.ran_ns - before.1),
        "agent_user_ticks": user - before.0.0,
        "agent_system_ticks": system - before.0.1,
    }))
}

/// In bytes.
fn available_memory() -> Result<u64> {
    let path = "/proc/meminfo";
    of_field(&fs::read_to_string(path).context(path)?, "MemAvailable:").context("/proc/meminfo: no MemAvailable")
}

fn resident(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    // A process that has not called exec yet has none.
    Ok(of_field(&fs::read_to_string(&path).with_context(|| path.clone())?, "VmRSS:").unwrap_or(0))
}

/// `VmRSS:   1234 kB` in bytes.
fn of_field(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// User and system time of a process, in ticks of 1/100 s.
fn ticks(pid: u32) -> Result<(u64, u64)> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    parse_ticks(&text).with_context(|| format!("{path}: {text}"))
}

fn parse_ticks(text: &str) -> Option<(u64, u64)> {
    // Fields 14 and 15; the first after the name is the third.
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_memory_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_ticks("7 (a) b) R 3 7 7 0 -1 0 0 0 0 0 12 345 0 0 20"), Some((12, 345)));
        assert_eq!(parse_ticks("7 (a) R"), None);
        assert_eq!(of_field("VmPeak:\t 1 kB\nVmRSS:\t  2048 kB\n", "VmRSS:"), Some(2 << 20));
        assert!(available_memory().is_ok() && resident(std::process::id()).is_ok_and(|bytes| bytes > 0));
    }
}
