use std::io::Read;

use flate2::read::GzDecoder;
use prost::Message;

use super::{pprof, speedscope};
use crate::import::perf_script;
use crate::model::Profile;
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
    assert!(deepest.label.iter().any(|label| (text(label.key), label.num) == ("tid", 8)));
    assert_eq!(message.duration_nanos, 2_000_000_000);
    for location in &message.location {
        assert!(message.mapping.iter().any(|mapping| mapping.id == location.mapping_id));
    }
}

#[test]
fn speedscope_has_a_profile_for_each_event_with_frames_that_exist() {
    let (profile, sums) = example();
    let mut out = Vec::new();
    speedscope::write(&profile.names, &sums, "test", &mut out).expect("memory");
    let file: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
    let frames = file["shared"]["frames"].as_array().expect("frames").len() as u64;
    let profiles = file["profiles"].as_array().expect("profiles");
    assert_eq!(profiles.len(), 2);
    assert_eq!((profiles[0]["unit"].as_str(), profiles[0]["endValue"].as_u64()), (Some("nanoseconds"), Some(1500)));
    for profile in profiles {
        let (samples, weights) =
            (profile["samples"].as_array().expect("samples"), profile["weights"].as_array().expect("weights"));
        assert_eq!(samples.len(), weights.len());
        assert!(
            samples
                .iter()
                .flat_map(|stack| stack.as_array().expect("a stack"))
                .all(|frame| frame.as_u64() < Some(frames))
        );
    }
}
