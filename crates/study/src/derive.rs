//! Metrics derived from measured ones: fairness, and utilization net of background traffic.
//!
//! A flow is active from the bin in which it starts until the bin in which it stops or the last byte of its bulk
//! transfer arrives. A VPN is active while one of its flows is. A bin without an active flow has no value.

use netstage_core::measure::{jain, weighted_fairness};
use netstage_core::quantity::BitRate;
use netstage_core::traffic::Pattern;
use netstage_scenario::outcome::{Metric, RunOutcome, Series};
use netstage_scenario::plan::{FlowGroup, FlowTransport, Hop, Plan};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

/// Largest usual packet, bytes.
const FULL_PACKET: u32 = 1500;

/// Flow other than background.
struct MeasuredFlow<'a> {
    vpn: Option<usize>,
    active: Range<usize>,
    throughput: &'a [f64],
}

/// Adds the derived series and sorts all series by metric.
pub fn derive(plan: &Plan, outcome: &mut RunOutcome) {
    let mut derived = Vec::new();
    let members = members(plan, outcome);
    if !plan.vpns.is_empty() {
        derived.extend(inter_vpn(plan, outcome, &members));
        derived.extend(intra_vpn(plan, outcome.bins, &members));
    }
    derived.extend(utilization(plan, outcome));
    for (group, (count, of)) in unfinished(plan, outcome, |_| true) {
        outcome.warnings.push(format!(
            "flow.{group}: {count} of {of} transfers had not completed at the end of the run; its completion times are those \
             of the others"
        ));
    }
    outcome.warnings.extend(late_bytes(plan, outcome));
    outcome.series.extend(derived);
    outcome.series.sort_by_key(|series| series.metric);
}

/// Returns the number of transfers of a given size that have not completed, and of all, by flow group, of the flows that
/// `is_selected` accepts by name.
pub fn unfinished<'a>(
    plan: &'a Plan,
    outcome: &RunOutcome,
    is_selected: impl Fn(&str) -> bool,
) -> BTreeMap<&'a str, (usize, usize)> {
    let times = outcome.distributions.iter().filter(|one| one.metric == Metric::FlowCompletionTime);
    let completed: HashSet<&str> = times.map(|one| one.subject.as_str()).collect();
    let is_sized =
        |group: &FlowGroup| matches!(group.traffic.pattern(), Some(Pattern::Bulk { size: Some(_) }));
    let mut found = BTreeMap::new();
    for (index, group) in plan.flows.iter().enumerate().filter(|(_, group)| is_sized(group)) {
        let names = (0..group.count).map(|member| plan.flow_name(index, member));
        let names: Vec<String> = names.filter(|name| is_selected(name)).collect();
        let missing = names.iter().filter(|name| !completed.contains(name.as_str())).count();
        if missing > 0 {
            found.insert(group.name.as_str(), (missing, names.len()));
        }
    }
    found
}

/// Returns a warning for each group with a flow that received more in a bin than its path carries. A stream delivers in order:
/// what arrived behind a loss counts when the retransmission arrives.
fn late_bytes(plan: &Plan, outcome: &RunOutcome) -> Vec<String> {
    let by_name = throughputs(outcome);
    // A bin can contain one packet more than its width.
    let packet = f64::from(FULL_PACKET) * 8.0 / outcome.interval.as_secs_f64();
    let warning = |(index, group): (usize, &FlowGroup)| {
        let line = group.path.iter().min_by_key(|hop| highest_rate(plan, **hop))?;
        let most = highest_rate(plan, *line).as_f64() + packet;
        let mut names = (0..group.count).map(|member| plan.flow_name(index, member));
        let exceeds =
            |name: String| by_name.get(name.as_str()).is_some_and(|one| one.values.iter().any(|v| *v > most));
        names.any(exceeds).then(|| {
            format!(
                "flow.{}: in some bins, flow.throughput exceeds the rate of link.{}: bytes behind a loss count when the \
                 retransmission arrives, because the application receives in order; link.throughput shows the line",
                group.name, plan.links[line.link].name
            )
        })
    };
    let is_stream =
        |group: &FlowGroup| matches!(group.transport, FlowTransport::Tcp(_) | FlowTransport::Quic);
    // The sources of patterns send to `to`, the programs of services in both directions; routing daemons change paths.
    let groups = plan.flows.iter().enumerate().filter(|(_, group)| is_stream(group));
    let groups = groups.filter(|(_, group)| group.traffic.pattern().is_some() && group.program.is_none());
    if plan.routing.is_some() { Vec::new() } else { groups.filter_map(warning).collect() }
}

