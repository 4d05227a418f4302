//! Does a CPU quota stop a cgroup's threads?
//!
//! When a cgroup has used up its quota for a period (100 ms), all its threads stop until the next one, no matter how idle the
//! cores are. That is neither contention (another thread had the core) nor reclaim (memory was short).

use super::not_seen;
use crate::case::Case;
use crate::cgroup_paths::{cgroup_name, cgroup_owner, is_same_or_below};
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::Ties;
use crate::units::paths::{operand, shell_word};
use crate::words::{count, duration_words, list, percent, plural};
use coroner_evidence::{About, CgroupMount, CgroupOwner, Evidence, Order, Point, Source, Time, Window, probe};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Throttled in a quarter of its periods: one request in four then takes up to a whole period (100 ms) longer. Less is the
/// normal cost of a limit with bursts.
const THROTTLED_PERIODS: f64 = 0.25;

/// With fewer periods the ratio means nothing.
const MIN_PERIODS: u64 = 5;

/// Stopped for at least this share of the time in which it was throttled, summed over cores; nobody notices less.
const STOPPED_SHARE: f64 = 0.05;
/// Quotas are read about this often; counters that stand still are not recorded meanwhile.
const LOOKS_APART: Duration = Duration::from_secs(2);
/// From this much stopped time on, the window does not count, only the time in which it was throttled.
const STOPPED_LEAST: Duration = Duration::from_secs(1);

/// The kernel's default, and that of systemd and container runtimes (kernel/sched/fair.c, default_cfs_period).
const PERIOD_US: u64 = 100_000;

/// At most this many cgroups get a finding of their own.
const SHOWN: usize = 5;

#[derive(Debug, Clone)]
struct Throttled<'e> {
    path: &'e str,
    periods: u64,
    throttled: u64,
    stopped: Duration,
    /// The quota in cores.
    quota_cores: Option<f64>,
    quota_us: Option<u64>,
    period_us: Option<u64>,
    /// From the first to the last look that showed more throttling.
    over: Duration,
    /// When that began.
    since: Option<Time>,
    /// When it was last throttled, if that was a while before the end.
    until: Option<Time>,
    /// It appeared while we watched, and there is no second look to compare with.
    seen_once: bool,
}

impl Throttled<'_> {
    fn ratio(&self) -> f64 {
        self.throttled as f64 / self.periods.max(1) as f64
    }
}

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let counters = &evidence.counters;
    let paths = counters.subjects(Source::CgroupCpu);
    if paths.is_empty() {
        let sees_quotas = evidence.cgroup_mounts.iter().any(|m| m.has("cpu"));
        if sees_quotas && evidence.why_unseen_about(probe::CGROUPS, &[About::CpuQuotas]).is_none() {
            return Answer::Fine("no cgroup with a CPU quota was seen".to_owned());
        }
        return not_seen(
            evidence.why_unseen_about(probe::CGROUPS, &[About::CpuQuotas]),
            "the CPU quotas of cgroups were not read",
            "run on the node, where the cpu controller's cgroups are mounted",
        );
    }
    let Some(window) = evidence.window().map(|w| w.length()).filter(|l| *l >= Duration::from_secs(1)) else {
        return Answer::CannotTell {
            because: "watched for less than a second".to_owned(),
            how_to_see: "watch longer (--for 5s)".to_owned(),
        };
    };

    let of_cpu = counters.iter().filter(|(series, _)| series.source == Source::CgroupCpu);
    let first_look = of_cpu.flat_map(|(_, points)| points.iter().map(|p| p.at)).min();
    let measured: Vec<Throttled> = paths.iter().filter_map(|path| measure(evidence, path, first_look)).collect();
    let bitten: Vec<&Throttled> = measured.iter().filter(|t| is_bitten(t, window)).collect();
    let mut own: Vec<&Throttled> = bitten.iter().filter(|t| bites_itself(t, &bitten)).copied().collect();
    own.order_by_key(|t| std::cmp::Reverse(t.stopped));

    let mut findings: Vec<Finding> = own.iter().take(SHOWN).map(|t| finding(evidence, t, window)).collect();
    if own.len() > SHOWN {
        findings.push(rest(&own[SHOWN..], window));
    }
    Answer::from_findings(findings, || {
        let once = measured.iter().filter(|t| t.seen_once).count() as u64;
        let cgroups = plural(measured.len() as u64 - once, "cgroup with a CPU quota", "cgroups with a CPU quota");
        let worst = measured.iter().filter(|t| t.periods >= MIN_PERIODS).max_by(|a, b| a.ratio().total_cmp(&b.ratio()));
        let told = match worst.filter(|t| t.throttled > 0) {
            Some(t) => format!(
                "{cgroups}; the worst, {}, was throttled in {} of its periods, for {} in total",
                t.path,
                percent(t.ratio()),
                duration_words(t.stopped),
            ),
            None if measured.len() as u64 == once => "no cgroup with a CPU quota was watched long enough".to_owned(),
            None => format!("{cgroups}, no throttling"),
        };
        match once {
            0 => told,
            n => format!("{told}; {} seen only once, too briefly to judge", plural(n, "more was", "more were")),
        }
    })
}

