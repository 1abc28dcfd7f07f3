//! Files of a scenario: traces of packet times and sizes, and models learned from captures.
//!
//! A trace is CSV with the heading `gap_seconds,bytes` or `time_s,bytes`, and one packet per line.

use crate::error::{Problems, SourceRange};
use crate::learned::{self, ModelFile};
use crate::quantity;
use crate::regular_file;
use netstage_core::time::Duration;
use netstage_core::traffic::application::CaptureModel;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

pub(crate) type TracePackets = Arc<[(Duration, u32)]>;

/// Maximum size of a trace in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// Trace and model files of a scenario, each read once.
pub(crate) struct TraceFiles<'a> {
    base: Option<&'a Path>,
    read: BTreeMap<PathBuf, Option<TracePackets>>,
    models: BTreeMap<PathBuf, Option<Arc<CaptureModel>>>,
}

impl<'a> TraceFiles<'a> {
    pub fn new(base: Option<&'a Path>) -> TraceFiles<'a> {
        TraceFiles { base, read: BTreeMap::new(), models: BTreeMap::new() }
    }

    /// Returns the packets of the trace at `place` of the scenario.
    pub fn load(&mut self, file: &str, place: SourceRange, problems: &mut Problems) -> Option<TracePackets> {
        let path = self.resolve(file, "trace", place, problems)?;
        if let Some(packets) = self.read.get(&path) {
            return packets.clone();
        }
        let packets = match read_file(&path, MAX_BYTES) {
            Ok(text) => parse(&path.display().to_string(), &text, problems),
            Err(error) => {
                problems.push(place, format!("cannot read the trace file {}: {error}", path.display()));
                None
            }
        };
        self.read.insert(path, packets.clone());
        packets
    }

    /// Returns the model of the model file at `place` of the scenario.
    pub fn load_model(
        &mut self,
        file: &str,
        place: SourceRange,
        problems: &mut Problems,
    ) -> Option<Arc<CaptureModel>> {
        let path = self.resolve(file, "model", place, problems)?;
        if let Some(model) = self.models.get(&path) {
            return model.clone();
        }
        let text = read_file(&path, learned::MAX_MODEL_BYTES);
        let parsed = text.and_then(|text| ModelFile::from_json(&text).map_err(|error| error.to_string()));
        let model = match parsed {
            Ok(file) => Some(file.model),
            Err(error) => {
                let message = format!("cannot read the model file {}: {error}", path.display());
                let help = "create it with `netstage traffic learn CAPTURE -o FILE`";
                problems.push_help(place, message, help);
                None
            }
        };
        self.models.insert(path, model.clone());
        model
    }

    /// Returns the paths of the files, relative to the scenario's folder.
    pub fn files(&self) -> Vec<PathBuf> {
        let relative = |path: &PathBuf| Some(path.strip_prefix(self.base?).ok()?.to_owned());
        self.read.keys().chain(self.models.keys()).filter_map(relative).collect()
    }

    /// Returns the path of a file. Files outside the scenario's folder are refused, also behind links.
    fn resolve(
        &self,
        file: &str,
        what: &str,
        place: SourceRange,
        problems: &mut Problems,
    ) -> Option<PathBuf> {
        let Some(base) = self.base else {
            let help = format!("save the scenario to a file, and put the {what} file in its folder");
            problems.push_help(
                place,
                format!("{what} files need a scenario that is loaded from a file"),
                help,
            );
            return None;
        };
        let path = Path::new(file);
        let mut refuse = |help| {
            let message =
                format!("the {what} file \"{}\" is not in the folder of the scenario", file.escape_debug());
            problems.push_help(place, message, help);
            None
        };
        if file.is_empty()
            || !path.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir))
        {
            return refuse("use a path below this folder, without `..`");
        }
        let path = base.join(path);
        // A missing file is reported when it is read.
        match (base.canonicalize(), path.canonicalize()) {
            (Ok(base), Ok(target)) if !target.starts_with(&base) => {
                refuse("it is behind a link; copy the file into this folder")
            }
            _ => Some(path),
        }
    }
}

