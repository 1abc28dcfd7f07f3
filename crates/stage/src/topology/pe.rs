//! The PE configuration of a stage: what the router in each `pe` node reads, as the file it would have on a real box.
//!
//! Between PEs only tunnels are routed. Each VPN has tunnel addresses of its own, so that the
//! emulator tells its management packets from others', too. Where no VPN of a plan is
//! controlled or encapsulated, nobody would see a PE: the kernel forwards.
//!
//! A VPN whose reference is another VPN hears of it from the PE where that one enters; PEs that
//! have no other business with each other get a tunnel for it.

use super::address;
use super::layout::Layout;
use super::network::node_interface;
use netstage_core::edge::Settings;
use netstage_core::fair::{Config, Control, Decrease, Reference};
use netstage_core::queue::TrafficClass;
use netstage_core::time::Duration;
use netstage_scenario::pe;
use netstage_scenario::plan::{Family, Hop, LinkKind, NodeKind, Plan, Transport, Vpn};
use netstage_wire::Encapsulation;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;

/// The first VPN's labels; each VPN has two, one per direction.
const FIRST_LABEL: usize = 1000;

/// Two VPNs that are each other's way back are one to its routers: the first of them.
fn whole(plan: &Plan, vpn: usize) -> usize {
    plan.vpns[vpn].back.map_or(vpn, |back| back.min(vpn))
}

/// Whether PEs of a plan are routers of their own.
pub fn are_needed(plan: &Plan) -> bool {
    plan.vpns.iter().any(|vpn| vpn.settings.may_wait() || vpn.encapsulation != Encapsulation::None)
}

/// Whether a VPN's packets that take a hop from a node are the PEs' to route.
pub fn route(plan: &Plan, vpn: Option<usize>, node: usize, hop: Hop) -> bool {
    let is_ours = |vpn: usize| plan.nodes[node].kind == NodeKind::Pe || is_between(&plan.vpns[vpn], hop);
    are_needed(plan) && vpn.is_some_and(is_ours)
}

/// The VPN another one follows as its reference.
fn followed(vpn: &Vpn) -> Option<usize> {
    match &vpn.settings.control {
        Control::I2vfc(Config { reference: Reference::Vpn(index), .. }) => Some(*index),
        _ => None,
    }
}

/// Pairs of PEs, the lower index first, one of which tells the other of a reference.
pub fn tellings(plan: &Plan) -> BTreeSet<(usize, usize)> {
    let pair = |vpn: &Vpn| {
        let (own, other) = (vpn.ingress, plan.vpns[followed(vpn)?].ingress);
        (own != other).then_some((own.min(other), own.max(other)))
    };
    plan.vpns.iter().filter_map(pair).collect()
}

/// Where routers and their customers are: at addresses of this stage's making, or at those of real hosts.
pub trait Ground {
    /// The addresses of a flow group's sender and receiver.
    fn ends(&self, group: usize) -> [IpAddr; 2];
    /// The addresses of a VPN's tunnel, at its ingress and at its egress.
    fn tunnel(&self, vpn: usize) -> [IpAddr; 2];
    /// The addresses of the tunnel between two PEs one of which tells the other of a reference.
    fn telling(&self, nodes: (usize, usize)) -> [IpAddr; 2];
    /// The interface of a PE to a link.
    fn interface(&self, node: usize, link: usize) -> String;
    /// The addresses of a PE on a customers' link, each with the length of its prefix.
    fn on_circuit(&self, node: usize, circuit: &Circuit) -> Vec<(IpAddr, u8)>;
    /// The router on a circuit that has this customer's address; none where the address is on the link.
    fn via(&self, node: usize, circuit: &Circuit, customer: IpAddr) -> Option<IpAddr>;
}

/// The ground of namespaces.
pub struct Emulated<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Where its parts are.
    pub layout: &'a Layout,
}

impl Emulated<'_> {
    /// The side of a PE on a link to customers; the other one is theirs.
    fn side(&self, node: usize, circuit: &Circuit) -> usize {
        usize::from(self.plan.links[circuit.link].ends[1] == node)
    }
}

