//! The simulator's packet: a small descriptor, copied from ring to ring.

use netstage_core::fair;
use netstage_core::packet::{self, Ecn};
use netstage_core::tcp;
use netstage_core::time::Instant;
use netstage_core::traffic::application::Message;

/// A packet under way.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// The step of its route it takes next.
    pub step: u32,
    /// Flow (of all members of all groups), or VPN for management packets.
    pub flow: u32,
    /// Bytes at the IP layer.
    pub size: u32,
    /// VPN, or the number of VPNs for what is in none.
    pub class: u16,
    /// Codepoint in the IP header.
    pub ecn: Ecn,
    /// Counted as background load.
    pub background: bool,
    /// What it carries.
    pub body: Body,
}

/// What a packet carries.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    /// A TCP segment.
    Data(tcp::Data),
    /// A TCP acknowledgement.
    Ack(tcp::Ack),
    /// A datagram.
    Datagram {
        /// When its application sent it.
        sent: Instant,
        /// Wrong bits that a comparison of its payload would find.
        wrong_bits: u32,
    },
    /// A message of an application in a datagram; the flow is twice that of its dialogue,
    /// and one more from the server.
    Message(Message),
    /// A probe that its target answers, and when it was sent.
    Probe(Instant),
    /// The answer to a probe.
    Answer {
        /// When the probe was sent.
        sent: Instant,
        /// When its target answered.
        answered: Instant,
    },
    /// A question from ingress to egress PE.
    Query(fair::Query),
    /// The egress PE's answer.
    Reply(fair::Reply),
}

impl packet::Packet for Packet {
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
        // Data and acknowledgements are told apart, as their 5-tuples would be.
        let reverse = matches!(self.body, Body::Ack(_) | Body::Reply(_) | Body::Answer { .. });
        // Dialogues over datagrams are numbered apart from other flows.
        let dialogue = matches!(self.body, Body::Message(_));
        u64::from(dialogue) << 33 | u64::from(self.flow) << 1 | u64::from(reverse)
    }
}
