//! Search for the TCP window with the highest throughput, and the properties of the path found by it.

use crate::trials::derive;
use crate::trials::session::{TestAbort, TestSession};
use crate::tuned::{self, TuneReport};
use netstage_core::measure::tune::{TransferSample, WindowSearch, WindowSearchConfig};
use netstage_core::tcp;
use netstage_core::time::Duration;
use netstage_scenario::plan::{self, FlowTransport};

pub fn run(session: &mut TestSession, test: &plan::TuneConfig) -> Result<(), TestAbort> {
    let FlowTransport::Tcp(config) = session.test.probe.transport.clone() else {
        unreachable!("a window search uses TCP");
    };
    let algorithms =
        if test.algorithms.is_empty() { vec![config.algorithm] } else { test.algorithms.clone() };
    let controls: Vec<String> = algorithms.iter().map(|algorithm| algorithm.name().to_owned()).collect();
    let search = WindowSearchConfig {
        controls: algorithms.len(),
        segment: config.max_segment_size,
        max_window: test.max_window,
        delay_bound: test.delay_bound,
        tolerance: test.tolerance,
        trials: test.trials,
    };
    let mut tune = WindowSearch::new(search.clone(), session.order());
    while let Some(setting) = tune.next() {
        let config = tcp::TcpConfig {
            algorithm: algorithms[setting.control],
            window: setting.window.unwrap_or(test.max_window),
            ..config.clone()
        };
        let subject = session.test.part(&tuned::name(&controls, setting));
        let derived = derive::transfer(session.plan, session.test, &config, None, test.settle + test.trial);
        let result = session.transfer(&subject, &derived, (None, test.settle))?;
        let or_zero = |time: Option<Duration>| time.unwrap_or(Duration::ZERO);
        tune.record(TransferSample {
            goodput: result.bytes as f64 * 8.0 / result.duration.as_secs_f64(),
            min_round_trip: or_zero(result.min_round_trip),
            mean_round_trip: or_zero(result.mean_round_trip),
            max_round_trip: or_zero(result.max_round_trip),
            retransmissions: result.retransmissions,
        });
    }
    if let Some(found) = tune.result() {
        let name = session.test.name.clone();
        let tuned = TuneReport { test: &name, config: &search, controls: &controls, found: &found };
        tuned.findings().into_iter().for_each(|finding| session.add_finding(finding));
        session.add_verdict(format!("{name}: {}", tuned.verdict()));
    }
    Ok(())
}
