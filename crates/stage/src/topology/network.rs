//! Builds the namespaces of a [`Spec`]: one per node, and one for the emulator's ends of all links. File descriptors
//! hold the namespaces; when the last one closes, the kernel removes them with their interfaces.

use super::address::{self, VethSide};
use super::lan::BRIDGE;
use super::spec::{AddressSpec, DeviceSpec, LinkSpec, MulticastSpec, NodeSpec, RouteSpec, Spec};
use netstage_emulator::netem::chain;
use netstage_host::netns::multicast::MulticastRoutes;
use netstage_host::netns::netlink::{VethEnd, VethOptions, create_veth};
use netstage_host::netns::qdiscs::TokenBucket;
use netstage_host::netns::routes::{Metrics, StaticRoute};
use netstage_host::netns::{Namespace, Netlink, ethtool};
use netstage_host::ports::tun::{Tun, TunLayer};
use netstage_host::startup_error::StartupError;
use std::collections::BTreeMap;
use std::io;

/// Size of a full packet, and of the header that the kernel counts with it.
const ETHERNET_MTU: u64 = 1500;
const ETHERNET_HEADER: u64 = 14;
/// Maximum burst of a host's device: ten packets, so that the kernel need not wake for each packet.
const DEVICE_BURST: u32 = 15_140;

/// Namespaces of a network.
#[derive(Debug)]
pub struct EmulatedNetwork {
    /// Namespace of each node, if it is used.
    pub nodes: Vec<Option<Namespace>>,
    /// Namespace of the emulator's ends of the links, named by [`emulator_interface`].
    pub emulator: Namespace,
    /// Emulator's ends of TUN links, by index of the link in the plan.
    pub tuns: BTreeMap<usize, [Tun; 2]>,
    /// Multicast routes of the nodes, which are removed when dropped.
    pub multicast: Vec<MulticastRoutes>,
}

/// Returns the name of a node's interface to a link.
pub fn node_interface(link: usize) -> String {
    format!("link{link}")
}

/// Returns the name of the emulator's interface for one end of a link.
pub fn emulator_interface(link: usize, end: usize) -> String {
    format!("link{link}.{end}")
}

/// Returns the names of the interfaces of a link that the kernel emulates.
pub fn chain_names(link: usize) -> chain::ChainInterfaces {
    chain::ChainInterfaces::new([0, 1].map(|end| emulator_interface(link, end)))
}

impl EmulatedNetwork {
    /// Returns the namespace inode numbers of used nodes.
    pub fn numbers(&self, nodes: &[usize]) -> Result<Vec<u64>, StartupError> {
        let number = |node: &usize| self.nodes[*node].as_ref().expect("a node with a flow is used").number();
        let cannot = |e| StartupError::without_remedy(format!("cannot identify network namespaces: {e}"));
        nodes.iter().map(|node| number(node).map_err(cannot)).collect()
    }

    /// Builds a network.
    pub fn build(spec: &Spec) -> Result<EmulatedNetwork, StartupError> {
        let namespace = || Namespace::new().map_err(|e| broken("create a network namespace", &e));
        let emulator = namespace()?;
        let nodes = spec.nodes.iter().map(|node| node.used.then(namespace).transpose());
        let nodes = nodes.collect::<Result<_, _>>()?;
        let mut network = EmulatedNetwork { nodes, emulator, tuns: BTreeMap::new(), multicast: Vec::new() };
        // The emulator's ends only carry frames and send no packets of their own.
        network.set(&network.emulator, "net.ipv6.conf.default.disable_ipv6", "1")?;
        for link in &spec.links {
            if link.is_tun {
                let tuns = [network.add_tun(link, 0, spec.mtu)?, network.add_tun(link, 1, spec.mtu)?];
                network.tuns.insert(link.index, tuns);
                continue;
            }
            network.add_link(link, spec)?;
            network.add_netems(link, spec.mtu)?;
        }
        for (node, spec) in network.nodes.iter().zip(&spec.nodes) {
            if let Some(namespace) = node {
                network.configure(namespace, spec)?;
            }
        }
        for link in &spec.links {
            network.add_neighbors(link, spec)?;
            network.wait_until_ready(link)?;
        }
        for (node, spec) in network.nodes.iter().zip(&spec.nodes) {
            if let Some(namespace) = node {
                add_routes(namespace, &spec.routes)?;
                network.multicast.extend(multicast_routes(namespace, spec)?);
            }
        }
        Ok(network)
    }

