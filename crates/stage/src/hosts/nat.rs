//! Flows between agents of which at least one is behind NAT. Before the consents of a run, the agents search a path for
//! each of them. A run with a flow that no path admits is refused, and names both agents.

use super::ip_versions::NodeAddressLists;
use crate::topology::assignments::PlacedFlow;
use netstage_agent::controller::ControlledAgents;
use netstage_agent_api::path::{
    FoundPath, MAX_PATHS, NatMapping, PathAddresses, PathFlow, PathProtocol, PathSearch,
};
use netstage_agent_api::task::{Assignment, FlowSide, FlowTask, NatPath, TaskTransport};
use netstage_host::shared_key::PresharedKey;
use netstage_scenario::outcome::RunFailure;
use netstage_scenario::plan::{FlowGroup, FlowTransport, IpVersion, Plan};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// Cause and remedy of a missing path between two NATs with varying ports.
const BOTH_VARY: &str =
    "both NATs use another port for each destination, so that neither end can know the port of the other";
const VARYING_REMEDY: &str = "place one end at a host with a public or 1:1 address, give both hosts IPv6, or have one NAT keep its ports";

/// NATs in front of the agents of a plan, as far as the controller knows them.
pub struct KnownNats<'a> {
    /// Plan of the run.
    pub plan: &'a Plan,
    /// Name of the agent of each node.
    pub placed: &'a BTreeMap<usize, String>,
    /// Addresses of each agent as the controller sees them.
    pub mappings: BTreeMap<&'a str, &'a [NatMapping]>,
}

impl<'a> KnownNats<'a> {
    /// Returns the NATs of connected agents.
    pub fn of_agents(
        plan: &'a Plan,
        placed: &'a BTreeMap<usize, String>,
        agents: &'a ControlledAgents,
    ) -> KnownNats<'a> {
        let mappings = placed.values().map(|agent| (agent.as_str(), agents.mappings(agent)));
        KnownNats { plan, placed, mappings: mappings.collect() }
    }

    fn translated(&self, node: usize) -> Option<&NatMapping> {
        let mappings = self.mappings.get(self.placed.get(&node)?.as_str())?;
        mappings.iter().find(|mapping| mapping.is_translated())
    }

    fn configured(&self, node: usize) -> Option<IpAddr> {
        self.plan.nodes[node].placement.as_ref()?.address
    }

    /// Returns whether a NAT is in front of a node whose address the scenario does not set.
    fn is_hidden(&self, node: usize) -> bool {
        self.translated(node).is_some() && self.configured(node).is_none()
    }

    /// Returns the indices of the flow groups that pass a NAT. Addresses in [place] at both ends are those of a network
    /// without NAT.
    pub fn translated_groups(&self) -> BTreeSet<usize> {
        let passes = |group: &FlowGroup| {
            if group.transport.is_one_ended() {
                return self.is_hidden(group.to);
            }
            let ends = [group.from, group.to];
            ends.iter().any(|node| self.translated(*node).is_some())
                && ends.iter().any(|node| self.configured(*node).is_none())
        };
        let groups = self.plan.flows.iter().enumerate();
        groups.filter(|(_, group)| passes(group)).map(|(index, _)| index).collect()
    }

    /// Returns why flows of these groups cannot pass a NAT, whatever its kind.
    pub fn refusals(&self, groups: &BTreeSet<usize>) -> Vec<String> {
        let mut refusals = Vec::new();
        for group in groups.iter().map(|index| &self.plan.flows[*index]) {
            let hidden = [group.from, group.to].into_iter().filter(|node| self.is_hidden(*node));
            let hidden: Vec<String> = hidden.map(|node| self.describe(node)).collect();
            let (hidden, name) = (hidden.join(" and "), &group.name);
            let at = "set the `address` of both nodes in [place], if a network without NAT connects them";
            let reason = match &group.transport {
                _ if group.program.is_some() => {
                    format!("service.{name}: services do not pass the NAT of {hidden}; {at}")
                }
                FlowTransport::Multicast(_) => {
                    format!("flow.{name}: multicast does not pass the NAT of {hidden}; {at}")
                }
                FlowTransport::Stamp { .. } => format!(
                    "flow.{name}: STAMP flows do not pass the NAT of {hidden}; use transport = \"udp\", or {at}"
                ),
                FlowTransport::IcmpEcho | FlowTransport::UdpUnreachable => format!(
                    "flow.{name}: {} cannot be probed through its NAT; use transport = \"udp\", or {at}",
                    self.describe(group.to)
                ),
                FlowTransport::Tcp(_) if self.plan.measure.tcp_events => format!(
                    "flow.{name}: window events are not recorded through the NAT of {hidden}; remove `tcp` from [measure], or {at}"
                ),
                _ => continue,
            };
            refusals.push(reason);
        }
        for node in self.placed.keys() {
            let nat = self.translated(*node);
            if let Some(address) = self.configured(*node)
                && nat.is_some_and(|mapping| mapping.mapped.ip() == address)
            {
                refusals.push(format!(
                    "node.{}: {address} is no address of {}; remove it from [place], and the agents find the \
                     address of the NAT",
                    self.plan.nodes[*node].name,
                    self.describe(*node)
                ));
            }
        }
        refusals
    }

    /// Returns whether the port of a node depends on the destination at each address that the controller knows.
    fn varies(&self, node: usize) -> bool {
        let mappings = self.placed.get(&node).and_then(|agent| self.mappings.get(agent.as_str()));
        mappings.is_some_and(|mappings| {
            !mappings.is_empty() && mappings.iter().all(|mapping| mapping.is_translated() && mapping.varies)
        })
    }

    /// Returns whether both ends of a flow are behind NATs with varying ports, and not behind the same one.
    fn are_both_varying(&self, group: &FlowGroup) -> bool {
        let public = |node: usize| self.translated(node).map(|mapping| mapping.mapped.ip());
        self.varies(group.from) && self.varies(group.to) && public(group.from) != public(group.to)
    }

    /// Returns why flows of these groups have no path, as far as the kinds of the NATs determine it: both ends would have to
    /// know the port of the other, and neither can.
    pub fn unreachable(&self, groups: &BTreeSet<usize>, addresses: &NodeAddressLists) -> Vec<String> {
        let groups = groups.iter().map(|index| &self.plan.flows[*index]);
        let unreachable = groups.filter(|group| {
            let is_searched =
                matches!(group.transport, FlowTransport::Udp | FlowTransport::Quic | FlowTransport::Tcp(_))
                    && group.program.is_none();
            let have_ipv6 = [group.from, group.to].iter().all(|node| addresses.has(*node, IpVersion::V6));
            is_searched && !have_ipv6 && self.are_both_varying(group)
        });
        let reason = |group: &FlowGroup| {
            let [from, to] = [group.from, group.to].map(|node| self.describe(node));
            let network =
                "set the `address` of both nodes in [place], if a network without NAT connects them";
            format!(
                "flow.{}: no path from {from} to {to}: {BOTH_VARY}; {VARYING_REMEDY}, or {network}",
                group.name
            )
        };
        unreachable.map(reason).collect()
    }

    /// Returns a node's agent with the NAT in front of it.
    fn describe(&self, node: usize) -> String {
        let agent = &self.placed[&node];
        match self.translated(node) {
            Some(mapping) => format!("agent {agent} (behind NAT {mapping})"),
            None => format!("agent {agent}"),
        }
    }
}

