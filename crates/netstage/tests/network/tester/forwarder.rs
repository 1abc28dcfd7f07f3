//! Forwarder whose faults are known: a user-space router between two interfaces that forwards correctly, except for the
//! packets that it damages at random. It knows how many packets each fault has hit, and of which networks.

use super::network::TesterNetwork;
use netstage_core::rng::RandomStream;
use netstage_host::clock::monotonic_ns;
use netstage_host::ports::FramePort as _;
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Offsets in a frame with a label: of the label, the IP header, the UDP header and the payload.
const LABEL: usize = 14;
const IP: usize = 18;
const UDP: usize = IP + 20;
const PAYLOAD: usize = UDP + 8;
/// Labels that arrive and leave.
const SWAP: [u8; 3] = [0x00, 0x7d, 0x01];
const SWAP_TO: [u8; 3] = [0x00, 0xbb, 0x81];
/// MAC addresses: of the port that packets leave through and of the tester behind it, and of those that they came from.
const FORWARD: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3];
const BACKWARD: [u8; 12] = [2, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1];
const ASIDE: [u8; 12] = [2, 0, 0, 0, 0, 4, 2, 0, 0, 0, 0, 5];
/// Delay of a late packet: longer than the tester waits for packets (200 ms).
const LATE_NS: u64 = 300_000_000;
/// Maximum delay of a packet that the next one overtakes.
const OVERTAKEN_NS: u64 = 5_000_000;

/// Packet that leaves later: when it is due, or after the next packet.
struct HeldPacket {
    due_ns: u64,
    is_overtaken: bool,
    frame: Vec<u8>,
}

/// Fault of the forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    LabelTtlKept,
    LabelTtlWrong,
    Label,
    Exp,
    ExtraLabel,
    Ttl,
    Dscp,
    Identification,
    Fragment,
    LengthField,
    UdpLength,
    Checksum,
    Source,
    Destination,
    Ports,
    UdpChecksum,
    PayloadBit,
    Junk,
    Truncated,
    Mac,
    WrongPort,
    SentBack,
    Duplicate,
    Reordered,
    Late,
    Dropped,
}

impl Fault {
    pub const ALL: [Fault; 26] = [
        Fault::LabelTtlKept,
        Fault::LabelTtlWrong,
        Fault::Label,
        Fault::Exp,
        Fault::ExtraLabel,
        Fault::Ttl,
        Fault::Dscp,
        Fault::Identification,
        Fault::Fragment,
        Fault::LengthField,
        Fault::UdpLength,
        Fault::Checksum,
        Fault::Source,
        Fault::Destination,
        Fault::Ports,
        Fault::UdpChecksum,
        Fault::PayloadBit,
        Fault::Junk,
        Fault::Truncated,
        Fault::Mac,
        Fault::WrongPort,
        Fault::SentBack,
        Fault::Duplicate,
        Fault::Reordered,
        Fault::Late,
        Fault::Dropped,
    ];

