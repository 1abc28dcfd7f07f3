//! Generator of the emissions of a pattern.

use super::Pattern;
use crate::quantity::BitRate;
use crate::rng::RandomStream;
use crate::time::Duration;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Source of the emissions of one flow, with the flow's own random stream.
#[derive(Clone, Debug)]
pub struct PatternSource {
    rng: RandomStream,
    state: PatternState,
}

/// Payload passed to the transport at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emission {
    /// Time since the previous emission, or since the start for the first.
    pub gap: Duration,
    /// Payload bytes; `u64::MAX` for an unlimited bulk transfer.
    pub bytes: u64,
}

#[derive(Clone, Debug)]
enum PatternState {
    Silent,
    Bulk { bytes: u64 },
    Cbr { clock: Clock },
    Poisson { mean_gap_ns: f64, packet: u32 },
    Phases { clock: Clock, on: PhaseDistribution, off: PhaseDistribution, on_left: Duration },
    Mmpp { states: Vec<MmppState>, packet: u32, state: usize, left_ns: f64 },
    Trace { packets: Arc<[(Duration, u32)]>, repeat: bool, next: usize },
}

#[derive(Clone, Copy, Debug)]
struct MmppState {
    packets_per_ns: f64,
    sojourn_ns: f64,
}

impl PatternSource {
    /// Creates the source of a pattern; it emits nothing if [`Pattern::check`] fails.
    pub fn new(pattern: &Pattern, mut rng: RandomStream) -> PatternSource {
        if pattern.check().is_err() {
            return PatternSource { rng, state: PatternState::Silent };
        }
        let state = match pattern {
            Pattern::Bulk { size } => PatternState::Bulk { bytes: size.unwrap_or(u64::MAX) },
            &Pattern::Cbr { rate, packet } => PatternState::Cbr { clock: Clock::new(rate, packet) },
            &Pattern::Poisson { rate, packet } => {
                PatternState::Poisson { mean_gap_ns: 1.0 / packets_per_ns(rate, packet), packet }
            }
            &Pattern::OnOff { rate, packet, on, off } => PatternSource::phases(
                rate,
                packet,
                PhaseDistribution::exponential(on),
                PhaseDistribution::exponential(off),
                &mut rng,
            ),
            &Pattern::Pareto { rate, packet, on, off, shape } => PatternSource::phases(
                rate,
                packet,
                PhaseDistribution::pareto(on, shape),
                PhaseDistribution::pareto(off, shape),
                &mut rng,
            ),
            Pattern::Mmpp { states, packet } => {
                let states: Vec<MmppState> = states
                    .iter()
                    .map(|&(rate, sojourn)| MmppState {
                        packets_per_ns: packets_per_ns(rate, *packet),
                        sojourn_ns: sojourn.0 as f64,
                    })
                    .collect();
                let left_ns = sojourn(&states, 0, &mut rng);
                PatternState::Mmpp { states, packet: *packet, state: 0, left_ns }
            }
            Pattern::Trace { packets, repeat } => {
                PatternState::Trace { packets: Arc::clone(packets), repeat: *repeat, next: 0 }
            }
        };
        PatternSource { rng, state }
    }

    /// Returns the next emission, or `None` at the end of the pattern.
    #[expect(clippy::should_implement_trait, reason = "a source is a state machine, not a collection")]
    #[inline]
    pub fn next(&mut self) -> Option<Emission> {
        let rng = &mut self.rng;
        match &mut self.state {
            PatternState::Silent => None,
            &mut PatternState::Bulk { bytes } => {
                self.state = PatternState::Silent;
                Some(Emission { gap: Duration::ZERO, bytes })
            }
            PatternState::Cbr { clock } => Some(Emission { gap: clock.tick(), bytes: clock.packet.into() }),
            &mut PatternState::Poisson { mean_gap_ns, packet } => {
                let gap = round_ns(rng.exponential(mean_gap_ns));
                Some(Emission { gap, bytes: packet.into() })
            }
            PatternState::Phases { clock, on, off, on_left } => {
                let mut needed = clock.tick();
                let mut gap = Duration::ZERO;
                while *on_left < needed {
                    needed = needed - *on_left;
                    gap = gap + *on_left + off.draw(rng);
                    *on_left = on.draw(rng);
                }
                *on_left = *on_left - needed;
                Some(Emission { gap: gap + needed, bytes: clock.packet.into() })
            }
            PatternState::Mmpp { states, packet, state, left_ns } => {
                // A unit exponential decreases at the rate of the current state, which yields a Poisson process
                // of that rate.
                let mut needed = rng.exponential(1.0);
                let mut gap = 0.0;
                loop {
                    let rate = states[*state].packets_per_ns;
                    if needed <= *left_ns * rate {
                        let time = if rate > 0.0 { needed / rate } else { 0.0 };
                        *left_ns -= time;
                        gap += time;
                        return Some(Emission { gap: round_ns(gap), bytes: (*packet).into() });
                    }
                    needed -= *left_ns * rate;
                    gap += *left_ns;
                    if states.len() > 1 {
                        let step = 1 + rng.below(states.len() as u64 - 1) as usize;
                        *state = (*state + step) % states.len();
                    }
                    *left_ns = sojourn(states, *state, rng);
                }
            }
            PatternState::Trace { packets, repeat, next } => {
                if *next == packets.len() {
                    if !*repeat {
                        return None;
                    }
                    *next = 0;
                }
                let (gap, bytes) = packets[*next];
                *next += 1;
                Some(Emission { gap, bytes: bytes.into() })
            }
        }
    }

