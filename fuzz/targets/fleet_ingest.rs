#![no_main]

#[path = "../../crates/fleet/tests/targets/fleet_ingest.rs"]
mod fleet_ingest;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fleet_ingest::check(bytes));
