//! Encrypted tunnels to peers by the protocol of WireGuard (Donenfeld, "WireGuard: next generation kernel network
//! tunnel"): each IP packet of an MPLS-in-UDP tunnel travels whole inside. Everything between two encrypted peers
//! passes here: data, management, references, news.
//!
//! The library has the cryptography, the replay window and the handshake's cookies. This module selects the tunnel of
//! a packet, requests handshakes by the engine's clock, and copies DSCP and ECN to the outer header (RFC 6040). The
//! ends of a session are checked by [`network`](super::network): a decrypted packet is valid only for the peer whose
//! key decrypted it.

use super::network::ReceivingTunnel;
use super::pool::HEADROOM;
use super::{Counter, DepartingFrame, EngineState, PacketDrop};
use crate::private_key::PrivateKey;
use boringtun::noise::errors::WireGuardError;
use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519::PublicKey;
use netstage_core::time::{Duration, Instant};
use netstage_wire::ethernet::{self, ethertype};
use netstage_wire::ip::{Ecn, tunnel};
use netstage_wire::mpls_in_udp::{self, TunnelHeader};
use netstage_wire::udp::ZeroChecksum;
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;

/// Bytes that encryption adds to a packet besides the outer headers: type, receiver and counter before it, the tag
/// after it.
pub(super) const OVERHEAD: usize = 16 + 16;
/// Largest message read or written, bytes.
const MAX_MESSAGE: usize = 1 << 16;
/// Types of messages, in their first byte. A response makes its receiver the initiator.
const HANDSHAKE_RESPONSE: u8 = 2;
const COOKIE_REPLY: u8 = 3;
const TUNNEL_TTL: u8 = 64;

/// Interval of timers.
const TICK: Duration = Duration::from_millis(250);
/// Interval of handshake attempts without a session, and age of a session at which its initiator negotiates the next
/// one. WireGuard requires one before 120 s; the responder takes over if the initiator has not.
const RETRY: Duration = Duration::from_millis(1_000);
const REKEY: Duration = Duration::from_millis(110_000);
const REKEY_BY_RESPONDER: Duration = Duration::from_millis(140_000);
/// Age after which no packet of a session is valid.
const EXPIRY: Duration = Duration::from_millis(180_000);

/// Tunnels of a router.
#[derive(Debug)]
pub(super) struct SecureTunnels {
    /// UDP port of this router.
    port: u16,
    /// Tunnels by index of the peer; `None` for trusted peers.
    list: Vec<Option<SecureTunnel>>,
    /// Next call of the timers; never without tunnels.
    due: Instant,
    /// Message of the library, before it is copied to a frame or processed.
    message: Vec<u8>,
}

/// Tunnel to a peer.
pub(super) struct SecureTunnel {
    library: Box<Tunn>,
    keys: TunnelKeys,
    remote_port: u16,
    addresses: [IpAddr; 2],
    session: Option<Session>,
    /// Time of the last attempt of a handshake.
    attempted: Option<Instant>,
}

/// Keys of both ends.
#[derive(Clone, PartialEq, Eq)]
struct TunnelKeys {
    own: PrivateKey,
    peer: [u8; 32],
}

/// Last established session.
#[derive(Clone, Copy, Debug)]
struct Session {
    at: Instant,
    is_initiator: bool,
}

impl fmt::Debug for SecureTunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecureTunnel").field("session", &self.session).finish_non_exhaustive()
    }
}

impl SecureTunnel {
    /// Creates a tunnel between two addresses, the local one first, to this port and public key of the peer. `number`
    /// distinguishes the tunnels of a router.
    pub fn new(
        own: &PrivateKey,
        peer: [u8; 32],
        addresses: [IpAddr; 2],
        remote_port: u16,
        number: u32,
    ) -> Self {
        let library = Tunn::new(own.secret(), PublicKey::from(peer), None, None, number, None);
        SecureTunnel {
            library: Box::new(library),
            keys: TunnelKeys { own: own.clone(), peer },
            remote_port,
            addresses,
            session: None,
            attempted: None,
        }
    }

    /// Returns whether a handshake must be started now.
    fn is_handshake_due(&self, now: Instant) -> bool {
        let is_old = self.session.is_none_or(|session| {
            now.since(session.at) >= if session.is_initiator { REKEY } else { REKEY_BY_RESPONDER }
        });
        is_old && self.attempted.is_none_or(|at| now.since(at) >= RETRY)
    }

    /// Returns whether the other tunnel has the same ends and keys.
    fn is_same(&self, other: &SecureTunnel) -> bool {
        self.keys == other.keys && self.addresses == other.addresses && self.remote_port == other.remote_port
    }
}

impl SecureTunnels {
    pub fn new(port: u16, list: Vec<Option<SecureTunnel>>) -> SecureTunnels {
        let is_used = list.iter().any(Option::is_some);
        SecureTunnels {
            port,
            list,
            due: if is_used { Instant::ZERO } else { Instant::NEVER },
            message: vec![0; if is_used { MAX_MESSAGE } else { 0 }],
        }
    }

