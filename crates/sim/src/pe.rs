//! Provider edges in virtual time: one [`Edge`] per ingress PE, as in the router, and what a run
//! counts of each VPN.

use crate::bins::{Bins, Grid};
use crate::packet::Packet;
use netstage_core::edge::{Edge, Tape};
use netstage_core::fair::{Config, Control, Egress, Ingress, Reference};
use netstage_core::rng::Stream;
use netstage_core::time::{Duration, Instant};
use netstage_scenario::plan::{self, Plan};
use netstage_wire::Encapsulation;

/// A PE where VPNs enter.
#[derive(Debug)]
pub struct Pe {
    /// Its VPN flows, in the plan's order.
    pub flows: Tape<Packet>,
    /// The VPN of each flow.
    pub vpns: Vec<u32>,
    /// When the world will wake it.
    pub wake: Instant,
}

/// What a run keeps of a VPN.
#[derive(Debug)]
pub struct Vpn {
    /// The PE where it enters.
    pub pe: u32,
    /// Its flow there.
    pub flow: u32,
    /// What its packets have around them between the PEs.
    pub encapsulation: Encapsulation,
    /// What the egress PE keeps.
    pub egress: Egress,
    /// Bytes that reached the egress PE, per bin.
    pub bytes: Bins,
    /// Packets the ingress PE refused or dropped, per bin.
    pub queue_drops: Bins,
    /// Packets times nanoseconds spent waiting at the ingress PE, per bin.
    pub waiting: Bins,
    /// How many wait.
    queue_len: u64,
    /// Since when that is so.
    waiting_since: Instant,
    /// The VPN whose published state this one follows.
    pub reference: Option<usize>,
}

/// The PEs where a plan's VPNs enter, and the VPNs.
pub fn all(plan: &Plan, seed: u64, grid: Grid) -> (Vec<Pe>, Vec<Vpn>) {
    let mut nodes: Vec<usize> = plan.vpns.iter().map(|vpn| vpn.ingress).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let pe = |_: &usize| Pe {
        flows: Tape::new(Edge::new(Duration::ZERO)),
        vpns: Vec::new(),
        wake: Instant::NEVER,
    };
    let mut pes: Vec<Pe> = nodes.iter().map(pe).collect();
    let mut vpns = Vec::with_capacity(plan.vpns.len());
    for (index, vpn) in plan.vpns.iter().enumerate() {
        let number = nodes.binary_search(&vpn.ingress).expect("every ingress is among them");
        let pe = &mut pes[number];
        let salts = Stream::new(seed, &format!("vpn.{}", vpn.name));
        let flow = pe.flows.edge_mut().add(Instant::ZERO, &vpn.settings, salts);
        pe.vpns.push(index as u32);
        vpns.push(Vpn::new(vpn, (number as u32, flow as u32), grid));
    }
    // A reference asks soon, whether it has something to send or not: others wait for what it measures.
    for reference in vpns.iter().filter_map(|vpn: &Vpn| vpn.reference) {
        let Vpn { pe, flow, .. } = vpns[reference];
        pes[pe as usize].flows.wake(Instant::ZERO, flow as usize);
    }
    (pes, vpns)
}

impl Vpn {
    fn new(vpn: &plan::Vpn, (pe, flow): (u32, u32), grid: Grid) -> Vpn {
        Vpn {
            pe,
            flow,
            encapsulation: vpn.encapsulation,
            egress: Egress::default(),
            bytes: Bins::new(grid),
            queue_drops: Bins::new(grid),
            waiting: Bins::new(grid),
            queue_len: 0,
            waiting_since: Instant::ZERO,
            reference: match &vpn.settings.control {
                Control::I2vfc(Config { reference: Reference::Vpn(index), .. }) => Some(*index),
                _ => None,
            },
        }
    }

    /// Accounts for the time its queue had the length before; from now on so many packets wait.
    #[inline]
    pub fn account(&mut self, now: Instant, queue_len: usize) {
        let waited = now.since(self.waiting_since).0 * self.queue_len;
        if waited > 0 {
            self.waiting.add(self.waiting_since, waited);
        }
        (self.queue_len, self.waiting_since) = (queue_len as u64, now);
    }

    /// Packets that wait at its ingress.
    pub fn queue_len(&self) -> u64 {
        self.queue_len
    }

    /// Its window, where it has one.
    pub fn window<'a>(&self, pes: &'a [Pe]) -> Option<&'a Ingress<Packet>> {
        pes[self.pe as usize].flows.window(self.flow as usize)
    }
}
