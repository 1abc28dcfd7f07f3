//! Sockets and timers of a speaker.

use super::counter::{Counter, Counters};
use super::discovery::Discovery;
use super::signatures::SignatureCounters;
use super::{LdpCommand, LdpFault, LdpReport, LdpSnapshot, LdpSockets, SessionEnding};
use crate::epoch::now_since;
use crate::peering::{self, PeerConnection, Protection};
use netstage_core::ldp::{
    LdpAction, LdpConfig, LdpConnection as Number, LdpEvent, LdpNeighbor, LdpSpeaker, Scope,
};
use netstage_core::time::{Duration, Instant};
use netstage_wire::ldp::{Identifier, PORT};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future as _, poll_fn};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep_until, timeout};

/// Buffer size for one read from a connection or discovery socket, bytes.
const READ_BUFFER: usize = 64 << 10;
/// Limit on consecutive reads from one socket.
const READS_AT_ONCE: usize = 8;
/// Queue length above which the speaker must not send on a connection until it is written, bytes.
const MAX_QUEUE: usize = 256 << 10;
/// Timeout for connecting to a peer. A host that drops segments for their MD5 signatures never answers.
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(4);
/// Interval between checks of the signature counters while a peer has no session.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between attempts to listen again after a suspension.
const RESUME_INTERVAL: Duration = Duration::from_millis(100);
/// Longest sleep of the timer, for deadlines that are never reached.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

type Attempt = (Identifier, Ipv4Addr, io::Result<TcpStream>);

pub(super) struct Driver<H> {
    speaker: LdpSpeaker,
    transport: Ipv4Addr,
    place: LdpSockets,
    protection: Protection,
    epoch: std::time::Instant,
    discovery: Discovery,
    /// Socket for connections of peers; `None` while discovery is suspended.
    listener: Option<TcpListener>,
    connections: BTreeMap<Number, PeerConnection>,
    /// Number of the last connection.
    last_number: u64,
    attempts: JoinSet<Attempt>,
    /// Connections being closed.
    farewells: JoinSet<()>,
    signatures: SignatureCounters,
    /// Time of the next check of the signature counters; `None` if every peer has a session.
    next_watch: Option<Instant>,
    /// Time at which discovery starts again, if it is suspended.
    suspended_until: Option<Instant>,
    /// Destinations to which hellos cannot be sent, already reported.
    failed_hellos: BTreeSet<Scope>,
    counters: Counters,
    buffer: Vec<u8>,
    handle: H,
}

/// Reason why the task was woken.
enum Wake {
    Command(Option<LdpCommand>),
    Accepted(io::Result<(TcpStream, SocketAddr)>),
    Attempted(Attempt),
    Datagrams,
    Connections,
    Timer,
}

impl<H: FnMut(Instant, LdpReport)> Driver<H> {
    pub(super) fn new(
        config: LdpConfig,
        place: LdpSockets,
        epoch: std::time::Instant,
        handle: H,
    ) -> io::Result<Driver<H>> {
        let transport = config.transport;
        let keys = place.md5_keys.iter().map(|(peer, key)| (IpAddr::V4(*peer), key.clone()));
        let protection = Protection { md5_keys: keys.collect(), security_hops: None };
        let discovery = Discovery::open(&config, &place)?;
        let listener = Some(listen(&place, transport, &protection)?);
        let signatures = SignatureCounters::new(&place.namespace)?;
        let mut driver = Driver {
            speaker: LdpSpeaker::new(config),
            transport,
            place,
            protection,
            epoch,
            discovery,
            listener,
            connections: BTreeMap::new(),
            last_number: 0,
            attempts: JoinSet::new(),
            farewells: JoinSet::new(),
            signatures,
            next_watch: None,
            suspended_until: None,
            failed_hellos: BTreeSet::new(),
            counters: Counters::default(),
            buffer: vec![0; READ_BUFFER],
            handle,
        };
        driver.discover();
        Ok(driver)
    }

    /// Starts discovery.
    fn discover(&mut self) {
        let now = self.now();
        for interface in 0..self.place.interfaces.len() {
            self.speaker.add_interface(now, interface);
        }
        for target in &self.place.targets {
            self.speaker.add_target(now, *target);
        }
    }

