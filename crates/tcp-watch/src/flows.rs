//! Converts the kernel's records to events of flows: the cause of each window reduction, including changes
//! without a tracepoint. Only differences between records are evaluated here; the caller supplies the records.
//!
//! A reduction with its own congestion state (a loss, a mark, a full queue of the host) is reported
//! immediately. An undo, a restart after idling and the decay of an unused window are detected at the next ACK.

use super::record::{RecordKind, TcpRecord};
use super::symbols::Function;
use netstage_core::tcp::LimitDetector;
use netstage_core::tcp::event::{CongestionState, FlowEvent, FlowEventKind, FlowSnapshot, WindowChangeCause};
use netstage_core::time::Instant;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Maximum number of segments in a buffer of the kernel: 64 KiB of the smallest segments.
const MAX_SEGMENTS: u64 = 128;
/// Congestion window of BBR while it measures the round trip, in segments.
const PROBE_WINDOW: u64 = 4;

/// Connection as seen from one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WatchedFlow {
    /// Number of the flow in order of discovery.
    #[serde(rename = "flow")]
    pub id: usize,
    /// The kernel's cookie of the socket.
    #[serde(skip)]
    pub cookie: u64,
    /// Inode of the network namespace.
    pub namespace: u32,
    /// Local address.
    pub local: SocketAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
}

/// All connections that were observed.
#[derive(Clone, Debug)]
pub struct Flows {
    start_ns: u64,
    flows: Vec<WatchedFlow>,
    /// Open connections by cookie.
    open: BTreeMap<u64, FlowTracker>,
}

#[derive(Clone, Copy, Debug)]
struct FlowTracker {
    id: usize,
    last: TcpRecord,
    /// Window in force after `last`; leaving recovery sets it only after the record.
    cwnd: u64,
    /// State after `last`.
    state: CongestionState,
    limited: LimitDetector,
}

impl Flows {
    /// Starts without flows; event times are relative to `start_ns` (CLOCK_MONOTONIC).
    pub fn new(start_ns: u64) -> Flows {
        Flows { start_ns, flows: Vec::new(), open: BTreeMap::new() }
    }

    /// Returns all observed flows, indexed by number.
    pub fn all(&self) -> &[WatchedFlow] {
        &self.flows
    }

    /// Evaluates a record and the origin of its congestion state change; passes each event to `report`.
    pub fn handle(
        &mut self,
        record: &TcpRecord,
        origin: ChangeOrigin,
        report: &mut impl FnMut(&WatchedFlow, &FlowEvent),
    ) {
        let time = Instant(record.time_ns.saturating_sub(self.start_ns));
        if record.kind == RecordKind::Closed {
            if let Some(tracked) = self.open.remove(&record.cookie) {
                let event = FlowEvent { time, kind: FlowEventKind::Ended, snapshot: record.snapshot };
                report(&self.flows[tracked.id], &event);
            }
            return;
        }
        let is_new = !self.open.contains_key(&record.cookie);
        if is_new {
            let id = self.flows.len();
            self.flows.push(WatchedFlow {
                id,
                cookie: record.cookie,
                namespace: record.namespace,
                local: record.local,
                remote: record.remote,
            });
            self.open.insert(record.cookie, FlowTracker::new(id, record));
        }
        let tracked = self.open.get_mut(&record.cookie).expect("the flow was inserted above");
        let flow = &self.flows[tracked.id];
        let snapshot = FlowSnapshot { state: tracked.state_after(record), ..record.snapshot };
        let mut report = |kind| report(flow, &FlowEvent { time, kind, snapshot });
        if is_new {
            report(FlowEventKind::Began);
        }
        if let Some(cause) = tracked.change_between(record) {
            report(FlowEventKind::Window(cause));
        }
        match record.kind {
            RecordKind::Acknowledged => {
                if let Some(cause) = tracked.limited.observe(&record.snapshot) {
                    report(FlowEventKind::Window(cause));
                }
                report(FlowEventKind::Acknowledged);
            }
            RecordKind::Retransmitted => {
                // The kernel retransmits buffers, each of one or more segments.
                let total = record.snapshot.retransmissions;
                let segments =
                    total.saturating_sub(tracked.last.snapshot.retransmissions).clamp(1, MAX_SEGMENTS);
                (0..segments).for_each(|_| report(FlowEventKind::Retransmitted));
            }
            RecordKind::Congestion { to } => {
                if let Some(cause) = tracked.reduction(record, to, origin) {
                    report(FlowEventKind::Window(cause));
                }
                if to == CongestionState::Open && record.snapshot.state > CongestionState::Disorder {
                    report(FlowEventKind::Recovered);
                }
            }
            RecordKind::Established | RecordKind::Closed => {}
        }
        tracked.remember(record);
    }
}

/// Origin of a congestion state change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeOrigin {
    /// Unknown, because the kernel does not disclose the addresses of its functions.
    Unknown,
    /// Difference between two polls.
    Polled {
        /// Set if ECN marks were echoed between the polls.
        is_marked: bool,
    },
    /// Innermost known function of the call stack, if any.
    CallStack(Option<Function>),
}

