//! Routes as flat lists of steps, with a mark on the steps that need an event.
//!
//! A plain first-in first-out channel knows the arrival time of a packet when the packet enters. If all
//! packets of the next channel come through this one, the next channel can be computed immediately and
//! exactly, without an event. A step needs an event if paths join there, if a decision depends on feedback,
//! or at an endpoint.

use netstage_core::fair::VpnControl;
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::queue::TrafficClass;
use netstage_core::time::Duration;
use netstage_core::{link, queue};
use netstage_scenario::plan::{FlowGroup, FlowTransport, Hop, NodeKind, Plan, TunnelCrossing};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// One step of a packet's route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Cross one direction of a link.
    Channel(u32),
    /// Wait at the ingress PE of a VPN in one of its traffic classes, then be encapsulated.
    Ingress(u32, u16),
    /// Be encapsulated without waiting: at an ingress PE without control, or in the reverse direction.
    Encapsulate(u32),
    /// Be decapsulated, in the reverse direction.
    Decapsulate(u32),
    /// Add a tunnel's headers.
    Protect(u32),
    /// Remove a tunnel's headers.
    Unprotect(u32),
    /// Be counted by the egress PE of a VPN; a query takes the count along.
    Egress(u32),
    /// End at a TCP receiver.
    Receiver,
    /// End at a TCP sender.
    Sender,
    /// End at a UDP receiver.
    Sink,
    /// End at an endpoint of a dialogue over datagrams: 0 is the client, 1 the server.
    Peer(u8),
    /// End of a probe at its target, which sends a response.
    Target,
    /// End of a probe's response at the prober.
    Prober,
    /// End of a query at the egress PE, which sends the reply.
    Answer(u32),
    /// End of a reply at the ingress PE.
    Report(u32),
}

/// A step of a route.
#[derive(Clone, Copy, Debug)]
pub struct RouteStep {
    /// Kind of the step.
    pub step: StepKind,
    /// True if the preceding plain channel can process the step without an event.
    pub merged: bool,
}

/// All routes of a plan. A route is an index into `steps` and ends at an endpoint.
#[derive(Debug, Default)]
pub struct PlanRoutes {
    /// Steps of all routes, concatenated.
    pub steps: Vec<RouteStep>,
    /// Per flow group: route from sender to receiver.
    pub forward: Vec<u32>,
    /// Per flow group: route from receiver to sender, for ACKs and responses to probes.
    pub reverse: Vec<u32>,
    /// Per flow group that is a dialogue: route of the data from server to client.
    pub answers: Vec<u32>,
    /// Per flow group that is a dialogue over TCP: route of the client's ACKs.
    pub answer_acks: Vec<u32>,
    /// Per VPN with a window: route of queries from ingress to egress PE.
    pub query: Vec<u32>,
    /// Per VPN with a window: route of replies from egress to ingress PE.
    pub reply: Vec<u32>,
    /// Channels into which a host sends both TCP segments and datagrams. The segments first pass a channel of their own,
    /// which delays them at random: on that of the datagrams, these could not overtake a delayed segment. These channels
    /// follow all others.
    pub shared: Vec<u32>,
    /// Per channel: whether some of its packets need an event at its far end.
    pub needs_line: Vec<bool>,
    /// Per channel: whether it is part of any route.
    pub used: Vec<bool>,
    /// Per channel: number of distinct feeders (channels, or origins of packets).
    pub feeders: Vec<usize>,
}

/// Origin of the packets of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Feeder {
    Channel(u32),
    Origin(u32),
}

/// Value for a route that does not exist.
pub const NO_ROUTE: u32 = u32::MAX;

/// Returns the channel index of one direction of a link.
pub fn channel_of(hop: Hop) -> u32 {
    (2 * hop.link + hop.direction) as u32
}

/// Number of channels per tunnel: protection and unprotection at the first end, then at the second.
/// Processing takes time at a gateway, so each is a channel of its own.
const ENGINES: usize = 4;
/// Queue of a gateway's program, packets: the queue length of Linux TUN devices.
const ENGINE_QUEUE: u32 = 500;

/// Returns the number of channels of a plan: links, then gateways, then devices of hosts.
pub fn channels_of(plan: &Plan) -> usize {
    first_device(plan) + plan.nodes.iter().filter(|node| node.device.is_some()).count()
}

