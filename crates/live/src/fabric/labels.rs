//! How the emulator tells to whom a packet belongs: by the addresses and ports that the
//! fabric gave.

use super::assignments::{Member, is_one_ended};
use crate::emulator::{Entry, Label};
use netstage_scenario::plan::Plan;

/// An entry for every flow of a plan, numbered as in `members`.
pub fn labels(plan: &Plan, members: &[Member]) -> Vec<Entry> {
    let entry = |(id, member): (usize, &Member)| {
        let group = &plan.flows[member.group];
        Entry {
            source: Some(member.source),
            destination: Some(member.destination.ip()),
            protocol: None,
            source_port: None,
            // Echoes have no ports, and what is sent to closed ones may go to several.
            destination_port: (!is_one_ended(&group.transport)).then_some(member.destination.port()),
            label: Label {
                class: group.vpn.unwrap_or(plan.vpns.len()) as u16,
                flow: Some(id as u32),
                background: group.background,
            },
        }
    };
    members.iter().enumerate().map(entry).collect()
}
