use std::path::Path;
use std::process::Command;

use super::*;

fn wanted<'a>(path: &'a str, build_id: Option<&'a [u8]>) -> FileId<'a> {
    FileId { path, build_id, inode: None, pid: 0 }
}

fn open(path: &str, build_id: Option<&[u8]>) -> Result<NamedFile, Vec<String>> {
    let mut problems = Vec::new();
    NamedFile::open(Path::new("/"), &wanted(path, build_id), &mut |problem| problems.push(problem)).ok_or(problems)
}

/// The offset of an address of this process in its program's file.
fn offset_of(address: u64) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let offset = maps.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (range, _, offset) = (words.next()?, words.next()?, words.next()?);
        let (start, end) = range.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (hex(start)?, hex(end)?);
        (start..end).contains(&address).then(|| hex(offset).map(|offset| offset + address - start))?
    });
    offset.expect("the code is mapped")
}

#[test]
fn this_program_names_its_own_functions_and_a_wrong_build_id_names_none() {
    let me = std::env::current_exe().expect("a path");
    let path = me.to_str().expect("text");
    let offset =
        offset_of(this_program_names_its_own_functions_and_a_wrong_build_id_names_none as fn() as usize as u64);
    let (offsets, name) = open(path, None).expect("a file").find(offset).expect("a name");
    assert!(name.ends_with("tests::this_program_names_its_own_functions_and_a_wrong_build_id_names_none"), "{name}");
    assert!(offsets.contains(&offset), "{offsets:?}");
    let said = |path, id| open(path, id).err().unwrap_or_default().join(" ");
    assert!(said(path, Some(&[7; 20])).contains("not the file that ran"));
    assert!(said("/no/such/file", None).contains("no such file"));
    assert!(said("/proc/self/maps", None).contains("not a 64-bit program"));
    // Another inode: reported, but named all the same.
    let mut problems = Vec::new();
    let replaced = FileId { inode: Some(1), ..wanted(path, None) };
    assert!(NamedFile::open(Path::new("/"), &replaced, &mut |problem| problems.push(problem)).is_some());
    assert!(problems[0].contains("may not be the file that ran"), "{problems:?}");
}

/// A small program through cc, strip and xz; steps whose tool is missing are skipped.
#[test]
fn stubs_aliases_and_packed_symbols() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let run = |program: &str, arguments: &[&str]| {
        Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
    };
    let code = "#include <stdio.h>\nint __shown(int n) { return n * 7; }\nint shown(int n) __attribute__((alias(\"__shown\")));\n\
                static int hidden(int n) { return puts(n ? \"a\" : \"b\"); }\nint main(int n, char **v) { return hidden(n); }\n";
    std::fs::write(at("a.c"), code).expect("a file");
    if !run("cc", &["-O0", "-o", &at("a"), &at("a.c")]) {
        eprintln!("not run: no C compiler");
        return;
    }
    let names = |path: &str| -> Vec<String> {
        let mut file = open(path, None).expect("a file");
        let length = std::fs::metadata(path).expect("a file").len();
        let mut names: Vec<String> =
            (0..length).step_by(4).filter_map(|at| file.find(at).map(|(_, name)| name)).collect();
        names.dedup();
        names
    };
    let all = names(&at("a"));
    for name in ["shown", "hidden", "main", "puts@plt", "_start"] {
        assert!(all.iter().any(|other| other == name), "{name} is not in {all:?}");
    }
    assert!(!all.iter().any(|name| name == "__shown"), "{all:?}");
    let packed = run("objcopy", &["--only-keep-debug", &at("a"), &at("a.debug")])
        && run("strip", &["-s", &at("a")])
        && run("xz", &[&at("a.debug")]);
    if !packed {
        eprintln!("not run: objcopy, strip or xz is missing");
        return;
    }
    let stripped = names(&at("a"));
    assert!(stripped.iter().any(|name| name == "puts@plt") && !stripped.iter().any(|name| name == "hidden"));
    let section = format!(".gnu_debugdata={}", at("a.debug.xz"));
    assert!(run("objcopy", &["--add-section", &section, &at("a")]));
    assert!(names(&at("a")).iter().any(|name| name == "hidden"));
}

