//! Graceful restart (RFC 3478) of a scripted peer, against a model of the times at which its labels are usable.

use super::*;
use crate::ldp::receive::notification_about;
use netstage_wire::ldp::message::FtSession;
use netstage_wire::ldp::write::OutgoingMapping;
use proptest::prelude::*;

const LIVENESS: Duration = Duration::from_secs(40);
const MAX_RECOVERY: Duration = Duration::from_secs(30);
/// The peer's labels before its restart: number n for prefix n.
const PREFIXES: [&str; 3] = ["10.0.0.0/8", "11.0.0.0/8", "12.0.0.0/8"];

fn enable(config: &mut LdpConfig) {
    config.restart = Some(GracefulRestart {
        reconnect: Duration::from_secs(20),
        recovery: Duration::from_secs(10),
        neighbor_liveness: LIVENESS,
        max_recovery: MAX_RECOVERY,
    });
}

fn ft_session(reconnect_seconds: u64, recovery_seconds: u64) -> FtSession {
    FtSession {
        learns_from_network: true,
        reconnect_timeout_ms: reconnect_seconds as u32 * 1000,
        recovery_time_ms: recovery_seconds as u32 * 1000,
    }
}

fn map(number: usize, label_number: u32) -> Outgoing<'static> {
    Outgoing::LabelMapping(OutgoingMapping::new(prefix(PREFIXES[number]), label(label_number)))
}

impl SpeakerTest {
    /// Creates a speaker with a session, a label of the peer for each prefix, and bindings that use them.
    fn with_labels(configure: impl Fn(&mut LdpConfig), ft_session: Option<FtSession>) -> SpeakerTest {
        let mut test = SpeakerTest::new(configure);
        for (number, fec) in PREFIXES.iter().enumerate() {
            test.speaker.bind(prefix(fec), transit(500 + number as u32, PEER)).unwrap();
        }
        test.connect(ft_session);
        test.receive(&[Outgoing::Address(&[address(PEER)])]);
        test.receive(&[map(0, 100), map(1, 101), map(2, 102)]);
        test.replies();
        assert_eq!(test.usable(), [Some(100), Some(101), Some(102)]);
        test
    }

    fn connect(&mut self, ft_session: Option<FtSession>) {
        self.hello(PEER, 15);
        self.speaker.handle_accepted(self.now, CONNECTION, router(PEER));
        let initialization = Initialization { ft_session, ..SpeakerTest::initialization() };
        self.receive(&[Outgoing::Initialization(initialization), Outgoing::KeepAlive]);
        let expected = LdpEvent::Up { peer: identifier(PEER) };
        assert!(self.events().contains(&expected), "the session is up");
        self.replies();
    }

    /// Returns the label with which packets to each prefix leave.
    fn usable(&self) -> [Option<u32>; 3] {
        PREFIXES.map(|fec| self.speaker.outgoing(prefix(fec)).first().map(|next_hop| next_hop.label.number()))
    }

    /// Sets the time, with all timeouts before it.
    fn advance_to(&mut self, time: Instant) {
        while self.speaker.poll_timeout() <= time {
            self.now = self.speaker.poll_timeout().max(self.now);
            self.speaker.handle_timeout(self.now);
        }
        self.now = time;
    }
}

/// Events of the model. Times are seconds; those of the speaker's timers are whole, so events at half seconds never
/// coincide with them.
#[derive(Clone, Debug)]
struct Course {
    /// Whether this router and the peer support graceful restart.
    is_supported: [bool; 2],
    reconnect: u64,
    /// Return of the peer after the loss, and its Recovery Time.
    returns: Option<(u64, u64)>,
    /// Label that the peer advertises for each prefix after its return, and seconds of that advertisement after it.
    again: [Option<(u32, u64)>; 3],
}

