//! CPU profiles: read, shown, and written for other tools.

use crate::support::*;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Two cores for four seconds at 100 Hz, as `perf script` prints them. Core 0 idles. On core 1 two threads take turns; from 2.0 s
/// to 2.5 s `hog` has it for itself, and from 3.0 s on `kubelet` walks cgroups in the kernel.
fn text() -> String {
    let mut text = String::new();
    for tick in 0..400u64 {
        let time = format!("{}.{:06}", 500 + tick / 100, tick % 100 * 10_000);
        text.push_str(&format!(
            "swapper     0 [000] {time}:   10000000 cpu-clock:ppp: \n\tffffffff81000003 pv_native_safe_halt+0x1 \
             ([kernel.kallsyms])\n\tffffffff81000004 do_idle+0x1 ([kernel.kallsyms])\n\n"
        ));
        let (comm, ids, symbol) = match tick {
            200..250 => ("hog", "66/66", "spin"),
            _ if tick % 2 == 0 => ("web server", "70/71", "serve"),
            _ => ("kubelet", "80/81", "sync"),
        };
        text.push_str(&format!("{comm} {ids} [001] {time}:   10000000 cpu-clock:ppp: \n"));
        if tick >= 300 && comm == "kubelet" {
            text.push_str("\tffffffff81000009 mem_cgroup_nr_lru_pages+0x1 ([kernel.kallsyms])\n");
        }
        text.push_str(&format!("\t    7f0000001000 {symbol}+0x3 (/bin/x)\n\t    7f0000001100 main+0x3 (/bin/x)\n\n"));
    }
    text
}

struct Files {
    dir: tempfile::TempDir,
    text: PathBuf,
}

impl Files {
    fn new() -> Files {
        let dir = tempfile::tempdir().expect("a directory");
        let text_file = dir.path().join("perf.txt");
        fs::write(&text_file, text()).expect("a file");
        Files { dir, text: text_file }
    }

    fn text(&self) -> &str {
        self.text.to_str().expect("UTF-8")
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("UTF-8").to_owned()
    }
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).expect("JSON")
}

#[test]
fn the_hog_is_the_only_monopoly() {
    let files = Files::new();
    let document = json(&["monopolies", files.text(), "--json"]);
    assert_eq!(document["schema"], "coroner.monopolies/1");
    let runs = document["monopolies"].as_array().expect("a list");
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!((&runs[0]["core"], &runs[0]["thread"]["comm"]), (&1.into(), &"hog".into()));
    assert_eq!(runs[0]["thread"]["tid"], 66);
    let (start, length) = (runs[0]["start_s"].as_f64(), runs[0]["length_ms"].as_f64());
    assert!(start.is_some_and(|start| (start - 2.0).abs() < 0.011), "{start:?}");
    assert!(length.is_some_and(|length| (length - 500.0).abs() < 21.0), "{length:?}");
    let text = stdout(&["monopolies", files.text()]);
    assert!(text.contains("hog[66]") && text.contains("before: kubelet"), "{text}");
    let none = stdout(&["monopolies", files.text(), "--threshold", "2s"]);
    assert!(none.contains("No thread had a core to itself"), "{none}");
}

#[test]
fn a_filter_invents_no_monopoly() {
    let files = Files::new();
    // kubelet never had the core for long; its samples alone do not show who else ran.
    let none = json(&["monopolies", files.text(), "--comm", "kubelet", "--json"]);
    assert_eq!(none["monopolies"].as_array().map(Vec::len), Some(0));
    let hog = json(&["monopolies", files.text(), "--comm", "hog", "--json"]);
    assert_eq!(hog["monopolies"].as_array().map(Vec::len), Some(1));
    let map = json(&["heatmap", files.text(), "--step", "100ms", "--comm", "kubelet", "--json"]);
    let cell = &map["cores"][1]["cells"][2];
    assert_eq!((&cell["samples"], &cell["asked"]), (&10.into(), &5.into()));
    let text = stdout(&["heatmap", files.text(), "--step", "100ms", "--comm", "kubelet"]);
    assert!(!text.contains(" in total"), "{text}");
    fails(&["monopolies", files.text(), "--comm", "nobody"], &["nobody"]);
}

