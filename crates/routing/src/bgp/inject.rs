//! UPDATE messages for the routes of a table. Routes with equal attributes share messages of up to 4,096
//! bytes (RFC 4271 section 4.3), which are written one after the other into a large buffer.
//!
//! The table stores destinations as encoded in messages, so that most of the work is copying.

use super::attributes::{MP_REACH_NLRI, MP_UNREACH_NLRI, flag};
use super::message::{self, HEADER, MAX_LENGTH, UPDATE};
use super::nlri::{BgpFamily, Destinations};
use super::path::Encoding;
use super::table::{BgpTable, RouteGroup};
use std::net::IpAddr;

/// Action on the routes of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectionAction {
    /// Announce the routes.
    Announce,
    /// Withdraw the routes.
    Withdraw,
}

/// Order in which routes are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOrder {
    /// All routes with equal attributes together, in as few messages as possible. Groups are sent in the
    /// order of their first routes, and the routes of a group in the order of the table.
    Packed,
    /// Order of the table; only adjacent routes share messages.
    AsListed,
}

/// Progress through a table, in steps of one buffer each.
#[derive(Clone, Debug)]
pub struct Injection {
    action: InjectionAction,
    order: SendOrder,
    families: Vec<BgpFamily>,
    /// Index of the next run, or of the next group if packed.
    next: usize,
    /// Bytes written of each group, and the end of the current run in its group.
    offsets: Vec<usize>,
    end: Option<usize>,
}

/// Numbers of messages and routes written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCounts {
    /// Number of messages.
    pub messages: usize,
    /// Number of routes in them.
    pub routes: usize,
}

impl Injection {
    /// Starts at the first route of these families.
    pub fn new(
        table: &BgpTable,
        action: InjectionAction,
        order: SendOrder,
        families: &[BgpFamily],
    ) -> Injection {
        let offsets = vec![0; table.all_groups().len()];
        Injection { action, order, families: families.to_vec(), next: 0, offsets, end: None }
    }

    /// Appends complete messages until the buffer has at least `min_length` bytes or all routes are written.
    /// Returns zero counts once all routes are written. Every call must pass the same table.
    pub fn fill(
        &mut self,
        table: &BgpTable,
        encoding: &Encoding,
        min_length: usize,
        out: &mut Vec<u8>,
    ) -> WriteCounts {
        let mut written = WriteCounts::default();
        let mut scratch = Vec::new();
        while out.len() < min_length {
            let Some((group_index, count)) = self.step(table) else { break };
            let group = &table.all_groups()[group_index];
            let start = self.offsets[group_index];
            let end = self.end.unwrap_or_else(|| group.after(start, count));
            let frame = MessageTemplate::new(group, self.action, encoding, &mut scratch);
            let mut offset = start;
            while offset < end && out.len() < min_length {
                let part = group.fitting(offset, end, frame.room);
                debug_assert!(part > offset, "at least one destination fits");
                self.write(group, &frame, &group.nlri[offset..part], &scratch, out);
                written.routes += group.count_in(offset, part);
                written.messages += 1;
                offset = part;
            }
            self.offsets[group_index] = offset;
            self.end = (offset < end).then_some(end);
            if self.end.is_none() {
                self.next += 1;
            }
        }
        written
    }

    /// Returns the current group and the number of its routes to send next.
    fn step(&mut self, table: &BgpTable) -> Option<(usize, usize)> {
        loop {
            let (index, count) = match self.order {
                SendOrder::Packed => (self.next, table.all_groups().get(self.next)?.count),
                SendOrder::AsListed => {
                    let run = table.all_runs().get(self.next)?;
                    (run.group as usize, run.count as usize)
                }
            };
            if count > 0 && self.families.contains(&table.all_groups()[index].family) {
                return Some((index, count));
            }
            self.next += 1;
        }
    }

