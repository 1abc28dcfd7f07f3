//! Applications over UDP: each message is a datagram.

use super::super::error::Problem;
use super::super::kernel::{RECEIVE_BATCH, ReceiveBatch};
use super::super::udp::{LARGEST, bound, date_arrivals};
use super::{Phase, Talk};
use netstage_agent_api::results::{Counts, FlowResult};
use netstage_agent_api::task::{FlowTask, Side};
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::{Action, Carriage, HEADER, Message};
use netstage_host::clock::{ArrivalClock, Epoch};
use socket2::{SockAddr, Socket};
use std::io;
use std::os::fd::AsFd;

/// One end of an application over UDP.
pub struct DatagramDialogue {
    talk: Talk,
    socket: Socket,
    /// Whether the other end's address is known. A server whose client's port is left to
    /// the system learns it from the first datagram.
    connected: bool,
    batch: ReceiveBatch,
    clock: ArrivalClock,
    payload: Vec<u8>,
    drops: u32,
    foreign: u64,
    refused: u64,
    refusal: Option<io::Error>,
}

impl DatagramDialogue {
    /// Opens and binds the socket.
    pub fn prepare(
        task: &FlowTask,
        seed: u64,
        interval: Duration,
        duration: Duration,
    ) -> Result<DatagramDialogue, Problem> {
        let talk = Talk::new(task, Carriage::Datagram, seed, interval, duration)?;
        let (own, other) = match task.side {
            Side::Send => (task.source, task.destination),
            Side::Receive => (task.destination, task.source),
        };
        let socket = bound(own, false)?;
        date_arrivals(&socket).map_err(Problem::system("asking for arrival times"))?;
        let connected = other.port() != 0;
        if connected {
            socket
                .connect(&SockAddr::from(other))
                .map_err(Problem::system("finding a route to the other end"))?;
        }
        Ok(DatagramDialogue {
            talk,
            socket,
            connected,
            batch: ReceiveBatch::new(HEADER as usize),
            clock: ArrivalClock::new(),
            payload: vec![0; LARGEST as usize],
            drops: 0,
            foreign: 0,
            refused: 0,
            refusal: None,
        })
    }

    /// Its socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// When to call again.
    pub fn due(&self) -> Instant {
        self.talk.due()
    }

    /// The endpoint's time has come.
    pub fn handle_due(&mut self, epoch: Epoch) {
        self.talk.handle_due(epoch.now());
        self.act(epoch);
    }

    /// Takes what has come.
    pub fn handle_ready(&mut self, epoch: Epoch) {
        if !self.connected {
            let peer = self.socket.peek_sender().and_then(|peer| self.socket.connect(&peer));
            self.connected = peer.is_ok();
        }
        // Errors are of datagrams sent to an end that is not there yet, or no more.
        let Ok(mut count) = self.batch.receive(self.socket.as_fd()) else { return };
        while count > 0 {
            self.clock.begin_batch();
            for datagram in self.batch.datagrams() {
                let at = epoch.instant(self.clock.at_ns(datagram.realtime_ns));
                self.drops = datagram.drops.unwrap_or(self.drops);
                let message = datagram.bytes.first_chunk().and_then(|header| Message::decode(header).ok());
                let Some(message) = message.filter(|message| message.bytes as usize == datagram.length)
                else {
                    self.foreign += 1;
                    continue;
                };
                if self.talk.phase == Phase::Stopped {
                    continue;
                }
                let counts = self.talk.ledger.at(at);
                counts.received += 1;
                counts.received_bytes += u64::from(message.bytes);
                self.talk.delay.record(at.since(message.sent).0);
                self.talk.endpoint.handle_message(at, 0, &message);
            }
            if count < RECEIVE_BATCH {
                break;
            }
            count = self.batch.receive(self.socket.as_fd()).unwrap_or(0);
        }
        self.talk.note();
        self.act(epoch);
    }

    /// Whether the talk is over.
    pub fn done(&self, _now: Instant) -> bool {
        self.talk.phase == Phase::Stopped
    }

    /// Counts of a bin so far.
    pub fn counts(&mut self, bin: usize) -> Counts {
        self.talk.counts(bin)
    }

    /// What was found.
    pub fn finish(mut self, now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        if self.foreign > 0 {
            warnings.push(format!(
                "flow {}: {} datagrams were no messages of its application",
                self.talk.name, self.foreign
            ));
        }
        let clock = self.clock.warning();
        warnings.extend(clock.map(|warning| format!("flow {}: {warning}", self.talk.name)));
        self.talk.error =
            self.refusal.map(|error| format!("{} datagrams were not sent: {error}", self.refused));
        FlowResult { socket_drops: self.drops.into(), ..self.talk.finish(now) }
    }

    fn act(&mut self, epoch: Epoch) {
        while let Some(action) = self.talk.endpoint.poll_action() {
            match action {
                // There is one connection, and nothing to open.
                Action::Open(connection) => self.talk.endpoint.handle_connected(epoch.now(), connection),
                Action::Close(_) => {}
                Action::Send(_, message) => self.send(epoch, message),
            }
        }
        self.talk.note();
    }

    fn send(&mut self, epoch: Epoch, mut message: Message) {
        let at = epoch.now();
        message.sent = at;
        let bytes = u64::from(message.bytes);
        self.talk.ledger.at(at).offered_bytes += bytes;
        if !self.connected {
            self.refuse(io::ErrorKind::NotConnected.into());
            return;
        }
        let datagram = &mut self.payload[..message.bytes as usize];
        datagram[..HEADER as usize].copy_from_slice(&message.encode());
        let mut sent = self.socket.send(datagram);
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            // That was about an earlier datagram.
            sent = self.socket.send(datagram);
        }
        match sent {
            Ok(_) => {
                let counts = self.talk.ledger.at(at);
                counts.sent += 1;
                counts.sent_bytes += bytes;
            }
            Err(error) => self.refuse(error),
        }
    }

    fn refuse(&mut self, error: io::Error) {
        self.refused += 1;
        self.refusal.get_or_insert(error);
    }
}
