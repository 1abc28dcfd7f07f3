//! The slow path: looks up each frame it receives in the tables, and forwards, fragments, answers or counts
//! it. Without an XDP program it forwards all frames.

use super::counter::{Counter, Counters, PacketCount};
use super::errors::{self, Budget};
use super::layout::HopAddresses;
use super::shaper::Shaper;
use super::tables::Tables;
use netstage_core::forward::{
    BufferedPacket, DropReason, ForwardingVerdict, Hop, PacketProtocol, ReportableError,
};
use netstage_core::time::{Duration, Instant};
use netstage_host::ports::FramePort;
use netstage_routing::source::path::InterfaceNeighbor;
use netstage_wire::ethernet::{self, Mac, ethertype};
use netstage_wire::ip::fragment::Fragments;
use netstage_wire::ip::{self, v4};
use netstage_wire::mpls::ENTRY;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Frames read from one port in one turn.
const BATCH: usize = 64;
/// Headroom before a packet, for labels and the Ethernet header.
const ROOM: usize = 64;
/// Number of packets queued for one neighbor, and the time they wait for its MAC address.
const MAX_WAITING: usize = 8;
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Interface of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowPathInterface {
    /// MAC address of the interface.
    pub mac: Mac,
    /// Source of ICMP errors over IPv4.
    pub v4: Option<Ipv4Addr>,
    /// Source of ICMP errors over IPv6.
    pub v6: Option<Ipv6Addr>,
}

/// Work done in one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowPathTurn {
    /// Frames read from all ports.
    pub received: usize,
    /// More work is pending; call again at once.
    pub more: bool,
}

/// Slow path over ports of any kind.
#[derive(Debug)]
pub struct SlowPath<P> {
    ports: Vec<P>,
    interfaces: Vec<SlowPathInterface>,
    tables: Tables,
    counters: Counters,
    budget: Budget,
    /// Packets queued until the MAC address of the next hop is known.
    waiting: BTreeMap<InterfaceNeighbor, UnresolvedPackets>,
    /// Packets received in an LSP for the kernel.
    delivered: VecDeque<Vec<u8>>,
    failures: Vec<Option<io::Error>>,
    /// Frames received for the router and frames sent, per interface.
    passed: Vec<[PacketCount; 2]>,
    shapers: BTreeMap<u32, Shaper>,
}

#[derive(Debug)]
struct UnresolvedPackets {
    packets: VecDeque<(PacketProtocol, Vec<u8>)>,
    until: Instant,
}

impl<P: FramePort> SlowPath<P> {
    /// Creates a slow path with one port per interface.
    ///
    /// # Panics
    ///
    /// Panics if the numbers of ports and interfaces differ.
    pub fn new(ports: Vec<P>, interfaces: Vec<SlowPathInterface>, tables: Tables) -> SlowPath<P> {
        assert_eq!(ports.len(), interfaces.len(), "a port for each interface");
        SlowPath {
            failures: ports.iter().map(|_| None).collect(),
            passed: vec![[PacketCount::default(); 2]; ports.len()],
            shapers: BTreeMap::new(),
            ports,
            interfaces,
            tables,
            counters: Counters::default(),
            budget: Budget::default(),
            waiting: BTreeMap::new(),
            delivered: VecDeque::new(),
        }
    }

    /// Reads and processes a batch from each port.
    pub fn turn(&mut self, now: Instant) -> SlowPathTurn {
        let mut turn = SlowPathTurn::default();
        let mut frames = Vec::new();
        for interface in 0..self.ports.len() {
            let read = self.ports[interface].receive(BATCH, &mut |received| {
                frames.push([&[0; ROOM - ethernet::HEADER], received.frame].concat())
            });
            match read {
                Ok(count) => {
                    turn.received += count;
                    turn.more |= count >= BATCH;
                    self.failures[interface] = None;
                }
                Err(error) => self.failures[interface] = Some(error),
            }
            for mut frame in frames.drain(..) {
                self.handle_frame(now, interface as u32, &mut frame);
            }
        }
        self.give_up_waiting(now);
        self.send_shaped(now);
        for (port, failure) in self.ports.iter_mut().zip(&mut self.failures) {
            match port.flush() {
                Ok(refused) => self.counters.add(Counter::Refused, refused as u64),
                Err(error) => *failure = Some(error),
            }
        }
        turn
    }

