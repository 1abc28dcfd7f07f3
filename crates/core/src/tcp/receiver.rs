//! The receiving side: reassembly and acknowledgments.
//!
//! The advertised window is constant: the application reads at once, and bytes received out of order already lie
//! within the window, so they do not shrink it (BSD and Linux count only bytes that the application has yet to read).

use alloc::boxed::Box;

use super::ranges::{Range, Ranges};
use super::{Ack, DataSegment, Stack, TcpConfig};
use crate::time::{Duration, Instant};

/// ACKs that Linux does not delay at the start and after a pause (`TCP_MAX_QUICKACKS`).
const QUICK_ACKS: u8 = 16;

/// Receiver of one flow.
///
/// Call [`handle_data`](TcpDataReceiver::handle_data) for each segment that arrives, and
/// [`handle_timeout`](TcpDataReceiver::handle_timeout) when [`poll_timeout`](TcpDataReceiver::poll_timeout) is due. After each of
/// them, call [`poll_transmit`](TcpDataReceiver::poll_transmit) until it returns `None`. An ACK not taken before the next
/// segment arrives is merged into that segment's ACK.
#[derive(Clone, Debug)]
pub struct TcpDataReceiver {
    next: u64,
    /// TS.Recent and Last.ACK.sent of RFC 7323 section 4.3.
    recent_timestamp: Instant,
    last_ack: u64,
    deadline: Instant,
    out_of_order: Option<Box<ReassemblyQueue>>,
    /// Segments since the last ACK.
    unacknowledged: u32,
    ack_now: bool,
    answer_syn: bool,
    echo_congestion: bool,
    /// ACKs that are not delayed, as in Linux.
    quick_acks: u8,
    /// Arrival of the SYN or of the last data in order.
    arrived: Instant,
    /// Pause after which ACKs are not delayed; 0 before the first data.
    pause: Duration,
}

/// Reassembly queue, allocated only while a byte is missing.
#[derive(Clone, Debug, Default)]
struct ReassemblyQueue {
    ranges: Ranges,
    /// Starts of the most recently changed ranges, newest first (RFC 2018 section 4); 0 if unused.
    recent: [u64; 4],
}

impl TcpDataReceiver {
    /// Creates a receiver at the first byte.
    pub fn new(_config: &TcpConfig) -> TcpDataReceiver {
        TcpDataReceiver {
            next: 0,
            recent_timestamp: Instant::ZERO,
            last_ack: 0,
            deadline: Instant::NEVER,
            out_of_order: None,
            unacknowledged: 0,
            ack_now: false,
            answer_syn: false,
            echo_congestion: false,
            quick_acks: 0,
            arrived: Instant::ZERO,
            pause: Duration::ZERO,
        }
    }

    /// Begins a new connection, with its first byte at `at`, in place of a closed one; see
    /// [`Sender::renew`](super::Sender::renew).
    pub fn renew(&mut self, config: &TcpConfig, at: u64) {
        *self = TcpDataReceiver { next: at, last_ack: at, ..TcpDataReceiver::new(config) };
    }

    /// Handles the arrival of a segment, with or without a congestion mark.
    pub fn handle_data(
        &mut self,
        config: &TcpConfig,
        now: Instant,
        data: &DataSegment,
        congestion_experienced: bool,
    ) {
        if data.seq <= self.last_ack {
            self.recent_timestamp = self.recent_timestamp.max(data.sent);
        }
        if data.syn {
            self.answer_syn = true;
            self.ack_now = true;
            self.arrived = now;
            return;
        }
        // RFC 3168 section 6.1.3: a CWR ends the echo, unless its own packet is marked.
        self.echo_congestion = config.ecn && ((self.echo_congestion && !data.cwr) || congestion_experienced);

        let end = data.seq.saturating_add(u64::from(data.len)).min(self.next.saturating_add(config.window));
        if data.seq == self.next && end > self.next && self.out_of_order.is_none() {
            self.next = end;
            self.unacknowledged += 1;
            if config.stack == Stack::Linux {
                self.count_quick_acks(config, now);
            }
            let at_once = self.quick_acks > 0 || config.delayed_ack == Duration::ZERO;
            if self.unacknowledged >= config.ack_every || at_once {
                self.ack_now = true;
            } else if self.deadline == Instant::NEVER {
                self.deadline = now + config.delayed_ack;
            }
        } else {
            // A segment out of order, filling a gap, or received before is acknowledged at once (RFC 5681 section
            // 4.2).
            self.ack_now = true;
            if config.stack == Stack::Linux {
                if end <= self.next {
                    self.quick_acks = QUICK_ACKS;
                }
                self.arrived = now;
            }
            self.reassemble(Range { start: data.seq, end });
        }
    }

