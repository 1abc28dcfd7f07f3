//! Ethernet service activation by ITU-T Y.1564: whether services keep what was agreed, first
//! each alone at rising rates (configuration test), then all together at their committed
//! rates (performance test).
//!
//! Rates count the information rate: frames without preamble and gap.

use super::trial::{Fault, FrameSize, Layer, Load, Patience, Pauses, Trial, TrialResult};
use crate::quantity::BitRate;
use crate::time::Duration;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// What was agreed for a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Size of its frames.
    pub frame: FrameSize,
    /// Committed information rate (CIR).
    pub committed: BitRate,
    /// Excess information rate (EIR): carried above CIR as far as there is room.
    pub excess: BitRate,
    /// What must hold up to the committed rate.
    pub acceptance: Acceptance,
    /// Whether the network polices the service to CIR + EIR, so that more must not come through.
    pub policed: bool,
}

/// Service acceptance criteria.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Acceptance {
    /// Frame transfer delay (FTD), mean, at most.
    pub delay: Option<Duration>,
    /// Frame delay variation (FDV): 99.9 % quantile above the minimum (Y.1563), at most.
    pub delay_variation: Option<Duration>,
    /// Frame loss ratio (FLR), at most.
    pub loss_ratio: f64,
}

/// How to test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivationConfig {
    /// Length of a step of the configuration test; Y.1564 has 1 s to 60 s.
    pub step: Duration,
    /// Length of the performance test; Y.1564 has 15 min, 2 h and 24 h.
    pub performance: Duration,
    /// Pauses after each step.
    pub pauses: Pauses,
    /// How much to bear from the tester.
    pub patience: Patience,
}

impl ActivationConfig {
    /// Steps of 60 s, a performance test of 15 min.
    pub const DEFAULT: ActivationConfig = ActivationConfig {
        step: Duration::from_secs(60),
        performance: Duration::from_secs(15 * 60),
        pauses: Pauses::RFC2544,
        patience: Patience { tolerance: 0.01, repeats: 2 },
    };
}

/// What a step tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// This percentage of CIR: 25, 50, 75 and 100.
    Committed(u32),
    /// CIR + EIR.
    Excess,
    /// Above CIR + EIR: CIR + 125 % EIR, or 125 % CIR + EIR where EIR is below 20 % of CIR.
    Policing,
    /// CIR of all services together.
    Performance,
}

/// Trials to run at the same time, one per service concerned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What is tried.
    pub step: Step,
    /// Index of the service and its trial.
    pub trials: Vec<(usize, Trial)>,
}

/// Whether a service kept to what was agreed in a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepResult {
    /// Index of the service.
    pub service: usize,
    /// What was tried.
    pub step: Step,
    /// Rate offered, bits per second.
    pub offered: f64,
    /// Rate received, bits per second.
    pub received: f64,
    /// Share of frames lost.
    pub loss_ratio: f64,
    /// Mean delay.
    pub delay: Option<Duration>,
    /// 99.9 % quantile of delay above the minimum.
    pub delay_variation: Option<Duration>,
    /// What was not kept; `None` if all was.
    pub broken: Option<Broken>,
    /// The tester fell short: the step says nothing of the service.
    pub fault: Option<Fault>,
}

/// What was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Broken {
    /// Frame loss ratio above the criterion.
    Loss,
    /// Delay above the criterion.
    Delay,
    /// Delay variation above the criterion.
    DelayVariation,
    /// Less than the committed rate came through where more was offered.
    Committed,
    /// More came through than the policer should let.
    NotPoliced,
    /// A criterion on delay, but the delay was not measured.
    DelayUnknown,
}

/// The test: call [`Activation::proposal`] for trials to run together, then
/// [`Activation::record`] with their results in the same order, until `proposal` answers `None`.
///
/// A service that breaks its agreement below CIR is not tried above; the performance test
/// runs if every service passed its configuration test.
#[derive(Clone, Debug)]
pub struct Activation {
    config: ActivationConfig,
    services: Vec<Service>,
    /// The steps of each service in turn, then the performance test.
    plan: Vec<(Step, Vec<usize>)>,
    place: usize,
    repeated: u32,
    results: Vec<StepResult>,
}

impl Activation {
    /// A new test. Panics if a service has no committed rate.
    pub fn new(services: Vec<Service>, config: ActivationConfig) -> Activation {
        assert!(services.iter().all(|service| service.committed.0 > 0), "a service commits to a rate");
        let mut plan = Vec::new();
        for (index, service) in services.iter().enumerate() {
            let mut steps: Vec<Step> = [25, 50, 75, 100].map(Step::Committed).into();
            steps.extend((service.excess.0 > 0).then_some(Step::Excess));
            steps.extend(service.policed.then_some(Step::Policing));
            plan.extend(steps.into_iter().map(|step| (step, alloc::vec![index])));
        }
        plan.push((Step::Performance, (0..services.len()).collect()));
        Activation { config, services, plan, place: 0, repeated: 0, results: Vec::new() }
    }

