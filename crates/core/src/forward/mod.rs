//! What an MPLS and IP router does with a packet: where it goes, and what is changed in it.
//!
//! - [`lpm`]: the longest prefix that holds an address.
//! - [`Router`]: labels (RFC 3031, RFC 3032, RFC 4182, RFC 7274), next hops and tables of routes.
//! - [`Router::forward`]: IP is routed or put into an LSP, a label swapped or popped; a [`Verdict`] is left.

mod decide;
pub mod lpm;
mod verdict;

use crate::edge::Labels;
use alloc::vec::Vec;
use lpm::{Lpm, Memory};
use netstage_wire::mpls::Label;
pub use verdict::{Fault, Kind, Packet, Reason, Verdict};

/// Labels a router pushes at most.
pub const MOST_LABELS: usize = 3;

/// How an LSP's time to live and traffic class belong to those of what it carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// They are the same.
    #[default]
    Uniform,
    /// They are the LSP's own, from 255 on.
    Pipe,
}

/// A neighbour by an interface, and the labels it is to find on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The interface.
    pub interface: u32,
    /// Bytes of the largest packet the link takes, labels included.
    pub mtu: u16,
    /// How what is pushed here belongs to what it is pushed on.
    pub model: Model,
    labels: [Label; MOST_LABELS],
    depth: u8,
}

impl Hop {
    /// A hop; the outermost label comes first. None where there are more than [`MOST_LABELS`].
    pub fn new(interface: u32, mtu: u16, labels: &[Label], model: Model) -> Option<Hop> {
        let mut own = [Label::IPV4_EXPLICIT_NULL; MOST_LABELS];
        own.get_mut(..labels.len())?.copy_from_slice(labels);
        Some(Hop { interface, mtu, model, labels: own, depth: labels.len() as u8 })
    }

    /// Its labels, the outermost first.
    #[inline]
    pub fn labels(&self) -> &[Label] {
        &self.labels[..usize::from(self.depth)]
    }
}

/// What addresses or labels lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// One of these hops, by number; the flow decides which.
    Hops(Vec<u32>),
    /// This router itself.
    Local,
    /// Nothing, and nobody is told.
    Discard,
}

/// A target, with its hop beside it where there is only one: a load less for nearly every packet.
#[derive(Debug)]
struct Leading {
    only: u32,
    target: Target,
}

/// No hop has this number.
const NO_HOP: u32 = u32::MAX;

impl Leading {
    fn new(target: Target) -> Leading {
        let only = match &target {
            Target::Hops(hops) if hops.len() == 1 => hops[0],
            _ => NO_HOP,
        };
        Leading { only, target }
    }
}

/// What is done with a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The labels of a hop take its place; a hop without any pops it (penultimate hop popping).
    Swap {
        /// The target, by number.
        target: u32,
    },
    /// It is taken off, and what is beneath is looked at: a label, or an address in a table.
    Pop {
        /// The table.
        table: u32,
    },
}

/// A label this router has given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// What is done with it.
    pub action: Action,
    /// How the LSP that ends here belongs to what it carried.
    pub model: Model,
    /// Interfaces it may come by, a bit for each of the first 64.
    pub expected: u64,
}

/// Routes of one address space.
#[derive(Debug)]
pub struct Table<M> {
    /// Addresses of IPv4, at the top of the number; they lead to targets, from one on.
    pub v4: Lpm<M>,
    /// Those of IPv6.
    pub v6: Lpm<M>,
}

/// The label has a meaning of its own (RFC 7274).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved;

/// Labels, hops and routes.
#[derive(Debug)]
pub struct Router<M> {
    given: Labels,
    incoming: Vec<Incoming>,
    /// Places there that no label has any more.
    free: Vec<usize>,
    targets: Vec<Leading>,
    hops: Vec<Hop>,
    tables: Vec<Table<M>>,
    /// The table of each interface.
    interfaces: Vec<u32>,
    seed: u64,
}

impl<M: Memory> Router<M> {
    /// A router whose interfaces have these tables. The seed keeps routers in a row from dividing flows
    /// alike.
    ///
    /// Panics if there is no such table.
    pub fn new(tables: Vec<Table<M>>, interfaces: Vec<u32>, seed: u64) -> Router<M> {
        assert!(interfaces.iter().all(|table| (*table as usize) < tables.len()), "every table is there");
        Router {
            given: Labels::default(),
            incoming: Vec::new(),
            free: Vec::new(),
            targets: Vec::new(),
            hops: Vec::new(),
            tables,
            interfaces,
            seed,
        }
    }

    /// Adds a hop; its number.
    pub fn add_hop(&mut self, hop: Hop) -> u32 {
        self.hops.push(hop);
        self.hops.len() as u32 - 1
    }

    /// A hop.
    pub fn hop(&self, number: u32) -> &Hop {
        &self.hops[number as usize]
    }

    /// Another hop in the place of one: all that led there leads on.
    pub fn set_hop(&mut self, number: u32, hop: Hop) {
        self.hops[number as usize] = hop;
    }

    /// Adds a target; its number, from one on, as routes lead to it.
    ///
    /// Panics if it names a hop that is not there.
    pub fn add_target(&mut self, target: Target) -> u32 {
        self.check(&target);
        self.targets.push(Leading::new(target));
        self.targets.len() as u32
    }

    /// A target.
    pub fn target(&self, number: u32) -> &Target {
        &self.targets[number as usize - 1].target
    }

    /// Another target in the place of one: all that led there leads on.
    ///
    /// Panics if it names a hop that is not there.
    pub fn set_target(&mut self, number: u32, target: Target) {
        self.check(&target);
        self.targets[number as usize - 1] = Leading::new(target);
    }

    fn check(&self, target: &Target) {
        if let Target::Hops(hops) = target {
            assert!(hops.iter().all(|hop| (*hop as usize) < self.hops.len()), "every hop is there");
        }
    }

    /// A table.
    pub fn table(&self, number: u32) -> &Table<M> {
        &self.tables[number as usize]
    }

    /// A table, to change its routes.
    pub fn table_mut(&mut self, number: u32) -> &mut Table<M> {
        &mut self.tables[number as usize]
    }

    /// Has what comes by an interface looked up in a table. One more than there are is a new one.
    ///
    /// Panics if there is no such table, or the interface is further beyond.
    pub fn set_interface(&mut self, interface: u32, table: u32) {
        assert!((table as usize) < self.tables.len(), "the table is there");
        match self.interfaces.get_mut(interface as usize) {
            Some(place) => *place = table,
            None => {
                assert_eq!(interface as usize, self.interfaces.len(), "it is the next one");
                self.interfaces.push(table);
            }
        }
    }

    /// Gives a label a meaning, in the place of what it meant; none of the reserved ones.
    pub fn give(&mut self, label: Label, incoming: Incoming) -> Result<Option<Incoming>, Reserved> {
        if label.is_reserved() {
            return Err(Reserved);
        }
        if let Some(number) = self.given.get(label) {
            return Ok(Some(core::mem::replace(&mut self.incoming[number], incoming)));
        }
        let number = self.free.pop().unwrap_or(self.incoming.len());
        match self.incoming.get_mut(number) {
            Some(place) => *place = incoming,
            None => self.incoming.push(incoming),
        }
        self.given.give(label, number).map_err(|_| Reserved)?;
        Ok(None)
    }

    /// Takes a label back; what it meant.
    pub fn take_back(&mut self, label: Label) -> Option<Incoming> {
        let number = self.given.take_back(label)?;
        self.free.push(number);
        Some(self.incoming[number])
    }
}

#[cfg(test)]
mod tests;
