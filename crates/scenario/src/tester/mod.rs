//! The configuration of a router tester: read and checked as a scenario is. What is searched becomes a
//! [`Scenario`], a cell for each operation and size, so that all else is as with any scenario: methods,
//! repeats, resuming, the record and its figures.

mod build;
mod cells;
mod convergence;
mod file;

use crate::Scenario;
use crate::error::{Errors, Place, Problems};
use crate::read::read_text;
use crate::table::Decode as _;
use crate::tree::parse_document;
use netstage_core::forward::Model;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

pub use cells::of_test;
pub use convergence::{Convergence, Event};

/// A tester, as configured.
#[derive(Clone, Debug)]
pub struct Tester {
    /// What reports call the router.
    pub router: String,
    /// By whose rules.
    pub profile: Profile,
    /// What the router does with packets.
    pub operations: Vec<Operation>,
    /// Sizes of IP packets.
    pub sizes: Vec<PacketSize>,
    /// Interfaces that lead to the router.
    pub ports: Vec<Port>,
    /// One way, or both.
    pub ways: Vec<Way>,
    /// Networks in each way.
    pub networks: u32,
    /// Who tells the router of them.
    pub told: Told,
    /// The labels of the first way.
    pub labels: Option<Labels>,
    /// The sessions of [`Told::Bgp`].
    pub bgp: Bgp,
    /// Routes that go and come while packets flow.
    pub convergence: Option<Convergence>,
    /// How labels belong to what is beneath.
    pub model: Model,
    /// What sends.
    pub generator: Generator,
    /// Rate of one port.
    pub line: BitRate,
    /// The highest rate tried, at the IP layer.
    pub max_rate: Option<BitRate>,
    /// How long the router may take until it forwards what it was told of.
    pub ready_within: Duration,
    /// What is searched.
    pub scenario: Scenario,
}

impl Tester {
    /// How many peers packets of a way go to: at least one behind each port that receives.
    pub fn peers(&self, way: &Way) -> u32 {
        self.labels.map_or(1, |labels| labels.peers).max(way.to.len() as u32)
    }

    /// The end of a peer's label switched path.
    pub fn loopback(&self, way: &Way, peer: u32) -> Ipv4Addr {
        let first = self.labels.map_or(Ipv4Addr::UNSPECIFIED, |labels| labels.loopback);
        Ipv4Addr::from(u32::from(first) + way.labels_above + peer)
    }

    /// The sizes of packets in a mix.
    pub fn mix(&self) -> PacketSize {
        let first = self.ways.first().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |way| way.first);
        PacketSize::Imix { smallest: build::least(first) }
    }

    /// The shortest and the longest IP packet of all sizes.
    pub fn lengths(&self) -> RangeInclusive<u16> {
        let mut all: Vec<u16> = self.sizes.iter().flat_map(|size| size.lengths()).collect();
        all.extend(self.convergence.iter().map(|convergence| convergence.size as u16));
        all.sort_unstable();
        all.first().copied().unwrap_or(0)..=all.last().copied().unwrap_or(0)
    }
}

/// By whose rules routers are tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Those of the comparison for MPLS-IX.
    Paper,
    /// RFC 2544.
    Rfc2544,
    /// RFC 5695.
    Rfc5695,
    /// RFC 9971.
    Mlrsearch,
}

/// What a router does with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Forwards them by address.
    Ip,
    /// Pushes a label.
    Push,
    /// Swaps one.
    Swap,
    /// Pops the last one and looks up what is beneath.
    Pop,
    /// Pops the outer one of two for the next router.
    Php,
    /// Pops the last one and sends what is beneath where the label says.
    Unlabelled,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 6] = [
        Operation::Ip,
        Operation::Push,
        Operation::Swap,
        Operation::Pop,
        Operation::Php,
        Operation::Unlabelled,
    ];

    /// Its name in configurations, records and figures.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Ip => "ip",
            Operation::Push => "push",
            Operation::Swap => "swap",
            Operation::Pop => "pop",
            Operation::Php => "php",
            Operation::Unlabelled => "unlabelled",
        }
    }

    /// Labels of a packet that arrives at the router, and of one that leaves it.
    pub fn labels(self) -> (u32, u32) {
        match self {
            Operation::Ip => (0, 0),
            Operation::Push => (0, 1),
            Operation::Swap => (1, 1),
            Operation::Pop | Operation::Unlabelled => (1, 0),
            Operation::Php => (2, 1),
        }
    }

    /// Whether packets go to the networks the router was told of.
    pub fn is_routed(self) -> bool {
        matches!(self, Operation::Ip | Operation::Push | Operation::Pop)
    }
}

