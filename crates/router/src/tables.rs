//! Routes, labels and hops of a router, for both paths: whatever is changed here is changed for the
//! program in the kernel at once.

use super::fast_path::{Capacity, FastPath};
use super::layout::ROW;
pub use super::layout::Stations;
use netstage_core::forward::lpm::{Full, Lpm, Memory, Shape, own_memory};
use netstage_core::forward::{Hop, Incoming, Packet, Reserved, Router, Table, Target, Verdict};
use netstage_host::ports::kernel::Mapping;
use netstage_wire::mpls::Label;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// How large the tables are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Of each table of routes, IPv4 and IPv6. Their first rows take 8, 16 or 24 bits.
    pub tables: Vec<(Shape, Shape)>,
    /// Targets.
    pub targets: usize,
    /// Hops.
    pub hops: usize,
}

impl Sizes {
    /// What the program in the kernel has to hold.
    pub fn capacity(&self) -> Capacity {
        let rows = self.tables.iter().map(|(v4, v6)| rows(*v4) + rows(*v6)).sum();
        Capacity { rows, tables: self.tables.len(), targets: self.targets, hops: self.hops }
    }
}

/// Rows a table's memory takes.
fn rows(shape: Shape) -> usize {
    shape.words() / ROW
}

/// Where the routes of one table and version stand.
#[derive(Debug)]
struct Rows(Place);

#[derive(Debug)]
enum Place {
    /// In memory of the process's own.
    Own(Vec<AtomicU32>),
    /// In a map of the kernel's, so many words from there on.
    Shared { map: Arc<Mapping>, start: usize, words: usize },
}

impl Memory for Rows {
    #[inline]
    fn words(&self) -> &[AtomicU32] {
        match &self.0 {
            Place::Own(words) => words,
            Place::Shared { map, start, words } => &map.words()[*start..start + words],
        }
    }
}

/// The router behind a hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextHop {
    /// Its address; none where that is the packet's own destination.
    pub via: Option<IpAddr>,
    /// The stations of the link, once they are known.
    pub stations: Option<Stations>,
}

/// The tables.
#[derive(Debug)]
pub struct Tables {
    router: Router<Rows>,
    fast_path: Option<FastPath>,
    next_hops: Vec<NextHop>,
    sizes: Sizes,
    targets: usize,
    /// A bit for each interface by which only the slow path sends.
    slow: u64,
}

/// There is no room for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

impl Tables {
    /// Empty tables; each interface looks its addresses up in the table of that number. A fast path has to
    /// have the capacity of these sizes and the same seed, and nothing in it yet.
    pub fn new(sizes: Sizes, interfaces: Vec<u32>, seed: u64, fast_path: Option<FastPath>) -> Tables {
        let mut next = 0;
        let mut place = |shape: Shape| {
            let row = next;
            next += rows(shape);
            let memory = match &fast_path {
                Some(fast_path) => {
                    Place::Shared { map: fast_path.routes(), start: row * ROW, words: shape.words() }
                }
                None => Place::Own(own_memory(shape)),
            };
            (row, Lpm::new(shape, Rows(memory)))
        };
        let mut tables = Vec::new();
        for (number, (v4, v6)) in sizes.tables.iter().enumerate() {
            let ((v4_row, v4_routes), (v6_row, v6_routes)) = (place(*v4), place(*v6));
            if let Some(fast_path) = &fast_path {
                fast_path.set_table(number as u32, (v4_row, v4.first), (v6_row, v6.first));
            }
            tables.push(Table { v4: v4_routes, v6: v6_routes });
        }
        let router = Router::new(tables, interfaces, seed);
        Tables { router, fast_path, next_hops: Vec::new(), sizes, targets: 0, slow: 0 }
    }

    /// The program in the kernel.
    pub fn fast_path(&self) -> Option<&FastPath> {
        self.fast_path.as_ref()
    }

    /// The same, to be attached.
    pub fn fast_path_mut(&mut self) -> Option<&mut FastPath> {
        self.fast_path.as_mut()
    }

    /// What is to happen with a packet that came by an interface.
    pub fn forward(&self, packet: &mut Packet<'_>, interface: u32) -> Verdict {
        self.router.forward(packet, interface)
    }

    /// Adds a hop; its number.
    pub fn add_hop(&mut self, hop: Hop, next_hop: NextHop) -> Result<u32, NoRoom> {
        if self.next_hops.len() == self.sizes.hops {
            return Err(NoRoom);
        }
        let number = self.router.add_hop(hop);
        self.next_hops.push(next_hop);
        self.show_hop(number);
        Ok(number)
    }

    /// A hop, and who is behind it.
    pub fn hop(&self, number: u32) -> (&Hop, NextHop) {
        (self.router.hop(number), self.next_hops[number as usize])
    }

    /// Another hop in the place of one: all that led there leads on.
    pub fn set_hop(&mut self, number: u32, hop: Hop, next_hop: NextHop) {
        self.router.set_hop(number, hop);
        self.next_hops[number as usize] = next_hop;
        self.show_hop(number);
    }

