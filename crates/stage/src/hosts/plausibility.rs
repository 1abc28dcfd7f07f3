//! Plausibility checks of reports. Agents run on hosts of other operators, so their reports are not trusted.

use netstage_agent_api::results::{AgentReport, BinCounts, Drained, FlowResult, Travel, Usage, VpnResult};
use netstage_agent_api::service::{ServiceResult, ServiceRole, ServiceWorkload};
use netstage_agent_api::task::{Assignment, FlowSide, ServiceTask};
use netstage_core::measure::{FaultTime, VoidReason};
use netstage_core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum packets and bytes per second of one flow, above the rate of any current line.
const MAX_PACKETS_PER_SECOND: u64 = 500_000_000;
const MAX_BYTES_PER_SECOND: u64 = 100_000_000_000;
/// Maximum number of messages in a report, and of bytes in one message.
const MAX_MESSAGES: usize = 1000;
const MAX_MESSAGE_BYTES: usize = 4096;
/// Maximum number of values in a histogram of three significant digits.
const MAX_BUCKETS: usize = 100_000;
/// Maximum size of the log of a failed service, in bytes.
const MAX_LOG_BYTES: usize = 1 << 19;
/// Maximum duration in a report: one year.
const MAX_DURATION_NS: u64 = 366 * 86_400 * 1_000_000_000;

/// Checks that a report is within the agent's assignment and plausible limits.
pub fn check(report: &AgentReport, assignment: &Assignment) -> Result<(), String> {
    if report.node != assignment.node {
        return Err(format!(
            "the report is for node {}, which the agent does not run",
            report.node.escape_debug()
        ));
    }
    let bins = assignment.duration.0.div_ceil(assignment.interval.0.max(1)) as usize;
    let seconds = assignment.interval.0.div_ceil(1_000_000_000).max(1);
    let mut seen = BTreeSet::new();
    for flow in &report.flows {
        let is_same_side = |side: FlowSide| (side == FlowSide::Send) == flow.sends;
        if !assignment.flows.iter().any(|task| task.name == flow.name && is_same_side(task.side)) {
            return Err(format!(
                "unexpected result of flow {}, which is not assigned to the agent",
                flow.name.escape_debug()
            ));
        }
        if !seen.insert((&flow.name, flow.sends)) {
            return Err(format!("duplicate result of flow {}", flow.name));
        }
        check_flow(flow, bins, seconds).map_err(|error| format!("flow {}: {error}", flow.name))?;
    }
    if assignment.edge.is_none() && !(report.vpns.is_empty() && report.usage.is_empty()) {
        return Err("unexpected router results; the agent runs no router".into());
    }
    for vpn in &report.vpns {
        check_vpn(vpn, bins).map_err(|error| format!("vpn {}: {error}", vpn.vpn.escape_debug()))?;
    }
    for (index, service) in report.services.iter().enumerate() {
        let is_client = |task: &&ServiceTask| task.role == ServiceRole::Client && task.name == service.name;
        let Some(task) = assignment.services.iter().find(is_client) else {
            return Err(format!(
                "unexpected result of service {}; the agent is not its client",
                service.name.escape_debug()
            ));
        };
        if report.services[..index].iter().any(|before| before.name == service.name) {
            return Err(format!("duplicate result of service {}", service.name));
        }
        check_service(service, task, bins, seconds)
            .map_err(|error| format!("service {}: {error}", service.name))?;
    }
    let is_monotonic = |value: fn(&Usage) -> u64| report.usage.is_sorted_by_key(value);
    if report.usage.len() > bins + 1
        || !is_monotonic(|usage| usage.user_ns)
        || !is_monotonic(|usage| usage.system_ns)
    {
        return Err("implausible resource usage of the router process".into());
    }
    for (subject, windows) in &report.watched.flows {
        let id = subject.escape_debug();
        if !assignment.watch.iter().any(|flow| flow.subject == *subject) {
            return Err(format!("unexpected window samples of flow {id}"));
        }
        let samples = windows.iter().flat_map(|bin| bin.peak.into_iter().chain(bin.usable));
        if windows.len() > bins || samples.into_iter().any(|window| !is_amount(window)) {
            return Err(format!("implausible window samples of flow {id}"));
        }
    }
    let service_errors = report.services.iter().filter_map(|service| service.error.as_ref());
    let errors = report.flows.iter().filter_map(|flow| flow.error.as_ref()).chain(service_errors);
    let messages = report
        .warnings
        .iter()
        .chain(report.void.iter().map(|reason| &**reason))
        .chain(&report.watched.missing)
        .chain(errors);
    let messages: Vec<&String> = messages.collect();
    if messages.iter().any(|text| text.len() > MAX_MESSAGE_BYTES)
        || messages.len() > MAX_MESSAGES + report.flows.len() + report.services.len()
    {
        return Err("too many or too long messages".into());
    }
    // A terminal would execute control characters.
    match messages.iter().any(|text| text.chars().any(is_terminal_control)) {
        true => Err("messages contain control characters".into()),
        false => Ok(()),
    }
}

