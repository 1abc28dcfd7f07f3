//! Partial results of runs, buffered so that a client that connects later receives them from the start.
//!
//! A client holds a [`Cursor`] and receives all newer data at once, so that a slow client needs no buffer of its own.

use netstage_scenario::outcome::{Metric, MetricInfo, RunOutcome, Series};
use netstage_study::RunId;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Maximum number of buffered runs; the results of earlier runs are in the record.
const MAX_RUNS: usize = 8;
/// Maximum number of series sent per run.
const MAX_SERIES: usize = 400;

/// Event of a study's runs.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum RunEvent {
    /// Start of a run's data, from the first bin. Replaces earlier data of the same cell and seed.
    Begin(RunDescription),
    /// Completed bins of a run.
    Bins {
        /// Number of the run, from its `begin` event.
        run: u64,
        /// Index of the first of these bins, from 0.
        from: usize,
        /// Values of the bins for each series of the run; null: no value.
        values: Vec<Vec<Option<f32>>>,
    },
    /// End of a run.
    End {
        /// Number of the run.
        run: u64,
    },
}

/// Description of a run and its series.
#[derive(Clone, Debug, Serialize)]
pub struct RunDescription {
    /// Number of the run, unique within the study.
    run: u64,
    /// Index of the cell.
    cell: usize,
    /// Seed.
    seed: u64,
    /// Width of a bin in seconds.
    interval_s: f64,
    /// Series of the run.
    series: Vec<SeriesDescription>,
    /// Number of series that are not sent.
    left_out: usize,
}

/// Description of a series.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SeriesDescription {
    /// Metric.
    metric: &'static str,
    /// Unit; empty: none.
    unit: &'static str,
    /// Layer of a rate or size; empty: none.
    layer: &'static str,
    /// VPN, flow or link direction; empty: the whole network.
    subject: String,
}

/// Buffered data of a run.
#[derive(Debug)]
struct RunBuffer {
    begun: RunDescription,
    /// Number of completed bins.
    bins: usize,
    /// Values of the bins for each series.
    values: Vec<Vec<f32>>,
    over: bool,
}

impl RunBuffer {
    /// Returns whether these values continue the buffered ones.
    fn is_prefix_of(&self, values: &[Vec<f32>]) -> bool {
        self.values.iter().zip(values).all(|(old, new)| {
            old.iter()
                .zip(new)
                .all(|(old, new)| old.to_bits() == new.to_bits() || old.is_nan() && new.is_nan())
        })
    }
}

/// Buffered runs of a study.
#[derive(Debug, Default)]
pub struct Feed {
    streams: BTreeMap<u64, RunBuffer>,
    next: u64,
}

/// Position of a client: the number of bins sent of each run, and whether its end was sent. The text form, with which a
/// client resumes, is `RUN:BINS` or `RUN:BINS:over`, separated by commas.
#[derive(Debug, Default)]
pub struct Cursor(BTreeMap<u64, (usize, bool)>);

/// Error of a text that is not a [`Cursor`].
#[derive(Debug)]
pub struct InvalidCursor;

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (run, (bins, over))) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{run}:{bins}{}", if *over { ":over" } else { "" })?;
        }
        Ok(())
    }
}

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Cursor, InvalidCursor> {
        let entry = |part: &str| {
            let (position, over) = part.strip_suffix(":over").map_or((part, false), |rest| (rest, true));
            let (run, bins) = position.split_once(':')?;
            Some((run.parse().ok()?, (bins.parse().ok()?, over)))
        };
        let parts = text.split(',').filter(|part| !part.is_empty()).map(entry);
        parts.collect::<Option<_>>().map(Cursor).ok_or(InvalidCursor)
    }
}