    fn node(&self, index: usize) -> &Namespace {
        self.nodes[index].as_ref().expect("a link's ends are used")
    }

    fn add_link(&self, link: &LinkSpec, spec: &Spec) -> Result<(), StartupError> {
        // Neighbors are configured statically, except where they are resolved.
        let has_circuit = link.ends.iter().any(|end| spec.nodes[*end].circuits.contains(&link.index));
        let resolve_neighbors = link.resolves || has_circuit;
        let options = VethOptions { mtu: spec.mtu, resolve_neighbors, ..VethOptions::default() };
        for (end, &node) in link.ends.iter().enumerate() {
            let (inner, outer) = (node_interface(link.index), emulator_interface(link.index, end));
            let at =
                |namespace, name, side| VethEnd { namespace, name, mac: address::mac(link.index, end, side) };
            let inner_end = at(self.node(node), inner.as_str(), VethSide::Node);
            let outer_end = at(&self.emulator, outer.as_str(), VethSide::Emulator);
            create_veth(inner_end, outer_end, options).map_err(failed)?;
            let device = spec.nodes[node].device;
            for (namespace, name) in [(self.node(node), &inner), (&self.emulator, &outer)] {
                // A host with a rate-limited device leaves the segmentation of super-packets to it, like a real one.
                if device.is_none() || name == &outer {
                    ethtool::disable_offloads(namespace, name).map_err(|e| broken("disable offloads", &e))?;
                }
                Netlink::open(namespace).and_then(|mut n| n.set_up(name)).map_err(failed)?;
            }
            if let Some(device) = device {
                self.limit(node, &inner, device, &spec.nodes[node].name)?;
            }
        }
        Ok(())
    }

    /// Creates one end of a link without link-layer headers.
    fn add_tun(&self, link: &LinkSpec, end: usize, mtu: u32) -> Result<Tun, StartupError> {
        let (namespace, name) = (self.node(link.ends[end]), node_interface(link.index));
        let tun = Tun::create(namespace, &name, TunLayer::Ip).map_err(|error| {
            StartupError::missing_feature(
                format!("link.{}: {error}", link.name),
                "modprobe tun (CONFIG_TUN), with /dev/net/tun readable and writable; or kind = \"ethernet\"",
            )
        })?;
        let mut netlink = Netlink::open(namespace).map_err(failed)?;
        let prepared = netlink.set_mtu(&name, mtu).and_then(|()| netlink.disable_address_generation(&name));
        prepared.and_then(|()| netlink.set_up(&name)).map_err(failed)?;
        Ok(tun)
    }

    /// Limits a node's interface to the rate of its device.
    fn limit(
        &self,
        node: usize,
        interface: &str,
        device: DeviceSpec,
        name: &str,
    ) -> Result<(), StartupError> {
        // The kernel also counts the Ethernet header, so the rate is scaled as for full packets.
        let framed = |bytes: u64| bytes * (ETHERNET_MTU + ETHERNET_HEADER) / ETHERNET_MTU;
        let bucket = TokenBucket {
            rate: framed(device.rate_bps / 8),
            burst: DEVICE_BURST,
            limit: u32::try_from(framed(device.buffer)).unwrap_or(u32::MAX),
        };
        // One packet less than the burst, so that the token bucket need not segment any.
        let super_packet = DEVICE_BURST - (ETHERNET_MTU + ETHERNET_HEADER) as u32;
        let set = Netlink::open(self.node(node)).and_then(|mut netlink| {
            netlink.set_max_super_packet_size(interface, super_packet)?;
            netlink.set_token_bucket(interface, bucket)
        });
        set.map_err(|error| match error.source.raw_os_error() {
            Some(libc::ENOENT) => StartupError::missing_feature(
                format!("node.{name}: this kernel has no token bucket for `device`"),
                "modprobe sch_tbf (CONFIG_NET_SCH_TBF)",
            ),
            _ => failed(error),
        })
    }

