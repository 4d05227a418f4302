//! A thread that keeps others off a core: move it, or lower its priority; or move those it keeps off.

use super::{Case, Draft, Problem, Targets};
use crate::facts::Facts;
use crate::measure::Measure;
use crate::plan::{Risk, Step};
use crate::steps::threads::{ThreadRef, cores_words};
use crate::steps::{Action, LowerPriority, MoveInterrupt, MoveThread, StepKind};
use coroner_diagnosis::cores::Cores;
use coroner_diagnosis::cores::cited::{NO_ROOM, with_room, with_room_for_thread};
use coroner_diagnosis::cores::threads::{is_ksoftirqd_of, is_napi};
use coroner_diagnosis::ties::Task;
use coroner_diagnosis::verdict::chain::KEEPS_OTHERS_OFF;
use coroner_diagnosis::{Code, Finding};
use coroner_evidence::tasks::SchedulingClass;
use coroner_evidence::{CoreSet, Evidence, Nic, Thread, Window};

/// The findings that name the owner of a core.
const CODES: [Code; 4] = [Code::CoreMonopolised, Code::NicCoreStarved, Code::MemcgWalk, Code::CoreSaturated];

fn all<'p, 'c>(problem: &'p Problem<'c>) -> impl Iterator<Item = &'c Finding> + 'p {
    std::iter::once(problem.root).chain(problem.chain.iter().copied()).filter(|finding| CODES.contains(&finding.code))
}

pub fn targets(case: &Case<'_>, problem: &Problem<'_>, targets: &mut Targets) {
    for finding in all(problem) {
        if finding.code == Code::NicCoreStarved {
            let nics = case.evidence.nics.iter().filter(|nic| is_about(finding, nic));
            targets.interrupts.extend(nics.flat_map(|nic| &nic.queues).filter_map(|queue| queue.irq));
        }
        targets.threads.extend(finding.ties.culprits.iter().chain(&finding.ties.victims).map(|task| task.tid));
    }
}

pub fn plan(case: &Case<'_>, problem: &Problem<'_>, facts: &Facts, draft: &mut Draft) {
    // The finding that says most: who, where, and who suffers.
    let Some(finding) = KEEPS_OTHERS_OFF.iter().find_map(|code| all(problem).find(|finding| finding.code == *code))
    else {
        return;
    };
    let (Some(culprit), Some(&core)) = (finding.ties.culprits.first(), finding.ties.cores.first()) else { return };
    let cores = Cores::of(case.evidence);
    let Some(window) = cores.window() else { return };
    let starved = all(problem).find(|finding| finding.code == Code::NicCoreStarved);
    let scene = Scene { case, facts, cores: &cores, window, core, starved, finding };
    scene.culprit(culprit, draft);
    scene.poller(draft);
    scene.interrupts(draft);
}

struct Scene<'s> {
    case: &'s Case<'s>,
    facts: &'s Facts,
    cores: &'s Cores<'s>,
    window: Window,
    core: u32,
    /// The finding about the NIC that suffers.
    starved: Option<&'s Finding>,
    finding: &'s Finding,
}

