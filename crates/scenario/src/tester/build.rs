//! From the tables of a configuration to a tester: what each says alone is right, and here they are held against
//! each other.

use super::convergence::{Convergence, Event};
use super::file::{self, PortName};
use super::{Bgp, Labels, LabelsBy, Operation, PacketSize, Port, Profile, Tester, Told, Way, cells};
use crate::error::{Place, Problems, did_you_mean};
use crate::table::At;
use std::net::{IpAddr, Ipv4Addr};

/// None where something cannot be used; the problems say what.
pub(super) fn tester(file: &file::File, text: &str, problems: &mut Problems) -> Option<Tester> {
    let head = &file.tester;
    let ports = ports(file, problems);
    let [from, to] = [&head.from.0, &head.to.0].map(|names| named(file, names, problems));
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
    check_sessions(file, problems);
    let (first, ports) = (first?, ports?);
    check_families(file, first, &ports, &operations, problems);
    let labels = file.labels.as_ref().map(|labels| Labels::from(&labels.value));
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
        bgp: bgp(file),
        convergence,
        model: head.model,
        generator: head.generator,
        line: head.line,
        max_rate: head.max_rate,
        ready_within: head.ready_within.0,
        scenario,
    })
}

/// Indices of the ports of these names.
fn named(file: &file::File, names: &[At<PortName>], problems: &mut Problems) -> Vec<usize> {
    let index = |name: &At<PortName>| {
        let found = file.port.index(&name.0);
        if found.is_none() {
            let help = did_you_mean(&name.0, file.port.names());
            problems.push_with_help(name.place, format!("there is no port `{}`", name.0), help);
        }
        found
    };
    names.iter().filter_map(index).collect()
}

/// What is told of labels and routes needs somebody to tell it to.
fn check_sessions(file: &file::File, problems: &mut Problems) {
    if file.labels.is_none()
        && let Some(asked) = &file.tester.operations
        && asked.value.0.iter().any(|operation| *operation != Operation::Ip)
    {
        problems.push_help(asked.place, "these operations have labels", "add a table [labels]");
    }
    if file.routes.by.value == Told::Bgp && file.bgp.is_none() {
        let help = "add a table [bgp], with `router_as` at least";
        problems.push_help(file.routes.by.place, "routes are told by BGP, and there is no session", help);
    }
    if file.routes.by.value != Told::Bgp
        && let Some(beside) = file.bgp.as_ref().and_then(|bgp| bgp.value.beside.as_ref())
    {
        problems.push_help(
            beside.place,
            "there is no session to tell of these routes",
            "by = \"bgp\" in [routes]",
        );
    }
}

impl From<&file::Labels> for Labels {
    fn from(labels: &file::Labels) -> Labels {
        Labels {
            by: labels.by,
            push: labels.push.0 as u32,
            swap: labels.swap.0 as u32,
            swap_to: labels.swap_to.0 as u32,
            pop: labels.pop.0 as u32,
            php: labels.php.0 as u32,
            loopback: v4(&labels.loopback.0).unwrap_or(Ipv4Addr::UNSPECIFIED),
            router_loopback: labels.router_loopback.as_ref().and_then(|address| v4(&address.0)),
            peers: labels.peers.0 as u32,
        }
    }
}

fn bgp(file: &file::File) -> Bgp {
    let bgp = file.bgp.as_ref().map(|bgp| &bgp.value);
    Bgp {
        own_as: bgp.map_or(0, |bgp| bgp.own_as.0 as u32),
        router_as: bgp.map_or(0, |bgp| bgp.router_as.0 as u32),
        md5: bgp.and_then(|bgp| bgp.md5.clone()),
        beside: bgp.and_then(|bgp| bgp.beside.as_ref()).map(|file| file.value.0.clone().into()),
    }
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
pub(super) const LEAST_IPV4: u16 = 46;
/// Bytes of the smallest packet of IPv6.
const LEAST_IPV6: u16 = 66;

/// Bytes of the smallest packet to these networks.
pub(super) fn least(first: IpAddr) -> u16 {
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
