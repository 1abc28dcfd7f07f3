//! How the emulator tells to whom a packet belongs: by the addresses and ports that the
//! fabric gave.

use super::assignments::{Member, is_one_ended};
use crate::emulator::{Entry, Label};
use netstage_scenario::plan::Plan;

/// Entries for every flow of a plan, numbered as in `members`.
pub fn labels(plan: &Plan, members: &[Member]) -> Vec<Entry> {
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
            },
        };
        // The addresses of a service are its own: what comes back is known, too.
        let back = Entry { source: entry.destination, destination: entry.source, ..entry };
        [Some(entry), group.program.map(|_| back)].into_iter().flatten()
    };
    members.iter().enumerate().flat_map(entries).collect()
}
