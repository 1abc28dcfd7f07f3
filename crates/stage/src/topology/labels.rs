//! How the emulator tells to whom a packet belongs: by the addresses and ports that the
//! fabric gave.

use super::address;
use super::assignments::{Member, is_one_ended};
use super::layout::{Layout, Placement};
use netstage_emulator::{Entry, Label};
use netstage_scenario::plan::{Family, Plan};

/// Entries for every flow of a plan, numbered as in `members`, and for what PEs say to each other.
pub fn labels(plan: &Plan, layout: &Layout, members: &[Member]) -> Vec<Entry> {
    let entries = |(id, member): (usize, &Member)| {
        let group = &plan.flows[member.group];
        // Echoes have no ports, what is sent to closed ones may go to several, and other
        // people's programs choose their own.
        let port = !is_one_ended(&group.transport) && group.program.is_none();
        let entry = Entry {
            source: Some(member.source),
            destination: Some(member.destination.ip()),
            protocol: None,
            source_port: None,
            destination_port: port.then_some(member.destination.port()),
            label: Label {
                class: group.vpn.unwrap_or(plan.vpns.len()) as u16,
                flow: Some(id as u32),
                background: group.background,
                connections: group.traffic.application().is_some(),
            },
        };
        let back = group.vpn.and_then(|vpn| plan.vpns[vpn].back);
        let class = back.map_or(entry.label.class, |back| back as u16);
        let reversed = Entry {
            source: entry.destination,
            destination: entry.source,
            source_port: entry.destination_port,
            destination_port: None,
            label: Label { class, ..entry.label },
            ..entry
        };
        // The addresses of a service are its own: what comes back is known, too.
        let is_known = group.program.is_some() || back.is_some();
        [Some(entry), is_known.then_some(reversed)].into_iter().flatten()
    };
    let tunnel = |(index, tunnel): (usize, &Option<Placement>)| {
        let (vpn, tunnel) = (&plan.vpns[index], (*tunnel)?);
        let ingress = Some(address::of(Family::V4, vpn.ingress, tunnel.source));
        let egress = Some(address::of(Family::V4, vpn.egress, tunnel.destination));
        let entry = |source, destination, class| Entry {
            source,
            destination,
            protocol: None,
            source_port: None,
            destination_port: None,
            label: Label { class: class as u16, flow: None, background: false, connections: false },
        };
        let back = vpn.back.map(|back| entry(egress, ingress, back));
        Some([Some(entry(ingress, egress, index)), back].into_iter().flatten())
    };
    let tunnels = layout.tunnels.iter().enumerate().filter_map(tunnel).flatten();
    members.iter().enumerate().flat_map(entries).chain(tunnels).collect()
}
