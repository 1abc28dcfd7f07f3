//! UDP sender.

use super::super::departures::{Departures, ScheduledPacket};
use super::super::emissions::Emissions;
use super::super::error::FlowProblem;
use super::super::kernel::{SendBatch, set_option, set_traffic_class};
use super::super::records::FlowLedger;
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
    departures: Departures,
    /// Packets per datagram passed to the kernel: more than 1 with UDP GSO.
    segments: usize,
    batch: SendBatch,
    /// Packets in the batch.
    in_batch: VecDeque<ScheduledPacket>,
    /// Timestamp of the packets in the batch.
    stamped: Instant,
    retry_at: Option<Instant>,
    has_started: bool,
    /// Number of packets that could not be sent, and first error.
    failed_sends: u64,
    send_error: Option<io::Error>,
    /// Number of port-unreachable errors.
    port_unreachable: u64,
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
            .connect(&SockAddr::from(task.reached_at()))
            .map_err(FlowProblem::system("finding a route to the receiver"))?;
        Ok(UdpSender {
            name: task.name.clone(),
            socket,
            flow: task.id,
            fill: options.compare_payload || options.checksum_zero,
            departures: Departures::new(emissions, segments.into(), probe::HEADER, ledger),
            segments: segments.into(),
            batch: SendBatch::new(largest as usize * usize::from(segments)),
            in_batch: VecDeque::new(),
            stamped: Instant::ZERO,
            retry_at: None,
            has_started: false,
            failed_sends: 0,
            send_error: None,
            port_unreachable: 0,
        })
    }

    /// Returns the socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns the time of the next packet or retry.
    pub fn due(&self) -> Instant {
        self.retry_at.unwrap_or_else(|| self.departures.due())
    }

    /// Sends the packets that are due.
    pub fn handle_due(&mut self, epoch: Epoch) {
        self.retry_at = None;
        if !std::mem::replace(&mut self.has_started, true) {
            // An earlier error concerns a keep-alive that preceded the receiver's port.
            let _ = self.socket.take_error();
        }
        let now = epoch.now();
        if now >= self.departures.stop() {
            self.discard_rest(now);
            return;
        }
        if self.departures.expire(&mut self.in_batch, now) {
            self.batch.skip(usize::MAX);
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
        now >= self.departures.stop() || (self.departures.is_empty() && self.batch.is_empty())
    }

    /// Returns the counts of a bin.
    pub fn counts(&mut self, bin: usize) -> BinCounts {
        self.departures.counts(bin)
    }

    /// Returns the result.
    pub fn finish(mut self, now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        self.discard_rest(now);
        let name = &self.name;
        let padded = self.departures.padded();
        let (warning, schedule, gaps, bins) = self.departures.finish();
        warnings.extend(warning.map(|warning| format!("flow {name}: {warning}")));
        if self.segments > 1 {
            warnings.push(format!(
                "flow {name}: sent in batches of {} packets split by the kernel, without timing per packet",
                self.segments
            ));
        }
        if padded > 0 {
            warnings.push(format!(
                "flow {name}: {} packets smaller than the header of {} bytes were padded to this size",
                padded,
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
            gaps,
            schedule: Some(schedule),
            bins,
            error,
            name: self.name,
            ..FlowResult::default()
        }
    }

    /// Fills the batch with due packets, oldest first.
    fn fill_batch(&mut self, now: Instant) {
        self.stamped = now;
        while self.batch.has_room() {
            let count = self.departures.take(now, &mut self.in_batch);
            if count == 0 {
                return;
            }
            let packets = self.in_batch.range(self.in_batch.len() - count..);
            let mut datagram = self.batch.push(packets.clone().map(|packet| packet.bytes as usize).sum());
            for &ScheduledPacket { number, bytes, .. } in packets {
                let packet;
                (packet, datagram) = datagram.split_at_mut(bytes as usize);
                Header { flow: self.flow, number, time_ns: now.0 }.write(packet);
                if self.fill {
                    probe::fill(packet, self.flow, number);
                }
            }
        }
    }

    fn account(&mut self, datagrams: usize, at: Instant) {
        for _ in 0..datagrams * self.segments {
            // The last datagram of a flow may hold fewer packets.
            let Some(packet) = self.in_batch.pop_front() else { return };
            self.departures.record_sent(&packet, self.stamped, at);
        }
    }

    /// Discards the packets in the batch, unless the error is an ICMP error about an earlier packet.
    fn handle_send_error(&mut self, error: io::Error) {
        if error.kind() == ErrorKind::ConnectionRefused {
            self.port_unreachable += 1;
            return;
        }
        self.batch.skip(usize::MAX);
        self.failed_sends += self.in_batch.len() as u64;
        self.departures.take_back(&mut self.in_batch);
        self.send_error.get_or_insert(error);
    }

    /// Discards all unsent packets at the end of the flow. Those already due count as offered.
    fn discard_rest(&mut self, now: Instant) {
        self.batch.skip(usize::MAX);
        self.departures.take_back(&mut self.in_batch);
        self.departures.discard_rest(now);
    }
}

/// Returns whether the queue of the interface is full.
fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOBUFS)
}
