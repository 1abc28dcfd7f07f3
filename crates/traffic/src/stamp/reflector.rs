//! Session-reflector on a UDP port.

use super::clock::WallClock;
use super::{HmacKey, MAX_PACKET_BYTES, PACKETS_PER_CALL, Timescale, mode, with_mac};
use netstage_core::measure::stamp::{self, ReceivedPacketInfo, ReflectorConfig, ReflectorCounts};
use netstage_core::time::Instant;
use netstage_host::clock::monotonic_ns;
use netstage_host::packet_socket::{PacketSocket, ReceivedDatagram};
use netstage_host::shutdown::DaemonShutdown;
use netstage_wire::stamp::tlv::sync_source;
use socket2::Socket;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Interval at which the reflector checks whether it must end.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const ECN: u8 = 0b11;

/// Times of a reply, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTimes {
    /// Time of its timestamp.
    pub stamped: u64,
    /// Time at which the system accepted it.
    pub left: u64,
}

/// Bound reflector. It answers in [`SessionReflector::run`], or in each call of [`SessionReflector::handle_ready`].
pub struct Reflector {
    socket: PacketSocket,
    key: Option<HmacKey>,
    timescale: Timescale,
    machine: stamp::SessionReflector,
    packet: Vec<u8>,
    reply: Vec<u8>,
    ender: DaemonShutdown,
}

impl Reflector {
    /// Binds to an address. With a key, only authenticated packets are answered.
    pub fn bind(address: SocketAddr, key: Option<HmacKey>, timescale: Timescale) -> io::Result<Reflector> {
        let socket = PacketSocket::bind(address)?;
        let clock = WallClock::read();
        let config = ReflectorConfig {
            mode: mode(key.as_ref()),
            clock_error: (clock.error_ns, clock.synchronized),
            sync_source: if clock.synchronized { sync_source::NTP } else { sync_source::FREE_RUNNING },
            ..ReflectorConfig::default()
        };
        Ok(Reflector {
            socket,
            key,
            timescale,
            machine: stamp::SessionReflector::new(config),
            packet: vec![0; MAX_PACKET_BYTES],
            reply: Vec::with_capacity(MAX_PACKET_BYTES),
            ender: DaemonShutdown::default(),
        })
    }

    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.socket.address()
    }

    /// Returns the socket.
    pub fn socket(&self) -> &Socket {
        self.socket.socket()
    }

    /// Returns a handle that ends [`SessionReflector::run`].
    pub fn shutdown_handle(&self) -> DaemonShutdown {
        self.ender.clone()
    }

    /// Answers packets on the calling thread until ended by [`SessionReflector::shutdown_handle`].
    pub fn run(mut self) -> io::Result<ReflectorCounts> {
        while !self.ender.is_requested() {
            self.socket.wait(POLL_INTERVAL)?;
            self.handle_ready(|_, _, _| {});
        }
        Ok(self.machine.counts())
    }

    /// Answers the received packets. Calls `each` for every answered packet with the times of its reply.
    pub fn handle_ready(&mut self, mut each: impl FnMut(&ReceivedDatagram, &[u8], ReplyTimes)) {
        for _ in 0..PACKETS_PER_CALL {
            // Errors concern replies that did not reach their host.
            let Ok(Some(received)) = self.socket.receive(&mut self.packet) else { return };
            let own = self.socket.address();
            let destination = SocketAddr::new(received.destination.unwrap_or(own.ip()), own.port());
            let arrival = ReceivedPacketInfo {
                instant: Instant(received.monotonic_ns),
                unix: self.timescale.arrival_ns(&received),
                source: received.source,
                destination,
                ttl: received.ttl,
                dscp: received.traffic_class >> 2,
                ecn: received.traffic_class & ECN,
            };
            let (machine, reply) = (&mut self.machine, &mut self.reply);
            let packet = &self.packet[..received.length];
            let stamped = monotonic_ns();
            let now = || self.timescale.now_ns();
            let answer =
                with_mac(self.key.as_ref(), |mac| machine.reflect(packet, &arrival, mac, now, reply));
            if let Ok(dscp) = answer {
                // A reply that cannot be sent counts as lost.
                let _ = self.socket.send(&self.reply, received.destination, Some(received.source), dscp << 2);
                each(&received, packet, ReplyTimes { stamped, left: monotonic_ns() });
            }
        }
    }
}
