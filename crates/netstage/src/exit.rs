//! Exit codes, and failures as people and programs read them.

use netstage_scenario::Errors;
use netstage_study::{Error, OpenError, Record};
use serde_json::{Value, json};
use std::fmt;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

/// All is well.
pub const OK: u8 = 0;
/// Failed while running.
pub const FAILED: u8 = 1;
/// Bad usage or scenario; nothing was changed.
pub const USAGE: u8 = 2;
/// An expectation is not met.
pub const EXPECTATION: u8 = 3;
/// A privilege or kernel feature is missing.
pub const MISSING: u8 = 4;
/// Measured, but void: the tool itself fell short.
pub const VOID: u8 = 5;
/// Interrupted; what was finished is kept.
pub const INTERRUPTED: u8 = 130;

/// For the end of `--help`.
pub const HELP: &str = "Exit codes: 0 ok; 1 failed while running; 2 bad usage or scenario; 3 an expectation not met; \
    4 a privilege or kernel feature missing; 5 measured but void; 130 interrupted, what was finished is kept.";

/// The exit code a record stands for.
pub fn of(record: &Record) -> u8 {
    let data = &record.data;
    match (data.failures.is_empty(), data.void.is_empty(), data.passes()) {
        (false, _, _) => FAILED,
        (true, false, _) => VOID,
        (true, true, false) => EXPECTATION,
        (true, true, true) => OK,
    }
}

/// Why a command ends early.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    kind: &'static str,
    message: String,
    help: String,
    problems: Vec<Value>,
}

impl Failure {
    fn new(code: u8, kind: &'static str, message: impl Into<String>) -> Failure {
        Failure { code, kind, message: message.into(), help: String::new(), problems: Vec::new() }
    }

    /// Bad usage.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(USAGE, "usage", message)
    }

    /// Something that failed while running.
    pub fn run(message: impl Into<String>) -> Failure {
        Failure::new(FAILED, "run", message)
    }

    /// A privilege or kernel feature that is missing.
    pub fn missing(message: impl Into<String>) -> Failure {
        Failure::new(MISSING, "unable", message)
    }

    /// A file that cannot be written.
    pub fn write(path: &Path, error: &io::Error) -> Failure {
        Failure::new(FAILED, "io", format!("cannot write {}: {error}", path.display()))
    }

    /// Said of something in particular.
    pub fn prefix(mut self, of: &str) -> Failure {
        self.message = format!("{of}: {}", self.message);
        self
    }

    /// With advice.
    pub fn help(mut self, help: impl Into<String>) -> Failure {
        self.help = help.into();
        self
    }

    /// The exit code it stands for.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// Says it on stderr, as text or JSON, and gives the exit code.
    pub fn exit(self, as_json: bool) -> ExitCode {
        let text = if as_json {
            let mut error = json!({ "code": self.code, "kind": self.kind, "message": self.message });
            if !self.help.is_empty() {
                error["help"] = self.help.into();
            }
            if !self.problems.is_empty() {
                error["problems"] = self.problems.into();
            }
            json!({ "error": error }).to_string()
        } else {
            // A scenario's problems and clap's messages begin with "error:" themselves.
            let prefix = if self.message.starts_with("error:") { "" } else { "error: " };
            format!("{prefix}{self}")
        };
        let _ = writeln!(io::stderr(), "{text}");
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.trim_end())?;
        if self.help.is_empty() { Ok(()) } else { write!(f, "\n  help: {}", self.help) }
    }
}

impl From<Errors> for Failure {
    fn from(errors: Errors) -> Failure {
        let problem = |p: &netstage_scenario::Problem| {
            json!({
                "file": errors.source_of(p).name,
                "line": p.line,
                "column": p.column,
                "message": p.message,
                "help": p.help,
            })
        };
        let problems = errors.problems.iter().map(problem).collect();
        Failure { problems, ..Failure::new(USAGE, "scenario", errors.to_string()) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let message = error.to_string();
        match error {
            Error::Occupied { .. } => {
                Failure::new(USAGE, "occupied", message).help("name another folder with --out")
            }
            Error::InUse { .. } => {
                Failure::new(USAGE, "in-use", message).help("name another folder with --out")
            }
            Error::Run { .. } => Failure::run(message),
            Error::Unsupported(_) => Failure::new(USAGE, "unsupported", message),
            Error::Missing { remedy, .. } => Failure::new(MISSING, "unable", message).help(remedy),
            Error::Io { .. } => Failure::new(FAILED, "io", message)
                .help("finished runs are kept: the same command goes on with them"),
            Error::Interrupted { .. } => {
                Failure::new(INTERRUPTED, "interrupted", message).help("the same command goes on with them")
            }
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        let (code, kind) = match error {
            OpenError::Missing(_) => (USAGE, "missing"),
            OpenError::Incomplete { .. } => (USAGE, "incomplete"),
            OpenError::Unreadable { .. } => (FAILED, "unreadable"),
        };
        Failure::new(code, kind, error.to_string())
    }
}

/// Writes to stdout; a reader that has gone away is no failure.
pub fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::write(Path::new("stdout"), &error))
        }
        _ => Ok(()),
    }
}
