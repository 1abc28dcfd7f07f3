//! A host in the core forges data of a VPN between two provider edge routers, with real packets: at 60 packets a second,
//! with the right label and the address of the other router.

use super::pe::{EdgeProcess, TIMEOUT, TwoEdges, configuration, is_reached};
use crate::support::{TemporaryFolder, netstage, within};
use netstage_host::netns::Netlink;
use netstage_host::ports::FramePort as _;
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use netstage_wire::ethernet::{self, Mac, ethertype};
use netstage_wire::ip::{Ecn, protocol, v4};
use netstage_wire::mpls::{ENTRY, LabelStackEntry, LabelValue};
use netstage_wire::mpls_in_udp::TunnelHeader;
use netstage_wire::udp;
use std::net::UdpSocket;
use std::time::Duration;

const FORGED: &[u8] = b"forged";
const GENUINE: &[u8] = b"genuine";
/// UDP port of the receivers.
const DISCARD: u16 = 9;

/// Returns a frame of VPN red to site 1 from the address of site 0.
fn forged([source, destination]: [Mac; 2]) -> Vec<u8> {
    let mut inner = vec![0; v4::HEADER + udp::HEADER];
    inner.extend(FORGED);
    let payload = inner.len() - v4::HEADER;
    let (from, to) = ([10, 0, 0, 2].into(), [10, 0, 1, 2].into());
    udp::write(&mut inner[v4::HEADER..], DISCARD, DISCARD, None).unwrap();
    v4::Header { protocol: protocol::UDP, source: from, destination: to, ..v4::Header::default() }
        .write(&mut inner, payload)
        .unwrap();
    let outer = TunnelHeader {
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        source_port: 50_000,
        dscp: 0,
        ecn: Ecn::NotCapable,
        ttl: 64,
        has_checksum: true,
    };
    let label =
        LabelStackEntry { label: LabelValue::new(2_000).unwrap(), traffic_class: 0, bottom: true, ttl: 64 };
    let mut packet = vec![0; outer.length() + ENTRY];
    packet[outer.length()..].copy_from_slice(&label.to_bytes());
    packet.extend(inner);
    outer.write(&mut packet).unwrap();
    let mut frame = vec![0; ethernet::HEADER];
    ethernet::Header { destination, source, tags: &[], kind: ethertype::IPV4 }.write(&mut frame).unwrap();
    frame.extend(packet);
    frame
}

/// Replaces trust in the core by encryption in the configurations of both sites.
fn encrypt(folder: &TemporaryFolder, texts: [String; 2]) -> [String; 2] {
    let keys = [0, 1].map(|site| {
        let output = netstage(&["pe", "key"]).arg(folder.join(format!("pe{site}.key"))).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    });
    let mut far = keys.into_iter().rev();
    let mut site = 0;
    texts.map(|text| {
        let encryption = format!("encryption = {{ public_key = \"{}\" }}", far.next().unwrap());
        let private = format!("[pe]\nprivate_key = \"pe{site}.key\"");
        site += 1;
        text.replacen("trusted = true", &encryption, 1).replacen("[pe]", &private, 1)
    })
}

