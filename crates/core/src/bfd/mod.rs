//! A speaker of Bidirectional Forwarding Detection (BFD, RFC 5880) in asynchronous mode, for single hops (RFC 5881)
//! and, with a lower [`BfdSessionConfig::min_ttl`], for multihop paths (RFC 5883). Clients act on its events as in
//! RFC 5882.
//!
//! - `session`: state machine, negotiation of intervals, timers.
//! - `authentication`: authentication of packets.
//!
//! Sessions are configured by the caller; packets of other systems create none. The speaker does not request demand
//! mode, but stops its periodic packets for a remote system that does. It sends no echo packets and advertises that
//! it accepts none.

mod authentication;
mod session;

pub use authentication::{BfdAuthenticationConfig, BfdDigestFunction};

use crate::rng::RandomStream;
use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use authentication::Sequences;
use core::fmt;
use core::net::IpAddr;
use netstage_wire::bfd::{BfdError, BfdPacket, BfdState, Diagnostic};
use session::Session;

/// TTL or hop limit of transmitted packets (RFC 5881 section 5).
pub const TTL: u8 = 255;

/// Upper bound of a speaker's sessions: few of the discriminators, so that a random one is probably free.
pub const MAX_SESSIONS: usize = 1 << 20;

/// Remote system of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BfdPeer {
    /// Number of the interface; zero for multihop sessions, which may use any.
    pub interface: u32,
    /// Address.
    pub address: IpAddr,
}

/// Configuration of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BfdSessionConfig {
    /// The session is not administratively down.
    pub is_enabled: bool,
    /// Minimum transmit interval while the session is up; rounded up to microseconds, at least one.
    pub desired_min_tx: Duration,
    /// Minimum interval of received packets; rounded up to microseconds, at least one.
    pub required_min_rx: Duration,
    /// Number of transmit intervals in the remote system's detection time, at least one.
    pub detect_multiplier: u8,
    /// Minimum TTL or hop limit of received packets: 255 for single hops (RFC 5881 section 5).
    pub min_ttl: u8,
    /// Authentication.
    pub authentication: BfdAuthenticationConfig,
}

impl Default for BfdSessionConfig {
    /// Single hop, 300 ms, multiplier 3, no authentication.
    fn default() -> BfdSessionConfig {
        BfdSessionConfig {
            is_enabled: true,
            desired_min_tx: Duration::from_millis(300),
            required_min_rx: Duration::from_millis(300),
            detect_multiplier: 3,
            min_ttl: TTL,
            authentication: BfdAuthenticationConfig::None,
        }
    }
}

/// A control packet to be sent with [`TTL`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BfdTransmit {
    /// Receiver.
    pub to: BfdPeer,
    /// UDP payload.
    pub bytes: Vec<u8>,
}

/// An event for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BfdEvent {
    /// A session is up.
    Up {
        /// Remote system.
        peer: BfdPeer,
    },
    /// A session that was up is no longer up.
    Down {
        /// Remote system.
        peer: BfdPeer,
        /// Reason. [`Diagnostic::ADMINISTRATIVELY_DOWN`] is a change of this system's configuration.
        diagnostic: Diagnostic,
        /// State the remote system has signaled. [`BfdState::AdminDown`] is a change of its configuration and says
        /// nothing about the path (RFC 5882 section 3.2).
        remote_state: BfdState,
        /// Diagnostic the remote system has signaled.
        remote_diagnostic: Diagnostic,
    },
}

