//! Parts of a request, as axum reads them, refused as everything here is refused: in plain words, with the place and
//! what belongs there.

use super::MOST_BYTES;
use super::refusal::Refusal;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use std::error::Error;

/// Where all requests are described.
const DESCRIBED: &str = "/api/openapi.json tells what can be asked";

/// The JSON of a request's body.
pub struct Sent<T>(pub T);

/// What stands behind the `?`.
pub struct Asked<T>(pub T);

/// What the path names.
pub struct Of<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Sent<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Sent<T>, Refusal> {
        let Json(value) = Json::from_request(request, state).await.map_err(|no| unreadable(&no))?;
        Ok(Sent(value))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Asked<T>, Refusal> {
        let read = Query::from_request_parts(parts, state).await;
        let Query(value) = read.map_err(|no| Refusal::bad(plain(&innermost(&no))).help(DESCRIBED))?;
        Ok(Asked(value))
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Of<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Of<T>, Refusal> {
        let asked = parts.uri.path().escape_debug().to_string();
        let read = Path::from_request_parts(parts, state).await;
        let Path(value) = read.map_err(|_| {
            Refusal::bad(format!("{asked} is no address: a run has a number")).help(DESCRIBED)
        })?;
        Ok(Of(value))
    }
}

fn unreadable(no: &JsonRejection) -> Refusal {
    let refused = |message: String| Refusal::new(no.status(), "request", message);
    match no {
        JsonRejection::MissingJsonContentType(_) => refused("what is sent is not said to be JSON".into())
            .help("send it with Content-Type: application/json"),
        JsonRejection::JsonSyntaxError(error) => {
            refused(format!("what is sent is no JSON: {}", innermost(error))).help(DESCRIBED)
        }
        JsonRejection::JsonDataError(error) => refused(plain(&innermost(error))).help(DESCRIBED),
        _ if no.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            refused(format!("what is sent is longer than {} MiB", MOST_BYTES >> 20))
        }
        _ => refused("what is sent ends too early".into()),
    }
}

/// What the error that others are wrapped around says, with its place: `scenario.seed: invalid type: …`.
fn innermost(error: &dyn Error) -> String {
    let mut told = error;
    while let Some(source) = told.source() {
        told = source;
    }
    told.to_string()
}

/// What serde says of a value, in plain words.
fn plain(said: &str) -> String {
    let said = said.rsplit_once(" at line ").map_or(said, |(said, _)| said);
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
        BEGINNINGS.iter().filter_map(|beginning| Some((said.find(beginning)?, *beginning))).min()
    else {
        return said.to_owned();
    };
    let place = said[..at].trim_end_matches(": ");
    let rest = &said[at + beginning.len()..];
    let (found, expected) = rest.split_once(", expected ").unwrap_or((rest, ""));
    let here = if place.is_empty() || place == "." { "what is sent" } else { place };
    let named = found.trim_matches('`');
    let choice = expected.trim_start_matches("one of ").replace('`', "");
    match beginning {
        "missing field " if here == "what is sent" => format!("{named} is missing"),
        "missing field " => format!("{named} is missing from {here}"),
        "duplicate field " => format!("{named} is there twice"),
        "unknown field " => format!("there is no {named}; there is {choice}"),
        "unknown variant " => format!("{here} is \"{named}\" and should be {choice}"),
        "invalid length " => format!("{here} should be {}", kind(expected)),
        _ => format!("{here} is {} and should be {}", value(found), kind(expected)),
    }
}

/// A value as serde describes it: `string "x"`, ``integer `5` ``.
fn value(found: &str) -> String {
    match found.split_once(' ') {
        Some(("string", text)) => format!("the text {text}"),
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
        "u64" => "a whole number, 0 or more".to_owned(),
        "u32" => format!("a whole number from 0 to {}", u32::MAX),
        "a string" => "a text".to_owned(),
        "a sequence" => "a list".to_owned(),
        other if other.starts_with("struct ") => "an object".to_owned(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serde_is_told_in_plain_words() {
        for (said, told) in [
            (
                "scenario.seed: invalid type: string \"1e3\", expected u64 at line 1 column 40",
                "scenario.seed is the text \"1e3\" and should be a whole number, 0 or more",
            ),
            (
                "scenario.repeat: invalid value: integer `-1`, expected u32",
                "scenario.repeat is -1 and should be a whole number from 0 to 4294967295",
            ),
            (
                "stage: unknown variant `mars`, expected one of `sim`, `emu`, `live` at line 1 column 9",
                "stage is \"mars\" and should be sim, emu, live",
            ),
            ("unknown field `x`, expected `a` or `b`", "there is no x; there is a or b"),
            ("missing field `name`", "name is missing"),
            ("scenario: missing field `text` at line 1 column 2", "text is missing from scenario"),
            ("names: invalid type: map, expected a sequence", "names is an object and should be a list"),
            (
                "invalid type: floating point `1.5`, expected struct Order",
                "what is sent is 1.5 and should be an object",
            ),
            ("EOF while parsing", "EOF while parsing"),
        ] {
            assert_eq!(plain(said), told);
        }
    }
}
