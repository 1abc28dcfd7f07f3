//! Access control: admits the page and the user's programs, but no other site that the user's browser has open, and
//! requires the token if one is configured.
//!
//! A page of another site can make a browser send requests to this server. With DNS rebinding, a host name of the
//! attacker that resolves to this server, it can even read the responses. Therefore a request must name this server by
//! an address or a configured name, must have no foreign origin, and must declare its content type.

use super::error_response::ErrorResponse;
use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HOST, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use netstage_host::pending_connections::Identified;
use std::net::IpAddr;
use std::sync::Arc;

/// Prefix of the cookie that holds the token. The port follows, since a browser sends the cookies of a host to all of
/// its ports.
const COOKIE_NAME: &str = "netstage-";

/// Content security policy of the page: one script, one style sheet and requests to this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Access rules of a server.
#[derive(Debug, Default)]
pub struct RequestGuard {
    /// Host names of this server, in addition to its addresses and `localhost`.
    pub names: Vec<String>,
    /// Required token; `None` admits every user of this host.
    pub token: Option<String>,
    /// Port of this server.
    pub port: u16,
    /// Requests that start, stop or write anything are rejected.
    pub read_only: bool,
}

/// Reports whether a path belongs to the API, not to the static page.
pub fn is_data(path: &str) -> bool {
    path == "/api" || path.starts_with("/api/") || path == "/metrics"
}

/// Reports whether requests for a path need the token, if one is configured. The page itself asks the user for it.
fn needs_token(path: &str) -> bool {
    is_data(path) && path != "/api/session"
}

