//! Did somebody get far less CPU than it asked for, and who had it?
//!
//! This rule reads the wait ledger from the victim's side: a real-time or deadline thread that took the core, others pinned to the same core,
//! or more threads than cores. Weights and fork storms have rules of their own. Where another finding names the same culprit on the same core
//! (core-monopolised, affinity, cpu-contention), a link joins the two.

use crate::case::Case;
use crate::code::Code;
use crate::cores::cited::{how_to_move, with_room};
use crate::cores::words::span;
use crate::finding::{Answer, Finding, Severity, Subject};
use crate::waits::cited::{
    checked, confined_text, cores_text, facts, got, losses_where, scheduling, takers_text, task, ties, victim_names,
    victims_text,
};
use crate::waits::losses::{Kind, Loss};

pub fn examine(case: &Case<'_>) -> Answer {
    match losses_where(case, |loss| matches!(loss.kind, Kind::Class | Kind::Crowd | Kind::Turns)) {
        Err(cannot_tell) => cannot_tell,
        Ok(losses) if losses.is_empty() => checked(
            case,
            "none lost a quarter of the CPU time it asked for to a higher class, nor half of it on a crowded core, nor two thirds on full cores",
        ),
        Ok(losses) => Answer::Findings(losses.into_iter().map(|loss| finding(case, loss)).collect()),
    }
}

pub fn finding(case: &Case<'_>, loss: &Loss) -> Finding {
    let takers = takers_text(case, loss);
    let why = match (loss.kind, loss.takers.first()) {
        (Kind::Class, Some(taker)) => format!(
            "{takers} runs as {}, which comes before ordinary threads and keeps the core for as long as it wants.",
            scheduling(&taker.party)
        ),
        (Kind::Crowd, _) => format!("{takers} ran there meanwhile. They take turns.{}", confined_text(loss)),
        _ => format!("{takers} ran there meanwhile. They take turns, and there are more of them than cores."),
    };
    Finding {
        code: Code::CpuStarved,
        severity: Severity::Warning,
        subject: loss.victims.first().map_or_else(
            || Subject::new(crate::finding::SubjectKind::Node, "cpu"),
            |v| Subject::process(task(&v.actor, &v.party)),
        ),
        title: format!(
            "{} got {} of the CPU time it asked for: {takers} had {}",
            victim_names(loss),
            got(loss),
            cores_text(loss)
        ),
        detail: format!("{} (for {}). {why}", victims_text(case, loss), span(loss.when.length().as_nanos() as u64)),
        evidence: facts(loss),
        remedy: remedy(case, loss),
        ties: ties(case, loss),
    }
}

