//! Reports of agents. They are sent as JSON inside messages of the agent protocol, and spooled in the same
//! form.

use crate::service::ServiceResult;
use netstage_core::measure::{Arrivals, Histogram, VoidReason};
use netstage_core::tcp::history::Bin;
use netstage_core::time::Duration;
use netstage_core::traffic::application::{Quality, QualityDistributions};
use serde::{Deserialize, Serialize};

/// Maximum time for which a receiver listens after the end of its flow, as in RFC 2544 section 23.
pub const MAX_DRAIN: Duration = Duration::from_secs(2);

/// Results of one agent in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentReport {
    /// Name of the node the agent represents.
    pub node: String,
    /// Flows, in the order of the assignment.
    pub flows: Vec<FlowResult>,
    /// VPN flows that enter the network here, if this is a provider edge router.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vpns: Vec<VpnResult>,
    /// Resources the agent's process had used at the start and at the end of each bin, if this is a router.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usage: Vec<Usage>,
    /// Window changes of the watched flows sent by the agent.
    #[serde(default, skip_serializing_if = "WatchedWindows::is_empty")]
    pub watched: WatchedWindows,
    /// Services of which it is the client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceResult>,
    /// Packets of the run that the policy of the agent dropped, by rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policy_drops: Vec<PolicyDrops>,
    /// Warnings that limit the validity of the figures.
    pub warnings: Vec<String>,
    /// Reasons why the measurement is invalid: the agent itself fell short.
    pub void: Vec<VoidReason>,
    /// Set if the run was stopped early, so that the results cover only its beginning.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

/// Rule whose drops the kernel reports as congestion, not as an error of the sender.
const CONGESTING_RULE: &str = "rate";
/// Error of the system call for a packet that another rule dropped (EPERM).
const NOT_PERMITTED: i32 = 1;

impl AgentReport {
    /// Adds the packets that the policy dropped in the run. Errors that they caused name the rule instead of the error of
    /// the system call.
    pub fn with_policy_drops(mut self, drops: Vec<PolicyDrops>) -> AgentReport {
        if let Some(rules) = PolicyDrops::refusing_rules(&drops) {
            let not_permitted = std::io::Error::from_raw_os_error(NOT_PERMITTED).to_string();
            let flows = self.flows.iter_mut().map(|flow| &mut flow.error);
            let services = self.services.iter_mut().map(|service| &mut service.error);
            for error in flows.chain(services).flatten() {
                *error =
                    error.replace(&not_permitted, &format!("dropped by {rules} in the policy of the agent"));
            }
        }
        self.policy_drops = drops;
        self
    }
}

/// Packets that one rule of an agent's policy dropped or delayed, as they left the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyDrops {
    /// Name of the rule.
    pub rule: String,
    /// Value of the rule; empty for a list.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Packets of TCP, which adapts its rate.
    pub tcp: u64,
    /// Packets of all other protocols.
    pub other: u64,
    /// Round trips in which the rule slowed a TCP connection without a drop.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub paced: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl PolicyDrops {
    /// Returns the rules, with their values, whose drops are errors of the sender.
    pub fn refusing_rules(drops: &[PolicyDrops]) -> Option<String> {
        let refusing = drops.iter().filter(|drops| drops.rule != CONGESTING_RULE).map(PolicyDrops::rule);
        let rules: Vec<String> = refusing.collect();
        (!rules.is_empty()).then(|| rules.join(" and "))
    }

    /// Returns the rule with its value: `` `rate` = 10 Mbit/s ``.
    pub fn rule(&self) -> String {
        let value = if self.value.is_empty() { String::new() } else { format!(" = {}", self.value) };
        format!("`{}`{value}", self.rule)
    }

    /// Returns the drops since earlier ones, which have the same rules, or are empty if none were counted before.
    pub fn since(now: Vec<PolicyDrops>, earlier: &[PolicyDrops]) -> Vec<PolicyDrops> {
        let none = PolicyDrops::default();
        let pairs = now.into_iter().zip(earlier.iter().chain(std::iter::repeat(&none)));
        let new = pairs.map(|(now, earlier)| PolicyDrops {
            tcp: now.tcp.saturating_sub(earlier.tcp),
            other: now.other.saturating_sub(earlier.other),
            paced: now.paced.saturating_sub(earlier.paced),
            ..now
        });
        new.filter(|drops| drops.tcp + drops.other + drops.paced > 0).collect()
    }
}