    /// Returns the name under which the tester must report the fault.
    pub fn name(self) -> &'static str {
        match self {
            Fault::LabelTtlKept | Fault::LabelTtlWrong => "wrong label TTL",
            Fault::Label => "wrong label",
            Fault::Exp => "wrong EXP",
            Fault::ExtraLabel => "wrong number of labels",
            Fault::Ttl => "wrong TTL",
            Fault::Dscp => "wrong DSCP",
            Fault::Identification => "changed IP identification",
            Fault::Fragment => "changed fragment field",
            Fault::LengthField | Fault::UdpLength => "wrong length field",
            Fault::Checksum => "wrong IP checksum",
            Fault::Source => "wrong source",
            Fault::Destination => "wrong destination",
            Fault::Ports => "changed UDP ports",
            Fault::UdpChecksum => "wrong UDP checksum",
            Fault::PayloadBit => "changed payload",
            Fault::Junk => "bytes appended",
            Fault::Truncated => "truncated",
            Fault::Mac => "wrong MAC address",
            Fault::WrongPort => "wrong port",
            Fault::SentBack => "sent back",
            Fault::Duplicate => "duplicate",
            Fault::Reordered => "reordered",
            Fault::Late => "late",
            Fault::Dropped => "lost",
        }
    }

    /// Changes a frame, and returns it as often as it leaves. The checksum of the IP header is corrected afterward, except
    /// if it is itself wrong.
    fn apply(self, mut frame: Vec<u8>, random: &mut RandomStream) -> Vec<u8> {
        let mut other = |byte: u8| byte ^ (1 + random.below(255)) as u8;
        match self {
            Fault::LabelTtlKept => frame[LABEL + 3] += 1,
            Fault::LabelTtlWrong => frame[LABEL + 3] = other(frame[LABEL + 3]),
            Fault::Label => frame[LABEL + 1] = other(frame[LABEL + 1]),
            Fault::Exp => frame[LABEL + 2] ^= 2 * (1 + random.below(7)) as u8,
            Fault::ExtraLabel => drop(frame.splice(LABEL..LABEL, [0, 1, 0, 64])),
            Fault::Ttl => frame[IP + 8] = other(frame[IP + 8]),
            Fault::Dscp => frame[IP + 1] = other(frame[IP + 1]),
            Fault::Identification => frame[IP + 5] = other(frame[IP + 5]),
            Fault::Fragment => frame[IP + 6] ^= 0x40,
            Fault::LengthField => frame[IP + 3] = other(frame[IP + 3]),
            Fault::UdpLength => frame[UDP + 5] = other(frame[UDP + 5]),
            Fault::Checksum => frame[IP + 10] = other(frame[IP + 10]),
            Fault::Source => frame[IP + 15] = other(frame[IP + 15]),
            Fault::Destination => frame[IP + 19] = other(frame[IP + 19]),
            Fault::Ports => frame[UDP + 1] = other(frame[UDP + 1]),
            Fault::UdpChecksum => frame[UDP + 6] = other(frame[UDP + 6]),
            Fault::PayloadBit => {
                let at = PAYLOAD + random.below((frame.len() - PAYLOAD) as u64) as usize;
                frame[at] ^= 1 << random.below(8);
            }
            Fault::Junk => frame.extend((0..1 + random.below(16)).map(|byte| byte as u8)),
            Fault::Truncated => frame.truncate(frame.len() - 1 - random.below(8) as usize),
            Fault::Mac => frame[random.below(12) as usize] ^= 1 << (1 + random.below(7)),
            Fault::WrongPort | Fault::SentBack | Fault::Duplicate => {}
            Fault::Reordered | Fault::Late | Fault::Dropped => {}
        }
        frame
    }
}

/// Packets that a fault may hit.
#[derive(Clone, Copy, Debug)]
pub enum Victims {
    /// Each packet with a probability of one in this number.
    OneIn(u64),
    /// All packets to one network, by number.
    Network(u32),
    /// One in this number of those whose IP packet has this length.
    Length(u16, u64),
    /// One in this number of those that arrive later than this after the first packet.
    After(Duration, u64),
    /// One in this number of those that arrive before this time after the first packet.
    Before(Duration, u64),
}

/// Packets that a fault has hit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Number of packets.
    pub packets: u64,
    /// Number of packets to each network.
    pub networks: BTreeMap<u32, u64>,
}

/// Forwarder of packets with a label, from the first interface to the second.
pub struct Forwarder {
    /// Fault and its victims; `None` for a correct forwarder.
    pub fault: Option<(Fault, Victims)>,
    pub seed: u64,
}

