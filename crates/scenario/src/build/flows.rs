//! Flows of a plan: paths, transports and traffic.

use super::vpns::PlacedVpn;
use super::{Builder, NodeGraph};
use crate::error::SourceRange;
use crate::file::flow::{
    self, Algorithm, FlowTable, LossDetection, PacketSize, RateLayer, SlowStart, TcpStack, TcpTable,
    TrafficTable as Model,
};
use crate::plan::routes::reversed;
use crate::plan::{DatagramOptions, FlowGroup, FlowTransport, Hop, IpVersion, MulticastGroup, NodeKind};
use crate::scalar::{NodeName, VpnName};
use crate::table::{List, Located};
use netstage_core::quantity::BitRate;
use netstage_core::tcp;
use netstage_core::time::Instant;
use netstage_core::traffic::{FlowTraffic, Pattern};
use std::rc::Rc;
use std::sync::OnceLock;

/// Transport of a pattern, as far as it determines packet sizes.
struct PacketFraming {
    /// Byte stream: the transport chooses the packet sizes.
    stream: bool,
    /// Bytes of headers per packet, otherwise.
    headers: u64,
}

/// Fields of a table that determine a path.
pub(super) struct PathFields<'a> {
    pub from: &'a Located<NodeName>,
    pub to: &'a Located<NodeName>,
    pub vpn: Option<&'a Located<VpnName>>,
    pub via: Option<&'a Located<List<Located<NodeName>>>>,
    pub reverse_via: Option<&'a Located<List<Located<NodeName>>>>,
}

impl<'a> PathFields<'a> {
    /// Groups the fields of a table: both ends, the VPN, and the explicit paths of both directions.
    pub fn new(
        [from, to]: [&'a Located<NodeName>; 2],
        vpn: &'a Option<Located<VpnName>>,
        [via, reverse_via]: [&'a Option<Located<List<Located<NodeName>>>>; 2],
    ) -> PathFields<'a> {
        PathFields { from, to, vpn: vpn.as_ref(), via: via.as_ref(), reverse_via: reverse_via.as_ref() }
    }
}

impl<'a> From<&'a FlowTable> for PathFields<'a> {
    fn from(flow: &'a FlowTable) -> PathFields<'a> {
        PathFields::new([&flow.from, &flow.to.0[0]], &flow.vpn, [&flow.via, &flow.reverse_via])
    }
}

/// Path of a flow, with its ends.
pub(super) struct FlowPath {
    pub from: usize,
    pub to: usize,
    pub vpn: Option<usize>,
    pub path: Vec<Hop>,
    pub reverse: Vec<Hop>,
}

/// Returns the IP version of a flow, unless the hosts have only the other one.
fn version(flow: &FlowTable) -> IpVersion {
    flow.ip.as_ref().map_or(IpVersion::V4, |ip| ip.value)
}

/// Returns whether a flow may use any IP version. A group has one, and packets without a checksum are those of IPv4.
fn may_use_any_version(flow: &FlowTable) -> bool {
    let has_group = flow.multicast.as_ref().is_some_and(|multicast| multicast.group.is_some());
    let has_checksum = flow.udp.as_ref().is_none_or(|udp| udp.checksum);
    flow.ip.is_none() && !has_group && has_checksum
}

/// Returns the packet options of a flow from the table of its transport.
fn datagrams(flow: &FlowTable) -> DatagramOptions {
    if flow.transport.value == flow::TransportChoice::Tcp {
        return tcp_packets(flow.tcp.as_deref());
    }
    flow.udp.as_ref().map_or(DatagramOptions::default(), |udp| DatagramOptions {
        dscp: udp.dscp.0 as u8,
        checksum: udp.checksum,
        compare: udp.compare,
        batch: udp.batch.0 as u16,
        spin: udp.pacing == flow::Pacing::Spin,
    })
}

/// Returns the packet options of a flow over TCP with these settings.
pub(super) fn tcp_packets(tcp: Option<&Rc<TcpTable>>) -> DatagramOptions {
    DatagramOptions { dscp: tcp.map_or(0, |tcp| tcp.dscp.0 as u8), ..DatagramOptions::default() }
}

impl Builder<'_, '_> {
    pub(super) fn flows(
        &mut self,
        network: &NodeGraph,
        vpns: &[Option<PlacedVpn>],
        end: Option<Instant>,
    ) -> Vec<Option<FlowGroup>> {
        let file = self.file;
        let mut groups = Vec::with_capacity(file.flow.0.len());
        for member in file.flow.0.iter() {
            let group =
                member.value.as_ref().and_then(|flow| self.flow(&member.name, flow, network, vpns, end));
            groups.push(group);
        }
        groups
    }

