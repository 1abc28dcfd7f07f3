//! Frames from customers: circuit and VPN, route, size check.

use super::pool::{HEADROOM, StoredPacket};
use super::{
    Counter, DepartingFrame, EngineCircuit, EngineState, ICMP_BURST, ICMP_EVERY, PacketDrop, PortSide,
    RouteTarget,
};
use netstage_core::time::Instant;
use netstage_scenario::pe::ReversePathCheck;
use netstage_wire::ethernet::{self, ethertype};
use netstage_wire::ip::fragment::Fragments;
use netstage_wire::ip::{self, protocol, v4, v6};
use netstage_wire::{icmp, tcp};
use std::net::IpAddr;

/// ICMP error to send about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IcmpFault {
    TtlExceeded,
    NoRoute,
    /// Next-hop MTU, bytes.
    TooBig(u16),
}

/// Packet in a buffer, preceded by the header of its frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct CustomerPacket {
    packet: StoredPacket,
    /// Length of the frame header, bytes.
    header: u8,
    ttl: u8,
    circuit: u32,
    vpn: u32,
    destination: IpAddr,
    next: Option<RouteTarget>,
}

impl EngineState {
    #[inline]
    pub(super) fn read_customers_frame(
        &mut self,
        now: Instant,
        port: usize,
        frame: &[u8],
    ) -> Result<(), PacketDrop> {
        let PortSide::Customer { mac, circuits } = &self.sides[port] else {
            unreachable!("the port is a customer port")
        };
        let view = ethernet::View::new(frame).map_err(|_| Counter::FrameMalformed)?;
        if view.destination() != *mac || view.kind() == ethertype::ARP {
            return self.handle_link_frame(now, port, &view);
        }
        let Some(circuit) = circuits.find(&view) else { return self.handle_unclaimed(now, port, &view) };
        let packet = packet(&view)?;
        let header = view.payload_offset();
        let length = packet.packet().len();
        if length > self.pool.room() {
            return self.handle_oversized(now, circuit as usize, &view, &packet);
        }
        let kept = self.pool.store(&frame[..header + length], header).ok_or(Counter::BuffersExhausted)?;
        self.pool.undecided += 1;
        self.from_customers.push(CustomerPacket {
            packet: kept,
            header: header as u8,
            ttl: packet.ttl(),
            circuit,
            vpn: 0,
            destination: packet.destination(),
            next: None,
        });
        Ok(())
    }

    /// Processes all packets read.
    pub(super) fn handle_customers_packets(&mut self, now: Instant) {
        let mut batch = std::mem::take(&mut self.from_customers);
        for arrival in &mut batch {
            let circuit = &mut self.circuits[arrival.circuit as usize];
            circuit.received.add(arrival.packet.length);
            arrival.vpn = circuit.vpn;
        }
        for arrival in &mut batch {
            arrival.next = self.vpns[arrival.vpn as usize].routes.get(arrival.destination);
        }
        for arrival in &batch {
            if let Some(RouteTarget::Flow(flow)) = arrival.next {
                self.edge.load(flow as usize);
                std::hint::black_box(self.flows[flow as usize].send);
            }
        }
        for arrival in batch.drain(..) {
            self.pool.undecided -= 1;
            let sent = match self.route_packet(now, &arrival) {
                Ok(next) => self.send_on(now, next, arrival.packet),
                Err(refused) => {
                    self.pool.release(arrival.packet.buffer);
                    refused.map_or(Ok(()), Err)
                }
            };
            if let Err(refused) = sent {
                self.count(refused);
            }
        }
        self.from_customers = batch;
    }

