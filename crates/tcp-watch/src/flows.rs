//! From the kernel's records to events of flows: why a window fell, and what the kernel has no tracepoint
//! for. Only differences between records are looked at here; who hands them in, and from where, is the
//! caller's.
//!
//! A reduction that enters a state of its own (a loss, a mark, a full queue of the host) is told when that
//! happens. An undo, a restart after idling and the decay of what an application does not use are seen at the
//! next ACK.

use super::record::{Happened, Record};
use super::symbols::Function;
use netstage_core::tcp::Limited;
use netstage_core::tcp::event::{Cause, FlowEvent, Kind, Snapshot, State};
use netstage_core::time::Instant;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A connection, seen from one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Flow {
    /// Its number among those seen.
    #[serde(rename = "flow")]
    pub id: usize,
    /// The kernel's number of the socket.
    #[serde(skip)]
    pub cookie: u64,
    /// Inode of its network namespace.
    pub namespace: u32,
    /// Its own address.
    pub local: SocketAddr,
    /// Its peer's.
    pub remote: SocketAddr,
}

/// All connections that were seen.
#[derive(Clone, Debug)]
pub struct Flows {
    start_ns: u64,
    flows: Vec<Flow>,
    /// By cookie, those under way.
    open: BTreeMap<u64, Tracked>,
}

#[derive(Clone, Copy, Debug)]
struct Tracked {
    id: usize,
    last: Record,
    /// The window that was in force when `last` was told: leaving a recovery sets it right after.
    cwnd: u64,
    /// The state after `last`.
    state: State,
    limited: Limited,
}

impl Flows {
    /// None yet; times count from here (CLOCK_MONOTONIC).
    pub fn new(start_ns: u64) -> Flows {
        Flows { start_ns, flows: Vec::new(), open: BTreeMap::new() }
    }

    /// All that were seen, by their numbers.
    pub fn all(&self) -> &[Flow] {
        &self.flows
    }

    /// Takes a record, and from where congestion control was told; `tell` is told each event.
    pub fn handle(&mut self, record: &Record, told_by: Told, tell: &mut impl FnMut(&Flow, &FlowEvent)) {
        let time = Instant(record.time_ns.saturating_sub(self.start_ns));
        if record.happened == Happened::Closed {
            if let Some(tracked) = self.open.remove(&record.cookie) {
                let event = FlowEvent { time, kind: Kind::Ended, snapshot: record.snapshot };
                tell(&self.flows[tracked.id], &event);
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
        let tracked = self.open.get_mut(&record.cookie).expect("it is there now");
        let flow = &self.flows[tracked.id];
        let snapshot = Snapshot { state: tracked.state_after(record), ..record.snapshot };
        let mut tell = |kind| tell(flow, &FlowEvent { time, kind, snapshot });
        if is_new {
            tell(Kind::Began);
        }
        if let Some(cause) = tracked.change_between(record) {
            tell(Kind::Window(cause));
        }
        match record.happened {
            Happened::Acknowledged => {
                if let Some(cause) = tracked.limited.observe(&record.snapshot) {
                    tell(Kind::Window(cause));
                }
                tell(Kind::Acknowledged);
            }
            Happened::Retransmitted => tell(Kind::Retransmitted),
            Happened::Congestion { to } => {
                if let Some(cause) = tracked.reduction(record, to, told_by) {
                    tell(Kind::Window(cause));
                }
                if to == State::Open && record.snapshot.state > State::Disorder {
                    tell(Kind::Recovered);
                }
            }
            Happened::Established | Happened::Closed => {}
        }
        tracked.remember(record);
    }
}

/// From where congestion control was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The kernel does not tell where its functions are.
    Unknown,
    /// It was found changed between two looks.
    Polled {
        /// Marks were echoed in between.
        is_marked: bool,
    },
    /// By this function, if any that is known.
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

    /// The cause for which congestion control enters a state; none where the window does not fall for it.
    fn reduction(&self, record: &Record, to: State, told: Told) -> Option<Cause> {
        if told == Told::By(Some(Function::PathMtu)) {
            return None;
        }
        match to {
            State::Open | State::Disorder => None,
            // A loss found while the window falls already is part of that reduction.
            State::Recovery => (record.snapshot.state != State::Reducing).then_some(Cause::FastRetransmit),
            State::Loss => Some(Cause::Timeout),
            State::Reducing => Some(match told {
                Told::By(Some(Function::Transmit)) => Cause::LocalDevice,
                Told::By(Some(Function::ProcessProbeAck)) => Cause::TailLossProbe,
                Told::By(Some(Function::TryToOpen)) => Cause::Ecn,
                // The ACK before this is the one that is being looked at, if it came by one.
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

    /// What changed the window since the record before without a state of its own.
    fn change_between(&self, record: &Record) -> Option<Cause> {
        let (last, snapshot) = (&self.last, &record.snapshot);
        if record.is_modelled {
            return None;
        }
        // A reduction that begins forgets the one before. So does a connection that has nothing more to send again,
        // but only an undo raises the threshold to what it was; or else the window, where the threshold is as low as it
        // can be: within an ACK, which grows the window only after its state has changed.
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
