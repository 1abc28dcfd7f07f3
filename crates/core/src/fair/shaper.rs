//! A fixed rate per VPN flow: what a provider sells without feedback from the core.

use crate::packet::Packet;
use crate::quantity::BitRate;
use crate::time::Instant;
use alloc::collections::VecDeque;

/// A queue and a rate; one packet of burst.
#[derive(Clone, Debug)]
pub struct Shaper<P> {
    rate: BitRate,
    limit: usize,
    queue: VecDeque<P>,
    free_at: Instant,
    queue_drops: u64,
}

impl<P: Packet> Shaper<P> {
    /// An empty queue before a line of this rate.
    pub fn new(rate: BitRate, limit: u32) -> Shaper<P> {
        Shaper { rate, limit: limit as usize, queue: VecDeque::new(), free_at: Instant::ZERO, queue_drops: 0 }
    }

    /// Another rate and limit; what waits stays.
    pub fn set(&mut self, rate: BitRate, limit: u32) {
        (self.rate, self.limit) = (rate, limit as usize);
    }

    /// Takes out what waits.
    pub fn take_queue(&mut self) -> VecDeque<P> {
        core::mem::take(&mut self.queue)
    }

    /// A customer's packet arrives; it is given back if the queue is full.
    pub fn handle_packet(&mut self, packet: P) -> Result<(), P> {
        if self.queue.len() >= self.limit {
            self.queue_drops += 1;
            return Err(packet);
        }
        self.queue.push_back(packet);
        Ok(())
    }

    /// The next packet that may leave.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<P> {
        if now < self.free_at {
            return None;
        }
        let packet = self.queue.pop_front()?;
        self.free_at = now + self.rate.transmission_time(packet.size());
        Some(packet)
    }

    /// When to poll again.
    pub fn poll_timeout(&self) -> Instant {
        if self.queue.is_empty() { Instant::NEVER } else { self.free_at }
    }

    /// Packets waiting.
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Packets that did not fit.
    pub fn queue_drops(&self) -> u64 {
        self.queue_drops
    }
}
