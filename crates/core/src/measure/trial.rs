//! What a search asks for and what it learns: one trial after another. A search proposes,
//! a driver (simulator or live engine) performs; nothing here sends a packet.
//!
//! The driver's side is three calls, in this order until the first answers `None`:
//! [`Search::next`], the trial itself, [`Search::record`]. [`Search::result`] may be asked
//! for at any time, and is final once `next` has answered `None`.

use super::Histogram;
use crate::quantity::BitRate;
use crate::time::Duration;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A strategy that proposes trials and learns from their results.
pub trait Search {
    /// What it finds.
    type Outcome;

    /// The next trial; the same again until its result is recorded, `None` at the end.
    fn next(&mut self) -> Option<Trial>;

    /// The result of the trial that [`Search::next`] proposed last.
    ///
    /// Panics if there is none: results answer proposals, one each.
    fn record(&mut self, result: &TrialResult);

    /// What is known so far.
    fn result(&self) -> Self::Outcome;
}

/// Drive a search to its end with a function that performs a trial.
pub fn run<S: Search>(search: &mut S, mut perform: impl FnMut(&Trial) -> TrialResult) -> S::Outcome {
    while let Some(trial) = search.next() {
        search.record(&perform(&trial));
    }
    search.result()
}

/// Which bytes of a packet a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// What the transport carries.
    Payload,
    /// The IP packet.
    Ip,
    /// The frame with its headers and check sequence.
    Link,
    /// The frame with preamble and the gap to the next: what fills the line.
    Line,
}

/// Bytes of one test packet at each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameSize {
    /// Bytes the transport carries.
    pub payload: u32,
    /// Bytes of the IP packet.
    pub ip: u32,
    /// Bytes of the frame, check sequence included, as RFC 2544 counts.
    pub link: u32,
    /// Bytes of time the frame takes on the line.
    pub line: u32,
}

/// Ethernet header and frame check sequence.
const ETHERNET: u32 = 18;
/// Ethernet preamble, start delimiter and inter-frame gap.
const ETHERNET_GAP: u32 = 20;

impl FrameSize {
    /// UDP over IPv4 in an untagged Ethernet frame of `link` bytes with its check sequence.
    pub const fn ethernet_udp(link: u32) -> FrameSize {
        let ip = link.saturating_sub(ETHERNET);
        let payload = ip.saturating_sub(netstage_wire::IPV4_HEADER + netstage_wire::UDP_HEADER);
        FrameSize { payload, ip, link, line: link + ETHERNET_GAP }
    }

    /// UDP over IPv4 on a line that carries bare IP packets of `ip` bytes, without framing.
    pub const fn bare_udp(ip: u32) -> FrameSize {
        let payload = ip.saturating_sub(netstage_wire::IPV4_HEADER + netstage_wire::UDP_HEADER);
        FrameSize { payload, ip, link: ip, line: ip }
    }

    /// Bytes at a layer.
    pub const fn bytes(self, layer: Layer) -> u32 {
        match layer {
            Layer::Payload => self.payload,
            Layer::Ip => self.ip,
            Layer::Link => self.link,
            Layer::Line => self.line,
        }
    }

    /// The most packets per second a line carries (RFC 2544 section 20).
    pub fn maximum_load(self, line: BitRate) -> Load {
        Load::of_bits(line, Layer::Line, self)
    }
}

/// An offered load in packets per second; a [`FrameSize`] turns it into a bit rate.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Load(pub f64);

impl Load {
    /// The load whose packets make this bit rate at this layer.
    pub fn of_bits(rate: BitRate, layer: Layer, frame: FrameSize) -> Load {
        Load(rate.as_f64() / (8.0 * f64::from(frame.bytes(layer))))
    }

    /// Bits per second at a layer.
    pub fn bits_per_second(self, layer: Layer, frame: FrameSize) -> f64 {
        self.0 * 8.0 * f64::from(frame.bytes(layer))
    }
}

/// How long a trial sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Length {
    /// For this long.
    Time(Duration),
    /// This many packets.
    Packets(u64),
}

/// The pauses of a trial (RFC 2544 section 23).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pauses {
    /// After the last packet, time for those still on their way.
    pub drain: Duration,
    /// After that, time for the device to settle before the next trial.
    pub settle: Duration,
}

impl Pauses {
    /// 2 s for residual frames, 5 s to stabilise.
    pub const RFC2544: Pauses = Pauses { drain: Duration::from_secs(2), settle: Duration::from_secs(5) };
}

/// One trial: what to send, evenly spaced.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Packets per second.
    pub load: Load,
    /// Size of every packet.
    pub frame: FrameSize,
    /// How long.
    pub length: Length,
    /// Pauses after it.
    pub pauses: Pauses,
    /// The first packet sent this long after the start is tagged: its delay is reported alone.
    pub tag_after: Option<Duration>,
}

impl Trial {
    /// A trial of so long, in which no packet is tagged.
    pub fn lasting(duration: Duration, load: Load, frame: FrameSize, pauses: Pauses) -> Trial {
        Trial { load, frame, length: Length::Time(duration), pauses, tag_after: None }
    }

