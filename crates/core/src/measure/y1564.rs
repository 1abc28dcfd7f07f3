//! Ethernet service activation by ITU-T Y.1564: tests whether services meet their agreement, first each alone
//! at rising rates (configuration test), then all together at their committed rates (performance test).
//!
//! All rates are information rates: they count frames without preamble and gap.

use super::trial::{
    CountedLayer, FaultTolerance, FrameSize, OfferedLoad, Pauses, TesterFault, Trial, TrialResult,
};
use crate::quantity::BitRate;
use crate::time::Duration;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Agreed properties of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceUnderTest {
    /// Name of the service.
    pub name: String,
    /// Frame size.
    pub frame: FrameSize,
    /// Committed information rate (CIR).
    pub committed: BitRate,
    /// Excess information rate (EIR), carried above CIR when there is capacity.
    pub excess: BitRate,
    /// Criteria that apply up to the committed rate.
    pub acceptance: Acceptance,
    /// Policing of the service to CIR + EIR by the network; if true, traffic above that rate must be dropped.
    pub policed: bool,
}

/// Service acceptance criteria.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Acceptance {
    /// Maximum mean frame transfer delay (FTD).
    pub delay: Option<Duration>,
    /// Maximum frame delay variation (FDV): 99.9 % quantile above the minimum (Y.1563).
    pub delay_variation: Option<Duration>,
    /// Maximum frame loss ratio (FLR).
    pub loss_ratio: f64,
}

/// Durations of the test and limits on tester faults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivationConfig {
    /// Duration of a step of the configuration test; Y.1564 specifies 1 s to 60 s.
    pub step: Duration,
    /// Duration of the performance test; Y.1564 specifies 15 min, 2 h and 24 h.
    pub performance: Duration,
    /// Pauses after each step.
    pub pauses: Pauses,
    /// Handling of tester faults.
    pub patience: FaultTolerance,
}

impl ActivationConfig {
    /// Steps of 60 s and a performance test of 15 min.
    pub const DEFAULT: ActivationConfig = ActivationConfig {
        step: Duration::from_secs(60),
        performance: Duration::from_secs(15 * 60),
        pauses: Pauses::RFC2544,
        patience: FaultTolerance { tolerance: 0.01, repeats: 2 },
    };
}

/// Rate offered in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActivationStep {
    /// Percentage of CIR: 25, 50, 75 or 100.
    Committed(u32),
    /// CIR + EIR.
    Excess,
    /// Above CIR + EIR: CIR + 125 % EIR, or 125 % CIR + EIR where EIR is below 20 % of CIR.
    Policing,
    /// CIR of every service at the same time.
    Performance,
}

/// Trials to run concurrently, one per service of the step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivationRun {
    /// Step of the test.
    pub step: ActivationStep,
    /// Service index and trial.
    pub trials: Vec<(usize, Trial)>,
}

/// Result of one step for one service.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepResult {
    /// Index of the service in the test's list.
    pub service: usize,
    /// Step of the test.
    pub step: ActivationStep,
    /// Offered rate, bits per second.
    pub offered: f64,
    /// Received rate, bits per second.
    pub received: f64,
    /// Frame loss ratio, 0 to 1.
    pub loss_ratio: f64,
    /// Mean delay.
    pub delay: Option<Duration>,
    /// 99.9 % quantile of the delay above the minimum.
    pub delay_variation: Option<Duration>,
    /// Criterion that was violated; `None` if all were met.
    pub broken: Option<ViolatedCriterion>,
    /// Tester fault that makes the step inconclusive for the service.
    pub fault: Option<TesterFault>,
}

/// Violated criterion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ViolatedCriterion {
    /// Frame loss ratio above the criterion.
    Loss,
    /// Delay above the criterion.
    Delay,
    /// Delay variation above the criterion.
    DelayVariation,
    /// Received rate below CIR although more was offered.
    Committed,
    /// Received rate above the rate the policer should pass.
    NotPoliced,
    /// Delay not measured although a delay criterion is set.
    DelayUnknown,
}

/// Service activation test. Call [`Activation::proposal`] for trials to run concurrently, then
/// [`Activation::record`] with their results in the same order, until `proposal` returns `None`.
///
/// A service that fails at or below CIR is not tested above it. The performance test runs only if every
/// service passed its configuration test.
#[derive(Clone, Debug)]
pub struct Activation {
    config: ActivationConfig,
    services: Vec<ServiceUnderTest>,
    /// Steps of each service in turn, then the performance test.
    plan: Vec<(ActivationStep, Vec<usize>)>,
    position: usize,
    repeated: u32,
    results: Vec<StepResult>,
}

impl Activation {
    /// Creates a test. Panics if a service has no committed rate.
    pub fn new(services: Vec<ServiceUnderTest>, config: ActivationConfig) -> Activation {
        assert!(
            services.iter().all(|service| service.committed.0 > 0),
            "every service needs a committed rate"
        );
        let mut plan = Vec::new();
        for (index, service) in services.iter().enumerate() {
            let mut steps: Vec<ActivationStep> = [25, 50, 75, 100].map(ActivationStep::Committed).into();
            steps.extend((service.excess.0 > 0).then_some(ActivationStep::Excess));
            steps.extend(service.policed.then_some(ActivationStep::Policing));
            plan.extend(steps.into_iter().map(|step| (step, alloc::vec![index])));
        }
        plan.push((ActivationStep::Performance, (0..services.len()).collect()));
        Activation { config, services, plan, position: 0, repeated: 0, results: Vec::new() }
    }

