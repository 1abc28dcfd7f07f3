//! Configuration of the PE routers in `pe` nodes, in the file format of a real PE.
//!
//! Only tunnels are routed between PEs. Each VPN has tunnel addresses of its own, so that the emulator can classify its
//! management packets, too. If a plan has no VPN with control or encapsulation, no PE router is needed and the kernel
//! forwards.
//!
//! A VPN with another VPN as its reference receives the reference from the ingress PE of the other VPN. The ingress PEs
//! of VPNs under rate consensus that share a link, or may share one, exchange news. Such PEs have a tunnel between them.

use super::address;
use super::layout::AddressLayout;
use super::network::node_interface;
use netstage_core::edge::VpnFlowSettings;
use netstage_core::fair::{CoreMembership, Decrease, I2vfcConfig, VpnControl, WeightReference};
use netstage_core::queue::TrafficClass;
use netstage_core::time::Duration;
use netstage_scenario::pe;
use netstage_scenario::plan::{FlowTransport, Hop, IpVersion, LinkKind, NodeKind, Plan, VpnPlan};
use netstage_wire::Encapsulation;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;

/// First label. Each VPN has two labels, one per direction.
const FIRST_LABEL: usize = 1000;

/// First number of links that no VPNs share.
const UNSHARED: u32 = 1 << 24;

/// Returns the index of the VPN in the routers, which combine two VPNs in opposite directions into the first of them.
fn combined(plan: &Plan, vpn: usize) -> usize {
    plan.vpns[vpn].opposite.map_or(vpn, |back| back.min(vpn))
}

/// Returns whether a plan needs PE routers.
pub fn are_needed(plan: &Plan) -> bool {
    plan.vpns.iter().any(|vpn| vpn.settings.may_wait() || vpn.encapsulation != Encapsulation::None)
}

/// Returns whether PE routers route a VPN's packets from a node over a hop.
pub fn routes_hop(plan: &Plan, vpn: Option<usize>, node: usize, hop: Hop) -> bool {
    let is_pe_hop = |vpn: usize| plan.nodes[node].kind == NodeKind::Pe || is_between(&plan.vpns[vpn], hop);
    are_needed(plan) && vpn.is_some_and(is_pe_hop)
}

/// Returns whether packets of a VPN pass a node on their way between its PEs. There the kernel forwards them.
pub fn is_transit(plan: &Plan, node: usize) -> bool {
    let passes = |path: &[Hop]| path.iter().skip(1).any(|hop| plan.ends(*hop)[0] == node);
    plan.vpns.iter().any(|vpn| passes(&vpn.path) || passes(&vpn.reverse))
}

/// Returns the index of the VPN that is the reference of a VPN, if any.
fn reference(vpn: &VpnPlan) -> Option<usize> {
    match &vpn.settings.control {
        VpnControl::I2vfc(I2vfcConfig { reference: WeightReference::Vpn(index), .. }) => Some(*index),
        _ => None,
    }
}

/// Returns the pairs of PEs between which references or news are sent, the lower index first.
pub fn message_pairs(plan: &Plan) -> BTreeSet<(usize, usize)> {
    let pair = |vpn: &VpnPlan| {
        let (own, other) = (vpn.ingress, plan.vpns[reference(vpn)?].ingress);
        (own != other).then_some((own.min(other), own.max(other)))
    };
    plan.vpns.iter().filter_map(pair).chain(news_pairs(plan)).collect()
}

/// Returns the links that a VPN under rate consensus shares with others; none under another control.
fn shared_links(vpn: &VpnPlan) -> &[u32] {
    match &vpn.settings.control {
        VpnControl::RateConsensus(CoreMembership::Links(links)) => links,
        _ => &[],
    }
}

/// Returns the numbers, on routers, of the links that a VPN under rate consensus shares with others, or `None` if the
/// routers find out. A VPN that shares none has a number of its own.
fn link_numbers(plan: &Plan, vpn: &VpnPlan) -> Option<Vec<u32>> {
    let VpnControl::RateConsensus(CoreMembership::Links(links)) = &vpn.settings.control else { return None };
    if !links.is_empty() {
        return Some(links.iter().map(|link| link + 1).collect());
    }
    let index = plan.vpns.iter().position(|other| other.name == vpn.name);
    Some(vec![UNSHARED + index.expect("the VPN is in the plan") as u32])
}