    /// Selects the route of a packet and prepares the packet for it. `Err(None)` means that the packet has
    /// been handled.
    #[inline]
    fn route_packet(
        &mut self,
        now: Instant,
        arrival: &CustomerPacket,
    ) -> Result<RouteTarget, Option<PacketDrop>> {
        if self.circuits[arrival.circuit as usize].rpf != ReversePathCheck::Off {
            let Ok(source) = ip::View::new(self.pool.packet(arrival.packet)).map(|packet| packet.source())
            else {
                return Err(Some(Counter::IpMalformed.into()));
            };
            self.check_reverse_path(arrival.circuit as usize, source, arrival.next).map_err(Some)?;
        }
        if let Some(RouteTarget::Local(_)) = arrival.next {
            return Err(self.handle_local_arrival(now, arrival).err());
        }
        if arrival.ttl <= 1 {
            self.send_error_to_sender(now, arrival, IcmpFault::TtlExceeded);
            return Err(Some(Counter::TtlExceeded.into()));
        }
        let Some(next) = arrival.next else {
            self.send_error_to_sender(now, arrival, IcmpFault::NoRoute);
            return Err(Some(Counter::NoRoute.into()));
        };
        let (flow, mtu) = self.flow_and_mtu(next);
        if let Some(flow) = flow
            && let Err(refused) = self.may_send(now, flow)
        {
            self.send_error_to_sender(now, arrival, IcmpFault::NoRoute);
            return Err(Some(refused));
        }
        let packet = arrival.packet;
        if packet.length > mtu {
            let bytes = self.pool.packet(packet).to_vec();
            if self.divide(now, &bytes, next, mtu) {
                return Err(None);
            }
            self.send_error_to_sender(now, arrival, IcmpFault::TooBig(mtu));
            return Err(Some(PacketDrop { counter: Counter::TooBig, flow }));
        }
        self.hop(packet);
        if let Some(flow) = flow
            && self.peers[self.flows[flow].peer as usize].clamp_segment_size
        {
            self.clamp_segment_size(packet, mtu);
        }
        Ok(next)
    }

    /// Checks that the route to the source address is one from which a circuit may send (RFC 3704). Neighbors use
    /// link-local addresses for packets to this router.
    fn check_reverse_path(
        &self,
        circuit: usize,
        source: IpAddr,
        next: Option<RouteTarget>,
    ) -> Result<(), PacketDrop> {
        let EngineCircuit { vpn, rpf, .. } = &self.circuits[circuit];
        let is_neighbor = matches!(source, IpAddr::V6(address) if address.is_unicast_link_local())
            && matches!(next, Some(RouteTarget::Local(_)));
        let is_valid = match (rpf, self.vpns[*vpn as usize].routes.get(source)) {
            (ReversePathCheck::Off, _) => true,
            (_, None | Some(RouteTarget::Local(_))) => is_neighbor,
            (ReversePathCheck::Loose, Some(_)) => true,
            (ReversePathCheck::Strict, Some(RouteTarget::Exit(exit))) => {
                self.exits[exit as usize].circuit as usize == circuit
            }
            (ReversePathCheck::Strict, Some(RouteTarget::Flow(_))) => false,
        };
        if is_valid { Ok(()) } else { Err(Counter::SourceInvalid.into()) }
    }

    /// Handles a packet to this router.
    #[cold]
    fn handle_local_arrival(&mut self, now: Instant, arrival: &CustomerPacket) -> Result<(), PacketDrop> {
        let bytes = self.frame(arrival);
        let Ok(frame) = ethernet::View::new(&bytes) else { return Ok(()) };
        let Ok(packet) = ip::View::new(frame.payload()) else { return Ok(()) };
        let port = self.circuits[arrival.circuit as usize].port as usize;
        self.handle_own_packet(now, arrival.vpn as usize, &packet, Some((port, &frame)))
    }

    /// Returns the frame of a packet.
    fn frame(&mut self, arrival: &CustomerPacket) -> Vec<u8> {
        let start = HEADROOM - usize::from(arrival.header);
        let end = HEADROOM + usize::from(arrival.packet.length);
        self.pool.bytes(arrival.packet.buffer)[start..end].to_vec()
    }

    /// Sends a packet to the target of its route.
    #[inline]
    fn send_on(&mut self, now: Instant, next: RouteTarget, packet: StoredPacket) -> Result<(), PacketDrop> {
        match next {
            RouteTarget::Flow(flow) => {
                let flow = flow as usize;
                if !self.pool.may_queue(self.vpns[self.flows[flow].vpn as usize].held) {
                    self.pool.release(packet.buffer);
                    return Err(Counter::BuffersShared.of(flow));
                }
                self.enqueue(now, flow, packet)
            }
            RouteTarget::Exit(exit) => self.deliver(now, exit as usize, packet),
            RouteTarget::Local(_) => unreachable!("local packets were handled before"),
        }
    }

