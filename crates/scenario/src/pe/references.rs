//! Flows that weights are relative to: who measures them, who is told, and who follows them.

use super::build::reference;
use super::file::{self, File};
use super::{Reference, ReferenceSource};
use crate::error::Problems;
use crate::file::control::{Control, Decrease, I2vfc};
use crate::table::{At, Member};
use netstage_core::fair;
use netstage_wire::reference::WEIGHT;
use std::collections::{BTreeMap, BTreeSet};

/// What a flow's window is told, its reference looked up.
pub(super) fn config(file: &File, i2vfc: &I2vfc, problems: &mut Problems) -> Option<fair::Config> {
    let (name, place) = (&i2vfc.reference.value.0, i2vfc.reference.place);
    if name == "nominal" {
        return Some(i2vfc.config());
    }
    if let Some(nominal) = i2vfc.nominal.as_ref().filter(|nominal| nominal.own) {
        let message = "`nominal` has no effect here";
        problems.push_help(nominal.place, message, "it belongs to reference = \"nominal\"");
    }
    let index = reference(&file.reference, name, place, "reference", problems)?;
    Some(fair::Config { reference: fair::Reference::Vpn(index), ..i2vfc.config() })
}

/// All references, or problems.
pub(super) fn references(file: &File, problems: &mut Problems) -> Option<Vec<Reference>> {
    let mut numbers: BTreeMap<u64, &str> = BTreeMap::new();
    let read = |member: &Member<file::Reference>, problems: &mut Problems| {
        if member.name == "nominal" {
            problems.push(member.place, "`nominal` is not free as the name of a reference");
        }
        let source = source(file, member.value.as_ref()?, member, problems)?;
        let number = member.value.as_ref()?.number.value.0 as u32;
        Some(Reference { name: member.name.clone(), number, source })
    };
    let list: Vec<Option<Reference>> = file.reference.0.iter().map(|member| read(member, problems)).collect();
    for member in &file.reference.0 {
        let Some(number) = member.value.as_ref().map(|reference| &reference.number) else { continue };
        if let Some(holder) = numbers.insert(number.value.0, &member.name) {
            let message = format!("number {} is taken by reference `{holder}`", number.value.0);
            problems.push_help(number.place, message, "routers tell references apart by it: give another");
        }
    }
    list.into_iter().collect()
}

fn source(
    file: &File,
    told: &file::Reference,
    member: &Member<file::Reference>,
    problems: &mut Problems,
) -> Option<ReferenceSource> {
    match (&told.flow, &told.from) {
        (None, Some(from)) => {
            if let Some(first) = told.publish_to.0.first() {
                let message = "what a peer tells is not told on";
                problems.push_help(first.place, message, "let that peer publish to all who follow");
            }
            Some(ReferenceSource::Peer(peer(file, from, problems)?))
        }
        (Some(flow), None) => own(file, flow, &told.publish_to.0, problems),
        (flow, _) => {
            let place = flow.as_ref().map_or(member.place, |flow| flow.place);
            let message =
                format!("reference `{}` is either a `flow` of this router or `from` a peer", member.name);
            let help =
                "flow = { vpn = \"NAME\", peer = \"NAME\" } where it is measured, from = \"NAME\" elsewhere";
            problems.push_help(place, message, help);
            None
        }
    }
}

fn peer(file: &File, name: &At<file::PeerName>, problems: &mut Problems) -> Option<usize> {
    reference(&file.peer, &name.value.0, name.place, "peer", problems)
}

/// A VPN flow of this router: it needs a window whose decrease does not depend on others.
fn own(
    file: &File,
    flow: &At<file::FlowName>,
    publish_to: &[At<file::PeerName>],
    problems: &mut Problems,
) -> Option<ReferenceSource> {
    let named = &flow.value;
    let vpn = reference(&file.vpn, &named.vpn.value.0, named.vpn.place, "vpn", problems);
    let far = peer(file, &named.peer, problems);
    let mut seen = BTreeSet::new();
    let told: Vec<Option<usize>> = publish_to
        .iter()
        .map(|name| {
            let index = peer(file, name, problems)?;
            if !seen.insert(index) {
                problems.push_help(
                    name.place,
                    format!("peer `{}` is told twice", name.value.0),
                    "leave one out",
                );
            }
            Some(index)
        })
        .collect();
    let (vpn, far) = (vpn?, far?);
    let (vpn_name, peer_name) = (&named.vpn.value.0, &named.peer.value.0);
    let Some(found) = file.vpn.0[vpn].value.as_ref()?.peer.0.iter().find(|flow| flow.name == *peer_name)
    else {
        let message = format!("VPN `{vpn_name}` has no flow with peer `{peer_name}`");
        problems.push_help(flow.place, message, format!("give it one: [vpn.{vpn_name}.peer.{peer_name}]"));
        return None;
    };
    let found = found.value.as_ref()?;
    match &found.treatment.control.value {
        Control::I2vfc(I2vfc { decrease, .. }) if matches!(decrease.value, Decrease::Fixed(_)) => {}
        Control::I2vfc(_) => {
            let message = "this flow cannot be a reference: its own decrease is from its weight";
            let help =
                format!("give it a fixed one: vpn.{vpn_name}.peer.{peer_name}.control.decrease = 0.1, say");
            problems.push_help(flow.place, message, help);
        }
        _ => {
            let message = "this flow cannot be a reference: it is not controlled by \"i2vfc\"";
            let help = format!("vpn.{vpn_name}.peer.{peer_name}.control = {{ decrease = 0.1 }}, say");
            problems.push_help(flow.place, message, help);
        }
    }
    if !WEIGHT.contains(&found.weight.0) {
        let message =
            format!("a reference's weight is told others from {} to {}", WEIGHT.start(), WEIGHT.end());
        problems.push_help(flow.place, message, "scale the weights of all flows alike");
    }
    Some(ReferenceSource::Flow { vpn, peer: far, publish_to: told.into_iter().collect::<Option<_>>()? })
}
