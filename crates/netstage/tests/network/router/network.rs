//! Network of two sites behind two routers, and queries of the routers.

use crate::support::network::{address, default_route, join};
use crate::support::{TemporaryFolder, TestProcess, netstage, output_text, within};
use netstage_harness::needs;
use netstage_host::netns::{Namespace, Netlink, ethtool};
use netstage_host::ports::FramePort as _;
use netstage_host::ports::tun::{Tun, TunLayer};
use netstage_router::daemon::state::{LabelState, RouteFilter, RouteState, RouterInterface};
use netstage_router::daemon::{RouterState, labels, query, routes};
use nix::sys::socket::{setsockopt, sockopt};
use std::collections::BTreeSet;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Hosts 10.0.0.2 and 10.0.1.2 behind routers 10.0.0.1 and 10.0.1.1, which are connected by 192.0.2.1 and 192.0.2.2.
pub struct TwoSites {
    pub hosts: [Namespace; 2],
    pub routers: [Namespace; 2],
}

impl TwoSites {
    pub fn new() -> TwoSites {
        needs::namespaces();
        let (hosts, routers) =
            ([(); 2].map(|()| Namespace::new().unwrap()), [(); 2].map(|()| Namespace::new().unwrap()));
        let world = TwoSites { hosts, routers };
        world.join_core();
        for site in 0..2 {
            let (host, router) = (&world.hosts[site], &world.routers[site]);
            join((router, "edge0", 16 + site as u8), (host, "eth0", 32 + site as u8));
            // Without GRO, a veth drops redirected frames.
            ethtool::enable_features(host, "eth0", &["rx-gro".into()]).unwrap();
            router.sysctl("net/ipv4/ip_forward", "1").unwrap();
            let mut netlink = Netlink::open(router).unwrap();
            netlink.add_address("edge0", address(&format!("10.0.{site}.1")), 24).unwrap();
            let mut netlink = Netlink::open(host).unwrap();
            netlink.add_address("eth0", address(&format!("10.0.{site}.2")), 24).unwrap();
            netlink.add_route(&default_route(&format!("10.0.{site}.1"), "eth0")).unwrap();
        }
        for (host, router) in world.hosts.iter().zip(&world.routers) {
            Netlink::open(host).unwrap().wait_until_ready("eth0").unwrap();
            Netlink::open(router).unwrap().wait_until_ready("core0").unwrap();
        }
        world
    }

    /// Creates the link between the routers.
    pub fn join_core(&self) {
        join((&self.routers[0], "core0", 1), (&self.routers[1], "core0", 2));
        for (site, router) in self.routers.iter().enumerate() {
            let own = address(&format!("192.0.2.{}", site + 1));
            Netlink::open(router).unwrap().add_address("core0", own, 24).unwrap();
        }
    }

    /// Assigns IPv6 addresses: fd00:0::2 and fd00:1::2 to the hosts behind fd00:0::1 and fd00:1::1, which are connected by
    /// fd00:c::1 and fd00:c::2.
    pub fn add_ipv6(&self) {
        for (site, router) in self.routers.iter().enumerate() {
            let mut netlink = Netlink::open(router).unwrap();
            netlink.add_address("edge0", address(&format!("fd00:{site}::1")), 64).unwrap();
            netlink.add_address("core0", address(&format!("fd00:c::{}", site + 1)), 64).unwrap();
            // The kernel resolves neighbors for the router from link-local addresses.
            for link in ["edge0", "core0"] {
                netlink.add_address(link, address(&format!("fe80::{}", site + 1)), 64).unwrap();
            }
            let mut netlink = Netlink::open(&self.hosts[site]).unwrap();
            netlink.add_address("eth0", address(&format!("fd00:{site}::2")), 64).unwrap();
            netlink.add_route(&default_route(&format!("fd00:{site}::1"), "eth0")).unwrap();
        }
        for (host, router) in self.hosts.iter().zip(&self.routers) {
            Netlink::open(host).unwrap().wait_until_ready("eth0").unwrap();
            Netlink::open(router).unwrap().wait_until_ready("core0").unwrap();
        }
    }

