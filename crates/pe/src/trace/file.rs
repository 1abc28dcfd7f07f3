//! A trace as a file.

use netstage_core::edge::Event;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, BufRead, Write};

/// What the first line calls itself.
pub const FORMAT: &str = "netstage-pe-trace";
/// The version of the lines; another one is not read.
pub const VERSION: u32 = 1;

/// The first line: whose trace it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// When the router began, nanoseconds since 1970.
    pub began_unix_ns: u64,
    /// What random choices rest on.
    pub seed: u32,
    /// The text of the configuration file.
    pub configuration: String,
}

/// Why a trace cannot be read.
#[derive(Debug)]
pub enum Error {
    /// The file cannot be read.
    Io(io::Error),
    /// It is something else.
    Other,
    /// It was written in another version.
    Version(u32),
    /// A line says nothing that is known.
    Line {
        /// Its number, from 1.
        number: u64,
        /// What is wrong.
        what: String,
    },
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(error) => write!(f, "cannot be read: {error}"),
            Error::Other => f.write_str("is no trace of a provider edge router"),
            Error::Version(version) => write!(f, "is of version {version}, and this program reads {VERSION}"),
            Error::Line { number, what } => write!(f, "line {number}: {what}"),
        }
    }
}

/// Writes lines.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
}

impl<W: Write> Writer<W> {
    /// Begins with the head.
    pub fn new(to: W, head: &Head) -> io::Result<Writer<W>> {
        let mut writer = Writer { to };
        writer.line(head)?;
        writer.to.flush()?;
        Ok(writer)
    }

    /// Adds events; those of a call reach the file together.
    pub fn write(&mut self, events: &[Event]) -> io::Result<()> {
        events.iter().try_for_each(|event| self.line(event))?;
        self.to.flush()
    }

    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.to, line)?;
        self.to.write_all(b"\n")
    }
}

/// Reads lines.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    line: Vec<u8>,
    number: u64,
    is_cut: bool,
}

impl<R: BufRead> Reader<R> {
    /// Begins with the head.
    pub fn new(from: R) -> Result<(Head, Reader<R>), Error> {
        let mut reader = Reader { from, line: Vec::new(), number: 0, is_cut: false };
        reader.next_line()?;
        let told: serde_json::Value = serde_json::from_slice(&reader.line).map_err(|_| Error::Other)?;
        if told["format"] != FORMAT {
            return Err(Error::Other);
        }
        match told["version"].as_u64() {
            Some(version) if version == u64::from(VERSION) => {}
            version => return Err(Error::Version(version.unwrap_or_default() as u32)),
        }
        let head = serde_json::from_value(told);
        head.map(|head| (head, reader)).map_err(|error| Error::Line { number: 1, what: error.to_string() })
    }

    /// The next event; none at the end.
    pub fn next_event(&mut self) -> Result<Option<Event>, Error> {
        if !self.next_line()? {
            return Ok(None);
        }
        // A router that was killed leaves its last line unfinished.
        if self.line.last() != Some(&b'\n') {
            self.is_cut = true;
            return Ok(None);
        }
        let event = serde_json::from_slice(&self.line);
        event.map(Some).map_err(|error| Error::Line { number: self.number, what: error.to_string() })
    }

    /// Number of the line read last, from 1.
    pub fn line(&self) -> u64 {
        self.number
    }

    /// Its last line is not whole: whoever wrote it did not end by itself.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn next_line(&mut self) -> Result<bool, Error> {
        self.line.clear();
        self.number += 1;
        Ok(self.from.read_until(b'\n', &mut self.line).map_err(Error::Io)? > 0)
    }
}
