//! Parquet files of series from arbitrary bytes, as run files and as a record's.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use netstage_study::series::{SeriesReader, read_run};
use std::sync::Once;

static QUIET: Once = Once::new();

fuzz_target!(|bytes: &[u8]| {
    // The reader turns the parquet crate's panics into errors; one that escapes it ends the run all the same.
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| ())));
    let file = Bytes::copy_from_slice(bytes);
    let _ = read_run(&file);
    if let Ok(mut reader) = SeriesReader::new(file) {
        while let Ok(Some(_)) = reader.next_blocks() {}
    }
});
