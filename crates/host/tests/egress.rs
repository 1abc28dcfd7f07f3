//! Tests of the kernel's limits on what a group of threads sends.

#[path = "../../../tests/support/pair.rs"]
mod pair;

use netstage_core::edge::IpPrefix;
use netstage_core::quantity::BitRate;
use netstage_core::rng::RandomStream;
use netstage_harness::{needs, skip};
use netstage_host::egress::{EgressGroup, EgressLimits};
use netstage_host::netns::netlink::{Netlink, VethOptions};
use netstage_host::netns::routes::{Metrics, StaticRoute};
use netstage_host::ports::FramePort as _;
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use netstage_wire::ethernet::{self, ethertype};
use pair::Pair;
use socket2::{Domain, SockRef, Socket, Type};
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

/// Rate that no test reaches.
const UNREACHED: BitRate = BitRate(1_000_000_000_000);
/// Path MTU to which a message from the network can lower that of IPv4, and smallest MTUs of the families.
const MIN_PATH_MTU: u64 = 552;
const MIN_IPV4_MTU: u64 = 68;
const MIN_IPV6_MTU: u64 = 1280;
/// Protocol numbers.
const UDP: u8 = 17;
const IPV6_FRAGMENT: u8 = 44;
/// Addresses behind the pair, each with a route of its own.
const BEHIND: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// Capture of all that the left end of a pair sends.
struct Capture {
    port: AfPacket,
    frames: u64,
}

impl Capture {
    fn start(pair: &Pair) -> Capture {
        let port = AfPacket::open(&pair.right, "right0", AfPacketOptions::default()).unwrap();
        Capture { port, frames: Capture::sent(pair) }
    }

    /// Frames that the left end has sent.
    fn sent(pair: &Pair) -> u64 {
        Netlink::open(&pair.left).unwrap().link("left0").unwrap().statistics.sent_packets
    }

    /// Returns the packets of UDP, fragments included, since the last call, and their bytes at the IP layer. The
    /// kernel may add packets of its own at any time.
    fn udp(&mut self, pair: &Pair) -> (u64, u64) {
        let (sent, limit) = (Capture::sent(pair), Instant::now() + Duration::from_secs(10));
        let (mut packets, mut bytes) = (0, 0);
        while self.frames < sent {
            assert!(Instant::now() < limit, "{} of {sent} frames arrived", self.frames);
            let frames = self.port.receive(1_000, &mut |received| {
                let view = ethernet::View::new(received.frame).unwrap();
                let is_udp = match (view.kind(), view.payload()) {
                    (ethertype::IPV4, packet) => packet[9] == UDP,
                    (ethertype::IPV6, packet) => [UDP, IPV6_FRAGMENT].contains(&packet[6]),
                    _ => false,
                };
                if is_udp {
                    packets += 1;
                    bytes += view.payload().len() as u64;
                }
            });
            self.frames += frames.unwrap() as u64;
        }
        (packets, bytes)
    }
}

/// Draws between two values, often one of them.
fn draw(random: &mut RandomStream, low: u64, high: u64) -> u64 {
    match random.below(4) {
        0 => low,
        1 => high,
        _ => low + random.below(high - low + 1),
    }
}

/// Routes the addresses behind the pair with a random MTU of the link and of the path. Returns those of the path.
fn draw_mtus(pair: &Pair, random: &mut RandomStream) -> [u64; 2] {
    let mut netlink = Netlink::open(&pair.left).unwrap();
    // Below the smallest MTU of IPv6, the link loses its addresses and routes of that family.
    let device = match random.chance(0.3) {
        true => draw(random, MIN_IPV4_MTU, MIN_IPV6_MTU - 1),
        false => draw(random, MIN_IPV6_MTU, 1500),
    };
    netlink.set_mtu("left0", device as u32).unwrap();
    let mut paths = [device; 2];
    for ((path, lowest), far) in paths.iter_mut().zip([MIN_PATH_MTU, MIN_IPV6_MTU]).zip(BEHIND) {
        let far: IpAddr = far.parse().unwrap();
        let destination = (far, if far.is_ipv4() { 32 } else { 128 });
        let _ = netlink.delete_route(destination, "left0");
        if far.is_ipv6() && device < lowest {
            continue;
        }
        *path = draw(random, lowest.min(device), device);
        let metrics = Metrics { mtu: Some(*path as u32), ..Metrics::default() };
        let gateway = Some(if far.is_ipv4() { "10.1.0.1" } else { "fd00::1" }.parse().unwrap());
        let route = StaticRoute { destination, gateway, link: "left0", preferred_source: None, metrics };
        netlink.add_route(&route).unwrap();
    }
    paths
}

