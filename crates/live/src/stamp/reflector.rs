//! The session-reflector on a UDP port.

use super::clock::WallClock;
use super::socket::PacketSocket;
use super::{HmacKey, mode, with_mac};
use crate::clock::{monotonic_ns, realtime_ahead_ns};
use netstage_core::measure::stamp::{self, Arrival, ReflectorConfig, ReflectorCounts};
use netstage_core::time::Instant;
use netstage_wire::stamp::tlv::sync_source;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often the reflector looks whether it is to end, and how good its clock is.
const LOOK: Duration = Duration::from_millis(200);
/// Largest packet answered: a jumbo frame's.
const LARGEST: usize = 9216;
const ECN: u8 = 0b11;

/// A reflector that is bound, but does not answer yet.
pub struct Reflector {
    socket: PacketSocket,
    key: Option<HmacKey>,
    ended: Arc<AtomicBool>,
}

/// Ends a reflector.
#[derive(Clone)]
pub struct ReflectorEnder(Arc<AtomicBool>);

impl ReflectorEnder {
    /// Soon.
    pub fn end(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Reflector {
    /// Binds to an address; with a key only authenticated packets are answered.
    pub fn bind(address: SocketAddr, key: Option<HmacKey>) -> io::Result<Reflector> {
        let socket = PacketSocket::bind(address)?;
        Ok(Reflector { socket, key, ended: Arc::default() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.socket.address()
    }

    /// What ends it.
    pub fn ender(&self) -> ReflectorEnder {
        ReflectorEnder(Arc::clone(&self.ended))
    }

    /// Answers, on this thread, until it is ended.
    pub fn run(self) -> io::Result<ReflectorCounts> {
        let clock = WallClock::read();
        let config = ReflectorConfig {
            mode: mode(self.key.as_ref()),
            clock_error: (clock.error_ns, clock.synchronized),
            sync_source: if clock.synchronized { sync_source::NTP } else { sync_source::FREE_RUNNING },
            ..ReflectorConfig::default()
        };
        let mut reflector = stamp::Reflector::new(config);
        let (mut packet, mut reply) = (vec![0; LARGEST], Vec::with_capacity(LARGEST));
        while !self.ended.load(Ordering::Relaxed) {
            self.socket.wait(LOOK)?;
            // Errors are about replies that did not reach their host.
            while let Ok(Some(received)) = self.socket.receive(&mut packet) {
                let own = self.socket.address();
                let destination = SocketAddr::new(received.destination.unwrap_or(own.ip()), own.port());
                let arrival = Arrival {
                    instant: Instant(received.monotonic_ns),
                    unix: received.unix_ns,
                    source: received.source,
                    destination,
                    ttl: received.ttl,
                    dscp: received.traffic_class >> 2,
                    ecn: received.traffic_class & ECN,
                };
                let now = || u64::try_from(i128::from(monotonic_ns()) + realtime_ahead_ns()).unwrap_or(0);
                let answer = with_mac(self.key.as_ref(), |mac| {
                    reflector.reflect(&packet[..received.length], &arrival, mac, now, &mut reply)
                });
                if let Ok(dscp) = answer {
                    // One that cannot be sent is one that is lost.
                    let _ = self.socket.send(&reply, received.destination, Some(received.source), dscp << 2);
                }
            }
        }
        Ok(reflector.counts())
    }
}
