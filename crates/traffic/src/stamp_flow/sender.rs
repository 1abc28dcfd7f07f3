//! The session-sender: sends on time, and takes the answers.

use super::super::emissions::Emissions;
use super::super::error::Problem;
use super::super::ledger::{Ledger, Times};
use super::super::schedule::Punctuality;
use super::super::udp::Drops;
use super::watch;
use crate::stamp::{Delays, LARGEST, Sending, Session, Timescale};
use netstage_agent_api::results::{Buckets, Counts, FlowResult};
use netstage_agent_api::task::FlowTask;
use netstage_core::measure::stamp::Rejected;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_wire::stamp::{UNAUTHENTICATED, tlv};
use socket2::Socket;

/// Sends one flow's packets, and learns from the answers.
pub struct StampSender {
    name: String,
    session: Session,
    /// Bytes of every packet, and of every answer.
    bytes: u64,
    end: Instant,
    ledger: Ledger,
    punctuality: Punctuality,
    drops: Drops,
}

impl StampSender {
    /// Opens and binds the socket.
    pub fn prepare(
        task: &FlowTask,
        interval: Duration,
        mut emissions: Emissions,
        duration: Duration,
        ledger: Ledger,
    ) -> Result<StampSender, Problem> {
        let bytes = emissions.largest_packet().ok_or(Problem::NoRate("STAMP"))?;
        if interval == Duration::ZERO {
            return Err(Problem::Refused("its packets would follow each other in no time"));
        }
        let Some((start, _)) = emissions.next() else {
            return Err(Problem::Refused("it ends before its first packet"));
        };
        let (stop, end) = (emissions.stop(), Instant(duration.0));
        let count = stop.since(start).0.div_ceil(interval.0);
        let sending = Sending {
            source: Some(task.source),
            target: task.destination,
            key: None,
            timescale: Timescale::Wall,
            traffic_class: task.traffic_class,
            interval,
            count: u32::try_from(count).map_err(|_| Problem::Refused("it has more than 2^32 packets"))?,
            // Nobody listens after the end of the run.
            timeout: end.since(stop).max(interval),
            session: task.id as u16,
            padding: padding(bytes)?,
            reflector_is_stateful: true,
        };
        let session = Session::open(&sending, start).map_err(|error| Problem::binding(task.source, error))?;
        let drops = watch(session.socket(), task.destination.is_ipv6())?;
        let punctuality = Punctuality::new();
        Ok(StampSender { name: task.name.clone(), session, bytes, end, ledger, punctuality, drops })
    }

    /// Its socket.
    pub fn socket(&self) -> &Socket {
        self.session.socket()
    }

    /// When a packet is due, or an answer overdue.
    pub fn due(&self) -> Instant {
        self.session.poll_timeout().unwrap_or(Instant::NEVER)
    }

    /// Sends what is due.
    pub fn handle_due(&mut self, epoch: Epoch) {
        // An answer that waits to be read is not overdue.
        self.handle_ready(epoch);
        let Some(departure) = self.session.handle_timeout(epoch) else { return };
        self.punctuality.ask(departure.due, self.bytes);
        self.ledger.at(departure.due).offered_bytes += self.bytes;
        if let Some(left) = departure.left {
            self.punctuality.send(departure.due, left, self.bytes);
            let counts = self.ledger.at(left);
            counts.sent += 1;
            counts.sent_bytes += self.bytes;
        }
    }

    /// Takes what has come.
    pub fn handle_ready(&mut self, epoch: Epoch) {
        let (ledger, drops) = (&mut self.ledger, &mut self.drops);
        self.session.handle_ready(epoch, |received, taken| {
            drops.note(received.drops);
            let counts = ledger.at(epoch.instant(received.monotonic_ns));
            match taken {
                Ok(_) => {
                    counts.received += 1;
                    counts.received_bytes += received.length as u64;
                }
                Err(Rejected::NotOutstanding) => counts.duplicated += 1,
                Err(_) => {}
            }
        });
    }

    /// Whether all is sent, and answered or given up.
    pub fn done(&self, _now: Instant) -> bool {
        self.session.poll_timeout().is_none()
    }

    /// Counts of a bin so far.
    pub fn counts(&mut self, bin: usize) -> Counts {
        *self.ledger.counts(bin)
    }

    /// What was found.
    pub fn finish(mut self, _now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        let name = self.name;
        if let Some(warning) = self.punctuality.warning() {
            warnings.push(format!("flow {name}: {warning}"));
        }
        let found = self.session.finish();
        // Only the session as a whole tells, so it is told at the end.
        self.ledger.at(self.end).reordered += u64::from(found.counts.reordered);
        let early =
            [&found.forward, &found.backward].map(|delays| delays.iter().filter(|ns| *ns < 0).count());
        if early.iter().sum::<usize>() > 0 {
            warnings.push(format!(
                "flow {name}: {} packets and {} answers seem to have arrived before they were sent: the clock was set, \
                 or those of the hosts differ",
                early[0], early[1]
            ));
        }
        FlowResult {
            sends: true,
            round_trip: buckets(&found.round_trip),
            delay: buckets(&found.forward),
            answer_delay: buckets(&found.backward),
            gaps: self.punctuality.gaps(),
            schedule: Some(self.punctuality.schedule()),
            bins: self.ledger.into_bins(),
            socket_drops: self.drops.finish(),
            error: found.refused.map(|(count, why)| format!("{count} packets were not sent: {why}")),
            name,
            ..FlowResult::default()
        }
    }
}

/// Extra padding that makes a packet of so many bytes; none for one as it is.
fn padding(bytes: u64) -> Result<Option<u16>, Problem> {
    if bytes > LARGEST as u64 {
        return Err(Problem::PacketSize { bytes, limit: LARGEST as u64 });
    }
    match bytes.checked_sub(UNAUTHENTICATED as u64) {
        Some(0) => Ok(None),
        Some(room) if room >= tlv::HEADER as u64 => Ok(Some((room - tlv::HEADER as u64) as u16)),
        _ => Err(Problem::Refused("a STAMP packet has 44 bytes, or 48 and more")),
    }
}

fn buckets(delays: &Delays) -> Buckets {
    let mut times = Times::new();
    delays.iter().for_each(|ns| times.record(u64::try_from(ns).unwrap_or(0)));
    times.buckets()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_padded_to_their_size() {
        for (bytes, expected) in [(44, Some(None)), (46, None), (48, Some(Some(0))), (1000, Some(Some(952)))]
        {
            assert_eq!(padding(bytes).ok(), expected, "{bytes}");
        }
        assert!(padding(43).is_err() && padding(10_000).is_err());
    }
}
