//! `coroner.waits/1`, documented in docs/json.md.

use super::diagnosis;
use coroner_diagnosis::waits::sums::{Balance, BlockedOn, Charged, KeptBy, Row, WaitSums, Who};
use coroner_evidence::{Evidence, probe};
use serde_json::{Value, json};

/// Who lost less than this is left out, unless all are requested.
pub const LEAST_LOSS_NS: u64 = 1_000_000;

pub fn document(sums: &WaitSums, evidence: &Evidence, all: bool) -> Value {
    let real = evidence.clocks.last().map(|c| (c.wall_of(sums.window.from), c.wall_of(sums.window.to)));
    let rows = sums.rows.iter().filter(|row| all || row.lost_ns() >= LEAST_LOSS_NS);
    json!({
        "schema": "coroner.waits/1",
        "host": evidence.node.as_ref().and_then(|n| n.host.as_deref()),
        "window": diagnosis::window(real),
        "method": sums.method.as_str(),
        "balance": balance(&sums.balance),
        "rows": rows.map(row).collect::<Vec<_>>(),
        "unseen": evidence.unseen,
    })
}

/// Why there is no ledger.
pub fn not_seen(evidence: &Evidence) -> String {
    match evidence.why_unseen(probe::WAITS) {
        Some(unseen) => format!("there is no wait ledger: {} (to see it: {})", unseen.why, unseen.how_to_see),
        None => "there is no wait ledger: this was recorded by a coroner without it".to_owned(),
    }
}

fn balance(balance: &Balance) -> Value {
    json!({
        "watched_ms": ms(balance.watched_ns),
        "waited_ms": ms(balance.waited_ns),
        "charged_ms": ms(balance.charged_ns),
        "unbooked_ms": ms(balance.unbooked_ns),
        "threads": balance.threads,
        "out_of_balance": balance.out_of_balance,
        "schedstat": {
            "threads": balance.compared,
            "ran_ms": ms(balance.ran_ns),
            "schedstat_ran_ms": ms(balance.schedstat_ran_ns),
            "waited_ms": ms(balance.compared_waited_ns),
            "schedstat_waited_ms": ms(balance.schedstat_waited_ns),
        },
        "throttled": { "ms": ms(balance.throttled_ns), "cpu_stat_ms": ms(balance.cgroup_throttled_ns) },
    })
}

fn row(row: &Row) -> Value {
    let (cores, cpuset) = match &row.kept_by {
        Some(KeptBy::Cores { cores, cpuset }) => (Some(cores.to_string()), cpuset.as_deref()),
        Some(KeptBy::Scheduler) | None => (None, None),
    };
    json!({
        "who": who(&row.who),
        "ran_ms": ms(row.ran_ns),
        "waited_ms": ms(row.waited_ns),
        "throttled_ms": ms(row.throttled_ns),
        "blocked_ms": ms(row.blocked_ns),
        "longest_wait_ms": ms(row.longest_wait_ns),
        "charged": row.charged.iter().map(charged).collect::<Vec<_>>(),
        "blocked_on": row.blocked_on.iter().map(blocked_on).collect::<Vec<_>>(),
        "kept_on_cores": cores,
        "kept_by_cpuset": cpuset,
    })
}

fn who(who: &Who) -> Value {
    json!({
        "kind": who.kind.as_str(),
        "name": who.name,
        "pid": who.pid,
        "tid": who.tid,
        "parent_pid": who.parent_pid,
        "cgroup": who.cgroup,
    })
}

fn charged(charged: &Charged) -> Value {
    json!({ "to": who(&charged.to), "core": charged.core, "ms": ms(charged.ns), "why": charged.why.as_str() })
}

fn blocked_on(on: &BlockedOn) -> Value {
    json!({
        "what": on.what,
        "function": on.function,
        "ms": ms(on.ns),
        "longest_ms": ms(on.longest_ns),
        "goes_on": on.goes_on,
    })
}

fn ms(ns: u64) -> f64 {
    (ns as f64 / 1e3).round() / 1e3
}
