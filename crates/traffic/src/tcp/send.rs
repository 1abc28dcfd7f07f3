//! TCP sender: connects at the start of its flow and writes the bytes of the pattern.

use super::super::emissions::Emissions;
use super::super::error::FlowProblem;
use super::super::kernel::{set_option, set_traffic_class, tcp_sample};
use super::super::records::FlowLedger;
use super::super::run_context::SocketWatch;
use super::super::schedule::ScheduleStatistics;
use super::{bound, is_end, is_wait, listen};
use netstage_agent_api::results::{BinCounts, FlowResult, TcpSample};
use netstage_agent_api::task::{FlowTask, TcpOptions};
use netstage_core::time::Instant;
use netstage_host::clock::Epoch;
use socket2::{SockAddr, Socket};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

/// Maximum number of bytes written by one call.
const CHUNK: usize = 256 << 10;
/// Maximum number of calls before other members are called.
const MAX_CALLS: usize = 4;
/// Maximum number of unsent bytes in the kernel. The others remain in the backlog, so that few bytes are sent after the
/// flow's stop.
const UNSENT: i32 = 512 << 10;

static PAYLOAD: [u8; CHUNK] = [0; CHUNK];

/// Sender of one flow over one connection.
pub struct TcpSender {
    name: String,
    socket: Socket,
    state: TcpSenderState,
    destination: SocketAddr,
    /// The receiver opens the connection, and the socket listens until then.
    is_opened_by_receiver: bool,
    start: Instant,
    detail: bool,
    emissions: Emissions,
    bulk: bool,
    upcoming: Option<(Instant, u64)>,
    /// Bytes of past emissions that are not yet written to the socket.
    backlog: u64,
    /// Emissions from the first one that is not completely written; `None` without a schedule.
    unwritten: Option<UnwrittenEmissions>,
    written: u64,
    resume_at: Option<Instant>,
    error: Option<String>,
    ledger: FlowLedger,
    samples: Vec<TcpSample>,
    /// TCP state when the connection closed, until the end of the bin.
    last_sample: Option<TcpSample>,
    punctuality: ScheduleStatistics,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TcpSenderState {
    Idle,
    Connecting,
    Open,
    /// All bytes are written, and the peer has not closed the connection.
    Closing,
    Closed,
}

/// Emissions of a flow behind those that the sender has added to its backlog. They are generated a second time, because a
/// backlog may consist of any number of them.
struct UnwrittenEmissions {
    emissions: Emissions,
    first: Option<(Instant, u64)>,
    /// Bytes before the first one.
    before: u64,
}

impl UnwrittenEmissions {
    fn new(mut emissions: Emissions) -> UnwrittenEmissions {
        UnwrittenEmissions { first: emissions.next_emission(), emissions, before: 0 }
    }

    /// Removes and returns the first emission if it is due and ends within this number of written bytes.
    fn next_written(&mut self, now: Instant, written: u64) -> Option<(Instant, u64)> {
        let is_written = |(due, bytes): &(Instant, u64)| *due <= now && self.before + bytes <= written;
        let (due, bytes) = self.first.filter(is_written)?;
        self.before += bytes;
        self.first = self.emissions.next_emission();
        Some((due, bytes))
    }
}

impl TcpSender {
    /// Opens and binds the socket.
    pub fn prepare(
        task: &FlowTask,
        options: &TcpOptions,
        emissions: Emissions,
        ledger: FlowLedger,
    ) -> Result<TcpSender, FlowProblem> {
        let is_opened_by_receiver = task.is_opened_by_receiver();
        let socket = match is_opened_by_receiver {
            true => listen(task.source, options)?,
            false => bound(task.source, options)?,
        };
        set_traffic_class(socket.as_fd(), task).map_err(FlowProblem::system("setting the traffic class"))?;
        set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, UNSENT)
            .map_err(FlowProblem::system("limiting the unsent bytes"))?;
        let bulk = emissions.is_bulk();
        let unwritten = (!bulk).then(|| UnwrittenEmissions::new(emissions.clone()));
        let mut emissions = emissions;
        let upcoming = emissions.next_emission();
        Ok(TcpSender {
            name: task.name.clone(),
            socket,
            state: TcpSenderState::Idle,
            destination: task.reached_at(),
            is_opened_by_receiver,
            start: Instant(task.start.0),
            detail: task.detail,
            bulk,
            emissions,
            upcoming,
            backlog: 0,
            unwritten,
            written: 0,
            resume_at: None,
            error: None,
            ledger,
            samples: Vec::new(),
            last_sample: None,
            punctuality: ScheduleStatistics::new(netstage_core::time::Duration::ZERO),
        })
    }

