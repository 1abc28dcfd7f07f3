//! Applications over TCP: sequences of messages on connections that the client opens.

use super::super::error::FlowProblem;
use super::super::kernel::{TcpInfo, tcp_info};
use super::super::run_context::SocketWatch;
use super::super::tcp;
use super::inbox::Inbox;
use super::{DialogueEnd, DialogueEndPhase};
use netstage_agent_api::results::{BinCounts, FlowResult};
use netstage_agent_api::task::{FlowSide, FlowTask, TcpOptions};
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::{
    ApplicationMessage, EndpointAction, EndpointRole, HEADER, MessageContent, TransportKind,
};
use netstage_host::clock::Epoch;
use socket2::{SockAddr, Socket};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read};
use std::net::SocketAddr;
use std::os::fd::AsFd;

/// Maximum number of bytes read or written by one call.
const CHUNK: usize = 128 << 10;
/// Maximum number of reads of a connection before the others are served.
const READS_AT_ONCE: usize = 8;

static PADDING: [u8; CHUNK] = [0; CHUNK];

/// One end of an application over TCP.
pub struct StreamDialogue {
    dialogue: DialogueEnd,
    options: TcpOptions,
    source: SocketAddr,
    destination: SocketAddr,
    listener: Option<Socket>,
    /// Connections, by the endpoint's number.
    connections: Vec<Option<DialogueStream>>,
    buffer: Vec<u8>,
    resume_at: Option<Instant>,
    /// Number of established connections, and error of the first failed connection.
    established: u64,
    failure: Option<String>,
}

struct DialogueStream {
    socket: Socket,
    is_connecting: bool,
    inbox: Inbox,
    /// Messages not completely written, and bytes of the first that are written.
    outbox: VecDeque<ApplicationMessage>,
    written: u32,
}

/// Outcome of serving a connection.
enum IoOutcome {
    Blocked,
    Unfinished,
    Closed(Option<io::Error>),
}

impl StreamDialogue {
    /// Binds and listens for a server, or checks for a client that a socket can be bound.
    pub fn prepare(
        task: &FlowTask,
        options: &TcpOptions,
        seed: u64,
        interval: Duration,
        duration: Duration,
    ) -> Result<StreamDialogue, FlowProblem> {
        let dialogue = DialogueEnd::new(task, TransportKind::Stream, seed, interval, duration)?;
        // Several connections to one destination need different source ports.
        let source = match task.side {
            FlowSide::Receive => task.seen_from().ip(),
            FlowSide::Send => task.source.ip(),
        };
        let source = SocketAddr::new(source, 0);
        let listener = match task.side {
            FlowSide::Receive => Some(tcp::listen(task.destination, options)?),
            FlowSide::Send => {
                tcp::bound(source, options)?;
                None
            }
        };
        Ok(StreamDialogue {
            dialogue,
            options: options.clone(),
            source,
            destination: task.reached_at(),
            listener,
            connections: Vec::new(),
            buffer: vec![0; CHUNK],
            resume_at: None,
            established: 0,
            failure: None,
        })
    }

    /// Returns the listening socket of a server.
    pub fn listener(&self) -> Option<&Socket> {
        self.listener.as_ref()
    }

    /// Returns the time of the next call of [`StreamDialogue::handle_due`].
    pub fn due(&self) -> Instant {
        self.resume_at.map_or(self.dialogue.due(), |resume| resume.min(self.dialogue.due()))
    }

    /// Handles the timers of the endpoint, and resumes connections with unread data.
    pub fn handle_due(&mut self, epoch: Epoch, watch: SocketWatch<'_>) {
        self.dialogue.handle_due(epoch.now());
        self.handle_ready(epoch, watch);
        if self.dialogue.phase == DialogueEndPhase::Stopped {
            self.connections.clear();
            self.listener = None;
        }
    }

    /// Serves all sockets.
    pub fn handle_ready(&mut self, epoch: Epoch, watch: SocketWatch<'_>) {
        self.resume_at = None;
        self.accept(watch);
        self.act(epoch, watch);
        for number in 0..self.connections.len() {
            self.serve(epoch, number as u32);
        }
        self.act(epoch, watch);
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
        if self.dialogue.role == EndpointRole::Client && self.established == 0 && now > self.dialogue.start {
            let unanswered = || format!("no answer from {} to connection requests", self.destination);
            self.dialogue.error = Some(self.failure.unwrap_or_else(unanswered));
        } else if let Some(failure) = self.failure {
            warnings.push(format!("flow {}: {failure}", self.dialogue.name));
        }
        self.dialogue.finish(now)
    }

    fn accept(&mut self, watch: SocketWatch<'_>) {
        let Some(listener) = &self.listener else { return };
        while let Ok((socket, peer)) = listener.accept() {
            let expected = self.source.ip();
            let is_foreign =
                !expected.is_unspecified() && peer.as_socket().is_none_or(|peer| peer.ip() != expected);
            let ready = socket.set_nonblocking(true).and_then(|()| watch.add_edge_triggered(&socket));
            if is_foreign || ready.is_err() {
                continue;
            }
            let connection = DialogueStream::new(socket, false);
            match self.connections.iter_mut().find(|slot| slot.is_none()) {
                Some(slot) => *slot = Some(connection),
                None => self.connections.push(Some(connection)),
            }
        }
    }

