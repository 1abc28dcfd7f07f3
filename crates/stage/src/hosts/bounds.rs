//! Whether a report can be true: an agent is somebody else's program on somebody else's host.

use netstage_agent_api::results::{Buckets, Counts, FlowResult, Report, Travel, Usage, VpnResult};
use netstage_agent_api::service::{Role, ServiceResult, Task};
use netstage_agent_api::task::{Assignment, ServiceTask, Side};
use netstage_core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// Most packets and bytes of one flow in one second: beyond any line of today.
const PACKETS_PER_SECOND: u64 = 500_000_000;
const BYTES_PER_SECOND: u64 = 100_000_000_000;
/// Most remarks of a report, and the longest.
const REMARKS: usize = 1000;
const REMARK_BYTES: usize = 4096;
/// Most values a histogram of three significant digits may have.
const BUCKETS: usize = 100_000;
/// Longest log of a service that failed.
const LOG_BYTES: usize = 1 << 19;
/// Longest time that may be told of anything: a year.
const LONGEST_NS: u64 = 366 * 86_400 * 1_000_000_000;

/// Refuses a report that goes beyond what its agent was asked, or what can be.
pub fn check(report: &Report, asked: &Assignment) -> Result<(), String> {
    if report.node != asked.node {
        return Err(format!("it is of node {}, which the agent is not", report.node.escape_debug()));
    }
    let bins = asked.duration.0.div_ceil(asked.interval.0.max(1)) as usize;
    let seconds = asked.interval.0.div_ceil(1_000_000_000).max(1);
    let mut seen = BTreeSet::new();
    for flow in &report.flows {
        let is_this = |sent: Side| (sent == Side::Send) == flow.sends;
        if !asked.flows.iter().any(|task| task.name == flow.name && is_this(task.side)) {
            return Err(format!(
                "it tells of flow {}, which the agent has no part in",
                flow.name.escape_debug()
            ));
        }
        if !seen.insert((&flow.name, flow.sends)) {
            return Err(format!("it tells of flow {} twice", flow.name));
        }
        of_flow(flow, bins, seconds).map_err(|why| format!("flow {}: {why}", flow.name))?;
    }
    if asked.edge.is_none() && !(report.vpns.is_empty() && report.usage.is_empty()) {
        return Err("it tells of a router, which the agent was not asked to be".into());
    }
    for vpn in &report.vpns {
        of_vpn(vpn, bins).map_err(|why| format!("vpn {}: {why}", vpn.vpn.escape_debug()))?;
    }
    for (index, service) in report.services.iter().enumerate() {
        let is_this = |task: &&ServiceTask| task.role == Role::Client && task.name == service.name;
        let Some(task) = asked.services.iter().find(is_this) else {
            return Err(format!(
                "it tells of service {}, whose client it is not",
                service.name.escape_debug()
            ));
        };
        if report.services[..index].iter().any(|before| before.name == service.name) {
            return Err(format!("it tells of service {} twice", service.name));
        }
        of_service(service, task, bins, seconds).map_err(|why| format!("service {}: {why}", service.name))?;
    }
    let only_grows = |value: fn(&Usage) -> u64| report.usage.is_sorted_by_key(value);
    if report.usage.len() > bins + 1
        || !only_grows(|usage| usage.user_ns)
        || !only_grows(|usage| usage.system_ns)
    {
        return Err("what its process took cannot be".into());
    }
    for (subject, windows) in &report.watched.flows {
        let id = subject.escape_debug();
        if !asked.watch.iter().any(|flow| flow.subject == *subject) {
            return Err(format!("it tells of the windows of flow {id}, which it was not asked for"));
        }
        let known = windows.iter().flat_map(|bin| bin.peak.into_iter().chain(bin.usable));
        if windows.len() > bins || known.into_iter().any(|window| !is_amount(window)) {
            return Err(format!("the windows of flow {id} cannot be"));
        }
    }
    let of_services = report.services.iter().filter_map(|service| service.error.as_ref());
    let errors = report.flows.iter().filter_map(|flow| flow.error.as_ref()).chain(of_services);
    let remarks = report.warnings.iter().chain(&report.void).chain(&report.watched.missing).chain(errors);
    let remarks: Vec<&String> = remarks.collect();
    if remarks.iter().any(|text| text.len() > REMARK_BYTES)
        || remarks.len() > REMARKS + report.flows.len() + report.services.len()
    {
        return Err("it says too much".into());
    }
    // A terminal that shows them obeys these.
    match remarks.iter().any(|text| text.chars().any(is_obeyed)) {
        true => Err("what it says has control characters".into()),
        false => Ok(()),
    }
}

