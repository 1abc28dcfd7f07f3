//! Flows from the kernel's tracing, for kernels that reject BPF programs: the same tracepoints with fewer
//! values per event. The missing values and the filtering of connections come from polling
//! ([`super::polling`]), about 20 times a second.

use super::filter::{Filter, ProcessFilter};
use super::flows::ChangeOrigin;
use super::polling::{POLL_INTERVAL, Polling, closed, report_state_changes};
use super::record::{NO_THRESHOLD, RecordKind, TcpRecord};
use super::trace_parser::{self, Lines, ProbeValues, TraceEventKind};
use super::tracefs::Instance;
use netstage_core::tcp::event::{CongestionState, FlowSnapshot};
use netstage_core::time::Duration;
use netstage_host::netns::Namespace;
use netstage_host::startup_error::StartupError;
use std::collections::BTreeMap;
use std::net::SocketAddr;

const STATE_CHANGE: &str = "tcp/tcp_cong_state_set";
/// Tracepoints, and the information that is missing without each.
const TRACEPOINTS: [(&str, &str); 4] = [
    ("tcp/tcp_probe", "state of flows at each ACK"),
    (STATE_CHANGE, "exact reductions, which are inferred from two polls"),
    ("tcp/tcp_retransmit_skb", "single retransmissions"),
    ("sock/inet_sock_set_state", "exact end times of flows"),
];

/// Running trace.
pub struct TracingSource {
    polling: Polling,
    instance: Instance,
    lines: Lines,
    has_state_changes: bool,
    /// Watched connections by the addresses of both ends.
    known: BTreeMap<(SocketAddr, SocketAddr), TracedConnection>,
    missing: Vec<String>,
}

/// Connection selected by the filter.
#[derive(Clone, Copy, Debug)]
struct TracedConnection {
    /// Last known values, in the current state.
    record: TcpRecord,
    /// Values of the last poll.
    listed: TcpRecord,
    /// Sequence number of the first unacknowledged byte in the last event.
    unacknowledged: Option<u32>,
    /// The congestion state has left a reduction, and the next ACK must show whether it was undone.
    has_left_reduction: bool,
}

impl TracingSource {
    /// Starts tracing. Connections are polled in `namespaces`.
    pub fn open(filter: Filter, namespaces: &[Namespace]) -> Result<TracingSource, StartupError> {
        filter.check()?;
        let instance = Instance::new()?;
        let ports: Vec<String> =
            filter.ports.iter().map(|port| format!("sport == {port} || dport == {port}")).collect();
        let condition = (!ports.is_empty()).then(|| ports.join(" || "));
        let mut missing: Vec<String> = Vec::new();
        let mut has_state_changes = true;
        for (tracepoint, information) in TRACEPOINTS {
            if let Err(error) = instance.enable(tracepoint, condition.as_deref()) {
                missing.push(format!("{information} ({tracepoint}: {error})"));
                has_state_changes &= tracepoint != STATE_CHANGE;
            }
        }
        if missing.len() == TRACEPOINTS.len() {
            return Err(StartupError {
                message: format!("the kernel has no TCP tracepoints: {}", missing.join("; ")),
                remedy: "a kernel with CONFIG_EVENT_TRACING, 4.16 or newer".into(),
                is_missing: true,
            });
        }
        let stacks = if has_state_changes { instance.enable_stacks(STATE_CHANGE) } else { Ok(()) };
        if let Err(error) = &stacks {
            missing.push(format!(
                "call stacks, which distinguish local devices, ECN and tail-loss probes reliably: {error}"
            ));
        }
        let polls = 1_000 / POLL_INTERVAL.as_millis();
        missing.push(format!(
            "by tracing: unsent bytes, bytes in flight after SACK, pacing and delivery rates at more than {polls} \
             polls a second, changes of a flow before its first poll, and connections of network namespaces that \
             are not polled"
        ));
        let lines = Lines::new(has_state_changes && stacks.is_ok());
        let polling = Polling::new(filter, namespaces)?;
        Ok(TracingSource { polling, instance, lines, has_state_changes, known: BTreeMap::new(), missing })
    }

    /// Returns the information that is not available, with the reason.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Returns the number of events lost because the kernel's buffer was full.
    pub fn lost(&self) -> u64 {
        self.lines.lost
    }

    /// Updates the sockets that the filter selects; returns the processes that do not exist.
    pub fn refresh(&mut self) -> Vec<ProcessFilter> {
        self.polling.refresh()
    }

    /// Reads the available events in order of time.
    pub fn poll(&mut self, mut take: impl FnMut(&TcpRecord, ChangeOrigin)) -> Result<(), StartupError> {
        let TracingSource { instance, lines, known, .. } = self;
        let read_error = |error| StartupError::from_system("cannot read the kernel's tracing", &error);
        instance.read(|bytes| lines.take(bytes)).map_err(read_error)?;
        while let Some((event, function)) = lines.next() {
            let key = (event.local, event.remote);
            let Some(flow) = known.get_mut(&key) else { continue };
            let origin = function.map_or(ChangeOrigin::Unknown, ChangeOrigin::CallStack);
            if let Some(record) = flow.happened(&event) {
                take(&record, origin);
            }
            if event.kind == TraceEventKind::Closed {
                known.remove(&key);
            }
        }
        if let Some(present) = self.polling.poll_sockets()? {
            self.compare(present, &mut take);
        }
        Ok(())
    }

