//! The page's own files, built into the program.

use super::Shared;
use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::routing::get;

const PAGE: &str = include_str!("../../../../web/dist/app.html");
const SCRIPT: &str = include_str!("../../../../web/dist/app.js");
const STYLE: &str = include_str!("../../../../web/dist/app.css");

/// The page, its script and its style.
pub fn router() -> Router<Shared> {
    let file = |content: &'static str, text: &'static str| {
        // Another version of the program has other files under the same names.
        get(move || async move { ([(CONTENT_TYPE, content), (CACHE_CONTROL, "no-cache")], text) })
    };
    let page = || file("text/html; charset=utf-8", PAGE);
    // Each view has an address of its own; the script tells them apart.
    let views =
        ["/", "/scenarios", "/scenarios/{*name}", "/runs", "/runs/{id}", "/records", "/records/{*names}"];
    let pages = views.into_iter().fold(Router::new(), |router, view| router.route(view, page()));
    pages
        .route("/app.js", file("text/javascript; charset=utf-8", SCRIPT))
        .route("/app.css", file("text/css; charset=utf-8", STYLE))
}