/// Returns the pairs of ingress PEs whose VPNs under rate consensus share a link or may share one, the lower index first.
fn news_pairs(plan: &Plan) -> BTreeSet<(usize, usize)> {
    let mut users = BTreeMap::<u32, BTreeSet<usize>>::new();
    for vpn in &plan.vpns {
        for link in shared_links(vpn) {
            users.entry(*link).or_default().insert(vpn.ingress);
        }
    }
    let is_unknown =
        |vpn: &&VpnPlan| matches!(vpn.settings.control, VpnControl::RateConsensus(CoreMembership::Path(_)));
    let unknown: BTreeSet<usize> = plan.vpns.iter().filter(is_unknown).map(|vpn| vpn.ingress).collect();
    let mut pairs = BTreeSet::new();
    for nodes in users.values().chain([&unknown]) {
        for first in nodes {
            pairs.extend(nodes.range(first + 1..).map(|second| (*first, *second)));
        }
    }
    pairs
}

/// Addresses and interfaces of routers and their customers, in namespaces or on real hosts.
pub trait RouterAddressing {
    /// Returns the addresses of a flow group's sender and receiver.
    fn ends(&self, group: usize) -> [IpAddr; 2];
    /// Returns the addresses of a VPN's tunnel at its ingress and egress.
    fn tunnel(&self, vpn: usize) -> [IpAddr; 2];
    /// Returns the addresses of the tunnel for references and news between two PEs.
    fn message_tunnel(&self, nodes: (usize, usize)) -> [IpAddr; 2];
    /// Returns the name of a PE's interface to a link.
    fn interface(&self, node: usize, link: usize) -> String;
    /// Returns the addresses of a PE on a circuit, each with its prefix length.
    fn circuit_addresses(&self, node: usize, circuit: &CustomerCircuit) -> Vec<(IpAddr, u8)>;
    /// Returns the next hop on a circuit to a customer's address; `None` if the address is on the link.
    fn next_hop(&self, node: usize, circuit: &CustomerCircuit, customer: IpAddr) -> Option<IpAddr>;
}

/// Addressing of routers in namespaces.
pub struct NamespaceAddressing<'a> {
    /// Plan of the run.
    pub plan: &'a Plan,
    /// Addresses of the plan.
    pub layout: &'a AddressLayout,
}

impl NamespaceAddressing<'_> {
    /// Returns the link end of a PE at a circuit.
    fn end(&self, node: usize, circuit: &CustomerCircuit) -> usize {
        usize::from(self.plan.links[circuit.link].ends[1] == node)
    }
}

impl RouterAddressing for NamespaceAddressing<'_> {
    fn ends(&self, group: usize) -> [IpAddr; 2] {
        let (flows, placed) = (&self.plan.flows[group], self.layout.groups[group]);
        let source = address::node_address(flows.family, flows.from, placed.source);
        [source, address::node_address(flows.family, flows.to, placed.destination)]
    }

    fn tunnel(&self, vpn: usize) -> [IpAddr; 2] {
        let tunnel = self.layout.tunnels[vpn].expect("each VPN of a router has a tunnel");
        let VpnPlan { ingress, egress, .. } = self.plan.vpns[vpn];
        [(ingress, tunnel.source), (egress, tunnel.destination)]
            .map(|(node, number)| address::node_address(IpVersion::V4, node, number))
    }

    fn message_tunnel(&self, nodes: (usize, usize)) -> [IpAddr; 2] {
        let placed = self.layout.message_tunnels[&nodes];
        [(nodes.0, placed.source), (nodes.1, placed.destination)]
            .map(|(node, number)| address::node_address(IpVersion::V4, node, number))
    }

    fn interface(&self, _node: usize, link: usize) -> String {
        node_interface(link)
    }

    fn circuit_addresses(&self, node: usize, circuit: &CustomerCircuit) -> Vec<(IpAddr, u8)> {
        let end = self.end(node, circuit);
        address::FAMILIES.map(|family| address::circuit_address(family, circuit.number, end)).to_vec()
    }

    fn next_hop(&self, node: usize, circuit: &CustomerCircuit, customer: IpAddr) -> Option<IpAddr> {
        let customer_end = 1 - self.end(node, circuit);
        Some(address::circuit_address(family_of(customer), circuit.number, customer_end).0)
    }
}

/// Routers of a plan, by index of their nodes.
pub type PeRouters = BTreeMap<usize, PeRouter>;

/// Part of a plan's VPNs that one router handles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeRouter {
    /// Indices of the links to the core.
    pub core: BTreeSet<usize>,
    /// Circuits of customers.
    pub circuits: Vec<CustomerCircuit>,
    /// Addresses behind the other router of each VPN, by the combined index of the VPN.
    remote: BTreeMap<usize, BTreeSet<IpAddr>>,
}

