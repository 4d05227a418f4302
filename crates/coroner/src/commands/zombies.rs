//! `coroner zombies`.

use super::stop_on_signals;
use crate::args::{WalkMethod, ZombiesArgs};
use crate::exit::Exit;
use crate::output::progress::StatusLine;
use crate::output::{json_text, print, with_line, zombies_text};
use anyhow::Context;
use coroner_diagnosis::zombies::{counted, report};
use coroner_evidence::Evidence;
use coroner_probes::Root;
use coroner_probes::watch::zombies::{ZombieWatch, ZombieWatchOptions};
use coroner_probes::zombies::{Bpf, Method};
use coroner_source::recorded::{self, Recorded, with_recorder};
use coroner_web::documents;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub fn run(args: ZombiesArgs) -> anyhow::Result<Exit> {
    // `--watch --for 30s` is as natural as `--watch 30s`.
    let watched = args.duration.or(args.watch);
    let is_watch = watched.is_some() || args.no_bpf || args.method.is_some() || args.root.is_some();
    let mut recorded = recorded::read(&args.recorded.query(), is_watch)?;
    let mut evidence = match &mut recorded {
        Some(recorded) => std::mem::take(&mut recorded.evidence),
        None => look_at_node(&args, watched)?,
    };
    counted::count_if_not_named(&mut evidence);
    let report = report(&evidence).with_context(|| match &recorded {
        Some(Recorded { path, .. }) => {
            format!("{}: this recording has no memory cgroups", path.display())
        }
        None => not_seen(&evidence),
    })?;
    let text = if args.json {
        let wanted = documents::zombies::ZombieDetail { list: args.list, all: args.all };
        let document = documents::zombies::document(&report, &evidence, &wanted);
        json_text(&with_recorder(document, recorded.as_ref()))
    } else {
        let shown = zombies_text::Shown {
            list: args.list,
            all: args.all,
            watched: watched.is_some() || recorded.is_some(),
            is_live: recorded.is_none(),
        };
        with_line(zombies_text::render(&report, &evidence, &shown), recorded.as_ref())
    };
    print(&text)?;
    let told = report.scan.dead.is_some() || !report.groups.is_empty();
    Ok(if told { Exit::NothingWrong } else { Exit::CouldNotExamine })
}

fn look_at_node(args: &ZombiesArgs, watched: Option<Duration>) -> anyhow::Result<Evidence> {
    let options = ZombieWatchOptions {
        root: args.root.as_ref().map_or_else(Root::live, Root::at),
        bpf: match (args.no_bpf, args.method) {
            (true, _) => Bpf::No,
            (false, Some(WalkMethod::TestRun)) => Bpf::Only(Method::TestRun),
            (false, Some(WalkMethod::PageFaults)) => Bpf::Only(Method::PageFaults),
            (false, None) => Bpf::Best,
        },
    };
    let Some(duration) = watched else { return Ok(ZombieWatch::look_once(&options)) };
    let stop = stop_on_signals()?;
    let mut line = StatusLine::new();
    let mut watch = ZombieWatch::start(&options, duration);
    let mut evidence = Evidence::default();
    while let Some(fragment) = watch.next_turn() {
        evidence.append(fragment);
        let at_work = zombies_text::at_work(&evidence).map(|w| format!(" · {w}")).unwrap_or_default();
        let (elapsed, of) = (watch.elapsed().as_secs_f64(), duration.as_secs_f64());
        line.show(&format!("watching cgroups: {elapsed:.0} of {of:.0} s{at_work}"));
        if stop.load(Ordering::Relaxed) {
            watch.stop();
        }
    }
    Ok(evidence)
}

fn not_seen(evidence: &Evidence) -> String {
    let reasons: Vec<String> =
        evidence.unseen.iter().map(|u| format!("{}: {} (to see it: {})", u.what, u.why, u.how_to_see)).collect();
    match reasons.is_empty() {
        true => "memory cgroups could not be read".to_owned(),
        false => format!("memory cgroups could not be read. {}", reasons.join("; ")),
    }
}
