use std::ops::Range;

use super::flame::{self, FlameOptions};
use super::made::{MS, Made};
use super::*;
use crate::import::perf_script;
use crate::model::{Dictionary, EventId, Profile, Sample};

/// A sample every millisecond on each of two cores. Core 1: `hog` has it from 2.0 s to 2.35 s, with one sample of a stopper
/// thread inside; otherwise two threads alternate. Core 0 idles, with softirq work on the idle task from 1.0 s to 1.1 s.
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

/// Passes the filtered samples to a view.
fn each(profile: &Profile, filter: Filter, mut view: impl FnMut(&Dictionary, &Sample)) {
    let mut selector = Selector::new(filter);
    for sample in profile.samples.iter().filter(|sample| selector.has(&profile.names, sample)) {
        view(&profile.names, &sample);
    }
}

fn tree(profile: &Profile, filter: Filter, options: &FlameOptions) -> flame::FlameTree {
    let mut sums = StackSums::by_command();
    each(profile, filter, |names, sample| sums.add(names, sample));
    flame::tree(&profile.names, &sums, EventId(0), options)
}

#[test]
fn merged_graphs_of_parts_equal_the_graph_of_the_whole() {
    let profile = example();
    let between = |from: u64, until: u64| Filter::between(from * MS, until * MS);
    for invert in [false, true] {
        let options = FlameOptions { invert };
        let parts = [tree(&profile, between(0, 2100), &options), tree(&profile, between(2100, 4000), &options)];
        let (merged, whole) = (flame::merged(&parts), tree(&profile, Filter::default(), &options));
        let told = |tree: &flame::FlameTree| {
            let mut open = vec![(0u32, 0usize)];
            let mut lines = Vec::new();
            while let Some((at, depth)) = open.pop() {
                let node = &tree.nodes[at as usize];
                lines.push((depth, tree.name(at).to_owned(), node.place, node.total, node.own));
                open.extend(node.children.iter().rev().map(|child| (*child, depth + 1)));
            }
            (tree.samples, lines)
        };
        assert_eq!(told(&merged), told(&whole));
    }
}

#[test]
fn dropping_small_frames_does_not_change_large_ones() {
    let profile = example();
    let mut sums = StackSums::by_command();
    each(&profile, Filter::default(), |names, sample| sums.add(names, sample));
    let options = FlameOptions::default();
    let whole = flame::tree(&profile.names, &sums, EventId(0), &options);
    let told = |tree: &flame::FlameTree, least: u64| {
        let mut open = vec![(0u32, String::new())];
        let mut lines = Vec::new();
        while let Some((at, below)) = open.pop() {
            let node = &tree.nodes[at as usize];
            let path = format!("{below};{}", tree.name(at));
            open.extend(node.children.iter().map(|child| (*child, path.clone())));
            if node.total >= least {
                lines.push((path, node.total, node.own));
            }
        }
        lines.sort();
        lines
    };
    for share in [0.0005, 0.01, 0.1, 0.5] {
        let large = flame::tree_of_large(&profile.names, &sums, EventId(0), &options, share);
        let least = (whole.total() as f64 * share) as u64;
        assert_eq!(told(&large, least), told(&whole, least), "{share}");
        assert_eq!((large.samples, large.total()), (whole.samples, whole.total()));
        let merged = flame::merged(&[large.clone(), flame::FlameTree::default()]);
        assert_eq!(told(&merged, 0), told(&large, 0));
    }
    let large = flame::tree_of_large(&profile.names, &sums, EventId(0), &options, 0.5);
    assert!(large.left_out > 0 && large.nodes.len() < whole.nodes.len(), "{}", large.left_out);
}

fn monopolies(profile: &Profile, options: monopolies::MonopolyOptions) -> Vec<monopolies::Monopoly> {
    let mut finder = monopolies::Finder::new(options);
    each(profile, Filter::default(), |names, sample| finder.add(names, sample));
    finder.finish(&profile.names)
}

fn shares(profile: &Profile, filter: Filter) -> risers::BusyShares {
    let mut shares = risers::BusyShares::default();
    each(profile, filter, |names, sample| shares.add(names, sample));
    shares
}

fn shares_of<'s>(names: &Dictionary, samples: impl IntoIterator<Item = &'s Sample>) -> risers::BusyShares {
    let mut shares = risers::BusyShares::default();
    samples.into_iter().for_each(|sample| shares.add(names, sample));
    shares
}