impl Feed {
    /// Stores the partial outcome of a run, or the final one if `is_over`.
    pub fn add(&mut self, (cell, seed): RunId, outcome: &RunOutcome, is_over: bool) {
        let (selected, left_out) = selected(outcome);
        let subject = |series: &&Series| {
            let MetricInfo { name: metric, unit, layer, .. } = series.metric.info();
            SeriesDescription { metric, unit, layer, subject: series.subject.clone() }
        };
        let subjects: Vec<SeriesDescription> = selected.iter().map(subject).collect();
        let values: Vec<Vec<f32>> =
            selected.iter().map(|series| series.values.iter().map(|v| *v as f32).collect()).collect();
        let same = |stream: &&mut RunBuffer| (stream.begun.cell, stream.begun.seed) == (cell, seed);
        let current = self.streams.values_mut().rfind(same);
        match current {
            // A restarted run has fewer bins; a final outcome may contain values that were not available before.
            Some(stream)
                if stream.bins <= outcome.bins
                    && stream.begun.series == subjects
                    && (!is_over || stream.is_prefix_of(&values)) =>
            {
                (stream.bins, stream.values, stream.over) = (outcome.bins, values, is_over);
            }
            _ => {
                self.streams.retain(|_, stream| (stream.begun.cell, stream.begun.seed) != (cell, seed));
                let interval_s = outcome.interval.as_secs_f64();
                let run = self.next;
                self.next += 1;
                let begun = RunDescription { run, cell, seed, interval_s, series: subjects, left_out };
                let stream = RunBuffer { begun, bins: outcome.bins, values, over: is_over };
                self.streams.insert(run, stream);
            }
        }
        while self.streams.len() > MAX_RUNS {
            let over = self.streams.iter().find(|(_, stream)| stream.over).map(|(run, _)| *run);
            let first = *self.streams.keys().next().expect("there are more runs than the limit");
            self.streams.remove(&over.unwrap_or(first));
        }
    }

    /// Returns the events after the client's position, and advances the position.
    pub fn events_after(&self, cursor: &mut Cursor) -> Vec<RunEvent> {
        let mut news = Vec::new();
        cursor.0.retain(|run, _| self.streams.contains_key(run));
        for (&run, stream) in &self.streams {
            let (sent, over) = cursor.0.entry(run).or_insert_with(|| {
                news.push(RunEvent::Begin(stream.begun.clone()));
                (0, false)
            });
            if *sent < stream.bins {
                let unsent =
                    |series: &Vec<f32>| series[*sent..].iter().map(|v| v.is_finite().then_some(*v)).collect();
                news.push(RunEvent::Bins {
                    run,
                    from: *sent,
                    values: stream.values.iter().map(unsent).collect(),
                });
                *sent = stream.bins;
            }
            if stream.over && !*over {
                news.push(RunEvent::End { run });
                *over = true;
            }
        }
        news
    }
}

