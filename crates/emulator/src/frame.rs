//! Frame as handled by queues and links: the fields that they need, and the bytes.

use super::classify::{Match, PacketLabel, flow_key};
use super::headers::{self, Headers};
use netstage_core::packet::{Ecn, QueuePacket};

/// Lowest traffic class that is urgent: voice (RFC 3246) and network control.
const URGENT: u8 = 5;

/// Frame in a link. Its bytes are in a buffer of the pool, so that a frame is cheap to move.
#[derive(Debug)]
pub struct EmulatedFrame {
    buffer: Box<[u8]>,
    length: u32,
    size: u32,
    customer: u32,
    flow_key: u64,
    label: PacketLabel,
    /// Class that replaces that of the label if the queue separates traffic classes.
    traffic_class_queue: Option<u16>,
    traffic_class: u8,
    network: u16,
    version: u8,
    ecn: Ecn,
    copy: bool,
}

impl EmulatedFrame {
    /// Creates a frame from the first `length` bytes of `buffer`.
    pub fn new(buffer: Box<[u8]>, length: usize, headers: &Headers, found: Match) -> EmulatedFrame {
        EmulatedFrame {
            buffer,
            length: length as u32,
            size: headers.size,
            customer: headers.customer,
            flow_key: flow_key(found, headers.conversation.as_ref()),
            label: found.label,
            traffic_class_queue: None,
            traffic_class: headers.traffic_class,
            network: headers.network as u16,
            version: headers.version,
            ecn: headers.ecn,
            copy: false,
        }
    }

    /// Returns the whole frame.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length as usize]
    }

    /// Returns the bytes that count on a link and are subject to bit errors.
    pub fn counted_mut(&mut self) -> &mut [u8] {
        let network = usize::from(self.network);
        &mut self.buffer[network..network + self.size as usize]
    }

    /// Returns the size in bytes of the packet without labels and tunnel headers.
    pub fn customer(&self) -> u32 {
        self.customer
    }

    /// Returns the label of the packet.
    pub fn label(&self) -> PacketLabel {
        self.label
    }

    /// Sets the class by the traffic class, urgent packets first.
    pub fn sort_by_traffic_class(&mut self) {
        self.traffic_class_queue = Some(u16::from(self.traffic_class < URGENT));
    }

    /// Returns whether the frame is a duplicate made by a link.
    pub fn is_copy(&self) -> bool {
        self.copy
    }

    /// Returns the buffer for the pool; `None` for a copy, whose buffer does not belong to the pool.
    pub fn into_buffer(self) -> Option<Box<[u8]>> {
        (!self.copy).then_some(self.buffer)
    }
}

/// A link clones the frames that it duplicates. The copy has a buffer of its own, because the two frames leave the link
/// independently.
impl Clone for EmulatedFrame {
    fn clone(&self) -> EmulatedFrame {
        EmulatedFrame { buffer: self.bytes().into(), copy: true, ..*self }
    }
}

impl QueuePacket for EmulatedFrame {
    #[inline]
    fn is_background(&self) -> bool {
        self.label.background
    }

    #[inline]
    fn size(&self) -> u32 {
        self.size
    }

    #[inline]
    fn class(&self) -> u16 {
        self.traffic_class_queue.unwrap_or(self.label.class)
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
    fn the_class_of_a_frame_follows_its_vpn_or_its_traffic_class() {
        for (traffic_class, queue) in [(0, 1), (4, 1), (5, 0), (7, 0)] {
            let headers = Headers {
                network: 0,
                size: 4,
                version: 0,
                ecn: Ecn::NotCapable,
                traffic_class,
                customer: 4,
                conversation: None,
            };
            let label = PacketLabel { class: 9, flow: None, background: false, connections: false };
            let mut frame =
                EmulatedFrame::new(Box::new([0; 4]), 4, &headers, Match { label, reverse: false });
            assert_eq!(frame.class(), 9);
            frame.sort_by_traffic_class();
            assert_eq!((frame.class(), frame.label().class), (queue, 9));
        }
    }
}
