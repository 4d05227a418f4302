//! What coroner said on other kernels, in VMs. `./check vm` boots them and then runs this.

mod support;

use coroner_lab::truth::Truth;
use serde_json::Value;
use support::*;

#[test]
#[ignore = "slow tier: ./check vm boots the VMs and runs it"]
fn every_kernel_and_cgroup_version_gets_the_right_diagnosis() {
    let results = std::env::var("CORONER_VM_RESULTS").expect("CORONER_VM_RESULTS is set by ./check vm");
    println!("| kernel | scenario | live | recorded |\n|---|---|---|---|");
    let mut machines = 0;
    for entry in std::fs::read_dir(results).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("@@ end"), "{name} did not come to its end: {text}");
        let part = |part: &str, what: &str| -> Value {
            let json =
                part.split("@@ ").find_map(|p| p.strip_prefix(what)).unwrap_or_else(|| panic!("no {what} in {name}"));
            serde_json::from_str(json.trim()).unwrap_or_else(|e| panic!("{name}, {what}: {e}: {json}"))
        };
        for scenario in text.split("@@ scenario").skip(1) {
            let said: Value = serde_json::from_str(scenario.split("@@").next().unwrap().trim()).unwrap();
            let truth: Truth = serde_json::from_value(said["truth"].clone()).unwrap();
            let (live, recorded) = (part(scenario, "live"), part(scenario, "recorded"));
            assert_truth(&truth, &live);
            assert_truth(&truth, &recorded);
            let codes = |d: &Value| {
                severities_from(d, "warning")
                    .iter()
                    .map(|f| f.split(' ').next().unwrap().to_owned())
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            println!("| {name} | {} | {} | {} |", said["scenario"].as_str().unwrap(), codes(&live), codes(&recorded));
        }
        machines += 1;
    }
    assert!(machines >= 3, "only {machines} VMs were run");
}
