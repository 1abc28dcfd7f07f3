//! A VPN flow at its ingress: its control, its queue, its maximum rate and its timer.

use super::VpnFlowSettings;
use crate::fair::feedback::IDLE_PROBE;
use crate::fair::{
    CoreMembership, I2vfcConfig, Ingress, IngressTransmit, PacedFlow, PublishedReference, Reply, Shaper,
    VpnControl, WeightReference,
};
use crate::packet::QueuePacket;
use crate::quantity::BitRate;
use crate::queue::PacketQueue;
use crate::time::{Duration, Instant};
use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// Capacity in packets of the queue of a flow without control.
const UNCONTROLLED_QUEUE: usize = 128;

/// Maximum lateness of the driver that a paced flow catches up on, by sending the overdue packets in a row.
/// Without it a flow could send only one packet per wake-up, and a paced window would never be the limit
/// and never grow.
const CATCH_UP: Duration = Duration::from_millis(1);

/// Time after which an idle flow probes first. Later probes are ever more rare, because
/// a hundred thousand idle flows must not saturate a CPU core.
const FIRST_IDLE_PROBE: Duration = IDLE_PROBE;

/// Time between the first probes of flows that have never sent. With few flows, each knows its round trip
/// soon; with many, the probes are spread.
const FIRST_PROBES_APART: Duration = Duration::from_millis(15);

/// Returns the time until the first probe of a flow that has nothing to send. It is within the longest
/// probe interval, and later probes keep the offset.
fn first_probe(key: usize, longest: Duration) -> Duration {
    // Multiples of the fractional part of the golden ratio are evenly distributed, however many there are.
    let fraction = u64::from((key as u32).wrapping_mul(0x9e37_79b9));
    let apart = FIRST_PROBES_APART.0 * key as u64 + ((FIRST_PROBES_APART.0 * fraction) >> 32);
    FIRST_IDLE_PROBE + Duration(apart % longest.0.max(1))
}

/// Returns the idle time of a flow after this many probes.
fn idle_interval(config: &I2vfcConfig, probes: u8) -> Duration {
    let interval = FIRST_IDLE_PROBE.0.saturating_mul(1 << probes.min(MAX_IDLE_PROBES));
    Duration(interval.min(config.idle_probe.0))
}

/// Maximum count of idle probes; the interval has then doubled often enough to reach any limit.
const MAX_IDLE_PROBES: u8 = 32;
const UNUSED: u8 = u8::MAX;

/// Number of packets over which the mean size is smoothed. The initial mean is small, so that a minimum
/// rate is exceeded rather than missed.
const MEAN_OVER: f32 = 64.0;
const FIRST_MEAN_SIZE: f32 = 200.0;

#[derive(Debug)]
pub(super) struct IngressFlow<H> {
    state: FlowControlState<H>,
    /// Scheduler for the waiting packets, if they are not sent in the order of arrival. The next packet to
    /// send waits in the control, so that the control knows that one waits.
    scheduled: Option<Box<PacketQueue<H>>>,
    minimum: Option<BitRate>,
    maximum: Option<BitRate>,
    /// Mean size of recent packets in bytes, which converts the minimum rate into packets.
    mean_size: f32,
    /// Time from which the maximum rate permits the next packet.
    free_at: Instant,
    /// Time since which only the clock has kept the next packet waiting.
    waits_since: Instant,
    /// Time for which the timer is armed.
    pub armed: Instant,
    pub packets_sent: u64,
    pub bytes_sent: u64,
    /// Time of the first probe, if nothing is sent before.
    first_probe: Instant,
    /// Probes sent since the flow became idle; [`UNUSED`] if it has never sent.
    pub idle_probes: u8,
    /// Whether the flow is in the list of those that may have packets to send.
    pub is_ready: bool,
}

// A box around the large one would cost a cache miss for each packet, to save memory only
// where nothing is controlled.
#[expect(clippy::large_enum_variant)]
#[derive(Debug)]
enum FlowControlState<H> {
    Uncontrolled(VecDeque<H>),
    Window { config: u32, ingress: Ingress<H> },
    Consensus { membership: CoreMembership, paced: Box<PacedFlow<H>> },
    Rate(Shaper<H>),
}

