//! What a packet costs the provider edge's engine, without the cost of ports: two engines over
//! memory, one at the ingress and one at the egress, on one core. Prints; decides nothing.
//!
//! ```text
//! cargo run --release -p netstage-live --example pe_rates
//! ```
//!
//! A packet's cost at the ingress is reading, routing, queueing, window, encapsulation, and a
//! management packet out and in per four; at the egress label, count, delivery, and an answer
//! per four. Packets come from all flows in turn, the worst order for caches. Of every word on the
//! command line only cases are run that have it in that column; `-` stands for all. After `--cores N`
//! each case is run by so many threads side by side, each with its part of the flows.

use netstage_core::edge::{self, Prefix};
use netstage_core::fair::{self, Control};
use netstage_core::time::Instant;
use netstage_live::clock::{Epoch, monotonic_ns};
use netstage_live::pe::engine::config::{
    Circuit, Config, Destination, Encapsulation, Flow, Peer, Port, Queueing, Side, Vpn,
};
use netstage_live::pe::engine::{Counter, Engine};
use netstage_live::ports::{self, Received};
use netstage_wire::ethernet::{Header, Mac, Tag, ethertype};
use netstage_wire::ip::v4;
use netstage_wire::mpls::Label;
use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

const CUSTOMER: Mac = [2, 0, 0, 0, 0, 1];
const CORE: Mac = [2, 0, 0, 0, 0, 2];
/// Time passes with the packets: as many are offered in a second, whatever the machine does.
const OFFERED_PPS: u64 = 10_000_000;
/// Packets offered in all; the first quarter is not measured.
const PACKETS: u64 = 8_000_000;
/// Packets an engine reads in a turn, and turns of which the time is told together.
const BATCH: u64 = 64;
const WINDOW: u64 = 150;
/// Frames a link between the engines holds, and the longest of them.
const LINK: usize = 1024;
const SLOT: usize = 2048;

fn main() {
    let mut wanted: Vec<String> = std::env::args().skip(1).collect();
    let cores = match wanted.iter().position(|word| word == "--cores") {
        Some(at) => {
            let cores = wanted.get(at + 1).and_then(|count| count.parse().ok()).expect("--cores N");
            wanted.drain(at..at + 2);
            cores
        }
        None => 1,
    };
    println!(
        "control  encapsulation  flows   frame  ingress            egress             queue     resident"
    );
    println!(
        "                               bytes   Mpps   ns/packet   Mpps   ns/packet  drops     bytes/flow"
    );
    let i2vfc = fair::Config { report_within: edge::REPORT_WITHIN, ..fair::Config::default() };
    for (control, name) in [(Control::I2vfc(i2vfc), "i2vfc"), (Control::None, "none")] {
        for (udp, encapsulation) in [(false, "mpls"), (true, "mpls-in-udp")] {
            for flows in [1, 100, 1_000, 100_000] {
                for size in [64, 1500] {
                    let case = [name, encapsulation, &flows.to_string(), &size.to_string()];
                    if wanted.iter().zip(case).all(|(wanted, is)| wanted == is || wanted == "-")
                        && (flows == 1_000 || !udp)
                    {
                        match cores {
                            1 => measure(&control, udp, flows, size).print(name, udp, flows, size),
                            _ => side_by_side(cores, &control, name, udp, flows, size),
                        }
                    }
                }
            }
        }
    }
}

/// What so many engines do at once, each on a thread of its own.
fn side_by_side(cores: u32, control: &Control, name: &str, udp: bool, flows: u32, size: usize) {
    let each = flows.div_ceil(cores);
    let cases: Vec<Case> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..cores).map(|_| scope.spawn(move || measure(control, udp, each, size))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    let mpps = |of: fn(&Case) -> f64| cases.iter().map(|case| 1e3 / of(case)).sum::<f64>();
    println!(
        "{name:8} {:13} {flows:6} {size:7} {:7.2} on {cores} threads   {:8.2} on {cores} threads",
        if udp { "mpls-in-udp" } else { "mpls" },
        mpps(|case| case.of_ingress),
        mpps(|case| case.of_egress),
    );
}

