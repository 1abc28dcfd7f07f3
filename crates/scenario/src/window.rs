//! Conversion of the window history of a TCP flow to series of metrics, for all stages.

use crate::outcome::{Metric, Series};
use netstage_core::tcp::event::{Cause, Limit};
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
        Cause::ALL.map(|cause| to_series(by_cause(cause), &|bin| f64::from(bin.causes[cause as usize]))),
    );
    let share = |limit: Limit, bin: &Bin| bin.limited[limit as usize].0 as f64 / interval.0 as f64;
    series.extend(Limit::ALL.map(|limit| to_series(by_limit(limit), &|bin| share(limit, bin))));
    series
}

/// Returns the metric that counts a cause.
pub fn by_cause(cause: Cause) -> Metric {
    match cause {
        Cause::LocalDevice => Metric::FlowCauseLocalDevice,
        Cause::Ecn => Metric::FlowCauseEcn,
        Cause::FastRetransmit => Metric::FlowCauseFastRetransmit,
        Cause::TailLossProbe => Metric::FlowCauseTailLossProbe,
        Cause::Timeout => Metric::FlowCauseTimeout,
        Cause::Undo => Metric::FlowCauseUndo,
        Cause::IdleRestart => Metric::FlowCauseIdleRestart,
        Cause::ReceiverWindow => Metric::FlowCauseReceiverWindow,
        Cause::ApplicationLimited => Metric::FlowCauseApplicationLimited,
    }
}

fn by_limit(limit: Limit) -> Metric {
    match limit {
        Limit::CongestionWindow => Metric::FlowLimitedCongestionWindow,
        Limit::PeerWindow => Metric::FlowLimitedPeerWindow,
        Limit::Application => Metric::FlowLimitedApplication,
        Limit::Pacing => Metric::FlowLimitedPacing,
    }
}
