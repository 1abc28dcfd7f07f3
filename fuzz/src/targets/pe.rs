//! The provider edge's engine, given frames from customers and from the core: whatever comes, no
//! buffer is lost, and what is delivered is a whole frame of a circuit that there is.
//!
//! Input: records of side (a bit), milliseconds that pass, length (two bytes) and a frame.

use netstage_core::edge::{Prefix, Settings, TICK};
use netstage_core::fair::{self, Control};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_host::ports::{self, Received};
use netstage_pe::engine::config::{
    Circuit, Config, Destination, Encapsulation, Flow, Origin, Peer, Port, Reference, Side, Vpn,
};
use netstage_pe::engine::{Engine, Keys};
use netstage_wire::mpls::Label;
use netstage_wire::{ethernet, ip};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

#[derive(Default)]
struct Memory {
    waiting: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

impl ports::Port for Memory {
    fn receive(&mut self, limit: usize, each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let count = limit.min(self.waiting.len());
        self.waiting.drain(..count).for_each(|frame| each(Received { frame: &frame, at_ns: u64::MAX }));
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

/// The first VPN is a reference of this router's, and the others follow one of two peers tell.
fn control(number: usize) -> Control {
    let (decrease, reference) = match number {
        0 => (fair::Decrease::Fixed(0.1), fair::Config::default().reference),
        _ => (fair::Decrease::FromWeight, fair::Reference::Vpn(number % 2)),
    };
    Control::I2vfc(fair::Config { queue: 8, decrease, reference, ..fair::Config::default() })
}

/// One VPN per way through the core, with the same addresses: VLAN and labels tell them apart.
fn config() -> Config {
    let label = |number| Label::new(number).unwrap();
    let prefix = |text: &str, length| Prefix::new(text.parse().unwrap(), length).unwrap();
    let udp = |last: u8, is_v6: bool| {
        let address = |last: u8| match is_v6 {
            true => [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last].into(),
            false => [192, 0, 2, last].into(),
        };
        Encapsulation::MplsInUdp { local: address(1), remote: address(last), has_checksum: is_v6 }
    };
    let ways = [
        Encapsulation::Mpls { push: Some(label(100)), accept: Some(label(101)) },
        udp(2, false),
        udp(3, true),
        // Authenticated: messages come no further than the digest.
        udp(4, false),
    ];
    let numbered = |name: &str, number: usize| format!("{name}{number}");
    Config {
        ports: vec![
            Port { name: "customers".into(), mac: [2, 0, 0, 0, 0, 1], side: Side::Customer },
            Port { name: "core".into(), mac: [2, 0, 0, 0, 0, 2], side: Side::Core },
        ],
        peers: (0..4)
            .map(|number| Peer {
                name: numbered("peer", number),
                port: "core".into(),
                next_hop: Some([2, 0, 0, 0, 0, 3]),
                encapsulation: ways[number],
                mtu: 1500,
                clamp_segment_size: true,
                keys: (number == 3).then(|| Keys::new(1, &[(1, b"key".to_vec())]).unwrap()),
            })
            .collect(),
        vpns: (0..4)
            .map(|number| Vpn {
                name: numbered("vpn", number),
                routes: vec![
                    (prefix("10.0.0.0", 24), Destination::Circuit(numbered("circuit", number))),
                    (prefix("fd00::", 32), Destination::Circuit(numbered("circuit", number))),
                    (prefix("10.0.1.0", 24), Destination::Peer(numbered("peer", number))),
                    (prefix("fd00:1::", 32), Destination::Peer(numbered("peer", number))),
                ],
                flows: vec![Flow {
                    peer: numbered("peer", number),
                    send: label(2000 + number as u32),
                    receive: label(1000 + number as u32),
                    settings: Settings { control: control(number), ..Settings::default() },
                }],
                address_v4: Some([10, 0, 0, 254].into()),
                address_v6: Some("fd00::fe".parse().unwrap()),
            })
            .collect(),
        references: vec![
            Reference { name: "a".into(), number: 7, origin: Origin::Peer("peer1".into()) },
            Reference { name: "b".into(), number: 8, origin: Origin::Peer("peer0".into()) },
            Reference {
                name: "c".into(),
                number: 9,
                origin: Origin::Flow {
                    vpn: "vpn0".into(),
                    peer: "peer0".into(),
                    publish_to: vec!["peer1".into(), "peer3".into()],
                },
            },
        ],
        circuits: (0..4)
            .map(|number| Circuit {
                name: numbered("circuit", number),
                vpn: numbered("vpn", number),
                port: "customers".into(),
                vlans: vec![100 + number as u16],
                select: None,
                station: Some([2, 0, 0, 0, 0, 4]),
                addresses: Vec::new(),
                mtu: 1500,
            })
            .collect(),
        buffers: 24,
        epoch: Epoch(0),
        epoch_unix_ns: 1_795_255_703_000_000_000,
        tick: TICK,
        session_seed: 1,
    }
}

pub fn run(bytes: &[u8]) {
    let mut engine = Engine::new(&config(), vec![Memory::default(), Memory::default()]).unwrap();
    let buffers = engine.free_buffers();
    let (mut now, mut rest) = (Instant(1_000_000_000), bytes);
    while let Some((&[side, ahead, low, high], after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([low, high])).min(after.len());
        let (frame, after) = after.split_at(length);
        rest = after;
        now += Duration::from_millis(ahead.into());
        let core = usize::from(side & 1);
        engine.port_mut(core).waiting.push_back(frame.to_vec());
        while engine.turn(now).more {}

        let waiting: usize = engine.flows().map(|flow| flow.queue_len()).sum();
        assert_eq!(engine.free_buffers() + waiting, buffers);
        for window in engine.flows().filter_map(|flow| flow.window().map(|window| window.window())) {
            assert!(window.is_finite() && window >= 1.0);
        }
        for frame in engine.port_mut(0).sent.drain(..) {
            let view = ethernet::View::new(&frame).expect("a frame");
            let vlans: Vec<u16> = view.tags().map(|tag| tag.vlan).collect();
            assert!(matches!(vlans[..], [100..104]), "{vlans:?}");
            ip::View::new(view.payload()).expect("a packet");
        }
        engine.port_mut(1).sent.clear();
    }
}
