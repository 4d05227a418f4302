//! What coroner said on other kernels, in VMs. `./check vm` boots them and then runs this.

mod support;
mod vm_zombies;

use coroner_lab::truth::Truth;
use serde_json::Value;
use support::*;

/// What one VM wrote: parts, each a line `@@ what` and a JSON document.
pub struct Results {
    pub name: String,
    parts: Vec<(String, Value)>,
}

impl Results {
    fn all() -> Vec<Results> {
        let dir = std::env::var("CORONER_VM_RESULTS").expect("CORONER_VM_RESULTS is set by ./check vm");
        let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.iter().map(|path| Results::read(path)).collect()
    }

    fn read(path: &std::path::Path) -> Results {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(path).unwrap();
        let Some((text, _)) = text.split_once("@@ end") else { panic!("{name} did not come to its end: {text}") };
        let part = |part: &str| {
            let (what, json) = part.split_once('\n').unwrap_or((part, ""));
            let what = what.trim().to_owned();
            let value = serde_json::from_str(json.trim()).unwrap_or_else(|e| panic!("{name}, {what}: {e}: {json}"));
            (what, value)
        };
        let parts = text.split("@@ ").skip(1).map(part).collect();
        Results { name, parts }
    }

    /// The parts from each `what` to the next.
    pub fn sections(&self, what: &str) -> impl Iterator<Item = Section<'_>> {
        let starts = (0..self.parts.len()).filter(move |&i| self.parts[i].0 == what);
        let what = what.to_owned();
        starts.map(move |start| {
            let after = &self.parts[start + 1..];
            let end = after.iter().position(|(w, _)| *w == what).unwrap_or(after.len());
            Section { name: &self.name, first: &self.parts[start].1, rest: &after[..end] }
        })
    }
}

pub struct Section<'r> {
    pub name: &'r str,
    pub first: &'r Value,
    pub rest: &'r [(String, Value)],
}

impl Section<'_> {
    pub fn part(&self, what: &str) -> &Value {
        let found = self.rest.iter().find(|(w, _)| w == what);
        found.map(|(_, value)| value).unwrap_or_else(|| panic!("{}: no {what} after {}", self.name, self.first))
    }

    pub fn truth(&self) -> Truth {
        serde_json::from_value(self.first["truth"].clone()).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }
}

#[test]
#[ignore = "slow tier: ./check vm boots the VMs and runs it"]
fn every_kernel_and_cgroup_version_gets_the_right_diagnosis() {
    let machines = Results::all();
    println!("\n| kernel | scenario | live | recorded |\n|---|---|---|---|");
    for machine in &machines {
        let mut scenarios = 0;
        for scenario in machine.sections("scenario") {
            let (live, recorded) = (scenario.part("live"), scenario.part("recorded"));
            let codes = |d: &Value| {
                severities_from(d, "warning")
                    .iter()
                    .map(|f| f.split(' ').next().unwrap().to_owned())
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let made = scenario.first["scenario"].as_str().unwrap_or("?");
            println!("| {} | {made} | {} | {} |", machine.name, codes(live), codes(recorded));
            assert_truth(&scenario.truth(), live);
            assert_truth(&scenario.truth(), recorded);
            scenarios += 1;
        }
        assert_eq!(scenarios, 4, "{}", machine.name);
    }
    assert_eq!(kernels(&machines, ["6.1.", "6.12.", "5.10."]), [2, 1, 1]);
}

#[test]
#[ignore = "slow tier: ./check vm boots the VMs and runs it"]
fn every_kernel_names_its_dead_cgroups_with_bytes_and_files() {
    let machines = Results::all();
    println!("{}", vm_zombies::HEADER);
    for machine in &machines {
        vm_zombies::assert_named(machine);
    }
    assert_eq!(kernels(&machines, ["6.1.", "6.12.", "5.10."]), [2, 1, 1]);
}

/// How many VMs of each series were run.
fn kernels<const N: usize>(machines: &[Results], series: [&str; N]) -> [usize; N] {
    series.map(|s| machines.iter().filter(|m| m.name.starts_with(s)).count())
}
