//! Endpoints: TCP senders and receivers, and the sources that feed them.

use netstage_core::packet::FULL_PACKET;
use netstage_core::rng::RandomStream;
use netstage_core::tcp;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::Application;
use netstage_core::traffic::{FlowTraffic, Pattern, PatternSource};
use netstage_scenario::plan::{FlowGroup, FlowTransport, IpVersion, Plan};
use netstage_wire as wire;

use crate::bins::Grid;
use crate::dialogue::{Dialogue, answering};
use crate::route::{PlanRoutes, device};

/// Properties shared by all members of a flow group.
#[derive(Debug)]
pub struct FlowGroupState {
    /// TCP configuration; `None` for UDP.
    pub tcp: Option<tcp::TcpConfig>,
    /// First step of the route from sender to receiver.
    pub forward: u32,
    /// First step of the route from receiver to sender.
    pub reverse: u32,
    /// VPN; the number of VPNs for flows outside any VPN.
    pub class: u16,
    /// Packets count as background load.
    pub background: bool,
    /// Time at which applications stop sending.
    pub stop: Instant,
    /// Header bytes of a data packet.
    pub header: u32,
    /// Response of a probe's target.
    pub answer: Option<ProbeResponse>,
    /// Channel of the sender's device, if it has one.
    pub device: Option<u32>,
    /// Hosts do not delay packets.
    pub exact: bool,
}

/// Response of a probe's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResponse {
    /// Same size as the probe.
    Echo,
    /// ICMP error with as much of the probe as fits (RFC 1812 section 4.3.2.3, RFC 4443 section 2.4).
    Unreachable(IpVersion),
}

impl ProbeResponse {
    /// Returns the size of the response to a probe of `packet` bytes, both at the IP layer.
    pub fn size(self, packet: u32) -> u32 {
        match self {
            ProbeResponse::Echo => packet,
            ProbeResponse::Unreachable(IpVersion::V4) => {
                (packet + wire::IPV4_HEADER + wire::UDP_HEADER).min(576)
            }
            ProbeResponse::Unreachable(IpVersion::V6) => {
                (packet + wire::IPV6_HEADER + wire::UDP_HEADER).min(1280)
            }
        }
    }
}

impl FlowGroupState {
    /// Returns the payload of a full segment, bytes; 1 for flows without segments.
    pub fn segment_size(&self) -> u32 {
        self.tcp.as_ref().map_or(1, |config| config.max_segment_size)
    }
}

/// A TCP sender and its simulation state.
#[derive(Debug)]
pub struct SenderSlot {
    /// Protocol state machine.
    pub tcp: tcp::TcpDataSender,
    /// Time at which the timer is set to fire.
    pub wake: Instant,
    /// Index of the flow group.
    pub group: u32,
    /// True if the connection has started.
    pub started: bool,
    /// Delay of the answer to an ACK while the path queues packets; see [`PhaseDraw`].
    pub phase: Duration,
}

impl SenderSlot {
    /// Returns whether the path queues for longer than the phase, so that a later answer leaves no line idle.
    #[inline]
    pub fn answers_late(&self) -> bool {
        let (smoothed, min) = (self.tcp.smoothed_round_trip(), self.tcp.min_round_trip());
        self.phase > Duration::ZERO
            && smoothed.zip(min).is_some_and(|(smoothed, min)| smoothed > min + self.phase)
    }
}

/// A TCP receiver and its simulation state.
#[derive(Debug)]
pub struct ReceiverSlot {
    /// Protocol state machine.
    pub tcp: tcp::TcpDataReceiver,
    /// Time at which the timer is set to fire.
    pub wake: Instant,
    /// Index of the flow group.
    pub group: u32,
}

/// Destination of a source's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceTarget {
    /// A TCP sender.
    Tcp(u32),
    /// A UDP flow.
    Udp(u32),
}

/// A source and its next emission.
#[derive(Debug)]
pub struct SourceSlot {
    source: PatternSource,
    /// Destination of the data.
    pub target: SourceTarget,
    /// Index of the flow group.
    pub group: u32,
    /// Time and bytes of the next emission.
    pub next: Option<(Instant, u64)>,
    /// Line whose departures trigger emissions, if no timer is needed.
    pub line: Option<u32>,
    stop: Instant,
}

