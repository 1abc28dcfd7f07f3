//! Conversion of the quality measured at both ends of an application to series and distributions of metrics, for all
//! stages.

use crate::outcome::{Distribution, Metric, Series};
use netstage_core::measure::Histogram;
use netstage_core::measure::histogram::rounded;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::{
    Application, Codec, LearnedExchange, Quality, QualityDistributions,
};

/// Returns the series of a flow. `client` and `server` have a value per bin.
pub fn series(
    application: &Application,
    subject: &str,
    client: &[Quality],
    server: &[Quality],
) -> Vec<Series> {
    let both: Vec<(Quality, Quality)> = client.iter().copied().zip(server.iter().copied()).collect();
    let metrics = metrics(application);
    let codec = application.codec();
    let series = |metric: &Metric| Series {
        metric: *metric,
        subject: subject.to_owned(),
        values: both
            .iter()
            .map(|(client, server)| match (*metric, application) {
                (Metric::AppTransferRate, Application::Transfers(transfers)) => {
                    let time = value(Metric::AppTransactionTime, codec, client, server);
                    transfers.size.mean * 8.0 / time
                }
                _ => value(*metric, codec, client, server),
            })
            .collect(),
    };
    metrics.iter().map(series).collect()
}

/// Returns the distributions of a flow from the histograms of both ends and from its series. Values are single transactions,
/// pages, starts and packets; of opinion scores, the bins of a call.
pub fn distributions(
    application: &Application,
    subject: &str,
    ends: [&QualityDistributions<Vec<(u64, u64)>>; 2],
    series: &[Series],
) -> Vec<Distribution> {
    let measured = |metric: Metric| {
        let mut histogram = Histogram::default();
        for end in ends {
            let buckets = match metric {
                Metric::AppTransactionTime => &end.transaction_time,
                Metric::AppPageLoadTime => &end.page_load_time,
                Metric::AppStartupDelay => &end.startup_delay,
                Metric::AppDelay => &end.delay,
                Metric::AppDelayVariation => &end.delay_variation,
                _ => continue,
            };
            histogram.add(buckets);
        }
        if metric == Metric::AppMos {
            let scores = series.iter().filter(|series| series.metric == metric).flat_map(|s| &s.values);
            scores.filter(|score| !score.is_nan()).for_each(|score| histogram.record((score * 1e9) as u64));
        }
        let buckets: Vec<_> = histogram.buckets().collect();
        (!buckets.is_empty()).then(|| Distribution { metric, subject: subject.to_owned(), buckets })
    };
    let with_variation = |metric: &Metric| {
        let variation = (*metric == Metric::AppDelay).then_some(Metric::AppDelayVariation);
        std::iter::once(*metric).chain(variation)
    };
    metrics(application).iter().flat_map(with_variation).filter_map(measured).collect()
}

/// Returns the completion time of a bulk transfer as a series, with a value in the bin of its end, and as a distribution.
pub fn completion(
    subject: &str,
    start: Instant,
    end: Instant,
    interval: Duration,
    bins: usize,
) -> (Series, Distribution) {
    let took = end.since(start);
    let mut values = vec![f64::NAN; bins];
    if let Some(value) = values.get_mut((end.0 / interval.0.max(1)) as usize) {
        *value = took.as_secs_f64();
    }
    let (metric, subject) = (Metric::FlowCompletionTime, subject.to_owned());
    let series = Series { metric, subject: subject.clone(), values };
    (series, Distribution { metric, subject, buckets: vec![(rounded(took.0), 1)] })
}

