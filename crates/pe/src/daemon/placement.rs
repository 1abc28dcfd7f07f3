//! Assignment of VPNs to cores. A VPN stays on its core, because its queues and windows do.

use super::steering::{self, FilterProgram, NumberPartition, TooManyRanges, UNTAGGED};
use netstage_core::fair::VpnControl;
use netstage_host::startup_error::StartupError;
use netstage_scenario::pe::{PeConfig, PeVpnConfig, PeerConfig, PortKind};
use std::collections::{BTreeMap, BTreeSet};

/// Core of each VPN.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VpnPlacement {
    cores: usize,
    of: BTreeMap<String, usize>,
}

impl VpnPlacement {
    /// Assigns VPNs to cores. VPNs whose frames a filter cannot distinguish share a core: those with circuits
    /// on one interface, or with AF_PACKET on one VLAN of an interface. New VPNs go to the core with the
    /// fewest VPN flows, in label order, so that the labels of a core are contiguous.
    pub fn new(router: &PeConfig, before: &VpnPlacement) -> Result<VpnPlacement, StartupError> {
        let mut groups = groups(router);
        groups.sort_by_key(|group| group.iter().filter_map(|vpn| first_label(&router.vpns[*vpn])).min());
        let name = |vpn: &usize| router.vpns[*vpn].name.as_str();
        let size = |group: &[usize]| group.iter().map(|vpn| router.vpns[*vpn].flows.len()).sum::<usize>();
        let mut placement = VpnPlacement { cores: router.cores, of: BTreeMap::new() };
        let mut loads = vec![0; router.cores];
        let mut new = Vec::new();
        for group in &groups {
            let known: BTreeMap<usize, &str> =
                group.iter().filter_map(|vpn| Some((*before.of.get(name(vpn))?, name(vpn)))).collect();
            let mut known = known.into_iter();
            match (known.next(), known.next()) {
                (Some((_, one)), Some((_, other))) => {
                    return Err(StartupError::new(
                        format!(
                            "VPNs {one} and {other} are on different cores and cannot share an interface"
                        ),
                        "give them separate interfaces, or restart the router",
                    ));
                }
                (Some((core, _)), None) => {
                    loads[core] += size(group);
                    placement.of.extend(group.iter().map(|vpn| (name(vpn).to_owned(), core)));
                }
                (None, _) => new.push(group),
            }
        }
        let each = (loads.iter().sum::<usize>() + new.iter().map(|group| size(group)).sum::<usize>())
            .div_ceil(router.cores);
        let mut core = 0;
        for group in new {
            // Cores are filled one after the other, to keep adjacent labels on one core.
            if loads[core] + size(group) / 2 >= each.max(1) {
                core = (0..loads.len()).min_by_key(|core| loads[*core]).unwrap_or_default();
            }
            loads[core] += size(group);
            placement.of.extend(group.iter().map(|vpn| (name(vpn).to_owned(), core)));
        }
        Ok(placement)
    }

    /// Returns the core of a VPN.
    pub fn core(&self, vpn: &str) -> usize {
        self.of.get(vpn).copied().unwrap_or_default()
    }

    /// Returns the part of the configuration for a core: flows and circuits of its VPNs, and its share of the
    /// buffers. VPNs, peers and references keep their indices.
    pub fn part(&self, router: &PeConfig, core: usize) -> PeConfig {
        let mut part = router.clone();
        if self.cores > 1 {
            let is_own = |vpn: usize| self.core(&router.vpns[vpn].name) == core;
            part.circuits.retain(|circuit| is_own(circuit.vpn));
            let others = part.vpns.iter_mut().enumerate().filter(|(vpn, _)| !is_own(*vpn));
            others.for_each(|(_, vpn)| vpn.flows.clear());
            part.buffers = router.buffers.div_ceil(self.cores as u32);
            // The first core receives the news of peers, and publishes that of all cores.
            let flows = router.vpns.iter().flat_map(|vpn| &vpn.flows);
            let is_paced =
                flows.into_iter().any(|flow| matches!(flow.settings.control, VpnControl::RateConsensus(_)));
            part.peers.iter_mut().for_each(|peer| peer.news &= is_paced && core == 0);
        }
        part
    }

