//! The provider edge router's engine: frames in, frames out, over any kind of [`Port`], with the
//! time given to it.
//!
//! - [`machine`]: what it knows of its machine; [`setup`] makes its state from that and the
//!   configuration, [`netstage_scenario::pe`].
//! - [`customer`]: a frame from a customer: circuit, VPN, route, queue.
//! - [`network`]: a frame from the core: label, sender, count, circuit.
//! - [`flows`]: the VPN flows a configuration describes.
//! - [`queues`]: in what order a VPN flow's packets wait.
//! - [`encapsulation`]: labels and tunnels around what leaves; [`message`]: management packets.
//! - [`neighbours`]: who has which address on a circuit; [`local`]: packets to the router itself.
//! - [`references`]: flows that weights are relative to, published between routers.
//! - [`replace`]: another configuration, without losing a packet.
//! - [`leave`]: what the edge lets go, and what is handed to a circuit.
//! - [`view`]: what is known of circuits and flows.
//! - [`circuits`], [`pool`], [`counter`], [`keys`]: its parts.
//!
//! Who may send when is [`netstage_core::edge`]'s, and window control beneath it
//! [`netstage_core::fair`]'s, as in the simulator.

mod circuits;
pub mod counter;
mod customer;
mod encapsulation;
pub(super) mod flows;
mod keys;
mod leave;
mod local;
pub mod machine;
mod message;
mod neighbours;
mod network;
mod pool;
mod queues;
mod references;
mod replace;
mod setup;
mod view;

pub use counter::{Counter, Counters, Severity};
pub use keys::Keys;
pub use machine::Machine;
pub use references::{Counts, ReferenceView, Source};
pub use replace::Prepared;
pub use view::{CircuitView, FlowView, Traffic};

use circuits::Circuits;
use encapsulation::Encapsulation;
use netstage_core::edge::{Event, Labels, Routes, Tape};
use netstage_core::fair::wire::Querier;
use netstage_core::fair::{Egress, Published};
use netstage_core::neighbour::Neighbours;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::Epoch;
use netstage_host::obstacle::Obstacle;
use netstage_host::ports::Port;
use netstage_scenario::pe;
use netstage_wire::ethernet::{self, Mac};
use netstage_wire::mpls::Label;
use pool::{Buffered, Pool};
use references::References;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Frames read from one port, and packets of one port's share sent, in one turn.
const BATCH: usize = 64;

/// An ICMP error may be sent this often in a VPN, and so many at once.
const ICMP_EVERY: Duration = Duration::from_millis(10);
const ICMP_BURST: Duration = Duration::from_millis(100);

/// A provider edge router without a clock and without waiting.
///
/// Call [`turn`](Engine::turn) whenever a port has frames, and at
/// [`poll_timeout`](Engine::poll_timeout) at the latest.
#[derive(Debug)]
pub struct Engine<P> {
    ports: Vec<Attached<P>>,
    state: State,
}

#[derive(Debug)]
struct Attached<P> {
    port: P,
    /// Why the port was last of no use.
    failure: Option<io::Error>,
}

/// What one turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Frames read from all ports.
    pub received: usize,
    /// Frames handed to all ports.
    pub sent: usize,
    /// There may be more to do at once.
    pub more: bool,
}

impl<P: Port> Engine<P> {
    /// An engine over these ports, in the order of [`pe::Router::interfaces`]. Its peers are unreachable
    /// until [`set_way`](Engine::set_way) gives their next hops.
    ///
    /// Where several engines share a router, each takes it without the flows and circuits of the others'
    /// VPNs, and [`tell_reference`](Engine::tell_reference) passes on what the others' flows measure.
    ///
    /// Panics if ports are missing, or the configuration has not passed its checks.
    pub fn new(router: &pe::Router, machine: &Machine, ports: Vec<P>) -> Result<Engine<P>, Obstacle> {
        let state = setup::state(router, machine, router.buffers as usize)?;
        assert_eq!(ports.len(), state.names.ports.len(), "every interface has a port");
        let ports = ports.into_iter().map(|port| Attached { port, failure: None }).collect();
        Ok(Engine { ports, state })
    }