impl Ground for Emulated<'_> {
    fn ends(&self, group: usize) -> [IpAddr; 2] {
        let (flows, placed) = (&self.plan.flows[group], self.layout.groups[group]);
        let source = address::of(flows.family, flows.from, placed.source);
        [source, address::of(flows.family, flows.to, placed.destination)]
    }

    fn tunnel(&self, vpn: usize) -> [IpAddr; 2] {
        let tunnel = self.layout.tunnels[vpn].expect("the VPNs of routers have tunnels");
        let Vpn { ingress, egress, .. } = self.plan.vpns[vpn];
        [(ingress, tunnel.source), (egress, tunnel.destination)]
            .map(|(node, number)| address::of(Family::V4, node, number))
    }

    fn telling(&self, nodes: (usize, usize)) -> [IpAddr; 2] {
        let placed = self.layout.tellings[&nodes];
        [(nodes.0, placed.source), (nodes.1, placed.destination)]
            .map(|(node, number)| address::of(Family::V4, node, number))
    }

    fn interface(&self, _node: usize, link: usize) -> String {
        node_interface(link)
    }

    fn on_circuit(&self, node: usize, circuit: &Circuit) -> Vec<(IpAddr, u8)> {
        let side = self.side(node, circuit);
        address::FAMILIES.map(|family| address::on_circuit(family, circuit.number, side)).to_vec()
    }

    fn via(&self, node: usize, circuit: &Circuit, customer: IpAddr) -> Option<IpAddr> {
        let side = 1 - self.side(node, circuit);
        Some(address::on_circuit(family_of(customer), circuit.number, side).0)
    }
}

/// The routers of a plan, by index of their nodes.
pub type Routers = BTreeMap<usize, Router>;

/// What one router has to do with a plan's VPNs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Router {
    /// Indices of the links to the core.
    pub core: BTreeSet<usize>,
    /// Where customers are attached.
    pub circuits: Vec<Circuit>,
    /// Addresses behind the other router of each VPN, by the index of the VPN, or that of the
    /// first of two which lead both ways.
    there: BTreeMap<usize, BTreeSet<IpAddr>>,
}

/// Where a customer is attached.
#[derive(Clone, Debug, PartialEq)]
pub struct Circuit {
    /// Number of the circuit, among all of all routers: its addresses follow from it.
    pub number: usize,
    /// Index of the link.
    pub link: usize,
    /// Index of the VPN, as above.
    vpn: usize,
    /// Addresses of the customer.
    pub addresses: BTreeSet<IpAddr>,
    /// Packets from these addresses belong to it; otherwise all of the link do.
    pub is_select: bool,
}

/// Why a plan's PEs cannot be routers of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unroutable {
    /// A flow goes through a PE, and is in no VPN.
    NoVpn {
        /// Name of the flow.
        flow: String,
        /// Name of the PE.
        node: String,
    },
    /// Multicast goes through a PE.
    Multicast {
        /// Name of the flow.
        flow: String,
    },
    /// Customers and the core are on one link of a PE.
    SharedLink {
        /// Name of the link.
        link: String,
        /// Name of the PE.
        node: String,
    },
    /// A link of a PE is no Ethernet between two nodes.
    Medium {
        /// Name of the link.
        link: String,
        /// Name of the PE.
        node: String,
    },
    /// A PE cannot be told of a reference.
    NoWay {
        /// Name of the VPN.
        vpn: String,
        /// Name of its reference.
        reference: String,
        /// Names of the PEs where they enter.
        nodes: [String; 2],
    },
    /// There are more circuits than addresses for them.
    TooManyCircuits,
}

impl fmt::Display for Unroutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unroutable::NoVpn { flow, node } => write!(
                f,
                "flow.{flow}: goes through the PE {node} and is in no VPN; a PE forwards nothing else: give it a VPN, or another way"
            ),
            Unroutable::Multicast { flow } => {
                write!(f, "flow.{flow}: a PE carries no multicast; give it another way, or run it --on sim")
            }
            Unroutable::SharedLink { link, node } => write!(
                f,
                "link.{link}: leads from the PE {node} both to customers and to the core; give each a link of its own"
            ),
            Unroutable::Medium { link, node } => write!(
                f,
                "link.{link}: joins the PE {node} to a LAN or by TUN interfaces, and its VPNs need Ethernet between \
                 two nodes; put a router between them, or run it --on sim"
            ),
            Unroutable::NoWay { vpn, reference, nodes: [own, other] } => write!(
                f,
                "vpn.{vpn}: no way leads from the PE {other}, which measures its reference {reference}, to the PE {own}; \
                 join them by routers, or make the reference \"nominal\""
            ),
            Unroutable::TooManyCircuits => {
                write!(f, "the PEs need more than {} circuits; use fewer VPNs or PEs", address::CIRCUITS)
            }
        }
    }
}

