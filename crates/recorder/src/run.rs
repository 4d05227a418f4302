//! The recorder's main loop: reads the probes and hands on what they saw.

use super::config::Config;
use super::control::Control;
use super::diagnoses::DiagnosisThread;
use super::heaviest::Heaviest;
use super::incident_thread::{IncidentThread, Overview};
use super::incidents::Incidents;
use super::meter::Meter;
use super::real_time::RealTimeThreads;
use super::reporter::ReporterThread;
use super::rings::Rings;
use super::rollup::Rollup;
use super::segments::Segments;
use super::status::Status;
use super::store::Store;
use super::triggers::{self, Triggers};
use super::{memory, metrics, notify};
use crate::warn;
use anyhow::Context;
use coroner_diagnosis::cores::timeline::Timeline;
use coroner_evidence::Evidence;
use coroner_evidence::own_directory::OwnDirectory;
use coroner_http::Running;
use coroner_probes::root::read_clocks;
use coroner_probes::sampler::{Sampler, SamplerOptions};
use coroner_probes::watch::{NameZombies, Watch, WatchOptions};
use coroner_profile::live::LiveFormat;
use coroner_source::audit_files::{KnownAgents, read_baseline};
use coroner_source::directory;
use coroner_source::live::LiveNode;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Commits usually come every second.
const STUCK: Duration = Duration::from_secs(5);
const SECOND: Duration = Duration::from_secs(1);
/// Triggers and metrics need the last second of the cores, at most a turn or two late.
const CORES_KEPT: Duration = Duration::from_secs(3);

/// What a finished recorder reports.
pub struct Outcome {
    pub directory: PathBuf,
    pub status: Status,
    pub lasted: Duration,
}

/// Records until `stop` becomes true, or for `duration`.
pub fn run(config: &Config, node: &LiveNode, duration: Option<Duration>, stop: &AtomicBool) -> anyhow::Result<Outcome> {
    memory::share_heaps();
    let own = directory::take(&config.dir)?;
    let status = Arc::new(Mutex::new(Status::default()));
    let began = Instant::now();
    let clocks = read_clocks();
    lock(&status).own.started = clocks.wall;
    let segments =
        Segments::open(own.path(), config.max_size).with_context(|| format!("cannot list {}", own.path().display()))?;
    let mut first = Evidence::default();
    // So that even the first second names its boot.
    coroner_probes::identity::identify(&node.root(), &mut first);
    let identity = first.node.clone().unwrap_or_default();
    let reporter = ReporterThread::start(own.path(), &config.report, &identity, Arc::clone(&status))?;
    let reports = reporter.as_ref().map(ReporterThread::reports).unwrap_or_default();
    let incidents = IncidentThread::start(Incidents::open(own.path(), &config.incidents, reports.clone())?)?;
    let options = SamplerOptions { rate_hz: config.rate };
    // At rate 0 no ring is opened: the kernel would fill it.
    let sampler = (config.rate > 0).then(|| Sampler::start(&node.root(), &options, &mut first));
    let sampler = sampler.filter(Sampler::is_sampling);
    // The kernel may allow less than was asked for.
    let rate_hz = sampler.as_ref().map(Sampler::rate_hz);
    let samples = sampler.as_ref().map(|sampler| (node.root().path("/"), live_format(sampler)));
    let tells_stacks = reporter.is_some() && !config.report.stacks_every.is_zero();
    let heaviest = tells_stacks.then(|| {
        let a_second = config.rate.saturating_mul(identity.cores.unwrap_or(1));
        Heaviest::new(reports.clone(), config.report.stacks_every, a_second)
    });
    let store = Store::start(segments, samples, heaviest, host(), Arc::clone(&status))?;
    let to_store = store.handle();

    let audit = KnownAgents::read(&[])?.audit_options(read_baseline(None)?);
    // Stack samples say more about the kernel's work than its own sampler does.
    let options =
        WatchOptions { kernel_work: rate_hz.is_none(), ..node.watch_options(NameZombies::Always, Some(audit)) };
    let mut watch = Watch::start_endless(node.root(), options);
    let mut rings = match sampler {
        Some(sampler) => Some(Rings::start(sampler, to_store.clone(), Arc::clone(&status))?),
        None => None,
    };
    let control = Control::listen(own.path())?;
    let metrics = serve(config, &status);
    // Without it, `coroner` does not find this recorder by itself; no reason not to record.
    let registered = directory::register(own.path()).inspect_err(|error| warn(&format!("{error:#}"))).ok();
    let diagnoses = DiagnosisThread::start(own.path(), &config.diagnosis, reports.clone(), Arc::clone(&status))?;
    let mut noticing = Triggers::new(&config.triggers);
    let mut real_time = RealTimeThreads::default();
    let mut cores = Timeline::keeping(CORES_KEPT);
    let mut meter = Meter::new();
    let mut rollup = Rollup::new();
    let mut cpu_before = own_cpu(&lock(&status));
    let mut watchdog = notify::Watchdog::new();
    notify::ready();
    announce(&own, config, rate_hz, metrics.as_ref());

    let mut anew = true;
    let mut told_status = Instant::now() - SECOND;
    let mut gone = None;
    while let Some(mut fragment) = watch.next_turn() {
        let clocks = read_clocks();
        fragment.append(std::mem::take(&mut first));
        let marks = control.marks().into_iter().map(|text| triggers::mark(&text, clocks.at));
        let mut triggered = false;
        real_time.note(&fragment);
        fragment.core_times.iter().for_each(|look| cores.look(look));
        let noticed = noticing.look(&fragment, &cores, &real_time);
        for over in noticed.over {
            incidents.end(over, clocks);
        }
        for trigger in noticed.begun.into_iter().chain(marks) {
            triggered = true;
            incidents.begin(trigger, clocks);
        }
        let about_incidents = incidents.told();
        to_store.keep_from(about_incidents.needed_from);
        if let Some(rings) = &mut rings {
            rings.escalate(about_incidents.escalation);
        }
        if let Some(mut minute) = rollup.note(&fragment, &meter, &cores, clocks) {
            let cpu = own_cpu(&lock(&status));
            minute.own_cpu_us = Some(cpu.saturating_sub(cpu_before).as_micros() as u64);
            cpu_before = cpu;
            reports.minute(&minute);
            to_store.rollup(minute);
        }
        meter.note(&fragment, &cores, &real_time);
        match std::mem::take(&mut anew) {
            true => to_store.anew(fragment, clocks),
            false => to_store.seen(fragment),
        }
        if triggered {
            // The incident's first file must contain what triggered it.
            to_store.commit();
        }
        if to_store.wants_anew() {
            watch.tell_anew();
            anew = true;
        }
        if told_status.elapsed() >= SECOND {
            told_status = Instant::now();
            tell_status(&status, &meter, &about_incidents);
            // The lock, the socket and the incidents are gone with the directory: only a restart creates them again.
            gone = own.still_there().err();
        }
        anyhow::ensure!(!store.has_ended(), "the thread that writes segments has exited; see the message above");
        watchdog.beat();
        if stop.load(Ordering::Relaxed)
            || gone.is_some()
            || duration.is_some_and(|duration| began.elapsed() >= duration)
        {
            watch.stop();
        }
    }
    notify::stopping();
    drop(registered);
    if let Some(diagnoses) = diagnoses {
        diagnoses.finish();
    }
    if let Some(rings) = rings {
        rings.finish();
    }
    let sealed = store.finish();
    tell_status(&status, &meter, &incidents.finish());
    // Its channel closes with the last handle.
    drop(reports);
    if let Some(reporter) = reporter {
        reporter.finish();
    }
    drop(control);
    if let Some(gone) = gone {
        anyhow::bail!("{gone}; stopping: restart the recorder (systemd does) to create the directory again");
    }
    sealed?;
    let status = lock(&status).clone();
    Ok(Outcome { directory: own.path().to_owned(), status, lasted: began.elapsed() })
}

