//! Applications over TCP: messages one after the other in connections the client opens.

use super::super::error::Problem;
use super::super::frame::Watch;
use super::super::tcp;
use super::inbox::Inbox;
use super::{Phase, Talk};
use netstage_agent_api::results::{Counts, FlowResult};
use netstage_agent_api::task::{FlowTask, Side, TcpOptions};
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::{Action, Carriage, HEADER, Message, Role};
use netstage_host::clock::Epoch;
use socket2::{SockAddr, Socket};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read};
use std::net::SocketAddr;

/// Bytes read or written by one call.
const CHUNK: usize = 128 << 10;
/// Reads of a connection before others have their turn.
const READS_AT_ONCE: usize = 8;

static PADDING: [u8; CHUNK] = [0; CHUNK];

/// One end of an application over TCP.
pub struct StreamDialogue {
    talk: Talk,
    options: TcpOptions,
    source: SocketAddr,
    destination: SocketAddr,
    listener: Option<Socket>,
    /// By the number the endpoint knows them by.
    connections: Vec<Option<Connection>>,
    buffer: Vec<u8>,
    resume_at: Option<Instant>,
    /// Connections that came about, and why others did not.
    established: u64,
    failure: Option<String>,
}

struct Connection {
    socket: Socket,
    connecting: bool,
    inbox: Inbox,
    /// Messages not wholly written, and how much of the first is.
    outbox: VecDeque<Message>,
    written: u32,
}

/// What a connection's turn has come to.
enum Turn {
    Waits,
    Unfinished,
    Ended(Option<io::Error>),
}

impl StreamDialogue {
    /// A server binds and listens; a client checks that it could connect.
    pub fn prepare(
        task: &FlowTask,
        options: &TcpOptions,
        seed: u64,
        interval: Duration,
        duration: Duration,
    ) -> Result<StreamDialogue, Problem> {
        let talk = Talk::new(task, Carriage::Stream, seed, interval, duration)?;
        // Several connections cannot leave from one port.
        let source = SocketAddr::new(task.source.ip(), 0);
        let listener = match task.side {
            Side::Receive => Some(tcp::listen(task.destination, options)?),
            Side::Send => {
                tcp::bound(source, options)?;
                None
            }
        };
        Ok(StreamDialogue {
            talk,
            options: options.clone(),
            source,
            destination: task.destination,
            listener,
            connections: Vec::new(),
            buffer: vec![0; CHUNK],
            resume_at: None,
            established: 0,
            failure: None,
        })
    }

    /// A server's listening socket.
    pub fn listener(&self) -> Option<&Socket> {
        self.listener.as_ref()
    }

    /// When to call again.
    pub fn due(&self) -> Instant {
        self.resume_at.map_or(self.talk.due(), |resume| resume.min(self.talk.due()))
    }

    /// The endpoint's time has come, or a turn was not finished.
    pub fn handle_due(&mut self, epoch: Epoch, watch: Watch<'_>) {
        self.talk.handle_due(epoch.now());
        self.handle_ready(epoch, watch);
        if self.talk.phase == Phase::Stopped {
            self.connections.clear();
            self.listener = None;
        }
    }

    /// Some socket has changed.
    pub fn handle_ready(&mut self, epoch: Epoch, watch: Watch<'_>) {
        self.resume_at = None;
        self.accept(watch);
        self.act(epoch, watch);
        for number in 0..self.connections.len() {
            self.turn(epoch, number as u32);
        }
        self.act(epoch, watch);
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
        if self.talk.role == Role::Client && self.established == 0 && now > self.talk.start {
            let unanswered = || format!("no answer from {} to connection requests", self.destination);
            self.talk.error = Some(self.failure.unwrap_or_else(unanswered));
        } else if let Some(failure) = self.failure {
            warnings.push(format!("flow {}: {failure}", self.talk.name));
        }
        self.talk.finish(now)
    }