    /// Replaces the link by TUN interfaces.
    pub fn join_core_by_tun(&self) -> TunLink {
        Netlink::open(&self.routers[0]).unwrap().delete_link("core0").unwrap();
        self.join_by_tun("core0", "192.0.2")
    }

    /// Creates a link of TUN interfaces between the routers, with the addresses .1 and .2 of a /24 network.
    pub fn join_by_tun(&self, name: &str, network: &str) -> TunLink {
        let mut site = 0;
        let ends = self.routers.each_ref().map(|router| {
            let tun = Tun::create(router, name, TunLayer::Ip).unwrap();
            let mut netlink = Netlink::open(router).unwrap();
            netlink.set_up(name).unwrap();
            site += 1;
            netlink.add_address(name, address(&format!("{network}.{site}")), 24).unwrap();
            tun
        });
        TunLink::start(ends)
    }

    /// Writes the configuration of a router that pushes a label to the other site, which pops it. `head`: further
    /// settings of [router]; `tables`: further tables.
    pub fn configure(&self, folder: &TemporaryFolder, site: usize, head: &str, tables: &str) -> PathBuf {
        let (far, own) = (1 - site, 300 + site);
        let routes = format!(
            "10.0.{far}.0/24 via 192.0.2.{} dev core0 push {}\nlabel {own} pop\n",
            far + 1,
            300 + far
        );
        std::fs::write(folder.join(format!("fib{site}.txt")), routes).unwrap();
        let text = format!(
            "[router]\ninterfaces = [\"edge0\", \"core0\"]\nmpls = [\"core0\"]\nroutes = \"fib{site}.txt\"\n\
             control = \"{}\"\nv6_rows = 64\n{head}\n{tables}",
            socket(folder, site).display()
        );
        let file = folder.join(format!("router{site}.toml"));
        std::fs::write(&file, text).unwrap();
        file
    }

    /// Starts a configured router and waits until it is ready.
    pub fn start(&self, folder: &TemporaryFolder, site: usize) -> TestProcess {
        self.start_within(folder, site, TIMEOUT)
    }

    /// Like [`TwoSites::start`], with a timeout.
    pub fn start_within(&self, folder: &TemporaryFolder, site: usize, timeout: Duration) -> TestProcess {
        start_in(&self.routers[site], folder, site, timeout)
    }

    /// Runs the near router with an invalid configuration and returns its exit code and output.
    pub fn refused(&self, file: &Path) -> (Option<i32>, String) {
        let output = TestProcess::spawn_in(&self.routers[0], router(file)).output();
        (output.status.code(), output_text(&output))
    }

    /// Returns the kernel's forwarding setting of the near router's edge interface: `1` or `0`.
    pub fn forwards(&self) -> String {
        self.routers[0].sysctl_value("net/ipv4/conf/edge0/forwarding").unwrap()
    }

    /// Configures and starts both routers with these settings of [router].
    pub fn start_both(&self, folder: &TemporaryFolder, head: &str) -> [TestProcess; 2] {
        let processes = [0, 1].map(|site| {
            self.configure(folder, site, head, "");
            self.start(folder, site)
        });
        if !head.contains("\"off\"") {
            self.wait_for_fast_path(folder);
        }
        processes
    }

    /// Waits until the fast path has started, as it does when both routers run.
    pub fn wait_for_fast_path(&self, folder: &TemporaryFolder) {
        let all_fast = |site| interfaces(folder, site).iter().all(|interface| interface.slow.is_none());
        assert!(within(TIMEOUT, || all_fast(0) && all_fast(1)), "{:?}", interfaces(folder, 0));
    }

