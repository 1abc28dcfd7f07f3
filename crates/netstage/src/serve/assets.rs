//! Static files of the web page, built into the program.

use super::SharedState;
use super::error_response::ErrorResponse;
use super::guard::is_data;
use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

const PAGE: &str = include_str!("../../../../web/dist/app.html");
const SCRIPT: &str = include_str!("../../../../web/dist/app.js");
const STYLE: &str = include_str!("../../../../web/dist/app.css");

/// Returns the routes of the page, its script and its style sheet.
pub fn router() -> Router<SharedState> {
    // All views have the same page; its script selects the view by the path.
    let views = [
        "/",
        "/scenarios",
        "/scenarios/{*name}",
        "/runs",
        "/runs/{id}",
        "/agents",
        "/records",
        "/records/{*names}",
    ];
    let pages = views.into_iter().fold(Router::new(), |router, view| router.route(view, get(page)));
    pages
        .route("/app.js", get(async || file("text/javascript; charset=utf-8", SCRIPT)))
        .route("/app.css", get(async || file("text/css; charset=utf-8", STYLE)))
}

/// Responds to unknown paths: with the page, which reports the error, or with JSON for the API.
pub async fn unknown_path(method: Method, uri: Uri) -> Response {
    let is_read = matches!(method, Method::GET | Method::HEAD);
    match is_read && !is_data(uri.path()) {
        true => (StatusCode::NOT_FOUND, page().await).into_response(),
        false => ErrorResponse::missing("unknown path").into_response(),
    }
}

async fn page() -> impl IntoResponse {
    file("text/html; charset=utf-8", PAGE)
}

fn file(content: &'static str, text: &'static str) -> impl IntoResponse {
    // Other versions of netstage have different files under the same names.
    ([(CONTENT_TYPE, content), (CACHE_CONTROL, "no-cache")], text)
}
