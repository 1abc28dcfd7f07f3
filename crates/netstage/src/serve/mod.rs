//! Web page and its REST API with server-sent events, described by OpenAPI.
//!
//! `connections` limits clients, `guard` authorizes requests, `scenarios`, `runs` and `records` handle them, `studies` performs studies, and `feed`
//! buffers their partial results. No request can name a program, an interface or a path outside the folders: services
//! of scenarios are from the built-in list. docs/page.md describes the usage.

mod agents;
mod assets;
mod connections;
mod error_response;
mod extract;
mod feed;
mod folder;
mod guard;
mod metrics;
mod records;
mod runs;
mod scenarios;
mod studies;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use error_response::ErrorResponse;
use extract::JsonBody;
use folder::PublicFolder;
use guard::RequestGuard;
use netstage_study::TOOL;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Instant;
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

/// Maximum size of a request: a scenario of a few thousand lines.
const MAX_REQUEST_BYTES: usize = 4 << 20;

/// Settings of the server.
#[derive(Debug)]
pub struct ServerSettings {
    /// Folder of the scenarios.
    pub scenarios: PathBuf,
    /// Folder of the records.
    pub records: PathBuf,
    /// Folder of the fleet, which may be missing.
    pub fleet: PathBuf,
    /// Host names of this server, in addition to its addresses.
    pub names: Vec<String>,
    /// Token required from clients.
    pub token: Option<String>,
    /// Whether starting, stopping and writing are forbidden.
    pub read_only: bool,
}

/// State shared by all requests.
#[derive(Debug)]
struct ServerState {
    scenarios: PublicFolder,
    records: PublicFolder,
    fleet: PathBuf,
    record_cache: records::RecordCache,
    studies: studies::Studies,
    guard: Arc<RequestGuard>,
    /// Lock for the comparison and replacement of a scenario file.
    writing: WriteLock,
    started: Instant,
}

type SharedState = Arc<ServerState>;
type JsonResponse<T> = Result<Json<T>, ErrorResponse>;

/// Lock of write access to scenarios.
#[derive(Debug, Default)]
struct WriteLock(std::sync::Mutex<()>);

impl WriteLock {
    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Performs blocking work on a separate thread.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ErrorResponse> + Send + 'static,
) -> Result<T, ErrorResponse> {
    let failed =
        |_| ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "internal error of netstage");
    spawn_blocking(work).await.map_err(failed)?
}

/// OpenAPI description. Written by hand; tests verify it against the routes and the responses.
const DESCRIPTION: &str = include_str!("openapi.json");

/// Name, version and folders of the server.
#[derive(Debug, Serialize)]
struct About {
    /// Name and version.
    tool: &'static str,
    /// Whether starting, stopping and writing are forbidden.
    read_only: bool,
    /// Folder of the scenarios.
    scenarios: String,
    /// Folder of the records.
    records: String,
}

/// Returns the name, version and folders of the server.
async fn about(State(shared): State<SharedState>) -> Json<About> {
    Json(About {
        tool: TOOL,
        read_only: shared.guard.read_only,
        scenarios: shared.scenarios.folder().display().to_string(),
        records: shared.records.folder().display().to_string(),
    })
}

/// Request to log in.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoginRequest {
    /// Token.
    token: String,
}

/// Logs a browser in: verifies the token and stores it in a cookie that scripts cannot read.
async fn session(
    State(shared): State<SharedState>,
    JsonBody(session): JsonBody<LoginRequest>,
) -> Result<impl IntoResponse, ErrorResponse> {
    match shared.guard.is_token(&session.token) {
        true => {
            let cookie = shared.guard.cookie().map(|cookie| [(header::SET_COOKIE, cookie)]);
            Ok((StatusCode::NO_CONTENT, cookie.into_iter().flatten().collect::<axum::http::HeaderMap>()))
        }
        false => Err(ErrorResponse::new(StatusCode::UNAUTHORIZED, "token", "invalid token")),
    }
}

fn router(server: SharedState) -> Router {
    let guard = Arc::clone(&server.guard);
    Router::new()
        .route("/api/about", get(about))
        .route("/api/session", post(session))
        .route("/api/scenarios", get(scenarios::list))
        .route("/api/scenario", get(scenarios::read).put(scenarios::write))
        .route("/api/check", post(scenarios::check))
        .route("/api/runs", get(runs::list).post(runs::start))
        .route("/api/runs/{id}", get(runs::read).delete(runs::stop))
        .route("/api/runs/{id}/updates", get(runs::updates))
        .route("/api/runs/{id}/events", get(runs::events))
        .route("/api/agents", get(agents::list))
        .route("/api/records", get(records::list))
        .route("/api/record", get(records::read))
        .route("/api/compare", post(records::side_by_side))
        .route("/api/compare/report.html", post(records::side_by_side_file))
        .route("/api/record/file", get(records::file))
        .route("/api/openapi.json", get(([(header::CONTENT_TYPE, "application/json")], DESCRIPTION)))
        .route("/metrics", get(metrics::metrics))
        .merge(assets::router())
        .fallback(assets::unknown_path)
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            let message = format!("{} does not support {method}", uri.path());
            ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, "method", message)
                .help("see /api/openapi.json for the API")
        })
        .with_state(server)
        .layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
        .layer(middleware::from_fn_with_state(guard, guard::authorize))
}

/// Serves until `ended` completes, then stops running studies. `listening` is called with the address.
pub async fn serve(
    settings: ServerSettings,
    listener: TcpListener,
    ended: impl Future<Output = ()> + Send + 'static,
    listening: impl FnOnce(SocketAddr),
) -> std::io::Result<()> {
    let ServerSettings { scenarios, records, fleet, names, token, read_only } = settings;
    let address = listener.local_addr()?;
    let server = Arc::new(ServerState {
        scenarios: PublicFolder::new(scenarios, "scenario"),
        records: PublicFolder::new(records, "record"),
        fleet,
        record_cache: records::RecordCache::default(),
        studies: studies::Studies::default(),
        guard: Arc::new(RequestGuard { names, token, port: address.port(), read_only }),
        writing: WriteLock::default(),
        started: Instant::now(),
    });
    listening(address);
    let app = router(Arc::clone(&server));
    tokio::select! {
        () = connections::serve(listener, app, connections::REQUEST_TIMEOUT) => {}
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
    fn the_description_matches_the_routes() {
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
