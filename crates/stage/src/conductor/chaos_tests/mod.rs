//! Chaos suite: tests in virtual time while sender, receiver, emulator and controller stall at random. Departures, packet
//! counts, emulator, outcome and searches are those of a run with real packets; the network is a model whose truth is
//! known. Each answer is right within its interval, or void.

mod cases;
mod connection;
mod network;
mod tester;

use cases::{Case, KINDS};
use netstage_core::rng::RandomStream;
use netstage_harness::seed;
use netstage_study::Performer;
use netstage_study::series::read_run;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Answers of one kind.
#[derive(Default)]
struct Answers {
    right: usize,
    void: usize,
    wrong: Vec<String>,
}

fn answers(cases: usize, has_envelope: bool) -> BTreeMap<&'static str, Answers> {
    let seed = seed("chaos");
    let mut answers: BTreeMap<&str, Answers> =
        KINDS.into_iter().map(|kind| (kind, Answers::default())).collect();
    for number in 0..cases {
        let mut random = RandomStream::new(seed, &format!("case.{number}"));
        let case = Case::draw(number, &mut random, has_envelope);
        let truths = Mutex::new(Vec::new());
        let performer = Performer {
            runner: &|plan, seed, _| {
                let (outcome, truth) = tester::run(plan, seed, case.conditions);
                truths.lock().unwrap().push(truth);
                Ok(outcome)
            },
            retries: 2,
            stop: &|| false,
            on_activity: &|_| (),
            on_trial: &|_| (),
            on_progress: &|_, _| {},
            on_outcome: None,
        };
        let file = performer.perform(&case.scenario(), (0, random.next_u64() % 1_000_000)).unwrap().unwrap();
        let (_, _, outcome) = read_run(&file.into()).unwrap();
        let answers = answers.get_mut(case.kind).expect("a kind");
        if !outcome.void.is_empty() || outcome.tests.iter().any(|test| !test.void.is_empty()) {
            answers.void += 1;
        } else if let Some(fault) = case.fault(&outcome, &truths.lock().unwrap()) {
            let verdicts = outcome.tests.first().map(|test| &test.verdicts);
            let conditions = (case.conditions.device, case.conditions.is_emulated);
            answers
                .wrong
                .push(format!("case {number}, {}: {conditions:?}: {fault}; {verdicts:?}", case.kind));
        } else {
            answers.right += 1;
        }
    }
    println!("{cases} cases{}:", if has_envelope { "" } else { " without the envelope" });
    for (kind, Answers { right, void, wrong }) in &answers {
        println!("  {kind}: {right} right, {void} void, {} wrong", wrong.len());
    }
    answers
}

#[test]
fn stalls_give_right_answers_or_void_ones() {
    let cases = if cfg!(debug_assertions) { 128 } else { 2_500 };
    let answers = answers(cases, true);
    let wrong: Vec<&str> = answers.values().flat_map(|answers| &answers.wrong).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} of {cases} answers are wrong:\n{}", wrong.len(), wrong.join("\n"));
    let each = cases / KINDS.len();
    for (kind, Answers { void, .. }) in &answers {
        assert!(*void < each * 9 / 10, "{kind}: {void} of {each} answers are void");
    }
}

#[test]
fn suite_finds_wrong_answers_of_a_tester_that_takes_itself_for_punctual() {
    let answers = answers(1_200, false);
    for kind in
        ["rfc2544-throughput", "rfc2544-latency", "flow", "stamp", "y1564-services", "rfc6349", "tcp-flow"]
    {
        assert!(!answers[kind].wrong.is_empty(), "{kind}");
    }
}