/// What came out.
struct Case {
    /// Nanoseconds per packet.
    of_ingress: f64,
    of_egress: f64,
    drops: u64,
    per_flow: u64,
    queries: u64,
    carried: u64,
    refused: Vec<(&'static str, u64)>,
}

impl Case {
    fn print(&self, name: &str, udp: bool, flows: u32, size: usize) {
        let Case { of_ingress, of_egress, drops, per_flow, queries, carried, .. } = self;
        println!(
            "{name:8} {:13} {flows:6} {size:7} {:7.2} {of_ingress:10.1} {:8.2} {of_egress:10.1} {drops:9} {:>10}",
            if udp { "mpls-in-udp" } else { "mpls" },
            1e3 / of_ingress,
            1e3 / of_egress,
            if flows > 1 { per_flow.to_string() } else { "-".into() },
        );
        println!("         {:.3} queries a packet, {carried} carried", *queries as f64 / *carried as f64);
        for (counter, count) in &self.refused {
            println!("         {counter} {count}");
        }
    }
}

fn measure(control: &Control, udp: bool, flows: u32, size: usize) -> Case {
    let links = [(); 2].map(|()| Rc::new(RefCell::new(Link::new())));
    let source = Memory::Source(Source::new(flows, size));
    let resident = resident_bytes();
    let mut ingress = {
        let config = config(0, udp, flows, control);
        let core = Memory::Ends { out: links[0].clone(), into: links[1].clone() };
        Engine::new(&config, vec![source, core]).unwrap()
    };
    let mut egress = {
        let config = config(1, udp, flows, control);
        let core = Memory::Ends { out: links[1].clone(), into: links[0].clone() };
        Engine::new(&config, vec![Memory::Sink, core]).unwrap()
    };
    // Pools are touched as they are used, so this is what the flows themselves take.
    let per_flow = (resident_bytes().saturating_sub(resident)) / 2 / u64::from(flows);
    let mut windows = Windows::default();
    let mut turns = 0;
    let turns_wanted = PACKETS / BATCH;
    while turns < turns_wanted {
        let at = Instant(turns * BATCH * 1_000_000_000 / OFFERED_PPS);
        let start = monotonic_ns();
        ingress.turn(at);
        let between = monotonic_ns();
        while egress.turn(at).more {}
        let end = monotonic_ns();
        turns += 1;
        if turns > turns_wanted / 4 {
            windows.add([between - start, end - between]);
        }
    }
    let [of_ingress, of_egress] = windows.ns_per_packet();
    let carried = received(&egress, flows);
    let drops = ingress.counters().get(Counter::QueueFull) + ingress.counters().get(Counter::BuffersShared);
    let refused = egress.counters().iter().chain(ingress.counters().iter());
    let refused = refused.filter(|(counter, _)| *counter != Counter::QueueFull);
    Case {
        of_ingress,
        of_egress,
        drops,
        per_flow,
        queries: ingress.flows().filter_map(|flow| Some(flow.window()?.counters().queries)).sum(),
        carried,
        refused: refused.map(|(counter, count)| (counter.name(), count)).collect(),
    }
}

/// Time spent at both, cut into windows: what else the machine does makes some of them longer and
/// none shorter.
#[derive(Default)]
struct Windows {
    turns: u64,
    spent: [u64; 2],
    done: [Vec<u64>; 2],
}

impl Windows {
    fn add(&mut self, spent: [u64; 2]) {
        self.turns += 1;
        (0..2).for_each(|side| self.spent[side] += spent[side]);
        if self.turns == WINDOW {
            (0..2).for_each(|side| self.done[side].push(std::mem::take(&mut self.spent[side])));
            self.turns = 0;
        }
    }