impl<H: QueuePacket> FlowControlState<H> {
    fn new(now: Instant, settings: &VpnFlowSettings, config: u32) -> FlowControlState<H> {
        match &settings.control {
            VpnControl::None => FlowControlState::Uncontrolled(VecDeque::new()),
            VpnControl::I2vfc(window) => {
                FlowControlState::Window { config, ingress: Ingress::new(window, settings.weight) }
            }
            VpnControl::RateConsensus(membership) => FlowControlState::Consensus {
                membership: membership.clone(),
                paced: Box::new(PacedFlow::new(now, settings.weight)),
            },
            VpnControl::FixedRate { rate, queue } => FlowControlState::Rate(Shaper::new(*rate, *queue)),
        }
    }
}

impl<H: QueuePacket> IngressFlow<H> {
    pub fn new((key, now): (usize, Instant), settings: &VpnFlowSettings, config: u32) -> IngressFlow<H> {
        let longest = match &settings.control {
            VpnControl::I2vfc(config) => config.idle_probe,
            _ => FIRST_IDLE_PROBE,
        };
        IngressFlow {
            state: FlowControlState::new(now, settings, config),
            scheduled: None,
            minimum: settings.minimum,
            maximum: settings.maximum,
            mean_size: FIRST_MEAN_SIZE,
            free_at: Instant::ZERO,
            waits_since: Instant::ZERO,
            armed: Instant::NEVER,
            packets_sent: 0,
            bytes_sent: 0,
            first_probe: now + first_probe(key, longest),
            idle_probes: UNUSED,
            is_ready: false,
        }
    }

    /// Changes the settings. If the kind of control stays the same, its state is kept; otherwise the
    /// control starts afresh. Returns the packets that do not fit the new queue.
    pub fn change(
        &mut self,
        configs: &[I2vfcConfig],
        now: Instant,
        settings: &VpnFlowSettings,
        config: u32,
    ) -> VecDeque<H> {
        (self.minimum, self.maximum) = (settings.minimum, settings.maximum);
        match (&mut self.state, &settings.control) {
            (FlowControlState::Uncontrolled(_), VpnControl::None) => {}
            (FlowControlState::Window { config: old, ingress }, VpnControl::I2vfc(_)) => {
                *old = config;
                ingress.set_weight(settings.weight);
            }
            (
                FlowControlState::Consensus { membership: old, paced },
                VpnControl::RateConsensus(membership),
            ) => {
                *old = membership.clone();
                paced.set_weight(settings.weight);
            }
            (FlowControlState::Rate(shaper), VpnControl::FixedRate { rate, queue }) => {
                shaper.set(*rate, *queue)
            }
            _ => {
                let waiting = self.take_queue();
                self.state = FlowControlState::new(now, settings, config);
                if !waiting.is_empty() {
                    (self.waits_since, self.idle_probes) = (now, 0);
                }
                let refused =
                    waiting.into_iter().filter_map(|packet| self.handle_in_order(configs, now, packet).err());
                return refused.collect();
            }
        }
        VecDeque::new()
    }

    /// Removes and returns all waiting packets.
    pub fn take_all(&mut self, now: Instant) -> VecDeque<H> {
        let mut waiting = self.take_queue();
        if let Some(queue) = &mut self.scheduled {
            queue.clear(now, &mut |packet| waiting.push_back(packet));
        }
        waiting
    }

    /// Removes and returns the packets that wait in the control.
    fn take_queue(&mut self) -> VecDeque<H> {
        match &mut self.state {
            FlowControlState::Uncontrolled(queue) => core::mem::take(queue),
            FlowControlState::Window { ingress, .. } => ingress.take_queue(),
            FlowControlState::Consensus { paced, .. } => paced.take_queue(),
            FlowControlState::Rate(shaper) => shaper.take_queue(),
        }
    }

    /// Replaces the scheduler and moves the waiting packets to the new one. `None` means first in, first out.
    pub fn set_queue(
        &mut self,
        now: Instant,
        queue: Option<Box<PacketQueue<H>>>,
        dropped: &mut impl FnMut(H),
    ) {
        let mut queue = queue;
        let Some(mut before) = self.scheduled.take() else {
            self.scheduled = queue;
            return;
        };
        before.clear(now, &mut |packet| match &mut queue {
            Some(queue) => queue.enqueue(now, packet, dropped),
            None => dropped(packet),
        });
        self.scheduled = queue;
    }

    /// Removes and returns the scheduler, with the packets waiting in it.
    pub fn take_scheduled(&mut self) -> Option<Box<PacketQueue<H>>> {
        self.scheduled.take()
    }

