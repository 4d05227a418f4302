use coroner_evidence::Wall;
use std::collections::HashSet;
use std::io::Read;

use flate2::read::GzDecoder;
use prost::Message;

use proptest::prelude::*;
use serde_json::json;

use super::{folded, pprof, speedscope};
use crate::import::{self, perf_script};
use crate::model::{Clock, Dictionary, Profile, Sample, Task};
use crate::views::StackSums;

const TEXT: &str = "\
a<b>&\"c 7/8 [000] 1.5:       1000 cpu-clock: \n\tffffffff81000000 kf+0x1 ([kernel.kallsyms])\n\t    7f0000001000 std::vector<int>::push+0x3 (/bin/x)\n\t    7f0000001000 main+0x3 (/bin/x)\n
a<b>&\"c 7/8 [000] 2.5:       500 cpu-clock: \n\t    7f0000001000 main+0x9 (/bin/x)\n
other 9/9 [001] 3.5:       500 page-faults: \n\t    7f0000001000 [unknown] (/bin/y)\n\n";

fn example() -> (Profile, StackSums) {
    let profile = Profile::collect(|take| perf_script::samples::read(TEXT.as_bytes(), take)).expect("text").0;
    let mut sums = StackSums::by_thread();
    profile.samples.iter().for_each(|sample| sums.add(&profile.names, &sample));
    (profile, sums)
}

