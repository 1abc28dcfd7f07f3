//! Proportional Rate Reduction (RFC 9937): how much may leave for each ACK of a recovery, so
//! that the window comes down to the threshold in the course of it, at an even pace.

/// One recovery's reduction.
#[derive(Clone, Debug, Default)]
pub(super) struct Reduction {
    /// RecoverFS: bytes in flight when the recovery began.
    flight: f64,
    /// prr_delivered, bytes.
    delivered: f64,
    /// prr_out, bytes.
    sent: f64,
}

impl Reduction {
    /// A recovery begins with this many bytes in flight, those included that the ACK which began
    /// it has delivered, those left out that were delivered before.
    pub fn begin(flight: u64) -> Reduction {
        Reduction { flight: (flight as f64).max(1.0), ..Reduction::default() }
    }

    /// Data left, new or again.
    #[inline]
    pub fn sent(&mut self, bytes: u64) {
        self.sent += bytes as f64;
    }

    /// The window after an ACK that has `delivered` bytes, with `pipe` bytes under way. The ACK is
    /// safe if it acknowledges new data and tells of no further loss. Sizes in bytes.
    pub fn window(&mut self, threshold: f64, pipe: u64, delivered: u64, safe: bool, segment: u64) -> f64 {
        let (pipe, delivered, segment) = (pipe as f64, delivered as f64, segment as f64);
        self.delivered += delivered;
        let mut room = if pipe > threshold {
            // Up to whole segments, as Linux counts; what that is too much, `sent` makes up for.
            libm::ceil((self.delivered * threshold / self.flight - self.sent) / segment) * segment
        } else {
            let bounded = (self.delivered - self.sent).max(delivered) + if safe { segment } else { 0.0 };
            bounded.min(threshold - pipe)
        };
        if self.sent == 0.0 {
            // The first retransmission leaves at once.
            room = room.max(segment);
        }
        (pipe + room.max(0.0)).max(segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twenty segments in flight, the first of them lost, threshold ten: one segment leaves for
    /// two delivered, and the pipe ends at the threshold.
    #[test]
    fn halving_lets_one_segment_go_for_two() {
        let mut reduction = Reduction::begin(20);
        let mut pipe = 18;
        let mut left = 0;
        for _ in 0..19 {
            let window = reduction.window(10.0, pipe, 1, false, 1);
            while pipe < window as u64 {
                pipe += 1;
                left += 1;
                reduction.sent(1);
            }
            pipe -= 1;
        }
        assert_eq!((left, pipe + 1), (10, 10));
    }

    #[test]
    fn below_the_threshold_a_safe_ack_adds_one_segment() {
        let mut reduction = Reduction::begin(20);
        reduction.sent(1);
        // Fifteen of twenty are lost.
        assert_eq!(reduction.window(10.0, 5, 1, false, 1), 6.0);
        reduction.sent(1);
        assert_eq!(reduction.window(10.0, 5, 1, true, 1), 7.0);
        assert_eq!(reduction.window(10.0, 9, 5, true, 1), 10.0);
    }
}
