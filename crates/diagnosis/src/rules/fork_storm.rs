//! Does somebody starve because another starts processes all the time?
//!
//! Each short-lived process takes its fair turn, and a new one has not yet used any of its share. A parent that always has some running takes
//! a core by their number, and no single process is ever seen at it for long.

use crate::case::Case;
use crate::code::Code;
use crate::cores::words::span;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::waits::cited::{
    checked, confined_text, cores_text, facts, got, losses_where, takers_text, task, ties, victim_names, victims_text,
};
use crate::waits::losses::{Kind, Loss};
use crate::words::count;

pub fn examine(case: &Case<'_>) -> Answer {
    match losses_where(case, |loss| loss.kind == Kind::Forks) {
        Err(cannot_tell) => cannot_tell,
        Ok(losses) if losses.is_empty() => {
            checked(case, "none lost half of the CPU time it asked for to short-lived processes")
        }
        Ok(losses) => Answer::Findings(losses.into_iter().map(|loss| finding(case, loss)).collect()),
    }
}

pub fn finding(case: &Case<'_>, loss: &Loss) -> Finding {
    let parent = loss.takers.first().map(|taker| task(&taker.actor, &taker.party));
    let ended = loss.takers.iter().map(|taker| taker.ended).fold(0, u64::saturating_add);
    let mut evidence = facts(loss);
    if let Some(parent) = &parent {
        evidence.push(Fact::new(FactKey::ShortLived, ended, "wait ledger").of(parent.name()));
    }
    let takers = takers_text(case, loss);
    let name = parent.as_ref().map_or_else(|| "a process that is gone".to_owned(), |parent| parent.name());
    Finding {
        code: Code::ForkStorm,
        severity: Severity::Warning,
        subject: parent.map_or_else(|| Subject::new(SubjectKind::Node, "cpu"), Subject::process),
        title: format!(
            "{} got {} of the CPU time it asked for: {takers} had {}",
            victim_names(loss),
            got(loss),
            cores_text(loss)
        ),
        detail: format!(
            "{} (for {}). Meanwhile {} short-lived processes that {name} started ended. Each takes its fair turn; together they have the core.{}",
            victims_text(case, loss),
            span(loss.when.length().as_nanos() as u64),
            count(ended),
            confined_text(loss)
        ),
        evidence,
        remedy: format!(
            "Find out why {name} starts so many processes, and stop or slow it; a loop in a script or a failing health check is the usual cause. \
             Until then give it a low weight (CPUWeight=, nice) or cores of its own."
        ),
        ties: ties(case, loss),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{fact, fine, one};
    use crate::waits::test_ledger::Book;
    use coroner_evidence::Evidence;

    fn storm(ran_ms: u64, waited_ms: u64, other_core_busy: f64) -> Evidence {
        let mut book = Book::new(2, 5);
        let service = book.process(100, "svc").pinned(1);
        let storm = book.short_lived(99, "storm", "sh");
        book.each_second(&service, ran_ms, waited_ms).each_second(&storm, 900, 900);
        book.ended(&storm, 80).charge(&service, &storm, 1, waited_ms);
        book.evidence(other_core_busy)
    }

    #[test]
    fn the_one_who_forks_is_named() {
        let f = one(examine(&Case::of(&storm(70, 440, 0.1))));
        assert_eq!(f.subject.name, "storm[99]");
        assert!(f.title.starts_with("svc[100] got 14 % of the CPU time it asked for"), "{}", f.title);
        assert!(f.title.contains("short-lived processes (sh) of storm[99] had core 1"), "{}", f.title);
        assert!(f.detail.contains("may run on core 1 only; the others had room"), "{}", f.detail);
        assert_eq!(fact(&f, FactKey::ShortLived), 400);
        assert_eq!((f.ties.victims[0].pid, f.ties.culprits[0].pid, f.ties.cores.clone()), (100, 99, vec![1]));
    }

    /// Eight equals that take turns have more together than the storm, but each has little. A small storm among them is not the cause.
    #[test]
    fn a_storm_among_many_who_take_turns_is_named_if_it_has_a_third() {
        let among = |storm_ms: u64, each_ms: u64| {
            let mut book = Book::new(2, 5);
            let service = book.process(100, "svc");
            let storm = book.short_lived(99, "storm", "sh");
            book.each_second(&service, 70, 900).each_second(&storm, 900, 900);
            book.ended(&storm, 80).charge(&service, &storm, 1, storm_ms);
            for equal in 0..8 {
                let equal = book.process(200 + equal, "equal");
                book.each_second(&equal, 70, 10).charge(&service, &equal, 1, each_ms);
            }
            book.evidence(1.0)
        };
        assert_eq!(one(examine(&Case::of(&among(420, 60)))).subject.name, "storm[99]");
        let small = among(180, 90);
        fine(examine(&Case::of(&small)));
        let turns = one(super::super::cpu_starved::examine(&Case::of(&small)));
        assert_eq!(turns.ties.culprits[0].pid, 99, "but it took most: {}", turns.title);
    }

    #[test]
    fn a_service_that_gets_most_of_what_it_asks_for_is_fine() {
        fine(examine(&Case::of(&storm(300, 150, 0.1))));
    }

    /// On a full node half is a fair turn, a seventh is not.
    #[test]
    fn on_a_full_node_only_a_large_loss_counts() {
        fine(examine(&Case::of(&storm(300, 300, 1.0))));
        one(examine(&Case::of(&storm(70, 440, 1.0))));
    }
}
