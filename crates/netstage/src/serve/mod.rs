//! The web page and what it asks: REST, and server-sent events, described by OpenAPI.
//!
//! `guard` decides who may ask, `scenarios`, `runs` and `records` answer, `studies` runs what was
//! started, `feed` keeps what runs find while they go on. Nothing asked here names a program, a path
//! outside its folder, or an interface: a scenario's services come from the list compiled in.
//! docs/page.md tells how to use it.

mod agents;
mod assets;
mod extract;
mod feed;
mod guard;
mod metrics;
mod records;
mod refusal;
mod runs;
mod scenarios;
mod shelf;
mod studies;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use extract::Sent;
use guard::Guard;
use netstage_study::TOOL;
use refusal::Refusal;
use serde::{Deserialize, Serialize};
use shelf::Shelf;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Instant;
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

/// The longest request: a scenario of a few thousand lines.
const MOST_BYTES: usize = 4 << 20;

/// What is served, to whom.
#[derive(Debug)]
pub struct Settings {
    /// Folder of the scenarios.
    pub scenarios: PathBuf,
    /// Folder of the records.
    pub records: PathBuf,
    /// Folder of the fleet, where there is one.
    pub fleet: PathBuf,
    /// Names of this server beside its addresses.
    pub names: Vec<String>,
    /// What those who ask must know.
    pub token: Option<String>,
    /// Nothing may be started, stopped or written.
    pub read_only: bool,
}

/// What the requests share.
#[derive(Debug)]
struct Server {
    scenarios: Shelf,
    records: Shelf,
    fleet: PathBuf,
    known: records::Known,
    studies: studies::Studies,
    guard: Arc<Guard>,
    /// Held while a scenario is compared with what it was, and written.
    writing: Writing,
    since: Instant,
}

type Shared = Arc<Server>;
type Answer<T> = Result<Json<T>, Refusal>;

/// One writes at a time.
#[derive(Debug, Default)]
struct Writing(std::sync::Mutex<()>);

impl Writing {
    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Work that takes long or waits for files, apart from those that answer.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let failed =
        |_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "this is a mistake of netstage's");
    spawn_blocking(work).await.map_err(failed)?
}

/// What can be asked, in OpenAPI. Written by hand; the tests hold it against the routes and against what is answered.
const DESCRIPTION: &str = include_str!("openapi.json");

/// Who answers.
#[derive(Debug, Serialize)]
struct About {
    /// Name and version.
    tool: &'static str,
    /// Whether nothing may be started, stopped or written.
    read_only: bool,
    /// Folder of the scenarios.
    scenarios: String,
    /// Folder of the records.
    records: String,
}

/// Who answers.
async fn about(State(shared): State<Shared>) -> Json<About> {
    Json(About {
        tool: TOOL,
        read_only: shared.guard.read_only,
        scenarios: shared.scenarios.folder().display().to_string(),
        records: shared.records.folder().display().to_string(),
    })
}

/// A token to come in with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Session {
    /// The token.
    token: String,
}

/// Lets a browser in that knows the token: it is kept as a cookie which scripts cannot read.
async fn session(
    State(shared): State<Shared>,
    Sent(session): Sent<Session>,
) -> Result<impl IntoResponse, Refusal> {
    match shared.guard.is_token(&session.token) {
        true => {
            let cookie = shared.guard.cookie().map(|cookie| [(header::SET_COOKIE, cookie)]);
            Ok((StatusCode::NO_CONTENT, cookie.into_iter().flatten().collect::<axum::http::HeaderMap>()))
        }
        false => Err(Refusal::new(StatusCode::UNAUTHORIZED, "token", "this is not the token")),
    }
}

fn router(server: Shared) -> Router {
    let guard = Arc::clone(&server.guard);
    Router::new()
        .route("/api/about", get(about))
        .route("/api/session", post(session))
        .route("/api/scenarios", get(scenarios::list))
        .route("/api/scenario", get(scenarios::read).put(scenarios::write))
        .route("/api/check", post(scenarios::check))
        .route("/api/runs", get(runs::list).post(runs::start))
        .route("/api/runs/{id}", get(runs::read).delete(runs::stop))
        .route("/api/runs/{id}/news", get(runs::news))
        .route("/api/runs/{id}/events", get(runs::events))
        .route("/api/agents", get(agents::list))
        .route("/api/records", get(records::list))
        .route("/api/record", get(records::read))
        .route("/api/compare", post(records::side_by_side))
        .route("/api/compare/report.html", post(records::side_by_side_file))
        .route("/api/record/file", get(records::file))
        .route("/api/openapi.json", get(([(header::CONTENT_TYPE, "application/json")], DESCRIPTION)))
        .route("/metrics", get(metrics::tell))
        .merge(assets::router())
        .fallback(assets::nowhere)
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            let message = format!("{} does not take {method}", uri.path());
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method", message)
                .help("/api/openapi.json tells what can be asked")
        })
        .with_state(server)
        .layer(DefaultBodyLimit::max(MOST_BYTES))
        .layer(middleware::from_fn_with_state(guard, guard::watch))
}

/// Serves until `ended`; studies that run are stopped then. `listening` hears the address.
pub async fn serve(
    settings: Settings,
    listener: TcpListener,
    ended: impl Future<Output = ()> + Send + 'static,
    listening: impl FnOnce(SocketAddr),
) -> std::io::Result<()> {
    let Settings { scenarios, records, fleet, names, token, read_only } = settings;
    let address = listener.local_addr()?;
    let server = Arc::new(Server {
        scenarios: Shelf::new(scenarios, "scenario"),
        records: Shelf::new(records, "record"),
        fleet,
        known: records::Known::default(),
        studies: studies::Studies::default(),
        guard: Arc::new(Guard { names, token, port: address.port(), read_only }),
        writing: Writing::default(),
        since: Instant::now(),
    });
    listening(address);
    let app = router(Arc::clone(&server));
    tokio::select! {
        served = axum::serve(listener, app) => served?,
        () = ended => {}
    }
    let stopping = spawn_blocking(move || server.studies.stop());
    stopping.await.map_err(std::io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::DESCRIPTION;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn the_description_has_every_route_and_no_other() {
        let description: Value = serde_json::from_str(DESCRIPTION).unwrap();
        assert_eq!(description["info"]["version"], env!("CARGO_PKG_VERSION"));
        let mut described = BTreeSet::new();
        for (path, methods) in description["paths"].as_object().unwrap() {
            described.extend(methods.as_object().unwrap().keys().map(|method| format!("{method} {path}")));
        }
        let routes =
            include_str!("mod.rs").lines().filter_map(|line| line.trim().strip_prefix(".route(\"/api/"));
        let mut served = BTreeSet::new();
        for (path, methods) in routes.filter_map(|route| route.split_once("\", ")) {
            let methods =
                methods.split(['(', ')', '.']).filter(|word| ["get", "post", "put", "delete"].contains(word));
            served.extend(methods.map(|method| format!("{method} /api/{path}")));
        }
        assert!(served.remove("get /api/openapi.json"));
        assert_eq!(served, described);
    }
}
