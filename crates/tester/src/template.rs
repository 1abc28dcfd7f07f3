//! Frames of a test, as sent and as expected from the router (RFC 1812 section 5.3.1, RFC 3032 section 2.4,
//! RFC 3443).

use super::ip_header::IpHeader;
use netstage_core::forward::TunnelModel;
use netstage_scenario::tester::{INNER, Operation, Tester, TrafficDirection};
use netstage_wire::ethernet::{HEADER as ETHERNET, Mac, ethertype};
use netstage_wire::mpls::{LabelStackEntry, LabelValue};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Length in bytes of the stamp that follows the headers of every packet (`struct stamp` of bpf/trial.bpf.c).
pub const STAMP: usize = 18;
const SIGNATURE: u16 = 0x5354;
/// Offset of the parity byte in the stamp.
const PARITY: usize = 5;
/// Difference of the words of the payload (`STEP` of bpf/trial.bpf.c).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const UDP: usize = 8;
/// Source port of RFC 2544, and destination port of the discard protocol (RFC 863).
const PORTS: [u16; 2] = [0xc020, 9];
/// Host part of every destination address.
const HOST: u8 = 2;

/// TTLs of packets and labels as sent: different, so that each can be recognized.
const IP_TTL: u8 = 64;
const LABEL_TTL: u8 = 48;

/// Headers of frames. The fields that differ between frames are zero: lengths, checksums and the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameTemplate {
    /// Ethernet header.
    pub ethernet: [u8; ETHERNET],
    /// Label stack entries, the outermost first.
    pub labels: Vec<LabelStackEntry>,
    /// Outermost label for each peer.
    pub by_peer: Vec<u32>,
    /// IP header.
    pub ip: IpHeader,
}

/// Packets that a port expects.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedPackets<'a> {
    /// Destination networks.
    pub to: Destinations,
    /// Source address of each stream.
    pub sources: &'a [IpAddr],
    /// Lengths of IP packets, in turn.
    pub lengths: &'a [u16],
}

/// Destination networks of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destinations {
    /// First network: a /24 of IPv4 or a /48 of IPv6.
    pub first: IpAddr,
    /// Number of consecutive networks.
    pub networks: u32,
    /// Number of peers, to which the networks are assigned in turn.
    pub peers: u32,
}

impl Destinations {
    /// Returns the destinations of a direction.
    pub fn of_direction(tester: &Tester, direction: &TrafficDirection) -> Destinations {
        Destinations {
            first: direction.first_network,
            networks: tester.networks,
            peers: tester.peer_count(direction),
        }
    }

    /// Returns the first destination address, or the first half of an IPv6 address, in the form that the XDP
    /// programs count up.
    pub fn first_host(self) -> u64 {
        match self.first {
            IpAddr::V4(first) => u64::from(u32::from(first) | u32::from(HOST)),
            IpAddr::V6(first) => (u128::from(first) >> 64) as u64,
        }
    }

    /// Returns the destination address of the packet with this sequence number.
    pub fn address(self, sequence: u32) -> IpAddr {
        let network = sequence % self.networks;
        match self.first {
            IpAddr::V4(first) => Ipv4Addr::from((u32::from(first) | u32::from(HOST)) + (network << 8)).into(),
            IpAddr::V6(first) => {
                let network = u128::from(network) << 80;
                Ipv6Addr::from((u128::from(first) | u128::from(HOST)) + network).into()
            }
        }
    }

    /// Returns the peer of the packet with this sequence number.
    pub fn peer(self, sequence: u32) -> u32 {
        sequence % self.networks % self.peers
    }
}

/// Returns the source address of packets that a port with this address sends to a network. For IPv6 packets of
/// an IPv4 port it is a benchmarking address (RFC 5180) that ends with the IPv4 address.
pub fn source_address(address: IpAddr, first: IpAddr) -> IpAddr {
    match (address, first) {
        (IpAddr::V4(address), IpAddr::V6(_)) => {
            Ipv6Addr::from(0x2001_0002_u128 << 96 | u128::from(u32::from(address))).into()
        }
        (address, _) => address,
    }
}

