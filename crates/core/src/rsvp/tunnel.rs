//! Tunnels that begin at this router: setup of their LSPs, retries, and make-before-break replacement (RFC 3209 section
//! 2.5): the previous LSP is removed when the new one is established.

use super::agenda::Timer;
use super::path::IPV4;
use super::route::{Target, contains};
use super::state::{Attribute, LspState, PathContents};
use super::{Lsp, RsvpEvent, RsvpNextHop, RsvpSpeaker};
use crate::quantity::BitRate;
use crate::time::{Duration, Instant};
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use netstage_wire::rsvp::object::{Sender, Session, TokenBucket, attribute_flag};
use netstage_wire::rsvp::route::RouteHop;
use netstage_wire::rsvp::{BANDWIDTH_UNAVAILABLE, error_code, routing_error};

/// A requested tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelRequest {
    /// Router ID of the egress.
    pub endpoint: Ipv4Addr,
    /// Explicit route, without this router. Hops before the endpoint may be omitted; the path is then that of the
    /// routes.
    pub route: Vec<RouteHop>,
    /// Bandwidth to reserve.
    pub bandwidth: BitRate,
    /// Name, for other routers.
    pub name: Vec<u8>,
    /// Routers on the way may keep the LSP when a link fails, and send its packets through a bypass LSP (RFC 4090).
    pub is_protected: bool,
}

/// Priorities of all tunnels, the lowest ones: no tunnel preempts another one.
const PRIORITY: u8 = 7;
/// Maximum packet size in traffic specifications, bytes.
const MAX_PACKET: u32 = 1500;

/// Time from the use of a new LSP to the removal of the previous one, in which packets are still under way.
const TEARDOWN_DELAY: Duration = Duration::from_secs(2);
/// Time from a new route to the setup of the tunnels that lacked it. Routes change together.
const ROUTE_DELAY: Duration = Duration::from_millis(100);

/// A tunnel.
#[derive(Clone, Debug)]
pub(super) struct Tunnel {
    request: TunnelRequest,
    /// The LSP that was signaled last.
    current: Option<Lsp>,
    /// The LSP in use until the current one is established; removed some time later.
    previous: Option<Lsp>,
}

/// General parameters of a path for integrated services (RFC 2210 section 3.3): hops, bandwidth, latency and MTU, and no
/// parameters of controlled load.
const ADSPEC: [u8; 44] = [
    0, 0, 0, 10, // version and length in words
    1, 0, 0, 8, // general parameters
    4, 0, 0, 1, 0, 0, 0, 1, // hops
    6, 0, 0, 1, 0x4e, 0x6e, 0x6b, 0x28, // bandwidth, 1e9 bytes per second
    8, 0, 0, 1, 0, 0, 0, 0, // latency
    10, 0, 0, 1, 0, 0, 0x05, 0xdc, // MTU
    5, 0, 0, 0, // controlled load
];

impl RsvpSpeaker {
    /// Adds or changes a tunnel. Its LSP stays in use until the LSP of the new request is established.
    pub fn set_tunnel(&mut self, now: Instant, tunnel: u16, request: TunnelRequest) {
        let before = self.tunnels.get(&tunnel);
        if before.is_some_and(|before| before.request == request) {
            return;
        }
        // The LSP in use is kept, any other one is removed. Another endpoint is another session.
        let lsps = before.map_or([None; 2], |before| [before.current, before.previous]);
        let is_moved = before.is_some_and(|before| before.request.endpoint != request.endpoint);
        let in_use = |lsp: &Lsp| !is_moved && self.is_established(*lsp);
        let previous = lsps.into_iter().flatten().find(in_use);
        self.tunnels.insert(tunnel, Tunnel { request, current: None, previous });
        for lsp in lsps.into_iter().flatten().filter(|lsp| Some(*lsp) != previous) {
            self.remove_path(now, lsp, false, true);
        }
        self.signal(now, tunnel);
    }

