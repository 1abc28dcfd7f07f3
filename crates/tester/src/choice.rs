//! Which generator sends where the configuration leaves it open: the fastest that every sending port takes.
//! What a driver says of itself is not asked (not all do, and veth changes its mind); frames are sent, and
//! the interface's own counter tells whether they left.

use super::generator;
use super::lsps::Lsps;
use super::port::Port;
use super::trial::{Asked, Leaving, Means};
use netstage_host::netns::{Namespace, Netlink};
use netstage_scenario::tester::{Generator, Operation, Tester, Way};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Frames that are sent to see whether they leave, and how fast.
const FRAMES: u64 = 64;
const RATE: f64 = 10_000.0;
/// How long they may take to be counted.
const PATIENCE: Duration = Duration::from_millis(500);

/// A generator, and why no faster one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What sends.
    pub generator: Generator,
    /// In words, what keeps the faster ones from it.
    pub because: Vec<String>,
}

/// What sends by the ports of a tester.
pub fn choose(tester: &Tester, ports: &[Port], namespace: &Namespace) -> Choice {
    let mut because = Vec::new();
    if tester.generator != Generator::Auto {
        return Choice { generator: tester.generator, because };
    }
    let sending: BTreeSet<usize> = tester.ways.iter().flat_map(|way| way.from.iter().copied()).collect();
    let mut all = |obstacle: &dyn Fn(usize) -> Option<String>| {
        let found = sending.iter().find_map(|port| obstacle(*port));
        because.extend(found.clone());
        found.is_none()
    };
    let by_af_xdp = |port: usize| {
        let link = &ports[port].settings.interface;
        let opened = generator::af_xdp(namespace, link).map(drop);
        opened.err().map(|error| format!("{link} does not send by AF_XDP: {error}"))
    };
    let generator = if all(&|port| by_live_frames(tester, ports, namespace, port)) {
        Generator::Xdp
    } else if all(&by_af_xdp) {
        Generator::AfXdp
    } else {
        Generator::AfPacket
    };
    Choice { generator, because }
}

/// What keeps a port from sending live frames; none where they leave.
fn by_live_frames(tester: &Tester, ports: &[Port], namespace: &Namespace, port: usize) -> Option<String> {
    let first = tester.ways.first()?.first;
    let others = (0..ports.len()).filter(|other| *other != port).collect();
    let alone = Tester {
        ways: vec![Way { from: vec![port], to: others, first, labels_above: 0 }],
        networks: 1,
        labels: None,
        ..tester.clone()
    };
    let means = Means {
        tester: &alone,
        ports,
        namespace,
        generator: Generator::Xdp,
        lsps: &Lsps::Configured,
        leaving: Leaving::Spread,
        is_loop: false,
    };
    let asked = Asked {
        operation: Operation::Ip,
        lengths: vec![*tester.lengths().start()],
        rate: RATE,
        frames: FRAMES,
        drain: Duration::ZERO,
        // Trials are counted from zero on, and this one is told apart from the first of them.
        number: u16::MAX,
        ends_early: false,
    };
    let link = &ports[port].settings.interface;
    let sent = || Some(Netlink::open(namespace).ok()?.link(link).ok()?.statistics.sent_packets);
    let before = sent();
    if let Err(why) = means.run(&asked, &|| false) {
        return Some(why.to_string());
    }
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if let (Some(before), Some(now)) = (before, sent())
            && now >= before + FRAMES
        {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(format!(
        "live frames of XDP do not leave by {link}: its driver does not take them, or it is an end of a veth pair \
         whose other end has GRO off (ethtool -K NAME gro on)"
    ))
}
