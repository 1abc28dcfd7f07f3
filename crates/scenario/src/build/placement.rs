//! Placement of hosts and provider edge routers on agents, for stage `live`.

use super::{Builder, NodeGraph};
use crate::file::place;
use crate::plan::{AgentSelector, LinkAttachment, NodeKind, NodePlacement};
use crate::table::NamedTables;
use std::collections::BTreeMap;

impl Builder<'_, '_> {
    /// Returns the placements of `[place]`, by node name.
    pub(super) fn places(&mut self, network: &NodeGraph) -> BTreeMap<String, NodePlacement> {
        let mut places: BTreeMap<String, NodePlacement> = BTreeMap::new();
        for member in self.file.place.0.iter() {
            let Some(place) = &member.value else { continue };
            let Some(node) = self.reference(&self.file.node, &member.name, member.place, "node") else {
                continue;
            };
            if !matches!(network.kinds[node], NodeKind::Host | NodeKind::Pe) {
                let message =
                    format!("`{}` is neither a host nor a PE; agents run nothing else", member.name);
                let help = "place hosts and PEs only; on `live` the rest of the network is the real one";
                self.problems.push_help(member.place, message, help);
                continue;
            }
            let agent = match (&place.agent, &place.label) {
                (Some(name), None) => AgentSelector::Named(name.value.0.clone()),
                (None, Some(label)) => AgentSelector::Labeled(label.value.0.clone()),
                (None, None) => {
                    let help = format!("{} = \"AGENT\", or {{ label = \"LABEL\" }}", member.name);
                    self.problems.push_help(member.place, "this placement has no agent", help);
                    continue;
                }
                (Some(_), Some(label)) => {
                    let message = "a placement has an agent or a label, not both";
                    self.problems.push_help(label.place, message, "remove one of them");
                    continue;
                }
            };
            let is_taken = |(_, other): &(&String, &NodePlacement)| {
                matches!(agent, AgentSelector::Named(_)) && other.agent == agent
            };
            if let Some((other, _)) = places.iter().find(is_taken) {
                let message = format!("the agent of `{}` already runs `{other}`", member.name);
                self.problems.push_help(
                    member.place,
                    message,
                    "an agent runs one node: choose another agent",
                );
                continue;
            }
            let address = place.address.as_ref().map(|address| address.0);
            let interfaces = self.interfaces(&place.interfaces, &member.name, network.kinds[node]);
            places.insert(member.name.clone(), NodePlacement { agent, address, interfaces });
        }
        places
    }

    /// Returns the interfaces of a node, by link name.
    fn interfaces(
        &mut self,
        table: &NamedTables<place::AttachmentTable>,
        node: &str,
        kind: NodeKind,
    ) -> BTreeMap<String, LinkAttachment> {
        let mut interfaces = BTreeMap::new();
        for member in table.0.iter() {
            let Some(attachment) = &member.value else { continue };
            let Some(link) = self.reference(&self.file.link, &member.name, member.place, "link") else {
                continue;
            };
            let ends = self.file.link.0[link].value.as_ref().map(|link| &link.ends);
            if kind != NodeKind::Pe {
                let message =
                    format!("`{node}` is a host; its address determines the interface of its flows");
                self.problems.push_help(member.place, message, "set `interfaces` for a `pe` only");
            } else if ends.is_some_and(|ends| ends.iter().all(|end| *end.value.0 != *node)) {
                let message = format!("link `{}` does not end at `{node}`", member.name);
                self.problems.push_help(member.place, message, "name a link of this node");
            }
            let attachment = LinkAttachment {
                name: attachment.name.value.0.clone(),
                addresses: attachment.address.0.iter().map(|address| address.0).collect(),
                via: attachment.via.as_ref().map(|via| via.0),
            };
            interfaces.insert(member.name.clone(), attachment);
        }
        interfaces
    }
}
