//! Metrics for Prometheus, in its text format 0.0.4: names with units, each with its help; and the page on
//! which a daemon tells them.

use crate::obstacle::Obstacle;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// A request is no longer, and takes no longer.
const MOST_BYTES: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(5);

/// Gives all metrics as they are now; none when the daemon is ending.
pub(crate) type Source = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Serves `/metrics` until the end, from the runtime that is entered.
pub(crate) async fn listen(
    address: SocketAddr,
    source: Source,
    mut closing: watch::Receiver<bool>,
) -> Result<(), Obstacle> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Obstacle::new(
            format!("metrics cannot be served on {address}: {error}"),
            "give `metrics` a free address of this machine",
        )
    })?;
    tokio::spawn(async move {
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = closing.wait_for(|closing| *closing) => return,
            };
            match stream {
                Ok((stream, _)) => {
                    let source = Arc::clone(&source);
                    tokio::spawn(async move { timeout(PATIENCE, answer(stream, source)).await });
                }
                // Out of descriptors: others may give some back.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    });
    Ok(())
}

/// One request, one answer: scrapers ask rarely.
async fn answer(mut stream: TcpStream, source: Source) -> io::Result<()> {
    let mut request = Vec::with_capacity(1 << 10);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > MOST_BYTES || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let asks = request.starts_with(b"GET /metrics ") || request.starts_with(b"GET /metrics?");
    let text = match asks {
        true => spawn_blocking(move || source()).await.ok().flatten(),
        false => None,
    };
    let (status, body) = match (asks, text) {
        (true, Some(text)) => ("200 OK", text),
        (true, None) => ("503 Service Unavailable", "the router is ending\n".into()),
        (false, _) => ("404 Not Found", "metrics are at /metrics\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// The text, as it grows.
#[derive(Debug, Default)]
pub(crate) struct Page(pub String);

impl Page {
    /// Begins a metric.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A value of the metric that was begun last.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        // Names are letters, digits, `-` and `_`: nothing to escape.
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    /// A metric of one value.
    pub fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.head(name, kind, help);
        self.sample(name, &[], value);
    }
}

/// Every sample has its help, its type and a number; the names of all metrics.
#[cfg(test)]
pub(crate) fn checked(text: &str) -> std::collections::BTreeSet<String> {
    let (mut named, mut last) = (std::collections::BTreeSet::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(named.insert(name.to_owned()) && help.ends_with('.'), "{line}");
            last = name.to_owned();
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert_eq!(name.split('{').next().unwrap(), last);
            assert!(value.parse::<f64>().unwrap().is_finite());
        }
    }
    named
}
