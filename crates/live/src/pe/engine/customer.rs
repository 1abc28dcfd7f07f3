//! A frame from a customer: which circuit and so which VPN, where to, and whether it fits.

use super::pool::{Buffered, HEADROOM};
use super::{Counter, Departure, ICMP_BURST, ICMP_EVERY, Next, Refused, Side, State};
use netstage_core::time::Instant;
use netstage_wire::ethernet::{self, ethertype};
use netstage_wire::ip::{self, protocol, v4, v6};
use netstage_wire::{icmp, tcp};

/// What is wrong with a packet, as ICMP tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    TtlExceeded,
    /// What would fit, bytes.
    TooBig(u16),
}

impl State {
    #[inline]
    pub(super) fn handle_customer_frame(
        &mut self,
        now: Instant,
        port: usize,
        frame: &[u8],
    ) -> Result<(), Refused> {
        let Side::Customer { mac, circuits } = &self.sides[port] else {
            unreachable!("the port is on the customers' side")
        };
        let view = ethernet::View::new(frame).map_err(|_| Counter::FrameMalformed)?;
        if view.destination() != *mac || view.kind() == ethertype::ARP {
            return self.handle_link_frame(now, port, &view);
        }
        let Some(circuit) = circuits.find(&view) else { return self.handle_unclaimed(now, port, &view) };
        let circuit = circuit as usize;
        let packet = packet(&view)?;
        self.circuits[circuit].received.add(packet.packet().len() as u16);
        let vpn = self.circuits[circuit].vpn as usize;
        let next = self.vpns[vpn].routes.get(packet.destination());
        if let Some(Next::Local(_)) = next {
            return self.handle_own_packet(now, vpn, &packet, Some((port, &view)));
        }
        if packet.ttl() <= 1 {
            self.answer(now, circuit, &view, &packet, Fault::TtlExceeded);
            return Err(Counter::TtlExceeded.into());
        }
        let next = next.ok_or(Counter::NoRoute)?;
        let (flow, mtu) = match next {
            Next::Flow(flow) => {
                let flow = flow as usize;
                self.may_send(now, flow)?;
                (Some(flow), self.peers[self.flows[flow].peer as usize].mtu)
            }
            Next::Exit(out) => (None, self.circuits[self.exits[out as usize].circuit as usize].mtu),
            Next::Local(_) => unreachable!("handled above"),
        };
        if packet.packet().len() > usize::from(mtu) {
            self.answer(now, circuit, &view, &packet, Fault::TooBig(mtu));
            return Err(Refused { counter: Counter::TooBig, flow });
        }
        if flow.is_some() && !self.pool.may_queue(self.vpns[vpn].held) {
            return Err(Refused { counter: Counter::BuffersShared, flow });
        }
        let kept =
            self.pool.keep(packet.packet()).ok_or(Refused { counter: Counter::BuffersExhausted, flow })?;
        self.hop(kept);
        match next {
            Next::Flow(flow) => {
                let flow = flow as usize;
                if self.peers[self.flows[flow].peer as usize].clamp_segment_size {
                    self.clamp_segment_size(kept, &packet, mtu);
                }
                self.enqueue(now, flow, kept)
            }
            Next::Exit(out) => self.deliver(now, out as usize, kept),
            Next::Local(_) => unreachable!("handled above"),
        }
    }

    /// Whether packets are taken for a flow: its peer can be reached, and answers if it must.
    #[inline]
    fn may_send(&mut self, now: Instant, number: usize) -> Result<(), Refused> {
        let flow = &self.flows[number];
        if !self.peers[flow.peer as usize].is_reachable {
            return Err(Counter::PeerUnreachable.of(number));
        }
        if flow.is_silent && flow.stops_when_silent {
            // Somebody wants to send: ask soon whether the peer is back.
            self.edge.wake(now, number);
            return Err(Counter::PeerSilent.of(number));
        }
        Ok(())
    }

    /// Counts a hop in a packet that has more than one left.
    #[inline]
    pub(super) fn hop(&mut self, packet: Buffered) {
        let bytes = &mut self.pool.bytes(packet.buffer)[HEADROOM..];
        if let Ok(mut header) = v4::HeaderMut::new(bytes) {
            header.decrement_ttl();
        } else if let Ok(mut header) = v6::HeaderMut::new(bytes) {
            header.decrement_hop_limit();
        }
    }

