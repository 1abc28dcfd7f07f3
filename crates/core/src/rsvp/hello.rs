//! Hellos (RFC 3209 section 5): detection of neighbors that fail, or restart without their state.

use super::agenda::Timer;
use super::state::LspState;
use super::{Lsp, RsvpEvent, RsvpNeighbor, RsvpSpeaker};
use crate::time::{Duration, Instant};
use alloc::vec::Vec;
use netstage_wire::rsvp::kind;
use netstage_wire::rsvp::object::{Hello, Object};

impl RsvpSpeaker {
    pub(super) fn send_hello(&mut self, now: Instant, to: RsvpNeighbor) {
        let (Some(interval), Some(neighbor)) = (self.config.hello, self.neighbors.get(&to)) else { return };
        let hello = Hello { is_request: true, source: self.config.instance, destination: neighbor.instance };
        self.send_control(to, kind::HELLO, &[Object::Hello(hello)]);
        self.agenda.set(Timer::Hello(to), now + interval);
    }

    pub(super) fn handle_hello(&mut self, now: Instant, from: RsvpNeighbor, hello: Hello) {
        let instance = self.config.instance;
        if hello.source == 0 {
            self.counters.malformed += 1;
            return;
        }
        if hello.is_request {
            let answer = Hello { is_request: false, source: instance, destination: hello.source };
            self.send_control(from, kind::HELLO, &[Object::Hello(answer)]);
        }
        let timeout = self.config.hello.unwrap_or(Duration::ZERO) * 7 / 2;
        let Some(neighbor) = self.neighbors.get_mut(&from) else { return };
        // A request does not show that the neighbor receives our hellos.
        if hello.is_request && hello.destination == 0 && neighbor.instance == 0 {
            return;
        }
        let previous = core::mem::replace(&mut neighbor.instance, hello.source);
        let has_restarted = previous != 0 && previous != hello.source;
        let has_lost_us = previous != 0 && hello.destination != 0 && hello.destination != instance;
        if self.config.hello.is_some() {
            self.agenda.set(Timer::HelloTimeout(from), now + timeout);
        }
        if has_restarted || has_lost_us {
            self.neighbor_down(now, from, false);
        }
        if previous == 0 {
            self.events.push_back(RsvpEvent::NeighborUp { neighbor: from });
            self.repeat_paths(now, from);
            self.resume_paths(now, |neighbor| neighbor == from);
        }
    }

    /// Sends the Path messages again that a neighbor has not answered, perhaps because it has just started.
    fn repeat_paths(&mut self, now: Instant, to: RsvpNeighbor) {
        let is_waiting = |state: &LspState| {
            state.reservation.is_none() && state.downstream.as_ref().is_some_and(|next| next.neighbor == to)
        };
        let waiting: Vec<Lsp> =
            self.lsps.iter().filter(|(_, state)| is_waiting(state)).map(|(lsp, _)| *lsp).collect();
        waiting.into_iter().for_each(|lsp| self.send_path(now, lsp));
    }

    pub(super) fn hello_timeout(&mut self, now: Instant, from: RsvpNeighbor) {
        if let Some(neighbor) = self.neighbors.get_mut(&from) {
            neighbor.instance = 0;
            self.neighbor_down(now, from, true);
        }
    }

    /// Handles the failure of a neighbor that another protocol has detected, such as BFD. The neighbor is up again with
    /// its next hello.
    pub fn fail_neighbor(&mut self, now: Instant, neighbor: RsvpNeighbor) {
        self.agenda.cancel(Timer::HelloTimeout(neighbor));
        self.hello_timeout(now, neighbor);
    }

    /// Removes the state received from a neighbor (RFC 3209 section 5.3). Keeps the LSPs that a bypass repairs, unless the
    /// neighbor has lost them.
    fn neighbor_down(&mut self, now: Instant, neighbor: RsvpNeighbor, repairs: bool) {
        self.events.push_back(RsvpEvent::NeighborDown { neighbor });
        let (mut from, mut through) = (Vec::new(), Vec::new());
        for (lsp, state) in &self.lsps {
            if state.upstream.is_some_and(|upstream| upstream.neighbor == neighbor) {
                from.push(*lsp);
            } else if state.downstream.as_ref().is_some_and(|downstream| downstream.neighbor == neighbor) {
                through.push(*lsp);
            }
        }
        for lsp in from {
            if !repairs || !self.repair(now, lsp, neighbor) {
                self.remove_path(now, lsp, false, true);
            }
        }
        for lsp in through {
            if !repairs || !self.repair(now, lsp, neighbor) {
                self.remove_reservation(now, lsp, true);
                self.send_path(now, lsp);
            }
        }
    }
}
