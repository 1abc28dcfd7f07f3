//! Search for the TCP window with the highest throughput, and the properties of the path found by it.

use crate::trials::derive;
use crate::trials::session::{Ended, Session};
use crate::tuned::{self, Tuned};
use netstage_core::measure::tune::{Config, Sample, Tune};
use netstage_core::tcp;
use netstage_core::time::Duration;
use netstage_scenario::plan::{self, Transport};

pub fn run(session: &mut Session, test: &plan::Tune) -> Result<(), Ended> {
    let Transport::Tcp(config) = session.test.probe.transport.clone() else {
        unreachable!("a window search uses TCP");
    };
    let algorithms =
        if test.algorithms.is_empty() { vec![config.algorithm] } else { test.algorithms.clone() };
    let controls: Vec<String> = algorithms.iter().map(|algorithm| algorithm.name().to_owned()).collect();
    let search = Config {
        controls: algorithms.len(),
        segment: config.max_segment_size,
        largest: test.largest,
        delay_bound: test.delay_bound,
        tolerance: test.tolerance,
        trials: test.trials,
    };
    let mut tune = Tune::new(search.clone(), session.order());
    while let Some(setting) = tune.next() {
        let config = tcp::Config {
            algorithm: algorithms[setting.control],
            window: setting.window.unwrap_or(test.largest),
            ..config.clone()
        };
        let subject = session.test.part(&tuned::name(&controls, setting));
        let derived = derive::transfer(session.plan, session.test, &config, None, test.settle + test.trial);
        let result = session.transfer(&subject, &derived, (None, test.settle))?;
        let or_zero = |time: Option<Duration>| time.unwrap_or(Duration::ZERO);
        tune.record(Sample {
            goodput: result.bytes as f64 * 8.0 / result.duration.as_secs_f64(),
            least_round_trip: or_zero(result.least_round_trip),
            mean_round_trip: or_zero(result.mean_round_trip),
            longest_round_trip: or_zero(result.longest_round_trip),
            retransmissions: result.retransmissions,
        });
    }
    if let Some(found) = tune.result() {
        let name = session.test.name.clone();
        let tuned = Tuned { test: &name, config: &search, controls: &controls, found: &found };
        tuned.findings().into_iter().for_each(|finding| session.keep(finding));
        session.say(format!("{name}: {}", tuned.verdict()));
    }
    Ok(())
}
