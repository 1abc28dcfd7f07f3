//! Every scenario of the examples and papers loads, and its rewritten text gives the same plan.

use netstage_core::fair::{Decrease, VpnControl, WeightReference};
use netstage_core::quantity::{BitRate, Capacity};
use netstage_core::queue;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::Pattern;
use netstage_scenario::plan::{FlowTransport, Hop};
use netstage_scenario::{LoadOptions, Scenario, load, parse};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

fn scenarios(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            scenarios(&path, found);
        } else if path.extension().is_some_and(|e| e == "toml") {
            found.push(path);
        }
    }
}

fn example(name: &str, options: &LoadOptions) -> Scenario {
    load(&folder().join("examples").join(name), options).unwrap_or_else(|errors| panic!("{errors}"))
}

fn set(path: &str, value: &str) -> LoadOptions {
    LoadOptions { sets: vec![(path.into(), value.into())], ..LoadOptions::default() }
}

#[test]
fn every_scenario_loads_and_survives_rewriting() {
    let mut found = Vec::new();
    scenarios(&folder(), &mut found);
    assert!(found.len() >= 8);
    for path in found {
        let read = load(&path, &LoadOptions::default()).unwrap_or_else(|errors| panic!("{errors}"));
        assert!(
            !read.title.is_empty() && !read.expectations.is_empty() && !read.plots.is_empty(),
            "{path:?}"
        );
        assert_eq!(read.text, std::fs::read_to_string(&path).unwrap());
        let options = LoadOptions { seed: Some(7), repeat: Some(2), ..LoadOptions::default() };
        let changed = load(&path, &options).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!((changed.seed, changed.repeat), (7, 2));
        let again = parse("again.toml", &changed.text, path.parent(), &LoadOptions::default());
        let again = again.unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(again.cells.len(), read.cells.len());
        for (one, other) in again.cells.iter().zip(&read.cells) {
            assert_eq!(one.variant, other.variant);
            assert_eq!(one.settings, other.settings);
            assert_eq!(one.plan, other.plan);
        }
        assert_eq!(again.expectations, read.expectations);
        assert_eq!(again.plots, read.plots);
    }
}

#[test]
fn a_plan_has_the_values_of_its_file() {
    let plan = &example("two-hosts.toml", &LoadOptions::default()).cells[0].plan;
    let line = &plan.links[0].directions[0];
    assert_eq!((line.rate, line.delay), (BitRate(10_000_000), Duration::from_millis(20)));
    assert_eq!((line.buffer, &line.queue), (Capacity::Packets(50), &queue::QueueConfig::DropTail));
    let flow = &plan.flows[0];
    assert_eq!((flow.start, flow.stop, flow.count), (Instant::ZERO, Instant(20_000_000_000), 1));
    assert_eq!(
        (flow.path.as_slice(), flow.reverse.as_slice()),
        (&[Hop { link: 0, direction: 0 }][..], &[Hop { link: 0, direction: 1 }][..])
    );
    let FlowTransport::Tcp(tcp) = &flow.transport else { panic!("{flow:?}") };
    assert_eq!((tcp.window, tcp.max_segment_size, tcp.sack, tcp.timestamps), (65_536, 1448, true, true));
    assert_eq!(flow.traffic, Pattern::Bulk { size: None }.into());
}

#[test]
fn weights_are_computed_from_the_topology() {
    let scenario = example("parking-lot.toml", &LoadOptions::default());
    let weights = |cell: usize| -> Vec<(String, f64)> {
        scenario.cells[cell].plan.vpns.iter().map(|v| (v.name.clone(), v.settings.weight)).collect()
    };
    let names: Vec<&str> = scenario.cells.iter().map(|c| c.variant.as_str()).collect();
    assert_eq!(names, ["base", "proportional", "uncontrolled"]);
    for (name, weight) in weights(0) {
        let expected = if matches!(name.as_str(), "one" | "three") { 3.0 } else { 1.0 };
        assert!((weight - expected).abs() < 1e-9, "{name} {weight}");
    }
    // Proportional fairness gives less to the long path.
    let proportional = weights(1);
    assert_eq!(proportional[0].1, 1.0);
    assert!(proportional[3].1 > 1.5, "{proportional:?}");
    assert!(scenario.cells[2].plan.vpns.iter().all(|v| v.settings.control == VpnControl::None));
}

#[test]
fn variants_and_sweeps_give_cells_in_order() {
    let queues = example("queues.toml", &LoadOptions::default());
    let names: Vec<&str> = queues.cells.iter().map(|c| c.variant.as_str()).collect();
    assert_eq!(names, ["codel", "drop-tail", "fq-codel", "red"]);
    let flavors = example("tcp-flavours.toml", &LoadOptions::default());
    assert_eq!(flavors.cells.len(), 18);
    let values =
        |cell: usize| -> Vec<&str> { flavors.cells[cell].settings.iter().map(|s| s.1.as_str()).collect() };
    assert_eq!(values(0), ["reno", "false", "0"]);
    assert_eq!(values(1), ["reno", "false", "0.001"]);
    assert_eq!(values(17), ["cubic", "true", "0.01"]);
    assert_eq!(flavors.cells[17].plan.links[0].directions[0].loss, 0.01);
    assert_eq!(flavors.cells[17].plan.links[0].directions[1].loss, 0.0);
}

