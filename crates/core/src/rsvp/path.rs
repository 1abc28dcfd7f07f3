//! Path state: Path and PathTear messages (RFC 2205 sections 3.1.3 and 3.1.5, RFC 3209 sections 4.2 to 4.4).

use super::agenda::Timer;
use super::neighbor::{Outgoing, Slot, is_stale, lifetime};
use super::route::Target;
use super::state::{Downstream, LspState, PathContents, Upstream, encoded, rate, recorded, route};
use super::{Lsp, RsvpEvent, RsvpNeighbor, RsvpSpeaker};
use crate::time::{Duration, Instant};
use alloc::vec;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use netstage_wire::rsvp::message::RsvpMessage;
use netstage_wire::rsvp::object::{Hop, Object, class};
use netstage_wire::rsvp::route::RouteHop;
use netstage_wire::rsvp::{BANDWIDTH_UNAVAILABLE, error_code, kind, routing_error};

/// EtherType of IPv4, the protocol of all LSPs here.
pub(super) const IPV4: u16 = 0x0800;

/// Error code and value.
pub(super) type Refusal = (u8, u16);

/// Returns the LSP of a message about a path.
pub(super) fn lsp_of(message: &RsvpMessage<'_>) -> Option<Lsp> {
    Some(Lsp { session: message.session?, sender: message.sender? })
}

impl RsvpSpeaker {
    pub(super) fn handle_path(&mut self, now: Instant, from: RsvpNeighbor, message: &RsvpMessage<'_>) {
        let (Some(lsp), Some(contents)) = (lsp_of(message), PathContents::new(message)) else { return };
        if from.is_remote() || self.is_backup(lsp) {
            return self.handle_backup_path(now, from, message);
        }
        let previous = self.lsps.get(&lsp).and_then(|state| state.upstream);
        let is_known = previous.is_some_and(|upstream| upstream.neighbor == from);
        if is_known && is_stale(previous.and_then(|upstream| upstream.message_id), message.id) {
            self.counters.stale += 1;
            return;
        }
        if contents.ttl == 0 && !self.is_local(lsp.session.endpoint) {
            self.counters.ttl_exceeded += 1;
            return;
        }
        let period = Duration::from_millis(message.refresh_ms.unwrap_or(0).into());
        let upstream = Upstream {
            neighbor: from,
            handle: message.hop.map_or(0, |hop| hop.interface),
            lifetime: lifetime(period),
            message_id: message.id,
        };
        match self.accept_path(lsp, from, &contents, message) {
            Ok(downstream) => {
                let reduces = message.reduces_refreshes;
                self.install_path(now, lsp, upstream, downstream, contents, reduces);
                self.end_backup(now, lsp);
            }
            Err(refusal) => {
                // The message replaces the previous state, which ends with it.
                if is_known {
                    self.remove_path(now, lsp, true, true);
                }
                self.refuse_path(from, message, refusal);
            }
        }
    }

    /// Checks a Path message, and selects the next hop; `None` at the egress.
    fn accept_path(
        &mut self,
        lsp: Lsp,
        from: RsvpNeighbor,
        contents: &PathContents,
        message: &RsvpMessage<'_>,
    ) -> Result<Option<Downstream>, Refusal> {
        let routing = |value: u16| (error_code::ROUTING, value);
        let state = self.lsps.get(&lsp);
        // A sender has one previous hop at a time: another one is a loop, or a new route before the old one has ended.
        let is_elsewhere =
            state.is_some_and(|state| state.upstream.is_none_or(|upstream| upstream.neighbor != from));
        let is_repaired = self.lsp_from_downstream(lsp).is_some_and(|(_, is_backup)| is_backup);
        let is_own = self.is_local(lsp.sender.address) || is_repaired;
        let has_passed = message.record_route.is_some_and(|route| {
            let is_here = |hop| matches!(hop, RouteHop::Ipv4 { address, .. } if self.is_local(address));
            route.hops().any(is_here)
        });
        if is_elsewhere || is_own || has_passed {
            self.counters.loops += 1;
            return Err(routing(routing_error::LOOP));
        }
        if contents.protocol != IPV4 {
            return Err(routing(routing_error::UNSUPPORTED_PROTOCOL));
        }
        let is_new = state.is_none();
        let hops: Vec<RouteHop> = message.explicit_route.into_iter().flat_map(|route| route.hops()).collect();
        // A repaired LSP keeps its next hop, which cannot be reached over the link.
        let repaired = state.filter(|state| state.is_repaired()).and_then(|state| state.downstream.clone());
        let downstream = match repaired {
            Some(downstream) => Some(downstream),
            None => self.select_next_hop(lsp, from, &hops).map_err(routing)?,
        };
        if is_new && !self.is_within_limits(from) {
            return Err((error_code::SYSTEM, 0));
        }
        match &downstream {
            None if self.lacks_egress_label(lsp) => {
                self.counters.no_label += 1;
                Err(routing(routing_error::NO_LABEL))
            }
            Some(downstream) if !self.has_bandwidth(lsp, downstream.neighbor, contents) => {
                Err((error_code::ADMISSION, BANDWIDTH_UNAVAILABLE))
            }
            _ => Ok(downstream),
        }
    }

