//! What routes and labels lead to, as sources of routes tell it: paths by address and interface. From them
//! the tables have hops and targets, each of which stands there once however many lead to it.
//!
//! Numbers that nothing leads to any more are given again, those that have waited longest first: a packet
//! that is under way by an old one meanwhile finds it as it was.

use super::slow_path::Neighbour;
use super::tables::{NextHop, NoRoom, Stations, Tables};
use netstage_core::forward::lpm::Full;
use netstage_core::forward::{Action, Hop, Incoming, MOST_LABELS, Model, Reserved, Target};
use netstage_wire::ethernet::Mac;
use netstage_wire::mpls::Label;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::IpAddr;

/// A table and a prefix in it.
pub type Prefix = (u32, (IpAddr, u8));

/// By what packets leave.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// The interface.
    pub interface: u32,
    /// The next router; none where the destination itself is on the link.
    pub via: Option<IpAddr>,
    /// What is to be on top, the outermost first.
    pub labels: Vec<Label>,
}

/// Where a route or label leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Destination {
    /// One of these, which the flow decides.
    Paths(Vec<Path>),
    /// This router itself.
    Local,
    /// Nowhere, and nobody is told.
    Discard,
}

/// What a label of this router's means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The labels of a path take its place, or nothing does (penultimate hop popping).
    Forward(Destination),
    /// What is beneath is looked up in a table.
    Pop {
        /// The table.
        table: u32,
    },
}

/// What a source tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Where a prefix leads from now on; none: it is no longer there.
    Route(Prefix, Option<Destination>),
    /// What a label means from now on; none: it was taken back.
    Label(Label, Option<Meaning>),
}

/// Why a change is not made; the tables are as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The table has no room for it.
    Full,
    /// There are too many different next hops or groups of them.
    NoRoom,
    /// More labels than a hop can push.
    TooManyLabels,
    /// The label has a meaning of its own.
    Reserved,
    /// There is no such table or interface.
    Unknown,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Full => f.write_str("the table is full"),
            Refused::NoRoom => f.write_str("too many different next hops"),
            Refused::TooManyLabels => write!(f, "more than {MOST_LABELS} labels to push"),
            Refused::Reserved => f.write_str("the label is a reserved one"),
            Refused::Unknown => f.write_str("no such table or interface"),
        }
    }
}

impl From<Full> for Refused {
    fn from(_: Full) -> Refused {
        Refused::Full
    }
}

impl From<NoRoom> for Refused {
    fn from(_: NoRoom) -> Refused {
        Refused::NoRoom
    }
}

impl From<Reserved> for Refused {
    fn from(_: Reserved) -> Refused {
        Refused::Reserved
    }
}

/// One of the router's interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its station.
    pub mac: Mac,
    /// Bytes of the largest packet its link takes.
    pub mtu: u16,
    /// Where what comes by it is looked up.
    pub table: u32,
    /// Labels are taken from there.
    pub mpls: bool,
}

/// Things with numbers, each there once.
#[derive(Debug)]
struct Interned<K> {
    numbers: BTreeMap<K, u32>,
    /// By number: what it is, and how many lead there.
    users: BTreeMap<u32, (K, usize)>,
    free: VecDeque<u32>,
}

impl<K: Ord + Clone> Interned<K> {
    fn new() -> Interned<K> {
        Interned { numbers: BTreeMap::new(), users: BTreeMap::new(), free: VecDeque::new() }
    }

    /// One more leads to it, if it is there.
    fn find(&mut self, key: &K) -> Option<u32> {
        let number = *self.numbers.get(key)?;
        self.users.get_mut(&number)?.1 += 1;
        Some(number)
    }

    fn add(&mut self, key: &K, number: u32) {
        self.numbers.insert(key.clone(), number);
        self.users.insert(number, (key.clone(), 1));
    }

