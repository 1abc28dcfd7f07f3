//! RSVP-TE and BFD with another implementation: freeRtr is the router in the middle of the row.

use crate::router::network::{TIMEOUT, socket, state};
use crate::router::rsvp::Row;
use crate::support::{TestProcess, project, within};
use netstage_harness::{needs, skip};
use netstage_host::netns::Namespace;
use netstage_host::ports::FramePort as _;
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use netstage_router::daemon::reload;
use netstage_router::daemon::state::TunnelState;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Frames of freeRtr's two interfaces, by UDP ports of its namespace.
const HARDWARE: &str = "hwid a\n\
    int eth1 eth 0200.0000.0021 127.0.0.1 26111 127.0.0.1 26121\n\
    int eth2 eth 0200.0000.0022 127.0.0.1 26112 127.0.0.1 26122\n";
const SOFTWARE: &str = "hostname a\nvrf definition v1\n rd 1:1\n exit\n\
    interface ethernet1\n vrf forwarding v1\n ipv4 address 10.1.0.2 255.255.255.0\n mpls enable\n mpls rsvp4\n\
    ipv4 bfd 100 100 3\n no shutdown\n exit\n\
    tracker bfd\n vrf v1\n target 10.1.0.1\n mode bfd\n interval 1000\n timeout 500\n start\n exit\n\
    interface ethernet2\n vrf forwarding v1\n ipv4 address 10.1.1.2 255.255.255.0\n mpls enable\n mpls rsvp4\n\
    no shutdown\n exit\n\
    ipv4 route v1 10.255.0.0 255.255.255.255 10.1.0.1\nipv4 route v1 10.255.0.1 255.255.255.255 10.1.1.1\n\
    interface tunnel1\n tunnel source ethernet2\n tunnel destination 10.1.1.1\n tunnel vrf v1\n tunnel mode p2pte\n\
    vrf forwarding v1\n ipv4 address 10.9.2.1 255.255.255.252\n no shutdown\n exit\n";
const SLOW: &str = "fast_path = \"off\"";
const EAST: &str = "[rsvp.tunnel.east]\nto = \"10.255.0.1\"\nroute = [\"10.1.0.2\", \"10.1.1.1\"]\n\
                    prefixes = [\"10.0.1.0/24\"]\n";
const MIDDLE: &str = "[rsvp.tunnel.middle]\nto = \"10.1.0.2\"\nroute = [\"10.1.0.2\"]\n";
/// The last hop is not a neighbor of the far router.
const REFUSED: &str =
    "[rsvp.tunnel.refused]\nto = \"10.255.0.1\"\nroute = [\"10.1.0.2\", \"10.1.1.1\", \"10.99.0.1\"]\n";
const BFD: &str = "[bfd]\nneighbors = [\"10.1.0.2\"]\ninterval = \"50 ms\"\n";
const WEST: &str = "[rsvp.tunnel.west]\nto = \"10.255.0.0\"\nroute = [\"10.1.1.2\", \"10.1.0.1\"]\n\
                    prefixes = [\"10.0.0.0/24\"]\n";

/// Returns the folder with freeRtr's archive.
fn folder() -> PathBuf {
    needs::program("java", "default-jre-headless");
    let named = std::env::var_os("NETSTAGE_FREERTR").map(PathBuf::from);
    let folder = named.unwrap_or_else(|| project().join("../shared/peers/freertr"));
    if !folder.join("rtr.jar").exists() {
        skip("set NETSTAGE_FREERTR to a folder with freeRtr's rtr.jar");
    }
    folder
}

