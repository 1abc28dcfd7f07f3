//! How long one side bears the other's silence.

/// A lease that signs of life renew and ticks use up.
///
/// Silence is counted in the holder's own ticks, not in time: who was itself held up could
/// not have heard anything, and its first tick afterwards counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    beats: u32,
    silent: u32,
}

impl Lease {
    /// A lease that ends with the tick after so many silent ones.
    pub fn new(beats: u32) -> Lease {
        Lease { beats, silent: 0 }
    }

    /// The other side gave a sign of life.
    pub fn renew(&mut self) {
        self.silent = 0;
    }

    /// A tick has passed; false where the lease is over.
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
    fn silence_ends_it_and_a_sign_of_life_renews_it() {
        let mut lease = Lease::new(2);
        assert!(lease.tick() && lease.tick());
        lease.renew();
        assert!(lease.tick() && lease.tick());
        assert!(!lease.tick());
    }
}
