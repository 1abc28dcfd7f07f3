//! A path between two namespaces that injects causes of slow TCP packet by packet, and knows what it injected. It
//! shares no code with the observers that it judges, nor with the emulator.
#![allow(dead_code)]

use crate::pair::{LEFT_MAC, RIGHT_MAC};
use netstage_core::rng::RandomStream;
use netstage_harness::needs;
use netstage_host::clock::monotonic_ns;
use netstage_host::netns::netlink::{Netlink, VethEnd, VethOptions, create_veth};
use netstage_host::netns::{Namespace, ethtool};
use netstage_host::ports::FramePort as _;
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use netstage_wire::checksum::{checksum, updated};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Ethernet header, bytes.
const ETHERNET: usize = 14;
/// Minimum IPv4 header, bytes.
const IPV4: usize = 20;
/// Longest sleep between two looks at the ports.
const TURN: Duration = Duration::from_micros(200);

/// Causes on the way from left to right. The way back only has the delay.
#[derive(Clone, Debug, Default)]
pub struct Injection {
    /// One-way delay of both directions.
    pub delay: Duration,
    /// Rate of the line in bits per second, and capacity of its queue in bytes.
    pub line: Option<(u64, usize)>,
    /// Probability of a loss.
    pub loss: f64,
    /// Rate of a policer in bits per second, and its burst in bytes.
    pub policer: Option<(u64, usize)>,
    /// Probability of a congestion mark.
    pub marks: f64,
    /// Largest packet that passes, and from when on, since the first packet.
    pub largest: Option<(usize, Duration)>,
    /// Larger packets are answered with ICMP (RFC 1191), instead of vanishing.
    pub reports_largest: bool,
    /// Times since the first packet in which nothing passes in either direction.
    pub blackouts: Vec<Range<Duration>>,
}

/// Injected causes.
#[derive(Clone, Debug, Default)]
pub struct Injected {
    /// Time for which the line was transmitting.
    pub busy: Duration,
    /// Mean waiting time of packets in the queue.
    pub waiting: Duration,
    /// Packets that arrived from the left.
    pub packets: u64,
    /// Packets dropped by the full queue, at random, by the policer, for their size and in a blackout.
    pub overflows: u64,
    pub losses: u64,
    pub policed: u64,
    pub too_large: u64,
    pub blacked_out: u64,
    /// Packets marked.
    pub marked: u64,
    /// Frames at the left and the right end, with the time of capture; kept on request.
    pub frames: [Vec<(u64, Vec<u8>)>; 2],
}

/// Two namespaces, and a third one between them with the ports of the injector.
pub struct InjectedPair {
    pub left: Namespace,
    pub right: Namespace,
    ports: [AfPacket; 2],
    _middle: Namespace,
}

/// Address of a side: 0 is left, 1 right.
pub fn address(side: u8) -> IpAddr {
    [10, 1, 0, side].into()
}

impl InjectedPair {
    /// Creates the namespaces; skips the test without the privilege.
    pub fn new() -> InjectedPair {
        needs::namespaces();
        let middle = Namespace::new().unwrap();
        let side = |name: &str, mac: [u8; 6], peer_mac: [u8; 6], own: u8| {
            let namespace = Namespace::new().unwrap();
            let outer = VethEnd { namespace: &middle, name, mac: [2, 0, 0, 0, 1, own] };
            let inner = VethEnd { namespace: &namespace, name: "eth0", mac };
            create_veth(inner, outer, VethOptions::default()).unwrap();
            for (namespace, link) in [(&namespace, "eth0"), (&middle, name)] {
                ethtool::disable_offloads(namespace, link).unwrap();
                Netlink::open(namespace).unwrap().set_up(link).unwrap();
            }
            let mut netlink = Netlink::open(&namespace).unwrap();
            netlink.add_address("eth0", address(own), 31).unwrap();
            netlink.add_neighbor("eth0", address(1 - own), peer_mac).unwrap();
            netlink.wait_until_ready("eth0").unwrap();
            // Large enough for the receiver's window never to limit.
            namespace.sysctl("net.ipv4.tcp_rmem", "4096 4194304 8388608").unwrap();
            namespace
        };
        let left = side("left", LEFT_MAC, RIGHT_MAC, 0);
        let right = side("right", RIGHT_MAC, LEFT_MAC, 1);
        let port = |name| AfPacket::open(&middle, name, AfPacketOptions { receive_frames: 8_192 }).unwrap();
        let ports = [port("left"), port("right")];
        InjectedPair { left, right, ports, _middle: middle }
    }

