//! Probes of privileges, kernel features and timers, none of which leaves a trace.

use super::Finding;
use crate::clock::monotonic_ns;
use crate::netns::multicast::MulticastRoutes;
use crate::netns::netlink::{VethEnd, VethOptions, create_veth};
use crate::netns::user::{Privileges, become_privileged, privileges};
use crate::netns::{Namespace, Netlink};
use crate::realtime::{Grants, IdleStatePrevention, Rank};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, setsockopt, socket, sockopt::UdpGsoSegment,
};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use socket2::{Domain, Protocol, Socket, Type};
use std::fs;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::thread;

/// Measured sleeps of 1 ms.
const WAKE_UPS: u64 = 300;

pub(super) fn examine() -> Vec<Finding> {
    let mut findings = vec![privileged()];
    match scratch() {
        Ok((left, right)) => findings.extend(network(&left, &right)),
        Err(error) => findings.push(namespaces().with_result(Err::<String, _>(error), NAMESPACES)),
    }
    findings.extend(kernel());
    findings.extend(timing());
    findings
}

const NAMESPACES: &str = "a kernel with CONFIG_NET_NS and CONFIG_USER_NS, or root";

fn privileged() -> Finding {
    let finding = Finding::new("Privileges", "network privileges").required();
    let current = privileges();
    match (&current, become_privileged()) {
        (Privileges::Held, Ok(())) => finding.with_result(Ok::<_, String>("held".into()), ""),
        (_, Ok(())) => {
            finding.with_result(Ok::<_, String>("in a user namespace, without BPF and XDP".into()), "")
        }
        (_, Err(forbidden)) => {
            let remedy = forbidden.remedies.iter().map(String::as_str).chain(["or run as root"]);
            let remedy = remedy.collect::<Vec<_>>().join("; ");
            finding.with_result(Err::<String, _>(forbidden.failed_operation), remedy)
        }
    }
}

fn namespaces() -> Finding {
    Finding::new("Network", "namespaces").required()
}

/// Creates two namespaces, which end with the probes.
fn scratch() -> io::Result<(Namespace, Namespace)> {
    Ok((Namespace::new()?, Namespace::new()?))
}

fn network(left: &Namespace, right: &Namespace) -> Vec<Finding> {
    let new = |name| Finding::new("Network", name);
    let no_detail = |_| String::new();
    let inside = |task: fn() -> io::Result<String>| left.run(task).and_then(|result| result);
    let veth_end = |namespace, last| VethEnd { namespace, name: "probe0", mac: [2, 0, 0, 0, 0, last] };
    let veth = create_veth(veth_end(left, 1), veth_end(right, 2), VethOptions::default());
    let loopback = left.loopback_up();
    vec![
        namespaces().with_result(Ok::<_, String>(String::new()), ""),
        new("veth").required().with_result(veth.map(no_detail), "modprobe veth (CONFIG_VETH)"),
        new("loopback").required().with_result(loopback.map(no_detail), "a kernel with rtnetlink"),
        new("AF_PACKET").required().with_result(inside(af_packet), "modprobe af_packet (CONFIG_PACKET)"),
        new("ICMP sockets").with_result(inside(raw_icmp), "CAP_NET_RAW"),
        new("IPv6").with_result(inside(ipv6), "sysctl net.ipv6.conf.all.disable_ipv6=0"),
        new("UDP GSO").with_result(inside(udp_gso), "Linux 4.18 or newer"),
        new("AF_XDP").with_result(inside(af_xdp), "a kernel with CONFIG_XDP_SOCKETS, and CAP_NET_RAW"),
        new("TUN").with_result(tun(), "modprobe tun (CONFIG_TUN), and /dev/net/tun readable and writable"),
        new("congestion controls").with_result(
            left.sysctl_value("net.ipv4.tcp_available_congestion_control"),
            "modprobe tcp_cubic, tcp_bbr",
        ),
        new("MPLS forwarding").with_result(
            left.sysctl_value("net.mpls.platform_labels").map(|_| String::new()),
            "modprobe mpls_router mpls_iptunnel (CONFIG_MPLS_ROUTING); netstage forwards without it",
        ),
        new("multicast forwarding").with_result(
            multicast(left),
            "a kernel with CONFIG_IP_MROUTE and CONFIG_IPV6_MROUTE; without them, routers do not forward multicast flows",
        ),
        new("netem").with_result(
            has_qdisc(left, "netem"),
            "modprobe sch_netem (CONFIG_NET_SCH_NETEM) for --emulator netem; the default emulator does not need it",
        ),
        new("bridge").with_result(bridge(right), "modprobe bridge (CONFIG_BRIDGE), needed for --emulator netem"),
    ]
}

fn af_packet() -> io::Result<String> {
    // Protocol 0 receives nothing.
    socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
    Ok(String::new())
}

