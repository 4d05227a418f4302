use crate::case::Case;
use crate::cores::Cores;
use crate::log_events::patterns::tests::SAMPLES;
use crate::rules;
use coroner_evidence::Evidence;
use coroner_evidence::any::any_evidence;
use proptest::collection::vec;
use proptest::prelude::*;

const NAMES: &[&str] = &[
    "total_resets",
    "reset_fail",
    "tx_timeout",
    "wd_expired",
    "suspected_poll_starvation",
    "queue_3_tx_missed_tx",
    "tx-5",
    "quota_us",
    "period_us",
    "nr_periods",
    "nr_throttled",
    "throttled_us",
    "limit_bytes",
    "usage_bytes",
    "limit_hits",
    "high_hits",
    "oom",
    "oom_kill",
    "tracked",
    "live",
    "dying",
    "nf_conntrack_count",
    "nf_conntrack_max",
    "pgscan_direct",
    "pgsteal_direct",
    "pgscan_kswapd",
    "allocstall_normal",
    "workingset_refault_anon",
    "workingset_refault_file",
    "compact_stall",
    "pswpin",
    "pswpout",
    "some_us",
    "full_us",
    "MemTotal",
    "MemAvailable",
    "SwapTotal",
    "SwapFree",
];
const SUBJECTS: &[&str] = &[
    "",
    "eth0",
    "memory",
    "unified",
    "cpu",
    "/",
    "/a",
    "/a/b",
    "/a/b/c",
    "/system.slice/ecs.service",
    "/kubepods/burstable/pod6f9b1c7e-1111-2222-3333-444455556666/c",
];

const UNITS: &[&str] = &["ecs.service", "sshd.service", "kubelet.service", "x@1.service", "x.timer", "é.service"];
const COMMANDS: &[&str] = &[
    "kubelet",
    "kswapd0",
    "ksoftirqd/1",
    "napi/eth0-8193",
    "napi/",
    "kworker/1:0",
    "ecs-init",
    "sh",
    "coroner",
    "é",
    "",
];

/// Words that rules know, or that tie one thing to another.
fn words(field: &str, pick: usize) -> Option<String> {
    let one_of = |words: &[&str]| words[pick % words.len()].to_owned();
    Some(match field {
        "text" => SAMPLES[pick % SAMPLES.len()].1.to_owned(),
        "name" => one_of([NAMES, UNITS, SUBJECTS][pick / 256 % 3]),
        "subject" => one_of(SUBJECTS),
        "unit" => one_of(UNITS),
        "path" | "parent" | "cgroup" | "memory_cgroup" | "cpu_cgroup" if pick % 8 > 0 => {
            format!("{}/{}{}", one_of(&SUBJECTS[5..]), ["ab", "pod-", "é"][pick / 16 % 3], pick / 64 % 8)
        }
        "path" | "parent" | "cgroup" | "memory_cgroup" | "cpu_cgroup" => one_of(SUBJECTS),
        "pattern" => one_of(&["*", "ecs.service", "a*"]),
        "comm" | "parent_comm" | "command" | "entry_point" => one_of(COMMANDS),
        "filesystem" => one_of(&["tmpfs", "ext4", "bdev", ""]),
        "driver" => one_of(&["ena", "veth", ""]),
        "active_state" => one_of(&["active", "activating", "failed", ""]),
        "sub_state" => one_of(&["running", "auto-restart", "auto-restart-queued", "dead", ""]),
        "result" => one_of(&["success", "exit-code"]),
        "service_type" => one_of(&["simple", "oneshot"]),
        "invocation_id" | "pod" | "pod_uid" | "container_id" => one_of(&["a", "b"]),
        "runtime" => one_of(&["kubelet", "docker", ""]),
        "symbol" => one_of(&["mem_cgroup_iter", "do_spin"]),
        "kernel" => one_of(&["5.4.0-216-generic", "6.18.44", "4.4", "x", ""]),
        _ => return None,
    })
}

pub fn evidence() -> impl Strategy<Value = Evidence> {
    vec(any::<u8>(), 0..12_000).prop_map(|bytes| any_evidence(bytes, words))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_evidence_gets_an_answer_and_every_finding_is_complete(evidence in evidence(), parts in 0usize..50) {
        if let Some(summary) = Cores::of(&evidence).summary(parts) {
            for core in &summary.cores {
                let s = core.shares;
                let sum = s.busy() + s.iowait + s.idle;
                prop_assert!((0.0..=1.0001).contains(&sum), "{s:?}");
                prop_assert_eq!(core.strip.len(), parts);
            }
        }
        for judgement in crate::agents::judgements(&evidence).unwrap_or_default() {
            prop_assert!(!(evidence.image.is_some() && judgement.pid.is_some()), "{}", judgement);
        }
        let _ = crate::agents::drift(&evidence).map(|d| d.is_ok());
        let _ = crate::agents::questions(&evidence);
        if let Some(report) = crate::zombies::report(&evidence) {
            prop_assert!(report.groups.len() <= 20);
            if !report.scan.zombies.is_empty() {
                let dead: Option<u64> = report.groups.iter().map(|g| g.dead).sum();
                prop_assert_eq!(dead, Some(report.scan.zombies.len() as u64), "every zombie is in a group");
            }
            for group in &report.groups {
                prop_assert!(group.per_hour.is_none_or(|rate| rate.value.is_finite()));
            }
            prop_assert_eq!(report.cost.lines.len(), 5);
            prop_assert!(!report.cost.matters.is_empty() && !report.cost.matters.contains("NaN"));
        }
        for cost in crate::units::cost::costs(&evidence).values() {
            prop_assert!(cost.cores.is_none_or(f64::is_finite) && cost.zombies_per_hour.is_none_or(f64::is_finite));
        }
        for rule in rules::ALL {
            let answer = (rule.examine)(&Case::of(&evidence));
            match &answer {
                crate::Answer::Fine(why) => prop_assert!(!why.is_empty(), "{} is fine without a reason", rule.code),
                crate::Answer::CannotTell { because, .. } => prop_assert!(!because.is_empty(), "{}", rule.code),
                crate::Answer::Findings(_) | crate::Answer::NotAsked => {}
            }
            if let crate::Answer::Findings(findings) = answer {
                prop_assert!(!findings.is_empty(), "{} found nothing", rule.code);
                for finding in findings {
                    prop_assert_eq!(finding.code, rule.code);
                    prop_assert!(!finding.title.is_empty() && !finding.detail.is_empty() && !finding.remedy.is_empty());
                    prop_assert!(!finding.evidence.is_empty(), "{} without evidence", rule.code);
                    prop_assert!(!finding.title.contains("NaN") && !finding.detail.contains("NaN"));
                }
            }
        }
    }
}
