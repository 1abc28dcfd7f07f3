//! Compares diagnoses of flows with injected causes. Each case draws its parameters from a printed seed, injects one
//! cause packet by packet or by the behavior of the applications, and requires that the diagnosis names it.

#[path = "../../../tests/support/injector.rs"]
mod injector;
#[path = "../../../tests/support/pair.rs"]
mod pair;
#[path = "../../../tests/support/provoked.rs"]
mod provoked;

use netstage_core::tcp::diagnosis::{Bottleneck, Diagnosis, FlowAccount, Verdict};
use netstage_core::tcp::event::{FlowEventKind, WindowChangeCause};
use netstage_core::time::Instant;
use netstage_harness::{needs, seed, skip};
use netstage_host::clock::monotonic_ns;
use netstage_tcp_watch::filter::Filter;
use netstage_tcp_watch::flows::Flows;
use netstage_tcp_watch::programs::Programs;
use netstage_tcp_watch::record::TcpRecord;
use netstage_tcp_watch::source::{RecordSource, SourceKind};
use nix::sys::stat::fstat;
use provoked::{KernelTimes, Provocation, Provoked};
use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::thread;
use std::time::Duration;

/// Result of a case.
struct Outcome {
    provoked: Provoked,
    diagnosis: Diagnosis,
    truth_percent: Option<f64>,
    /// Share of the time for which the line was transmitting.
    busy_percent: f64,
    kernel: KernelTimes,
    causes: BTreeMap<&'static str, usize>,
}

impl Outcome {
    fn is_right(&self) -> bool {
        let named = self.diagnosis.verdict.bottlenecks();
        self.provoked.bottlenecks().into_iter().any(|bottleneck| named.contains(&Some(bottleneck)))
    }

    fn is_certain(&self) -> bool {
        matches!(self.diagnosis.verdict, Verdict::Certain { .. })
    }

    /// Returns by how many points of the time the diagnosis differs from the truth that the case or the kernel
    /// knows.
    fn deviations(&self) -> Vec<(&'static str, f64)> {
        let percent = |bottlenecks: &[Bottleneck]| -> f64 {
            bottlenecks.iter().map(|bottleneck| f64::from(self.diagnosis.percent(*bottleneck))).sum()
        };
        let receiver = percent(&[Bottleneck::ReceiveBuffer, Bottleneck::SlowReader, Bottleneck::ZeroWindow]);
        let named = percent(&[self.provoked.provocation.bottleneck()]);
        // The kernel counts a full buffer only after it sent for an ACK, and then also while nothing or only the
        // path's rate passes.
        let sender = percent(&[
            Bottleneck::SendBuffer,
            Bottleneck::PathFull,
            Bottleneck::Bufferbloat,
            Bottleneck::Outage,
            Bottleneck::PathMtu,
        ]);
        let mut deviations = vec![
            ("kernel's receive window", receiver - self.kernel.receive_window),
            ("kernel's send buffer", (sender - self.kernel.send_buffer).min(0.0)),
        ];
        // During a pause of the application, buffered data is still sent: in a window that grows, or at the line's rate.
        let growing = percent(&[Bottleneck::IdleRestart, Bottleneck::SlowStart]);
        let sending = growing + self.busy_percent;
        let deviation = |truth: f64| (named - truth).max(0.0) + (named + sending - truth).min(0.0);
        deviations.extend(self.truth_percent.map(|truth| ("injected", deviation(truth))));
        deviations
    }

    fn line(&self) -> String {
        let verdict = match self.diagnosis.verdict {
            Verdict::TooShort => "too short".to_owned(),
            Verdict::Certain { bottleneck } => bottleneck.name().to_owned(),
            Verdict::Shared { bottleneck, second } => {
                format!("{} and {}", bottleneck.name(), second.name())
            }
            Verdict::Unsure { bottleneck, alternative } => {
                format!("{} or {}", bottleneck.name(), alternative.name())
            }
        };
        let shares: Vec<String> = self
            .diagnosis
            .shares
            .iter()
            .filter(|share| share.percent > 0)
            .map(|share| format!("{} {}", share.bottleneck.name(), share.percent))
            .collect();
        let deviations: Vec<String> =
            self.deviations().iter().map(|(name, points)| format!("{name} {points:+.0}")).collect();
        format!(
            "{:20} {verdict}\n    {}\n    {}; {}\n    {:?}, {:?}, {:?}",
            self.provoked.provocation.name(),
            self.provoked.text(),
            shares.join(", "),
            deviations.join(", "),
            self.causes,
            self.diagnosis.round_trip,
            self.diagnosis.path_rate
        )
    }
}