/// Connected agents and their nodes.
pub struct PlacedAgents<'a> {
    /// NATs in front of the agents.
    pub nats: KnownNats<'a>,
    /// Connected agents.
    pub agents: &'a ControlledAgents,
}

impl PlacedAgents<'_> {
    /// Returns an address of a node in any IP version, until a path determines the one that is used.
    pub fn any_address(&self, node: usize) -> Result<IpAddr, RunFailure> {
        let agent = &self.nats.placed[&node];
        let first = self.agents.addresses(agent).iter().find(|address| !address.is_loopback());
        self.nats.configured(node).or(first.copied()).ok_or_else(|| {
            RunFailure::Failed(format!(
                "node.{}: agent {agent} reports no address",
                self.nats.plan.nodes[node].name
            ))
        })
    }

    /// Searches the paths of all flows of these groups, and adds them to the assignments.
    pub fn add_paths(
        &self,
        groups: &BTreeSet<usize>,
        members: &[PlacedFlow],
        parts: &mut [(String, Assignment)],
    ) -> Result<(), RunFailure> {
        let group_of = |id: u32| members.get(id as usize).map(|member| member.group);
        let is_searched = |flow: &FlowTask| group_of(flow.id).is_some_and(|group| groups.contains(&group));
        let searches = self.searches(members, parts, is_searched)?;
        if searches.is_empty() {
            return Ok(());
        }
        let offers = self.agents.open_paths(&searches)?;
        let peers = searches.iter().map(|(agent, search)| {
            let others = offers.iter().filter(|(other, _)| *other != agent).flat_map(|(_, offers)| offers);
            let is_peer = |offer: &&PathAddresses| search.flows.iter().any(|flow| flow.id == offer.id);
            (agent.clone(), others.filter(is_peer).cloned().collect())
        });
        let found = self.agents.check_paths(&peers.collect())?;
        let mut failures = Vec::new();
        for (id, group) in (0..).zip(members).map(|(id, member)| (id, &self.nats.plan.flows[member.group])) {
            let ends = [group.from, group.to].map(|node| &self.nats.placed[&node]);
            let mut tasks = parts.iter_mut().flat_map(|(_, part)| &mut part.flows);
            let Some(first) = tasks.find(|task| task.id == id && is_searched(task)) else { continue };
            let results = ends.map(|agent| found.get(agent).map(Vec::as_slice).unwrap_or_default());
            match path(first, results) {
                Some(path) => {
                    path.apply(first);
                    tasks.filter(|task| task.id == id).for_each(|task| path.apply(task));
                }
                None => failures.push(self.failure(first, group, ends, &offers)),
            }
        }
        match failures.is_empty() {
            true => Ok(()),
            false => Err(RunFailure::Unsupported(failures.join("\n"))),
        }
    }

    /// Returns the search of each agent.
    fn searches(
        &self,
        members: &[PlacedFlow],
        parts: &[(String, Assignment)],
        is_searched: impl Fn(&FlowTask) -> bool,
    ) -> Result<BTreeMap<String, PathSearch>, RunFailure> {
        let key = PresharedKey::generate().map_err(|error| RunFailure::Failed(error.to_string()))?;
        let mut searches = BTreeMap::new();
        for (agent, part) in parts {
            let received = part.flows.iter().filter(|task| task.side == FlowSide::Receive);
            // Senders over TCP listen at the ports behind those of the received flows.
            let mut next_port = received.map(|task| task.destination.port()).max().unwrap_or(5000);
            let flow = |task: &FlowTask| {
                let group = &self.nats.plan.flows[members[task.id as usize].group];
                let protocol = match task.transport {
                    TaskTransport::Tcp(_) => PathProtocol::Tcp,
                    _ => PathProtocol::Udp,
                };
                let port = match (task.side, protocol) {
                    (FlowSide::Receive, _) => task.destination.port(),
                    (FlowSide::Send, PathProtocol::Udp) => 0,
                    (FlowSide::Send, PathProtocol::Tcp) => {
                        next_port += 1;
                        next_port
                    }
                };
                let node = if task.side == FlowSide::Send { group.from } else { group.to };
                let address = self.nats.configured(node);
                let only_ipv6 = group.family == IpVersion::V6;
                PathFlow { id: task.id, side: task.side, protocol, port, address, only_ipv6 }
            };
            let flows: Vec<PathFlow> = part.flows.iter().filter(|task| is_searched(task)).map(flow).collect();
            if flows.len() > MAX_PATHS {
                return Err(RunFailure::Unsupported(format!(
                    "agent {agent}: {} flows through NATs exceed the limit of {MAX_PATHS}; reduce `count`, or \
                     distribute them over several agents",
                    flows.len()
                )));
            }
            if !flows.is_empty() {
                searches.insert(agent.clone(), PathSearch { key: key.to_hexadecimal(), flows });
            }
        }
        Ok(searches)
    }

    /// Describes why a flow has no path, and what would admit one.
    fn failure(
        &self,
        task: &FlowTask,
        group: &FlowGroup,
        ends: [&String; 2],
        offers: &BTreeMap<String, Vec<PathAddresses>>,
    ) -> String {
        let versions = ends.map(|agent| {
            let offered = offers.get(agent).into_iter().flatten().filter(|offer| offer.id == task.id);
            offered.flat_map(|offer| &offer.addresses).map(|at| at.is_ipv4()).collect::<BTreeSet<bool>>()
        });
        let (why, remedy) = if versions[0].is_disjoint(&versions[1]) {
            ("they have no IP version in common", "give both an address of one IP version")
        } else if matches!(task.transport, TaskTransport::Tcp(_)) && task.traffic.application().is_some() {
            (
                "the server does not accept the client's connections through its NAT",
                "place the server at a host with a public or 1:1 address, or use IPv6",
            )
        } else if matches!(task.transport, TaskTransport::Tcp(_)) {
            (
                "neither can open a TCP connection to the other",
                "use transport = \"udp\" or \"quic\", place one end at a host with a public or 1:1 address, or use IPv6",
            )
        } else if self.nats.are_both_varying(group) {
            (BOTH_VARY, VARYING_REMEDY)
        } else {
            (
                "their path checks over UDP were not answered",
                "place one end at a host with a public or 1:1 address, or behind a NAT that accepts packets of \
                 any host, use IPv6, and open the ports of flows in firewalls",
            )
        };
        let [from, to] = [group.from, group.to].map(|node| self.nats.describe(node));
        format!("flow.{}: no path from {from} to {to}: {why}; {remedy}", task.name)
    }
}