fn core_map(names: &Dictionary, samples: &[Sample], step: u64) -> cores::CoreHeatmap {
    let mut counter = cores::CoreCounter::new(step);
    for sample in samples {
        counter.add(names, sample);
    }
    counter.finish()
}

#[test]
fn the_burst_is_found_and_nothing_else() {
    let profile = example();
    let found = monopolies(&profile, monopolies::MonopolyOptions::default());
    // Softirq work on the idle core counts as busy, but is no thread's run of 100 ms or more.
    let hogs: Vec<_> = found.iter().filter(|found| found.core == 1).collect();
    assert_eq!(hogs.len(), 1);
    let hog = hogs[0];
    assert_eq!((hog.start, hog.length, hog.samples, hog.foreign), (2000 * MS, 350 * MS, 349, 1));
    assert_eq!(profile.names.strings.get(profile.names.task(hog.task).comm), "hog");
    assert_eq!(hog.before.map(|task| profile.names.strings.get(profile.names.task(task).comm)), Some("kubelet"));
    assert_eq!(hog.stacks.len(), 1);
    let short = monopolies::MonopolyOptions { threshold: 351 * MS, ..Default::default() };
    assert!(monopolies(&profile, short).is_empty());
}

#[test]
fn the_core_heatmap_names_the_owner_and_counts_softirq_on_an_idle_core() {
    let profile = example();
    let samples: Vec<Sample> = profile.samples.iter().collect();
    let map = core_map(&profile.names, &samples, 50 * MS);
    assert_eq!((map.cores.as_slice(), map.columns, map.left_out), (&[0, 1][..], 80, 0));
    assert_eq!(map.cell(0, 19).busy_share(), Some(0.0));
    assert_eq!((map.cell(0, 20).irq, map.cell(0, 20).idle, map.cell(0, 20).samples), (50_000, 0, 50));
    assert_eq!(map.cell(0, 22).busy_share(), Some(0.0));
    let burst = map.cell(1, 41);
    assert_eq!(burst.owner.map(|task| profile.names.strings.get(profile.names.task(task).comm)), Some("hog"));
    assert_eq!((burst.user, burst.owner_weight), (50_000, 50_000), "microseconds");
    assert!(map.cell(1, 10).owner_weight < 30_000);
}

#[test]
fn the_offset_heatmap_counts_each_part_of_each_second() {
    let profile = example();
    let filter = Filter { cores: vec![1], comms: vec!["hog".to_owned()], ..Filter::default() };
    let mut counter = heatmap::OffsetCounter::new(20);
    each(&profile, filter, |names, sample| counter.add(names, sample));
    let map = counter.finish();
    assert_eq!((map.first_second, map.columns, map.rows, map.left_out), (2, 1, 20, 0));
    assert_eq!((map.count(0, 0), map.count(0, 2), map.count(0, 6), map.count(0, 7)), (50.0, 49.0, 50.0, 0.0));
    assert_eq!((map.counts.iter().sum::<f32>(), map.samples), (349.0, 349));
    assert_eq!((map.sample_ns, map.is_weighed), (Some(MS), false));
}

#[test]
fn flame_graphs_of_a_range_of_a_band_and_inverted() {
    let profile = example();
    let whole = tree(&profile, Filter::default(), &FlameOptions::default());
    assert_eq!((whole.total(), whole.samples, whole.depth()), (8000 * MS, 8000, 5));
    let range = tree(&profile, Filter::between(2000 * MS, 2350 * MS), &FlameOptions::default());
    assert_eq!(range.total(), 700 * MS);
    let names: Vec<&str> = range.nodes[0].children.iter().map(|child| range.name(*child)).collect();
    assert_eq!(names, ["hog", "migration/1", "swapper"]);
    let band =
        Filter { band: Some(Band { offsets: 0..100 * MS, within: 0..3000 * MS }), cores: vec![1], ..Filter::default() };
    assert_eq!(tree(&profile, band, &FlameOptions::default()).total(), 300 * MS);
    let inverted = tree(&profile, Filter { cores: vec![1], ..Filter::default() }, &FlameOptions { invert: true });
    let leaves: Vec<&str> = inverted.nodes[0].children.iter().map(|child| inverted.name(*child)).collect();
    assert_eq!(leaves, ["cgroup_rstat_flush_[k]", "serve", "spin", "stop", "sync"]);
    let by_symbol = Filter { symbol: Some("rstat".to_owned()), ..Filter::default() };
    assert_eq!(tree(&profile, by_symbol, &FlameOptions::default()).total(), 500 * MS);
}

