//! `coroner cores` as text.

use super::safe::one_line;
use super::terminal::{bold, by_load, dim, width};
use coroner_diagnosis::cores::owners::Ownership;
use coroner_diagnosis::cores::timeline::Shares;
use coroner_diagnosis::cores::words::percent;
use coroner_diagnosis::cores::{CoreSummary, Summary};
use coroner_diagnosis::words::plural;
use coroner_evidence::{CoreSet, Evidence, Order};

/// A core that stays below this in every part of the strip is quiet and folded.
const QUIET: f64 = 0.2;
/// With this few cores, none is folded.
const FEW: usize = 8;
/// Columns core, busy, user, sys, irq, soft and steal.
const NUMBERS_WIDTH: usize = 6 + 5 * 6 + 6;
const OWNER_WIDTH: usize = 24;

/// Width of the strip in this terminal.
pub fn strip_columns() -> usize {
    width().saturating_sub(NUMBERS_WIDTH + OWNER_WIDTH + 4).clamp(20, 60)
}

pub fn render(summary: &Summary, evidence: &Evidence, all: bool) -> String {
    let mut out = String::new();
    let host = evidence.node.as_ref().and_then(|n| n.host.as_deref()).unwrap_or("this node");
    let until = evidence.clocks.last().map(|c| format!(" until {}", c.wall_of(summary.window.to)));
    out.push_str(&format!(
        "{}: {} cores over {:.1} s{}\n",
        one_line(host),
        summary.cores.len(),
        summary.window.length().as_secs_f64(),
        until.unwrap_or_default()
    ));
    out.push_str(&average_line(summary));
    out.push('\n');

    let columns = summary.cores.first().map_or(0, |c| c.strip.len());
    let axis = format!("0 s{:>room$.1} s", summary.window.length().as_secs_f64(), room = columns.saturating_sub(5));
    out.push_str(&dim(&format!(
        "core  {axis:<columns$}   busy   user    sys    irq   soft  steal  owner · NIC queues it serves\n"
    )));

    let (mut shown, quiet): (Vec<&CoreSummary>, Vec<&CoreSummary>) =
        summary.cores.iter().partition(|core| all || summary.cores.len() <= FEW || !is_quiet(core));
    shown.order_by(|a, b| rank(b).total_cmp(&rank(a)).then(a.core.cmp(&b.core)));
    for core in shown {
        out.push_str(&core_line(core));
    }
    if !quiet.is_empty() {
        out.push_str(&quiet_line(&quiet));
    }
    out
}

/// The average beside the worst core, to show what an average hides.
fn average_line(summary: &Summary) -> String {
    let mut line = format!(
        "average {} busy, {} in the kernel",
        bold(&percent(summary.average.busy())),
        percent(summary.average.kernel())
    );
    if let Some(worst) = summary.worst.and_then(|worst| summary.cores.iter().find(|c| c.core == worst)) {
        line.push_str(&format!(
            " · worst core {}: {} busy, {} in the kernel",
            worst.core,
            by_load(worst.shares.busy(), &percent(worst.shares.busy())),
            percent(worst.shares.kernel())
        ));
        if worst.full_ns > 0 {
            line.push_str(&format!(", full for {:.1} s", worst.full_ns as f64 / 1e9));
        }
    }
    line + "\n"
}

fn core_line(core: &CoreSummary) -> String {
    let strip: String = core.strip.iter().map(cell).collect();
    let Shares { user, system, irq, softirq, steal, .. } = core.shares;
    let mut line = format!("{:>4}  {strip}  {}", core.core, by_load(core.shares.busy(), &number(core.shares.busy())));
    for share in [user, system, irq, softirq, steal] {
        line.push_str(&format!(" {}", number(share)));
    }
    line.push_str("  ");
    line.push_str(&one_line(&owner(core)));
    if !core.queues.is_empty() {
        line.push_str(&format!(" · {}", one_line(&core.queues.join(", "))));
    }
    line + "\n"
}

/// One part of the strip; its height shows how busy the core was.
fn cell(shares: &Option<Shares>) -> String {
    const HEIGHTS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
    match shares {
        None => dim("?"),
        Some(shares) => {
            let busy = shares.busy().clamp(0.0, 1.0);
            // Show at least something for any load.
            let height = if busy > 0.02 { ((busy * 8.0).round() as usize).max(1) } else { 0 };
            by_load(busy, HEIGHTS[height.min(8)])
        }
    }
}

fn owner(core: &CoreSummary) -> String {
    match &core.ownership {
        Ownership::Owned(owner) if core.shares.busy() >= 0.01 => format!("{} {}", owner.name(), percent(owner.share)),
        _ => "–".to_owned(),
    }
}

fn quiet_line(quiet: &[&CoreSummary]) -> String {
    let cores = CoreSet::new(quiet.iter().map(|c| c.core));
    let average = quiet.iter().map(|c| c.shares.busy()).sum::<f64>() / quiet.len() as f64;
    let queues = quiet.iter().filter(|c| !c.queues.is_empty()).count();
    let mut line = format!(
        "{} (always below {}, {} on average): {cores}",
        plural(quiet.len() as u64, "quiet core", "quiet cores"),
        percent(QUIET),
        percent(average)
    );
    if queues > 0 {
        line.push_str(&format!("; {queues} of them {} NIC queues", if queues == 1 { "serves" } else { "serve" }));
    }
    dim(&(line + " (--all shows them)\n"))
}

fn is_quiet(core: &CoreSummary) -> bool {
    core.full_ns == 0 && core.strip.iter().flatten().all(|part| part.busy() < QUIET)
}

/// Full cores first, then by load.
fn rank(core: &CoreSummary) -> f64 {
    core.full_ns as f64 + core.shares.busy()
}

fn number(share: f64) -> String {
    format!("{:>4.0} %", share * 100.0)
}