    /// Sends a packet in fragments, or returns false if it must not be fragmented. Each fragment is queued by
    /// itself, so some may be dropped and others sent.
    #[cold]
    pub(super) fn divide(&mut self, now: Instant, packet: &[u8], next: RouteTarget, mtu: u16) -> bool {
        let Ok(view) = v4::View::new(packet) else { return false };
        let Ok(mut fragments) = Fragments::new(view, mtu) else { return false };
        self.count(PacketDrop { counter: Counter::Divided, flow: self.flow_and_mtu(next).0 });
        while let Some(buffer) = self.pool.take() {
            let Some(length) = fragments.write(&mut self.pool.bytes(buffer)[HEADROOM..]) else {
                self.pool.release(buffer);
                return true;
            };
            let fragment = StoredPacket::new(buffer, length as u16);
            self.hop(fragment);
            if let Err(refused) = self.send_on(now, next, fragment) {
                self.count(refused);
            }
        }
        self.count(Counter::BuffersExhausted.into());
        true
    }

    /// Checks that a flow accepts packets: its peer is reachable, and answers if the flow requires it.
    #[inline]
    fn may_send(&mut self, now: Instant, number: usize) -> Result<(), PacketDrop> {
        let flow = &self.flows[number];
        if !self.peers[flow.peer as usize].is_reachable {
            return Err(Counter::PeerUnreachable.of(number));
        }
        if self.edge.is_stopped(number) {
            // There is traffic to send: soon probe whether the peer is back.
            self.edge.wake(now, number);
            return Err(Counter::PeerSilent.of(number));
        }
        Ok(())
    }

    /// Returns the VPN flow of a route target, if any, and the size of the largest packet it carries.
    #[inline]
    fn flow_and_mtu(&self, next: RouteTarget) -> (Option<usize>, u16) {
        match next {
            RouteTarget::Flow(flow) => {
                let flow = flow as usize;
                (Some(flow), self.peers[self.flows[flow].peer as usize].mtu)
            }
            RouteTarget::Exit(exit) => (None, self.circuits[self.exits[exit as usize].circuit as usize].mtu),
            RouteTarget::Local(_) => (None, u16::MAX),
        }
    }

    /// Handles a packet larger than any MTU and any buffer.
    #[cold]
    fn handle_oversized(
        &mut self,
        now: Instant,
        circuit: usize,
        frame: &ethernet::View<'_>,
        packet: &ip::View<'_>,
    ) -> Result<(), PacketDrop> {
        let vpn = self.circuits[circuit].vpn as usize;
        let next = self.vpns[vpn].routes.get(packet.destination());
        self.check_reverse_path(circuit, packet.source(), next)?;
        if packet.ttl() <= 1 {
            self.send_error_for_frame(now, circuit, frame, packet, IcmpFault::TtlExceeded);
            return Err(Counter::TtlExceeded.into());
        }
        let Some(next) = next else {
            self.send_error_for_frame(now, circuit, frame, packet, IcmpFault::NoRoute);
            return Err(Counter::NoRoute.into());
        };
        if let RouteTarget::Local(_) = next {
            return Err(Counter::NotAnEcho.into());
        }
        let (flow, mtu) = self.flow_and_mtu(next);
        if self.divide(now, packet.packet(), next, mtu) {
            return Ok(());
        }
        self.send_error_for_frame(now, circuit, frame, packet, IcmpFault::TooBig(mtu));
        Err(PacketDrop { counter: Counter::TooBig, flow })
    }

    /// Decrements the TTL of a packet that has more than one hop left.
    #[inline]
    pub(super) fn hop(&mut self, packet: StoredPacket) {
        let bytes = &mut self.pool.bytes(packet.buffer)[HEADROOM..];
        if let Ok(mut header) = v4::HeaderMut::new(bytes) {
            header.decrement_ttl();
        } else if let Ok(mut header) = v6::HeaderMut::new(bytes) {
            header.decrement_hop_limit();
        }
    }

    /// Lowers the MSS option of a SYN to segments that fit the MTU (RFC 4459 section 3.2).
    #[inline]
    fn clamp_segment_size(&mut self, packet: StoredPacket, mtu: u16) {
        let bytes = self.pool.packet(packet);
        let (header, next) = match bytes[0] >> 4 {
            6 => (v6::HEADER, bytes[6]),
            _ => (v4::HEADER, bytes[9]),
        };
        // TCP behind IPv6 extension headers is rare enough to ignore.
        if next != protocol::TCP {
            return;
        }
        let Ok(view) = ip::View::new(bytes) else { return };
        let Ok(transport) = view.transport() else { return };
        if transport.fragment != ip::Fragment::Later {
            let (offset, limit) = (transport.offset, mtu - (header + tcp::HEADER) as u16);
            tcp::clamp_maximum_segment_size(&mut bytes[offset..], limit);
        }
    }

