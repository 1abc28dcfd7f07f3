//! Properties that hold for every scenario, computed from the drawn scenario and not from its plan.

use crate::draw::Draw;
use crate::network::*;
use crate::runs::{plan, repeated, run, sums, totals};
use netstage_scenario::outcome::{Metric, RunOutcome, RunTotals};
use netstage_scenario::plan::Plan;
use std::collections::BTreeMap;

/// Drawn scenario and its run.
pub struct Case {
    pub network: Network,
    pub seed: u64,
    plan: Plan,
    outcome: RunOutcome,
}

impl Case {
    pub fn new(network: Network, seed: u64) -> Result<Case, String> {
        let plan = plan(&network.file())?;
        let outcome = run(&plan, seed, true);
        Ok(Case { network, seed, plan, outcome })
    }
}

/// Name and function of a check; the error describes the violation.
pub type Check = (&'static str, fn(&Case) -> Result<(), String>);

/// All checks, the cheap ones first.
pub const CHECKS: &[Check] = &[
    ("paths are the shortest", paths),
    ("packets are conserved", conservation),
    ("datagrams are conserved per flow", datagrams),
    ("no link carries more than its rate", link_limits),
    ("no flow exceeds its links", flow_limits),
    ("delays are within the bounds of the path", delays),
    ("random losses are not fewer than configured", losses),
    ("an overloaded link is busy", work_conservation),
    ("the order of tables has no effect", order),
    ("merged links give the same values", merging),
    ("equal flows are treated equally", twins),
    ("names have no effect", names),
    ("rates and times scale", scaling),
];

/// Bits of one packet of maximum size, with encapsulation.
const MAX_PACKET: f64 = 8.0 * 1_600.0;

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        // A comparison with NaN does not hold.
        let holds: bool = $condition;
        if !holds {
            return Err(format!($($message)+));
        }
    };
}

fn paths(case: &Case) -> Result<(), String> {
    for flow in case.network.flows.iter().filter(|flow| flow.vpn.is_none()) {
        let planned =
            case.plan.flows.iter().find(|planned| planned.name == flow.name).ok_or("a flow is missing")?;
        let planned: Vec<String> = planned.path.iter().map(|hop| case.plan.hop_name(*hop)).collect();
        let expected: Vec<String> = case.network.hops(flow).iter().map(|hop| subject(*hop)).collect();
        ensure!(planned == expected, "{}: {planned:?} instead of {expected:?}", flow.name);
    }
    Ok(())
}

fn conservation(case: &Case) -> Result<(), String> {
    let RunTotals { sent, duplicated, delivered, lost, in_flight, .. } = case.outcome.totals;
    ensure!(
        sent + duplicated == delivered + lost + in_flight,
        "{sent} packets sent, {duplicated} duplicated, {delivered} delivered, {lost} lost, {in_flight} in flight"
    );
    let bad = |series: &&netstage_scenario::outcome::Series| {
        series.values.iter().any(|value| *value < 0.0 || value.is_infinite())
    };
    match case.outcome.series.iter().find(bad) {
        Some(series) => Err(format!("{:?} of {}: {:?}", series.metric, series.subject, series.values)),
        None => Ok(()),
    }
}

fn datagrams(case: &Case) -> Result<(), String> {
    let seconds = case.outcome.interval.as_secs_f64();
    let sums = [Metric::FlowOffered, Metric::FlowThroughput, Metric::FlowLost]
        .map(|metric| sums(&case.outcome, metric));
    for (flow, packet, subject) in datagram_flows(&case.network) {
        let of = |sums: &BTreeMap<String, f64>| sums.get(&subject).copied().unwrap_or(0.0);
        let [sent, received] = [&sums[0], &sums[1]].map(|sums| of(sums) * seconds / 8.0 / packet);
        let lost = of(&sums[2]);
        for count in [sent, received] {
            ensure!(
                (count - count.round()).abs() < 1e-6 * count.max(1.0),
                "{subject}: {count} packets are no whole number"
            );
        }
        let missing = sent - received - lost;
        ensure!(missing > -0.5, "{subject}: {sent} packets sent, {received} received, {lost} lost");
        let Some(room) = room(&case.network, flow, packet) else { continue };
        ensure!(
            missing < room + 0.5,
            "{subject}: {missing} of {sent} packets are neither received nor lost, but the path holds {room}"
        );
    }
    Ok(())
}

