//! Checks of references, the flows that weights are relative to: their sources and the peers they are published to.

use super::build::reference;
use super::file::{self, PeFile};
use super::{ReferenceConfig, ReferenceSource};
use crate::error::Problems;
use crate::file::control::{ControlTable, Decrease, I2vfc};
use crate::table::{Located, NamedTable};
use netstage_core::fair;
use netstage_wire::reference::WEIGHT;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the window settings of a flow, with its reference as an index.
pub(super) fn config(file: &PeFile, i2vfc: &I2vfc, problems: &mut Problems) -> Option<fair::I2vfcConfig> {
    let (name, place) = (&*i2vfc.reference.value.0, i2vfc.reference.place);
    if name == "nominal" {
        return Some(i2vfc.config());
    }
    if let Some(nominal) = i2vfc.nominal.as_ref().filter(|nominal| nominal.own) {
        let message = "`nominal` has no effect here";
        problems.push_help(nominal.place, message, "it applies to reference = \"nominal\" only");
    }
    let index = reference(&file.reference, name, place, "reference", problems)?;
    Some(fair::I2vfcConfig { reference: fair::WeightReference::Vpn(index), ..i2vfc.config() })
}

/// Returns all references, or `None` if problems were reported.
pub(super) fn references(file: &PeFile, problems: &mut Problems) -> Option<Vec<ReferenceConfig>> {
    let mut numbers: BTreeMap<u64, &str> = BTreeMap::new();
    let check = |member: &NamedTable<file::ReferenceTable>, problems: &mut Problems| {
        if member.name == "nominal" {
            problems.push(member.place, "`nominal` is reserved: choose another name for this reference");
        }
        let source = source(file, member.value.as_ref()?, member, problems)?;
        let number = member.value.as_ref()?.number.value.0 as u32;
        Some(ReferenceConfig { name: member.name.clone(), number, source })
    };
    let list: Vec<Option<ReferenceConfig>> =
        file.reference.0.iter().map(|member| check(member, problems)).collect();
    for member in file.reference.0.iter() {
        let Some(number) = member.value.as_ref().map(|reference| &reference.number) else { continue };
        if let Some(holder) = numbers.insert(number.value.0, &member.name) {
            let message = format!("number {} is already used by reference `{holder}`", number.value.0);
            problems.push_help(
                number.place,
                message,
                "routers identify references by number: choose another",
            );
        }
    }
    list.into_iter().collect()
}

fn source(
    file: &PeFile,
    table: &file::ReferenceTable,
    member: &NamedTable<file::ReferenceTable>,
    problems: &mut Problems,
) -> Option<ReferenceSource> {
    match (&table.flow, &table.from) {
        (None, Some(from)) => {
            if let Some(first) = table.publish_to.0.first() {
                let message = "a reference from a peer cannot be published";
                problems.push_help(first.place, message, "list all receivers in `publish_to` of that peer");
            }
            Some(ReferenceSource::Peer(peer(file, from, problems)?))
        }
        (Some(flow), None) => own(file, flow, &table.publish_to.0, problems),
        (flow, _) => {
            let place = flow.as_ref().map_or(member.place, |flow| flow.place);
            let message = format!("reference `{}` needs either `flow` or `from`", member.name);
            let help = "flow = { vpn = \"NAME\", peer = \"NAME\" } on the router that measures it, from = \"PEER\" on others";
            problems.push_help(place, message, help);
            None
        }
    }
}

fn peer(file: &PeFile, name: &Located<file::PeerName>, problems: &mut Problems) -> Option<usize> {
    reference(&file.peer, &name.value.0, name.place, "peer", problems)
}

/// Returns a VPN flow of this router as a source. Its window needs a decrease that does not depend on other flows.
fn own(
    file: &PeFile,
    flow: &Located<file::FlowName>,
    publish_to: &[Located<file::PeerName>],
    problems: &mut Problems,
) -> Option<ReferenceSource> {
    let flow_name = &flow.value;
    let vpn = reference(&file.vpn, &flow_name.vpn.value.0, flow_name.vpn.place, "vpn", problems);
    let remote = peer(file, &flow_name.peer, problems);
    let mut seen = BTreeSet::new();
    let receivers: Vec<Option<usize>> = publish_to
        .iter()
        .map(|name| {
            let index = peer(file, name, problems)?;
            if !seen.insert(index) {
                problems.push_help(
                    name.place,
                    format!("peer `{}` is listed twice", name.value.0),
                    "remove one",
                );
            }
            Some(index)
        })
        .collect();
    let (vpn, remote) = (vpn?, remote?);
    let (vpn_name, peer_name) = (&flow_name.vpn.value.0, &flow_name.peer.value.0);
    let Some(found) = file.vpn.0[vpn].value.as_ref()?.peer.0.iter().find(|flow| flow.name == *peer_name)
    else {
        let message = format!("VPN `{vpn_name}` has no flow with peer `{peer_name}`");
        problems.push_help(flow.place, message, format!("define it with [vpn.{vpn_name}.peer.{peer_name}]"));
        return None;
    };
    let found = found.value.as_ref()?;
    match &found.treatment.control.value {
        ControlTable::I2vfc(I2vfc { decrease, .. }) if matches!(decrease.value, Decrease::Fixed(_)) => {}
        ControlTable::I2vfc(_) => {
            let message = "this flow cannot be a reference: its own decrease depends on its weight";
            let help = format!(
                "set a fixed decrease, such as vpn.{vpn_name}.peer.{peer_name}.control.decrease = 0.1"
            );
            problems.push_help(flow.place, message, help);
        }
        _ => {
            let message = "this flow cannot be a reference: its control is not \"i2vfc\"";
            let help = format!(
                "set vpn.{vpn_name}.peer.{peer_name}.control = {{ kind = \"i2vfc\", decrease = 0.1 }}"
            );
            problems.push_help(flow.place, message, help);
        }
    }
    if !WEIGHT.contains(&found.weight.0) {
        let message =
            format!("the weight of a reference must be from {} to {}", WEIGHT.start(), WEIGHT.end());
        problems.push_help(flow.place, message, "scale the weights of all flows");
    }
    Some(ReferenceSource::Flow {
        vpn,
        peer: remote,
        publish_to: receivers.into_iter().collect::<Option<_>>()?,
    })
}