    /// Lowers what a SYN offers, so that the segments it asks for fit (RFC 4459 section 3.2).
    #[inline]
    fn clamp_segment_size(&mut self, kept: Buffered, packet: &ip::View<'_>, mtu: u16) {
        let (header, next) = match packet {
            ip::View::V4(view) => (v4::HEADER, view.protocol()),
            ip::View::V6(view) => (v6::HEADER, view.next_header()),
        };
        // Behind IPv6 extension headers nobody opens connections.
        if next != protocol::TCP {
            return;
        }
        let Ok(transport) = packet.transport() else { return };
        if transport.fragment != ip::Fragment::Later {
            let limit = mtu - (header + tcp::HEADER) as u16;
            let bytes = &mut self.pool.bytes(kept.buffer)[HEADROOM..HEADROOM + usize::from(kept.length)];
            tcp::clamp_maximum_segment_size(&mut bytes[transport.offset..], limit);
        }
    }

    /// Tells a sender what is wrong, back by the circuit and to the station the packet came from.
    #[cold]
    fn answer(
        &mut self,
        now: Instant,
        circuit: usize,
        frame: &ethernet::View<'_>,
        packet: &ip::View<'_>,
        fault: Fault,
    ) {
        let vpn = self.circuits[circuit].vpn as usize;
        let Some(error) = self.error(now, vpn, packet, fault) else { return };
        let port = self.circuits[circuit].port as usize;
        let Side::Customer { mac, .. } = &self.sides[port] else { return };
        let tags: Vec<ethernet::Tag> = frame.tags().collect();
        let header =
            ethernet::Header { destination: frame.source(), source: *mac, tags: &tags, kind: frame.kind() };
        let start = HEADROOM - header.length();
        let written = header.write(&mut self.pool.bytes(error.buffer)[start..]);
        debug_assert!(written.is_ok(), "a circuit has at most two tags");
        let end = HEADROOM as u16 + error.length;
        self.departures[port].push(Departure { buffer: error.buffer, start: start as u16, end });
    }

    /// An ICMP error about a packet, unless there were too many, or none may be sent.
    #[cold]
    pub(super) fn error(
        &mut self,
        now: Instant,
        vpn: usize,
        packet: &ip::View<'_>,
        fault: Fault,
    ) -> Option<Buffered> {
        let error = self.written_error(now, vpn, packet, fault);
        if error.is_none() {
            self.count(Counter::NotAnswered.into());
        }
        error
    }

    fn written_error(
        &mut self,
        now: Instant,
        vpn: usize,
        packet: &ip::View<'_>,
        fault: Fault,
    ) -> Option<Buffered> {
        let vpn = &mut self.vpns[vpn];
        if vpn.next_icmp > now + ICMP_BURST {
            return None;
        }
        let buffer = self.pool.take()?;
        let bytes = &mut self.pool.bytes(buffer)[HEADROOM..];
        let written = match packet {
            ip::View::V4(view) => vpn.address_v4.and_then(|address| match fault {
                Fault::TtlExceeded => icmp::time_exceeded_v4(view.packet(), address, bytes).ok(),
                Fault::TooBig(mtu) => icmp::fragmentation_needed(view.packet(), address, mtu, bytes).ok(),
            }),
            ip::View::V6(view) => vpn.address_v6.and_then(|address| match fault {
                Fault::TtlExceeded => icmp::time_exceeded_v6(view.packet(), address, bytes).ok(),
                Fault::TooBig(mtu) => icmp::packet_too_big(view.packet(), address, mtu.into(), bytes).ok(),
            }),
        };
        match written {
            Some(length) => {
                vpn.next_icmp = vpn.next_icmp.max(now) + ICMP_EVERY;
                Some(Buffered { buffer, length: length as u16 })
            }
            None => {
                self.pool.give(buffer);
                None
            }
        }
    }
}

/// The IP packet in a customer's frame.
#[inline]
fn packet<'a>(frame: &ethernet::View<'a>) -> Result<ip::View<'a>, Counter> {
    match frame.kind() {
        ethertype::IPV4 => {
            let view = v4::View::new(frame.payload()).map_err(|_| Counter::IpMalformed)?;
            if !view.checksum_is_right() {
                return Err(Counter::IpChecksum);
            }
            Ok(ip::View::V4(view))
        }
        ethertype::IPV6 => v6::View::new(frame.payload()).map(ip::View::V6).map_err(|_| Counter::IpMalformed),
        _ => Err(Counter::NotIp),
    }
}
