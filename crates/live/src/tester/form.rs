//! How the frames of a test look: as they are sent, and as they must arrive after what the router is to do
//! with them (RFC 1812 section 5.3.1, RFC 3032 section 2.4, RFC 3443).

use netstage_core::forward::Model;
use netstage_scenario::tester::{INNER, Operation, Tester, Way};
use netstage_wire::ethernet::{HEADER as ETHERNET, Mac, ethertype};
use netstage_wire::mpls::{Entry, Label};
use std::fmt::Write as _;
use std::net::Ipv4Addr;

/// Bytes of every packet beyond its headers: what the tester knows it by (`struct stamp` of bpf/trial.bpf.c).
pub const STAMP: usize = 18;
const SIGNATURE: u16 = 0x5354;
const IPV4: usize = 20;
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
    /// The IPv4 header.
    pub ip: [u8; IPV4],
}

/// Where packets come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destinations {
    /// The first network of 24 bits.
    pub first: Ipv4Addr,
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

    /// The address of the first host that is sent to.
    pub fn first_host(self) -> u32 {
        u32::from(self.first) | u32::from(HOST)
    }

    /// Where the packet of this number goes.
    pub fn address(self, sequence: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.first_host() + ((sequence % self.networks) << 8))
    }

    /// The peer it goes to.
    pub fn peer(self, sequence: u32) -> u32 {
        sequence % self.networks % self.peers
    }
}

/// Frames as they are sent to the router, with these labels for each peer.
pub fn sent(operation: Operation, by_peer: Vec<u32>, from: Ipv4Addr, macs: [Mac; 2]) -> Form {
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
    from: Ipv4Addr,
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
    from: Ipv4Addr,
    [source, destination]: [Mac; 2],
) -> Form {
    let kind = if labels.is_empty() { ethertype::IPV4 } else { ethertype::MPLS };
    if let Some(last) = labels.last_mut() {
        last.bottom = true;
    }
    let mut ethernet = [0; ETHERNET];
    ethernet[..6].copy_from_slice(&destination);
    ethernet[6..12].copy_from_slice(&source);
    ethernet[12..].copy_from_slice(&kind.to_be_bytes());
    let mut ip = [0; IPV4];
    (ip[0], ip[8], ip[9]) = (0x45, ttl, 17);
    ip[12..16].copy_from_slice(&from.octets());
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
        let mut ip = self.ip;
        ip[2..4].copy_from_slice(&length.to_be_bytes());
        ip[16..].copy_from_slice(&to.address(stamp.sequence).octets());
        let checksum = netstage_wire::checksum::checksum(&ip);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        frame.extend(ip);
        frame.extend(ports());
        frame.extend((length - IPV4 as u16).to_be_bytes());
        frame.extend([0; 2]);
        frame.extend(stamp.to_bytes());
        frame.resize(self.around() + usize::from(length), 0);
        frame
    }

    /// In what a frame that came differs from what had to come, in words. `bytes` may be its beginning only.
    pub fn differences(&self, bytes: &[u8], length: usize, to: Destinations, sources: &[Ipv4Addr]) -> String {
        let Some(found) = Found::read(bytes) else { return "it is no test packet any more".into() };
        let mut form = self.clone();
        // Each stream has its own.
        if let Some(source) = sources.iter().find(|source| source.octets() == found.ip[12..16]) {
            form.ip[12..16].copy_from_slice(&source.octets());
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
        if found.ip[8] != wanted.ip[8] {
            tell("time to live", &found.ip[8], &wanted.ip[8]);
        }
        if found.ip[1] != wanted.ip[1] {
            tell("traffic class", &found.ip[1], &wanted.ip[1]);
        }
        let address = |ip: &[u8]| Ipv4Addr::from([ip[0], ip[1], ip[2], ip[3]]);
        for (what, place) in [("source", 12), ("destination", 16)] {
            if found.ip[place..place + 4] != wanted.ip[place..place + 4] {
                tell(what, &address(&found.ip[place..]), &address(&wanted.ip[place..]));
            }
        }
        if netstage_wire::checksum::checksum(&found.ip) != 0 {
            tell("checksum", &"wrong", &"right");
        }
        let rest = |ip: &[u8; IPV4]| [ip[0], ip[4], ip[5], ip[6], ip[7], ip[9]];
        if rest(&found.ip) != rest(&wanted.ip) || found.udp != wanted.udp {
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
    ip: [u8; IPV4],
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
        let (ip, rest) = rest.split_first_chunk::<IPV4>()?;
        let (udp, rest) = rest.split_first_chunk::<UDP>()?;
        let mac = |bytes: &[u8]| bytes.first_chunk().copied();
        Some(Found {
            macs: [mac(ethernet)?, mac(&ethernet[6..])?],
            labels,
            around,
            ip: *ip,
            udp: *udp,
            length: u16::from_be_bytes([ip[2], ip[3]]),
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