    /// Ends all sessions and stops discovery.
    fn suspend(&mut self, ending: SessionEnding, resume_after: Option<Duration>) {
        let now = self.now();
        if ending == SessionEnding::Reset {
            for (number, connection) in std::mem::take(&mut self.connections) {
                connection.reset();
                self.speaker.handle_closed(now, number);
            }
        }
        self.listener = None;
        // Connection attempts are aborted.
        self.attempts = JoinSet::new();
        self.speaker.shut_down(now);
        self.settle();
        self.suspended_until = Some(resume_after.map_or(Instant::NEVER, |after| now + after));
    }

    fn resume(&mut self) {
        if self.suspended_until.is_none() {
            return;
        }
        match listen(&self.place, self.transport, &self.protection) {
            Ok(listener) => {
                (self.listener, self.suspended_until) = (Some(listener), None);
                self.discover();
            }
            Err(_) => self.suspended_until = Some(self.now() + RESUME_INTERVAL),
        }
    }

    pub(super) async fn run(mut self, mut commands: UnboundedReceiver<LdpCommand>) -> io::Result<()> {
        let mut timer = Box::pin(sleep_until(tokio::time::Instant::now()));
        loop {
            timer.as_mut().reset(self.deadline());
            match poll_fn(|context| self.poll(context, timer.as_mut(), &mut commands)).await {
                Wake::Command(Some(LdpCommand::Stop) | None) => break,
                Wake::Command(Some(command)) => self.handle_command(command),
                // The peer's attempt failed.
                Wake::Accepted(Err(_)) => {}
                Wake::Accepted(Ok((stream, remote))) => self.handle_accepted(stream, remote),
                Wake::Attempted(attempt) => self.handle_attempt(attempt),
                Wake::Datagrams => self.read_datagrams(),
                Wake::Connections => self.read_connections(),
                Wake::Timer => {}
            }
            // Received data is handled before timers that expired in the meantime.
            let now = self.now();
            if self.suspended_until.is_some_and(|until| until <= now) {
                self.resume();
            }
            if self.speaker.poll_timeout() <= now {
                self.speaker.handle_timeout(now);
            }
            self.watch_signatures(now);
            self.settle();
        }
        self.speaker.shut_down(self.now());
        self.settle();
        while self.farewells.join_next().await.is_some() {}
        Ok(())
    }

    fn now(&self) -> Instant {
        now_since(self.epoch)
    }

    fn deadline(&self) -> tokio::time::Instant {
        let watch = self.next_watch.unwrap_or(Instant::NEVER);
        let resumption = self.suspended_until.unwrap_or(Instant::NEVER);
        let left = self.speaker.poll_timeout().min(watch).min(resumption).since(self.now()).min(MAX_SLEEP);
        // Tokio rounds timers up to whole milliseconds.
        tokio::time::Instant::now() + std::time::Duration::from_nanos(left.0)
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
        timer: Pin<&mut Sleep>,
        commands: &mut UnboundedReceiver<LdpCommand>,
    ) -> Poll<Wake> {
        if let Poll::Ready(command) = commands.poll_recv(context) {
            return Poll::Ready(Wake::Command(command));
        }
        if self.discovery.poll_ready(context).is_ready() {
            return Poll::Ready(Wake::Datagrams);
        }
        if self.connections.values().any(|connection| connection.poll_ready(context).is_ready()) {
            return Poll::Ready(Wake::Connections);
        }
        if let Some(Poll::Ready(accepted)) =
            self.listener.as_ref().map(|listener| listener.poll_accept(context))
        {
            return Poll::Ready(Wake::Accepted(accepted));
        }
        if let Poll::Ready(Some(Ok(attempt))) = self.attempts.poll_join_next(context) {
            return Poll::Ready(Wake::Attempted(attempt));
        }
        timer.poll(context).map(|()| Wake::Timer)
    }

    fn report(&mut self, report: LdpReport) {
        let now = self.now();
        (self.handle)(now, report);
    }

