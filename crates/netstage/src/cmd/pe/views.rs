//! State of a router as tables.

use crate::cmd::table::{self, Table, time};
use netstage_pe::daemon::snapshot::{FlowState, PeSnapshot, meaning};

pub fn router(state: &PeSnapshot) -> String {
    let mut text = format!(
        "netstage {} pe, process {}, up {}\nconfiguration {}, loaded {} times",
        state.tool,
        state.process,
        time(state.uptime_ns),
        state.configuration.display(),
        state.configurations
    );
    if state.refused_configurations > 0 {
        text.push_str(&format!(", rejected {} times", state.refused_configurations));
    }
    text.push('\n');
    if !state.refusal.is_empty() {
        text.push_str(&format!("last configuration rejected:\n{}\n", state.refusal.trim_end()));
    }
    for alarm in &state.alarms {
        text.push_str(&format!("ALARM {} for {}: {}\n", alarm.name, time(alarm.age_ns), alarm.description));
    }
    let mut table = Table::new(&["interface", "driver", "side", ">missed", "state"]);
    for port in &state.ports {
        let side = if port.is_core { "core" } else { "customer" };
        let state = port.failure.clone().unwrap_or("up".into());
        table.row([port.interface.clone(), port.kind.clone(), side.into(), port.missed.to_string(), state]);
    }
    text + "\n" + &table.text()
}

pub fn peers(state: &PeSnapshot) -> String {
    let mut table = Table::new(&["peer", "tunnel", "address", "encryption", "path"]);
    for peer in &state.peers {
        let path = match &peer.route {
            Some(way) => {
                let first = match way.path_mtu < way.mtu {
                    true => format!(" ({} at {})", way.mtu, way.interface),
                    false => String::new(),
                };
                format!("{} via {} ({}), MTU {}{first}", way.interface, way.next_hop, way.mac, way.path_mtu)
            }
            None => format!("unreachable: {}", peer.unreachable),
        };
        let address = peer.address.map_or(String::new(), |address| address.to_string());
        let encryption = match (peer.is_encrypted, peer.session_age_ns) {
            (false, _) => "none: trusted".into(),
            (true, Some(age)) => format!("session of {}", time(age)),
            (true, None) => "NO SESSION".into(),
        };
        table.row([peer.name.clone(), peer.tunnel.clone(), address, encryption, path]);
    }
    table.text()
}

pub fn flows(state: &PeSnapshot) -> String {
    let heads = [
        "VPN",
        "peer",
        ">labels",
        ">weight",
        "control",
        ">sent",
        ">received",
        ">lost",
        ">queue",
        ">window",
        ">rate",
        ">level",
        ">price",
        ">share",
        ">owed",
        ">round trip",
        "",
    ];
    let mut table = Table::new(&heads);
    for flow in &state.flows {
        let (window, rate) = (flow.window.as_ref(), flow.rate.as_ref());
        let share = |share: Option<f64>| share.map_or("-".into(), |share| format!("{:.1} %", 100.0 * share));
        table.row([
            flow.vpn.clone(),
            flow.peer.clone(),
            format!("{}/{}", flow.send_label, flow.receive_label),
            flow.weight.to_string(),
            flow.control.clone(),
            flow.sent.packets.to_string(),
            flow.received.packets.to_string(),
            flow.lost().map_or("-".into(), |lost| lost.to_string()),
            flow.queue.to_string(),
            window.map_or("-".into(), |window| format!("{:.1}", window.packets)),
            rate.map_or("-".into(), |rate| format!("{:.2} Mbit/s", rate.permitted_bps / 1e6)),
            rate.map_or("-".into(), |rate| format!("{:.2}", rate.level)),
            rate.map_or("-".into(), |rate| format!("{:.2}", rate.price)),
            share(rate.and_then(|rate| rate.share)),
            share(rate.and_then(|rate| rate.owed_share)),
            flow.round_trip_ns().map_or("-".into(), time),
            remarks(flow),
        ]);
    }
    table.text()
}

/// Returns what an operator should look after.
fn remarks(flow: &FlowState) -> String {
    let bad_replies = flow.window.as_ref().map_or(0, |window| window.bad_replies);
    let silent = flow.is_silent.then(|| "SILENT".to_owned());
    let bad = (bad_replies > 0).then(|| table::counted(bad_replies as usize, "rejected response"));
    silent.into_iter().chain(bad).collect::<Vec<_>>().join(", ")
}

