//! Hops of EXPLICIT_ROUTE and RECORD_ROUTE objects (RFC 3209 sections 4.3 and 4.4).

use super::RsvpError;
use crate::bytes::{u16_at, u32_at};
use crate::mpls::LabelValue;
use core::net::Ipv4Addr;

/// Length of the hops that this crate writes, bytes.
pub const HOP: usize = 8;
const IPV4: u8 = 1;
const LABEL: u8 = 3;
const AUTONOMOUS_SYSTEM: u8 = 32;
/// Flag of a hop that need not follow the previous one directly.
const LOOSE: u8 = 0x80;

/// Sequence of hops; valid framing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route<'a>(pub(super) &'a [u8]);

/// Hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteHop {
    /// Addresses of a prefix.
    Ipv4 {
        /// First address of the prefix.
        address: Ipv4Addr,
        /// Prefix length, bits; 32 selects one router.
        length: u8,
        /// Loose hop of an explicit route.
        is_loose: bool,
        /// Flags of a recorded hop (RFC 3209 section 4.4.1.1).
        flags: u8,
    },
    /// Label of a recorded route.
    Label(LabelValue),
    /// Autonomous system of an explicit route.
    AutonomousSystem(u16),
    /// Another type of hop.
    Unsupported(u8),
}

impl RouteHop {
    /// Returns a strict hop to one router.
    pub const fn strict(address: Ipv4Addr) -> RouteHop {
        RouteHop::Ipv4 { address, length: 32, is_loose: false, flags: 0 }
    }

    /// Returns a loose hop to one router.
    pub const fn loose(address: Ipv4Addr) -> RouteHop {
        RouteHop::Ipv4 { address, length: 32, is_loose: true, flags: 0 }
    }

    /// Encodes the hop; `None` for a type that is not written.
    pub fn to_bytes(self) -> Option<[u8; HOP]> {
        match self {
            RouteHop::Ipv4 { address, length, is_loose, flags } => {
                let [a, b, c, d] = address.octets();
                Some([IPV4 | if is_loose { LOOSE } else { 0 }, HOP as u8, a, b, c, d, length, flags])
            }
            RouteHop::Label(label) => {
                let [a, b, c, d] = label.number().to_be_bytes();
                Some([LABEL, HOP as u8, 0, 1, a, b, c, d])
            }
            RouteHop::AutonomousSystem(_) | RouteHop::Unsupported(_) => None,
        }
    }
}

impl<'a> Route<'a> {
    /// Checks the framing of hops. `class` is the class of the object, for the error.
    pub fn new(bytes: &'a [u8], class: u8) -> Result<Route<'a>, RsvpError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (_, after) = first(rest).ok_or(RsvpError::Malformed(class))?;
            rest = after;
        }
        Ok(Route(bytes))
    }

    /// Returns the encoded hops.
    pub const fn bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Iterates over the hops.
    pub fn hops(&self) -> impl Iterator<Item = RouteHop> + use<'a> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let (hop, after) = first(rest)?;
            rest = after;
            Some(hop)
        })
    }
}

fn first(bytes: &[u8]) -> Option<(RouteHop, &[u8])> {
    let [kind, length, ..] = *bytes else { return None };
    let length = usize::from(length);
    if length < 4 || !length.is_multiple_of(4) {
        return None;
    }
    let (hop, rest) = bytes.split_at_checked(length)?;
    let parsed = match (kind & !LOOSE, length) {
        (IPV4, HOP) if hop[6] <= 32 => RouteHop::Ipv4 {
            address: u32_at(hop, 2).into(),
            length: hop[6],
            is_loose: kind & LOOSE != 0,
            flags: hop[7],
        },
        (IPV4, _) => return None,
        (LABEL, HOP) if hop[3] == 1 => RouteHop::Label(LabelValue::new(u32_at(hop, 4))?),
        (AUTONOMOUS_SYSTEM, 4) => RouteHop::AutonomousSystem(u16_at(hop, 2)),
        (kind, _) => RouteHop::Unsupported(kind),
    };
    Some((parsed, rest))
}
