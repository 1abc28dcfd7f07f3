//! Builds an outcome from the counters of a simulation.

use crate::bins::Grid;
use crate::channel::ChannelKind;
use crate::route::channel_of;
use crate::world::Simulation;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::Pattern;
use netstage_core::traffic::application::Application;
use netstage_scenario::outcome::{Distribution, FlowArrivals, Metric, RunOutcome, Series};
use netstage_scenario::plan::{FlowDirection, FlowGroup, FlowTransport, Hop};
use netstage_scenario::{quality, window};

/// Values sampled at the end of each bin.
#[derive(Debug)]
pub struct Samples {
    /// Per VPN: window, a, b, permitted rate, loss, round trip, packets lost so far.
    vpns: Vec<[Vec<f64>; 7]>,
    /// Per TCP flow, if detail is requested: window, round trip, retransmissions so far.
    flows: Vec<[Vec<f64>; 3]>,
    /// Per channel with a full link: nanoseconds busy and packets marked so far.
    links: Vec<[Vec<f64>; 4]>,
}

impl Samples {
    /// Creates empty samples.
    pub fn new(world: &Simulation) -> Samples {
        let flows = if world.plan.measure.flow_detail { world.hosts.pattern_senders } else { 0 };
        Samples {
            vpns: vec![Default::default(); world.vpns.len()],
            flows: vec![Default::default(); flows],
            links: vec![Default::default(); world.channels.len()],
        }
    }

    /// Samples a simulation at the end of a bin.
    pub fn take(&mut self, world: &mut Simulation, bin: usize) {
        let now = Instant::ZERO + world.grid.interval * (bin as u64 + 1);
        for (values, vpn) in self.vpns.iter_mut().zip(&mut world.vpns) {
            vpn.account(now, vpn.queue_len() as usize);
            let sampled = vpn.window(&world.pes).map(|ingress| {
                let parameters = ingress.parameters();
                let round_trip = ingress.round_trip();
                [
                    ingress.window(),
                    parameters.increase,
                    parameters.decrease,
                    f64::NAN,
                    ingress.loss().unwrap_or(f64::NAN),
                    if round_trip > 0.0 { round_trip } else { f64::NAN },
                    ingress.counters().lost as f64,
                ]
            });
            let paced = vpn.paced(&world.pes).map(|paced| {
                let (loss, round_trip) = paced.path();
                let round_trip = if round_trip > 0.0 { round_trip } else { f64::NAN };
                let [window, increase, decrease] = [f64::NAN; 3];
                let permitted = 8.0 * paced.permitted();
                [window, increase, decrease, permitted, loss, round_trip, paced.counters().lost as f64]
            });
            for (values, sample) in values.iter_mut().zip(sampled.or(paced).unwrap_or([f64::NAN; 7])) {
                values.push(sample);
            }
        }
        for (values, slot) in self.flows.iter_mut().zip(&world.hosts.senders) {
            let segment = f64::from(world.hosts.groups[slot.group as usize].segment_size());
            values[0].push(slot.tcp.congestion_window() as f64 / segment);
            values[1].push(slot.tcp.smoothed_round_trip().map_or(f64::NAN, Duration::as_secs_f64));
            values[2].push(slot.tcp.retransmissions() as f64);
        }
        for (values, channel) in self.links.iter_mut().zip(&mut world.channels) {
            if let ChannelKind::Full(link) = &channel.kind {
                channel.counts.account(now, link.queue_len());
                let carried = link.carried();
                let counters = [link.busy(now).0, link.marks(), carried.total, carried.background];
                values.iter_mut().zip(counters).for_each(|(values, count)| values.push(count as f64));
            }
        }
    }
}

/// Converts cumulative values to values per bin.
fn differences(values: &[f64], scale: f64) -> Vec<f64> {
    let before = std::iter::once(0.0).chain(values.iter().copied());
    values.iter().zip(before).map(|(value, before)| (value - before) * scale).collect()
}

/// Returns the outcome of a running simulation for its first `bins` bins, which must be final.
pub fn partial_outcome(world: &Simulation, samples: &Samples, bins: usize) -> RunOutcome {
    let mut outcome = outcome(world, samples);
    outcome.truncate(bins);
    outcome
}

/// Returns the outcome of a finished simulation.
pub fn outcome(world: &Simulation, samples: &Samples) -> RunOutcome {
    let mut series = Vec::new();
    let (mut distributions, mut arrivals) = (Vec::new(), Vec::new());
    record_flows(world, samples, &mut series, &mut distributions, &mut arrivals);
    record_vpns(world, samples, &mut series);
    record_links(world, samples, &mut series);
    series.sort_by_key(|series| series.metric);
    let mut totals = world.totals;
    totals.in_flight = world.in_flight();
    totals.duplicated = world.duplicated();
    RunOutcome {
        interval: world.grid.interval,
        bins: world.grid.bins,
        series,
        distributions,
        arrivals,
        totals,
        warnings: warnings(world),
        ..RunOutcome::default()
    }
}