    fn accept(&mut self, watch: Watch<'_>) {
        let Some(listener) = &self.listener else { return };
        while let Ok((socket, peer)) = listener.accept() {
            let expected = self.source.ip();
            let stranger =
                !expected.is_unspecified() && peer.as_socket().is_none_or(|peer| peer.ip() != expected);
            let ready = socket.set_nonblocking(true).and_then(|()| watch.edges(&socket));
            if stranger || ready.is_err() {
                continue;
            }
            let connection = Connection::new(socket, false);
            match self.connections.iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some(connection),
                None => self.connections.push(Some(connection)),
            }
        }
    }

    /// Does what the endpoint asks for, until it asks for nothing more.
    fn act(&mut self, epoch: Epoch, watch: Watch<'_>) {
        while let Some(action) = self.talk.endpoint.poll_action() {
            match action {
                Action::Open(number) => {
                    let place = number as usize;
                    if self.connections.len() <= place {
                        self.connections.resize_with(place + 1, || None);
                    }
                    match self.connect(watch) {
                        Ok(connection) => self.connections[place] = Some(connection),
                        Err(error) => self.fail(epoch, number, &error),
                    }
                }
                Action::Close(number) => self.connections[number as usize] = None,
                Action::Send(number, message) => {
                    self.talk.ledger.at(epoch.now()).offered_bytes += u64::from(message.bytes);
                    if let Some(Some(connection)) = self.connections.get_mut(number as usize) {
                        connection.outbox.push_back(message);
                        self.turn(epoch, number);
                    }
                }
            }
        }
        self.talk.note();
    }

    fn connect(&self, watch: Watch<'_>) -> io::Result<Connection> {
        let socket = tcp::bound(self.source, &self.options)
            .map_err(|problem| io::Error::other(problem.to_string()))?;
        match socket.connect(&SockAddr::from(self.destination)) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => watch.edges(&socket)?,
        }
        Ok(Connection::new(socket, true))
    }

    /// Lets a connection read and write what it can.
    fn turn(&mut self, epoch: Epoch, number: u32) {
        let Some(Some(connection)) = self.connections.get_mut(number as usize) else { return };
        if connection.connecting {
            match connection.socket.take_error() {
                Ok(None) if connection.socket.peer_addr().is_ok() => {
                    connection.connecting = false;
                    self.established += 1;
                    self.talk.endpoint.handle_connected(epoch.now(), number);
                }
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => self.fail(epoch, number, &error),
            }
            return;
        }
        let turn = match connection.write(&mut self.talk, epoch) {
            Turn::Ended(error) => Turn::Ended(error),
            written => {
                match connection.read(&mut self.talk, epoch, number, &mut self.buffer, &self.options) {
                    Turn::Waits => written,
                    read => read,
                }
            }
        };
        match turn {
            Turn::Waits => {}
            Turn::Unfinished => self.resume_at = Some(epoch.now()),
            // A server's client closes when it wants to.
            Turn::Ended(_) if self.talk.role == Role::Server => self.connections[number as usize] = None,
            Turn::Ended(error) => {
                self.fail(epoch, number, &error.unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    fn fail(&mut self, epoch: Epoch, number: u32, error: &io::Error) {
        self.failure.get_or_insert_with(|| format!("a connection to {} failed: {error}", self.destination));
        self.connections[number as usize] = None;
        self.talk.endpoint.handle_failure(epoch.now(), number);
    }
}

impl Connection {
    fn new(socket: Socket, connecting: bool) -> Connection {
        Connection { socket, connecting, inbox: Inbox::default(), outbox: VecDeque::new(), written: 0 }
    }

    fn write(&mut self, talk: &mut Talk, epoch: Epoch) -> Turn {
        while let Some(message) = self.outbox.front() {
            let header = message.encode();
            let header = &header[self.written.min(HEADER) as usize..];
            let padding = message.bytes - self.written.max(HEADER);
            let slices = [IoSlice::new(header), IoSlice::new(&PADDING[..CHUNK.min(padding as usize)])];
            match self.socket.send_vectored_with_flags(&slices, libc::MSG_NOSIGNAL) {
                Ok(count) => {
                    self.written += count as u32;
                    let whole = self.written == message.bytes;
                    let counts = talk.ledger.at(epoch.now());
                    counts.sent_bytes += count as u64;
                    if whole {
                        counts.sent += 1;
                        self.outbox.pop_front();
                        self.written = 0;
                    }
                }
                Err(error) if tcp::is_wait(&error) => return Turn::Waits,
                Err(error) => return Turn::Ended(Some(error)),
            }
        }
        Turn::Waits
    }

    fn read(
        &mut self,
        talk: &mut Talk,
        epoch: Epoch,
        number: u32,
        buffer: &mut [u8],
        options: &TcpOptions,
    ) -> Turn {
        for _ in 0..READS_AT_ONCE {
            let taken = (&self.socket).read(buffer);
            tcp::hold_window(&self.socket, options);
            match taken {
                Ok(0) => return Turn::Ended(None),
                Ok(count) => {
                    let at = epoch.now();
                    talk.ledger.at(at).received_bytes += count as u64;
                    let endpoint = &mut talk.endpoint;
                    let mut messages = 0;
                    let taken = self.inbox.handle_bytes(&buffer[..count], |message| {
                        messages += 1;
                        endpoint.handle_message(at, number, &message);
                    });
                    talk.ledger.at(at).received += messages;
                    if let Err(error) = taken {
                        return Turn::Ended(Some(io::Error::other(error)));
                    }
                }
                Err(error) if tcp::is_wait(&error) => return Turn::Waits,
                Err(error) => return Turn::Ended(Some(error)),
            }
        }
        Turn::Unfinished
    }
}
