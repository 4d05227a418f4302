//! The dead by name: which groups there are, what keeps them, who makes them, and what to do about it.

use crate::finding::{Fact, FactKey, Subject, SubjectKind};
use crate::units::paths::operand;
use crate::words::{bytes, count, list, percent, plural, rate};
use crate::zombies::groups::join_path;
use crate::zombies::{FileGroup, Group, MakerShare, OtherwiseKind, ZombieReport};
use coroner_evidence::Evidence;
use std::time::Duration;

/// How many groups, files and makers are named.
const GROUPS: usize = 3;
const FILES: usize = 3;
const MAKERS: usize = 4;
/// Whoever made fewer cgroups needs no acquittal.
const WORTH_CLEARING: u64 = 20;

/// The group that has more than half of them.
pub fn dominant<'r, 'e>(report: &'r ZombieReport<'e>) -> Option<&'r Group<'e>> {
    let own = || report.groups.iter().filter(|g| g.rest_of == 0);
    // Where the dead are not counted by parent, the bytes they hold do not say how many they are.
    report.scan.dead.and_then(|all| own().find(|g| g.dead.is_some_and(|dead| dead > all / 2)))
}

/// What the finding is about: their unit, else the cgroup below which they died. `None` if no group has most of them.
pub fn subject(report: &ZombieReport<'_>) -> Option<Subject> {
    let group = dominant(report)?;
    Some(match &group.unit {
        Some(unit) => Subject::new(SubjectKind::Unit, unit.clone()),
        None if group.parent == "/" => Subject::new(SubjectKind::Cgroup, join_path("/", &group.pattern)),
        None => Subject::new(SubjectKind::Cgroup, group.parent.clone()),
    })
}

pub fn detail(report: &ZombieReport<'_>) -> String {
    let mut text = String::new();
    for group in report.groups.iter().take(GROUPS) {
        text.push_str(&group_words(group));
    }
    let rest = &report.groups[report.groups.len().min(GROUPS)..];
    if !rest.is_empty() {
        let dead = rest.iter().try_fold(0u64, |sum, g| Some(sum.saturating_add(g.dead?)));
        let dead = dead.map_or_else(|| "More".to_owned(), |dead| format!("{} more", count(dead)));
        text.push_str(&format!("{dead} in {}. ", plural(rest.len() as u64, "other group", "other groups")));
    }
    if report.groups.is_empty() {
        text.push_str("They could not be named");
        let why = report.scan.instead_of.first().map(|tried| format!(": {}", tried.why));
        text.push_str(&format!("{}. ", why.unwrap_or_default()));
    }
    text
}

/// Who made those that stay, as far as it was seen; and that those who made others did not. `alike`: those there before have the same names.
pub fn who_made_them(
    evidence: &Evidence,
    dead: u64,
    makers: &[MakerShare],
    leakers: &[MakerShare],
    alike: bool,
) -> String {
    if evidence.cgroup_fates.is_empty() {
        // Nobody followed them: all that is known is that nothing was freed of what was removed there.
        let words: Vec<String> = leakers.iter().take(MAKERS).map(maker_words).collect();
        return if words.is_empty() { String::new() } else { format!("Made by {}. ", words.join("; ")) };
    }
    let left = left_by(leakers);
    let mut text = String::new();
    if !leakers.is_empty() {
        let before = dead.saturating_sub(left);
        if before > 0 {
            text.push_str(&format!("{} of the {} were there before we looked. ", count(before), count(dead)));
        }
        let words: Vec<String> = leakers.iter().take(MAKERS).map(|share| left_words(share, left)).collect();
        text.push_str(&format!("{}. ", words.join("; ")));
        if before > 0 && alike {
            text.push_str("Those there before have the same names: probably the same made them. ");
        }
        return text;
    }
    // Only those that nobody made while we watched.
    let born: u64 =
        makers.iter().filter(|share| share.maker.is_some()).map(|share| share.born).fold(0, u64::saturating_add);
    match born {
        0 => text.push_str("Nobody made cgroups while we watched: who made the dead ones is unknown. "),
        born => {
            let stay: u64 = makers.iter().filter_map(|share| share.left).fold(0, u64::saturating_add);
            text.push_str(&format!(
                "Of the {} made while we watched, {}. ",
                plural(born, "cgroup", "cgroups"),
                match stay {
                    0 => "none stays: who made the dead ones is unknown".to_owned(),
                    stay => format!("{} stay: who made the others is unknown", count(stay)),
                }
            ));
        }
    }
    let tidy: Vec<String> = makers
        .iter()
        .filter(|share| share.maker.is_some() && share.born >= WORTH_CLEARING && share.left == Some(0))
        .map(|share| format!("{} ({} made, all freed)", share.name(), count(share.born)))
        .collect();
    if !tidy.is_empty() {
        text.push_str(&format!("Not to blame: {}. ", list(&tidy, MAKERS)));
    }
    text
}