/// Returns the template of frames sent to the router, with the outermost label of each peer.
pub fn sent_template(operation: Operation, by_peer: Vec<u32>, from: IpAddr, macs: [Mac; 2]) -> FrameTemplate {
    let mut entries: Vec<LabelStackEntry> =
        by_peer.first().map(|label| entry(*label, LABEL_TTL)).into_iter().collect();
    if operation == Operation::Php {
        entries.push(entry(INNER, IP_TTL));
    }
    form(entries, by_peer, IP_TTL, from, macs)
}

/// Returns the template of frames expected from the router, with the outermost label of each peer.
pub fn forwarded_template(
    operation: Operation,
    (model, hops): (TunnelModel, u8),
    by_peer: Vec<u32>,
    from: IpAddr,
    macs: [Mac; 2],
) -> FrameTemplate {
    let is_uniform = model == TunnelModel::Uniform;
    // The first router pushes, and the last one pops.
    let (label_ttl, ip_ttl) = match operation {
        Operation::Ip => (0, IP_TTL - hops),
        Operation::Push => (if is_uniform { IP_TTL - hops } else { u8::MAX - (hops - 1) }, IP_TTL - 1),
        Operation::Swap => (LABEL_TTL - hops, IP_TTL),
        Operation::Pop => (0, if is_uniform { LABEL_TTL - hops } else { IP_TTL - 1 }),
        Operation::Unlabeled => (0, if is_uniform { LABEL_TTL - hops } else { IP_TTL }),
        Operation::Php => (if is_uniform { LABEL_TTL - hops } else { IP_TTL }, IP_TTL),
    };
    let entries = by_peer.first().map(|label| entry(*label, label_ttl));
    form(entries.into_iter().collect(), by_peer, ip_ttl, from, macs)
}

fn entry(label: u32, ttl: u8) -> LabelStackEntry {
    let label = LabelValue::new(label).expect("configured labels have 20 bits");
    LabelStackEntry { label, traffic_class: 0, bottom: false, ttl }
}

fn form(
    mut labels: Vec<LabelStackEntry>,
    by_peer: Vec<u32>,
    ttl: u8,
    from: IpAddr,
    [source, destination]: [Mac; 2],
) -> FrameTemplate {
    let ip = IpHeader::new(from, ttl);
    let kind = if labels.is_empty() { ip.ethertype() } else { ethertype::MPLS };
    if let Some(last) = labels.last_mut() {
        last.bottom = true;
    }
    let mut ethernet = [0; ETHERNET];
    ethernet[..6].copy_from_slice(&destination);
    ethernet[6..12].copy_from_slice(&source);
    ethernet[12..].copy_from_slice(&kind.to_be_bytes());
    FrameTemplate { ethernet, labels, by_peer, ip }
}

/// Returns the UDP source and destination port of all packets, in network byte order.
pub fn udp_ports() -> [u8; 4] {
    let [source, destination] = PORTS.map(u16::to_be_bytes);
    [source[0], source[1], destination[0], destination[1]]
}

/// Identification of a test packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameStamp {
    /// Number of the trial.
    pub trial: u16,
    /// Number of the stream.
    pub stream: u8,
    /// Sequence number within the stream, from zero.
    pub sequence: u32,
    /// Time of transmission (CLOCK_MONOTONIC).
    pub sent_ns: u64,
}

impl FrameStamp {
    fn to_bytes(self) -> [u8; STAMP] {
        let mut bytes = [0; STAMP];
        // Native byte order, as in the XDP programs of the same machine.
        bytes[..2].copy_from_slice(&SIGNATURE.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.trial.to_ne_bytes());
        bytes[4] = self.stream;
        bytes[6..10].copy_from_slice(&self.sequence.to_ne_bytes());
        bytes[10..].copy_from_slice(&self.sent_ns.to_ne_bytes());
        bytes[PARITY] = parity(&bytes);
        bytes
    }