    /// Transfers 1 MiB in both directions.
    pub fn transfer(&self) {
        const BYTES: usize = 1 << 20;
        let listener = self.hosts[1].run(|| TcpListener::bind("10.0.1.2:80")).unwrap().unwrap();
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = vec![0; BYTES];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        });
        let connect = || TcpStream::connect_timeout(&"10.0.1.2:80".parse().unwrap(), TIMEOUT);
        let mut stream = self.hosts[0].run(connect).unwrap().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let sent: Vec<u8> = (0..BYTES).map(|byte| (byte * 7 % 251) as u8).collect();
        stream.write_all(&sent).unwrap();
        let mut received = vec![0; BYTES];
        stream.read_exact(&mut received).unwrap();
        assert!(received == sent);
        echo.join().unwrap();
    }

    /// Returns UDP sockets of the two hosts.
    pub fn sockets(&self) -> [UdpSocket; 2] {
        [0, 1].map(|site| {
            // Processes that other tests start hold a closed socket until they execute their program.
            let bind = || self.hosts[site].run(|| UdpSocket::bind(format!("10.0.{site}.2:7"))).unwrap();
            let mut bound = bind();
            within(Duration::from_secs(2), || {
                let in_use = bound.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
                if in_use {
                    bound = bind();
                }
                !in_use
            });
            let socket = bound.unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            socket
        })
    }

    /// Returns whether a datagram from the near host arrives at the far one.
    pub fn reaches(&self, length: usize) -> bool {
        let [near, far] = self.sockets();
        let sent = vec![length as u8; length];
        if near.send_to(&sent, "10.0.1.2:7").is_err() {
            return false;
        }
        let mut received = vec![0; 1 << 16];
        matches!(far.recv(&mut received), Ok(found) if received[..found] == sent)
    }
}

/// Starts the configured router of this number in a namespace and waits until it is ready.
pub fn start_in(
    namespace: &Namespace,
    folder: &TemporaryFolder,
    number: usize,
    timeout: Duration,
) -> TestProcess {
    let mut process = TestProcess::spawn_in(namespace, router(&folder.join(format!("router{number}.toml"))));
    if !within(timeout, || query(&socket(folder, number)).is_ok()) {
        let _ = process.child().kill();
        panic!("router {number} does not respond: {}", output_text(&process.output()));
    }
    process
}

fn router(file: &Path) -> Command {
    let mut command = netstage(&["router", "run"]);
    command.arg(file).stdout(Stdio::null());
    command
}

/// Link between two TUN interfaces, until it is dropped.
pub struct TunLink {
    forwarding: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    cut: Arc<AtomicBool>,
    labeled: Arc<AtomicU32>,
}

impl TunLink {
    fn start(mut ends: [Tun; 2]) -> TunLink {
        let [stop, cut] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let labeled = Arc::new(AtomicU32::new(0));
        let (stopped, is_cut, counted) = (Arc::clone(&stop), Arc::clone(&cut), Arc::clone(&labeled));
        let forwarding = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for (near, far) in [(0, 1), (1, 0)] {
                    let mut frames = Vec::new();
                    ends[near].receive(64, &mut |received| frames.push(received.frame.to_vec())).unwrap();
                    if is_cut.load(Ordering::Relaxed) {
                        continue;
                    }
                    for frame in frames {
                        counted.fetch_add(u32::from(frame[12..14] == [0x88, 0x47]), Ordering::Relaxed);
                        assert!(ends[far].send(&frame).unwrap());
                    }
                    ends[far].flush().unwrap();
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        TunLink { forwarding: Some(forwarding), stop, cut, labeled }
    }

    /// Cuts or repairs the link. Both interfaces stay up.
    pub fn set_cut(&self, is_cut: bool) {
        self.cut.store(is_cut, Ordering::Relaxed);
    }

    /// Returns the number of forwarded packets with labels.
    pub fn labeled(&self) -> u32 {
        self.labeled.load(Ordering::Relaxed)
    }
}

impl Drop for TunLink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.forwarding.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_none_or(|ended| ended.is_ok()));
    }
}

/// Stream of datagrams from the near host to the far one.
pub struct DatagramStream {
    sending: JoinHandle<Vec<Instant>>,
    receiving: JoinHandle<Vec<u32>>,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU32>,
}

impl DatagramStream {
    /// Starts the stream, with a datagram every 0.5 ms.
    pub fn start(world: &TwoSites) -> DatagramStream {
        let [near, far] = world.sockets();
        DatagramStream::between(near, far, &["10.0.1.2:7".into()], 1)
    }

    /// Starts a stream to these addresses of the far host in turn, with five datagrams every 0.5 ms.
    pub fn start_to(world: &TwoSites, destinations: &[String]) -> DatagramStream {
        let [near, far] = world.sockets();
        drop(far);
        let far = world.hosts[1].run(|| UdpSocket::bind("0.0.0.0:7")).unwrap().unwrap();
        far.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        DatagramStream::between(near, far, destinations, 5)
    }