/// Attachment of a customer.
#[derive(Clone, Debug, PartialEq)]
pub struct CustomerCircuit {
    /// Number of the circuit among those of all routers, from which its addresses are derived.
    pub number: usize,
    /// Index of the link.
    pub link: usize,
    /// Combined index of the VPN.
    vpn: usize,
    /// Addresses of the customer.
    pub addresses: BTreeSet<IpAddr>,
    /// Selects only packets from these addresses, instead of all packets of the link.
    pub is_select: bool,
}

/// Error of a plan that PE routers cannot implement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeConfigurationError {
    /// A flow without a VPN passes a PE.
    NoVpn {
        /// Name of the flow.
        flow: String,
        /// Name of the PE.
        node: String,
    },
    /// A multicast flow passes a PE.
    Multicast {
        /// Name of the flow.
        flow: String,
    },
    /// A link of a PE leads to both customers and the core.
    SharedLink {
        /// Name of the link.
        link: String,
        /// Name of the PE.
        node: String,
    },
    /// A link of a PE is not an Ethernet link between two nodes.
    Medium {
        /// Name of the link.
        link: String,
        /// Name of the PE.
        node: String,
    },
    /// No path exists for a reference between two PEs.
    NoPath {
        /// Name of the VPN.
        vpn: String,
        /// Name of its reference.
        reference: String,
        /// Names of the ingress PEs of the VPN and the reference.
        nodes: [String; 2],
    },
    /// The circuits exceed the available addresses.
    TooManyCircuits,
}

impl fmt::Display for PeConfigurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeConfigurationError::NoVpn { flow, node } => write!(
                f,
                "flow.{flow}: passes the PE {node}, but is in no VPN; add it to a VPN, or choose a path without PEs"
            ),
            PeConfigurationError::Multicast { flow } => {
                write!(
                    f,
                    "flow.{flow}: a PE forwards no multicast; choose a path without PEs, or use --on sim"
                )
            }
            PeConfigurationError::SharedLink { link, node } => write!(
                f,
                "link.{link}: leads from the PE {node} to both customers and the core; use a separate link for each"
            ),
            PeConfigurationError::Medium { link, node } => write!(
                f,
                "link.{link}: joins the PE {node} to a LAN or has TUN interfaces, but VPNs need an Ethernet link between \
                 two nodes; place a router between them, or use --on sim"
            ),
            PeConfigurationError::NoPath { vpn, reference, nodes: [own, other] } => write!(
                f,
                "vpn.{vpn}: no path leads from the PE {other}, which measures the reference {reference}, to the PE {own}; \
                 join them by routers, or set the reference to \"nominal\""
            ),
            PeConfigurationError::TooManyCircuits => {
                write!(f, "the PEs need more than {} circuits; use fewer VPNs or PEs", address::CIRCUITS)
            }
        }
    }
}

/// Returns the PE routers of a plan; none if the plan needs no PE routers.
pub fn routers(plan: &Plan, ground: &dyn RouterAddressing) -> Result<PeRouters, PeConfigurationError> {
    let mut routers = PeRouters::new();
    if !are_needed(plan) {
        return Ok(routers);
    }
    add_cores(plan, &mut routers)?;
    let attached = attach(plan, ground, &mut routers)?;
    let circuits = attached.keys().map(|(node, link, _)| (*node, *link));
    let cores = routers.iter().flat_map(|(node, router)| router.core.iter().map(|link| (*node, *link)));
    let is_other = |link: usize| plan.lan_of(link).is_some() || plan.links[link].kind != LinkKind::Ethernet;
    if let Some((node, link)) = circuits.chain(cores).find(|(_, link)| is_other(*link)) {
        let (link, node) = (plan.links[link].name.clone(), plan.nodes[node].name.clone());
        return Err(PeConfigurationError::Medium { link, node });
    }
    let mut number = 0;
    for (&(node, link, vpn), addresses) in &attached {
        let router = routers.get_mut(&node).expect("a PE with customers has a core");
        if router.core.contains(&link) {
            let (link, node) = (plan.links[link].name.clone(), plan.nodes[node].name.clone());
            return Err(PeConfigurationError::SharedLink { link, node });
        }
        // VPNs that share a link are selected by source address, so each address has a circuit.
        let is_select = attached.keys().any(|other| other.1 == link && other.2 != vpn);
        let singles = addresses.iter().map(|address| BTreeSet::from([*address]));
        let sets = if is_select { singles.collect() } else { vec![addresses.clone()] };
        for addresses in sets {
            router.circuits.push(CustomerCircuit { number, link, vpn, addresses, is_select });
            number += 1;
        }
    }
    if number > address::CIRCUITS {
        return Err(PeConfigurationError::TooManyCircuits);
    }
    Ok(routers)
}