/// What each PE of a plan has to do; none where nobody would see them.
pub fn routers(plan: &Plan, ground: &dyn Ground) -> Result<Routers, Unroutable> {
    let mut routers = Routers::new();
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
        return Err(Unroutable::Medium { link, node });
    }
    let mut number = 0;
    for (&(node, link, vpn), addresses) in &attached {
        let router = routers.get_mut(&node).expect("a PE with customers has a core");
        if router.core.contains(&link) {
            let (link, node) = (plan.links[link].name.clone(), plan.nodes[node].name.clone());
            return Err(Unroutable::SharedLink { link, node });
        }
        // Where VPNs share a link, the sender's address tells whose a packet is: one each.
        let is_select = attached.keys().any(|other| other.1 == link && other.2 != vpn);
        let each = addresses.iter().map(|address| BTreeSet::from([*address]));
        let sets = if is_select { each.collect() } else { vec![addresses.clone()] };
        for addresses in sets {
            router.circuits.push(Circuit { number, link, vpn, addresses, is_select });
            number += 1;
        }
    }
    if number > address::CIRCUITS {
        return Err(Unroutable::TooManyCircuits);
    }
    Ok(routers)
}

/// Adds the links by which VPNs leave their PEs, and those to PEs whose references they follow.
fn add_cores(plan: &Plan, routers: &mut Routers) -> Result<(), Unroutable> {
    for vpn in &plan.vpns {
        for hop in vpn.path.iter().chain(&vpn.reverse) {
            for node in plan.ends(*hop) {
                if node == vpn.ingress || node == vpn.egress {
                    routers.entry(node).or_default().core.insert(hop.link);
                }
            }
        }
    }
    for vpn in &plan.vpns {
        let Some(reference) = followed(vpn) else { continue };
        // It is measured even if it carries nothing.
        let Vpn { ingress, egress, .. } = plan.vpns[reference];
        for node in [ingress, egress] {
            routers.entry(node).or_default().there.entry(whole(plan, reference)).or_default();
        }
        if ingress == vpn.ingress {
            continue;
        }
        let way = plan.shortest(ingress, vpn.ingress).ok_or_else(|| Unroutable::NoWay {
            vpn: vpn.name.clone(),
            reference: plan.vpns[reference].name.clone(),
            nodes: [vpn.ingress, ingress].map(|node| plan.nodes[node].name.clone()),
        })?;
        for hop in way {
            for node in plan.ends(hop).into_iter().filter(|node| [ingress, vpn.ingress].contains(node)) {
                routers.entry(node).or_default().core.insert(hop.link);
            }
        }
    }
    Ok(())
}

/// Addresses of customers by PE, link and VPN.
type Attached = BTreeMap<(usize, usize, usize), BTreeSet<IpAddr>>;

fn attach(plan: &Plan, ground: &dyn Ground, routers: &mut Routers) -> Result<Attached, Unroutable> {
    let mut attached = Attached::new();
    for (index, group) in plan.flows.iter().enumerate() {
        let hops = || group.path.iter().chain(&group.reverse);
        let Some(through) = group.vpn else {
            let passed = hops().flat_map(|hop| plan.ends(*hop));
            if let Some(node) = passed.into_iter().find(|node| plan.nodes[*node].kind == NodeKind::Pe) {
                let (flow, node) = (group.name.clone(), plan.nodes[node].name.clone());
                return Err(Unroutable::NoVpn { flow, node });
            }
            continue;
        };
        if matches!(group.transport, Transport::Multicast(_)) {
            return Err(Unroutable::Multicast { flow: group.name.clone() });
        }
        let vpn = whole(plan, through);
        let [source, destination] = ground.ends(index);
        let Vpn { ingress, egress, .. } = plan.vpns[through];
        for (node, own, other) in [(ingress, source, destination), (egress, destination, source)] {
            let of_customer = |hop: &&Hop| !is_between(&plan.vpns[through], **hop);
            for hop in hops().filter(of_customer).filter(|hop| plan.ends(**hop).contains(&node)) {
                attached.entry((node, hop.link, vpn)).or_default().insert(own);
            }
            routers.entry(node).or_default().there.entry(vpn).or_default().insert(other);
        }
    }
    Ok(attached)
}

