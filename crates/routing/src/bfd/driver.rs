//! Sockets and timers of a speaker.

use super::{BfdChange, BfdCommand, BfdCommands, BfdNeighbor, BfdReport, BfdSessionConfig, BfdSnapshot};
use netstage_core::bfd::{BfdEvent, BfdPeer, BfdSpeaker, BfdTransmit, MAX_SESSIONS};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{Epoch, monotonic_ns};
use netstage_host::netns::Namespace;
use netstage_host::packet_socket::PacketSocket;
use netstage_host::realtime::{Rank, enter_realtime, raise_priority};
use netstage_host::wait::Waiter;
use netstage_wire::bfd::{BfdState, CONTROL_PORT, Diagnostic, MAX_PACKET};
use nix::net::if_::if_nametoindex;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

/// Minimum time between turns, nanoseconds.
const TURN_NS: u64 = 250_000;
/// Interval at which the interfaces are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a neighbor still counts as failed when its session is removed. Routing daemons remove the sessions of
/// failed neighbors before they have found new routes.
const FAILURE_RETENTION: Duration = Duration::from_secs(30);
/// Source ports (RFC 5881 section 4).
const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;
/// Traffic class: network control (RFC 4594).
const NETWORK_CONTROL: u8 = 48 << 2;
/// Packets read from a socket before other work.
const BATCH: usize = 1_024;
/// Waiter token of the commands; receiving sockets have their position.
const BELL: usize = usize::MAX;

/// Session with a neighbor.
#[derive(Debug)]
struct Link {
    neighbor: BfdNeighbor,
    peer: BfdPeer,
    /// Index of the interface, and the socket that sends to it; `None` while it cannot be opened.
    open: Option<(u32, PacketSocket)>,
    /// A fault was reported.
    is_faulty: bool,
    /// The neighbor has failed, and was not up since.
    has_failed: bool,
    /// The session is disabled, and ends at this time.
    end: Option<Instant>,
}

impl Link {
    /// Reports about the session.
    fn report(&self, speaker: &BfdSpeaker, change: BfdChange) -> BfdReport {
        BfdReport { neighbor: self.neighbor.clone(), change, status: speaker.session(self.peer) }
    }

    /// Opens the socket in the thread's namespace, unless the interface is still the one that is open.
    fn reopen(&self) -> Option<io::Result<(u32, PacketSocket)>> {
        let name = self.neighbor.interface.as_str();
        match (if_nametoindex(name).map_err(io::Error::from), &self.open) {
            (Ok(index), Some((known, _))) if index == *known => None,
            (Ok(index), _) => Some(sending_socket(name, self.peer.address).map(|socket| (index, socket))),
            (Err(error), _) => Some(Err(error)),
        }
    }
}

/// Driver of the sessions with neighbors.
#[derive(Debug)]
pub struct BfdDriver {
    speaker: BfdSpeaker,
    namespace: Namespace,
    links: Vec<Link>,
    /// Interfaces of all sessions so far; a peer has the position plus one.
    interfaces: Vec<String>,
    sockets: Vec<PacketSocket>,
    waiter: Waiter,
    epoch: Epoch,
    next_check: Instant,
    commands: Receiver<BfdCommand>,
    bell: Arc<EventFd>,
}

impl BfdDriver {
    /// Creates a driver without sessions. The seed should differ after each restart and be unpredictable.
    pub fn new(namespace: Namespace, seed: u64) -> io::Result<(BfdDriver, BfdCommands)> {
        let mut waiter = Waiter::economical(TURN_NS)?;
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        waiter.add(BELL, Some(bell.as_fd()))?;
        let (sender, commands) = channel();
        let driver = BfdDriver {
            speaker: BfdSpeaker::new(MAX_SESSIONS, seed),
            namespace,
            links: Vec::new(),
            interfaces: Vec::new(),
            sockets: Vec::new(),
            waiter,
            epoch: Epoch(monotonic_ns()),
            next_check: Instant::ZERO,
            commands,
            bell: Arc::clone(&bell),
        };
        Ok((driver, BfdCommands { commands: sender, bell }))
    }

