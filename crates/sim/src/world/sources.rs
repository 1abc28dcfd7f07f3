//! Sources, which emit by pattern or when their line is empty, and datagrams that reach a sink.

use super::Simulation;
use super::timers::Timer;
use crate::host::SourceTarget;
use crate::packet::{PacketBody, SimulatedPacket};
use netstage_core::packet::Ecn;
use netstage_core::time::Instant;

impl Simulation<'_> {
    /// Handles a source's timer: emits, then sets the timer again unless the line triggers further emissions.
    pub(super) fn handle_source(&mut self, index: u32) {
        self.emit(index);
        let source = &self.hosts.sources[index as usize];
        let Some((at, _)) = source.next else { return };
        let pulled = source.line.is_some_and(|line| !self.line_is_empty(line));
        if !pulled {
            self.set_timer(Timer::Source(index), at);
        }
    }

    fn line_is_empty(&self, line: u32) -> bool {
        self.channels[self.channel_of[line as usize] as usize].line.is_empty()
    }

    /// Emits until the line holds a packet of this source or the source has no more packets before the end of
    /// the run.
    pub(super) fn pull(&mut self, line: u32, source: u32) {
        while self.line_is_empty(line) {
            match self.hosts.sources[source as usize].next {
                Some((at, _)) if at <= self.end => self.emit(source),
                _ => return,
            }
        }
    }

    /// Emits the remaining packets of sources driven by their line, which are in flight when the run ends.
    pub(super) fn drain_pulls(&mut self) {
        let sources: Vec<u32> = self.channels.iter().filter_map(|channel| channel.pull).collect();
        for source in sources {
            while self.hosts.sources[source as usize].next.is_some_and(|(at, _)| at <= self.end) {
                self.emit(source);
            }
        }
    }

    /// Passes a source's next emission to its transport, at the emission's own time.
    fn emit(&mut self, index: u32) {
        let source = &mut self.hosts.sources[index as usize];
        let Some((at, bytes)) = source.next else { return };
        source.advance();
        let (target, group) = (source.target, source.group as usize);
        match target {
            SourceTarget::Tcp(flow) => {
                let slot = &mut self.hosts.senders[flow as usize];
                slot.tcp.write(bytes);
                if slot.started {
                    self.pump_sender(at, flow);
                }
            }
            SourceTarget::Udp(flow) => {
                let group = &self.hosts.groups[group];
                let number = self.datagrams_sent[flow as usize];
                self.udp_offered[flow as usize].add(at, bytes);
                let packet = SimulatedPacket {
                    step: group.forward,
                    flow,
                    size: group.header + bytes as u32,
                    class: group.class,
                    ecn: Ecn::NotCapable,
                    background: group.background,
                    body: if group.answer.is_some() {
                        PacketBody::Probe { sent: at, number }
                    } else {
                        PacketBody::Datagram { sent: at, number, wrong_bits: 0 }
                    },
                };
                if at <= self.end {
                    self.datagrams_sent[flow as usize] = number.wrapping_add(1);
                    self.totals.sent += 1;
                    if let Some(Some(session)) = self.sessions.get_mut(flow as usize) {
                        session.handle_sent();
                    }
                    self.proceed(at, packet);
                }
            }
        }
    }

    pub(super) fn handle_datagram(&mut self, now: Instant, packet: &SimulatedPacket) {
        self.deliver(now);
        self.totals.delivered_data += u64::from(now <= self.end);
        let PacketBody::Datagram { sent, number, wrong_bits } = packet.body else {
            unreachable!("only datagrams end here")
        };
        if !self.receivers[packet.flow as usize].accept(now, number) {
            return;
        }
        let group = self.hosts.udp[packet.flow as usize];
        let payload = packet.size - self.hosts.groups[group as usize].header;
        self.udp_bytes[packet.flow as usize].add(now, u64::from(payload));
        if wrong_bits > 0 {
            self.damage.record(now, packet.flow, wrong_bits);
        }
        if let Some(delays) = self.delays.get_mut(packet.flow as usize)
            && now <= self.end
        {
            delays.arrived(now, sent);
        }
    }
}
