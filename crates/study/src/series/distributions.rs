//! `distributions.parquet`: number of occurrences of each value over all runs of a cell.
//!
//! Columns `cell`, `metric`, `subject`, `value_ns`, `count`, with a row per value, sorted by cell, metric, subject and
//! value. Each cell has its own row group.

use super::write::properties;
use super::{column, unsigned};
use netstage_scenario::outcome::Distribution;
use parquet::basic::{LogicalType, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::Result;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};
use std::io::Write;
use std::sync::Arc;

fn schema() -> TypePtr {
    let text = |name| column(name, Physical::BYTE_ARRAY).with_logical_type(Some(LogicalType::String));
    let count = |name| column(name, Physical::INT64).with_logical_type(unsigned(64));
    let columns = [
        column("cell", Physical::INT32).with_logical_type(unsigned(32)),
        text("metric"),
        text("subject"),
        count("value_ns"),
        count("count"),
    ];
    let fields = columns.map(|c| Arc::new(c.build().expect("the columns are constant"))).to_vec();
    let group = Type::group_type_builder("distributions").with_fields(fields);
    Arc::new(group.build().expect("the schema is constant"))
}

/// Writes the distributions of each cell and returns the number of rows.
pub fn write_distributions<W: Write + Send>(sink: W, cells: &[Vec<Distribution>]) -> Result<u64> {
    let mut writer = SerializedFileWriter::new(sink, schema(), properties())?;
    let mut rows = 0;
    for (cell, distributions) in cells.iter().enumerate() {
        let count: usize = distributions.iter().map(|d| d.buckets.len()).sum();
        if count == 0 {
            continue;
        }
        let each = |name: fn(&Distribution) -> &str| -> Vec<ByteArray> {
            let repeated = |d| std::iter::repeat_n(ByteArray::from(name(d)), d.buckets.len());
            distributions.iter().flat_map(repeated).collect()
        };
        let buckets = || distributions.iter().flat_map(|d| &d.buckets);
        let mut group = writer.next_row_group()?;
        put::<Int32Type, W>(&mut group, &vec![cell as i32; count])?;
        put::<ByteArrayType, W>(&mut group, &each(|d| d.metric.info().name))?;
        put::<ByteArrayType, W>(&mut group, &each(|d| &d.subject))?;
        put::<Int64Type, W>(&mut group, &buckets().map(|b| b.0 as i64).collect::<Vec<_>>())?;
        put::<Int64Type, W>(&mut group, &buckets().map(|b| b.1 as i64).collect::<Vec<_>>())?;
        group.close()?;
        rows += count as u64;
    }
    writer.into_inner()?.flush()?;
    Ok(rows)
}

fn put<T: parquet::data_type::DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
) -> Result<()> {
    let mut column = group.next_column()?.expect("as many columns as the schema has");
    column.typed::<T>().write_batch(values, None, None)?;
    column.close()
}