/// Adds the core links of PEs: those of their VPNs' paths, and those to the PEs that measure their references.
fn add_cores(plan: &Plan, routers: &mut PeRouters) -> Result<(), PeConfigurationError> {
    for vpn in &plan.vpns {
        for hop in vpn.path.iter().chain(&vpn.reverse) {
            for node in plan.ends(*hop) {
                if node == vpn.ingress || node == vpn.egress {
                    routers.entry(node).or_default().core.insert(hop.link);
                }
            }
        }
    }
    for (first, second) in news_pairs(plan) {
        // Without a path, PEs share no link. Both ways use the same links.
        for hop in plan.shortest(first, second).into_iter().flatten() {
            for node in plan.ends(hop).into_iter().filter(|node| [first, second].contains(node)) {
                routers.entry(node).or_default().core.insert(hop.link);
            }
        }
    }
    for vpn in &plan.vpns {
        let Some(reference) = reference(vpn) else { continue };
        // The reference is measured even without traffic.
        let VpnPlan { ingress, egress, .. } = plan.vpns[reference];
        for node in [ingress, egress] {
            routers.entry(node).or_default().remote.entry(combined(plan, reference)).or_default();
        }
        if ingress == vpn.ingress {
            continue;
        }
        let path = plan.shortest(ingress, vpn.ingress).ok_or_else(|| PeConfigurationError::NoPath {
            vpn: vpn.name.clone(),
            reference: plan.vpns[reference].name.clone(),
            nodes: [vpn.ingress, ingress].map(|node| plan.nodes[node].name.clone()),
        })?;
        for hop in path {
            for node in plan.ends(hop).into_iter().filter(|node| [ingress, vpn.ingress].contains(node)) {
                routers.entry(node).or_default().core.insert(hop.link);
            }
        }
    }
    Ok(())
}

/// Addresses of customers by PE, link and VPN.
type Attached = BTreeMap<(usize, usize, usize), BTreeSet<IpAddr>>;

fn attach(
    plan: &Plan,
    ground: &dyn RouterAddressing,
    routers: &mut PeRouters,
) -> Result<Attached, PeConfigurationError> {
    let mut attached = Attached::new();
    for (index, group) in plan.flows.iter().enumerate() {
        let hops = || group.path.iter().chain(&group.reverse);
        let Some(through) = group.vpn else {
            let mut nodes = hops().flat_map(|hop| plan.ends(*hop));
            if let Some(node) = nodes.find(|node| plan.nodes[*node].kind == NodeKind::Pe) {
                let (flow, node) = (group.name.clone(), plan.nodes[node].name.clone());
                return Err(PeConfigurationError::NoVpn { flow, node });
            }
            continue;
        };
        if matches!(group.transport, FlowTransport::Multicast(_)) {
            return Err(PeConfigurationError::Multicast { flow: group.name.clone() });
        }
        let vpn = combined(plan, through);
        let [source, destination] = ground.ends(index);
        let VpnPlan { ingress, egress, .. } = plan.vpns[through];
        for (node, own, other) in [(ingress, source, destination), (egress, destination, source)] {
            let is_customer_hop = |hop: &&Hop| !is_between(&plan.vpns[through], **hop);
            for hop in hops().filter(is_customer_hop).filter(|hop| plan.ends(**hop).contains(&node)) {
                attached.entry((node, hop.link, vpn)).or_default().insert(own);
            }
            routers.entry(node).or_default().remote.entry(vpn).or_default().insert(other);
        }
    }
    Ok(attached)
}

/// Returns whether a hop is between a VPN's PEs.
fn is_between(vpn: &VpnPlan, hop: Hop) -> bool {
    vpn.path.contains(&hop) || vpn.reverse.contains(&hop)
}

