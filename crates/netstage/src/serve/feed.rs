//! What runs find while they go on, kept so that whoever looks later sees it from the start.
//!
//! A watcher holds a [`Cursor`]; what it has not been told yet is told in one piece, however much
//! came in the meantime, so a slow watcher costs nobody anything.

use netstage_scenario::outcome::{Metric, MetricInfo, Outcome, Series};
use netstage_study::Run;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Runs kept; of earlier ones the record tells.
const MOST_RUNS: usize = 8;
/// Series told of a run.
const MOST_SERIES: usize = 400;

/// What is told of runs, beside how far the study is.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Told {
    /// A run is told of from here on, from its first bin. One told of before begins anew.
    Begin(Begun),
    /// Bins have ended.
    Bins {
        /// Number of the run, as `begin` told it.
        run: u64,
        /// The first of these bins, from 0.
        from: usize,
        /// For each series of the run, a value for each bin; null where there is none.
        values: Vec<Vec<Option<f32>>>,
    },
    /// Nothing more comes of a run.
    End {
        /// Number of the run.
        run: u64,
    },
}

/// A run whose bins are told.
#[derive(Clone, Debug, Serialize)]
pub struct Begun {
    /// Its number, which no other run of this study has.
    run: u64,
    /// Index of its cell.
    cell: usize,
    /// Its seed.
    seed: u64,
    /// Width of a bin, seconds.
    interval_s: f64,
    /// What its bins hold values of.
    series: Vec<Subject>,
    /// Further series that are not told.
    left_out: usize,
}

/// What a series is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Subject {
    /// The metric.
    metric: &'static str,
    /// Its unit; empty where it has none.
    unit: &'static str,
    /// Layer a rate or size counts; empty where it has none.
    layer: &'static str,
    /// A VPN, flow or link's direction; empty for the whole network.
    subject: String,
}

/// A run as told so far.
#[derive(Debug)]
struct Stream {
    begun: Begun,
    /// Bins that have ended.
    bins: usize,
    /// A value for each bin, series by series.
    values: Vec<Vec<f32>>,
    over: bool,
}

impl Stream {
    /// Whether these values go on from where the stream is.
    fn is_begin_of(&self, values: &[Vec<f32>]) -> bool {
        self.values.iter().zip(values).all(|(told, now)| {
            told.iter()
                .zip(now)
                .all(|(told, now)| told.to_bits() == now.to_bits() || told.is_nan() && now.is_nan())
        })
    }
}

/// All runs of a study.
#[derive(Debug, Default)]
pub struct Feed {
    streams: BTreeMap<u64, Stream>,
    next: u64,
}

/// What one watcher has been told: bins of each run, and whether it is over. As text, for one who comes back with it,
/// `RUN:BINS` or `RUN:BINS:over`, separated by commas.
#[derive(Debug, Default)]
pub struct Cursor(BTreeMap<u64, (usize, bool)>);

/// A text that is no [`Cursor`].
#[derive(Debug)]
pub struct NoCursor;

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (run, (bins, over))) in self.0.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            write!(f, "{comma}{run}:{bins}{}", if *over { ":over" } else { "" })?;
        }
        Ok(())
    }
}

impl FromStr for Cursor {
    type Err = NoCursor;

    fn from_str(text: &str) -> Result<Cursor, NoCursor> {
        let one = |part: &str| {
            let (told, over) = part.strip_suffix(":over").map_or((part, false), |told| (told, true));
            let (run, bins) = told.split_once(':')?;
            Some((run.parse().ok()?, (bins.parse().ok()?, over)))
        };
        let parts = text.split(',').filter(|part| !part.is_empty()).map(one);
        parts.collect::<Option<_>>().map(Cursor).ok_or(NoCursor)
    }
}

