//! Tests of routers on hosts whose kernel forwards packets, too.

use crate::router::network::{TIMEOUT, TwoSites, counted, socket, state};
use crate::support::network::address;
use crate::support::{TemporaryFolder, within};
use netstage_host::netns::Netlink;
use netstage_host::netns::routes::{Metrics, StaticRoute};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

const PACKETS: u32 = 200;

/// The kernel of both routers forwards IPv4 and IPv6, and knows the same routes. Each packet arrives once, and packets to the
/// routers themselves arrive.
fn no_packet_is_forwarded_twice() {
    let world = TwoSites::new();
    world.add_ipv6();
    let folder = TemporaryFolder::new("router-kernel");
    for (site, router) in world.routers.iter().enumerate() {
        let far = 1 - site;
        for family in ["ipv4", "ipv6"] {
            router.sysctl(&format!("net/{family}/conf/all/forwarding"), "1").unwrap();
        }
        let mut netlink = Netlink::open(router).unwrap();
        let gateways = [("10.0", "192.0.2."), ("fd00", "fd00:c::")];
        for (prefix, gateway) in gateways {
            let (destination, length) = match prefix {
                "10.0" => (format!("10.0.{far}.0"), 24),
                _ => (format!("fd00:{far}::"), 64),
            };
            let route = StaticRoute {
                destination: (address(&destination), length),
                gateway: Some(address(&format!("{gateway}{}", far + 1))),
                link: "core0",
                preferred_source: None,
                metrics: Metrics::default(),
            };
            netlink.add_route(&route).unwrap();
        }
    }
    let text = |site: usize| {
        format!(
            "[router]\ninterfaces = [\"edge0\", \"core0\"]\nfast_path = \"off\"\ncontrol = \"{}\"\nv6_rows = 64\n",
            socket(&folder, site).display()
        )
    };
    (0..2).for_each(|site| std::fs::write(folder.join(format!("router{site}.toml")), text(site)).unwrap());
    let mut routers = [0, 1].map(|site| world.start(&folder, site));
    for (from, to) in [("10.0.0.2", "10.0.1.2"), ("fd00:0::2", "fd00:1::2")] {
        let bind = |site: usize, own: &str| {
            world.hosts[site].run(|| UdpSocket::bind((address(own), 7000))).unwrap().unwrap()
        };
        let (sender, receiver) = (bind(0, from), bind(1, to));
        receiver.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut received: BTreeMap<u32, u32> = BTreeMap::new();
        let mut receive = || {
            let mut bytes = [0; 4];
            match receiver.recv(&mut bytes) {
                Ok(_) => *received.entry(u32::from_be_bytes(bytes)).or_default() += 1,
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
                    return false;
                }
            }
            true
        };
        let send = |number: u32| sender.send_to(&number.to_be_bytes(), (address(to), 7000)).unwrap();
        // The first packets resolve all addresses.
        let mut resolving = PACKETS..;
        assert!(
            within(TIMEOUT, || send(resolving.next().unwrap()) > 0 && receive()),
            "{to}: {:?}",
            [0, 1].map(|site| state(&folder, site))
        );
        for number in 0..PACKETS {
            send(number);
            std::thread::sleep(Duration::from_millis(1));
        }
        while receive() {}
        let twice: Vec<_> = received.iter().filter(|(_, count)| **count != 1).collect();
        assert!(twice.is_empty(), "{to}: {twice:?}");
        assert_eq!(received.range(..PACKETS).count() as u32, PACKETS, "{to}");
        assert!(counted(&state(&folder, 0), "program", "forwarded") >= u64::from(PACKETS));
    }
    // The router's own addresses.
    for own in ["10.0.0.1", "fd00:0::1"] {
        let here = world.routers[0].run(|| UdpSocket::bind((address(own), 7001))).unwrap().unwrap();
        here.set_read_timeout(Some(TIMEOUT)).unwrap();
        let any = if address(own).is_ipv4() { "0.0.0.0" } else { "::" };
        let sender = world.hosts[0].run(|| UdpSocket::bind((address(any), 0))).unwrap().unwrap();
        sender.send_to(b"own", (address(own), 7001)).unwrap();
        assert_eq!(here.recv(&mut [0; 9]).unwrap(), 3, "{own}");
    }
    // The kernel forwards again after the end.
    routers.iter_mut().for_each(|router| router.signal("-TERM"));
    routers.into_iter().for_each(|router| assert!(router.output().status.success()));
    let printed = world.routers[0].run(|| Command::new("ip").args(["-6", "rule"]).output());
    let printed = printed.unwrap().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert!(!printed.contains("iif"), "{printed}");
}

netstage_harness::tests![no_packet_is_forwarded_twice];
