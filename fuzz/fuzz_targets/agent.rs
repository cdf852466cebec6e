#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ibsm_fuzz::agent::run(input));