/// How many of the dead these left while we watched.
fn left_by(leakers: &[MakerShare]) -> u64 {
    leakers.iter().fold(0, |sum, share| sum.saturating_add(share.left.unwrap_or(0)))
}

/// `a[70] made 125 (52 % of those that stay), and all stay`
fn left_words(share: &MakerShare, all: u64) -> String {
    let left = share.left.unwrap_or(0);
    let stay = match left >= share.born {
        true => "and all stay".to_owned(),
        false => format!("and {} of them stay", count(left)),
    };
    let part = match left < all {
        true => format!(" ({} of those that stay)", percent(left as f64 / all as f64)),
        false => String::new(),
    };
    format!("{} while we watched, {stay}{part}", maker_words_made(share))
}

fn maker_words_made(share: &MakerShare) -> String {
    let for_unit = share.made_unit.as_ref().map(|unit| format!(" for {unit}")).unwrap_or_default();
    let what = join_path(&share.parent, &share.pattern);
    format!("{} made {} cgroups{for_unit} ({what})", share.name(), count(share.born))
}

fn group_words(group: &Group<'_>) -> String {
    let dead = group.dead.map_or_else(|| "An unknown number".to_owned(), count);
    let place = if group.rest_of > 0 {
        format!("{dead} died in other places below {}", group.parent)
    } else if group.pattern == "*" {
        format!("{dead} died below {}", group.parent)
    } else {
        format!("{dead} died below {} as {}", group.parent, group.pattern)
    };
    let hold = if group.dead == Some(1) { "it holds" } else { "they hold" };
    let mut text = format!("{place}; {hold} {}", bytes(group.held.total()));
    let files: Vec<String> = group
        .pinned_in
        .iter()
        .map(|f| {
            let files = if f.files > 1 { format!(", {} files", count(f.files)) } else { String::new() };
            let deleted = if f.deleted > 0 { ", deleted but still in use" } else { "" };
            format!("{} ({}{files}{deleted}, {})", f.pattern, f.filesystem, bytes(f.bytes))
        })
        .collect();
    if !files.is_empty() {
        text.push_str(&format!(", kept by {}", list(&files, FILES)));
    } else if let Some(otherwise) = group.pinned_otherwise.first() {
        let unknown = otherwise.kind == OtherwiseKind::Unknown;
        text.push_str(&format!(", kept by {}", if unknown { "something unknown" } else { otherwise.kind.as_str() }));
    }
    text.push_str(". ");
    text
}

fn maker_words(share: &MakerShare) -> String {
    let for_unit = share.made_unit.as_ref().map(|unit| format!(" for {unit}")).unwrap_or_default();
    let restarts = match share.made_unit_restarts {
        Some(0) => ", although systemd counts no restarts",
        _ => "",
    };
    let minute = Duration::from_secs(60);
    let what = join_path(&share.parent, &share.pattern);
    format!("{}{for_unit}, {}{restarts} ({what})", share.name(), rate(share.per_minute, minute))
}

pub fn facts(report: &ZombieReport<'_>) -> Vec<Fact> {
    let method = report.scan.method.as_str();
    let mut facts = Vec::new();
    for group in report.groups.iter().take(GROUPS) {
        let name = join_path(&group.parent, &group.pattern);
        if let Some(dead) = group.dead {
            facts.push(Fact::new(FactKey::DeadAs, dead, method).of(&name));
        }
        facts.push(Fact::new(FactKey::HeldBy, group.held.total(), method).of(&name));
        for file in group.pinned_in.iter().take(FILES) {
            facts.push(
                Fact::new(FactKey::PinnedIn, file.bytes, method).of(format!("{} ({})", file.pattern, file.filesystem)),
            );
        }
    }
    for line in report.cost.lines.iter().filter(|line| line.measured) {
        facts.push(Fact::new(FactKey::DeadCost, line.text.clone(), "measured on this node").of(line.kind.as_str()));
    }
    facts
}

