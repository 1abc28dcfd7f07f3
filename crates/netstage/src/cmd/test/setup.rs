//! Configuration of a router under test, in the router's own syntax.

mod rsvp;
mod sessions;

use crate::exit::Failure;
use netstage_scenario::tester::{LabelConfig, LabelSource, Operation, RouteSource, Tester, TrafficDirection};
use sessions::sessions;
use std::fmt::Write as _;
use std::net::IpAddr;

/// Kind of router for which a configuration can be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Linux routes, as a batch for `ip -batch`
    Linux,
    /// Linux labels, as a batch for `ip -f mpls -batch`; needs the kernel module mpls_router
    LinuxMpls,
    /// netstage router, as a route file
    Netstage,
    /// netstage router, as RSVP-TE tables of its configuration
    NetstageRsvp,
    /// Open vSwitch, as flows for `ovs-ofctl add-flows`; bridge port N is port N of the configuration
    Ovs,
    /// BIRD 2 with BGP sessions to the tester and routes exported to the kernel
    Bird,
    /// FRR with BGP and LDP sessions to the tester, and routes to the ends of its paths
    Frr,
}

/// Entry of a router's tables.
enum Entry {
    /// Prefix, and the label to push.
    Route((IpAddr, u8), Option<u32>),
    /// Incoming label, and the label that replaces it; `None` pops it.
    Label(u32, Option<u32>),
    /// Label to pop before a lookup of the inner packet.
    LookUp(u32),
}

/// Returns the configuration for a router. IP and PUSH need different routes to the same networks, so testing both with
/// static routes is an error.
pub fn lines(kind: Kind, tester: &Tester) -> Result<String, Failure> {
    if matches!(kind, Kind::Bird | Kind::Frr) {
        let has_labels = kind == Kind::Frr && has_labels_by(tester, LabelSource::Ldp);
        return match tester.route_source {
            RouteSource::User if !has_labels => Err(Failure::usage("this configuration has no BGP sessions")
                .help("set by = \"bgp\" in [routes] and add a table [bgp]")),
            _ => Ok(sessions(kind, tester)),
        };
    }
    let by_rsvp = has_labels_by(tester, LabelSource::RsvpTe);
    if kind == Kind::NetstageRsvp {
        return match by_rsvp {
            true => Ok(rsvp::tables(tester)),
            false => Err(Failure::usage("this configuration has no LSPs by RSVP-TE")
                .help("set by = \"rsvp-te\" in [labels]")),
        };
    }
    let does = |operation| tester.operations.contains(&operation);
    if tester.route_source == RouteSource::User
        && does(Operation::Push)
        && (does(Operation::Ip) || does(Operation::Pop))
    {
        return Err(Failure::usage("`push` needs different routes than `ip` and `pop`")
            .help("use two files: one with operations = [\"push\"], one with the other operations"));
    }
    let mut text = String::new();
    for way in &tester.directions {
        for (entry, to) in entries(tester, way) {
            let port = &tester.ports[way.to[to as usize % way.to.len()]];
            line(&mut text, kind, tester, &entry, way.to[to as usize % way.to.len()], port.address.0);
        }
    }
    Ok(text)
}

/// Returns whether labels come from this source.
fn has_labels_by(tester: &Tester, source: LabelSource) -> bool {
    tester.labels.is_some_and(|labels| labels.source == source)
}

/// Returns the entries for a path, each with the number of its peer.
fn entries(tester: &Tester, way: &TrafficDirection) -> Vec<(Entry, u32)> {
    let mut entries = Vec::new();
    let peers = tester.peer_count(way);
    let does = |operation: Operation| tester.operations.contains(&operation);
    // RSVP-TE tunnels have their own routes.
    let by_rsvp = has_labels_by(tester, LabelSource::RsvpTe);
    let labels = tester.labels.filter(|_| !by_rsvp).map(|labels| {
        let above = way.label_offset;
        LabelConfig {
            push: labels.push + above,
            swap: labels.swap + above,
            swap_to: labels.swap_to + above,
            pop: labels.pop + above,
            php: labels.php + above,
            ..labels
        }
    });
    if tester.route_source == RouteSource::User
        && tester.operations.iter().any(|operation| operation.is_routed())
        && !(by_rsvp && does(Operation::Push))
    {
        for network in 0..tester.networks {
            let peer = network % peers;
            let pushed = labels.filter(|_| does(Operation::Push)).map(|labels| labels.push + peer);
            entries.push((Entry::Route(way.network(network), pushed), peer));
        }
    }
    for peer in 0..peers {
        let Some(labels) = labels else { break };
        if tester.route_source == RouteSource::Bgp && does(Operation::Push) {
            let end = (tester.loopback(way, peer).into(), 32);
            entries.push((Entry::Route(end, Some(labels.push + peer)), peer));
        }
        if does(Operation::Swap) {
            entries.push((Entry::Label(labels.swap + peer, Some(labels.swap_to + peer)), peer));
        }
        if does(Operation::Php) || does(Operation::Unlabeled) {
            entries.push((Entry::Label(labels.php + peer, None), peer));
        }
        if does(Operation::Pop) {
            entries.push((Entry::LookUp(labels.pop + peer), peer));
        }
    }
    entries
}

