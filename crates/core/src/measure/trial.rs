//! Interface between searches and drivers. A search proposes one trial after another; a driver (simulator or
//! packet generator) performs them. Nothing in this module sends packets.
//!
//! The driver calls [`TrialSearch::next`], performs the trial, calls [`TrialSearch::record`], and repeats
//! until `next` returns `None`. [`TrialSearch::result`] may be called at any time; the result is final once
//! `next` has returned `None`.

use super::lateness::{MAX_DELAY_ERROR, MAX_LINK_LATENESS};
use super::{Arrivals, Histogram};
use crate::quantity::BitRate;
use crate::time::{Duration, Instant};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A strategy that proposes trials and uses their results.
pub trait TrialSearch {
    /// Result of the search.
    type Outcome;

    /// Returns the next trial, unchanged until its result is recorded; `None` at the end.
    fn next(&mut self) -> Option<Trial>;

    /// Records the result of the trial last proposed by [`TrialSearch::next`].
    ///
    /// Panics if no trial was proposed: each result belongs to one proposal.
    fn record(&mut self, result: &TrialResult);

    /// Returns the result so far.
    fn result(&self) -> Self::Outcome;
}

/// Runs a search to its end with a function that performs a trial.
pub fn run<S: TrialSearch>(search: &mut S, mut perform: impl FnMut(&Trial) -> TrialResult) -> S::Outcome {
    while let Some(trial) = search.next() {
        search.record(&perform(&trial));
    }
    search.result()
}

/// Layer at which a rate counts the bytes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CountedLayer {
    /// Transport payload.
    Payload,
    /// IP packet.
    Ip,
    /// Frame with header and check sequence.
    Link,
    /// Frame with preamble and inter-frame gap: the time it occupies on the line.
    Line,
}

/// Bytes of one test packet at each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameSize {
    /// Transport payload, bytes.
    pub payload: u32,
    /// IP packet, bytes.
    pub ip: u32,
    /// Frame including check sequence, bytes, as counted by RFC 2544.
    pub link: u32,
    /// Time the frame occupies on the line, in bytes.
    pub line: u32,
}

/// Ethernet header and frame check sequence.
const ETHERNET: u32 = 18;
/// Ethernet preamble, start delimiter and inter-frame gap.
const ETHERNET_GAP: u32 = 20;
/// Share by which the rate of arrival can miss the load because times are whole nanoseconds.
const ROUNDING: f64 = 1e-6;

impl FrameSize {
    /// Returns the sizes of UDP over IPv4 in an untagged Ethernet frame of `link` bytes including its check
    /// sequence.
    pub const fn ethernet_udp(link: u32) -> FrameSize {
        let ip = link.saturating_sub(ETHERNET);
        let payload = ip.saturating_sub(netstage_wire::IPV4_HEADER + netstage_wire::UDP_HEADER);
        FrameSize { payload, ip, link, line: link + ETHERNET_GAP }
    }

    /// Returns the sizes of UDP over IPv4 on a line that carries IP packets of `ip` bytes without framing.
    pub const fn bare_udp(ip: u32) -> FrameSize {
        let payload = ip.saturating_sub(netstage_wire::IPV4_HEADER + netstage_wire::UDP_HEADER);
        FrameSize { payload, ip, link: ip, line: ip }
    }

    /// Returns the sizes with a header of IPv6 instead of IPv4. It takes a part of the payload.
    pub const fn over_ipv6(self) -> FrameSize {
        let more = netstage_wire::IPV6_HEADER - netstage_wire::IPV4_HEADER;
        FrameSize { payload: self.payload.saturating_sub(more), ..self }
    }

    /// Returns the bytes at a layer.
    pub const fn bytes(self, layer: CountedLayer) -> u32 {
        match layer {
            CountedLayer::Payload => self.payload,
            CountedLayer::Ip => self.ip,
            CountedLayer::Link => self.link,
            CountedLayer::Line => self.line,
        }
    }

