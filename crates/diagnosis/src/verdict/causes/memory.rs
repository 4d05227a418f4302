//! Memory is short: in one cgroup because of its limit, or on the whole node.

use super::{Cause, Root, measured};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Finding, SubjectKind};
use crate::verdict::{Proof, Proofs};

/// The subject of an OOM kill that is not blamed on a cgroup.
const NODE: &str = "memory";

pub const CAUSE: Cause = Cause { codes: &[Code::MemoryReclaim, Code::OomKill], judge };

fn judge(case: &Case<'_>, finding: &Finding) -> Option<Root> {
    let cgroup = finding.subject.kind == SubjectKind::Cgroup;
    let name = &finding.subject.name;
    Some(match (finding.code, cgroup) {
        (Code::MemoryReclaim, true) => Root::of(
            finding,
            format!("{name} needs more memory than its limit allows and must reclaim pages to get new ones"),
            measured(finding, "limit, usage and stalls are of the same cgroup"),
            "A higher limit helps only if the node has the memory; a leak fills any limit.",
        ),
        (Code::MemoryReclaim, false) => Root::of(
            finding,
            match finding.ties.culprits.first() {
                Some(holder) => format!(
                    "the whole node is short of memory, most of it held by {}{}: threads must reclaim pages to get new ones",
                    holder.name(),
                    case.home_of(holder.pid)
                ),
                None => "the whole node is short of memory: threads must reclaim pages to get new ones".to_owned(),
            },
            measured(finding, "the kernel counts this for the node as a whole"),
            "Waking kswapd earlier spares jobs the stalls but adds no memory.",
        ),
        _ => Root::of(
            finding,
            match cgroup {
                true => format!("{name} needed more memory than its limit allows"),
                false if name != NODE => "each of these cgroups needed more memory than its limit allows".to_owned(),
                false => "memory ran out, and the kernel killed processes".to_owned(),
            },
            Proofs {
                identity: Proof::shown(match name == NODE {
                    true => "the kernel itself reports the kills",
                    false => "the kernel names the cgroup whose limit was hit",
                }),
                order: Proof::not_seen("how memory grew before the kill"),
                size: Proof::shown(finding.title.clone()),
            },
            "A higher limit does not fix a leak: it only delays the next kill.",
        ),
    })
}
