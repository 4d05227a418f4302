//! Findings and their links as a graph, and the verdicts in it.

use super::causes::{self, Needed, Root};
use super::links::{self, Linked};
use super::{Certainty, Conclusion, Link, Unexplained, Verdict, timeline};
use crate::case::Case;
use crate::code::Code;
use crate::cores::cited::{how_to_move, why_no_room, with_room_for_thread};
use crate::finding::{Finding, Severity};
use crate::ties::Task;
use crate::units::protected::is_protected;
use coroner_evidence::Order;
use coroner_report::TimeSpan;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

struct Edge {
    from: usize,
    to: usize,
    linked: Linked,
}

pub fn conclude(case: &Case<'_>) -> Conclusion {
    let mut edges = edges(case);
    let roots: Vec<Option<Root>> = case.findings.iter().map(|finding| causes::judge(case, finding)).collect();
    // A mere suspicion does not make a proven root an effect.
    let is_proven = |root: &Option<Root>| root.as_ref().is_some_and(|r| r.proofs.certainty() == Certainty::Proven);
    edges.retain(|edge| edge.linked.proofs.certainty() > Certainty::Possible || !is_proven(&roots[edge.to]));
    let mut explained: BTreeSet<usize> = BTreeSet::new();
    let mut verdicts = Vec::new();
    // Remarks about a unit come last, when it is known whether the unit has a verdict.
    let mut order: Vec<usize> = (0..case.findings.len()).collect();
    order.order_by_key(|&i| is_remark(case.findings[i].code));
    for root in order {
        // What has a cause is no root.
        let (Some(judged), false) = (&roots[root], edges.iter().any(|edge| edge.to == root)) else { continue };
        if verdicts.iter().any(|verdict| says_more(&case.findings[root], verdict, case)) {
            continue;
        }
        let reached = reached_from(root, &edges);
        let worst = reached.iter().map(|&i| case.findings[i].severity).max().unwrap_or(Severity::Info);
        if worst < Severity::Warning {
            continue;
        }
        explained.extend(&reached);
        verdicts.push(verdict(case, root, judged, &reached, &edges, worst));
    }
    // Remarks about a cause belong to its verdict.
    for (i, finding) in case.findings.iter().enumerate() {
        if let Some(of) = verdicts.iter_mut().find(|verdict| says_more(finding, verdict, case))
            && explained.insert(i)
        {
            of.context.push(finding.reference());
        }
    }
    // What goes on can still be stopped; of what is over, the latest is remembered best.
    verdicts.order_by_key(|verdict| Reverse((verdict.time.ongoing, verdict.severity, verdict.certainty, verdict.over)));
    let unexplained = case
        .findings
        .iter()
        .enumerate()
        .filter(|(i, finding)| finding.severity >= Severity::Warning && !explained.contains(i))
        .map(|(_, finding)| unexplained(case, finding))
        .collect();
    Conclusion { verdicts, unexplained }
}

/// All links that hold, without shortcuts: A → C is dropped where A → B → C holds.
fn edges(case: &Case<'_>) -> Vec<Edge> {
    let mut edges: Vec<Edge> = Vec::new();
    for (from, cause) in case.findings.iter().enumerate() {
        for (to, effect) in case.findings.iter().enumerate() {
            if from != to
                && let Some(linked) = links::examine(case, cause, effect)
            {
                edges.push(Edge { from, to, linked });
            }
        }
    }
    let all: Vec<(usize, usize, Certainty)> =
        edges.iter().map(|edge| (edge.from, edge.to, edge.linked.proofs.certainty())).collect();
    edges.retain(|edge| {
        // A less certain detour does not replace a link.
        let certainty = edge.linked.proofs.certainty();
        let others = all.iter().filter(|(from, to, _)| (*from, *to) != (edge.from, edge.to));
        let as_sure = others.filter(|(_, _, other)| *other >= certainty);
        let pairs: Vec<(usize, usize)> = as_sure.map(|(from, to, _)| (*from, *to)).collect();
        !leads_to(edge.from, edge.to, &pairs)
    });
    edges
}

