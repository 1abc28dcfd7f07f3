//! Rounds of concurrent calls to agents, scheduled by [`RequestRound`].

use netstage_core::fleet::RequestRound;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::monotonic_ns;
use std::future::Future;
use std::thread::available_parallelism;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Answers of a round.
pub struct CallAnswers<T> {
    /// Answers in the order of the calls; `None` for calls that were not made after a failure.
    pub answers: Vec<Option<T>>,
    /// Duration of the slowest call.
    pub slowest: Duration,
}

/// Makes the calls, at most `max_concurrent` concurrently. Makes no further calls after an answer that does not
/// satisfy `is_success`.
pub fn call_all<F>(
    runtime: &Runtime,
    max_concurrent: usize,
    calls: impl IntoIterator<Item = F>,
    is_success: impl Fn(&F::Output) -> bool,
) -> CallAnswers<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let mut calls: Vec<Option<F>> = calls.into_iter().map(Some).collect();
    let mut answers: Vec<Option<F::Output>> = calls.iter().map(|_| None).collect();
    let mut round = RequestRound::new(calls.len(), max_concurrent);
    let now = || Instant(monotonic_ns());
    runtime.block_on(async {
        let mut pending = JoinSet::new();
        loop {
            while let Some(agent) = round.poll_request(now()) {
                let call = calls[agent].take().expect("each call is made once");
                pending.spawn(async move { (agent, call.await) });
            }
            let Some(answered) = pending.join_next().await else { break };
            let (agent, answer) = answered.expect("calls do not panic");
            round.handle_response(agent, now());
            if !is_success(&answer) {
                round.cancel();
            }
            answers[agent] = Some(answer);
        }
    });
    CallAnswers { answers, slowest: round.slowest() }
}

/// Returns the number of threads for the connections to agents.
pub fn thread_count() -> usize {
    available_parallelism().map_or(1, usize::from)
}
