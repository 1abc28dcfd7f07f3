//! Classifier entries of the emulator, from the addresses and ports of flows.

use super::address;
use super::assignments::PlacedFlow;
use super::layout::{AddressLayout, EndNumbers};
use netstage_emulator::{ClassifierEntry, PacketLabel};
use netstage_scenario::plan::{IpVersion, Plan};

/// Returns the entries for all flows of a plan, numbered as in `members`, and for the tunnels between PEs.
pub fn labels(plan: &Plan, layout: &AddressLayout, members: &[PlacedFlow]) -> Vec<ClassifierEntry> {
    let entries = |(id, member): (usize, &PlacedFlow)| {
        let group = &plan.flows[member.group];
        // Echoes have no ports, packets to closed ports may use several, and third-party programs choose their own.
        let has_port = !group.transport.is_one_ended() && group.program.is_none();
        let entry = ClassifierEntry {
            source: Some(member.source),
            destination: Some(member.destination.ip()),
            protocol: None,
            source_port: None,
            destination_port: has_port.then_some(member.destination.port()),
            label: PacketLabel {
                class: group.vpn.unwrap_or(plan.vpns.len()) as u16,
                flow: Some(id as u32),
                background: group.background,
                connections: group.traffic.application().is_some(),
            },
        };
        let reverse_vpn = group.vpn.and_then(|vpn| plan.vpns[vpn].opposite);
        let class = reverse_vpn.map_or(entry.label.class, |vpn| vpn as u16);
        let reversed = ClassifierEntry {
            source: entry.destination,
            destination: entry.source,
            source_port: entry.destination_port,
            destination_port: None,
            label: PacketLabel { class, ..entry.label },
            ..entry
        };
        // A service has addresses of its own, so they also identify its reverse traffic.
        let has_reverse = group.program.is_some() || reverse_vpn.is_some();
        [Some(entry), has_reverse.then_some(reversed)].into_iter().flatten()
    };
    let tunnel = |(index, tunnel): (usize, &Option<EndNumbers>)| {
        let (vpn, tunnel) = (&plan.vpns[index], (*tunnel)?);
        let ingress = Some(address::node_address(IpVersion::V4, vpn.ingress, tunnel.source));
        let egress = Some(address::node_address(IpVersion::V4, vpn.egress, tunnel.destination));
        let entry = |source, destination, class| ClassifierEntry {
            source,
            destination,
            protocol: None,
            source_port: None,
            destination_port: None,
            label: PacketLabel { class: class as u16, flow: None, background: false, connections: false },
        };
        let reverse = vpn.opposite.map(|vpn| entry(egress, ingress, vpn));
        Some([Some(entry(ingress, egress, index)), reverse].into_iter().flatten())
    };
    let tunnels = layout.tunnels.iter().enumerate().filter_map(tunnel).flatten();
    members.iter().enumerate().flat_map(entries).chain(tunnels).collect()
}