/// Whether a terminal that shows a text does something else here.
pub fn is_obeyed(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t'
}

fn of_flow(flow: &FlowResult, bins: usize, seconds: u64) -> Result<(), String> {
    let lengths = [flow.bins.len(), flow.tcp.len(), flow.travel.len(), flow.quality.len()];
    if let Some(length) = lengths.into_iter().find(|length| *length > bins) {
        return Err(format!("it has {length} bins, and the run {bins}"));
    }
    if flow.bins.iter().any(|counts| !is_possible(counts, seconds)) {
        return Err("it counts more than any line carries".into());
    }
    if !flow.travel.iter().all(is_consistent) {
        return Err("its travel times contradict each other".into());
    }
    let histograms = [&flow.delay, &flow.answer_delay, &flow.delay_variation, &flow.round_trip, &flow.gaps];
    if !histograms.into_iter().all(is_histogram) {
        return Err("a histogram of it is none".into());
    }
    let shares =
        flow.schedule.iter().flat_map(|schedule| [schedule.rate_error, schedule.gaps_within_5_percent]);
    if shares.into_iter().any(|share| !share.is_finite()) {
        return Err("its schedule is no number".into());
    }
    Ok(())
}

fn of_service(
    service: &ServiceResult,
    task: &ServiceTask,
    bins: usize,
    seconds: u64,
) -> Result<(), &'static str> {
    if service.received.len().max(service.reads.len()) > bins {
        return Err("it has more bins than the run");
    }
    let most = BYTES_PER_SECOND.saturating_mul(seconds);
    let read = |(reads, took): &(u64, Duration)| *reads > most || took.0 > LONGEST_NS;
    if service.received.iter().any(|bytes| *bytes > most) || service.reads.iter().any(read) {
        return Err("it counts more than any line carries");
    }
    if let Task::Ftp { size } = task.task
        && service.received.iter().sum::<u64>() > size
    {
        return Err("it received more than the file has");
    }
    if service.finished.is_some_and(|(at, took)| at.0.max(took.0) > LONGEST_NS) {
        return Err("it took longer than anything does");
    }
    match service.log.len() > LOG_BYTES {
        true => Err("its log is too long"),
        false => Ok(()),
    }
}

fn of_vpn(vpn: &VpnResult, bins: usize) -> Result<(), &'static str> {
    let lengths = [vpn.queue.len(), vpn.queue_drops.len(), vpn.window.len()];
    if lengths.into_iter().any(|length| length > bins) {
        return Err("it has more bins than the run");
    }
    let windows = vpn.window.iter().flat_map(|s| [s.window, s.increase, s.decrease, s.loss]);
    if !vpn.queue.iter().copied().chain(windows).all(is_amount) {
        return Err("its queue or window is no number of packets");
    }
    match vpn.window.is_sorted_by_key(|sample| sample.lost) {
        true => Ok(()),
        false => Err("it has lost fewer packets than before"),
    }
}

