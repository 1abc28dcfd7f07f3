//! Frames from the core: the label identifies VPN and sender, if the frame arrived by the path the label was
//! assigned for.

use super::customer::IcmpFault;
use super::encapsulation::Encapsulation;
use super::pool::{HEADROOM, StoredPacket};
use super::{Counter, EngineState, PacketDrop, PortSide, RouteTarget};
use netstage_core::time::Instant;
use netstage_wire::ethernet::{self, ethertype};
use netstage_wire::ip::{self, Ecn, tunnel, v4, v6};
use netstage_wire::mpls::{ENTRY, LabelStackEntry, LabelValue, Stack};
use netstage_wire::mpls_in_udp;
use netstage_wire::udp::ZeroChecksum;
use std::net::IpAddr;

/// Labeled packet in a buffer, preceded only by its label stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct CorePacket {
    /// Customer packet or management message.
    payload: StoredPacket,
    /// Length of the label stack, bytes.
    labels: u8,
    is_channel: bool,
    flow: u32,
    tunnel: Option<ReceivingTunnel>,
    at: Instant,
}

/// Tunnel a packet was received through.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivingTunnel {
    source: IpAddr,
    destination: IpAddr,
    ecn: Ecn,
    has_checksum: bool,
    /// Peer whose key decrypted the packet; `None` if the packet was not encrypted.
    decrypted_by: Option<u32>,
}

impl ReceivingTunnel {
    fn plain(view: &mpls_in_udp::View<'_>) -> ReceivingTunnel {
        ReceivingTunnel {
            source: view.source,
            destination: view.destination,
            ecn: view.ecn,
            has_checksum: view.has_checksum,
            decrypted_by: None,
        }
    }

    /// Returns the tunnel of a packet that a peer's key decrypted, with the ECN of both headers combined.
    pub(super) fn decrypted(view: &mpls_in_udp::View<'_>, ecn: Ecn, peer: u32) -> ReceivingTunnel {
        ReceivingTunnel { ecn, decrypted_by: Some(peer), ..ReceivingTunnel::plain(view) }
    }
}

impl EngineState {
    #[inline]
    pub(super) fn read_core_frame(
        &mut self,
        at: Instant,
        port: usize,
        frame: &[u8],
    ) -> Result<(), PacketDrop> {
        let PortSide::Core { mac } = &self.sides[port] else { unreachable!("the port is a core port") };
        let view = ethernet::View::new(frame).map_err(|_| Counter::FrameMalformed)?;
        if view.destination() != *mac {
            return Err(Counter::NotForUs.into());
        }
        if view.payload_offset() != ethernet::HEADER {
            return Err(Counter::NotATunnel.into());
        }
        if let Some(result) = self.read_encrypted_frame(at, port, &view) {
            return result;
        }
        let tunnel = tunnel(&view)?;
        let labeled = tunnel.map_or(view.payload(), |tunnel| tunnel.payload);
        self.read_labeled_packet(at, port, tunnel.as_ref().map(ReceivingTunnel::plain), labeled)
    }

    /// Reads a label stack with its payload, received through this port and tunnel.
    #[inline]
    pub(super) fn read_labeled_packet(
        &mut self,
        at: Instant,
        port: usize,
        tunnel: Option<ReceivingTunnel>,
        labeled: &[u8],
    ) -> Result<(), PacketDrop> {
        let stack = Stack::new(labeled).map_err(|_| Counter::LabelStack)?;
        let labels = stack.payload_offset();
        let is_channel = stack.carries_generic_channel();
        let label = stack.entries().nth_back(usize::from(is_channel)).map(|entry| entry.label);
        let Some(flow) = label.and_then(|label| self.labels.get(label)) else {
            if is_channel && label.is_none_or(|label| self.is_tunnel_label(label)) {
                let above = stack.entries().take(stack.depth() - 1);
                return self.handle_path_message(at, (port, tunnel.as_ref()), above, &labeled[labels..]);
            }
            return Err(Counter::LabelUnknown.into());
        };
        if labeled.len() - labels > self.pool.room() {
            // Larger than the configured core MTU. The sender is not verified yet, so the packet is
            // attributed to no flow.
            return Err(Counter::TooBig.into());
        }
        let payload = self.pool.store(labeled, labels).ok_or(Counter::BuffersExhausted.of(flow))?;
        self.pool.undecided += 1;
        let (labels, flow) = (labels as u8, flow as u32);
        self.from_core.push(CorePacket { payload, labels, is_channel, flow, tunnel, at });
        Ok(())
    }