fn leads_to(from: usize, to: usize, pairs: &[(usize, usize)]) -> bool {
    let mut seen = BTreeSet::from([from]);
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        for &(_, reached) in pairs.iter().filter(|(start, _)| *start == at) {
            if reached == to {
                return true;
            }
            if seen.insert(reached) {
                next.push(reached);
            }
        }
    }
    false
}

/// The root and everything that follows from it, nearest first.
fn reached_from(root: usize, edges: &[Edge]) -> Vec<usize> {
    let mut reached = vec![root];
    let mut at = 0;
    while let Some(&from) = reached.get(at) {
        for edge in edges.iter().filter(|edge| edge.from == from) {
            if !reached.contains(&edge.to) {
                reached.push(edge.to);
            }
        }
        at += 1;
    }
    reached
}

fn verdict(
    case: &Case<'_>,
    root: usize,
    judged: &Root,
    reached: &[usize],
    edges: &[Edge],
    severity: Severity,
) -> Verdict {
    let chain: Vec<Link> = reached
        .iter()
        .flat_map(|&from| edges.iter().filter(move |edge| edge.from == from))
        .map(|edge| Link {
            from: case.findings[edge.from].reference(),
            to: case.findings[edge.to].reference(),
            because: edge.linked.because.clone(),
            certainty: edge.linked.proofs.certainty(),
            proofs: edge.linked.proofs.clone(),
            evidence: edge.linked.evidence.clone(),
        })
        .collect();
    let sure = how_sure(judged.proofs.certainty(), reached, edges);
    let certainty = worst_of(case, reached).and_then(|worst| sure.get(&worst).copied());
    let findings: Vec<&Finding> = reached.iter().map(|&i| &case.findings[i]).collect();
    let (story_path, story_also) = story(case, reached, edges, &sure);
    let mut story = story_path.join(" ← ");
    if !story_also.is_empty() {
        story.push_str(&format!("; from the same cause: {}", story_also.join("; ")));
    }
    let first_aid = first_aid(case, &findings);
    let time = TimeSpan::around(findings.iter().map(|finding| finding.ties.time));
    Verdict {
        key: case.findings[root].key(),
        root_cause: case.findings[root].reference(),
        certainty: certainty.unwrap_or(judged.proofs.certainty()),
        severity,
        story,
        story_path,
        story_also,
        chain,
        context: Vec::new(),
        because: judged.because.clone(),
        proofs: judged.proofs.clone(),
        timeline: timeline::of(case.evidence, &findings),
        time,
        over: time.until,
        remedy: match &first_aid {
            Some(first_aid) => format!("{first_aid} Then fix the cause: {}", judged.remedy),
            None => judged.remedy.clone(),
        },
        first_aid,
        fix: judged.remedy.clone(),
        not_fixed: judged.not_fixed.clone(),
        risk: judged.risk.clone(),
    }
}

/// How sure it is that the root caused each effect, along the surest path.
fn how_sure(root: Certainty, reached: &[usize], edges: &[Edge]) -> BTreeMap<usize, Certainty> {
    let mut sure: BTreeMap<usize, Certainty> = reached.first().map(|&first| (first, root)).into_iter().collect();
    // No path is longer than the number of findings.
    for _ in reached {
        for edge in edges {
            let Some(from) = sure.get(&edge.from).copied() else { continue };
            let by_this = from.min(edge.linked.proofs.certainty());
            let known = sure.entry(edge.to).or_insert(by_this);
            *known = (*known).max(by_this);
        }
    }
    sure
}

/// The worst effect of the root; of equals the last.
fn worst_of(case: &Case<'_>, reached: &[usize]) -> Option<usize> {
    let (_, worst) = reached.iter().enumerate().max_by_key(|(place, i)| (case.findings[**i].severity, *place))?;
    Some(*worst)
}

/// The findings in which a thread keeps others off a core: only then is it worth moving.
pub const KEEPS_OTHERS_OFF: [Code; 2] = [Code::CoreMonopolised, Code::NicCoreStarved];

