//! Routes that a member has received from the route server, as sets of bits: members announce known prefixes only.

use netstage_routing::bgp::update::Update;
use netstage_scenario::plan::RouteServer;
use std::net::{IpAddr, Ipv4Addr};

/// Routes received and not withdrawn.
pub struct HeldRoutes {
    prefixes_per_member: u32,
    /// Addresses of the members.
    next_hops: Vec<IpAddr>,
    /// Prefixes with a route, and those whose route leads to another member than the holder, by number.
    held: Vec<u64>,
    foreign: Vec<u64>,
    by_holder: Vec<u32>,
    total: u32,
    hijacked: u32,
    received: u64,
}

/// Sets a bit and returns its previous value.
fn set(bits: &mut [u64], number: u32, value: bool) -> bool {
    let (word, bit) = (&mut bits[number as usize / 64], 1 << (number % 64));
    let before = *word & bit != 0;
    if value {
        *word |= bit
    } else {
        *word &= !bit
    }
    before
}

impl HeldRoutes {
    /// Creates an empty set. `addresses` are those of the members.
    pub fn new(server: &RouteServer, addresses: impl Iterator<Item = Ipv4Addr>) -> HeldRoutes {
        let prefixes_per_member = server.prefixes_per_member();
        let next_hops: Vec<IpAddr> = addresses.map(IpAddr::from).collect();
        let words = (next_hops.len() * prefixes_per_member as usize).div_ceil(64);
        HeldRoutes {
            prefixes_per_member,
            held: vec![0; words],
            foreign: vec![0; words],
            by_holder: vec![0; next_hops.len()],
            next_hops,
            total: 0,
            hijacked: 0,
            received: 0,
        }
    }

    /// Returns the number of routes.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Returns the number of routes that do not lead to the holder of the prefix, and of announcements of prefixes without
    /// a holder.
    pub fn hijacked(&self) -> u32 {
        self.hijacked
    }

    /// Returns the number of routes to prefixes of a member.
    pub fn by_holder(&self, member: usize) -> u32 {
        self.by_holder[member]
    }

    /// Returns the number of announced and withdrawn routes received since the last call.
    pub fn take_received(&mut self) -> u64 {
        std::mem::take(&mut self.received)
    }

    /// Applies an UPDATE message.
    pub fn apply(&mut self, update: &Update) {
        for destinations in update.unreachable() {
            for nlri in destinations {
                self.set(nlri.prefix.address(), nlri.prefix.length(), None);
            }
        }
        for (next_hop, destinations) in update.reachable() {
            for nlri in destinations {
                self.set(nlri.prefix.address(), nlri.prefix.length(), Some(next_hop));
            }
        }
    }

    /// Sets or removes the route of a prefix.
    fn set(&mut self, address: IpAddr, length: u8, next_hop: Option<IpAddr>) {
        self.received += 1;
        let IpAddr::V4(address) = address else { return };
        let holder = |number: &u32| (number / self.prefixes_per_member) as usize;
        let number = RouteServer::prefix_number(address, length);
        let Some(number) = number.filter(|number| holder(number) < self.next_hops.len()) else {
            self.hijacked += u32::from(next_hop.is_some());
            return;
        };
        let holder = holder(&number);
        let is_foreign = next_hop.is_some_and(|next_hop| next_hop != self.next_hops[holder]);
        let (before, is_held) = (set(&mut self.held, number, next_hop.is_some()), next_hop.is_some());
        let was_foreign = set(&mut self.foreign, number, is_foreign);
        for count in [&mut self.by_holder[holder], &mut self.total] {
            *count = *count + u32::from(is_held) - u32::from(before);
        }
        self.hijacked = self.hijacked + u32::from(is_foreign) - u32::from(was_foreign);
    }

    /// Removes all routes, as at the end of the session.
    pub fn clear(&mut self) {
        self.held.fill(0);
        self.foreign.fill(0);
        self.by_holder.fill(0);
        (self.total, self.hijacked) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::time::Instant;
    use netstage_scenario::plan::{EdgeRouter, LimitAction};

    #[test]
    fn routes_are_counted_by_holder_and_by_next_hop() {
        let server = RouteServer {
            name: "exchange".into(),
            node: 0,
            system: 64_500,
            lan: 1,
            members: (2..4).map(|node| EdgeRouter { node, system: 65_000 }).collect(),
            routes: 100,
            import_limit: None,
            limit_action: LimitAction::Block,
            rpki: false,
            changes: Vec::new(),
        };
        assert_eq!(server.accepted(0, Instant::ZERO), 100);
        let [first, second] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(Ipv4Addr::from);
        let mut routes = HeldRoutes::new(&server, [first, second].into_iter());
        let prefix = |number| IpAddr::from(RouteServer::prefix(number));
        let counts = |routes: &HeldRoutes| {
            (routes.total(), routes.by_holder(0), routes.by_holder(1), routes.hijacked())
        };
        routes.set(prefix(0), 24, Some(first.into()));
        routes.set(prefix(128), 24, Some(first.into()));
        assert_eq!(counts(&routes), (2, 1, 1, 1), "the second member holds prefix 128");
        routes.set(prefix(128), 24, Some(second.into()));
        routes.set(prefix(128), 24, Some(second.into()));
        assert_eq!(counts(&routes), (2, 1, 1, 0));
        routes.set(prefix(0), 24, None);
        routes.set(prefix(0), 24, None);
        assert_eq!(counts(&routes), (1, 0, 1, 0));
        routes.set(prefix(256), 24, Some(first.into()));
        assert_eq!(counts(&routes), (1, 0, 1, 1), "no member holds prefix 256");
        assert_eq!((routes.take_received(), routes.take_received()), (7, 0));
        routes.clear();
        assert_eq!(counts(&routes), (0, 0, 0, 0));
    }
}
