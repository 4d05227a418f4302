use super::*;
use coroner_profile::model::{EventId, Frame, FramePlace, Task};
use coroner_report::stacks::{DEEPEST_STACK, LONGEST_STACK, SMALLER};

fn tree(stacks: &[(&str, u64)]) -> Tree {
    let mut tree = Tree::default();
    stacks.iter().for_each(|(stack, weight)| tree.add(stack.split(';'), *weight));
    tree
}

fn total(stacks: &[(String, u64)]) -> u64 {
    stacks.iter().map(|(_, weight)| weight).sum()
}

#[test]
fn what_is_too_small_is_added_to_its_caller_and_nothing_is_lost() {
    let tree = tree(&[("a;b;c", 50), ("a;b;d", 4), ("a;b;e;f", 5), ("a;g", 2), ("h", 1), ("a;b", 38)]);
    let told =
        |most| -> Vec<String> { tree.heaviest(most).iter().map(|(text, weight)| format!("{text} {weight}")).collect() };
    assert_eq!(told(6).len(), 6);
    assert_eq!(told(5), ["[smaller] 3", "a;b 38", "a;b;c 50", "a;b;d 4", "a;b;e;f 5"]);
    assert_eq!(told(4), ["[smaller] 3", "a;b 38", "a;b;[smaller] 9", "a;b;c 50"]);
    for most in 1..10 {
        let kept = tree.heaviest(most);
        assert!(kept.len() <= most && total(&kept) == 100, "{most}: {kept:?}");
    }
    assert!(Tree::default().heaviest(5).is_empty());
}

#[test]
fn what_was_cut_down_before_can_be_cut_down_again() {
    let kept = tree(&[("a;b;[smaller]", 30), ("a;b;c", 60), ("a;b;d", 10)]).heaviest(2);
    assert_eq!(kept, [("a;b;[smaller]".to_owned(), 40), ("a;b;c".to_owned(), 60)]);
}

#[test]
fn many_different_stacks_stay_few_and_small() {
    let weight = |n: u64| 1 + 1_000_000 / (n + 1);
    let mut tree = Tree::default();
    for n in 0..20_000u64 {
        let labels = [format!("command-{}", n % 7), format!("f{}", n % 130), format!("g{n}")];
        tree.add(labels.iter().map(String::as_str), weight(n));
    }
    let kept = tree.heaviest(MOST_STACKS);
    assert!(kept.len() > MOST_STACKS * 2 / 3 && kept.len() <= MOST_STACKS, "{}", kept.len());
    assert_eq!(total(&kept), (0..20_000u64).map(weight).sum::<u64>());
    assert!(kept.iter().any(|(text, _)| text == "command-3;f10;g10"), "{kept:?}");
}

#[test]
fn stacks_keep_to_the_limits_of_a_row_and_name_no_process() {
    let deep: Vec<String> = (0..1000).map(|n| format!("{}{n}_[k]", "x".repeat(200))).collect();
    let kept = tree::bounded(&deep);
    let text = kept.join(";");
    assert!(text.len() + SMALLER.len() < LONGEST_STACK && kept.len() < DEEPEST_STACK, "{} {}", text.len(), kept.len());
    assert!(
        kept.contains(&"[cut]".to_owned()) && kept.iter().all(|label| label == "[cut]" || label.ends_with("…_[k]"))
    );
    let labels = ["java", "[libjvm.so]", "[libjvm.so]", "f", "f", "[perf-4711.map]_[j]"].map(str::to_owned);
    assert_eq!(tree::bounded(&labels).join(";"), "java;[libjvm.so];f;f;[jit]_[j]");
}

/// A dictionary with one frame per function, and a sample of the stack.
fn sample(names: &mut Dictionary, comm: &str, functions: &[(&str, FramePlace)], time: u64, period: u64) -> Sample {
    let mut frames: Vec<u32> = Vec::new();
    for (function, place) in functions {
        let (symbol, module) = (names.strings.intern(function), names.strings.intern("/bin/x"));
        frames.push(names.frames.intern(Frame { symbol, module, place: *place, inlined: false }).0);
    }
    frames.reverse();
    let id = if comm.starts_with("swapper/") { 0 } else { 7 };
    let comm = names.strings.intern(comm);
    let task = names.intern_task(Task { pid: Some(id), tid: Some(id), comm, cgroup: None });
    let event = names.intern_event("cpu-clock");
    let stack = names.stacks.intern(&frames);
    assert_eq!(event, EventId(0));
    Sample { time: Some(time), core: Some(0), task, event, period, stack }
}

