//! Forwarding cases, run by every forwarding engine: the XDP program, the slow path over memory and over
//! capture files, and the Linux kernel if it supports MPLS.

mod cases;
mod linux;
#[path = "../../../../tests/support/pair.rs"]
mod pair;

use cases::{EtherTypeAndPacket, ForwardingCase, NEXT, ROUTES, cases};
use netstage_core::forward::lpm::LpmShape;
use netstage_core::forward::{IncomingInterface, SourceCheck, TunnelModel};
use netstage_core::time::Instant;
use netstage_harness::{needs, skip};
use netstage_host::netns::Netlink;
use netstage_host::ports::pcapng::{CapturingPort, ReplayPort};
use netstage_host::ports::{FramePort, ReceivedFrame, ring};
use netstage_router::fast_path::{FastPath, TestRunResult};
use netstage_router::fib::{self, Fib};
use netstage_router::slow_path::{SlowPath, SlowPathInterface};
use netstage_router::tables::{Sizes, Tables};
use netstage_routing::source::file;
use pair::{LEFT_MAC, Pair, RIGHT_MAC};
use std::path::PathBuf;

const SEED: u64 = 7;
/// Every interface accepts labels.
const LABELED: IncomingInterface =
    IncomingInterface { table: 0, mpls: true, rsvp: false, source_check: SourceCheck::Off };
/// MAC addresses of the interface `out` and of the next routers there.
const OUT_MAC: [u8; 6] = [2, 0, 0, 0, 1, 1];
const NEXT_MAC: [u8; 6] = [2, 0, 0, 0, 1, 2];

/// Builds a frame received on the interface `in`.
fn frame((kind, packet): &EtherTypeAndPacket) -> Vec<u8> {
    [&RIGHT_MAC[..], &LEFT_MAC, &kind.to_be_bytes(), packet].concat()
}

/// Returns the packet in a frame sent to `out`.
fn unframed(frame: &[u8]) -> EtherTypeAndPacket {
    assert_eq!(frame[..12], [&NEXT_MAC[..], &OUT_MAC].concat());
    (u16::from_be_bytes([frame[12], frame[13]]), frame[14..].to_vec())
}

fn sizes() -> Sizes {
    let shape = || LpmShape { first: 16, rows: 64 };
    Sizes { tables: vec![(shape(), shape())], targets: 64, hops: 64 }
}

/// Returns the router's tables with the routes of the cases.
fn tables(fast_path: Option<FastPath>) -> Tables {
    let interface = |mac| fib::FibInterface { mac, mtu: 1500, incoming: LABELED };
    let mut fib = Fib::new(vec![interface(RIGHT_MAC), interface(OUT_MAC)], 1, TunnelModel::Uniform);
    let mut tables = Tables::new(sizes(), vec![LABELED; 2], SEED, fast_path);
    let (interfaces, vpns) = (["in", "out"].map(String::from), ["main".to_owned()]);
    let names = file::RouteFileNames { interfaces: &interfaces, tables: &vpns };
    for change in file::read(ROUTES, names).unwrap() {
        fib.apply(&mut tables, &change).unwrap();
    }
    NEXT.into_iter().for_each(|next| fib.set_neighbor(&mut tables, (1, next), Some(NEXT_MAC)));
    tables
}

fn interface(mac: [u8; 6]) -> SlowPathInterface {
    SlowPathInterface { mac, v4: None, v6: None }
}

fn router<P: FramePort>(ports: [P; 2]) -> SlowPath<P> {
    SlowPath::new(ports.into(), vec![interface(RIGHT_MAC), interface(OUT_MAC)], tables(None))
}

fn received(port: &mut dyn FramePort) -> Vec<EtherTypeAndPacket> {
    let mut frames = Vec::new();
    port.receive(1_000, &mut |received| frames.push(unframed(received.frame))).unwrap();
    frames
}

