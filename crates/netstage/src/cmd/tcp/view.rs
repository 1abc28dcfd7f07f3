//! Live view of `tcp watch`: the flows with the highest rates, and the recent causes of window changes.

use crate::cmd::table::{Table, counted, rate, time};
use crate::sparkline::sparkline;
use netstage_core::tcp::event::{FlowEvent, FlowEventKind, FlowSnapshot, SendLimit, WindowChangeCause};
use netstage_core::time::{Duration, Instant};
use netstage_tcp_watch::flows::WatchedFlow;
use std::collections::{BTreeMap, VecDeque};

/// Period over which causes are counted.
const CAUSE_PERIOD: Duration = Duration::from_secs(60);
/// Bars per sparkline.
const BARS: usize = 24;

/// Current state of the flows.
#[derive(Debug, Default)]
pub struct View {
    flows: BTreeMap<usize, Row>,
    ended: usize,
}

#[derive(Debug)]
struct Row {
    flow: WatchedFlow,
    last: FlowSnapshot,
    /// Bytes acknowledged at the previous update.
    acknowledged: u64,
    /// Maximum window of each update interval, segments.
    windows: VecDeque<f64>,
    /// Maximum window since the last update, segments.
    peak: f64,
    changes: VecDeque<(Instant, WindowChangeCause)>,
    /// ACKs since the last update, by the limit of the sender.
    limits: [u64; SendLimit::ALL.len()],
}

impl View {
    /// Adds an event.
    pub fn handle(&mut self, flow: &WatchedFlow, event: &FlowEvent) {
        if event.kind == FlowEventKind::Ended {
            self.ended += usize::from(self.flows.remove(&flow.id).is_some());
            return;
        }
        let row = self.flows.entry(flow.id).or_insert_with(|| Row {
            flow: *flow,
            last: event.snapshot,
            acknowledged: event.snapshot.acknowledged,
            windows: VecDeque::new(),
            peak: 0.0,
            changes: VecDeque::new(),
            limits: Default::default(),
        });
        row.last = event.snapshot;
        row.peak = row.peak.max(segments(&event.snapshot, event.snapshot.cwnd));
        match event.kind {
            FlowEventKind::Acknowledged => row.limits[event.snapshot.limit() as usize] += 1,
            FlowEventKind::Window(cause) => row.changes.push_back((event.time, cause)),
            _ => {}
        }
    }

    /// Returns the view of at most `max` flows; `interval` is the time since the previous update.
    pub fn page(&mut self, now: Instant, interval: Duration, lost: u64, max: usize) -> String {
        let seconds = interval.as_secs_f64().max(1e-9);
        for row in self.flows.values_mut() {
            while row.changes.front().is_some_and(|(time, _)| now.since(*time) > CAUSE_PERIOD) {
                row.changes.pop_front();
            }
            let window = if row.peak > 0.0 { row.peak } else { segments(&row.last, row.last.cwnd) };
            row.windows.push_back(window);
            if row.windows.len() > BARS {
                row.windows.pop_front();
            }
        }
        let bits = |row: &Row| row.last.acknowledged.saturating_sub(row.acknowledged) as f64 * 8.0 / seconds;
        let mut rows: Vec<&Row> = self.flows.values().collect();
        rows.sort_by(|a, b| bits(b).total_cmp(&bits(a)));
        let total = rows.iter().map(|row| bits(row)).fold(0.0, |sum, bits| sum + bits);
        let mut text =
            format!("{}, {} ended, {} in total", counted(rows.len(), "flow"), self.ended, rate(total));
        if lost > 0 {
            text.push_str(&format!(", {} LOST", counted(lost as usize, "record")));
        }
        let heads = [
            "flow",
            ">rate",
            ">cwnd",
            ">peer window",
            ">round trip",
            ">retransmits",
            "limited by",
            "cwnd per update",
            "causes/min",
        ];
        let mut table = Table::new(&heads);
        for row in rows.iter().take(max) {
            let Row { flow, last, .. } = row;
            let windows: Vec<f64> = row.windows.iter().copied().collect();
            table.row([
                format!("{} > {}", flow.local, flow.remote),
                rate(bits(row)),
                format!("{:.0}", segments(last, last.cwnd)),
                format!("{:.0}", segments(last, last.peer_window)),
                last.smoothed_round_trip.map_or("-".into(), |trip| time(trip.0)),
                last.retransmissions.to_string(),
                row.limited_by().map_or(String::new(), |limit| limit.name().to_owned()),
                sparkline(&windows, BARS),
                row.causes(),
            ]);
        }
        let hidden = rows.len().saturating_sub(max);
        let rest = if hidden > 0 { format!("and {hidden} more (--flows)\n") } else { String::new() };
        let text = format!("{text}\n\n{}{rest}", table.text());
        for row in self.flows.values_mut() {
            (row.acknowledged, row.peak) = (row.last.acknowledged, 0.0);
            row.limits = Default::default();
        }
        text
    }
}