#[test]
fn a_difference_is_normalised_and_may_have_an_empty_side() {
    let profile = example();
    let of = |from, until| {
        tree(&profile, Filter { cores: vec![1], ..Filter::between(from, until) }, &FlameOptions::default())
    };
    let tree = diff::diff(&of(0, 2000 * MS), &of(3000 * MS, 4000 * MS));
    let find = |name: &str| tree.nodes.iter().find(|node| tree.labels.get(node.label) == name).expect("a node");
    assert!(find("web server").change().abs() < 1e-9);
    assert_eq!((find("cgroup_rstat_flush_[k]").before, find("cgroup_rstat_flush_[k]").after), (0.0, 0.5));
    let empty = diff::diff(&of(0, 0), &of(3000 * MS, 4000 * MS));
    assert_eq!((empty.nodes[0].before, empty.nodes[0].after), (0.0, 1.0));
    assert_eq!(diff::diff(&of(0, 0), &of(0, 0)).nodes.len(), 1);
}

#[test]
fn a_new_kernel_function_is_the_riser() {
    let profile = example();
    let before = shares(&profile, Filter::between(0, 900 * MS));
    let now = shares(&profile, Filter::between(3000 * MS, 4000 * MS));
    let risers = risers::find((&profile.names, &before), (&profile.names, &now), 3);
    assert_eq!((risers[0].what, risers[0].name.as_str()), (risers::RiserKind::KernelSymbol, "cgroup_rstat_flush"));
    assert_eq!((risers[0].baseline, risers[0].now), (0.0, 0.5));
    assert_eq!(risers.len(), 1);
}

#[test]
fn an_idle_baseline_has_risers_if_the_sampled_time_is_known() {
    let profile = example();
    let (mut before, mut now) =
        (risers::BusyShares::default(), shares(&profile, Filter::between(3000 * MS, 4000 * MS)));
    let find = |before: &_, now: &_| risers::find((&profile.names, before), (&profile.names, now), 3);
    assert_eq!(find(&before, &now), []);
    before.out_of(10_000 * MS);
    now.out_of(4000 * MS);
    let risers = find(&before, &now);
    assert!(!risers.is_empty());
    assert!(risers.iter().all(|r| r.baseline == 0.0 && r.now > 0.0 && r.now <= 0.5), "{risers:#?}");
}

/// A row's offsets are exactly those counted in it, even if a second does not divide evenly.
#[test]
fn a_cell_of_the_offset_heatmap_and_a_filter_agree() {
    for rows in [1, 7, 50, 333, 1000] {
        let mut made = Made::default();
        let task = made.task("a", 1);
        let all: Vec<u64> = (0..rows as u64 + 1).map(|row| row * 1_000_000_000 / rows as u64).collect();
        for offset in all.iter().flat_map(|at| [at.saturating_sub(1), *at, at + 1]) {
            made.tick(7_000_000_000 + offset, task);
        }
        let mut counter = heatmap::OffsetCounter::new(rows);
        made.samples.iter().for_each(|sample| counter.add(&made.names, sample));
        let map = counter.finish();
        assert_eq!(map.first_second, 7);
        for column in 0..map.columns {
            for row in 0..rows {
                let times = map.times(column, row);
                let within = made.samples.iter().filter(|sample| times.contains(&sample.time.expect("time"))).count();
                assert_eq!(map.count(column, row) as usize, within, "{rows} rows, row {row}");
            }
        }
    }
}

#[test]
fn one_wrong_timestamp_does_not_push_out_the_rest() {
    let mut made = Made::default();
    let task = made.task("a", 1);
    made.tick(0, task);
    (0..1000u64).for_each(|n| made.tick(40_000_000_000_000_000 + n * MS, task));
    made.tick(u64::MAX, task);
    let mut offsets = heatmap::OffsetCounter::new(1000);
    let mut cores = cores::CoreCounter::new(MS);
    for sample in &made.samples {
        offsets.add(&made.names, sample);
        cores.add(&made.names, sample);
    }
    let (offsets, cores) = (offsets.finish(), cores.finish());
    assert_eq!((offsets.first_second, offsets.columns, offsets.left_out), (40_000_000, 1, 2));
    assert_eq!((cores.start, cores.columns, cores.left_out), (40_000_000_000_000_000, 1000, 2));
}

