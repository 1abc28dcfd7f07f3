//! The simulator's packet: a small descriptor, copied between rings.

use netstage_core::fair;
use netstage_core::packet::{self, Ecn};
use netstage_core::tcp;
use netstage_core::time::Instant;
use netstage_core::traffic::application::ApplicationMessage;

/// A packet in flight.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedPacket {
    /// Next step of the route.
    pub step: u32,
    /// Flow number over the members of all groups with this kind of content; the VPN for management packets.
    pub flow: u32,
    /// Bytes at the IP layer.
    pub size: u32,
    /// VPN; the number of VPNs for packets outside any VPN.
    pub class: u16,
    /// ECN codepoint in the IP header.
    pub ecn: Ecn,
    /// Packet counts as background load.
    pub background: bool,
    /// Content of the packet.
    pub body: PacketBody,
}

/// Content of a packet.
#[derive(Clone, Copy, Debug)]
pub enum PacketBody {
    /// A TCP segment.
    Data(tcp::DataSegment),
    /// A TCP ACK.
    Ack(tcp::Ack),
    /// A datagram.
    Datagram {
        /// Time at which the application sent the datagram.
        sent: Instant,
        /// Sequence number.
        number: u32,
        /// Number of bit errors that a comparison of the payload would detect.
        wrong_bits: u32,
    },
    /// An application message in a datagram. The flow number is twice that of the dialogue, plus one for
    /// messages from the server.
    Message(ApplicationMessage),
    /// A probe; its target answers it.
    Probe {
        /// Time at which the probe was sent.
        sent: Instant,
        /// Sequence number.
        number: u32,
    },
    /// A response to a probe.
    Answer {
        /// Time at which the probe was sent.
        sent: Instant,
        /// Time at which the target responded.
        answered: Instant,
        /// Sequence number of the probe.
        number: u32,
    },
    /// A query from ingress PE to egress PE.
    Query(fair::Query),
    /// A reply from egress PE to ingress PE.
    Reply(fair::Reply),
}

impl packet::QueuePacket for SimulatedPacket {
    fn is_background(&self) -> bool {
        self.background
    }

    #[inline]
    fn size(&self) -> u32 {
        self.size
    }

    #[inline]
    fn class(&self) -> u16 {
        self.class
    }

    #[inline]
    fn ecn(&self) -> Ecn {
        self.ecn
    }

    #[inline]
    fn mark_congestion(&mut self) {
        self.ecn = Ecn::CongestionExperienced;
    }

    #[inline]
    fn flow_key(&self) -> u64 {
        // Data and ACKs have different keys, as their 5-tuples differ.
        let reverse =
            matches!(self.body, PacketBody::Ack(_) | PacketBody::Reply(_) | PacketBody::Answer { .. });
        // Each kind of content has its own numbering of flows. A trace of a PE records 32 bits of the key.
        let numbering: u64 = match self.body {
            PacketBody::Data(_) | PacketBody::Ack(_) => 0,
            PacketBody::Message(_) => 1,
            PacketBody::Datagram { .. } => 2,
            PacketBody::Probe { .. } | PacketBody::Answer { .. } => 3,
            PacketBody::Query(_) | PacketBody::Reply(_) => 4,
        };
        numbering << 29 | u64::from(self.flow) << 1 | u64::from(reverse)
    }
}