/// Reads the text of a file of at most `max` bytes.
fn read_file(path: &Path, max: u64) -> Result<String, String> {
    let message = |error: std::io::Error| error.to_string();
    let mut file = regular_file::open(path).map_err(message)?;
    if file.metadata().map_err(message)?.len() > max {
        return Err(format!("the file is larger than {} MiB", max >> 20));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(message)?;
    String::from_utf8(bytes).map_err(|_| "the file is not UTF-8 text".into())
}

/// Parses the text of a trace. Problems point into the trace file.
pub(crate) fn parse(name: &str, text: &str, problems: &mut Problems) -> Option<TracePackets> {
    match packets(text) {
        Ok(packets) => Some(packets.into()),
        Err(error) => {
            let source = problems.add_source(name, text);
            problems.push_with_help(SourceRange::new(source, error.span), error.message, error.help);
            None
        }
    }
}

struct TraceError {
    span: std::ops::Range<usize>,
    message: String,
    help: Option<String>,
}

fn packets(text: &str) -> Result<Vec<(Duration, u32)>, TraceError> {
    let bad = |line: &str, at: usize, message: &str| TraceError {
        span: at..at + line.len(),
        message: message.to_owned(),
        help: Some(
            "each line has a time in seconds, a comma and the payload bytes, such as 0.020,172".into(),
        ),
    };
    let mut lines = text.split_inclusive('\n').scan(0, |at, whole| {
        let start = *at;
        *at += whole.len();
        Some((start, whole))
    });
    let (_, heading) = lines.next().unwrap_or((0, ""));
    let absolute = match heading.trim().replace(' ', "").as_str() {
        "gap_seconds,bytes" => false,
        "time_s,bytes" => true,
        _ => {
            let heading = heading.trim_end();
            let help = "write `gap_seconds,bytes` or `time_s,bytes` in the first line";
            return Err(TraceError {
                help: Some(help.into()),
                ..bad(heading, 0, "missing heading of the trace")
            });
        }
    };
    let mut packets = Vec::new();
    let mut last = Duration::ZERO;
    for (at, whole) in lines {
        let line = whole.trim_end_matches(['\n', '\r']);
        if line.trim().is_empty() {
            continue;
        }
        if !whole.ends_with('\n') {
            let help = Some("if the line is complete, add a line break".into());
            return Err(TraceError { help, ..bad(line, at, "the last line has no line break") });
        }
        let (time, size) = line.split_once(',').ok_or_else(|| bad(line, at, "expected two columns"))?;
        let time =
            quantity::seconds(time.trim()).ok_or_else(|| bad(time, at, "expected a time in seconds"))?;
        let size_at = at + line.len() - size.len();
        let bytes = size.trim().parse::<u32>().ok().filter(|bytes| (1..=65_507).contains(bytes));
        let bytes = bytes.ok_or_else(|| bad(size, size_at, "expected payload bytes from 1 to 65507"))?;
        let gap = match absolute {
            false => time,
            true if time < last => return Err(bad(line, at, "the time is before that of the line above")),
            true => time - last,
        };
        last = time;
        packets.push((gap, bytes));
    }
    if packets.is_empty() {
        return Err(bad(heading.trim_end(), 0, "the trace has no packets"));
    }
    Ok(packets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(u64, u32)>, String> {
        let mut problems = Problems::default();
        problems.add_source("scenario.toml", "");
        match parse("trace.csv", text, &mut problems) {
            Some(packets) => Ok(packets.iter().map(|(gap, bytes)| (gap.0, *bytes)).collect()),
            None => {
                let errors = problems.into_errors();
                let problem = &errors.problems[0];
                Err(format!(
                    "{}:{}:{} {}",
                    errors.sources[1].name, problem.line, problem.column, problem.message
                ))
            }
        }
    }

    #[test]
    fn gaps_and_times_are_parsed() {
        assert_eq!(read("gap_seconds,bytes\n0,100\n0.02, 172\r\n"), Ok(vec![(0, 100), (20_000_000, 172)]));
        assert_eq!(
            read("time_s, bytes\n1.5,100\n\n1.75,1\n"),
            Ok(vec![(1_500_000_000, 100), (250_000_000, 1)])
        );
        assert_eq!(read("gap_seconds,bytes\n0.00000000049,1\n"), Ok(vec![(0, 1)]));
    }

    #[test]
    fn faults_are_reported_with_their_lines() {
        let wrong = [
            ("", "trace.csv:1:1 missing heading of the trace"),
            ("0.1,100\n", "trace.csv:1:1 missing heading of the trace"),
            ("gap_seconds,bytes\n", "trace.csv:1:1 the trace has no packets"),
            ("gap_seconds,bytes\n0.1,100\n0.1,1", "trace.csv:3:1 the last line has no line break"),
            ("gap_seconds,bytes\n0.1 100\n", "trace.csv:2:1 expected two columns"),
            ("gap_seconds,bytes\n0.1,100\nx,100\n", "trace.csv:3:1 expected a time in seconds"),
            ("gap_seconds,bytes\n-0.1,100\n", "trace.csv:2:1 expected a time in seconds"),
            ("gap_seconds,bytes\n0.1,0\n", "trace.csv:2:5 expected payload bytes from 1 to 65507"),
            ("gap_seconds,bytes\n0.1,1,2\n", "trace.csv:2:5 expected payload bytes from 1 to 65507"),
            ("time_s,bytes\n2,1\n1,1\n", "trace.csv:3:1 the time is before that of the line above"),
        ];
        for (text, message) in wrong {
            assert_eq!(read(text), Err(message.to_owned()));
        }
    }
}