    /// Returns the filter of a core's port on an interface, or `None` if all frames belong to this core.
    pub fn filter(
        &self,
        router: &PeConfig,
        interface: &str,
        core: usize,
    ) -> Result<Option<FilterProgram>, StartupError> {
        let too_many = |what: &str, remedy: &str, TooManyRanges { pieces }: TooManyRanges| {
            let message = format!(
                "core {core}: the {what} of its VPNs form {pieces} ranges, more than a filter can hold"
            );
            StartupError::new(message, format!("{remedy}, or use fewer `cores`"))
        };
        if router.core.iter().any(|name| name == interface) {
            if self.cores == 1 {
                let is_used = router.peers.iter().any(PeerConfig::is_encrypted);
                return Ok(Some(steering::tunnels(is_used.then_some(router.encryption_port))));
            }
            let labels = router
                .vpns
                .iter()
                .flat_map(|vpn| vpn.flows.iter().map(|flow| (flow.receive.number(), self.core(&vpn.name))));
            let program = steering::labels(&NumberPartition::new(0, labels.collect()), core);
            return program
                .map(Some)
                .map_err(|error| too_many("labels", "assign contiguous labels to each VPN", error));
        }
        let circuits = router.circuits.iter().filter(|circuit| circuit.interface == interface);
        let owners: Vec<(u32, usize)> = circuits
            .map(|circuit| {
                let vlan = circuit.vlans.first().map_or(UNTAGGED, |vlan| u32::from(*vlan));
                (vlan, self.core(&router.vpns[circuit.vpn].name))
            })
            .collect();
        let cores: BTreeSet<usize> = owners.iter().map(|(_, core)| *core).collect();
        let Some(first) = cores.first().filter(|_| cores.len() > 1) else { return Ok(None) };
        let program = steering::vlans(&NumberPartition::new(*first, owners), core);
        program
            .map(Some)
            .map_err(|error| too_many("VLANs", "distribute the VLANs over more interfaces", error))
    }
}

/// Returns groups of VPNs that must share a core, by index.
fn groups(router: &PeConfig) -> Vec<Vec<usize>> {
    let by_vlan = router.ports == PortKind::AfPacket;
    let mut leader: Vec<usize> = (0..router.vpns.len()).collect();
    let mut interfaces: BTreeMap<(&str, Option<u16>), usize> = BTreeMap::new();
    for circuit in &router.circuits {
        let vlan = circuit.vlans.first().copied().filter(|_| by_vlan);
        let own = group_leader(&leader, circuit.vpn);
        let other = *interfaces.entry((circuit.interface.as_str(), vlan)).or_insert(own);
        let other = group_leader(&leader, other);
        leader[own.max(other)] = own.min(other);
    }
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for vpn in 0..leader.len() {
        groups.entry(group_leader(&leader, vpn)).or_default().push(vpn);
    }
    groups.into_values().collect()
}

fn group_leader(leader: &[usize], mut vpn: usize) -> usize {
    while leader[vpn] != vpn {
        vpn = leader[vpn];
    }
    vpn
}

