//! A session over TCP: one task drives one [`Machine`], writes tables and reads what the peer
//! announces.
//!
//! What is announced is announced again when the session comes up anew, and where the peer asks
//! for it (RFC 2918); the end of the initial routes is marked (RFC 4724).

mod outbox;

use super::inject::{Order, Written};
use super::machine::{Event, Machine, Settings, Side, Transmit};
use super::nlri::Family;
use super::table::Table;
use crate::peering::{self, Connection, Protection};
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

/// Read at once.
const READ: usize = 256 << 10;
/// Reads before others have their turn.
const READS_AT_ONCE: usize = 8;
/// How far away "never" is for a timer of tokio's.
const FAR: Duration = Duration::from_secs(3600);

/// The two ends of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Our address.
    pub local: IpAddr,
    /// The peer's.
    pub peer: IpAddr,
    /// Where the peer listens; 179, save in tests.
    pub peer_port: u16,
    /// Where we listen, if we do. Sessions that share this address and port cannot both listen.
    pub listen_port: Option<u16>,
    /// The key by which both sign (RFC 2385).
    pub md5_key: Option<Vec<u8>>,
    /// How many hops away the peer may be (RFC 5082); one for a neighbour.
    pub security_hops: Option<u8>,
}

impl Endpoint {
    fn socket(&self, port: u16) -> io::Result<Socket> {
        let md5_keys = self.md5_key.iter().map(|key| (self.peer, key.clone())).collect();
        let protection = Protection { md5_keys, security_hops: self.security_hops };
        peering::bind(SocketAddr::new(self.local, port), &protection)
    }

    /// Where the peer may connect to, if it may.
    fn listen(&self) -> io::Result<Option<TcpListener>> {
        self.listen_port.map(|port| peering::listen(self.socket(port)?)).transpose()
    }

    async fn connect(self) -> io::Result<TcpStream> {
        peering::connect(self.socket(0)?, SocketAddr::new(self.peer, self.peer_port)).await
    }
}

/// What a session is asked to do.
#[derive(Clone, Debug)]
pub enum Command {
    /// To announce a table, now and whenever the session comes up.
    Announce(Arc<Table>, Order),
    /// To withdraw what a table lists; the very same table is no longer announced.
    Withdraw(Arc<Table>, Order),
    /// To ask for the peer's routes again.
    Refresh(Family),
    /// To end the session, and with it the task.
    Stop,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// To the session.
    Session(Event),
    /// The system has taken all messages of a command, or of an answer to the peer.
    Sent(Written),
    /// We could not connect.
    ConnectFailed(io::ErrorKind),
}

