//! Results of coroner on other kernels, in VMs. `./check vm` boots them and then runs this.

use crate::support::*;
use crate::vm_zombies;
use coroner_lab::truth::Truth;
use serde_json::Value;

/// The output of one VM: parts, each a line `@@ what` and a JSON document.
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
        let Some((text, _)) = text.split_once("@@ end") else { panic!("{name} did not finish: {text}") };
        let part = |part: &str| {
            let (what, json) = part.split_once('\n').unwrap_or((part, ""));
            let what = what.trim().to_owned();
            let value = serde_json::from_str(json.trim()).unwrap_or_else(|e| panic!("{name}, {what}: {e}: {json}"));
            (what, value)
        };
        let parts = text.split("@@ ").skip(1).map(part).collect();
        Results { name, parts }
    }

    /// `6.1.0-54-cloud-amd64-cgroup_v2`
    fn is(&self, kernel: &str, cgroups: &str) -> bool {
        self.name.starts_with(kernel) && self.name.ends_with(&format!("cgroup_{cgroups}"))
    }

    /// One that booted its own systemd (vm/incident).
    fn is_incident(&self) -> bool {
        self.name.ends_with("-incident")
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
            let codes = |d: &Value| {
                severities_from(d, "warning")
                    .iter()
                    .map(|f| f.split(' ').next().unwrap().to_owned())
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let made = scenario.first["scenario"].as_str().unwrap_or("?");
            // The incident is watched twice, once in each way.
            let ways: Vec<&Value> =
                scenario.rest.iter().filter(|(what, _)| what == "live" || what == "recorded").map(|(_, d)| d).collect();
            assert_eq!(ways.len(), if machine.is_incident() { 1 } else { 2 }, "{}", machine.name);
            println!(
                "| {} | {made} | {} |",
                machine.name,
                ways.iter().map(|d| codes(d)).collect::<Vec<_>>().join(" | ")
            );
            for diagnosis in ways {
                assert_truth(&scenario.truth(), diagnosis);
            }
            scenarios += 1;
        }
        if is_whole() {
            let expected = if machine.is_incident() {
                2
            } else if machine.is("6.1.", "v2") {
                5
            } else {
                4
            };
            assert_eq!(scenarios, expected, "{}", machine.name);
        }
    }
    assert_all_ran(&machines);
}

/// The incident's agent under its own systemd, on cgroup v2.
#[test]
#[ignore = "slow tier: ./check vm boots the VMs and runs it"]
fn a_crashlooping_unit_is_the_root_cause_on_cgroup_v2() {
    let machines = Results::all();
    let mut seen = 0;
    for machine in &machines {
        for scenario in machine.sections("scenario").filter(|s| s.first["scenario"] == "crashloop-leak") {
            assert_eq!(scenario.first["truth"]["cgroup_version"], 2, "{}", machine.name);
            for way in ["live", "recorded"] {
                let verdict = only_verdict(scenario.name, scenario.part(way));
                println!("{} crashloop-leak, {way}: {}", machine.name, told(verdict));
                assert_eq!(verdict["root_cause"]["code"], "unit-crashloop");
                assert_eq!(verdict["root_cause"]["subject"]["name"], scenario.first["truth"]["unit"]);
            }
            seen += 1;
        }
    }
    assert!(seen > 0 || !is_whole(), "no VM ran crashloop-leak");
}

/// `coroner fix` and `coroner undo` under a systemd on cgroup v2.
#[test]
#[ignore = "slow tier: ./check vm boots the VMs and runs it"]
fn a_crashloop_is_fixed_and_undone_on_cgroup_v2() {
    let machines = Results::all();
    let mut seen = 0;
    for machine in &machines {
        for mended in machine.sections("mended") {
            assert_eq!(mended.first["truth"]["cgroup_version"], 2, "{}", machine.name);
            let (fix, undo) = (mended.part("fix"), mended.part("undo"));
            let steps = fix["steps"].as_array().unwrap();
            let off = steps.iter().find(|s| s["kind"] == "disable-unit").unwrap_or_else(|| panic!("{fix:#}"));
            println!("{} disable-unit: {}", machine.name, off["words"].as_str().unwrap_or("?"));
            assert_eq!((&off["outcome"], &off["effect"]), (&"done".into(), &"worked".into()), "{fix:#}");
            // memory.reclaim frees those kept by page cache, but not those kept by tmpfs files.
            let freed = steps.iter().find(|s| s["kind"] == "free-zombies").unwrap_or_else(|| panic!("{fix:#}"));
            println!("{} free-zombies: {}", machine.name, freed["words"].as_str().unwrap_or("?"));
            let number = |what: &str| freed["after"][what].as_u64().unwrap_or_else(|| panic!("{freed:#}"));
            assert!(number("freed") >= 5 && number("dead_after") >= 5, "{freed:#}");
            assert_eq!(undo["whole"], true, "{undo:#}");
            let last = undo["steps"].as_array().unwrap().last().unwrap();
            assert!(last["words"].as_str().unwrap().contains("enabled"), "{undo:#}");
            seen += 1;
        }
    }
    assert!(seen == 1 || !is_whole(), "{seen} were fixed");
}

