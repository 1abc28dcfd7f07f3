//! Tests of a router's answers to packets that the kernel of its host sees, too: wherever routes come from, each packet
//! is forwarded or answered once, and by the router.

use crate::router::network::{TIMEOUT, TwoSites, counted, route, socket, state};
use crate::support::network::address;
use crate::support::{TemporaryFolder, TestProcess, text, within};
use netstage_core::rng::RandomStream;
use netstage_harness::{needs, seed};
use netstage_host::netns::Netlink;
use netstage_host::ports::FramePort as _;
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use netstage_wire::ip::View;
use nix::sys::socket::{setsockopt, sockopt};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

/// MTU of the link between the routers.
const CORE_MTU: u32 = 1400;
/// Time after which the router may send another burst of ICMP errors.
const BURST_PAUSE: Duration = Duration::from_millis(250);
/// Address of the far router's loopback interface.
const LOOPBACK: &str = "fd00:f::2";
/// IPv4 and IPv6.
const VERSIONS: [&str; 2] = ["10.0", "fd00:"];

/// Place that the near router has its route to the far site from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteOrigin {
    File,
    Fpm,
    Kernel,
    VpnInFile,
    VpnInKernel,
}

impl RouteOrigin {
    const ALL: [RouteOrigin; 5] = [
        RouteOrigin::File,
        RouteOrigin::Fpm,
        RouteOrigin::Kernel,
        RouteOrigin::VpnInFile,
        RouteOrigin::VpnInKernel,
    ];

    fn is_vpn(self) -> bool {
        matches!(self, RouteOrigin::VpnInFile | RouteOrigin::VpnInKernel)
    }

    /// Routes by `ip route` have no labels, as this kernel may have no MPLS.
    fn has_label(self) -> bool {
        !matches!(self, RouteOrigin::Kernel | RouteOrigin::VpnInKernel)
    }

    /// Lines of the near router's route file, with the far router's IPv6 address.
    fn file(self, gateway: &str) -> String {
        let near =
            "10.0.0.0/24 table red dev edge0\nfd00:0::/64 table red dev edge0\nlabel 300 pop table red\n";
        let far = |table| {
            format!(
                "10.0.1.0/24 {table} via 192.0.2.2 dev core0 push 301\n\
                 fd00:1::/64 {table} via {gateway} dev core0 push 301\n"
            )
        };
        match self {
            RouteOrigin::File => far("") + "label 300 pop\n",
            RouteOrigin::Fpm | RouteOrigin::Kernel => "label 300 pop\n".into(),
            RouteOrigin::VpnInFile => far("table red") + near,
            RouteOrigin::VpnInKernel => near.into(),
        }
    }
}

/// Message by which zebra announces a route with a label to its forwarding plane manager.
fn fpm_route(family: u8, destination: (IpAddr, u8), gateway: IpAddr, interface: u32, label: u32) -> Vec<u8> {
    let bytes = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let attribute = |kind: u16, value: &[u8]| {
        let length = 4 + value.len() as u16;
        let padding = vec![0; value.len().next_multiple_of(4) - value.len()];
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value, &padding].concat()
    };
    // MPLS_IPTUNNEL_DST with the entry at the bottom of the stack, LWTUNNEL_ENCAP_MPLS.
    let entry = attribute(1, &(label << 12 | 1 << 8).to_be_bytes());
    // Main table, by zebra, everywhere, unicast.
    let header = [family, destination.1, 0, 0, 254, 11, 0, 1, 0, 0, 0, 0];
    let route = [
        header.to_vec(),
        attribute(1, &bytes(destination.0)),
        attribute(5, &bytes(gateway)),
        attribute(4, &interface.to_ne_bytes()),
        attribute(21, &1u16.to_ne_bytes()),
        attribute(22, &entry),
    ]
    .concat();
    // RTM_NEWROUTE, to be created.
    let mut message = (16 + route.len() as u32).to_ne_bytes().to_vec();
    message.extend([24u16, 0x401].into_iter().flat_map(u16::to_ne_bytes));
    message.extend([0; 8]);
    message.extend(route);
    [&[1, 1][..], &(4 + message.len() as u16).to_be_bytes(), &message].concat()
}

/// Two sites with IPv4 and IPv6, whose routers' kernels forward all they are permitted to.
struct AnsweringSites {
    world: TwoSites,
    folder: TemporaryFolder,
    origin: RouteOrigin,
    is_fast: bool,
    /// The link between the routers has global IPv6 addresses. If not, they use those of their loopback interfaces.
    is_numbered: bool,
    random: RandomStream,
    /// Held open: routes of a session that ends are removed.
    session: Option<TcpStream>,
}