    /// Returns the time by which [`turn`](SlowPath::turn) must be called again.
    pub fn poll_timeout(&self) -> Instant {
        let waiting = self.waiting.values().map(|waiting| waiting.until);
        let shaped = self.shapers.values().map(Shaper::poll_timeout);
        waiting.chain(shaped).min().unwrap_or(Instant::NEVER)
    }

    /// Returns the tables for changes.
    pub fn tables_mut(&mut self) -> &mut Tables {
        &mut self.tables
    }

    /// Returns the tables.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the ports, to wait on.
    pub fn ports(&self) -> &[P] {
        &self.ports
    }

    /// Replaces a port and returns the previous one. The next unused number adds a port.
    ///
    /// # Panics
    ///
    /// Panics if the number is greater than that.
    pub fn set_port(&mut self, number: u32, port: P, interface: SlowPathInterface) -> Option<P> {
        let number = number as usize;
        if number == self.ports.len() {
            self.ports.push(port);
            self.interfaces.push(interface);
            self.failures.push(None);
            self.passed.push([PacketCount::default(); 2]);
            return None;
        }
        self.interfaces[number] = interface;
        self.failures[number] = None;
        Some(std::mem::replace(&mut self.ports[number], port))
    }

    /// Sets the addresses of an interface.
    pub fn set_interface(&mut self, number: u32, interface: SlowPathInterface) {
        self.interfaces[number as usize] = interface;
    }

    /// Returns the frames received for the router on an interface.
    pub fn received(&self, interface: u32) -> PacketCount {
        self.passed[interface as usize][0]
    }

    /// Returns the frames sent to an interface.
    pub fn sent(&self, interface: u32) -> PacketCount {
        self.passed[interface as usize][1]
    }

    /// Sets or removes the shaper of an interface. Frames queued in the previous one are dropped.
    pub fn set_shaper(&mut self, interface: u32, shaper: Option<Shaper>) {
        match shaper {
            Some(shaper) => drop(self.shapers.insert(interface, shaper)),
            None => drop(self.shapers.remove(&interface)),
        }
    }

    /// Returns the number of frames queued in the shaper of an interface.
    pub fn queued(&self, interface: u32) -> usize {
        self.shapers.get(&interface).map_or(0, Shaper::len)
    }

    /// Returns the last error of a port, or `None` if it works.
    pub fn failure(&self, interface: u32) -> Option<&io::Error> {
        self.failures[interface as usize].as_ref()
    }

    /// Returns the next IP packet for the kernel, received in an LSP.
    pub fn poll_delivered(&mut self) -> Option<Vec<u8>> {
        self.delivered.pop_front()
    }

    /// Returns the neighbors whose MAC addresses packets wait for.
    pub fn unresolved(&self) -> impl Iterator<Item = InterfaceNeighbor> {
        self.waiting.keys().copied()
    }

    /// Sends the packets queued for a neighbor to its MAC address.
    pub fn resolve(&mut self, now: Instant, neighbor: InterfaceNeighbor, to: Mac) {
        let Some(waiting) = self.waiting.remove(&neighbor) else { return };
        let (interface, _) = neighbor;
        let stations = HopAddresses { to, from: self.interfaces[interface as usize].mac };
        for (kind, packet) in waiting.packets {
            let mut bytes = [&[0; ROOM], &packet[..]].concat();
            self.transmit(now, interface, &mut bytes, ROOM, kind, stations);
        }
    }

    /// Sends a packet of the kernel, which adds no labels itself.
    pub fn send_own(&mut self, now: Instant, interface: u32, packet: &[u8]) {
        let Some(kind) = version(packet) else { return };
        let mut bytes = [&[0; ROOM], packet].concat();
        self.decide(now, interface, &mut bytes, kind, false);
    }

    /// Processes a frame with its packet at offset [`ROOM`].
    fn handle_frame(&mut self, now: Instant, interface: u32, bytes: &mut [u8]) {
        let Ok(view) = ethernet::View::new(&bytes[ROOM - ethernet::HEADER..]) else { return };
        if view.destination() != self.interfaces[interface as usize].mac
            || view.payload_offset() != ethernet::HEADER
        {
            return;
        }
        let kind = match view.kind() {
            ethertype::IPV4 => PacketProtocol::V4,
            ethertype::IPV6 => PacketProtocol::V6,
            ethertype::MPLS => PacketProtocol::Mpls,
            _ => return,
        };
        self.passed[interface as usize][0].add(bytes.len() - ROOM + ethernet::HEADER);
        self.decide(now, interface, bytes, kind, true);
    }

