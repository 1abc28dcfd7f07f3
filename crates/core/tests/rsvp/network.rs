//! A network of RSVP-TE speakers in virtual time, and checks that do not use the speakers' code: label tables follow
//! from the events, routes from the topology, and sums of bandwidth from the LSPs.

use netstage_core::quantity::BitRate;
use netstage_core::rsvp::{
    Lsp, LspStatus, RsvpBypass, RsvpConfig, RsvpEvent, RsvpInterface, RsvpNeighbor, RsvpNextHop, RsvpSpeaker,
    RsvpTransmit, TunnelRequest,
};
use netstage_core::time::{Duration, Instant};
use netstage_wire::mpls::LabelValue;
use netstage_wire::rsvp::route::RouteHop;
use netstage_wire::rsvp::{RsvpPacket, kind};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;

/// Delay of messages outside of the tests that choose it.
pub const DELAY: Duration = Duration::from_millis(1);

/// A message on a link.
#[derive(Clone, Debug)]
pub struct InFlight {
    pub arrives: Instant,
    pub to: usize,
    pub interface: u32,
    pub message: RsvpTransmit,
}

/// A tunnel of a router.
pub type TunnelKey = (usize, u16);

#[derive(Clone, Debug)]
pub struct Network {
    pub now: Instant,
    pub speakers: Vec<RsvpSpeaker>,
    /// Routers at the ends of each link; interface n + 1 of both is link n.
    pub links: Vec<(usize, usize)>,
    pub up: Vec<bool>,
    /// Links whose packets take a bypass while they are down, if there is another way between their ends.
    bypassed: Vec<bool>,
    capacity: Option<u64>,
    pub in_flight: Vec<InFlight>,
    /// Label tables, by the events; `None` for labels of LSPs that end at the router.
    tables: Vec<BTreeMap<LabelValue, Option<RsvpNextHop>>>,
    /// LSPs of tunnels, by the events.
    in_use: BTreeMap<TunnelKey, BTreeMap<Lsp, RsvpNextHop>>,
    pub requested: BTreeMap<TunnelKey, TunnelRequest>,
    /// Time of the last reported failure of a tunnel.
    failures: BTreeMap<TunnelKey, Instant>,
    /// Numbers of events by kind.
    pub reports: BTreeMap<&'static str, usize>,
    configs: Vec<RsvpConfig>,
}

pub fn router_id(router: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 255, 0, router as u8)
}

/// Address of the first or second end of a link.
fn address(link: usize, is_second: bool) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, link as u8, 1 + u8::from(is_second))
}

pub fn config(router: usize) -> RsvpConfig {
    RsvpConfig { hello: None, ..RsvpConfig::new(router_id(router), 100 + router as u32) }
}

impl Network {
    pub fn new(configs: Vec<RsvpConfig>, links: &[(usize, usize)], capacity: Option<u64>) -> Network {
        let mut network = Network {
            now: Instant::ZERO + Duration::from_secs(1),
            speakers: configs.iter().map(|config| RsvpSpeaker::new(config.clone())).collect(),
            links: links.to_vec(),
            up: vec![true; links.len()],
            bypassed: vec![false; links.len()],
            capacity,
            in_flight: Vec::new(),
            tables: vec![BTreeMap::new(); configs.len()],
            in_use: BTreeMap::new(),
            requested: BTreeMap::new(),
            failures: BTreeMap::new(),
            reports: BTreeMap::new(),
            configs,
        };
        (0..links.len()).for_each(|link| network.set_link(link, true));
        network
    }

    /// Routers in a row.
    pub fn chain(routers: usize, reduces_refreshes: bool) -> Network {
        let configs = (0..routers).map(|router| RsvpConfig { reduces_refreshes, ..config(router) }).collect();
        let links: Vec<_> = (1..routers).map(|router| (router - 1, router)).collect();
        Network::new(configs, &links, None)
    }

    pub fn set_link(&mut self, link: usize, is_up: bool) {
        let (first, second) = self.links[link];
        self.up[link] = is_up;
        for (router, is_second) in [(first, false), (second, true)] {
            if is_up {
                let bandwidth = self.capacity.map(BitRate);
                let interface = RsvpInterface { address: address(link, is_second), length: 24, bandwidth };
                self.speakers[router].set_interface(self.now, link as u32 + 1, interface);
            } else {
                self.speakers[router].remove_interface(self.now, link as u32 + 1);
            }
        }
        if !is_up {
            self.in_flight.retain(|packet| packet.interface != link as u32 + 1);
        }
        self.set_routes();
        (0..self.links.len()).for_each(|link| self.announce_bypass(link));
        self.collect();
    }

