//! On the live node, as root: real rings and real load. The machine has other work meanwhile; tests that judge rates and losses of all cores
//! have it for themselves.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Instant;

use coroner_evidence::perf::{Attr, Fields, HEADER, SideRecord, kind, record_header, sample};
use coroner_lab::{Child, HostLock};

use super::*;

#[derive(Debug)]
struct Ticked {
    core: u32,
    pid: u32,
    time: u64,
    period: u64,
    frames: u64,
}

fn samples(sampler: &mut Sampler) -> Vec<Ticked> {
    let attr = Attr { sample_type: SAMPLE_TYPE, ..Attr::default() };
    let mut samples = Vec::new();
    sampler.drain(&mut |core, record| {
        if record_header(record, false).0 == kind::SAMPLE {
            let sample = sample::parse(Fields::new(&record[HEADER..], false), &attr).unwrap();
            assert_eq!(sample.core, Some(core));
            samples.push(Ticked {
                core,
                pid: sample.pid.unwrap_or(u32::MAX),
                time: sample.time.unwrap(),
                period: sample.period.unwrap(),
                frames: sample.chain.len() as u64 / 8,
            });
        }
    });
    samples
}

fn start(rate_hz: u32) -> Sampler {
    let mut evidence = Evidence::default();
    let sampler = Sampler::start(&Root::live(), &SamplerOptions { rate_hz }, &mut evidence);
    assert!(sampler.is_sampling(), "{:?}", evidence.unseen);
    assert!(evidence.unseen.is_empty(), "{:?}", evidence.unseen);
    sampler
}

/// Samples taken during `time`, drained five times a second.
fn during(sampler: &mut Sampler, time: Duration) -> Vec<Ticked> {
    let (began, mut all) = (Instant::now(), Vec::new());
    while began.elapsed() < time {
        std::thread::sleep(Duration::from_millis(200));
        all.extend(samples(sampler));
    }
    all
}

fn spinner(core: u32) -> Child {
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string(), "sh", "-c", "while :; do :; done"]).stdout(Stdio::null());
    Child::spawn("spinner", &mut command).unwrap()
}

/// Samples per second of one core, from its first and last timestamps.
fn rate(samples: &[Ticked], core: u32) -> f64 {
    let times: Vec<u64> = samples.iter().filter(|sample| sample.core == core).map(|sample| sample.time).collect();
    let (first, last) = (times.iter().min().unwrap(), times.iter().max().unwrap());
    (times.len() - 1) as f64 * 1e9 / (last - first).max(1) as f64
}

#[test]
fn a_spinner_is_sampled_on_its_core_with_its_stack() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let mut sampler = start(97);
    let core = sampler.cores.iter().last().unwrap().number;
    let spinner = spinner(core);
    let mut seen = Vec::new();
    let began = Instant::now();
    while seen.iter().filter(|sample: &&Ticked| sample.pid == spinner.pid()).count() < 20 {
        assert!(began.elapsed() < Duration::from_secs(180), "{seen:?}");
        std::thread::sleep(Duration::from_millis(100));
        seen.extend(samples(&mut sampler));
    }
    let own: Vec<&Ticked> = seen.iter().filter(|sample| sample.pid == spinner.pid()).collect();
    assert!(own.iter().rev().take(10).all(|sample| sample.core == core), "{own:?}");
    assert!(own.iter().all(|sample| sample.frames > 0 && sample.period > 0), "{own:?}");
}

#[test]
fn forks_and_names_of_short_lived_processes_are_recorded() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let mut sampler = start(49);
    let mut command = Command::new("sh");
    let child = Child::spawn("sh", command.args(["-c", "for n in 1 2 3; do /bin/true; done; exec sleep 600"])).unwrap();
    let (mut forks, mut names) = (Vec::new(), Vec::new());
    let began = Instant::now();
    while names.iter().filter(|name: &&Vec<u8>| name.as_slice() == b"true").count() < 3 {
        assert!(began.elapsed() < Duration::from_secs(180), "{names:?}");
        std::thread::sleep(Duration::from_millis(50));
        sampler.drain(&mut |_, record| {
            let (kind, misc, _) = record_header(record, false);
            match SideRecord::parse(kind, misc, &record[HEADER..], false) {
                Some(SideRecord::Began { parent_pid, .. }) => forks.push(parent_pid),
                Some(SideRecord::Named { name, .. }) => names.push(name.to_vec()),
                _ => {}
            }
        });
    }
    assert!(forks.iter().filter(|parent| **parent == child.pid()).count() >= 3);
}

