//! Configuration of a router tester, read and checked like a scenario. It becomes a [`Scenario`] with a cell for each
//! operation and size, so that methods, repeats, resuming, the record and its figures are those of any scenario.

mod build;
mod cells;
mod convergence;
mod convergence_table;
mod file;

use crate::Scenario;
use crate::error::{Errors, Problems, SourceRange};
use crate::read::read_text;
use crate::table::Decode as _;
use crate::tree::parse_document;
use netstage_core::forward::TunnelModel;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

pub use cells::parse_test_name;
pub use convergence::{Convergence, ConvergenceEvent};

/// Configuration of a router tester.
#[derive(Clone, Debug)]
pub struct Tester {
    /// Name of the router under test in reports.
    pub router: String,
    /// Test profile.
    pub profile: Profile,
    /// Forwarding operations to test.
    pub operations: Vec<Operation>,
    /// Sizes of IP packets.
    pub sizes: Vec<PacketSize>,
    /// Interfaces connected to the router.
    pub ports: Vec<TesterPort>,
    /// Directions of traffic: one, or both.
    pub directions: Vec<TrafficDirection>,
    /// Number of networks per direction.
    pub networks: u32,
    /// Source of the router's routes to them.
    pub route_source: RouteSource,
    /// Labels of the first direction.
    pub labels: Option<LabelConfig>,
    /// BGP sessions of [`RouteSource::Bgp`].
    pub bgp: Bgp,
    /// Trials in which routes are withdrawn and advertised.
    pub convergence: Option<Convergence>,
    /// Relation of the time to live and traffic class of a label to those of the packet below.
    pub model: TunnelModel,
    /// Number of routers on the path of the packets.
    pub hops: u8,
    /// Packet generator.
    pub generator: Generator,
    /// Line rate of a port.
    pub line: BitRate,
    /// Maximum rate at the IP layer.
    pub max_rate: Option<BitRate>,
    /// Time limit for the router to install advertised routes and labels.
    pub ready_within: Duration,
    /// Waiting time for packets in flight at the end of a trial.
    pub drain: Duration,
    /// Scenario of the tests.
    pub scenario: Scenario,
}

impl Tester {
    /// Returns the operations of all tests, those of convergence included.
    pub fn signaled_operations(&self) -> impl Iterator<Item = Operation> + '_ {
        let of_events = self.convergence.iter().map(|convergence| convergence.operation);
        self.operations.iter().copied().chain(of_events)
    }

    /// Returns the number of peers of a direction: at least one behind each receiving port.
    pub fn peer_count(&self, direction: &TrafficDirection) -> u32 {
        self.labels.map_or(1, |labels| labels.peers).max(direction.to.len() as u32)
    }

    /// Returns the receiving ports at which the label switched paths to a peer end: one, or with events of LDP all, of
    /// which the others are alternatives to the first.
    pub fn ports_of_peer<'a>(
        &self,
        direction: &'a TrafficDirection,
        peer: u32,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let is_behind_all = self.convergence.as_ref().is_some_and(Convergence::has_ldp_events);
        let turn = peer as usize % direction.to.len();
        let ports = direction.to.iter().enumerate();
        ports.filter(move |(at, _)| is_behind_all || *at == turn).map(|(_, port)| *port)
    }

    /// Returns the address at the end of a peer's label switched path.
    pub fn loopback(&self, direction: &TrafficDirection, peer: u32) -> Ipv4Addr {
        let first = self.labels.map_or(Ipv4Addr::UNSPECIFIED, |labels| labels.loopback);
        Ipv4Addr::from(u32::from(first) + direction.label_offset + peer)
    }

    /// Returns the packet sizes of a mix.
    pub fn mix(&self) -> PacketSize {
        let first = self
            .directions
            .first()
            .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |direction| direction.first_network);
        PacketSize::Imix { smallest: build::min_size(first) }
    }

    /// Returns the range of IP packet lengths over all sizes.
    pub fn lengths(&self) -> RangeInclusive<u16> {
        let mut all: Vec<u16> = self.sizes.iter().flat_map(|size| size.lengths()).collect();
        all.extend(self.convergence.iter().map(|convergence| convergence.size as u16));
        all.sort_unstable();
        all.first().copied().unwrap_or(0)..=all.last().copied().unwrap_or(0)
    }
}

/// Test profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Comparison of routers for MPLS-IX.
    Paper,
    /// RFC 2544.
    Rfc2544,
    /// RFC 5695.
    Rfc5695,
    /// RFC 9971.
    Mlrsearch,
}

/// Forwarding operation of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Forwards by IP address.
    Ip,
    /// Pushes a label.
    Push,
    /// Swaps a label.
    Swap,
    /// Pops the last label and looks up the packet below.
    Pop,
    /// Pops the outer of two labels for the next router (penultimate hop popping).
    Php,
    /// Pops the last label and forwards by the label alone.
    Unlabeled,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 6] = [
        Operation::Ip,
        Operation::Push,
        Operation::Swap,
        Operation::Pop,
        Operation::Php,
        Operation::Unlabeled,
    ];

    /// Returns the name in configurations, records and figures.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Ip => "ip",
            Operation::Push => "push",
            Operation::Swap => "swap",
            Operation::Pop => "pop",
            Operation::Php => "php",
            Operation::Unlabeled => "unlabeled",
        }
    }

    /// Returns the number of labels of packets that arrive at and leave the router.
    pub fn labels(self) -> (u32, u32) {
        match self {
            Operation::Ip => (0, 0),
            Operation::Push => (0, 1),
            Operation::Swap => (1, 1),
            Operation::Pop | Operation::Unlabeled => (1, 0),
            Operation::Php => (2, 1),
        }
    }

    /// Returns whether the router looks up the routes of the networks.
    pub fn is_routed(self) -> bool {
        matches!(self, Operation::Ip | Operation::Push | Operation::Pop)
    }
}

