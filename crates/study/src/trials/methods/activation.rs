//! ITU-T Y.1564: service activation test, of each service alone and of all together.

use super::{describe, pauses};
use crate::trials::session::{Ended, Session};
use netstage_core::measure::trial::{FrameSize, Layer, Load, Patience, Trial};
use netstage_core::measure::y1564::{Activation, ActivationConfig, Broken, Service, Step, StepResult};
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;

/// Minimum duration of the performance test according to the recommendation.
const MIN_PERFORMANCE: Duration = ActivationConfig::DEFAULT.performance;

pub fn run(
    session: &mut Session,
    services: &[Service],
    step: Duration,
    performance: Duration,
) -> Result<(), Ended> {
    let overhead = session.line_overhead();
    let framed = |service: &Service| Service {
        frame: FrameSize { line: service.frame.ip + overhead, ..service.frame },
        ..service.clone()
    };
    let services: Vec<Service> = services.iter().map(framed).collect();
    let (pauses, patience) = (pauses(session), Patience::default());
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
        session.deviates(format!("all services together for {used} s instead of {required} s"));
    }
    for (index, service) in services.iter().enumerate() {
        let of_service = machine.results().iter().filter(|result| result.service == index);
        add_findings(session, service, &of_service.collect::<Vec<_>>());
    }
    if !machine.results().iter().any(|result| result.step == Step::Performance) {
        let name = &session.test.name;
        session.say(format!(
            "{name}: services were not tested together, because not every service passed alone"
        ));
    }
    Ok(())
}

/// Adds the findings and verdicts of a service. The values are those of the last step up to the committed rate.
fn add_findings(session: &mut Session, service: &Service, results: &[&StepResult]) {
    let subject = session.test.part(&service.name);
    let is_committed = |result: &&&StepResult| matches!(result.step, Step::Committed(_) | Step::Performance);
    let Some(last) = results.iter().rev().find(is_committed) else { return };
    let ip = |rate: f64| {
        let load = Load(rate / (8.0 * f64::from(service.frame.link)));
        load.bits_per_second(Layer::Ip, service.frame)
    };
    session.find(Metric::TestDelivered, &subject, ip(last.received));
    session.find(Metric::TestLossRatio, &subject, last.loss_ratio);
    let seconds = |time: Option<Duration>| time.map_or(f64::NAN, Duration::as_secs_f64);
    session.find(Metric::TestLatency, &subject, seconds(last.delay));
    session.find(Metric::TestDelayVariation, &subject, seconds(last.delay_variation));
    let accepted = last.step == Step::Performance && results.iter().all(|result| result.passed());
    session.find(Metric::TestAccepted, &subject, f64::from(u8::from(accepted)));
    for result in results {
        let at = match result.step {
            Step::Committed(percent) => format!("at {percent} % of CIR"),
            Step::Excess => "at CIR + EIR".into(),
            Step::Policing => "above CIR + EIR".into(),
            Step::Performance => "together with the others".into(),
        };
        if let Some(broken) = result.broken {
            session.say(format!("{subject}: {at}, {}", describe_violation(broken, result)));
        }
        if let Some(fault) = &result.fault {
            session.say(format!("{subject}: {at}, {}", describe(fault)));
        }
    }
}

fn describe_violation(broken: Broken, result: &StepResult) -> String {
    let time = |time: Option<Duration>| time.map_or("–".into(), |time| crate::format::duration(time.0));
    let rate = |rate: f64| crate::format::quantity(rate, "bit/s");
    match broken {
        Broken::Loss => format!("{} % of frames were lost", crate::format::number(result.loss_ratio * 100.0)),
        Broken::Delay => format!("the mean delay was {}", time(result.delay)),
        Broken::DelayVariation => format!("the delay variation was {}", time(result.delay_variation)),
        Broken::Committed => format!("only {} was received", rate(result.received)),
        Broken::NotPoliced => {
            format!("{} was received: excess traffic is not policed", rate(result.received))
        }
        Broken::DelayUnknown => "the delay was not measured".into(),
    }
}
