//! Records as the kernel writes them, with a small tree as the node; and any bytes.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::model::Profile;
use crate::recording::{SampleWriter, read, read_named};

/// TID | TIME | CALLCHAIN | CPU | PERIOD.
const SAMPLE_TYPE: u64 = 1 << 1 | 1 << 2 | 1 << 5 | 1 << 7 | 1 << 8;
const KERNEL: u64 = -128i64 as u64;
const USER: u64 = -512i64 as u64;

fn record(kind: u32, misc: u16, words: &[u64]) -> Vec<u8> {
    let mut bytes = kind.to_ne_bytes().to_vec();
    bytes.extend(misc.to_ne_bytes());
    bytes.extend(((HEADER + words.len() * 8) as u16).to_ne_bytes());
    words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes
}

fn ids(pid: u32, tid: u32) -> u64 {
    u64::from(tid) << 32 | u64::from(pid)
}

fn sample(pid: u32, time: u64, core: u64, chain: &[u64]) -> Vec<u8> {
    let mut words = vec![ids(pid, pid), time, core, 1000, chain.len() as u64];
    words.extend(chain);
    record(9, 2, &words)
}

fn fork(pid: u32, parent: u32, time: u64) -> Vec<u8> {
    record(7, 0, &[ids(pid, parent), ids(pid, parent), time, ids(pid, pid), time, 0])
}

fn exec(pid: u32, name: &[u8; 8], time: u64) -> Vec<u8> {
    record(3, 1 << 13, &[ids(pid, pid), u64::from_ne_bytes(*name), ids(pid, pid), time, 0])
}

fn write(node: &tempfile::TempDir, path: &str, text: &str) {
    let path = node.path().join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
    fs::write(path, text).expect("a file");
}

fn node() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |path: &str, text: &str| write(&dir, path, text);
    write("proc/kallsyms", "ffffffff81000000 T _text\nffffffff81000100 t schedule\nffffffff81000200 T _etext\n");
    write("proc/7/maps", "1000-2000 r-xp 00000000 fe:00 4711    /opt/old\n3000-4000 rw-p 00000000 00:00 0 \n");
    write("proc/7/cgroup", "4:memory:/kubepods/pod1\n0::/\n");
    write("proc/7/task/7/comm", "older\n");
    dir
}

fn live(root: &tempfile::TempDir) -> Live {
    Live::new(root.path(), LiveFormat { event: "cpu-clock".to_owned(), sample_type: SAMPLE_TYPE })
}

/// Task and frames, leaf first, as text.
fn told(names: &Dictionary, sample: &Sample) -> String {
    let task = names.task(sample.task);
    let frames = names.stacks.leaf_first(sample.stack).map(|id| {
        let frame = names.frames.get(id);
        format!("{}[{}]", frame.symbol(&names.strings), frame.module(&names.strings))
    });
    let cgroup = task.cgroup.map_or("?", |cgroup| names.strings.get(cgroup));
    format!("{} {cgroup} {}", names.strings.get(task.comm), frames.collect::<Vec<_>>().join(" "))
}

#[test]
fn an_older_process_is_queried_and_its_child_inherits() {
    let node = node();
    let mut live = live(&node);
    let mut seen = Vec::new();
    let mut sink = |names: &Dictionary, sample: Sample| seen.push((sample.time, told(names, &sample)));
    // Core 1's records come after core 0's but are older.
    let mut records = sample(7, 50, 0, &[KERNEL, 0xffff_ffff_8100_0110, USER, 0x1234]);
    records.extend(sample(9, 40, 1, &[USER, 0x1234]));
    records.extend(exec(10, b"ls\0\0\0\0\0\0", 45));
    records.extend(sample(10, 46, 1, &[USER, 0x1234]));
    let mut first = fork(9, 7, 30);
    first.extend(fork(10, 9, 31));
    live.take(&first, None, &mut sink);
    live.take(&records, None, &mut sink);
    live.finish(&mut sink);
    let expected = [
        (Some(40), "older /kubepods/pod1 [/opt/old]".to_owned()),
        (Some(46), "ls /kubepods/pod1 [/opt/old]".to_owned()),
        (Some(50), "older /kubepods/pod1 schedule[[kernel.kallsyms]] [/opt/old]".to_owned()),
    ];
    assert_eq!(seen, expected);
}

