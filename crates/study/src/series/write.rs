//! Encoding of a run, and joining of the files of runs.
//!
//! The columns of a run are mostly long repetitions, so their pages are built here by repetition instead of by value;
//! the parquet crate frames them and writes the footer.

use super::{NOTE_KEY, RunMetadata, schema};
use bytes::Bytes;
use netstage_scenario::outcome::RunOutcome;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{CompressedPage, Page, PageWriter as _};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, KeyValue};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::file::statistics::Statistics;
use parquet::file::writer::{
    SerializedFileWriter, SerializedPageWriter, SerializedRowGroupWriter, TrackedWrite,
};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor};
use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, LazyLock};

/// Number of rows after which a row group ends with the current series.
const ROWS_PER_GROUP: usize = 1 << 18;

pub(super) fn properties() -> WriterPropertiesPtr {
    let builder = WriterProperties::builder()
        .set_created_by("netstage".into())
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true);
    Arc::new(builder.build())
}

/// Returns the file of one run: its series, and its other results as metadata.
pub fn encode_run(cell: u32, seed: u64, outcome: &RunOutcome) -> Result<Vec<u8>> {
    let mut writer = SerializedFileWriter::new(Vec::new(), schema(), properties())?;
    let times: Vec<u64> = (0..outcome.bins as u64).map(|bin| bin * outcome.interval.0).collect();
    let mut group = RowGroupBuilder::new(cell, seed, &times);
    for series in &outcome.series {
        group.push(series.metric.info().name, &series.subject, &series.values);
        if group.rows() >= ROWS_PER_GROUP {
            group.write(&mut writer)?;
            group = RowGroupBuilder::new(cell, seed, &times);
        }
    }
    if group.rows() > 0 {
        group.write(&mut writer)?;
    }
    let t = &outcome.totals;
    let note = RunMetadata {
        cell,
        seed,
        interval_ns: outcome.interval.0,
        bins: outcome.bins,
        totals: [
            t.events,
            t.sent,
            t.delivered_data,
            t.duplicated,
            t.delivered,
            t.lost,
            t.in_flight,
            t.packet_hops,
        ],
        distributions: outcome.distributions.clone(),
        loads: outcome.loads.iter().filter(|l| (l.requested + l.achieved).is_finite()).cloned().collect(),
        tests: outcome.tests.clone(),
        warnings: outcome.warnings.clone(),
        void: outcome.void.clone(),
        late_senders: outcome.late_senders.clone(),
        limited_by_policy: outcome.limited_by_policy.clone(),
        sender_limits: outcome.sender_limits.clone(),
        held: outcome.held.clone(),
        stalls: outcome.stalls.clone(),
        late_links: outcome.late_links.clone(),
        arrivals: outcome.arrivals.clone(),
        packet_faults: outcome.packet_faults.clone(),
        failures: outcome.failures.clone(),
        differences: outcome.differences.clone(),
    };
    let text = serde_json::to_string(&note).expect("a note holds only text and numbers");
    writer.append_key_value_metadata(KeyValue::new(NOTE_KEY.to_owned(), text));
    writer.into_inner()
}

/// Values of one row group.
struct RowGroupBuilder<'a> {
    cell: u32,
    seed: u64,
    times: &'a [u64],
    metrics: NameDictionary<'a>,
    subjects: NameDictionary<'a>,
    /// Bin index of each row.
    bins: Vec<u32>,
    values: Vec<f64>,
}

