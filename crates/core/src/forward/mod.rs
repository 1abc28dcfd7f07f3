//! The forwarding plane of an MPLS and IP router.
//!
//! - [`lpm`]: longest-prefix match.
//! - [`Forwarder`]: tables of labels (RFC 3031, RFC 3032, RFC 4182, RFC 7274), hops and routes.
//! - [`Forwarder::forward`]: routes an IP packet or puts it into an LSP, swaps or pops labels, and returns
//!   a [`ForwardingVerdict`].

mod decide;
pub mod lpm;
mod verdict;

use crate::edge::LabelTable;
use alloc::vec::Vec;
use lpm::{Lpm, LpmMemory};
use netstage_wire::mpls::LabelValue;
pub use verdict::{BufferedPacket, DropReason, ForwardingVerdict, PacketProtocol, ReportableError};

/// Maximum number of labels that a hop pushes.
pub const MAX_LABELS: usize = 3;

/// Model for the TTL and the traffic class of an LSP with respect to its payload (RFC 3443).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TunnelModel {
    /// The LSP and its payload share the values.
    #[default]
    Uniform,
    /// The LSP has its own values, and its TTL starts at 255.
    Pipe,
}

/// A neighbor on an interface, and the labels to push for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Interface of the neighbor.
    pub interface: u32,
    /// MTU of the link in bytes, labels included.
    pub mtu: u16,
    /// Tunnel model for the labels pushed here.
    pub model: TunnelModel,
    labels: [LabelValue; MAX_LABELS],
    depth: u8,
}

impl Hop {
    /// Creates a hop with these labels, outermost first. Returns `None` if there are more than [`MAX_LABELS`].
    pub fn new(interface: u32, mtu: u16, labels: &[LabelValue], model: TunnelModel) -> Option<Hop> {
        let mut own = [LabelValue::IPV4_EXPLICIT_NULL; MAX_LABELS];
        own.get_mut(..labels.len())?.copy_from_slice(labels);
        Some(Hop { interface, mtu, model, labels: own, depth: labels.len() as u8 })
    }

    /// Returns the labels, outermost first.
    #[inline]
    pub fn labels(&self) -> &[LabelValue] {
        &self.labels[..usize::from(self.depth)]
    }
}

/// Target of addresses or labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardingTarget {
    /// One of these hops, by number, selected by a hash of the flow.
    Hops(Vec<u32>),
    /// This router.
    Local,
    /// Silent discard.
    Discard,
}

/// A target and, if it has exactly one hop, the number of that hop, which saves a memory access for nearly
/// every packet.
#[derive(Debug)]
struct IndexedTarget {
    only: u32,
    target: ForwardingTarget,
}

/// Marker for a target without a single hop.
const NO_HOP: u32 = u32::MAX;

impl IndexedTarget {
    fn new(target: ForwardingTarget) -> IndexedTarget {
        let only = match &target {
            ForwardingTarget::Hops(hops) if hops.len() == 1 => hops[0],
            _ => NO_HOP,
        };
        IndexedTarget { only, target }
    }
}

/// Operation for a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelOperation {
    /// Replace the label by the labels of a hop; a hop without labels pops it (penultimate hop popping).
    Swap {
        /// Number of the target.
        target: u32,
    },
    /// Remove the label and continue with the next one, or look up the address in a table.
    Pop {
        /// Number of the table.
        table: u32,
    },
}

/// A label that this router has assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncomingLabel {
    /// Operation for the label.
    pub action: LabelOperation,
    /// Tunnel model of the LSP that ends here.
    pub model: TunnelModel,
    /// Interfaces on which the label may arrive, one bit for each of the first 64.
    pub expected: u64,
}

/// Verification of source addresses by the routes to them: unicast reverse path forwarding (uRPF, RFC 3704). Packets to the
/// router itself and packets with labels are not verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceCheck {
    /// Every source is accepted.
    #[default]
    Off,
    /// A route leads to the source, over any interface. A discard route does not, so that it also drops packets from its
    /// prefix (RFC 5635).
    Loose,
    /// A route leads to the source over the interface on which the packet arrived.
    Strict,
}

/// Interface on which packets arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IncomingInterface {
    /// Number of the routing table of its packets.
    pub table: u32,
    /// Labels are accepted; otherwise, every labeled packet is dropped.
    pub mpls: bool,
    /// This router handles RSVP packets with router alert option on their way to other hosts: the path of an LSP is set up
    /// hop by hop.
    pub rsvp: bool,
    /// Verification of the sources of forwarded packets.
    pub source_check: SourceCheck,
}

/// Routes of one routing table.
#[derive(Debug)]
pub struct RoutingTable<M> {
    /// IPv4 routes, with addresses in the upper bits of the key; values are target numbers from one.
    pub v4: Lpm<M>,
    /// IPv6 routes.
    pub v6: Lpm<M>,
}