    fn write(
        &self,
        group: &RouteGroup,
        frame: &MessageTemplate,
        nlri: &[u8],
        attributes: &[u8],
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        out.extend_from_slice(&[0xff; HEADER]);
        match (group.family, self.action) {
            (BgpFamily::Ipv4Unicast, InjectionAction::Withdraw) => {
                out.extend_from_slice(&(nlri.len() as u16).to_be_bytes());
                out.extend_from_slice(nlri);
                out.extend_from_slice(&[0; 2]);
            }
            (BgpFamily::Ipv4Unicast, InjectionAction::Announce) => {
                out.extend_from_slice(&[0; 2]);
                out.extend_from_slice(&(attributes.len() as u16).to_be_bytes());
                out.extend_from_slice(attributes);
                out.extend_from_slice(nlri);
            }
            (family, action) => {
                // RFC 7606 section 5.1: the destinations come first.
                let value = frame.prelude.len() + nlri.len();
                let code = if action == InjectionAction::Announce { MP_REACH_NLRI } else { MP_UNREACH_NLRI };
                out.extend_from_slice(&[0; 2]);
                out.extend_from_slice(&((4 + value + attributes.len()) as u16).to_be_bytes());
                out.extend_from_slice(&[flag::OPTIONAL | flag::EXTENDED_LENGTH, code]);
                out.extend_from_slice(&(value as u16).to_be_bytes());
                out.extend_from_slice(&frame.prelude);
                if family.is_labeled() && action == InjectionAction::Withdraw {
                    withdraw_labels(family, nlri, out);
                } else {
                    out.extend_from_slice(nlri);
                }
                out.extend_from_slice(attributes);
            }
        }
        let length = (out.len() - start) as u16;
        debug_assert!(usize::from(length) <= MAX_LENGTH);
        out[start + 16..start + 18].copy_from_slice(&length.to_be_bytes());
        out[start + 18] = UPDATE;
    }
}

/// Parts shared by all messages of a group, apart from the attributes.
struct MessageTemplate {
    /// Fields before the destinations in MP_REACH_NLRI or MP_UNREACH_NLRI.
    prelude: Vec<u8>,
    /// Bytes available for destinations.
    room: usize,
}

impl MessageTemplate {
    /// Writes the attributes into `scratch`.
    fn new(
        group: &RouteGroup,
        action: InjectionAction,
        encoding: &Encoding,
        scratch: &mut Vec<u8>,
    ) -> MessageTemplate {
        scratch.clear();
        let mut prelude = Vec::new();
        if action == InjectionAction::Announce {
            group.path.write(group.family, encoding, scratch);
        }
        // Two length fields, and the header of the attribute with the destinations.
        let mut used = HEADER + 4 + scratch.len();
        if group.family != BgpFamily::Ipv4Unicast {
            let (afi, safi) = group.family.codes();
            prelude.extend(afi.to_be_bytes());
            prelude.push(safi);
            if action == InjectionAction::Announce {
                write_next_hop(group.family, group.path.next_hop, &mut prelude);
                prelude.push(0);
            }
            used += 4 + prelude.len();
        }
        MessageTemplate { prelude, room: MAX_LENGTH - used }
    }
}

/// Appends length and next hop (RFC 4760 section 3, RFC 4364 section 4.3.2).
fn write_next_hop(family: BgpFamily, next_hop: IpAddr, out: &mut Vec<u8>) {
    let distinguisher: &[u8] = if family == BgpFamily::Vpnv4 { &[0; 8] } else { &[] };
    let address = match next_hop {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    out.push((distinguisher.len() + address.len()) as u8);
    out.extend_from_slice(distinguisher);
    out.extend_from_slice(&address);
}

/// Appends the destinations as withdrawn, without labels (RFC 8277 section 2.4); the length does not change.
fn withdraw_labels(family: BgpFamily, nlri: &[u8], out: &mut Vec<u8>) {
    for mut nlri in Destinations::new(family, nlri) {
        nlri.label = None;
        nlri.write(out);
    }
}

/// Appends the End-of-RIB markers of families (RFC 4724 section 2).
pub fn write_ends(families: &[BgpFamily], out: &mut Vec<u8>) {
    families.iter().for_each(|family| message::write_end_of_rib(*family, out));
}