#[test]
fn the_command_line_changes_the_file() {
    let two = example("fair-windows.toml", &set("vpn.*.control.decrease", "0.2"));
    for vpn in &two.cells[0].plan.vpns {
        let VpnControl::I2vfc(config) = &vpn.settings.control else { panic!("{vpn:?}") };
        assert_eq!(config.decrease, Decrease::Fixed(0.2));
        assert_eq!(matches!(config.reference, WeightReference::Vpn(_)), vpn.name == "gold");
    }
    // A swept path that is set keeps one value. Plots that select other values are left out.
    let fixed = example("tcp-flavours.toml", &set("flow.download.tcp.sack", "false"));
    assert_eq!(fixed.cells.len(), 9);
    assert_eq!(fixed.plots.len(), 1);
    assert!(fixed.warnings.iter().any(|w| w.starts_with("plot.map is left out")), "{:?}", fixed.warnings);
    assert!(parse("again.toml", &fixed.text, None, &LoadOptions::default()).is_ok());
    let short = example("two-hosts.toml", &set("scenario.duration", "10 s"));
    assert!(short.expectations.is_empty() && short.warnings.len() == 2);
    let vary = vec![("link.line.delay".into(), vec!["1 ms".into(), "2 ms".into()])];
    let varied = example("two-hosts.toml", &LoadOptions { vary, ..LoadOptions::default() });
    assert_eq!(varied.cells.len(), 2);
    assert_eq!(varied.cells[1].settings, [("link.line.delay".to_owned(), "2 ms".to_owned())]);
    assert_eq!(varied.cells[1].plan.links[0].directions[0].delay, Duration::from_millis(2));
}

#[test]
fn flows_that_a_failure_cuts_off_for_good_are_listed() {
    let warned = |schedule: &str| example("link-failure.toml", &set("link.line.schedule", schedule)).warnings;
    for schedule in [
        r#"[{ at = "10 s", up = false }]"#,
        r#"[{ at = "10 s", loss = 1 }]"#,
        r#"[{ at = "10 s", ber = 1 }]"#,
        r#"[{ at = "10 s", loss = 1 }, { at = "20 s", up = false }, { at = "30 s", loss = 0 }]"#,
    ] {
        let cut = warned(schedule);
        assert_eq!(cut.len(), 1, "{cut:?}");
        assert!(cut[0].starts_with("flow.backup: link.line carries nothing from 10 s on"), "{cut:?}");
    }
    let lossy = example("link-failure.toml", &set("link.line.loss", "1")).warnings;
    assert!(lossy.iter().any(|one| one.contains("link.line carries nothing from 0 s on")), "{lossy:?}");
    for harmless in [
        r#"[{ at = "10 s", loss = 1 }, { at = "20 s", loss = 0 }]"#,
        r#"[{ at = "10 s", up = false }, { at = "59 s", up = true }]"#,
        r#"[{ at = "60 s", up = false }]"#,
        r#"[{ at = "10 s", rate = "1 Mbit/s" }]"#,
    ] {
        assert_eq!(warned(harmless), Vec::<String>::new(), "{harmless}");
    }
}

#[test]
fn unwise_values_give_warnings() {
    let warned = |path: &str, value: &str| example("fair-windows.toml", &set(path, value)).warnings;
    assert!(warned("vpn.gold.control.increase", "0.5").is_empty());
    assert!(warned("vpn.gold.control.increase", "1")[0].contains("as aggressive as the TCP flows inside"));
    assert!(warned("vpn.gold.control.decrease", "0.5")[0].contains("vpn.gold"));
    assert!(warned("flow.gold.stagger", "10 s")[0].contains("after the end"));
}

/// Routing daemons change the paths of flows, so only a core without any other path cuts a flow off.
#[test]
fn flows_that_a_cut_core_leaves_without_a_path_are_listed() {
    let warned = |schedule: &str| {
        let scenario = format!(
            "[scenario]\ntitle = \"t\"\nduration = \"10 s\"\n[defaults.link]\nrate = \"100 Mbit/s\"\n\
             [defaults.node]\nkind = \"router\"\n[node.a]\nkind = \"host\"\n[node.b]\nkind = \"host\"\n\
             [node.e]\n[node.f]\n[node.c]\n[node.d]\n[node.x]\n\
             [link.a]\nends = [\"a\", \"e\"]\n[link.b]\nends = [\"b\", \"f\"]\n\
             [link.e]\nends = [\"e\", \"c\"]\n[link.f]\nends = [\"f\", \"d\"]\n\
             [link.core]\nends = [\"c\", \"d\"]\nreverse = {{ schedule = [{schedule}] }}\n\
             [link.cx]\nends = [\"c\", \"x\"]\n[link.xd]\nends = [\"x\", \"d\"]\n\
             schedule = [{{ at = \"4 s\", up = false }}, {{ at = \"6 s\", up = true }}]\n\
             [flow.t]\nfrom = \"a\"\nto = \"b\"\n\
             [service.r]\nprogram = \"frr\"\ncore = [\"c\", \"d\", \"x\"]\nedges = {{ e = 65001, f = 65002 }}\n"
        );
        let detour = scenario.replace("up = true", "rate = \"1 Mbit/s\"");
        [scenario, detour].map(|text| {
            let read =
                parse("core.toml", &text, None, &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"));
            read.warnings.into_iter().filter(|one| one.starts_with("flow.t: link.")).collect::<Vec<_>>()
        })
    };
    assert_eq!(warned(""), [Vec::<String>::new(), Vec::new()]);
    for schedule in
        [r#"{ at = "2 s", loss = 1 }"#, r#"{ at = "2 s", up = false }"#, r#"{ at = "2 s", ber = 1 }"#]
    {
        let [with_detour, without] = warned(schedule);
        assert_eq!(with_detour, Vec::<String>::new());
        assert!(without[0].contains("link.xd carries nothing in one direction from 4 s on"), "{without:?}");
    }
}
