//! The provider edge in virtual time: a VPN flow's control at its ingress, and the
//! counters at its egress.

use crate::bins::{Bins, Grid};
use crate::packet::Packet;
use netstage_core::fair::{Config, Control, Egress, Ingress, Published, Reference, Reply, Shaper, Transmit};
use netstage_core::time::{Duration, Instant};
use netstage_scenario::plan::Vpn;
use netstage_wire::Encapsulation;

/// A reference flow's ingress PE publishes this often.
pub const PUBLISH_EVERY: Duration = Duration::from_millis(100);

/// One VPN flow.
#[derive(Debug)]
pub struct Edge {
    control: State,
    /// What its packets have around them between the PEs.
    pub encapsulation: Encapsulation,
    /// What the egress PE keeps.
    pub egress: Egress,
    /// Bytes that reached the egress PE, per bin.
    pub bytes: Bins,
    /// Packets the ingress PE's queue refused, per bin.
    pub queue_drops: Bins,
    /// Packets times nanoseconds spent waiting at the ingress PE, per bin.
    pub waiting: Bins,
    /// Since when the queue has had its present length.
    waiting_since: Instant,
    /// When the world will wake it at the latest.
    pub wake: Instant,
    /// The flow whose published state this one follows.
    pub reference: Option<usize>,
    /// What that flow's PE published last.
    pub published: Option<Published>,
}

#[derive(Debug)]
enum State {
    None,
    Window(Config, Box<Ingress<Packet>>),
    Rate(Shaper<Packet>),
}

impl Edge {
    /// A VPN flow before its first packet.
    pub fn new(vpn: &Vpn, grid: Grid) -> Edge {
        let control = match &vpn.control {
            Control::None => State::None,
            Control::I2vfc(config) => {
                State::Window(config.clone(), Box::new(Ingress::new(config, vpn.weight)))
            }
            Control::FixedRate { rate, queue } => State::Rate(Shaper::new(*rate, *queue)),
        };
        let reference = match &vpn.control {
            Control::I2vfc(Config { reference: Reference::Vpn(index), .. }) => Some(*index),
            _ => None,
        };
        Edge {
            control,
            encapsulation: vpn.encapsulation,
            egress: Egress::default(),
            bytes: Bins::new(grid),
            queue_drops: Bins::new(grid),
            waiting: Bins::new(grid),
            waiting_since: Instant::ZERO,
            wake: Instant::NEVER,
            reference,
            published: None,
        }
    }

    /// The window, where the VPN flow has one.
    pub fn window(&self) -> Option<&Ingress<Packet>> {
        match &self.control {
            State::Window(_, ingress) => Some(ingress),
            _ => None,
        }
    }

    /// The window and its configuration.
    pub fn window_mut(&mut self) -> Option<(&Config, &mut Ingress<Packet>)> {
        match &mut self.control {
            State::Window(config, ingress) => Some((config, ingress)),
            _ => None,
        }
    }

    /// A reply arrives at the ingress PE.
    pub fn handle_reply(&mut self, now: Instant, reply: &Reply) {
        if let State::Window(config, ingress) = &mut self.control {
            ingress.handle_reply(config, self.published.as_ref(), now, reply);
        }
    }

    /// Packets waiting at the ingress PE.
    pub fn queue_len(&self) -> usize {
        match &self.control {
            State::None => 0,
            State::Window(_, ingress) => ingress.queue_len(),
            State::Rate(shaper) => shaper.queue_len(),
        }
    }

    /// Accounts for the time the queue had its present length; call before it changes.
    #[inline]
    pub fn account(&mut self, now: Instant) {
        let waited = now.since(self.waiting_since).0 * self.queue_len() as u64;
        if waited > 0 {
            self.waiting.add(self.waiting_since, waited);
        }
        self.waiting_since = now;
    }

    /// A customer's packet arrives; it is given back if it found no room.
    pub fn handle_packet(&mut self, now: Instant, packet: Packet) -> Result<(), Packet> {
        self.account(now);
        let kept = match &mut self.control {
            State::None => unreachable!("an uncontrolled VPN has no ingress step"),
            State::Window(config, ingress) => ingress.handle_packet(config, packet),
            State::Rate(shaper) => shaper.handle_packet(packet),
        };
        if kept.is_err() {
            self.queue_drops.add(now, 1);
        }
        kept
    }

    /// What leaves the ingress PE now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<Packet>> {
        self.account(now);
        match &mut self.control {
            State::None => None,
            State::Window(config, ingress) => ingress.poll_transmit(config, now),
            State::Rate(shaper) => shaper.poll_transmit(now).map(Transmit::Data),
        }
    }

    /// When to poll again.
    pub fn poll_timeout(&self) -> Instant {
        match &self.control {
            State::None => Instant::NEVER,
            State::Window(config, ingress) => ingress.poll_timeout(config),
            State::Rate(shaper) => shaper.poll_timeout(),
        }
    }
}
