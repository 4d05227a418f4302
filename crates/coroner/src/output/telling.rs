//! What to say about a diagnosis, and in which order: the same on a terminal and in a report.

use coroner_diagnosis::verdict::{Certainty, FindingRef, Link, Moment, Proof, Proofs, TimeSpan, Unexplained, Verdict};
use coroner_diagnosis::words::duration_words;
use coroner_diagnosis::{Code, Diagnosis, Finding, RuledOut, Severity};
use coroner_evidence::{Order, Unseen, Wall};
use std::time::Duration;

/// A link of a chain.
pub struct ChainStep<'a> {
    /// Number of forks before it. Without a fork, each step follows from the one above.
    pub depth: usize,
    pub link: &'a Link,
    /// Already listed under another cause, with its effects.
    pub again: bool,
}

/// The chain from its root on, each effect right after its cause.
pub fn steps(verdict: &Verdict) -> Vec<ChainStep<'_>> {
    let mut steps = Vec::new();
    follow(verdict, &verdict.root_cause, 0, &mut Vec::new(), &mut steps);
    steps
}

fn follow<'a>(
    verdict: &'a Verdict,
    from: &'a FindingRef,
    depth: usize,
    told: &mut Vec<&'a FindingRef>,
    steps: &mut Vec<ChainStep<'a>>,
) {
    told.push(from);
    let effects: Vec<&Link> = verdict.chain.iter().filter(|link| link.from.is_same(from)).collect();
    let within = depth + usize::from(effects.len() > 1);
    for link in effects {
        let again = told.iter().any(|before| before.is_same(&link.to));
        steps.push(ChainStep { depth, link, again });
        if !again {
            follow(verdict, &link.to, within, told, steps);
        }
    }
}

pub fn named(proofs: &Proofs) -> [(&'static str, &Proof); 3] {
    [("same thing", &proofs.identity), ("order in time", &proofs.order), ("size", &proofs.size)]
}

pub fn finding_of<'a>(diagnosis: &'a Diagnosis, told: &FindingRef) -> Option<&'a Finding> {
    diagnosis.findings.iter().find(|finding| finding.is(told))
}

/// The findings of all verdicts, worst first.
pub fn in_verdicts(diagnosis: &Diagnosis) -> Vec<&Finding> {
    diagnosis.findings.iter().filter(|finding| is_in_a_verdict(diagnosis, finding)).collect()
}

fn is_in_a_verdict(diagnosis: &Diagnosis, finding: &Finding) -> bool {
    diagnosis.conclusion.verdicts.iter().any(|verdict| {
        let effects = verdict.chain.iter().map(|link| &link.to);
        let mut all = effects.chain(&verdict.context).chain([&verdict.root_cause]);
        all.any(|told| finding.is(told))
    })
}

/// Problems without a cause, with what is needed to find it.
pub fn unexplained(diagnosis: &Diagnosis) -> Vec<(&Finding, &Unexplained)> {
    let all = diagnosis.conclusion.unexplained.iter();
    all.filter_map(|unexplained| Some((finding_of(diagnosis, &unexplained.finding)?, unexplained))).collect()
}

/// `Run `coroner record --dir DIR`, then …`
pub fn how_to_get(unexplained: &Unexplained) -> String {
    let Unexplained { command, then, .. } = unexplained;
    match then.is_empty() {
        true => format!("Run `{command}`."),
        false => format!("Run `{command}`, {then}."),
    }
}

/// Mild findings outside of every verdict.
pub fn worth_knowing(diagnosis: &Diagnosis) -> Vec<&Finding> {
    let mild = diagnosis.findings.iter().filter(|finding| finding.severity < Severity::Warning);
    mild.filter(|finding| !is_in_a_verdict(diagnosis, finding)).collect()
}

/// `proven (5 of 6 links)`
pub fn how_sure(verdict: &Verdict) -> String {
    let sure = match verdict.certainty {
        Certainty::Proven => "proven",
        Certainty::Likely => "likely: not everything could be seen",
        Certainty::Possible => "only possible: too little could be seen to be sure",
    };
    let less = verdict.chain.iter().filter(|link| link.certainty < verdict.certainty).count();
    match (less, verdict.chain.len(), verdict.certainty) {
        (0, ..) => sure.to_owned(),
        (_, 1, _) => format!("{sure}; its effect is less certain"),
        (_, all, Certainty::Proven) => format!("{sure} ({} of {all} links)", all - less),
        (_, all, _) => format!("{sure}; {less} of {all} links only possible"),
    }
}

/// If nothing goes on, so many of what is over are told in full: somebody reads a recording to learn what happened.
const OVER_IN_FULL: usize = 2;