    /// Executes all pending actions of the endpoint.
    fn act(&mut self, epoch: Epoch, watch: SocketWatch<'_>) {
        while let Some(action) = self.dialogue.endpoint.poll_action() {
            match action {
                EndpointAction::Open(number) => {
                    let index = number as usize;
                    if self.connections.len() <= index {
                        self.connections.resize_with(index + 1, || None);
                    }
                    match self.connect(watch) {
                        Ok(connection) => self.connections[index] = Some(connection),
                        Err(error) => self.fail(epoch, number, &error),
                    }
                }
                EndpointAction::Close(number) => self.connections[number as usize] = None,
                EndpointAction::Send(number, mut message) => {
                    self.dialogue.ledger.at(epoch.now()).offered_bytes += u64::from(message.bytes);
                    if let Some(Some(connection)) = self.connections.get_mut(number as usize) {
                        if let MessageContent::Window(window) = &mut message.content {
                            *window = connection.congestion_window();
                        }
                        connection.outbox.push_back(message);
                        self.serve(epoch, number);
                    }
                }
            }
        }
        self.dialogue.collect_observations();
    }

    fn connect(&self, watch: SocketWatch<'_>) -> io::Result<DialogueStream> {
        let socket = tcp::bound(self.source, &self.options)
            .map_err(|problem| io::Error::other(problem.to_string()))?;
        match socket.connect(&SockAddr::from(self.destination)) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => watch.add_edge_triggered(&socket)?,
        }
        Ok(DialogueStream::new(socket, true))
    }

    /// Writes and reads on a connection until it blocks.
    fn serve(&mut self, epoch: Epoch, number: u32) {
        let Some(Some(connection)) = self.connections.get_mut(number as usize) else { return };
        if connection.is_connecting {
            match connection.socket.take_error() {
                Ok(None) if connection.socket.peer_addr().is_ok() => {
                    connection.is_connecting = false;
                    self.established += 1;
                    self.dialogue.endpoint.handle_connected(epoch.now(), number);
                }
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => self.fail(epoch, number, &error),
            }
            return;
        }
        let turn = match connection.write(&mut self.dialogue, epoch) {
            IoOutcome::Closed(error) => IoOutcome::Closed(error),
            written => {
                match connection.read(&mut self.dialogue, epoch, number, &mut self.buffer, &self.options) {
                    IoOutcome::Blocked => written,
                    read => read,
                }
            }
        };
        match turn {
            IoOutcome::Blocked => {}
            IoOutcome::Unfinished => self.resume_at = Some(epoch.now()),
            // The client decides when a connection closes.
            IoOutcome::Closed(_) if self.dialogue.role == EndpointRole::Server => {
                self.connections[number as usize] = None
            }
            IoOutcome::Closed(error) => {
                self.fail(epoch, number, &error.unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    fn fail(&mut self, epoch: Epoch, number: u32, error: &io::Error) {
        self.failure.get_or_insert_with(|| format!("a connection to {} failed: {error}", self.destination));
        self.connections[number as usize] = None;
        self.dialogue.endpoint.handle_failure(epoch.now(), number);
    }
}

impl DialogueStream {
    fn new(socket: Socket, is_connecting: bool) -> DialogueStream {
        DialogueStream { socket, is_connecting, inbox: Inbox::default(), outbox: VecDeque::new(), written: 0 }
    }

    /// Returns the congestion window in bytes; 0 if it is unknown.
    fn congestion_window(&self) -> u32 {
        let bytes = |info: TcpInfo| info.sample().window.saturating_mul(info.segment());
        tcp_info(self.socket.as_fd()).map_or(0, bytes)
    }

    fn write(&mut self, dialogue: &mut DialogueEnd, epoch: Epoch) -> IoOutcome {
        while let Some(message) = self.outbox.front() {
            let header = message.encode();
            let header = &header[self.written.min(HEADER) as usize..];
            let padding = message.bytes - self.written.max(HEADER);
            let slices = [IoSlice::new(header), IoSlice::new(&PADDING[..CHUNK.min(padding as usize)])];
            match self.socket.send_vectored_with_flags(&slices, libc::MSG_NOSIGNAL) {
                Ok(count) => {
                    self.written += count as u32;
                    let is_complete = self.written == message.bytes;
                    let counts = dialogue.ledger.at(epoch.now());
                    counts.sent_bytes += count as u64;
                    if is_complete {
                        counts.sent += 1;
                        self.outbox.pop_front();
                        self.written = 0;
                    }
                }
                Err(error) if tcp::is_wait(&error) => return IoOutcome::Blocked,
                Err(error) => return IoOutcome::Closed(Some(error)),
            }
        }
        IoOutcome::Blocked
    }

    fn read(
        &mut self,
        dialogue: &mut DialogueEnd,
        epoch: Epoch,
        number: u32,
        buffer: &mut [u8],
        options: &TcpOptions,
    ) -> IoOutcome {
        for _ in 0..READS_AT_ONCE {
            let read = (&self.socket).read(buffer);
            tcp::hold_window(&self.socket, options);
            match read {
                Ok(0) => return IoOutcome::Closed(None),
                Ok(count) => {
                    let at = epoch.now();
                    dialogue.ledger.receive(at, 0, count as u64);
                    let endpoint = &mut dialogue.endpoint;
                    let mut messages = 0;
                    let decoded = self.inbox.handle_bytes(&buffer[..count], |message| {
                        messages += 1;
                        endpoint.handle_message(at, number, &message);
                    });
                    dialogue.ledger.receive(at, messages, 0);
                    if let Err(error) = decoded {
                        return IoOutcome::Closed(Some(io::Error::other(error)));
                    }
                }
                Err(error) if tcp::is_wait(&error) => return IoOutcome::Blocked,
                Err(error) => return IoOutcome::Closed(Some(error)),
            }
        }
        IoOutcome::Unfinished
    }
}