    /// Creates the interfaces and netems between the ends of a link that the kernel emulates.
    fn add_netems(&self, link: &LinkSpec, mtu: u32) -> Result<(), StartupError> {
        let Some(directions) = &link.netem else { return Ok(()) };
        let options = VethOptions { mtu, ..VethOptions::default() };
        let names = chain_names(link.index);
        chain::build(&self.emulator, &names, directions, options).map_err(|error| {
            match error.source.raw_os_error() {
                Some(libc::ENOENT | libc::EOPNOTSUPP) => StartupError::missing_feature(
                    format!("link.{}: {error}", link.name),
                    "modprobe sch_netem bridge (CONFIG_NET_SCH_NETEM, CONFIG_BRIDGE); or use netstage's emulator: \
                     --emulator own",
                ),
                _ => failed(error),
            }
        })
    }

    fn configure(&self, namespace: &Namespace, node: &NodeSpec) -> Result<(), StartupError> {
        for (name, value) in &node.settings {
            self.set(namespace, name, value)?;
        }
        let mut netlink = Netlink::open(namespace).map_err(failed)?;
        netlink.set_up("lo").map_err(failed)?;
        if node.is_lan {
            bridge(&mut netlink, node)?;
        }
        for &AddressSpec { address, length, link } in &node.addresses {
            let interface = link.map_or("lo".to_owned(), node_interface);
            netlink.add_address(&interface, address, length).map_err(failed)?;
        }
        Ok(())
    }

