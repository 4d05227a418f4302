//! `coroner cores`.

use super::{WATCH_FOR, watch};
use crate::args::CoresArgs;
use crate::exit::Exit;
use crate::output::{cores_text, json_text, print, with_line};
use anyhow::Context;
use coroner_diagnosis::cores::owners::Ownership;
use coroner_diagnosis::cores::timeline::Shares;
use coroner_diagnosis::cores::{CoreSummary, Cores, Summary};
use coroner_evidence::Evidence;
use coroner_probes::watch::NameZombies;
use coroner_source::recorded::{self, with_recorder};
use coroner_web::documents;
use serde_json::{Value, json};

/// JSON: one entry of the strip per sample of the cores.
const STEP_NS: u128 = 100_000_000;
/// JSON: the longest strip; beyond this, steps get longer.
const MOST_STEPS: u128 = 6000;

pub fn run(args: CoresArgs) -> anyhow::Result<Exit> {
    let mut recorded = recorded::read(&args.recorded.query(), args.duration.is_some() || args.node.is_asked())?;
    let evidence = match &mut recorded {
        Some(recorded) => {
            args.node.must_not_be_asked()?;
            std::mem::take(&mut recorded.evidence)
        }
        None => {
            let options = args.node.node().watch_options(NameZombies::IfMany, None);
            watch(args.node.node().root(), options, args.duration.unwrap_or(WATCH_FOR))?
        }
    };
    let cores = Cores::of(&evidence);
    let parts = if args.json {
        let length = evidence.window().context("the cores could not be read")?.length().as_nanos();
        (length.div_ceil(STEP_NS)).clamp(1, MOST_STEPS) as usize
    } else {
        cores_text::strip_columns()
    };
    let summary = cores.summary(parts).context("the cores could not be read")?;
    let text = if args.json {
        json_text(&with_recorder(document(&summary, &evidence), recorded.as_ref()))
    } else {
        with_line(cores_text::render(&summary, &evidence, args.all), recorded.as_ref())
    };
    print(&text)?;
    Ok(Exit::NothingWrong)
}

/// `coroner.cores/1`, documented in docs/json.md.
fn document(summary: &Summary, evidence: &Evidence) -> Value {
    let real = evidence.clocks.last().map(|c| (c.wall_of(summary.window.from), c.wall_of(summary.window.to)));
    json!({
        "schema": "coroner.cores/1",
        "host": evidence.node.as_ref().and_then(|n| n.host.as_deref()),
        "window": documents::diagnosis::window(real),
        "average": shares(&summary.average),
        "worst": summary.worst,
        "cores": summary.cores.iter().map(|core| core_document(core, summary)).collect::<Vec<_>>(),
        "unseen": evidence.unseen,
    })
}

fn core_document(core: &CoreSummary, summary: &Summary) -> Value {
    let owner = core.ownership.owner().map(|owner| {
        let who = owner.who();
        json!({
            "name": owner.name(),
            "share": rounded(owner.share),
            "pid": who.and_then(|w| w.pid),
            "tid": who.map(|w| w.tid),
        })
    });
    let unknown_because = match &core.ownership {
        Ownership::Owned(_) => None,
        Ownership::Shared(why) | Ownership::Unknown(why) => Some(why),
    };
    let step = summary.window.length().as_secs_f64() / core.strip.len().max(1) as f64;
    let strip: Vec<Value> = core
        .strip
        .iter()
        .enumerate()
        .map(|(i, part)| {
            json!({
                "at_s": rounded((i + 1) as f64 * step),
                "busy": part.as_ref().map(|s| rounded(s.busy())),
                "kernel": part.as_ref().map(|s| rounded(s.kernel())),
            })
        })
        .collect();
    json!({
        "core": core.core,
        "shares": shares(&core.shares),
        "full_s": rounded(core.full_ns as f64 / 1e9),
        "owner": owner,
        "owner_unknown_because": unknown_because,
        "serves": core.queues,
        "strip": strip,
    })
}

fn shares(shares: &Shares) -> Value {
    json!({
        "busy": rounded(shares.busy()),
        "user": rounded(shares.user),
        "system": rounded(shares.system),
        "irq": rounded(shares.irq),
        "softirq": rounded(shares.softirq),
        "steal": rounded(shares.steal),
        "iowait": rounded(shares.iowait),
        "idle": rounded(shares.idle),
    })
}

/// The kernel's ticks do not support more than three digits.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
