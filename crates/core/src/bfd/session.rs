//! A session: its state (RFC 5880 sections 6.2 and 6.8.6), the negotiation of its intervals with poll sequences
//! (6.5 and 6.8.3), and its timers (6.8.4 and 6.8.7).

use super::{BfdEvent, BfdPeer, BfdSessionConfig, BfdStatus, Sequences};
use crate::rng::RandomStream;
use crate::time::{Duration, Instant};
use netstage_wire::bfd::{BfdPacket, BfdState, Diagnostic};

/// Minimum transmit interval of a session that is not up (RFC 5880 section 6.8.3).
const SLOW: Duration = Duration::from_secs(1);
/// Minimum interval before a packet that signals a changed state. On a link that reorders and duplicates packets, two
/// systems that answer each change at once could cause an endless storm of packets.
const UPDATE: Duration = Duration::from_millis(10);
/// Denominator of random jitter: a value below it is the part of 25 % by which an interval exceeds 75 %.
const JITTER: u64 = 1 << 16;

/// Parameters of this system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parameters {
    desired_min_tx: Duration,
    required_min_rx: Duration,
    detect_multiplier: u8,
}

/// State of the remote system, from its last packet.
#[derive(Clone, Copy, Debug)]
struct Remote {
    /// Zero while unknown.
    discriminator: u32,
    state: BfdState,
    diagnostic: Diagnostic,
    is_demand: bool,
    detect_multiplier: u8,
    desired_min_tx: Duration,
    required_min_rx: Duration,
}

impl Default for Remote {
    fn default() -> Remote {
        Remote {
            discriminator: 0,
            state: BfdState::Down,
            diagnostic: Diagnostic::NONE,
            is_demand: false,
            detect_multiplier: 0,
            desired_min_tx: Duration::ZERO,
            required_min_rx: Duration::from_micros(1),
        }
    }
}

/// Progress of a poll sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Poll {
    Idle,
    /// The next packet has the poll bit.
    Due,
    /// A packet with the poll bit was sent.
    Active,
    /// A packet with the final bit was received. The next sequence begins after a packet without it, because more
    /// responses to this sequence may follow (RFC 5880 section 6.8.3).
    Finished,
}

/// A session.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub peer: BfdPeer,
    pub config: BfdSessionConfig,
    pub sequences: Sequences,
    discriminator: u32,
    state: BfdState,
    diagnostic: Diagnostic,
    remote: Remote,
    /// Parameters in transmitted packets.
    advertised: Parameters,
    /// Transmit interval and required interval in effect: the advertised ones, except that an increase of the former
    /// and a decrease of the latter wait for the end of the poll sequence.
    desired_min_tx: Duration,
    required_min_rx: Duration,
    poll: Poll,
    /// A poll is to be answered.
    is_final_due: bool,
    /// A changed state is to be sent before the next periodic packet.
    is_update_due: bool,
    /// Last transmission that was not a response to a poll.
    transmitted: Option<Instant>,
    /// Jitter of the next periodic packet.
    jitter: u64,
    /// Arrival of the last accepted packet; `None` if its detection time has expired, and the sequence number with it.
    received: Option<Instant>,
    packets: Packets,
}

/// Numbers of packets.
#[derive(Clone, Copy, Debug, Default)]
struct Packets {
    received: u64,
    sent: u64,
}

impl Session {
    pub fn new(
        peer: BfdPeer,
        config: BfdSessionConfig,
        discriminator: u32,
        random: &mut RandomStream,
    ) -> Session {
        let state = if config.is_enabled { BfdState::Down } else { BfdState::AdminDown };
        let advertised = parameters(&config, state);
        Session {
            peer,
            sequences: Sequences { transmit: random.next_u64() as u32, received: None },
            discriminator,
            state,
            diagnostic: if config.is_enabled { Diagnostic::NONE } else { Diagnostic::ADMINISTRATIVELY_DOWN },
            remote: Remote::default(),
            advertised,
            desired_min_tx: advertised.desired_min_tx,
            required_min_rx: advertised.required_min_rx,
            poll: Poll::Idle,
            is_final_due: false,
            is_update_due: true,
            transmitted: None,
            jitter: 0,
            received: None,
            packets: Packets::default(),
            config,
        }
    }

