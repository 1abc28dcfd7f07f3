//! Fuzzer of the target named by FUZZ_TARGET.
#![no_main]

mod targets;

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

static TARGET: OnceLock<targets::Target> = OnceLock::new();

fn target() -> targets::Target {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let Some((_, target)) = targets::ALL.iter().find(|(target_name, _)| *target_name == name) else {
        let known: Vec<&str> = targets::ALL.iter().map(|(name, _)| *name).collect();
        eprintln!("set FUZZ_TARGET to one of {}", known.join(", "));
        std::process::exit(2);
    };
    if name == "series" {
        // The reader converts panics of the parquet crate to errors; a panic that escapes still ends the run.
        std::panic::set_hook(Box::new(|_| ()));
    }
    *target
}

fuzz_target!(
    init: {
        TARGET.get_or_init(target);
    },
    |bytes: &[u8]| {
        TARGET.get_or_init(target)(bytes);
    }
);