fn record_flows(
    world: &Simulation,
    samples: &Samples,
    series: &mut Vec<Series>,
    distributions: &mut Vec<Distribution>,
    arrivals: &mut Vec<FlowArrivals>,
) {
    let seconds = world.grid.interval.as_secs_f64();
    let (mut tcp, mut udp, mut dialogue) = (0, 0, 0);
    for (index, group) in world.plan.flows.iter().enumerate() {
        for member in 0..group.count {
            let subject = world.plan.flow_name(index, member);
            if let Some(application) = group.traffic.application() {
                record_dialogue(world, application, dialogue, &subject, series, distributions);
                dialogue += 1;
                continue;
            }
            let mut push = |metric, values| series.push(Series { metric, subject: subject.clone(), values });
            let datagrams = !matches!(group.transport, FlowTransport::Tcp(_));
            if datagrams {
                let receiver = &world.receivers[udp];
                if world.plan.measure.flow_detail {
                    push(Metric::FlowLost, receiver.lost());
                }
                push(Metric::FlowThroughput, world.udp_bytes[udp].scaled(8.0 / seconds));
                push(Metric::FlowOffered, world.udp_offered[udp].scaled(8.0 / seconds));
                if let Some(duplicated) = receiver.duplicated().filter(|_| world.plan.measure.flow_detail) {
                    push(Metric::FlowDuplicated, duplicated);
                }
                arrivals.push(FlowArrivals {
                    flow: subject.clone(),
                    window: receiver.arrivals(),
                    after_end: world.datagrams_in_flight(udp),
                });
                if world.hosts.groups[index].answer.is_some() {
                    let (sums, counts) =
                        (world.round_trips[udp].scaled(1e-9), world.answers[udp].scaled(1.0));
                    push(Metric::FlowRoundTrip, sums.iter().zip(counts).map(|(sum, n)| sum / n).collect());
                }
                if let Some([packets, bits]) = world.damage.counts_of(udp) {
                    push(Metric::FlowCorrupted, packets);
                    push(Metric::FlowBitErrors, bits);
                }
                if let Some(Some(session)) = world.sessions.get(udp) {
                    series.extend(session.series(&subject, world.grid.bins));
                    distributions.extend(session.distributions(&subject));
                }
                match world.delays.get(udp) {
                    Some(delays) if world.hosts.groups[index].answer.is_some() => {
                        distributions.push(delays.round_trips(&subject));
                    }
                    Some(delays) => {
                        series.push(delays.series(&subject));
                        distributions.extend(delays.distributions(&subject));
                    }
                    None => {}
                }
                udp += 1;
                continue;
            }
            if let Some(lost) = world.flow_lost.get(tcp) {
                push(Metric::FlowLost, lost.iter().map(|count| *count as f64).collect());
            }
            let flows = world.hosts.pattern_senders;
            let bits = |bin: usize| world.tcp_bytes[bin * flows + tcp] as f64 * 8.0 / seconds;
            push(Metric::FlowThroughput, (0..world.grid.bins).map(bits).collect());
            if let Some([window, round_trip, retransmissions]) = samples.flows.get(tcp) {
                push(Metric::FlowWindow, window.clone());
                push(Metric::FlowRoundTrip, round_trip.clone());
                push(Metric::FlowRetransmissions, differences(retransmissions, 1.0));
            }
            if let Some(bins) = world.watch.flow_history(tcp, Instant::ZERO + world.plan.duration) {
                series.extend(window::series(&subject, world.grid.interval, &bins));
            }
            record_completion(world, group, member, tcp, &subject, series, distributions);
            tcp += 1;
        }
    }
}

/// Records the completion time of a TCP flow that is a bulk transfer, if it was complete before the end of the run.
fn record_completion(
    world: &Simulation,
    group: &FlowGroup,
    member: usize,
    tcp: usize,
    subject: &str,
    series: &mut Vec<Series>,
    distributions: &mut Vec<Distribution>,
) {
    let Some(&Pattern::Bulk { size: Some(size) }) = group.traffic.pattern() else { return };
    let Some(end) = world.bulk_end(tcp, size) else { return };
    let start = group.start + group.stagger * member as u64;
    let Grid { interval, bins } = world.grid;
    let (values, distribution) = quality::completion(subject, start, end, interval, bins);
    series.push(values);
    distributions.push(distribution);
}

