//! Receiver of the answers to one-ended probes.

use super::super::emissions::Emissions;
use super::super::kernel::{RECEIVE_BATCH, ReceiveBatch, receive_icmp_error};
use super::super::records::FlowLedger;
use super::super::run_context::MAX_DRAIN;
use super::super::udp::{FlowPacket, PacketTracker};
use super::{ProbeFormat, SharedBackoff, echo, lock};
use netstage_agent_api::results::{BinCounts, Buckets, FlowResult, LoweredProbes, Travel};
use netstage_agent_api::task::FlowTask;
use netstage_core::time::Instant;
use netstage_host::clock::{ArrivalClock, Epoch};
use netstage_wire::probe::{self, Header};
use socket2::Socket;
use std::os::fd::AsFd;

/// Length of the largest IP header, an echo header and the header of a probe.
const HEADERS: usize = 60 + echo::HEADER + probe::HEADER;
/// Length of the largest packet. Answers on raw sockets must be checked completely, and echo sockets do not report the
/// length of truncated answers.
const LARGEST_ANSWER: usize = 65_535;
/// Maximum number of answers handled before other members are called.
const ANSWERS_PER_CALL: usize = 512;

/// Receiver of the answers to one flow.
pub struct Reflections {
    socket: Socket,
    flow: u32,
    name: String,
    form: ProbeFormat,
    stop: Instant,
    /// Payload bytes of every probe, if all have one size. ICMP errors quote only part of the probe.
    size: Option<u64>,
    batch: ReceiveBatch,
    clock: ArrivalClock,
    tracker: PacketTracker,
    backoff: SharedBackoff,
    drops: u32,
    /// Number of other ICMP errors.
    other_errors: u64,
    /// Number of answers that quote too little to identify the probe.
    unidentified: u64,
}

impl Reflections {
    /// Creates the receiver on the prober's socket.
    pub fn new(
        task: &FlowTask,
        emissions: &Emissions,
        socket: Socket,
        form: ProbeFormat,
        backoff: SharedBackoff,
        ledger: FlowLedger,
    ) -> Reflections {
        Reflections {
            socket,
            flow: task.id,
            name: task.name.clone(),
            form,
            stop: emissions.stop(),
            size: emissions.largest_packet().filter(|_| emissions.has_one_size()),
            batch: ReceiveBatch::new(match form {
                ProbeFormat::Echo { .. } => LARGEST_ANSWER,
                _ => HEADERS,
            }),
            clock: ArrivalClock::new(),
            tracker: PacketTracker::new(task, ledger),
            backoff,
            drops: 0,
            other_errors: 0,
            unidentified: 0,
        }
    }

    /// Returns the socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns [`Instant::NEVER`], because only the socket's readiness causes calls.
    pub fn due(&self) -> Instant {
        Instant::NEVER
    }

    /// Receives answers.
    pub fn handle_ready(&mut self, epoch: Epoch) {
        match self.form {
            ProbeFormat::Datagram => self.receive_icmp_errors(epoch),
            ProbeFormat::Echo { ipv6, raw } => self.receive_replies(epoch, ipv6, raw),
        }
    }

