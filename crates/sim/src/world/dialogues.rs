//! Dialogues: passes their messages to TCP flows and datagrams, and back.

use super::Simulation;
use super::connections::config_of;
use super::timers::Timer;
use crate::dialogue::{CLIENT, packet_size};
use crate::packet::{PacketBody, SimulatedPacket};
use netstage_core::packet::Ecn;
use netstage_core::time::Instant;
use netstage_core::traffic::application::{ApplicationMessage, EndpointAction, MessageContent};

/// Dialogue, connection and direction of a TCP flow.
struct StreamPosition {
    dialogue: u32,
    connection: u32,
    /// Index of the sending endpoint.
    from: usize,
}

impl Simulation<'_> {
    fn position(&self, flow: u32) -> StreamPosition {
        let dialogues = &self.hosts.dialogues;
        // Dialogues over datagrams have no flows and share their number with the next dialogue.
        let dialogue = dialogues.partition_point(|dialogue| dialogue.first_flow <= flow) - 1;
        let offset = flow - dialogues[dialogue].first_flow;
        StreamPosition { dialogue: dialogue as u32, connection: offset / 2, from: offset as usize % 2 }
    }

    /// Handles newly delivered bytes of a dialogue's TCP flow.
    #[cold]
    pub(super) fn handle_stream(&mut self, now: Instant, flow: u32, bytes: u64) {
        self.pump_receiver(now, flow);
        let position = self.position(flow);
        let offset = self.hosts.receivers[flow as usize].tcp.delivered();
        let dialogue = &mut self.hosts.dialogues[position.dialogue as usize];
        dialogue.delivered.add(now, bytes);
        dialogue.deliver(now, position.connection, position.from, offset);
        self.pump_dialogue(now, position.dialogue);
    }

    /// Handles an ACK of a dialogue's TCP flow. The first one notifies the client that the connection is
    /// established.
    #[cold]
    pub(super) fn handle_stream_ack(&mut self, now: Instant, flow: u32) {
        let position = self.position(flow);
        let established = self.hosts.senders[flow as usize].tcp.is_established();
        let dialogue = &mut self.hosts.dialogues[position.dialogue as usize];
        let connection = &mut dialogue.connections[position.connection as usize];
        if position.from == CLIENT && established && connection.opened && !connection.established {
            connection.established = true;
            dialogue.ends[CLIENT].handle_connected(now, position.connection);
            self.pump_dialogue(now, position.dialogue);
        }
    }

    /// Handles a message in a datagram that has reached `end`.
    #[cold]
    pub(super) fn handle_peer(&mut self, now: Instant, end: usize, packet: &SimulatedPacket) {
        self.deliver(now);
        self.totals.delivered_data += 1;
        let PacketBody::Message(message) = packet.body else { unreachable!("only messages end at a peer") };
        let index = packet.flow / 2;
        let dialogue = &mut self.hosts.dialogues[index as usize];
        dialogue.delivered.add(now, u64::from(message.bytes));
        dialogue.ends[end].handle_message(now, 0, &message);
        self.pump_dialogue(now, index);
    }

    /// Performs the actions requested by both endpoints and sets their timer.
    pub(super) fn pump_dialogue(&mut self, now: Instant, index: u32) {
        for end in 0..2 {
            while let Some(action) = self.hosts.dialogues[index as usize].ends[end].poll_action() {
                match action {
                    EndpointAction::Open(connection) => self.open(now, index, connection),
                    EndpointAction::Close(connection) => {
                        let dialogue = &mut self.hosts.dialogues[index as usize];
                        if !dialogue.connections.is_empty() {
                            dialogue.close(connection);
                        }
                    }
                    EndpointAction::Send(connection, message) => {
                        self.send(now, index, connection, end, message)
                    }
                }
            }
        }
        let dialogue = &mut self.hosts.dialogues[index as usize];
        dialogue.collect_observations();
        let wanted = dialogue.poll_timeout();
        self.set_timer(Timer::Dialogue(index), wanted);
    }

    fn open(&mut self, now: Instant, index: u32, connection: u32) {
        let dialogue = &mut self.hosts.dialogues[index as usize];
        if dialogue.connections.is_empty() {
            return dialogue.ends[CLIENT].handle_connected(now, connection);
        }
        let (first, written) = (dialogue.first_flow + 2 * connection, dialogue.written(connection));
        let state = &mut dialogue.connections[connection as usize];
        state.opened = true;
        for (flow, at) in (first..first + 2).zip(written) {
            let slot = &mut self.hosts.senders[flow as usize];
            let config = config_of(&self.hosts.groups, slot.group);
            slot.tcp.renew(config);
            slot.tcp.open();
            slot.wake = Instant::NEVER;
            let receiver = &mut self.hosts.receivers[flow as usize];
            receiver.tcp.renew(config, at);
            receiver.wake = Instant::NEVER;
        }
        if self.hosts.senders[first as usize].tcp.is_established() {
            let dialogue = &mut self.hosts.dialogues[index as usize];
            dialogue.connections[connection as usize].established = true;
            dialogue.ends[CLIENT].handle_connected(now, connection);
        } else {
            self.pump_sender(now, first);
        }
    }

    fn send(
        &mut self,
        now: Instant,
        index: u32,
        connection: u32,
        end: usize,
        mut message: ApplicationMessage,
    ) {
        let dialogue = &mut self.hosts.dialogues[index as usize];
        if !dialogue.connections.is_empty() {
            if dialogue.connections[connection as usize].opened {
                let flow = dialogue.first_flow + 2 * connection + end as u32;
                let sender = &mut self.hosts.senders[flow as usize].tcp;
                if let MessageContent::Window(window) = &mut message.content {
                    *window = sender.congestion_window().try_into().unwrap_or(u32::MAX);
                }
                sender.write(u64::from(message.bytes));
                dialogue.write(connection, end, message);
                self.pump_sender(now, flow);
            }
            return;
        }
        let group = &self.hosts.groups[dialogue.groups[end] as usize];
        let packet = SimulatedPacket {
            step: group.forward,
            flow: 2 * index + end as u32,
            size: packet_size(group.header, &message),
            class: group.class,
            ecn: Ecn::NotCapable,
            background: group.background,
            body: PacketBody::Message(message),
        };
        self.totals.sent += 1;
        self.proceed(now, packet);
    }
}
