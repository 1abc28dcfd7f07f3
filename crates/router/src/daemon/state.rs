//! How a router stands, as it is told to who asks; routes and labels apart, since there may be millions.

use super::forward::Loop;
use crate::counter::{self, Counter};
use crate::fast_path::{FastPath, Total};
use netstage_host::ports::NO_STATION;
use netstage_routing::source::path::{Destination, Meaning, Path};
use netstage_wire::mpls;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Routes or labels that are looked at in one go: packets wait meanwhile.
const CHUNK: usize = 2_048;

/// How a router stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Packets are decided in the kernel.
    pub fast_path: bool,
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
    /// How many routes there are, of all tables.
    pub routes: usize,
    /// How many labels.
    pub labels: usize,
    /// Next routers and other neighbours.
    pub neighbours: Vec<Neighbour>,
    /// What was counted.
    pub counters: Vec<Count>,
    /// Configurations taken, the first included.
    pub configurations: u64,
    /// Configurations refused.
    pub refused_configurations: u64,
    /// Why the last one was refused, if it was.
    pub refusal: String,
}

/// One of its interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The table of what comes there.
    pub table: String,
    /// Labels are taken from there.
    pub mpls: bool,
    /// Why it is of no use at present.
    pub failure: Option<String>,
    /// Why the slow path sends what leaves by it; none where the program in the kernel does.
    pub slow: Option<String>,
    /// Frames for the router that came by it.
    pub received: Traffic,
    /// Frames that left by it.
    pub sent: Traffic,
    /// Frames that wait for its line.
    pub queued: usize,
}

/// Frames, and their bytes from the Ethernet header on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Frames.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl From<counter::Count> for Traffic {
    fn from(counter::Count { packets, bytes }: counter::Count) -> Traffic {
        Traffic { packets, bytes }
    }
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Its table.
    pub table: String,
    /// Its prefix.
    pub prefix: String,
    /// Where it leads, as a line of a file says it.
    pub to: String,
    /// Packets that took it, of those decided in the kernel; unless prefixes are counted, all routes that
    /// lead to the same count together.
    pub packets: Option<u64>,
    /// Their bytes.
    pub bytes: Option<u64>,
}

/// A label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// The label.
    pub label: u32,
    /// What it means, as a line of a file says it.
    pub to: String,
    /// Packets that came with it, of those decided in the kernel.
    pub packets: Option<u64>,
    /// Their bytes.
    pub bytes: Option<u64>,
}

/// A neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// The interface.
    pub interface: String,
    /// Its address.
    pub address: String,
    /// Its station, once that is known.
    pub station: Option<String>,
}

/// A counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Who counted: `kernel`, the fast path, or `program`, the slow one.
    pub path: String,
    /// Its name.
    pub name: String,
    /// How much it matters.
    pub severity: String,
    /// What it means.
    pub meaning: String,
    /// Packets.
    pub packets: u64,
}

/// Which routes are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteFilter {
    /// Of this table only.
    pub table: Option<String>,
    /// Within this prefix.
    pub within: Option<(IpAddr, u8)>,
    /// That hold this address.
    pub holding: Option<IpAddr>,
}

/// Which routes are wanted, from where on.
#[derive(Clone, Debug, Default)]
pub(super) struct RouteQuery {
    pub filter: RouteFilter,
    pub after: Option<RoutePlace>,
}

/// A table, whether it is that of IPv4, and the prefix that was looked at last.
pub(super) type RoutePlace = (u32, bool, Option<(IpAddr, u8)>);

/// Some routes, and from where on there may be more.
#[derive(Debug)]
pub(super) struct RoutePage {
    pub routes: Vec<Route>,
    pub after: Option<RoutePlace>,
}

/// Which labels are wanted.
#[derive(Clone, Debug)]
pub(super) struct LabelQuery {
    pub first: mpls::Label,
    /// None of a greater number.
    pub last: mpls::Label,
}

/// Some labels, and from where on there may be more.
#[derive(Debug)]
pub(super) struct LabelPage {
    pub labels: Vec<Label>,
    pub next: Option<mpls::Label>,
}

impl Loop {
    pub(super) fn state(&self) -> State {
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
            // What the program in the kernel leaves to the slow path has come by it, too.
            let received = fast_path.filter(served).map(|path| path.received(number));
            let sent = fast_path.map_or(counter::Count::default(), |path| path.sent(number));
            let failure = match &self.seen[place] {
                None => Some("the interface is gone".to_owned()),
                Some(seen) if !seen.is_up => Some("its link is down".to_owned()),
                Some(_) => self.slow_path.failure(number).map(ToString::to_string),
            };
            Interface {
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
        let neighbours = self.fib.neighbours().map(|((interface, address), station)| Neighbour {
            interface: self.interface(interface),
            address: address.to_string(),
            station: station.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":")),
        });
        State {
            fast_path: fast_path.is_some(),
            interfaces: interfaces.collect(),
            routes: tables.route_count(),
            labels: self.fib.label_count(),
            neighbours: neighbours.collect(),
            counters: self.counts(),
            ..State::default()
        }
    }

    fn why_slow(&self, number: u32) -> &'static str {
        match () {
            () if self.router.interfaces[number as usize].shaping.is_some() => "its frames wait for its line",
            () if self.seen[number as usize].as_ref().is_some_and(|seen| seen.mac == NO_STATION) => {
                "its packets have no header of Ethernet"
            }
            () if self.egress.is_lost(number) => {
                "what is redirected there is lost: ethtool -K INTERFACE gro on at the other end"
            }
            () => "its driver takes no redirected frames, or that is not known yet",
        }
    }

    fn counts(&self) -> Vec<Count> {
        let count = |path: &str, name: &str, severity: &str, meaning: &str, packets| Count {
            path: path.into(),
            name: name.into(),
            severity: severity.into(),
            meaning: meaning.into(),
            packets,
        };
        let mut counts = Vec::new();
        if let Some(fast_path) = self.slow_path.tables().fast_path() {
            counts.extend(Total::ALL.iter().map(|total| {
                let packets = fast_path.total(*total).packets;
                count("kernel", total.name(), total.severity().name(), total.meaning(), packets)
            }));
        }
        counts.extend(Counter::ALL.iter().map(|counter| {
            let packets = self.slow_path.counters().get(*counter);
            count("program", counter.name(), counter.severity().name(), counter.meaning(), packets)
        }));
        let meaning = "Routes and labels there is no room for at present, or that cannot be.";
        counts.push(count("program", "refused_changes", "error", meaning, self.refused.len() as u64));
        counts
    }

    /// Some of the routes that are wanted.
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
        for (looked_at, (prefix, target)) in routes.enumerate() {
            if looked_at == CHUNK {
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

    fn route(&self, table: u32, (address, length): (IpAddr, u8), target: u32) -> Option<Route> {
        let count = self.slow_path.tables().fast_path().and_then(|path| path.of_target(target));
        Some(Route {
            table: self.table(table),
            prefix: format!("{address}/{length}"),
            to: self.destination(self.fib.destination(target)?),
            packets: count.map(|count| count.packets),
            bytes: count.map(|count| count.bytes),
        })
    }

    /// Some of the labels that are wanted.
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
            page.labels.push(Label {
                label: label.number(),
                to: match meaning {
                    Meaning::Forward(to) => self.destination(&to),
                    Meaning::Pop { table: 0 } => "pop".into(),
                    Meaning::Pop { table } => format!("pop table {}", self.table(table)),
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
        let path = |path: &Path| {
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
    /// Whether any route of a table and version can be wanted.
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
