//! What the engine counts that did not go its way, declared once with name, severity and meaning.

pub use netstage_host::counter::Severity;

netstage_host::counters! {
    /// Why a packet or message was not taken, or what was noticed about one that was.
    FrameMalformed "frame_malformed" Error "An Ethernet header that ends early, or has more than four VLAN tags."
    NotForUs "not_for_us" Info "The frame's destination address is another station's, or a group's."
    NoCircuit "no_circuit" Warning "A customer's frame on a port or VLAN, or with addresses, that no circuit has."
    NotIp "not_ip" Info "A customer's frame that holds neither IPv4, IPv6 nor a well-formed ARP message."
    IpMalformed "ip_malformed" Error "A customer's IP header that contradicts itself or the frame's length."
    IpChecksum "ip_checksum" Error "A customer's IPv4 header with a wrong checksum."
    TtlExceeded "ttl_exceeded" Info "The time to live ended here; its sender is told as often as the limit allows."
    NoRoute "no_route" Warning "The VPN has no route to the destination; the sender is told as often as the limit allows."
    Divided "divided" Info "An IPv4 packet larger than the way ahead carries, sent on in fragments."
    Unresolved "unresolved" Warning "Nobody on the circuit has said to have the address the packet was to go to."
    AddressConflict "address_conflict" Error "A station on a circuit says it has this router's own address."
    NotAnEcho "not_an_echo" Info "A packet to this router's own address in a VPN that is no echo request, or one too many."
    PeerUnreachable "peer_unreachable" Warning "The machine has no route to the peer, or its next hop does not answer."
    PeerSilent "peer_silent" Error "The peer does not answer, and the VPN flow is configured to stop then."
    TooBig "too_big" Info "Larger than the way ahead carries; its sender is told as often as the limit allows."
    NotAnswered "not_answered" Info "An ICMP error that was due and not sent: too many, none may be sent, or no address to send it from."
    QueueFull "queue_full" Info "The VPN flow's queue at the ingress was full."
    QueueDropped "queue_dropped" Info "A VPN flow's queue of several classes or flows dropped it: CoDel, or for want of room."
    BuffersShared "buffers_shared" Warning "The VPN held its share of the buffers that are free."
    BuffersExhausted "buffers_exhausted" Error "There was no buffer left at all."
    PortFull "port_full" Warning "The port that was to send the frame did not take it."
    PortRefused "port_refused" Warning "The system refused a frame a port had taken."
    NotATunnel "not_a_tunnel" Info "A frame from the core that is neither MPLS nor MPLS in UDP."
    TunnelMalformed "tunnel_malformed" Error "MPLS in UDP with a malformed header, a wrong checksum or in fragments."
    TunnelChecksum "tunnel_checksum" Error "MPLS in UDP over IPv6 without a UDP checksum, from a peer that is to compute it."
    LabelStack "label_stack" Error "A label stack without a bottom, too deep, or with a reserved label out of place."
    LabelUnexpected "label_unexpected" Error "Labels above the VPN label that its peer does not push."
    LabelUnknown "label_unknown" Error "A VPN label that was given to nobody."
    WrongSender "wrong_sender" Error "A VPN label from another peer, or by another way, than the one it was given to."
    ChannelUnknown "channel_unknown" Warning "An associated channel other than that of direct loss and delay measurement in a VPN flow, or of references between peers."
    MessageMalformed "message_malformed" Error "A management message that is malformed."
    QueryRefused "query_refused" Warning "A query that wants no answer by the channel."
    QueryForged "query_forged" Error "A query whose digest is missing or wrong."
    ReplyWrong "reply_wrong" Error "A response that contradicts its query, or counts other things than were asked for."
    ReplyForged "reply_forged" Error "A response whose digest is missing or wrong."
    ReplyUnasked "reply_unasked" Warning "A response to no query that waits for one: replayed, late or invented."
    ReplyEarlier "reply_earlier" Info "A response of another session, as after a restart of this router."
    ReplyError "reply_error" Error "The peer answered a query with an error code."
    ReferenceUnknown "reference_unknown" Warning "A published reference that nobody here is told of."
    ReferenceForeign "reference_foreign" Error "A published reference by another way than from the peer that publishes it."
    ReferenceMalformed "reference_malformed" Error "A published reference that is malformed, or whose numbers cannot be."
    ReferenceForged "reference_forged" Error "A published reference whose digest is missing, wrong, or by a key that is not here."
    ReferenceReplayed "reference_replayed" Warning "A published reference no newer than the last one: replayed, doubled or overtaken."
    InnerMalformed "inner_malformed" Error "A packet from the core that holds no right IP header beneath its labels."
    MarkDropped "mark_dropped" Warning "A congestion mark on a packet whose transport does not understand it (RFC 6040)."
    MarkAlarm "mark_alarm" Warning "Congestion marks inside and outside that no tunnel should bring forth (RFC 6040)."
    NotLocal "not_local" Warning "A packet from the core whose route leads back to the core."
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_counter_has_a_name_and_a_sentence() {
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