impl Forwarder {
    /// Forwards until stopped, and returns the packets that the fault has hit.
    pub fn run(&self, world: &TesterNetwork, until: &AtomicBool) -> Hits {
        let open = |link| AfPacket::open(&world.router, link, AfPacketOptions::default()).unwrap();
        let (mut from, mut to, mut aside) = (open("eth0"), open("eth1"), open("eth2"));
        let mut random = RandomStream::new(self.seed, "forwarder");
        let (mut hits, mut first_ns) = (Hits::default(), None);
        let mut held: VecDeque<HeldPacket> = VecDeque::new();
        while !until.load(Ordering::Relaxed) {
            let mut arrived = Vec::new();
            from.receive(256, &mut |received| arrived.push(received.frame.to_vec())).unwrap();
            for mut frame in arrived.into_iter().filter(|frame| is_labeled(frame)) {
                let now = monotonic_ns();
                let age = Duration::from_nanos(now - *first_ns.get_or_insert(now));
                let network = network(&frame);
                forward(&mut frame);
                let fault = self.fault.filter(|(_, victims)| is_hit(*victims, &frame, age, &mut random));
                let Some((fault, _)) = fault else {
                    send(&mut to, &frame);
                    // A packet overtaken by another one follows at once.
                    if let Some(packet) = held.pop_front_if(|packet| packet.is_overtaken) {
                        send(&mut to, &packet.frame);
                    }
                    continue;
                };
                hits.packets += 1;
                *hits.networks.entry(network).or_default() += 1;
                let mut frame = fault.apply(frame, &mut random);
                let directed = |mut frame: Vec<u8>, macs: [u8; 12]| {
                    frame[..12].copy_from_slice(&macs);
                    frame
                };
                match fault {
                    Fault::Dropped => {}
                    Fault::WrongPort => send(&mut aside, &directed(frame, ASIDE)),
                    Fault::SentBack => send(&mut from, &directed(frame, BACKWARD)),
                    Fault::Duplicate => (0..2).for_each(|_| send(&mut to, &frame)),
                    Fault::Reordered => {
                        held.push_back(HeldPacket { due_ns: now + OVERTAKEN_NS, is_overtaken: true, frame });
                    }
                    Fault::Late => {
                        held.push_back(HeldPacket { due_ns: now + LATE_NS, is_overtaken: false, frame });
                    }
                    Fault::Checksum => send(&mut to, &frame),
                    _ => {
                        let start = if fault == Fault::ExtraLabel { IP + 4 } else { IP };
                        correct_checksum(&mut frame[start..]);
                        send(&mut to, &frame);
                    }
                }
            }
            while let Some(packet) = held.pop_front_if(|packet| packet.due_ns <= monotonic_ns()) {
                send(&mut to, &packet.frame);
            }
            for port in [&mut to, &mut aside, &mut from] {
                port.flush().unwrap();
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        hits
    }
}

fn is_labeled(frame: &[u8]) -> bool {
    frame[12..14] == [0x88, 0x47] && frame[LABEL..LABEL + 3] == SWAP
}

/// Returns the number of the network that a packet goes to.
fn network(frame: &[u8]) -> u32 {
    let address = u32::from_be_bytes(frame[IP + 16..IP + 20].try_into().unwrap());
    (address - (11 << 24)) >> 8
}

/// Swaps the label, as a correct router does.
fn forward(frame: &mut [u8]) {
    frame[..12].copy_from_slice(&FORWARD);
    frame[LABEL..LABEL + 3].copy_from_slice(&SWAP_TO);
    frame[LABEL + 3] -= 1;
}

fn is_hit(victims: Victims, frame: &[u8], age: Duration, random: &mut RandomStream) -> bool {
    let mut one_in = |count: u64| random.below(count) == 0;
    match victims {
        Victims::OneIn(count) => one_in(count),
        Victims::Network(number) => network(frame) == number,
        Victims::Length(length, count) => frame[IP + 2..IP + 4] == length.to_be_bytes() && one_in(count),
        Victims::After(time, count) => age >= time && one_in(count),
        Victims::Before(time, count) => age < time && one_in(count),
    }
}

/// Sets the checksum of an IPv4 header (RFC 1071).
fn correct_checksum(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let words = packet[..20].as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    packet[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
}

fn send(port: &mut AfPacket, frame: &[u8]) {
    while !port.send(frame).unwrap() {
        port.flush().unwrap();
    }
}
