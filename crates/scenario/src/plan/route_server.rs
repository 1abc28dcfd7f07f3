//! Route server of an exchange (RFC 7947): its members, their prefixes, and their changes during a run.

use super::EdgeRouter;
use netstage_core::time::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// Route server on a LAN, with a BGP-4 session to each member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteServer {
    /// Name, as in `[service.NAME]`.
    pub name: String,
    /// Index of the route server's node.
    pub node: usize,
    /// Autonomous system number of the route server.
    pub system: u32,
    /// LAN of the route server and its members.
    pub lan: usize,
    /// Members.
    pub members: Vec<EdgeRouter>,
    /// Prefixes that each member announces at the start of the run.
    pub routes: u32,
    /// Maximum number of accepted prefixes of a member.
    pub import_limit: Option<u32>,
    /// Action on a member that exceeds the limit.
    pub limit_action: LimitAction,
    /// Rejects routes with an invalid origin.
    pub rpki: bool,
    /// Changes of members, by time.
    pub changes: Vec<MemberChange>,
}

/// Action on a member that exceeds its import limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitAction {
    /// Close the session permanently.
    Disable,
    /// Reject further prefixes.
    Block,
}

/// Change of a member during the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberChange {
    /// Time of the change.
    pub at: Instant,
    /// Index of the member.
    pub member: usize,
    /// Kind of change.
    pub action: MemberAction,
}

/// Kind of change of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberAction {
    /// Announces this number of further prefixes of its own.
    Announce(u32),
    /// Announces this number of prefixes of the next members.
    Leak(u32),
    /// Withdraws and announces its prefixes repeatedly for this time.
    Flood(Duration),
    /// Closes its session permanently.
    Shutdown,
}

impl MemberAction {
    /// Returns the name of the action in a scenario.
    pub fn name(self) -> &'static str {
        match self {
            MemberAction::Announce(_) => "announce",
            MemberAction::Leak(_) => "leak",
            MemberAction::Flood(_) => "flood",
            MemberAction::Shutdown => "shutdown",
        }
    }
}

impl MemberChange {
    /// Returns the time from which its effects are final.
    pub fn end(&self) -> Instant {
        match self.action {
            MemberAction::Flood(duration) => self.at + duration,
            _ => self.at,
        }
    }
}

impl RouteServer {
    /// Length of all announced prefixes.
    pub const PREFIX_LENGTH: u8 = 24;
    /// First address of the prefixes of the first member.
    const FIRST: u32 = 0x0100_0000;
    /// Number of prefixes of all members: up to 100.0.0.0, below the addresses of LANs and links.
    pub const MAX_PREFIXES: u64 = 99 << 16;

    /// Returns the subjects of `bgp.convergence`: the start, then the changes. `names` are those of the plan's nodes.
    pub fn change_names<'a>(&self, names: impl Fn(usize) -> &'a str) -> Vec<String> {
        let name = |change: &MemberChange| {
            format!("{}.{}", names(self.members[change.member].node), change.action.name())
        };
        std::iter::once(format!("{}.start", self.name)).chain(self.changes.iter().map(name)).collect()
    }

    /// Returns the names of the programs: the RTR server, if any, and the route server.
    pub fn programs(&self) -> &'static [&'static str] {
        if self.rpki { &["stayrtr", "bird"] } else { &["bird"] }
    }

    /// Returns the number of prefixes of each member, a power of two, including those not announced.
    pub fn prefixes_per_member(&self) -> u32 {
        let all = (0..self.members.len()).map(|member| self.announced(member, Instant::NEVER));
        all.max().unwrap_or(0).next_power_of_two()
    }

    /// Returns the address of the prefix with this number, counted over the members in their order.
    pub fn prefix(number: u32) -> Ipv4Addr {
        Ipv4Addr::from(RouteServer::FIRST + (number << (32 - RouteServer::PREFIX_LENGTH)))
    }

    /// Returns the number of the prefix with this address and length; `None` for other lengths and lower addresses.
    pub fn prefix_number(address: Ipv4Addr, length: u8) -> Option<u32> {
        let offset = u32::from(address).checked_sub(RouteServer::FIRST)?;
        (length == RouteServer::PREFIX_LENGTH).then_some(offset >> (32 - RouteServer::PREFIX_LENGTH))
    }

    /// Returns the number of its own prefixes that a member has announced by a time.
    pub fn announced(&self, member: usize, time: Instant) -> u32 {
        let changes = self.changes.iter().filter(|change| change.member == member && change.at <= time);
        let further = changes.map(|change| match change.action {
            MemberAction::Announce(routes) => routes,
            _ => 0,
        });
        further.fold(self.routes, u32::saturating_add)
    }

    /// Returns the number of prefixes of a member that the route server accepts after the changes up to a time.
    pub fn accepted(&self, member: usize, time: Instant) -> u32 {
        let mut changes = self.changes.iter().filter(|change| change.member == member && change.at <= time);
        if changes.any(|change| change.action == MemberAction::Shutdown) {
            return 0;
        }
        let announced = self.announced(member, time);
        match (self.import_limit, self.limit_action) {
            (Some(limit), LimitAction::Disable) if announced > limit => 0,
            (Some(limit), LimitAction::Block) => announced.min(limit),
            _ => announced,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_prefixes_follow_the_changes() {
        let change = |seconds: u64, member, action| MemberChange {
            at: Instant::ZERO + Duration::from_secs(seconds),
            member,
            action,
        };
        let mut server = RouteServer {
            name: "exchange".into(),
            node: 0,
            system: 64_500,
            lan: 1,
            members: (2..5).map(|node| EdgeRouter { node, system: 65_000 + node as u32 }).collect(),
            routes: 100,
            import_limit: Some(150),
            limit_action: LimitAction::Disable,
            rpki: true,
            changes: vec![
                change(1, 0, MemberAction::Leak(200)),
                change(2, 1, MemberAction::Announce(100)),
                change(3, 2, MemberAction::Shutdown),
            ],
        };
        let at = |server: &RouteServer, seconds| {
            let time = Instant::ZERO + Duration::from_secs(seconds);
            [0, 1, 2].map(|member| server.accepted(member, time))
        };
        assert_eq!(at(&server, 1), [100, 100, 100]);
        assert_eq!(at(&server, 2), [100, 0, 100]);
        assert_eq!(at(&server, 3), [100, 0, 0]);
        server.limit_action = LimitAction::Block;
        assert_eq!(at(&server, 3), [100, 150, 0]);
        server.import_limit = None;
        assert_eq!(at(&server, 3), [100, 200, 0]);
        // Member 1 has 200 prefixes, so each member has 256.
        assert_eq!(server.prefixes_per_member(), 256);
        assert_eq!(RouteServer::prefix(256), Ipv4Addr::new(1, 1, 0, 0));
        assert_eq!(RouteServer::prefix_number(Ipv4Addr::new(1, 1, 0, 0), 24), Some(256));
        assert_eq!(RouteServer::prefix_number(Ipv4Addr::new(1, 1, 0, 0), 23), None);
    }
}
