//! Session-sender of a flow.

use super::super::emissions::Emissions;
use super::super::error::FlowProblem;
use super::super::records::{FlowLedger, TimeHistogram};
use super::super::schedule::ScheduleStatistics;
use super::super::udp::Drops;
use super::prepare_socket;
use crate::stamp::{DelaySamples, MAX_PACKET_BYTES, StampSenderSession, StampSessionConfig, Timescale};
use netstage_agent_api::results::{BinCounts, Buckets, FlowResult};
use netstage_agent_api::task::FlowTask;
use netstage_core::measure::stamp::RejectReason;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_wire::stamp::{UNAUTHENTICATED, tlv};
use socket2::Socket;

/// Sender of a flow's packets, and receiver of the replies.
pub struct StampSender {
    name: String,
    session: StampSenderSession,
    /// Bytes of every packet and reply.
    bytes: u64,
    end: Instant,
    ledger: FlowLedger,
    punctuality: ScheduleStatistics,
    interval: Duration,
    /// Skipped packets that are in the statistics.
    counted_skips: u32,
    drops: Drops,
}

impl StampSender {
    /// Opens and binds the socket.
    pub fn prepare(
        task: &FlowTask,
        interval: Duration,
        mut emissions: Emissions,
        duration: Duration,
        ledger: FlowLedger,
    ) -> Result<StampSender, FlowProblem> {
        let bytes = emissions.largest_packet().ok_or(FlowProblem::NoRate("STAMP"))?;
        if interval == Duration::ZERO {
            return Err(FlowProblem::InvalidTask("the interval between STAMP packets is zero"));
        }
        let Some((start, _)) = emissions.next_emission() else {
            return Err(FlowProblem::InvalidTask("the flow ends before its first packet"));
        };
        let (stop, end) = (emissions.stop(), Instant(duration.0));
        let count = stop.since(start).0.div_ceil(interval.0);
        let sending = StampSessionConfig {
            source: Some(task.source),
            target: task.destination,
            key: None,
            timescale: Timescale::Wall,
            traffic_class: task.traffic_class,
            interval,
            count: u32::try_from(count)
                .map_err(|_| FlowProblem::InvalidTask("the flow has more than 2^32 packets"))?,
            // Replies after the end of the run are not received.
            timeout: end.since(stop).max(interval),
            session: task.id as u16,
            padding: padding(bytes)?,
            reflector_is_stateful: true,
        };
        let session = StampSenderSession::open(&sending, start)
            .map_err(|error| FlowProblem::binding(task.source, error))?;
        let drops = prepare_socket(session.socket(), task.destination.is_ipv6())?;
        let punctuality = ScheduleStatistics::new(interval);
        let name = task.name.clone();
        Ok(StampSender { name, session, bytes, end, ledger, punctuality, interval, counted_skips: 0, drops })
    }

    /// Returns the socket.
    pub fn socket(&self) -> &Socket {
        self.session.socket()
    }

    /// Returns the time at which a packet is due or a reply overdue.
    pub fn due(&self) -> Instant {
        self.session.poll_timeout().unwrap_or(Instant::NEVER)
    }

    /// Sends the packet that is due.
    pub fn handle_due(&mut self, epoch: Epoch) {
        // A reply that waits in the socket is not overdue.
        self.handle_ready(epoch);
        let departure = self.session.handle_timeout(epoch);
        self.count_skips(epoch.now(), departure.is_some());
        let Some(departure) = departure else { return };
        self.record_due(departure.due);
        if let Some(left) = departure.left {
            self.punctuality.record_held(departure.due, departure.stamped, left);
            self.punctuality.record_sent(departure.due, departure.stamped, self.bytes);
            let counts = self.ledger.at(departure.stamped);
            counts.sent += 1;
            counts.sent_bytes += self.bytes;
        }
    }