impl FlowTracker {
    fn new(id: usize, record: &TcpRecord) -> FlowTracker {
        let snapshot = &record.snapshot;
        FlowTracker {
            id,
            last: *record,
            cwnd: snapshot.cwnd,
            state: snapshot.state,
            limited: LimitDetector::default(),
        }
    }

    fn state_after(&self, record: &TcpRecord) -> CongestionState {
        match record.kind {
            RecordKind::Congestion { to } => to,
            _ => record.snapshot.state,
        }
    }

    fn remember(&mut self, record: &TcpRecord) {
        self.state = self.state_after(record);
        self.cwnd = record.snapshot.cwnd;
        let leaves_recovery = record.kind == RecordKind::Congestion { to: CongestionState::Open };
        if let Some(threshold) = record.snapshot.ssthresh.filter(|_| leaves_recovery) {
            self.cwnd = self.cwnd.min(threshold);
        }
        self.last = *record;
    }

    /// Returns the cause of entering a congestion state, or `None` if the window is not reduced.
    fn reduction(
        &self,
        record: &TcpRecord,
        to: CongestionState,
        origin: ChangeOrigin,
    ) -> Option<WindowChangeCause> {
        if origin == ChangeOrigin::CallStack(Some(Function::PathMtu)) {
            return Some(WindowChangeCause::PathMtu);
        }
        match to {
            CongestionState::Open | CongestionState::Disorder => None,
            // A loss detected during a reduction is part of it.
            CongestionState::Recovery => (record.snapshot.state != CongestionState::Reducing)
                .then_some(WindowChangeCause::FastRetransmit),
            CongestionState::Loss => Some(WindowChangeCause::Timeout),
            CongestionState::Reducing => Some(match origin {
                ChangeOrigin::CallStack(Some(Function::Transmit)) => WindowChangeCause::LocalDevice,
                ChangeOrigin::CallStack(Some(Function::ProcessProbeAck)) => WindowChangeCause::TailLossProbe,
                ChangeOrigin::CallStack(Some(Function::TryToOpen)) => WindowChangeCause::Ecn,
                // The preceding ACK is the one being processed, if one caused the change.
                _ if self.last.is_probing && !record.is_probing => WindowChangeCause::TailLossProbe,
                ChangeOrigin::Polled { is_marked: true } => WindowChangeCause::Ecn,
                ChangeOrigin::Polled { is_marked: false } => WindowChangeCause::LocalDevice,
                _ if self.last.kind == RecordKind::Acknowledged
                    && record.time_ns.saturating_sub(self.last.time_ns) < 100_000 =>
                {
                    WindowChangeCause::Ecn
                }
                _ => WindowChangeCause::LocalDevice,
            }),
        }
    }

    /// Returns the cause of a window change since the previous record that has no congestion state of its own.
    fn change_between(&self, record: &TcpRecord) -> Option<WindowChangeCause> {
        let (last, snapshot) = (&self.last, &record.snapshot);
        if snapshot.model_based {
            let probes = |record: &TcpRecord| {
                record.snapshot.cwnd <= PROBE_WINDOW * u64::from(record.snapshot.segment)
            };
            let begins = self.state <= CongestionState::Disorder && probes(record) && !probes(last);
            return begins.then_some(WindowChangeCause::ProbeRoundTrip);
        }
        // A reduction discards the previous undo state, and so does the end of retransmission, but only an undo
        // restores the threshold. If the threshold is at its minimum already, an undo shows in the window
        // instead: within an ACK, which grows the window only after the state change.
        let reduces = matches!(record.kind, RecordKind::Congestion { to } if to > CongestionState::Disorder);
        let unlimited = |threshold: Option<u64>| threshold.unwrap_or(u64::MAX);
        let within_ack = last.kind == RecordKind::Acknowledged
            && matches!(record.kind, RecordKind::Congestion { to } if to <= CongestionState::Disorder);
        let is_raised = unlimited(snapshot.ssthresh) > unlimited(last.snapshot.ssthresh)
            || within_ack && snapshot.cwnd > last.snapshot.cwnd;
        if last.may_undo && !record.may_undo && !reduces && is_raised {
            return Some(WindowChangeCause::Undo);
        }
        let is_calm = self.state <= CongestionState::Disorder && snapshot.state <= CongestionState::Disorder;
        let is_timeout = record.kind == RecordKind::Congestion { to: CongestionState::Loss };
        let changed = record.cwnd_changed != last.cwnd_changed;
        if snapshot.cwnd >= self.cwnd || !changed || !is_calm || is_timeout {
            return None;
        }
        if snapshot.segment != last.snapshot.segment {
            return None;
        }
        let idle = record.cwnd_changed.wrapping_sub(last.last_sent) as i32;
        let timeout = last.timeout.min(record.timeout) as i32;
        // A sender that waits for the acknowledgment of a lost tail is not idle.
        let was_acknowledged =
            snapshot.acknowledged >= last.snapshot.acknowledged + last.snapshot.outstanding;
        Some(if idle > timeout && was_acknowledged {
            WindowChangeCause::IdleRestart
        } else {
            WindowChangeCause::ApplicationLimited
        })
    }
}

#[cfg(test)]
mod tests;