/// Returns the highest rate that a hop has in the run.
fn highest_rate(plan: &Plan, hop: Hop) -> BitRate {
    let link = plan.hop(hop);
    link.schedule.iter().filter_map(|(_, change)| change.rate).fold(link.rate, BitRate::max)
}

/// Returns whether a metric has one value per span instead of one per bin. Findings of tests count as such, as they
/// do not depend on bins.
pub fn is_whole_span(metric: Metric) -> bool {
    let whole = matches!(metric, Metric::FairnessIntraVpnWholeRun | Metric::FairnessIntraVpnEachWholeRun);
    whole || metric.is_finding()
}

/// Returns the values of a whole-span metric over `bins`, by subject.
pub fn whole_span(
    plan: &Plan,
    outcome: &RunOutcome,
    metric: Metric,
    bins: &Range<usize>,
) -> Vec<(String, f64)> {
    let members = members(plan, outcome);
    let means = |vpn: Option<usize>| -> Vec<f64> {
        let counted = members.iter().filter(|m| m.vpn.is_some() && (vpn.is_none() || m.vpn == vpn));
        let means = counted.filter_map(|m| {
            let active = m.active.start.max(bins.start)..m.active.end.min(bins.end);
            let values = m.throughput.get(active).filter(|v| !v.is_empty())?;
            Some(values.iter().sum::<f64>() / values.len() as f64)
        });
        means.collect()
    };
    match metric {
        Metric::FairnessIntraVpnWholeRun if !plan.vpns.is_empty() => {
            vec![(String::new(), jain(&means(None)))]
        }
        Metric::FairnessIntraVpnEachWholeRun => {
            let each = plan.vpns.iter().enumerate();
            each.map(|(index, vpn)| (vpn.name.clone(), jain(&means(Some(index))))).collect()
        }
        _ => findings(outcome, metric),
    }
}

/// Returns the tests' findings of a metric, by subject.
fn findings(outcome: &RunOutcome, metric: Metric) -> Vec<(String, f64)> {
    let name = metric.info().name;
    let found = outcome.tests.iter().flat_map(|test| &test.findings).filter(|f| f.metric == name);
    found.map(|finding| (finding.subject.clone(), finding.value)).collect()
}

/// Returns the measured bins of a run: the whole ones after the start of the first measured flow.
pub fn measured(plan: &Plan, bins: usize) -> Range<usize> {
    let interval = plan.measure.interval.0.max(1);
    let first = starts(plan).min().map_or(0, |start| start.div_ceil(interval) as usize);
    first.min(bins.saturating_sub(1))..bins
}

/// Returns the bin in which the first measured flow starts.
pub fn first_start(plan: &Plan, bins: usize) -> usize {
    let interval = plan.measure.interval.0.max(1);
    starts(plan).min().map_or(0, |start| (start / interval) as usize).min(bins.saturating_sub(1))
}

/// Returns the starts of the measured flows, nanoseconds.
fn starts(plan: &Plan) -> impl Iterator<Item = u64> + '_ {
    plan.flows.iter().filter(|f| !f.background && f.count > 0).map(|f| f.start.0)
}

/// Returns the throughput series by flow.
fn throughputs(outcome: &RunOutcome) -> HashMap<&str, &Series> {
    let flows = series_of(outcome, Metric::FlowThroughput).iter();
    flows.map(|series| (series.subject.as_str(), series)).collect()
}

