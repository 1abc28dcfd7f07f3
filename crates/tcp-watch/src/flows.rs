//! Converts the kernel's records to events of flows: the cause of each window reduction, including changes
//! without a tracepoint. Only differences between records are evaluated here; the caller supplies the records.
//!
//! A reduction with its own congestion state (a loss, a mark, a full queue of the host) is reported
//! immediately. An undo, a restart after idling and the decay of an unused window are detected at the next ACK.

use super::record::{Happened, Record};
use super::symbols::Function;
use netstage_core::tcp::Limited;
use netstage_core::tcp::event::{Cause, FlowEvent, Kind, Snapshot, State};
use netstage_core::time::Instant;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Connection as seen from one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Flow {
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
    flows: Vec<Flow>,
    /// Open connections by cookie.
    open: BTreeMap<u64, Tracked>,
}

#[derive(Clone, Copy, Debug)]
struct Tracked {
    id: usize,
    last: Record,
    /// Window in force after `last`; leaving recovery sets it only after the record.
    cwnd: u64,
    /// State after `last`.
    state: State,
    limited: Limited,
}

impl Flows {
    /// Starts without flows; event times are relative to `start_ns` (CLOCK_MONOTONIC).
    pub fn new(start_ns: u64) -> Flows {
        Flows { start_ns, flows: Vec::new(), open: BTreeMap::new() }
    }

    /// Returns all observed flows, indexed by number.
    pub fn all(&self) -> &[Flow] {
        &self.flows
    }

    /// Evaluates a record and the origin of its congestion state change; passes each event to `report`.
    pub fn handle(&mut self, record: &Record, origin: Told, report: &mut impl FnMut(&Flow, &FlowEvent)) {
        let time = Instant(record.time_ns.saturating_sub(self.start_ns));
        if record.happened == Happened::Closed {
            if let Some(tracked) = self.open.remove(&record.cookie) {
                let event = FlowEvent { time, kind: Kind::Ended, snapshot: record.snapshot };
                report(&self.flows[tracked.id], &event);
            }
            return;
        }
        let is_new = !self.open.contains_key(&record.cookie);
        if is_new {
            let id = self.flows.len();
            self.flows.push(Flow {
                id,
                cookie: record.cookie,
                namespace: record.namespace,
                local: record.local,
                remote: record.remote,
            });
            self.open.insert(record.cookie, Tracked::new(id, record));
        }
        let tracked = self.open.get_mut(&record.cookie).expect("the flow was inserted above");
        let flow = &self.flows[tracked.id];
        let snapshot = Snapshot { state: tracked.state_after(record), ..record.snapshot };
        let mut report = |kind| report(flow, &FlowEvent { time, kind, snapshot });
        if is_new {
            report(Kind::Began);
        }
        if let Some(cause) = tracked.change_between(record) {
            report(Kind::Window(cause));
        }
        match record.happened {
            Happened::Acknowledged => {
                if let Some(cause) = tracked.limited.observe(&record.snapshot) {
                    report(Kind::Window(cause));
                }
                report(Kind::Acknowledged);
            }
            Happened::Retransmitted => report(Kind::Retransmitted),
            Happened::Congestion { to } => {
                if let Some(cause) = tracked.reduction(record, to, origin) {
                    report(Kind::Window(cause));
                }
                if to == State::Open && record.snapshot.state > State::Disorder {
                    report(Kind::Recovered);
                }
            }
            Happened::Established | Happened::Closed => {}
        }
        tracked.remember(record);
    }
}

/// Origin of a congestion state change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Unknown, because the kernel does not disclose the addresses of its functions.
    Unknown,
    /// Difference between two polls.
    Polled {
        /// Set if ECN marks were echoed between the polls.
        is_marked: bool,
    },
    /// Innermost known function of the call stack, if any.
    By(Option<Function>),
}

