//! Provider edges in virtual time: one [`Edge`] per ingress PE, as in the router, and the counters of each
//! VPN.

use crate::bins::{Bins, Grid};
use crate::packet::Packet;
use netstage_core::edge::{Edge, Tape};
use netstage_core::fair::{Config, Control, Egress, Ingress, Reference};
use netstage_core::rng::Stream;
use netstage_core::time::{Duration, Instant};
use netstage_scenario::plan::{self, Plan};
use netstage_wire::Encapsulation;

/// An ingress PE.
#[derive(Debug)]
pub struct Pe {
    /// VPN flows of the PE, in the plan's order.
    pub flows: Tape<Packet>,
    /// The VPN of each flow.
    pub vpns: Vec<u32>,
    /// Time of the PE's timer.
    pub wake: Instant,
}

/// State and counters of a VPN.
#[derive(Debug)]
pub struct Vpn {
    /// Index of the ingress PE.
    pub pe: u32,
    /// Flow number at the ingress PE.
    pub flow: u32,
    /// Encapsulation between the PEs.
    pub encapsulation: Encapsulation,
    /// State at the egress PE.
    pub egress: Egress,
    /// Bytes that reached the egress PE, per bin.
    pub bytes: Bins,
    /// Packets rejected or dropped by the ingress PE, per bin.
    pub queue_drops: Bins,
    /// Waiting time at the ingress PE, summed over packets, in nanoseconds per bin.
    pub waiting: Bins,
    /// Packets waiting at the ingress PE.
    queue_len: u64,
    /// Time at which `queue_len` last changed.
    waiting_since: Instant,
    /// Reference VPN whose published state this VPN uses.
    pub reference: Option<usize>,
}

/// Builds the ingress PEs and the VPNs of a plan.
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
        let number = nodes.binary_search(&vpn.ingress).expect("every ingress has a PE");
        let pe = &mut pes[number];
        let salts = Stream::new(seed, &format!("vpn.{}", vpn.name));
        let flow = pe.flows.edge_mut().add(Instant::ZERO, &vpn.settings, salts);
        pe.vpns.push(index as u32);
        vpns.push(Vpn::new(vpn, (number as u32, flow as u32), grid));
    }
    // Reference VPNs must query early even without traffic, because other VPNs wait for their measurements.
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

    /// Adds the waiting time since the last change at the old queue length, then sets the length to
    /// `queue_len`.
    #[inline]
    pub fn account(&mut self, now: Instant, queue_len: usize) {
        let waited = now.since(self.waiting_since).0 * self.queue_len;
        if waited > 0 {
            self.waiting.add(self.waiting_since, waited);
        }
        (self.queue_len, self.waiting_since) = (queue_len as u64, now);
    }

    /// Returns the number of packets waiting at the ingress PE.
    pub fn queue_len(&self) -> u64 {
        self.queue_len
    }

    /// Returns the VPN's window control, if it has one.
    pub fn window<'a>(&self, pes: &'a [Pe]) -> Option<&'a Ingress<Packet>> {
        pes[self.pe as usize].flows.window(self.flow as usize)
    }
}