/// State of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdStatus {
    /// Remote system.
    pub peer: BfdPeer,
    /// State.
    pub state: BfdState,
    /// Reason for the last change of the state; none while up.
    pub diagnostic: Diagnostic,
    /// Discriminator of this system.
    pub discriminator: u32,
    /// State of the remote system.
    pub remote_state: BfdState,
    /// Reason for the last change of the remote system's state.
    pub remote_diagnostic: Diagnostic,
    /// Discriminator of the remote system; zero while unknown.
    pub remote_discriminator: u32,
    /// Minimum transmit interval of the remote system.
    pub remote_desired_min_tx: Duration,
    /// Minimum interval of packets that the remote system receives.
    pub remote_required_min_rx: Duration,
    /// Detect multiplier of the remote system; zero while unknown.
    pub remote_detect_multiplier: u8,
    /// Transmit interval without jitter; `None` if the remote system has requested no periodic packets.
    pub transmit_interval: Option<Duration>,
    /// Detection time of this system; `None` while no packets are received.
    pub detection_time: Option<Duration>,
    /// Accepted packets.
    pub received: u64,
    /// Sent packets.
    pub sent: u64,
}

/// Numbers of packets, and of reasons for discarding them (RFC 5880 section 6.8.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BfdCounters {
    /// Accepted packets.
    pub received: u64,
    /// Sent packets.
    pub sent: u64,
    /// Packets not sent because the digest function does not know the key, or the password has a wrong length.
    pub unsigned: u64,
    /// Packets with a TTL below the minimum.
    pub wrong_ttl: u64,
    /// Packets with an unknown version.
    pub wrong_version: u64,
    /// Packets with a wrong length.
    pub wrong_length: u64,
    /// Packets with a detect multiplier of zero.
    pub zero_detect_multiplier: u64,
    /// Packets with the multipoint bit.
    pub multipoint: u64,
    /// Packets whose sender's discriminator is zero.
    pub zero_discriminator: u64,
    /// Packets of the states Init and Up without a discriminator of this system.
    pub missing_discriminator: u64,
    /// Packets with a discriminator of no session, or without one from a system without session.
    pub unknown_session: u64,
    /// Packets with a malformed authentication section.
    pub malformed_authentication: u64,
    /// Packets with another authentication type than that of the session, or without authentication.
    pub wrong_authentication_type: u64,
    /// Packets with a wrong key, password or digest.
    pub wrong_secret: u64,
    /// Packets with a sequence number outside the window.
    pub wrong_sequence: u64,
    /// Packets for a session that is administratively down.
    pub admin_down: u64,
    /// Sessions that went down because no packet was received for the detection time.
    pub detection_timeouts: u64,
}

/// The maximum number of sessions is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdSessionLimitError {
    /// Maximum number of sessions.
    pub max_sessions: usize,
}

impl fmt::Display for BfdSessionLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BFD session limit of {} reached", self.max_sessions)
    }
}

impl core::error::Error for BfdSessionLimitError {}

/// Deadlines of sessions, ordered by time.
#[derive(Clone, Debug, Default)]
struct Deadlines {
    by_session: BTreeMap<u32, Instant>,
    ordered: BTreeSet<(Instant, u32)>,
}

impl Deadlines {
    /// Sets or, with [`Instant::NEVER`], removes the deadline of a session.
    fn set(&mut self, session: u32, at: Instant) {
        if let Some(previous) = self.by_session.remove(&session) {
            self.ordered.remove(&(previous, session));
        }
        if at < Instant::NEVER {
            self.by_session.insert(session, at);
            self.ordered.insert((at, session));
        }
    }

    fn next(&self) -> Instant {
        self.ordered.first().map_or(Instant::NEVER, |(at, _)| *at)
    }

    fn expired(&self, now: Instant) -> Option<u32> {
        self.ordered.first().filter(|(at, _)| *at <= now).map(|(_, session)| *session)
    }
}

