#![no_main]

#[path = "../../crates/profile/tests/targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::Target::named("perf_data").check(bytes));
