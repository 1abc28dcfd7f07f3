use super::*;
use netstage_core::fair;
use netstage_core::fair::CoreMembership;
use netstage_core::fair::paths::FIRST_PATH;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

const VALID: &str = r#"
[pe]
core = ["core0"]
metrics = "127.0.0.1:9635"

[peer.west]
tunnel = { kind = "mpls-in-udp", to = "192.0.2.2" }
trusted = true
[peer.north]
tunnel = { kind = "mpls", next_hop = "192.0.2.9", push = 501 }
mtu = "1496 B"
trusted = true
[vpn.red.peer.west]
send = 2001
receive = 1001
routes = ["10.0.2.0/24", "fd00:2::/64"]
weight = 2
when_silent = "closed"
minimum = "1 Mbit/s"
classes = [{ dscp = [46] }, { dscp = [], priority = 1, queue = "fq-codel" }]
control = "i2vfc"
[vpn.red.peer.north]
send = 2001
receive = 1002
control = { kind = "fixed-rate", rate = "5 Mbit/s" }

[vpn.blue.peer.west]
send = 2003
receive = 1003
routes = ["10.0.2.0/24"]

[circuit.red-lan]
vpn = "red"
interface = "eth1"
vlan = 100
address = ["10.0.1.1/24", "fd00:1::1/64"]
routes = [{ to = "10.9.0.0/16", via = "10.0.1.2" }]

[circuit.blue-lan]
vpn = "blue"
interface = "eth1"
vlan = [7, 9]
address = "10.0.1.1/24"
mtu = "1400 B"
"#;

#[test]
fn a_configuration_is_parsed() {
    let router = parse("pe.toml", VALID).unwrap();
    assert_eq!((router.core.as_slice(), router.buffers), (&["core0".to_owned()][..], 16_384));
    assert_eq!(router.control, Path::new("/run/netstage-pe.sock"));
    let [north, west] = &router.peers[..] else { panic!("{:?}", router.peers) };
    assert_eq!((north.mtu, west.mtu, west.name.as_str()), (Some(1_496), None, "west"));
    let [blue, red] = &router.vpns[..] else { panic!("{:?}", router.vpns) };
    assert_eq!((blue.flows.len(), red.flows[0].peer, red.flows[1].peer), (1, 0, 1));
    assert_eq!((red.flows[1].settings.weight, red.flows[1].receive.number()), (2.0, 1_001));
    let expected = fair::I2vfcConfig {
        silence: fair::SilencePolicy { after: Duration::from_secs(5), action: fair::SilenceAction::Closed },
        ..fair::I2vfcConfig::default()
    };
    assert_eq!(red.flows[1].settings.control, fair::VpnControl::I2vfc(expected));
    assert_eq!(
        (red.flows[1].settings.minimum, red.flows[1].settings.maximum),
        (Some(BitRate(1_000_000)), None)
    );
    let classes: Vec<(&[u8], u8, bool)> = red.flows[1]
        .settings
        .classes
        .iter()
        .map(|class| (&class.codepoints[..], class.priority, class.fq_codel.is_some()))
        .collect();
    assert_eq!(classes, [(&[46][..], 0, false), (&[], 1, true)]);
    assert!(red.flows[0].settings.classes.is_empty());
    let [blue, red] = &router.circuits[..] else { panic!("{:?}", router.circuits) };
    assert_eq!((blue.vpn, &blue.vlans[..], blue.mtu), (0, &[7, 9][..], Some(1_400)));
    let links: Vec<String> = red.links().map(|link| link.to_string()).collect();
    assert_eq!((links, red.routes.len()), (vec!["10.0.1.0/24".into(), "fd00:1::/64".into()], 1));
}

/// Returns line, column, message and help of the problems after one replacement in the valid file.
fn problems(from: &str, to: &str) -> String {
    problems_of(VALID, from, to)
}

fn problems_of(valid: &str, from: &str, to: &str) -> String {
    assert_eq!(valid.matches(from).count(), 1, "{from}");
    let errors = parse("pe.toml", &valid.replace(from, to)).unwrap_err();
    let problems: Vec<String> = errors
        .problems
        .iter()
        .map(|problem| {
            let help = problem.help.as_deref().unwrap_or_default();
            format!("{}:{}: {}; {help}", problem.line, problem.column, problem.message)
        })
        .collect();
    problems.join("\n")
}