    fn between(near: UdpSocket, far: UdpSocket, destinations: &[String], burst: usize) -> DatagramStream {
        // Room for all datagrams, as the receiver may not run for a second on a busy machine.
        setsockopt(&far, sockopt::RcvBufForce, &(16 << 20)).unwrap();
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let ended = Arc::clone(&stop);
        let destinations: Vec<SocketAddr> = destinations.iter().map(|to| to.parse().unwrap()).collect();
        let sending = std::thread::spawn(move || {
            let mut sent_at = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                for _ in 0..burst {
                    let number = sent_at.len();
                    let to = destinations[number % destinations.len()];
                    sent_at.push(Instant::now());
                    near.send_to(&(number as u32).to_be_bytes(), to).unwrap();
                }
                counted.store(sent_at.len() as u32, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(500));
            }
            sent_at
        });
        let receiving = std::thread::spawn(move || {
            let (mut numbers, mut bytes) = (Vec::new(), [0; 4]);
            // On a busy machine, the sender may pause for longer than the timeout.
            loop {
                match (far.recv(&mut bytes), ended.load(Ordering::Relaxed)) {
                    (Ok(_), _) => numbers.push(u32::from_be_bytes(bytes)),
                    (Err(_), true) => return numbers,
                    (Err(_), false) => {}
                }
            }
        });
        DatagramStream { sending, receiving, stop, sent }
    }

    /// Returns the number of datagrams sent.
    pub fn sent(&self) -> u32 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Ends the stream.
    pub fn end(self) -> StreamEnd {
        self.stop.store(true, Ordering::Relaxed);
        let sent_at = self.sending.join().unwrap();
        let received: BTreeSet<u32> = self.receiving.join().unwrap().into_iter().collect();
        let sent = sent_at.len() as u32;
        let lost: Vec<u32> = (0..sent).filter(|number| !received.contains(number)).collect();
        let time = |number: &u32| sent_at[*number as usize];
        let outage = lost.first().zip(lost.last()).map(|(first, last)| time(last) - time(first));
        StreamEnd { sent, lost, outage: outage.unwrap_or_default() }
    }
}

/// Result of a stream.
pub struct StreamEnd {
    /// Number of datagrams sent.
    pub sent: u32,
    /// Numbers of lost datagrams.
    pub lost: Vec<u32>,
    /// Time between the first and the last lost datagram.
    pub outage: Duration,
}

impl StreamEnd {
    /// Prints what a cut link cost.
    pub fn print(&self) {
        let outage_ms = 1e3 * self.outage.as_secs_f64();
        println!("a cut link cost {} of {} packets, {outage_ms:.1} ms", self.lost.len(), self.sent);
    }
}

pub fn socket(folder: &TemporaryFolder, site: usize) -> PathBuf {
    folder.join(format!("router{site}.sock"))
}

pub fn state(folder: &TemporaryFolder, site: usize) -> RouterState {
    query(&socket(folder, site)).unwrap()
}

pub fn interfaces(folder: &TemporaryFolder, site: usize) -> Vec<RouterInterface> {
    state(folder, site).interfaces
}

/// Returns an interface of a router.
pub fn interface(folder: &TemporaryFolder, site: usize, name: &str) -> RouterInterface {
    interfaces(folder, site).into_iter().find(|interface| interface.name == name).unwrap()
}

/// Returns the route with this prefix.
pub fn route(folder: &TemporaryFolder, site: usize, prefix: &str) -> Option<RouteState> {
    let mut found = None;
    routes(&socket(folder, site), &RouteFilter::default(), &mut |route| {
        if route.prefix == prefix {
            found = Some(route);
        }
        Ok(())
    })
    .unwrap();
    found
}

pub fn label(folder: &TemporaryFolder, site: usize, number: u32) -> Option<LabelState> {
    let mut found = None;
    labels(&socket(folder, site), Some(number), &mut |label| {
        found = Some(label);
        Ok(())
    })
    .unwrap();
    found
}

pub fn counted(state: &RouterState, path: &str, name: &str) -> u64 {
    let count = state.counters.iter().find(|count| count.path == path && count.name == name);
    count.unwrap_or_else(|| panic!("no counter {path} {name}")).packets
}
