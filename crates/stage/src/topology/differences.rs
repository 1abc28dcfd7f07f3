//! Differences between TCP of the kernel and that of a plan. Every record lists them, for the comparison of stages.

use super::pe;
use netstage_core::tcp::{Algorithm, LossDetection, SlowStart, Stack, TcpConfig};
use netstage_core::time::Duration;
use netstage_scenario::plan::{FlowTransport, Plan, VpnPlan};
use netstage_wire::Encapsulation;
use std::collections::{BTreeMap, BTreeSet};

/// Returns all differences, each with the flows that it affects.
pub fn differences(plan: &Plan) -> Vec<String> {
    let mut found: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut host_settings: BTreeMap<usize, BTreeSet<(bool, bool)>> = BTreeMap::new();
    for group in &plan.flows {
        let FlowTransport::Tcp(tcp) = &group.transport else { continue };
        for difference in tcp_differences(tcp) {
            found.entry(difference).or_default().push(&group.name);
        }
        for host in [group.from, group.to] {
            host_settings.entry(host).or_default().insert((tcp.sack, tcp.timestamps));
        }
    }
    let mut differences: Vec<String> =
        found.into_iter().map(|(text, flows)| format!("{text} (flow.{})", flows.join(", flow."))).collect();
    for (host, settings) in host_settings {
        if settings.len() > 1 {
            let name = &plan.nodes[host].name;
            differences.push(format!(
                "node.{name}: the flows differ in sack or timestamps, which Linux sets per host; those of the last flow apply"
            ));
        }
    }
    differences.extend(vpn_differences(plan));
    differences
}

fn vpn_differences(plan: &Plan) -> Vec<String> {
    if !pe::are_needed(plan) {
        return Vec::new();
    }
    let names = |predicate: &dyn Fn(&VpnPlan) -> bool| {
        let vpns = plan.vpns.iter().filter(|vpn| predicate(vpn));
        vpns.map(|vpn| format!("vpn.{}", vpn.name)).collect::<Vec<String>>().join(", ")
    };
    let bytes = Encapsulation::MplsInUdp.overhead();
    let difference = |encapsulation, instead: &str| {
        let vpns = names(&|vpn| vpn.encapsulation == encapsulation);
        let text = format!(
            "packets between PEs have {bytes} more bytes of MPLS-in-UDP encapsulation, {instead} ({vpns})"
        );
        (!vpns.is_empty()).then_some(text)
    };
    [
        difference(
            Encapsulation::None,
            "which the scenario does not count; set encapsulation = \"mpls-in-udp\" to count them",
        ),
        difference(
            Encapsulation::Mpls,
            "instead of the two labels of the scenario, because the kernel's routers in between may lack MPLS",
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn tcp_differences(tcp: &TcpConfig) -> Vec<String> {
    let mut differences = Vec::new();
    let mut add = |differs: bool, text: &str| {
        if differs {
            differences.push(text.to_owned());
        }
    };
    match tcp.algorithm {
        Algorithm::Reno => add(true, "TCP reno ran as Linux reno, with the recovery of NewReno and SACK"),
        Algorithm::NewReno => add(tcp.stack != Stack::Linux, "TCP newreno ran as Linux reno"),
        Algorithm::Cubic => add(
            true,
            "TCP cubic ran as Linux cubic, with HyStart, and slower than RFC 9438 with small windows, by 10 to 17 % \
             at random losses of 0.1 to 1 %; to simulate it, set tcp = { stack = \"linux\" }",
        ),
        Algorithm::LinuxCubic => {}
        Algorithm::Aimd { .. } => {
            add(true, "TCP aimd ran as Linux reno, with a = 1 and b = 0.5, the only values of the kernel")
        }
    }
    if tcp.stack == Stack::Linux {
        return differences;
    }
    add(
        true,
        "Linux adds the minimum RTO to the smoothed round trip instead of using it as the lower limit of the timeout",
    );
    add(
        !tcp.sack,
        "without SACK Linux repairs one loss per round trip (slow-but-steady), while the simulator soon times out \
         (impatient; RFC 6582 section 4); to simulate it, set tcp = { stack = \"linux\" }",
    );
    add(
        tcp.sack && tcp.loss_detection != LossDetection::Rack,
        "Linux detects losses by RACK-TLP (RFC 8985), including lost retransmissions, for which the simulator waits for the \
         timeout, and reduces by PRR (RFC 9937); to simulate it, set tcp = { stack = \"linux\" }",
    );
    add(
        tcp.slow_start != SlowStart::Standard,
        "the kernel has no HyStart++, so slow start ended as the algorithm does it",
    );
    let delayed = tcp.ack_every != 2 || tcp.delayed_ack != Duration::from_millis(200);
    add(delayed, "ack_every and delayed_ack are those of Linux: every second segment, 40 to 200 ms");
    add(tcp.initial_rto != Duration::from_secs(1), "the initial timeout is that of Linux: 1 s");
    add(!tcp.limited_transmit, "Linux always uses limited transmit");
    add(!tcp.handshake, "Linux always opens with a handshake");
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_of_linux_are_reported() {
        let aimd =
            TcpConfig { algorithm: Algorithm::Aimd { increase: 2.0, decrease: 0.1 }, ..TcpConfig::default() };
        assert!(tcp_differences(&aimd)[0].contains("a = 1 and b = 0.5"));
        let [standard, linux] = [Algorithm::Cubic, Algorithm::LinuxCubic]
            .map(|algorithm| tcp_differences(&TcpConfig { algorithm, ..TcpConfig::default() })[0].clone());
        assert!(standard.contains("stack = \"linux\""), "{standard}");
        assert!(!linux.contains("RFC 9438"), "{linux}");
        let slow = TcpConfig { ack_every: 1, handshake: false, ..TcpConfig::default() };
        let differences = tcp_differences(&slow).join("; ");
        assert!(differences.contains("ack_every") && differences.contains("handshake"), "{differences}");
        let plain = TcpConfig { sack: false, ..TcpConfig::default() };
        assert!(tcp_differences(&plain).join("; ").contains("one loss per round trip"));
        let by_acks = tcp_differences(&TcpConfig::default()).join("; ");
        assert!(by_acks.contains("RACK-TLP") && by_acks.contains("stack = \"linux\""), "{by_acks}");
        let rack = TcpConfig { loss_detection: LossDetection::Rack, ..TcpConfig::default() };
        assert!(!tcp_differences(&rack).join("; ").contains("RACK"));
        assert!(!tcp_differences(&plain).join("; ").contains("RACK"));
        for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
            let like_linux = TcpConfig { algorithm, ..TcpConfig::default() }.like_linux();
            assert_eq!(tcp_differences(&like_linux), [""; 0]);
        }
    }
}