/// Returns the index of the first channel that is a host's device.
pub fn first_device(plan: &Plan) -> usize {
    2 * plan.links.len() + ENGINES * plan.tunnels.len()
}

/// Returns the channel of a node's device, if it has one.
pub fn device(plan: &Plan, node: usize) -> Option<u32> {
    plan.nodes[node].device?;
    let before = plan.nodes[..node].iter().filter(|node| node.device.is_some()).count();
    Some((first_device(plan) + before) as u32)
}

/// Returns whether a host sends directly into a channel.
pub fn leaves_host(plan: &Plan, index: usize) -> bool {
    if index >= 2 * plan.links.len() {
        return index >= first_device(plan);
    }
    let [from, _] = plan.ends(Hop { link: index / 2, direction: index % 2 });
    plan.nodes[from].kind == NodeKind::Host
}

fn engine(plan: &Plan, tunnel: usize, end: usize, unprotects: bool) -> u32 {
    (2 * plan.links.len() + ENGINES * tunnel + 2 * end + usize::from(unprotects)) as u32
}

/// Returns the name of a channel, which selects its random stream, and its configuration.
pub fn channel(plan: &Plan, index: usize) -> (String, Cow<'_, link::LinkDirectionConfig>) {
    let Some(engine) = index.checked_sub(2 * plan.links.len()) else {
        let hop = Hop { link: index / 2, direction: index % 2 };
        return (format!("link.{}", plan.hop_name(hop)), Cow::Borrowed(plan.hop(hop)));
    };
    if let Some(number) = index.checked_sub(first_device(plan)) {
        let mut nodes = plan.nodes.iter().filter_map(|node| Some((&node.name, node.device?)));
        let (name, device) = nodes.nth(number).expect("every device has a channel");
        return (format!("device.{name}"), Cow::Owned(line(device.rate, Capacity::Bytes(device.buffer))));
    }
    let tunnel = &plan.tunnels[engine / ENGINES];
    let end = engine % ENGINES / 2;
    let config = line(tunnel.service_rates[end], Capacity::Packets(ENGINE_QUEUE));
    let operation = ["protect", "unprotect"][engine % 2];
    (format!("gateway.{}.{operation}", plan.nodes[tunnel.ends[end]].name), Cow::Owned(config))
}

/// Returns the configuration of a line inside a node.
fn line(rate: BitRate, buffer: Capacity) -> link::LinkDirectionConfig {
    link::LinkDirectionConfig::plain(rate, Duration::ZERO, buffer)
}

/// Returns whether a channel is plain, i.e. knows arrivals when packets enter.
pub fn is_plain(config: &link::LinkDirectionConfig) -> bool {
    config.queue == queue::QueueConfig::DropTail
        && config.loss == 0.0
        && config.bit_error_rate == 0.0
        && config.duplicate == 0.0
        && config.jitter.amount.0 == 0
        && config.schedule.is_empty()
}

impl PlanRoutes {
    /// Builds the routes of a plan. Without `merge` every step gets its own event, which is slower but gives
    /// the same results (tested).
    pub fn new(plan: &Plan, merge: bool) -> PlanRoutes {
        let mut routes = PlanRoutes { shared: shared_channels(plan), ..PlanRoutes::default() };
        for group in &plan.flows {
            let dialogue = group.traffic.application().is_some();
            let (end, back) = match group.transport {
                FlowTransport::Tcp(_) => (StepKind::Receiver, Some(StepKind::Sender)),
                FlowTransport::IcmpEcho | FlowTransport::UdpUnreachable | FlowTransport::Stamp { .. } => {
                    (StepKind::Target, Some(StepKind::Prober))
                }
                _ if dialogue => (StepKind::Peer(1), None),
                _ => (StepKind::Sink, None),
            };
            let forward = routes.push_from_host(plan, group, data_steps(plan, group, end));
            routes.forward.push(forward);
            let back = back.map(|end| steps_back(plan, group, end));
            let reverse = back.map_or(NO_ROUTE, |back| routes.push_from_host(plan, group, back));
            routes.reverse.push(reverse);
            let (mut answers, mut acks) = (NO_ROUTE, NO_ROUTE);
            if dialogue {
                let tcp = matches!(group.transport, FlowTransport::Tcp(_));
                let end = if tcp { StepKind::Receiver } else { StepKind::Peer(0) };
                answers = routes.push_from_host(plan, group, steps_back(plan, group, end));
                if tcp {
                    acks = routes.push_from_host(plan, group, data_steps(plan, group, StepKind::Sender));
                }
            }
            routes.answers.push(answers);
            routes.answer_acks.push(acks);
        }
        for (index, vpn) in plan.vpns.iter().enumerate() {
            let index = index as u32;
            let (mut query, mut reply) = (NO_ROUTE, NO_ROUTE);
            if matches!(vpn.settings.control, VpnControl::I2vfc(_) | VpnControl::RateConsensus(_)) {
                let steps = channels(&vpn.path).chain([StepKind::Egress(index), StepKind::Answer(index)]);
                query = routes.push(steps.collect());
                reply = routes.push(channels(&vpn.reverse).chain([StepKind::Report(index)]).collect());
            }
            routes.query.push(query);
            routes.reply.push(reply);
        }
        routes.find_merges(plan, merge);
        routes
    }

