//! Keys of findings: the same problem has the same key after a restart and on another node.
//!
//! A key is the finding's code and its subject, without what changes between starts: PIDs, core numbers, pod and container IDs, numbers of
//! kernel workers. Findings of one diagnosis may share a key (one unit fills two cores): they are one problem, and whoever stores them keeps
//! the worst.

use crate::finding::{Code, FactKey, Finding, SubjectKind};
use crate::ties::Queue;
use coroner_evidence::{CgroupOwner, name_pattern};

/// Separates the parts of a key.
const APART: char = ':';

/// Name prefixes of kernel threads that exist once per core or NUMA node.
const NUMBERED_KERNEL_THREADS: [&str; 3] = ["kswapd", "kcompactd", "kworker"];

/// What a key names beside the code.
#[derive(Debug, Clone, Copy)]
pub enum KeySubject<'a> {
    Unit(&'a str),
    Command(&'a str),
    Nic(&'a Queue),
    /// By its path.
    Cgroup(&'a str),
    /// By its pod and name.
    Container(&'a str),
    /// A number that is the same on each node.
    Xid(&'a str),
}

impl KeySubject<'_> {
    fn pattern(self) -> String {
        match self {
            KeySubject::Unit(unit) => unit_pattern(unit),
            KeySubject::Command(comm) => command_pattern(comm),
            // The same card is eth0 on one node and ens5 on another.
            KeySubject::Nic(Queue { driver: Some(driver), .. }) => clean(driver.clone()),
            KeySubject::Nic(Queue { device, .. }) => device_pattern(device),
            KeySubject::Cgroup(path) => cgroup_pattern(path),
            KeySubject::Container(name) => path_pattern(name),
            KeySubject::Xid(number) => clean(number.to_owned()),
        }
    }
}

/// `nic-reset:ena`, `cpu-steal`: without a subject, the code alone.
pub fn key(code: Code, subject: Option<KeySubject<'_>>) -> String {
    joined(code, [subject.map(KeySubject::pattern), None])
}

fn joined(code: Code, parts: [Option<String>; 2]) -> String {
    let mut key = code.as_str().to_owned();
    for part in parts.into_iter().flatten().filter(|part| !part.is_empty()) {
        key.push(APART);
        key.push_str(&part);
    }
    key
}

impl Finding {
    /// `core-saturated:kubelet.service`, `memcg-walk:kubelet:mem_cgroup_iter`, `nic-reset:ena`, `cpu-steal`.
    pub fn key(&self) -> String {
        joined(self.code, [self.key_subject().map(KeySubject::pattern), self.function()])
    }

    fn key_subject(&self) -> Option<KeySubject<'_>> {
        let name = self.subject.name.as_str();
        match self.subject.kind {
            SubjectKind::Unit => Some(KeySubject::Unit(name)),
            SubjectKind::Nic => self.ties.queues.first().map(KeySubject::Nic),
            SubjectKind::Cgroup => Some(KeySubject::Cgroup(name)),
            SubjectKind::Container => Some(KeySubject::Container(name)),
            SubjectKind::Gpu => self.fact(FactKey::XidDay).and_then(|fact| fact.of.as_deref()).map(KeySubject::Xid),
            SubjectKind::Process => {
                let itself = self.subject.task.as_ref().map(|task| KeySubject::Command(&task.comm));
                self.doer().or(itself)
            }
            SubjectKind::Core => self.doer(),
            SubjectKind::Node | SubjectKind::Other => None,
        }
    }

    /// The unit of the culprit, else its command.
    fn doer(&self) -> Option<KeySubject<'_>> {
        let unit = self.ties.units.first().map(|unit| KeySubject::Unit(unit));
        unit.or_else(|| self.ties.culprits.first().map(|task| KeySubject::Command(&task.comm)))
    }

    /// The kernel function it is mostly about.
    fn function(&self) -> Option<String> {
        match &self.fact(FactKey::MostlyIn)?.value {
            coroner_report::FactValue::Text(function) => Some(function_pattern(function)),
            _ => None,
        }
    }
}

/// A part of a key must not contain the separator.
fn clean(text: String) -> String {
    text.replace([APART, '`'], "_")
}

/// `run-r8f3.scope` → `run-*.scope`, `user@1000.service` → `user@*.service`; `node-exporter-2.service` stays: services are named on purpose.
fn unit_pattern(unit: &str) -> String {
    let made_up = unit.starts_with("run-") || !unit.ends_with(".service");
    clean(match unit.split_once('@') {
        _ if made_up => name_pattern(unit),
        Some((template, instance)) => format!("{template}@{}", name_pattern(instance)),
        None => unit.to_owned(),
    })
}

/// `kworker/3:1H-events` → `kworker`, `ksoftirqd/3` → `ksoftirqd`, `napi/eth0-524` → `napi/eth0`, `irq/45-nvme0q1` → `irq/nvme*`, `worker-12` → `worker-*`;
/// `python3` stays.
pub fn command_pattern(comm: &str) -> String {
    if let Some(known) = NUMBERED_KERNEL_THREADS.iter().find(|known| comm.starts_with(**known)) {
        return (*known).to_owned();
    }
    let (first, rest) = comm.split_once('/').unwrap_or((comm, ""));
    clean(match first {
        "napi" => format!("napi/{}", device_pattern(rest.rsplit_once('-').map_or(rest, |(device, _)| device))),
        "irq" => format!("irq/{}", name_pattern(rest.split_once('-').map_or(rest, |(_, name)| name))),
        _ if !rest.is_empty() && rest.starts_with(|c: char| c.is_ascii_digit()) => first.to_owned(),
        _ => words_pattern(comm),
    })
}

/// Replaces whole words that are numbers: `worker-12` → `worker-*`, but `python3` and `h2o` stay.
fn words_pattern(text: &str) -> String {
    let is_separator = |c: char| matches!(c, '-' | '_' | ':' | '#' | ' ' | '.');
    let parts = text.split_inclusive(is_separator).map(|part| {
        let word = part.trim_end_matches(is_separator);
        let number = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
        if number { format!("*{}", &part[word.len()..]) } else { part.to_owned() }
    });
    parts.collect()
}

/// Devices made per pod keep only their kind: `veth1a2b3c4d` → `veth*`. A device that was not seen has the name of the thread that polls it:
/// `napi/eth0-524` → `napi/eth0`.
fn device_pattern(device: &str) -> String {
    if device.starts_with("napi/") {
        return command_pattern(device);
    }
    let made_up = ["veth", "cali", "lxc", "tap", "eni", "br-", "docker"].iter().find(|kind| device.starts_with(**kind));
    clean(made_up.map_or_else(|| device.to_owned(), |kind| format!("{kind}*")))
}

/// The unit it belongs to, else its path without IDs and numbers.
fn cgroup_pattern(path: &str) -> String {
    let owner = CgroupOwner::of_path(path);
    match (owner.pod_uid, owner.container_id, owner.unit) {
        (None, None, Some(unit)) => unit_pattern(&unit),
        _ => path_pattern(path),
    }
}

fn path_pattern(path: &str) -> String {
    clean(path.split('/').map(pod_pattern).collect::<Vec<_>>().join("/"))
}

/// The alphabet of Kubernetes name suffixes (k8s.io/apimachinery, util/rand): no vowels, no digits that look like letters.
const POD_SUFFIX: &str = "bcdfghjklmnpqrstvwxz2456789";

/// `web-7d9f8b6c5-x2x4z` → `web-*`: a Deployment adds a template hash and five more characters, a DaemonSet or Job only the latter.
fn pod_pattern(name: &str) -> String {
    let is_made = |text: &str| text.chars().all(|c| POD_SUFFIX.contains(c));
    let Some((name, _)) = name.rsplit_once('-').filter(|(_, suffix)| suffix.len() == 5 && is_made(suffix)) else {
        return name_pattern(name);
    };
    let is_hash = |hash: &str| (8..=10).contains(&hash.len()) && is_made(hash);
    let name = name.rsplit_once('-').filter(|(_, hash)| is_hash(hash)).map_or(name, |(name, _)| name);
    format!("{}-*", name_pattern(name))
}

/// `mem_cgroup_iter.isra.0` → `mem_cgroup_iter`: what the compiler adds differs between builds.
fn function_pattern(function: &str) -> String {
    clean(function.split('.').next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests;
