//! `coroner fix`.

use super::{WATCH_FOR, stop_on_signals, units, watch};
use crate::args::fix::FixArgs;
use crate::exit::Exit;
use crate::output::progress::StatusLine;
use crate::output::{ask, fix_json, fix_text, from_recording, json_text, print, warn};
use anyhow::{Context, bail, ensure};
use coroner_diagnosis::agents::Catalogue;
use coroner_diagnosis::units::audit;
use coroner_diagnosis::{Diagnosis, diagnose};
use coroner_evidence::{Evidence, Node};
use coroner_probes::watch::{NameZombies, WatchOptions};
use coroner_probes::{Root, identity};
use coroner_remedy::apply::{self, About, Consent, Outcome, Talk};
use coroner_remedy::plan::{Plan, Step};
use coroner_remedy::planner::{self, Wishes};
use coroner_remedy::steps::Hands;
use coroner_remedy::{Facts, Journal, facts, guards, image};
use coroner_source::audit_files::KnownAgents;
use coroner_source::directory;
use coroner_source::incident_files as files;
use coroner_source::recorded::{self, Recorded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::RefCell;
use std::io::{BufRead, IsTerminal, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// No sane list of paths is larger.
const MOST_NAMED: u64 = 64 << 20;

pub fn run(mut args: FixArgs) -> anyhow::Result<Exit> {
    let known = KnownAgents::read(&args.catalogue.catalogue)?;
    if args.image {
        return for_image(&args, &known);
    }
    resolve_incident(&mut args)?;
    let here = this_node();
    // Fail before watching for seconds. For a recording, first check below whether it is from this node.
    if args.apply {
        guards::may_act(&here, args.bus.as_deref()).map_err(|error| anyhow::anyhow!("{error}"))?;
        if args.recorded.from.is_none() {
            somebody_consents(&args)?;
        }
    }
    let stop = stop_on_signals()?;
    let wishes = wishes(&args)?;
    let Seen { evidence, recorded } = look(&args, &known)?;
    let mut diagnosis = diagnose(&evidence);
    let from = args.recorded.as_arguments();
    if let Some(from) = &from {
        from_recording::carry(&mut diagnosis, from);
    }
    let is_here = recorded.as_ref().is_none_or(|recorded| recorded.recorder.is_some());
    // Also for this node's own recorder: it may have recorded another boot.
    if args.apply && recorded.is_some() {
        guards::is_same_node(&diagnosis.node, &here).map_err(|error| anyhow::anyhow!("{error}"))?;
        somebody_consents(&args)?;
    }
    cores_exist(&wishes, &diagnosis.node)?;
    let line = RefCell::new(StatusLine::new());
    let say = |words: &str| line.borrow_mut().show(words);
    let mut hands =
        Hands::new(args.bus.as_deref(), root_of(&args), &stop, &say).with_catalogue(known.catalogue.clone());

    let targets = planner::targets(&evidence, &diagnosis, &wishes).map_err(|why| anyhow::anyhow!(why))?;
    let facts: Facts = match is_here || args.apply {
        true => facts::of_node(&evidence, &targets, &mut hands),
        false => facts::of_evidence(&evidence, &targets),
    };
    let plan = planner::plan(&evidence, &diagnosis, &wishes, &facts).map_err(|why| anyhow::anyhow!(why))?;
    let source = recorded.as_ref().map_or(String::new(), Recorded::lines);
    if !args.apply {
        let chosen = plan.chosen(&args.step).map_err(|why| anyhow::anyhow!(why))?;
        let shown = fix_text::Shown {
            chosen: &chosen,
            evidence: &evidence,
            diagnosis: &diagnosis,
            source: &source,
            is_here,
            from: from.as_deref(),
        };
        let text = match args.json {
            true => json_text(&fix_json::plan(&plan, &shown)?),
            false => fix_text::plan(&plan, &shown),
        };
        print(&text)?;
        return Ok(Exit::NothingWrong);
    }
    let before = Before { evidence: &evidence, is_recorded: recorded.is_some(), known: &known };
    do_it(&args, &plan, &diagnosis, &before, &here, &mut hands, &stop)
}

/// `--from 7` is incident 7 of the recorder running here.
fn resolve_incident(args: &mut FixArgs) -> anyhow::Result<()> {
    let Some(from) = &args.recorded.from else { return Ok(()) };
    let Some(number) = from.to_str().and_then(|text| text.parse::<u64>().ok()).filter(|_| !from.exists()) else {
        return Ok(());
    };
    let running = directory::running();
    let file = running.iter().map(|directory| files::recording(directory, number)).find(|file| file.exists());
    let file = file.with_context(|| {
        format!("{number}: neither a file nor an incident of a running recorder (`coroner incidents` lists them)")
    })?;
    args.recorded.from = Some(file);
    Ok(())
}

fn this_node() -> Node {
    let mut evidence = Evidence::default();
    identity::identify(&Root::live(), &mut evidence);
    evidence.node.unwrap_or_default()
}

fn somebody_consents(args: &FixArgs) -> anyhow::Result<()> {
    ensure!(
        args.yes || std::io::stdin().is_terminal(),
        "refused: cannot ask, because standard input is not a terminal; --yes applies the plan without asking. Nothing was changed"
    );
    Ok(())
}

/// The named cores must exist. Numbers may have gaps where cores are offline, but none is beyond twice the number of cores.
fn cores_exist(wishes: &Wishes, node: &Node) -> anyhow::Result<()> {
    let (Some(wanted), Some(there)) = (&wishes.cores, node.cores) else { return Ok(()) };
    if let Some(core) = wanted.iter().find(|core| *core >= there.saturating_mul(2)) {
        bail!("--cores: no core {core} on this node, which has {there} cores");
    }
    Ok(())
}

/// The root of the node's own systemd is `/`; for another one, the user must say.
fn root_of(args: &FixArgs) -> Option<PathBuf> {
    match (&args.root, &args.bus) {
        (Some(root), _) => Some(root.clone()),
        (None, None) => Some(PathBuf::from("/")),
        (None, Some(_)) => None,
    }
}

fn wishes(args: &FixArgs) -> anyhow::Result<Wishes> {
    let mut delete_files = args.delete_file.clone();
    if let Some(from) = &args.delete_files_from {
        let mut text = String::new();
        let read = match from.to_str() {
            Some("-") => std::io::stdin().take(MOST_NAMED).read_to_string(&mut text),
            _ => std::fs::File::open(from).and_then(|file| file.take(MOST_NAMED).read_to_string(&mut text)),
        };
        read.with_context(|| from.display().to_string())?;
        delete_files.extend(text.lines().filter(|line| !line.is_empty()).map(str::to_owned));
    }
    Ok(Wishes {
        about: args.code.map(|code| (code, args.subject.clone())),
        isolate: args.isolate,
        persistent: args.persistent,
        limits: args.limit.clone(),
        delete_files,
        cores: args.cores.clone(),
        budget: args.budget,
    })
}

struct Seen {
    evidence: Evidence,
    recorded: Option<Recorded>,
}

fn look(args: &FixArgs, known: &KnownAgents) -> anyhow::Result<Seen> {
    // Watch, even if a recorder is running: its last minutes may show problems that are over.
    match recorded::read(&args.recorded.query(), true)? {
        Some(mut recorded) => {
            let mut evidence = std::mem::take(&mut recorded.evidence);
            if !args.catalogue.catalogue.is_empty() {
                evidence.catalogues.clone_from(&known.added);
            }
            Ok(Seen { evidence, recorded: Some(recorded) })
        }
        None => {
            let duration = args.duration.unwrap_or(WATCH_FOR);
            Ok(Seen { evidence: watch_node(args, known, duration)?, recorded: None })
        }
    }
}

fn watch_node(args: &FixArgs, known: &KnownAgents, duration: Duration) -> anyhow::Result<Evidence> {
    let audit = Some(known.audit_options(None));
    let options =
        WatchOptions { zombies: NameZombies::Always, bus: args.bus.clone(), audit, ..WatchOptions::default() };
    let mut evidence = watch(Root::live(), options, duration)?;
    evidence.catalogues.clone_from(&known.added);
    Ok(evidence)
}

struct Before<'b> {
    evidence: &'b Evidence,
    is_recorded: bool,
    known: &'b KnownAgents,
}

fn do_it(
    args: &FixArgs,
    plan: &Plan,
    diagnosis: &Diagnosis,
    before: &Before<'_>,
    here: &Node,
    hands: &mut Hands<'_>,
    stop: &AtomicBool,
) -> anyhow::Result<Exit> {
    let chosen = plan.chosen(&args.step).map_err(|why| anyhow::anyhow!(why))?;
    for name in &args.allow {
        ensure!(chosen.iter().any(|step| step.is_named(name)), "--allow {name}: no such step in the plan");
    }
    let evidence = before.evidence;
    let shown = fix_text::Shown { chosen: &chosen, evidence, diagnosis, source: "", is_here: true, from: None };
    if !args.json {
        print(&fix_text::before_acting(plan, &shown))?;
    }
    if chosen.is_empty() {
        if args.json {
            print(&json_text(&fix_json::nothing_done(plan, &shown)?))?;
        }
        // The user asked for a change, so the exit code must say that there was none.
        return Ok(if plan.refused.is_empty() { Exit::NothingWrong } else { Exit::CouldNotExamine });
    }
    let journal = Journal::open(&args.journal)?;
    // A recording may be a day old: measure the values before from the node.
    let fresh = match before.is_recorded {
        true => Some(watch_node(args, before.known, args.duration.unwrap_or(WATCH_FOR))?),
        false => None,
    };
    let values = apply::values_before(&chosen, fresh.as_ref().unwrap_or(before.evidence));
    let about = About {
        version: env!("CARGO_PKG_VERSION"),
        node: here,
        bus: args.bus.as_deref(),
        why: plan.causes.iter().map(|cause| cause.finding.title.clone()).collect(),
        allowed: &args.allow,
    };
    let mut talk = Terminal { yes: args.yes, quiet: args.json, stop, all: chosen.len(), told: 0 };
    let mut report = apply::run(&chosen, &journal, &about, hands, &mut talk)?;
    if report.did_something() {
        // Report what was done even if the measurement fails.
        let after = watch_node(args, before.known, args.verify_for).unwrap_or_else(|error| {
            warn(&format!("could not measure the effect: {error:#}"));
            Evidence::default()
        });
        if let Err(error) = apply::verify(&mut report, &values, &after, &journal) {
            warn(&format!("could not write the measurements to the journal: {error}"));
        }
    }
    print(&match args.json {
        true => json_text(&fix_json::done(plan, &report, &shown)?),
        false => fix_text::done(&report, plan),
    })?;
    Ok(exit_of(&report))
}

fn exit_of(report: &apply::FixReport) -> Exit {
    let refused = report.steps.iter().any(|step| matches!(step.outcome, Outcome::Refused(_) | Outcome::NotAllowed(_)));
    match report.worked() {
        true => Exit::NothingWrong,
        false if refused && !report.did_something() => Exit::CouldNotExamine,
        false => Exit::Findings,
    }
}

/// Asks and reports on the terminal.
struct Terminal<'t> {
    yes: bool,
    quiet: bool,
    stop: &'t AtomicBool,
    all: usize,
    told: usize,
}

