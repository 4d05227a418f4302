//! One definition of full: the diagnosis, the recorder's trigger, metrics and roll-ups, and the page agree.

use super::*;
use coroner_diagnosis::{Code, diagnose};
use coroner_evidence::recording::Writer;
use coroner_evidence::{Clocks, CoreTicks, Wall};
use coroner_recorder::config::TriggerConfig;
use coroner_recorder::meter::Meter;
use coroner_recorder::real_time::RealTimeThreads;
use coroner_recorder::rollup::Rollup;
use coroner_recorder::triggers::Triggers;
use serde_json::Value;

const SECONDS: u64 = 90;
/// It begins 30 s into a wall-clock minute.
const REAL_NS: u64 = 1_780_000_050_000_000_000;
const HIGH: u64 = 1_000_000;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Full {
    InKernel,
    Busy,
    Not,
}

/// Core 1's work per 100 ticks; the rest is idle. Core 0 idles.
#[derive(Clone, Copy, Default)]
struct Load {
    user: u64,
    system: u64,
    softirq: u64,
    steal: u64,
    iowait: u64,
}

struct Row {
    name: &'static str,
    load: Load,
    /// Modifies a poll; `None` drops it.
    look: fn(CoreTimes) -> Option<CoreTimes>,
    full: Full,
    /// In seconds in which core 1 was online.
    full_for: f64,
}

fn rows() -> Vec<Row> {
    let row = |name, load, full| Row { name, load, look: Some, full, full_for: SECONDS as f64 };
    let none = Load::default();
    let system = Load { system: 97, ..none };
    vec![
        row("system and steal", Load { system: 88, steal: 10, ..none }, Full::InKernel),
        row("user", Load { user: 97, ..none }, Full::Busy),
        row("user and steal", Load { user: 60, steal: 38, ..none }, Full::Busy),
        row("half stolen", Load { system: 50, steal: 50, ..none }, Full::Not),
        row("mostly stolen", Load { user: 10, steal: 90, ..none }, Full::Not),
        row("iowait", Load { iowait: 98, system: 2, ..none }, Full::Not),
        row("softirq", Load { softirq: 70, system: 28, ..none }, Full::InKernel),
        row("some room", Load { system: 90, ..none }, Full::Not),
        row("system and user", Load { system: 50, user: 48, ..none }, Full::Busy),
        Row { look: idle_steps_back, ..row("idle steps backwards", system, Full::InKernel) },
        Row { look: set_back, ..row("counters of another boot", system, Full::InKernel) },
        Row { look: away, full_for: SECONDS as f64 - 10.1, ..row("hotplug", system, Full::InKernel) },
        Row { look: gap, ..row("a gap", system, Full::InKernel) },
        Row { look: gap, ..row("a gap of a core with room", Load { system: 60, ..none }, Full::Not) },
    ]
}

fn tenths(look: &CoreTimes) -> u64 {
    look.at.0 / 100_000_000
}

fn idle_steps_back(mut look: CoreTimes) -> Option<CoreTimes> {
    look.cores[1].idle -= tenths(&look) % 2 * 5;
    Some(look)
}

fn set_back(mut look: CoreTimes) -> Option<CoreTimes> {
    if tenths(&look) >= 450 {
        for core in &mut look.cores {
            *core = CoreTicks { idle: core.idle - HIGH, system: core.system - HIGH, ..*core };
        }
    }
    Some(look)
}

fn away(mut look: CoreTimes) -> Option<CoreTimes> {
    look.cores.truncate(if (400..500).contains(&tenths(&look)) { 1 } else { 2 });
    Some(look)
}

fn gap(look: CoreTimes) -> Option<CoreTimes> {
    (!(400..500).contains(&tenths(&look))).then_some(look)
}

fn looks(row: &Row) -> Vec<CoreTimes> {
    let look = |tenth: u64| {
        let ticks = |share: u64| share * tenth / 10;
        let Load { user, system, softirq, steal, iowait } = row.load;
        let idle = HIGH + ticks(100 - user - system - softirq - steal - iowait);
        let (user, softirq, steal, iowait) = (ticks(user), ticks(softirq), ticks(steal), ticks(iowait));
        let idles = CoreTicks { core: 0, system: HIGH, idle: HIGH + tenth * 10, ..CoreTicks::default() };
        let system = HIGH + ticks(system);
        let works = CoreTicks { core: 1, user, nice: 0, system, irq: 0, softirq, steal, iowait, idle };
        (row.look)(CoreTimes { at: Time::from_millis(tenth * 100), cores: vec![idles, works] })
    };
    (0..=SECONDS * 10).filter_map(look).collect()
}

fn clocks(at: Time) -> Clocks {
    Clocks { at, wall: Wall(REAL_NS + at.0), boot_ns: at.0 }
}