fn measure<'e>(evidence: &'e Evidence, path: &'e str, first_look: Option<Time>) -> Option<Throttled<'e>> {
    let counters = &evidence.counters;
    let moved = |name| counters.moved(Source::CgroupCpu, path, name);
    let gauge = |name| counters.last(Source::CgroupCpu, path, name);
    let (quota_us, period_us) = (gauge("quota_us"), gauge("period_us").filter(|p| *p > 0));
    let periods = moved("nr_periods")?;
    let moves = moves(counters.points(Source::CgroupCpu, path, "nr_throttled"));
    Some(Throttled {
        path,
        periods,
        throttled: moved("nr_throttled")?,
        stopped: Duration::from_micros(moved("throttled_us")?),
        quota_cores: quota_us.zip(period_us).map(|(q, p)| q as f64 / p as f64),
        quota_us,
        period_us,
        over: moves.map_or(Duration::ZERO, |moves| moves.length()),
        since: moves.map(|moves| moves.from),
        until: evidence.window().and_then(|w| counters.stopped(Source::CgroupCpu, path, "nr_throttled", w.to)),
        // A counter that stands still from the first look on is recorded only there.
        seen_once: matches!(counters.points(Source::CgroupCpu, path, "nr_periods"), [only] if Some(only.at) > first_look),
    })
    .filter(|t| t.quota_us.is_some() || t.periods > 0)
}

fn is_bitten(t: &Throttled, window: Duration) -> bool {
    // In a recording of minutes, half a minute of throttling is no less harmful.
    let over = if t.stopped >= STOPPED_LEAST { t.over.min(window) } else { window };
    t.periods >= MIN_PERIODS
        && t.ratio() >= THROTTLED_PERIODS
        && t.stopped.as_secs_f64() >= STOPPED_SHARE * over.as_secs_f64()
}

/// From the first to the last look at which a counter had moved, plus one step before.
fn moves(points: &[Point]) -> Option<Window> {
    let moves = || points.windows(2).filter(|two| two[0].value != two[1].value);
    let (first, last) = (moves().next()?, moves().next_back()?);
    let step = first[1].at.since(first[0].at).min(LOOKS_APART);
    Some(Window { from: Time(first[1].at.0.saturating_sub(step.as_nanos() as u64)), to: last[1].at })
}

