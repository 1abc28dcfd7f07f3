//! Outcome of a run from the reports of agents and emulator, with the names and bins of the simulator.

mod applications;
mod edges;
mod route_server;

use crate::topology::assignments::{PlacedFlow, has_timestamps};
use crate::topology::services::route_server::RouteServerReport;
use netstage_agent_api::results::{
    AgentReport, BinCounts, Buckets, FlowResult, MAX_DRAIN, TcpSample, Travel, Usage, WatchedWindows,
};
use netstage_agent_api::service::ServiceResult;
use netstage_core::measure::lateness::{LatenessLimits, MAX_SHARE};
use netstage_core::measure::trial::LinkLateness;
use netstage_core::measure::{FaultTime, Histogram, VoidReason};
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::Pattern;
use netstage_emulator as emulator;
use netstage_host::reserved_cpu::MAX_PERCENT;
use netstage_scenario::outcome::{
    AchievedLoad, Distribution, FlowArrivals, Metric, RunOutcome, RunTotals, Series, ThreadStall,
};
use netstage_scenario::plan::{FlowDirection, FlowGroup, FlowTransport, Hop, IpVersion, NodeKind, Plan};
use netstage_scenario::{quality, window};
use netstage_wire::{IPV4_HEADER, IPV6_HEADER, TCP_HEADER, TCP_TIMESTAMPS, UDP_HEADER};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Results of one run.
pub struct Findings<'a> {
    /// Plan of the run.
    pub plan: &'a Plan,
    /// Flows of the plan.
    pub members: &'a [PlacedFlow],
    /// Reports of the agents.
    pub reports: &'a [AgentReport],
    /// Report of the emulator; empty for a real network.
    pub emulator: &'a emulator::EmulatorReport,
    /// True for a real network, without reports about its links.
    pub is_real: bool,
    /// Maximum error of the clock offset between two nodes, in nanoseconds.
    pub clock_error: &'a dyn Fn(usize, usize) -> u64,
    /// Results of the services.
    pub services: &'a [ServiceResult],
    /// Results of the route server, if any.
    pub route_server: Option<&'a RouteServerReport>,
    /// Samples of the watched windows.
    pub watched: &'a WatchedWindows,
}

/// Returns the outcome, with series in the order of the metric registry.
pub fn outcome(found: &Findings) -> RunOutcome {
    let plan = found.plan;
    let mut builder = OutcomeBuilder {
        bins: (plan.duration.0 / plan.measure.interval.0) as usize,
        seconds: plan.measure.interval.as_secs_f64(),
        outcome: RunOutcome { interval: plan.measure.interval, ..RunOutcome::default() },
        by_kernel: (found.emulator.links.iter().filter(|link| link.by_kernel))
            .map(|link| link.name.clone())
            .collect(),
        is_real: found.is_real,
        is_stopped: found.reports.iter().any(|report| report.stopped),
    };
    builder.outcome.bins = builder.bins;
    let sides = Sides::new(found.reports);
    for (id, member) in found.members.iter().enumerate() {
        let lost = found.emulator.flow_lost.get(&(id as u32));
        let group = &plan.flows[member.group];
        if let (Some(_), Some(application)) = (group.program, group.traffic.application()) {
            let service = found.services.iter().find(|service| service.name == group.name);
            builder.add_service(application, &group.name, service);
            continue;
        }
        builder.add_flow(plan, member, &sides, lost);
        let name = plan.flow_name(member.group, member.index);
        builder.add_link_lateness(found, group, &name);
        if found.is_real && has_timestamps(&group.transport) && sides.receiving.contains_key(name.as_str()) {
            let error = (found.clock_error)(group.from, group.to) as f64 * 1e-9;
            let values = vec![error; builder.bins];
            builder.push(Metric::FlowClockError, &name, values);
        }
    }
    for (subject, bins) in &found.watched.flows {
        builder.outcome.series.extend(window::series(subject, plan.measure.interval, bins));
    }
    for (index, vpn) in plan.vpns.iter().enumerate() {
        let own = found.reports.iter().flat_map(|report| &report.vpns).find(|own| own.vpn == vpn.name);
        let bytes = match found.is_real {
            true => builder.received_in(found, index, &sides),
            false => builder.delivered_to(index as u16, found.emulator),
        };
        builder.add_vpn(&vpn.name, &bytes, own);
    }
    found.reports.iter().for_each(|report| builder.add_usage(report));
    if let Some(report) = found.route_server {
        builder.add_route_server(report);
    }
    for link in &found.emulator.links {
        link.directions.iter().for_each(|direction| builder.add_link(direction));
        if reports_broadcast(plan, &link.name) {
            link.directions.iter().for_each(|direction| builder.add_broadcast(direction));
        }
    }
    builder.add_remarks(found);
    let mut outcome = builder.outcome;
    outcome.series.sort_by_key(|series| series.metric);
    outcome
}

