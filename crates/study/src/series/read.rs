//! Reading of series files. Callers verify a file's checksum first.

use super::{COLUMNS, NOTE_KEY, RunMetadata};
use bytes::Bytes;
use netstage_core::time::Duration;
use netstage_scenario::outcome::{Metric, RunOutcome, RunTotals, Series, current_name};
use netstage_scenario::regular_file;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, FileReader as _, RowGroupReader, SerializedFileReader};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// Maximum bins of a run and rows of a row group. A file that exceeds it is damaged.
const MAX_ROWS: usize = 1 << 24;

/// Consecutive rows of one run, metric and subject.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Cell index.
    pub cell: u32,
    /// Seed of the run.
    pub seed: u64,
    /// Name of the metric.
    pub metric: Arc<str>,
    /// Subject.
    pub subject: Arc<str>,
    /// Start times of the bins in nanoseconds.
    pub times: Vec<u64>,
    /// Values of the bins.
    pub values: Vec<f64>,
}

/// Reader of a series file, one row group at a time.
pub struct SeriesReader<R: ChunkReader + 'static = File> {
    file: SerializedFileReader<R>,
    next: usize,
}

impl SeriesReader<File> {
    /// Opens a series file.
    pub fn open(path: &Path) -> Result<SeriesReader> {
        SeriesReader::new(regular_file::open(path)?)
    }
}

impl<R: ChunkReader + 'static> SeriesReader<R> {
    /// Creates a reader of `source`.
    pub fn new(source: R) -> Result<SeriesReader<R>> {
        let length = source.len();
        let file = guarded(|| SerializedFileReader::new(source))?;
        check_ranges(&file, length)?;
        let columns = file.metadata().file_metadata().schema_descr().columns();
        if !columns.iter().map(|c| c.name()).eq(COLUMNS) {
            return Err(ParquetError::General("not a series file: unexpected columns".into()));
        }
        Ok(SeriesReader { file, next: 0 })
    }

    /// Returns the blocks of the next row group, or `None` at the end.
    pub fn next_blocks(&mut self) -> Result<Option<Vec<Block>>> {
        if self.next == self.file.num_row_groups() {
            return Ok(None);
        }
        self.next += 1;
        guarded(|| blocks(self.file.get_row_group(self.next - 1)?.as_ref()).map(Some))
    }
}

/// Converts panics of the parquet crate, which occur on some damaged files, into errors.
fn guarded<T>(decode: impl FnOnce() -> Result<T>) -> Result<T> {
    let damaged = |_| Err(ParquetError::General("the file is damaged".into()));
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(damaged)
}

/// Rejects column chunks outside of the file, on which the parquet crate panics.
fn check_ranges<R: ChunkReader + 'static>(file: &SerializedFileReader<R>, length: u64) -> Result<()> {
    for column in file.metadata().row_groups().iter().flat_map(|group| group.columns()) {
        let start = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
        let size = column.compressed_size();
        let inside =
            start >= 0 && size >= 0 && start.checked_add(size).is_some_and(|end| end as u64 <= length);
        if !inside || column.data_page_offset() < start || column.num_values() < 0 {
            return Err(ParquetError::General("a column is outside of the file".into()));
        }
    }
    Ok(())
}

fn blocks(group: &dyn RowGroupReader) -> Result<Vec<Block>> {
    let cells = column::<parquet::data_type::Int32Type>(group, 0)?;
    let seeds = column::<parquet::data_type::Int64Type>(group, 1)?;
    let times = column::<parquet::data_type::Int64Type>(group, 2)?;
    let subjects = column::<parquet::data_type::ByteArrayType>(group, 3)?;
    let metrics = column::<parquet::data_type::ByteArrayType>(group, 4)?;
    let values = column::<parquet::data_type::DoubleType>(group, 5)?;
    let rows = values.len();
    if [cells.len(), seeds.len(), times.len(), subjects.len(), metrics.len()] != [rows; 5] {
        return Err(ParquetError::General("columns differ in length".into()));
    }
    let mut blocks: Vec<Block> = Vec::new();
    let mut start = 0;
    while start < rows {
        let same = |i: usize| {
            same_bytes(&subjects[i], &subjects[start])
                && same_bytes(&metrics[i], &metrics[start])
                && cells[i] == cells[start]
                && seeds[i] == seeds[start]
        };
        let end = (start + 1..rows).find(|&i| !same(i)).unwrap_or(rows);
        blocks.push(Block {
            cell: cells[start] as u32,
            seed: seeds[start] as u64,
            metric: current_name(metrics[start].as_utf8()?).into(),
            subject: subjects[start].as_utf8()?.into(),
            times: times[start..end].iter().map(|&t| t as u64).collect(),
            values: values[start..end].to_vec(),
        });
        start = end;
    }
    Ok(blocks)
}