/// All kinds of stubs that this machine's linkers make get objdump's names, whatever was looked up before.
#[test]
fn stubs_of_each_kind_have_the_names_that_objdump_gives_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let code = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nvoid (*volatile give_back)(void *) = free;\n\
                int main(int n, char **v) { char *p = malloc(n + strlen(v[0])); memset(p, n, n); give_back(p); free(p);\n\
                return puts(v[0]) + atoi(v[0]); }\n";
    std::fs::write(at("a.c"), code).expect("a file");
    let kinds: [(&str, &[&str]); 8] = [
        ("lazy", &["-Wl,-z,lazy"]),
        ("now", &["-Wl,-z,now"]),
        ("no-pie", &["-no-pie", "-Wl,-z,lazy"]),
        ("ibt", &["-fcf-protection=full", "-Wl,-z,ibtplt,-z,lazy"]),
        ("ibt-now", &["-fcf-protection=full", "-Wl,-z,ibtplt,-z,now"]),
        ("gold", &["-fuse-ld=gold", "-Wl,-z,lazy"]),
        ("static", &["-static"]),
        ("static-pie", &["-static-pie"]),
    ];
    for (kind, options) in kinds {
        let path = at(kind);
        let mut compiler = Command::new("cc");
        if !compiler
            .args(options)
            .args(["-O1", "-fno-builtin", "-o", &path, &at("a.c")])
            .output()
            .is_ok_and(|output| output.status.success())
        {
            eprintln!("not run: no C compiler or linker for {kind}");
            continue;
        }
        let image = Image::open(Path::new(&path)).expect("a file");
        let sections = image.sections().expect("sections");
        let mut table = Table::read(image, None, MAX_SYMBOLS).expect("a table");
        let stubs: Vec<_> = sections.iter().filter(|section| section.name.starts_with(b".plt")).collect();
        let in_order = stubs.iter().flat_map(|section| (section.address..section.address + section.size).step_by(8));
        let names: Vec<_> = in_order.map(|address| table.find(address).expect("a stub").1).collect();
        // The answer holds for every address in the range: readers cache it.
        let last = sections.iter().map(|section| section.address + section.size).max().expect("sections");
        let mut address = 0;
        while address < last {
            let Some((range, name)) = table.find(address) else {
                address += 1;
                continue;
            };
            assert!(range.contains(&address), "{kind}: {address:x} {name} {range:x?}");
            for address in [range.start, range.start.midpoint(range.end), range.end - 1] {
                assert_eq!(table.find(address).map(|(_, name)| name).as_ref(), Some(&name), "{kind}: {address:x}");
                let is_stub = stubs.iter().any(|section| section.covers(address));
                assert_eq!(is_stub, name.ends_with("@plt") || name == ".plt", "{kind}: {address:x} {name}");
            }
            address = range.end;
        }
        let said = Command::new("objdump").args(["-d", "-C", &path]).output();
        let Ok(said) = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()) else {
            eprintln!("not run: no objdump");
            return;
        };
        let mut compared = 0;
        for line in said.lines().filter_map(|line| line.strip_suffix("@plt>:")) {
            let (address, name) = line.split_once(" <").expect("an address and a name");
            let address = u64::from_str_radix(address, 16).expect("an address");
            let ours = table.find(address).map(|(_, name)| name);
            // Of IFUNCs objdump knows only the resolver's address.
            if name.starts_with("*ABS*") {
                assert!(ours.is_some_and(|ours| ours.ends_with("@plt")), "{kind}: {address:x} {name}");
            } else {
                assert_eq!(ours, Some(format!("{name}@plt")), "{kind}: {address:x}");
            }
            compared += 1;
        }
        // It names no stubs of static programs.
        assert!(compared >= 5 || kind.starts_with("static"), "{kind}: {compared} stubs\n{said}");
        for function in ["memset", "strlen"] {
            let named = |name: &String| name.contains(function) && name.ends_with("@plt");
            assert!(names.iter().any(named), "{kind}: {function} is not in {names:?}");
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(300))]

    /// A damaged ELF file: no panic.
    #[test]
    fn damaged(flips in proptest::collection::vec((0usize..8192, 0u8..8), 1..20), offset in 0u64..200_000) {
        let Ok(mut bytes) = std::fs::read("/bin/sh") else { return Ok(()) };
        // The headers of the sections are at the end.
        let length = bytes.len();
        for (at, bit) in flips {
            let at = if at % 2 == 0 { at % 1024 } else { length - 1 - at % length.min(4096) };
            bytes[at] ^= 1 << bit;
        }
        if let Some(mut file) = NamedFile::read(Image::Memory(bytes), None, MAX_SYMBOLS) {
            file.find(offset);
        }
    }
}