fn is_amount(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

fn is_possible(counts: &Counts, seconds: u64) -> bool {
    let Counts { sent, received, lost, duplicated, reordered, corrupted, .. } = *counts;
    let packets = [sent, received, lost, duplicated, reordered, corrupted];
    let bytes = [counts.sent_bytes, counts.received_bytes, counts.offered_bytes];
    // What waited in a buffer may come within one bin.
    let most = |per_second: u64| per_second.saturating_mul(seconds);
    packets.into_iter().all(|count| count <= most(PACKETS_PER_SECOND))
        && bytes.into_iter().all(|count| count <= most(BYTES_PER_SECOND))
        && counts.bit_errors <= most(BYTES_PER_SECOND).saturating_mul(8)
}

fn is_consistent(travel: &Travel) -> bool {
    if travel.count == 0 {
        return true;
    }
    let (count, sum) = (u128::from(travel.count), u128::from(travel.sum_ns));
    travel.min_ns <= travel.max_ns
        && travel.max_ns <= LONGEST_NS
        && (u128::from(travel.min_ns) * count..=u128::from(travel.max_ns) * count).contains(&sum)
}

fn is_histogram(buckets: &Buckets) -> bool {
    let ascending = buckets.0.windows(2).all(|pair| pair[0].0 < pair[1].0);
    ascending && buckets.0.len() <= BUCKETS && buckets.0.last().is_none_or(|(value, _)| *value <= LONGEST_NS)
}

/// What no two honest agents can tell together: of datagrams, more came than were sent.
pub fn contradictions(reports: &[Report]) -> Vec<String> {
    let mut sent: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    let total = |flow: &FlowResult, of: fn(&Counts) -> u64| flow.bins.iter().map(of).sum::<u64>();
    let flows = || reports.iter().flat_map(|report| report.flows.iter().map(move |flow| (report, flow)));
    for (report, flow) in flows().filter(|(_, flow)| flow.sends) {
        sent.insert(&flow.name, (total(flow, |counts| counts.sent), &report.node));
    }
    let mut found = Vec::new();
    for (report, flow) in flows().filter(|(_, flow)| !flow.sends) {
        let Some(&(sent, by)) = sent.get(flow.name.as_str()) else { continue };
        let received = total(flow, |counts| counts.received);
        if sent > 0 && received > sent {
            found.push(format!(
                "flow.{}: node.{} tells of {received} packets received, node.{by} of {sent} sent: one of them is wrong",
                flow.name, report.node
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_agent_api::results::{Watched, WindowSample};
    use netstage_agent_api::task::{EdgeTask, FlowTask};
    use netstage_agent_api::watch::{End, FlowSpec};
    use netstage_core::quantity::BitRate;
    use netstage_core::time::Instant;
    use netstage_core::traffic::Pattern;

    fn asked(node: &str, side: Side) -> Assignment {
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

    fn report(node: &str, sends: bool, packets: u64) -> Report {
        let counts = match sends {
            true => Counts { sent: packets, ..Counts::default() },
            false => Counts { received: packets, ..Counts::default() },
        };
        let flow = FlowResult { name: "f".into(), sends, bins: vec![counts; 2], ..FlowResult::default() };
        Report { node: node.into(), flows: vec![flow], ..Report::default() }
    }

    #[test]
    fn an_honest_report_passes() {
        assert_eq!(check(&report("a", true, 100), &asked("a", Side::Send)), Ok(()));
        assert!(contradictions(&[report("a", true, 100), report("b", false, 99)]).is_empty());
    }

    #[test]
    fn a_lie_is_named() {
        let honest = report("a", true, 100);
        let asked = asked("a", Side::Send);
        let with = |change: fn(&mut FlowResult)| {
            let mut report = honest.clone();
            change(&mut report.flows[0]);
            report
        };
        let travel = Travel { count: 2, sum_ns: 100, min_ns: 60, max_ns: 70, ..Travel::default() };
        let lies = [
            Report { node: "b".into(), ..honest.clone() },
            with(|flow| flow.name = "g".into()),
            with(|flow| flow.sends = false),
            with(|flow| flow.bins = vec![Counts::default(); 3]),
            with(|flow| flow.bins[1].sent_bytes = u64::MAX),
            with(|flow| flow.bins[0].received = u64::MAX / 2),
            with(|flow| flow.delay = Buckets(vec![(5, 1), (5, 1)])),
            with(|flow| flow.delay = Buckets(vec![(u64::MAX, 1)])),
            Report { warnings: vec!["x".repeat(REMARK_BYTES + 1)], ..honest.clone() },
            Report { warnings: vec!["\u{1b}]0;mine\u{7}".into()], ..honest.clone() },
            Report { usage: vec![Default::default()], ..honest.clone() },
            Report {
                watched: Watched { flows: vec![("f".into(), Vec::new())], ..Watched::default() },
                ..honest.clone()
            },
            Report { flows: vec![honest.flows[0].clone(); 2], ..honest.clone() },
        ];
        for lie in lies {
            assert!(check(&lie, &asked).is_err(), "{lie:?}");
        }
        let router = Assignment { edge: Some(EdgeTask { configuration: String::new() }), ..asked.clone() };
        let vpn = |change: fn(&mut VpnResult)| {
            let mut vpn = VpnResult { window: vec![WindowSample::default(); 2], ..VpnResult::default() };
            change(&mut vpn);
            check(&Report { vpns: vec![vpn], ..honest.clone() }, &router)
        };
        assert_eq!(vpn(|_| ()), Ok(()));
        assert!(vpn(|vpn| vpn.queue = vec![f64::INFINITY]).is_err());
        assert!(vpn(|vpn| vpn.queue_drops = vec![0; 3]).is_err());
        assert!(vpn(|vpn| vpn.window[0].lost = 1).is_err());
        let task = ServiceTask {
            name: "s".into(),
            id: 1,
            role: Role::Client,
            task: Task::Ftp { size: 10 },
            source: "192.0.2.1".parse().unwrap(),
            destination: "192.0.2.2:5002".parse().unwrap(),
            start: Instant::ZERO,
        };
        let getting = Assignment { services: vec![task], ..asked.clone() };
        let got = |received: &[u64], change: fn(&mut ServiceResult)| {
            let received = received.to_vec();
            let mut result = ServiceResult { name: "s".into(), received, ..ServiceResult::default() };
            change(&mut result);
            check(&Report { services: vec![result], ..honest.clone() }, &getting)
        };
        assert_eq!(got(&[4, 6], |_| ()), Ok(()));
        assert!(got(&[4, 7], |_| ()).is_err() && got(&[0; 3], |_| ()).is_err());
        assert!(got(&[], |result| result.name = "t".into()).is_err());
        assert!(got(&[], |result| result.reads = vec![(1, Duration(u64::MAX))]).is_err());
        assert!(got(&[], |result| result.log = "x".repeat(LOG_BYTES + 1)).is_err());
        assert!(got(&[], |result| result.error = Some("\u{1b}[2J".into())).is_err());
        let ends = [&asked.flows[0].source, &asked.flows[0].destination].map(|end| End::at(*end));
        let flow = FlowSpec { subject: "f".into(), source: ends[0], destination: ends[1] };
        let watching = Assignment { watch: vec![flow], ..asked.clone() };
        let windows = |bins: usize| {
            let flows = vec![("f".into(), vec![Default::default(); bins])];
            check(&Report { watched: Watched { flows, ..Watched::default() }, ..honest.clone() }, &watching)
        };
        assert_eq!(windows(2), Ok(()));
        assert!(windows(3).is_err());
        let mut lie = honest.clone();
        lie.flows[0].travel = vec![travel];
        assert!(check(&lie, &asked).unwrap_err().contains("contradict"));
        let told = contradictions(&[report("a", true, 100), report("b", false, 101)]);
        assert!(told[0].contains("202 packets received, node.a of 200 sent"), "{told:?}");
    }
}