/// A core is not sampled while the hypervisor runs something else.
const STOLEN: f64 = 0.5;

#[test]
fn escalation_raises_the_rate_of_one_core_and_periods_match() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let mut sampler = start(49);
    let numbers: Vec<u32> = sampler.cores.iter().map(|core| core.number).collect();
    let core = *numbers.last().unwrap();
    // Some kernels give no samples of an idle core (nor to perf).
    let _busy: Vec<Child> = numbers.iter().map(|core| spinner(*core)).collect();
    let usual = during(&mut sampler, Duration::from_secs(1));
    sampler.escalate(core, 499).unwrap();
    samples(&mut sampler);
    let faster = during(&mut sampler, Duration::from_secs(1));
    sampler.relax(core).unwrap();
    samples(&mut sampler);
    let again = during(&mut sampler, Duration::from_secs(1));
    if sampler.ticker == Ticker::CpuClock {
        for (samples, expected) in [(&usual, 49.0), (&faster, 499.0), (&again, 49.0)] {
            let rate = rate(samples, core);
            assert!((rate / expected - 1.0).abs() < STOLEN, "{rate} instead of {expected}");
            let mut own = samples.iter().filter(|sample| sample.core == core);
            let period = 1e9 / expected;
            assert!(
                own.clone().all(|sample| (sample.period as f64 / period - 1.0).abs() < 0.01),
                "{:?}",
                own.next_back()
            );
        }
        for other in &numbers[..numbers.len() - 1] {
            let rate = rate(&faster, *other);
            assert!((rate / 49.0 - 1.0).abs() < STOLEN, "core {other}: {rate}");
        }
    }
    assert!(sampler.losses().iter().all(|losses| losses.lost == 0), "{:?}", sampler.losses());
}

#[test]
fn nothing_is_lost_at_999_hz_on_all_cores() {
    let Some(_lock) = HostLock::take_as_root() else { return };
    let mut sampler = start(999);
    let spinners: Vec<Child> = sampler.cores.iter().map(|core| spinner(core.number)).collect();
    let seen = during(&mut sampler, Duration::from_secs(2));
    drop(spinners);
    let mut by_core: BTreeMap<u32, u64> = BTreeMap::new();
    seen.iter().for_each(|sample| *by_core.entry(sample.core).or_default() += 1);
    assert!(by_core.values().all(|n| *n as f64 > 2.0 * 999.0 * STOLEN), "{by_core:?}");
    assert!(sampler.losses().iter().all(|losses| losses.lost == 0), "{:?}", sampler.losses());
}

#[test]
fn records_without_room_are_counted() {
    let Some(_lock) = HostLock::share_as_root() else { return };
    let mut evidence = Evidence::default();
    let mut sampler = start(49);
    let online = online(&Root::live()).unwrap();
    sampler.cores.clear();
    // The smallest rings, at a high rate, unread for a while.
    let attributes = event::attributes(sampler.ticker, 999, sampler.extras);
    let wanted = EventRequest { attributes, ring_bytes: 4096, always_ticks: false };
    sampler.cores.follow(&online, &wanted, clock(ClockId::Monotonic)).unwrap();
    let began = Instant::now();
    while sampler.losses().iter().map(|losses| losses.lost).sum::<u64>() == 0 {
        assert!(began.elapsed() < Duration::from_secs(180));
        std::thread::sleep(Duration::from_secs(1));
        // The kernel reports losses once there is room again.
        samples(&mut sampler);
        std::thread::sleep(Duration::from_millis(20));
        samples(&mut sampler);
    }
    // Losses of offline cores are kept.
    let lost: u64 = sampler.losses().iter().map(|losses| losses.lost).sum();
    sampler.follow(&CoreSet::parse_list("0").unwrap(), &mut evidence);
    assert!(sampler.losses().iter().map(|losses| losses.lost).sum::<u64>() >= lost);
}