    /// Restarts a router without its state.
    pub fn restart(&mut self, router: usize) {
        let config = &mut self.configs[router];
        config.instance += 1000;
        self.speakers[router] = RsvpSpeaker::new(config.clone());
        self.tables[router].clear();
        self.in_use.retain(|(ingress, _), _| *ingress != router);
        for link in 0..self.links.len() {
            let (first, second) = self.links[link];
            if self.up[link] && [first, second].contains(&router) {
                let bandwidth = self.capacity.map(BitRate);
                let interface =
                    RsvpInterface { address: address(link, second == router), length: 24, bandwidth };
                self.speakers[router].set_interface(self.now, link as u32 + 1, interface);
            }
        }
        (0..self.links.len()).for_each(|link| self.announce_bypass(link));
        self.set_routes();
        let requested = self.requested.clone();
        for ((_, tunnel), request) in requested.range((router, 0)..=(router, u16::MAX)) {
            self.speakers[router].set_tunnel(self.now, *tunnel, request.clone());
        }
        self.collect();
    }

    /// Configures or removes the bypass of a link in both directions. It is established while there is another way.
    pub fn set_bypass(&mut self, link: usize, is_configured: bool) {
        self.bypassed[link] = is_configured;
        self.announce_bypass(link);
        self.collect();
    }

    /// Informs both ends of a link of its bypass.
    fn announce_bypass(&mut self, link: usize) {
        let (first, second) = self.links[link];
        for (router, other) in [(first, second), (second, first)] {
            let bypass = self.bypass(link, router, other).map(|first| RsvpBypass {
                merge_point: router_id(other),
                next_hop: RsvpNeighbor {
                    interface: first as u32 + 1,
                    address: address(first, self.links[first].0 == router),
                },
            });
            let neighbor = address(link, router == first);
            self.speakers[router].set_bypass(self.now, neighbor, bypass);
        }
    }

    /// Returns the first link of the bypass of a link from one end to the other.
    fn bypass(&self, link: usize, from: usize, to: usize) -> Option<usize> {
        self.bypassed[link].then(|| self.first_links(from, Some(link))[&to]).flatten()
    }

    /// Returns whether packets pass a link, perhaps by its bypass.
    fn passes(&self, link: usize) -> bool {
        let (first, second) = self.links[link];
        self.up[link] || self.bypass(link, first, second).is_some()
    }

    /// Sets the shortest paths between all routers.
    fn set_routes(&mut self) {
        for router in 0..self.speakers.len() {
            for (target, first) in self.first_links(router, None) {
                let next_hop = first.map(|link| {
                    let is_second = self.links[link].0 == router;
                    RsvpNeighbor { interface: link as u32 + 1, address: address(link, is_second) }
                });
                self.speakers[router].set_route(self.now, router_id(target), 32, next_hop);
            }
        }
    }

    /// Returns the first link of the shortest path to each other router, without a link.
    fn first_links(&self, router: usize, without: Option<usize>) -> BTreeMap<usize, Option<usize>> {
        let mut first: BTreeMap<usize, Option<usize>> =
            (0..self.speakers.len()).filter(|other| *other != router).map(|other| (other, None)).collect();
        let mut reached = BTreeSet::from([router]);
        let mut queue = VecDeque::from([(router, None)]);
        while let Some((at, via)) = queue.pop_front() {
            let usable = |link: usize| self.up[link] && Some(link) != without;
            for (link, (a, b)) in self.links.iter().enumerate().filter(|(link, _)| usable(*link)) {
                for (from, to) in [(*a, *b), (*b, *a)] {
                    if from == at && reached.insert(to) {
                        let via = via.or(Some(link));
                        first.insert(to, via);
                        queue.push_back((to, via));
                    }
                }
            }
        }
        first
    }

    /// Returns a strict route along routers.
    pub fn strict(&self, routers: &[usize]) -> Vec<RouteHop> {
        let hop = |pair: &[usize]| {
            let ends = |(a, b)| (a, b) == (pair[0], pair[1]) || (b, a) == (pair[0], pair[1]);
            let link = self.links.iter().position(|link| ends(*link)).expect("linked routers");
            RouteHop::strict(address(link, self.links[link].1 == pair[1]))
        };
        routers.windows(2).map(hop).collect()
    }

