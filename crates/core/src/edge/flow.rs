//! One VPN flow at its ingress: its control, its maximum rate, and when to look at it again.

use crate::fair::{Config, Control, Ingress, Query, Reply, Shaper, Transmit};
use crate::packet::Packet;
use crate::quantity::BitRate;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;

/// Packets a flow without control may have waiting for its turn.
const UNCONTROLLED_QUEUE: usize = 128;

/// How much lateness of its driver a paced flow makes up for, by sending in a row what should
/// have left meanwhile. Without it a flow could send one packet per wake-up, and a paced window
/// would never be the limit, and never grow.
const CATCH_UP: Duration = Duration::from_millis(1);

/// An idle flow asks this often, the longer it is idle: a hundred thousand of them must not
/// cost a core. The first step is [`Ingress`]'s own.
const IDLE_PROBES: [Duration; 6] = {
    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }
    [s(1), s(2), s(4), s(8), s(16), s(30)]
};

/// When a flow that has nothing to send asks for the first time: spread over the longest
/// interval, which its later probes keep.
fn first_probe(key: usize) -> Duration {
    // Multiples of the golden ratio's fraction lie evenly, however many there are.
    let fraction = (key as u32).wrapping_mul(0x9e37_79b9);
    IDLE_PROBES[0]
        + Duration(((u128::from(IDLE_PROBES[LONGEST as usize].0) * u128::from(fraction)) >> 32) as u64)
}

const LONGEST: u8 = IDLE_PROBES.len() as u8 - 1;
const UNUSED: u8 = u8::MAX;

#[derive(Debug)]
pub(super) struct Flow<H> {
    state: State<H>,
    maximum: Option<BitRate>,
    /// When its maximum rate lets the next packet go.
    free_at: Instant,
    /// Since when nothing but the clock has kept its next packet waiting.
    waits_since: Instant,
    /// When the wheel wakes it.
    pub armed: Instant,
    pub packets_sent: u64,
    pub bytes_sent: u64,
    /// When it asks for the first time, if nothing is sent before.
    first_probe: Instant,
    /// Probes sent since it became idle; [`UNUSED`] before there was anything else.
    pub idle_probes: u8,
    /// It is in the list of those that may have something to send.
    pub is_ready: bool,
}

// A box around the large one would cost a cache miss for each packet, to save memory only
// where nothing is controlled.
#[expect(clippy::large_enum_variant)]
#[derive(Debug)]
enum State<H> {
    Uncontrolled(VecDeque<H>),
    Window { config: u32, ingress: Ingress<H> },
    Rate(Shaper<H>),
}

impl<H: Packet> State<H> {
    fn new((control, config): (&Control, u32), weight: f64) -> State<H> {
        match control {
            Control::None => State::Uncontrolled(VecDeque::new()),
            Control::I2vfc(settings) => State::Window { config, ingress: Ingress::new(settings, weight) },
            Control::FixedRate { rate, queue } => State::Rate(Shaper::new(*rate, *queue)),
        }
    }
}

impl<H: Packet> Flow<H> {
    pub fn new(
        (key, now): (usize, Instant),
        (control, config): (&Control, u32),
        weight: f64,
        maximum: Option<BitRate>,
    ) -> Flow<H> {
        Flow {
            state: State::new((control, config), weight),
            maximum,
            free_at: Instant::ZERO,
            waits_since: Instant::ZERO,
            armed: Instant::NEVER,
            packets_sent: 0,
            bytes_sent: 0,
            first_probe: now + first_probe(key),
            idle_probes: UNUSED,
            is_ready: false,
        }
    }

    /// Another control: of the same kind, what it has learned stays; of another kind, it
    /// begins anew. Gives back the packets its new queue has no room for.
    pub fn change(
        &mut self,
        configs: &[Config],
        now: Instant,
        (control, config): (&Control, u32),
        weight: f64,
        maximum: Option<BitRate>,
    ) -> VecDeque<H> {
        self.maximum = maximum;
        match (&mut self.state, control) {
            (State::Uncontrolled(_), Control::None) => {}
            (State::Window { config: old, ingress }, Control::I2vfc(_)) => {
                *old = config;
                ingress.set_weight(weight);
            }
            (State::Rate(shaper), Control::FixedRate { rate, queue }) => shaper.set(*rate, *queue),
            _ => {
                let waiting = self.take_queue();
                self.state = State::new((control, config), weight);
                let refused =
                    waiting.into_iter().filter_map(|packet| self.handle_packet(configs, now, packet).err());
                return refused.collect();
            }
        }
        VecDeque::new()
    }

