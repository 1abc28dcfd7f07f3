//! Figures of the plots that a scenario defines.

use crate::derive::{is_whole_span, series_of};
use crate::distribution::CellDistributions;
use crate::figure::{Axis, AxisScale, Figure, FigureKind, FigureSeries, ReferenceLine};
use crate::format::{self, rounded};
use crate::select::{bins_within, cell_matches, cell_value, matches, per_subject};
use crate::spread::{self, DistributionLine};
use crate::statistics::estimate;
use netstage_core::measure::Histogram;
use netstage_core::tcp::WindowChangeCause;
use netstage_scenario::Cell;
use netstage_scenario::expect::{Plot, PlotAxis};
use netstage_scenario::outcome::{Metric, RunOutcome, Series as Bins};
use netstage_scenario::record::Estimate;
use netstage_scenario::window::cause_metric;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of lines in a figure.
const MAX_LINES: usize = 48;

/// Collector of the data of one plot.
pub struct Plotter<'a> {
    plot: Plot,
    metric: Option<Metric>,
    cells: &'a [Cell],
    /// Values of each subject in the current cell, by run.
    runs: Vec<Vec<(String, Vec<f64>)>>,
    seconds: f64,
    lines: Vec<PlotLine>,
    /// Changes of windows other than growth, for plots of windows over time.
    marks: Marks,
    omitted_marks: usize,
    /// Cells and subjects whose value is a lower bound only.
    lower_bounds: BTreeSet<(usize, String)>,
}

/// Metrics whose figures mark the causes of changes.
const WINDOWS: [Metric; 3] = [Metric::FlowWindow, Metric::FlowWindowPeak, Metric::FlowWindowUsable];
/// Maximum number of marks per cause in a figure.
const MAX_MARKS: usize = 2_000;

/// Changes of windows by cause: time in seconds, and size of the window.
type Marks = BTreeMap<WindowChangeCause, Vec<(f64, f64)>>;

/// Adds the changes of a window, if they were recorded, and returns the number of those beyond [`MAX_MARKS`].
fn mark(marks: &mut Marks, window: &Bins, outcome: &RunOutcome) -> usize {
    let seconds = outcome.interval.as_secs_f64();
    let mut omitted = 0;
    for cause in WindowChangeCause::ALL {
        let mut changes = series_of(outcome, cause_metric(cause)).iter();
        let Some(changes) = changes.find(|changes| changes.subject == window.subject) else { continue };
        let bins = changes.values.iter().zip(&window.values).enumerate();
        let changed = bins.filter(|(_, (count, window))| **count > 0.0 && !window.is_nan());
        let mut found: Vec<_> = changed.map(|(bin, (_, window))| (bin as f64 * seconds, *window)).collect();
        let room = MAX_MARKS - marks.get(&cause).map_or(0, Vec::len);
        omitted += found.len().saturating_sub(room);
        found.truncate(room);
        if !found.is_empty() {
            marks.entry(cause).or_default().extend(found);
        }
    }
    omitted
}

/// Adds a note to the caption if the figure would have more than [`MAX_LINES`] lines.
fn note_omitted(figure: &mut Figure, lines: usize) {
    if lines > MAX_LINES {
        let note = format!("{} (The first {MAX_LINES} of {lines}; series.parquet has all.)", figure.caption);
        figure.caption = note.trim_start().into();
    }
}

/// Name of a heat map, and its values by row.
type HeatMap = (String, Vec<Vec<Option<f64>>>);

/// Line of a figure: a subject in a cell, with its bins or one value.
struct PlotLine {
    cell: usize,
    subject: String,
    seconds: f64,
    values: Vec<Estimate>,
    /// Distribution of this metric, in place of values.
    histogram: Option<(Metric, Histogram)>,
}

