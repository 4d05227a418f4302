//! Does a container die and restart over and over?
//!
//! kubelet and docker restart what dies, with a growing back-off: a container that dies at once is soon started only every five
//! minutes, for weeks. Each start creates a cgroup. What counts as a loop is in [`crate::units::containers`].

use super::unit_crashloop::rounded;
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::log_events;
use crate::ties::Ties;
use crate::units::containers::{ContainerLoop, container_loops};
use crate::units::loops::Trend;
use crate::units::paths::shell_word;
use crate::words::{age_words, count, plural, rate, times};
use coroner_evidence::{CgroupOwner, Wall, probe};
use std::collections::BTreeSet;
use std::time::Duration;

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let loops = container_loops(evidence);
    let now = log_events::end_of(evidence).zip(evidence.clocks.last()).map(|(now, clock)| clock.wall_of(now));
    if !loops.is_empty() {
        return Answer::Findings(loops.iter().map(|l| finding(l, now)).collect());
    }
    if let Some(unseen) = evidence.why_unseen(probe::CONTAINERS) {
        return Answer::CannotTell { because: unseen.why.clone(), how_to_see: unseen.how_to_see.clone() };
    }
    let seen: BTreeSet<_> = evidence.containers.iter().map(|c| (&c.namespace, &c.pod, &c.pod_uid, &c.name)).collect();
    if seen.is_empty() {
        // Processes run in containers, but no file of a runtime counts restarts.
        let runs =
            |path: &Option<String>| path.as_deref().is_some_and(|p| CgroupOwner::of_path(p).container_id.is_some());
        if evidence.processes.iter().any(|p| runs(&p.memory_cgroup)) {
            return Answer::CannotTell {
                because: "containers run here, but no file of their runtime shows how often they restarted".to_owned(),
                how_to_see: "run as root on the node; `crictl ps -a` and `docker ps -a` show it, too".to_owned(),
            };
        }
        return Answer::Fine("no containers were seen".to_owned());
    }
    Answer::Fine(format!("{}, no crashloop", plural(seen.len() as u64, "container", "containers")))
}

fn finding(l: &ContainerLoop<'_>, now: Option<Wall>) -> Finding {
    let c = &l.container;
    let name = l.name();
    let seen = l.in_window.is_some_and(|(n, _)| n >= 2);
    let how_fast = match l.per_hour.map(|per_hour| rate(per_hour, Duration::from_secs(3600))) {
        Some(words) if seen => words,
        Some(words) => format!("about {words}"),
        None => "at an unknown rate".to_owned(),
    };
    let ended = c.exit_code.filter(|code| *code != 0).map(|code| format!(", exit code {code}")).unwrap_or_default();
    let ago = |at: Option<Wall>| Some(now?.since(at?));
    let (title, mut detail) = if l.told_by_cgroups() {
        let born = l.in_window.map_or(0, |(n, _)| n);
        (
            format!("containers of {name} keep restarting: {} new cgroups, {how_fast}", count(born)),
            "No file of the runtime shows restarts, but container cgroups of this pod keep coming and going. "
                .to_owned(),
        )
    } else if l.made_anew {
        let n = l.in_window.map_or(0, |(n, _)| n);
        (
            format!("{name} keeps being recreated: {}, {how_fast}{ended}", times(n)),
            "Each time it is a new container with the same name, so the runtime counts no restart: something else starts it. "
                .to_owned(),
        )
    } else {
        (
            format!("{name} crashloops: {}, {how_fast}{ended}", plural(c.restarts, "restart", "restarts")),
            format!("{} restarts it whenever it dies. ", c.runtime),
        )
    };
    let source = if l.told_by_cgroups() { "cgroup tracepoints".to_owned() } else { format!("files of {}", c.runtime) };
    let mut facts = Vec::new();
    if !l.told_by_cgroups() {
        facts.push(Fact::new(FactKey::Restarts, c.restarts, source.clone()));
    }
    if let Some((n, over)) = l.in_window {
        facts.push(Fact::new(FactKey::RestartsWithin, n, source.clone()).over(over));
    }
    if let Some(per_hour) = l.per_hour {
        facts.push(Fact::new(FactKey::RestartsPerHour, rounded(per_hour), source.clone()));
    }
    if let Some(age) = ago(c.started) {
        facts.push(Fact::new(FactKey::LastStart, age_words(age, Duration::ZERO), source.clone()));
        detail.push_str(&format!("It last started {}. ", age_words(age, Duration::ZERO)));
    }
    if let Some(age) = ago(l.since) {
        facts.push(Fact::new(FactKey::LoopingForAtLeast, age.as_secs(), source.clone()));
    }
    if let Some(code) = c.exit_code {
        facts.push(Fact::new(FactKey::ExitCode, code, source.clone()));
    }
    if let Some(trend) = l.trend {
        facts.push(Fact::new(FactKey::Trend, trend.as_str(), source.clone()));
        detail.push_str(match trend {
            Trend::Worse => "It is getting worse. ",
            Trend::Steady => "The rate is steady. ",
            Trend::Better => "It is getting better. ",
        });
    }
    for (key, id) in [(FactKey::ContainerId, &c.id), (FactKey::PodUid, &c.pod_uid)] {
        if let Some(id) = id {
            facts.push(Fact::new(key, id.clone(), source.clone()));
        }
    }
    detail.push_str(
        "Each start creates a cgroup, and memory that outlives the container can keep its cgroup as a zombie (see zombie-memcgs).",
    );
    Finding {
        code: Code::ContainerCrashloop,
        ties: Ties { pods: c.pod_uid.clone().into_iter().collect(), ..Ties::default() },
        severity: Severity::Warning,
        subject: Subject::new(SubjectKind::Container, name),
        title,
        detail,
        evidence: facts,
        remedy: remedy(l),
    }
}