#[test]
fn unsampled_idle_time_is_not_reported_as_idle() {
    let mut made = Made::default();
    let (a, b) = (made.task("a", 1), made.task("b", 2));
    let stack = made.stack(&["main"]);
    // Core 0 is always busy, core 1 for a quarter of the first second and then never.
    for ms in 0..2000u64 {
        made.sample("cycles", 0, ms * MS, a, stack);
        if ms < 250 {
            made.sample("cycles", 1, ms * MS, b, stack);
        }
        made.sample("sched:sched_switch", 1, ms * MS, a, stack);
    }
    let map = core_map(&made.names, &made.samples, 1000 * MS);
    assert_eq!((map.cell(1, 0).busy_share(), map.cell(1, 0).owner, map.other_events), (None, Some(b), 2000));
    let cores::Busy::Estimated(share) = map.busy(1, 0) else { panic!("{:?}", map.busy(1, 0)) };
    assert!((share - 0.25).abs() < 0.03, "{share}");
    assert_eq!(map.busy(1, 1), cores::Busy::Silent);
}

/// Some kernels deliver no samples from an idle core although the timer ticks there.
#[test]
fn missing_idle_samples_make_no_core_full_and_no_thread_a_monopolist() {
    const TICK: u64 = 20_408_163;
    let mut made = Made::default();
    let [busy, waking] = [("busy", 1), ("waking", 2)].map(|(comm, tid)| made.task(comm, tid));
    let stack = made.stack(&["main"]);
    let mut sample = |core, time, task| made.sample_for(TICK, core, time, task, stack);
    for n in 0..490 {
        sample(0, n * TICK, busy);
        // On the other core a thread wakes briefly ten times a second, later more often.
        if n % if n < 250 { 5 } else { 3 } == 0 {
            sample(1, n * TICK, waking);
        }
    }
    let map = core_map(&made.names, &made.samples, 1000 * MS);
    let mut finder = monopolies::Finder::new(monopolies::MonopolyOptions::default());
    made.samples.iter().for_each(|sample| finder.add(&made.names, sample));
    let share = |row| match map.busy(row, 3) {
        cores::Busy::Estimated(share) => share,
        other => panic!("{other:?}"),
    };
    assert!(share(0) > 0.95 && (0.15..0.25).contains(&share(1)), "{} {}", share(0), share(1));
    let found = finder.finish(&made.names);
    assert_eq!(found.iter().map(|found| found.task).collect::<Vec<_>>(), [busy]);
    assert!(found[0].length > 9_900 * MS, "{}", found[0].length);
}

#[test]
fn late_samples_count_for_their_cell_and_owner() {
    let mut made = Made::default();
    let [a, b] = ["a", "b"].map(|comm| made.task(comm, u32::from(comm.as_bytes()[0])));
    // In the first column a has 6 and b has 5, but 3 of a's come after all the others.
    for (n, task) in [a, a, a, b, b, b, b, b].into_iter().enumerate() {
        made.tick(n as u64 * MS, task);
    }
    (1..50).for_each(|column| made.tick(column * 100 * MS, b));
    (0..3).for_each(|n| made.tick((20 + n) * MS, a));
    let map = core_map(&made.names, &made.samples, 100 * MS);
    assert_eq!((map.cell(0, 0).user, map.late), (11, 3));
    // The owner is no longer certain, which `late` tells.
    assert_eq!(map.cell(0, 0).owner_weight, 5);
}

#[test]
fn a_band_may_wrap_around_the_second() {
    let profile = example();
    let band =
        |offsets| Filter { band: Some(Band { offsets, within: 0..4000 * MS }), cores: vec![1], ..Filter::default() };
    assert_eq!(tree(&profile, band(Range { start: 900 * MS, end: 100 * MS }), &FlameOptions::default()).samples, 800);
    let ranges = Filter { ranges: vec![0..100 * MS, 50 * MS..200 * MS, 900 * MS..900 * MS], ..Filter::default() };
    assert_eq!(tree(&profile, Filter { cores: vec![1], ..ranges }, &FlameOptions::default()).samples, 200);
}