    /// One less leads to it; what it was, if nothing does now.
    fn release(&mut self, number: u32) -> Option<K> {
        let (_, users) = self.users.get_mut(&number)?;
        *users -= 1;
        if *users > 0 {
            return None;
        }
        let (key, _) = self.users.remove(&number)?;
        self.numbers.remove(&key);
        self.free.push_back(number);
        Some(key)
    }
}

/// Where a label leads: to a target, or a table.
#[derive(Clone, Copy, Debug)]
enum Leads {
    To(u32),
    Into(u32),
}

/// Everything sources have told, and the neighbours that are known.
#[derive(Debug)]
pub struct Fib {
    interfaces: Vec<Interface>,
    tables: u32,
    model: Model,
    /// A bit for each interface from which labels are taken.
    expected: u64,
    hops: Interned<Path>,
    targets: Interned<Destination>,
    labels: BTreeMap<Label, Leads>,
    neighbours: BTreeMap<Neighbour, Mac>,
    /// Prefixes of links, and routes to neighbours there that no source has told.
    on_link: BTreeMap<Prefix, u32>,
    hosts: BTreeSet<Prefix>,
}

impl Fib {
    /// Nothing is known yet; labels belong to what they are pushed on in this model.
    pub fn new(interfaces: Vec<Interface>, tables: u32, model: Model) -> Fib {
        let bits = interfaces.iter().enumerate().filter(|(_, interface)| interface.mpls);
        let expected = bits.fold(0, |bits, (number, _)| bits | 1 << number.min(63));
        Fib {
            interfaces,
            tables,
            model,
            expected,
            hops: Interned::new(),
            targets: Interned::new(),
            labels: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            on_link: BTreeMap::new(),
            hosts: BTreeSet::new(),
        }
    }

    /// Makes a change in the tables.
    pub fn apply(&mut self, tables: &mut Tables, change: &Change) -> Result<(), Refused> {
        match change {
            Change::Route(prefix, Some(to)) => self.set_route(tables, *prefix, to),
            Change::Route(prefix, None) => self.remove_route(tables, *prefix),
            Change::Label(label, Some(meaning)) => self.set_label(tables, *label, meaning),
            Change::Label(label, None) => {
                tables.take_back(*label);
                self.forget_label(*label);
                Ok(())
            }
        }
    }

    /// A neighbour's station is known from now on, or is not any more.
    pub fn set_neighbour(&mut self, tables: &mut Tables, neighbour: Neighbour, station: Option<Mac>) {
        let before = match station {
            Some(mac) => self.neighbours.insert(neighbour, mac),
            None => self.neighbours.remove(&neighbour),
        };
        if before == station {
            return;
        }
        let (interface, address) = neighbour;
        let first = Path { interface, via: Some(address), labels: Vec::new() };
        let same = |path: &Path| path.interface == interface && path.via == Some(address);
        for (path, number) in self.hops.numbers.range(first..).take_while(|(path, _)| same(path)) {
            let (hop, _) = tables.hop(*number);
            tables.set_hop(*number, *hop, self.next_hop(path));
        }
        let links =
            self.on_link.iter().filter(|(prefix, link)| **link == interface && holds(prefix.1, address));
        let homes: Vec<u32> = links.map(|((table, _), _)| *table).collect();
        for table in homes {
            self.set_host(tables, (table, host(address)), interface, station.is_some());
        }
    }

    /// Which neighbours are next routers, or are known.
    pub fn neighbours(&self) -> impl Iterator<Item = (Neighbour, Option<Mac>)> {
        let wanted = self.hops.numbers.keys().filter_map(|path| Some((path.interface, path.via?)));
        let all: BTreeSet<Neighbour> = wanted.chain(self.neighbours.keys().copied()).collect();
        all.into_iter().map(|neighbour| (neighbour, self.neighbours.get(&neighbour).copied()))
    }

    /// What a target is, by its number.
    pub fn destination(&self, target: u32) -> Option<&Destination> {
        self.targets.users.get(&target).map(|(destination, _)| destination)
    }