/// VPN flow at the provider edge router where it enters the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VpnResult {
    /// Name of the VPN.
    pub vpn: String,
    /// Mean queue length in each bin, packets.
    pub queue: Vec<f64>,
    /// Packets dropped by the queue in each bin.
    pub queue_drops: Vec<u64>,
    /// State of the control at the end of each bin; empty if it has no window and no rate.
    pub control: Vec<ControlSample>,
}

/// Resources used by a process so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time in user mode, nanoseconds.
    pub user_ns: u64,
    /// CPU time in kernel mode, nanoseconds.
    pub system_ns: u64,
    /// Resident memory, bytes.
    pub resident: u64,
}

/// State of a VPN flow's control at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ControlSample {
    /// Window, packets; zero without one.
    pub window: f64,
    /// Additive increase a, packets per round trip.
    pub increase: f64,
    /// Multiplicative decrease b.
    pub decrease: f64,
    /// Rate permitted by rate consensus, bit/s; zero for a window.
    pub permitted_bps: f64,
    /// Measured loss ratio used by the control algorithm.
    pub loss: f64,
    /// Smoothed round trip, nanoseconds; zero before the first reply.
    pub round_trip_ns: u64,
    /// Packets lost in the core so far.
    pub lost: u64,
}

/// Results of one side of one flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowResult {
    /// Name of the flow.
    pub name: String,
    /// Set on the sending side.
    pub sends: bool,
    /// Counters of each bin.
    pub bins: Vec<BinCounts>,
    /// Packets and bytes that arrived after the last bin (receiver).
    #[serde(default)]
    pub drained: Drained,
    /// Arrivals of datagrams within a window as long as the time of sending (receiver).
    #[serde(default)]
    pub arrivals: Option<Arrivals>,
    /// Rate at which the host answers at most, per second, if it limits its answers to one-ended probes. The losses are then
    /// unknown, but at most as many as counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_limit: Option<f64>,
    /// Probes sent below the limit of the answers, after it was recognized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowered: Option<LoweredProbes>,
    /// Sender's TCP state at the end of each bin; empty without detail and for other transports.
    pub tcp: Vec<TcpSample>,
    /// Delays in each bin, where this side measures them; empty without detail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub travel: Vec<Travel>,
    /// One-way delay, nanoseconds, where this side measures it.
    pub delay: Buckets,
    /// One-way delay of STAMP replies, nanoseconds, where the sender measures it; `delay` is then that of the
    /// packets they answer.
    #[serde(default)]
    pub answer_delay: Buckets,
    /// Magnitude of the delay variation between consecutive packets (RFC 3393), nanoseconds.
    pub delay_variation: Buckets,
    /// Round trip, nanoseconds, where the sender measures it.
    pub round_trip: Buckets,
    /// Gaps between packets as sent, nanoseconds.
    pub gaps: Buckets,
    /// Accuracy of the sender's schedule.
    pub schedule: Option<Schedule>,
    /// Quality experienced by the user at this end in each bin; empty where the traffic is a pattern. Both ends
    /// of an application count what they send and receive.
    #[serde(default)]
    pub quality: Vec<Quality>,
    /// Distributions of the quality at this end, as [`Buckets`]. Empty in reports of earlier versions.
    #[serde(default, skip_serializing_if = "QualityDistributions::is_empty")]
    pub quality_distributions: QualityDistributions<Vec<(u64, u64)>>,
    /// Packets dropped by the receiver's own socket because its buffer was full.
    pub socket_drops: u64,
    /// Arrival of the last bytes, nanoseconds since the start of the run (receiver of a stream).
    #[serde(default)]
    pub last_bytes_ns: Option<u64>,
    /// Reason why the flow ended early, if it did.
    pub error: Option<String>,
}