fn remedy(case: &Case<'_>, loss: &Loss) -> String {
    // A process that changes its class right after its start was short-lived for its first second: it can be named by its own pid later.
    let alive = loss.takers.iter().find(|taker| taker.actor.pid.is_some());
    let (Some(victim), Some(taker)) = (loss.victims.first(), alive.or(loss.takers.first())) else {
        return String::new();
    };
    let (starved, culprit) = (task(&victim.actor, &victim.party), task(&taker.actor, &taker.party));
    let tid = victim.tids.first().copied().unwrap_or(starved.pid);
    let room = loss.cores.first().and_then(|core| with_room(case.cores(), *core, loss.when));
    match loss.kind {
        _ if taker.party.kernel => format!(
            "{0} is a kernel thread: do not change its scheduling class. See what it is doing: `cat /proc/{1}/stack`.",
            culprit.name(),
            culprit.pid
        ),
        Kind::Class if taker.actor.pid.is_none() => format!(
            "{} starts short-lived processes as {}: start them as SCHED_OTHER.",
            culprit.name(),
            scheduling(&taker.party)
        ),
        Kind::Class => format!(
            "Drop {} to SCHED_OTHER: `chrt -o -a -p 0 {}`. It then takes turns with the others. Change it where it is started, or it comes back.",
            culprit.name(),
            culprit.pid
        ),
        Kind::Crowd => match room {
            Some(room) => format!(
                "Move {} to a core with room: {}. Change it where its cores are set, or it comes back.",
                starved.name(),
                how_to_move(case.evidence, tid, &room)
            ),
            None => format!(
                "Run less on {}: every other core was at least half busy. Or let {} use all cores.",
                cores_text(loss),
                starved.name()
            ),
        },
        _ => format!(
            "Run less beside it, or give it more weight (CPUWeight=, CPU requests) or {} less (`renice -n 10 -p {}`).",
            culprit.name(),
            culprit.pid
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::FactKey;
    use crate::rules::test_evidence::{cannot_tell, fact_of, fine, one};
    use crate::waits::test_ledger::{Book, Seat};
    use coroner_evidence::Evidence;
    use coroner_evidence::tasks::SchedulingClass;

    /// A job that runs and waits this many ms of each second while somebody else has core 1.
    fn beside(
        other: impl FnOnce(&mut Book) -> Seat,
        job: impl FnOnce(Seat) -> Seat,
        ran: u64,
        waited: u64,
        busy: f64,
    ) -> Evidence {
        let mut book = Book::new(2, 5);
        let other = other(&mut book);
        let job = job(book.process(100, "job"));
        book.each_second(&job, ran, waited).each_second(&other, 900, 50).charge(&job, &other, 1, waited);
        book.evidence(busy)
    }

    fn of(evidence: &Evidence) -> Answer {
        examine(&Case::of(evidence))
    }

    #[test]
    fn a_deadline_thread_that_takes_half_is_named() {
        let deadline = |book: &mut Book| book.process(7, "dl").class(SchedulingClass::Deadline, 0);
        let f = one(of(&beside(deadline, |job| job, 450, 450, 0.5)));
        assert_eq!(f.title, "job[100] got 50 % of the CPU time it asked for: dl[7] had core 1");
        assert!(f.detail.contains("runs as SCHED_DEADLINE"), "{}", f.detail);
        assert_eq!((f.ties.culprits[0].pid, f.ties.victims[0].pid), (7, 100));
        assert_eq!(fact_of(&f, FactKey::CameFirst, "dl[7]"), "SCHED_DEADLINE");
        assert!(f.remedy.contains("`chrt -o -a -p 0 7`"), "{}", f.remedy);
        // Somebody who asked to run last still does not want to be starved by a real-time thread.
        one(of(&beside(deadline, |job| job.nice(19), 450, 450, 0.5)));
    }

    #[test]
    fn short_lived_processes_are_not_mended_by_changing_their_parent() {
        let child = |book: &mut Book| book.short_lived(99, "cron", "burn").class(SchedulingClass::Fifo, 50);
        let f = one(of(&beside(child, |job| job, 300, 600, 0.5)));
        assert!(f.remedy.starts_with("cron[99] starts short-lived processes as SCHED_FIFO 50"), "{}", f.remedy);
    }

    #[test]
    fn two_on_one_core_lose_half_if_another_has_room() {
        let hog = |book: &mut Book| book.process(7, "hog").pinned(1);
        let f = one(of(&beside(hog, |job| job.pinned(1), 495, 500, 0.1)));
        assert!(f.detail.contains("job[100] may run on core 1 only; the others had room."), "{}", f.detail);
        assert!(f.remedy.contains("`taskset -pc 0 100`"), "{}", f.remedy);
        fine(of(&beside(hog, |job| job.pinned(1), 495, 500, 1.0)));
        fine(of(&beside(hog, |job| job.pinned(1), 600, 390, 0.1)));
    }

    #[test]
    fn kernel_threads_keep_their_class() {
        let irq = |book: &mut Book| {
            let mut irq = book.process(7, "irq/45-nvme0q1").class(SchedulingClass::Fifo, 50);
            irq.party.kernel = true;
            irq
        };
        let f = one(of(&beside(irq, |job| job, 300, 600, 0.5)));
        assert!(f.remedy.contains("do not change") && !f.remedy.contains("chrt"), "{}", f.remedy);
    }

    #[test]
    fn on_full_cores_a_third_is_a_shortage() {
        let hog = |book: &mut Book| book.process(7, "hog");
        one(of(&beside(hog, |job| job, 300, 690, 1.0)));
        fine(of(&beside(hog, |job| job, 400, 590, 1.0)));
        fine(of(&beside(hog, |job| job.nice(10), 100, 890, 1.0)));
        // A second of it is no shortage.
        let mut evidence = beside(hog, |job| job, 300, 690, 1.0);
        for ledger in &mut evidence.waits[2..] {
            ledger.accounts.clear();
        }
        fine(of(&evidence));
    }

    #[test]
    fn who_waits_for_itself_lost_nothing() {
        let itself = |book: &mut Book| book.process(100, "job");
        fine(of(&beside(itself, |job| job, 100, 890, 1.0)));
        let child = |book: &mut Book| book.short_lived(100, "job", "cc1");
        fine(of(&beside(child, |job| job, 100, 890, 1.0)));
    }

    #[test]
    fn time_of_interrupts_is_nobodys_fault() {
        let hog = |book: &mut Book| book.process(7, "hog").pinned(1);
        let mut evidence = beside(hog, |job| job.pinned(1), 495, 500, 0.1);
        for look in &mut evidence.core_times {
            let ticks = &mut look.cores[1];
            (ticks.softirq, ticks.user) = (ticks.user * 9 / 10, ticks.user - ticks.user * 9 / 10);
        }
        fine(of(&evidence));
    }

    #[test]
    fn what_one_taker_did_to_several_is_one_finding() {
        let mut book = Book::new(2, 5);
        let hog = book.process(7, "hog").class(SchedulingClass::Fifo, 50).pinned(1);
        book.each_second(&hog, 950, 0);
        for pid in [100, 101] {
            let job = book.process(pid, "job").pinned(1);
            book.each_second(&job, 20, 900).charge(&job, &hog, 1, 900);
        }
        let f = one(of(&book.evidence(0.1)));
        assert_eq!(f.title, "job[100] (and 1 other) got 2 % of the CPU time it asked for: hog[7] had core 1");
        assert_eq!(f.ties.victims.len(), 2);
    }

    #[test]
    fn without_a_ledger_nothing_is_ruled_out() {
        cannot_tell(of(&Evidence::default()));
    }
}