/// The verdicts to tell in full, and those that are over and only listed. Of an incident the first is always told in full.
pub fn by_time(verdicts: &[Verdict], is_incident: bool, verbose: bool) -> (Vec<&Verdict>, Vec<&Verdict>) {
    let nothing_goes_on = !verdicts.iter().any(|verdict| verdict.time.ongoing);
    let in_full = |i: usize, verdict: &Verdict| {
        verbose || verdict.time.ongoing || (is_incident && i == 0) || (nothing_goes_on && i < OVER_IN_FULL)
    };
    let (full, over): (Vec<_>, Vec<_>) = verdicts.iter().enumerate().partition(|(i, verdict)| in_full(*i, verdict));
    let plain = |all: Vec<(usize, _)>| all.into_iter().map(|(_, verdict)| verdict).collect();
    (plain(full), plain(over))
}

/// `Ended 05:51:42Z, 6 min before the end of the window …`, if it is over.
pub fn over(verdict: &Verdict, seen: Option<(Wall, Wall)>) -> Option<String> {
    let over = verdict.over?;
    let (_, end) = seen?;
    let ago = duration_words(end.since(over));
    Some(format!(
        "Ended {}, {ago} before the end of the window. What to do applies if it comes back.",
        clock(over, seen)
    ))
}

/// `ongoing since 15:02:11Z`, `ongoing since 15:02:11Z or earlier`, `15:02:11Z to 15:15:16Z`, `ended 15:15:16Z`.
pub fn span_words(time: &TimeSpan, seen: Option<(Wall, Wall)>) -> String {
    let TimeSpan { from, already, until, ongoing, .. } = *time;
    let earlier = if already { " or earlier" } else { "" };
    match (from, until) {
        _ if ongoing => match from {
            Some(from) => format!("ongoing since {}{earlier}", clock(from, seen)),
            None => "ongoing".to_owned(),
        },
        // Lines of one event.
        (Some(from), Some(until)) if until.since(from) < Duration::from_secs(1) => format!("at {}", clock(until, seen)),
        (Some(from), Some(until)) => format!("{}{earlier} to {}", clock(from, seen), clock(until, seen)),
        (_, Some(until)) => format!("ended {}", clock(until, seen)),
        (_, None) => "over".to_owned(),
    }
}

/// `15:15:16Z`, with the date unless it is that of the window's end.
fn clock(at: Wall, seen: Option<(Wall, Wall)>) -> String {
    let text = at.to_string();
    let text = text.split_once('.').map_or(text.clone(), |(seconds, _)| format!("{seconds}Z"));
    match (text.split_once('T'), seen) {
        (Some((_, time)), Some((_, end))) if end.midnight() == at.midnight() => time.to_owned(),
        _ => text,
    }
}

/// The moments of a verdict, unless all were seen at once: then they add nothing to the chain.
pub fn timeline(verdict: &Verdict) -> Vec<Moment> {
    const APART: Duration = Duration::from_secs(1);
    let (already, mut later): (Vec<&Moment>, Vec<&Moment>) = verdict.timeline.iter().partition(|moment| moment.already);
    let all = &verdict.timeline;
    let apart = all.last().zip(all.first()).is_some_and(|(last, first)| last.at.since(first.at) >= APART);
    if !apart || later.is_empty() {
        return Vec::new();
    }
    // Nobody saw which of them came first.
    let merged = already.first().map(|first| {
        let whats: Vec<&str> = already.iter().map(|moment| moment.what.as_str()).collect();
        let what = format!("already there when watching began: {}", whats.join("; "));
        Moment { what, already: false, ..(*first).clone() }
    });
    let mut moments: Vec<Moment> = later.drain(..).cloned().chain(merged).collect();
    moments.order_by_key(|moment| moment.at);
    moments
}

/// Where people look first, sometimes for weeks, when a node is slow.
pub const DEAD_ENDS: &[(Code, &str)] = &[
    (Code::HugePages, "huge pages"),
    (Code::PageFaults, "page faults, the allocator"),
    (Code::Affinity, "CPU affinity"),
    (Code::MemoryReclaim, "memory pressure"),
    (Code::CpuThrottled, "CPU quotas"),
    (Code::CpuSteal, "CPU steal by the hypervisor"),
    (Code::CpuContention, "too few cores"),
];

