//! Error responses.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use netstage_scenario::Errors;
use netstage_study::OpenError;
use serde::Serialize;
use std::io;

/// Error response to a request.
#[derive(Debug)]
pub struct ErrorResponse {
    status: StatusCode,
    body: Box<ErrorBody>,
}

/// Body of an error response.
#[derive(Debug, Serialize)]
pub struct ErrorBody {
    error: ErrorDetails,
}

/// Error, in the format of the command line's `--json`.
#[derive(Debug, Serialize)]
struct ErrorDetails {
    /// Kind of error.
    kind: &'static str,
    /// Message.
    message: String,
    /// Remedy.
    #[serde(skip_serializing_if = "String::is_empty")]
    help: String,
    /// Problems of a scenario.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<ScenarioProblem>,
}

/// Problem at a position in a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScenarioProblem {
    /// File or option.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Length in characters; at least one.
    pub length: usize,
    /// Message.
    pub message: String,
    /// Suggested correction, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl ScenarioProblem {
    /// Returns all problems of a scenario.
    pub fn all(errors: &Errors) -> Vec<ScenarioProblem> {
        let converted = |problem: &netstage_scenario::FileProblem| {
            let source = errors.source_of(problem);
            let spanned = source.text.get(problem.span.clone()).unwrap_or("");
            ScenarioProblem {
                file: source.name.clone(),
                line: problem.line,
                column: problem.column,
                length: spanned.lines().next().unwrap_or("").chars().count().max(1),
                message: problem.message.clone(),
                help: problem.help.clone(),
            }
        };
        errors.problems.iter().map(converted).collect()
    }
}

impl ErrorResponse {
    /// Creates a response with a kind for programs and a message for people.
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ErrorResponse {
        let error = ErrorDetails { kind, message: message.into(), help: String::new(), problems: Vec::new() };
        ErrorResponse { status, body: Box::new(ErrorBody { error }) }
    }

    /// Creates the response for something that does not exist.
    pub fn missing(message: impl Into<String>) -> ErrorResponse {
        ErrorResponse::new(StatusCode::NOT_FOUND, "missing", message)
    }

    /// Creates the response for an invalid request.
    pub fn invalid(message: impl Into<String>) -> ErrorResponse {
        ErrorResponse::new(StatusCode::BAD_REQUEST, "request", message)
    }

    /// Creates the response for a request that conflicts with the current state.
    pub fn conflict(message: impl Into<String>) -> ErrorResponse {
        ErrorResponse::new(StatusCode::CONFLICT, "conflict", message)
    }

    /// Creates the response for a failed read or write.
    pub fn io(doing: &str, name: &str, error: &io::Error) -> ErrorResponse {
        let status = match error.kind() {
            io::ErrorKind::NotFound => return ErrorResponse::missing(format!("{name} does not exist")),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
            io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        ErrorResponse::new(status, "io", format!("cannot {doing} {name}: {error}"))
    }

    /// Adds a remedy.
    pub fn help(mut self, help: impl Into<String>) -> ErrorResponse {
        self.body.error.help = help.into();
        self
    }

    /// Returns the status.
    #[cfg(test)]
    pub fn status(&self) -> StatusCode {
        self.status
    }
}

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}

impl From<Errors> for ErrorResponse {
    fn from(errors: Errors) -> ErrorResponse {
        let mut refusal =
            ErrorResponse::new(StatusCode::UNPROCESSABLE_ENTITY, "scenario", "the scenario has errors");
        refusal.body.error.problems = ScenarioProblem::all(&errors);
        refusal
    }
}

impl From<OpenError> for ErrorResponse {
    fn from(error: OpenError) -> ErrorResponse {
        let (status, kind) = match error {
            OpenError::Missing(_) => (StatusCode::NOT_FOUND, "missing"),
            OpenError::Incomplete { .. } => (StatusCode::CONFLICT, "incomplete"),
            OpenError::Unreadable { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "unreadable"),
        };
        ErrorResponse::new(status, kind, error.to_string())
    }
}
