//! What people are told about their mistakes, word for word and place for place.
//!
//! Every case changes one thing in a scenario without fault. The messages are in
//! `messages.txt`; run with `BLESS=1` to write them anew, and read the difference.

use netstage_scenario::{Options, parse};

const GOOD: &str = r#"[scenario]
title = "A good one"
duration = "10 s"

[defaults.link]
rate = "100 Mbit/s"

[node.a]
[node.b]
[node.r]
kind = "router"
[node.in]
kind = "pe"
[node.out]
kind = "pe"

[link.a]
ends = ["a", "in"]
[link.core]
ends = ["in", "r"]
delay = "5 ms"
[link.far]
ends = ["r", "out"]
[link.b]
ends = ["out", "b"]

[vpn.one]
weight = 1
ingress = "in"
egress = "out"
control = { kind = "i2vfc", decrease = 0.1 }
[vpn.two]
weight = 2
ingress = "in"
egress = "out"
control = { kind = "i2vfc", reference = "one" }

[flow.tcp]
from = "a"
to = "b"
vpn = "one"
count = 3
[flow.udp]
from = "a"
to = "b"
transport = "udp"
traffic = { model = "cbr", rate = "1 Mbit/s", packet = "500 B" }

[sweep]
"vpn.two.weight" = [2, 3]

[expect.fair]
metric = "fairness.inter_vpn"
over = ["2 s", "10 s"]
at_least = 0.5

[plot.rates]
metric = "flow.throughput"
subject = "tcp[*]"
"#;