    /// Returns whether the flow is over and no answer has arrived for some time.
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
        let name = &self.name;
        if self.other_errors > 0 {
            warnings.push(format!("flow {name}: received {} other ICMP errors", self.other_errors));
        }
        if self.unidentified > 0 {
            warnings.push(format!(
                "flow {name}: {} answers quote too little to identify their probe",
                self.unidentified
            ));
        }
        warnings.extend(self.clock.warning().map(|warning| format!("flow {name}: {warning}")));
        let is_silent = self.tracker.sequence.received() == 0 && now >= self.stop;
        let result = self.tracker.finish(name, warnings);
        let backoff = lock(&self.backoff);
        let limit = backoff.limit();
        // A sender that keeps its rate records no probes.
        let lowered = backoff.lowered().filter(|lowered| lowered.first > 0).map(|lowered| LoweredProbes {
            from_ns: lowered.from.0,
            rate: lowered.rate,
            sent: lowered.sent,
            answered: lowered.answered,
        });
        warnings.extend(limit.map(|limit| {
            let then = match lowered {
                Some(lowered) => format!(
                    "from {:.1} s on, {:.1} probes/s were sent, and {} of {} were lost",
                    lowered.from_ns as f64 / 1e9,
                    lowered.rate,
                    lowered.lost(),
                    lowered.sent
                ),
                None => "probe at a lower rate".into(),
            };
            format!(
                "flow {name}: the host answers at most {limit:.1} probes/s (missing answers are regular, and the others not delayed), so the loss is unknown; {then}"
            )
        }));
        FlowResult {
            sends: true,
            answer_limit: limit,
            lowered,
            round_trip: result.delay,
            delay: Buckets::default(),
            socket_drops: self.drops.into(),
            error: is_silent.then(|| self.form.silence().to_string()),
            name: self.name,
            ..result
        }
    }

    fn receive_replies(&mut self, epoch: Epoch, ipv6: bool, raw: Option<u16>) {
        for _ in 0..ANSWERS_PER_CALL / RECEIVE_BATCH {
            let count = match self.batch.receive(self.socket.as_fd()) {
                Ok(count) => count,
                // Router on the path that cannot forward a probe.
                Err(_) => {
                    self.other_errors += 1;
                    continue;
                }
            };
            self.clock.begin_batch();
            for datagram in self.batch.datagrams() {
                self.drops = datagram.drops.unwrap_or(self.drops);
                let Some(data) = echo::reply_data(datagram.bytes, ipv6, raw) else { continue };
                let overhead = datagram.bytes.len() - data.len();
                let Some(header) = Header::read(data).filter(|header| header.flow == self.flow) else {
                    continue;
                };
                let bytes = (datagram.length - overhead) as u64;
                let at_ns = self.clock.at_ns(datagram.realtime_ns);
                record(&mut self.tracker, &self.backoff, epoch, answer(epoch, header, bytes, at_ns));
            }
            if count < RECEIVE_BATCH {
                return;
            }
        }
    }

    fn receive_icmp_errors(&mut self, epoch: Epoch) {
        let mut payload = [0; 2048];
        for _ in 0..ANSWERS_PER_CALL {
            let Ok(Some(icmp_error)) = receive_icmp_error(self.socket.as_fd(), &mut payload) else { break };
            if !icmp_error.port_unreachable {
                self.other_errors += 1;
                continue;
            }
            let quoted = &payload[..icmp_error.length];
            let Some(header) = Header::read(quoted).filter(|header| header.flow == self.flow) else {
                self.unidentified += 1;
                continue;
            };
            let bytes = self.size.unwrap_or(icmp_error.length as u64);
            self.clock.begin_batch();
            let at_ns = self.clock.at_ns(icmp_error.realtime_ns);
            record(&mut self.tracker, &self.backoff, epoch, answer(epoch, header, bytes, at_ns));
        }
        // The socket also has the error pending, and would otherwise stay ready.
        let _ = self.socket.take_error();
        // The port may be open after all; discard its answers.
        while self.batch.receive(self.socket.as_fd()).is_ok_and(|count| count > 0) {}
    }
}

impl ProbeFormat {
    fn silence(self) -> &'static str {
        match self {
            ProbeFormat::Datagram => {
                "no port-unreachable received: the port is open, a firewall drops the probes, or the host limits ICMP errors"
            }
            ProbeFormat::Echo { .. } => "no echo reply received",
        }
    }
}

fn answer(epoch: Epoch, header: Header, bytes: u64, at_ns: u64) -> FlowPacket {
    let sent_ns = Some(epoch.monotonic_ns(Instant(header.time_ns)));
    FlowPacket { number: header.number, bytes, at_ns, sent_ns, bit_errors: 0 }
}

fn record(tracker: &mut PacketTracker, backoff: &SharedBackoff, epoch: Epoch, packet: FlowPacket) {
    let (number, at) = (packet.number, epoch.instant(packet.at_ns));
    let sent = epoch.instant(packet.sent_ns.unwrap_or(packet.at_ns));
    if tracker.handle_packet(epoch, packet) {
        lock(backoff).record_answer(number, sent, at);
    }
}