#[test]
fn a_row_has_shares_of_time_without_idle_across_dictionaries() {
    let (reports, rows) = Reports::for_test();
    let mut heaviest = Heaviest::new(reports, Duration::from_secs(600), 98);
    let work: &[(&str, FramePlace)] = &[("main", FramePlace::User), ("mem_cgroup_nr_lru_pages", FramePlace::Kernel)];
    for turn in 0..2 {
        let mut names = Dictionary::default();
        for n in 0..30 {
            // The core was sampled twice as often in the second turn: each sample stands for half the time.
            let busy = sample(&mut names, &format!("kworker/{n}:1-events"), work, n, if turn == 0 { 20 } else { 10 });
            heaviest.take(&names, &busy);
            let other = sample(&mut names, "python3", &[("main", FramePlace::User)], n, 20);
            heaviest.take(&names, &other);
            let idle = sample(
                &mut names,
                "swapper/1",
                &[("do_idle", FramePlace::Kernel), ("default_idle_call", FramePlace::Kernel)],
                n,
                20,
            );
            heaviest.take(&names, &idle);
            let poll = sample(
                &mut names,
                "swapper/1",
                &[
                    ("do_idle", FramePlace::Kernel),
                    ("asm_common_interrupt", FramePlace::Kernel),
                    ("net_rx_action", FramePlace::Kernel),
                ],
                n,
                20,
            );
            heaviest.take(&names, &poll);
        }
        heaviest.begin_anew(&names);
    }
    heaviest.tell(&Dictionary::default());
    heaviest.tell(&Dictionary::default());
    let told: Vec<HeaviestStacks> = rows
        .try_iter()
        .filter_map(|row| match row {
            coroner_report::ReportRow::Stacks(stacks) => Some(stacks),
            _ => None,
        })
        .collect();
    let [row] = &told[..] else { panic!("{told:?}") };
    assert_eq!(row.samples, 180, "idle time is not counted, its interrupts are, and an empty row is not told");
    let shares: Vec<(&str, u64)> = row.stacks.iter().map(|stack| (stack.stack.as_str(), stack.samples)).collect();
    // 30 × 20 + 30 × 10 of 3,300, 60 × 20, and 60 × 20.
    let interrupt = "swapper;do_idle_[k];asm_common_interrupt_[k];net_rx_action_[k]";
    assert_eq!(shares, [("kworker;main;mem_cgroup_nr_lru_pages_[k]", 49), ("python3;main", 65), (interrupt, 65)]);
}

#[test]
fn a_large_node_looks_at_some_of_its_samples() {
    let one = sample(&mut Dictionary::default(), "x", &[], 0, 1);
    let at = |time: u64| Sample { time: Some(time), ..one };
    let picked = (0..100_000u64).filter(|n| is_picked(&at(n * 20_408_163 + n % 977), 96)).count();
    assert!((700..1400).contains(&picked), "{picked} of 100,000, expected about 1,040");
    assert!(is_picked(&at(1), 1));
}

/// Ten minutes of two cores with thousands of different stacks, as when a compiler runs.
#[test]
#[ignore = "prints what it costs: cargo test --release -p coroner-recorder --lib heaviest::tests::cost -- --ignored --nocapture"]
fn cost() {
    const SAMPLES: u64 = 58_800;
    let mut names = Dictionary::default();
    let samples: Vec<Sample> = (0..SAMPLES)
        .map(|n| {
            // Four in five are of 400 stacks, the others each a stack of its own.
            let which = if n % 5 > 0 { n * n % 400 } else { n };
            let functions: Vec<String> =
                (0..28).map(|depth| format!("function_{}_{depth}", which >> (depth / 4))).collect();
            let frames: Vec<(&str, FramePlace)> =
                functions.iter().map(|name| (name.as_str(), FramePlace::User)).collect();
            sample(&mut names, &format!("command-{}", which % 30), &frames, n, 20_408_163)
        })
        .collect();
    let (reports, rows) = Reports::for_test();
    let mut heaviest = Heaviest::new(reports, Duration::from_secs(600), 98);
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let peak_before = peak();
    // Of the process: other tests would count, too.
    let cpu = coroner_probes::root::own_cpu;
    let began = cpu();
    samples.iter().for_each(|sample| heaviest.take(&names, sample));
    let taken = cpu() - began;
    heaviest.tell(&names);
    let told = cpu() - began;
    let Ok(row) = rows.try_recv() else { panic!("no row") };
    let json = serde_json::to_vec(&row).unwrap();
    let packed = zstd::bulk::compress(&json, 6).unwrap();
    eprintln!(
        "{SAMPLES} samples: {:.1} ms to add up and {:.1} ms to tell, {:.4} % of a core over ten minutes; {} KiB at most; a row of {} bytes, {} packed",
        taken.as_secs_f64() * 1e3,
        (told - taken).as_secs_f64() * 1e3,
        told.as_secs_f64() / 6.0,
        peak() - peak_before,
        json.len(),
        packed.len()
    );
    assert!(packed.len() < 20 << 10, "{}", packed.len());
}
