//! Interoperability with tshark: packets of a provider edge router, built by the codecs of `netstage_wire`,
//! are written to a capture file and decoded by tshark.

#[path = "../../../tests/support/pair.rs"]
mod pair;

use netstage_core::fair::wire::{Authentication, Querier, ResponderTimes, answer};
use netstage_core::fair::{Egress, Query};
use netstage_core::time::Instant;
use netstage_harness::skip;
use netstage_wire::checksum::checksum;
use netstage_wire::ethernet::{self, Tag, ethertype};
use netstage_wire::gach::{self, channel};
use netstage_wire::ip::{Ecn, protocol, pseudo_header, v4, v6};
use netstage_wire::loss_delay::LossDelaySession;
use netstage_wire::mpls::{self, LabelStackEntry, LabelValue};
use netstage_wire::mpls_in_udp::{TunnelHeader, source_port};
use netstage_wire::rsvp::object::{
    ACK_DESIRED, Challenge, ErrorSpec, FastReroute, HANDSHAKE, Hello, Hop, Integrity, MessageId, MessageIds,
    Object, Sender, Session, SessionAttribute, Style, TokenBucket,
};
use netstage_wire::rsvp::route::{Route, RouteHop};
use netstage_wire::rsvp::write::RsvpWriter;
use netstage_wire::rsvp::{self, REFRESH_REDUCTION};
use netstage_wire::{icmp, tcp, udp};
use pair::{LEFT_MAC, RIGHT_MAC};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::time::Duration;

/// January 1, 2026, in nanoseconds since 1970.
const EPOCH: u64 = 1_767_225_600_000_000_000;
const PE4: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
const PE6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)];

