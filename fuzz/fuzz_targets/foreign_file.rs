#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| muster_damage::targets::run("foreign_file", input));
