//! Checks of expectations and plots against the plans: metrics, subjects, time spans and cells.

use crate::error::{Problems, SourceRange, did_you_mean};
use crate::expect::{Bound, Expectation, Plot, PlotAxis, Selection, Statistic};
use crate::file::ScenarioFile;
use crate::file::study::{self, Assignments};
use crate::outcome::{Metric, MetricInfo};
use crate::pattern::matches;
use crate::plan::{FlowDirection, FlowTransport, NodeKind, Plan};
use crate::quantity::Dimension;
use crate::scalar::{Amount, MetricName, SubjectPattern};
use crate::sweep::CellLabel;
use crate::table::{List, Located};
use netstage_core::time::{Duration, Instant};
use std::collections::BTreeSet;

/// Checker of expectations and plots.
pub(crate) struct ExpectationChecker<'a> {
    /// Labels of all cells; empty if a fault leaves them unknown, which skips the checks of variants and swept values.
    pub labels: &'a [CellLabel],
    /// Facts of the cells without faults.
    pub facts: &'a CellFacts,
    pub problems: &'a mut Problems,
    /// The command line changed the file: entries that no longer apply are dropped instead of refused.
    pub changed: bool,
    /// Dropped entries: `expect` or `plot`, the name, and the reason.
    pub left_out: Vec<(&'static str, String, String)>,
    /// Reason to drop the current entry.
    reason: Option<String>,
}

/// Facts of the cells without faults, collected cell by cell because a plan is large.
pub(crate) struct CellFacts {
    first: Option<Plan>,
    longest: Option<Duration>,
    /// Widths of bins.
    intervals: BTreeSet<Duration>,
    /// Metrics and subject patterns of the file that no cell has.
    missing_subjects: BTreeSet<(&'static str, String)>,
    /// Whether the run of any cell is random.
    pub is_random: bool,
}

impl CellFacts {
    pub fn new(file: &ScenarioFile) -> CellFacts {
        let expected = file.expect.0.iter().filter_map(|member| member.value.as_ref());
        let plotted = file.plot.0.iter().filter_map(|member| member.value.as_ref());
        let expected = expected.map(|expect| (&expect.metric, &expect.subject));
        let named = expected.chain(plotted.map(|plot| (&plot.metric, &plot.subject)));
        let missing_subjects = named.filter_map(|(metric, subject)| {
            let metric = Metric::by_name(&metric.value.0)?.info().name;
            Some((metric, subject.as_ref()?.value.0.clone()))
        });
        CellFacts {
            first: None,
            longest: None,
            intervals: BTreeSet::new(),
            missing_subjects: missing_subjects.collect(),
            is_random: false,
        }
    }

    pub fn add(&mut self, plan: &Plan) {
        self.first.get_or_insert_with(|| plan.clone());
        self.longest = self.longest.max(Some(plan.duration));
        self.intervals.insert(plan.measure.interval);
        self.missing_subjects.retain(|(metric, pattern)| !has_subject(plan, metric, pattern));
        self.is_random |= plan.is_random();
    }
}

type Over = Option<Located<List<Located<Duration>, 2, 2>>>;

impl<'a> ExpectationChecker<'a> {
    pub fn new(
        labels: &'a [CellLabel],
        facts: &'a CellFacts,
        problems: &'a mut Problems,
        changed: bool,
    ) -> ExpectationChecker<'a> {
        ExpectationChecker { labels, facts, problems, changed, left_out: Vec::new(), reason: None }
    }

    pub fn expectations(&mut self, file: &ScenarioFile) -> Vec<Expectation> {
        let members = file.expect.0.iter().filter_map(|m| Some((&m.name, m.place, m.value.as_ref()?)));
        members
            .filter_map(|(name, place, expect)| {
                let checked = self.expectation(name, place, expect);
                self.keep("expect", name, checked)
            })
            .collect()
    }

