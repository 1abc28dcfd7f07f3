//! Engine of the provider edge router: forwards frames between any kinds of [`FramePort`]; the caller supplies the
//! time.
//!
//! - [`host_properties`]: properties of the host; [`setup`] builds the engine state from them and from the
//!   configuration ([`netstage_scenario::pe`]).
//! - [`customer`]: frames from customers: circuit, VPN, route, queue.
//! - [`network`]: frames from the core: label, sender, counters, circuit.
//! - [`flows`]: VPN flows of a configuration.
//! - [`queues`]: packet classification for the queues of a VPN flow.
//! - [`encapsulation`]: labels and tunnels of packets to the core; [`message`]: management packets.
//! - [`neighbors`]: address resolution on circuits; [`local`]: packets to the router itself.
//! - [`references`]: reference flows of relative weights, published between routers.
//! - [`news`]: news of VPN flows under rate consensus, exchanged between routers.
//! - [`replace`]: configuration changes without packet loss.
//! - [`alarms`]: alarms about packets of attackers.
//! - [`secure`]: encrypted tunnels to peers.
//! - [`path_mtu`]: largest packets that the paths to peers carry.
//! - [`leave`]: packets released by the scheduler or sent to a circuit.
//! - [`view`]: read access to circuits and flows.
//! - [`circuits`], [`pool`], [`counter`], [`keys`]: building blocks.
//!
//! Scheduling is implemented in [`netstage_core::edge`], window control in [`netstage_core::fair`]. The
//! simulator uses the same code.

mod alarms;
mod circuits;
pub mod counter;
mod customer;
mod encapsulation;
pub(super) mod flows;
pub mod host_properties;
mod keys;
mod leave;
mod local;
mod message;
mod neighbors;
mod network;
mod news;
mod path_mtu;
mod pool;
mod queues;
mod references;
mod replace;
mod secure;
mod setup;
mod view;

pub use alarms::AlarmView;
pub use counter::{Counter, Counters, Severity};
pub use host_properties::HostProperties;
pub use keys::Keys;
pub use news::CoreNews;
pub use path_mtu::PathMtuView;
pub use references::{MeasurementSource, ReferenceCounts, ReferenceView};
pub use replace::PreparedReplacement;
pub use view::{CircuitView, FlowView, PacketTotals};

use alarms::Alarms;
use circuits::Circuits;
use encapsulation::Encapsulation;
use netstage_core::edge::{EdgeEvent, EdgeRecorder, LabelTable, VpnRoutes};
use netstage_core::fair::balance::PacketBalance;
use netstage_core::fair::wire::Querier;
use netstage_core::fair::{Egress, PublishedReference};
use netstage_core::neighbor::NeighborCache;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_host::ports::FramePort;
use netstage_host::startup_error::StartupError;
use netstage_scenario::pe::{self, ReversePathCheck};
use netstage_wire::ethernet::{self, Mac};
use netstage_wire::mpls::LabelValue;
use news::NewsExchange;
use path_mtu::PathProber;
use pool::{Pool, StoredPacket};
use references::References;
use secure::SecureTunnels;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Frames read from one port in one turn, and packets sent per port in one turn.
const BATCH: usize = 64;

/// Interval and burst of the rate limit on ICMP errors of one VPN.
const ICMP_EVERY: Duration = Duration::from_millis(10);
const ICMP_BURST: Duration = Duration::from_millis(100);

/// Provider edge router that never blocks and reads no clock.
///
/// Call [`turn`](PeEngine::turn) whenever a port has frames, and no later than
/// [`poll_timeout`](PeEngine::poll_timeout).
#[derive(Debug)]
pub struct PeEngine<P> {
    ports: Vec<EnginePort<P>>,
    state: EngineState,
}

#[derive(Debug)]
struct EnginePort<P> {
    port: P,
    /// Last error of the port, until a read succeeds.
    failure: Option<io::Error>,
}

/// Work done in one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineTurn {
    /// Frames read from all ports.
    pub received: usize,
    /// Frames handed to all ports.
    pub sent: usize,
    /// More work is pending; call again at once.
    pub more: bool,
}

