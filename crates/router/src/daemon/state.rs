//! State of a router as reported to clients. Routes and labels are separate, since there may be millions.

use super::forward::RouterForwardingLoop;
use super::rsvp::Rsvp;
use crate::counter::{self, Counter};
use crate::fast_path::{FastPath, Total};
use netstage_host::ports::NO_MAC;
use netstage_routing::source::path::{Destination, LabelAction, RoutePath};
use netstage_wire::mpls;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};

/// Routes or labels examined at a time; packets wait meanwhile.
const CHUNK: usize = 2_048;

/// State of a router.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterState {
    /// An XDP program forwards packets.
    pub fast_path: bool,
    /// Interfaces of the router.
    pub interfaces: Vec<RouterInterface>,
    /// Number of routes in all tables.
    pub routes: usize,
    /// Number of labels.
    pub labels: usize,
    /// Next-hop and other neighbors.
    pub neighbors: Vec<RouterNeighbor>,
    /// Counters of both paths, of RSVP-TE and of BFD.
    pub counters: Vec<CounterValue>,
    /// LSPs that begin at the router.
    #[serde(default)]
    pub tunnels: Vec<TunnelState>,
    /// LSPs that begin, pass or end at the router.
    #[serde(default)]
    pub lsps: Vec<LspState>,
    /// BFD sessions.
    #[serde(default)]
    pub bfd: Vec<BfdSessionState>,
    /// Loop-free alternates.
    #[serde(default)]
    pub alternates: AlternatesState,
    /// Number of configurations applied, including the first.
    pub configurations: u64,
    /// Number of configurations rejected.
    pub refused_configurations: u64,
    /// Error of the last rejected configuration; empty after a successful one.
    pub refusal: String,
}

/// State of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterInterface {
    /// Name of the interface.
    pub name: String,
    /// Routing table of packets from the interface.
    pub table: String,
    /// Labels are accepted from the interface.
    pub mpls: bool,
    /// Error, if the interface does not work.
    pub failure: Option<String>,
    /// Reason why only the slow path sends to the interface; `None` if the XDP program does.
    pub slow: Option<String>,
    /// Frames received for the router.
    pub received: FrameTotals,
    /// Frames sent.
    pub sent: FrameTotals,
    /// Number of frames queued in the shaper.
    pub queued: usize,
}

/// Number of paths to neighbors that have a loop-free alternate. A path is that of all packets with some label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlternatesState {
    /// Paths with an alternate.
    pub paths: usize,
    /// Paths whose alternate avoids the neighbor, not only the link to it.
    pub without_neighbor: usize,
}

/// Frames and their bytes, including the Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameTotals {
    /// Number of frames.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl From<counter::PacketCount> for FrameTotals {
    fn from(counter::PacketCount { packets, bytes }: counter::PacketCount) -> FrameTotals {
        FrameTotals { packets, bytes }
    }
}

/// Route in a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteState {
    /// Name of the table.
    pub table: String,
    /// Destination prefix.
    pub prefix: String,
    /// Destination of the packets, in the syntax of the file of routes.
    pub to: String,
    /// Packets forwarded by the XDP program. Unless prefixes are counted, routes with equal destinations
    /// share one counter.
    pub packets: Option<u64>,
    /// Bytes of these packets.
    pub bytes: Option<u64>,
}

/// Assigned label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelState {
    /// Label value.
    pub label: u32,
    /// Meaning of the label, in the syntax of the file of routes.
    pub to: String,
    /// Packets received with the label by the XDP program.
    pub packets: Option<u64>,
    /// Bytes of these packets.
    pub bytes: Option<u64>,
}

/// Neighbor on an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterNeighbor {
    /// Name of the interface.
    pub interface: String,
    /// IP address.
    pub address: String,
    /// MAC address, once known.
    pub mac: Option<String>,
}

/// Value of a counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterValue {
    /// Part that counts: `kernel` (fast path), `program` (slow path), `rsvp` or `bfd`.
    pub path: String,
    /// Name of the counter.
    pub name: String,
    /// Severity of the event.
    pub severity: String,
    /// Meaning of the counter.
    pub meaning: String,
    /// Number of packets.
    pub packets: u64,
}

impl CounterValue {
    pub(super) fn new(path: &str, name: &str, severity: &str, meaning: &str, packets: u64) -> CounterValue {
        CounterValue {
            path: path.into(),
            name: name.into(),
            severity: severity.into(),
            meaning: meaning.into(),
            packets,
        }
    }
}

/// LSP that begins at the router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelState {
    /// Name.
    pub name: String,
    /// Tunnel ID.
    pub number: u16,
    /// Router ID of the last router.
    pub to: Ipv4Addr,
    /// ID of the LSP in use, if one is.
    pub lsp: Option<u32>,
    /// Next router.
    pub via: Option<Ipv4Addr>,
    /// Label of the next router.
    pub label: Option<u32>,
    /// Reason why the LSP could not be set up.
    pub failure: Option<String>,
}

