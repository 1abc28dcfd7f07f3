//! Sender and reflector over a path that delays, loses, reorders and forges packets.

use super::*;
use crate::rng::RandomStream;
use crate::time::Duration;
use alloc::vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use netstage_wire::stamp::tlv::{FixedTlv, FollowUpTelemetry, kind};
use netstage_wire::stamp::{ReflectorPacket, TimestampFormat};

/// Wall clock at the start of a run, nanoseconds since 1970.
const START: u64 = 1_795_255_703_000_000_000;

/// Stand-in for HMAC-SHA-256: any function of key and text is sufficient.
fn mac(parts: &[&[u8]]) -> [u8; DIGEST] {
    let mut hash = 0xcbf2_9ce4_8422_2325_u128;
    for byte in parts.iter().copied().flatten() {
        hash = (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    hash.to_be_bytes()
}

fn moment(nanoseconds: u64) -> ClockReading {
    ClockReading { instant: Instant(nanoseconds), unix: START + nanoseconds }
}

fn arrival(nanoseconds: u64) -> ReceivedPacketInfo {
    let address = |last, port| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), port);
    ReceivedPacketInfo {
        instant: Instant(nanoseconds),
        unix: START + nanoseconds,
        source: address(1, 40_000),
        destination: address(2, 862),
        ttl: 61,
        dscp: 10,
        ecn: 1,
    }
}

/// One-way delays of the path and the time at the reflector, nanoseconds.
const FORWARD: u64 = 3_000_000;
const BACKWARD: u64 = 5_000_000;
const AT_REFLECTOR: u64 = 40_000;

struct StampPath {
    sender: SessionSender,
    reflector: SessionReflector,
    samples: Vec<StampSample>,
}

impl StampPath {
    fn new(sender: SenderConfig, reflector: ReflectorConfig) -> StampPath {
        let sender = SessionSender::new(sender, Instant(0));
        StampPath { sender, reflector: SessionReflector::new(reflector), samples: Vec::new() }
    }

    /// Runs the session. The predicates select the packets lost in each direction.
    fn run(
        &mut self,
        lost_forward: impl Fn(u32) -> bool,
        lost_backward: impl Fn(u32) -> bool,
    ) -> SenderResult {
        let mut bytes = Vec::new();
        let mut sequence = 0;
        while let Some(at) = self.sender.poll_timeout() {
            let now = at.0;
            if !self.sender.poll_transmit(moment(now), Some(&mac), &mut bytes) {
                continue;
            }
            let number = sequence;
            sequence += 1;
            if lost_forward(number) {
                continue;
            }
            let mut reply = Vec::new();
            let sending = || START + now + FORWARD + AT_REFLECTOR;
            self.reflector.reflect(&bytes, &arrival(now + FORWARD), Some(&mac), sending, &mut reply).unwrap();
            assert_eq!(reply.len(), bytes.len());
            if !lost_backward(number) {
                let received = moment(now + FORWARD + AT_REFLECTOR + BACKWARD);
                self.samples.push(self.sender.handle_packet(&reply, received, Some(&mac)).unwrap());
            }
        }
        self.sender.result()
    }
}

#[test]
fn measured_delays_match_the_path() {
    for mode in [Mode::Unauthenticated, Mode::Authenticated] {
        for format in [TimestampFormat::Ntp, TimestampFormat::Ptp] {
            let clock_error = (1000, true);
            let sender = SenderConfig { mode, clock_error, ..SenderConfig::default() };
            let reflector = ReflectorConfig { mode, format, clock_error, ..ReflectorConfig::default() };
            let mut path = StampPath::new(sender, reflector);
            let result = path.run(|_| false, |_| false);
            assert_eq!((result.sent, result.answered, result.outstanding), (100, 100, 0));
            for sample in &path.samples {
                assert!(sample.round_trip.abs_diff((FORWARD + BACKWARD) as i64) <= 1, "{sample:?}");
                assert!(
                    sample.forward.abs_diff(FORWARD as i64) <= 1
                        && sample.backward.abs_diff(BACKWARD as i64) <= 1
                );
                assert_eq!((sample.sequence, sample.ttl_at_reflector), (sample.reflector_sequence, 61));
                assert!((2000..2100).contains(&sample.uncertainty.unwrap()));
            }
        }
    }
}

#[test]
fn a_step_of_the_reflectors_clock_is_reported() {
    let mut sender = SessionSender::new(SenderConfig::default(), Instant(0));
    let mut reflector = SessionReflector::new(ReflectorConfig::default());
    for (at, step, expected) in [
        (0, 0, Ok(())),
        (100_000_000, -3_000_000_000, Err(RejectReason::ReflectorClock)),
        (200_000_000, 3_000_000_000, Err(RejectReason::ReflectorClock)),
        (300_000_000, 0, Ok(())),
    ] {
        let (mut bytes, mut reply) = (Vec::new(), Vec::new());
        assert!(sender.poll_transmit(moment(at), Some(&mac), &mut bytes));
        let sending = || (START + at + FORWARD + AT_REFLECTOR).wrapping_add_signed(step);
        reflector.reflect(&bytes, &arrival(at + FORWARD), Some(&mac), sending, &mut reply).unwrap();
        let received = moment(at + FORWARD + AT_REFLECTOR + BACKWARD);
        assert_eq!(sender.handle_packet(&reply, received, Some(&mac)).map(drop), expected, "{step}");
    }
    let result = sender.result();
    assert_eq!((result.answered, result.rejected), (4, 2), "no packet counts as lost");
}

