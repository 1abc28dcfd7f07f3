//! Requests about studies: start, stop, status, and updates by polling or server-sent events.

use super::error_response::ErrorResponse;
use super::extract::{JsonBody, PathParameter, QueryParameters};
use super::feed::{Cursor, InvalidCursor, RunEvent};
use super::studies::{ServedStudy, Status, StudyDetails, StudyRequest, start_study};
use super::{JsonResponse, SharedState, run_blocking};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive};
use axum::response::{IntoResponse as _, Response, Sse};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};

/// Minimum interval between updates to a client.
const UPDATE_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the studies started on this server, latest first.
pub async fn list(State(shared): State<SharedState>) -> Json<Vec<Status>> {
    Json(shared.studies.list())
}

/// Starts a study.
pub async fn start(
    State(shared): State<SharedState>,
    JsonBody(order): JsonBody<StudyRequest>,
) -> Result<(StatusCode, Json<Status>), ErrorResponse> {
    run_blocking(move || Ok((StatusCode::CREATED, Json(start_study(&shared, &order)?)))).await
}

/// Returns the status of a study and its network.
pub async fn read(
    State(shared): State<SharedState>,
    PathParameter(id): PathParameter<u64>,
) -> JsonResponse<StudyDetails> {
    Ok(Json(shared.studies.find(id)?.details()))
}

/// Stops a study. Finished runs are kept, and the same study resumes from them.
pub async fn stop(
    State(shared): State<SharedState>,
    PathParameter(id): PathParameter<u64>,
) -> Result<StatusCode, ErrorResponse> {
    shared.studies.find(id)?.stop();
    Ok(StatusCode::ACCEPTED)
}

/// Position of a client that polls.
#[derive(Debug, Deserialize)]
pub struct PollQuery {
    /// The `next` of the previous response; empty: from the start.
    #[serde(default)]
    after: String,
}

/// Update of a study.
#[derive(Debug, Serialize)]
pub struct StudyUpdate {
    /// Status.
    status: Status,
    /// Events since the previous response.
    events: Vec<RunEvent>,
    /// Value of `after` for the next request.
    next: String,
}

/// Returns the updates of a study since the previous request. Polling needs no open connection; browsers limit the
/// connections per host, which several pages would exhaust.
pub async fn updates(
    State(shared): State<SharedState>,
    PathParameter(id): PathParameter<u64>,
    QueryParameters(PollQuery { after }): QueryParameters<PollQuery>,
) -> Result<Response, ErrorResponse> {
    let study = shared.studies.find(id)?;
    let mut position: PollPosition = after.parse().map_err(|_| {
        ErrorResponse::invalid(format!(
            "\"{}\" is not the `next` of a previous response",
            after.escape_debug()
        ))
        .help("omit `after` to start from the beginning")
    })?;
    // Pages poll often, usually without new data.
    if position.version == Some(study.version()) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let (status, events) = study.updates(&mut position.cursor);
    position.version = Some(status.version);
    Ok(Json(StudyUpdate { status, events, next: position.to_string() }).into_response())
}

/// Position of a client that polls: cursor and version of the last status, as text `CURSOR@VERSION`.
#[derive(Debug, Default)]
struct PollPosition {
    cursor: Cursor,
    version: Option<u64>,
}

impl fmt::Display for PollPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.cursor, self.version.unwrap_or_default())
    }
}

impl FromStr for PollPosition {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<PollPosition, InvalidCursor> {
        if text.is_empty() {
            return Ok(PollPosition::default());
        }
        let (cursor, version) = text.split_once('@').ok_or(InvalidCursor)?;
        Ok(PollPosition {
            cursor: cursor.parse()?,
            version: Some(version.parse().map_err(|_| InvalidCursor)?),
        })
    }
}

/// Streams the events of a study: `status`, `run` for events of its runs, and `over` at the end.
pub async fn events(
    State(shared): State<SharedState>,
    PathParameter(id): PathParameter<u64>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ErrorResponse> {
    let study = shared.studies.find(id)?;
    let (sender, events) = mpsc::channel(4);
    tokio::spawn(async move { send_events(&study, &sender).await });
    Ok(Sse::new(ReceiverStream::new(events).map(Ok)).keep_alive(KeepAlive::default()))
}

/// Sends events until the study ends or the client disconnects.
async fn send_events(study: &ServedStudy, events: &mpsc::Sender<Event>) -> Option<()> {
    let mut version = study.versions();
    let mut cursor = Cursor::default();
    let event = |kind: &str, data: String| Event::default().event(kind).data(data);
    loop {
        version.borrow_and_update();
        let (status, run_events) = study.updates(&mut cursor);
        for run_event in &run_events {
            events.send(event("run", as_json(run_event))).await.ok()?;
        }
        events.send(event("status", as_json(&status))).await.ok()?;
        if !status.is_running() {
            return events.send(event("over", "{}".into())).await.ok();
        }
        tokio::select! {
            changed = version.changed() => changed.ok()?,
            () = events.closed() => return None,
        }
        tokio::time::sleep(UPDATE_INTERVAL).await;
    }
}

fn as_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("only text and numbers")
}
