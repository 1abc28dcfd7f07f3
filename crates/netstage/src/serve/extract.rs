//! Extractors for parts of a request. Invalid requests get the same error responses as elsewhere in the API: plain
//! text with the location and the expected value.

use super::MAX_REQUEST_BYTES;
use super::connections::REQUEST_TIMEOUT;
use super::error_response::ErrorResponse;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use std::error::Error;
use tokio::time::timeout;

/// Advice for invalid requests.
const SEE_DESCRIPTION: &str = "see /api/openapi.json";

const INCOMPLETE: &str = "the request body is incomplete";

/// JSON body of a request.
pub struct JsonBody<T>(pub T);

/// Query string of a request.
pub struct QueryParameters<T>(pub T);

/// Path parameters of a request.
pub struct PathParameter<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ErrorResponse;

    async fn from_request(request: Request, state: &S) -> Result<JsonBody<T>, ErrorResponse> {
        let read = timeout(REQUEST_TIMEOUT, Json::from_request(request, state)).await;
        let incomplete = |_| ErrorResponse::new(StatusCode::REQUEST_TIMEOUT, "request", INCOMPLETE);
        let Json(value) = read.map_err(incomplete)?.map_err(|rejection| unreadable(&rejection))?;
        Ok(JsonBody(value))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParameters<T> {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<QueryParameters<T>, ErrorResponse> {
        let read = Query::from_request_parts(parts, state).await;
        let Query(value) = read.map_err(|rejection| {
            ErrorResponse::invalid(plain(&innermost(&rejection))).help(SEE_DESCRIPTION)
        })?;
        Ok(QueryParameters(value))
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParameter<T> {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathParameter<T>, ErrorResponse> {
        let path = parts.uri.path().escape_debug().to_string();
        let read = Path::from_request_parts(parts, state).await;
        let Path(value) = read.map_err(|_| {
            ErrorResponse::invalid(format!("{path}: invalid run number")).help(SEE_DESCRIPTION)
        })?;
        Ok(PathParameter(value))
    }
}

fn unreadable(rejection: &JsonRejection) -> ErrorResponse {
    let error = |message: String| ErrorResponse::new(rejection.status(), "request", message);
    match rejection {
        JsonRejection::MissingJsonContentType(_) => {
            error("the content type is not JSON".into()).help("add the header Content-Type: application/json")
        }
        JsonRejection::JsonSyntaxError(source) => {
            error(format!("the request body is not JSON: {}", innermost(source))).help(SEE_DESCRIPTION)
        }
        JsonRejection::JsonDataError(source) => error(plain(&innermost(source))).help(SEE_DESCRIPTION),
        _ if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            error(format!("the request body exceeds {} MiB", MAX_REQUEST_BYTES >> 20))
        }
        _ => error(INCOMPLETE.into()),
    }
}

/// Returns the message of the innermost source of an error, which has the location: `scenario.seed: invalid type: …`.
fn innermost(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Rewrites an error message of serde as plain text.
fn plain(message: &str) -> String {
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    const BEGINNINGS: [&str; 7] = [
        "invalid type: ",
        "invalid value: ",
        "unknown variant ",
        "unknown field ",
        "invalid length ",
        "missing field ",
        "duplicate field ",
    ];
    let Some((at, beginning)) =
        BEGINNINGS.iter().filter_map(|beginning| Some((message.find(beginning)?, *beginning))).min()
    else {
        return message.to_owned();
    };
    let path = message[..at].trim_end_matches(": ");
    let rest = &message[at + beginning.len()..];
    let (found, expected) = rest.split_once(", expected ").unwrap_or((rest, ""));
    let place = if path.is_empty() || path == "." { "the request" } else { path };
    let named = found.trim_matches('`');
    let choice = expected.trim_start_matches("one of ").replace('`', "");
    match beginning {
        "missing field " if place == "the request" => format!("missing {named}"),
        "missing field " => format!("missing {named} in {place}"),
        "duplicate field " => format!("duplicate {named}"),
        "unknown field " => format!("unknown field {named}; expected {choice}"),
        "unknown variant " => format!("{place} is \"{named}\"; expected {choice}"),
        "invalid length " => format!("{place} is invalid; expected {}", kind(expected)),
        _ => format!("{place} is {}; expected {}", value(found), kind(expected)),
    }
}

/// Rewrites a value in serde's notation: `string "x"`, ``integer `5` ``.
fn value(found: &str) -> String {
    match found.split_once(' ') {
        Some(("string", text)) => format!("the string {text}"),
        Some(("integer" | "boolean", value)) => value.trim_matches('`').to_owned(),
        Some(("floating", value)) => value.trim_start_matches("point ").trim_matches('`').to_owned(),
        _ => match found {
            "map" => "an object".to_owned(),
            "sequence" => "a list".to_owned(),
            other => other.to_owned(),
        },
    }
}

fn kind(expected: &str) -> String {
    match expected {
        "u64" => "an integer of 0 or more".to_owned(),
        "u32" => format!("an integer from 0 to {}", u32::MAX),
        "a sequence" => "a list".to_owned(),
        other if other.starts_with("struct ") => "an object".to_owned(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serde_messages_become_plain_text() {
        for (message, expected) in [
            (
                "scenario.seed: invalid type: string \"1e3\", expected u64 at line 1 column 40",
                "scenario.seed is the string \"1e3\"; expected an integer of 0 or more",
            ),
            (
                "scenario.repeat: invalid value: integer `-1`, expected u32",
                "scenario.repeat is -1; expected an integer from 0 to 4294967295",
            ),
            (
                "stage: unknown variant `mars`, expected one of `sim`, `emu`, `live` at line 1 column 9",
                "stage is \"mars\"; expected sim, emu, live",
            ),
            ("unknown field `x`, expected `a` or `b`", "unknown field x; expected a or b"),
            ("missing field `name`", "missing name"),
            ("scenario: missing field `text` at line 1 column 2", "missing text in scenario"),
            ("names: invalid type: map, expected a sequence", "names is an object; expected a list"),
            (
                "invalid type: floating point `1.5`, expected struct Order",
                "the request is 1.5; expected an object",
            ),
            ("EOF while parsing", "EOF while parsing"),
        ] {
            assert_eq!(plain(message), expected);
        }
    }
}
