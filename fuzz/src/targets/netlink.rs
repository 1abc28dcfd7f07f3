//! Messages about routes, labels and neighbors, as sent by the kernel and routing daemons, from arbitrary
//! bytes: accepted or rejected, without changing anything else.

use netstage_core::forward::Model;
use netstage_core::forward::lpm::Shape;
use netstage_host::netns::feed::{Heard, heard};
use netstage_host::netns::lookup::Station;
use netstage_router::fib::{Fib, Interface};
use netstage_router::tables::{Sizes, Tables};
use netstage_routing::source::Ranked;
use netstage_routing::source::route::{Names, Told, told};

pub fn run(bytes: &[u8]) {
    let names = Names {
        interfaces: (1..4).map(|index| (index, index - 1)).collect(),
        loopback: Some(0),
        tables: [(254, 0), (255, 0), (0, 0), (10, 1)].into(),
    };
    let interface = |number| Interface { mac: [2, 0, 0, 0, 0, number], mtu: 1500, table: 0, mpls: true };
    let shape = Shape { first: 8, rows: 8 };
    let sizes = Sizes { tables: vec![(shape, shape); 2], targets: 4, hops: 4 };
    let mut tables = Tables::new(sizes, vec![0; 3], 1, None);
    let mut fib = Fib::new((0..3).map(interface).collect(), 2, Model::Uniform);
    let mut ranked = Ranked::default();
    for news in heard(bytes) {
        let change = match news {
            Heard::Route(message, is_new) => match told(&message, &names) {
                Some(Told::Route(prefix, rank, to)) => ranked.route(prefix, rank, to.filter(|_| is_new)),
                Some(Told::Label(label, meaning)) => ranked.label(label, is_new.then_some(meaning)),
                None => None,
            },
            Heard::Neighbour(link, address, station) => {
                let mac = match station {
                    Station::Known(mac) | Station::Stale(mac) => Some(mac),
                    Station::Unknown => None,
                };
                if let Some(number) = names.interfaces.get(&link) {
                    fib.set_neighbour(&mut tables, (*number, address), mac);
                }
                None
            }
            Heard::Link | Heard::Overrun => None,
        };
        if let Some(change) = change {
            // The tables are small, so errors are expected.
            let _ = fib.apply(&mut tables, &change);
        }
    }
    // After withdrawal, only neighbors remain.
    for change in ranked.replace(Ranked::default()) {
        fib.apply(&mut tables, &change).expect("a withdrawal needs no room");
    }
    assert_eq!((tables.route_count(), fib.label_count()), (0, 0));
}
