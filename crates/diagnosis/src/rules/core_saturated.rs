//! Is one core full, and does that hurt, while the node looks healthy?
//!
//! The average hides it: one core of 96 at 100 % is 1 % of the node. A core filled by one user thread is just at work. It is a
//! problem if the core is stuck in the kernel (such code often cannot be preempted, and interrupts are served late) or if
//! another thread needs the core and cannot get it.

use crate::case::Case;
use crate::code::Code;
use crate::cores::cited::{
    culprit_steps, how_to_move, owner_facts, shares_text, steer_packets, victim_fact, victims_text, why_no_room,
    with_room, with_room_for_thread,
};
use crate::cores::owners::{OwnerKind, Ownership, Sharer};
use crate::cores::timeline::{Saturation, Shares};
use crate::cores::waits::{Harm, Victim};
use crate::cores::words::{listed, percent, percent_value, span};
use crate::cores::{Cores, FullCore};
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::ties::{self, Task, Ties};
use crate::words::plural;
use coroner_evidence::Order;
use std::collections::BTreeSet;

/// More cores than this are counted, not listed: nobody reads fifty findings.
const MOST_FINDINGS: usize = 8;

/// With an average below this, nobody suspects a full core.
const HIDING: f64 = 0.6;

/// Sharers of a core that are named; the rest are counted.
const MOST_SHARERS: usize = 4;

pub fn examine(case: &Case<'_>) -> Answer {
    let cores = case.cores();
    if !cores.timeline.lasts() {
        return cores.not_watched();
    }
    let mut full = cores.full_by_owner(Saturation::Kernel, |f| f.others_have_room() || f.is_unfair());
    // Room elsewhere does not help pinned threads. But spread evenly over all cores they make a full node, not a crowded core.
    let shared = cores.full(Saturation::Busy, FullCore::is_shared_by_pinned).len();
    let unevenly = shared < cores.timeline.lines.len();
    let crowded = |f: &FullCore| unevenly && f.is_crowded_by_pinning();
    let hurts = |f: &FullCore| !f.victims.is_empty() && (f.others_have_room() || f.is_unfair() || crowded(f));
    let busy = cores.full_by_owner(Saturation::Busy, hurts);
    let told = full.len();
    for core in busy {
        if !full[..told].iter().any(|kernel| kernel.overlaps(&core)) {
            full.push(core);
        }
    }

    if full.is_empty() {
        // No thread waits yet, but the next one will.
        full = cores.full(Saturation::Busy, |f| {
            f.ownership.owner().and_then(|o| o.who()).is_some_and(|who| who.class.is_real_time() && !who.kernel)
        });
    }
    if full.is_empty() {
        return nothing_found(cores);
    }
    // Cores that serve a NIC first, then the longest full.
    full.order_by_key(|f| (cores.queues(f.core).is_empty(), std::cmp::Reverse(f.total_ns), f.core));
    let (told, rest) = full.split_at(full.len().min(MOST_FINDINGS));
    let is_told = |core: &u32| told.iter().any(|f| f.core == *core);
    let more = rest.iter().map(|f| f.core).filter(|core| !is_told(core)).collect::<BTreeSet<u32>>().len();
    let mut findings: Vec<Finding> = told.iter().map(|f| finding(cores, f)).collect();
    if more > 0
        && let Some(last) = findings.last_mut()
    {
        last.detail.push_str(&format!(" {} full, too.", plural(more as u64, "more core was", "more cores were")));
    }
    Answer::Findings(findings)
}

fn nothing_found(cores: &Cores) -> Answer {
    let busy = cores.full(Saturation::Busy, FullCore::others_have_room);
    if let Some(longest) = busy.iter().max_by_key(|f| f.total_ns) {
        let full = format!(
            "core {} was {} busy for {}",
            longest.core,
            percent(longest.stretch.shares.busy()),
            span(longest.total_ns)
        );
        if let Some((because, how_to_see)) = cores.waits_hidden() {
            return Answer::CannotTell {
                because: format!("{full}, but whether threads waited for it is unknown: {because}"),
                how_to_see,
            };
        }
        let owner = longest.ownership.owner().map_or_else(String::new, |o| format!("{}, ", o.name()));
        let user = percent(longest.stretch.shares.user);
        return Answer::Fine(format!("{full} ({owner}{user} in user code), but no thread waited long for it"));
    }
    let (Some((core, kernel)), Some((busiest, busy))) =
        (cores.timeline.worst(Shares::kernel), cores.timeline.worst(Shares::busy))
    else {
        return Answer::Fine("no core was busy".to_owned());
    };
    let numbers = format!(
        "over 1 s, kernel time peaked at {} (core {core}) and busy time at {} (core {busiest})",
        percent(kernel),
        percent(busy)
    );
    let full = cores.full(Saturation::Busy, |_| true);
    if full.is_empty() {
        return Answer::Fine(numbers);
    }
    if let Some((because, how_to_see)) = cores.waits_hidden() {
        return Answer::CannotTell {
            because: format!(
                "{} full, but whether threads were kept off is unknown: {because}",
                plural(full.len() as u64, "core was", "cores were")
            ),
            how_to_see,
        };
    }
    // On a full node threads take turns, unless one of them kept the others off, which was ruled out above.
    let waited = full.iter().flat_map(|f| f.victims.iter().map(move |v| (f, v))).max_by_key(|(_, v)| v.longest_ns);
    let nobody = match waited {
        None => "no thread was kept off".to_owned(),
        Some((f, victim)) => {
            let behind = match &f.ownership {
                Ownership::Owned(owner) => format!("mostly behind {}", owner.name()),
                Ownership::Shared(why) | Ownership::Unknown(why) => format!("and no owner can be named: {why}"),
            };
            format!(
                "{} waited at least {} in one go for core {}, {behind}",
                victim.who.name(),
                span(victim.longest_ns),
                f.core
            )
        }
    };
    Answer::Fine(format!("{numbers}; cores were full only while the whole node was, and {nobody}"))
}

