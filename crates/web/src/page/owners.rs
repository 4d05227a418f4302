//! `coroner.owners/1`: commands, processes and cgroups with samples, for the filters.

use super::api::{most_read, refused, samples};
use super::question::selection;
use super::shown::Shown;
use coroner_evidence::Order;
use coroner_http::{Answer, ApiQuery, Refusal};
use coroner_profile::import::Stacks;
use coroner_profile::model::Task;
use coroner_profile::views::{Kinds, SampleKind};
use coroner_source::profile;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// How many of each kind are listed.
const MOST: usize = 200;

pub fn answer(shown: &Shown, ask: &ApiQuery) -> Result<Answer, Refusal> {
    let selection = selection(ask, shown, "")?;
    let (source, part) = samples(shown, ask, &selection, most_read(ask))?;
    let with_idle = ask.is_set("idle");
    let mut kinds = Kinds::default();
    let mut tasks: HashMap<u32, u64> = HashMap::new();
    let read = profile::read_with(&source, &selection, Stacks::OfIdleTasks, &mut |names, sample| {
        if with_idle || kinds.kind(names, sample) != SampleKind::Idle {
            *tasks.entry(sample.task.0).or_default() += 1;
        }
    })
    .map_err(refused)?;
    let all: u64 = tasks.values().sum();
    let names = &read.names;
    let (mut comms, mut processes, mut cgroups) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for (task, count) in tasks {
        let task: Task = names.task(coroner_profile::model::TaskId(task));
        let comm = names.strings.get(task.comm);
        *comms.entry(comm).or_insert(0u64) += count;
        if let Some(pid) = task.pid {
            // A process is named after its main thread, else after the one with the most samples.
            let (total, best, name) = processes.entry(pid).or_insert((0u64, 0u64, comm));
            *total += count;
            let weight = if task.tid == Some(pid) { u64::MAX } else { count };
            if weight > *best {
                (*best, *name) = (weight, comm);
            }
        }
        if let Some(cgroup) = task.cgroup {
            *cgroups.entry(names.strings.get(cgroup)).or_insert(0u64) += count;
        }
    }
    let share = |count: u64| if all == 0 { 0.0 } else { (count as f64 / all as f64 * 1e5).round() / 1e5 };
    let comms = most(comms.into_iter().map(|(comm, n)| (n, json!({ "comm": comm, "samples": n, "share": share(n) }))));
    let processes = most(
        processes
            .into_iter()
            .map(|(pid, (n, _, comm))| (n, json!({ "pid": pid, "comm": comm, "samples": n, "share": share(n) }))),
    );
    let cgroups =
        most(cgroups.into_iter().map(|(path, n)| (n, json!({ "cgroup": path, "samples": n, "share": share(n) }))));
    Ok(Answer::json(&json!({
        "schema": "coroner.owners/1",
        "samples": all,
        "part": part,
        "comms": comms,
        "processes": processes,
        "cgroups": cgroups,
    })))
}

fn most(all: impl Iterator<Item = (u64, Value)>) -> Vec<Value> {
    let mut all: Vec<(u64, Value)> = all.collect();
    all.order_by_key(|(count, _)| std::cmp::Reverse(*count));
    all.into_iter().take(MOST).map(|(_, value)| value).collect()
}