    /// Reads a batch from each port, and sends what may go. Time does not go back.
    pub fn turn(&mut self, now: Instant) -> Turn {
        let mut turn = Turn::default();
        let Engine { ports, state } = self;
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
        state.ask_neighbours(now);
        state.publish(now);
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

    /// When to call [`turn`](Engine::turn) again at the latest; [`Instant::ZERO`] is at once.
    pub fn poll_timeout(&self) -> Instant {
        let State { edge, neighbours, references, .. } = &self.state;
        edge.poll_timeout().min(neighbours.poll_timeout()).min(references.poll_timeout())
    }

    /// Where a peer, by its number, is to be sent to from now on: port, next router's address
    /// and MTU of the way, bytes of an IP or MPLS packet. None: it cannot be reached.
    ///
    /// Panics if the port is not on the side of the core.
    pub fn set_way(&mut self, peer: usize, way: Option<(usize, Mac, u16)>) {
        let State { peers, sides, .. } = &mut self.state;
        let peer = &mut peers[peer];
        peer.is_reachable = way.is_some();
        if let Some((port, next_hop, mtu)) = way {
            let Side::Core { mac } = &sides[port] else { panic!("the port leads to customers") };
            peer.port = port as u32;
            peer.header = setup::core_header(&peer.encapsulation, next_hop, *mac);
            peer.mtu = setup::left(&peer.encapsulation, mtu) as u16;
        }
    }

    /// Looks after flows whose peers do not answer; call it now and then. Gives those whose
    /// state has changed, and whether they are silent now.
    pub fn watch(&mut self) -> Vec<(usize, bool)> {
        let State { edge, flows, .. } = &mut self.state;
        let changed = flows.iter_mut().enumerate().filter_map(|(number, flow)| {
            let is_silent = edge.silent_since(number).is_some();
            (std::mem::replace(&mut flow.is_silent, is_silent) != is_silent).then_some((number, is_silent))
        });
        changed.collect()
    }

    /// Records from now on what its VPN flows are told and decide. They must not have decided
    /// anything yet.
    pub fn trace(&mut self) {
        self.state.edge.begin();
    }

    /// Events recorded and not taken yet.
    pub fn traced(&self) -> usize {
        self.state.edge.recorded()
    }

    /// What was recorded since this was last asked.
    pub fn take_trace(&mut self) -> Vec<Event> {
        self.state.edge.take()
    }

    /// Records no more.
    pub fn stop_trace(&mut self) {
        self.state.edge.stop();
    }

    /// Looks after references nothing is heard of; call it now and then. Gives those whose state
    /// has changed, and whether what is known of them is too old now.
    pub fn watch_references(&mut self, now: Instant) -> Vec<(usize, bool)> {
        let State { references, edge, .. } = &mut self.state;
        references.watch(now, edge)
    }

    /// The references, in the order of the configuration.
    pub fn references(&self) -> impl ExactSizeIterator<Item = ReferenceView<'_>> {
        self.state.reference_views()
    }

    /// What is known of a reference, by its number.
    pub fn reference(&self, number: usize) -> Option<Published> {
        self.state.edge.reference(number).copied()
    }

    /// What another engine of this router knows of a reference.
    pub fn tell_reference(&mut self, number: usize, published: Published) {
        self.state.edge.handle_reference(number, published);
    }

    /// Stations on circuits: circuit, address, and the station's own once it is known.
    pub fn neighbours(&self) -> impl Iterator<Item = (&str, IpAddr, Option<Mac>)> {
        let names = &self.state.names.circuits;
        self.state
            .neighbours
            .iter()
            .map(|(circuit, address, mac)| (names[circuit as usize].as_str(), address, mac))
    }

    /// Packets handed to each circuit's customers and taken from them, and their bytes at the
    /// IP layer, in the order of the configuration.
    pub fn circuits(&self) -> impl Iterator<Item = CircuitView<'_>> {
        let names = self.state.names.circuits.iter();
        names.zip(&self.state.circuits).map(|(name, circuit)| CircuitView {
            name,
            vpn: &self.state.names.vpns[circuit.vpn as usize],
            received: circuit.received,
            sent: circuit.sent,
        })
    }

    /// The ports' names, in the order of the configuration.
    pub fn port_names(&self) -> &[String] {
        &self.state.names.ports
    }

    /// Whether a port leads to the core.
    pub fn is_core(&self, port: usize) -> bool {
        matches!(self.state.sides[port], Side::Core { .. })
    }

    /// The ports, to wait on.
    pub fn ports(&self) -> impl Iterator<Item = &P> {
        self.ports.iter().map(|attached| &attached.port)
    }

    /// A port, as a driver or test needs it.
    pub fn port_mut(&mut self, port: usize) -> &mut P {
        &mut self.ports[port].port
    }

    /// Why a port is of no use at present.
    pub fn failure(&self, port: usize) -> Option<&io::Error> {
        self.ports[port].failure.as_ref()
    }

    /// What was refused or noticed, all together.
    pub fn counters(&self) -> &Counters {
        &self.state.totals
    }

    /// The VPN flows, in the order of the configuration: those of the first VPN first.
    pub fn flows(&self) -> impl ExactSizeIterator<Item = FlowView<'_>> {
        (0..self.state.flows.len()).map(|flow| self.flow(flow))
    }

    /// One VPN flow.
    pub fn flow(&self, number: usize) -> FlowView<'_> {
        FlowView { state: &self.state, number }
    }

    /// Buffers that are free.
    pub fn free_buffers(&self) -> usize {
        self.state.pool.free()
    }
}