    pub fn plots(&mut self, file: &ScenarioFile) -> Vec<Plot> {
        let members = file.plot.0.iter().filter_map(|m| Some((&m.name, m.value.as_ref()?)));
        members
            .filter_map(|(name, plot)| {
                let checked = self.plot(name, plot);
                self.keep("plot", name, checked)
            })
            .collect()
    }

    fn keep<T>(&mut self, table: &'static str, name: &str, checked: Option<T>) -> Option<T> {
        match self.reason.take() {
            Some(reason) => {
                self.left_out.push((table, name.to_owned(), reason));
                None
            }
            None => checked,
        }
    }

    fn expectation(
        &mut self,
        name: &str,
        place: SourceRange,
        expect: &study::ExpectTable,
    ) -> Option<Expectation> {
        let metric = self.metric(&expect.metric);
        let cells = self.cells(&expect.cells);
        let over = self.over(&expect.over);
        let unit = metric.map(|m| m.unit);
        let statistic = self.statistic(expect, unit, place);
        let bound_unit =
            if expect.statistic.value == study::Statistic::ConvergenceTime { Some("s") } else { unit };
        let bound = self.bound(expect, bound_unit, place);
        let metric = metric?;
        let subject = self.subject(&expect.subject, metric);
        let select = Selection {
            metric: metric.name.to_owned(),
            subject: subject?,
            over: over?,
            statistic: statistic?,
            cells: cells?,
        };
        Some(Expectation {
            name: name.to_owned(),
            select,
            bound: bound?,
            claim: expect.claim.clone(),
            missed: expect.missed.clone(),
        })
    }

    fn statistic(
        &mut self,
        expect: &study::ExpectTable,
        unit: Option<&str>,
        place: SourceRange,
    ) -> Option<Statistic> {
        if let (Some(above), false) =
            (&expect.above, expect.statistic.value == study::Statistic::ConvergenceTime)
        {
            let help = "remove it, or set statistic = \"convergence-time\"";
            self.problems.push_help(above.place, "`above` has no effect with this statistic", help);
            return None;
        }
        Some(match expect.statistic.value {
            study::Statistic::Mean => Statistic::Mean,
            study::Statistic::Min => Statistic::Min,
            study::Statistic::Max => Statistic::Max,
            study::Statistic::Sum => Statistic::Sum,
            study::Statistic::P50 => self.quantile(expect, 0.5)?,
            study::Statistic::P90 => self.quantile(expect, 0.9)?,
            study::Statistic::P95 => self.quantile(expect, 0.95)?,
            study::Statistic::P99 => self.quantile(expect, 0.99)?,
            study::Statistic::P999 => self.quantile(expect, 0.999)?,
            study::Statistic::ConvergenceTime => match &expect.above {
                Some(above) => Statistic::ConvergenceTime { above: self.amount(above, unit)? },
                None => {
                    let help = "add the value to exceed from then on, such as above = 0.9";
                    self.problems.push_help(place, "statistic \"convergence-time\" needs `above`", help);
                    return None;
                }
            },
        })
    }

    /// Checks that a metric has a distribution.
    fn distributed(&mut self, metric: &str, place: SourceRange) -> Option<()> {
        let names: Vec<&str> = Metric::DISTRIBUTED.iter().map(|m| m.info().name).collect();
        if names.contains(&metric) {
            return Some(());
        }
        let help = format!("metrics with a distribution: {}", names.join(", "));
        self.problems.push_help(place, format!("{metric} has no distribution"), help);
        None
    }

    /// Returns the statistic of a percentile, if the metric has a distribution.
    fn quantile(&mut self, expect: &study::ExpectTable, share: f64) -> Option<Statistic> {
        self.distributed(&expect.metric.value.0, expect.statistic.place)?;
        if let Some(over) = &expect.over {
            let help = "remove it; distributions cover the whole run";
            self.problems.push_help(over.place, "`over` has no effect with a percentile", help);
            return None;
        }
        Some(Statistic::Quantile(share))
    }

