//! The receiver.

use super::super::error::Problem;
use super::super::frame::{LONGEST_DRAIN, QUIET};
use super::super::kernel::{RECEIVE_BATCH, ReceiveBatch};
use super::super::ledger::Ledger;
use super::super::travel::TravelTimes;
use super::overflow::Drops;
use super::{LARGEST, bound, date_arrivals};
use netstage_agent_api::results::{Counts, FlowResult, Travel};
use netstage_agent_api::task::{FlowTask, Transport, UdpOptions};
use netstage_core::measure::sequence::{Arrival, Sequence};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{ArrivalClock, Epoch};
use netstage_wire::probe::{self, Header};
use socket2::{SockAddr, Socket};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

/// Batches taken before other members have their turn.
const BATCHES_AT_ONCE: usize = 8;

/// Receives one flow's packets.
pub struct UdpReceiver {
    name: String,
    socket: Socket,
    flow: u32,
    compare: bool,
    start: Instant,
    stop: Instant,
    batch: ReceiveBatch,
    clock: ArrivalClock,
    tracker: Tracker,
    drops: Drops,
    foreign: u64,
}

impl UdpReceiver {
    /// Opens and binds the socket; from now on packets wait for the run.
    pub fn prepare(task: &FlowTask, duration: Duration, ledger: Ledger) -> Result<UdpReceiver, Problem> {
        let options = match &task.transport {
            Transport::Udp(options) => options.clone(),
            _ => UdpOptions::default(),
        };
        let compare = options.compare_payload || options.checksum_zero;
        let socket = match &task.transport {
            Transport::Multicast { source, receiver, .. } => {
                super::multicast::join(task.destination, *source, *receiver)?
            }
            _ => from_one_host(bound(task.destination, false)?, task.source.ip())?,
        };
        date_arrivals(&socket).map_err(Problem::system("asking for arrival times"))?;
        Ok(UdpReceiver {
            name: task.name.clone(),
            socket,
            flow: task.id,
            compare,
            start: Instant(task.start.0),
            stop: Instant(task.stop.0.min(duration.0)),
            batch: ReceiveBatch::new(if compare { LARGEST as usize } else { probe::HEADER }),
            clock: ArrivalClock::new(),
            tracker: Tracker::new(task, ledger),
            drops: Drops::watch(task.destination.is_ipv6()),
            foreign: 0,
        })
    }

    /// Its socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Called for readiness only.
    pub fn due(&self) -> Instant {
        Instant::NEVER
    }

    /// Takes what has come.
    pub fn handle_ready(&mut self, epoch: Epoch) {
        for _ in 0..BATCHES_AT_ONCE {
            // Errors are of packets this socket never sent.
            let Ok(count) = self.batch.receive(self.socket.as_fd()) else { return };
            self.clock.begin_batch();
            for datagram in self.batch.datagrams() {
                let at_ns = self.clock.at_ns(datagram.realtime_ns);
                self.drops.note(datagram.drops);
                let known = if self.compare {
                    probe::compare(datagram.bytes, self.flow, self.tracker.sequence.next())
                        .map(|found| (found.number, found.bit_errors))
                } else {
                    Header::read(datagram.bytes)
                        .filter(|header| header.flow == self.flow)
                        .map(|header| (header.number, 0))
                };
                let Some((number, bit_errors)) = known else {
                    self.foreign += 1;
                    continue;
                };
                let header = Header::read(datagram.bytes).filter(|_| bit_errors == 0);
                let sent_ns = header.map(|header| epoch.monotonic_ns(Instant(header.time_ns)));
                let packet = Packet { number, bytes: datagram.length as u64, at_ns, sent_ns, bit_errors };
                self.tracker.handle_packet(epoch, packet);
            }
            if count < RECEIVE_BATCH {
                return;
            }
        }
    }

    /// Whether the flow is over and nothing more has come for a while.
    pub fn done(&self, now: Instant) -> bool {
        now >= self.stop + LONGEST_DRAIN || now >= self.stop.max(self.tracker.last_arrival) + QUIET
    }

    /// Counts of a bin so far.
    pub fn counts(&mut self, bin: usize) -> Counts {
        *self.tracker.ledger.counts(bin)
    }

    /// A bin has ended.
    pub fn end_bin(&mut self) -> Travel {
        self.tracker.times.end_bin()
    }