fn raw_icmp() -> io::Result<String> {
    Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
    let datagram = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::ICMPV4));
    Ok(if datagram.is_ok() { "raw and datagram" } else { "raw" }.into())
}

fn ipv6() -> io::Result<String> {
    UdpSocket::bind("[::1]:0").map(|_| String::new())
}

fn udp_gso() -> io::Result<String> {
    let udp = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, SockProtocol::Udp)?;
    setsockopt(&udp, UdpGsoSegment, &1000)?;
    Ok(String::new())
}

fn af_xdp() -> io::Result<String> {
    Socket::new(Domain::from(libc::AF_XDP), Type::RAW, None).map(|_| String::new())
}

/// Opening the device does not yet create an interface.
fn tun() -> io::Result<String> {
    fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").map(|_| String::new())
}

fn multicast(namespace: &Namespace) -> Result<String, String> {
    let groups =
        [("IPv4", IpAddr::from([239, 1, 1, 1])), ("IPv6", IpAddr::from([0xff18, 0, 0, 0, 0, 0, 0, 1]))];
    for (version, group) in groups {
        MulticastRoutes::open(namespace, group).map_err(|error| format!("{version}: {error}"))?;
    }
    Ok(String::new())
}

fn bridge(namespace: &Namespace) -> Result<String, String> {
    let created = Netlink::open(namespace).and_then(|mut netlink| netlink.create_bridge("bridge0"));
    created.map(|()| String::new()).map_err(|error| error.to_string())
}

fn has_qdisc(namespace: &Namespace, kind: &str) -> Result<String, String> {
    let available = Netlink::open(namespace).and_then(|mut netlink| netlink.has_qdisc(kind));
    match available {
        Ok(true) => Ok(String::new()),
        Ok(false) => Err(format!("the kernel has no queueing discipline {kind}")),
        Err(error) => Err(error.to_string()),
    }
}

fn kernel() -> Vec<Finding> {
    let btf = Path::new("/sys/kernel/btf/vmlinux");
    let btf = if btf.exists() { Ok("with type information") } else { Err("no /sys/kernel/btf/vmlinux") };
    let bpf = btf.and_then(|detail| match has_capability(CAP_BPF) {
        true => Ok(detail.to_owned()),
        false => Err("CAP_BPF is missing"),
    });
    vec![
        Finding::new("Kernel", "BPF").with_result(bpf, "root, and a kernel with CONFIG_DEBUG_INFO_BTF"),
        Finding::new("Kernel", "clock source").with_result(
            fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
                .map(|name| name.trim().to_owned()),
            "a mounted /sys",
        ),
    ]
}

/// Number of CAP_BPF (capabilities(7)).
const CAP_BPF: u32 = 39;

fn has_capability(number: u32) -> bool {
    // A user namespace holds all capabilities, but BPF requires those of the host.
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let host = map.split_whitespace().eq(["0", "0", "4294967295"]);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    host && mask.is_some_and(|mask| mask >> number & 1 == 1)
}

fn timing() -> Vec<Finding> {
    let awake = IdleStatePrevention::request();
    let measured = thread::spawn(|| (Grants::request(Rank::Traffic), wake_ups())).join();
    let (grants, lateness) = measured.unwrap_or_default();
    let fifo = if grants.fifo { Ok(String::new()) } else { Err("refused") };
    let micros = |ns: u64| ns as f64 / 1e3;
    let wake = match lateness.as_slice() {
        [] => Err("no sleep completed"),
        lateness => Ok(format!(
            "lateness: median {:.0} µs, 99 % {:.0} µs, max {:.0} µs over {} sleeps of 1 ms",
            micros(lateness[lateness.len() / 2]),
            micros(lateness[lateness.len() * 99 / 100]),
            micros(lateness[lateness.len() - 1]),
            lateness.len()
        )),
    };
    let cores = thread::available_parallelism().map(|cores| cores.to_string());
    vec![
        Finding::new("Timing", "SCHED_FIFO").with_result(fifo, grants.advice().unwrap_or_default()),
        Finding::new("Timing", "idle processors kept awake").with_result(
            awake.map(|_| String::new()).ok_or("refused"),
            "root, or write access to /dev/cpu_dma_latency",
        ),
        Finding::new("Timing", "timers").with_result(wake, "a kernel with CONFIG_HIGH_RES_TIMERS"),
        Finding::new("Timing", "cores").with_result(cores, ""),
    ]
}

/// Returns the lateness of each sleep in nanoseconds, ascending.
fn wake_ups() -> Vec<u64> {
    let start = monotonic_ns();
    let wake = |k| {
        let due = start + k * 1_000_000;
        let until = TimeSpec::new((due / 1_000_000_000) as i64, (due % 1_000_000_000) as i64);
        clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &until).ok()?;
        Some(monotonic_ns().saturating_sub(due))
    };
    let mut lateness: Vec<u64> = (1..=WAKE_UPS).filter_map(wake).collect();
    lateness.sort_unstable();
    lateness
}