impl Talk for Terminal<'_> {
    fn consent(&mut self, step: &Step) -> Consent {
        if self.yes {
            return Consent::Yes;
        }
        let question = fix_text::question(step, self.told + 1, self.all);
        // Discard what was typed before the question.
        if std::io::stdin().is_terminal() {
            let _ = rustix::termios::tcflush(std::io::stdin(), rustix::termios::QueueSelector::IFlush);
        }
        ask(&question);
        match self.answer().as_deref().map(str::trim) {
            Some("y" | "Y" | "yes") => Consent::Yes,
            Some("q" | "Q" | "quit") | None => Consent::Quit,
            Some(_) => Consent::No,
        }
    }

    fn tell(&mut self, step: &Step, outcome: &Outcome) {
        self.told += 1;
        if !self.quiet {
            let _ = print(&fix_text::told(step, outcome, self.told, self.all));
        }
    }
}

impl Terminal<'_> {
    /// A line; `None` at the end of input and at Ctrl-C.
    fn answer(&self) -> Option<String> {
        let stdin = std::io::stdin();
        let slice = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&slice)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => break,
                Err(_) => return None,
            }
        }
        let mut line = String::new();
        match stdin.lock().read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line),
        }
    }
}

fn for_image(args: &FixArgs, known: &KnownAgents) -> anyhow::Result<Exit> {
    ensure!(
        args.root.is_none() || args.recorded.from.is_none(),
        "--image takes the units of an image (--root) or of a recorded node (--from), not both"
    );
    let (mut evidence, of) = match &args.root {
        Some(dir) => (units::read_image(dir, known)?, dir.display().to_string()),
        None => match recorded::read(&args.recorded.query(), args.duration.is_some() || args.bus.is_some())? {
            Some(recorded) => (recorded.evidence, "the recorded node".to_owned()),
            None => (watch_node(args, known, args.duration.unwrap_or(WATCH_FOR))?, "this node".to_owned()),
        },
    };
    if !known.added.is_empty() {
        evidence.catalogues.clone_from(&known.added);
    }
    let audit = audit(&evidence);
    if let Err(error) = &audit.judgements {
        bail!("{error}");
    }
    ensure!(!audit.units.is_empty(), "no units were seen, so nothing can be said about the image");
    let catalogue = Catalogue::load(&evidence.catalogues)?;
    let plan = image::plan(&audit, &catalogue);
    let host = evidence.node.as_ref().and_then(|node| node.os.clone());
    let of = host.map(|os| format!("{of} ({os})")).unwrap_or(of);
    print(&match args.json {
        true => json_text(&fix_json::image(&plan, &of)?),
        false => plan.script(&of),
    })?;
    Ok(Exit::NothingWrong)
}
