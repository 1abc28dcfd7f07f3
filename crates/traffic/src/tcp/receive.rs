//! The receiver: listens from the start, takes one connection and counts what comes.

use super::super::error::Problem;
use super::super::frame::Watch;
use super::super::kernel::discard;
use super::super::ledger::Ledger;
use super::{hold_window, is_end, is_wait, listen};
use netstage_agent_api::results::{Counts, FlowResult};
use netstage_agent_api::task::{FlowTask, TcpOptions};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use socket2::Socket;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

/// Bytes taken by one call.
const CHUNK: usize = 1 << 20;
/// Calls before other members have their turn.
const CALLS_AT_ONCE: usize = 4;

/// Receives one flow over one connection.
pub struct TcpReceiver {
    name: String,
    listener: Option<Socket>,
    connection: Option<Socket>,
    options: TcpOptions,
    /// The only host a connection is taken from; none where any.
    peer: Option<IpAddr>,
    start: Instant,
    stop: Instant,
    end: Instant,
    resume_at: Option<Instant>,
    last_bytes: Option<Instant>,
    strangers: u64,
    closed: bool,
    error: Option<String>,
    ledger: Ledger,
}

impl TcpReceiver {
    /// Opens, binds and listens: from now on connections are taken by the kernel.
    pub fn prepare(
        task: &FlowTask,
        options: &TcpOptions,
        duration: Duration,
        ledger: Ledger,
    ) -> Result<TcpReceiver, Problem> {
        let listener = listen(task.destination, options)?;
        Ok(TcpReceiver {
            name: task.name.clone(),
            listener: Some(listener),
            connection: None,
            options: options.clone(),
            peer: Some(task.source.ip()).filter(|ip| !ip.is_unspecified()),
            start: Instant(task.start.0),
            stop: Instant(task.stop.0.min(duration.0)),
            end: Instant(duration.0),
            resume_at: None,
            last_bytes: None,
            strangers: 0,
            closed: false,
            error: None,
            ledger,
        })
    }

    /// Its listening socket, until the flow's connection is there.
    pub fn listener(&self) -> Option<&Socket> {
        self.listener.as_ref()
    }

    /// When to go on with what other members interrupted.
    pub fn due(&self) -> Instant {
        self.resume_at.unwrap_or(Instant::NEVER)
    }

    /// Takes the connection, and what has come.
    pub fn handle_ready(&mut self, epoch: Epoch, watch: Watch<'_>) {
        self.resume_at = None;
        if self.connection.is_none() && !self.closed {
            self.accept(watch);
        }
        let Some(connection) = &self.connection else { return };
        for _ in 0..CALLS_AT_ONCE {
            let taken = discard(connection.as_fd(), CHUNK);
            hold_window(connection, &self.options);
            match taken {
                Ok(0) => {
                    self.close(None);
                    return;
                }
                Ok(count) => {
                    let at = epoch.now();
                    // What comes after the end is not of the run.
                    if at < self.end {
                        self.ledger.at(at).received_bytes += count as u64;
                        self.last_bytes = Some(at);
                    }
                }
                Err(error) if is_wait(&error) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // A sender resets its connection once its time is up.
                    let early = !is_end(epoch.now(), self.stop);
                    self.close(early.then(|| format!("the connection broke: {error}")));
                    return;
                }
            }
        }
        self.resume_at = Some(epoch.now());
    }

    /// Whether nothing more can come.
    pub fn done(&self, now: Instant) -> bool {
        self.closed || now >= self.end || (now >= self.stop && self.connection.is_none())
    }

    /// Counts of a bin so far.
    pub fn counts(&mut self, bin: usize) -> Counts {
        *self.ledger.counts(bin)
    }

    /// What was found.
    pub fn finish(mut self, now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        if self.strangers > 0 {
            warnings.push(format!(
                "flow {}: {} connections from other hosts were turned away",
                self.name, self.strangers
            ));
        }
        if self.connection.is_none() && !self.closed && now > self.start {
            self.error.get_or_insert_with(|| "no connection came".into());
        }
        FlowResult {
            name: self.name,
            bins: self.ledger.into_bins(),
            last_bytes_ns: self.last_bytes.map(|at| at.0),
            error: self.error,
            ..FlowResult::default()
        }
    }

    fn accept(&mut self, watch: Watch<'_>) {
        let Some(listener) = &self.listener else { return };
        while let Ok((connection, peer)) = listener.accept() {
            let peer = peer.as_socket().map(|address| address.ip());
            if self.peer.is_some_and(|expected| peer != Some(expected)) {
                self.strangers += 1;
                continue;
            }
            let ready = connection.set_nonblocking(true).and_then(|()| watch.edges(&connection));
            match ready {
                Ok(()) => self.connection = Some(connection),
                Err(error) => self.close(Some(format!("taking the connection: {error}"))),
            }
            self.listener = None;
            return;
        }
    }

    fn close(&mut self, error: Option<String>) {
        self.connection = None;
        self.listener = None;
        self.closed = true;
        self.error = self.error.take().or(error);
    }
}
