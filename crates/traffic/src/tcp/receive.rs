//! TCP receiver: listens from its preparation, accepts one connection and counts the received bytes.

use super::super::error::FlowProblem;
use super::super::kernel::discard;
use super::super::records::FlowLedger;
use super::super::run_context::SocketWatch;
use super::{bound, hold_window, is_end, is_wait, listen};
use netstage_agent_api::results::{BinCounts, FlowResult};
use netstage_agent_api::task::{FlowTask, TcpOptions};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use socket2::{SockAddr, Socket};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

/// Maximum number of bytes received by one call.
const CHUNK: usize = 1 << 20;
/// Maximum number of calls before other members are called.
const MAX_CALLS: usize = 4;

/// Receiver of one flow over one connection.
pub struct TcpReceiver {
    name: String,
    listener: Option<Socket>,
    connection: Option<Socket>,
    /// Socket that connects to the sender at the start of the flow, if the sender cannot connect.
    unopened: Option<(Socket, SocketAddr)>,
    options: TcpOptions,
    /// Only host from which a connection is accepted, or `None` for any.
    peer: Option<IpAddr>,
    start: Instant,
    stop: Instant,
    end: Instant,
    resume_at: Option<Instant>,
    last_bytes: Option<Instant>,
    foreign_connections: u64,
    is_closed: bool,
    error: Option<String>,
    ledger: FlowLedger,
}

impl TcpReceiver {
    /// Opens and binds the socket, and listens. From now on, the kernel accepts connections.
    pub fn prepare(
        task: &FlowTask,
        options: &TcpOptions,
        duration: Duration,
        ledger: FlowLedger,
    ) -> Result<TcpReceiver, FlowProblem> {
        let (listener, unopened) = match task.is_opened_by_receiver() {
            false => (Some(listen(task.destination, options)?), None),
            true => (None, Some((bound(task.destination, options)?, task.seen_from()))),
        };
        Ok(TcpReceiver {
            name: task.name.clone(),
            listener,
            connection: None,
            unopened,
            options: options.clone(),
            peer: Some(task.seen_from().ip()).filter(|ip| !ip.is_unspecified()),
            start: Instant(task.start.0),
            stop: Instant(task.stop.0.min(duration.0)),
            end: Instant(duration.0),
            resume_at: None,
            last_bytes: None,
            foreign_connections: 0,
            is_closed: false,
            error: None,
            ledger,
        })
    }

    /// Returns the listening socket until the flow's connection is accepted.
    pub fn listener(&self) -> Option<&Socket> {
        self.listener.as_ref()
    }

    /// Returns the time at which the receiver connects, or reading is resumed after other members were called.
    pub fn due(&self) -> Instant {
        let connects_at = self.unopened.as_ref().map_or(Instant::NEVER, |_| self.start);
        self.resume_at.unwrap_or(connects_at)
    }

    /// Accepts the connection and receives bytes.
    pub fn handle_ready(&mut self, epoch: Epoch, watch: SocketWatch<'_>) {
        self.resume_at = None;
        if let Some((socket, sender)) = self.unopened.take_if(|_| epoch.now() >= self.start) {
            self.connect(socket, sender, watch);
        } else if self.connection.is_none() && !self.is_closed {
            self.accept(watch);
        }
        let Some(connection) = &self.connection else { return };
        for _ in 0..MAX_CALLS {
            let received = discard(connection.as_fd(), CHUNK);
            hold_window(connection, &self.options);
            match received {
                Ok(0) => {
                    self.close(None);
                    return;
                }
                Ok(count) => {
                    let at = epoch.now();
                    // Bytes received after the end of the run do not count.
                    if at < self.end {
                        self.ledger.receive(at, 0, count as u64);
                        self.last_bytes = Some(at);
                    }
                }
                Err(error) if is_wait(&error) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // The sender resets the connection at its stop.
                    let is_early = !is_end(epoch.now(), self.stop);
                    self.close(is_early.then(|| format!("connection lost: {error}")));
                    return;
                }
            }
        }
        self.resume_at = Some(epoch.now());
    }

    /// Returns whether no more bytes can arrive.
    pub fn done(&self, now: Instant) -> bool {
        self.is_closed || now >= self.end || (now >= self.stop && self.connection.is_none())
    }

    /// Returns the counts of a bin.
    pub fn counts(&mut self, bin: usize) -> BinCounts {
        *self.ledger.counts(bin)
    }

    /// Returns the result.
    pub fn finish(mut self, now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        if self.foreign_connections > 0 {
            warnings.push(format!(
                "flow {}: rejected {} connections from other hosts",
                self.name, self.foreign_connections
            ));
        }
        if self.connection.is_none() && !self.is_closed && now > self.start {
            self.error.get_or_insert_with(|| "no connection received".into());
        }
        FlowResult {
            name: self.name,
            drained: self.ledger.drained(),
            bins: self.ledger.into_bins(),
            last_bytes_ns: self.last_bytes.map(|at| at.0),
            error: self.error,
            ..FlowResult::default()
        }
    }

    /// Connects to the sender. Until the connection is open, there is nothing to read.
    fn connect(&mut self, socket: Socket, sender: SocketAddr, watch: SocketWatch<'_>) {
        let connected = match socket.connect(&SockAddr::from(sender)) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
            other => other,
        };
        match connected.and_then(|()| watch.add_edge_triggered(&socket)) {
            Ok(()) => self.connection = Some(socket),
            Err(error) => self.close(Some(format!("connecting to {sender}: {error}"))),
        }
    }

    fn accept(&mut self, watch: SocketWatch<'_>) {
        let Some(listener) = &self.listener else { return };
        while let Ok((connection, peer)) = listener.accept() {
            let peer = peer.as_socket().map(|address| address.ip());
            if self.peer.is_some_and(|expected| peer != Some(expected)) {
                self.foreign_connections += 1;
                continue;
            }
            let ready = connection.set_nonblocking(true).and_then(|()| watch.add_edge_triggered(&connection));
            match ready {
                Ok(()) => self.connection = Some(connection),
                Err(error) => self.close(Some(format!("accepting the connection: {error}"))),
            }
            self.listener = None;
            return;
        }
    }

    fn close(&mut self, error: Option<String>) {
        self.connection = None;
        self.listener = None;
        self.is_closed = true;
        self.error = self.error.take().or(error);
    }
}