impl<P: FramePort> PeEngine<P> {
    /// Creates an engine over ports in the order of [`pe::PeConfig::interfaces`]. A peer is unreachable until
    /// [`set_peer_route`](PeEngine::set_peer_route) sets its next hop.
    ///
    /// If several engines share a router, each is given the configuration without the flows and circuits of
    /// VPNs that other engines forward. [`update_reference`](PeEngine::update_reference) passes on the
    /// measurements of the other engines.
    ///
    /// # Panics
    ///
    /// Panics if a port is missing or the configuration is invalid.
    pub fn new(
        router: &pe::PeConfig,
        machine: &HostProperties,
        ports: Vec<P>,
    ) -> Result<PeEngine<P>, StartupError> {
        let state = setup::state(router, machine, router.buffers as usize)?;
        assert_eq!(ports.len(), state.names.ports.len(), "every interface has a port");
        let ports = ports.into_iter().map(|port| EnginePort { port, failure: None }).collect();
        Ok(PeEngine { ports, state })
    }

    /// Reads a batch from each port and sends due packets. `now` must not decrease.
    pub fn turn(&mut self, now: Instant) -> EngineTurn {
        let mut turn = EngineTurn::default();
        let PeEngine { ports, state } = self;
        for (index, attached) in ports.iter_mut().enumerate() {
            let read = attached.port.receive(BATCH, &mut |received| {
                let at = state.epoch.instant(received.at_ns).min(now);
                state.read_frame(now, at, index, received.frame);
            });
            state.handle_customers_packets(now);
            state.handle_core_packets(now, index);
            match read {
                Ok(count) => {
                    turn.received += count;
                    turn.more |= count >= BATCH;
                    attached.failure = None;
                }
                Err(error) => attached.failure = Some(error),
            }
        }
        state.query_neighbors(now);
        state.publish(now);
        state.handle_tunnels(now);
        state.probe_paths(now);
        state.exchange_news(now);
        state.edge.handle_timeout(now);
        for _ in 0..BATCH * ports.len() {
            let Some((flow, transmit)) = state.edge.poll_transmit(now) else { break };
            state.transmit(flow, transmit);
        }
        state.take_dropped();
        turn.more |= state.edge.poll_timeout() == Instant::ZERO;
        for (index, attached) in ports.iter_mut().enumerate() {
            turn.sent += attached.send(index, state);
        }
        turn
    }

    /// Returns the time by which [`turn`](PeEngine::turn) must be called again; [`Instant::ZERO`] means at
    /// once.
    pub fn poll_timeout(&self) -> Instant {
        let EngineState { edge, neighbors, references, news, secure, paths_due, .. } = &self.state;
        let publications = references.poll_timeout().min(news.poll_timeout());
        let others = neighbors.poll_timeout().min(publications);
        edge.poll_timeout().min(others).min(secure.poll_timeout()).min(*paths_due)
    }

    /// Sets the route to a peer, given by its number: port, MAC address of the next hop, and path MTU in
    /// bytes of an IP or MPLS packet. `None` makes the peer unreachable.
    ///
    /// # Panics
    ///
    /// Panics if the port is not a core port.
    pub fn set_peer_route(&mut self, peer: usize, way: Option<(usize, Mac, u16)>) {
        let EngineState { peers, sides, secure, paths_due, .. } = &mut self.state;
        let is_encrypted = secure.is_encrypted(peer);
        let peer = &mut peers[peer];
        peer.is_reachable = way.is_some();
        if let Some((port, next_hop, mtu)) = way {
            let PortSide::Core { mac } = &sides[port] else { panic!("the port leads to customers") };
            let header = setup::core_header(&peer.encapsulation, next_hop, *mac);
            let largest = setup::left(&peer.encapsulation, is_encrypted, mtu) as u16;
            let is_same =
                (peer.port as usize, &peer.header, peer.path.discovery.largest()) == (port, &header, largest);
            if !is_same {
                peer.path.restart(largest);
            }
            (peer.port, peer.header, peer.mtu) = (port as u32, header, peer.path.discovery.mtu());
            *paths_due = Instant::ZERO;
        }
    }

    /// Returns each peer with encryption by name, and the start of its present session, if there is one.
    pub fn tunnels(&self, now: Instant) -> impl Iterator<Item = (&str, Option<Instant>)> {
        let EngineState { secure, names, .. } = &self.state;
        let encrypted = names.peers.iter().enumerate().filter(|(peer, _)| secure.is_encrypted(*peer));
        encrypted.map(move |(peer, name)| (name.as_str(), secure.session_since(now, peer)))
    }

