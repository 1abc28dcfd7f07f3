//! Tunnels of a plan: which gateways are the two ends of one, and whether they fit.

use super::vpns::PlacedVpn;
use super::{Builder, Network};
use crate::error::Place;
use crate::plan::routes::mirrored;
use crate::plan::{FlowGroup, Hop, NodeKind, Software, Test, Transport, Tunnel};
use netstage_core::quantity::BitRate;
use netstage_core::traffic::Pattern;
use netstage_wire as wire;
use netstage_wire::{Cipher, Protection};
use std::collections::BTreeMap;

/// Largest packet of a tunnel that only small ones go through: Ethernet's.
const ETHERNET_MTU: u32 = 1500;

impl Builder<'_, '_> {
    /// The tunnels that flows and tests go through.
    pub(super) fn tunnels(
        &mut self,
        network: &Network,
        vpns: &[Option<PlacedVpn>],
        flows: &[Option<FlowGroup>],
        tests: &[Option<Test>],
    ) -> Vec<Tunnel> {
        self.gateways_alone_have_ciphers(network);
        let file = self.file;
        for (member, vpn) in file.vpn.0.iter().zip(vpns) {
            let hops = vpn.iter().flat_map(|vpn| vpn.path.iter().chain(&vpn.reverse));
            let nodes: Vec<usize> = hops.filter_map(|hop| self.left(*hop)).collect();
            let kind = |node: &usize| matches!(network.kinds[*node], NodeKind::Gateway(_));
            if let Some(node) = nodes.into_iter().find(kind) {
                let message =
                    format!("between its PEs this VPN passes the gateway `{}`", network.names[node]);
                self.problems.push_help(member.place, message, "put gateways before and behind the PEs");
            }
        }
        let flow_places = file.flow.0.iter().map(|member| member.place);
        let service_places = file.service.0.iter().filter(|member| has_flow(&member.value));
        let places = flow_places.chain(service_places.map(|member| member.place));
        let flows = flows.iter().zip(places).filter_map(|(flow, place)| Some((flow.as_ref()?, place, true)));
        let test_places = file.test.0.iter().map(|member| member.place);
        let tests = tests.iter().zip(test_places);
        let probes = tests.filter_map(|(test, place)| Some((&test.as_ref()?.probe, place, false)));
        let mut tunnels: BTreeMap<[usize; 2], Tunnel> = BTreeMap::new();
        for (flow, place, bounded) in flows.chain(probes) {
            for path in [&flow.path, &flow.reverse] {
                self.through_tunnels(network, flow, path, place, bounded, &mut tunnels);
            }
        }
        let mut tunnels: Vec<Tunnel> = tunnels.into_values().collect();
        for tunnel in &mut tunnels {
            // What only goes one way is answered the same way.
            let Tunnel { path, reverse, .. } = tunnel;
            match (path.is_empty(), reverse.is_empty()) {
                (true, _) => *path = mirrored(reverse),
                (_, true) => *reverse = mirrored(path),
                _ => {}
            }
        }
        tunnels
    }

    fn gateways_alone_have_ciphers(&mut self, network: &Network) {
        for (member, kind) in self.file.node.0.iter().zip(&network.kinds) {
            let Some(node) = &member.value else { continue };
            let of_gateways = [
                node.cipher.as_ref().map(|cipher| ("cipher", cipher.place)),
                node.service_rate.as_ref().map(|rate| ("service_rate", rate.place)),
            ];
            let NodeKind::Gateway(software) = kind else {
                for (field, place) in of_gateways.into_iter().flatten() {
                    let message = format!("`{field}` is of gateways, and `{}` is none", member.name);
                    self.problems.push_help(place, message, "kind = \"ipsec\", \"wireguard\" or \"openvpn\"");
                }
                continue;
            };
            if let Some(cipher) = &node.cipher
                && software.protection(Some(cipher.value)).is_none()
            {
                let message = format!("nodes of kind \"{}\" do not have this cipher", software.kind());
                let help = match software {
                    Software::WireGuard => "leave it out: WireGuard has one only",
                    _ => "\"3des-sha1\" is of kind \"ipsec\" alone",
                };
                self.problems.push_help(cipher.place, message, help);
            }
        }
    }

