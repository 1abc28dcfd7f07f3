//! Choice of the generator, if the configuration leaves it open: the fastest that every sending port supports.
//! The features reported by a driver are not used, because not all drivers report them and those of veth change.
//! Instead, frames are sent, and the interface's counter shows whether they left.

use super::generator;
use super::lsps::Lsps;
use super::port::OpenPort;
use super::trial::{ExpectedPort, TrialRunner, TrialTraffic};
use netstage_host::netns::{Namespace, Netlink};
use netstage_scenario::tester::{Generator, Operation, Tester, TrafficDirection};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Number of probe frames, and their rate in frames per second.
const FRAMES: u64 = 64;
const RATE: f64 = 10_000.0;
/// Time limit for the interface to count the probe frames.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Generator, and the reasons against faster ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratorChoice {
    /// Chosen generator.
    pub generator: Generator,
    /// Reasons against faster generators.
    pub reasons: Vec<String>,
}

/// Chooses the generator for the ports of a tester.
pub fn choose_generator(tester: &Tester, ports: &[OpenPort], namespace: &Namespace) -> GeneratorChoice {
    let mut because = Vec::new();
    if tester.generator != Generator::Auto {
        return GeneratorChoice { generator: tester.generator, reasons: because };
    }
    let sending: BTreeSet<usize> =
        tester.directions.iter().flat_map(|direction| direction.from.iter().copied()).collect();
    let mut is_supported = |fault: &dyn Fn(usize) -> Option<String>| {
        let first = sending.iter().find_map(|port| fault(*port));
        because.extend(first.clone());
        first.is_none()
    };
    let af_xdp_fault = |port: usize| {
        let link = &ports[port].settings.interface;
        let opened = generator::open_af_xdp(namespace, link).map(drop);
        opened.err().map(|error| format!("{link} cannot send by AF_XDP: {error}"))
    };
    let generator = if is_supported(&|port| live_frames_fault(tester, ports, namespace, port)) {
        Generator::Xdp
    } else if is_supported(&af_xdp_fault) {
        Generator::AfXdp
    } else {
        Generator::AfPacket
    };
    GeneratorChoice { generator, reasons: because }
}

/// Returns why a port cannot send live frames, or `None` if it can.
fn live_frames_fault(
    tester: &Tester,
    ports: &[OpenPort],
    namespace: &Namespace,
    port: usize,
) -> Option<String> {
    let first = tester.directions.first()?.first_network;
    let others = (0..ports.len()).filter(|other| *other != port).collect();
    let single = Tester {
        directions: vec![TrafficDirection {
            from: vec![port],
            to: others,
            first_network: first,
            label_offset: 0,
        }],
        networks: 1,
        labels: None,
        ..tester.clone()
    };
    let means = TrialRunner {
        tester: &single,
        ports,
        namespace,
        generator: Generator::Xdp,
        lsps: &Lsps::Configured,
        expected_port: ExpectedPort::Spread,
        is_loop: false,
    };
    let trial = TrialTraffic {
        operation: Operation::Ip,
        lengths: vec![*tester.lengths().start()],
        rate: RATE,
        frames: FRAMES,
        drain: Duration::ZERO,
        // Distinct from the numbers of later trials, which start at zero.
        number: u16::MAX,
        ends_early: false,
    };
    let link = &ports[port].settings.interface;
    let sent = || Some(Netlink::open(namespace).ok()?.link(link).ok()?.statistics.sent_packets);
    let before = sent();
    if let Err(error) = means.run(&trial, &|| false) {
        return Some(error.to_string());
    }
    let started = Instant::now();
    while started.elapsed() < TIMEOUT {
        if let (Some(before), Some(now)) = (before, sent())
            && now >= before + FRAMES
        {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(format!(
        "XDP live frames do not leave {link}: its driver does not support them, or it belongs to a veth pair \
         whose other end has GRO off (ethtool -K NAME gro on)"
    ))
}