    /// Removes a tunnel.
    pub fn remove_tunnel(&mut self, now: Instant, tunnel: u16) {
        let Some(removed) = self.tunnels.remove(&tunnel) else { return };
        self.agenda.cancel(Timer::Tunnel(tunnel));
        self.agenda.cancel(Timer::Replaced(tunnel));
        for lsp in [removed.current, removed.previous].into_iter().flatten() {
            self.remove_path(now, lsp, false, true);
        }
    }

    fn is_established(&self, lsp: Lsp) -> bool {
        self.lsps.get(&lsp).is_some_and(|state| state.reservation.is_some())
    }

    /// Signals the LSP of a tunnel that has none; tries again after a refresh period if there is no route.
    pub(super) fn signal(&mut self, now: Instant, number: u16) {
        let Some(tunnel) = self.tunnels.get(&number).filter(|tunnel| tunnel.current.is_none()) else {
            return;
        };
        let request = tunnel.request.clone();
        let session = Session {
            endpoint: request.endpoint,
            tunnel: number.into(),
            extended: self.config.router.into(),
        };
        self.lsp_id = self.lsp_id.wrapping_add(1);
        let lsp = Lsp { session, sender: Sender { address: self.config.router, lsp: self.lsp_id.into() } };
        let path = contents(&request);
        let refusal = match self.target(request.endpoint, &request.route, true) {
            Ok(Target::Neighbor(neighbor, route)) if self.has_bandwidth(lsp, neighbor, &path) => {
                let downstream = Some(self.downstream(neighbor, route));
                let state = LspState {
                    path,
                    upstream: None,
                    downstream,
                    reservation: None,
                    label: None,
                    backup: None,
                };
                self.add_path(now, lsp, state);
                if let Some(tunnel) = self.tunnels.get_mut(&number) {
                    tunnel.current = Some(lsp);
                }
                return self.send_path(now, lsp);
            }
            Ok(Target::Neighbor(..)) => (error_code::ADMISSION, BANDWIDTH_UNAVAILABLE),
            Ok(Target::Egress) => (error_code::ROUTING, routing_error::BAD_EXPLICIT_ROUTE),
            Err(value) => (error_code::ROUTING, value),
        };
        self.tunnel_failed(number, refusal);
        self.agenda.set(Timer::Tunnel(number), now + self.config.refresh);
    }

    /// Signals the tunnels without an LSP soon whose route leads to an address of a prefix.
    pub(super) fn retry_tunnels_to(&mut self, now: Instant, network: Ipv4Addr, length: u8) {
        let leads_there = |tunnel: &Tunnel| {
            let hops = tunnel.request.route.iter().filter_map(|hop| match hop {
                RouteHop::Ipv4 { address, .. } => Some(*address),
                _ => None,
            });
            let mut addresses = hops.chain([tunnel.request.endpoint]);
            tunnel.current.is_none() && addresses.any(|address| contains(network, length, address))
        };
        let waiting: Vec<u16> = self
            .tunnels
            .iter()
            .filter(|(_, tunnel)| leads_there(tunnel))
            .map(|(number, _)| *number)
            .collect();
        for number in waiting {
            self.agenda.set(Timer::Tunnel(number), now + ROUTE_DELAY);
        }
    }

    /// Signals the tunnels without an LSP again.
    pub(super) fn retry_tunnels(&mut self, now: Instant) {
        let waiting: Vec<u16> = self
            .tunnels
            .iter()
            .filter(|(_, tunnel)| tunnel.current.is_none())
            .map(|(number, _)| *number)
            .collect();
        for number in waiting {
            self.agenda.set(Timer::Tunnel(number), now);
        }
    }

    /// Returns the number of the tunnel of an LSP that begins here.
    fn tunnel_of(&self, lsp: Lsp) -> Option<u16> {
        let number = u16::try_from(lsp.session.tunnel).ok()?;
        let is_ingress = self.lsps.get(&lsp).is_none_or(|state| state.upstream.is_none());
        (is_ingress && lsp.sender.address == self.config.router).then_some(number)
    }

