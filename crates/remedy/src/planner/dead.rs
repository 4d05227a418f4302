//! Dead cgroups: reclaim frees some, deleting files frees others, a reboot frees all.

use super::{Case, Draft, Problem, Targets};
use crate::facts::{Facts, directory_of};
use crate::measure::Measure;
use crate::plan::{Risk, Step};
use crate::reboot;
use crate::steps::delete_files::{DeleteFiles, NamedFile};
use crate::steps::threads::cores_words;
use crate::steps::{Action, FreeZombies, StepKind};
use coroner_diagnosis::cores::Cores;
use coroner_diagnosis::cores::cited::with_room_for_thread;
use coroner_diagnosis::units::paths::{UnitPaths, shell_word};
use coroner_diagnosis::words::{bytes, count, list, plural};
use coroner_diagnosis::zombies::groups::join_path;
use coroner_diagnosis::zombies::{Group, OtherwiseKind};
use coroner_diagnosis::{Code, SubjectKind};
use coroner_evidence::{CoreSet, Order};
use serde::Serialize;
use std::collections::BTreeMap;

/// Ancestors below which reclaim is planned.
const PLACES: usize = 3;
/// v2: reclaim also takes from live cgroups. Ask for at most this many times what the dead hold.
const MORE_THAN_HELD: u64 = 4;
const LEAST_ASKED: u64 = 32 << 20;
const MOST_ASKED: u64 = 2 << 30;
/// If live cgroups may lose more page cache than this, running jobs notice.
const MUCH_CACHE: u64 = 1 << 30;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PinningFile {
    pub path: String,
    /// Where we reach it: the path itself, or `/proc/PID/root/…`.
    pub reach: String,
    /// A process whose mount namespace has that path, if ours does not.
    pub seen_by: Option<u32>,
    pub filesystem: String,
    pub bytes: u64,
    pub zombies: u64,
    /// Removed, but still open or mapped.
    pub deleted: bool,
}

/// A group smaller than a tenth of all dead cgroups is not worth dropping its neighbours' page cache.
const PART: u64 = 10;

/// The groups that a problem is about: those of its unit. Also other large ones if all dead cgroups together do the harm, or if none
/// is known to be the unit's.
fn groups<'g, 'c>(case: &'g Case<'c>, problem: &Problem<'_>) -> Vec<&'g Group<'c>> {
    let Some(report) = &case.zombies else { return Vec::new() };
    let has = |codes: &[Code]| {
        std::iter::once(problem.root).chain(problem.chain.iter().copied()).any(|finding| codes.contains(&finding.code))
    };
    let mut groups = match problem.root.subject.kind {
        SubjectKind::Unit => of_unit(case, &problem.root.subject.name),
        _ => Vec::new(),
    };
    // Whoever asks for zombie-memcgs asks for all of them.
    let is_asked = matches!(case.wishes.about, Some((Code::ZombieMemcgs, _)));
    let all_hurt = has(&[Code::MemcgWalk, Code::SlowMemcgStat]) || groups.is_empty() && has(&[Code::ZombieMemcgs]);
    if is_asked || all_hurt {
        let all: u64 = report.groups.iter().filter_map(|group| group.dead).sum();
        let is_new = |group: &&Group<'_>| !groups.iter().any(|known| std::ptr::eq(*known, *group));
        let large =
            |group: &&Group<'_>| group.rest_of == 0 && (is_asked || group.dead.is_none_or(|dead| dead >= all / PART));
        let others: Vec<&Group<'c>> = report.groups.iter().filter(large).filter(is_new).collect();
        groups.extend(others);
    }
    groups
}

/// One line about the dead cgroups that a plan leaves out, if it is about dead cgroups at all.
pub fn not_of(case: &Case<'_>, problems: &[Problem<'_>]) -> Option<String> {
    let report = case.zombies.as_ref()?;
    let planned: Vec<&Group<'_>> = problems.iter().flat_map(|problem| groups(case, problem)).collect();
    if planned.is_empty() {
        return None;
    }
    let is_planned = |group: &&Group<'_>| planned.iter().any(|known| std::ptr::eq(*known, *group));
    let others: Vec<&Group<'_>> = report.groups.iter().filter(|group| !is_planned(group)).collect();
    let dead: u64 = others.iter().filter_map(|group| group.dead).sum();
    if dead == 0 {
        return None;
    }
    let most = others.iter().filter(|group| group.rest_of == 0).max_by_key(|group| group.dead);
    let place = most.map(|group| format!(" (mostly {})", join_path(&group.parent, &group.pattern)));
    let sum = |fits: &dyn Fn(&Group<'_>) -> bool| -> u64 {
        others.iter().filter(|group| fits(group)).filter_map(|group| group.dead).sum()
    };
    let in_files = |group: &Group<'_>| group.pinned_in.iter().any(|file| file.filesystem == "tmpfs");
    let mut ways = Vec::new();
    let has_finding = case.diagnosis.findings.iter().any(|finding| finding.code == Code::ZombieMemcgs);
    if sum(&reclaimable) > 0 {
        ways.push(match has_finding {
            true => "reclaim, where page cache keeps them (`coroner fix zombie-memcgs` plans for all)",
            false => "reclaim, where page cache keeps them",
        });
    }
    if sum(&in_files) > 0 {
        ways.push("deleting the tmpfs files that keep them (`coroner zombies --all` lists the files)");
    }
    ways.push("a reboot");
    Some(format!(
        "Not in this plan: {}{} from other causes. What would free {}: {}.",
        plural(dead, "dead cgroup", "dead cgroups"),
        place.unwrap_or_default(),
        if dead == 1 { "it" } else { "them" },
        ways.join("; ")
    ))
}

