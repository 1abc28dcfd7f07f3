//! Addresses and interfaces of provider edge routers and their customers on hosts of a fleet.

use crate::topology::pe::{CustomerCircuit, PeRouters, RouterAddressing};
use netstage_core::edge::IpPrefix;
use netstage_scenario::plan::{LinkAttachment, Plan};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

/// Addressing of routers on hosts.
pub struct HostAddressing<'a> {
    /// Plan of the run.
    pub plan: &'a Plan,
    /// Addresses of the sender and the receiver of each flow group.
    pub flows: &'a [(IpAddr, IpAddr)],
    /// Tunnel addresses of the routers, by index of the node.
    pub routers: &'a BTreeMap<usize, IpAddr>,
}

impl HostAddressing<'_> {
    fn attachment(&self, node: usize, link: usize) -> Option<&LinkAttachment> {
        self.plan.nodes[node].placement.as_ref()?.interfaces.get(&self.plan.links[link].name)
    }

    fn router(&self, node: usize) -> IpAddr {
        // A plan with an unplaced router is refused earlier, so this address is never used.
        self.routers.get(&node).copied().unwrap_or(Ipv4Addr::UNSPECIFIED.into())
    }

    /// Returns the errors in the placements of routers.
    pub fn placement_errors(&self, routers: &PeRouters) -> Vec<String> {
        let mut errors = Vec::new();
        for (&node, router) in routers {
            let name = &self.plan.nodes[node].name;
            let mut customers: BTreeMap<&str, usize> = BTreeMap::new();
            let circuits = router.circuits.iter().map(|circuit| (circuit.link, Some(circuit)));
            for (link, circuit) in router.core.iter().map(|link| (*link, None)).chain(circuits) {
                let link_name = &self.plan.links[link].name;
                let at = format!("node.{name}: link {link_name}");
                let field = format!("place.{name}.interfaces.{link_name}");
                let Some(attachment) = self.attachment(node, link) else {
                    errors.push(format!("{at} has no interface of the agent's host; name it in {field}"));
                    continue;
                };
                let Some(circuit) = circuit else { continue };
                if circuit.is_select || customers.insert(&attachment.name, link).is_some() {
                    errors.push(format!(
                        "{at} has customers of several VPNs; give each VPN an interface of its own"
                    ));
                    continue;
                }
                if attachment.addresses.is_empty() {
                    errors.push(format!(
                        "{at} leads to customers; add the router's `address` on it to {field}"
                    ));
                }
                let is_beyond =
                    |customer: &&IpAddr| attachment.via.is_none() && !is_on(attachment, **customer);
                if let Some(customer) = circuit.addresses.iter().find(is_beyond) {
                    errors.push(format!(
                        "{at}: {customer} is not on the link; add its next hop, `via`, to {field}"
                    ));
                }
            }
        }
        errors
    }
}

impl RouterAddressing for HostAddressing<'_> {
    fn ends(&self, group: usize) -> [IpAddr; 2] {
        let (source, destination) = self.flows[group];
        [source, destination]
    }

    fn tunnel(&self, vpn: usize) -> [IpAddr; 2] {
        let vpn = &self.plan.vpns[vpn];
        [vpn.ingress, vpn.egress].map(|node| self.router(node))
    }

    fn message_tunnel(&self, nodes: (usize, usize)) -> [IpAddr; 2] {
        [nodes.0, nodes.1].map(|node| self.router(node))
    }

    fn interface(&self, node: usize, link: usize) -> String {
        self.attachment(node, link).map(|attachment| attachment.name.clone()).unwrap_or_default()
    }

    fn circuit_addresses(&self, node: usize, circuit: &CustomerCircuit) -> Vec<(IpAddr, u8)> {
        self.attachment(node, circuit.link).map(|attachment| attachment.addresses.clone()).unwrap_or_default()
    }

    fn next_hop(&self, node: usize, circuit: &CustomerCircuit, customer: IpAddr) -> Option<IpAddr> {
        let attachment = self.attachment(node, circuit.link)?;
        attachment.via.filter(|_| !is_on(attachment, customer))
    }
}

/// Returns whether an address is on the link of an interface.
fn is_on(attachment: &LinkAttachment, customer: IpAddr) -> bool {
    attachment
        .addresses
        .iter()
        .any(|(address, length)| IpPrefix::containing(*address, *length).contains(customer))
}