    /// Returns the path MTU to each peer, by name.
    pub fn path_mtus(&self) -> impl Iterator<Item = (&str, PathMtuView)> {
        let EngineState { peers, names, .. } = &self.state;
        names.peers.iter().zip(peers).map(|(name, peer)| (name.as_str(), peer.path.view()))
    }

    /// Returns the paths whose MTU has changed since the last call. To be called periodically.
    pub fn path_mtu_changes(&mut self) -> Vec<(String, PathMtuView)> {
        let EngineState { peers, names, .. } = &mut self.state;
        let changes =
            names.peers.iter().zip(peers).map(|(name, peer)| Some((name.clone(), peer.path.change()?)));
        changes.flatten().collect()
    }

    /// Returns the flows whose peer became silent or answered again since the last call, each with its
    /// present silence. To be called periodically.
    pub fn silence_changes(&mut self) -> Vec<(usize, bool)> {
        let EngineState { edge, flows, .. } = &mut self.state;
        let changed = flows.iter_mut().enumerate().filter_map(|(number, flow)| {
            let is_silent = edge.silent_since(number).is_some();
            (std::mem::replace(&mut flow.is_silent, is_silent) != is_silent).then_some((number, is_silent))
        });
        changed.collect()
    }

    /// Returns the alarms that were raised or cleared since the last call. To be called periodically.
    pub fn alarm_changes(&mut self, now: Instant) -> Vec<AlarmView> {
        self.state.alarms.watch(now, &self.state.totals)
    }

    /// Returns the raised alarms.
    pub fn alarms(&self) -> impl Iterator<Item = AlarmView> {
        self.state.alarms.raised()
    }

    /// Starts to record the inputs and decisions of the VPN flows. Must be called before their first
    /// decision.
    pub fn trace(&mut self) {
        self.state.edge.begin();
    }

    /// Returns the number of recorded events not taken yet.
    pub fn traced(&self) -> usize {
        self.state.edge.recorded()
    }

    /// Takes the events recorded since the last call.
    pub fn take_trace(&mut self) -> Vec<EdgeEvent> {
        self.state.edge.take()
    }

    /// Stops recording.
    pub fn stop_trace(&mut self) {
        self.state.edge.stop();
    }

    /// Returns the references that became stale or fresh since the last call, each with its present
    /// staleness. To be called periodically.
    pub fn watch_references(&mut self, now: Instant) -> Vec<(usize, bool)> {
        let EngineState { references, edge, .. } = &mut self.state;
        references.watch(now, edge)
    }

    /// Returns the references, in configuration order.
    pub fn references(&self) -> impl ExactSizeIterator<Item = ReferenceView<'_>> {
        self.state.reference_views()
    }

    /// Returns the present values of a reference, given by its number.
    pub fn reference(&self, number: usize) -> Option<PublishedReference> {
        self.state.edge.reference(number).copied()
    }

    /// Updates a reference with the values of another engine of this router.
    pub fn update_reference(&mut self, number: usize, published: PublishedReference) {
        self.state.edge.handle_reference(number, published);
    }

    /// Returns whether this engine has published news since its last [exchange](PeEngine::exchange_news).
    pub fn has_news(&self) -> bool {
        self.state.has_news_for_cores()
    }

    /// Exchanges news with the other engines of this router, of which this one has the number `core`.
    pub fn exchange_news(&mut self, core: usize, shared: &mut CoreNews) {
        self.state.exchange_with_cores(core, shared);
    }

    /// Returns the neighbors on circuits: circuit, IP address, and MAC address once resolved.
    pub fn neighbors(&self) -> impl Iterator<Item = (&str, IpAddr, Option<Mac>)> {
        let names = &self.state.names.circuits;
        self.state
            .neighbors
            .iter()
            .map(|(circuit, address, mac)| (names[circuit as usize].as_str(), address, mac))
    }

    /// Returns packets and IP-layer bytes of each circuit in both directions, in configuration order.
    pub fn circuits(&self) -> impl Iterator<Item = CircuitView<'_>> {
        let names = self.state.names.circuits.iter();
        names.zip(&self.state.circuits).map(|(name, circuit)| CircuitView {
            name,
            vpn: &self.state.names.vpns[circuit.vpn as usize],
            received: circuit.received,
            sent: circuit.sent,
        })
    }

    /// Returns the port names, in configuration order.
    pub fn port_names(&self) -> &[String] {
        &self.state.names.ports
    }

    /// Returns whether a port leads to the core.
    pub fn is_core(&self, port: usize) -> bool {
        matches!(self.state.sides[port], PortSide::Core { .. })
    }

    /// Returns the ports, to wait on.
    pub fn ports(&self) -> impl Iterator<Item = &P> {
        self.ports.iter().map(|attached| &attached.port)
    }

    /// Returns a port, for drivers and tests.
    pub fn port_mut(&mut self, port: usize) -> &mut P {
        &mut self.ports[port].port
    }

    /// Returns the last error of a port, or `None` if the port works.
    pub fn failure(&self, port: usize) -> Option<&io::Error> {
        self.ports[port].failure.as_ref()
    }

    /// Returns the counters of all flows together, including events of no flow.
    pub fn counters(&self) -> &Counters {
        &self.state.totals
    }

    /// Returns the VPN flows in configuration order, grouped by VPN.
    pub fn flows(&self) -> impl ExactSizeIterator<Item = FlowView<'_>> {
        (0..self.state.flows.len()).map(|flow| self.flow(flow))
    }

    /// Returns one VPN flow.
    pub fn flow(&self, number: usize) -> FlowView<'_> {
        FlowView { state: &self.state, number }
    }

    /// Returns the number of free buffers.
    pub fn free_buffers(&self) -> usize {
        self.state.pool.free()
    }
}