/// Runs a session until it is told to stop, or nobody is left to tell. `handle` is given what
/// happens with its time since `epoch`; while it runs nothing else is read.
pub async fn run(
    settings: Settings,
    endpoint: Endpoint,
    epoch: std::time::Instant,
    mut commands: UnboundedReceiver<Command>,
    handle: impl FnMut(Instant, Report),
) -> io::Result<()> {
    let listener = endpoint.listen()?;
    let mut driver = Driver {
        outbox: Outbox::new(settings.identity.clone()),
        machine: Machine::new(settings),
        endpoint,
        epoch,
        connections: [None, None],
        listener,
        attempt: None,
        farewells: JoinSet::new(),
        buffer: vec![0; READ],
        handle,
    };
    driver.machine.handle_start(driver.now());
    driver.settle();
    let mut timer = Box::pin(sleep_until(tokio::time::Instant::now()));
    loop {
        timer.as_mut().reset(driver.deadline());
        match poll_fn(|context| driver.poll(context, timer.as_mut(), &mut commands)).await {
            Wake::Command(Some(Command::Stop) | None) => break,
            Wake::Command(Some(command)) => driver.handle_command(command),
            Wake::Accepted(stream) => driver.handle_stream(Side::Theirs, stream),
            Wake::Connected(Ok(stream)) => driver.handle_stream(Side::Ours, stream),
            Wake::Connected(Err(error)) => {
                driver.report(Report::ConnectFailed(error.kind()));
                driver.machine.handle_connect_failed(driver.now());
            }
            Wake::Ready => driver.transfer(),
        }
        // What has arrived counts before the time that has passed.
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

/// Why the task runs again.
enum Wake {
    Command(Option<Command>),
    Accepted(TcpStream),
    Connected(io::Result<TcpStream>),
    /// A connection can be read or written, or a timer has run out.
    Ready,
}

type Attempt = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

struct Driver<H> {
    machine: Machine,
    outbox: Outbox,
    endpoint: Endpoint,
    epoch: std::time::Instant,
    connections: [Option<Connection>; 2],
    listener: Option<TcpListener>,
    attempt: Option<Attempt>,
    /// Connections that have their last message to send.
    farewells: JoinSet<()>,
    buffer: Vec<u8>,
    handle: H,
}

impl<H: FnMut(Instant, Report)> Driver<H> {
    fn now(&self) -> Instant {
        Instant(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn deadline(&self) -> tokio::time::Instant {
        let left = Duration::from_nanos(self.machine.poll_timeout().since(self.now()).0);
        // A timer of tokio's counts whole milliseconds, and rounds up.
        tokio::time::Instant::now() + left.min(FAR)
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
        timer: Pin<&mut Sleep>,
        commands: &mut UnboundedReceiver<Command>,
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
            // One from elsewhere is closed by being dropped; a failure is that of the one who called.
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

    fn report(&mut self, report: Report) {
        let now = self.now();
        (self.handle)(now, report);
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Announce(table, order) => self.outbox.announce(table, order, self.machine.established()),
            Command::Withdraw(table, order) => self.outbox.withdraw(table, order, self.machine.established()),
            Command::Refresh(family) => drop(self.machine.refresh(family)),
            Command::Stop => {}
        }
    }

    fn handle_stream(&mut self, side: Side, stream: TcpStream) {
        let now = self.now();
        // One that is not wanted is closed by being dropped.
        if let Ok(connection) = Connection::new(stream)
            && self.machine.handle_connected(now, side)
        {
            self.connections[side as usize] = Some(connection);
        } else if side == Side::Ours {
            self.machine.handle_connect_failed(now);
        }
    }

    /// Reads what is there.
    fn transfer(&mut self) {
        for side in [Side::Ours, Side::Theirs] {
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

    /// Does what the machine wants done, tells what it has to tell, and writes.
    fn settle(&mut self) {
        loop {
            while let Some(transmit) = self.machine.poll_transmit() {
                self.carry_out(transmit);
            }
            while let Some(event) = self.machine.poll_event() {
                match &event {
                    Event::Established(negotiated) => self.outbox.begin(negotiated),
                    Event::RefreshAsked(family) => self.outbox.answer(*family),
                    Event::Down(_) => self.outbox.end(),
                    Event::Update(_) | Event::EndOfRib(_) => {}
                }
                self.report(Report::Session(event));
            }
            self.write();
            if self.machine.is_settled() {
                return;
            }
        }
    }

    fn carry_out(&mut self, transmit: Transmit) {
        match transmit {
            Transmit::Connect => self.attempt = Some(Box::pin(self.endpoint.clone().connect())),
            Transmit::Abandon => self.attempt = None,
            Transmit::Bytes(side, bytes) => {
                if let Some(connection) = &mut self.connections[side as usize] {
                    connection.queue().extend_from_slice(&bytes);
                }
            }
            Transmit::Close(side) => {
                if let Some(connection) = self.connections[side as usize].take() {
                    self.farewells.spawn(connection.close());
                }
            }
        }
        // Those that are done are forgotten.
        while self.farewells.try_join_next().is_some() {}
    }

    fn write(&mut self) {
        let established = self.machine.established().map(|(side, _)| side);
        for side in [Side::Ours, Side::Theirs] {
            while self.write_to(side, established == Some(side)) {}
        }
    }

    /// Writes what is queued, and where routes may be told, some of them. Whether more may go.
    fn write_to(&mut self, side: Side, is_established: bool) -> bool {
        let now = self.now();
        let Some(connection) = &mut self.connections[side as usize] else { return false };
        let is_filled = is_established && self.outbox.fill(connection.queue());
        // Reading will tell that a connection is lost.
        let is_written = matches!(connection.write(), Ok(true));
        if is_filled {
            self.machine.handle_sent(now);
        }
        if is_written && is_established {
            for written in self.outbox.take_sent() {
                self.report(Report::Sent(written));
            }
        }
        is_written && is_filled
    }
}
