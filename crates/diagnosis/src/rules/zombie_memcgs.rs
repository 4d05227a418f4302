//! Do removed memory cgroups stay in the kernel?
//!
//! A removed cgroup stays in the kernel while memory is charged to it: page cache, tmpfs, locked pages. A few always do. Thousands
//! mean that something makes and removes cgroups over and over, and that nothing frees what they leave.

use super::{not_seen, slow_memcg_stat, time_words};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::memcg_size::MemcgSize;
use crate::ties::{Ties, When};
use crate::words::{bytes, count, duration_words, plural};
use crate::zombies::growth::{self, Peak};
use crate::zombies::{self, Growth, MakerShare, ZombieReport, cost, makers};
use coroner_evidence::{About, CgroupCensus, Evidence, Order, StatRead, Time, ZombieScan, probe};
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

/// Whoever left a smaller part of those that stay is not named.
const WORTH_NAMING: f64 = 0.1;

/// What the finding says of those that a scan named.
pub mod named;

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let Some(judged) = case.judged_zombies() else {
        return not_counted(evidence, evidence.cgroup_censuses.iter().max_by_key(|c| c.at));
    };
    let Counts { dead, live, .. } = judged.counts;
    if dead < WORTH_KNOWING {
        let (peak, over) = (growth::peak(evidence), evidence.window().map(|window| window.length()));
        let at_most = match (peak, over) {
            (Some(peak), Some(over)) if peak.counts > 1 => {
                format!(
                    "; at most {} dead in {} within {}",
                    count(peak.dead),
                    plural(peak.counts as u64, "count", "counts"),
                    duration_words(over)
                )
            }
            _ => String::new(),
        };
        return Answer::Fine(format!("{} dead and {} live memory cgroups{at_most}", count(dead), count(live)));
    }
    let slow = slow_memcg_stat::slowest(evidence);
    let many = dead >= MANY && dead >= live.saturating_mul(DEAD_PER_LIVE);
    let severity = match (many, slow) {
        _ if dead >= TOO_MANY => Severity::Critical,
        (true, Some(_)) => Severity::Critical,
        (true, None) => Severity::Warning,
        (false, _) => Severity::Info,
    };
    Answer::Findings(vec![finding(evidence, judged, severity, slow)])
}

/// The dead that this rule judges: those there are now, or, if they are gone, those there were at the worst time within the window.
pub struct Judged<'e> {
    counts: Counts,
    census: Option<&'e CgroupCensus>,
    /// The dead by name; `None` if there are no names, or outdated ones.
    pub report: Option<ZombieReport<'e>>,
    outdated: Option<ZombieReport<'e>>,
    /// Set if there are far fewer now.
    over: Option<Over>,
}

#[derive(Debug, Clone, Copy)]
struct Over {
    peak: Peak,
    now: u64,
}

impl<'e> Judged<'e> {
    /// `None` if nobody could count them.
    pub fn of(evidence: &'e Evidence) -> Option<Judged<'e>> {
        let newest = evidence.cgroup_censuses.iter().max_by_key(|c| c.at);
        let now = Judged::from(evidence, newest, zombies::report(evidence), None)?;
        let peak = growth::peak(evidence).filter(|peak| peak.dead >= WORTH_KNOWING && now.counts.dead < peak.dead / 2);
        let Some(peak) = peak else { return Some(now) };
        let within = |at: Time| at >= peak.from && at <= peak.until;
        let census = evidence.cgroup_censuses.iter().filter(|c| within(c.at)).max_by_key(|c| c.dying);
        let scans = evidence.zombie_scans.iter().filter(|s| within(s.at) && s.dead.is_some());
        let scan = scans.max_by_key(|s| (!s.zombies.is_empty(), s.dead));
        let report = scan.map(|scan| zombies::report_of(evidence, scan, Some(peak.at)));
        let over = Some(Over { peak, now: now.counts.dead });
        Judged::from(evidence, census, report, over).or(Some(now))
    }

    fn from(
        evidence: &Evidence,
        census: Option<&'e CgroupCensus>,
        report: Option<ZombieReport<'e>>,
        over: Option<Over>,
    ) -> Option<Judged<'e>> {
        let counts = Counts::of(evidence, census, report.as_ref())?;
        let (report, outdated) = match report {
            Some(report) if is_outdated(evidence, report.scan, census) => (None, Some(report)),
            report => (report, None),
        };
        Some(Judged { counts, census, report, outdated, over })
    }

    /// Whether there are far fewer now.
    pub fn is_over(&self) -> bool {
        self.over.is_some()
    }

