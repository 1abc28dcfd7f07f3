//! RFC 6349: a TCP transfer beside what its path allows, and what limits it.

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
const PLATEAUS: u32 = 1;

pub fn run(session: &mut Session, asked: &plan::Transfer) -> Result<(), Ended> {
    let name = session.test.name.clone();
    let Transport::Tcp(config) = session.test.probe.transport.clone() else {
        unreachable!("a transfer is TCP's");
    };
    let frame = session.test.frames[0];
    let everything = (None, Duration::ZERO);
    let idle = session.transfer(&name, &derive::trickle(session.plan, session.test, &config), everything)?;
    let Some(round_trip) = idle.least_round_trip else {
        return Err(Ended::Void(format!("{name}: the stage measured no round trip")));
    };
    // The same packets, carried by UDP.
    let probe = Probe { subject: name.clone(), ..Probe::new(session, FrameSize::ethernet_udp(frame.link)) };
    let line = rates::find_plateau(session, &probe, asked.max_rate, asked.search, PLATEAUS)?;
    let Some((capacity, _)) = line else { return Ok(()) };
    let baseline = Baseline {
        path_mtu: frame.ip,
        round_trip,
        bottleneck: BitRate(bits(capacity, frame).round() as u64),
        layer: Layer::Ip,
        full_packet: frame,
    };
    let derived = derive::transfer(session.plan, session.test, &config, asked.size, asked.trial);
    let ran = session.transfer(&name, &derived, (asked.size, Duration::ZERO))?;
    found(session, &name, &config, &baseline, &ran);
    Ok(())
}

fn found(session: &mut Session, name: &str, config: &tcp::Config, baseline: &Baseline, ran: &Transferred) {
    if ran.bytes == 0 {
        session.say(format!("{name}: nothing was transferred"));
        return;
    }
    let segment = u64::from(config.max_segment_size);
    let transfer = Transfer {
        bytes: ran.bytes,
        duration: ran.duration,
        transmitted: ran.bytes + ran.retransmissions * segment,
        retransmitted: ran.retransmissions * segment,
        round_trip: ran.mean_round_trip.unwrap_or(baseline.round_trip),
        window: Some(config.window),
    };
    let rated = assess(baseline, &transfer);
    session.find(Metric::TestTcpThroughput, name, rated.throughput);
    session.find(Metric::TestTransferTime, name, ran.duration.as_secs_f64());
    session.find(Metric::TestTransferTimeRatio, name, rated.transfer_time_ratio);
    session.find(Metric::TestTcpEfficiency, name, rated.efficiency);
    session.find(Metric::TestBufferDelay, name, rated.buffer_delay);
    session.find(Metric::TestRoundTrip, name, baseline.round_trip.as_secs_f64());
    session.find(Metric::TestPlateau, name, baseline.bottleneck.as_f64());
    let verdict = judge(&Evidence {
        throughput: BitRate(rated.throughput.round() as u64),
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
    let allowed =
        ceiling.map_or(String::new(), |c| format!(", {}", crate::format::quantity(c.rate, "bit/s")));
    let what = match verdict.cause {
        Cause::Window => "the window limits",
        Cause::Loss => "loss limits",
        Cause::Line => "the line limits",
        Cause::Application => "the sending application limits",
        Cause::Peer => "the receiving application limits",
        Cause::Unexplained => "nothing that was measured explains the rate",
    };
    session.say(format!("{name}: {what}{allowed}"));
}