fn remedy(l: &ContainerLoop<'_>) -> String {
    let c = &l.container;
    let see = match (&c.namespace, &c.pod) {
        (Some(namespace), Some(pod)) => {
            let (ns, pod) = (shell_word(namespace), shell_word(pod));
            let of =
                if c.name.is_empty() { "--all-containers".to_owned() } else { format!("-c {}", shell_word(&c.name)) };
            format!("`kubectl -n {ns} logs {pod} {of} --previous` and `kubectl -n {ns} describe pod {pod}`")
        }
        _ if l.told_by_cgroups() => {
            let uid = shell_word(c.pod_uid.as_deref().unwrap_or(""));
            format!("`crictl ps -a --label io.kubernetes.pod.uid={uid}`, then `crictl logs` of the one that exited")
        }
        _ => {
            let tool = if c.runtime == "podman" { "podman" } else { "docker" };
            let name = shell_word(&c.name);
            format!("`{tool} logs --tail 100 {name}` and `{tool} inspect {name}`")
        }
    };
    format!(
        "See why it dies: {see}. Then fix its image, configuration or limits where it is deployed. Deleting it does not help: its owner starts \
         the same again, with the shortest back-off. Dead cgroups stay until the memory that pins them is freed or the node reboots."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{cannot_tell, fact, fine, one, watched};
    use crate::units::containers::tests::{docker, pod_births, pod_container};

    #[test]
    fn a_pod_in_back_off_is_found() {
        let mut evidence = watched(5);
        // 40 restarts, one every five minutes, the last two minutes ago.
        evidence.containers = vec![pod_container(40, 120, 12_000)];
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!((f.severity, f.subject.kind), (Severity::Warning, SubjectKind::Container));
        assert_eq!(f.subject.name, "prod/web-0/app");
        assert!(
            f.title.starts_with("prod/web-0/app crashloops: 40 restarts, about 12 per hour, exit code 1"),
            "{}",
            f.title
        );
        assert!(f.remedy.contains("`kubectl -n prod logs web-0 -c app --previous`"), "{}", f.remedy);
        assert_eq!(fact(&f, FactKey::Restarts), 40);
    }

    #[test]
    fn a_docker_container_is_named() {
        let mut evidence = watched(60);
        evidence.containers = vec![docker(60, 3), docker(0, 9)];
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.title, "web crashloops: 9 restarts, 6.0 per minute, exit code 1");
        assert!(f.remedy.contains("docker logs --tail 100 web") && !f.remedy.contains("docker rm"));
    }

    #[test]
    fn a_pod_known_only_by_its_cgroups_is_named_by_uid() {
        let mut evidence = watched(300);
        evidence.cgroup_churn = pod_births(12);
        let f = one(examine(&Case::of(&evidence)));
        assert!(f.subject.name.starts_with("pod 6f9b1c7e-"), "{}", f.subject.name);
        assert!(f.remedy.contains("crictl ps -a"), "{}", f.remedy);
    }

    #[test]
    fn healthy_containers_are_fine_and_so_are_none() {
        let mut evidence = watched(5);
        assert_eq!(fine(examine(&Case::of(&evidence))), "no containers were seen");
        evidence.containers = vec![pod_container(0, 3600, 0)];
        assert_eq!(fine(examine(&Case::of(&evidence))), "1 container, no crashloop");
        evidence.containers.clear();
        evidence.unseen(probe::CONTAINERS, "restarts of containers", "permission denied", "run as root");
        assert_eq!(cannot_tell(examine(&Case::of(&evidence))).1, "run as root");
    }
}
