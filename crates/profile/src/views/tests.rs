use super::flame;
use super::*;
use crate::import::perf_script;
use crate::model::{Dictionary, EventId, Profile, Sample};

/// One millisecond between samples on each of two cores. Core 1: `hog` has it from 2.0 s to 2.35 s, with one sample of a stopper
/// thread inside; otherwise it alternates. Core 0 idles, with softirq work on the idle task from 1.0 s to 1.1 s.
fn text() -> String {
    let mut text = String::new();
    for ms in 0..4000u64 {
        let time = format!("{}.{:06}", ms / 1000, ms % 1000 * 1000);
        text.push_str(&format!("swapper     0 [000] {time}:    1000000 cpu-clock: \n"));
        if (1000..1100).contains(&ms) {
            text.push_str("\tffffffff81000001 net_rx_action+0x1 ([kernel.kallsyms])\n\tffffffff81000002 handle_softirqs+0x1 ([kernel.kallsyms])\n");
        }
        text.push_str("\tffffffff81000003 pv_native_safe_halt+0x1 ([kernel.kallsyms])\n\tffffffff81000004 do_idle+0x1 ([kernel.kallsyms])\n\n");
        let in_burst = (2000..2350).contains(&ms) && ms != 2100;
        let (comm, tid, symbol) = match ms {
            _ if in_burst => ("hog", 66, "spin"),
            2100 => ("migration/1", 21, "stop"),
            _ if ms % 4 < 2 => ("web server", 70, "serve"),
            _ => ("kubelet", 71, "sync"),
        };
        text.push_str(&format!("{comm} {tid} [001] {time}:    1000000 cpu-clock: \n"));
        if ms >= 3000 && tid == 71 {
            text.push_str("\tffffffff81000009 cgroup_rstat_flush+0x1 ([kernel.kallsyms])\n");
        }
        text.push_str(&format!("\t    7f0000001000 {symbol}+0x3 (/bin/x)\n\t    7f0000001000 main+0x3 (/bin/x)\n\n"));
    }
    text
}

fn example() -> Profile {
    Profile::collect(|take| perf_script::samples::read(text().as_bytes(), take)).expect("text").0
}

/// What a view is given under a filter.
fn each(profile: &Profile, filter: Filter, mut view: impl FnMut(&Dictionary, &Sample)) {
    let mut selector = Selector::new(filter);
    for sample in profile.samples.iter().filter(|sample| selector.has(&profile.names, sample)) {
        view(&profile.names, &sample);
    }
}

fn tree(profile: &Profile, filter: Filter, options: &flame::Options) -> flame::FlameTree {
    let mut sums = StackSums::by_command();
    each(profile, filter, |names, sample| sums.add(names, sample));
    flame::tree(&profile.names, &sums, EventId(0), options)
}

fn monopolies(profile: &Profile, options: monopolies::Options) -> Vec<monopolies::Monopoly> {
    let mut finder = monopolies::Finder::new(options);
    each(profile, Filter::default(), |names, sample| finder.add(names, sample));
    finder.finish(&profile.names)
}

fn shares(profile: &Profile, filter: Filter) -> risers::BusyShares {
    let mut shares = risers::BusyShares::default();
    each(profile, filter, |names, sample| shares.add(names, sample));
    shares
}

const MS: u64 = 1_000_000;

#[test]
fn the_burst_is_found_and_nothing_else() {
    let profile = example();
    let found = monopolies(&profile, monopolies::Options::default());
    // Softirq work on the idle core is work, but not of a thread for 100 ms and more.
    let hogs: Vec<_> = found.iter().filter(|found| found.core == 1).collect();
    assert_eq!(hogs.len(), 1);
    let hog = hogs[0];
    assert_eq!((hog.start, hog.length, hog.samples, hog.foreign), (2000 * MS, 350 * MS, 349, 1));
    assert_eq!(profile.names.strings.get(profile.names.task(hog.task).comm), "hog");
    assert_eq!(hog.before.map(|task| profile.names.strings.get(profile.names.task(task).comm)), Some("kubelet"));
    assert_eq!(hog.stacks.len(), 1);
    let short = monopolies::Options { threshold: 351 * MS, ..Default::default() };
    assert!(monopolies(&profile, short).is_empty());
}