/// Whether a hop lies between a VPN's PEs.
fn is_between(vpn: &Vpn, hop: Hop) -> bool {
    vpn.path.contains(&hop) || vpn.reverse.contains(&hop)
}

/// The configuration file of the router in a node; its control socket is `control`. Its VPN flows
/// have peers by the names of the plan's VPNs that enter at it.
pub fn configuration(
    plan: &Plan,
    ground: &dyn Ground,
    node: usize,
    router: &Router,
    control: &Path,
) -> String {
    // One interface may stand for several links.
    let core: BTreeSet<String> = router.core.iter().map(|link| ground.interface(node, *link)).collect();
    let mut peers = Map::new();
    let mut vpns = Map::new();
    let mut circuits = Map::new();
    for (&index, there) in &router.there {
        let vpn = &plan.vpns[index];
        let is_ingress = vpn.ingress == node;
        // The VPN that enters here; what only comes back is nobody's.
        let own = if is_ingress { Some(vpn) } else { vpn.back.map(|back| &plan.vpns[back]) };
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
            }),
        );
        let routes: Vec<String> = there.iter().map(|address| host(*address)).collect();
        let mut flow = own.map_or(json!({ "control": "none" }), |own| treatment(plan, &own.settings));
        (flow["send"], flow["receive"], flow["routes"]) = (send.into(), receive.into(), routes.into());
        vpns.insert(vpn.name.clone(), json!({ "peer": { peer: flow } }));
    }
    let references = references(plan, ground, node, &mut peers);
    for circuit in &router.circuits {
        let name = format!("{}-{}", plan.links[circuit.link].name, circuit.number);
        circuits.insert(name, self::circuit(plan, ground, node, circuit));
    }
    let file = json!({
        "pe": { "core": core, "control": control },
        "peer": peers,
        "vpn": vpns,
        "reference": references,
        "circuit": circuits,
    });
    toml::to_string(&file).expect("tables, texts and numbers")
}

