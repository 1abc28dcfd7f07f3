//! Why a request is not carried out, as programs and the page read it.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use netstage_scenario::Errors;
use netstage_study::OpenError;
use serde::Serialize;
use std::io;

/// An answer that is none.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    body: Box<Refused>,
}

/// What is told of it.
#[derive(Debug, Serialize)]
pub struct Refused {
    error: Mistake,
}

/// A mistake, as the command line's `--json` tells it.
#[derive(Debug, Serialize)]
struct Mistake {
    /// What kind of error it is, in a word.
    kind: &'static str,
    /// What is wrong.
    message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "String::is_empty")]
    help: String,
    /// Where a scenario is wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<Problem>,
}

/// A place in a text, and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file, or the option, it is in.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Characters it spans; at least one.
    pub length: usize,
    /// What is wrong.
    pub message: String,
    /// What to write instead, where that can be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl Problem {
    /// All of a scenario.
    pub fn all(errors: &Errors) -> Vec<Problem> {
        let one = |problem: &netstage_scenario::Problem| {
            let source = errors.source_of(problem);
            let spanned = source.text.get(problem.span.clone()).unwrap_or("");
            Problem {
                file: source.name.clone(),
                line: problem.line,
                column: problem.column,
                length: spanned.lines().next().unwrap_or("").chars().count().max(1),
                message: problem.message.clone(),
                help: problem.help.clone(),
            }
        };
        errors.problems.iter().map(one).collect()
    }
}

impl Refusal {
    /// With a word for programs and a sentence for people.
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Refusal {
        let error = Mistake { kind, message: message.into(), help: String::new(), problems: Vec::new() };
        Refusal { status, body: Box::new(Refused { error }) }
    }

    /// Something that is not there.
    pub fn missing(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, "missing", message)
    }

    /// Something that cannot be meant.
    pub fn bad(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "request", message)
    }

    /// Something that does not go with what there is now.
    pub fn conflict(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::CONFLICT, "conflict", message)
    }

    /// A file that cannot be read or written.
    pub fn io(doing: &str, name: &str, error: &io::Error) -> Refusal {
        let status = match error.kind() {
            io::ErrorKind::NotFound => return Refusal::missing(format!("there is no {name}")),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
            io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refusal::new(status, "io", format!("cannot {doing} {name}: {error}"))
    }

    /// With advice.
    pub fn help(mut self, help: impl Into<String>) -> Refusal {
        self.body.error.help = help.into();
        self
    }

    /// Its status.
    #[cfg(test)]
    pub fn status(&self) -> StatusCode {
        self.status
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}

impl From<Errors> for Refusal {
    fn from(errors: Errors) -> Refusal {
        let mut refusal =
            Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "scenario", "the scenario is not sound");
        refusal.body.error.problems = Problem::all(&errors);
        refusal
    }
}

impl From<OpenError> for Refusal {
    fn from(error: OpenError) -> Refusal {
        let (status, kind) = match error {
            OpenError::Missing(_) => (StatusCode::NOT_FOUND, "missing"),
            OpenError::Incomplete { .. } => (StatusCode::CONFLICT, "incomplete"),
            OpenError::Unreadable { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "unreadable"),
        };
        Refusal::new(status, kind, error.to_string())
    }
}