    /// Does not delay the ACKs of the first data, nor those after a pause longer than the retransmission timeout that
    /// Linux calculates from the round trip of the handshake (`tcp_event_data_recv`).
    fn count_quick_acks(&mut self, config: &TcpConfig, now: Instant) {
        let gap = now.since(self.arrived);
        if self.pause == Duration::ZERO {
            let after_handshake = (gap * 3).max(gap + config.min_rto);
            self.pause = if config.handshake { after_handshake } else { config.initial_rto };
            self.quick_acks = QUICK_ACKS;
        } else if gap > self.pause {
            self.quick_acks = QUICK_ACKS;
        }
        self.arrived = now;
    }

    /// Releases a delayed ACK that is due.
    pub fn handle_timeout(&mut self, _config: &TcpConfig, now: Instant) {
        if self.deadline <= now {
            self.deadline = Instant::NEVER;
            self.ack_now = true;
        }
    }

    /// Returns the ACK to send now, if any.
    #[inline]
    pub fn poll_transmit(&mut self, config: &TcpConfig, _now: Instant) -> Option<Ack> {
        if !self.ack_now {
            return None;
        }
        let sack = match &self.out_of_order {
            Some(queue) if config.sack => queue.blocks(self.next),
            _ => [(0, 0); 3],
        };
        let syn = self.answer_syn;
        self.quick_acks = self.quick_acks.saturating_sub(u8::from(!syn));
        self.ack_now = false;
        self.answer_syn = false;
        self.unacknowledged = 0;
        self.deadline = Instant::NEVER;
        self.last_ack = self.next;
        Some(Ack {
            ack: self.next,
            echo: self.recent_timestamp,
            window: u32::try_from(config.window).unwrap_or(u32::MAX),
            sack,
            syn,
            ece: self.echo_congestion && !syn,
        })
    }

    /// Returns the time to call [`handle_timeout`](TcpDataReceiver::handle_timeout); [`Instant::NEVER`] if no ACK is
    /// delayed.
    #[inline]
    pub fn poll_timeout(&self) -> Instant {
        self.deadline
    }

    /// Returns the payload bytes delivered in order.
    #[inline]
    pub fn delivered(&self) -> u64 {
        self.next
    }

    fn reassemble(&mut self, data: Range) {
        if data.end <= self.next || data.start >= data.end {
            return;
        }
        if data.start > self.next {
            let queue = self.out_of_order.get_or_insert_default();
            let whole = queue.ranges.insert(data, |_| ());
            queue.remember(whole);
            return;
        }
        self.next = data.end;
        if let Some(queue) = &mut self.out_of_order {
            if let Some(first) = queue.ranges.ending_above(self.next).next()
                && first.start <= self.next
            {
                self.next = first.end;
            }
            queue.ranges.remove_below(self.next, |_| ());
            if queue.ranges.is_empty() {
                self.out_of_order = None;
            }
        }
    }
}

impl ReassemblyQueue {
    /// Moves a changed range to the front, in place of the ranges it has absorbed.
    fn remember(&mut self, whole: Range) {
        let mut index = 0;
        let mut recent = [whole.start, 0, 0, 0];
        for &start in self.recent.iter().filter(|&&start| start < whole.start || whole.end <= start) {
            index += 1;
            if let Some(slot) = recent.get_mut(index) {
                *slot = start;
            }
        }
        self.recent = recent;
    }

