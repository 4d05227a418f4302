//! `coroner waits` as text.

use super::safe::one_line;
use super::terminal::{bold, dim};
use coroner_diagnosis::waits::sums::{Balance, Charged, KeptBy, Row, WaitSums, Who, WhoKind};
use coroner_evidence::{CoreSet, Evidence, LedgerMethod, Order};
use std::collections::BTreeMap;

/// Rows shown unless all are requested.
const MOST_ROWS: usize = 12;
/// Who lost less than this share of the time watched is shown only if all are requested.
const LEAST_SHARE: f64 = 0.01;
/// The same if all are requested.
const LEAST_NS: u64 = 1_000_000;
const MOST_TAKERS: usize = 4;
/// Who took less than this share of a wait is not named.
const LEAST_TAKEN: f64 = 0.02;

pub fn render(sums: &WaitSums, evidence: &Evidence, all: bool) -> String {
    let host = evidence.node.as_ref().and_then(|n| n.host.as_deref()).unwrap_or("this node");
    let watched = sums.balance.watched_ns;
    let mut out =
        format!("{}: who waited for a core over {:.1} s\n", one_line(host), sums.window.length().as_secs_f64(),);
    if sums.method == LedgerMethod::Estimate {
        out.push_str(
            "This is an estimate without BPF: waits are from schedstat, and charged to who ran on the same core in the same second.\n",
        );
    }
    let length = sums.window.length().as_nanos() as u64;
    if watched < length / 100 * 98 {
        let share = watched as f64 * 100.0 / length.max(1) as f64;
        out.push_str(&format!(
            "Threads switch so often here that only {share:.0} % of the time was watched; times are of that.\n"
        ));
    }
    let least = if all { LEAST_NS } else { (watched as f64 * LEAST_SHARE) as u64 };
    let losers: Vec<&Row> = sums.rows.iter().filter(|row| row.lost_ns() >= least.max(1)).collect();
    if losers.is_empty() {
        out.push_str("Nobody lost more than 1 % of the time.\n");
    }
    let most = if all { losers.len() } else { MOST_ROWS };
    for row in losers.iter().take(most) {
        out.push('\n');
        out.push_str(&row_text(row));
    }
    if losers.len() > most {
        out.push_str(&dim(&format!("\n… and {} more (-v shows all)\n", losers.len() - most)));
    }
    if all {
        out.push('\n');
        out.push_str(&balance_text(&sums.balance));
        out.push('\n');
    }
    out
}

fn row_text(row: &Row) -> String {
    let mut line = format!("{}: ran {}", bold(&one_line(&name(&row.who))), time(row.ran_ns));
    let lost = [("waited", row.waited_ns), ("throttled", row.throttled_ns), ("blocked", row.blocked_ns)];
    for (what, ns) in lost.into_iter().filter(|(_, ns)| *ns >= LEAST_NS) {
        line.push_str(&format!(", {what} {}", time(ns)));
    }
    if row.longest_wait_ns >= LEAST_NS && row.waited_ns >= LEAST_NS {
        line.push_str(&format!(" (longest wait {})", time(row.longest_wait_ns)));
    }
    match &row.kept_by {
        // Of a group it is known only of one thread.
        Some(KeptBy::Cores { cores, cpuset }) if row.waited_ns >= LEAST_NS && is_task(&row.who) => {
            let by = cpuset.as_ref().map_or_else(String::new, |cgroup| format!(" (cpuset {})", one_line(cgroup)));
            line.push_str(&format!("; may run on {} only{by}", cores_text(cores)));
        }
        _ => {}
    }
    line.push('\n');
    for (taker, ns, cores) in takers(row) {
        let share = ns as f64 / row.waited_ns.max(1) as f64;
        line.push_str(&format!(
            "  {:>4.0} %  {:>8}  to {} on {}: {}\n",
            share.min(1.0) * 100.0,
            time(ns),
            if is_own(row, &taker.to) { "its own threads".to_owned() } else { one_line(&name(&taker.to)) },
            cores_text(&cores),
            taker.why.in_words()
        ));
    }
    if row.throttled_ns >= LEAST_NS {
        line.push_str(&format!("          {:>8}  to its own CPU quota\n", time(row.throttled_ns)));
    }
    for on in row.blocked_on.iter().take(MOST_TAKERS).filter(|on| on.ns >= LEAST_NS) {
        let function = on.function.as_deref().filter(|function| *function != on.what);
        line.push_str(&format!(
            "          {:>8}  blocked on {}{}{}\n",
            time(on.ns),
            one_line(&on.what),
            function.map(|function| format!(" in {function}")).unwrap_or_default(),
            if on.goes_on { ", and still is" } else { "" }
        ));
    }
    line
}