    /// Counts the packets skipped since the last call, before the one sent now.
    fn count_skips(&mut self, now: Instant, is_sent: bool) {
        let (skipped, last) = self.session.schedule();
        for back in (0..u64::from(skipped - self.counted_skips)).rev() {
            let due = Instant(last.0.saturating_sub((back + u64::from(is_sent)) * self.interval.0));
            self.punctuality.admit(due, now, 1);
            self.record_due(due);
        }
        self.counted_skips = skipped;
    }

    fn record_due(&mut self, due: Instant) {
        self.punctuality.record_due(due, self.bytes);
        self.ledger.at(due).offered_bytes += self.bytes;
    }

    /// Receives replies.
    pub fn handle_ready(&mut self, epoch: Epoch) {
        let (ledger, drops) = (&mut self.ledger, &mut self.drops);
        self.session.handle_ready(epoch, |received, sample| {
            drops.update(received.drops);
            let at = epoch.instant(received.monotonic_ns);
            match sample {
                // The packet arrived, but its delay is unknown.
                Ok(_) | Err(RejectReason::ReflectorClock) => ledger.receive(at, 1, received.length as u64),
                Err(RejectReason::NotOutstanding) => ledger.at(at).duplicated += 1,
                Err(_) => {}
            }
        });
    }

    /// Returns whether all packets are sent, and all replies received or overdue.
    pub fn done(&self, _now: Instant) -> bool {
        self.session.poll_timeout().is_none()
    }

    /// Returns the counts of a bin.
    pub fn counts(&mut self, bin: usize) -> BinCounts {
        *self.ledger.counts(bin)
    }

    /// Returns the result.
    pub fn finish(mut self, _now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        let name = self.name;
        if let Some(warning) = self.punctuality.warning() {
            warnings.push(format!("flow {name}: {warning}"));
        }
        let session = self.session.finish();
        if let Some(reason) = session.rejection.as_ref().filter(|_| session.counts.rejected > 0) {
            warnings
                .push(format!("flow {name}: {} replies were rejected: {reason}", session.counts.rejected));
        }
        // Reordering is known only for the whole session, so it counts in the last bin.
        self.ledger.at(self.end).reordered += u64::from(session.counts.reordered);
        let negative =
            [&session.forward, &session.backward].map(|delays| delays.iter().filter(|ns| *ns < 0).count());
        if negative.iter().sum::<usize>() > 0 {
            warnings.push(format!(
                "flow {name}: {} packets and {} answers have negative delays: a clock was set during the run, or the \
                 clocks of the hosts differ",
                negative[0], negative[1]
            ));
        }
        FlowResult {
            sends: true,
            round_trip: buckets(&session.round_trip),
            delay: buckets(&session.forward),
            answer_delay: buckets(&session.backward),
            gaps: self.punctuality.gaps(),
            schedule: Some(self.punctuality.schedule()),
            drained: self.ledger.drained(),
            bins: self.ledger.into_bins(),
            socket_drops: self.drops.finish(),
            error: session
                .failed_sends
                .map(|(count, error)| format!("{count} packets were not sent: {error}")),
            name,
            ..FlowResult::default()
        }
    }
}

/// Returns the extra padding of a packet of this many bytes, or `None` for the minimum size.
fn padding(bytes: u64) -> Result<Option<u16>, FlowProblem> {
    if bytes > MAX_PACKET_BYTES as u64 {
        return Err(FlowProblem::PacketSize { bytes, limit: MAX_PACKET_BYTES as u64 });
    }
    match bytes.checked_sub(UNAUTHENTICATED as u64) {
        Some(0) => Ok(None),
        Some(room) if room >= tlv::HEADER as u64 => Ok(Some((room - tlv::HEADER as u64) as u16)),
        _ => Err(FlowProblem::InvalidTask("a STAMP packet has 44 bytes, or at least 48")),
    }
}

fn buckets(delays: &DelaySamples) -> Buckets {
    let mut times = TimeHistogram::new();
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
