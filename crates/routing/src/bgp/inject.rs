//! UPDATE messages for the routes of a table: those with equal attributes share messages of up
//! to 4,096 bytes (RFC 4271 section 4.3), written one after the other into a large buffer.
//!
//! The table holds destinations as messages do, so most of the work is to copy them.

use super::attributes::{MP_REACH_NLRI, MP_UNREACH_NLRI, flag};
use super::message::{self, HEADER, LONGEST, UPDATE};
use super::nlri::{Destinations, Family};
use super::path::Encoding;
use super::table::{Group, Table};
use std::net::IpAddr;

/// What is done with the routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// They are announced.
    Announce,
    /// They are withdrawn.
    Withdraw,
}

/// In which order routes are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// All routes with equal attributes together, in as few messages as can be; groups in the
    /// order of their first routes, routes within them in the table's.
    Packed,
    /// As in the table: only neighbours share messages.
    AsListed,
}

/// A way through a table, to be gone in steps of a buffer each.
#[derive(Clone, Debug)]
pub struct Injection {
    action: Action,
    order: Order,
    families: Vec<Family>,
    /// The next run, or group where packed.
    next: usize,
    /// Bytes of each group that were written, and where its part in hand ends.
    places: Vec<usize>,
    end: Option<usize>,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Messages.
    pub messages: usize,
    /// Routes in them.
    pub routes: usize,
}

impl Injection {
    /// Through the routes of these families.
    pub fn new(table: &Table, action: Action, order: Order, families: &[Family]) -> Injection {
        let places = vec![0; table.all_groups().len()];
        Injection { action, order, families: families.to_vec(), next: 0, places, end: None }
    }

    /// Appends whole messages until the buffer has `enough` bytes or all routes are written; the
    /// latter once nothing is written. The table must be the same each time.
    pub fn fill(&mut self, table: &Table, encoding: &Encoding, enough: usize, out: &mut Vec<u8>) -> Written {
        let mut written = Written::default();
        let mut scratch = Vec::new();
        while out.len() < enough {
            let Some((group_index, count)) = self.step(table) else { break };
            let group = &table.all_groups()[group_index];
            let start = self.places[group_index];
            let end = self.end.unwrap_or_else(|| group.after(start, count));
            let frame = Frame::new(group, self.action, encoding, &mut scratch);
            let mut place = start;
            while place < end && out.len() < enough {
                let part = group.fitting(place, end, frame.room);
                debug_assert!(part > place, "a destination fits");
                self.write(group, &frame, &group.nlri[place..part], &scratch, out);
                written.routes += group.count_in(place, part);
                written.messages += 1;
                place = part;
            }
            self.places[group_index] = place;
            self.end = (place < end).then_some(end);
            if self.end.is_none() {
                self.next += 1;
            }
        }
        written
    }

    /// The group in hand and how many of its routes come next.
    fn step(&mut self, table: &Table) -> Option<(usize, usize)> {
        loop {
            let (index, count) = match self.order {
                Order::Packed => (self.next, table.all_groups().get(self.next)?.count),
                Order::AsListed => {
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

    fn write(&self, group: &Group, frame: &Frame, nlri: &[u8], attributes: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0xff; HEADER]);
        match (group.family, self.action) {
            (Family::Ipv4Unicast, Action::Withdraw) => {
                out.extend_from_slice(&(nlri.len() as u16).to_be_bytes());
                out.extend_from_slice(nlri);
                out.extend_from_slice(&[0; 2]);
            }
            (Family::Ipv4Unicast, Action::Announce) => {
                out.extend_from_slice(&[0; 2]);
                out.extend_from_slice(&(attributes.len() as u16).to_be_bytes());
                out.extend_from_slice(attributes);
                out.extend_from_slice(nlri);
            }
            (family, action) => {
                // RFC 7606 section 5.1: the destinations stand first.
                let value = frame.ahead.len() + nlri.len();
                let code = if action == Action::Announce { MP_REACH_NLRI } else { MP_UNREACH_NLRI };
                out.extend_from_slice(&[0; 2]);
                out.extend_from_slice(&((4 + value + attributes.len()) as u16).to_be_bytes());
                out.extend_from_slice(&[flag::OPTIONAL | flag::EXTENDED_LENGTH, code]);
                out.extend_from_slice(&(value as u16).to_be_bytes());
                out.extend_from_slice(&frame.ahead);
                if family.is_labelled() && action == Action::Withdraw {
                    withdraw_labels(family, nlri, out);
                } else {
                    out.extend_from_slice(nlri);
                }
                out.extend_from_slice(attributes);
            }
        }
        let length = (out.len() - start) as u16;
        debug_assert!(usize::from(length) <= LONGEST);
        out[start + 16..start + 18].copy_from_slice(&length.to_be_bytes());
        out[start + 18] = UPDATE;
    }
}

/// What the messages of a group have in common, beside the attributes.
struct Frame {
    /// What MP_REACH_NLRI and MP_UNREACH_NLRI have ahead of the destinations.
    ahead: Vec<u8>,
    /// What is left for destinations.
    room: usize,
}

impl Frame {
    /// Puts the attributes into `scratch`.
    fn new(group: &Group, action: Action, encoding: &Encoding, scratch: &mut Vec<u8>) -> Frame {
        scratch.clear();
        let mut ahead = Vec::new();
        if action == Action::Announce {
            group.path.write(group.family, encoding, scratch);
        }
        // Two lengths, and the header of the attribute that holds the destinations.
        let mut taken = HEADER + 4 + scratch.len();
        if group.family != Family::Ipv4Unicast {
            let (afi, safi) = group.family.codes();
            ahead.extend(afi.to_be_bytes());
            ahead.push(safi);
            if action == Action::Announce {
                write_next_hop(group.family, group.path.next_hop, &mut ahead);
                ahead.push(0);
            }
            taken += 4 + ahead.len();
        }
        Frame { ahead, room: LONGEST - taken }
    }
}

/// Length and next hop (RFC 4760 section 3, RFC 4364 section 4.3.2).
fn write_next_hop(family: Family, next_hop: IpAddr, out: &mut Vec<u8>) {
    let distinguisher: &[u8] = if family == Family::Vpnv4 { &[0; 8] } else { &[] };
    let address = match next_hop {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    out.push((distinguisher.len() + address.len()) as u8);
    out.extend_from_slice(distinguisher);
    out.extend_from_slice(&address);
}

/// The destinations without their labels (RFC 8277 section 2.4): as many bytes.
fn withdraw_labels(family: Family, nlri: &[u8], out: &mut Vec<u8>) {
    for mut nlri in Destinations::new(family, nlri) {
        nlri.label = None;
        nlri.write(out);
    }
}

/// Appends the ends of the initial routes of families (RFC 4724 section 2).
pub fn write_ends(families: &[Family], out: &mut Vec<u8>) {
    families.iter().for_each(|family| message::write_end_of_rib(*family, out));
}