    /// Changes the configuration.
    pub fn set_config(&mut self, config: BfdSessionConfig) -> Option<BfdEvent> {
        if config.authentication != self.config.authentication {
            self.sequences.received = None;
        }
        self.config = config;
        match (self.config.is_enabled, self.state) {
            (true, BfdState::AdminDown) => self.set_state(BfdState::Down, Diagnostic::NONE),
            (false, BfdState::Down | BfdState::Init | BfdState::Up) => {
                self.set_state(BfdState::AdminDown, Diagnostic::ADMINISTRATIVELY_DOWN)
            }
            _ => {
                self.negotiate();
                None
            }
        }
    }

    /// Changes the state. The diagnostic of a failure is kept until the session is up again.
    fn set_state(&mut self, state: BfdState, diagnostic: Diagnostic) -> Option<BfdEvent> {
        let was_up = self.state == BfdState::Up;
        self.state = state;
        if state != BfdState::Init {
            self.diagnostic = diagnostic;
        }
        self.is_update_due = true;
        let parameters = parameters(&self.config, state);
        if parameters != self.advertised {
            self.advertise(parameters);
        }
        // No change that comes with a change of the state waits for a poll sequence.
        self.apply();
        match (was_up, state == BfdState::Up) {
            (false, true) => Some(BfdEvent::Up { peer: self.peer }),
            (true, false) => Some(BfdEvent::Down {
                peer: self.peer,
                diagnostic,
                remote_state: self.remote.state,
                remote_diagnostic: self.remote.diagnostic,
            }),
            _ => None,
        }
    }

    /// Advertises changed parameters, unless an earlier poll sequence is in progress.
    fn negotiate(&mut self) {
        let parameters = parameters(&self.config, self.state);
        let is_up = self.state == BfdState::Up;
        if parameters == self.advertised || is_up && self.poll != Poll::Idle {
            return;
        }
        self.advertise(parameters);
        if is_up {
            self.desired_min_tx = self.desired_min_tx.min(parameters.desired_min_tx);
            self.required_min_rx = self.required_min_rx.max(parameters.required_min_rx);
        } else {
            self.apply();
        }
    }

    fn advertise(&mut self, parameters: Parameters) {
        self.advertised = parameters;
        self.poll = Poll::Due;
    }

    /// Puts the advertised intervals into effect.
    fn apply(&mut self) {
        self.desired_min_tx = self.advertised.desired_min_tx;
        self.required_min_rx = self.advertised.required_min_rx;
    }

    /// Handles a packet of this session that has passed authentication. Returns `false` in the state AdminDown, in
    /// which packets are discarded.
    pub fn handle_packet(&mut self, arrived: Instant, packet: &BfdPacket<'_>) -> (bool, Option<BfdEvent>) {
        self.received = Some(self.received.map_or(arrived, |last| last.max(arrived)));
        self.remote = Remote {
            discriminator: packet.my_discriminator,
            state: packet.state,
            diagnostic: packet.diagnostic,
            is_demand: packet.is_demand,
            detect_multiplier: packet.detect_multiplier,
            desired_min_tx: Duration::from_micros(packet.desired_min_tx_us.into()),
            required_min_rx: Duration::from_micros(packet.required_min_rx_us.into()),
        };
        match (self.poll, packet.is_final) {
            (Poll::Active, true) => {
                self.poll = Poll::Finished;
                self.apply();
            }
            (Poll::Finished, false) => {
                self.poll = Poll::Idle;
                self.negotiate();
            }
            _ => {}
        }
        if self.state == BfdState::AdminDown {
            return (false, None);
        }
        self.packets.received += 1;
        self.is_final_due |= packet.is_poll;
        let signaled = Diagnostic::NEIGHBOR_SIGNALED_SESSION_DOWN;
        let event = match (self.state, packet.state) {
            (BfdState::Init | BfdState::Up, BfdState::AdminDown) | (BfdState::Up, BfdState::Down) => {
                self.set_state(BfdState::Down, signaled)
            }
            (BfdState::Down, BfdState::Down) => self.set_state(BfdState::Init, Diagnostic::NONE),
            (BfdState::Down, BfdState::Init) | (BfdState::Init, BfdState::Init | BfdState::Up) => {
                self.set_state(BfdState::Up, Diagnostic::NONE)
            }
            _ => None,
        };
        (true, event)
    }

