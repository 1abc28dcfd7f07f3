//! Neighbors on customer circuits: ARP and neighbor discovery, as client and server. The cache and its timers
//! are in [`netstage_core::neighbor`].
//!
//! A claim is accepted only for the circuits of the frame that carries it, and only for addresses on their
//! links.

use super::pool::{HEADROOM, StoredPacket};
use super::{Counter, DepartingFrame, EngineState, PacketDrop, PortSide};
use netstage_core::neighbor::NeighborAction;
use netstage_core::time::Instant;
use netstage_wire::arp;
use netstage_wire::ethernet::{self, Mac, Tag, ethertype};
use netstage_wire::ip::{v4, v6};
use netstage_wire::neighbor_discovery::{self, NeighborDiscoveryMessage, group_mac, solicited_node};
use std::net::{IpAddr, Ipv6Addr};

/// Contents of an ARP or neighbor discovery message.
struct NeighborMessage {
    /// IP address and MAC address of the sender.
    claim: Option<(IpAddr, Mac)>,
    /// Address asked for, and the IP and MAC address to reply to.
    question: Option<(IpAddr, IpAddr, Mac)>,
}

impl EngineState {
    /// Handles a customer frame without a packet to forward: ARP, or a frame to a group address.
    #[cold]
    pub(super) fn handle_link_frame(
        &mut self,
        now: Instant,
        port: usize,
        frame: &ethernet::View<'_>,
    ) -> Result<(), PacketDrop> {
        let message = match frame.kind() {
            ethertype::ARP => arp_message(frame)?,
            ethertype::IPV6 => discovery_message(frame).ok_or(Counter::NotForUs)?,
            _ => return Err(Counter::NotForUs.into()),
        };
        self.handle_neighbor_message(now, port, frame, &message)
    }

    /// Handles a packet to this router's MAC address that no circuit selects. Neighbor unreachability probes
    /// match no selection.
    #[cold]
    pub(super) fn handle_unclaimed(
        &mut self,
        now: Instant,
        port: usize,
        frame: &ethernet::View<'_>,
    ) -> Result<(), PacketDrop> {
        match discovery_message(frame) {
            Some(message) => self.handle_neighbor_message(now, port, frame, &message),
            None => Err(Counter::NoCircuit.into()),
        }
    }

