//! Do removed memory cgroups stay in the kernel?
//!
//! A removed cgroup stays in the kernel while memory is charged to it: page cache, tmpfs, locked pages. A few always do. Thousands
//! mean that something makes and removes cgroups over and over, and that nothing frees what they leave.

use super::{not_seen, slow_memcg_stat};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::memcg_size::MemcgSize;
use crate::ties::Ties;
use crate::words::{bytes, count, duration_words};
use crate::zombies::{self, Growth, MakerShare, ZombieReport, cost};
use coroner_evidence::{About, CgroupCensus, Evidence, StatRead, ZombieScan, probe};
use std::time::Duration;

/// An idle machine keeps about 40 after boot (units that ran once); this is more than booting leaves.
const WORTH_KNOWING: u64 = 100;

/// What a restart a minute leaves in 5 hours …
const MANY: u64 = 300;
/// … and most of what the kernel tracks is dead. A node with hundreds of live pods may keep a few hundred dead ones for a while.
const DEAD_PER_LIVE: u64 = 2;

/// A walk over this many hurts: 5,000 took 1.4 s of reclaim on Linux 6.18, 10,000 took 0.7 s per statistics read on kernels before
/// 5.8 (both measured).
const TOO_MANY: u64 = 10_000;

/// Fewer come and go on a busy node.
const CHANGED: u64 = 20;

/// What the finding says of those that a scan named.
pub mod named;

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let census = evidence.cgroup_censuses.iter().max_by_key(|c| c.at);
    let report = zombies::report(evidence);
    let counted = Counts::of(census, report.as_ref());
    let Some(counts) = counted else { return not_counted(evidence, census) };
    let Counts { dead, live, .. } = counts;
    if dead < WORTH_KNOWING {
        return Answer::Fine(format!("{} dead and {} live memory cgroups", count(dead), count(live)));
    }
    let slow = slow_memcg_stat::slowest(evidence);
    let many = dead >= MANY && dead >= live.saturating_mul(DEAD_PER_LIVE);
    let severity = match (many, slow) {
        _ if dead >= TOO_MANY => Severity::Critical,
        (true, Some(_)) => Severity::Critical,
        (true, None) => Severity::Warning,
        (false, _) => Severity::Info,
    };
    let (current, outdated) = match report {
        Some(report) if is_outdated(report.scan, census) => (None, Some(report)),
        report => (report, None),
    };
    Answer::Findings(vec![finding(evidence, census, &counts, current.as_ref(), outdated.as_ref(), severity, slow)])
}

/// The dead by name; `None` if the names are outdated.
pub fn current(evidence: &Evidence) -> Option<ZombieReport<'_>> {
    let census = evidence.cgroup_censuses.iter().max_by_key(|c| c.at);
    zombies::report(evidence).filter(|report| !is_outdated(report.scan, census))
}

fn not_counted(evidence: &Evidence, census: Option<&CgroupCensus>) -> Answer {
    let Some(census) = census else {
        return not_seen(
            evidence.why_unseen_about(probe::CGROUPS, &[About::MemoryCgroups, About::DeadCgroups, About::DeadNames]),
            "cgroups were not counted",
            "run on the node, where the memory cgroups are mounted",
        );
    };
    if census.dying.is_some() {
        return Answer::CannotTell {
            because: format!("there are more than {} cgroup directories; the count stopped there", count(census.live)),
            how_to_see: "see cgroup-leak: so many live cgroups are a problem of their own".to_owned(),
        };
    }
    not_seen(
        evidence.why_unseen_about(probe::CGROUPS, &[About::DeadCgroups, About::DeadNames]),
        &format!("{} live cgroups were counted, but the kernel does not say how many it tracks", count(census.live)),
        "cgroup v2 reports it from Linux 4.14 (cgroup.stat), v1 in /proc/cgroups",
    )
}

/// How many there are, and the source of each number.
struct Counts {
    dead: u64,
    live: u64,
    tracked: Option<u64>,
    dead_source: String,
    live_source: String,
    tracked_source: &'static str,
}

