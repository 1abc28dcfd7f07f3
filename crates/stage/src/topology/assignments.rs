//! Assignments of the agents: the flow tasks of each node.

use super::address;
use super::layout::AddressLayout;
use super::services;
use netstage_agent_api::task::{
    Assignment, FlowSide, FlowTask, OneEnded, TaskTransport, TcpOptions, UdpOptions,
};
use netstage_agent_api::watch::{FlowSpec, WatchedEndpoint};
use netstage_core::quantity::BitRate;
use netstage_core::time::{Duration, Instant};
use netstage_scenario::plan::{self, FlowDirection, FlowGroup, Plan};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Ports on which flows are received, below the ephemeral ports of the system.
const PORTS: std::ops::RangeInclusive<u16> = 5001..=32_000;

/// Flow of the plan with its addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlacedFlow {
    /// Index of the flow group.
    pub group: usize,
    /// Index in the flow group.
    pub index: usize,
    /// Address of the sender.
    pub source: IpAddr,
    /// Address and port of the receiver; for multicast, of the group.
    pub destination: SocketAddr,
}

/// Error: more flows to one address than ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooManyFlows {
    /// Name of the host.
    pub host: String,
}

impl fmt::Display for TooManyFlows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = PORTS.end() - PORTS.start() + 1;
        write!(
            f,
            "node.{}: more than {limit} flows to one address; distribute them over several hosts",
            self.host
        )
    }
}

/// Returns all flows of a plan in its order. The index of a flow is its number.
pub fn members(plan: &Plan, layout: &AddressLayout) -> Result<Vec<PlacedFlow>, TooManyFlows> {
    members_at(plan, |group| {
        let (flows, placed) = (&plan.flows[group], &layout.groups[group]);
        let source = address::node_address(flows.family, flows.from, placed.source);
        let destination = match &layout.trees[group] {
            Some(tree) => tree.group,
            None => address::node_address(flows.family, flows.to, placed.destination),
        };
        (source, destination)
    })
}

/// Like [`members`], with the addresses of the sender and the receiver of each flow group.
pub fn members_at(
    plan: &Plan,
    addresses: impl Fn(usize) -> (IpAddr, IpAddr),
) -> Result<Vec<PlacedFlow>, TooManyFlows> {
    let mut next_port: BTreeMap<IpAddr, u16> = BTreeMap::new();
    let mut members = Vec::new();
    for (group, flows) in plan.flows.iter().enumerate() {
        let (source, destination) = addresses(group);
        for index in 0..flows.count {
            let port = next_port.entry(destination).or_insert(*PORTS.start());
            if !PORTS.contains(port) {
                return Err(TooManyFlows { host: plan.nodes[flows.to].name.clone() });
            }
            let member =
                PlacedFlow { group, index, source, destination: SocketAddr::new(destination, *port) };
            *port = services::data_port(flows, member.destination).unwrap_or(*port) + 1;
            members.push(member);
        }
    }
    Ok(members)
}

/// Returns the TCP flows to watch, each with its sending node, if the plan requests it. Both ends of an application or
/// a service send.
pub fn watched_flows(plan: &Plan, members: &[PlacedFlow]) -> Vec<(usize, FlowSpec)> {
    let ends = |member: &PlacedFlow| -> Vec<(usize, FlowSpec)> {
        let group = &plan.flows[member.group];
        if !matches!(group.transport, plan::FlowTransport::Tcp(_)) {
            return Vec::new();
        }
        let subject = plan.flow_name(member.group, member.index);
        let source = WatchedEndpoint::any(member.source);
        let port = services::data_port(group, member.destination).unwrap_or(member.destination.port());
        let destination = WatchedEndpoint::at(SocketAddr::new(member.destination.ip(), port));
        if group.traffic.application().is_none() {
            return vec![(group.from, FlowSpec { subject, source, destination })];
        }
        let forward = FlowSpec { subject: FlowDirection::Forward.subject(&subject), source, destination };
        let subject = FlowDirection::Backward.subject(&subject);
        let reverse = FlowSpec { subject, source: destination, destination: source };
        vec![(group.from, forward), (group.to, reverse)]
    };
    match plan.measure.tcp_events {
        true => members.iter().flat_map(ends).collect(),
        false => Vec::new(),
    }
}