/// Adds a failure for each failed service, and writes the output of its programs to a file.
pub fn write_logs(services: &[ServiceResult], seed: u64, logs: &Path, outcome: &mut RunOutcome) {
    for service in services {
        let Some(error) = &service.error else { continue };
        let path = logs.join(format!("{}-{seed}.log", service.name));
        let written = fs::create_dir_all(logs).and_then(|()| fs::write(&path, &service.log));
        let log = match written {
            Ok(()) => format!("see the log {}", path.display()),
            Err(e) => format!("cannot write the log {}: {e}", path.display()),
        };
        outcome.failures.push(format!("service.{}: {error}; {log}", service.name));
    }
}

/// Results of both sides of each flow, by name.
struct Sides<'a> {
    sending: BTreeMap<&'a str, &'a FlowResult>,
    receiving: BTreeMap<&'a str, &'a FlowResult>,
}

impl<'a> Sides<'a> {
    fn new(reports: &'a [AgentReport]) -> Sides<'a> {
        let side = |sends: bool| {
            let flows = reports.iter().flat_map(|report| &report.flows);
            flows.filter(|flow| flow.sends == sends).map(|flow| (flow.name.as_str(), flow)).collect()
        };
        Sides { sending: side(true), receiving: side(false) }
    }
}

/// Slow start threshold that Linux reports before the first loss (TCP_INFINITE_SSTHRESH).
const NO_THRESHOLD: u32 = 0x7fff_ffff;

struct OutcomeBuilder {
    bins: usize,
    seconds: f64,
    outcome: RunOutcome,
    /// Names of the links that the kernel emulates.
    by_kernel: BTreeSet<String>,
    is_real: bool,
    /// The run was stopped early, at each agent at a time of its own.
    is_stopped: bool,
}

impl OutcomeBuilder {
    fn push(&mut self, metric: Metric, subject: &str, mut values: Vec<f64>) {
        // Values that an agent did not report are unknown, not zero.
        values.resize(self.bins, f64::NAN);
        self.outcome.series.push(Series { metric, subject: subject.to_owned(), values });
    }

    fn distribution(&mut self, metric: Metric, subject: &str, buckets: &Buckets) {
        if !buckets.0.is_empty() {
            let (subject, buckets) = (subject.to_owned(), buckets.0.clone());
            self.outcome.distributions.push(Distribution { metric, subject, buckets });
        }
    }