impl Scene<'_> {
    fn culprit(&self, culprit: &Task, draft: &mut Draft) {
        let name = culprit.name();
        let Some(about) = thread_of(self.case.evidence, culprit.tid) else { return };
        let process = self.case.evidence.processes.iter().rev().find(|process| process.pid == about.pid);
        if self.case.evidence.is_observer(about.pid, process.map(|process| process.started)) {
            return;
        }
        if about.kernel {
            draft.refuse(format!("move {name}"), "it is a kernel thread: the cause is its work, not where it runs");
            return;
        }
        if self.is_gone(culprit.tid) {
            draft.refuse(format!("move {name}"), "it is gone");
            return;
        }
        let thread = ThreadRef { tid: about.key.tid, started: about.key.started, comm: about.comm.clone() };
        let lower = self.lower(&thread, about);
        let moved = match self.choose(culprit.tid, with_room_for_thread(self.cores, self.core, self.window)) {
            Ok(cores) => Some(self.move_culprit(&thread, about, &cores)),
            Err(why) => {
                draft.refuse(format!("move {name} to another core"), why);
                None
            }
        };
        match (moved, lower) {
            (Some(moved), lower) => {
                draft.step(moved);
                lower.into_iter().for_each(|step| draft.alternative(step));
            }
            (None, Some(lower)) => draft.step(lower),
            (None, None) => {}
        }
    }

    fn is_gone(&self, tid: u32) -> bool {
        self.facts.threads.get(&tid).is_some_and(|about| !about.lives)
    }

    /// The cores to move to: what the user said; else those with room, in the thread's cpuset, not isolated, and on the same NUMA
    /// node if possible.
    fn choose(&self, tid: u32, room: Option<String>) -> Result<CoreSet, String> {
        let cpuset = self.facts.threads.get(&tid).and_then(|about| about.cpuset.as_ref());
        let allowed = |core: u32| cpuset.is_none_or(|cpuset| cpuset.contains(core));
        if let Some(wanted) = &self.case.wishes.cores {
            let fit = CoreSet::new(wanted.iter().filter(|core| allowed(*core) && *core != self.core));
            return match fit.is_empty() {
                false => Ok(fit),
                true => Err(format!(
                    "its cpuset allows none of the cores you named ({wanted}), or you named only the core it should leave"
                )),
            };
        }
        let room = room
            .as_deref()
            .and_then(CoreSet::parse_list)
            .ok_or_else(|| format!("{NO_ROOM} (override with --cores LIST)"))?;
        let fit = CoreSet::new(room.iter().filter(|core| allowed(*core) && !self.facts.isolated.contains(*core)));
        if fit.is_empty() {
            return Err(format!("every core with room ({room}) is isolated or outside its cpuset"));
        }
        let home = self.facts.nodes.iter().find(|node| node.contains(self.core));
        let near = CoreSet::new(fit.iter().filter(|core| home.is_some_and(|node| node.contains(*core))));
        Ok(if near.is_empty() { fit } else { near })
    }

    fn measures(&self) -> Vec<Measure> {
        let mut measures = Vec::new();
        let victims = self.starved.into_iter().chain([self.finding]).flat_map(|finding| &finding.ties.victims);
        if let Some(victim) = victims.into_iter().next() {
            measures.push(Measure::Wait { tid: victim.tid, name: victim.name(), core: self.core });
        }
        if let Some(starved) = self.starved {
            measures.extend(starved.ties.queues.first().map(|queue| Measure::Received { nic: queue.name() }));
            // Some devices lose packets without counting them: nothing to compare.
            if Measure::Drops.value(self.case.evidence).is_ok_and(|drops| drops > 0.0) {
                measures.push(Measure::Drops);
            }
        }
        if measures.is_empty() {
            measures.push(Measure::CoreBusy { core: self.core });
        }
        measures
    }

    fn move_culprit(&self, thread: &ThreadRef, about: &Thread, cores: &CoreSet) -> Step {
        let name = thread.name();
        let real_time = about.class.is_real_time();
        let mut risk_words = format!("{name} competes with what runs on {}", cores_words(cores));
        if real_time {
            risk_words.push_str("; as a real-time thread it preempts ordinary threads there");
        }
        Step {
            id: format!("move-thread:{name}"),
            kind: StepKind::MoveThread,
            title: format!("Move {name} from core {} to {}", self.core, cores_words(cores)),
            reason: format!("{}.", self.finding.title.trim_end_matches('.')),
            commands: vec![format!("taskset -pc {cores} {}", thread.tid)],
            risk: if real_time { Risk::Medium } else { Risk::Low },
            risk_words,
            reversible: true,
            undo: "its affinity is restored".to_owned(),
            dangerous: None,
            not_fixed:
                "why it needs a whole core; the move lasts until the program restarts: set its affinity in its unit, pod or code"
                    .to_owned(),
            measures: self.measures(),
            details: Vec::new(),
            action: Action::MoveThread(MoveThread { thread: thread.clone(), cores: cores.to_string() }),
        }
    }

    /// Only for a real-time thread or one with a negative nice value.
    fn lower(&self, thread: &ThreadRef, about: &Thread) -> Option<Step> {
        let name = thread.name();
        let real_time = about.class.is_real_time();
        if !real_time && (about.nice >= 0 || about.class != SchedulingClass::Other) {
            return None;
        }
        let command = match real_time {
            true => format!("chrt -o -p 0 {}", thread.tid),
            false => format!("renice -n 0 -p {}", thread.tid),
        };
        Some(Step {
            id: format!("lower-priority:{name}"),
            kind: StepKind::LowerPriority,
            title: match real_time {
                true => format!("Make {name} an ordinary thread (SCHED_OTHER)"),
                false => format!("Reset {name} to nice 0"),
            },
            reason: format!("{}.", self.finding.title.trim_end_matches('.')),
            commands: vec![command],
            risk: Risk::Medium,
            risk_words: match real_time {
                true => "a program with deadlines (audio, control, a watchdog) may miss them".to_owned(),
                false => "it gets less time when others need its core".to_owned(),
            },
            reversible: true,
            undo: "its class and priority are restored".to_owned(),
            dangerous: None,
            not_fixed:
                "why it needs a whole core; while it stays in the kernel without a preemption point, its class makes no \
            difference"
                    .to_owned(),
            measures: self.measures(),
            details: Vec::new(),
            action: Action::LowerPriority(LowerPriority { thread: thread.clone() }),
        })
    }

    /// Alternatively, move the thread that polls the NIC.
    fn poller(&self, draft: &mut Draft) {
        let Some(starved) = self.starved else { return };
        let Some(poller) = starved.ties.victims.iter().find(|task| is_napi(&task.comm)) else { return };
        let Some(about) = thread_of(self.case.evidence, poller.tid) else { return };
        let Ok(cores) = self.choose(poller.tid, with_room(self.cores, self.core, self.window)) else { return };
        let thread = ThreadRef { tid: about.key.tid, started: about.key.started, comm: about.comm.clone() };
        let (name, to) = (thread.name(), cores_words(&cores));
        draft.alternative(Step {
            id: format!("move-thread:{name}"),
            kind: StepKind::MoveThread,
            title: format!("Move {name}, which polls {}, to {to}", starved.subject.name),
            reason: format!("{}.", starved.title.trim_end_matches('.')),
            commands: vec![format!("taskset -pc {cores} {}", thread.tid)],
            risk: Risk::Medium,
            risk_words: format!("{to} will receive its packets; a device reset creates a new thread"),
            reversible: true,
            undo: "its affinity is restored".to_owned(),
            dangerous: None,
            not_fixed: format!("what occupies core {}: others that need it still wait", self.core),
            measures: self.measures(),
            details: Vec::new(),
            action: Action::MoveThread(MoveThread { thread, cores: cores.to_string() }),
        });
    }

    /// Alternatively, if no thread polls, move the interrupt.
    fn interrupts(&self, draft: &mut Draft) {
        let Some(starved) = self.starved else { return };
        if starved.ties.victims.iter().any(|task| is_napi(&task.comm) && !is_ksoftirqd_of(&task.comm, self.core)) {
            return;
        }
        let queues = self.cores.queues(self.core).into_iter();
        for (nic, queue) in queues.filter(|(nic, _)| is_about(starved, nic)) {
            let Some(irq) = queue.irq else { continue };
            let what = format!("move interrupt {irq} of {} {}", nic.display_name(), queue.label());
            if let Some(pid) = self.facts.irqbalance {
                draft.refuse(
                    what,
                    format!("irqbalance (pid {pid}) would move it back; start irqbalance with --banirq={irq}"),
                );
                continue;
            }
            let room = with_room(self.cores, self.core, self.window);
            let named =
                self.case.wishes.cores.as_ref().map(|all| CoreSet::new(all.iter().filter(|core| *core != self.core)));
            let wanted = named.filter(|cores| !cores.is_empty()).map(|cores| cores.to_string()).or(room);
            let Some(cores) = wanted else {
                draft.refuse(what, "no other core had room for it");
                continue;
            };
            let to = cores_words(&cores);
            draft.alternative(Step {
                id: format!("move-interrupt:{irq}"),
                kind: StepKind::MoveInterrupt,
                title: format!("Move interrupt {irq} ({} {}) to {to}", nic.display_name(), queue.label()),
                reason: format!("{}.", starved.title.trim_end_matches('.')),
                commands: vec![format!("echo {cores} > /proc/irq/{irq}/smp_affinity_list")],
                risk: Risk::Medium,
                risk_words: format!("{to} will receive its packets; a device reset may move it back"),
                reversible: true,
                undo: "the interrupt's affinity is restored".to_owned(),
                dangerous: None,
                not_fixed: format!("what occupies core {}: others that need it still wait", self.core),
                measures: self.measures(),
                details: Vec::new(),
                action: Action::MoveInterrupt(MoveInterrupt {
                    irq,
                    name: self.facts.interrupts.get(&irq).cloned(),
                    cores,
                }),
            });
        }
    }
}

fn is_about(finding: &Finding, nic: &Nic) -> bool {
    finding.ties.queues.iter().any(|queue| queue.device == nic.name && queue.netns == nic.netns)
}

fn thread_of(evidence: &Evidence, tid: u32) -> Option<&Thread> {
    evidence.threads.iter().rev().find(|thread| thread.key.tid == tid)
}
