//! How the frames of a test look: as they are sent, and as they must arrive after what the router is to do
//! with them (RFC 1812 section 5.3.1, RFC 3032 section 2.4, RFC 3443).

use super::header::Header;
use netstage_core::forward::Model;
use netstage_scenario::tester::{INNER, Operation, Tester, Way};
use netstage_wire::ethernet::{HEADER as ETHERNET, Mac, ethertype};
use netstage_wire::mpls::{Entry, Label};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of every packet beyond its headers: what the tester knows it by (`struct stamp` of bpf/trial.bpf.c).
pub const STAMP: usize = 18;
const SIGNATURE: u16 = 0x5354;
const UDP: usize = 8;
/// The discard protocol (RFC 863), and RFC 2544's source port.
const PORTS: [u16; 2] = [0xc020, 9];
/// Whoever is sent to has this address in its network.
const HOST: u8 = 2;

/// Times to live of packets and of labels as they are sent: different, so that both can be told.
const IP_TTL: u8 = 64;
const LABEL_TTL: u8 = 48;

/// The headers of frames, in which only what differs from frame to frame is zero: lengths, checksums and
/// the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// The Ethernet header.
    pub ethernet: [u8; ETHERNET],
    /// Entries of labels, the outermost first.
    pub labels: Vec<Entry>,
    /// The number of the outermost one, for each peer.
    pub by_peer: Vec<u32>,
    /// The IP header.
    pub ip: Header,
}

/// Where packets come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destinations {
    /// The first network, of 24 bits or of 48.
    pub first: IpAddr,
    /// How many follow each other.
    pub networks: u32,
    /// Over how many peers they are spread, in turn.
    pub peers: u32,
}

impl Destinations {
    /// Those of a way.
    pub fn of(tester: &Tester, way: &Way) -> Destinations {
        Destinations { first: way.first, networks: tester.networks, peers: tester.peers(way) }
    }

    /// The address of the first host that is sent to, of IPv6 its first half: as the programs count.
    pub fn first_host(self) -> u64 {
        match self.first {
            IpAddr::V4(first) => u64::from(u32::from(first) | u32::from(HOST)),
            IpAddr::V6(first) => (u128::from(first) >> 64) as u64,
        }
    }

    /// Where the packet of this number goes.
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

    /// The peer it goes to.
    pub fn peer(self, sequence: u32) -> u32 {
        sequence % self.networks % self.peers
    }
}

/// Where packets to a network come from that a port sends: its address, or where that is not of their kind one
/// for benchmarks (RFC 5180) that ends with it.
pub fn source(address: IpAddr, first: IpAddr) -> IpAddr {
    match (address, first) {
        (IpAddr::V4(address), IpAddr::V6(_)) => {
            Ipv6Addr::from(0x2001_0002_u128 << 96 | u128::from(u32::from(address))).into()
        }
        (address, _) => address,
    }
}

/// Frames as they are sent to the router, with these labels for each peer.
pub fn sent(operation: Operation, by_peer: Vec<u32>, from: IpAddr, macs: [Mac; 2]) -> Form {
    let mut entries: Vec<Entry> = by_peer.first().map(|label| entry(*label, LABEL_TTL)).into_iter().collect();
    if operation == Operation::Php {
        entries.push(entry(INNER, IP_TTL));
    }
    form(entries, by_peer, IP_TTL, from, macs)
}

/// The same as they must arrive.
pub fn forwarded(
    operation: Operation,
    model: Model,
    by_peer: Vec<u32>,
    from: IpAddr,
    macs: [Mac; 2],
) -> Form {
    let is_uniform = model == Model::Uniform;
    let (label_ttl, ip_ttl) = match operation {
        Operation::Ip => (0, IP_TTL - 1),
        Operation::Push => (if is_uniform { IP_TTL - 1 } else { u8::MAX }, IP_TTL - 1),
        Operation::Swap => (LABEL_TTL - 1, IP_TTL),
        Operation::Pop => (0, if is_uniform { LABEL_TTL - 1 } else { IP_TTL - 1 }),
        Operation::Unlabelled => (0, if is_uniform { LABEL_TTL - 1 } else { IP_TTL }),
        Operation::Php => (if is_uniform { LABEL_TTL - 1 } else { IP_TTL }, IP_TTL),
    };
    let entries = by_peer.first().map(|label| entry(*label, label_ttl));
    form(entries.into_iter().collect(), by_peer, ip_ttl, from, macs)
}

