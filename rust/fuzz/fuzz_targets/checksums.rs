#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensordict_fuzz::checksums(bytes));
