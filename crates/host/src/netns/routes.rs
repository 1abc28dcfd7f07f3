//! Routes of the main table, and their TCP metrics.

use super::Netlink;
use super::netlink::{Message, NetlinkError, family};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteProtocol,
    RouteScope, RouteType,
};
use std::net::IpAddr;

/// Route to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticRoute<'a> {
    /// Destination: address and prefix length.
    pub destination: (IpAddr, u8),
    /// Next hop, assumed to be reachable on `link` whatever its address (`onlink`); `None` if the destination
    /// is on the link.
    pub gateway: Option<IpAddr>,
    /// Outgoing link.
    pub link: &'a str,
    /// Source address of locally sent packets.
    pub preferred_source: Option<IpAddr>,
    /// Metrics for TCP.
    pub metrics: Metrics,
}

/// Route metrics, as in ip-route(8). `None` keeps the system's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Path MTU in bytes.
    pub mtu: Option<u32>,
    /// Maximum window advertised to the peer, in bytes (`window`).
    pub window: Option<u32>,
    /// Maximum congestion window, in segments (`cwnd lock`).
    pub locked_window: Option<u32>,
    /// Initial congestion window, in segments (`initcwnd`).
    pub initial_window: Option<u32>,
    /// Initial receive window, in segments (`initrwnd`).
    pub initial_receive_window: Option<u32>,
    /// Minimum retransmission timeout, in milliseconds (`rto_min`).
    pub rto_min_ms: Option<u32>,
    /// Request ECN on connections along the route.
    pub ecn: bool,
    /// Kernel's name of the congestion control.
    pub congestion_control: Option<String>,
    /// Priority among routes to the same destination; the lowest wins (`metric`).
    pub rank: Option<u32>,
}

impl Metrics {
    fn attributes(&self) -> Vec<RouteMetric> {
        /// RTAX_FEATURE_ECN of linux/rtnetlink.h.
        const FEATURE_ECN: u32 = 1;
        /// Bit of RTAX_CWND among the locked metrics.
        const LOCK_CWND: u32 = 1 << 7;
        let numbers = [
            self.mtu.map(RouteMetric::Mtu),
            self.window.map(RouteMetric::Window),
            self.locked_window.map(RouteMetric::Cwnd),
            self.locked_window.map(|_| RouteMetric::Lock(LOCK_CWND)),
            self.initial_window.map(RouteMetric::InitCwnd),
            self.initial_receive_window.map(RouteMetric::InitRwnd),
            self.rto_min_ms.map(RouteMetric::RtoMin),
            self.ecn.then_some(RouteMetric::Features(FEATURE_ECN)),
            self.congestion_control.clone().map(RouteMetric::CcAlgo),
        ];
        numbers.into_iter().flatten().collect()
    }
}

impl Netlink {
    /// Adds a route to the main table.
    pub fn add_route(&mut self, route: &StaticRoute<'_>) -> Result<(), NetlinkError> {
        let (destination, prefix_len) = route.destination;
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family(destination),
            destination_prefix_length: prefix_len,
            table: RouteHeader::RT_TABLE_MAIN,
            protocol: RouteProtocol::Static,
            scope: if route.gateway.is_some() { RouteScope::Universe } else { RouteScope::Link },
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        message.attributes = vec![RouteAttribute::Oif(self.index(route.link)?)];
        if prefix_len > 0 {
            message.attributes.push(RouteAttribute::Destination(RouteAddress::from(destination)));
        }
        if let Some(gateway) = route.gateway {
            message.header.flags = RouteFlags::Onlink;
            message.attributes.push(RouteAttribute::Gateway(RouteAddress::from(gateway)));
        }
        if let Some(source) = route.preferred_source {
            message.attributes.push(RouteAttribute::PrefSource(RouteAddress::from(source)));
        }
        message.attributes.extend(route.metrics.rank.map(RouteAttribute::Priority));
        let metrics = route.metrics.attributes();
        if !metrics.is_empty() {
            message.attributes.push(RouteAttribute::Metrics(metrics));
        }
        let action = || {
            let gateway = route.gateway.map_or(String::new(), |gateway| format!(" via {gateway}"));
            format!("add route {destination}/{prefix_len}{gateway} on {}", route.link)
        };
        self.change(Message::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL, action)
    }

    /// Deletes the route to an address and prefix length by a link from the main table.
    pub fn delete_route(&mut self, (to, length): (IpAddr, u8), link: &str) -> Result<(), NetlinkError> {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family(to),
            destination_prefix_length: length,
            table: RouteHeader::RT_TABLE_MAIN,
            scope: RouteScope::NoWhere,
            ..RouteHeader::default()
        };
        message.attributes =
            vec![RouteAttribute::Oif(self.index(link)?), RouteAttribute::Destination(RouteAddress::from(to))];
        self.change(Message::DelRoute(message), 0, || format!("delete route {to}/{length} on {link}"))
    }
}
