//! Golden messages: text and place of every fault.
//!
//! Every case of `messages.txt` changes a valid scenario: `-` lines are replaced by `+` lines, or an option is given.
//! The expected messages follow. `BLESS=1` regenerates them; review the diff.

use netstage_scenario::{LoadOptions, parse};

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

fn messages(options: &LoadOptions, text: &str) -> String {
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
fn every_fault_is_reported_with_its_place() {
    assert_eq!(messages(&LoadOptions::default(), GOOD), "no error\n");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/messages.txt");
    let golden = std::fs::read_to_string(path).unwrap();
    let mut all = Vec::new();
    for case in golden.split("=== ").skip(1) {
        let lines = |sign| case.lines().filter_map(move |line: &str| line.strip_prefix(sign));
        let text = |sign| lines(sign).collect::<Vec<_>>().join("\n");
        let (from, to) = (text("- "), text("+ "));
        assert!(GOOD.contains(&from), "{case}");
        let sets = lines("--set ").map(|set| set.split_once('=').unwrap());
        let sets = sets.map(|(path, value)| (path.to_owned(), value.to_owned())).collect();
        let message =
            messages(&LoadOptions { sets, ..LoadOptions::default() }, &GOOD.replacen(&from, &to, 1));
        assert_ne!(message, "no error\n", "{case}");
        let is_change = |line: &&str| ["- ", "+ ", "--set "].iter().any(|sign| line.starts_with(sign));
        let (title, change) = case.split_once('\n').unwrap();
        let change: Vec<&str> = change.lines().take_while(is_change).collect();
        let found = format!("=== {title}\n{}\n{message}", change.join("\n"));
        if std::env::var_os("BLESS").is_none() {
            assert_eq!(found.trim_end(), format!("=== {case}").trim_end());
        }
        all.push(found);
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, all.join("\n") + "\n").unwrap();
    }
}

#[test]
fn faults_of_variants_are_reported_with_the_others() {
    let text = GOOD
        .replace("ends = [\"out\", \"b\"]", "ends = [\"out\", \"bb\"]")
        .replace("at_least = 0.5", "at_least = 0.5\ncells = { variant = \"hevy\" }")
        + "[expect.more]\nmetric = \"fairness.inter_vpn\"\nabove_variant = \"lght\"\n"
        + "[variant.heavy]\nset = { \"vpn.one.weight\" = \"heavy\" }\n"
        + "[variant.light]\nset = { \"vpn.one.wieght\" = 1 }\n";
    let errors = parse("case.toml", &text, None, &LoadOptions::default()).unwrap_err();
    let found: Vec<(usize, &str)> = errors.problems.iter().map(|p| (p.line, p.message.as_str())).collect();
    let line = |expected: &str| text.lines().position(|line| line.contains(expected)).unwrap() + 1;
    let expected = [
        (line("\"bb\""), "unknown node `bb`"),
        (line("hevy"), "no cell has variant = hevy"),
        (line("lght"), "unknown variant `lght`"),
        (line("\"heavy\""), "expected a number above 0, \"max-min\" or \"proportional\", found \"heavy\""),
        (line("wieght"), "unknown path `vpn.one.wieght`: unknown field `wieght` in a VPN"),
    ];
    for problem in expected {
        assert!(found.contains(&problem), "{problem:?} is missing in\n{errors}");
    }

    // Unknown subjects are reported, too.
    let text = GOOD.replace("subject = \"tcp[*]\"", "subject = \"tpc[*]\"")
        + "[variant.heavy]\nset = { \"vpn.one.wieght\" = 5 }\n";
    let errors = parse("case.toml", &text, None, &LoadOptions::default()).unwrap_err();
    let found: Vec<&str> = errors.problems.iter().map(|p| p.message.as_str()).collect();
    assert_eq!(
        found,
        [
            "no subject of `flow.throughput` matches `tpc[*]`",
            "unknown path `vpn.one.wieght`: unknown field `wieght` in a VPN"
        ]
    );
}

#[test]
fn a_faulty_variant_causes_no_further_messages() {
    let text = GOOD.to_owned()
        + "[expect.more]\nmetric = \"fairness.inter_vpn\"\nabove_variant = \"heavy\"\n"
        + "[expect.less]\nmetric = \"fairness.inter_vpn\"\nat_least = 0.5\ncells = { variant = \"light\" }\n"
        + "[variant.heavy]\nset = { \"vpn.one.weight\" = \"heavy\" }\n"
        + "[variant.light]\nsweeep = false\n";
    let errors = parse("case.toml", &text, None, &LoadOptions::default()).unwrap_err();
    let found: Vec<&str> = errors.problems.iter().map(|p| p.message.as_str()).collect();
    assert_eq!(
        found,
        [
            "expected a number above 0, \"max-min\" or \"proportional\", found \"heavy\"",
            "unknown field `sweeep` in a variant"
        ]
    );
}