fn finding(cores: &Cores, full: &FullCore) -> Finding {
    let shares = &full.stretch.shares;
    let queues = cores.queue_names(full.core);
    let kernel = full.stretch.saturation == Saturation::Kernel;
    let (core, long) = (full.core, span(full.stretch.window.length().as_nanos() as u64));

    let mut title = if kernel {
        format!("core {core} spent {} of {long} in the kernel", percent(shares.kernel()))
    } else {
        format!("core {core} was {} busy for {long}", percent(shares.busy()))
    };
    let sharers = sharers(cores, full);
    if let Some(sharers) = &sharers {
        title.push_str(&format!(", {sharers}"));
    } else if let Some(owner) = full.ownership.owner() {
        title.push_str(&format!(", owned by {}", owner.name()));
    }
    if !full.victims.is_empty() && sharers.is_none() {
        title.push_str(&format!("; {} waited for the core", listed(&victim_names(&full.victims), 1)));
    }

    let when = cores.when(full.stretch.window.from);
    let mut detail = format!("Core {core}{when}: {}.", shares_text(shares));
    match &full.ownership {
        _ if sharers.is_some() => {
            detail.push_str(&format!(" It was {}; none of them may run elsewhere.", sharers.unwrap_or_default()));
        }
        Ownership::Owned(owner) => {
            detail.push_str(&format!(" {} took {} of its busy time", owner.described(), percent(owner.share)));
            if let Some(who) = owner.who() {
                detail.push_str(&format!(", running as {}", who.scheduling()));
            }
            detail.push('.');
        }
        Ownership::Shared(why) | Ownership::Unknown(why) => {
            detail.push_str(&format!(" No owner can be named: {why}."));
        }
    }
    if !full.victims.is_empty() {
        detail.push_str(&format!(" Waiting for it: {}.", victims_text(&full.victims)));
    }
    match full.others {
        Some(others) if full.others_have_room() => detail.push_str(&format!(
            " The node averaged {} busy{}, the other cores {}.",
            percent(full.node.busy()),
            if full.node.busy() < HIDING { " (which hides this core)" } else { "" },
            percent(others.busy())
        )),
        Some(others) => detail.push_str(&format!(" The other cores averaged {} busy.", percent(others.busy()))),
        None => detail.push_str(" The node has no other core."),
    }
    if !queues.is_empty() {
        detail.push_str(&format!(" No other core serves {}.", listed(&queues, 4)));
    }
    if full.windows.len() > 1 {
        detail.push_str(&format!(" This happened {} times, {} in total.", full.windows.len(), span(full.total_ns)));
    }
    detail.push_str(&full.more_owners_text());

    let stat = "/proc/stat";
    let mut evidence = vec![
        Fact::new(FactKey::Core, full.core, stat),
        Fact::new(FactKey::Busy, percent_value(shares.busy()), stat),
        Fact::new(FactKey::KernelShare, percent_value(shares.kernel()), stat),
        Fact::new(FactKey::Lasted, full.stretch.window.length().as_millis() as u64, stat),
        Fact::new(FactKey::BusyOfAllCores, percent_value(full.node.busy()), stat),
    ];
    if let Some(others) = full.others {
        evidence.push(Fact::new(FactKey::BusyOfOtherCores, percent_value(others.busy()), stat));
    }
    if full.is_shared_by_pinned() {
        evidence.extend(full.pinned.iter().take(MOST_SHARERS).map(|s| {
            let who = cores.threads.lines[s.line].who();
            let source = format!("/proc/{}/task/{}/schedstat", who.pid.unwrap_or(who.tid), who.tid);
            Fact::new(FactKey::PinnedShare, percent_value(s.share), source).of(who.name())
        }));
    } else {
        evidence.extend(owner_facts(full));
    }
    evidence.extend(full.victims.iter().map(victim_fact));
    if !queues.is_empty() {
        evidence.push(Fact::new(FactKey::Serves, queues.join(", "), "NIC queue map"));
    }

    Finding {
        code: Code::CoreSaturated,
        ties: Ties {
            victims: full.victims.iter().map(|victim| Task::from(&victim.who)).collect(),
            queues: cores.queues(full.core).iter().map(|(nic, queue)| ties::queue(nic, queue)).collect(),
            since: Some(full.since()),
            until: Some(full.until()),
            ..Ties::of_core(full.core, full.stretch.window, &full.ownership)
        },
        severity: severity(cores, full, !queues.is_empty()),
        subject: Subject::new(SubjectKind::Core, full.core.to_string()),
        title,
        detail,
        evidence,
        remedy: remedy(cores, full),
    }
}

