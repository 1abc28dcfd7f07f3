//! Routes, labels and hops of a router, for both paths: each change takes effect in the XDP program at once.

use super::fast_path::{Capacity, FastPath};
pub use super::layout::HopAddresses;
use super::layout::ROW;
use netstage_core::forward::lpm::{Lpm, LpmFull, LpmMemory, LpmShape, own_memory};
use netstage_core::forward::{
    BufferedPacket, Forwarder, ForwardingTarget, ForwardingVerdict, Hop, IncomingInterface, IncomingLabel,
    ReservedLabelError, RoutingTable,
};
use netstage_host::ports::kernel::Mapping;
use netstage_wire::mpls::LabelValue;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Sizes of the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Shapes of the IPv4 and IPv6 parts of each routing table. The first row is indexed by 8, 16 or 24 bits.
    pub tables: Vec<(LpmShape, LpmShape)>,
    /// Maximum number of targets.
    pub targets: usize,
    /// Maximum number of hops.
    pub hops: usize,
}

impl Sizes {
    /// Returns the required capacity of the XDP program's maps.
    pub fn capacity(&self) -> Capacity {
        let rows = self.tables.iter().map(|(v4, v6)| rows(*v4) + rows(*v6)).sum();
        Capacity { rows, tables: self.tables.len(), targets: self.targets, hops: self.hops }
    }
}

/// Returns the number of rows a table occupies.
fn rows(shape: LpmShape) -> usize {
    shape.words() / ROW
}

/// Storage of the routes of one table and IP version.
#[derive(Debug)]
struct Rows(RowMemory);

#[derive(Debug)]
enum RowMemory {
    /// Private memory of the process.
    Own(Vec<AtomicU32>),
    /// Part of a kernel map: `words` words from `start` on.
    Shared { map: Arc<Mapping>, start: usize, words: usize },
}

impl LpmMemory for Rows {
    #[inline]
    fn words(&self) -> &[AtomicU32] {
        match &self.0 {
            RowMemory::Own(words) => words,
            RowMemory::Shared { map, start, words } => &map.words()[*start..start + words],
        }
    }
}

/// Next router of a hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextHop {
    /// Address; `None` stands for the destination of the packet.
    pub via: Option<IpAddr>,
    /// MAC addresses, once known.
    pub addresses: Option<HopAddresses>,
}

/// Forwarding tables.
#[derive(Debug)]
pub struct Tables {
    router: Forwarder<Rows>,
    fast_path: Option<FastPath>,
    next_hops: Vec<NextHop>,
    sizes: Sizes,
    targets: usize,
    /// Interfaces to which only the slow path sends, one bit each.
    slow: u64,
}

/// Error: the table is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull;

impl Tables {
    /// Creates empty tables. A fast path must be
    /// empty and have the same capacity and seed.
    pub fn new(
        sizes: Sizes,
        interfaces: Vec<IncomingInterface>,
        seed: u64,
        fast_path: Option<FastPath>,
    ) -> Tables {
        let mut next = 0;
        let mut allocate = |shape: LpmShape| {
            let row = next;
            next += rows(shape);
            let memory = match &fast_path {
                Some(fast_path) => {
                    RowMemory::Shared { map: fast_path.routes(), start: row * ROW, words: shape.words() }
                }
                None => RowMemory::Own(own_memory(shape)),
            };
            (row, Lpm::new(shape, Rows(memory)))
        };
        let mut tables = Vec::new();
        for (number, (v4, v6)) in sizes.tables.iter().enumerate() {
            let ((v4_row, v4_routes), (v6_row, v6_routes)) = (allocate(*v4), allocate(*v6));
            if let Some(fast_path) = &fast_path {
                fast_path.set_table(number as u32, (v4_row, v4.first), (v6_row, v6.first));
            }
            tables.push(RoutingTable { v4: v4_routes, v6: v6_routes });
        }
        let router = Forwarder::new(tables, interfaces, seed);
        Tables { router, fast_path, next_hops: Vec::new(), sizes, targets: 0, slow: 0 }
    }

    /// Returns the XDP program.
    pub fn fast_path(&self) -> Option<&FastPath> {
        self.fast_path.as_ref()
    }

    /// Returns the XDP program, to attach it.
    pub fn fast_path_mut(&mut self) -> Option<&mut FastPath> {
        self.fast_path.as_mut()
    }

    /// Decides about a packet received on an interface.
    pub fn forward(&self, packet: &mut BufferedPacket<'_>, interface: u32) -> ForwardingVerdict {
        self.router.forward(packet, interface)
    }

    /// Decides about a packet of the router itself, which answers one from an interface.
    pub fn forward_own(&self, packet: &mut BufferedPacket<'_>, interface: u32) -> ForwardingVerdict {
        self.router.forward_own(packet, interface)
    }

    /// Adds a hop and returns its number.
    pub fn add_hop(&mut self, hop: Hop, next_hop: NextHop) -> Result<u32, TableFull> {
        if self.next_hops.len() == self.sizes.hops {
            return Err(TableFull);
        }
        let number = self.router.add_hop(hop);
        self.next_hops.push(next_hop);
        self.publish_hop(number);
        Ok(number)
    }

