//! Files a scenario names: traces of when packets were sent and how large they were, and
//! models learned from captures.
//!
//! A trace is CSV with one of two headings, `gap_seconds,bytes` or `time_s,bytes`, and a packet per line.

use crate::error::{Place, Problems};
use crate::learned::{self, ModelFile};
use crate::quantity;
use crate::regular;
use netstage_core::time::Duration;
use netstage_core::traffic::application::Learned;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

pub(crate) type Packets = Arc<[(Duration, u32)]>;

const MOST_BYTES: u64 = 256 << 20;

/// The trace and model files of a scenario, each read once.
pub(crate) struct Traces<'a> {
    base: Option<&'a Path>,
    read: BTreeMap<PathBuf, Option<Packets>>,
    models: BTreeMap<PathBuf, Option<Arc<Learned>>>,
}

impl<'a> Traces<'a> {
    pub fn new(base: Option<&'a Path>) -> Traces<'a> {
        Traces { base, read: BTreeMap::new(), models: BTreeMap::new() }
    }

    /// The packets of a file that the scenario names at `place`.
    pub fn load(&mut self, file: &str, place: Place, problems: &mut Problems) -> Option<Packets> {
        let path = self.within_reach(file, "trace", place, problems)?;
        if let Some(read) = self.read.get(&path) {
            return read.clone();
        }
        let packets = match read_file(&path, MOST_BYTES) {
            Ok(text) => parse(&path.display().to_string(), &text, problems),
            Err(why) => {
                problems.push(place, format!("cannot read the trace file {}: {why}", path.display()));
                None
            }
        };
        self.read.insert(path, packets.clone());
        packets
    }

    /// The model of a file that the scenario names at `place`.
    pub fn load_model(&mut self, file: &str, place: Place, problems: &mut Problems) -> Option<Arc<Learned>> {
        let path = self.within_reach(file, "model", place, problems)?;
        if let Some(read) = self.models.get(&path) {
            return read.clone();
        }
        let text = read_file(&path, learned::MOST_BYTES);
        let read = text.and_then(|text| ModelFile::from_json(&text).map_err(|error| error.to_string()));
        let model = match read {
            Ok(file) => Some(file.model),
            Err(why) => {
                let message = format!("cannot read the model file {}: {why}", path.display());
                let help = "`netstage traffic learn CAPTURE -o FILE` writes one";
                problems.push_help(place, message, help);
                None
            }
        };
        self.models.insert(path, model.clone());
        model
    }

    /// The files that were read, below the scenario's folder.
    pub fn files(&self) -> Vec<PathBuf> {
        let below = |path: &PathBuf| Some(path.strip_prefix(self.base?).ok()?.to_owned());
        self.read.keys().chain(self.models.keys()).filter_map(below).collect()
    }

    /// The path of a file below the scenario's folder.
    fn within_reach(&self, file: &str, what: &str, place: Place, problems: &mut Problems) -> Option<PathBuf> {
        let Some(base) = self.base else {
            problems.push(place, format!("a scenario that is not a file cannot name {what} files"));
            return None;
        };
        let path = Path::new(file);
        if file.is_empty()
            || !path.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir))
        {
            let help = "name a file below the folder of the scenario";
            let message = format!("the {what} file \"{}\" is out of reach", file.escape_debug());
            problems.push_help(place, message, help);
            return None;
        }
        Some(base.join(path))
    }
}

/// The text of a file of at most so many bytes, or why there is none.
fn read_file(path: &Path, most: u64) -> Result<String, String> {
    let said = |error: std::io::Error| error.to_string();
    let mut file = regular::open(path).map_err(said)?;
    if file.metadata().map_err(said)?.len() > most {
        return Err(format!("it is larger than {} MiB", most >> 20));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(said)?;
    String::from_utf8(bytes).map_err(|_| "it is not text".into())
}

/// Reads the text of a trace; what is wrong points into that file.
pub(crate) fn parse(name: &str, text: &str, problems: &mut Problems) -> Option<Packets> {
    match packets(text) {
        Ok(packets) => Some(packets.into()),
        Err(error) => {
            let source = problems.add_source(name, text);
            problems.push_with_help(Place::new(source, error.span), error.message, error.help);
            None
        }
    }
}

struct Malformed {
    span: std::ops::Range<usize>,
    message: String,
    help: Option<String>,
}

fn packets(text: &str) -> Result<Vec<(Duration, u32)>, Malformed> {
    let bad = |line: &str, at: usize, message: &str| Malformed {
        span: at..at + line.len(),
        message: message.to_owned(),
        help: Some("a line is a time in seconds, a comma, and payload bytes: 0.020,172".into()),
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
            let help = "`gap_seconds,bytes` or `time_s,bytes`";
            return Err(Malformed {
                help: Some(help.into()),
                ..bad(heading, 0, "a trace starts with its heading")
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
            let help = Some("end the file with a line break, if the line is whole".into());
            return Err(Malformed { help, ..bad(line, at, "the last line is cut off") });
        }
        let (time, size) = line.split_once(',').ok_or_else(|| bad(line, at, "expected two columns"))?;
        let time =
            quantity::seconds(time.trim()).ok_or_else(|| bad(time, at, "this is not a time in seconds"))?;
        let size_at = at + line.len() - size.len();
        let bytes = size.trim().parse::<u32>().ok().filter(|bytes| (1..=65_507).contains(bytes));
        let bytes = bytes.ok_or_else(|| bad(size, size_at, "expected payload bytes from 1 to 65507"))?;
        let gap = match absolute {
            false => time,
            true if time < last => return Err(bad(line, at, "this packet comes before the one above it")),
            true => time - last,
        };
        last = time;
        packets.push((gap, bytes));
    }
    if packets.is_empty() {
        return Err(bad(heading.trim_end(), 0, "the trace holds no packets"));
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
    fn gaps_and_times_are_read() {
        assert_eq!(read("gap_seconds,bytes\n0,100\n0.02, 172\r\n"), Ok(vec![(0, 100), (20_000_000, 172)]));
        assert_eq!(
            read("time_s, bytes\n1.5,100\n\n1.75,1\n"),
            Ok(vec![(1_500_000_000, 100), (250_000_000, 1)])
        );
        assert_eq!(read("gap_seconds,bytes\n0.00000000049,1\n"), Ok(vec![(0, 1)]));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let wrong = [
            ("", "trace.csv:1:1 a trace starts with its heading"),
            ("0.1,100\n", "trace.csv:1:1 a trace starts with its heading"),
            ("gap_seconds,bytes\n", "trace.csv:1:1 the trace holds no packets"),
            ("gap_seconds,bytes\n0.1,100\n0.1,1", "trace.csv:3:1 the last line is cut off"),
            ("gap_seconds,bytes\n0.1 100\n", "trace.csv:2:1 expected two columns"),
            ("gap_seconds,bytes\n0.1,100\nx,100\n", "trace.csv:3:1 this is not a time in seconds"),
            ("gap_seconds,bytes\n-0.1,100\n", "trace.csv:2:1 this is not a time in seconds"),
            ("gap_seconds,bytes\n0.1,0\n", "trace.csv:2:5 expected payload bytes from 1 to 65507"),
            ("gap_seconds,bytes\n0.1,1,2\n", "trace.csv:2:5 expected payload bytes from 1 to 65507"),
            ("time_s,bytes\n2,1\n1,1\n", "trace.csv:3:1 this packet comes before the one above it"),
        ];
        for (text, message) in wrong {
            assert_eq!(read(text), Err(message.to_owned()));
        }
    }
}
