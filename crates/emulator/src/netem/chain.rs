//! The interfaces a link's packets pass between two nodes, where the kernel emulates it.
//!
//! ```text
//! node a ── near0 ═ middle0 ── middle1 ═ near1 ── node b        ── veth pair   ═ bridge
//! ```
//! From a to b the line is the netem of `middle0`, the way that of `near1`; back it is
//! `middle1` and `near0`. Neither is in a host's own namespace: there the kernel would tell TCP
//! of a drop at once, and let it have few packets in the queue, which no line does.

use super::Stages;
use netstage_host::netns::netlink::{Error, VethEnd, VethOptions, create_veth};
use netstage_host::netns::{Namespace, Netlink, ethtool};
use std::io;

/// Names of a link's interfaces beside its nodes, by end.
#[derive(Clone, Debug)]
pub struct Names {
    /// The other ends of the nodes' interfaces.
    pub near: [String; 2],
    /// The two ends of the pair between the bridges.
    pub middle: [String; 2],
    /// The bridges.
    pub bridges: [String; 2],
}

impl Names {
    /// Of a link whose `near` interfaces are named so.
    pub fn new(near: [String; 2]) -> Names {
        let with = |last: &str| [0, 1].map(|end: usize| format!("{}{last}", near[end]));
        Names { middle: with("m"), bridges: with("b"), near }
    }

    /// The interface whose netem is a direction's line.
    pub fn line(&self, direction: usize) -> &str {
        &self.middle[direction]
    }

    /// The interface whose netem is a direction's way.
    pub fn way(&self, direction: usize) -> &str {
        &self.near[1 - direction]
    }

    /// All interfaces that frames leave by.
    pub fn carriers(&self) -> impl Iterator<Item = &str> {
        self.near.iter().chain(&self.middle).map(String::as_str)
    }
}

/// Joins a link's `near` interfaces, which are there and up, by everything between them.
pub fn build(
    namespace: &Namespace,
    names: &Names,
    directions: &[Stages; 2],
    options: VethOptions,
) -> Result<(), Error> {
    let end = |end: usize| VethEnd {
        namespace,
        name: &names.middle[end],
        // Nobody sends to them.
        mac: [2, 0, 0, 0, 0, end as u8],
    };
    create_veth(end(0), end(1), options)?;
    let mut netlink = Netlink::open(namespace)?;
    for end in [0, 1] {
        let (bridge, middle) = (&names.bridges[end], &names.middle[end]);
        ethtool::offloads_off(namespace, middle).map_err(offloads(middle))?;
        netlink.create_bridge(bridge)?;
        for link in [&names.near[end], middle] {
            netlink.set_bridge(link, bridge)?;
        }
        netlink.set_up(bridge)?;
        netlink.set_up(middle)?;
    }
    for (direction, Stages { line, way }) in directions.iter().enumerate() {
        netlink.set_queue_discipline(names.line(direction), "netem", line.options())?;
        netlink.set_queue_discipline(names.way(direction), "netem", way.options())?;
    }
    Ok(())
}

fn offloads(link: &str) -> impl FnOnce(io::Error) -> Error {
    let action = format!("switch offloads of {link} off");
    move |source| Error { action, source }
}
