//! A frame from the core: its label tells VPN and sender, if it came by the way the label was
//! given for.

use super::config::Encapsulation;
use super::customer::Fault;
use super::pool::{Buffered, HEADROOM};
use super::{Counter, Next, Refused, Side, State};
use netstage_core::time::Instant;
use netstage_wire::ethernet::{self, ethertype};
use netstage_wire::ip::{self, Ecn, tunnel, v4, v6};
use netstage_wire::mpls::{Label, Stack};
use netstage_wire::mpls_in_udp;
use netstage_wire::udp::ZeroChecksum;
use std::net::IpAddr;

impl State {
    #[inline]
    pub(super) fn handle_core_frame(
        &mut self,
        now: Instant,
        at: Instant,
        port: usize,
        frame: &[u8],
    ) -> Result<(), Refused> {
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
        let mut entries = stack.entries();
        let is_channel = stack.carries_generic_channel();
        if is_channel {
            entries.next_back();
        }
        let label = entries.next_back().ok_or(Counter::LabelUnknown)?.label;
        let flow = self.labels.get(label).ok_or(Counter::LabelUnknown)?;
        self.check_way(flow, port, tunnel.as_ref())?;
        if !entries.all(|entry| self.may_be_above(flow, entry.label)) {
            return Err(Counter::LabelUnexpected.of(flow));
        }
        let payload = &labelled[stack.payload_offset()..];
        if is_channel {
            return self.handle_message(now, at, flow, payload);
        }
        let outer = tunnel.map_or(Ecn::NotCapable, |tunnel| tunnel.ecn);
        self.handle_data(now, flow, payload, outer)
    }

    /// A label counts only from the peer it was given to, by the way that peer sends.
    #[inline]
    fn check_way(
        &self,
        flow: usize,
        port: usize,
        tunnel: Option<&mpls_in_udp::View<'_>>,
    ) -> Result<(), Refused> {
        let peer = &self.peers[self.flows[flow].peer as usize];
        let is_right = match (peer.encapsulation, tunnel) {
            (Encapsulation::Mpls { .. }, None) => peer.port as usize == port,
            (Encapsulation::MplsInUdp { local, remote, has_checksum }, Some(tunnel)) => {
                if has_checksum && !tunnel.has_checksum && local.is_ipv6() {
                    return Err(Counter::TunnelChecksum.of(flow));
                }
                tunnel.source == remote && tunnel.destination == local
            }
            _ => false,
        };
        if is_right { Ok(()) } else { Err(Counter::WrongSender.of(flow)) }
    }

    fn may_be_above(&self, flow: usize, label: Label) -> bool {
        match self.peers[self.flows[flow].peer as usize].encapsulation {
            Encapsulation::Mpls { accept, .. } => {
                accept == Some(label)
                    || matches!(label, Label::IPV4_EXPLICIT_NULL | Label::IPV6_EXPLICIT_NULL)
            }
            Encapsulation::MplsInUdp { .. } => false,
        }
    }

    #[inline]
    fn handle_data(&mut self, now: Instant, flow: usize, payload: &[u8], outer: Ecn) -> Result<(), Refused> {
        let packet = ip::View::new(payload).map_err(|_| Counter::InnerMalformed.of(flow))?;
        if let ip::View::V4(view) = packet
            && !view.checksum_is_right()
        {
            return Err(Counter::InnerMalformed.of(flow));
        }
        let is_marked = outer == Ecn::CongestionExperienced;
        let decapsulated = tunnel::decapsulated_ecn(packet.ecn(), outer);
        if decapsulated.alarm.is_some() {
            self.count(Counter::MarkAlarm.of(flow));
        }
        // Dropped for its mark, it is lost in the core, as the mark's router would have it.
        let ecn = decapsulated.ecn.ok_or(Counter::MarkDropped.of(flow))?;
        // From here on it has arrived: what befalls it now is no loss of the core's.
        self.flows[flow].egress.handle_packet(packet.packet().len() as u32, is_marked);

        let vpn = self.flows[flow].vpn as usize;
        let next = self.vpns[vpn].routes.get(packet.destination());
        let exit = match next.ok_or(Counter::NoRoute.of(flow))? {
            Next::Exit(exit) => exit as usize,
            Next::Local(_) => return self.handle_own_packet(now, vpn, &packet, None),
            Next::Flow(_) => return Err(Counter::NotLocal.of(flow)),
        };
        if packet.ttl() <= 1 {
            self.tell(now, vpn, &packet, Fault::TtlExceeded);
            return Err(Counter::TtlExceeded.of(flow));
        }
        let mtu = self.circuits[self.exits[exit].circuit as usize].mtu;
        if packet.packet().len() > usize::from(mtu) {
            self.tell(now, vpn, &packet, Fault::TooBig(mtu));
            return Err(Counter::TooBig.of(flow));
        }
        let kept = self.pool.keep(packet.packet()).ok_or(Counter::BuffersExhausted.of(flow))?;
        self.hop(kept);
        if ecn != packet.ecn() {
            let bytes = &mut self.pool.bytes(kept.buffer)[HEADROOM..];
            if let Ok(mut header) = v4::HeaderMut::new(bytes) {
                header.set_ecn(ecn);
            } else if let Ok(mut header) = v6::HeaderMut::new(bytes) {
                header.set_ecn(ecn);
            }
        }
        self.deliver(now, exit, kept)
    }

    /// Tells a sender somewhere in the VPN what is wrong.
    #[cold]
    fn tell(&mut self, now: Instant, vpn: usize, packet: &ip::View<'_>, fault: Fault) {
        let Some(error) = self.error(now, vpn, packet, fault) else { return };
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
