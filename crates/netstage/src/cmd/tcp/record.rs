//! Record of `tcp watch`: the values of each flow, and figures of the flows that sent most.

use netstage_core::tcp::event::{FlowEvent, FlowEventKind, FlowSnapshot, SendLimit, WindowChangeCause};
use netstage_core::tcp::history::{Bin, WindowHistory};
use netstage_core::time::{Duration, Instant};
use netstage_scenario::outcome::{Metric, RunOutcome, Series};
use netstage_scenario::window;
use netstage_study::TOOL;
use netstage_study::figure::{Axis, Figure, FigureKind as Form, FigureSeries as Line};
use netstage_study::format::rounded;
use netstage_study::observed::Observation;
use netstage_tcp_watch::flows::WatchedFlow;
use std::collections::BTreeMap;

/// Maximum flows of a record.
const MAX_FLOWS: usize = 1_000;
/// Maximum bins of a flow.
const MAX_BINS: usize = 36_000;
/// Maximum marks in a figure.
const MAX_MARKS: usize = 5_000;
/// Maximum flows with figures.
const MAX_DRAWN: usize = 6;

/// Collector of events for a record.
#[derive(Debug)]
pub struct Keeper {
    interval: Duration,
    flows: BTreeMap<usize, Kept>,
    /// Flows beyond [`MAX_FLOWS`].
    beyond: usize,
}

/// Values from a flow's ACKs in a bin, in addition to those of its history.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    acknowledged: u64,
    retransmissions: u64,
    round_trip: Option<Duration>,
}

#[derive(Debug)]
struct Kept {
    flow: WatchedFlow,
    history: WindowHistory,
    /// Values of each bin.
    bins: Vec<Sent>,
    last: FlowSnapshot,
    total: u64,
    /// Time and cause of each change of the window, and the window after it, segments.
    marks: Vec<(Instant, WindowChangeCause, f64)>,
}

impl Keeper {
    /// Creates an empty collector with bins of this width.
    pub fn new(interval: Duration) -> Keeper {
        Keeper { interval, flows: BTreeMap::new(), beyond: 0 }
    }

    /// Adds an event.
    pub fn handle(&mut self, flow: &WatchedFlow, event: &FlowEvent) {
        if !self.flows.contains_key(&flow.id) {
            if self.flows.len() == MAX_FLOWS {
                self.beyond += usize::from(event.kind == FlowEventKind::Began);
                return;
            }
            let kept = Kept {
                flow: *flow,
                history: WindowHistory::growing(self.interval, MAX_BINS),
                bins: Vec::new(),
                last: event.snapshot,
                total: 0,
                marks: Vec::new(),
            };
            self.flows.insert(flow.id, kept);
        }
        let kept = self.flows.get_mut(&flow.id).expect("just inserted");
        let snapshot = &event.snapshot;
        kept.history.handle(event);
        let bin = (event.time.0 / self.interval.0) as usize;
        if bin < MAX_BINS {
            if bin >= kept.bins.len() {
                kept.bins.resize(bin + 1, Sent::default());
            }
            let sent = &mut kept.bins[bin];
            let more = snapshot.acknowledged.saturating_sub(kept.last.acknowledged);
            sent.acknowledged += more;
            sent.retransmissions += snapshot.retransmissions.saturating_sub(kept.last.retransmissions);
            sent.round_trip = snapshot.smoothed_round_trip.or(sent.round_trip);
            kept.total += more;
        }
        // Records from different CPUs may arrive out of order.
        let acknowledged = kept.last.acknowledged.max(snapshot.acknowledged);
        let retransmissions = kept.last.retransmissions.max(snapshot.retransmissions);
        kept.last = FlowSnapshot { acknowledged, retransmissions, ..*snapshot };
        if let FlowEventKind::Window(cause) = event.kind
            && kept.marks.len() < MAX_MARKS
        {
            kept.marks.push((event.time, cause, segments(&event.snapshot)));
        }
    }

