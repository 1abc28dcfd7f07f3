//! What sends the probes.

use super::super::emissions::Emissions;
use super::super::error::Problem;
use super::super::ledger::Ledger;
use super::super::schedule::Punctuality;
use super::super::udp::LARGEST;
use super::{Form, echo, is_answer};
use netstage_agent_api::results::{Counts, FlowResult};
use netstage_agent_api::task::FlowTask;
use netstage_core::time::Instant;
use netstage_host::clock::Epoch;
use netstage_wire::probe::{self, Header};
use socket2::Socket;
use std::io;

/// Sends one flow's probes on time.
pub struct Prober {
    name: String,
    socket: Socket,
    flow: u32,
    form: Form,
    emissions: Emissions,
    upcoming: Option<(Instant, u64)>,
    message: Vec<u8>,
    number: u64,
    refused: u64,
    refusal: Option<io::Error>,
    ledger: Ledger,
    punctuality: Punctuality,
}

impl Prober {
    /// Sends by a connected socket.
    pub fn new(
        task: &FlowTask,
        socket: Socket,
        form: Form,
        mut emissions: Emissions,
        ledger: Ledger,
    ) -> Result<Prober, Problem> {
        let largest = emissions.largest_packet().ok_or(Problem::NoRate("a one-ended transport"))?;
        if largest > LARGEST {
            return Err(Problem::PacketSize { bytes: largest, limit: LARGEST });
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
            refused: 0,
            refusal: None,
            ledger,
            punctuality: Punctuality::new(),
        })
    }

    /// When the next probe is due.
    pub fn due(&self) -> Instant {
        self.upcoming.map_or(Instant::NEVER, |(due, _)| due)
    }

    /// Sends what is due.
    pub fn handle_due(&mut self, epoch: Epoch) {
        let now = epoch.now();
        let stopped = now >= self.emissions.stop();
        while let Some((due, bytes)) = self.upcoming.filter(|&(due, _)| due <= now) {
            self.upcoming = self.emissions.next();
            let bytes = bytes.max(probe::HEADER as u64);
            self.punctuality.ask(due, bytes);
            self.ledger.at(due).offered_bytes += bytes;
            if stopped {
                continue;
            }
            let at = epoch.now();
            match self.send(bytes as usize, at.0) {
                Ok(_) => {
                    self.punctuality.send(due, at, bytes);
                    let counts = self.ledger.at(at);
                    counts.sent += 1;
                    counts.sent_bytes += bytes;
                }
                Err(error) => {
                    self.refused += 1;
                    self.refusal.get_or_insert(error);
                }
            }
        }
    }

    /// Whether all has been sent.
    pub fn done(&self, _now: Instant) -> bool {
        self.upcoming.is_none()
    }

    /// Counts of a bin so far.
    pub fn counts(&mut self, bin: usize) -> Counts {
        *self.ledger.counts(bin)
    }

    /// What was found.
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
            error: self.refusal.map(|error| format!("{} packets were not sent: {error}", self.refused)),
            ..FlowResult::default()
        }
    }

    fn send(&mut self, bytes: usize, time_ns: u64) -> io::Result<usize> {
        let (head, body) = self.message.split_at_mut(echo::HEADER);
        let body = &mut body[..bytes];
        Header { flow: self.flow, number: self.number, time_ns }.write(body);
        let message = match self.form {
            Form::Datagram => body,
            Form::Echo { ipv6, raw } => {
                let length = head.len() + bytes;
                let message = &mut self.message[..length];
                echo::write_request(message, ipv6, raw, self.number);
                message
            }
        };
        // An answer to an earlier probe may make a call fail once; the probe is then sent by the next.
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
