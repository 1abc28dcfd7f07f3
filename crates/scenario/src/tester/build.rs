//! Builds a tester from the tables of a configuration, and checks relations between tables.

use super::convergence_table::convergence;
use super::file::{self, PortName};
use super::{
    Bgp, LabelConfig, LabelSource, Operation, PacketSize, Profile, RouteSource, Tester, TesterPort,
    TrafficDirection, cells,
};
use crate::error::{Problems, SourceRange, did_you_mean};
use crate::table::Located;
use std::net::{IpAddr, Ipv4Addr};

/// Returns the tester, or `None` if problems were reported.
pub(super) fn tester(file: &file::TesterFile, text: &str, problems: &mut Problems) -> Option<Tester> {
    let head = &file.tester;
    let ports = ports(file, problems);
    let [from, to] = [&head.from.0, &head.to.0].map(|names| port_indices(file, names, problems));
    for name in head.to.0.iter().filter(|name| head.from.0.iter().any(|other| other.0 == name.0)) {
        let help = "use bidirectional = true for traffic in both directions";
        problems.push_help(name.place, format!("port `{}` is in both `from` and `to`", name.0), help);
    }
    let networks = file.routes.count.0 as u32;
    let first = first_network(file, networks, problems);
    let convergence = file.convergence.as_ref().and_then(|table| convergence(file, table, problems));
    let operations = match (&head.operations, &file.convergence) {
        (Some(listed), _) => listed.value.0.clone(),
        (None, Some(_)) => Vec::new(),
        (None, None) => head.profile.operations(),
    };
    check_sources(file, problems);
    check_ratios(head, problems);
    let (first, ports) = (first?, ports?);
    check_families(file, first, &ports, &operations, problems);
    let labels = file.labels.as_ref().map(|labels| LabelConfig::from(&labels.value));
    let mut directions =
        vec![TrafficDirection { from: from.clone(), to: to.clone(), first_network: first, label_offset: 0 }];
    if head.bidirectional {
        let (first, _) = directions[0].network(networks);
        let labels_above = labels.map_or(0, |labels| labels.peers);
        directions.push(TrafficDirection {
            from: to,
            to: from,
            first_network: first,
            label_offset: labels_above,
        });
    }
    let sizes = match operations[..] {
        [] => Vec::new(),
        _ => head.sizes.as_ref().map_or(head.profile.sizes(first), |listed| {
            listed.value.0.iter().map(|size| size.for_networks(first)).collect()
        }),
    };
    let operations: Vec<Operation> = match labels {
        Some(_) => operations,
        None => operations.into_iter().filter(|operation| *operation == Operation::Ip).collect(),
    };
    if operations.is_empty() && convergence.is_none() {
        problems.push_help(
            SourceRange::new(0, 0..0),
            "all operations of this profile need labels",
            "add a table [labels]",
        );
    }
    if !problems.is_empty() {
        return None;
    }
    let lines = directions[0].from.len() * directions.len();
    let mut scenario = cells::scenario(head, &operations, &sizes, lines, text)?;
    if let Some(convergence) = &convergence {
        scenario.cells.extend(cells::convergence_cells(head, convergence, networks, lines)?);
    }
    Some(Tester {
        router: head.router.clone(),
        profile: head.profile,
        operations,
        sizes,
        ports,
        directions,
        networks,
        route_source: file.routes.by.value,
        labels,
        bgp: bgp(file),
        convergence,
        model: head.model,
        hops: head.hops.0 as u8,
        generator: head.generator,
        line: head.line,
        max_rate: head.max_rate,
        ready_within: head.ready_within.0,
        drain: head.drain,
        scenario,
    })
}

/// Returns the indices of ports.
fn port_indices(file: &file::TesterFile, names: &[Located<PortName>], problems: &mut Problems) -> Vec<usize> {
    let index = |name: &Located<PortName>| {
        let found = file.port.index(&name.0);
        if found.is_none() {
            let help = did_you_mean(&name.0, file.port.names());
            problems.push_with_help(name.place, format!("unknown port `{}`", name.0), help);
        }
        found
    };
    names.iter().filter_map(index).collect()
}

