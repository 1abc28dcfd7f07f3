//! Tunnels of gateways: which of them are two ends of one, and what is refused.

use netstage_harness::scenario::network;
use netstage_scenario::plan::{Plan, Software};
use netstage_scenario::{Options, parse};

/// a - g1 - r - g2 - b, and a flow through all of them.
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
    let parsed = parse("chain.toml", &text, None, &Options::default());
    parsed.map(|scenario| scenario.cells[0].plan.clone()).map_err(|errors| errors.to_string())
}

#[test]
fn two_gateways_on_a_way_are_the_ends_of_a_tunnel() {
    let ipsec = "kind = \"ipsec\"\ncipher = \"3des-sha1\"";
    let plan = chain(ipsec, ipsec, "tcp = { max_segment_size = \"1348 B\" }").unwrap();
    let [tunnel] = &plan.tunnels[..] else { panic!("{:?}", plan.tunnels) };
    assert_eq!((tunnel.software, tunnel.mtu, tunnel.overhead()), (Software::StrongSwan, 1400, 64));
    // The flow goes from b to a, and enters at the second end.
    let crossings = plan.crossings(&plan.flows[0].path);
    assert_eq!(crossings.len(), 1);
    assert_eq!((crossings[0].entry, crossings[0].first, crossings[0].behind), (1, 1, 3));
    assert_eq!(tunnel.reverse, plan.flows[0].path[1..3]);
    assert_eq!(tunnel.path, plan.flows[0].reverse[1..3]);
}

#[test]
fn a_tunnel_takes_what_its_flows_send_where_its_program_lets_it() {
    let plan =
        chain("kind = \"wireguard\"", "kind = \"wireguard\"", "tcp = { max_segment_size = \"8948 B\" }");
    assert_eq!(plan.unwrap().tunnels[0].mtu, 9000);
    let said = chain("kind = \"ipsec\"", "kind = \"ipsec\"", "").unwrap_err();
    assert!(
        said.contains("`bulk` sends packets of 1500 B, and the tunnel from `g2` takes 1400 B at most"),
        "{said}"
    );
}

#[test]
fn gateways_that_are_no_pair_are_refused_by_name() {
    let wireguard = "kind = \"wireguard\"";
    for (first, second, expected) in [
        (wireguard, "kind = \"router\"", "passes the gateway `g1` and no second one"),
        (wireguard, "kind = \"openvpn\"", "`g2` and `g1` are no two ends of a tunnel: kind or cipher differ"),
        (
            "kind = \"openvpn\"\ncipher = \"aes-256-gcm\"",
            "kind = \"openvpn\"",
            "`g2` and `g1` are no two ends of a tunnel: kind or cipher differ",
        ),
    ] {
        let said = chain(first, second, "").unwrap_err();
        assert!(said.contains(expected), "{said}");
    }
}