/// Returns the assignment of each node with flows, by index of the node. Services are not assigned to agents.
pub fn assignments(plan: &Plan, members: &[PlacedFlow], seed: u64) -> BTreeMap<usize, Assignment> {
    let mut assignments: BTreeMap<usize, Assignment> = BTreeMap::new();
    let mut assign = |node: usize, task: FlowTask| {
        let assignment = assignments.entry(node).or_insert_with(|| Assignment::new(plan, node, seed));
        assignment.flows.push(task);
    };
    for (id, member) in members.iter().enumerate() {
        let group = &plan.flows[member.group];
        if group.program.is_some() {
            continue;
        }
        let task = task(plan, group, member, id as u32);
        if !group.transport.is_one_ended() {
            for (node, name) in plan.receivers(member.group, member.index) {
                assign(node, FlowTask { name, side: FlowSide::Receive, ..task.clone() });
            }
        }
        assign(group.from, task);
    }
    assignments
}

/// Returns whether packets carry their send time by the sender's clock.
pub fn has_timestamps(transport: &plan::FlowTransport) -> bool {
    !transport.is_one_ended() && !matches!(transport, plan::FlowTransport::Tcp(_))
}

/// Returns the task of a flow's sender.
fn task(plan: &Plan, group: &FlowGroup, member: &PlacedFlow, id: u32) -> FlowTask {
    let start = group.start.since(Instant::ZERO) + group.stagger * member.index as u64;
    let name = plan.flow_name(member.group, member.index);
    // The replying host belongs to the run, so the rate needs no limit. The load of a trial is fixed.
    let unlimited = OneEnded { limit: Some(BitRate(u64::MAX)), keep_rate: name.starts_with("test.") };
    let transport = match &group.transport {
        plan::FlowTransport::Tcp(tcp) => TaskTransport::Tcp(TcpOptions::from(tcp)),
        plan::FlowTransport::Udp => TaskTransport::Udp(UdpOptions {
            checksum_zero: !group.datagrams.checksum,
            compare_payload: group.datagrams.compare,
            batch: group.datagrams.batch,
            spin: group.datagrams.spin,
        }),
        plan::FlowTransport::Multicast(group) => TaskTransport::Multicast {
            source: group.source_specific.then_some(member.source),
            ttl: group.hops,
            receiver: None,
        },
        plan::FlowTransport::IcmpEcho => TaskTransport::IcmpEcho(unlimited),
        plan::FlowTransport::UdpUnreachable => TaskTransport::UdpUnreachable(unlimited),
        plan::FlowTransport::Quic => TaskTransport::Quic,
        &plan::FlowTransport::Stamp { interval } => TaskTransport::Stamp { interval },
    };
    FlowTask {
        name,
        id,
        side: FlowSide::Send,
        transport,
        source: SocketAddr::new(member.source, 0),
        destination: member.destination,
        traffic: group.traffic.clone(),
        start,
        stop: group.stop.since(Instant::ZERO).min(plan.duration).max(Duration::ZERO),
        detail: plan.measure.flow_detail || plan.measure.delay,
        settled: Duration::ZERO,
        traffic_class: group.datagrams.dscp << 2,
        nat: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::labels::labels;
    use crate::topology::plan_of;
    use netstage_harness::scenario::network;

    #[test]
    fn a_stamp_session_has_a_reflector_and_one_label() {
        let text = r#"
            [scenario]
            duration = "1 s"
            [node.a]
            [node.b]
            [link.l]
            ends = ["a", "b"]
            rate = "10 Mbit/s"
            buffer = "10 packets"
            [flow.sla]
            from = "a"
            to = "b"
            transport = "udp"
            traffic = { model = "cbr", rate = "64 kbit/s", packet = "160 B" }"#;
        let mut plan = plan_of(text);
        let interval = Duration::from_millis(20);
        plan.flows[0].transport = plan::FlowTransport::Stamp { interval };
        let layout = AddressLayout::new(&plan).unwrap();
        let members = members(&plan, &layout).unwrap();
        let assignments = assignments(&plan, &members, 1);
        for (node, side) in [(0, FlowSide::Send), (1, FlowSide::Receive)] {
            let [task] = &assignments[&node].flows[..] else { panic!("{assignments:?}") };
            assert_eq!((task.side, &task.transport), (side, &TaskTransport::Stamp { interval }));
        }
        // Replies go to an ephemeral port, so they are classified by the reflector's port.
        let labels = labels(&plan, &layout, &members);
        assert_eq!(labels[0].destination_port, Some(members[0].destination.port()));
        assert_eq!((labels[0].source_port, labels[0].label.flow), (None, Some(0)));
    }

    #[test]
    fn each_receiver_of_a_group_has_a_task_with_its_own_name() {
        let text = r#"
            [scenario]
            duration = "1 s"
            [defaults.link]
            rate = "10 Mbit/s"
            [flow.tv]
            from = "s"
            to = ["b", "a"]
            transport = "multicast"
            multicast = { source = "sender", hops = 3 }
            traffic = { model = "cbr", rate = "1 Mbit/s" }
            count = 2
            [flow.back]
            from = "a"
            to = "b"
            transport = "multicast"
            multicast = { group = "232.0.1.0" }
            traffic = { model = "cbr", rate = "1 Mbit/s" }
            "#;
        let network = network(&[("host", "s a b"), ("router", "r")], "s:s,r a:r,a b:r,b");
        let plan = &plan_of(&format!("{text}{network}"));
        let layout = AddressLayout::new(plan).unwrap();
        let members = members(plan, &layout).unwrap();
        let assignments = assignments(plan, &members, 1);
        let tasks = |node: &str| -> Vec<(String, FlowSide, String)> {
            let node = plan.nodes.iter().position(|other| other.name == node).unwrap();
            let tasks = assignments[&node].flows.iter();
            tasks.map(|task| (task.name.clone(), task.side, task.destination.to_string())).collect()
        };
        let (send, receive) = (FlowSide::Send, FlowSide::Receive);
        let assert_tasks = |node: &str, expected: &[(&str, FlowSide, &str)]| {
            let expected: Vec<_> =
                expected.iter().map(|(name, side, to)| (name.to_string(), *side, to.to_string())).collect();
            assert_eq!(tasks(node), expected);
        };
        // Flows to one group have different ports, also if their senders differ.
        let ports = ["232.0.1.0:5001", "232.0.1.1:5001", "232.0.1.1:5002"];
        assert_tasks("s", &[("tv[0]", send, ports[1]), ("tv[1]", send, ports[2])]);
        let of_a = [("back", send, ports[0]), ("tv[0]@a", receive, ports[1]), ("tv[1]@a", receive, ports[2])];
        assert_tasks("a", &of_a);
        let of_b =
            [("back", receive, ports[0]), ("tv[0]@b", receive, ports[1]), ("tv[1]@b", receive, ports[2])];
        assert_tasks("b", &of_b);
        let tv = &members[1];
        assert_eq!(
            assignments[&plan.flows[tv.group].from].flows[0].transport,
            TaskTransport::Multicast { source: Some(tv.source), ttl: 3, receiver: None }
        );
        let entry = &labels(plan, &layout, &members)[1];
        assert_eq!((entry.source, entry.destination), (Some(tv.source), Some("232.0.1.1".parse().unwrap())));
        assert_eq!((entry.destination_port, entry.label.flow), (Some(5001), Some(1)));
    }
}
