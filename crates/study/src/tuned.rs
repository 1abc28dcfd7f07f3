//! What a search for a window found (`netstage_core::measure::tune`), as findings, sentences and figures: for a
//! scenario's test and for one between two hosts alike.

use crate::figure::{Axis, Figure, ReferenceLine, Scale, Series};
use crate::format::{number, quantity, rounded};
use netstage_core::measure::Summary;
use netstage_core::measure::tune::{Config, Found, Measured, Setting};
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;
use netstage_scenario::outcome::finding::Finding;

/// What was searched for, and what was found.
pub struct Tuned<'a> {
    /// Name of the test.
    pub test: &'a str,
    /// What was searched for.
    pub config: &'a Config,
    /// Names of the congestion controls, in the order of settings.
    pub controls: &'a [String],
    /// What was found.
    pub found: &'a Found,
}

impl Tuned<'_> {
    /// The numbers.
    pub fn findings(&self) -> Vec<Finding> {
        let found = self.found;
        let path = &found.path;
        let best = found.best.and_then(|best| found.curve.iter().find(|of| of.setting == best));
        let bytes = |bytes: Option<u64>| bytes.map_or(f64::NAN, |bytes| bytes as f64);
        let window = found.best.map(|best| best.window.unwrap_or(self.config.largest));
        let plain = [
            (Metric::TestWindow, bytes(window)),
            (Metric::TestWindowKnee, found.knee.unwrap_or(f64::NAN)),
            (Metric::TestWindowLosses, bytes(found.losses_from)),
            (Metric::TestWindowSure, f64::from(u8::from(found.is_sure))),
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

    /// What they mean.
    pub fn verdict(&self) -> String {
        let Config { tolerance, delay_bound, trials, .. } = self.config;
        let Some(best) = self.found.best else {
            let bound = quantity(delay_bound.map_or(f64::NAN, Duration::as_secs_f64), "s");
            return format!("no window keeps the mean round trip within {bound}");
        };
        let name = self.name(best);
        let share = number(tolerance * 100.0);
        if self.found.is_sure {
            format!("{name}: nothing else is better by more than {share} % (95 % confidence)")
        } else {
            format!("{name} did best, but {trials} transfers were too few to be sure within {share} %")
        }
    }

    /// A setting, in words; congestion control only where there are several.
    pub fn name(&self, setting: Setting) -> String {
        name(self.controls, setting)
    }

    /// Throughput and round trip against the window.
    pub fn figures(&self) -> Vec<Figure> {
        let goodput = self.curves("payload", |of| of.goodput);
        let trips = self.curves("mean round trip", |of| of.round_trip);
        let best = self.found.best.map_or(String::new(), |best| format!(" Best: {}.", self.name(best)));
        let figure = |name: &str, title: &str, unit: &str, series, lines: Vec<ReferenceLine>| Figure {
            name: name.into(),
            title: format!("{title} against the window"),
            caption: format!("Means and their 95 % intervals; dashed without a limit.{best}"),
            x: Axis { label: "window".into(), unit: "B".into(), scale: Scale::Log, ..Axis::default() },
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

    /// Lines of each congestion control: over windows, and what there is without a limit.
    fn curves(&self, what: &str, value: impl Fn(&Measured) -> Summary) -> Vec<Series> {
        let windows = self.found.curve.iter().filter_map(|of| of.setting.window);
        let (least, most) = windows.fold((u64::MAX, 0), |(least, most), w| (least.min(w), most.max(w)));
        let line = |name: String, points: Vec<(f64, Summary)>, dashed| {
            let end = |sign: f64| {
                let end = |(_, of): &(f64, Summary)| {
                    of.half_width.is_finite().then(|| rounded(of.mean + sign * of.half_width))
                };
                Some(points.iter().map(end).collect())
            };
            Series {
                name,
                x: Some(points.iter().map(|(x, _)| *x).collect()),
                y: points.iter().map(|(_, of)| Some(rounded(of.mean))).collect(),
                low: end(-1.0),
                high: end(1.0),
                dashed,
                ..Series::default()
            }
        };
        let several = self.controls.len() > 1;
        let mut lines = Vec::new();
        for (control, name) in self.controls.iter().enumerate() {
            let of_control = self.found.curve.iter().filter(|of| of.setting.control == control);
            let (limited, free): (Vec<&Measured>, Vec<&Measured>) =
                of_control.partition(|of| of.setting.window.is_some());
            let name = if several { format!("{what}, {name}") } else { what.to_owned() };
            let points = limited.iter().filter_map(|of| Some((of.setting.window? as f64, value(of))));
            lines.push(line(name.clone(), points.collect(), false));
            let free = free.iter().flat_map(|of| [(least as f64, value(of)), (most as f64, value(of))]);
            lines.push(line(format!("{name}, no limit"), free.collect(), true));
        }
        lines.retain(|line| !line.y.is_empty());
        lines
    }
}

/// A setting, in words; congestion control only where there are several.
pub fn name(controls: &[String], Setting { control, window }: Setting) -> String {
    let window = window.map_or("no limit".into(), |window| format!("{window} B"));
    if controls.len() > 1 { format!("{}, {window}", controls[control]) } else { window }
}