/// Returns the configuration file of a node's router with the control socket `control`. The peers of its VPN flows have
/// the names of the plan's VPNs with this ingress.
pub fn configuration(
    plan: &Plan,
    ground: &dyn RouterAddressing,
    node: usize,
    router: &PeRouter,
    control: &Path,
) -> String {
    // Several links may share an interface.
    let core: BTreeSet<String> = router.core.iter().map(|link| ground.interface(node, *link)).collect();
    let mut peers = Map::new();
    let mut vpns = Map::new();
    let mut circuits = Map::new();
    for (&index, remote) in &router.remote {
        let vpn = &plan.vpns[index];
        let is_ingress = vpn.ingress == node;
        // VPN of the plan with this ingress. Without one, the flow only receives.
        let own = if is_ingress { Some(vpn) } else { vpn.opposite.map(|back| &plan.vpns[back]) };
        let peer = own.map_or_else(|| format!("{}-back", vpn.name), |own| own.name.clone());
        let mut ends = ground.tunnel(index);
        let mut labels = [FIRST_LABEL + 2 * index, FIRST_LABEL + 2 * index + 1];
        if !is_ingress {
            ends.reverse();
            labels.reverse();
        }
        let [from, to] = ends;
        let [send, receive] = labels;
        peers.insert(
            peer.clone(),
            json!({
                "tunnel": { "kind": "mpls-in-udp", "from": from, "to": to },
                "clamp_segment_size": false,
                "trusted": true,
                "news": false,
            }),
        );
        let routes: Vec<String> = remote.iter().map(|address| host_prefix(*address)).collect();
        let mut flow = own.map_or(json!({ "control": "none" }), |own| treatment(plan, &own.settings));
        if let Some(links) = own.and_then(|own| link_numbers(plan, own)) {
            flow["links"] = links.into();
        }
        (flow["send"], flow["receive"], flow["routes"]) = (send.into(), receive.into(), routes.into());
        vpns.insert(vpn.name.clone(), json!({ "peer": { peer: flow } }));
    }
    let references = references(plan, ground, node, &mut peers);
    for circuit in &router.circuits {
        let name = format!("{}-{}", plan.links[circuit.link].name, circuit.number);
        circuits.insert(name, self::circuit(plan, ground, node, circuit));
    }
    let configuration = json!({
        "pe": { "core": core, "control": control },
        "peer": peers,
        "vpn": vpns,
        "reference": references,
        "circuit": circuits,
    });
    toml::to_string(&configuration).expect("the configuration can be serialized")
}

/// Returns the references that a PE measures or follows, by the names of their VPNs. Adds the PEs with which it
/// exchanges references or news to `peers`.
fn references(
    plan: &Plan,
    ground: &dyn RouterAddressing,
    node: usize,
    peers: &mut Map<String, Value>,
) -> Map<String, Value> {
    let with_news = news_pairs(plan);
    let names: BTreeMap<usize, String> = message_pairs(plan)
        .into_iter()
        .filter(|(first, second)| [*first, *second].contains(&node))
        .map(|(first, second)| {
            let mut ends = ground.message_tunnel((first, second));
            if second == node {
                ends.reverse();
            }
            let other = if second == node { first } else { second };
            let [from, to] = ends;
            // Peers of VPN flows have names of VPNs.
            let mut name = format!("pe-{}", plan.nodes[other].name);
            while peers.contains_key(&name) {
                name.push('-');
            }
            let news = with_news.contains(&(first, second));
            let tunnel = json!({ "kind": "mpls-in-udp", "from": from, "to": to });
            let tunnel = json!({ "tunnel": tunnel, "trusted": true, "news": news });
            peers.insert(name.clone(), tunnel);
            (other, name)
        })
        .collect();
    let mut references = Map::new();
    for follower in &plan.vpns {
        let Some(index) = reference(follower) else { continue };
        let vpn = &plan.vpns[index];
        let source = if vpn.ingress == node {
            let followers = plan.vpns.iter().filter(|other| reference(other) == Some(index));
            let receivers: BTreeSet<&String> = followers.filter_map(|vpn| names.get(&vpn.ingress)).collect();
            json!({
                "number": index + 1,
                "flow": { "vpn": plan.vpns[combined(plan, index)].name, "peer": vpn.name },
                "publish_to": receivers,
            })
        } else if follower.ingress == node {
            json!({ "number": index + 1, "from": names[&vpn.ingress] })
        } else {
            continue;
        };
        references.insert(vpn.name.clone(), source);
    }
    references
}

