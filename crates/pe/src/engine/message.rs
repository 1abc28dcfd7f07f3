//! Management packets: RFC 6374 messages on the generic associated channel of a VPN flow.

use super::pool::{Buffered, HEADROOM};
use super::{Counter, Keys, Refused, State};
use netstage_core::fair::wire::{self, Times, Unanswered};
use netstage_core::fair::{Query, Reply};
use netstage_core::time::Instant;
use netstage_wire::gach::{self, channel};
use netstage_wire::loss_delay::Message;

impl State {
    /// Sends a query to the peer of a flow.
    pub(super) fn send_query(&mut self, number: usize, query: Query) -> Result<(), Refused> {
        let buffer = self.pool.take().ok_or(Counter::BuffersExhausted.of(number))?;
        let flow = &mut self.flows[number];
        let keys = self.peers[flow.peer as usize].keys.as_ref();
        let bytes = &mut self.pool.bytes(buffer)[HEADROOM + gach::HEADER..];
        let labels = [flow.send, flow.receive];
        let written =
            Keys::between(keys, labels, |authentication| flow.querier.write(query, authentication, bytes));
        let length = written.expect("a buffer holds the minimum IPv6 packet") as u16;
        let length = gach::HEADER as u16 + length;
        self.encapsulate_message(number, Buffered::new(buffer, length));
        Ok(())
    }

    /// Handles a message received for a flow: answers a query, or processes a response.
    #[inline]
    pub(super) fn handle_message(
        &mut self,
        now: Instant,
        at: Instant,
        flow: usize,
        payload: Buffered,
    ) -> Result<(), Refused> {
        let bytes = self.pool.packet(payload);
        match gach::read(bytes) {
            Ok(channel::DIRECT_LOSS_DELAY) => {}
            Ok(_) => return Err(Counter::ChannelUnknown.of(flow)),
            Err(_) => return Err(Counter::MessageMalformed.of(flow)),
        }
        if !Message::is_response(&bytes[gach::HEADER..]) {
            return self.send_response(now, at, flow, payload);
        }
        let reply = self.read_response(flow, payload)?;
        self.edge.handle_reply(at, flow, &reply);
        self.pool.give(payload.buffer);
        Ok(())
    }

    fn read_response(&mut self, number: usize, payload: Buffered) -> Result<Reply, Refused> {
        let bytes = &self.pool.packet(payload)[gach::HEADER..];
        let flow = &mut self.flows[number];
        let keys = self.peers[flow.peer as usize].keys.as_ref();
        let labels = [flow.send, flow.receive];
        let read = Keys::between(keys, labels, |authentication| flow.querier.read(bytes, authentication));
        read.map_err(|refused| {
            let counter = match refused {
                wire::Refused::Malformed(_) | wire::Refused::Tlv => Counter::MessageMalformed,
                wire::Refused::Digest => Counter::ReplyForged,
                wire::Refused::OtherSession => Counter::ReplyEarlier,
                wire::Refused::Unasked => Counter::ReplyUnasked,
                wire::Refused::Code(_) => Counter::ReplyError,
                wire::Refused::NotAResponse | wire::Refused::DataFormat | wire::Refused::Altered => {
                    Counter::ReplyWrong
                }
            };
            counter.of(number)
        })
    }

    /// Answers a query. The response reuses the buffer of the query and takes the opposite direction of the
    /// flow.
    fn send_response(
        &mut self,
        now: Instant,
        at: Instant,
        number: usize,
        payload: Buffered,
    ) -> Result<(), Refused> {
        let flow = &self.flows[number];
        let keys = self.peers[flow.peer as usize].keys.as_ref();
        let unix = |instant: Instant| self.epoch_unix_ns.saturating_add(instant.0);
        let times = Times { arrived_ns: unix(at), departs_ns: unix(now) };
        let sent_back = self.edge.packets_sent(number);
        let bytes = &mut self.pool.packet(payload)[gach::HEADER..];
        let answered = Keys::between(keys, [flow.send, flow.receive], |authentication| {
            wire::answer(bytes, &flow.egress, sent_back, times, authentication)
        });
        match answered {
            Ok(length) => {
                let length = (gach::HEADER + length) as u16;
                self.encapsulate_message(number, Buffered { length, ..payload });
                Ok(())
            }
            Err(unanswered) => {
                let counter = match unanswered {
                    Unanswered::Malformed(_) | Unanswered::NotAQuery => Counter::MessageMalformed,
                    Unanswered::Digest => Counter::QueryForged,
                    Unanswered::NotAsked => Counter::QueryRefused,
                };
                Err(counter.of(number))
            }
        }
    }
}
