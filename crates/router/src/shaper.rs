//! Shaper of a port: limits the rate, and queues frames in classes with the disciplines of
//! [`netstage_core::queue`].

use netstage_core::packet::{self, QueuePacket};
use netstage_core::quantity::Capacity;
use netstage_core::queue::{PacketQueue, TrafficClass};
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_scenario::router::Shaping;
use netstage_wire::ethernet;
use netstage_wire::ip::{self, Ecn, v4, v6};
use netstage_wire::mpls::{ENTRY, LabelStackEntry};

/// Burst that may be caught up on after a late poll.
const BURST: Duration = Duration::from_millis(1);

/// Rate-limited line and its queue.
#[derive(Debug)]
pub struct Shaper {
    queue: PacketQueue<ShapedFrame>,
    /// Class of each DSCP.
    classes: [u8; 64],
    rate_bps: u64,
    /// Time at which the line becomes free.
    free: Instant,
}

/// Queued frame.
#[derive(Clone, Debug)]
struct ShapedFrame {
    frame: Vec<u8>,
    flow: u64,
    class: u8,
    ecn: packet::Ecn,
}

impl QueuePacket for ShapedFrame {
    fn size(&self) -> u32 {
        self.frame.len() as u32
    }

    fn class(&self) -> u16 {
        self.class.into()
    }

    fn ecn(&self) -> packet::Ecn {
        self.ecn
    }

    fn mark_congestion(&mut self) {
        let packet = &mut self.frame[ethernet::HEADER..];
        // A packet beneath labels cannot be marked and is forwarded unmarked.
        if let Ok(mut header) = v4::HeaderMut::new(packet) {
            header.set_ecn(Ecn::CongestionExperienced);
        } else if let Ok(mut header) = v6::HeaderMut::new(packet) {
            header.set_ecn(Ecn::CongestionExperienced);
        }
        self.ecn = packet::Ecn::CongestionExperienced;
    }

    fn flow_key(&self) -> u64 {
        self.flow
    }
}

impl Shaper {
    /// Creates an idle line.
    ///
    /// # Panics
    ///
    /// Panics if there is no class.
    pub fn new(shaping: &Shaping) -> Shaper {
        let classes = TrafficClass::table(&shaping.classes);
        let discipline = TrafficClass::discipline(&shaping.classes);
        // The limits of the classes replace this one.
        let queue = PacketQueue::new(&discipline, Capacity::Packets(0), RandomStream::new(0, "port"));
        Shaper { queue, classes, rate_bps: shaping.rate.0, free: Instant::ZERO }
    }

    /// Queues a frame. Returns the number of frames dropped.
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8]) -> u64 {
        let (codepoint, flow, ecn) = classify(frame);
        let class = self.classes[usize::from(codepoint)];
        let mut dropped = 0;
        let waiting = ShapedFrame { frame: frame.to_vec(), flow, class, ecn };
        self.queue.enqueue(now, waiting, &mut |_| dropped += 1);
        dropped
    }

    /// Returns the next frame to send now. Frames dropped instead are added to `dropped`.
    pub fn poll_transmit(&mut self, now: Instant, dropped: &mut u64) -> Option<Vec<u8>> {
        if self.free > now {
            return None;
        }
        let next = self.queue.dequeue(now, &mut |_| *dropped += 1)?;
        let nanoseconds = next.frame.len() as u64 * 8 * 1_000_000_000 / self.rate_bps;
        let since = Instant(now.0.saturating_sub(BURST.0));
        self.free = self.free.max(since) + Duration(nanoseconds);
        Some(next.frame)
    }

    /// Returns the time of the next transmission.
    pub fn poll_timeout(&self) -> Instant {
        if self.queue.is_empty() { Instant::NEVER } else { self.free }
    }

    /// Returns the number of queued frames.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// Returns the DSCP of the packet in a frame, its flow, and its ECN capability. The traffic class of a
