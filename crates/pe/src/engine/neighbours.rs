//! Stations on customers' circuits: ARP and neighbour discovery, asked and answered. Who is
//! known for how long is [`netstage_core::neighbour`]'s.
//!
//! What stations say counts on the circuits it came by, and only of addresses on their links.

use super::pool::{Buffered, HEADROOM};
use super::{Counter, Departure, Refused, Side, State};
use netstage_core::neighbour::Action;
use netstage_core::time::Instant;
use netstage_wire::arp;
use netstage_wire::ethernet::{self, Mac, Tag, ethertype};
use netstage_wire::ip::{v4, v6};
use netstage_wire::neighbour_discovery::{self, Message, group_mac, solicited_node};
use std::net::{IpAddr, Ipv6Addr};

/// What a station says.
struct Said {
    /// Who it is and which address it has.
    claim: Option<(IpAddr, Mac)>,
    /// Which address it asks for, and to whom the answer goes.
    question: Option<(IpAddr, IpAddr, Mac)>,
}

impl State {
    /// A customer's frame that is no packet for another network: ARP, or to a group.
    #[cold]
    pub(super) fn handle_link_frame(
        &mut self,
        now: Instant,
        port: usize,
        frame: &ethernet::View<'_>,
    ) -> Result<(), Refused> {
        let said = match frame.kind() {
            ethertype::ARP => arp_message(frame)?,
            ethertype::IPV6 => discovery_message(frame).ok_or(Counter::NotForUs)?,
            _ => return Err(Counter::NotForUs.into()),
        };
        self.handle_said(now, port, frame, &said)
    }

    /// A packet to this router's station that no circuit selects. A question whether it is still
    /// there belongs to none.
    #[cold]
    pub(super) fn handle_unclaimed(
        &mut self,
        now: Instant,
        port: usize,
        frame: &ethernet::View<'_>,
    ) -> Result<(), Refused> {
        match discovery_message(frame) {
            Some(said) => self.handle_said(now, port, frame, &said),
            None => Err(Counter::NoCircuit.into()),
        }
    }

    fn handle_said(
        &mut self,
        now: Instant,
        port: usize,
        frame: &ethernet::View<'_>,
        said: &Said,
    ) -> Result<(), Refused> {
        let Side::Customer { mac, circuits } = &self.sides[port] else {
            return Err(Counter::NotForUs.into());
        };
        let (own_mac, circuits) = (*mac, circuits.all(frame));
        if circuits.is_empty() {
            return Err(Counter::NoCircuit.into());
        }
        let mut is_conflict = false;
        for circuit in circuits {
            let is_ours = |address: IpAddr| {
                self.circuits[circuit as usize].addresses.iter().any(|(own, _)| *own == address)
            };
            let question = said.question.filter(|(target, ..)| is_ours(*target));
            if let Some((address, station)) = said.claim
                && station != own_mac
            {
                if is_ours(address) {
                    is_conflict = true;
                } else if self.is_on_link(circuit, address) {
                    let waiting =
                        self.neighbours.handle_claim(now, (circuit, address), station, question.is_some());
                    if let Some(packet) = waiting {
                        self.hand_over(circuit as usize, station, packet);
                    }
                }
            }
            if let Some((target, asker, station)) = question {
                self.tell_own_address(port, frame, own_mac, (target, asker, station));
            }
        }
        if is_conflict { Err(Counter::AddressConflict.into()) } else { Ok(()) }
    }

    fn is_on_link(&self, circuit: u32, address: IpAddr) -> bool {
        self.circuits[circuit as usize].addresses.iter().any(|(own, length)| match (own, address) {
            (IpAddr::V4(own), IpAddr::V4(address)) => {
                (u32::from(*own) ^ u32::from(address)).leading_zeros() >= u32::from(*length)
            }
            (IpAddr::V6(own), IpAddr::V6(address)) => {
                (u128::from(*own) ^ u128::from(address)).leading_zeros() >= u32::from(*length)
            }
            _ => false,
        })
    }

    fn tell_own_address(
        &mut self,
        port: usize,
        frame: &ethernet::View<'_>,
        own_mac: Mac,
        (target, asker, station): (IpAddr, IpAddr, Mac),
    ) {
        let tags: Vec<Tag> = frame.tags().collect();
        match (target, asker) {
            (IpAddr::V4(target), IpAddr::V4(asker)) => {
                let reply = arp::Message {
                    operation: arp::Operation::Reply,
                    sender_mac: own_mac,
                    sender: target,
                    target_mac: station,
                    target: asker,
                };
                let mut bytes = [0; arp::MESSAGE];
                let _ = reply.write(&mut bytes);
                self.send_link_frame(port, (station, own_mac), &tags, ethertype::ARP, &bytes);
            }
            (IpAddr::V6(target), IpAddr::V6(asker)) => {
                let mut bytes = [0; neighbour_discovery::PACKET];
                neighbour_discovery::write_advertisement(asker, target, own_mac, &mut bytes);
                let to = match asker.is_unspecified() {
                    true => group_mac(neighbour_discovery::ALL_NODES),
                    false => station,
                };
                self.send_link_frame(port, (to, own_mac), &tags, ethertype::IPV6, &bytes);
            }
            _ => {}
        }
    }

