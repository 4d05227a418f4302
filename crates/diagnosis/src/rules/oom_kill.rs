//! Did the kernel kill processes because memory ran out?
//!
//! Two different things share the name. A *cgroup* (a container, a pod) reaches its own limit: the job asked for more than it was
//! given, while the node may have plenty. Or the *node* runs out, and the kernel picks a victim among all processes.

use crate::case::Case;
use crate::cgroup_paths::{cgroup_name, cgroup_owner, is_same_or_below};
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::log_events::{self, Event, Family, LogEvent, OomEvent, OomScope};
use crate::ties::{Ties, When};
use crate::units::paths::operand;
use crate::words::{bytes, list, plural};
use coroner_evidence::{CgroupOwner, Evidence, Order, Source};
use std::collections::BTreeMap;
use std::time::Duration;

/// The lines about one kill come within milliseconds; the same PID later is another process.
const SAME_KILL: Duration = Duration::from_secs(5);

/// Cgroups named, latest kills first.
const CGROUPS_SHOWN: usize = 5;

const LOG: &str = "kernel log";

/// Stands in for a cgroup's path.
const UNNAMED: &str = "(not named in the log)";

/// One killed process, assembled from its log lines.
#[derive(Debug, Clone)]
struct Kill<'a> {
    event: LogEvent<'a>,
    pid: u32,
    comm: String,
    scope: Option<OomScope>,
    /// The cgroup whose limit was reached.
    limit_of: Option<String>,
    /// The victim's own cgroup.
    cgroup: Option<String>,
    anon_rss_kb: Option<u64>,
}

impl Kill<'_> {
    fn victim(&self) -> String {
        match self.anon_rss_kb {
            Some(kb) => format!("{}[{}] ({})", self.comm, self.pid, bytes(kb.saturating_mul(1024))),
            None => format!("{}[{}]", self.comm, self.pid),
        }
    }
}

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let log = log_events::recent(evidence, Family::Oom);
    let counted = cgroups_with_kills(evidence);
    let node_counter = evidence.counters.moved(Source::Vmstat, "", "oom_kill");
    if let Err(unseen) = &log
        && node_counter.is_none()
        && !evidence.counters.has(Source::CgroupMemory)
    {
        return Answer::CannotTell {
            because: format!("{}; and no count of kills was read, neither of the node nor of cgroups", unseen.because),
            how_to_see: unseen.how_to_see.clone(),
        };
    }

    let mut kills = put_together(log.as_ref().map(|l| l.events.clone()).unwrap_or_default());
    name_cgroups(&mut kills, evidence);

    let mut of_node = Vec::new();
    let mut of_cgroup: BTreeMap<String, Vec<Kill>> = BTreeMap::new();
    for kill in kills {
        match kill.scope {
            Some(OomScope::Cgroup) => {
                let name = kill.limit_of.clone().or_else(|| kill.cgroup.clone()).unwrap_or_else(|| UNNAMED.to_owned());
                of_cgroup.entry(name).or_default().push(kill);
            }
            // A bare `Killed process` line comes from the node's killer or from SysRq.
            Some(OomScope::Node) | None => of_node.push(kill),
        }
    }

    let mut findings = Vec::new();
    if !of_node.is_empty() {
        findings.push(node_finding(&of_node));
    }
    let mut latest_first: Vec<(&String, &Vec<Kill>)> = of_cgroup.iter().collect();
    latest_first.order_by_key(|(_, kills)| kills.last().map(|k| k.event.age));
    match latest_first.as_slice() {
        [] => {}
        [(cgroup, kills)] => findings.push(cgroup_finding(cgroup, kills)),
        several => findings.push(cgroups_finding(several)),
    }

    // Counters show what a closed or overwritten log does not.
    let logged = |path: &str| {
        of_cgroup.values().flatten().chain(&of_node).any(|k| {
            [&k.limit_of, &k.cgroup]
                .into_iter()
                .flatten()
                .any(|p| is_same_or_below(p, path) || is_same_or_below(path, p))
        })
    };
    let mut unlogged: Vec<&(String, u64)> = counted.iter().filter(|(path, _)| !logged(path)).collect();
    unlogged.order_by_key(|(_, n)| std::cmp::Reverse(*n));
    match unlogged.as_slice() {
        [] => {}
        [(path, n)] => findings.push(counted_finding(path, *n)),
        several => findings.push(several_counted(several)),
    }
    if findings.is_empty()
        && let Some(n) = node_counter.filter(|n| *n > 0)
    {
        findings.push(uncharted_finding(n));
    }
    if !findings.is_empty() {
        return Answer::Findings(findings);
    }
    let counters = match node_counter {
        Some(_) => "the kernel counted no OOM kill while we watched",
        None => "no cgroup counted an OOM kill while we watched",
    };
    match log {
        Ok(log) if log.is_whole() => Answer::Fine(format!("no OOM kill in {}; {counters}", log.reach_words())),
        // Counts every kill since boot, of the node and of cgroups (mm/oom_kill.c, __oom_kill_process).
        _ if evidence.counters.last(Source::Vmstat, "", "oom_kill") == Some(0) => {
            Answer::Fine("no OOM kill since boot (/proc/vmstat oom_kill is 0)".to_owned())
        }
        Ok(log) => log.nothing(|reach| format!("no OOM kill in {reach}; {counters}")),
        Err(unseen) => unseen.only_watched(evidence, counters),
    }
}