/// Returns how many packets of a flow its path can hold; `None` if there is no bound.
fn room(network: &Network, flow: &Flow, packet: f64) -> Option<f64> {
    let mut room = 2.0;
    let back = matches!(flow.transport, Transport::IcmpEcho | Transport::UdpUnreachable);
    if flow.vpn.is_some()
        || device(network, &flow.from).is_some()
        || back && device(network, &flow.to).is_some()
    {
        return None;
    }
    let classes = network.vpns.len() as f64 + 1.0;
    for (link, index) in network.hops(flow) {
        for (way, direction) in [index, 1 - index].into_iter().take(1 + usize::from(back)).enumerate() {
            let direction = &link.directions[direction];
            // Responses may be as short as their headers.
            let size = if way == 0 { packet + 28.0 } else { 28.0 };
            let [_, rate] = rates(direction);
            let [_, delay] = delay_range(direction)?;
            room += rate * delay / 8.0 / size + 2.0;
            room += match direction.buffer {
                Buffer::Packets(packets) => packets as f64 * classes,
                Buffer::Bytes(bytes) => bytes as f64 / size * classes,
            };
        }
    }
    Some(room)
}

fn link_limits(case: &Case) -> Result<(), String> {
    let seconds = case.outcome.interval.as_secs_f64();
    for (link, index) in case.network.links.iter().flat_map(|link| [(link, 0), (link, 1)]) {
        let subject = subject((link, index));
        let direction = &link.directions[index];
        let values = |metric| case.outcome.get(metric, &subject).map_or(&[][..], |series| &series.values);
        let most = |metric| values(metric).iter().copied().fold(0.0, f64::max);
        ensure!(
            most(Metric::LinkUtilization) <= 1.0 + 1e-9,
            "{subject}: utilization {}",
            most(Metric::LinkUtilization)
        );
        let [_, rate] = rates(direction);
        let carried = most(Metric::LinkThroughput);
        ensure!(carried <= rate + MAX_PACKET / seconds, "{subject}: {carried} bit/s on {rate} bit/s");
        if let Buffer::Packets(packets) = direction.buffer {
            let classes =
                if matches!(direction.queue, Queue::Drr { .. }) { case.network.vpns.len() + 1 } else { 1 };
            let queued = most(Metric::LinkQueue);
            ensure!(
                queued <= (packets * classes as u64) as f64 + 1e-9,
                "{subject}: {queued} of {packets} packets queued"
            );
        }
        let crossing =
            case.network.flows.iter().filter(|flow| !matches!(flow.traffic, Traffic::Application(..)));
        let crossing =
            crossing.filter(|flow| case.network.hops(flow).iter().any(|hop| self::subject(*hop) == subject));
        let totals = totals(&case.outcome);
        let received: f64 = crossing.flat_map(members).filter_map(|member| totals.get(&member)).sum();
        let carried = values(Metric::LinkThroughput).iter().sum::<f64>() * seconds;
        ensure!(
            received <= carried + 1.0,
            "{subject}: {received} bits of payload received, {carried} bits carried"
        );
    }
    Ok(())
}

fn flow_limits(case: &Case) -> Result<(), String> {
    let seconds = case.outcome.interval.as_secs_f64();
    let mut arriving: BTreeMap<String, (f64, Vec<f64>)> = BTreeMap::new();
    for (flow, packet, subject) in datagram_flows(&case.network) {
        let hops = case.network.hops(flow);
        let (link, index) = match flow.transport {
            Transport::Udp => hops[hops.len() - 1],
            Transport::IcmpEcho => (hops[0].0, 1 - hops[0].1),
            Transport::Tcp(_) | Transport::UdpUnreachable => continue,
        };
        let direction = &link.directions[index];
        // Packets that were delayed longer than their successors arrive with them.
        let Some([least, most]) = delay_range(direction) else { continue };
        let [_, rate] = rates(direction);
        let limit = rate * (seconds + most - least) + MAX_PACKET;
        let Some(series) = case.outcome.get(Metric::FlowThroughput, &subject) else {
            return Err(format!("{subject} has no throughput"));
        };
        let entry =
            arriving.entry(self::subject((link, index))).or_insert((limit, vec![0.0; series.values.len()]));
        // Headers of UDP or ICMP, and of IPv4.
        let share = (packet + 28.0) / packet;
        entry.1.iter_mut().zip(&series.values).for_each(|(sum, value)| *sum += value * seconds * share);
    }
    for (link, (limit, sums)) in arriving {
        let most = sums.iter().copied().fold(0.0, f64::max);
        ensure!(most <= limit, "{link}: datagrams of {most} bits arrived in a bin of at most {limit} bits");
    }
    Ok(())
}