    fn show_hop(&self, number: u32) {
        if let Some(fast_path) = &self.fast_path {
            let hop = self.router.hop(number);
            let stations = self.next_hops[number as usize].stations;
            fast_path.set_hop(number, hop, stations.filter(|_| !self.is_slow(hop.interface)));
        }
    }

    /// Whether only the slow path sends by an interface.
    pub fn is_slow(&self, interface: u32) -> bool {
        self.slow >> (interface & 63) & 1 == 1
    }

    /// Has only the slow path send by an interface from now on, or both.
    pub fn set_slow(&mut self, interface: u32, is_slow: bool) {
        if self.is_slow(interface) == is_slow {
            return;
        }
        self.slow ^= 1 << (interface & 63);
        for number in 0..self.next_hops.len() as u32 {
            if self.router.hop(number).interface == interface {
                self.show_hop(number);
            }
        }
    }

    /// Has what comes by an interface looked up in a table. One more than there are is a new one.
    pub fn set_interface(&mut self, interface: u32, table: u32) {
        self.router.set_interface(interface, table);
    }

    /// Adds a target; its number, as routes and labels lead to it.
    ///
    /// Panics if it names a hop that is not there.
    pub fn add_target(&mut self, target: Target) -> Result<u32, NoRoom> {
        if self.targets == self.sizes.targets {
            return Err(NoRoom);
        }
        self.targets += 1;
        let number = self.router.add_target(target);
        self.show_target(number);
        Ok(number)
    }

    /// Another target in the place of one: all that led there leads on.
    ///
    /// Panics if it names a hop that is not there.
    pub fn set_target(&mut self, number: u32, target: Target) {
        self.router.set_target(number, target);
        self.show_target(number);
    }

    fn show_target(&self, number: u32) {
        if let Some(fast_path) = &self.fast_path {
            fast_path.set_target(number, self.router.target(number));
        }
    }

    /// Has addresses of a table lead to a target; where they led before.
    ///
    /// Panics if the address has bits beyond the prefix's length.
    pub fn insert(&mut self, table: u32, prefix: (IpAddr, u8), target: u32) -> Result<Option<u32>, Full> {
        let (routes, address, length) = self.routes_mut(table, prefix);
        routes.insert(address, length, target)
    }

    /// Where exactly these addresses lead.
    pub fn route(&mut self, table: u32, prefix: (IpAddr, u8)) -> Option<u32> {
        let (routes, address, length) = self.routes_mut(table, prefix);
        routes.route(address, length)
    }

    /// Takes a route away; where it led.
    pub fn remove(&mut self, table: u32, prefix: (IpAddr, u8)) -> Option<u32> {
        let (routes, address, length) = self.routes_mut(table, prefix);
        routes.remove(address, length)
    }

    fn routes_mut(&mut self, table: u32, (address, length): (IpAddr, u8)) -> (&mut Lpm<Rows>, u128, u8) {
        let table = self.router.table_mut(table);
        match address {
            IpAddr::V4(address) => (&mut table.v4, u128::from(u32::from(address)) << 96, length),
            IpAddr::V6(address) => (&mut table.v6, address.into(), length),
        }
    }

    /// How many routes there are, in all tables.
    pub fn route_count(&self) -> usize {
        let tables = (0..self.sizes.tables.len() as u32).map(|number| self.router.table(number));
        tables.map(|table| table.v4.len() + table.v6.len()).sum()
    }

    /// The routes of one table and version from the one behind this one on, or from the first: by length
    /// and address.
    pub fn routes_after(
        &self,
        table: u32,
        is_v4: bool,
        after: Option<(IpAddr, u8)>,
    ) -> Box<dyn Iterator<Item = ((IpAddr, u8), u32)> + '_> {
        let table = self.router.table(table);
        let routes = if is_v4 { &table.v4 } else { &table.v6 };
        let named = move |(address, length, target): (u128, u8, u32)| {
            let address = match is_v4 {
                true => Ipv4Addr::from((address >> 96) as u32).into(),
                false => IpAddr::from(Ipv6Addr::from(address)),
            };
            ((address, length), target)
        };
        match after {
            None => Box::new(routes.routes().map(named)),
            Some((IpAddr::V4(address), length)) => {
                Box::new(routes.routes_after(u128::from(u32::from(address)) << 96, length).map(named))
            }
            Some((IpAddr::V6(address), length)) => {
                Box::new(routes.routes_after(address.into(), length).map(named))
            }
        }
    }

    /// Gives a label a meaning, in the place of what it meant; none of the reserved ones.
    pub fn give(&mut self, label: Label, incoming: Incoming) -> Result<Option<Incoming>, Reserved> {
        let before = self.router.give(label, incoming)?;
        if let Some(fast_path) = &self.fast_path {
            fast_path.set_label(label, Some(&incoming));
        }
        Ok(before)
    }

    /// Takes a label back; what it meant.
    pub fn take_back(&mut self, label: Label) -> Option<Incoming> {
        if let Some(fast_path) = &self.fast_path {
            fast_path.set_label(label, None);
        }
        self.router.take_back(label)
    }
}
