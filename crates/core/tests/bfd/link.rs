//! Two speakers on a link that delays, drops, duplicates and reorders packets. The link knows the truth about each
//! packet, and checks the packets on the wire and the reasons of failures against it.

use netstage_core::bfd::{BfdEvent, BfdPeer, BfdSessionConfig, BfdSpeaker, TTL};
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_wire::bfd::{BfdPacket, BfdState, Diagnostic, DigestKind, MAX_DIGEST};
use std::net::{IpAddr, Ipv4Addr};

/// Minimum transmit interval of sessions that are not up, microseconds.
const SLOW_US: u32 = 1_000_000;

/// Minimum interval before packets that signal a changed state.
const UPDATE: Duration = Duration::from_millis(10);

/// Session of a system with the other one.
pub const PEERS: [BfdPeer; 2] = [peer(2), peer(1)];

const fn peer(host: u8) -> BfdPeer {
    BfdPeer { interface: 1, address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)) }
}

/// Stands for a keyed digest.
pub fn digest(_: BfdPeer, kind: DigestKind, key: u8, bytes: &[u8]) -> Option<[u8; MAX_DIGEST]> {
    let sum = bytes.iter().fold(key, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte));
    Some([sum ^ kind.length() as u8; MAX_DIGEST])
}

/// A packet on the link.
#[derive(Clone)]
pub struct InFlight {
    pub to: usize,
    pub sent: Instant,
    pub arrives: Instant,
    pub bytes: Vec<u8>,
}

/// The truth about one system.
#[derive(Clone)]
struct Truth {
    is_up: bool,
    state: BfdState,
    /// The state has changed since the last transmission.
    is_changed: bool,
    /// Times of transmissions that are not responses to polls, since the start of the system.
    transmissions: Vec<Instant>,
    /// Last such packet, with the values of the other system's required interval since then, microseconds.
    last: Option<(Vec<u8>, Instant)>,
    required_us: Vec<u32>,
    /// Desired intervals that may be in effect, microseconds.
    desired_us: Vec<u32>,
    /// Last accepted packet: time of transmission and of arrival, and bytes.
    accepted: Option<(Instant, Instant, Vec<u8>)>,
    /// Time of transmission and intervals of the accepted packet that was sent last.
    newest: Option<(Instant, [u32; 2])>,
    /// Last time at which the system used intervals of a packet that was overtaken by one with other intervals.
    outdated: Instant,
    /// Configured required intervals that may be in effect.
    required: Vec<Duration>,
    /// A poll sequence has ended since the last transmission.
    is_poll_ended: bool,
    /// Last time at which the state Up ended.
    down: Instant,
    /// End of the last time in which the system was not called.
    stall_end: Instant,
    /// The configuration has changed since the last transmission.
    is_irregular: bool,
}

/// Properties of the link.
#[derive(Clone, Copy, Debug)]
pub struct LinkModel {
    pub delay: Duration,
    /// Maximum additional delay.
    pub spread: Duration,
    pub loss: f64,
    pub duplicates: f64,
    pub is_cut: bool,
}

pub struct Link {
    pub now: Instant,
    pub model: LinkModel,
    pub configs: [BfdSessionConfig; 2],
    pub speakers: [BfdSpeaker; 2],
    pub in_flight: Vec<InFlight>,
    pub random: RandomStream,
    /// Time until which a system is not called.
    pub stalled_until: [Instant; 2],
    /// Events of the state Up, and of the state Down by diagnostic.
    pub ups: usize,
    pub downs: Vec<(usize, Diagnostic, Instant)>,
    /// Failures because the last packet of a system was overtaken by an earlier one with other intervals: without
    /// sequence numbers, a system cannot notice it.
    pub overtaken: usize,
    truths: [Truth; 2],
    instances: u64,
}