/// Returns the metrics of an application.
fn metrics(application: &Application) -> &'static [Metric] {
    use Metric::{
        AppBitRate, AppDelay, AppFailures, AppLoss, AppMos, AppPageLoadTime, AppStallRatio, AppStartupDelay,
        AppSwitches, AppTransactionTime, AppTransactions, AppTransferRate,
    };
    const TRANSACTIONS: &[Metric] = &[AppTransactions, AppFailures, AppTransactionTime];
    match application {
        // With files of several sizes, the mean time gives no meaningful rate.
        Application::Transfers(transfers) if transfers.size.deviation == 0.0 => {
            &[AppTransactions, AppFailures, AppTransactionTime, AppTransferRate]
        }
        Application::Transfers(_)
        | Application::Dns(_)
        | Application::Exchange(_)
        | Application::BlockStorage(_) => TRANSACTIONS,
        Application::Web(_) => &[AppTransactions, AppFailures, AppPageLoadTime],
        Application::AdaptiveVideo(_) => {
            &[AppFailures, AppStartupDelay, AppStallRatio, AppBitRate, AppSwitches]
        }
        Application::FrameVideo(_) => &[AppFailures, AppBitRate, AppLoss, AppDelay],
        Application::Voice(_) => &[AppLoss, AppDelay, AppMos],
        Application::Game(_) => &[AppLoss, AppDelay],
        Application::Learned { model, .. } => match model.shape {
            LearnedExchange::Exchanges(_) => TRANSACTIONS,
            LearnedExchange::OneWay { .. } => &[AppFailures, AppLoss, AppDelay],
        },
    }
}

fn value(metric: Metric, codec: Option<Codec>, client: &Quality, server: &Quality) -> f64 {
    let ratio = |above: u64, below: u64| if below == 0 { f64::NAN } else { above as f64 / below as f64 };
    let loss = |expected: u64, played: u64| (1.0 - ratio(played, expected)).max(0.0);
    // `max` of a number and NaN is the number, which would hide a missing value.
    let lost = |expected: u64, played: u64| if expected == 0 { f64::NAN } else { loss(expected, played) };
    match metric {
        Metric::AppTransactions => (client.transactions + client.pages) as f64,
        Metric::AppFailures => client.failures as f64,
        Metric::AppTransactionTime => ratio(client.transaction_ns, client.transactions) / 1e9,
        Metric::AppPageLoadTime => ratio(client.page_ns, client.pages) / 1e9,
        Metric::AppStartupDelay => ratio(client.startup_ns, client.startups) / 1e9,
        Metric::AppStallRatio => ratio(client.stalled_ns, client.stalled_ns + client.playing_ns),
        Metric::AppBitRate => ratio(client.played_bits, client.playing_ns) * 1e9,
        Metric::AppSwitches => client.switches as f64,
        Metric::AppLoss => lost(client.expected + server.expected, client.played + server.played),
        Metric::AppDelay => ratio(client.delay_ns + server.delay_ns, client.delayed + server.delayed) / 1e9,
        Metric::AppMos => {
            let Some(codec) = codec else { return f64::NAN };
            let score = |end: &Quality| {
                // The delay is unknown if nothing was heard, and then has no effect.
                let delay = Duration(end.mouth_to_ear_ns.checked_div(end.mouth_to_ear_count).unwrap_or(0));
                let lost = lost(end.expected, end.played);
                match lost {
                    lost if lost.is_nan() => f64::NAN,
                    // The E-model does not cover complete loss, which gets the lowest score.
                    lost if lost >= 1.0 => 1.0,
                    lost => codec.opinion_score(lost, delay),
                }
            };
            score(client).min(score(server))
        }
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_the_score_of_its_worse_direction() {
        let perfect = Quality {
            expected: 50,
            played: 50,
            mouth_to_ear_count: 50,
            mouth_to_ear_ns: 4_000_000_000,
            ..Quality::default()
        };
        let silent = Quality { expected: 50, ..Quality::default() };
        let mos =
            |client: &Quality, server: &Quality| value(Metric::AppMos, Some(Codec::G711), client, server);
        // G.107 with its default values and 80 ms of delay: R about 91, MOS about 4.4.
        assert!((mos(&perfect, &perfect) - 4.38).abs() < 0.05, "{}", mos(&perfect, &perfect));
        assert!(mos(&perfect, &silent) < 1.1);
        assert!(mos(&Quality::default(), &Quality::default()).is_nan());
        assert!(value(Metric::AppLoss, None, &Quality::default(), &Quality::default()).is_nan());
    }
}