    fn add_flow(&mut self, plan: &Plan, member: &PlacedFlow, sides: &Sides, lost: Option<&Vec<u64>>) {
        let name = plan.flow_name(member.group, member.index);
        let group = &plan.flows[member.group];
        let is_tcp = matches!(group.transport, FlowTransport::Tcp(_));
        let (sending, mut receiving) = (sides.sending.get(&*name), sides.receiving.get(&*name));
        if group.transport.is_one_ended() {
            // The sender receives the replies.
            receiving = sending;
        }
        self.add_remarks_of(&name, [sending, receiving]);
        if !group.branches.is_empty() {
            self.add_sender(&name, is_tcp, sending);
            for (_, subject) in plan.receivers(member.group, member.index) {
                let receiving = sides.receiving.get(&*subject);
                self.add_remarks_of(&subject, [None, receiving]);
                self.add_receiver(&subject, &group.transport, receiving);
                self.add_losses(&subject, &group.transport, sending, receiving);
            }
            return;
        }
        if matches!(group.transport, FlowTransport::Stamp { .. }) {
            return self.add_session(&name, sending, receiving);
        }
        if let Some(application) = group.traffic.application() {
            return self.add_dialogue(application, &name, [sending, receiving]);
        }
        self.add_receiver(&name, &group.transport, receiving);
        self.add_losses(&name, &group.transport, sending, receiving);
        if let (Some(&Pattern::Bulk { size: Some(size) }), Some(receiver)) =
            (group.traffic.pattern(), receiving)
        {
            let start = group.start + group.stagger * member.index as u64;
            self.add_completion(&name, start, size, receiver);
        }
        if is_tcp && plan.measure.flow_detail {
            self.push(Metric::FlowLost, &name, self.lost_of_tcp(plan, group, lost));
            self.add_tcp(&name, sending.map_or(&[], |sender| &sender.tcp));
        }
        self.add_sender(&name, is_tcp, sending);
    }

    /// Adds the completion time of a bulk transfer of `size` bytes, if all of them arrived before the end of the run.
    fn add_completion(&mut self, name: &str, start: Instant, size: u64, receiver: &FlowResult) {
        let received: u64 = receiver.bins.iter().map(|bin| bin.received_bytes).sum();
        if let Some(end) = receiver.last_bytes_ns.map(Instant).filter(|_| received >= size) {
            let interval = self.outcome.interval;
            let (series, distribution) = quality::completion(name, start, end, interval, self.bins);
            self.push(series.metric, name, series.values);
            self.outcome.distributions.push(distribution);
        }
    }

    /// Returns the packets lost per bin on the links of a TCP flow. They are unknown if the kernel emulates one of the
    /// links or the path contains a tunnel.
    fn lost_of_tcp(&self, plan: &Plan, group: &FlowGroup, lost: Option<&Vec<u64>>) -> Vec<f64> {
        let by_kernel = |hop: &Hop| self.by_kernel.contains(&plan.links[hop.link].name);
        let has_tunnel = |path: &[Hop]| !plan.crossings(path).is_empty();
        match lost {
            _ if self.is_real => Vec::new(),
            _ if has_tunnel(&group.path) || has_tunnel(&group.reverse) => Vec::new(),
            _ if group.path.iter().chain(&group.reverse).any(by_kernel) => Vec::new(),
            Some(lost) => lost.iter().map(|count| *count as f64).collect(),
            None => vec![0.0; self.bins],
        }
    }

    /// Adds the results of a flow's sender.
    fn add_sender(&mut self, name: &str, is_tcp: bool, sending: Option<&&FlowResult>) {
        if !is_tcp {
            let bits = 8.0 / self.seconds;
            self.push(Metric::FlowOffered, name, per_bin(sending, |c| c.offered_bytes, bits));
            self.push(Metric::FlowSent, name, per_bin(sending, |c| c.sent, 1.0));
        }
        if let Some(sender) = sending {
            if !sender.travel.is_empty() {
                self.push(Metric::FlowRoundTrip, name, mean_travel(&sender.travel));
            }
            self.distribution(Metric::FlowRoundTrip, name, &sender.round_trip);
            self.distribution(Metric::FlowGap, name, &sender.gaps);
            self.add_schedule(name, sender);
        }
    }

