//! Cost of the router's forwarding decision: packets in memory, one core, without ports or kernel.
//!
//! ```text
//! cargo run --release -p netstage-bench --bin forward_rates
//! ```
//! Packets lie in the cache, as after reception by a network card, and go to all networks in scattered order. Each is checked, looked up and modified for transmission; the preparation of packets is not timed.

use netstage_core::forward::lpm::{Lpm, Shape, own_memory};
use netstage_core::forward::{Action, Hop, Incoming, Kind, Model, Packet, Router, Table, Target, Verdict};
use netstage_wire::ip::v4;
use netstage_wire::mpls::{ENTRY, Entry, Label};
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
        ("IPv4", Kind::V4, &[][..]),
        ("PUSH", Kind::V4, &[400][..]),
        ("SWAP", Kind::Mpls, &[400][..]),
        ("POP", Kind::Mpls, &[][..]),
    ] {
        let router = router(labels, name == "POP");
        let mut rates: Vec<f64> = (0..ROUNDS).map(|_| rate(&router, kind)).collect();
        rates.sort_by(f64::total_cmp);
        let (min, median, max) = (rates[0], rates[ROUNDS / 2], rates[ROUNDS - 1]);
        println!("{name:<6}{:>7.1} Mpps  ({:.1} to {:.1})", median / 1e6, min / 1e6, max / 1e6);
    }
}

fn router(labels: &[u32], pops: bool) -> Router<Vec<AtomicU32>> {
    let lpm = |first| {
        let shape = Shape { first, rows: 16 };
        Lpm::new(shape, own_memory(shape))
    };
    let table = Table { v4: lpm(24), v6: lpm(16) };
    let mut router = Router::new(vec![table], vec![0, 0], 1);
    let labels: Vec<Label> = labels.iter().filter_map(|number| Label::new(*number)).collect();
    let hop = router.add_hop(Hop::new(1, 1500, &labels, Model::Uniform).expect("few labels"));
    let target = router.add_target(Target::Hops(vec![hop]));
    for network in 0..NETWORKS {
        let address = u128::from(FIRST + (network << 8)) << 96;
        router.table_mut(0).v4.insert(address, 24, target).expect("the table has room");
    }
    let action = if pops { Action::Pop { table: 0 } } else { Action::Swap { target } };
    let incoming = Incoming { action, model: Model::Uniform, expected: u64::MAX };
    router.give(Label::new(LABEL).expect("a label"), incoming).expect("not reserved");
    router
}

/// Returns packets per second.
fn rate(router: &Router<Vec<AtomicU32>>, kind: Kind) -> f64 {
    let mut slots = vec![[0; SLOT]; PACKETS];
    let (mut network, mut nanoseconds) = (0, 0);
    for _ in 0..PASSES {
        slots.iter_mut().for_each(|slot| prepare(slot, kind, &mut network));
        let start = Instant::now();
        let mut sent = 0;
        for slot in &mut slots {
            let mut packet = Packet { bytes: slot, start: HEADROOM, kind };
            sent += usize::from(matches!(router.forward(&mut packet, 0), Verdict::Send { .. }));
        }
        nanoseconds += start.elapsed().as_nanos();
        assert_eq!(sent, PACKETS, "all packets are sent");
    }
    (PACKETS * PASSES) as f64 * 1e9 / nanoseconds as f64
}

fn prepare(slot: &mut [u8; SLOT], kind: Kind, network: &mut u32) {
    // Close to the golden ratio, and coprime to the number of networks.
    *network = (*network + NETWORKS * 5 / 8 + 1) % NETWORKS;
    let mut start = HEADROOM;
    if kind == Kind::Mpls {
        let label = Label::new(LABEL).expect("a label");
        let entry = Entry { label, traffic_class: 0, bottom: true, ttl: 64 };
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
