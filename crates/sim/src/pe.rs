//! Provider edges in virtual time: one [`ProviderEdge`] per ingress PE, as in the router, and the counters of each
//! VPN.

use crate::bins::{BinnedSum, Grid};
use crate::packet::SimulatedPacket;
use netstage_core::edge::{EdgeRecorder, ProviderEdge};
use netstage_core::fair::{Egress, I2vfcConfig, Ingress, PacedFlow, VpnControl, WeightReference};
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_scenario::plan::{self, Plan};
use netstage_wire::Encapsulation;

/// An ingress PE.
#[derive(Debug)]
pub struct Pe {
    /// VPN flows of the PE, in the plan's order.
    pub flows: EdgeRecorder<SimulatedPacket>,
    /// The VPN of each flow.
    pub vpns: Vec<u32>,
    /// Time of the PE's timer.
    pub wake: Instant,
}

/// State and counters of a VPN.
#[derive(Debug)]
pub struct VpnState {
    /// Index of the ingress PE.
    pub pe: u32,
    /// Flow number at the ingress PE.
    pub flow: u32,
    /// Encapsulation between the PEs.
    pub encapsulation: Encapsulation,
    /// State at the egress PE.
    pub egress: Egress,
    /// Bytes that reached the egress PE, per bin.
    pub bytes: BinnedSum,
    /// Packets rejected or dropped by the ingress PE, per bin.
    pub queue_drops: BinnedSum,
    /// Waiting time at the ingress PE, summed over packets, in nanoseconds per bin.
    pub waiting: BinnedSum,
    /// Packets waiting at the ingress PE.
    queue_len: u64,
    /// Time at which `queue_len` last changed.
    waiting_since: Instant,
    /// Reference VPN whose published state this VPN uses.
    pub reference: Option<usize>,
}

/// Builds the ingress PEs and the VPNs of a plan.
pub fn all(plan: &Plan, seed: u64, grid: Grid) -> (Vec<Pe>, Vec<VpnState>) {
    let mut nodes: Vec<usize> = plan.vpns.iter().map(|vpn| vpn.ingress).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let pe = |_: &usize| Pe {
        flows: EdgeRecorder::new(ProviderEdge::new(Duration::ZERO)),
        vpns: Vec::new(),
        wake: Instant::NEVER,
    };
    let mut pes: Vec<Pe> = nodes.iter().map(pe).collect();
    let mut vpns = Vec::with_capacity(plan.vpns.len());
    for (index, vpn) in plan.vpns.iter().enumerate() {
        let number = nodes.binary_search(&vpn.ingress).expect("every ingress has a PE");
        let pe = &mut pes[number];
        let salts = RandomStream::new(seed, &format!("vpn.{}", vpn.name));
        let flow = pe.flows.edge_mut().add(Instant::ZERO, &vpn.settings, salts);
        pe.vpns.push(index as u32);
        vpns.push(VpnState::new(vpn, (number as u32, flow as u32), grid));
    }
    // Reference VPNs must query early even without traffic, because other VPNs wait for their measurements.
    for reference in vpns.iter().filter_map(|vpn: &VpnState| vpn.reference) {
        let VpnState { pe, flow, .. } = vpns[reference];
        pes[pe as usize].flows.wake(Instant::ZERO, flow as usize);
    }
    (pes, vpns)
}

impl VpnState {
    fn new(vpn: &plan::VpnPlan, (pe, flow): (u32, u32), grid: Grid) -> VpnState {
        VpnState {
            pe,
            flow,
            encapsulation: vpn.encapsulation,
            egress: Egress::default(),
            bytes: BinnedSum::new(grid),
            queue_drops: BinnedSum::new(grid),
            waiting: BinnedSum::new(grid),
            queue_len: 0,
            waiting_since: Instant::ZERO,
            reference: match &vpn.settings.control {
                VpnControl::I2vfc(I2vfcConfig { reference: WeightReference::Vpn(index), .. }) => Some(*index),
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

    /// Returns the VPN's state under rate consensus, if it has one.
    pub fn paced<'a>(&self, pes: &'a [Pe]) -> Option<&'a PacedFlow<SimulatedPacket>> {
        pes[self.pe as usize].flows.paced(self.flow as usize)
    }

    /// Returns the VPN's window control, if it has one.
    pub fn window<'a>(&self, pes: &'a [Pe]) -> Option<&'a Ingress<SimulatedPacket>> {
        pes[self.pe as usize].flows.window(self.flow as usize)
    }
}
