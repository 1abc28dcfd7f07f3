//! Packets of an agent as the kernel counts them for the policy: the rate of a flow before the run, and the drops in it.
//! Rates include the headers of IP and of the transport.

use netstage_agent_api::results::PolicyDrops;
use netstage_agent_api::task::{FlowSide, FlowTask, TaskTransport};
use netstage_core::fleet::{CertainLoad, Policy};
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;
use netstage_host::egress::{DroppedPackets, EgressDrops};
use netstage_wire::{IPV4_HEADER, IPV6_HEADER, TCP_HEADER, TCP_TIMESTAMPS, UDP_HEADER};

/// Payload of a full segment of TCP on Ethernet, bytes.
const FULL_SEGMENT: u32 = 1448;
/// Payload of a full packet of QUIC, and the bytes of its own header and tag (RFC 9000).
const FULL_QUIC_PACKET: u32 = 1200;
const QUIC_OVERHEAD: u32 = 30;
/// The kernel charges longer packets of IPv6 as fragments (bpf/egress.bpf.c), each with a header of its own.
const MIN_IPV6_MTU: u32 = 1280;
const FRAGMENT_HEADER: u32 = 8;

/// Returns the rate of the packets that a flow sends, in bits per second: the mean if the kernel enforces the policy, which
/// limits peaks, the peak otherwise. `None` to send as fast as possible.
pub fn rate(flow: &FlowTask, is_enforced: bool) -> Option<f64> {
    let pattern = flow.traffic.pattern()?;
    let rate = if is_enforced { pattern.mean_rate() } else { pattern.peak_rate() }?;
    let payload = pattern.mean_packet()?.max(1.0);
    Some(rate * (1.0 + headers(flow, payload) / payload))
}

/// Returns a lower bound of what a flow sends in a run of this duration: constant rates, and transfers of known size. The
/// headers of streams do not count, because the kernel joins their packets.
pub fn certain_load(flow: &FlowTask, duration: Duration) -> CertainLoad {
    let (start, stop) = (flow.start, flow.stop.min(duration));
    let none = CertainLoad { start, stop, ..CertainLoad::default() };
    let Some(pattern) = flow.traffic.pattern().filter(|_| flow.side == FlowSide::Send) else { return none };
    let is_stream = matches!(flow.transport, TaskTransport::Tcp(_) | TaskTransport::Quic);
    let with_headers = |payload: f64| payload + if is_stream { 0.0 } else { headers(flow, payload) };
    match pattern {
        Pattern::Cbr { rate, packet } => {
            let payload = f64::from(*packet).max(1.0);
            CertainLoad { rate: rate.as_f64() * with_headers(payload) / payload, ..none }
        }
        Pattern::Bulk { size: Some(bytes) } => CertainLoad { bytes: *bytes, ..none },
        Pattern::Trace { packets, repeat: false } => {
            let mut at = start;
            let sent = packets.iter().take_while(|(gap, _)| {
                at = at + *gap;
                at < stop
            });
            let bytes: f64 = sent.map(|(_, payload)| with_headers(f64::from(*payload))).sum();
            CertainLoad { bytes: bytes as u64, ..none }
        }
        _ => none,
    }
}

/// Returns the bytes of the headers for each `payload` bytes of a flow.
fn headers(flow: &FlowTask, payload: f64) -> f64 {
    let is_ipv6 = flow.destination.ip().to_canonical().is_ipv6();
    let ip = if is_ipv6 { IPV6_HEADER } else { IPV4_HEADER };
    let per_packet = |full: u32, headers: u32| f64::from(headers) * (payload / f64::from(full)).max(1.0);
    match &flow.transport {
        TaskTransport::Tcp(options) => {
            let segment = options.max_segment_size.unwrap_or(FULL_SEGMENT).max(1);
            per_packet(segment, ip + TCP_HEADER + TCP_TIMESTAMPS)
        }
        TaskTransport::Quic => per_packet(FULL_QUIC_PACKET, ip + UDP_HEADER + QUIC_OVERHEAD),
        TaskTransport::Udp(_)
        | TaskTransport::Multicast { .. }
        | TaskTransport::IcmpEcho(_)
        | TaskTransport::UdpUnreachable(_)
        | TaskTransport::Stamp { .. } => {
            let headers = ip + UDP_HEADER;
            let room = f64::from(MIN_IPV6_MTU - ip - FRAGMENT_HEADER);
            let is_split = is_ipv6 && payload + f64::from(headers) > f64::from(MIN_IPV6_MTU);
            let fragments = if is_split { ((payload + f64::from(UDP_HEADER)) / room).ceil() } else { 0.0 };
            let split =
                fragments * f64::from(ip + FRAGMENT_HEADER) - f64::from(if is_split { ip } else { 0 });
            f64::from(headers) + split
        }
    }
}