    /// Decides about a packet at offset [`ROOM`] and executes the decision. An ICMP error is sent only if
    /// `may_answer`: not about fragments made here or packets of this router.
    fn decide(
        &mut self,
        now: Instant,
        interface: u32,
        bytes: &mut [u8],
        kind: PacketProtocol,
        may_answer: bool,
    ) {
        let mut packet = BufferedPacket { bytes, start: ROOM, kind };
        // The router's own answers and fragments of a verified packet get no answers.
        let verdict = match may_answer {
            true => self.tables.forward(&mut packet, interface),
            false => self.tables.forward_own(&mut packet, interface),
        };
        match verdict {
            ForwardingVerdict::Send { hop, start, kind } => self.send(now, hop, bytes, start, kind),
            ForwardingVerdict::Local { start, kind } => self.deliver(&bytes[start..], kind, start != ROOM),
            ForwardingVerdict::Fragment { mtu, start } => {
                self.divide(now, interface, bytes, (kind, start), mtu, may_answer)
            }
            ForwardingVerdict::Reject(fault) => {
                self.refuse(now, interface, (kind, &bytes[ROOM..]), fault, may_answer)
            }
            ForwardingVerdict::Drop(reason) => self.counters.add(counter(reason), 1),
        }
    }

    fn send(&mut self, now: Instant, hop: u32, bytes: &mut [u8], start: usize, kind: PacketProtocol) {
        let (Hop { interface, .. }, next_hop) = self.tables.hop(hop);
        let interface = *interface;
        if let Some(stations) = next_hop.addresses {
            self.transmit(now, interface, bytes, start, kind, stations);
            return;
        }
        // A hop without a next-router address has no labels.
        let own = || ip::View::new(&bytes[start..]).ok().map(|packet| packet.destination());
        let Some(address) = next_hop.via.or_else(own) else {
            self.counters.add(Counter::Unresolved, 1);
            return;
        };
        let until = now + RESOLVE_TIMEOUT;
        let neighbor = (interface, address);
        let waiting = self
            .waiting
            .entry(neighbor)
            .or_insert_with(|| UnresolvedPackets { packets: VecDeque::new(), until });
        if waiting.packets.len() == MAX_WAITING {
            waiting.packets.pop_front();
            self.counters.add(Counter::Unresolved, 1);
        }
        waiting.packets.push_back((kind, bytes[start..].to_vec()));
    }

    /// Sends a packet, with headroom before it, to a port.
    fn transmit(
        &mut self,
        now: Instant,
        interface: u32,
        bytes: &mut [u8],
        start: usize,
        kind: PacketProtocol,
        stations: HopAddresses,
    ) {
        let kind = match kind {
            PacketProtocol::V4 => ethertype::IPV4,
            PacketProtocol::V6 => ethertype::IPV6,
            PacketProtocol::Mpls => ethertype::MPLS,
        };
        let header = ethernet::Header { destination: stations.to, source: stations.from, tags: &[], kind };
        let frame = &mut bytes[start - ethernet::HEADER..];
        let written = header.write(frame);
        debug_assert!(written.is_ok(), "there is room");
        match self.shapers.get_mut(&interface) {
            Some(shaper) => {
                let dropped = shaper.handle_frame(now, frame);
                self.counters.add(Counter::QueueFull, dropped);
            }
            None => self.hand_over(interface, frame),
        }
    }

    /// Sends the frames that are due in the shapers.
    fn send_shaped(&mut self, now: Instant) {
        let mut dropped = 0;
        let mut shapers = std::mem::take(&mut self.shapers);
        for (interface, shaper) in &mut shapers {
            while let Some(frame) = shaper.poll_transmit(now, &mut dropped) {
                self.hand_over(*interface, &frame);
            }
        }
        self.shapers = shapers;
        self.counters.add(Counter::QueueFull, dropped);
    }

    fn hand_over(&mut self, interface: u32, frame: &[u8]) {
        let port = &mut self.ports[interface as usize];
        let mut sent = port.send(frame);
        if matches!(sent, Ok(false)) {
            sent = port.flush().and_then(|refused| {
                self.counters.add(Counter::Refused, refused as u64);
                port.send(frame)
            });
        }
        if matches!(sent, Ok(true)) {
            self.counters.add(Counter::Forwarded, 1);
            self.passed[interface as usize][1].add(frame.len());
        } else {
            self.counters.add(Counter::Refused, 1);
        }
    }