/// Local addresses of a flow's ends, and the path between them.
struct FlowPath {
    source: SocketAddr,
    destination: SocketAddr,
    nat: NatPath,
}

impl FlowPath {
    fn apply(&self, task: &mut FlowTask) {
        (task.source, task.destination, task.nat) = (self.source, self.destination, Some(self.nat));
    }
}

/// Returns the path of a flow that both ends have found: sender and receiver.
fn path(task: &FlowTask, [sender, receiver]: [&[FoundPath]; 2]) -> Option<FlowPath> {
    let of = |found: &[FoundPath], has_opened: bool| {
        found.iter().copied().find(|path| (path.id, path.has_opened) == (task.id, has_opened))
    };
    let path = |source: FoundPath, destination: FoundPath, opened_by| FlowPath {
        source: source.local,
        destination: destination.local,
        nat: NatPath { source: destination.remote, destination: source.remote, opened_by },
    };
    if !matches!(task.transport, TaskTransport::Tcp(_)) {
        return Some(path(of(sender, false)?, of(receiver, false)?, FlowSide::Send));
    }
    if let (Some(opened), Some(accepted)) = (of(sender, true), of(receiver, false)) {
        return Some(path(opened, accepted, FlowSide::Send));
    }
    // A client opens its connections itself.
    let (accepted, opened) = (of(sender, false)?, of(receiver, true)?);
    let local = SocketAddr::new(opened.local.ip(), task.destination.port());
    task.traffic
        .application()
        .is_none()
        .then(|| path(accepted, FoundPath { local, ..opened }, FlowSide::Receive))
}

