//! Test in progress: performs the trials proposed by its searches and collects the findings.

use super::outcome::{DirectionResults, TransferResult};
use super::{TrialCallbacks, derive, outcome};
use crate::PlanRunner;
use crate::RunFailure;
use netstage_core::measure::lateness::MAX_SHARE;
use netstage_core::measure::trial::{FaultTolerance, TesterFault, Trial, TrialResult, TrialSearch};
use netstage_core::measure::{FaultTime, Histogram};
use netstage_core::quantity::BitRate;
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_scenario::outcome::finding::{Finding, TestOutcome, TrialEntry};
use netstage_scenario::outcome::{Metric, RunOutcome};
use netstage_scenario::plan::{Method, Plan, TestPlan};

/// Minimum attempts of a trial, so that one void trial among hundreds does not void the test.
pub const MIN_ATTEMPTS: u32 = 3;

/// Reason for the early end of a test.
#[derive(Debug)]
pub enum TestAbort {
    /// Failure or interruption of the stage.
    Stopped(RunFailure),
    /// Reason for which the stage could not perform a trial.
    Void(String),
}

/// Consequences of the event of a trial.
#[derive(Debug)]
pub struct AfterEvent {
    /// Convergence times in nanoseconds, each with its number of networks.
    pub times: Vec<(u64, u64)>,
    pub observations: Vec<String>,
}

/// Test in progress.
pub struct TestSession<'a> {
    /// Plan that contains the test.
    pub plan: &'a Plan,
    /// Test.
    pub test: &'a TestPlan,
    runner: &'a PlanRunner<'a>,
    callbacks: &'a TrialCallbacks<'a>,
    /// Maximum attempts of a trial.
    attempts: u32,
    /// Source of a separate seed for each trial.
    seeds: RandomStream,
    /// Delays of all packets since the last query.
    travel_times: Histogram,
    /// Maximum by which these delays may be too long.
    delay_error: Duration,
    /// Maximum rate that the policy of the sender's host permits, from the last trial.
    sender_limit: Option<BitRate>,
    /// Wrong bits in payloads since the last query.
    bit_errors: u64,
    /// Results of the last valid trial in each direction.
    ways: DirectionResults,
    /// Reasons of void trials, by the fault of the tester.
    reasons: Vec<(TesterFault, String)>,
    found: TestOutcome,
}

