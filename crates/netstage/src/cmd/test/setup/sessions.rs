//! BGP and LDP sessions with the tester, in the syntax of routing daemons.

use super::{Kind, has_labels_by};
use netstage_scenario::tester::{Bgp, LabelSource, Operation, RouteSource, Tester, TesterPort};
use netstage_tester::lsps::penultimate;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

/// Returns the router's configuration of the sessions with the tester.
pub fn sessions(kind: Kind, tester: &Tester) -> String {
    let receiving: BTreeSet<usize> =
        tester.directions.iter().flat_map(|way| way.to.iter().copied()).collect();
    let ports: Vec<&TesterPort> = receiving.into_iter().map(|port| &tester.ports[port]).collect();
    let identifier = match ports.first().map(|port| port.router) {
        Some(IpAddr::V4(router)) => router,
        // A BGP identifier has four bytes even with IPv6; the tester does not use this one.
        _ => Ipv4Addr::new(192, 0, 2, 255),
    };
    let family = if tester.directions[0].first_network.is_ipv4() { "ipv4" } else { "ipv6" };
    match kind {
        Kind::Bird => bird(&ports, identifier, family, &tester.bgp),
        _ => {
            let ldp = match has_labels_by(tester, LabelSource::Ldp) {
                true => frr_ldp(identifier, tester),
                false => String::new(),
            };
            let bgp = match tester.route_source {
                RouteSource::Bgp => frr(&ports, identifier, family, tester),
                RouteSource::User => String::new(),
            };
            ldp + &bgp
        }
    }
}

fn bird(ports: &[&TesterPort], identifier: Ipv4Addr, family: &str, bgp: &Bgp) -> String {
    let Bgp { own_as, router_as, md5, additional_routes: _ } = bgp;
    let session = |port: &&TesterPort| {
        let password = md5.as_ref().map_or(String::new(), |key| format!(" password \"{key}\";"));
        format!(
            "protocol bgp {} {{\n\tlocal {} as {router_as};\n\tneighbor {} as {own_as};{password}\n\
             \t{family} {{ import all; export none; gateway recursive; }};\n}}\n",
            port.name.replace('-', "_"),
            port.router,
            port.address.0
        )
    };
    let sessions: String = ports.iter().map(session).collect();
    format!(
        "router id {identifier};\nprotocol device {{}}\nprotocol direct {{ {family}; }}\n\
         protocol kernel {{ {family} {{ import none; export all; }}; learn; }}\n{sessions}"
    )
}

fn frr(ports: &[&TesterPort], identifier: Ipv4Addr, family: &str, tester: &Tester) -> String {
    let Bgp { own_as, router_as, md5, additional_routes: _ } = &tester.bgp;
    let session = |port: &&TesterPort| {
        let address = port.address.0;
        let password =
            md5.as_ref().map_or(String::new(), |key| format!(" neighbor {address} password {key}\n"));
        // The next hops are the ends of label-switched paths, beyond the neighbor.
        let beyond = match tester.signaled_operations().any(|signaled| signaled == Operation::Push) {
            true => format!(" neighbor {address} disable-connected-check\n"),
            false => String::new(),
        };
        format!(" neighbor {address} remote-as {own_as}\n{password}{beyond}")
    };
    let sessions: String = ports.iter().map(session).collect();
    let activated = |port: &&TesterPort| format!("  neighbor {} activate\n", port.address.0);
    let activated: String = ports.iter().map(activated).collect();
    let families = match family {
        "ipv4" => String::new(),
        _ => format!(" address-family ipv6 unicast\n{activated} exit-address-family\n"),
    };
    format!(
        "router bgp {router_as}\n bgp router-id {identifier}\n no bgp ebgp-requires-policy\n{sessions}{families}"
    )
}

/// Returns FRR's LDP sessions, and its routes to the ends of the tester's paths.
fn frr_ldp(identifier: Ipv4Addr, tester: &Tester) -> String {
    let does = |operation| tester.signaled_operations().any(|signaled| signaled == operation);
    let pops_for_next = does(Operation::Php) || does(Operation::Unlabeled);
    let mut text = String::new();
    for direction in &tester.directions {
        for peer in 0..tester.peer_count(direction) {
            let penultimate = pops_for_next.then(|| penultimate(tester, direction, peer));
            for end in std::iter::once(tester.loopback(direction, peer)).chain(penultimate) {
                for port in tester.ports_of_peer(direction, peer) {
                    let next_hop = tester.ports[port].address.0;
                    text.push_str(&format!("ip route {end}/32 {next_hop}\n"));
                }
            }
        }
    }
    // The tester reaches the addresses of its links only.
    text.push_str(&format!(
        "mpls ldp\n router-id {identifier}\n address-family ipv4\n  discovery transport-address {identifier}\n"
    ));
    // For POP, packets need a label.
    text.push_str("  label local advertise explicit-null\n");
    for port in &tester.ports {
        let interface = port.router_interface.clone().unwrap_or_else(|| format!("PORT-{}", port.name));
        text.push_str(&format!("  interface {interface}\n  exit\n"));
    }
    text.push_str(" exit-address-family\nexit\n");
    text
}
