//! Parts of a request, as axum reads them, refused as everything here is refused.

use super::refusal::Refusal;
use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

/// The JSON of a request's body.
pub struct Sent<T>(pub T);

/// What stands behind the `?`.
pub struct Asked<T>(pub T);

/// What the path names.
pub struct Of<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Sent<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Sent<T>, Refusal> {
        let read = Json::from_request(request, state).await;
        read.map(|Json(value)| Sent(value)).map_err(|no| refused(no.status(), no.body_text()))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Asked<T>, Refusal> {
        let read = Query::from_request_parts(parts, state).await;
        read.map(|Query(value)| Asked(value)).map_err(|no| refused(no.status(), no.body_text()))
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Of<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Of<T>, Refusal> {
        let read = Path::from_request_parts(parts, state).await;
        read.map(|Path(value)| Of(value)).map_err(|no| refused(no.status(), no.body_text()))
    }
}

fn refused(status: StatusCode, message: String) -> Refusal {
    Refusal::new(status, "request", message)
}