fn of_unit<'g, 'c>(case: &'g Case<'c>, unit: &str) -> Vec<&'g Group<'c>> {
    let Some(report) = &case.zombies else { return Vec::new() };
    let paths = UnitPaths::of(case.evidence);
    report
        .groups
        .iter()
        .filter(|group| group.rest_of == 0 && paths.unit_of(&group.example).as_deref() == Some(unit))
        .collect()
}

/// The cgroup below which a unit's dead ones are, without wildcards.
pub fn ancestor_of_unit(case: &Case<'_>, unit: &str) -> Option<String> {
    of_unit(case, unit).first().map(|group| unfolded(&group.parent))
}

/// `/kubepods/burstable` of `/kubepods/burstable/pod*/x`.
fn unfolded(path: &str) -> String {
    let whole: Vec<&str> =
        path.split('/').filter(|part| !part.is_empty()).take_while(|part| !part.contains('*')).collect();
    format!("/{}", whole.join("/"))
}

fn with_ancestors(path: &str) -> Vec<String> {
    let mut all = vec![path.to_owned()];
    let mut at = path;
    while let Some((above, _)) = at.rsplit_once('/').filter(|(above, _)| !above.is_empty()) {
        all.push(above.to_owned());
        at = above;
    }
    all
}

pub fn targets(case: &Case<'_>, problem: &Problem<'_>, targets: &mut Targets) {
    for group in groups(case, problem) {
        targets.cgroups.extend(with_ancestors(&unfolded(&group.parent)));
    }
}