pub(crate) fn live_format(sampler: &Sampler) -> LiveFormat {
    let format = sampler.format();
    LiveFormat { event: format.event.to_owned(), sample_type: format.sample_type }
}

/// A port in use costs the metrics, not the recording.
fn serve(config: &Config, status: &Arc<Mutex<Status>>) -> Option<Running> {
    let listen = config.metrics.listen?;
    match metrics::serve(listen, Arc::clone(status)) {
        Ok(server) => Some(server),
        Err(error) => {
            warn(&format!("{error:#}; recording continues without /metrics (see metrics.listen, --metrics)"));
            None
        }
    }
}

fn announce(own: &OwnDirectory, config: &Config, rate_hz: Option<u32>, metrics: Option<&Running>) {
    let mut text = format!("recording into {} (at most {} MiB", own.path().display(), config.max_size >> 20);
    text.push_str(&match (rate_hz, config.rate) {
        (Some(rate), _) => format!(", {rate} samples per second and core)"),
        (None, 0) => ", no stack samples)".to_owned(),
        (None, _) => ", no stack samples: see \"Not seen\" in a diagnosis for the reason)".to_owned(),
    });
    if let Some(server) = metrics {
        text.push_str(&format!(", metrics at http://{}/metrics", server.address));
    }
    if let Some(to) = &config.report.to {
        text.push_str(&format!(", reporting to {to}"));
        if config.report.token_file.is_none() {
            text.push_str(" without a token (report.token_file, --report-token-file)");
        }
    }
    warn(&text);
    notify::status(&text);
}

fn tell_status(status: &Mutex<Status>, meter: &Meter, incidents: &Overview) {
    let cpu = coroner_probes::root::own_cpu();
    let rss = own_rss();
    let mut status = lock(status);
    status.node = meter.node();
    status.incidents.clone_from(&incidents.counts);
    // A hanging disk returns no error.
    if let Some(silent) = status.own.last_commit.map(|at| at.elapsed()).filter(|silent| *silent > STUCK) {
        let trouble = format!("nothing stored for {} s: the disk does not respond", silent.as_secs());
        if status.own.trouble.is_none() {
            warn(&trouble);
        }
        status.own.trouble = Some(trouble);
    }
    status.own.cpu_seconds = cpu.as_secs_f64();
    status.own.rss_bytes = rss;
    status.own.incident_bytes = incidents.bytes;
}

fn lock(status: &Mutex<Status>) -> std::sync::MutexGuard<'_, Status> {
    // Plain numbers, valid even if a holder of the lock panicked.
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

/// With the diagnoses, which are processes of their own.
fn own_cpu(status: &Status) -> Duration {
    let diagnoses = status.diagnoses.as_ref().map_or(0.0, |diagnoses| diagnoses.cpu_seconds);
    coroner_probes::root::own_cpu() + Duration::from_secs_f64(diagnoses)
}

fn own_rss() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

pub(crate) fn host() -> Option<String> {
    Some(rustix::system::uname().nodename().to_string_lossy().into_owned())
}
