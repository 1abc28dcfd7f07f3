//! PeEngine of the provider edge with frames from customers and from the core: no buffer is lost, and every
//! delivered frame is whole and belongs to an existing circuit.
//!
//! Input: records of side (one bit), elapsed milliseconds, length (two bytes) and frame.

use netstage_core::edge::TICK;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_host::ports::{self, ReceivedFrame};
use netstage_pe::engine::host_properties::{HostInterface, HostProperties, PeerProperties};
use netstage_pe::engine::{Keys, PeEngine};
use netstage_pe::private_key::PrivateKey;
use netstage_scenario::pe::{self, PeConfig};
use netstage_wire::{ethernet, ip};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::LazyLock;

const CORE: usize = 0;
const CUSTOMERS: usize = 1;

#[derive(Default)]
struct Memory {
    waiting: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

impl ports::FramePort for Memory {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(ReceivedFrame<'_>)) -> io::Result<usize> {
        let count = limit.min(self.waiting.len());
        self.waiting.drain(..count).for_each(|frame| each(ReceivedFrame { frame: &frame, at_ns: u64::MAX }));
        Ok(count)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        self.sent.push(frame.to_vec());
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<usize> {
        Ok(0)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn missed(&mut self) -> u64 {
        0
    }
}

const PEERS: usize = 5;

/// One VPN per path through the core, with the same addresses: VLAN and labels distinguish them. The first VPN
/// is a reference of this router, and the others follow references published by two peers.
const CONFIGURATION: &str = r#"
[pe]
core = ["core"]
buffers = "24 packets"
private_key = "pe.key"

[peer.peer0]
trusted = true
tunnel = { kind = "mpls", next_hop = "192.0.2.9", push = 100, accept = 101 }
[peer.peer1]
trusted = true
tunnel = { kind = "mpls-in-udp", from = "192.0.2.1", to = "192.0.2.2" }
[peer.peer2]
trusted = true
tunnel = { kind = "mpls-in-udp", from = "2001:db8::1", to = "2001:db8::3", checksum = true }
[peer.peer3]
trusted = true
tunnel = { kind = "mpls-in-udp", from = "192.0.2.1", to = "192.0.2.4" }
[peer.peer4]
encryption = { public_key = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=" }
tunnel = { kind = "mpls-in-udp", from = "192.0.2.1", to = "192.0.2.5" }

[reference.a]
number = 7
from = "peer1"
[reference.b]
number = 8
from = "peer0"
[reference.c]
number = 9
flow = { vpn = "vpn0", peer = "peer0" }
publish_to = ["peer1", "peer3"]
"#;

static ROUTER: LazyLock<PeConfig> = LazyLock::new(|| {
    let mut text = CONFIGURATION.to_owned();
    for number in 0..PEERS {
        let control =
            [", decrease = 0.1", ", reference = \"b\"", ", reference = \"a\"", ", reference = \"b\"", ""]
                [number];
        text += &format!(
            r#"
            [vpn.vpn{number}.peer.peer{number}]
            send = {}
            receive = {}
            routes = ["10.0.1.0/24", "fd00:1::/32"]
            control = {{ kind = "i2vfc", queue = "8 packets"{control} }}
            [circuit.circuit{number}]
            vpn = "vpn{number}"
            interface = "customers"
            vlan = {}
            mac = "02:00:00:00:00:04"
            address = ["10.0.0.254/24", "fd00::fe/32"]
            "#,
            2000 + number,
            1000 + number,
            100 + number,
        );
    }
    pe::parse("pe.toml", &text).expect("the configuration is valid")
});

fn machine() -> HostProperties {
    let interfaces = [("core", [2, 0, 0, 0, 0, 2]), ("customers", [2, 0, 0, 0, 0, 1])];
    let mut peers = vec![PeerProperties::default(); PEERS];
    // Authenticated: messages are rejected at the digest.
    peers[3].keys = Keys::new(1, &[(1, b"key".to_vec())]);
    peers[4].private_key = Some(PrivateKey::new([7; 32]));
    HostProperties {
        interfaces: interfaces.map(|(name, mac)| (name.into(), HostInterface { mac, mtu: 1500 })).into(),
        peers,
        epoch: Epoch(0),
        epoch_unix_ns: 1_795_255_703_000_000_000,
        tick: TICK,
        session_seed: 1,
    }
}

pub fn run(bytes: &[u8]) {
    let mut engine = PeEngine::new(&ROUTER, &machine(), vec![Memory::default(), Memory::default()]).unwrap();
    (0..PEERS).for_each(|peer| engine.set_peer_route(peer, Some((CORE, [2, 0, 0, 0, 0, 3], 1500))));
    let buffers = engine.free_buffers();
    let (mut now, mut rest) = (Instant(1_000_000_000), bytes);
    while let Some((&[side, ahead, low, high], after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([low, high])).min(after.len());
        let (frame, after) = after.split_at(length);
        rest = after;
        now += Duration::from_millis(ahead.into());
        let port = if side & 1 == 1 { CORE } else { CUSTOMERS };
        engine.port_mut(port).waiting.push_back(frame.to_vec());
        while engine.turn(now).more {}

        let waiting: usize = engine.flows().map(|flow| flow.queue_len()).sum();
        assert_eq!(engine.free_buffers() + waiting, buffers);
        for window in engine.flows().filter_map(|flow| flow.window().map(|window| window.window())) {
            assert!(window.is_finite() && window >= 1.0);
        }
        for frame in engine.port_mut(CUSTOMERS).sent.drain(..) {
            let view = ethernet::View::new(&frame).expect("a frame");
            let vlans: Vec<u16> = view.tags().map(|tag| tag.vlan).collect();
            assert!(matches!(vlans[..], [100..=104]), "{vlans:?}");
            ip::View::new(view.payload()).expect("a packet");
        }
        engine.port_mut(CORE).sent.clear();
    }
}