fn entry(label: u32, ttl: u8) -> Entry {
    let label = Label::new(label).expect("configurations have labels of 20 bits");
    Entry { label, traffic_class: 0, bottom: false, ttl }
}

fn form(
    mut labels: Vec<Entry>,
    by_peer: Vec<u32>,
    ttl: u8,
    from: IpAddr,
    [source, destination]: [Mac; 2],
) -> Form {
    let ip = Header::new(from, ttl);
    let kind = if labels.is_empty() { ip.ethertype() } else { ethertype::MPLS };
    if let Some(last) = labels.last_mut() {
        last.bottom = true;
    }
    let mut ethernet = [0; ETHERNET];
    ethernet[..6].copy_from_slice(&destination);
    ethernet[6..12].copy_from_slice(&source);
    ethernet[12..].copy_from_slice(&kind.to_be_bytes());
    Form { ethernet, labels, by_peer, ip }
}

/// Source and destination port of all packets.
pub fn ports() -> [u8; 4] {
    let [source, destination] = PORTS.map(u16::to_be_bytes);
    [source[0], source[1], destination[0], destination[1]]
}

/// What tells a packet of a test from all others, and from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The trial.
    pub trial: u16,
    /// Who sent it.
    pub stream: u8,
    /// Which of its packets it is, from zero on.
    pub sequence: u32,
    /// When it was sent (CLOCK_MONOTONIC).
    pub sent_ns: u64,
}