impl<'a> TestSession<'a> {
    /// Creates the session of a test.
    pub fn new(
        plan: &'a Plan,
        test: &'a TestPlan,
        (seed, retries): (u64, u32),
        runner: &'a PlanRunner<'a>,
        callbacks: &'a TrialCallbacks<'a>,
    ) -> TestSession<'a> {
        let found = TestOutcome {
            name: test.name.clone(),
            kind: test.method.kind().into(),
            ..TestOutcome::default()
        };
        let seeds = RandomStream::new(seed, &format!("test.{}", test.name));
        TestSession {
            plan,
            test,
            runner,
            callbacks,
            attempts: MIN_ATTEMPTS.max(retries.saturating_add(1)),
            seeds,
            travel_times: Histogram::default(),
            delay_error: Duration::ZERO,
            bit_errors: 0,
            reasons: Vec::new(),
            ways: DirectionResults::default(),
            sender_limit: None,
            found,
        }
    }

    /// Returns the random stream for the order of trials.
    pub fn order(&self) -> RandomStream {
        self.seeds.fork("order")
    }

    /// Returns the rate of the first link on the test's path, which is the sender's maximum.
    pub fn line_rate(&self) -> BitRate {
        self.plan.hop(self.test.probe.path[0]).rate
    }

    /// Returns the maximum rate that the policy of the sender's host permits at the IP layer, if known and limited.
    pub fn sender_limit(&self) -> Option<BitRate> {
        self.sender_limit
    }

    /// Returns the framing overhead of the first link in bytes per packet.
    pub fn line_overhead(&self) -> u32 {
        self.plan.hop(self.test.probe.path[0]).overhead
    }

    /// Returns the delays of the packets of all valid trials since the last call, and the maximum by which they may be
    /// too long.
    pub fn take_travel_times(&mut self) -> (Histogram, Duration) {
        (std::mem::take(&mut self.travel_times), std::mem::take(&mut self.delay_error))
    }

    /// Returns the wrong bits in the payloads of all valid trials since the last call.
    pub fn take_bit_errors(&mut self) -> u64 {
        std::mem::take(&mut self.bit_errors)
    }

    /// Returns the results of the last valid trial in each direction.
    pub fn take_direction_results(&mut self) -> DirectionResults {
        std::mem::take(&mut self.ways)
    }

    /// Performs all trials of a search and returns its result.
    pub fn search<S: TrialSearch>(&mut self, subject: &str, search: &mut S) -> Result<S::Outcome, TestAbort> {
        while let Some(trial) = search.next() {
            let result = self.perform(subject, &trial)?;
            search.record(&result);
        }
        Ok(search.result())
    }

    /// Performs a trial, and repeats it if void.
    pub fn perform(&mut self, subject: &str, trial: &Trial) -> Result<TrialResult, TestAbort> {
        let derived = derive::packets(self.plan, self.test, trial);
        self.perform_plan(subject, trial, &derived).map(|(result, _)| result)
    }

    /// Performs a trial like [`TestSession::perform`] and also returns the mean delay of each of its seconds, in seconds.
    pub fn perform_by_second(
        &mut self,
        subject: &str,
        trial: &Trial,
    ) -> Result<(TrialResult, Vec<f64>), TestAbort> {
        let mut derived = derive::packets(self.plan, self.test, trial);
        let second = Duration::from_secs(1);
        derived.measure.interval = second;
        // Packets are counted in whole bins.
        derived.duration = second * derived.duration.0.div_ceil(second.0);
        let (result, outcome) = self.perform_plan(subject, trial, &derived)?;
        // The last bin may be short or empty.
        let whole = trial.duration().0 / derived.measure.interval.0;
        Ok((result, outcome::delays_by_bin(&outcome, &self.test.probe.name, whole.max(1) as usize)))
    }

    /// Performs a trial like [`TestSession::perform`] and also returns the consequences of its event.
    pub fn perform_converging(
        &mut self,
        subject: &str,
        trial: &Trial,
    ) -> Result<(TrialResult, AfterEvent), TestAbort> {
        let derived = derive::packets(self.plan, self.test, trial);
        let (result, mut outcome) = self.perform_plan(subject, trial, &derived)?;
        let observations = std::mem::take(&mut outcome.observations);
        let times = outcome::convergence(outcome, &self.test.probe.name);
        Ok((result, AfterEvent { times, observations }))
    }

    fn perform_plan(
        &mut self,
        subject: &str,
        trial: &Trial,
        derived: &Plan,
    ) -> Result<(TrialResult, RunOutcome), TestAbort> {
        let test = self.test;
        let mut why = String::new();
        for _ in 0..self.attempts {
            (self.callbacks.doing)(&format!("test {subject}, trial {}", self.found.trials.len() + 1));
            let seed = self.seeds.next_u64();
            let outcome = (self.runner)(derived, seed, self.callbacks.stop).map_err(TestAbort::Stopped)?;
            let result = outcome::packets(&outcome, &self.test.probe.name, trial);
            let limit = outcome.sender_limits.iter().find(|(flow, _)| *flow == test.probe.name);
            self.sender_limit = limit.map(|(_, limit)| *limit).or(self.sender_limit);
            let mut entry = TrialEntry::new(subject, trial, &result);
            // The search handles faults of the generator; it may try a lower load.
            let fault = self.fault(trial, &result);
            let spoiled = self.spoiled(&outcome);
            let probe = &test.probe.name;
            if fault.is_none() && spoiled.is_none() {
                self.travel_times.add(outcome::travel_times(&outcome, probe).unwrap_or_default());
                self.delay_error = self.delay_error.max(result.delay_error());
                self.bit_errors += outcome::bit_errors(&outcome, probe).unwrap_or(0);
                self.ways = outcome::direction_results(&outcome, probe);
            }
            // A fault of the run may be the cause of the generator's fault.
            let reason = fault.map(|fault| self.fault_reason(fault, &outcome, probe));
            entry.void = spoiled.clone().or(reason).unwrap_or_default();
            let burst = outcome.loads.iter().find(|load| load.quantity == "burst");
            entry.burst = burst.map_or(0, |load| load.achieved as u64);
            entry.faults.clone_from(&outcome.packet_faults);
            self.add_trial(entry);
            match spoiled {
                Some(spoiled) => why = spoiled,
                None => return Ok((result, outcome)),
            }
        }
        Err(TestAbort::Void(format!("{subject}: {} consecutive trials were void: {why}", self.attempts)))
    }

    /// Performs simultaneous trials of several parts of the test, and repeats them if void.
    pub fn perform_together(&mut self, parts: &[(String, Trial)]) -> Result<Vec<TrialResult>, TestAbort> {
        let flow = |part: &str| format!("{}.{part}", self.test.probe.name);
        let named: Vec<(String, Trial)> = parts.iter().map(|(part, trial)| (flow(part), *trial)).collect();
        let derived = derive::together(self.plan, self.test, &named);
        let mut why = String::new();
        for _ in 0..self.attempts {
            (self.callbacks.doing)(&format!(
                "test {}, trial {}",
                self.test.name,
                self.found.trials.len() + 1
            ));
            let seed = self.seeds.next_u64();
            let outcome = (self.runner)(&derived, seed, self.callbacks.stop).map_err(TestAbort::Stopped)?;
            let spoiled = self.spoiled(&outcome);
            let mut results = Vec::with_capacity(parts.len());
            for ((part, trial), (flow, _)) in parts.iter().zip(&named) {
                let result = outcome::packets(&outcome, flow, trial);
                let fault = result.fault(trial, FaultTolerance::default().tolerance);
                let mut entry = TrialEntry::new(&self.test.part(part), trial, &result);
                let reason = fault.map(|fault| self.fault_reason(fault, &outcome, flow));
                entry.void = spoiled.clone().or(reason).unwrap_or_default();
                self.add_trial(entry);
                results.push(result);
            }
            match spoiled {
                None => return Ok(results),
                Some(spoiled) => why = spoiled,
            }
        }
        Err(TestAbort::Void(format!(
            "{}: {} consecutive trials were void: {why}",
            self.test.name, self.attempts
        )))
    }

    /// Runs a plan with a TCP probe, and repeats it if void. `counted` is the number of bytes (`None`: no limit) and
    /// the time after which the transfer is measured.
    pub fn transfer(
        &mut self,
        subject: &str,
        derived: &Plan,
        counted: (Option<u64>, Duration),
    ) -> Result<TransferResult, TestAbort> {
        let mut why = String::new();
        let start = Instant::ZERO + self.test.warm_up;
        for _ in 0..self.attempts {
            (self.callbacks.doing)(&format!("test {subject}, trial {}", self.found.trials.len() + 1));
            let seed = self.seeds.next_u64();
            let outcome = (self.runner)(derived, seed, self.callbacks.stop).map_err(TestAbort::Stopped)?;
            let result = outcome::transfer(&outcome, &self.test.probe.name, start, counted);
            let spoiled = self.spoiled(&outcome);
            self.add_trial(TrialEntry {
                subject: subject.to_owned(),
                transferred: result.bytes,
                retransmissions: result.retransmissions,
                sending_ns: result.duration.0,
                round_trip_ns: result.mean_round_trip.map(|time| time.0),
                void: spoiled.clone().unwrap_or_default(),
                ..TrialEntry::default()
            });
            match spoiled {
                None => {
                    let limits =
                        outcome.limited_by_policy.iter().filter(|(name, _)| *name == self.test.probe.name);
                    self.found.shortfalls.extend(limits.map(|(_, why)| format!("{subject}: {why}")));
                    return Ok(result);
                }
                Some(spoiled) => why = spoiled,
            }
        }
        Err(TestAbort::Void(format!("{subject}: {} consecutive trials were void: {why}", self.attempts)))
    }

    /// Returns the fault of the tester in a trial of packets, if any.
    pub fn fault(&self, trial: &Trial, result: &TrialResult) -> Option<TesterFault> {
        let tolerance = FaultTolerance::default().tolerance;
        let has_delays = trial.tag_after.is_some()
            || matches!(self.test.method, Method::Steady { .. } | Method::Stamp { .. });
        if has_delays { result.fault_of_delays(trial, tolerance) } else { result.fault(trial, tolerance) }
    }

    /// Describes a fault of the tester in a run, with the thread of the flow that was late most.
    fn fault_reason(&mut self, fault: TesterFault, outcome: &RunOutcome, flow: &str) -> String {
        let stalls = outcome.stalls.iter().filter(|stall| stall.flow == flow);
        let stall = stalls.max_by_key(|stall| stall.lateness).filter(|stall| stall.lateness > Duration::ZERO);
        let when = match stall {
            Some(stall) => format!("; {stall}"),
            None => format!(", {}", FaultTime::Within(outcome.interval * outcome.bins as u64)),
        };
        let of_policy = outcome::dropped_by_policy(outcome, flow) > 0;
        let policy = outcome.late_senders.iter().find(|(name, _)| of_policy && name == flow);
        let reason = match policy {
            Some((_, why)) => format!("{}; {why}", describe(&fault)),
            None => describe(&fault) + &when,
        };
        self.reasons.push((fault, reason.clone()));
        reason
    }

    /// Returns the reason for which the tester could not perform trials, by the last of their faults.
    pub fn last_reason(&self, faults: &[TesterFault]) -> String {
        let Some(fault) = faults.last() else { return "no valid trial".into() };
        let known = self.reasons.iter().rev().find(|(known, _)| known == fault);
        known.map_or_else(|| describe(fault), |(_, reason)| reason.clone())
    }

    fn add_trial(&mut self, entry: TrialEntry) {
        (self.callbacks.on_trial)(&entry);
        self.found.trials.push(entry);
    }

    /// Returns the reason why a trial does not count, if any. The probe's own schedule is judged by the trial's result.
    fn spoiled(&self, outcome: &RunOutcome) -> Option<String> {
        let is_probe = |flow: &str| {
            let rest = flow.strip_prefix(&self.test.probe.name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        // A reflector's counters do not separate packets that the policy of the sender's host dropped.
        let is_stamp = matches!(self.test.method, Method::Stamp { .. });
        let is_unknown = |flow: &str| is_stamp && outcome::dropped_by_policy(outcome, flow) > 0;
        let others = outcome.late_senders.iter().filter(|(flow, _)| !is_probe(flow) || is_unknown(flow));
        let others = others.map(|(_, reason)| reason);
        outcome.failures.iter().chain(&outcome.void).chain(others).next().cloned()
    }

    /// Adds a finding with this value, unless it is NaN.
    pub fn add_value(&mut self, metric: Metric, subject: &str, value: f64) {
        self.found.findings.extend(Finding::new(metric, subject, value));
    }

    /// Adds a finding.
    pub fn add_finding(&mut self, finding: Finding) {
        self.found.findings.push(finding);
    }

    /// Adds the finding of a delay that may be too long, because emulated links were late by up to `error`. Of the packets
    /// of a valid trial, at most [`MAX_SHARE`] are late. They do not change minimum and median.
    pub fn add_delay(&mut self, metric: Metric, subject: &str, delay: Duration, error: Duration) {
        let delay = delay.as_secs_f64();
        let error = match metric {
            Metric::TestLatencyMin | Metric::TestLatencyMedian => 0.0,
            Metric::TestLatency => error.as_secs_f64() * MAX_SHARE,
            _ => error.as_secs_f64(),
        };
        if error > 0.0 {
            self.add_value_within(metric, subject, delay, ((delay - error).max(0.0), delay));
        } else {
            self.add_value(metric, subject, delay);
        }
    }

    /// Adds a finding with this value and these bounds (NaN: no bound).
    pub fn add_value_within(&mut self, metric: Metric, subject: &str, value: f64, (low, high): (f64, f64)) {
        self.found.findings.extend(Finding::new(metric, subject, value).map(|f| f.within(low, high)));
    }

    /// Adds a verdict.
    pub fn add_verdict(&mut self, verdict: String) {
        self.found.verdicts.push(verdict);
    }

    /// Adds a deviation from the rules of the method, unless it is known.
    pub fn add_deviation(&mut self, how: String) {
        if !self.found.deviations.contains(&how) {
            self.found.deviations.push(how);
        }
    }

    /// Adds a reason for which findings are lower bounds.
    pub fn add_shortfall(&mut self, why: String) {
        self.found.shortfalls.push(why);
    }

    /// Adds a reason for which the test is void.
    pub fn add_void_reason(&mut self, why: String) {
        self.found.void.push(why);
    }

    /// Returns the outcome of the test.
    pub fn finish(self) -> TestOutcome {
        self.found
    }
}

/// Describes a fault of the tester.
pub fn describe(fault: &TesterFault) -> String {
    match fault {
        TesterFault::NothingSent => "no packet left the generator".into(),
        TesterFault::GeneratorShort { requested, offered } => {
            format!("the generator offered {:.0} of {:.0} packets/s", offered.0, requested.0)
        }
        TesterFault::GeneratorFast { requested, offered } => {
            format!("the generator offered {:.0} packets/s instead of {:.0}", offered.0, requested.0)
        }
        TesterFault::GeneratorLate { packets, lost } => {
            format!(
                "the tester sent {packets} packets or replies late, which may have caused the loss of {lost}"
            )
        }
        TesterFault::LinkLate { packets, time, at } => format!(
            "emulated links sent {packets} packets late, at most by {:.1} ms at {:.3} s, which may have changed the losses",
            time.as_secs_f64() * 1e3,
            at.as_secs_f64()
        ),
        TesterFault::LinkDelayed { time, at } => {
            let time = crate::format::duration(time.0);
            format!(
                "an emulated link was {time} late at {:.3} s, so that the delays are wrong",
                at.as_secs_f64()
            )
        }
        TesterFault::GeneratorStopped { requested, sent } => {
            format!("the generator sent {sent} of {requested} packets")
        }
        TesterFault::GeneratorHeld { time } => {
            format!(
                "the tester stopped for {} while it sent or answered a packet, so that the delays are wrong",
                crate::format::duration(time.0)
            )
        }
        TesterFault::ReceiverDropped { packets, .. } => {
            format!("the receiving host dropped {packets} packets itself")
        }
    }
}
