//! Probes and their responses: ICMP echo and UDP to a closed port, answered by any host, and STAMP, answered
//! by the session-reflector.

use super::Simulation;
use crate::packet::{PacketBody, SimulatedPacket};
use netstage_core::time::Instant;

impl Simulation<'_> {
    /// Handles a probe at its target and returns the response, which is sent immediately.
    pub(super) fn answer(&mut self, now: Instant, packet: &SimulatedPacket) -> SimulatedPacket {
        self.deliver(now);
        self.totals.sent += 1;
        let PacketBody::Probe { sent, number } = packet.body else {
            unreachable!("only probes end at a target")
        };
        if let Some(Some(session)) = self.sessions.get_mut(packet.flow as usize) {
            session.handle_reflected(sent);
        }
        let group = &self.hosts.groups[self.hosts.udp[packet.flow as usize] as usize];
        let size = group.answer.map_or(packet.size, |answer| answer.size(packet.size));
        SimulatedPacket {
            step: group.reverse,
            size,
            body: PacketBody::Answer { sent, answered: now, number },
            ..*packet
        }
    }

    /// Handles a response at the prober.
    pub(super) fn handle_answer(&mut self, now: Instant, packet: &SimulatedPacket) {
        self.deliver(now);
        self.totals.delivered_data += u64::from(now <= self.end);
        let PacketBody::Answer { sent, answered, number } = packet.body else {
            unreachable!("only answers end at a prober")
        };
        let flow = packet.flow as usize;
        if let Some(Some(session)) = self.sessions.get_mut(flow) {
            session.handle_answer(now, sent, answered);
        }
        if !self.receivers[flow].accept(now, number) {
            return;
        }
        let payload = self.probed(flow, packet.size);
        self.udp_bytes[flow].add(now, payload);
        self.round_trips[flow].add(now, now.since(sent).0);
        self.answers[flow].add(now, 1);
        if let Some(delays) = self.delays.get_mut(flow)
            && now <= self.end
        {
            delays.arrived(now, sent);
        }
    }

    /// Returns the payload of the probe for a response of this size. An ICMP error may quote less than the
    /// whole probe. Probes of a pattern all have the same size, except those of a trace.
    fn probed(&self, flow: usize, answer: u32) -> u64 {
        let group = &self.hosts.groups[self.hosts.udp[flow] as usize];
        let plan = &self.plan.flows[self.hosts.udp[flow] as usize];
        let packet = plan.traffic.pattern().and_then(netstage_core::traffic::Pattern::packet);
        packet.map_or(u64::from(answer.saturating_sub(group.header)), u64::from)
    }
}