    /// Adds the results of one of a flow's receivers.
    fn add_receiver(&mut self, name: &str, transport: &FlowTransport, receiving: Option<&&FlowResult>) {
        let is_tcp = matches!(transport, FlowTransport::Tcp(_));
        let received = |value: fn(&BinCounts) -> u64, scale| per_bin(receiving, value, scale);
        self.push(Metric::FlowThroughput, name, received(|c| c.received_bytes, 8.0 / self.seconds));
        if !is_tcp {
            self.push(Metric::FlowDuplicated, name, received(|c| c.duplicated, 1.0));
            self.push(Metric::FlowReordered, name, received(|c| c.reordered, 1.0));
            self.push(Metric::FlowCorrupted, name, received(|c| c.corrupted, 1.0));
            self.push(Metric::FlowBitErrors, name, received(|c| c.bit_errors, 1.0));
        }
        if let Some(receiver) = receiving {
            if !is_tcp {
                let mut drops = vec![0.0; self.bins];
                if let Some(last) = drops.last_mut() {
                    *last = receiver.socket_drops as f64;
                }
                self.push(Metric::FlowReceiverDrops, name, drops);
            }
            if !receiver.sends && !receiver.travel.is_empty() {
                self.push(Metric::FlowDelay, name, mean_travel(&receiver.travel));
            }
            self.distribution(Metric::FlowDelay, name, &receiver.delay);
            self.distribution(Metric::FlowDelayVariation, name, &receiver.delay_variation);
            self.outcome.arrivals.extend(receiver.arrivals.map(|window| FlowArrivals {
                flow: name.to_owned(),
                window,
                after_end: receiver.drained.packets,
            }));
        }
    }

    /// Adds the packets lost between the sender and one of its receivers.
    fn add_losses(
        &mut self,
        name: &str,
        transport: &FlowTransport,
        sending: Option<&&FlowResult>,
        receiving: Option<&&FlowResult>,
    ) {
        if matches!(transport, FlowTransport::Tcp(_)) {
            return;
        }
        let run = FaultTime::Within(Duration::from_secs_f64(self.bins as f64 * self.seconds));
        if let Some(limit) = receiving.and_then(|receiver| receiver.answer_limit) {
            if name.starts_with("test.") {
                let fault = format!("the host answers at most {limit:.1} probes/s, so the loss is unknown");
                self.outcome.void.push(VoidReason::new(format!("flow.{name}:"), fault, run).into());
            }
            return;
        }
        // Where a side has not counted to the end, only the gaps that the receiver has seen are known.
        let is_complete = |side: &&FlowResult| side.bins.len() == self.bins && side.error.is_none();
        let both = sending
            .zip(receiving)
            .filter(|(sender, receiver)| !self.is_stopped && is_complete(sender) && is_complete(receiver));
        let gaps = per_bin(receiving, |c| c.lost, 1.0);
        let Some((sender, receiver)) = both.filter(|_| !matches!(transport, FlowTransport::Quic)) else {
            return self.push(Metric::FlowLost, name, gaps);
        };
        let lost: Vec<f64> = receiver.lost_in_bins(sender).iter().map(|count| *count as f64).collect();
        let longest = [&receiver.delay, &receiver.round_trip].into_iter().flat_map(|delays| &delays.0);
        if longest.map(|(delay, _)| *delay).max() < Some(MAX_DRAIN.0) {
            return self.push(Metric::FlowLost, name, lost);
        }
        let unseen = lost.iter().sum::<f64>() - gaps.iter().sum::<f64>();
        if unseen > 0.0 {
            self.outcome.warnings.push(format!(
                "flow.{name}: {unseen} packets had not arrived {} s after the end; they are lost or still on their way, \
                 and do not count as lost",
                MAX_DRAIN.as_secs_f64()
            ));
        }
        self.push(Metric::FlowLost, name, gaps);
    }