fn members<'a>(plan: &Plan, outcome: &'a RunOutcome) -> Vec<MeasuredFlow<'a>> {
    let by_name = throughputs(outcome);
    let interval = outcome.interval.0.max(1);
    let mut members = Vec::new();
    for (index, group) in plan.flows.iter().enumerate().filter(|(_, group)| !group.background) {
        for k in 0..group.count {
            let Some(series) = by_name.get(plan.flow_name(index, k).as_str()) else { continue };
            let start = group.start + group.stagger * k as u64;
            let first = (start.0 / interval) as usize;
            let mut end = (group.stop.0.div_ceil(interval) as usize).min(series.values.len());
            if let Some(&Pattern::Bulk { size: Some(size) }) = group.traffic.pattern() {
                end = end.min(bulk_end(&series.values, size, outcome.interval.as_secs_f64()));
            }
            members.push(MeasuredFlow { vpn: group.vpn, active: first..end, throughput: &series.values });
        }
    }
    members
}

/// Returns the index after the bin in which the last of `size` bytes arrives.
fn bulk_end(throughput: &[f64], size: u64, seconds: f64) -> usize {
    let mut left = size as f64 - 0.5;
    for (bin, rate) in throughput.iter().enumerate() {
        left -= rate * seconds / 8.0;
        if left <= 0.0 {
            return bin + 1;
        }
    }
    throughput.len()
}

/// Returns the series of one metric, which are adjacent.
pub fn series_of(outcome: &RunOutcome, metric: Metric) -> &[Series] {
    let start = outcome.series.partition_point(|s| s.metric < metric);
    let end = outcome.series.partition_point(|s| s.metric <= metric);
    &outcome.series[start..end]
}

fn inter_vpn(plan: &Plan, outcome: &RunOutcome, members: &[MeasuredFlow]) -> Option<Series> {
    let vpns = series_of(outcome, Metric::VpnThroughput);
    let mut shares = Vec::new();
    for (index, vpn) in plan.vpns.iter().enumerate() {
        let series = vpns.iter().find(|s| s.subject == vpn.name)?;
        let active: Vec<&Range<usize>> =
            members.iter().filter(|m| m.vpn == Some(index)).map(|m| &m.active).collect();
        shares.push((vpn.settings.weight, active, &series.values));
    }
    let value = |bin: usize| {
        let started = shares.iter().filter(|(_, active, _)| active.iter().any(|a| a.contains(&bin)));
        let (rates, weights): (Vec<f64>, Vec<f64>) = started.map(|(weight, _, v)| (v[bin], *weight)).unzip();
        weighted_fairness(&rates, &weights)
    };
    let values = (0..outcome.bins).map(value).collect();
    Some(Series { metric: Metric::FairnessInterVpn, subject: String::new(), values })
}

fn intra_vpn(plan: &Plan, bins: usize, members: &[MeasuredFlow]) -> Vec<Series> {
    let index = |metric, subject: &str, chosen: &[&MeasuredFlow]| {
        let rates = |bin: usize| -> Vec<f64> {
            chosen.iter().filter(|m| m.active.contains(&bin)).map(|m| m.throughput[bin]).collect()
        };
        let values = (0..bins).map(|bin| jain(&rates(bin))).collect();
        Series { metric, subject: subject.to_owned(), values }
    };
    let mut by_vpn: Vec<Vec<&MeasuredFlow>> = vec![Vec::new(); plan.vpns.len()];
    for member in members {
        if let Some(vpn) = member.vpn {
            by_vpn[vpn].push(member);
        }
    }
    let pooled = index(Metric::FairnessIntraVpn, "", &by_vpn.concat());
    let each = plan.vpns.iter().zip(&by_vpn);
    let each = each.map(|(vpn, chosen)| index(Metric::FairnessIntraVpnEach, &vpn.name, chosen));
    std::iter::once(pooled).chain(each).collect()
}

/// Returns the paths of a group's data. An application sends in both directions; its data takes the direction in which the
/// client's link carries more.
fn data_paths<'a>(plan: &Plan, outcome: &RunOutcome, group: &'a FlowGroup) -> Vec<&'a [Hop]> {
    if group.traffic.application().is_none() {
        return group.paths().collect();
    }
    let carried = |hop: Option<&Hop>| -> f64 {
        let series = hop.and_then(|hop| outcome.get(Metric::LinkThroughput, &plan.hop_name(*hop)));
        series.map_or(0.0, |series| series.values.iter().sum())
    };
    match carried(group.reverse.last()) > carried(group.path.first()) {
        true => vec![&group.reverse],
        false => vec![&group.path],
    }
}