    pub fn dead_and_live(&self) -> (u64, u64) {
        (self.counts.dead, self.counts.live)
    }

    /// Whoever left dead cgroups while we watched, most first, with the number that each left; nobody if what they left, together with
    /// those that have the same names, is less than half of all.
    pub fn leakers(&self, evidence: &Evidence) -> Vec<MakerShare> {
        let groups = || self.report.iter().flat_map(|report| &report.groups);
        let mut leakers: Vec<MakerShare> = match evidence.cgroup_fates.is_empty() {
            true => groups().flat_map(makers::leakers).cloned().collect(),
            false => {
                let scan = self.report.as_ref().or(self.outdated.as_ref()).map(|report| report.scan);
                let until = self.over.map(|over| over.peak.at);
                makers::shares_until(evidence, scan, until).into_iter().filter(MakerShare::leaks).collect()
            }
        };
        let sum = |all: &mut dyn Iterator<Item = u64>| all.fold(0u64, u64::saturating_add);
        let left = sum(&mut leakers.iter().filter_map(|share| share.left));
        let with_their_names = groups().filter(|group| !makers::leakers(group).is_empty());
        let alike = sum(&mut with_their_names.filter_map(|group| group.dead));
        // Those that came after the scan are in no group.
        let named = self.report.as_ref().and_then(|report| report.scan.dead).unwrap_or(0);
        let since = left.min(self.counts.dead.saturating_sub(named));
        if left.max(alike.saturating_add(since)) <= self.counts.dead / 2 {
            return Vec::new();
        }
        let weight = |share: &MakerShare| share.left.unwrap_or(share.born);
        leakers.order_by_key(|share| std::cmp::Reverse(weight(share)));
        let all = leakers.iter().fold(0u64, |sum, share| sum.saturating_add(weight(share)));
        leakers.retain(|share| weight(share) as f64 >= WORTH_NAMING * all as f64);
        leakers
    }
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

impl Counts {
    /// The count of a scan that named them, so that the groups add up to it; else, or if others came or went since, that of the census.
    fn of(evidence: &Evidence, census: Option<&CgroupCensus>, report: Option<&ZombieReport<'_>>) -> Option<Counts> {
        let scanned = || report.and_then(Counts::of_scan);
        let is_current = |scan: &ZombieScan| {
            !is_outdated(evidence, scan, census) && !later(scan, census).is_some_and(|dead| has_changed(scan, dead, 0))
        };
        let named = report.is_some_and(|r| r.scan.method.is_bpf() && r.scan.truncated.is_none() && is_current(r.scan));
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

/// How many a census counted after a scan.
fn later(scan: &ZombieScan, census: Option<&CgroupCensus>) -> Option<u64> {
    census.filter(|census| census.at > scan.at).and_then(Counts::of_census).map(|counts| counts.dead)
}

/// Whether there are so many more, beyond those known by id, or so many fewer that other names are needed.
fn has_changed(scan: &ZombieScan, now: u64, known_since: u64) -> bool {
    let Some(then) = scan.dead else { return false };
    let unknown = if now > then { (now - then).saturating_sub(known_since) } else { then - now };
    unknown > CHANGED.max(then / 4)
}

/// Whether a later census counted so many more or fewer that the scan is out of date. A recorder names them rarely, and a part of
/// a recording may have names from its beginning only. Those whose makers were seen since then do not count: they are known.
fn is_outdated(evidence: &Evidence, scan: &ZombieScan, census: Option<&CgroupCensus>) -> bool {
    let Some(now) = later(scan, census) else { return false };
    let since = evidence.cgroup_fates.iter().filter(|row| row.to > scan.at);
    has_changed(scan, now, since.map(|row| row.left.len() as u64).sum())
}

fn finding(evidence: &Evidence, judged: &Judged<'_>, severity: Severity, slow: Option<&StatRead>) -> Finding {
    let Judged { counts, census, over, .. } = judged;
    let (report, outdated, census) = (judged.report.as_ref(), judged.outdated.as_ref(), *census);
    let Counts { dead, live, .. } = *counts;
    let leakers = judged.leakers(evidence);
    let growth = growth::growth(evidence);
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
        Some(report) => {
            if dead != report.scan.dead.unwrap_or(dead) {
                detail.push_str(&format!("When they were named there were {}. ", count(report.scan.dead.unwrap_or(0))));
            }
            detail.push_str(&format!(
                "{}{}{} ",
                named::detail(report),
                named::who_made_them(evidence, dead, &report.makers, &leakers, true),
                report.cost.matters
            ));
        }
        None => {
            if let Some(parent) = parent {
                detail.push_str(&format!("Most died below {}. ", parent.path));
            }
            if let Some((outdated, census)) = outdated.zip(census) {
                detail.push_str(&format!(
                    "They were last named {} before this count, when there were {}; which came or went since then is unknown. {}",
                    duration_words(census.at.since(outdated.scan.at)),
                    count(outdated.scan.dead.unwrap_or(0)),
                    named::who_made_them(evidence, dead, &outdated.makers, &leakers, false)
                ));
            }
            if outdated.is_none() {
                let makers = makers::shares_until(evidence, None, over.map(|over| over.peak.at));
                detail.push_str(&named::who_made_them(evidence, dead, &makers, &leakers, false));
            }
            detail.push_str(&what_reads_say(evidence, slow));
        }
    }
    match (&growth, over) {
        (_, Some(Over { peak, now })) => detail.push_str(&format!(
            "There were {} or more {}; {} now.",
            count(peak.dead.div_ceil(2)),
            time_words(evidence, peak.from, peak.until),
            match now {
                0 => "there are none".to_owned(),
                1 => "there is 1".to_owned(),
                n => format!("there are {}", count(*n)),
            }
        )),
        (Growth::Growing { by, over }, None) => detail.push_str(&format!(
            "Growing: {} more in {} ({} at this rate).",
            count(*by),
            duration_words(*over),
            per_hour(*by, *over)
        )),
        (Growth::Steady { over }, None) => {
            detail.push_str(&format!("Not growing in the {} we watched.", duration_words(*over)))
        }
        (Growth::TooShort, None) => detail.push_str("Watched too briefly to say whether their number grows."),
    }
    let uptime = evidence.clocks.last().map(|c| Duration::from_nanos(c.boot_ns)).filter(|u| u.as_secs() >= 600);
    if let Some(uptime) = uptime.filter(|_| over.is_none()) {
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
    if let (Growth::Growing { by, over }, None) = (growth, over) {
        facts.push(Fact::new(FactKey::DeadMemcgsMore, by, counts.dead_source.clone()).over(over));
    }
    if let Some((parent, dying)) = parent.and_then(|parent| Some((parent, parent.dying?))) {
        facts.push(Fact::new(FactKey::DeadBelow, dying, "cgroup.stat nr_dying_descendants").of(&parent.path));
    }
    if let Some(report) = report {
        facts.extend(named::facts(report));
    }
    facts.extend(named::maker_facts(evidence, dead, &leakers));
    let most = || parent.map_or_else(|| "memory cgroups".to_owned(), |p| p.path.clone());
    Finding {
        code: Code::ZombieMemcgs,
        ties: Ties { when: over.map(When::from), until: over.map(|over| over.peak.until), ..ties(report, &leakers) },
        severity,
        subject: report.and_then(named::subject).unwrap_or_else(|| Subject::new(SubjectKind::Node, most())),
        title: match over {
            None => {
                format!("{} dead memory cgroups that the kernel cannot free ({} live ones)", count(dead), count(live))
            }
            Some(Over { peak, .. }) => format!(
                "{} dead memory cgroups that the kernel could not free, {} ({} live ones)",
                count(dead),
                time_words(evidence, peak.from, peak.until),
                count(live)
            ),
        },
        detail,
        evidence: facts,
        remedy: report
            .and_then(|report| named::remedy(report, &leakers, stands_still(evidence, &leakers)))
            .unwrap_or_else(|| REMEDY.to_owned()),
    }
}

/// Of the group with most of them: its parent and its unit; and whoever left most of them while we watched.
fn ties(report: Option<&ZombieReport<'_>>, leakers: &[MakerShare]) -> Ties {
    let mut ties = Ties::default();
    for of_it in leakers.iter().map(MakerShare::ties) {
        ties.culprits.extend(of_it.culprits);
        ties.units.extend(of_it.units.into_iter().filter(|unit| !ties.units.contains(unit)).collect::<Vec<_>>());
    }
    if let Some(group) = report.and_then(named::dominant) {
        ties.cgroups.push(group.parent.clone());
        if let Some(unit) = &group.unit {
            ties.units = vec![unit.clone()];
        }
    }
    ties
}

impl From<Over> for When {
    fn from(over: Over) -> When {
        When { from: over.peak.from, to: over.peak.until, uncertainty: Duration::ZERO }
    }
}

/// Nobody left any while we watched, and their number did not grow.
fn stands_still(evidence: &Evidence, leakers: &[MakerShare]) -> bool {
    !evidence.cgroup_fates.is_empty()
        && leakers.is_empty()
        && !matches!(growth::growth(evidence), Growth::Growing { .. })
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
    use coroner_evidence::{CgroupChurn, CgroupFate, Charged, CrowdedParent, Maker, Node, Source};

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

    fn maker(pid: u32, comm: &str) -> Maker {
        Maker { pid, comm: comm.into(), processes: 1, cgroup: Some("/init.scope".into()), ..Maker::default() }
    }

    /// A process made these while we watched, all were removed, and `left` of them are dead.
    fn made(evidence: &mut Evidence, place: (&str, &str), maker: Maker, born: u64, left: std::ops::Range<u64>) {
        let (parent, pattern) = (place.0.to_owned(), place.1.to_owned());
        let freed = born - (left.end - left.start);
        evidence.cgroup_churn.push(CgroupChurn {
            from: start(5),
            to: END,
            parent: parent.clone(),
            pattern: pattern.clone(),
            example: pattern.replace('*', "1"),
            born,
            removed: born,
            freed: 0,
            maker: Some(maker.clone()),
        });
        let row = evidence.cgroup_churn[evidence.cgroup_churn.len() - 1].clone();
        evidence.cgroup_churn.push(CgroupChurn { born: 0, removed: 0, freed, maker: None, ..row });
        let left = left.collect();
        evidence.cgroup_fates.push(CgroupFate {
            from: start(5),
            to: END,
            parent,
            pattern,
            born,
            removed: born,
            freed,
            left,
            left_freed: Vec::new(),
            maker,
        });
    }

    #[test]
    fn who_makes_most_and_frees_them_is_not_to_blame() {
        // 500 were left by a program that is gone. Ids of a scan begin with 1000.
        let mut evidence = with(50, 500);
        evidence.zombie_scans = vec![scan((0..500).map(|i| format!("/batch/job-{i}")))];
        made(&mut evidence, ("/batch", "job-*"), maker(40, "tidy"), 300, 0..0);
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!((f.ties.culprits.len(), f.ties.units.len()), (0, 0), "{:?}", f.ties);
        for words in [
            "Of the 300 cgroups made while we watched, none stays",
            "Not to blame: tidy[40] of init.scope (300 made, all freed)",
        ] {
            assert!(f.detail.contains(words), "{words}: {}", f.detail);
        }
        assert_eq!(fact(&f, FactKey::DeadBefore), 500);
        assert!(!f.remedy.contains("tidy"), "{}", f.remedy);
    }

    #[test]
    fn what_was_removed_but_is_not_in_the_scan_does_not_stay() {
        let mut evidence = with(50, 500);
        evidence.zombie_scans = vec![scan((0..500).map(|i| format!("/batch/job-{i}")))];
        // They were just being freed when the watch ended.
        made(&mut evidence, ("/batch", "job-*"), maker(40, "tidy"), 300, 9_000..9_090);
        let f = one(examine(&Case::of(&evidence)));
        assert!(f.ties.culprits.is_empty(), "{:?}", f.ties);
        // Without names there is nothing to compare with: a tenth may be just being freed, and most of the dead must be theirs.
        evidence.zombie_scans.clear();
        for (left, blamed) in [(30, 0), (60, 0), (260, 1)] {
            evidence.cgroup_fates[0].left = (0..left).collect();
            evidence.cgroup_fates[0].freed = 300 - left;
            let f = one(examine(&Case::of(&evidence)));
            assert_eq!(f.ties.culprits.len(), blamed, "{left} of 500");
        }
    }

    #[test]
    fn of_those_that_stay_each_maker_has_its_share() {
        // Two leakers beside one that frees what it makes, all with the same names.
        let mut evidence = with(50, 260);
        evidence.zombie_scans = vec![scan((0..260).map(|i| format!("/batch/job-{i}")))];
        made(&mut evidence, ("/batch", "job-*"), maker(40, "tidy"), 900, 0..0);
        made(&mut evidence, ("/batch", "job-*"), maker(41, "leak-a"), 130, 1_000..1_130);
        made(&mut evidence, ("/batch", "job-*"), maker(42, "leak-b"), 140, 1_130..1_260);
        let f = one(examine(&Case::of(&evidence)));
        let culprits: Vec<&str> = f.ties.culprits.iter().map(|task| task.comm.as_str()).collect();
        assert_eq!(culprits, ["leak-b", "leak-a"], "of equals the one who made more");
        assert_eq!(fact_of(&f, FactKey::CgroupsLeftBy, "leak-a[41] of init.scope"), 130);
        assert_eq!(fact_of(&f, FactKey::CgroupsMadeBy, "leak-b[42] of init.scope"), 140);
        for words in ["and all stay (50 % of those that stay)", "and 130 of them stay (50 % of those that stay)"] {
            assert!(f.detail.contains(words), "{words}: {}", f.detail);
        }
        assert!(f.remedy.contains("leak-a[41]") && f.remedy.contains("leak-b[42]"), "{}", f.remedy);
    }

    #[test]
    fn fast_growth_does_not_hide_who_makes_them() {
        // Named at the beginning; twice as many at the end.
        let mut evidence = with(50, 1_000);
        evidence.zombie_scans = vec![ZombieScan { at: start(5), ..scan((0..500).map(|i| format!("/batch/job-{i}"))) }];
        made(&mut evidence, ("/batch", "job-*"), maker(41, "leak-a"), 250, 5_000..5_250);
        made(&mut evidence, ("/batch", "job-*"), maker(42, "leak-b"), 250, 5_250..5_500);
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(fact(&f, FactKey::DeadMemcgs), 1_000);
        assert_eq!(f.ties.culprits.len(), 2, "{}", f.detail);
        assert_eq!(f.subject, Subject::new(SubjectKind::Cgroup, "/batch"), "the names are still known");
        for words in ["When they were named there were 500", "500 of the 1,000 were there before we looked"] {
            assert!(f.detail.contains(words), "{words}: {}", f.detail);
        }
        // Without any names, too: most of them came while we watched.
        evidence.zombie_scans.clear();
        evidence.cgroup_censuses.insert(0, census(start(5), 50, 0));
        evidence.cgroup_censuses[1].dying = Some(500);
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.ties.culprits.len(), 2, "{}", f.detail);
        assert!(f.detail.contains("leak-b[42] of init.scope made 250 cgroups"), "{}", f.detail);
    }

    #[test]
    fn those_there_before_are_counted_apart() {
        let mut evidence = with(50, 6_106);
        evidence.zombie_scans = vec![scan((0..6_106).map(|_| "/system.slice/ecs.service"))];
        made(&mut evidence, ("/system.slice", "ecs.service"), maker(1, "systemd"), 103, 7_003..7_106);
        let f = one(examine(&Case::of(&evidence)));
        for words in [
            "6,003 of the 6,106 were there before we looked. ",
            "systemd[1] of init.scope made 103 cgroups for ecs.service (/system.slice/ecs.service) while we watched, and all stay. ",
            "Those there before have the same names: probably the same made them. ",
        ] {
            assert!(f.detail.contains(words), "{words}: {}", f.detail);
        }
        assert_eq!(fact(&f, FactKey::DeadBefore), 6_003);
        assert_eq!(f.ties.units, ["ecs.service"]);
    }

    #[test]
    fn those_that_came_and_went_within_the_window_are_told_with_their_time() {
        let mut evidence = watched(60);
        evidence.cgroup_censuses = [(58, 10), (50, 2_500), (40, 4_001), (30, 3_900), (20, 12), (1, 12)]
            .map(|(at, n)| census(start(at), 50, n))
            .into();
        evidence.zombie_scans = vec![
            ZombieScan { at: start(39), ..scan((0..4_000).map(|i| format!("/batch/job-{i}"))) },
            ZombieScan { at: start(2), ..scan((0..12).map(|i| format!("/old/x-{i}"))) },
        ];
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.severity, Severity::Warning);
        assert!(f.title.starts_with("4,000 dead memory cgroups that the kernel could not free, from "), "{}", f.title);
        assert!(f.title.contains(" until "), "{}", f.title);
        assert_eq!(f.subject, Subject::new(SubjectKind::Cgroup, "/batch"), "the names of then");
        assert!(f.detail.ends_with("; there are 12 now."), "{}", f.detail);
        assert_eq!(f.ties.until, Some(start(30)));
        assert_eq!(f.ties.when.map(|when| (when.from, when.to)), Some((start(50), start(30))));
        // Few at all times: fine, with the most there were.
        for census in &mut evidence.cgroup_censuses {
            census.dying = census.dying.map(|dead| dead / 50);
        }
        evidence.zombie_scans.remove(0);
        let fine = fine(examine(&Case::of(&evidence)));
        assert!(fine.starts_with("12 dead and 50 live memory cgroups; at most 80 dead in 7 counts within "), "{fine}");
    }
}