/// What is replaced, and by what.
const CASES: &[(&str, &str)] = &[
    // Syntax.
    ("duration = \"10 s\"", "duration = \"10 s"),
    ("[node.b]", "[node.a]"),
    ("delay = \"5 ms\"", "delay = \"5 ms\"\ndelay = \"6 ms\""),
    // Unknown names of fields and tables, at every depth.
    ("[scenario]", "[scenarios]\nx = 1\n[scenario]"),
    ("title = ", "titel = "),
    ("delay = \"5 ms\"", "rrate = \"50 Mbit/s\""),
    ("delay = \"5 ms\"", "jitter = { amount = \"1 ms\", reoder = true }"),
    ("delay = \"5 ms\"", "queue = { kind = \"red\", min_treshold = 5 }"),
    ("delay = \"5 ms\"", "schedule = [{ at = \"1 s\", up = false }, { at = \"2 s\", upp = true }]"),
    ("delay = \"5 ms\"", "reverse = { dely = \"5 ms\" }"),
    ("rate = \"100 Mbit/s\"", "rate = \"100 Mbit/s\"\nbufer = \"5 packets\""),
    ("decrease = 0.1 }", "decrease = 0.1, nominal = { wieght = 1 } }"),
    ("kind = \"i2vfc\", decrease = 0.1", "kind = \"fixed-rate\", decrease = 0.1"),
    ("count = 3", "tcp = { sac = true }"),
    ("packet = \"500 B\"", "pakcet = \"500 B\""),
    ("subject = \"tcp[*]\"", "reference_lines = [{ valeu = 1 }]"),
    // Unknown words.
    ("kind = \"router\"", "kind = \"ruoter\""),
    ("kind = \"router\"", "kind = \"external\""),
    // Gateways and devices.
    ("kind = \"router\"", "kind = \"wireguard\""),
    ("kind = \"router\"", "kind = \"router\"\ncipher = \"aes-128-gcm\""),
    ("kind = \"router\"", "kind = \"wireguard\"\ncipher = \"3des-sha1\""),
    ("kind = \"router\"", "kind = \"ipsec\"\ncipher = \"3des\""),
    ("kind = \"router\"", "kind = \"router\"\ndevice = { rate = \"1 Gbit/s\" }"),
    ("delay = \"5 ms\"", "queue = \"fqcodel\""),
    ("kind = \"i2vfc\", decrease = 0.1", "kind = \"i2fvc\", decrease = 0.1"),
    ("count = 3", "tcp = { algorithm = \"new-reno\" }"),
    ("model = \"cbr\"", "model = \"cbx\""),
    ("transport = \"udp\"", "transport = \"upd\""),
    ("at_least = 0.5", "at_least = 0.5\nstatistic = \"median\""),
    // Wrong types.
    ("ends = [\"in\", \"r\"]", "ends = \"in, r\""),
    ("ends = [\"in\", \"r\"]", "ends = [\"in\", \"r\", \"out\"]"),
    ("ends = [\"in\", \"r\"]", "ends = [\"in\", 7]"),
    ("duration = \"10 s\"", "duration = 10"),
    ("count = 3", "count = \"3\""),
    ("count = 3", "count = 2.5"),
    ("count = 3", "background = \"true\""),
    ("delay = \"5 ms\"", "schedule = [{ at = \"1 s\", rate = 50 }]"),
    ("rate = \"100 Mbit/s\"", "rate = 10e6"),
    ("delay = \"5 ms\"", "schedule = { at = \"1 s\", up = false }"),
    ("[node.r]\nkind = \"router\"", "[node]\nr = \"router\""),
    // Routing daemons.
    ("[flow.tcp]", "[service.x]\nprogram = \"frr\"\ncore = [\"r\"]\nedges = { a = 1, b = 2 }\n[flow.tcp]"),
    (
        "[flow.tcp]",
        "[service.x]\nprogram = \"frr\"\ncore = [\"r\", \"r\"]\nedges = { r = 1, bb = 2 }\n[flow.tcp]",
    ),
    ("[flow.tcp]", "[service.x]\nprogram = \"frr\"\ncore = [\"in\"]\nedges = { r = 0, out = 5 }\n[flow.tcp]"),
    (
        "[flow.tcp]",
        "[service.x]\nprogram = \"frr\"\ncore = [\"r\"]\nedges = { in = 1 }\ndead = \"1 s\"\nhello = \"1500 ms\"\n[flow.tcp]",
    ),
    ("[flow.tcp]", "[service.x]\nprogram = \"frr\"\nedges = { in = 1, r = 2 }\n[flow.tcp]"),
    (
        "[flow.tcp]",
        "[node.ix]\nkind = \"lan\"\n[link.r]\nends = [\"ix\", \"r\"]\n[node.q]\nkind = \"router\"\n\
         [service.x]\nprogram = \"frr\"\nedges = { q = 1, r = 2 }\n[flow.tcp]",
    ),
    (
        "[flow.tcp]",
        "[node.ix]\nkind = \"lan\"\n[link.r]\nends = [\"ix\", \"r\"]\n[node.q]\nkind = \"router\"\n[link.q]\n\
         ends = [\"q\", \"ix\"]\n[service.x]\nprogram = \"frr\"\nedges = { q = 1, r = 2 }\ndead = \"2 s\"\n[flow.tcp]",
    ),
    // LANs.
    ("[node.r]\nkind = \"router\"", "[node.r]\nkind = \"router\"\narp_timeout = \"2 s\""),
    (
        "[node.r]\nkind = \"router\"",
        "[node.r]\nkind = \"lan\"\n[node.s]\nkind = \"lan\"\n[link.rs]\nends = [\"r\", \"s\"]",
    ),
    (
        "[node.r]\nkind = \"router\"",
        "[node.r]\nkind = \"lan\"\n[link.ra]\nends = [\"r\", \"a\"]\nkind = \"tun\"",
    ),
    (
        "[node.r]\nkind = \"router\"",
        "[node.r]\nkind = \"lan\"\n[link.ra]\nends = [\"r\", \"a\"]\nkind = \"serial\"",
    ),
    // Units.
    ("rate = \"100 Mbit/s\"", "rate = \"100 Mbps\""),
    ("rate = \"100 Mbit/s\"", "rate = \"12.5 MB/s\""),
    ("rate = \"100 Mbit/s\"", "rate = \"100\""),
    ("rate = \"100 Mbit/s\"", "rate = \"100 ms\""),
    ("rate = \"100 Mbit/s\"", "rate = \"fast\""),
    ("rate = \"100 Mbit/s\"", "rate = \"100 Mbit/s\"\nbuffer = \"64 KB\""),
    ("duration = \"10 s\"", "duration = \"10 seconds\""),
    ("delay = \"5 ms\"", "delay = \"0.5 ns\""),
    // Ranges.
    ("rate = \"100 Mbit/s\"", "rate = \"0 Mbit/s\""),
    ("rate = \"100 Mbit/s\"", "rate = \"-5 Mbit/s\""),
    ("duration = \"10 s\"", "duration = \"0 s\""),
    ("delay = \"5 ms\"", "loss = 1.5"),
    ("delay = \"5 ms\"", "loss = \"150 %\""),
    ("delay = \"5 ms\"", "ber = -1e-6"),
    ("weight = 1", "weight = 0"),
    ("weight = 1", "weight = -1"),
    ("weight = 1", "weight = inf"),
    ("decrease = 0.1", "decrease = 1.0"),
    ("count = 3", "count = 0"),
    ("count = 3", "count = 1000000\nstagger = \"1 us\"\n[measure]\ninterval = \"1 ms\""),
    ("packet = \"500 B\"", "packet = \"70 kB\""),
    // Missing.
    ("duration = \"10 s\"", ""),
    ("ends = [\"in\", \"r\"]", ""),
    ("rate = \"100 Mbit/s\"", ""),
    ("egress = \"out\"\ncontrol = { kind = \"i2vfc\", decrease", "control = { kind = \"i2vfc\", decrease"),
    (
        "control = { kind = \"i2vfc\", decrease = 0.1 }\n[vpn.two]\nweight = 2\ningress = \"in\"\negress = \"out\"\ncontrol = { kind = \"i2vfc\", reference = \"one\" }",
        "control = \"none\"\nwhen_silent = \"open\"\nminimum = \"1 Mbit/s\"\n[vpn.two]\nweight = 2\ningress = \"in\"\negress = \"out\"",
    ),
    (
        "control = { kind = \"i2vfc\", reference",
        "minimum = \"2 Mbit/s\"\nmaximum = \"1 Mbit/s\"\ncontrol = { kind = \"i2vfc\", reference",
    ),
    (
        "control = { kind = \"i2vfc\", reference",
        "classes = [{ dscp = [64] }]\ncontrol = { kind = \"i2vfc\", reference",
    ),
    ("reference = \"one\"", "reference = \"one\", idle_probe = \"10 ms\""),
    ("model = \"cbr\", ", ""),
    ("at_least = 0.5", ""),
    // References and topology.
    ("ends = [\"in\", \"r\"]", "ends = [\"in\", \"rr\"]"),
    ("ends = [\"in\", \"r\"]", "ends = [\"in\", \"in\"]"),
    ("vpn = \"one\"", "vpn = \"oen\""),
    ("from = \"a\"\nto = \"b\"\nvpn", "from = \"r\"\nto = \"b\"\nvpn"),
    ("to = \"b\"\nvpn", "to = \"a\"\nvpn"),
    ("ingress = \"in\"", "ingress = \"r\""),
    ("reference = \"one\"", "reference = \"on\""),
    ("decrease = 0.1 }", "decrease = \"from-weight\" }"),
    ("kind = \"i2vfc\", decrease = 0.1", "kind = \"none\""),
    ("[link.far]\nends = [\"r\", \"out\"]", ""),
    ("transport = \"udp\"", "transport = \"udp\"\nvia = [\"in\", \"out\"]"),
    ("transport = \"udp\"", "transport = \"udp\"\nvia = [\"in\", \"r\", \"in\", \"r\", \"out\"]"),
    ("vpn = \"one\"", "vpn = \"one\"\nvia = [\"in\", \"r\"]"),
    ("weight = 1\n", "weight = \"max-min\"\n"),
    // Times and traffic.
    ("count = 3", "start = \"20 s\""),
    ("count = 3", "start = \"5 s\"\nstop = \"4 s\""),
    ("traffic = { model = \"cbr\", rate = \"1 Mbit/s\", packet = \"500 B\" }", "traffic = \"bulk\""),
    ("count = 3", "traffic = { model = \"cbr\", rate = \"1 Mbit/s\", layer = \"ip\" }"),
    ("transport = \"udp\"", "transport = \"udp\"\ntcp = { sack = true }"),
    ("count = 3", "tcp = { algorithm = \"aimd\" }"),
    ("count = 3", "tcp = { sack = false, loss_detection = \"rack\" }"),
    ("count = 3", "tcp = { increase = 1 }"),
    ("count = 3", "tcp = { window = \"1 kB\" }"),
    (
        "traffic = { model = \"cbr\", rate = \"1 Mbit/s\", packet = \"500 B\" }",
        "traffic = { model = \"trace\", file = \"/etc/passwd\" }",
    ),
    // Applications and transports.
    ("count = 3", "traffic = \"voip\""),
    (
        "packet = \"500 B\" }",
        "packet = \"500 B\" }\n[flow.page]\nfrom = \"a\"\nto = \"b\"\ntransport = \"udp\"\ntraffic = \"web\"",
    ),
    ("count = 3", "traffic = \"ftpp\""),
    ("count = 3", "traffic = { model = \"web\", protocol = \"http2\", connections = 3 }"),
    ("count = 3", "traffic = { model = \"video\", share = 0.5 }"),
    ("count = 3", "traffic = { model = \"video\", rates = [\"2 Mbit/s\", \"1 Mbit/s\"] }"),
    ("count = 3", "traffic = { model = \"request-response\", think = \"1 s\", per_second = 5 }"),
    ("count = 3", "traffic = { model = \"request-response\", request = \"1 B\" }"),
    ("count = 3", "traffic = { model = \"learned\", file = \"../model.json\" }"),
    ("count = 3", "transport = \"icmp-echo\"\ntraffic = \"dns\""),
    ("count = 3", "transport = \"icmp-echo\"\ntraffic = \"bulk\""),
    ("transport = \"udp\"", "transport = \"udp\"\nmulticast = { group = \"239.1.2.3\" }"),
    ("transport = \"udp\"", "transport = \"multicast\"\nmulticast = { group = \"10.1.2.3\" }"),
    ("transport = \"udp\"", "transport = \"multicast\"\nip = \"v6\"\nmulticast = { group = \"239.1.2.3\" }"),
    ("to = \"b\"\ntransport = \"udp\"", "to = [\"b\", \"a\"]\ntransport = \"multicast\""),
    ("transport = \"udp\"", "transport = \"multicast\"\nmulticast = { group = \"224.0.0.5\" }"),
    ("transport = \"udp\"", "transport = \"multicast\"\nip = \"v6\"\nmulticast = { group = \"ff12::5\" }"),
    ("transport = \"udp\"", "transport = \"multicast\"\nudp = { compare = true }"),
    (
        "[flow.udp]\nfrom = \"a\"\nto = \"b\"\ntransport = \"udp\"",
        "[node.c]\n[link.c]\nends = [\"a\", \"c\"]\n\
         [flow.udp]\nfrom = \"a\"\nto = [\"b\", \"c\"]\ntransport = \"multicast\"",
    ),
    (
        "[flow.udp]\nfrom = \"a\"\nto = \"b\"\ntransport = \"udp\"",
        "[node.x]\nkind = \"router\"\n[link.x]\nends = [\"in\", \"x\"]\n[link.y]\nends = [\"x\", \"far\"]\n\
         [node.far]\nkind = \"pe\"\n[link.z]\nends = [\"far\", \"out\"]\n\
         [vpn.long]\ningress = \"in\"\negress = \"far\"\n[node.c]\n[link.c]\nends = [\"c\", \"out\"]\n\
         [flow.udp]\nfrom = \"a\"\nto = [\"b\", \"c\"]\nvpn = \"long\"\ntransport = \"multicast\"",
    ),
    (
        "[flow.udp]\nfrom = \"a\"\nto = \"b\"\ntransport = \"udp\"",
        "[expect.whole]\nmetric = \"flow.sent\"\nsubject = \"udp\"\nat_least = 0\n\
         [expect.lost]\nmetric = \"flow.lost\"\nsubject = \"udp\"\nat_most = 0\n\
         [expect.one]\nmetric = \"flow.lost\"\nsubject = \"udp@c\"\nat_most = 0\n\
         [node.c]\n[link.c]\nends = [\"c\", \"out\"]\n\
         [flow.udp]\nfrom = \"a\"\nto = [\"b\", \"c\"]\ntransport = \"multicast\"",
    ),
    ("to = \"b\"\ntransport = \"udp\"", "to = [\"b\", \"b\"]\ntransport = \"udp\""),
    ("transport = \"udp\"", "transport = \"udp\"\nip = \"v6\"\nudp = { checksum = false }"),
    ("count = 3", "udp = { batch = 8 }"),
    ("transport = \"udp\"", "transport = \"quic\"\ntcp = { sack = true }"),
    // Sweeps, variants, expectations, plots.
    ("\"vpn.two.weight\"", "\"vpn.two.wieght\""),
    ("\"vpn.two.weight\"", "\"vpn.z*.weight\""),
    ("\"vpn.two.weight\"", "vpn.two.weight"),
    ("[2, 3]", "2"),
    ("[2, 3]", "[2, \"heavy\"]"),
    ("[2, 3]", "[]"),
    ("[2, 3]", "[2, 3, 2.0]"),
    ("duration = \"10 s\"", "duration = \"10 s\"\nseed = 9_007_199_254_740_990\nrepeat = 3"),
    ("[sweep]", "[variant.v]\nset = { \"vpn.two.weight\" = 5 }\n[sweep]"),
    ("metric = \"fairness.inter_vpn\"", "metric = \"fairness.inter-vpn\""),
    ("over = [\"2 s\", \"10 s\"]", "over = [\"2 s\", \"20 s\"]"),
    ("over = [\"2 s\", \"10 s\"]", "over = [\"8 s\", \"2 s\"]"),
    ("at_least = 0.5", "at_least = \"5 Mbit/s\""),
    ("at_least = 0.5", "at_least = 0.5\nat_most = 0.6"),
    ("at_least = 0.5", "near = 0.5"),
    ("at_least = 0.5", "statistic = \"convergence-time\"\nat_most = \"5 s\""),
    ("at_least = 0.5", "above_variant = \"none\""),
    ("at_least = 0.5", "at_least = 0.5\ncells = { \"vpn.two.weight\" = 7 }"),
    ("at_least = 0.5", "at_least = 0.5\ncells = { \"vpn.one.weight\" = 1 }"),
    ("subject = \"tcp[*]\"", "subject = \"tcp\""),
    ("subject = \"tcp[*]\"", "against = \"vpn.one.weight\""),
    ("[node.r]", "[node.\"r.1\"]\n[node.r]"),
    // Tests.
    ("[sweep]", "[test.t]\nkind = \"rfc2455-throughput\"\nfrom = \"a\"\nto = \"b\"\n[sweep]"),
    ("[sweep]", "[test.t]\nkind = \"rfc2544-throughput\"\nfrom = \"a\"\nto = \"c\"\n[sweep]"),
    ("[sweep]", "[test.t]\nkind = \"loss\"\nfrom = \"a\"\nto = \"b\"\n[sweep]"),
    (
        "[sweep]",
        "[test.t]\nkind = \"plateau\"\nfrom = \"a\"\nto = \"b\"\nframe_sizes = [\"60 B\"]\nload = [\"upd\"]\n[sweep]",
    ),
    (
        "[sweep]",
        "[test.t]\nkind = \"mlrsearch\"\nfrom = \"a\"\nto = \"b\"\nresolution = 0\nframe_sizes = [\"64 B\", \"64 B\"]\n[sweep]",
    ),
    (
        "[sweep]",
        "[test.t]\nkind = \"rfc6349\"\nfrom = \"a\"\nto = \"b\"\ntcp = { window = \"1 kB\" }\n[sweep]",
    ),
    (
        "[sweep]",
        "[test.t]\nkind = \"stamp\"\nfrom = \"a\"\nto = \"b\"\ninterval = \"2 s\"\ntrial = \"1 s\"\nframe_size = \"92 B\"\n[sweep]",
    ),
    (
        "metric = \"fairness.inter_vpn\"\nover = [\"2 s\", \"10 s\"]",
        "metric = \"test.plateau\"\nsubject = \"t\"",
    ),
];

