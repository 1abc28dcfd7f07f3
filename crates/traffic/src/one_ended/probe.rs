//! Sender of one-ended probes.

use super::super::emissions::Emissions;
use super::super::error::FlowProblem;
use super::super::records::FlowLedger;
use super::super::schedule::ScheduleStatistics;
use super::super::udp::MAX_UDP_PAYLOAD;
use super::{ProbeFormat, echo, is_answer};
use netstage_agent_api::results::{BinCounts, FlowResult};
use netstage_agent_api::task::FlowTask;
use netstage_core::time::Instant;
use netstage_host::clock::Epoch;
use netstage_wire::probe::{self, Header};
use socket2::Socket;
use std::io;

/// Sender of the probes of one flow.
pub struct Prober {
    name: String,
    socket: Socket,
    flow: u32,
    form: ProbeFormat,
    emissions: Emissions,
    upcoming: Option<(Instant, u64)>,
    message: Vec<u8>,
    number: u64,
    failed_sends: u64,
    send_error: Option<io::Error>,
    ledger: FlowLedger,
    punctuality: ScheduleStatistics,
}

impl Prober {
    /// Creates the sender on a connected socket.
    pub fn new(
        task: &FlowTask,
        socket: Socket,
        form: ProbeFormat,
        mut emissions: Emissions,
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
            upcoming: emissions.next(),
            emissions,
            message: vec![0; echo::HEADER + probe::HEADER.max(largest as usize)],
            number: 0,
            failed_sends: 0,
            send_error: None,
            ledger,
            punctuality: ScheduleStatistics::new(),
        })
    }

    /// Returns the time of the next probe.
    pub fn due(&self) -> Instant {
        self.upcoming.map_or(Instant::NEVER, |(due, _)| due)
    }

    /// Sends the probes that are due.
    pub fn handle_due(&mut self, epoch: Epoch) {
        let now = epoch.now();
        let is_stopped = now >= self.emissions.stop();
        while let Some((due, bytes)) = self.upcoming.filter(|&(due, _)| due <= now) {
            self.upcoming = self.emissions.next();
            let bytes = bytes.max(probe::HEADER as u64);
            self.punctuality.record_due(due, bytes);
            self.ledger.at(due).offered_bytes += bytes;
            if is_stopped {
                continue;
            }
            let at = epoch.now();
            match self.send(bytes as usize, at.0) {
                Ok(_) => {
                    self.punctuality.record_sent(due, at, bytes);
                    let counts = self.ledger.at(at);
                    counts.sent += 1;
                    counts.sent_bytes += bytes;
                }
                Err(error) => {
                    self.failed_sends += 1;
                    self.send_error.get_or_insert(error);
                }
            }
        }
    }

    /// Returns whether all probes have been sent.
    pub fn done(&self, _now: Instant) -> bool {
        self.upcoming.is_none()
    }

    /// Returns the counts of a bin.
    pub fn counts(&mut self, bin: usize) -> BinCounts {
        *self.ledger.counts(bin)
    }

    /// Returns the result.
    pub fn finish(self, _now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        if let Some(warning) = self.punctuality.warning() {
            warnings.push(format!("flow {}: {warning}", self.name));
        }
        FlowResult {
            name: self.name,
            sends: true,
            gaps: self.punctuality.gaps(),
            schedule: Some(self.punctuality.schedule()),
            bins: self.ledger.into_bins(),
            error: self
                .send_error
                .map(|error| format!("{} packets were not sent: {error}", self.failed_sends)),
            ..FlowResult::default()
        }
    }

    fn send(&mut self, bytes: usize, time_ns: u64) -> io::Result<usize> {
        let (head, body) = self.message.split_at_mut(echo::HEADER);
        let body = &mut body[..bytes];
        Header { flow: self.flow, number: self.number, time_ns }.write(body);
        let message = match self.form {
            ProbeFormat::Datagram => body,
            ProbeFormat::Echo { ipv6, raw } => {
                let length = head.len() + bytes;
                let message = &mut self.message[..length];
                echo::write_request(message, ipv6, raw, self.number);
                message
            }
        };
        // An answer to an earlier probe may make a call fail once; the next call then sends the probe.
        for _ in 0..8 {
            match self.socket.send(message) {
                Err(error) if is_answer(&error) => {}
                other => {
                    self.number += u64::from(other.is_ok());
                    return other;
                }
            }
        }
        Err(io::ErrorKind::HostUnreachable.into())
    }
}
