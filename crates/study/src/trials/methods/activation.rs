//! ITU-T Y.1564: whether services keep what was agreed, each alone and all together.

use super::{describe, pauses};
use crate::trials::session::{Ended, Session};
use netstage_core::measure::trial::{FrameSize, Layer, Load, Patience, Trial};
use netstage_core::measure::y1564::{Activation, ActivationConfig, Broken, Service, Step, StepResult};
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;

/// The shortest performance test the recommendation has.
const SHORTEST: Duration = ActivationConfig::DEFAULT.performance;

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
    if performance < SHORTEST {
        let (used, asked) = (performance.as_secs_f64(), SHORTEST.as_secs_f64());
        session.deviates(format!("all services together for {used} s instead of {asked} s"));
    }
    for (index, service) in services.iter().enumerate() {
        let of_service = machine.results().iter().filter(|result| result.service == index);
        tell(session, service, &of_service.collect::<Vec<_>>());
    }
    if !machine.results().iter().any(|result| result.step == Step::Performance) {
        let name = &session.test.name;
        session.say(format!("{name}: not tried all together, since not every service passed alone"));
    }
    Ok(())
}

/// What was found of a service: the figures are those of its last step up to the committed rate.
fn tell(session: &mut Session, service: &Service, results: &[&StepResult]) {
    let subject = session.test.part(&service.name);
    let agreed = |result: &&&StepResult| matches!(result.step, Step::Committed(_) | Step::Performance);
    let Some(last) = results.iter().rev().find(agreed) else { return };
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
            session.say(format!("{subject}: {at}, {}", words(broken, result)));
        }
        if let Some(fault) = &result.fault {
            session.say(format!("{subject}: {at}, {}", describe(fault)));
        }
    }
}

fn words(broken: Broken, result: &StepResult) -> String {
    let time = |time: Option<Duration>| time.map_or("–".into(), |time| crate::format::duration(time.0));
    let rate = |rate: f64| crate::format::quantity(rate, "bit/s");
    match broken {
        Broken::Loss => format!("{} % of frames were lost", crate::format::number(result.loss_ratio * 100.0)),
        Broken::Delay => format!("the mean delay was {}", time(result.delay)),
        Broken::DelayVariation => format!("the delay varied by {}", time(result.delay_variation)),
        Broken::Committed => format!("only {} came through", rate(result.received)),
        Broken::NotPoliced => format!("{} came through: nobody polices", rate(result.received)),
        Broken::DelayUnknown => "the delay was not measured".into(),
    }
}
