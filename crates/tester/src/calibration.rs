//! The tester without a router: its own frames over a veth pair of this machine, one end to the other. What
//! they take is the tester's own delay, and what it sends there at most its head room.

use super::lsps::Lsps;
use super::port::Port;
use super::trial::{Asked, Leaving, Means};
use netstage_core::measure::Histogram;
use netstage_core::time::Duration;
use netstage_host::netns::netlink::{VethEnd, VethOptions, create_veth};
use netstage_host::netns::{Namespace, Netlink, ethtool};
use netstage_host::obstacle::Obstacle;
use netstage_scenario::tester::{self, Generator, Operation, Tester, Way};
use netstage_wire::ethernet::Mac;

const ENDS: [&str; 2] = ["loop0", "loop1"];
const STATIONS: [Mac; 2] = [[2, 0x6e, 0, 0, 0xff, 0], [2, 0x6e, 0, 0, 0xff, 1]];
/// The smallest packet.
const BYTES: u16 = 46;
/// A rate at which nothing waits, and how many packets tell the delay.
const SLOW: f64 = 2_000.0;
const SLOW_FRAMES: u64 = 500;
/// More than any generator sends, and for how long it tries.
const FAST: f64 = 20e6;
const FAST_SECONDS: f64 = 0.2;

/// What the tester is by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// The median delay of its frames without a router between.
    pub own_delay: Duration,
    /// Frames of 46 B packets a second that it sends at most, and looks at.
    pub most: f64,
}

/// Measures it. Takes some tenths of a second.
pub fn calibrate(tester: &Tester, generator: Generator) -> Result<Calibration, Obstacle> {
    let failed = |error: std::io::Error| Obstacle::system("the tester cannot be calibrated", &error);
    let namespace = Namespace::new().map_err(failed)?;
    let ports = ports(&namespace)?;
    let alone = Tester {
        ways: vec![Way { from: vec![0], to: vec![1], first: [11, 0, 0, 0].into(), labels_above: 0 }],
        networks: 1,
        labels: None,
        ports: ports.iter().map(|port| port.settings.clone()).collect(),
        ..tester.clone()
    };
    let means = Means {
        tester: &alone,
        ports: &ports,
        namespace: &namespace,
        generator,
        lsps: &Lsps::Configured,
        leaving: Leaving::Spread,
        is_loop: true,
    };
    let run = |rate: f64, frames: u64, number: u16| {
        let drain = std::time::Duration::from_millis(50);
        let asked = Asked {
            operation: Operation::Ip,
            lengths: vec![BYTES],
            rate,
            frames,
            drain,
            number,
            ends_early: true,
        };
        let came = means.run(&asked, &|| false);
        came.map_err(|error| Obstacle::new(error.to_string(), "run it as root; see netstage doctor"))
    };
    let slow = run(SLOW, SLOW_FRAMES, 1)?;
    let mut delays = Histogram::default();
    delays.add(&slow.tally.delays);
    let Some(own_delay) = delays.quantile(0.5) else {
        let remedy = "see netstage doctor; on a machine without XDP there is no tester";
        return Err(Obstacle::new("the tester does not hear itself over a veth pair", remedy));
    };
    let fast = run(FAST, (FAST * FAST_SECONDS) as u64, 2)?;
    Ok(Calibration { own_delay: Duration(own_delay), most: fast.offered })
}

fn ports(namespace: &Namespace) -> Result<Vec<Port>, Obstacle> {
    let failed = |error: netstage_host::netns::netlink::Error| Obstacle::system(&error.action, &error.source);
    let end = |number: usize| VethEnd { namespace, name: ENDS[number], mac: STATIONS[number] };
    create_veth(end(0), end(1), VethOptions::default()).map_err(failed)?;
    let mut netlink = Netlink::open(namespace).map_err(failed)?;
    for name in ENDS {
        ethtool::offloads_off(namespace, name).map_err(|error| Obstacle::system(name, &error))?;
        netlink.set_up(name).map_err(failed)?;
    }
    let mut ports = Vec::new();
    for (number, name) in ENDS.iter().enumerate() {
        netlink.wait_until_ready(name).map_err(failed)?;
        let settings = tester::Port {
            name: (*name).into(),
            interface: (*name).into(),
            address: ([192, 0, 2, 1 + number as u8].into(), 30),
            router: [192, 0, 2, 2 - number as u8].into(),
            router_interface: None,
        };
        let link = netlink.link(name).map_err(failed)?;
        ports.push(Port::directly(namespace, settings, &link, STATIONS[1 - number])?);
    }
    Ok(ports)
}