    /// Of the window that a quarter of them fall short of.
    fn ns_per_packet(&mut self) -> [f64; 2] {
        [0, 1].map(|side| {
            let windows = &mut self.done[side];
            windows.sort_unstable();
            windows[windows.len() / 4] as f64 / (WINDOW * BATCH) as f64
        })
    }
}

fn received(egress: &Engine<Memory>, flows: u32) -> u64 {
    (0..flows as usize).map(|flow| egress.flow(flow).received().packets).sum()
}

/// Memory the system has given this process.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Two VLANs tell so many circuits apart.
fn vlans(flow: u32) -> [u16; 2] {
    [(1 + flow / 4000) as u16, (1 + flow % 4000) as u16]
}

fn config(side: u8, udp: bool, flows: u32, control: &Control) -> Config {
    let label = |side: u8, flow: u32| Label::new(1000 + u32::from(side) * 500_000 + flow).unwrap();
    let prefix = |last| Prefix::new([10, 0, last, 0].into(), 24).unwrap();
    let address = |side: u8| [192, 0, 2, side].into();
    let encapsulation = match udp {
        true => {
            Encapsulation::MplsInUdp { local: address(side), remote: address(1 - side), has_checksum: false }
        }
        false => Encapsulation::Mpls { push: Label::new(100), accept: Label::new(100) },
    };
    Config {
        ports: vec![
            Port { name: "customers".into(), mac: CUSTOMER, side: Side::Customer },
            Port { name: "core".into(), mac: CORE, side: Side::Core },
        ],
        peers: vec![Peer {
            name: "far".into(),
            port: "core".into(),
            next_hop: Some(CORE),
            encapsulation,
            mtu: 1600,
            clamp_segment_size: true,
            keys: None,
        }],
        vpns: (0..flows)
            .map(|flow| Vpn {
                name: format!("v{flow}"),
                routes: vec![
                    (prefix(side), Destination::Circuit(format!("c{flow}"))),
                    (prefix(1 - side), Destination::Peer("far".into())),
                ],
                flows: vec![Flow {
                    peer: "far".into(),
                    send: label(1 - side, flow),
                    receive: label(side, flow),
                    control: control.clone(),
                    weight: 1.0,
                    minimum: None,
                    maximum: None,
                    queueing: Queueing::Fifo,
                }],
                address_v4: None,
                address_v6: None,
            })
            .collect(),
        references: Vec::new(),
        circuits: (0..flows)
            .map(|flow| Circuit {
                name: format!("c{flow}"),
                vpn: format!("v{flow}"),
                port: "customers".into(),
                vlans: vlans(flow).into(),
                select: None,
                station: Some(CUSTOMER),
                addresses: Vec::new(),
                mtu: 1500,
            })
            .collect(),
        buffers: 65_536,
        epoch: Epoch(0),
        epoch_unix_ns: 1_795_255_703_000_000_000,
        session_seed: 1,
    }
}

/// A port over memory.
enum Memory {
    Source(Source),
    Sink,
    Ends { out: Rc<RefCell<Link>>, into: Rc<RefCell<Link>> },
}

/// Frames of all flows in turn, but not in the order of their numbers, which processors foresee.
/// They lie in few slots, as where a network card leaves them in the cache.
struct Source {
    slots: Vec<u8>,
    length: usize,
    slot: usize,
    flow: u32,
    flows: u32,
    step: u32,
}

impl Source {
    /// Frames as long as they would be on a wire with their check sequence.
    fn new(flows: u32, size: usize) -> Source {
        let tags = [Tag { kind: ethertype::VLAN, ..Tag::default() }; 2];
        let header = Header { destination: CUSTOMER, source: [2; 6], tags: &tags, kind: ethertype::IPV4 };
        // Of the longest, the packet is what the size says; the frame is longer.
        let packet = if size < 1000 { size - 4 - header.length() } else { size };
        let mut frame = vec![0; header.length() + packet];
        let start = header.write(&mut frame).unwrap();
        let (from, to) = ([10, 0, 0, 1].into(), [10, 0, 1, 1].into());
        let ip = v4::Header { protocol: 17, source: from, destination: to, ..v4::Header::default() };
        ip.write(&mut frame[start..], packet - v4::HEADER).unwrap();
        // Near the golden section, and without a common factor with all numbers measured.
        let step = (1..).map(|more| flows * 5 / 8 + more).find(|step| step % 2 == 1 && step % 5 != 0);
        Source {
            slots: frame.repeat(LINK),
            length: frame.len(),
            slot: 0,
            flow: 0,
            flows,
            step: step.unwrap(),
        }
    }

    fn next(&mut self) -> &[u8] {
        let start = self.slot * self.length;
        let frame = &mut self.slots[start..start + self.length];
        for (at, vlan) in [14, 18].into_iter().zip(vlans(self.flow)) {
            frame[at..at + 2].copy_from_slice(&vlan.to_be_bytes());
        }
        self.slot = (self.slot + 1) % LINK;
        self.flow = (self.flow + self.step) % self.flows;
        frame
    }
}

/// Frames on their way from one engine to the other.
struct Link {
    slots: Vec<u8>,
    lengths: Vec<usize>,
    first: usize,
    waiting: usize,
}

impl Link {
    fn new() -> Link {
        Link { slots: vec![0; LINK * SLOT], lengths: vec![0; LINK], first: 0, waiting: 0 }
    }
}

impl ports::Port for Memory {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        match self {
            Memory::Source(source) => {
                for _ in 0..limit {
                    each(Received { frame: source.next(), at_ns: u64::MAX });
                }
                Ok(limit)
            }
            Memory::Sink => Ok(0),
            Memory::Ends { into, .. } => {
                let mut link = into.borrow_mut();
                let count = limit.min(link.waiting);
                for _ in 0..count {
                    let slot = link.first;
                    let frame = &link.slots[slot * SLOT..slot * SLOT + link.lengths[slot]];
                    each(Received { frame, at_ns: u64::MAX });
                    link.first = (slot + 1) % LINK;
                    link.waiting -= 1;
                }
                Ok(count)
            }
        }
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        if let Memory::Ends { out, .. } = self {
            let mut link = out.borrow_mut();
            if link.waiting == LINK {
                return Ok(false);
            }
            let slot = (link.first + link.waiting) % LINK;
            link.slots[slot * SLOT..slot * SLOT + frame.len()].copy_from_slice(frame);
            link.lengths[slot] = frame.len();
            link.waiting += 1;
        }
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<usize> {
        Ok(0)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn missed(&mut self) -> u64 {
        0
    }
}