    /// Returns a strict route along the shortest path, if there is one.
    pub fn shortest(&self, from: usize, to: usize) -> Option<Vec<RouteHop>> {
        let (mut at, mut route) = (from, Vec::new());
        while at != to {
            let link = self.first_links(at, None)[&to]?;
            route.push(RouteHop::strict(address(link, self.links[link].0 == at)));
            at = self.other_end(link, at);
        }
        Some(route)
    }

    pub fn request(&self, endpoint: usize, route: Vec<RouteHop>, bandwidth: u64) -> TunnelRequest {
        TunnelRequest {
            endpoint: router_id(endpoint),
            route,
            bandwidth: BitRate(bandwidth),
            name: b"tunnel".to_vec(),
            is_protected: false,
        }
    }

    pub fn set_tunnel(&mut self, (router, tunnel): TunnelKey, request: TunnelRequest) {
        self.requested.insert((router, tunnel), request.clone());
        self.speakers[router].set_tunnel(self.now, tunnel, request);
        self.collect();
    }

    pub fn remove_tunnel(&mut self, (router, tunnel): TunnelKey) {
        self.requested.remove(&(router, tunnel));
        self.speakers[router].remove_tunnel(self.now, tunnel);
        self.collect();
    }

    /// Moves the messages of all routers to the links, and applies their events.
    pub fn collect(&mut self) {
        for router in 0..self.speakers.len() {
            while let Some(event) = self.speakers[router].poll_event() {
                self.apply(router, event);
            }
            while let Some(message) = self.speakers[router].poll_transmit() {
                let link = message.to.interface as usize - 1;
                let is_second = self.links[link].0 == router;
                assert_eq!(message.to.address, address(link, is_second), "next hop of a message");
                let packet = RsvpPacket::new(&message.bytes).expect("a valid message");
                let is_path = matches!(packet.kind, kind::PATH | kind::PATH_TEAR);
                assert!(is_path || !message.has_router_alert);
                if let Some((to, link)) = self.receiver(router, link, &message).filter(|_| self.up[link]) {
                    let interface = link as u32 + 1;
                    self.in_flight.push(InFlight { arrives: self.now + DELAY, to, interface, message });
                }
            }
        }
    }

    /// Returns the router that receives a message, and the last link on its way. Without router alert option, it is
    /// forwarded to its destination.
    fn receiver(&self, from: usize, first: usize, message: &RsvpTransmit) -> Option<(usize, usize)> {
        let (mut at, mut link) = (self.other_end(first, from), first);
        if message.has_router_alert || message.destination == message.to.address {
            return Some((at, link));
        }
        let owner = (0..self.speakers.len()).find(|router| router_id(*router) == message.destination);
        let owner = owner.expect("a router ID as the destination of a message to no neighbor");
        for _ in 0..self.speakers.len() {
            if at == owner {
                return Some((at, link));
            }
            link = self.first_links(at, None)[&owner]?;
            at = self.other_end(link, at);
        }
        None
    }

    fn apply(&mut self, router: usize, event: RsvpEvent) {
        let name = match event {
            RsvpEvent::Up { tunnel, lsp, to } => {
                self.in_use.entry((router, tunnel)).or_default().insert(lsp, to);
                "up"
            }
            RsvpEvent::Down { tunnel, lsp } => {
                let removed = self.in_use.entry((router, tunnel)).or_default().remove(&lsp);
                assert!(removed.is_some(), "an LSP that is down has been up");
                "down"
            }
            RsvpEvent::Repaired { tunnel, .. } => {
                assert!(self.is_up((router, tunnel)), "a repaired LSP is in use");
                "repaired"
            }
            RsvpEvent::Failed { tunnel, .. } => {
                self.failures.insert((router, tunnel), self.now);
                "failed"
            }
            RsvpEvent::Forward { label, to } => {
                self.tables[router].insert(label, Some(to));
                "forward"
            }
            RsvpEvent::Pop { label } => {
                self.tables[router].insert(label, None);
                "pop"
            }
            RsvpEvent::Discard { label } => {
                assert!(self.tables[router].remove(&label).is_some(), "a discarded label has been forwarded");
                "discard"
            }
            RsvpEvent::Unreserved { .. } => "unreserved",
            RsvpEvent::NeighborUp { .. } => "neighbor up",
            RsvpEvent::NeighborDown { .. } => "neighbor down",
            RsvpEvent::Limited { .. } => "limited",
        };
        *self.reports.entry(name).or_default() += 1;
    }