    fn bound(
        &mut self,
        expect: &study::ExpectTable,
        unit: Option<&str>,
        place: SourceRange,
    ) -> Option<Bound> {
        let given = [
            expect.at_least.as_ref().map(|v| v.place),
            expect.at_most.as_ref().map(|v| v.place),
            expect.near.as_ref().map(|v| v.place),
            expect.above_variant.as_ref().map(|v| v.place),
            expect.above_cell.0.first().map(|v| v.place),
        ];
        let mut given = given.into_iter().flatten();
        match (given.next(), given.next()) {
            (None, _) => {
                let help = "add `at_least`, `at_most`, `near` with `within`, `above_variant` or `above_cell`";
                self.problems.push_help(place, "an expectation needs a bound", help);
                return None;
            }
            (_, Some(second)) => {
                let help = "move it to an [expect.NAME] of its own";
                self.problems.push_help(second, "an expectation takes one bound only", help);
                return None;
            }
            _ => {}
        }
        if let (Some(within), None) = (&expect.within, &expect.near) {
            let help = "remove it, or add `near`";
            self.problems.push_help(within.place, "`within` has no effect without `near`", help);
            return None;
        }
        let compares = expect.above_variant.is_some() || !expect.above_cell.0.is_empty();
        if let (Some(confident), false) = (&expect.confident, compares) {
            let help = "remove it, or add `above_variant` or `above_cell`";
            let message = "`confident` has no effect without another cell to compare with";
            self.problems.push_help(confident.place, message, help);
            return None;
        }
        if let Some(value) = &expect.at_least {
            return self.amount(value, unit).map(Bound::AtLeast);
        }
        if let Some(value) = &expect.at_most {
            return self.amount(value, unit).map(Bound::AtMost);
        }
        if let Some(value) = &expect.near {
            let Some(within) = &expect.within else {
                self.problems.push_help(
                    value.place,
                    "`near` needs `within`",
                    "add a tolerance, such as within = \"10 %\"",
                );
                return None;
            };
            return Some(Bound::Near { value: self.amount(value, unit)?, within: within.value.0 });
        }
        let other = match &expect.above_variant {
            Some(variant) => vec![("variant".to_owned(), self.variant(variant)?)],
            None => self.cells(&expect.above_cell)?,
        };
        Some(Bound::Above {
            other,
            confident: expect.confident.as_ref().is_some_and(|confident| confident.value),
        })
    }

    fn variant(&mut self, variant: &Located<String>) -> Option<String> {
        let known = self.labels.iter().any(|cell| cell.variant == variant.value && !variant.value.is_empty());
        if !known && !self.labels.is_empty() {
            let mut names: Vec<&str> =
                self.labels.iter().map(|c| c.variant.as_str()).filter(|n| !n.is_empty()).collect();
            names.dedup();
            let help = did_you_mean(&variant.value, names).or(Some("the file has no variants".into()));
            let message = format!("unknown variant `{}`", variant.value.escape_debug());
            self.problems.push_with_help(variant.place, message, help);
            return None;
        }
        Some(variant.value.clone())
    }

    /// Returns a number in the metric's unit.
    fn amount(&mut self, amount: &Located<Amount>, unit: Option<&str>) -> Option<f64> {
        let fits = match amount.dimension {
            None => true,
            Some(Dimension::Rate) => unit == Some("bit/s"),
            Some(Dimension::Time) => unit == Some("s"),
            Some(Dimension::Packets) => unit == Some("packets"),
            Some(Dimension::Share) => unit == Some(""),
            Some(Dimension::Size) => unit == Some("B"),
        };
        if !fits && unit.is_some() {
            let found = amount.dimension.map_or("", |d| d.name());
            let unit = match unit.unwrap_or("") {
                "" => "a plain number".to_owned(),
                unit => format!("a value in {unit}"),
            };
            self.problems.push(amount.place, format!("expected {unit}, found {found}"));
            return None;
        }
        Some(amount.value.value)
    }