#[test]
fn loss_is_counted_per_direction() {
    let mut path = StampPath::new(SenderConfig::default(), ReflectorConfig::default());
    // Three packets are lost forward and five backward. The direction of the last two is unknown.
    let forward = |number: u32| number % 30 == 7 && number < 90;
    let backward = |number: u32| number % 20 == 3;
    let result =
        path.run(|number| forward(number) || number == 99, |number| backward(number) || number == 98);
    let expected = SenderResult {
        skipped: 0,
        sent: 100,
        answered: 90,
        lost_forward: 3,
        lost_backward: 5,
        lost_unattributed: 2,
        ..SenderResult::default()
    };
    assert_eq!(result, expected);
    let stateless = SenderConfig { reflector_is_stateful: false, ..SenderConfig::default() };
    let reflector = ReflectorConfig { stateful: false, ..ReflectorConfig::default() };
    let result = StampPath::new(stateless, reflector).run(forward, backward);
    assert_eq!((result.lost_forward, result.lost_backward, result.lost_unattributed), (0, 0, 8));
}

#[test]
fn unsynchronized_clocks_have_no_error_bound() {
    let mut path = StampPath::new(SenderConfig::default(), ReflectorConfig::default());
    path.run(|_| false, |_| false);
    assert!(path.samples.iter().all(|sample| sample.uncertainty.is_none()));
}

#[test]
fn extensions_are_answered() {
    for mode in [Mode::Unauthenticated, Mode::Authenticated] {
        let sender = SenderConfig {
            mode,
            session: 77,
            class_of_service: Some(46),
            direct_measurement: true,
            timestamp_information: true,
            padding: Some(300),
            ..SenderConfig::default()
        };
        let mut path = StampPath::new(sender, ReflectorConfig { mode, ..ReflectorConfig::default() });
        path.run(|number| number == 4, |_| false);
        let last = path.samples.last().unwrap();
        let class = last.class_of_service.unwrap();
        assert_eq!(
            (class.requested_dscp, class.received_dscp, class.received_ecn, class.reverse_path),
            (46, 10, 1, 0)
        );
        let counters = last.direct_measurement.unwrap();
        assert_eq!(
            (counters.sender_sent, counters.reflector_received, counters.reflector_sent),
            (100, 99, 99)
        );
        assert_eq!(last.timestamp_information.unwrap().method_in, 2);
    }
}

/// Returns an unauthenticated packet with these TLVs.
fn with_tlvs(tlvs: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; Mode::Unauthenticated.base()];
    bytes.extend_from_slice(tlvs);
    bytes
}

fn reflected(packet: &[u8], config: ReflectorConfig) -> Result<Vec<u8>, RejectReason> {
    let mut reply = Vec::new();
    let mut reflector = SessionReflector::new(config);
    reflector.reflect(packet, &arrival(0), Some(&mac), || START, &mut reply).map(|_| reply)
}

#[test]
fn reply_flags_mark_unknown_and_malformed_tlvs() {
    let mut tlvs = vec![0x80, 200, 0, 1, 9, 0x80, kind::CLASS_OF_SERVICE, 0, 3, 1, 2, 3];
    tlvs.extend([0x80, kind::EXTRA_PADDING, 0, 0, 0x80, kind::LOCATION, 0xff, 0xff, 0]);
    let reply = reflected(&with_tlvs(&tlvs), ReflectorConfig::default()).unwrap();
    let flags = [44, 49, 56, 60].map(|place| reply[place]);
    assert_eq!(flags, [0x80, 0x40, 0, 0x40]);
}

#[test]
fn locations_are_reported_only_if_configured() {
    let mut tlvs = vec![0x80, kind::LOCATION, 0, 24, 0, 0, 0, 0, 0x80, 7, 0, 16];
    tlvs.resize(28, 0);
    let reply = reflected(&with_tlvs(&tlvs), ReflectorConfig::default()).unwrap();
    assert_eq!(reply[44..60], [0, kind::LOCATION, 0, 24, 3, 94, 0x9c, 0x40, 0, 8, 0, 16, 10, 0, 0, 1]);
    let silent = ReflectorConfig { reports_location: false, ..ReflectorConfig::default() };
    let reply = reflected(&with_tlvs(&tlvs), silent).unwrap();
    assert_eq!(reply[44..60], [0, kind::LOCATION, 0, 24, 0, 0, 0, 0, 0, 7, 0, 16, 0, 0, 0, 0]);
}