    /// Returns the payload of this length that follows the stamp: pairs of a word and its complement, which add nothing
    /// to a checksum, and zeros at the end.
    fn payload(self, length: usize) -> Vec<u8> {
        let number = u64::from(self.sequence) << 32 | u64::from(self.trial) << 16 | u64::from(self.stream);
        let first = (number ^ self.sent_ns).wrapping_mul(STEP);
        let mut bytes = Vec::with_capacity(length);
        for pair in 0..length as u64 / 16 {
            let word = first.wrapping_add(pair.wrapping_mul(STEP));
            bytes.extend(word.to_ne_bytes());
            bytes.extend((!word).to_ne_bytes());
        }
        bytes.resize(length, 0);
        bytes
    }

    fn read(bytes: &[u8]) -> Option<FrameStamp> {
        let bytes: &[u8; STAMP] = bytes.first_chunk()?;
        let is_signed = bytes[..2] == SIGNATURE.to_ne_bytes() && parity(bytes) == 0;
        is_signed.then(|| FrameStamp {
            trial: u16::from_ne_bytes([bytes[2], bytes[3]]),
            stream: bytes[4],
            sequence: u32::from_ne_bytes(bytes[6..10].try_into().expect("four bytes")),
            sent_ns: u64::from_ne_bytes(bytes[10..].try_into().expect("eight bytes")),
        })
    }
}

/// Returns the exclusive or of the bytes of a stamp.
fn parity(bytes: &[u8; STAMP]) -> u8 {
    bytes.iter().fold(0, |parity, byte| parity ^ byte)
}

impl FrameTemplate {
    /// Returns the number of bytes before the IP packet.
    pub fn overhead(&self) -> usize {
        ETHERNET + self.labels.len() * netstage_wire::mpls::ENTRY
    }

    /// Builds the frame of an IP packet of this length.
    pub fn frame(&self, stamp: FrameStamp, length: u16, to: Destinations) -> Vec<u8> {
        let mut frame = self.ethernet.to_vec();
        for (position, entry) in self.labels.iter().enumerate() {
            let peer_label = self.by_peer.get(to.peer(stamp.sequence) as usize).filter(|_| position == 0);
            let label = peer_label.and_then(|label| LabelValue::new(*label)).unwrap_or(entry.label);
            frame.extend(LabelStackEntry { label, ..*entry }.to_bytes());
        }
        let mut ip = self.ip.clone();
        ip.complete(length, to.address(stamp.sequence));
        let mut udp = udp_ports().to_vec();
        udp.extend((length - ip.bytes().len() as u16).to_be_bytes());
        udp.extend([0; 2]);
        udp.extend(stamp.to_bytes());
        udp.extend(stamp.payload(usize::from(length) - ip.bytes().len() - UDP - STAMP));
        let checksum = ip.udp_checksum(&udp);
        udp[6..8].copy_from_slice(&checksum.to_be_bytes());
        frame.extend(ip.bytes());
        frame.extend(udp);
        frame
    }

    /// Describes how a received frame of this length differs from the expected frame; empty if it does not. `bytes` may be
    /// truncated.
    pub fn differences(&self, bytes: &[u8], length: usize, expected: ExpectedPackets<'_>) -> String {
        let Some(received) = ParsedFrame::read(bytes) else {
            return "not recognizable as a test packet".into();
        };
        let mut form = self.clone();
        // Each stream has its own source address.
        if let Some(source) = expected.sources.iter().find(|source| **source == received.ip.source()) {
            form.ip.set_source(*source);
        }
        let sent = expected.lengths[received.stamp.sequence as usize % expected.lengths.len()];
        let frame = form.frame(received.stamp, sent, expected.to);
        let expected = ParsedFrame::read(&frame).expect("a test frame is readable");
        let mut text = String::new();
        let mut add = |field: &str, received: &dyn std::fmt::Display, expected: &dyn std::fmt::Display| {
            let separator = if text.is_empty() { "" } else { ", " };
            write!(text, "{separator}{field} {received} instead of {expected}").expect("writing to a string");
        };
        received.compare_headers(&expected, &mut add);
        let (room, full) = (length.saturating_sub(received.around), frame.len() - expected.around);
        if room != full {
            add("bytes", &room, &full);
        }
        let pairs = received.payload.iter().zip(&expected.payload).enumerate();
        let mut changed = pairs.filter(|(_, (received, expected))| received != expected);
        if let Some((at, (received, expected))) = changed.next() {
            let at = at + STAMP;
            add(&format!("byte {at} of the payload"), &format!("{received:02x}"), &format!("{expected:02x}"));
        }
        text
    }
}