    /// Returns the maximum packets per second of a line (RFC 2544 section 20).
    pub fn maximum_load(self, line: BitRate) -> OfferedLoad {
        OfferedLoad::from_bit_rate(line, CountedLayer::Line, self)
    }
}

/// Load in packets per second; a [`FrameSize`] converts it to a bit rate.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OfferedLoad(pub f64);

impl OfferedLoad {
    /// Returns the load whose packets have this bit rate at this layer.
    pub fn from_bit_rate(rate: BitRate, layer: CountedLayer, frame: FrameSize) -> OfferedLoad {
        OfferedLoad(rate.as_f64() / (8.0 * f64::from(frame.bytes(layer))))
    }

    /// Returns the bit rate at a layer, bits per second.
    pub fn bits_per_second(self, layer: CountedLayer, frame: FrameSize) -> f64 {
        self.0 * 8.0 * f64::from(frame.bytes(layer))
    }
}

/// Length of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Length {
    /// Duration.
    Time(Duration),
    /// Number of packets.
    Packets(u64),
}

/// Pauses after a trial (RFC 2544 section 23).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pauses {
    /// Time after the last packet for packets still in flight.
    pub drain: Duration,
    /// Further time for the device to settle before the next trial.
    pub settle: Duration,
}

impl Pauses {
    /// 2 s for residual frames, 5 s for stabilization.
    pub const RFC2544: Pauses = Pauses { drain: Duration::from_secs(2), settle: Duration::from_secs(5) };
}

/// One trial, with evenly spaced packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Packets per second.
    pub load: OfferedLoad,
    /// Packet size.
    pub frame: FrameSize,
    /// Length of the trial.
    pub length: Length,
    /// Pauses after the trial.
    pub pauses: Pauses,
    /// Time after the start at which the next packet is tagged: the delay of that packet is reported
    /// separately.
    pub tag_after: Option<Duration>,
}

impl Trial {
    /// Returns a trial of this duration without a tagged packet.
    pub fn with_duration(duration: Duration, load: OfferedLoad, frame: FrameSize, pauses: Pauses) -> Trial {
        Trial { load, frame, length: Length::Time(duration), pauses, tag_after: None }
    }

    /// Returns the number of packets to send.
    pub fn packets(&self) -> u64 {
        match self.length {
            Length::Time(duration) => libm::round(self.load.0 * duration.as_secs_f64()) as u64,
            Length::Packets(packets) => packets,
        }
    }

    /// Returns how long sending takes.
    pub fn duration(&self) -> Duration {
        match self.length {
            Length::Time(duration) => duration,
            Length::Packets(packets) => Duration::from_secs_f64(packets as f64 / self.load.0),
        }
    }
}

/// Statistics of the one-way delays of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelayStatistics {
    /// Minimum.
    pub minimum: Duration,
    /// Mean.
    pub mean: Duration,
    /// Median.
    pub median: Duration,
    /// 99 % quantile, if there are enough values for it.
    pub p99: Option<Duration>,
    /// 99.9 % quantile, if there are enough values for it.
    pub p999: Option<Duration>,
    /// Maximum.
    pub maximum: Duration,
}

impl DelayStatistics {
    /// Computes the statistics of a histogram of nanoseconds; `None` if it is empty.
    pub fn from_histogram(histogram: &Histogram) -> Option<DelayStatistics> {
        let quantile = |share| histogram.quantile(share).map(Duration);
        Some(DelayStatistics {
            minimum: quantile(0.0)?,
            mean: Duration::from_secs_f64(histogram.mean() / 1e9),
            median: quantile(0.5)?,
            p99: histogram.estimate(0.99).map(|estimate| Duration(estimate.value)),
            p999: histogram.estimate(0.999).map(|estimate| Duration(estimate.value)),
            maximum: quantile(1.0)?,
        })
    }

    /// Returns the delay variation: the 99.9 % quantile above the minimum (ITU-T Y.1563). With too few values for the
    /// quantile, it is the maximum above the minimum, an upper bound.
    pub fn variation(&self) -> Duration {
        self.p999.unwrap_or(self.maximum) - self.minimum
    }
}