    /// Packets a generator without fault sends.
    pub fn packets(&self) -> u64 {
        match self.length {
            Length::Time(duration) => libm::round(self.load.0 * duration.as_secs_f64()) as u64,
            Length::Packets(packets) => packets,
        }
    }

    /// Time a generator without fault sends for.
    pub fn duration(&self) -> Duration {
        match self.length {
            Length::Time(duration) => duration,
            Length::Packets(packets) => Duration::from_secs_f64(packets as f64 / self.load.0),
        }
    }
}

/// One-way delays of a trial's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delays {
    /// The least.
    pub minimum: Duration,
    /// Their mean.
    pub mean: Duration,
    /// Half are at most this.
    pub median: Duration,
    /// 99 % are at most this.
    pub p99: Duration,
    /// 99.9 % are at most this.
    pub p999: Duration,
    /// The largest.
    pub maximum: Duration,
}

impl Delays {
    /// Of a histogram of nanoseconds; `None` if it is empty.
    pub fn of(histogram: &Histogram) -> Option<Delays> {
        let quantile = |share| histogram.quantile(share).map(Duration);
        Some(Delays {
            minimum: quantile(0.0)?,
            mean: Duration::from_secs_f64(histogram.mean() / 1e9),
            median: quantile(0.5)?,
            p99: quantile(0.99)?,
            p999: quantile(0.999)?,
            maximum: quantile(1.0)?,
        })
    }
}

/// What came of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialResult {
    /// Packets that left the generator.
    pub sent: u64,
    /// Of those, packets received intact, each counted once.
    pub received: u64,
    /// Packets that reached the receiver's host and were dropped there, by its socket buffer.
    pub receiver_dropped: u64,
    /// Further copies of packets already received.
    pub duplicated: u64,
    /// Packets received after one sent later.
    pub reordered: u64,
    /// Packets received with a damaged payload.
    pub corrupted: u64,
    /// From the first packet's departure to the last one's, and one gap more, so that
    /// `sent` over this is the load offered.
    pub sending: Duration,
    /// One-way delays, where the driver can measure them.
    pub delays: Option<Delays>,
    /// Delay of the tagged packet, if it was received.
    pub tagged_delay: Option<Duration>,
}

impl TrialResult {
    /// Packets lost between generator and receiver; the receiver's own drops are not the path's.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received.saturating_add(self.receiver_dropped))
    }

    /// Share of sent packets the path lost; NaN if nothing was sent.
    pub fn loss_ratio(&self) -> f64 {
        self.lost() as f64 / self.sent as f64
    }

    /// The load the generator offered.
    pub fn offered(&self) -> Load {
        Load(self.sent as f64 / self.sending.as_secs_f64())
    }

    /// The rate at which packets came through: offered load less loss.
    pub fn delivered(&self) -> Load {
        Load(self.offered().0 * self.received as f64 / self.sent as f64)
    }

    /// What the tester itself did wrong, if anything. `tolerance` is the share by which the
    /// generator may miss the load asked for.
    pub fn fault(&self, trial: &Trial, tolerance: f64) -> Option<Fault> {
        if self.sent == 0 || self.sending == Duration::ZERO {
            return Some(Fault::NothingSent);
        }
        let (asked, offered) = (trial.load, self.offered());
        if offered.0 < asked.0 * (1.0 - tolerance) {
            return Some(Fault::GeneratorShort { asked, offered });
        }
        if offered.0 > asked.0 * (1.0 + tolerance) {
            return Some(Fault::GeneratorFast { asked, offered });
        }
        let complete = trial.packets() as f64 * (1.0 - tolerance);
        if (self.sent as f64) < libm::floor(complete) {
            return Some(Fault::GeneratorStopped { asked: trial.packets(), sent: self.sent });
        }
        (self.receiver_dropped > 0)
            .then_some(Fault::ReceiverDropped { asked, packets: self.receiver_dropped })
    }
}

/// What the tester itself did wrong in a trial: nothing of it is held against the device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// No packet left the generator.
    NothingSent,
    /// The generator offered less than asked.
    GeneratorShort {
        /// What the trial asked for.
        asked: Load,
        /// What left.
        offered: Load,
    },
    /// The generator offered more than asked.
    GeneratorFast {
        /// What the trial asked for.
        asked: Load,
        /// What left.
        offered: Load,
    },
    /// The generator kept its rate but ended early.
    GeneratorStopped {
        /// Packets the trial asked for.
        asked: u64,
        /// Packets that left.
        sent: u64,
    },
    /// The receiver's host dropped packets the path had delivered.
    ReceiverDropped {
        /// The load at which it did.
        asked: Load,
        /// How many.
        packets: u64,
    },
}

/// How much a search bears from its tester.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Patience {
    /// Share by which the generator may miss the load asked for.
    pub tolerance: f64,
    /// How often a faulty trial is repeated before its load is given up.
    pub repeats: u32,
}

impl Default for Patience {
    /// 1 %, and two repeats.
    fn default() -> Patience {
        Patience { tolerance: 0.01, repeats: 2 }
    }
}