/// Returns the configuration of a circuit.
fn circuit(plan: &Plan, ground: &dyn RouterAddressing, node: usize, circuit: &CustomerCircuit) -> Value {
    let CustomerCircuit { link, vpn, addresses, is_select, .. } = circuit;
    let own_addresses = ground.circuit_addresses(node, circuit).into_iter();
    let own_addresses: Vec<String> =
        own_addresses.map(|(address, length)| format!("{address}/{length}")).collect();
    let route = |address: &IpAddr| {
        let via = ground.next_hop(node, circuit, *address)?;
        Some(json!({ "to": host_prefix(*address), "via": via }))
    };
    let mut configuration = json!({
        "vpn": plan.vpns[*vpn].name,
        "interface": ground.interface(node, *link),
        "address": own_addresses,
        "routes": addresses.iter().filter_map(route).collect::<Vec<Value>>(),
    });
    if let (true, Some(source)) = (*is_select, addresses.first()) {
        configuration["select"] = json!({ "source": host_prefix(*source) });
    }
    configuration
}

fn family_of(address: IpAddr) -> IpVersion {
    if address.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 }
}

/// Returns the prefix of one address.
fn host_prefix(address: IpAddr) -> String {
    format!("{address}/{}", address::host_prefix(address))
}

/// Returns the configuration of a VPN flow's settings.
fn treatment(plan: &Plan, settings: &VpnFlowSettings) -> Value {
    let mut configuration = json!({ "weight": settings.weight, "control": control(plan, &settings.control) });
    if let VpnControl::I2vfc(I2vfcConfig { silence, .. }) = &settings.control {
        configuration["silent_after"] = microseconds(silence.after);
        configuration["when_silent"] = json!(pe::when_silent_word(silence.action));
    }
    for (field, rate) in [("minimum", settings.minimum), ("maximum", settings.maximum)] {
        // Without a window, the minimum rate only affects the weights.
        if let Some(rate) = rate.filter(|_| field == "maximum" || configuration.get("when_silent").is_some())
        {
            configuration[field] = json!(format!("{} bit/s", rate.0));
        }
    }
    if !settings.classes.is_empty() {
        configuration["classes"] = settings.classes.iter().map(class).collect();
    }
    configuration
}

fn class(class: &TrafficClass) -> Value {
    let queue = class.fq_codel.as_ref().map(|fq_codel| {
        json!({
            "kind": "fq-codel",
            "flows": fq_codel.flows,
            "quantum": format!("{} B", fq_codel.quantum),
            "target": microseconds(fq_codel.codel.target),
            "interval": microseconds(fq_codel.codel.interval),
            "ecn": fq_codel.codel.ecn,
        })
    });
    json!({
        "dscp": class.codepoints,
        "priority": class.priority,
        "weight": class.weight,
        "buffer": format!("{} packets", class.packets),
        "queue": queue.unwrap_or(json!("drop-tail")),
    })
}

fn microseconds(duration: Duration) -> Value {
    json!(format!("{} us", duration.0 as f64 / 1000.0))
}

fn control(plan: &Plan, control: &VpnControl) -> Value {
    match control {
        VpnControl::None => json!("none"),
        VpnControl::FixedRate { rate, queue } => json!({
            "kind": "fixed-rate",
            "rate": format!("{} bit/s", rate.0),
            "queue": format!("{queue} packets"),
        }),
        VpnControl::RateConsensus(_) => json!("rate-consensus"),
        VpnControl::I2vfc(config) => window(plan, config),
    }
}