    /// Selects the next hop of an LSP by its explicit route; `None` at the egress. The error is a [`routing_error`].
    fn select_next_hop(
        &mut self,
        lsp: Lsp,
        from: RsvpNeighbor,
        hops: &[RouteHop],
    ) -> Result<Option<Downstream>, u16> {
        let target = self.target(lsp.session.endpoint, hops, false);
        let Ok(Target::Neighbor(neighbor, route)) = target else {
            self.counters.no_route += u64::from(target.is_err());
            return target.map(|_| None);
        };
        if neighbor == from {
            self.counters.loops += 1;
            return Err(routing_error::LOOP);
        }
        Ok(Some(self.downstream(neighbor, route)))
    }

    /// Returns a next hop that has not reserved the LSP yet.
    pub(super) fn downstream(&self, neighbor: RsvpNeighbor, route: Vec<RouteHop>) -> Downstream {
        let address = self.own_address(neighbor).unwrap_or(self.config.router);
        Downstream { neighbor, address, route, message_id: None, repair: None }
    }

    /// Returns whether the link to a neighbor can carry an LSP; counted otherwise.
    pub(super) fn has_bandwidth(&mut self, lsp: Lsp, to: RsvpNeighbor, contents: &PathContents) -> bool {
        let link = self.links.entry(to.interface).or_default();
        let is_available = link.admits(lsp, contents.style(), rate(&contents.tspec).0);
        self.counters.no_bandwidth += u64::from(!is_available);
        is_available
    }

    fn install_path(
        &mut self,
        now: Instant,
        lsp: Lsp,
        upstream: Upstream,
        downstream: Option<Downstream>,
        path: PathContents,
        reduces_refreshes: bool,
    ) {
        let previous = self.lsps.get(&lsp);
        let is_same_hop = previous.is_some_and(|state| {
            let neighbor = |downstream: &Option<Downstream>| downstream.as_ref().map(|next| next.neighbor);
            neighbor(&state.downstream) == neighbor(&downstream)
        });
        if previous.is_some() && !is_same_hop {
            self.remove_path(now, lsp, true, true);
        }
        let from = upstream.neighbor;
        let Some(state) = self.lsps.get_mut(&lsp) else {
            self.add_path(
                now,
                lsp,
                LspState {
                    path,
                    upstream: Some(upstream),
                    downstream,
                    reservation: None,
                    label: None,
                    backup: None,
                },
            );
            self.use_neighbor(now, from, true, Some(reduces_refreshes));
            self.index(from, Slot::Path(lsp), None, upstream.message_id);
            self.agenda.set(Timer::PathCleanup(lsp), now + upstream.lifetime);
            return self.continue_path(now, lsp);
        };
        let route = |downstream: &Option<Downstream>| downstream.as_ref().map(|next| next.route.clone());
        let is_changed = state.path != path
            || route(&state.downstream) != route(&downstream)
            || state.upstream.is_some_and(|before| before.handle != upstream.handle);
        state.path = path;
        if let (Some(next), Some(downstream)) = (&mut state.downstream, downstream) {
            next.route = downstream.route;
        }
        let before = state.upstream.replace(upstream);
        let last = before.and_then(|before| before.message_id);
        self.index(from, Slot::Path(lsp), last, upstream.message_id);
        self.agenda.set(Timer::PathCleanup(lsp), now + upstream.lifetime);
        if is_changed {
            self.continue_path(now, lsp);
        }
    }