impl<'a> Plotter<'a> {
    /// Creates an empty collector.
    pub fn new(plot: Plot, cells: &'a [Cell]) -> Plotter<'a> {
        Plotter {
            metric: Metric::by_name(&plot.metric),
            plot,
            cells,
            runs: Vec::new(),
            seconds: 0.0,
            lines: Vec::new(),
            marks: BTreeMap::new(),
            omitted_marks: 0,
            lower_bounds: BTreeSet::new(),
        }
    }

    /// Adds a run. All runs of a cell are added before [`Plotter::end_cell`].
    pub fn add(&mut self, cell: usize, outcome: &RunOutcome) {
        let Some(metric) = self.metric.filter(|_| cell_matches(&self.cells[cell], &self.plot.cells)) else {
            return;
        };
        self.seconds = outcome.interval.as_secs_f64();
        let findings = outcome.tests.iter().flat_map(|test| &test.findings);
        let bounds = findings.filter(|finding| finding.low.is_some() && finding.high.is_none());
        let bounds = bounds.filter(|finding| finding.metric == metric.info().name);
        self.lower_bounds.extend(bounds.map(|finding| (cell, finding.subject.clone())));
        let subject = &self.plot.subject;
        let plan = &self.cells[cell].plan;
        let span = match &self.plot.against {
            PlotAxis::Time if is_whole_span(metric) => 0..outcome.bins,
            PlotAxis::Time => {
                let chosen = series_of(outcome, metric).iter().filter(|s| matches(subject, &s.subject));
                let chosen: Vec<_> = chosen.collect();
                // With several runs, only the marks of the first remain distinguishable.
                if self.runs.is_empty() && WINDOWS.contains(&metric) {
                    self.omitted_marks +=
                        chosen.iter().map(|window| mark(&mut self.marks, window, outcome)).sum::<usize>();
                }
                let chosen = chosen.into_iter();
                self.runs.push(chosen.map(|s| (s.subject.clone(), s.values.clone())).collect());
                return;
            }
            // Distributions are added at the end of the cell.
            PlotAxis::Percentile | PlotAxis::Histogram | PlotAxis::Cdf | PlotAxis::Box => return,
            PlotAxis::Swept { over, .. } | PlotAxis::Subject { over } => bins_within(plan, outcome, *over),
        };
        let values = per_subject(plan, outcome, metric, subject, &span);
        self.runs.push(values.into_iter().map(|(subject, value)| (subject, vec![value])).collect());
    }

    /// Completes a cell, with the distributions of its runs.
    pub fn end_cell(&mut self, cell: usize, collected: &CellDistributions) {
        if self.plot.against.is_of_distributions() {
            self.add_distributions(cell, collected);
            return;
        }
        let mut values: BTreeMap<String, Vec<Vec<f64>>> = BTreeMap::new();
        let mut order = Vec::new();
        for (subject, bins) in std::mem::take(&mut self.runs).into_iter().flatten() {
            let runs = values.entry(subject.clone()).or_default();
            if runs.is_empty() {
                order.push(subject);
            }
            runs.push(bins);
        }
        for subject in order {
            let runs = &values[&subject];
            let bins = runs.iter().map(Vec::len).max().unwrap_or(0);
            let at = |bin: usize| -> Vec<f64> { runs.iter().filter_map(|r| r.get(bin).copied()).collect() };
            let values = (0..bins).map(|bin| estimate(&at(bin))).collect();
            self.lines.push(PlotLine { cell, subject, seconds: self.seconds, values, histogram: None });
        }
    }

    fn add_distributions(&mut self, cell: usize, collected: &CellDistributions) {
        let Some(metric) = self.metric.filter(|_| cell_matches(&self.cells[cell], &self.plot.cells)) else {
            return;
        };
        // Achieved gaps are plotted together with the requested ones.
        let requested = (metric == Metric::FlowGap).then_some(Metric::FlowGapScheduled);
        for metric in [Some(metric), requested].into_iter().flatten() {
            for (subject, histogram) in collected.chosen(metric, &self.plot.subject) {
                let histogram = Some((metric, histogram));
                self.lines.push(PlotLine { cell, subject, seconds: 0.0, values: Vec::new(), histogram });
            }
        }
    }

    /// Returns the figure, or several heat maps: one per combination of swept values outside their axes.
    pub fn finish(mut self) -> Vec<Figure> {
        if self.plot.against.is_of_distributions() {
            return self.distributions();
        }
        let info = self.metric.map(Metric::info);
        let largest = self
            .lines
            .iter()
            .flat_map(|l| &l.values)
            .filter_map(|e| e.mean)
            .fold(0.0, |a: f64, v| a.max(v.abs()));
        let (factor, unit) = format::scale(largest, info.map_or("", |i| i.unit));
        self.marks.values_mut().flatten().for_each(|(_, window)| *window /= factor);
        for value in self.lines.iter_mut().flat_map(|l| &mut l.values) {
            for number in [&mut value.mean, &mut value.low, &mut value.high] {
                *number = number.map(|v| v / factor);
            }
        }
        let layer = info.map_or("", |i| i.layer);
        let shown_layer =
            if layer.is_empty() || unit.is_empty() { String::new() } else { format!(", {layer}") };
        let y = Axis {
            label: self.plot.metric.clone(),
            unit: format!("{unit}{shown_layer}"),
            scale: AxisScale::Linear,
            min: self.plot.range.0.map(|v| v / factor),
            max: self.plot.range.1.map(|v| v / factor),
        };
        let frame = self.frame(y, factor);
        match &self.plot.against {
            PlotAxis::Time if self.metric.is_some_and(is_whole_span) => vec![self.by_subject(frame)],
            PlotAxis::Time => vec![self.over_time(frame)],
            PlotAxis::Swept { path, rows: None, .. } => vec![self.over_path(frame, path)],
            PlotAxis::Swept { path, rows: Some(rows), .. } => self.heat_maps(frame, path, rows),
            PlotAxis::Subject { .. } => vec![self.by_subject(frame)],
            PlotAxis::Percentile | PlotAxis::Histogram | PlotAxis::Cdf | PlotAxis::Box => {
                unreachable!("drawn above")
            }
        }
    }

    fn frame(&self, y: Axis, factor: f64) -> Figure {
        let lines = self.plot.reference_lines.iter();
        let lines = lines.map(|(v, label)| ReferenceLine { value: v / factor, label: label.clone() });
        Figure {
            name: self.plot.name.clone(),
            title: self.plot.title.clone(),
            caption: self.plot.caption.clone(),
            claim: self.plot.claim.clone(),
            y,
            reference_lines: lines.collect(),
            ..Figure::default()
        }
    }

    /// Returns the figure of the distributions, or nothing if there are none.
    fn distributions(mut self) -> Vec<Figure> {
        let taken: Vec<_> = self.lines.iter_mut().map(|line| line.histogram.take()).collect();
        let named = self.lines.iter().zip(taken).filter_map(|(line, taken)| {
            let (metric, histogram) = taken?;
            let is_requested = Some(metric) != self.metric;
            let name = self.line_name(line, &[]) + if is_requested { ", requested" } else { "" };
            Some(DistributionLine { name, group: self.group(line), dashed: is_requested, histogram })
        });
        let mut spreads: Vec<DistributionLine> = named.collect();
        let count = spreads.len();
        spreads.truncate(MAX_LINES);
        let unit = self.metric.map_or("", |metric| metric.info().unit);
        let (min, max) = self.plot.range;
        let axis = Axis { label: self.plot.metric.clone(), min, max, ..Axis::default() };
        let mut frame = self.frame(axis, 1.0);
        note_omitted(&mut frame, count);
        if spreads.is_empty() {
            return Vec::new();
        }
        match &self.plot.against {
            PlotAxis::Percentile => spread::percentiles(frame, &spreads, unit).into_iter().collect(),
            PlotAxis::Cdf => vec![spread::cumulative(frame, &spreads, unit)],
            PlotAxis::Box => vec![spread::boxes(frame, &spreads, unit)],
            _ => vec![spread::histogram(frame, &spreads, unit)],
        }
    }

    fn over_time(&mut self, mut figure: Figure) -> Figure {
        note_omitted(&mut figure, self.lines.len());
        if self.omitted_marks > 0 {
            let note =
                format!("{} ({} changes of windows are not marked.)", figure.caption, self.omitted_marks);
            figure.caption = note.trim_start().into();
        }
        self.lines.truncate(MAX_LINES);
        figure.kind = FigureKind::Line;
        figure.x = Axis { label: "time".into(), unit: "s".into(), ..Axis::default() };
        let x = |line: &PlotLine| -> Vec<f64> {
            // Six decimals suffice and keep the file short.
            (0..line.values.len()).map(|bin| (bin as f64 * line.seconds * 1e6).round() / 1e6).collect()
        };
        let first = self.lines.first().map(x).unwrap_or_default();
        let shared = self.lines.iter().all(|line| x(line) == first);
        for line in &self.lines {
            let name = self.line_name(line, &[]);
            let mut series = series(name, line.values.iter());
            series.group = self.group(line);
            series.x = (!shared).then(|| x(line));
            figure.series.push(series);
        }
        figure.shared_x = shared.then_some(first);
        figure.series.extend(self.marks.iter().map(|(cause, marks)| FigureSeries {
            name: cause.name().into(),
            x: Some(marks.iter().map(|(time, _)| rounded(*time)).collect()),
            y: marks.iter().map(|(_, window)| Some(rounded(*window))).collect(),
            points: true,
            ..FigureSeries::default()
        }));
        figure
    }

    fn over_path(&self, mut figure: Figure, path: &str) -> Figure {
        let positions = self.values_of(path);
        // One line per subject and combination of the other swept values.
        let mut lines: Vec<(String, Vec<Estimate>)> = Vec::new();
        let mut bounds: BTreeSet<(usize, usize)> = BTreeSet::new();
        // A variant without this sweep is a constant level for comparison.
        let mut levels = Vec::new();
        for line in &self.lines {
            let name = self.line_name(line, &[path]);
            let Some(position) = self.position(line, path, &positions) else {
                levels.push((name, vec![line.values.first().copied().unwrap_or_default(); positions.len()]));
                continue;
            };
            let index = lines.iter().position(|(n, _)| *n == name).unwrap_or_else(|| {
                lines.push((name, vec![Estimate::default(); positions.len()]));
                lines.len() - 1
            });
            lines[index].1[position] = line.values.first().copied().unwrap_or_default();
            if self.lower_bounds.contains(&(line.cell, line.subject.clone())) {
                bounds.insert((index, position));
            }
        }
        if !bounds.is_empty() {
            figure.caption = note_lower_bounds(&figure.caption, &lines, &bounds, &positions);
            lines.extend(lower_bounds(&lines, &bounds));
        }
        figure.x.label = path.to_owned();
        let swept = lines.len();
        lines.append(&mut levels);
        match numbers(&positions) {
            Some((x, unit)) => {
                let mut order: Vec<usize> = (0..x.len()).collect();
                order.sort_by(|&a, &b| x[a].total_cmp(&x[b]));
                let (min, max) = (x[order[0]], x[order[x.len() - 1]]);
                figure.kind = FigureKind::Line;
                figure.x.unit = unit;
                figure.x.scale =
                    if min > 0.0 && max / min >= 50.0 { AxisScale::Log } else { AxisScale::Linear };
                figure.shared_x = Some(order.iter().map(|&i| x[i]).collect());
                figure.series =
                    lines.into_iter().map(|(name, v)| series(name, order.iter().map(|&i| &v[i]))).collect();
            }
            None => {
                figure.kind = FigureKind::Bar;
                figure.categories = positions;
                figure.series = lines.into_iter().map(|(name, v)| series(name, v.iter())).collect();
            }
        }
        figure.series.iter_mut().skip(swept).for_each(|level| level.dashed = true);
        let is_bound = |series: &&mut FigureSeries| series.name.starts_with(LOWER_BOUND);
        figure.series.iter_mut().filter(is_bound).for_each(|bound| bound.points = true);
        figure
    }

    fn by_subject(&self, mut figure: Figure) -> Figure {
        figure.kind = FigureKind::Bar;
        for line in &self.lines {
            let name = if line.subject.is_empty() { "network" } else { &line.subject };
            if !figure.categories.iter().any(|c| c == name) {
                figure.categories.push(name.to_owned());
            }
        }
        let mut cells: Vec<usize> = self.lines.iter().map(|l| l.cell).collect();
        cells.dedup();
        for cell in cells {
            let mut values = vec![Estimate::default(); figure.categories.len()];
            for line in self.lines.iter().filter(|l| l.cell == cell) {
                let name = if line.subject.is_empty() { "network" } else { &line.subject };
                if let Some(index) = figure.categories.iter().position(|c| c == name) {
                    values[index] = line.values.first().copied().unwrap_or_default();
                }
            }
            figure.series.push(series(self.cell_name(cell, &[]), values.iter()));
        }
        figure
    }

    fn heat_maps(&self, frame: Figure, path: &str, rows: &str) -> Vec<Figure> {
        let (columns, row_names) = (self.values_of(path), self.values_of(rows));
        let mut maps: Vec<HeatMap> = Vec::new();
        let mut levels = Vec::new();
        for line in &self.lines {
            let position = (self.position(line, path, &columns), self.position(line, rows, &row_names));
            let (Some(column), Some(row)) = position else {
                if let Some(mean) = line.values.first().and_then(|e| e.mean) {
                    levels.push(format!("{}: {}", self.line_name(line, &[]), format::number(mean)));
                }
                continue;
            };
            let name = self.line_name(line, &[path, rows]);
            let index = maps.iter().position(|(n, _)| *n == name).unwrap_or_else(|| {
                maps.push((name, vec![vec![None; columns.len()]; row_names.len()]));
                maps.len() - 1
            });
            maps[index].1[row][column] = line.values.first().and_then(|e| e.mean);
        }
        let several = maps.len() > 1;
        let level_note = if levels.is_empty() { String::new() } else { format!(" ({})", levels.join("; ")) };
        let figure = |(index, (name, cells)): (usize, HeatMap)| Figure {
            name: if several { format!("{}-{}", frame.name, index + 1) } else { frame.name.clone() },
            title: if several { format!("{}: {name}", frame.title) } else { frame.title.clone() },
            caption: format!("{}{level_note}", frame.caption),
            kind: FigureKind::Heatmap,
            x: Axis { label: path.to_owned(), ..Axis::default() },
            y: Axis { label: rows.to_owned(), ..Axis::default() },
            value: Some(frame.y.clone()),
            categories: columns.clone(),
            y_categories: row_names.clone(),
            cells,
            ..frame.clone()
        };
        maps.into_iter().enumerate().map(figure).collect()
    }

    /// Returns the distinct values of a path in the chosen cells, in order, also of cells without a value of the metric.
    fn values_of(&self, path: &str) -> Vec<String> {
        let mut values: Vec<String> = Vec::new();
        for cell in self.cells.iter().filter(|cell| cell_matches(cell, &self.plot.cells)) {
            if let Some(value) = cell_value(cell, path)
                && !values.iter().any(|v| v == value)
            {
                values.push(value.to_owned());
            }
        }
        values
    }

    fn position(&self, line: &PlotLine, path: &str, values: &[String]) -> Option<usize> {
        let value = cell_value(&self.cells[line.cell], path)?;
        values.iter().position(|v| v == value)
    }

    /// Returns a name that distinguishes a line from the others of its figure. `without`: paths to omit.
    fn line_name(&self, line: &PlotLine, without: &[&str]) -> String {
        let cell = self.cell_name(line.cell, without);
        let subjects = self.lines.iter().any(|l| l.subject != line.subject);
        match (cell.is_empty(), subjects) {
            (false, false) => cell,
            (false, true) => format!("{}, {cell}", line.subject),
            (true, _) if line.subject.is_empty() => self.plot.metric.clone(),
            (true, _) => line.subject.clone(),
        }
    }

    /// Returns the legend group of a line: its cell, if the cell has several subjects.
    fn group(&self, line: &PlotLine) -> String {
        let subjects = self.lines.iter().any(|l| l.cell == line.cell && l.subject != line.subject);
        if subjects { self.cell_name(line.cell, &[]) } else { String::new() }
    }

    /// Returns a name of a cell from the values in which the plotted cells differ. `without`: paths to omit.
    fn cell_name(&self, cell: usize, without: &[&str]) -> String {
        let differs = |path: &str, value: &str| {
            let mut shown = self.lines.iter().map(|l| &self.cells[l.cell]);
            !without.contains(&path) && shown.any(|c| cell_value(c, path) != Some(value))
        };
        let this = &self.cells[cell];
        let variant = differs("variant", &this.variant).then(|| this.variant.clone());
        let settings = this.settings.iter().filter(|(path, value)| differs(path, value));
        let settings = settings.map(|(path, value)| format!("{} = {value}", short(path)));
        variant.into_iter().chain(settings).collect::<Vec<_>>().join(", ")
    }
}

/// Beginning of the names of marks at lower bounds.
const LOWER_BOUND: &str = "≥ ";

/// Returns a series of marks for each line with lower bounds, which are pairs of a line and a position.
fn lower_bounds(
    lines: &[(String, Vec<Estimate>)],
    bounds: &BTreeSet<(usize, usize)>,
) -> Vec<(String, Vec<Estimate>)> {
    let marks = lines.iter().enumerate().filter_map(|(number, (name, values))| {
        let is_bound = |position: usize| bounds.contains(&(number, position));
        let value = |(position, value): (usize, &Estimate)| match is_bound(position) {
            true => *value,
            false => Estimate::default(),
        };
        let marks: Vec<Estimate> = values.iter().enumerate().map(value).collect();
        (0..values.len()).any(is_bound).then(|| (format!("{LOWER_BOUND}{name}"), marks))
    });
    marks.collect()
}

/// Returns a caption that lists the lower bounds.
fn note_lower_bounds(
    caption: &str,
    lines: &[(String, Vec<Estimate>)],
    bounds: &BTreeSet<(usize, usize)>,
    positions: &[String],
) -> String {
    let names =
        bounds.iter().map(|(line, position)| format!("{} at {}", lines[*line].0, positions[*position]));
    let names = names.collect::<Vec<_>>().join("; ");
    format!("{caption} Lower bounds (≥), because the tester or the maximum rate was the limit: {names}.")
        .trim_start()
        .to_owned()
}

/// Returns the last component of a path.
pub fn short(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

fn series<'a>(name: String, values: impl Iterator<Item = &'a Estimate> + Clone) -> FigureSeries {
    let interval = values.clone().any(|e| e.low.is_some());
    let column =
        |field: fn(&Estimate) -> Option<f64>| values.clone().map(|e| field(e).map(rounded)).collect();
    FigureSeries {
        name,
        y: column(|e| e.mean),
        low: interval.then(|| column(|e| e.low)),
        high: interval.then(|| column(|e| e.high)),
        ..FigureSeries::default()
    }
}

/// Parses texts as numbers with one common unit. `None` if a text is no number or the units differ.
fn numbers(texts: &[String]) -> Option<(Vec<f64>, String)> {
    let split = |text: &String| {
        let end = text.find(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c))).unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        Some((number.parse::<f64>().ok().filter(|n| n.is_finite())?, unit.trim().to_owned()))
    };
    let parts: Vec<(f64, String)> = texts.iter().map(split).collect::<Option<_>>()?;
    let unit = parts.first()?.1.clone();
    let same = parts.iter().all(|(_, u)| *u == unit);
    (same && parts.len() > 1).then(|| (parts.into_iter().map(|(n, _)| n).collect(), unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::rng::RandomStream;
    use netstage_core::time::Duration;

    #[test]
    fn numbers_need_one_unit() {
        let texts = |t: &[&str]| t.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        assert_eq!(numbers(&texts(&["0.01", "1"])), Some((vec![0.01, 1.0], String::new())));
        assert_eq!(numbers(&texts(&["10 Mbit/s", "2e1 Mbit/s"])), Some((vec![10.0, 20.0], "Mbit/s".into())));
        assert_eq!(numbers(&texts(&["900 kbit/s", "1 Mbit/s"])), None);
        assert_eq!(numbers(&texts(&["none", "1"])), None);
        assert_eq!(numbers(&texts(&["1"])), None);
    }

    /// Draws sweeps of numbers, of texts and of quantities with equal or different units, also in variants, and cells
    /// without a value. Each value of each cell must be in a figure, and each swept value on an axis.
    #[test]
    fn figures_contain_every_swept_value() {
        for seed in 0..500 {
            let mut stream = RandomStream::new(seed, "swept values");
            let mut axis = |name: &str, max: u64| -> (String, Vec<String>) {
                let (kind, count) = (stream.below(5), 1 + stream.below(max));
                let mut values: Vec<String> = Vec::new();
                for k in 0..count {
                    let value = match kind {
                        0 => format!("{} ms", stream.below(3) * 1_000 + k),
                        1 => format!("{} Mbit/s", 10.0_f64.powi(k as i32 - 4)),
                        2 => format!("{} {}", k, if k % 2 == 0 { "ms" } else { "s" }),
                        3 => {
                            ["none", "red", "codel", "0", "1e400", "-1", "NaN", "inf"][k as usize % 8]
                                .to_owned()
                                + &"+".repeat(k as usize / 8)
                        }
                        _ => format!("{}", stream.below(1_000_000) as f64 / 1_000.0),
                    };
                    if !values.contains(&value) {
                        values.push(value);
                    }
                }
                (name.to_owned(), values)
            };
            let axes = [axis("link.a.delay", 12), axis("link.b.delay", 4), axis("variant", 3)];
            let mut cells = Vec::new();
            for variant in &axes[2].1 {
                for b in &axes[1].1 {
                    for a in &axes[0].1 {
                        let settings = vec![(axes[0].0.clone(), a.clone()), (axes[1].0.clone(), b.clone())];
                        cells.push(Cell { variant: variant.clone(), settings, plan: crate::fixture::plan() });
                    }
                }
            }
            let over = (crate::fixture::at(0), crate::fixture::at(10));
            let path = axes[stream.below(3) as usize].0.clone();
            let rows = axes
                .iter()
                .map(|axis| axis.0.clone())
                .find(|name| *name != path)
                .filter(|_| stream.chance(0.5));
            let against = match stream.below(4) {
                0 => PlotAxis::Time,
                1 => PlotAxis::Subject { over },
                _ => PlotAxis::Swept { path: path.clone(), rows, over },
            };
            let metric = [Metric::FlowLost, Metric::FlowRoundTrip][stream.below(2) as usize];
            let is_swept = matches!(against, PlotAxis::Swept { .. });
            let plot = Plot {
                name: "p".into(),
                title: "P".into(),
                caption: String::new(),
                claim: String::new(),
                metric: metric.info().name.into(),
                subject: "*".into(),
                against,
                reference_lines: Vec::new(),
                cells: Vec::new(),
                range: (None, None),
            };
            let mut plotter = Plotter::new(plot, &cells);
            let subjects = 1 + stream.below(2);
            let mut expected = Vec::new();
            for cell in 0..cells.len() {
                let mut outcome =
                    RunOutcome { interval: Duration::from_secs(1), bins: 10, ..RunOutcome::default() };
                for subject in 0..subjects {
                    if stream.chance(0.1) {
                        continue;
                    }
                    let value = (cell as u64 * subjects + subject + 1) as f64;
                    expected.push(value);
                    let values = vec![value / if metric == Metric::FlowLost { 10.0 } else { 1.0 }; 10];
                    outcome.series.push(Bins { metric, subject: format!("noise{subject}"), values });
                }
                plotter.add(cell, &outcome);
                plotter.end_cell(cell, &CellDistributions::default());
            }
            let figures = plotter.finish();
            let about = format!("seed {seed}: {axes:?}, {path}: {figures:?}");
            let drawn: Vec<f64> = figures
                .iter()
                .flat_map(|f| f.series.iter().flat_map(|s| &s.y).chain(f.cells.iter().flatten()))
                .flatten()
                .copied()
                .collect();
            let found = |value: f64| {
                drawn
                    .iter()
                    .any(|y| [y / value, y * 10.0 / value].iter().any(|ratio| (ratio - 1.0).abs() < 1e-9))
            };
            let missing = expected.iter().filter(|value| !found(**value)).count();
            let is_noted = figures.iter().any(|f| f.caption.contains("series.parquet has all"));
            assert!(missing == 0 || is_noted, "{missing} missing; {about}");
            let values = &axes.iter().find(|axis| axis.0 == path).unwrap().1;
            if is_swept && !expected.is_empty() {
                for figure in &figures {
                    let x = figure.shared_x.as_ref().map_or(figure.categories.len(), Vec::len);
                    assert_eq!(x, values.len(), "{about}");
                }
            }
        }
    }
}