    fn flow(
        &mut self,
        name: &str,
        flow: &FlowTable,
        network: &NodeGraph,
        vpns: &[Option<PlacedVpn>],
        end: Option<Instant>,
    ) -> Option<FlowGroup> {
        let flow_path = self.flow_path(&PathFields::from(flow), network, vpns);
        let transport = self.transport(flow);
        let traffic = self.traffic(flow, transport.as_ref());
        self.check_settings(flow);
        let times = self.times(flow, end);
        let flow_path = flow_path?;
        let branches = self.branches(flow, network, &flow_path)?;
        let FlowPath { from, to, vpn, path, reverse } = flow_path;
        let (start, stop) = times?;
        Some(FlowGroup {
            name: name.to_owned(),
            from,
            to,
            vpn,
            transport: transport?,
            family: version(flow),
            any_version: may_use_any_version(flow),
            datagrams: datagrams(flow),
            traffic: traffic?,
            count: flow.count.value.0 as usize,
            start,
            stagger: flow.stagger,
            stop,
            background: flow.background,
            path,
            reverse,
            branches,
            program: None,
            exact: false,
        })
    }

    /// Resolves the ends and the path of a flow.
    pub(super) fn flow_path(
        &mut self,
        ends: &PathFields<'_>,
        network: &NodeGraph,
        vpns: &[Option<PlacedVpn>],
    ) -> Option<FlowPath> {
        let file = self.file;
        let vpn = ends.vpn.map(|vpn| self.reference(&file.vpn, &vpn.value.0, vpn.place, "vpn"));
        let from = self.host(network, ends.from);
        let to = self.host(network, ends.to);
        let (from, to) = (from?, to?);
        if from == to {
            self.problems.push(ends.to.place, "sender and receiver are the same host");
            return None;
        }
        let vpn = match vpn {
            Some(index) => Some(index?),
            None => None,
        };
        let placed = vpn.and_then(|index| vpns[index].as_ref());
        if vpn.is_some() && placed.is_none() {
            return None;
        }
        let path = self.path(ends, network, from, to, placed)?;
        let reverse = match ends.reverse_via {
            Some(via) => self.explicit_path(network, to, via, from)?.1,
            None => reversed(&path),
        };
        Some(FlowPath { from, to, vpn, path, reverse })
    }

    /// Reports settings of a transport other than the flow's.
    fn check_settings(&mut self, flow: &FlowTable) {
        let transport = flow.transport.value;
        let name = || crate::table::word(transport);
        if let Some(tcp) = flow.tcp.as_ref().filter(|tcp| tcp.own)
            && transport != flow::TransportChoice::Tcp
        {
            let message = format!("`tcp` has no effect: this flow's transport is \"{}\"", name());
            self.problems.push(tcp.place, message);
        }
        if let Some(udp) = flow.udp.as_ref().filter(|udp| udp.own)
            && !matches!(transport, flow::TransportChoice::Udp | flow::TransportChoice::UdpUnreachable)
        {
            let message = format!("`udp` has no effect: this flow's transport is \"{}\"", name());
            self.problems.push(udp.place, message);
        }
        if let Some(udp) = flow.udp.as_ref().filter(|udp| udp.own && udp.pacing == flow::Pacing::Spin)
            && transport == flow::TransportChoice::UdpUnreachable
        {
            self.problems
                .push(udp.place, format!("`pacing` has no effect: this flow's transport is \"{}\"", name()));
        }
        if let Some(udp) = flow.udp.as_ref().filter(|udp| !udp.checksum)
            && version(flow) == IpVersion::V6
        {
            self.problems.push(udp.place, "UDP over IPv6 always carries a checksum (RFC 8200 section 8.1)");
        }
        let Some(multicast) = &flow.multicast else { return };
        if transport != flow::TransportChoice::Multicast && multicast.own {
            let message = format!("`multicast` has no effect: this flow's transport is \"{}\"", name());
            self.problems.push_help(multicast.place, message, "set transport = \"multicast\"");
        }
        if let Some(group) = &multicast.group
            && group.value.0.is_ipv6() != (version(flow) == IpVersion::V6)
        {
            let message = "this group and the flow have different IP versions";
            self.problems.push_help(group.place, message, "set `ip` of the flow, or choose another group");
        }
    }

