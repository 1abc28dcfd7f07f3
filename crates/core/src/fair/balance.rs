//! Comparison of the packets that arrive with those that were sent, from the counts in management packets.
//!
//! Between two queries at most as many data packets arrive as were sent: a core loses packets, but creates none. More
//! arrivals mean forged or duplicated packets, which would hide losses from the window and inflate its share. A core
//! may also reorder packets over a short time: a packet that is missing at one query arrives before a later one, and a
//! packet that overtakes a query is missing at the next. Neither is an excess.

use crate::time::{Duration, Instant};

/// A packet found missing may arrive for one to two of these periods. A longer time would let more losses hide forged
/// packets.
const LATE: Duration = Duration::from_millis(60);
/// Packets that overtook a query are missing within one to two of these periods. A query takes the path of the data, so the
/// time is shorter.
const EARLY: Duration = Duration::from_millis(10);
/// Interval over which excess is summed.
const INTERVAL: Duration = Duration::from_millis(1_000);
/// Minimum excess of one interval that is reported, packets. The core may duplicate a single packet.
const REPORTED: u64 = 4;

/// Counts of a VPN flow at one management packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketCounts {
    /// Number that changes with each restart of the sender.
    pub session: u32,
    /// Number of the management packet, increasing within a session.
    pub number: u64,
    /// Data packets sent in total.
    pub sent: u64,
    /// Data packets received in total.
    pub received: u64,
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceResult {
    /// Not more packets received than sent, apart from reordering.
    Balanced,
    /// This many more packets received than sent within a second.
    Excess(u64),
    /// Management packet that is not newer than the last one: repeated, replayed or reordered. Also the first one of
    /// another session.
    Repeated,
}

/// Balance of one direction of a VPN flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketBalance {
    last: Option<PacketCounts>,
    /// Packets found missing, which may still arrive.
    missing: RecentPackets,
    /// Packets in excess, which may be missing later.
    early: RecentPackets,
    excess: u64,
    /// End of the interval over which the excess is summed.
    ends: Instant,
    /// End of the first interval of a session. Packets that waited for it arrive in any order, and are no excess.
    settled: Instant,
}

impl PacketBalance {
    /// Returns whether at least half of the packets between the last management packet and this one are missing.
    pub fn loses_most(&self, counts: PacketCounts) -> bool {
        self.last.is_some_and(|last| {
            let sent = counts.sent.saturating_sub(last.sent);
            sent > 0 && 2 * counts.received.saturating_sub(last.received) <= sent
        })
    }

    /// Compares the counts of a management packet with those of the one before. `now` must not decrease.
    pub fn observe(&mut self, now: Instant, counts: PacketCounts) -> BalanceResult {
        let Some(last) = self.last.filter(|last| last.session == counts.session) else {
            let before = core::mem::take(self);
            self.last = Some(counts);
            // The first query may overtake what was sent before it.
            self.missing.present = counts.sent.saturating_sub(counts.received);
            self.missing.ends = now + LATE;
            self.settled = now + INTERVAL;
            return if before.last.is_none() { BalanceResult::Balanced } else { BalanceResult::Repeated };
        };
        if counts.number <= last.number || counts.sent < last.sent {
            return BalanceResult::Repeated;
        }
        self.last = Some(counts);
        // A receiver that restarts counts from zero.
        let Some(received) = counts.received.checked_sub(last.received) else {
            return BalanceResult::Balanced;
        };
        let sent = counts.sent - last.sent;
        if now >= self.ends {
            (self.excess, self.ends) = (0, now + INTERVAL);
        }
        self.missing.expire(now, LATE);
        self.excess += self.early.expire(now, EARLY);
        self.early.present += self.missing.settle(received.saturating_sub(sent));
        self.missing.present += self.early.settle(sent.saturating_sub(received));
        if now < self.settled {
            self.excess = 0;
        }
        if self.excess < REPORTED {
            return BalanceResult::Balanced;
        }
        BalanceResult::Excess(core::mem::take(&mut self.excess))
    }
}

/// Packets of the present and the last period.
#[derive(Clone, Copy, Debug, Default)]
struct RecentPackets {
    present: u64,
    last: u64,
    ends: Instant,
}