/// The walker goes on until the root is fixed, so stopping the harm now is a step of its own. `coroner fix` plans a move by the same
/// cores and the same room.
fn first_aid(case: &Case<'_>, findings: &[&Finding]) -> Option<String> {
    let walk = findings.iter().skip(1).find(|finding| finding.code == Code::MemcgWalk);
    let walker = walk.and_then(|walk| walk.ties.culprits.first())?;
    if walker.comm.starts_with("kworker/") || walker.comm.starts_with("kswapd") {
        return None;
    }
    let keeps_off = |finding: &&&Finding| {
        let is_walker = finding.ties.culprits.first().is_some_and(|culprit| culprit.tid == walker.tid);
        KEEPS_OTHERS_OFF.contains(&finding.code) && is_walker
    };
    let core = findings.iter().find(keeps_off).and_then(|finding| finding.ties.cores.first().copied());
    let name = walker.name();
    let pause = match why_not_paused(case, walker) {
        None => format!("pause {name} (`kill -STOP {0}`; `kill -CONT {0}` lets it go on)", walker.pid),
        Some(why) => format!("make {name} poll less often; do not stop it: {why}"),
    };
    let moved =
        core.zip(case.cores().window()).map(|(core, window)| match with_room_for_thread(case.cores(), core, window) {
            Some(room) => {
                format!(" Or move it where there is room ({room}): {}.", how_to_move(case.evidence, walker.tid, &room))
            }
            None => format!(" Moving it won't help: {}.", why_no_room(case.cores(), core, window)),
        });
    Some(format!("To stop the harm now, {pause}.{}", moved.unwrap_or_default()))
}

/// Why a process must not be paused: its unit is one that the node needs. `coroner fix` plans by the same list.
pub fn why_not_paused(case: &Case<'_>, task: &Task) -> Option<String> {
    let process = case.evidence.processes.iter().rev().find(|process| process.pid == task.pid);
    let unit = process.and_then(|process| process.owner.unit.as_deref());
    // Under other names than its unit's it is found, too: a node agent in a test or a container.
    let named = format!("{}.service", task.comm);
    let protected = unit.into_iter().chain([named.as_str()]).find(|unit| is_protected(unit))?;
    Some(format!("the node needs {}", protected.trim_end_matches(".service")))
}

/// Titles from the worst effect back to the cause along the surest path, and those of the other effects.
fn story(
    case: &Case<'_>,
    reached: &[usize],
    edges: &[Edge],
    sure: &BTreeMap<usize, Certainty>,
) -> (Vec<String>, Vec<String>) {
    let title = |i: &usize| case.findings[*i].title.clone();
    let place = |i: usize| reached.iter().position(|&r| r == i).unwrap_or(0);
    let Some(mut at) = worst_of(case, reached) else { return (Vec::new(), Vec::new()) };
    let mut way = vec![at];
    let by_this = |edge: &Edge| sure.get(&edge.from).map(|from| (*from).min(edge.linked.proofs.certainty()));
    let cause_of = |at: usize| edges.iter().filter(move |edge| edge.to == at && reached.contains(&edge.from));
    while let Some(edge) = cause_of(at).max_by_key(|edge| (by_this(edge), place(edge.from))) {
        at = edge.from;
        way.push(at);
    }
    (way.iter().map(title).collect(), reached.iter().filter(|i| !way.contains(i)).map(title).collect())
}

/// About how a unit is set up, not about what it does to the node.
pub(super) fn is_remark(code: Code) -> bool {
    matches!(code, Code::AgentUnused | Code::AgentConflict | Code::UnitFailing | Code::UnitDrift)
}

/// Whether it is a remark about the unit that a verdict blames.
fn says_more(finding: &Finding, verdict: &Verdict, case: &Case<'_>) -> bool {
    if !is_remark(finding.code) {
        return false;
    }
    let root = case.findings.iter().find(|finding| finding.is(&verdict.root_cause));
    root.is_some_and(|root| finding.ties.common_unit(&root.ties).is_some())
}

fn unexplained(case: &Case<'_>, finding: &Finding) -> Unexplained {
    let Needed { needs, command, then } = causes::needed(case, finding);
    Unexplained {
        finding: finding.reference(),
        needs: needs.to_owned(),
        command: command.to_owned(),
        then: then.to_owned(),
    }
}