#[test]
fn missing_fields_are_not_made_up() {
    let files = Files::new();
    let without_task = files.path("no-task.txt");
    let who = |line: &str| line.find(" [00").map_or(line.to_owned(), |at| line[at + 1..].to_owned());
    fs::write(&without_task, text().lines().map(who).collect::<Vec<_>>().join("\n")).expect("a file");
    fails(&["monopolies", &without_task], &["which thread ran", "-F +comm,tid"]);
    fails(&["heatmap", &without_task], &["which thread ran"]);
    let without_period = files.path("no-period.txt");
    fs::write(&without_period, text().replace(":   10000000 cpu-clock", ": cpu-clock")).expect("a file");
    let flame = json(&["flame", &without_period, "--json"]);
    assert_eq!((&flame["unit"], &flame["total"]), (&"count".into(), &800.into()));
    let switches = files.path("switches.txt");
    fs::write(&switches, text().replace("cpu-clock:ppp", "sched:sched_switch")).expect("a file");
    fails(&["heatmap", &switches], &["clock-like", "sched:sched_switch"]);
    fails(&["monopolies", &switches], &["clock-like"]);
}

#[test]
fn the_heatmap_shows_who_had_the_core() {
    let files = Files::new();
    let map = json(&["heatmap", files.text(), "--step", "100ms", "--json"]);
    assert_eq!((&map["schema"], &map["columns"]), (&"coroner.heatmap/1".into(), &40.into()));
    let cell = &map["cores"][1]["cells"][22];
    assert_eq!((&cell["owner"]["comm"], &cell["owner_share"]), (&"hog".into(), &1.0.into()));
    assert_eq!(map["cores"][0]["cells"][22]["busy"], 0.0);
    let text = stdout(&["heatmap", files.text(), "--step", "100ms"]);
    assert!(text.contains("AAAAA") && text.contains("A hog[66] on core 1, about 500 ms in total"), "{text}");
    let offsets = json(&["heatmap", files.text(), "--by", "offset", "--rows", "10", "--comm", "hog", "--json"]);
    assert_eq!(offsets["first_second"], 502);
    assert_eq!(offsets["columns"], serde_json::json!([[10, 10, 10, 10, 10, 0, 0, 0, 0, 0]]));
}

#[test]
fn any_part_has_a_flame_graph() {
    let files = Files::new();
    let total = |args: &[&str]| {
        let all: Vec<&str> = ["flame", files.text(), "--json"].into_iter().chain(args.iter().copied()).collect();
        json(&all)["total"].as_u64().expect("a total") / 1_000_000
    };
    assert_eq!(total(&[]), 8000);
    assert_eq!(total(&["--core", "1"]), 4000);
    assert_eq!(total(&["--since", "2", "--until", "2.5", "--core", "1"]), 500);
    assert_eq!(total(&["--since", "2s", "--until", "2500ms", "--core", "0-1"]), 1000);
    // As perf script prints times.
    assert_eq!(total(&["--since", "502.000000", "--until", "502.500000", "--core", "1"]), 500);
    assert_eq!(total(&["--range", "0..1", "--range", "3..3.5", "--core", "1"]), 1500);
    assert_eq!(total(&["--band", "300ms..400ms"]), 800);
    assert_eq!(total(&["--comm", "hog", "--comm", "web server"]), 500 + 1750);
    assert_eq!((total(&["--pid", "80"]), total(&["--tid", "71"])), (1750, 1750));
    assert_eq!(total(&["--symbol", "nr_lru"]), 500);
    // Idle time is not a cost.
    let text = stdout(&["flame", files.text()]);
    assert!(text.contains("idle for 50.0 %") && !text.contains("pv_native_safe_halt"), "{text}");
    let text = stdout(&["flame", files.text(), "--core", "1"]);
    assert!(text.contains("43.75 %  kubelet → main"), "{text}");
    let inverted = stdout(&["flame", files.text(), "--core", "1", "--invert"]);
    assert!(inverted.contains("12.50 %  mem_cgroup_nr_lru_pages_[k] → sync → main → kubelet"), "{inverted}");
}

#[test]
fn a_difference_names_the_riser() {
    let files = Files::new();
    let now = ["--since", "3", "--until", "4", "--core", "1", "--diff-since", "0", "--diff-until", "1"];
    let all: Vec<&str> = ["flame", files.text(), "--json"].into_iter().chain(now).collect();
    let difference = json(&all);
    assert_eq!(difference["schema"], "coroner.flame-difference/1");
    assert_eq!(difference["risers"][0]["name"], "mem_cgroup_nr_lru_pages");
    assert_eq!((&difference["risers"][0]["baseline"], &difference["risers"][0]["now"]), (&0.0.into(), &0.5.into()));
    // Another file as the baseline, and one side without any sample.
    let other = stdout(&["flame", files.text(), "--comm", "hog", "--diff", files.text(), "--diff-until", "1"]);
    assert!(other.contains("no samples in the baseline"), "{other}");
    let svg = files.path("d.svg");
    stdout(&["flame", files.text(), "--diff", files.text(), "--diff-until", "1", "-o", &svg]);
    assert!(fs::read_to_string(&svg).expect("a file").contains("<svg"));
}