    pub fn poll_timeout(&self) -> Instant {
        self.due
    }

    pub fn is_encrypted(&self, peer: usize) -> bool {
        self.list[peer].is_some()
    }

    /// Returns the start of the present session with a peer.
    pub fn session_since(&self, now: Instant, peer: usize) -> Option<Instant> {
        let session = self.list[peer].as_ref()?.session?;
        (now.since(session.at) < EXPIRY).then_some(session.at)
    }

    /// Adopts the session of a peer of the previous configuration, unless keys or addresses have changed.
    pub fn take_over(&mut self, peer: usize, old: &mut SecureTunnels, old_peer: usize) {
        if let (Some(tunnel), Some(known)) = (&mut self.list[peer], &mut old.list[old_peer])
            && tunnel.is_same(known)
        {
            std::mem::swap(tunnel, known);
        }
    }

    /// Returns the peer of a datagram from one address to another.
    fn peer(&self, local: IpAddr, remote: IpAddr) -> Option<usize> {
        let is_between = |tunnel: &Option<SecureTunnel>| {
            tunnel.as_ref().is_some_and(|known| known.addresses == [local, remote])
        };
        self.list.iter().position(is_between)
    }
}

impl EngineState {
    /// Handles the timers of all tunnels that are due.
    pub(super) fn handle_tunnels(&mut self, now: Instant) {
        if now < self.secure.due {
            return;
        }
        self.secure.due = now + TICK;
        for peer in 0..self.secure.list.len() {
            if !self.peers[peer].is_reachable {
                continue;
            }
            let SecureTunnels { list, message, .. } = &mut self.secure;
            let Some(tunnel) = &mut list[peer] else { continue };
            let mut length = written(&tunnel.library.update_timers(message));
            if tunnel.is_handshake_due(now) {
                tunnel.attempted = Some(now);
                length = written(&tunnel.library.format_handshake_initiation(message, true));
            }
            if let Some(length) = length {
                self.send_message(peer, None, length, (0, Ecn::NotCapable));
            }
        }
    }

    /// Encrypts a packet in a buffer and sends it. While a handshake is in progress, the library keeps the packet.
    #[inline]
    pub(super) fn encrypt(&mut self, peer: usize, buffer: u32, packet: Range<usize>, dscp: u8, ecn: Ecn) {
        let SecureTunnels { list, message, .. } = &mut self.secure;
        let Some(tunnel) = &mut list[peer] else { unreachable!("the peer is encrypted") };
        let bytes = &self.pool.bytes(buffer)[packet];
        let length = written(&tunnel.library.encapsulate(bytes, message));
        match length {
            Some(length) => {
                self.send_message(peer, Some(buffer), length, (dscp, tunnel::encapsulated_ecn(ecn)))
            }
            None => self.pool.release(buffer),
        }
    }

    /// Sends the message of the library in a buffer, or in a new one.
    fn send_message(&mut self, peer: usize, buffer: Option<u32>, length: usize, (dscp, ecn): (u8, Ecn)) {
        let Some(buffer) = buffer.or_else(|| self.pool.take()) else {
            return self.count(Counter::BuffersExhausted.into());
        };
        let SecureTunnels { list, message, port, .. } = &self.secure;
        let Some(tunnel) = &list[peer] else { unreachable!("the peer is encrypted") };
        let [source, destination] = tunnel.addresses;
        let outer = TunnelHeader {
            source,
            destination,
            source_port: *port,
            dscp,
            ecn,
            ttl: TUNNEL_TTL,
            has_checksum: source.is_ipv6(),
        };
        let peer = &self.peers[peer];
        let link = peer.header.bytes();
        let start = link.len() + outer.length();
        let end = start + length;
        let room = self.pool.room() + HEADROOM;
        if end > room {
            self.pool.release(buffer);
            return self.count(Counter::TooBig.into());
        }
        let bytes = self.pool.bytes(buffer);
        bytes[..link.len()].copy_from_slice(link);
        bytes[start..end].copy_from_slice(&message[..length]);
        let result = outer.write_to_port(tunnel.remote_port, &mut bytes[link.len()..end]);
        debug_assert!(result.is_ok(), "both addresses are of one IP version, and buffers are small");
        self.departures[peer.port as usize].push(DepartingFrame { buffer, start: 0, end: end as u16 });
    }

    /// Decrypts a frame to the port for encrypted packets and handles the packet inside. Returns `None` if the frame is
    /// for another port.
    #[inline]
    pub(super) fn read_encrypted_frame(
        &mut self,
        at: Instant,
        port: usize,
        frame: &ethernet::View<'_>,
    ) -> Option<Result<(), PacketDrop>> {
        if self.secure.due == Instant::NEVER || !matches!(frame.kind(), ethertype::IPV4 | ethertype::IPV6) {
            return None;
        }
        match mpls_in_udp::View::at_port(self.secure.port, frame.payload(), ZeroChecksum::Accepted) {
            Ok(datagram) => Some(self.read_encrypted(at, port, &datagram)),
            Err(mpls_in_udp::MplsInUdpError::Other) => None,
            Err(_) => Some(Err(Counter::EncryptionMalformed.into())),
        }
    }