fn line(text: &mut String, kind: Kind, tester: &Tester, entry: &Entry, port: usize, next: IpAddr) {
    let port_of = &tester.ports[port];
    let interface = port_of.router_interface.clone().unwrap_or_else(|| format!("PORT-{}", port_of.name));
    let family = if next.is_ipv4() { "inet" } else { "inet6" };
    let written = match (kind, entry) {
        (Kind::Linux, Entry::Route((network, length), pushed)) => {
            let encap = pushed.map_or(String::new(), |label| format!("encap mpls {label} "));
            writeln!(
                text,
                "route replace {network}/{length} {encap}via {}{next}",
                if network.is_ipv4() == next.is_ipv4() { "" } else { "inet " }
            )
        }
        (Kind::LinuxMpls, Entry::Label(label, Some(swapped))) => {
            writeln!(text, "route replace {label} as {swapped} via {family} {next}")
        }
        (Kind::LinuxMpls, Entry::Label(label, None)) => {
            writeln!(text, "route replace {label} via {family} {next}")
        }
        (Kind::LinuxMpls, Entry::LookUp(label)) => writeln!(text, "route replace {label} dev lo"),
        (Kind::Netstage, Entry::Route((network, length), pushed)) => {
            let push = pushed.map_or(String::new(), |label| format!(" push {label}"));
            writeln!(text, "{network}/{length} via {next} dev {interface}{push}")
        }
        (Kind::Netstage, Entry::Label(label, Some(swapped))) => {
            writeln!(text, "label {label} swap {swapped} via {next} dev {interface}")
        }
        (Kind::Netstage, Entry::Label(label, None)) => {
            writeln!(text, "label {label} via {next} dev {interface}")
        }
        (Kind::Netstage, Entry::LookUp(label)) => writeln!(text, "label {label} pop"),
        (Kind::Ovs, entry) => ovs(text, entry, port + 1, tester.directions[0].first_network.is_ipv4()),
        (Kind::Linux, Entry::Label(..) | Entry::LookUp(_)) | (Kind::LinuxMpls, Entry::Route(..)) => Ok(()),
        (Kind::Bird | Kind::Frr | Kind::NetstageRsvp, _) => Ok(()),
    };
    written.expect("writing to a string cannot fail");
}

/// Writes an entry as flows of OpenFlow 1.3. The user must replace the placeholders for MAC addresses.
fn ovs(text: &mut String, entry: &Entry, port: usize, is_ipv4: bool) -> std::fmt::Result {
    let (ip, to, ethertype) =
        if is_ipv4 { ("ip", "nw_dst", "0x0800") } else { ("ipv6", "ipv6_dst", "0x86dd") };
    let output = format!("mod_dl_src:ROUTER-MAC-{port},mod_dl_dst:TESTER-MAC-{port},output:{port}");
    match entry {
        Entry::Route((network, length), Some(label)) => writeln!(
            text,
            "{ip},{to}={network}/{length} actions=dec_ttl,push_mpls:0x8847,set_field:{label}->mpls_label,{output}"
        ),
        Entry::Route((network, length), None) => {
            writeln!(text, "{ip},{to}={network}/{length} actions=dec_ttl,{output}")
        }
        Entry::Label(label, Some(swapped)) => {
            writeln!(
                text,
                "mpls,mpls_label={label} actions=dec_mpls_ttl,set_field:{swapped}->mpls_label,{output}"
            )
        }
        Entry::Label(label, None) => {
            writeln!(
                text,
                "mpls,mpls_label={label},mpls_bos=1 actions=dec_mpls_ttl,pop_mpls:{ethertype},{output}"
            )
        }
        Entry::LookUp(label) => {
            writeln!(text, "mpls,mpls_label={label},mpls_bos=1 actions=pop_mpls:{ethertype},resubmit(,0)")
        }
    }
}
