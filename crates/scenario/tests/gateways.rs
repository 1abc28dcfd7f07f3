//! Tunnels between gateways: valid pairs of ends, and refused ones.

use netstage_harness::scenario::network;
use netstage_scenario::plan::{GatewaySoftware, Plan};
use netstage_scenario::{LoadOptions, parse};

/// Parses the scenario a - g1 - r - g2 - b, with a flow from b to a.
fn chain(first: &str, second: &str, flow: &str) -> Result<Plan, String> {
    let nodes = [("host", "a b"), ("router", "r")];
    let network = network(&nodes, "a:a,g1 b:g2,b c:g1,r d:r,g2");
    let text = format!(
        r#"
        [scenario]
        duration = "1 s"
        [defaults.link]
        rate = "10 Mbit/s"
        [node.g1]
        {first}
        [node.g2]
        {second}
        [flow.bulk]
        from = "b"
        to = "a"
        {flow}
        {network}"#
    );
    let parsed = parse("chain.toml", &text, None, &LoadOptions::default());
    parsed.map(|scenario| scenario.cells[0].plan.clone()).map_err(|errors| errors.to_string())
}

#[test]
fn two_gateways_on_a_path_are_the_ends_of_a_tunnel() {
    let ipsec = "kind = \"ipsec\"\ncipher = \"3des-sha1\"";
    let plan = chain(ipsec, ipsec, "tcp = { max_segment_size = \"1348 B\" }").unwrap();
    let [tunnel] = &plan.tunnels[..] else { panic!("{:?}", plan.tunnels) };
    assert_eq!((tunnel.software, tunnel.mtu, tunnel.overhead()), (GatewaySoftware::StrongSwan, 1400, 64));
    // The flow goes from b to a, and enters at the second end.
    let crossings = plan.crossings(&plan.flows[0].path);
    assert_eq!(crossings.len(), 1);
    assert_eq!((crossings[0].entry, crossings[0].first_inside, crossings[0].first_after), (1, 1, 3));
    assert_eq!(tunnel.reverse, plan.flows[0].path[1..3]);
    assert_eq!(tunnel.path, plan.flows[0].reverse[1..3]);
}

#[test]
fn a_tunnel_adapts_its_mtu_to_its_flows_if_its_program_supports_it() {
    let plan =
        chain("kind = \"wireguard\"", "kind = \"wireguard\"", "tcp = { max_segment_size = \"8948 B\" }");
    assert_eq!(plan.unwrap().tunnels[0].mtu, 9000);
    let message = chain("kind = \"ipsec\"", "kind = \"ipsec\"", "").unwrap_err();
    assert!(
        message.contains("`bulk` sends packets of 1500 B, but the tunnel from `g2` takes at most 1400 B"),
        "{message}"
    );
}

#[test]
fn mismatched_gateways_are_refused_by_name() {
    let wireguard = "kind = \"wireguard\"";
    for (first, second, expected) in [
        (wireguard, "kind = \"router\"", "crosses the gateway `g1` but no second one"),
        (
            wireguard,
            "kind = \"openvpn\"",
            "`g2` and `g1` cannot be the ends of a tunnel: their kind or cipher differs",
        ),
        (
            "kind = \"openvpn\"\ncipher = \"aes-256-gcm\"",
            "kind = \"openvpn\"",
            "`g2` and `g1` cannot be the ends of a tunnel: their kind or cipher differs",
        ),
    ] {
        let message = chain(first, second, "").unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
}