/// Returns whether a terminal would execute the character instead of displaying it.
pub fn is_terminal_control(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t'
}

fn check_flow(flow: &FlowResult, bins: usize, seconds: u64) -> Result<(), String> {
    let lengths = [flow.bins.len(), flow.tcp.len(), flow.travel.len(), flow.quality.len()];
    if let Some(length) = lengths.into_iter().find(|length| *length > bins) {
        return Err(format!("{length} bins reported, but the run has {bins}"));
    }
    let Drained { packets, bytes } = flow.drained;
    let drained = BinCounts { received: packets, received_bytes: bytes, ..BinCounts::default() };
    if flow.bins.iter().chain([&drained]).any(|counts| !is_possible(counts, seconds)) {
        return Err("the counts exceed the rate of any line".into());
    }
    if !flow.travel.iter().all(is_consistent) {
        return Err("the travel times contradict each other".into());
    }
    let histograms = [&flow.delay, &flow.answer_delay, &flow.delay_variation, &flow.round_trip, &flow.gaps];
    let buckets = histograms.map(|buckets| &buckets.0).into_iter().chain(flow.quality_distributions.all());
    if !buckets.into_iter().all(|buckets| is_histogram(buckets)) {
        return Err("invalid histogram".into());
    }
    let shares = flow.schedule.iter().flat_map(|schedule| {
        [schedule.rate_error, schedule.gaps_within_5_percent, schedule.spun.unwrap_or_default()]
    });
    if shares.into_iter().any(|share| !share.is_finite()) {
        return Err("the schedule error is not a finite number".into());
    }
    Ok(())
}

fn check_service(
    service: &ServiceResult,
    task: &ServiceTask,
    bins: usize,
    seconds: u64,
) -> Result<(), &'static str> {
    if service.received.len().max(service.reads.len()) > bins {
        return Err("more bins than the run has");
    }
    let max_bytes = MAX_BYTES_PER_SECOND.saturating_mul(seconds);
    let exceeds = |(reads, took): &(u64, Duration)| *reads > max_bytes || took.0 > MAX_DURATION_NS;
    if service.received.iter().any(|bytes| *bytes > max_bytes) || service.reads.iter().any(exceeds) {
        return Err("the counts exceed the rate of any line");
    }
    if let ServiceWorkload::Ftp { size } = task.task
        && service.received.iter().sum::<u64>() > size
    {
        return Err("more bytes received than the file has");
    }
    if service.finished.is_some_and(|(at, took)| at.0.max(took.0) > MAX_DURATION_NS) {
        return Err("implausible duration");
    }
    match service.log.len() > MAX_LOG_BYTES {
        true => Err("the log is too long"),
        false => Ok(()),
    }
}

fn check_vpn(vpn: &VpnResult, bins: usize) -> Result<(), &'static str> {
    let lengths = [vpn.queue.len(), vpn.queue_drops.len(), vpn.control.len()];
    if lengths.into_iter().any(|length| length > bins) {
        return Err("more bins than the run has");
    }
    let states = vpn.control.iter();
    let amounts = states.flat_map(|s| [s.window, s.increase, s.decrease, s.permitted_bps, s.loss]);
    if !vpn.queue.iter().copied().chain(amounts).all(is_amount) {
        return Err("the queue, the window or the rate is not an amount");
    }
    match vpn.control.is_sorted_by_key(|sample| sample.lost) {
        true => Ok(()),
        false => Err("the count of lost packets decreases"),
    }
}

