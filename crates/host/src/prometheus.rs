//! Metrics in the Prometheus text format 0.0.4, and the HTTP page that serves them.
//!
//! All programs use the same scheme: `netstage_COMPONENT_THING_UNIT`, counters with the suffix `_total`, in
//! base units (seconds, bytes, ratios). Tests check every page against [`scheme`].

pub mod scheme;

use crate::pending_connections::{Identified, PendingConnections};
use crate::startup_error::StartupError;
use netstage_core::measure::Histogram;
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

/// Limits on the size and duration of a request.
const MAX_REQUEST_BYTES: usize = 8 << 10;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of connections.
const MAX_CONNECTIONS: usize = 64;

/// Returns all current metrics, or `None` during shutdown.
pub type MetricsSource = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Serves `/metrics` until shutdown, on the current runtime.
pub async fn listen(
    address: SocketAddr,
    source: MetricsSource,
    mut closing: watch::Receiver<bool>,
) -> Result<(), StartupError> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        StartupError::new(
            format!("metrics cannot be served on {address}: {error}"),
            "give `metrics` a free address of this machine",
        )
    })?;
    tokio::spawn(async move {
        let connections = PendingConnections::new(MAX_CONNECTIONS);
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = closing.wait_for(|closing| *closing) => return,
            };
            match stream {
                Ok((stream, _)) => {
                    let source = Arc::clone(&source);
                    let task =
                        tokio::spawn(async move { timeout(REQUEST_TIMEOUT, answer(stream, source)).await });
                    connections.admit(task.abort_handle(), Identified::default());
                }
                // Out of descriptors: other tasks may release some.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    });
    Ok(())
}

/// Answers the one request of a connection, which suffices because scrapers connect rarely.
async fn answer(mut stream: TcpStream, source: MetricsSource) -> io::Result<()> {
    let mut request = Vec::with_capacity(1 << 10);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > MAX_REQUEST_BYTES || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let is_for_metrics = request.starts_with(b"GET /metrics ") || request.starts_with(b"GET /metrics?");
    let text = match is_for_metrics {
        true => spawn_blocking(move || source()).await.ok().flatten(),
        false => None,
    };
    let (status, body) = match (is_for_metrics, text) {
        (true, Some(text)) => ("200 OK", text),
        (true, None) => ("503 Service Unavailable", "the daemon is shutting down\n".into()),
        (false, _) => ("404 Not Found", "metrics are at /metrics\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// Content type of a page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of a histogram's buckets: 1, 2, 5, … per decade from 10 µs to 100 s.
const BOUNDS_NS: [u64; 22] = {
    let mut bounds = [0; 22];
    let (mut index, mut decade) = (0, 10_000);
    while index < 22 {
        bounds[index] = decade * [1, 2, 5][index % 3];
        if index % 3 == 2 {
            decade *= 10;
        }
        index += 1;
    }
    bounds
};

/// Text of a page under construction.
#[derive(Debug)]
pub struct Page(String);

impl Page {
    /// Starts the page of a component with its version and uptime.
    pub fn new(component: &str, uptime: Duration) -> Page {
        let mut page = Page(String::new());
        let info = format!("netstage_{component}_info");
        page.begin_metric(&info, "gauge", "Always 1; the label is the version.");
        page.sample(&info, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
        let help = "Time since the start.";
        page.metric(&format!("netstage_{component}_uptime_seconds"), "gauge", help, uptime.as_secs_f64());
        page
    }

    /// Returns the text.
    pub fn text(self) -> String {
        self.0
    }

    /// Starts a metric.
    pub fn begin_metric(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Adds a sample to the current metric.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    /// Adds the samples of a histogram of nanoseconds to the current metric, which is in seconds: the number of values up
    /// to each bound, their sum and their number. Values next to a bound may count on its other side, because they are
    /// known to 0.05 %.
    pub fn histogram(&mut self, name: &str, labels: &[(&str, &str)], times: &Histogram) {
        let mut counted = times.buckets().peekable();
        let mut below = 0;
        let bucket = format!("{name}_bucket");
        for bound in BOUNDS_NS {
            while let Some((_, count)) = counted.next_if(|(value, _)| *value <= bound) {
                below += count;
            }
            let bound = (bound as f64 / 1e9).to_string();
            self.sample(&bucket, &[labels, &[("le", &bound)]].concat(), below as f64);
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), times.count() as f64);
        let sum: f64 = times.buckets().map(|(value, count)| value as f64 * count as f64).sum();
        self.sample(&format!("{name}_sum"), labels, sum / 1e9);
        self.sample(&format!("{name}_count"), labels, times.count() as f64);
    }

    /// Adds a metric with one sample.
    pub fn metric(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.begin_metric(name, kind, help);
        self.sample(name, &[], value);
    }
}
