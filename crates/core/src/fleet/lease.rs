//! Timeout of the peer by missed heartbeats.

/// A lease that heartbeats renew and ticks use up.
///
/// Silence is counted in the holder's own ticks, not in time: a holder that was itself suspended could not
/// receive anything, and its first tick afterwards counts only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    beats: u32,
    silent: u32,
}

impl Lease {
    /// Creates a lease that survives `beats` ticks without a heartbeat and expires with the next one.
    pub fn new(beats: u32) -> Lease {
        Lease { beats, silent: 0 }
    }

    /// Renews the lease on a heartbeat of the peer.
    pub fn renew(&mut self) {
        self.silent = 0;
    }

    /// Counts a tick; returns false once the lease has expired.
    #[must_use]
    pub fn tick(&mut self) -> bool {
        self.silent = self.silent.saturating_add(1);
        self.silent <= self.beats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_ends_a_lease_and_a_heartbeat_renews_it() {
        let mut lease = Lease::new(2);
        assert!(lease.tick() && lease.tick());
        lease.renew();
        assert!(lease.tick() && lease.tick());
        assert!(!lease.tick());
    }
}
