//! The event loop: takes the earliest arrival or timer and follows the packet.

mod connections;
mod damage;
mod dialogues;
mod pes;
mod probes;
mod sources;
mod timers;

use crate::bins::{BinnedSum, Grid};
use crate::channel::{Channel, ChannelKind};
use crate::delay::FlowDelays;
use crate::host::{Hosts, SourceTarget};
use crate::packet::{PacketBody, SimulatedPacket};
use crate::pe::{self, Pe, VpnState};
use crate::receiver::DatagramReceiver;
use crate::route::{
    PlanRoutes, StepKind, channel, channels_of, first_device, host_line, is_plain, leaves_host,
};
use crate::stamp::StampMeasurement;
use crate::watch::WindowHistories;
use connections::config_of;
pub(crate) use damage::Damage;
use netstage_core::fair::crowd::NEWS_INTERVAL;
use netstage_core::fair::publication;
use netstage_core::link;
use netstage_core::time::Instant;
use netstage_core::tournament::Tournament;
use netstage_scenario::outcome::RunTotals;
use netstage_scenario::plan::{GatewayTunnel, Plan};
use std::ops::Range;
use timers::Timer;

/// Value of `line_of` for channels without a line.
const NO_LINE: u32 = u32::MAX;

/// A running simulation of a plan.
pub struct Simulation<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) grid: Grid,
    pub(crate) routes: PlanRoutes,
    pub(crate) channels: Vec<Channel>,
    /// Per channel: index of its line, or [`NO_LINE`].
    line_of: Vec<u32>,
    /// Per line: index of its channel.
    channel_of: Vec<u32>,
    lines: Tournament,
    timers: Tournament,
    /// One timer per PE, separate from the hosts' timers because PE timers are few and busy.
    pe_timers: Tournament,
    pub(crate) hosts: Hosts,
    pub(crate) pes: Vec<Pe>,
    pub(crate) vpns: Vec<VpnState>,
    /// Channels that are devices of hosts.
    devices: Range<usize>,
    /// Per tunnel: overhead in bytes per packet.
    tunnel_overheads: Vec<u32>,
    pub(crate) tcp_bytes: Vec<u64>,
    /// Per TCP flow: arrival of its last bytes.
    last_bytes: Vec<Instant>,
    pub(crate) udp_bytes: Vec<BinnedSum>,
    pub(crate) udp_offered: Vec<BinnedSum>,
    /// Per UDP flow: number of packets sent.
    datagrams_sent: Vec<u32>,
    /// Per UDP flow: its receiver.
    pub(crate) receivers: Vec<DatagramReceiver>,
    /// Per UDP flow; empty unless requested.
    pub(crate) delays: Vec<FlowDelays>,
    /// Per UDP flow: sum of round trips of answered probes, nanoseconds; empty bins for flows without probes.
    pub(crate) round_trips: Vec<BinnedSum>,
    /// Per UDP flow: number of probes answered.
    pub(crate) answers: Vec<BinnedSum>,
    /// Per UDP flow: its STAMP session, if any; empty if the plan has no sessions.
    pub(crate) sessions: Vec<Option<StampMeasurement>>,
    /// Packets with bit errors.
    pub(crate) damage: Damage,
    /// Packets lost per bin: per TCP flow, then per dialogue; empty unless requested.
    pub(crate) flow_lost: Vec<Vec<u64>>,
    /// Histories of TCP windows.
    pub(crate) watch: WindowHistories,
    pub(crate) totals: RunTotals,
    /// Packets whose delivery or loss was computed but lies after the end of the run.
    beyond_end: u64,
    end: Instant,
    bin: usize,
}

