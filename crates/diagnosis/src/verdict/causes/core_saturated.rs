//! A core that one known thread fills; a full core without a known owner is no cause.

use super::{Cause, Root};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{FactKey, Finding};
use crate::verdict::{Proof, Proofs};
use crate::words::percent;
use coroner_evidence::{Window, WorkKind, WorkRow};

/// From this share of the core's busy time on, the thread fills it.
const MOST_PERCENT: f64 = 50.0;

pub const CAUSE: Cause = Cause { codes: &[Code::CoreSaturated, Code::NicCoreStarved], judge };

fn judge(case: &Case<'_>, finding: &Finding) -> Option<Root> {
    let thread = finding.ties.culprits.first()?;
    let core = *finding.ties.cores.first()?;
    // coroner's own load ends when coroner does.
    if case.is_observer(thread.pid) {
        return None;
    }
    let what = what_it_does(case, finding, core, thread.pid);
    let home = case.home_of(thread.pid);
    let because = match &what {
        Some(what) => format!("{}{home} filled core {core}, with {what}", thread.name()),
        None => format!("{}{home} filled core {core}", thread.name()),
    };
    let proofs = Proofs {
        identity: Proof::shown(format!("{} ran on core {core}", thread.name())),
        order: Proof::shown("cause and effect were measured together"),
        size: match finding.number(FactKey::OwnerShare) {
            Some(share) if share >= MOST_PERCENT => Proof::shown(format!("it had {share} % of the core's busy time")),
            _ => Proof::not_seen("whether it had most of the core's busy time"),
        },
    };
    Some(Root::of(finding, because, proofs, "Only the program's owner can tell why it does this."))
}

/// `92 % of its kernel time in page faults (handle_mm_fault)`
fn what_it_does(case: &Case<'_>, finding: &Finding, core: u32, pid: u32) -> Option<String> {
    let when = finding.ties.when?;
    let window = Some(Window { from: when.from, to: when.to });
    let work = case.work()?;
    let of_it = |row: &WorkRow| row.core == core && row.pid == pid;
    let all = work.time_within(window, of_it);
    let time_of = |kind: WorkKind| work.time_within(window, |row| of_it(row) && row.kind == kind);
    let most = WorkKind::ALL.iter().copied().max_by_key(|kind| time_of(*kind))?;
    let share = time_of(most).as_secs_f64() / all.as_secs_f64().max(1e-9);
    if all.is_zero() || most == WorkKind::Unnamed {
        return None;
    }
    let (symbol, _) = *work.symbols(|row| of_it(row) && row.kind == most).first()?;
    Some(match most {
        WorkKind::Other => format!("{} of its kernel time around {symbol}", percent(share)),
        _ => format!("{} of its kernel time in {} ({symbol})", percent(share), most.words()),
    })
}