    /// Adds the state of a new LSP.
    pub(super) fn add_path(&mut self, now: Instant, lsp: Lsp, state: LspState) {
        if let Some(downstream) = &state.downstream {
            self.use_neighbor(now, downstream.neighbor, false, None);
            self.agenda.set(Timer::Setup(lsp), now + self.config.setup_timeout);
        }
        self.lsps.insert(lsp, state);
    }

    /// Forwards a new or changed Path message, or answers it at the egress.
    fn continue_path(&mut self, now: Instant, lsp: Lsp) {
        match self.lsps.get(&lsp).map(|state| state.downstream.is_some()) {
            Some(true) => self.send_path(now, lsp),
            Some(false) => self.reserve_at_egress(now, lsp),
            None => {}
        }
    }

    /// Sends a Path message downstream.
    pub(super) fn send_path(&mut self, now: Instant, lsp: Lsp) {
        let Some(state) = self.lsps.get(&lsp) else { return };
        let (path, Some(downstream)) = (state.path.clone(), state.downstream.clone()) else { return };
        let (sender, to) = downstream.signaled(lsp.sender);
        let Some(address) = self.own_address(to) else { return };
        let mut hops = downstream.route;
        if let Some(first) = hops.first_mut().filter(|_| to.is_remote()) {
            *first = RouteHop::strict(to.address);
        }
        let explicit_bytes = encoded(&hops);
        let recorded_bytes = path.record_route.as_ref().map(|rest| recorded(RouteHop::strict(address), rest));
        let mut objects = self.head(lsp, to, address);
        objects.extend(route(&explicit_bytes, class::EXPLICIT_ROUTE).map(Object::ExplicitRoute));
        objects.push(Object::LabelRequest(path.protocol));
        objects.extend(path.attributes());
        objects.push(Object::SenderTemplate(sender));
        objects.extend(path.traffic());
        let recorded = recorded_bytes.as_deref().and_then(|bytes| route(bytes, class::RECORD_ROUTE));
        objects.extend(recorded.map(Object::RecordRoute));
        let (source, destination) = ends(lsp, to, address);
        let (ttl, foreign) = (path.ttl, &path.foreign[..]);
        let message = Outgoing { kind: kind::PATH, source, destination, ttl, objects, foreign };
        self.send(now, to, Slot::Path(Lsp { sender, ..lsp }), &message);
    }