/// Recent kernels (seen: 6.18) record no names for them.
#[test]
fn a_new_kernel_thread_has_its_own_name() {
    let node = node();
    let write = |path: &str, text: &str| write(&node, path, text);
    write("proc/2/task/2/comm", "kthreadd\n");
    write("proc/2/maps", "");
    write("proc/900/task/900/comm", "napi/eth0-261\n");
    write("proc/902/task/902/comm", "not queried\n");
    let mut live = live(&node);
    let mut seen = Vec::new();
    let mut comm = |names: &Dictionary, sample: Sample| {
        seen.push(names.strings.get(names.task(sample.task).comm).to_owned());
    };
    let mut records = fork(900, 2, 10);
    records.extend(sample(900, 11, 0, &[KERNEL, 0xffff_ffff_8100_0110]));
    // One that is gone when queried, and one that changed its name.
    records.extend(fork(901, 2, 12));
    records.extend(sample(901, 13, 0, &[KERNEL, 0xffff_ffff_8100_0110]));
    records.extend(fork(902, 2, 14));
    records.extend(record(3, 0, &[ids(902, 902), u64::from_ne_bytes(*b"renamed\0"), ids(902, 902), 15, 0]));
    records.extend(sample(902, 16, 0, &[KERNEL, 0xffff_ffff_8100_0110]));
    live.take(&records, Some(u64::MAX), &mut comm);
    // Queried once: some kernels append the current work to the name, which keeps changing.
    write("proc/900/task/900/comm", "another\n");
    write("proc/901/task/901/comm", "another\n");
    let mut again = sample(900, 20, 0, &[KERNEL, 0xffff_ffff_8100_0110]);
    again.extend(sample(901, 21, 0, &[KERNEL, 0xffff_ffff_8100_0110]));
    live.take(&again, Some(u64::MAX), &mut comm);
    live.finish(&mut |_, _| {});
    assert_eq!(seen, ["napi/eth0-261", "kthreadd", "renamed", "napi/eth0-261", "kthreadd"]);
}

#[test]
fn a_new_dictionary_is_empty_and_processes_stay_known() {
    let node = node();
    let mut live = live(&node);
    let chain = [KERNEL, 0xffff_ffff_8100_0110, 0xffff_ffff_8100_0110, USER, 0x1234];
    live.take(&sample(7, 1, 0, &chain), None, &mut |_, _| {});
    live.finish(&mut |_, _| {});
    let before = live.names().frames.len();
    fs::remove_dir_all(node.path().join("proc/7")).expect("removed");
    live.begin_anew();
    assert_eq!((live.names().frames.len(), live.names().events.len()), (0, 1));
    let mut seen = Vec::new();
    live.take(&sample(7, 2, 0, &chain), None, &mut |_, _| {});
    live.finish(&mut |names, sample| seen.push(told(names, &sample)));
    assert_eq!(live.names().frames.len(), before);
    assert_eq!(
        seen,
        ["older /kubepods/pod1 schedule[[kernel.kallsyms]] schedule[[kernel.kallsyms]] [/opt/old]".to_owned()]
    );
}

unsafe extern "C" {
    /// A function whose name survives stripping: it is in the C library.
    safe fn getpid() -> i32;
}

