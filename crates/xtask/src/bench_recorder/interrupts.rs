//! How long the kernel takes for samples on the sampled cores, by its own trace of the timers that take them.
//!
//! A thread that watches the clock would also see effects of caches and the hypervisor. But on a shared machine the gaps that others
//! cause vary by a whole percent of a core from minute to minute, and samples take a twentieth of that.

use anyhow::{Context, bail};
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The handler that takes a sample for a clock event (kernel/events/core.c).
const HANDLER: &str = "perf_swevent_hrtimer";

#[derive(Debug, Default)]
pub struct Samples {
    count: usize,
    us: f64,
    watched: Duration,
}

impl Samples {
    pub fn mean_us(&self) -> f64 {
        self.us / self.count.max(1) as f64
    }

    /// Sum over all samples.
    pub fn ms_per_s(&self) -> f64 {
        self.us / 1e3 / self.watched.as_secs_f64()
    }
}

impl std::ops::AddAssign for Samples {
    fn add_assign(&mut self, more: Samples) {
        self.count += more.count;
        self.us += more.us;
        self.watched += more.watched;
    }
}

/// tracefs; mounted while this exists, if it was not mounted before.
pub struct Tracefs {
    path: PathBuf,
    mounted: Option<tempfile::TempDir>,
}

impl Tracefs {
    pub fn find() -> anyhow::Result<Tracefs> {
        let usual = PathBuf::from("/sys/kernel/tracing");
        if usual.join("instances").is_dir() {
            return Ok(Tracefs { path: usual, mounted: None });
        }
        let dir = tempfile::tempdir()?;
        let mounted =
            Command::new("mount").args(["-t", "tracefs", "nodev"]).arg(dir.path()).status().context("mount")?;
        if !mounted.success() {
            bail!("tracefs cannot be mounted, so the cost of samples cannot be measured (is this root?)");
        }
        Ok(Tracefs { path: dir.path().to_owned(), mounted: Some(dir) })
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if let Some(dir) = &self.mounted {
            let _ = Command::new("umount").arg(dir.path()).status();
        }
    }
}

/// A trace instance of our own; removed on drop.
struct Trace(PathBuf);

impl Trace {
    fn start(tracefs: &Tracefs) -> anyhow::Result<Trace> {
        let symbols = fs::read_to_string("/proc/kallsyms")?;
        let handler = symbols.lines().find_map(|line| {
            let mut words = line.split(' ');
            let address = words.next()?;
            (words.nth(1)? == HANDLER).then_some(address)
        });
        let handler = handler.with_context(|| format!("/proc/kallsyms has no {HANDLER}"))?;
        if handler.bytes().all(|digit| digit == b'0') {
            bail!("/proc/kallsyms hides addresses (kernel.kptr_restrict)");
        }
        let dir = tracefs.path.join(format!("instances/coroner-bench-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("{} (is this root?)", dir.display()))?;
        let trace = Trace(dir);
        trace.set("buffer_size_kb", "16384")?;
        trace.set("events/timer/hrtimer_expire_entry/filter", &format!("function == 0x{handler}"))?;
        trace.set("events/timer/hrtimer_expire_entry/enable", "1")?;
        trace.set("events/timer/hrtimer_expire_exit/enable", "1")?;
        Ok(trace)
    }

    fn set(&self, file: &str, value: &str) -> anyhow::Result<()> {
        let path = self.0.join(file);
        fs::write(&path, value).with_context(|| path.display().to_string())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.set("tracing_on", "0");
        let _ = fs::remove_dir(&self.0);
    }
}

/// All samples taken on this machine within the next `time`.
pub fn watch(tracefs: &Tracefs, time: Duration) -> anyhow::Result<Samples> {
    let trace = Trace::start(tracefs)?;
    std::thread::sleep(time);
    trace.set("tracing_on", "0")?;
    let samples = Samples { watched: time, ..add_up(&fs::read_to_string(trace.0.join("trace"))?) };
    if samples.count == 0 {
        bail!("nothing was sampled by a clock event: with hardware cycles this cannot be measured");
    }
    Ok(samples)
}

/// `comm-pid [core] flags seconds: hrtimer_expire_entry: hrtimer=ADDRESS …`, and the same with `exit`. Times are truncated to
/// microseconds, which averages out over many.
fn add_up(trace: &str) -> Samples {
    let mut begun = HashMap::new();
    let mut samples = Samples::default();
    for line in trace.lines().filter(|line| !line.starts_with('#')) {
        let Some((head, event)) = line.split_once(": hrtimer_expire_") else { continue };
        let core = head.rsplit_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(core, _)| core.to_owned());
        let at = head.split_whitespace().last().and_then(|at| at.parse::<f64>().ok());
        let timer = event.split_once("hrtimer=").and_then(|(_, rest)| rest.split_whitespace().next());
        let (Some(core), Some(at), Some(timer)) = (core, at, timer) else { continue };
        if event.starts_with("entry") {
            begun.insert(core, (timer, at));
        } else if begun.get(&core).is_some_and(|(entered, _)| *entered == timer)
            && let Some((_, from)) = begun.remove(&core)
        {
            samples.count += 1;
            samples.us += (at - from) * 1e6;
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_summed_per_core() {
        let trace = "# tracer: nop\n\
                     stress ng-11 [000] d.h1. 10.000100: hrtimer_expire_entry: hrtimer=a1 function=perf_swevent_hrtimer now=1\n\
                     swapper-0 [001] d.h1. 10.000101: hrtimer_expire_entry: hrtimer=b2 function=perf_swevent_hrtimer now=1\n\
                     swapper-0 [001] d.h1. 10.000102: hrtimer_expire_exit: hrtimer=c3\n\
                     stress ng-11 [000] d.h1. 10.000105: hrtimer_expire_exit: hrtimer=a1\n\
                     swapper-0 [001] d.h1. 10.000108: hrtimer_expire_exit: hrtimer=b2\n\
                     swapper-0 [001] d.h1. 10.000109: hrtimer_expire_exit: hrtimer=b2\n";
        let samples = add_up(trace);
        assert_eq!(samples.count, 2);
        assert!((samples.us - 12.0).abs() < 0.01, "{}", samples.us);
    }
}