/// `shared by 2 threads pinned to it: a[1] 50 %, b[2] 50 %`
fn sharers(cores: &Cores, full: &FullCore) -> Option<String> {
    let named = |s: &Sharer| format!("{} {}", cores.threads.lines[s.line].who().name(), percent(s.share));
    let names: Vec<String> = full.pinned.iter().map(named).collect();
    full.is_shared_by_pinned()
        .then(|| format!("shared by {} threads pinned to it: {}", names.len(), listed(&names, MOST_SHARERS)))
}

fn severity(cores: &Cores, full: &FullCore, serves_nic: bool) -> Severity {
    let kernel = full.stretch.saturation == Saturation::Kernel;
    let starved = full.victims.iter().any(|v| v.harm == Harm::Starved);
    // Our own load is no problem of the node; it ends when we are done.
    if full.ownership.owner().and_then(|owner| owner.who()).is_some_and(|who| who.observer) {
        return Severity::Info;
    }
    // Threads that take turns in the kernel are not stuck.
    let takes_turns = matches!(full.ownership, Ownership::Shared(_)) && full.victims.is_empty();
    match (kernel && !takes_turns && !cores.is_free(full) || starved, serves_nic) {
        // nic-core-starved reports what the NIC loses.
        (true, true) if !full.victims.is_empty() => Severity::Critical,
        (true, _) => Severity::Warning,
        // User threads that take turns do not starve a NIC: softirqs preempt them.
        (false, _) if !full.victims.is_empty() => Severity::Warning,
        (false, _) => Severity::Info,
    }
}

fn victim_names(victims: &[Victim]) -> Vec<String> {
    victims.iter().map(|v| v.who.name()).collect()
}

fn remedy(cores: &Cores, full: &FullCore) -> String {
    let core = full.core;
    let mut steps = Vec::new();
    let window = full.stretch.window;
    match full.ownership.owner().map(|o| (&o.kind, o.who())) {
        _ if full.is_shared_by_pinned() => match with_room_for_thread(cores, core, window) {
            Some(others) => steps.push(format!(
                "Move all but one of them to a core with room ({others}): {}.",
                how_to_move(cores.evidence, cores.threads.lines[full.pinned[1].line].key.tid, &others)
            )),
            None => steps.push(format!("Run fewer threads: {}.", why_no_room(cores, core, window))),
        },
        Some((OwnerKind::Softirq(_) | OwnerKind::Interrupt(_), _)) => {
            steps.push(format!(
                "Find the device: `grep -E 'CPU|:' /proc/interrupts`; `perf record -C {core} -g -- sleep 5` shows the code."
            ));
            steps.extend(steer_packets(cores, core, window));
        }
        Some((_, Some(who))) if full.stretch.saturation == Saturation::Kernel && !who.class.is_real_time() => steps.push(format!(
            "See what {} is doing in the kernel: `perf record -C {core} -g -- sleep 5` and `perf report`, or `cat /proc/{}/stack`.",
            who.name(),
            who.tid
        )),
        Some((_, Some(who))) => steps.extend(culprit_steps(cores, core, window, who)),
        _ => steps.push(format!("Find out what runs there: `perf record -C {core} -g -- sleep 5` and `perf report`.")),
    }
    if full.victims.iter().any(|v| v.harm == Harm::Crowded) {
        steps.push(format!(
            "Several busy threads are pinned to core {core}: fix their affinity (taskset, OMP_PLACES, cpuset)."
        ));
    }
    if let Some((nic, queue)) = cores.queues(core).first() {
        match (queue.irq.filter(|_| queue.napi_tid.is_none()), with_room(cores, core, window)) {
            (Some(irq), Some(others)) => steps.push(format!(
                "Meanwhile, let another core serve {} {}: `echo {others} > /proc/irq/{irq}/smp_affinity_list` (irqbalance may move it back).",
                nic.display_name(),
                queue.label(),
            )),
            (Some(_), None) => steps.push(format!(
                "Only this core serves {} {}, and no other core had room to.",
                nic.display_name(),
                queue.label()
            )),
            (None, _) => steps.push(format!("Only this core serves {} {}.", nic.display_name(), queue.label())),
        }
    }
    steps.join(" ")
}

#[cfg(test)]
mod tests;
