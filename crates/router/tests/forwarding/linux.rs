//! Runs the cases with the forwarding of the Linux kernel, in a network namespace between two others.

use super::cases::{EtherTypeAndPacket, ForwardingCase, NEXT, ROUTES, cases};
use super::pair::{LEFT_MAC, RIGHT_MAC};
use super::{NEXT_MAC, OUT_MAC, frame, received};
use netstage_harness::needs;
use netstage_host::netns::netlink::{VethEnd, VethOptions, create_veth};
use netstage_host::netns::{Namespace, Netlink, ethtool};
use netstage_host::ports::FramePort as _;
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time limit for a packet.
const PATIENCE: Duration = Duration::from_secs(10);
/// Packet sent after each case without output: if only this packet arrives, the other was dropped.
const LAST: &str = "IPv4";

/// Converts a line of the file of routes to arguments of iproute2.
fn command(line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let arguments = match words[..] {
        [prefix, "discard"] => format!("route add blackhole {prefix}"),
        [prefix, "via", via, "dev", dev, "push", labels] => {
            format!("route add {prefix} encap mpls {labels} via {} dev {dev}", of_family(via))
        }
        ["label", label, "pop"] => format!("-f mpls route add {label} dev lo"),
        ["label", label, "swap", labels, "via", via, "dev", dev] => {
            format!("-f mpls route add {label} as {labels} via {} dev {dev}", of_family(via))
        }
        ["label", label, "via", via, "dev", dev] => {
            format!("-f mpls route add {label} via {} dev {dev}", of_family(via))
        }
        [prefix, "via", via, "dev", dev] => format!("route add {prefix} via {via} dev {dev}"),
        _ => panic!("{line}"),
    };
    arguments.split(' ').map(String::from).collect()
}

fn of_family(address: &str) -> String {
    let family = if address.contains(':') { "inet6" } else { "inet" };
    format!("{family} {address}")
}

/// Kernel that forwards between its interfaces `in` and `out`, and ports at their far ends.
struct LinuxRouter {
    _router: Namespace,
    inside: AfPacket,
    outside: AfPacket,
    _ends: [Namespace; 2],
}

impl LinuxRouter {
    fn new() -> LinuxRouter {
        let [router, left, right] = [0; 3].map(|_| Namespace::new().unwrap());
        let connect = |end: &Namespace, far, name, mac| {
            let (near, far_end) = (
                VethEnd { namespace: &router, name, mac },
                VethEnd { namespace: end, name: "far", mac: far },
            );
            create_veth(near, far_end, VethOptions::default()).unwrap();
            for (namespace, link) in [(&router, name), (end, "far")] {
                ethtool::disable_offloads(namespace, link).unwrap();
                Netlink::open(namespace).unwrap().set_up(link).unwrap();
            }
        };
        connect(&left, LEFT_MAC, "in", RIGHT_MAC);
        connect(&right, NEXT_MAC, "out", OUT_MAC);
        router.loopback_up().unwrap();
        for setting in [
            "net.ipv4.ip_forward",
            "net.ipv6.conf.all.forwarding",
            "net.mpls.conf.in.input",
            "net.mpls.conf.lo.input",
        ] {
            router.sysctl(setting, "1").unwrap();
        }
        router.sysctl("net.mpls.platform_labels", "1000").unwrap();
        let mut netlink = Netlink::open(&router).unwrap();
        let addresses: [(IpAddr, u8); 2] =
            [([192, 0, 2, 1].into(), 24), ([0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1].into(), 64)];
        for (address, length) in addresses {
            netlink.add_address("out", address, length).unwrap();
        }
        NEXT.into_iter().for_each(|next| netlink.add_neighbor("out", next, NEXT_MAC).unwrap());
        for link in ["in", "out"] {
            netlink.wait_until_ready(link).unwrap();
        }
        for line in ROUTES.lines() {
            let output = router.run(|| Command::new("ip").args(command(line)).output()).unwrap().unwrap();
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let port = |namespace| AfPacket::open(namespace, "far", AfPacketOptions::default()).unwrap();
        let (inside, outside) = (port(&left), port(&right));
        LinuxRouter { _router: router, inside, outside, _ends: [left, right] }
    }

    fn send(&mut self, comes: &EtherTypeAndPacket) {
        assert!(self.inside.send(&frame(comes)).unwrap() && self.inside.flush().unwrap() == 0);
    }

    /// Waits for the next packets sent.
    fn next(&mut self, name: &str) -> Vec<EtherTypeAndPacket> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = received(&mut self.outside);
            if !left.is_empty() {
                return left;
            }
            assert!(Instant::now() < deadline, "{name}: no packet sent");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn linux_forwards() {
    needs::namespaces();
    needs::kernel("MPLS (modprobe mpls_router mpls_iptunnel)", Path::new("/proc/sys/net/mpls").exists());
    let mut linux = LinuxRouter::new();
    let cases = cases();
    let last = cases.iter().find(|case| case.name == LAST).unwrap();
    for ForwardingCase { name, comes, leaves, leaves_linux } in &cases {
        linux.send(comes);
        let Some(leaves) = leaves_linux.as_ref().or(leaves.as_ref()) else {
            linux.send(&last.comes);
            assert_eq!(linux.next(name), Vec::from_iter(last.leaves.clone()), "{name}");
            continue;
        };
        assert_eq!(linux.next(name), std::slice::from_ref(leaves), "{name}");
    }
}

/// Runs the same test in a virtual machine with an MPLS kernel.
fn linux_forwards_where_it_has_mpls() {
    needs::program("qemu-system-x86_64", "qemu-system-x86");
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut machine = Command::new(top.join("scripts/vm.sh"));
    machine.current_dir(&top).arg(std::env::current_exe().unwrap());
    let output = machine.args(["--exact", "linux::linux_forwards", "--nocapture"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "{said}");
}

netstage_harness::tests![
    linux_forwards,
    #[ignore = "needs a virtual machine"]
    linux_forwards_where_it_has_mpls,
];