/// The incident on its own kernel: what was there before is told apart from what the unit left meanwhile, and the reset is tied to the core.
#[test]
#[ignore = "slow tier: ./check vm boots the VMs and runs it"]
fn the_incident_is_told_whole_on_its_own_kernel() {
    for machine in Results::all().iter().filter(|machine| machine.is_incident()) {
        for watched in machine.sections("scenario") {
            let (way, diagnosis) = &watched.rest[0];
            let truth = &watched.first["truth"];
            let verdict = &diagnosis["verdicts"][0];
            println!("{} {way}, {}\n{}", machine.name, truth["line"], told(verdict));
            let link = |code: &str| {
                let found = verdict["chain"].as_array().unwrap().iter().find(|link| link["to"]["code"] == code);
                found.unwrap_or_else(|| panic!("{}: no {code} in {verdict:#}", machine.name)).to_string()
            };
            assert!(link("zombie-memcgs").contains("were there before"), "{}", link("zombie-memcgs"));
            assert!(
                link("nic-core-starved").contains(truth["culprit"].as_str().unwrap()),
                "{}",
                link("nic-core-starved")
            );
            assert!(link("nic-reset").contains("core 1"), "{}", link("nic-reset"));
        }
    }
}

/// The wait ledger's BPF programs on old kernels: who waited is charged to who ran.
#[test]
#[ignore = "slow tier: ./check vm boots the VMs and runs it"]
fn the_ledger_charges_the_right_one_on_old_kernels() {
    let machines = Results::all();
    let mut seen = 0;
    println!("\n| kernel | scenario | victim waited, ms | charged to the culprit, ms |\n|---|---|---|---|");
    for machine in &machines {
        for section in machine.sections("charged") {
            let (truth, waits) = (&section.first["truth"], section.part("waits"));
            assert_eq!(waits["method"], "bpf", "{}: {waits:#}", machine.name);
            let (victim, culprit) = (&truth["victim"]["pid"], &truth["pid"]);
            let row = waits["rows"].as_array().unwrap().iter().find(|row| row["who"]["pid"] == *victim);
            let row = row.unwrap_or_else(|| panic!("{}: {victim} is not in {waits:#}", machine.name));
            let waited = row["waited_ms"].as_f64().unwrap();
            let charged = row["charged"].as_array().unwrap().iter().filter(|c| c["to"]["pid"] == *culprit);
            let charged: f64 = charged.filter_map(|c| c["ms"].as_f64()).sum();
            println!("| {} | {} | {waited:.0} | {charged:.0} |", machine.name, section.first["scenario"]);
            assert!(waited > 500.0 && charged > 0.5 * waited, "{}: {row:#}", machine.name);
            seen += 1;
        }
    }
    assert!(seen > 0 || !is_whole(), "no VM ran the ledger");
}

/// A core is taken until the kernel's watchdog gives up on a NIC queue that it serves.
#[test]
#[ignore = "slow tier: ./check vm boots the VMs and runs it"]
fn a_reset_by_the_kernels_own_watchdog_names_core_queue_and_culprit() {
    let machines = Results::all();
    let mut seen = 0;
    for machine in &machines {
        for reset in machine.sections("reset") {
            let fact = |name: &str| reset.first[name].as_str().unwrap_or_default();
            let queue = fact("line").split("transmit queue ").nth(1).and_then(|rest| rest.split(' ').next());
            let queue = queue.unwrap_or_else(|| panic!("{}: the watchdog did not fire: {}", machine.name, reset.first));
            let (way, diagnosis) = &reset.rest[0];
            let verdict = only_verdict(reset.name, diagnosis);
            println!("{} {}\n{way}: {}", machine.name, fact("line"), told(verdict));
            assert!(verdict["root_cause"].to_string().contains(fact("culprit")), "{verdict:#}");
            let chain = verdict["chain"].as_array().unwrap();
            let last = chain.iter().find(|link| link["to"]["code"] == "nic-reset");
            let last = last.unwrap_or_else(|| panic!("{}: the reset is not explained: {verdict:#}", machine.name));
            for words in [format!("{} tx-{queue}", fact("device")), format!("core {}", reset.first["core"])] {
                assert!(last.to_string().contains(&words), "{words} is not named: {last:#}");
            }
            seen += 1;
        }
    }
    // Live and recorded, on 6.1 and 6.12, which print it differently.
    assert!(seen == 4 || !is_whole(), "{seen} resets");
}

fn only_verdict<'d>(name: &str, diagnosis: &'d Value) -> &'d Value {
    match diagnosis["verdicts"].as_array().map(Vec::as_slice) {
        Some([verdict]) => verdict,
        verdicts => panic!("{name}: not one verdict: {verdicts:#?}\nunexplained: {:#}", diagnosis["unexplained"]),
    }
}

fn told(verdict: &Value) -> String {
    format!("{}: {}", verdict["certainty"].as_str().unwrap_or("?"), verdict["story"].as_str().unwrap_or("?"))
}

#[test]
#[ignore = "slow tier: ./check vm boots the VMs and runs it"]
fn every_kernel_names_its_dead_cgroups_with_bytes_and_files() {
    let machines = Results::all();
    println!("{}", vm_zombies::HEADER);
    for machine in &machines {
        if is_whole() || machine.sections("pinned").next().is_some() {
            vm_zombies::assert_named(machine);
        }
    }
    assert_all_ran(&machines);
}

/// The whole tier, not only a part (CORONER_VM_PART).
fn is_whole() -> bool {
    std::env::var_os("CORONER_VM_PART").is_none()
}

/// At least one of each kind; Ubuntu's kernel may be unavailable.
fn assert_all_ran(machines: &[Results]) {
    for (kernel, cgroups) in [("6.1.", "v2"), ("6.1.", "v1"), ("6.12.", "v2"), ("5.10.", "v1")] {
        assert!(
            !is_whole() || machines.iter().any(|m| m.is(kernel, cgroups)),
            "no VM of {kernel} with cgroup {cgroups}"
        );
    }
}