    fn handle_neighbor_message(
        &mut self,
        now: Instant,
        port: usize,
        frame: &ethernet::View<'_>,
        message: &NeighborMessage,
    ) -> Result<(), PacketDrop> {
        let PortSide::Customer { mac, circuits } = &self.sides[port] else {
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
            let question = message.question.filter(|(target, ..)| is_ours(*target));
            if let Some((address, mac)) = message.claim
                && mac != own_mac
            {
                if is_ours(address) {
                    is_conflict = true;
                } else if self.is_on_link(circuit, address) {
                    let waiting =
                        self.neighbors.handle_announcement(now, (circuit, address), mac, question.is_some());
                    if let Some(packet) = waiting {
                        self.hand_over(circuit as usize, mac, packet);
                    }
                }
            }
            if let Some((target, requester, mac)) = question {
                self.send_neighbor_reply(port, frame, own_mac, (target, requester, mac));
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

    fn send_neighbor_reply(
        &mut self,
        port: usize,
        frame: &ethernet::View<'_>,
        own_mac: Mac,
        (target, requester, mac): (IpAddr, IpAddr, Mac),
    ) {
        let tags: Vec<Tag> = frame.tags().collect();
        match (target, requester) {
            (IpAddr::V4(target), IpAddr::V4(requester)) => {
                let reply = arp::ArpMessage {
                    operation: arp::Operation::Reply,
                    sender_mac: own_mac,
                    sender: target,
                    target_mac: mac,
                    target: requester,
                };
                let mut bytes = [0; arp::MESSAGE];
                let _ = reply.write(&mut bytes);
                self.send_link_frame(port, (mac, own_mac), &tags, ethertype::ARP, &bytes);
            }
            (IpAddr::V6(target), IpAddr::V6(requester)) => {
                let mut bytes = [0; neighbor_discovery::PACKET];
                neighbor_discovery::write_advertisement(requester, target, own_mac, &mut bytes);
                let to = match requester.is_unspecified() {
                    true => group_mac(neighbor_discovery::ALL_NODES),
                    false => mac,
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
        let Some(StoredPacket { buffer, length, .. }) = self.pool.store(payload, 0) else {
            return self.count(Counter::BuffersExhausted.into());
        };
        let header = ethernet::Header { destination, source, tags, kind };
        let start = HEADROOM - header.length();
        let written = header.write(&mut self.pool.bytes(buffer)[start..]);
        debug_assert!(written.is_ok(), "a circuit has at most two tags");
        let end = HEADROOM as u16 + length;
        self.departures[port].push(DepartingFrame { buffer, start: start as u16, end });
    }

    /// Queues a packet until its neighbor is resolved; only the latest packet of each address is kept.
    #[cold]
    pub(super) fn await_neighbor(
        &mut self,
        now: Instant,
        circuit: u32,
        address: IpAddr,
        packet: StoredPacket,
    ) -> Result<(), PacketDrop> {
        let refused = match self.is_on_link(circuit, address) && self.pool.may_queue(0) {
            true => self.neighbors.enqueue(now, circuit, address, packet),
            false => Some(packet),
        };
        match refused {
            Some(StoredPacket { buffer, .. }) => {
                self.pool.release(buffer);
                Err(Counter::Unresolved.into())
            }
            None => Ok(()),
        }
    }

    /// Sends due neighbor queries, and gives up neighbors that do not answer.
    #[inline]
    pub(super) fn query_neighbors(&mut self, now: Instant) {
        while self.neighbors.poll_timeout() <= now {
            match self.neighbors.poll(now) {
                Some(NeighborAction::Solicit { link, address, mac }) => {
                    self.send_neighbor_query(link as usize, address, mac)
                }
                Some(NeighborAction::Unreachable { waiting: Some(StoredPacket { buffer, .. }), .. }) => {
                    self.pool.release(buffer);
                    self.count(Counter::Unresolved.into());
                }
                Some(NeighborAction::Unreachable { waiting: None, .. }) | None => {}
            }
        }
    }

    fn send_neighbor_query(&mut self, circuit: usize, address: IpAddr, known: Option<Mac>) {
        let circuit = &self.circuits[circuit];
        let port = circuit.port as usize;
        let PortSide::Customer { mac: own_mac, .. } = self.sides[port] else { return };
        let header = circuit.header;
        let mut own = circuit.addresses.iter().map(|(own, _)| *own);
        let (destination, kind, mut payload) = match address {
            IpAddr::V4(target) => {
                let Some(IpAddr::V4(sender)) = own.find(IpAddr::is_ipv4) else { return };
                let operation = arp::Operation::Request;
                let question =
                    arp::ArpMessage { operation, sender_mac: own_mac, sender, target_mac: [0; 6], target };
                let mut bytes = vec![0; arp::MESSAGE];
                let _ = question.write(&mut bytes);
                (known.unwrap_or(ethernet::BROADCAST), ethertype::ARP, bytes)
            }
            IpAddr::V6(target) => {
                let Some(IpAddr::V6(source)) = own.find(IpAddr::is_ipv6) else { return };
                let mut bytes = [0; neighbor_discovery::PACKET];
                let to_group = known.is_none();
                neighbor_discovery::write_solicitation(source, own_mac, target, to_group, &mut bytes);
                let group = group_mac(solicited_node(target));
                (known.unwrap_or(group), ethertype::IPV6, bytes.to_vec())
            }
        };
        // The prebuilt header carries the VLAN tags of the circuit.
        let mut frame = header.bytes().to_vec();
        frame[..6].copy_from_slice(&destination);
        let end = frame.len();
        frame[end - 2..].copy_from_slice(&kind.to_be_bytes());
        frame.append(&mut payload);
        let Some(StoredPacket { buffer, length, .. }) = self.pool.store(&frame, 0) else {
            return self.count(Counter::BuffersExhausted.into());
        };
        let start = HEADROOM as u16;
        self.departures[port].push(DepartingFrame { buffer, start, end: start + length });
    }

    /// Returns the destination address of a packet.
    #[inline]
    pub(super) fn destination(&mut self, packet: StoredPacket) -> IpAddr {
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

fn arp_message(frame: &ethernet::View<'_>) -> Result<NeighborMessage, Counter> {
    let message = arp::ArpMessage::read(frame.payload()).map_err(|_| Counter::NotIp)?;
    let requester = IpAddr::V4(message.sender);
    let is_question = message.operation == arp::Operation::Request;
    Ok(NeighborMessage {
        // An ARP probe has no sender address yet (RFC 5227).
        claim: (!message.sender.is_unspecified()).then_some((requester, message.sender_mac)),
        question: is_question.then_some((message.target.into(), requester, message.sender_mac)),
    })
}

fn discovery_message(frame: &ethernet::View<'_>) -> Option<NeighborMessage> {
    let view = v6::View::new(frame.payload()).ok()?;
    if frame.kind() != ethertype::IPV6 || !neighbor_discovery::may_be(&view) {
        return None;
    }
    let (source, message) = neighbor_discovery::read(view.packet()).ok()?;
    Some(match message {
        NeighborDiscoveryMessage::Solicitation { target, link } => NeighborMessage {
            claim: link.map(|link| (source.into(), link)),
            question: Some((target.into(), source.into(), link.unwrap_or(frame.source()))),
        },
        NeighborDiscoveryMessage::Advertisement { target, link, .. } => {
            NeighborMessage { claim: Some((target.into(), link.unwrap_or(frame.source()))), question: None }
        }
    })
}
