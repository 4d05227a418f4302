use super::*;
use crate::rules::test_evidence::{END, cannot_tell, fact, fact_of, findings, fine, log, one, start, watched};
use coroner_evidence::{CoreSet, MapSource, NicQueue};

const PAUSED: &str = "ena 0000:20:03.0 eth0: TX q 5 is paused for too long (threshold 5000000). Time since last napi 6596000 usec. napi scheduled: 1";
const DONE: &str =
    "ena 0000:20:03.0: Device reset completed successfully, Driver info: Elastic Network Adapter (ENA) v2.11.0g";

fn eth0(queue: u32, core: u32) -> Nic {
    Nic {
        at: END,
        netns: None,
        name: "eth0".into(),
        driver: Some("ena".into()),
        bus: Some("0000:20:03.0".into()),
        up: Some(true),
        queues: vec![NicQueue {
            kind: QueueKind::Combined,
            index: queue,
            map: MapSource::Name,
            irq: Some(71),
            irq_cores: Some(CoreSet::new([core])),
            ..NicQueue::default()
        }],
    }
}

#[test]
fn the_incident_is_one_critical_finding_with_queue_core_and_age() {
    let mut evidence = watched(5);
    evidence.log = log(&[(1030, PAUSED), (1028, "ena 0000:20:03.0 eth0: Trigger reset is on"), (1025, DONE)]);
    evidence.nics = vec![eth0(5, 39)];
    let f = one(examine(&Case::of(&evidence)));
    assert_eq!(f.severity, Severity::Critical);
    assert_eq!(f.subject, Subject::new(SubjectKind::Nic, "eth0"));
    assert_eq!(f.title, "eth0 was reset or hung 17 min ago: TX queue 5 had not been polled for 6.6 s");
    assert_eq!(fact(&f, FactKey::Queue), 5);
    assert_eq!(fact(&f, FactKey::ServingCore), 39);
    assert_eq!(fact(&f, FactKey::SinceNapi), 6596);
    assert_eq!(fact(&f, FactKey::Lines), 3);
    assert!(f.remedy.contains("core 39"), "{}", f.remedy);
}

#[test]
fn fifty_lines_and_three_incidents_stay_one_finding() {
    let mut lines = Vec::new();
    for incident in [9000u64, 6000, 3000] {
        for i in 0..16 {
            lines.push((incident - i, PAUSED));
        }
        lines.push((incident - 20, DONE));
    }
    let mut evidence = watched(5);
    evidence.log = log(&lines);
    let f = one(examine(&Case::of(&evidence)));
    assert!(f.title.starts_with("eth0 was reset or hung 3 times, last 50 min ago"), "{}", f.title);
    assert_eq!(fact(&f, FactKey::IncidentsDay), 3);
    assert_eq!(fact(&f, FactKey::Lines), 51);
    assert_eq!(fact(&f, FactKey::First), "2 h 30 min ago");
}

#[test]
fn two_devices_are_two_findings() {
    let mut evidence = watched(5);
    evidence.log = log(&[
        (100, "NETDEV WATCHDOG: eth0 (ena): transmit queue 5 timed out"),
        (90, "mlx5_core 0000:06:00.0 eth2: TX timeout detected"),
    ]);
    let names: Vec<String> = findings(examine(&Case::of(&evidence))).into_iter().map(|f| f.subject.name).collect();
    assert_eq!(names, ["eth0", "eth2"]);
}

#[test]
fn the_core_named_by_the_driver_wins_over_the_current_map() {
    let mut evidence = watched(5);
    evidence.log = log(&[(
        60,
        "ena 0000:20:03.0 eth0: TX q 5 is paused for too long (threshold 5). usecs since napi 6. napi scheduled: 1. napi CPU: 7",
    )]);
    evidence.nics = vec![eth0(5, 39)];
    let f = one(examine(&Case::of(&evidence)));
    assert_eq!(fact(&f, FactKey::ServingCore), 7);
}

#[test]
fn the_core_on_which_the_watchdog_ran_is_not_called_starved() {
    let mut evidence = watched(5);
    let line = "ena 0000:20:03.0 eth0: NETDEV WATCHDOG: CPU: 1: transmit queue 5 timed out 5164 ms";
    evidence.log = log(&[(60, line)]);
    let f = one(examine(&Case::of(&evidence)));
    assert!(f.evidence.iter().all(|f| f.key != FactKey::ServingCore), "{:?}", f.evidence);
    assert_eq!(fact(&f, FactKey::Silence), 5164);
}

/// What came first is judged by the newest reset: an earlier one may predate the window.
#[test]
fn its_time_is_that_of_the_newest_reset() {
    let when = |lines: &[(u64, &str)]| {
        let mut evidence = watched(5);
        evidence.log = log(lines);
        let at = |ago: u64| evidence.log.iter().find(|l| l.at == END - Duration::from_secs(ago)).unwrap().at;
        let when = one(examine(&Case::of(&evidence))).ties.when.unwrap();
        (when.from == at(lines[lines.len() - 2].0), when.to == at(lines[lines.len() - 1].0))
    };
    assert_eq!(when(&[(50, PAUSED), (48, DONE), (12, PAUSED), (11, DONE)]), (true, true));
    assert_eq!(when(&[(14, PAUSED), (13, DONE), (12, PAUSED), (11, DONE)]), (true, true));
}