/// If a pod and its container are both throttled, only one is reported: the inner one, unless the outer one (shared by several)
/// was stopped for more than twice as long.
fn bites_itself(t: &Throttled, all: &[&Throttled]) -> bool {
    let strictly_below = |a: &Throttled, b: &Throttled| a.path != b.path && is_same_or_below(a.path, b.path);
    let inner_bites = all.iter().any(|other| strictly_below(other, t) && other.stopped.saturating_mul(2) >= t.stopped);
    let outer_bites = all.iter().any(|other| strictly_below(t, other) && other.stopped > t.stopped.saturating_mul(2));
    !inner_bites && !outer_bites
}

fn finding(evidence: &Evidence, t: &Throttled, window: Duration) -> Finding {
    let quota = match t.quota_cores {
        Some(cores) => format!("its quota of {}", cores_words(cores)),
        None => "its CPU quota".to_owned(),
    };
    let who = processes_in(evidence, t.path);
    let runs = if who.is_empty() { String::new() } else { format!(" Processes in it: {}.", list(&who, 3)) };
    let source = format!("cpu.stat of {}", t.path);
    let mut facts = vec![
        Fact::new(FactKey::Periods, t.periods, source.clone()),
        Fact::new(FactKey::PeriodsThrottled, t.throttled, source.clone()),
        Fact::new(FactKey::ThrottledShare, (t.ratio() * 1000.0).round() / 10.0, source.clone()),
        Fact::new(FactKey::Throttled, t.stopped.as_millis() as u64, source),
    ];
    if let Some(cores) = t.quota_cores {
        facts.push(Fact::new(
            FactKey::Quota,
            (cores * 1000.0).round() / 1000.0,
            format!("cpu.max (v1 cpu.cfs_quota_us) of {}", t.path),
        ));
    }
    Finding {
        code: Code::CpuThrottled,
        ties: Ties { since: t.since, until: t.until, ..Ties::of_cgroup(t.path) },
        severity: Severity::Warning,
        subject: Subject::new(SubjectKind::Cgroup, t.path),
        title: format!(
            "{} {} throttled by {quota} in {} of its periods",
            cgroup_name(t.path),
            if t.until.is_some() { "was" } else { "is" },
            percent(t.ratio())
        ),
        detail: format!(
            "In {}, cgroup {}{} used up its CPU quota in {} of {} periods. Its threads then stood still, {} in total (summed over \
             cores), even if cores were idle. This is neither contention (another thread has the core: core-saturated, core-monopolised) \
             nor memory shortage (memory-reclaim).{runs}",
            duration_words(window),
            t.path,
            cgroup_owner(t.path),
            count(t.throttled),
            count(t.periods),
            duration_words(t.stopped),
        ),
        evidence: facts,
        remedy: remedy(&evidence.cgroup_mounts, t.path, &Needed::by(t, evidence)),
    }
}

fn rest(more: &[&Throttled], window: Duration) -> Finding {
    let stopped: Duration = more.iter().fold(Duration::ZERO, |sum, t| sum.saturating_add(t.stopped));
    let names: Vec<String> = more.iter().map(|t| t.path.to_owned()).collect();
    Finding {
        code: Code::CpuThrottled,
        ties: Ties::default(),
        severity: Severity::Warning,
        subject: Subject::new(SubjectKind::Node, "other throttled cgroups"),
        title: format!("{} throttled by a CPU quota", plural(more.len() as u64, "more cgroup is", "more cgroups are")),
        detail: format!(
            "In {}, their threads stood still for {} in total (summed over cores): {}.",
            duration_words(window),
            duration_words(stopped),
            list(&names, 10)
        ),
        evidence: vec![
            Fact::new(FactKey::Cgroups, more.len() as u64, "cpu.stat"),
            Fact::new(FactKey::Throttled, stopped.as_millis() as u64, "cpu.stat"),
        ],
        remedy: "Raise or remove their quotas, as for those above.".to_owned(),
    }
}

fn cores_words(cores: f64) -> String {
    if (cores - 1.0).abs() < 0.005 { "1 core".to_owned() } else { format!("{} cores", (cores * 100.0).round() / 100.0) }
}

