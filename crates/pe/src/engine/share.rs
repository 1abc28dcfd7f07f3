//! A router's part, where several engines forward side by side, each with some of its VPNs.

use super::config::{Config, Origin, Side};

/// Between the session numbers of two engines' VPN flows.
const SESSIONS: u32 = 1 << 24;

impl Config {
    /// Engine `number` of `of`: the VPNs that `belongs` names, their circuits, the ports these
    /// need, all peers, and its part of the buffers. References keep their numbers; those another
    /// engine's flow measures are to be told to it, by
    /// [`Engine::tell_reference`](super::Engine::tell_reference).
    pub fn share(&self, number: usize, of: usize, belongs: impl Fn(&str) -> bool) -> Config {
        let circuits: Vec<_> =
            self.circuits.iter().filter(|circuit| belongs(&circuit.vpn)).cloned().collect();
        let is_needed = |name: &str| circuits.iter().any(|circuit| circuit.port == name);
        let mut references = self.references.clone();
        for reference in &mut references {
            if matches!(&reference.origin, Origin::Flow { vpn, .. } if !belongs(vpn)) {
                reference.origin = Origin::Elsewhere;
            }
        }
        Config {
            ports: self
                .ports
                .iter()
                .filter(|port| port.side == Side::Core || is_needed(&port.name))
                .cloned()
                .collect(),
            peers: self.peers.clone(),
            vpns: self.vpns.iter().filter(|vpn| belongs(&vpn.name)).cloned().collect(),
            references,
            circuits,
            buffers: self.buffers.div_ceil(of.max(1)),
            session_seed: self.session_seed.wrapping_add(number as u32 * SESSIONS),
            ..*self
        }
    }
}