    /// Adds static neighbor entries at both ends of a link. PEs resolve their customers, and routers with addresses on
    /// the link resolve each other.
    fn add_neighbors(&self, link: &LinkSpec, spec: &Spec) -> Result<(), StartupError> {
        if link.resolves || link.is_tun {
            return Ok(());
        }
        for (end, &node) in link.ends.iter().enumerate() {
            if spec.nodes[node].circuits.contains(&link.index) {
                continue;
            }
            let mut netlink = Netlink::open(self.node(node)).map_err(failed)?;
            let peer = address::mac(link.index, 1 - end, VethSide::Node);
            for family in address::FAMILIES {
                let neighbor = address::node_address(family, link.ends[1 - end], 0);
                netlink.add_neighbor(&node_interface(link.index), neighbor, peer).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Interfaces drop frames for a moment after they come up.
    fn wait_until_ready(&self, link: &LinkSpec) -> Result<(), StartupError> {
        for (end, &node) in link.ends.iter().enumerate() {
            let near = (self.node(node), node_interface(link.index));
            let far = (&self.emulator, emulator_interface(link.index, end));
            for (namespace, name) in [Some(near), (!link.is_tun).then_some(far)].into_iter().flatten() {
                Netlink::open(namespace).and_then(|mut n| n.wait_until_ready(&name)).map_err(failed)?;
            }
        }
        let middle = link.netem.iter().flat_map(|_| chain_names(link.index).middle);
        for name in middle {
            Netlink::open(&self.emulator).and_then(|mut n| n.wait_until_ready(&name)).map_err(failed)?;
        }
        Ok(())
    }

    fn set(&self, namespace: &Namespace, name: &str, value: &str) -> Result<(), StartupError> {
        match namespace.sysctl(name, value) {
            // A kernel without the setting lacks the feature, too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // /proc/sys is read-only in unprivileged containers.
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Err(
                StartupError::missing_feature(error.to_string(), "in a container: run it with --privileged"),
            ),
            result => result.map_err(|e| broken("configure a node", &e)),
        }
    }
}

/// Creates the bridge that joins all links of a LAN.
fn bridge(netlink: &mut Netlink, lan: &NodeSpec) -> Result<(), StartupError> {
    netlink.create_bridge(BRIDGE).map_err(|error| match error.source.raw_os_error() {
        Some(libc::EOPNOTSUPP) => StartupError::missing_feature(
            format!("node.{}: this kernel has no bridges, which a LAN needs", lan.name),
            "modprobe bridge (CONFIG_BRIDGE)",
        ),
        _ => failed(error),
    })?;
    let links = netlink.links().map_err(failed)?;
    for link in links.iter().filter(|link| link.is_veth) {
        netlink.set_bridge(&link.name, BRIDGE).map_err(failed)?;
    }
    netlink.set_up(BRIDGE).map_err(failed)
}

fn add_routes(namespace: &Namespace, routes: &[RouteSpec]) -> Result<(), StartupError> {
    let mut netlink = Netlink::open(namespace).map_err(failed)?;
    for route in routes {
        let route = StaticRoute {
            destination: (route.destination, route.length),
            gateway: Some(route.gateway),
            link: &node_interface(route.link),
            preferred_source: route.source,
            metrics: Metrics {
                initial_window: route.initial_window,
                rto_min_ms: route.min_rto_ms,
                ecn: route.ecn,
                window: route.window,
                mtu: route.mtu,
                congestion_control: route.congestion_control.clone(),
                ..Metrics::default()
            },
        };
        // The address of a neighbor needs a route like any other.
        netlink.add_route(&route).map_err(failed)?;
    }
    Ok(())
}

/// Adds the multicast routes of a node.
fn multicast_routes(namespace: &Namespace, node: &NodeSpec) -> Result<Vec<MulticastRoutes>, StartupError> {
    let mut all_routes = Vec::new();
    for version_6 in [false, true] {
        let mut routes = node.multicast.iter().filter(|route| route.group.is_ipv6() == version_6).peekable();
        let Some(first) = routes.peek() else { continue };
        let mut kernel_routes =
            MulticastRoutes::open(namespace, first.group).map_err(|e| forwarding_error(node, first, &e))?;
        let mut netlink = Netlink::open(namespace).map_err(failed)?;
        for route in routes {
            let mut index =
                |link: usize| netlink.link(&node_interface(link)).map(|link| link.index).map_err(failed);
            let from = index(route.from)?;
            let to = route.to.iter().map(|link| index(*link)).collect::<Result<Vec<u32>, StartupError>>()?;
            let added = kernel_routes.add(route.source, route.group, from, &to);
            added
                .map_err(|e| broken(&format!("route the group {} at node.{}", route.group, node.name), &e))?;
        }
        all_routes.push(kernel_routes);
    }
    Ok(all_routes)
}

fn forwarding_error(node: &NodeSpec, route: &MulticastSpec, error: &io::Error) -> StartupError {
    if error.raw_os_error() != Some(libc::ENOPROTOOPT) {
        return broken(&format!("forward multicast at node.{}", node.name), error);
    }
    let (version, option) = match route.group.is_ipv6() {
        true => ("IPv6", "CONFIG_IPV6_MROUTE"),
        false => ("IPv4", "CONFIG_IP_MROUTE"),
    };
    StartupError::missing_feature(
        format!("node.{}: this kernel does not forward {version} multicast", node.name),
        format!("use a kernel with {option}, or receivers on the sender's link"),
    )
}

fn failed(error: netstage_host::netns::netlink::NetlinkError) -> StartupError {
    StartupError::without_remedy(error.to_string())
}

fn broken(action: &str, error: &io::Error) -> StartupError {
    StartupError::without_remedy(format!("cannot {action}: {error}"))
}
