//! Session-sender of a flow.

use super::super::emissions::Emissions;
use super::super::error::FlowProblem;
use super::super::records::FlowLedger;
use super::super::udp::Drops;
use super::prepare_socket;
use super::records::SenderRecords;
use crate::stamp::{MAX_PACKET_BYTES, StampSenderSession, StampSessionConfig, Timescale};
use netstage_agent_api::results::{BinCounts, FlowResult};
use netstage_agent_api::task::FlowTask;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_wire::stamp::{UNAUTHENTICATED, tlv};
use socket2::Socket;

/// Sender of a flow's packets, and receiver of the replies.
pub struct StampSender {
    name: String,
    session: StampSenderSession,
    end: Instant,
    records: SenderRecords,
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
        let records = SenderRecords::new(bytes, interval, ledger);
        Ok(StampSender { name: task.name.clone(), session, end, records, drops })
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
        self.records.record_departure(self.session.schedule(), departure, epoch.now());
    }

    /// Receives replies.
    pub fn handle_ready(&mut self, epoch: Epoch) {
        let (records, drops) = (&mut self.records, &mut self.drops);
        self.session.handle_ready(epoch, |received, sample| {
            drops.update(received.drops);
            records.record_reply(epoch.instant(received.monotonic_ns), received.length as u64, sample);
        });
    }

    /// Returns whether all packets are sent, and all replies received or overdue.
    pub fn done(&self, _now: Instant) -> bool {
        self.session.poll_timeout().is_none()
    }

    /// Returns the counts of a bin.
    pub fn counts(&mut self, bin: usize) -> BinCounts {
        self.records.counts(bin)
    }

    /// Returns the result.
    pub fn finish(self, _now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        let result = self.records.finish(self.name, &self.session.finish(), self.end, warnings);
        FlowResult { socket_drops: self.drops.finish(), ..result }
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