impl SourceSlot {
    fn new(
        pattern: &Pattern,
        stop: Instant,
        index: u32,
        target: SourceTarget,
        start: Instant,
        stream: RandomStream,
    ) -> SourceSlot {
        let mut slot = SourceSlot {
            source: PatternSource::new(pattern, stream),
            target,
            group: index,
            next: Some((start, 0)),
            line: None,
            stop,
        };
        slot.advance();
        slot
    }

    /// Draws the next emission.
    #[inline]
    pub fn advance(&mut self) {
        let Some((at, _)) = self.next else { return };
        self.next = self.source.next().map(|emission| (at + emission.gap, emission.bytes));
        if self.next.is_some_and(|(at, _)| at >= self.stop) {
            self.next = None;
        }
    }
}

/// All endpoints of a plan. TCP flows and UDP flows are numbered separately, in the plan's order.
#[derive(Debug, Default)]
pub struct Hosts {
    /// Flow groups.
    pub groups: Vec<FlowGroupState>,
    /// Sender of each TCP flow.
    pub senders: Vec<SenderSlot>,
    /// Receiver of each TCP flow.
    pub receivers: Vec<ReceiverSlot>,
    /// Source of each flow with a pattern other than bulk.
    pub sources: Vec<SourceSlot>,
    /// Flow group of each UDP flow, including probes.
    pub udp: Vec<u32>,
    /// Number of TCP flows that carry patterns; TCP flows of dialogues follow them.
    pub pattern_senders: usize,
    /// Dialogue of each member of a flow group that is a dialogue.
    pub dialogues: Vec<Dialogue>,
}

impl Hosts {
    /// Creates all endpoints, before the first packet.
    pub fn new(plan: &Plan, routes: &PlanRoutes, seed: u64, grid: Grid) -> Hosts {
        let mut hosts = Hosts::default();
        for (index, group) in plan.flows.iter().enumerate() {
            hosts.add_group(plan, routes, index, group, seed);
        }
        hosts.pattern_senders = hosts.senders.len();
        for (index, group) in plan.flows.iter().enumerate() {
            if let FlowTraffic::Application(application) = &group.traffic {
                hosts.add_dialogues(plan, routes, index, application, seed, grid);
            }
        }
        hosts
    }

    fn add_dialogues(
        &mut self,
        plan: &Plan,
        routes: &PlanRoutes,
        index: usize,
        application: &Application,
        seed: u64,
        grid: Grid,
    ) {
        let group = &plan.flows[index];
        let answers = FlowGroupState {
            tcp: self.groups[index].tcp.as_ref().map(answering),
            forward: routes.answers[index],
            reverse: routes.answer_acks[index],
            device: device(plan, group.to),
            ..self.groups[index]
        };
        let groups = [index as u32, self.groups.len() as u32];
        self.groups.push(answers);
        let draw = PhaseDraw::new(plan, index, seed);
        for member in 0..group.count {
            let start = draw.start(member);
            let stream = RandomStream::new(seed, &format!("flow.{}", plan.flow_name(index, member)));
            let first = self.senders.len() as u32;
            let dialogue = Dialogue::new(group, application, groups, first, start, &stream, grid);
            for _ in 0..dialogue.connections.len() {
                for group in groups {
                    let config = self.groups[group as usize]
                        .tcp
                        .as_ref()
                        .expect("only TCP dialogues have connections");
                    let (sender, receiver) =
                        (tcp::TcpDataSender::new(config), tcp::TcpDataReceiver::new(config));
                    let (wake, phase) = (Instant::NEVER, Duration::ZERO);
                    self.senders.push(SenderSlot { tcp: sender, wake, group, started: true, phase });
                    self.receivers.push(ReceiverSlot { tcp: receiver, wake, group });
                }
            }
            self.dialogues.push(dialogue);
        }
    }