impl<P: Port> Attached<P> {
    /// Hands over what is to leave here, and lets it go.
    fn send(&mut self, index: usize, state: &mut State) -> usize {
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
            state.pool.give(departure.buffer);
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

/// All but the ports.
#[derive(Debug)]
struct State {
    epoch: Epoch,
    epoch_unix_ns: u64,
    edge: Tape<Buffered>,
    pool: Pool,
    labels: Labels,
    flows: Vec<Flow>,
    references: References,
    vpns: Vec<Vpn>,
    peers: Vec<Peer>,
    circuits: Vec<Circuit>,
    exits: Vec<Exit>,
    neighbours: Neighbours<Buffered>,
    sides: Vec<Side>,
    class_tables: Vec<[u8; 64]>,
    /// What the batch of this moment holds.
    from_customers: Vec<customer::Arrival>,
    from_core: Vec<network::Arrival>,
    totals: Counters,
    /// Per port, what leaves at the end of the turn.
    departures: Vec<Vec<Departure>>,
    names: Names,
}

/// For people; no packet needs them.
#[derive(Debug)]
struct Names {
    vpns: Vec<String>,
    peers: Vec<String>,
    circuits: Vec<String>,
    ports: Vec<String>,
}

/// A VPN's flow to a peer and the one back.
#[derive(Debug)]
struct Flow {
    vpn: u32,
    peer: u32,
    send: Label,
    receive: Label,
    /// Which table tells the classes of its packets, plus one; zero is first in, first out.
    classes: u16,
    querier: Querier,
    egress: Egress,
    /// Only of flows to which something happened.
    counters: Option<Box<Counters>>,
    /// What was last told of its peer.
    is_silent: bool,
}

#[derive(Debug)]
struct Vpn {
    routes: Routes<Next>,
    /// Buffers in which its packets wait.
    held: u32,
    /// When an ICMP error would be due if all so far had kept their distance.
    next_icmp: Instant,
    address_v4: Option<Ipv4Addr>,
    address_v6: Option<Ipv6Addr>,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Exit(u32),
    Flow(u32),
    /// To this router itself, at its address on a circuit.
    Local(u32),
}

/// A way out by a circuit: to the station that has the packet's own destination, or to the
/// router that has this address.
#[derive(Clone, Copy, Debug)]
struct Exit {
    circuit: u32,
    via: Option<IpAddr>,
}

#[derive(Debug)]
struct Peer {
    port: u32,
    header: Header,
    is_reachable: bool,
    encapsulation: Encapsulation,
    /// Bytes of the largest customers' packet the way there carries.
    mtu: u16,
    clamp_segment_size: bool,
    keys: Option<Keys>,
}

#[derive(Debug)]
struct Circuit {
    vpn: u32,
    port: u32,
    header: Header,
    mtu: u16,
    station: Option<Mac>,
    addresses: Vec<(IpAddr, u8)>,
    received: Traffic,
    sent: Traffic,
}

/// An Ethernet header to be put in front.
#[derive(Clone, Copy, Debug)]
struct Header {
    bytes: [u8; ethernet::HEADER + 2 * ethernet::TAG],
    length: u8,
}

impl Header {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

#[derive(Debug)]
enum Side {
    Customer { mac: Mac, circuits: Circuits },
    Core { mac: Mac },
}

/// A frame that leaves at the end of the turn.
#[derive(Clone, Copy, Debug)]
struct Departure {
    buffer: u32,
    start: u16,
    end: u16,
}

/// Why a packet goes no further, and whose it was.
#[derive(Clone, Copy, Debug)]
struct Refused {
    counter: Counter,
    flow: Option<usize>,
}

impl From<Counter> for Refused {
    fn from(counter: Counter) -> Refused {
        Refused { counter, flow: None }
    }
}

impl Counter {
    /// It happened to this flow.
    fn of(self, flow: usize) -> Refused {
        Refused { counter: self, flow: Some(flow) }
    }
}

impl State {
    /// Takes a frame into a buffer. What becomes of it is decided for a whole batch, step by step:
    /// where many flows have packets, nearly nothing of a flow is in a cache, and a batch waits
    /// for memory together.
    #[inline]
    fn read_frame(&mut self, now: Instant, at: Instant, port: usize, frame: &[u8]) {
        let result = match self.sides[port] {
            Side::Customer { .. } => self.read_customers_frame(now, port, frame),
            Side::Core { .. } => self.read_core_frame(at, port, frame),
        };
        if let Err(refused) = result {
            self.count(refused);
        }
    }

    /// Names of a flow's VPN and peer.
    fn flow_names(&self, number: usize) -> (&str, &str) {
        let flow = &self.flows[number];
        (&self.names.vpns[flow.vpn as usize], &self.names.peers[flow.peer as usize])
    }

    #[cold]
    fn count(&mut self, Refused { counter, flow }: Refused) {
        self.totals.add(counter, 1);
        if let Some(flow) = flow {
            self.flows[flow].counters.get_or_insert_default().add(counter, 1);
        }
    }
}

#[cfg(test)]
mod tests;
