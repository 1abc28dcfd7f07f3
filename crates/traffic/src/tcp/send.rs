//! The sender: connects when its flow starts and writes what the pattern hands over.

use super::super::emissions::Emissions;
use super::super::error::Problem;
use super::super::frame::Watch;
use super::super::kernel::{set_option, set_traffic_class, tcp_sample};
use super::super::ledger::Ledger;
use super::super::schedule::Punctuality;
use super::{bound, is_end, is_wait};
use netstage_agent_api::results::{Counts, FlowResult, TcpSample};
use netstage_agent_api::task::{FlowTask, TcpOptions};
use netstage_core::time::Instant;
use netstage_host::clock::Epoch;
use socket2::{SockAddr, Socket};
use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

/// Bytes written by one call.
const CHUNK: usize = 256 << 10;
/// Calls before other members have their turn.
const CALLS_AT_ONCE: usize = 4;
/// Bytes the kernel holds that it has not sent: what the application hands over stays here
/// until it can be sent, so that little follows after the flow's stop.
const UNSENT: i32 = 512 << 10;

/// What is sent; nobody looks at it.
static PAYLOAD: [u8; CHUNK] = [0; CHUNK];

/// Sends one flow over one connection.
pub struct TcpSender {
    name: String,
    socket: Socket,
    state: State,
    destination: SocketAddr,
    start: Instant,
    detail: bool,
    emissions: Emissions,
    bulk: bool,
    upcoming: Option<(Instant, u64)>,
    /// Handed over by the pattern, not taken by the kernel yet.
    backlog: u64,
    /// Emissions not wholly taken by the kernel: when due, and the backlog's end behind each.
    waiting: VecDeque<(Instant, u64, u64)>,
    /// Bytes handed over and bytes taken so far.
    offered: u64,
    written: u64,
    resume_at: Option<Instant>,
    error: Option<String>,
    ledger: Ledger,
    samples: Vec<TcpSample>,
    /// The connection's state when it closed, until the end of that bin.
    last: Option<TcpSample>,
    punctuality: Punctuality,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not asked yet.
    Idle,
    /// Asked, no answer yet.
    Connecting,
    /// Can write.
    Open,
    /// All written, the peer has not closed yet.
    Closing,
    /// Over.
    Closed,
}