fn put_together(events: Vec<LogEvent>) -> Vec<Kill> {
    let mut kills: Vec<Kill> = Vec::new();
    let mut limit: Option<(LogEvent, String, String)> = None;
    for event in events {
        let Event::Oom(oom) = &event.event else { continue };
        let (pid, comm) = match oom {
            OomEvent::LimitOf { cgroup, limit_of } => {
                limit = Some((event.clone(), cgroup.clone(), limit_of.clone()));
                continue;
            }
            OomEvent::Killed { pid, comm, .. } | OomEvent::Summary { pid, comm, .. } => (*pid, comm.clone()),
        };
        let known = kills.iter().rposition(|k| k.pid == pid && event.line.at.since(k.event.line.at) <= SAME_KILL);
        let i = known.unwrap_or_else(|| {
            kills.push(Kill {
                event: event.clone(),
                pid,
                comm,
                scope: None,
                limit_of: None,
                cgroup: None,
                anon_rss_kb: None,
            });
            kills.len() - 1
        });
        let kill = &mut kills[i];
        match oom {
            OomEvent::Killed { scope, anon_rss_kb, .. } => {
                kill.scope = kill.scope.or(*scope);
                kill.anon_rss_kb = kill.anon_rss_kb.or(*anon_rss_kb);
            }
            OomEvent::Summary { scope, limit_of, cgroup, .. } => {
                kill.scope = Some(*scope);
                kill.limit_of = limit_of.clone();
                kill.cgroup = cgroup.clone();
            }
            OomEvent::LimitOf { .. } => {}
        }
        if kill.limit_of.is_none()
            && kill.scope != Some(OomScope::Node)
            && let Some((at, cgroup, limit_of)) = &limit
            && event.line.at.since(at.line.at) <= SAME_KILL
        {
            kill.scope = Some(OomScope::Cgroup);
            kill.cgroup = Some(cgroup.clone());
            kill.limit_of = Some(limit_of.clone());
        }
    }
    kills
}

