//! Circuit of a customer frame: selected by port and VLANs, and by packet fields if several circuits share
//! these.

use netstage_scenario::pe::PacketFilter;
use netstage_wire::{ethernet, ip};

/// VLAN identifiers, plus one slot for untagged frames.
const SLOTS: usize = 4097;
const UNTAGGED: usize = 4096;

/// Circuits of one port.
#[derive(Debug)]
pub(super) struct Circuits {
    outer: VlanTable,
    inner: Vec<VlanTable>,
    shared: Vec<Vec<(Option<PacketFilter>, u32)>>,
}

type VlanTable = Box<[VlanEntry; SLOTS]>;

#[derive(Clone, Copy, Debug)]
enum VlanEntry {
    Empty,
    Circuit(u32),
    /// Several circuits with different selections.
    Shared(u32),
    /// Table of inner VLANs.
    Inner(u32),
}

impl Circuits {
    pub fn new() -> Circuits {
        Circuits { outer: Box::new([VlanEntry::Empty; SLOTS]), inner: Vec::new(), shared: Vec::new() }
    }

    /// Adds a circuit. Selections are matched in the order of addition; a circuit without a selection
    /// receives the rest.
    ///
    /// # Panics
    ///
    /// Panics on a configuration that fails its checks.
    pub fn attach(&mut self, vlans: &[u16], select: Option<&PacketFilter>, circuit: u32) {
        let place = match *vlans {
            [] => &mut self.outer[UNTAGGED],
            [vlan] => &mut self.outer[usize::from(vlan)],
            [outer, inner] => {
                let place = &mut self.outer[usize::from(outer)];
                let table = match *place {
                    VlanEntry::Inner(table) => table,
                    VlanEntry::Empty => {
                        *place = VlanEntry::Inner(self.inner.len() as u32);
                        self.inner.push(Box::new([VlanEntry::Empty; SLOTS]));
                        self.inner.len() as u32 - 1
                    }
                    _ => unreachable!("a VLAN is a circuit, or holds circuits"),
                };
                &mut self.inner[table as usize][usize::from(inner)]
            }
            _ => unreachable!("a circuit has at most two VLANs"),
        };
        let entry = (select.cloned(), circuit);
        let before = match *place {
            VlanEntry::Empty if select.is_none() => return *place = VlanEntry::Circuit(circuit),
            VlanEntry::Shared(list) => {
                let list = &mut self.shared[list as usize];
                let rest = list.iter().position(|(select, _)| select.is_none()).unwrap_or(list.len());
                return list.insert(rest, entry);
            }
            VlanEntry::Empty => None,
            VlanEntry::Circuit(other) => Some((None, other)),
            VlanEntry::Inner(_) => unreachable!("a VLAN is a circuit, or holds circuits"),
        };
        *place = VlanEntry::Shared(self.shared.len() as u32);
        self.shared.push(std::iter::once(entry).chain(before).collect());
    }

    /// Returns the circuit of a frame. The packet is examined only if circuits share the VLANs.
    #[inline]
    pub fn find(&self, frame: &ethernet::View<'_>) -> Option<u32> {
        match self.place(frame)? {
            VlanEntry::Circuit(circuit) => Some(circuit),
            VlanEntry::Shared(list) => {
                let packet = ip::View::new(frame.payload()).ok()?;
                let mut list = self.shared[list as usize].iter();
                let (_, circuit) =
                    list.find(|(select, _)| select.as_ref().is_none_or(|select| is_match(select, &packet)))?;
                Some(*circuit)
            }
            VlanEntry::Empty | VlanEntry::Inner(_) => None,
        }
    }

    /// Returns all circuits a frame may belong to, regardless of its packet.
    pub fn all(&self, frame: &ethernet::View<'_>) -> Vec<u32> {
        match self.place(frame) {
            Some(VlanEntry::Circuit(circuit)) => vec![circuit],
            Some(VlanEntry::Shared(list)) => {
                self.shared[list as usize].iter().map(|(_, circuit)| *circuit).collect()
            }
            Some(VlanEntry::Empty | VlanEntry::Inner(_)) | None => Vec::new(),
        }
    }