impl Tracked {
    fn new(id: usize, record: &Record) -> Tracked {
        let snapshot = &record.snapshot;
        Tracked { id, last: *record, cwnd: snapshot.cwnd, state: snapshot.state, limited: Limited::default() }
    }

    fn state_after(&self, record: &Record) -> State {
        match record.happened {
            Happened::Congestion { to } => to,
            _ => record.snapshot.state,
        }
    }

    fn remember(&mut self, record: &Record) {
        self.state = self.state_after(record);
        self.cwnd = record.snapshot.cwnd;
        let leaves_recovery = record.happened == Happened::Congestion { to: State::Open };
        if let Some(threshold) = record.snapshot.ssthresh.filter(|_| leaves_recovery) {
            self.cwnd = self.cwnd.min(threshold);
        }
        self.last = *record;
    }

    /// Returns the cause of entering a congestion state, or `None` if the window is not reduced.
    fn reduction(&self, record: &Record, to: State, origin: Told) -> Option<Cause> {
        if origin == Told::By(Some(Function::PathMtu)) {
            return None;
        }
        match to {
            State::Open | State::Disorder => None,
            // A loss detected during a reduction is part of it.
            State::Recovery => (record.snapshot.state != State::Reducing).then_some(Cause::FastRetransmit),
            State::Loss => Some(Cause::Timeout),
            State::Reducing => Some(match origin {
                Told::By(Some(Function::Transmit)) => Cause::LocalDevice,
                Told::By(Some(Function::ProcessProbeAck)) => Cause::TailLossProbe,
                Told::By(Some(Function::TryToOpen)) => Cause::Ecn,
                // The preceding ACK is the one being processed, if one caused the change.
                _ if self.last.is_probing && !record.is_probing => Cause::TailLossProbe,
                Told::Polled { is_marked: true } => Cause::Ecn,
                Told::Polled { is_marked: false } => Cause::LocalDevice,
                _ if self.last.happened == Happened::Acknowledged
                    && record.time_ns.saturating_sub(self.last.time_ns) < 100_000 =>
                {
                    Cause::Ecn
                }
                _ => Cause::LocalDevice,
            }),
        }
    }

    /// Returns the cause of a window change since the previous record that has no congestion state of its own.
    fn change_between(&self, record: &Record) -> Option<Cause> {
        let (last, snapshot) = (&self.last, &record.snapshot);
        if record.is_modelled {
            return None;
        }
        // A reduction discards the previous undo state, and so does the end of retransmission, but only an undo
        // restores the threshold. If the threshold is at its minimum already, an undo shows in the window
        // instead: within an ACK, which grows the window only after the state change.
        let reduces = matches!(record.happened, Happened::Congestion { to } if to > State::Disorder);
        let unlimited = |threshold: Option<u64>| threshold.unwrap_or(u64::MAX);
        let within_ack = last.happened == Happened::Acknowledged
            && matches!(record.happened, Happened::Congestion { to } if to <= State::Disorder);
        let is_raised = unlimited(snapshot.ssthresh) > unlimited(last.snapshot.ssthresh)
            || within_ack && snapshot.cwnd > last.snapshot.cwnd;
        if last.may_undo && !record.may_undo && !reduces && is_raised {
            return Some(Cause::Undo);
        }
        let is_calm = self.state <= State::Disorder && snapshot.state <= State::Disorder;
        let is_timeout = record.happened == Happened::Congestion { to: State::Loss };
        let changed = record.cwnd_changed != last.cwnd_changed;
        if snapshot.cwnd >= self.cwnd || !changed || !is_calm || is_timeout {
            return None;
        }
        if snapshot.segment != last.snapshot.segment {
            return None;
        }
        let idle = record.cwnd_changed.wrapping_sub(last.last_sent) as i32;
        let timeout = last.timeout.min(record.timeout) as i32;
        Some(if idle > timeout { Cause::IdleRestart } else { Cause::ApplicationLimited })
    }
}

#[cfg(test)]
mod tests;