    pub(super) fn host(&mut self, network: &NodeGraph, name: &Located<NodeName>) -> Option<usize> {
        let index = self.node(name)?;
        let readable = self.file.node.0[index].value.is_some();
        if readable && network.kinds[index] != NodeKind::Host {
            let message = format!("`{}` is not a host; flows run between hosts", name.value.0);
            self.problems.push_help(name.place, message, "connect a host to it with a link");
            return None;
        }
        Some(index)
    }

    fn path(
        &mut self,
        ends: &PathFields<'_>,
        network: &NodeGraph,
        from: usize,
        to: usize,
        vpn: Option<&PlacedVpn>,
    ) -> Option<Vec<Hop>> {
        let Some(via) = ends.via else {
            let Some(vpn) = vpn else {
                return self.shortest(network, from, to, ends.to.place).map(|path| path.to_vec());
            };
            let access = self.shortest(network, from, vpn.ingress, ends.from.place)?;
            let last = self.shortest(network, vpn.egress, to, ends.to.place)?;
            let path = [&access[..], &vpn.path, &last].concat();
            return self.without_loop(ends, network, from, path);
        };
        let (nodes, path) = self.explicit_path(network, from, via, to)?;
        if let Some(vpn) = vpn {
            let at = |node: usize| nodes.iter().position(|n| *n == node);
            let (ingress, egress) = (&network.names[vpn.ingress], &network.names[vpn.egress]);
            match (at(vpn.ingress), at(vpn.egress)) {
                (Some(first), Some(second)) if first < second => {
                    if path[first..second] != vpn.path[..] {
                        self.warnings.insert(format!(
                            "flow from {} to {}: its path between the PEs differs from that of its VPN's management packets",
                            ends.from.value.0, ends.to.value.0
                        ));
                    }
                }
                _ => {
                    let message = format!("this path must pass the VPN's PEs: `{ingress}`, then `{egress}`");
                    self.problems.push(via.place, message);
                    return None;
                }
            }
        }
        Some(path)
    }

    /// Reports a node that a path visits twice, as is possible where it joins a VPN's path and two shortest paths.
    fn without_loop(
        &mut self,
        ends: &PathFields<'_>,
        network: &NodeGraph,
        from: usize,
        path: Vec<Hop>,
    ) -> Option<Vec<Hop>> {
        for (index, hop) in path.iter().enumerate() {
            let next = network.hop_ends(*hop)[1];
            if next == from || path[..index].iter().any(|hop| network.hop_ends(*hop)[1] == next) {
                let message =
                    format!("the path through the VPN's PEs would visit `{}` twice", network.names[next]);
                let place = ends.vpn.map_or(ends.from.place, |vpn| vpn.place);
                self.problems.push_help(
                    place,
                    message,
                    "set the path with `via`, or connect the hosts to the PEs",
                );
                return None;
            }
        }
        Some(path)
    }

    fn times(&mut self, flow: &FlowTable, end: Option<Instant>) -> Option<(Instant, Instant)> {
        let start = Instant(flow.start.value.0);
        if end.is_some_and(|end| start >= end) {
            self.problems.push(flow.start.place, "this flow would start after the end of the run");
            return None;
        }
        let stop = match &flow.stop {
            Some(stop) => {
                if stop.value.0 <= start.0 {
                    self.problems.push(stop.place, "this flow would stop before it starts");
                    return None;
                }
                Instant(stop.value.0)
            }
            None => end?,
        };
        Some((start, stop))
    }

    fn transport(&mut self, flow: &FlowTable) -> Option<FlowTransport> {
        match flow.transport.value {
            flow::TransportChoice::Tcp => {}
            flow::TransportChoice::Udp => return Some(FlowTransport::Udp),
            flow::TransportChoice::IcmpEcho => return Some(FlowTransport::IcmpEcho),
            flow::TransportChoice::UdpUnreachable => return Some(FlowTransport::UdpUnreachable),
            flow::TransportChoice::Quic => return Some(FlowTransport::Quic),
            flow::TransportChoice::Multicast => {
                let set = flow.multicast.as_ref().map(|multicast| &multicast.value);
                return Some(FlowTransport::Multicast(MulticastGroup {
                    group: set.and_then(|set| set.group.as_ref()).map(|group| group.value.0),
                    source_specific: set.is_some_and(|set| set.source == flow::AcceptedSenders::Sender),
                    hops: set.map_or(32, |set| set.hops.0 as u8),
                }));
            }
        }
        self.tcp(flow.tcp.as_ref(), flow.transport.place).map(FlowTransport::Tcp)
    }