/// Describes the flows that pass NATs, for the record.
pub fn remarks(parts: &[(String, Assignment)]) -> Vec<String> {
    let sent = parts.iter().flat_map(|(_, part)| &part.flows).filter(|task| task.side == FlowSide::Send);
    let translated = sent.filter_map(|task| Some((task, task.nat?)));
    let remark = |(task, path): (&FlowTask, NatPath)| {
        let opened_by = match (&task.transport, path.opened_by) {
            (TaskTransport::Tcp(_), FlowSide::Receive) => "; the receiver opens the connection",
            _ => "",
        };
        format!(
            "flow {} passes NAT: its sender {} appears as {}, and reaches its receiver {} at {}{opened_by}",
            task.name,
            task.source.ip(),
            path.source.ip(),
            task.destination.ip(),
            path.destination
        )
    };
    translated.map(remark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_agent_api::task::TcpOptions;
    use netstage_core::quantity::BitRate;
    use netstage_core::time::Duration;
    use netstage_core::traffic::Pattern;

    fn found(local: &str, remote: &str, has_opened: bool) -> FoundPath {
        FoundPath { id: 1, local: local.parse().unwrap(), remote: remote.parse().unwrap(), has_opened }
    }

    #[test]
    fn a_path_needs_both_ends_and_prefers_connections_of_the_sender() {
        let ends = ["10.0.0.1:0", "10.0.0.2:5001"].map(|end| end.parse().unwrap());
        let pattern = Pattern::Cbr { rate: BitRate(1), packet: 100 };
        let udp = FlowTask::udp("f", FlowSide::Send, ends, pattern, Duration::from_secs(1));
        let tcp = FlowTask { transport: TaskTransport::Tcp(TcpOptions::default()), ..udp.clone() };
        let (sender, receiver) = (
            found("10.0.0.1:4001", "192.0.2.2:5001", false),
            found("10.0.0.2:5001", "192.0.2.1:4001", false),
        );
        let described = |task: &FlowTask, sender: &[FoundPath], receiver: &[FoundPath]| {
            let path = path(task, [sender, receiver])?;
            let addresses = [path.source, path.destination, path.nat.source, path.nat.destination];
            Some((addresses.map(|at| at.to_string()), path.nat.opened_by))
        };
        let text = |addresses: [&str; 4]| addresses.map(String::from);
        let direct = ["10.0.0.1:4001", "10.0.0.2:5001", "192.0.2.1:4001", "192.0.2.2:5001"];
        assert_eq!(described(&udp, &[sender], &[receiver]), Some((text(direct), FlowSide::Send)));
        assert_eq!(described(&udp, &[sender], &[]), None);
        let opened =
            (found("10.0.0.1:0", "192.0.2.2:5001", true), found("10.0.0.2:0", "192.0.2.1:4001", true));
        let accepted =
            (found("10.0.0.1:4001", "192.0.2.2:0", false), found("10.0.0.2:5001", "192.0.2.1:0", false));
        let forward = ["10.0.0.1:0", "10.0.0.2:5001", "192.0.2.1:0", "192.0.2.2:5001"];
        let both = described(&tcp, &[opened.0, accepted.0], &[accepted.1, opened.1]);
        assert_eq!(both, Some((text(forward), FlowSide::Send)));
        let reverse = ["10.0.0.1:4001", "10.0.0.2:5001", "192.0.2.1:4001", "192.0.2.2:0"];
        assert_eq!(described(&tcp, &[accepted.0], &[opened.1]), Some((text(reverse), FlowSide::Receive)));
        assert_eq!(described(&tcp, &[opened.0], &[opened.1]), None);
    }
}