    /// All labels, and what they mean.
    pub fn labels(&self) -> impl Iterator<Item = (Label, Meaning)> {
        self.labels.iter().filter_map(|(label, leads)| {
            let meaning = match *leads {
                Leads::To(target) => Meaning::Forward(self.destination(target)?.clone()),
                Leads::Into(table) => Meaning::Pop { table },
            };
            Some((*label, meaning))
        })
    }

    fn set_route(&mut self, tables: &mut Tables, prefix: Prefix, to: &Destination) -> Result<(), Refused> {
        self.hosts.remove(&prefix);
        self.insert(tables, prefix, to)?;
        self.on_link.remove(&prefix);
        if let Destination::Paths(paths) = to
            && let [Path { interface, via: None, labels }] = &paths[..]
            && labels.is_empty()
            && prefix.1 != host(prefix.1.0)
        {
            self.on_link.insert(prefix, *interface);
            let known = self
                .neighbours
                .keys()
                .filter(|(link, address)| link == interface && holds(prefix.1, *address));
            for (_, address) in known.copied().collect::<Vec<_>>() {
                self.set_host(tables, (prefix.0, host(address)), *interface, true);
            }
        }
        Ok(())
    }

    fn remove_route(&mut self, tables: &mut Tables, prefix: Prefix) -> Result<(), Refused> {
        self.check(prefix.0)?;
        if let Some(interface) = self.on_link.remove(&prefix) {
            let hosts = self
                .hosts
                .iter()
                .filter(|(table, (address, _))| *table == prefix.0 && holds(prefix.1, *address));
            for host in hosts.copied().collect::<Vec<_>>() {
                self.set_host(tables, host, interface, false);
            }
        }
        if let Some(target) = tables.remove(prefix.0, prefix.1) {
            self.release_target(target);
        }
        // What a source does not lead elsewhere any more may still be a neighbour.
        let home = self.on_link.iter().find(|((table, link), _)| {
            *table == prefix.0 && prefix.1 == host(prefix.1.0) && holds(*link, prefix.1.0)
        });
        if let Some((_, &interface)) = home
            && self.neighbours.contains_key(&(interface, prefix.1.0))
        {
            self.set_host(tables, prefix, interface, true);
        }
        Ok(())
    }

    /// A neighbour on a link has a route of its own, unless a source has told one.
    fn set_host(&mut self, tables: &mut Tables, prefix: Prefix, interface: u32, is_known: bool) {
        let via = Some(prefix.1.0);
        let to = Destination::Paths(vec![Path { interface, via, labels: Vec::new() }]);
        if is_known && tables.route(prefix.0, prefix.1).is_none() {
            // Without room for it the slow path finds the station each time.
            if self.insert(tables, prefix, &to).is_ok() {
                self.hosts.insert(prefix);
            }
        } else if !is_known
            && self.hosts.remove(&prefix)
            && let Some(target) = tables.remove(prefix.0, prefix.1)
        {
            self.release_target(target);
        }
    }

    fn insert(&mut self, tables: &mut Tables, prefix: Prefix, to: &Destination) -> Result<(), Refused> {
        self.check(prefix.0)?;
        let target = self.target(tables, to)?;
        match tables.insert(prefix.0, prefix.1, target) {
            Ok(before) => {
                if let Some(before) = before {
                    self.release_target(before);
                }
                Ok(())
            }
            Err(full) => {
                self.release_target(target);
                Err(full.into())
            }
        }
    }

    fn set_label(&mut self, tables: &mut Tables, label: Label, meaning: &Meaning) -> Result<(), Refused> {
        let (action, target) = match meaning {
            Meaning::Pop { table } => {
                self.check(*table)?;
                (Action::Pop { table: *table }, None)
            }
            Meaning::Forward(to) => {
                let target = self.target(tables, to)?;
                (Action::Swap { target }, Some(target))
            }
        };
        let incoming = Incoming { action, model: self.model, expected: self.expected };
        if let Err(reserved) = tables.give(label, incoming) {
            target.into_iter().for_each(|target| self.release_target(target));
            return Err(reserved.into());
        }
        self.forget_label(label);
        let leads = match action {
            Action::Swap { target } => Leads::To(target),
            Action::Pop { table } => Leads::Into(table),
        };
        self.labels.insert(label, leads);
        Ok(())
    }

