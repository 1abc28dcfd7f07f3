//! Layout of the tables in the maps of bpf/router.bpf.c: native-endian words. Each record has the layout of
//! the C structure of the same name.

use netstage_core::forward::{
    ForwardingTarget, Hop, IncomingInterface, IncomingLabel, LabelOperation, MAX_LABELS, SourceCheck,
    TunnelModel,
};
use netstage_wire::ethernet::Mac;

/// Words per row of routes, which is one element of the map.
pub(super) const ROW: usize = 256;
/// Maximum number of hops per target.
pub const MAX_HOPS: usize = 15;
/// Maximum number of interfaces.
pub const MAX_PORTS: usize = 64;
/// Upper bound (exclusive) of interface indices that can be served.
pub const MAX_INTERFACE_INDEX: u32 = 1 << 16;
/// Number of label values.
pub(super) const LABELS: usize = 1 << 20;

/// Words per record of each map.
pub(super) const TABLE: usize = 4;
pub(super) const TARGET: usize = 1 + MAX_HOPS;
pub(super) const HOP: usize = 10;
pub(super) const INCOMING: usize = 4;
pub(super) const INTERFACE: usize = 4;

/// Word of a hop record that is nonzero if the hop can be used.
pub(super) const IS_READY: usize = 8;

/// Targets left to the slow path, and discard targets.
const SLOW_PATH: u32 = 0;
const DISCARD: u32 = u32::MAX;

/// MAC addresses in the header of sent frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopAddresses {
    /// MAC address of the neighbor.
    pub to: Mac,
    /// MAC address of the interface.
    pub from: Mac,
}

/// Builds a `struct hop`, which is not ready until the MAC addresses are known.
pub(super) fn hop(hop: &Hop, stations: Option<HopAddresses>) -> [u32; HOP] {
    let depth = hop.labels().len() as u8;
    let [m0, m1] = hop.mtu.to_ne_bytes();
    let mut words = [0; HOP];
    words[0] = hop.interface;
    words[1] = u32::from_ne_bytes([m0, m1, depth, u8::from(hop.model == TunnelModel::Pipe)]);
    for (word, label) in words[2..2 + MAX_LABELS].iter_mut().zip(hop.labels()) {
        *word = label.number() << 12;
    }
    if let Some(HopAddresses { to, from }) = stations {
        let mut both = [0; 12];
        both[..6].copy_from_slice(&to);
        both[6..].copy_from_slice(&from);
        let (four, _) = both.as_chunks();
        words[5..8].iter_mut().zip(four).for_each(|(word, bytes)| *word = u32::from_ne_bytes(*bytes));
        words[IS_READY] = 1;
    }
    words
}

/// Builds a `struct target`. A target with more than [`MAX_HOPS`] hops is left to the slow path.
pub(super) fn target(target: &ForwardingTarget) -> [u32; TARGET] {
    let mut words = [0; TARGET];
    match target {
        ForwardingTarget::Hops(hops) if hops.len() <= MAX_HOPS => {
            words[0] = hops.len() as u32;
            words[1..=hops.len()].copy_from_slice(hops);
        }
        ForwardingTarget::Hops(_) | ForwardingTarget::Local => words[0] = SLOW_PATH,
        ForwardingTarget::Discard => words[0] = DISCARD,
    }
    words
}

/// Builds a `struct incoming`; `None` is an unassigned label.
pub(super) fn incoming(incoming: Option<&IncomingLabel>) -> [u32; INCOMING] {
    const SWAP: u32 = 1;
    const POP: u32 = 2;
    let Some(incoming) = incoming else { return [0; INCOMING] };
    let pipe = u32::from(incoming.model == TunnelModel::Pipe) << 2;
    let action = match incoming.action {
        LabelOperation::Swap { target } => SWAP | pipe | target << 3,
        LabelOperation::Pop { table } => POP | pipe | table << 3,
    };
    let [e0, e1, e2, e3, e4, e5, e6, e7] = incoming.expected.to_ne_bytes();
    [action, 0, u32::from_ne_bytes([e0, e1, e2, e3]), u32::from_ne_bytes([e4, e5, e6, e7])]
}

/// Builds a `struct interface`.
pub(super) fn interface(number: u32, incoming: IncomingInterface, mac: Mac) -> [u32; INTERFACE] {
    let [a, b, c, d, e, f] = mac;
    let flags = u8::from(incoming.mpls);
    let source_check = match incoming.source_check {
        SourceCheck::Off => 0,
        SourceCheck::Loose => 1,
        SourceCheck::Strict => 2,
    };
    let last = u32::from_ne_bytes([e, f, flags, source_check]);
    [number + 1, incoming.table, u32::from_ne_bytes([a, b, c, d]), last]
}
