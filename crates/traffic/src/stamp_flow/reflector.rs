//! Session-reflector of a flow.

use super::super::error::FlowProblem;
use super::super::records::FlowLedger;
use super::super::run_context::QUIET_TIME;
use super::super::udp::Drops;
use super::prepare_socket;
use super::records::ReflectorRecords;
use crate::stamp::{Reflector, Timescale};
use netstage_agent_api::results::{BinCounts, FlowResult};
use netstage_agent_api::task::FlowTask;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_wire::stamp::{Mode, SenderPacket};
use socket2::Socket;

/// Reflector of a flow's packets. It answers duplicates, but counts each packet once.
pub struct StampReflector {
    name: String,
    reflector: Reflector,
    /// Session identifier of the flow.
    session: u16,
    start: Instant,
    end: Instant,
    foreign: u64,
    records: ReflectorRecords,
    drops: Drops,
}

impl StampReflector {
    /// Opens and binds the socket. Packets that arrive before the run wait in it.
    pub fn prepare(
        task: &FlowTask,
        interval: Duration,
        duration: Duration,
        ledger: FlowLedger,
    ) -> Result<StampReflector, FlowProblem> {
        let reflector = Reflector::bind(task.destination, None, Timescale::Wall)
            .map_err(|error| FlowProblem::binding(task.destination, error))?;
        let drops = prepare_socket(reflector.socket(), task.destination.is_ipv6())?;
        Ok(StampReflector {
            name: task.name.clone(),
            reflector,
            session: task.id as u16,
            start: Instant(task.start.0),
            end: Instant(duration.0),
            foreign: 0,
            records: ReflectorRecords::new(interval, ledger),
            drops,
        })
    }

    /// Returns the socket.
    pub fn socket(&self) -> &Socket {
        self.reflector.socket()
    }

    /// Returns [`Instant::NEVER`], because only the socket's readiness causes calls.
    pub fn due(&self) -> Instant {
        Instant::NEVER
    }

    /// Answers the received packets.
    pub fn handle_ready(&mut self, epoch: Epoch) {
        let Self { reflector, session, foreign, records, drops, .. } = self;
        reflector.handle_ready(|received, packet, times| {
            drops.update(received.drops);
            let packet = SenderPacket::read(packet, Mode::Unauthenticated).ok();
            let Some(packet) = packet.filter(|packet| packet.session == *session) else {
                *foreign += 1;
                return;
            };
            let times = (epoch.instant(times.stamped), epoch.instant(times.left));
            let at = epoch.instant(received.monotonic_ns);
            records.record(packet.sequence.into(), received.length as u64, at, times);
        });
    }

    /// Returns whether the run is over; until then a packet may be in flight.
    pub fn done(&self, now: Instant) -> bool {
        now >= self.end
    }

    /// Returns the counts of a bin.
    pub fn counts(&mut self, bin: usize) -> BinCounts {
        self.records.counts(bin)
    }

    /// Returns the result.
    pub fn finish(self, now: Instant, warnings: &mut Vec<String>) -> FlowResult {
        if self.foreign > 0 {
            warnings
                .push(format!("flow {}: {} packets on its port were not its own", self.name, self.foreign));
        }
        let is_silent = self.records.received() == 0 && now > self.start + QUIET_TIME;
        FlowResult {
            socket_drops: self.drops.finish(),
            error: is_silent.then(|| "nothing arrived".to_string()),
            ..self.records.finish(self.name)
        }
    }
}