    fn handle_command(&mut self, command: LdpCommand) {
        match command {
            LdpCommand::SetAddresses(addresses) => self.speaker.set_addresses(addresses),
            LdpCommand::Bind(bindings) => {
                for (fec, binding) in bindings {
                    if let Err(error) = self.speaker.bind(fec, binding) {
                        self.report(LdpReport::Fault(LdpFault::Binding { fec, why: error }));
                    }
                }
            }
            LdpCommand::Unbind(fecs) => fecs.into_iter().for_each(|fec| self.speaker.unbind(fec)),
            LdpCommand::SetRestart(restart) => self.speaker.set_restart(restart),
            LdpCommand::Suspend { ending, resume_after } => self.suspend(ending, resume_after),
            LdpCommand::Resume => self.resume(),
            LdpCommand::Show(answer) => {
                // The requester may have stopped waiting.
                let _ = answer.send(LdpSnapshot {
                    identifier: self.speaker.identifier(),
                    neighbors: self.speaker.neighbors().collect(),
                    counters: self.counters.clone(),
                });
            }
            LdpCommand::Stop => {}
        }
    }

    fn handle_accepted(&mut self, stream: TcpStream, remote: SocketAddr) {
        let IpAddr::V4(remote) = remote.ip() else { return };
        if let Some(number) = self.add_connection(stream) {
            self.counters.add(Counter::Accepted, 1);
            self.speaker.handle_accepted(self.now(), number, remote);
        }
    }

    fn handle_attempt(&mut self, (peer, address, outcome): Attempt) {
        let now = self.now();
        let error = match outcome.map(|stream| self.add_connection(stream)) {
            Ok(Some(number)) => {
                self.counters.add(Counter::Connected, 1);
                return self.speaker.handle_connected(now, peer, number);
            }
            Ok(None) => io::ErrorKind::NotConnected,
            Err(error) => error.kind(),
        };
        self.counters.add(Counter::ConnectFailed, 1);
        self.speaker.handle_connect_failed(now, peer);
        self.report(LdpReport::Fault(LdpFault::Connect { peer, address, why: error }));
    }

    /// Stores a connection under a new number, unless it has already failed.
    fn add_connection(&mut self, stream: TcpStream) -> Option<Number> {
        let connection = PeerConnection::new(stream).ok()?;
        self.last_number += 1;
        self.connections.insert(Number(self.last_number), connection);
        Some(Number(self.last_number))
    }

    fn read_datagrams(&mut self) {
        for _ in 0..READS_AT_ONCE {
            let Some((scope, source, length)) = self.discovery.receive(&mut self.buffer) else { return };
            self.counters.add(Counter::HellosReceived, 1);
            let (now, bytes) = (self.now(), &self.buffer[..length]);
            match scope {
                _ if self.suspended_until.is_some() => {}
                Scope::Link(interface) => self.speaker.handle_hello(now, interface, source, bytes),
                Scope::Targeted(_) => self.speaker.handle_targeted_hello(now, source, bytes),
            }
        }
    }

    fn read_connections(&mut self) {
        let numbers: Vec<Number> = self.connections.keys().copied().collect();
        for number in numbers {
            for _ in 0..READS_AT_ONCE {
                let Some(connection) = self.connections.get_mut(&number) else { break };
                let read = connection.read(&mut self.buffer);
                let now = self.now();
                match read {
                    Ok(Some(length)) if length > 0 => {
                        self.counters.add(Counter::BytesReceived, length as u64);
                        self.speaker.handle_bytes(now, number, &self.buffer[..length]);
                        self.settle();
                    }
                    Ok(None) => break,
                    Ok(Some(_)) | Err(_) => {
                        self.connections.remove(&number);
                        self.speaker.handle_closed(now, number);
                    }
                }
            }
        }
    }

    /// Executes the speaker's requests, reports its events, and writes queued data.
    fn settle(&mut self) {
        loop {
            while let Some(transmit) = self.speaker.poll_transmit(self.now()) {
                self.carry_out(transmit);
            }
            while let Some(event) = self.speaker.poll_event() {
                self.count(&event);
                self.report(LdpReport::Event(event));
            }
            if !self.write() {
                break;
            }
        }
        // Discard the results of closed connections.
        while self.farewells.try_join_next().is_some() {}
    }

    fn count(&mut self, event: &LdpEvent) {
        let counter = match event {
            LdpEvent::Up { .. } => Counter::Up,
            LdpEvent::Down { .. } => Counter::Down,
            LdpEvent::Restarting { .. } => Counter::Restarting,
            LdpEvent::SetupFailed { .. } => Counter::Refused,
            LdpEvent::Mapping { .. } => Counter::Mappings,
            LdpEvent::Withdrawn { .. } => Counter::Withdrawals,
            _ => return,
        };
        self.counters.add(counter, 1);
    }