/// Compares two names, first by address: rows with the same dictionary entry share its bytes.
fn same_bytes(a: &ByteArray, b: &ByteArray) -> bool {
    let (a, b) = (a.data(), b.data());
    (a.as_ptr() == b.as_ptr() && a.len() == b.len()) || a == b
}

fn column<T: DataType>(group: &dyn RowGroupReader, index: usize) -> Result<Vec<T::T>>
where
    ColumnReaderImpl<T>: Sized,
{
    let reader: ColumnReader = group.get_column_reader(index)?;
    let mut reader = T::get_column_reader(reader)
        .ok_or_else(|| ParquetError::General(format!("column {} has the wrong type", COLUMNS[index])))?;
    let mut values = Vec::new();
    loop {
        let (records, ..) = reader.read_records(1 << 20, None, None, &mut values)?;
        if records == 0 {
            return Ok(values);
        }
        if values.len() > MAX_ROWS {
            return Err(ParquetError::General("a row group is too large".into()));
        }
    }
}

/// Reads the file of one run and returns its cell, seed and outcome.
pub fn read_run(file: &Bytes) -> Result<(u32, u64, RunOutcome)> {
    let malformed = |reason: &str| ParquetError::General(format!("not the file of a run: {reason}"));
    let mut reader = SeriesReader::new(file.clone())?;
    let metadata = reader.file.metadata().file_metadata().key_value_metadata();
    let text = metadata.and_then(|m| m.iter().find(|kv| kv.key == NOTE_KEY)).and_then(|kv| kv.value.as_ref());
    let note: RunMetadata = serde_json::from_str(text.ok_or_else(|| malformed("no metadata"))?)
        .map_err(|e| malformed(&e.to_string()))?;
    if note.bins > MAX_ROWS {
        return Err(malformed("too many bins"));
    }
    let mut series: Vec<Series> = Vec::new();
    while let Some(blocks) = reader.next_blocks()? {
        for block in blocks {
            let metric = Metric::by_name(&block.metric);
            let metric = metric.ok_or_else(|| malformed("unknown metric"))?;
            let mut values = vec![f64::NAN; note.bins];
            for (time, value) in block.times.iter().zip(block.values) {
                let bin = (time / note.interval_ns.max(1)) as usize;
                *values.get_mut(bin).ok_or_else(|| malformed("time after the end of the run"))? = value;
            }
            series.push(Series { metric, subject: block.subject.to_string(), values });
        }
    }
    let [events, sent, delivered_data, duplicated, delivered, lost, in_flight, packet_hops] = note.totals;
    let outcome = RunOutcome {
        interval: Duration(note.interval_ns),
        bins: note.bins,
        series,
        totals: RunTotals {
            events,
            sent,
            delivered_data,
            duplicated,
            delivered,
            lost,
            in_flight,
            packet_hops,
        },
        distributions: note.distributions,
        loads: note.loads,
        tests: note.tests,
        warnings: note.warnings,
        late_senders: note.late_senders,
        limited_by_policy: note.limited_by_policy,
        sender_limits: note.sender_limits,
        held: note.held,
        stalls: note.stalls,
        late_links: note.late_links,
        arrivals: note.arrivals,
        packet_faults: note.packet_faults,
        // The verdicts of tests contain them.
        observations: Vec::new(),
        void: note.void,
        failures: note.failures,
        differences: note.differences,
    };
    Ok((note.cell, note.seed, outcome))
}
