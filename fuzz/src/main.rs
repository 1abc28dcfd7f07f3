//! The fuzzer of one target, which FUZZ_TARGET names.
#![no_main]

mod targets;

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

static TARGET: OnceLock<targets::Target> = OnceLock::new();

fn chosen() -> targets::Target {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let Some((_, target)) = targets::ALL.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = targets::ALL.iter().map(|(name, _)| *name).collect();
        eprintln!("set FUZZ_TARGET to one of {}", known.join(", "));
        std::process::exit(2);
    };
    if name == "series" {
        // The reader turns the parquet crate's panics into errors; one that escapes it ends the run all the same.
        std::panic::set_hook(Box::new(|_| ()));
    }
    *target
}

fuzz_target!(
    init: {
        TARGET.get_or_init(chosen);
    },
    |bytes: &[u8]| {
        TARGET.get_or_init(chosen)(bytes);
    }
);