    /// Adds a session, or changes its settings. Fails with [`io::ErrorKind::AddrInUse`] if another program in the
    /// namespace speaks BFD.
    pub fn set(&mut self, neighbor: BfdNeighbor, session: BfdSessionConfig) -> io::Result<()> {
        self.listen(neighbor.address.is_ipv4())?;
        let peer = BfdPeer { interface: self.interface(&neighbor.interface), address: neighbor.address };
        self.speaker.set_session(peer, session).map_err(io::Error::other)?;
        match self.links.iter_mut().find(|link| link.peer == peer) {
            Some(link) => link.end = None,
            None => {
                let (open, is_faulty, has_failed, end) = (None, false, false, None);
                self.links.push(Link { neighbor, peer, open, is_faulty, has_failed, end });
                self.next_check = Instant::ZERO;
            }
        }
        Ok(())
    }

    /// Opens the receiving socket of an address family.
    fn listen(&mut self, is_ipv4: bool) -> io::Result<()> {
        if self.sockets.iter().any(|socket| socket.address().is_ipv4() == is_ipv4) {
            return Ok(());
        }
        let bind = || PacketSocket::bind(SocketAddr::new(unspecified(is_ipv4), CONTROL_PORT));
        let socket = self.namespace.run(bind).flatten()?;
        self.waiter.add(self.sockets.len(), Some(socket.socket().as_fd()))?;
        self.sockets.push(socket);
        Ok(())
    }

    /// Returns the number of an interface, which is new if the name is.
    fn interface(&mut self, name: &str) -> u32 {
        let known = self.interfaces.iter().position(|known| known == name);
        let at = known.unwrap_or_else(|| {
            self.interfaces.push(name.into());
            self.interfaces.len() - 1
        });
        at as u32 + 1
    }

    /// Runs the sessions in the calling thread until they are stopped. Reports are passed to `handle`.
    pub fn run(mut self, mut handle: impl FnMut(BfdReport)) -> io::Result<()> {
        let _ = enter_realtime(Rank::Traffic) || raise_priority();
        let mut ready = Vec::new();
        loop {
            let due = self.speaker.poll_timeout().min(self.next_check);
            self.waiter.wait(self.epoch.monotonic_ns(due), &mut ready)?;
            // Packets that arrive after this time may remain unread, so that no later time is judged.
            let now = self.epoch.now();
            if ready.contains(&BELL) {
                let _ = self.bell.read();
                while let Ok(command) = self.commands.try_recv() {
                    match command {
                        BfdCommand::Set(neighbor, session) => {
                            self.set_and_report(neighbor, session, &mut handle)
                        }
                        BfdCommand::Remove(neighbor) => self.remove(&neighbor, now, &mut handle),
                        BfdCommand::Show(answer) => drop(answer.send(self.snapshot())),
                        BfdCommand::Stop => return Ok(()),
                    }
                }
            }
            if now >= self.next_check {
                self.end_sessions(now, &mut handle);
                self.check_interfaces(&mut handle);
                self.next_check = now + CHECK_INTERVAL;
            }
            self.receive();
            self.speaker.handle_timeout(now);
            self.settle(now, &mut handle);
        }
    }

    fn set_and_report(
        &mut self,
        neighbor: BfdNeighbor,
        session: BfdSessionConfig,
        handle: &mut impl FnMut(BfdReport),
    ) {
        if let Err(error) = self.set(neighbor.clone(), session) {
            let change = BfdChange::Fault(match error.kind() {
                io::ErrorKind::AddrInUse => "another program speaks BFD here".into(),
                _ => error.to_string(),
            });
            return handle(BfdReport { neighbor, change, status: None });
        }
        // The sender may have forgotten the state.
        let link = self.links.iter().find(|link| link.neighbor == neighbor);
        let report = link.map(|link| link.report(&self.speaker, BfdChange::Up));
        let is_up = |report: &BfdReport| report.status.is_some_and(|status| status.state == BfdState::Up);
        report.filter(is_up).into_iter().for_each(handle);
    }

    fn remove(&mut self, neighbor: &BfdNeighbor, now: Instant, handle: &mut impl FnMut(BfdReport)) {
        let BfdDriver { speaker, links, .. } = self;
        let Some(link) = links.iter_mut().find(|link| link.neighbor == *neighbor) else { return };
        let disabled = BfdSessionConfig { is_enabled: false, ..BfdSessionConfig::default() };
        // The session exists, so none is added.
        let _ = speaker.set_session(link.peer, disabled);
        link.end = Some(if link.has_failed { now + FAILURE_RETENTION } else { now });
        if !link.has_failed {
            handle(link.report(speaker, BfdChange::Disabled));
        }
    }