impl Course {
    /// Returns the labels that must be usable at a time after the loss.
    fn usable(&self, half_seconds: u64) -> [Option<u32>; 3] {
        let seconds = half_seconds as f64 / 2.0;
        let kept = match self.is_supported {
            [true, true] => self.reconnect.min(LIVENESS.0 / 1_000_000_000) as f64,
            _ => 0.0,
        };
        let back = self.returns.map(|(at, recovery)| (at as f64 + 0.5, recovery));
        // Stale labels end with the reconnect time, or with the recovery time if the peer is back by then.
        let stale_until = match back {
            Some((at, recovery)) if at < kept => at + recovery.min(MAX_RECOVERY.0 / 1_000_000_000) as f64,
            _ => kept,
        };
        core::array::from_fn(|number| {
            let new = self.again[number].zip(back);
            let new = new.filter(|((_, after), (at, _))| at + *after as f64 <= seconds);
            let stale = (seconds < stale_until).then_some(100 + number as u32);
            new.map(|((label, _), _)| label).or(stale)
        })
    }
}

fn courses() -> impl Strategy<Value = Course> {
    let again = || prop::option::of((prop_oneof![Just(100u32), Just(101), Just(102), 200u32..210], 0u64..25));
    (any::<[bool; 2]>(), 0u64..60, prop::option::of((0u64..60, 0u64..40)), [again(), again(), again()])
        .prop_map(|(is_supported, reconnect, returns, again)| Course {
            is_supported,
            reconnect,
            returns,
            again,
        })
}

proptest! {
    #[test]
    fn labels_are_kept_exactly_as_long_as_negotiated(course in courses()) {
        let configure = |config: &mut LdpConfig| if course.is_supported[0] { enable(config) };
        let of_peer = |recovery| course.is_supported[1].then(|| ft_session(course.reconnect, recovery));
        let mut test = SpeakerTest::with_labels(configure, of_peer(0));
        let lost = test.now;
        let at = |half_seconds: u64| lost + Duration(half_seconds * 500_000_000);
        test.speaker.handle_closed(test.now, CONNECTION);
        for half_seconds in 0..200 {
            test.advance_to(at(half_seconds));
            if let Some((back, recovery)) = course.returns {
                if half_seconds == 2 * back + 1 {
                    test.connect(of_peer(recovery));
                    // Without the address, the peer would not be a next hop.
                    test.receive(&[Outgoing::Address(&[address(PEER)])]);
                }
                for (number, again) in course.again.iter().enumerate() {
                    if let Some((label, after)) = again
                        && half_seconds == 2 * (back + after) + 1
                    {
                        test.receive(&[map(number, *label)]);
                    }
                }
                // The session stays up.
                if half_seconds > 2 * back + 1 {
                    test.hello(PEER, 15);
                    test.receive(&[Outgoing::KeepAlive]);
                }
            }
            test.events();
            prop_assert_eq!(test.usable(), course.usable(half_seconds), "at {} s", half_seconds as f64 / 2.0);
        }
        // Nothing is left over.
        prop_assert!(test.speaker.restarting.is_empty());
    }
}

#[test]
fn labels_end_at_the_reconnect_time_to_the_nanosecond() {
    let mut test = SpeakerTest::with_labels(enable, Some(ft_session(12, 0)));
    test.events();
    test.speaker.handle_closed(test.now, CONNECTION);
    let (peer, reason) = (identifier(PEER), LdpSessionEnd::Lost);
    let expires = test.now + Duration::from_secs(12);
    assert_eq!(test.events(), [LdpEvent::Restarting { peer, reason, expires }]);
    test.advance_to(Instant(expires.0 - 1));
    assert_eq!((test.usable(), test.events()), ([Some(100), Some(101), Some(102)], vec![]));
    test.advance_to(expires);
    assert_eq!(test.usable(), [None; 3]);
    assert_eq!(test.events()[0], LdpEvent::Down { peer, reason });
}