    /// Returns whether the sender writes as fast as possible, without a schedule.
    pub fn is_bulk(&self) -> bool {
        self.bulk
    }

    /// Returns the time of the next call of [`TcpSender::handle_due`]: to connect, to write or to stop.
    pub fn due(&self) -> Instant {
        match self.state {
            TcpSenderState::Idle => self.start,
            TcpSenderState::Closing | TcpSenderState::Closed => Instant::NEVER,
            TcpSenderState::Connecting | TcpSenderState::Open => {
                let stop = self.emissions.stop();
                let upcoming = self.upcoming.map_or(stop, |(due, _)| due.min(stop));
                self.resume_at.map_or(upcoming, |resume| resume.min(upcoming))
            }
        }
    }

    /// Connects, adds emissions to the backlog, and writes.
    pub fn handle_due(&mut self, epoch: Epoch, watch: SocketWatch<'_>) {
        let now = epoch.now();
        self.resume_at = None;
        if self.state == TcpSenderState::Idle {
            self.connect(watch);
            if self.is_opened_by_receiver {
                self.accept(epoch, watch);
            }
        }
        while let Some((due, bytes)) = self.upcoming.filter(|&(due, _)| due <= now) {
            self.upcoming = self.emissions.next_emission();
            self.backlog = self.backlog.saturating_add(bytes);
            if !self.bulk {
                self.punctuality.record_due(due, bytes);
            }
            if bytes != u64::MAX {
                self.ledger.at(due).offered_bytes += bytes;
            }
        }
        if now >= self.emissions.stop() {
            if self.state == TcpSenderState::Connecting {
                self.fail(self.not_connected(now));
            }
            self.backlog = 0;
        }
        self.write(epoch);
    }

    /// Handles a change of the socket: connected, writable or closed.
    pub fn handle_ready(&mut self, epoch: Epoch, watch: SocketWatch<'_>) {
        match self.state {
            TcpSenderState::Connecting if self.is_opened_by_receiver => self.accept(epoch, watch),
            TcpSenderState::Connecting => match self.socket.take_error() {
                Ok(None) if self.socket.peer_addr().is_ok() => {
                    self.state = TcpSenderState::Open;
                    self.write(epoch);
                }
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => {
                    self.fail(format!("connecting to {}: {error}", self.destination))
                }
            },
            TcpSenderState::Open => self.write(epoch),
            TcpSenderState::Closing => self.await_close(epoch),
            TcpSenderState::Idle | TcpSenderState::Closed => {}
        }
    }

    /// Returns whether the connection is over.
    pub fn done(&self, now: Instant) -> bool {
        match self.state {
            TcpSenderState::Closed => true,
            // Bytes that the kernel has not sent at the flow's stop are discarded.
            TcpSenderState::Closing => now >= self.emissions.stop(),
            _ => false,
        }
    }

    /// Returns the counts of a bin.
    pub fn counts(&mut self, bin: usize) -> BinCounts {
        *self.ledger.counts(bin)
    }

    /// Ends a bin. Returns its counts, and the TCP state if requested.
    pub fn end_bin(&mut self, bin: usize) -> (BinCounts, Option<TcpSample>) {
        let sample = self.detail.then(|| match self.state {
            TcpSenderState::Open | TcpSenderState::Closing => {
                tcp_sample(self.socket.as_fd()).unwrap_or_default()
            }
            _ => self.last_sample.take().unwrap_or_default(),
        });
        self.samples.extend(sample);
        (self.counts(bin), sample)
    }

    /// Resets the connection and returns the result.
    pub fn finish(mut self, now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        if self.state == TcpSenderState::Connecting && self.error.is_none() {
            self.error = Some(self.not_connected(now));
        }
        // Fails only if the connection is closed.
        let _ = self.socket.set_linger(Some(Duration::ZERO));
        if let Some(warning) = self.punctuality.warning().filter(|_| self.error.is_none()) {
            warnings.push(format!("flow {}: {warning} (TCP may have limited the rate)", self.name));
        }
        let bins = self.ledger.into_bins();
        // If the connection closed after the last bin, its state belongs to no bin.
        if self.detail && self.samples.len() < bins.len() {
            self.samples.extend(self.last_sample.take());
        }
        FlowResult {
            name: self.name,
            sends: true,
            gaps: self.punctuality.gaps(),
            schedule: (!self.bulk).then(|| self.punctuality.schedule()),
            bins,
            tcp: self.samples,
            error: self.error,
            ..FlowResult::default()
        }
    }