fn delays(case: &Case) -> Result<(), String> {
    for (flow, packet, subject) in datagram_flows(&case.network) {
        if !matches!(flow.transport, Transport::Udp) {
            continue;
        }
        let found = case
            .outcome
            .distributions
            .iter()
            .find(|found| found.metric == Metric::FlowDelay && found.subject == subject);
        let Some((&(first, _), &(last, _))) =
            found.and_then(|found| found.buckets.first().zip(found.buckets.last()))
        else {
            continue;
        };
        let (mut least, mut most) = (0.0, Some(0.0));
        if flow.vpn.is_some() || device(&case.network, &flow.from).is_some() {
            most = None;
        }
        for (link, index) in case.network.hops(flow) {
            let direction = &link.directions[index];
            let [slowest, fastest] = rates(direction);
            least += 8.0 * (packet + 28.0) / fastest + delay_floor(direction);
            let waits = matches!(direction.queue, Queue::DropTail | Queue::Red { .. } | Queue::Codel { .. });
            let bounded = delay_range(direction)
                .filter(|_| waits && direction.schedule.iter().all(|change| change.up.is_none()));
            most = most.zip(bounded).map(|(most, [_, delay])| {
                let packet = MAX_PACKET + 8.0 * direction.overhead as f64;
                let queue = match direction.buffer {
                    Buffer::Packets(packets) => packets as f64 * packet,
                    Buffer::Bytes(bytes) => 2.0 * 8.0 * bytes as f64,
                };
                most + (queue + 2.0 * packet) / slowest + delay
            });
        }
        let [first, last] = [first, last].map(|nanoseconds| nanoseconds as f64 * 1e-9);
        ensure!(first >= least * 0.998, "{subject}: a delay of {first} s on a path of at least {least} s");
        if let Some(most) = most {
            ensure!(last <= most * 1.002, "{subject}: a delay of {last} s on a path of at most {most} s");
        }
    }
    Ok(())
}

fn losses(case: &Case) -> Result<(), String> {
    let seconds = case.outcome.interval.as_secs_f64();
    let totals = totals(&case.outcome);
    for (flow, packet, subject) in datagram_flows(&case.network) {
        let survival = |(link, index): &(&Link, usize)| {
            let direction = &link.directions[*index];
            let changes = direction.schedule.iter().filter_map(|change| change.loss);
            let loss = changes.fold(direction.loss, f64::min);
            (1.0 - loss) * (1.0 - direction.bit_errors).powf(8.0 * (packet + 28.0))
        };
        let loss = 1.0 - case.network.hops(flow).iter().map(survival).product::<f64>();
        let offered =
            case.outcome.get(Metric::FlowOffered, &subject).map_or(0.0, |series| series.values.iter().sum());
        let sent = offered * seconds / 8.0 / packet;
        let missing = sent - totals.get(&subject).copied().unwrap_or(0.0) / 8.0 / packet;
        let expected = sent * loss;
        let least = expected - 5.0 * expected.sqrt() - 1.0;
        ensure!(
            missing >= least,
            "{subject}: {missing} of {sent} packets lost or in flight, at least {least} expected"
        );
    }
    Ok(())
}

/// A work-conserving queue that always receives more than the rate of its link keeps the link busy.
fn work_conservation(case: &Case) -> Result<(), String> {
    let bin = case.outcome.interval.0;
    for (link, index) in case.network.links.iter().flat_map(|link| [(link, 0), (link, 1)]) {
        let direction = &link.directions[index];
        let deep = match direction.buffer {
            Buffer::Packets(packets) => packets >= 10,
            Buffer::Bytes(bytes) => bytes >= 15_000,
        };
        if !deep || !direction.schedule.is_empty() || matches!(direction.queue, Queue::Red { .. }) {
            continue;
        }
        let name = subject((link, index));
        // Streams of packets that reach the link at the rate at which they are sent: it is their first or second hop,
        // and no other flow uses the first.
        let reaches = |flow: &&Flow| {
            let hops = case.network.hops(flow);
            let Some(place) = hops.iter().position(|hop| subject(*hop) == name) else { return false };
            let first = subject(hops[0]);
            let alone = case
                .network
                .flows
                .iter()
                .filter(|other| subject(case.network.hops(other)[0]) == first)
                .count()
                == 1;
            let access = &hops[0].0.directions[hops[0].1];
            let wide = matches!(flow.traffic, Traffic::Cbr { rate, .. } if access.rate > 3 * rate && access.rate > 3 * direction.rate);
            matches!(flow.transport, Transport::Udp)
                && flow.count == 1
                && flow.vpn.is_none()
                && flow.stop.is_none()
                && device(&case.network, &flow.from).is_none()
                && place <= 1
                && (place == 0 || alone)
                && wide
        };
        let load: f64 = case
            .network
            .flows
            .iter()
            .filter(reaches)
            .map(|flow| match flow.traffic {
                Traffic::Cbr { rate, packet } => {
                    rate as f64 * (packet + 28 + direction.overhead) as f64 / packet as f64
                }
                _ => 0.0,
            })
            .sum();
        if load < 1.3 * direction.rate as f64 {
            continue;
        }
        let Some(busy) = case.outcome.get(Metric::LinkUtilization, &name) else { continue };
        let settled = 200_000_000_u64.div_ceil(bin) as usize;
        for (bin, busy) in busy.values.iter().enumerate().skip(settled) {
            ensure!(
                *busy > 0.97,
                "{name}: utilization {busy} in bin {bin} at a load of {load} bit/s on {} bit/s",
                direction.rate
            );
        }
    }
    Ok(())
}

