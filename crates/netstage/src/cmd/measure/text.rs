//! Measurement as lines of plain text, without escape codes: heading, intervals and summary.

use netstage_agent::measure::{
    FlowInterval, FlowOutcome, MeasurementDirection, MeasurementInterval, MeasurementOutcome,
    MeasurementParameters, Method,
};
use netstage_agent_api::results::{BinCounts, Buckets, Schedule};
use netstage_core::measure::{Histogram, clopper_pearson};
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;
use netstage_study::format::{quantity, rate};
use std::fmt::Write as _;
use std::net::SocketAddr;

/// Formats the heading: the test and the column heads.
pub fn heading(order: &MeasurementParameters, target: SocketAddr, ports: &[(u32, u16)]) -> String {
    let ways = match order.directions {
        MeasurementDirection::Forward => "forward",
        MeasurementDirection::Reverse => "reverse",
        MeasurementDirection::Both => "in each direction",
    };
    let flows = match order.parallel {
        1 => "1 flow".to_string(),
        n => format!("{n} flows"),
    };
    let ports: Vec<String> = ports.iter().map(|(_, port)| port.to_string()).collect();
    let ports = if ports.is_empty() { String::new() } else { format!(", data to port {}", ports.join(", ")) };
    let seconds = |duration: Duration| quantity(duration.as_secs_f64(), "s");
    let target = match order.method {
        Method::IcmpEcho { .. } => target.ip().to_string(),
        _ => target.to_string(),
    };
    let mut text = format!("{} to {target}{ports}: {flows} {ways}", name(&order.method));
    let until = if matches!(order.traffic, Pattern::Bulk { size: Some(_) }) { "at most " } else { "" };
    let _ = write!(text, ", {}, {until}{}", load(&order.traffic), seconds(order.time));
    if order.omit > Duration::ZERO {
        let _ = write!(text, ", the first {} omitted", seconds(order.omit));
    }
    text.push_str("\nRates are of received payload; 1 MB is 10⁶ bytes.\n");
    if order.interval < order.duration() {
        text.push_str(&columns(order));
    }
    text
}

fn name(method: &Method) -> &'static str {
    match method {
        Method::Tcp(_) => "TCP",
        Method::Udp(_) => "UDP",
        Method::Quic => "QUIC",
        Method::IcmpEcho { .. } => "ICMP echo",
        Method::UdpUnreachable { .. } => "UDP to a closed port",
    }
}

fn load(pattern: &Pattern) -> String {
    let each =
        |rate_bps: u64, packet: u32, noun: &str| format!("{} each in {noun} of {packet} B", rate(rate_bps));
    match pattern {
        Pattern::Bulk { size: None } => "unlimited rate".into(),
        Pattern::Bulk { size: Some(bytes) } => format!("{} each", volume(*bytes)),
        Pattern::Cbr { rate, packet } => each(rate.0, *packet, "packets"),
        Pattern::Poisson { rate, packet } => each(rate.0, *packet, "Poisson packets"),
        Pattern::OnOff { rate, packet, .. } => each(rate.0, *packet, "on-off packets"),
        Pattern::Pareto { rate, packet, .. } => each(rate.0, *packet, "Pareto packets"),
        other => format!("{} each", rate(other.mean_rate().unwrap_or(0.0) as u64)),
    }
}

/// Set of columns, by the measurement method.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stream,
    Packets,
    Answers,
}

fn kind(order: &MeasurementParameters) -> Kind {
    match order.method {
        Method::Tcp(_) | Method::Quic => Kind::Stream,
        Method::Udp(_) => Kind::Packets,
        Method::IcmpEcho { .. } | Method::UdpUnreachable { .. } => Kind::Answers,
    }
}

fn columns(order: &MeasurementParameters) -> String {
    let rest = match kind(order) {
        Kind::Stream => format!("{:>11} {:>6} {:>9} {:>10}", "sent", "retr", "cwnd", "RTT"),
        Kind::Packets => format!("{:>19} {:>10} {:>10} {:>10}", "lost/sent", "jitter", "delay", "IPDV"),
        Kind::Answers => format!("{:>19} {:>10} {:>10} {:>10}", "lost/sent", "RTT min", "mean", "max"),
    };
    format!("{:>4} {:>15} {:>13} {:>15} {rest}\n", "flow", "interval", "received", "rate")
}

