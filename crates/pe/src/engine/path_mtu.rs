//! Path MTU to each peer: management queries with padding, in a session of their own, on a VPN flow of the peer.
//!
//! Sizes are those of the customer packet that fills the same frame.

use super::pool::{HEADROOM, StoredPacket};
use super::{Counter, EngineState, Keys, PacketDrop, setup};
use netstage_core::fair::Query;
use netstage_core::fair::wire::{Querier, ResponseError};
use netstage_core::path_mtu::PathMtu;
use netstage_core::time::Instant;
use netstage_wire::gach;
use netstage_wire::mpls::ENTRY;

/// Bytes of a frame that a message has no use of: the generic channel label and the channel header.
const CHANNEL: usize = ENTRY + gach::HEADER;

/// Discovery of the path MTU to a peer.
#[derive(Debug)]
pub(super) struct PathProber {
    pub discovery: PathMtu,
    /// The sequence number of a query is the size of the probe.
    pub querier: Querier,
    /// VPN flow that carries the probes; `None` without one.
    pub flow: Option<u32>,
    /// Size and state that were last reported.
    reported: Option<(u16, bool)>,
}

/// Present path MTU to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtuView {
    /// Largest customer packet that the path carries, bytes.
    pub mtu: u16,
    /// Largest customer packet that the first link carries, bytes.
    pub largest: u16,
    /// Packets of the smallest MTU of IPv6 do not pass.
    pub is_too_small: bool,
}

impl PathProber {
    pub fn new(querier: Querier, flow: Option<u32>, mtu: u16) -> PathProber {
        let discovery = PathMtu::new(setup::MIN_MTU as u16, mtu);
        PathProber { discovery, querier, flow, reported: None }
    }

    /// Starts again on another path.
    pub fn restart(&mut self, mtu: u16) {
        self.discovery = PathMtu::new(setup::MIN_MTU as u16, mtu);
    }

    /// Adopts what the previous configuration knows of the same path.
    pub fn take_over(&mut self, known: &mut PathProber) {
        if known.discovery.largest() == self.discovery.largest() {
            std::mem::swap(&mut self.discovery, &mut known.discovery);
            std::mem::swap(&mut self.querier, &mut known.querier);
        }
        self.reported = known.reported;
    }

    pub fn view(&self) -> PathMtuView {
        PathMtuView {
            mtu: self.discovery.mtu(),
            largest: self.discovery.largest(),
            is_too_small: self.discovery.is_too_small(),
        }
    }

    /// Returns the present state if it has changed since the last call.
    pub fn change(&mut self) -> Option<PathMtuView> {
        let view = self.view();
        let state = (view.mtu, view.is_too_small);
        let before = self.reported.replace(state).unwrap_or((view.largest, false));
        (before != state).then_some(view)
    }
}

impl EngineState {
    /// Sends the probes that are due.
    pub(super) fn probe_paths(&mut self, now: Instant) {
        if now < self.paths_due {
            return;
        }
        self.paths_due = Instant::NEVER;
        for peer in 0..self.peers.len() {
            let Some(flow) = self.peers[peer].path.flow.filter(|_| self.peers[peer].is_reachable) else {
                continue;
            };
            while let Some(size) = self.peers[peer].path.discovery.poll_probe(now) {
                if let Err(dropped) = self.send_probe(now, peer, flow as usize, size) {
                    self.count(dropped);
                }
            }
            self.apply_path_mtu(peer);
        }
    }

    /// Confirms the path of a flow soon, because it loses most packets.
    pub(super) fn suspect_path(&mut self, now: Instant, flow: usize) {
        let peer = self.flows[flow].peer as usize;
        self.peers[peer].path.discovery.suspect(now);
        self.paths_due = self.paths_due.min(self.peers[peer].path.discovery.poll_timeout());
    }

    /// Uses the size that the discovery has found.
    fn apply_path_mtu(&mut self, peer: usize) {
        let known = &mut self.peers[peer];
        known.mtu = known.path.discovery.mtu();
        self.paths_due = self.paths_due.min(known.path.discovery.poll_timeout());
    }

    fn send_probe(&mut self, now: Instant, peer: usize, number: usize, size: u16) -> Result<(), PacketDrop> {
        let buffer = self.pool.take().ok_or(Counter::BuffersExhausted.of(number))?;
        let flow = &self.flows[number];
        let labels = [flow.send, flow.receive];
        let peer = &mut self.peers[peer];
        let querier = &mut peer.path.querier;
        let length = match usize::from(size).checked_sub(CHANNEL) {
            Some(length) => length,
            None => querier.query_length(peer.keys.is_some()),
        };
        let bytes = &mut self.pool.bytes(buffer)[HEADROOM + gach::HEADER..][..length];
        let query = Query { sequence: size.into(), sent_at: now, packets_sent: 0 };
        let written = Keys::between(peer.keys.as_ref(), labels, |authentication| {
            querier.write_padded(query, authentication, bytes)
        });
        written.expect("a buffer holds the largest packet of the path");
        self.encapsulate_message(number, StoredPacket::new(buffer, (gach::HEADER + length) as u16));
        Ok(())
    }

    /// Reads the response to a probe. `message` has no channel header.
    pub(super) fn read_probe_response(
        &mut self,
        now: Instant,
        number: usize,
        payload: StoredPacket,
    ) -> Result<(), ResponseError> {
        let message = &self.pool.packet(payload)[gach::HEADER..];
        let flow = &self.flows[number];
        let peer = flow.peer as usize;
        let labels = [flow.send, flow.receive];
        let known = &mut self.peers[peer];
        let querier = &mut known.path.querier;
        let reply = Keys::between(known.keys.as_ref(), labels, |authentication| {
            querier.read(message, authentication)
        })?;
        known.path.discovery.handle_reply(now, reply.query.sequence as u16);
        self.apply_path_mtu(peer);
        Ok(())
    }
}