impl<'a> RowGroupBuilder<'a> {
    fn new(cell: u32, seed: u64, times: &'a [u64]) -> RowGroupBuilder<'a> {
        let (metrics, subjects) = (NameDictionary::default(), NameDictionary::default());
        RowGroupBuilder { cell, seed, times, metrics, subjects, bins: Vec::new(), values: Vec::new() }
    }

    fn rows(&self) -> usize {
        self.values.len()
    }

    fn push(&mut self, metric: &'a str, subject: &'a str, values: &[f64]) {
        let before = self.rows();
        for (bin, value) in values.iter().enumerate().take(self.times.len()) {
            if !value.is_nan() {
                self.bins.push(bin as u32);
                self.values.push(*value);
            }
        }
        let added = self.rows() - before;
        self.metrics.push(metric, added);
        self.subjects.push(subject, added);
    }

    fn write<W: Write + Send>(&self, writer: &mut SerializedFileWriter<W>) -> Result<()> {
        let rows = self.rows();
        let mut group = writer.next_row_group()?;
        let (cell, seed) = (self.cell as i32, self.seed as i64);
        let constant = [(0, rows)];
        append(
            &mut group,
            descriptor(0),
            rows,
            EncodedColumn {
                dictionary: Some((cell.to_le_bytes().to_vec(), 1)),
                data: repetitions(&constant, 1),
                statistics: Some(Statistics::int32(Some(cell), Some(cell), None, Some(0), false)),
            },
        )?;
        append(
            &mut group,
            descriptor(1),
            rows,
            EncodedColumn {
                dictionary: Some((seed.to_le_bytes().to_vec(), 1)),
                data: repetitions(&constant, 1),
                statistics: Some(Statistics::int64(Some(seed), Some(seed), None, Some(0), false)),
            },
        )?;
        let times: Vec<u8> = self.times.iter().flat_map(|t| t.to_le_bytes()).collect();
        append(
            &mut group,
            descriptor(2),
            rows,
            EncodedColumn {
                dictionary: Some((times, self.times.len())),
                data: bit_packed(&self.bins, width_of(self.times.len())),
                statistics: None,
            },
        )?;
        append(&mut group, descriptor(3), rows, self.subjects.column())?;
        append(&mut group, descriptor(4), rows, self.metrics.column())?;
        append(
            &mut group,
            descriptor(5),
            rows,
            EncodedColumn { dictionary: None, data: byte_stream_split(&self.values), statistics: None },
        )?;
        group.close()?;
        Ok(())
    }
}

/// Returns the descriptor of a column, which is the same in every file.
fn descriptor(index: usize) -> ColumnDescPtr {
    static SCHEMA: LazyLock<SchemaDescriptor> = LazyLock::new(|| SchemaDescriptor::new(schema()));
    SCHEMA.column(index)
}

/// Dictionary of names in order of first use, with the lengths of their repetitions.
#[derive(Default)]
struct NameDictionary<'a> {
    index: HashMap<&'a str, u32>,
    names: Vec<&'a str>,
    runs: Vec<(u32, usize)>,
}

impl<'a> NameDictionary<'a> {
    fn push(&mut self, name: &'a str, count: usize) {
        if count == 0 {
            return;
        }
        let next = self.names.len() as u32;
        let index = *self.index.entry(name).or_insert(next);
        if index == next {
            self.names.push(name);
        }
        match self.runs.last_mut() {
            Some((last, length)) if *last == index => *length += count,
            _ => self.runs.push((index, count)),
        }
    }

    fn column(&self) -> EncodedColumn {
        let mut dictionary = Vec::new();
        for name in &self.names {
            dictionary.extend((name.len() as u32).to_le_bytes());
            dictionary.extend(name.as_bytes());
        }
        let bound = |name: Option<&&str>| name.map(|n| (*n).into());
        let (min, max) = (bound(self.names.iter().min()), bound(self.names.iter().max()));
        EncodedColumn {
            dictionary: Some((dictionary, self.names.len())),
            data: repetitions(&self.runs, width_of(self.names.len())),
            statistics: Some(Statistics::byte_array(min, max, None, Some(0), false)),
        }
    }
}

/// Encoded, uncompressed column of a row group.
struct EncodedColumn {
    /// Plain-encoded values and their number.
    dictionary: Option<(Vec<u8>, usize)>,
    data: Vec<u8>,
    statistics: Option<Statistics>,
}

