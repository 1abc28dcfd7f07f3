//! What the receiver holds above the cumulative ACK, and what of the rest is lost or
//! retransmitted: the data structures and functions of RFC 6675 sections 3 and 4.
//!
//! IsLost is monotone: everything below one edge is lost, nothing above it. The edge lies
//! at the start of one of the three highest ranges, so finding it and counting the pipe take
//! a few steps for each ACK, however large the window.

use super::ranges::{Range, Ranges};

/// RFC 6675 section 2.
pub(super) const DUPLICATE_THRESHOLD: u32 = 3;

#[derive(Clone, Debug)]
pub(super) struct Scoreboard {
    ranges: Ranges,
    /// Bytes in `ranges`.
    sacked: u64,
    /// HighRxt, exclusive: holes below it are retransmitted.
    retransmitted: u64,
    /// Bytes in `ranges` below `retransmitted`.
    sacked_retransmitted: u64,
    /// Holes below it are lost; 0 if none is.
    lost_edge: u64,
    /// Bytes in `ranges` above `lost_edge`.
    sacked_above_edge: u64,
    /// RescueRxt, exclusive.
    rescue: u64,
}

impl Scoreboard {
    /// `retransmitted`: everything from the cumulative ACK up to here is on its way again.
    pub fn new(retransmitted: u64) -> Scoreboard {
        Scoreboard {
            ranges: Ranges::default(),
            sacked: 0,
            retransmitted,
            sacked_retransmitted: 0,
            lost_edge: 0,
            sacked_above_edge: 0,
            rescue: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Update(): the cumulative ACK is now `ack`, and `blocks` were received above it. Blocks
    /// outside of what is outstanding are ignored. Returns whether a block told something new.
    pub fn update(
        &mut self,
        ack: u64,
        highest: u64,
        blocks: impl Iterator<Item = (u64, u64)>,
        segment: u64,
    ) -> bool {
        self.advance(ack);
        let before = self.sacked;
        for (start, end) in blocks {
            if ack < start && start < end && end <= highest {
                self.insert(Range { start, end });
            }
        }
        let news = self.sacked != before;
        self.find_lost_edge(segment);
        news
    }

    fn insert(&mut self, range: Range) {
        let bound = self.retransmitted;
        let (mut known, mut known_below) = (0, 0);
        let whole = self.ranges.insert(range, |old| {
            known += old.len();
            known_below += old.below(bound);
        });
        self.sacked += whole.len() - known;
        self.sacked_retransmitted += whole.below(bound) - known_below;
    }

    fn advance(&mut self, ack: u64) {
        if self.ranges.first().is_some_and(|r| r.start <= ack && ack < r.end) {
            // The receiver would have acknowledged the whole range: it has dropped what it
            // held (reneged), so nothing it told before counts (RFC 2018 section 8).
            self.expunge();
        }
        let bound = self.retransmitted;
        let (sacked, below) = (&mut self.sacked, &mut self.sacked_retransmitted);
        self.ranges.remove_below(ack, |gone| {
            *sacked -= gone.len();
            *below -= gone.below(bound);
        });
        self.retransmitted = self.retransmitted.max(ack);
    }

    fn expunge(&mut self) {
        self.ranges.clear();
        self.sacked = 0;
        self.sacked_retransmitted = 0;
    }

    /// A hole is lost if three ranges, or more than two segments' bytes, lie above it.
    fn find_lost_edge(&mut self, segment: u64) {
        let (mut bytes, mut edge) = (0, 0);
        for (above, range) in (1..).zip(self.ranges.descending()) {
            bytes += range.len();
            if above >= DUPLICATE_THRESHOLD || bytes > u64::from(DUPLICATE_THRESHOLD - 1) * segment {
                edge = range.start;
                break;
            }
        }
        self.lost_edge = edge;
        self.sacked_above_edge = bytes;
    }

    /// IsLost().
    pub fn is_lost(&self, seq: u64) -> bool {
        seq < self.lost_edge
    }

    /// SetPipe(): outstanding bytes that are not lost, and retransmitted ones.
    pub fn pipe(&self, ack: u64, highest: u64) -> u64 {
        let not_lost = highest - self.lost_edge.max(ack) - self.sacked_above_edge;
        not_lost + self.retransmitted_outstanding(ack)
    }

    /// Retransmitted bytes that are not acknowledged yet.
    pub fn retransmitted_outstanding(&self, ack: u64) -> u64 {
        self.retransmitted.max(ack) - ack - self.sacked_retransmitted
    }

    /// A recovery begins: nothing is retransmitted yet.
    pub fn begin(&mut self, ack: u64, rescue: u64) {
        self.retransmitted = ack;
        self.sacked_retransmitted = 0;
        self.rescue = rescue;
    }

    /// A fast retransmit begins a recovery: the first segment is to go. Returns its end, up to
    /// which HighRxt and RescueRxt are set.
    pub fn begin_retransmission(&mut self, ack: u64, highest: u64, segment: u64) -> u64 {
        let end = self.hole_from(ack, highest).end.min(ack + segment);
        self.begin(ack, end);
        self.mark_retransmitted(end);
        end
    }

    /// Everything up to `end` that was missing has been sent again.
    pub fn mark_retransmitted(&mut self, end: u64) {
        let from = self.retransmitted;
        if end > from {
            let passed = self.ranges.ending_above(from).take_while(|r| r.start < end);
            let passed: u64 = passed.map(|r| r.below(end) - r.below(from)).sum();
            self.sacked_retransmitted += passed;
            self.retransmitted = end;
        }
    }

    /// NextSeg() rule 1, or rule 3 if `even_if_not_lost`: the first hole, or its first segment, that
    /// was not retransmitted yet and lies below something received.
    pub fn next_hole(&self, even_if_not_lost: bool, segment: u64) -> Option<Range> {
        let highest_sacked = self.ranges.last()?.end;
        let bound = if even_if_not_lost { highest_sacked } else { self.lost_edge };
        if self.retransmitted >= bound {
            return None;
        }
        let hole = self.hole_from(self.retransmitted, highest_sacked);
        let start = hole.start;
        (start < bound).then(|| Range { start, end: hole.end.min(start + segment) })
    }

    /// The missing bytes at or above `seq`, up to the next received range or `highest`.
    pub fn hole_from(&self, seq: u64, highest: u64) -> Range {
        let mut ranges = self.ranges.ending_above(seq);
        match ranges.next() {
            Some(r) if r.start <= seq => {
                let end = ranges.next().map_or(highest, |next| next.start);
                Range { start: r.end, end: end.max(r.end) }
            }
            Some(r) => Range { start: seq, end: r.start },
            None => Range { start: seq, end: highest.max(seq) },
        }
    }

    /// NextSeg() rule 4: once in a recovery, the last segment outstanding.
    pub fn rescue(&mut self, ack: u64, highest: u64, recover: u64, segment: u64) -> Option<Range> {
        if ack <= self.rescue {
            return None;
        }
        self.rescue = recover;
        let mut descending = self.ranges.descending();
        let (floor, end) = match descending.next() {
            Some(last) if last.end == highest => (descending.next().map_or(ack, |r| r.end), last.start),
            Some(last) => (last.end, highest),
            None => (ack, highest),
        };
        (floor < end).then(|| Range { start: floor.max(end.saturating_sub(segment)), end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 100;

    fn board(ack: u64, highest: u64, blocks: &[(u64, u64)]) -> Scoreboard {
        let mut board = Scoreboard::new(ack);
        board.update(ack, highest, blocks.iter().copied(), SEGMENT);
        board
    }

    #[test]
    fn three_ranges_or_two_segments_make_a_loss() {
        assert!(!board(0, 1000, &[(100, 300)]).is_lost(0));
        assert!(board(0, 1000, &[(100, 301)]).is_lost(0));
        let three = board(0, 1000, &[(100, 101), (200, 201), (300, 301)]);
        assert!(three.is_lost(99) && !three.is_lost(150));
    }

    #[test]
    fn pipe_counts_as_rfc_6675_section_4() {
        let mut board = board(0, 1000, &[(100, 200), (300, 400), (600, 700)]);
        // Three ranges lie above [0, 100); 600 bytes above 100 are missing but not lost.
        assert_eq!(board.pipe(0, 1000), 600);
        board.mark_retransmitted(100);
        assert_eq!(board.pipe(0, 1000), 700);
        // Passing over a received range does not count it.
        board.mark_retransmitted(300);
        assert_eq!(board.pipe(0, 1000), 800);
        board.update(400, 1000, [(600, 700)].into_iter(), SEGMENT);
        assert_eq!(board.pipe(400, 1000), 500);
    }

    #[test]
    fn next_segment_prefers_lost_holes() {
        let mut board = board(0, 1000, &[(100, 200), (450, 600), (700, 900)]);
        let hole = |start, end| Some(Range { start, end });
        assert_eq!(board.next_hole(false, SEGMENT), hole(0, 100));
        board.mark_retransmitted(100);
        assert_eq!(board.next_hole(false, SEGMENT), hole(200, 300));
        board.mark_retransmitted(400);
        assert_eq!(board.next_hole(false, SEGMENT), hole(400, 450));
        board.mark_retransmitted(450);
        assert_eq!(board.next_hole(false, SEGMENT), None);
        assert_eq!(board.next_hole(true, SEGMENT), hole(600, 700));
        board.mark_retransmitted(700);
        assert_eq!(board.next_hole(true, SEGMENT), None);
        // Not before something beyond the first retransmission is acknowledged.
        board.rescue = 100;
        assert_eq!(board.rescue(100, 1000, 1000, SEGMENT), None);
        assert_eq!(board.rescue(101, 1000, 1000, SEGMENT), hole(900, 1000));
        assert_eq!(board.rescue(999, 1000, 1000, SEGMENT), None);
    }

    #[test]
    fn reneging_and_nonsense_are_forgotten() {
        let mut board = board(0, 1000, &[(100, 200), (900, 1001), (50, 40), (0, 10)]);
        assert_eq!(board.pipe(0, 1000), 900);
        board.update(100, 1000, [].into_iter(), SEGMENT);
        assert!(board.is_empty());
        assert_eq!(board.pipe(100, 1000), 900);
    }

    /// The definitions of RFC 6675, byte by byte.
    struct Plain {
        ack: usize,
        retransmitted: usize,
        sacked: [bool; 60],
    }

    impl Plain {
        fn is_lost(&self, seq: usize, segment: usize) -> bool {
            let above = &self.sacked[seq..];
            let ranges = above.windows(2).filter(|w| !w[0] && w[1]).count() + usize::from(above[0]);
            ranges >= 3 || above.iter().filter(|&&s| s).count() > 2 * segment
        }

        fn pipe(&self, segment: usize) -> usize {
            let missing = (self.ack..60).filter(|&seq| !self.sacked[seq]);
            missing
                .map(|seq| usize::from(!self.is_lost(seq, segment)) + usize::from(seq < self.retransmitted))
                .sum()
        }

        fn next_hole(&self, even_if_not_lost: bool, segment: usize) -> Option<usize> {
            let top = self.sacked.iter().rposition(|&s| s)?;
            (self.retransmitted.max(self.ack)..top)
                .find(|&seq| !self.sacked[seq] && (even_if_not_lost || self.is_lost(seq, segment)))
        }
    }

    #[test]
    fn equals_the_plain_definitions() {
        let mut stream = crate::rng::Stream::new(1, "scoreboard");
        let mut below = |n: usize| (stream.next_u64() % n as u64) as usize;
        for _ in 0..2000 {
            let segment = 1 + below(6);
            let mut board = Scoreboard::new(0);
            let mut plain = Plain { ack: 0, retransmitted: 0, sacked: [false; 60] };
            for _ in 0..30 {
                let start = plain.ack + 1 + below(59 - plain.ack.min(58));
                let end = (start + 1 + below(8)).min(60);
                let before = plain.sacked;
                if start < end {
                    plain.sacked[start..end].fill(true);
                }
                let blocks = [(start as u64, end as u64)];
                let news = board.update(plain.ack as u64, 60, blocks.into_iter(), segment as u64);
                assert_eq!(news, before != plain.sacked);
                if below(4) == 0 {
                    // The cumulative ACK takes a hole and what follows it.
                    let hole = plain.ack + below(60 - plain.ack);
                    plain.ack = (hole..60).find(|&seq| !plain.sacked[seq]).unwrap_or(60).min(58);
                    if plain.sacked[plain.ack] {
                        break;
                    }
                    plain.sacked[..plain.ack].fill(false);
                    plain.retransmitted = plain.retransmitted.max(plain.ack);
                    board.update(plain.ack as u64, 60, [].into_iter(), segment as u64);
                }
                let even_if_not_lost = below(2) == 0;
                let hole = board.next_hole(even_if_not_lost, segment as u64);
                let expected = plain.next_hole(even_if_not_lost, segment);
                assert_eq!(hole.map(|r| r.start as usize), expected);
                if let Some(hole) = hole {
                    assert!((hole.start..hole.end).all(|seq| !plain.sacked[seq as usize]));
                    board.mark_retransmitted(hole.end);
                    plain.retransmitted = hole.end as usize;
                }
                assert_eq!(board.pipe(plain.ack as u64, 60), plain.pipe(segment) as u64);
            }
        }
    }
}