    /// Returns the most recently changed ranges, newest first.
    fn blocks(&self, next: u64) -> [(u32, u32); 3] {
        let mut blocks = [(0, 0); 3];
        let mut count = 0;
        for &start in self.recent.iter().filter(|&&start| start > next) {
            let range = self.ranges.ending_above(start).next().filter(|r| r.start == start);
            let offset = u32::try_from(start - next);
            let len = range.map(|r| u32::try_from(r.len()));
            if let (Ok(offset), Some(Ok(len))) = (offset, len)
                && count < blocks.len()
            {
                blocks[count] = (offset, len);
                count += 1;
            }
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> TcpConfig {
        TcpConfig { max_segment_size: 100, window: 10_000, ..TcpConfig::default() }
    }

    fn segment(seq: u64, sent: u64) -> DataSegment {
        DataSegment { seq, sent: Instant(sent), len: 100, syn: false, cwr: false, retransmission: false }
    }

    fn acknowledge(receiver: &mut TcpDataReceiver, seq: u64, sent: u64) -> Option<Ack> {
        receiver.handle_data(&config(), Instant(sent), &segment(seq, sent), false);
        receiver.poll_transmit(&config(), Instant(sent))
    }

    #[test]
    fn state_stays_small() {
        assert!(size_of::<TcpDataReceiver>() <= 64, "{}", size_of::<TcpDataReceiver>());
    }

    #[test]
    fn every_second_segment_or_the_timer_causes_an_ack() {
        let config = config();
        let mut receiver = TcpDataReceiver::new(&config);
        assert_eq!(acknowledge(&mut receiver, 0, 5), None);
        assert_eq!(receiver.poll_timeout(), Instant(5) + config.delayed_ack);
        assert_eq!(acknowledge(&mut receiver, 100, 6).unwrap().ack, 200);
        assert_eq!(receiver.poll_timeout(), Instant::NEVER);
        assert_eq!(acknowledge(&mut receiver, 200, 7), None);
        let due = receiver.poll_timeout();
        receiver.handle_timeout(&config, Instant(due.0 - 1));
        assert_eq!(receiver.poll_transmit(&config, due), None);
        receiver.handle_timeout(&config, due);
        assert_eq!(receiver.poll_transmit(&config, due).unwrap().ack, 300);
    }

    #[test]
    fn blocks_come_newest_first() {
        let mut receiver = TcpDataReceiver::new(&config());
        let sack = |receiver: &mut TcpDataReceiver, seq| acknowledge(receiver, seq, 1).unwrap().sack;
        assert_eq!(sack(&mut receiver, 100), [(100, 100), (0, 0), (0, 0)]);
        assert_eq!(sack(&mut receiver, 500), [(500, 100), (100, 100), (0, 0)]);
        assert_eq!(sack(&mut receiver, 300), [(300, 100), (500, 100), (100, 100)]);
        assert_eq!(sack(&mut receiver, 700), [(700, 100), (300, 100), (500, 100)]);
        assert_eq!(sack(&mut receiver, 400), [(300, 300), (700, 100), (100, 100)]);
        let filled = acknowledge(&mut receiver, 0, 1).unwrap();
        assert_eq!((filled.ack, filled.sack), (200, [(100, 300), (500, 100), (0, 0)]));
        assert_eq!(acknowledge(&mut receiver, 200, 1).unwrap().ack, 600);
        assert_eq!(acknowledge(&mut receiver, 600, 1).unwrap().ack, 800);
        assert!(receiver.out_of_order.is_none());
    }

    #[test]
    fn timestamps_echo_as_rfc_7323_section_4_3() {
        let mut receiver = TcpDataReceiver::new(&config());
        assert_eq!(acknowledge(&mut receiver, 0, 1), None);
        // A delayed ACK echoes the earliest segment it covers.
        assert_eq!(acknowledge(&mut receiver, 100, 2).unwrap().echo, Instant(1));
        // An ACK of out-of-order data echoes the last segment that advanced the window; an ACK of a filled gap, the
        // filling segment.
        assert_eq!(acknowledge(&mut receiver, 300, 3).unwrap().echo, Instant(1));
        assert_eq!(acknowledge(&mut receiver, 200, 4).unwrap().echo, Instant(4));
    }

    #[test]
    fn congestion_is_echoed_until_the_sender_has_reduced_its_window() {
        let config = TcpConfig { ecn: true, ack_every: 1, ..config() };
        let mut receiver = TcpDataReceiver::new(&config);
        let mut echo = |seq, cwr, marked| {
            receiver.handle_data(&config, Instant(1), &DataSegment { cwr, ..segment(seq, 1) }, marked);
            receiver.poll_transmit(&config, Instant(1)).unwrap().ece
        };
        let echoes = [
            echo(0, false, false),
            echo(100, false, true),
            echo(200, false, false),
            echo(300, true, false),
            echo(400, false, true),
            echo(500, true, true),
            echo(600, true, false),
        ];
        assert_eq!(echoes, [false, true, true, false, true, true, false]);
    }

    #[test]
    fn data_beyond_the_window_is_discarded() {
        let mut receiver = TcpDataReceiver::new(&config());
        assert_eq!(acknowledge(&mut receiver, 10_000, 1).unwrap().sack[0], (0, 0));
        assert_eq!(acknowledge(&mut receiver, u64::MAX - 3, 1).unwrap().sack[0], (0, 0));
        assert_eq!(acknowledge(&mut receiver, 9_950, 1).unwrap().sack[0], (9_950, 50));
    }
}
