//! Metrics computed from those a stage measures: fairness, and use of what is left.
//!
//! A flow counts from the bin in which it starts to the one in which it stops, or in which
//! the last byte of its bulk arrives; a VPN counts while one of its flows does. Where
//! nothing counts, a bin has no value.

use netstage_core::measure::{jain, weighted_fairness};
use netstage_core::traffic::Pattern;
use netstage_scenario::outcome::{Metric, Outcome, Series};
use netstage_scenario::plan::{Hop, Plan};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// A measured flow: any but background.
struct Member<'a> {
    vpn: Option<usize>,
    active: Range<usize>,
    throughput: &'a [f64],
}

/// Adds the derived series, and orders all by metric.
pub fn derive(plan: &Plan, outcome: &mut Outcome) {
    let mut derived = Vec::new();
    let members = members(plan, outcome);
    if !plan.vpns.is_empty() {
        derived.extend(inter_vpn(plan, outcome, &members));
        derived.extend(intra_vpn(plan, outcome.bins, &members));
    }
    derived.extend(utilisation(plan, outcome));
    outcome.series.extend(derived);
    outcome.series.sort_by_key(|series| series.metric);
}

/// Whether a metric has a value per span instead of one per bin.
pub fn is_whole_span(metric: Metric) -> bool {
    matches!(metric, Metric::FairnessIntraVpnWholeRun | Metric::FairnessIntraVpnEachWholeRun)
}

/// The values of a whole-span metric over `bins`, by subject.
pub fn whole_span(plan: &Plan, outcome: &Outcome, metric: Metric, bins: &Range<usize>) -> Vec<(String, f64)> {
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
        Metric::FairnessIntraVpnWholeRun if !plan.vpns.is_empty() => vec![(String::new(), jain(&means(None)))],
        Metric::FairnessIntraVpnEachWholeRun => {
            let each = plan.vpns.iter().enumerate();
            each.map(|(index, vpn)| (vpn.name.clone(), jain(&means(Some(index))))).collect()
        }
        _ => Vec::new(),
    }
}

/// Bins of a run that count: from the one in which the first measured flow starts.
pub fn measured(plan: &Plan, bins: usize) -> Range<usize> {
    let starts = plan.flows.iter().filter(|f| !f.background && f.count > 0).map(|f| f.start.0);
    let interval = plan.measure.interval.0.max(1);
    let first = starts.min().map_or(0, |start| (start / interval) as usize);
    first.min(bins.saturating_sub(1))..bins
}

fn members<'a>(plan: &Plan, outcome: &'a Outcome) -> Vec<Member<'a>> {
    let flows = of(outcome, Metric::FlowThroughput);
    let by_name: HashMap<&str, &Series> = flows.iter().map(|s| (s.subject.as_str(), s)).collect();
    let interval = outcome.interval.0.max(1);
    let mut members = Vec::new();
    for (index, group) in plan.flows.iter().enumerate().filter(|(_, group)| !group.background) {
        for k in 0..group.count {
            let Some(series) = by_name.get(plan.flow_name(index, k).as_str()) else { continue };
            let start = group.start + group.stagger * k as u64;
            let first = (start.0 / interval) as usize;
            let mut end = (group.stop.0.div_ceil(interval) as usize).min(series.values.len());
            if let Pattern::Bulk { size: Some(size) } = group.traffic {
                end = end.min(bulk_end(&series.values, size, outcome.interval.as_secs_f64()));
            }
            members.push(Member { vpn: group.vpn, active: first..end, throughput: &series.values });
        }
    }
    members
}

/// One past the bin in which the last of `size` bytes arrives.
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

/// The series of one metric; they stand together.
pub fn of(outcome: &Outcome, metric: Metric) -> &[Series] {
    let start = outcome.series.partition_point(|s| s.metric < metric);
    let end = outcome.series.partition_point(|s| s.metric <= metric);
    &outcome.series[start..end]
}