fn first_label(vpn: &PeVpnConfig) -> Option<u32> {
    vpn.flows.iter().map(|flow| flow.receive.number()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a router with the given labels and circuit interfaces per VPN.
    fn router(cores: usize, head: &str, vpns: &[(&str, &[u32], &[&str])]) -> PeConfig {
        let mut text = format!("[pe]\ncore = [\"core0\"]\ncores = {cores}\n{head}\n");
        for peer in ["east", "north"] {
            text.push_str(&format!(
                "[peer.{peer}]\ntrusted = true\ntunnel = {{ kind = \"mpls-in-udp\", to = \"192.0.2.{}\" }}\n",
                peer.len()
            ));
        }
        for (vpn, labels, interfaces) in vpns {
            for (label, peer) in labels.iter().zip(["east", "north"]) {
                text.push_str(&format!(
                    "[vpn.{vpn}.peer.{peer}]\nsend = {label}\nreceive = {label}\nroutes = [\"10.{}.0.0/16\"]\n",
                    peer.len()
                ));
            }
            for (number, interface_and_vlan) in interfaces.iter().enumerate() {
                let (interface, vlan) =
                    interface_and_vlan.split_once('.').unwrap_or((interface_and_vlan, ""));
                let vlan = if vlan.is_empty() { String::new() } else { format!("vlan = {vlan}\n") };
                text.push_str(&format!(
                    "[circuit.{vpn}-{number}]\nvpn = \"{vpn}\"\ninterface = \"{interface}\"\n{vlan}\
                     address = \"10.{number}.0.1/24\"\n"
                ));
            }
        }
        netstage_scenario::pe::parse("pe.toml", &text).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
    }

    fn cores(router: &PeConfig, before: &VpnPlacement) -> Vec<usize> {
        let placement = VpnPlacement::new(router, before).unwrap();
        router.vpns.iter().map(|vpn| placement.core(&vpn.name)).collect()
    }

    #[test]
    fn vpns_are_distributed_evenly_and_stay_on_their_cores() {
        let four: [(&str, &[u32], &[&str]); 4] = [
            ("a", &[400], &["eth1"]),
            ("b", &[300, 301], &["eth2"]),
            ("c", &[200], &["eth3"]),
            ("d", &[100, 101], &["eth4"]),
        ];
        let router_of = |vpns: &[(&str, &[u32], &[&str])]| router(2, "", vpns);
        let first = VpnPlacement::new(&router_of(&four), &VpnPlacement::default()).unwrap();
        // In label order: d and c, then b and a.
        assert_eq!(cores(&router_of(&four), &VpnPlacement::default()), [1, 1, 0, 0]);
        // d is removed; e goes to the core with the fewest flows.
        let mut other = four.to_vec();
        other[3] = ("e", &[900], &["eth5"]);
        assert_eq!(cores(&router_of(&other), &first), [1, 1, 0, 0]);
        assert_eq!(cores(&router(1, "", &four), &VpnPlacement::default()), [0; 4]);
    }

    #[test]
    fn a_part_has_the_flows_and_circuits_of_its_vpns() {
        let whole = router(2, "", &[("a", &[100], &["eth1", "eth2"]), ("b", &[200, 201], &["eth3"])]);
        let placement = VpnPlacement::new(&whole, &VpnPlacement::default()).unwrap();
        let parts = [0, 1].map(|core| placement.part(&whole, core));
        for (part, own, interfaces) in
            [(&parts[0], 0, &["core0", "eth1", "eth2"][..]), (&parts[1], 1, &["core0", "eth3"])]
        {
            assert_eq!(part.vpns[own], whole.vpns[own]);
            assert!(part.vpns[1 - own].flows.is_empty());
            assert_eq!((part.interfaces(), part.buffers), (interfaces.to_vec(), whole.buffers / 2));
        }
    }

    #[test]
    fn vpns_a_filter_cannot_distinguish_share_a_core() {
        let trunk: [(&str, &[u32], &[&str]); 3] =
            [("a", &[100], &["eth1.10"]), ("b", &[200], &["eth1.20"]), ("c", &[300], &["eth2", "eth1.30"])];
        assert_eq!(cores(&router(2, "", &trunk), &VpnPlacement::default()), [0; 3]);
        let by_packet = router(2, "ports = \"af-packet\"", &trunk[..2]);
        assert_eq!(cores(&by_packet, &VpnPlacement::default()), [0, 1]);
        let placement = VpnPlacement::new(&by_packet, &VpnPlacement::default()).unwrap();
        let filter = |router: &PeConfig, interface| placement.filter(router, interface, 1).unwrap();
        assert!(filter(&by_packet, "eth1").is_some());
        assert_ne!(filter(&by_packet, "core0"), Some(steering::tunnels(None)));
        // A single core needs no filter.
        assert_eq!(filter(&router(1, "", &trunk[2..]), "eth2"), None);
        // With AF_XDP both would need the same core.
        let joined = router(2, "", &trunk[..2]);
        let refused = VpnPlacement::new(&joined, &placement).unwrap_err().to_string();
        assert!(refused.contains("VPNs a and b"), "{refused}");
    }
}