    /// Adds a STAMP session. The sender reports replies and delays, the reflector the packets it received.
    fn add_session(&mut self, name: &str, sender: Option<&&FlowResult>, reflector: Option<&&FlowResult>) {
        let answered = |value: fn(&BinCounts) -> u64, scale| per_bin(sender, value, scale);
        self.push(Metric::FlowThroughput, name, answered(|c| c.received_bytes, 8.0 / self.seconds));
        self.push(Metric::FlowDuplicated, name, answered(|c| c.duplicated, 1.0));
        self.push(Metric::FlowReordered, name, answered(|c| c.reordered, 1.0));
        self.add_sender(name, false, sender);
        // Losses per direction need the totals of both sides, which are known at the end.
        let sent = sender.map(|sender| sender.bins.iter().map(|bin| bin.sent).sum::<u64>());
        let [answered, reflected] = [sender, reflector].map(|side| side.map(|side| side.received()));
        let missing = |from: Option<u64>, to: Option<u64>| Some(from?.saturating_sub(to?) as f64);
        let drops = [sender, reflector].map(|side| side.map(|side| side.socket_drops as f64));
        self.push_total(
            Metric::FlowReceiverDrops,
            name,
            drops[0].zip(drops[1]).map(|(one, other)| one + other),
        );
        let [forward, backward] = FlowDirection::BOTH.map(|direction| direction.subject(name));
        self.push_total(Metric::FlowLost, &forward, missing(sent, reflected));
        self.push_total(Metric::FlowLost, &backward, missing(reflected, answered));
        if let Some(schedule) = reflector.and_then(|reflector| reflector.schedule) {
            self.outcome.loads.push(AchievedLoad {
                subject: name.to_owned(),
                quantity: "replies on time".into(),
                unit: "packets".into(),
                layer: String::new(),
                requested: schedule.sent as f64,
                achieved: (schedule.sent - schedule.late) as f64,
            });
            // Late replies queue behind each other on their way back, by no more than they were late.
            let late = if schedule.late > 0 { schedule.stall_ns.0 } else { 0 };
            self.outcome.held.push((name.to_owned(), schedule.held_ns.max(late)));
            self.add_stall(name, "reflector", schedule.stall_ns);
        }
        if let Some(sender) = sender {
            self.distribution(Metric::FlowDelay, &forward, &sender.delay);
            self.distribution(Metric::FlowDelay, &backward, &sender.answer_delay);
        }
        if !self.is_real {
            // All agents read the same clock.
            self.push(Metric::FlowClockError, name, vec![0.0; self.bins]);
        }
    }

    /// Adds a total of the whole run to the last bin; unknown if `None`.
    fn push_total(&mut self, metric: Metric, subject: &str, total: Option<f64>) {
        let mut values = vec![0.0; self.bins];
        if let Some(last) = values.last_mut() {
            *last = total.unwrap_or(f64::NAN);
        }
        self.push(metric, subject, values);
    }

    fn add_remarks_of(&mut self, name: &str, sides: [Option<&&FlowResult>; 2]) {
        for error in sides.into_iter().flatten().filter_map(|side| side.error.as_ref()) {
            // In an interrupted run, the other end may have stopped before.
            let (remarks, failure) = match self.is_stopped {
                true => {
                    (&mut self.outcome.warnings, format!("flow.{name}: {error}; the run was interrupted"))
                }
                false => (&mut self.outcome.failures, format!("flow.{name}: {error}")),
            };
            if !remarks.contains(&failure) {
                remarks.push(failure);
            }
        }
    }

    fn add_tcp(&mut self, name: &str, samples: &[TcpSample]) {
        let mut each = |metric, value: &dyn Fn(&TcpSample) -> f64| {
            self.push(metric, name, samples.iter().map(value).collect());
        };
        let seconds = |nanoseconds: u64| Duration(nanoseconds).as_secs_f64();
        each(Metric::FlowWindow, &|tcp| f64::from(tcp.window));
        let threshold = |tcp: &TcpSample| match tcp.slow_start_threshold {
            NO_THRESHOLD.. => f64::NAN,
            packets => f64::from(packets),
        };
        each(Metric::FlowSlowStartThreshold, &threshold);
        each(Metric::FlowRoundTrip, &|tcp| seconds(tcp.round_trip_ns));
        each(Metric::FlowPeerWindow, &|tcp| tcp.peer_window as f64);
        each(Metric::FlowDeliveryRate, &|tcp| tcp.delivery_rate_bps as f64);
        let sums = samples.iter().map(|tcp| tcp.retransmissions as f64);
        let before = std::iter::once(0.0).chain(sums.clone());
        self.push(
            Metric::FlowRetransmissions,
            name,
            sums.zip(before).map(|(sum, before)| sum - before).collect(),
        );
    }

