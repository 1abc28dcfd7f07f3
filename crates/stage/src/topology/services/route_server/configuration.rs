//! Configuration of BIRD, and the route origin authorizations of stayrtr.

use super::RouteServerSpec;
use netstage_scenario::plan::{LimitAction, RouteServer};
use serde_json::json;
use std::fmt::Write as _;

/// Address at which stayrtr serves BIRD, in the namespace of the route server.
pub const RTR_ADDRESS: (&str, u16) = ("127.0.0.1", 3323);
/// Table of BIRD with the route origin authorizations.
pub const ROA_TABLE: &str = "roas";

/// Time until BIRD connects to a member, and connects again, in seconds. Both ends connect: the queue of BIRD's listening
/// socket has room for eight connections, and TCP delays those of further members more and more.
const DELAY_S: u32 = 1;
const RETRY_S: u32 = 5;

/// Part of the import filter: a member announces its own AS first and itself as the next hop (RFC 7948), and prefixes of a
/// usual length. The other part rejects invalid origins (RFC 6811).
const FILTER: &str = "function is_accepted(int peer_as; ip peer_address) {
\tif net.len < 8 || net.len > 24 then return false;
\tif bgp_path.first != peer_as then return false;
\tif bgp_next_hop != peer_address then return false;
\treturn true;
}
";

/// Returns the configuration of BIRD.
pub fn bird(spec: &RouteServerSpec) -> String {
    let RouteServerSpec { server, address, .. } = spec;
    let mut text = format!("log stderr all;\nrouter id {address};\nprotocol device {{}}\n");
    let mut origin = String::new();
    text += FILTER;
    if server.rpki {
        let (rtr, port) = RTR_ADDRESS;
        let _ = write!(
            text,
            "roa4 table {ROA_TABLE};\nprotocol rpki validator {{\n\troa4 {{ table {ROA_TABLE}; }};\n\t\
             remote {rtr} port {port};\n\tretry keep 1;\n\ttransport tcp;\n}}\n"
        );
        // BIRD applies changed authorizations to routes only if it finds the check outside functions.
        origin = format!(" && roa_check({ROA_TABLE}, net, bgp_path.last_nonaggregated) != ROA_INVALID");
    }
    let _ = write!(
        text,
        "template bgp members {{\n\tlocal {address} as {};\n\trs client;\n\tconnect delay time {DELAY_S};\n\t\
         connect retry time {RETRY_S};\n}}\n",
        server.system
    );
    let limit = server.import_limit.map_or(String::new(), |limit| {
        let action = match server.limit_action {
            LimitAction::Disable => "disable",
            LimitAction::Block => "block",
        };
        format!(" import limit {limit} action {action};")
    });
    for (index, (member, (_, peer))) in server.members.iter().zip(&spec.members).enumerate() {
        let system = member.system;
        let _ = writeln!(
            text,
            "protocol bgp member{index} from members {{\n\tneighbor {peer} as {system};\n\t\
             ipv4 {{ import where is_accepted({system}, {peer}){origin};{limit} export all; }};\n}}"
        );
    }
    text
}

/// Returns the validated payloads for stayrtr: all prefixes of each member with its AS number as the origin.
pub fn payloads(server: &RouteServer) -> String {
    let per_member = server.prefixes_per_member();
    let length = RouteServer::PREFIX_LENGTH - per_member.ilog2() as u8;
    let payload = |(index, member): (usize, &netstage_scenario::plan::EdgeRouter)| {
        let first = RouteServer::prefix(index as u32 * per_member);
        json!({
            "prefix": format!("{first}/{length}"),
            "maxLength": RouteServer::PREFIX_LENGTH,
            "asn": member.system,
            "ta": "netstage",
        })
    };
    let payloads: Vec<_> = server.members.iter().enumerate().map(payload).collect();
    json!({ "roas": payloads }).to_string()
}