impl Link {
    pub fn new(seed: u64, configs: [BfdSessionConfig; 2], model: LinkModel) -> Link {
        let truth = Truth {
            is_up: false,
            state: BfdState::Down,
            is_changed: false,
            transmissions: Vec::new(),
            last: None,
            required_us: Vec::new(),
            desired_us: Vec::new(),
            accepted: None,
            newest: None,
            outdated: Instant::ZERO,
            required: Vec::new(),
            is_poll_ended: false,
            down: Instant::ZERO,
            stall_end: Instant::ZERO,
            is_irregular: false,
        };
        let mut link = Link {
            now: Instant::ZERO,
            model,
            configs,
            speakers: [BfdSpeaker::new(1, seed), BfdSpeaker::new(1, seed + 1)],
            in_flight: Vec::new(),
            random: RandomStream::new(seed, "bfd link"),
            stalled_until: [Instant::ZERO; 2],
            ups: 0,
            downs: Vec::new(),
            overtaken: 0,
            truths: [truth.clone(), truth],
            instances: seed << 16,
        };
        link.restart(0);
        link.restart(1);
        link
    }

    /// Replaces a speaker by a new one without state.
    pub fn restart(&mut self, system: usize) {
        self.instances += 1;
        self.speakers[system] = BfdSpeaker::new(1, self.instances);
        let truth = &mut self.truths[system];
        (truth.is_up, truth.last, truth.accepted, truth.newest) = (false, None, None, None);
        truth.transmissions.clear();
        truth.required.clear();
        self.configure(system, self.configs[system].clone());
    }

    pub fn configure(&mut self, system: usize, config: BfdSessionConfig) {
        let truth = &mut self.truths[system];
        truth.is_irregular = true;
        truth.required.push(config.required_min_rx);
        self.speakers[system].set_session(PEERS[system], config.clone()).unwrap();
        self.configs[system] = config;
        self.drain(system);
    }

    pub fn are_both_up(&self) -> bool {
        self.truths.iter().all(|truth| truth.is_up)
    }

    /// Returns the detection time of a settled session, by the configurations.
    pub fn detection_time(&self, system: usize) -> Duration {
        let (own, other) = (&self.configs[system], &self.configs[1 - system]);
        own.required_min_rx.max(other.desired_min_tx) * u64::from(other.detect_multiplier)
    }

    /// Returns the transmit interval of a settled session, by the configurations.
    pub fn interval(&self, system: usize) -> Duration {
        self.configs[system].desired_min_tx.max(self.configs[1 - system].required_min_rx)
    }

    /// Forgets the intervals before the last change: poll sequences have ended.
    pub fn settle(&mut self) {
        for truth in &mut self.truths {
            truth.required.drain(..truth.required.len() - 1);
        }
    }

