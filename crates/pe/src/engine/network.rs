//! A frame from the core: its label tells VPN and sender, if it came by the way the label was
//! given for.

use super::customer::Fault;
use super::encapsulation::Encapsulation;
use super::pool::{Buffered, HEADROOM};
use super::{Counter, Next, Refused, Side, State};
use netstage_core::time::Instant;
use netstage_wire::ethernet::{self, ethertype};
use netstage_wire::ip::{self, Ecn, tunnel, v4, v6};
use netstage_wire::mpls::{ENTRY, Entry, Label, Stack};
use netstage_wire::mpls_in_udp;
use netstage_wire::udp::ZeroChecksum;
use std::net::IpAddr;

/// A labelled packet in a buffer: its label stack in front of it, and nothing else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Customer's packet or message.
    payload: Buffered,
    /// Bytes of the label stack.
    labels: u8,
    is_channel: bool,
    flow: u32,
    tunnel: Option<Tunnel>,
    at: Instant,
}

/// By what tunnel it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tunnel {
    source: IpAddr,
    destination: IpAddr,
    ecn: Ecn,
    has_checksum: bool,
}

impl State {
    #[inline]
    pub(super) fn read_core_frame(&mut self, at: Instant, port: usize, frame: &[u8]) -> Result<(), Refused> {
        let Side::Core { mac } = &self.sides[port] else { unreachable!("the port is on the core's side") };
        let view = ethernet::View::new(frame).map_err(|_| Counter::FrameMalformed)?;
        if view.destination() != *mac {
            return Err(Counter::NotForUs.into());
        }
        if view.payload_offset() != ethernet::HEADER {
            return Err(Counter::NotATunnel.into());
        }
        let tunnel = tunnel(&view)?;
        let labelled = tunnel.map_or(view.payload(), |tunnel| tunnel.payload);
        let stack = Stack::new(labelled).map_err(|_| Counter::LabelStack)?;
        let labels = stack.payload_offset();
        let tunnel = tunnel.map(|view| Tunnel {
            source: view.source,
            destination: view.destination,
            ecn: view.ecn,
            has_checksum: view.has_checksum,
        });
        let is_channel = stack.carries_generic_channel();
        let label = stack.entries().nth_back(usize::from(is_channel)).map(|entry| entry.label);
        let Some(flow) = label.and_then(|label| self.labels.get(label)) else {
            if is_channel && label.is_none_or(|label| self.is_tunnels(label)) {
                let above = stack.entries().take(stack.depth() - 1);
                return self.handle_path_message(at, (port, tunnel.as_ref()), above, &labelled[labels..]);
            }
            return Err(Counter::LabelUnknown.into());
        };
        if labelled.len() - labels > self.pool.room() {
            // Larger than what the core was said to carry; whose it is was not checked.
            return Err(Counter::TooBig.into());
        }
        let payload = self.pool.keep(labelled, labels).ok_or(Counter::BuffersExhausted.of(flow))?;
        self.pool.undecided += 1;
        let (labels, flow) = (labels as u8, flow as u32);
        self.from_core.push(Arrival { payload, labels, is_channel, flow, tunnel, at });
        Ok(())
    }

    /// Decides on all that was read from a port.
    pub(super) fn handle_core_packets(&mut self, now: Instant, port: usize) {
        let mut batch = std::mem::take(&mut self.from_core);
        for arrival in &batch {
            let flow = arrival.flow as usize;
            std::hint::black_box(self.flows[flow].egress.packets);
            if arrival.is_channel {
                self.edge.load(flow);
            }
        }
        for arrival in &batch {
            let vpn = self.flows[arrival.flow as usize].vpn;
            self.vpns[vpn as usize].routes.load();
        }
        for arrival in batch.drain(..) {
            self.pool.undecided -= 1;
            if let Err(refused) = self.handle_core_packet(now, port, &arrival) {
                self.pool.give(arrival.payload.buffer);
                self.count(refused);
            }
        }
        self.from_core = batch;
    }