/// Lateness of the emulated links on a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkLateness {
    /// Packets that left a link late and may have formed a burst at the next one.
    pub packets: u64,
    /// Maximum lateness of a packet.
    pub max: Duration,
    /// Time at which this packet was due.
    pub at: Instant,
}

/// Result of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialResult {
    /// Packets sent by the generator.
    pub sent: u64,
    /// Packets sent late, by the generator or an emulated link, in a burst that may have caused losses itself.
    pub late: u64,
    /// Maximum time between the timestamp of a packet and its departure.
    pub held: Duration,
    /// Lateness of the emulated links, whose late packets are among those sent late.
    pub links: LinkLateness,
    /// Packets received intact, without duplicates.
    pub received: u64,
    /// Packets that arrived at the receiver's host but were dropped there by the socket buffer.
    pub receiver_dropped: u64,
    /// Duplicates of packets already received.
    pub duplicated: u64,
    /// Packets received after one sent later.
    pub reordered: u64,
    /// Packets received with a damaged payload.
    pub corrupted: u64,
    /// Time from the first packet's departure to the last one's, plus one gap, so that `sent` divided by this
    /// is the offered load.
    pub sending: Duration,
    /// Packets that arrived within a window as long as the time of sending, if the driver counts them.
    pub arrivals: Option<Arrivals>,
    /// One-way delays, if the driver can measure them.
    pub delays: Option<DelayStatistics>,
    /// Delay of the tagged packet, if it was received.
    pub tagged_delay: Option<Duration>,
}

impl TrialResult {
    /// Returns the packets lost between generator and receiver; drops at the receiver's host are not counted.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received.saturating_add(self.receiver_dropped))
    }

    /// Returns the share of sent packets lost on the path; NaN if nothing was sent.
    pub fn loss_ratio(&self) -> f64 {
        self.lost() as f64 / self.sent as f64
    }

    /// Returns the offered load.
    pub fn offered(&self) -> OfferedLoad {
        OfferedLoad(self.sent as f64 / self.sending.as_secs_f64())
    }

    /// Returns the offered load minus loss. It exceeds the rate of the line if a queue of the path held a part of the
    /// packets at the end.
    pub fn kept(&self) -> OfferedLoad {
        OfferedLoad(self.offered().0 * self.received as f64 / self.sent as f64)
    }

    /// Returns the received rate: the offered load minus loss, but at most the rate at which the packets arrived.
    pub fn delivered(&self) -> OfferedLoad {
        let arrived = self.arrivals.and_then(|arrivals| arrivals.rate());
        OfferedLoad(arrived.map_or(self.kept().0, |rate| rate.0.min(self.kept().0)))
    }

    /// Returns the load that a trial without losses shows to be carried: the load itself, or the rate at which its packets
    /// arrived. A queue of the path may have absorbed the rest, and no device carries less than what arrived.
    pub fn carried(&self, load: OfferedLoad) -> OfferedLoad {
        let arrived = self.arrivals.and_then(|arrivals| arrivals.rate());
        arrived.filter(|arrived| arrived.0 < load.0 * (1.0 - ROUNDING)).unwrap_or(load)
    }

    /// Returns the rate at which the packets of a load arrived, if a queue of the path absorbed a part of it: the last packets
    /// arrived later than a gap and the lateness of an emulated link explain.
    pub fn absorbed(&self, load: OfferedLoad, duration: Duration) -> Option<OfferedLoad> {
        let arrived = load.0.min(self.delivered().0);
        let delay = duration.as_secs_f64() * (1.0 - arrived / load.0);
        (delay > 1.0 / load.0 + MAX_LINK_LATENESS.as_secs_f64()).then_some(OfferedLoad(arrived))
    }

    /// Returns the fault of the tester, if any. `tolerance` is the share by which the generator may miss the
    /// requested load.
    pub fn fault(&self, trial: &Trial, tolerance: f64) -> Option<TesterFault> {
        if self.sent == 0 || self.sending == Duration::ZERO {
            return Some(TesterFault::NothingSent);
        }
        let (requested, offered) = (trial.load, self.offered());
        if offered.0 < requested.0 * (1.0 - tolerance) {
            return Some(TesterFault::GeneratorShort { requested, offered });
        }
        if offered.0 > requested.0 * (1.0 + tolerance) {
            return Some(TesterFault::GeneratorFast { requested, offered });
        }
        let lost = self.lost();
        let is_many = self.links.packets as f64 > tolerance * self.sent as f64;
        if is_many || lost > 0 && lost <= self.links.packets {
            return Some(TesterFault::LinkLate {
                packets: self.links.packets,
                time: self.links.max,
                at: self.links.at,
            });
        }
        if lost > 0 && lost <= self.late {
            return Some(TesterFault::GeneratorLate { packets: self.late, lost });
        }
        let complete = trial.packets() as f64 * (1.0 - tolerance);
        if (self.sent as f64) < libm::floor(complete) {
            return Some(TesterFault::GeneratorStopped { requested: trial.packets(), sent: self.sent });
        }
        (self.receiver_dropped > 0)
            .then_some(TesterFault::ReceiverDropped { requested, packets: self.receiver_dropped })
    }

    /// Returns the fault of the tester, if any, in a trial that measures delays.
    pub fn fault_of_delays(&self, trial: &Trial, tolerance: f64) -> Option<TesterFault> {
        let fault = self.fault(trial, tolerance);
        let held = (self.held > MAX_DELAY_ERROR).then_some(TesterFault::GeneratorHeld { time: self.held });
        let late = self.links.max > MAX_LINK_LATENESS;
        let late = late.then_some(TesterFault::LinkDelayed { time: self.links.max, at: self.links.at });
        fault.or(held).or(late)
    }

    /// Returns by how much delays of the trial may be too long, because an emulated link was late.
    pub fn delay_error(&self) -> Duration {
        if self.links.max > MAX_DELAY_ERROR { self.links.max } else { Duration::ZERO }
    }
}

