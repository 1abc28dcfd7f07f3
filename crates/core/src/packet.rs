//! What queues, links and fairness need to know of a packet, whoever stores it.

/// Explicit congestion notification codepoint (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// The transport does not understand ECN.
    #[default]
    NotCapable = 0,
    /// ECN-capable, ECT(0).
    Capable = 2,
    /// A queue on the path saw congestion.
    CongestionExperienced = 3,
}

/// A packet as the decisions see it. The simulator's is a small descriptor, the live
/// driver's a handle to a frame.
pub trait Packet {
    /// Length in bytes at the IP layer.
    fn size(&self) -> u32;
    /// Class for schedulers that keep classes apart (the VPN, or a traffic class).
    fn class(&self) -> u16;
    /// The ECN codepoint.
    fn ecn(&self) -> Ecn;
    /// Set the codepoint to "congestion experienced".
    fn mark_congestion(&mut self);
    /// Equal for packets of one flow, as a hash of its 5-tuple would be.
    fn flow_key(&self) -> u64;
}