/// Dead and live memory cgroups, as this rule counts them.
pub fn dead_and_live(evidence: &Evidence, report: Option<&ZombieReport<'_>>) -> Option<(u64, u64)> {
    let census = evidence.cgroup_censuses.iter().max_by_key(|c| c.at);
    Counts::of(census, report).map(|counts| (counts.dead, counts.live))
}

impl Counts {
    /// The count of a scan that named them, so that the groups add up to it; else, or if much has changed since, that of the census.
    fn of(census: Option<&CgroupCensus>, report: Option<&ZombieReport<'_>>) -> Option<Counts> {
        let scanned = || report.and_then(Counts::of_scan);
        let named = report
            .is_some_and(|r| r.scan.method.is_bpf() && r.scan.truncated.is_none() && !is_outdated(r.scan, census));
        let counted = if named { scanned() } else { None };
        counted.or_else(|| census.and_then(Counts::of_census)).or_else(scanned)
    }

    fn of_census(census: &CgroupCensus) -> Option<Counts> {
        // tracked − live is wrong if not all live ones were counted.
        let dead = census.dying.filter(|_| !(census.truncated && census.version == 1))?;
        Some(Counts {
            dead,
            live: census.live,
            tracked: census.tracked,
            dead_source: census.dying_source.clone(),
            live_source: census.mount_point.clone(),
            tracked_source: if census.version == 1 { "/proc/cgroups, row memory" } else { "cgroup.stat" },
        })
    }

    fn of_scan(report: &ZombieReport<'_>) -> Option<Counts> {
        let scan = report.scan;
        Some(Counts {
            dead: scan.dead?,
            live: scan.live?,
            tracked: scan.tracked,
            dead_source: scan.method.as_str().to_owned(),
            live_source: scan.method.as_str().to_owned(),
            tracked_source: scan.method.as_str(),
        })
    }
}

/// Whether a later census counted so many more or fewer that the scan is out of date. A recorder names them rarely, and a part of
/// a recording may have names from its beginning only.
fn is_outdated(scan: &ZombieScan, census: Option<&CgroupCensus>) -> bool {
    let counted = census.filter(|census| census.at > scan.at).and_then(Counts::of_census);
    let Some((now, then)) = counted.map(|counts| counts.dead).zip(scan.dead) else { return false };
    now.abs_diff(then) > CHANGED.max(then / 4)
}