    /// Returns a congestion control, with its parameters from `tcp`.
    pub(super) fn algorithm(
        &mut self,
        named: &Located<Algorithm>,
        tcp: Option<&flow::TcpTable>,
    ) -> Option<tcp::Algorithm> {
        Some(match named.value {
            Algorithm::Reno => tcp::Algorithm::Reno,
            Algorithm::NewReno => tcp::Algorithm::NewReno,
            Algorithm::Cubic => tcp::Algorithm::Cubic,
            Algorithm::LinuxCubic => tcp::Algorithm::LinuxCubic,
            Algorithm::Aimd => match tcp.map(|tcp| (&tcp.increase, &tcp.decrease)) {
                Some((Some(a), Some(b))) => tcp::Algorithm::Aimd { increase: a.value.0, decrease: b.value.0 },
                _ => {
                    let message = "algorithm \"aimd\" needs `increase` and `decrease`";
                    self.problems.push(named.place, message);
                    return None;
                }
            },
        })
    }

    /// Returns the TCP settings of a table. Without a table, problems are reported at `place`.
    pub(super) fn tcp(
        &mut self,
        table: Option<&Located<Rc<flow::TcpTable>>>,
        place: SourceRange,
    ) -> Option<tcp::TcpConfig> {
        let tcp = table.map_or(default_tcp(), |table| &*table.value);
        let algorithm = self.algorithm(&tcp.algorithm, Some(tcp))?;
        if tcp.algorithm.value != Algorithm::Aimd {
            let increase = tcp.increase.as_ref().filter(|a| a.own).map(|a| a.place);
            let decrease = tcp.decrease.as_ref().filter(|b| b.own).map(|b| b.place);
            if let Some(place) = increase.or(decrease) {
                self.problems.push(place, "this field applies to algorithm \"aimd\" only");
                return None;
            }
        }
        let loss_detection = match tcp.loss_detection.value {
            LossDetection::DuplicateAcks => tcp::LossDetection::DuplicateAcks,
            LossDetection::Rack => tcp::LossDetection::Rack,
        };
        if loss_detection == tcp::LossDetection::Rack && !tcp.sack {
            let message = "`loss_detection = \"rack\"` needs selective acknowledgments, but `sack` is false";
            let help = "remove `sack = false` or `loss_detection`";
            self.problems.push_help(tcp.loss_detection.place, message, help);
            return None;
        }
        if tcp.window.0 < tcp.max_segment_size.0 {
            let place = table.map_or(place, |tcp| tcp.place);
            self.problems
                .push(place, "`window` is smaller than `max_segment_size`: no segment could be sent");
            return None;
        }
        let config = tcp::TcpConfig {
            stack: tcp::Stack::Rfc,
            algorithm,
            slow_start: match tcp.slow_start {
                SlowStart::Standard => tcp::SlowStart::Standard,
                SlowStart::HyStartPlusPlus => tcp::SlowStart::HyStartPlusPlus,
            },
            sack: tcp.sack,
            loss_detection,
            ecn: tcp.ecn,
            timestamps: tcp.timestamps,
            max_segment_size: tcp.max_segment_size.0 as u32,
            window: tcp.window.0,
            initial_window: tcp.initial_window.0 as u32,
            ack_every: tcp.ack_every.0 as u32,
            delayed_ack: tcp.delayed_ack,
            min_rto: tcp.min_rto.0,
            initial_rto: tcp.initial_rto.0,
            limited_transmit: tcp.limited_transmit,
            handshake: tcp.handshake,
        };
        Some(match tcp.stack {
            TcpStack::Rfc => config,
            TcpStack::Linux => config.like_linux(),
        })
    }

