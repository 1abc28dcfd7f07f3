//! How a router stands, as it is told to who asks.

use crate::ports::af_packet::AfPacket;
use crate::router::counter::Counter;
use crate::router::fast_path::Total;
use crate::router::fib::{Destination, Fib, Meaning, Path};
use crate::router::slow_path::SlowPath;
use netstage_scenario::router::Router;
use serde::{Deserialize, Serialize};

/// How a router stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Packets are decided in the kernel.
    pub fast_path: bool,
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
    /// Routes of all tables.
    pub routes: Vec<Route>,
    /// Labels.
    pub labels: Vec<Label>,
    /// Next routers and other neighbours.
    pub neighbours: Vec<Neighbour>,
    /// What was counted.
    pub counters: Vec<Count>,
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
    /// Packets that took it, of those decided in the kernel; all routes that lead to the same count together.
    pub packets: Option<u64>,
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

impl State {
    pub(super) fn of(router: &Router, slow_path: &SlowPath<AfPacket>, fib: &Fib, refused: u64) -> State {
        let tables = slow_path.tables();
        let name = |interface: u32| router.interfaces[interface as usize].name.clone();
        let table = |number: u32| router.tables[number as usize].name.clone();
        let fast_path = tables.fast_path();
        let interfaces = router.interfaces.iter().enumerate().map(|(number, interface)| Interface {
            name: interface.name.clone(),
            table: table(interface.table as u32),
            mpls: interface.mpls,
            failure: slow_path.failure(number as u32).map(ToString::to_string),
        });
        let routes = tables.routes().filter_map(|(number, (address, length), target)| {
            Some(Route {
                table: table(number),
                prefix: format!("{address}/{length}"),
                to: destination(fib.destination(target)?, &name),
                packets: fast_path.and_then(|path| path.of_target(target)).map(|count| count.packets),
            })
        });
        let labels = fib.labels().map(|(label, meaning)| Label {
            label: label.number(),
            to: match meaning {
                Meaning::Forward(to) => destination(&to, &name),
                Meaning::Pop { table: 0 } => "pop".into(),
                Meaning::Pop { table: number } => format!("pop table {}", table(number)),
            },
            packets: fast_path.and_then(|path| path.of_label(label)).map(|count| count.packets),
        });
        let neighbours = fib.neighbours().map(|((interface, address), station)| Neighbour {
            interface: name(interface),
            address: address.to_string(),
            station: station.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":")),
        });
        let mut counters = Vec::new();
        for total in Total::ALL.iter().filter(|_| fast_path.is_some()) {
            let packets = fast_path.map_or(0, |path| path.total(*total).packets);
            counters.push(count("kernel", total.name(), total.severity().name(), total.meaning(), packets));
        }
        for counter in Counter::ALL {
            let packets = slow_path.counters().get(*counter);
            counters.push(count(
                "program",
                counter.name(),
                counter.severity().name(),
                counter.meaning(),
                packets,
            ));
        }
        counters.push(count(
            "program",
            "refused_changes",
            "error",
            "A route or label there was no room for.",
            refused,
        ));
        State {
            fast_path: fast_path.is_some(),
            interfaces: interfaces.collect(),
            routes: routes.collect(),
            labels: labels.collect(),
            neighbours: neighbours.collect(),
            counters,
        }
    }
}

fn count(path: &str, name: &str, severity: &str, meaning: &str, packets: u64) -> Count {
    Count {
        path: path.into(),
        name: name.into(),
        severity: severity.into(),
        meaning: meaning.into(),
        packets,
    }
}

fn destination(destination: &Destination, name: &dyn Fn(u32) -> String) -> String {
    let path = |path: &Path| {
        let via = path.via.map_or(String::new(), |via| format!("via {via} "));
        let labels: Vec<String> = path.labels.iter().map(|label| label.number().to_string()).collect();
        let push = if labels.is_empty() { String::new() } else { format!(" push {}", labels.join("/")) };
        format!("{via}dev {}{push}", name(path.interface))
    };
    match destination {
        Destination::Local => "local".into(),
        Destination::Discard => "discard".into(),
        Destination::Paths(paths) => paths.iter().map(path).collect::<Vec<_>>().join(" or "),
    }
}
