//! UDP receiver.

use super::super::error::FlowProblem;
use super::super::kernel::{RECEIVE_BATCH, ReceiveBatch};
use super::super::records::FlowLedger;
use super::super::run_context::{MAX_DRAIN, QUIET_TIME};
use super::super::travel::TravelTimes;
use super::overflow::Drops;
use super::{MAX_UDP_PAYLOAD, bound, enable_arrival_timestamps};
use netstage_agent_api::results::{BinCounts, FlowResult, Travel};
use netstage_agent_api::task::{FlowTask, TaskTransport, UdpOptions};
use netstage_core::measure::ArrivalWindow;
use netstage_core::measure::sequence::{Sequence, SequenceArrival};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{ArrivalClock, Epoch};
use netstage_wire::probe::{self, Header};
use netstage_wire::stun;
use socket2::{SockAddr, Socket};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

/// Maximum number of batches received before other members are called.
const MAX_BATCHES: usize = 8;

/// Receiver of one flow's packets.
pub struct UdpReceiver {
    name: String,
    socket: Socket,
    flow: u32,
    compare: bool,
    start: Instant,
    stop: Instant,
    batch: ReceiveBatch,
    clock: ArrivalClock,
    tracker: PacketTracker,
    drops: Drops,
    foreign: u64,
}

impl UdpReceiver {
    /// Opens and binds the socket. Packets that arrive before the run wait in it.
    pub fn prepare(
        task: &FlowTask,
        duration: Duration,
        ledger: FlowLedger,
    ) -> Result<UdpReceiver, FlowProblem> {
        let options = match &task.transport {
            TaskTransport::Udp(options) => options.clone(),
            _ => UdpOptions::default(),
        };
        let compare = options.compare_payload || options.checksum_zero;
        let socket = match &task.transport {
            TaskTransport::Multicast { source, receiver, .. } => {
                super::multicast::join(task.destination, *source, *receiver)?
            }
            _ => only_from_host(bound(task.destination, false)?, task.seen_from().ip())?,
        };
        enable_arrival_timestamps(&socket).map_err(FlowProblem::system("enabling arrival timestamps"))?;
        Ok(UdpReceiver {
            name: task.name.clone(),
            socket,
            flow: task.id,
            compare,
            start: Instant(task.start.0),
            stop: Instant(task.stop.0.min(duration.0)),
            batch: ReceiveBatch::new(if compare { MAX_UDP_PAYLOAD as usize } else { probe::HEADER }),
            clock: ArrivalClock::new(),
            tracker: PacketTracker::new(task, ledger),
            drops: Drops::start(task.destination.is_ipv6()),
            foreign: 0,
        })
    }

    /// Returns the socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns [`Instant::NEVER`], because only the socket's readiness causes calls.
    pub fn due(&self) -> Instant {
        Instant::NEVER
    }

    /// Receives packets.
    pub fn handle_ready(&mut self, epoch: Epoch) {
        for _ in 0..MAX_BATCHES {
            // Pending errors concern sent packets, and this socket sends none.
            let Ok(count) = self.batch.receive(self.socket.as_fd()) else { return };
            self.clock.begin_batch();
            for datagram in self.batch.datagrams() {
                let at_ns = self.clock.at_ns(datagram.realtime_ns);
                self.drops.update(datagram.drops);
                let probe = if self.compare {
                    probe::compare(datagram.bytes, self.flow, self.tracker.sequence.next())
                        .map(|probe| (probe.number, probe.bit_errors))
                } else {
                    Header::read(datagram.bytes)
                        .filter(|header| header.flow == self.flow)
                        .map(|header| (header.number, 0))
                };
                let Some((number, bit_errors)) = probe else {
                    // Keep-alives of the sender are no packets of the flow.
                    self.foreign += u64::from(!stun::is_message(datagram.bytes));
                    continue;
                };
                let header = Header::read(datagram.bytes).filter(|_| bit_errors == 0);
                let sent_ns = header.map(|header| epoch.monotonic_ns(Instant(header.time_ns)));
                let packet = FlowPacket { number, bytes: datagram.length as u64, at_ns, sent_ns, bit_errors };
                self.tracker.handle_packet(epoch, packet);
            }
            if count < RECEIVE_BATCH {
                return;
            }
        }
    }

    /// Returns whether the flow is over and no packet has arrived for some time.
    pub fn done(&self, now: Instant) -> bool {
        now >= self.stop + MAX_DRAIN || now >= self.tracker.quiet_from(self.stop)
    }

    /// Returns the counts of a bin.
    pub fn counts(&mut self, bin: usize) -> BinCounts {
        *self.tracker.ledger.counts(bin)
    }

    /// Ends a bin and returns its travel times.
    pub fn end_bin(&mut self) -> Travel {
        self.tracker.times.end_bin()
    }

    /// Returns the result.
    pub fn finish(self, now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        let (name, drops) = (&self.name, self.drops.finish());
        if self.foreign > 0 {
            warnings.push(format!("flow {name}: {} packets on its port were not its own", self.foreign));
        }
        if drops > 0 {
            warnings.push(format!(
                "flow {name}: {drops} packets arrived but were dropped by a full socket buffer; they were not lost on the path"
            ));
        }
        warnings.extend(self.clock.warning().map(|warning| format!("flow {name}: {warning}")));
        let is_silent = self.tracker.sequence.received() == 0 && now > self.start + QUIET_TIME;
        let mut result = self.tracker.finish(name, warnings);
        result.socket_drops = drops;
        result.error = is_silent.then(|| "nothing arrived".to_string());
        FlowResult { name: self.name, ..result }
    }
}