    fn carry_out(&mut self, transmit: LdpAction) {
        match transmit {
            LdpAction::Discovery { scope, bytes } => self.send_hello(scope, &bytes),
            LdpAction::Stream { connection: number, bytes } => {
                let Some(connection) = self.connections.get_mut(&number) else { return };
                connection.queue().extend_from_slice(&bytes);
                self.counters.add(Counter::BytesSent, bytes.len() as u64);
                if connection.queue().len() >= MAX_QUEUE {
                    self.speaker.set_writable(number, false);
                }
            }
            LdpAction::Connect { peer, address } => {
                let (transport, protection) = (self.transport, &self.protection);
                let bind = || peering::bind((transport, 0).into(), protection);
                let socket = self.place.namespace.run(bind).flatten();
                self.attempts.spawn(async move {
                    let connected = async { peering::connect(socket?, (address, PORT).into()).await };
                    let outcome = timeout(CONNECT_TIMEOUT, connected).await;
                    (peer, address, outcome.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())))
                });
            }
            LdpAction::Close { connection } => {
                if let Some(connection) = self.connections.remove(&connection) {
                    self.farewells.spawn(connection.close());
                }
            }
        }
    }

    fn send_hello(&mut self, scope: Scope, bytes: &[u8]) {
        match self.discovery.send(scope, bytes) {
            Ok(()) => {
                self.counters.add(Counter::HellosSent, 1);
                self.failed_hellos.remove(&scope);
            }
            Err(error) => {
                self.counters.add(Counter::HellosFailed, 1);
                if self.failed_hellos.insert(scope) {
                    let to = match scope {
                        Scope::Link(interface) => self.place.interfaces[interface].name.clone(),
                        Scope::Targeted(router) => router.to_string(),
                    };
                    self.report(LdpReport::Fault(LdpFault::Hello { to, why: error.kind() }));
                }
            }
        }
    }

    /// Writes queued data. Returns `true` if a connection whose queue was full is writable again.
    fn write(&mut self) -> bool {
        let mut has_room_again = false;
        for (number, connection) in &mut self.connections {
            let was_full = connection.queue().len() >= MAX_QUEUE;
            // A lost connection is detected by the next read.
            let is_written = matches!(connection.write(), Ok(true));
            self.speaker.set_writable(*number, is_written);
            has_room_again |= was_full && is_written;
        }
        has_room_again
    }

    /// Returns the neighbors whose hellos are received but who have no connection.
    fn waiting(&self) -> impl Iterator<Item = LdpNeighbor> + '_ {
        self.speaker.neighbors().filter(|neighbor| neighbor.phase.is_none())
    }

    fn watch_signatures(&mut self, now: Instant) {
        let is_waiting = self.waiting().next().is_some();
        let Some(due) = self.next_watch.filter(|_| is_waiting) else {
            // Ignore segments dropped before the peer was waiting for a session.
            if is_waiting {
                self.signatures.take();
            }
            self.next_watch = is_waiting.then(|| now + WATCH_INTERVAL);
            return;
        };
        if now < due {
            return;
        }
        self.next_watch = Some(now + WATCH_INTERVAL);
        let dropped = self.signatures.take();
        if dropped.count() > 0 {
            self.counters.add(Counter::WrongSignatures, dropped.count());
            let peers = self.waiting().map(|neighbor| neighbor.peer).collect();
            self.report(LdpReport::Fault(LdpFault::Signatures { dropped, peers }));
        }
    }
}

/// Listens at the transport address.
fn listen(place: &LdpSockets, transport: Ipv4Addr, protection: &Protection) -> io::Result<TcpListener> {
    let bound = place.namespace.run(|| peering::bind((transport, PORT).into(), protection)).flatten();
    bound.and_then(peering::listen).map_err(|error| {
        let remedy = "use an address of the namespace on which no other program listens";
        let message = format!("cannot listen on {transport}, TCP port {PORT}: {error}; {remedy}");
        io::Error::new(error.kind(), message)
    })
}