#[test]
fn all_faults_are_reported_at_once() {
    let text = GOOD
        .replace("delay = \"5 ms\"", "dealy = \"5 ms\"")
        .replace("count = 3", "count = 0")
        .replace("ends = [\"out\", \"b\"]", "ends = [\"out\", \"bb\"]")
        .replace("metric = \"flow.throughput\"", "metric = \"flow.throughputs\"");
    let errors = parse("case.toml", &text, None, &LoadOptions::default()).unwrap_err();
    let lines: Vec<usize> = errors.problems.iter().map(|p| p.line).collect();
    let line = |start: &str| text.lines().position(|l| l.starts_with(start)).unwrap() + 1;
    let expected =
        ["dealy", "ends = [\"out\", \"bb\"]", "count = 0", "metric = \"flow.throughputs\""].map(line);
    for line in expected {
        assert!(lines.contains(&line), "{errors}");
    }
}

#[test]
fn a_value_that_cannot_be_read_hides_no_fault_of_the_next() {
    for values in [["-1", "\"router\""], ["\"router\"", "-1"]] {
        let vary = vec![("node.in.kind".to_owned(), values.map(str::to_owned).to_vec())];
        let errors = parse("case.toml", GOOD, None, &LoadOptions { vary, ..LoadOptions::default() });
        let errors = errors.unwrap_err().to_string();
        for fault in ["found the number -1", "`in` is not a PE"] {
            assert!(errors.contains(fault), "{values:?}: {errors}");
        }
    }
}

#[test]
fn routing_that_cannot_converge_is_found_before_the_run() {
    let text = r#"
[scenario]
title = "parts"
duration = "10 s"
[node.h1]
[node.h2]
[node.e1]
kind = "router"
[node.e2]
kind = "router"
[node.c1]
kind = "router"
[node.c2]
kind = "router"
[link.a]
ends = ["h1", "e1"]
rate = "1 Gbit/s"
[link.b]
ends = ["e1", "c1"]
rate = "1 Gbit/s"
[link.c]
ends = ["c2", "e2"]
rate = "1 Gbit/s"
[link.d]
ends = ["e2", "h2"]
rate = "1 Gbit/s"
[flow.f]
from = "h1"
to = "h2"
[service.provider]
program = "frr"
core = ["c1", "c2"]
edges = { e1 = 65001, e2 = 65002 }
"#;
    let errors = parse("case.toml", text, None, &LoadOptions::default()).unwrap_err();
    assert!(errors.to_string().contains("the core has no path from `e1` to `e2`"), "{errors}");
    let linked = format!("{text}[link.core]\nends = [\"c1\", \"c2\"]\nrate = \"1 Gbit/s\"\n");
    let linked = parse("case.toml", &linked, None, &LoadOptions::default());
    assert!(linked.is_ok(), "{}", linked.unwrap_err());
}

#[test]
fn faults_of_a_route_server_are_reported() {
    let text = r#"
[scenario]
duration = "10 s"
[defaults.link]
rate = "1 Gbit/s"
[node.ix]
kind = "lan"
[node.server]
[node.far]
[node.m]
count = 3
[link.m]
ends = ["m", "ix"]
[link.server]
ends = ["server", "ix"]
[service.exchange]
program = "bird"
server = "server"
members = { m = 65001 }
routes = 100
import_limit = 150
schedule = [{ at = "1 s", action = "leak", member = "m2", routes = 200 }]
"#;
    assert_eq!(messages(&LoadOptions::default(), text), "no error\n");
    for (from, to, message) in [
        ("ends = [\"server\", \"ix\"]", "ends = [\"server\", \"far\"]", "no link connects `server` to a LAN"),
        ("{ m = 65001 }", "{ m1 = 65001 }", "list at least two"),
        ("{ m = 65001 }", "{ m = 65001, server = 1 }", "`server` is the route server"),
        ("{ m = 65001 }", "{ m = 65001, far = 1 }", "no link connects `far` to the LAN `ix`"),
        ("{ m = 65001 }", "{ m = 65001, m4 = 1 }", "unknown node `m4`"),
        ("member = \"m2\"", "member = \"far\"", "`far` is no member of the route server"),
        ("at = \"1 s\"", "at = \"10 s\"", "this is after the end of the run"),
        ("routes = 200 }", "routes = 201 }", "the other members announce only 200 prefixes"),
        ("import_limit = 150", "import_limit = 50", "members exceed `import_limit` from the start"),
        ("routes = 100\n", "routes = 1000000\n", "set at least the number of `routes`"),
        ("import_limit = 150", "limit_action = \"restart\"", "restart"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        let found = messages(&LoadOptions::default(), &changed);
        assert!(found.contains(message) && found.contains("case.toml:"), "{from} {to}: {found}");
    }
    let large = text
        .replace("routes = 100\nimport_limit = 150", "routes = 1000000")
        .replace("count = 3", "count = 9");
    let found = messages(&LoadOptions::default(), &large);
    assert!(found.contains("more than the 6488064 between 1.0.0.0 and 100.0.0.0"), "{found}");
}
