//! The sender.

use super::super::emissions::Emissions;
use super::super::error::Problem;
use super::super::kernel::{SendBatch, set_option, set_traffic_class};
use super::super::ledger::Ledger;
use super::super::schedule::Punctuality;
use super::{LARGEST, bound};
use netstage_agent_api::results::{Counts, FlowResult};
use netstage_agent_api::task::{FlowTask, Transport, UdpOptions};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_wire::probe::{self, Header};
use socket2::{SockAddr, Socket};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;

/// When to try again where the kernel has no room.
const RETRY: Duration = Duration::from_micros(100);
/// Most packets the kernel splits from one buffer (UDP_MAX_SEGMENTS of older kernels).
const LARGEST_BATCH: u16 = 64;

/// Sends one flow's packets on time.
pub struct UdpSender {
    name: String,
    socket: Socket,
    flow: u32,
    fill: bool,
    emissions: Emissions,
    /// Packets per datagram handed to the kernel: above 1 with UDP GSO.
    segments: usize,
    /// Packets not taken into the batch yet: as many as a datagram needs.
    ahead: VecDeque<(Instant, usize)>,
    batch: SendBatch,
    /// Packets in the batch.
    taken: VecDeque<(Instant, usize)>,
    retry_at: Option<Instant>,
    number: u64,
    padded: u64,
    /// Packets the system would not send, and why.
    refused: u64,
    refusal: Option<io::Error>,
    /// How often a host said that nobody listens.
    unheard: u64,
    ledger: Ledger,
    punctuality: Punctuality,
}

