//! Metrics for Prometheus, in its text format 0.0.4: names with units, each with its help; and the page on
//! which a daemon tells them.
//!
//! All programs name alike: `netstage_COMPONENT_THING_UNIT`, counters with `_total` behind it, in base units
//! (seconds, bytes, ratios). [`scheme`] says it exactly, and tests hold every page to it.

pub mod scheme;

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
pub type Source = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Serves `/metrics` until the end, from the runtime that is entered.
pub async fn listen(
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
        (true, None) => ("503 Service Unavailable", "it is ending\n".into()),
        (false, _) => ("404 Not Found", "metrics are at /metrics\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// What a page is, as HTTP says it.
pub const CONTENT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text, as it grows.
#[derive(Debug)]
pub struct Page(String);

impl Page {
    /// Of a component, which tells what it is and for how long.
    pub fn new(component: &str, uptime: Duration) -> Page {
        let mut page = Page(String::new());
        let info = format!("netstage_{component}_info");
        page.head(&info, "gauge", "1; its version.");
        page.sample(&info, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
        let help = "Time since it began.";
        page.one(&format!("netstage_{component}_uptime_seconds"), "gauge", help, uptime.as_secs_f64());
        page
    }

    /// The whole.
    pub fn text(self) -> String {
        self.0
    }

    /// Begins a metric.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A value of the metric that was begun last.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    /// A metric of one value.
    pub fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.head(name, kind, help);
        self.sample(name, &[], value);
    }
}