/// What runs in it, the most frequent first: `stress[7]`, `python3[12] (8 processes)`.
fn processes_in(evidence: &Evidence, path: &str) -> Vec<String> {
    let mut pids: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for process in &evidence.processes {
        if process.cpu_cgroup.as_deref().is_some_and(|cgroup| is_same_or_below(cgroup, path)) {
            pids.entry(process.comm.as_str()).or_default().insert(process.pid);
        }
    }
    let mut ranked: Vec<(&str, BTreeSet<u32>)> = pids.into_iter().collect();
    ranked.order_by_key(|(_, pids)| std::cmp::Reverse(pids.len()));
    let described = ranked.into_iter().filter_map(|(name, pids)| {
        let pid = pids.first()?;
        Some(match pids.len() {
            1 => format!("{name}[{pid}]"),
            n => format!("{name}[{pid}] ({n} processes)"),
        })
    });
    described.collect()
}

/// What a throttled cgroup would need.
struct Needed {
    cores: f64,
    period_us: u64,
}

impl Needed {
    /// The quota, and the time for which it stood still on top; no more than the node has.
    fn by(t: &Throttled, evidence: &Evidence) -> Needed {
        let stopped = t.stopped.as_secs_f64() / t.over.as_secs_f64().max(0.1);
        let needed = t.quota_cores.unwrap_or(1.0) + stopped;
        let most = evidence.core_times.last().map_or(f64::INFINITY, |look| look.cores.len() as f64);
        // In half cores: more precision would be pretence.
        Needed { cores: ((needed * 2.0).ceil() / 2.0).min(most), period_us: t.period_us.unwrap_or(PERIOD_US) }
    }
}

/// The commands that raise a cgroup's quota and that remove it, by the version of the hierarchy that has the cpu controller.
fn lift(mounts: &[CgroupMount], path: &str, needed: &Needed) -> Option<(String, String)> {
    // A controller is in one hierarchy only; take the mount that shows most of it.
    let mount = mounts.iter().rev().filter(|m| m.has("cpu")).min_by_key(|m| m.root.len())?;
    let below = if is_same_or_below(path, &mount.root) {
        &path[mount.root.trim_end_matches('/').len()..]
    } else {
        return None;
    };
    let directory = format!("{}{below}", mount.mount_point.trim_end_matches('/'));
    let file = format!("{directory}/{}", if mount.version == 1 { "cpu.cfs_quota_us" } else { "cpu.max" });
    let word = shell_word(&file);
    let period = needed.period_us;
    let quota = (needed.cores * period as f64).round();
    // v1 keeps the period in another file.
    let (raised, lifted) = match mount.version {
        1 => (format!("{quota}"), "-1"),
        _ => (format!("\"{quota} {period}\""), "max"),
    };
    Some((format!("`echo {raised} > {word}`"), format!("`echo {lifted} > {word}`")))
}

