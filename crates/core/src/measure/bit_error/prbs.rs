//! Pseudo-random bit sequences of ITU-T O.150, and a receiver that finds its place in them.

use serde::{Deserialize, Serialize};

/// Which sequence. All three are sent inverted, as O.150 asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Polynomial {
    /// 2¹⁵ − 1 bits, x¹⁵ + x¹⁴ + 1.
    Prbs15,
    /// 2²³ − 1 bits, x²³ + x¹⁸ + 1.
    Prbs23,
    /// 2³¹ − 1 bits, x³¹ + x²⁸ + 1.
    Prbs31,
}

impl Polynomial {
    /// Length of the shift register and its second tap.
    const fn taps(self) -> (u32, u32) {
        match self {
            Polynomial::Prbs15 => (15, 14),
            Polynomial::Prbs23 => (23, 18),
            Polynomial::Prbs31 => (31, 28),
        }
    }

    /// Bits until the sequence repeats.
    pub const fn period(self) -> u64 {
        (1 << self.taps().0) - 1
    }

    const fn mask(self) -> u32 {
        (1 << self.taps().0) - 1
    }

    /// The byte after these bits of the sequence before inversion (newest lowest). Each bit is
    /// the sum of those `length` and `tap` before it, both at least 8 back, so eight come at once.
    const fn next_byte(self, history: u32) -> u8 {
        let (length, tap) = self.taps();
        ((history >> (length - 8)) ^ (history >> (tap - 8))) as u8
    }
}

/// Generates a sequence, most significant bit of each byte first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prbs {
    polynomial: Polynomial,
    history: u32,
}

impl Prbs {
    /// The sequence from the register filled with ones.
    pub fn new(polynomial: Polynomial) -> Prbs {
        Prbs { polynomial, history: polynomial.mask() }
    }

    /// The sequence from a place that depends on `seed`, so that a packet's payload follows
    /// from its sequence number and is known to the receiver whatever was lost before.
    pub fn seeded(polynomial: Polynomial, seed: u64) -> Prbs {
        let spread = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let history = spread as u32 & polynomial.mask();
        // A register of zeros would stay so.
        Prbs { polynomial, history: if history == 0 { 1 } else { history } }
    }

    /// The next eight bits.
    #[inline]
    pub fn next_byte(&mut self) -> u8 {
        let byte = self.polynomial.next_byte(self.history);
        self.history = self.history << 8 | u32::from(byte);
        !byte
    }

    /// Fill a payload with the bits that follow.
    pub fn fill(&mut self, payload: &mut [u8]) {
        payload.iter_mut().for_each(|byte| *byte = self.next_byte());
    }
}

/// Finds its place in a received sequence and counts the bits that differ.
///
/// While hunting it takes what it receives for the register's content, and is in step when
/// the next eight bytes are as predicted. In step its register runs free, so one wrong bit is
/// one error. It hunts again when more than a fifth of the last 125 bytes' bits are wrong:
/// out of step half of them would be, and no line worth measuring is as bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrbsChecker {
    polynomial: Polynomial,
    history: u32,
    /// Bytes taken in, or correctly predicted since; in step from `IN_STEP`.
    confidence: u32,
    window: Count,
    /// The window before: a slip found in this one may have begun there.
    window_before: Count,
    before: Count,
    slips: u64,
}

/// Bytes compared, and bits that differed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    bytes: u64,
    errors: u64,
}

/// Bytes that fill the longest register.
const REGISTER_BYTES: u32 = 4;
/// Register filled and eight bytes predicted.
const IN_STEP: u32 = REGISTER_BYTES + 8;
/// Bytes over which loss of step is judged: 1,000 bits.
const WINDOW_BYTES: u64 = 125;
/// Errors in a window that mean the step is lost.
const WINDOW_ERRORS: u64 = 200;

impl PrbsChecker {
    /// A checker that has seen nothing.
    pub fn new(polynomial: Polynomial) -> PrbsChecker {
        PrbsChecker {
            polynomial,
            history: 0,
            confidence: 0,
            window: Count::default(),
            window_before: Count::default(),
            before: Count::default(),
            slips: 0,
        }
    }

    /// Check what follows. Bytes must arrive aligned, as those of packets do.
    pub fn feed(&mut self, received: &[u8]) {
        for &byte in received {
            if self.in_step() { self.compare(!byte) } else { self.hunt(!byte) }
        }
    }

    fn compare(&mut self, byte: u8) {
        let expected = self.polynomial.next_byte(self.history);
        self.history = self.history << 8 | u32::from(expected);
        self.window.bytes += 1;
        self.window.errors += u64::from((expected ^ byte).count_ones());
        if self.window.errors > WINDOW_ERRORS {
            // These were counted against another place in the sequence.
            (self.window, self.window_before) = (Count::default(), Count::default());
            self.slips += 1;
            self.confidence = 0;
        } else if self.window.bytes == WINDOW_BYTES {
            self.before.bytes += self.window_before.bytes;
            self.before.errors += self.window_before.errors;
            (self.window_before, self.window) = (self.window, Count::default());
        }
    }