/// freeRtr in a namespace, with its frames carried to the interfaces site0 and site1.
struct FreeRtr {
    process: TestProcess,
    bridge: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl FreeRtr {
    fn start(row: &Row) -> FreeRtr {
        let archive = folder().join("rtr.jar");
        let (hardware, software) = (row.folder.join("hw.txt"), row.folder.join("sw.txt"));
        std::fs::write(&hardware, HARDWARE).unwrap();
        std::fs::write(&software, SOFTWARE).unwrap();
        let mut command = Command::new("java");
        command.arg("-Xmx256m").arg("-jar").arg(archive).arg("routers").arg(hardware).arg(software);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir(&*row.folder);
        let process = TestProcess::spawn_in(&row.middle, command);
        let stop = Arc::new(AtomicBool::new(false));
        let links = [0, 1].map(|link| Link::open(&row.middle, link));
        let stopped = Arc::clone(&stop);
        let bridge = std::thread::spawn(move || {
            let mut links = links;
            while !stopped.load(Ordering::Relaxed) {
                links.iter_mut().for_each(Link::carry);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        FreeRtr { process, bridge: Some(bridge), stop }
    }
}

impl Drop for FreeRtr {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.bridge.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_none_or(|ended| ended.is_ok()));
    }
}

struct Link {
    frames: AfPacket,
    udp: UdpSocket,
}

impl Link {
    fn open(namespace: &Namespace, link: u16) -> Link {
        let frames = AfPacket::open(namespace, &format!("site{link}"), AfPacketOptions::default()).unwrap();
        let bind = || UdpSocket::bind(("127.0.0.1", 26121 + link));
        let udp = namespace.run(bind).unwrap().unwrap();
        udp.connect(("127.0.0.1", 26111 + link)).unwrap();
        udp.set_nonblocking(true).unwrap();
        Link { frames, udp }
    }

    fn carry(&mut self) {
        let Link { frames, udp } = self;
        // freeRtr refuses datagrams until it has started.
        frames.receive(64, &mut |received| drop(udp.send(received.frame))).unwrap();
        let mut bytes = [0; 2048];
        while let Ok(length) = udp.recv(&mut bytes) {
            frames.send(&bytes[..length]).unwrap();
        }
        frames.flush().unwrap();
    }
}

/// Three routers with LSPs of all roles of freeRtr.
struct Peered {
    row: Row,
    peer: FreeRtr,
    _routers: [TestProcess; 2],
}

impl Peered {
    fn start(name: &str) -> Peered {
        let row = Row::without_middle(name);
        let peer = FreeRtr::start(&row);
        row.configure(0, [SLOW, ""], &format!("{EAST}{MIDDLE}{BFD}"));
        row.configure(1, [SLOW, ""], WEST);
        let _routers = [0, 1].map(|site| row.start(site));
        let peered = Peered { row, peer, _routers };
        assert!(within(TIMEOUT * 3, || peered.are_up()), "{:?}", peered.tunnels());
        assert!(within(TIMEOUT, || peered.row.world.reaches(1000)), "{:?}", peered.tunnels());
        assert!(within(TIMEOUT, || peered.has_lsp_of_peer()), "{:?}", peered.row.lsps(1));
        peered
    }

    fn tunnels(&self) -> [Vec<TunnelState>; 2] {
        [0, 1].map(|site| self.row.tunnels(site))
    }

    fn are_up(&self) -> bool {
        self.tunnels().iter().flatten().all(|tunnel| tunnel.lsp.is_some())
    }

    /// Returns whether freeRtr's own tunnel is established.
    fn has_lsp_of_peer(&self) -> bool {
        let peer = Ipv4Addr::new(10, 1, 1, 2);
        self.row.lsps(1).iter().any(|lsp| lsp.from == peer && lsp.is_reserved)
    }

    fn reload(&self, tables: &str) -> Vec<String> {
        self.row.configure(0, [SLOW, ""], tables);
        reload(&socket(&self.row.folder, 0)).unwrap()
    }
}

fn lsps_lead_through_to_and_from_freertr() {
    let peered = Peered::start("router-freertr");
    let row = &peered.row;
    // The state is refreshed.
    std::thread::sleep(Duration::from_secs(10));
    assert!(peered.are_up(), "{:?}", peered.tunnels());
    // Another bandwidth: the LSP is replaced.
    let before = row.tunnels(0)[0].lsp;
    let wider = EAST.replace("prefixes", "bandwidth = \"2 Mbit/s\"\nprefixes");
    assert_eq!(peered.reload(&format!("{wider}{MIDDLE}{BFD}")), ["tunnel east changed"]);
    row.wait_for_lsp(0, before);
    assert!(within(TIMEOUT, || row.world.reaches(1000)), "{:?}", peered.tunnels());
    // The error of the far router comes back through freeRtr.
    assert_eq!(peered.reload(&format!("{wider}{MIDDLE}{REFUSED}{BFD}")), ["tunnel refused added"]);
    let failure = || row.tunnels(0).into_iter().find_map(|tunnel| tunnel.failure);
    let reason = "10.255.0.1 reports: the explicit route is invalid";
    let is_named = || failure().is_some_and(|failure| failure.starts_with(reason));
    assert!(within(TIMEOUT, is_named), "{:?}", peered.tunnels());
    // A removed LSP is torn down behind freeRtr, too.
    let near = Ipv4Addr::new(10, 255, 0, 0);
    let from_near = || row.lsps(1).iter().any(|lsp| lsp.from == near);
    assert!(from_near(), "{:?}", row.lsps(1));
    let mut removed = peered.reload(&format!("{MIDDLE}{BFD}"));
    removed.sort();
    assert_eq!(removed, ["tunnel east removed", "tunnel refused removed"]);
    assert!(within(TIMEOUT, || !from_near()), "{:?}", row.lsps(1));
}

fn bfd_detects_that_freertr_is_silent() {
    let mut peered = Peered::start("router-freertr-bfd");
    let session = |peered: &Peered| state(&peered.row.folder, 0).bfd.remove(0);
    assert!(within(TIMEOUT, || session(&peered).state == "up"), "{:?}", session(&peered));
    // The intervals of both: freeRtr's 100 ms are longer.
    assert!(within(TIMEOUT, || session(&peered).detection_us == Some(300_000)), "{:?}", session(&peered));
    peered.peer.process.signal("-STOP");
    assert!(within(TIMEOUT, || session(&peered).state != "up"), "{:?}", session(&peered));
    assert!(within(TIMEOUT, || peered.row.tunnels(0).iter().all(|tunnel| tunnel.lsp.is_none())));
    peered.peer.process.signal("-CONT");
    assert!(within(TIMEOUT, || session(&peered).state == "up"), "{:?}", session(&peered));
    assert!(within(TIMEOUT * 3, || peered.are_up()), "{:?}", peered.tunnels());
}

/// No LSP is replaced in two hours, in which its state is refreshed every two seconds, and by freeRtr.
fn lsps_stay_up_for_hours_of_refreshes() {
    const TIME: Duration = Duration::from_hours(2);
    let peered = Peered::start("router-freertr-hours");
    let lsps = || peered.tunnels().map(|tunnels| tunnels.iter().map(|tunnel| tunnel.lsp).collect::<Vec<_>>());
    let (first, start) = (lsps(), Instant::now());
    while start.elapsed() < TIME {
        std::thread::sleep(Duration::from_secs(10));
        assert_eq!(lsps(), first, "after {:?}", start.elapsed());
        assert!(peered.has_lsp_of_peer(), "after {:?}", start.elapsed());
    }
    assert!(peered.row.world.reaches(1000));
}

netstage_harness::tests![
    lsps_lead_through_to_and_from_freertr,
    bfd_detects_that_freertr_is_silent,
    #[ignore = "takes two hours"]
    lsps_stay_up_for_hours_of_refreshes,
];