/// Sizes of packets in a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketSize {
    /// All of one size.
    Bytes(u32),
    /// A mix: 7 of the smallest, 4 of 552 B and 1 of 1500 B in every 12.
    Imix {
        /// Bytes of the smallest.
        smallest: u16,
    },
}

/// Who tells the router of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Its operator.
    You,
    /// The tester, by BGP-4.
    Bgp,
}

/// Who tells the router of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelsBy {
    /// Its operator.
    You,
    /// The tester, by LDP.
    Ldp,
    /// The tester, by RSVP-TE (RFC 3209); no configuration has it yet.
    RsvpTe,
}

/// What sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generator {
    /// Whatever works, the fastest first.
    Auto,
    /// A program in the kernel.
    Xdp,
    /// AF_XDP.
    AfXdp,
    /// AF_PACKET.
    AfPacket,
}

/// An interface that leads to the router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name in the configuration.
    pub name: String,
    /// The interface.
    pub interface: String,
    /// The tester's address there, and the length of the link's prefix.
    pub address: (IpAddr, u8),
    /// The router's.
    pub router: IpAddr,
    /// What the router calls its end.
    pub router_interface: Option<String>,
}

/// Packets that go one way through the router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Ports that send, as indices.
    pub from: Vec<usize>,
    /// Ports that receive.
    pub to: Vec<usize>,
    /// The first network; the others follow it.
    pub first: IpAddr,
    /// Labels are so much above those of the first way.
    pub labels_above: u32,
}

/// The first label of each kind, of the first peer of the first way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Labels {
    /// Who tells the router of them.
    pub by: LabelsBy,
    /// Pushed by the router.
    pub push: u32,
    /// Swapped by it.
    pub swap: u32,
    /// In place of that.
    pub swap_to: u32,
    /// Popped by it, and looked up.
    pub pop: u32,
    /// Popped for the next router.
    pub php: u32,
    /// The address of the first peer, to which the router's label switched path leads.
    pub loopback: Ipv4Addr,
    /// An address of the router itself.
    pub router_loopback: Option<Ipv4Addr>,
    /// How many peers there are in each way.
    pub peers: u32,
}

impl Way {
    /// The network of this number: of 24 bits, of IPv6 48.
    pub fn network(&self, number: u32) -> (IpAddr, u8) {
        match self.first {
            IpAddr::V4(first) => (Ipv4Addr::from(u32::from(first) + (number << 8)).into(), 24),
            IpAddr::V6(first) => (Ipv6Addr::from(u128::from(first) + (u128::from(number) << 80)).into(), 48),
        }
    }
}

impl Labels {
    /// The outer label of packets that arrive at the router for the first peer.
    pub fn incoming(&self, operation: Operation) -> Option<u32> {
        match operation {
            Operation::Ip | Operation::Push => None,
            Operation::Swap => Some(self.swap),
            Operation::Pop => Some(self.pop),
            Operation::Php | Operation::Unlabelled => Some(self.php),
        }
    }

    /// The label of packets that leave it.
    pub fn outgoing(&self, operation: Operation) -> Option<u32> {
        match operation {
            Operation::Push => Some(self.push),
            Operation::Swap => Some(self.swap_to),
            Operation::Php => Some(INNER),
            Operation::Ip | Operation::Pop | Operation::Unlabelled => None,
        }
    }
}

/// The inner label of two, which no router looks at.
pub const INNER: u32 = 16;

/// Sessions by which routes are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bgp {
    /// The tester's autonomous system.
    pub own_as: u32,
    /// The router's.
    pub router_as: u32,
    /// The key of TCP's MD5 option.
    pub md5: Option<String>,
    /// A file of routes that are told beside those of the networks.
    pub beside: Option<PathBuf>,
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
        && let Some(file) = file::File::decode(&root, &mut problems)
        && let Some(mut tester) = build::tester(&file, text, &mut problems)
        && problems.is_empty()
    {
        let folder = Path::new(name).parent().unwrap_or(Path::new(""));
        tester.bgp.beside = tester.bgp.beside.map(|file| folder.join(file));
        return Ok(tester);
    }
    if problems.is_empty() {
        problems.push(Place::new(0, 0..0), "the configuration cannot be used");
    }
    Err(problems.into_errors())
}

/// The tables of a configuration, in Markdown.
pub fn reference() -> String {
    crate::reference::tables(&file::File::kind())
}

#[cfg(test)]
mod tests;
