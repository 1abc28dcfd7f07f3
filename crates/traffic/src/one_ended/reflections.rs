//! What takes the answers to probes.

use super::super::emissions::Emissions;
use super::super::frame::{LONGEST_DRAIN, QUIET};
use super::super::kernel::{RECEIVE_BATCH, ReceiveBatch, receive_refusal};
use super::super::ledger::Ledger;
use super::super::udp::{Packet, Tracker};
use super::{Form, echo};
use netstage_agent_api::results::{Buckets, Counts, FlowResult, Travel};
use netstage_agent_api::task::FlowTask;
use netstage_core::time::Instant;
use netstage_host::clock::{ArrivalClock, Epoch};
use netstage_wire::probe::{self, Header};
use socket2::Socket;
use std::os::fd::AsFd;

/// Room for an IP header, an echo header and the probe's own.
const KEPT: usize = 60 + echo::HEADER + probe::HEADER;
/// A whole packet: a raw socket's have yet to be checked, and the kernel's echo sockets do not
/// tell how long one was that they cut.
const WHOLE: usize = 65_535;
/// Answers taken before other members have their turn.
const ANSWERS_AT_ONCE: usize = 512;

/// Takes one flow's answers.
pub struct Reflections {
    socket: Socket,
    flow: u32,
    name: String,
    form: Form,
    stop: Instant,
    /// Payload of every probe, where all are alike: ICMP errors quote only part of it.
    size: Option<u64>,
    batch: ReceiveBatch,
    clock: ArrivalClock,
    tracker: Tracker,
    drops: u32,
    /// Other errors that hosts on the way reported.
    errors: u64,
    /// Answers that quote too little of the probe to tell which.
    anonymous: u64,
}

impl Reflections {
    /// Takes answers from the prober's socket.
    pub fn new(
        task: &FlowTask,
        emissions: &Emissions,
        socket: Socket,
        form: Form,
        ledger: Ledger,
    ) -> Reflections {
        Reflections {
            socket,
            flow: task.id,
            name: task.name.clone(),
            form,
            stop: emissions.stop(),
            size: emissions.largest_packet().filter(|_| emissions.has_one_size()),
            batch: ReceiveBatch::new(match form {
                Form::Echo { .. } => WHOLE,
                _ => KEPT,
            }),
            clock: ArrivalClock::new(),
            tracker: Tracker::new(task, ledger),
            drops: 0,
            errors: 0,
            anonymous: 0,
        }
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
        match self.form {
            Form::Datagram => self.take_refusals(epoch),
            Form::Echo { ipv6, raw } => self.take_replies(epoch, ipv6, raw),
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
        let name = &self.name;
        if self.errors > 0 {
            warnings.push(format!("flow {name}: {} other ICMP errors came", self.errors));
        }
        if self.anonymous > 0 {
            warnings.push(format!("flow {name}: {} answers quote too little of their probe", self.anonymous));
        }
        warnings.extend(self.clock.warning().map(|warning| format!("flow {name}: {warning}")));
        let silent = self.tracker.sequence.received() == 0 && now >= self.stop;
        let result = self.tracker.finish(name, warnings);
        FlowResult {
            sends: true,
            round_trip: result.delay,
            delay: Buckets::default(),
            socket_drops: self.drops.into(),
            error: silent.then(|| self.form.silence().to_string()),
            name: self.name,
            ..result
        }
    }

    fn take_replies(&mut self, epoch: Epoch, ipv6: bool, raw: Option<u16>) {
        for _ in 0..ANSWERS_AT_ONCE / RECEIVE_BATCH {
            let count = match self.batch.receive(self.socket.as_fd()) {
                Ok(count) => count,
                // Hosts on the way report that they cannot pass probes on.
                Err(_) => {
                    self.errors += 1;
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
                self.tracker.handle_packet(epoch, answer(epoch, header, bytes, at_ns));
            }
            if count < RECEIVE_BATCH {
                return;
            }
        }
    }

    fn take_refusals(&mut self, epoch: Epoch) {
        let mut payload = [0; 2048];
        for _ in 0..ANSWERS_AT_ONCE {
            let Ok(Some(refusal)) = receive_refusal(self.socket.as_fd(), &mut payload) else { break };
            if !refusal.port_unreachable {
                self.errors += 1;
                continue;
            }
            let quoted = &payload[..refusal.length];
            let Some(header) = Header::read(quoted).filter(|header| header.flow == self.flow) else {
                self.anonymous += 1;
                continue;
            };
            let bytes = self.size.unwrap_or(refusal.length as u64);
            self.clock.begin_batch();
            let at_ns = self.clock.at_ns(refusal.realtime_ns);
            self.tracker.handle_packet(epoch, answer(epoch, header, bytes, at_ns));
        }
        // The error also waits at the socket itself, which would stay ready.
        let _ = self.socket.take_error();
        // Somebody may listen there after all and answer.
        while self.batch.receive(self.socket.as_fd()).is_ok_and(|count| count > 0) {}
    }
}

impl Form {
    fn silence(self) -> &'static str {
        match self {
            Form::Datagram => {
                "no port-unreachable came: the port is open, a firewall is silent, or the host limits them"
            }
            Form::Echo { .. } => "no echo reply came",
        }
    }
}

fn answer(epoch: Epoch, header: Header, bytes: u64, at_ns: u64) -> Packet {
    let sent_ns = Some(epoch.monotonic_ns(Instant(header.time_ns)));
    Packet { number: header.number, bytes, at_ns, sent_ns, bit_errors: 0 }
}