/// Restricts a socket to packets from one host, if specified. The port 0 accepts any port of the sender.
fn only_from_host(socket: Socket, host: IpAddr) -> Result<Socket, FlowProblem> {
    if !host.is_unspecified() {
        socket
            .connect(&SockAddr::from(SocketAddr::new(host, 0)))
            .map_err(FlowProblem::system("finding a route to the sender"))?;
    }
    Ok(socket)
}

/// Received packet of a flow.
pub struct FlowPacket {
    /// Sequence number.
    pub number: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Arrival time.
    pub at_ns: u64,
    /// Transmission time by the local clock, if the header is intact.
    pub sent_ns: Option<u64>,
    /// Wrong bits in the payload.
    pub bit_errors: u64,
}

/// Counts of a flow's received, lost, duplicated and reordered packets by bin.
pub struct PacketTracker {
    pub(in super::super) sequence: Sequence,
    pub(in super::super) ledger: FlowLedger,
    last_arrival: Instant,
    longest_gap: Duration,
    pub(in super::super) times: TravelTimes,
    /// Sequence number expected at the beginning of each bin, by which a late packet's loss is found and removed.
    expected: Vec<(usize, u64)>,
    /// Arrivals within the time of sending.
    window: ArrivalWindow,
    /// Packets that arrived before their transmission time.
    negative_delays: u64,
    ancient: u64,
}

impl PacketTracker {
    /// Creates empty counts of a flow.
    pub fn new(task: &FlowTask, ledger: FlowLedger) -> PacketTracker {
        PacketTracker {
            sequence: Sequence::new(),
            ledger,
            last_arrival: Instant::ZERO,
            longest_gap: Duration::ZERO,
            times: TravelTimes::new(Instant(task.settled.0), task.detail),
            expected: Vec::new(),
            window: ArrivalWindow::new(Duration(task.stop.0.saturating_sub(task.start.0))),
            negative_delays: 0,
            ancient: 0,
        }
    }

    /// Returns the time from which no further packet is expected of a flow that stops at a time. Packets that arrive
    /// seldom may be on their way for longer.
    pub(in super::super) fn quiet_from(&self, stop: Instant) -> Instant {
        stop.max(self.last_arrival) + QUIET_TIME.max(self.longest_gap * 2)
    }

    /// Counts a packet. Returns whether it is the first with its number.
    pub fn handle_packet(&mut self, epoch: Epoch, packet: FlowPacket) -> bool {
        let at = epoch.instant(packet.at_ns);
        if self.last_arrival > Instant::ZERO {
            self.longest_gap = self.longest_gap.max(at.since(self.last_arrival));
        }
        self.last_arrival = self.last_arrival.max(at);
        // Timestamps are converted separately for each batch and may step back slightly, but bins must not.
        let bin = self.ledger.bin(at).max(self.expected.last().map_or(0, |&(last, _)| last));
        if self.expected.last().is_none_or(|&(last, _)| bin > last) {
            self.expected.push((bin, self.sequence.next()));
        }
        let counts = self.ledger.counts(bin);
        match self.sequence.handle_packet(packet.number) {
            SequenceArrival::Newest { missing } => counts.lost += missing,
            SequenceArrival::Late => {
                counts.reordered += 1;
                let after = self.expected.partition_point(|&(_, expected)| expected <= packet.number);
                let loss_bin = self.expected[after.saturating_sub(1)].0;
                self.ledger.counts(loss_bin).lost -= 1;
            }
            SequenceArrival::Duplicate => {
                counts.duplicated += 1;
                return false;
            }
            SequenceArrival::TooOld => {
                self.ancient += 1;
                return false;
            }
        }
        let counts = self.ledger.counts(bin);
        counts.corrupted += u64::from(packet.bit_errors > 0);
        counts.bit_errors += packet.bit_errors;
        self.ledger.receive_in(bin, at, 1, packet.bytes);
        self.window.record(at);
        if let Some(sent_ns) = packet.sent_ns {
            self.negative_delays += u64::from(packet.at_ns < sent_ns);
            self.times.record(at, packet.number, packet.at_ns.saturating_sub(sent_ns));
        }
        true
    }

    /// Returns the result, with the travel times as one-way delays.
    pub fn finish(self, name: &str, warnings: &mut Vec<String>) -> FlowResult {
        if self.negative_delays > 0 {
            warnings.push(format!(
                "flow {name}: {} packets have negative delays: the clocks of the hosts differ",
                self.negative_delays
            ));
        }
        if self.ancient > 0 {
            warnings.push(format!("flow {name}: {} packets arrived too late to be counted", self.ancient));
        }
        let (travel, variation, bins) = self.times.finish();
        FlowResult {
            drained: self.ledger.drained(),
            arrivals: Some(self.window.arrivals()),
            bins: self.ledger.into_bins(),
            travel: bins,
            delay: (&travel).into(),
            delay_variation: (&variation).into(),
            ..FlowResult::default()
        }
    }
}