    fn send_link_frame(
        &mut self,
        port: usize,
        (destination, source): (Mac, Mac),
        tags: &[Tag],
        kind: u16,
        payload: &[u8],
    ) {
        let Some(Buffered { buffer, length, .. }) = self.pool.keep(payload, 0) else {
            return self.count(Counter::BuffersExhausted.into());
        };
        let header = ethernet::Header { destination, source, tags, kind };
        let start = HEADROOM - header.length();
        let written = header.write(&mut self.pool.bytes(buffer)[start..]);
        debug_assert!(written.is_ok(), "a circuit has at most two tags");
        let end = HEADROOM as u16 + length;
        self.departures[port].push(Departure { buffer, start: start as u16, end });
    }

    /// A packet whose station is not known waits for it, the latest one of each address.
    #[cold]
    pub(super) fn await_neighbour(
        &mut self,
        now: Instant,
        circuit: u32,
        address: IpAddr,
        packet: Buffered,
    ) -> Result<(), Refused> {
        let refused = match self.is_on_link(circuit, address) && self.pool.may_queue(0) {
            true => self.neighbours.wait(now, circuit, address, packet),
            false => Some(packet),
        };
        match refused {
            Some(Buffered { buffer, .. }) => {
                self.pool.give(buffer);
                Err(Counter::Unresolved.into())
            }
            None => Ok(()),
        }
    }

    /// Asks for stations, and gives up those that do not answer.
    #[inline]
    pub(super) fn ask_neighbours(&mut self, now: Instant) {
        while self.neighbours.poll_timeout() <= now {
            match self.neighbours.poll(now) {
                Some(Action::Ask { link, address, mac }) => self.ask(link as usize, address, mac),
                Some(Action::GiveUp { waiting: Some(Buffered { buffer, .. }), .. }) => {
                    self.pool.give(buffer);
                    self.count(Counter::Unresolved.into());
                }
                Some(Action::GiveUp { waiting: None, .. }) | None => {}
            }
        }
    }

    fn ask(&mut self, circuit: usize, address: IpAddr, known: Option<Mac>) {
        let circuit = &self.circuits[circuit];
        let port = circuit.port as usize;
        let Side::Customer { mac: own_mac, .. } = self.sides[port] else { return };
        let header = circuit.header;
        let mut own = circuit.addresses.iter().map(|(own, _)| *own);
        let (destination, kind, mut payload) = match address {
            IpAddr::V4(target) => {
                let Some(IpAddr::V4(sender)) = own.find(IpAddr::is_ipv4) else { return };
                let operation = arp::Operation::Request;
                let question =
                    arp::Message { operation, sender_mac: own_mac, sender, target_mac: [0; 6], target };
                let mut bytes = vec![0; arp::MESSAGE];
                let _ = question.write(&mut bytes);
                (known.unwrap_or(ethernet::BROADCAST), ethertype::ARP, bytes)
            }
            IpAddr::V6(target) => {
                let Some(IpAddr::V6(source)) = own.find(IpAddr::is_ipv6) else { return };
                let mut bytes = [0; neighbour_discovery::PACKET];
                let to_group = known.is_none();
                neighbour_discovery::write_solicitation(source, own_mac, target, to_group, &mut bytes);
                let group = group_mac(solicited_node(target));
                (known.unwrap_or(group), ethertype::IPV6, bytes.to_vec())
            }
        };
        // The circuit's own header, for its tags.
        let mut frame = header.bytes().to_vec();
        frame[..6].copy_from_slice(&destination);
        let end = frame.len();
        frame[end - 2..].copy_from_slice(&kind.to_be_bytes());
        frame.append(&mut payload);
        let Some(Buffered { buffer, length, .. }) = self.pool.keep(&frame, 0) else {
            return self.count(Counter::BuffersExhausted.into());
        };
        let start = HEADROOM as u16;
        self.departures[port].push(Departure { buffer, start, end: start + length });
    }

    /// Where a packet goes, by its own header.
    #[inline]
    pub(super) fn destination(&mut self, packet: Buffered) -> IpAddr {
        let bytes = &self.pool.bytes(packet.buffer)[HEADROOM..];
        match bytes[0] >> 4 {
            6 => {
                let address: [u8; 16] =
                    *bytes[24..v6::HEADER].first_chunk().expect("a packet has its header");
                Ipv6Addr::from(address).into()
            }
            _ => {
                let address: [u8; 4] = *bytes[16..v4::HEADER].first_chunk().expect("a packet has its header");
                IpAddr::from(address)
            }
        }
    }
}

fn arp_message(frame: &ethernet::View<'_>) -> Result<Said, Counter> {
    let message = arp::Message::read(frame.payload()).map_err(|_| Counter::NotIp)?;
    let asker = IpAddr::V4(message.sender);
    let is_question = message.operation == arp::Operation::Request;
    Ok(Said {
        // One that only asks whether an address is free has none yet (RFC 5227).
        claim: (!message.sender.is_unspecified()).then_some((asker, message.sender_mac)),
        question: is_question.then_some((message.target.into(), asker, message.sender_mac)),
    })
}

fn discovery_message(frame: &ethernet::View<'_>) -> Option<Said> {
    let view = v6::View::new(frame.payload()).ok()?;
    if frame.kind() != ethertype::IPV6 || !neighbour_discovery::may_be(&view) {
        return None;
    }
    let (source, message) = neighbour_discovery::read(view.packet()).ok()?;
    Some(match message {
        Message::Solicitation { target, link } => Said {
            claim: link.map(|link| (source.into(), link)),
            question: Some((target.into(), source.into(), link.unwrap_or(frame.source()))),
        },
        Message::Advertisement { target, link, .. } => {
            Said { claim: Some((target.into(), link.unwrap_or(frame.source()))), question: None }
        }
    })
}
