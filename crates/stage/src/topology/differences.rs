//! In what the hosts' kernel differs from what a plan says of TCP: told in every record,
//! so that nobody compares two stages without knowing.

use super::pe;
use netstage_core::tcp::{Algorithm, Config, LossDetection};
use netstage_core::time::Duration;
use netstage_scenario::plan::{Plan, Transport, Vpn};
use netstage_wire::Encapsulation;
use std::collections::{BTreeMap, BTreeSet};

/// Every difference, each with the flows it concerns.
pub fn differences(plan: &Plan) -> Vec<String> {
    let mut found: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut of_host: BTreeMap<usize, BTreeSet<(bool, bool)>> = BTreeMap::new();
    for group in &plan.flows {
        let Transport::Tcp(tcp) = &group.transport else { continue };
        for difference in of_tcp(tcp) {
            found.entry(difference).or_default().push(&group.name);
        }
        for host in [group.from, group.to] {
            of_host.entry(host).or_default().insert((tcp.sack, tcp.timestamps));
        }
    }
    let mut told: Vec<String> =
        found.into_iter().map(|(what, flows)| format!("{what} (flow.{})", flows.join(", flow."))).collect();
    for (host, settings) in of_host {
        if settings.len() > 1 {
            let name = &plan.nodes[host].name;
            told.push(format!(
                "node.{name}: its flows differ in sack or timestamps, which Linux sets per host: those of the last flow hold"
            ));
        }
    }
    told.extend(of_vpns(plan));
    told
}

fn of_vpns(plan: &Plan) -> Vec<String> {
    if !pe::are_needed(plan) {
        return Vec::new();
    }
    let named = |of: &dyn Fn(&Vpn) -> bool| {
        let found = plan.vpns.iter().filter(|vpn| of(vpn));
        found.map(|vpn| format!("vpn.{}", vpn.name)).collect::<Vec<String>>().join(", ")
    };
    let bytes = Encapsulation::MplsInUdp.overhead();
    let of_encapsulation = |encapsulation, instead: &str| {
        let vpns = named(&|vpn| vpn.encapsulation == encapsulation);
        let told =
            format!("packets between PEs are in MPLS-in-UDP, {bytes} bytes more each, {instead} ({vpns})");
        (!vpns.is_empty()).then_some(told)
    };
    [
        of_encapsulation(Encapsulation::None, "which the scenario leaves out of account: encapsulation = \"mpls-in-udp\" counts them"),
        of_encapsulation(Encapsulation::Mpls, "where the scenario says two labels: routers in between are the kernel's, which may know no labels"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn of_tcp(tcp: &Config) -> Vec<String> {
    let mut told = Vec::new();
    let mut tell = |differs: bool, text: &str| {
        if differs {
            told.push(text.to_owned());
        }
    };
    match tcp.algorithm {
        Algorithm::Reno => tell(true, "TCP reno ran as Linux reno, whose recovery is NewReno's with SACK"),
        Algorithm::NewReno => tell(true, "TCP newreno ran as Linux reno"),
        Algorithm::Cubic => tell(
            true,
            "TCP cubic ran as Linux cubic, with HyStart, and slower than RFC 9438 where windows are small, by 10 to 17 % \
             at random losses of 0.1 to 1 %; ask the simulator for it by tcp = { algorithm = \"linux-cubic\" }",
        ),
        Algorithm::LinuxCubic => tell(true, "TCP linux-cubic ran as Linux cubic, with HyStart"),
        Algorithm::Aimd { .. } => {
            tell(true, "TCP aimd ran as Linux reno, a = 1 and b = 0.5: the kernel has no other")
        }
    }
    tell(true, "Linux adds the minimum RTO to the smoothed round trip instead of bounding the timeout by it");
    tell(
        !tcp.sack,
        "without SACK Linux repairs one loss per round trip, however many there are, where the simulator soon times out \
         (RFC 6582 section 4: slow-but-steady against impatient)",
    );
    tell(
        tcp.sack && tcp.loss_detection != LossDetection::Rack,
        "Linux detects losses by RACK-TLP (RFC 8985), also those of retransmissions, where the simulator waits for the \
         timeout, and reduces by PRR (RFC 9937); ask the simulator for it by tcp = { loss_detection = \"rack\" }",
    );
    let delayed = tcp.ack_every != 2 || tcp.delayed_ack != Duration::from_millis(200);
    tell(delayed, "ack_every and delayed_ack are Linux's own: every second segment, 40 to 200 ms");
    tell(tcp.initial_rto != Duration::from_secs(1), "the first timeout is Linux's own: 1 s");
    tell(!tcp.limited_transmit, "Linux always uses limited transmit");
    tell(!tcp.handshake, "Linux always opens with a handshake");
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linux_cannot_do_is_told() {
        let aimd =
            Config { algorithm: Algorithm::Aimd { increase: 2.0, decrease: 0.1 }, ..Config::default() };
        assert!(of_tcp(&aimd)[0].contains("a = 1 and b = 0.5"));
        let [standard, linux] = [Algorithm::Cubic, Algorithm::LinuxCubic]
            .map(|algorithm| of_tcp(&Config { algorithm, ..Config::default() })[0].clone());
        assert!(standard.contains("algorithm = \"linux-cubic\""), "{standard}");
        assert!(!linux.contains("RFC 9438"), "{linux}");
        let slow = Config { ack_every: 1, handshake: false, ..Config::default() };
        let told = of_tcp(&slow).join("; ");
        assert!(told.contains("ack_every") && told.contains("handshake"), "{told}");
        let plain = Config { sack: false, ..Config::default() };
        assert!(of_tcp(&plain).join("; ").contains("one loss per round trip"));
        let by_acks = of_tcp(&Config::default()).join("; ");
        assert!(by_acks.contains("loss_detection = \"rack\""), "{by_acks}");
        let rack = Config { loss_detection: LossDetection::Rack, ..Config::default() };
        assert!(!of_tcp(&rack).join("; ").contains("RACK"));
        assert!(!of_tcp(&plain).join("; ").contains("RACK"));
    }
}