fn window(plan: &Plan, config: &I2vfcConfig) -> Value {
    let mut configuration = json!({
        "kind": "i2vfc",
        "increase": config.increase,
        "decrease": match config.decrease {
            Decrease::Fixed(decrease) => json!(decrease),
            Decrease::FromWeight => json!("from-weight"),
        },
        "rule": pe::rule_word(config.rule),
        "initial_window": config.initial_window,
        "queue": format!("{} packets", config.queue),
        "report_every": config.report_every,
        "report_within": microseconds(config.report_within),
        "idle_probe": microseconds(config.idle_probe),
        "ecn": config.marks_are_losses,
        "pacing": config.pacing,
        "loss_measure": pe::loss_measure_word(config.loss_measure),
    });
    match config.reference {
        WeightReference::Nominal(nominal) => {
            configuration["nominal"] = json!({
                "weight": nominal.weight,
                "decrease": nominal.decrease,
                "round_trip": microseconds(nominal.round_trip),
            });
        }
        WeightReference::Vpn(index) => configuration["reference"] = json!(plan.vpns[index].name),
    }
    configuration
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::plan_of as plan;
    use netstage_scenario::pe::PeerTunnel;

    const TWO_WAY: &str = include_str!("../../../../scenarios/examples/two-way-vpns.toml");

    fn node(plan: &Plan, name: &str) -> usize {
        plan.nodes.iter().position(|node| node.name == name).unwrap()
    }

    /// Returns the router of a node, parsed from its configuration.
    fn read(plan: &Plan, name: &str) -> pe::PeConfig {
        let layout = AddressLayout::new(plan).unwrap();
        let ground = NamespaceAddressing { plan, layout: &layout };
        let routers = routers(plan, &ground).unwrap();
        let node = node(plan, name);
        let text = configuration(plan, &ground, node, &routers[&node], Path::new("/tmp/pe.sock"));
        pe::parse("pe.toml", &text).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
    }

    #[test]
    fn both_ends_of_a_vpn_match() {
        let plan = plan(TWO_WAY);
        let [west, east] = ["west", "east"].map(|name| read(&plan, name));
        assert_eq!((west.vpns.len(), west.circuits.len(), west.core.len()), (2, 2, 1));
        for (west_vpn, east_vpn) in west.vpns.iter().zip(&east.vpns) {
            let [west_flow, east_flow] = [&west_vpn.flows[0], &east_vpn.flows[0]];
            assert_eq!((west_flow.send, west_flow.receive), (east_flow.receive, east_flow.send));
            let tunnel =
                |router: &pe::PeConfig, flow: &pe::VpnFlowConfig| match router.peers[flow.peer].tunnel {
                    PeerTunnel::MplsInUdp { from, to, .. } => (from.unwrap(), to),
                    PeerTunnel::Mpls { .. } => panic!("the tunnel is not MPLS-in-UDP"),
                };
            let (from, to) = tunnel(&west, west_flow);
            assert_eq!(tunnel(&east, east_flow), (to, from));
            // Each router has routes to the customers of the other one.
            let customers = |router: &pe::PeConfig, vpn: &pe::PeVpnConfig| -> Vec<String> {
                let circuits =
                    router.circuits.iter().filter(|circuit| router.vpns[circuit.vpn].name == vpn.name);
                let mut customers: Vec<String> =
                    circuits.flat_map(|circuit| &circuit.routes).map(|(to, _)| to.to_string()).collect();
                customers.sort();
                customers
            };
            let mut routes: Vec<String> = west_flow.routes.iter().map(ToString::to_string).collect();
            routes.sort();
            assert_eq!(customers(&east, east_vpn), routes);
            assert!(!routes.is_empty());
        }
        // Each direction has the control, weight and name of the VPN of the plan.
        let names = |router: &pe::PeConfig| -> Vec<(String, f64)> {
            let flows = router.vpns.iter().flat_map(|vpn| &vpn.flows);
            flows.map(|flow| (router.peers[flow.peer].name.clone(), flow.settings.weight)).collect()
        };
        assert_eq!(names(&west), [("gold-down".into(), 3.0), ("silver-down".into(), 1.0)]);
        assert_eq!(names(&east), [("gold-up".into(), 3.0), ("silver-up".into(), 1.0)]);
    }

    #[test]
    fn a_reference_is_published_to_the_pes_that_follow_it() {
        let text = TWO_WAY.to_owned()
            + r#"
[vpn.gold-down.control]
kind = "i2vfc"
decrease = 0.1
[vpn.gold-up.control]
kind = "i2vfc"
reference = "gold-down"
[vpn.silver-down.control]
kind = "i2vfc"
reference = "gold-down"
"#;
        let plan = plan(&text);
        let [west, east] = ["west", "east"].map(|name| read(&plan, name));
        let [own, followed] = [&west.references[0], &east.references[0]];
        assert_eq!((own.name.as_str(), own.number), (followed.name.as_str(), followed.number));
        let pe::ReferenceSource::Flow { vpn, peer, publish_to } = &own.source else { panic!("{own:?}") };
        assert_eq!(
            (west.vpns[*vpn].name.as_str(), west.peers[*peer].name.as_str()),
            ("gold-down", "gold-down")
        );
        let pe::ReferenceSource::Peer(from) = followed.source else { panic!("{followed:?}") };
        let [to_east, to_west] = [&west.peers[publish_to[0]], &east.peers[from]];
        assert_eq!((to_east.name.as_str(), to_west.name.as_str()), ("pe-east", "pe-west"));
        let (
            PeerTunnel::MplsInUdp { from, to, .. },
            PeerTunnel::MplsInUdp { from: east_from, to: east_to, .. },
        ) = (&to_east.tunnel, &to_west.tunnel)
        else {
            panic!("{to_east:?} {to_west:?}");
        };
        assert_eq!((from.as_ref(), Some(to)), (Some(east_to), east_from.as_ref()));
        let followers = |router: &pe::PeConfig| -> Vec<String> {
            let flows = router.vpns.iter().flat_map(|vpn| &vpn.flows);
            flows
                .filter(|flow| flow.reference().is_some())
                .map(|flow| router.peers[flow.peer].name.clone())
                .collect()
        };
        assert_eq!(
            (followers(&west), followers(&east)),
            (vec!["silver-down".into()], vec!["gold-up".into()])
        );
    }

    #[test]
    fn pes_whose_vpns_share_a_link_exchange_news() {
        let plan = plan(include_str!("../../../../scenarios/examples/fair-rates.toml"));
        let [gold, silver] = ["gold-in", "silver-in"].map(|name| read(&plan, name));
        let links = |router: &pe::PeConfig| match &router.vpns[0].flows[0].settings.control {
            VpnControl::RateConsensus(CoreMembership::Links(links)) => links.clone(),
            control => panic!("{control:?}"),
        };
        assert_eq!(links(&gold), links(&silver));
        assert_eq!(links(&gold).len(), 1, "the bottleneck is the only shared link");
        let peer = |router: &pe::PeConfig| {
            let mut peers = router.peers.iter().filter(|peer| peer.news);
            let peer = peers.next().unwrap().clone();
            assert_eq!(peers.count(), 0);
            match peer.tunnel {
                PeerTunnel::MplsInUdp { from, to, .. } => (peer.name, from.unwrap(), to),
                PeerTunnel::Mpls { .. } => panic!("the tunnel is not MPLS-in-UDP"),
            }
        };
        let [(to_silver, from, to), (to_gold, silver_from, silver_to)] = [peer(&gold), peer(&silver)];
        assert_eq!([to_silver.as_str(), to_gold.as_str()], ["pe-silver-in", "pe-gold-in"]);
        assert_eq!((from, to), (silver_to, silver_from));
        // Egress PEs of one-way VPNs publish nothing.
        assert!(read(&plan, "gold-out").peers.iter().all(|peer| !peer.news));
    }

    #[test]
    fn vpns_that_share_a_link_are_selected_by_address() {
        let text = TWO_WAY.replace(r#"from = "silver-a""#, r#"from = "gold-a""#);
        let router = read(&plan(&text.replace(r#"to = "silver-a""#, r#"to = "gold-a""#)), "west");
        assert_eq!(router.circuits.len(), 4, "each address of two VPNs in two directions has a circuit");
        for circuit in &router.circuits {
            let source = circuit.select.as_ref().and_then(|select| select.source).unwrap();
            assert_eq!(circuit.routes[0].0, source);
            assert_eq!(circuit.interface, router.circuits[0].interface);
        }
    }

    #[test]
    fn the_core_routes_tunnels_but_no_customer_addresses() {
        let plan = plan(TWO_WAY);
        let layout = AddressLayout::new(&plan).unwrap();
        let [core, west] = ["core-west", "west"].map(|name| node(&plan, name));
        for (owner, addresses) in layout.addresses.iter().enumerate() {
            let is_edge = plan.nodes[owner].kind == NodeKind::Pe;
            for address in &addresses[1..] {
                assert_eq!(address.routes.contains_key(&core), is_edge);
                assert!(
                    is_edge || !address.routes.contains_key(&west),
                    "the kernel of a PE has no routes to customers"
                );
            }
        }
    }

    #[test]
    fn unsupported_plans_are_refused() {
        let refused = |text: &str| {
            let plan = plan(text);
            let layout = AddressLayout::new(&plan).unwrap();
            routers(&plan, &NamespaceAddressing { plan: &plan, layout: &layout }).unwrap_err().to_string()
        };
        let without_vpn = TWO_WAY.replacen("vpn = \"gold-down\"\ncount", "count", 1);
        assert!(refused(&without_vpn).starts_with("flow.gold-down: passes the PE west, but is in no VPN"));
        // Without control and encapsulation, the kernel forwards.
        let plain = TWO_WAY.replace("encapsulation = \"mpls-in-udp\"", "control = \"none\"");
        let plan = plan(&plain);
        let layout = AddressLayout::new(&plan).unwrap();
        assert!(routers(&plan, &NamespaceAddressing { plan: &plan, layout: &layout }).unwrap().is_empty());
    }
}