    /// Returns the record of a trace that lasted until `end`.
    pub fn finish(self, title: String, end: Instant, mut warnings: Vec<String>) -> Observation {
        let interval = self.interval;
        let bins = (end.0.div_ceil(interval.0) as usize).min(MAX_BINS);
        if self.beyond > 0 {
            warnings.push(format!("{} flows after the first {MAX_FLOWS} are not in the record", self.beyond));
        }
        let names = names(self.flows.values());
        let mut drawn = Vec::new();
        for (kept, name) in self.flows.into_values().zip(names) {
            let mut values = kept.history.finish(end);
            values.resize(bins, Bin::default());
            let mut sent = kept.bins;
            sent.resize(bins, Sent::default());
            drawn.push(Drawn { name, bins: values, sent, total: kept.total, marks: kept.marks });
        }
        let mut series = Vec::new();
        // The flows with the most data come first.
        drawn.sort_by_key(|flow| std::cmp::Reverse(flow.total));
        for flow in &drawn {
            let trip = |sent: &Sent| sent.round_trip.map_or(f64::NAN, Duration::as_secs_f64);
            for (metric, values) in [
                (Metric::FlowThroughput, flow.rates(interval)),
                (Metric::FlowRoundTrip, flow.sent.iter().map(trip).collect()),
                (
                    Metric::FlowRetransmissions,
                    flow.sent.iter().map(|sent| sent.retransmissions as f64).collect(),
                ),
            ] {
                series.push(Series { metric, subject: flow.name.clone(), values });
            }
            series.extend(window::series(&flow.name, interval, &flow.bins));
        }
        series.sort_by_key(|series| series.metric);
        let count = drawn.len();
        drawn.truncate(MAX_DRAWN);
        Observation {
            tool: TOOL.into(),
            title,
            description: format!("{count} TCP flows, traced in the sender's kernel."),
            duration: end.since(Instant::ZERO),
            outcome: RunOutcome { interval, bins, series, warnings, ..RunOutcome::default() },
            tests: Vec::new(),
            figures: figures(&drawn, interval),
        }
    }
}

/// Finished flow.
struct Drawn {
    name: String,
    bins: Vec<Bin>,
    sent: Vec<Sent>,
    total: u64,
    marks: Vec<(Instant, WindowChangeCause, f64)>,
}

impl Drawn {
    fn rates(&self, interval: Duration) -> Vec<f64> {
        self.sent.iter().map(|sent| sent.acknowledged as f64 * 8.0 / interval.as_secs_f64()).collect()
    }
}

/// Returns both addresses of each flow as its name, with a number if an earlier flow, or one of another namespace, has
/// the same addresses.
fn names<'a>(flows: impl Iterator<Item = &'a Kept>) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let name = |kept: &Kept| {
        let name = format!("{} > {}", kept.flow.local, kept.flow.remote);
        let times = seen.entry(name.clone()).or_default();
        *times += 1;
        if *times > 1 { format!("{name} #{times}") } else { name }
    };
    flows.map(name).collect()
}

fn segments(snapshot: &FlowSnapshot) -> f64 {
    snapshot.window() as f64 / f64::from(snapshot.segment.max(1))
}

fn figures(flows: &[Drawn], interval: Duration) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (number, flow) in flows.iter().enumerate() {
        figures.push(windows(number, flow, interval));
        figures.push(throughput(number, flow, interval));
    }
    figures.extend(causes(flows, interval));
    figures.extend(limits(flows));
    figures
}

fn time_axis() -> Axis {
    Axis { label: "time".into(), unit: "s".into(), ..Axis::default() }
}

/// Returns the start times of bins, seconds.
fn times(bins: usize, interval: Duration) -> Vec<f64> {
    (0..bins).map(|bin| rounded(bin as f64 * interval.as_secs_f64())).collect()
}