pub fn plan(case: &Case<'_>, problem: &Problem<'_>, facts: &Facts, draft: &mut Draft) {
    let groups = groups(case, problem);
    let dead: u64 = groups.iter().filter_map(|group| group.dead).sum();
    if dead == 0 {
        return;
    }
    // By the nearest live ancestor.
    let mut by_place: BTreeMap<String, Vec<&Group<'_>>> = BTreeMap::new();
    for group in &groups {
        let place = with_ancestors(&unfolded(&group.parent))
            .into_iter()
            .find(|path| facts.cgroups.get(path).is_some_and(|about| about.lives));
        by_place.entry(place.unwrap_or_else(|| "/".to_owned())).or_default().push(group);
    }
    let mut places: Vec<(String, Vec<&Group<'_>>)> = by_place.into_iter().collect();
    places.order_by_key(|(_, groups)| std::cmp::Reverse(groups.iter().filter_map(|group| group.dead).sum::<u64>()));
    for (place, groups) in places.iter().take(PLACES) {
        reclaim(case, place, groups, facts, draft);
        files(case, place, groups, draft);
    }
    let ours: Vec<&Group<'_>> = places.iter().take(PLACES).flat_map(|(_, groups)| groups.iter().copied()).collect();
    the_rest(case, problem, &ours, dead, draft);
}

/// Whether reclaim can free any of them: it frees page cache, but neither tmpfs nor locked memory.
fn reclaimable(group: &Group<'_>) -> bool {
    let may_be_cache = |kind| matches!(kind, OtherwiseKind::File | OtherwiseKind::Kernel | OtherwiseKind::Unknown);
    group.held.file > 0
        || group.held_is_partial
        || group.pinned_otherwise.iter().any(|other| may_be_cache(other.kind))
        || group.pinned_in.iter().any(|file| file.filesystem != "tmpfs")
}

fn reclaim(case: &Case<'_>, place: &str, groups: &[&Group<'_>], facts: &Facts, draft: &mut Draft) {
    let dead: u64 = groups.iter().filter_map(|group| group.dead).sum();
    let cache: u64 = groups.iter().map(|group| group.held.file).sum();
    let what = format!("free dead cgroups below {place} by reclaim");
    if !groups.iter().any(|group| reclaimable(group)) {
        draft.refuse(what, "reclaim would free none: files in tmpfs or memory in use keep them, not page cache");
        return;
    }
    let Some((mount, directory)) = directory_of(case.evidence, place) else {
        draft.refuse(what, "the memory cgroups are not mounted here");
        return;
    };
    let about = facts.cgroups.get(place);
    if place == "/" && mount.version == 1 {
        draft.refuse(
            what,
            "they died directly below the root, where cgroup v1 only offers `echo 1 > /proc/sys/vm/drop_caches`, which drops the \
             page cache of every job on the node",
        );
        return;
    }
    if !about.is_some_and(|about| about.can_reclaim) {
        draft.refuse(what, "this kernel has neither memory.reclaim (v2, from 5.19) nor memory.force_empty (v1)");
        return;
    }
    let others = about.and_then(|about| about.cache_bytes).map(|all| all.saturating_sub(cache));
    let most_bytes = (cache.saturating_mul(MORE_THAN_HELD)).clamp(LEAST_ASKED, MOST_ASKED);
    let version = mount.version;
    let file = directory.join(if version == 1 { "memory.force_empty" } else { "memory.reclaim" });
    let file = shell_word(&file.display().to_string());
    let taken = match version {
        // force_empty reclaims all it can.
        1 => others,
        _ => others.map(|others| others.min(most_bytes)),
    };
    let mut risk_words = match taken {
        Some(taken) => format!(
            "may also drop up to {} of page cache of live cgroups below {place}, which they read again when needed",
            bytes(taken)
        ),
        None => format!("may also drop page cache of live cgroups below {place}, which they read again when needed"),
    };
    risk_words.push_str("; may keep one core busy in the kernel while it runs");
    risk_words.push_str(match (facts.swap, version) {
        (Some(false), _) => "",
        (_, 1) => {
            "; cgroup v1 cannot limit reclaim to page cache: with swap, memory of running jobs below it may be swapped out, and \
             reading it back is slow"
        }
        (..) => {
            "; spares the memory of running jobs (swappiness=0) if the kernel supports that; if not, and with swap, some may \
            be swapped out"
        }
    });
    let cores = Cores::of(case.evidence);
    let room = cores.window().and_then(|window| with_room_for_thread(&cores, u32::MAX, window));
    let wanted = case.wishes.cores.as_ref().map(ToString::to_string);
    draft.step(Step {
        id: format!("free-zombies:{place}"),
        kind: StepKind::FreeZombies,
        title: format!("Free dead cgroups below {place} that are kept by page cache"),
        reason: format!(
            "{} below {place}; {} of page cache keeps some or all of them. Stopping what created them frees none.",
            plural(dead, "dead memory cgroup", "dead memory cgroups"),
            bytes(cache)
        ),
        commands: vec![match version {
            1 => format!(
                "timeout {} sh -c {}",
                case.wishes.budget.as_secs().max(1),
                shell_word(&format!("echo 1 > {file}"))
            ),
            _ => format!("echo {most_bytes} swappiness=0 > {file}   # coroner does this in small steps"),
        }],
        risk: if taken.is_some_and(|taken| taken > MUCH_CACHE) { Risk::High } else { Risk::Medium },
        risk_words,
        reversible: false,
        undo: "dropped page cache is read again when it is used".to_owned(),
        dangerous: taken.filter(|taken| *taken > MUCH_CACHE).map(|taken| {
            format!("running jobs below {place} may lose up to {} of page cache and have to re-read it", bytes(taken))
        }),
        not_fixed: "dead cgroups kept by tmpfs files, shared or locked memory; whatever creates new ones".to_owned(),
        measures: vec![Measure::Dead { cgroup: place.to_owned() }],
        details: vec![format!(
            "runs for at most {:.0} s at nice 19; stops early if others have to re-read pages or wait for the disk{}",
            case.wishes.budget.as_secs_f64(),
            room.as_ref()
                .or(wanted.as_ref())
                .map(|cores| format!("; on {}, which no NIC queue depends on", cores_words(cores)))
                .unwrap_or_default()
        )],
        action: Action::FreeZombies(FreeZombies {
            cgroup: place.to_owned(),
            directory,
            version,
            budget_ms: case.wishes.budget.as_millis() as u64,
            most_bytes,
            cores: wanted.or(room).filter(|cores| CoreSet::parse_list(cores).is_some()),
        }),
    });
}