    fn push(&mut self, steps: Vec<StepKind>) -> u32 {
        let start = self.steps.len() as u32;
        self.steps.extend(steps.into_iter().map(|step| RouteStep { step, merged: false }));
        start
    }

    /// Adds the route of packets that leave a host: TCP segments through the channel that delays them, if there is one.
    fn push_from_host(&mut self, plan: &Plan, group: &FlowGroup, mut steps: Vec<StepKind>) -> u32 {
        let is_delayed = matches!(group.transport, FlowTransport::Tcp(_)) && !group.exact;
        if let (true, Some(StepKind::Channel(first))) = (is_delayed, steps.first())
            && let Some(number) = self.shared.iter().position(|shared| shared == first)
        {
            steps.insert(0, StepKind::Channel((channels_of(plan) + number) as u32));
        }
        self.push(steps)
    }

    fn find_merges(&mut self, plan: &Plan, merge: bool) {
        let own = channels_of(plan);
        let channels = own + self.shared.len();
        let mut feeders_of_channel = vec![Vec::new(); channels];
        let mut feeders_of_egress = vec![Vec::new(); plan.vpns.len()];
        let feeders = self.feeders_of_steps();
        for (at, feeder) in self.steps.iter().zip(&feeders) {
            let list = match at.step {
                StepKind::Channel(channel) => &mut feeders_of_channel[channel as usize],
                StepKind::Egress(vpn) => &mut feeders_of_egress[vpn as usize],
                _ => continue,
            };
            if !list.contains(feeder) {
                list.push(*feeder);
            }
        }
        let plain = |index: u32| index as usize >= own || is_plain(&channel(plan, index as usize).1);
        self.needs_line = vec![false; channels];
        for (at, feeder) in self.steps.iter_mut().zip(&feeders) {
            at.merged = merge
                && match at.step {
                    StepKind::Channel(channel) => {
                        plain(channel) && feeders_of_channel[channel as usize].len() == 1
                    }
                    StepKind::Egress(vpn) => feeders_of_egress[vpn as usize].len() == 1,
                    StepKind::Sink => true,
                    _ => false,
                };
            if let (Feeder::Channel(channel), false) = (feeder, at.merged) {
                self.needs_line[*channel as usize] = true;
            }
        }
        self.used = feeders_of_channel.iter().map(|list| !list.is_empty()).collect();
        self.feeders = feeders_of_channel.iter().map(Vec::len).collect();
    }

    /// Returns per step the channel its packets come through, or their origin.
    fn feeders_of_steps(&self) -> Vec<Feeder> {
        let mut feeder = Feeder::Origin(0);
        let follow = |(index, at): (usize, &RouteStep)| {
            let feeds = feeder;
            feeder = match at.step {
                StepKind::Channel(channel) => Feeder::Channel(channel),
                StepKind::Egress(_) => feeder,
                _ => Feeder::Origin(index as u32 + 1),
            };
            feeds
        };
        self.steps.iter().enumerate().map(follow).collect()
    }
}

/// Returns the plain channels of links into which a host sends both TCP segments and datagrams.
fn shared_channels(plan: &Plan) -> Vec<u32> {
    let first = |hop: Option<&Hop>| hop.map(|hop| channel_of(*hop));
    let is_tcp = |group: &&FlowGroup| matches!(group.transport, FlowTransport::Tcp(_));
    let segments =
        plan.flows.iter().filter(is_tcp).flat_map(|group| [group.path.first(), group.reverse.first()]);
    let segments: BTreeSet<u32> = segments.filter_map(first).collect();
    let datagrams =
        plan.flows.iter().filter(|group| !is_tcp(group)).filter_map(|group| first(group.path.first()));
    let shared: BTreeSet<u32> = datagrams.filter(|channel| segments.contains(channel)).collect();
    let is_delayed =
        |index: &u32| leaves_host(plan, *index as usize) && is_plain(&channel(plan, *index as usize).1);
    shared.into_iter().filter(is_delayed).collect()
}