    /// Runs for a time.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let timeouts = [0, 1].map(|system| {
                let arrival = self.in_flight.iter().filter(|packet| packet.to == system);
                let arrival = arrival.map(|packet| packet.arrives).min().unwrap_or(Instant::NEVER);
                arrival.min(self.speakers[system].poll_timeout()).max(self.stalled_until[system])
            });
            let system = usize::from(timeouts[1] < timeouts[0]);
            if timeouts[system] > end {
                break;
            }
            self.now = self.now.max(timeouts[system]);
            self.call(system);
        }
        self.now = end;
    }

    /// Calls a system as its driver does: first the packets with their arrival times, then the timeout.
    fn call(&mut self, system: usize) {
        let now = self.now;
        let (mut arrived, others) = std::mem::take(&mut self.in_flight)
            .into_iter()
            .partition::<Vec<_>, _>(|packet| packet.to == system && packet.arrives <= now);
        self.in_flight = others;
        arrived.sort_by_key(|packet| packet.arrives);
        for packet in arrived {
            self.deliver(packet);
        }
        self.speakers[system].handle_timeout(now);
        self.check_events(system, None);
        self.drain(system);
    }

    fn deliver(&mut self, packet: InFlight) {
        let system = packet.to;
        let before = self.speakers[system].counters();
        self.speakers[system].handle_packet(packet.arrives, PEERS[system], TTL, &packet.bytes, Some(&digest));
        let after = self.speakers[system].counters();
        let is_accepted = after.received + after.admin_down > before.received + before.admin_down;
        self.check_events(system, is_accepted.then_some(&packet));
        if is_accepted {
            let fields = BfdPacket::read(&packet.bytes).unwrap();
            let truth = &mut self.truths[system];
            truth.required_us.push(fields.required_min_rx_us);
            let is_polling = |last: &[u8]| BfdPacket::read(last).unwrap().is_poll;
            truth.is_poll_ended |=
                fields.is_final && truth.last.as_ref().is_some_and(|(last, _)| is_polling(last));
            let intervals = [fields.desired_min_tx_us, fields.required_min_rx_us];
            match truth.newest {
                Some((sent, newest)) if sent > packet.sent => {
                    if newest != intervals {
                        truth.outdated = Instant::NEVER;
                    }
                }
                _ => {
                    truth.outdated = truth.outdated.min(packet.arrives);
                    truth.newest = Some((packet.sent, intervals));
                }
            }
            truth.accepted = Some((packet.sent, packet.arrives, packet.bytes));
        }
    }

    fn check_events(&mut self, system: usize, accepted: Option<&InFlight>) {
        while let Some(event) = self.speakers[system].poll_event() {
            match event {
                BfdEvent::Up { peer } => {
                    assert_eq!((peer, self.truths[system].is_up), (PEERS[system], false));
                    assert!(self.configs[system].is_enabled && accepted.is_some());
                    self.truths[system].is_up = true;
                    self.ups += 1;
                }
                BfdEvent::Down { peer, diagnostic, remote_state, .. } => {
                    assert_eq!((peer, self.truths[system].is_up), (PEERS[system], true));
                    self.truths[system].is_up = false;
                    self.truths[system].down = self.now;
                    self.downs.push((system, diagnostic, self.now));
                    self.overtaken +=
                        usize::from(!self.check_down(system, diagnostic, remote_state, accepted));
                }
            }
        }
        let status = self.speakers[system].session(PEERS[system]).unwrap();
        assert_eq!(status.state == BfdState::Up, self.truths[system].is_up);
        self.truths[system].is_changed |= status.state != self.truths[system].state;
        self.truths[system].state = status.state;
        if status.remote_discriminator == 0 {
            self.truths[system].required_us.push(1);
        }
    }

    /// Checks the reason for a failure. Returns whether it is one that a system can know.
    fn check_down(
        &self,
        system: usize,
        diagnostic: Diagnostic,
        remote_state: BfdState,
        accepted: Option<&InFlight>,
    ) -> bool {
        match diagnostic {
            Diagnostic::ADMINISTRATIVELY_DOWN => assert!(!self.configs[system].is_enabled),
            Diagnostic::NEIGHBOR_SIGNALED_SESSION_DOWN => {
                let fields = BfdPacket::read(&accepted.expect("a packet").bytes).unwrap();
                assert_eq!(fields.state, remote_state);
                assert!(matches!(fields.state, BfdState::Down | BfdState::AdminDown));
            }
            Diagnostic::CONTROL_DETECTION_TIME_EXPIRED => return self.check_silence(system, accepted),
            other => panic!("{other}"),
        }
        true
    }

    /// Checks that a system was silent for the detection time, because enough of its packets were lost. Returns `false`
    /// if one of the systems used outdated intervals.
    fn check_silence(&self, system: usize, next: Option<&InFlight>) -> bool {
        let truth = &self.truths[system];
        let (sent, arrived, bytes) = truth.accepted.as_ref().expect("a packet");
        let fields = BfdPacket::read(bytes).unwrap();
        let desired = Duration::from_micros(fields.desired_min_tx_us.into());
        let multiplier = u64::from(fields.detect_multiplier);
        let bounds = [truth.required.iter().min(), truth.required.iter().max()];
        let [min, max] = bounds.map(|required| desired.max(*required.unwrap()) * multiplier);
        let end = next.map_or(self.now, |packet| packet.arrives);
        assert!(end >= *arrived + min, "down after {:?}, not {min:?}", end.since(*arrived));
        let is_stalled = truth.stall_end >= *arrived;
        assert!(is_stalled || end <= *arrived + max, "down after {:?}, not {max:?}", end.since(*arrived));
        let other = &self.truths[1 - system];
        let has_started = other.transmissions.first().is_some_and(|first| first < sent);
        // A system that was not called, has restarted or is not up has sent fewer packets.
        if other.stall_end >= *sent || !has_started || !other.is_up || other.down >= *sent {
            return true;
        }
        if truth.outdated >= *sent || other.outdated >= *sent {
            return false;
        }
        // All packets that were sent in this time were lost, or discarded as reordered ones.
        let last = Instant((arrived.0 + min.0).saturating_sub(self.model.delay.0 + self.model.spread.0));
        let lost = other.transmissions.iter().filter(|at| *at > sent && **at <= last).count() as u64;
        let needed = last.since(*sent).0 / (max.0 / multiplier);
        assert!(lost >= needed, "down after {lost} lost packets, not {needed}");
        true
    }

    /// Sends the packets that are due.
    pub fn drain(&mut self, system: usize) {
        self.check_events(system, None);
        while let Some(transmit) = self.speakers[system].poll_transmit(self.now, Some(&digest)) {
            self.check_transmission(system, &transmit.bytes);
            let copies = 1 + usize::from(self.random.chance(self.model.duplicates));
            for _ in 0..copies {
                let delay = self.model.delay + Duration(self.random.below(self.model.spread.0 + 1));
                if !self.model.is_cut && !self.random.chance(self.model.loss) {
                    let (to, sent, arrives) = (1 - system, self.now, self.now + delay);
                    self.in_flight.push(InFlight { to, sent, arrives, bytes: transmit.bytes.clone() });
                }
            }
        }
    }

    /// Checks the interval since the last transmission.
    fn check_transmission(&mut self, system: usize, bytes: &[u8]) {
        let packet = BfdPacket::read(bytes).expect("a valid packet");
        assert!(packet.state == BfdState::Up || packet.desired_min_tx_us >= SLOW_US);
        assert!(!packet.is_poll || !packet.is_final);
        if packet.is_final {
            return;
        }
        let truth = &mut self.truths[system];
        truth.transmissions.push(self.now);
        let previous = truth.last.replace((bytes.to_vec(), self.now));
        let is_irregular = std::mem::take(&mut truth.is_irregular);
        truth.desired_us.retain(|desired| *desired != packet.desired_min_tx_us);
        truth.desired_us.push(packet.desired_min_tx_us);
        let (min, max) = (
            (truth.desired_us.iter().min().unwrap()).max(truth.required_us.iter().min().unwrap_or(&1)),
            (truth.desired_us.iter().max().unwrap()).max(truth.required_us.iter().max().unwrap_or(&1)),
        );
        let [min, max] = [min, max].map(|us| Duration::from_micros(u64::from(*us)));
        let stall_end = truth.stall_end;
        let is_changed = std::mem::take(&mut truth.is_changed);
        let mut is_poll_ended = std::mem::take(&mut truth.is_poll_ended);
        if let Some((last, at)) = previous {
            let last = BfdPacket::read(&last).unwrap();
            is_poll_ended &= last.desired_min_tx_us == packet.desired_min_tx_us;
            let interval = self.now.since(at);
            let percent = if last.detect_multiplier == 1 { 90 } else { 100 };
            let is_irregular = is_irregular || stall_end >= at;
            let is_late = interval > max * percent / 100;
            assert!(!is_late || is_irregular, "{system}: {interval:?} after the last, max {max:?}");
            let is_early = interval < min * 3 / 4;
            let is_update = is_changed && interval >= UPDATE;
            assert!(
                !is_early || is_update || is_irregular,
                "{system}: {interval:?} after the last, min {min:?}"
            );
        }
        truth.required_us.drain(..truth.required_us.len().saturating_sub(1));
        // After the end of a poll sequence, only the advertised interval is in effect.
        if is_poll_ended || packet.state != BfdState::Up || !packet.is_poll {
            truth.desired_us.drain(..truth.desired_us.len() - 1);
        }
    }

    /// Stops calling a system for a time.
    pub fn stall(&mut self, system: usize, time: Duration) {
        self.stalled_until[system] = self.now + time;
        self.truths[system].stall_end = self.now + time;
    }
}