/// When kills come fast, the kernel omits the line with the cgroup. Then it is that of other victims of the same name, if these were all in one
/// cgroup, else that of the process itself, if it was seen.
fn name_cgroups(kills: &mut [Kill], evidence: &Evidence) {
    // The cgroup whose limit was hit and the victim's own; `None` if processes of that name died in several.
    type Place = (Option<String>, Option<String>);
    let mut by_comm: BTreeMap<String, Option<Place>> = BTreeMap::new();
    for kill in kills.iter().filter(|kill| kill.limit_of.is_some()) {
        let place = (kill.limit_of.clone(), kill.cgroup.clone());
        let known = by_comm.entry(kill.comm.clone()).or_insert_with(|| Some(place.clone()));
        if known.as_ref().is_some_and(|known| known.0 != place.0) {
            *known = None;
        }
    }
    for kill in kills.iter_mut().filter(|k| k.scope == Some(OomScope::Cgroup) && k.limit_of.is_none()) {
        let process = evidence.processes.iter().rev().find(|p| p.pid == kill.pid && p.comm == kill.comm);
        if let Some(Some((limit_of, cgroup))) = by_comm.get(&kill.comm) {
            (kill.limit_of, kill.cgroup) = (limit_of.clone(), cgroup.clone());
        } else if kill.cgroup.is_none() {
            kill.cgroup = process.and_then(|process| process.memory_cgroup.clone());
        }
    }
}

/// Cgroups in which processes were killed while we watched. v2 counts a kill in every ancestor too; the deepest says most.
fn cgroups_with_kills(evidence: &Evidence) -> Vec<(String, u64)> {
    let counters = &evidence.counters;
    let moved: Vec<(&str, u64)> = counters
        .subjects(Source::CgroupMemory)
        .into_iter()
        .filter_map(|path| Some((path, counters.moved(Source::CgroupMemory, path, "oom_kill").filter(|n| *n > 0)?)))
        .collect();
    moved
        .iter()
        .filter(|(path, n)| {
            let below: u64 = moved
                .iter()
                .filter(|(other, _)| other != path && is_same_or_below(other, path))
                .map(|(_, m)| *m)
                .max()
                .unwrap_or(0);
            *n > below
        })
        .map(|(path, n)| ((*path).to_owned(), *n))
        .collect()
}

fn facts_of(kills: &[Kill]) -> Vec<Fact> {
    let victims: Vec<String> = kills.iter().rev().map(Kill::victim).collect();
    let mut facts = vec![
        Fact::new(FactKey::KilledDay, kills.len() as u64, LOG),
        Fact::new(FactKey::Victims, list(&victims, 8), LOG),
    ];
    if let (Some(first), Some(last)) = (kills.first(), kills.last()) {
        facts.push(Fact::new(FactKey::First, first.event.age_words(), LOG));
        facts.push(Fact::new(FactKey::Last, last.event.age_words(), LOG));
        if let Some(cgroup) = &last.cgroup {
            facts.push(Fact::new(FactKey::LastVictimCgroup, cgroup.clone(), LOG));
        }
    }
    facts
}

fn ties(kills: &[Kill], cgroups: &[&str]) -> Ties {
    let when = |kill: &Kill| When::at(kill.event.line.at, Duration::from_nanos(kill.event.line.uncertainty_ns));
    Ties {
        cgroups: cgroups.iter().map(|&path| path.to_owned()).collect(),
        when: kills.last().map(when),
        ..Ties::default()
    }
}

/// Older kills are info: they are not what is wrong now.
const RECENT: Duration = Duration::from_secs(3600);

fn unless_old(severity: Severity, kills: &[Kill]) -> Severity {
    match kills.last().is_some_and(|kill| kill.event.age <= RECENT) {
        true => severity,
        false => Severity::Info,
    }
}

/// `python3[7] (13.3 GiB) killed 10 min ago`, `redis[9] and 3 more killed, last 60 s ago`
fn killed_words(kills: &[Kill]) -> String {
    let last = &kills[kills.len() - 1];
    match kills.len() {
        1 => format!("{} killed {}", last.victim(), last.event.age_words()),
        n => format!("{} and {} more killed, last {}", last.victim(), n - 1, last.event.age_words()),
    }
}

