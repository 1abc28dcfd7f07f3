//! PE routers at both ends of VPNs: [`netstage_core::edge`] at the ingress, counters at the egress, and
//! queries between them.

use super::Simulation;
use crate::packet::{PacketBody, SimulatedPacket};
use netstage_core::edge::EdgeEvent;
use netstage_core::fair::news::{self, NewsReceiver};
use netstage_core::fair::{IngressTransmit, VpnControl};
use netstage_core::packet::Ecn;
use netstage_core::time::Instant;
use netstage_wire::news::NewsMessage;

impl Simulation<'_> {
    #[inline]
    pub(super) fn pass_egress(&mut self, now: Instant, vpn: u32, packet: &mut SimulatedPacket) {
        let vpn = &mut self.vpns[vpn as usize];
        if let PacketBody::Query(query) = packet.body {
            packet.body = PacketBody::Reply(vpn.egress.handle_query(query, now));
        } else {
            packet.size -= vpn.encapsulation.overhead();
            vpn.egress.handle_packet(packet.size, packet.ecn == Ecn::CongestionExperienced);
            vpn.bytes.add(now, u64::from(packet.size));
        }
    }

    /// Handles a customer's packet of a traffic class at its ingress PE.
    pub(super) fn handle_ingress(
        &mut self,
        now: Instant,
        number: u32,
        class: u16,
        mut packet: SimulatedPacket,
    ) {
        packet.step += 1;
        // Inside the PE, the class is a traffic class of the VPN; on links, the class is the VPN.
        packet.class = class;
        let vpn = &mut self.vpns[number as usize];
        let (pe, flow) = (vpn.pe, vpn.flow as usize);
        let flows = &mut self.pes[pe as usize].flows;
        if flows.is_stopped(flow) {
            flows.wake(now, flow);
            vpn.queue_drops.add(now, 1);
            self.lose(now, &packet);
        } else {
            let handled = flows.handle_packet(now, flow, packet);
            vpn.account(now, flows.queue_len(flow));
            if let Err(rejected) = handled {
                vpn.queue_drops.add(now, 1);
                self.lose(now, &rejected);
            }
        }
        self.pump_pe(now, pe);
    }

    pub(super) fn handle_report(&mut self, now: Instant, vpn: u32, packet: &SimulatedPacket) {
        self.deliver(now);
        let PacketBody::Reply(reply) = packet.body else { unreachable!("only replies end at an ingress PE") };
        let vpn = &self.vpns[vpn as usize];
        let pe = vpn.pe;
        self.pes[pe as usize].flows.handle_reply(now, vpn.flow as usize, &reply);
        self.pump_pe(now, pe);
    }

    /// Performs all due actions of a PE and sets its timer.
    pub(super) fn pump_pe(&mut self, now: Instant, pe: u32) {
        let index = pe as usize;
        self.pes[index].flows.handle_timeout(now);
        while let Some((flow, transmit)) = self.pes[index].flows.poll_transmit(now) {
            let number = self.pes[index].vpns[flow];
            let vpn = &mut self.vpns[number as usize];
            let packet = match transmit {
                IngressTransmit::Data(packet) => {
                    vpn.account(now, self.pes[index].flows.queue_len(flow));
                    let size = packet.size + vpn.encapsulation.overhead();
                    SimulatedPacket { size, class: number as u16, ..packet }
                }
                IngressTransmit::Query(query) => {
                    self.totals.sent += 1;
                    SimulatedPacket {
                        step: self.routes.query[number as usize],
                        flow: number,
                        size: vpn.encapsulation.management_packet(),
                        class: number as u16,
                        ecn: Ecn::NotCapable,
                        background: false,
                        body: PacketBody::Query(query),
                    }
                }
            };
            self.proceed(now, packet);
        }
        while let Some((flow, dropped)) = self.pes[index].flows.poll_dropped() {
            let vpn = &mut self.vpns[self.pes[index].vpns[flow] as usize];
            vpn.account(now, self.pes[index].flows.queue_len(flow));
            vpn.queue_drops.add(now, 1);
            self.lose(now, &dropped);
        }
        let pe = &mut self.pes[index];
        let wanted = pe.flows.poll_timeout();
        if wanted != pe.wake {
            pe.wake = wanted;
            self.pe_timers.set(index as u32, wanted);
        }
    }

    /// Publishes the measurements of reference flows to the PEs that use them, without delay or loss in the
    /// simulator.
    pub(super) fn publish(&mut self, now: Instant) {
        for index in 0..self.vpns.len() {
            let Some(reference) = self.vpns[index].reference else { continue };
            let measured = &self.vpns[reference];
            let measuring = &self.pes[measured.pe as usize].flows;
            if measuring.silent_since(measured.flow as usize).is_some() {
                continue;
            }
            let Some(published) = measuring.publish(now, measured.flow as usize) else { continue };
            let following = &mut self.pes[self.vpns[index].pe as usize].flows;
            // Deliver the state once per PE, not once per flow.
            if following.reference(reference).is_none_or(|known| known.at < now) {
                following.handle_reference(reference, published);
            }
        }
    }

    /// Returns whether a VPN flow is under rate consensus.
    pub(super) fn has_consensus(&self) -> bool {
        self.plan.vpns.iter().any(|vpn| matches!(vpn.settings.control, VpnControl::RateConsensus(_)))
    }

    /// Publishes the news of all PEs with VPN flows under rate consensus to the others, in the messages of routers but
    /// without delay or loss.
    pub(super) fn publish_news(&mut self, now: Instant) {
        let mut bytes = [0; news::GREATEST_LENGTH];
        let mut published = Vec::new();
        for (number, pe) in self.pes.iter_mut().enumerate() {
            let own = pe.flows.publish_news(now);
            for (sent, part) in (now.0..).zip(news::messages(&own)) {
                let length = news::write((number as u32, sent), &part, None, &mut bytes)
                    .expect("the buffer is large enough");
                let (message, _) = NewsMessage::read(&bytes[..length]).expect("the message was just written");
                let heard = NewsReceiver::new(u32::MAX).accept(now, &message, &bytes[..length], None);
                published.push((number, heard.expect("a PE publishes valid news")));
            }
        }
        for (own, pe) in self.pes.iter_mut().enumerate() {
            let others = published.iter().filter(|(number, _)| *number != own);
            others.for_each(|(number, news)| pe.flows.handle_news(now, *number as u64, news));
            pe.flows.consider_news(now);
        }
    }

    /// Starts recording the inputs and decisions of PEs.
    pub(crate) fn record_decisions(&mut self) {
        self.pes.iter_mut().for_each(|pe| pe.flows.begin());
    }

    /// Returns the VPN of each flow and the recorded events, per ingress PE.
    pub(crate) fn decisions(&mut self) -> Vec<(Vec<usize>, Vec<EdgeEvent>)> {
        let recorded =
            |pe: &mut crate::pe::Pe| (pe.vpns.iter().map(|vpn| *vpn as usize).collect(), pe.flows.take());
        self.pes.iter_mut().map(recorded).collect()
    }
}
