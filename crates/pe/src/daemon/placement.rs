//! Which core forwards which VPN. A VPN stays where it is, as its queues and windows do.

use super::steering::{self, Division, Program, TooMany, UNTAGGED};
use netstage_host::obstacle::Obstacle;
use netstage_scenario::pe::{PortKind, Router, Vpn};
use std::collections::{BTreeMap, BTreeSet};

/// The core of each VPN.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Placement {
    cores: usize,
    of: BTreeMap<String, usize>,
}

impl Placement {
    /// VPNs whose frames cannot be told apart before they are looked into share a core: those with
    /// circuits on one interface, or by AF_PACKET on one VLAN of it. New ones go where the fewest
    /// VPN flows are, in the order of their labels, so that a core's labels lie together.
    pub fn new(router: &Router, before: &Placement) -> Result<Placement, Obstacle> {
        let mut groups = groups(router);
        groups.sort_by_key(|group| group.iter().filter_map(|vpn| first_label(&router.vpns[*vpn])).min());
        let name = |vpn: &usize| router.vpns[*vpn].name.as_str();
        let size = |group: &[usize]| group.iter().map(|vpn| router.vpns[*vpn].flows.len()).sum::<usize>();
        let mut placement = Placement { cores: router.cores, of: BTreeMap::new() };
        let mut loads = vec![0; router.cores];
        let mut new = Vec::new();
        for group in &groups {
            let known: BTreeMap<usize, &str> =
                group.iter().filter_map(|vpn| Some((*before.of.get(name(vpn))?, name(vpn)))).collect();
            let mut known = known.into_iter();
            match (known.next(), known.next()) {
                (Some((_, one)), Some((_, other))) => {
                    return Err(Obstacle::new(
                        format!(
                            "VPNs {one} and {other} are forwarded by two cores, and would share an interface"
                        ),
                        "give them interfaces of their own, or restart the router",
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
            // One core after the other is filled, so that labels that lie together stay so.
            if loads[core] + size(group) / 2 >= each.max(1) {
                core = (0..loads.len()).min_by_key(|core| loads[*core]).unwrap_or_default();
            }
            loads[core] += size(group);
            placement.of.extend(group.iter().map(|vpn| (name(vpn).to_owned(), core)));
        }
        Ok(placement)
    }

    /// Whose a VPN is.
    pub fn core(&self, vpn: &str) -> usize {
        self.of.get(vpn).copied().unwrap_or_default()
    }

    /// A core's part of the router: the flows and circuits of its own VPNs, and its share of the
    /// buffers. VPNs, peers and references keep their indices.
    pub fn part(&self, router: &Router, core: usize) -> Router {
        let mut part = router.clone();
        if self.cores > 1 {
            let is_own = |vpn: usize| self.core(&router.vpns[vpn].name) == core;
            part.circuits.retain(|circuit| is_own(circuit.vpn));
            let others = part.vpns.iter_mut().enumerate().filter(|(vpn, _)| !is_own(*vpn));
            others.for_each(|(_, vpn)| vpn.flows.clear());
            part.buffers = router.buffers.div_ceil(self.cores as u32);
        }
        part
    }

    /// Which of a core's frames on an interface arrive at one of the router's cores; all if there is
    /// no program.
    pub fn filter(&self, router: &Router, interface: &str, core: usize) -> Result<Option<Program>, Obstacle> {
        let told = |what: &str, remedy: &str, TooMany { pieces }: TooMany| {
            let message =
                format!("core {core}: {what} of its VPNs lie in {pieces} pieces, more than a filter holds");
            Obstacle::new(message, format!("{remedy}, or use fewer `cores`"))
        };
        if router.core.iter().any(|name| name == interface) {
            if self.cores == 1 {
                return Ok(Some(steering::tunnels()));
            }
            let labels = router
                .vpns
                .iter()
                .flat_map(|vpn| vpn.flows.iter().map(|flow| (flow.receive.number(), self.core(&vpn.name))));
            let program = steering::labels(&Division::new(0, labels.collect()), core);
            return program
                .map(Some)
                .map_err(|error| told("labels", "give labels of a VPN numbers beside each other", error));
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
        let program = steering::vlans(&Division::new(*first, owners), core);
        program.map(Some).map_err(|error| told("VLANs", "divide them among interfaces", error))
    }
}

/// VPNs that have to share a core, by number.
fn groups(router: &Router) -> Vec<Vec<usize>> {
    let by_vlan = router.ports == PortKind::AfPacket;
    let mut leader: Vec<usize> = (0..router.vpns.len()).collect();
    let mut places: BTreeMap<(&str, Option<u16>), usize> = BTreeMap::new();
    for circuit in &router.circuits {
        let vlan = circuit.vlans.first().copied().filter(|_| by_vlan);
        let own = lead(&leader, circuit.vpn);
        let other = *places.entry((circuit.interface.as_str(), vlan)).or_insert(own);
        let other = lead(&leader, other);
        leader[own.max(other)] = own.min(other);
    }
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for vpn in 0..leader.len() {
        groups.entry(lead(&leader, vpn)).or_default().push(vpn);
    }
    groups.into_values().collect()
}

fn lead(leader: &[usize], mut vpn: usize) -> usize {
    while leader[vpn] != vpn {
        vpn = leader[vpn];
    }
    vpn
}

fn first_label(vpn: &Vpn) -> Option<u32> {
    vpn.flows.iter().map(|flow| flow.receive.number()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// VPNs with these labels, each with circuits at these places.
    fn router(cores: usize, head: &str, vpns: &[(&str, &[u32], &[&str])]) -> Router {
        let mut text = format!("[pe]\ncore = [\"core0\"]\ncores = {cores}\n{head}\n");
        for peer in ["east", "north"] {
            text.push_str(&format!(
                "[peer.{peer}]\ntunnel = {{ kind = \"mpls-in-udp\", to = \"192.0.2.{}\" }}\n",
                peer.len()
            ));
        }
        for (vpn, labels, places) in vpns {
            for (label, peer) in labels.iter().zip(["east", "north"]) {
                text.push_str(&format!(
                    "[vpn.{vpn}.peer.{peer}]\nsend = {label}\nreceive = {label}\nroutes = [\"10.{}.0.0/16\"]\n",
                    peer.len()
                ));
            }
            for (number, place) in places.iter().enumerate() {
                let (interface, vlan) = place.split_once('.').unwrap_or((place, ""));
                let vlan = if vlan.is_empty() { String::new() } else { format!("vlan = {vlan}\n") };
                text.push_str(&format!(
                    "[circuit.{vpn}-{number}]\nvpn = \"{vpn}\"\ninterface = \"{interface}\"\n{vlan}\
                     address = \"10.{number}.0.1/24\"\n"
                ));
            }
        }
        netstage_scenario::pe::parse("pe.toml", &text).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
    }

    fn cores(router: &Router, before: &Placement) -> Vec<usize> {
        let placement = Placement::new(router, before).unwrap();
        router.vpns.iter().map(|vpn| placement.core(&vpn.name)).collect()
    }

    #[test]
    fn vpns_are_divided_evenly_and_stay_where_they_are() {
        let four: [(&str, &[u32], &[&str]); 4] = [
            ("a", &[400], &["eth1"]),
            ("b", &[300, 301], &["eth2"]),
            ("c", &[200], &["eth3"]),
            ("d", &[100, 101], &["eth4"]),
        ];
        let router_of = |vpns: &[(&str, &[u32], &[&str])]| router(2, "", vpns);
        let first = Placement::new(&router_of(&four), &Placement::default()).unwrap();
        // By label: d and c, then b and a.
        assert_eq!(cores(&router_of(&four), &Placement::default()), [1, 1, 0, 0]);
        // d goes, e comes: where least is.
        let mut other = four.to_vec();
        other[3] = ("e", &[900], &["eth5"]);
        assert_eq!(cores(&router_of(&other), &first), [1, 1, 0, 0]);
        assert_eq!(cores(&router(1, "", &four), &Placement::default()), [0; 4]);
    }

    #[test]
    fn a_part_has_the_flows_and_circuits_of_its_vpns() {
        let whole = router(2, "", &[("a", &[100], &["eth1", "eth2"]), ("b", &[200, 201], &["eth3"])]);
        let placement = Placement::new(&whole, &Placement::default()).unwrap();
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
    fn what_cannot_be_told_apart_stays_together() {
        let trunk: [(&str, &[u32], &[&str]); 3] =
            [("a", &[100], &["eth1.10"]), ("b", &[200], &["eth1.20"]), ("c", &[300], &["eth2", "eth1.30"])];
        assert_eq!(cores(&router(2, "", &trunk), &Placement::default()), [0; 3]);
        let by_packet = router(2, "ports = \"af-packet\"", &trunk[..2]);
        assert_eq!(cores(&by_packet, &Placement::default()), [0, 1]);
        let placement = Placement::new(&by_packet, &Placement::default()).unwrap();
        let filter = |router: &Router, interface| placement.filter(router, interface, 1).unwrap();
        assert!(filter(&by_packet, "eth1").is_some());
        assert_ne!(filter(&by_packet, "core0"), Some(steering::tunnels()));
        // On one core there is nothing to divide.
        assert_eq!(filter(&router(1, "", &trunk[2..]), "eth2"), None);
        // Afterwards they would have to be on one.
        let joined = router(2, "", &trunk[..2]);
        let refused = Placement::new(&joined, &placement).unwrap_err().to_string();
        assert!(refused.contains("VPNs a and b"), "{refused}");
    }
}