/// Runs a case and diagnoses its flow from the sender's events.
fn run(provoked: &Provoked, by: SourceKind) -> Outcome {
    let mut causes = BTreeMap::new();
    let played = provoked.play(false, |left, begin, is_over| {
        if let Some(late) = provoked.observed_after {
            begin();
            thread::sleep(late);
        }
        let namespace = fstat(left.as_fd()).unwrap().st_ino as u32;
        let filter = Filter { namespaces: vec![namespace], ..Filter::default() };
        let mut source = RecordSource::open(by, filter, &[left.try_clone().unwrap()]).unwrap();
        begin();
        let start = monotonic_ns();
        let mut flows = Flows::new(start);
        let mut account = FlowAccount::default();
        while !is_over() {
            let handle = |record: &TcpRecord, origin| {
                flows.handle(record, origin, &mut |_, event| {
                    account.handle(event);
                    if let FlowEventKind::Window(cause) = event.kind {
                        *causes.entry(cause.name()).or_default() += 1;
                    }
                });
            };
            source.poll(handle).unwrap();
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(source.lost(), 0);
        account.diagnose(Instant(monotonic_ns() - start))
    });
    let provoked = provoked.clone();
    Outcome {
        truth_percent: played.truth_percent(&provoked),
        busy_percent: played.busy_percent(),
        provoked,
        diagnosis: played.observed,
        kernel: played.kernel,
        causes,
    }
}

/// Requires namespaces and BPF programs.
fn needs_programs() {
    needs::namespaces();
    if let Err(obstacle) = Programs::load(Filter::default()) {
        skip(obstacle.to_string());
    }
}

/// Runs cases, three at a time because they mostly wait.
fn run_all(cases: &[Provoked], by: SourceKind, prints: bool) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for some in cases.chunks(3) {
        thread::scope(|scope| {
            let running: Vec<_> = some.iter().map(|case| scope.spawn(move || run(case, by))).collect();
            outcomes.extend(running.into_iter().map(|case| case.join().unwrap()));
        });
        if prints {
            outcomes.iter().rev().take(some.len()).rev().for_each(|outcome| println!("{}", outcome.line()));
        }
    }
    outcomes
}

/// Returns how many wrong ones of some cases a rate of 5 % explains (binomial, 99 %). A test of few cases finds only rates
/// far above; the rate itself is judged over many.
fn explained(cases: usize) -> usize {
    const RATE: f64 = 0.05;
    let (mut probability, mut sum, mut wrong) = ((1.0 - RATE).powi(cases as i32), 0.0, 0);
    loop {
        sum += probability;
        if sum >= 0.99 {
            return wrong;
        }
        probability *= (cases - wrong) as f64 / (wrong + 1) as f64 * RATE / (1.0 - RATE);
        wrong += 1;
    }
}

/// Requires that the diagnoses name the injected causes, apart from this number of them.
fn judge(outcomes: &[Outcome], allowed: usize) {
    let wrong: Vec<String> =
        outcomes.iter().filter(|outcome| !outcome.is_right()).map(Outcome::line).collect();
    let certain = outcomes.iter().filter(|outcome| outcome.is_certain()).count();
    println!("{} cases, {certain} certain, {} wrong", outcomes.len(), wrong.len());
    assert!(wrong.len() <= allowed, "{}", wrong.join("\n"));
    let deviates = |outcome: &&Outcome| outcome.deviations().iter().any(|(_, points)| points.abs() > 10.0);
    let deviating: Vec<String> = outcomes.iter().filter(deviates).map(Outcome::line).collect();
    assert!(deviating.len() <= allowed, "{}", deviating.join("\n"));
}

/// Returns by which factor the throughput rises without a cause.
fn gain(with: &Outcome, without: &Outcome) -> f64 {
    without.diagnosis.rate.as_f64() / with.diagnosis.rate.as_f64().max(1.0)
}

/// Returns the longest smoothed round trip in seconds.
fn max_round_trip(outcome: &Outcome) -> f64 {
    outcome.diagnosis.round_trip.map_or(f64::NAN, |trips| trips.max.as_secs_f64())
}

/// The truth about a cause is what its removal gains. Of two causes, a diagnosis must not name only the one whose
/// removal gains nothing while that of the other does.
fn of_two_causes_the_one_that_limits_is_named() {
    const PAIRS: [[Provocation; 2]; 9] = [
        [Provocation::ReceiveBuffer, Provocation::Loss],
        [Provocation::ReceiveBuffer, Provocation::PathFull],
        [Provocation::SendBuffer, Provocation::PathFull],
        [Provocation::SendBuffer, Provocation::Loss],
        [Provocation::SlowWriter, Provocation::Loss],
        [Provocation::SlowWriter, Provocation::Policer],
        [Provocation::SlowReader, Provocation::Loss],
        [Provocation::Policer, Provocation::ReceiveBuffer],
        [Provocation::Marks, Provocation::SendBuffer],
    ];
    const NOTHING: f64 = 1.1;
    const MUCH: f64 = 1.3;
    needs_programs();
    let seed = seed("pairs of causes");
    let play = |pair: [Provocation; 2]| {
        let case = Provoked::draw_pair(pair, seed);
        let runs = [case.clone(), case.without(pair[0]), case.without(pair[1])];
        let outcomes = run_all(&runs, SourceKind::Programs, false);
        let gains = [1, 2].map(|without| gain(&outcomes[0], &outcomes[without]));
        let line = format!(
            "{} x{:.1}, {} x{:.1}: {}",
            pair[0].name(),
            gains[0],
            pair[1].name(),
            gains[1],
            outcomes[0].line()
        );
        println!("{line}");
        let named = outcomes[0].diagnosis.verdict.bottlenecks();
        let is_named = |cause: Provocation| named.contains(&Some(cause.bottleneck()));
        let names_only = |one: usize| is_named(pair[one]) && !is_named(pair[1 - one]);
        let is_wrong = |one: usize| names_only(one) && gains[one] < NOTHING && gains[1 - one] > MUCH;
        (!pair.into_iter().any(is_named) || is_wrong(0) || is_wrong(1)).then_some(line)
    };
    let wrong: Vec<String> = PAIRS.into_iter().filter_map(play).collect();
    assert!(wrong.len() <= explained(PAIRS.len()), "{}", wrong.join("\n"));
}