    /// Adds the tunnels a path goes through: it enters one at every other gateway, and leaves it at the next.
    fn through_tunnels(
        &mut self,
        network: &Network,
        flow: &FlowGroup,
        path: &[Hop],
        place: Place,
        bounded: bool,
        tunnels: &mut BTreeMap<[usize; 2], Tunnel>,
    ) {
        let left = path.iter().map(|hop| self.left(*hop)).enumerate();
        let passed: Vec<(usize, usize, Software)> = left
            .filter_map(|(at, node)| match network.kinds[node?] {
                NodeKind::Gateway(software) => Some((at, node?, software)),
                _ => None,
            })
            .collect();
        if !passed.is_empty() && matches!(flow.transport, Transport::Multicast(_)) {
            let message = format!("`{}` goes to a group through gateways", flow.name);
            return self.problems.push_help(place, message, "tunnels carry packets to one receiver");
        }
        for pair in passed.chunks(2) {
            let &[(first, entered, software), (behind, other, its)] = pair else {
                let name = &network.names[pair[0].1];
                let message = format!("`{}` passes the gateway `{name}` and no second one", flow.name);
                let help = "a tunnel has two ends: put another gateway of its kind on the way";
                return self.problems.push_help(place, message, help);
            };
            let (a, b) = (&network.names[entered], &network.names[other]);
            let protections = [(entered, software), (other, its)].map(|(node, of)| self.protection(node, of));
            let [Some(protection), Some(others)] = protections else { return };
            if protection != others {
                let message = format!("`{a}` and `{b}` are no two ends of a tunnel: kind or cipher differ");
                return self.problems.push_help(place, message, "give both the same `kind` and `cipher`");
            }
            let ends = [entered.min(other), entered.max(other)];
            let meets = |known: &&[usize; 2]| **known != ends && known.iter().any(|end| ends.contains(end));
            if let Some(known) = tunnels.keys().find(meets) {
                let message = format!(
                    "between `{a}` and `{b}` there would be a second tunnel beside that between `{}` and `{}`",
                    network.names[known[0]], network.names[known[1]]
                );
                return self.problems.push_help(
                    place,
                    message,
                    "a gateway is the end of one tunnel: add gateways",
                );
            }
            let inside = &path[first..behind];
            let forward = entered == ends[0];
            let service_rates = ends.map(|node| self.service_rate(node, software, protection));
            let tunnel = tunnels.entry(ends).or_insert_with(|| Tunnel {
                ends,
                software,
                protection,
                mtu: software.largest_packet().unwrap_or(ETHERNET_MTU),
                service_rates,
                path: Vec::new(),
                reverse: Vec::new(),
            });
            let way = if forward { &mut tunnel.path } else { &mut tunnel.reverse };
            if way.is_empty() {
                inside.clone_into(way);
            }
            if way != inside {
                let message = format!("`{}` goes another way from `{a}` to `{b}` than others do", flow.name);
                self.problems.push_help(place, message, "all packets of a tunnel go one way");
                continue;
            }
            let size = largest_packet(flow);
            match software.largest_packet() {
                Some(most) if bounded && size > most => self.too_large(flow, place, [size, most], a),
                Some(_) => {}
                None => tunnel.mtu = tunnel.mtu.max(size),
            }
        }
    }

    fn too_large(&mut self, flow: &FlowGroup, place: Place, [size, most]: [u32; 2], gateway: &str) {
        let name = &flow.name;
        let message = format!(
            "`{name}` sends packets of {size} B, and the tunnel from `{gateway}` takes {most} B at most"
        );
        self.problems.push_help(place, message, "a smaller `max_segment_size` or packet");
    }

    /// The node a hop leaves, where its link could be read.
    fn left(&self, hop: Hop) -> Option<usize> {
        let link = self.file.link.0[hop.link].value.as_ref()?;
        self.file.node.index(&link.ends[hop.direction].value.0)
    }

    fn protection(&self, node: usize, software: Software) -> Option<Protection> {
        let cipher = self.file.node.0[node].value.as_ref()?.cipher.as_ref();
        software.protection(cipher.map(|cipher| cipher.value))
    }

    fn service_rate(&self, node: usize, software: Software, protection: Protection) -> BitRate {
        let table = self.file.node.0[node].value.as_ref();
        let given = table.and_then(|node| node.service_rate.as_ref()).map(|rate| rate.value);
        given.unwrap_or(match (software, protection) {
            (_, Protection::Esp(Cipher::TripleDesSha1)) => BitRate(80_000_000),
            (Software::StrongSwan, _) => BitRate(350_000_000),
            (Software::WireGuard, _) => BitRate(480_000_000),
            (Software::OpenVpn, _) => BitRate(400_000_000),
        })
    }
}

/// Whether a service has a flow of its own.
fn has_flow(service: &Option<crate::file::service::Service>) -> bool {
    !matches!(service, Some(crate::file::service::Service::Frr(_)))
}

/// Bytes of the largest packet a flow sends.
fn largest_packet(flow: &FlowGroup) -> u32 {
    flow.family.header()
        + match &flow.transport {
            Transport::Tcp(tcp) => {
                let options = if tcp.timestamps { wire::TCP_TIMESTAMPS } else { 0 };
                tcp.max_segment_size + wire::TCP_HEADER + options
            }
            _ => flow.traffic.pattern().map_or(0, Pattern::largest_packet) + wire::UDP_HEADER,
        }
}
