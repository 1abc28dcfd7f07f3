//! VPNs of a plan: PEs, paths and references.

use super::{Builder, NodeGraph};
use crate::file::ScenarioFile;
use crate::file::control::{self, ControlTable, Decrease, I2vfc, LinkKnowledge, VpnTable, VpnWeight};
use crate::plan::routes::reversed;
use crate::plan::{Hop, NodeKind, VpnPlan};
use crate::scalar::NodeName;
use crate::table::{Located, NamedTables};
use netstage_core::fair;
use netstage_core::fair::paths::path_number;
use std::collections::BTreeMap;
use std::rc::Rc;

/// VPN with resolved PEs and paths.
pub(super) struct PlacedVpn {
    pub ingress: usize,
    pub egress: usize,
    pub path: Vec<Hop>,
    pub reverse: Vec<Hop>,
    pub opposite: Option<usize>,
}

/// VPNs of a plan without faults, and the tables and graph that they follow from.
pub(crate) struct PlacedVpns {
    tables: NamedTables<VpnTable>,
    graph: Rc<NodeGraph>,
    vpns: Rc<Vec<Option<PlacedVpn>>>,
}

impl Builder<'_, '_> {
    /// Returns the VPNs. They are those of the plan before if tables and graph are the same.
    pub(super) fn vpns(&mut self, graph: &Rc<NodeGraph>) -> Rc<Vec<Option<PlacedVpn>>> {
        let is_same =
            |before: &&PlacedVpns| before.tables.is_same(&self.file.vpn) && Rc::ptr_eq(&before.graph, graph);
        if let Some(before) = self.placed.as_ref().filter(is_same) {
            return Rc::clone(&before.vpns);
        }
        let found = self.problems.found();
        let vpns = Rc::new(self.place_vpns(graph));
        // A node that was not read causes no fault here, and its graph may be that of one that would.
        let is_read = self.file.node.0.iter().all(|node| node.value.is_some());
        let has_faults = self.problems.found() > found;
        *self.placed = (is_read && !has_faults).then(|| PlacedVpns {
            tables: self.file.vpn.clone(),
            graph: Rc::clone(graph),
            vpns: Rc::clone(&vpns),
        });
        vpns
    }

    fn place_vpns(&mut self, network: &NodeGraph) -> Vec<Option<PlacedVpn>> {
        let file = self.file;
        let mut placed: Vec<Option<PlacedVpn>> = (file.vpn.0)
            .iter()
            .map(|member| {
                let vpn = member.value.as_ref()?;
                if member.name == "nominal" {
                    self.problems
                        .push(member.place, "`nominal` is reserved: choose another name for this VPN");
                }
                self.check_reference(vpn);
                let ingress = self.pe(network, &vpn.ingress);
                let egress = self.pe(network, &vpn.egress);
                let (ingress, egress) = (ingress?, egress?);
                if ingress == egress {
                    self.problems.push(vpn.egress.place, "`ingress` and `egress` are the same PE");
                    return None;
                }
                let path = match &vpn.via {
                    Some(via) => self.explicit_path(network, ingress, via, egress)?.1,
                    None => self.shortest(network, ingress, egress, vpn.egress.place)?.to_vec(),
                };
                let reverse = match &vpn.reverse_via {
                    Some(via) => self.explicit_path(network, egress, via, ingress)?.1,
                    None => reversed(&path),
                };
                Some(PlacedVpn { ingress, egress, path, reverse, opposite: None })
            })
            .collect();
        for index in 0..placed.len() {
            let Some(back) = self.opposite(&placed, index) else { continue };
            // `opposite` in one table applies to both VPNs.
            for (one, other) in [(index, back), (back, index)] {
                placed[one].as_mut().expect("both VPNs were resolved").opposite = Some(other);
            }
        }
        placed
    }

    /// Returns the VPN of the opposite direction: between the same PEs, over the same links.
    fn opposite(&mut self, placed: &[Option<PlacedVpn>], index: usize) -> Option<usize> {
        let vpns = &self.file.vpn;
        let back = vpns.0[index].value.as_ref()?.back.as_ref()?;
        let name = &back.value.0;
        let found = self.reference(vpns, name, back.place, "vpn")?;
        let (own, other) = (placed[index].as_ref()?, placed[found].as_ref()?);
        if (own.ingress, own.egress) != (other.egress, other.ingress) {
            let message = format!("vpn `{name}` is not in the opposite direction");
            let help = "its ingress must be this VPN's egress, and its egress this VPN's ingress";
            self.problems.push_help(back.place, message, help);
            return None;
        }
        if own.reverse != other.path {
            let message = format!("the path of vpn `{name}` differs from this VPN's `reverse_via`");
            self.problems.push_help(back.place, message, "set the same nodes for both, or for neither");
            return None;
        }
        if own.opposite.or(other.opposite).is_some_and(|known| known != found && known != index) {
            let message = format!("vpn `{name}` or this one is already paired with another VPN");
            self.problems.push_help(
                back.place,
                message,
                "a VPN has one opposite: remove the third VPN's `back`",
            );
            return None;
        }
        Some(found)
    }

