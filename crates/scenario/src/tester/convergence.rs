//! What packets suffer while routes go and come by BGP (RFC 7747 section 5.6; terms of RFC 6412).

use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

/// What happens to all routes of the first receiving port at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// They are withdrawn.
    Withdraw,
    /// They are announced again.
    Announce,
}

impl Event {
    /// Both, in the order they are tried.
    pub const ALL: [Event; 2] = [Event::Withdraw, Event::Announce];

    /// Its name in configurations, records and figures.
    pub fn name(self) -> &'static str {
        match self {
            Event::Withdraw => "withdraw",
            Event::Announce => "announce",
        }
    }

    /// What the test of this name tries.
    pub fn of_test(name: &str) -> Option<Event> {
        Event::ALL.into_iter().find(|event| event.name() == name)
    }
}

/// The trials of events: packets flow before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convergence {
    /// What happens, each in a trial of its own.
    pub events: Vec<Event>,
    /// Rate at the IP layer.
    pub rate: BitRate,
    /// Bytes of an IP packet.
    pub size: u32,
    /// From the first packet to the event.
    pub before: Duration,
    /// From the event to the last packet.
    pub after: Duration,
}

impl Convergence {
    /// How long packets are sent.
    pub fn trial(&self) -> Duration {
        Duration(self.before.0 + self.after.0)
    }
}
