//! Applications over UDP: each message is a datagram.

use super::super::error::FlowProblem;
use super::super::kernel::{RECEIVE_BATCH, ReceiveBatch};
use super::super::udp::{MAX_UDP_PAYLOAD, bound, enable_arrival_timestamps};
use super::{DialogueEnd, DialogueEndPhase};
use netstage_agent_api::results::{BinCounts, FlowResult};
use netstage_agent_api::task::FlowTask;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::{ApplicationMessage, EndpointAction, HEADER, TransportKind};
use netstage_host::clock::{ArrivalClock, Epoch};
use netstage_wire::stun;
use socket2::{SockAddr, Socket};
use std::io;
use std::os::fd::AsFd;

/// One end of an application over UDP.
pub struct DatagramDialogue {
    dialogue: DialogueEnd,
    socket: Socket,
    /// Whether the address of the other end is known. A server learns the port of its client from the first
    /// datagram, if the system assigns it.
    is_connected: bool,
    batch: ReceiveBatch,
    clock: ArrivalClock,
    payload: Vec<u8>,
    drops: u32,
    foreign: u64,
    failed_sends: u64,
    send_error: Option<io::Error>,
}

impl DatagramDialogue {
    /// Opens and binds the socket.
    pub fn prepare(
        task: &FlowTask,
        seed: u64,
        interval: Duration,
        duration: Duration,
    ) -> Result<DatagramDialogue, FlowProblem> {
        let dialogue = DialogueEnd::new(task, TransportKind::Datagram, seed, interval, duration)?;
        let (own, other) = task.local_and_remote();
        let socket = bound(own, false)?;
        enable_arrival_timestamps(&socket).map_err(FlowProblem::system("enabling arrival timestamps"))?;
        let is_connected = other.port() != 0;
        if is_connected {
            socket
                .connect(&SockAddr::from(other))
                .map_err(FlowProblem::system("finding a route to the other end"))?;
        }
        Ok(DatagramDialogue {
            dialogue,
            socket,
            is_connected,
            batch: ReceiveBatch::new(HEADER as usize),
            clock: ArrivalClock::new(),
            payload: vec![0; MAX_UDP_PAYLOAD as usize],
            drops: 0,
            foreign: 0,
            failed_sends: 0,
            send_error: None,
        })
    }

    /// Returns the socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns the time of the next call of [`DatagramDialogue::handle_due`].
    pub fn due(&self) -> Instant {
        self.dialogue.due()
    }

    /// Handles the timers of the endpoint.
    pub fn handle_due(&mut self, epoch: Epoch) {
        self.dialogue.handle_due(epoch.now());
        self.act(epoch);
    }

    /// Receives datagrams.
    pub fn handle_ready(&mut self, epoch: Epoch) {
        if !self.is_connected {
            let peer = self.socket.peek_sender().and_then(|peer| self.socket.connect(&peer));
            self.is_connected = peer.is_ok();
        }
        // Errors concern datagrams sent before the other end opened its port, or after it closed it.
        let Ok(mut count) = self.batch.receive(self.socket.as_fd()) else { return };
        while count > 0 {
            self.clock.begin_batch();
            for datagram in self.batch.datagrams() {
                let at = epoch.instant(self.clock.at_ns(datagram.realtime_ns));
                self.drops = datagram.drops.unwrap_or(self.drops);
                let message =
                    datagram.bytes.first_chunk().and_then(|header| ApplicationMessage::decode(header).ok());
                let Some(message) = message.filter(|message| message.bytes as usize == datagram.length)
                else {
                    self.foreign += u64::from(!stun::is_message(datagram.bytes));
                    continue;
                };
                if self.dialogue.phase == DialogueEndPhase::Stopped {
                    continue;
                }
                self.dialogue.ledger.receive(at, 1, message.bytes.into());
                self.dialogue.delay.record(at.since(message.sent).0);
                self.dialogue.endpoint.handle_message(at, 0, &message);
            }
            if count < RECEIVE_BATCH {
                break;
            }
            count = self.batch.receive(self.socket.as_fd()).unwrap_or(0);
        }
        self.dialogue.collect_observations();
        self.act(epoch);
    }

    /// Returns whether the dialogue is over.
    pub fn done(&self, _now: Instant) -> bool {
        self.dialogue.phase == DialogueEndPhase::Stopped
    }

    /// Returns the counts of a bin.
    pub fn counts(&mut self, bin: usize) -> BinCounts {
        self.dialogue.counts(bin)
    }

    /// Ends the dialogue and returns the result.
    pub fn finish(mut self, now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        if self.foreign > 0 {
            warnings.push(format!(
                "flow {}: {} datagrams were not messages of its application",
                self.dialogue.name, self.foreign
            ));
        }
        let clock = self.clock.warning();
        warnings.extend(clock.map(|warning| format!("flow {}: {warning}", self.dialogue.name)));
        self.dialogue.error =
            self.send_error.map(|error| format!("{} datagrams were not sent: {error}", self.failed_sends));
        FlowResult { socket_drops: self.drops.into(), ..self.dialogue.finish(now) }
    }

    fn act(&mut self, epoch: Epoch) {
        while let Some(action) = self.dialogue.endpoint.poll_action() {
            match action {
                // Datagrams need no connection.
                EndpointAction::Open(connection) => {
                    self.dialogue.endpoint.handle_connected(epoch.now(), connection)
                }
                EndpointAction::Close(_) => {}
                EndpointAction::Send(_, message) => self.send(epoch, message),
            }
        }
        self.dialogue.collect_observations();
    }

    fn send(&mut self, epoch: Epoch, mut message: ApplicationMessage) {
        let at = epoch.now();
        message.sent = at;
        let bytes = u64::from(message.bytes);
        self.dialogue.ledger.at(at).offered_bytes += bytes;
        if !self.is_connected {
            self.count_failure(io::ErrorKind::NotConnected.into());
            return;
        }
        let datagram = &mut self.payload[..message.bytes as usize];
        datagram[..HEADER as usize].copy_from_slice(&message.encode());
        let mut sent = self.socket.send(datagram);
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            // The error concerns an earlier datagram.
            sent = self.socket.send(datagram);
        }
        match sent {
            Ok(_) => {
                let counts = self.dialogue.ledger.at(at);
                counts.sent += 1;
                counts.sent_bytes += bytes;
            }
            Err(error) => self.count_failure(error),
        }
    }

    fn count_failure(&mut self, error: io::Error) {
        self.failed_sends += 1;
        self.send_error.get_or_insert(error);
    }
}
