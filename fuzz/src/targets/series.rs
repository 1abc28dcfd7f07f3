//! Parquet files of series from arbitrary bytes, as run files and as files of a record.

use bytes::Bytes;
use netstage_study::series::{SeriesReader, read_run};

pub fn run(bytes: &[u8]) {
    let file = Bytes::copy_from_slice(bytes);
    let _ = read_run(&file);
    if let Ok(mut reader) = SeriesReader::new(file) {
        while let Ok(Some(_)) = reader.next_blocks() {}
    }
}