    /// Handles a packet to this router. The kernel has received unlabeled packets itself; packets beneath
    /// labels are passed to it.
    fn deliver(&mut self, packet: &[u8], kind: PacketProtocol, was_hidden: bool) {
        if !was_hidden || kind == PacketProtocol::Mpls {
            self.counters.add(Counter::Local, 1);
            return;
        }
        self.counters.add(Counter::Delivered, 1);
        self.delivered.push_back(packet.to_vec());
    }

    /// Sends a packet in fragments, each with the labels of the packet.
    fn divide(
        &mut self,
        now: Instant,
        interface: u32,
        bytes: &[u8],
        (kind, start): (PacketProtocol, usize),
        mtu: u16,
        may_answer: bool,
    ) {
        let labels = &bytes[ROOM..start];
        let fragments = v4::View::new(&bytes[start..]).ok().and_then(|view| Fragments::new(view, mtu).ok());
        let Some(mut fragments) = fragments else {
            self.refuse(now, interface, (kind, &bytes[ROOM..]), ReportableError::TooBig(mtu), may_answer);
            return;
        };
        self.counters.add(Counter::Divided, 1);
        let mut piece = vec![0; usize::from(mtu)];
        while let Some(length) = fragments.write(&mut piece) {
            let mut bytes = [&[0; ROOM], labels, &piece[..length]].concat();
            self.decide(now, interface, &mut bytes, kind, false);
        }
    }

    /// Drops a packet in its received form, and sends an ICMP error.
    fn refuse(
        &mut self,
        now: Instant,
        interface: u32,
        (kind, received): (PacketProtocol, &[u8]),
        fault: ReportableError,
        may_answer: bool,
    ) {
        self.counters.add(
            match fault {
                ReportableError::TtlExceeded => Counter::TtlExceeded,
                ReportableError::TooBig(_) => Counter::TooBig,
                ReportableError::NoRoute => Counter::NoRoute,
            },
            1,
        );
        if !may_answer {
            return;
        }
        let own = &self.interfaces[interface as usize];
        let answer = match self.budget.allows(now) {
            true => errors::answer(own.v4, own.v6, kind, fault, received),
            false => None,
        };
        let Some(answer) = answer else {
            self.counters.add(Counter::NotAnswered, 1);
            return;
        };
        self.counters.add(Counter::Answered, 1);
        let labels = errors::labels(kind, received);
        if labels.is_empty() || self.has_route(interface, &answer) {
            self.send_own(now, interface, &answer);
            return;
        }
        // Routers within an LSP need not have routes to its users. The end of the LSP sends the ICMP error
        // back (RFC 3032 section 2.3.2).
        let mut bytes = [&[0; ROOM], labels, &answer].concat();
        bytes[ROOM + ENTRY - 1] = u8::MAX;
        self.decide(now, interface, &mut bytes, PacketProtocol::Mpls, false);
    }

    fn has_route(&self, interface: u32, packet: &[u8]) -> bool {
        let Some(kind) = version(packet) else { return false };
        let mut bytes = [&[0; ROOM], packet].concat();
        let verdict =
            self.tables.forward_own(&mut BufferedPacket { bytes: &mut bytes, start: ROOM, kind }, interface);
        verdict != ForwardingVerdict::Reject(ReportableError::NoRoute)
    }

    fn give_up_waiting(&mut self, now: Instant) {
        while let Some((&neighbor, _)) = self.waiting.iter().find(|(_, waiting)| waiting.until <= now) {
            let lost = self.waiting.remove(&neighbor).map_or(0, |waiting| waiting.packets.len());
            self.counters.add(Counter::Unresolved, lost as u64);
        }
    }
}

fn version(packet: &[u8]) -> Option<PacketProtocol> {
    match ip::View::new(packet).ok()? {
        ip::View::V4(_) => Some(PacketProtocol::V4),
        ip::View::V6(_) => Some(PacketProtocol::V6),
    }
}

fn counter(reason: DropReason) -> Counter {
    match reason {
        DropReason::Malformed => Counter::Malformed,
        DropReason::UnknownLabel => Counter::UnknownLabel,
        DropReason::Unexpected => Counter::UnexpectedLabel,
        DropReason::Martian => Counter::Martian,
        DropReason::Spoofed => Counter::Spoofed,
        DropReason::Reserved => Counter::ReservedLabel,
        DropReason::TooDeep | DropReason::NoRoom => Counter::TooDeep,
        DropReason::NoHop => Counter::NoHop,
        DropReason::Discarded => Counter::Discarded,
    }
}
