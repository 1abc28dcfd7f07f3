//! BGP session over TCP. One task drives one [`BgpSession`], sends tables and receives the peer's routes.
//!
//! Announced tables are sent again when the session is re-established and when the peer requests it (RFC
//! 2918). The End-of-RIB marker follows the initial routes (RFC 4724).

mod outbox;

use super::inject::{SendOrder, WriteCounts};
use super::nlri::BgpFamily;
use super::session::{BgpEvent, BgpSession, BgpSettings, BgpTransmit, ConnectionOpener};
use super::table::BgpTable;
use crate::epoch::now_since;
use crate::peering::{self, PeerConnection, Protection};
use netstage_core::time::Instant;
use outbox::Outbox;
use socket2::Socket;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep_until};

/// Buffer size for one read from a connection, bytes.
const READ_BUFFER: usize = 256 << 10;
/// Limit on consecutive reads from one connection.
const READS_AT_ONCE: usize = 8;
/// Longest sleep of the timer, for deadlines that are never reached.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

/// Local and remote endpoints of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Local address.
    pub local: IpAddr,
    /// Peer address.
    pub peer: IpAddr,
    /// TCP port of the peer; 179 except in tests.
    pub peer_port: u16,
    /// Local port to listen on, or `None`. Only one of the sessions with the same address and port can
    /// listen.
    pub listen_port: Option<u16>,
    /// Key of the TCP MD5 signatures (RFC 2385).
    pub md5_key: Option<Vec<u8>>,
    /// Maximum distance of the peer in hops (GTSM, RFC 5082); 1 for a directly connected neighbor.
    pub security_hops: Option<u8>,
}

impl Endpoint {
    fn socket(&self, port: u16) -> io::Result<Socket> {
        let md5_keys = self.md5_key.iter().map(|key| (self.peer, key.clone())).collect();
        let protection = Protection { md5_keys, security_hops: self.security_hops };
        peering::bind(SocketAddr::new(self.local, port), &protection)
    }

    /// Starts to listen for the peer, if configured.
    fn listen(&self) -> io::Result<Option<TcpListener>> {
        self.listen_port.map(|port| peering::listen(self.socket(port)?)).transpose()
    }

    async fn connect(self) -> io::Result<TcpStream> {
        peering::connect(self.socket(0)?, SocketAddr::new(self.peer, self.peer_port)).await
    }
}

/// Command to a session.
#[derive(Clone, Debug)]
pub enum SpeakerCommand {
    /// Announces a table, now and each time the session is established.
    Announce(Arc<BgpTable>, SendOrder),
    /// Withdraws the routes of a table. If it is the same table, it is not announced again.
    Withdraw(Arc<BgpTable>, SendOrder),
    /// Requests the peer's routes of a family again.
    Refresh(BgpFamily),
    /// Closes the session and ends the task.
    Stop,
}

/// Report from a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpeakerReport {
    /// Event of the session.
    Session(BgpEvent),
    /// All messages of a command, or of a route refresh, were passed to the operating system.
    Sent(WriteCounts),
    /// Connecting to the peer failed.
    ConnectFailed(io::ErrorKind),
}

/// Runs a session until it is stopped or the command channel is closed. `handle` is called for each report
/// with the time since `epoch`, and must not block: it runs in the session's task.
pub async fn run(
    settings: BgpSettings,
    endpoint: Endpoint,
    epoch: std::time::Instant,
    mut commands: UnboundedReceiver<SpeakerCommand>,
    handle: impl FnMut(Instant, SpeakerReport),
) -> io::Result<()> {
    let listener = endpoint.listen()?;
    let mut driver = Driver {
        outbox: Outbox::new(settings.identity.clone()),
        machine: BgpSession::new(settings),
        endpoint,
        epoch,
        connections: [None, None],
        listener,
        attempt: None,
        farewells: JoinSet::new(),
        buffer: vec![0; READ_BUFFER],
        handle,
    };
    driver.machine.handle_start(driver.now());
    driver.settle();
    let mut timer = Box::pin(sleep_until(tokio::time::Instant::now()));
    loop {
        timer.as_mut().reset(driver.deadline());
        match poll_fn(|context| driver.poll(context, timer.as_mut(), &mut commands)).await {
            Wake::Command(Some(SpeakerCommand::Stop) | None) => break,
            Wake::Command(Some(command)) => driver.handle_command(command),
            Wake::Accepted(stream) => driver.handle_stream(ConnectionOpener::Peer, stream),
            Wake::Connected(Ok(stream)) => driver.handle_stream(ConnectionOpener::Local, stream),
            Wake::Connected(Err(error)) => {
                driver.report(SpeakerReport::ConnectFailed(error.kind()));
                driver.machine.handle_connect_failed(driver.now());
            }
            Wake::Ready => driver.transfer(),
        }
        // Received data is handled before timers that expired in the meantime.
        let now = driver.now();
        if driver.machine.poll_timeout() <= now {
            driver.machine.handle_timeout(now);
        }
        driver.settle();
    }
    driver.machine.handle_stop();
    driver.settle();
    while driver.farewells.join_next().await.is_some() {}
    Ok(())
}

/// Reason why the task was woken.
enum Wake {
    Command(Option<SpeakerCommand>),
    Accepted(TcpStream),
    Connected(io::Result<TcpStream>),
    /// A connection is readable or writable, or a timer has expired.
    Ready,
}

type Attempt = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

struct Driver<H> {
    machine: BgpSession,
    outbox: Outbox,
    endpoint: Endpoint,
    epoch: std::time::Instant,
    connections: [Option<PeerConnection>; 2],
    listener: Option<TcpListener>,
    attempt: Option<Attempt>,
    /// Connections being closed.
    farewells: JoinSet<()>,
    buffer: Vec<u8>,
    handle: H,
}

