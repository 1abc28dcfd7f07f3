//! Drop tail: first in, first out; an arrival that does not fit is dropped.

use crate::packet::QueuePacket;
use crate::quantity::Capacity;
use crate::time::Instant;
use alloc::collections::VecDeque;

/// A drop-tail queue.
#[derive(Clone, Debug)]
pub struct DropTail<P> {
    buffer: Capacity,
    waiting: VecDeque<P>,
    bytes: u64,
}

impl<P: QueuePacket> DropTail<P> {
    pub(super) fn new(buffer: Capacity) -> DropTail<P> {
        DropTail { buffer, waiting: VecDeque::new(), bytes: 0 }
    }

    #[inline]
    pub(super) fn enqueue(&mut self, _now: Instant, packet: P, dropped: &mut impl FnMut(P)) {
        let size = packet.size();
        if self.buffer.admits(self.waiting.len(), self.bytes, size) {
            self.bytes += u64::from(size);
            self.waiting.push_back(packet);
        } else {
            dropped(packet);
        }
    }

    #[inline]
    pub(super) fn dequeue(&mut self, _now: Instant, _dropped: &mut impl FnMut(P)) -> Option<P> {
        let packet = self.waiting.pop_front()?;
        self.bytes -= u64::from(packet.size());
        Some(packet)
    }

    #[inline]
    pub(super) fn pass(&mut self, _now: Instant, packet: P, _dropped: &mut impl FnMut(P)) -> Option<P> {
        Some(packet)
    }

    pub(super) fn clear(&mut self, _now: Instant, dropped: &mut impl FnMut(P)) {
        self.bytes = 0;
        self.waiting.drain(..).for_each(dropped);
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}