    /// Takes out what waits.
    pub fn take_queue(&mut self) -> VecDeque<H> {
        match &mut self.state {
            State::Uncontrolled(queue) => core::mem::take(queue),
            State::Window { ingress, .. } => ingress.take_queue(),
            State::Rate(shaper) => shaper.take_queue(),
        }
    }

    #[inline]
    pub fn handle_packet(&mut self, configs: &[Config], now: Instant, packet: H) -> Result<(), H> {
        if self.queue_len() == 0 {
            self.waits_since = now;
            self.idle_probes = 0;
        }
        match &mut self.state {
            State::Uncontrolled(queue) if queue.len() >= UNCONTROLLED_QUEUE => Err(packet),
            State::Uncontrolled(queue) => {
                queue.push_back(packet);
                Ok(())
            }
            State::Window { config, ingress } => ingress.handle_packet(&configs[*config as usize], packet),
            State::Rate(shaper) => shaper.handle_packet(packet),
        }
    }

    pub fn handle_reply(&mut self, configs: &[Config], now: Instant, reply: &Reply) {
        let State::Window { config, ingress } = &mut self.state else { return };
        if ingress.in_flight() as f64 + 1.0 > ingress.window() {
            // The window was closed: it, and not the pace, has kept packets waiting.
            self.waits_since = now;
        }
        ingress.handle_reply(&configs[*config as usize], now, reply);
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        if let State::Window { ingress, .. } = &mut self.state {
            ingress.handle_timeout(now);
        }
    }

    #[inline]
    pub fn poll_transmit(&mut self, configs: &[Config], now: Instant) -> Option<Transmit<H>> {
        // What was due before now leaves as if the driver had been in time.
        let earliest = self.waits_since.max(Instant(now.0.saturating_sub(CATCH_UP.0)));
        let in_time = |due: Instant| due.max(earliest).min(now);
        if self.maximum.is_some() && self.free_at > now && self.queue_len() > 0 {
            return None;
        }
        match &mut self.state {
            State::Uncontrolled(queue) => {
                let packet = queue.pop_front()?;
                Some(self.sent(packet, in_time(self.free_at)))
            }
            State::Window { config, ingress } => {
                let config = &configs[*config as usize];
                match ingress.poll_transmit(config, in_time(ingress.poll_timeout(config)))? {
                    Transmit::Data(packet) => Some(self.sent(packet, in_time(self.free_at))),
                    Transmit::Query(query) => {
                        if ingress.in_flight() == 0 && ingress.queue_len() == 0 {
                            self.idle_probes = LONGEST.min(self.idle_probes.saturating_add(1));
                        }
                        // The round trip is of when it really leaves.
                        Some(Transmit::Query(Query { sent_at: now, ..query }))
                    }
                }
            }
            State::Rate(shaper) => {
                let packet = shaper.poll_transmit(in_time(shaper.poll_timeout()))?;
                Some(self.sent(packet, in_time(self.free_at)))
            }
        }
    }

    #[inline]
    fn sent(&mut self, packet: H, at: Instant) -> Transmit<H> {
        self.packets_sent += 1;
        self.bytes_sent += u64::from(packet.size());
        if let Some(maximum) = self.maximum {
            self.free_at = at + maximum.transmission_time(packet.size());
        }
        Transmit::Data(packet)
    }

    /// When to look at it again, once it has nothing to send.
    #[inline]
    pub fn due(&self, configs: &[Config]) -> Instant {
        let due = match &self.state {
            State::Uncontrolled(queue) if queue.is_empty() => return Instant::NEVER,
            State::Uncontrolled(_) => Instant::ZERO,
            State::Window { config, ingress } => {
                let due = ingress.poll_timeout(&configs[*config as usize]);
                if self.idle_probes == UNUSED {
                    return self.first_probe;
                }
                if ingress.in_flight() == 0 && ingress.queue_len() == 0 {
                    return due + (IDLE_PROBES[usize::from(self.idle_probes)] - IDLE_PROBES[0]);
                }
                due
            }
            State::Rate(shaper) => shaper.poll_timeout(),
        };
        if self.queue_len() > 0 { due.max(self.free_at) } else { due }
    }

    #[inline]
    pub fn queue_len(&self) -> usize {
        match &self.state {
            State::Uncontrolled(queue) => queue.len(),
            State::Window { ingress, .. } => ingress.queue_len(),
            State::Rate(shaper) => shaper.queue_len(),
        }
    }

    pub fn window(&self) -> Option<&Ingress<H>> {
        match &self.state {
            State::Window { ingress, .. } => Some(ingress),
            _ => None,
        }
    }

    pub fn window_mut(&mut self) -> Option<&mut Ingress<H>> {
        match &mut self.state {
            State::Window { ingress, .. } => Some(ingress),
            _ => None,
        }
    }
}