    /// Injects the causes while `task` runs. `seed` determines which packets are affected. `keeps_frames` records
    /// both ends.
    pub fn inject<T: Send>(
        self,
        injection: &Injection,
        seed: u64,
        keeps_frames: bool,
        task: impl FnOnce(&Namespace, &Namespace) -> T + Send,
    ) -> (T, Injected) {
        let InjectedPair { left, right, ports, _middle } = self;
        let is_over = AtomicBool::new(false);
        let mut injector = Injector::new(injection.clone(), seed, keeps_frames);
        thread::scope(|scope| {
            let running = scope.spawn(|| injector.run(ports, &is_over));
            // The injector ends even if the task panics.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| task(&left, &right)));
            is_over.store(true, Ordering::Relaxed);
            let injected = running.join().unwrap();
            (result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), injected)
        })
    }
}

struct Injector {
    injection: Injection,
    random: RandomStream,
    keeps_frames: bool,
    /// Time of the first packet.
    start: Option<u64>,
    /// Time at which the line has sent everything.
    line_free: u64,
    tokens: f64,
    filled: u64,
    /// Frames on the way to the right and to the left, with the time of arrival.
    flying: [VecDeque<(u64, Vec<u8>)>; 2],
    waited: u64,
    injected: Injected,
}

impl Injector {
    fn new(injection: Injection, seed: u64, keeps_frames: bool) -> Injector {
        let start = monotonic_ns();
        Injector {
            tokens: injection.policer.map_or(0.0, |(_, burst)| burst as f64),
            injection,
            random: RandomStream::new(seed, "injector"),
            keeps_frames,
            start: None,
            line_free: start,
            filled: start,
            flying: [VecDeque::new(), VecDeque::new()],
            waited: 0,
            injected: Injected::default(),
        }
    }

    fn run(&mut self, mut ports: [AfPacket; 2], is_over: &AtomicBool) -> Injected {
        while !is_over.load(Ordering::Relaxed) {
            let mut arrived: [Vec<(u64, Vec<u8>)>; 2] = Default::default();
            for (port, arrived) in ports.iter_mut().zip(&mut arrived) {
                port.receive(256, &mut |frame| arrived.push((frame.at_ns, frame.frame.to_vec()))).unwrap();
            }
            let has_arrived = arrived.iter().any(|frames| !frames.is_empty());
            for (side, frames) in arrived.into_iter().enumerate() {
                for (at, frame) in frames {
                    self.keep(side, at, &frame);
                    if side == 0 { self.forward(at, frame) } else { self.backward(at, frame) }
                }
            }
            let now = monotonic_ns();
            for side in 0..2 {
                let port = &mut ports[1 - side];
                while self.flying[side].front().is_some_and(|(due, _)| *due <= now) {
                    let (_, frame) = &self.flying[side][0];
                    if !port.send(frame).unwrap() {
                        port.flush().unwrap();
                        continue;
                    }
                    let (_, frame) = self.flying[side].pop_front().unwrap();
                    self.keep(1 - side, now, &frame);
                }
                port.flush().unwrap();
            }
            if !has_arrived {
                let due = self.flying.iter().filter_map(|frames| frames.front()).map(|(due, _)| *due).min();
                let wait = due.map_or(TURN, |due| Duration::from_nanos(due.saturating_sub(now)).min(TURN));
                thread::sleep(wait);
            }
        }
        let mut injected = std::mem::take(&mut self.injected);
        injected.waiting = Duration::from_nanos(self.waited / injected.packets.max(1));
        injected
    }

    fn keep(&mut self, side: usize, at: u64, frame: &[u8]) {
        if self.keeps_frames {
            self.injected.frames[side].push((at, frame.to_vec()));
        }
    }

    fn since_start(&self, at: u64) -> Duration {
        Duration::from_nanos(at.saturating_sub(self.start.unwrap_or(at)))
    }

