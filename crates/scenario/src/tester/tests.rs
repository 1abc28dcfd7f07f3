use super::*;
use crate::plan::Method;

const SMALL: &str = r#"
[tester]
router = "a box"
from = ["west"]
to = ["east"]
[port.west]
interface = "eth1"
address = "192.0.2.2/30"
router = "192.0.2.1"
[port.east]
interface = "eth2"
address = "192.0.2.6/30"
router = "192.0.2.5"
[routes]
count = 1000
[labels]
"#;

fn with(line: &str) -> Result<Tester, Errors> {
    parse("tester.toml", &SMALL.replace("[port.west]", &format!("{line}\n[port.west]")))
}

#[test]
fn every_profile_gives_a_cell_for_each_operation_and_size() {
    for (profile, cells, tests) in
        [("paper", 4 * 7, 1), ("rfc2544", 7, 2), ("rfc5695", 5 * 7, 2), ("mlrsearch", 4 * 7, 1)]
    {
        let tester = with(&format!("profile = \"{profile}\"")).unwrap();
        assert_eq!(tester.scenario.cells.len(), cells, "{profile}");
        for cell in &tester.scenario.cells {
            assert_eq!(cell.plan.tests.len(), tests);
            let (operation, is_mix) = parse_test_name(&cell.plan.tests[0].name).unwrap();
            assert_eq!((cell.settings[0].1.as_str(), is_mix), (operation.name(), false));
        }
    }
}

