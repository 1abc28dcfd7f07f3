//! A frame as queues and links handle it: what the decisions need, and the bytes they are about.

use super::classify::{Label, Match, flow_key};
use super::headers::{self, Headers};
use netstage_core::packet::{Ecn, Packet};

/// Traffic classes from here on are voice (RFC 3246) and what controls the network.
const URGENT: u8 = 5;

/// A frame under way. Small; the bytes are in a buffer of the pool.
#[derive(Debug)]
pub struct Frame {
    buffer: Box<[u8]>,
    length: u32,
    size: u32,
    customer: u32,
    flow_key: u64,
    label: Label,
    /// Its class where links keep traffic classes apart, in place of the label's.
    urgency: Option<u16>,
    traffic_class: u8,
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
            urgency: None,
            traffic_class: headers.traffic_class,
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

    /// Sorts it by its traffic class: urgent ones first.
    pub fn sort_by_traffic_class(&mut self) {
        self.urgency = Some(u16::from(self.traffic_class < URGENT));
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
        self.urgency.unwrap_or(self.label.class)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_of_its_vpn_or_of_its_traffic_class() {
        for (traffic_class, urgency) in [(0, 1), (4, 1), (5, 0), (7, 0)] {
            let headers = Headers {
                network: 0,
                size: 4,
                version: 0,
                ecn: Ecn::NotCapable,
                traffic_class,
                customer: 4,
                conversation: None,
            };
            let label = Label { class: 9, flow: None, background: false, connections: false };
            let mut frame = Frame::new(Box::new([0; 4]), 4, &headers, Match { label, reverse: false });
            assert_eq!(frame.class(), 9);
            frame.sort_by_traffic_class();
            assert_eq!((frame.class(), frame.label().class), (urgency, 9));
        }
    }
}
