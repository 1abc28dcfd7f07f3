//! Weights computed from the topology: shares of the capacity that background flows leave.

use super::Builder;
use super::vpns::PlacedVpn;
use crate::file::control::VpnWeight;
use crate::plan::{FlowGroup, FlowTransport, Hop};
use netstage_core::fair::allocation::{proportional_fair, weighted_max_min};
use netstage_core::traffic::Pattern;

impl Builder<'_, '_> {
    /// Returns the weight of every VPN. Computed weights are relative to the smallest.
    pub(super) fn weights(&mut self, placed: &[Option<PlacedVpn>], flows: &[FlowGroup]) -> Option<Vec<f64>> {
        let vpns: Vec<_> = self.file.vpn.0.iter().map(|m| m.value.as_ref()).collect::<Option<_>>()?;
        let Some(first) = vpns.iter().find(|vpn| !matches!(vpn.weight.value, VpnWeight::Given(_))) else {
            let given = vpns.iter().map(|vpn| match vpn.weight.value {
                VpnWeight::Given(weight) => weight,
                _ => unreachable!("every weight is given"),
            });
            return Some(given.collect());
        };
        if let Some(other) = vpns.iter().find(|vpn| vpn.weight.value != first.weight.value) {
            let message = "the weights of all VPNs must be computed with the same method, or all be given";
            let place = if other.weight.own { other.weight.place } else { first.weight.place };
            self.problems.push_help(place, message, "set it once in [defaults.vpn]");
            return None;
        }
        let resource = |hop: &Hop| 2 * hop.link + hop.direction;
        let paths: Option<Vec<Vec<usize>>> =
            placed.iter().map(|vpn| vpn.as_ref().map(|v| v.path.iter().map(resource).collect())).collect();
        let paths = paths?;
        let mut capacity = self.capacity_beside_background(flows)?;
        let minima: Vec<f64> =
            vpns.iter().map(|vpn| vpn.treatment.minimum.as_ref().map_or(0.0, |m| m.value.as_f64())).collect();
        for (path, minimum) in paths.iter().zip(&minima) {
            for &link in path {
                capacity[link] -= minimum;
            }
        }
        for (index, path) in paths.iter().enumerate() {
            if let Some(link) = path.iter().find(|link| capacity[**link] <= 0.0) {
                let name = &self.file.link.0[link / 2].name;
                let place =
                    vpns[index].treatment.minimum.as_ref().map_or(vpns[index].weight.place, |m| m.place);
                let message =
                    format!("background flows and guaranteed minima use the whole capacity of link `{name}`");
                self.problems.push(place, message);
                return None;
            }
        }
        let equal = vec![1.0; paths.len()];
        let shares = match first.weight.value {
            VpnWeight::MaxMin => weighted_max_min(&paths, &capacity, &equal),
            _ => proportional_fair(&paths, &capacity, &equal),
        };
        let rates: Vec<f64> = shares.iter().zip(&minima).map(|(share, minimum)| share + minimum).collect();
        let min = rates.iter().copied().fold(f64::INFINITY, f64::min);
        Some(rates.iter().map(|rate| rate / min).collect())
    }

    /// Returns the capacity of each direction of each link, minus the mean rate of background flows.
    fn capacity_beside_background(&mut self, flows: &[FlowGroup]) -> Option<Vec<f64>> {
        let mut capacity = Vec::with_capacity(2 * self.file.link.0.len());
        for member in self.file.link.0.iter() {
            let link = member.value.as_ref()?;
            capacity.extend(link.directions.iter().map(|d| d.rate.as_f64()));
        }
        for flow in flows.iter().filter(|flow| flow.background) {
            let Some(rate) = ip_rate(flow) else {
                self.warnings.insert(format!(
                    "flow.{}: the rate of this background flow is not known in advance, so the weights ignore it",
                    flow.name
                ));
                continue;
            };
            for hop in flow.hops() {
                capacity[2 * hop.link + hop.direction] -= rate;
            }
        }
        capacity.iter_mut().for_each(|rate| *rate = rate.max(0.0));
        Some(capacity)
    }
}

/// Returns the mean rate of all members at the IP layer.
fn ip_rate(flow: &FlowGroup) -> Option<f64> {
    let pattern = flow.traffic.pattern()?;
    let payload = pattern.mean_rate()?;
    let packet = match pattern {
        Pattern::Bulk { .. } => return None,
        Pattern::Cbr { packet, .. }
        | Pattern::Poisson { packet, .. }
        | Pattern::OnOff { packet, .. }
        | Pattern::Pareto { packet, .. }
        | Pattern::Mmpp { packet, .. } => f64::from(*packet),
        Pattern::Trace { packets, .. } => {
            packets.iter().map(|(_, bytes)| f64::from(*bytes)).sum::<f64>() / packets.len() as f64
        }
    };
    let headers = match &flow.transport {
        FlowTransport::Tcp(_) | FlowTransport::Quic => 32.0,
        // The headers of UDP and ICMP are both 8 B.
        _ => 8.0,
    };
    let headers = headers + f64::from(flow.family.header());
    Some(payload * (packet + headers) / packet * flow.count as f64)
}