    fn metric(&mut self, name: &Located<MetricName>) -> Option<MetricInfo> {
        let found = Metric::by_name(&name.value.0).map(Metric::info);
        if found.is_none() {
            let names: Vec<&str> = Metric::ALL.iter().map(|metric| metric.info().name).collect();
            let help = did_you_mean(&name.value.0, names.iter().copied())
                .or_else(|| Some(format!("available: {}", names.join(", "))));
            let message = format!("unknown metric `{}`", name.value.0.escape_debug());
            self.problems.push_with_help(name.place, message, help);
        }
        found
    }

    /// Returns the pattern if it matches a subject of the metric.
    fn subject(&mut self, subject: &Option<Located<SubjectPattern>>, metric: MetricInfo) -> Option<String> {
        let Some(subject) = subject else { return Some(String::new()) };
        let pattern = &subject.value.0;
        let Some(plan) = &self.facts.first else { return Some(pattern.clone()) };
        if !self.facts.missing_subjects.contains(&(metric.name, pattern.clone())) {
            return Some(pattern.clone());
        }
        let names = subject_names(plan, metric.name);
        let has_members = plan.flows.iter().any(|flow| flow.name == *pattern && flow.count > 1);
        let has_receivers = plan.flows.iter().any(|flow| flow.name == *pattern && !flow.branches.is_empty());
        let help = match names.is_empty() {
            true if metric.name.starts_with("test.") => Some("no test of this file has this result".into()),
            true => Some("this metric covers the whole network: remove `subject`".into()),
            false if has_members => Some(format!("did you mean `{pattern}[*]`?")),
            false if has_receivers => {
                Some(format!("did you mean `{pattern}@*`? The flow has several receivers"))
            }
            false => did_you_mean(pattern, names.iter().map(String::as_str)),
        };
        let message = format!("no subject of `{}` matches `{}`", metric.name, pattern.escape_debug());
        self.problems.push_with_help(subject.place, message, help);
        None
    }

    fn over(&mut self, over: &Over) -> Option<(Instant, Instant)> {
        let longest = self.facts.longest;
        let Some(over) = over else { return Some((Instant::ZERO, Instant(longest?.0))) };
        let [from, to] = &over.value.0[..] else { return None };
        if from.value >= to.value {
            let help = "give the start first: over = [\"2 s\", \"10 s\"]";
            self.problems.push_help(over.place, "the end of the span is not after its start", help);
            return None;
        }
        if longest.is_some_and(|longest| to.value > longest) {
            if self.changed {
                self.reason = Some("its span ends after the end of the run".into());
                return None;
            }
            let help = longest.map(|longest| format!("the run ends at {} s", longest.0 as f64 / 1e9));
            self.problems.push_with_help(to.place, "the span ends after the end of the run", help);
            return None;
        }
        let cuts =
            |interval: &&Duration| [from, to].iter().any(|end| !end.value.0.is_multiple_of(interval.0));
        if let Some(interval) = self.facts.intervals.iter().find(cuts) {
            let width = interval.as_secs_f64();
            if self.changed {
                self.reason = Some(format!("its span begins or ends within a bin of {width} s"));
                return None;
            }
            let message = format!("the span begins or ends within a bin of {width} s");
            let help = "give times between bins, or a shorter `interval` in [measure]";
            self.problems.push_help(over.place, message, help);
            return None;
        }
        Some((Instant(from.value.0), Instant(to.value.0)))
    }