/// Who left them, and how many were there before.
pub fn maker_facts(evidence: &Evidence, dead: u64, leakers: &[MakerShare]) -> Vec<Fact> {
    let mut facts = Vec::new();
    for maker in leakers.iter().take(MAKERS) {
        facts.push(Fact::new(FactKey::CgroupsMadeBy, maker.born, "tracepoint cgroup_mkdir").of(maker.name()));
        if let Some(left) = maker.left {
            let source = "tracepoints cgroup_rmdir and cgroup_release, by id";
            facts.push(Fact::new(FactKey::CgroupsLeftBy, left, source).of(maker.name()));
        }
    }
    if !evidence.cgroup_fates.is_empty() {
        let before = dead.saturating_sub(left_by(leakers));
        facts.push(Fact::new(FactKey::DeadBefore, before, "the dead, less those made while watching"));
    }
    facts
}

/// Concrete if it is known what to stop and what to delete.
pub fn remedy(report: &ZombieReport<'_>, leakers: &[MakerShare], stands_still: bool) -> Option<String> {
    let group = dominant(report)?;
    let who = match (&group.unit, leakers.first()) {
        (Some(unit), _) => format!(
            "{unit} (`systemctl status {0}`, then `systemctl disable --now {0}` if the node can do without it)",
            operand(unit)
        ),
        (None, Some(_)) => {
            let names: Vec<String> = leakers.iter().map(MakerShare::name).collect();
            list(&names, MAKERS)
        }
        (None, None) if group.pod_uid.is_some() || group.parent.contains("kubepods") => {
            format!("the pod below {} whose containers keep restarting (`crictl ps -a`)", group.parent)
        }
        (None, None) => format!(
            "whatever makes and removes cgroups below {} (`coroner zombies --watch` names the process)",
            group.parent
        ),
    };
    let stands_still = stands_still || group.per_hour.is_some_and(|rate| rate.value == 0.0);
    let stop = match stands_still {
        true => format!("Their number is not growing now. If it does, stop what makes them: {who}. "),
        false => format!("Stop what makes them: {who}. That stops the growth but frees nothing. "),
    };
    let how = how_they_go(report)?;
    Some(match stands_still {
        true => format!("{how} {stop}").trim_end().to_owned(),
        false => format!("{stop}{how}"),
    })
}

/// What frees the dead of the dominant group, in whole sentences.
pub fn how_they_go(report: &ZombieReport<'_>) -> Option<String> {
    let group = dominant(report)?;
    let mut text = "The existing ones are freed only with the memory that pins them: ".to_owned();
    let mut ways = Vec::new();
    // Never a pattern to delete: it may match files that others need. Name one file, and where the others are listed.
    let of = |shared: bool| {
        let files = group.pinned_in.iter().filter(move |f| (f.filesystem == "tmpfs") == shared);
        let words = |f: &FileGroup| match f.files {
            1 => f.example.clone(),
            n => format!("{} files such as {}", count(n), f.example),
        };
        files.map(words).collect::<Vec<_>>()
    };
    let (shared, cached) = (of(true), of(false));
    if !shared.is_empty() {
        ways.push(format!(
            "delete {} once unused (check with `fuser -v FILE`; `coroner zombies --all` lists each file)",
            list(&shared, FILES)
        ));
    }
    if !cached.is_empty() || group.held.file > 0 {
        let of = if cached.is_empty() { String::new() } else { format!(" of {}", list(&cached, FILES)) };
        ways.push(format!(
            "on a drained node, drop the page cache{of} (`echo 1 > /proc/sys/vm/drop_caches`; it slows running jobs)"
        ));
    }
    if shared.is_empty() && group.held.swap_backed > 0 {
        ways.push("delete what they left in tmpfs and /dev/shm".to_owned());
    }
    ways.push("or reboot".to_owned());
    text.push_str(&ways.join("; "));
    text.push_str(". Restarting kubelet frees none of them.");
    Some(text)
}