    fn traffic(&mut self, flow: &FlowTable, transport: Option<&FlowTransport>) -> Option<FlowTraffic> {
        let place = flow.traffic.place;
        let name = || crate::table::word(flow.transport.value);
        let stream = matches!(flow.transport.value, flow::TransportChoice::Tcp | flow::TransportChoice::Quic);
        let tcp =
            PacketFraming { stream, headers: u64::from(version(flow).header() + netstage_wire::UDP_HEADER) };
        let pattern = match &*flow.traffic.value {
            Model::Bulk(bulk) => {
                if !stream {
                    let message = "\"bulk\" needs a transport that limits the rate: \"tcp\" or \"quic\"";
                    let help = "set a rate: traffic = { model = \"cbr\", rate = \"10 Mbit/s\" }";
                    self.problems.push_help(place, message, help);
                    return None;
                }
                Pattern::Bulk { size: bulk.size.map(|size| size.0) }
            }
            Model::Cbr(flow::Constant { load }) => {
                let (rate, packet) = self.load(&load.rate, &load.packets, &tcp)?;
                Pattern::Cbr { rate, packet }
            }
            Model::Poisson(flow::Poisson { load }) => {
                let (rate, packet) = self.load(&load.rate, &load.packets, &tcp)?;
                Pattern::Poisson { rate, packet }
            }
            Model::OnOff(flow::OnOff { on, off, load }) => {
                let (rate, packet) = self.load(&load.rate, &load.packets, &tcp)?;
                Pattern::OnOff { rate, packet, on: on.0, off: off.0 }
            }
            Model::Pareto(flow::Pareto { on, off, shape, load }) => {
                let (rate, packet) = self.load(&load.rate, &load.packets, &tcp)?;
                Pattern::Pareto { rate, packet, on: on.0, off: off.0, shape: shape.0 }
            }
            Model::Mmpp(flow::Mmpp { states, packets }) => {
                let loads: Vec<_> =
                    states.0.iter().map(|state| self.load(&state.rate, packets, &tcp)).collect();
                let loads = loads.into_iter().collect::<Option<Vec<_>>>()?;
                let states =
                    loads.iter().zip(&states.0).map(|((rate, _), state)| (*rate, state.mean.0)).collect();
                Pattern::Mmpp { states, packet: packets.packet.0 as u32 }
            }
            Model::Trace(trace) => {
                let packets = self.traces.load(&trace.file.value.0, trace.file.place, self.problems)?;
                Pattern::Trace { packets, repeat: trace.repeat }
            }
            application => {
                let application = self.application(application, place)?;
                let Some(carriage) = transport?.carriage() else {
                    let message = format!(
                        "application \"{}\" cannot run over transport \"{}\"",
                        application.name(),
                        name()
                    );
                    let help =
                        "use \"tcp\", \"quic\" or \"udp\", or a pattern such as \"cbr\" or \"poisson\"";
                    self.problems.push_help(place, message, help);
                    return None;
                };
                if let Err(error) = application.check(carriage) {
                    let message = format!(
                        "\"{}\" cannot run over {} with these settings: {error}",
                        application.name(),
                        name()
                    );
                    self.problems.push(place, message);
                    return None;
                }
                return Some(FlowTraffic::Application(application));
            }
        };
        if let Err(error) = pattern.check() {
            self.problems.push(place, format!("this traffic cannot be sent: {error}"));
            return None;
        }
        Some(pattern.into())
    }

    /// Returns the payload rate and the packet size.
    fn load(
        &mut self,
        rate: &Located<BitRate>,
        packets: &PacketSize,
        carrier: &PacketFraming,
    ) -> Option<(BitRate, u32)> {
        let packet = packets.packet.0;
        let rate = match packets.layer.value {
            RateLayer::Payload => rate.value,
            RateLayer::Ip if carrier.stream => {
                let place: SourceRange = packets.layer.place;
                let message = "the transport chooses the packet sizes: set the payload rate";
                self.problems.push(place, message);
                return None;
            }
            RateLayer::Ip => payload_rate(rate.value, packet, carrier.headers),
        };
        if rate.0 == 0 {
            self.problems
                .push(packets.layer.place, "the headers use up this rate, and leave none for the payload");
            return None;
        }
        Some((rate, packet as u32))
    }
}

/// Converts a rate at the IP layer to a payload rate, rounded to the nearest bit per second.
fn payload_rate(ip: BitRate, packet: u64, headers: u64) -> BitRate {
    let (rate, packet) = (u128::from(ip.0), u128::from(packet));
    let size = packet + u128::from(headers);
    BitRate(((rate * packet + size / 2) / size) as u64)
}

fn default_tcp() -> &'static flow::TcpTable {
    use crate::table::Decode;
    static DEFAULT: OnceLock<flow::TcpTable> = OnceLock::new();
    DEFAULT.get_or_init(|| {
        let empty = crate::tree::TomlNode::empty_table(SourceRange::new(0, 0..0));
        flow::TcpTable::decode(&empty, &mut crate::error::Problems::default())
            .expect("every field of tcp has a default")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_at_the_ip_layer_keeps_its_packets_per_second() {
        // 15 Mbit/s of 1500-byte packets are 1250 packets/s, and 1250 · 1472 B of payload.
        assert_eq!(payload_rate(BitRate(15_000_000), 1472, 28), BitRate(1250 * 1472 * 8));
    }
}