    /// Checks a selection of cells by value: the paths must be swept, and take these values.
    fn cells(&mut self, selected: &Assignments) -> Option<Vec<(String, String)>> {
        let mut cells = Vec::new();
        for assignment in &selected.0 {
            let value = assignment.value.label();
            self.swept(&assignment.path, assignment.place)?;
            let found = self.labels.iter().any(|cell| setting(cell, &assignment.path) == Some(&value));
            if !found && self.changed {
                self.reason = Some(format!("no cell has {} = {value}", assignment.path));
                return None;
            }
            if !found && !self.labels.is_empty() {
                let mut values: Vec<&str> =
                    self.labels.iter().filter_map(|cell| setting(cell, &assignment.path)).collect();
                values.sort();
                values.dedup();
                let help = format!("available: {}", values.join(", "));
                let message = format!("no cell has {} = {value}", assignment.path);
                self.problems.push_help(assignment.value.place, message, help);
                return None;
            }
            cells.push((assignment.path.clone(), value));
        }
        Some(cells)
    }

    fn swept(&mut self, path: &str, place: SourceRange) -> Option<()> {
        if self.labels.is_empty() || self.labels.iter().any(|cell| setting(cell, path).is_some()) {
            return Some(());
        }
        let paths = self.labels.iter().flat_map(|c| c.settings.iter().map(|(path, _)| path.as_str()));
        let mut paths: Vec<&str> = paths.collect();
        paths.sort();
        paths.dedup();
        let help = did_you_mean(path, paths).or(Some("the file sweeps no path".into()));
        self.problems.push_with_help(place, format!("`{}` is not swept", path.escape_debug()), help);
        None
    }

    fn plot(&mut self, name: &str, plot: &study::PlotTable) -> Option<Plot> {
        let metric = self.metric(&plot.metric);
        let cells = self.cells(&plot.cells);
        let over = self.over(&plot.over);
        let against = self.against(plot, metric, over);
        let lines = plot.reference_lines.0.iter();
        let lines: Vec<Option<(f64, String)>> = lines
            .map(|line| Some((self.amount(&line.value, metric.map(|m| m.unit))?, line.label.clone())))
            .collect();
        let range = match &plot.range {
            None => (None, None),
            Some(range) => {
                let (low, high) = (range.value.0[0].0, range.value.0[1].0);
                if low >= high {
                    let help = "give the lower end first: range = [0, 100]";
                    self.problems.push_help(
                        range.place,
                        "the first value must be less than the second",
                        help,
                    );
                    return None;
                }
                (Some(low), Some(high))
            }
        };
        let metric = metric?;
        Some(Plot {
            name: name.to_owned(),
            title: plot.title.clone().unwrap_or_else(|| name.to_owned()),
            caption: plot.caption.clone(),
            claim: plot.claim.clone(),
            metric: metric.name.to_owned(),
            subject: self.subject(&plot.subject, metric)?,
            against: against?,
            reference_lines: lines.into_iter().collect::<Option<_>>()?,
            cells: cells?,
            range,
        })
    }

    fn against(
        &mut self,
        plot: &study::PlotTable,
        metric: Option<MetricInfo>,
        over: Option<(Instant, Instant)>,
    ) -> Option<PlotAxis> {
        let against = plot.against.value.0.as_str();
        let of_distributions = match against {
            "percentile" => Some(PlotAxis::Percentile),
            "histogram" => Some(PlotAxis::Histogram),
            "cdf" => Some(PlotAxis::Cdf),
            "box" => Some(PlotAxis::Box),
            _ => None,
        };
        if of_distributions.is_some() {
            self.distributed(metric?.name, plot.against.place)?;
        }
        if let (Some(rows), "time" | "subject" | "percentile" | "histogram" | "cdf" | "box") =
            (&plot.rows, against)
        {
            let help = "remove it, or set `against` to a swept path";
            self.problems.push_help(
                rows.place,
                format!("`rows` has no effect with against = \"{against}\""),
                help,
            );
            return None;
        }
        match against {
            "time" | "percentile" | "histogram" | "cdf" | "box" => {
                if let Some(over) = &plot.over {
                    let message = format!("`over` has no effect with against = \"{against}\"");
                    self.problems.push_help(over.place, message, "remove it");
                    return None;
                }
                Some(of_distributions.unwrap_or(PlotAxis::Time))
            }
            "subject" => Some(PlotAxis::Subject { over: over? }),
            path => {
                self.swept(path, plot.against.place)?;
                if let Some(rows) = &plot.rows {
                    self.swept(&rows.value.0, rows.place)?;
                }
                let rows = plot.rows.as_ref().map(|rows| rows.value.0.clone());
                Some(PlotAxis::Swept { path: path.to_owned(), rows, over: over? })
            }
        }
    }
}