    /// Removes the sessions whose time has come.
    fn end_sessions(&mut self, now: Instant, handle: &mut impl FnMut(BfdReport)) {
        let BfdDriver { speaker, links, .. } = self;
        for link in links.extract_if(.., |link| link.end.is_some_and(|end| end <= now)) {
            speaker.remove_session(link.peer);
            if link.has_failed {
                handle(link.report(speaker, BfdChange::Disabled));
            }
        }
    }

    fn snapshot(&self) -> BfdSnapshot {
        let status =
            |link: &Link| self.speaker.session(link.peer).map(|status| (link.neighbor.clone(), status));
        BfdSnapshot {
            sessions: self.links.iter().filter_map(status).collect(),
            counters: self.speaker.counters(),
        }
    }

    /// Opens the sockets of interfaces that are new or have been recreated.
    fn check_interfaces(&mut self, handle: &mut impl FnMut(BfdReport)) {
        let BfdDriver { speaker, namespace, links, .. } = self;
        // Each entry into the namespace takes a thread.
        let opened = namespace.run(|| links.iter().map(Link::reopen).collect::<Vec<_>>());
        for (link, opened) in links.iter_mut().zip(opened.into_iter().flatten()) {
            let Some(opened) = opened else { continue };
            let reason = opened.as_ref().err().map(ToString::to_string);
            link.open = opened.ok();
            let was_faulty = std::mem::replace(&mut link.is_faulty, reason.is_some());
            if let Some(reason) = reason.filter(|_| !was_faulty) {
                handle(link.report(speaker, BfdChange::Fault(reason)));
            }
        }
    }

    fn receive(&mut self) {
        let BfdDriver { speaker, links, sockets, epoch, .. } = self;
        let mut bytes = [0; MAX_PACKET + 1];
        for socket in sockets {
            for _ in 0..BATCH {
                // An error concerns an earlier packet of the socket.
                let Ok(Some(received)) = socket.receive(&mut bytes) else { break };
                let is_at =
                    |link: &&Link| link.open.as_ref().is_some_and(|(index, _)| *index == received.interface);
                let interface = links.iter().find(is_at).map_or(0, |link| link.peer.interface);
                let from = BfdPeer { interface, address: received.source.ip() };
                let at = epoch.instant(received.monotonic_ns);
                speaker.handle_packet(at, from, received.ttl, &bytes[..received.length], None);
            }
        }
    }

    /// Sends the packets that are due, and reports events.
    fn settle(&mut self, now: Instant, handle: &mut impl FnMut(BfdReport)) {
        while let Some(transmit) = self.speaker.poll_transmit(now, None) {
            self.send(&transmit);
        }
        while let Some(event) = self.speaker.poll_event() {
            let (peer, change) = match event {
                BfdEvent::Up { peer } => (peer, BfdChange::Up),
                BfdEvent::Down { peer, remote_state: BfdState::AdminDown, .. }
                | BfdEvent::Down { peer, diagnostic: Diagnostic::ADMINISTRATIVELY_DOWN, .. } => {
                    (peer, BfdChange::Disabled)
                }
                BfdEvent::Down { peer, diagnostic, .. } => (peer, BfdChange::Failed(diagnostic)),
            };
            let Some(link) = self.links.iter_mut().find(|link| link.peer == peer) else { continue };
            link.has_failed = matches!(change, BfdChange::Failed(_));
            handle(link.report(&self.speaker, change));
        }
    }

    /// Sends a packet. One that cannot be sent is like one that the link loses.
    fn send(&self, transmit: &BfdTransmit) {
        let link = self.links.iter().find(|link| link.peer == transmit.to);
        if let Some((_, socket)) = link.and_then(|link| link.open.as_ref()) {
            let to = SocketAddr::new(transmit.to.address, CONTROL_PORT);
            let _ = socket.send(&transmit.bytes, None, Some(to), NETWORK_CONTROL);
        }
    }
}

/// Returns the address that stands for all of an IP version.
fn unspecified(is_ipv4: bool) -> IpAddr {
    match is_ipv4 {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Opens a socket that sends to neighbors on an interface, with a source port of its own.
fn sending_socket(interface: &str, neighbor: IpAddr) -> io::Result<PacketSocket> {
    for port in SOURCE_PORTS {
        match PacketSocket::bind(SocketAddr::new(unspecified(neighbor.is_ipv4()), port)) {
            Ok(socket) => {
                socket.socket().bind_device(Some(interface.as_bytes()))?;
                return Ok(socket);
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}
