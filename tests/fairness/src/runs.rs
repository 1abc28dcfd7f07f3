//! Runs of a case: the network of each control, and the capacities and demands that runs show.

use crate::draw::{Case, Core, Customer, SECOND, SETTLED};
use crate::owed::{Owed, weighted_shares};
use netstage_differ::network::{Buffer, Change, Control as VpnControl, Direction, Network, Queue};
use netstage_differ::runs;
use netstage_scenario::outcome::{Metric, RunOutcome};

/// Share of what is owed at which the oracle shapes.
pub const ORACLE: f64 = 0.985;
/// Rate at which a VPN runs alone, relative to its share of the bottlenecks.
const ALONE: f64 = 1.5;
/// Share of that rate from which the VPN counts as able to use any rate.
const UNLIMITED: f64 = 0.9;
/// Fewest packets of a shaper's queue.
const QUEUE: f64 = 20.0;

/// Control of the VPNs in a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Control {
    /// Value of the field `control` of all VPNs.
    Law(String),
    /// Each VPN shaped to 0.985 of what it is owed.
    Oracle,
    /// Deficit round robin in the bottlenecks.
    Drr,
}

impl Control {
    /// Returns the text that identifies the control in records.
    pub fn text(&self) -> &str {
        match self {
            Control::Law(value) => value,
            Control::Oracle => "oracle",
            Control::Drr => "drr",
        }
    }

    /// Returns whether the control queues packets at the PEs.
    pub fn has_queues(&self) -> bool {
        !matches!(self, Control::Drr) && *self != Control::none()
    }

    /// Returns the absence of control.
    pub fn none() -> Control {
        Control::Law("\"none\"".to_owned())
    }
}

/// Returns the network of a case with a control.
pub fn network(case: &Case, owed: &Owed, control: &Control) -> Network {
    let mut network = case.network.clone();
    match control {
        Control::Law(value) => {
            network.vpns.iter_mut().for_each(|vpn| vpn.control = VpnControl::Written(value.clone()));
        }
        Control::Oracle => shape(case, &mut network, |span, vpn| {
            // The link carries the packets that are lost behind it, too.
            ORACLE * owed.rates[span][vpn] / (1.0 - case.vpns[vpn].loss)
        }),
        Control::Drr => {
            for (index, core) in case.cores.iter().enumerate() {
                let crossing = case.vpns.iter().filter(|vpn| vpn.cores.contains(&index));
                let weights: f64 = crossing.map(|vpn| vpn.weight).sum();
                let spans = owed.capacities.len() as f64;
                let left = owed.capacities.iter().map(|capacities| capacities[index]).sum::<f64>() / spans;
                // Uncontrolled traffic keeps the rate that it has without control.
                let others = (weights * (core.rate - left) / left.max(1.0)).clamp(1.0, 1e6);
                let forward = &mut network.links[index].directions[0];
                forward.queue = Queue::Drr { default_weight: others };
                forward.buffer = buffer(core.product);
            }
        }
    }
    network
}

/// Sets the rate of each VPN's link to the core by span, with a queue of one bandwidth-delay product.
fn shape(case: &Case, network: &mut Network, rate: impl Fn(usize, usize) -> f64) {
    for (index, vpn) in case.vpns.iter().enumerate() {
        let spans: Vec<usize> =
            (0..case.spans.len()).filter(|span| vpn.active.contains(&case.spans[*span])).collect();
        let name = format!("up{index}");
        let link = network.links.iter_mut().find(|link| link.name == name).expect("each VPN has a link");
        let up: &mut Direction = &mut link.directions[0];
        let rates: Vec<u64> = spans.iter().map(|span| rate(*span, index).max(1_000.0) as u64).collect();
        up.rate = rates[0];
        let most = rates.iter().copied().max().unwrap_or(0) as f64;
        up.buffer = buffer(most * vpn.round_trip as f64 * 1e-9 / 8.0);
        let change = |(span, rate): (&usize, &u64)| Change {
            at: case.spans[*span],
            rate: Some(*rate),
            delay: None,
            loss: None,
            up: None,
        };
        up.schedule = spans.iter().zip(&rates).skip(1).map(change).collect();
    }
}

