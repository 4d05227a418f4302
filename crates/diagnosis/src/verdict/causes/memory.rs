//! Memory is short: in one cgroup by its own limit, or on the whole node.

use super::{Cause, Root, measured};
use crate::case::Case;
use crate::code::Code;
use crate::finding::{Finding, SubjectKind};
use crate::verdict::{Proof, Proofs};

/// The subject of a kill for want of memory on the node as a whole.
const NODE: &str = "memory";

pub const CAUSE: Cause = Cause { codes: &[Code::MemoryReclaim, Code::OomKill], judge };

fn judge(_: &Case<'_>, finding: &Finding) -> Option<Root> {
    let cgroup = finding.subject.kind == SubjectKind::Cgroup;
    let name = &finding.subject.name;
    Some(match (finding.code, cgroup) {
        (Code::MemoryReclaim, true) => Root::of(
            finding,
            format!("{name} wants more memory than its own limit allows, and has to free some for each new page"),
            measured(finding, "limit, use and stalls are of the same cgroup"),
            "A higher limit helps only if the node has the memory; a leak fills any limit.",
        ),
        (Code::MemoryReclaim, false) => Root::of(
            finding,
            "the whole node is short of memory: threads must free some before they get any",
            measured(finding, "the kernel counts this for the node as a whole"),
            "Waking kswapd earlier spares the jobs the stalls; it does not make the memory more.",
        ),
        _ => Root::of(
            finding,
            match cgroup {
                true => format!("{name} used more memory than its own limit allows"),
                false if name != NODE => "each of these cgroups used more memory than its own limit allows".to_owned(),
                false => "the kernel killed where memory had run out".to_owned(),
            },
            Proofs {
                identity: Proof::shown(match name == NODE {
                    true => "the kernel says that the node's memory had run out",
                    false => "the kernel says whose limit it was",
                }),
                order: Proof::not_seen("how memory grew before the kill was not watched"),
                size: Proof::shown(finding.title.clone()),
            },
            "A higher limit does not help against a leak: it only takes longer until the next kill.",
        ),
    })
}
