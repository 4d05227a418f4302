//! Samples this node like the recorder, and prints the cost and what was seen: `sample [SECONDS [RATE [FILE]]]`. Stores the samples in
//! FILE, if given.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use coroner_evidence::{Evidence, recording};
use coroner_probes::Root;
use coroner_probes::sampler::{Sampler, SamplerOptions};
use coroner_profile::live::{Live, LiveFormat};
use coroner_profile::model::{Dictionary, Sample};
use coroner_profile::recording::SampleWriter;

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let seconds: u64 = args.next().map_or(Ok(5), |text| text.parse())?;
    let rate_hz: u32 = args.next().map_or(Ok(49), |text| text.parse())?;
    let file = args.next().map(PathBuf::from);
    let mut writer = file.as_deref().map(recording::Writer::create).transpose()?;
    let mut rows = SampleWriter::default();

    let mut evidence = Evidence::default();
    let mut sampler = Sampler::start(&Root::live(), &SamplerOptions { rate_hz }, &mut evidence);
    println!("{:?}, {} Hz, unseen: {:?}", sampler.format(), sampler.rate_hz(), evidence.unseen);
    let format = sampler.format();
    let mut live =
        Live::new(Path::new("/"), LiveFormat { event: format.event.to_owned(), sample_type: format.sample_type });
    let started = cpu();
    println!("start: {:.1} ms of CPU", started.as_secs_f64() * 1e3);

    let mut by_task: BTreeMap<(String, u32), u64> = BTreeMap::new();
    let (mut samples, mut named, mut unnamed) = (0u64, 0u64, 0u64);
    let mut leaves: BTreeMap<String, u64> = BTreeMap::new();
    let mut sink = |names: &Dictionary, sample: Sample| {
        samples += 1;
        let task = names.task(sample.task);
        let comm = names.strings.get(task.comm).to_owned();
        *by_task.entry((comm, sample.core.unwrap_or(99))).or_default() += 1;
        for (at, frame) in names.stacks.leaf_first(sample.stack).enumerate() {
            let frame = names.frames.get(frame);
            let symbol = frame.symbol(&names.strings);
            if symbol.is_empty() {
                unnamed += 1
            } else {
                named += 1
            }
            if at == 0 {
                *leaves.entry(format!("{symbol} {}", frame.module(&names.strings))).or_default() += 1;
            }
        }
        if let Some(writer) = &mut writer {
            rows.take(writer, names, sample).expect("the sample is stored");
        }
    };
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut bytes, mut draining, mut decoding) = (Vec::new(), Duration::ZERO, Duration::ZERO);
    let mut all_bytes = 0;
    let mut turns = 0;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(200));
        let began = cpu();
        bytes.clear();
        let all_until = Some(coroner_probes::root::now().0);
        sampler.drain(&mut |_, record| bytes.extend_from_slice(record));
        turns += 1;
        if turns % 5 == 0 {
            sampler.follow_cores(&mut evidence);
        }
        all_bytes += bytes.len();
        let drained = cpu();
        live.take(&bytes, all_until, &mut sink);
        draining += drained - began;
        decoding += cpu() - drained;
    }
    live.finish(&mut sink);
    let per_second = |spent: Duration| spent.as_secs_f64() * 1e3 / seconds as f64;
    println!("drain {:.2}, decode {:.2} ms of CPU a second", per_second(draining), per_second(decoding));
    println!("{samples} samples, {} KB of records, {named} frames named, {unnamed} not", all_bytes >> 10);
    println!("dictionary {} KB, losses {:?}", live.dictionary_bytes() >> 10, sampler.losses());
    println!("report {:?}", live.report());
    println!("{}", status("VmRSS:") + " " + &status("VmHWM:"));
    print_most("tasks", by_task.iter().map(|((comm, core), n)| (format!("{comm} on {core}"), *n)).collect());
    print_most("leaves", leaves.into_iter().collect());
    if let Some(mut writer) = writer {
        rows.commit(&mut writer)?;
        writer.finish(&[])?;
    }
    Ok(())
}

fn print_most(what: &str, mut counts: Vec<(String, u64)>) {
    counts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    println!("{what}:");
    for (name, n) in counts.iter().take(12) {
        println!("{n:>8} {name}");
    }
}

fn cpu() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

fn status(key: &str) -> String {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    text.lines().find(|line| line.starts_with(key)).unwrap_or_default().to_owned()
}
