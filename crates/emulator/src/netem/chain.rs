//! Interfaces between the two nodes of a link that the kernel emulates.
//!
//! ```text
//! node a ── near0 ═ middle0 ── middle1 ═ near1 ── node b        ── veth pair   ═ bridge
//! ```
//! From a to b, the netem of `middle0` emulates the line and that of `near1` the propagation; from b to a, `middle1`
//! and `near0`. No netem is in the namespace of a host: there the kernel would report drops to TCP immediately and
//! limit the packets that TCP has in the queue, unlike a real line.

use super::NetemStages;
use netstage_host::netns::netlink::{NetlinkError, VethEnd, VethOptions, create_veth};
use netstage_host::netns::{Namespace, Netlink, ethtool};
use std::io;

/// Names of the interfaces of a link outside its nodes, by end.
#[derive(Clone, Debug)]
pub struct ChainInterfaces {
    /// Peers of the nodes' interfaces.
    pub near: [String; 2],
    /// Ends of the veth pair between the bridges.
    pub middle: [String; 2],
    /// Bridges.
    pub bridges: [String; 2],
}

impl ChainInterfaces {
    /// Derives the names from those of the `near` interfaces.
    pub fn new(near: [String; 2]) -> ChainInterfaces {
        let with_suffix = |suffix: &str| [0, 1].map(|end: usize| format!("{}{suffix}", near[end]));
        ChainInterfaces { middle: with_suffix("m"), bridges: with_suffix("b"), near }
    }

    /// Returns the interface whose netem emulates the line of a direction.
    pub fn line(&self, direction: usize) -> &str {
        &self.middle[direction]
    }

    /// Returns the interface whose netem emulates the propagation of a direction.
    pub fn propagation(&self, direction: usize) -> &str {
        &self.near[1 - direction]
    }

    /// Returns all interfaces that send frames.
    pub fn carriers(&self) -> impl Iterator<Item = &str> {
        self.near.iter().chain(&self.middle).map(String::as_str)
    }
}

/// Creates the bridges, interfaces and netems between the `near` interfaces, which must exist and be up.
pub fn build(
    namespace: &Namespace,
    names: &ChainInterfaces,
    directions: &[NetemStages; 2],
    options: VethOptions,
) -> Result<(), NetlinkError> {
    let end = |end: usize| VethEnd {
        namespace,
        name: &names.middle[end],
        // No frame is addressed to these interfaces.
        mac: [2, 0, 0, 0, 0, end as u8],
    };
    create_veth(end(0), end(1), options)?;
    let mut netlink = Netlink::open(namespace)?;
    for end in [0, 1] {
        let (bridge, middle) = (&names.bridges[end], &names.middle[end]);
        ethtool::disable_offloads(namespace, middle).map_err(offload_error(middle))?;
        netlink.create_bridge(bridge)?;
        for link in [&names.near[end], middle] {
            netlink.set_bridge(link, bridge)?;
        }
        netlink.set_up(bridge)?;
        netlink.set_up(middle)?;
    }
    for (direction, NetemStages { line, way }) in directions.iter().enumerate() {
        netlink.set_queue_discipline(names.line(direction), "netem", line.options())?;
        netlink.set_queue_discipline(names.propagation(direction), "netem", way.options())?;
    }
    Ok(())
}

fn offload_error(link: &str) -> impl FnOnce(io::Error) -> NetlinkError {
    let action = format!("disable the offloads of {link}");
    move |source| NetlinkError { action, source }
}