/// Fault of the tester in a trial, which must not be attributed to the device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TesterFault {
    /// No packet was sent.
    NothingSent,
    /// Offered load below the requested load.
    GeneratorShort {
        /// Requested load.
        requested: OfferedLoad,
        /// Offered load.
        offered: OfferedLoad,
    },
    /// Offered load above the requested load.
    GeneratorFast {
        /// Requested load.
        requested: OfferedLoad,
        /// Offered load.
        offered: OfferedLoad,
    },
    /// Losses that bursts of late packets may have caused.
    GeneratorLate {
        /// Packets sent late.
        packets: u64,
        /// Packets lost.
        lost: u64,
    },
    /// Packets that left an emulated link late and may have changed the losses at the next one.
    LinkLate {
        /// Packets that left late.
        packets: u64,
        /// Maximum lateness.
        time: Duration,
        /// Time at which the latest was due.
        at: Instant,
    },
    /// Packets that left an emulated link so late that the delays are wrong.
    LinkDelayed {
        /// Maximum lateness.
        time: Duration,
        /// Time at which this packet was due.
        at: Instant,
    },
    /// Sending at the requested load that ended early.
    GeneratorStopped {
        /// Requested number of packets.
        requested: u64,
        /// Packets sent.
        sent: u64,
    },
    /// Packets that left long after their timestamp, so that the delays are wrong.
    GeneratorHeld {
        /// Maximum time.
        time: Duration,
    },
    /// Packets delivered by the path but dropped by the receiver's host.
    ReceiverDropped {
        /// Requested load.
        requested: OfferedLoad,
        /// Number of packets dropped.
        packets: u64,
    },
}

/// Handling of tester faults by a search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultTolerance {
    /// Share by which the generator may miss the requested load.
    pub tolerance: f64,
    /// Number of times a faulty trial is repeated before its load is given up.
    pub repeats: u32,
}