/// A BFD speaker: sessions by their discriminators.
///
/// Detection is judged by the times at which packets arrived at the host, not by the times of the calls. So that a
/// delay of the caller's own process is not taken for a failure of the neighbor, call in this order at
/// [`poll_timeout`](BfdSpeaker::poll_timeout) and when packets arrive:
///
/// 1. Read the clock.
/// 2. Read all packets waiting in the socket and pass each with the kernel's receive time to
///    [`handle_packet`](BfdSpeaker::handle_packet).
/// 3. Call [`handle_timeout`](BfdSpeaker::handle_timeout) with the time of step 1.
/// 4. Call [`poll_transmit`](BfdSpeaker::poll_transmit) and [`poll_event`](BfdSpeaker::poll_event) until they return
///    `None`.
///
/// After other calls, only step 4 is needed.
///
/// Packets that the kernel dropped because the socket's buffer was full are lost packets. A delay longer than the
/// neighbor's detection time takes the session down at the neighbor, which signals it.
#[derive(Clone, Debug)]
pub struct BfdSpeaker {
    max_sessions: usize,
    sessions: BTreeMap<u32, Session>,
    peers: BTreeMap<BfdPeer, u32>,
    transmissions: Deadlines,
    detections: Deadlines,
    random: RandomStream,
    counters: BfdCounters,
    events: VecDeque<BfdEvent>,
}

impl BfdSpeaker {
    /// Creates a speaker without sessions, for at most [`MAX_SESSIONS`]. The seed of discriminators, sequence numbers
    /// and jitter should differ after each restart and be unpredictable.
    pub fn new(max_sessions: usize, seed: u64) -> BfdSpeaker {
        BfdSpeaker {
            max_sessions: max_sessions.min(MAX_SESSIONS),
            sessions: BTreeMap::new(),
            peers: BTreeMap::new(),
            transmissions: Deadlines::default(),
            detections: Deadlines::default(),
            random: RandomStream::new(seed, "bfd"),
            counters: BfdCounters::default(),
            events: VecDeque::new(),
        }
    }

    /// Adds a session, or changes its configuration. Changed intervals do not interrupt a session.
    pub fn set_session(
        &mut self,
        peer: BfdPeer,
        config: BfdSessionConfig,
    ) -> Result<(), BfdSessionLimitError> {
        if let Some(&discriminator) = self.peers.get(&peer) {
            if let Some(session) = self.sessions.get_mut(&discriminator) {
                self.events.extend(session.set_config(config));
            }
            self.schedule(discriminator);
            return Ok(());
        }
        if self.sessions.len() >= self.max_sessions {
            return Err(BfdSessionLimitError { max_sessions: self.max_sessions });
        }
        let discriminator = loop {
            let discriminator = self.random.next_u64() as u32;
            if discriminator != 0 && !self.sessions.contains_key(&discriminator) {
                break discriminator;
            }
        };
        let session = Session::new(peer, config, discriminator, &mut self.random);
        self.peers.insert(peer, discriminator);
        self.sessions.insert(discriminator, session);
        self.schedule(discriminator);
        Ok(())
    }

    /// Removes a session without an event. To notify the remote system, disable the session first, and remove it after
    /// a detection time of the remote system (RFC 5880 section 6.8.16).
    pub fn remove_session(&mut self, peer: BfdPeer) {
        if let Some(discriminator) = self.peers.remove(&peer) {
            self.sessions.remove(&discriminator);
            self.schedule(discriminator);
        }
    }

