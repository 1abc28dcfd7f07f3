//! Results of a window search (`netstage_core::measure::tune`) as findings, text and figures, for a scenario's test and
//! for a search between two hosts.

use crate::figure::{Axis, AxisScale, Figure, FigureSeries, ReferenceLine};
use crate::format::{number, quantity, rounded};
use netstage_core::measure::Summary;
use netstage_core::measure::tune::{Setting, SettingResult, WindowSearchConfig, WindowSearchResult};
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;
use netstage_scenario::outcome::finding::Finding;

/// Configuration and result of a window search.
pub struct TuneReport<'a> {
    /// Name of the test.
    pub test: &'a str,
    /// Configuration of the search.
    pub config: &'a WindowSearchConfig,
    /// Names of the congestion controls, in the order of their indices in settings.
    pub controls: &'a [String],
    /// Result.
    pub found: &'a WindowSearchResult,
}

impl TuneReport<'_> {
    /// Returns the findings.
    pub fn findings(&self) -> Vec<Finding> {
        let found = self.found;
        let path = &found.path;
        let best = found.best.and_then(|best| found.curve.iter().find(|point| point.setting == best));
        let bytes = |bytes: Option<u64>| bytes.map_or(f64::NAN, |bytes| bytes as f64);
        let window = found.best.map(|best| best.window.unwrap_or(self.config.max_window));
        let plain = [
            (Metric::TestWindow, bytes(window)),
            (Metric::TestWindowKnee, found.knee.unwrap_or(f64::NAN)),
            (Metric::TestWindowLosses, bytes(found.losses_from)),
            (Metric::TestWindowConclusive, f64::from(u8::from(found.is_conclusive))),
            (Metric::TestRoundTrip, path.base_round_trip.as_secs_f64()),
            (Metric::TestBandwidthDelayProduct, path.bandwidth_delay_product),
            (Metric::TestBuffer, path.buffer),
        ];
        let estimated = [
            (Metric::TestTcpThroughput, best.map(|best| best.goodput)),
            (Metric::TestWindowGain, found.gain),
        ];
        let plain = plain.into_iter().filter_map(|(metric, value)| Finding::new(metric, self.test, value));
        let estimated = estimated.into_iter().filter_map(|(metric, summary)| {
            let Summary { mean, half_width, .. } = summary?;
            Some(Finding::new(metric, self.test, mean)?.within(mean - half_width, mean + half_width))
        });
        plain.chain(estimated).collect()
    }

    /// Returns the conclusion as text.
    pub fn verdict(&self) -> String {
        let WindowSearchConfig { tolerance, delay_bound, trials, .. } = self.config;
        let Some(best) = self.found.best else {
            let bound = quantity(delay_bound.map_or(f64::NAN, Duration::as_secs_f64), "s");
            return format!("the mean round trip exceeds {bound} with every window");
        };
        let name = self.name(best);
        let share = number(tolerance * 100.0);
        if self.found.is_conclusive {
            format!("{name} is best; no other setting is better by more than {share} % (95 % confidence)")
        } else {
            format!(
                "{name} was best, but {trials} transfers do not suffice for 95 % confidence within {share} %"
            )
        }
    }

    /// Describes a setting; names the congestion control if several were tried.
    pub fn name(&self, setting: Setting) -> String {
        name(self.controls, setting)
    }

    /// Returns figures of throughput and round trip over the window.
    pub fn figures(&self) -> Vec<Figure> {
        let goodput = self.curves("payload", |point| point.goodput);
        let trips = self.curves("mean round trip", |point| point.round_trip);
        let best = self.found.best.map_or(String::new(), |best| format!(" Best: {}.", self.name(best)));
        let figure = |name: &str, title: &str, unit: &str, series, lines: Vec<ReferenceLine>| Figure {
            name: name.into(),
            title: format!("{title} over the window"),
            caption: format!("Means with 95 % intervals; dashed: without a limit.{best}"),
            x: Axis { label: "window".into(), unit: "B".into(), scale: AxisScale::Log, ..Axis::default() },
            y: Axis { label: title.to_lowercase(), unit: unit.into(), min: Some(0.0), ..Axis::default() },
            series,
            reference_lines: lines,
            ..Figure::default()
        };
        let path = &self.found.path;
        let base = ReferenceLine {
            value: rounded(path.base_round_trip.as_secs_f64()),
            label: "base round trip".into(),
        };
        vec![
            figure("goodput", "Throughput", "bit/s", goodput, Vec::new()),
            figure("round-trip", "Round trip", "s", trips, vec![base]),
        ]
    }

    /// Returns the lines of each congestion control: one over windows, and a constant one without a limit.
    fn curves(&self, quantity: &str, value: impl Fn(&SettingResult) -> Summary) -> Vec<FigureSeries> {
        let windows = self.found.curve.iter().filter_map(|point| point.setting.window);
        let (min, max) = windows.fold((u64::MAX, 0), |(min, max), w| (min.min(w), max.max(w)));
        let line = |name: String, points: Vec<(f64, Summary)>, dashed| {
            let end = |sign: f64| {
                let end = |(_, summary): &(f64, Summary)| {
                    summary.half_width.is_finite().then(|| rounded(summary.mean + sign * summary.half_width))
                };
                Some(points.iter().map(end).collect())
            };
            FigureSeries {
                name,
                x: Some(points.iter().map(|(x, _)| *x).collect()),
                y: points.iter().map(|(_, summary)| Some(rounded(summary.mean))).collect(),
                low: end(-1.0),
                high: end(1.0),
                dashed,
                ..FigureSeries::default()
            }
        };
        let several = self.controls.len() > 1;
        let mut lines = Vec::new();
        for (control, name) in self.controls.iter().enumerate() {
            let points = self.found.curve.iter().filter(|point| point.setting.control == control);
            let (limited, free): (Vec<&SettingResult>, Vec<&SettingResult>) =
                points.partition(|point| point.setting.window.is_some());
            let name = if several { format!("{quantity}, {name}") } else { quantity.to_owned() };
            let points =
                limited.iter().filter_map(|point| Some((point.setting.window? as f64, value(point))));
            lines.push(line(name.clone(), points.collect(), false));
            let free = free.iter().flat_map(|point| [(min as f64, value(point)), (max as f64, value(point))]);
            lines.push(line(format!("{name}, no limit"), free.collect(), true));
        }
        lines.retain(|line| !line.y.is_empty());
        lines
    }
}

/// Describes a setting; names the congestion control if several were tried.
pub fn name(controls: &[String], Setting { control, window }: Setting) -> String {
    let window = window.map_or("no limit".into(), |window| format!("{window} B"));
    if controls.len() > 1 { format!("{}, {window}", controls[control]) } else { window }
}
