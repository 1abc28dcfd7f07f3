//! BGP session that receives arbitrary bytes, from its start or once established. Sent messages must be whole,
//! an error must be the last message, and accepted routes must be readable.

use netstage_core::time::{Duration, Instant};
use netstage_routing::bgp::nlri::BgpFamily;
use netstage_routing::bgp::open::OpenParameters;
use netstage_routing::bgp::receive::ReceivedRoutes;
use netstage_routing::bgp::session::{
    BgpEvent, BgpSession, BgpSettings, BgpState, BgpTransmit, ConnectionOpener,
};

const KEEPALIVE: [u8; 19] =
    [255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 19, 4];
const NOTIFICATION: u8 = 3;

fn machine(number: u8, four_octet_as: bool) -> BgpSession {
    let mut machine = BgpSession::new(BgpSettings {
        identity: OpenParameters {
            local_as: 65_000 + u32::from(number),
            peer_as: None,
            identifier: [192, 0, 2, number].into(),
            hold_time: Duration::from_secs(90),
            families: BgpFamily::ALL.to_vec(),
            four_octet_as,
        },
        connects: true,
        connect_retry: Duration::from_secs(1),
        restart: None,
    });
    machine.handle_start(Instant::ZERO);
    assert_eq!(machine.poll_transmit(), Some(BgpTransmit::Connect));
    assert!(machine.handle_connected(Instant::ZERO, ConnectionOpener::Local));
    machine
}

/// Returns the types of whole messages.
fn kinds(mut bytes: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while !bytes.is_empty() {
        assert!(bytes[..16].iter().all(|&byte| byte == 255));
        kinds.push(bytes[18]);
        bytes = &bytes[usize::from(u16::from_be_bytes([bytes[16], bytes[17]]))..];
    }
    kinds
}

pub fn run(bytes: &[u8]) {
    // Bits: established session, two-byte AS numbers, and the size of pieces.
    let Some((&mode, bytes)) = bytes.split_first() else { return };
    let mut tested = machine(1, mode & 2 == 0);
    let mut sent = Vec::new();
    if mode & 1 == 1 {
        let Some(BgpTransmit::Bytes(_, open)) = machine(2, true).poll_transmit() else { unreachable!() };
        tested.handle_bytes(Instant::ZERO, ConnectionOpener::Local, &open);
        tested.handle_bytes(Instant::ZERO, ConnectionOpener::Local, &KEEPALIVE);
        assert_eq!(tested.state(), BgpState::Established);
    }
    for piece in bytes.chunks(1 + usize::from(mode >> 2)) {
        tested.handle_bytes(Instant(1), ConnectionOpener::Local, piece);
    }
    let mut is_closed = false;
    while let Some(transmit) = tested.poll_transmit() {
        assert!(!is_closed, "nothing is sent after closing");
        match transmit {
            BgpTransmit::Bytes(_, bytes) => sent.extend(kinds(&bytes)),
            BgpTransmit::Close(_) => is_closed = true,
            BgpTransmit::Connect | BgpTransmit::Abandon => {}
        }
    }
    assert_eq!(is_closed, tested.state() == BgpState::Idle);
    assert!(sent.iter().rev().skip(1).all(|&kind| kind != NOTIFICATION), "an error is the last message");
    let mut received = ReceivedRoutes::new();
    while let Some(event) = tested.poll_event() {
        let BgpEvent::Update(update) = event else { continue };
        received.take(&update);
        for (next_hop, destinations) in update.reachable() {
            update.path(next_hop);
            for nlri in destinations {
                assert!(nlri.is_consistent());
                assert!(received.find(&nlri).is_some());
            }
        }
    }
    assert_eq!(received.routes().len(), received.len());
    assert_eq!(BgpFamily::ALL.iter().map(|family| received.count(*family)).sum::<usize>(), received.len());
}