fn inter_vpn(plan: &Plan, outcome: &Outcome, members: &[Member]) -> Option<Series> {
    let vpns = of(outcome, Metric::VpnThroughput);
    let mut shares = Vec::new();
    for (index, vpn) in plan.vpns.iter().enumerate() {
        let series = vpns.iter().find(|s| s.subject == vpn.name)?;
        let active: Vec<&Range<usize>> =
            members.iter().filter(|m| m.vpn == Some(index)).map(|m| &m.active).collect();
        shares.push((vpn.weight, active, &series.values));
    }
    let value = |bin: usize| {
        let started = shares.iter().filter(|(_, active, _)| active.iter().any(|a| a.contains(&bin)));
        let (rates, weights): (Vec<f64>, Vec<f64>) = started.map(|(weight, _, v)| (v[bin], *weight)).unzip();
        weighted_fairness(&rates, &weights)
    };
    let values = (0..outcome.bins).map(value).collect();
    Some(Series { metric: Metric::FairnessInterVpn, subject: String::new(), values })
}

fn intra_vpn(plan: &Plan, bins: usize, members: &[Member]) -> Vec<Series> {
    let index = |metric, subject: &str, chosen: &[&Member]| {
        let rates = |bin: usize| -> Vec<f64> {
            chosen.iter().filter(|m| m.active.contains(&bin)).map(|m| m.throughput[bin]).collect()
        };
        let values = (0..bins).map(|bin| jain(&rates(bin))).collect();
        Series { metric, subject: subject.to_owned(), values }
    };
    let mut by_vpn: Vec<Vec<&Member>> = vec![Vec::new(); plan.vpns.len()];
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

/// Directions of links that limit measured flows: on each group's way, those that offer
/// each flow crossing them least.
fn bottlenecks(plan: &Plan) -> Vec<Hop> {
    let measured = || plan.flows.iter().filter(|f| !f.background && f.count > 0);
    let mut crossing: BTreeMap<Hop, usize> = BTreeMap::new();
    for group in measured() {
        for &hop in &group.path {
            *crossing.entry(hop).or_default() += group.count;
        }
    }
    let share = |hop: Hop| plan.hop(hop).rate.as_f64() / crossing[&hop] as f64;
    let mut found = Vec::new();
    for group in measured() {
        let least = group.path.iter().map(|&hop| share(hop)).fold(f64::INFINITY, f64::min);
        found.extend(group.path.iter().filter(|&&hop| share(hop) <= least));
    }
    found.sort();
    found.dedup();
    found
}

fn utilisation(plan: &Plan, outcome: &Outcome) -> Vec<Series> {
    let series = |hop: Hop| {
        let subject = plan.hop_name(hop);
        let throughput = outcome.get(Metric::LinkThroughput, &subject)?;
        let background = outcome.get(Metric::LinkBackground, &subject);
        let busy = outcome.get(Metric::LinkUtilisation, &subject);
        let started = measured(plan, outcome.bins);
        let value = |bin: usize| {
            let total = throughput.values[bin];
            let aside = background.map_or(0.0, |b| b.values[bin]);
            // Framing takes its share of a line's rate: what is left for IP shows while it is busy.
            let framed = plan.hop(hop).overhead > 0;
            let busy = busy.map_or(f64::NAN, |b| b.values[bin]);
            let capacity = if framed && busy > 0.0 { total / busy } else { rate(plan, hop, bin, outcome) };
            let left = capacity - aside;
            if started.contains(&bin) && left > 0.0 { (total - aside) / left } else { f64::NAN }
        };
        let values = (0..outcome.bins).map(value).collect();
        Some(Series { metric: Metric::LinkUtilisationNet, subject, values })
    };
    bottlenecks(plan).into_iter().filter_map(series).collect()
}

/// Mean rate of a direction over a bin, following its schedule.
fn rate(plan: &Plan, hop: Hop, bin: usize, outcome: &Outcome) -> f64 {
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