#[test]
fn exported_files_read_back_the_same() {
    let files = Files::new();
    let folded = |args: &[&str]| {
        let mut lines: Vec<String> = stdout(args).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let of_text = folded(&["export", files.text(), "--to", "folded"]);
    assert!(of_text.contains(&"kubelet;main;sync;mem_cgroup_nr_lru_pages_[k] 500000000".to_owned()), "{of_text:?}");
    // The general path gives the same as the fast path for whole files, and so do two threads.
    assert_eq!(folded(&["flame", files.text(), "--to", "folded", "--since", "0"]), of_text);
    assert_eq!(folded(&["export", files.text(), "--to", "folded", "--threads", "2"]), of_text);
    let again = files.path("x.folded");
    stdout(&["export", files.text(), "-o", &again]);
    assert_eq!(folded(&["export", &again, "--to", "folded"]), of_text);
    for name in ["x.svg", "x.pb.gz", "x.speedscope.json"] {
        let path = files.path(name);
        let summary = json(&["export", files.text(), "-o", &path, "--json"]);
        assert_eq!((&summary["schema"], &summary["source"]["samples"]), (&"coroner.export/1".into(), &800.into()));
        assert!(fs::metadata(&path).expect("a file").len() > 100);
    }
}

#[test]
fn a_recording_has_the_same_profile() {
    let files = Files::new();
    let recording = files.path("x.coroner");
    let summary = json(&["import", files.text(), "-o", &recording, "--json"]);
    assert_eq!((&summary["schema"], &summary["source"]["selected"]), (&"coroner.import/1".into(), &800.into()));
    for (command, more) in [
        ("export", &["--to", "folded"][..]),
        ("flame", &["--to", "folded", "--since", "2", "--until", "2.5", "--core", "1"]),
        ("flame", &["--to", "folded", "--range", "0..1", "--range", "3.2..3.3"]),
        ("flame", &["--to", "folded", "--since", "502.1"]),
    ] {
        let of = |file: &str| stdout(&[&[command, file], more].concat());
        assert_eq!(of(&recording), of(files.text()), "{more:?}");
    }
    let runs = |file: &str| json(&["monopolies", file, "--json"])["monopolies"].clone();
    assert_eq!(runs(&recording), runs(files.text()));
    // Times count from the first sample of the file even if only a part of it is read.
    let part = ["--since", "1.5", "--until", "3", "--json"];
    let starts = |file: &str| json(&[&["monopolies", file], &part[..]].concat())["monopolies"][0]["start_s"].clone();
    assert_eq!(starts(&recording), starts(files.text()));
    fails(&["flame", &recording, "--since", "100"], &["none of its samples match"]);
    // A part of it, cut out, is a recording again; and none is overwritten.
    let part = files.path("part.coroner");
    stdout(&["export", &recording, "--comm", "hog", "-o", &part]);
    assert_eq!(json(&["flame", &part, "--json"])["total"], 500_000_000);
    fails(&["import", files.text(), "-o", &part], &["already exists"]);
    // It is not a recording of a node.
    fails(&["diagnose", "--from", &recording], &["coroner flame"]);
    let garbage = files.path("garbage");
    fs::write(&garbage, "nothing\n").expect("a file");
    let none = files.path("none.coroner");
    fails(&["import", &garbage, "-o", &none], &["neither perf.data"]);
    assert!(!Path::new(&none).exists(), "a failed import leaves nothing behind");
}

#[test]
fn standard_input_and_compressed_files_are_read() {
    let files = Files::new();
    let packed = files.path("perf.txt.gz");
    let gzip =
        Command::new("gzip").arg("-c").arg(files.text()).stdout(fs::File::create(&packed).expect("a file")).status();
    assert!(gzip.expect("gzip").success());
    assert_eq!(stdout(&["export", &packed, "--to", "folded"]), stdout(&["export", files.text(), "--to", "folded"]));
    // A named pipe is also read only once.
    let all = stdout(&["export", files.text(), "--to", "folded"]);
    for command in ["export --to folded", "flame --to folded --since 0", "heatmap --by offset --json"] {
        let script = format!("{CORONER} {command} <(cat {})", files.text());
        let out = Command::new("bash").args(["-c", &script]).output().expect("bash");
        assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
        if !command.starts_with("heatmap") {
            assert_eq!(String::from_utf8_lossy(&out.stdout), all, "{command}");
        }
    }
    // Windows line ends.
    let windows = files.path("windows.txt");
    fs::write(&windows, text().replace('\n', "\r\n")).expect("a file");
    let of_windows = coroner(&["export", &windows, "--to", "folded"]);
    assert_eq!(String::from_utf8_lossy(&of_windows.stdout), all);
    assert!(of_windows.stderr.is_empty(), "{}", String::from_utf8_lossy(&of_windows.stderr));
    let mut child = Command::new(env!("CARGO_BIN_EXE_coroner"))
        .args(["monopolies", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("coroner");
    child.stdin.take().expect("a pipe").write_all(text().as_bytes()).expect("written");
    let out = child.wait_with_output().expect("an end");
    let document: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(document["monopolies"][0]["thread"]["comm"], "hog");
}

#[test]
fn unusable_lines_are_counted_and_shown() {
    let files = Files::new();
    let odd = files.path("odd.txt");
    let mut lines: Vec<String> = text().lines().map(str::to_owned).collect();
    lines.insert(5, "what is this line?".to_owned());
    lines.truncate(400);
    fs::write(&odd, lines.join("\n")).expect("a file");
    let document = json(&["flame", &odd, "--json"]);
    let unused = document["source"]["unused"].as_array().expect("a list");
    assert_eq!((&unused[0]["count"], &unused[0]["first"]), (&1.into(), &serde_json::json!([6])), "{unused:?}");
    let text = stdout(&["flame", &odd]);
    assert!(text.contains("in line 6: what is this line?"), "{text}");
}

#[test]
fn errors_say_what_failed_and_what_to_do() {
    let files = Files::new();
    fails(&["flame", "/nowhere/x.data"], &["/nowhere/x.data", "No such file"]);
    let empty = files.path("empty");
    fs::write(&empty, "").expect("a file");
    fails(&["flame", &empty], &[&empty, "empty"]);
    let garbage = files.path("garbage");
    fs::write(&garbage, [0u8, 159, 146, 150].repeat(100)).expect("a file");
    fails(&["monopolies", &garbage], &[&garbage, "neither perf.data"]);
    fails(&["flame", files.text(), "-o", "x.png"], &["x.png", ".svg"]);
    fails(&["flame", files.text(), "--core", "7"], &["none of its 800 samples", "core 7", "cores 0-1"]);
    fails(&["flame", files.text(), "--event", "cycles"], &["cycles", "cpu-clock:ppp"]);
    fails(&["flame", files.text(), "--since", "3", "--until", "2"], &["ends before it begins"]);
    fails(&["flame", files.text(), "--since", "yesterday"], &["--since", "12.5"]);
    fails(&["flame", files.text(), "--since", "2026-11-16T05:51:42Z"], &["wall-clock"]);
    let folded = files.path("x.folded");
    stdout(&["export", files.text(), "-o", &folded]);
    fails(&["monopolies", &folded], &["no times"]);
    fails(&["heatmap", &folded, "--by", "offset"], &["no times"]);
    let before = fs::read(&files.text).expect("a file");
    fails(&["export", files.text(), "-o", files.text(), "--to", "folded"], &["the input file"]);
    fails(&["flame", files.text(), "-o", files.text(), "--to", "svg"], &["the input file"]);
    assert_eq!(fs::read(&files.text).expect("a file"), before, "the input is unchanged");
    fails(&["import", files.text(), "-o", "-"], &["X.coroner"]);
    // Names can neither drive the terminal nor crash us.
    let escape = files.path("escape.txt");
    fs::write(&escape, text().replace("cpu-clock:ppp", "c\u{1b}[31mk")).expect("a file");
    let out = coroner(&["flame", &escape, "--core", "7"]);
    assert!(!out.stderr.contains(&0x1b), "{}", String::from_utf8_lossy(&out.stderr));
    let odd_name = PathBuf::from(std::ffi::OsString::from_vec(
        files.path("odd\u{0}").into_bytes()[..].iter().map(|b| if *b == 0 { 0xff } else { *b }).collect(),
    ));
    fs::copy(files.text(), &odd_name).expect("a copy");
    let out =
        Command::new(CORONER).arg("export").arg(&odd_name).args(["-o", &files.path("y.folded"), "--json"]).output();
    assert!(out.expect("coroner runs").status.success());
    fails(&["flame", files.text(), "--symbols", "/nowhere"], &["/nowhere", "no such directory"]);
    // A failure does not destroy an existing file.
    let kept = files.path("kept.svg");
    fs::write(&kept, "old").expect("a file");
    fails(&["flame", &garbage, "-o", &kept], &["garbage"]);
    assert_eq!(fs::read_to_string(&kept).expect("a file"), "old");
    fails(&["flame", files.text(), "-o", "/nowhere/x.svg"], &["/nowhere/x.svg", "cannot write it"]);
}