    fn is_blacked_out(&self, at: u64) -> bool {
        let since = self.since_start(at);
        self.injection.blackouts.iter().any(|blackout| blackout.contains(&since))
    }

    fn backward(&mut self, at: u64, frame: Vec<u8>) {
        if self.is_blacked_out(at) {
            self.injected.blacked_out += 1;
            return;
        }
        self.flying[1].push_back((at + self.injection.delay.as_nanos() as u64, frame));
    }

    fn forward(&mut self, at: u64, mut frame: Vec<u8>) {
        let size = frame.len() - ETHERNET;
        self.injected.packets += 1;
        self.start.get_or_insert(at);
        if self.is_blacked_out(at) {
            self.injected.blacked_out += 1;
            return;
        }
        if self.is_too_large(at, size) {
            self.injected.too_large += 1;
            if self.injection.reports_largest {
                self.report_largest(at, &frame);
            }
            return;
        }
        if self.random.chance(self.injection.loss) {
            self.injected.losses += 1;
            return;
        }
        if self.is_policed(at, size) {
            self.injected.policed += 1;
            return;
        }
        if self.random.chance(self.injection.marks) && mark(&mut frame) {
            self.injected.marked += 1;
        }
        let mut left_line = at;
        if let Some((rate, capacity)) = self.injection.line {
            let wait = self.line_free.saturating_sub(at);
            let queued = wait as f64 * rate as f64 / 8e9;
            if queued + size as f64 > capacity as f64 && wait > 0 {
                self.injected.overflows += 1;
                return;
            }
            let transmission = size as u64 * 8_000_000_000 / rate;
            self.line_free = self.line_free.max(at) + transmission;
            self.injected.busy += Duration::from_nanos(transmission);
            self.waited += wait;
            left_line = self.line_free;
        }
        self.flying[0].push_back((left_line + self.injection.delay.as_nanos() as u64, frame));
    }

    fn is_too_large(&self, at: u64, size: usize) -> bool {
        let since = self.since_start(at);
        self.injection.largest.is_some_and(|(largest, from)| size > largest && since >= from)
    }

    fn is_policed(&mut self, at: u64, size: usize) -> bool {
        let Some((rate, burst)) = self.injection.policer else { return false };
        let filled = at.saturating_sub(self.filled) as f64 * rate as f64 / 8e9;
        self.filled = self.filled.max(at);
        self.tokens = (self.tokens + filled).min(burst as f64);
        let is_policed = self.tokens < size as f64;
        if !is_policed {
            self.tokens -= size as f64;
        }
        is_policed
    }

    /// Answers a packet with "fragmentation needed" (RFC 1191 section 4).
    fn report_largest(&mut self, at: u64, frame: &[u8]) {
        let Some((largest, _)) = self.injection.largest else { return };
        let packet = &frame[ETHERNET..];
        let quoted = &packet[..packet.len().min(IPV4 + 8)];
        let mut message = [&[3, 4, 0, 0, 0, 0][..], &(largest as u16).to_be_bytes(), quoted].concat();
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut header = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0].to_vec();
        header[2..4].copy_from_slice(&((IPV4 + message.len()) as u16).to_be_bytes());
        // From the destination of the packet, which stands for a router, to its source.
        header.extend([&packet[16..20], &packet[12..16]].concat());
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        let answer = [&LEFT_MAC[..], &RIGHT_MAC, &[8, 0], &header, &message].concat();
        self.flying[1].push_back((at + self.injection.delay.as_nanos() as u64, answer));
    }
}

/// Sets the mark of an ECN-capable packet of IPv4 (RFC 3168 section 5); returns whether it is one.
fn mark(frame: &mut [u8]) -> bool {
    let Some(header) = frame.get_mut(ETHERNET..ETHERNET + IPV4) else { return false };
    if header[0] >> 4 != 4 || !matches!(header[1] & 3, 1 | 2) {
        return false;
    }
    let before = u16::from_be_bytes([header[0], header[1]]);
    header[1] |= 3;
    let after = u16::from_be_bytes([header[0], header[1]]);
    let sum = updated(u16::from_be_bytes([header[10], header[11]]), before, after);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    true
}