    /// Returns the trials to run concurrently, unchanged until their results are recorded; `None` at the end.
    pub fn proposal(&self) -> Option<ActivationRun> {
        let (step, services) = self.plan.get(self.position)?;
        let trials = services.iter().map(|&index| (index, self.trial(index, *step))).collect();
        Some(ActivationRun { step: *step, trials })
    }

    fn trial(&self, index: usize, step: ActivationStep) -> Trial {
        let service = &self.services[index];
        let length =
            if step == ActivationStep::Performance { self.config.performance } else { self.config.step };
        Trial::with_duration(
            length,
            OfferedLoad::from_bit_rate(service.rate(step), CountedLayer::Link, service.frame),
            service.frame,
            self.config.pauses,
        )
    }

    /// Records the results of the trials proposed by [`Activation::proposal`], in the same order.
    ///
    /// Panics if the number of results differs from the number of trials.
    pub fn record(&mut self, results: &[TrialResult]) {
        let run = self.proposal().expect("results are recorded after a proposal");
        assert_eq!(run.trials.len(), results.len(), "one result per trial");
        let tolerance = self.config.patience.tolerance;
        let judged: Vec<StepResult> = run
            .trials
            .iter()
            .zip(results)
            .map(|((index, trial), result)| {
                let service = &self.services[*index];
                let fault = match service.acceptance {
                    Acceptance { delay: None, delay_variation: None, .. } => result.fault(trial, tolerance),
                    _ => result.fault_of_delays(trial, tolerance),
                };
                service.judge(*index, run.step, trial, result, fault)
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
        self.position += 1;
        if failed && run.step != ActivationStep::Performance {
            self.drop_remaining_steps(run.trials[0].0);
        }
    }

    /// Drops the remaining steps of a service, and with them the performance test of all services.
    fn drop_remaining_steps(&mut self, service: usize) {
        let mut remaining = self.plan.split_off(self.position);
        remaining.retain(|(step, services)| *step != ActivationStep::Performance && services[0] != service);
        self.plan.extend(remaining);
    }

    /// Returns the results so far, in the order of the steps.
    pub fn results(&self) -> &[StepResult] {
        &self.results
    }

    /// Returns whether the services are accepted: every step passed and the performance test was run. `None`
    /// until the test has ended.
    pub fn accepted(&self) -> Option<bool> {
        let ended = self.position >= self.plan.len();
        let performed = self.results.iter().any(|result| result.step == ActivationStep::Performance);
        ended.then(|| performed && self.results.iter().all(StepResult::passed))
    }
}

impl ServiceUnderTest {
    fn rate(&self, step: ActivationStep) -> BitRate {
        let (cir, eir) = (self.committed.0, self.excess.0);
        BitRate(match step {
            ActivationStep::Committed(percent) => cir * u64::from(percent) / 100,
            ActivationStep::Performance => cir,
            ActivationStep::Excess => cir + eir,
            ActivationStep::Policing if eir * 5 >= cir => cir + eir * 5 / 4,
            ActivationStep::Policing => cir * 5 / 4 + eir,
        })
    }

    fn judge(
        &self,
        service: usize,
        step: ActivationStep,
        trial: &Trial,
        result: &TrialResult,
        fault: Option<TesterFault>,
    ) -> StepResult {
        let bits = |load: OfferedLoad| load.bits_per_second(CountedLayer::Link, trial.frame);
        let mut judged = StepResult {
            service,
            step,
            offered: bits(result.offered()),
            received: bits(result.delivered()),
            loss_ratio: result.loss_ratio(),
            delay: result.delays.map(|delays| delays.mean),
            delay_variation: result.delays.map(|delays| delays.variation()),
            broken: None,
            fault,
        };
        judged.broken = self.broken(&judged);
        judged
    }

    fn broken(&self, result: &StepResult) -> Option<ViolatedCriterion> {
        let Acceptance { delay, delay_variation, loss_ratio } = self.acceptance;
        let committed = self.committed.as_f64() * (1.0 - loss_ratio);
        match result.step {
            ActivationStep::Excess | ActivationStep::Policing => {
                // Rates are compared with a tolerance of 1 %, because a policer's bucket lets a burst
                // through.
                let allowed = 1.01 * (self.committed.as_f64() + self.excess.as_f64());
                if result.received < 0.99 * committed {
                    return Some(ViolatedCriterion::Committed);
                }
                (result.step == ActivationStep::Policing && result.received > allowed)
                    .then_some(ViolatedCriterion::NotPoliced)
            }
            ActivationStep::Committed(_) | ActivationStep::Performance => {
                let over = |measured: Option<Duration>, limit: Option<Duration>| {
                    limit.is_some_and(|limit| measured.is_some_and(|measured| measured > limit))
                };
                let unknown = (delay.is_some() || delay_variation.is_some()) && result.delay.is_none();
                [
                    (result.loss_ratio > loss_ratio, ViolatedCriterion::Loss),
                    (over(result.delay, delay), ViolatedCriterion::Delay),
                    (over(result.delay_variation, delay_variation), ViolatedCriterion::DelayVariation),
                    (unknown, ViolatedCriterion::DelayUnknown),
                ]
                .into_iter()
                .find_map(|(violated, criterion)| violated.then_some(criterion))
            }
        }
    }
}

impl StepResult {
    /// Returns whether the service met every criterion and the tester had no fault.
    pub fn passed(&self) -> bool {
        self.broken.is_none() && self.fault.is_none()
    }
}