    /// Enqueues a packet in the scheduler, which may drop another one. Returns the packet if there is no
    /// scheduler.
    fn schedule(&mut self, now: Instant, packet: H, dropped: &mut impl FnMut(H)) -> Option<H> {
        let Some(queue) = &mut self.scheduled else { return Some(packet) };
        queue.enqueue(now, packet, dropped);
        None
    }

    /// Moves the next packet from the scheduler to the control, if the control holds none.
    fn choose(&mut self, configs: &[I2vfcConfig], now: Instant, dropped: &mut impl FnMut(H)) {
        if self.control_len() > 0 {
            return;
        }
        let next = self.scheduled.as_mut().and_then(|queue| queue.dequeue(now, dropped));
        if let Some(Err(packet)) = next.map(|packet| self.handle_in_order(configs, now, packet)) {
            dropped(packet);
        }
    }

    /// Loads the flow into the CPU cache.
    #[inline]
    pub fn load(&self) {
        let own = [self.armed.0, self.free_at.0, self.packets_sent];
        core::hint::black_box(own);
        if let FlowControlState::Window { ingress, .. } = &self.state {
            ingress.load();
        }
    }

    /// Enqueues a packet and returns whether it is the only waiting one.
    #[inline]
    pub fn handle_packet(
        &mut self,
        configs: &[I2vfcConfig],
        now: Instant,
        packet: H,
        dropped: &mut impl FnMut(H),
    ) -> Result<bool, H> {
        let is_first = self.queue_len() == 0;
        if is_first {
            self.waits_since = now;
            self.idle_probes = 0;
        }
        if let Some(packet) = self.schedule(now, packet, dropped) {
            self.handle_in_order(configs, now, packet)?;
        }
        Ok(is_first)
    }

    #[inline]
    fn handle_in_order(&mut self, configs: &[I2vfcConfig], now: Instant, packet: H) -> Result<(), H> {
        match &mut self.state {
            FlowControlState::Uncontrolled(queue) if queue.len() >= UNCONTROLLED_QUEUE => Err(packet),
            FlowControlState::Uncontrolled(queue) => {
                queue.push_back(packet);
                Ok(())
            }
            FlowControlState::Window { config, ingress } => {
                ingress.handle_packet(&configs[*config as usize], packet)
            }
            FlowControlState::Consensus { paced, .. } => paced.handle_packet(now, UNCONTROLLED_QUEUE, packet),
            FlowControlState::Rate(shaper) => shaper.handle_packet(packet),
        }
    }

    pub fn handle_reply(
        &mut self,
        configs: &[I2vfcConfig],
        references: &[Option<PublishedReference>],
        now: Instant,
        reply: &Reply,
    ) {
        let (config, ingress) = match &mut self.state {
            FlowControlState::Window { config, ingress } => (&configs[*config as usize], ingress),
            FlowControlState::Consensus { paced, .. } => {
                paced.set_minimum(self.minimum.map_or(0.0, |rate| rate.as_f64() / 8.0));
                return paced.handle_reply(now, reply);
            }
            _ => return,
        };
        if ingress.in_flight() as f64 + 1.0 > ingress.window() {
            // The window was closed, so the window and not the pacing has kept packets waiting.
            self.waits_since = now;
        }
        if let Some(minimum) = self.minimum {
            ingress.set_minimum(config, minimum.as_f64() / (8.0 * f64::from(self.mean_size)));
        }
        let reference = match config.reference {
            WeightReference::Vpn(number) => references.get(number).and_then(Option::as_ref),
            WeightReference::Nominal(_) => None,
        };
        ingress.handle_reply(config, reference, now, reply);
    }

    pub fn handle_timeout(&mut self, configs: &[I2vfcConfig], now: Instant) {
        match &mut self.state {
            FlowControlState::Window { config, ingress } => {
                ingress.handle_timeout(&configs[*config as usize], now)
            }
            FlowControlState::Consensus { paced, .. } => paced.handle_timeout(now),
            _ => {}
        }
    }

