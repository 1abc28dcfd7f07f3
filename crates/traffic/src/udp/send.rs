//! UDP sender.

use super::super::emissions::Emissions;
use super::super::error::FlowProblem;
use super::super::kernel::{SendBatch, set_option, set_traffic_class};
use super::super::records::FlowLedger;
use super::super::schedule::ScheduleStatistics;
use super::{MAX_UDP_PAYLOAD, bound};
use netstage_agent_api::results::{BinCounts, FlowResult};
use netstage_agent_api::task::{FlowTask, TaskTransport, UdpOptions};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_wire::probe::{self, Header};
use socket2::{SockAddr, Socket};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;

/// Time after which sending is retried if a kernel buffer is full.
const RETRY: Duration = Duration::from_micros(100);
/// Maximum number of packets that the kernel splits from one buffer (UDP_MAX_SEGMENTS of older kernels).
const LARGEST_BATCH: u16 = 64;

/// Sender of one flow's packets.
pub struct UdpSender {
    name: String,
    socket: Socket,
    flow: u32,
    fill: bool,
    emissions: Emissions,
    /// Packets per datagram passed to the kernel: more than 1 with UDP GSO.
    segments: usize,
    /// Next packets, as many as a datagram needs: due time and size.
    ahead: VecDeque<(Instant, usize)>,
    batch: SendBatch,
    /// Packets in the batch: due time and size.
    in_batch: VecDeque<(Instant, usize)>,
    retry_at: Option<Instant>,
    number: u64,
    padded: u64,
    /// Number of packets that could not be sent, and first error.
    failed_sends: u64,
    send_error: Option<io::Error>,
    /// Number of port-unreachable errors.
    port_unreachable: u64,
    ledger: FlowLedger,
    punctuality: ScheduleStatistics,
}