/// Formats an interval: a line per flow, and the sum of each direction with several flows.
pub fn interval(order: &MeasurementParameters, interval: &MeasurementInterval) -> String {
    let mut text = String::new();
    let length = Duration(interval.to.0 - interval.from.0);
    let span = format!("{:.2}–{:.2} s", interval.from.as_secs_f64(), interval.to.as_secs_f64());
    let omitted = if interval.omitted { "  (omitted)" } else { "" };
    for (id, reverse) in order.flows() {
        let cell = interval.flows.get(&id).copied().unwrap_or_default();
        let name = order.name(id);
        let _ = writeln!(text, "{}{omitted}", line(order, &name, &span, length, &cell));
        let last = order.parallel > 1 && (id == order.parallel || id == 2 * order.parallel);
        if last {
            let flows = order.flows().filter(|(_, r)| *r == reverse).map(|(id, _)| id);
            let sum = sum(flows.filter_map(|id| interval.flows.get(&id)));
            let name = if reverse { "sumR" } else { "sum" };
            let _ = writeln!(text, "{}{omitted}", line(order, name, &span, length, &sum));
        }
    }
    text
}

/// Returns the sum of several flows, without values that cannot be added.
fn sum<'a>(cells: impl Iterator<Item = &'a FlowInterval>) -> FlowInterval {
    let add = |sum: &mut Option<BinCounts>, more: Option<BinCounts>| {
        if let Some(more) = more {
            let sum = sum.get_or_insert_default();
            sum.sent += more.sent;
            sum.sent_bytes += more.sent_bytes;
            sum.received += more.received;
            sum.received_bytes += more.received_bytes;
            sum.lost += more.lost;
        }
    };
    cells.fold(FlowInterval::default(), |mut total, cell| {
        add(&mut total.sent, cell.sent);
        add(&mut total.received, cell.received);
        total.retransmitted = match (total.retransmitted, cell.retransmitted) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        total
    })
}

fn line(
    order: &MeasurementParameters,
    name: &str,
    span: &str,
    length: Duration,
    cell: &FlowInterval,
) -> String {
    let received = cell.received.map_or("–".into(), |counts| volume(counts.received_bytes));
    let bits = |bytes: u64| rate_over(bytes, length);
    let rate = cell.received.map_or("–".into(), |counts| bits(counts.received_bytes));
    let sent = cell.sent.map_or("–".into(), |counts| volume(counts.sent_bytes));
    let start = format!("{name:>4} {span:>15} {received:>13} {rate:>15}");
    let lost = match (cell.sent, cell.received) {
        (_, None) => "–".into(),
        // As seen by the receiver: packets missing of those it knows were sent.
        (_, Some(counts)) => {
            let sent = counts.lost + counts.received;
            let share = if sent > 0 { 100.0 * counts.lost as f64 / sent as f64 } else { 0.0 };
            format!("{}/{sent} ({share:.2} %)", counts.lost)
        }
    };
    let travel = cell.travel.filter(|travel| travel.count > 0);
    match kind(order) {
        Kind::Stream => {
            let tcp = cell.tcp.unwrap_or_default();
            let known = |text: String| if cell.tcp.is_some() { text } else { String::new() };
            let retransmits = cell.retransmitted.map_or(String::new(), |count| count.to_string());
            format!(
                "{start} {sent:>11} {:>6} {:>9} {:>10}",
                retransmits,
                known(format!("{} seg", tcp.window)),
                known(nanoseconds(tcp.round_trip_ns)),
            )
        }
        Kind::Packets => {
            let known = |ns: Option<u64>| ns.map_or(String::new(), nanoseconds);
            format!(
                "{start} {lost:>19} {:>10} {:>10} {:>10}",
                known(travel.map(|t| t.jitter_ns)),
                known(travel.map(|t| t.sum_ns / t.count)),
                known(
                    travel.filter(|t| t.variation_count > 0).map(|t| t.variation_sum_ns / t.variation_count)
                ),
            )
        }
        Kind::Answers => {
            let known = |ns: Option<u64>| ns.map_or(String::new(), nanoseconds);
            format!(
                "{start} {lost:>19} {:>10} {:>10} {:>10}",
                known(travel.map(|t| t.min_ns)),
                known(travel.map(|t| t.sum_ns / t.count)),
                known(travel.map(|t| t.max_ns)),
            )
        }
    }
    .trim_end()
    .to_owned()
}