fn order(case: &Case) -> Result<(), String> {
    let mut tables = case.network.tables();
    Draw::new(case.seed, "order").shuffle(&mut tables);
    let other = plan(&tables.join("\n"))?;
    ensure!(other == case.plan, "the plan differs");
    Ok(())
}

fn merging(case: &Case) -> Result<(), String> {
    let other = run(&case.plan, case.seed, false);
    let counts = |totals: RunTotals| RunTotals { events: 0, ..totals };
    ensure!(
        counts(case.outcome.totals) == counts(other.totals),
        "totals {:?} and {:?}",
        case.outcome.totals,
        other.totals
    );
    ensure!(case.outcome.series.len() == other.series.len(), "another number of series");
    for (a, b) in case.outcome.series.iter().zip(&other.series) {
        let same = a.metric == b.metric && a.subject == b.subject;
        let same = same
            && a.values.iter().map(|value| value.to_bits()).eq(b.values.iter().map(|value| value.to_bits()));
        ensure!(same, "{:?} of {}: {:?} and {:?}", a.metric, a.subject, a.values, b.values);
    }
    ensure!(case.outcome.distributions == other.distributions, "other distributions");
    ensure!(case.outcome.arrivals == other.arrivals, "other arrivals");
    Ok(())
}

/// Repeats of each round of a sign test. A round fails by chance with probability 2⁻⁷, 2⁻¹¹ and 2⁻¹¹.
const SIGN_ROUNDS: [u64; 3] = [8, 12, 12];

fn twins(case: &Case) -> Result<(), String> {
    let pairs =
        case.network.flows.iter().filter_map(|flow| Some((&case.network.flows[flow.twin?].name, &flow.name)));
    let mut pairs: Vec<_> = pairs.collect();
    if pairs.is_empty() {
        return Ok(());
    }
    let mut totals = Vec::new();
    for (round, count) in SIGN_ROUNDS.into_iter().enumerate() {
        totals = repeated(&case.network, 1, seeds(case.seed, round, count))?;
        let ahead = |pair: &(&String, &String), less: bool| {
            totals.iter().all(|totals| {
                if less { totals[pair.0] < totals[pair.1] } else { totals[pair.0] > totals[pair.1] }
            })
        };
        pairs.retain(|pair| ahead(pair, true) || ahead(pair, false));
        if pairs.is_empty() {
            return Ok(());
        }
    }
    let (a, b) = pairs[0];
    let bits: Vec<[f64; 2]> = totals.iter().map(|totals| [totals[a], totals[b]]).collect();
    Err(format!("{a} and {b} are equal, but received {bits:?} bits"))
}

fn names(case: &Case) -> Result<(), String> {
    let mut draw = Draw::new(case.seed, "names");
    let mut used = 0;
    let names = case.network.names(|_| {
        used += 1;
        format!("n{}-{used}", draw.between(10, 99))
    });
    let renamed = case.network.renamed(|name| names[name].clone());
    let original = |subject: &str| match subject.split_once('[') {
        Some((name, member)) => format!("{}[{member}", names[name]),
        None => names[subject].clone(),
    };
    same_distribution(case, (&renamed, 1), original)
}

fn scaling(case: &Case) -> Result<(), String> {
    // Windows of VPNs, applications and some algorithms contain constants in seconds that no setting changes.
    let scales = case.network.vpns.iter().all(|vpn| !matches!(vpn.control, Control::I2vfc { .. }))
        && case.network.flows.iter().all(|flow| match (&flow.transport, &flow.traffic) {
            (_, Traffic::Application(..)) => false,
            (Transport::Tcp(tcp), _) => {
                let has_constants = tcp.rack || tcp.stack == "linux" || tcp.slow_start == "hystart++";
                !has_constants && !tcp.algorithm.contains("cubic")
            }
            _ => true,
        });
    if !scales {
        return Ok(());
    }
    same_distribution(case, (&case.network, 2), str::to_owned)
}

