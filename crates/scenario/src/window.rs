//! Conversion of the window history of a TCP flow to series of metrics, for all stages.

use crate::outcome::{Metric, Series};
use netstage_core::tcp::event::{SendLimit, WindowChangeCause};
use netstage_core::tcp::history::Bin;
use netstage_core::time::Duration;

/// Returns the series of a flow with bins of width `interval`.
pub fn series(subject: &str, interval: Duration, bins: &[Bin]) -> Vec<Series> {
    let to_series = |metric, value: &dyn Fn(&Bin) -> f64| Series {
        metric,
        subject: subject.to_owned(),
        values: bins.iter().map(value).collect(),
    };
    let mut series = vec![
        to_series(Metric::FlowWindowPeak, &|bin| bin.peak.unwrap_or(f64::NAN)),
        to_series(Metric::FlowWindowUsable, &|bin| bin.usable.unwrap_or(f64::NAN)),
        to_series(Metric::FlowReductions, &|bin| f64::from(bin.reductions())),
    ];
    series.extend(
        WindowChangeCause::ALL
            .map(|cause| to_series(cause_metric(cause), &|bin| f64::from(bin.causes[cause as usize]))),
    );
    let share = |limit: SendLimit, bin: &Bin| bin.limited[limit as usize].0 as f64 / interval.0 as f64;
    series.extend(SendLimit::ALL.map(|limit| to_series(by_limit(limit), &|bin| share(limit, bin))));
    series
}

/// Returns the metric that counts a cause.
pub fn cause_metric(cause: WindowChangeCause) -> Metric {
    match cause {
        WindowChangeCause::LocalDevice => Metric::FlowCauseLocalDevice,
        WindowChangeCause::Ecn => Metric::FlowCauseEcn,
        WindowChangeCause::FastRetransmit => Metric::FlowCauseFastRetransmit,
        WindowChangeCause::TailLossProbe => Metric::FlowCauseTailLossProbe,
        WindowChangeCause::Timeout => Metric::FlowCauseTimeout,
        WindowChangeCause::Undo => Metric::FlowCauseUndo,
        WindowChangeCause::IdleRestart => Metric::FlowCauseIdleRestart,
        WindowChangeCause::ReceiverWindow => Metric::FlowCauseReceiverWindow,
        WindowChangeCause::ApplicationLimited => Metric::FlowCauseApplicationLimited,
        WindowChangeCause::PathMtu => Metric::FlowCausePathMtu,
        WindowChangeCause::ZeroWindow => Metric::FlowCauseZeroWindow,
        WindowChangeCause::ProbeRoundTrip => Metric::FlowCauseProbeRoundTrip,
    }
}

fn by_limit(limit: SendLimit) -> Metric {
    match limit {
        SendLimit::CongestionWindow => Metric::FlowLimitedCongestionWindow,
        SendLimit::PeerWindow => Metric::FlowLimitedPeerWindow,
        SendLimit::Application => Metric::FlowLimitedApplication,
        SendLimit::Pacing => Metric::FlowLimitedPacing,
        SendLimit::SendBuffer => Metric::FlowLimitedSendBuffer,
    }
}
