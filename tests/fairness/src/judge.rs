//! Measures of one run: how the VPNs shared what they are owed.

use crate::draw::{Case, Customer, PACKETS_PER_BIN, SECOND, SETTLED};
use crate::owed::Owed;
use crate::runs::{Control, mean, seconds};
use netstage_core::measure::{jain, weighted_fairness};
use netstage_differ::network::{Link, Network};
use netstage_scenario::outcome::{Distribution, Metric, RunOutcome};
use serde::{Deserialize, Serialize};

/// Share of what it is owed that each VPN has once the rates are right.
const RIGHT: f64 = 0.8;
/// Fewest bins of a run.
const FEWEST_BINS: usize = 3;

/// Measures of a run, from second 5 on. Rates count the customers' IP packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measures {
    /// Width of the shorter bins in seconds: 1 s, or as long as each VPN is owed 20 packets.
    pub bin: f64,
    /// Weighted fairness index of the rates relative to what is owed, mean over the shorter bins.
    pub fairness: f64,
    /// The same index over bins of 5 s.
    pub fairness_5s: f64,
    /// Share of what it is owed of the VPN that has the least, mean over bins of 5 s.
    pub worst: f64,
    /// Utilization of each bottleneck.
    pub utilization: Vec<f64>,
    /// Rates of all VPNs divided by what they are owed.
    pub delivered: f64,
    /// Rate of all VPNs in bit/s.
    pub rate: f64,
    /// Seconds from the start, and from each change, until each VPN has 0.8 of what it is owed in a bin; `None`: never.
    pub right_after: Vec<Option<f64>>,
    /// Mean wait of a sparse flow in the queue of the bottleneck with the longest one, seconds.
    pub core_wait: f64,
    /// 95th percentile of that wait.
    pub core_wait_p95: f64,
    /// 95th percentile of the wait of a sparse flow of a VPN at its PE, mean over VPNs, seconds.
    pub edge_wait_p95: f64,
    /// Share of all packets lost, in queues of PEs, too.
    pub loss: f64,
    /// Jain's index of equal flows inside a VPN, mean over VPNs; `None`: no VPN has equal flows.
    pub inside: Option<f64>,
    /// Events of the simulator per data packet that was delivered or lost.
    pub events: f64,
}

/// Measures a run of a network with a control.
pub fn measure(
    case: &Case,
    owed: &Owed,
    control: &Control,
    network: &Network,
    outcome: &RunOutcome,
) -> Measures {
    let shares = Shares::new(case, owed, outcome);
    let one = shares.width;
    let five = (5 * SECOND).div_ceil(case.bin * one as u64) as usize * one;
    let utilization = |index: usize| {
        let bins = outcome.get(Metric::LinkUtilization, &format!("core{index}.forward"));
        let settled = (SETTLED / outcome.interval.0) as usize;
        bins.map_or(0.0, |series| average(series.values.iter().copied().skip(settled)))
    };
    let waits = Waits::new(case, control, network, outcome);
    let totals = outcome.totals;
    let inside = inside(case, outcome);
    Measures {
        bin: seconds(case.bin * one as u64),
        fairness: average(shares.bins(one).map(|bin| bin.fairness)),
        fairness_5s: average(shares.bins(five).map(|bin| bin.fairness)),
        worst: average(shares.bins(five).map(|bin| bin.worst)),
        utilization: (0..case.cores.len()).map(utilization).collect(),
        delivered: average(shares.bins(five).map(|bin| bin.delivered)),
        rate: (0..case.vpns.len())
            .map(|vpn| mean(outcome, &format!("v{vpn}"), SETTLED, case.network.duration))
            .sum(),
        right_after: case.spans.iter().map(|start| shares.right_after(*start)).collect(),
        core_wait: waits.core.mean,
        core_wait_p95: waits.core.p95,
        edge_wait_p95: waits.edge_p95,
        loss: totals.lost as f64 / totals.sent.max(1) as f64,
        inside: (!inside.is_empty()).then(|| average(inside.into_iter())),
        events: totals.events as f64 / (totals.delivered_data + totals.lost).max(1) as f64,
    }
}

/// Checks properties of every run: packets are conserved, and no bottleneck carries more than its rate.
pub fn check(case: &Case, outcome: &RunOutcome) -> Result<(), String> {
    let totals = outcome.totals;
    if totals.sent + totals.duplicated != totals.delivered + totals.lost + totals.in_flight {
        return Err(format!("packets are not conserved: {totals:?}"));
    }
    let duration = case.network.duration;
    for (index, core) in case.cores.iter().enumerate() {
        let name = format!("core{index}.forward");
        let busy = outcome.get(Metric::LinkUtilization, &name).ok_or(format!("{name} is not measured"))?;
        if let Some(busy) = busy.values.iter().find(|busy| !(0.0..=1.0 + 1e-9).contains(*busy)) {
            return Err(format!("{name}: utilization {busy}"));
        }
        let crossing = case.vpns.iter().enumerate().filter(|(_, vpn)| vpn.cores.contains(&index));
        let carried: f64 = crossing.map(|(vpn, _)| mean(outcome, &format!("v{vpn}"), 0, duration)).sum();
        if carried > core.rate * (1.0 + 1e-9) {
            return Err(format!("{name}: VPNs of {carried} bit/s on {} bit/s", core.rate));
        }
    }
    Ok(())
}