    /// Sends an ICMP error to the sender of a packet, by the circuit and to the MAC address it came from.
    #[cold]
    fn send_error_to_sender(&mut self, now: Instant, arrival: &CustomerPacket, fault: IcmpFault) {
        let bytes = self.frame(arrival);
        let Ok(frame) = ethernet::View::new(&bytes) else { return };
        let Ok(packet) = ip::View::new(frame.payload()) else { return };
        self.send_error_for_frame(now, arrival.circuit as usize, &frame, &packet, fault);
    }

    #[cold]
    fn send_error_for_frame(
        &mut self,
        now: Instant,
        circuit: usize,
        frame: &ethernet::View<'_>,
        packet: &ip::View<'_>,
        fault: IcmpFault,
    ) {
        let vpn = self.circuits[circuit].vpn as usize;
        let Some(error) = self.error(now, vpn, packet, fault) else { return };
        let port = self.circuits[circuit].port as usize;
        let PortSide::Customer { mac, .. } = &self.sides[port] else { return };
        let tags: Vec<ethernet::Tag> = frame.tags().collect();
        let header =
            ethernet::Header { destination: frame.source(), source: *mac, tags: &tags, kind: frame.kind() };
        let start = HEADROOM - header.length();
        let written = header.write(&mut self.pool.bytes(error.buffer)[start..]);
        debug_assert!(written.is_ok(), "a circuit has at most two tags");
        let end = HEADROOM as u16 + error.length;
        self.departures[port].push(DepartingFrame { buffer: error.buffer, start: start as u16, end });
    }

    /// Builds an ICMP error about a packet, or returns `None` if the rate limit or RFC rules forbid it.
    #[cold]
    pub(super) fn error(
        &mut self,
        now: Instant,
        vpn: usize,
        packet: &ip::View<'_>,
        fault: IcmpFault,
    ) -> Option<StoredPacket> {
        let error = self.build_error(now, vpn, packet, fault);
        if error.is_none() {
            self.count(Counter::NotAnswered.into());
        }
        error
    }

    fn build_error(
        &mut self,
        now: Instant,
        vpn: usize,
        packet: &ip::View<'_>,
        fault: IcmpFault,
    ) -> Option<StoredPacket> {
        let vpn = &mut self.vpns[vpn];
        if vpn.next_icmp > now + ICMP_BURST {
            return None;
        }
        let buffer = self.pool.take()?;
        let bytes = &mut self.pool.bytes(buffer)[HEADROOM..];
        let written = match packet {
            ip::View::V4(view) => vpn.address_v4.and_then(|address| match fault {
                IcmpFault::TtlExceeded => icmp::time_exceeded_v4(view.packet(), address, bytes).ok(),
                IcmpFault::NoRoute => icmp::no_route_v4(view.packet(), address, bytes).ok(),
                IcmpFault::TooBig(mtu) => icmp::fragmentation_needed(view.packet(), address, mtu, bytes).ok(),
            }),
            ip::View::V6(view) => vpn.address_v6.and_then(|address| match fault {
                IcmpFault::TtlExceeded => icmp::time_exceeded_v6(view.packet(), address, bytes).ok(),
                IcmpFault::NoRoute => icmp::no_route_v6(view.packet(), address, bytes).ok(),
                IcmpFault::TooBig(mtu) => {
                    icmp::packet_too_big(view.packet(), address, mtu.into(), bytes).ok()
                }
            }),
        };
        match written {
            Some(length) => {
                vpn.next_icmp = vpn.next_icmp.max(now) + ICMP_EVERY;
                Some(StoredPacket::new(buffer, length as u16))
            }
            None => {
                self.pool.release(buffer);
                None
            }
        }
    }
}

/// Returns the IP packet in a customer frame.
#[inline]
fn packet<'a>(frame: &ethernet::View<'a>) -> Result<ip::View<'a>, Counter> {
    match frame.kind() {
        ethertype::IPV4 => {
            let view = v4::View::new(frame.payload()).map_err(|_| Counter::IpMalformed)?;
            if !view.is_checksum_valid() {
                return Err(Counter::IpChecksum);
            }
            Ok(ip::View::V4(view))
        }
        ethertype::IPV6 => v6::View::new(frame.payload()).map(ip::View::V6).map_err(|_| Counter::IpMalformed),
        _ => Err(Counter::NotIp),
    }
}