    /// Returns the detection time (RFC 5880 section 6.8.4).
    fn detection_time(&self) -> Duration {
        self.required_min_rx.max(self.remote.desired_min_tx) * u64::from(self.remote.detect_multiplier)
    }

    /// Returns the time at which the silence of the remote system is handled: the detection time after its last
    /// packet, and twice that for the sequence number (RFC 5880 section 6.8.1).
    pub fn detection(&self) -> Instant {
        match self.received {
            None => Instant::NEVER,
            Some(last) if self.remote.discriminator != 0 => last + self.detection_time(),
            Some(last) => last + self.detection_time() * 2,
        }
    }

    /// Returns whether the session goes down at [`detection`](Session::detection).
    pub fn is_detecting(&self) -> bool {
        matches!(self.state, BfdState::Init | BfdState::Up)
    }

    /// Handles the expiry of [`detection`](Session::detection).
    pub fn handle_silence(&mut self) -> Option<BfdEvent> {
        if self.remote.discriminator == 0 {
            self.sequences.received = None;
        }
        if self.remote.discriminator == 0 || self.sequences.received.is_none() {
            self.received = None;
        }
        // The multiplier and the interval are kept for the time of the sequence number.
        let Remote { detect_multiplier, desired_min_tx, .. } = self.remote;
        self.remote = Remote { detect_multiplier, desired_min_tx, ..Remote::default() };
        self.is_final_due = false;
        match self.state {
            BfdState::Init | BfdState::Up => {
                self.set_state(BfdState::Down, Diagnostic::CONTROL_DETECTION_TIME_EXPIRED)
            }
            BfdState::Down | BfdState::AdminDown => {
                self.negotiate();
                None
            }
        }
    }

    fn is_polling(&self) -> bool {
        matches!(self.poll, Poll::Due | Poll::Active)
    }

    /// Returns the transmit interval without jitter, or `None` if no periodic packets are sent.
    fn transmit_interval(&self) -> Option<Duration> {
        let are_both_up = self.state == BfdState::Up && self.remote.state == BfdState::Up;
        let is_demand = self.remote.is_demand && are_both_up && !self.is_polling();
        let is_periodic = self.remote.required_min_rx > Duration::ZERO && !is_demand;
        is_periodic.then(|| self.desired_min_tx.max(self.remote.required_min_rx))
    }

    /// Returns the time of the next transmission.
    pub fn transmission(&self) -> Instant {
        let Some(last) = self.transmitted.filter(|_| !self.is_final_due) else { return Instant::ZERO };
        let update = if self.is_update_due { last + UPDATE } else { Instant::NEVER };
        let periodic = self.transmit_interval().map_or(Instant::NEVER, |interval| {
            last + Duration(interval.0 / 4 * 3 + interval.0 / 4 * self.jitter / JITTER)
        });
        update.min(periodic)
    }