impl AnsweringSites {
    fn new(origin: RouteOrigin, is_fast: bool, seed: u64) -> AnsweringSites {
        let world = TwoSites::new();
        world.add_ipv6();
        for router in &world.routers {
            for family in ["ipv4", "ipv6"] {
                router.sysctl(&format!("net/{family}/conf/all/forwarding"), "1").unwrap();
            }
            // The kernel's limits must not hide its answers.
            router.sysctl("net/ipv4/icmp_ratelimit", "0").unwrap();
            router.sysctl("net/ipv6/icmp/ratelimit", "0").unwrap();
            let mut netlink = Netlink::open(router).unwrap();
            netlink.set_mtu("core0", CORE_MTU).unwrap();
            netlink.set_up("lo").unwrap();
        }
        let folder = TemporaryFolder::new(&format!("router-answers-{origin:?}"));
        let mut random = RandomStream::new(seed, &format!("{origin:?}.{is_fast}"));
        let is_numbered = random.chance(0.5);
        if !is_numbered {
            for (site, router) in world.routers.iter().enumerate() {
                let own = format!("fd00:c::{}/64", site + 1);
                let remove = || Command::new("ip").args(["address", "del", &own, "dev", "core0"]).status();
                assert!(router.run(remove).unwrap().unwrap().success());
            }
            Netlink::open(&world.routers[1]).unwrap().add_address("lo", address(LOOPBACK), 128).unwrap();
        }
        AnsweringSites { world, folder, origin, is_fast, is_numbered, random, session: None }
    }

    /// IPv6 address of a router on the link between them.
    fn core(&self, site: usize) -> String {
        format!("{}::{}", if self.is_numbered { "fd00:c" } else { "fe80" }, site + 1)
    }

    /// Starts both routers and waits until they know each other's site.
    fn start(&mut self) -> [TestProcess; 2] {
        let origin = self.origin;
        let router = |site: usize, more: &str| {
            let is_vpn = site == 0 && origin.is_vpn();
            let mut text = format!(
                "[router]\ninterfaces = [{}\"core0\"]\nmpls = [\"core0\"]\nroutes = \"fib{site}.txt\"\n\
                 fast_path = \"{}\"\ncontrol = \"{}\"\nv6_rows = 512\n{more}",
                if is_vpn { "" } else { "\"edge0\", " },
                if self.is_fast { "auto" } else { "off" },
                socket(&self.folder, site).display()
            );
            if is_vpn {
                text += "[vpn.red]\ninterfaces = [\"edge0\"]\n";
                text += if origin == RouteOrigin::VpnInKernel { "kernel_table = 100\n" } else { "" };
            }
            std::fs::write(self.folder.join(format!("router{site}.toml")), text).unwrap();
        };
        router(0, if origin == RouteOrigin::Fpm { "fpm = \"127.0.0.1:2620\"\n" } else { "" });
        router(1, "");
        std::fs::write(self.folder.join("fib0.txt"), origin.file(&self.core(1))).unwrap();
        let far = format!(
            "10.0.0.0/24 via 192.0.2.1 dev core0 push 300\n\
             fd00:0::/64 via {} dev core0 push 300\nlabel 301 pop\n",
            self.core(0)
        );
        std::fs::write(self.folder.join("fib1.txt"), far).unwrap();
        let table = match origin {
            RouteOrigin::Kernel => Some("main"),
            RouteOrigin::VpnInKernel => Some("100"),
            _ => None,
        };
        for (prefix, gateway) in [("10.0.1.0/24", "192.0.2.2"), ("fd00:1::/64", &*self.core(1))] {
            let Some(table) = table else { continue };
            let words = ["route", "add", prefix, "via", gateway, "dev", "core0", "table", table];
            let added = self.world.routers[0].run(|| Command::new("ip").args(words).status());
            assert!(added.unwrap().unwrap().success());
        }
        let routers = [0, 1].map(|site| self.world.start(&self.folder, site));
        if origin == RouteOrigin::Fpm {
            self.announce();
        }
        if self.is_fast {
            self.world.wait_for_fast_path(&self.folder);
        }
        let known =
            || ["10.0.1.0/24", "fd00:1::/64"].iter().all(|prefix| route(&self.folder, 0, prefix).is_some());
        assert!(within(TIMEOUT, known), "{origin:?}");
        routers
    }

    /// Announces the far site's networks to the near router, as zebra does.
    fn announce(&mut self) {
        let near = &self.world.routers[0];
        let links = Netlink::open(near).unwrap().links().unwrap();
        let core = links.iter().find(|link| link.name == "core0").unwrap().index;
        let mut session = near.run(|| TcpStream::connect("127.0.0.1:2620")).unwrap().unwrap();
        let v4 = fpm_route(2, (address("10.0.1.0"), 24), address("192.0.2.2"), core, 301);
        let v6 = fpm_route(10, (address("fd00:1::"), 64), address(&self.core(1)), core, 301);
        session.write_all(&[v4, v6].concat()).unwrap();
        self.session = Some(session);
    }