fn node_finding(kills: &[Kill]) -> Finding {
    let whose = kills.last().and_then(|kill| kill.cgroup.as_deref()).map(cgroup_owner).unwrap_or_default();
    Finding {
        code: Code::OomKill,
        ties: ties(kills, &[]),
        severity: unless_old(Severity::Critical, kills),
        subject: Subject::new(SubjectKind::Node, "memory"),
        title: format!("The node ran out of memory: {}", killed_words(kills)),
        detail: format!(
            "The whole node had no memory left, not just one cgroup, and the kernel chose a victim by size and oom_score_adj. The victim{whose} is \
             not necessarily what used too much."
        ),
        evidence: facts_of(kills),
        remedy: "Find what grew: the task table just above the kill in the kernel log (`journalctl -k | grep -B 60 'Out of memory'`) shows the \
                 size of every process at that time. On Kubernetes, give pods memory limits and the system a reserve (kubelet --system-reserved, \
                 --eviction-hard), so that a pod is evicted before the node runs out."
            .to_owned(),
    }
}

fn cgroup_finding(cgroup: &str, kills: &[Kill]) -> Finding {
    Finding {
        code: Code::OomKill,
        ties: ties(kills, &[cgroup]),
        // The limit did what it is for, and only its own job paid.
        severity: unless_old(Severity::Warning, kills),
        subject: Subject::new(SubjectKind::Cgroup, cgroup),
        title: format!("{} hit its memory limit: {}", cgroup_name(cgroup), killed_words(kills)),
        detail: format!(
            "Cgroup {cgroup}{} reached its own limit, and the kernel killed inside it; the node itself may have had memory to spare.",
            cgroup_owner(cgroup)
        ),
        evidence: facts_of(kills),
        remedy: limit_remedy(cgroup),
    }
}

/// Several cgroups at their own limits, latest kills first: one finding for one kind of trouble.
fn cgroups_finding(cgroups: &[(&String, &Vec<Kill>)]) -> Finding {
    let all: usize = cgroups.iter().map(|(_, kills)| kills.len()).sum();
    let described: Vec<String> = cgroups
        .iter()
        .filter_map(|(cgroup, kills)| {
            let last = kills.last()?;
            let n = if kills.len() > 1 { format!("{} killed, last ", kills.len()) } else { String::new() };
            Some(format!("{cgroup}{} ({n}{} {})", cgroup_owner(cgroup), last.victim(), last.event.age_words()))
        })
        .collect();
    let latest = cgroups.iter().find_map(|(cgroup, kills)| Some((cgroup, kills.last()?)));
    let last = latest.map_or_else(String::new, |(cgroup, kill)| {
        format!(", last {} in {} {}", kill.victim(), cgroup_name(cgroup), kill.event.age_words())
    });
    let mut evidence =
        vec![Fact::new(FactKey::Cgroups, cgroups.len() as u64, LOG), Fact::new(FactKey::KilledDay, all as u64, LOG)];
    evidence.extend(cgroups.iter().take(CGROUPS_SHOWN).map(|(cgroup, kills)| {
        let victims: Vec<String> = kills.iter().rev().map(Kill::victim).collect();
        Fact::new(FactKey::KilledIn, list(&victims, 3), LOG).of(cgroup)
    }));
    Finding {
        code: Code::OomKill,
        ties: Ties {
            cgroups: cgroups.iter().map(|(cgroup, _)| cgroup.to_string()).collect(),
            ..latest.map(|(_, kill)| ties(std::slice::from_ref(kill), &[])).unwrap_or_default()
        },
        severity: latest
            .map_or(Severity::Warning, |(_, kill)| unless_old(Severity::Warning, std::slice::from_ref(kill))),
        subject: Subject::new(SubjectKind::Node, "cgroups at their memory limit"),
        title: format!(
            "{} cgroups hit their memory limit: {} killed{last}",
            cgroups.len(),
            plural(all as u64, "process", "processes")
        ),
        detail: format!(
            "Each reached its own limit; the node itself may have had memory to spare. Newest first: {}.",
            list(&described, CGROUPS_SHOWN)
        ),
        evidence,
        remedy: format!(
            "For the newest: {} Do the same for the others.",
            latest.map_or_else(String::new, |(cgroup, _)| limit_remedy(cgroup))
        ),
    }
}