/// Error for a label with a reserved meaning (RFC 7274).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedLabelError;

/// Labels, hops and routes.
#[derive(Debug)]
pub struct Forwarder<M> {
    assigned: LabelTable,
    incoming: Vec<IncomingLabel>,
    /// Free entries of `incoming`.
    free: Vec<usize>,
    targets: Vec<IndexedTarget>,
    hops: Vec<Hop>,
    tables: Vec<RoutingTable<M>>,
    interfaces: Vec<IncomingInterface>,
    seed: u64,
}

impl<M: LpmMemory> Forwarder<M> {
    /// Creates a forwarder with these routing tables and interfaces. The seed makes
    /// consecutive routers distribute flows over their hops differently.
    ///
    /// # Panics
    ///
    /// Panics if an interface refers to a missing table.
    pub fn new(tables: Vec<RoutingTable<M>>, interfaces: Vec<IncomingInterface>, seed: u64) -> Forwarder<M> {
        assert!(
            interfaces.iter().all(|interface| (interface.table as usize) < tables.len()),
            "each interface refers to an existing table"
        );
        Forwarder {
            assigned: LabelTable::default(),
            incoming: Vec::new(),
            free: Vec::new(),
            targets: Vec::new(),
            hops: Vec::new(),
            tables,
            interfaces,
            seed,
        }
    }

    /// Adds a hop and returns its number.
    pub fn add_hop(&mut self, hop: Hop) -> u32 {
        self.hops.push(hop);
        self.hops.len() as u32 - 1
    }

    /// Returns a hop.
    pub fn hop(&self, number: u32) -> &Hop {
        &self.hops[number as usize]
    }

    /// Replaces a hop; targets that refer to its number use the new one.
    pub fn set_hop(&mut self, number: u32, hop: Hop) {
        self.hops[number as usize] = hop;
    }

    /// Adds a target and returns its number, counted from one as in the routes.
    ///
    /// # Panics
    ///
    /// Panics if the target contains the number of a missing hop.
    pub fn add_target(&mut self, target: ForwardingTarget) -> u32 {
        self.check(&target);
        self.targets.push(IndexedTarget::new(target));
        self.targets.len() as u32
    }

    /// Returns a target.
    pub fn target(&self, number: u32) -> &ForwardingTarget {
        &self.targets[number as usize - 1].target
    }

    /// Replaces a target; routes and labels that refer to its number use the new one.
    ///
    /// # Panics
    ///
    /// Panics if the target contains the number of a missing hop.
    pub fn set_target(&mut self, number: u32, target: ForwardingTarget) {
        self.check(&target);
        self.targets[number as usize - 1] = IndexedTarget::new(target);
    }

    fn check(&self, target: &ForwardingTarget) {
        if let ForwardingTarget::Hops(hops) = target {
            assert!(hops.iter().all(|hop| (*hop as usize) < self.hops.len()), "each hop exists");
        }
    }

    /// Returns a routing table.
    pub fn table(&self, number: u32) -> &RoutingTable<M> {
        &self.tables[number as usize]
    }

    /// Returns a routing table for changes.
    pub fn table_mut(&mut self, number: u32) -> &mut RoutingTable<M> {
        &mut self.tables[number as usize]
    }

    /// Sets an interface. The next unused number adds an interface.
    ///
    /// # Panics
    ///
    /// Panics if the table does not exist or the interface number is beyond the next unused one.
    pub fn set_interface(&mut self, number: u32, interface: IncomingInterface) {
        assert!((interface.table as usize) < self.tables.len(), "the table exists");
        match self.interfaces.get_mut(number as usize) {
            Some(slot) => *slot = interface,
            None => {
                assert_eq!(number as usize, self.interfaces.len(), "interfaces are numbered consecutively");
                self.interfaces.push(interface);
            }
        }
    }

    /// Assigns a label and returns its previous assignment; fails for reserved labels.
    pub fn assign_label(
        &mut self,
        label: LabelValue,
        incoming: IncomingLabel,
    ) -> Result<Option<IncomingLabel>, ReservedLabelError> {
        if label.is_reserved() {
            return Err(ReservedLabelError);
        }
        if let Some(number) = self.assigned.get(label) {
            return Ok(Some(core::mem::replace(&mut self.incoming[number], incoming)));
        }
        let number = self.free.pop().unwrap_or(self.incoming.len());
        match self.incoming.get_mut(number) {
            Some(slot) => *slot = incoming,
            None => self.incoming.push(incoming),
        }
        self.assigned.assign(label, number).map_err(|_| ReservedLabelError)?;
        Ok(None)
    }

    /// Releases a label and returns its assignment.
    pub fn release_label(&mut self, label: LabelValue) -> Option<IncomingLabel> {
        let number = self.assigned.release(label)?;
        self.free.push(number);
        Some(self.incoming[number])
    }
}

#[cfg(test)]
mod tests;