/// Passes an admitted request on, or responds with an error.
pub async fn authorize(State(guard): State<Arc<RequestGuard>>, request: Request, next: Next) -> Response {
    let is_api = is_data(request.uri().path());
    let mut response = match guard.admits(request.method(), request.uri().path(), request.headers()) {
        Ok(()) => {
            let identified = request.extensions().get::<Identified>();
            identified.filter(|_| needs_token(request.uri().path())).inspect(|client| client.set());
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        // A downloaded report has a stricter policy of its own.
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    if is_api {
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
    response
}

impl RequestGuard {
    fn admits(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), ErrorResponse> {
        let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or(""));
        let host = text(HOST).unwrap_or("");
        if !self.is_ours(host) {
            let message = format!("unknown host name {}", host.escape_debug());
            return Err(ErrorResponse::new(StatusCode::MISDIRECTED_REQUEST, "host", message)
                .help("use the address of the server, or start it with --name NAME"));
        }
        let is_foreign =
            |origin: &str| origin.split_once("://").is_none_or(|(_, authority)| authority != host);
        let foreign = ErrorResponse::new(
            StatusCode::FORBIDDEN,
            "cross-site",
            "requests from other sites are not allowed",
        );
        if text(ORIGIN).is_some_and(is_foreign) {
            return Err(foreign);
        }
        let is_api = is_data(path);
        // Links of other sites may lead to the page, not to the API.
        let from = text(HeaderName::from_static("sec-fetch-site"));
        if is_api && from.is_some_and(|from| !matches!(from, "same-origin" | "none")) {
            return Err(foreign);
        }
        if needs_token(path) && !self.has_token(headers) {
            return Err(ErrorResponse::new(StatusCode::UNAUTHORIZED, "token", "missing or wrong token")
                .help("open the URL that the server printed, or send `Authorization: Bearer TOKEN`"));
        }
        let changes = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        let is_query =
            matches!(path, "/api/session" | "/api/check" | "/api/compare" | "/api/compare/report.html");
        if changes && self.read_only && !is_query {
            return Err(ErrorResponse::new(StatusCode::FORBIDDEN, "read-only", "the server is read-only")
                .help("start it without --read-only"));
        }
        Ok(())
    }

    /// Reports whether a Host header names this server. Any address is safe, since DNS cannot redirect it.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        name.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    fn has_token(&self, headers: &HeaderMap) -> bool {
        let bearer =
            headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs = cookies.flat_map(|value| value.split("; ")).filter_map(|pair| pair.split_once('='));
        let own = self.cookie_name();
        let in_cookie = pairs.filter(|(name, _)| *name == own).map(|(_, value)| value);
        self.token.is_none() || bearer.into_iter().chain(in_cookie).any(|value| self.is_token(value))
    }

    /// Reports whether this is the token, in constant time for values of the same length.
    pub fn is_token(&self, value: &str) -> bool {
        self.token.as_ref().is_none_or(|token| {
            let differ = token.bytes().zip(value.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b));
            token.len() == value.len() && differ == 0
        })
    }

    fn cookie_name(&self) -> String {
        format!("{COOKIE_NAME}{}", self.port)
    }

    /// Returns the session cookie with the token. Scripts cannot read it, and requests from other sites do not have it.
    pub fn cookie(&self) -> Option<HeaderValue> {
        let (name, token) = (self.cookie_name(), self.token.as_ref()?);
        HeaderValue::from_str(&format!("{name}={token}; HttpOnly; SameSite=Strict; Path=/")).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(guard: &RequestGuard, method: Method, path: &str, headers: &[(&str, &str)]) -> Result<(), u16> {
        let pairs = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let headers: HeaderMap = pairs.collect::<Vec<(HeaderName, HeaderValue)>>().into_iter().collect();
        guard.admits(&method, path, &headers).map_err(|refusal| refusal.status().as_u16())
    }

    #[test]
    fn only_the_page_and_programs_are_admitted() {
        let guard = RequestGuard { names: vec!["stage.example".into()], ..RequestGuard::default() };
        let ask = |headers: &[(&str, &str)]| answer(&guard, Method::POST, "/api/runs", headers);
        for host in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "10.0.0.7", "Stage.Example:80"] {
            assert_eq!(ask(&[("host", host)]), Ok(()), "{host}");
        }
        for host in ["evil.example:8080", "localhost.evil.example", "", "127.0.0.1.evil.example:8080"] {
            assert_eq!(ask(&[("host", host)]), Err(421), "{host}");
        }
        let from = |origin| ask(&[("host", "localhost:8080"), ("origin", origin)]);
        assert_eq!(from("http://localhost:8080"), Ok(()));
        for origin in ["http://evil.example", "http://localhost:9090", "null", "http://127.0.0.1:8080", ""] {
            assert_eq!(from(origin), Err(403), "{origin}");
        }
        let fetched = |site, path| {
            answer(&guard, Method::GET, path, &[("host", "localhost"), ("sec-fetch-site", site)])
        };
        assert_eq!((fetched("cross-site", "/"), fetched("same-origin", "/api/runs")), (Ok(()), Ok(())));
        assert_eq!(
            (fetched("cross-site", "/api/runs"), fetched("same-site", "/metrics")),
            (Err(403), Err(403))
        );
    }

    #[test]
    fn the_token_is_required() {
        let guard = RequestGuard { token: Some("secret".into()), port: 8080, ..RequestGuard::default() };
        let ask =
            |name, value| answer(&guard, Method::GET, "/api/runs", &[("host", "localhost"), (name, value)]);
        assert_eq!(ask("authorization", "Bearer secret"), Ok(()));
        assert_eq!(ask("cookie", "netstage-8081=other; netstage-8080=secret"), Ok(()));
        let wrong = [
            ("cookie", "netstage-8080=secre"),
            ("cookie", "netstage-8081=secret"),
            ("authorization", "secret"),
            ("accept", "*/*"),
        ];
        for (name, value) in wrong {
            assert_eq!(ask(name, value), Err(401), "{value}");
        }
        assert_eq!(answer(&guard, Method::GET, "/", &[("host", "localhost")]), Ok(()));
    }

    #[test]
    fn a_read_only_server_rejects_changes() {
        let guard = RequestGuard { read_only: true, ..RequestGuard::default() };
        let ask = |method, path| answer(&guard, method, path, &[("host", "localhost")]);
        assert_eq!((ask(Method::GET, "/api/runs"), ask(Method::POST, "/api/check")), (Ok(()), Ok(())));
        assert_eq!((ask(Method::POST, "/api/runs"), ask(Method::PUT, "/api/scenario")), (Err(403), Err(403)));
    }
}