impl Default for FaultTolerance {
    /// A tolerance of 1 % and two repeats.
    fn default() -> FaultTolerance {
        FaultTolerance { tolerance: 0.01, repeats: 2 }
    }
}

/// Decision on a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Admission {
    /// Count the trial.
    Counted,
    /// Run the same trial again.
    Repeat,
    /// Continue at or below this load: the tester cannot handle more.
    Lowered(OfferedLoad),
    /// End the search: the tester is unusable.
    Abandoned,
}

/// Separates faults of the tester from results of the device.
#[derive(Clone, Debug)]
pub(crate) struct Referee {
    patience: FaultTolerance,
    repeated: u32,
    /// Highest load offered in the repeats of the current trial, since a lower one may be chance.
    max_offered: f64,
    faults: Vec<TesterFault>,
}

impl Referee {
    pub(crate) fn new(patience: FaultTolerance) -> Referee {
        Referee { patience, repeated: 0, max_offered: 0.0, faults: Vec::new() }
    }

    pub(crate) fn admit(&mut self, trial: &Trial, result: &TrialResult) -> Admission {
        self.decide(result, result.fault(trial, self.patience.tolerance))
    }

    /// Decides on a trial with this fault.
    pub(crate) fn decide(&mut self, result: &TrialResult, fault: Option<TesterFault>) -> Admission {
        let Some(fault) = fault else {
            (self.repeated, self.max_offered) = (0, 0.0);
            return Admission::Counted;
        };
        self.faults.push(fault);
        if let TesterFault::GeneratorShort { offered, .. } = fault {
            self.max_offered = self.max_offered.max(offered.0);
        }
        if self.repeated < self.patience.repeats {
            self.repeated += 1;
            return Admission::Repeat;
        }
        let max_offered = OfferedLoad(core::mem::take(&mut self.max_offered));
        self.repeated = 0;
        match fault {
            TesterFault::GeneratorShort { .. } => Admission::Lowered(max_offered),
            TesterFault::ReceiverDropped { requested, .. } => {
                // Lower the load by at least 1 %, so that a search always ends.
                let kept = (result.received as f64 / result.sent as f64).min(0.99);
                Admission::Lowered(OfferedLoad(requested.0 * kept))
            }
            TesterFault::NothingSent
            | TesterFault::GeneratorFast { .. }
            | TesterFault::GeneratorLate { .. }
            | TesterFault::LinkLate { .. }
            | TesterFault::LinkDelayed { .. }
            | TesterFault::GeneratorHeld { .. }
            | TesterFault::GeneratorStopped { .. } => Admission::Abandoned,
        }
    }

