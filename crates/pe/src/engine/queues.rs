//! In what order the packets of a VPN flow wait: classes by their DSCP, and flows inside.
//!
//! The disciplines are [`netstage_core::queue`]'s, the simulator's own. Here is what they need to
//! know of a packet, and what comes of a mark they set.

use super::pool::{Buffered, Inside};
use super::{Counter, State};
use netstage_core::packet;
use netstage_wire::ip::{self, Ecn, v4, v6};

impl State {
    /// What a VPN flow's queue has to know of a packet.
    #[inline]
    pub(super) fn inside(&mut self, flow: usize, packet: Buffered) -> Buffered {
        let table = self.flows[flow].classes;
        if table == 0 {
            return packet;
        }
        self.looked_into(usize::from(table) - 1, packet)
    }

    fn looked_into(&mut self, table: usize, packet: Buffered) -> Buffered {
        let Ok(view) = ip::View::new(self.pool.packet(packet)) else { return packet };
        let ecn = match view.ecn() {
            Ecn::NotCapable => packet::Ecn::NotCapable,
            Ecn::Capable0 | Ecn::Capable1 => packet::Ecn::Capable,
            Ecn::CongestionExperienced => packet::Ecn::CongestionExperienced,
        };
        let class = self.class_tables[table][usize::from(view.dscp())];
        let inside = Inside { flow: view.flow_hash(0), class, ecn };
        Buffered { inside, ..packet }
    }

    /// Writes into a packet that leaves what its queue has marked.
    #[inline]
    pub(super) fn write_mark(&mut self, packet: Buffered) {
        if packet.inside.ecn != packet::Ecn::CongestionExperienced {
            return;
        }
        let bytes = self.pool.packet(packet);
        if let Ok(mut header) = v4::HeaderMut::new(bytes) {
            header.set_ecn(Ecn::CongestionExperienced);
        } else if let Ok(mut header) = v6::HeaderMut::new(bytes) {
            header.set_ecn(Ecn::CongestionExperienced);
        }
    }

    /// Takes back the buffers of what queues have dropped.
    #[inline]
    pub(super) fn take_dropped(&mut self) {
        while let Some((flow, packet)) = self.edge.poll_dropped() {
            self.vpns[self.flows[flow].vpn as usize].held -= 1;
            self.pool.give(packet.buffer);
            self.count(Counter::QueueDropped.of(flow));
        }
    }
}
