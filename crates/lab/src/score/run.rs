//! One run: start the scenario, ask coroner blind, end the scenario.

use crate::draw::Draw;
use crate::guard::Child;
use crate::node::CoreTimes;
use crate::truth::Truth;
use crate::{HostLock, LiveScenario, interrupt};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How coroner is run each time.
#[derive(Debug, Clone)]
pub struct Question {
    pub coroner: PathBuf,
    pub no_bpf: bool,
    /// For `--for`; `None`: coroner's own default.
    pub watch: Option<String>,
}

/// The answers about one scenario.
#[derive(Debug)]
pub struct Answers {
    pub truth: Truth,
    pub answer: Value,
    /// Coroner's answer before the scenario.
    pub earlier: Value,
    /// How busy others kept the machine before that, in percent of all cores.
    pub busy_before: u64,
    /// From the start of `coroner diagnose` to its end.
    pub took: Duration,
}

/// A diagnosis that takes longer hangs.
const HANGS: Duration = Duration::from_secs(120);

/// In percent of all cores: a machine that others keep this busy may have problems of its own.
pub const BUSY: u64 = 20;
/// How often to check whether the machine is idle before running anyway.
const LOOKS: u32 = 10;
/// The length of each check.
const LOOK: Duration = Duration::from_secs(1);

/// Longer than a run: the scenario is ended by a signal.
const HOLD_SECONDS: &str = "600";

/// Runs one scenario with one seed, under the lab's lock.
pub fn run(scenario: &str, seed: u64, question: &Question) -> Result<Answers> {
    let _turn = take_turn()?;
    let busy_before = wait_for_idle(busy_for_a_while)?;
    let mut before = Command::new(&question.coroner);
    before.args(["diagnose", "--json", "--for", "500ms", "--trust-user-log"]);
    let earlier = parse(&output_of(&mut before)?)?;
    let live = LiveScenario::start(scenario, &["--seconds", HOLD_SECONDS, "--seed", &seed.to_string()])?;
    let mut command = Command::new(&question.coroner);
    command.args(["diagnose", "--json"]).args(arguments(&live.truth, seed, question));
    let started = Instant::now();
    let text = output_of(&mut command)?;
    let took = started.elapsed();
    let truth = live.truth.clone();
    live.stop().with_context(|| format!("{scenario} did not hold"))?;
    Ok(Answers { truth, answer: parse(&text)?, earlier, busy_before, took })
}

pub(crate) fn take_turn() -> Result<HostLock> {
    let mut told = false;
    loop {
        if let Some(turn) = HostLock::try_take()? {
            return Ok(turn);
        }
        if interrupt::requested() {
            bail!("interrupted");
        }
        if !std::mem::replace(&mut told, true) {
            eprintln!("waiting for another user of the lab on this machine");
        }
        interrupt::pause(Duration::from_millis(200));
    }
}

/// Coroner rightly reports a shortage of CPU on a busy machine, but only the scenario should be judged. Returns the last busy percentage.
fn wait_for_idle(mut busy: impl FnMut() -> Result<u64>) -> Result<u64> {
    let mut percent = busy()?;
    for look in 1..LOOKS {
        if percent < BUSY {
            break;
        }
        if look == 1 {
            eprintln!("others keep this machine {percent} % busy: waiting up to {} s for them", LOOKS - 1);
        }
        percent = busy()?;
    }
    Ok(percent)
}

/// In percent of all cores. We only sleep, so it is others' work.
fn busy_for_a_while() -> Result<u64> {
    let before = CoreTimes::now()?;
    interrupt::pause(LOOK);
    if interrupt::requested() {
        bail!("interrupted");
    }
    let busy = CoreTimes::now()?.busy_percent_since(&before);
    Ok(busy.values().sum::<u64>() / busy.len().max(1) as u64)
}