    fn add_schedule(&mut self, name: &str, sender: &FlowResult) {
        let Some(schedule) = &sender.schedule else { return };
        let mut load = |quantity: &str, unit: &str, requested: f64, achieved: f64| {
            self.outcome.loads.push(AchievedLoad {
                subject: name.to_owned(),
                quantity: quantity.to_owned(),
                unit: unit.to_owned(),
                layer: String::new(),
                requested,
                achieved,
            });
        };
        load("rate", "of the requested rate", 1.0, 1.0 + schedule.rate_error);
        load("packets", "packets", schedule.requested as f64, schedule.sent as f64);
        load("gaps within 5 %", "", 1.0, schedule.gaps_within_5_percent);
        if let Some(spun) = schedule.spun {
            load("time the sender spun", "of the run", MAX_PERCENT as f64 / 100.0, spun);
        }
        load("packets on time", "packets", schedule.sent as f64, (schedule.sent - schedule.late) as f64);
        self.outcome.held.push((name.to_owned(), schedule.held_ns));
        self.add_stall(name, "sender", schedule.stall_ns);
        if schedule.skipped as f64 > MAX_SHARE * schedule.requested as f64 {
            let (lateness, due) = (schedule.stall_ns.0 as f64 / 1e6, schedule.stall_ns.1 as f64 / 1e9);
            let reason = format!(
                "flow.{name}: the sender was late, at most by {lateness:.1} ms at {due:.3} s, and did not send {} of {} \
                 packets",
                schedule.skipped, schedule.requested
            );
            self.outcome.late_senders.push((name.to_owned(), reason));
        }
    }

    /// Adds the largest lateness of a thread, and the time at which the packet was due, in nanoseconds.
    fn add_stall(&mut self, flow: &str, thread: &str, (lateness, due): (u64, u64)) {
        let (flow, thread) = (flow.to_owned(), thread.to_owned());
        self.outcome.stalls.push(ThreadStall {
            flow,
            thread,
            lateness: Duration(lateness),
            due: Instant(due),
        });
    }

    /// Adds the lateness of the emulated links on the path of a flow of datagrams.
    fn add_link_lateness(&mut self, found: &Findings, group: &FlowGroup, name: &str) {
        let is_packets = |load: &&AchievedLoad| load.subject == name && load.quantity == "packets";
        let Some(load) = self.outcome.loads.iter().find(is_packets) else { return };
        if matches!(group.transport, FlowTransport::Tcp(_)) {
            return;
        }
        let (sent, seconds) = (load.achieved, group.stop.since(group.start).as_secs_f64());
        let gap = Duration::from_secs_f64(if sent > 0.0 { seconds / sent } else { 0.0 });
        let on_time = LatenessLimits::for_gap(gap).on_time();
        let is_answered = matches!(group.transport, FlowTransport::Stamp { .. })
            || group.transport.is_one_ended()
            || group.traffic.application().is_some();
        let reverse = if is_answered { &group.reverse[..] } else { &[] };
        let mut lateness = LinkLateness::default();
        for path in [&group.path[..], reverse] {
            for (index, hop) in path.iter().enumerate() {
                let name_of_link = &found.plan.links[hop.link].name;
                let link = found.emulator.links.iter().find(|link| link.name == *name_of_link);
                let Some(direction) = link.map(|link| &link.directions[hop.direction]) else { continue };
                let emulator::report::Lateness { frames, max_ns, max_due_ns, .. } = direction.lateness;
                if max_ns > lateness.max.0 {
                    (lateness.max, lateness.at) = (Duration(max_ns), Instant(max_due_ns));
                }
                // The last link of a path has no queue behind it.
                if index + 1 == path.len() {
                    continue;
                }
                let buckets = direction.lateness_distribution.0.iter();
                let late: u64 = buckets.filter(|(late, _)| *late > on_time.0).map(|(_, frames)| frames).sum();
                lateness.packets += late;
                if late as f64 > MAX_SHARE * frames as f64 {
                    let reason = format!(
                        "flow.{name}: {late} of {frames} packets left link.{} late, at most by {:.1} ms at {:.3} s",
                        direction.name,
                        max_ns as f64 / 1e6,
                        max_due_ns as f64 / 1e9
                    );
                    self.outcome.late_senders.push((name.to_owned(), reason));
                }
            }
        }
        if lateness.max > Duration::ZERO {
            self.outcome.late_links.push((name.to_owned(), lateness));
        }
    }