#[test]
fn loss_ratios_add_searches_and_the_loss_over_the_rate() {
    for (profile, names) in [
        ("paper", &["ip", "ip-loss", "ip-ndr", "ip-pdr-5000ppm"][..]),
        ("mlrsearch", &["ip-loss", "ip-ndr", "ip-pdr-5000ppm"]),
        ("rfc2544", &["ip", "ip-loss", "ip-ndr", "ip-pdr-5000ppm"]),
    ] {
        let line = format!("profile = \"{profile}\"\nsizes = [\"46 B\"]\nloss_ratios = [0, \"0.5 %\"]");
        let tester = with(&line).unwrap();
        let tests = &tester.scenario.cells[0].plan.tests;
        let mut found: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
        found.sort_unstable();
        assert_eq!(found, names, "{profile}");
        for test in tests {
            assert_eq!(parse_test_name(&test.name), Some((Operation::Ip, false)), "{}", test.name);
            if let Method::Mlrsearch { goal, .. } = test.method {
                assert_eq!(goal.loss_ratio, if test.name == "ip-ndr" { 0.0 } else { 0.005 });
            }
        }
    }
    assert_eq!(parse_test_name("swap-imix-pdr-5000ppm"), Some((Operation::Swap, true)));
    assert_eq!(parse_test_name("swap-imix-loss"), Some((Operation::Swap, true)));
    assert_eq!(parse_test_name("swap-other"), None);
    for (ratios, message) in [("[1]", "below 100 %"), ("[0.01, \"1 %\"]", "listed twice")] {
        let error = with(&format!("loss_ratios = {ratios}")).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn the_line_rate_matches_the_paper() {
    let tester = with("sizes = [\"46 B\", \"imix\"]").unwrap();
    let rates = tester.scenario.cells.iter().map(|cell| {
        let test = &cell.plan.tests[0];
        let line = cell.plan.hop(test.probe.path[0]);
        line.rate.as_f64() / 8.0 / f64::from(test.frames[0].ip + line.overhead)
    });
    let rates: Vec<u64> = rates.map(|rate| rate as u64).collect();
    // 125,000,000 over 38 B and 42 B with the packet, and with a mix's mean of 335 B.
    assert_eq!(rates, [1_488_095, 335_120, 1_420_454, 331_564, 1_420_454, 331_564, 1_420_454, 331_564]);
}

#[test]
fn both_directions_have_separate_networks_and_labels() {
    let tester = with("bidirectional = true").unwrap();
    let [forward, reverse] = &tester.directions[..] else { panic!("{:?}", tester.directions) };
    assert_eq!(
        (forward.first_network, reverse.first_network),
        (IpAddr::from([11, 0, 0, 0]), IpAddr::from([11, 3, 232, 0]))
    );
    // Ports are in order of name.
    assert_eq!((&forward.from[..], &reverse.from[..], reverse.label_offset), (&[1][..], &[0][..], 1));
    let Method::Steady { max_rate: None, .. } = tester.scenario.cells[0].plan.tests[0].method else {
        panic!()
    };
}

#[test]
fn errors_contain_the_remedy() {
    let errors = |text: &str| parse("tester.toml", text).unwrap_err().to_string();
    for (from, to, message) in [
        ("to = [\"east\"]", "to = [\"eas\"]", "unknown port `eas`"),
        ("to = [\"east\"]", "to = [\"west\"]", "port `west` is in both"),
        ("[labels]", "", "add a table [labels]"),
        ("count = 1000", "by = \"bgp\"", "add a table [bgp]"),
        ("count = 1000", "first = \"223.255.0.0\"", "all networks must be below 224.0.0.0"),
        ("router = \"192.0.2.5\"", "router = \"192.0.2.9\"", "192.0.2.9 cannot be the other end"),
        ("count = 1000", "first = \"2001:db8::\"", "set IPv6 addresses for port `east`"),
        ("[labels]", "[labels]\n[convergence]", "by = \"bgp\" in [routes]"),
        (
            "[labels]",
            "[labels]\n[bgp]\nadditional_routes = \"rib\"",
            "`additional_routes` has no effect without BGP",
        ),
        ("interface = \"eth2\"", "interface = \"eth1\"", "interface `eth1` is listed twice"),
    ] {
        let text = SMALL
            .replace(from, to)
            .replace("from = [\"west\"]", "from = [\"west\"]\noperations = [\"ip\", \"swap\"]");
        let found = errors(&text);
        assert!(found.contains(message), "{message}: {found}");
    }
}

#[test]
fn events_of_ldp_need_its_labels_and_packets_that_use_them() {
    let text = |labels: &str, convergence: &str| {
        SMALL.replace("[labels]", &format!("[labels]\n{labels}\n[convergence]\n{convergence}"))
    };
    let by_ldp = "by = \"ldp\"";
    let events = "events = [\"ldp-session-loss\", \"ldp-shutdown\", \"ldp-session-up\", \"label-withdraw\", \
                  \"label-mapping\", \"ldp-restart\"]";
    let tester = parse("tester.toml", &text(by_ldp, events)).unwrap();
    let convergence = tester.convergence.as_ref().unwrap();
    assert_eq!(tester.scenario.cells.len(), 6);
    for (cell, event) in tester.scenario.cells.iter().zip(&convergence.events) {
        assert_eq!(ConvergenceEvent::from_test_name(&cell.plan.tests[0].name), Some(*event));
        // The default operation is the one whose packets have labels.
        assert_eq!(convergence.operation_at(*event), Operation::Swap);
    }
    let two_ports = "to = [\"east\", \"south\"]\noperations = [\"swap\"]";
    let south =
        "[port.south]\ninterface = \"eth3\"\naddress = \"192.0.2.10/30\"\nrouter = \"192.0.2.9\"\n[routes]";
    for (labels, settings, to, message) in [
        ("", events, "to = [\"east\"]", "the event \"ldp-session-loss\" needs labels set up by LDP"),
        ("by = \"rsvp-te\"", "events = [\"label-withdraw\"]", "", "set by = \"ldp\" in a table [labels]"),
        (by_ldp, "events = [\"label-mapping\"]\noperation = \"pop\"", "", "packets leave by routes"),
        (by_ldp, "events = [\"ldp-restart\"]\noperation = \"ip\"", "", "set operation = \"swap\""),
        (by_ldp, "events = [\"ldp-restart\", \"ldp-restart\"]", "", "is listed twice"),
        (by_ldp, "events = [\"ldp-restart\"]\nreconnect_time = \"1 us\"", "", "in whole milliseconds"),
        (by_ldp, "events = [\"ldp-restart\"]", two_ports, "remove `operations`"),
        (by_ldp, "events = [\"ldp-session\"]", "", "did you mean"),
    ] {
        let to = if to.is_empty() { "to = [\"east\"]" } else { to };
        let text = text(labels, settings).replace("to = [\"east\"]", to).replace("[routes]", south);
        let error = parse("tester.toml", &text).unwrap_err().to_string();
        assert!(error.contains(message), "{message}: {error}");
    }
}

#[test]
fn lsps_by_rsvp_te_carry_ipv4_and_need_configured_routes() {
    let text = SMALL.replace("[labels]", "[labels]\nby = \"rsvp-te\"");
    assert_eq!(parse("tester.toml", &text).unwrap().labels.unwrap().source, LabelSource::RsvpTe);
    for (routes, message) in [
        ("by = \"bgp\"\n[bgp]\n", "BGP routes do not lead into LSPs by RSVP-TE"),
        ("first = \"2001:db8::\"", "RSVP-TE sets up LSPs for IPv4"),
    ] {
        let error = parse("tester.toml", &text.replace("count = 1000", routes)).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn ipv6_packets_have_at_least_66_bytes() {
    let text = SMALL
        .replace("192.0.2.2/30", "2001:db8:ffff::2/64")
        .replace("192.0.2.1", "2001:db8:ffff::1")
        .replace("192.0.2.6/30", "2001:db8:fffe::2/64")
        .replace("192.0.2.5", "2001:db8:fffe::1")
        .replace("count = 1000", "count = 70_000\nfirst = \"2001:db8::\"");
    let tester = parse("tester.toml", &text).unwrap();
    assert_eq!(tester.sizes[0], PacketSize::Bytes(66));
    assert_eq!(tester.sizes.len(), 6);
    assert_eq!(tester.directions[0].network(65_537), ("2001:db9:1::".parse().unwrap(), 48));
    let small = text.replace("[port.west]", "sizes = [\"46 B\"]\n[port.west]");
    let error = parse("tester.toml", &small).unwrap_err().to_string();
    assert!(error.contains("a packet size is too small for IPv6"), "{error}");
    let mixed = parse("tester.toml", &small.replace("46 B", "imix")).unwrap();
    assert_eq!(mixed.sizes[0], mixed.mix());
    assert_eq!(mixed.mix().lengths(), [66, 552, 66, 66, 552, 66, 1500, 66, 552, 66, 66, 552]);
    assert_eq!(mixed.scenario.cells[0].plan.tests[0].frames[0].ip, 347);
}