    fn connect(&mut self, watch: SocketWatch<'_>) {
        self.state = TcpSenderState::Connecting;
        let connected = match self.is_opened_by_receiver {
            true => Ok(()),
            false => match self.socket.connect(&SockAddr::from(self.destination)) {
                Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
                other => other,
            },
        };
        if let Err(error) = connected.and_then(|()| watch.add_edge_triggered(&self.socket)) {
            self.fail(format!("connecting to {}: {error}", self.destination));
        }
    }

    /// Accepts the connection of the receiver, and ignores those of others.
    fn accept(&mut self, epoch: Epoch, watch: SocketWatch<'_>) {
        while self.state == TcpSenderState::Connecting
            && let Ok((connection, peer)) = self.socket.accept()
        {
            if peer.as_socket().is_none_or(|peer| peer.ip() != self.destination.ip()) {
                continue;
            }
            match connection.set_nonblocking(true).and_then(|()| watch.add_edge_triggered(&connection)) {
                Ok(()) => {
                    (self.socket, self.state) = (connection, TcpSenderState::Open);
                    self.write(epoch);
                }
                Err(error) => self.fail(format!("accepting the connection: {error}")),
            }
        }
    }

    /// Returns the error of a connection that was not opened until now.
    fn not_connected(&self, now: Instant) -> String {
        let waited = now.since(self.start).as_secs_f64();
        match self.is_opened_by_receiver {
            true => format!("no connection from {} in {waited:.1} s", self.destination.ip()),
            false => {
                format!("no answer from {} to the connection request in {waited:.1} s", self.destination)
            }
        }
    }

    fn write(&mut self, epoch: Epoch) {
        if self.state != TcpSenderState::Open {
            return;
        }
        for _ in 0..MAX_CALLS {
            if self.backlog == 0 {
                break;
            }
            let length = usize::try_from(self.backlog).unwrap_or(CHUNK).min(CHUNK);
            match self.socket.send_with_flags(&PAYLOAD[..length], libc::MSG_NOSIGNAL) {
                Ok(count) => self.account(count as u64, epoch.now()),
                Err(error) if is_wait(&error) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.handle_loss(&error, epoch.now());
                    return;
                }
            }
        }
        if self.backlog > 0 {
            self.resume_at = Some(epoch.now());
        } else if self.upcoming.is_none() || epoch.now() >= self.emissions.stop() {
            self.state = TcpSenderState::Closing;
            // Fails if the peer has already closed the connection.
            let _ = self.socket.shutdown(Shutdown::Write);
            self.await_close(epoch);
        }
    }

    fn account(&mut self, bytes: u64, at: Instant) {
        // An unlimited transfer stays unlimited.
        if self.backlog != u64::MAX {
            self.backlog -= bytes;
        }
        self.written += bytes;
        self.ledger.at(at).sent_bytes += bytes;
        while let Some((due, size)) =
            self.unwritten.as_mut().and_then(|unwritten| unwritten.next_written(at, self.written))
        {
            self.punctuality.record_sent(due, at, size);
            self.ledger.at(at).sent += 1;
        }
        if self.bulk {
            self.ledger.at(at).sent += 1;
        }
    }

    /// Waits for the peer to close the connection, which confirms that all bytes have arrived.
    fn await_close(&mut self, epoch: Epoch) {
        match super::super::kernel::discard(self.socket.as_fd(), CHUNK) {
            Ok(0) => {
                self.last_sample = tcp_sample(self.socket.as_fd()).ok();
                self.state = TcpSenderState::Closed;
            }
            Err(error) if is_wait(&error) => {}
            Ok(_) => self.fail("unexpected data from the receiver".into()),
            Err(error) => self.handle_loss(&error, epoch.now()),
        }
    }

    /// Handles a lost connection. Near the flow's stop, the receiver has reset it.
    fn handle_loss(&mut self, error: &io::Error, now: Instant) {
        if is_end(now, self.emissions.stop()) {
            self.state = TcpSenderState::Closed;
        } else {
            self.fail(format!("connection lost: {error}"));
        }
    }

    fn fail(&mut self, error: String) {
        self.state = TcpSenderState::Closed;
        self.error.get_or_insert(error);
    }
}