pub fn references(state: &PeSnapshot) -> String {
    let heads = [
        "reference",
        ">number",
        "source",
        ">followers",
        ">age",
        ">weight",
        ">round trip",
        ">loss",
        ">events",
        ">decrease",
        ">published",
        ">received",
        ">rejected",
        "",
    ];
    let mut table = Table::new(&heads);
    for reference in &state.references {
        let source = match (&reference.from, &reference.flow) {
            (Some(peer), _) => format!("peer {peer}"),
            (None, Some([vpn, peer])) if reference.publish_to.is_empty() => format!("VPN {vpn} to {peer}"),
            (None, Some([vpn, peer])) => {
                format!("VPN {vpn} to {peer}, published to {}", reference.publish_to.join(", "))
            }
            (None, None) => String::new(),
        };
        let known = |value: String| if reference.age_ns.is_some() { value } else { "-".into() };
        table.row([
            reference.name.clone(),
            reference.number.to_string(),
            source,
            reference.followers.to_string(),
            known(time(reference.age_ns.unwrap_or(0).max(1))),
            known(reference.weight.to_string()),
            known(time(reference.round_trip_ns)),
            reference.loss.map_or("-".into(), |loss| format!("{loss:.5}")),
            known(reference.loss_events.to_string()),
            known(reference.decrease.to_string()),
            reference.published.to_string(),
            reference.received.to_string(),
            reference.refused.to_string(),
            if reference.is_old { "OLD".into() } else { String::new() },
        ]);
    }
    table.text()
}

pub fn circuits(state: &PeSnapshot) -> String {
    let mut table = Table::new(&["circuit", "VPN", "interface", ">received", ">bytes", ">sent", ">bytes"]);
    for circuit in &state.circuits {
        table.row([
            circuit.name.clone(),
            circuit.vpn.clone(),
            circuit.place.clone(),
            circuit.received.packets.to_string(),
            circuit.received.bytes.to_string(),
            circuit.sent.packets.to_string(),
            circuit.sent.bytes.to_string(),
        ]);
    }
    table.text()
}

pub fn neighbors(state: &PeSnapshot) -> String {
    let mut table = Table::new(&["circuit", "address", "MAC address"]);
    for neighbor in &state.neighbors {
        let mac = neighbor.mac.clone().unwrap_or("resolving".into());
        table.row([neighbor.circuit.clone(), neighbor.address.to_string(), mac]);
    }
    table.text()
}

pub fn counters(state: &PeSnapshot) -> String {
    let mut table = Table::new(&["event", "severity", ">count", "meaning"]);
    for (name, count) in state.counters.iter().filter(|(_, count)| **count > 0) {
        let (severity, meaning) =
            meaning(name).map_or(("", ""), |(severity, meaning)| (severity.name(), meaning));
        table.row([name.clone(), severity.into(), count.to_string(), meaning.into()]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_pe::daemon::snapshot::{PeerState, ReferenceState, WindowState};

    #[test]
    fn problems_are_visible() {
        let flow = FlowState {
            vpn: "red".into(),
            peer: "west".into(),
            weight: 2.0,
            is_silent: true,
            window: Some(WindowState { packets: 1.0, lost: 9, ..WindowState::default() }),
            ..FlowState::default()
        };
        let peer = PeerState { name: "west".into(), unreachable: "no route".into(), ..PeerState::default() };
        let reference = ReferenceState {
            name: "gold".into(),
            from: Some("west".into()),
            is_old: true,
            ..ReferenceState::default()
        };
        let state = PeSnapshot {
            references: vec![reference],
            flows: vec![flow],
            peers: vec![peer],
            refusal: "error: label 7".into(),
            counters: [("no_route".to_owned(), 3), ("queue_full".to_owned(), 0)].into(),
            ..PeSnapshot::default()
        };
        assert!(flows(&state).contains("SILENT") && peers(&state).contains("unreachable: no route"));
        assert!(router(&state).contains("rejected:\nerror: label 7"));
        let references = references(&state);
        assert!(references.contains("peer west") && references.contains("OLD"), "{references}");
        let counters = counters(&state);
        assert!(counters.contains("no_route") && !counters.contains("queue_full"), "{counters}");
        assert!(counters.contains("The VPN has no route to the destination;"));
    }
}