impl UdpSender {
    /// Opens, binds and connects the socket.
    pub fn prepare(
        task: &FlowTask,
        emissions: Emissions,
        ledger: FlowLedger,
    ) -> Result<UdpSender, FlowProblem> {
        let options = match &task.transport {
            TaskTransport::Udp(options) => options.clone(),
            _ => UdpOptions::default(),
        };
        let largest = emissions.largest_packet().ok_or(FlowProblem::NoRate("UDP"))?;
        let largest = largest.max(probe::HEADER as u64);
        let segments = options.batch.clamp(1, LARGEST_BATCH);
        if largest * u64::from(segments) > MAX_UDP_PAYLOAD {
            return Err(FlowProblem::PacketSize {
                bytes: largest,
                limit: MAX_UDP_PAYLOAD / u64::from(segments),
            });
        }
        if segments > 1 && !emissions.has_one_size() {
            return Err(FlowProblem::InvalidTask(
                "a UDP batch needs packets of one size, but the trace has several",
            ));
        }
        let socket = bound(task.source, false)?;
        set_traffic_class(socket.as_fd(), task).map_err(FlowProblem::system("setting the traffic class"))?;
        if let TaskTransport::Multicast { ttl, .. } = &task.transport {
            super::multicast::send_to_group(&socket, task.source, *ttl)
                .map_err(FlowProblem::system("setting up multicast"))?;
        }
        if options.checksum_zero {
            if task.destination.is_ipv6() {
                return Err(FlowProblem::InvalidTask(
                    "UDP over IPv6 always has a checksum (RFC 8200 section 8.1)",
                ));
            }
            set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)
                .map_err(FlowProblem::system("disabling UDP checksums"))?;
        }
        if segments > 1 {
            set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, largest as i32)
                .map_err(FlowProblem::system("enabling UDP segmentation offload"))?;
        }
        socket
            .connect(&SockAddr::from(task.destination))
            .map_err(FlowProblem::system("finding a route to the receiver"))?;
        let mut sender = UdpSender {
            name: task.name.clone(),
            socket,
            flow: task.id,
            fill: options.compare_payload || options.checksum_zero,
            emissions,
            segments: segments.into(),
            ahead: VecDeque::new(),
            batch: SendBatch::new(largest as usize * usize::from(segments)),
            in_batch: VecDeque::new(),
            retry_at: None,
            number: 0,
            padded: 0,
            failed_sends: 0,
            send_error: None,
            port_unreachable: 0,
            ledger,
            punctuality: ScheduleStatistics::new(),
        };
        sender.look_ahead();
        Ok(sender)
    }

    /// Returns the due time of the next packet. With batches, it is that of the last packet of a batch, so that no
    /// packet leaves early.
    pub fn due(&self) -> Instant {
        self.retry_at.unwrap_or_else(|| self.ahead.back().map_or(Instant::NEVER, |&(due, _)| due))
    }

    /// Sends the packets that are due.
    pub fn handle_due(&mut self, epoch: Epoch) {
        self.retry_at = None;
        let now = epoch.now();
        if now >= self.emissions.stop() {
            self.discard_rest(now);
            return;
        }
        if self.batch.is_empty() {
            self.fill_batch(now);
        }
        while !self.batch.is_empty() {
            match self.batch.send(self.socket.as_fd()) {
                Ok(datagrams) => self.account(datagrams, epoch.now()),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) || is_full(&error) => {
                    self.retry_at = Some(now + RETRY);
                    return;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.handle_send_error(error),
            }
        }
    }

    /// Returns whether all packets have been sent, or the flow is over.
    pub fn done(&self, now: Instant) -> bool {
        now >= self.emissions.stop() || (self.ahead.is_empty() && self.batch.is_empty())
    }

    /// Returns the counts of a bin.
    pub fn counts(&mut self, bin: usize) -> BinCounts {
        *self.ledger.counts(bin)
    }

    /// Returns the result.
    pub fn finish(mut self, now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        self.discard_rest(now);
        let name = &self.name;
        if let Some(warning) = self.punctuality.warning() {
            warnings.push(format!("flow {name}: {warning}"));
        }
        if self.segments > 1 {
            warnings.push(format!(
                "flow {name}: sent in batches of {} packets split by the kernel, without timing per packet",
                self.segments
            ));
        }
        if self.padded > 0 {
            warnings.push(format!(
                "flow {name}: {} packets smaller than the header of {} bytes were padded to this size",
                self.padded,
                probe::HEADER
            ));
        }
        let failed =
            self.send_error.map(|error| format!("{} packets were not sent: {error}", self.failed_sends));
        let unreachable = (self.port_unreachable > 0).then(|| {
            format!(
                "the receiver's port is closed: received {} port-unreachable errors",
                self.port_unreachable
            )
        });
        let error = failed.or(unreachable);
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

    /// Fills the batch with due packets, oldest first.
    fn fill_batch(&mut self, now: Instant) {
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
                record_due(&mut self.punctuality, &mut self.ledger, due, bytes as u64);
                self.number += 1;
                self.padded += u64::from(bytes < probe::HEADER);
                self.in_batch.push_back((due, packet.len()));
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
            let Some((due, bytes)) = self.in_batch.pop_front() else { return };
            self.punctuality.record_sent(due, at, bytes as u64);
            let counts = self.ledger.at(at);
            counts.sent += 1;
            counts.sent_bytes += bytes as u64;
        }
    }

    /// Skips the first datagram, unless the error is an ICMP error about an earlier packet.
    fn handle_send_error(&mut self, error: io::Error) {
        if error.kind() == ErrorKind::ConnectionRefused {
            self.port_unreachable += 1;
            return;
        }
        self.batch.skip(1);
        self.in_batch.drain(..self.segments.min(self.in_batch.len()));
        self.failed_sends += self.segments as u64;
        self.send_error.get_or_insert(error);
    }

    /// Discards all unsent packets at the end of the flow. Those already due count as offered.
    fn discard_rest(&mut self, now: Instant) {
        self.batch.skip(usize::MAX);
        self.in_batch.clear();
        while let Some((due, bytes)) = self.ahead.pop_front() {
            if due > now {
                self.ahead.clear();
                return;
            }
            record_due(&mut self.punctuality, &mut self.ledger, due, bytes as u64);
            self.look_ahead();
        }
    }
}

fn record_due(punctuality: &mut ScheduleStatistics, ledger: &mut FlowLedger, due: Instant, bytes: u64) {
    punctuality.record_due(due, bytes);
    ledger.at(due).offered_bytes += bytes;
}

/// Returns whether the queue of the interface is full.
fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOBUFS)
}