impl FlowResult {
    /// Returns the packets of `sender` that this receiver lost, in each bin: the gaps it has seen, and the packets after
    /// the last one that arrived, which only the sender knows. They count in the bins in which they were sent.
    pub fn lost_in_bins(&self, sender: &FlowResult) -> Vec<u64> {
        let mut lost: Vec<u64> = self.bins.iter().map(|bin| bin.lost).collect();
        let sent: u64 = sender.bins.iter().map(|bin| bin.sent).fold(0, u64::saturating_add);
        let gaps = lost.iter().copied().fold(0, u64::saturating_add);
        let mut unseen = sent.saturating_sub(self.received()).saturating_sub(gaps);
        for (lost, bin) in lost.iter_mut().zip(&sender.bins).rev() {
            let last = unseen.min(bin.sent);
            *lost += last;
            unseen -= last;
        }
        lost
    }

    /// Returns the packets received in all bins and after the last one, without duplicates.
    pub fn received(&self) -> u64 {
        self.bins.iter().map(|bin| bin.received).fold(self.drained.packets, u64::saturating_add)
    }
}

/// One-ended probes sent below the limit of the host's answers. Their losses are known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoweredProbes {
    /// Time in the run from which probes were sent at the lower rate, nanoseconds.
    pub from_ns: u64,
    /// Maximum number of probes per second.
    pub rate: f64,
    /// Probes sent.
    pub sent: u64,
    /// Probes answered.
    pub answered: u64,
}

impl LoweredProbes {
    /// Returns the probes without answer.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.answered)
    }
}

/// Packets and payload bytes that arrived after the end of the run, such as those that were waiting in a queue. They belong
/// to no bin, but are not lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drained {
    /// Packets, without duplicates.
    pub packets: u64,
    /// Payload bytes, without duplicates.
    pub bytes: u64,
}

impl Drained {
    /// Adds other counters.
    pub fn add(&mut self, more: &Drained) {
        self.packets = self.packets.saturating_add(more.packets);
        self.bytes = self.bytes.saturating_add(more.bytes);
    }
}

/// Counters of one bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinCounts {
    /// Packets sent (sender).
    pub sent: u64,
    /// Payload bytes handed to the transport (sender).
    pub sent_bytes: u64,
    /// Payload bytes requested by the pattern (sender).
    pub offered_bytes: u64,
    /// Packets received, without duplicates (receiver).
    pub received: u64,
    /// Payload bytes delivered to the application, without duplicates (receiver).
    pub received_bytes: u64,
    /// Packets lost, counted in the bin in which the loss was detected (receiver).
    pub lost: u64,
    /// Duplicate packets received (receiver).
    pub duplicated: u64,
    /// Packets that arrived after one sent later (receiver; RFC 4737).
    pub reordered: u64,
    /// Packets whose payload differs from the one sent (receiver).
    pub corrupted: u64,
    /// Bits that differ (receiver).
    pub bit_errors: u64,
}

impl BinCounts {
    /// Adds other counters. Sums saturate, because a remote host may report any number.
    pub fn add(&mut self, more: &BinCounts) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.sent, more.sent);
        add(&mut self.sent_bytes, more.sent_bytes);
        add(&mut self.offered_bytes, more.offered_bytes);
        add(&mut self.received, more.received);
        add(&mut self.received_bytes, more.received_bytes);
        add(&mut self.lost, more.lost);
        add(&mut self.duplicated, more.duplicated);
        add(&mut self.reordered, more.reordered);
        add(&mut self.corrupted, more.corrupted);
        add(&mut self.bit_errors, more.bit_errors);
    }
}

/// Sender's TCP state at one moment (TCP_INFO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TcpSample {
    /// Congestion window, segments.
    pub window: u32,
    /// Slow-start threshold, segments.
    pub slow_start_threshold: u32,
    /// Smoothed round trip, nanoseconds.
    pub round_trip_ns: u64,
    /// Minimum round trip, nanoseconds.
    pub min_round_trip_ns: u64,
    /// Segments retransmitted so far.
    pub retransmissions: u64,
    /// Window the peer advertises, bytes.
    pub peer_window: u64,
    /// Delivery rate, bits per second of payload.
    pub delivery_rate_bps: u64,
    /// Time limited by the peer's window so far, nanoseconds.
    pub peer_window_limited_ns: u64,
    /// Time limited by the send buffer so far, nanoseconds.
    pub send_buffer_limited_ns: u64,
    /// Time busy sending so far, nanoseconds.
    pub busy_ns: u64,
}

