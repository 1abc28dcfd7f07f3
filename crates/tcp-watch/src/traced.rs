//! Flows as the kernel's tracing tells of them, for kernels that take no programs: the same tracepoints, with less
//! beside each event. What that lacks, and which connections are meant, its list of sockets tells
//! ([`super::polling`]), some 20 times a second.

use super::filter::{Filter, Process};
use super::flows::Told;
use super::polling::{EVERY, Polling, closed, turns};
use super::record::{Happened, NO_THRESHOLD, Record};
use super::trace::{self, Lines, Standing, What};
use super::tracefs::Instance;
use netstage_core::tcp::event::{Snapshot, State};
use netstage_core::time::Duration;
use netstage_host::netns::Namespace;
use netstage_host::obstacle::Obstacle;
use std::collections::BTreeMap;
use std::net::SocketAddr;

const TURNS: &str = "tcp/tcp_cong_state_set";
/// The tracepoints, and what is not told without each.
const TRACEPOINTS: [(&str, &str); 4] = [
    ("tcp/tcp_probe", "how flows stand at each ACK"),
    (TURNS, "reductions as they happen: they are what two looks suggest"),
    ("tcp/tcp_retransmit_skb", "single retransmissions"),
    ("sock/inet_sock_set_state", "the moment at which flows end"),
];

/// The kernel's tracing, running.
pub struct Traced {
    polling: Polling,
    instance: Instance,
    lines: Lines,
    has_turns: bool,
    /// By the addresses of both ends.
    known: BTreeMap<(SocketAddr, SocketAddr), Known>,
    missing: Vec<String>,
}

/// A connection that is meant.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// How it stood last, in the state it is in.
    record: Record,
    /// As it was listed last.
    listed: Record,
    /// The number of its first byte that was not acknowledged, when that was last told.
    unacknowledged: Option<u32>,
    /// It is out of the state in which an undo would show, but no ACK has told of that yet.
    is_back: bool,
}

impl Traced {
    /// Begins to trace. Connections are looked for in some namespaces.
    pub fn open(filter: Filter, namespaces: &[Namespace]) -> Result<Traced, Obstacle> {
        filter.check()?;
        let instance = Instance::new()?;
        let ports: Vec<String> =
            filter.ports.iter().map(|port| format!("sport == {port} || dport == {port}")).collect();
        let condition = (!ports.is_empty()).then(|| ports.join(" || "));
        let mut missing: Vec<String> = Vec::new();
        let mut has_turns = true;
        for (tracepoint, tells) in TRACEPOINTS {
            if let Err(error) = instance.enable(tracepoint, condition.as_deref()) {
                missing.push(format!("{tracepoint}, which tells {tells}: {error}"));
                has_turns &= tracepoint != TURNS;
            }
        }
        if missing.len() == TRACEPOINTS.len() {
            return Err(Obstacle {
                message: format!("the kernel's tracing has no events of TCP: {}", missing.join("; ")),
                remedy: "a kernel with CONFIG_EVENT_TRACING, 4.16 or newer".into(),
                is_missing: true,
            });
        }
        let stacks = if has_turns { instance.tell_stacks(TURNS) } else { Ok(()) };
        if let Err(error) = &stacks {
            missing.push(format!(
                "stacks, which tell local devices, ECN and tail-loss probes apart for certain: {error}"
            ));
        }
        let looks = 1_000 / EVERY.as_millis();
        missing.push(format!(
            "by tracing: what is unsent, in flight beside SACK, pacing and delivery rates at more than {looks} looks a second, \
             what a flow does before its first look, and connections of network namespaces that are not looked at"
        ));
        let lines = Lines::new(has_turns && stacks.is_ok());
        let polling = Polling::new(filter, namespaces)?;
        Ok(Traced { polling, instance, lines, has_turns, known: BTreeMap::new(), missing })
    }

    /// What cannot be told here, and why.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Events for which there was no room.
    pub fn lost(&self) -> u64 {
        self.lines.lost
    }

    /// Looks which sockets processes have now; yields the processes of which there is none.
    pub fn refresh(&mut self) -> Vec<Process> {
        self.polling.refresh()
    }

    /// Takes what has come, in the order of time.
    pub fn poll(&mut self, mut take: impl FnMut(&Record, Told)) -> Result<(), Obstacle> {
        let Traced { instance, lines, known, .. } = self;
        let failed = |error| Obstacle::system("the kernel's tracing cannot be read", &error);
        instance.read(|bytes| lines.take(bytes)).map_err(failed)?;
        while let Some((event, function)) = lines.next() {
            let key = (event.local, event.remote);
            let Some(flow) = known.get_mut(&key) else { continue };
            let told = function.map_or(Told::Unknown, Told::By);
            if let Some(record) = flow.happened(&event) {
                take(&record, told);
            }
            if event.what == What::Closed {
                known.remove(&key);
            }
        }
        if let Some(present) = self.polling.look()? {
            self.compare(present, &mut take);
        }
        Ok(())
    }