/// labeled packet is mapped to the class selector of the same number (RFC 2474 section 4.2.2).
fn classify(frame: &[u8]) -> (u8, u64, packet::Ecn) {
    let packet = &frame[ethernet::HEADER..];
    if frame[ethernet::HEADER - 2..ethernet::HEADER] == ethernet::ethertype::MPLS.to_be_bytes() {
        let entry = packet.get(..ENTRY).and_then(LabelStackEntry::read);
        let (class, flow) =
            entry.map_or((0, 0), |entry| (entry.traffic_class, u64::from(entry.label.number())));
        return (class << 3, flow, packet::Ecn::NotCapable);
    }
    let Ok(view) = ip::View::new(packet) else { return (0, 0, packet::Ecn::NotCapable) };
    let ecn = match view.ecn() {
        Ecn::NotCapable => packet::Ecn::NotCapable,
        Ecn::Capable0 | Ecn::Capable1 => packet::Ecn::Capable,
        Ecn::CongestionExperienced => packet::Ecn::CongestionExperienced,
    };
    (view.dscp(), view.flow_hash(0).into(), ecn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::quantity::BitRate;
    use netstage_wire::mpls::LabelValue;

    fn class(codepoints: &[u8], priority: u8, packets: u32) -> TrafficClass {
        TrafficClass { codepoints: codepoints.to_vec(), priority, weight: 1.0, packets, fq_codel: None }
    }

    /// Builds a frame of 1000 bytes.
    fn frame(codepoint: u8, number: u8) -> Vec<u8> {
        let mut frame = vec![0; 1000];
        frame[12..14].copy_from_slice(&ethernet::ethertype::IPV4.to_be_bytes());
        let packet = &mut frame[ethernet::HEADER..];
        (packet[0], packet[1], packet[8], packet[9]) = (0x45, codepoint << 2, 64, 17);
        packet[2..4].copy_from_slice(&986_u16.to_be_bytes());
        let checksum = netstage_wire::checksum::checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        frame[999] = number;
        frame
    }

    fn labeled(traffic_class: u8, number: u8) -> Vec<u8> {
        let mut frame = frame(0, number);
        frame[12..14].copy_from_slice(&ethernet::ethertype::MPLS.to_be_bytes());
        let entry =
            LabelStackEntry { label: LabelValue::new(300).unwrap(), traffic_class, bottom: true, ttl: 9 };
        frame[14..18].copy_from_slice(&entry.to_bytes());
        frame
    }

    #[test]
    fn a_line_sends_at_its_rate_and_in_order_of_priority() {
        // At this rate a frame takes one millisecond.
        let classes = vec![class(&[40, 46], 0, 10), class(&[], 1, 3)];
        let mut shaper = Shaper::new(&Shaping { rate: BitRate(8_000_000), classes });
        let start = Instant::ZERO + Duration::from_secs(1);
        let mut dropped = 0;
        for number in 0..5 {
            dropped += shaper.handle_frame(start, &frame(0, number));
        }
        assert_eq!((dropped, shaper.len()), (2, 3));
        assert_eq!(shaper.handle_frame(start, &frame(46, 7)), 0);
        assert_eq!(shaper.handle_frame(start, &labeled(5, 8)), 0, "class selector 5 is DSCP 40");
        let (mut now, mut order) = (start, Vec::new());
        while shaper.poll_timeout() < Instant::NEVER {
            now = now.max(shaper.poll_timeout());
            while let Some(frame) = shaper.poll_transmit(now, &mut dropped) {
                order.push((frame[999], (now.0 - start.0) / 1_000_000));
            }
        }
        // The line was idle, so the first frame leaves at once, and the second within the burst.
        assert_eq!(order, [(7, 0), (8, 0), (0, 1), (1, 2), (2, 3)]);
        assert!(shaper.is_empty());
    }

    #[test]
    fn the_rate_holds_with_infrequent_polls() {
        let mut shaper =
            Shaper::new(&Shaping { rate: BitRate(80_000_000), classes: vec![class(&[], 0, 10_000)] });
        let dropped: u64 = (0..5_000).map(|_| shaper.handle_frame(Instant::ZERO, &frame(0, 0))).sum();
        assert_eq!(dropped, 0);
        let (mut now, mut sent) = (Instant::ZERO, 0);
        for _ in 0..1_000 {
            now += Duration(250_000);
            while shaper.poll_transmit(now, &mut 0).is_some() {
                sent += 1;
            }
        }
        // A quarter of a second carries 2500 frames.
        assert!((2_490..=2_511).contains(&sent), "{sent}");
    }
}