    /// Returns a hop and its next router.
    pub fn hop(&self, number: u32) -> (&Hop, NextHop) {
        (self.router.hop(number), self.next_hops[number as usize])
    }

    /// Replaces a hop; targets that use it use the new one.
    pub fn set_hop(&mut self, number: u32, hop: Hop, next_hop: NextHop) {
        self.router.set_hop(number, hop);
        self.next_hops[number as usize] = next_hop;
        self.publish_hop(number);
    }

    fn publish_hop(&self, number: u32) {
        if let Some(fast_path) = &self.fast_path {
            let hop = self.router.hop(number);
            let stations = self.next_hops[number as usize].addresses;
            fast_path.set_hop(number, hop, stations.filter(|_| !self.is_slow(hop.interface)));
        }
    }

    /// Returns whether only the slow path sends to an interface.
    pub fn is_slow(&self, interface: u32) -> bool {
        self.slow >> (interface & 63) & 1 == 1
    }

    /// Lets only the slow path send to an interface, or both paths.
    pub fn set_slow(&mut self, interface: u32, is_slow: bool) {
        if self.is_slow(interface) == is_slow {
            return;
        }
        self.slow ^= 1 << (interface & 63);
        for number in 0..self.next_hops.len() as u32 {
            if self.router.hop(number).interface == interface {
                self.publish_hop(number);
            }
        }
    }

    /// Sets an interface. The next unused number adds an interface.
    pub fn set_interface(&mut self, number: u32, interface: IncomingInterface) {
        self.router.set_interface(number, interface);
    }

    /// Adds a target and returns its number, for routes and labels.
    ///
    /// # Panics
    ///
    /// Panics if it contains the number of a missing hop.
    pub fn add_target(&mut self, target: ForwardingTarget) -> Result<u32, TableFull> {
        if self.targets == self.sizes.targets {
            return Err(TableFull);
        }
        self.targets += 1;
        let number = self.router.add_target(target);
        self.publish_target(number);
        Ok(number)
    }

    /// Replaces a target; routes and labels that use it use the new one.
    ///
    /// # Panics
    ///
    /// Panics if it contains the number of a missing hop.
    pub fn set_target(&mut self, number: u32, target: ForwardingTarget) {
        self.router.set_target(number, target);
        self.publish_target(number);
    }

    fn publish_target(&self, number: u32) {
        if let Some(fast_path) = &self.fast_path {
            fast_path.set_target(number, self.router.target(number));
        }
    }

    /// Adds or replaces a route. Returns the target it replaces.
    ///
    /// # Panics
    ///
    /// Panics if the address has bits beyond the prefix length.
    pub fn insert(&mut self, table: u32, prefix: (IpAddr, u8), target: u32) -> Result<Option<u32>, LpmFull> {
        let (routes, address, length) = self.routes_mut(table, prefix);
        routes.insert(address, length, target)
    }

    /// Returns the target of exactly this prefix.
    pub fn route(&mut self, table: u32, prefix: (IpAddr, u8)) -> Option<u32> {
        let (routes, address, length) = self.routes_mut(table, prefix);
        routes.route(address, length)
    }

    /// Removes a route. Returns its target.
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

    /// Returns the number of routes in all tables.
    pub fn route_count(&self) -> usize {
        let tables = (0..self.sizes.tables.len() as u32).map(|number| self.router.table(number));
        tables.map(|table| table.v4.len() + table.v6.len()).sum()
    }

    /// Returns the routes of one table and IP version, ordered by prefix length and address, from the one
    /// after `after` on.
    pub fn routes_after(
        &self,
        table: u32,
        is_v4: bool,
        after: Option<(IpAddr, u8)>,
    ) -> Box<dyn Iterator<Item = ((IpAddr, u8), u32)> + '_> {
        let table = self.router.table(table);
        let routes = if is_v4 { &table.v4 } else { &table.v6 };
        let with_prefix = move |(address, length, target): (u128, u8, u32)| {
            let address = match is_v4 {
                true => Ipv4Addr::from((address >> 96) as u32).into(),
                false => IpAddr::from(Ipv6Addr::from(address)),
            };
            ((address, length), target)
        };
        match after {
            None => Box::new(routes.routes().map(with_prefix)),
            Some((IpAddr::V4(address), length)) => {
                Box::new(routes.routes_after(u128::from(u32::from(address)) << 96, length).map(with_prefix))
            }
            Some((IpAddr::V6(address), length)) => {
                Box::new(routes.routes_after(address.into(), length).map(with_prefix))
            }
        }
    }

    /// Assigns a meaning to a label. Returns the meaning it replaces, or an error for a reserved label.
    pub fn assign_label(
        &mut self,
        label: LabelValue,
        incoming: IncomingLabel,
    ) -> Result<Option<IncomingLabel>, ReservedLabelError> {
        let before = self.router.assign_label(label, incoming)?;
        if let Some(fast_path) = &self.fast_path {
            fast_path.set_label(label, Some(&incoming));
        }
        Ok(before)
    }

    /// Removes a label. Returns its meaning.
    pub fn remove_label(&mut self, label: LabelValue) -> Option<IncomingLabel> {
        if let Some(fast_path) = &self.fast_path {
            fast_path.set_label(label, None);
        }
        self.router.release_label(label)
    }
}
