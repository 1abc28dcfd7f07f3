//! Cost of the router's forwarding decision: packets in memory, one core, without ports or kernel.
//!
//! ```text
//! cargo run --release -p netstage-bench --bin forward_rates
//! ```
//! Packets lie in the cache, as after reception by a network card, and go to all networks in scattered order. Each is checked, looked up and modified for transmission; the preparation of packets is not timed.

use netstage_core::forward::lpm::{Lpm, LpmShape, own_memory};
use netstage_core::forward::{
    BufferedPacket, Forwarder, ForwardingTarget, ForwardingVerdict, Hop, IncomingInterface, IncomingLabel,
    LabelOperation, PacketProtocol, RoutingTable, TunnelModel,
};
use netstage_wire::ip::v4;
use netstage_wire::mpls::{ENTRY, LabelStackEntry, LabelValue};
use std::sync::atomic::AtomicU32;
use std::time::Instant;

/// Number of destination networks, and the first of them: 11.0.0.0/24.
const NETWORKS: u32 = 50_000;
const FIRST: u32 = 11 << 24;
/// Label of received packets.
const LABEL: u32 = 300;
/// Packets that are prepared and timed together, and the memory of each.
const PACKETS: usize = 4096;
const SLOT: usize = 64;
const HEADROOM: usize = 16;
const PASSES: usize = 2000;
const ROUNDS: usize = 7;

fn main() {
    println!("one core, {NETWORKS} routes, packets of 48 bytes");
    for (name, kind, labels) in [
        ("IPv4", PacketProtocol::V4, &[][..]),
        ("PUSH", PacketProtocol::V4, &[400][..]),
        ("SWAP", PacketProtocol::Mpls, &[400][..]),
        ("POP", PacketProtocol::Mpls, &[][..]),
    ] {
        let router = router(labels, name == "POP");
        let mut rates: Vec<f64> = (0..ROUNDS).map(|_| rate(&router, kind)).collect();
        rates.sort_by(f64::total_cmp);
        let (min, median, max) = (rates[0], rates[ROUNDS / 2], rates[ROUNDS - 1]);
        println!("{name:<6}{:>7.1} Mpps  ({:.1} to {:.1})", median / 1e6, min / 1e6, max / 1e6);
    }
}

fn router(labels: &[u32], pops: bool) -> Forwarder<Vec<AtomicU32>> {
    let lpm = |first| {
        let shape = LpmShape { first, rows: 16 };
        Lpm::new(shape, own_memory(shape))
    };
    let table = RoutingTable { v4: lpm(24), v6: lpm(16) };
    let mut router = Forwarder::new(
        vec![table],
        vec![IncomingInterface { mpls: true, ..IncomingInterface::default() }; 2],
        1,
    );
    let labels: Vec<LabelValue> = labels.iter().filter_map(|number| LabelValue::new(*number)).collect();
    let hop = router.add_hop(Hop::new(1, 1500, &labels, TunnelModel::Uniform).expect("few labels"));
    let target = router.add_target(ForwardingTarget::Hops(vec![hop]));
    for network in 0..NETWORKS {
        let address = u128::from(FIRST + (network << 8)) << 96;
        router.table_mut(0).v4.insert(address, 24, target).expect("the table has room");
    }
    let action = if pops { LabelOperation::Pop { table: 0 } } else { LabelOperation::Swap { target } };
    let incoming = IncomingLabel { action, model: TunnelModel::Uniform, expected: u64::MAX };
    router.assign_label(LabelValue::new(LABEL).expect("a label"), incoming).expect("not reserved");
    router
}

/// Returns packets per second.
fn rate(router: &Forwarder<Vec<AtomicU32>>, kind: PacketProtocol) -> f64 {
    let mut slots = vec![[0; SLOT]; PACKETS];
    let (mut network, mut nanoseconds) = (0, 0);
    for _ in 0..PASSES {
        slots.iter_mut().for_each(|slot| prepare(slot, kind, &mut network));
        let start = Instant::now();
        let mut sent = 0;
        for slot in &mut slots {
            let mut packet = BufferedPacket { bytes: slot, start: HEADROOM, kind };
            sent += usize::from(matches!(router.forward(&mut packet, 0), ForwardingVerdict::Send { .. }));
        }
        nanoseconds += start.elapsed().as_nanos();
        assert_eq!(sent, PACKETS, "all packets are sent");
    }
    (PACKETS * PASSES) as f64 * 1e9 / nanoseconds as f64
}

fn prepare(slot: &mut [u8; SLOT], kind: PacketProtocol, network: &mut u32) {
    // Close to the golden ratio, and coprime to the number of networks.
    *network = (*network + NETWORKS * 5 / 8 + 1) % NETWORKS;
    let mut start = HEADROOM;
    if kind == PacketProtocol::Mpls {
        let label = LabelValue::new(LABEL).expect("a label");
        let entry = LabelStackEntry { label, traffic_class: 0, bottom: true, ttl: 64 };
        slot[start..start + ENTRY].copy_from_slice(&entry.to_bytes());
        start += ENTRY;
    }
    let header = v4::Header {
        protocol: 17,
        source: [10, 0, 0, 2].into(),
        destination: (FIRST + (*network << 8) + 1).into(),
        ..v4::Header::default()
    };
    let payload = SLOT - start - v4::HEADER;
    header.write(&mut slot[start..], payload).expect("the slot has room");
}