/// Rates and owed rates by VPN and half bin of the case.
struct Shares<'a> {
    case: &'a Case,
    rates: Vec<&'a [f64]>,
    owed: Vec<Vec<f64>>,
    /// Number of the case's bins in which each VPN is owed enough packets.
    width: usize,
}

/// Result of one bin.
struct Bin {
    fairness: f64,
    worst: f64,
    delivered: f64,
}

impl<'a> Shares<'a> {
    fn new(case: &'a Case, owed: &Owed, outcome: &'a RunOutcome) -> Shares<'a> {
        let rate = |vpn: usize| {
            let series = outcome.get(Metric::VpnThroughput, &format!("v{vpn}"));
            series.map_or(&[][..], |series| &series.values)
        };
        let span = |bin: usize| Owed::span(case, outcome.interval.0 * bin as u64);
        let owed_by_bin =
            |vpn: usize| (0..outcome.bins).map(|bin| owed.rates[span(bin)][vpn]).collect::<Vec<f64>>();
        let least = owed.rates.iter().flat_map(|rates| {
            let owed = rates.iter().zip(&case.vpns).filter(|(rate, _)| **rate > 0.0);
            owed.map(|(rate, vpn)| rate / 8.0 / vpn.packet as f64 * seconds(case.bin))
        });
        let least = least.fold(f64::INFINITY, f64::min);
        let bins = outcome.bins / 2;
        let width = ((PACKETS_PER_BIN / least).ceil() as usize).clamp(1, (bins / (FEWEST_BINS + 1)).max(1));
        Shares {
            case,
            rates: (0..case.vpns.len()).map(rate).collect(),
            owed: (0..case.vpns.len()).map(owed_by_bin).collect(),
            width,
        }
    }

    /// Returns the results of consecutive bins of this many bins of the case, from second 5 on.
    fn bins(&self, width: usize) -> impl Iterator<Item = Bin> {
        let settled = SETTLED.div_ceil(self.case.bin) as usize * 2;
        let end = self.owed[0].len();
        (settled..end)
            .step_by(2 * width)
            .filter(move |from| from + 2 * width <= end)
            .map(move |from| self.bin(from, 2 * width))
    }

    fn bin(&self, from: usize, width: usize) -> Bin {
        let sum = |values: &[f64]| values[from..from + width].iter().sum::<f64>();
        let both = self.rates.iter().zip(&self.owed).map(|(rates, owed)| (sum(rates), sum(owed)));
        let (rates, owed): (Vec<f64>, Vec<f64>) = both.filter(|(_, owed)| *owed > 0.0).unzip();
        let fairness = weighted_fairness(&rates, &owed);
        let worst = rates.iter().zip(&owed).map(|(rate, owed)| rate / owed).fold(f64::INFINITY, f64::min);
        Bin {
            // Without any packet, nothing is shared.
            fairness: if fairness.is_nan() { 0.0 } else { fairness },
            worst,
            delivered: rates.iter().sum::<f64>() / owed.iter().sum::<f64>(),
        }
    }

    /// Returns the seconds from the start of a span to the end of the first bin in which each VPN has what is right.
    fn right_after(&self, start: u64) -> Option<f64> {
        let half = self.case.bin / 2;
        let width = 2 * self.width;
        let next = self.case.spans.iter().copied().find(|later| *later > start);
        let [first, end] =
            [start, next.unwrap_or(half * self.owed[0].len() as u64)].map(|time| (time / half) as usize);
        let right = (first..end.saturating_sub(width - 1)).find(|from| self.bin(*from, width).worst >= RIGHT);
        right.map(|from| seconds((from + width - first) as u64 * half))
    }
}

/// Waits of sparse flows.
struct Waits {
    core: Wait,
    edge_p95: f64,
}

