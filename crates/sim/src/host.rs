//! Endpoints: TCP senders and receivers, and the sources that feed them.

use netstage_core::rng::Stream;
use netstage_core::tcp;
use netstage_core::time::Instant;
use netstage_core::traffic::application::Application;
use netstage_core::traffic::{Pattern, Source, Traffic};
use netstage_scenario::plan::{Family, FlowGroup, Plan, Transport};
use netstage_wire as wire;

use crate::bins::Grid;
use crate::dialogue::{Dialogue, answering};
use crate::route::{Routes, device};

/// What all members of a flow group share.
#[derive(Debug)]
pub struct Group {
    /// The connection's configuration; `None` for UDP.
    pub tcp: Option<tcp::Config>,
    /// First step from sender to receiver.
    pub forward: u32,
    /// First step from receiver to sender.
    pub reverse: u32,
    /// VPN, or the number of VPNs.
    pub class: u16,
    /// Counted as background load.
    pub background: bool,
    /// When applications stop sending.
    pub stop: Instant,
    /// Bytes of header a data packet carries.
    pub header: u32,
    /// What the target of a probe answers.
    pub answer: Option<Answer>,
    /// The channel that is its sender's device, where there is one.
    pub device: Option<u32>,
}

/// What the target of a probe answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// As much as came.
    Echo,
    /// An ICMP error with as much of the packet as fits (RFC 1812 section 4.3.2.3, RFC 4443
    /// section 2.4).
    Unreachable(Family),
}

impl Answer {
    /// Bytes at the IP layer of the answer to a packet of so many.
    pub fn size(self, packet: u32) -> u32 {
        match self {
            Answer::Echo => packet,
            Answer::Unreachable(Family::V4) => (packet + wire::IPV4_HEADER + wire::UDP_HEADER).min(576),
            Answer::Unreachable(Family::V6) => (packet + wire::IPV6_HEADER + wire::UDP_HEADER).min(1280),
        }
    }
}

impl Group {
    /// Payload bytes of a full segment; 1 where there are no segments.
    pub fn segment_size(&self) -> u32 {
        self.tcp.as_ref().map_or(1, |config| config.max_segment_size)
    }
}

/// A TCP sender and the little the world keeps beside it.
#[derive(Debug)]
pub struct SenderSlot {
    /// The protocol machine.
    pub tcp: tcp::Sender,
    /// When the world will wake it at the latest.
    pub wake: Instant,
    /// Its group.
    pub group: u32,
    /// Whether the connection has begun.
    pub started: bool,
}

/// A TCP receiver and the little the world keeps beside it.
#[derive(Debug)]
pub struct ReceiverSlot {
    /// The protocol machine.
    pub tcp: tcp::Receiver,
    /// When the world will wake it at the latest.
    pub wake: Instant,
    /// Its group.
    pub group: u32,
}

/// Who gets what a source emits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A TCP sender.
    Tcp(u32),
    /// A UDP flow.
    Udp(u32),
}

/// A source and its next emission.
#[derive(Debug)]
pub struct SourceSlot {
    source: Source,
    /// Who gets what it emits.
    pub target: Target,
    /// Its group.
    pub group: u32,
    /// When it emits next, and how many bytes.
    pub next: Option<(Instant, u64)>,
    /// The line whose departures make it emit, where no timer is needed.
    pub line: Option<u32>,
    stop: Instant,
}

impl SourceSlot {
    fn new(
        pattern: &Pattern,
        stop: Instant,
        index: u32,
        target: Target,
        start: Instant,
        stream: Stream,
    ) -> SourceSlot {
        let mut slot = SourceSlot {
            source: Source::new(pattern, stream),
            target,
            group: index,
            next: Some((start, 0)),
            line: None,
            stop,
        };
        slot.advance();
        slot
    }

    /// Draws the emission after the present one.
    #[inline]
    pub fn advance(&mut self) {
        let Some((at, _)) = self.next else { return };
        self.next = self.source.next().map(|emission| (at + emission.gap, emission.bytes));
        if self.next.is_some_and(|(at, _)| at >= self.stop) {
            self.next = None;
        }
    }
}

/// Every endpoint of a plan. TCP flows and UDP flows are numbered apart, in the plan's order.
#[derive(Debug, Default)]
pub struct Hosts {
    /// Per flow group.
    pub groups: Vec<Group>,
    /// Per TCP flow.
    pub senders: Vec<SenderSlot>,
    /// Per TCP flow.
    pub receivers: Vec<ReceiverSlot>,
    /// Per flow with a pattern other than bulk.
    pub sources: Vec<SourceSlot>,
    /// Per UDP flow, probing ones included: its group.
    pub udp: Vec<u32>,
    /// Number of TCP flows that carry patterns; those of dialogues come after them.
    pub pattern_senders: usize,
    /// Per member of a flow group that is a dialogue.
    pub dialogues: Vec<Dialogue>,
}

