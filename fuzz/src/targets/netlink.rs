//! Messages about routes, labels and neighbors, as sent by the kernel and routing daemons, from arbitrary
//! bytes: accepted or rejected, without changing anything else.

use netstage_core::forward::lpm::LpmShape;
use netstage_core::forward::{IncomingInterface, TunnelModel};
use netstage_host::netns::lookup::KernelNeighbor;
use netstage_host::netns::route_monitor::{RouteNotification, parse_notifications};
use netstage_router::fib::{Fib, FibInterface};
use netstage_router::tables::{Sizes, Tables};
use netstage_routing::source::RankedRoutes;
use netstage_routing::source::route::{KernelIds, ParsedRoute, parse};

pub fn run(bytes: &[u8]) {
    let names = KernelIds {
        interfaces: (1..4).map(|index| (index, index - 1)).collect(),
        loopback: Some(0),
        tables: [(254, 0), (255, 0), (0, 0), (10, 1)].into(),
    };
    let incoming = IncomingInterface { mpls: true, ..IncomingInterface::default() };
    let interface = |number| FibInterface { mac: [2, 0, 0, 0, 0, number], mtu: 1500, incoming };
    let shape = LpmShape { first: 8, rows: 8 };
    let sizes = Sizes { tables: vec![(shape, shape); 2], targets: 4, hops: 4 };
    let mut tables = Tables::new(sizes, vec![incoming; 3], 1, None);
    let mut fib = Fib::new((0..3).map(interface).collect(), 2, TunnelModel::Uniform);
    let mut ranked = RankedRoutes::default();
    for news in parse_notifications(bytes) {
        let change = match news {
            RouteNotification::Route(message, is_new) => match parse(&message, &names) {
                Some(ParsedRoute::Route(prefix, rank, to)) => {
                    ranked.route(prefix, rank, to.filter(|_| is_new))
                }
                Some(ParsedRoute::Label(label, meaning)) => ranked.label(label, is_new.then_some(meaning)),
                None => None,
            },
            RouteNotification::Neighbor(link, address, station) => {
                let mac = match station {
                    KernelNeighbor::Reachable(mac) | KernelNeighbor::Stale(mac) => Some(mac),
                    KernelNeighbor::Unknown => None,
                };
                if let Some(number) = names.interfaces.get(&link) {
                    fib.set_neighbor(&mut tables, (*number, address), mac);
                }
                None
            }
            RouteNotification::Link | RouteNotification::Overrun => None,
        };
        if let Some(change) = change {
            // The tables are small, so errors are expected.
            let _ = fib.apply(&mut tables, &change);
        }
    }
    // After withdrawal, only neighbors remain.
    for change in ranked.replace(RankedRoutes::default()) {
        fib.apply(&mut tables, &change).expect("a withdrawal needs no room");
    }
    assert_eq!((tables.route_count(), fib.label_count()), (0, 0));
}
