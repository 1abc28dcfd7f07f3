//! Tunnels of a plan: pairs of gateways on the paths of flows, and checks that they match.

use super::vpns::PlacedVpn;
use super::{Builder, NodeGraph};
use crate::error::SourceRange;
use crate::plan::routes::reversed;
use crate::plan::{FlowGroup, FlowTransport, GatewaySoftware, GatewayTunnel, Hop, NodeKind, TestPlan};
use netstage_core::quantity::BitRate;
use netstage_core::traffic::Pattern;
use netstage_wire as wire;
use netstage_wire::{Cipher, Protection};
use std::collections::BTreeMap;

/// Minimum MTU of a tunnel whose software does not fix it.
const ETHERNET_MTU: u32 = 1500;

impl Builder<'_, '_> {
    /// Returns the tunnels on the paths of flows and tests.
    pub(super) fn tunnels(
        &mut self,
        network: &NodeGraph,
        vpns: &[Option<PlacedVpn>],
        flows: &[Option<FlowGroup>],
        tests: &[Option<TestPlan>],
    ) -> Vec<GatewayTunnel> {
        self.check_gateway_settings(network);
        let file = self.file;
        for (member, vpn) in file.vpn.0.iter().zip(vpns) {
            let hops = vpn.iter().flat_map(|vpn| vpn.path.iter().chain(&vpn.reverse));
            let is_gateway = |node: &usize| matches!(network.kinds[*node], NodeKind::Gateway(_));
            if let Some(node) = hops.map(|hop| network.hop_ends(*hop)[0]).find(is_gateway) {
                let message =
                    format!("the path between this VPN's PEs crosses the gateway `{}`", network.names[node]);
                self.problems.push_help(member.place, message, "put gateways outside the PEs");
            }
        }
        let flow_places = file.flow.0.iter().map(|member| member.place);
        let service_places = file.service.0.iter().filter(|member| has_flow(member.value.as_deref()));
        let places = flow_places.chain(service_places.map(|member| member.place));
        let flows = flows.iter().zip(places).filter_map(|(flow, place)| Some((flow.as_ref()?, place, true)));
        let test_places = file.test.0.iter().map(|member| member.place);
        let tests = tests.iter().zip(test_places);
        let probes = tests.filter_map(|(test, place)| Some((&test.as_ref()?.probe, place, false)));
        let mut tunnels: BTreeMap<[usize; 2], GatewayTunnel> = BTreeMap::new();
        for (flow, place, bounded) in flows.chain(probes) {
            for path in [&flow.path, &flow.reverse] {
                self.add_tunnels(network, flow, path, place, bounded, &mut tunnels);
            }
        }
        let mut tunnels: Vec<GatewayTunnel> = tunnels.into_values().collect();
        for tunnel in &mut tunnels {
            // A tunnel used in one direction has its replies on the same links.
            let GatewayTunnel { path, reverse, .. } = tunnel;
            match (path.is_empty(), reverse.is_empty()) {
                (true, _) => *path = reversed(reverse),
                (_, true) => *reverse = reversed(path),
                _ => {}
            }
        }
        tunnels
    }

    fn check_gateway_settings(&mut self, network: &NodeGraph) {
        for (member, kind) in self.file.node.0.iter().zip(&network.kinds) {
            let Some(node) = &member.value else { continue };
            let gateway_fields = [
                node.cipher.as_ref().map(|cipher| ("cipher", cipher.place)),
                node.service_rate.as_ref().map(|rate| ("service_rate", rate.place)),
            ];
            let NodeKind::Gateway(software) = kind else {
                for (field, place) in gateway_fields.into_iter().flatten() {
                    let message =
                        format!("`{field}` applies to gateways, and `{}` is not a gateway", member.name);
                    self.problems.push_help(
                        place,
                        message,
                        "set kind = \"ipsec\", \"wireguard\" or \"openvpn\"",
                    );
                }
                continue;
            };
            if let Some(cipher) = &node.cipher
                && software.protection(Some(cipher.value)).is_none()
            {
                let message = format!("nodes of kind \"{}\" do not support this cipher", software.kind());
                let help = match software {
                    GatewaySoftware::WireGuard => "remove it: WireGuard has one cipher",
                    _ => "\"3des-sha1\" is available with kind \"ipsec\" only",
                };
                self.problems.push_help(cipher.place, message, help);
            }
        }
    }