    /// Delivers a message.
    pub fn deliver(&mut self, packet: &InFlight) {
        let InFlight { to, interface, message, .. } = packet;
        self.speakers[*to].handle_packet(self.now, *interface, message.source, &message.bytes);
        self.collect();
    }

    pub fn next_timeout(&self) -> Instant {
        self.speakers.iter().map(RsvpSpeaker::poll_timeout).min().unwrap_or(Instant::NEVER)
    }

    pub fn handle_timeouts(&mut self) {
        let now = self.now;
        self.speakers.iter_mut().for_each(|speaker| speaker.handle_timeout(now));
        self.collect();
    }

    /// Runs without losses for a time.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let first = self.in_flight.iter().enumerate().min_by_key(|(_, packet)| packet.arrives);
            let arrival = first.map_or(Instant::NEVER, |(_, packet)| packet.arrives);
            let next = arrival.min(self.next_timeout());
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            match first {
                Some((position, _)) if arrival <= next => {
                    let packet = self.in_flight.swap_remove(position);
                    self.deliver(&packet);
                }
                _ => self.handle_timeouts(),
            }
        }
        self.now = end;
    }

    fn other_end(&self, link: usize, router: usize) -> usize {
        let (first, second) = self.links[link];
        if first == router { second } else { first }
    }

    fn next_router(&self, router: usize, to: RsvpNeighbor) -> usize {
        self.other_end(to.interface as usize - 1, router)
    }

    /// Follows a label from a router. Returns the router at which the packet leaves the LSP, or `None` if it is
    /// dropped.
    fn follow(&self, router: usize, to: RsvpNextHop) -> Option<usize> {
        let (mut at, mut hop) = (router, to);
        for _ in 0..=self.speakers.len() {
            let link = hop.neighbor.interface as usize - 1;
            if !self.passes(link) {
                return None;
            }
            at = self.next_router(at, hop.neighbor);
            if hop.label.is_reserved() {
                return Some(at);
            }
            match *self.tables[at].get(&hop.label)? {
                Some(next) => hop = next,
                None => return Some(at),
            }
        }
        panic!("forwarding loop of label {} from {router}", to.label.number());
    }

    /// Checks that hold at any time.
    pub fn check(&self) {
        for (router, speaker) in self.speakers.iter().enumerate() {
            let statuses: Vec<LspStatus> = speaker.lsps().collect();
            self.check_labels(router, &statuses);
            self.check_bandwidth(router, &statuses);
        }
        for ((router, _), lsps) in &self.in_use {
            for (lsp, to) in lsps {
                if let Some(end) = self.follow(*router, *to) {
                    assert_eq!(router_id(end), lsp.session.endpoint, "end of {lsp:?}");
                }
            }
        }
    }

    /// Label tables follow from the LSPs, and no label leads into another LSP.
    fn check_labels(&self, router: usize, statuses: &[LspStatus]) {
        let mut expected = BTreeMap::new();
        let mut used = BTreeSet::new();
        for status in statuses.iter().filter(|status| status.is_reserved) {
            let (Some(neighbor), Some(label)) = (status.downstream, status.outgoing) else {
                let own = status.incoming.filter(|label| !label.is_reserved());
                expected.extend(own.map(|label| (label, None)));
                continue;
            };
            let to = RsvpNextHop { neighbor, label };
            match (status.upstream, status.incoming) {
                (Some(_), Some(incoming)) => {
                    assert!(used.insert(incoming), "label {incoming:?} of two LSPs");
                    expected.insert(incoming, Some(to));
                }
                (None, None) => {
                    let tunnel = (router, status.lsp.session.tunnel as u16);
                    assert_eq!(self.in_use[&tunnel].get(&status.lsp), Some(&to), "{:?}", status.lsp);
                }
                _ => panic!("{status:?}: a transit router has a label, an ingress none"),
            }
            let next = self.next_router(router, neighbor);
            let owner = self.speakers[next]
                .lsps()
                .find(|other| other.incoming == Some(label) && !label.is_reserved());
            assert!(owner.is_none_or(|owner| owner.lsp == status.lsp), "{status:?} leads into {owner:?}");
        }
        assert_eq!(self.tables[router], expected, "label table of router {router}");
        let own = statuses.iter().filter_map(|status| status.incoming).filter(|label| !label.is_reserved());
        assert_eq!(self.speakers[router].labels().0, own.count(), "labels in use at router {router}");
    }

    /// Each link carries the sum over sessions of their maximum.
    fn check_bandwidth(&self, router: usize, statuses: &[LspStatus]) {
        for link in 0..self.links.len() {
            let interface = link as u32 + 1;
            let mut sessions = BTreeMap::new();
            let reserved = statuses.iter().filter(|status| {
                status.is_reserved && status.downstream.is_some_and(|next| next.interface == interface)
            });
            for status in reserved {
                let rate = sessions.entry(status.lsp.session).or_insert(0);
                *rate = status.bandwidth.0.max(*rate);
            }
            let sum: u64 = sessions.values().sum();
            assert_eq!(
                self.speakers[router].reserved(interface).0,
                BitRate(sum),
                "router {router} link {link}"
            );
            assert!(self.capacity.is_none_or(|capacity| sum <= capacity), "overbooked link {link}");
        }
    }

    /// Checks after all losses and changes have ended, and cleanup timeouts and quarantines have passed: every LSP works
    /// from its ingress to its egress, or its state is gone everywhere. `since`: the time of the last change.
    pub fn check_settled(&self, since: Instant) {
        self.check();
        let mut live = BTreeSet::new();
        for key in self.requested.keys() {
            let lsps = self.in_use.get(key);
            match lsps.map_or(0, BTreeMap::len) {
                0 => {
                    let failure = self.failures.get(key).copied().unwrap_or(Instant::ZERO);
                    assert!(failure > since, "tunnel {key:?} is neither established nor reported as failed");
                }
                1 => {}
                count => panic!("{count} LSPs of tunnel {key:?}"),
            }
            for (lsp, to) in lsps.into_iter().flatten() {
                let end = self.follow(key.0, *to);
                assert_eq!(end.map(router_id), Some(lsp.session.endpoint), "end of {lsp:?}");
                live.insert(*lsp);
            }
        }
        for (router, speaker) in self.speakers.iter().enumerate() {
            assert_eq!(speaker.labels().1, 0, "labels in quarantine at router {router}");
            for status in speaker.lsps().filter(|status| !live.contains(&status.lsp)) {
                // An LSP that a router still refuses is reserved behind that router only.
                let Lsp { session, sender } = status.lsp;
                let is_tunnel = |key: &&TunnelKey| {
                    router_id(key.0) == sender.address && u32::from(key.1) == session.tunnel
                };
                let failure = self.requested.keys().find(is_tunnel).and_then(|key| self.failures.get(key));
                assert!(failure.is_some_and(|at| *at > since), "router {router} keeps {status:?}");
            }
            let hops = speaker.lsps().flat_map(|status| [status.upstream, status.downstream]);
            let neighbors: BTreeSet<RsvpNeighbor> = hops.flatten().collect();
            // A router with repaired LSPs has neighbors on no link, too.
            let is_exact = self.up.iter().all(|is_up| *is_up);
            assert!(speaker.neighbors() == neighbors.len() || !is_exact, "neighbors of router {router}");
        }
    }

    /// Returns the tunnels whose LSPs all lead to their egress.
    pub fn connected(&self) -> BTreeSet<TunnelKey> {
        let leads = |key: &TunnelKey, lsp: &Lsp, to: &RsvpNextHop| {
            self.follow(key.0, *to).map(router_id) == Some(lsp.session.endpoint)
        };
        let is_connected = |(key, lsps): &(&TunnelKey, &BTreeMap<Lsp, RsvpNextHop>)| {
            !lsps.is_empty() && lsps.iter().all(|(lsp, to)| leads(key, lsp, to))
        };
        self.in_use.iter().filter(is_connected).map(|(key, _)| *key).collect()
    }

    /// Returns the LSPs of a tunnel.
    pub fn lsps(&self, key: TunnelKey) -> Vec<Lsp> {
        self.in_use.get(&key).into_iter().flatten().map(|(lsp, _)| *lsp).collect()
    }

    /// Returns whether a router has an LSP.
    pub fn has(&self, lsp: Lsp) -> bool {
        self.speakers.iter().any(|speaker| speaker.lsps().any(|status| status.lsp == lsp))
    }

    /// Number of LSPs whose packets take a bypass at a router.
    pub fn repaired(&self) -> usize {
        let statuses = self.speakers.iter().flat_map(RsvpSpeaker::lsps);
        statuses.filter(|status| status.is_repaired && status.is_reserved).count()
    }

    /// Returns whether a tunnel is established.
    pub fn is_up(&self, key: TunnelKey) -> bool {
        self.in_use.get(&key).is_some_and(|lsps| !lsps.is_empty())
    }
}