    fn labels(&self) -> u32 {
        u32::from(self.origin.has_label())
    }

    /// TCP connections from the near host, each with a random number of bytes there and back.
    fn connect(&mut self, version: &str) {
        const CONNECTIONS: usize = 12;
        let far = address(&host(version, 1));
        let listener = self.world.hosts[1].run(|| TcpListener::bind((far, 80))).unwrap().unwrap();
        let echo = std::thread::spawn(move || {
            for _ in 0..CONNECTIONS {
                let (mut stream, _) = listener.accept().unwrap();
                let mut received = Vec::new();
                stream.read_to_end(&mut received).unwrap();
                stream.write_all(&received).unwrap();
            }
        });
        for number in 0..CONNECTIONS {
            let sent: Vec<u8> = (0..1 + self.random.below(20_000)).map(|byte| byte as u8).collect();
            let connect = || TcpStream::connect_timeout(&(far, 80).into(), TIMEOUT);
            let mut stream = self.world.hosts[0]
                .run(connect)
                .unwrap()
                .unwrap_or_else(|error| panic!("{:?}, {version}, connection {number}: {error}", self.origin));
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream.write_all(&sent).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            assert!(received == sent, "{:?}, {version}, {} of {} B", self.origin, received.len(), sent.len());
        }
        echo.join().unwrap();
    }

    /// traceroute shows both routers, and the label of the LSP between them.
    fn trace(&self, version: &str) {
        let far = host(version, 1);
        let words = ["-n", "-e", "-q", "1", "-w", "3", "-m", "5", &far];
        let output = self.world.hosts[0].run(|| Command::new("traceroute").args(words).output());
        let printed = text(&output.unwrap().unwrap().stdout);
        let core = match (version == VERSIONS[0], self.is_numbered) {
            (true, _) => "192.0.2.2",
            (false, true) => "fd00:c::2",
            (false, false) => LOOPBACK,
        };
        let label = if self.origin.has_label() { "<MPLS:L=301,E=0,S=1,T=1>" } else { "" };
        let expected = [address(&gateway(version, 0)).to_string(), format!("{core}{label}"), far];
        let hops: Vec<String> = printed
            .lines()
            .skip(1)
            .map(|line| {
                let mut words = line.split_whitespace().skip(1);
                let hop = words.next().unwrap_or_default();
                let label = words.next().filter(|word| word.starts_with('<')).unwrap_or_default();
                format!("{hop}{label}")
            })
            .collect();
        assert_eq!(hops, expected, "{:?}, {printed}", self.origin);
    }

    /// A packet that is too big for the link between the routers tells its sender the MTU.
    fn exceed_mtu(&mut self, version: &str) {
        let far = address(&host(version, 1));
        let [near, receiver] = [0, 1].map(|site| {
            let bind = || UdpSocket::bind((address(&host(version, site)), 9));
            self.world.hosts[site].run(bind).unwrap().unwrap()
        });
        let overhead = if far.is_ipv4() { 28 } else { 48 };
        let path_mtu = CORE_MTU - 4 * self.labels();
        let excess = 1 + self.random.below(u64::from(1500 - path_mtu)) as usize;
        let too_big = vec![7; path_mtu as usize - overhead + excess];
        near.send_to(&too_big, (far, 9)).unwrap();
        let query = ["route", "get", &far.to_string()];
        let known = || {
            let printed = self.world.hosts[0].run(|| Command::new("ip").args(query).output()).unwrap();
            let printed = text(&printed.unwrap().stdout);
            let mtu = printed.split_whitespace().skip_while(|word| *word != "mtu").nth(1);
            mtu.map(|mtu| mtu.parse::<u32>().unwrap())
        };
        assert!(within(TIMEOUT, || known().is_some()), "{:?}, {version}", self.origin);
        assert_eq!(known(), Some(path_mtu), "{:?}, {version}", self.origin);
        receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
        let fits = vec![8; path_mtu as usize - overhead];
        near.send_to(&fits, (far, 9)).unwrap();
        let mut bytes = [0; 2000];
        let received = receiver.recv(&mut bytes).unwrap();
        assert!(bytes[..received] == fits, "{:?}, {version}, {received} B", self.origin);
    }

    /// Makes the near host discover the MTU of its paths again.
    fn forget_mtu(&self) {
        for family in ["-4", "-6"] {
            let flush = || Command::new("ip").args([family, "route", "flush", "cache"]).status();
            assert!(self.world.hosts[0].run(flush).unwrap().unwrap().success());
        }
    }

