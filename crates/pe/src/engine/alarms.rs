//! Alarms about packets that only an attacker, or a faulty core, sends. Each is raised by the rate of a counter and
//! cleared a minute after the last such packet.

use super::{Counter, Counters};
use netstage_core::time::{Duration, Instant};

/// Interval over which packets are counted.
const INTERVAL: Duration = Duration::from_millis(1_000);
/// Time without such packets after which an alarm is cleared.
const HOLD: Duration = Duration::from_millis(60_000);

/// Alarm: its counter, the packets within an interval that raise it, and its description. Restarts and reordering cause
/// a few packets of the kinds with a threshold above one.
const ALARMS: &[(Counter, u64, &str)] = &[
    (Counter::MoreReceived, 1, "more packets received than sent"),
    (Counter::WrongSender, 1, "label from a wrong source"),
    (Counter::LabelUnexpected, 1, "label above the VPN label that the peer does not send"),
    (Counter::LabelUnknown, 4, "label of no VPN"),
    (Counter::LabelStack, 1, "malformed label stack"),
    (Counter::TunnelMalformed, 1, "malformed tunnel packet"),
    (Counter::TunnelChecksum, 1, "tunnel packet without a checksum"),
    (Counter::InnerMalformed, 1, "malformed customer packet from the core"),
    (Counter::Unencrypted, 1, "packet without encryption from the address of an encrypted peer"),
    (Counter::EncryptionForeign, 1, "encrypted packet from an unknown address"),
    (Counter::EncryptionMalformed, 1, "malformed encrypted packet"),
    (Counter::EncryptionForged, 1, "forged encrypted packet, or keys that differ"),
    (Counter::EncryptionReplayed, 1, "replayed or duplicate encrypted packet"),
    (Counter::EncryptionUnknown, 4, "encrypted packet of an unknown session"),
    (Counter::HandshakeLimited, 1, "flood of handshakes"),
    (Counter::MessageMalformed, 1, "malformed management packet"),
    (Counter::QueryForged, 1, "forged query, or keys that differ"),
    (Counter::QueryRepeated, 10, "repeated query"),
    (Counter::ReplyWrong, 1, "response that contradicts its query"),
    (Counter::ReplyForged, 1, "forged response, or keys that differ"),
    (Counter::ReplyUnasked, 10, "response without a query"),
    (Counter::ReplyEarlier, 10, "response of another session"),
    (Counter::ReferenceForeign, 1, "reference from a wrong source"),
    (Counter::ReferenceMalformed, 1, "malformed reference"),
    (Counter::ReferenceForged, 1, "forged reference, or keys that differ"),
    (Counter::ReferenceReplayed, 1, "replayed reference, or a second source of it"),
    (Counter::NewsForeign, 1, "news of VPN flows from a wrong source"),
    (Counter::NewsMalformed, 1, "malformed news of VPN flows"),
    (Counter::NewsForged, 1, "forged news of VPN flows, or keys that differ"),
    (Counter::NewsReplayed, 4, "replayed news of VPN flows"),
    (Counter::NewsReflected, 1, "news of VPN flows that the core sends back"),
];

/// Present state of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlarmView {
    /// Name of the alarm: that of its counter.
    pub name: &'static str,
    /// Description of the packets.
    pub description: &'static str,
    /// Time at which it was raised.
    pub since: Instant,
    /// The alarm is raised.
    pub is_raised: bool,
}

/// State of all alarms.
#[derive(Clone, Debug)]
pub(super) struct Alarms {
    counted: [u64; ALARMS.len()],
    /// Times at which an alarm was raised and at which such packets were last counted.
    raised: [Option<(Instant, Instant)>; ALARMS.len()],
    due: Instant,
}

impl Default for Alarms {
    fn default() -> Alarms {
        Alarms { counted: [0; ALARMS.len()], raised: [None; ALARMS.len()], due: Instant::ZERO }
    }
}

impl Alarms {
    /// Updates the alarms from the counters. Returns those that were raised or cleared.
    pub fn watch(&mut self, now: Instant, counters: &Counters) -> Vec<AlarmView> {
        if now < self.due {
            return Vec::new();
        }
        self.due = now + INTERVAL;
        let mut changed = Vec::new();
        for (number, (counter, threshold, _)) in ALARMS.iter().enumerate() {
            let count = counters.get(*counter);
            let packets = count - std::mem::replace(&mut self.counted[number], count);
            let raised = self.raised[number];
            let is_raised = packets >= *threshold || raised.is_some() && packets > 0;
            self.raised[number] = match raised {
                Some((since, _)) if is_raised => Some((since, now)),
                Some((_, last)) if now.since(last) > HOLD => None,
                None if is_raised => Some((now, now)),
                raised => raised,
            };
            if self.raised[number].is_some() != raised.is_some() {
                changed.push(self.view(number));
            }
        }
        changed
    }

    /// Returns the raised alarms.
    pub fn raised(&self) -> impl Iterator<Item = AlarmView> + '_ {
        (0..ALARMS.len()).map(|number| self.view(number)).filter(|alarm| alarm.is_raised)
    }

    fn view(&self, number: usize) -> AlarmView {
        let (counter, _, description) = ALARMS[number];
        let raised = self.raised[number];
        AlarmView {
            name: counter.name(),
            description,
            since: raised.map_or(Instant::ZERO, |(since, _)| since),
            is_raised: raised.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_is_raised_within_an_interval_and_cleared_after_a_minute() {
        let (mut alarms, mut counters) = (Alarms::default(), Counters::default());
        let second = |seconds: u64| Instant(seconds * 1_000_000_000);
        let names = |changed: Vec<AlarmView>| -> Vec<(&str, bool)> {
            changed.iter().map(|alarm| (alarm.name, alarm.is_raised)).collect()
        };
        assert!(alarms.watch(second(1), &counters).is_empty());
        counters.add(Counter::WrongSender, 1);
        counters.add(Counter::LabelUnknown, 3);
        assert_eq!(names(alarms.watch(second(2), &counters)), [("wrong_sender", true)]);
        assert_eq!(alarms.raised().map(|alarm| alarm.since).collect::<Vec<_>>(), [second(2)]);
        counters.add(Counter::LabelUnknown, 4);
        assert_eq!(names(alarms.watch(second(40), &counters)), [("label_unknown", true)]);
        counters.add(Counter::WrongSender, 1);
        assert!(alarms.watch(second(50), &counters).is_empty());
        assert_eq!(names(alarms.watch(second(101), &counters)), [("label_unknown", false)]);
        assert_eq!(names(alarms.watch(second(111), &counters)), [("wrong_sender", false)]);
        assert_eq!(alarms.raised().count(), 0);
    }
}