/// The page's row of core 1.
fn page(looks: &[CoreTimes]) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("made.coroner");
    let mut file = Writer::create(&path).unwrap();
    let seen = Evidence { core_times: looks.to_vec(), clocks: vec![clocks(Time(0))], ..Evidence::default() };
    file.append(&seen).unwrap();
    file.finish(&[]).unwrap();
    let source = ProfileSource { file: path, ..ProfileSource::default() };
    let shown = Shown::open(source, "made".to_owned()).unwrap();
    let answer = answer(&shown, &ApiQuery::new("cores", "columns=90", "")).unwrap();
    let grid: Value = serde_json::from_slice(&answer.body).unwrap();
    let cores = grid["cores"].as_array().unwrap();
    cores.iter().find(|row| row["core"] == 1).unwrap().clone()
}

#[test]
fn all_meters_agree_which_core_is_full() {
    for row in rows() {
        let (name, looks) = (row.name, looks(&row));
        let (in_kernel, busy) = (row.full == Full::InKernel, row.full != Full::Not);
        // With two parts, each begins a little late or ends a little early.
        let is_right = |seconds: f64, full: bool| match full {
            true => (seconds - row.full_for).abs() < 1.5,
            false => seconds == 0.0,
        };

        let evidence = Evidence { core_times: looks.clone(), clocks: vec![clocks(Time(0))], ..Evidence::default() };
        let findings = diagnose(&evidence).findings;
        assert_eq!(findings.iter().any(|f| f.code == Code::CoreSaturated), in_kernel, "{name}: {findings:#?}");
        let summary = Cores::of(&evidence).summary(90).unwrap();
        let told = summary.cores.iter().find(|core| core.core == 1).unwrap();
        let full_s = told.full_ns as f64 / 1e9;
        assert!(is_right(full_s, busy), "{name}: {full_s} s");
        assert_eq!(summary.worst, Some(1), "{name}");

        let mut cores = Timeline::keeping(Duration::from_secs(3));
        let mut triggers = Triggers::new(&TriggerConfig::default());
        let (mut meter, mut rollup) = (Meter::new(), Rollup::new());
        let (mut begun, mut minutes) = (Vec::new(), Vec::new());
        let nobody = RealTimeThreads::default();
        for look in looks.clone() {
            let now = clocks(look.at);
            let fragment = Evidence { core_times: vec![look], ..Evidence::default() };
            cores.look(&fragment.core_times[0]);
            begun.extend(triggers.look(&fragment, &cores, &nobody).begun);
            minutes.extend(rollup.note(&fragment, &meter, &cores, now));
            meter.note(&fragment, &cores, &nobody);
        }
        let codes: Vec<&str> = begun.iter().map(|trigger| trigger.code.as_str()).collect();
        assert_eq!(codes.contains(&"core-saturated"), in_kernel, "{name}: {begun:?}");
        assert!(codes.len() <= 1 || matches!(name, "hotplug" | "counters of another boot"), "{name}: {begun:?}");
        let node = meter.node();
        let seconds = node.saturated_seconds[&1];
        assert!(is_right(seconds, in_kernel), "{name}: {seconds} s");
        assert_eq!(node.worst_core.map(|(core, _)| core), Some(1), "{name}");
        let [minute, ..] = &minutes[..] else { panic!("{name}: no minute") };
        let of_core = minute.by_core.iter().find(|core| core.core == 1).unwrap();
        assert_eq!(of_core.saturated_s > 25.0, in_kernel, "{name}: {of_core:?}");
        assert_eq!(of_core.saturated_s > 0.0, in_kernel, "{name}: {of_core:?}");

        let page = page(&looks);
        assert_eq!(page["score"].as_f64().unwrap() >= 90.0, busy, "{name}: {page}");

        // The same shares everywhere: overall, per minute, per ten seconds, and in each column.
        let near = |share: f64| (share - told.shares.busy()).abs() < 0.02;
        assert!(near(of_core.busy) && node.worst_core.is_some_and(|(_, busy)| near(busy)), "{name}: {of_core:?}");
        assert!((of_core.system - told.shares.kernel()).abs() < 0.02, "{name}: {of_core:?}");
        // The column in which the core goes offline has ten ticks; one may belong to its neighbour.
        let near = |share: f64| (share - told.shares.busy()).abs() < 0.1;
        let columns = page["busy"].as_array().unwrap();
        let seen = columns.iter().filter_map(Value::as_f64);
        assert!(seen.clone().all(|percent| near(percent / 100.0)), "{name}: {page}");
        let blank = told.strip.iter().filter(|part| part.is_none()).count();
        let unseen = if name == "hotplug" || name.starts_with("a gap") { 9..=11 } else { 0..=0 };
        assert!(unseen.contains(&blank) && unseen.contains(&(columns.len() - seen.count())), "{name}: {blank}, {page}");
    }
}