/// Lists all files; plans a step only for those that were named.
fn files(case: &Case<'_>, place: &str, groups: &[&Group<'_>], draft: &mut Draft) {
    let mut named = Vec::new();
    let mut zombies = 0;
    for pin in groups.iter().flat_map(|group| &group.pinned_by) {
        let Some(path) = &pin.file.path else { continue };
        // Reclaim drops the page cache of a file on disk; deleting it is not our business.
        if pin.file.filesystem != "tmpfs" {
            continue;
        }
        let file = NamedFile {
            path: path.clone(),
            seen_by: pin.file.seen_by,
            device: pin.file.device,
            inode: pin.file.inode,
            bytes: pin.bytes,
        };
        let reach = file.place().display().to_string();
        if !draft.files.iter().any(|known| known.reach == reach) {
            draft.files.push(PinningFile {
                path: path.clone(),
                reach: reach.clone(),
                seen_by: pin.file.seen_by,
                filesystem: pin.file.filesystem.clone(),
                bytes: pin.bytes,
                zombies: pin.zombies,
                deleted: pin.file.deleted,
            });
        }
        let is_named = case.wishes.delete_files.iter().any(|name| *name == reach || name == path);
        if is_named && !pin.file.deleted {
            zombies += pin.zombies;
            named.push(file);
        }
    }
    if named.is_empty() {
        return;
    }
    let words: Vec<String> = named.iter().map(|file| shell_word(&file.place().display().to_string())).collect();
    draft.step(Step {
        id: format!("delete-files:{place}"),
        kind: StepKind::DeleteFiles,
        title: format!("Delete {} you named", plural(named.len() as u64, "file", "files")),
        reason: format!("What they keep: {} below {place}.", plural(zombies, "dead cgroup", "dead cgroups")),
        commands: words.chunks(8).map(|chunk| format!("rm -- {}", chunk.join(" "))).collect(),
        risk: Risk::High,
        risk_words: "their content is lost; refused if anybody has one of them open".to_owned(),
        reversible: false,
        undo: "deleted files cannot be restored".to_owned(),
        // Naming the files is the consent that a dangerous step needs.
        dangerous: None,
        not_fixed: "whatever wrote these files may write new ones".to_owned(),
        measures: vec![Measure::Dead { cgroup: place.to_owned() }],
        details: named.iter().map(|file| file.path.clone()).collect(),
        action: Action::DeleteFiles(DeleteFiles { files: named, cgroup: place.to_owned() }),
    });
}

/// What only deleting files or a reboot frees.
fn the_rest(case: &Case<'_>, problem: &Problem<'_>, groups: &[&Group<'_>], dead: u64, draft: &mut Draft) {
    let mut kept: Vec<String> = Vec::new();
    let mut stays = 0u64;
    for group in groups {
        let lasting = group.pinned_in.iter().filter(|file| file.filesystem == "tmpfs");
        for file in lasting {
            stays += file.zombies;
            let (many, verb) = if file.files > 1 {
                (format!("{} files ", count(file.files)), "keep")
            } else {
                (String::new(), "keeps")
            };
            kept.push(format!("{many}{} ({}) {verb} {}", file.pattern, file.filesystem, count(file.zombies)));
        }
        for other in group.pinned_otherwise.iter() {
            let lasting = matches!(
                other.kind,
                OtherwiseKind::Anonymous
                    | OtherwiseKind::Unevictable
                    | OtherwiseKind::SharedMemory
                    | OtherwiseKind::SwapBacked
                    | OtherwiseKind::Swap
            );
            if lasting {
                stays += other.zombies.unwrap_or(0);
                let many = other.zombies.map(|n| format!(" keeps {}", count(n))).unwrap_or_default();
                kept.push(format!("{}{many}", other.kind.as_str()));
            }
        }
        if group.pinned_in.is_empty() && group.pinned_otherwise.is_empty() {
            kept.push(format!("what keeps {} is unknown", join_path(&group.parent, &group.pattern)));
        }
    }
    if kept.is_empty() {
        return;
    }
    let at_least = if stays > 0 {
        format!("{} of the {} dead cgroups", count(stays.min(dead)), count(dead))
    } else {
        format!("some of the {} dead cgroups", count(dead))
    };
    let deletable = draft.files.iter().any(|file| !file.deleted);
    let how = match deletable {
        true => {
            "Deleting those files (--delete-file PATH for each) frees what they keep, once nobody needs them; a reboot frees all."
        }
        false => "Only a reboot frees them.",
    };
    let why = format!("Reclaim cannot free {at_least}: {}. {how}", list(&kept, 4));
    let first = draft.steps.iter().find(|step| matches!(step.kind, StepKind::DisableUnit | StepKind::IsolateUnit));
    let first = first.map(|step| format!("First: {} ({}), or it starts again after the reboot.", step.title, step.id));
    let risk = problem.verdict.and_then(|verdict| verdict.risk.clone());
    if draft.reboot.is_none() {
        draft.reboot = Some(reboot::plan(&case.diagnosis.node, why, first, risk));
    }
}