impl<H: FnMut(Instant, SpeakerReport)> Driver<H> {
    fn now(&self) -> Instant {
        now_since(self.epoch)
    }

    fn deadline(&self) -> tokio::time::Instant {
        let left = Duration::from_nanos(self.machine.poll_timeout().since(self.now()).0);
        // Tokio rounds timers up to whole milliseconds.
        tokio::time::Instant::now() + left.min(MAX_SLEEP)
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
        timer: Pin<&mut Sleep>,
        commands: &mut UnboundedReceiver<SpeakerCommand>,
    ) -> Poll<Wake> {
        if let Poll::Ready(command) = commands.poll_recv(context) {
            return Poll::Ready(Wake::Command(command));
        }
        for connection in self.connections.iter().flatten() {
            if connection.poll_ready(context).is_ready() {
                return Poll::Ready(Wake::Ready);
            }
        }
        if let Some(listener) = &self.listener
            && let Poll::Ready(accepted) = listener.poll_accept(context)
        {
            // Dropping closes a connection from an address other than the peer's. A failed accept is the
            // remote side's problem.
            let accepted = accepted.ok().filter(|(_, from)| from.ip() == self.endpoint.peer);
            return Poll::Ready(accepted.map_or(Wake::Ready, |(stream, _)| Wake::Accepted(stream)));
        }
        if let Some(attempt) = &mut self.attempt
            && let Poll::Ready(result) = attempt.as_mut().poll(context)
        {
            self.attempt = None;
            return Poll::Ready(Wake::Connected(result));
        }
        timer.poll(context).map(|()| Wake::Ready)
    }

    fn report(&mut self, report: SpeakerReport) {
        let now = self.now();
        (self.handle)(now, report);
    }

    fn handle_command(&mut self, command: SpeakerCommand) {
        match command {
            SpeakerCommand::Announce(table, order) => {
                self.outbox.announce(table, order, self.machine.established())
            }
            SpeakerCommand::Withdraw(table, order) => {
                self.outbox.withdraw(table, order, self.machine.established())
            }
            SpeakerCommand::Refresh(family) => drop(self.machine.refresh(family)),
            SpeakerCommand::Stop => {}
        }
    }

    fn handle_stream(&mut self, side: ConnectionOpener, stream: TcpStream) {
        let now = self.now();
        // Dropping closes an unwanted connection.
        if let Ok(connection) = PeerConnection::new(stream)
            && self.machine.handle_connected(now, side)
        {
            self.connections[side as usize] = Some(connection);
        } else if side == ConnectionOpener::Local {
            self.machine.handle_connect_failed(now);
        }
    }

    /// Reads available data from both connections.
    fn transfer(&mut self) {
        for side in [ConnectionOpener::Local, ConnectionOpener::Peer] {
            for _ in 0..READS_AT_ONCE {
                let Some(connection) = &mut self.connections[side as usize] else { break };
                let read = connection.read(&mut self.buffer);
                let now = self.now();
                match read {
                    Ok(Some(length)) if length > 0 => {
                        self.machine.handle_bytes(now, side, &self.buffer[..length]);
                        self.settle();
                    }
                    Ok(None) => break,
                    Ok(Some(_)) | Err(_) => {
                        self.connections[side as usize] = None;
                        self.machine.handle_closed(now, side);
                    }
                }
            }
        }
    }

    /// Executes the session's requests, reports its events, and writes queued data.
    fn settle(&mut self) {
        loop {
            while let Some(transmit) = self.machine.poll_transmit() {
                self.carry_out(transmit);
            }
            while let Some(event) = self.machine.poll_event() {
                match &event {
                    BgpEvent::Established(negotiated) => self.outbox.begin(negotiated),
                    BgpEvent::RefreshRequested(family) => self.outbox.resend(*family),
                    BgpEvent::Down(_) => self.outbox.end(),
                    BgpEvent::Update(_) | BgpEvent::EndOfRib(_) => {}
                }
                self.report(SpeakerReport::Session(event));
            }
            self.write();
            if self.machine.is_settled() {
                return;
            }
        }
    }

    fn carry_out(&mut self, transmit: BgpTransmit) {
        match transmit {
            BgpTransmit::Connect => self.attempt = Some(Box::pin(self.endpoint.clone().connect())),
            BgpTransmit::Abandon => self.attempt = None,
            BgpTransmit::Bytes(side, bytes) => {
                if let Some(connection) = &mut self.connections[side as usize] {
                    connection.queue().extend_from_slice(&bytes);
                }
            }
            BgpTransmit::Close(side) => {
                if let Some(connection) = self.connections[side as usize].take() {
                    self.farewells.spawn(connection.close());
                }
            }
        }
        // Discard the results of closed connections.
        while self.farewells.try_join_next().is_some() {}
    }

    fn write(&mut self) {
        let established = self.machine.established().map(|(side, _)| side);
        for side in [ConnectionOpener::Local, ConnectionOpener::Peer] {
            while self.write_to(side, established == Some(side)) {}
        }
    }

    /// Writes queued data, and fills the queue with routes if the session is established. Returns `true` if
    /// more routes can be written.
    fn write_to(&mut self, side: ConnectionOpener, is_established: bool) -> bool {
        let now = self.now();
        let Some(connection) = &mut self.connections[side as usize] else { return false };
        let is_filled = is_established && self.outbox.fill(connection.queue());
        // A lost connection is detected by the next read.
        let is_written = matches!(connection.write(), Ok(true));
        if is_filled {
            self.machine.handle_sent(now);
        }
        if is_written && is_established {
            for written in self.outbox.take_sent() {
                self.report(SpeakerReport::Sent(written));
            }
        }
        is_written && is_filled
    }
}
