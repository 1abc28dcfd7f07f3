//! File format of traces.

use netstage_core::edge::EdgeEvent;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, BufRead, Write};

/// Value of `format` in the first line.
pub const FORMAT: &str = "netstage-pe-trace";
/// Version of the format; other versions are rejected.
pub const VERSION: u32 = 1;

/// First line of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceHead {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Start of the router, nanoseconds since 1970.
    pub began_unix_ns: u64,
    /// Seed of random choices.
    pub seed: u32,
    /// Text of the configuration file.
    pub configuration: String,
}

/// Error while reading a trace.
#[derive(Debug)]
pub enum TraceFileError {
    /// The file cannot be read.
    Io(io::Error),
    /// The file is not a trace.
    Other,
    /// The trace has another version.
    Version(u32),
    /// A line is invalid.
    Line {
        /// Line number, from 1.
        number: u64,
        /// Parse error.
        what: String,
    },
}

impl std::error::Error for TraceFileError {}

impl fmt::Display for TraceFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceFileError::Io(error) => write!(f, "cannot be read: {error}"),
            TraceFileError::Other => f.write_str("is not a provider edge router trace"),
            TraceFileError::Version(version) => {
                write!(f, "has trace version {version}; this program reads version {VERSION}")
            }
            TraceFileError::Line { number, what } => write!(f, "line {number}: {what}"),
        }
    }
}

/// Writer of a trace.
#[derive(Debug)]
pub struct TraceWriter<W> {
    to: W,
}

impl<W: Write> TraceWriter<W> {
    /// Starts a trace with the first line.
    pub fn new(to: W, head: &TraceHead) -> io::Result<TraceWriter<W>> {
        let mut writer = TraceWriter { to };
        writer.line(head)?;
        writer.to.flush()?;
        Ok(writer)
    }

    /// Appends events and flushes them.
    pub fn write(&mut self, events: &[EdgeEvent]) -> io::Result<()> {
        events.iter().try_for_each(|event| self.line(event))?;
        self.to.flush()
    }

    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.to, line)?;
        self.to.write_all(b"\n")
    }
}

/// Reader of a trace.
#[derive(Debug)]
pub struct TraceReader<R> {
    from: R,
    line: Vec<u8>,
    number: u64,
    is_cut: bool,
}

impl<R: BufRead> TraceReader<R> {
    /// Starts to read a trace with the first line.
    pub fn new(from: R) -> Result<(TraceHead, TraceReader<R>), TraceFileError> {
        let mut reader = TraceReader { from, line: Vec::new(), number: 0, is_cut: false };
        reader.next_line()?;
        let value: serde_json::Value =
            serde_json::from_slice(&reader.line).map_err(|_| TraceFileError::Other)?;
        if value["format"] != FORMAT {
            return Err(TraceFileError::Other);
        }
        match value["version"].as_u64() {
            Some(version) if version == u64::from(VERSION) => {}
            version => return Err(TraceFileError::Version(version.unwrap_or_default() as u32)),
        }
        let head = serde_json::from_value(value);
        head.map(|head| (head, reader))
            .map_err(|error| TraceFileError::Line { number: 1, what: error.to_string() })
    }

    /// Returns the next event, or `None` at the end.
    pub fn next_event(&mut self) -> Result<Option<EdgeEvent>, TraceFileError> {
        if !self.next_line()? {
            return Ok(None);
        }
        // A killed router leaves an incomplete last line.
        if self.line.last() != Some(&b'\n') {
            self.is_cut = true;
            return Ok(None);
        }
        let event = serde_json::from_slice(&self.line);
        event.map(Some).map_err(|error| TraceFileError::Line { number: self.number, what: error.to_string() })
    }

    /// Returns the number of the last line read, from 1.
    pub fn line(&self) -> u64 {
        self.number
    }

    /// Returns whether the last line is incomplete because the router was killed.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn next_line(&mut self) -> Result<bool, TraceFileError> {
        self.line.clear();
        self.number += 1;
        Ok(self.from.read_until(b'\n', &mut self.line).map_err(TraceFileError::Io)? > 0)
    }
}
