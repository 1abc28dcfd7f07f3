//! Compares the engine on two AF_XDP ports with a bare forwarder on the same ports, in turns: the share of the
//! ports' speed that the router retains. A generator on another thread sends more than either can forward; the
//! kernel counts the forwarded frames.

use super::memory::CustomerFrameSource;
use super::router::{self, CORE, CUSTOMER, CUSTOMERS};
use netstage_core::fair::VpnControl;
use netstage_host::clock::{Epoch, monotonic_ns};
use netstage_host::netns::netlink::{Netlink, VethEnd, VethOptions, create_veth};
use netstage_host::netns::{Namespace, ethtool};
use netstage_host::ports::FramePort;
use netstage_host::ports::af_xdp::AfXdp;
use netstage_pe::engine::PeEngine;
use nix::poll::{PollFd, PollFlags, poll};
use nix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const DURATION: Duration = Duration::from_secs(2);
const ROUNDS: usize = 5;
const BATCH: usize = 64;

/// Forwarder that copies frames from one port to the other.
struct Bare {
    from: AfXdp,
    to: AfXdp,
}

enum Forwarder {
    Bare(Box<Bare>),
    Engine(Box<PeEngine<AfXdp>>),
}

/// Forwarded frames per second, and processor time of the forwarder's thread per frame.
#[derive(Clone, Copy)]
struct Rate {
    mpps: f64,
    ns: f64,
}

/// The bare forwarder, and engines with this many VPN flows.
const KINDS: [Option<u32>; 3] = [None, Some(100), Some(100_000)];

/// Prints a line for each frame size and forwarder.
pub fn compare() {
    println!("VPNs by stacked VLANs, MPLS, no control; medians of {ROUNDS} runs of {} s", DURATION.as_secs());
    println!("frame  forwarder     Mpps  ns/packet  to bare, by rate  by time");
    for size in [64, 1500] {
        let mut rates = KINDS.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for (flows, rates) in KINDS.iter().zip(&mut rates) {
                rates.push(measure(size, *flows));
            }
        }
        let rates = rates.map(median);
        for (flows, rate) in KINDS.iter().zip(rates) {
            let name = flows.map_or("bare".into(), |flows| format!("{flows} flows"));
            println!(
                "{size:5}  {name:12} {:5.2} {:10.0} {:17.2} {:8.2}",
                rate.mpps,
                rate.ns,
                rate.mpps / rates[0].mpps,
                rates[0].ns / rate.ns
            );
        }
    }
}

fn median(mut rates: Vec<Rate>) -> Rate {
    rates.sort_by(|one, other| one.mpps.total_cmp(&other.mpps));
    rates[rates.len() / 2]
}

fn measure(size: usize, engine: Option<u32>) -> Rate {
    let [generator, router, sink] = [(); 3].map(|()| Namespace::new().expect("namespaces need root"));
    let end = |namespace, name, mac| VethEnd { namespace, name, mac };
    let options = VethOptions { mtu: 1600, ..VethOptions::default() };
    create_veth(end(&generator, "out", [2, 0, 0, 0, 0, 9]), end(&router, "customers", CUSTOMER), options)
        .unwrap();
    create_veth(end(&router, "core", CORE), end(&sink, "in", [2, 0, 0, 0, 0, 8]), options).unwrap();
    for (namespace, name) in [(&generator, "out"), (&router, "customers"), (&router, "core"), (&sink, "in")] {
        ethtool::disable_offloads(namespace, name).unwrap();
        Netlink::open(namespace).unwrap().set_up(name).unwrap();
    }
    let open = |namespace, name| AfXdp::open(namespace, name, Default::default()).unwrap();
    let (customers, core) = (open(&router, "customers"), open(&router, "core"));
    for name in ["customers", "core"] {
        Netlink::open(&router).unwrap().wait_until_ready(name).unwrap();
    }
    let mut forwarder = match engine {
        None => Forwarder::Bare(Box::new(Bare { from: customers, to: core })),
        Some(flows) => {
            let epoch = Epoch(monotonic_ns());
            Forwarder::Engine(Box::new(router::engine(
                0,
                false,
                (flows, &VpnControl::None),
                epoch,
                [core, customers],
            )))
        }
    };
    let epoch = Epoch(monotonic_ns());
    let mut source = open(&generator, "out");
    let ended = AtomicBool::new(false);
    let arrived = || Netlink::open(&sink).unwrap().link("in").unwrap().statistics.received_packets;
    thread::scope(|scope| {
        scope.spawn(|| generate(&mut source, CustomerFrameSource::new(engine.unwrap_or(100), size), &ended));
        let worker = scope.spawn(|| {
            let before = processor_time_ns();
            while !ended.load(Ordering::Relaxed) {
                forwarder.step(epoch);
            }
            processor_time_ns() - before
        });
        // Cold caches at the start are excluded: completely from the frame count, and mostly from the time.
        thread::sleep(Duration::from_millis(200));
        let (first, start) = (arrived(), monotonic_ns());
        thread::sleep(DURATION);
        let (frames, elapsed) = (arrived() - first, monotonic_ns() - start);
        ended.store(true, Ordering::Relaxed);
        let busy = worker.join().unwrap() as f64 * DURATION.as_secs_f64() / (DURATION.as_secs_f64() + 0.2);
        Rate { mpps: frames as f64 * 1e3 / elapsed as f64, ns: busy / frames.max(1) as f64 }
    })
}

fn generate(port: &mut AfXdp, mut source: CustomerFrameSource, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            if !port.send(source.next()).unwrap() {
                break;
            }
        }
        port.flush().unwrap();
    }
}

impl Forwarder {
    fn step(&mut self, epoch: Epoch) {
        match self {
            Forwarder::Bare(bare) => {
                let Bare { from, to } = &mut **bare;
                let count = from
                    .receive(BATCH, &mut |received| {
                        let _ = to.send(received.frame);
                    })
                    .unwrap();
                to.flush().unwrap();
                if count == 0 {
                    wait(from);
                }
            }
            Forwarder::Engine(engine) => {
                let turn = engine.turn(epoch.now());
                if turn.received == 0 && !turn.more {
                    wait(engine.port_mut(CUSTOMERS));
                }
            }
        }
    }
}

fn wait(port: &AfXdp) {
    let _ = poll(&mut [PollFd::new(port.fd().unwrap(), PollFlags::POLLIN)], 10_u8);
}

/// Returns the processor time of this thread, including kernel time.
fn processor_time_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}