fn is_amount(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

fn is_possible(counts: &BinCounts, seconds: u64) -> bool {
    let BinCounts { sent, received, lost, duplicated, reordered, corrupted, .. } = *counts;
    let packets = [sent, received, lost, duplicated, reordered, corrupted];
    let bytes = [counts.sent_bytes, counts.received_bytes, counts.offered_bytes];
    // The content of a buffer may arrive within one bin, so short bins count as a second.
    let limit = |per_second: u64| per_second.saturating_mul(seconds);
    packets.into_iter().all(|count| count <= limit(MAX_PACKETS_PER_SECOND))
        && bytes.into_iter().all(|count| count <= limit(MAX_BYTES_PER_SECOND))
        && counts.bit_errors <= limit(MAX_BYTES_PER_SECOND).saturating_mul(8)
}

fn is_consistent(travel: &Travel) -> bool {
    if travel.count == 0 {
        return true;
    }
    let (count, sum) = (u128::from(travel.count), u128::from(travel.sum_ns));
    travel.min_ns <= travel.max_ns
        && travel.max_ns <= MAX_DURATION_NS
        && (u128::from(travel.min_ns) * count..=u128::from(travel.max_ns) * count).contains(&sum)
}

fn is_histogram(buckets: &[(u64, u64)]) -> bool {
    let ascending = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0);
    ascending
        && buckets.len() <= MAX_BUCKETS
        && buckets.last().is_none_or(|(value, _)| *value <= MAX_DURATION_NS)
}

