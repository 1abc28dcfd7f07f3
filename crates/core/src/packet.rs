//! The properties of a packet that queues, links and fair sharing use, independent of its representation.

/// Length of a full packet at the IP layer, bytes: the MTU of Ethernet. Random times of hosts and phases of flows are
/// shares of its transmission time.
pub const FULL_PACKET: u32 = 1_500;

/// Explicit congestion notification codepoint (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// Not-ECT: the transport does not support ECN.
    #[default]
    NotCapable = 0,
    /// ECT(0): the transport supports ECN.
    Capable = 2,
    /// CE: a queue on the path experienced congestion.
    CongestionExperienced = 3,
}

/// A packet as queues and controllers see it: a small descriptor in the simulator, a handle to a frame in a
/// live driver.
pub trait QueuePacket {
    /// Returns the length in bytes at the IP layer.
    fn size(&self) -> u32;
    /// Returns the class for schedulers with classes: the VPN, or a traffic class.
    fn class(&self) -> u16;
    /// Returns the ECN codepoint.
    fn ecn(&self) -> Ecn;
    /// Sets the codepoint to CE ("congestion experienced").
    fn mark_congestion(&mut self);
    /// Returns a key that is equal for all packets of a flow, such as a hash of the 5-tuple.
    fn flow_key(&self) -> u64;
    /// Returns whether the packet is background load.
    fn is_background(&self) -> bool {
        false
    }
}