#[test]
fn the_core_heatmap_names_the_owner_and_counts_softirq_on_an_idle_core() {
    let profile = example();
    let mut counter = cores::CoreCounter::new(50 * MS);
    each(&profile, Filter::default(), |names, sample| counter.add(names, sample));
    let map = counter.finish();
    assert_eq!((map.cores.as_slice(), map.columns, map.left_out), (&[0, 1][..], 80, 0));
    assert_eq!(map.cell(0, 19).busy_share(), Some(0.0));
    assert_eq!((map.cell(0, 20).irq, map.cell(0, 20).idle), (50, 0));
    assert_eq!(map.cell(0, 22).busy_share(), Some(0.0));
    let burst = map.cell(1, 41);
    assert_eq!(burst.owner.map(|task| profile.names.strings.get(profile.names.task(task).comm)), Some("hog"));
    assert_eq!((burst.user, burst.owner_samples), (50, 50));
    assert!(map.cell(1, 10).owner_samples < 30);
}

#[test]
fn the_offset_heatmap_counts_each_part_of_each_second() {
    let profile = example();
    let filter = Filter { cores: vec![1], comms: vec!["hog".to_owned()], ..Filter::default() };
    let mut counter = heatmap::OffsetCounter::new(20);
    each(&profile, filter, |_, sample| counter.add(sample));
    let map = counter.finish();
    assert_eq!((map.first_second, map.columns, map.rows, map.left_out), (2, 1, 20, 0));
    assert_eq!((map.count(0, 0), map.count(0, 2), map.count(0, 6), map.count(0, 7)), (50, 49, 50, 0));
    assert_eq!(map.counts.iter().sum::<u32>(), 349);
}

#[test]
fn a_flame_graph_of_a_range_a_band_and_upside_down() {
    let profile = example();
    let whole = tree(&profile, Filter::default(), &flame::Options::default());
    assert_eq!((whole.total(), whole.samples, whole.depth()), (8000 * MS, 8000, 5));
    let range = tree(&profile, Filter::between(2000 * MS, 2350 * MS), &flame::Options::default());
    assert_eq!(range.total(), 700 * MS);
    let names: Vec<&str> = range.nodes[0].children.iter().map(|child| range.name(*child)).collect();
    assert_eq!(names, ["hog", "migration/1", "swapper"]);
    let band =
        Filter { band: Some(Band { offsets: 0..100 * MS, within: 0..3000 * MS }), cores: vec![1], ..Filter::default() };
    assert_eq!(tree(&profile, band, &flame::Options::default()).total(), 300 * MS);
    let inverted = tree(&profile, Filter { cores: vec![1], ..Filter::default() }, &flame::Options { invert: true });
    let leaves: Vec<&str> = inverted.nodes[0].children.iter().map(|child| inverted.name(*child)).collect();
    assert_eq!(leaves, ["cgroup_rstat_flush_[k]", "serve", "spin", "stop", "sync"]);
    let by_symbol = Filter { symbol: Some("rstat".to_owned()), ..Filter::default() };
    assert_eq!(tree(&profile, by_symbol, &flame::Options::default()).total(), 500 * MS);
}

#[test]
fn a_difference_is_normalised_and_an_empty_side_is_no_trouble() {
    let profile = example();
    let of = |from, until| {
        tree(&profile, Filter { cores: vec![1], ..Filter::between(from, until) }, &flame::Options::default())
    };
    let tree = diff::diff(&of(0, 2000 * MS), &of(3000 * MS, 4000 * MS));
    let find = |name: &str| tree.nodes.iter().find(|node| tree.labels.get(node.label) == name).expect("a node");
    assert!(find("web_server").change().abs() < 1e-9);
    assert_eq!((find("cgroup_rstat_flush_[k]").before, find("cgroup_rstat_flush_[k]").after), (0.0, 0.5));
    let empty = diff::diff(&of(0, 0), &of(3000 * MS, 4000 * MS));
    assert_eq!((empty.nodes[0].before, empty.nodes[0].after), (0.0, 1.0));
    assert_eq!(diff::diff(&of(0, 0), &of(0, 0)).nodes.len(), 1);
}

#[test]
fn the_riser_is_the_kernel_function_that_was_not_there_before() {
    let profile = example();
    let before = shares(&profile, Filter::between(0, 900 * MS));
    let now = shares(&profile, Filter::between(3000 * MS, 4000 * MS));
    let risers = risers::find((&profile.names, &before), (&profile.names, &now), 3);
    assert_eq!((risers[0].what, risers[0].name.as_str()), (risers::What::KernelSymbol, "cgroup_rstat_flush"));
    assert_eq!((risers[0].baseline, risers[0].now), (0.0, 0.5));
    assert_eq!(risers.len(), 1);
}