fn frame(tags: &[Tag], kind: u16, payload: &[u8]) -> Vec<u8> {
    let header = ethernet::Header { destination: RIGHT_MAC, source: LEFT_MAC, tags, kind };
    let mut bytes = vec![0; header.length()];
    header.write(&mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

fn with_labels(entries: &[(u32, u8, u8)], payload: &[u8]) -> Vec<u8> {
    let entry = |&(label, traffic_class, ttl): &(u32, u8, u8)| {
        let label = LabelValue::new(label).unwrap();
        LabelStackEntry { label, traffic_class, bottom: false, ttl }
    };
    let entries: Vec<LabelStackEntry> = entries.iter().map(entry).collect();
    let mut bytes = vec![0; entries.len() * mpls::ENTRY];
    mpls::write_stack(&entries, &mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

fn in_udp(ends: (IpAddr, IpAddr), has_checksum: bool, payload: &[u8]) -> Vec<u8> {
    let outer = TunnelHeader {
        source: ends.0,
        destination: ends.1,
        source_port: source_port(0xfeed),
        dscp: 10,
        ecn: Ecn::Capable0,
        ttl: 61,
        has_checksum,
    };
    let mut packet = [&vec![0; outer.length()][..], payload].concat();
    outer.write(&mut packet).unwrap();
    packet
}

/// Builds a customer UDP datagram over IPv4 or IPv6 with a correct checksum and `size` bytes of payload.
fn customer(is_v6: bool, size: usize) -> Vec<u8> {
    let header = if is_v6 { v6::HEADER } else { v4::HEADER };
    let mut packet = vec![0x5a; header + udp::HEADER + size];
    let length = packet.len() - header;
    let ends: [IpAddr; 2] = if is_v6 { PE6.map(Into::into) } else { PE4.map(Into::into) };
    let sum = pseudo_header(ends[0], ends[1], protocol::UDP, length as u32);
    udp::write(&mut packet[header..], 40_000, 40_001, Some(sum)).unwrap();
    if is_v6 {
        let header = v6::Header {
            dscp: 46,
            next_header: protocol::UDP,
            source: PE6[0],
            destination: PE6[1],
            ..v6::Header::default()
        };
        header.write(&mut packet, length).unwrap();
    } else {
        let header = v4::Header {
            dscp: 46,
            protocol: protocol::UDP,
            source: PE4[0],
            destination: PE4[1],
            ..v4::Header::default()
        };
        header.write(&mut packet, length).unwrap();
    }
    packet
}

/// Builds a SYN whose MSS option is lowered from 1460 to 1360 bytes and straddles two words, and forwards it
/// over one hop that marks congestion.
fn clamped_syn() -> Vec<u8> {
    let mut segment =
        vec![0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x70, tcp::flag::SYN, 0xff, 0xff, 0, 0, 0, 0];
    segment.extend([1, 2, 4, 0x05, 0xb4, 1, 1, 0]);
    let sum = pseudo_header(PE4[0].into(), PE4[1].into(), protocol::TCP, segment.len() as u32);
    let checksum = sum.bytes(&segment).checksum();
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(tcp::clamp_maximum_segment_size(&mut segment, 1360), Some(1460));
    let header = v4::Header {
        ecn: Ecn::Capable0,
        protocol: protocol::TCP,
        source: PE4[0],
        destination: PE4[1],
        ..v4::Header::default()
    };
    let mut packet = vec![0; v4::HEADER];
    header.write(&mut packet, segment.len()).unwrap();
    packet.extend(segment);
    let mut hop = v4::HeaderMut::new(&mut packet).unwrap();
    hop.decrement_ttl().unwrap();
    hop.set_ecn(Ecn::CongestionExperienced);
    hop.set_dscp(8);
    packet
}

/// Returns the query and the response of a VPN flow, including the channel header.
fn measurement() -> [Vec<u8>; 2] {
    let digest = |_: u8, bytes: &[u8]| Some([checksum(bytes) as u8; 16]);
    let authentication = Some(Authentication { key: 1, digest: &digest });
    let mut querier = Querier::new(LossDelaySession::from_bits(0x123_4567), EPOCH, true);
    let mut query = vec![0; querier.query_length(true)];
    let asked = Query { sequence: 1, sent_at: Instant(1_000_000_007), packets_sent: (7 << 32) + 100 };
    querier.write(asked, authentication, &mut query).unwrap();
    let mut response = query.clone();
    let egress = Egress { packets: (7 << 32) + 93, bytes: 0, marked: 2 };
    let times = ResponderTimes { arrived_ns: EPOCH + 1_010_000_000, departs_ns: EPOCH + 1_010_020_000 };
    let length = answer(&mut response, &egress, (55, 55_000), times, authentication).unwrap();
    assert_eq!(length, response.len());
    [query, response].map(|message| [&gach::header(channel::DIRECT_LOSS_DELAY)[..], &message].concat())
}

/// Frame, and the fields tshark must print for it. Several values of a field are joined by commas.
type ExpectedFrame<'a> = (Vec<u8>, &'a [(&'a str, &'a str)]);

fn dissect(name: &str, frames: &[ExpectedFrame]) {
    let file = std::env::temp_dir().join(format!("netstage-{name}-{}.pcap", std::process::id()));
    let mut writer = PcapWriter::new(std::fs::File::create(&file).unwrap()).unwrap();
    for ((frame, _), at) in frames.iter().zip(1..) {
        let packet = PcapPacket::new(Duration::from_secs(at), frame.len() as u32, frame);
        writer.write_packet(&packet).unwrap();
    }
    drop(writer);
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&file).args(["-T", "fields", "-E", "separator=|"]);
    for layer in ["ip", "udp", "tcp"] {
        command.args(["-o", &format!("{layer}.check_checksum:TRUE")]);
    }
    let mut fields: Vec<&str> =
        frames.iter().flat_map(|(_, expected)| expected.iter().map(|(field, _)| *field)).collect();
    fields.push("_ws.malformed");
    fields.sort_unstable();
    fields.dedup();
    for field in &fields {
        command.args(["-e", field]);
    }
    let output = command.output();
    std::fs::remove_file(&file).unwrap();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skip("needs tshark (Debian: tshark)");
        }
        Err(error) => panic!("tshark: {error}"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), frames.len(), "{text}");
    for ((line, (_, expected)), number) in text.lines().zip(frames).zip(1..) {
        let found: BTreeMap<&str, &str> = fields.iter().copied().zip(line.split('|')).collect();
        for (field, value) in expected.iter().chain(&[("_ws.malformed", "")]) {
            assert_eq!(found[field], *value, "{field} of frame {number}");
        }
    }
}

