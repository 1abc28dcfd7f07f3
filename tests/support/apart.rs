//! Two namespaces with the emulator between them.
#![allow(dead_code)]

use crate::pair::{LEFT_MAC, RIGHT_MAC};
use netstage_core::link;
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::time::Duration;
use netstage_emulator::{Config, Emulator, LinkConfig, Report, Tolerance};
use netstage_harness::needs;
use netstage_host::clock::{Epoch, monotonic_ns};
use netstage_host::netns::netlink::{Netlink, VethEnd, VethOptions, create_veth};
use netstage_host::netns::{Namespace, ethtool};
use netstage_host::ports::af_packet::{AfPacket, Options};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Two namespaces whose packets to each other pass a third one, where the emulator's ports are.
pub struct Apart {
    pub left: Namespace,
    pub right: Namespace,
    pub ports: [AfPacket; 2],
    _between: Namespace,
}

impl Apart {
    /// Skips a test that may not make namespaces.
    pub fn new() -> Apart {
        needs::namespaces();
        let between = Namespace::new().unwrap();
        let side = |name: &str, mac: [u8; 6], peer_mac: [u8; 6], own: u8| {
            let namespace = Namespace::new().unwrap();
            let outer = VethEnd { namespace: &between, name, mac: [2, 0, 0, 0, 1, own] };
            let inner = VethEnd { namespace: &namespace, name: "eth0", mac };
            create_veth(inner, outer, VethOptions::default()).unwrap();
            for (namespace, link) in [(&namespace, "eth0"), (&between, name)] {
                ethtool::offloads_off(namespace, link).unwrap();
                Netlink::open(namespace).unwrap().set_up(link).unwrap();
            }
            let mut netlink = Netlink::open(&namespace).unwrap();
            netlink.add_address("eth0", [10, 1, 0, own].into(), 31).unwrap();
            netlink.add_neighbour("eth0", address(1 - own), peer_mac).unwrap();
            netlink.wait_until_ready("eth0").unwrap();
            namespace
        };
        let left = side("left", LEFT_MAC, RIGHT_MAC, 0);
        let right = side("right", RIGHT_MAC, LEFT_MAC, 1);
        let port = |name| AfPacket::open(&between, name, Options::default()).unwrap();
        let ports = [port("left"), port("right")];
        Apart { left, right, ports, _between: between }
    }

    /// Runs an emulator of `direction` both ways while `task` runs in the two namespaces, 100 s at most.
    pub fn emulate<T: Send>(
        self,
        direction: link::Config,
        task: impl FnOnce(&Namespace, &Namespace) -> T + Send,
    ) -> (T, Report) {
        self.emulate_for(Duration::from_secs(100), direction, task)
    }

    /// The same, for so long at most.
    pub fn emulate_for<T: Send>(
        self,
        duration: Duration,
        direction: link::Config,
        task: impl FnOnce(&Namespace, &Namespace) -> T + Send,
    ) -> (T, Report) {
        let config = Config {
            seed: 1,
            duration,
            interval: Duration::from_secs(1),
            links: vec![LinkConfig {
                name: "line".into(),
                directions: [direction.clone(), direction],
                delivers: [vec![], vec![]],
            }],
            labels: Vec::new(),
            others: 0,
            pool_bytes: 64 << 20,
            // Noise of the machine decides no test.
            tolerance: Tolerance { late: Duration::from_secs(5), share: 0.5 },
        };
        let emulator = Emulator::new(config, vec![self.ports]).unwrap();
        let stop = AtomicBool::new(false);
        // Whatever `task` sends comes after the start, however late the emulator's thread begins.
        let epoch = Epoch(monotonic_ns());
        thread::scope(|scope| {
            let running = scope.spawn(|| emulator.run(epoch, &stop));
            let result = task(&self.left, &self.right);
            stop.store(true, Ordering::Relaxed);
            (result, running.join().unwrap())
        })
    }
}

/// A line without impairments and a buffer of 100 packets.
pub fn line(rate: u64, delay: Duration) -> link::Config {
    link::Config::plain(BitRate(rate), delay, Capacity::Packets(100))
}

/// Address of a side: 0 is left, 1 right.
pub fn address(own: u8) -> IpAddr {
    [10, 1, 0, own].into()
}