fn finding(
    evidence: &Evidence,
    census: Option<&CgroupCensus>,
    counts: &Counts,
    report: Option<&ZombieReport<'_>>,
    outdated: Option<&ZombieReport<'_>>,
    severity: Severity,
    slow: Option<&StatRead>,
) -> Finding {
    let Counts { dead, live, .. } = *counts;
    let growth = zombies::growth::growth(evidence);
    let (memory, more) = match cost::estimate(evidence, dead, counts.tracked) {
        Some(estimate) => (estimate, ""),
        None => (dead.saturating_mul(MemcgSize::estimate(None, 1, 1).total()), ", more on nodes with many cores"),
    };
    // v2 counts the dead below each directory: the deepest with most of them, except the root, is where they were made.
    let crowded = census.map_or(&[][..], |c| &c.crowded);
    let parent =
        crowded.iter().filter(|p| p.path != "/" && p.dying.unwrap_or(0) > dead / 2).max_by_key(|p| p.path.len());

    let mut detail = format!(
        "The kernel tracks {}. The dead ones were removed, but the kernel cannot free them while memory is charged to them (page cache, files \
         in tmpfs or /dev/shm, locked pages). Their own structures take about {} of kernel memory{more}. ",
        counts.tracked.map_or_else(
            || format!("{} dead memory cgroups besides {} live ones", count(dead), count(live)),
            |t| format!("{} memory cgroups; {} of them are alive", count(t), count(live))
        ),
        bytes(memory),
    );
    match report {
        Some(report) => detail.push_str(&format!("{}{}", named::detail(report), named::what_they_cost(report))),
        None => {
            if let Some(parent) = parent {
                detail.push_str(&format!("Most died below {}. ", parent.path));
            }
            if let Some((outdated, census)) = outdated.zip(census) {
                detail.push_str(&format!(
                    "They were last named {} before this count, when there were {}; which came or went since then is unknown. {}",
                    duration_words(census.at.since(outdated.scan.at)),
                    count(outdated.scan.dead.unwrap_or(0)),
                    named::makers_seen(outdated)
                ));
            }
            detail.push_str(&what_reads_say(evidence, slow));
        }
    }
    match &growth {
        Growth::Growing { by, over } => detail.push_str(&format!(
            "Growing: {} more in {} ({} at this rate).",
            count(*by),
            duration_words(*over),
            per_hour(*by, *over)
        )),
        Growth::Steady { over } => {
            detail.push_str(&format!("Not growing in the {} we watched.", duration_words(*over)))
        }
        Growth::TooShort => detail.push_str("Watched too briefly to say whether their number grows."),
    }
    let uptime = evidence.clocks.last().map(|c| Duration::from_nanos(c.boot_ns)).filter(|u| u.as_secs() >= 600);
    if let Some(uptime) = uptime {
        detail.push_str(&format!(
            " Over the {} since boot, that is {} on average.",
            duration_words(uptime),
            per_hour(dead, uptime)
        ));
    }

    let mut facts = vec![Fact::new(FactKey::DeadMemcgs, dead, counts.dead_source.clone())];
    if let Some(tracked) = counts.tracked {
        facts.push(Fact::new(FactKey::TrackedMemcgs, tracked, counts.tracked_source));
    }
    facts.push(Fact::new(FactKey::LiveMemcgs, live, counts.live_source.clone()));
    if let Growth::Growing { by, over } = growth {
        facts.push(Fact::new(FactKey::DeadMemcgsMore, by, counts.dead_source.clone()).over(over));
    }
    if let Some((parent, dying)) = parent.and_then(|parent| Some((parent, parent.dying?))) {
        facts.push(Fact::new(FactKey::DeadBelow, dying, "cgroup.stat nr_dying_descendants").of(&parent.path));
    }
    if let Some(report) = report {
        facts.extend(named::facts(report));
    }
    let most = || parent.map_or_else(|| "memory cgroups".to_owned(), |p| p.path.clone());
    Finding {
        code: Code::ZombieMemcgs,
        ties: ties(report),
        severity,
        subject: report.and_then(named::subject).unwrap_or_else(|| Subject::new(SubjectKind::Node, most())),
        title: format!("{} dead memory cgroups that the kernel cannot free ({} live ones)", count(dead), count(live)),
        detail,
        evidence: facts,
        remedy: report.and_then(named::remedy).unwrap_or_else(|| REMEDY.to_owned()),
    }
}

/// Of the group with most of them: its parent, its unit, and who made most of its new cgroups while we watched.
fn ties(report: Option<&ZombieReport<'_>>) -> Ties {
    let Some(group) = report.and_then(named::dominant) else { return Ties::default() };
    let born = group.makers.iter().map(|share| share.born).sum::<u64>();
    let maker = group.makers.iter().find(|share| share.maker.is_some() && share.born > born / 2);
    let mut ties = maker.map(MakerShare::ties).unwrap_or_default();
    ties.cgroups.push(group.parent.clone());
    if let Some(unit) = &group.unit {
        ties.units = vec![unit.clone()];
    }
    ties
}

const REMEDY: &str = "Stop what makes them: a unit that crashloops (unit-crashloop), or whatever keeps restarting containers. That stops the \
                      growth but frees nothing. The existing ones are freed only with the memory that pins them: delete what they left in tmpfs and \
                      /dev/shm; on a drained node, `echo 1 > /proc/sys/vm/drop_caches` (page cache only; it slows running jobs); or reboot. \
                      Restarting kubelet frees none of them.";

/// What reads of statistics show, if no scan says what they cost.
fn what_reads_say(evidence: &Evidence, slow: Option<&StatRead>) -> String {
    match (slow, evidence.stat_reads.iter().max_by_key(|r| r.took_ns)) {
        (Some(read), _) => format!(
            "Reading statistics is slow: {} took {}. ",
            read.path,
            duration_words(Duration::from_nanos(read.cpu_ns.unwrap_or(read.took_ns)))
        ),
        (None, Some(read)) => format!(
            "Statistics are still quick to read ({}), but memory reclaim visits each of them. ",
            duration_words(Duration::from_nanos(read.took_ns))
        ),
        (None, None) => "Whether statistics are slow to read was not measured. ".to_owned(),
    }
}