/// Fields common to query and response. With the T flag off, tshark reads session and DS as one number.
const STACK: [(&str, &str); 5] = [
    ("mpls.label", "2000,13"),
    ("mpls.exp", "6,6"),
    ("mpls.bottom", "0,1"),
    ("mpls.ttl", "255,1"),
    ("pwach.channel_type", "0x000d"),
];
const MESSAGE: [(&str, &str); 6] = [
    ("mpls_pm.version", "0"),
    ("mpls_pm.flags.t", "0"),
    ("mpls_pm.length", "112"),
    ("mpls_pm.dflags.x", "1"),
    ("mpls_pm.dflags.b", "0"),
    ("mpls_pm.session.id", "1221679552"),
];
const QUERY: [(&str, &str); 12] = [
    ("mpls_pm.flags.r", "0"),
    ("mpls_pm.ctrl.code", "0x00"),
    ("mpls_pm.qtf", "3"),
    ("mpls_pm.rtf", "0"),
    ("mpls_pm.rptf", "0"),
    ("mpls_pm.timestamp1.ptp", "1767225601.000000007"),
    ("mpls_pm.timestamp2.ptp", "0.000000000"),
    ("mpls_pm.timestamp3.null", "0"),
    ("mpls_pm.counter1", "30064771172"),
    ("mpls_pm.counter2", "0"),
    ("mpls_pm.counter3", "0"),
    ("mpls_pm.counter4", "0"),
];
const RESPONSE: [(&str, &str); 13] = [
    ("mpls_pm.flags.r", "1"),
    ("mpls_pm.ctrl.code", "0x01"),
    ("mpls_pm.qtf", "3"),
    ("mpls_pm.rtf", "3"),
    ("mpls_pm.rptf", "3"),
    ("mpls_pm.timestamp1.ptp", "1767225601.010020000"),
    ("mpls_pm.timestamp2.ptp", "0.000000000"),
    ("mpls_pm.timestamp3_ptp", "1767225601.000000007"),
    ("mpls_pm.timestamp4.ptp", "1767225601.010000000"),
    ("mpls_pm.counter1", "55"),
    ("mpls_pm.counter2", "0"),
    ("mpls_pm.counter3", "30064771172"),
    ("mpls_pm.counter4", "30064771165"),
];

fn tshark_decodes_measurements() {
    let [query, response] = measurement();
    let under_labels = |message: &[u8]| with_labels(&[(2000, 6, 255), (13, 6, 1)], message);
    let tag = Tag { kind: ethertype::VLAN, priority: 3, drop_eligible: false, vlan: 12 };
    let there = (PE4[0].into(), PE4[1].into());
    let back = (PE6[1].into(), PE6[0].into());
    // 0xfeed folded into 14 bits is 0x3eee.
    let udp = [("udp.srcport", "65262"), ("udp.dstport", "6635"), ("udp.length", "132")];
    let tagged = [("vlan.id", "12"), ("vlan.priority", "3")];
    let over_ipv4 = [
        ("ip.dsfield.dscp", "10"),
        ("ip.dsfield.ecn", "2"),
        ("ip.ttl", "61"),
        ("ip.checksum.status", "1"),
        // Checksum not computed.
        ("udp.checksum.status", "3"),
    ];
    let over_ipv6 = [
        ("ipv6.tclass.dscp", "10"),
        ("ipv6.tclass.ecn", "2"),
        ("ipv6.hlim", "61"),
        ("ipv6.flow", "0x00feee"),
        ("udp.checksum.status", "1"),
    ];
    let asked = [&STACK[..], &MESSAGE, &QUERY].concat();
    let answered = [&STACK[..], &MESSAGE, &RESPONSE].concat();
    dissect(
        "measurements",
        &[
            (frame(&[tag], ethertype::MPLS, &under_labels(&query)), &[&asked[..], &tagged].concat()),
            (frame(&[], ethertype::MPLS, &under_labels(&response)), &answered),
            (
                frame(&[], ethertype::IPV4, &in_udp(there, false, &under_labels(&query))),
                &[&asked[..], &udp, &over_ipv4].concat(),
            ),
            (
                frame(&[], ethertype::IPV6, &in_udp(back, true, &under_labels(&response))),
                &[&answered[..], &udp, &over_ipv6].concat(),
            ),
        ],
    );
}

