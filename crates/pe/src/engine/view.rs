//! Read access to circuits and VPN flows, for metrics, `pe show` and tests.

use super::{Counter, EngineState};
use netstage_core::fair::{Egress, Ingress, PacedFlow};
use netstage_core::time::Instant;
use netstage_wire::mpls::LabelValue;

/// Present state of a circuit.
#[derive(Clone, Copy, Debug)]
pub struct CircuitView<'a> {
    /// Name of the circuit.
    pub name: &'a str,
    /// Name of its VPN.
    pub vpn: &'a str,
    /// Packets received from customers.
    pub received: PacketTotals,
    /// Packets sent to customers.
    pub sent: PacketTotals,
}

/// Packets and their IP-layer bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketTotals {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl PacketTotals {
    #[inline]
    pub(super) fn add(&mut self, length: u16) {
        self.packets += 1;
        self.bytes += u64::from(length);
    }
}

/// Present state of a VPN flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowView<'a> {
    pub(super) state: &'a EngineState,
    pub(super) number: usize,
}

impl<'a> FlowView<'a> {
    /// Returns the name of the VPN.
    pub fn vpn(&self) -> &'a str {
        self.state.flow_names(self.number).0
    }

    /// Returns the name of the peer.
    pub fn peer(&self) -> &'a str {
        self.state.flow_names(self.number).1
    }

    /// Returns the window, if the flow has one.
    pub fn window(&self) -> Option<&'a Ingress<impl netstage_core::packet::QueuePacket + use<>>> {
        self.state.edge.window(self.number)
    }

    /// Returns the state under rate consensus, if the flow is.
    pub fn paced(&self) -> Option<&'a PacedFlow<impl netstage_core::packet::QueuePacket + use<>>> {
        self.state.edge.paced(self.number)
    }

    /// Returns the number of data packets and bytes sent to the peer.
    pub fn sent(&self) -> (u64, u64) {
        (self.state.edge.packets_sent(self.number), self.state.edge.bytes_sent(self.number))
    }

    /// Returns the number of queued packets.
    pub fn queue_len(&self) -> usize {
        self.state.edge.queue_len(self.number)
    }

    /// Returns the start of the peer's silence, or `None` if the peer answers.
    /// [`Silence`](netstage_core::fair::Silence) selects the action of the flow.
    pub fn silent_since(&self) -> Option<Instant> {
        self.state.edge.silent_since(self.number)
    }

    /// Returns counts of packets received from the peer.
    pub fn received(&self) -> Egress {
        self.state.flows[self.number].egress
    }

    /// Returns the labels of sent and received packets.
    pub fn labels(&self) -> [LabelValue; 2] {
        let flow = &self.state.flows[self.number];
        [flow.send, flow.receive]
    }

    /// Returns the value of a counter.
    pub fn count(&self, counter: Counter) -> u64 {
        self.state.flows[self.number].counters.as_ref().map_or(0, |counters| counters.get(counter))
    }
}
