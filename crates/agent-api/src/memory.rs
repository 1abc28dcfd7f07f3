//! Upper bound of the memory that an agent takes for an assignment. It is known before anything is allocated.

use crate::task::{Assignment, FlowSide, FlowTask, TaskTransport};
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;
use netstage_core::traffic::application::Application;

/// Counters of one side of a flow in one bin, and their text in the report.
const COUNTS_BYTES: u64 = 400;
/// TCP state or delays of a bin, and their text.
const DETAIL_BYTES: u64 = 800;
/// Quality of an application in a bin, and its text.
const QUALITY_BYTES: u64 = 800;
/// Window of a watched TCP flow, or of a VPN flow, in a bin, and its text.
const WINDOW_BYTES: u64 = 1_000;
/// Histograms and buffers of one side of a flow.
const FLOW_BYTES: u64 = 256 << 10;
/// Streams and datagrams that QUIC keeps until they are acknowledged or read.
const QUIC_BYTES: u64 = 12 << 20;
/// Packets that a sender or receiver passes to or from the kernel at once.
const BATCH: u64 = 64;
const MAX_DATAGRAM_BYTES: u64 = 65_536;
/// State of one connection, and of one pending request.
const CONNECTION_BYTES: u64 = 1 << 10;
const REQUEST_BYTES: u64 = 256;
/// Minimum length of the configuration of a VPN flow.
const VPN_TEXT_BYTES: u64 = 24;

impl Assignment {
    /// Returns an upper bound of the bytes that the agent takes for the run and its report.
    pub fn memory_bytes(&self) -> u64 {
        let interval = if self.interval == Duration::ZERO { self.duration } else { self.interval };
        let bins = self.duration.0.div_ceil(interval.0.max(1)).max(1);
        let flows = self.flows.iter().map(|flow| flow_bytes(flow, bins));
        let vpns = self.edge.as_ref().map_or(0, |edge| edge.configuration.len() as u64 / VPN_TEXT_BYTES);
        let windows = bins.saturating_mul(WINDOW_BYTES).saturating_mul(self.watch.len() as u64 + vpns);
        let service = bins.saturating_mul(COUNTS_BYTES).saturating_add(FLOW_BYTES);
        let services = service.saturating_mul(self.services.len() as u64);
        flows.fold(windows.saturating_add(services), u64::saturating_add)
    }
}

fn flow_bytes(flow: &FlowTask, bins: u64) -> u64 {
    let detail = if flow.detail { DETAIL_BYTES } else { 0 };
    let (quality, application) = match flow.traffic.application() {
        Some(application) => (QUALITY_BYTES, application_bytes(application)),
        None => (0, 0),
    };
    let packets = match (&flow.transport, flow.side) {
        (TaskTransport::Quic, _) => QUIC_BYTES,
        (TaskTransport::Udp(options), FlowSide::Receive) if options.compare_payload => {
            BATCH * MAX_DATAGRAM_BYTES
        }
        (_, FlowSide::Send) => BATCH * flow.traffic.pattern().map_or(0, largest_packet),
        _ => 0,
    };
    bins.saturating_mul(COUNTS_BYTES + detail + quality)
        .saturating_add(FLOW_BYTES)
        .saturating_add(packets)
        .saturating_add(application)
}

fn largest_packet(pattern: &Pattern) -> u64 {
    let packet = match pattern {
        Pattern::Bulk { .. } => return MAX_DATAGRAM_BYTES,
        Pattern::Cbr { packet, .. }
        | Pattern::Poisson { packet, .. }
        | Pattern::OnOff { packet, .. }
        | Pattern::Pareto { packet, .. }
        | Pattern::Mmpp { packet, .. } => *packet,
        Pattern::Trace { packets, .. } => packets.iter().map(|(_, packet)| *packet).max().unwrap_or(0),
    };
    u64::from(packet).min(MAX_DATAGRAM_BYTES)
}

fn application_bytes(application: &Application) -> u64 {
    let requests = match application {
        Application::BlockStorage(storage) => storage.queue_depth.into(),
        _ => 0,
    };
    u64::from(application.connections()) * CONNECTION_BYTES + requests * REQUEST_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::quantity::BitRate;

    #[test]
    fn bins_connections_and_requests_count_and_nothing_overflows() {
        let ends = ["192.0.2.1:0", "192.0.2.2:5001"].map(|end| end.parse().unwrap());
        let second = Duration::from_secs(1);
        let pattern = Pattern::Cbr { rate: BitRate(1), packet: 100 };
        let flow = FlowTask::udp("f", FlowSide::Send, ends, pattern, second);
        let bytes = |duration, interval, count| {
            Assignment::of_flows("a", duration, interval, vec![flow.clone(); count]).memory_bytes()
        };
        let hour = Duration::from_secs(3600);
        assert!(bytes(hour, second, 10) < 32 << 20);
        // Ten million bins of 50 flows.
        assert!(bytes(Duration::from_secs(10), Duration::from_micros(1), 50) > 100 << 30);
        assert_eq!(bytes(Duration(u64::MAX), Duration(1), 2), u64::MAX);
        assert!(bytes(hour, Duration::ZERO, 1) < 1 << 20, "one bin");
    }
}