/// Returns the link directions that limit measured flows: on the path of each flow group's data, those with the smallest
/// rate per flow.
fn bottlenecks(plan: &Plan, outcome: &RunOutcome) -> Vec<Hop> {
    let measured = || plan.flows.iter().filter(|f| !f.background && f.count > 0);
    let mut crossing: BTreeMap<Hop, usize> = BTreeMap::new();
    for group in measured() {
        let hops: BTreeSet<Hop> = data_paths(plan, outcome, group).concat().into_iter().collect();
        for hop in hops {
            *crossing.entry(hop).or_default() += group.count;
        }
    }
    let share = |hop: Hop| plan.hop(hop).rate.as_f64() / crossing[&hop] as f64;
    let mut found = Vec::new();
    for group in measured() {
        for path in data_paths(plan, outcome, group) {
            let min_share = path.iter().map(|&hop| share(hop)).fold(f64::INFINITY, f64::min);
            found.extend(path.iter().filter(|&&hop| share(hop) <= min_share));
        }
    }
    found.sort();
    found.dedup();
    found
}

fn utilization(plan: &Plan, outcome: &RunOutcome) -> Vec<Series> {
    let series = |hop: Hop| {
        let subject = plan.hop_name(hop);
        let throughput = outcome.get(Metric::LinkThroughput, &subject)?;
        let background = outcome.get(Metric::LinkBackground, &subject);
        let busy = outcome.get(Metric::LinkUtilization, &subject);
        let started = measured(plan, outcome.bins);
        let value = |bin: usize| {
            let total = throughput.values[bin];
            let background = background.map_or(0.0, |b| b.values[bin]);
            // Framing consumes part of a line's rate. The rate available to IP follows from the utilization.
            let framed = plan.hop(hop).overhead > 0;
            let busy = busy.map_or(f64::NAN, |b| b.values[bin]);
            let capacity = if framed && busy > 0.0 { total / busy } else { rate(plan, hop, bin, outcome) };
            let available = capacity - background;
            if started.contains(&bin) && available > 0.0 {
                (total - background) / available
            } else {
                f64::NAN
            }
        };
        let values = (0..outcome.bins).map(value).collect();
        Some(Series { metric: Metric::LinkUtilizationNet, subject, values })
    };
    bottlenecks(plan, outcome).into_iter().filter_map(series).collect()
}

