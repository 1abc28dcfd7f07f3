//! A hierarchical timing wheel for hundreds of thousands of timers (Varghese and Lauck, SOSP 1987, scheme
//! 7). A bitmap over the slots finds the next timer without visiting empty slots.
//!
//! Each key has one timer. Expiry times are rounded up to a tick, so a timer never expires early. Arming,
//! moving and canceling a timer take constant time. Memory is 16 bytes per key, armed or not.

use crate::time::{Duration, Instant};
use alloc::vec;
use alloc::vec::Vec;

/// Bits of the tick count that index the slots of one level.
const BITS: u32 = 8;
const SLOTS: usize = 1 << BITS;
/// Four levels of 8 bits cover two and a half days at 50 µs per tick. A timer beyond that waits in the last
/// slot and is reinserted from there.
const LEVELS: usize = 4;
const NONE: u32 = u32::MAX;

/// Timers for keys 0 to n - 1, one per key.
#[derive(Clone, Debug)]
pub struct TimerWheel {
    tick_ns: u64,
    /// Last tick processed: all timers due up to it have expired.
    passed: u64,
    /// First timer of each slot, level by level.
    first: Vec<u32>,
    occupied: [[u64; SLOTS / 64]; LEVELS],
    timers: Vec<Timer>,
    armed: usize,
}

/// One timer, linked into the list of its slot.
#[derive(Clone, Copy, Debug)]
struct Timer {
    /// Tick at which the timer is due; `u64::MAX` if it is not armed.
    due: u64,
    next: u32,
    /// Previous timer in the list; for the first timer the slot, with the top bit set.
    previous: u32,
}

const SLOT: u32 = 1 << 31;
const IDLE: Timer = Timer { due: u64::MAX, next: NONE, previous: NONE };

impl TimerWheel {
    /// Creates a wheel for this many keys.
    ///
    /// # Panics
    ///
    /// Panics if the tick is zero or there are more than 2³¹ - 1 keys.
    pub fn new(tick: Duration, keys: usize) -> TimerWheel {
        assert!(tick > Duration::ZERO && keys < SLOT as usize, "{tick:?}, {keys} keys");
        TimerWheel {
            tick_ns: tick.0,
            passed: 0,
            first: vec![NONE; LEVELS * SLOTS],
            occupied: [[0; SLOTS / 64]; LEVELS],
            timers: vec![IDLE; keys],
            armed: 0,
        }
    }

    /// Grows the wheel to at least this many keys.
    pub fn grow(&mut self, keys: usize) {
        assert!(keys < SLOT as usize);
        self.timers.resize(self.timers.len().max(keys), IDLE);
    }

    /// Arms or moves the timer of a key. [`Instant::NEVER`] cancels it.
    #[inline]
    pub fn arm(&mut self, key: usize, at: Instant) {
        if at == Instant::NEVER {
            self.cancel(key);
            return;
        }
        // Rounded up, so that no timer expires early. An overdue timer expires at the next tick.
        let due = at.0.div_ceil(self.tick_ns).max(self.passed + 1);
        if self.timers[key].due == due {
            return;
        }
        self.cancel(key);
        self.armed += 1;
        self.insert(key as u32, due);
    }

    /// Loads the timer of a key into the CPU cache.
    #[inline]
    pub fn load(&self, key: usize) {
        core::hint::black_box(self.timers[key].due);
    }

    /// Cancels the timer of a key.
    #[inline]
    pub fn cancel(&mut self, key: usize) {
        if self.timers[key].due != u64::MAX {
            self.remove(key as u32);
            self.armed -= 1;
        }
    }

    /// Calls `expired` for each key whose timer is due, in the order of ticks, after disarming the timer.
    /// `expired` may arm any timer of the wheel it receives.
    pub fn expire(&mut self, now: Instant, mut expired: impl FnMut(&mut TimerWheel, usize)) {
        let end = now.0 / self.tick_ns;
        while let Some(tick) = self.next_tick().filter(|tick| *tick <= end) {
            self.turn(tick);
            let slot = slot_of(tick, 0);
            while self.first[slot] != NONE {
                let key = self.first[slot];
                self.remove(key);
                self.armed -= 1;
                expired(self, key as usize);
            }
        }
        if end > self.passed {
            self.turn(end);
        }
    }

