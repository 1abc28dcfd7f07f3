//! RSVP-TE settings of a router.

use super::file::{RsvpSection, RsvpTunnelTable};
use super::{InterfaceConfig, find_interface};
use crate::error::Problems;
use crate::key::shared_keys;
use crate::table::Located;
use netstage_core::edge::IpPrefix;
use netstage_core::quantity::BitRate;
use netstage_core::rsvp::{EgressLabel, TunnelRequest};
use netstage_core::time::Duration;
use netstage_wire::mpls::LabelValue;
use std::net::Ipv4Addr;
use std::path::PathBuf;

/// RSVP-TE settings of a router.
#[derive(Clone, Debug, PartialEq)]
pub struct RsvpSettings {
    /// Address at which LSPs begin and end.
    pub router_id: Ipv4Addr,
    /// Interfaces.
    pub interfaces: Vec<RsvpInterfaceSettings>,
    /// LSPs that begin here.
    pub tunnels: Vec<RsvpTunnelSettings>,
    /// First label to assign.
    pub first_label: LabelValue,
    /// Label of LSPs that end here.
    pub egress: EgressLabel,
    /// Mean interval between refreshes.
    pub refresh: Duration,
    /// Interval between hellos.
    pub hello: Duration,
}

/// Interface that speaks RSVP-TE.
#[derive(Clone, Debug, PartialEq)]
pub struct RsvpInterfaceSettings {
    /// Name.
    pub name: String,
    /// Bandwidth for reservations.
    pub bandwidth: Option<BitRate>,
    /// Numbers and files of the keys; the first one signs.
    pub keys: Vec<(u8, PathBuf)>,
}

/// LSP that begins at a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RsvpTunnelSettings {
    /// Name.
    pub name: String,
    /// The LSP to set up.
    pub request: TunnelRequest,
    /// Prefixes whose packets take it.
    pub prefixes: Vec<IpPrefix>,
    /// Neighbor whose packets take it while the neighbor has failed.
    pub protects: Option<Ipv4Addr>,
}

pub(super) fn build(
    section: &Located<RsvpSection>,
    interfaces: &mut [InterfaceConfig],
    problems: &mut Problems,
) -> RsvpSettings {
    let Located { value: section, place, .. } = section;
    if section.interface.0.is_empty() {
        problems.push_help(
            *place,
            "no interface speaks RSVP-TE",
            "add a table [rsvp.interface.NAME] for each of them",
        );
    }
    let mut speaking = Vec::new();
    for member in section.interface.0.iter() {
        let Some(table) = &member.value else { continue };
        let Some(interface) = find_interface(interfaces, &member.name, member.place, problems) else {
            continue;
        };
        if interface.table != 0 {
            let message = format!("`{}` belongs to a VPN", member.name);
            problems.push_help(
                member.place,
                message,
                "RSVP-TE runs between routers of the core: use an interface of [router]",
            );
        }
        interface.mpls = true;
        interface.rsvp = true;
        speaking.push(RsvpInterfaceSettings {
            name: member.name.clone(),
            bandwidth: table.bandwidth,
            keys: shared_keys(&table.keys.0, problems),
        });
    }
    let mut tunnels: Vec<RsvpTunnelSettings> = Vec::new();
    for member in section.tunnel.0.iter() {
        let Some(table) = &member.value else { continue };
        if table.to.0 == section.router_id.0 {
            problems.push_help(
                member.place,
                "the tunnel ends at this router",
                "set `to` to the router ID of another router",
            );
        }
        for prefix in &table.prefixes.0 {
            if prefix.value.0.address().is_ipv6() {
                let help = "list IPv4 prefixes only";
                problems.push_help(prefix.place, "RSVP-TE sets up LSPs for IPv4", help);
            }
            if let Some(other) = tunnels.iter().find(|tunnel| tunnel.prefixes.contains(&prefix.value.0)) {
                let message = format!("{} belongs to tunnel `{}`", prefix.value.0, other.name);
                problems.push_help(prefix.place, message, "list a prefix once");
            }
        }
        if let Some(protected) = &table.protects {
            let address = protected.value.0;
            if table.route.0.is_empty() {
                let help = "give it a `route` around the link to this neighbor";
                problems.push_help(protected.place, "the tunnel may take the link that it protects", help);
            }
            if let Some(other) = tunnels.iter().find(|tunnel| tunnel.protects == Some(address)) {
                let message = format!("tunnel `{}` protects {address}, too", other.name);
                problems.push_help(protected.place, message, "protect a neighbor by one tunnel");
            }
        }
        tunnels.push(tunnel(member.name.clone(), table));
    }
    RsvpSettings {
        router_id: section.router_id.0,
        interfaces: speaking,
        tunnels,
        first_label: LabelValue::new(section.first_label.0 as u32).unwrap_or(LabelValue::MAX),
        egress: section.egress,
        refresh: section.refresh.0,
        hello: section.hello.0,
    }
}

fn tunnel(name: String, table: &RsvpTunnelTable) -> RsvpTunnelSettings {
    let request = TunnelRequest {
        endpoint: table.to.0,
        route: table.route.0.iter().map(|hop| hop.0).collect(),
        bandwidth: table.bandwidth.unwrap_or(BitRate(0)),
        name: name.clone().into_bytes(),
        // Bypass LSPs are not protected themselves.
        is_protected: table.local_protection && table.protects.is_none(),
    };
    RsvpTunnelSettings {
        name,
        request,
        prefixes: table.prefixes.0.iter().map(|prefix| prefix.value.0).collect(),
        protects: table.protects.as_ref().map(|protected| protected.value.0),
    }
}