    /// Adds the tunnels of a path, which enters a tunnel at every other gateway and leaves it at the next.
    fn add_tunnels(
        &mut self,
        network: &NodeGraph,
        flow: &FlowGroup,
        path: &[Hop],
        place: SourceRange,
        bounded: bool,
        tunnels: &mut BTreeMap<[usize; 2], GatewayTunnel>,
    ) {
        let starts = path.iter().map(|hop| network.hop_ends(*hop)[0]).enumerate();
        let passed: Vec<(usize, usize, GatewaySoftware)> = starts
            .filter_map(|(at, node)| match network.kinds[node] {
                NodeKind::Gateway(software) => Some((at, node, software)),
                _ => None,
            })
            .collect();
        if !passed.is_empty() && matches!(flow.transport, FlowTransport::Multicast(_)) {
            let message = format!("`{}` sends multicast through gateways", flow.name);
            return self.problems.push_help(place, message, "tunnels carry unicast only");
        }
        for pair in passed.chunks(2) {
            let &[(first, entered, software), (behind, other, other_software)] = pair else {
                let name = &network.names[pair[0].1];
                let message =
                    format!("the path of `{}` crosses the gateway `{name}` but no second one", flow.name);
                let help = "a tunnel has two ends: put another gateway of the same kind on the path";
                return self.problems.push_help(place, message, help);
            };
            let (a, b) = (&network.names[entered], &network.names[other]);
            let protections = [(entered, software), (other, other_software)]
                .map(|(node, software)| self.protection(node, software));
            let [Some(protection), Some(other_protection)] = protections else { return };
            if protection != other_protection {
                let message =
                    format!("`{a}` and `{b}` cannot be the ends of a tunnel: their kind or cipher differs");
                return self.problems.push_help(place, message, "set the same `kind` and `cipher` for both");
            }
            let ends = [entered.min(other), entered.max(other)];
            let shares_gateway =
                |known: &&[usize; 2]| **known != ends && known.iter().any(|end| ends.contains(end));
            if let Some(known) = tunnels.keys().find(shares_gateway) {
                return self.report_shared_gateway(network, place, [a, b], *known);
            }
            let inside = &path[first..behind];
            let forward = entered == ends[0];
            let service_rates = ends.map(|node| self.service_rate(node, software, protection));
            let tunnel = tunnels.entry(ends).or_insert_with(|| GatewayTunnel {
                ends,
                software,
                protection,
                mtu: software.fixed_mtu().unwrap_or(ETHERNET_MTU),
                service_rates,
                path: Vec::new(),
                reverse: Vec::new(),
            });
            let known_path = if forward { &mut tunnel.path } else { &mut tunnel.reverse };
            if known_path.is_empty() {
                inside.clone_into(known_path);
            }
            if known_path != inside {
                let message = format!(
                    "the path of `{}` from `{a}` to `{b}` differs from that of other flows",
                    flow.name
                );
                self.problems.push_help(place, message, "all packets of a tunnel take the same path");
                continue;
            }
            let size = largest_packet(flow);
            match software.fixed_mtu() {
                Some(max) if bounded && size > max => self.report_too_large(flow, place, [size, max], a),
                Some(_) => {}
                None => tunnel.mtu = tunnel.mtu.max(size),
            }
        }
    }

    fn report_shared_gateway(
        &mut self,
        network: &NodeGraph,
        place: SourceRange,
        [a, b]: [&String; 2],
        known: [usize; 2],
    ) {
        let [c, d] = known.map(|node| &network.names[node]);
        let message = format!(
            "a tunnel between `{a}` and `{b}` would share a gateway with the one between `{c}` and `{d}`"
        );
        self.problems.push_help(place, message, "a gateway is the end of one tunnel: add gateways");
    }

    fn report_too_large(
        &mut self,
        flow: &FlowGroup,
        place: SourceRange,
        [size, max]: [u32; 2],
        gateway: &str,
    ) {
        let name = &flow.name;
        let message = format!(
            "`{name}` sends packets of {size} B, but the tunnel from `{gateway}` takes at most {max} B"
        );
        self.problems.push_help(place, message, "use a smaller `max_segment_size` or `packet`");
    }

    fn protection(&self, node: usize, software: GatewaySoftware) -> Option<Protection> {
        let cipher = self.file.node.0[node].value.as_ref()?.cipher.as_ref();
        software.protection(cipher.map(|cipher| cipher.value))
    }

    fn service_rate(&self, node: usize, software: GatewaySoftware, protection: Protection) -> BitRate {
        let table = self.file.node.0[node].value.as_ref();
        let given = table.and_then(|node| node.service_rate.as_ref()).map(|rate| rate.value);
        given.unwrap_or(match (software, protection) {
            (_, Protection::Esp(Cipher::TripleDesSha1)) => BitRate(80_000_000),
            (GatewaySoftware::StrongSwan, _) => BitRate(350_000_000),
            (GatewaySoftware::WireGuard, _) => BitRate(480_000_000),
            (GatewaySoftware::OpenVpn, _) => BitRate(400_000_000),
        })
    }
}

/// Returns whether a service has a flow of its own.
fn has_flow(service: Option<&crate::file::service::ServiceTable>) -> bool {
    !matches!(service, Some(crate::file::service::ServiceTable::Frr(_)))
}

/// Returns the bytes of the largest packet of a flow.
fn largest_packet(flow: &FlowGroup) -> u32 {
    flow.family.header()
        + match &flow.transport {
            FlowTransport::Tcp(tcp) => {
                let options = if tcp.timestamps { wire::TCP_TIMESTAMPS } else { 0 };
                tcp.max_segment_size + wire::TCP_HEADER + options
            }
            _ => flow.traffic.pattern().map_or(0, Pattern::max_packet_size) + wire::UDP_HEADER,
        }
}