    /// What was found.
    pub fn finish(self, now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        let (name, drops) = (&self.name, self.drops.finish());
        if self.foreign > 0 {
            warnings.push(format!("flow {name}: {} packets on its port were not its own", self.foreign));
        }
        if drops > 0 {
            warnings.push(format!(
                "flow {name}: {drops} packets reached the receiver, which did not read them in time: not lost on the path"
            ));
        }
        warnings.extend(self.clock.warning().map(|warning| format!("flow {name}: {warning}")));
        let silent = self.tracker.sequence.received() == 0 && now > self.start + QUIET;
        let mut result = self.tracker.finish(name, warnings);
        result.socket_drops = drops;
        result.error = silent.then(|| "nothing arrived".to_string());
        FlowResult { name: self.name, ..result }
    }
}

/// Has the kernel keep away what comes from other hosts. A port of zero leaves that of the
/// sender open.
fn from_one_host(socket: Socket, host: IpAddr) -> Result<Socket, Problem> {
    if !host.is_unspecified() {
        socket
            .connect(&SockAddr::from(SocketAddr::new(host, 0)))
            .map_err(Problem::system("finding a route to the sender"))?;
    }
    Ok(socket)
}

/// A packet of the flow.
pub(in super::super) struct Packet {
    pub number: u64,
    pub bytes: u64,
    /// When it arrived.
    pub at_ns: u64,
    /// When it was sent, on this host's clock, where its header can be trusted.
    pub sent_ns: Option<u64>,
    pub bit_errors: u64,
}

/// What becomes of a flow's packets, bin by bin.
pub(in super::super) struct Tracker {
    pub sequence: Sequence,
    pub ledger: Ledger,
    pub last_arrival: Instant,
    /// One way, or there and back.
    pub times: TravelTimes,
    /// The number expected when a bin began: tells in which bin a loss was seen.
    expected: Vec<(usize, u64)>,
    before_sent: u64,
    ancient: u64,
}

impl Tracker {
    pub fn new(task: &FlowTask, ledger: Ledger) -> Tracker {
        Tracker {
            sequence: Sequence::new(),
            ledger,
            last_arrival: Instant::ZERO,
            times: TravelTimes::new(Instant(task.settled.0), task.detail),
            expected: Vec::new(),
            before_sent: 0,
            ancient: 0,
        }
    }

    pub fn handle_packet(&mut self, epoch: Epoch, packet: Packet) {
        let at = epoch.instant(packet.at_ns);
        self.last_arrival = self.last_arrival.max(at);
        // Kernel times are converted anew for each batch and may step back a little: bins do not.
        let bin = self.ledger.bin(at).max(self.expected.last().map_or(0, |&(last, _)| last));
        if self.expected.last().is_none_or(|&(last, _)| bin > last) {
            self.expected.push((bin, self.sequence.next()));
        }
        let counts = self.ledger.counts(bin);
        match self.sequence.handle_packet(packet.number) {
            Arrival::Newest { missing } => counts.lost += missing,
            Arrival::Late => {
                counts.reordered += 1;
                let after = self.expected.partition_point(|&(_, expected)| expected <= packet.number);
                let seen_in = self.expected[after.saturating_sub(1)].0;
                self.ledger.counts(seen_in).lost -= 1;
            }
            Arrival::Duplicate => {
                counts.duplicated += 1;
                return;
            }
            Arrival::Ancient => {
                self.ancient += 1;
                return;
            }
        }
        let counts = self.ledger.counts(bin);
        counts.received += 1;
        counts.received_bytes += packet.bytes;
        counts.corrupted += u64::from(packet.bit_errors > 0);
        counts.bit_errors += packet.bit_errors;
        if let Some(sent_ns) = packet.sent_ns {
            self.before_sent += u64::from(packet.at_ns < sent_ns);
            self.times.record(at, packet.number, packet.at_ns.saturating_sub(sent_ns));
        }
    }

    /// The result, its travel times as one-way delay.
    pub fn finish(self, name: &str, warnings: &mut Vec<String>) -> FlowResult {
        if self.before_sent > 0 {
            warnings.push(format!(
                "flow {name}: {} packets seem to have arrived before they were sent: the clocks of the hosts differ",
                self.before_sent
            ));
        }
        if self.ancient > 0 {
            warnings.push(format!("flow {name}: {} packets came too late to be counted", self.ancient));
        }
        let (travel, variation, bins) = self.times.finish();
        FlowResult {
            bins: self.ledger.into_bins(),
            travel: bins,
            delay: travel.buckets(),
            delay_variation: variation.buckets(),
            ..FlowResult::default()
        }
    }
}