fn tshark_decodes_packets() {
    let there = (PE4[0].into(), PE4[1].into());
    let native = with_labels(&[(1000, 5, 63), (2000, 5, 255)], &customer(false, 100));
    let tunneled = in_udp(there, true, &with_labels(&[(2000, 5, 255)], &customer(true, 100)));
    let mut too_long = [0; icmp::MAX_V4];
    let length = icmp::fragmentation_needed(&customer(false, 1450), PE4[1], 1400, &mut too_long).unwrap();
    let mut too_long_v6 = [0; icmp::MAX_V6];
    let length_v6 = icmp::packet_too_big(&customer(true, 1450), PE6[1], 1400, &mut too_long_v6).unwrap();
    dissect(
        "packets",
        &[
            (
                frame(&[], ethertype::MPLS, &native),
                &[
                    ("mpls.label", "1000,2000"),
                    ("mpls.exp", "5,5"),
                    ("mpls.ttl", "63,255"),
                    ("ip.dsfield.dscp", "46"),
                    ("ip.checksum.status", "1"),
                    ("udp.checksum.status", "1"),
                    ("udp.srcport", "40000"),
                ],
            ),
            (
                frame(&[], ethertype::IPV4, &tunneled),
                &[
                    ("mpls.label", "2000"),
                    ("ip.flags.df", "1"),
                    ("ipv6.tclass.dscp", "46"),
                    ("udp.checksum.status", "1,1"),
                    ("udp.dstport", "6635,40001"),
                    ("udp.length", "160,108"),
                ],
            ),
            (
                frame(&[], ethertype::IPV4, &clamped_syn()),
                &[
                    ("tcp.options.mss_val", "1360"),
                    ("tcp.checksum.status", "1"),
                    ("ip.checksum.status", "1"),
                    ("ip.ttl", "63"),
                    ("ip.dsfield.dscp", "8"),
                    ("ip.dsfield.ecn", "3"),
                ],
            ),
            (
                frame(&[], ethertype::IPV4, &too_long[..length]),
                &[
                    ("icmp.type", "3"),
                    ("icmp.code", "4"),
                    ("icmp.mtu", "1400"),
                    ("icmp.checksum.status", "1"),
                    ("ip.len", "576,1478"),
                    ("udp.srcport", "40000"),
                ],
            ),
            (
                frame(&[], ethertype::IPV6, &too_long_v6[..length_v6]),
                &[
                    ("icmpv6.type", "2"),
                    ("icmpv6.mtu", "1400"),
                    ("icmpv6.checksum.status", "1"),
                    ("ipv6.plen", "1240,1458"),
                    ("udp.srcport", "40000"),
                ],
            ),
        ],
    );
}