/// Samples per side of each round of a rank test. All samples of one side exceed all of the other by chance with
/// probability 2/C(12, 6) and 2/C(20, 10).
const RANK_ROUNDS: [u64; 2] = [6, 10];

/// Checks that no flow's totals in repeated runs of one network all exceed those of another one, with its scale. `other`
/// returns the name of a flow in the other network.
fn same_distribution(
    case: &Case,
    (network, scale): (&Network, u64),
    other: impl Fn(&str) -> String,
) -> Result<(), String> {
    let mut suspects: Option<Vec<String>> = None;
    let mut last = String::new();
    for (round, count) in RANK_ROUNDS.into_iter().enumerate() {
        let seeds = |side: usize| seeds(case.seed, 10 + 2 * round + side, count);
        let [a, b] = [repeated(&case.network, 1, seeds(0))?, repeated(network, scale, seeds(1))?];
        let found = suspects.take().unwrap_or_else(|| a[0].keys().cloned().collect());
        let separate = |flow: &String| {
            let values = |side: &[BTreeMap<String, f64>], name: &str| {
                side.iter().map(|totals| totals[name]).collect::<Vec<f64>>()
            };
            let (mut x, mut y) = (values(&a, flow), values(&b, &other(flow)));
            x.sort_by(f64::total_cmp);
            y.sort_by(f64::total_cmp);
            let apart = x[x.len() - 1] < y[0] || y[y.len() - 1] < x[0];
            if apart {
                last = format!("{flow} received {x:?} bits, and {y:?} bits in the other scenario");
            }
            apart
        };
        let found: Vec<String> = found.into_iter().filter(separate).collect();
        if found.is_empty() {
            return Ok(());
        }
        suspects = Some(found);
    }
    Err(last)
}

/// Returns the seeds of a round of repeats.
fn seeds(seed: u64, round: usize, count: u64) -> impl Iterator<Item = u64> {
    let mut draw = Draw::new(seed, &format!("round {round}"));
    (0..count).map(move |_| draw.between(1, 1 << 50))
}

/// Returns the flows of datagrams with a fixed payload, the payload, and the subject of each member.
fn datagram_flows(network: &Network) -> impl Iterator<Item = (&Flow, f64, String)> {
    let datagrams = network.flows.iter().filter(|flow| !matches!(flow.transport, Transport::Tcp(_)));
    datagrams
        .filter_map(|flow| Some((flow, flow.traffic.packet()? as f64)))
        .flat_map(|(flow, packet)| members(flow).into_iter().map(move |subject| (flow, packet, subject)))
}

/// Returns the subjects of a flow's members.
fn members(flow: &Flow) -> Vec<String> {
    match flow.count {
        1 => vec![flow.name.clone()],
        count => (0..count).map(|member| format!("{}[{member}]", flow.name)).collect(),
    }
}

fn subject((link, index): (&Link, usize)) -> String {
    format!("{}.{}", link.name, ["forward", "reverse"][index])
}

fn device(network: &Network, node: &str) -> Option<(u64, u64)> {
    network.nodes.iter().find(|candidate| candidate.name == node)?.device
}

/// Returns the lowest and the highest rate of a link direction during the run.
fn rates(direction: &Direction) -> [f64; 2] {
    let changes = direction.schedule.iter().filter_map(|change| change.rate);
    let rates = || changes.clone().chain([direction.rate]);
    [rates().min(), rates().max()].map(|rate| rate.unwrap_or(direction.rate) as f64)
}

/// Returns the minimum delay of a link direction in seconds, without jitter.
fn delay_floor(direction: &Direction) -> f64 {
    let changes = direction.schedule.iter().filter_map(|change| change.delay);
    changes.fold(direction.delay, u64::min) as f64 * 1e-9
}

/// Returns the minimum and the maximum delay of a link direction in seconds; `None` if there is no maximum.
fn delay_range(direction: &Direction) -> Option<[f64; 2]> {
    let jitter = match direction.jitter {
        Some(Jitter { exponential: true, .. }) => return None,
        Some(jitter) => jitter.amount,
        None => 0,
    };
    let changes = direction.schedule.iter().filter_map(|change| change.delay);
    let most = changes.fold(direction.delay, u64::max) + jitter;
    Some([delay_floor(direction), most as f64 * 1e-9])
}
