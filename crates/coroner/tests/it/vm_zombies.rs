//! The lab's `zombies-pinned` in a VM: every method of `coroner zombies` gives the same numbers, to the byte.

use crate::vm::{Results, Section};
use serde_json::Value;
use std::collections::BTreeSet;

pub const HEADER: &str = "\n| kernel | NUMA nodes | lists | method | dead, of the kernel's | named | bytes in files, of | bytes in tmpfs, of | files, of |\n\
                          |---|---|---|---|---|---|---|---|---|";

pub fn assert_named(machine: &Results) {
    let mut looks = 0;
    for section in machine.sections("pinned") {
        let look = Look::of(&section);
        let nodes = section.part("nodes").as_str().unwrap();
        if nodes != "0" {
            let pages = look.truth["ext4_pages_on_nodes"].as_object().unwrap();
            assert!(pages.len() > 1, "{}: pages of one node only: {pages:?}", look.name);
        }
        for way in ["test-run", "page-faults"] {
            look.assert_walk(way, &section);
        }
        look.assert_without_bpf(&section);
        looks += 1;
    }
    let has_generations = |s: &Section| !s.part("generations").is_null();
    let expected = if machine.sections("pinned").any(|s| has_generations(&s)) { 2 } else { 1 };
    assert_eq!(looks, expected, "{}", machine.name);
}

/// One run of the scenario.
struct Look<'r> {
    name: &'r str,
    lists: &'static str,
    nodes: &'r str,
    truth: &'r Value,
}

