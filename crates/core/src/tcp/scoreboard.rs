//! SACK scoreboard: the data received above the cumulative ACK, and the lost and retransmitted parts of the rest (RFC
//! 6675 sections 3 and 4).
//!
//! IsLost is monotone: everything below one edge is lost, nothing above it. The edge is the start of one of the three
//! highest ranges, so finding it and counting the pipe take a few steps per ACK, however large the window.

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
    /// Creates a scoreboard on which everything from the cumulative ACK to `retransmitted` is retransmitted.
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

    /// Update(): sets the cumulative ACK to `ack` and adds the `blocks` received above it. Blocks outside the
    /// outstanding data are ignored. Returns whether a block contained new information.
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
        let has_news = self.sacked != before;
        self.find_lost_edge(segment);
        has_news
    }

    fn insert(&mut self, range: Range) {
        let bound = self.retransmitted;
        let (mut old_bytes, mut old_below) = (0, 0);
        let whole = self.ranges.insert(range, |old| {
            old_bytes += old.len();
            old_below += old.below(bound);
        });
        self.sacked += whole.len() - old_bytes;
        self.sacked_retransmitted += whole.below(bound) - old_below;
    }

    fn advance(&mut self, ack: u64) {
        if self.ranges.first().is_some_and(|r| r.start <= ack && ack < r.end) {
            // The receiver would have acknowledged the whole range. It has discarded its data (reneged), so earlier
            // blocks are void (RFC 2018 section 8).
            self.expunge();
        }
        let bound = self.retransmitted;
        let (sacked, below) = (&mut self.sacked, &mut self.sacked_retransmitted);
        self.ranges.remove_below(ack, |removed| {
            *sacked -= removed.len();
            *below -= removed.below(bound);
        });
        self.retransmitted = self.retransmitted.max(ack);
    }

    fn expunge(&mut self) {
        self.ranges.clear();
        self.sacked = 0;
        self.sacked_retransmitted = 0;
    }

    /// Updates the edge. A hole is lost if three ranges, or more than two segments' bytes, lie above it.
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

    /// SetPipe(): returns outstanding bytes that are not lost, plus retransmitted ones.
    pub fn pipe(&self, ack: u64, highest: u64) -> u64 {
        let not_lost = highest - self.lost_edge.max(ack) - self.sacked_above_edge;
        not_lost + self.retransmitted_outstanding(ack)
    }

    /// Returns the retransmitted bytes that are not acknowledged yet.
    pub fn retransmitted_outstanding(&self, ack: u64) -> u64 {
        self.retransmitted.max(ack) - ack - self.sacked_retransmitted
    }

    /// Begins a recovery, with nothing retransmitted.
    pub fn begin(&mut self, ack: u64, rescue: u64) {
        self.retransmitted = ack;
        self.sacked_retransmitted = 0;
        self.rescue = rescue;
    }

    /// Begins a recovery with a fast retransmit of the first segment. Returns the end of that segment, which HighRxt
    /// and RescueRxt are set to.
    pub fn begin_retransmission(&mut self, ack: u64, highest: u64, segment: u64) -> u64 {
        let end = self.hole_from(ack, highest).end.min(ack + segment);
        self.begin(ack, end);
        self.mark_retransmitted(end);
        end
    }

    /// Marks all missing data up to `end` as retransmitted.
    pub fn mark_retransmitted(&mut self, end: u64) {
        let from = self.retransmitted;
        if end > from {
            let passed = self.ranges.ending_above(from).take_while(|r| r.start < end);
            let passed: u64 = passed.map(|r| r.below(end) - r.below(from)).sum();
            self.sacked_retransmitted += passed;
            self.retransmitted = end;
        }
    }

    /// NextSeg() rule 1, or rule 3 if `even_if_not_lost`: returns the first hole, or its first segment, that is below
    /// received data and not retransmitted yet.
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

    /// Returns the missing bytes at or above `seq`, up to the next received range or `highest`.
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

    /// NextSeg() rule 4: returns the last outstanding segment, once per recovery.
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
    fn pipe_matches_rfc_6675_section_4() {
        let mut board = board(0, 1000, &[(100, 200), (300, 400), (600, 700)]);
        // Three ranges lie above [0, 100); 600 bytes above 100 are missing but not lost.
        assert_eq!(board.pipe(0, 1000), 600);
        board.mark_retransmitted(100);
        assert_eq!(board.pipe(0, 1000), 700);
        // A received range that was passed does not count.
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
        // The rescue waits until data beyond the first retransmission is acknowledged.
        board.rescue = 100;
        assert_eq!(board.rescue(100, 1000, 1000, SEGMENT), None);
        assert_eq!(board.rescue(101, 1000, 1000, SEGMENT), hole(900, 1000));
        assert_eq!(board.rescue(999, 1000, 1000, SEGMENT), None);
    }

    #[test]
    fn reneging_clears_the_scoreboard_and_invalid_blocks_are_ignored() {
        let mut board = board(0, 1000, &[(100, 200), (900, 1001), (50, 40), (0, 10)]);
        assert_eq!(board.pipe(0, 1000), 900);
        board.update(100, 1000, [].into_iter(), SEGMENT);
        assert!(board.is_empty());
        assert_eq!(board.pipe(100, 1000), 900);
    }

    /// Definitions of RFC 6675, evaluated byte by byte.
    struct ReferenceScoreboard {
        ack: usize,
        retransmitted: usize,
        sacked: [bool; 60],
    }

    impl ReferenceScoreboard {
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
    fn scoreboard_equals_the_reference() {
        let mut stream = crate::rng::RandomStream::new(1, "scoreboard");
        let mut below = |n: usize| (stream.next_u64() % n as u64) as usize;
        for _ in 0..2000 {
            let segment = 1 + below(6);
            let mut board = Scoreboard::new(0);
            let mut reference = ReferenceScoreboard { ack: 0, retransmitted: 0, sacked: [false; 60] };
            for _ in 0..30 {
                let start = reference.ack + 1 + below(59 - reference.ack.min(58));
                let end = (start + 1 + below(8)).min(60);
                let before = reference.sacked;
                if start < end {
                    reference.sacked[start..end].fill(true);
                }
                let blocks = [(start as u64, end as u64)];
                let has_news = board.update(reference.ack as u64, 60, blocks.into_iter(), segment as u64);
                assert_eq!(has_news, before != reference.sacked);
                if below(4) == 0 {
                    // The cumulative ACK covers a hole and the ranges after it.
                    let hole = reference.ack + below(60 - reference.ack);
                    reference.ack = (hole..60).find(|&seq| !reference.sacked[seq]).unwrap_or(60).min(58);
                    if reference.sacked[reference.ack] {
                        break;
                    }
                    reference.sacked[..reference.ack].fill(false);
                    reference.retransmitted = reference.retransmitted.max(reference.ack);
                    board.update(reference.ack as u64, 60, [].into_iter(), segment as u64);
                }
                let even_if_not_lost = below(2) == 0;
                let hole = board.next_hole(even_if_not_lost, segment as u64);
                let expected = reference.next_hole(even_if_not_lost, segment);
                assert_eq!(hole.map(|r| r.start as usize), expected);
                if let Some(hole) = hole {
                    assert!((hole.start..hole.end).all(|seq| !reference.sacked[seq as usize]));
                    board.mark_retransmitted(hole.end);
                    reference.retransmitted = hole.end as usize;
                }
                assert_eq!(board.pipe(reference.ack as u64, 60), reference.pipe(segment) as u64);
            }
        }
    }
}