    /// Evaluates a poll: new and closed connections, and values that events lack.
    fn compare(
        &mut self,
        present: BTreeMap<u64, TcpRecord>,
        take: &mut impl FnMut(&TcpRecord, ChangeOrigin),
    ) {
        self.known.retain(|_, flow| {
            let exists = present.contains_key(&flow.record.cookie);
            if !exists {
                take(&closed(&flow.record), ChangeOrigin::Unknown);
            }
            exists
        });
        for listed in present.into_values() {
            let key = (listed.local, listed.remote);
            match self.known.get_mut(&key) {
                Some(flow) => {
                    if !self.has_state_changes {
                        report_state_changes(&flow.listed, &listed, take);
                    }
                    flow.update(listed, self.has_state_changes);
                }
                None => {
                    take(&TcpRecord { kind: RecordKind::Established, ..listed }, ChangeOrigin::Unknown);
                    self.known.insert(key, TracedConnection::new(listed));
                }
            }
        }
    }
}

impl TracedConnection {
    fn new(listed: TcpRecord) -> TracedConnection {
        TracedConnection { record: listed, listed, unacknowledged: None, has_left_reduction: false }
    }

    /// Takes over polled values that events lack.
    fn update(&mut self, listed: TcpRecord, has_state_changes: bool) {
        let FlowSnapshot {
            state,
            unsent,
            min_round_trip,
            pacing_rate,
            delivery_rate,
            segment,
            send_buffer_full,
            ..
        } = listed.snapshot;
        let snapshot = &mut self.record.snapshot;
        let retransmissions = snapshot.retransmissions.max(listed.snapshot.retransmissions);
        *snapshot = FlowSnapshot {
            unsent,
            min_round_trip,
            pacing_rate,
            delivery_rate,
            segment,
            retransmissions,
            send_buffer_full,
            state: if has_state_changes { snapshot.state } else { state },
            ..*snapshot
        };
        (self.record.timeout, self.record.marks) = (listed.timeout, listed.marks);
        self.listed = listed;
    }

    /// Returns the record of an event, or `None` for a segment that arrived at a host with nothing to send.
    fn happened(&mut self, event: &trace_parser::TraceEvent) -> Option<TcpRecord> {
        let now_ms = (event.time_ns / 1_000_000) as u32;
        self.record.time_ns = event.time_ns;
        let before = self.record.snapshot.state;
        self.record.kind = match event.kind {
            TraceEventKind::Acknowledged(values) => {
                if !self.acknowledge(&values, now_ms) {
                    return None;
                }
                RecordKind::Acknowledged
            }
            TraceEventKind::Retransmitted => {
                self.record.snapshot.retransmissions += 1;
                RecordKind::Retransmitted
            }
            TraceEventKind::Congestion(to) => {
                // The event of leaving a reduction precedes its effects: the next ACK shows whether it was
                // undone.
                self.has_left_reduction =
                    before > CongestionState::Disorder && to <= CongestionState::Disorder;
                self.record.may_undo |= to > CongestionState::Disorder;
                RecordKind::Congestion { to }
            }
            TraceEventKind::Established => return None,
            TraceEventKind::Closed => RecordKind::Closed,
        };
        let record = self.record;
        if let TraceEventKind::Congestion(to) = event.kind {
            self.record.snapshot.state = to;
        }
        Some(record)
    }

    /// Takes over the values of an ACK; returns whether the connection had data in flight or to send.
    fn acknowledge(&mut self, values: &ProbeValues, now_ms: u32) -> bool {
        let TcpRecord { snapshot, .. } = &mut self.record;
        let segment = u64::from(snapshot.segment);
        let acknowledged =
            values.unacknowledged.wrapping_sub(self.unacknowledged.unwrap_or(values.unacknowledged));
        self.unacknowledged = Some(values.unacknowledged);
        // An older event of another processor acknowledges no further data.
        if acknowledged < 1 << 31 {
            snapshot.acknowledged += u64::from(acknowledged);
        }
        let outstanding = u64::from(values.next.wrapping_sub(values.unacknowledged));
        if outstanding == 0 && snapshot.unsent == 0 {
            return false;
        }
        let cwnd = u64::from(values.cwnd) * segment;
        // Data received out of order or lost is not in flight, according to the last poll.
        let not_in_flight = match snapshot.state {
            CongestionState::Open => 0,
            _ => self.listed.snapshot.outstanding.saturating_sub(self.listed.snapshot.in_flight),
        };
        let fell = cwnd < snapshot.cwnd;
        *snapshot = FlowSnapshot {
            cwnd,
            ssthresh: (values.ssthresh < NO_THRESHOLD).then(|| u64::from(values.ssthresh) * segment),
            peer_window: values.peer_window.into(),
            outstanding,
            in_flight: outstanding.saturating_sub(not_in_flight),
            smoothed_round_trip: Some(Duration::from_micros(values.smoothed_round_trip_us.into())),
            ..*snapshot
        };
        if std::mem::take(&mut self.has_left_reduction) {
            self.record.may_undo = false;
        }
        // The acknowledged data was sent a round trip ago, which is the time of a window change without a state
        // change. More data may have been sent since.
        if fell {
            self.record.cwnd_changed = now_ms.wrapping_sub(values.smoothed_round_trip_us / 1_000);
        }
        self.record.last_sent = now_ms;
        true
    }
}
