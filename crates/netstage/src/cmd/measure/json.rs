//! Measurement as JSON. Rates are payload bits per second, times have the unit in their names, and a side without
//! a report is null.

use netstage_agent::measure::{
    FlowOutcome, MeasurementDirection, MeasurementInterval, MeasurementOutcome, MeasurementParameters, Method,
};
use netstage_agent_api::results::{BinCounts, Buckets};
use netstage_core::measure::Histogram;
use netstage_core::time::Duration;
use serde_json::{Map, Value, json};
use std::net::SocketAddr;

/// Version of the document's layout; adding fields does not change it.
const VERSION: u32 = 1;

/// Returns the whole measurement; `ends` are the local and the remote address.
pub fn document(
    order: &MeasurementParameters,
    ends: (SocketAddr, SocketAddr),
    ports: &[(u32, u16)],
    outcome: &MeasurementOutcome,
    code: u8,
) -> Value {
    json!({
        "version": VERSION,
        "tool": concat!("netstage ", env!("CARGO_PKG_VERSION")),
        "exit": code,
        "test": test(order, ends, ports),
        "intervals": outcome.intervals.iter().map(|found| interval(order, found)).collect::<Vec<_>>(),
        "summary": {
            "measured_s": outcome.measured.as_secs_f64(),
            "flows": outcome.flows.iter().map(|found| flow(found, outcome.measured)).collect::<Vec<_>>(),
            "sum": sums(outcome),
        },
        "clock": {
            "offset_ns": outcome.clock.map(|clock| clock.offset_ns),
            "one_way_error_ns": outcome.clock_error_ns,
            "same_clock": outcome.clock.map(|clock| clock.same_clock),
        },
        "interrupted": outcome.interrupted,
        "lost_agents": outcome.lost.iter().map(|loss| json!({
            "agent": if loss.agent == "there" { "server" } else { "client" },
            "reason": loss.reason,
        })).collect::<Vec<_>>(),
        "warnings": outcome.warnings,
        "void": outcome.void,
    })
}

fn test(
    order: &MeasurementParameters,
    (own, target): (SocketAddr, SocketAddr),
    ports: &[(u32, u16)],
) -> Value {
    let method = match order.method {
        Method::Tcp(_) => "tcp",
        Method::Udp(_) => "udp",
        Method::Quic => "quic",
        Method::IcmpEcho { .. } => "icmp",
        Method::UdpUnreachable { .. } => "udp-unreachable",
    };
    let direction = match order.directions {
        MeasurementDirection::Forward => "forward",
        MeasurementDirection::Reverse => "reverse",
        MeasurementDirection::Both => "both",
    };
    json!({
        "method": method,
        "here": own.ip(),
        "there": target,
        "data_ports_there": ports.iter().map(|(_, port)| port).collect::<Vec<_>>(),
        "direction": direction,
        "parallel": order.parallel,
        "traffic": order.traffic,
        "traffic_class": order.traffic_class,
        "time_s": order.time.as_secs_f64(),
        "omit_s": order.omit.as_secs_f64(),
        "interval_s": order.interval.as_secs_f64(),
        "seed": order.seed,
        "rate_layer": "payload",
    })
}

fn interval(order: &MeasurementParameters, interval: &MeasurementInterval) -> Value {
    let length = Duration(interval.to.0 - interval.from.0);
    let flows: Vec<Value> = order
        .flows()
        .map(|(id, reverse)| {
            let cell = interval.flows.get(&id).copied().unwrap_or_default();
            json!({
                "flow": order.name(id),
                "direction": direction(reverse),
                "sent": cell.sent.map(|counts| sent(&counts, length)),
                "received": cell.received.map(|counts| received(&counts, length)),
                "tcp": cell.tcp,
                "retransmitted": cell.retransmitted,
                "travel": cell.travel,
            })
        })
        .collect();
    json!({
        "from_s": interval.from.as_secs_f64(),
        "to_s": interval.to.as_secs_f64(),
        "omitted": interval.omitted,
        "flows": flows,
    })
}

fn direction(reverse: bool) -> &'static str {
    if reverse { "reverse" } else { "forward" }
}

