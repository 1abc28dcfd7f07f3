//! Proportional Rate Reduction (RFC 9937): the amount of data to send for each ACK of a recovery, so that the window
//! falls evenly to the threshold.

/// Window reduction of one recovery.
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
    /// Begins a recovery with `flight` bytes in flight. These include the bytes delivered by the ACK that began the
    /// recovery, but not those delivered before.
    pub fn begin(flight: u64) -> Reduction {
        Reduction { flight: (flight as f64).max(1.0), ..Reduction::default() }
    }

    /// Records a transmission or retransmission.
    #[inline]
    pub fn sent(&mut self, bytes: u64) {
        self.sent += bytes as f64;
    }

    /// Returns the window after an ACK that delivered `delivered` bytes, with `pipe` bytes in flight. An ACK is safe
    /// if it acknowledges new data and indicates no further loss. Sizes are in bytes.
    pub fn window(&mut self, threshold: f64, pipe: u64, delivered: u64, safe: bool, segment: u64) -> f64 {
        let (pipe, delivered, segment) = (pipe as f64, delivered as f64, segment as f64);
        self.delivered += delivered;
        let mut room = if pipe > threshold {
            // Rounded up to whole segments, as in Linux; `sent` compensates for the excess.
            libm::ceil((self.delivered * threshold / self.flight - self.sent) / segment) * segment
        } else {
            let bounded = (self.delivered - self.sent).max(delivered) + if safe { segment } else { 0.0 };
            bounded.min(threshold - pipe)
        };
        if self.sent == 0.0 {
            // The first retransmission is sent at once.
            room = room.max(segment);
        }
        (pipe + room.max(0.0)).max(segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twenty segments are in flight, the first is lost, and the threshold is ten: one segment is sent for every two
    /// delivered, and the pipe ends at the threshold.
    #[test]
    fn halving_sends_one_segment_for_two_delivered() {
        let mut reduction = Reduction::begin(20);
        let mut pipe = 18;
        let mut sent = 0;
        for _ in 0..19 {
            let window = reduction.window(10.0, pipe, 1, false, 1);
            while pipe < window as u64 {
                pipe += 1;
                sent += 1;
                reduction.sent(1);
            }
            pipe -= 1;
        }
        assert_eq!((sent, pipe + 1), (10, 10));
    }

    #[test]
    fn below_the_threshold_a_safe_ack_adds_one_segment() {
        let mut reduction = Reduction::begin(20);
        reduction.sent(1);
        // Fifteen of the twenty segments are lost.
        assert_eq!(reduction.window(10.0, 5, 1, false, 1), 6.0);
        reduction.sent(1);
        assert_eq!(reduction.window(10.0, 5, 1, true, 1), 7.0);
        assert_eq!(reduction.window(10.0, 9, 5, true, 1), 10.0);
    }
}
