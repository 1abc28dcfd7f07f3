//! Which results of which runs the controller has, and which are still with agents.

use alloc::collections::BTreeMap;
use alloc::string::String;

/// What becomes of a result that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// It is the first of this agent and run: it counts. The agent may forget it.
    New,
    /// It came before: it does not count again. The agent may forget it.
    Again,
    /// Its run is closed: it does not count. The agent may forget it.
    Late,
    /// No run of this controller's expects it: it stays with the agent.
    Unexpected,
}

/// A controller's open runs, and whose results it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// By number: its agents, and whether their results are here.
    runs: BTreeMap<u64, BTreeMap<String, bool>>,
    last: u64,
}

impl Ledger {
    /// Opens a run of these agents under a number no run had before.
    pub fn open(&mut self, agents: impl IntoIterator<Item = String>) -> u64 {
        let run = self.last + 1;
        self.restore(run, agents.into_iter().map(|agent| (agent, false)));
        run
    }

    /// Takes up a run that was opened before the controller's last restart.
    pub fn restore(&mut self, run: u64, agents: impl IntoIterator<Item = (String, bool)>) {
        self.last = self.last.max(run);
        self.runs.insert(run, agents.into_iter().collect());
    }

    /// Numbers up to this one are never given again, whatever became of their runs.
    pub fn skip(&mut self, last: u64) {
        self.last = self.last.max(last);
    }

    /// A result came in and is safely kept, unless it does not count.
    pub fn receive(&mut self, run: u64, agent: &str) -> Receipt {
        let Some(agents) = self.runs.get_mut(&run) else {
            return if (1..=self.last).contains(&run) { Receipt::Late } else { Receipt::Unexpected };
        };
        match agents.get_mut(agent) {
            None => Receipt::Unexpected,
            Some(true) => Receipt::Again,
            Some(had) => {
                *had = true;
                Receipt::New
            }
        }
    }

    /// Agents whose results of this run are not here.
    pub fn missing(&self, run: u64) -> impl Iterator<Item = &str> {
        let agents = self.runs.get(&run).into_iter().flatten();
        agents.filter(|(_, had)| !**had).map(|(agent, _)| agent.as_str())
    }

    /// Nothing more is expected of this run.
    pub fn close(&mut self, run: u64) {
        self.runs.remove(&run);
    }

    /// Numbers of the open runs.
    pub fn open_runs(&self) -> impl Iterator<Item = u64> {
        self.runs.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_result_counts_once_and_numbers_are_never_given_again() {
        let mut ledger = Ledger::default();
        let run = ledger.open(["a".into(), "b".into()]);
        assert_eq!(ledger.receive(run, "a"), Receipt::New);
        assert_eq!(ledger.receive(run, "a"), Receipt::Again);
        assert_eq!(ledger.receive(run, "c"), Receipt::Unexpected);
        assert_eq!(ledger.missing(run).collect::<Vec<_>>(), ["b"]);
        ledger.close(run);
        assert_eq!(ledger.receive(run, "b"), Receipt::Late);
        assert_eq!(ledger.receive(run + 1, "b"), Receipt::Unexpected);
        ledger.skip(9);
        assert_eq!(ledger.open([]), 10);
        assert_eq!(ledger.open_runs().collect::<Vec<_>>(), [10]);
    }
}
