use super::*;
use crate::status::{DiagnosisStatus, NodeStatus, OwnStatus, ZombieStatus};
use std::collections::BTreeMap;

fn busy() -> Status {
    Status {
        node: NodeStatus {
            zombies: Some(ZombieStatus {
                tracked: Some(68_680),
                live: None,
                dead: Some(68_440),
                by_parent: vec![("/ecs \"a\\b\"\n".to_owned(), 68_000), ("other".to_owned(), 440)],
            }),
            saturated_seconds: BTreeMap::from([(39, 6.5)]),
            worst_core: Some((39, 0.998)),
            starved_queues: Some(2),
            nic_resets: BTreeMap::from([("eth0".to_owned(), 1)]),
            unit_restarts: BTreeMap::from([("ecs.service".to_owned(), 12)]),
            softnet_drops: Some(3),
            oom_kills: None,
        },
        own: OwnStatus { samples: 1_000, lost_samples: BTreeMap::from([(1, 5)]), ..OwnStatus::default() },
        incidents: BTreeMap::from([("core-saturated".to_owned(), 2)]),
        report: Some(crate::status::ReportStatus {
            sent_batches: 7,
            sent_bytes: 3500,
            dropped: coroner_report::Dropped { minutes: 4, ..Default::default() },
            spool_batches: 2,
            ..Default::default()
        }),
        diagnoses: Some(DiagnosisStatus {
            diagnoses: 7,
            failures: 0,
            cpu_seconds: 0.5,
            pause_seconds: 180.0,
            problems: BTreeMap::from([(("unit-crashloop".to_owned(), "warning".to_owned()), 1)]),
        }),
    }
}

#[test]
fn the_text_is_what_scrapers_expect() {
    let open = metrics(busy(), Format::OpenMetrics);
    assert!(open.contains("# TYPE coroner_samples counter\ncoroner_samples_total 1000\n"), "{open}");
    assert!(open.ends_with("# EOF\n"), "{open}");

    let text = metrics(busy(), Format::Plain);
    for line in [
        "# TYPE coroner_samples_total counter",
        "coroner_samples_total 1000",
        "coroner_memcgs{state=\"tracked\"} 68680",
        "coroner_memcgs{state=\"dead\"} 68440",
        "coroner_zombie_memcgs{parent=\"/ecs \\\"a\\\\b\\\"\\n\"} 68000",
        "coroner_core_saturated_seconds_total{core=\"39\"} 6.5",
        "coroner_worst_core 39",
        "coroner_worst_core_busy_ratio 0.998",
        "coroner_starved_nic_queues 2",
        "coroner_nic_resets_total{nic=\"eth0\"} 1",
        "coroner_unit_restarts_total{unit=\"ecs.service\"} 12",
        "coroner_incidents_total{code=\"core-saturated\"} 2",
        "coroner_lost_samples_total{core=\"1\"} 5",
        "coroner_problems{code=\"unit-crashloop\",severity=\"warning\"} 1",
        "coroner_diagnoses_total 7",
        "coroner_report_batches_total 7",
        "coroner_report_dropped_rows_total{kind=\"minute\"} 4",
        "coroner_report_spool_batches 2",
        "coroner_diagnosis_cpu_seconds_total 0.5",
        "coroner_diagnosis_pause_seconds 180.0",
        "# TYPE coroner_build_info gauge",
        concat!("coroner_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n-- is not in --\n{text}");
    }
    assert!(!text.contains("EOF") && !text.contains("state=\"live\"") && !text.contains("oom_kills"), "{text}");
}

#[test]
fn what_was_not_seen_has_no_series() {
    let text = metrics(Status::default(), Format::Plain);
    for name in ["zombie", "memcgs", "worst_core", "starved", "softnet", "oom"] {
        assert!(!text.contains(&format!("coroner_{name}")), "{name}\n{text}");
    }
}
