use proptest::prelude::*;

use super::{ImportError, ImportReport};
use crate::export;
use crate::import::OddityKind;
use crate::model::Profile;
use crate::symbols::Symbols;

#[allow(dead_code, reason = "the tests of hostile files use the rest")]
#[path = "../../../tests/targets/perf_file.rs"]
mod perf_file;

use perf_file::{KERNEL, Records, USER, words};

fn example() -> Records {
    let mut file = Records::default();
    file.comm(1, 7, "sh", false);
    file.mmap(2, 7, 0x1000, 0x1000, "/bin/sh");
    // Core 1's ring is read after core 0's: the exec at 10 comes after the sample at 20 and before the one at 5.
    file.sample(20, 0, 7, &[KERNEL, 0xffff_ffff_8100_0000, USER, 0x1010, 0x9000]);
    file.comm(10, 7, "my prog", true);
    file.mmap(11, 7, 0x1000, 0x1000, "/bin/prog");
    file.sample(5, 1, 7, &[USER, 0x1010]);
    file.add(68, 0, &[]);
    file.add(2, 0, &words(&[0, 17, 0, 0, 0]));
    // The same losses, counted by perf at the end.
    file.add(13, 0, &words(&[17, 0, 0, 0]));
    file.sample(30, 1, 0, &[KERNEL, 0xffff_ffff_8100_0000]);
    file
}

fn folded(bytes: &[u8]) -> (String, ImportReport) {
    let (profile, report) = read(bytes).expect("a file");
    let mut out = Vec::new();
    export::folded::write(&profile.names, &profile.sums(), &mut out).expect("memory");
    (String::from_utf8(out).expect("text"), report)
}

/// Reads and keeps what is there.
fn read(bytes: &[u8]) -> Result<(Profile, ImportReport), ImportError> {
    Profile::collect(|take| super::read(bytes, &mut Symbols::none(), take))
}

#[test]
fn a_sample_sees_the_names_and_mappings_of_its_own_time() {
    let (text, report) = folded(&example().file());
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "my_prog;[unknown];[prog];[[kernel.kallsyms]]_[k] 1000",
            "sh;[sh] 1000",
            "swapper;[[kernel.kallsyms]]_[k] 1000",
        ]
    );
    assert_eq!((report.samples, report.lost, report.truncated, report.oddities.len()), (3, 17, false, 0));
}

#[test]
fn a_file_without_its_size_after_a_crash_is_read() {
    let mut bytes = example().file();
    bytes[48..56].copy_from_slice(&0u64.to_ne_bytes());
    let (whole, _) = folded(&example().file());
    let (text, report) = folded(&bytes);
    assert_eq!(text, whole);
    assert!(report.truncated);
    let (_, report) = folded(&bytes[..bytes.len() - 10]);
    assert!(report.truncated);
    assert_eq!(report.samples, 2);
}

#[test]
fn compressed_records_read_alike() {
    let plain = example();
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).expect("memory");
    std::io::Write::write_all(&mut encoder, &plain.0).expect("memory");
    let packed = encoder.finish().expect("memory");
    // One stream, split into records anywhere.
    let mut file = Records::default();
    for part in packed.chunks(37) {
        file.add(81, 0, part);
    }
    assert_eq!(folded(&file.file()).0, folded(&plain.file()).0);
}

#[test]
fn a_record_shorter_than_its_header_ends_the_reading() {
    let mut file = example();
    file.0.extend([9, 0, 0, 0, 0, 0, 3, 0]);
    let (_, report) = folded(&file.file());
    assert_eq!((report.samples, report.count(OddityKind::BadRecord), report.truncated), (3, 1, true));
}

#[test]
fn other_files_are_refused() {
    assert!(read(b"").is_err());
    assert!(read(b"#!/bin/sh\n").is_err());
    assert!(read(b"PERFILE2").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_behind_the_magic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let mut file = b"PERFILE2".to_vec();
        file.extend(bytes);
        let _ = read(&file);
    }

    /// Any damage to a good file: no panic, and the rest is read.
    #[test]
    fn a_damaged_file(changes in proptest::collection::vec((0usize..1000, any::<u8>()), 1..12), cut in 0usize..1000) {
        let mut bytes = example().file();
        for (at, byte) in changes {
            let length = bytes.len();
            bytes[at % length] = byte;
        }
        bytes.truncate(bytes.len() - cut % bytes.len().min(400));
        let _ = read(&bytes);
    }

    #[test]
    fn any_records(records in proptest::collection::vec(
        (prop_oneof![0u32..22, 60u32..86], any::<u16>(), proptest::collection::vec(any::<u8>(), 0..120)), 0..20)) {
        let mut file = Records::default();
        for (kind, misc, body) in &records {
            file.add(*kind, *misc, body);
        }
        let _ = read(&file.file());
    }
}
