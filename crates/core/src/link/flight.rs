//! Packets propagating to the far end, in the order of arrival.

use super::LinkArrival;
use crate::time::Instant;
use alloc::collections::{BTreeMap, VecDeque};

#[derive(Clone, Debug)]
pub(super) enum PropagationQueue<P> {
    /// Packets in the order of sending, and the latest arrival: no packet arrives before an earlier one.
    InOrder(VecDeque<LinkArrival<P>>, Instant),
    /// Packets by arrival and sequence number, and the next sequence number.
    Reordered(BTreeMap<(Instant, u64), (P, u32)>, u64),
}

impl<P> PropagationQueue<P> {
    pub(super) fn new(reorder: bool) -> PropagationQueue<P> {
        if reorder {
            PropagationQueue::Reordered(BTreeMap::new(), 0)
        } else {
            PropagationQueue::InOrder(VecDeque::new(), Instant::ZERO)
        }
    }

    #[inline]
    pub(super) fn push(&mut self, packet: P, at: Instant, bit_errors: u32) {
        match self {
            PropagationQueue::InOrder(packets, last) => {
                *last = at.max(*last);
                packets.push_back(LinkArrival { packet, at: *last, bit_errors });
            }
            PropagationQueue::Reordered(packets, sequence) => {
                packets.insert((at, *sequence), (packet, bit_errors));
                *sequence += 1;
            }
        }
    }

    #[inline]
    pub(super) fn pop(&mut self, now: Instant) -> Option<LinkArrival<P>> {
        match self {
            PropagationQueue::InOrder(packets, _) => packets.pop_front_if(|arrival| arrival.at <= now),
            PropagationQueue::Reordered(packets, _) => {
                let first = packets.first_entry().filter(|entry| entry.key().0 <= now)?;
                let ((at, _), (packet, bit_errors)) = first.remove_entry();
                Some(LinkArrival { packet, at, bit_errors })
            }
        }
    }

    #[inline]
    pub(super) fn next_arrival(&self) -> Instant {
        match self {
            PropagationQueue::InOrder(packets, _) => {
                packets.front().map_or(Instant::NEVER, |arrival| arrival.at)
            }
            PropagationQueue::Reordered(packets, _) => {
                packets.first_key_value().map_or(Instant::NEVER, |(key, _)| key.0)
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            PropagationQueue::InOrder(packets, _) => packets.len(),
            PropagationQueue::Reordered(packets, _) => packets.len(),
        }
    }

    /// Loses the packets that arrive after `now`.
    pub(super) fn fail(&mut self, now: Instant, lose: &mut impl FnMut(P)) {
        match self {
            PropagationQueue::InOrder(packets, last) => {
                let arrived = packets.partition_point(|arrival| arrival.at <= now);
                packets.drain(arrived..).for_each(|arrival| lose(arrival.packet));
                *last = now.min(*last);
            }
            PropagationQueue::Reordered(packets, _) => {
                let later = packets.split_off(&(Instant(now.0.saturating_add(1)), 0));
                later.into_values().for_each(|(packet, _)| lose(packet));
            }
        }
    }
}