impl<P: FramePort> EnginePort<P> {
    /// Sends all frames that wait for this port and releases their buffers. Returns the number of frames
    /// sent.
    fn send(&mut self, index: usize, state: &mut EngineState) -> usize {
        let mut departures = std::mem::take(&mut state.departures[index]);
        if departures.is_empty() {
            state.departures[index] = departures;
            return 0;
        }
        let (mut sent, mut full) = (0, 0);
        for departure in departures.drain(..) {
            let frame =
                &state.pool.bytes(departure.buffer)[usize::from(departure.start)..usize::from(departure.end)];
            match self.offer(frame) {
                Ok(true) => sent += 1,
                Ok(false) => full += 1,
                Err(error) => {
                    full += 1;
                    self.failure = Some(error);
                }
            }
            state.pool.release(departure.buffer);
        }
        let refused = self.port.flush().unwrap_or_else(|error| {
            self.failure = Some(error);
            sent
        });
        state.totals.add(Counter::PortFull, full);
        state.totals.add(Counter::PortRefused, refused as u64);
        state.departures[index] = departures;
        sent - refused.min(sent)
    }

    fn offer(&mut self, frame: &[u8]) -> io::Result<bool> {
        if self.port.send(frame)? {
            return Ok(true);
        }
        self.port.flush()?;
        self.port.send(frame)
    }
}

/// Engine state except the ports.
#[derive(Debug)]
struct EngineState {
    epoch: Epoch,
    epoch_unix_ns: u64,
    edge: EdgeRecorder<StoredPacket>,
    pool: Pool,
    labels: LabelTable,
    flows: Vec<EngineFlow>,
    references: References,
    news: NewsExchange,
    vpns: Vec<EngineVpn>,
    peers: Vec<EnginePeer>,
    /// Next call of the discovery of path MTUs.
    paths_due: Instant,
    secure: SecureTunnels,
    circuits: Vec<EngineCircuit>,
    exits: Vec<CircuitNextHop>,
    neighbors: NeighborCache<StoredPacket>,
    sides: Vec<PortSide>,
    class_tables: Vec<[u8; 64]>,
    /// Packets of the batch being processed.
    from_customers: Vec<customer::CustomerPacket>,
    from_core: Vec<network::CorePacket>,
    totals: Counters,
    alarms: Alarms,
    /// Frames to send at the end of the turn, per port.
    departures: Vec<Vec<DepartingFrame>>,
    names: DisplayNames,
}

/// Display names; not used to forward packets.
#[derive(Debug)]
struct DisplayNames {
    vpns: Vec<String>,
    peers: Vec<String>,
    circuits: Vec<String>,
    ports: Vec<String>,
}