impl RecentPackets {
    /// Starts a new period if the present one has ended. Returns the packets that are older than a period.
    fn expire(&mut self, now: Instant, period: Duration) -> u64 {
        if now < self.ends {
            return 0;
        }
        let is_recent = now < self.ends + period;
        self.ends = now + period;
        let present = core::mem::take(&mut self.present);
        let [last, expired] = if is_recent { [present, 0] } else { [0, present] };
        core::mem::replace(&mut self.last, last) + expired
    }

    /// Removes this many packets, the oldest first. Returns the rest.
    fn settle(&mut self, packets: u64) -> u64 {
        let old = packets.min(self.last);
        let new = (packets - old).min(self.present);
        (self.last, self.present) = (self.last - old, self.present - new);
        packets - old - new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RandomStream;

    const MILLISECOND: u64 = 1_000_000;

    /// Runs a flow of 500 packets a second with a query for every fourth packet through a core that loses, delays and
    /// adds packets. Returns the reported excess and the time of its first report.
    fn run(seed: u64, loss: f64, late: f64, forged_per_second: u64) -> (u64, Option<Instant>) {
        let mut random = RandomStream::new(seed, "balance");
        let mut balance = PacketBalance::default();
        let (mut received, mut reported, mut first) = (0_u64, 0, None);
        // Arrival times of packets that the core delays.
        let mut delayed: alloc::vec::Vec<u64> = alloc::vec::Vec::new();
        let mut forged_at = 0;
        for sent in 1..=5_000_u64 {
            let now = sent * 2 * MILLISECOND;
            if random.uniform() >= loss {
                match random.uniform() < late {
                    true => delayed.push(now + (random.uniform() * 50.0) as u64 * MILLISECOND),
                    false => received += 1,
                }
            }
            let before = delayed.len();
            delayed.retain(|at| *at > now);
            received += (before - delayed.len()) as u64;
            if forged_per_second > 0 && now >= forged_at {
                received += 1;
                forged_at = now + 1_000 * MILLISECOND / forged_per_second;
            }
            if sent % 4 == 0 {
                let counts = PacketCounts { session: 1, number: now, sent, received };
                if let BalanceResult::Excess(packets) = balance.observe(Instant(now), counts) {
                    reported += packets;
                    first = first.or(Some(Instant(now)));
                }
            }
        }
        (reported, first)
    }

    #[test]
    fn forged_packets_are_noticed_within_five_seconds_and_losses_never_reported() {
        let seed = netstage_harness::seed("balance");
        for case in seed..seed + 40 {
            let mut random = RandomStream::new(case, "cases");
            let (loss, late) = (random.uniform() * 0.12, random.uniform() * 0.05);
            assert_eq!(run(case, loss, late, 0), (0, None), "case {case}");
            // Up to two thirds as many packets are lost as forged: the totals alone may show nothing.
            let (_, first) = run(case, loss.min(0.08), 0.0, 60);
            assert!(first.is_some_and(|first| first.0 < 5_000 * MILLISECOND), "case {case}: {first:?}");
        }
    }

    #[test]
    fn packets_that_overtake_a_query_are_no_excess() {
        let mut balance = PacketBalance::default();
        for number in 0..1_000_u64 {
            // At every other query, two packets sent after it have arrived.
            let (sent, early) = (4 * number, 2 * (number % 2));
            let counts = PacketCounts { session: 1, number, sent, received: sent + early };
            let now = Instant(number * 4 * MILLISECOND);
            assert_eq!(balance.observe(now, counts), BalanceResult::Balanced, "query {number}");
        }
    }

    #[test]
    fn restarts_and_repeated_queries_are_no_excess() {
        let mut balance = PacketBalance::default();
        let mut observe = |session, number, sent, received| {
            balance.observe(Instant(number), PacketCounts { session, number, sent, received })
        };
        assert_eq!(observe(1, 10, 100, 90), BalanceResult::Balanced);
        assert_eq!(observe(1, 20, 104, 94), BalanceResult::Balanced);
        assert_eq!(observe(1, 20, 104, 99), BalanceResult::Repeated);
        assert_eq!(observe(1, 15, 102, 99), BalanceResult::Repeated);
        // The receiver restarts, then the sender.
        assert_eq!(observe(1, 30, 108, 2), BalanceResult::Balanced);
        assert_eq!(observe(2, 5, 1, 50), BalanceResult::Repeated);
        // Packets in excess might be missing at the next queries.
        assert_eq!(observe(2, 1_000 * MILLISECOND, 3, 59), BalanceResult::Balanced);
        assert_eq!(observe(2, 1_300 * MILLISECOND, 5, 61), BalanceResult::Excess(7));
    }
}
