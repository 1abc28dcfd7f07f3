//! Diagnosis of a flow in one sentence, with the deciding number and the remedy.

use crate::cmd::table::{rate, time};
use netstage_core::tcp::diagnosis::{Bottleneck, Diagnosis, Verdict};
use std::net::SocketAddr;

/// Share of a line's rate to which a shaper in front of it should be set.
const SHAPED: f64 = 0.93;

/// Returns the sentence about a flow to `remote`.
pub fn sentence(diagnosis: &Diagnosis, remote: SocketAddr) -> String {
    match diagnosis.verdict {
        Verdict::TooShort => {
            "not enough data for a diagnosis; observe the flow for at least 0.3 s while it sends".into()
        }
        Verdict::Certain { bottleneck } => {
            format!("{}; {}", finding(diagnosis, bottleneck), remedy(diagnosis, bottleneck, remote))
        }
        Verdict::Shared { bottleneck, second } => format!(
            "two causes: {} ({}), and {} ({})",
            finding(diagnosis, bottleneck),
            remedy(diagnosis, bottleneck, remote),
            finding(diagnosis, second),
            remedy(diagnosis, second, remote)
        ),
        Verdict::Unsure { bottleneck, alternative } => format!(
            "not sure, between two causes: {} ({}), or {} ({})",
            finding(diagnosis, bottleneck),
            remedy(diagnosis, bottleneck, remote),
            finding(diagnosis, alternative),
            remedy(diagnosis, alternative, remote)
        ),
    }
}

/// Returns the deciding observation of a bottleneck.
fn finding(diagnosis: &Diagnosis, bottleneck: Bottleneck) -> String {
    let path = rate(diagnosis.path_rate.unwrap_or(diagnosis.rate).as_f64());
    let own = rate(diagnosis.rate.as_f64());
    let queue = time(diagnosis.queue.map_or(0, |queue| queue.0));
    let lost = format!("{:.1} % of the segments are retransmitted", 100.0 * diagnosis.loss_ratio());
    let losing = rate(diagnosis.rate_at_losses.unwrap_or(diagnosis.rate).as_f64());
    let percent = diagnosis.percent(bottleneck);
    match bottleneck {
        Bottleneck::PathFull => format!("full path: {queue} of queue, and {path} for this flow"),
        Bottleneck::Bufferbloat => format!("bufferbloat: {queue} of queue, and {path} for this flow"),
        Bottleneck::Loss => format!("loss: {lost}, and no queue precedes the losses"),
        Bottleneck::Policer => {
            format!("policer or very short queue: losses begin at {losing}, without a queue ({lost})")
        }
        Bottleneck::Outage => format!(
            "outage: nothing arrived for up to {} ({} timeouts, {percent} % of the time)",
            time(diagnosis.longest_stall.0),
            diagnosis.timeouts
        ),
        Bottleneck::PathMtu => {
            format!("path MTU: segments of {} B do not arrive, {percent} % of the time", diagnosis.segment)
        }
        Bottleneck::ReceiveBuffer => format!(
            "small receive buffer: the window of {} B is full for {percent} % of the time",
            diagnosis.peer_window
        ),
        Bottleneck::SlowReader => {
            format!("slow reader: the receiving application takes {own}, so the receive buffer is full")
        }
        Bottleneck::ZeroWindow => {
            format!("zero window: the receiving application does not read for {percent} % of the time")
        }
        Bottleneck::SendBuffer => format!(
            "small send buffer: at most {} B are on the way, for {percent} % of the time",
            diagnosis.outstanding
        ),
        Bottleneck::Application => {
            format!("application: it offers no data for {percent} % of the time, {own} on average")
        }
        Bottleneck::SlowStart => {
            format!("slow start: the window still grows for {percent} % of the time")
        }
        Bottleneck::IdleRestart => {
            format!("restart after pauses: the window grows again for {percent} % of the time")
        }
        Bottleneck::EarlierReduction => format!(
            "earlier reduction: the window grows again for {percent} % of the time, after a reduction before the observation"
        ),
        Bottleneck::Ecn => "congestion marks without a queue keep the window small".into(),
        Bottleneck::LocalDevice => {
            format!("this host: its queue, pacing or processor limits the flow to {own}")
        }
        Bottleneck::ProbeRoundTrip => {
            format!("BBR measures the round trip for {percent} % of the time")
        }
        Bottleneck::WindowClamp => {
            format!("clamped window: it does not grow beyond {} B", diagnosis.outstanding)
        }
    }
}