    /// Returns the latest time for the next call of [`expire`](TimerWheel::expire), or [`Instant::NEVER`]
    /// if no timer is armed. The time may be early if the next timer is far in the future.
    pub fn poll_timeout(&self) -> Instant {
        self.next_tick().map_or(Instant::NEVER, |tick| Instant(tick.saturating_mul(self.tick_ns)))
    }

    /// Returns the number of armed timers.
    pub fn len(&self) -> usize {
        self.armed
    }

    /// Returns whether no timer is armed.
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// Returns the next tick at which a timer is due or has to move down a level.
    fn next_tick(&self) -> Option<u64> {
        if self.armed == 0 {
            return None;
        }
        (0..LEVELS).filter_map(|level| self.next_of_level(level)).min()
    }

    /// Returns the first tick of the next occupied slot of a level.
    fn next_of_level(&self, level: usize) -> Option<u64> {
        let shift = BITS * level as u32;
        let position = self.passed >> shift;
        let ahead = next_bit(&self.occupied[level], (position as usize + 1) % SLOTS)?;
        Some((position + 1 + ahead as u64) << shift)
    }

    /// Advances to `tick`, before which no timer is due, and moves the timers of higher-level slots that
    /// begin at that tick down a level.
    fn turn(&mut self, tick: u64) {
        let before = core::mem::replace(&mut self.passed, tick);
        for level in 1..LEVELS {
            let shift = BITS * level as u32;
            if before >> shift == tick >> shift {
                break;
            }
            let slot = slot_of(tick, level);
            let mut key = core::mem::replace(&mut self.first[slot], NONE);
            self.occupied[level][slot % SLOTS / 64] &= !(1 << (slot % 64));
            while key != NONE {
                let Timer { due, next, .. } = self.timers[key as usize];
                self.insert(key, due);
                key = next;
            }
        }
    }

    /// Links a timer into the slot of the highest level at which its tick differs from the current one.
    fn insert(&mut self, key: u32, due: u64) {
        const LAST: usize = LEVELS - 1;
        let level = (due ^ self.passed).checked_ilog2().unwrap_or(0) / BITS;
        let beyond = due - self.passed >= 1 << (BITS * LEVELS as u32);
        // The last level is a ring: the slot that began most recently is reached last.
        let slot = if beyond { slot_of(self.passed, LAST) } else { slot_of(due, LAST.min(level as usize)) };
        let next = core::mem::replace(&mut self.first[slot], key);
        self.timers[key as usize] = Timer { due, next, previous: SLOT | slot as u32 };
        match next {
            NONE => self.occupied[slot / SLOTS][slot % SLOTS / 64] |= 1 << (slot % 64),
            next => self.timers[next as usize].previous = key,
        }
    }

    fn remove(&mut self, key: u32) {
        let Timer { next, previous, .. } = core::mem::replace(&mut self.timers[key as usize], IDLE);
        if next != NONE {
            self.timers[next as usize].previous = previous;
        }
        if previous & SLOT == 0 {
            self.timers[previous as usize].next = next;
            return;
        }
        let slot = (previous & !SLOT) as usize;
        self.first[slot] = next;
        if next == NONE {
            self.occupied[slot / SLOTS][slot % SLOTS / 64] &= !(1 << (slot % 64));
        }
    }
}

fn slot_of(tick: u64, level: usize) -> usize {
    level * SLOTS + (tick >> (BITS * level as u32)) as usize % SLOTS
}