    /// Handles a UDP payload received from a peer, with the time at which it arrived at the host. Packets with a
    /// discriminator of this system are accepted from any address and interface (RFC 5880 section 6.3).
    pub fn handle_packet(
        &mut self,
        arrived: Instant,
        from: BfdPeer,
        ttl: u8,
        bytes: &[u8],
        digests: Option<BfdDigestFunction<'_>>,
    ) {
        let packet = match BfdPacket::read(bytes) {
            Ok(packet) => packet,
            Err(error) => return self.count_malformed(error),
        };
        let discriminator = match packet.your_discriminator {
            0 if matches!(packet.state, BfdState::Init | BfdState::Up) => {
                self.counters.missing_discriminator += 1;
                return;
            }
            0 => self.peers.get(&from).copied().unwrap_or(0),
            discriminator => discriminator,
        };
        let Some(session) = self.sessions.get_mut(&discriminator) else {
            self.counters.unknown_session += 1;
            return;
        };
        if ttl < session.config.min_ttl {
            self.counters.wrong_ttl += 1;
            return;
        }
        // The remote system was silent for the detection time before this packet.
        while session.detection() < arrived {
            self.counters.detection_timeouts += u64::from(session.is_detecting());
            self.events.extend(session.handle_silence());
        }
        let Session { peer, config, sequences, .. } = session;
        if config.authentication.verify(*peer, (&packet, bytes), sequences, digests, &mut self.counters) {
            let (is_accepted, event) = session.handle_packet(arrived, &packet);
            self.counters.received += u64::from(is_accepted);
            self.counters.admin_down += u64::from(!is_accepted);
            self.events.extend(event);
        }
        self.schedule(discriminator);
    }

    fn count_malformed(&mut self, error: BfdError) {
        let counters = &mut self.counters;
        let counter = match error {
            BfdError::Short | BfdError::Length { .. } => &mut counters.wrong_length,
            BfdError::Version(_) => &mut counters.wrong_version,
            BfdError::DetectMultiplier => &mut counters.zero_detect_multiplier,
            BfdError::Multipoint => &mut counters.multipoint,
            BfdError::MyDiscriminator => &mut counters.zero_discriminator,
            BfdError::AuthenticationType(_) | BfdError::AuthenticationLength => {
                &mut counters.malformed_authentication
            }
        };
        *counter += 1;
    }

    /// Returns the time of the next call of [`handle_timeout`](BfdSpeaker::handle_timeout) and
    /// [`poll_transmit`](BfdSpeaker::poll_transmit).
    pub fn poll_timeout(&self) -> Instant {
        self.transmissions.next().min(self.detections.next())
    }

    /// Takes down the sessions whose detection time has expired. All packets that arrived before `now` must have been
    /// handled; a late call then has the same effect as one in time. Calling it at any other time has no effect.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(discriminator) = self.detections.expired(now) {
            if let Some(session) = self.sessions.get_mut(&discriminator) {
                self.counters.detection_timeouts += u64::from(session.is_detecting());
                self.events.extend(session.handle_silence());
            }
            self.schedule(discriminator);
        }
    }

    /// Returns the next packet to be sent now.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        digests: Option<BfdDigestFunction<'_>>,
    ) -> Option<BfdTransmit> {
        while let Some(discriminator) = self.transmissions.expired(now) {
            let session = self.sessions.get_mut(&discriminator)?;
            let packet = session.transmit(now, &mut self.random);
            let Session { peer, config, sequences, .. } = session;
            let to = *peer;
            let bytes = config.authentication.write(to, packet, sequences, digests);
            self.schedule(discriminator);
            match bytes {
                Ok(bytes) => {
                    self.counters.sent += 1;
                    return Some(BfdTransmit { to, bytes });
                }
                Err(_) => self.counters.unsigned += 1,
            }
        }
        None
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<BfdEvent> {
        self.events.pop_front()
    }

    /// Returns the counters.
    pub fn counters(&self) -> BfdCounters {
        self.counters
    }

    /// Returns the state of a session.
    pub fn session(&self, peer: BfdPeer) -> Option<BfdStatus> {
        self.peers.get(&peer).and_then(|discriminator| self.sessions.get(discriminator)).map(Session::status)
    }

    /// Iterates over the sessions.
    pub fn sessions(&self) -> impl Iterator<Item = BfdStatus> + '_ {
        self.sessions.values().map(Session::status)
    }

    /// Updates the deadlines of a session.
    fn schedule(&mut self, discriminator: u32) {
        let session = self.sessions.get(&discriminator);
        self.transmissions.set(discriminator, session.map_or(Instant::NEVER, Session::transmission));
        self.detections.set(discriminator, session.map_or(Instant::NEVER, Session::detection));
    }
}