    /// Trials to run at the same time; the same again until recorded, `None` at the end.
    pub fn proposal(&self) -> Option<Run> {
        let (step, services) = self.plan.get(self.place)?;
        let trials = services.iter().map(|&index| (index, self.trial(index, *step))).collect();
        Some(Run { step: *step, trials })
    }

    fn trial(&self, index: usize, step: Step) -> Trial {
        let service = &self.services[index];
        let length = if step == Step::Performance { self.config.performance } else { self.config.step };
        Trial::lasting(
            length,
            Load::of_bits(service.rate(step), Layer::Link, service.frame),
            service.frame,
            self.config.pauses,
        )
    }

    /// The results of the trials that [`Activation::proposal`] asked for, in its order.
    ///
    /// Panics if there are not as many.
    pub fn record(&mut self, results: &[TrialResult]) {
        let run = self.proposal().expect("results answer a proposal");
        assert_eq!(run.trials.len(), results.len(), "one result per trial");
        let tolerance = self.config.patience.tolerance;
        let judged: Vec<StepResult> = run
            .trials
            .iter()
            .zip(results)
            .map(|((index, trial), result)| {
                let fault = result.fault(trial, tolerance);
                self.services[*index].judge(*index, run.step, trial, result, fault)
            })
            .collect();
        let faulty = judged.iter().any(|result| result.fault.is_some());
        if faulty && self.repeated < self.config.patience.repeats {
            self.repeated += 1;
            return;
        }
        self.repeated = 0;
        let failed = judged.iter().any(|result| !result.passed());
        self.results.extend(judged);
        self.place += 1;
        if failed && run.step != Step::Performance {
            self.give_up(run.trials[0].0);
        }
    }

    /// Drop the steps left for a service, and with it the performance test of all.
    fn give_up(&mut self, service: usize) {
        let mut left = self.plan.split_off(self.place);
        left.retain(|(step, services)| *step != Step::Performance && services[0] != service);
        self.plan.extend(left);
    }

    /// What was found so far, in the order it was tried.
    pub fn results(&self) -> &[StepResult] {
        &self.results
    }

    /// Whether the services are accepted: every step passed and the performance test was run.
    /// `None` until the test has ended.
    pub fn accepted(&self) -> Option<bool> {
        let ended = self.place >= self.plan.len();
        let performed = self.results.iter().any(|result| result.step == Step::Performance);
        ended.then(|| performed && self.results.iter().all(StepResult::passed))
    }
}

impl Service {
    fn rate(&self, step: Step) -> BitRate {
        let (cir, eir) = (self.committed.0, self.excess.0);
        BitRate(match step {
            Step::Committed(percent) => cir * u64::from(percent) / 100,
            Step::Performance => cir,
            Step::Excess => cir + eir,
            Step::Policing if eir * 5 >= cir => cir + eir * 5 / 4,
            Step::Policing => cir * 5 / 4 + eir,
        })
    }

    fn judge(
        &self,
        service: usize,
        step: Step,
        trial: &Trial,
        result: &TrialResult,
        fault: Option<Fault>,
    ) -> StepResult {
        let bits = |load: Load| load.bits_per_second(Layer::Link, trial.frame);
        let mut judged = StepResult {
            service,
            step,
            offered: bits(result.offered()),
            received: bits(result.delivered()),
            loss_ratio: result.loss_ratio(),
            delay: result.delays.map(|delays| delays.mean),
            delay_variation: result.delays.map(|delays| delays.p999 - delays.minimum),
            broken: None,
            fault,
        };
        judged.broken = self.broken(&judged);
        judged
    }

    fn broken(&self, result: &StepResult) -> Option<Broken> {
        let Acceptance { delay, delay_variation, loss_ratio } = self.acceptance;
        let committed = self.committed.as_f64() * (1.0 - loss_ratio);
        match result.step {
            Step::Excess | Step::Policing => {
                // Rates are judged to 1 %: a policer's bucket lets a burst more through.
                let allowed = 1.01 * (self.committed.as_f64() + self.excess.as_f64());
                if result.received < 0.99 * committed {
                    return Some(Broken::Committed);
                }
                (result.step == Step::Policing && result.received > allowed).then_some(Broken::NotPoliced)
            }
            Step::Committed(_) | Step::Performance => {
                let over = |measured: Option<Duration>, limit: Option<Duration>| {
                    limit.is_some_and(|limit| measured.is_some_and(|measured| measured > limit))
                };
                let unknown = (delay.is_some() || delay_variation.is_some()) && result.delay.is_none();
                [
                    (result.loss_ratio > loss_ratio, Broken::Loss),
                    (over(result.delay, delay), Broken::Delay),
                    (over(result.delay_variation, delay_variation), Broken::DelayVariation),
                    (unknown, Broken::DelayUnknown),
                ]
                .into_iter()
                .find_map(|(broken, what)| broken.then_some(what))
            }
        }
    }
}

impl StepResult {
    /// Whether the service kept to what was agreed, and the tester to what it was asked.
    pub fn passed(&self) -> bool {
        self.broken.is_none() && self.fault.is_none()
    }
}