/// LSP at the router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LspState {
    /// Router ID of the last router.
    pub to: Ipv4Addr,
    /// Tunnel ID.
    pub tunnel: u32,
    /// Router ID of the first router.
    pub from: Ipv4Addr,
    /// LSP ID.
    pub lsp: u32,
    /// Router before; `None` at the first router.
    pub upstream: Option<Ipv4Addr>,
    /// Next router; `None` at the last router.
    pub downstream: Option<Ipv4Addr>,
    /// The LSP is reserved from here on.
    pub is_reserved: bool,
    /// The next router has failed, and packets take the bypass LSP to it.
    #[serde(default)]
    pub is_repaired: bool,
    /// Bandwidth that is reserved, or requested before.
    pub bandwidth_bps: u64,
    /// Label of this router.
    pub incoming: Option<u32>,
    /// Label of the next router.
    pub outgoing: Option<u32>,
}

/// BFD session with a neighbor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BfdSessionState {
    /// Name of the interface.
    pub interface: String,
    /// Address of the neighbor.
    pub neighbor: String,
    /// `up`, `init`, `down` or `disabled`.
    pub state: String,
    /// Reason why it is not up; `None` while up, and before it was up for the first time.
    pub reason: Option<String>,
    /// Mean interval of sent packets, µs; `None` if the neighbor requests none.
    pub interval_us: Option<u64>,
    /// Time without a packet after which the neighbor is down, µs; `None` while none has arrived.
    pub detection_us: Option<u64>,
}

/// Filter for routes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteFilter {
    /// Only routes of this table.
    pub table: Option<String>,
    /// Only routes within this prefix.
    pub within: Option<(IpAddr, u8)>,
    /// Only routes that contain this address.
    pub holding: Option<IpAddr>,
}

/// Request for a page of routes.
#[derive(Clone, Debug, Default)]
pub(super) struct RouteQuery {
    pub filter: RouteFilter,
    pub after: Option<RoutePosition>,
}

/// Position in the routes: table, whether IPv4, and the last prefix examined.
pub(super) type RoutePosition = (u32, bool, Option<(IpAddr, u8)>);

/// Page of routes, and the position of the next page.
#[derive(Debug)]
pub(super) struct RoutePage {
    pub routes: Vec<RouteState>,
    pub after: Option<RoutePosition>,
}

/// Request for a page of labels.
#[derive(Clone, Debug)]
pub(super) struct LabelQuery {
    pub first: mpls::LabelValue,
    /// Highest label value.
    pub last: mpls::LabelValue,
}

/// Page of labels, and the first label of the next page.
#[derive(Debug)]
pub(super) struct LabelPage {
    pub labels: Vec<LabelState>,
    pub next: Option<mpls::LabelValue>,
}