impl Feed {
    /// A run has found this much so far, or, over, this and no more.
    pub fn add(&mut self, (cell, seed): Run, outcome: &Outcome, is_over: bool) {
        let (chosen, left_out) = chosen(outcome);
        let subject = |series: &&Series| {
            let MetricInfo { name: metric, unit, layer, .. } = series.metric.info();
            Subject { metric, unit, layer, subject: series.subject.clone() }
        };
        let subjects: Vec<Subject> = chosen.iter().map(subject).collect();
        let values: Vec<Vec<f32>> =
            chosen.iter().map(|series| series.values.iter().map(|v| *v as f32).collect()).collect();
        let same = |stream: &&mut Stream| (stream.begun.cell, stream.begun.seed) == (cell, seed);
        let current = self.streams.values_mut().rfind(same);
        match current {
            // Begun anew, it has less than before; over, it may have what it could not tell before.
            Some(stream)
                if stream.bins <= outcome.bins
                    && stream.begun.series == subjects
                    && (!is_over || stream.is_begin_of(&values)) =>
            {
                (stream.bins, stream.values, stream.over) = (outcome.bins, values, is_over);
            }
            _ => {
                self.streams.retain(|_, stream| (stream.begun.cell, stream.begun.seed) != (cell, seed));
                let interval_s = outcome.interval.as_secs_f64();
                let run = self.next;
                self.next += 1;
                let begun = Begun { run, cell, seed, interval_s, series: subjects, left_out };
                let stream = Stream { begun, bins: outcome.bins, values, over: is_over };
                self.streams.insert(run, stream);
            }
        }
        while self.streams.len() > MOST_RUNS {
            let over = self.streams.iter().find(|(_, stream)| stream.over).map(|(run, _)| *run);
            let first = *self.streams.keys().next().expect("there are more than none");
            self.streams.remove(&over.unwrap_or(first));
        }
    }

    /// What a watcher has not been told yet.
    pub fn news(&self, cursor: &mut Cursor) -> Vec<Told> {
        let mut news = Vec::new();
        cursor.0.retain(|run, _| self.streams.contains_key(run));
        for (&run, stream) in &self.streams {
            let (told, over) = cursor.0.entry(run).or_insert_with(|| {
                news.push(Told::Begin(stream.begun.clone()));
                (0, false)
            });
            if *told < stream.bins {
                let of =
                    |series: &Vec<f32>| series[*told..].iter().map(|v| v.is_finite().then_some(*v)).collect();
                news.push(Told::Bins { run, from: *told, values: stream.values.iter().map(of).collect() });
                *told = stream.bins;
            }
            if stream.over && !*over {
                news.push(Told::End { run });
                *over = true;
            }
        }
        news
    }
}

