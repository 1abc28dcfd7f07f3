//! The controller's record of the results it has received and of those still at agents.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;

/// Classification of a received result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// The first result of this agent for the run: it counts, and the agent may delete it.
    New,
    /// A duplicate: it does not count again, and the agent may delete it.
    Duplicate,
    /// The run is closed: the result does not count, and the agent may delete it.
    Late,
    /// No run of this controller expects the result: it stays at the agent.
    Unexpected,
}

/// Returns the identifier of a run from its number and a random part.
pub fn run_id(number: u32, random: u32) -> u64 {
    u64::from(random) << 32 | u64::from(number)
}

/// Returns the number of a run, by which people refer to it. A restored controller uses numbers again, with
/// other random parts.
pub fn run_number(run: u64) -> u32 {
    run as u32
}

/// The open runs of a controller, and the agents whose results it has received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultLedger {
    /// Agents of each run, and whether their results were received.
    runs: BTreeMap<u64, BTreeMap<String, bool>>,
    /// Runs from which no more results are expected.
    closed: BTreeSet<u64>,
    last: u32,
}

impl ResultLedger {
    /// Opens a run of these agents under a new number, with this random part of its identifier.
    pub fn open(&mut self, random: u32, agents: impl IntoIterator<Item = String>) -> u64 {
        let run = run_id(self.last + 1, random);
        self.restore(run, agents.into_iter().map(|agent| (agent, false)));
        run
    }

    /// Restores a run that was opened before the controller's last restart.
    pub fn restore(&mut self, run: u64, agents: impl IntoIterator<Item = (String, bool)>) {
        self.skip(run_number(run));
        self.runs.insert(run, agents.into_iter().collect());
    }

    /// Excludes the run numbers up to `last` from reuse.
    pub fn skip(&mut self, last: u32) {
        self.last = self.last.max(last);
    }

    /// Records a result that is durably stored (unless it does not count), and classifies it.
    pub fn receive(&mut self, run: u64, agent: &str) -> Receipt {
        let Some(agents) = self.runs.get_mut(&run) else {
            return if self.closed.contains(&run) { Receipt::Late } else { Receipt::Unexpected };
        };
        match agents.get_mut(agent) {
            None => Receipt::Unexpected,
            Some(true) => Receipt::Duplicate,
            Some(is_received) => {
                *is_received = true;
                Receipt::New
            }
        }
    }

    /// Returns the agents whose results for this run are missing.
    pub fn missing(&self, run: u64) -> impl Iterator<Item = &str> {
        let agents = self.runs.get(&run).into_iter().flatten();
        agents.filter(|(_, is_received)| !**is_received).map(|(agent, _)| agent.as_str())
    }

    /// Closes a run, for which no more results are expected.
    pub fn close(&mut self, run: u64) {
        self.runs.remove(&run);
        self.closed.insert(run);
    }

    /// Returns the numbers of the open runs.
    pub fn open_runs(&self) -> impl Iterator<Item = u64> {
        self.runs.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_result_counts_once_and_run_numbers_are_never_reused() {
        let mut ledger = ResultLedger::default();
        let run = ledger.open(7, ["a".into(), "b".into()]);
        assert_eq!(ledger.receive(run, "a"), Receipt::New);
        assert_eq!(ledger.receive(run, "a"), Receipt::Duplicate);
        assert_eq!(ledger.receive(run, "c"), Receipt::Unexpected);
        assert_eq!(ledger.missing(run).collect::<Vec<_>>(), ["b"]);
        ledger.close(run);
        assert_eq!(ledger.receive(run, "b"), Receipt::Late);
        assert_eq!(ledger.receive(run + 1, "b"), Receipt::Unexpected);
        ledger.skip(9);
        let next = ledger.open(1, []);
        assert_eq!((run_number(run), run_number(next)), (1, 10));
        assert_eq!(ledger.open_runs().collect::<Vec<_>>(), [next]);
    }

    #[test]
    fn a_restored_ledger_does_not_mix_results_of_two_runs() {
        let backup = ResultLedger::default();
        let (mut before, mut restored) = (backup.clone(), backup);
        let (old, new) = (before.open(1, ["a".into()]), restored.open(2, ["a".into()]));
        assert_eq!((run_number(old), run_number(new)), (1, 1));
        assert_eq!(
            restored.receive(old, "a"),
            Receipt::Unexpected,
            "the result of the lost run stays at its agent"
        );
        assert_eq!(restored.receive(new, "a"), Receipt::New);
        restored.close(new);
        assert_eq!(restored.receive(old, "a"), Receipt::Unexpected);
    }
}