fn setting<'a>(cell: &'a CellLabel, path: &str) -> Option<&'a str> {
    if path == "variant" {
        return Some(cell.variant.as_str()).filter(|name| !name.is_empty());
    }
    cell.settings.iter().find(|(p, _)| p == path).map(|(_, value)| value.as_str())
}

/// Returns the subjects of a flow's member that have a metric.
fn flow_subjects(plan: &Plan, metric: &str, group: usize, member: usize) -> Vec<String> {
    let found = Metric::by_name(metric);
    // Both ends of an application over TCP are senders.
    let flow = &plan.flows[group];
    let is_tcp = matches!(flow.transport, FlowTransport::Tcp(_));
    if found.is_some_and(|metric| metric.is_of_tcp_events()) && is_tcp && flow.traffic.application().is_some()
    {
        let name = plan.flow_name(group, member);
        return FlowDirection::BOTH.map(|direction| direction.subject(&name)).into();
    }
    match found.is_some_and(|metric| metric.is_of_sender()) {
        true => vec![plan.flow_name(group, member)],
        false => plan.receivers(group, member).into_iter().map(|(_, subject)| subject).collect(),
    }
}

fn subject_names(plan: &Plan, metric: &str) -> Vec<String> {
    if metric.starts_with("flow.") || metric.starts_with("app.") {
        let first_two = plan.flows.iter().enumerate();
        first_two
            .flat_map(|(group, flow)| {
                (0..flow.count.min(2)).flat_map(move |k| flow_subjects(plan, metric, group, k))
            })
            .collect()
    } else if metric.starts_with("vpn.") || metric.contains(".per_vpn") {
        plan.vpns.iter().map(|vpn| vpn.name.clone()).collect()
    } else if metric.starts_with("pe.") {
        let edges = plan.nodes.iter().filter(|node| node.kind == NodeKind::Pe);
        edges.map(|node| node.name.clone()).collect()
    } else if let Some(server) = plan.route_server.as_ref().filter(|_| metric.starts_with("bgp.")) {
        let name = |node: usize| plan.nodes[node].name.as_str();
        match metric == Metric::BgpConvergence.info().name {
            true => server.change_names(name),
            false => server.members.iter().map(|member| name(member.node).to_owned()).collect(),
        }
    } else if let Some(server) = plan.route_server.as_ref().filter(|_| metric.starts_with("service.")) {
        server.programs().iter().map(|program| format!("{}.{program}", server.name)).collect()
    } else if metric.starts_with("link.") {
        plan.links.iter().flat_map(|l| ["forward", "reverse"].map(|d| format!("{}.{d}", l.name))).collect()
    } else if let Some(metric) = Metric::by_name(metric).filter(|metric| metric.is_finding()) {
        plan.tests.iter().flat_map(|test| test.subjects(metric)).collect()
    } else {
        Vec::new()
    }
}

fn has_subject(plan: &Plan, metric: &str, pattern: &str) -> bool {
    if !(metric.starts_with("flow.") || metric.starts_with("app.")) {
        let names = subject_names(plan, metric);
        return names.iter().any(|name| matches(pattern, name)) || (names.is_empty() && pattern.is_empty());
    }
    let mut flows = plan.flows.iter().enumerate();
    let is_match = |name: &String| matches(pattern, name);
    flows.any(|(group, flow)| {
        (0..flow.count).any(|k| flow_subjects(plan, metric, group, k).iter().any(is_match))
    })
}