fn remedy(mounts: &[CgroupMount], path: &str, needed: &Needed) -> String {
    let cores = needed.cores;
    let owner = CgroupOwner::of_path(path);
    if owner.pod_uid.is_some() {
        format!(
            "Raise resources.limits.cpu of that container in the pod spec to {cores} or more, or remove it (requests.cpu still guarantees its \
             share). If the limit stays, run no more threads than it has cores (GOMAXPROCS, OMP_NUM_THREADS), or they use up the quota early \
             in each period."
        )
    } else if let Some(id) = &owner.container_id {
        let id: String = id.chars().take(12).collect();
        format!("Raise the container's limit: `docker update --cpus={cores} {id}`, or start it without --cpus.")
    } else if let Some(unit) = owner.unit {
        let name = operand(&unit);
        format!(
            "Raise CPUQuota= of {unit}: `systemctl set-property {name} CPUQuota={}%`; an empty CPUQuota= removes it.",
            cores * 100.0
        )
    } else if let Some((raise, lift)) = lift(mounts, path, needed) {
        format!(
            "Raise the quota to {}: {raise}; or remove it: {lift}. Also change it where it is set (pod spec, unit), or it comes back.",
            cores_words(cores)
        )
    } else {
        format!(
            "Raise the quota where the cgroup is created, or write QUOTA PERIOD (max removes it) to cpu.max of {path} (cgroup v1: \
             cpu.cfs_quota_us, -1 removes it)."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{END, cannot_tell, fact, findings, fine, one, start, watched};
    use coroner_evidence::Process;

    fn add(evidence: &mut Evidence, path: &str, periods: u64, throttled: u64, stopped_ms: u64) {
        let counters = &mut evidence.counters;
        counters.push(Source::CgroupCpu, path, "quota_us", start(5), 50_000);
        counters.push(Source::CgroupCpu, path, "period_us", start(5), 100_000);
        for (name, by) in [("nr_periods", periods), ("nr_throttled", throttled), ("throttled_us", stopped_ms * 1000)] {
            counters.push(Source::CgroupCpu, path, name, start(5), 1_000_000);
            counters.push(Source::CgroupCpu, path, name, END, 1_000_000 + by);
        }
    }

    fn with(periods: u64, throttled: u64, stopped_ms: u64) -> Evidence {
        let mut evidence = watched(5);
        add(&mut evidence, "/batch", periods, throttled, stopped_ms);
        evidence
    }

    #[test]
    fn no_more_cores_are_advised_than_there_are() {
        let mut evidence = watched(5);
        add(&mut evidence, "/system.slice/x.service", 50, 49, 9_000);
        let f = one(examine(&Case::of(&evidence)));
        assert!(f.remedy.contains("CPUQuota=100%"), "{}", f.remedy);
    }

    #[test]
    fn an_exhausted_quota_names_its_cgroup() {
        let mut evidence = with(50, 49, 2_400);
        evidence.processes = vec![Process {
            at: END,
            pid: 7,
            ppid: 1,
            comm: "stress".into(),
            cpu_cgroup: Some("/batch".into()),
            ..Process::default()
        }];
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.severity, Severity::Warning);
        assert_eq!(f.subject, Subject::new(SubjectKind::Cgroup, "/batch"));
        assert_eq!(f.title, "cgroup /batch is throttled by its quota of 0.5 cores in 98 % of its periods");
        assert_eq!(fact(&f, FactKey::Throttled), 2_400);
        assert_eq!(fact(&f, FactKey::Quota), 0.5);
        assert!(f.detail.contains("Processes in it: stress[7]."), "{}", f.detail);
    }

    #[test]
    fn each_threshold_holds_at_its_edge() {
        one(examine(&Case::of(&with(40, 10, 250))));
        fine(examine(&Case::of(&with(40, 9, 2_500))));
        fine(examine(&Case::of(&with(40, 40, 249))));
        one(examine(&Case::of(&with(5, 5, 450))));
        fine(examine(&Case::of(&with(4, 4, 450))));
    }

    #[test]
    fn of_nested_quotas_the_one_that_throttles_is_named() {
        // A pod with one container: both levels have the same quota and take turns to throttle.
        let mut evidence = watched(5);
        add(&mut evidence, "/pod", 50, 40, 2_000);
        add(&mut evidence, "/pod/c1", 50, 40, 1_900);
        assert_eq!(one(examine(&Case::of(&evidence))).subject.name, "/pod/c1");
        // A quota shared by several: the inner ones rarely throttle by themselves.
        let mut evidence = watched(5);
        add(&mut evidence, "/pod", 50, 50, 4_000);
        add(&mut evidence, "/pod/c1", 50, 15, 300);
        add(&mut evidence, "/podium", 50, 15, 300);
        let names: Vec<String> = findings(examine(&Case::of(&evidence))).into_iter().map(|f| f.subject.name).collect();
        assert_eq!(names, ["/pod", "/podium"]);
    }

    #[test]
    fn the_sixth_and_later_are_summed() {
        let mut evidence = watched(5);
        for i in 0..8u64 {
            add(&mut evidence, &format!("/batch{i}"), 50, 50, 1_000 + i);
        }
        let all = findings(examine(&Case::of(&evidence)));
        assert_eq!(all.len(), 6);
        assert_eq!(all[0].subject.name, "/batch7");
        assert_eq!(fact(&all[5], FactKey::Cgroups), 3);
    }

    #[test]
    fn the_remedy_is_exact() {
        let needed = Needed { cores: 1.5, period_us: 50_000 };
        let pod = "/kubepods/burstable/pod6f9b1c7e-1111-2222-3333-444455556666/c";
        assert!(remedy(&[], pod, &needed).contains("resources.limits.cpu"));
        assert!(
            remedy(&[], "/system.slice/ecs.service", &needed)
                .contains("systemctl set-property ecs.service CPUQuota=150%")
        );
        assert!(remedy(&[], "/batch", &needed).contains("cpu.max of /batch"));
        let mount = |version, mount_point: &str, root: &str| {
            let controllers = vec!["cpu".to_owned()];
            CgroupMount { version, controllers, mount_point: mount_point.into(), root: root.into() }
        };
        let text = remedy(&[mount(1, "/sys/fs/cgroup/cpu", "/")], "/ruser", &needed);
        assert!(text.contains("`echo -1 > /sys/fs/cgroup/cpu/ruser/cpu.cfs_quota_us`"), "{text}");
        assert!(text.contains("to 1.5 cores: `echo 75000 > /sys/fs/cgroup/cpu/ruser/cpu.cfs_quota_us`"), "{text}");
        let text = remedy(&[mount(2, "/sys/fs/cgroup", "/")], "/batch/a", &needed);
        assert!(text.contains("`echo max > /sys/fs/cgroup/batch/a/cpu.max`"), "{text}");
        assert!(text.contains("`echo \"75000 50000\" > /sys/fs/cgroup/batch/a/cpu.max`"), "{text}");
        let text = remedy(&[mount(2, "/sys/fs/cgroup", "/batch")], "/batch/a", &needed);
        assert!(text.contains("`echo max > /sys/fs/cgroup/a/cpu.max`"), "{text}");
    }

    #[test]
    fn a_cgroup_seen_once_is_not_called_unthrottled() {
        let mut evidence = with(50, 0, 0);
        for name in ["quota_us", "nr_periods", "nr_throttled", "throttled_us"] {
            evidence.counters.push(Source::CgroupCpu, "/born", name, start(2), 40);
        }
        let why = fine(examine(&Case::of(&evidence)));
        assert_eq!(why, "1 cgroup with a CPU quota, no throttling; 1 more was seen only once, too briefly to judge");
    }

    #[test]
    fn nothing_seen_is_not_fine_but_no_quota_is() {
        let mut evidence = watched(5);
        cannot_tell(examine(&Case::of(&evidence)));
        evidence.cgroup_mounts = vec![CgroupMount {
            version: 2,
            controllers: vec!["cpu".into()],
            mount_point: "/sys/fs/cgroup".into(),
            root: "/".into(),
        }];
        evidence.unseen(probe::CGROUPS, "memory limits of cgroups", "EACCES", "run as root");
        assert!(
            fine(examine(&Case::of(&evidence))).contains("no cgroup with a CPU quota"),
            "unseen memory limits do not matter here"
        );
        evidence.unseen_about(probe::CGROUPS, About::CpuQuotas, "CPU throttling", "EPERM", "run as root");
        assert_eq!(cannot_tell(examine(&Case::of(&evidence))).0, "EPERM");
        let mut evidence = with(50, 50, 2_000);
        evidence.core_times.pop();
        assert!(cannot_tell(examine(&Case::of(&evidence))).0.contains("less than a second"));
    }
}
