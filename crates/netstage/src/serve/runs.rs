//! What is asked of studies: started, stopped, told of, by questions or as it happens.

use super::extract::{Asked, Of, Sent};
use super::feed::{Cursor, NoCursor, Told};
use super::refusal::Refusal;
use super::studies::{Order, Shown, Status, Study, begin};
use super::{Answer, Shared, apart};
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

/// A watcher is told no more often.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// The studies started here, the latest first.
pub async fn list(State(shared): State<Shared>) -> Json<Vec<Status>> {
    Json(shared.studies.list())
}

/// Starts a study.
pub async fn start(
    State(shared): State<Shared>,
    Sent(order): Sent<Order>,
) -> Result<(StatusCode, Json<Status>), Refusal> {
    apart(move || Ok((StatusCode::CREATED, Json(begin(&shared, &order)?)))).await
}

/// How a study is, and the network it runs.
pub async fn read(State(shared): State<Shared>, Of(id): Of<u64>) -> Answer<Shown> {
    Ok(Json(shared.studies.find(id)?.shown()))
}

/// Stops a study; runs that were finished are kept, and the same study goes on with them.
pub async fn stop(State(shared): State<Shared>, Of(id): Of<u64>) -> Result<StatusCode, Refusal> {
    shared.studies.find(id)?.stop();
    Ok(StatusCode::ACCEPTED)
}

/// What was told before.
#[derive(Debug, Deserialize)]
pub struct After {
    /// The `next` of the answer before; empty for all from the start.
    #[serde(default)]
    after: String,
}

/// What is new of a study.
#[derive(Debug, Serialize)]
pub struct News {
    /// How it is.
    status: Status,
    /// What came since.
    told: Vec<Told>,
    /// What to ask with for what comes next.
    next: String,
}

/// What is new of a study since it was last asked for, without a connection kept open: a browser has few to a host,
/// however many pages show a run.
pub async fn news(
    State(shared): State<Shared>,
    Of(id): Of<u64>,
    Asked(After { after }): Asked<After>,
) -> Result<Response, Refusal> {
    let study = shared.studies.find(id)?;
    let mut place: Place = after.parse().map_err(|_| {
        Refusal::bad(format!("\"{}\" is not what an answer before told as `next`", after.escape_debug()))
            .help("leave `after` out to be told all from the start")
    })?;
    // Pages ask often, and mostly nothing is new.
    if place.version == Some(study.version()) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let (status, told) = study.news(&mut place.cursor);
    place.version = Some(status.version);
    Ok(Json(News { status, told, next: place.to_string() }).into_response())
}

/// Where one who asks again and again is: what was told, and the version of the status then; as text `CURSOR@VERSION`.
#[derive(Debug, Default)]
struct Place {
    cursor: Cursor,
    version: Option<u64>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.cursor, self.version.unwrap_or_default())
    }
}

impl FromStr for Place {
    type Err = NoCursor;

    fn from_str(text: &str) -> Result<Place, NoCursor> {
        if text.is_empty() {
            return Ok(Place::default());
        }
        let (cursor, version) = text.split_once('@').ok_or(NoCursor)?;
        Ok(Place { cursor: cursor.parse()?, version: Some(version.parse().map_err(|_| NoCursor)?) })
    }
}

/// A study as it happens: `status` events, `told` events of its runs, and `over` at the end.
pub async fn events(
    State(shared): State<Shared>,
    Of(id): Of<u64>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refusal> {
    let study = shared.studies.find(id)?;
    let (sender, events) = mpsc::channel(4);
    tokio::spawn(async move { tell(&study, &sender).await });
    Ok(Sse::new(ReceiverStream::new(events).map(Ok)).keep_alive(KeepAlive::default()))
}

/// Tells a watcher until the study is over, or the watcher gone.
async fn tell(study: &Study, events: &mpsc::Sender<Event>) -> Option<()> {
    let mut version = study.versions();
    let mut cursor = Cursor::default();
    let event = |kind: &str, data: String| Event::default().event(kind).data(data);
    loop {
        version.borrow_and_update();
        let (status, news) = study.news(&mut cursor);
        for told in &news {
            events.send(event("told", as_json(told))).await.ok()?;
        }
        events.send(event("status", as_json(&status))).await.ok()?;
        if !status.is_running() {
            return events.send(event("over", "{}".into())).await.ok();
        }
        tokio::select! {
            changed = version.changed() => changed.ok()?,
            () = events.closed() => return None,
        }
        tokio::time::sleep(TELL_EVERY).await;
    }
}

fn as_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("text and numbers")
}