    /// Processes all packets read from a port.
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
                self.pool.release(arrival.payload.buffer);
                self.count(refused);
            }
        }
        self.from_core = batch;
    }

    #[inline]
    fn handle_core_packet(
        &mut self,
        now: Instant,
        port: usize,
        arrival: &CorePacket,
    ) -> Result<(), PacketDrop> {
        let flow = arrival.flow as usize;
        self.check_sender(flow, port, arrival.tunnel.as_ref())?;
        let labels = &self.pool.headers(arrival.payload)[HEADROOM - usize::from(arrival.labels)..];
        let above = usize::from(arrival.labels) - ENTRY * (1 + usize::from(arrival.is_channel));
        let (above, _) = labels[..above].as_chunks();
        let peer = self.flows[flow].peer as usize;
        if !above.iter().all(|entry| self.may_be_above(peer, LabelStackEntry::from_bytes(*entry).label)) {
            return Err(Counter::LabelUnexpected.of(flow));
        }
        if arrival.is_channel {
            return self.handle_message(now, arrival.at, flow, arrival.payload);
        }
        let outer = arrival.tunnel.map_or(Ecn::NotCapable, |tunnel| tunnel.ecn);
        self.handle_data(now, flow, arrival.payload, outer)
    }

    /// Checks that a packet comes from the peer its label was assigned to, by the path that peer uses.
    #[inline]
    fn check_sender(
        &self,
        flow: usize,
        port: usize,
        tunnel: Option<&ReceivingTunnel>,
    ) -> Result<(), PacketDrop> {
        match self.is_from_peer(self.flows[flow].peer as usize, port, tunnel) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Counter::WrongSender.of(flow)),
            Err(counter) => Err(counter.of(flow)),
        }
    }

    /// Returns whether this port and tunnel are those of the path from this peer.
    #[inline]
    pub(super) fn is_from_peer(
        &self,
        peer: usize,
        port: usize,
        tunnel: Option<&ReceivingTunnel>,
    ) -> Result<bool, Counter> {
        let decrypted_by = tunnel.and_then(|tunnel| tunnel.decrypted_by);
        if decrypted_by.is_none() && self.secure.is_encrypted(peer) {
            return Err(Counter::Unencrypted);
        }
        if decrypted_by.is_some_and(|decrypted_by| decrypted_by as usize != peer) {
            return Ok(false);
        }
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

    /// Returns whether a label is the tunnel label of any peer, or an explicit null.
    #[cold]
    fn is_tunnel_label(&self, label: LabelValue) -> bool {
        (0..self.peers.len()).any(|peer| self.may_be_above(peer, label))
    }

    /// Returns whether a label is allowed above the VPN label or GAL in packets from this peer.
    #[inline]
    pub(super) fn may_be_above(&self, peer: usize, label: LabelValue) -> bool {
        match self.peers[peer].encapsulation {
            Encapsulation::Mpls { accept, .. } => {
                accept == Some(label)
                    || matches!(label, LabelValue::IPV4_EXPLICIT_NULL | LabelValue::IPV6_EXPLICIT_NULL)
            }
            Encapsulation::MplsInUdp { .. } => false,
        }
    }

    #[inline]
    fn handle_data(
        &mut self,
        now: Instant,
        number: usize,
        payload: StoredPacket,
        outer: Ecn,
    ) -> Result<(), PacketDrop> {
        let packet =
            ip::View::new(self.pool.packet(payload)).map_err(|_| Counter::InnerMalformed.of(number))?;
        if let ip::View::V4(view) = packet
            && !view.is_checksum_valid()
        {
            return Err(Counter::InnerMalformed.of(number));
        }
        let (destination, ttl, inner) = (packet.destination(), packet.ttl(), packet.ecn());
        // Drops the Ethernet padding of short packets.
        let packet = StoredPacket { length: packet.packet().len() as u16, ..payload };
        let decapsulated = tunnel::decapsulated_ecn(inner, outer);
        if decapsulated.alarm.is_some() {
            self.count(Counter::MarkAlarm.of(number));
        }
        // A packet dropped for its mark counts as lost in the core, which the marking router intended.
        let ecn = decapsulated.ecn.ok_or(Counter::MarkDropped.of(number))?;
        // From here on the packet has arrived; a later drop is not a loss in the core.
        let flow = &mut self.flows[number];
        // A mark in the inner header was not set in the core.
        let is_marked = outer == Ecn::CongestionExperienced && inner != outer;
        flow.egress.handle_packet(packet.length.into(), is_marked);

        let vpn = flow.vpn as usize;
        let exit = match self.vpns[vpn].routes.get(destination) {
            Some(RouteTarget::Exit(exit)) => exit,
            Some(RouteTarget::Local(_)) => {
                let bytes = self.pool.packet(packet).to_vec();
                let view = ip::View::new(&bytes).map_err(|_| Counter::InnerMalformed.of(number))?;
                self.handle_own_packet(now, vpn, &view, None)?;
                self.pool.release(packet.buffer);
                return Ok(());
            }
            Some(RouteTarget::Flow(_)) => return Err(Counter::NotLocal.of(number)),
            None => {
                self.send_error(now, vpn, packet, IcmpFault::NoRoute);
                return Err(Counter::NoRoute.of(number));
            }
        };
        if ttl <= 1 {
            self.send_error(now, vpn, packet, IcmpFault::TtlExceeded);
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
            if self.divide(now, &bytes, RouteTarget::Exit(exit), mtu) {
                self.pool.release(packet.buffer);
                return Ok(());
            }
            self.send_error(now, vpn, packet, IcmpFault::TooBig(mtu));
            return Err(Counter::TooBig.of(number));
        }
        self.hop(packet);
        if let Err(refused) = self.deliver(now, exit as usize, packet) {
            self.count(refused);
        }
        Ok(())
    }

    /// Sends an ICMP error to a sender in the VPN.
    #[cold]
    fn send_error(&mut self, now: Instant, vpn: usize, packet: StoredPacket, fault: IcmpFault) {
        let bytes = self.pool.packet(packet).to_vec();
        let Ok(packet) = ip::View::new(&bytes) else { return };
        let Some(error) = self.error(now, vpn, &packet, fault) else { return };
        if let Err(refused) = self.send_own(now, vpn, packet.source(), error) {
            self.count(refused);
        }
    }

    /// Sends a packet originated by this router to an address in a VPN.
    pub(super) fn send_own(
        &mut self,
        now: Instant,
        vpn: usize,
        to: IpAddr,
        packet: StoredPacket,
    ) -> Result<(), PacketDrop> {
        match self.vpns[vpn].routes.get(to) {
            Some(RouteTarget::Flow(flow)) => self.enqueue(now, flow as usize, packet),
            Some(RouteTarget::Exit(exit)) => self.deliver(now, exit as usize, packet),
            Some(RouteTarget::Local(_)) | None => {
                self.pool.release(packet.buffer);
                Err(Counter::NoRoute.into())
            }
        }
    }
}

/// Returns the tunnel header of a frame from the core, or `None` for MPLS on Ethernet.
#[inline]
fn tunnel<'a>(frame: &ethernet::View<'a>) -> Result<Option<mpls_in_udp::View<'a>>, Counter> {
    match frame.kind() {
        ethertype::MPLS => Ok(None),
        ethertype::IPV4 | ethertype::IPV6 => {
            // A zero UDP checksum requires that both addresses are compared with those of the tunnel.
            let view = mpls_in_udp::View::new(frame.payload(), ZeroChecksum::Accepted);
            view.map(Some).map_err(|error| match error {
                mpls_in_udp::MplsInUdpError::Other => Counter::NotATunnel,
                _ => Counter::TunnelMalformed,
            })
        }
        _ => Err(Counter::NotATunnel),
    }
}