    fn pe(&mut self, network: &NodeGraph, name: &Located<NodeName>) -> Option<usize> {
        let index = self.node(name)?;
        let readable = self.file.node.0[index].value.is_some();
        if readable && network.kinds[index] != NodeKind::Pe {
            let message = format!("`{}` is not a PE", name.value.0);
            let help = format!("set its kind: [node.{}] kind = \"pe\"", name.value.0);
            self.problems.push_help(name.place, message, help);
            return None;
        }
        Some(index)
    }

    /// Reports a reference whose own decrease depends on other VPNs.
    fn check_reference(&mut self, vpn: &control::VpnTable) {
        let ControlTable::I2vfc(i2vfc) = &vpn.treatment.control.value else { return };
        let name = &*i2vfc.reference.value.0;
        let place = i2vfc.reference.place;
        if name == "nominal" {
            return;
        }
        if let Some(nominal) = i2vfc.nominal.as_ref().filter(|n| n.own) {
            let message = "`nominal` has no effect here";
            self.problems.push_help(nominal.place, message, "it applies to reference = \"nominal\" only");
        }
        let vpns = &self.file.vpn;
        let Some(index) = self.reference(vpns, name, place, "vpn") else { return };
        let Some(target) = &vpns.0[index].value else { return };
        match &target.treatment.control.value {
            ControlTable::I2vfc(I2vfc { decrease, .. }) if decrease.value == Decrease::FromWeight => {
                let message =
                    format!("vpn `{name}` cannot be a reference: its own decrease depends on its weight");
                let help = format!("set a fixed decrease, such as vpn.{name}.control.decrease = 0.1");
                self.problems.push_help(place, message, help);
            }
            ControlTable::I2vfc(_) => {}
            _ => {
                let message = format!("vpn `{name}` cannot be a reference: its control is not \"i2vfc\"");
                self.problems.push(place, message);
            }
        }
    }

    pub(super) fn finish_vpns(
        &mut self,
        placed: &[Option<PlacedVpn>],
        weights: &[f64],
    ) -> Option<Vec<VpnPlan>> {
        let file = self.file;
        let mut vpns = Vec::with_capacity(weights.len());
        for (index, (member, placed)) in file.vpn.0.iter().zip(placed).enumerate() {
            let placed = placed.as_ref()?;
            let vpn = member.value.as_ref()?;
            let shares = !matches!(vpn.weight.value, VpnWeight::Given(_));
            let window = |i2vfc: &I2vfc| self::window(file, index, i2vfc);
            vpns.push(VpnPlan {
                name: member.name.clone(),
                settings: vpn.treatment.settings(weights[index], shares, window, self.problems)?,
                ingress: placed.ingress,
                egress: placed.egress,
                encapsulation: vpn.encapsulation,
                path: placed.path.clone(),
                reverse: placed.reverse.clone(),
                opposite: placed.opposite,
            });
        }
        set_memberships(file, &mut vpns);
        Some(vpns)
    }
}

/// Sets the links that each VPN under rate consensus shares with other VPNs, or its path if they are not known.
fn set_memberships(file: &ScenarioFile, vpns: &mut [VpnPlan]) {
    let mut users = BTreeMap::<Hop, u32>::new();
    for hop in vpns.iter().flat_map(|vpn| &vpn.path) {
        *users.entry(*hop).or_default() += 1;
    }
    let shared: Vec<Hop> = users.into_iter().filter(|(_, count)| *count > 1).map(|(hop, _)| hop).collect();
    for (vpn, member) in vpns.iter_mut().zip(file.vpn.0.iter()) {
        let fair::VpnControl::RateConsensus(membership) = &mut vpn.settings.control else { continue };
        let control = member.value.as_ref().map(|table| &table.treatment.control.value);
        let is_unknown = matches!(control, Some(ControlTable::RateConsensus(consensus))
            if consensus.links.value == LinkKnowledge::Unknown);
        let link = |hop: &Hop| shared.binary_search(hop).ok().map(|link| link as u32);
        *membership = match is_unknown {
            true => fair::CoreMembership::Path(path_number(&format!("{} {}", vpn.ingress, vpn.egress))),
            false => fair::CoreMembership::Links(vpn.path.iter().filter_map(link).collect()),
        };
    }
}

/// Returns the window settings of a VPN, with its reference as an index.
fn window(file: &ScenarioFile, own: usize, i2vfc: &I2vfc) -> Option<fair::I2vfcConfig> {
    let config = i2vfc.config();
    match &*i2vfc.reference.value.0 {
        "nominal" => Some(config),
        // One value set for every VPN makes the reference refer to itself; it keeps its a and b.
        name => match file.vpn.index(name)? {
            index if index == own => {
                Some(fair::I2vfcConfig { rule: fair::WeightRule::DecreaseThenIncrease, ..config })
            }
            index => Some(fair::I2vfcConfig { reference: fair::WeightReference::Vpn(index), ..config }),
        },
    }
}