impl Waits {
    fn new(case: &Case, control: &Control, network: &Network, outcome: &RunOutcome) -> Waits {
        let of_cores = (0..case.cores.len()).map(|index| format!("core-probe{index}"));
        let of_vpns = (0..case.vpns.len()).map(|index| format!("probe{index}"));
        let waits = |probes: Vec<String>| -> Vec<Option<Wait>> {
            probes.iter().map(|probe| wait(network, outcome, probe)).collect()
        };
        let (cores, vpns) = (waits(of_cores.collect()), waits(of_vpns.collect()));
        if *control == Control::Drr {
            // The classes of the VPNs are in the core.
            let of = |value: fn(&Wait) -> f64| average(vpns.iter().flatten().map(value));
            return Waits {
                core: Wait { mean: of(|wait| wait.mean), p95: of(|wait| wait.p95) },
                edge_p95: 0.0,
            };
        }
        let longest = |value: fn(&Wait) -> f64| cores.iter().flatten().map(value).fold(0.0, f64::max);
        let core = Wait { mean: longest(|wait| wait.mean), p95: longest(|wait| wait.p95) };
        if !control.has_queues() {
            return Waits { core, edge_p95: 0.0 };
        }
        let edge = |(vpn, wait): (&Customer, &Option<Wait>)| {
            let crossed = cores[vpn.cores.clone()].iter().flatten();
            Some((wait.as_ref()?.p95 - crossed.map(|wait| wait.mean).sum::<f64>()).max(0.0))
        };
        Waits { core, edge_p95: average(case.vpns.iter().zip(&vpns).filter_map(edge)) }
    }
}

/// Wait of a probe in queues, seconds.
struct Wait {
    mean: f64,
    p95: f64,
}

/// Returns the wait of a probe beyond the time of an empty path; `None` without packets.
fn wait(network: &Network, outcome: &RunOutcome, probe: &str) -> Option<Wait> {
    let of_probe = |found: &&Distribution| found.metric == Metric::FlowDelay && found.subject == probe;
    let buckets = &outcome.distributions.iter().find(of_probe)?.buckets;
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    if total == 0 {
        return None;
    }
    let flow = network.flows.iter().find(|flow| flow.name == probe)?;
    let size = flow.traffic.packet()? as f64 + 28.0;
    let hops = network.hops(flow);
    let empty = |(link, direction): &(&Link, usize)| {
        let direction = &link.directions[*direction];
        direction.delay as f64 * 1e-9 + size * 8.0 / direction.rate as f64
    };
    let empty: f64 = hops.iter().map(empty).sum();
    let sum: f64 = buckets.iter().map(|(delay, count)| *delay as f64 * *count as f64).sum();
    let mut seen = 0;
    let p95 = buckets.iter().find(|(_, count)| {
        seen += count;
        seen as f64 >= 0.95 * total as f64
    });
    let beyond = |nanoseconds: f64| (nanoseconds * 1e-9 - empty).max(0.0);
    Some(Wait { mean: beyond(sum / total as f64), p95: beyond(p95?.0 as f64) })
}

/// Returns Jain's index of each group of equal flows from second 5 of its VPN to its end.
fn inside(case: &Case, outcome: &RunOutcome) -> Vec<f64> {
    let groups = case.vpns.iter().flat_map(|vpn| vpn.equals.iter().map(move |group| (vpn, group)));
    let index = |(vpn, (name, count)): (&Customer, &(String, u64))| {
        let bin = outcome.interval.0;
        let [from, to] = [vpn.active.start + SETTLED, vpn.active.end].map(|time| (time / bin) as usize);
        let rate = |member: u64| {
            let series = outcome.get(Metric::FlowThroughput, &format!("{name}[{member}]"));
            series.map_or(0.0, |series| series.values.iter().take(to).skip(from).sum())
        };
        let index = jain(&(0..*count).map(rate).collect::<Vec<f64>>());
        if index.is_nan() { 0.0 } else { index }
    };
    groups.map(index).collect()
}