fn diagnoses_name_the_injected_cause() {
    needs_programs();
    let seed = seed("diagnoses");
    let cases: Vec<Provoked> =
        Provocation::ALL.into_iter().map(|provocation| Provoked::draw(provocation, seed)).collect();
    judge(&run_all(&cases, SourceKind::Programs, true), explained(cases.len()));
}

/// Twelve draws of each cause, as the table of docs/results/tcp-why.md.
fn diagnoses_name_many_injected_causes() {
    const DRAWS: u64 = 12;
    needs_programs();
    let seed = seed("diagnoses");
    let (mut all, mut gains) = (Vec::new(), BTreeMap::new());
    for draw in 0..DRAWS {
        let cases: Vec<Provoked> = Provocation::ALL
            .into_iter()
            .map(|provocation| Provoked::draw(provocation, seed.wrapping_add(draw)))
            .collect();
        all.extend(run_all(&cases, SourceKind::Programs, true));
        if draw == 0 {
            let without = cases.iter().map(|case| case.without(case.provocation)).collect::<Vec<_>>();
            let without = run_all(&without, SourceKind::Programs, false);
            for (with, without) in all.iter().zip(&without) {
                let delay = max_round_trip(with) / max_round_trip(without);
                gains.insert(with.provoked.provocation.name(), (gain(with, without), delay));
            }
        }
    }
    println!("\n| injected | cases | named alone | with another | another alone | gain of removal |");
    println!("| :-- | --: | --: | --: | --: | --: |");
    for provocation in Provocation::ALL {
        let of = || all.iter().filter(|outcome| outcome.provoked.provocation == provocation);
        let alone = of().filter(|outcome| outcome.is_right() && outcome.is_certain()).count();
        let right = of().filter(|outcome| outcome.is_right()).count();
        let (cases, name) = (of().count(), provocation.name());
        let (gain, delay) = gains[name];
        // A long queue costs delay, not throughput.
        let (is_true, truth) = match provocation {
            Provocation::Bufferbloat => (delay > 2.0, format!("round trip ÷ {delay:.1}")),
            _ if gain > 100.0 => (true, "> 100".to_owned()),
            _ => (gain > 1.2, format!("{gain:.1}")),
        };
        println!("| {name} | {cases} | {alone} | {} | {} | {truth} |", right - alone, cases - right);
        assert!(is_true, "the removal of {name} gains nothing: {truth}");
    }
    judge(&all, all.len() / 20);
}

/// Polling sees a flow twenty times a second.
fn polled_diagnoses_name_the_injected_cause() {
    needs_programs();
    let seed = seed("polled diagnoses");
    let known = [
        Provocation::PathFull,
        Provocation::Bufferbloat,
        Provocation::ReceiveBuffer,
        Provocation::SendBuffer,
        Provocation::SlowWriter,
        Provocation::ZeroWindow,
    ];
    let cases: Vec<Provoked> =
        known.into_iter().map(|provocation| Provoked::draw(provocation, seed)).collect();
    let outcomes = run_all(&cases, SourceKind::Polling, true);
    let wrong: Vec<String> =
        outcomes.iter().filter(|outcome| !outcome.is_right()).map(Outcome::line).collect();
    assert!(wrong.len() <= explained(cases.len()), "{}", wrong.join("\n"));
}

/// A router reports a smaller path MTU while a transfer runs.
fn a_smaller_path_mtu_is_reported_as_such() {
    needs_programs();
    let case = Provoked::draw(Provocation::ReportedPathMtu, seed("path MTU"));
    let outcome = run(&case, SourceKind::Programs);
    println!("{}", outcome.line());
    let count = |cause: WindowChangeCause| outcome.causes.get(cause.name()).copied().unwrap_or(0);
    assert!(count(WindowChangeCause::PathMtu) >= 1, "{:?}", outcome.causes);
    assert_eq!(count(WindowChangeCause::Timeout), 0, "{:?}", outcome.causes);
}

netstage_harness::tests![
    diagnoses_name_the_injected_cause,
    #[ignore = "takes ten minutes"]
    diagnoses_name_many_injected_causes,
    of_two_causes_the_one_that_limits_is_named,
    polled_diagnoses_name_the_injected_cause,
    a_smaller_path_mtu_is_reported_as_such,
];
netstage_harness::main![self];