/// Formats the summary.
pub fn summary(order: &MeasurementParameters, outcome: &MeasurementOutcome) -> String {
    let mut text = format!("\nOver {}", quantity(outcome.measured.as_secs_f64(), "s"));
    text.push_str(if outcome.interrupted { ", interrupted:\n" } else { ":\n" });
    for flow in &outcome.flows {
        let _ = writeln!(text, "{}", totals(order, flow, outcome.measured));
    }
    for reverse in [false, true] {
        let flows: Vec<&FlowOutcome> = outcome.flows.iter().filter(|flow| flow.reverse == reverse).collect();
        if flows.len() > 1 {
            let all = FlowOutcome {
                name: if reverse { "sumR".into() } else { "sum".into() },
                counts: flows.iter().fold(BinCounts::default(), |mut sum, flow| {
                    sum.sent += flow.counts.sent;
                    sum.sent_bytes += flow.counts.sent_bytes;
                    sum.received += flow.counts.received;
                    sum.received_bytes += flow.counts.received_bytes;
                    sum.duplicated += flow.counts.duplicated;
                    sum.reordered += flow.counts.reordered;
                    sum
                }),
                lost: flows.iter().map(|flow| flow.lost).sum(),
                retransmissions: flows.iter().map(|flow| flow.retransmissions).sum(),
                ..FlowOutcome::default()
            };
            let _ = writeln!(text, "{}", totals(order, &all, outcome.measured));
        }
    }
    for flow in &outcome.flows {
        details(&mut text, order, flow, outcome);
    }
    for flow in &outcome.flows {
        for error in flow.errors() {
            let _ = writeln!(text, "error: flow {}: {error}", flow.name);
        }
    }
    for loss in &outcome.lost {
        let agent = if loss.agent == "there" { "the server" } else { "the local agent" };
        let _ = writeln!(text, "error: lost {agent}: {}", loss.reason);
    }
    for warning in &outcome.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    for void in &outcome.void {
        let _ = writeln!(text, "void: {void}");
    }
    text
}

fn totals(order: &MeasurementParameters, flow: &FlowOutcome, measured: Duration) -> String {
    let counts = &flow.counts;
    let mut text = format!(
        "{:>4}  received {} at {}, sent {} at {}",
        flow.name,
        volume(counts.received_bytes),
        rate_over(counts.received_bytes, measured),
        volume(counts.sent_bytes),
        rate_over(counts.sent_bytes, measured),
    );
    if let Some(retransmits) = flow.retransmissions {
        let _ = write!(text, ", {retransmits} retransmits");
    }
    if let Some(lost) = flow.lost {
        let share = 100.0 * lost as f64 / counts.sent.max(1) as f64;
        let fate = if kind(order) == Kind::Answers { "unanswered" } else { "lost on the path" };
        let _ = write!(text, "; {lost} of {} packets {fate} ({share:.3} %)", counts.sent);
        if let Some(limit) = flow.answer_limit() {
            let _ = write!(
                text,
                ", loss unknown, at most {share:.3} %: the host answers at most {limit:.1} probes/s"
            );
            if let Some(lowered) = flow.lowered().filter(|lowered| lowered.sent > 0) {
                let ratio = clopper_pearson(lowered.lost(), lowered.sent, 0.95);
                let _ = write!(
                    text,
                    "; {} of {} lost at {:.1} probes/s from {:.1} s on ({:.3} … {:.3} %)",
                    lowered.lost(),
                    lowered.sent,
                    lowered.rate,
                    lowered.from_ns as f64 / 1e9,
                    100.0 * ratio.lower,
                    100.0 * ratio.upper
                );
            }
        }
        for (count, event) in [
            (flow.socket_drops(), "dropped by the receiver's socket (not the path)"),
            (flow.drained().packets, "received after the end"),
            (counts.duplicated, "duplicated"),
            (counts.reordered, "reordered"),
            (counts.corrupted, "corrupted"),
        ] {
            if count > 0 {
                let _ = write!(text, ", {count} {event}");
            }
        }
    }
    text
}

