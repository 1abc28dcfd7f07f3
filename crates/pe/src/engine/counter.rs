//! Counters of the engine: packets dropped or noticed, declared once with name, severity and meaning.

pub use netstage_host::counter::Severity;

netstage_host::counters! {
    /// Reason to drop a packet or message, or a condition noticed about one.
    FrameMalformed "frame_malformed" Error "Truncated Ethernet header, or more than four VLAN tags."
    NotForUs "not_for_us" Info "Destination MAC address of another host, or a group address."
    NoCircuit "no_circuit" Warning "Customer frame on a port, VLAN or with addresses that match no circuit."
    NotIp "not_ip" Info "Customer frame without IPv4, IPv6 or a valid ARP message."
    IpMalformed "ip_malformed" Error "Customer IP header that is inconsistent in itself or with the frame length."
    IpChecksum "ip_checksum" Error "Customer IPv4 header with a wrong checksum."
    SourceInvalid "source_invalid" Warning "Customer packet whose source address fails the reverse path check of its circuit (`rpf`)."
    TtlExceeded "ttl_exceeded" Info "TTL expired; an ICMP error is sent within the rate limit."
    NoRoute "no_route" Warning "The VPN has no route to the destination; an ICMP error is sent within the rate limit."
    Divided "divided" Info "IPv4 packet larger than the MTU, forwarded in fragments."
    Unresolved "unresolved" Warning "No neighbor on the circuit answered for the next-hop address."
    AddressConflict "address_conflict" Error "A neighbor on a circuit claims this router's own address."
    NotAnEcho "not_an_echo" Info "Packet to this router's own address that is no echo request, or exceeds the rate limit."
    PeerUnreachable "peer_unreachable" Warning "No route to the peer, or its next hop does not answer."
    PeerSilent "peer_silent" Error "The peer does not answer, and the VPN flow is configured to stop in this case."
    TooBig "too_big" Info "Packet larger than the MTU; an ICMP error is sent within the rate limit."
    NotAnswered "not_answered" Info "ICMP error not sent: rate limit, not allowed for this packet, or no source address."
    QueueFull "queue_full" Info "Ingress queue of the VPN flow full."
    QueueDropped "queue_dropped" Info "Dropped by a queue with classes or flows: by CoDel, or for lack of room."
    BuffersShared "buffers_shared" Warning "The VPN had used up its share of the free buffers."
    BuffersExhausted "buffers_exhausted" Error "No buffer free."
    PortFull "port_full" Warning "The port had no room for the frame."
    PortRefused "port_refused" Warning "The kernel rejected a frame the port had queued."
    NotATunnel "not_a_tunnel" Info "Frame from the core that is neither MPLS nor MPLS-in-UDP."
    TunnelMalformed "tunnel_malformed" Error "MPLS-in-UDP packet with a malformed header or a wrong checksum, or fragmented."
    TunnelChecksum "tunnel_checksum" Error "MPLS-in-UDP over IPv6 without a UDP checksum, from a peer that must compute it."
    Unencrypted "unencrypted" Error "Packet without encryption for a VPN flow or reference of an encrypted peer, or with news."
    EncryptionForeign "encryption_foreign" Error "Packet to the port for encrypted packets from an address of no encrypted peer."
    EncryptionMalformed "encryption_malformed" Error "Encrypted packet with a malformed header, truncated, or fragmented."
    EncryptionForged "encryption_forged" Error "Encrypted packet or handshake with a wrong tag or from another key: forged, or the keys of the peers differ."
    EncryptionReplayed "encryption_replayed" Error "Encrypted packet or handshake that was received before: replayed, or duplicated in the core."
    EncryptionEarly "encryption_early" Info "Encrypted packet that arrived before its session, or within a second of its start from the one before."
    EncryptionUnknown "encryption_unknown" Warning "Encrypted packet of no present session, as after a restart of this router, or an unexpected handshake message."
    HandshakeLimited "handshake_limited" Warning "Handshake refused by the limit on handshakes; the peer is asked to prove its address."
    LabelStack "label_stack" Error "Label stack without a bottom, too deep, or with a misplaced reserved label."
    LabelUnexpected "label_unexpected" Error "Label above the VPN label that the peer does not push."
    LabelUnknown "label_unknown" Error "VPN label not assigned to any peer."
    WrongSender "wrong_sender" Error "VPN label from another peer or by another path than it was assigned to."
    ChannelUnknown "channel_unknown" Warning "Associated channel other than direct loss and delay measurement of a VPN flow, or references and news between peers."
    MessageMalformed "message_malformed" Error "Malformed management message."
    MoreReceived "more_received" Error "Data packets received beyond those sent, by the counts of queries and responses: forged, or duplicated in the core."
    QueryRepeated "query_repeated" Warning "Query that is not newer than the last one, or the first of another session: replayed, duplicate, reordered, or after a restart of the peer."
    QueryRefused "query_refused" Warning "Query that asks for no in-band response."
    QueryForged "query_forged" Error "Query with a missing or wrong digest."
    ReplyWrong "reply_wrong" Error "Response that contradicts its query, or carries other counters than requested."
    ReplyForged "reply_forged" Error "Response with a missing or wrong digest."
    ReplyUnasked "reply_unasked" Warning "Response that matches no pending query: replayed, late or forged."
    ReplyEarlier "reply_earlier" Info "Response of another session, as after a restart of this router."
    ReplyError "reply_error" Error "Response with an error code."
    ReferenceUnknown "reference_unknown" Warning "Published reference that is not configured here."
    ReferenceForeign "reference_foreign" Error "Published reference by another path than from the configured peer."
    ReferenceMalformed "reference_malformed" Error "Published reference that is malformed or has impossible values."
    ReferenceForged "reference_forged" Error "Published reference with a missing or wrong digest, or an unknown key."
    ReferenceReplayed "reference_replayed" Warning "Published reference not newer than the last one: replayed, duplicate or reordered."
    NewsForeign "news_foreign" Error "News of VPN flows by another path than that of a peer."
    NewsUnused "news_unused" Info "News from a peer with which this router exchanges none."
    NewsMalformed "news_malformed" Error "News that is malformed or has impossible values."
    NewsForged "news_forged" Error "News with a missing or wrong digest, or an unknown key."
    NewsReplayed "news_replayed" Warning "News not newer than the last one: replayed, duplicate or reordered."
    NewsReflected "news_reflected" Error "News of this router itself, sent back to it."
    InnerMalformed "inner_malformed" Error "Packet from the core without a valid IP header beneath its labels."
    MarkDropped "mark_dropped" Warning "Congestion mark on a packet whose transport does not support ECN (RFC 6040)."
    MarkAlarm "mark_alarm" Warning "Combination of inner and outer congestion marks that no tunnel should produce (RFC 6040)."
    NotLocal "not_local" Warning "Packet from the core whose route leads back to the core."
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_counter_has_a_name_and_a_meaning() {
        let names: BTreeSet<&str> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        assert_eq!(names.len(), Counter::ALL.len());
        for counter in Counter::ALL {
            assert!(counter.name().chars().all(|letter| letter.is_ascii_lowercase() || letter == '_'));
            assert!(counter.meaning().ends_with('.'), "{counter:?}");
        }
        let mut counters = Counters::default();
        counters.add(Counter::NotLocal, 2);
        assert!(counters.iter().eq([(Counter::NotLocal, 2)]));
    }
}