    /// Returns the packet to be sent now, without authentication.
    pub fn transmit(&mut self, now: Instant, random: &mut RandomStream) -> BfdPacket<'static> {
        self.packets.sent += 1;
        let is_final = core::mem::take(&mut self.is_final_due);
        // A response does not replace a periodic packet, so that polls cannot delay the poll bit of this system.
        if !is_final {
            self.is_update_due = false;
            self.transmitted = Some(now);
            if self.poll == Poll::Due {
                self.poll = Poll::Active;
            }
            // With a multiplier of 1, an interval has at most 90 %.
            let bound = if self.advertised.detect_multiplier == 1 { JITTER * 3 / 5 } else { JITTER };
            self.jitter = random.below(bound);
        }
        let us = |interval: Duration| u32::try_from(interval.0 / 1_000).unwrap_or(u32::MAX);
        BfdPacket {
            diagnostic: self.diagnostic,
            state: self.state,
            is_poll: self.is_polling() && !is_final,
            is_final,
            is_control_plane_independent: false,
            is_demand: false,
            detect_multiplier: self.advertised.detect_multiplier,
            my_discriminator: self.discriminator,
            your_discriminator: self.remote.discriminator,
            desired_min_tx_us: us(self.advertised.desired_min_tx),
            required_min_rx_us: us(self.advertised.required_min_rx),
            required_min_echo_rx_us: 0,
            authentication: None,
        }
    }

    pub fn status(&self) -> BfdStatus {
        BfdStatus {
            peer: self.peer,
            state: self.state,
            diagnostic: self.diagnostic,
            discriminator: self.discriminator,
            remote_state: self.remote.state,
            remote_diagnostic: self.remote.diagnostic,
            remote_discriminator: self.remote.discriminator,
            remote_desired_min_tx: self.remote.desired_min_tx,
            remote_required_min_rx: self.remote.required_min_rx,
            remote_detect_multiplier: self.remote.detect_multiplier,
            transmit_interval: self.transmit_interval(),
            detection_time: (self.remote.discriminator != 0).then(|| self.detection_time()),
            received: self.packets.received,
            sent: self.packets.sent,
        }
    }
}

/// Returns the parameters to be advertised in a state. Intervals are whole microseconds, not zero.
fn parameters(config: &BfdSessionConfig, state: BfdState) -> Parameters {
    let whole =
        |interval: Duration| Duration::from_micros(interval.0.div_ceil(1_000).clamp(1, u32::MAX.into()));
    let min = if state == BfdState::Up { Duration::ZERO } else { SLOW };
    Parameters {
        desired_min_tx: whole(config.desired_min_tx.max(min)),
        required_min_rx: whole(config.required_min_rx),
        detect_multiplier: config.detect_multiplier.max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{IpAddr, Ipv4Addr};

    #[test]
    fn intervals_have_the_jitter_of_the_rfc() {
        let mut random = RandomStream::new(1, "jitter");
        for (detect_multiplier, max) in [(1, 900), (2, 1_000), (255, 1_000)] {
            let peer = BfdPeer { interface: 1, address: IpAddr::V4(Ipv4Addr::LOCALHOST) };
            let config = BfdSessionConfig { detect_multiplier, ..BfdSessionConfig::default() };
            let mut session = Session::new(peer, config, 7, &mut random);
            let mut now = Instant::ZERO;
            let (mut shortest, mut longest) = (u64::MAX, 0);
            for _ in 0..10_000 {
                session.transmit(now, &mut random);
                let interval = session.transmission().since(now);
                assert!(interval >= Duration::from_millis(750) && interval < Duration::from_millis(max));
                (shortest, longest) = (shortest.min(interval.0), longest.max(interval.0));
                now += interval;
            }
            assert!(shortest < 751_000_000 && longest > max * 1_000_000 - 1_000_000);
        }
    }

    #[test]
    fn parameters_are_in_range() {
        let config = BfdSessionConfig {
            desired_min_tx: Duration(1_500),
            required_min_rx: Duration::ZERO,
            detect_multiplier: 0,
            ..BfdSessionConfig::default()
        };
        let up = parameters(&config, BfdState::Up);
        assert_eq!((up.desired_min_tx, up.required_min_rx), (Duration(2_000), Duration(1_000)));
        assert_eq!((up.detect_multiplier, parameters(&config, BfdState::Down).desired_min_tx), (1, SLOW));
        let config = BfdSessionConfig { desired_min_tx: Duration(u64::MAX), ..config };
        assert_eq!(parameters(&config, BfdState::Up).desired_min_tx.0, u64::from(u32::MAX) * 1_000);
    }
}
