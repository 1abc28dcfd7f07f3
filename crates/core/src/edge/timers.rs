//! One timer per flow: rounded up to a tick for many flows and a real clock, or exact for virtual time.

use crate::time::{Duration, Instant};
use crate::tournament::Tournament;
use crate::wheel::TimerWheel;

#[derive(Debug)]
pub(super) enum Timers {
    Ticks(TimerWheel),
    Exact(Tournament),
}

impl Timers {
    /// Creates timers with this tick; with a tick of zero they are exact.
    pub fn new(tick: Duration) -> Timers {
        match tick {
            Duration::ZERO => Timers::Exact(Tournament::new(0)),
            tick => Timers::Ticks(TimerWheel::new(tick, 0)),
        }
    }

    /// Grows the set to this many flows.
    pub fn grow(&mut self, flows: usize) {
        match self {
            Timers::Ticks(wheel) => wheel.grow(flows),
            Timers::Exact(tournament) => tournament.grow(flows),
        }
    }

    /// Loads the timer of a flow into the CPU cache.
    #[inline]
    pub fn load(&self, flow: usize) {
        if let Timers::Ticks(wheel) = self {
            wheel.load(flow);
        }
    }

    /// Arms or moves the timer of a flow.
    #[inline]
    pub fn arm(&mut self, flow: usize, at: Instant) {
        match self {
            Timers::Ticks(wheel) => wheel.arm(flow, at),
            Timers::Exact(tournament) => tournament.set(flow as u32, at),
        }
    }

    /// Calls `expired` for each flow whose timer is due; its result, which must be later than `now`, rearms
    /// the timer.
    #[inline]
    pub fn expire(&mut self, now: Instant, mut expired: impl FnMut(usize) -> Option<Instant>) {
        match self {
            Timers::Ticks(wheel) => wheel.expire(now, |wheel, flow| {
                if let Some(next) = expired(flow) {
                    wheel.arm(flow, next);
                }
            }),
            Timers::Exact(tournament) => {
                while tournament.first_time() <= now {
                    let flow = tournament.first();
                    tournament.set(flow, expired(flow as usize).unwrap_or(Instant::NEVER));
                }
            }
        }
    }

    /// Returns the latest time for the next call of [`expire`](Timers::expire).
    #[inline]
    pub fn poll_timeout(&self) -> Instant {
        match self {
            Timers::Ticks(wheel) => wheel.poll_timeout(),
            Timers::Exact(tournament) => tournament.first_time(),
        }
    }
}
