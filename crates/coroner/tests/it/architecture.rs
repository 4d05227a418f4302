//! Dependencies point one way: between crates as in docs/architecture.md, and between the modules of the binary.

use crate::support::project;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Each may use only those before it.
const MODULES: [&str; 5] = ["exit", "args", "output", "commands", "main"];

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The layer of each crate, from the table in docs/architecture.md.
fn layers() -> BTreeMap<String, u32> {
    let page = read(&project().join("docs/architecture.md"));
    let (_, below) = page.split_once("<!-- crates -->").expect("docs/architecture.md has a table of crates");
    let rows = below.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let row = |row: &str| {
        let mut cells = row.split('|').skip(1).map(str::trim);
        let layer = cells.next().and_then(|layer| layer.parse().ok());
        (cells.next().unwrap_or_default().to_owned(), layer.unwrap_or_else(|| panic!("no layer: {row}")))
    };
    rows.skip(2).map(row).collect()
}

/// Our crates among a manifest's dependencies; tests and build scripts may use any.
fn dependencies(manifest: &str) -> Vec<&str> {
    let lines = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let own = lines.take_while(|line| !line.starts_with('['));
    own.filter_map(|line| line.strip_prefix("coroner-")?.split([' ', '=', '.']).next()).collect()
}

#[test]
fn crates_use_only_crates_of_lower_layers() {
    let layers = layers();
    let layer_of = |name: &str| {
        let layer = layers.get(name);
        *layer.unwrap_or_else(|| {
            panic!("crates/{name} has no row in docs/architecture.md: say what it is for, and its layer")
        })
    };
    let mut edges = 0;
    for entry in fs::read_dir(project().join("crates")).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let manifest = entry.path().join("Cargo.toml");
        // Another branch may have left a directory behind.
        if !manifest.exists() {
            continue;
        }
        for used in dependencies(&read(&manifest)) {
            edges += 1;
            assert!(
                layer_of(used) < layer_of(&name),
                "crates/{name} (layer {}) may not use crates/{used} (layer {}): docs/architecture.md. Move what both need to a \
                 lower layer",
                layer_of(&name),
                layer_of(used)
            );
        }
        layer_of(&name);
    }
    for name in layers.keys() {
        let manifest = project().join("crates").join(name).join("Cargo.toml");
        assert!(manifest.exists(), "docs/architecture.md has a row for crates/{name}, which does not exist");
    }
    assert!(edges > 20, "only {edges} dependencies found: has the format of the manifests changed?");
}

/// All `crate::NAME` in a source, and all `super::…::NAME` that lead to the crate root from this depth.
fn modules_used(text: &str, depth: usize) -> Vec<&str> {
    let name = |rest: &'_ str| rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    let up = "super::".repeat(depth);
    let mut used = Vec::new();
    for (at, path) in text.match_indices("crate::").chain(text.match_indices(&up)) {
        let is_whole = !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':');
        let rest = &text[at + path.len()..];
        // Braces may contain several.
        let names = match rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some((names, _)) => names.split(',').map(str::trim).collect(),
            None => vec![rest],
        };
        used.extend(names.into_iter().map(|rest| &rest[..name(rest)]).filter(|_| is_whole));
    }
    used
}

fn check_below(directory: &Path, inside: &[String], uses: &mut usize) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let (path, file) = (entry.path(), entry.file_name().into_string().unwrap());
        if path.is_dir() {
            check_below(&path, &[inside, &[file]].concat(), uses);
            continue;
        }
        let Some(stem) = file.strip_suffix(".rs") else { continue };
        let own = inside.first().map_or(stem, String::as_str);
        let depth = inside.len() + usize::from(stem != "mod");
        let rank = |module: &str| MODULES.iter().position(|known| *known == module);
        let ours = rank(own).unwrap_or_else(|| panic!("{}: the module {own} is not in MODULES", path.display()));
        for used in modules_used(&read(&path), depth) {
            let Some(theirs) = rank(used) else { continue };
            *uses += 1;
            assert!(
                theirs <= ours,
                "{}: {own} may not use {used}: {} (docs/architecture.md)",
                path.display(),
                MODULES.join(" <- ")
            );
        }
    }
}

#[test]
fn modules_of_the_binary_depend_one_way() {
    let mut uses = 0;
    check_below(&project().join("crates/coroner/src"), &[], &mut uses);
    assert!(uses > 50, "only {uses} uses found: has their form changed?");
}

#[test]
fn uses_are_found_in_every_form() {
    let text =
        "use crate::args::Color;\nuse crate::{output, commands::fix};\nlet a = super::super::exit::Exit;\nmycrate::x";
    assert_eq!(modules_used(text, 2), ["args", "output", "commands", "exit"]);
    assert_eq!(
        dependencies(
            "[dependencies]\ncoroner-http.workspace = true\nlog = \"1\"\n[dev-dependencies]\ncoroner-lab = {}"
        ),
        ["http"]
    );
}