#[test]
fn errors_contain_position_and_remedy() {
    let mut wrong = Vec::new();
    let zone = |vlans: &str, more: &str| {
        format!(
            "mtu = \"1400 B\"\n{more}\n[circuit.zone]\nvpn = \"blue\"\ninterface = \"eth1\"\nvlan = {vlans}\n{more}"
        )
    };
    let inside = zone("[100, 3]", "") + "address = \"10.5.0.1/24\"";
    let same_packets = zone("[7, 9]", "select = { protocol = 6 }\n") + "address = \"10.5.0.1/24\"";
    let same_address = zone("8", "") + "address = \"10.0.1.1/25\"";
    let classes = format!("classes = [{}{{ dscp", "{ dscp = [] }, ".repeat(63));
    for (from, to, expected) in [
        (
            "mtu = \"1400 B\"",
            &inside[..],
            "48:13: this circuit uses a VLAN inside that of circuit `red-lan`; a VLAN is",
        ),
        (
            "mtu = \"1400 B\"",
            &same_packets[..],
            "circuit `blue-lan` selects the same packets; change the interface",
        ),
        (
            "mtu = \"1400 B\"",
            &same_address[..],
            "prefix 10.0.1.1/32 is listed twice in this VPN; remove or change",
        ),
        ("classes = [{ dscp", &classes[..], "20:11: expected at most 64 values in this list, found 65; "),
        (
            "core = [\"core0\"]",
            "core = [\"core0\", \"core0\"]",
            "3:18: interface `core0` is listed twice; remove one",
        ),
        (
            "vlan = 100",
            "vlan = 7",
            "34:13: circuit `blue-lan` uses a VLAN inside this circuit's VLAN; a VLAN is",
        ),
        ("vlan = 100", "vlan = 4095", "35:8: expected a whole number from 1 to 4094"),
        ("vlan = 100", "vlan = [1, 2, 3]", "35:8: expected at most two VLAN tags"),
        ("[vpn.blue.peer.west]", "[vpn.red.peer.west]", "27:15: duplicate name `west`; rename it"),
        (
            "send = 2003",
            "send = 13",
            "28:8: expected a whole number from 16 to 1048575, found the number 13; ",
        ),
        ("dscp = [46]", "dscp = [46], weight = 0", "20:36: expected a number above 0, found the number 0; "),
        ("dscp = [46]", "dscp = [46], weight = inf", "20:36: expected a number above 0"),
        (
            "routes = [\"10.0.2.0/24\"]",
            "routes = [\"10.0.1.1/32\"]",
            "30:11: prefix 10.0.1.1/32 is listed twice in this VPN",
        ),
        (
            "receive = 1003",
            "receive = 1001",
            "15:11: label 1001 is already used by VPN `blue` with peer `west`; each flow",
        ),
        ("weight = 2", "weight = 0", "17:10: expected a number above 0, found the number 0; "),
        (
            "receive = 1002",
            "receive = 3",
            "24:11: expected a whole number from 16 to 1048575, found the number 3; ",
        ),
        ("[vpn.blue.peer.west]", "[vpn.blue.peer.wets]", "27:16: unknown peer `wets`; did you mean `west`?"),
        ("vpn = \"red\"", "vpn = \"rde\"", "33:7: unknown vpn `rde`; did you mean `red`?"),
        (
            "via = \"10.0.1.2\"",
            "via = \"10.0.3.2\"",
            "37:39: 10.0.3.2 is not on this circuit; `via` must be a router's",
        ),
        (
            "via = \"10.0.1.2\"",
            "via = \"10.0.1.1\"",
            "37:39: 10.0.1.1 is not on this circuit; `via` must be a router's",
        ),
        (
            "to = \"10.9.0.0/16\"",
            "to = \"10.0.2.0/24\"",
            "16:11: prefix 10.0.2.0/24 is listed twice in this VPN; remove",
        ),
        ("10.9.0.0/16", "10.9.0.1/16", "37:18: expected a prefix without host bits such as \"10.0.2.0/24\""),
        (
            "vlan = [7, 9]",
            "vlan = 100",
            "34:13: circuit `blue-lan` selects the same packets; change the interface",
        ),
        (
            "vlan = [7, 9]",
            "vlan = [100, 9]",
            "34:13: circuit `blue-lan` uses a VLAN inside this circuit's VLAN",
        ),
        ("core = [\"core0\"]", "core = [\"eth1\"]", "41:13: `eth1` is a core interface; customers and"),
        (
            "to = \"192.0.2.2\"",
            "to = \"192.0.2.2\", from = \"::1\"",
            "7:10: the ends of this tunnel have different IP versions; remove `from`",
        ),
        (
            "control = \"i2vfc\"",
            "control = { kind = \"i2vfc\", reference = \"blue\" }",
            "21:41: unknown reference `blue`; define it with [reference.blue]",
        ),
        (
            "mtu = \"1496 B\"",
            "mtu = 1496",
            "11:7: expected a size such as \"64 KiB\", found the number 1496; write a string with the unit",
        ),
        (
            "kind = \"mpls-in-udp\", ",
            "",
            "7:10: missing field `kind` in tunnel; add `kind`: \"mpls-in-udp\" or \"mpls\"",
        ),
        ("mtu = \"1400 B\"", "mac = \"01:00:00:00:00:01\"", "44:7: expected a unicast MAC address such as"),
        (
            "rate = \"5 Mbit/s\" }",
            "rate = \"5 Mbit/s\" }\nwhen_silent = \"open\"\nminimum = \"1 Mbit/s\"",
            "26:15: `when_silent` needs control \"i2vfc\": no other control queries the peer; remove it",
        ),
        (
            "minimum = \"1 Mbit/s\"",
            "minimum = \"1 Mbit/s\"\nmaximum = \"500 kbit/s\"",
            "19:11: `minimum` exceeds `maximum`; lower `minimum`",
        ),
        (
            "mtu = \"1496 B\"",
            "keys = [{ number = 3, file = \"a\" }, { number = 3, file = \"b\" }]",
            "11:37: two keys have the number 3; messages identify keys by number",
        ),
        ("dscp = [46]", "dscp = [64]", "20:22: expected a whole number from 0 to 63, found the number 64; "),
        (
            "control = \"i2vfc\"",
            "control = { kind = \"i2vfc\", report_within = \"1 s\" }",
            "21:45: a time must be from 1 ms to 500 ms, found \"1 s\"; ",
        ),
        ("metrics", "metrisc", "4:1: unknown field `metrisc` in [pe]; did you mean `metrics`?"),
    ] {
        let found = problems(from, to);
        if !found.contains(expected) {
            wrong.push(format!("{from} → {to}:\n{found}\nexpected\n{expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

const ALICE: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";

#[test]
fn a_peer_is_encrypted_or_trusted_and_never_neither() {
    let mut wrong = Vec::new();
    let encryption = format!("encryption = {{ public_key = \"{ALICE}\" }}");
    let trust = "to = \"192.0.2.2\" }\ntrusted = true";
    for (from, to, expected) in [
        (
            trust,
            "to = \"192.0.2.2\" }\n",
            "6:7: peer `west` is neither encrypted nor trusted; set encryption = {",
        ),
        (
            "trusted = true\n[peer.north]",
            &*format!("{encryption}\n[peer.north]"),
            "8:14: peer `west` is encrypted, but this router has no private key; set private_key = \"FILE\" in [pe]",
        ),
        (
            "trusted = true\n[peer.north]",
            "encryption = { public_key = \"abc\" }\n[peer.north]",
            "8:29: expected a public key of 44 characters, as printed by `netstage pe key`",
        ),
        (
            "mtu = \"1496 B\"",
            &*format!("mtu = \"1496 B\"\n{encryption}"),
            "12:14: peer `north` has both `encryption` and `trusted`; remove `trusted`",
        ),
        (
            "mtu = \"1496 B\"\ntrusted = true",
            &*format!("mtu = \"1496 B\"\n{encryption}"),
            "12:14: MPLS on Ethernet cannot be encrypted; use tunnel kind \"mpls-in-udp\"",
        ),
    ] {
        let found = problems(from, to);
        if !found.contains(expected) {
            wrong.push(format!("{from} → {to}:\n{found}\nexpected\n{expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let text = VALID.replacen(trust, &format!("to = \"192.0.2.2\" }}\n{encryption}"), 1);
    let text = text.replacen("[pe]\n", "[pe]\nprivate_key = \"keys/pe.key\"\nencryption_port = 4500\n", 1);
    let router = parse("/etc/netstage/pe.toml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    let public_key = parse_key(ALICE).unwrap();
    assert_eq!(router.peers[1].protection, PeerProtection::Encrypted { public_key, port: 51_820 });
    assert_eq!((router.peers[0].protection, router.encryption_port), (PeerProtection::Trusted, 4_500));
    assert_eq!(router.private_key.as_deref(), Some(Path::new("/etc/netstage/keys/pe.key")));
    for (from, to, expected) in [
        ("core = [\"core0\"]", "core = [\"core0\"]\ncores = 2", "cannot be divided among `cores`"),
        (
            "encryption_port = 4500",
            "encryption_port = 6635",
            "4:19: port 6635 is that of unencrypted MPLS-in-UDP",
        ),
    ] {
        let found = problems_of(&text, from, to);
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn settings_that_deliver_packets_to_a_wrong_vpn_or_router_are_found() {
    for (from, to, expected) in [
        (
            "send = 2003",
            "send = 2001",
            "14:8: label 2001 is already sent to this router by VPN `blue` with peer `west`; packets of both",
        ),
        ("192.0.2.2", "127.0.0.1", "7:10: 127.0.0.1 is an address of this router, not of peer `west`; give"),
        ("192.0.2.2", "::ffff:192.0.2.2", "found \"::ffff:192.0.2.2\""),
        (
            "to = \"192.0.2.2\"",
            "to = \"192.0.2.2\", from = \"192.0.2.2\"",
            "7:10: 192.0.2.2 is an address of this router",
        ),
    ] {
        let found = problems(from, to);
        assert!(found.contains(expected), "{from} → {to}:\n{found}\nexpected\n{expected}");
    }
    // Two names of one router.
    let north = "kind = \"mpls\", next_hop = \"192.0.2.9\", push = 501";
    let text = VALID.replacen(north, "kind = \"mpls-in-udp\", to = \"192.0.2.2\"", 1);
    let found = parse("pe.toml", &text).unwrap_err().to_string();
    assert!(found.contains("label 2001 is already sent to this router by VPN `red` with peer"), "{found}");
    let router =
        parse("pe.toml", &text.replacen("send = 2001\nreceive = 1002", "send = 2009\nreceive = 1002", 1));
    let warnings = router.unwrap_or_else(|errors| panic!("{errors}")).warnings();
    assert_eq!(
        warnings,
        [
            "peers `north` and `west` are one router, 192.0.2.2: packets to one may be meant for another address"
        ]
    );
    assert_eq!(parse("pe.toml", VALID).unwrap().warnings(), [""; 0]);
}

const REFERENCES: &str = r#"
[pe]
core = ["core0"]

[peer.west]
tunnel = { kind = "mpls-in-udp", to = "192.0.2.2" }
trusted = true
[peer.north]
tunnel = { kind = "mpls-in-udp", to = "192.0.2.3" }
trusted = true
[vpn.red.peer.west]
send = 2001
receive = 1001
control = { kind = "i2vfc", decrease = 0.1 }

[vpn.blue.peer.west]
send = 2002
receive = 1002
control = { kind = "i2vfc", reference = "silver" }

[reference.gold]
number = 7
flow = { vpn = "red", peer = "west" }
publish_to = ["north"]

[reference.silver]
number = 8
from = "west"
"#;

#[test]
fn references_are_parsed() {
    let router = parse("pe.toml", REFERENCES).unwrap();
    let [gold, silver] = &router.references[..] else { panic!("{:?}", router.references) };
    assert_eq!((gold.name.as_str(), gold.number, silver.number), ("gold", 7, 8));
    assert_eq!(gold.source, ReferenceSource::Flow { vpn: 1, peer: 1, publish_to: vec![0] });
    assert_eq!(silver.source, ReferenceSource::Peer(1));
    let [blue, red] = &router.vpns[..] else { panic!("{:?}", router.vpns) };
    assert_eq!((blue.flows[0].reference(), red.flows[0].reference()), (Some(1), None));
}

#[test]
fn errors_of_references_contain_position_and_remedy() {
    let mut wrong = Vec::new();
    for (from, to, expected) in [
        (
            "reference = \"silver\"",
            "reference = \"sliver\"",
            "19:41: unknown reference `sliver`; did you mean `silver`?",
        ),
        ("number = 8", "number = 7", "27:10: number 7 is already used by reference `gold`; routers identify"),
        ("number = 8", "number = 0", "27:10: expected a whole number from 1 to 4294967295"),
        ("from = \"west\"", "from = \"wets\"", "28:8: unknown peer `wets`; did you mean `west`?"),
        ("from = \"west\"", "", "26:12: reference `silver` needs either `flow` or `from`; flow = {"),
        ("publish_to = [\"north\"]", "from = \"north\"", "23:8: reference `gold` needs either `flow`"),
        (
            "from = \"west\"",
            "from = \"west\"\npublish_to = [\"north\"]",
            "29:15: a reference from a peer cannot be published; list all",
        ),
        ("vpn = \"red\"", "vpn = \"rde\"", "23:16: unknown vpn `rde`; did you mean `red`?"),
        (
            "peer = \"west\" }",
            "peer = \"north\" }",
            "23:8: VPN `red` has no flow with peer `north`; define it with [vpn.red.peer.north]",
        ),
        ("[\"north\"]", "[\"nroth\"]", "24:15: unknown peer `nroth`; did you mean `north`?"),
        ("[reference.silver]", "[reference.gold]", "26:12: duplicate name `gold`; rename it"),
        ("[\"north\"]", "[\"north\", \"north\"]", "24:24: peer `north` is listed twice; remove one"),
        (
            "decrease = 0.1",
            "increase = 0.1",
            "23:8: this flow cannot be a reference: its own decrease depends on its weight; set a fixed decrease, such as vpn.red.peer.west.control.decrease",
        ),
        (
            "control = { kind = \"i2vfc\", decrease = 0.1 }",
            "control = \"none\"",
            "23:8: this flow cannot be a reference: its control is not",
        ),
        (
            "control = { kind = \"i2vfc\", decrease = 0.1 }",
            "control = { kind = \"i2vfc\", decrease = 0.1 }\nweight = 1e12",
            "24:8: the weight of a reference must be from",
        ),
        (
            "reference = \"silver\"",
            "reference = \"silver\", nominal = { weight = 2 }",
            "`nominal` has no effect here; it applies to",
        ),
        ("[reference.gold]", "[reference.nominal]", "21:12: `nominal` is reserved: choose another name"),
    ] {
        let found = problems_of(REFERENCES, from, to);
        if !found.contains(expected) {
            wrong.push(format!("{from} → {to}:\n{found}\nexpected\n{expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn rate_consensus_needs_weights_only() {
    let paced =
        |fields: &str| VALID.replace("[vpn.blue.peer.west]", &format!("[vpn.blue.peer.west]\n{fields}"));
    let membership = |text: &str| {
        let router = parse("pe.toml", text).unwrap_or_else(|errors| panic!("{errors}"));
        match &router.vpns[0].flows[0].settings.control {
            VpnControl::RateConsensus(membership) => membership.clone(),
            control => panic!("{control:?}"),
        }
    };
    let CoreMembership::Path(path) = membership(&paced("weight = 4")) else { panic!("no links are known") };
    assert!(path >= FIRST_PATH);
    assert_eq!(membership(VALID), CoreMembership::Path(path));
    let other = VALID.replace("send = 2001", "send = 77");
    assert_ne!(membership(&other), CoreMembership::Path(path), "the label identifies the path");
    let listed = membership(&paced("control = \"rate-consensus\"\nlinks = [9, 4, 9]"));
    assert_eq!(listed, CoreMembership::Links(vec![4, 9]));
    assert!(parse("pe.toml", VALID).unwrap().peers.iter().all(|peer| peer.news));
    for (fields, expected) in [
        ("control = \"i2vfc\"\nlinks = [1]", "`links` needs control \"rate-consensus\""),
        ("control = \"rate-consensus\"\nlinks = []", "links"),
        ("control = { kind = \"rate-consensus\", increase = 1 }", "increase"),
    ] {
        let found = parse("pe.toml", &paced(fields)).unwrap_err().to_string();
        assert!(found.contains(expected), "{fields}:\n{found}");
    }
}
