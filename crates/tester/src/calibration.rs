//! Calibration of the tester without a router: frames sent from one end of a veth pair to the other give the
//! tester's own delay and its maximum rate.

use super::lsps::Lsps;
use super::port::OpenPort;
use super::trial::{ExpectedPort, TrialRunner, TrialTraffic};
use netstage_core::measure::Histogram;
use netstage_core::time::Duration;
use netstage_host::netns::netlink::{VethEnd, VethOptions, create_veth};
use netstage_host::netns::{Namespace, Netlink, ethtool};
use netstage_host::startup_error::StartupError;
use netstage_scenario::tester::{self, Generator, Operation, Tester, TrafficDirection};
use netstage_wire::ethernet::Mac;

const ENDS: [&str; 2] = ["loop0", "loop1"];
const MACS: [Mac; 2] = [[2, 0x6e, 0, 0, 0xff, 0], [2, 0x6e, 0, 0, 0xff, 1]];
/// Length of the smallest packet.
const BYTES: u16 = 46;
/// Rate without queueing, in frames per second, and number of frames that the delay is measured with.
const SLOW: f64 = 2_000.0;
const SLOW_FRAMES: u64 = 500;
/// Rate above that of any generator, in frames per second, and duration of the attempt.
const FAST: f64 = 20e6;
const FAST_SECONDS: f64 = 0.2;

/// Delay and maximum rate of the tester itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Median delay without a router.
    pub own_delay: Duration,
    /// Maximum rate at which the tester sends and checks packets of 46 B, in frames per second.
    pub max_rate: f64,
}

/// Calibrates the tester. Takes some tenths of a second.
pub fn calibrate(tester: &Tester, generator: Generator) -> Result<Calibration, StartupError> {
    let failed = |error: std::io::Error| StartupError::from_system("cannot calibrate the tester", &error);
    let namespace = Namespace::new().map_err(failed)?;
    let ports = ports(&namespace)?;
    let single = Tester {
        directions: vec![TrafficDirection {
            from: vec![0],
            to: vec![1],
            first_network: [11, 0, 0, 0].into(),
            label_offset: 0,
        }],
        networks: 1,
        labels: None,
        ports: ports.iter().map(|port| port.settings.clone()).collect(),
        ..tester.clone()
    };
    let means = TrialRunner {
        tester: &single,
        ports: &ports,
        namespace: &namespace,
        generator,
        lsps: &Lsps::Configured,
        expected_port: ExpectedPort::Spread,
        is_loop: true,
    };
    let run = |rate: f64, frames: u64, number: u16| {
        let drain = std::time::Duration::from_millis(50);
        let trial = TrialTraffic {
            operation: Operation::Ip,
            lengths: vec![BYTES],
            rate,
            frames,
            drain,
            number,
            ends_early: true,
        };
        let result = means.run(&trial, &|| false);
        result.map_err(|error| StartupError::new(error.to_string(), "run it as root; see netstage doctor"))
    };
    let slow = run(SLOW, SLOW_FRAMES, 1)?;
    let mut delays = Histogram::default();
    delays.add(&slow.tally.delays);
    let Some(own_delay) = delays.quantile(0.5) else {
        let remedy = "see netstage doctor; the tester requires XDP";
        return Err(StartupError::new("the tester receives none of its frames over a veth pair", remedy));
    };
    let fast = run(FAST, (FAST * FAST_SECONDS) as u64, 2)?;
    Ok(Calibration { own_delay: Duration(own_delay), max_rate: fast.offered })
}

fn ports(namespace: &Namespace) -> Result<Vec<OpenPort>, StartupError> {
    let failed = |error: netstage_host::netns::netlink::NetlinkError| {
        StartupError::from_system(&error.action, &error.source)
    };
    let end = |number: usize| VethEnd { namespace, name: ENDS[number], mac: MACS[number] };
    create_veth(end(0), end(1), VethOptions::default()).map_err(failed)?;
    let mut netlink = Netlink::open(namespace).map_err(failed)?;
    for name in ENDS {
        ethtool::disable_offloads(namespace, name)
            .map_err(|error| StartupError::from_system(name, &error))?;
        netlink.set_up(name).map_err(failed)?;
    }
    let mut ports = Vec::new();
    for (number, name) in ENDS.iter().enumerate() {
        netlink.wait_until_ready(name).map_err(failed)?;
        let settings = tester::TesterPort {
            name: (*name).into(),
            interface: (*name).into(),
            address: ([192, 0, 2, 1 + number as u8].into(), 30),
            router: [192, 0, 2, 2 - number as u8].into(),
            router_interface: None,
        };
        let link = netlink.link(name).map_err(failed)?;
        ports.push(OpenPort::open_without_address(namespace, settings, &link, MACS[1 - number])?);
    }
    Ok(ports)
}