fn details(
    text: &mut String,
    order: &MeasurementParameters,
    flow: &FlowOutcome,
    outcome: &MeasurementOutcome,
) {
    let name = &flow.name;
    if let Some(received) = &flow.received {
        let error = match outcome.clock_error_ns {
            Some(0) => "; both hosts use the same clock".to_string(),
            Some(error) => format!("; clock error ± {}", nanoseconds(error)),
            None => String::new(),
        };
        for (label, buckets, note) in [
            ("one-way delay", &received.delay, error.as_str()),
            ("round trip", &received.round_trip, ""),
            ("delay variation (IPDV)", &received.delay_variation, ""),
        ] {
            if let Some(line) = percentiles(buckets) {
                let _ = writeln!(text, "{name:>4}  {label}: {line}{note}");
            }
        }
    }
    let Some(sent) = &flow.sent else { return };
    if let Some(schedule) = &sent.schedule {
        let _ = writeln!(text, "{name:>4}  generator: {}", timing(schedule));
    }
    if let (Kind::Stream, Some(last)) = (kind(order), sent.tcp.iter().rfind(|sample| sample.is_known())) {
        let _ = write!(text, "{name:>4}  final: RTT {}", nanoseconds(last.round_trip_ns));
        if last.min_round_trip_ns > 0 {
            let _ = write!(text, " (min {})", nanoseconds(last.min_round_trip_ns));
        }
        let _ = write!(text, ", congestion window {} segments", last.window);
        if last.peer_window > 0 {
            let _ = write!(text, ", receive window {}", volume(last.peer_window));
        }
        if last.busy_ns > 0 {
            let share = |ns: u64| 100.0 * ns as f64 / last.busy_ns as f64;
            let _ = write!(
                text,
                "; limited by the receiver {:.0} %, by the send buffer {:.0} % of the time",
                share(last.peer_window_limited_ns),
                share(last.send_buffer_limited_ns)
            );
        }
        text.push('\n');
    }
}

fn percentiles(buckets: &Buckets) -> Option<String> {
    let mut histogram = Histogram::default();
    histogram.add(&buckets.0);
    let (min, max) = (buckets.0.first()?.0, buckets.0.last()?.0);
    let mut parts = vec![format!("min {}", nanoseconds(min))];
    // A quantile of too few values is left out.
    for (name, q) in [("median", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("99.9 %", 0.999)] {
        parts.extend(histogram.estimate(q).map(|estimate| format!("{name} {}", nanoseconds(estimate.value))));
    }
    parts.push(format!("max {}", nanoseconds(max)));
    Some(parts.join(", "))
}

fn timing(schedule: &Schedule) -> String {
    let spun =
        schedule.spun.map_or(String::new(), |spun| format!("; spun for {:.0} % of the time", spun * 100.0));
    let percentile = |name: &str, value: Option<u64>| {
        value.map_or(String::new(), |value| format!("{name} {}, ", nanoseconds(value)))
    };
    let (median, p99, max) = schedule.late_ns;
    format!(
        "{} of {} packets sent, rate error {:+.3} %, {:.1} % of gaps within 5 %; lateness: {}{}max {}{spun}",
        schedule.sent,
        schedule.requested,
        schedule.rate_error * 100.0,
        schedule.gaps_within_5_percent * 100.0,
        percentile("median", median),
        percentile("99 %", p99),
        nanoseconds(max)
    )
}

fn rate_over(bytes: u64, time: Duration) -> String {
    if time == Duration::ZERO {
        return "–".into();
    }
    quantity(bytes as f64 * 8.0 / time.as_secs_f64(), "bit/s")
}

fn nanoseconds(ns: u64) -> String {
    quantity(ns as f64 / 1e9, "s")
}

/// Formats bytes, with powers of 1000.
fn volume(bytes: u64) -> String {
    let scaled = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match scaled.iter().find(|(factor, _)| bytes >= *factor) {
        Some((factor, unit)) => {
            format!("{} {unit}", netstage_study::format::number(bytes as f64 / *factor as f64))
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_rates_use_powers_of_1000() {
        assert_eq!(volume(999), "999 B");
        assert_eq!(volume(1_500_000), "1.5 MB");
        assert_eq!(rate_over(1_250_000, Duration::from_secs(1)), "10 Mbit/s");
        assert_eq!(rate_over(1, Duration::ZERO), "–");
    }

    #[test]
    fn percentiles_are_over_packets_not_buckets() {
        let line = percentiles(&Buckets(vec![(1_000, 98), (1_500, 1), (2_000, 1)])).unwrap();
        assert_eq!(line, "min 1 µs, median 1 µs, 90 % 1 µs, max 2 µs");
        assert_eq!(percentiles(&Buckets::default()), None);
    }
}
