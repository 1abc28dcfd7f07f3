//! Ethernet, IP, UDP and TCP headers from arbitrary bytes: accepted or rejected within their bounds. Changes by
//! a router keep valid checksums valid, and a response is a whole packet that is not answered again.

use netstage_wire::checksum::Sum;
use netstage_wire::ip::{self, Ecn, protocol, v4, v6};
use netstage_wire::udp::ZeroChecksum;
use netstage_wire::{ethernet, icmp, mpls_in_udp, tcp, udp};

pub fn run(bytes: &[u8]) {
    if let Ok(frame) = ethernet::View::new(bytes) {
        let tags: Vec<ethernet::Tag> = frame.tags().collect();
        let (destination, source) = (frame.destination(), frame.source());
        let header = ethernet::Header { destination, source, tags: &tags, kind: frame.kind() };
        let mut again = vec![0; header.length()];
        assert_eq!(header.write(&mut again), Ok(frame.payload_offset()));
        assert_eq!(again, bytes[..again.len()]);
        packet(frame.payload());
    }
    packet(bytes);
}

fn packet(bytes: &[u8]) {
    let Ok(view) = ip::View::new(bytes) else { return };
    assert!(view.packet().len() <= bytes.len());
    view.flow_hash(1);
    change(view.packet());
    answer(view.packet());
    let Ok(transport) = view.transport() else { return };
    assert_eq!(&view.packet()[transport.offset..], transport.payload);
    let is_right = |segment: &[u8]| {
        let length = segment.len() as u32;
        let sum = ip::pseudo_header(view.source(), view.destination(), transport.protocol, length);
        sum.bytes(segment).folded() == 0xffff
    };
    if let Ok(segment) = tcp::View::new(transport.payload) {
        assert!(segment.options().count() <= 20);
        let mut clamped = transport.payload.to_vec();
        if let Some(before) = tcp::clamp_maximum_segment_size(&mut clamped, 1000) {
            assert!(before > 1000 && segment.maximum_segment_size() == Some(before));
            assert_eq!(tcp::View::new(&clamped).unwrap().maximum_segment_size(), Some(1000));
            assert_eq!(is_right(&clamped), is_right(transport.payload));
        }
    }
    if let Ok(datagram) = udp::View::new(transport.payload) {
        assert_eq!(datagram.payload().len() + udp::HEADER, usize::from(datagram.length()));
    }
    if let Ok(tunnel) = mpls_in_udp::View::new(view.packet(), ZeroChecksum::Rejected) {
        assert!(tunnel.payload.len() < view.packet().len());
        assert_eq!(mpls_in_udp::View::new(view.packet(), ZeroChecksum::Accepted), Ok(tunnel));
    }
}

/// Changes by a hop, which preserve the validity of the checksum.
fn change(bytes: &[u8]) {
    let mut changed = bytes.to_vec();
    if let Ok(mut header) = v4::HeaderMut::new(&mut changed) {
        header.decrement_ttl();
        header.set_ecn(Ecn::CongestionExperienced);
        header.set_dscp(46);
        let is_right = |bytes| v4::View::new(bytes).expect("the packet was valid before").is_checksum_valid();
        assert_eq!(is_right(&changed), is_right(bytes));
    } else if let Ok(mut header) = v6::HeaderMut::new(&mut changed) {
        header.decrement_hop_limit();
        header.set_ecn(Ecn::CongestionExperienced);
        header.set_dscp(46);
    }
    let view = ip::View::new(&changed).expect("lengths are unchanged");
    assert_eq!((view.ecn(), view.dscp()), (Ecn::CongestionExperienced, 46));
}

fn answer(offending: &[u8]) {
    let mut buffer = [0; icmp::MAX_V6];
    let router = [192, 0, 2, 1].into();
    if let Ok(length) = icmp::fragmentation_needed(offending, router, 1400, &mut buffer) {
        let answer = v4::View::new(&buffer[..length]).expect("a response is a packet");
        assert!(answer.is_checksum_valid() && answer.packet().len() == length);
        assert_eq!(Sum::ZERO.bytes(answer.transport().payload).folded(), 0xffff);
        let again = icmp::fragmentation_needed(answer.packet(), router, 1400, &mut [0; icmp::MAX_V4]);
        assert_eq!(again, Err(icmp::IcmpSuppression::IcmpError));
    }
    let router = [0xfd; 16].into();
    if let Ok(length) = icmp::packet_too_big(offending, router, 1400, &mut buffer) {
        let answer = v6::View::new(&buffer[..length]).expect("a response is a packet");
        let message = answer.transport().expect("a response has no extension headers").payload;
        let (source, destination) = (answer.source().into(), answer.destination().into());
        let sum = ip::pseudo_header(source, destination, protocol::ICMPV6, message.len() as u32);
        assert_eq!(sum.bytes(message).folded(), 0xffff);
        let again = icmp::packet_too_big(answer.packet(), router, 1400, &mut [0; icmp::MAX_V6]);
        assert_eq!(again, Err(icmp::IcmpSuppression::IcmpError));
    }
}