impl TcpSample {
    /// Reports whether a connection was sampled.
    pub fn is_known(&self) -> bool {
        self.round_trip_ns > 0
    }
}

/// Delays of the packets of one bin: one-way at a receiver, round trip at a one-ended sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Travel {
    /// Packets whose delay is known.
    pub count: u64,
    /// Sum of the delays, nanoseconds.
    pub sum_ns: u64,
    /// Minimum delay, nanoseconds; zero without packets.
    pub min_ns: u64,
    /// Maximum delay, nanoseconds.
    pub max_ns: u64,
    /// Number of delay differences between consecutive packets (RFC 3393).
    pub variation_count: u64,
    /// Sum of the magnitudes of the differences, nanoseconds.
    pub variation_sum_ns: u64,
    /// Smoothed jitter at the end of the bin (RFC 3550 section 6.4.1), nanoseconds.
    pub jitter_ns: u64,
}

/// Accuracy of a sender's schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Packets requested by the pattern.
    pub requested: u64,
    /// Packets sent.
    pub sent: u64,
    /// Sent rate over requested rate, minus one.
    pub rate_error: f64,
    /// Share of gaps within 5 % of the requested ones.
    pub gaps_within_5_percent: f64,
    /// Lateness of sending, nanoseconds: median, 99th percentile, maximum. A percentile of too few packets is absent.
    pub late_ns: (Option<u64>, Option<u64>, u64),
    /// Packets not sent because they were too late.
    #[serde(default)]
    pub skipped: u64,
    /// Packets sent late, which may have caused losses themselves.
    #[serde(default)]
    pub late: u64,
    /// Maximum time between the timestamp of a packet and its departure, nanoseconds: an error of its delay.
    #[serde(default)]
    pub held_ns: u64,
    /// Maximum lateness of a scheduled packet, sent or not, and its scheduled time, nanoseconds.
    #[serde(default)]
    pub stall_ns: (u64, u64),
    /// Share of the time that the sender's thread spun, if a flow requested a CPU for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spun: Option<f64>,
}

/// Completed bin of one side of a flow, reported during the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletedBin {
    /// Number of the flow.
    pub flow: u32,
    /// Set on the sending side.
    pub sends: bool,
    /// Number of the bin.
    pub bin: u32,
    /// Counters at the end of the bin; the report may add to them.
    pub counts: BinCounts,
    /// Sender's TCP state at the end of the bin, where requested.
    pub tcp: Option<TcpSample>,
    /// Delays of its packets, where this side measures them.
    pub travel: Option<Travel>,
}

/// Window changes of a TCP flow in a completed bin, reported during the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletedWindow {
    /// Flow, or one direction of it.
    pub subject: String,
    /// Number of the bin.
    pub bin: u32,
    /// Window changes counted so far.
    pub window: Bin,
}

/// VPN flow at its ingress provider edge router at the end of a completed bin, reported while the run goes
/// on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletedVpn {
    /// Name of the VPN.
    pub vpn: String,
    /// Number of the bin.
    pub bin: u32,
    /// Mean queue length in the bin, packets.
    pub queue: f64,
    /// Packets dropped by the queue in the bin.
    pub queue_drops: u64,
    /// State of the control at the end of the bin, or `None` if it has no window and no rate.
    pub control: Option<ControlSample>,
}

/// Bins completed since the previous message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompletedBins {
    /// Bins of flow sides.
    pub bins: Vec<CompletedBin>,
    /// Bins of watched windows.
    pub windows: Vec<CompletedWindow>,
    /// Bins of VPN flows.
    pub vpns: Vec<CompletedVpn>,
}

impl CompletedBins {
    /// Appends bins completed later.
    pub fn extend(&mut self, later: CompletedBins) {
        self.bins.extend(later.bins);
        self.windows.extend(later.windows);
        self.vpns.extend(later.vpns);
    }
}

/// Window changes of the watched TCP flows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WatchedWindows {
    /// Bins of each flow, with the subject of the flow.
    pub flows: Vec<(String, Vec<Bin>)>,
    /// Events the kernel dropped because its buffer was full.
    pub lost: u64,
    /// Event types this kernel does not report.
    pub missing: Vec<String>,
}

