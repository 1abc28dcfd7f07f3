//! VPNs of a plan: their PEs, their ways, and who is whose reference.

use super::{Builder, Network};
use crate::file::File;
use crate::file::control::{self, Control, Decrease, I2vfc, Weight};
use crate::plan::routes::mirrored;
use crate::plan::{Hop, NodeKind, Vpn};
use crate::scalar::NodeName;
use crate::table::At;
use netstage_core::fair;

/// A VPN whose places in the network are known.
pub(super) struct PlacedVpn {
    pub ingress: usize,
    pub egress: usize,
    pub path: Vec<Hop>,
    pub reverse: Vec<Hop>,
    pub back: Option<usize>,
}

impl Builder<'_, '_> {
    pub(super) fn vpns(&mut self, network: &Network) -> Vec<Option<PlacedVpn>> {
        let file = self.file;
        let mut placed: Vec<Option<PlacedVpn>> = (file.vpn.0)
            .iter()
            .map(|member| {
                let vpn = member.value.as_ref()?;
                if member.name == "nominal" {
                    self.problems.push(member.place, "`nominal` is not free as the name of a VPN");
                }
                self.check_reference(vpn);
                let ingress = self.pe(network, &vpn.ingress);
                let egress = self.pe(network, &vpn.egress);
                let (ingress, egress) = (ingress?, egress?);
                if ingress == egress {
                    self.problems.push(vpn.egress.place, "a VPN leaves at another PE than it enters");
                    return None;
                }
                let path = match &vpn.via {
                    Some(via) => self.through(network, ingress, via, egress)?.1,
                    None => self.shortest(network, ingress, egress, vpn.egress.place)?,
                };
                let reverse = match &vpn.reverse_via {
                    Some(via) => self.through(network, egress, via, ingress)?.1,
                    None => mirrored(&path),
                };
                Some(PlacedVpn { ingress, egress, path, reverse, back: None })
            })
            .collect();
        for index in 0..placed.len() {
            let Some(back) = self.back(&placed, index) else { continue };
            // Said of one, it holds for both.
            for (one, other) in [(index, back), (back, index)] {
                placed[one].as_mut().expect("both were found").back = Some(other);
            }
        }
        placed
    }

    /// The VPN that carries what comes back: between the same PEs, the same way.
    fn back(&mut self, placed: &[Option<PlacedVpn>], index: usize) -> Option<usize> {
        let vpns = &self.file.vpn;
        let back = vpns.0[index].value.as_ref()?.back.as_ref()?;
        let name = &back.value.0;
        let found = self.reference(vpns, name, back.place, "vpn")?;
        let (own, other) = (placed[index].as_ref()?, placed[found].as_ref()?);
        if (own.ingress, own.egress) != (other.egress, other.ingress) {
            let message = format!("vpn `{name}` does not lead back");
            let help = "its ingress is this one's egress, and the other way round";
            self.problems.push_help(back.place, message, help);
            return None;
        }
        if own.reverse != other.path {
            let message = format!("vpn `{name}` leads back another way than this one's `reverse_via`");
            self.problems.push_help(back.place, message, "give both the same nodes, or neither");
            return None;
        }
        if own.back.or(other.back).is_some_and(|known| known != found && known != index) {
            let message = format!("vpn `{name}` and this one are not the only ones to lead back");
            self.problems.push_help(back.place, message, "every way has one way back: leave the third out");
            return None;
        }
        Some(found)
    }

    fn pe(&mut self, network: &Network, name: &At<NodeName>) -> Option<usize> {
        let index = self.node(name)?;
        let readable = self.file.node.0[index].value.is_some();
        if readable && network.kinds[index] != NodeKind::Pe {
            let message = format!("`{}` is not a PE", name.value.0);
            let help = format!("give it the kind: [node.{}] kind = \"pe\"", name.value.0);
            self.problems.push_help(name.place, message, help);
            return None;
        }
        Some(index)
    }

    /// A VPN that others refer to needs a decrease that does not depend on them.
    fn check_reference(&mut self, vpn: &control::Vpn) {
        let Control::I2vfc(i2vfc) = &vpn.treatment.control.value else { return };
        let name = &i2vfc.reference.value.0;
        let place = i2vfc.reference.place;
        if name == "nominal" {
            return;
        }
        if let Some(nominal) = i2vfc.nominal.as_ref().filter(|n| n.own) {
            let message = "`nominal` has no effect here";
            self.problems.push_help(nominal.place, message, "it belongs to reference = \"nominal\"");
        }
        let vpns = &self.file.vpn;
        let Some(index) = self.reference(vpns, name, place, "vpn") else { return };
        let Some(referred) = &vpns.0[index].value else { return };
        match &referred.treatment.control.value {
            Control::I2vfc(I2vfc { decrease, .. }) if decrease.value == Decrease::FromWeight => {
                let message =
                    format!("vpn `{name}` cannot be a reference: its own decrease is from its weight");
                let help = format!("give it a fixed one: vpn.{name}.control.decrease = 0.1, say");
                self.problems.push_help(place, message, help);
            }
            Control::I2vfc(_) => {}
            _ => {
                let message =
                    format!("vpn `{name}` cannot be a reference: it is not controlled by \"i2vfc\"");
                self.problems.push(place, message);
            }
        }
    }

    pub(super) fn finish_vpns(
        &mut self,
        placed: Vec<Option<PlacedVpn>>,
        weights: &[f64],
    ) -> Option<Vec<Vpn>> {
        let file = self.file;
        let mut vpns = Vec::with_capacity(weights.len());
        for (index, (member, placed)) in file.vpn.0.iter().zip(placed).enumerate() {
            let PlacedVpn { ingress, egress, path, reverse, back } = placed?;
            let vpn = member.value.as_ref()?;
            let shares = !matches!(vpn.weight.value, Weight::Given(_));
            let window = |i2vfc: &I2vfc| self::window(file, index, i2vfc);
            vpns.push(Vpn {
                name: member.name.clone(),
                settings: vpn.treatment.settings(weights[index], shares, window, self.problems)?,
                ingress,
                egress,
                encapsulation: vpn.encapsulation,
                path,
                reverse,
                back,
            });
        }
        Some(vpns)
    }
}

/// The window of a VPN, its reference numbered.
fn window(file: &File, own: usize, i2vfc: &I2vfc) -> Option<fair::Config> {
    let config = i2vfc.config();
    match i2vfc.reference.value.0.as_str() {
        "nominal" => Some(config),
        // The reference itself, where one value is set for every VPN: it keeps its a and b.
        name => match file.vpn.index(name)? {
            index if index == own => Some(fair::Config { rule: fair::Rule::DecreaseThenIncrease, ..config }),
            index => Some(fair::Config { reference: fair::Reference::Vpn(index), ..config }),
        },
    }
}