/// Returns the series that the page draws, those of the network and its VPNs before those of flows, and the number of
/// omitted series.
fn selected(outcome: &RunOutcome) -> (Vec<&Series>, usize) {
    let rank = |metric: Metric| {
        use Metric::*;
        Some(match metric {
            FairnessInterVpn | FairnessIntraVpn => 0,
            VpnThroughput | VpnPermitted | VpnWindow | VpnQueue | VpnQueueDrops | VpnLoss | VpnRoundTrip => 1,
            LinkUtilization | LinkQueue | LinkDrops | LinkThroughput => 2,
            FlowThroughput => 3,
            FlowDelay | FlowRoundTrip | FlowWindow => 4,
            FlowCauseLocalDevice
            | FlowCauseEcn
            | FlowCauseFastRetransmit
            | FlowCauseTailLossProbe
            | FlowCauseTimeout => 5,
            _ => return None,
        })
    };
    let ranked = outcome.series.iter().filter_map(|series| Some((rank(series.metric)?, series)));
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    let left_out = ranked.len().saturating_sub(MAX_SERIES);
    (ranked.into_iter().take(MAX_SERIES).map(|(_, series)| series).collect(), left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::time::Duration;

    fn outcome(bins: usize, metrics: &[Metric]) -> RunOutcome {
        let values: Vec<f64> = (0..bins).map(|bin| if bin == 1 { f64::NAN } else { bin as f64 }).collect();
        let series =
            |metric: &Metric| Series { metric: *metric, subject: "a".into(), values: values.clone() };
        RunOutcome {
            interval: Duration::from_millis(100),
            bins,
            series: metrics.iter().map(series).collect(),
            ..RunOutcome::default()
        }
    }

    fn events(feed: &Feed, cursor: &mut Cursor) -> Vec<String> {
        let text = |event: &RunEvent| match event {
            RunEvent::Begin(begun) => format!("begin {} cell {}", begun.run, begun.cell),
            RunEvent::Bins { run, from, values } => format!("{run}: {from}+{}", values[0].len()),
            RunEvent::End { run } => format!("end {run}"),
        };
        feed.events_after(cursor).iter().map(text).collect()
    }

    #[test]
    fn a_client_resumes_from_its_cursor() {
        let mut feed = Feed::default();
        let metrics = [Metric::VpnThroughput];
        feed.add((0, 1), &outcome(2, &metrics), false);
        let mut cursor = Cursor::default();
        assert_eq!(events(&feed, &mut cursor), ["begin 0 cell 0", "0: 0+2"]);
        feed.add((0, 1), &outcome(5, &metrics), true);
        feed.add((1, 1), &outcome(1, &metrics), false);
        let mut resumed: Cursor = cursor.to_string().parse().unwrap();
        assert_eq!(events(&feed, &mut resumed), ["0: 2+3", "end 0", "begin 1 cell 1", "1: 0+1"]);
        assert_eq!(resumed.to_string(), "0:5:over,1:1");
        let mut again: Cursor = resumed.to_string().parse().unwrap();
        assert!(events(&feed, &mut again).is_empty());
        // An invalid position, or one of another feed, is reset.
        assert_eq!(events(&feed, &mut "1:9,7:3".parse().unwrap()), ["begin 0 cell 0", "0: 0+5", "end 0"]);
        for text in ["0", "0:x", "-1:2", "0:1:over:over", ":"] {
            assert!(text.parse::<Cursor>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_client_receives_each_bin_once_and_a_late_client_all() {
        let (mut feed, mut cursor) = (Feed::default(), Cursor::default());
        let metrics = [Metric::VpnThroughput];
        feed.add((0, 1), &outcome(2, &metrics), false);
        assert_eq!(events(&feed, &mut cursor), ["begin 0 cell 0", "0: 0+2"]);
        assert!(events(&feed, &mut cursor).is_empty());
        feed.add((0, 1), &outcome(5, &metrics), true);
        feed.add((1, 1), &outcome(1, &metrics), false);
        assert_eq!(events(&feed, &mut cursor), ["0: 2+3", "end 0", "begin 1 cell 1", "1: 0+1"]);
        let late = events(&feed, &mut Cursor::default());
        assert_eq!(late, ["begin 0 cell 0", "0: 0+5", "end 0", "begin 1 cell 1", "1: 0+1"]);
        let [RunEvent::Begin(_), RunEvent::Bins { values, .. }, ..] =
            &feed.events_after(&mut Cursor::default())[..]
        else {
            panic!("a run starts with its description")
        };
        assert_eq!(values[0][..3], [Some(0.0), None, Some(2.0)]);
    }

    #[test]
    fn a_restarted_run_or_one_with_more_series_is_sent_from_the_start() {
        let (mut feed, mut cursor) = (Feed::default(), Cursor::default());
        feed.add((0, 1), &outcome(5, &[Metric::VpnThroughput]), false);
        events(&feed, &mut cursor);
        feed.add((0, 1), &outcome(1, &[Metric::VpnThroughput]), false);
        assert_eq!(events(&feed, &mut cursor), ["begin 1 cell 0", "1: 0+1"]);
        feed.add((0, 1), &outcome(6, &[Metric::VpnThroughput, Metric::VpnWindow]), false);
        assert_eq!(events(&feed, &mut cursor), ["begin 2 cell 0", "2: 0+6"]);
        let mut last = outcome(6, &[Metric::VpnThroughput, Metric::VpnWindow]);
        last.series[0].values[1] = 3.0;
        feed.add((0, 1), &last, true);
        assert_eq!(events(&feed, &mut cursor), ["begin 3 cell 0", "3: 0+6", "end 3"]);
    }

    #[test]
    fn unfinished_runs_are_kept_at_the_limit() {
        let (mut feed, mut cursor) = (Feed::default(), Cursor::default());
        for cell in 0..20 {
            feed.add((cell, 1), &outcome(1, &[Metric::VpnThroughput]), cell > 0);
        }
        let events = events(&feed, &mut cursor);
        assert!(
            events.contains(&"begin 0 cell 0".to_owned()) && feed.streams.len() == MAX_RUNS,
            "{events:?}"
        );
    }
}