/// The dead ends that were ruled out, with their names, and the rest.
pub fn ruled_out(diagnosis: &Diagnosis) -> (Vec<(&'static str, &RuledOut)>, Vec<&RuledOut>) {
    let of = |code: Code| diagnosis.ruled_out.iter().find(|ruled_out| ruled_out.code == code);
    let dead_ends = DEAD_ENDS.iter().filter_map(|(code, name)| Some((*name, of(*code)?))).collect();
    let is_dead_end = |code: Code| DEAD_ENDS.iter().any(|(dead_end, _)| *dead_end == code);
    let rest = diagnosis.ruled_out.iter().filter(|ruled_out| !is_dead_end(ruled_out.code)).collect();
    (dead_ends, rest)
}

/// One sentence per reason: several things may be unseen for the same reason. A rule that cannot tell ends its reason with that of the
/// probe it depends on.
pub fn unseen(all: &[Unseen]) -> Vec<String> {
    let mut reasons: Vec<(&str, &str, Vec<&Unseen>)> = Vec::new();
    for unseen in all {
        let same = |why: &str| unseen.why == why || (unseen.rule().is_some() && unseen.why.ends_with(why));
        match reasons.iter_mut().find(|(why, how, _)| same(why) && *how == unseen.how_to_see) {
            Some((_, _, same)) => same.push(unseen),
            None => reasons.push((&unseen.why, &unseen.how_to_see, vec![unseen])),
        }
    }
    let sentences = reasons.into_iter().map(|(why, how_to_see, same)| {
        let mut text = format!("{}: {}.", things(&same), why.trim_end_matches('.'));
        if !how_to_see.is_empty() {
            text.push_str(&format!(" To see it: {}.", how_to_see.trim_end_matches('.')));
        }
        text
    });
    sentences.collect()
}

/// `which containers restart; whether there is unit-churn or agent-unused`
fn things(all: &[&Unseen]) -> String {
    let (rules, probes): (Vec<&Unseen>, Vec<&Unseen>) = all.iter().partition(|unseen| unseen.rule().is_some());
    let codes: Vec<&str> = rules.iter().map(|unseen| unseen.probe.as_str()).collect();
    let mut told: Vec<String> = probes.iter().map(|unseen| unseen.what.clone()).collect();
    match codes.split_last() {
        Some((last, [])) => told.push(format!("whether there is {last}")),
        Some((last, first)) => told.push(format!("whether there is {} or {last}", first.join(", "))),
        None => {}
    }
    told.join("; ")
}

/// Adds a full stop if there is none.
pub fn sentence(text: &str) -> String {
    let mut out = text.trim().to_owned();
    if !out.is_empty() && !out.ends_with(['.', '!', '?', '…']) {
        out.push('.');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_given_once() {
        let unseen_one = |probe: &str, what: &str, why: &str| Unseen {
            about: None,
            probe: probe.to_owned(),
            what: what.to_owned(),
            why: why.to_owned(),
            how_to_see: "as root".to_owned(),
        };
        let all = [
            unseen_one("unit-churn", "∎", "no bus"),
            unseen_one("kernel-log", "the log", "not allowed."),
            unseen_one("units", "units", "no bus"),
            unseen_one("unit-drift", "∎", "no bus"),
            unseen_one("oom-kill", "∎", "watched only 5 s; the log was not read: not allowed."),
        ];
        assert_eq!(
            unseen(&all),
            [
                "units; whether there is unit-churn or unit-drift: no bus. To see it: as root.",
                "the log; whether there is oom-kill: not allowed. To see it: as root."
            ]
        );
    }

    const END: Wall = Wall(1_700_000_005_000_000_000);

    fn ended(from: u64, until: u64) -> TimeSpan {
        let at = |before: u64| Some(END - Duration::from_secs(before));
        TimeSpan { from: at(from), until: at(until), ongoing: false, ..TimeSpan::default() }
    }

    #[test]
    fn times_are_told_as_people_say_them() {
        let seen = Some((END - Duration::from_secs(60), END));
        let words = |time| span_words(&time, seen);
        assert_eq!(words(TimeSpan::default()), "ongoing");
        let began = TimeSpan { from: Some(END - Duration::from_secs(30)), ..TimeSpan::default() };
        assert_eq!(words(began), "ongoing since 22:12:55Z");
        assert_eq!(words(TimeSpan { already: true, ..began }), "ongoing since 22:12:55Z or earlier");
        assert_eq!(words(ended(60, 20)), "22:12:25Z to 22:13:05Z");
        assert_eq!(words(ended(20, 20)), "at 22:13:05Z");
        assert_eq!(words(TimeSpan { from: None, ..ended(20, 20) }), "ended 22:13:05Z");
        assert_eq!(words(ended(90_000, 90_000)), "at 2023-11-13T21:13:25Z", "another day");
    }

    #[test]
    fn what_goes_on_is_told_in_full_and_what_is_over_is_listed() {
        let verdict =
            |time| Verdict { time, ..crate::output::test_diagnosis::the_incident().conclusion.verdicts.remove(0) };
        let (goes_on, over) = (verdict(TimeSpan::default()), verdict(ended(60, 20)));
        let numbers = |verdicts: &[Verdict], is_incident, verbose| {
            let (full, listed) = by_time(verdicts, is_incident, verbose);
            (full.len(), listed.len())
        };
        let mixed = [goes_on.clone(), over.clone(), over.clone()];
        assert_eq!(numbers(&mixed, false, false), (1, 2));
        assert_eq!(numbers(&mixed, false, true), (3, 0), "-v tells all");
        assert_eq!(numbers(&[over.clone(), goes_on], true, false), (2, 0), "an incident begins with its own");
        let past = [over.clone(), over.clone(), over];
        assert_eq!(numbers(&past, false, false), (2, 1), "somebody wants to know what happened");
    }

    #[test]
    fn every_dead_end_has_a_rule() {
        for (code, _) in DEAD_ENDS {
            assert!(coroner_diagnosis::rules::ALL.iter().any(|rule| rule.code == *code), "{code}");
        }
    }
}