fn no_packet_is_charged_less_than_it_takes_on_the_link() {
    needs::root();
    let mut random = RandomStream::new(netstage_harness::seed("egress"), "fragments");
    let limits = EgressLimits { rate: Some(UNREACHED), ..EgressLimits::default() };
    let group = EgressGroup::create(limits).unwrap();
    let pair = Pair::new(VethOptions::default());
    let mut capture = Capture::start(&pair);
    for round in 0..needs::cases(200) {
        let paths = draw_mtus(&pair, &mut random);
        let discovers = random.chance(0.7);
        pair.left.sysctl("net.ipv4.ip_no_pmtu_disc", if discovers { "0" } else { "1" }).unwrap();
        for (far, path) in BEHIND.into_iter().zip(paths) {
            let length = draw(&mut random, 1, 9000);
            let payload = vec![0; length as usize];
            let before = group.sent().unwrap();
            capture.udp(&pair);
            let to = SocketAddr::new(far.parse().unwrap(), 9);
            let send = || {
                group.enter().unwrap();
                let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                UdpSocket::bind(any).unwrap().send_to(&payload, to)
            };
            if pair.left.run(send).unwrap().is_err() {
                // The link has lost this family.
                assert!(to.is_ipv6(), "{to}");
                continue;
            }
            let (packets, bytes) = capture.udp(&pair);
            let charged = group.sent().unwrap() - before;
            let case = format!("round {round}: {length} B to {to}, path MTU {path}, {packets} packets");
            assert!(charged >= bytes, "{case}: {charged} of {bytes} B charged");
            if to.is_ipv4() && discovers && packets == 1 {
                assert_eq!(charged, bytes, "{case}");
            }
        }
        // Only then do addresses of IPv6 return.
        let mut netlink = Netlink::open(&pair.left).unwrap();
        netlink.set_mtu("left0", 1500).unwrap();
        let _ = netlink.add_address("left0", "fd00::".parse().unwrap(), 127);
        let _ = netlink.add_neighbor("left0", "fd00::1".parse().unwrap(), pair::RIGHT_MAC);
    }
}

fn limits_apply_to_the_threads_of_the_group_only() {
    needs::root();
    let prefix = |address: [u8; 4]| IpPrefix::new(IpAddr::from(address), 32).unwrap();
    // Many others are permitted, too.
    let others = (0..5_000_u16).map(|number| prefix([172, 16, (number >> 8) as u8, number as u8]));
    let limits = EgressLimits {
        destinations: Some(others.chain([prefix([10, 1, 0, 1])]).collect()),
        rate: Some(BitRate(1_000_000)),
        ..EgressLimits::default()
    };
    let group = EgressGroup::create(limits).unwrap();
    let pair = Pair::new(VethOptions::default());
    let socket = || UdpSocket::bind("[::]:0").unwrap();
    let inside = |to: &str| {
        let send = || {
            group.enter().unwrap();
            socket().send_to(&[0; 1000], to)
        };
        pair.left.run(send).unwrap()
    };
    inside("[::ffff:10.1.0.1]:9").unwrap();
    assert_eq!(inside("[fd00::1]:9").unwrap_err().kind(), ErrorKind::PermissionDenied);
    let outside = pair.left.run(|| socket().send_to(&[0; 1000], "[::ffff:10.1.0.1]:9")).unwrap();
    outside.unwrap();
    assert_eq!(group.sent().unwrap(), 1028);
    let drops = group.drops();
    assert_eq!((drops.destination.other, drops.destination.tcp, drops.rate.other), (1, 0, 0));
    for _ in 0..100 {
        let _ = inside("[::ffff:10.1.0.1]:9");
    }
    assert!(group.drops().rate.other > 0, "{:?}", group.drops());
}

/// The kernel still sends the data of a connection that its process has closed, or that was killed.
fn limits_apply_to_what_the_kernel_sends_after_the_end_of_the_group() {
    needs::root();
    let group = EgressGroup::create(EgressLimits { has_budget: true, ..EgressLimits::default() }).unwrap();
    group.allow(1 << 30).unwrap();
    let pair = Pair::new(VethOptions::default());
    let at = SocketAddr::from(([10, 1, 0, 1], 9));
    let listen = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind(&at.into()).unwrap();
        socket.listen(1).unwrap();
        TcpListener::from(socket)
    };
    let listener = pair.right.run(listen).unwrap();
    let write = || {
        group.enter().unwrap();
        let mut stream = TcpStream::connect(at).unwrap();
        SockRef::from(&stream).set_send_buffer_size(1 << 20).unwrap();
        stream.set_nonblocking(true).unwrap();
        let written: usize = std::iter::from_fn(|| stream.write(&[0; 1 << 16]).ok()).sum();
        group.allow(0).unwrap();
        written
    };
    let written = pair.left.run(write).unwrap();
    drop(group);
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut buffer = [0; 1 << 16];
    let read: usize = std::iter::from_fn(|| stream.read(&mut buffer).ok().filter(|count| *count > 0)).sum();
    assert!(read < written / 2, "{read} of {written} bytes");
}

/// Helper of another test: its mount namespace has no hierarchy of cgroups.
fn limits_without_a_mounted_hierarchy() {
    if std::env::var_os("NETSTAGE_TEST_UNMOUNTED").is_none() {
        skip("helper of another test");
    }
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let before = mounts();
    assert!(!before.contains(" - cgroup2 "), "{before}");
    limits_apply_to_the_threads_of_the_group_only();
    assert_eq!(mounts(), before);
}

fn limits_apply_where_no_hierarchy_is_mounted() {
    needs::root();
    needs::program("unshare", "util-linux");
    let helper = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", "umount --all --lazy --types cgroup2; exec \"$@\"", "sh"])
        .arg(helper)
        .args(["--exact", "limits_without_a_mounted_hierarchy", "--ignored", "--nocapture"])
        .env("NETSTAGE_TEST_UNMOUNTED", "1")
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}

netstage_harness::tests![
    no_packet_is_charged_less_than_it_takes_on_the_link,
    limits_apply_to_the_threads_of_the_group_only,
    limits_apply_to_what_the_kernel_sends_after_the_end_of_the_group,
    #[ignore = "started by the test without a mounted hierarchy"]
    limits_without_a_mounted_hierarchy,
    limits_apply_where_no_hierarchy_is_mounted,
];
netstage_harness::main![self];