/// On a loaded node kubelet goes from under 1 % to 6.5 %, nearly all of it in one function deep in a system call.
#[test]
fn kubelet_and_its_function_come_out_on_top() {
    let mut made = Made::default();
    let entry = ["main", "entry_SYSCALL_64_after_hwframe_[k]", "do_syscall_64_[k]"];
    let read = [&entry[..], &["ksys_read_[k]", "vfs_read_[k]", "seq_read_iter_[k]"]].concat();
    let stat = [&read[..], &["memcg_stat_show_[k]", "mem_cgroup_nr_lru_pages_[k]"]].concat();
    let other = [&read[..], &["proc_pid_status_[k]"]].concat();
    let write = [&entry[..], &["ksys_write_[k]"]].concat();
    let [stat, other, write, user] = [&stat[..], &other, &write, &["main", "train"]].map(|stack| made.stack(stack));
    let kubelets = [made.task("kubelet", 900), made.task_of("kubelet", Some(900), Some(901))];
    let (train, web) = (made.task("train", 1000), made.task("web", 1001));
    let mut draw = 99u64;
    let mut second = |made: &mut Made, from: u64, permille: u64| {
        for n in 0..10_000u64 {
            draw = draw.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (draw >> 33) % 1000;
            let (task, stack) = match at {
                _ if at < permille => (kubelets[(n % 2) as usize], if at % 20 == 19 { other } else { stat }),
                _ if at < 200 => (web, if at.is_multiple_of(2) { other } else { write }),
                _ => (train, user),
            };
            made.sample("cpu-clock", 0, from + n * MS / 10, task, stack);
        }
    };
    second(&mut made, 0, 8);
    second(&mut made, 5000 * MS, 65);
    let [before, now] = &[0..5000 * MS, 5000 * MS..9000 * MS].map(|times| {
        let within = made.samples.iter().filter(|sample| times.contains(&sample.time.expect("time")));
        shares_of(&made.names, within)
    });
    let risers = risers::find((&made.names, before), (&made.names, now), 10);
    let names: Vec<&str> = risers.iter().map(|riser| riser.name.as_str()).collect();
    assert_eq!(names, ["kubelet", "mem_cgroup_nr_lru_pages"]);
    assert!(risers[0].baseline < 0.01 && (0.06..0.07).contains(&risers[0].now), "{risers:?}");
    assert_eq!((risers[0].now_processes, risers[0].baseline_processes), (1, 1));
    assert_eq!(risers[1].mostly_in, Some(("kubelet".to_owned(), 1.0)));
    assert_eq!(risers[1].carries[0], "memcg_stat_show");
    // No rise over itself, and none over an empty baseline.
    assert_eq!(risers::find((&made.names, now), (&made.names, now), 10), []);
    assert_eq!(risers::find((&made.names, &risers::BusyShares::default()), (&made.names, now), 10), []);
}

#[test]
fn one_sample_in_twenty_is_noise() {
    let mut made = Made::default();
    let (a, b) = (made.task("a", 1), made.task("b", 2));
    (0..40u64).for_each(|n| made.tick(n * MS, if n == 30 { b } else { a }));
    let [before, now] = [0..20, 20..40].map(|part| shares_of(&made.names, &made.samples[part]));
    assert_eq!(risers::find((&made.names, &before), (&made.names, &now), 10), []);
}

/// A day of 192 cores at one second: 16.6 million cells.
#[test]
#[ignore = "takes 1 GB; prints the cost of a cell"]
fn a_day_of_a_large_node() {
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default().to_owned();
        line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0)
    };
    let mut made = Made::default();
    let task = made.task("a", 1);
    made.tick(0, task);
    let one = made.samples[0];
    let before = peak();
    let mut counter = cores::CoreCounter::new(1000 * MS);
    for second in 0..86_400u64 {
        for core in 0..192 {
            counter.add(&made.names, &Sample { time: Some(second * 1000 * MS), core: Some(core), ..one });
        }
    }
    let counted = peak();
    let map = counter.finish();
    let cells = map.cells.len() as u64;
    assert_eq!((cells, map.left_out), (192 * 86_400, 0));
    let bytes = |from: u64| (peak() - from) * 1024 / cells;
    println!("{} bytes a cell while counting, {} at the most", (counted - before) * 1024 / cells, bytes(before));
    assert!(bytes(before) <= 100);
}