    /// Connections that came and went, and what events do not tell.
    fn compare(&mut self, present: BTreeMap<u64, Record>, take: &mut impl FnMut(&Record, Told)) {
        self.known.retain(|_, flow| {
            let is_there = present.contains_key(&flow.record.cookie);
            if !is_there {
                take(&closed(&flow.record), Told::Unknown);
            }
            is_there
        });
        for listed in present.into_values() {
            let key = (listed.local, listed.remote);
            match self.known.get_mut(&key) {
                Some(flow) => {
                    if !self.has_turns {
                        turns(&flow.listed, &listed, take);
                    }
                    flow.looked_at(listed, self.has_turns);
                }
                None => {
                    take(&Record { happened: Happened::Established, ..listed }, Told::Unknown);
                    self.known.insert(key, Known::new(listed));
                }
            }
        }
    }
}

impl Known {
    fn new(listed: Record) -> Known {
        Known { record: listed, listed, unacknowledged: None, is_back: false }
    }

    /// What it stands at now, where events tell nothing.
    fn looked_at(&mut self, listed: Record, has_turns: bool) {
        let Snapshot { state, unsent, min_round_trip, pacing_rate, delivery_rate, segment, .. } =
            listed.snapshot;
        let snapshot = &mut self.record.snapshot;
        let retransmissions = snapshot.retransmissions.max(listed.snapshot.retransmissions);
        *snapshot = Snapshot {
            unsent,
            min_round_trip,
            pacing_rate,
            delivery_rate,
            segment,
            retransmissions,
            state: if has_turns { snapshot.state } else { state },
            ..*snapshot
        };
        (self.record.timeout, self.record.marks) = (listed.timeout, listed.marks);
        self.listed = listed;
    }

    /// The record of an event; none where a segment came to a host that has nothing to send.
    fn happened(&mut self, event: &trace::Traced) -> Option<Record> {
        let now_ms = (event.time_ns / 1_000_000) as u32;
        self.record.time_ns = event.time_ns;
        let before = self.record.snapshot.state;
        self.record.happened = match event.what {
            What::Acknowledged(standing) => {
                if !self.stands(&standing, now_ms) {
                    return None;
                }
                Happened::Acknowledged
            }
            What::Retransmitted => {
                self.record.snapshot.retransmissions += 1;
                Happened::Retransmitted
            }
            What::Congestion(to) => {
                // Leaving a reduction is told before what it sets: the next ACK shows whether it was taken back.
                self.is_back = before > State::Disorder && to <= State::Disorder;
                self.record.may_undo |= to > State::Disorder;
                Happened::Congestion { to }
            }
            What::Established => return None,
            What::Closed => Happened::Closed,
        };
        let record = self.record;
        if let What::Congestion(to) = event.what {
            self.record.snapshot.state = to;
        }
        Some(record)
    }

    /// Takes how it stood at an ACK; whether it had anything under way or to send.
    fn stands(&mut self, standing: &Standing, now_ms: u32) -> bool {
        let Record { snapshot, .. } = &mut self.record;
        let segment = u64::from(snapshot.segment);
        let acknowledged =
            standing.unacknowledged.wrapping_sub(self.unacknowledged.unwrap_or(standing.unacknowledged));
        self.unacknowledged = Some(standing.unacknowledged);
        // An older one, of another processor, acknowledges nothing more.
        if acknowledged < 1 << 31 {
            snapshot.acknowledged += u64::from(acknowledged);
        }
        let outstanding = u64::from(standing.next.wrapping_sub(standing.unacknowledged));
        if outstanding == 0 && snapshot.unsent == 0 {
            return false;
        }
        let cwnd = u64::from(standing.cwnd) * segment;
        // What was received out of order or lost is no longer in flight, as far as a look told.
        let gone = match snapshot.state {
            State::Open => 0,
            _ => self.listed.snapshot.outstanding.saturating_sub(self.listed.snapshot.in_flight),
        };
        let fell = cwnd < snapshot.cwnd;
        *snapshot = Snapshot {
            cwnd,
            ssthresh: (standing.ssthresh < NO_THRESHOLD).then(|| u64::from(standing.ssthresh) * segment),
            peer_window: standing.peer_window.into(),
            outstanding,
            in_flight: outstanding.saturating_sub(gone),
            smoothed_round_trip: Some(Duration::from_micros(standing.smoothed_round_trip_us.into())),
            ..*snapshot
        };
        if std::mem::take(&mut self.is_back) {
            self.record.may_undo = false;
        }
        // What is acknowledged now was sent a round trip ago, and the window set then where it fell in silence. More
        // may have been sent until now.
        if fell {
            self.record.cwnd_changed = now_ms.wrapping_sub(standing.smoothed_round_trip_us / 1_000);
        }
        self.record.last_sent = now_ms;
        true
    }
}
