//! RFC 6349: TCP transfer, compared with the capacity of its path, and its limiting factor.

use super::{FrameProbe, bits, rates};
use crate::trials::derive;
use crate::trials::outcome::TransferResult;
use crate::trials::session::{TestAbort, TestSession};
use netstage_core::measure::tcp_throughput::{Baseline, TransferMeasurement, assess};
use netstage_core::measure::trial::{CountedLayer, FrameSize};
use netstage_core::measure::verdict::{Evidence, LimitCause, judge};
use netstage_core::measure::{FaultTime, VoidReason};
use netstage_core::quantity::BitRate;
use netstage_core::tcp;
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;
use netstage_scenario::plan::{self, FlowTransport};

/// Trials on the plateau.
const PLATEAU_TRIALS: u32 = 1;

pub fn run(session: &mut TestSession, test: &plan::TransferConfig) -> Result<(), TestAbort> {
    let name = session.test.name.clone();
    let FlowTransport::Tcp(config) = session.test.probe.transport.clone() else {
        unreachable!("a transfer uses TCP");
    };
    let frame = session.test.frames[0];
    let all_bytes = (None, Duration::ZERO);
    let idle = session.transfer(&name, &derive::trickle(session.plan, session.test, &config), all_bytes)?;
    let Some(round_trip) = idle.min_round_trip else {
        let fault = format!("measured no round trip of {} bytes", idle.bytes);
        let reason = VoidReason::new(format!("{name}: the stage"), fault, FaultTime::Within(idle.duration));
        return Err(TestAbort::Void(reason.into()));
    };
    // Frames of the same size, sent by UDP.
    let probe =
        FrameProbe { subject: name.clone(), ..FrameProbe::new(session, FrameSize::ethernet_udp(frame.link)) };
    let line = rates::find_plateau(session, &probe, test.max_rate, test.search, PLATEAU_TRIALS)?;
    let Some((capacity, _)) = line else { return Ok(()) };
    let baseline = Baseline {
        path_mtu: frame.ip,
        round_trip,
        bottleneck: BitRate(bits(capacity, frame).round() as u64),
        layer: CountedLayer::Ip,
        full_packet: frame,
    };
    let derived = derive::transfer(session.plan, session.test, &config, test.size, test.trial);
    let result = session.transfer(&name, &derived, (test.size, Duration::ZERO))?;
    add_findings(session, &name, &config, &baseline, &result);
    Ok(())
}

fn add_findings(
    session: &mut TestSession,
    name: &str,
    config: &tcp::TcpConfig,
    baseline: &Baseline,
    result: &TransferResult,
) {
    if result.bytes == 0 {
        session.add_verdict(format!("{name}: no data was transferred"));
        return;
    }
    let segment = u64::from(config.max_segment_size);
    let transfer = TransferMeasurement {
        bytes: result.bytes,
        duration: result.duration,
        transmitted: result.bytes + result.retransmissions * segment,
        retransmitted: result.retransmissions * segment,
        round_trip: result.mean_round_trip.unwrap_or(baseline.round_trip),
        window: Some(config.window),
    };
    let assessment = assess(baseline, &transfer);
    session.add_value(Metric::TestTcpThroughput, name, assessment.throughput);
    session.add_value(Metric::TestTransferTime, name, result.duration.as_secs_f64());
    session.add_value(Metric::TestTransferTimeRatio, name, assessment.transfer_time_ratio);
    session.add_value(Metric::TestTcpEfficiency, name, assessment.efficiency);
    session.add_value(Metric::TestBufferDelay, name, assessment.buffer_delay);
    session.add_value(Metric::TestRoundTrip, name, baseline.round_trip.as_secs_f64());
    session.add_value(Metric::TestPlateau, name, baseline.bottleneck.as_f64());
    let verdict = judge(&Evidence {
        throughput: BitRate(assessment.throughput.round() as u64),
        segment: config.max_segment_size,
        round_trip: transfer.round_trip,
        retransmission_timeout: None,
        receive_window: Some(config.window),
        send_buffer: None,
        loss: Some(transfer.retransmitted as f64 / transfer.transmitted as f64),
        capacity: Some(BitRate(baseline.maximum_throughput().round() as u64)),
        segments_per_ack: f64::from(config.ack_every.max(1)),
        limited: None,
    });
    let ceiling = verdict.ceilings.iter().find(|ceiling| ceiling.cause == verdict.cause);
    let limit = ceiling.map_or(String::new(), |c| format!(", {}", crate::format::quantity(c.rate, "bit/s")));
    let cause = match verdict.cause {
        LimitCause::Window => "limited by the window",
        LimitCause::Loss => "limited by loss",
        LimitCause::Line => "limited by the line rate",
        LimitCause::Application => "limited by the sending application",
        LimitCause::Peer => "limited by the receiving application",
        LimitCause::Unexplained => "limiting factor unknown: no measurement explains the rate",
    };
    session.add_verdict(format!("{name}: {cause}{limit}"));
}