/// Returns contradictions between reports of a run of this duration: flows with more datagrams received than sent. A report
/// of an interrupted run ends earlier than the other one, so it contradicts none; its own reasons void the run.
pub fn contradictions(reports: &[AgentReport], duration: Duration) -> Vec<VoidReason> {
    let mut sent: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    let total = |flow: &FlowResult, value: fn(&BinCounts) -> u64| flow.bins.iter().map(value).sum::<u64>();
    let complete = reports.iter().filter(|report| report.void.is_empty() && !report.stopped);
    let flows = || complete.clone().flat_map(|report| report.flows.iter().map(move |flow| (report, flow)));
    for (report, flow) in flows().filter(|(_, flow)| flow.sends) {
        sent.insert(&flow.name, (total(flow, |counts| counts.sent), &report.node));
    }
    let mut found = Vec::new();
    for (report, flow) in flows().filter(|(_, flow)| !flow.sends) {
        let Some(&(sent, sender)) = sent.get(flow.name.as_str()) else { continue };
        let received = flow.received();
        if sent > 0 && received > sent {
            let fault = format!(
                "node.{} reports {received} packets received, but node.{sender} {sent} sent",
                report.node
            );
            let reason = VoidReason::new(format!("flow.{}:", flow.name), fault, FaultTime::Within(duration));
            found.push(reason.advise("one of the reports is wrong"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_agent_api::results::{Buckets, ControlSample, WatchedWindows};
    use netstage_agent_api::task::{EdgeTask, FlowTask};
    use netstage_agent_api::watch::{FlowSpec, WatchedEndpoint};
    use netstage_core::quantity::BitRate;
    use netstage_core::time::Instant;
    use netstage_core::traffic::Pattern;

    fn assigned(node: &str, side: FlowSide) -> Assignment {
        let flow = FlowTask {
            id: 0,
            ..FlowTask::udp(
                "f",
                side,
                ["192.0.2.1:0", "192.0.2.2:5001"].map(|end| end.parse().unwrap()),
                Pattern::Cbr { rate: BitRate(1_000_000), packet: 1000 },
                Duration::from_secs(2),
            )
        };
        let (duration, interval) = (Duration::from_secs(2), Duration::from_secs(1));
        Assignment::of_flows(node, duration, interval, vec![flow])
    }

    fn report(node: &str, sends: bool, packets: u64) -> AgentReport {
        let counts = match sends {
            true => BinCounts { sent: packets, ..BinCounts::default() },
            false => BinCounts { received: packets, ..BinCounts::default() },
        };
        let flow = FlowResult { name: "f".into(), sends, bins: vec![counts; 2], ..FlowResult::default() };
        AgentReport { node: node.into(), flows: vec![flow], ..AgentReport::default() }
    }

    #[test]
    fn a_plausible_report_is_accepted() {
        assert_eq!(check(&report("a", true, 100), &assigned("a", FlowSide::Send)), Ok(()));
        assert!(
            contradictions(&[report("a", true, 100), report("b", false, 99)], Duration::from_secs(2))
                .is_empty()
        );
    }

    #[test]
    fn an_implausible_report_is_refused() {
        let valid = report("a", true, 100);
        let assignment = assigned("a", FlowSide::Send);
        let with = |change: fn(&mut FlowResult)| {
            let mut report = valid.clone();
            change(&mut report.flows[0]);
            report
        };
        let travel = Travel { count: 2, sum_ns: 100, min_ns: 60, max_ns: 70, ..Travel::default() };
        let invalid = [
            AgentReport { node: "b".into(), ..valid.clone() },
            with(|flow| flow.name = "g".into()),
            with(|flow| flow.sends = false),
            with(|flow| flow.bins = vec![BinCounts::default(); 3]),
            with(|flow| flow.bins[1].sent_bytes = u64::MAX),
            with(|flow| flow.bins[0].received = u64::MAX / 2),
            with(|flow| flow.delay = Buckets(vec![(5, 1), (5, 1)])),
            with(|flow| flow.delay = Buckets(vec![(u64::MAX, 1)])),
            AgentReport { warnings: vec!["x".repeat(MAX_MESSAGE_BYTES + 1)], ..valid.clone() },
            AgentReport { warnings: vec!["\u{1b}]0;mine\u{7}".into()], ..valid.clone() },
            AgentReport { usage: vec![Default::default()], ..valid.clone() },
            AgentReport {
                watched: WatchedWindows {
                    flows: vec![("f".into(), Vec::new())],
                    ..WatchedWindows::default()
                },
                ..valid.clone()
            },
            AgentReport { flows: vec![valid.flows[0].clone(); 2], ..valid.clone() },
        ];
        for report in invalid {
            assert!(check(&report, &assignment).is_err(), "{report:?}");
        }
        let router =
            Assignment { edge: Some(EdgeTask { configuration: String::new() }), ..assignment.clone() };
        let vpn = |change: fn(&mut VpnResult)| {
            let mut vpn = VpnResult { control: vec![ControlSample::default(); 2], ..VpnResult::default() };
            change(&mut vpn);
            check(&AgentReport { vpns: vec![vpn], ..valid.clone() }, &router)
        };
        assert_eq!(vpn(|_| ()), Ok(()));
        assert!(vpn(|vpn| vpn.queue = vec![f64::INFINITY]).is_err());
        assert!(vpn(|vpn| vpn.queue_drops = vec![0; 3]).is_err());
        assert!(vpn(|vpn| vpn.control[0].lost = 1).is_err());
        let task = ServiceTask {
            name: "s".into(),
            id: 1,
            role: ServiceRole::Client,
            task: ServiceWorkload::Ftp { size: 10 },
            source: "192.0.2.1".parse().unwrap(),
            destination: "192.0.2.2:5002".parse().unwrap(),
            start: Instant::ZERO,
        };
        let client = Assignment { services: vec![task], ..assignment.clone() };
        let check_service = |received: &[u64], change: fn(&mut ServiceResult)| {
            let received = received.to_vec();
            let mut result = ServiceResult { name: "s".into(), received, ..ServiceResult::default() };
            change(&mut result);
            check(&AgentReport { services: vec![result], ..valid.clone() }, &client)
        };
        assert_eq!(check_service(&[4, 6], |_| ()), Ok(()));
        assert!(check_service(&[4, 7], |_| ()).is_err() && check_service(&[0; 3], |_| ()).is_err());
        assert!(check_service(&[], |result| result.name = "t".into()).is_err());
        assert!(check_service(&[], |result| result.reads = vec![(1, Duration(u64::MAX))]).is_err());
        assert!(check_service(&[], |result| result.log = "x".repeat(MAX_LOG_BYTES + 1)).is_err());
        assert!(check_service(&[], |result| result.error = Some("\u{1b}[2J".into())).is_err());
        let ends = [&assignment.flows[0].source, &assignment.flows[0].destination]
            .map(|end| WatchedEndpoint::at(*end));
        let flow = FlowSpec { subject: "f".into(), source: ends[0], destination: ends[1] };
        let watching = Assignment { watch: vec![flow], ..assignment.clone() };
        let windows = |bins: usize| {
            let flows = vec![("f".into(), vec![Default::default(); bins])];
            check(
                &AgentReport {
                    watched: WatchedWindows { flows, ..WatchedWindows::default() },
                    ..valid.clone()
                },
                &watching,
            )
        };
        assert_eq!(windows(2), Ok(()));
        assert!(windows(3).is_err());
        let mut inconsistent = valid.clone();
        inconsistent.flows[0].travel = vec![travel];
        assert!(check(&inconsistent, &assignment).unwrap_err().contains("contradict"));
        let found =
            contradictions(&[report("a", true, 100), report("b", false, 101)], Duration::from_secs(2));
        assert!(found[0].contains("202 packets received, but node.a 200 sent"), "{found:?}");
        // The sender's counters end before those of the receiver.
        let killed = VoidReason::new(
            "agent a",
            "was killed during the run; its counters end",
            FaultTime::At(Instant::ZERO),
        );
        for interrupted in [
            AgentReport { void: vec![killed], ..report("a", true, 100) },
            AgentReport { stopped: true, ..report("a", true, 100) },
        ] {
            let found = contradictions(&[interrupted, report("b", false, 101)], Duration::from_secs(2));
            assert!(found.is_empty(), "{found:?}");
        }
    }
}