/// Returns the line by which a host sends delayed segments to a channel: it takes no time by itself.
pub fn host_line() -> link::LinkDirectionConfig {
    line(BitRate(1_000_000_000_000_000), Capacity::Bytes(u64::MAX))
}

fn channels(hops: &[Hop]) -> impl Iterator<Item = StepKind> + '_ {
    hops.iter().map(|hop| StepKind::Channel(channel_of(*hop)))
}

/// Returns the steps from a flow's sender to its receiver, through the VPN that carries the flow.
fn data_steps(plan: &Plan, group: &FlowGroup, end: StepKind) -> Vec<StepKind> {
    steps(plan, &group.path, group.vpn.map(|vpn| VpnSteps::new(plan, vpn, group)), end)
}

/// Returns the steps in the reverse direction, through a reverse VPN if there is one. Otherwise packets
/// encapsulated in the forward direction are also encapsulated in the reverse direction.
fn steps_back(plan: &Plan, group: &FlowGroup, end: StepKind) -> Vec<StepKind> {
    let carrier = group.vpn.and_then(|index| {
        let vpn = &plan.vpns[index];
        match vpn.opposite {
            Some(back) => Some(VpnSteps::new(plan, back, group)),
            None if vpn.encapsulation.overhead() == 0 => None,
            None => Some(VpnSteps {
                from: vpn.egress,
                to: vpn.ingress,
                enter: Some(StepKind::Encapsulate(index as u32)),
                leave: StepKind::Decapsulate(index as u32),
            }),
        }
    });
    steps(plan, &group.reverse, carrier, end)
}

/// Steps at the entry and the exit of a VPN, for packets of one direction.
struct VpnSteps {
    from: usize,
    to: usize,
    enter: Option<StepKind>,
    leave: StepKind,
}

impl VpnSteps {
    fn new(plan: &Plan, index: usize, group: &FlowGroup) -> VpnSteps {
        let (vpn, number) = (&plan.vpns[index], index as u32);
        let enter = if vpn.settings.may_wait() {
            let classes = TrafficClass::table(&vpn.settings.classes);
            Some(StepKind::Ingress(number, classes[usize::from(group.datagrams.dscp)].into()))
        } else if vpn.encapsulation.overhead() > 0 {
            Some(StepKind::Encapsulate(number))
        } else {
            None
        };
        VpnSteps { from: vpn.ingress, to: vpn.egress, enter, leave: StepKind::Egress(number) }
    }
}

fn steps(plan: &Plan, path: &[Hop], carrier: Option<VpnSteps>, end: StepKind) -> Vec<StepKind> {
    let mut steps = Vec::new();
    let crossings = plan.crossings(path);
    let sender = path.first().map(|hop| plan.ends(*hop)[0]);
    steps.extend(sender.and_then(|node| device(plan, node)).map(StepKind::Channel));
    for (at, hop) in path.iter().enumerate() {
        let [from, to] = plan.ends(*hop);
        for TunnelCrossing { tunnel, entry, .. } in
            crossings.iter().filter(|crossing| crossing.first_after == at)
        {
            let engine = engine(plan, *tunnel, 1 - entry, true);
            steps.extend([StepKind::Unprotect(*tunnel as u32), StepKind::Channel(engine)]);
        }
        for TunnelCrossing { tunnel, entry, .. } in
            crossings.iter().filter(|crossing| crossing.first_inside == at)
        {
            let engine = engine(plan, *tunnel, *entry, false);
            steps.extend([StepKind::Channel(engine), StepKind::Protect(*tunnel as u32)]);
        }
        let entered = carrier.as_ref().filter(|carrier| from == carrier.from);
        steps.extend(entered.and_then(|carrier| carrier.enter));
        steps.push(StepKind::Channel(channel_of(*hop)));
        let left = carrier.as_ref().filter(|carrier| to == carrier.to);
        steps.extend(left.map(|carrier| carrier.leave));
    }
    steps.push(end);
    steps
}
