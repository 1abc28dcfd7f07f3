//! Route server of an exchange, and checks of its configuration.

use super::{Builder, NodeGraph};
use crate::error::{SourceRange, did_you_mean};
use crate::file::service::{Bird, MemberChangeTable, ServiceTable};
use crate::plan::{EdgeRouter, MemberAction, MemberChange, NodeKind, RouteServer};
use crate::scalar::NodeName;
use crate::table::Located;
use netstage_core::time::{Duration, Instant};

impl Builder<'_, '_> {
    /// Returns the route server, if the file has one; `None` if problems were reported.
    pub(super) fn route_server(
        &mut self,
        network: &NodeGraph,
        end: Option<Instant>,
    ) -> Option<Option<RouteServer>> {
        let file = self.file;
        let services = file.service.0.iter().filter_map(|member| match member.value.as_deref() {
            Some(ServiceTable::Bird(bird)) => Some((member, bird)),
            _ => None,
        });
        let found: Vec<_> = services.collect();
        let [first, others @ ..] = &found[..] else { return Some(None) };
        if let Some((other, _)) = others.first() {
            let message = format!("`{}` is already a route server", first.0.name);
            self.problems.push_help(
                other.place,
                message,
                "a scenario has one route server: remove the other",
            );
            return None;
        }
        let before = self.problems.found();
        let (member, bird) = first;
        let server = self.bird(&member.name, bird, network, end);
        server.filter(|_| self.problems.found() == before).map(Some)
    }

    fn bird(
        &mut self,
        name: &str,
        bird: &Bird,
        network: &NodeGraph,
        end: Option<Instant>,
    ) -> Option<RouteServer> {
        let node = self.node(&bird.server)?;
        let is_lan = |node: &usize| network.kinds[*node] == NodeKind::Lan;
        let Some(lan) = network.topology.neighbors(node).find(is_lan) else {
            let message = format!("no link connects `{}` to a LAN", network.names[node]);
            let help = "add a link from it to a node of kind \"lan\"";
            self.problems.push_help(bird.server.place, message, help);
            return None;
        };
        let members = self.members(bird, network, [node, lan]);
        if members.len() < 2 {
            let message = "a route server distributes routes among its members: list at least two";
            self.problems.push(bird.members.place, message);
        }
        let mut changes: Vec<MemberChange> = Vec::new();
        for change in &bird.schedule.0 {
            changes.extend(self.member_change(change, &members, end));
        }
        changes.sort_by_key(|change| change.at);
        let server = RouteServer {
            name: name.into(),
            node,
            system: bird.server_as.0 as u32,
            lan,
            members,
            routes: bird.routes.value.0 as u32,
            import_limit: bird.import_limit.as_ref().map(|limit| limit.value.0 as u32),
            limit_action: bird.limit_action,
            rpki: bird.rpki,
            changes,
        };
        self.check_prefixes(bird, &server);
        Some(server)
    }

    /// Returns the members. `taken` are the nodes of the route server and the LAN.
    fn members(&mut self, bird: &Bird, network: &NodeGraph, [node, lan]: [usize; 2]) -> Vec<EdgeRouter> {
        let mut members = Vec::new();
        for member in bird.members.0.iter() {
            let Some(index) = self.file.node.index(&member.name) else {
                let help = did_you_mean(&member.name, self.file.node.names());
                let message = format!("unknown node `{}`", member.name.escape_debug());
                self.problems.push_with_help(member.place, message, help);
                continue;
            };
            let name = &network.names[index];
            if index == node {
                let message = format!("`{name}` is the route server");
                self.problems.push_help(member.place, message, "remove it from `members`");
            } else if !network.topology.neighbors(index).any(|neighbor| neighbor == lan) {
                let message = format!("no link connects `{name}` to the LAN `{}`", network.names[lan]);
                let help = "a member needs a link to the LAN of the route server";
                self.problems.push_help(member.place, message, help);
            } else if !matches!(network.kinds[index], NodeKind::Host | NodeKind::Router) {
                let message = format!("`{name}` is neither a host nor a router");
                self.problems.push_help(member.place, message, "set kind = \"host\" or \"router\"");
            }
            let Some(system) = &member.value else { continue };
            members.push(EdgeRouter { node: index, system: system.0 as u32 });
        }
        members
    }

    fn member_change(
        &mut self,
        change: &MemberChangeTable,
        members: &[EdgeRouter],
        end: Option<Instant>,
    ) -> Option<MemberChange> {
        let (at, member, action): (&Located<Duration>, &Located<NodeName>, MemberAction) = match change {
            MemberChangeTable::Announce(table) => {
                (&table.at, &table.member, MemberAction::Announce(table.routes.value.0 as u32))
            }
            MemberChangeTable::Leak(table) => {
                (&table.at, &table.member, MemberAction::Leak(table.routes.value.0 as u32))
            }
            MemberChangeTable::Flood(table) => {
                (&table.at, &table.member, MemberAction::Flood(table.duration.0))
            }
            MemberChangeTable::Shutdown(table) => (&table.at, &table.member, MemberAction::Shutdown),
        };
        let node = self.node(member)?;
        let Some(index) = members.iter().position(|member| member.node == node) else {
            let message = format!("`{}` is no member of the route server", member.value.0);
            self.problems.push_help(member.place, message, "list it in `members`");
            return None;
        };
        let change = MemberChange { at: Instant::ZERO + at.value, member: index, action };
        if end.is_some_and(|end| change.end() >= end) {
            let help = "the change must end before the run does";
            self.problems.push_help(at.place, "this is after the end of the run", help);
        }
        Some(change)
    }

    fn check_prefixes(&mut self, bird: &Bird, server: &RouteServer) {
        let all = server.members.len() as u64 * u64::from(server.prefixes_per_member());
        if all > RouteServer::MAX_PREFIXES {
            let message = format!(
                "the members have {all} prefixes, more than the {} between 1.0.0.0 and 100.0.0.0",
                RouteServer::MAX_PREFIXES
            );
            let help = "the number of a member is rounded up to a power of two: decrease `routes`";
            self.problems.push_help(bird.routes.place, message, help);
        }
        if let Some(limit) = bird.import_limit.as_ref().filter(|limit| limit.value.0 < bird.routes.value.0) {
            let help = "set at least the number of `routes`";
            self.problems.push_help(limit.place, "members exceed `import_limit` from the start", help);
        }
        let mut leaks = bird.schedule.0.iter().filter_map(|change| match change {
            MemberChangeTable::Leak(leak) => Some((leak.routes.value.0, leak.routes.place)),
            _ => None,
        });
        let others = (server.members.len() as u64).saturating_sub(1) * bird.routes.value.0;
        let too_many: Option<(u64, SourceRange)> = leaks.find(|(routes, _)| *routes > others);
        if let Some((_, place)) = too_many {
            let message = format!("the other members announce only {others} prefixes");
            self.problems.push_help(place, message, "decrease `routes` of the change");
        }
    }
}