fn record_dialogue(
    world: &Simulation,
    application: &Application,
    index: usize,
    subject: &str,
    series: &mut Vec<Series>,
    distributions: &mut Vec<Distribution>,
) {
    let seconds = world.grid.interval.as_secs_f64();
    let dialogue = &world.hosts.dialogues[index];
    let values = dialogue.delivered.scaled(8.0 / seconds);
    series.push(Series { metric: Metric::FlowThroughput, subject: subject.to_owned(), values });
    let tcp = world.hosts.senders.len();
    let flows = dialogue.first_flow as usize..dialogue.first_flow as usize + 2 * dialogue.connections.len();
    let datagrams = tcp + index;
    let rows: Vec<&Vec<u64>> = flows.chain([datagrams]).filter_map(|row| world.flow_lost.get(row)).collect();
    if !rows.is_empty() {
        let lost = |bin: usize| rows.iter().map(|row| row[bin]).sum::<u64>() as f64;
        let values = (0..world.grid.bins).map(lost).collect();
        series.push(Series { metric: Metric::FlowLost, subject: subject.to_owned(), values });
    }
    let first = dialogue.first_flow as usize;
    for (end, direction) in FlowDirection::BOTH.into_iter().enumerate() {
        let flows = first + end..first + 2 * dialogue.connections.len();
        let sent = world.watch.endpoint_history(flows, world.grid, Instant::ZERO + world.plan.duration);
        let subject = direction.subject(subject);
        series.extend(sent.into_iter().flat_map(|bins| window::series(&subject, world.grid.interval, &bins)));
    }
    let [client, server] = &dialogue.quality;
    let measured = quality::series(application, subject, client.bins(), server.bins());
    let ends = [client, server].map(|end| end.distributions().map(|values| values.buckets().collect()));
    let [client, server] = &ends;
    distributions.extend(quality::distributions(application, subject, [client, server], &measured));
    series.extend(measured);
}

fn record_vpns(world: &Simulation, samples: &Samples, series: &mut Vec<Series>) {
    let seconds = world.grid.interval.as_secs_f64();
    for (index, vpn) in world.plan.vpns.iter().enumerate() {
        let (state, sampled) = (&world.vpns[index], &samples.vpns[index]);
        let mut push = |metric, values| series.push(Series { metric, subject: vpn.name.clone(), values });
        push(Metric::VpnThroughput, state.bytes.scaled(8.0 / seconds));
        if !vpn.settings.may_wait() {
            continue;
        }
        push(Metric::VpnQueue, state.waiting.scaled(1e-9 / seconds));
        push(Metric::VpnQueueDrops, state.queue_drops.scaled(1.0));
        let (has_window, has_rate) = (state.window(&world.pes).is_some(), state.paced(&world.pes).is_some());
        let [window, increase, decrease, permitted, loss, round_trip, lost] = sampled;
        if has_window {
            push(Metric::VpnWindow, window.clone());
            push(Metric::VpnIncrease, increase.clone());
            push(Metric::VpnDecrease, decrease.clone());
        }
        if has_rate {
            push(Metric::VpnPermitted, permitted.clone());
        }
        if has_window || has_rate {
            push(Metric::VpnLoss, loss.clone());
            push(Metric::VpnRoundTrip, round_trip.clone());
            push(Metric::VpnLost, differences(lost, 1.0));
        }
    }
}

fn record_links(world: &Simulation, samples: &Samples, series: &mut Vec<Series>) {
    let seconds = world.grid.interval.as_secs_f64();
    for link in 0..world.plan.links.len() {
        for direction in 0..2 {
            let hop = Hop { link, direction };
            let index = channel_of(hop) as usize;
            if !world.routes.used[index] {
                continue;
            }
            let subject = world.plan.hop_name(hop);
            let mut push = |metric, values| series.push(Series { metric, subject: subject.clone(), values });
            let channel = &world.channels[index];
            let counts = &channel.counts;
            let (bits, sampled) = (8.0 / seconds, &samples.links[index]);
            let [bytes, background] = match &channel.kind {
                ChannelKind::Plain(_) => [
                    counts.traffic.scaled(|sums| sums.bytes, bits),
                    counts.traffic.scaled(|sums| sums.background, bits),
                ],
                ChannelKind::Full(_) => [&sampled[2], &sampled[3]].map(|bytes| differences(bytes, bits)),
            };
            push(Metric::LinkThroughput, bytes);
            push(Metric::LinkBackground, background);
            push(Metric::LinkQueue, counts.traffic.scaled(|sums| sums.waiting, 1e-9 / seconds));
            push(Metric::LinkDrops, counts.drops.scaled(1.0));
            match channel.kind {
                ChannelKind::Plain(_) => {
                    let busy = counts.traffic.scaled(|sums| sums.busy, 1e-9 / seconds);
                    push(Metric::LinkUtilization, busy);
                }
                ChannelKind::Full(_) => {
                    push(Metric::LinkUtilization, differences(&sampled[0], 1e-9 / seconds));
                    push(Metric::LinkMarks, differences(&sampled[1], 1.0));
                    push(Metric::LinkLost, counts.lost.scaled(1.0));
                }
            }
        }
    }
}

fn warnings(world: &Simulation) -> Vec<String> {
    let infeasible = world
        .plan
        .vpns
        .iter()
        .zip(&world.vpns)
        .filter(|(_, vpn)| vpn.window(&world.pes).is_some_and(|ingress| ingress.parameters().infeasible));
    infeasible
        .map(|(vpn, _)| {
            format!(
                "vpn.{}: the weight needs a decrease b of 1 or more, so the VPN gets less than its share; \
                 use rule = \"decrease-then-increase\" or a larger weight",
                vpn.name
            )
        })
        .collect()
}