fn flow(flow: &FlowOutcome, measured: Duration) -> Value {
    let received_side = flow.received.as_ref();
    let times = |of: fn(&netstage_agent_api::results::FlowResult) -> &Buckets| {
        received_side.map_or(Value::Null, |result| percentiles(of(result)))
    };
    json!({
        "flow": flow.name,
        "direction": direction(flow.reverse),
        "sent": flow.sent.as_ref().map(|_| sent(&flow.counts, measured)),
        "received": received_side.map(|_| received(&flow.counts, measured)),
        "received_after_end": flow.drained(),
        "answer_limit": flow.answer_limit(),
        "lowered": flow.lowered().map(|lowered| json!({
            "from_s": lowered.from_ns as f64 / 1e9,
            "probes_per_second": lowered.rate,
            "sent": lowered.sent,
            "lost": lowered.lost(),
        })),
        "unanswered_packets": flow.lost.filter(|_| flow.answer_limit().is_some()),
        "lost_packets": flow.known_loss(),
        "loss_ratio": flow.known_loss().map(|lost| lost as f64 / flow.counts.sent.max(1) as f64),
        "socket_drops": flow.socket_drops(),
        "retransmissions": flow.retransmissions,
        "tcp": flow.sent.as_ref().and_then(|result| result.tcp.iter().rfind(|sample| sample.is_known())),
        "delay": times(|result| &result.delay),
        "round_trip": times(|result| &result.round_trip),
        "delay_variation": times(|result| &result.delay_variation),
        "schedule": flow.sent.as_ref().and_then(|result| result.schedule.as_ref()),
        "errors": flow.errors().collect::<Vec<_>>(),
    })
}

fn sent(counts: &BinCounts, over: Duration) -> Value {
    json!({
        "packets": counts.sent,
        "bytes": counts.sent_bytes,
        "bits_per_second": rate(counts.sent_bytes, over),
    })
}

fn received(counts: &BinCounts, over: Duration) -> Value {
    json!({
        "packets": counts.received,
        "bytes": counts.received_bytes,
        "bits_per_second": rate(counts.received_bytes, over),
        "gaps_seen": counts.lost,
        "duplicated": counts.duplicated,
        "reordered": counts.reordered,
        "corrupted": counts.corrupted,
        "bit_errors": counts.bit_errors,
    })
}

fn rate(bytes: u64, over: Duration) -> Option<f64> {
    (over > Duration::ZERO).then(|| bytes as f64 * 8.0 / over.as_secs_f64())
}

/// Returns the sum over all flows of each measured direction.
fn sums(outcome: &MeasurementOutcome) -> Value {
    let mut sums = Map::new();
    for reverse in [false, true] {
        let flows = || outcome.flows.iter().filter(|flow| flow.reverse == reverse);
        if flows().next().is_none() {
            continue;
        }
        let total = |of: fn(&BinCounts) -> u64| flows().map(|flow| of(&flow.counts)).sum::<u64>();
        let (sent, received) = (total(|counts| counts.sent_bytes), total(|counts| counts.received_bytes));
        let sum = json!({
            "sent_bytes": sent,
            "sent_bits_per_second": rate(sent, outcome.measured),
            "received_bytes": received,
            "received_bits_per_second": rate(received, outcome.measured),
            "lost_packets": flows().map(|flow| flow.known_loss()).sum::<Option<u64>>(),
            "retransmissions": flows().map(|flow| flow.retransmissions).sum::<Option<u64>>(),
        });
        sums.insert(direction(reverse).into(), sum);
    }
    Value::Object(sums)
}

/// Returns percentiles in nanoseconds, or null for an empty histogram.
pub fn percentiles(buckets: &Buckets) -> Value {
    let mut histogram = Histogram::default();
    histogram.add(&buckets.0);
    let (Some(first), Some(last)) = (buckets.0.first(), buckets.0.last()) else { return Value::Null };
    let known = |q| histogram.estimate(q).map(|estimate| estimate.value);
    json!({
        "count": histogram.count(),
        "min_ns": first.0,
        "mean_ns": histogram.mean(),
        "p50_ns": known(0.5),
        "p90_ns": known(0.9),
        "p99_ns": known(0.99),
        "p999_ns": known(0.999),
        "max_ns": last.0,
    })
}