impl UdpSender {
    /// Opens, binds and connects the socket.
    pub fn prepare(task: &FlowTask, emissions: Emissions, ledger: Ledger) -> Result<UdpSender, Problem> {
        let options = match &task.transport {
            Transport::Udp(options) => options.clone(),
            _ => UdpOptions::default(),
        };
        let largest = emissions.largest_packet().ok_or(Problem::NoRate("UDP"))?;
        let largest = largest.max(probe::HEADER as u64);
        let segments = options.batch.clamp(1, LARGEST_BATCH);
        if largest * u64::from(segments) > LARGEST {
            return Err(Problem::PacketSize { bytes: largest, limit: LARGEST / u64::from(segments) });
        }
        if segments > 1 && !emissions.has_one_size() {
            return Err(Problem::Refused("a UDP batch needs packets of one size, and the trace has several"));
        }
        let socket = bound(task.source, false)?;
        set_traffic_class(socket.as_fd(), task).map_err(Problem::system("setting the traffic class"))?;
        if let Transport::Multicast { ttl, .. } = &task.transport {
            super::multicast::send_to_group(&socket, task.source, *ttl)
                .map_err(Problem::system("setting up multicast"))?;
        }
        if options.checksum_zero {
            if task.destination.is_ipv6() {
                return Err(Problem::Refused("UDP over IPv6 always has a checksum (RFC 8200 section 8.1)"));
            }
            set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)
                .map_err(Problem::system("turning UDP checksums off"))?;
        }
        if segments > 1 {
            set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, largest as i32)
                .map_err(Problem::system("turning UDP segmentation offload on"))?;
        }
        socket
            .connect(&SockAddr::from(task.destination))
            .map_err(Problem::system("finding a route to the receiver"))?;
        let mut sender = UdpSender {
            name: task.name.clone(),
            socket,
            flow: task.id,
            fill: options.compare_payload || options.checksum_zero,
            emissions,
            segments: segments.into(),
            ahead: VecDeque::new(),
            batch: SendBatch::new(largest as usize * usize::from(segments)),
            taken: VecDeque::new(),
            retry_at: None,
            number: 0,
            padded: 0,
            refused: 0,
            refusal: None,
            unheard: 0,
            ledger,
            punctuality: Punctuality::new(),
        };
        sender.look_ahead();
        Ok(sender)
    }

    /// When the next packet is due; with a batch, its last one: none leaves early.
    pub fn due(&self) -> Instant {
        self.retry_at.unwrap_or_else(|| self.ahead.back().map_or(Instant::NEVER, |&(due, _)| due))
    }

    /// Sends what is due.
    pub fn handle_due(&mut self, epoch: Epoch) {
        self.retry_at = None;
        let now = epoch.now();
        if now >= self.emissions.stop() {
            self.give_up(now);
            return;
        }
        if self.batch.is_empty() {
            self.take(now);
        }
        while !self.batch.is_empty() {
            match self.batch.send(self.socket.as_fd()) {
                Ok(datagrams) => self.account(datagrams, epoch.now()),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) || is_full(&error) => {
                    self.retry_at = Some(now + RETRY);
                    return;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.refuse(error),
            }
        }
    }

    /// Whether all has been sent.
    pub fn done(&self, now: Instant) -> bool {
        now >= self.emissions.stop() || (self.ahead.is_empty() && self.batch.is_empty())
    }

    /// Counts of a bin so far.
    pub fn counts(&mut self, bin: usize) -> Counts {
        *self.ledger.counts(bin)
    }

    /// What was found.
    pub fn finish(mut self, now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        self.give_up(now);
        let name = &self.name;
        if let Some(warning) = self.punctuality.warning() {
            warnings.push(format!("flow {name}: {warning}"));
        }
        if self.segments > 1 {
            warnings.push(format!(
                "flow {name}: sent in batches of {} split by the kernel, without timing per packet",
                self.segments
            ));
        }
        if self.padded > 0 {
            warnings.push(format!(
                "flow {name}: {} packets were smaller than the header of {} bytes and were sent with that size",
                self.padded,
                probe::HEADER
            ));
        }
        let refused = self.refusal.map(|error| format!("{} packets were not sent: {error}", self.refused));
        let unheard = (self.unheard > 0).then(|| {
            format!("the receiver's host said {} times that nobody listens on the port", self.unheard)
        });
        let error = refused.or(unheard);
        FlowResult {
            sends: true,
            gaps: self.punctuality.gaps(),
            schedule: Some(self.punctuality.schedule()),
            bins: self.ledger.into_bins(),
            error,
            name: self.name,
            ..FlowResult::default()
        }
    }

    /// Fills the batch with what is due, oldest first.
    fn take(&mut self, now: Instant) {
        while self.batch.has_room() && self.ahead.back().is_some_and(|&(due, _)| due <= now) {
            let sizes = self.ahead.iter().map(|&(_, bytes)| bytes.max(probe::HEADER));
            let mut datagram = self.batch.push(sizes.sum());
            while let Some((due, bytes)) = self.ahead.pop_front() {
                let packet;
                (packet, datagram) = datagram.split_at_mut(bytes.max(probe::HEADER));
                Header { flow: self.flow, number: self.number, time_ns: now.0 }.write(packet);
                if self.fill {
                    probe::fill(packet, self.flow, self.number);
                }
                ask(&mut self.punctuality, &mut self.ledger, due, bytes as u64);
                self.number += 1;
                self.padded += u64::from(bytes < probe::HEADER);
                self.taken.push_back((due, packet.len()));
            }
            self.look_ahead();
        }
    }

    fn look_ahead(&mut self) {
        while self.ahead.len() < self.segments {
            let Some((due, bytes)) = self.emissions.next() else { return };
            self.ahead.push_back((due, bytes as usize));
        }
    }

    fn account(&mut self, datagrams: usize, at: Instant) {
        for _ in 0..datagrams * self.segments {
            // The last datagram of a flow may hold fewer packets.
            let Some((due, bytes)) = self.taken.pop_front() else { return };
            self.punctuality.send(due, at, bytes as u64);
            let counts = self.ledger.at(at);
            counts.sent += 1;
            counts.sent_bytes += bytes as u64;
        }
    }

    /// The kernel refused the first datagram. An ICMP error about an earlier packet comes this
    /// way, too, and then the datagram can be sent all the same.
    fn refuse(&mut self, error: io::Error) {
        if error.kind() == ErrorKind::ConnectionRefused {
            self.unheard += 1;
            return;
        }
        self.batch.skip(1);
        self.taken.drain(..self.segments.min(self.taken.len()));
        self.refused += self.segments as u64;
        self.refusal.get_or_insert(error);
    }

    /// The flow's time is up: what it has not sent by now it will not.
    fn give_up(&mut self, now: Instant) {
        self.batch.skip(usize::MAX);
        self.taken.clear();
        while let Some((due, bytes)) = self.ahead.pop_front() {
            if due > now {
                self.ahead.clear();
                return;
            }
            ask(&mut self.punctuality, &mut self.ledger, due, bytes as u64);
            self.look_ahead();
        }
    }
}

/// The pattern asked for a packet.
fn ask(punctuality: &mut Punctuality, ledger: &mut Ledger, due: Instant, bytes: u64) {
    punctuality.ask(due, bytes);
    ledger.at(due).offered_bytes += bytes;
}

/// The queue of the interface is full.
fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOBUFS)
}
