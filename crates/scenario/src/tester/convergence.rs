//! Convergence tests: withdrawal and advertisement of BGP routes during traffic (RFC 7747 section 5.6; terms of
//! RFC 6412).

use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

/// Event that affects all routes of the first receiving port at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvergenceEvent {
    /// Withdrawal of the routes.
    Withdraw,
    /// Advertisement of the routes after a withdrawal.
    Announce,
}

impl ConvergenceEvent {
    /// Both events, in the order of the trials.
    pub const ALL: [ConvergenceEvent; 2] = [ConvergenceEvent::Withdraw, ConvergenceEvent::Announce];

    /// Returns the name in configurations, records and figures.
    pub fn name(self) -> &'static str {
        match self {
            ConvergenceEvent::Withdraw => "withdraw",
            ConvergenceEvent::Announce => "announce",
        }
    }

    /// Returns the event of a test by name.
    pub fn from_test_name(name: &str) -> Option<ConvergenceEvent> {
        ConvergenceEvent::ALL.into_iter().find(|event| event.name() == name)
    }
}

/// Convergence trials, with traffic before and after the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convergence {
    /// Events, each in a trial of its own.
    pub events: Vec<ConvergenceEvent>,
    /// Packet rate at the IP layer.
    pub rate: BitRate,
    /// Bytes of an IP packet.
    pub size: u32,
    /// Time from the first packet to the event.
    pub before: Duration,
    /// Time from the event to the last packet.
    pub after: Duration,
}

impl Convergence {
    /// Returns the sending time of a trial.
    pub fn trial(&self) -> Duration {
        Duration(self.before.0 + self.after.0)
    }
}
