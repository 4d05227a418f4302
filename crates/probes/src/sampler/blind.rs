//! Why stacks cannot be sampled, worded for [`Evidence::unseen`].

use coroner_evidence::{Evidence, probe};

use crate::Root;
use crate::perf::blind::explain;
use crate::perf::cores::Refused;

const WHAT: &str = "which functions run on each core (stack samples)";

pub(super) fn not_live(evidence: &mut Evidence) {
    evidence.unseen(probe::SAMPLES, WHAT, "this is a directory tree, not the running node", "run on the node itself");
}

pub(super) fn no_cores(why: &str, evidence: &mut Evidence) {
    evidence.unseen(probe::SAMPLES, WHAT, why, "run where /sys is mounted");
}

/// perf_event_open or mapping its ring failed.
pub(super) fn refused(root: &Root, refused: &Refused, evidence: &mut Evidence) {
    let Refused { error, blind, cores } = refused;
    let what = if blind < cores { format!("{WHAT}, on {blind} of {cores} cores") } else { WHAT.to_owned() };
    let (why, how_to_see) = explain(root, error);
    evidence.unseen(probe::SAMPLES, what, why, how_to_see);
}
