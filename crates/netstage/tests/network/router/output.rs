//! Tests of the output of routers: metrics, and tables of any size.

use crate::router::network::{TIMEOUT, TwoSites, counted, interface, socket, state};
use crate::support::{TemporaryFolder, TestProcess, netstage, output_text, within};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Output;
use std::time::Duration;

fn scraped(world: &TwoSites, address: &'static str) -> String {
    let mut stream = world.routers[0].run(|| TcpStream::connect(address)).unwrap().unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: router\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    text
}

fn value(text: &str, sample: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.rsplit_once(' ').is_some_and(|(name, _)| name == sample))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

fn metrics_count_forwarded_packets() {
    let world = TwoSites::new();
    world.routers[0].loopback_up().unwrap();
    let folder = TemporaryFolder::new("router-metrics");
    let routers = world.start_both(&folder, "");
    drop(routers);
    world.configure(&folder, 0, "metrics = \"127.0.0.1:9636\"\ncount = \"prefix\"", "");
    world.configure(&folder, 1, "", "");
    let _routers = [0, 1].map(|site| world.start(&folder, site));
    let is_fast = |site| ["edge0", "core0"].iter().all(|name| interface(&folder, site, name).slow.is_none());
    assert!(within(TIMEOUT, || is_fast(0) && is_fast(1)));
    world.transfer();
    let text = scraped(&world, "127.0.0.1:9636");
    let sample_value = |sample: &str| value(&text, sample).unwrap_or_else(|| panic!("{sample} in {text}"));
    let pushed =
        sample_value("netstage_router_events_total{path=\"kernel\",reason=\"pushed\",severity=\"info\"}");
    let by_prefix =
        sample_value("netstage_router_prefix_packets_total{table=\"main\",prefix=\"10.0.1.0/24\"}");
    assert!(pushed > 700.0 && by_prefix == pushed, "{pushed} {by_prefix}");
    assert!(sample_value("netstage_router_label_packets_total{label=\"300\"}") > 700.0);
    let labels = "{interface=\"core0\",table=\"main\"}";
    assert!(sample_value(&format!("netstage_router_interface_sent_packets_total{labels}")) >= pushed);
    assert!(sample_value(&format!("netstage_router_interface_received_bytes_total{labels}")) > 1e6);
    assert_eq!(sample_value(&format!("netstage_router_interface_up{labels}")), 1.0);
    assert!(sample_value("netstage_router_routes") >= 5.0);
}

fn show_output(folder: &TemporaryFolder, arguments: &[&str]) -> Output {
    let mut command = netstage(&[&["router", "show"], arguments].concat());
    command.arg("--socket").arg(socket(folder, 0)).output().unwrap()
}

/// Runs `netstage router show`, which must succeed, and returns its output.
fn show(folder: &TemporaryFolder, arguments: &[&str]) -> String {
    let output = show_output(folder, arguments);
    assert!(output.status.success(), "{}", output_text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the peak memory of a process in kB.
fn peak(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn a_large_table_is_shown_with_little_memory() {
    const ROUTES: usize = 1_000_000;
    let world = TwoSites::new();
    let folder = TemporaryFolder::new("router-large");
    world.configure(&folder, 0, "fast_path = \"off\"\nv4_rows = 16", "");
    // Consecutive prefixes from 16.0.0.0/24.
    let mut routes = String::with_capacity(ROUTES * 24);
    for number in 0..ROUTES {
        let [_, a, b, c] = ((16 << 16) + number as u32).to_be_bytes();
        routes.push_str(&format!("{a}.{b}.{c}.0/24 via 192.0.2.2 dev core0\n"));
    }
    std::fs::write(folder.join("fib0.txt"), routes).unwrap();
    let mut router = world.start_within(&folder, 0, Duration::from_secs(120));
    assert!(state(&folder, 0).routes > ROUTES);
    let before = peak(router.child().id());
    println!("{before} kB for {ROUTES} routes");
    let mut command = netstage(&["router", "show", "fib", "--json", "--socket"]);
    let mut shown = TestProcess::new(command.arg(socket(&folder, 0)).spawn().unwrap());
    let mut text = Vec::new();
    shown.child().stdout.take().unwrap().read_to_end(&mut text).unwrap();
    assert!(shown.output().status.success());
    let lines = text.iter().filter(|byte| **byte == b'\n').count();
    assert!(lines > ROUTES && text.len() > 80 << 20, "{lines} lines, {} bytes", text.len());
    let growth = peak(router.child().id()) - before;
    assert!(growth < 20_000, "{growth} kB more for {} kB", text.len() >> 10);

    // The router filters the entries.
    assert_eq!(show(&folder, &["fib", "16.0.1.77"]).trim_end(), "16.0.1.0/24        via 192.0.2.2 dev core0");
    assert_eq!(show(&folder, &["fib", "16.0.0.0/16"]).lines().count(), 256);
    assert_eq!(show(&folder, &["fib", "16.0.0.0/16", "--table", "main"]).lines().count(), 256);
    let rejected = show_output(&folder, &["fib", "--table", "red"]);
    let printed = output_text(&rejected);
    assert!(
        rejected.status.code() == Some(2) && printed.contains("the router has no table `red`"),
        "{printed}"
    );
    let all = show(&folder, &[]);
    assert!(all.contains("routes, 0 labels, forwarded in user space") && all.len() < 5_000, "{all}");
    // Forwarding is not affected.
    assert_eq!(counted(&state(&folder, 0), "program", "refused_changes"), 0);
}

netstage_harness::tests![metrics_count_forwarded_packets, a_large_table_is_shown_with_little_memory];
