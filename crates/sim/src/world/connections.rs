//! TCP at the hosts: senders, receivers, and the devices they send through.

use super::Simulation;
use super::timers::Timer;
use crate::channel::ChannelKind;
use crate::host::FlowGroupState;
use crate::packet::{PacketBody, SimulatedPacket};
use netstage_core::packet::Ecn;
use netstage_core::tcp;
use netstage_core::time::{Duration, Instant};
use netstage_wire as wire;

/// Maximum time after which a refused segment is sent again if nothing is in flight (TCP_RESOURCE_PROBE_INTERVAL of Linux).
const RESOURCE_PROBE: Duration = Duration::from_millis(500);

impl Simulation<'_> {
    pub(super) fn handle_data(&mut self, now: Instant, packet: &SimulatedPacket) {
        self.deliver(now);
        self.totals.delivered_data += 1;
        let PacketBody::Data(data) = packet.body else { unreachable!("only data ends at a TCP receiver") };
        let slot = &mut self.hosts.receivers[packet.flow as usize];
        let config = config_of(&self.hosts.groups, slot.group);
        let before = slot.tcp.delivered();
        slot.tcp.handle_data(config, now, &data, packet.ecn == Ecn::CongestionExperienced);
        let delivered = slot.tcp.delivered() - before;
        if packet.flow as usize >= self.hosts.pattern_senders {
            return self.handle_stream(now, packet.flow, delivered);
        }
        self.tcp_bytes[self.bin * self.hosts.pattern_senders + packet.flow as usize] += delivered;
        if delivered > 0 {
            self.last_bytes[packet.flow as usize] = now;
        }
        self.pump_receiver(now, packet.flow);
    }

    pub(super) fn pump_receiver(&mut self, now: Instant, flow: u32) {
        loop {
            let slot = &mut self.hosts.receivers[flow as usize];
            let group = &self.hosts.groups[slot.group as usize];
            let config = config_of(&self.hosts.groups, slot.group);
            let Some(ack) = slot.tcp.poll_transmit(config, now) else { break };
            let blocks = ack.sack.iter().filter(|block| block.1 > 0).count() as u32;
            let option = if blocks > 0 { wire::TCP_SACK_BASE + blocks * wire::TCP_SACK_BLOCK } else { 0 };
            let packet = SimulatedPacket {
                step: group.reverse,
                flow,
                size: group.header + option,
                class: group.class,
                ecn: Ecn::NotCapable,
                background: group.background,
                body: PacketBody::Ack(ack),
            };
            let exact = group.exact;
            self.send_from_host(now, packet, exact);
        }
        let slot = &mut self.hosts.receivers[flow as usize];
        let wanted = slot.tcp.poll_timeout();
        if wanted < slot.wake {
            slot.wake = wanted;
            let index = self.timer_index(Timer::Receiver(flow));
            self.timers.set(index, wanted);
        }
    }

    pub(super) fn handle_ack(&mut self, now: Instant, packet: &SimulatedPacket) {
        self.deliver(now);
        let PacketBody::Ack(ack) = packet.body else { unreachable!("only ACKs end at a TCP sender") };
        let slot = &mut self.hosts.senders[packet.flow as usize];
        let config = config_of(&self.hosts.groups, slot.group);
        self.watch.acknowledged(now, packet.flow, &slot.tcp, config);
        slot.tcp.handle_ack(config, now, &ack);
        self.watch.changed(now, packet.flow, &mut slot.tcp, config);
        if slot.answers_late() {
            let at = now + slot.phase;
            self.wake_sender(packet.flow, at);
        } else {
            self.pump_sender(now, packet.flow);
        }
        if packet.flow as usize >= self.hosts.pattern_senders {
            self.handle_stream_ack(now, packet.flow);
        }
    }

    pub(super) fn pump_sender(&mut self, now: Instant, flow: u32) {
        loop {
            let slot = &mut self.hosts.senders[flow as usize];
            let group = &self.hosts.groups[slot.group as usize];
            if now >= group.stop {
                return;
            }
            let (device, exact) = (group.device, group.exact);
            if self.is_device_full(now, device) {
                self.refuse(now, flow);
                return;
            }
            let group = &self.hosts.groups[self.hosts.senders[flow as usize].group as usize];
            let slot = &mut self.hosts.senders[flow as usize];
            let config = config_of(&self.hosts.groups, slot.group);
            let Some(data) = slot.tcp.poll_transmit(config, now) else { break };
            let packet = SimulatedPacket {
                step: group.forward,
                flow,
                size: group.header + data.len,
                class: group.class,
                ecn: if data.ecn_capable(config) { Ecn::Capable } else { Ecn::NotCapable },
                background: group.background,
                body: PacketBody::Data(data),
            };
            self.send_from_host(now, packet, exact);
            if self.is_device_full(now, device) {
                let slot = &mut self.hosts.senders[flow as usize];
                let config = config_of(&self.hosts.groups, slot.group);
                slot.tcp.handle_refusal(config);
                self.watch.changed(now, flow, &mut slot.tcp, config);
            }
        }
        let slot = &mut self.hosts.senders[flow as usize];
        self.watch.changed(now, flow, &mut slot.tcp, config_of(&self.hosts.groups, slot.group));
        let wanted = slot.tcp.poll_timeout();
        self.wake_sender(flow, wanted);
    }

    /// Refuses the segments of a sender whose host's device is full. As in Linux, the next ACK or timer sends them, not the
    /// room that the device then has: other flows of the host may take it.
    fn refuse(&mut self, now: Instant, flow: u32) {
        let slot = &mut self.hosts.senders[flow as usize];
        let config = config_of(&self.hosts.groups, slot.group);
        let in_flight = slot.tcp.bytes_in_flight();
        let mut wanted = slot.tcp.poll_timeout();
        if slot.tcp.backlog() > in_flight && slot.tcp.congestion_window() > in_flight {
            slot.tcp.handle_refusal(config);
            if in_flight == 0 {
                wanted = wanted.min(now + slot.tcp.retransmission_timeout().min(RESOURCE_PROBE));
            }
        }
        self.watch.changed(now, flow, &mut slot.tcp, config);
        self.wake_sender(flow, wanted);
    }

    /// Sets a sender's timer to `at`, unless it is due earlier.
    #[inline]
    fn wake_sender(&mut self, flow: u32, at: Instant) {
        let slot = &mut self.hosts.senders[flow as usize];
        if at < slot.wake {
            slot.wake = at;
            let index = self.timer_index(Timer::Sender(flow));
            self.timers.set(index, at);
        }
    }

    /// Returns whether the device of a sender's host exists and is full.
    #[inline]
    fn is_device_full(&mut self, now: Instant, device: Option<u32>) -> bool {
        let Some(device) = device else { return false };
        match &mut self.channels[device as usize].kind {
            ChannelKind::Plain(plain) => plain.is_full(now),
            ChannelKind::Full(_) => false,
        }
    }
}

pub(super) fn config_of(groups: &[FlowGroupState], group: u32) -> &tcp::TcpConfig {
    groups[group as usize].tcp.as_ref().expect("a TCP flow's group has a TCP configuration")
}