impl WatchedWindows {
    /// Reports whether nothing was watched.
    pub fn is_empty(&self) -> bool {
        *self == WatchedWindows::default()
    }
}

/// Histogram: values in ascending order, each with its number of occurrences. Values are rounded like those
/// of an HDR histogram with three significant digits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Buckets(pub Vec<(u64, u64)>);

impl From<&Histogram> for Buckets {
    fn from(histogram: &Histogram) -> Buckets {
        Buckets(histogram.buckets().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::rng::RandomStream;

    #[test]
    fn errors_of_dropped_packets_name_the_rule() {
        let error = std::io::Error::from(std::io::ErrorKind::AddrInUse).to_string();
        let denied = std::io::Error::from_raw_os_error(NOT_PERMITTED).to_string();
        let flow = |error: &str| FlowResult { error: Some(error.into()), ..FlowResult::default() };
        let drops = |rule: &str, value: &str| PolicyDrops {
            rule: rule.into(),
            value: value.into(),
            other: 7,
            ..PolicyDrops::default()
        };
        let report = AgentReport {
            flows: vec![flow(&format!("7 packets were not sent: {denied}")), flow(&error)],
            ..AgentReport::default()
        };
        let errors = |drops: Vec<PolicyDrops>| {
            let report = report.clone().with_policy_drops(drops);
            report.flows.into_iter().filter_map(|flow| flow.error).collect::<Vec<_>>()
        };
        let unchanged = errors(vec![drops("rate", "1 Mbit/s")]);
        assert_eq!(unchanged, errors(Vec::new()));
        let named = errors(vec![drops("rate", "1 Mbit/s"), drops("bytes_per_day", "9 B")]);
        let expected = "7 packets were not sent: dropped by `bytes_per_day` = 9 B in the policy of the agent";
        assert_eq!(named, [expected, error.as_str()]);
    }

    /// Returns a sender and its receiver. The packets of the last `dead` bins and some others are lost; the receiver sees
    /// the gaps before the packets that arrive.
    fn flow(random: &mut RandomStream, dead: usize) -> (FlowResult, FlowResult, Vec<u64>) {
        let bins = 1 + random.below(10) as usize;
        let [mut sender, mut receiver] =
            [true, false].map(|sends| FlowResult { sends, ..FlowResult::default() });
        let (mut lost, mut gap) = (vec![0; bins], 0);
        for lost in &mut lost {
            let sent = random.below(20);
            let mut seen = BinCounts::default();
            for _ in 0..sent {
                let loss =
                    if sender.bins.len() + dead >= bins { 1.0 } else { [0.0, 0.5][random.below(2) as usize] };
                if random.chance(loss) {
                    (*lost, gap) = (*lost + 1, gap + 1);
                } else {
                    (seen.received, seen.lost, gap) = (seen.received + 1, seen.lost + gap, 0);
                }
            }
            sender.bins.push(BinCounts { sent, ..BinCounts::default() });
            receiver.bins.push(seen);
        }
        (sender, receiver, lost)
    }

    #[test]
    fn losses_after_the_last_arrival_are_counted_where_they_were_sent() {
        let mut random = RandomStream::new(1, "losses");
        for _ in 0..1_000 {
            let dead = random.below(4) as usize;
            let (sender, mut receiver, lost) = flow(&mut random, dead);
            let found = receiver.lost_in_bins(&sender);
            assert_eq!(found.iter().sum::<u64>(), lost.iter().sum::<u64>(), "{lost:?}");
            let from = lost.len().saturating_sub(dead);
            assert_eq!(found[from..], lost[from..]);
            // Packets that arrive after the end are not lost.
            let late = lost.iter().sum::<u64>().min(2);
            receiver.drained.packets += late;
            let all: u64 = sender.bins.iter().map(|bin| bin.sent).sum();
            let gaps: u64 = receiver.bins.iter().map(|bin| bin.lost).sum();
            let expected = gaps.max(all - receiver.received());
            assert_eq!(receiver.lost_in_bins(&sender).iter().sum::<u64>(), expected);
        }
    }
}