    /// Packets without a route, and packets to closed ports of the near router.
    fn ask(&self, version: &str) {
        let nowhere = if version == VERSIONS[0] { "203.0.113.9" } else { "2001:db8::9" };
        let any = if version == VERSIONS[0] { "0.0.0.0" } else { "::" };
        for asked in [nowhere, &gateway(version, 0)] {
            for port in 40_000..40_005 {
                let socket = self.world.hosts[0].run(|| UdpSocket::bind((address(any), 0))).unwrap().unwrap();
                socket.connect((address(asked), port)).unwrap();
                // Reports unreachable networks as well as ports.
                match any {
                    "::" => setsockopt(&socket, sockopt::Ipv6RecvErr, &true).unwrap(),
                    _ => setsockopt(&socket, sockopt::Ipv4RecvErr, &true).unwrap(),
                }
                socket.set_read_timeout(Some(TIMEOUT)).unwrap();
                socket.send(b"ask").unwrap();
                let answer = socket.recv(&mut [0; 9]).map_err(|error| error.kind()).unwrap_err();
                let expected = if asked == nowhere {
                    [ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable]
                } else {
                    [ErrorKind::ConnectionRefused; 2]
                };
                assert!(expected.contains(&answer), "{:?}, {asked}, {port}: {answer:?}", self.origin);
            }
        }
    }
}

fn host(version: &str, site: usize) -> String {
    format!("{}2", prefix(version, site))
}

fn gateway(version: &str, site: usize) -> String {
    format!("{}1", prefix(version, site))
}

fn prefix(version: &str, site: usize) -> String {
    if version == VERSIONS[0] { format!("10.0.{site}.") } else { format!("fd00:{site}::") }
}

/// Counts the ICMP errors about each UDP packet that a host receives.
#[derive(Default)]
struct ErrorCounts(BTreeMap<Vec<u8>, Vec<IpAddr>>);

impl ErrorCounts {
    fn receive(&mut self, port: &mut AfPacket) {
        while port.receive(64, &mut |received| self.count(received.frame)).unwrap() > 0 {}
    }

    fn count(&mut self, frame: &[u8]) {
        let Ok(view) = View::new(&frame[14..]) else { return };
        let (source, protocol, header) = match &view {
            View::V4(view) => (view.source().into(), view.protocol(), 20),
            View::V6(view) => (view.source().into(), view.next_header(), 40),
        };
        let message = &view.packet()[header..];
        let is_error = match protocol {
            1 => [3, 11].contains(&message[0]),
            58 => message[0] < 128,
            _ => false,
        };
        // The quoted packet: its addresses and ports, length and checksum; not its time to live.
        if is_error && message.len() >= 8 + header + 8 {
            let quoted = &message[8..];
            let protocol = if header == 20 { quoted[9] } else { quoted[6] };
            if protocol == 17 {
                let key = [&quoted[header - 8..header], &quoted[header..header + 8], &message[..1]].concat();
                self.0.entry(key).or_default().push(source);
            }
        }
    }
}

/// Checks all kinds of answers for a source of routes.
fn test_answers(origin: RouteOrigin, is_fast: bool, seed: u64) {
    let mut sites = AnsweringSites::new(origin, is_fast, seed);
    let routers = sites.start();
    let mut port = AfPacket::open(&sites.world.hosts[0], "eth0", AfPacketOptions::default()).unwrap();
    let mut counts = ErrorCounts::default();
    for version in VERSIONS {
        sites.exceed_mtu(version);
        sites.forget_mtu();
        sites.connect(version);
        std::thread::sleep(BURST_PAUSE);
        sites.trace(version);
        sites.ask(version);
        counts.receive(&mut port);
    }
    std::thread::sleep(BURST_PAUSE);
    counts.receive(&mut port);
    let twice: Vec<_> = counts.0.iter().filter(|(_, sources)| sources.len() != 1).collect();
    assert!(twice.is_empty(), "{origin:?}, fast path {is_fast}: answered more than once: {twice:?}");
    // For each version: two routers of the trace, a packet that is too big, five without a route, five to closed ports.
    assert!(counts.0.len() >= 2 * 13, "{origin:?}: {}", counts.0.len());
    if is_fast {
        assert!(counted(&state(&sites.folder, 0), "kernel", "popped") > 0, "{origin:?}");
    }
    drop(routers);
}

fn test_origins(is_fast: bool) {
    needs::namespaces();
    needs::program("traceroute", "traceroute");
    let seed = seed("answers");
    RouteOrigin::ALL.into_iter().for_each(|origin| test_answers(origin, is_fast, seed));
}

fn each_packet_is_answered_once_by_the_fast_path() {
    test_origins(true);
}

fn each_packet_is_answered_once_by_the_slow_path() {
    test_origins(false);
}

netstage_harness::tests![
    each_packet_is_answered_once_by_the_fast_path,
    each_packet_is_answered_once_by_the_slow_path,
];
