//! Routers with FRR's routing daemons and netstage's router as the forwarding plane. This module derives them from the
//! plan.
//!
//! - [`configuration`]: the configuration of daemons and routers;
//! - [`bypass`]: LSPs that packets take while a link of the core has failed;
//! - [`labels`]: MPLS labels in zebra on kernels without MPLS;
//! - [`run`]: the processes.

mod bypass;
mod configuration;
mod labels;
pub(in crate::topology) mod run;

use super::reachability::{self, ReachabilityProbe};
use crate::topology::assignments::PlacedFlow;
use crate::topology::layout::{AddressLayout, LayoutError};
use crate::topology::network::node_interface;
use crate::topology::spec::Spec;
use crate::topology::{address, routing};
use netstage_core::time::Duration;
use netstage_scenario::plan::{Hop, IpVersion, Plan, RoutingService};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Nodes behind each edge router, with the hop to each.
type Behind = BTreeMap<usize, BTreeMap<usize, Hop>>;

/// Folders in which FRR's packages install the daemons.
const FOLDERS: [&str; 2] = ["/usr/lib/frr", "/usr/libexec/frr"];

/// Routers and daemons of a routing service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoutingSpec {
    /// Name of the service.
    pub name: String,
    /// Routers of the service.
    pub routers: Vec<RouterSpec>,
    /// Probes that must succeed before the run begins.
    pub probes: Vec<ReachabilityProbe>,
    /// Maximum time until routing has converged and the probes succeed.
    pub patience: Duration,
    /// Folder of the service, removed after the run.
    pub folder: PathBuf,
}

/// Router with routing daemons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouterSpec {
    /// Index of the node.
    pub node: usize,
    /// Name of the node.
    pub name: String,
    /// Configuration of netstage's router.
    pub configuration: String,
    /// Interfaces with LDP peers.
    pub label_interfaces: Vec<String>,
    /// The router runs the sessions of bfdd, and has bypass LSPs.
    pub runs_bfd: bool,
    /// Daemons of the router, in the order of [`FrrDaemon::WAVES`].
    pub waves: Vec<StartWave>,
}

/// Daemons that start together on all routers, once the earlier ones have learned their routes. Sessions without a
/// route to their peer would wait long before the next attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartWave {
    /// Daemons with their configurations.
    pub daemons: Vec<(FrrDaemon, String)>,
    /// Prefixes to which the router must learn a route; if the flag is set, an LSP.
    pub required: Vec<(String, bool)>,
}

/// Daemon of FRR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrrDaemon {
    /// Route manager, with the interface to the forwarding plane (FPM).
    Zebra,
    /// Static routes.
    Static,
    /// OSPF.
    Ospf,
    /// LDP.
    Ldp,
    /// Failure detection between neighbors.
    Bfd,
    /// BGP-4.
    Bgp,
}

impl FrrDaemon {
    /// Daemons in the order of their start.
    const WAVES: [&[FrrDaemon]; 4] = [
        &[FrrDaemon::Zebra],
        &[FrrDaemon::Static, FrrDaemon::Bfd, FrrDaemon::Ospf],
        &[FrrDaemon::Ldp],
        &[FrrDaemon::Bgp],
    ];

    /// Returns the name of its program.
    fn program(self) -> &'static str {
        match self {
            FrrDaemon::Zebra => "zebra",
            FrrDaemon::Static => "staticd",
            FrrDaemon::Ospf => "ospfd",
            FrrDaemon::Ldp => "ldpd",
            FrrDaemon::Bfd => "bfdd",
            FrrDaemon::Bgp => "bgpd",
        }
    }

    /// Returns the path of its program, if installed.
    fn path(self) -> Option<PathBuf> {
        FOLDERS.iter().map(|folder| Path::new(folder).join(self.program())).find(|path| path.is_file())
    }
}

/// Returns the service of a plan and the first daemon that it needs and is not installed.
pub(super) fn missing(plan: &Plan) -> Option<(&str, &'static str)> {
    let routing = plan.routing.as_ref()?;
    let absent = FrrDaemon::WAVES.into_iter().flatten().find(|daemon| daemon.path().is_none())?;
    Some((&routing.name, absent.program()))
}