    /// Returns the bytes of a VPN's packets that links delivered to customers, per bin.
    fn delivered_to(&self, class: u16, emulator: &emulator::EmulatorReport) -> Vec<f64> {
        let directions = emulator.links.iter().flat_map(|link| &link.directions);
        let mut bytes = vec![0.0; self.bins];
        for delivered in directions.filter_map(|direction| direction.delivered.get(&class)) {
            bytes.iter_mut().zip(delivered).for_each(|(sum, value)| *sum += *value as f64);
        }
        bytes
    }

    /// Returns the bytes of a VPN's packets per bin, as reported by the receivers of its flows.
    fn received_in(&self, found: &Findings, vpn: usize, sides: &Sides) -> Vec<f64> {
        let mut bytes = vec![0.0; self.bins];
        for member in found.members {
            let group = &found.plan.flows[member.group];
            let name = found.plan.flow_name(member.group, member.index);
            let Some(receiving) = sides.receiving.get(&*name).filter(|_| group.vpn == Some(vpn)) else {
                continue;
            };
            bytes
                .iter_mut()
                .zip(&receiving.bins)
                .for_each(|(sum, counts)| *sum += bytes_at_ip(group, counts));
        }
        bytes
    }

    /// Adds processor time as a share of one core, from samples at the start of the run and at the end of each bin.
    fn add_processor(&mut self, metric: Metric, subject: &str, samples: &[Usage], time: fn(&Usage) -> u64) {
        let scale = 1e-9 / self.seconds;
        if !samples.is_empty() {
            let pairs = samples.windows(2);
            let share = pairs.map(|pair| time(&pair[1]).saturating_sub(time(&pair[0])) as f64 * scale);
            self.push(metric, subject, share.collect());
        }
    }

    /// Adds resident memory.
    fn add_memory(&mut self, metric: Metric, subject: &str, samples: &[Usage]) {
        if let [_, samples @ ..] = samples {
            self.push(metric, subject, samples.iter().map(|usage| usage.resident as f64).collect());
        }
    }

    fn add_link(&mut self, direction: &emulator::report::DirectionReport) {
        let name = &direction.name;
        let (bits, share) = (8.0 / self.seconds, 1e-9 / self.seconds);
        let scaled = |values: &[u64], scale: f64| values.iter().map(|v| *v as f64 * scale).collect();
        self.push(Metric::LinkThroughput, name, scaled(&direction.bytes, bits));
        self.push(Metric::LinkBackground, name, scaled(&direction.background, bits));
        self.push(Metric::LinkUtilization, name, scaled(&direction.busy_ns, share));
        self.push(Metric::LinkQueue, name, scaled(&direction.waiting_ns, share));
        self.push(Metric::LinkDrops, name, scaled(&direction.drops, 1.0));
        self.push(Metric::LinkLost, name, scaled(&direction.lost, 1.0));
        self.push(Metric::LinkMarks, name, scaled(&direction.marks, 1.0));
    }

    fn add_broadcast(&mut self, direction: &emulator::report::DirectionReport) {
        let frames = direction.broadcast.iter().map(|frames| *frames as f64).collect();
        self.push(Metric::LinkBroadcast, &direction.name, frames);
    }

