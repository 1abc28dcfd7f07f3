//! RSVP-TE tables of netstage's router.

use netstage_scenario::tester::{Operation, RouteSource, Tester};
use std::fmt::Write as _;
use std::net::IpAddr;

/// Returns the tables of the router's configuration: its interfaces and, for PUSH, the LSPs to the peers.
pub fn tables(tester: &Tester) -> String {
    let first = &tester.ports[tester.directions[0].from[0]];
    let loopback = tester.labels.and_then(|labels| labels.router_loopback).map(IpAddr::V4);
    let mut text = format!("[rsvp]\nrouter_id = \"{}\"\n", loopback.unwrap_or(first.router));
    if tester.operations.contains(&Operation::Pop) {
        // For POP, packets need a label.
        text.push_str("egress = \"explicit-null\"\n");
    }
    for port in &tester.ports {
        let interface = port.router_interface.clone().unwrap_or_else(|| format!("PORT-{}", port.name));
        text.push_str(&format!("[rsvp.interface.{interface}]\n"));
    }
    if !tester.operations.contains(&Operation::Push) || tester.route_source != RouteSource::User {
        return text;
    }
    for direction in &tester.directions {
        let peers = tester.peer_count(direction);
        for peer in 0..peers {
            let to = tester.loopback(direction, peer);
            let next = tester.ports[direction.to[peer as usize % direction.to.len()]].address.0;
            let networks = (peer..tester.networks).step_by(peers as usize);
            let prefixes: Vec<String> = networks
                .map(|network| {
                    let (address, length) = direction.network(network);
                    format!("\"{address}/{length}\"")
                })
                .collect();
            writeln!(
                text,
                "[rsvp.tunnel.peer-{}]\nto = \"{to}\"\nroute = [\"{next} loose\"]\nprefixes = [{}]",
                to.to_string().replace('.', "-"),
                prefixes.join(", ")
            )
            .expect("writing to a string cannot fail");
        }
    }
    text
}
