//! A fixed rate per VPN flow: the static alternative without feedback from the core.

use crate::packet::QueuePacket;
use crate::quantity::BitRate;
use crate::time::Instant;
use alloc::collections::VecDeque;

/// A queue and a rate, with a burst of one packet.
#[derive(Clone, Debug)]
pub struct Shaper<P> {
    rate: BitRate,
    limit: usize,
    queue: VecDeque<P>,
    free_at: Instant,
    queue_drops: u64,
}

impl<P: QueuePacket> Shaper<P> {
    /// Creates an empty shaper with this rate in bits per second and this queue limit in packets.
    pub fn new(rate: BitRate, limit: u32) -> Shaper<P> {
        Shaper { rate, limit: limit as usize, queue: VecDeque::new(), free_at: Instant::ZERO, queue_drops: 0 }
    }

    /// Changes the rate and the queue limit; waiting packets stay.
    pub fn set(&mut self, rate: BitRate, limit: u32) {
        (self.rate, self.limit) = (rate, limit as usize);
    }

    /// Removes and returns the waiting packets.
    pub fn take_queue(&mut self) -> VecDeque<P> {
        core::mem::take(&mut self.queue)
    }

    /// Enqueues a customer packet, or returns it if the queue is full.
    pub fn handle_packet(&mut self, packet: P) -> Result<(), P> {
        if self.queue.len() >= self.limit {
            self.queue_drops += 1;
            return Err(packet);
        }
        self.queue.push_back(packet);
        Ok(())
    }

    /// Returns the next packet if it may leave now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<P> {
        if now < self.free_at {
            return None;
        }
        let packet = self.queue.pop_front()?;
        self.free_at = now + self.rate.transmission_time(packet.size());
        Some(packet)
    }

    /// Returns the time of the next call of [`poll_transmit`](Shaper::poll_transmit).
    pub fn poll_timeout(&self) -> Instant {
        if self.queue.is_empty() { Instant::NEVER } else { self.free_at }
    }

    /// Returns the number of waiting packets.
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of packets dropped because the queue was full.
    pub fn queue_drops(&self) -> u64 {
        self.queue_drops
    }
}
