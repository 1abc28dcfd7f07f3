//! RFC 6349: TCP transfer, compared with the capacity of its path, and its limiting factor.

use super::{Probe, bits, rates};
use crate::trials::derive;
use crate::trials::outcome::Transferred;
use crate::trials::session::{Ended, Session};
use netstage_core::measure::tcp_throughput::{Baseline, Transfer, assess};
use netstage_core::measure::trial::{FrameSize, Layer};
use netstage_core::measure::verdict::{Cause, Evidence, judge};
use netstage_core::quantity::BitRate;
use netstage_core::tcp;
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;
use netstage_scenario::plan::{self, Transport};

/// Trials on the plateau.
const PLATEAU_TRIALS: u32 = 1;

pub fn run(session: &mut Session, test: &plan::Transfer) -> Result<(), Ended> {
    let name = session.test.name.clone();
    let Transport::Tcp(config) = session.test.probe.transport.clone() else {
        unreachable!("a transfer uses TCP");
    };
    let frame = session.test.frames[0];
    let all_bytes = (None, Duration::ZERO);
    let idle = session.transfer(&name, &derive::trickle(session.plan, session.test, &config), all_bytes)?;
    let Some(round_trip) = idle.least_round_trip else {
        return Err(Ended::Void(format!("{name}: the stage measured no round trip")));
    };
    // Frames of the same size, sent by UDP.
    let probe = Probe { subject: name.clone(), ..Probe::new(session, FrameSize::ethernet_udp(frame.link)) };
    let line = rates::find_plateau(session, &probe, test.max_rate, test.search, PLATEAU_TRIALS)?;
    let Some((capacity, _)) = line else { return Ok(()) };
    let baseline = Baseline {
        path_mtu: frame.ip,
        round_trip,
        bottleneck: BitRate(bits(capacity, frame).round() as u64),
        layer: Layer::Ip,
        full_packet: frame,
    };
    let derived = derive::transfer(session.plan, session.test, &config, test.size, test.trial);
    let result = session.transfer(&name, &derived, (test.size, Duration::ZERO))?;
    add_findings(session, &name, &config, &baseline, &result);
    Ok(())
}

fn add_findings(
    session: &mut Session,
    name: &str,
    config: &tcp::Config,
    baseline: &Baseline,
    result: &Transferred,
) {
    if result.bytes == 0 {
        session.say(format!("{name}: no data was transferred"));
        return;
    }
    let segment = u64::from(config.max_segment_size);
    let transfer = Transfer {
        bytes: result.bytes,
        duration: result.duration,
        transmitted: result.bytes + result.retransmissions * segment,
        retransmitted: result.retransmissions * segment,
        round_trip: result.mean_round_trip.unwrap_or(baseline.round_trip),
        window: Some(config.window),
    };
    let assessment = assess(baseline, &transfer);
    session.find(Metric::TestTcpThroughput, name, assessment.throughput);
    session.find(Metric::TestTransferTime, name, result.duration.as_secs_f64());
    session.find(Metric::TestTransferTimeRatio, name, assessment.transfer_time_ratio);
    session.find(Metric::TestTcpEfficiency, name, assessment.efficiency);
    session.find(Metric::TestBufferDelay, name, assessment.buffer_delay);
    session.find(Metric::TestRoundTrip, name, baseline.round_trip.as_secs_f64());
    session.find(Metric::TestPlateau, name, baseline.bottleneck.as_f64());
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
        Cause::Window => "limited by the window",
        Cause::Loss => "limited by loss",
        Cause::Line => "limited by the line rate",
        Cause::Application => "limited by the sending application",
        Cause::Peer => "limited by the receiving application",
        Cause::Unexplained => "limiting factor unknown: no measurement explains the rate",
    };
    session.say(format!("{name}: {cause}{limit}"));
}
