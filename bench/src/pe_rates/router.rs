//! Configuration of the measured routers: one port with all customers, one to the core.

use netstage_core::edge::TICK;
use netstage_core::fair::VpnControl;
use netstage_host::clock::Epoch;
use netstage_host::ports::FramePort;
use netstage_pe::engine::PeEngine;
use netstage_pe::engine::host_properties::{HostInterface, HostProperties, PeerProperties};
use netstage_scenario::pe::{self, CircuitConfig, PeConfig, PeVpnConfig, VpnFlowConfig};
use netstage_wire::ethernet::Mac;
use netstage_wire::mpls::LabelValue;

pub const CUSTOMER: Mac = [2, 0, 0, 0, 0, 1];
pub const CORE: Mac = [2, 0, 0, 0, 0, 2];
/// Index of the customers' port, after that of the core.
pub const CUSTOMERS: usize = 1;

/// Configuration of both sides, with templates for flows and circuits.
const CONFIGURATION: &str = r#"
[pe]
core = ["core"]
buffers = "65536 packets"
[peer.far]
trusted = true
tunnel = { TUNNEL }
[vpn.v.peer.far]
control = "i2vfc"
send = 16
receive = 17
routes = ["10.0.FAR.0/24"]
[circuit.c]
vpn = "v"
interface = "customers"
mac = "02:00:00:00:00:01"
address = "10.0.NEAR.254/24"
mtu = "1500 B"
"#;

/// Returns the two VLANs that identify a circuit.
pub fn vlans(flow: u32) -> [u16; 2] {
    [(1 + flow / 4000) as u16, (1 + flow % 4000) as u16]
}

/// Creates the engine of the ingress (side 0) or egress (side 1).
pub fn engine<P: FramePort>(
    side: u8,
    udp: bool,
    (flows, control): (u32, &VpnControl),
    epoch: Epoch,
    [core, customers]: [P; 2],
) -> PeEngine<P> {
    let interfaces = [("core", CORE), ("customers", CUSTOMER)];
    let machine = HostProperties {
        interfaces: interfaces.map(|(name, mac)| (name.into(), HostInterface { mac, mtu: 1600 })).into(),
        peers: vec![PeerProperties::default()],
        epoch,
        epoch_unix_ns: 1_795_255_703_000_000_000,
        tick: TICK,
        session_seed: 1,
    };
    let router = router(side, udp, flows, control);
    let mut engine = PeEngine::new(&router, &machine, vec![core, customers]).unwrap();
    engine.set_peer_route(0, Some((0, CORE, 1600)));
    engine
}

fn router(side: u8, udp: bool, flows: u32, control: &VpnControl) -> PeConfig {
    let far = 1 - side;
    let tunnel = match udp {
        true => format!(r#"kind = "mpls-in-udp", from = "192.0.2.{}", to = "192.0.2.{}""#, 1 + side, 1 + far),
        false => r#"kind = "mpls", next_hop = "192.0.2.9", push = 100, accept = 100"#.into(),
    };
    let text = CONFIGURATION.replace("TUNNEL", &tunnel);
    let text = text.replace("NEAR", &side.to_string()).replace("FAR", &far.to_string());
    let mut router = pe::parse("pe.toml", &text).expect("the configuration is valid");
    let label = |side: u8, flow: u32| LabelValue::new(1000 + u32::from(side) * 500_000 + flow).unwrap();
    let mut template = router.vpns[0].flows[0].clone();
    template.settings.control = control.clone();
    let circuit = router.circuits[0].clone();
    let vpn = |flow: u32| {
        let (send, receive) = (label(far, flow), label(side, flow));
        PeVpnConfig {
            name: format!("v{flow}"),
            flows: vec![VpnFlowConfig { send, receive, ..template.clone() }],
        }
    };
    router.vpns = (0..flows).map(vpn).collect();
    let circuit = |flow: u32| {
        let (name, vlans) = (format!("c{flow}"), vlans(flow).into());
        CircuitConfig { name, vpn: flow as usize, vlans, ..circuit.clone() }
    };
    router.circuits = (0..flows).map(circuit).collect();
    router
}