#[test]
fn an_unnamed_frame_keeps_its_offset_and_is_named_when_read() {
    let address = getpid as extern "C" fn() -> i32 as usize as u64;
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let code = maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (hex(start)?, hex(end)?);
        let path = PathBuf::from(rest.split_whitespace().last()?);
        (start..end).contains(&address).then_some((start, end, hex(rest.split(' ').nth(1)?)?, path))
    });
    let (start, end, offset, path) = code.expect("the C library is mapped");
    let id = crate::symbols::build_id_of(&path).expect("a build id");
    let mut mapped = vec![ids(7, 7), start, end - start, offset];
    // Size of the build id, the id, in 24 bytes; protection and flags.
    let mut about = [0u8; 24];
    about[0] = id.len() as u8;
    about[4..4 + id.len()].copy_from_slice(&id);
    mapped.extend(about.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("a word"))));
    mapped.push(0);
    let mut text = path.to_str().expect("a path").as_bytes().to_vec();
    text.resize((text.len() + 8) & !7, 0);
    mapped.extend(text.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("a word"))));
    mapped.extend([ids(7, 7), 5, 0]);

    // A tree without the file, as if its symbols could not be read.
    let node = node();
    let mut live = live(&node);
    let mut records = exec(7, b"prog\0\0\0\0", 4);
    records.extend(record(10, 1 << 14, &mapped));
    records.extend(sample(7, 6, 0, &[USER, address]));
    records.extend(sample(7, 7, 0, &[USER, address + 1]));
    let file = node.path().join("a.coroner");
    let mut writer = coroner_evidence::recording::Writer::create(&file).expect("a recording");
    let mut rows = SampleWriter::default();
    let mut sink = |names: &Dictionary, sample: Sample| {
        rows.take(&mut writer, names, sample).expect("stored");
    };
    live.take(&records, None, &mut sink);
    live.finish(&mut sink);
    rows.commit(&mut writer).expect("stored");
    writer.finish(&[]).expect("finished");

    let leaf = |profile: &Profile, at: usize| {
        let sample = profile.samples.get(at);
        profile.names.stacks.leaf_first(sample.stack).next().expect("a frame")
    };
    let (stored, _) = Profile::collect(|take| read(&file, None, take)).expect("read");
    let place = stored.names.frames.file_offset(leaf(&stored, 0)).expect("a place");
    assert_eq!(stored.names.strings.get(place.build_id), crate::symbols::hex(&id));
    assert_eq!(place.offset, address - start + offset);
    assert_ne!(leaf(&stored, 0), leaf(&stored, 1));
    let mut symbols = Symbols::of_this_machine();
    let (named, _) = Profile::collect(|take| read_named(&file, None, &mut symbols, take)).expect("read");
    let frame = named.names.frames.get(leaf(&named, 0));
    assert!(frame.symbol(&named.names.strings).contains("getpid"), "{:?}", told(&named.names, &named.samples.get(0)));
    assert_eq!(leaf(&named, 0), leaf(&named, 1), "one function is one frame");
}

#[test]
fn the_deepest_stacks_are_kept() {
    let node = node();
    let mut live = live(&node);
    let mut chain = vec![KERNEL];
    chain.extend((0..4096).map(|n| 0xffff_ffff_8100_0100 + n));
    let mut depths = Vec::new();
    let mut sink = |names: &Dictionary, sample: Sample| depths.push(names.stacks.leaf_first(sample.stack).count());
    live.take(&sample(7, 1, 0, &chain), None, &mut sink);
    live.finish(&mut sink);
    assert_eq!(depths, [4096]);
}

#[test]
fn a_storm_of_short_processes_takes_no_more_memory_than_a_few() {
    let node = node();
    let mut live = live(&node);
    let mut samples = 0u64;
    let mut sink = |_: &Dictionary, _: Sample| samples += 1;
    for round in 0..100u32 {
        let mut records = Vec::new();
        for n in 0..1000u32 {
            let (pid, time) = (100 + round * 1000 + n, u64::from(round * 1000 + n) * 10);
            records.extend(fork(pid, 7, time));
            records.extend(sample(pid, time + 1, 0, &[USER, 0x1234]));
            records.extend(record(4, 0, &[ids(pid, 7), ids(pid, 7), time + 2, ids(pid, pid), time + 2, 0]));
        }
        live.take(&records, Some(u64::MAX), &mut sink);
        live.begin_anew();
    }
    live.finish(&mut sink);
    assert_eq!(samples, 100_000);
    assert!(live.work.tasks.held() <= (5000, 5000), "{:?}", live.work.tasks.held());
    assert!(live.dictionary_bytes() < 1 << 20);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any bytes, and any words in records of every kind: no panic, and no more samples than records.
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let node = tempfile::tempdir().expect("a directory");
        let mut samples = 0;
        let mut live = live(&node);
        live.take(&bytes, None, &mut |_, _| samples += 1);
        live.finish(&mut |_, _| samples += 1);
        prop_assert!(samples <= bytes.len() / HEADER);
    }

    #[test]
    fn any_records(records in proptest::collection::vec(
        (0u32..22, any::<u16>(), proptest::collection::vec(prop_oneof![any::<u64>(), 0u64..9000, Just(KERNEL), Just(USER)], 0..12)), 0..20)) {
        let node = node();
        let mut samples = 0;
        let mut live = live(&node);
        for (kind, misc, words) in &records {
            live.take(&record(*kind, *misc, words), None, &mut |_, _| samples += 1);
        }
        live.finish(&mut |_, _| samples += 1);
        prop_assert!(samples <= records.len());
    }
}