    fn forget_label(&mut self, label: Label) {
        if let Some(Leads::To(target)) = self.labels.remove(&label) {
            self.release_target(target);
        }
    }

    fn check(&self, table: u32) -> Result<(), Refused> {
        if table < self.tables { Ok(()) } else { Err(Refused::Unknown) }
    }

    /// The number of a target, to which one more leads.
    fn target(&mut self, tables: &mut Tables, to: &Destination) -> Result<u32, Refused> {
        if let Some(number) = self.targets.find(to) {
            return Ok(number);
        }
        let target = match to {
            Destination::Local => Target::Local,
            Destination::Discard => Target::Discard,
            Destination::Paths(paths) => {
                let mut hops = Vec::with_capacity(paths.len());
                for path in paths {
                    match self.hop(tables, path) {
                        Ok(hop) => hops.push(hop),
                        Err(refused) => {
                            hops.into_iter().for_each(|hop| drop(self.hops.release(hop)));
                            return Err(refused);
                        }
                    }
                }
                Target::Hops(hops)
            }
        };
        let number = match self.targets.free.pop_front() {
            Some(number) => {
                tables.set_target(number, target);
                number
            }
            None => match tables.add_target(target) {
                Ok(number) => number,
                Err(no_room) => {
                    self.release_hops(to);
                    return Err(no_room.into());
                }
            },
        };
        self.targets.add(to, number);
        Ok(number)
    }

    fn release_target(&mut self, number: u32) {
        if let Some(destination) = self.targets.release(number) {
            self.release_hops(&destination);
        }
    }

    fn release_hops(&mut self, destination: &Destination) {
        let Destination::Paths(paths) = destination else { return };
        for path in paths {
            if let Some(&number) = self.hops.numbers.get(path) {
                self.hops.release(number);
            }
        }
    }

    /// The number of a hop, to which one more leads.
    fn hop(&mut self, tables: &mut Tables, path: &Path) -> Result<u32, Refused> {
        if let Some(number) = self.hops.find(path) {
            return Ok(number);
        }
        let interface = self.interfaces.get(path.interface as usize).ok_or(Refused::Unknown)?;
        let hop = Hop::new(path.interface, interface.mtu, &path.labels, self.model)
            .ok_or(Refused::TooManyLabels)?;
        let next_hop = self.next_hop(path);
        let number = match self.hops.free.pop_front() {
            Some(number) => {
                tables.set_hop(number, hop, next_hop);
                number
            }
            None => tables.add_hop(hop, next_hop)?,
        };
        self.hops.add(path, number);
        Ok(number)
    }

    fn next_hop(&self, path: &Path) -> NextHop {
        let station = path.via.and_then(|via| self.neighbours.get(&(path.interface, via)));
        let from = self.interfaces[path.interface as usize].mac;
        NextHop { via: path.via, stations: station.map(|to| Stations { to: *to, from }) }
    }
}

/// The prefix of an address alone.
fn host(address: IpAddr) -> (IpAddr, u8) {
    (address, if address.is_ipv4() { 32 } else { 128 })
}

fn holds((prefix, length): (IpAddr, u8), address: IpAddr) -> bool {
    match (prefix, address) {
        (IpAddr::V4(prefix), IpAddr::V4(address)) => {
            let differing = u32::from(prefix) ^ u32::from(address);
            differing.checked_shr(32 - u32::from(length)).unwrap_or(0) == 0
        }
        (IpAddr::V6(prefix), IpAddr::V6(address)) => {
            let differing = u128::from(prefix) ^ u128::from(address);
            differing.checked_shr(128 - u32::from(length)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
#[path = "fib_tests.rs"]
mod tests;
