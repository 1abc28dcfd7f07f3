//! VPN flows whose inputs and decisions can be recorded.

use super::ProviderEdge;
use super::event::{EdgeEvent, SentPacket};
use crate::fair::crowd::PeNews;
use crate::fair::{IngressTransmit, PublishedReference, Reply};
use crate::packet::QueuePacket;
use crate::time::Instant;
use alloc::vec::Vec;
use core::ops::Deref;

/// A [`ProviderEdge`] with optional recording. It dereferences to the `ProviderEdge` for read access.
#[derive(Debug)]
pub struct EdgeRecorder<H> {
    edge: ProviderEdge<H>,
    /// Events recorded and not yet taken; `None` if recording is off.
    events: Option<Vec<EdgeEvent>>,
    /// Whether the last event is a turn at which no timer was due.
    is_idle: bool,
}

impl<H> Deref for EdgeRecorder<H> {
    type Target = ProviderEdge<H>;

    #[inline]
    fn deref(&self) -> &ProviderEdge<H> {
        &self.edge
    }
}

impl<H: QueuePacket> EdgeRecorder<H> {
    /// Wraps an edge that has not made any decision yet; recording is off.
    pub fn new(edge: ProviderEdge<H>) -> EdgeRecorder<H> {
        EdgeRecorder { edge, events: None, is_idle: false }
    }

    /// Starts recording. A recording can only be replayed if the flows have not made any decision before.
    pub fn begin(&mut self) {
        self.events = Some(Vec::new());
    }

    /// Removes and returns the events recorded so far.
    pub fn take(&mut self) -> Vec<EdgeEvent> {
        self.is_idle = false;
        self.events.as_mut().map(core::mem::take).unwrap_or_default()
    }

    /// Returns the number of events recorded and not yet taken.
    #[inline]
    pub fn recorded(&self) -> usize {
        self.events.as_ref().map_or(0, Vec::len)
    }

    /// Stops recording.
    pub fn stop(&mut self) {
        self.events = None;
    }

    /// Returns the flows for a change of configuration.
    pub fn edge_mut(&mut self) -> &mut ProviderEdge<H> {
        &mut self.edge
    }

    /// Continues the recording of another instance here.
    pub fn continue_from(&mut self, other: &mut EdgeRecorder<H>) {
        (self.events, self.is_idle) = (other.events.take(), false);
    }

    /// Records and calls [`ProviderEdge::handle_packet`].
    #[inline]
    pub fn handle_packet(&mut self, now: Instant, flow: usize, packet: H) -> Result<(), H> {
        if self.events.is_none() {
            return self.edge.handle_packet(now, flow, packet);
        }
        let mut event = EdgeEvent::Packet {
            at: now.0,
            flow: flow as u32,
            size: packet.size(),
            class: packet.class().into(),
            inside: packet.flow_key() as u32,
            ecn: packet.ecn() as u32,
            taken: true,
        };
        let handled = self.edge.handle_packet(now, flow, packet);
        if let EdgeEvent::Packet { taken, .. } = &mut event {
            *taken = handled.is_ok();
        }
        self.push(event);
        handled
    }

    /// Records and calls [`ProviderEdge::handle_reply`].
    #[inline]
    pub fn handle_reply(&mut self, at: Instant, flow: usize, reply: &Reply) {
        self.edge.handle_reply(at, flow, reply);
        if self.events.is_some() {
            self.push(EdgeEvent::reply(at, flow, reply, self.edge.permitted(flow)));
        }
    }

    /// Records and calls [`ProviderEdge::handle_reference`].
    pub fn handle_reference(&mut self, reference: usize, published: PublishedReference) {
        self.edge.handle_reference(reference, published);
        self.push(EdgeEvent::reference(reference, &published));
    }

    /// Records and calls [`ProviderEdge::publish_news`].
    pub fn publish_news(&mut self, now: Instant) -> PeNews {
        let news = self.edge.publish_news(now);
        if self.events.is_some() {
            self.push(EdgeEvent::published(now, &news));
        }
        news
    }

    /// Records and calls [`ProviderEdge::handle_news`].
    pub fn handle_news(&mut self, at: Instant, publisher: u64, news: &PeNews) {
        self.edge.handle_news(at, publisher, news);
        self.push(EdgeEvent::news(at, publisher, news));
    }

    /// Records and calls [`ProviderEdge::consider_news`].
    pub fn consider_news(&mut self, now: Instant) {
        self.edge.consider_news(now);
        self.push(EdgeEvent::Consensus { at: now.0 });
    }

    /// Records and calls [`ProviderEdge::wake`].
    pub fn wake(&mut self, now: Instant, flow: usize) {
        self.edge.wake(now, flow);
        self.push(EdgeEvent::Wake { at: now.0, flow: flow as u32 });
    }

    /// Records the beginning of a turn and calls [`ProviderEdge::handle_timeout`].
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(events) = &mut self.events {
            // Consecutive turns at which no timer is due change only the time, so one of them is enough.
            let is_idle = self.edge.poll_timeout() > now;
            if is_idle && self.is_idle {
                events.pop();
            }
            events.push(EdgeEvent::Turn { at: now.0, sent: Vec::new(), drained: false });
            self.is_idle = is_idle;
        }
        self.edge.handle_timeout(now);
    }

    /// Calls [`ProviderEdge::poll_transmit`] and records the packet in the current turn.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(usize, IngressTransmit<H>)> {
        let transmit = self.edge.poll_transmit(now);
        if let Some(EdgeEvent::Turn { sent, drained, .. }) =
            self.events.as_mut().and_then(|events| events.last_mut())
        {
            match &transmit {
                Some((flow, transmit)) => sent.push(SentPacket::new(*flow, transmit)),
                None => *drained = true,
            }
        }
        transmit
    }

    /// Calls [`ProviderEdge::poll_dropped`].
    #[inline]
    pub fn poll_dropped(&mut self) -> Option<(usize, H)> {
        self.edge.poll_dropped()
    }

    fn push(&mut self, event: EdgeEvent) {
        if let Some(events) = &mut self.events {
            events.push(event);
            self.is_idle = false;
        }
    }
}