/// Returns the routing service of a plan, with a folder below `folder` that is not created here.
pub fn spec(
    plan: &Plan,
    layout: &AddressLayout,
    members: &[PlacedFlow],
    folder: &Path,
) -> Option<RoutingSpec> {
    let routing = plan.routing.as_ref()?;
    let folder = folder.join("routing");
    let behind = routing::behind(plan, &layout.used);
    let all = routing.core.iter().copied().chain(routing.edges.iter().map(|edge| edge.node));
    let routers = all.map(|node| {
        let mut daemons = configuration::daemons(plan, routing, node, &behind);
        let waves = FrrDaemon::WAVES.map(|wave| StartWave {
            daemons: daemons.extract_if(.., |(daemon, _)| wave.contains(daemon)).collect(),
            required: required_prefixes(routing, node, &behind, wave),
        });
        RouterSpec {
            node,
            name: plan.nodes[node].name.clone(),
            configuration: configuration::router(plan, layout, node),
            label_interfaces: configuration::label_interfaces(plan, routing, node),
            runs_bfd: configuration::runs_sessions(routing, node),
            waves: waves.into(),
        }
    });
    Some(RoutingSpec {
        name: routing.name.clone(),
        routers: routers.collect(),
        probes: reachability::probes(plan, members),
        patience: routing.ready_timeout,
        folder,
    })
}

/// Returns the configuration files of each router of a plan, including one with the addresses of its interfaces.
pub fn configurations(plan: &Plan) -> Result<BTreeMap<String, BTreeMap<String, String>>, LayoutError> {
    let layout = AddressLayout::new(plan)?;
    let Some(routing) = spec(plan, &layout, &[], Path::new("")) else { return Ok(BTreeMap::new()) };
    let network = Spec::new(plan, &layout, &Default::default());
    let files = |router: RouterSpec| {
        let addresses = network.nodes[router.node].addresses.iter().map(|address| {
            let interface = address.link.map_or("lo".to_owned(), node_interface);
            format!("{interface} {}/{}\n", address.address, address.length)
        });
        let mut files = BTreeMap::from([("addresses".to_owned(), addresses.collect())]);
        files.insert("router.toml".into(), router.configuration);
        let daemons = router.waves.into_iter().flat_map(|wave| wave.daemons);
        files.extend(daemons.map(|(daemon, text)| (format!("{}.conf", daemon.program()), text)));
        (router.name, files)
    };
    Ok(routing.routers.into_iter().map(files).collect())
}