fn several_counted(cgroups: &[&(String, u64)]) -> Finding {
    let all = cgroups.iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
    let described: Vec<String> =
        cgroups.iter().map(|(path, n)| format!("{path}{} ({n} killed)", cgroup_owner(path))).collect();
    Finding {
        code: Code::OomKill,
        ties: Ties::default(),
        severity: Severity::Warning,
        subject: Subject::new(SubjectKind::Node, "cgroups at their memory limit"),
        title: format!(
            "{} OOM-killed in {} cgroups while we watched",
            plural(all, "process was", "processes were"),
            cgroups.len()
        ),
        detail: format!(
            "These cgroups counted OOM kills, but the kernel log has no line about them: {}.",
            list(&described, CGROUPS_SHOWN)
        ),
        evidence: vec![
            Fact::new(FactKey::Cgroups, cgroups.len() as u64, "memory.events oom_kill (v1 memory.oom_control)"),
            Fact::new(FactKey::KilledWatched, all, "memory.events oom_kill (v1 memory.oom_control)"),
        ],
        remedy: format!(
            "For the first: {} Do the same for the others.",
            cgroups.first().map_or_else(String::new, |(path, _)| limit_remedy(path))
        ),
    }
}

fn counted_finding(path: &str, n: u64) -> Finding {
    Finding {
        code: Code::OomKill,
        ties: Ties::of_cgroup(path),
        severity: Severity::Warning,
        subject: Subject::new(SubjectKind::Cgroup, path),
        title: format!(
            "{} OOM-killed in {} while we watched",
            plural(n, "process was", "processes were"),
            cgroup_name(path)
        ),
        detail: format!(
            "Cgroup {path}{} counted OOM kills, but the kernel log has no line about them.",
            cgroup_owner(path)
        ),
        evidence: vec![Fact::new(
            FactKey::KilledWatched,
            n,
            format!("{path}: memory.events oom_kill (v1 memory.oom_control)"),
        )],
        remedy: limit_remedy(path),
    }
}

fn uncharted_finding(n: u64) -> Finding {
    Finding {
        code: Code::OomKill,
        ties: Ties::default(),
        severity: Severity::Warning,
        subject: Subject::new(SubjectKind::Node, "memory"),
        title: format!("{} OOM-killed while we watched", plural(n, "process was", "processes were")),
        detail: "The kernel counted the kills, but its log has no line about them: whether the node or one cgroup ran out is unknown."
            .to_owned(),
        evidence: vec![Fact::new(FactKey::CounterRose, n, "/proc/vmstat").of("oom_kill")],
        remedy: "Read the kernel log as root: `journalctl -k | grep -iE 'out of memory|oom-kill'`.".to_owned(),
    }
}

