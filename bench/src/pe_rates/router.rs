//! The routers that are measured: one port with all customers, one to the core.

use netstage_core::edge::{Prefix, Settings, TICK};
use netstage_core::fair::Control;
use netstage_host::clock::Epoch;
use netstage_pe::engine::config::{Circuit, Config, Destination, Encapsulation, Flow, Peer, Port, Side, Vpn};
use netstage_wire::ethernet::Mac;
use netstage_wire::mpls::Label;

pub const CUSTOMER: Mac = [2, 0, 0, 0, 0, 1];
pub const CORE: Mac = [2, 0, 0, 0, 0, 2];

/// Two VLANs tell so many circuits apart.
pub fn vlans(flow: u32) -> [u16; 2] {
    [(1 + flow / 4000) as u16, (1 + flow % 4000) as u16]
}

/// The ingress, side 0, or the egress.
pub fn config(side: u8, udp: bool, flows: u32, control: &Control) -> Config {
    let label = |side: u8, flow: u32| Label::new(1000 + u32::from(side) * 500_000 + flow).unwrap();
    let prefix = |last| Prefix::new([10, 0, last, 0].into(), 24).unwrap();
    let address = |side: u8| [192, 0, 2, side].into();
    let encapsulation = match udp {
        true => {
            Encapsulation::MplsInUdp { local: address(side), remote: address(1 - side), has_checksum: false }
        }
        false => Encapsulation::Mpls { push: Label::new(100), accept: Label::new(100) },
    };
    Config {
        ports: vec![
            Port { name: "customers".into(), mac: CUSTOMER, side: Side::Customer },
            Port { name: "core".into(), mac: CORE, side: Side::Core },
        ],
        peers: vec![Peer {
            name: "far".into(),
            port: "core".into(),
            next_hop: Some(CORE),
            encapsulation,
            mtu: 1600,
            clamp_segment_size: true,
            keys: None,
        }],
        vpns: (0..flows)
            .map(|flow| Vpn {
                name: format!("v{flow}"),
                routes: vec![
                    (prefix(side), Destination::Circuit(format!("c{flow}"))),
                    (prefix(1 - side), Destination::Peer("far".into())),
                ],
                flows: vec![Flow {
                    peer: "far".into(),
                    send: label(1 - side, flow),
                    receive: label(side, flow),
                    settings: Settings { control: control.clone(), ..Settings::default() },
                }],
                address_v4: None,
                address_v6: None,
            })
            .collect(),
        references: Vec::new(),
        circuits: (0..flows)
            .map(|flow| Circuit {
                name: format!("c{flow}"),
                vpn: format!("v{flow}"),
                port: "customers".into(),
                vlans: vlans(flow).into(),
                select: None,
                station: Some(CUSTOMER),
                addresses: Vec::new(),
                mtu: 1500,
            })
            .collect(),
        buffers: 65_536,
        epoch: Epoch(0),
        epoch_unix_ns: 1_795_255_703_000_000_000,
        tick: TICK,
        session_seed: 1,
    }
}