impl Stamp {
    fn to_bytes(self) -> [u8; STAMP] {
        let mut bytes = [0; STAMP];
        // As a program of the same machine writes them.
        bytes[..2].copy_from_slice(&SIGNATURE.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.trial.to_ne_bytes());
        bytes[4] = self.stream;
        bytes[6..10].copy_from_slice(&self.sequence.to_ne_bytes());
        bytes[10..].copy_from_slice(&self.sent_ns.to_ne_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Stamp> {
        let bytes: &[u8; STAMP] = bytes.first_chunk()?;
        let is_one = bytes[..2] == SIGNATURE.to_ne_bytes();
        is_one.then(|| Stamp {
            trial: u16::from_ne_bytes([bytes[2], bytes[3]]),
            stream: bytes[4],
            sequence: u32::from_ne_bytes(bytes[6..10].try_into().expect("four bytes")),
            sent_ns: u64::from_ne_bytes(bytes[10..].try_into().expect("eight bytes")),
        })
    }
}

impl Form {
    /// Bytes of a frame around its IP packet.
    pub fn around(&self) -> usize {
        ETHERNET + self.labels.len() * netstage_wire::mpls::ENTRY
    }

    /// The frame of a packet of this length.
    pub fn frame(&self, stamp: Stamp, length: u16, to: Destinations) -> Vec<u8> {
        let mut frame = self.ethernet.to_vec();
        for (place, entry) in self.labels.iter().enumerate() {
            let own = self.by_peer.get(to.peer(stamp.sequence) as usize).filter(|_| place == 0);
            let label = own.and_then(|label| Label::new(*label)).unwrap_or(entry.label);
            frame.extend(Entry { label, ..*entry }.to_bytes());
        }
        let mut ip = self.ip.clone();
        ip.complete(length, to.address(stamp.sequence));
        let mut udp = ports().to_vec();
        udp.extend((length - ip.bytes().len() as u16).to_be_bytes());
        udp.extend([0; 2]);
        udp.extend(stamp.to_bytes());
        udp.resize(usize::from(length) - ip.bytes().len(), 0);
        let checksum = ip.udp_checksum(&udp);
        udp[6..8].copy_from_slice(&checksum.to_be_bytes());
        frame.extend(ip.bytes());
        frame.extend(udp);
        frame
    }

    /// In what a frame that came differs from what had to come, in words. `bytes` may be its beginning only.
    pub fn differences(&self, bytes: &[u8], length: usize, to: Destinations, sources: &[IpAddr]) -> String {
        let Some(found) = Found::read(bytes) else { return "it is no test packet any more".into() };
        let mut form = self.clone();
        // Each stream has its own.
        if let Some(source) = sources.iter().find(|source| **source == found.ip.source()) {
            form.ip.set_source(*source);
        }
        let wanted = form.frame(found.stamp, found.length, to);
        let wanted = Found::read(&wanted).expect("what is sent can be read");
        let mut told = String::new();
        let mut tell = |what: &str, found: &dyn std::fmt::Display, wanted: &dyn std::fmt::Display| {
            let and = if told.is_empty() { "" } else { ", " };
            write!(told, "{and}{what} {found} instead of {wanted}").expect("writing to a string");
        };
        let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        if found.macs != wanted.macs {
            let both = |[to, from]: [Mac; 2]| format!("{} to {}", mac(from), mac(to));
            tell("stations", &both(found.macs), &both(wanted.macs));
        }
        if found.labels != wanted.labels {
            tell("labels", &stack(&found.labels), &stack(&wanted.labels));
        }
        let (had, has) = (&wanted.ip, &found.ip);
        if has.ttl() != had.ttl() {
            tell("time to live", &has.ttl(), &had.ttl());
        }
        if has.class() != had.class() {
            tell("traffic class", &has.class(), &had.class());
        }
        if has.source() != had.source() {
            tell("source", &has.source(), &had.source());
        }
        if has.destination() != had.destination() {
            tell("destination", &has.destination(), &had.destination());
        }
        if !has.is_intact() {
            tell("checksum", &"wrong", &"right");
        }
        if !has.rest_is(had) || found.udp != wanted.udp {
            tell("other header fields", &"changed", &"as sent");
        }
        let room = length.saturating_sub(found.around);
        if room < usize::from(found.length) {
            tell("bytes", &room, &found.length);
        }
        match told.is_empty() {
            true => "its length is not the one sent".into(),
            false => told,
        }
    }
}

/// A frame in its parts.
struct Found {
    macs: [Mac; 2],
    labels: Vec<Entry>,
    around: usize,
    ip: Header,
    udp: [u8; UDP],
    length: u16,
    stamp: Stamp,
}

impl Found {
    fn read(bytes: &[u8]) -> Option<Found> {
        let (ethernet, mut rest) = bytes.split_at_checked(ETHERNET)?;
        let mut labels = Vec::new();
        if ethernet[12..] == ethertype::MPLS.to_be_bytes() {
            loop {
                let entry = Entry::read(rest)?;
                rest = &rest[netstage_wire::mpls::ENTRY..];
                labels.push(entry);
                if entry.bottom {
                    break;
                }
            }
        }
        let around = bytes.len() - rest.len();
        let (ip, rest) = Header::read(rest)?;
        let (udp, rest) = rest.split_first_chunk::<UDP>()?;
        let mac = |bytes: &[u8]| bytes.first_chunk().copied();
        Some(Found {
            macs: [mac(ethernet)?, mac(&ethernet[6..])?],
            labels,
            around,
            length: ip.length(),
            ip,
            udp: *udp,
            stamp: Stamp::read(rest)?,
        })
    }
}

fn stack(labels: &[Entry]) -> String {
    if labels.is_empty() {
        return "none".into();
    }
    let one = |entry: &Entry| {
        let class =
            if entry.traffic_class > 0 { format!(", class {}", entry.traffic_class) } else { String::new() };
        format!("{} (time to live {}{class})", entry.label.number(), entry.ttl)
    };
    labels.iter().map(one).collect::<Vec<_>>().join(" / ")
}