#[test]
fn follow_up_telemetry_reports_the_previous_reply() {
    let mut tlvs = vec![0x80, kind::FOLLOW_UP_TELEMETRY, 0, 16];
    tlvs.resize(20, 0);
    let (packet, mut reflector) = (with_tlvs(&tlvs), SessionReflector::new(ReflectorConfig::default()));
    let mut reply = Vec::new();
    let [first, second] = [0, 1].map(|second| {
        let time = START + second * 1_000_000_000;
        reflector.reflect(&packet, &arrival(0), None, || time, &mut reply).unwrap();
        let sent = ReflectorPacket::read(&reply, Mode::Unauthenticated).unwrap().timestamp;
        (FollowUpTelemetry::read(&reply[48..]).unwrap(), sent)
    });
    assert_eq!((first.0, second.0.timestamp), (FollowUpTelemetry::default(), first.1));
}

#[test]
fn forged_and_foreign_packets_are_rejected() {
    let mode = Mode::Authenticated;
    let mut sender =
        SessionSender::new(SenderConfig { mode, padding: Some(20), ..SenderConfig::default() }, Instant(0));
    let mut packet = Vec::new();
    sender.poll_transmit(moment(0), Some(&mac), &mut packet);
    let config = ReflectorConfig { mode, ..ReflectorConfig::default() };
    let mut forged = packet.clone();
    forged[20] ^= 1;
    assert_eq!(reflected(&forged, config), Err(RejectReason::Digest));
    assert_eq!(reflected(&packet[..111], config), Err(RejectReason::Short));
    // The base packet is intact, but a TLV was modified: flagged and not answered.
    let mut changed = packet.clone();
    changed[130] ^= 1;
    let reply = reflected(&changed, config).unwrap();
    assert_eq!(reply[112] & INTEGRITY_FAILED, INTEGRITY_FAILED);
    let reply = reflected(&packet, config).unwrap();
    assert_eq!(reply[112] & INTEGRITY_FAILED, 0);
    // A reply is accepted once, and only by its own session.
    let mut other =
        SessionSender::new(SenderConfig { mode, session: 5, ..SenderConfig::default() }, Instant(0));
    let late = moment(1_000_000);
    assert_eq!(other.handle_packet(&reply, late, Some(&mac)), Err(RejectReason::NotOutstanding));
    assert!(sender.handle_packet(&reply, late, Some(&mac)).is_ok());
    assert_eq!(sender.handle_packet(&reply, late, Some(&mac)), Err(RejectReason::NotOutstanding));
    assert_eq!(sender.result().rejected, 1);
}

#[test]
fn sessions_are_limited_and_expire() {
    let config = ReflectorConfig {
        sessions: 2,
        session_timeout: Duration::from_secs(10),
        ..ReflectorConfig::default()
    };
    let mut reflector = SessionReflector::new(config);
    let mut send = |port: u16, second: u64| {
        let mut arrival = arrival(second * 1_000_000_000);
        arrival.source.set_port(port);
        reflector.reflect(&with_tlvs(&[]), &arrival, None, || START, &mut Vec::new())
    };
    assert!(send(1, 0).is_ok() && send(2, 0).is_ok() && send(1, 5).is_ok());
    assert_eq!(send(3, 6), Err(RejectReason::TooManySessions));
    assert!(send(3, 12).is_ok(), "the second session has expired");
    assert_eq!((reflector.counts().reflected, reflector.counts().rejected), (4, 1));
}

#[test]
fn random_bytes_never_cause_a_panic() {
    let mut stream = RandomStream::new(31, "stamp");
    for round in 0..20_000_u32 {
        let mode = if round % 2 == 0 { Mode::Unauthenticated } else { Mode::Authenticated };
        let mut bytes: Vec<u8> = (0..stream.below(200)).map(|_| stream.next_u64() as u8).collect();
        if bytes.len() > mode.base() + 4 {
            // Plausible TLV lengths reach more code than random ones.
            bytes[mode.base() + 1] = 1 + stream.below(9) as u8;
            bytes[mode.base() + 2] = 0;
            bytes[mode.base() + 3] = stream.below(80) as u8;
        }
        let config = ReflectorConfig { mode, ..ReflectorConfig::default() };
        let accepts_all = |_: &[&[u8]]| [0; DIGEST];
        if mode == Mode::Authenticated && bytes.len() >= 112 {
            bytes[96..112].fill(0);
        }
        let mut reply = Vec::new();
        let mut reflector = SessionReflector::new(config);
        let answered = reflector.reflect(&bytes, &arrival(0), Some(&accepts_all), || START, &mut reply);
        assert_eq!(answered.is_ok(), bytes.len() >= mode.base());
        let mut sender = SessionSender::new(SenderConfig { mode, ..SenderConfig::default() }, Instant(0));
        let _ = sender.handle_packet(&bytes, moment(0), Some(&accepts_all));
    }
}