const SETS: &[(&str, &str)] = &[
    ("link.core.rate", "50 Mbps"),
    ("link.core.rrate", "50 Mbit/s"),
    ("link.x*.rate", "50 Mbit/s"),
    ("vpn.*.control.decrease", "2"),
    ("scenario.duration.x", "1"),
    ("flow.tcp.tcp.sack", "maybe"),
    ("sweep.x", "1"),
];

fn told(options: &Options, text: &str) -> String {
    match parse("case.toml", text, None, options) {
        Ok(_) => "no error\n".into(),
        Err(errors) => {
            for problem in &errors.problems {
                let source = errors.source_of(problem);
                assert!(source.text.get(problem.span.clone()).is_some(), "{problem:?}");
                let before = &source.text[..problem.span.start];
                assert_eq!(problem.line, before.matches('\n').count() + 1);
            }
            errors.to_string()
        }
    }
}

#[test]
fn every_mistake_is_told_with_its_place() {
    assert_eq!(told(&Options::default(), GOOD), "no error\n");
    let mut all = String::new();
    for (from, to) in CASES {
        assert!(GOOD.contains(from), "{from}");
        let change = if to.is_empty() { format!("without {from}") } else { (*to).to_owned() };
        all.push_str(&format!("=== {}\n", change.replace('\n', " / ")));
        let message = told(&Options::default(), &GOOD.replacen(from, to, 1));
        assert_ne!(message, "no error\n", "{to}");
        all.push_str(&message);
        all.push('\n');
    }
    for (path, value) in SETS {
        let options = Options { sets: vec![((*path).into(), (*value).into())], ..Options::default() };
        all.push_str(&format!("=== --set {path}={value}\n"));
        let message = told(&options, GOOD);
        assert_ne!(message, "no error\n", "{path}={value}");
        all.push_str(&message);
        all.push('\n');
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/messages.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &all).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    for (told, expected) in all.split("\n=== ").zip(golden.split("\n=== ")) {
        assert_eq!(told, expected);
    }
    assert_eq!(all.len(), golden.len());
}

#[test]
fn every_problem_is_told_at_once() {
    let text = GOOD
        .replace("delay = \"5 ms\"", "dealy = \"5 ms\"")
        .replace("count = 3", "count = 0")
        .replace("ends = [\"out\", \"b\"]", "ends = [\"out\", \"bb\"]")
        .replace("metric = \"flow.throughput\"", "metric = \"flow.throughputs\"");
    let errors = parse("case.toml", &text, None, &Options::default()).unwrap_err();
    let lines: Vec<usize> = errors.problems.iter().map(|p| p.line).collect();
    let line = |wanted: &str| text.lines().position(|l| l.starts_with(wanted)).unwrap() + 1;
    let wanted =
        ["dealy", "ends = [\"out\", \"bb\"]", "count = 0", "metric = \"flow.throughputs\""].map(line);
    for line in wanted {
        assert!(lines.contains(&line), "{errors}");
    }
}