#[test]
fn pprof_reads_back_with_the_same_stacks_and_values() {
    let (profile, sums) = example();
    let mut packed = Vec::new();
    pprof::write(&profile.names, &sums, &mut packed).expect("memory");
    let mut bytes = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut bytes).expect("gzip");
    let message = pprof::proto::Profile::decode(&bytes[..]).expect("a message");
    let text = |id: i64| message.string_table[id as usize].as_str();
    assert_eq!(text(0), "");
    let types: Vec<(&str, &str)> =
        message.sample_type.iter().map(|kind| (text(kind.r#type), text(kind.unit))).collect();
    let want = [
        ("cpu-clock samples", "count"),
        ("cpu-clock", "nanoseconds"),
        ("page-faults samples", "count"),
        ("page-faults", "count"),
    ];
    assert_eq!(types, want);
    let deepest = message.sample.iter().max_by_key(|sample| sample.location_id.len()).expect("a sample");
    let names: Vec<&str> = deepest
        .location_id
        .iter()
        .map(|id| message.location.iter().find(|location| location.id == *id).expect("the location"))
        .map(|location| {
            message.function.iter().find(|function| function.id == location.line[0].function_id).expect("one")
        })
        .map(|function| text(function.name))
        .collect();
    assert_eq!(names, ["kf", "std::vector<int>::push", "main"]);
    assert_eq!(deepest.value, [1, 1000, 0, 0]);
    let label = |key: &str| deepest.label.iter().find(|label| text(label.key) == key);
    let word = |key: &str| label(key).map(|label| text(label.str));
    assert_eq!((word("comm"), word("mode"), word("cgroup")), (Some("a<b>&\"c"), Some("kernel"), None));
    assert_eq!((label("pid").map(|label| label.num), label("tid").map(|label| label.num)), (Some(7), Some(8)));
    // Two clock samples with different periods.
    assert_eq!((text(message.default_sample_type), message.period), ("cpu-clock", 0));
    let no_symbol = message.function.iter().any(|function| text(function.name) == "[y]");
    assert!(no_symbol, "a frame without a symbol has its module's name");
    assert_eq!(message.duration_nanos, 2_000_000_000);
    let functions: Vec<(&str, bool)> =
        message.mapping.iter().map(|mapping| (text(mapping.filename), mapping.has_functions)).collect();
    assert_eq!(functions, [("/bin/x", true), ("[kernel.kallsyms]", true), ("/bin/y", true)]);
    valid(&message);
}

/// What pprof's own `Profile.CheckValid` and its reader require.
fn valid(message: &pprof::proto::Profile) {
    assert_eq!(message.string_table.first().map(String::as_str), Some(""));
    let strings = message.string_table.len() as i64;
    let is_text = |id: i64| assert!((0..strings).contains(&id), "{id}");
    let mut ids = HashSet::new();
    for mapping in &message.mapping {
        assert!(mapping.id != 0 && ids.insert(("mapping", mapping.id)));
        is_text(mapping.filename);
    }
    for function in &message.function {
        assert!(function.id != 0 && ids.insert(("function", function.id)));
        is_text(function.name);
        is_text(function.system_name);
    }
    for location in &message.location {
        assert!(location.id != 0 && ids.insert(("location", location.id)));
        assert!(location.mapping_id == 0 || ids.contains(&("mapping", location.mapping_id)));
        assert!(location.line.iter().all(|line| ids.contains(&("function", line.function_id))));
    }
    for sample in &message.sample {
        assert_eq!(sample.value.len(), message.sample_type.len());
        assert!(!sample.location_id.is_empty());
        assert!(sample.location_id.iter().all(|id| ids.contains(&("location", *id))));
        for label in &sample.label {
            is_text(label.key);
            is_text(label.str);
            assert!(label.key != 0 && (label.str != 0) != (label.num_unit != 0), "a text or a number: {label:?}");
        }
    }
    for kind in message.sample_type.iter().chain(&message.period_type) {
        is_text(kind.r#type);
        is_text(kind.unit);
    }
    message.comment.iter().copied().for_each(is_text);
}

proptest! {
    #[test]
    fn pprof_is_valid_and_keeps_the_sums_of_any_stacks(lines in proptest::collection::vec(
        ("[a-c ]{0,2}(;[a-z\\[\\]_]{0,3}(_\\[[kij]\\])?){0,4}", any::<u64>()), 0..20)) {
        let text: String = lines.iter().map(|(stack, weight)| format!("{stack} {}\n", weight >> 8)).collect();
        let (profile, _) = Profile::collect(|take| import::folded::read(text.as_bytes(), take)).expect("text");
        let sums = profile.sums();
        let message = pprof::message(&profile.names, &sums);
        valid(&message);
        let want: i64 = sums.sorted().iter().map(|sum| sum.weight as i64).sum();
        prop_assert_eq!(message.sample.iter().map(|sample| sample.value[1]).sum::<i64>(), want);
    }

    #[test]
    fn folded_stacks_keep_their_sums_when_read_back(text in "((a|bash 2|x)(;[a-d]->?[e-g]?|;k_\\[k\\]|;\\[lib\\])* [0-9]{1,4}\n){0,20}") {
        let (first, _) = Profile::collect(|take| import::folded::read(text.as_bytes(), take)).expect("text");
        let mut once = Vec::new();
        folded::write(&first.names, &first.sums(), &mut once).expect("memory");
        let (second, report) = Profile::collect(|take| import::folded::read(&once[..], take)).expect("text");
        prop_assert_eq!(report.oddities.len(), 0);
        prop_assert_eq!(total(&second), total(&first));
    }
}

fn total(profile: &Profile) -> u64 {
    profile.sums().sorted().iter().map(|sum| sum.weight).sum()
}

#[test]
fn pprof_knows_the_period_if_there_is_one_and_the_idle_task_and_the_cgroup() {
    let mut names = Dictionary::default();
    let event = names.intern_event("cycles");
    let comm = names.strings.intern("swapper");
    let cgroup = names.strings.intern("/kubepods/pod1");
    let task = names.intern_task(Task { pid: Some(0), tid: Some(0), comm, cgroup: Some(cgroup) });
    let stack = names.stacks.intern(&[]);
    names.clock = Some(Clock { clock_ns: 1_000, wall: Wall(1_700_000_000_000_000_000) });
    let mut sums = StackSums::by_thread();
    for time in [5_000, 9_000] {
        sums.add(&names, &Sample { time: Some(time), core: None, task, event, period: 250, stack });
    }
    let message = pprof::message(&names, &sums);
    valid(&message);
    let text = |id: i64| message.string_table[id as usize].as_str();
    assert_eq!((message.period, message.period_type.map(|kind| text(kind.r#type))), (250, Some("cycles")));
    assert_eq!((message.time_nanos, message.duration_nanos), (1_700_000_000_000_004_000, 4_000));
    let labels: Vec<(&str, &str, i64)> =
        message.sample[0].label.iter().map(|label| (text(label.key), text(label.str), label.num)).collect();
    assert_eq!(labels, [("comm", "swapper", 0), ("cgroup", "/kubepods/pod1", 0), ("pid", "", 0), ("tid", "", 0)]);
    assert_eq!(text(message.function[0].name), "[no stack]");
}

#[test]
fn speedscope_has_a_profile_for_each_event_with_frames_that_exist() {
    let (profile, sums) = example();
    let mut out = Vec::new();
    speedscope::write(&profile.names, &sums, "test", &mut out).expect("memory");
    let file: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
    // What the schema requires of a file and of a sampled profile.
    assert_eq!(file["$schema"], "https://www.speedscope.app/file-format-schema.json");
    assert_eq!((&file["name"], &file["activeProfileIndex"]), (&json!("test"), &json!(0)));
    let frames = file["shared"]["frames"].as_array().expect("frames");
    let named: Vec<&str> = frames.iter().map(|frame| frame["name"].as_str().expect("a name")).collect();
    assert_eq!(named, ["a<b>&\"c", "main", "std::vector<int>::push", "kf", "other", "[y]"]);
    assert_eq!((&frames[1]["file"], frames[0].get("file")), (&json!("/bin/x"), None));
    let profiles = file["profiles"].as_array().expect("profiles");
    let shape: Vec<_> = profiles.iter().map(|it| (&it["type"], &it["name"], &it["unit"], &it["endValue"])).collect();
    let want = [
        (&json!("sampled"), &json!("cpu-clock"), &json!("nanoseconds"), &json!(1500)),
        (&json!("sampled"), &json!("page-faults"), &json!("none"), &json!(500)),
    ];
    assert_eq!(shape, want);
    assert_eq!(
        (&profiles[0]["samples"], &profiles[0]["weights"]),
        (&json!([[0, 1], [0, 1, 2, 3]]), &json!([500, 1000]))
    );
    assert_eq!(profiles[0]["startValue"], 0);
}