/// Returns how to remove a bottleneck.
fn remedy(diagnosis: &Diagnosis, bottleneck: Bottleneck, remote: SocketAddr) -> String {
    let shaped = rate(SHAPED * diagnosis.path_rate.unwrap_or(diagnosis.rate).as_f64());
    match bottleneck {
        Bottleneck::PathFull => "only a faster line or less other traffic helps".into(),
        Bottleneck::Bufferbloat => format!(
            "shape to less than the line's rate with CAKE or FQ-CoDel in front of it ({shaped} if this flow has the line \
             to itself), or `netstage tcp limit --to {} --cwnd {}`",
            remote.ip(),
            window(diagnosis)
        ),
        Bottleneck::Loss => "check the line for errors, or try `-C bbr`".into(),
        Bottleneck::Policer => {
            let losing = diagnosis.rate_at_losses.unwrap_or(diagnosis.rate).as_f64();
            format!("shape to {} in front of the policer", rate(SHAPED * losing))
        }
        Bottleneck::Outage => "check the gateways' logs and routes".into(),
        Bottleneck::PathMtu => format!(
            "lower the tunnel's MTU or clamp the MSS; find the size with `ping -M do -s SIZE {}`",
            remote.ip()
        ),
        Bottleneck::ReceiveBuffer => "raise net.ipv4.tcp_rmem or SO_RCVBUF at the receiver".into(),
        Bottleneck::SlowReader | Bottleneck::ZeroWindow => {
            "check the processor, disk and queue depth of the receiving application".into()
        }
        Bottleneck::SendBuffer => "raise net.ipv4.tcp_wmem or SO_SNDBUF at the sender".into(),
        Bottleneck::Application => {
            "check the queue depth, block size and processor of the sending application".into()
        }
        Bottleneck::SlowStart => "reuse connections or transfer more in each".into(),
        Bottleneck::IdleRestart => "set net.ipv4.tcp_slow_start_after_idle=0 at the sender".into(),
        Bottleneck::EarlierReduction => "observe for longer, from the start of the transfer".into(),
        Bottleneck::Ecn => "check the marking threshold of the queues on the path".into(),
        Bottleneck::LocalDevice => {
            "check `tc -s qdisc`, the pacing rate and the processor of the sender".into()
        }
        Bottleneck::ProbeRoundTrip => "this is normal; longer transfers lose a smaller share".into(),
        Bottleneck::WindowClamp => {
            "check `ip route show` for `cwnd lock`, and for a running `netstage tcp limit`".into()
        }
    }
}

/// Returns the congestion window that fills the path with a quarter of a base round trip of queue, segments.
fn window(diagnosis: &Diagnosis) -> u64 {
    let base = diagnosis.round_trip.map_or(0.0, |trips| trips.min.as_secs_f64());
    let bytes = diagnosis.path_rate.unwrap_or(diagnosis.rate).as_f64() / 8.0 * base * 1.25;
    ((bytes / f64::from(diagnosis.segment.max(1))).ceil() as u64).max(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::quantity::BitRate;
    use netstage_core::tcp::diagnosis::RoundTrips;
    use netstage_core::time::Duration;

    #[test]
    fn every_bottleneck_has_a_sentence_with_its_number_and_remedy() {
        let ms = Duration::from_millis;
        let diagnosis = |verdict| Diagnosis {
            verdict,
            time: ms(10_000),
            shares: Vec::new(),
            rate: BitRate(18_000_000),
            path_rate: Some(BitRate(18_300_000)),
            round_trip: Some(RoundTrips { now: ms(280), min: ms(20), max: ms(281) }),
            queue: Some(ms(260)),
            segment: 1_000,
            acknowledged: 990_000,
            retransmissions: 10,
            rate_at_losses: Some(BitRate(20_000_000)),
            timeouts: 3,
            longest_stall: ms(3_000),
            peer_window: 65_535,
            outstanding: 50_000,
        };
        let remote = "192.0.2.1:80".parse().unwrap();
        let certain = |bottleneck| sentence(&diagnosis(Verdict::Certain { bottleneck }), remote);
        assert_eq!(
            certain(Bottleneck::Bufferbloat),
            "bufferbloat: 260.00 ms of queue, and 18.3 Mbit/s for this flow; shape to less than the line's rate with CAKE \
             or FQ-CoDel in front of it (17.0 Mbit/s if this flow has the line to itself), or `netstage tcp limit --to \
             192.0.2.1 --cwnd 58`"
        );
        assert!(certain(Bottleneck::Loss).starts_with("loss: 1.0 % of the segments"));
        assert!(certain(Bottleneck::ReceiveBuffer).contains("65535 B"));
        assert!(certain(Bottleneck::Outage).contains("3.0 s (3 timeouts"));
        let mut sentences = Bottleneck::ALL.map(certain);
        sentences.sort();
        assert!(sentences.is_sorted_by(|one, next| one < next));
        let unsure = Verdict::Unsure { bottleneck: Bottleneck::Loss, alternative: Bottleneck::Policer };
        let text = sentence(&diagnosis(unsure), remote);
        let shared = Verdict::Shared { bottleneck: Bottleneck::Outage, second: Bottleneck::Bufferbloat };
        let both = sentence(&diagnosis(shared), remote);
        assert!(both.starts_with("two causes: outage: ") && both.contains(", and bufferbloat: "), "{both}");
        assert!(text.starts_with("not sure, between two causes: loss: ") && text.contains(", or policer "));
    }
}