fn average(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / f64::max(count, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw;
    use crate::runs::{network, run};
    use netstage_core::time::Duration;
    use netstage_differ::network::{Buffer, Flow, Queue, Traffic};
    use netstage_scenario::outcome::Series;

    /// Returns a case of two VPNs on one bottleneck of 10 Mbit/s, which have the weights 1 and 4 and send 10 Mbit/s each.
    fn two_vpns() -> (Case, Owed) {
        let fits = |case: &Case| case.vpns.len() == 2 && case.cores.len() == 1;
        let mut case = (0..).map(|index| draw::case(1, index)).find(fits).unwrap();
        let rate = 10_000_000;
        (case.bin, case.spans) = (SECOND, vec![0]);
        (case.network.duration, case.network.interval) = (25 * SECOND, SECOND / 2);
        (case.cores[0].rate, case.cores[0].background, case.cores[0].product) = (rate as f64, 0.0, 50_000.0);
        let core = &mut case.network.links[0].directions[0];
        (core.rate, core.queue, core.buffer) = (rate, Queue::DropTail, Buffer::Bytes(50_000));
        case.network.flows.retain(|flow| flow.name.contains("probe"));
        for (index, weight) in [(0, 1.0), (1, 4.0)] {
            let (vpn, probe) = (&mut case.vpns[index], format!("probe{index}"));
            (vpn.weight, vpn.active, vpn.loss, vpn.packet) = (weight, 0..case.network.duration, 0.0, 1_500);
            (vpn.offered, vpn.equals) = (Some(10e6), Vec::new());
            case.network.vpns[index].weight = weight;
            for link in &mut case.network.links {
                link.directions.iter_mut().for_each(|direction| direction.loss = 0.0);
            }
            let probe = case.network.flows.iter_mut().find(|flow| flow.name == probe).unwrap();
            (probe.start, probe.stop) = (SETTLED, None);
            let traffic = Traffic::Poisson { rate: rate * 1_472 / 1_500, packet: 1_472 };
            let flow = Flow { name: format!("f{index}"), traffic, start: 0, ..probe.clone() };
            case.network.flows.push(flow);
        }
        let owed = Owed::new(&case, vec![vec![10e6]], &[10e6; 2]);
        (case, owed)
    }

    #[test]
    fn two_vpns_get_what_each_control_gives() {
        let (case, owed) = two_vpns();
        assert_eq!(owed.rates, [[2e6, 8e6]]);
        let measure = |control: Control| {
            let network = network(&case, &owed, &control);
            let outcome = run(&case, &network).unwrap();
            check(&case, &outcome).unwrap();
            measure(&case, &owed, &control, &network, &outcome)
        };
        // Both get half of the bottleneck: 2.5 and 0.625 of what they are owed.
        let none = measure(Control::none());
        assert!((none.fairness - 0.7353).abs() < 0.02, "{none:?}");
        assert!((none.worst - 0.625).abs() < 0.03, "{none:?}");
        assert_eq!(none.right_after, [None]);
        let oracle = measure(Control::Oracle);
        assert!(oracle.fairness > 0.999 && (oracle.worst - 0.985).abs() < 0.01, "{oracle:?}");
        assert!((oracle.utilization[0] - 0.985).abs() < 0.01, "{oracle:?}");
        assert!(oracle.right_after[0].is_some_and(|time| time <= 1.5), "{oracle:?}");
        let drr = measure(Control::Drr);
        assert!(drr.fairness > 0.999 && drr.worst > 0.98 && drr.utilization[0] > 0.99, "{drr:?}");
        // The full queue of 50,000 bytes is a wait of 40 ms.
        assert!((0.03..0.04).contains(&none.core_wait) && oracle.core_wait < 0.01, "{none:?} {oracle:?}");
    }

    #[test]
    fn measures_of_given_rates_match_calculation_by_hand() {
        let (mut case, _) = two_vpns();
        // The second VPN joins after 10 s.
        case.spans = vec![0, 10 * SECOND];
        case.vpns[1].active.start = 10 * SECOND;
        let owed = Owed::new(&case, vec![vec![10e6]; 2], &[f64::INFINITY; 2]);
        assert_eq!(owed.rates, [[10e6, 0.0], [2e6, 8e6]]);
        let bins = 50;
        // It has nothing for 2 s, 4 Mbit/s for 2 s, and then what it is owed.
        let rate = |vpn: usize| {
            move |bin: usize| match (vpn, bin) {
                (0, 0..20) => 10e6,
                (0, _) => 2e6,
                (_, 0..24) => 0.0,
                (_, 24..28) => 4e6,
                _ => 8e6,
            }
        };
        let series = |vpn: usize| Series {
            metric: Metric::VpnThroughput,
            subject: format!("v{vpn}"),
            values: (0..bins).map(rate(vpn)).collect(),
        };
        let outcome = RunOutcome {
            interval: Duration(SECOND / 2),
            bins,
            series: vec![series(0), series(1)],
            ..RunOutcome::default()
        };
        let measures = measure(&case, &owed, &Control::none(), &case.network, &outcome);
        // 20 bins of 1 s: 5 with one VPN, 2 with shares 1 and 0, 2 with shares 1 and 0.5, 11 with equal shares.
        let expected = (5.0 + 2.0 * 0.5 + 2.0 * 0.9 + 11.0) / 20.0;
        assert!((measures.fairness - expected).abs() < 1e-12, "{measures:?}");
        // Bins of 5 s: 5 to 10 s alone; 10 to 15 s with 16 of 40 Mbit; twice right.
        let second = (1.0 + 0.4_f64).powi(2) / (2.0 * (1.0 + 0.16));
        assert!((measures.fairness_5s - (3.0 + second) / 4.0).abs() < 1e-12, "{measures:?}");
        assert!((measures.worst - 3.4 / 4.0).abs() < 1e-12, "{measures:?}");
        assert_eq!(measures.right_after, [Some(1.0), Some(5.0)]);
    }
}