/// Returns the mean rate of a link direction over a bin, according to its schedule.
fn rate(plan: &Plan, hop: Hop, bin: usize, outcome: &RunOutcome) -> f64 {
    let config = plan.hop(hop);
    let (from, to) = (bin as u64 * outcome.interval.0, (bin as u64 + 1) * outcome.interval.0);
    let (mut now, mut rate, mut up) = (from, config.rate.as_f64(), true);
    let mut bits = 0.0;
    for (at, change) in &config.schedule {
        let at = at.0.clamp(from, to);
        bits += (at - now) as f64 * if up { rate } else { 0.0 };
        now = at;
        rate = change.rate.map_or(rate, |r| r.as_f64());
        up = change.up.unwrap_or(up);
    }
    bits += (to - now) as f64 * if up { rate } else { 0.0 };
    bits / outcome.interval.0 as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, at};
    use netstage_core::link::LinkChange;
    use netstage_core::quantity::BitRate;
    use netstage_core::time::Instant;
    use netstage_core::traffic::FlowTraffic;
    use netstage_scenario::outcome::Distribution;

    /// Returns the fixture's plan with constant rates: 1 and 1 Mbit/s in VPN a from 1 s on, 3 and 1 Mbit/s in VPN b
    /// from 2 s on, and 2 Mbit/s of background.
    fn derived() -> (Plan, RunOutcome) {
        let plan = fixture::plan();
        let mut outcome = fixture::outcome(&plan, 1);
        let rates = [
            ("bulka[0]", 1e6, 1),
            ("bulka[1]", 1e6, 1),
            ("bulkb[0]", 3e6, 2),
            ("bulkb[1]", 1e6, 2),
            ("noise", 2e6, 0),
        ];
        let constant =
            |rate: f64, from: usize| (0..10).map(|b| if b < from { 0.0 } else { rate }).collect::<Vec<f64>>();
        for series in &mut outcome.series {
            let flow = rates.iter().find(|(name, ..)| *name == series.subject);
            series.values = match (series.metric, flow) {
                (Metric::FlowThroughput, Some(&(_, rate, from))) => constant(rate, from),
                (Metric::VpnThroughput, _) if series.subject == "a" => constant(2e6, 1),
                (Metric::VpnThroughput, _) => constant(4e6, 2),
                (Metric::LinkBackground, _) => constant(2e6, 0),
                (Metric::LinkThroughput, _) => (0..10).map(|b| [2e6, 4e6, 8e6][b.min(2)]).collect(),
                _ => continue,
            };
        }
        derive(&plan, &mut outcome);
        (plan, outcome)
    }

    #[track_caller]
    fn values(outcome: &RunOutcome, metric: Metric, subject: &str, expected: [f64; 4]) {
        let got = &outcome.get(metric, subject).unwrap().values[..4];
        let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12 || (a.is_nan() && b.is_nan());
        assert!(got.iter().zip(&expected).all(close), "{metric:?}: {got:?}");
    }

    #[test]
    fn fairness_matches_manual_calculation() {
        let (_, outcome) = derived();
        let nan = f64::NAN;
        // VPN a alone, then a : b = 2 : 4 with weights 1 : 2.
        values(&outcome, Metric::FairnessInterVpn, "", [nan, 1.0, 1.0, 1.0]);
        // 1, 1, 3, 1: 36 / (4 · 12).
        values(&outcome, Metric::FairnessIntraVpn, "", [nan, 1.0, 0.75, 0.75]);
        values(&outcome, Metric::FairnessIntraVpnEach, "a", [nan, 1.0, 1.0, 1.0]);
        // 3, 1: 16 / (2 · 10).
        values(&outcome, Metric::FairnessIntraVpnEach, "b", [nan, nan, 0.8, 0.8]);
    }

    #[test]
    fn net_utilization_matches_manual_calculation() {
        let (_, outcome) = derived();
        // 2 of 8 Mbit/s, then 6 of 8.
        values(&outcome, Metric::LinkUtilizationNet, "core.forward", [f64::NAN, 0.25, 0.75, 0.75]);
        assert_eq!(series_of(&outcome, Metric::LinkUtilizationNet).len(), 1);
    }

    #[test]
    fn means_begin_with_the_first_whole_bin_and_counts_with_the_first_start() {
        let mut plan = fixture::plan();
        for (start, whole, first) in [(0, 0, 0), (1_000, 1, 1), (2_500, 3, 2), (9_500, 9, 9)] {
            plan.flows.iter_mut().for_each(|flow| flow.start = Instant(start * 1_000_000));
            assert_eq!((measured(&plan, 10), first_start(&plan, 10)), (whole..10, first), "{start} ms");
        }
    }

    #[test]
    fn transfers_without_an_end_are_counted() {
        let mut plan = fixture::plan();
        let sized: FlowTraffic = Pattern::Bulk { size: Some(1_000) }.into();
        plan.flows
            .iter_mut()
            .filter(|flow| flow.name == "bulka")
            .for_each(|flow| flow.traffic = sized.clone());
        let mut outcome = fixture::outcome(&plan, 1);
        let distribution = |subject: &str| Distribution {
            metric: Metric::FlowCompletionTime,
            subject: subject.into(),
            buckets: vec![(1_000_000, 1)],
        };
        outcome.distributions = vec![distribution("bulka[1]")];
        assert_eq!(unfinished(&plan, &outcome, |_| true), [("bulka", (1, 2))].into());
        assert_eq!(unfinished(&plan, &outcome, |name| name.ends_with("[1]")), [].into());
        derive(&plan, &mut outcome);
        assert!(outcome.warnings[0].starts_with("flow.bulka: 1 of 2 transfers"), "{:?}", outcome.warnings);
        outcome.distributions.push(distribution("bulka[0]"));
        assert_eq!(unfinished(&plan, &outcome, |_| true), [].into());
    }

    #[test]
    fn bins_above_the_line_are_explained() {
        let mut plan = fixture::plan();
        let mut outcome = fixture::outcome(&plan, 1);
        let group = plan.flows.iter().position(|flow| flow.name == "bulka").unwrap();
        let core = plan.flows[group].path[1];
        let line = plan.hop(core).rate.as_f64();
        let set = |outcome: &mut RunOutcome, value: f64| {
            let is_own =
                |one: &&mut Series| one.metric == Metric::FlowThroughput && one.subject == "bulka[1]";
            outcome.series.iter_mut().find(is_own).unwrap().values[3] = value;
        };
        set(&mut outcome, line + 11_000.0);
        assert_eq!(late_bytes(&plan, &outcome), [""; 0]);
        set(&mut outcome, line + 13_000.0);
        let warnings = late_bytes(&plan, &outcome);
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].starts_with("flow.bulka: ") && warnings[0].contains("link.core"), "{warnings:?}");
        // The line was faster at times.
        let faster = LinkChange { rate: Some(BitRate(2 * line as u64)), ..LinkChange::default() };
        plan.links[core.link].directions[core.direction].schedule.push((at(1), faster));
        assert_eq!(late_bytes(&plan, &outcome), [""; 0]);
    }

    #[test]
    fn whole_span_fairness_averages_each_flow_first() {
        let (plan, mut outcome) = derived();
        let metric = Metric::FairnessIntraVpnWholeRun;
        let value = &whole_span(&plan, &outcome, metric, &(2..10))[0].1;
        assert!((value - 0.75).abs() < 1e-12);
        // Flows that send alternately are fair over the span, but in no bin.
        for (k, series) in
            outcome.series.iter_mut().filter(|s| s.metric == Metric::FlowThroughput).enumerate()
        {
            series.values = (0..10).map(|b| if b % 2 == k % 2 { 1e6 } else { 0.0 }).collect();
        }
        assert_eq!(whole_span(&plan, &outcome, metric, &(2..10)), [(String::new(), 1.0)]);
        let each = whole_span(&plan, &outcome, Metric::FairnessIntraVpnEachWholeRun, &(2..10));
        assert_eq!(each, [("a".into(), 1.0), ("b".into(), 1.0)]);
    }

    #[test]
    fn a_finished_flow_is_not_counted() {
        let (mut plan, mut outcome) = derived();
        // bulkb[0] completes its 750,000 bytes after two bins, bulkb[1] after six.
        plan.flows[1].traffic = Pattern::Bulk { size: Some(750_000) }.into();
        outcome.series.retain(|s| s.metric < Metric::FairnessInterVpn);
        derive(&plan, &mut outcome);
        let b = &outcome.get(Metric::FairnessIntraVpnEach, "b").unwrap().values;
        assert!((b[3] - 0.8).abs() < 1e-12 && b[4] == 1.0 && b[7] == 1.0 && b[8].is_nan(), "{b:?}");
        plan.flows[0].stop = at(5);
        outcome.series.retain(|s| s.metric < Metric::FairnessInterVpn);
        derive(&plan, &mut outcome);
        let a = &outcome.get(Metric::FairnessIntraVpnEach, "a").unwrap().values;
        assert!(a[4] == 1.0 && a[5].is_nan());
    }

    #[test]
    fn the_bottleneck_has_the_smallest_rate_per_flow() {
        let mut plan = fixture::plan();
        let core = Hop { link: 1, direction: 0 };
        assert_eq!(bottlenecks(&plan, &RunOutcome::default()), [core]);
        // Same rate as the core, but shared by one flow instead of four.
        plan.links[0].directions[0].rate = BitRate(10_000_000);
        plan.flows[0].path.remove(0);
        plan.flows[1].count = 1;
        assert_eq!(bottlenecks(&plan, &RunOutcome::default()), [core]);
    }

    #[test]
    fn link_rate_follows_the_schedule() {
        let (mut plan, outcome) = derived();
        let core = Hop { link: 1, direction: 0 };
        let change = |rate, up| LinkChange { rate, up, ..LinkChange::default() };
        plan.links[1].directions[0].schedule = vec![
            (netstage_core::time::Instant(2_500_000_000), change(Some(BitRate(2_000_000)), None)),
            (at(4), change(None, Some(false))),
            (at(5), change(None, Some(true))),
        ];
        let rates: Vec<f64> = (1..6).map(|bin| rate(&plan, core, bin, &outcome)).collect();
        assert_eq!(rates, [10e6, 6e6, 2e6, 0.0, 2e6]);
    }
}