/// Checks that loss ratios can be searched for, and differ.
fn check_ratios(head: &file::TesterSection, problems: &mut Problems) {
    let mut names: Vec<String> = Vec::new();
    for ratio in head.loss_ratios.iter().flat_map(|ratios| &ratios.0) {
        let name = cells::ratio_name(ratio.value.0);
        if ratio.value.0 >= 1.0 || ratio.value.0 > 0.0 && ratio.value.0 < 1e-6 {
            problems.push(ratio.place, "expected 0 or a ratio from 0.0001 % to below 100 %");
        } else if names.contains(&name) {
            problems.push(ratio.place, "the loss ratio is listed twice");
        }
        names.push(name);
    }
}

/// Checks that labels and routes have a source.
fn check_sources(file: &file::TesterFile, problems: &mut Problems) {
    if file.labels.is_none()
        && let Some(operations) = &file.tester.operations
        && operations.value.0.iter().any(|operation| *operation != Operation::Ip)
    {
        problems.push_help(operations.place, "these operations need labels", "add a table [labels]");
    }
    if file.routes.by.value == RouteSource::Bgp && file.bgp.is_none() {
        let help = "add a table [bgp] with `router_as`";
        problems.push_help(
            file.routes.by.place,
            "routes are advertised by BGP, but the file has no session",
            help,
        );
    }
    if file.routes.by.value != RouteSource::Bgp
        && let Some(additional) = file.bgp.as_ref().and_then(|bgp| bgp.value.additional_routes.as_ref())
    {
        let help = "set by = \"bgp\" in [routes]";
        problems.push_help(additional.place, "`additional_routes` has no effect without BGP", help);
    }
}

