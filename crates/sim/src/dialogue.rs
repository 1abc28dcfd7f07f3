//! Applications in virtual time: two endpoints, and the connections between them.
//!
//! A connection is two TCP flows, one for each direction: their handshake is that of the
//! client's, and acknowledgements travel as packets of their own. Messages are known by the
//! byte they end with.

use crate::bins::{Bins, Grid};
use netstage_core::rng::Stream;
use netstage_core::tcp;
use netstage_core::time::Instant;
use netstage_core::traffic::application::{
    Application, Carriage, Endpoint, HEADER, Message, QualityBins, Role,
};
use netstage_scenario::plan::FlowGroup;
use std::collections::VecDeque;

/// The client's place wherever there are two; the server's is the next.
pub const CLIENT: usize = 0;

/// One member of a flow group that is a dialogue.
#[derive(Debug)]
pub struct Dialogue {
    /// Both ends.
    pub ends: [Endpoint; 2],
    /// What each end noticed.
    pub quality: [QualityBins; 2],
    /// Payload delivered, both ways.
    pub delivered: Bins,
    /// Group of what each end sends.
    pub groups: [u32; 2],
    /// Number of its first TCP flow: connection c has flows `first + 2 c` and the next.
    pub first_flow: u32,
    /// Its connections; none over UDP.
    pub connections: Vec<Connection>,
    /// When it starts.
    pub start: Instant,
    /// When it stops.
    pub stop: Instant,
    /// How far it is.
    pub phase: Phase,
}

/// How far a dialogue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not begun.
    Waiting,
    /// Under way.
    Running,
    /// Over.
    Stopped,
}

/// A connection of a dialogue.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// The client has asked for it.
    pub opened: bool,
    /// The client knows that it is there.
    pub established: bool,
    /// Messages from each end that are not there yet, by the byte they end with.
    under_way: [VecDeque<(u64, Message)>; 2],
    written: [u64; 2],
}

impl Dialogue {
    /// A dialogue before its start.
    pub fn new(
        group: &FlowGroup,
        application: &Application,
        groups: [u32; 2],
        first_flow: u32,
        start: Instant,
        stream: &Stream,
        grid: Grid,
    ) -> Dialogue {
        let carriage = group.transport.carriage().expect("a checked plan's dialogues have two ends");
        let end = |role| Endpoint::new(application, role, carriage, stream);
        let quality = || QualityBins::new(grid.interval, grid.bins);
        let connections = match carriage {
            Carriage::Stream => application.connections() as usize,
            Carriage::Datagram => 0,
        };
        Dialogue {
            ends: [end(Role::Client), end(Role::Server)],
            quality: [quality(), quality()],
            delivered: Bins::new(grid),
            groups,
            first_flow,
            connections: vec![Connection::default(); connections],
            start,
            stop: group.stop,
            phase: Phase::Waiting,
        }
    }

    /// When it wants to be woken.
    pub fn poll_timeout(&self) -> Instant {
        match self.phase {
            Phase::Waiting => self.start,
            Phase::Running => {
                let [client, server] = &self.ends;
                client.poll_timeout().min(server.poll_timeout()).min(self.stop)
            }
            Phase::Stopped => Instant::NEVER,
        }
    }

    /// The time of [`poll_timeout`](Dialogue::poll_timeout) has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now >= self.stop {
            return self.finish(now);
        }
        match self.phase {
            Phase::Waiting => {
                self.phase = Phase::Running;
                self.ends.iter_mut().for_each(|end| end.start(now));
            }
            Phase::Running => self.ends.iter_mut().for_each(|end| end.handle_timeout(now)),
            Phase::Stopped => {}
        }
    }

    /// The run, or the flow, is over.
    pub fn finish(&mut self, now: Instant) {
        if self.phase == Phase::Running {
            self.ends.iter_mut().for_each(|end| end.stop(now));
            self.note();
        }
        self.phase = Phase::Stopped;
    }

    /// Takes down what the ends noticed.
    pub fn note(&mut self) {
        for (end, quality) in self.ends.iter_mut().zip(&mut self.quality) {
            while let Some(observation) = end.poll_observation() {
                quality.add(observation);
            }
        }
    }

    /// `end` writes a message on a connection.
    pub fn write(&mut self, connection: u32, end: usize, message: Message) {
        let connection = &mut self.connections[connection as usize];
        connection.written[end] += u64::from(message.bytes);
        connection.under_way[end].push_back((connection.written[end], message));
    }

    /// All bytes of a connection up to `offset` have reached the end opposite of `from`.
    pub fn deliver(&mut self, now: Instant, connection: u32, from: usize, offset: u64) {
        loop {
            let under_way = &mut self.connections[connection as usize].under_way[from];
            let Some((_, message)) = under_way.pop_front_if(|(end, _)| *end <= offset) else { return };
            self.ends[1 - from].handle_message(now, connection, &message);
        }
    }

    /// The client closes a connection: what is under way on it reaches nobody.
    pub fn close(&mut self, connection: u32) {
        let connection = &mut self.connections[connection as usize];
        connection.opened = false;
        connection.established = false;
        connection.under_way.iter_mut().for_each(VecDeque::clear);
    }

    /// What the client's flows have written in all on a connection, and the server's.
    pub fn written(&self, connection: u32) -> [u64; 2] {
        self.connections[connection as usize].written
    }
}

/// A server's flow opens with its client's: no handshake of its own.
pub fn answering(config: &tcp::Config) -> tcp::Config {
    tcp::Config { handshake: false, ..config.clone() }
}

/// Bytes of a message's packet at the IP layer, behind a header of so many.
pub fn packet_size(header: u32, message: &Message) -> u32 {
    header + message.bytes.max(HEADER)
}