impl TcpSender {
    /// Opens and binds the socket.
    pub fn prepare(
        task: &FlowTask,
        options: &TcpOptions,
        emissions: Emissions,
        ledger: Ledger,
    ) -> Result<TcpSender, Problem> {
        let socket = bound(task.source, options)?;
        set_traffic_class(socket.as_fd(), task).map_err(Problem::system("setting the traffic class"))?;
        set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, UNSENT)
            .map_err(Problem::system("limiting what the kernel holds"))?;
        let mut emissions = emissions;
        let upcoming = emissions.next();
        Ok(TcpSender {
            name: task.name.clone(),
            socket,
            state: State::Idle,
            destination: task.destination,
            start: Instant(task.start.0),
            detail: task.detail,
            bulk: emissions.is_bulk(),
            emissions,
            upcoming,
            backlog: 0,
            waiting: VecDeque::new(),
            offered: 0,
            written: 0,
            resume_at: None,
            error: None,
            ledger,
            samples: Vec::new(),
            last: None,
            punctuality: Punctuality::new(),
        })
    }

    /// Whether it writes as much as it can, on no schedule.
    pub fn is_bulk(&self) -> bool {
        self.bulk
    }

    /// When to call again: to connect, to write what the pattern hands over, to stop.
    pub fn due(&self) -> Instant {
        match self.state {
            State::Idle => self.start,
            State::Closing | State::Closed => Instant::NEVER,
            State::Connecting | State::Open => {
                let stop = self.emissions.stop();
                let upcoming = self.upcoming.map_or(stop, |(due, _)| due.min(stop));
                self.resume_at.map_or(upcoming, |resume| resume.min(upcoming))
            }
        }
    }

    /// Connects, takes emissions, writes.
    pub fn handle_due(&mut self, epoch: Epoch, watch: Watch<'_>) {
        let now = epoch.now();
        self.resume_at = None;
        if self.state == State::Idle {
            self.connect(watch);
        }
        while let Some((due, bytes)) = self.upcoming.filter(|&(due, _)| due <= now) {
            self.upcoming = self.emissions.next();
            self.backlog = self.backlog.saturating_add(bytes);
            self.offered = self.offered.saturating_add(bytes);
            if !self.bulk {
                self.punctuality.ask(due, bytes);
                self.waiting.push_back((due, bytes, self.offered));
            }
            if bytes != u64::MAX {
                self.ledger.at(due).offered_bytes += bytes;
            }
        }
        if now >= self.emissions.stop() {
            if self.state == State::Connecting {
                let waited = now.since(self.start).as_secs_f64();
                self.fail(format!(
                    "no answer from {} to the connection request in {waited:.1} s",
                    self.destination
                ));
            }
            self.backlog = 0;
        }
        self.write(epoch);
    }

    /// The socket changed: the connection is there, or there is room.
    pub fn handle_ready(&mut self, epoch: Epoch) {
        match self.state {
            State::Connecting => match self.socket.take_error() {
                Ok(None) if self.socket.peer_addr().is_ok() => {
                    self.state = State::Open;
                    self.write(epoch);
                }
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => {
                    self.fail(format!("connecting to {}: {error}", self.destination))
                }
            },
            State::Open => self.write(epoch),
            State::Closing => self.await_close(epoch),
            State::Idle | State::Closed => {}
        }
    }

    /// Whether the connection is over.
    pub fn done(&self, now: Instant) -> bool {
        match self.state {
            State::Closed => true,
            // What the kernel still holds is of no interest once the flow's time is up.
            State::Closing => now >= self.emissions.stop(),
            _ => false,
        }
    }

    /// Counts of a bin so far.
    pub fn counts(&mut self, bin: usize) -> Counts {
        *self.ledger.counts(bin)
    }

    /// Counts of a bin, and the connection's state where asked for.
    pub fn end_bin(&mut self, bin: usize) -> (Counts, Option<TcpSample>) {
        let sample = self.detail.then(|| match self.state {
            State::Open | State::Closing => tcp_sample(self.socket.as_fd()).unwrap_or_default(),
            _ => self.last.take().unwrap_or_default(),
        });
        self.samples.extend(sample);
        (self.counts(bin), sample)
    }

    /// What was found. The connection is reset: nothing more is to travel.
    pub fn finish(mut self, now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        if self.state == State::Connecting && self.error.is_none() {
            let waited = now.since(self.start).as_secs_f64();
            self.error = Some(format!(
                "no answer from {} to the connection request in {waited:.1} s",
                self.destination
            ));
        }
        // Refused only where the connection has gone already.
        let _ = self.socket.set_linger(Some(Duration::ZERO));
        if let Some(warning) = self.punctuality.warning().filter(|_| self.error.is_none()) {
            warnings.push(format!("flow {}: {warning} (TCP may have held it back)", self.name));
        }
        let bins = self.ledger.into_bins();
        // The state of a connection that closed after the last bin belongs to none.
        if self.detail && self.samples.len() < bins.len() {
            self.samples.extend(self.last.take());
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

    fn connect(&mut self, watch: Watch<'_>) {
        self.state = State::Connecting;
        let connected = match self.socket.connect(&SockAddr::from(self.destination)) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
            other => other,
        };
        if let Err(error) = connected.and_then(|()| watch.edges(&self.socket)) {
            self.fail(format!("connecting to {}: {error}", self.destination));
        }
    }

    fn write(&mut self, epoch: Epoch) {
        if self.state != State::Open {
            return;
        }
        for _ in 0..CALLS_AT_ONCE {
            if self.backlog == 0 {
                break;
            }
            let length = usize::try_from(self.backlog).unwrap_or(CHUNK).min(CHUNK);
            match self.socket.send_with_flags(&PAYLOAD[..length], libc::MSG_NOSIGNAL) {
                Ok(count) => self.account(count as u64, epoch.now()),
                Err(error) if is_wait(&error) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.break_off(&error, epoch.now());
                    return;
                }
            }
        }
        if self.backlog > 0 {
            self.resume_at = Some(epoch.now());
        } else if self.upcoming.is_none() || epoch.now() >= self.emissions.stop() {
            self.state = State::Closing;
            // Fails where the peer has closed already, which is as good.
            let _ = self.socket.shutdown(Shutdown::Write);
            self.await_close(epoch);
        }
    }

    fn account(&mut self, bytes: u64, at: Instant) {
        // A transfer without end stays without end.
        if self.backlog != u64::MAX {
            self.backlog -= bytes;
        }
        self.written += bytes;
        self.ledger.at(at).sent_bytes += bytes;
        while let Some(&(due, size, end)) = self.waiting.front()
            && end <= self.written
        {
            self.waiting.pop_front();
            self.punctuality.send(due, at, size);
            self.ledger.at(at).sent += 1;
        }
        if self.bulk {
            self.ledger.at(at).sent += 1;
        }
    }

    /// After all is written, the peer's close says that all has arrived.
    fn await_close(&mut self, epoch: Epoch) {
        match super::super::kernel::discard(self.socket.as_fd(), CHUNK) {
            Ok(0) => {
                self.last = tcp_sample(self.socket.as_fd()).ok();
                self.state = State::Closed;
            }
            Err(error) if is_wait(&error) => {}
            Ok(_) => self.fail("the receiver answered, though it only receives".into()),
            Err(error) => self.break_off(&error, epoch.now()),
        }
    }

    /// The connection broke: at the flow's end the receiver resets it.
    fn break_off(&mut self, error: &io::Error, now: Instant) {
        if is_end(now, self.emissions.stop()) {
            self.state = State::Closed;
        } else {
            self.fail(format!("the connection broke: {error}"));
        }
    }

    fn fail(&mut self, error: String) {
        self.state = State::Closed;
        self.error.get_or_insert(error);
    }
}