    fn hunt(&mut self, byte: u8) {
        let predicted = self.polynomial.next_byte(self.history) == byte;
        let filled = self.confidence >= REGISTER_BYTES;
        self.history = self.history << 8 | u32::from(byte);
        // A silent line would predict itself.
        let alive = self.history & self.polynomial.mask() != 0;
        self.confidence = match (filled, predicted && alive) {
            (true, false) => 1,
            _ => self.confidence + 1,
        };
    }

    /// Whether it has found its place.
    pub fn in_step(&self) -> bool {
        self.confidence >= IN_STEP
    }

    /// Bits compared while in step.
    pub fn bits(&self) -> u64 {
        8 * (self.before.bytes + self.window_before.bytes + self.window.bytes)
    }

    /// Of these, different.
    pub fn errors(&self) -> u64 {
        self.before.errors + self.window_before.errors + self.window.errors
    }

    /// How often it lost its place: bits were inserted or lost.
    pub fn slips(&self) -> u64 {
        self.slips
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;
    use alloc::vec;
    use alloc::vec::Vec;

    const ALL: [Polynomial; 3] = [Polynomial::Prbs15, Polynomial::Prbs23, Polynomial::Prbs31];

    fn bits(bytes: &[u8]) -> Vec<u8> {
        bytes.iter().flat_map(|byte| (0..8).rev().map(move |shift| byte >> shift & 1)).collect()
    }

    #[test]
    fn bits_follow_the_polynomial() {
        for polynomial in ALL {
            let mut payload = vec![0; 1000];
            Prbs::new(polynomial).fill(&mut payload);
            let (length, tap) = polynomial.taps();
            let plain: Vec<u8> = bits(&payload).iter().map(|bit| 1 - bit).collect();
            for place in length as usize..plain.len() {
                assert_eq!(plain[place], plain[place - length as usize] ^ plain[place - tap as usize]);
            }
        }
    }

    #[test]
    fn periods_are_maximal() {
        for polynomial in [Polynomial::Prbs15, Polynomial::Prbs23] {
            let mut prbs = Prbs::new(polynomial);
            let (mut steps, mut ones) = (0_u64, 0_u64);
            // Eight and the period have no common factor: bytes repeat after as many bytes.
            loop {
                ones += u64::from(prbs.next_byte().count_ones());
                steps += 1;
                if prbs.history & polynomial.mask() == polynomial.mask() {
                    break;
                }
            }
            assert_eq!(steps, polynomial.period());
            // Inverted, one bit more is zero than one.
            assert_eq!(ones, 8 * (polynomial.period() - 1) / 2);
        }
    }

    #[test]
    fn the_longest_run_is_of_zeros_and_as_long_as_the_register() {
        // O.150 table: 15 consecutive zeros for the inverted 2^15 - 1 sequence.
        let mut payload = vec![0; 2 * 4096];
        Prbs::new(Polynomial::Prbs15).fill(&mut payload);
        let (mut longest, mut run) = ([0, 0], (0, 0));
        for bit in bits(&payload) {
            run = if run.0 == bit { (bit, run.1 + 1) } else { (bit, 1) };
            longest[bit as usize] = longest[bit as usize].max(run.1);
        }
        assert_eq!(longest, [15, 14]);
    }

    #[test]
    fn a_checker_finds_its_place_anywhere() {
        for polynomial in ALL {
            let mut payload = vec![0; 4000];
            Prbs::seeded(polynomial, 77).fill(&mut payload);
            let mut checker = PrbsChecker::new(polynomial);
            checker.feed(&payload[123..]);
            assert!(checker.in_step());
            assert_eq!((checker.errors(), checker.slips()), (0, 0));
            assert_eq!(checker.bits(), 8 * (4000 - 123 - u64::from(IN_STEP)));
        }
    }

    #[test]
    fn every_flipped_bit_is_one_error() {
        let mut payload = vec![0; 100_000];
        Prbs::new(Polynomial::Prbs31).fill(&mut payload);
        let mut stream = Stream::new(9, "flips");
        let mut flipped = 0;
        for byte in payload.iter_mut().skip(100) {
            if stream.chance(0.01) {
                *byte ^= 1 << stream.below(8);
                flipped += 1;
            }
        }
        let mut checker = PrbsChecker::new(Polynomial::Prbs31);
        checker.feed(&payload);
        assert_eq!((checker.errors(), checker.slips()), (flipped, 0));
    }

    #[test]
    fn a_lost_byte_is_a_slip_and_not_errors() {
        let mut payload = vec![0; 10_000];
        Prbs::new(Polynomial::Prbs23).fill(&mut payload);
        payload.remove(5000);
        let mut checker = PrbsChecker::new(Polynomial::Prbs23);
        checker.feed(&payload);
        assert_eq!((checker.errors(), checker.slips(), checker.in_step()), (0, 1, true));
    }

    #[test]
    fn silence_is_not_a_sequence() {
        for byte in [0x00, 0xff] {
            let mut checker = PrbsChecker::new(Polynomial::Prbs15);
            checker.feed(&[byte; 1000]);
            assert!(!checker.in_step(), "{byte}");
        }
    }

    #[test]
    fn payloads_differ_from_packet_to_packet() {
        let first = |seed| Prbs::seeded(Polynomial::Prbs31, seed).next_byte();
        assert!((0..64).any(|seed| first(seed) != first(0)));
        assert_eq!(Prbs::seeded(Polynomial::Prbs15, 5), Prbs::seeded(Polynomial::Prbs15, 5));
    }
}