/// Builds an IPv4 packet with an RSVP message.
fn signaling(kind: u8, objects: &[Object<'_>]) -> Vec<u8> {
    let mut packet = vec![0; 1500];
    let mut writer = RsvpWriter::new(&mut packet[v4::HEADER..], kind, REFRESH_REDUCTION, 64).unwrap();
    objects.iter().for_each(|object| writer.object(object).unwrap());
    let length = writer.finish().len();
    let header =
        v4::Header { protocol: rsvp::PROTOCOL, source: PE4[0], destination: PE4[1], ..v4::Header::default() };
    header.write(&mut packet, length).unwrap();
    packet.truncate(v4::HEADER + length);
    packet
}

fn tshark_decodes_signaling() {
    let session = Object::Session(Session { endpoint: PE4[1], tunnel: 7, extended: PE4[0].into() });
    let hop = Object::Hop(Hop { address: PE4[0], interface: 5 });
    let sender = Sender { address: PE4[0], lsp: 9 };
    let bucket = TokenBucket { rate: 1e6, size: 1e4, peak: 1e6, min_policed: 64, max_packet: 1500 };
    let hops = [RouteHop::strict(PE4[1]), RouteHop::Label(LabelValue::new(300).unwrap())];
    let hops = hops.map(|hop| hop.to_bytes().unwrap());
    let explicit = Route::new(&hops[0], 20).unwrap();
    let recorded = hops.concat();
    let recorded = Object::RecordRoute(Route::new(&recorded, 21).unwrap());
    let attribute = SessionAttribute { affinities: None, setup: 7, holding: 0, flags: 4, name: b"to-east" };
    let protection =
        FastReroute { priorities: [7, 0], hop_limit: 3, flags: 2, bandwidth: 1e6, affinities: [0; 3] };
    let id = MessageId { flags: ACK_DESIRED, epoch: 0x1234, id: 17 };
    let error = Object::ErrorSpec(ErrorSpec { node: PE4[1], flags: 0, code: 24, value: 5 });
    let path = [
        Object::MessageId(id),
        session,
        hop,
        Object::TimeValues(30_000),
        Object::ExplicitRoute(explicit),
        Object::LabelRequest(0x800),
        Object::SessionAttribute(attribute),
        Object::FastReroute(protection),
        Object::SenderTemplate(sender),
        Object::SenderTspec(bucket),
        recorded,
    ];
    let flow = [Object::Style(Style::SharedExplicit), Object::Flowspec(bucket), Object::FilterSpec(sender)];
    let label = [Object::Label(LabelValue::new(300).unwrap()), recorded];
    let resv = [&[session, hop, Object::TimeValues(30_000)][..], &flow, &label].concat();
    let path_error = [session, error, Object::SenderTemplate(sender), Object::SenderTspec(bucket)];
    let tear = [session, hop, Object::SenderTemplate(sender), Object::SenderTspec(bucket)];
    let resv_error = [&[session, hop, error][..], &flow].concat();
    let numbers = [17_u32, 18].map(u32::to_be_bytes).concat();
    let refresh = [Object::MessageIds(MessageIds::new(0x1234, &numbers))];
    let integrity = Integrity { flags: HANDSHAKE, key: 7, sequence: 99, digest: [0xab; 16] };
    let challenge = Object::Challenge(Challenge { key: 7, cookie: &[0xcd; 16] });
    let hello =
        [Object::Integrity(integrity), Object::Hello(Hello { is_request: true, source: 3, destination: 0 })];
    let acknowledgment = [Object::Acknowledged(MessageId { flags: 0, ..id })];
    let tunnel = ("rsvp.session.tunnel_id", "7");
    let message = |kind, objects: &[Object<'_>]| frame(&[], ethertype::IPV4, &signaling(kind, objects));
    dissect(
        "signaling",
        &[
            (message(rsvp::kind::PATH, &path), &[("rsvp.msg", "1"), tunnel, ("rsvp.sender.lsp_id", "9")]),
            (message(rsvp::kind::RESV, &resv), &[("rsvp.msg", "2"), tunnel, ("rsvp.label.label", "300")]),
            (message(rsvp::kind::PATH_ERROR, &path_error), &[("rsvp.msg", "3"), tunnel]),
            (message(rsvp::kind::RESV_ERROR, &resv_error), &[("rsvp.msg", "4"), tunnel]),
            (message(rsvp::kind::PATH_TEAR, &tear), &[("rsvp.msg", "5"), tunnel]),
            (
                message(rsvp::kind::RESV_TEAR, &[&[session, hop][..], &flow].concat()),
                &[("rsvp.msg", "6"), tunnel],
            ),
            (message(rsvp::kind::ACK, &acknowledgment), &[("rsvp.msg", "13")]),
            (message(rsvp::kind::SUMMARY_REFRESH, &refresh), &[("rsvp.msg", "15")]),
            (
                message(rsvp::kind::HELLO, &hello),
                &[
                    ("rsvp.msg", "20"),
                    ("rsvp.integrity.key_identifier", "000000000007"),
                    ("rsvp.integrity.sequence_number", "99"),
                ],
            ),
            (message(rsvp::kind::INTEGRITY_CHALLENGE, &[challenge]), &[("rsvp.msg", "25")]),
            (
                message(rsvp::kind::INTEGRITY_RESPONSE, &[Object::Integrity(integrity), challenge]),
                &[("rsvp.msg", "26")],
            ),
        ],
    );
}

netstage_harness::tests![tshark_decodes_measurements, tshark_decodes_packets, tshark_decodes_signaling,];
netstage_harness::main![self];