    fn add_remarks(&mut self, found: &Findings) {
        let outcome = &mut self.outcome;
        let emulator = found.emulator;
        let mut lateness = Histogram::default();
        let directions = || emulator.links.iter().flat_map(|link| &link.directions);
        directions().for_each(|direction| lateness.add(&direction.lateness_distribution.0));
        if lateness.count() > 0 {
            outcome.distributions.push(Distribution {
                metric: Metric::LinkLateness,
                subject: String::new(),
                buckets: lateness.buckets().collect(),
            });
        }
        outcome.warnings.extend(emulator.warnings.iter().cloned());
        if found.watched.lost > 0 {
            let lost = found.watched.lost;
            outcome.warnings.push(format!(
                "{lost} events of TCP flows were lost because they arrived faster than they were read"
            ));
        }
        let missing = |reason: &String| format!("no kernel events of TCP flows: {reason}");
        outcome.warnings.extend(found.watched.missing.iter().map(missing));
        outcome.void.extend(emulator.void.iter().map(ToString::to_string));
        for report in found.reports {
            let named = |text: &String| format!("node.{}: {text}", report.node);
            outcome.warnings.extend(report.warnings.iter().map(named));
            outcome.void.extend(report.void.iter().map(|reason| named(reason)));
        }
        for direction in directions() {
            if let Some(saturated) = &direction.saturated {
                outcome.loads.push(AchievedLoad {
                    subject: direction.name.clone(),
                    quantity: "rate of the saturated line, relative".into(),
                    unit: String::new(),
                    layer: "ip".into(),
                    requested: 1.0,
                    achieved: 1.0 + saturated.error,
                });
            }
        }
        outcome.totals = totals(found);
    }
}

/// Returns whether the broadcast frames of a link are reported: on LANs and between routers with routing daemons, where
/// neighbors are resolved during the run.
fn reports_broadcast(plan: &Plan, link: &str) -> bool {
    let index = plan.links.iter().position(|other| other.name == link);
    plan.routing.is_some() || index.is_some_and(|index| plan.lan_of(index).is_some())
}

/// Returns the bytes received in a bin at the IP layer. TCP streams count with the minimum number of segments.
fn bytes_at_ip(group: &FlowGroup, counts: &BinCounts) -> f64 {
    let ip = match group.family {
        IpVersion::V4 => IPV4_HEADER,
        IpVersion::V6 => IPV6_HEADER,
    };
    let (packets, header) = match &group.transport {
        FlowTransport::Tcp(tcp) => {
            let segments = counts.received_bytes.div_ceil(tcp.max_segment_size.max(1).into());
            (segments, TCP_HEADER + TCP_TIMESTAMPS)
        }
        _ => (counts.received, UDP_HEADER),
    };
    counts.received_bytes as f64 + packets as f64 * f64::from(ip + header)
}

/// Returns the mean travel time of each bin in seconds; NaN for a bin without packets.
fn mean_travel(travel: &[Travel]) -> Vec<f64> {
    travel.iter().map(|bin| bin.sum_ns as f64 * 1e-9 / bin.count as f64).collect()
}

fn per_bin(side: Option<&&FlowResult>, value: impl Fn(&BinCounts) -> u64, scale: f64) -> Vec<f64> {
    side.map_or(Vec::new(), |side| side.bins.iter().map(|counts| value(counts) as f64 * scale).collect())
}

/// Returns the packet totals. Packets are sent where a link leaves a host and delivered where a link ends at a host.
fn totals(found: &Findings) -> RunTotals {
    let mut totals = RunTotals::default();
    let is_host = |node: usize| found.plan.nodes[node].kind == NodeKind::Host;
    for counted in &found.emulator.links {
        let link = found.plan.links.iter().find(|link| link.name == counted.name);
        let ends = link.expect("the emulator's links are the plan's").ends;
        for (direction, [from, to]) in counted.directions.iter().zip([ends, [ends[1], ends[0]]]) {
            let counted = &direction.totals;
            totals.packet_hops += counted.entered;
            totals.lost += counted.dropped + counted.lost + counted.corrupted;
            totals.in_flight += counted.in_flight;
            totals.duplicated += counted.duplicated;
            if is_host(from) {
                totals.sent += counted.entered;
            }
            if is_host(to) {
                totals.delivered += counted.delivered;
            }
        }
    }
    let flows = found.reports.iter().flat_map(|report| &report.flows);
    totals.delivered_data = flows.map(FlowResult::received).sum();
    totals
}