/// Returns what each rule of a policy did to packets.
pub fn drops(policy: &Policy, drops: EgressDrops) -> Vec<PolicyDrops> {
    let rate = policy.rate.map(|rate| rate.to_string());
    let bytes = policy.bytes_per_day.map(|bytes| format!("{bytes} B"));
    let rules = [
        ("rate", rate, drops.rate, drops.paced),
        ("destinations", None, drops.destination, 0),
        ("interfaces", None, drops.interface, 0),
        ("bytes_per_day", bytes, drops.budget, 0),
    ];
    let of_rule = |(rule, value, packets, paced): (&str, Option<String>, DroppedPackets, u64)| PolicyDrops {
        rule: rule.into(),
        value: value.unwrap_or_default(),
        tcp: packets.tcp,
        other: packets.other,
        paced,
    };
    rules.into_iter().map(of_rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::quantity::BitRate;

    #[test]
    fn rates_include_the_headers_of_all_packets() {
        let rate_of = |source: &str, destination: &str, packet: u32, transport: Option<TaskTransport>| {
            let ends = [source, destination].map(|end| end.parse().unwrap());
            let pattern = Pattern::Cbr { rate: BitRate(1_000_000), packet };
            let mut flow = FlowTask::udp("f", FlowSide::Send, ends, pattern, Duration::from_secs(1));
            flow.transport = transport.unwrap_or(flow.transport);
            rate(&flow, true).unwrap()
        };
        let v4 = ("10.0.0.1:0", "10.0.0.2:5001");
        let v6 = ("[fd00::1]:0", "[fd00::2]:5001");
        for (ends, packet, transport, factor) in [
            (v4, 100, None, 1.28),
            (v4, 1472, None, 1500.0 / 1472.0),
            (v6, 100, None, 1.48),
            // Charged as two fragments.
            (v6, 1400, None, (1400.0 + 8.0 + 2.0 * 48.0) / 1400.0),
            (v4, 100, Some(TaskTransport::Tcp(Default::default())), 1.52),
            (v4, 14_480, Some(TaskTransport::Tcp(Default::default())), 1500.0 / 1448.0),
        ] {
            let found = rate_of(ends.0, ends.1, packet, transport.clone());
            assert!((found / 1e6 - factor).abs() < 1e-9, "{ends:?} {packet} {transport:?}: {found}");
        }
    }

    #[test]
    fn only_what_a_flow_sends_in_any_case_is_certain() {
        let load = |pattern: Pattern, transport: Option<TaskTransport>| {
            let ends = ["10.0.0.1:0", "10.0.0.2:5001"].map(|end| end.parse().unwrap());
            let mut flow = FlowTask::udp("f", FlowSide::Send, ends, pattern, Duration::from_secs(9));
            flow.start = Duration::from_secs(1);
            flow.transport = transport.unwrap_or(flow.transport);
            certain_load(&flow, Duration::from_secs(5))
        };
        let tcp = || Some(TaskTransport::Tcp(Default::default()));
        let cbr = Pattern::Cbr { rate: BitRate(1_000_000), packet: 100 };
        let constant = load(cbr.clone(), None);
        assert!((constant.rate - 1.28e6).abs() < 1.0, "{constant:?}");
        assert_eq!((constant.start, constant.stop), (Duration::from_secs(1), Duration::from_secs(5)));
        assert_eq!(load(cbr, tcp()).rate, 1e6);
        assert_eq!(load(Pattern::Bulk { size: Some(9000) }, tcp()).bytes, 9000);
        let trace = |repeat| Pattern::Trace { packets: [(Duration::from_secs(1), 72); 9].into(), repeat };
        assert_eq!(load(trace(false), None).bytes, 300);
        for uncertain in [
            trace(true),
            Pattern::Bulk { size: None },
            Pattern::Poisson { rate: BitRate(1_000_000), packet: 100 },
        ] {
            let load = load(uncertain, tcp());
            assert_eq!((load.rate, load.bytes), (0.0, 0));
        }
    }
}