impl<'r> Look<'r> {
    fn of(section: &Section<'r>) -> Look<'r> {
        let part = |what: &str| section.rest.iter().find(|(w, _)| w == what).map(|(_, v)| v).unwrap();
        let lists = match part("generations").as_str() {
            Some("0x0000") | None => "classic",
            Some(_) => "multi-generational",
        };
        let nodes = part("nodes").as_str().unwrap();
        Look { name: section.name, lists, nodes, truth: &section.first["truth"] }
    }

    fn number(&self, what: &str) -> u64 {
        self.truth.pointer(what).and_then(Value::as_u64).unwrap_or_else(|| panic!("{}: no {what}", self.name))
    }

    /// With BPF everything is known. Only Ubuntu's 5.4 cannot run one of the two methods, and must say so.
    fn assert_walk(&self, way: &str, section: &Section) {
        let said = section.part(&format!("zombies --method {way}"));
        let context = format!("{}, {}, {way}", self.name, self.lists);
        assert_eq!(said["schema"], "coroner.zombies/1", "{context}");
        if self.name.starts_with("5.4.") && way == "test-run" {
            assert!(!said["method"].as_str().unwrap().starts_with("bpf-"), "{context}: {said:#}");
            assert_says_why(said, &context);
            let kernels = assert_counts(said, way, section, &context);
            return self.row(said, &kernels, None);
        }
        assert_eq!(said["method"], format!("bpf-{way}"), "{context}: {said:#}");
        let kernels = assert_counts(said, way, section, &context);

        let group = self.group(said, &context);
        assert_eq!(group["dead"], self.truth["count"], "{context}: {group:#}");
        assert_eq!(group["bytes"]["file"], self.truth["bytes"]["file"], "{context}: {group:#}");
        assert_eq!(group["bytes"]["shmem"], self.truth["bytes"]["shmem"], "{context}: {group:#}");
        assert_eq!(group["bytes"]["anon"].as_u64().unwrap_or(0), 0, "{context}: {group:#}");
        let (oldest, newest) = (group["oldest"].as_str().unwrap(), group["newest"].as_str().unwrap());
        assert!(oldest <= newest, "{context}: {oldest} {newest}");

        // Exactly these files, largest first, each with what it keeps.
        let of = |files: &Value, dead: &str| -> Vec<(String, String, u64, u64)> {
            let files = files.as_array().unwrap().iter();
            let text = |f: &Value, what: &str| f[what].as_str().unwrap_or("?").to_owned();
            let number =
                |f: &Value, what: &str| f[what].as_u64().unwrap_or_else(|| panic!("{context}: no {what} in {f}"));
            files.map(|f| (text(f, "path"), text(f, "filesystem"), number(f, "bytes"), number(f, dead))).collect()
        };
        assert_eq!(of(&group["pinned_by"], "dead"), of(&self.truth["files"], "zombies"), "{context}");

        // Each by name, and the live one is not among them.
        let parent = format!("{}/", self.truth["parent"].as_str().unwrap());
        let listed = said["zombies"].as_array().unwrap_or_else(|| panic!("{context}: no list")).iter();
        let names: Vec<&str> = listed.filter_map(|z| z["path"].as_str()?.strip_prefix(&parent)).collect();
        let distinct: BTreeSet<&str> = names.iter().copied().collect();
        let expected = self.names();
        assert_eq!(distinct, expected.iter().map(String::as_str).collect(), "{context}");
        assert_eq!(names.len(), expected.len(), "{context}: one is listed twice");
        self.row(said, &kernels, Some((group, names.len())));
    }

    /// Without BPF the number is always known; on v2 also where they are, and what they hold if the kernel's sums are exact.
    fn assert_without_bpf(&self, section: &Section) {
        let said = section.part("zombies --no-bpf");
        let context = format!("{}, {}, --no-bpf", self.name, self.lists);
        assert_eq!(said["schema"], "coroner.zombies/1", "{context}");
        assert!(!said["method"].as_str().unwrap().starts_with("bpf-"), "{context}: {said:#}");
        assert_says_why(said, &context);
        let kernels = assert_counts(said, "--no-bpf", section, &context);
        assert!(said["zombies"].as_array().is_none_or(Vec::is_empty), "{context}: names without BPF: {said:#}");

        let parent = &self.truth["parent"];
        let group = said["groups"].as_array().unwrap().iter().find(|g| g["parent"] == *parent);
        let adds_up = !["5.4.", "5.10."].iter().any(|old| self.name.starts_with(old));
        if let Some(group) = group {
            assert!(group["dead"].is_null() || group["dead"] == self.truth["count"], "{context}: {group:#}");
            for kind in ["file", "shmem"] {
                let (said, truth) = (group["bytes"][kind].as_u64(), self.number(&format!("/bytes/{kind}")));
                assert!(said.is_none_or(|s| s <= truth), "{context}: {kind}: more than there is: {group:#}");
                assert!(!adds_up || said == Some(truth), "{context}: {kind}: {group:#}");
            }
        }
        assert!(group.is_some() || !adds_up, "{context}: {parent} is not named: {said:#}");
        if self.number("/cgroup_version") == 2 {
            assert_eq!(group.map(|g| &g["dead"]), Some(&self.truth["count"]), "{context}: {said:#}");
        }
        self.row(said, &kernels, group.map(|g| (g, 0)));
    }

    fn group<'d>(&self, said: &'d Value, context: &str) -> &'d Value {
        let groups = said["groups"].as_array().unwrap_or_else(|| panic!("{context}: no groups"));
        let ours: Vec<&Value> = groups.iter().filter(|g| g["parent"] == self.truth["parent"]).collect();
        let [group] = ours[..] else { panic!("{context}: {} groups below the parent: {groups:#?}", ours.len()) };
        assert_eq!(group["pattern"], self.truth["pattern"], "{context}");
        group
    }

    fn names(&self) -> Vec<String> {
        let (name, first) = self.truth["first"].as_str().unwrap().rsplit_once('-').unwrap();
        let first: u64 = first.parse().unwrap();
        let names: Vec<String> = (first..first + self.number("/count")).map(|n| format!("{name}-{n}")).collect();
        assert_eq!(names.last().map(String::as_str), self.truth["last"].as_str());
        names
    }

    fn row(&self, said: &Value, kernels: &Value, group: Option<(&Value, usize)>) {
        let (bytes, files) = (&self.truth["bytes"], self.truth["files"].as_array().unwrap().len());
        let of = |part: &Value, whole: &Value| match part.as_u64() {
            Some(part) => format!("{part} of {whole}"),
            None => "unknown".to_owned(),
        };
        let (group, named) = group.unwrap_or((&Value::Null, 0));
        let found = group["pinned_by"].as_array().map_or(0, Vec::len);
        println!(
            "| {} | {} | {} | {} | {} of {kernels} | {named} of {} | {} | {} | {found} of {files} |",
            self.name,
            self.nodes,
            self.lists,
            said["method"].as_str().unwrap_or("?"),
            said["dead"],
            self.truth["count"],
            of(&group["bytes"]["file"], &bytes["file"]),
            of(&group["bytes"]["shmem"], &bytes["shmem"]),
        );
    }
}

/// The count must lie between the kernel's own counts right before and after. Returns the latter.
fn assert_counts(said: &Value, way: &str, section: &Section, context: &str) -> Value {
    let at = section.rest.iter().position(|(what, _)| what.contains(way)).unwrap();
    let [(b, before), _, (a, after)] = &section.rest[at - 1..=at + 1] else { panic!("{context}: not three parts") };
    assert_eq!((b.as_str(), a.as_str()), ("before", "after"), "{context}");
    for what in ["dead", "live"] {
        let number = |v: &Value| v[what].as_u64().unwrap_or_else(|| panic!("{context}: no {what} in {v}"));
        let range = number(before).min(number(after))..=number(before).max(number(after));
        assert!(range.contains(&number(said)), "{context}: {what}: {} said, the kernel: {range:?}", said[what]);
    }
    after["dead"].clone()
}

/// Each method that was tried before has a reason why it failed.
fn assert_says_why(said: &Value, context: &str) {
    let tried = said["instead_of"].as_array().map(Vec::as_slice).unwrap_or_default();
    assert!(!tried.is_empty(), "{context}: no reason: {said:#}");
    for reason in tried {
        assert!(reason["why"].as_str().is_some_and(|why| !why.is_empty()), "{context}: {reason}");
    }
}
