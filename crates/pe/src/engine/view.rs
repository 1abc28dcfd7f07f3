//! What is known of circuits and VPN flows, for metrics, `pe show` and tests.

use super::{Counter, State};
use netstage_core::fair::{Egress, Ingress};
use netstage_core::time::Instant;
use netstage_wire::mpls::Label;

/// What is known of a circuit.
#[derive(Clone, Copy, Debug)]
pub struct CircuitView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its VPN's name.
    pub vpn: &'a str,
    /// What came from customers.
    pub received: Traffic,
    /// What went to them.
    pub sent: Traffic,
}

/// Packets and their bytes, at the IP layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Traffic {
    #[inline]
    pub(super) fn add(&mut self, length: u16) {
        self.packets += 1;
        self.bytes += u64::from(length);
    }
}

/// What is known of a VPN flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowView<'a> {
    pub(super) state: &'a State,
    pub(super) number: usize,
}

impl<'a> FlowView<'a> {
    /// Its VPN's name.
    pub fn vpn(&self) -> &'a str {
        self.state.flow_names(self.number).0
    }

    /// Its peer's name.
    pub fn peer(&self) -> &'a str {
        self.state.flow_names(self.number).1
    }

    /// Its window, where it has one.
    pub fn window(&self) -> Option<&'a Ingress<impl netstage_core::packet::Packet + use<>>> {
        self.state.edge.window(self.number)
    }

    /// Data packets and bytes sent to the peer.
    pub fn sent(&self) -> (u64, u64) {
        (self.state.edge.packets_sent(self.number), self.state.edge.bytes_sent(self.number))
    }

    /// Packets that wait.
    pub fn queue_len(&self) -> usize {
        self.state.edge.queue_len(self.number)
    }

    /// Since when the peer has not answered; see [`Silence`](netstage_core::fair::Silence) for
    /// what the flow does.
    pub fn silent_since(&self) -> Option<Instant> {
        self.state.edge.silent_since(self.number)
    }

    /// What came from the peer.
    pub fn received(&self) -> Egress {
        self.state.flows[self.number].egress
    }

    /// The labels of what is sent and of what is received.
    pub fn labels(&self) -> [Label; 2] {
        let flow = &self.state.flows[self.number];
        [flow.send, flow.receive]
    }

    /// How often something was refused or noticed.
    pub fn count(&self, counter: Counter) -> u64 {
        self.state.flows[self.number].counters.as_ref().map_or(0, |counters| counters.get(counter))
    }
}