fn the_router_forwards_over_memory() {
    let ((inner, mut outside), (out, mut beyond)) = (ring::pair(100).unwrap(), ring::pair(100).unwrap());
    let mut router = router([inner, out]);
    for ForwardingCase { name, comes, leaves, .. } in cases() {
        assert!(outside.send(&frame(&comes)).unwrap() && outside.flush().unwrap() == 0);
        router.turn(Instant::ZERO);
        assert_eq!(received(&mut beyond), Vec::from_iter(leaves), "{name}");
    }
}

/// Port of a router over files: replays a capture, or records the frames sent.
enum FilePort {
    Gives(ReplayPort),
    Records(CapturingPort<ring::RingPort>),
}

impl FilePort {
    fn port(&mut self) -> &mut dyn FramePort {
        match self {
            FilePort::Gives(port) => port,
            FilePort::Records(port) => port,
        }
    }
}

impl FramePort for FilePort {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(ReceivedFrame<'_>)) -> std::io::Result<usize> {
        self.port().receive(limit, each)
    }

    fn send(&mut self, frame: &[u8]) -> std::io::Result<bool> {
        self.port().send(frame)
    }

    fn flush(&mut self) -> std::io::Result<usize> {
        self.port().flush()
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn missed(&mut self) -> u64 {
        self.port().missed()
    }
}

/// File removed at the end of the test.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new(name: &str) -> TemporaryFile {
        TemporaryFile(
            std::env::temp_dir().join(format!("netstage-forwarding-{}-{name}.pcapng", std::process::id())),
        )
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn the_router_forwards_over_files() {
    let (before, after) = (TemporaryFile::new("in"), TemporaryFile::new("out"));
    let (end, _other) = ring::pair(100).unwrap();
    let mut recorder = CapturingPort::new(end, &before.0, "in").unwrap();
    let cases = cases();
    assert!(cases.iter().all(|case| recorder.send(&frame(&case.comes)).unwrap()));
    recorder.finish().unwrap();

    let (end, _beyond) = ring::pair(100).unwrap();
    let gives = FilePort::Gives(ReplayPort::open(&before.0, 0).unwrap());
    let records = FilePort::Records(CapturingPort::new(end, &after.0, "out").unwrap());
    let mut router = router([gives, records]);
    let mut read = 0;
    while read < cases.len() {
        read += router.turn(Instant::ZERO).received;
    }
    let another = FilePort::Gives(ReplayPort::open(&before.0, 0).unwrap());
    let Some(FilePort::Records(records)) = router.set_port(1, another, interface(OUT_MAC)) else {
        unreachable!("the second port records");
    };
    records.finish().unwrap();
    let left = received(&mut ReplayPort::open(&after.0, 0).unwrap());
    assert_eq!(left, cases.into_iter().filter_map(|case| case.leaves).collect::<Vec<EtherTypeAndPacket>>());
}

fn the_xdp_program_forwards() {
    needs::namespaces();
    let fast_path = match FastPath::load(sizes().capacity(), SEED) {
        Ok(fast_path) => fast_path,
        Err(error) => skip(error.to_string()),
    };
    let pair = Pair::new(Default::default());
    let index = Netlink::open(&pair.right).unwrap().link("right0").unwrap().index;
    let mut tables = tables(Some(fast_path));
    for ForwardingCase { name, comes, leaves, .. } in cases() {
        let fast_path = tables.fast_path_mut().unwrap();
        let run = || fast_path.try_frame(&frame(&comes), 0, LABELED, index, RIGHT_MAC).unwrap();
        match (pair.right.run(run).unwrap(), leaves) {
            (TestRunResult::Send(frame), Some(leaves)) => assert_eq!(unframed(&frame), leaves, "{name}"),
            // The slow path decides about these frames.
            (TestRunResult::Pass | TestRunResult::Drop, None) => {}
            (outcome, leaves) => panic!("{name}: {outcome:?}, not {leaves:?}"),
        }
    }
}

netstage_harness::tests![
    the_router_forwards_over_memory,
    the_router_forwards_over_files,
    the_xdp_program_forwards,
];
netstage_harness::main![self, linux];
