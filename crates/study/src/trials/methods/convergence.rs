//! Convergence of routers per network: time until packets follow new routes and labels (RFC 7747, terms of RFC 6412).

use super::{FrameProbe, pauses, void};
use crate::format::quantity;
use crate::trials::session::{AfterEvent, TestAbort, TestSession};
use netstage_core::measure::Histogram;
use netstage_core::measure::trial::{CountedLayer, FaultTolerance, Length, OfferedLoad, Trial};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;

pub fn run(
    session: &mut TestSession,
    probe: &FrameProbe,
    rate: BitRate,
    trial: Duration,
    networks: u32,
) -> Result<(), TestAbort> {
    let load = OfferedLoad::from_bit_rate(rate, CountedLayer::Ip, probe.frame);
    let length = Length::Time(trial);
    let trial = Trial { load, frame: probe.frame, length, pauses: pauses(session), tag_after: None };
    let (patience, subject) = (FaultTolerance::default(), &probe.subject);
    let mut faults = Vec::new();
    let (result, AfterEvent { times, observations }) = loop {
        let (result, after) = session.perform_converging(subject, &trial)?;
        let Some(fault) = result.fault(&trial, patience.tolerance) else {
            break (result, after);
        };
        faults.push(fault);
        if faults.len() as u32 > patience.repeats {
            return Err(void(session, subject, &faults));
        }
    };
    let mut histogram = Histogram::default();
    histogram.add(&times);
    let converged: u64 = times.iter().map(|(_, networks)| networks).sum();
    let left = u64::from(networks).saturating_sub(converged);
    if left > 0 {
        session.add_verdict(format!(
            "{subject}: {left} of {networks} networks had not converged at the end of the trial"
        ));
    }
    for (metric, share) in [
        (Metric::TestConvergenceFirst, 0.0),
        (Metric::TestConvergenceMedian, 0.5),
        (Metric::TestConvergence99, 0.99),
        (Metric::TestConvergence, 1.0),
    ] {
        // Networks that have not converged count as later than all others.
        let reached = share * f64::from(networks) / converged.max(1) as f64;
        if let Some(time) = histogram.quantile(reached).filter(|_| reached <= 1.0) {
            session.add_value(metric, subject, time as f64 / 1e9);
        }
    }
    session.add_value(Metric::TestLost, subject, result.lost() as f64);
    session.add_value(Metric::TestOutage, subject, result.lost() as f64 / load.0);
    for observation in observations {
        session.add_verdict(format!("{subject}: {observation}"));
    }
    let interval = f64::from(networks) / load.0;
    session.add_verdict(format!(
        "{subject}: resolution {}, the interval between packets to a network",
        quantity(interval, "s")
    ));
    Ok(())
}
