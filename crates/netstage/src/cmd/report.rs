//! `netstage report`: prints a record, writes it as HTML, SVG or CSV, or compares several records.

use crate::exit::{self, Failure, OK};
use crate::summary;
use netstage_study::report::ReportData;
use netstage_study::{OpenError, StoredRecord, compare, page, report, svg};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "Examples:
  netstage report out/two-hosts --html report.html --svg figures
  netstage report out/two-hosts --csv - | head
  netstage report out/before out/after";

/// Options of `report`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Folders of the records; two or more are compared
    #[arg(required = true)]
    records: Vec<PathBuf>,
    /// Print all tables with all rows
    #[arg(long)]
    all: bool,
    /// Write the report as a self-contained HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each figure as an SVG file
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Write all values as CSV; - is stdout
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Print the report with its records, or the error, as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let records = arguments.records.iter().map(|folder| open(folder)).collect::<Result<Vec<_>, _>>()?;
    let data = match records.as_slice() {
        [one] => report::report(one),
        several => compare::compare(several),
    };
    if let Some(path) = &arguments.html {
        page::write(path, &data).map_err(|e| Failure::write(path, &e))?;
    }
    if let Some(folder) = &arguments.svg {
        write_pictures(folder, &data)?;
    }
    if let Some(path) = &arguments.csv {
        write_values(path, &records)?;
    }
    let to_stdout = arguments.csv.as_deref() == Some(Path::new("-"));
    if arguments.json {
        exit::print(format!("{:#}\n", as_json(&data, &records)).as_bytes())?;
    } else if !to_stdout {
        let brief = (!arguments.all).then_some(arguments.records.as_slice());
        exit::print(summary::text(&data, arguments.html.as_deref(), brief).as_bytes())?;
    }
    Ok(OK)
}

/// Opens a record. Prints the finished trials of a study that has none yet.
fn open(folder: &Path) -> Result<StoredRecord, OpenError> {
    StoredRecord::open(folder).inspect_err(|error| {
        if let OpenError::Incomplete { folder, .. } = error {
            summary::print_kept_trials(folder);
        }
    })
}

/// Returns the report with its records; each record has the form that `run --json` prints.
fn as_json(data: &ReportData, records: &[StoredRecord]) -> Value {
    let record = |(name, record): (String, &StoredRecord)| json!({ "name": name, "environment": record.environment, "record": record.data });
    let mut report = serde_json::to_value(data).expect("a report holds only text and numbers");
    report["records"] = compare::names(records).into_iter().zip(records).map(record).collect();
    report
}

fn write_pictures(folder: &Path, data: &ReportData) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|e| Failure::write(folder, &e))?;
    for figure in &data.figures {
        // The name of a figure may have characters that a file name cannot have.
        let safe = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' };
        let name: String = figure.name.chars().map(safe).collect();
        let path = folder.join(format!("{name}.svg"));
        fs::write(&path, svg::svg(figure)).map_err(|e| Failure::write(&path, &e))?;
    }
    Ok(())
}

fn write_values(path: &Path, records: &[StoredRecord]) -> Result<(), Failure> {
    let failed = |e: io::Error| Failure::write(path, &e);
    let mut out: BufWriter<Box<dyn Write>> = BufWriter::new(match path.to_str() {
        Some("-") => Box::new(io::stdout().lock()),
        _ => Box::new(File::create(path).map_err(failed)?),
    });
    match values(&mut out, records).and_then(|done| out.flush().map(|()| done)) {
        Ok(done) => done,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// Writes a row per value. The outer result is an error of the writer, the inner one of the reader.
fn values(out: &mut impl Write, records: &[StoredRecord]) -> io::Result<Result<(), Failure>> {
    writeln!(out, "record,cell,settings,seed,time_s,subject,metric,value")?;
    for (name, record) in compare::names(records).iter().zip(records) {
        let mut reader = match record.series() {
            Ok(reader) => reader,
            Err(error) => return Ok(Err(error.into())),
        };
        loop {
            let blocks = match reader.next_blocks() {
                Ok(Some(blocks)) => blocks,
                Ok(None) => break,
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            };
            for block in blocks {
                let settings =
                    record.data.cells.get(block.cell as usize).map(|c| c.label()).unwrap_or_default();
                let before = format!("{},{},{},{}", quote(name), block.cell, quote(&settings), block.seed);
                let after = format!("{},{}", quote(&block.subject), quote(&block.metric));
                for (time, value) in block.times.iter().zip(&block.values) {
                    writeln!(out, "{before},{},{after},{value}", *time as f64 / 1e9)?;
                }
            }
        }
    }
    Ok(Ok(()))
}

/// Quotes a CSV field (RFC 4180).
fn quote(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
