//! Convergence tests: withdrawal and advertisement of BGP routes during traffic (RFC 7747 section 5.6; terms of
//! RFC 6412), events of label distribution by LDP, and failures of the network.

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
    /// Loss of the LDP session of the first receiving port without a notification: reset of the connection, and no more
    /// hellos.
    LdpSessionLoss,
    /// End of that session with a Shutdown notification.
    LdpShutdown,
    /// Establishment of that session after its end.
    LdpSessionUp,
    /// Withdrawal of the labels of the first receiving port.
    LabelWithdraw,
    /// Mapping of the labels after a withdrawal.
    LabelMapping,
    /// Restart of the LDP speaker of the first receiving port with graceful restart (RFC 3478).
    LdpRestart,
}

impl ConvergenceEvent {
    /// All events, in the order of the trials.
    pub const ALL: [ConvergenceEvent; 9] = [
        ConvergenceEvent::Withdraw,
        ConvergenceEvent::Announce,
        ConvergenceEvent::Failure,
        ConvergenceEvent::LdpSessionLoss,
        ConvergenceEvent::LdpShutdown,
        ConvergenceEvent::LdpSessionUp,
        ConvergenceEvent::LabelWithdraw,
        ConvergenceEvent::LabelMapping,
        ConvergenceEvent::LdpRestart,
    ];

    /// Returns the name in configurations, records and figures.
    pub fn name(self) -> &'static str {
        match self {
            ConvergenceEvent::Withdraw => "withdraw",
            ConvergenceEvent::Announce => "announce",
            ConvergenceEvent::Failure => "failure",
            ConvergenceEvent::LdpSessionLoss => "ldp-session-loss",
            ConvergenceEvent::LdpShutdown => "ldp-shutdown",
            ConvergenceEvent::LdpSessionUp => "ldp-session-up",
            ConvergenceEvent::LabelWithdraw => "label-withdraw",
            ConvergenceEvent::LabelMapping => "label-mapping",
            ConvergenceEvent::LdpRestart => "ldp-restart",
        }
    }

    /// Returns whether this is an event of label distribution by LDP.
    pub fn is_of_ldp(self) -> bool {
        !self.is_of_bgp() && self != ConvergenceEvent::Failure
    }

    /// Returns whether this is an event of routes by BGP.
    pub fn is_of_bgp(self) -> bool {
        matches!(self, ConvergenceEvent::Withdraw | ConvergenceEvent::Announce)
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
    /// Forwarding operation of the packets, except with events of BGP, where it is IP.
    pub operation: Operation,
    /// Program and arguments that cause the failure.
    pub fail_command: Vec<String>,
    /// Program and arguments that end the failure after the trial; empty for none.
    pub repair_command: Vec<String>,
    /// Time from the loss of the session to the restart of the LDP speaker.
    pub restart_after: Duration,
    /// Reconnect and recovery time that the tester advertises for its restart.
    pub reconnect_time: Duration,
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
        if event.is_of_bgp() { Operation::Ip } else { self.operation }
    }

    /// Returns whether labels are withdrawn, or sessions end, by LDP.
    pub fn has_ldp_events(&self) -> bool {
        self.events.iter().any(|event| event.is_of_ldp())
    }

    /// Returns the sending time of a trial.
    pub fn trial(&self) -> Duration {
        Duration(self.before.0 + self.after.0)
    }
}
