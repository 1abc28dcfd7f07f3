//! The configuration of a router tester: read and checked as a scenario is. What is searched becomes a
//! [`Scenario`], a cell for each operation and size, so that all else is as with any scenario: methods,
//! repeats, resuming, the record and its figures.

mod cells;
mod convergence;
mod file;

use crate::Scenario;
use crate::error::{Errors, Place, Problems, did_you_mean};
use crate::read::read_text;
use crate::table::{At, Decode as _};
use crate::tree::parse_document;
use file::PortName;
use netstage_core::forward::Model;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::Path;

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
        PacketSize::Imix { smallest: least(first) }
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
        && let Some(tester) = built(&file, text, &mut problems)
        && problems.is_empty()
    {
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

fn built(file: &file::File, text: &str, problems: &mut Problems) -> Option<Tester> {
    let head = &file.tester;
    let ports = ports(file, problems);
    let named = |names: &[At<PortName>], problems: &mut Problems| -> Vec<usize> {
        let index = |name: &At<PortName>| {
            let found = file.port.index(&name.0);
            if found.is_none() {
                let help = did_you_mean(&name.0, file.port.names());
                problems.push_with_help(name.place, format!("there is no port `{}`", name.0), help);
            }
            found
        };
        names.iter().filter_map(index).collect()
    };
    let (from, to) = (named(&head.from.0, problems), named(&head.to.0, problems));
    for name in head.to.0.iter().filter(|name| head.from.0.iter().any(|other| other.0 == name.0)) {
        let help = "both_ways = true has the receiving ports send too";
        problems.push_help(name.place, format!("`{}` sends and receives", name.0), help);
    }
    let networks = file.routes.count.0 as u32;
    let first = first_network(file, networks, problems);
    let convergence = file.convergence.as_ref().and_then(|asked| convergence(file, asked, problems));
    let operations = match (&head.operations, &file.convergence) {
        (Some(asked), _) => asked.value.0.clone(),
        (None, Some(_)) => Vec::new(),
        (None, None) => head.profile.operations(),
    };
    let labels = file.labels.as_ref().map(|labels| &labels.value);
    if labels.is_none()
        && let Some(asked) = &head.operations
        && asked.value.0.iter().any(|operation| *operation != Operation::Ip)
    {
        problems.push_help(asked.place, "these operations have labels", "add a table [labels]");
    }
    if file.routes.by.value == Told::Bgp && file.bgp.is_none() {
        let help = "add a table [bgp], with `router_as` at least";
        problems.push_help(file.routes.by.place, "routes are told by BGP, and there is no session", help);
    }
    let (first, ports) = (first?, ports?);
    check_families(file, first, &ports, &operations, problems);
    let labels = labels.map(|labels| Labels {
        by: labels.by,
        push: labels.push.0 as u32,
        swap: labels.swap.0 as u32,
        swap_to: labels.swap_to.0 as u32,
        pop: labels.pop.0 as u32,
        php: labels.php.0 as u32,
        loopback: v4(&labels.loopback.0).unwrap_or(Ipv4Addr::UNSPECIFIED),
        router_loopback: labels.router_loopback.as_ref().and_then(|address| v4(&address.0)),
        peers: labels.peers.0 as u32,
    });
    let mut ways = vec![Way { from: from.clone(), to: to.clone(), first, labels_above: 0 }];
    if head.both_ways {
        let (first, _) = ways[0].network(networks);
        let labels_above = labels.map_or(0, |labels| labels.peers);
        ways.push(Way { from: to, to: from, first, labels_above });
    }
    let sizes = match operations[..] {
        [] => Vec::new(),
        _ => head.sizes.as_ref().map_or(head.profile.sizes(first), |asked| {
            asked.value.0.iter().map(|size| size.for_networks(first)).collect()
        }),
    };
    let operations: Vec<Operation> = match labels {
        Some(_) => operations,
        None => operations.into_iter().filter(|operation| *operation == Operation::Ip).collect(),
    };
    if operations.is_empty() && convergence.is_none() {
        problems.push_help(
            Place::new(0, 0..0),
            "this profile has operations with labels only",
            "add a table [labels]",
        );
    }
    if !problems.is_empty() {
        return None;
    }
    let lines = ways[0].from.len() * ways.len();
    let mut scenario = cells::scenario(head, &operations, &sizes, lines, text)?;
    if let Some(convergence) = &convergence {
        scenario.cells.extend(cells::converging(head, convergence, networks, lines)?);
    }
    let bgp = file.bgp.as_ref().map(|bgp| &bgp.value);
    Some(Tester {
        router: head.router.clone(),
        profile: head.profile,
        operations,
        sizes,
        ports,
        ways,
        networks,
        told: file.routes.by.value,
        labels,
        bgp: Bgp {
            own_as: bgp.map_or(0, |bgp| bgp.own_as.0 as u32),
            router_as: bgp.map_or(0, |bgp| bgp.router_as.0 as u32),
            md5: bgp.and_then(|bgp| bgp.md5.clone()),
        },
        convergence,
        model: head.model,
        generator: head.generator,
        line: head.line,
        max_rate: head.max_rate,
        ready_within: head.ready_within.0,
        scenario,
    })
}

/// None where they do not all fit.
fn first_network(file: &file::File, networks: u32, problems: &mut Problems) -> Option<IpAddr> {
    let ways = if file.tester.both_ways { 2 } else { 1 };
    let first = file.routes.first.value.0;
    let (fits, help) = match first {
        IpAddr::V4(first) => (
            first.octets()[3] == 0
                && (u64::from(u32::from(first)) + (u64::from(networks * ways) << 8)) <= 0xe000_0000,
            "such as \"11.0.0.0\", with room for all of them below 224.0.0.0",
        ),
        IpAddr::V6(first) => {
            let first = u128::from(first);
            let room = (u128::from(u16::MAX) << 112) - first.min(u128::from(u16::MAX) << 112);
            let fits = first << 48 == 0 && u128::from(networks * ways) << 80 <= room;
            (fits, "such as \"2001:db8::\", with zeros behind its first 48 bits")
        }
    };
    if !fits {
        problems.push_help(
            file.routes.first.place,
            "expected the first of many networks of 24 bits, of IPv6 48",
            help,
        );
    }
    fits.then_some(first)
}

/// Whether ports, packets and who tells of them are of kinds that go together.
fn check_families(
    file: &file::File,
    first: IpAddr,
    ports: &[Port],
    operations: &[Operation],
    problems: &mut Problems,
) {
    let place = file.routes.first.place;
    let other = ports.iter().find(|port| port.router.is_ipv6() != first.is_ipv6());
    let by_address = operations.iter().any(|operation| matches!(operation, Operation::Ip | Operation::Pop));
    let by_bgp = file.routes.by.value == Told::Bgp;
    if let Some(port) = other
        && (first.is_ipv4() || by_address || by_bgp)
    {
        let kind = if first.is_ipv4() { "IPv4" } else { "IPv6" };
        let message = format!("the next hop of these networks, {}, is of another kind", port.address.0);
        problems.push_help(place, message, format!("give `{}` addresses of {kind}", port.name));
    }
    if first.is_ipv6() && by_bgp && operations.contains(&Operation::Push) {
        let help = "leave `push` out, or by = \"bgp\"";
        problems.push_help(place, "routes of IPv6 told by BGP have no label", help);
    }
    if let Some(labels) = &file.labels {
        if labels.value.by == LabelsBy::RsvpTe {
            let help = "by = \"ldp\", or by = \"you\" with what --setup prints";
            problems.push_help(labels.place, "label switched paths are not set up by RSVP-TE yet", help);
        }
        if labels.value.by == LabelsBy::Ldp && ports.iter().any(|port| port.router.is_ipv6()) {
            problems.push_help(labels.place, "LDP is spoken over IPv4", "give all ports addresses of IPv4");
        }
    }
    if first.is_ipv6()
        && let Some(sizes) = &file.tester.sizes
        && sizes
            .value
            .0
            .iter()
            .any(|size| matches!(size, PacketSize::Bytes(bytes) if *bytes < u32::from(LEAST_IPV6)))
    {
        let help = "packets of IPv6 have 66 B and more: 40 B, UDP's 8 B, and 18 B by which they are known";
        problems.push_help(sizes.place, "a size is too small for IPv6", help);
    }
}

/// Bytes of the smallest packet of IPv4: that of the smallest frame.
const LEAST_IPV4: u16 = 46;
/// Bytes of the smallest packet of IPv6.
const LEAST_IPV6: u16 = 66;

/// Bytes of the smallest packet to these networks.
fn least(first: IpAddr) -> u16 {
    if first.is_ipv4() { LEAST_IPV4 } else { LEAST_IPV6 }
}

impl PacketSize {
    /// A mix with the smallest packets there are to these networks.
    fn for_networks(self, first: IpAddr) -> PacketSize {
        match self {
            PacketSize::Bytes(_) => self,
            PacketSize::Imix { .. } => PacketSize::Imix { smallest: least(first) },
        }
    }
}

fn convergence(
    file: &file::File,
    asked: &At<file::Convergence>,
    problems: &mut Problems,
) -> Option<Convergence> {
    if file.routes.by.value != Told::Bgp {
        let help = "by = \"bgp\" in [routes], and a table [bgp]";
        problems.push_help(asked.place, "routes go and come by BGP, and the tester does not tell them", help);
    }
    if file.tester.both_ways {
        problems.push_help(asked.place, "routes go and come in one way only", "leave both_ways out");
    }
    let file::Convergence { events, rate, size, before, after } = &asked.value;
    Some(Convergence {
        events: events.as_ref().map_or(Event::ALL.to_vec(), |events| events.0.clone()),
        rate: *rate,
        size: size.as_ref().map_or(least(file.routes.first.value.0).into(), |size| size.0 as u32),
        before: before.0,
        after: after.0,
    })
}

/// None where one cannot be used.
fn ports(file: &file::File, problems: &mut Problems) -> Option<Vec<Port>> {
    let mut ports: Vec<Port> = Vec::new();
    for member in &file.port.0 {
        let port = member.value.as_ref()?;
        let interface = port.interface.value.0.clone();
        if ports.iter().any(|known| known.interface == interface) {
            problems.push(port.interface.place, format!("`{interface}` is named twice"));
        }
        let (address, length) = port.address.value.0;
        let router = port.router.value.0;
        let network = |address: IpAddr| match address {
            IpAddr::V4(address) => {
                u128::from(u32::from(address).checked_shr(32 - u32::from(length)).unwrap_or(0))
            }
            IpAddr::V6(address) => u128::from(address).checked_shr(128 - u32::from(length)).unwrap_or(0),
        };
        if address.is_ipv4() != router.is_ipv4() || network(address) != network(router) || address == router {
            let help = format!("another address of the same link than {address}/{length}");
            problems.push_help(port.router.place, format!("{router} is not at the other end"), help);
        }
        ports.push(Port {
            name: member.name.clone(),
            interface,
            address: (address, length),
            router,
            router_interface: port.router_interface.clone(),
        });
    }
    Some(ports)
}

fn v4(address: &IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    }
}

impl Profile {
    fn operations(self) -> Vec<Operation> {
        use Operation::*;
        match self {
            Profile::Paper | Profile::Mlrsearch => vec![Ip, Push, Swap, Pop],
            Profile::Rfc2544 => vec![Ip],
            Profile::Rfc5695 => vec![Push, Swap, Pop, Unlabelled, Php],
        }
    }

    fn sizes(self, first: IpAddr) -> Vec<PacketSize> {
        let bytes: &[u32] = match self {
            Profile::Paper => &[46, 66, 130, 258, 514, 1026, 1498],
            // Frames of RFC 2544 section 9.1, without their header and check sequence.
            _ => &[46, 110, 238, 494, 1006, 1262, 1500],
        };
        let mut bytes: Vec<u32> = bytes.iter().map(|bytes| (*bytes).max(least(first).into())).collect();
        bytes.dedup();
        bytes.into_iter().map(PacketSize::Bytes).collect()
    }
}

#[cfg(test)]
mod tests;