#[test]
fn signs_without_a_reset_are_a_warning() {
    let mut evidence = watched(5);
    evidence.log = log(&[(60, PAUSED)]);
    let f = one(examine(&Case::of(&evidence)));
    assert_eq!(f.severity, Severity::Warning);
    assert!(f.title.contains("at risk of a reset: TX queue 5 had not been polled for 6.6 s"), "{}", f.title);
}

#[test]
fn a_failing_device_is_not_blamed_on_a_core() {
    let mut evidence = watched(5);
    evidence.log = log(&[(60, "ena 0000:20:03.0 eth0: Keep alive watchdog timeout."), (58, DONE)]);
    let f = one(examine(&Case::of(&evidence)));
    assert_eq!(f.severity, Severity::Critical);
    assert!(f.detail.contains("keep-alive"));
    assert!(f.remedy.contains("provider"), "{}", f.remedy);
}

#[test]
fn counters_alone_answer_when_the_log_is_closed() {
    let mut evidence = watched(5);
    evidence.unseen(probe::KERNEL_LOG, "the kernel log", "/dev/kmsg: Operation not permitted", "run as root");
    for (name, from, to) in [("total_resets", 3, 4), ("suspected_poll_starvation", 0, 1), ("tx_packets", 1, 900)] {
        evidence.counters.push(Source::Ethtool, "eth0", name, start(5), from);
        evidence.counters.push(Source::Ethtool, "eth0", name, END, to);
    }
    let f = one(examine(&Case::of(&evidence)));
    assert_eq!(f.severity, Severity::Critical);
    assert_eq!(fact_of(&f, FactKey::CounterRose, "total_resets"), 1);
    assert!(f.title.contains("while we watched"), "{}", f.title);
    assert!(f.detail.contains("its core was taken"));
}

#[test]
fn a_queues_timeout_counter_names_the_queue() {
    let mut evidence = watched(5);
    evidence.log = log(&[]);
    evidence.counters.push(Source::TxTimeout, "eth0", "tx-5", start(5), 0);
    evidence.counters.push(Source::TxTimeout, "eth0", "tx-5", END, 1);
    let f = one(examine(&Case::of(&evidence)));
    assert_eq!((f.severity, fact(&f, FactKey::Queue)), (Severity::Critical, 5.into()));
}

#[test]
fn late_packets_alone_are_a_warning() {
    let mut evidence = watched(5);
    evidence.counters.push(Source::Ethtool, "eth0", "queue_3_tx_missed_tx", start(5), 0);
    evidence.counters.push(Source::Ethtool, "eth0", "queue_3_tx_missed_tx", END, 2);
    assert_eq!(one(examine(&Case::of(&evidence))).severity, Severity::Warning);
}

#[test]
fn resets_before_the_window_and_before_yesterday_do_not_count() {
    let mut evidence = watched(5);
    evidence.log = log(&[(86_500, DONE)]);
    evidence.counters.push(Source::Ethtool, "eth0", "total_resets", start(5), 7);
    let why = fine(examine(&Case::of(&evidence)));
    assert!(why.contains("last 24 h") && why.contains("1 device"), "{why}");
    assert!(why.contains("since the driver was loaded: eth0 total_resets 7"), "{why}");
}

#[test]
fn nothing_seen_is_not_fine() {
    let mut evidence = watched(5);
    let (because, how) = cannot_tell(examine(&Case::of(&evidence)));
    assert!(because.contains("kernel log") && how.contains("root"));
    evidence.counters.push(Source::Ethtool, "eth0", "total_resets", END, 7);
    let (because, _) = cannot_tell(examine(&Case::of(&evidence)));
    assert!(because.contains("watched only 5.0 s"), "{because}");
    assert!(because.contains("eth0 total_resets 7"), "{because}");
}

#[test]
fn drivers_that_never_counted_a_reset_stand_in_for_the_log() {
    let mut evidence = watched(5);
    evidence.nics = vec![eth0(5, 39)];
    assert!(evidence.nics[0].bus.is_some());
    evidence.counters.push(Source::Ethtool, "eth0", "tx_timeout", END, 0);
    cannot_tell(examine(&Case::of(&evidence)));
    evidence.counters.push(Source::Ethtool, "eth0", "total_resets", END, 0);
    assert!(fine(examine(&Case::of(&evidence))).contains("since it was loaded"));
    let other = Nic { name: "eth1".into(), ..evidence.nics[0].clone() };
    evidence.nics.push(other);
    cannot_tell(examine(&Case::of(&evidence)));
}
