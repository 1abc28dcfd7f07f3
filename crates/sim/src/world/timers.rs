//! Host timers share one tournament, with a range of indices per kind.

use super::Simulation;
use netstage_core::time::Instant;

/// Timers, in the order of their indices.
#[derive(Clone, Copy, Debug)]
pub(super) enum Timer {
    Sender(u32),
    Receiver(u32),
    Source(u32),
    Publication,
    News,
    Dialogue(u32),
}

impl Simulation<'_> {
    pub(super) fn timer_index(&self, timer: Timer) -> u32 {
        let (tcp, sources) = (self.hosts.senders.len() as u32, self.hosts.sources.len() as u32);
        match timer {
            Timer::Sender(index) => index,
            Timer::Receiver(index) => tcp + index,
            Timer::Source(index) => 2 * tcp + index,
            Timer::Publication => 2 * tcp + sources,
            Timer::News => 2 * tcp + sources + 1,
            Timer::Dialogue(index) => 2 * tcp + sources + 2 + index,
        }
    }

    pub(super) fn timer_at(&self, index: u32) -> Timer {
        let (tcp, sources) = (self.hosts.senders.len() as u32, self.hosts.sources.len() as u32);
        match index {
            i if i < tcp => Timer::Sender(i),
            i if i < 2 * tcp => Timer::Receiver(i - tcp),
            i if i < 2 * tcp + sources => Timer::Source(i - 2 * tcp),
            i if i == 2 * tcp + sources => Timer::Publication,
            i if i == 2 * tcp + sources + 1 => Timer::News,
            i => Timer::Dialogue(i - 2 * tcp - sources - 2),
        }
    }

    pub(super) fn set_timer(&mut self, timer: Timer, at: Instant) {
        let index = self.timer_index(timer);
        self.timers.set(index, at);
    }
}