    fn phases(
        rate: BitRate,
        packet: u32,
        on: PhaseDistribution,
        off: PhaseDistribution,
        rng: &mut RandomStream,
    ) -> PatternState {
        let on_left = on.draw(rng);
        PatternState::Phases { clock: Clock::new(rate, packet), on, off, on_left }
    }
}

/// Packet times of a constant bit rate, without drift: tick k is at k · packet bits / rate, rounded down to a
/// nanosecond.
#[derive(Clone, Copy, Debug)]
struct Clock {
    packet: u32,
    rate: u64,
    /// Time per packet in whole nanoseconds, and the remainder in units of 1/rate ns.
    gap: u64,
    remainder: u64,
    /// Sum of the remainders of past ticks, below `rate`.
    carried: u64,
    started: bool,
}

impl Clock {
    fn new(rate: BitRate, packet: u32) -> Clock {
        let bit_ns = u128::from(packet) * 8 * 1_000_000_000;
        let (gap, remainder) = (bit_ns / u128::from(rate.0), bit_ns % u128::from(rate.0));
        let gap = u64::try_from(gap).unwrap_or(u64::MAX);
        Clock { packet, rate: rate.0, gap, remainder: remainder as u64, carried: 0, started: false }
    }

    /// Returns the gap before the next packet.
    #[inline]
    fn tick(&mut self) -> Duration {
        if !self.started {
            self.started = true;
            return Duration::ZERO;
        }
        // Addition modulo the rate, without overflow because both terms are below it.
        let room = self.rate - self.carried;
        if self.remainder >= room {
            self.carried = self.remainder - room;
            Duration(self.gap.saturating_add(1))
        } else {
            self.carried += self.remainder;
            Duration(self.gap)
        }
    }
}

/// Distribution of the length of an on or off phase.
#[derive(Clone, Copy, Debug)]
struct PhaseDistribution {
    mean_ns: f64,
    /// Shape of a Pareto distribution; `None` for exponential.
    shape: Option<f64>,
}

impl PhaseDistribution {
    fn exponential(mean: Duration) -> PhaseDistribution {
        PhaseDistribution { mean_ns: mean.0 as f64, shape: None }
    }

    fn pareto(mean: Duration, shape: f64) -> PhaseDistribution {
        PhaseDistribution { mean_ns: mean.0 as f64, shape: Some(shape) }
    }

    fn draw(&self, rng: &mut RandomStream) -> Duration {
        match self.shape {
            _ if self.mean_ns == 0.0 => Duration::ZERO,
            None => round_ns(rng.exponential(self.mean_ns)),
            Some(shape) => round_ns(rng.pareto(self.mean_ns, shape)),
        }
    }
}

fn sojourn(states: &[MmppState], state: usize, rng: &mut RandomStream) -> f64 {
    if states.len() == 1 { f64::INFINITY } else { rng.exponential(states[state].sojourn_ns) }
}

fn packets_per_ns(rate: BitRate, packet: u32) -> f64 {
    rate.as_f64() / (f64::from(packet) * 8e9)
}

#[inline]
fn round_ns(nanoseconds: f64) -> Duration {
    Duration((nanoseconds + 0.5) as u64)
}
