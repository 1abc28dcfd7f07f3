//! PE routers at both ends of VPNs: windows at the ingress, counts at the egress, queries between them.

use super::World;
use super::timers::Timer;
use crate::packet::{Body, Packet};
use netstage_core::fair::Transmit;
use netstage_core::packet::Ecn;
use netstage_core::time::Instant;

impl World<'_> {
    #[inline]
    pub(super) fn pass_egress(&mut self, now: Instant, vpn: u32, packet: &mut Packet) {
        let edge = &mut self.edges[vpn as usize];
        if let Body::Query(query) = packet.body {
            packet.body = Body::Reply(edge.egress.handle_query(query));
        } else {
            packet.size -= edge.encapsulation.overhead();
            edge.egress.handle_packet(packet.size, packet.ecn == Ecn::CongestionExperienced);
            edge.bytes.add(now, u64::from(packet.size));
        }
    }

    pub(super) fn handle_ingress(&mut self, now: Instant, vpn: u32, mut packet: Packet) {
        packet.step += 1;
        packet.class = vpn as u16;
        if let Err(refused) = self.edges[vpn as usize].handle_packet(now, packet) {
            self.lose(now, &refused);
        }
        self.pump_edge(now, vpn);
    }

    pub(super) fn handle_report(&mut self, now: Instant, vpn: u32, packet: &Packet) {
        self.deliver(now);
        let Body::Reply(reply) = packet.body else { unreachable!("only replies end at an ingress PE") };
        self.edges[vpn as usize].handle_reply(now, &reply);
        self.pump_edge(now, vpn);
    }

    pub(super) fn pump_edge(&mut self, now: Instant, vpn: u32) {
        while let Some(transmit) = self.edges[vpn as usize].poll_transmit(now) {
            let encapsulation = self.edges[vpn as usize].encapsulation;
            let packet = match transmit {
                Transmit::Data(packet) => Packet { size: packet.size + encapsulation.overhead(), ..packet },
                Transmit::Query(query) => {
                    self.totals.sent += 1;
                    Packet {
                        step: self.routes.query[vpn as usize],
                        flow: vpn,
                        size: encapsulation.management_packet(),
                        class: vpn as u16,
                        ecn: Ecn::NotCapable,
                        background: false,
                        body: Body::Query(query),
                    }
                }
            };
            self.proceed(now, packet);
        }
        let edge = &mut self.edges[vpn as usize];
        let wanted = edge.poll_timeout();
        if wanted < edge.wake {
            edge.wake = wanted;
            self.set_timer(Timer::Edge(vpn), wanted);
        }
    }

    /// Reference flows' PEs tell the others what they measure: without delay or loss here.
    pub(super) fn publish(&mut self, now: Instant) {
        for index in 0..self.edges.len() {
            let Some(reference) = self.edges[index].reference else { continue };
            let published = self.edges[reference].window().and_then(|ingress| ingress.publish(now));
            if published.is_some() {
                self.edges[index].published = published;
            }
        }
    }
}