impl RouterForwardingLoop {
    pub(super) fn state(&self) -> RouterState {
        let tables = self.slow_path.tables();
        let fast_path = tables.fast_path().filter(|fast_path| fast_path.attached().next().is_some());
        let named =
            self.router.interfaces.iter().enumerate().filter(|(_, interface)| !interface.name.is_empty());
        let interfaces = named.map(|(place, interface)| {
            let number = place as u32;
            let slow = match (fast_path, tables.is_slow(number)) {
                (Some(_), true) => Some(self.why_slow(number).to_owned()),
                _ => None,
            };
            let served = |path: &&FastPath| path.attached().any(|(served, _)| served == number);
            // The fast path's count includes the frames it passed to the slow path.
            let received = fast_path.filter(served).map(|path| path.received(number));
            let sent = fast_path.map_or(counter::PacketCount::default(), |path| path.sent(number));
            let failure = match &self.interface_states[place] {
                None => Some("the interface is gone".to_owned()),
                Some(seen) if !seen.is_up => Some("the link is down".to_owned()),
                Some(_) => self.slow_path.failure(number).map(ToString::to_string),
            };
            RouterInterface {
                name: interface.name.clone(),
                table: self.table(interface.table as u32),
                mpls: interface.mpls,
                failure,
                slow,
                received: received.unwrap_or_else(|| self.slow_path.received(number)).into(),
                sent: (sent + self.slow_path.sent(number)).into(),
                queued: self.slow_path.queued(number),
            }
        });
        let neighbors = self.fib.neighbors().map(|((interface, address), station)| RouterNeighbor {
            interface: self.interface(interface),
            address: address.to_string(),
            mac: station.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":")),
        });
        let (paths, without_neighbor) = self.fib.alternate_counts();
        RouterState {
            fast_path: fast_path.is_some(),
            alternates: AlternatesState { paths, without_neighbor },
            interfaces: interfaces.collect(),
            routes: tables.route_count(),
            labels: self.fib.label_count(),
            neighbors: neighbors.collect(),
            counters: self.counts(),
            tunnels: self.rsvp.as_ref().map_or_else(Vec::new, Rsvp::tunnels),
            ..RouterState::default()
        }
    }

    fn why_slow(&self, number: u32) -> &'static str {
        match () {
            () if self.router.interfaces[number as usize].shaping.is_some() => "the interface is shaped",
            () if self.interface_states[number as usize].as_ref().is_some_and(|seen| seen.mac == NO_MAC) => {
                "its packets have no Ethernet header"
            }
            () if self.egress.is_lost(number) => {
                "redirected frames are lost; at the other end of the veth: ethtool -K INTERFACE gro on"
            }
            () => "its driver does not accept redirected frames, or has not been probed yet",
        }
    }

    fn counts(&self) -> Vec<CounterValue> {
        let mut counts = Vec::new();
        if let Some(fast_path) = self.slow_path.tables().fast_path() {
            counts.extend(Total::ALL.iter().map(|total| {
                let packets = fast_path.total(*total).packets;
                CounterValue::new("kernel", total.name(), total.severity().name(), total.meaning(), packets)
            }));
        }
        counts.extend(Counter::ALL.iter().map(|counter| {
            let packets = self.slow_path.counters().get(*counter);
            CounterValue::new(
                "program",
                counter.name(),
                counter.severity().name(),
                counter.meaning(),
                packets,
            )
        }));
        let meaning = "Routes and labels rejected because a table is full or they are invalid.";
        counts.push(CounterValue::new(
            "program",
            "refused_changes",
            "error",
            meaning,
            self.refused.len() as u64,
        ));
        counts
    }

    /// Returns a page of matching routes.
    pub(super) fn routes(&self, query: &RouteQuery) -> RoutePage {
        let tables = self.slow_path.tables();
        let (table, is_v4, mut last) = query.after.unwrap_or((0, true, None));
        let next = if is_v4 { (table, false) } else { (table + 1, true) };
        let mut page = RoutePage { routes: Vec::new(), after: None };
        if table as usize >= self.router.tables.len() {
            return page;
        }
        let is_wanted = query.filter.is_of(&self.table(table), is_v4);
        let routes = tables.routes_after(table, is_v4, last).take_while(|_| is_wanted);
        for (examined, (prefix, target)) in routes.enumerate() {
            if examined == CHUNK {
                page.after = Some((table, is_v4, last));
                return page;
            }
            last = Some(prefix);
            if query.filter.wants(prefix) {
                page.routes.extend(self.route(table, prefix, target));
            }
        }
        page.after = Some((next.0, next.1, None));
        page
    }

    fn route(&self, table: u32, (address, length): (IpAddr, u8), target: u32) -> Option<RouteState> {
        let count = self.slow_path.tables().fast_path().and_then(|path| path.of_target(target));
        Some(RouteState {
            table: self.table(table),
            prefix: format!("{address}/{length}"),
            to: self.destination(self.fib.destination(target)?),
            packets: count.map(|count| count.packets),
            bytes: count.map(|count| count.bytes),
        })
    }

    /// Returns a page of labels.
    pub(super) fn labels(&self, query: &LabelQuery) -> LabelPage {
        let mut page = LabelPage { labels: Vec::new(), next: None };
        for (label, meaning) in
            self.fib.labels_from(query.first).take_while(|(label, _)| *label <= query.last)
        {
            if page.labels.len() == CHUNK {
                page.next = Some(label);
                break;
            }
            let count = self.slow_path.tables().fast_path().and_then(|path| path.of_label(label));
            page.labels.push(LabelState {
                label: label.number(),
                to: match meaning {
                    LabelAction::Forward(to) => self.destination(&to),
                    LabelAction::Pop { table: 0 } => "pop".into(),
                    LabelAction::Pop { table } => format!("pop table {}", self.table(table)),
                },
                packets: count.map(|count| count.packets),
                bytes: count.map(|count| count.bytes),
            });
        }
        page
    }

    fn interface(&self, number: u32) -> String {
        self.router.interfaces[number as usize].name.clone()
    }

    fn table(&self, number: u32) -> String {
        self.router.tables[number as usize].name.clone()
    }

    fn destination(&self, destination: &Destination) -> String {
        let path = |path: &RoutePath| {
            let via = path.via.map_or(String::new(), |via| format!("via {via} "));
            let labels: Vec<String> = path.labels.iter().map(|label| label.number().to_string()).collect();
            let push = if labels.is_empty() { String::new() } else { format!(" push {}", labels.join("/")) };
            format!("{via}dev {}{push}", self.interface(path.interface))
        };
        match destination {
            Destination::Local => "local".into(),
            Destination::Discard => "discard".into(),
            Destination::Paths(paths) => paths.iter().map(path).collect::<Vec<_>>().join(" or "),
        }
    }
}

impl RouteFilter {
    /// Returns whether any route of a table and IP version can match.
    fn is_of(&self, table: &str, is_v4: bool) -> bool {
        let is_version = |address: &IpAddr| address.is_ipv4() == is_v4;
        self.table.as_ref().is_none_or(|wanted| wanted == table)
            && self.within.as_ref().is_none_or(|(address, _)| is_version(address))
            && self.holding.as_ref().is_none_or(is_version)
    }

    fn wants(&self, prefix: (IpAddr, u8)) -> bool {
        use crate::fib::holds;
        self.within.is_none_or(|within| prefix.1 >= within.1 && holds(within, prefix.0))
            && self.holding.is_none_or(|address| holds(prefix, address))
    }
}
