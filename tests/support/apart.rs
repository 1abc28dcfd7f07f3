//! Two namespaces connected by the emulator.
#![allow(dead_code)]

use crate::pair::{LEFT_MAC, RIGHT_MAC};
use netstage_core::link;
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::time::Duration;
use netstage_emulator::{Emulator, EmulatorConfig, EmulatorReport, LinkConfig, Tolerance};
use netstage_harness::needs;
use netstage_host::clock::{Epoch, monotonic_ns};
use netstage_host::netns::netlink::{Netlink, VethEnd, VethOptions, create_veth};
use netstage_host::netns::{Namespace, ethtool};
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Two namespaces connected through a third one, which holds the emulator's ports.
pub struct EmulatedPair {
    pub left: Namespace,
    pub right: Namespace,
    pub ports: [AfPacket; 2],
    _middle: Namespace,
}

impl EmulatedPair {
    /// Creates the namespaces; skips the test without the privilege.
    pub fn new() -> EmulatedPair {
        needs::namespaces();
        let middle = Namespace::new().unwrap();
        let side = |name: &str, mac: [u8; 6], peer_mac: [u8; 6], own: u8| {
            let namespace = Namespace::new().unwrap();
            let outer = VethEnd { namespace: &middle, name, mac: [2, 0, 0, 0, 1, own] };
            let inner = VethEnd { namespace: &namespace, name: "eth0", mac };
            create_veth(inner, outer, VethOptions::default()).unwrap();
            for (namespace, link) in [(&namespace, "eth0"), (&middle, name)] {
                ethtool::disable_offloads(namespace, link).unwrap();
                Netlink::open(namespace).unwrap().set_up(link).unwrap();
            }
            let mut netlink = Netlink::open(&namespace).unwrap();
            netlink.add_address("eth0", [10, 1, 0, own].into(), 31).unwrap();
            netlink.add_neighbor("eth0", address(1 - own), peer_mac).unwrap();
            netlink.wait_until_ready("eth0").unwrap();
            namespace
        };
        let left = side("left", LEFT_MAC, RIGHT_MAC, 0);
        let right = side("right", RIGHT_MAC, LEFT_MAC, 1);
        let port = |name| AfPacket::open(&middle, name, AfPacketOptions::default()).unwrap();
        let ports = [port("left"), port("right")];
        EmulatedPair { left, right, ports, _middle: middle }
    }

    /// Runs the emulator with `direction` in both directions while `task` runs, for at most 100 s.
    pub fn emulate<T: Send>(
        self,
        direction: link::LinkDirectionConfig,
        task: impl FnOnce(&Namespace, &Namespace) -> T + Send,
    ) -> (T, EmulatorReport) {
        self.emulate_for(Duration::from_secs(100), direction, task)
    }

    /// Runs the emulator as [`emulate`](EmulatedPair::emulate) does, with a given maximum duration.
    pub fn emulate_for<T: Send>(
        self,
        duration: Duration,
        direction: link::LinkDirectionConfig,
        task: impl FnOnce(&Namespace, &Namespace) -> T + Send,
    ) -> (T, EmulatorReport) {
        let config = EmulatorConfig {
            seed: 1,
            duration,
            interval: Duration::from_secs(1),
            links: vec![LinkConfig {
                name: "line".into(),
                directions: [direction.clone(), direction],
                delivers: [vec![], vec![]],
            }],
            labels: Vec::new(),
            default_class: 0,
            pool_bytes: 64 << 20,
            // Timing noise of the machine must not fail a test.
            tolerance: Tolerance { late: Duration::from_secs(5), share: 0.5 },
        };
        let emulator = Emulator::new(config, vec![self.ports]).unwrap();
        let stop = AtomicBool::new(false);
        // Packets of `task` are sent after the start, even if the emulator's thread starts late.
        let epoch = Epoch(monotonic_ns());
        thread::scope(|scope| {
            let running = scope.spawn(|| emulator.run(epoch, &stop));
            let stops = StopAtEnd(&stop);
            let result = task(&self.left, &self.right);
            drop(stops);
            (result, running.join().unwrap())
        })
    }
}

/// Stops the emulator at the end of the task, also if it panics.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns a line without impairments, with a buffer of 100 packets.
pub fn line(rate: u64, delay: Duration) -> link::LinkDirectionConfig {
    link::LinkDirectionConfig::plain(BitRate(rate), delay, Capacity::Packets(100))
}

/// Returns the address of a side: 0 is left, 1 right.
pub fn address(own: u8) -> IpAddr {
    [10, 1, 0, own].into()
}
