//! Fuzz target: bytes of any origin as the body of a report, packed and as they are. What is accepted must be within the collector's bounds.

#[allow(dead_code)]
#[path = "../../src/ingest.rs"]
mod ingest;

use coroner_report::Wall;

/// 2026-09-21
const NOW: Wall = Wall(1_790_000_000_000_000_000);
const DAY_NS: u64 = 86_400_000_000_000;

pub fn check(bytes: &[u8]) {
    let packed = zstd::bulk::compress(bytes, 1).unwrap_or_default();
    for body in [bytes, &packed] {
        let batches = match ingest::parse(body, NOW) {
            Ok(batches) => batches,
            Err(refused) => {
                assert!(!refused.0.contains('\u{1b}'), "an error repeats what commands a terminal: {refused}");
                continue;
            }
        };
        assert!(!batches.is_empty());
        for batch in &batches {
            let head = &batch.head;
            assert!(!head.node.is_empty() && head.node.len() <= 256 && head.sequence >= 1);
            assert!(batch.minutes.iter().all(|minute| minute.minute.0 <= NOW.0 + DAY_NS));
            assert!(batch.diagnoses.iter().all(|concluded| concluded.problems.len() <= 100));
            let Some(node) = &batch.node else { continue };
            let attributes = ingest::attributes_of(node);
            assert!(attributes.len() <= 2 * 256 + 1);
            assert!(!attributes.iter().any(|(name, value)| name.contains('\u{1b}') || value.contains('\u{1b}')));
        }
    }
}
