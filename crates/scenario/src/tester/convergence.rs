//! Convergence tests: withdrawal and advertisement of BGP routes during traffic (RFC 7747 section 5.6; terms of
//! RFC 6412).

use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

/// Event that affects all routes of the first receiving port at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Withdrawal of the routes.
    Withdraw,
    /// Advertisement of the routes after a withdrawal.
    Announce,
}

impl Event {
    /// Both events, in the order of the trials.
    pub const ALL: [Event; 2] = [Event::Withdraw, Event::Announce];

    /// Returns the name in configurations, records and figures.
    pub fn name(self) -> &'static str {
        match self {
            Event::Withdraw => "withdraw",
            Event::Announce => "announce",
        }
    }

    /// Returns the event of a test by name.
    pub fn of_test(name: &str) -> Option<Event> {
        Event::ALL.into_iter().find(|event| event.name() == name)
    }
}

/// Convergence trials, with traffic before and after the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convergence {
    /// Events, each in a trial of its own.
    pub events: Vec<Event>,
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