    fn read_encrypted(
        &mut self,
        at: Instant,
        port: usize,
        datagram: &mpls_in_udp::View<'_>,
    ) -> Result<(), PacketDrop> {
        let peer = self.secure.peer(datagram.destination, datagram.source);
        let peer = peer.ok_or(Counter::EncryptionForeign)?;
        if datagram.payload.len() > MAX_MESSAGE {
            return Err(Counter::EncryptionMalformed.into());
        }
        let SecureTunnels { list, message, .. } = &mut self.secure;
        let Some(tunnel) = &mut list[peer] else { unreachable!("the peer is encrypted") };
        let received = tunnel.library.decapsulate(Some(datagram.source), datagram.payload, message);
        let kind = datagram.payload.first().copied();
        match received {
            TunnResult::Done => {
                // The first packet of a session that the peer started may be empty.
                self.send_kept_packets(peer);
                Ok(())
            }
            TunnResult::Err(error) => {
                let counter = counter(&error);
                let is_young = tunnel.session.is_none_or(|session| at.since(session.at) < RETRY);
                let is_early = counter == Counter::EncryptionUnknown && is_young;
                Err(if is_early { Counter::EncryptionEarly } else { counter }.into())
            }
            TunnResult::WriteToNetwork(reply) => {
                let (length, answer) = (reply.len(), reply[0]);
                if answer == COOKIE_REPLY {
                    self.send_message(peer, None, length, (0, Ecn::NotCapable));
                    return Err(Counter::HandshakeLimited.into());
                }
                tunnel.session = Some(Session { at, is_initiator: kind == Some(HANDSHAKE_RESPONSE) });
                tunnel.attempted = None;
                self.send_message(peer, None, length, (0, Ecn::NotCapable));
                self.send_kept_packets(peer);
                Ok(())
            }
            TunnResult::WriteToTunnelV4(packet, _) | TunnResult::WriteToTunnelV6(packet, _) => {
                let length = packet.len();
                // The plain text starts where the message started.
                let message = std::mem::take(&mut self.secure.message);
                let result = self.read_decrypted(at, port, peer, &message[..length], datagram.ecn);
                self.secure.message = message;
                result
            }
        }
    }

    /// Sends the packets that the library kept during a handshake.
    fn send_kept_packets(&mut self, peer: usize) {
        loop {
            let SecureTunnels { list, message, .. } = &mut self.secure;
            let Some(tunnel) = &mut list[peer] else { return };
            let Some(length) = written(&tunnel.library.decapsulate(None, &[], message)) else { return };
            self.send_message(peer, None, length, (0, Ecn::NotCapable));
        }
    }

    /// Handles a decrypted packet, which must be one of the peer's MPLS-in-UDP tunnel.
    fn read_decrypted(
        &mut self,
        at: Instant,
        port: usize,
        peer: usize,
        packet: &[u8],
        outer: Ecn,
    ) -> Result<(), PacketDrop> {
        let inner = mpls_in_udp::View::new(packet, ZeroChecksum::Accepted);
        let inner = inner.map_err(|_| Counter::TunnelMalformed)?;
        let decapsulated = tunnel::decapsulated_ecn(inner.ecn, outer);
        if decapsulated.alarm.is_some() {
            self.count(Counter::MarkAlarm.into());
        }
        let ecn = decapsulated.ecn.ok_or(Counter::MarkDropped)?;
        let tunnel = ReceivingTunnel::decrypted(&inner, ecn, peer as u32);
        self.read_labeled_packet(at, port, Some(tunnel), inner.payload)
    }
}

/// Returns the length of the message that the library has written to send.
fn written(result: &TunnResult<'_>) -> Option<usize> {
    match result {
        TunnResult::WriteToNetwork(message) => Some(message.len()),
        _ => None,
    }
}

/// Returns the counter of a rejected message.
fn counter(error: &WireGuardError) -> Counter {
    match error {
        WireGuardError::DuplicateCounter
        | WireGuardError::InvalidCounter
        | WireGuardError::WrongTai64nTimestamp => Counter::EncryptionReplayed,
        WireGuardError::InvalidPacket
        | WireGuardError::IncorrectPacketLength
        | WireGuardError::WrongPacketType
        | WireGuardError::InvalidTai64nTimestamp
        | WireGuardError::DestinationBufferTooSmall => Counter::EncryptionMalformed,
        WireGuardError::UnderLoad => Counter::HandshakeLimited,
        WireGuardError::NoCurrentSession
        | WireGuardError::WrongIndex
        | WireGuardError::UnexpectedPacket
        | WireGuardError::ConnectionExpired => Counter::EncryptionUnknown,
        WireGuardError::InvalidMac
        | WireGuardError::InvalidAeadTag
        | WireGuardError::WrongKey
        | WireGuardError::LockFailed => Counter::EncryptionForged,
    }
}