    fn add_group(&mut self, plan: &Plan, routes: &PlanRoutes, index: usize, group: &FlowGroup, seed: u64) {
        let tcp = match &group.transport {
            FlowTransport::Tcp(config) => Some(config.clone()),
            _ => None,
        };
        let transport_header = match &tcp {
            Some(config) if config.timestamps => wire::TCP_HEADER + wire::TCP_TIMESTAMPS,
            Some(_) => wire::TCP_HEADER,
            // The ICMP header has the same length.
            None => wire::UDP_HEADER,
        };
        let answer = match group.transport {
            FlowTransport::IcmpEcho | FlowTransport::Stamp { .. } => Some(ProbeResponse::Echo),
            FlowTransport::UdpUnreachable => Some(ProbeResponse::Unreachable(group.family)),
            _ => None,
        };
        let header = group.family.header() + transport_header;
        self.groups.push(FlowGroupState {
            tcp: tcp.clone(),
            forward: routes.forward[index],
            reverse: routes.reverse[index],
            class: group.vpn.unwrap_or(plan.vpns.len()) as u16,
            background: group.background,
            stop: group.stop,
            header,
            answer,
            device: device(plan, group.from),
            exact: group.exact,
        });
        let Some(pattern) = group.traffic.pattern() else { return };
        let draw = PhaseDraw::new(plan, index, seed);
        let phase = draw.phase();
        for member in 0..group.count {
            let start = draw.start(member);
            let stream = || RandomStream::new(seed, &format!("flow.{}", plan.flow_name(index, member)));
            let index = index as u32;
            let Some(config) = &tcp else {
                let target = SourceTarget::Udp(self.udp.len() as u32);
                self.sources.push(SourceSlot::new(pattern, group.stop, index, target, start, stream()));
                self.udp.push(index);
                continue;
            };
            let mut sender = tcp::TcpDataSender::new(config);
            if let Pattern::Bulk { size } = pattern {
                sender.write(size.unwrap_or(u64::MAX));
            } else {
                let target = SourceTarget::Tcp(self.senders.len() as u32);
                self.sources.push(SourceSlot::new(pattern, group.stop, index, target, start, stream()));
            }
            self.senders.push(SenderSlot { tcp: sender, wake: start, group: index, started: false, phase });
            let receiver = tcp::TcpDataReceiver::new(config);
            self.receivers.push(ReceiverSlot { tcp: receiver, wake: Instant::NEVER, group: index });
        }
    }
}

/// Random times of a group of flows in one run, up to a packet's time on the slowest line of their path: how late each
/// starts, and their phase, by which they answer ACKs late while packets queue. The time between the departure of a packet
/// from a full queue and the arrival of the one that its ACK releases decides who finds room (Floyd and Jacobson 1992, "On
/// traffic phase effects in packet-switched gateways"). It depends on the length of cables, so no scenario knows it.
struct PhaseDraw<'a> {
    plan: &'a Plan,
    group: usize,
    seed: u64,
    /// Time of a full packet; zero for flows that are exact or have no path.
    limit: Duration,
}

impl PhaseDraw<'_> {
    fn new(plan: &Plan, group: usize, seed: u64) -> PhaseDraw<'_> {
        let path = &plan.flows[group].path;
        let slowest = path.iter().map(|hop| plan.hop(*hop).rate).min().filter(|_| !plan.flows[group].exact);
        let limit = slowest.map_or(Duration::ZERO, |rate| rate.transmission_time(FULL_PACKET));
        PhaseDraw { plan, group, seed, limit }
    }

    fn draw(&self, subject: &str) -> Duration {
        if self.limit == Duration::ZERO {
            return self.limit;
        }
        Duration(RandomStream::new(self.seed, subject).below(self.limit.0))
    }

    fn start(&self, member: usize) -> Instant {
        let group = &self.plan.flows[self.group];
        let planned = group.start + group.stagger * member as u64;
        planned + self.draw(&format!("start.{}", self.plan.flow_name(self.group, member)))
    }

    fn phase(&self) -> Duration {
        self.draw(&format!("phase.{}", self.plan.flows[self.group].name))
    }
}