/// The references a PE measures or follows, by the names of their VPNs, and the peers it tells, or that tell it.
fn references(
    plan: &Plan,
    ground: &dyn Ground,
    node: usize,
    peers: &mut Map<String, Value>,
) -> Map<String, Value> {
    let names: BTreeMap<usize, String> = tellings(plan)
        .into_iter()
        .filter(|(first, second)| [*first, *second].contains(&node))
        .map(|(first, second)| {
            let mut ends = ground.telling((first, second));
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
            let tunnel = json!({ "tunnel": { "kind": "mpls-in-udp", "from": from, "to": to } });
            peers.insert(name.clone(), tunnel);
            (other, name)
        })
        .collect();
    let mut references = Map::new();
    for follower in &plan.vpns {
        let Some(index) = followed(follower) else { continue };
        let vpn = &plan.vpns[index];
        let source = if vpn.ingress == node {
            let followers = plan.vpns.iter().filter(|other| followed(other) == Some(index));
            let told: BTreeSet<&String> = followers.filter_map(|vpn| names.get(&vpn.ingress)).collect();
            json!({
                "number": index + 1,
                "flow": { "vpn": plan.vpns[whole(plan, index)].name, "peer": vpn.name },
                "publish_to": told,
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

/// A circuit: the PE is one end of the link, the customer's host or router the other.
fn circuit(plan: &Plan, ground: &dyn Ground, node: usize, circuit: &Circuit) -> Value {
    let Circuit { link, vpn, addresses, is_select, .. } = circuit;
    let own = ground.on_circuit(node, circuit).into_iter();
    let own: Vec<String> = own.map(|(address, length)| format!("{address}/{length}")).collect();
    let route = |address: &IpAddr| {
        let via = ground.via(node, circuit, *address)?;
        Some(json!({ "to": host(*address), "via": via }))
    };
    let mut told = json!({
        "vpn": plan.vpns[*vpn].name,
        "interface": ground.interface(node, *link),
        "address": own,
        "routes": addresses.iter().filter_map(route).collect::<Vec<Value>>(),
    });
    if let (true, Some(source)) = (*is_select, addresses.first()) {
        told["select"] = json!({ "source": host(*source) });
    }
    told
}

fn family_of(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// The prefix of one address.
fn host(address: IpAddr) -> String {
    format!("{address}/{}", address::host_prefix(address))
}

/// How a VPN flow is treated, as a router's file says it.
fn treatment(plan: &Plan, settings: &Settings) -> Value {
    let mut told = json!({ "weight": settings.weight, "control": control(plan, &settings.control) });
    if let Control::I2vfc(Config { silence, .. }) = &settings.control {
        told["silent_after"] = microseconds(silence.after);
        told["when_silent"] = json!(pe::when_silent_word(silence.then));
    }
    for (field, rate) in [("minimum", settings.minimum), ("maximum", settings.maximum)] {
        // Without a window a minimum has only counted for weights.
        if let Some(rate) = rate.filter(|_| field == "maximum" || told.get("when_silent").is_some()) {
            told[field] = json!(format!("{} bit/s", rate.0));
        }
    }
    if !settings.classes.is_empty() {
        told["classes"] = settings.classes.iter().map(class).collect();
    }
    told
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

fn control(plan: &Plan, control: &Control) -> Value {
    match control {
        Control::None => json!("none"),
        Control::FixedRate { rate, queue } => json!({
            "kind": "fixed-rate",
            "rate": format!("{} bit/s", rate.0),
            "queue": format!("{queue} packets"),
        }),
        Control::I2vfc(config) => window(plan, config),
    }
}

fn window(plan: &Plan, config: &Config) -> Value {
    let mut told = json!({
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
        "ecn": config.marks_count,
        "pacing": config.pacing,
        "loss_measure": pe::loss_measure_word(config.loss_measure),
    });
    match config.reference {
        Reference::Nominal(nominal) => {
            told["nominal"] = json!({
                "weight": nominal.weight,
                "decrease": nominal.decrease,
                "round_trip": microseconds(nominal.round_trip),
            });
        }
        Reference::Vpn(index) => told["reference"] = json!(plan.vpns[index].name),
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::plan_of as plan;
    use netstage_scenario::pe::Tunnel;

    const TWO_WAY: &str = include_str!("../../../../scenarios/examples/two-way-vpns.toml");

    fn node(plan: &Plan, name: &str) -> usize {
        plan.nodes.iter().position(|node| node.name == name).unwrap()
    }

    /// The router of a node, as its own reader understands what it is told.
    fn read(plan: &Plan, name: &str) -> pe::Router {
        let layout = Layout::new(plan).unwrap();
        let ground = Emulated { plan, layout: &layout };
        let routers = routers(plan, &ground).unwrap();
        let node = node(plan, name);
        let text = configuration(plan, &ground, node, &routers[&node], Path::new("/tmp/pe.sock"));
        pe::parse("pe.toml", &text).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
    }

    #[test]
    fn both_ends_of_a_vpn_agree() {
        let plan = plan(TWO_WAY);
        let [west, east] = ["west", "east"].map(|name| read(&plan, name));
        assert_eq!((west.vpns.len(), west.circuits.len(), west.core.len()), (2, 2, 1));
        for (here, there) in west.vpns.iter().zip(&east.vpns) {
            let [to, back] = [&here.flows[0], &there.flows[0]];
            assert_eq!((to.send, to.receive), (back.receive, back.send));
            let tunnel = |router: &pe::Router, flow: &pe::Flow| match router.peers[flow.peer].tunnel {
                Tunnel::MplsInUdp { from, to, .. } => (from.unwrap(), to),
                Tunnel::Mpls { .. } => panic!("the kernel between them knows no labels"),
            };
            let (from, to_far) = tunnel(&west, to);
            assert_eq!(tunnel(&east, back), (to_far, from));
            // Where one has customers, the other has a route there.
            let customers = |router: &pe::Router, vpn: &pe::Vpn| -> Vec<String> {
                let of = router.circuits.iter().filter(|circuit| router.vpns[circuit.vpn].name == vpn.name);
                let mut found: Vec<String> =
                    of.flat_map(|circuit| &circuit.routes).map(|(to, _)| to.to_string()).collect();
                found.sort();
                found
            };
            let mut routed: Vec<String> = to.routes.iter().map(ToString::to_string).collect();
            routed.sort();
            assert_eq!(customers(&east, there), routed);
            assert!(!routed.is_empty());
        }
        // Each direction has its own control and weight, under the name of the plan's VPN.
        let names = |router: &pe::Router| -> Vec<(String, f64)> {
            let flows = router.vpns.iter().flat_map(|vpn| &vpn.flows);
            flows.map(|flow| (router.peers[flow.peer].name.clone(), flow.settings.weight)).collect()
        };
        assert_eq!(names(&west), [("gold-down".into(), 3.0), ("silver-down".into(), 1.0)]);
        assert_eq!(names(&east), [("gold-up".into(), 3.0), ("silver-up".into(), 1.0)]);
    }

    #[test]
    fn who_measures_a_reference_tells_those_who_follow_it() {
        let text = TWO_WAY.to_owned()
            + r#"
[vpn.gold-down.control]
decrease = 0.1
[vpn.gold-up.control]
reference = "gold-down"
[vpn.silver-down.control]
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
        let [there, here] = [&west.peers[publish_to[0]], &east.peers[from]];
        assert_eq!((there.name.as_str(), here.name.as_str()), ("pe-east", "pe-west"));
        let (Tunnel::MplsInUdp { from, to, .. }, Tunnel::MplsInUdp { from: back, to: far, .. }) =
            (&there.tunnel, &here.tunnel)
        else {
            panic!("{there:?} {here:?}");
        };
        assert_eq!((from.as_ref(), Some(to)), (Some(far), back.as_ref()));
        let followers = |router: &pe::Router| -> Vec<String> {
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
    fn vpns_that_share_a_link_are_told_apart_by_address() {
        let text = TWO_WAY.replace(r#"from = "silver-a""#, r#"from = "gold-a""#);
        let router = read(&plan(&text.replace(r#"to = "silver-a""#, r#"to = "gold-a""#)), "west");
        assert_eq!(router.circuits.len(), 4, "a circuit for each address of two VPNs in two directions");
        for circuit in &router.circuits {
            let source = circuit.select.as_ref().and_then(|select| select.source).unwrap();
            assert_eq!(circuit.routes[0].0, source);
            assert_eq!(circuit.interface, router.circuits[0].interface);
        }
    }

    #[test]
    fn the_core_routes_tunnels_and_nothing_of_customers() {
        let plan = plan(TWO_WAY);
        let layout = Layout::new(&plan).unwrap();
        let [core, west] = ["core-west", "west"].map(|name| node(&plan, name));
        for (owner, addresses) in layout.addresses.iter().enumerate() {
            let is_edge = plan.nodes[owner].kind == NodeKind::Pe;
            for address in &addresses[1..] {
                assert_eq!(address.routes.contains_key(&core), is_edge);
                assert!(is_edge || !address.routes.contains_key(&west), "a PE's kernel knows no customers");
            }
        }
    }

    #[test]
    fn what_a_router_cannot_do_is_refused_by_name() {
        let refused = |text: &str| {
            let plan = plan(text);
            let layout = Layout::new(&plan).unwrap();
            routers(&plan, &Emulated { plan: &plan, layout: &layout }).unwrap_err().to_string()
        };
        let stray = TWO_WAY.replacen("vpn = \"gold-down\"\ncount", "count", 1);
        assert!(refused(&stray).starts_with("flow.gold-down: goes through the PE west and is in no VPN"));
        // Without anything to see of a PE, the kernel forwards.
        let plain = TWO_WAY.replace("encapsulation = \"mpls-in-udp\"", "control = \"none\"");
        let plan = plan(&plain);
        let layout = Layout::new(&plan).unwrap();
        assert!(routers(&plan, &Emulated { plan: &plan, layout: &layout }).unwrap().is_empty());
    }
}
