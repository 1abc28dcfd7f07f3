//! VPN flows with a tape beside them, which can be switched on.

use super::Edge;
use super::event::{Event, Sent};
use crate::fair::{Published, Reply, Transmit};
use crate::packet::Packet;
use crate::time::Instant;
use alloc::vec::Vec;
use core::ops::Deref;

/// An [`Edge`] whose decisions can be recorded. What only reads it, reads the `Edge`.
#[derive(Debug)]
pub struct Tape<H> {
    edge: Edge<H>,
    /// What was recorded and not taken yet; none: nothing is recorded.
    events: Option<Vec<Event>>,
    /// The last of them is a turn at which nothing was due.
    is_idle: bool,
}

impl<H> Deref for Tape<H> {
    type Target = Edge<H>;

    #[inline]
    fn deref(&self) -> &Edge<H> {
        &self.edge
    }
}

impl<H: Packet> Tape<H> {
    /// Flows that have decided nothing yet; nothing is recorded.
    pub fn new(edge: Edge<H>) -> Tape<H> {
        Tape { edge, events: None, is_idle: false }
    }

    /// Begins to record. Flows that have decided something before cannot be replayed.
    pub fn begin(&mut self) {
        self.events = Some(Vec::new());
    }

    /// What was recorded since this was last asked.
    pub fn take(&mut self) -> Vec<Event> {
        self.is_idle = false;
        self.events.as_mut().map(core::mem::take).unwrap_or_default()
    }

    /// Events recorded and not taken.
    #[inline]
    pub fn recorded(&self) -> usize {
        self.events.as_ref().map_or(0, Vec::len)
    }

    /// Records no more.
    pub fn stop(&mut self) {
        self.events = None;
    }

    /// The flows, for another configuration.
    pub fn edge_mut(&mut self) -> &mut Edge<H> {
        &mut self.edge
    }

    /// The tape goes on here instead of there.
    pub fn go_on_from(&mut self, other: &mut Tape<H>) {
        (self.events, self.is_idle) = (other.events.take(), false);
    }

    /// See [`Edge::handle_packet`].
    #[inline]
    pub fn handle_packet(&mut self, now: Instant, flow: usize, packet: H) -> Result<(), H> {
        if self.events.is_none() {
            return self.edge.handle_packet(now, flow, packet);
        }
        let mut event = Event::Packet {
            at: now.0,
            flow: flow as u32,
            size: packet.size(),
            class: packet.class().into(),
            inside: packet.flow_key() as u32,
            ecn: packet.ecn() as u32,
            taken: true,
        };
        let handled = self.edge.handle_packet(now, flow, packet);
        if let Event::Packet { taken, .. } = &mut event {
            *taken = handled.is_ok();
        }
        self.push(event);
        handled
    }

    /// See [`Edge::handle_reply`].
    #[inline]
    pub fn handle_reply(&mut self, at: Instant, flow: usize, reply: &Reply) {
        self.edge.handle_reply(at, flow, reply);
        if self.events.is_some() {
            let window = self.edge.window(flow).map_or(0.0, |ingress| ingress.window());
            self.push(Event::reply(at, flow, reply, window));
        }
    }

    /// See [`Edge::handle_reference`].
    pub fn handle_reference(&mut self, reference: usize, published: Published) {
        self.edge.handle_reference(reference, published);
        self.push(Event::reference(reference, &published));
    }

    /// See [`Edge::wake`].
    pub fn wake(&mut self, now: Instant, flow: usize) {
        self.edge.wake(now, flow);
        self.push(Event::Wake { at: now.0, flow: flow as u32 });
    }

    /// See [`Edge::handle_timeout`]. A turn begins.
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(events) = &mut self.events {
            // All that turns change at which nothing is due is how far time has come.
            let is_idle = self.edge.poll_timeout() > now;
            if is_idle && self.is_idle {
                events.pop();
            }
            events.push(Event::Turn { at: now.0, sent: Vec::new(), drained: false });
            self.is_idle = is_idle;
        }
        self.edge.handle_timeout(now);
    }

    /// See [`Edge::poll_transmit`].
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(usize, Transmit<H>)> {
        let transmit = self.edge.poll_transmit(now);
        if let Some(Event::Turn { sent, drained, .. }) =
            self.events.as_mut().and_then(|events| events.last_mut())
        {
            match &transmit {
                Some((flow, transmit)) => sent.push(Sent::new(*flow, transmit)),
                None => *drained = true,
            }
        }
        transmit
    }

    /// See [`Edge::poll_dropped`].
    #[inline]
    pub fn poll_dropped(&mut self) -> Option<(usize, H)> {
        self.edge.poll_dropped()
    }

    fn push(&mut self, event: Event) {
        if let Some(events) = &mut self.events {
            events.push(event);
            self.is_idle = false;
        }
    }
}