impl From<&file::LabelsTable> for LabelConfig {
    fn from(labels: &file::LabelsTable) -> LabelConfig {
        LabelConfig {
            source: labels.by,
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

fn bgp(file: &file::TesterFile) -> Bgp {
    let bgp = file.bgp.as_ref().map(|bgp| &bgp.value);
    Bgp {
        own_as: bgp.map_or(0, |bgp| bgp.own_as.0 as u32),
        router_as: bgp.map_or(0, |bgp| bgp.router_as.0 as u32),
        md5: bgp.and_then(|bgp| bgp.md5.clone()),
        additional_routes: bgp
            .and_then(|bgp| bgp.additional_routes.as_ref())
            .map(|file| file.value.0.clone().into()),
    }
}

/// Returns the first network, or `None` if the address range is too small.
fn first_network(file: &file::TesterFile, networks: u32, problems: &mut Problems) -> Option<IpAddr> {
    let directions = if file.tester.bidirectional { 2 } else { 1 };
    let first = file.routes.first.value.0;
    let (fits, help) = match first {
        IpAddr::V4(first) => (
            first.octets()[3] == 0
                && (u64::from(u32::from(first)) + (u64::from(networks * directions) << 8)) <= 0xe000_0000,
            "such as \"11.0.0.0\"; all networks must be below 224.0.0.0",
        ),
        IpAddr::V6(first) => {
            let first = u128::from(first);
            let room = (u128::from(u16::MAX) << 112) - first.min(u128::from(u16::MAX) << 112);
            let fits = first << 48 == 0 && u128::from(networks * directions) << 80 <= room;
            (fits, "such as \"2001:db8::\", with zeros after the first 48 bits")
        }
    };
    if !fits {
        problems.push_help(
            file.routes.first.place,
            "expected the first of consecutive networks, IPv4 /24 or IPv6 /48",
            help,
        );
    }
    fits.then_some(first)
}

/// Checks that IP versions, operations and sources of routes and labels are compatible.
fn check_families(
    file: &file::TesterFile,
    first: IpAddr,
    ports: &[TesterPort],
    operations: &[Operation],
    problems: &mut Problems,
) {
    let place = file.routes.first.place;
    let mismatch = ports.iter().find(|port| port.router.is_ipv6() != first.is_ipv6());
    let by_address = operations.iter().any(|operation| matches!(operation, Operation::Ip | Operation::Pop));
    let by_bgp = file.routes.by.value == RouteSource::Bgp;
    if let Some(port) = mismatch
        && (first.is_ipv4() || by_address || by_bgp)
    {
        let kind = if first.is_ipv4() { "IPv4" } else { "IPv6" };
        let message =
            format!("the next hop of these networks, {}, has a different IP version", port.address.0);
        problems.push_help(place, message, format!("set {kind} addresses for port `{}`", port.name));
    }
    if first.is_ipv6() && by_bgp && operations.contains(&Operation::Push) {
        let help = "remove `push` or by = \"bgp\"";
        problems.push_help(place, "IPv6 routes advertised by BGP have no label", help);
    }
    if let Some(labels) = &file.labels {
        if labels.value.by == LabelSource::RsvpTe && by_bgp && operations.contains(&Operation::Push) {
            let help = "remove `push`, or configure the routes: by = \"manual\" in [routes]";
            problems.push_help(labels.place, "BGP routes do not lead into LSPs by RSVP-TE", help);
        }
        if labels.value.by == LabelSource::RsvpTe && first.is_ipv6() {
            let help = "use IPv4 networks, or by = \"manual\" in [labels]";
            problems.push_help(labels.place, "RSVP-TE sets up LSPs for IPv4", help);
        }
        let protocol = match labels.value.by {
            LabelSource::User => None,
            LabelSource::Ldp => Some("LDP"),
            LabelSource::RsvpTe => Some("RSVP-TE"),
        };
        if let Some(protocol) = protocol
            && ports.iter().any(|port| port.router.is_ipv6())
        {
            let message = format!("{protocol} runs over IPv4 only");
            problems.push_help(labels.place, message, "set IPv4 addresses for all ports");
        }
    }
    if first.is_ipv6()
        && let Some(sizes) = &file.tester.sizes
        && sizes
            .value
            .0
            .iter()
            .any(|size| matches!(size, PacketSize::Bytes(bytes) if *bytes < u32::from(MIN_IPV6)))
    {
        let help = "IPv6 test packets have at least 66 B: 40 B, UDP header of 8 B, and signature of 18 B";
        problems.push_help(sizes.place, "a packet size is too small for IPv6", help);
    }
}

/// Bytes of the smallest IPv4 packet: that of the smallest frame.
pub(super) const MIN_IPV4: u16 = 46;
/// Bytes of the smallest IPv6 packet.
const MIN_IPV6: u16 = 66;

/// Returns the bytes of the smallest packet to these networks.
pub(super) fn min_size(first: IpAddr) -> u16 {
    if first.is_ipv4() { MIN_IPV4 } else { MIN_IPV6 }
}

impl PacketSize {
    /// Sets the minimum size of a mix by the IP version of the networks.
    fn for_networks(self, first: IpAddr) -> PacketSize {
        match self {
            PacketSize::Bytes(_) => self,
            PacketSize::Imix { .. } => PacketSize::Imix { smallest: min_size(first) },
        }
    }
}

/// Returns the ports, or `None` if a table was not read.
fn ports(file: &file::TesterFile, problems: &mut Problems) -> Option<Vec<TesterPort>> {
    let mut ports: Vec<TesterPort> = Vec::new();
    for member in file.port.0.iter() {
        let port = member.value.as_ref()?;
        let interface = port.interface.value.0.clone();
        if ports.iter().any(|known| known.interface == interface) {
            problems.push(port.interface.place, format!("interface `{interface}` is listed twice"));
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
            let help = format!("set another address of the link {address}/{length}");
            problems.push_help(
                port.router.place,
                format!("{router} cannot be the other end of this link"),
                help,
            );
        }
        ports.push(TesterPort {
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
            Profile::Rfc5695 => vec![Push, Swap, Pop, Unlabeled, Php],
        }
    }

    fn sizes(self, first: IpAddr) -> Vec<PacketSize> {
        let bytes: &[u32] = match self {
            Profile::Paper => &[46, 66, 130, 258, 514, 1026, 1498],
            // Frame sizes of RFC 2544 section 9.1, without header and check sequence.
            _ => &[46, 110, 238, 494, 1006, 1262, 1500],
        };
        let mut bytes: Vec<u32> = bytes.iter().map(|bytes| (*bytes).max(min_size(first).into())).collect();
        bytes.dedup();
        bytes.into_iter().map(PacketSize::Bytes).collect()
    }
}
