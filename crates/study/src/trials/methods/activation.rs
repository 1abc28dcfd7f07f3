//! ITU-T Y.1564: service activation test, of each service alone and of all together.

use super::{describe, pauses, void};
use crate::trials::session::{TestAbort, TestSession};
use netstage_core::measure::trial::{CountedLayer, FaultTolerance, FrameSize, OfferedLoad, Trial};
use netstage_core::measure::y1564::{
    Activation, ActivationConfig, ActivationStep, ServiceUnderTest, StepResult, ViolatedCriterion,
};
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;

/// Minimum duration of the performance test according to the recommendation.
const MIN_PERFORMANCE: Duration = ActivationConfig::DEFAULT.performance;

pub fn run(
    session: &mut TestSession,
    services: &[ServiceUnderTest],
    step: Duration,
    performance: Duration,
) -> Result<(), TestAbort> {
    let overhead = session.line_overhead();
    let framed = |service: &ServiceUnderTest| ServiceUnderTest {
        frame: FrameSize { line: service.frame.ip + overhead, ..service.frame },
        ..service.clone()
    };
    let services: Vec<ServiceUnderTest> = services.iter().map(framed).collect();
    let (pauses, patience) = (pauses(session), FaultTolerance::default());
    let mut machine =
        Activation::new(services.clone(), ActivationConfig { step, performance, pauses, patience });
    while let Some(run) = machine.proposal() {
        let part = |(index, trial): &(usize, Trial)| (services[*index].name.clone(), *trial);
        let parts: Vec<(String, Trial)> = run.trials.iter().map(part).collect();
        let results = session.perform_together(&parts)?;
        machine.record(&results);
    }
    if performance < MIN_PERFORMANCE {
        let (used, required) = (performance.as_secs_f64(), MIN_PERFORMANCE.as_secs_f64());
        session.add_deviation(format!("all services together for {used} s instead of {required} s"));
    }
    for (index, service) in services.iter().enumerate() {
        let of_service = machine.results().iter().filter(|result| result.service == index);
        add_findings(session, service, &of_service.collect::<Vec<_>>());
    }
    if let Some((fault, service)) =
        machine.results().iter().find_map(|step| Some((step.fault?, step.service)))
    {
        let subject = session.test.part(&services[service].name);
        return Err(void(session, &subject, &[fault]));
    }
    if !machine.results().iter().any(|result| result.step == ActivationStep::Performance) {
        let name = &session.test.name;
        session.add_verdict(format!(
            "{name}: services were not tested together, because not every service passed alone"
        ));
    }
    Ok(())
}

/// Adds the findings and verdicts of a service. The values are those of the last step up to the committed rate.
fn add_findings(session: &mut TestSession, service: &ServiceUnderTest, results: &[&StepResult]) {
    let subject = session.test.part(&service.name);
    let is_committed = |result: &&&StepResult| {
        matches!(result.step, ActivationStep::Committed(_) | ActivationStep::Performance)
    };
    let Some(last) = results.iter().rev().find(is_committed) else { return };
    let ip = |rate: f64| {
        let load = OfferedLoad(rate / (8.0 * f64::from(service.frame.link)));
        load.bits_per_second(CountedLayer::Ip, service.frame)
    };
    session.add_value(Metric::TestDelivered, &subject, ip(last.received));
    session.add_value(Metric::TestLossRatio, &subject, last.loss_ratio);
    let seconds = |time: Option<Duration>| time.map_or(f64::NAN, Duration::as_secs_f64);
    session.add_value(Metric::TestLatency, &subject, seconds(last.delay));
    session.add_value(Metric::TestDelayVariation, &subject, seconds(last.delay_variation));
    let accepted = last.step == ActivationStep::Performance && results.iter().all(|result| result.passed());
    session.add_value(Metric::TestAccepted, &subject, f64::from(u8::from(accepted)));
    for result in results {
        let at = match result.step {
            ActivationStep::Committed(percent) => format!("at {percent} % of CIR"),
            ActivationStep::Excess => "at CIR + EIR".into(),
            ActivationStep::Policing => "above CIR + EIR".into(),
            ActivationStep::Performance => "together with the others".into(),
        };
        if let Some(broken) = result.broken {
            session.add_verdict(format!("{subject}: {at}, {}", describe_violation(broken, result)));
        }
        if let Some(fault) = &result.fault {
            session.add_verdict(format!("{subject}: {at}, {}", describe(fault)));
        }
    }
}

fn describe_violation(broken: ViolatedCriterion, result: &StepResult) -> String {
    let time = |time: Option<Duration>| time.map_or("–".into(), |time| crate::format::duration(time.0));
    let rate = |rate: f64| crate::format::quantity(rate, "bit/s");
    match broken {
        ViolatedCriterion::Loss => {
            format!("{} % of frames were lost", crate::format::number(result.loss_ratio * 100.0))
        }
        ViolatedCriterion::Delay => format!("the mean delay was {}", time(result.delay)),
        ViolatedCriterion::DelayVariation => {
            format!("the delay variation was {}", time(result.delay_variation))
        }
        ViolatedCriterion::Committed => format!("only {} was received", rate(result.received)),
        ViolatedCriterion::NotPoliced => {
            format!("{} was received: excess traffic is not policed", rate(result.received))
        }
        ViolatedCriterion::DelayUnknown => "the delay was not measured".into(),
    }
}
