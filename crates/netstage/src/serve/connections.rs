//! Connections of HTTP clients, limited in time and number as long as they have sent no authorized request.

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use netstage_host::descriptors;
use netstage_host::pending_connections::{Identified, PendingConnections};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tower::Service as _;

/// Time limit of the head of a request, also of the next one of a connection, and of its body.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of connections without an authorized request. One more closes the oldest.
const MAX_PENDING_CONNECTIONS: usize = 256;

/// Serves clients until it is dropped.
pub async fn serve(listener: TcpListener, app: Router, head_timeout: Duration) {
    descriptors::raise_limit();
    let pending = PendingConnections::new(MAX_PENDING_CONNECTIONS);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Usually out of file descriptors: other connections have to close first.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let identified = Identified::default();
        let task = tokio::spawn(serve_connection(stream, app.clone(), identified.clone(), head_timeout));
        pending.admit(task.abort_handle(), identified);
    }
}

/// Serves a connection until it ends. Errors concern its client alone.
async fn serve_connection(stream: TcpStream, app: Router, identified: Identified, head_timeout: Duration) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(identified.clone());
        app.clone().call(request)
    });
    let mut http = http1::Builder::new();
    let http = http.timer(TokioTimer::new()).header_read_timeout(head_timeout);
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::timeout;

    #[tokio::test]
    async fn an_incomplete_request_ends_at_its_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, Router::new(), Duration::from_millis(100)));
        for begun in ["", "GET / HTTP/1.1\r\nHost:"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(begun.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let ended = timeout(Duration::from_secs(60), stream.read_to_end(&mut answer)).await;
            ended.expect("the server closes the connection").unwrap();
        }
    }
}
