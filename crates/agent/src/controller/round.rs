//! Rounds of calls to agents, as [`Round`] has them asked.

use netstage_core::fleet::Round;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::monotonic_ns;
use std::future::Future;
use std::thread::available_parallelism;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// What a round found.
pub struct Answers<T> {
    /// In the order of the calls; none from those that were not asked any more.
    pub answers: Vec<Option<T>>,
    /// How long the slowest took.
    pub slowest: Duration,
}

/// Makes the calls, so many at a time. After an answer that is not `well`, nobody else is asked.
pub fn ask<F>(
    runtime: &Runtime,
    at_a_time: usize,
    calls: impl IntoIterator<Item = F>,
    well: impl Fn(&F::Output) -> bool,
) -> Answers<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let mut calls: Vec<Option<F>> = calls.into_iter().map(Some).collect();
    let mut answers: Vec<Option<F::Output>> = calls.iter().map(|_| None).collect();
    let mut round = Round::new(calls.len(), at_a_time);
    let now = || Instant(monotonic_ns());
    runtime.block_on(async {
        let mut under_way = JoinSet::new();
        loop {
            while let Some(agent) = round.poll_ask(now()) {
                let call = calls[agent].take().expect("everybody is asked once");
                under_way.spawn(async move { (agent, call.await) });
            }
            let Some(answered) = under_way.join_next().await else { break };
            let (agent, answer) = answered.expect("calls do not panic");
            round.handle_answer(agent, now());
            if !well(&answer) {
                round.call_off();
            }
            answers[agent] = Some(answer);
        }
    });
    Answers { answers, slowest: round.slowest() }
}

/// How many threads attend to agents.
pub fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}