    pub(crate) fn faults(&self) -> &[TesterFault] {
        &self.faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(load: f64) -> Trial {
        Trial::with_duration(
            Duration::from_secs(10),
            OfferedLoad(load),
            FrameSize::ethernet_udp(64),
            Pauses::RFC2544,
        )
    }

    fn sent(packets: u64, received: u64) -> TrialResult {
        TrialResult { sent: packets, received, sending: Duration::from_secs(10), ..TrialResult::default() }
    }

    #[test]
    fn line_rates_match_published_values() {
        // Maximum frame rates of 10 and 100 Mbit/s Ethernet.
        let frames = |link, rate| FrameSize::ethernet_udp(link).maximum_load(BitRate(rate)).0;
        assert_eq!(frames(64, 10_000_000) as u64, 14_880);
        assert_eq!(frames(1518, 10_000_000) as u64, 812);
        assert_eq!(frames(64, 100_000_000) as u64, 148_809);
        assert_eq!(FrameSize::ethernet_udp(64).payload, 18);
        let frame = FrameSize::ethernet_udp(84).over_ipv6();
        assert_eq!((frame.payload, frame.ip, frame.link), (18, 66, 84));
    }

    #[test]
    fn delay_statistics_match_the_histogram() {
        let mut histogram = Histogram::default();
        assert_eq!(DelayStatistics::from_histogram(&histogram), None);
        (1..=1000).for_each(|nanoseconds| histogram.record(nanoseconds));
        let delays = DelayStatistics::from_histogram(&histogram).unwrap();
        assert_eq!((delays.minimum, delays.median, delays.p999), (Duration(1), Duration(500), None));
    }

    #[test]
    fn receiver_drops_are_not_counted_as_loss() {
        let result = TrialResult { receiver_dropped: 30, ..sent(1000, 960) };
        assert_eq!((result.lost(), result.loss_ratio()), (10, 0.01));
        assert_eq!(
            result.fault(&trial(100.0), 0.01),
            Some(TesterFault::ReceiverDropped { requested: OfferedLoad(100.0), packets: 30 })
        );
    }

    #[test]
    fn generator_that_misses_its_load_is_a_fault() {
        assert_eq!(sent(1000, 1000).fault(&trial(100.0), 0.01), None);
        assert!(matches!(
            sent(980, 980).fault(&trial(100.0), 0.01),
            Some(TesterFault::GeneratorShort { .. })
        ));
        assert!(matches!(
            sent(1020, 980).fault(&trial(100.0), 0.01),
            Some(TesterFault::GeneratorFast { .. })
        ));
        assert_eq!(sent(0, 0).fault(&trial(100.0), 0.01), Some(TesterFault::NothingSent));
        let stopped = TrialResult { sending: Duration::from_secs(5), ..sent(500, 500) };
        assert_eq!(
            stopped.fault(&trial(100.0), 0.01),
            Some(TesterFault::GeneratorStopped { requested: 1000, sent: 500 })
        );
    }

    #[test]
    fn packets_held_after_their_timestamp_are_a_fault_of_delays_only() {
        let held = |held| TrialResult { held, ..sent(1000, 1000) };
        assert_eq!(held(Duration::from_millis(1)).fault_of_delays(&trial(100.0), 0.01), None);
        let stopped = held(Duration::from_millis(20));
        assert_eq!(stopped.fault(&trial(100.0), 0.01), None);
        assert_eq!(
            stopped.fault_of_delays(&trial(100.0), 0.01),
            Some(TesterFault::GeneratorHeld { time: Duration::from_millis(20) })
        );
    }

    #[test]
    fn late_links_are_a_fault_that_can_explain_the_result() {
        let late = |packets, received, ms| {
            let links = LinkLateness { packets, max: Duration::from_millis(ms), at: Instant(7) };
            TrialResult { late: packets, links, ..sent(1000, received) }
        };
        let fault = |result: TrialResult| result.fault(&trial(100.0), 0.01);
        assert_eq!((fault(late(10, 1000, 9)), fault(late(9, 990, 9))), (None, None));
        let (time, at) = (Duration::from_millis(9), Instant(7));
        assert_eq!(fault(late(11, 1000, 9)), Some(TesterFault::LinkLate { packets: 11, time, at }));
        assert_eq!(fault(late(9, 991, 9)), Some(TesterFault::LinkLate { packets: 9, time, at }));
        let delayed = TesterFault::LinkDelayed { time, at };
        assert_eq!(late(0, 1000, 9).fault_of_delays(&trial(100.0), 0.01), Some(delayed));
        for (ms, error) in [(1, 0), (5, 5)] {
            assert_eq!(late(0, 1000, ms).fault_of_delays(&trial(100.0), 0.01), None);
            assert_eq!(late(0, 1000, ms).delay_error(), Duration::from_millis(error));
        }
    }

    #[test]
    fn load_is_lowered_after_the_repeats() {
        let mut validator = Referee::new(FaultTolerance::default());
        let outcomes: [Admission; 3] =
            core::array::from_fn(|_| validator.admit(&trial(100.0), &sent(900, 900)));
        assert_eq!(outcomes, [Admission::Repeat, Admission::Repeat, Admission::Lowered(OfferedLoad(90.0))]);
        assert_eq!(validator.faults().len(), 3);
        assert_eq!(validator.admit(&trial(90.0), &sent(900, 900)), Admission::Counted);
    }
}