    /// Objects at the beginning of Path messages.
    fn head(&self, lsp: Lsp, to: RsvpNeighbor, address: Ipv4Addr) -> Vec<Object<'static>> {
        vec![
            Object::Session(lsp.session),
            Object::Hop(Hop { address, interface: to.interface }),
            Object::TimeValues(self.refresh_ms()),
        ]
    }

    fn send_path_tear(&mut self, now: Instant, lsp: Lsp, state: &LspState) {
        let Some(downstream) = &state.downstream else { return };
        let (sender, to) = downstream.signaled(lsp.sender);
        let Some(address) = self.own_address(to) else { return };
        let hop = Object::Hop(Hop { address, interface: to.interface });
        let mut objects = vec![Object::Session(lsp.session), hop, Object::SenderTemplate(sender)];
        objects.extend(state.path.traffic());
        let (source, destination) = ends(lsp, to, address);
        let ttl = state.path.ttl;
        let message = Outgoing { kind: kind::PATH_TEAR, source, destination, ttl, objects, foreign: &[] };
        self.send(now, to, Slot::Path(Lsp { sender, ..lsp }), &message);
    }

    pub(super) fn refresh_path(&mut self, now: Instant, named: Lsp) {
        let Some((lsp, _)) = self.lsp_from_downstream(named) else { return };
        let Some(downstream) = self.lsps.get(&lsp).and_then(|state| state.downstream.as_ref()) else {
            return;
        };
        let (sender, to) = downstream.signaled(lsp.sender);
        if sender == named.sender && !self.refresh(now, to, Slot::Path(named)) {
            self.send_path(now, lsp);
        }
    }

    pub(super) fn setup_timeout(&mut self, lsp: Lsp) {
        let Some(state) = self.lsps.get(&lsp) else { return };
        if let (None, Some(downstream)) = (&state.reservation, &state.downstream) {
            self.counters.unreserved += 1;
            let upstream = state.upstream.map(|upstream| upstream.neighbor);
            self.events.push_back(RsvpEvent::Unreserved { lsp, upstream, downstream: downstream.neighbor });
        }
    }

    pub(super) fn handle_path_tear(&mut self, now: Instant, from: RsvpNeighbor, message: &RsvpMessage<'_>) {
        let Some(named) = lsp_of(message) else { return };
        let lsp = self.lsp_from_upstream(named).unwrap_or(named);
        let hop = |state: &LspState| state.previous_hops(lsp).find(|(own, _)| *own == named);
        match self.lsps.get(&lsp).map(hop) {
            None => self.counters.unknown_lsp += 1,
            Some(Some((_, upstream))) if upstream.is(from) => {
                if is_stale(upstream.message_id, message.id) {
                    self.counters.stale += 1;
                } else {
                    self.remove_path(now, lsp, false, true);
                }
            }
            Some(_) => self.counters.wrong_hop += 1,
        }
    }

    /// Removes an LSP, with a ResvTear message upstream and a PathTear message downstream if requested.
    pub(super) fn remove_path(
        &mut self,
        now: Instant,
        lsp: Lsp,
        tears_upstream: bool,
        tears_downstream: bool,
    ) {
        self.remove_reservation(now, lsp, tears_upstream);
        let Some(state) = self.lsps.remove(&lsp) else { return };
        [Timer::PathCleanup(lsp), Timer::Setup(lsp)].into_iter().for_each(|timer| self.agenda.cancel(timer));
        if let Some(backup) = state.backup {
            self.release_backup(lsp, backup);
        }
        if let Some(downstream) = &state.downstream {
            self.forget(now, downstream.neighbor, Slot::Path(lsp));
            if let Some(repair) = downstream.repair {
                self.forget(now, repair.merge_point, Slot::Path(Lsp { sender: repair.sender, ..lsp }));
            }
            if tears_downstream {
                self.send_path_tear(now, lsp, &state);
            }
            if let Some(repair) = downstream.repair {
                self.release_neighbor(repair.merge_point, false);
            }
            self.release_neighbor(downstream.neighbor, false);
        }
        if let Some(upstream) = state.upstream {
            self.index(upstream.neighbor, Slot::Path(lsp), upstream.message_id, None);
            self.release_neighbor(upstream.neighbor, true);
        } else {
            self.ingress_removed(now, lsp);
        }
    }

    /// Removes an LSP without a way, and reports it in both directions.
    pub(super) fn abandon(&mut self, now: Instant, lsp: Lsp) {
        self.report_path(now, lsp, (error_code::ROUTING, routing_error::NO_ROUTE));
        self.remove_path(now, lsp, true, true);
    }

    /// Removes the LSPs with this previous or next hop, whose interface is gone, and reports it in both directions. Keeps
    /// those that a bypass repairs.
    pub(super) fn remove_paths_through(&mut self, now: Instant, neighbor: RsvpNeighbor, repairs: bool) {
        let uses = |state: &LspState| {
            let next = state.downstream.as_ref().is_some_and(|downstream| downstream.neighbor == neighbor);
            next || state.upstream.is_some_and(|upstream| upstream.neighbor == neighbor)
        };
        let lsps: Vec<Lsp> = self.lsps.iter().filter(|(_, state)| uses(state)).map(|(lsp, _)| *lsp).collect();
        for lsp in lsps {
            if !repairs || !self.repair(now, lsp, neighbor) {
                self.abandon(now, lsp);
            }
        }
    }
}

/// Returns the source and destination address of a Path or PathTear message.
fn ends(lsp: Lsp, to: RsvpNeighbor, own: Ipv4Addr) -> (Ipv4Addr, Ipv4Addr) {
    if to.is_remote() { (own, to.address) } else { (lsp.sender.address, lsp.session.endpoint) }
}
