//! STAMP sessions (RFC 8762): packets that reached the session-reflector, replies that came back, and delays
//! per direction. Duplicates made by a link count once. In the simulator all clocks agree and replies are
//! sent immediately.

use crate::bins::Grid;
use crate::delay::FlowDelays;
use netstage_core::measure::sequence::{Sequence, SequenceArrival};
use netstage_core::time::{Duration, Instant};
use netstage_scenario::outcome::{Distribution, Metric, Series};
use netstage_scenario::plan::{FlowDirection, FlowGroup, FlowTransport, Plan};

/// State of one session.
#[derive(Debug)]
pub struct StampMeasurement {
    start: Instant,
    interval: Duration,
    sent: u64,
    reflected: Sequence,
    answered: Sequence,
    /// Delays of answered packets, forward and backward, as measured by a session-sender.
    delays: [FlowDelays; 2],
}

impl StampMeasurement {
    /// Returns one entry per UDP flow of a plan, `None` for flows without a session; empty if the plan has no
    /// sessions.
    pub fn all(plan: &Plan, grid: Grid) -> Vec<Option<StampMeasurement>> {
        let is_session = |transport: &FlowTransport| matches!(transport, FlowTransport::Stamp { .. });
        if !plan.flows.iter().any(|group| is_session(&group.transport)) {
            return Vec::new();
        }
        // Same numbering as the UDP flows of hosts: members of flow groups that carry patterns.
        let datagrams = plan.flows.iter().filter(|group| {
            !matches!(group.transport, FlowTransport::Tcp(_)) && group.traffic.pattern().is_some()
        });
        let members = datagrams.flat_map(|group| (0..group.count).map(move |member| (group, member)));
        let session = |(group, member): (&FlowGroup, usize)| {
            let FlowTransport::Stamp { interval } = group.transport else { return None };
            Some(StampMeasurement {
                start: group.start + group.stagger * member as u64,
                interval,
                sent: 0,
                reflected: Sequence::new(),
                answered: Sequence::new(),
                delays: [FlowDelays::new(grid), FlowDelays::new(grid)],
            })
        };
        members.map(session).collect()
    }

    /// Records a packet sent.
    pub fn handle_sent(&mut self) {
        self.sent += 1;
    }

    /// Records the arrival at the reflector of the packet sent at `sent`.
    pub fn handle_reflected(&mut self, sent: Instant) {
        let number = self.number(sent);
        self.reflected.handle_packet(number);
    }

    /// Records the reply to the packet sent at `sent`, unless it is a duplicate.
    pub fn handle_answer(&mut self, now: Instant, sent: Instant, answered: Instant) {
        let number = self.number(sent);
        let arrival = self.answered.handle_packet(number);
        if matches!(arrival, SequenceArrival::Newest { .. } | SequenceArrival::Late) {
            let [forward, backward] = &mut self.delays;
            forward.arrived(answered, sent);
            backward.arrived(now, answered);
        }
    }

    /// Returns the packets lost per direction, all in the last bin because they are known only at the end,
    /// and the clock error, which is zero.
    pub fn series(&self, subject: &str, bins: usize) -> Vec<Series> {
        let reflected = self.reflected.received();
        let lost = [self.sent - reflected, reflected - self.answered.received()];
        let per_direction = FlowDirection::BOTH.into_iter().zip(lost).map(|(direction, lost)| {
            let mut values = vec![0.0; bins];
            if let Some(last) = values.last_mut() {
                *last = lost as f64;
            }
            Series { metric: Metric::FlowLost, subject: direction.subject(subject), values }
        });
        let exact =
            Series { metric: Metric::FlowClockError, subject: subject.into(), values: vec![0.0; bins] };
        let mut copies = vec![0.0; bins];
        if let Some(last) = copies.last_mut() {
            *last = self.answered.duplicates() as f64;
        }
        let copies = Series { metric: Metric::FlowDuplicated, subject: subject.into(), values: copies };
        per_direction.chain([exact, copies]).collect()
    }

    /// Returns the distributions of delay and delay variation per direction.
    pub fn distributions(&self, subject: &str) -> Vec<Distribution> {
        let per_direction = FlowDirection::BOTH.into_iter().zip(&self.delays);
        per_direction
            .flat_map(|(direction, delays)| delays.distributions(&direction.subject(subject)))
            .collect()
    }

    /// Returns the sequence number of the packet sent at `sent`.
    fn number(&self, sent: Instant) -> u64 {
        sent.since(self.start).0 / self.interval.0.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_count_once_and_only_answered_packets_have_delays() {
        let grid = Grid { interval: Duration(1_000_000), bins: 1 };
        let mut session = StampMeasurement {
            start: Instant(0),
            interval: Duration(100),
            sent: 0,
            reflected: Sequence::new(),
            answered: Sequence::new(),
            delays: [FlowDelays::new(grid), FlowDelays::new(grid)],
        };
        (0..5).for_each(|_| session.handle_sent());
        // The first and third packets are lost forward, the fifth backward.
        for sent in [200, 400, 200, 500] {
            session.handle_reflected(Instant(sent));
        }
        // The second answer is late, the third a duplicate.
        for [now, sent, answered] in [[460, 400, 420], [470, 200, 230], [480, 200, 235]] {
            session.handle_answer(Instant(now), Instant(sent), Instant(answered));
        }
        let series = session.series("sla", 1);
        let found: Vec<(&str, f64)> =
            series.iter().map(|series| (series.subject.as_str(), series.values[0])).collect();
        assert_eq!(found, [("sla[forward]", 2.0), ("sla[backward]", 1.0), ("sla", 0.0), ("sla", 1.0)]);
        let distributions = session.distributions("sla");
        let buckets = |metric, subject: &str| {
            let mut found = distributions.iter();
            found.find(|d| d.metric == metric && d.subject == subject).unwrap().buckets.clone()
        };
        assert_eq!(buckets(Metric::FlowDelay, "sla[forward]"), [(20, 1), (30, 1)]);
        assert_eq!(buckets(Metric::FlowDelay, "sla[backward]"), [(40, 1), (240, 1)]);
    }
}
