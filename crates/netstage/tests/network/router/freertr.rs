//! RSVP-TE with another implementation: freeRtr is the router in the middle of the row.

use crate::router::network::{TIMEOUT, socket};
use crate::router::rsvp::Row;
use crate::support::{TestProcess, project, within};
use netstage_harness::{needs, skip};
use netstage_host::netns::Namespace;
use netstage_host::ports::FramePort as _;
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use netstage_router::daemon::reload;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Frames of freeRtr's two interfaces, by UDP ports of its namespace.
const HARDWARE: &str = "hwid a\n\
    int eth1 eth 0200.0000.0021 127.0.0.1 26111 127.0.0.1 26121\n\
    int eth2 eth 0200.0000.0022 127.0.0.1 26112 127.0.0.1 26122\n";
const SOFTWARE: &str = "hostname a\nvrf definition v1\n rd 1:1\n exit\n\
    interface ethernet1\n vrf forwarding v1\n ipv4 address 10.1.0.2 255.255.255.0\n mpls enable\n mpls rsvp4\n\
    no shutdown\n exit\n\
    interface ethernet2\n vrf forwarding v1\n ipv4 address 10.1.1.2 255.255.255.0\n mpls enable\n mpls rsvp4\n\
    no shutdown\n exit\n\
    ipv4 route v1 10.255.0.0 255.255.255.255 10.1.0.1\nipv4 route v1 10.255.0.1 255.255.255.255 10.1.1.1\n\
    interface tunnel1\n tunnel source ethernet2\n tunnel destination 10.1.1.1\n tunnel vrf v1\n tunnel mode p2pte\n\
    vrf forwarding v1\n ipv4 address 10.9.2.1 255.255.255.252\n no shutdown\n exit\n";
const SLOW: &str = "fast_path = \"off\"";
const EAST: &str = "[rsvp.tunnel.east]\nto = \"10.255.0.1\"\nroute = [\"10.1.0.2\", \"10.1.1.1\"]\n\
                    prefixes = [\"10.0.1.0/24\"]\n";
const MIDDLE: &str = "[rsvp.tunnel.middle]\nto = \"10.1.0.2\"\nroute = [\"10.1.0.2\"]\n";
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
    _process: TestProcess,
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
        FreeRtr { _process: process, bridge: Some(bridge), stop }
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

fn lsps_lead_through_to_and_from_freertr() {
    let row = Row::without_middle("router-freertr");
    let _peer = FreeRtr::start(&row);
    row.configure(0, [SLOW, ""], &format!("{EAST}{MIDDLE}"));
    row.configure(1, [SLOW, ""], WEST);
    let _routers = [0, 1].map(|site| row.start(site));
    let are_up = |site: usize| row.tunnels(site).iter().all(|tunnel| tunnel.lsp.is_some());
    let tunnels = || (row.tunnels(0), row.tunnels(1));
    assert!(within(TIMEOUT * 3, || are_up(0) && are_up(1)), "{:?}", tunnels());
    assert!(within(TIMEOUT, || row.world.reaches(1000)), "{:?}", tunnels());
    let peer = Ipv4Addr::new(10, 1, 1, 2);
    let from_peer = || row.lsps(1).iter().any(|lsp| lsp.from == peer && lsp.is_reserved);
    assert!(within(TIMEOUT, from_peer), "{:?}", row.lsps(1));
    // The state is refreshed.
    std::thread::sleep(Duration::from_secs(10));
    assert!(are_up(0) && are_up(1), "{:?}", tunnels());
    // A removed LSP is torn down behind freeRtr, too.
    let near = Ipv4Addr::new(10, 255, 0, 0);
    let from_near = || row.lsps(1).iter().any(|lsp| lsp.from == near);
    assert!(from_near(), "{:?}", row.lsps(1));
    row.configure(0, [SLOW, ""], MIDDLE);
    assert_eq!(reload(&socket(&row.folder, 0)).unwrap(), ["tunnel east removed"]);
    assert!(within(TIMEOUT, || !from_near()), "{:?}", row.lsps(1));
}

netstage_harness::tests![lsps_lead_through_to_and_from_freertr];
