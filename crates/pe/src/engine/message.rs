//! Management packets: RFC 6374 messages on the generic associated channel of a VPN flow.

use super::pool::{HEADROOM, StoredPacket};
use super::{Counter, EngineState, FlowBalance, Keys, PacketDrop};
use netstage_core::fair::balance::{BalanceResult, PacketBalance, PacketCounts};
use netstage_core::fair::wire::{self, QueryError, ResponderTimes};
use netstage_core::fair::{Query, Reply};
use netstage_core::time::Instant;
use netstage_wire::gach::{self, channel};
use netstage_wire::loss_delay::LossDelayMessage;

impl EngineState {
    /// Sends a query to the peer of a flow.
    pub(super) fn send_query(&mut self, number: usize, query: Query) -> Result<(), PacketDrop> {
        let buffer = self.pool.take().ok_or(Counter::BuffersExhausted.of(number))?;
        let flow = &mut self.flows[number];
        let keys = self.peers[flow.peer as usize].keys.as_ref();
        let bytes = &mut self.pool.bytes(buffer)[HEADROOM + gach::HEADER..];
        let labels = [flow.send, flow.receive];
        let written =
            Keys::between(keys, labels, |authentication| flow.querier.write(query, authentication, bytes));
        let length = written.expect("a buffer holds the minimum IPv6 packet") as u16;
        let length = gach::HEADER as u16 + length;
        self.encapsulate_message(number, StoredPacket::new(buffer, length));
        Ok(())
    }

    /// Handles a message received for a flow: answers a query, or processes a response.
    #[inline]
    pub(super) fn handle_message(
        &mut self,
        now: Instant,
        at: Instant,
        flow: usize,
        payload: StoredPacket,
    ) -> Result<(), PacketDrop> {
        let bytes = self.pool.packet(payload);
        match gach::read(bytes) {
            Ok(channel::DIRECT_LOSS_DELAY) => {}
            Ok(_) => return Err(Counter::ChannelUnknown.of(flow)),
            Err(_) => return Err(Counter::MessageMalformed.of(flow)),
        }
        if !LossDelayMessage::is_response(&bytes[gach::HEADER..]) {
            return self.send_response(now, at, flow, payload);
        }
        let reply = match self.read_response(flow, payload) {
            Ok(reply) => reply,
            Err(wire::ResponseError::OtherSession) => {
                let read = self.read_probe_response(at, flow, payload);
                read.map_err(|refused| response_counter(refused).of(flow))?;
                self.pool.release(payload.buffer);
                return Ok(());
            }
            Err(refused) => return Err(response_counter(refused).of(flow)),
        };
        let counts = PacketCounts {
            session: 0,
            number: reply.query.sent_at.0,
            sent: reply.query.packets_sent,
            received: reply.packets_received,
        };
        if self.flows[flow].balance.as_ref().is_some_and(|balance| balance.sent.loses_most(counts)) {
            self.suspect_path(now, flow);
        }
        self.observe(at, flow, counts, |balance| &mut balance.sent);
        self.edge.handle_reply(at, flow, &reply);
        self.pool.release(payload.buffer);
        Ok(())
    }

    /// Compares the packets received with those sent.
    fn observe(
        &mut self,
        at: Instant,
        number: usize,
        counts: PacketCounts,
        direction: fn(&mut FlowBalance) -> &mut PacketBalance,
    ) {
        let balance = self.flows[number].balance.get_or_insert_default();
        match direction(balance).observe(at, counts) {
            BalanceResult::Balanced => {}
            BalanceResult::Repeated => self.count(Counter::QueryRepeated.of(number)),
            BalanceResult::Excess(packets) => self.count_times(Counter::MoreReceived.of(number), packets),
        }
    }

    fn read_response(&mut self, number: usize, payload: StoredPacket) -> Result<Reply, wire::ResponseError> {
        let bytes = &self.pool.packet(payload)[gach::HEADER..];
        let flow = &mut self.flows[number];
        let keys = self.peers[flow.peer as usize].keys.as_ref();
        let labels = [flow.send, flow.receive];
        Keys::between(keys, labels, |authentication| flow.querier.read(bytes, authentication))
    }

    /// Answers a query. The response reuses the buffer of the query and takes the opposite direction of the
    /// flow.
    fn send_response(
        &mut self,
        now: Instant,
        at: Instant,
        number: usize,
        payload: StoredPacket,
    ) -> Result<(), PacketDrop> {
        let flow = &self.flows[number];
        let keys = self.peers[flow.peer as usize].keys.as_ref();
        let unix = |instant: Instant| self.epoch_unix_ns.saturating_add(instant.0);
        let times = ResponderTimes { arrived_ns: unix(at), departs_ns: unix(now) };
        let sent_back = (self.edge.packets_sent(number), self.edge.bytes_sent(number));
        let bytes = &mut self.pool.packet(payload)[gach::HEADER..];
        // Probes of the path MTU count no packets.
        let is_count = |query: &LossDelayMessage| {
            query.has_wide_counters && !query.counts_bytes && !query.of_traffic_class && query.counters[0] > 0
        };
        let query = LossDelayMessage::read(bytes).ok().map(|(query, _)| query).filter(is_count);
        let counts = query.map(|query| PacketCounts {
            session: query.session.number(),
            number: query.timestamps[0].0,
            sent: query.counters[0],
            received: flow.egress.packets,
        });
        let answered = Keys::between(keys, [flow.send, flow.receive], |authentication| {
            wire::answer(bytes, &flow.egress, sent_back, times, authentication)
        });
        match answered {
            Ok(length) => {
                if let Some(counts) = counts {
                    self.observe(at, number, counts, |balance| &mut balance.received);
                }
                let length = (gach::HEADER + length) as u16;
                self.encapsulate_message(number, StoredPacket { length, ..payload });
                Ok(())
            }
            Err(unanswered) => {
                let counter = match unanswered {
                    QueryError::Malformed(_) | QueryError::NotAQuery => Counter::MessageMalformed,
                    QueryError::Digest => Counter::QueryForged,
                    QueryError::NoResponseRequested => Counter::QueryRefused,
                };
                Err(counter.of(number))
            }
        }
    }
}

/// Returns the counter of a rejected response.
fn response_counter(refused: wire::ResponseError) -> Counter {
    match refused {
        wire::ResponseError::Malformed(_) | wire::ResponseError::Tlv => Counter::MessageMalformed,
        wire::ResponseError::Digest => Counter::ReplyForged,
        wire::ResponseError::OtherSession => Counter::ReplyEarlier,
        wire::ResponseError::Unsolicited => Counter::ReplyUnasked,
        wire::ResponseError::Code(_) => Counter::ReplyError,
        wire::ResponseError::NotAResponse
        | wire::ResponseError::DataFormat
        | wire::ResponseError::WrongPacketCount => Counter::ReplyWrong,
    }
}