/// Returns the distance from a position to the next set bit, wrapping around at the end.
fn next_bit(bits: &[u64; SLOTS / 64], from: usize) -> Option<usize> {
    let (word, bit) = (from / 64, from % 64);
    let words = bits.len();
    let at = |index: usize, mask: u64| {
        let set = bits[index % words] & mask;
        (set != 0).then(|| index * 64 + set.trailing_zeros() as usize - from)
    };
    at(word, u64::MAX << bit)
        .or_else(|| (word + 1..word + words).find_map(|index| at(index, u64::MAX)))
        .or_else(|| at(word + words, !(u64::MAX << bit)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    const TICK: u64 = 50_000;

    fn wheel(keys: usize) -> TimerWheel {
        TimerWheel::new(Duration(TICK), keys)
    }

    fn due(wheel: &mut TimerWheel, now: u64) -> Vec<usize> {
        let mut keys = Vec::new();
        wheel.expire(Instant(now), |_, key| keys.push(key));
        keys
    }

    #[test]
    fn timers_expire_at_their_tick_and_never_early() {
        let mut wheel = wheel(4);
        wheel.arm(0, Instant(TICK * 3 + 1));
        wheel.arm(1, Instant(TICK * 3));
        assert_eq!(wheel.poll_timeout(), Instant(TICK * 3));
        assert_eq!(due(&mut wheel, TICK * 3 - 1), [0; 0]);
        assert_eq!(due(&mut wheel, TICK * 3 + 10), [1]);
        assert_eq!(due(&mut wheel, TICK * 4), [0]);
        assert_eq!(wheel.poll_timeout(), Instant::NEVER);
    }

    #[test]
    fn an_overdue_timer_expires_at_the_next_tick_and_not_in_the_same_call() {
        let mut wheel = wheel(1);
        assert_eq!(due(&mut wheel, TICK * 1000), [0; 0]);
        wheel.arm(0, Instant::ZERO);
        let mut times = 0;
        wheel.expire(Instant(TICK * 1001), |wheel, key| {
            times += 1;
            wheel.arm(key, Instant::ZERO);
        });
        assert_eq!((times, wheel.len()), (1, 1));
    }

    #[test]
    fn a_timer_beyond_the_horizon_expires_in_time() {
        let mut wheel = wheel(2);
        let far = TICK << (BITS * LEVELS as u32 + 1);
        wheel.arm(0, Instant(far));
        wheel.arm(1, Instant(TICK));
        assert_eq!(due(&mut wheel, TICK), [1]);
        assert!(wheel.poll_timeout() <= Instant(far));
        assert_eq!(due(&mut wheel, far - 1), [0; 0]);
        assert_eq!(due(&mut wheel, far), [0]);
    }

    proptest! {
        /// Compares the wheel with a sorted set, over all levels.
        #[test]
        fn it_behaves_like_a_sorted_set(
            steps in prop::collection::vec((0..20usize, 0..40u32, any::<u64>(), any::<bool>()), 1..200),
        ) {
            let (mut wheel, mut model) = (wheel(20), BTreeSet::new());
            let (mut dues, mut now) = ([u64::MAX; 20], 0u64);
            for (key, magnitude, random, pass) in steps {
                let ahead = (random & ((1 << magnitude) - 1)) * TICK / 7;
                if pass {
                    now += ahead;
                    let mut got = due(&mut wheel, now);
                    let tick = now / TICK;
                    let mut expected = Vec::new();
                    while let Some((at, key)) = model.first().copied().filter(|(at, _)| *at <= tick) {
                        model.remove(&(at, key));
                        dues[key] = u64::MAX;
                        expected.push(key);
                    }
                    // Keys expire in the order of ticks; within a tick the order is arbitrary.
                    got.sort_unstable();
                    expected.sort_unstable();
                    prop_assert_eq!(got, expected);
                } else {
                    model.remove(&(dues[key], key));
                    dues[key] = (now + ahead).div_ceil(TICK).max(now / TICK + 1);
                    model.insert((dues[key], key));
                    wheel.arm(key, Instant(now + ahead));
                }
                prop_assert_eq!(wheel.len(), model.len());
                let first = model.first().map_or(u64::MAX, |(at, _)| *at * TICK);
                prop_assert!(wheel.poll_timeout().0 <= first);
                prop_assert!(wheel.poll_timeout().0 > now || model.is_empty());
            }
        }
    }
}