    #[inline]
    fn handle_core_packet(&mut self, now: Instant, port: usize, arrival: &Arrival) -> Result<(), Refused> {
        let flow = arrival.flow as usize;
        self.check_way(flow, port, arrival.tunnel.as_ref())?;
        let labels = &self.pool.headers(arrival.payload)[HEADROOM - usize::from(arrival.labels)..];
        let above = usize::from(arrival.labels) - ENTRY * (1 + usize::from(arrival.is_channel));
        let (above, _) = labels[..above].as_chunks();
        let peer = self.flows[flow].peer as usize;
        if !above.iter().all(|entry| self.may_be_above(peer, Entry::from_bytes(*entry).label)) {
            return Err(Counter::LabelUnexpected.of(flow));
        }
        if arrival.is_channel {
            return self.handle_message(now, arrival.at, flow, arrival.payload);
        }
        let outer = arrival.tunnel.map_or(Ecn::NotCapable, |tunnel| tunnel.ecn);
        self.handle_data(now, flow, arrival.payload, outer)
    }

    /// A label counts only from the peer it was given to, by the way that peer sends.
    #[inline]
    fn check_way(&self, flow: usize, port: usize, tunnel: Option<&Tunnel>) -> Result<(), Refused> {
        match self.came_from(self.flows[flow].peer as usize, port, tunnel) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Counter::WrongSender.of(flow)),
            Err(counter) => Err(counter.of(flow)),
        }
    }

    /// Whether what came by this port and tunnel came the way this peer sends.
    #[inline]
    pub(super) fn came_from(
        &self,
        peer: usize,
        port: usize,
        tunnel: Option<&Tunnel>,
    ) -> Result<bool, Counter> {
        let peer = &self.peers[peer];
        Ok(match (peer.encapsulation, tunnel) {
            (Encapsulation::Mpls { .. }, None) => peer.port as usize == port,
            (Encapsulation::MplsInUdp { local, remote, has_checksum }, Some(tunnel)) => {
                if has_checksum && !tunnel.has_checksum && local.is_ipv6() {
                    return Err(Counter::TunnelChecksum);
                }
                tunnel.source == remote && tunnel.destination == local
            }
            _ => false,
        })
    }

    /// Whether a label is that of some peer's tunnel, or stands for one that has ended.
    #[cold]
    fn is_tunnels(&self, label: Label) -> bool {
        (0..self.peers.len()).any(|peer| self.may_be_above(peer, label))
    }

    /// Whether a label may stand above the VPN label, or the channel's, of what this peer sends.
    #[inline]
    pub(super) fn may_be_above(&self, peer: usize, label: Label) -> bool {
        match self.peers[peer].encapsulation {
            Encapsulation::Mpls { accept, .. } => {
                accept == Some(label)
                    || matches!(label, Label::IPV4_EXPLICIT_NULL | Label::IPV6_EXPLICIT_NULL)
            }
            Encapsulation::MplsInUdp { .. } => false,
        }
    }

    #[inline]
    fn handle_data(
        &mut self,
        now: Instant,
        number: usize,
        payload: Buffered,
        outer: Ecn,
    ) -> Result<(), Refused> {
        let packet =
            ip::View::new(self.pool.packet(payload)).map_err(|_| Counter::InnerMalformed.of(number))?;
        if let ip::View::V4(view) = packet
            && !view.checksum_is_right()
        {
            return Err(Counter::InnerMalformed.of(number));
        }
        let (destination, ttl, inner) = (packet.destination(), packet.ttl(), packet.ecn());
        // What Ethernet put behind a short one stays behind.
        let packet = Buffered { length: packet.packet().len() as u16, ..payload };
        let decapsulated = tunnel::decapsulated_ecn(inner, outer);
        if decapsulated.alarm.is_some() {
            self.count(Counter::MarkAlarm.of(number));
        }
        // Dropped for its mark, it is lost in the core, as the mark's router would have it.
        let ecn = decapsulated.ecn.ok_or(Counter::MarkDropped.of(number))?;
        // From here on it has arrived: what befalls it now is no loss of the core's.
        let flow = &mut self.flows[number];
        // A mark that was inside already is not the core's.
        let is_marked = outer == Ecn::CongestionExperienced && inner != outer;
        flow.egress.handle_packet(packet.length.into(), is_marked);

        let vpn = flow.vpn as usize;
        let exit = match self.vpns[vpn].routes.get(destination) {
            Some(Next::Exit(exit)) => exit,
            Some(Next::Local(_)) => {
                let bytes = self.pool.packet(packet).to_vec();
                let view = ip::View::new(&bytes).map_err(|_| Counter::InnerMalformed.of(number))?;
                self.handle_own_packet(now, vpn, &view, None)?;
                self.pool.give(packet.buffer);
                return Ok(());
            }
            Some(Next::Flow(_)) => return Err(Counter::NotLocal.of(number)),
            None => {
                self.tell(now, vpn, packet, Fault::NoRoute);
                return Err(Counter::NoRoute.of(number));
            }
        };
        if ttl <= 1 {
            self.tell(now, vpn, packet, Fault::TtlExceeded);
            return Err(Counter::TtlExceeded.of(number));
        }
        let mtu = self.circuits[self.exits[exit as usize].circuit as usize].mtu;
        if ecn != inner {
            let bytes = self.pool.packet(packet);
            if let Ok(mut header) = v4::HeaderMut::new(bytes) {
                header.set_ecn(ecn);
            } else if let Ok(mut header) = v6::HeaderMut::new(bytes) {
                header.set_ecn(ecn);
            }
        }
        if packet.length > mtu {
            let bytes = self.pool.packet(packet).to_vec();
            if self.divide(now, &bytes, Next::Exit(exit), mtu) {
                self.pool.give(packet.buffer);
                return Ok(());
            }
            self.tell(now, vpn, packet, Fault::TooBig(mtu));
            return Err(Counter::TooBig.of(number));
        }
        self.hop(packet);
        if let Err(refused) = self.deliver(now, exit as usize, packet) {
            self.count(refused);
        }
        Ok(())
    }

    /// Tells a sender somewhere in the VPN what is wrong.
    #[cold]
    fn tell(&mut self, now: Instant, vpn: usize, packet: Buffered, fault: Fault) {
        let bytes = self.pool.packet(packet).to_vec();
        let Ok(packet) = ip::View::new(&bytes) else { return };
        let Some(error) = self.error(now, vpn, &packet, fault) else { return };
        if let Err(refused) = self.send_own(now, vpn, packet.source(), error) {
            self.count(refused);
        }
    }

    /// Sends a packet of this router's own to somebody in a VPN.
    pub(super) fn send_own(
        &mut self,
        now: Instant,
        vpn: usize,
        to: IpAddr,
        packet: Buffered,
    ) -> Result<(), Refused> {
        match self.vpns[vpn].routes.get(to) {
            Some(Next::Flow(flow)) => self.enqueue(now, flow as usize, packet),
            Some(Next::Exit(exit)) => self.deliver(now, exit as usize, packet),
            Some(Next::Local(_)) | None => {
                self.pool.give(packet.buffer);
                Err(Counter::NoRoute.into())
            }
        }
    }
}

/// What a frame from the core was tunnelled in, if it was; none is MPLS on Ethernet.
#[inline]
fn tunnel<'a>(frame: &ethernet::View<'a>) -> Result<Option<mpls_in_udp::View<'a>>, Counter> {
    match frame.kind() {
        ethertype::MPLS => Ok(None),
        ethertype::IPV4 | ethertype::IPV6 => {
            // Both addresses are compared with a tunnel's, as leaving the checksum out asks for.
            let view = mpls_in_udp::View::new(frame.payload(), ZeroChecksum::Taken);
            view.map(Some).map_err(|error| match error {
                mpls_in_udp::Error::Other => Counter::NotATunnel,
                _ => Counter::TunnelMalformed,
            })
        }
        _ => Err(Counter::NotATunnel),
    }
}
