//! Applications in virtual time: two endpoints and the connections between them.
//!
//! A connection consists of two TCP flows, one per direction. Only the client's flow has a handshake, and
//! ACKs travel as separate packets. A message is identified by the stream offset of its last byte.

use crate::bins::{BinnedSum, Grid};
use netstage_core::rng::RandomStream;
use netstage_core::tcp;
use netstage_core::time::Instant;
use netstage_core::traffic::application::{
    Application, ApplicationMessage, Endpoint, EndpointRole, HEADER, QualityBins, TransportKind,
};
use netstage_scenario::plan::FlowGroup;
use std::collections::VecDeque;

/// Index of the client in pairs of client and server; the server follows.
pub const CLIENT: usize = 0;

/// One member of a flow group that is a dialogue.
#[derive(Debug)]
pub struct Dialogue {
    /// Endpoints: client and server.
    pub ends: [Endpoint; 2],
    /// Quality observed by each endpoint.
    pub quality: [QualityBins; 2],
    /// Payload delivered in both directions.
    pub delivered: BinnedSum,
    /// Flow group of the data sent by each endpoint.
    pub groups: [u32; 2],
    /// Number of the first TCP flow; connection c has flows `first + 2 c` and the next one.
    pub first_flow: u32,
    /// Connections; none over UDP.
    pub connections: Vec<DialogueConnection>,
    /// Start time.
    pub start: Instant,
    /// Stop time.
    pub stop: Instant,
    /// Current phase.
    pub phase: DialoguePhase,
}

/// Phase of a dialogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialoguePhase {
    /// Not started.
    Waiting,
    /// In progress.
    Running,
    /// Ended.
    Stopped,
}

/// A connection of a dialogue.
#[derive(Clone, Debug, Default)]
pub struct DialogueConnection {
    /// True if the client has requested the connection.
    pub opened: bool,
    /// True if the client knows that the connection is established.
    pub established: bool,
    /// Undelivered messages from each endpoint, with the stream offsets of their ends.
    in_flight: [VecDeque<(u64, ApplicationMessage)>; 2],
    written: [u64; 2],
}

impl Dialogue {
    /// Creates a dialogue before its start.
    pub fn new(
        group: &FlowGroup,
        application: &Application,
        groups: [u32; 2],
        first_flow: u32,
        start: Instant,
        stream: &RandomStream,
        grid: Grid,
    ) -> Dialogue {
        let carriage = group.transport.carriage().expect("dialogues of a checked plan have a carriage");
        let end = |role| Endpoint::new(application, role, carriage, stream);
        let quality = || QualityBins::new(grid.interval, grid.bins);
        let connections = match carriage {
            TransportKind::Stream => application.connections() as usize,
            TransportKind::Datagram => 0,
        };
        Dialogue {
            ends: [end(EndpointRole::Client), end(EndpointRole::Server)],
            quality: [quality(), quality()],
            delivered: BinnedSum::new(grid),
            groups,
            first_flow,
            connections: vec![DialogueConnection::default(); connections],
            start,
            stop: group.stop,
            phase: DialoguePhase::Waiting,
        }
    }

    /// Returns the time of the next timeout.
    pub fn poll_timeout(&self) -> Instant {
        match self.phase {
            DialoguePhase::Waiting => self.start,
            DialoguePhase::Running => {
                let [client, server] = &self.ends;
                client.poll_timeout().min(server.poll_timeout()).min(self.stop)
            }
            DialoguePhase::Stopped => Instant::NEVER,
        }
    }

    /// Handles the timeout returned by [`poll_timeout`](Dialogue::poll_timeout).
    pub fn handle_timeout(&mut self, now: Instant) {
        if now >= self.stop {
            return self.finish(now);
        }
        match self.phase {
            DialoguePhase::Waiting => {
                self.phase = DialoguePhase::Running;
                self.ends.iter_mut().for_each(|end| end.start(now));
            }
            DialoguePhase::Running => self.ends.iter_mut().for_each(|end| end.handle_timeout(now)),
            DialoguePhase::Stopped => {}
        }
    }

    /// Stops the dialogue at the end of the run or of the flow.
    pub fn finish(&mut self, now: Instant) {
        if self.phase == DialoguePhase::Running {
            self.ends.iter_mut().for_each(|end| end.stop(now));
            self.collect_observations();
        }
        self.phase = DialoguePhase::Stopped;
    }

    /// Collects the observations of both endpoints.
    pub fn collect_observations(&mut self) {
        for (end, quality) in self.ends.iter_mut().zip(&mut self.quality) {
            while let Some(observation) = end.poll_observation() {
                quality.add(observation);
            }
        }
    }

    /// Writes a message from `end` on a connection.
    pub fn write(&mut self, connection: u32, end: usize, message: ApplicationMessage) {
        let connection = &mut self.connections[connection as usize];
        connection.written[end] += u64::from(message.bytes);
        connection.in_flight[end].push_back((connection.written[end], message));
    }

    /// Delivers the messages from `from` on a connection whose bytes have arrived up to `offset`.
    pub fn deliver(&mut self, now: Instant, connection: u32, from: usize, offset: u64) {
        loop {
            let in_flight = &mut self.connections[connection as usize].in_flight[from];
            let Some((_, message)) = in_flight.pop_front_if(|(end, _)| *end <= offset) else { return };
            self.ends[1 - from].handle_message(now, connection, &message);
        }
    }

    /// Closes a connection from the client; messages in flight are discarded.
    pub fn close(&mut self, connection: u32) {
        let connection = &mut self.connections[connection as usize];
        connection.opened = false;
        connection.established = false;
        connection.in_flight.iter_mut().for_each(VecDeque::clear);
    }

    /// Returns the bytes written in total on a connection by the client and by the server.
    pub fn written(&self, connection: u32) -> [u64; 2] {
        self.connections[connection as usize].written
    }
}

/// Returns the TCP configuration of a server's flow, which has no handshake of its own: it opens with the
/// client's flow.
pub fn answering(config: &tcp::TcpConfig) -> tcp::TcpConfig {
    tcp::TcpConfig { handshake: false, ..config.clone() }
}

/// Returns the size of a message's packet at the IP layer, with a header of `header` bytes.
pub fn packet_size(header: u32, message: &ApplicationMessage) -> u32 {
    header + message.bytes.max(HEADER)
}