fn per_hour(by: u64, over: Duration) -> String {
    format!("{} per hour", count((by as f64 * 3600.0 / over.as_secs_f64().max(1.0)).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{END, cannot_tell, fact, fact_of, fine, one, start, watched};
    use crate::zombies::test_scan::{file, pin, scan};
    use coroner_evidence::{CgroupChurn, Charged, CrowdedParent, Maker, Node, Source, Time};

    fn census(at: Time, live: u64, dead: u64) -> CgroupCensus {
        CgroupCensus {
            at,
            version: 1,
            mount_point: "/sys/fs/cgroup/memory".into(),
            live,
            tracked: Some(live + dead),
            dying: Some(dead),
            dying_source: "/proc/cgroups".into(),
            took_ns: 1_000_000,
            ..CgroupCensus::default()
        }
    }

    fn with(live: u64, dead: u64) -> Evidence {
        Evidence { cgroup_censuses: vec![census(END, live, dead)], ..watched(5) }
    }

    #[test]
    fn the_incident_is_critical_with_exact_numbers() {
        let f = one(examine(&Case::of(&with(240, 68_440))));
        assert_eq!(f.severity, Severity::Critical);
        assert_eq!(f.subject, Subject::new(SubjectKind::Node, "memory cgroups"));
        assert_eq!(fact(&f, FactKey::DeadMemcgs), 68_440);
        assert_eq!(fact(&f, FactKey::TrackedMemcgs), 68_680);
        assert_eq!(fact(&f, FactKey::LiveMemcgs), 240);
        assert!(f.title.contains("68,440"));
        assert!(f.detail.contains("1.0 GiB"), "{}", f.detail);
        assert!(f.remedy.contains("stops the growth but frees nothing"), "{}", f.remedy);
    }

    #[test]
    fn an_outdated_scan_of_a_few_does_not_hide_many_new_ones() {
        let early = ZombieScan { at: start(40), ..scan((0..40).map(|i| format!("/ecs/agent-{i}"))) };
        let mut evidence = Evidence { zombie_scans: vec![early], ..with(50, 701) };
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.severity, Severity::Warning);
        assert_eq!(fact(&f, FactKey::DeadMemcgs), 701);
        assert_eq!(f.subject, Subject::new(SubjectKind::Node, "memory cgroups"), "the named ones are outdated");
        assert!(f.detail.contains("last named 40 s before this count, when there were 40; "), "{}", f.detail);
        // Neither a few more nor an earlier census makes the names outdated.
        evidence.cgroup_censuses = vec![census(END, 50, 60)];
        assert!(fine(examine(&Case::of(&evidence))).contains("40 dead"));
        evidence.cgroup_censuses = vec![census(start(50), 50, 701)];
        assert!(fine(examine(&Case::of(&evidence))).contains("40 dead"));
        // Most of them were freed.
        evidence.zombie_scans[0] = ZombieScan { at: start(40), ..scan((0..900).map(|i| format!("/ecs/agent-{i}"))) };
        evidence.cgroup_censuses = vec![census(END, 50, 12)];
        assert!(fine(examine(&Case::of(&evidence))).contains("12 dead"));
    }

    #[test]
    fn each_threshold_holds_at_its_edge() {
        assert!(fine(examine(&Case::of(&with(50, 99)))).contains("99 dead and 50 live memory cgroups"));
        assert_eq!(one(examine(&Case::of(&with(50, 100)))).severity, Severity::Info);
        assert_eq!(one(examine(&Case::of(&with(50, 299)))).severity, Severity::Info);
        assert_eq!(one(examine(&Case::of(&with(50, 300)))).severity, Severity::Warning);
        assert_eq!(
            one(examine(&Case::of(&with(151, 300)))).severity,
            Severity::Info,
            "fewer than two dead for each live one"
        );
        assert_eq!(one(examine(&Case::of(&with(50, 9_999)))).severity, Severity::Warning);
        assert_eq!(one(examine(&Case::of(&with(50, 10_000)))).severity, Severity::Critical);
        assert_eq!(one(examine(&Case::of(&with(20_000, 10_000)))).severity, Severity::Critical);
    }

    #[test]
    fn a_measured_cost_makes_it_critical() {
        let mut evidence = with(50, 2_000);
        let mut read = StatRead {
            at: END,
            path: "/sys/fs/cgroup/memory/memory.numa_stat".into(),
            took_ns: 26_000_000,
            cpu_ns: Some(26_000_000),
            finished: true,
        };
        evidence.stat_reads = vec![read.clone()];
        let quick = one(examine(&Case::of(&evidence)));
        assert_eq!(quick.severity, Severity::Warning);
        assert!(quick.detail.contains("still quick to read"), "{}", quick.detail);
        read.cpu_ns = Some(70_000_000);
        evidence.stat_reads = vec![read];
        let slow = one(examine(&Case::of(&evidence)));
        assert_eq!(slow.severity, Severity::Critical);
        assert!(slow.detail.contains("Reading statistics is slow"), "{}", slow.detail);
    }

    #[test]
    fn growth_is_reported_only_if_the_window_supports_it() {
        let mut evidence = with(50, 500);
        assert!(one(examine(&Case::of(&evidence))).detail.contains("too briefly"));
        evidence.counters.push(Source::CgroupTree, "memory", "tracked", start(5), 541);
        evidence.counters.push(Source::CgroupTree, "memory", "tracked", END, 550);
        assert!(one(examine(&Case::of(&evidence))).detail.contains("too briefly"), "9 in 5 s may be anything");
        evidence.counters.push(Source::CgroupTree, "memory", "tracked", END, 551);
        let f = one(examine(&Case::of(&evidence)));
        assert!(f.detail.contains("10 more in 5.0 s (7,200 per hour"), "{}", f.detail);
        let mut long = Evidence { core_times: watched(600).core_times, ..with(50, 500) };
        long.cgroup_censuses.insert(0, census(start(600), 50, 460));
        assert!(one(examine(&Case::of(&long))).detail.contains("40 more in 10 min (240 per hour"));
        long.cgroup_censuses[0] = census(start(600), 50, 500);
        assert!(one(examine(&Case::of(&long))).detail.contains("Not growing in the 10 min"));
        // New live ones are tracked too, but are not growth of the dead.
        let mut alive = with(50, 500);
        alive.cgroup_censuses.insert(0, census(start(5), 30, 500));
        alive.counters.push(Source::CgroupTree, "memory", "tracked", start(5), 530);
        alive.counters.push(Source::CgroupTree, "memory", "tracked", END, 550);
        assert!(one(examine(&Case::of(&alive))).detail.contains("too briefly"));
    }

    #[test]
    fn v2_names_the_parent_below_which_they_died() {
        let mut evidence = with(50, 500);
        evidence.cgroup_censuses[0].version = 2;
        let parent = |path: &str, dying| CrowdedParent {
            path: path.into(),
            children: 3,
            dying: Some(dying),
            ..CrowdedParent::default()
        };
        evidence.cgroup_censuses[0].crowded =
            vec![parent("/", 500), parent("/system.slice", 490), parent("/kubepods", 10)];
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.subject.name, "/system.slice");
        assert_eq!(fact_of(&f, FactKey::DeadBelow, "/system.slice"), 490);
    }

    #[test]
    fn uncounted_is_not_zero() {
        cannot_tell(examine(&Case::of(&watched(5))));
        let mut evidence = with(50, 500);
        evidence.cgroup_censuses[0].dying = None;
        assert!(cannot_tell(examine(&Case::of(&evidence))).0.contains("does not say"));
        let mut evidence = with(50, 500);
        evidence.cgroup_censuses[0].truncated = true;
        cannot_tell(examine(&Case::of(&evidence)));
    }

    /// 500 dead of one unit, kept by files it left, made by systemd.
    fn by_name() -> Evidence {
        let mut evidence = with(50, 500);
        let mut scan = scan((0..500).map(|_| "/system.slice/ecs.service"));
        for i in 0..500 {
            pin(&mut scan, file(Some(&format!("/dev/shm/ecs-{i}")), "tmpfs"), i..i + 1, 8192);
        }
        for zombie in &mut scan.zombies {
            zombie.held = Charged { swap_backed: 8192, ..Charged::default() };
        }
        evidence.zombie_scans = vec![scan];
        evidence.cgroup_churn = vec![CgroupChurn {
            from: start(60),
            to: END,
            parent: "/system.slice".into(),
            pattern: "ecs.service".into(),
            example: "ecs.service".into(),
            born: 30,
            removed: 30,
            freed: 0,
            maker: Some(Maker {
                pid: 1,
                comm: "systemd".into(),
                processes: 1,
                cgroup: Some("/init.scope".into()),
                ..Maker::default()
            }),
        }];
        evidence.node = Some(Node { kernel: Some("6.18.44".into()), ..Node::default() });
        evidence
    }

    #[test]
    fn a_scan_names_the_unit_its_files_and_its_maker() {
        let evidence = by_name();
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.severity, Severity::Warning, "as without a scan");
        assert_eq!(f.subject, Subject::new(SubjectKind::Unit, "ecs.service"));
        for words in [
            "500 died below /system.slice as ecs.service; they hold 3.9 MiB, kept by /dev/shm/ecs-* (tmpfs, 500 files, 3.9 MiB)",
            "Made by systemd[1] of init.scope for ecs.service, 30 per minute",
            "reading statistics does not walk the dead",
        ] {
            assert!(f.detail.contains(words), "{words}: {}", f.detail);
        }
        assert_eq!(fact_of(&f, FactKey::DeadAs, "/system.slice/ecs.service"), 500);
        assert_eq!(fact_of(&f, FactKey::HeldBy, "/system.slice/ecs.service"), 500 * 8192);
        assert_eq!(fact_of(&f, FactKey::PinnedIn, "/dev/shm/ecs-* (tmpfs)"), 500 * 8192);
        assert_eq!(fact_of(&f, FactKey::CgroupsMadeBy, "systemd[1] of init.scope"), 30);
        for words in [
            "systemctl disable --now ecs.service",
            "500 files such as /dev/shm/ecs-0",
            "stops the growth but frees nothing",
        ] {
            assert!(f.remedy.contains(words), "{words}: {}", f.remedy);
        }
        assert!(!f.remedy.contains("drop_caches"), "it would free nothing: {}", f.remedy);
        assert!(!f.remedy.contains('*'), "what a pattern covers may be in use: {}", f.remedy);
    }

    #[test]
    fn without_a_unit_the_parent_is_the_subject() {
        let mut evidence = by_name();
        evidence.cgroup_churn.clear();
        evidence.zombie_scans = vec![scan((0..500).map(|i| format!("/batch/job-{i}")))];
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.subject, Subject::new(SubjectKind::Cgroup, "/batch"));
        assert!(f.remedy.contains("coroner zombies --watch") && f.remedy.contains("drop_caches"), "{}", f.remedy);
        // No group has most of them.
        evidence.zombie_scans = vec![scan((0..500).map(|i| format!("/batch{}/job-{i}", ["a", "b", "c"][i % 3])))];
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.subject, Subject::new(SubjectKind::Node, "memory cgroups"));
        assert!(f.detail.contains("167 died below /batcha as job-*"), "{}", f.detail);
        assert_eq!(f.remedy, REMEDY);
    }

    #[test]
    fn a_scan_counts_where_the_census_cannot() {
        let mut evidence = by_name();
        evidence.cgroup_censuses[0].dying = None;
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(fact(&f, FactKey::DeadMemcgs), 500);
        assert_eq!(f.evidence[0].source, "bpf-test-run");
        evidence.cgroup_censuses.clear();
        assert_eq!(fact(&one(examine(&Case::of(&evidence))), FactKey::LiveMemcgs), 50);
    }
}
