//! Convergence tests: withdrawal and advertisement of BGP routes during traffic (RFC 7747 section 5.6; terms of
//! RFC 6412), and failures of the network.

use super::Operation;

use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

/// Event during a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvergenceEvent {
    /// Withdrawal of all routes of the first receiving port.
    Withdraw,
    /// Advertisement of the routes after a withdrawal.
    Announce,
    /// Failure of a link or router, which a command of the user causes.
    Failure,
}

impl ConvergenceEvent {
    /// All events, in the order of the trials.
    pub const ALL: [ConvergenceEvent; 3] =
        [ConvergenceEvent::Withdraw, ConvergenceEvent::Announce, ConvergenceEvent::Failure];

    /// Returns the name in configurations, records and figures.
    pub fn name(self) -> &'static str {
        match self {
            ConvergenceEvent::Withdraw => "withdraw",
            ConvergenceEvent::Announce => "announce",
            ConvergenceEvent::Failure => "failure",
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
    /// Forwarding operation of the packets when a part of the network fails.
    pub operation: Operation,
    /// Program and arguments that cause the failure.
    pub fail_command: Vec<String>,
    /// Program and arguments that end the failure after the trial; empty for none.
    pub repair_command: Vec<String>,
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
    /// Returns the forwarding operation of the packets in the trial of an event.
    pub fn operation_at(&self, event: ConvergenceEvent) -> Operation {
        if event == ConvergenceEvent::Failure { self.operation } else { Operation::Ip }
    }

    /// Returns the sending time of a trial.
    pub fn trial(&self) -> Duration {
        Duration(self.before.0 + self.after.0)
    }
}
