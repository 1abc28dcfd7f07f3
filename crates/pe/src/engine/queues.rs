//! Classification of packets for the queues of a VPN flow: class by DSCP, then flow within the class.
//!
//! The queueing disciplines are those of [`netstage_core::queue`], shared with the simulator. This module
//! extracts the fields they need from a packet and writes the congestion marks they set.

use super::pool::{InnerPacket, StoredPacket};
use super::{Counter, EngineState};
use netstage_core::packet;
use netstage_wire::ip::{self, Ecn, v4, v6};

impl EngineState {
    /// Fills in the packet fields that the queue of a VPN flow needs.
    #[inline]
    pub(super) fn fill_inner_packet(&mut self, flow: usize, packet: StoredPacket) -> StoredPacket {
        let table = self.flows[flow].classes;
        if table == 0 {
            return packet;
        }
        self.inner_fields(usize::from(table) - 1, packet)
    }

    fn inner_fields(&mut self, table: usize, packet: StoredPacket) -> StoredPacket {
        let Ok(view) = ip::View::new(self.pool.packet(packet)) else { return packet };
        let ecn = match view.ecn() {
            Ecn::NotCapable => packet::Ecn::NotCapable,
            Ecn::Capable0 | Ecn::Capable1 => packet::Ecn::Capable,
            Ecn::CongestionExperienced => packet::Ecn::CongestionExperienced,
        };
        let class = self.class_tables[table][usize::from(view.dscp())];
        let inside = InnerPacket { flow: view.flow_hash(0), class, ecn };
        StoredPacket { inside, ..packet }
    }

    /// Writes the congestion mark of the queue into a packet that leaves.
    #[inline]
    pub(super) fn write_mark(&mut self, packet: StoredPacket) {
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

    /// Releases the buffers of packets dropped by queues.
    #[inline]
    pub(super) fn take_dropped(&mut self) {
        while let Some((flow, packet)) = self.edge.poll_dropped() {
            self.vpns[self.flows[flow].vpn as usize].held -= 1;
            self.pool.release(packet.buffer);
            self.count(Counter::QueueDropped.of(flow));
        }
    }
}
