//! Against systemctl itself.

use super::*;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name → (state, preset), according to systemctl.
fn told_by_systemctl(root: &Path) -> Option<BTreeMap<String, (String, String)>> {
    let output = Command::new("systemctl")
        .arg(format!("--root={}", root.display()))
        .args(["list-unit-files", "--no-pager", "--no-legend", "--full"])
        .output()
        .ok()?;
    // Without any unit it fails without output.
    assert!(output.status.success() || output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    Some(rows.map(|r| (r[0].to_owned(), (r[1].to_owned(), r.get(2).unwrap_or(&"-").to_string()))).collect())
}

fn told_by_us(root: &Path) -> BTreeMap<String, (String, String)> {
    let row = |u: UnitFile| {
        let preset = u.preset.map_or("-", |p| p.as_str()).to_owned();
        (u.name, (u.enablement.as_str().to_owned(), preset))
    };
    read(&Root::at(root)).unwrap().units.into_iter().map(row).collect()
}

/// systemctl does not list instances without a file; we do.
fn assert_same(
    ours: &BTreeMap<String, (String, String)>,
    truth: &BTreeMap<String, (String, String)>,
) -> Result<(), String> {
    let is_instance = |name: &str| UnitName::of(name).is_some_and(|u| u.kind() == NameKind::Instance);
    // Known difference: of an instance in /run that is a link to an empty file elsewhere, systemd 252 says `masked`, we `masked-runtime`.
    let known = |name: &str, state: &(String, String)| {
        let ours = ours.get(name).map(|(enablement, _)| enablement.as_str());
        is_instance(name) && state.0 == "masked" && ours == Some("masked-runtime")
    };
    for (name, state) in truth {
        if ours.get(name) != Some(state) && !known(name, state) {
            return Err(format!("{name}: {:?}, but systemctl says {state:?}", ours.get(name)));
        }
    }
    match ours.keys().find(|name| !truth.contains_key(*name) && !is_instance(name)) {
        Some(name) => Err(format!("{name}: systemctl does not list it")),
        None => Ok(()),
    }
}

fn lab_root() -> Option<PathBuf> {
    coroner_lab::scenarios::systemd_root::location().ok().filter(|root| root.join("lib/systemd/systemd").exists())
}

#[test]
fn agrees_with_systemctl_on_a_debian_image() {
    let Some(root) = lab_root() else { return coroner_lab::skip("no root file system; make it with coroner-lab root") };
    let Some(truth) = told_by_systemctl(&root) else { return coroner_lab::skip("no systemctl here") };
    let ours = told_by_us(&root);
    assert!(truth.len() > 100, "{}", truth.len());
    assert_same(&ours, &truth).unwrap();
}

#[test]
fn agrees_with_systemctl_on_this_machine() {
    let Some(truth) = told_by_systemctl(Path::new("/")) else { return coroner_lab::skip("no systemctl here") };
    assert_same(&told_by_us(Path::new("/")), &truth).unwrap();
}

#[derive(Debug, Clone)]
struct Planted {
    directory: &'static str,
    name: String,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    File(String),
    Link(String),
    Directory,
}

const DIRECTORIES: [&str; 11] = [
    "etc/systemd/system",
    "run/systemd/system",
    "run/systemd/generator",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "opt/elsewhere",
    "etc/systemd/system/x.target.wants",
    "usr/lib/systemd/system/x.target.wants",
    "run/systemd/system/x.target.requires",
    "etc/systemd/system/a.service.d",
    "etc/systemd/system/t@.service.d",
];

fn a_name() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "a.service",
        "b.service",
        "c.service",
        "a.timer",
        "t@.service",
        "t@i.service",
        "u@.service",
        "u@i.service",
        "x.target",
        "s.slice",
        "m.mount",
        "not a unit",
        "z.conf",
    ])
    .prop_map(str::to_owned)
}

fn planted() -> impl Strategy<Value = Planted> {
    let install = prop::sample::select(vec![
        "",
        "[Unit]\nA=b\n",
        "[Install]\nWantedBy=x.target\n",
        "[Install]\nAlias=b.service c.service\n",
        "[Install]\nAlso=b.service\n",
        "[Install]\nWantedBy=x.target\nWantedBy=\n",
        "[Install]\nDefaultInstance=i\n",
        "[Install]\nDefaultInstance=i\nWantedBy=x.target\n",
        "[Install]\nRequiredBy=x.target\n",
        "[Install\n",
        "junk\n",
    ]);
    let target = (
        prop::sample::select(vec![
            "/etc/systemd/system/",
            "/usr/lib/systemd/system/",
            "/lib/systemd/system/",
            "../",
            "",
            "/opt/elsewhere/",
            "../../../opt/elsewhere/",
            "/usr/lib/systemd/system/x.target.wants/",
            "/none/",
        ]),
        a_name(),
    )
        .prop_map(|(dir, name)| format!("{dir}{name}"));
    let what = prop_oneof![
        4 => install.prop_map(|text| What::File(text.to_owned())),
        4 => target.prop_map(What::Link),
        1 => Just(What::Link("/dev/null".to_owned())),
        1 => Just(What::Directory),
    ];
    (prop::sample::select(DIRECTORIES.to_vec()), a_name(), what).prop_map(|(directory, name, what)| Planted {
        directory,
        name,
        what,
    })
}

fn plant(root: &Path, planted: &[Planted]) {
    fs::create_dir_all(root.join("usr/lib")).unwrap();
    fs::create_dir_all(root.join("dev")).unwrap();
    symlink("usr/lib", root.join("lib")).unwrap();
    for Planted { directory, name, what } in planted {
        let directory = root.join(directory);
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join(name);
        // If two have the same name, the first one stays.
        let _ = match what {
            What::File(_) if path.symlink_metadata().is_ok() => Ok(()),
            What::File(text) => fs::write(path, text),
            // A dangling drop-in makes systemctl call the unit bad, though the manager runs it: not tested.
            What::Link(_) | What::Directory if directory.extension().is_some_and(|e| e == "d") => Ok(()),
            What::Link(target) => symlink(target, path),
            What::Directory => fs::create_dir(path),
        };
    }
}

#[test]
fn agrees_with_systemctl_on_generated_images() {
    if told_by_systemctl(Path::new("/")).is_none() {
        return coroner_lab::skip("no systemctl here");
    }
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&prop::collection::vec(planted(), 1..14), |planted| {
            let dir = tempfile::tempdir().unwrap();
            plant(dir.path(), &planted);
            let truth = told_by_systemctl(dir.path()).unwrap();
            assert_same(&told_by_us(dir.path()), &truth).map_err(TestCaseError::fail)
        })
        .unwrap();
}
