//! Fixed-size packet buffers, allocated by number.
//!
//! A VPN may occupy as many buffers as are still free (Choudhury and Hahne, "Dynamic queue length thresholds
//! for shared-memory packet switches", with α = 1): one greedy VPN leaves as many buffers free as it
//! occupies, and n greedy VPNs leave a share of 1 / (n + 1). Queue limits therefore need not sum to the pool
//! size, and a VPN without waiting packets always finds a buffer.

use netstage_core::packet::{Ecn, QueuePacket};

/// Room before a packet for all headers ever prepended, bytes.
pub(super) const HEADROOM: usize = 96;

/// Packet in a buffer; its first byte follows the headroom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredPacket {
    pub buffer: u32,
    /// Length of the IP packet, bytes.
    pub length: u16,
    /// Fields for queues other than first in, first out.
    pub inside: InnerPacket,
}

/// Fields of a customer packet that queues use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InnerPacket {
    /// Flow hash; equal for all packets of a flow.
    pub flow: u32,
    pub class: u8,
    pub ecn: Ecn,
}

impl StoredPacket {
    pub fn new(buffer: u32, length: u16) -> StoredPacket {
        StoredPacket { buffer, length, inside: InnerPacket::default() }
    }
}

impl QueuePacket for StoredPacket {
    fn size(&self) -> u32 {
        self.length.into()
    }

    fn class(&self) -> u16 {
        self.inside.class.into()
    }

    fn ecn(&self) -> Ecn {
        self.inside.ecn
    }

    /// The mark is written into the packet when it leaves.
    fn mark_congestion(&mut self) {
        self.inside.ecn = Ecn::CongestionExperienced;
    }

    fn flow_key(&self) -> u64 {
        self.inside.flow.into()
    }
}

/// Pool of buffers.
#[derive(Debug)]
pub(super) struct Pool {
    bytes: Vec<u8>,
    size: usize,
    /// Last released, first allocated, while its memory is still cached.
    free: Vec<u32>,
    /// Buffers not available to queues, for packets that pass through in one turn.
    reserve: usize,
    /// Buffers of frames in the current batch that are not processed yet.
    pub undecided: usize,
}

impl Pool {
    /// Creates a pool for packets of up to `packet` bytes: `queued` buffers for waiting packets and `reserve`
    /// more.
    pub fn new(queued: usize, reserve: usize, packet: usize) -> Pool {
        let size = (HEADROOM + packet).next_multiple_of(64);
        let count = queued + reserve;
        Pool {
            bytes: vec![0; size * count],
            size,
            free: (0..count as u32).rev().collect(),
            reserve,
            undecided: 0,
        }
    }

    /// Returns whether a VPN that occupies `held` buffers may queue another packet.
    #[inline]
    pub fn may_queue(&self, held: u32) -> bool {
        (held as usize) < (self.free.len() + self.undecided).saturating_sub(self.reserve)
    }

    /// Returns the size in bytes of the largest packet a buffer holds.
    #[inline]
    pub fn room(&self) -> usize {
        self.size - HEADROOM
    }

    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    #[inline]
    pub fn release(&mut self, buffer: u32) {
        self.free.push(buffer);
    }

    #[inline]
    pub fn bytes(&mut self, buffer: u32) -> &mut [u8] {
        let start = buffer as usize * self.size;
        &mut self.bytes[start..start + self.size]
    }

    /// Copies a packet with `headers` bytes of headers before it into a buffer, or returns `None` if it does
    /// not fit or no buffer is free.
    #[inline]
    pub fn store(&mut self, bytes: &[u8], headers: usize) -> Option<StoredPacket> {
        let length = bytes.len() - headers;
        if headers > HEADROOM || length > self.room() {
            return None;
        }
        let buffer = self.take()?;
        self.bytes(buffer)[HEADROOM - headers..HEADROOM + length].copy_from_slice(bytes);
        Some(StoredPacket::new(buffer, length as u16))
    }

    /// Returns the headroom of a stored packet; the headers it was stored with are at the end.
    #[inline]
    pub fn headers(&self, buffered: StoredPacket) -> &[u8] {
        let start = buffered.buffer as usize * self.size;
        &self.bytes[start..start + HEADROOM]
    }

    /// Returns the packet in a buffer.
    #[inline]
    pub fn packet(&mut self, buffered: StoredPacket) -> &mut [u8] {
        &mut self.bytes(buffered.buffer)[HEADROOM..HEADROOM + usize::from(buffered.length)]
    }

    /// Grows the pool to the sizes given, with the same meaning as in [`new`](Pool::new). Allocated buffers
    /// keep their numbers and contents. The pool never shrinks.
    pub fn fit(&mut self, queued: usize, reserve: usize, packet: usize) {
        let size = self.size.max((HEADROOM + packet).next_multiple_of(64));
        let before = self.bytes.len() / self.size;
        let count = before.max(queued + reserve);
        self.reserve = reserve;
        if (size, count) == (self.size, before) {
            return;
        }
        let mut bytes = vec![0; size * count];
        for (to, from) in bytes.chunks_exact_mut(size).zip(self.bytes.chunks_exact(self.size)) {
            to[..self.size].copy_from_slice(from);
        }
        (self.bytes, self.size) = (bytes, size);
        self.free.splice(0..0, (before as u32..count as u32).rev());
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_greedy_vpn_leaves_as_many_buffers_free_as_it_holds() {
        let mut pool = Pool::new(100, 10, 1500);
        let mut held = [0_u32; 3];
        for held in &mut held[..2] {
            while pool.may_queue(*held) {
                pool.take().unwrap();
                *held += 1;
            }
        }
        assert_eq!(held, [50, 25, 0]);
        assert!(pool.may_queue(held[2]) && pool.free() == 35);
    }

    #[test]
    fn allocated_buffers_survive_a_resize() {
        let mut pool = Pool::new(2, 1, 100);
        let kept = pool.store(&[7; 100], 0).unwrap();
        pool.fit(5, 2, 1500);
        assert_eq!((pool.free(), &pool.bytes(kept.buffer)[HEADROOM..HEADROOM + 100]), (6, &[7; 100][..]));
        let others: Vec<u32> =
            std::iter::from_fn(|| pool.store(&[1; 1500], 0)).map(|kept| kept.buffer).collect();
        assert!(others.len() == 6 && !others.contains(&kept.buffer));
        pool.release(kept.buffer);
        pool.fit(1, 1, 10);
        assert_eq!(pool.store(&[1; 1500], 0), Some(StoredPacket { length: 1500, ..kept }));
    }

    #[test]
    fn buffers_do_not_overlap() {
        let mut pool = Pool::new(2, 0, 100);
        let headed = pool.store(&[4; 30], 10).unwrap();
        assert_eq!((pool.packet(headed).len(), pool.bytes(headed.buffer)[HEADROOM - 10]), (20, 4));
        pool.release(headed.buffer);
        let [one, other] = [1, 2].map(|byte| pool.store(&[byte; 100], 0).unwrap());
        assert_eq!(pool.store(&[3; 1], 0), None);
        pool.release(one.buffer);
        assert_eq!(pool.store(&[3; 200], 0), None);
        pool.bytes(one.buffer).fill(9);
        assert_eq!(pool.bytes(other.buffer)[HEADROOM..HEADROOM + 100], [2; 100]);
    }
}