fn limit_remedy(cgroup: &str) -> String {
    let owner = CgroupOwner::of_path(cgroup);
    if owner.pod_uid.is_some() {
        "Raise resources.limits.memory of that container, or make the job use less memory (smaller batches, fewer workers; /dev/shm counts too). \
         `kubectl describe pod` shows OOMKilled; crictl finds the container by the id in the path."
            .to_owned()
    } else if cgroup.starts_with("/kubepods") {
        "All pods together reached the node's allocatable memory. Lower requests and limits of the largest pods, or the kubelet's reserves \
         (--system-reserved, --kube-reserved)."
            .to_owned()
    } else if let Some(unit) = owner.unit {
        let name = operand(&unit);
        format!(
            "Raise MemoryMax= of {unit} (`systemctl set-property {name} MemoryMax=…`), or find why it grows: `systemctl status {name}`."
        )
    } else {
        let whose = if cgroup == UNNAMED { "its cgroup" } else { cgroup };
        format!("Raise the memory limit of {whose}, or find why its processes grow.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{END, cannot_tell, fact, findings, fine, log, one, start, watched};

    const POD: &str = "/kubepods/burstable/pod6f9b1c7e-1111-2222-3333-444455556666";
    const CGROUP_KILL: &str = "Memory cgroup out of memory: Killed process 2343 (python3) total-vm:14012340kB, anon-rss:13925120kB, file-rss:0kB";
    const NODE_KILL: &str =
        "Out of memory: Killed process 91 (postgres) total-vm:1000kB, anon-rss:2048kB, file-rss:0kB";

    fn with(lines: &[(u64, &str)]) -> Evidence {
        Evidence { log: log(lines), ..watched(5) }
    }

    fn summary(pid: u32) -> String {
        format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={POD},task_memcg={POD}/c1,task=python3,pid={pid},uid=0"
        )
    }

    #[test]
    fn a_kill_without_a_cgroup_line_gets_the_cgroup_of_its_namesakes() {
        let later = CGROUP_KILL.replace("2343", "2399");
        let f = one(examine(&Case::of(&with(&[(600, &summary(2343)), (600, CGROUP_KILL), (60, &later)]))));
        assert_eq!(f.subject, Subject::new(SubjectKind::Cgroup, POD));
        assert!(f.title.contains("python3[2399] (13.3 GiB) and 1 more killed, last 60 s ago"), "{}", f.title);
        let stranger = later.replace("python3", "redis");
        let f = one(examine(&Case::of(&with(&[(600, &summary(2343)), (600, CGROUP_KILL), (60, &stranger)]))));
        assert!(f.title.starts_with("2 cgroups hit") && f.title.contains(UNNAMED), "{}", f.title);
    }

    #[test]
    fn a_cgroup_at_its_limit_is_named_with_victim_and_pod() {
        let f = one(examine(&Case::of(&with(&[(600, &summary(2343)), (600, CGROUP_KILL)]))));
        assert_eq!(f.severity, Severity::Warning);
        assert_eq!(f.subject, Subject::new(SubjectKind::Cgroup, POD));
        assert_eq!(
            f.title,
            "pod 6f9b1c7e-1111-2222-3333-444455556666 hit its memory limit: python3[2343] (13.3 GiB) killed 10 min ago"
        );
        assert_eq!(fact(&f, FactKey::KilledDay), 1, "two lines, one kill");
        assert_eq!(fact(&f, FactKey::LastVictimCgroup), format!("{POD}/c1").as_str());
        assert!(f.remedy.contains("limits.memory"));
    }

    #[test]
    fn a_node_out_of_memory_is_a_critical_finding_of_its_own() {
        let all = findings(examine(&Case::of(&with(&[(600, &summary(2343)), (600, CGROUP_KILL), (60, NODE_KILL)]))));
        assert_eq!(all.len(), 2);
        let node = all.iter().find(|f| f.subject.kind == SubjectKind::Node).unwrap();
        assert_eq!(node.severity, Severity::Critical);
        assert!(node.title.contains("postgres[91] (2.0 MiB)"), "{}", node.title);
    }

    #[test]
    fn many_kills_in_one_cgroup_are_one_finding() {
        let texts: Vec<(u64, String)> = (0..30).map(|i| (3000 - i, summary(1000 + i as u32))).collect();
        let lines: Vec<(u64, &str)> = texts.iter().map(|(a, t)| (*a, t.as_str())).collect();
        let f = one(examine(&Case::of(&with(&lines))));
        assert_eq!(fact(&f, FactKey::KilledDay), 30);
    }

    #[test]
    fn several_cgroups_are_one_finding_that_names_the_latest_five() {
        let texts: Vec<(u64, String)> =
            (0..9).map(|i| (3000 - i * 100, summary(1000 + i as u32).replace(POD, &format!("/job{i}")))).collect();
        let lines: Vec<(u64, &str)> = texts.iter().map(|(a, t)| (*a, t.as_str())).collect();
        let f = one(examine(&Case::of(&with(&lines))));
        assert_eq!((f.subject.kind, f.severity), (SubjectKind::Node, Severity::Warning));
        assert!(
            f.title.starts_with("9 cgroups hit their memory limit: 9 processes killed, last python3[1008]"),
            "{}",
            f.title
        );
        assert!(f.detail.contains("Newest first: /job8 (python3[1008] 37 min ago), /job7"), "{}", f.detail);
        assert!(f.detail.contains("/job4") && !f.detail.contains("/job3"), "{}", f.detail);
        assert!(f.detail.ends_with("and 4 more."), "{}", f.detail);
        assert!(f.remedy.contains("/job8"), "{}", f.remedy);
    }

    #[test]
    fn the_same_pid_a_day_apart_is_two_kills() {
        let f = one(examine(&Case::of(&with(&[(60_000, NODE_KILL), (60, NODE_KILL)]))));
        assert_eq!(fact(&f, FactKey::KilledDay), 2);
    }

    #[test]
    fn lines_of_old_kernels_are_assembled() {
        let f = one(examine(&Case::of(&with(&[
            (60, "Task in /kubepods/pod1/c1 killed as a result of limit of /kubepods/pod1"),
            (60, "Memory cgroup out of memory: Kill process 1234 (chrome) score 850 or sacrifice child"),
            (60, "Killed process 1234 (chrome) total-vm:2345678kB, anon-rss:1234567kB, file-rss:0kB, shmem-rss:0kB"),
        ]))));
        assert_eq!(f.subject.name, "/kubepods/pod1");
        assert_eq!(fact(&f, FactKey::KilledDay), 1);
        assert!(f.title.contains("chrome[1234] (1.2 GiB)"), "{}", f.title);
    }

    #[test]
    fn without_a_log_counters_name_the_deepest_cgroup() {
        let mut evidence = watched(5);
        for (path, to) in [("/", 9), ("/kubepods", 2), (POD, 2), ("/other", 0)] {
            evidence.counters.push(Source::CgroupMemory, path, "oom_kill", start(5), 0);
            evidence.counters.push(Source::CgroupMemory, path, "oom_kill", END, if path == "/" { 2 } else { to });
        }
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.subject.name, POD);
        assert_eq!(fact(&f, FactKey::KilledWatched), 2);
    }

    #[test]
    fn a_kill_in_both_log_and_counters_is_one_finding() {
        let mut evidence = with(&[(2, &summary(2343)), (2, CGROUP_KILL)]);
        for path in [POD.to_owned(), format!("{POD}/c1")] {
            evidence.counters.push(Source::CgroupMemory, &path, "oom_kill", start(5), 0);
            evidence.counters.push(Source::CgroupMemory, &path, "oom_kill", END, 1);
        }
        evidence.counters.push(Source::Vmstat, "", "oom_kill", start(5), 4);
        evidence.counters.push(Source::Vmstat, "", "oom_kill", END, 5);
        assert_eq!(one(examine(&Case::of(&evidence))).subject.name, POD);
    }

    #[test]
    fn the_nodes_own_count_is_the_last_resort() {
        let mut evidence = watched(5);
        evidence.counters.push(Source::Vmstat, "", "oom_kill", start(5), 4);
        let (because, _) = cannot_tell(examine(&Case::of(&evidence)));
        assert!(because.contains("watched only 5.0 s"), "{because}");
        evidence.counters.push(Source::Vmstat, "", "oom_kill", END, 5);
        let f = one(examine(&Case::of(&evidence)));
        assert!(f.title.starts_with("1 process was OOM-killed"), "{}", f.title);
    }

    #[test]
    fn a_count_of_zero_since_boot_stands_in_for_the_log() {
        let mut evidence = watched(5);
        evidence.counters.push(Source::CgroupMemory, "/a", "oom_kill", start(5), 0);
        cannot_tell(examine(&Case::of(&evidence)));
        evidence.counters.push(Source::Vmstat, "", "oom_kill", start(5), 0);
        assert!(fine(examine(&Case::of(&evidence))).contains("since boot"));
    }

    #[test]
    fn without_evidence_it_cannot_tell_and_a_quiet_log_is_fine() {
        cannot_tell(examine(&Case::of(&watched(5))));
        assert!(fine(examine(&Case::of(&with(&[(90_000, NODE_KILL)])))).contains("no OOM kill in the kernel log"));
    }
}
