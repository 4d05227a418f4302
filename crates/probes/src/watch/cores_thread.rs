//! Reads the cores on their own thread, so that a slow read elsewhere leaves no gap.

use super::gaps::Gaps;
use super::paces::CORES_EVERY;
use crate::cores::CoreTimeReader;
use crate::root::{Root, now, read_clocks};
use coroner_evidence::Evidence;
use std::sync::mpsc::{Receiver, channel};

/// Starts a thread that reads the cores until the receiver is dropped.
pub fn sample_cores(root: Root) -> Receiver<Evidence> {
    let (sender, receiver) = channel();
    let mut reader = CoreTimeReader::new(&root);
    let sample = move || {
        let mut next = now();
        let mut gaps = Gaps::default();
        loop {
            let mut evidence = Evidence::default();
            let clocks = read_clocks();
            gaps.note(clocks, &mut evidence);
            reader.look(clocks.at, &mut evidence);
            if sender.send(evidence).is_err() {
                return;
            }
            // From the planned time, so that the pace does not drift; after a delay there is no burst.
            next = (next + CORES_EVERY).max(now());
            std::thread::sleep(next.since(now()));
        }
    };
    // Without a thread nothing is sent, and the caller reports that the cores could not be seen.
    let _ = std::thread::Builder::new().name("cores".to_owned()).spawn(sample);
    receiver
}
