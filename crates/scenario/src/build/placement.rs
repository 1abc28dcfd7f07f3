//! Which agents stand for hosts on `live`.

use super::{Builder, Network};
use crate::plan::{Chosen, NodeKind, Placement};
use std::collections::BTreeMap;

impl Builder<'_, '_> {
    /// The placements of `[place]`, by node.
    pub(super) fn places(&mut self, network: &Network) -> BTreeMap<String, Placement> {
        let mut places: BTreeMap<String, Placement> = BTreeMap::new();
        for member in &self.file.place.0 {
            let Some(place) = &member.value else { continue };
            let Some(node) = self.reference(&self.file.node, &member.name, member.place, "node") else {
                continue;
            };
            if network.kinds[node] != NodeKind::Host {
                let message = format!("`{}` is no host: agents send and receive flows", member.name);
                let help = "place the hosts; on `live` the network between them is the real one";
                self.problems.push_help(member.place, message, help);
                continue;
            }
            let agent = match (&place.agent, &place.label) {
                (Some(name), None) => Chosen::Named(name.value.0.clone()),
                (None, Some(label)) => Chosen::Labelled(label.value.0.clone()),
                (None, None) => {
                    let help = format!("{} = \"AGENT\", or {{ label = \"LABEL\" }}", member.name);
                    self.problems.push_help(member.place, "this placement names no agent", help);
                    continue;
                }
                (Some(_), Some(label)) => {
                    let message = "a placement has an agent or a label, not both";
                    self.problems.push_help(label.place, message, "take one of them out");
                    continue;
                }
            };
            let twice = |(_, other): &(&String, &Placement)| {
                matches!(agent, Chosen::Named(_)) && other.agent == agent
            };
            if let Some((other, _)) = places.iter().find(twice) {
                let message = format!("the agent of `{}` stands for `{other}` already", member.name);
                self.problems.push_help(member.place, message, "an agent stands for one node: name another");
                continue;
            }
            let address = place.address.as_ref().map(|address| address.0);
            places.insert(member.name.clone(), Placement { agent, address });
        }
        places
    }
}