/// Returns the bit width of an index into `count` entries. Readers require at least one bit.
fn width_of(count: usize) -> u32 {
    (usize::BITS - count.saturating_sub(1).leading_zeros()).max(1)
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Encodes dictionary indices as repetitions (Parquet's RLE / bit-packing hybrid), preceded by the width.
fn repetitions(runs: &[(u32, usize)], width: u32) -> Vec<u8> {
    let mut out = vec![width as u8];
    for &(index, count) in runs {
        put_varint(&mut out, (count as u64) << 1);
        out.extend(&index.to_le_bytes()[..width.div_ceil(8) as usize]);
    }
    out
}

/// Encodes dictionary indices as one bit-packed run, preceded by the width.
fn bit_packed(indices: &[u32], width: u32) -> Vec<u8> {
    let groups = indices.len().div_ceil(8);
    let mut out = Vec::with_capacity(groups * width as usize + 16);
    out.push(width as u8);
    put_varint(&mut out, (groups as u64) << 1 | 1);
    let end = out.len() + groups * width as usize;
    let (mut pending, mut bits) = (0u64, 0);
    for &index in indices {
        pending |= u64::from(index) << bits;
        bits += width;
        if bits >= 32 {
            out.extend((pending as u32).to_le_bytes());
            pending >>= 32;
            bits -= 32;
        }
    }
    out.extend(pending.to_le_bytes());
    out.resize(end, 0);
    out
}

/// Groups the k-th bytes of all values, for each k, which compresses throughput far better.
fn byte_stream_split(values: &[f64]) -> Vec<u8> {
    let n = values.len();
    let mut out = vec![0; n * 8];
    for (k, stream) in out.chunks_exact_mut(n.max(1)).enumerate() {
        for (byte, value) in stream.iter_mut().zip(values) {
            *byte = (value.to_bits() >> (8 * k)) as u8;
        }
    }
    out
}

fn append<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    descriptor: ColumnDescPtr,
    rows: usize,
    column: EncodedColumn,
) -> Result<()> {
    let compress = |bytes: &[u8]| {
        let compressed = snap::raw::Encoder::new().compress_vec(bytes);
        compressed.map(Bytes::from).map_err(|e| ParquetError::External(Box::new(e)))
    };
    let mut sink = TrackedWrite::new(Vec::new());
    let mut pages = SerializedPageWriter::new(&mut sink);
    let mut plain = 0;
    let mut dictionary_offset = None;
    let mut data_offset = 0;
    let mut encodings = vec![Encoding::RLE];
    let mut encoding = Encoding::BYTE_STREAM_SPLIT;
    if let Some((values, count)) = column.dictionary {
        let (buf, num_values) = (compress(&values)?, count as u32);
        let page = Page::DictionaryPage { buf, num_values, encoding: Encoding::PLAIN, is_sorted: false };
        let spec = pages.write_page(CompressedPage::new(page, values.len()))?;
        plain += spec.uncompressed_size;
        dictionary_offset = Some(0);
        data_offset = spec.bytes_written as i64;
        encodings.push(Encoding::PLAIN);
        encoding = Encoding::RLE_DICTIONARY;
    }
    encodings.push(encoding);
    let page = Page::DataPage {
        buf: compress(&column.data)?,
        num_values: rows as u32,
        encoding,
        def_level_encoding: Encoding::RLE,
        rep_level_encoding: Encoding::RLE,
        statistics: None,
    };
    plain += pages.write_page(CompressedPage::new(page, column.data.len()))?.uncompressed_size;
    pages.close()?;
    let bytes = Bytes::from(sink.into_inner()?);
    let mut metadata = ColumnChunkMetaData::builder(descriptor)
        .set_compression(Compression::SNAPPY)
        .set_encodings(encodings)
        .set_num_values(rows as i64)
        .set_total_compressed_size(bytes.len() as i64)
        .set_total_uncompressed_size(plain as i64)
        .set_dictionary_page_offset(dictionary_offset)
        .set_data_page_offset(data_offset);
    if let Some(statistics) = column.statistics {
        metadata = metadata.set_statistics(statistics);
    }
    group.append_column(&bytes, closed(metadata.build()?, rows))
}

fn closed(metadata: ColumnChunkMetaData, rows: usize) -> ColumnCloseResult {
    ColumnCloseResult {
        bytes_written: metadata.compressed_size() as u64,
        rows_written: rows as u64,
        metadata,
        bloom_filter: None,
        column_index: None,
        offset_index: None,
    }
}

/// Writer of `series.parquet` from the files of runs, in order of addition.
pub struct Joiner<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    rows: u64,
}

impl<W: Write + Send> Joiner<W> {
    /// Starts the file.
    pub fn new(sink: W) -> Result<Joiner<W>> {
        Ok(Joiner { writer: SerializedFileWriter::new(sink, schema(), properties())?, rows: 0 })
    }

    /// Adds the file of a run.
    pub fn push(&mut self, run: &Bytes) -> Result<()> {
        let reader = SerializedFileReader::new(run.clone())?;
        for source in reader.metadata().row_groups() {
            let rows = source.num_rows() as usize;
            let mut group = self.writer.next_row_group()?;
            for column in source.columns() {
                group.append_column(run, closed(column.clone(), rows))?;
            }
            group.close()?;
            self.rows += rows as u64;
        }
        Ok(())
    }

    /// Completes the file and returns the sink and the number of rows.
    pub fn finish(self) -> Result<(W, u64)> {
        Ok((self.writer.into_inner()?, self.rows))
    }
}