    #[inline]
    fn place(&self, frame: &ethernet::View<'_>) -> Option<VlanEntry> {
        let mut tags = frame.tags();
        let mut place = match tags.next() {
            None => self.outer[UNTAGGED],
            // Priority-tagged frame.
            Some(tag) if tag.vlan == 0 => self.outer[UNTAGGED],
            Some(tag) => self.outer[usize::from(tag.vlan)],
        };
        if let VlanEntry::Inner(table) = place {
            place = self.inner[table as usize][usize::from(tags.next()?.vlan)];
        }
        if tags.next().is_some() {
            return None;
        }
        Some(place)
    }
}

/// Returns whether a packet matches a selection. A later fragment has no ports, so it matches only a
/// selection without ports.
fn is_match(select: &PacketFilter, packet: &ip::View<'_>) -> bool {
    let source = select.source.is_none_or(|prefix| prefix.contains(packet.source()));
    if !source || !select.destination.is_none_or(|prefix| prefix.contains(packet.destination())) {
        return false;
    }
    if select.protocol.is_none() && select.source_ports.is_none() && select.destination_ports.is_none() {
        return true;
    }
    let Ok(transport) = packet.transport() else { return false };
    if select.protocol.is_some_and(|protocol| protocol != transport.protocol) {
        return false;
    }
    let Some((source, destination)) = transport.ports() else {
        return select.source_ports.is_none() && select.destination_ports.is_none();
    };
    select.source_ports.as_ref().is_none_or(|ports| ports.contains(&source))
        && select.destination_ports.as_ref().is_none_or(|ports| ports.contains(&destination))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::edge::IpPrefix;
    use netstage_wire::ethernet::{Header, Tag, ethertype};
    use netstage_wire::ip::{protocol, v4};

    fn frame(vlans: &[u16], source: [u8; 4], kind: u8, ports: [u8; 4]) -> Vec<u8> {
        let tags: Vec<Tag> =
            vlans.iter().map(|vlan| Tag { kind: ethertype::VLAN, vlan: *vlan, ..Tag::default() }).collect();
        let header = Header { destination: [2; 6], source: [4; 6], tags: &tags, kind: ethertype::IPV4 };
        let mut bytes = vec![0; header.length() + 28];
        let at = header.write(&mut bytes).unwrap();
        let ip = v4::Header { source: source.into(), protocol: kind, ..v4::Header::default() };
        ip.write(&mut bytes[at..], 8).unwrap();
        bytes[at + 20..at + 24].copy_from_slice(&ports);
        bytes
    }

    fn find(circuits: &Circuits, frame: &[u8]) -> Option<u32> {
        circuits.find(&ethernet::View::new(frame).unwrap())
    }

    #[test]
    fn circuits_are_selected_by_vlans() {
        let mut circuits = Circuits::new();
        let places = [&[][..], &[7], &[9, 1], &[9, 2]];
        for (number, vlans) in (0..).zip(places) {
            circuits.attach(vlans, None, number);
        }
        for (number, vlans) in (0..).zip(places) {
            assert_eq!(find(&circuits, &frame(vlans, [0; 4], 0, [0; 4])), Some(number));
        }
        assert_eq!(find(&circuits, &frame(&[0], [0; 4], 0, [0; 4])), Some(0));
        for vlans in [&[8][..], &[9], &[9, 3], &[7, 1], &[9, 1, 1]] {
            assert_eq!(find(&circuits, &frame(vlans, [0; 4], 0, [0; 4])), None, "{vlans:?}");
        }
    }

    #[test]
    fn circuits_that_share_a_vlan_are_selected_by_packet_fields() {
        let prefix = IpPrefix::new([10, 1, 0, 0].into(), 16).unwrap();
        let web = PacketFilter {
            protocol: Some(protocol::TCP),
            destination_ports: Some(80..=81),
            ..PacketFilter::default()
        };
        let site = PacketFilter { source: Some(prefix), ..PacketFilter::default() };
        let mut circuits = Circuits::new();
        // The circuit without a selection receives the rest, regardless of its position in the list.
        for (number, select) in [(0, None), (1, Some(&web)), (2, Some(&site))] {
            circuits.attach(&[7], select, number);
        }
        for (source, kind, ports, expected) in [
            ([10, 1, 2, 3], protocol::TCP, [0, 9, 0, 80], 1),
            ([10, 1, 2, 3], protocol::UDP, [0, 9, 0, 80], 2),
            ([10, 2, 2, 3], protocol::TCP, [0, 9, 0, 82], 0),
            ([10, 1, 2, 3], protocol::ICMP, [0, 9, 0, 80], 2),
        ] {
            assert_eq!(find(&circuits, &frame(&[7], source, kind, ports)), Some(expected));
        }
    }
}