/// Packet sizes of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketSize {
    /// Packets of one size in bytes.
    Bytes(u32),
    /// Mix of sizes: of 12 packets, 7 of the minimum size, 4 of 552 B and 1 of 1500 B.
    Imix {
        /// Minimum size in bytes.
        smallest: u16,
    },
}

/// Source of the router's routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteSource {
    /// Configuration by the user.
    User,
    /// Advertisement by the tester with BGP-4.
    Bgp,
}

/// Source of the router's labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelSource {
    /// Configuration by the user.
    User,
    /// Advertisement by the tester with LDP.
    Ldp,
    /// Signaling by the tester with RSVP-TE (RFC 3209).
    RsvpTe,
}

/// Packet generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generator {
    /// Fastest generator that the interfaces support.
    Auto,
    /// Kernel program (XDP).
    Xdp,
    /// AF_XDP.
    AfXdp,
    /// AF_PACKET.
    AfPacket,
}

/// Interface connected to the router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TesterPort {
    /// Name in the configuration.
    pub name: String,
    /// Name of the interface.
    pub interface: String,
    /// Address of the tester on the link, with the prefix length.
    pub address: (IpAddr, u8),
    /// Address of the router on the link.
    pub router: IpAddr,
    /// Name of the router's interface.
    pub router_interface: Option<String>,
}

/// Direction of traffic through the router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficDirection {
    /// Indices of the sending ports.
    pub from: Vec<usize>,
    /// Indices of the receiving ports.
    pub to: Vec<usize>,
    /// First network; the others follow it.
    pub first_network: IpAddr,
    /// Offset of the labels from those of the first direction.
    pub label_offset: u32,
}

/// Labels of the first peer of the first direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelConfig {
    /// Source of the router's labels.
    pub source: LabelSource,
    /// Label pushed by the router.
    pub push: u32,
    /// Label swapped by the router.
    pub swap: u32,
    /// Label that replaces `swap`.
    pub swap_to: u32,
    /// Label popped by the router before a lookup.
    pub pop: u32,
    /// Label popped by the router for the next router.
    pub php: u32,
    /// Address of the first peer, the end of the router's label switched path.
    pub loopback: Ipv4Addr,
    /// Address of the router itself.
    pub router_loopback: Option<Ipv4Addr>,
    /// Number of peers per direction.
    pub peers: u32,
}

impl TrafficDirection {
    /// Returns the network with this number: an IPv4 /24 or an IPv6 /48.
    pub fn network(&self, number: u32) -> (IpAddr, u8) {
        match self.first_network {
            IpAddr::V4(first) => (Ipv4Addr::from(u32::from(first) + (number << 8)).into(), 24),
            IpAddr::V6(first) => (Ipv6Addr::from(u128::from(first) + (u128::from(number) << 80)).into(), 48),
        }
    }
}

impl LabelConfig {
    /// Returns the outer label of packets for the first peer that arrive at the router.
    pub fn incoming(&self, operation: Operation) -> Option<u32> {
        match operation {
            Operation::Ip | Operation::Push => None,
            Operation::Swap => Some(self.swap),
            Operation::Pop => Some(self.pop),
            Operation::Php | Operation::Unlabeled => Some(self.php),
        }
    }

    /// Returns the label of packets for the first peer that leave the router.
    pub fn outgoing(&self, operation: Operation) -> Option<u32> {
        match operation {
            Operation::Push => Some(self.push),
            Operation::Swap => Some(self.swap_to),
            Operation::Php => Some(INNER),
            Operation::Ip | Operation::Pop | Operation::Unlabeled => None,
        }
    }
}

/// Inner label of two, which the router does not look up.
pub const INNER: u32 = 16;

/// BGP sessions that advertise routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bgp {
    /// Autonomous system number of the tester.
    pub own_as: u32,
    /// Autonomous system number of the router.
    pub router_as: u32,
    /// Key of the TCP MD5 option.
    pub md5: Option<String>,
    /// File of additional routes to advertise.
    pub additional_routes: Option<PathBuf>,
}

/// Reads and checks a configuration file.
pub fn load(path: &Path) -> Result<Tester, Errors> {
    parse(&path.display().to_string(), &read_text(path, "configuration")?)
}

/// Reads and checks a configuration.
pub fn parse(name: &str, text: &str) -> Result<Tester, Errors> {
    let mut problems = Problems::default();
    problems.add_source(name, text);
    let root = parse_document(0, &mut problems);
    if problems.is_empty()
        && let Some(file) = file::TesterFile::decode(&root, &mut problems)
        && let Some(mut tester) = build::tester(&file, text, &mut problems)
        && problems.is_empty()
    {
        let folder = Path::new(name).parent().unwrap_or(Path::new(""));
        tester.bgp.additional_routes = tester.bgp.additional_routes.map(|file| folder.join(file));
        return Ok(tester);
    }
    if problems.is_empty() {
        problems.push(SourceRange::new(0, 0..0), "invalid configuration");
    }
    Err(problems.into_errors())
}

/// Returns the reference of the configuration's tables, in Markdown.
pub fn reference() -> String {
    crate::reference::tables(&file::TesterFile::kind())
}

#[cfg(test)]
mod tests;