/// Attacks until `is_noticed` holds for the names of the alarms at both ends. Returns the payloads that red and blue
/// received at site 1, the genuine packets sent, and those counted by the router of site 1.
fn attack(
    is_encrypted: bool,
    is_noticed: impl Fn(&[Vec<String>; 2]) -> bool,
) -> ([Vec<Vec<u8>>; 2], u64, u64) {
    let world = TwoEdges::new();
    let folder = TemporaryFolder::new("pe-attack");
    let mut texts = [0, 1].map(|site| configuration(&folder, site, false, 1));
    if is_encrypted {
        texts = encrypt(&folder, texts);
    }
    for (site, text) in texts.iter().enumerate() {
        std::fs::write(folder.join(format!("pe{site}.toml")), text).unwrap();
    }
    let mut edges = [0, 1].map(|site| EdgeProcess::start_with(&world, &folder, site, None));
    assert!(within(TIMEOUT, || edges.iter_mut().all(is_reached)));
    assert!(within(TIMEOUT, || world.echo(0, false, "before").is_some()));
    let macs = [0, 1]
        .map(|site: usize| Netlink::open(&world.edges[site]).unwrap().link("core0").unwrap().mac.unwrap());
    let frame = forged(macs);
    let mut core = AfPacket::open(&world.edges[0], "core0", AfPacketOptions::default()).unwrap();
    let bind = |site: usize, customer: usize| {
        let address = format!("10.0.{site}.2:{DISCARD}");
        let socket = world.customers[site][customer].run(|| UdpSocket::bind(address)).unwrap().unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let (sender, receivers) = (bind(0, 0), [bind(1, 0), bind(1, 1)]);
    let counted = |edge: &mut EdgeProcess<'_>| {
        let flows = edge.client.show().unwrap().flows;
        flows.iter().find(|flow| flow.vpn == "red").unwrap().received.packets
    };
    let mut received: [Vec<Vec<u8>>; 2] = Default::default();
    let mut receive = || {
        for (socket, received) in receivers.iter().zip(&mut received) {
            let mut bytes = [0; 100];
            while let Ok(length) = socket.recv(&mut bytes) {
                received.push(bytes[..length].to_vec());
            }
        }
        received[0].iter().filter(|payload| *payload == GENUINE).count() as u64
    };
    let before = counted(&mut edges[1]);
    let mut sent = 0;
    let noticed = within(TIMEOUT, || {
        // A tenth of a second: six forged packets between ten genuine ones.
        for number in 0..10 {
            sender.send_to(GENUINE, format!("10.0.1.2:{DISCARD}")).unwrap();
            sent += 1;
            if number < 6 {
                assert!(core.send(&frame).unwrap());
                core.flush().unwrap();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // A receive buffer holds 256 packets, fewer than some attacks have.
        receive();
        let alarms = |edge: &mut EdgeProcess<'_>| {
            edge.client.show().unwrap().alarms.into_iter().map(|alarm| alarm.name).collect()
        };
        let [near, far] = &mut edges;
        is_noticed(&[alarms(near), alarms(far)])
    });
    assert!(noticed, "no alarm");
    // What is in flight arrives.
    let arrived = within(TIMEOUT, || receive() == sent);
    assert!(arrived, "{} of {sent} packets arrived", receive());
    assert!(world.echo(0, false, "after").is_some() && world.echo(1, false, "after").is_some());
    let counted = counted(&mut edges[1]) - before;
    // One packet of the echo.
    (received, sent, counted - 1)
}

fn encrypted_routers_deliver_and_count_nothing_forged() {
    let is_noticed = |alarms: &[Vec<String>; 2]| alarms[1].iter().any(|name| name == "unencrypted");
    let ([red, blue], sent, counted) = attack(true, is_noticed);
    assert!(red.iter().all(|payload| payload == GENUINE));
    assert!(blue.is_empty(), "{blue:?}");
    assert_eq!(counted, sent);
}

fn trusted_routers_raise_an_alarm_about_forged_data_at_both_ends() {
    let is_noticed = |alarms: &[Vec<String>; 2]| {
        alarms.iter().all(|names| names.iter().any(|name| name == "more_received"))
    };
    let ([red, blue], sent, counted) = attack(false, is_noticed);
    // Forged packets have the right label: they are delivered in their VPN, and only there.
    assert!(red.iter().any(|payload| payload == FORGED) && counted > sent);
    assert!(blue.is_empty(), "{blue:?}");
}

netstage_harness::tests![
    encrypted_routers_deliver_and_count_nothing_forged,
    trusted_routers_raise_an_alarm_about_forged_data_at_both_ends,
];