impl Row {
    /// Returns the most frequent limit of the sender since the last update.
    fn limited_by(&self) -> Option<SendLimit> {
        let limit = SendLimit::ALL.into_iter().max_by_key(|limit| self.limits[*limit as usize])?;
        (self.limits[limit as usize] > 0).then_some(limit)
    }

    fn causes(&self) -> String {
        let count = |cause| self.changes.iter().filter(|(_, of)| *of == cause).count();
        let counts = WindowChangeCause::ALL
            .into_iter()
            .map(|cause| (cause, count(cause)))
            .filter(|(_, count)| *count > 0);
        counts.map(|(cause, count)| format!("{} {count}", cause.name())).collect::<Vec<_>>().join(", ")
    }
}

fn segments(snapshot: &FlowSnapshot, bytes: u64) -> f64 {
    bytes as f64 / f64::from(snapshot.segment.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::tcp::event::CongestionState;

    fn event(seconds: u64, kind: FlowEventKind, acknowledged: u64, cwnd: u64) -> FlowEvent {
        let snapshot = FlowSnapshot {
            state: CongestionState::Open,
            segment: 1_000,
            cwnd,
            ssthresh: None,
            in_flight: cwnd,
            outstanding: cwnd,
            unsent: 1 << 20,
            peer_window: 64_000,
            smoothed_round_trip: Some(Duration::from_millis(20)),
            min_round_trip: None,
            latest_round_trip: None,
            pacing_rate: None,
            delivery_rate: None,
            acknowledged,
            retransmissions: 3,
            send_buffer_full: false,
            model_based: false,
        };
        FlowEvent { time: Instant(seconds * 1_000_000_000), kind, snapshot }
    }

    #[test]
    fn the_view_has_rates_windows_and_causes_of_the_last_minute() {
        let flow = |id| WatchedFlow {
            id,
            cookie: id as u64,
            namespace: 1,
            local: "10.0.0.1:5000".parse().unwrap(),
            remote: "10.0.0.2:80".parse().unwrap(),
        };
        let mut view = View::default();
        let second = Duration::from_secs(1);
        view.handle(&flow(0), &event(0, FlowEventKind::Began, 0, 10_000));
        view.handle(&flow(1), &event(0, FlowEventKind::Began, 0, 10_000));
        view.handle(&flow(0), &event(1, FlowEventKind::Window(WindowChangeCause::Ecn), 125_000, 20_000));
        view.handle(&flow(0), &event(1, FlowEventKind::Acknowledged, 125_000, 20_000));
        let page = view.page(Instant(1_000_000_000), second, 0, 1);
        assert!(page.starts_with("2 flows, 0 ended, 1.00 Mbit/s in total\n"), "{page}");
        for part in ["ecn 1", "congestion-window", "20.00 ms", "and 1 more", "    20           64  "] {
            assert!(page.contains(part), "{part}: {page}");
        }
        view.handle(&flow(1), &event(61, FlowEventKind::Ended, 0, 10_000));
        view.handle(&flow(0), &event(62, FlowEventKind::Acknowledged, 125_000, 10_000));
        let page = view.page(Instant(62_000_000_000), second, 7, 1);
        assert!(page.starts_with("1 flow, 1 ended, 0 bit/s in total, 7 records LOST\n"), "{page}");
        assert!(!page.contains("ecn") && page.contains("█▅"), "{page}");
    }
}