/// Two cores: one is sampled at 999 Hz from second 10 to 20, the other always at 49 Hz. On the first a web server has half of the
/// time and the rest is idle; on the other a compiler has all of it.
fn sampled_faster_for_a_while() -> Made {
    let mut made = Made::default();
    let [idle, web, compiler] = [("swapper", 0), ("web", 1), ("rustc", 2)].map(|(comm, tid)| made.task(comm, tid));
    let [waits, works] = [&["do_idle_[k]", "default_idle_[k]"][..], &["main", "entry_SYSCALL_64_[k]", "vfs_read_[k]"]]
        .map(|stack| made.stack(stack));
    let mut samples = Vec::new();
    for (core, faster) in [(0, 10..20), (1, 0..0)] {
        let mut time = 0;
        while time < 30_000 * MS {
            let hz = if faster.contains(&(time / (1000 * MS))) { 999 } else { 49 };
            // Out of step with either rate.
            let busy = (time / (7 * MS)).is_multiple_of(2);
            let task = match core {
                1 => compiler,
                _ if busy => web,
                _ => idle,
            };
            samples.push((core, time, 1_000_000_000 / hz, task));
            time += 1_000_000_000 / hz;
        }
    }
    samples.sort_by_key(|(_, time, ..)| *time);
    for (core, time, period, task) in samples {
        made.sample_for(period, core, time, task, if task == idle { waits } else { works });
    }
    made
}

#[test]
fn faster_sampling_does_not_look_busier() {
    let made = sampled_faster_for_a_while();
    let mut kinds = Kinds::default();
    let mut counter = heatmap::OffsetCounter::new(1);
    for sample in &made.samples {
        if kinds.kind(&made.names, sample) != SampleKind::Idle {
            counter.add(&made.names, sample);
        }
    }
    let map = counter.finish();
    assert_eq!((map.columns, map.sample_ns, map.is_weighed), (30, Some(1_000_000_000 / 49), true));
    // 49 for the compiler and half as many for the web server.
    for column in 0..30 {
        assert!((69.0..78.0).contains(&map.count(column, 0)), "second {column}: {}", map.count(column, 0));
    }
    assert!(map.samples > 30 * 74 + 4000, "{}", map.samples);
}

/// The rate changes in the middle of a cell: both parts count by their time.
#[test]
fn a_cell_with_a_rate_change_is_weighted_by_time() {
    let mut made = Made::default();
    let [early, late, idle] = [("early", 1), ("late", 2), ("swapper", 0)].map(|(comm, tid)| made.task(comm, tid));
    let [works, waits] = [&["main"][..], &["do_idle_[k]", "default_idle_[k]"]].map(|stack| made.stack(stack));
    // 700 ms of one thread at 49 Hz, 200 ms of another at 999 Hz, then idle.
    let mut time = 0;
    while time < 1000 * MS {
        let fast = time >= 700 * MS;
        let period = 1_000_000_000 / if fast { 999 } else { 49 };
        let (task, stack) = match time / MS {
            0..700 => (early, works),
            700..900 => (late, works),
            _ => (idle, waits),
        };
        made.sample_for(period, 0, time, task, stack);
        time += period;
    }
    let map = core_map(&made.names, &made.samples, 1000 * MS);
    let cell = map.cell(0, 0);
    assert_eq!(cell.owner, Some(early));
    let share = f64::from(cell.owner_weight) / f64::from(cell.busy());
    assert!((share - 7.0 / 9.0).abs() < 0.02, "{share}");
    let busy = cell.busy_share().expect("it was seen idle");
    assert!((busy - 0.9).abs() < 0.02, "{busy}");
}

/// A thread on a faster-sampled core has many samples but no larger share; a riser elsewhere has fewer samples and still rises.
#[test]
fn faster_sampling_makes_no_riser_and_hides_none() {
    let mut made = sampled_faster_for_a_while();
    let agent = made.task("agent", 3);
    // A twelfth of the compiler's core from second 10 on.
    let mut n = 0;
    for sample in made.samples.iter_mut().filter(|sample| sample.core == Some(1) && sample.time >= Some(10_000 * MS)) {
        n += 1;
        if n % 12 == 0 {
            sample.task = agent;
        }
    }
    let [before, now] = [0..10, 10..20].map(|seconds| {
        let within = made.samples.iter().filter(|s| seconds.contains(&(s.time.unwrap_or(0) / (1000 * MS))));
        shares_of(&made.names, within)
    });
    let found = risers::find((&made.names, &before), (&made.names, &now), 10);
    let names: Vec<&str> = found.iter().map(|riser| riser.name.as_str()).collect();
    assert_eq!(names, ["agent"]);
    assert!((found[0].now - 1.0 / 12.0 / 1.5).abs() < 0.01, "{}", found[0].now);
}
