//! What people are told about their mistakes, word for word and place for place.
//!
//! Every case of `messages.txt` changes one thing in a scenario without fault: `-` lines become `+` lines, or
//! an option is given. Below stand the messages; run with `BLESS=1` to write them anew, and read the difference.

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
        let message = told(&Options { sets, ..Options::default() }, &GOOD.replacen(&from, &to, 1));
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