/// Both directions of a VPN flow between this router and one peer.
#[derive(Debug)]
struct EngineFlow {
    vpn: u32,
    peer: u32,
    send: LabelValue,
    receive: LabelValue,
    /// Number of the class table plus one; zero for a first-in, first-out queue.
    classes: u16,
    querier: Querier,
    egress: Egress,
    /// Allocated with the first counted event.
    counters: Option<Box<Counters>>,
    /// Allocated with the first management packet.
    balance: Option<Box<FlowBalance>>,
    /// Last reported silence of the peer.
    is_silent: bool,
}

/// Balances of the packets received from the peer, by its queries, and of those sent to it, by its responses.
#[derive(Debug, Default)]
struct FlowBalance {
    received: PacketBalance,
    sent: PacketBalance,
}

#[derive(Debug)]
struct EngineVpn {
    routes: VpnRoutes<RouteTarget>,
    /// Buffers occupied by waiting packets of the VPN.
    held: u32,
    /// Theoretical arrival time of the next ICMP error, for the rate limit.
    next_icmp: Instant,
    address_v4: Option<Ipv4Addr>,
    address_v6: Option<Ipv6Addr>,
}

/// Target of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteTarget {
    Exit(u32),
    Flow(u32),
    /// This router, at its address on a circuit.
    Local(u32),
}

/// Next hop on a circuit: the router `via`, or the destination of the packet itself if `None`.
#[derive(Clone, Copy, Debug)]
struct CircuitNextHop {
    circuit: u32,
    via: Option<IpAddr>,
}

#[derive(Debug)]
struct EnginePeer {
    port: u32,
    header: EthernetTemplate,
    is_reachable: bool,
    encapsulation: Encapsulation,
    /// Size in bytes of the largest customer packet that fits the path to the peer.
    mtu: u16,
    path: PathProber,
    clamp_segment_size: bool,
    keys: Option<Keys>,
}

#[derive(Debug)]
struct EngineCircuit {
    vpn: u32,
    port: u32,
    header: EthernetTemplate,
    mtu: u16,
    mac: Option<Mac>,
    rpf: ReversePathCheck,
    addresses: Vec<(IpAddr, u8)>,
    received: PacketTotals,
    sent: PacketTotals,
}

/// Prebuilt Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EthernetTemplate {
    bytes: [u8; ethernet::HEADER + 2 * ethernet::TAG],
    length: u8,
}

impl EthernetTemplate {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

#[derive(Debug)]
enum PortSide {
    Customer { mac: Mac, circuits: Circuits },
    Core { mac: Mac },
}

/// Frame to send at the end of the turn.
#[derive(Clone, Copy, Debug)]
struct DepartingFrame {
    buffer: u32,
    start: u16,
    end: u16,
}

/// Reason to drop a packet, and the VPN flow of the packet.
#[derive(Clone, Copy, Debug)]
struct PacketDrop {
    counter: Counter,
    flow: Option<usize>,
}

impl From<Counter> for PacketDrop {
    fn from(counter: Counter) -> PacketDrop {
        PacketDrop { counter, flow: None }
    }
}

impl Counter {
    /// Attributes the event to a flow.
    fn of(self, flow: usize) -> PacketDrop {
        PacketDrop { counter: self, flow: Some(flow) }
    }
}

impl EngineState {
    /// Reads a frame into a buffer. Decisions are made for a whole batch, step by step: with many active
    /// flows nearly all flow state misses the cache, and a batch overlaps these memory accesses.
    #[inline]
    fn read_frame(&mut self, now: Instant, at: Instant, port: usize, frame: &[u8]) {
        let result = match self.sides[port] {
            PortSide::Customer { .. } => self.read_customers_frame(now, port, frame),
            PortSide::Core { .. } => self.read_core_frame(at, port, frame),
        };
        if let Err(refused) = result {
            self.count(refused);
        }
    }

    /// Returns the names of the VPN and the peer of a flow.
    fn flow_names(&self, number: usize) -> (&str, &str) {
        let flow = &self.flows[number];
        (&self.names.vpns[flow.vpn as usize], &self.names.peers[flow.peer as usize])
    }

    #[cold]
    fn count(&mut self, packet: PacketDrop) {
        self.count_times(packet, 1);
    }

    #[cold]
    fn count_times(&mut self, PacketDrop { counter, flow }: PacketDrop, times: u64) {
        self.totals.add(counter, times);
        if let Some(flow) = flow {
            self.flows[flow].counters.get_or_insert_default().add(counter, times);
        }
    }
}

#[cfg(test)]
mod tests;