impl<'a> Simulation<'a> {
    /// Creates a simulation of a plan before its first event.
    pub fn new(plan: &'a Plan, seed: u64, merge: bool) -> Simulation<'a> {
        let grid = Grid {
            interval: plan.measure.interval,
            bins: (plan.duration.0 / plan.measure.interval.0) as usize,
        };
        let routes = PlanRoutes::new(plan, merge);
        let hosts = Hosts::new(plan, &routes, seed, grid);
        let timers = 2 * hosts.senders.len() + hosts.sources.len() + 2 + hosts.dialogues.len();
        let (pes, vpns) = pe::all(plan, seed, grid);
        let mut world = Simulation {
            plan,
            grid,
            channels: Vec::new(),
            line_of: Vec::new(),
            channel_of: Vec::new(),
            lines: Tournament::new(0),
            timers: Tournament::new(timers),
            devices: first_device(plan)..channels_of(plan),
            tunnel_overheads: plan.tunnels.iter().map(GatewayTunnel::overhead).collect(),
            pe_timers: Tournament::new(pes.len()),
            pes,
            vpns,
            tcp_bytes: vec![0; hosts.pattern_senders * (grid.bins + 1)],
            last_bytes: vec![Instant::ZERO; hosts.pattern_senders],
            udp_bytes: hosts.udp.iter().map(|_| BinnedSum::new(grid)).collect(),
            udp_offered: hosts.udp.iter().map(|_| BinnedSum::new(grid)).collect(),
            datagrams_sent: vec![0; hosts.udp.len()],
            receivers: DatagramReceiver::all(plan, &hosts.udp, grid),
            delays: Vec::new(),
            round_trips: Vec::new(),
            answers: Vec::new(),
            sessions: StampMeasurement::all(plan, grid),
            damage: Damage::new(plan, seed, grid, &hosts.udp),
            flow_lost: Vec::new(),
            watch: match plan.measure.tcp_events {
                true => WindowHistories::new(grid, hosts.senders.len()),
                false => WindowHistories::default(),
            },
            totals: RunTotals::default(),
            beyond_end: 0,
            end: Instant::ZERO + plan.duration,
            bin: 0,
            routes,
            hosts,
        };
        if plan.measure.flow_detail {
            let hosts = &world.hosts;
            let flows = hosts.senders.len() + hosts.dialogues.len();
            world.flow_lost = vec![vec![0; grid.bins]; flows];
        }
        if world.hosts.groups.iter().any(|group| group.answer.is_some()) {
            world.round_trips = world.udp_bytes.clone();
            world.answers = world.udp_bytes.clone();
        }
        if plan.measure.delay {
            world.delays = world.hosts.udp.iter().map(|_| FlowDelays::new(grid)).collect();
        }
        world.build_channels(seed);
        world.build_pulls(merge);
        world.arm_all();
        world
    }

    fn build_channels(&mut self, seed: u64) {
        for index in 0..channels_of(self.plan) {
            let (name, config) = channel(self.plan, index);
            let plain = is_plain(&config);
            let mut channel = Channel::new(&config, plain, seed, &name, self.grid);
            if leaves_host(self.plan, index) && !self.routes.shared.contains(&(index as u32)) {
                channel.delay_at_host(seed, &name, &config);
            }
            self.add_channel(channel, plain);
        }
        for number in 0..self.routes.shared.len() {
            let (name, config) = channel(self.plan, self.routes.shared[number] as usize);
            let mut channel = Channel::new(&host_line(), true, seed, &name, self.grid);
            channel.delay_at_host(seed, &name, &config);
            self.add_channel(channel, true);
        }
        self.lines = Tournament::new(self.channel_of.len());
        for line in 0..self.channel_of.len() {
            if let ChannelKind::Full(link) = &self.channels[self.channel_of[line] as usize].kind {
                self.lines.set(line as u32, link.poll_timeout());
            }
        }
    }

    fn add_channel(&mut self, channel: Channel, plain: bool) {
        let index = self.channels.len();
        self.channels.push(channel);
        let needed = self.routes.used[index] && (!plain || self.routes.needs_line[index]);
        self.line_of.push(if needed { self.channel_of.len() as u32 } else { NO_LINE });
        if needed {
            self.channel_of.push(index as u32);
        }
    }

    /// Finds UDP sources that need no timer. A source alone on its first link emits its next packet when the
    /// last one reaches the link's far end, which is always before the next packet is due there.
    fn build_pulls(&mut self, merge: bool) {
        for (index, source) in self.hosts.sources.iter_mut().enumerate() {
            let SourceTarget::Udp(_) = source.target else { continue };
            let first = self.hosts.groups[source.group as usize].forward as usize;
            let StepKind::Channel(channel) = self.routes.steps[first].step else { continue };
            let line = self.line_of[channel as usize];
            let plain = matches!(self.channels[channel as usize].kind, ChannelKind::Plain(_));
            let alone = self.routes.feeders[channel as usize] == 1
                && self.plan.flows[source.group as usize].count == 1;
            if merge && plain && alone && line != NO_LINE && !self.routes.steps[first + 1].merged {
                self.channels[channel as usize].pull = Some(index as u32);
                source.line = Some(line);
            }
        }
    }

    fn arm_all(&mut self) {
        for index in 0..self.hosts.senders.len() {
            let wake = self.hosts.senders[index].wake;
            self.set_timer(Timer::Sender(index as u32), wake);
        }
        for index in 0..self.hosts.sources.len() {
            if let Some((at, _)) = self.hosts.sources[index].next {
                self.set_timer(Timer::Source(index as u32), at);
            }
        }
        for (index, pe) in self.pes.iter_mut().enumerate() {
            pe.wake = pe.flows.poll_timeout();
            self.pe_timers.set(index as u32, pe.wake);
        }
        if self.vpns.iter().any(|vpn| vpn.reference.is_some()) {
            self.set_timer(Timer::Publication, Instant::ZERO + publication::PUBLICATION_INTERVAL);
        }
        if self.has_consensus() {
            self.set_timer(Timer::News, Instant::ZERO + NEWS_INTERVAL);
        }
        for index in 0..self.hosts.dialogues.len() {
            self.set_timer(Timer::Dialogue(index as u32), self.hosts.dialogues[index].poll_timeout());
        }
    }

    /// Runs to the end and calls `sample` at the end of every bin. Returns false if interrupted.
    pub fn run(
        &mut self,
        interrupted: &dyn Fn() -> bool,
        mut sample: impl FnMut(&mut Simulation, usize),
    ) -> bool {
        let interval = self.grid.interval;
        let mut bin_end = Instant::ZERO + interval;
        loop {
            let (line_time, timer_time) = (self.lines.first_time(), self.timers.first_time());
            let now = line_time.min(timer_time).min(self.pe_timers.first_time());
            while now >= bin_end && self.bin < self.grid.bins {
                sample(self, self.bin);
                self.bin += 1;
                bin_end += interval;
            }
            if now > self.end {
                self.drain_pulls();
                let end = self.end;
                self.hosts.dialogues.iter_mut().for_each(|dialogue| dialogue.finish(end));
                return true;
            }
            self.totals.events += 1;
            if self.totals.events & 0xffff == 0 && interrupted() {
                return false;
            }
            if line_time == now {
                self.handle_line(now, self.lines.first());
            } else if timer_time == now {
                let timer = self.timers.first();
                self.timers.set(timer, Instant::NEVER);
                self.handle_timer(now, self.timer_at(timer));
            } else {
                self.pump_pe(now, self.pe_timers.first());
            }
        }
    }

    fn handle_line(&mut self, now: Instant, line: u32) {
        let index = self.channel_of[line as usize];
        let channel = &mut self.channels[index as usize];
        if matches!(channel.kind, ChannelKind::Full(_)) {
            return self.handle_link(now, line, index);
        }
        let (_, packet) = channel.line.pop_front().expect("a line with a time has a packet");
        let next = channel.line.front().map_or(Instant::NEVER, |(at, _)| *at);
        let pull = channel.pull;
        self.lines.set(line, next);
        if let Some(source) = pull {
            self.pull(line, source);
        }
        self.proceed(now, packet);
    }

    /// Handles the events of a full link.
    fn handle_link(&mut self, now: Instant, line: u32, channel: u32) {
        let index = channel as usize;
        let Channel { kind: ChannelKind::Full(link), counts, .. } = &mut self.channels[index] else {
            unreachable!()
        };
        counts.account(now, link.queue_len());
        link.handle_timeout(now);
        while let Some(arrival) = {
            let ChannelKind::Full(link) = &mut self.channels[index].kind else { unreachable!() };
            link.poll_arrival(now)
        } {
            let mut packet = arrival.packet;
            if arrival.bit_errors > 0 && !self.survives(&mut packet, arrival.bit_errors) {
                self.channels[index].counts.lost.add(now, 1);
                self.lose(now, &packet);
                continue;
            }
            self.totals.packet_hops += 1;
            self.proceed(now, packet);
        }
        self.settle_link(now, line, channel);
    }

    fn settle_link(&mut self, now: Instant, line: u32, channel: u32) {
        loop {
            let Channel { kind: ChannelKind::Full(link), counts, .. } = &mut self.channels[channel as usize]
            else {
                unreachable!()
            };
            let Some((packet, loss)) = link.poll_loss() else {
                self.lines.set(line, link.poll_timeout());
                return;
            };
            match loss {
                link::LinkLoss::Queue => counts.drops.add(now, 1),
                link::LinkLoss::Line | link::LinkLoss::Down => counts.lost.add(now, 1),
            }
            self.lose(now, &packet);
        }
    }

    /// Advances a packet that is at its next step at `now`, until a step needs an event.
    fn proceed(&mut self, mut now: Instant, mut packet: SimulatedPacket) {
        loop {
            match self.routes.steps[packet.step as usize].step {
                StepKind::Channel(channel) => match self.enter_channel(now, channel, &mut packet) {
                    Some(at) => now = at,
                    None => return,
                },
                StepKind::Egress(vpn) => {
                    self.pass_egress(now, vpn, &mut packet);
                    packet.step += 1;
                }
                StepKind::Ingress(vpn, class) => return self.handle_ingress(now, vpn, class, packet),
                StepKind::Encapsulate(vpn) => {
                    packet.size += self.vpns[vpn as usize].encapsulation.overhead();
                    packet.step += 1;
                }
                StepKind::Decapsulate(vpn) => {
                    packet.size -= self.vpns[vpn as usize].encapsulation.overhead();
                    packet.step += 1;
                }
                StepKind::Protect(tunnel) => {
                    packet.size += self.tunnel_overheads[tunnel as usize];
                    packet.step += 1;
                }
                StepKind::Unprotect(tunnel) => {
                    packet.size -= self.tunnel_overheads[tunnel as usize];
                    packet.step += 1;
                }
                StepKind::Receiver => return self.handle_data(now, &packet),
                StepKind::Sender => return self.handle_ack(now, &packet),
                StepKind::Sink => return self.handle_datagram(now, &packet),
                StepKind::Peer(end) => return self.handle_peer(now, usize::from(end), &packet),
                StepKind::Target => packet = self.answer(now, &packet),
                StepKind::Prober => return self.handle_answer(now, &packet),
                StepKind::Answer(vpn) => {
                    packet.step = self.routes.reply[vpn as usize];
                }
                StepKind::Report(vpn) => return self.handle_report(now, vpn, &packet),
            }
        }
    }

    /// Sends a packet into a channel. Returns the arrival time if the next step needs no event.
    #[inline]
    fn enter_channel(&mut self, now: Instant, index: u32, packet: &mut SimulatedPacket) -> Option<Instant> {
        packet.step += 1;
        let channel = &mut self.channels[index as usize];
        let plain = match &mut channel.kind {
            ChannelKind::Plain(plain) => plain,
            ChannelKind::Full(link) => {
                channel.counts.account(now, link.queue_len());
                link.handle_packet(now, *packet);
                self.settle_link(now, self.line_of[index as usize], index);
                return None;
            }
        };
        let now = channel.host.as_ref().map_or(now, |host| now.max(host.last));
        // TCP segments rejected by a device stay with the host, whose sender is notified by `handle_refusal`.
        let kept = self.devices.contains(&(index as usize)) && matches!(packet.body, PacketBody::Data(_));
        let Some(at) = plain.enter(&mut channel.counts, now, packet, kept) else {
            self.lose(now, packet);
            return None;
        };
        self.totals.packet_hops += u64::from(at <= self.end);
        let mut next = self.routes.steps[packet.step as usize];
        // An egress PE fed only by this channel counts ahead of time, also for queries.
        if let (StepKind::Egress(vpn), true) = (next.step, next.merged) {
            self.pass_egress(at, vpn, packet);
            packet.step += 1;
            next = self.routes.steps[packet.step as usize];
        }
        if next.merged {
            return Some(at);
        }
        let line = &mut self.channels[index as usize].line;
        let was_empty = line.is_empty();
        if line.len() == line.capacity() {
            // Long lines use most of the memory of a large run, so they grow by a quarter rather than
            // doubling.
            line.reserve_exact(line.len() / 4 + 16);
        }
        line.push_back((at, *packet));
        if was_empty {
            self.lines.set(self.line_of[index as usize], at);
        }
        None
    }

    /// Sends a segment or ACK from a host, delayed at random unless its flow is exact.
    #[inline]
    fn send_from_host(&mut self, now: Instant, packet: SimulatedPacket, exact: bool) {
        self.totals.sent += 1;
        if let (StepKind::Channel(channel), false) = (self.routes.steps[packet.step as usize].step, exact)
            && let Some(host) = &mut self.channels[channel as usize].host
        {
            host.delay(now);
        }
        self.proceed(now, packet);
    }

    /// Counts a packet delivered at `now`, which may be after the end of the run.
    #[inline]
    fn deliver(&mut self, now: Instant) {
        if now > self.end {
            self.beyond_end += 1;
        } else {
            self.totals.delivered += 1;
        }
    }

    /// Counts a packet lost at `now`, which may be after the end of the run.
    #[cold]
    fn lose(&mut self, now: Instant, packet: &SimulatedPacket) {
        if now > self.end {
            self.beyond_end += 1;
            return;
        }
        self.totals.lost += 1;
        let flow = match packet.body {
            PacketBody::Data(_) | PacketBody::Ack(_) => packet.flow as usize,
            PacketBody::Datagram { number, .. }
            | PacketBody::Probe { number, .. }
            | PacketBody::Answer { number, .. } => {
                return self.receivers[packet.flow as usize].lose(now, number);
            }
            PacketBody::Message(_) => self.hosts.senders.len() + packet.flow as usize / 2,
            PacketBody::Query(_) | PacketBody::Reply(_) => return,
        };
        let bin = (now.0 / self.grid.interval.0) as usize;
        if let Some(count) = self.flow_lost.get_mut(flow).and_then(|bins| bins.get_mut(bin)) {
            *count += 1;
        }
    }

    fn handle_timer(&mut self, now: Instant, timer: Timer) {
        match timer {
            Timer::Sender(flow) => {
                let slot = &mut self.hosts.senders[flow as usize];
                slot.wake = Instant::NEVER;
                let config = config_of(&self.hosts.groups, slot.group);
                if slot.started && slot.tcp.poll_timeout() <= now {
                    slot.tcp.handle_timeout(config, now);
                    self.watch.changed(now, flow, &mut slot.tcp, config);
                }
                slot.started = true;
                self.pump_sender(now, flow);
            }
            Timer::Receiver(flow) => {
                let slot = &mut self.hosts.receivers[flow as usize];
                slot.wake = Instant::NEVER;
                let config = config_of(&self.hosts.groups, slot.group);
                if slot.tcp.poll_timeout() <= now {
                    slot.tcp.handle_timeout(config, now);
                }
                self.pump_receiver(now, flow);
            }
            Timer::Source(index) => self.handle_source(index),
            Timer::Publication => {
                self.publish(now);
                self.set_timer(Timer::Publication, now + publication::PUBLICATION_INTERVAL);
            }
            Timer::News => {
                self.publish_news(now);
                self.set_timer(Timer::News, now + NEWS_INTERVAL);
            }
            Timer::Dialogue(index) => {
                self.hosts.dialogues[index as usize].handle_timeout(now);
                self.pump_dialogue(now, index);
            }
        }
    }

    /// Returns the arrival of the last of `size` bytes of a TCP flow, or `None` if bytes are missing.
    pub fn bulk_end(&self, flow: usize, size: u64) -> Option<Instant> {
        let is_complete = self.hosts.receivers[flow].tcp.delivered() >= size;
        is_complete.then(|| self.last_bytes[flow])
    }

    /// Returns the number of datagrams of a flow that were neither received nor lost before the end of the run.
    pub fn datagrams_in_flight(&self, flow: usize) -> u64 {
        self.receivers[flow].in_flight(self.datagrams_sent[flow])
    }

    /// Returns the number of copies made by links.
    pub fn duplicated(&self) -> u64 {
        let copies = |channel: &Channel| match &channel.kind {
            ChannelKind::Plain(_) => 0,
            ChannelKind::Full(link) => link.duplicated(),
        };
        self.channels.iter().map(copies).sum()
    }

    /// Returns the number of packets in flight: on lines, in links, waiting at PEs, or with an outcome after
    /// the end of the run.
    pub fn in_flight(&self) -> u64 {
        let channels = self.channels.iter().map(|channel| match &channel.kind {
            ChannelKind::Plain(_) => channel.line.len() as u64,
            ChannelKind::Full(link) => (link.in_flight() + link.queue_len()) as u64,
        });
        let waiting = self.vpns.iter().map(VpnState::queue_len);
        channels.chain(waiting).sum::<u64>() + self.beyond_end
    }
}
