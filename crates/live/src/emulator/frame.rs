//! A frame as queues and links handle it: what the decisions need, and the bytes they are about.

use super::classify::{Label, Match, flow_key};
use super::headers::{self, Headers};
use netstage_core::packet::{Ecn, Packet};

/// A frame under way. Small; the bytes are in a buffer of the pool.
#[derive(Debug)]
pub struct Frame {
    buffer: Box<[u8]>,
    length: u32,
    size: u32,
    customer: u32,
    flow_key: u64,
    label: Label,
    network: u16,
    version: u8,
    ecn: Ecn,
    copy: bool,
}

impl Frame {
    /// A frame of `length` bytes that begins `buffer`.
    pub fn new(buffer: Box<[u8]>, length: usize, headers: &Headers, found: Match) -> Frame {
        Frame {
            buffer,
            length: length as u32,
            size: headers.size,
            customer: headers.customer,
            flow_key: flow_key(found, headers.conversation.as_ref()),
            label: found.label,
            network: headers.network as u16,
            version: headers.version,
            ecn: headers.ecn,
            copy: false,
        }
    }

    /// The whole frame.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length as usize]
    }

    /// The bytes that count on a link, which are those its bit errors strike.
    pub fn counted_mut(&mut self) -> &mut [u8] {
        let network = usize::from(self.network);
        &mut self.buffer[network..network + self.size as usize]
    }

    /// Bytes of the packet without labels and tunnel.
    pub fn customer(&self) -> u32 {
        self.customer
    }

    /// To whom it belongs.
    pub fn label(&self) -> Label {
        self.label
    }

    /// Whether a link made it, by duplicating.
    pub fn is_copy(&self) -> bool {
        self.copy
    }

    /// The buffer, for the pool to take back; none if the frame is a copy, whose buffer is not
    /// the pool's.
    pub fn into_buffer(self) -> Option<Box<[u8]>> {
        (!self.copy).then_some(self.buffer)
    }
}

/// A link clones what it duplicates: the copy has its own bytes, so that both can be sent,
/// lost and given back apart.
impl Clone for Frame {
    fn clone(&self) -> Frame {
        Frame { buffer: self.bytes().into(), copy: true, ..*self }
    }
}

impl Packet for Frame {
    #[inline]
    fn size(&self) -> u32 {
        self.size
    }

    #[inline]
    fn class(&self) -> u16 {
        self.label.class
    }

    #[inline]
    fn ecn(&self) -> Ecn {
        self.ecn
    }

    #[inline]
    fn mark_congestion(&mut self) {
        self.ecn = Ecn::CongestionExperienced;
        let version = self.version;
        headers::mark_congestion(self.counted_mut(), version);
    }

    #[inline]
    fn flow_key(&self) -> u64 {
        self.flow_key
    }
}
