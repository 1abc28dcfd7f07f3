//! Sender of one-ended probes.

use super::super::departures::Departures;
use super::super::emissions::Emissions;
use super::super::error::FlowProblem;
use super::super::records::FlowLedger;
use super::super::udp::MAX_UDP_PAYLOAD;
use super::{ProbeFormat, SharedBackoff, echo, is_answer, lock};
use netstage_agent_api::results::{BinCounts, FlowResult};
use netstage_agent_api::task::FlowTask;
use netstage_core::time::Instant;
use netstage_host::clock::Epoch;
use netstage_wire::probe::{self, Header};
use socket2::Socket;
use std::collections::VecDeque;
use std::io;

/// Sender of the probes of one flow.
pub struct Prober {
    name: String,
    socket: Socket,
    flow: u32,
    form: ProbeFormat,
    departures: Departures,
    /// Control of the rate; `None` to keep it.
    backoff: Option<SharedBackoff>,
    message: Vec<u8>,
    failed_sends: u64,
    send_error: Option<io::Error>,
}

impl Prober {
    /// Creates the sender on a connected socket.
    pub fn new(
        task: &FlowTask,
        socket: Socket,
        form: ProbeFormat,
        emissions: Emissions,
        backoff: Option<SharedBackoff>,
        ledger: FlowLedger,
    ) -> Result<Prober, FlowProblem> {
        let largest = emissions.largest_packet().ok_or(FlowProblem::NoRate("a one-ended transport"))?;
        if largest > MAX_UDP_PAYLOAD {
            return Err(FlowProblem::PacketSize { bytes: largest, limit: MAX_UDP_PAYLOAD });
        }
        Ok(Prober {
            name: task.name.clone(),
            socket,
            flow: task.id,
            form,
            departures: Departures::new(emissions, 1, probe::HEADER, ledger),
            backoff,
            message: vec![0; echo::HEADER + probe::HEADER.max(largest as usize)],
            failed_sends: 0,
            send_error: None,
        })
    }

    /// Returns the time of the next probe.
    pub fn due(&self) -> Instant {
        self.departures.due()
    }

    /// Sends the probes that are due.
    pub fn handle_due(&mut self, epoch: Epoch) {
        let now = epoch.now();
        let mut taken = VecDeque::new();
        self.back_off();
        while self.departures.take(now, &mut taken) > 0 {
            let (packet, at) = (taken[0], epoch.now());
            match self.send(packet.number, packet.bytes as usize, at.0) {
                Ok(_) => {
                    self.departures.record_sent(&packet, now, epoch.now());
                    taken.clear();
                    if let Some(backoff) = &self.backoff {
                        lock(backoff).record_sent(packet.number, at);
                    }
                    self.back_off();
                }
                Err(error) => {
                    self.departures.take_back(&mut taken);
                    self.failed_sends += 1;
                    self.send_error.get_or_insert(error);
                }
            }
        }
    }

    /// Leaves out the probes that would exceed the limit of the answers.
    fn back_off(&mut self) {
        if let Some(backoff) = &self.backoff {
            let not_before = lock(backoff).not_before();
            self.departures.withhold(not_before);
        }
    }

    /// Returns whether all probes have been sent.
    pub fn done(&self, _now: Instant) -> bool {
        self.departures.is_empty()
    }

    /// Returns the counts of a bin.
    pub fn counts(&mut self, bin: usize) -> BinCounts {
        self.departures.counts(bin)
    }

    /// Returns the result.
    pub fn finish(self, _now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        let (warning, schedule, gaps, bins) = self.departures.finish();
        warnings.extend(warning.map(|warning| format!("flow {}: {warning}", self.name)));
        FlowResult {
            name: self.name,
            sends: true,
            gaps,
            schedule: Some(schedule),
            bins,
            error: self
                .send_error
                .map(|error| format!("{} packets were not sent: {error}", self.failed_sends)),
            ..FlowResult::default()
        }
    }

    fn send(&mut self, number: u64, bytes: usize, time_ns: u64) -> io::Result<usize> {
        let (head, body) = self.message.split_at_mut(echo::HEADER);
        let body = &mut body[..bytes];
        Header { flow: self.flow, number, time_ns }.write(body);
        let message = match self.form {
            ProbeFormat::Datagram => body,
            ProbeFormat::Echo { ipv6, raw } => {
                let length = head.len() + bytes;
                let message = &mut self.message[..length];
                echo::write_request(message, ipv6, raw, number);
                message
            }
        };
        // An answer to an earlier probe may make a call fail once; the next call then sends the probe.
        for _ in 0..8 {
            match self.socket.send(message) {
                Err(error) if is_answer(&error) => {}
                other => return other,
            }
        }
        Err(io::ErrorKind::HostUnreachable.into())
    }
}