fn is_task(who: &Who) -> bool {
    matches!(who.kind, WhoKind::Thread | WhoKind::Process | WhoKind::ShortLived)
}

/// Whether it waited for itself: another thread of the process, another process of the group.
fn is_own(row: &Row, taker: &Who) -> bool {
    row.who == *taker || (row.who.tid.is_some() && row.who.pid.is_some() && row.who.pid == taker.pid)
}

fn cores_text(cores: &CoreSet) -> String {
    format!("{} {cores}", if cores.len() == 1 { "core" } else { "cores" })
}

/// Largest first; cores of the same taker together.
fn takers(row: &Row) -> Vec<(&Charged, u64, CoreSet)> {
    let mut sums: BTreeMap<(&Who, &'static str), (&Charged, u64, Vec<u32>)> = BTreeMap::new();
    for charged in &row.charged {
        let sum = sums.entry((&charged.to, charged.why.as_str())).or_insert((charged, 0, Vec::new()));
        sum.1 = sum.1.saturating_add(charged.ns);
        sum.2.push(charged.core);
    }
    let least = (row.waited_ns as f64 * LEAST_TAKEN) as u64;
    let mut takers: Vec<_> = sums.into_values().filter(|(_, ns, _)| *ns >= least.max(LEAST_NS)).collect();
    takers.order_by_key(|taker| std::cmp::Reverse(taker.1));
    takers.truncate(MOST_TAKERS);
    takers.into_iter().map(|(charged, ns, cores)| (charged, ns, CoreSet::new(cores))).collect()
}

fn name(who: &Who) -> String {
    let mut name = match who.kind {
        WhoKind::Cgroup => format!("cgroup {}", who.name),
        WhoKind::Pod => format!("pod {}", who.name),
        _ => who.name.clone(),
    };
    match (who.pid, who.tid) {
        (Some(pid), Some(tid)) if pid != tid => name.push_str(&format!(" (tid {tid} of pid {pid})")),
        (Some(pid), _) => name.push_str(&format!(" (pid {pid})")),
        (None, _) => {}
    }
    if let Some(parent) = who.parent_pid {
        name.push_str(&format!(" (pid {parent})"));
    }
    if let Some(cgroup) = who.cgroup.as_deref().filter(|cgroup| is_task(who) && *cgroup != "/") {
        name.push_str(&format!(" in {cgroup}"));
    }
    name
}

fn time(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    if ms >= 1000.0 {
        format!("{:.2} s", ms / 1e3)
    } else if ms >= 10.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{ms:.1} ms")
    }
}

/// One line.
pub fn balance_text(balance: &Balance) -> String {
    let Balance { waited_ns, charged_ns, unbooked_ns, threads, out_of_balance, compared, .. } = *balance;
    let share = charged_ns as f64 * 100.0 / waited_ns.max(1) as f64;
    let mut text = format!("Wait ledger: {} waited, {share:.0} % of it charged", time(waited_ns));
    if unbooked_ns > 0 {
        text.push_str(&format!(", {} not for want of room", time(unbooked_ns)));
    }
    text.push_str(&format!("; {out_of_balance} of {threads} accounts do not add up"));
    if compared > 0 {
        text.push_str(&format!(
            ". Of {compared} threads: ran {} (schedstat {}), waited {} (schedstat, which has a wait when it ends, {})",
            time(balance.ran_ns),
            time(balance.schedstat_ran_ns),
            time(balance.compared_waited_ns),
            time(balance.schedstat_waited_ns)
        ));
    }
    if balance.throttled_ns > 0 || balance.cgroup_throttled_ns > 0 {
        let (threads, cores) = (time(balance.throttled_ns), time(balance.cgroup_throttled_ns));
        text.push_str(&format!(". Throttled {threads} by thread (cpu.stat, by core: {cores})"));
    }
    text + "."
}