/// What an engineer on the node knows without knowing what is wrong: where its systemd is, and that its log can be trusted.
fn arguments(truth: &Truth, seed: u64, question: &Question) -> Vec<String> {
    let mut arguments = match &question.watch {
        Some(watch) => vec!["--for".to_owned(), watch.clone()],
        // Otherwise a running recorder's past would be judged.
        None => vec!["--no-recorder".to_owned()],
    };
    if question.no_bpf {
        arguments.push("--no-bpf".to_owned());
    }
    if let Some(bus) = bus(truth, seed) {
        arguments.extend(["--bus".to_owned(), bus]);
    }
    if truth.facts.get("trust_user_log") == Some(&Value::Bool(true)) {
        arguments.push("--trust-user-log".to_owned());
    }
    arguments
}

/// The scenario's own bus, or one of its broken ones.
fn bus(truth: &Truth, seed: u64) -> Option<String> {
    if let Some(bus) = truth.facts.get("bus").and_then(Value::as_str) {
        return Some(bus.to_owned());
    }
    let buses: Vec<&str> = truth.facts.get("buses")?.as_object()?.values().filter_map(Value::as_str).collect();
    Draw::new(seed).one_of(&buses).map(str::to_owned)
}

/// Its output; ends it on Ctrl-C, or if it hangs.
pub(crate) fn output_of(command: &mut Command) -> Result<Vec<u8>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let (mut child, mut stdout) = Child::spawn_with_stdout("coroner diagnose", command)?;
    let limit = Instant::now() + HANGS;
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut text = Vec::new();
            stdout.read_to_end(&mut text).map(|_| text)
        });
        let ended = loop {
            if let Some(status) = child.ended()? {
                break status;
            }
            if interrupt::requested() || Instant::now() > limit {
                // This also ends the reader.
                drop(child);
                bail!(if interrupt::requested() { "interrupted" } else { "coroner diagnose hangs" });
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = reader.join().ok().context("the reader panicked")?.context("cannot read what coroner says")?;
        match ended.code() {
            Some(0 | 1) => Ok(text),
            _ => bail!("coroner diagnose could not examine the node: {ended}"),
        }
    })
}

fn parse(text: &[u8]) -> Result<Value> {
    serde_json::from_slice(text).with_context(|| format!("not JSON: {:?}", String::from_utf8_lossy(text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn question(watch: Option<&str>, no_bpf: bool) -> Question {
        Question { coroner: "coroner".into(), no_bpf, watch: watch.map(str::to_owned) }
    }

    #[test]
    fn coroner_only_learns_where_to_look() {
        let plain = Truth::new(json!({"core": 1, "comm": "spin-ab12"}));
        assert_eq!(arguments(&plain, 1, &question(None, false)), ["--no-recorder"]);
        let node = Truth::new(json!({"bus": "unix:path=/x", "trust_user_log": true}));
        assert_eq!(
            arguments(&node, 1, &question(Some("8s"), true)),
            ["--for", "8s", "--no-bpf", "--bus", "unix:path=/x", "--trust-user-log"]
        );
        let broken = Truth::new(json!({"buses": {"a": "unix:path=/a", "b": "unix:path=/b"}}));
        let drawn: std::collections::BTreeSet<_> = (0..32).filter_map(|seed| bus(&broken, seed)).collect();
        assert_eq!(drawn.len(), 2);
    }

    #[test]
    fn waiting_for_an_idle_machine_ends() {
        let mut percents = [90, 40, BUSY - 1, 90].into_iter();
        assert_eq!(wait_for_idle(|| percents.next().context("asked too often")).unwrap(), BUSY - 1);
        let mut looks = 0;
        let busy = || {
            looks += 1;
            Ok(97)
        };
        assert_eq!(wait_for_idle(busy).unwrap(), 97);
        assert_eq!(looks, LOOKS);
    }

    #[test]
    fn a_failed_diagnosis_is_an_error() {
        let sh = |script: &str| output_of(Command::new("sh").args(["-c", script]));
        assert_eq!(sh("echo '{}'; exit 1").unwrap(), b"{}\n");
        assert!(sh("echo '{}'; exit 2").is_err());
    }
}