fn buffer(product: f64) -> Buffer {
    Buffer::Bytes(product.max(QUEUE * 1_500.0) as u64)
}

/// Runs a network with the random streams of the case.
pub fn run(case: &Case, network: &Network) -> Result<RunOutcome, String> {
    Ok(runs::run(&runs::plan(&network.file())?, case.seed, true))
}

/// Computes what a case owes from a run without control.
pub fn owed(case: &Case, uncontrolled: &RunOutcome) -> Result<Owed, String> {
    let demands = demands(case)?;
    let capacities = (0..case.spans.len()).map(|span| {
        let left = |(index, core): (usize, &Core)| match case.features.background.as_str() {
            // Against uncontrolled TCP, VPNs are owed together what they get without control.
            "tcp" => {
                let crossing = case.vpns.iter().enumerate().filter(|(_, vpn)| vpn.cores.contains(&index));
                let start = case.spans[span].max(SETTLED);
                let end = case.spans.get(span + 1).copied().unwrap_or(case.network.duration);
                let carried = |(vpn, customer): (usize, &Customer)| {
                    mean(uncontrolled, &format!("v{vpn}"), start, end) / (1.0 - customer.loss)
                };
                crossing.map(carried).sum::<f64>().clamp(0.001 * core.rate, core.rate)
            }
            _ => core.rate - core.background,
        };
        case.cores.iter().enumerate().map(left).collect()
    });
    Ok(Owed::new(case, capacities.collect(), &demands))
}

/// Returns the rate that each VPN can use at the bottlenecks, measured without the other VPNs and behind a shaper of
/// 1.5 times its share; infinite if it can use that rate.
fn demands(case: &Case) -> Result<Vec<f64>, String> {
    let capacities: Vec<f64> = case.cores.iter().map(|core| core.rate).collect();
    let endless = vec![f64::INFINITY; case.vpns.len()];
    let limits: Vec<Vec<f64>> = case
        .spans
        .iter()
        .map(|start| {
            let shares = weighted_shares(&case.vpns, &capacities, &endless, |vpn| vpn.active.contains(start));
            let path = |vpn: usize| {
                case.vpns[vpn].cores.clone().map(|core| capacities[core]).fold(f64::INFINITY, f64::min)
            };
            shares.iter().enumerate().map(|(vpn, share)| (ALONE * share).min(path(vpn))).collect()
        })
        .collect();
    let limit = |vpn: usize| limits.iter().map(|limits| limits[vpn]).fold(0.0, f64::max);
    let mut network = case.network.clone();
    network.flows.retain(|flow| flow.vpn.is_some());
    for link in network.links.iter_mut().filter(|link| link.name.starts_with("core")) {
        let forward = &mut link.directions[0];
        // All VPNs at once do not fill it.
        forward.rate *= 8;
        forward.queue = Queue::DropTail;
        forward.buffer = Buffer::Packets(1_000_000);
    }
    shape(case, &mut network, |_, vpn| limit(vpn));
    let alone = run(case, &network)?;
    let demand = |(index, vpn): (usize, &Customer)| {
        if let Some(offered) = vpn.offered {
            return offered;
        }
        let settled =
            vpn.active.start + SETTLED.max(vpn.round_trip * 20).min((vpn.active.end - vpn.active.start) / 2);
        let rate = mean(&alone, &format!("v{index}"), settled, vpn.active.end) / (1.0 - vpn.loss);
        if rate >= UNLIMITED * limit(index) { f64::INFINITY } else { rate }
    };
    Ok(case.vpns.iter().enumerate().map(demand).collect())
}

/// Returns the mean rate of a VPN in the bins within a time.
pub fn mean(outcome: &RunOutcome, vpn: &str, start: u64, end: u64) -> f64 {
    let bin = outcome.interval.0;
    let Some(series) = outcome.get(Metric::VpnThroughput, vpn) else { return 0.0 };
    let [first, last] = [start.div_ceil(bin), end / bin].map(|bin| (bin as usize).min(series.values.len()));
    if first >= last {
        return 0.0;
    }
    series.values[first..last].iter().sum::<f64>() / (last - first) as f64
}

/// Returns seconds of nanoseconds.
pub fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / SECOND as f64
}