/// The series a page draws, those of the network and its VPNs before those of flows.
fn chosen(outcome: &Outcome) -> (Vec<&Series>, usize) {
    let place = |metric: Metric| {
        use Metric::*;
        Some(match metric {
            FairnessInterVpn | FairnessIntraVpn => 0,
            VpnThroughput | VpnWindow | VpnQueue | VpnQueueDrops | VpnLoss | VpnRoundTrip => 1,
            LinkUtilisation | LinkQueue | LinkDrops | LinkThroughput => 2,
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
    let told = outcome.series.iter().filter_map(|series| Some((place(series.metric)?, series)));
    let mut told: Vec<_> = told.collect();
    told.sort_by_key(|(place, _)| *place);
    let left_out = told.len().saturating_sub(MOST_SERIES);
    (told.into_iter().take(MOST_SERIES).map(|(_, series)| series).collect(), left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::time::Duration;

    fn outcome(bins: usize, metrics: &[Metric]) -> Outcome {
        let values: Vec<f64> = (0..bins).map(|bin| if bin == 1 { f64::NAN } else { bin as f64 }).collect();
        let series =
            |metric: &Metric| Series { metric: *metric, subject: "a".into(), values: values.clone() };
        Outcome {
            interval: Duration::from_millis(100),
            bins,
            series: metrics.iter().map(series).collect(),
            ..Outcome::default()
        }
    }

    fn told(feed: &Feed, cursor: &mut Cursor) -> Vec<String> {
        let word = |told: &Told| match told {
            Told::Begin(begun) => format!("begin {} cell {}", begun.run, begun.cell),
            Told::Bins { run, from, values } => format!("{run}: {from}+{}", values[0].len()),
            Told::End { run } => format!("end {run}"),
        };
        feed.news(cursor).iter().map(word).collect()
    }

    #[test]
    fn a_watcher_that_comes_back_is_told_what_is_new() {
        let mut feed = Feed::default();
        let metrics = [Metric::VpnThroughput];
        feed.add((0, 1), &outcome(2, &metrics), false);
        let mut cursor = Cursor::default();
        assert_eq!(told(&feed, &mut cursor), ["begin 0 cell 0", "0: 0+2"]);
        feed.add((0, 1), &outcome(5, &metrics), true);
        feed.add((1, 1), &outcome(1, &metrics), false);
        let mut back: Cursor = cursor.to_string().parse().unwrap();
        assert_eq!(told(&feed, &mut back), ["0: 2+3", "end 0", "begin 1 cell 1", "1: 0+1"]);
        assert_eq!(back.to_string(), "0:5:over,1:1");
        let mut again: Cursor = back.to_string().parse().unwrap();
        assert!(told(&feed, &mut again).is_empty());
        // One of more than there is, or of another feed, is told what there is.
        assert_eq!(told(&feed, &mut "1:9,7:3".parse().unwrap()), ["begin 0 cell 0", "0: 0+5", "end 0"]);
        for text in ["0", "0:x", "-1:2", "0:1:over:over", ":"] {
            assert!(text.parse::<Cursor>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_watcher_is_told_each_bin_once_and_a_late_one_all() {
        let (mut feed, mut cursor) = (Feed::default(), Cursor::default());
        let metrics = [Metric::VpnThroughput];
        feed.add((0, 1), &outcome(2, &metrics), false);
        assert_eq!(told(&feed, &mut cursor), ["begin 0 cell 0", "0: 0+2"]);
        assert!(told(&feed, &mut cursor).is_empty());
        feed.add((0, 1), &outcome(5, &metrics), true);
        feed.add((1, 1), &outcome(1, &metrics), false);
        assert_eq!(told(&feed, &mut cursor), ["0: 2+3", "end 0", "begin 1 cell 1", "1: 0+1"]);
        let late = told(&feed, &mut Cursor::default());
        assert_eq!(late, ["begin 0 cell 0", "0: 0+5", "end 0", "begin 1 cell 1", "1: 0+1"]);
        let [Told::Begin(_), Told::Bins { values, .. }, ..] = &feed.news(&mut Cursor::default())[..] else {
            panic!("a run begins with what it is")
        };
        assert_eq!(values[0][..3], [Some(0.0), None, Some(2.0)]);
    }

    #[test]
    fn what_is_begun_anew_or_has_more_series_is_told_from_the_start() {
        let (mut feed, mut cursor) = (Feed::default(), Cursor::default());
        feed.add((0, 1), &outcome(5, &[Metric::VpnThroughput]), false);
        told(&feed, &mut cursor);
        feed.add((0, 1), &outcome(1, &[Metric::VpnThroughput]), false);
        assert_eq!(told(&feed, &mut cursor), ["begin 1 cell 0", "1: 0+1"]);
        feed.add((0, 1), &outcome(6, &[Metric::VpnThroughput, Metric::VpnWindow]), false);
        assert_eq!(told(&feed, &mut cursor), ["begin 2 cell 0", "2: 0+6"]);
        let mut last = outcome(6, &[Metric::VpnThroughput, Metric::VpnWindow]);
        last.series[0].values[1] = 3.0;
        feed.add((0, 1), &last, true);
        assert_eq!(told(&feed, &mut cursor), ["begin 3 cell 0", "3: 0+6", "end 3"]);
    }

    #[test]
    fn few_runs_are_kept_and_those_that_go_on_longest() {
        let (mut feed, mut cursor) = (Feed::default(), Cursor::default());
        for cell in 0..20 {
            feed.add((cell, 1), &outcome(1, &[Metric::VpnThroughput]), cell > 0);
        }
        let told = told(&feed, &mut cursor);
        assert!(told.contains(&"begin 0 cell 0".to_owned()) && feed.streams.len() == MOST_RUNS, "{told:?}");
    }
}