    /// Puts an established LSP of a tunnel into use, and schedules the removal of the previous one.
    pub(super) fn ingress_reserved(&mut self, now: Instant, lsp: Lsp, to: RsvpNextHop) {
        let Some(number) = self.tunnel_of(lsp) else { return };
        self.events.push_back(RsvpEvent::Up { tunnel: number, lsp, to });
        let Some(tunnel) = self.tunnels.get_mut(&number).filter(|tunnel| tunnel.current == Some(lsp)) else {
            return;
        };
        if tunnel.previous.is_some() {
            self.agenda.set(Timer::Replaced(number), now + TEARDOWN_DELAY);
        }
    }

    /// Removes the previous LSP of a tunnel, if its replacement is established.
    pub(super) fn remove_replaced(&mut self, now: Instant, number: u16) {
        let Some(tunnel) = self.tunnels.get(&number) else { return };
        let (current, previous) = (tunnel.current, tunnel.previous);
        if !current.is_some_and(|current| self.is_established(current)) {
            return;
        }
        if let Some(tunnel) = self.tunnels.get_mut(&number) {
            tunnel.previous = None;
        }
        if let Some(previous) = previous {
            self.remove_path(now, previous, false, true);
        }
    }

    pub(super) fn ingress_unreserved(&mut self, lsp: Lsp) {
        if let Some(tunnel) = self.tunnel_of(lsp) {
            self.events.push_back(RsvpEvent::Down { tunnel, lsp });
        }
    }

    /// Sets up another LSP for a tunnel whose LSP a router has repaired. The repaired one stays in use until then.
    pub(super) fn ingress_repaired(&mut self, now: Instant, lsp: Lsp, node: Ipv4Addr) {
        let Some(number) = self.tunnel_of(lsp).filter(|_| self.is_established(lsp)) else { return };
        let Some(tunnel) = self.tunnels.get_mut(&number).filter(|tunnel| tunnel.current == Some(lsp)) else {
            return;
        };
        tunnel.current = None;
        let replaced = tunnel.previous.replace(lsp);
        self.events.push_back(RsvpEvent::Repaired { tunnel: number, node });
        self.agenda.cancel(Timer::Replaced(number));
        self.agenda.set(Timer::Tunnel(number), now + ROUTE_DELAY);
        if let Some(replaced) = replaced {
            self.remove_path(now, replaced, false, true);
        }
    }

    /// Schedules the setup of another LSP after the current one was removed.
    pub(super) fn ingress_removed(&mut self, now: Instant, lsp: Lsp) {
        let Some(number) = self.tunnel_of(lsp) else { return };
        let Some(tunnel) = self.tunnels.get_mut(&number) else { return };
        tunnel.previous = tunnel.previous.filter(|previous| *previous != lsp);
        if tunnel.current == Some(lsp) {
            tunnel.current = None;
            self.agenda.set(Timer::Tunnel(number), now + self.config.refresh);
        }
    }
}

/// Returns the contents of the Path messages of a tunnel.
fn contents(request: &TunnelRequest) -> PathContents {
    let protection = if request.is_protected { attribute_flag::LOCAL_PROTECTION } else { 0 };
    let rate = (request.bandwidth.as_f64() / 8.0) as f32;
    PathContents {
        protocol: IPV4,
        tspec: TokenBucket { rate, size: rate, peak: rate, min_policed: 0, max_packet: MAX_PACKET },
        adspec: Some(ADSPEC.to_vec()),
        attribute: Some(Attribute {
            affinities: None,
            setup: PRIORITY,
            holding: PRIORITY,
            flags: attribute_flag::SHARED_EXPLICIT | protection,
            name: request.name.clone(),
        }),
        record_route: Some(Vec::new()),
        fast_reroute: None,
        foreign: Vec::new(),
        ttl: u8::MAX,
    }
}
