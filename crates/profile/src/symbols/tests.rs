use std::fs;

use super::*;

/// A root directory with this boot's kernel symbols.
fn root(kallsyms: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir_all(dir.path().join("proc/sys/kernel")).expect("a directory");
    fs::create_dir_all(dir.path().join("sys/kernel")).expect("a directory");
    fs::write(dir.path().join("proc/kallsyms"), kallsyms).expect("a file");
    fs::write(dir.path().join("proc/sys/kernel/osrelease"), "6.1.0\n").expect("a file");
    // A note: sizes of name and content, kind 3 (build id), "GNU", the id.
    let mut notes: Vec<u8> = [4u32, 20, 3].iter().flat_map(|word| word.to_ne_bytes()).collect();
    notes.extend(b"GNU\0");
    notes.extend([7; 20]);
    fs::write(dir.path().join("sys/kernel/notes"), notes).expect("a file");
    dir
}

const KALLSYMS: &str = "ffffffff81000000 T _text\nffffffff81000100 t schedule\nffffffff81000200 T _etext\n\
                        ffffffffc0100010 t nft_do_chain\t[nf_tables]\nffffffffc0100200 t nft_next\t[nf_tables]\n";

fn recorded(text: u64) -> RecordedKernel {
    let mut kernel = RecordedKernel { build_id: Some(vec![7; 20]), ..RecordedKernel::default() };
    kernel.mapped("[kernel.kallsyms]_text", text, 0x1000, text);
    kernel
}

fn named(symbols: &mut Symbols, address: u64) -> (Option<String>, Option<String>) {
    let (name, module) = symbols.kernel(address);
    (name.map(str::to_owned), module.map(str::to_owned))
}

fn some(name: &str, module: Option<&str>) -> (Option<String>, Option<String>) {
    (Some(name.to_owned()), module.map(str::to_owned))
}

#[test]
fn a_recording_of_another_boot_is_named_at_the_recorded_addresses() {
    let dir = root(KALLSYMS);
    let mut symbols = Symbols::below(dir.path());
    let mut kernel = recorded(0xffff_ffff_9d20_0000);
    kernel.mapped("[nf_tables]", 0xffff_ffff_c0e0_0000, 0x1000, 0);
    kernel.mapped("/lib/modules/6.1.0/kernel/fs/ext-4.ko.xz", 0xffff_ffff_c0f0_0000, 0x1000, 0);
    symbols.set_kernel(kernel);
    assert_eq!(named(&mut symbols, 0xffff_ffff_9d20_0110), some("schedule", None));
    assert_eq!(named(&mut symbols, 0xffff_ffff_c0e0_0020), some("nft_do_chain", Some("nf_tables")));
    // A module that is not loaded now has only its name.
    assert_eq!(named(&mut symbols, 0xffff_ffff_c0f0_0020), (None, Some("ext_4".to_owned())));
    // This boot's addresses of the kernel and the module meant something else then.
    assert_eq!(named(&mut symbols, 0xffff_ffff_8100_0110), (None, None));
    assert_eq!(named(&mut symbols, 0xffff_ffff_c010_0020), (None, None));
    assert!(symbols.problems.is_empty(), "{:?}", symbols.problems);
}

#[test]
fn in_the_same_boot_addresses_need_no_shift() {
    let dir = root(KALLSYMS);
    let mut symbols = Symbols::below(dir.path());
    symbols.set_kernel(recorded(0xffff_ffff_8100_0000));
    assert_eq!(named(&mut symbols, 0xffff_ffff_8100_0110), some("schedule", None));
    assert_eq!(named(&mut symbols, 0xffff_ffff_c010_0020), some("nft_do_chain", Some("nf_tables")));
}

#[test]
fn another_kernel_names_nothing_and_says_so() {
    let dir = root(KALLSYMS);
    let mut moved_oddly = recorded(0xffff_ffff_8100_0123);
    moved_oddly.build_id = None;
    let other_release = RecordedKernel { release: Some("5.10.0".to_owned()), ..RecordedKernel::default() };
    let other_build = RecordedKernel { build_id: Some(vec![8; 20]), ..recorded(0xffff_ffff_8100_0000) };
    for (kernel, said) in
        [(other_build, "another kernel"), (other_release, "on Linux 5.10.0"), (moved_oddly, "no KASLR offset")]
    {
        let mut symbols = Symbols::below(dir.path());
        symbols.set_kernel(kernel);
        assert_eq!(named(&mut symbols, 0xffff_ffff_8100_0110), (None, None));
        assert!(symbols.problems.len() == 1 && symbols.problems[0].contains(said), "{:?}", symbols.problems);
    }
}

#[test]
fn the_perf_map_of_a_process_in_a_container_is_found() {
    let dir = root(KALLSYMS);
    fs::create_dir_all(dir.path().join("proc/812/root/tmp")).expect("a directory");
    fs::write(dir.path().join("proc/812/status"), "Name:\tjava\nNSpid:\t812\t7\n").expect("a file");
    fs::write(dir.path().join("proc/812/root/tmp/perf-7.map"), "7f00 10 Interpreter\n").expect("a file");
    let mut symbols = Symbols::below(dir.path());
    assert_eq!(symbols.jit(812, 0x7f08), Some("Interpreter"));
    assert_eq!(symbols.jit(813, 0x7f08), None);
}