/// Draws the windows over time, with a mark in the color of its cause for each change.
fn windows(number: usize, flow: &Drawn, interval: Duration) -> Figure {
    let line = |name: &str, value: fn(&Bin) -> Option<f64>| Line {
        name: name.into(),
        x: Some(times(flow.bins.len(), interval)),
        y: flow.bins.iter().map(|bin| value(bin).map(rounded)).collect(),
        ..Line::default()
    };
    let mut series = vec![line("congestion window, maximum per bin", |bin| bin.peak)];
    series.push(Line {
        dashed: false,
        ..line("usable window: smaller of congestion and peer window", |bin| bin.usable)
    });
    for cause in WindowChangeCause::ALL {
        let marks = flow.marks.iter().filter(|(_, of, _)| *of == cause);
        let (x, y): (Vec<f64>, Vec<Option<f64>>) =
            marks.map(|(time, _, window)| (rounded(time.as_secs_f64()), Some(rounded(*window)))).unzip();
        if !x.is_empty() {
            series.push(Line { name: cause.name().into(), x: Some(x), y, points: true, ..Line::default() });
        }
    }
    Figure {
        name: format!("windows-{}", number + 1),
        title: format!("Windows of {}", flow.name),
        caption: "Marks show changes of the window other than growth, in the color of the cause.".into(),
        x: time_axis(),
        y: Axis { label: "window".into(), unit: "packets".into(), min: Some(0.0), ..Axis::default() },
        series,
        ..Figure::default()
    }
}

fn throughput(number: usize, flow: &Drawn, interval: Duration) -> Figure {
    let y = flow.rates(interval).into_iter().map(|rate| Some(rounded(rate))).collect();
    Figure {
        name: format!("throughput-{}", number + 1),
        title: format!("Throughput of {}", flow.name),
        caption: "Acknowledged payload.".into(),
        x: time_axis(),
        y: Axis { label: "throughput".into(), unit: "bit/s".into(), min: Some(0.0), ..Axis::default() },
        series: vec![Line {
            name: "payload".into(),
            x: Some(times(flow.bins.len(), interval)),
            y,
            ..Line::default()
        }],
        ..Figure::default()
    }
}

/// Draws the cumulative count of each cause over time, summed over the drawn flows.
fn causes(flows: &[Drawn], interval: Duration) -> Option<Figure> {
    let bins = flows.first()?.bins.len();
    let series = WindowChangeCause::ALL.into_iter().filter_map(|cause| {
        let mut total = 0;
        let counts = (0..bins).map(|bin| {
            total += flows.iter().map(|flow| u64::from(flow.bins[bin].causes[cause as usize])).sum::<u64>();
            Some(total as f64)
        });
        let y: Vec<Option<f64>> = counts.collect();
        (total > 0).then(|| Line { name: cause.name().into(), y, ..Line::default() })
    });
    let series: Vec<Line> = series.collect();
    (!series.is_empty()).then(|| Figure {
        name: "causes".into(),
        title: "Causes over time".into(),
        caption: "Cumulative count of each cause, all flows of these figures together.".into(),
        x: time_axis(),
        y: Axis { label: "count".into(), ..Axis::default() },
        shared_x: Some(times(bins, interval)),
        series,
        ..Figure::default()
    })
}

/// Draws the limits of each flow, as shares of the time.
fn limits(flows: &[Drawn]) -> Option<Figure> {
    let share = |flow: &Drawn, limit: SendLimit| {
        let total = |of: SendLimit| flow.bins.iter().map(|bin| bin.limited[of as usize].0).sum::<u64>();
        let all: u64 = SendLimit::ALL.into_iter().map(total).sum();
        (all > 0).then(|| rounded(100.0 * total(limit) as f64 / all as f64))
    };
    let series = SendLimit::ALL.map(|limit| Line {
        name: limit.name().into(),
        y: flows.iter().map(|flow| share(flow, limit)).collect(),
        ..Line::default()
    });
    (!flows.is_empty()).then(|| Figure {
        name: "limits".into(),
        title: "Limits of the sender".into(),
        caption: "Share of the time in which each limit kept the sender from sending more.".into(),
        kind: Form::Bar,
        y: Axis { label: "share of the time".into(), unit: "%".into(), ..Axis::default() },
        categories: flows.iter().map(|flow| flow.name.clone()).collect(),
        series: series.into(),
        ..Figure::default()
    })
}
