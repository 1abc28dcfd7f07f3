//! Cost of a packet in the provider edge's engine, without ports: two engines over memory, one at the ingress
//! and one at the egress, on one core. Prints the result without judging it.
//!
//! ```text
//! cargo run --release -p netstage-bench --bin pe_rates
//! cargo run --release -p netstage-bench --bin pe_rates -- --af-xdp     # root: compared with a bare forwarder
//! ```
//!
//! At the ingress, a packet costs reading, routing, queueing, window control and encapsulation, plus a
//! management packet sent and received per four packets; at the egress label lookup, counting and delivery,
//! plus a response per four packets. Packets come from all flows in turn, the worst order for caches. Each word
//! on the command line selects cases with that value in its column; `-` selects all. With `--cores N`, each
//! case is run by N threads in parallel, each with a part of the flows.

mod af_xdp;
mod memory;
mod router;

use memory::{CustomerFrameSource, Memory, MemoryLink};
use netstage_core::fair::{self, VpnControl};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{Epoch, monotonic_ns};
use netstage_pe::engine::{Counter, PeEngine};
use router::engine;
use std::cell::RefCell;
use std::rc::Rc;

/// Simulated time advances with the packets: this many are offered per second, at any speed of the machine.
const OFFERED_PPS: u64 = 10_000_000;
/// Number of offered packets; the first quarter is not measured.
const PACKETS: u64 = 8_000_000;
/// Packets per turn of an engine, and turns per measured window.
const BATCH: u64 = 64;
const WINDOW: u64 = 150;

fn main() {
    let mut selection: Vec<String> = std::env::args().skip(1).collect();
    if selection.first().is_some_and(|word| word == "--af-xdp") {
        return af_xdp::compare();
    }
    let cores = match selection.iter().position(|word| word == "--cores") {
        Some(index) => {
            let cores = selection.get(index + 1).and_then(|count| count.parse().ok()).expect("--cores N");
            selection.drain(index..index + 2);
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
    // One query per four packets in every case: the default would query for each packet of flows as slow as the
    // 100,000.
    let i2vfc =
        fair::I2vfcConfig { report_within: Duration::from_millis(250), ..fair::I2vfcConfig::default() };
    for (control, name) in [(VpnControl::I2vfc(i2vfc), "i2vfc"), (VpnControl::None, "none")] {
        for (udp, encapsulation) in [(false, "mpls"), (true, "mpls-in-udp")] {
            for flows in [1, 100, 1_000, 100_000] {
                for size in [64, 1500] {
                    let case = [name, encapsulation, &flows.to_string(), &size.to_string()];
                    if selection.iter().zip(case).all(|(word, value)| word == value || word == "-")
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

/// Runs this many engines in parallel, each in its own thread.
fn side_by_side(cores: u32, control: &VpnControl, name: &str, udp: bool, flows: u32, size: usize) {
    let each = flows.div_ceil(cores);
    let cases: Vec<EngineResult> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..cores).map(|_| scope.spawn(move || measure(control, udp, each, size))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).collect()
    });
    let mpps =
        |value_of: fn(&EngineResult) -> f64| cases.iter().map(|case| 1e3 / value_of(case)).sum::<f64>();
    println!(
        "{name:8} {:13} {flows:6} {size:7} {:7.2} on {cores} threads   {:8.2} on {cores} threads",
        if udp { "mpls-in-udp" } else { "mpls" },
        mpps(|case| case.ingress_ns),
        mpps(|case| case.egress_ns),
    );
}

/// Result of a case.
struct EngineResult {
    /// Nanoseconds per packet.
    ingress_ns: f64,
    egress_ns: f64,
    drops: u64,
    per_flow: u64,
    queries: u64,
    carried: u64,
    refused: Vec<(&'static str, u64)>,
}

impl EngineResult {
    fn print(&self, name: &str, udp: bool, flows: u32, size: usize) {
        let EngineResult { ingress_ns, egress_ns, drops, per_flow, queries, carried, .. } = self;
        println!(
            "{name:8} {:13} {flows:6} {size:7} {:7.2} {ingress_ns:10.1} {:8.2} {egress_ns:10.1} {drops:9} {:>10}",
            if udp { "mpls-in-udp" } else { "mpls" },
            1e3 / ingress_ns,
            1e3 / egress_ns,
            if flows > 1 { per_flow.to_string() } else { "-".into() },
        );
        println!("         {:.3} queries a packet, {carried} carried", *queries as f64 / *carried as f64);
        for (counter, count) in &self.refused {
            println!("         {counter} {count}");
        }
    }
}

fn measure(control: &VpnControl, udp: bool, flows: u32, size: usize) -> EngineResult {
    let links = [(); 2].map(|()| Rc::new(RefCell::new(MemoryLink::new())));
    let source = Memory::Source(CustomerFrameSource::new(flows, size));
    let resident = resident_bytes();
    let core = |out: usize| Memory::Ends { out: links[out].clone(), into: links[1 - out].clone() };
    let mut ingress = engine(0, udp, (flows, control), Epoch(0), [core(0), source]);
    let mut egress = engine(1, udp, (flows, control), Epoch(0), [core(1), Memory::Sink]);
    // Pools are touched on use, so this is the memory of the flows themselves, without free memory left in the
    // allocator by their setup.
    netstage_host::memory::release_unused();
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
    let [ingress_ns, egress_ns] = windows.ns_per_packet();
    let carried = received(&egress, flows);
    let drops = ingress.counters().get(Counter::QueueFull) + ingress.counters().get(Counter::BuffersShared);
    let refused = egress.counters().iter().chain(ingress.counters().iter());
    let refused = refused.filter(|(counter, _)| *counter != Counter::QueueFull);
    EngineResult {
        ingress_ns,
        egress_ns,
        drops,
        per_flow,
        queries: ingress.flows().filter_map(|flow| Some(flow.window()?.counters().queries)).sum(),
        carried,
        refused: refused.map(|(counter, count)| (counter.name(), count)).collect(),
    }
}

/// Time spent in both engines, divided into windows: other load of the machine makes windows longer, never
/// shorter.
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

    /// Returns the 25th percentile of the windows.
    fn ns_per_packet(&mut self) -> [f64; 2] {
        [0, 1].map(|side| {
            let windows = &mut self.done[side];
            windows.sort_unstable();
            windows[windows.len() / 4] as f64 / (WINDOW * BATCH) as f64
        })
    }
}

fn received(egress: &PeEngine<Memory>, flows: u32) -> u64 {
    (0..flows as usize).map(|flow| egress.flow(flow).received().packets).sum()
}

/// Returns the resident memory of this process in bytes.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
