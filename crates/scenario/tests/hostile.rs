//! Robustness: arbitrary text is parsed or refused without a panic.

use netstage_scenario::{LoadOptions, parse};
use proptest::prelude::*;

fn read(text: &str) {
    if let Err(errors) = parse("hostile.toml", text, None, &LoadOptions::default()) {
        assert!(!errors.problems.is_empty());
        let _ = errors.to_string();
    }
}

#[test]
fn depth_and_length_are_bounded() {
    read(&"[a.".repeat(10_000));
    read(&format!("x = {}1{}", "[".repeat(5_000), "]".repeat(5_000)));
    read(&format!("x = {}", "{ a = ".repeat(5_000)));
    read(&"a.".repeat(100_000));
    read(&(0..20_000).map(|i| format!("k{i} = 1\n")).collect::<String>());
    read(&(0..3_000).map(|i| format!("[node.n{i}]\n")).collect::<String>());
    read("\u{feff}[scenario]\nduration = \"1 s\"");
    read("[sweep]\n\"a.b\" = [1]\n\"scenario.title\" = [{}, [], 1979-05-27]");
}

/// Lines of real files in random order.
fn pieces() -> impl Strategy<Value = String> {
    let text = concat!(
        include_str!("../../../scenarios/examples/queues.toml"),
        include_str!("../../../scenarios/examples/fair-two-vpns.toml"),
        include_str!("../../../scenarios/examples/traffic-patterns.toml"),
    );
    let lines: Vec<String> = text.lines().map(|l| format!("{l}\n")).collect();
    proptest::collection::vec(proptest::sample::select(lines), 0..60).prop_map(|lines| lines.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_parsed_or_refused(text in "\\PC{0,200}") {
        read(&text);
    }

    #[test]
    fn shuffled_lines_are_parsed_or_refused(text in pieces()) {
        read(&text);
    }

    #[test]
    fn any_setting_is_applied_or_refused(path in "(link|vpn|flow|node|\\*|defaults|scenario)(\\.[a-z*]{0,8}){0,4}", value in "\\PC{0,20}") {
        let text = include_str!("../../../scenarios/examples/fair-two-vpns.toml");
        let options = LoadOptions { sets: vec![(path.clone(), value.clone())], vary: vec![(path, vec![value])], ..LoadOptions::default() };
        if let Err(errors) = parse("hostile.toml", text, None, &options) {
            let _ = errors.to_string();
        }
    }

    #[test]
    fn a_changed_byte_is_parsed_or_refused(at in 0usize..2_000, byte in "[ -~]") {
        let mut text = include_str!("../../../scenarios/examples/queues.toml").to_owned();
        let at = at.min(text.len() - 1);
        if text.is_char_boundary(at) && text.is_char_boundary(at + 1) {
            text.replace_range(at..at + 1, &byte);
        }
        read(&text);
    }
}
