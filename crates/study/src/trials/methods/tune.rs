//! The window with which TCP carries most, and what the search for it found of the path.

use crate::format::quantity;
use crate::trials::derive;
use crate::trials::session::{Ended, Session};
use netstage_core::measure::tune::{Config, Found, Sample, Setting, Tune};
use netstage_core::tcp;
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;
use netstage_scenario::plan::{self, Transport};

pub fn run(session: &mut Session, asked: &plan::Tune) -> Result<(), Ended> {
    let Transport::Tcp(config) = session.test.probe.transport.clone() else {
        unreachable!("windows are TCP's");
    };
    let algorithms =
        if asked.algorithms.is_empty() { vec![config.algorithm] } else { asked.algorithms.clone() };
    let mut search = Tune::new(
        Config {
            controls: algorithms.len(),
            segment: config.max_segment_size,
            largest: asked.largest,
            delay_bound: asked.delay_bound,
            tolerance: asked.tolerance,
            trials: asked.trials,
        },
        session.order(),
    );
    while let Some(setting) = search.next() {
        let config = tcp::Config {
            algorithm: algorithms[setting.control],
            window: setting.window.unwrap_or(asked.largest),
            ..config.clone()
        };
        let subject = session.test.part(&name(&algorithms, setting));
        let derived = derive::transfer(session.plan, session.test, &config, None, asked.settle + asked.trial);
        let ran = session.transfer(&subject, &derived, (None, asked.settle))?;
        let trip = |trip: Option<Duration>| trip.unwrap_or(Duration::ZERO);
        search.record(Sample {
            goodput: ran.bytes as f64 * 8.0 / ran.duration.as_secs_f64(),
            least_round_trip: trip(ran.least_round_trip),
            mean_round_trip: trip(ran.mean_round_trip),
            longest_round_trip: trip(ran.longest_round_trip),
            retransmissions: ran.retransmissions,
        });
    }
    if let Some(found) = search.result() {
        tell(session, &found, &algorithms, asked);
    }
    Ok(())
}

/// A setting, in words; congestion control only where there are several.
fn name(algorithms: &[tcp::Algorithm], setting: Setting) -> String {
    let window = setting.window.map_or("free".into(), |window| format!("{window} B"));
    match algorithms {
        [_] => window,
        several => format!("{} {window}", several[setting.control].name()),
    }
}

fn tell(session: &mut Session, found: &Found, algorithms: &[tcp::Algorithm], asked: &plan::Tune) {
    let test = session.test.name.clone();
    let path = &found.path;
    session.find(Metric::TestRoundTrip, &test, path.base_round_trip.as_secs_f64());
    session.find(Metric::TestBandwidthDelayProduct, &test, path.bandwidth_delay_product);
    session.find(Metric::TestBuffer, &test, path.buffer);
    session.find(Metric::TestWindowSure, &test, f64::from(u8::from(found.is_sure)));
    session.find(Metric::TestWindowKnee, &test, found.knee.unwrap_or(f64::NAN));
    session.find(Metric::TestWindowLosses, &test, found.losses_from.map_or(f64::NAN, |bytes| bytes as f64));
    let Some(best) = found.best else {
        let bound = quantity(asked.delay_bound.map_or(f64::NAN, Duration::as_secs_f64), "s");
        session.say(format!("{test}: no window keeps the mean round trip within {bound}"));
        return;
    };
    let window = best.window.unwrap_or(asked.largest);
    session.find(Metric::TestWindow, &test, window as f64);
    if let Some(of_best) = found.curve.iter().find(|of| of.setting == best) {
        let (mean, half) = (of_best.goodput.mean, of_best.goodput.half_width);
        session.find_within(Metric::TestTcpThroughput, &test, mean, (mean - half, mean + half));
    }
    if let Some(gain) = found.gain {
        let bounds = (gain.mean - gain.half_width, gain.mean + gain.half_width);
        session.find_within(Metric::TestWindowGain, &test, gain.mean, bounds);
    }
    let share = crate::format::number(asked.tolerance * 100.0);
    session.say(if found.is_sure {
        format!("{test}: {}, and nothing else is better by more than {share} %", name(algorithms, best))
    } else {
        format!(
            "{test}: {} did best, but {} trials were too few to be sure",
            name(algorithms, best),
            asked.trials
        )
    });
}