/// Whether a trial counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Admission {
    /// It does.
    Counted,
    /// It does not; the same trial is run again.
    Repeat,
    /// The tester cannot measure such loads, but may this one.
    Lowered(Load),
    /// The tester cannot be used.
    Abandoned,
}

/// Keeps the tester's faults apart from the device's.
#[derive(Clone, Debug)]
pub(crate) struct Referee {
    patience: Patience,
    repeated: u32,
    /// The most offered in the trial at hand: less may be chance.
    most: f64,
    faults: Vec<Fault>,
}

impl Referee {
    pub(crate) fn new(patience: Patience) -> Referee {
        Referee { patience, repeated: 0, most: 0.0, faults: Vec::new() }
    }

    pub(crate) fn admit(&mut self, trial: &Trial, result: &TrialResult) -> Admission {
        let Some(fault) = result.fault(trial, self.patience.tolerance) else {
            (self.repeated, self.most) = (0, 0.0);
            return Admission::Counted;
        };
        self.faults.push(fault);
        if let Fault::GeneratorShort { offered, .. } = fault {
            self.most = self.most.max(offered.0);
        }
        if self.repeated < self.patience.repeats {
            self.repeated += 1;
            return Admission::Repeat;
        }
        let most = Load(core::mem::take(&mut self.most));
        self.repeated = 0;
        match fault {
            Fault::GeneratorShort { .. } => Admission::Lowered(most),
            Fault::ReceiverDropped { asked, .. } => {
                // At least 1 % down, so that a search always ends.
                let kept = (result.received as f64 / result.sent as f64).min(0.99);
                Admission::Lowered(Load(asked.0 * kept))
            }
            Fault::NothingSent | Fault::GeneratorFast { .. } | Fault::GeneratorStopped { .. } => {
                Admission::Abandoned
            }
        }
    }

    pub(crate) fn faults(&self) -> &[Fault] {
        &self.faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(load: f64) -> Trial {
        Trial::lasting(Duration::from_secs(10), Load(load), FrameSize::ethernet_udp(64), Pauses::RFC2544)
    }

    fn sent(packets: u64, received: u64) -> TrialResult {
        TrialResult { sent: packets, received, sending: Duration::from_secs(10), ..TrialResult::default() }
    }

    #[test]
    fn line_rates_are_the_published_ones() {
        // RFC 2544's testers: frames per second of 10 and 100 Mbit/s Ethernet.
        let frames = |link, rate| FrameSize::ethernet_udp(link).maximum_load(BitRate(rate)).0;
        assert_eq!(frames(64, 10_000_000) as u64, 14_880);
        assert_eq!(frames(1518, 10_000_000) as u64, 812);
        assert_eq!(frames(64, 100_000_000) as u64, 148_809);
        assert_eq!(FrameSize::ethernet_udp(64).payload, 18);
    }

    #[test]
    fn delays_are_those_of_the_histogram() {
        let mut histogram = Histogram::default();
        assert_eq!(Delays::of(&histogram), None);
        (1..=1000).for_each(|nanoseconds| histogram.record(nanoseconds));
        let delays = Delays::of(&histogram).unwrap();
        assert_eq!((delays.minimum, delays.median, delays.p999), (Duration(1), Duration(500), Duration(999)));
    }

    #[test]
    fn the_receivers_drops_are_not_the_paths() {
        let result = TrialResult { receiver_dropped: 30, ..sent(1000, 960) };
        assert_eq!((result.lost(), result.loss_ratio()), (10, 0.01));
        assert_eq!(
            result.fault(&trial(100.0), 0.01),
            Some(Fault::ReceiverDropped { asked: Load(100.0), packets: 30 })
        );
    }

    #[test]
    fn a_generator_that_misses_its_load_is_named() {
        assert_eq!(sent(1000, 1000).fault(&trial(100.0), 0.01), None);
        assert!(matches!(sent(980, 980).fault(&trial(100.0), 0.01), Some(Fault::GeneratorShort { .. })));
        assert!(matches!(sent(1020, 980).fault(&trial(100.0), 0.01), Some(Fault::GeneratorFast { .. })));
        assert_eq!(sent(0, 0).fault(&trial(100.0), 0.01), Some(Fault::NothingSent));
        let stopped = TrialResult { sending: Duration::from_secs(5), ..sent(500, 500) };
        assert_eq!(
            stopped.fault(&trial(100.0), 0.01),
            Some(Fault::GeneratorStopped { asked: 1000, sent: 500 })
        );
    }

    #[test]
    fn a_load_is_given_up_after_the_repeats() {
        let mut referee = Referee::new(Patience::default());
        let outcomes: [Admission; 3] =
            core::array::from_fn(|_| referee.admit(&trial(100.0), &sent(900, 900)));
        assert_eq!(outcomes, [Admission::Repeat, Admission::Repeat, Admission::Lowered(Load(90.0))]);
        assert_eq!(referee.faults().len(), 3);
        assert_eq!(referee.admit(&trial(90.0), &sent(900, 900)), Admission::Counted);
    }
}
