//! Exit codes, and failures as text or JSON.

use netstage_scenario::Errors;
use netstage_study::{OpenError, StoredRecord, StudyError};
use serde_json::{Value, json};
use std::fmt;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

/// Success.
pub const OK: u8 = 0;
/// Failure during execution.
pub const FAILED: u8 = 1;
/// Invalid usage or scenario; nothing was changed.
pub const USAGE: u8 = 2;
/// Expectation not met.
pub const EXPECTATION: u8 = 3;
/// Privilege or kernel feature missing.
pub const MISSING: u8 = 4;
/// Measurement void, or a router test limited by the tester: netstage itself was too slow or lost data.
pub const VOID: u8 = 5;
/// Interrupted; finished runs are kept.
pub const INTERRUPTED: u8 = 130;

/// Exit codes as listed at the end of `--help`.
pub const HELP: &str = "Exit codes: 0 success; 1 failure; 2 invalid usage or scenario; 3 expectation not met;
4 privilege or kernel feature missing; 5 measurement void; 130 interrupted (finished runs are kept)";

/// Returns the exit code for a record.
pub fn of(record: &StoredRecord) -> u8 {
    let data = &record.data;
    let is_valid = data.void.is_empty() && data.shortfalls().next().is_none();
    match (data.failures.is_empty(), is_valid, data.passes()) {
        (false, _, _) => FAILED,
        (true, false, _) => VOID,
        (true, true, false) => EXPECTATION,
        (true, true, true) => OK,
    }
}

/// Error that ends a command: exit code, message and advice.
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

    /// Creates an error about invalid usage.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(USAGE, "usage", message)
    }

    /// Creates an error about a failure during execution.
    pub fn run(message: impl Into<String>) -> Failure {
        Failure::new(FAILED, "run", message)
    }

    /// Creates an error about a missing privilege or kernel feature.
    pub fn missing(message: impl Into<String>) -> Failure {
        Failure::new(MISSING, "unable", message)
    }

    /// Creates an error about a file that cannot be written.
    pub fn write(path: &Path, error: &io::Error) -> Failure {
        Failure::new(FAILED, "io", format!("cannot write {}: {error}", path.display()))
    }

    /// Puts a subject in front of the message.
    #[cfg(feature = "full")]
    pub fn prefix(mut self, subject: &str) -> Failure {
        self.message = format!("{subject}: {}", self.message);
        self
    }

    /// Adds advice on what to do.
    pub fn help(mut self, help: impl Into<String>) -> Failure {
        self.help = help.into();
        self
    }

    /// Returns the exit code.
    #[cfg(feature = "full")]
    pub fn code(&self) -> u8 {
        self.code
    }

    /// Prints the error to stderr, as text or JSON, and returns the exit code.
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
            // Scenario errors and clap's messages already begin with "error:".
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
        let problem = |p: &netstage_scenario::FileProblem| {
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

impl From<StudyError> for Failure {
    fn from(error: StudyError) -> Failure {
        let message = error.to_string();
        match error {
            StudyError::Occupied { .. } => {
                Failure::new(USAGE, "occupied", message).help("choose another folder with --out")
            }
            StudyError::InUse { .. } => {
                Failure::new(USAGE, "in-use", message).help("choose another folder with --out")
            }
            StudyError::Run { .. } => Failure::run(message),
            StudyError::Unsupported(_) => Failure::new(USAGE, "unsupported", message),
            StudyError::Missing { remedy, .. } => Failure::new(MISSING, "unable", message).help(remedy),
            StudyError::Io { .. } => Failure::new(FAILED, "io", message)
                .help("finished runs are kept; repeat the command to resume"),
            StudyError::Interrupted { .. } => {
                Failure::new(INTERRUPTED, "interrupted", message).help("repeat the command to resume")
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

/// Writes to stdout. A closed pipe is not an error.
pub fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::write(Path::new("stdout"), &error))
        }
        _ => Ok(()),
    }
}