#[test]
fn unconfirmed_labels_are_withdrawn_and_others_stay_in_use() {
    let mut test = SpeakerTest::with_labels(enable, Some(ft_session(12, 0)));
    test.speaker.handle_closed(test.now, CONNECTION);
    test.advance_to(test.now + Duration::from_secs(5));
    test.connect(Some(ft_session(12, 8)));
    // One label is confirmed and one is replaced. No packet is lost meanwhile.
    test.receive(&[Outgoing::Address(&[address(PEER)]), map(0, 100), map(1, 77)]);
    assert_eq!(test.usable(), [Some(100), Some(77), Some(102)]);
    let replies = test.replies();
    assert!(!replies.iter().any(|reply| reply.starts_with("release")), "{replies:?}");
    test.events();
    test.advance_to(test.now + Duration::from_secs(8));
    let withdrawn =
        LdpEvent::Withdrawn { peer: identifier(PEER), fec: prefix(PREFIXES[2]), label: label(102) };
    assert!(test.events().contains(&withdrawn));
    assert_eq!(test.usable(), [Some(100), Some(77), None]);
}

#[test]
fn a_session_that_is_ended_on_purpose_is_not_kept() {
    for (status, is_kept) in [(LdpStatus::SHUTDOWN, false), (LdpStatus::HOLD_TIMER_EXPIRED, true)] {
        let mut test = SpeakerTest::with_labels(enable, Some(ft_session(12, 0)));
        test.receive(&[Outgoing::Notification(notification_about(status, 0, 0))]);
        assert_eq!(test.usable()[0].is_some(), is_kept, "{status}");
    }
    // A peer that does not learn from the network restarts by the procedures of RFC 3479.
    let others = FtSession { learns_from_network: false, ..ft_session(12, 0) };
    let mut test = SpeakerTest::with_labels(enable, Some(others));
    test.speaker.handle_closed(test.now, CONNECTION);
    assert_eq!(test.usable(), [None; 3]);
}

#[test]
fn labels_that_a_restarting_peer_holds_are_not_free_until_it_is_back() {
    let mut test = SpeakerTest::with_labels(enable, Some(ft_session(12, 0)));
    test.speaker.handle_closed(test.now, CONNECTION);
    test.speaker.unbind(prefix(PREFIXES[0]));
    let free = LdpEvent::Free { label: label(500) };
    assert!(!test.events().contains(&free));
    // Repeated losses do not hold it twice.
    for _ in 0..3 {
        test.connect(Some(ft_session(12, 9)));
        test.speaker.handle_closed(test.now, CONNECTION);
    }
    test.advance_to(test.now + Duration::from_secs(11));
    assert!(!test.events().contains(&free));
    test.advance_to(test.now + Duration::from_secs(1));
    assert_eq!(test.events().iter().filter(|event| **event == free).count(), 1);
}

#[test]
fn a_restarted_speaker_is_helped_by_its_neighbor() {
    let mut network = TestNetwork::pair(enable);
    network.bind(1, "10.0.0.1/32", transit(20, 2));
    network.bind(2, "10.0.0.1/32", Binding::Egress { label: Some(label(700)) });
    network.run(1);
    assert_eq!(network.speaker(1).outgoing(prefix("10.0.0.1/32")), [via(2, label(700))]);
    network.events.clear();
    // Router 2 restarts without closing its connection, and binds the same label.
    let now = network.now;
    let mut config = LdpConfig::new(router(2), router(2));
    enable(&mut config);
    let mut restarted = LdpSpeaker::new(config);
    restarted.set_addresses([address(2), router(2).into()]);
    restarted.add_interface(now, 0);
    restarted.bind(prefix("10.0.0.1/32"), Binding::Egress { label: Some(label(700)) }).unwrap();
    *network.speaker(2) = restarted;
    network.ends.clear();
    network.run(60);
    assert_eq!(network.sessions_up(), [1, 2]);
    assert_eq!(network.speaker(1).outgoing(prefix("10.0.0.1/32")), [via(2, label(700))]);
    assert!(network.session_ends().is_empty(), "the labels were never void");
}