impl Hosts {
    /// Every endpoint, before the first packet.
    pub fn new(plan: &Plan, routes: &Routes, seed: u64, grid: Grid) -> Hosts {
        let mut hosts = Hosts::default();
        for (index, group) in plan.flows.iter().enumerate() {
            hosts.add_group(plan, routes, index, group, seed);
        }
        hosts.pattern_senders = hosts.senders.len();
        for (index, group) in plan.flows.iter().enumerate() {
            if let Traffic::Application(application) = &group.traffic {
                hosts.add_dialogues(plan, routes, index, application, seed, grid);
            }
        }
        hosts
    }

    fn add_dialogues(
        &mut self,
        plan: &Plan,
        routes: &Routes,
        index: usize,
        application: &Application,
        seed: u64,
        grid: Grid,
    ) {
        let group = &plan.flows[index];
        let answers = Group {
            tcp: self.groups[index].tcp.as_ref().map(answering),
            forward: routes.answers[index],
            reverse: routes.answer_acks[index],
            device: device(plan, group.to),
            ..self.groups[index]
        };
        let groups = [index as u32, self.groups.len() as u32];
        self.groups.push(answers);
        for member in 0..group.count {
            let start = group.start + group.stagger * member as u64;
            let stream = Stream::new(seed, &format!("flow.{}", plan.flow_name(index, member)));
            let first = self.senders.len() as u32;
            let dialogue = Dialogue::new(group, application, groups, first, start, &stream, grid);
            for _ in 0..dialogue.connections.len() {
                for group in groups {
                    let config = self.groups[group as usize].tcp.as_ref().expect("connections are TCP's");
                    let (sender, receiver) = (tcp::Sender::new(config), tcp::Receiver::new(config));
                    let wake = Instant::NEVER;
                    self.senders.push(SenderSlot { tcp: sender, wake, group, started: true });
                    self.receivers.push(ReceiverSlot { tcp: receiver, wake, group });
                }
            }
            self.dialogues.push(dialogue);
        }
    }

    fn add_group(&mut self, plan: &Plan, routes: &Routes, index: usize, group: &FlowGroup, seed: u64) {
        let tcp = match &group.transport {
            Transport::Tcp(config) => Some(config.clone()),
            _ => None,
        };
        let transport_header = match &tcp {
            Some(config) if config.timestamps => wire::TCP_HEADER + wire::TCP_TIMESTAMPS,
            Some(_) => wire::TCP_HEADER,
            // ICMP's header is as long.
            None => wire::UDP_HEADER,
        };
        let answer = match group.transport {
            Transport::IcmpEcho | Transport::Stamp { .. } => Some(Answer::Echo),
            Transport::UdpUnreachable => Some(Answer::Unreachable(group.family)),
            _ => None,
        };
        let header = group.family.header() + transport_header;
        self.groups.push(Group {
            tcp: tcp.clone(),
            forward: routes.forward[index],
            reverse: routes.reverse[index],
            class: group.vpn.unwrap_or(plan.vpns.len()) as u16,
            background: group.background,
            stop: group.stop,
            header,
            answer,
            device: device(plan, group.from),
        });
        let Some(pattern) = group.traffic.pattern() else { return };
        for member in 0..group.count {
            let start = group.start + group.stagger * member as u64;
            let stream = || Stream::new(seed, &format!("flow.{}", plan.flow_name(index, member)));
            let index = index as u32;
            let Some(config) = &tcp else {
                let target = Target::Udp(self.udp.len() as u32);
                self.sources.push(SourceSlot::new(pattern, group.stop, index, target, start, stream()));
                self.udp.push(index);
                continue;
            };
            let mut sender = tcp::Sender::new(config);
            if let Pattern::Bulk { size } = pattern {
                sender.write(size.unwrap_or(u64::MAX));
            } else {
                let target = Target::Tcp(self.senders.len() as u32);
                self.sources.push(SourceSlot::new(pattern, group.stop, index, target, start, stream()));
            }
            self.senders.push(SenderSlot { tcp: sender, wake: start, group: index, started: false });
            let receiver = tcp::Receiver::new(config);
            self.receivers.push(ReceiverSlot { tcp: receiver, wake: Instant::NEVER, group: index });
        }
    }
}