/// Returns the prefixes that a router must learn from a wave of daemons.
fn required_prefixes(
    routing: &RoutingService,
    node: usize,
    behind: &Behind,
    wave: &[FrrDaemon],
) -> Vec<(String, bool)> {
    let own = |node: usize| format!("{}/32", address::node_address(IpVersion::V4, node, 0));
    let edges = routing.edges.iter().map(|edge| edge.node).filter(|edge| *edge != node);
    match wave {
        // All routers are on one LAN.
        [FrrDaemon::Static | FrrDaemon::Ldp, ..] if routing.lan.is_some() => Vec::new(),
        [FrrDaemon::Static, ..] => {
            let core = routing.core.iter().filter(|core| **core != node && routing.edge(node).is_none());
            core.map(|core| (own(*core), false)).collect()
        }
        [FrrDaemon::Ldp] => edges.map(|edge| (own(edge), true)).collect(),
        [FrrDaemon::Bgp] if routing.edge(node).is_some() => {
            // Nodes that are also behind this router need no LSP.
            let others = edges.flat_map(|edge| behind[&edge].keys());
            let others: BTreeSet<usize> =
                others.copied().filter(|other| !behind[&node].contains_key(other)).collect();
            let families: &[IpVersion] = if routing.ipv6 { &address::FAMILIES } else { &[IpVersion::V4] };
            let prefix = |family, node| {
                let (address, length) = address::prefix(family, node);
                (format!("{address}/{length}"), routing.lan.is_none())
            };
            families.iter().flat_map(|family| others.iter().map(|other| prefix(*family, *other))).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::assignments::members;
    use crate::topology::plan_of;
    use netstage_harness::scenario::network;

    /// Hosts a (0) and b (1) behind the edges (4 and 5), a router of the kernel (6) behind the second edge with host c
    /// (2) behind it, and one core router (3).
    const SCENARIO: &str = r#"
        [scenario]
        duration = "1 s"
        [defaults.link]
        rate = "10 Mbit/s"
        [service.exchange]
        program = "frr"
        core = ["core"]
        edges = { east = 65001, west = 65002 }
        [flow.x]
        from = "a"
        to = "c"
        "#;

    #[test]
    fn each_router_has_its_daemons_and_expected_routes() {
        let nodes = [("host", "a b c"), ("router", "core east west yard")];
        let network = network(&nodes, "a:a,east b:b,west c:c,yard d:east,core e:core,west f:yard,west");
        let plan = &plan_of(&format!("{SCENARIO}{network}"));
        let layout = AddressLayout::new(plan).unwrap();
        let members = members(plan, &layout).unwrap();
        let spec = spec(plan, &layout, &members, Path::new("/run/x")).unwrap();
        let router = |name: &str| spec.routers.iter().find(|router| router.name == name).unwrap();
        let text = |name: &str, daemon: FrrDaemon| {
            let mut daemons = router(name).waves.iter().flat_map(|wave| &wave.daemons);
            daemons.find(|(other, _)| *other == daemon).map(|(_, text)| text.as_str())
        };
        assert!(text("core", FrrDaemon::Bgp).is_none() && text("west", FrrDaemon::Ospf).is_none());
        // The edge announces all nodes behind it, and peers with the own address of the other edge.
        let bgp = text("west", FrrDaemon::Bgp).unwrap();
        for line in [
            "router bgp 65002",
            " neighbor 10.0.4.1 remote-as 65001",
            "  network 10.0.1.0/24",
            "  network 10.0.2.0/24",
            "  network 10.0.6.0/24",
            "  network fd6e:7374::2:0/112",
            " set ipv6 next-hop global ::ffff:10.0.5.1",
        ] {
            assert!(bgp.lines().any(|other| other == line), "{line}\n{bgp}");
        }
        assert_eq!(
            text("east", FrrDaemon::Static),
            Some("ip route 10.0.5.1/32 100.64.0.14\nip route 10.0.3.1/32 100.64.0.14\n")
        );
        assert_eq!(
            text("core", FrrDaemon::Static),
            Some("ip route 10.0.4.1/32 100.64.0.13\nip route 10.0.5.1/32 100.64.0.18\n")
        );
        let ldp = text("core", FrrDaemon::Ldp).unwrap();
        assert!(
            ldp.contains("label local advertise explicit-null") && !ldp.contains("permit 10.0.3.1"),
            "{ldp}"
        );
        let learns = |name: &str, wave: usize| router(name).waves[wave].required.clone();
        assert_eq!(learns("core", 2), [("10.0.4.1/32".into(), true), ("10.0.5.1/32".into(), true)]);
        assert_eq!(learns("core", 3), []);
        assert_eq!(learns("west", 3), [("10.0.0.0/24".into(), true), ("fd6e:7374::/112".into(), true)]);
        assert!(
            router("east").configuration.contains("interfaces = [\"link3\", \"link0\"]\nmpls = [\"link3\"]")
        );
        assert_eq!(spec.probes.len(), 1);

        // Routers with routing daemons have static routes only to nodes behind an edge.
        let network = Spec::new(plan, &layout, &Default::default());
        let routes = |node: usize| {
            let routes = network.nodes[node].routes.iter().filter(|route| route.destination.is_ipv4());
            routes
                .map(|route| format!("{}/{} {}", route.destination, route.length, route.link))
                .collect::<Vec<_>>()
        };
        assert_eq!(routes(3), Vec::<String>::new());
        assert_eq!(routes(4), ["10.0.0.0/24 0"]);
        assert_eq!(routes(5), ["10.0.1.0/24 1", "10.0.2.0/24 5", "10.0.6.0/24 5"]);
        assert!(network.links.iter().all(|link| link.resolves == matches!(link.index, 3 | 4)));
    }
}