    #[inline]
    pub fn poll_transmit(
        &mut self,
        configs: &[I2vfcConfig],
        now: Instant,
        dropped: &mut impl FnMut(H),
    ) -> Option<IngressTransmit<H>> {
        if self.scheduled.is_some() {
            self.choose(configs, now, dropped);
        }
        if self.maximum.is_some() && self.free_at > now && self.queue_len() > 0 {
            return None;
        }
        // Packets due before now leave as if the driver had been on time.
        let earliest = self.waits_since.max(Instant(now.0.saturating_sub(CATCH_UP.0)));
        let in_time = |due: Instant| due.max(earliest).min(now);
        let (transmit, is_idle) = match &mut self.state {
            FlowControlState::Uncontrolled(queue) => (IngressTransmit::Data(queue.pop_front()?), false),
            FlowControlState::Window { config, ingress } => {
                let transmit = ingress.poll_transmit_late(&configs[*config as usize], now, earliest)?;
                (transmit, ingress.in_flight() == 0 && ingress.queue_len() == 0)
            }
            FlowControlState::Consensus { paced, .. } => {
                let transmit = paced.poll_transmit_late(now, earliest)?;
                (transmit, paced.in_flight() == 0 && paced.queue_len() == 0)
            }
            FlowControlState::Rate(shaper) => {
                (IngressTransmit::Data(shaper.poll_transmit(in_time(shaper.poll_timeout()))?), false)
            }
        };
        match transmit {
            IngressTransmit::Data(packet) => Some(self.sent(packet, in_time(self.free_at))),
            query => {
                if is_idle {
                    self.idle_probes = MAX_IDLE_PROBES.min(self.idle_probes.saturating_add(1));
                }
                Some(query)
            }
        }
    }

    #[inline]
    fn sent(&mut self, packet: H, at: Instant) -> IngressTransmit<H> {
        self.packets_sent += 1;
        self.bytes_sent += u64::from(packet.size());
        self.mean_size += (packet.size() as f32 - self.mean_size) / MEAN_OVER;
        if let Some(maximum) = self.maximum {
            self.free_at = at + maximum.transmission_time(packet.size());
        }
        IngressTransmit::Data(packet)
    }

    /// Returns the time of the next event of a flow that has nothing to send now.
    #[inline]
    pub fn due(&self, configs: &[I2vfcConfig]) -> Instant {
        let due = match &self.state {
            FlowControlState::Uncontrolled(queue) if queue.is_empty() => return Instant::NEVER,
            FlowControlState::Uncontrolled(_) => Instant::ZERO,
            FlowControlState::Window { config, ingress } => {
                if self.idle_probes == UNUSED {
                    return self.first_probe;
                }
                let config = &configs[*config as usize];
                let due = ingress.poll_timeout(config);
                if ingress.in_flight() == 0 && ingress.queue_len() == 0 {
                    return due + (idle_interval(config, self.idle_probes) - FIRST_IDLE_PROBE);
                }
                due
            }
            FlowControlState::Consensus { paced, .. } => {
                if self.idle_probes == UNUSED {
                    return self.first_probe;
                }
                paced.poll_timeout()
            }
            FlowControlState::Rate(shaper) => shaper.poll_timeout(),
        };
        if self.queue_len() > 0 { due.max(self.free_at) } else { due }
    }

    #[inline]
    pub fn queue_len(&self) -> usize {
        self.control_len() + self.scheduled.as_ref().map_or(0, |queue| queue.len())
    }

    #[inline]
    fn control_len(&self) -> usize {
        match &self.state {
            FlowControlState::Uncontrolled(queue) => queue.len(),
            FlowControlState::Window { ingress, .. } => ingress.queue_len(),
            FlowControlState::Consensus { paced, .. } => paced.queue_len(),
            FlowControlState::Rate(shaper) => shaper.queue_len(),
        }
    }

    pub fn window(&self) -> Option<&Ingress<H>> {
        match &self.state {
            FlowControlState::Window { ingress, .. } => Some(ingress),
            _ => None,
        }
    }

    /// Returns the flow under rate consensus, if it is.
    pub fn paced(&self) -> Option<&PacedFlow<H>> {
        match &self.state {
            FlowControlState::Consensus { paced, .. } => Some(paced),
            _ => None,
        }
    }

    /// Returns the flow under rate consensus with its membership, if it is.
    pub fn consensus(&mut self) -> Option<(&CoreMembership, &mut PacedFlow<H>)> {
        match &mut self.state {
            FlowControlState::Consensus { membership, paced } => Some((membership, paced)),
            _ => None,
        }
    }

    pub fn silent_since(&self, configs: &[I2vfcConfig]) -> Option<Instant> {
        match &self.state {
            FlowControlState::Window { config, ingress } => ingress.silent_since(&configs[*config as usize]),
            FlowControlState::Consensus { paced, .. } => paced.silent_since(),
            _ => None,
        }
    }

    #[inline]
    pub fn is_stopped(&self, configs: &[I2vfcConfig]) -> bool {
        match &self.state {
            FlowControlState::Window { config, ingress } => ingress.is_stopped(&configs[*config as usize]),
            _ => false,
        }
    }
}
