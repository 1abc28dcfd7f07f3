//! The window with which TCP carries most, and what the search for it found of the path.

use crate::trials::derive;
use crate::trials::session::{Ended, Session};
use crate::tuned::{self, Tuned};
use netstage_core::measure::tune::{Config, Sample, Tune};
use netstage_core::tcp;
use netstage_core::time::Duration;
use netstage_scenario::plan::{self, Transport};

pub fn run(session: &mut Session, asked: &plan::Tune) -> Result<(), Ended> {
    let Transport::Tcp(config) = session.test.probe.transport.clone() else {
        unreachable!("windows are TCP's");
    };
    let algorithms =
        if asked.algorithms.is_empty() { vec![config.algorithm] } else { asked.algorithms.clone() };
    let controls: Vec<String> = algorithms.iter().map(|algorithm| algorithm.name().to_owned()).collect();
    let search = Config {
        controls: algorithms.len(),
        segment: config.max_segment_size,
        largest: asked.largest,
        delay_bound: asked.delay_bound,
        tolerance: asked.tolerance,
        trials: asked.trials,
    };
    let mut tune = Tune::new(search.clone(), session.order());
    while let Some(setting) = tune.next() {
        let config = tcp::Config {
            algorithm: algorithms[setting.control],
            window: setting.window.unwrap_or(asked.largest),
            ..config.clone()
        };
        let subject = session.test.part(&tuned::name(&controls, setting));
        let derived = derive::transfer(session.plan, session.test, &config, None, asked.settle + asked.trial);
        let ran = session.transfer(&subject, &derived, (None, asked.settle))?;
        let trip = |trip: Option<Duration>| trip.unwrap_or(Duration::ZERO);
        tune.record(Sample {
            goodput: ran.bytes as f64 * 8.0 / ran.duration.as_secs_f64(),
            least_round_trip: trip(ran.least_round_trip),
            mean_round_trip: trip(ran.mean_round_trip),
            longest_round_trip: trip(ran.longest_round_trip),
            retransmissions: ran.retransmissions,
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