/// Parsed frame.
struct ParsedFrame {
    macs: [Mac; 2],
    labels: Vec<LabelStackEntry>,
    around: usize,
    ip: IpHeader,
    udp: [u8; UDP],
    length: u16,
    stamp: FrameStamp,
    /// Bytes after the stamp.
    payload: Vec<u8>,
}

impl ParsedFrame {
    /// Passes each field that differs to `add`: its name, its value, and the expected value.
    fn compare_headers(
        &self,
        expected: &ParsedFrame,
        add: &mut impl FnMut(&str, &dyn std::fmt::Display, &dyn std::fmt::Display),
    ) {
        let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        if self.macs != expected.macs {
            let both = |[to, from]: [Mac; 2]| format!("{} to {}", mac(from), mac(to));
            add("MAC addresses", &both(self.macs), &both(expected.macs));
        }
        if self.labels != expected.labels {
            add("labels", &stack(&self.labels), &stack(&expected.labels));
        }
        let (ip, expected_ip) = (&self.ip, &expected.ip);
        if ip.ttl() != expected_ip.ttl() {
            add("TTL", &ip.ttl(), &expected_ip.ttl());
        }
        if ip.class() != expected_ip.class() {
            add("traffic class", &ip.class(), &expected_ip.class());
        }
        if self.length != expected.length {
            add("length", &self.length, &expected.length);
        }
        if ip.source() != expected_ip.source() {
            add("source", &ip.source(), &expected_ip.source());
        }
        if ip.destination() != expected_ip.destination() {
            add("destination", &ip.destination(), &expected_ip.destination());
        }
        if !ip.is_intact() {
            add("checksum", &"wrong", &"right");
        }
        if !ip.has_equal_rest(expected_ip) || self.udp != expected.udp {
            add("other header fields", &"changed", &"as sent");
        }
    }

    fn read(bytes: &[u8]) -> Option<ParsedFrame> {
        let (ethernet, mut rest) = bytes.split_at_checked(ETHERNET)?;
        let mut labels = Vec::new();
        if ethernet[12..] == ethertype::MPLS.to_be_bytes() {
            loop {
                let entry = LabelStackEntry::read(rest)?;
                rest = &rest[netstage_wire::mpls::ENTRY..];
                labels.push(entry);
                if entry.bottom {
                    break;
                }
            }
        }
        let around = bytes.len() - rest.len();
        let (ip, rest) = IpHeader::read(rest)?;
        let (udp, rest) = rest.split_first_chunk::<UDP>()?;
        let mac = |bytes: &[u8]| bytes.first_chunk().copied();
        Some(ParsedFrame {
            macs: [mac(ethernet)?, mac(&ethernet[6..])?],
            labels,
            around,
            length: ip.length(),
            ip,
            udp: *udp,
            stamp: FrameStamp::read(rest)?,
            payload: rest[STAMP..].to_vec(),
        })
    }
}

fn stack(labels: &[LabelStackEntry]) -> String {
    if labels.is_empty() {
        return "none".into();
    }
    let text = |entry: &LabelStackEntry| {
        let class =
            if entry.traffic_class > 0 { format!(", class {}", entry.traffic_class) } else { String::new() };
        format!("{} (TTL {}{class})", entry.label.number(), entry.ttl)
    };
    labels.iter().map(text).collect::<Vec<_>>().join(" / ")
}
