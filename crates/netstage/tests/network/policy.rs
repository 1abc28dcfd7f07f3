//! Tests of what a run says about the packets that the policy of an agent dropped. The path itself loses none.

use crate::apart::{EmulatedPair, address, line};
use crate::support::fleet::Fleet;
use crate::support::{TestProcess, mean, output_text};
use netstage_core::quantity::BitRate;
use netstage_core::rng::RandomStream;
use netstage_core::time;
use netstage_harness::needs;
use netstage_host::egress::{EgressGroup, EgressLimits};
use netstage_host::netns::Namespace;
use serde_json::Value;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const AGENTS: [&str; 2] = ["left", "right"];
/// Exit code of a void run.
const VOID: i32 = 5;
const RATE: &str = "rate = \"10 Mbit/s\"\nmax_duration = \"1 min\"";

/// Two agents with these rules, joined by a router that loses nothing.
struct LimitedAgents {
    fleet: Fleet,
    _router: Namespace,
    _processes: Vec<TestProcess>,
}

impl LimitedAgents {
    fn new(name: &str, rules: &str) -> LimitedAgents {
        let fleet = Fleet::new(name, &AGENTS);
        let router = fleet.join_by_router();
        fleet.write_policy(rules);
        let mut processes = vec![fleet.serve()];
        processes.extend(fleet.join_all(&AGENTS));
        LimitedAgents { fleet, _router: router, _processes: processes }
    }

    /// Runs one flow from left to right. Returns exit code, output and record.
    fn run(&self, name: &str, flow: &str) -> (i32, String, Value) {
        let scenario = format!(
            "[scenario]\nduration = \"3 s\"\nseed = 1\n[node.left]\n[node.right]\n[link.wire]\nends = [\"left\", \"right\"]\n\
             rate = \"1 Gbit/s\"\nbuffer = \"100 packets\"\n[place]\nleft = \"left\"\nright = \"right\"\n\
             [flow.f]\nfrom = \"left\"\nto = \"right\"\n{flow}\n[measure]\ninterval = \"100 ms\"\n"
        );
        let file = format!("{name}.toml");
        fs::write(self.fleet.folder.join(&file), scenario).unwrap();
        let output = self.fleet.run_with(&file, name, &["--retries", "0"]);
        let folder = self.fleet.folder.join(name);
        let record =
            if folder.join("record.json").exists() { crate::support::record(&folder) } else { Value::Null };
        (output.status.code().unwrap(), output_text(&output), record)
    }
}

fn packets_dropped_by_the_policy_are_not_losses_of_the_path() {
    let agents = LimitedAgents::new("policy-drops", RATE);
    // Means below the policy, and peaks far above it.
    let bursts = "rate = \"40 Mbit/s\", packet = \"1000 B\", on = \"200 ms\", off = \"1 s\"";
    for (name, transport, model) in [
        ("udp", "udp", format!("model = \"on-off\", {bursts}")),
        ("self-similar", "udp", format!("model = \"pareto\", shape = 1.5, {bursts}")),
        ("tcp", "tcp", format!("model = \"on-off\", {bursts}")),
        ("quic", "quic", format!("model = \"on-off\", {bursts}")),
    ] {
        let flow = format!("transport = \"{transport}\"\ntraffic = {{ {model} }}");
        let (code, printed, record) = agents.run(name, &flow);
        let said = if transport == "udp" { &record["void"] } else { &record["warnings"] };
        let said = said.to_string();
        assert!(said.contains("policy of left: "), "{name}: {printed}\n{record:#}");
        assert!(said.contains("by `rate` = 10 Mbit/s"), "{name}: {said}");
        if transport == "udp" {
            assert_eq!(code, VOID, "{name}: {printed}");
            // Drops after the last packet that arrived are unknown to the receiver.
            let lost = mean(&record, "flow.lost", "f");
            let dropped = said.split("dropped ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
            let dropped: f64 = dropped.parse().unwrap();
            assert!(lost <= dropped && lost > 0.8 * dropped, "{name}: {lost} lost, {said}");
        } else {
            assert!(said.contains("limited by the policy"), "{name}: {said}");
        }
    }
    // Within the policy, nothing is dropped or said.
    let flow = "transport = \"udp\"\ntraffic = { model = \"cbr\", rate = \"7 Mbit/s\", packet = \"100 B\" }";
    let (_, printed, record) = agents.run("within", flow);
    assert!(!record.to_string().contains("policy of"), "{printed}\n{record:#}");
    assert_eq!(mean(&record, "flow.lost", "f"), 0.0, "{printed}");
}

fn rates_above_the_policy_with_their_headers_are_refused() {
    let agents = LimitedAgents::new("policy-headers", RATE);
    for (name, flow) in [
        (
            "udp",
            "transport = \"udp\"\ntraffic = { model = \"cbr\", rate = \"9 Mbit/s\", packet = \"100 B\" }",
        ),
        (
            "tcp",
            "transport = \"tcp\"\ntraffic = { model = \"cbr\", rate = \"9.9 Mbit/s\", packet = \"2000 B\" }",
        ),
        (
            "poisson",
            "transport = \"quic\"\ntraffic = { model = \"poisson\", rate = \"9 Mbit/s\", packet = \"200 B\" }",
        ),
    ] {
        let (code, printed, _) = agents.run(name, flow);
        assert_eq!(code, 1, "{name}: {printed}");
        assert!(printed.contains("with their IP and transport headers"), "{name}: {printed}");
        assert!(printed.contains("allows 10 Mbit/s"), "{name}: {printed}");
    }
}

fn the_budget_of_a_day_is_named_before_and_in_the_run() {
    let agents = LimitedAgents::new("policy-day", "bytes_per_day = \"2 MB\"");
    let udp = |model: &str| {
        format!(
            "transport = \"udp\"\ntraffic = {{ model = \"{model}\", rate = \"8 Mbit/s\", packet = \"1000 B\" }}"
        )
    };
    // 8 Mbit/s for 3 s, with headers of 28 bytes for each packet.
    let (code, printed, record) = agents.run("constant", &udp("cbr"));
    assert_eq!((code, record), (1, Value::Null), "{printed}");
    assert!(printed.contains("the run sends at least 3084000 B today with IP headers"), "{printed}");
    assert!(printed.contains("B are left of `bytes_per_day` = 2000000 B"), "{printed}");
    // The volume of random traffic is not known before the run.
    let (code, printed, record) = agents.run("random", &udp("poisson"));
    let failures = record["failures"].to_string();
    assert!(
        failures.contains("dropped by `bytes_per_day` = 2000000 B in the policy"),
        "{code}: {printed}\n{record:#}"
    );
    assert!(!record.to_string().contains("not permitted"), "{record:#}");
    assert!(record["void"].to_string().contains("packets by `bytes_per_day` = 2000000 B"), "{record:#}");
    // At most one packet fits into what is left.
    let transfer = "transport = \"tcp\"\ntraffic = { model = \"bulk\", size = \"100 kB\" }";
    let (code, printed, _) = agents.run("transfer", transfer);
    assert_eq!(code, 1, "{printed}");
    let left = printed.split(" B are left").next().and_then(|before| before.rsplit(' ').next());
    assert!(left.and_then(|left| left.parse::<u32>().ok()).is_some_and(|left| left < 1028), "{printed}");
}

/// Sends by `count` connections for some seconds, over a line of this round-trip time, within a rate. Returns the share of
/// the rate that arrived as payload in the second half.
fn share_of_rate(rate: BitRate, round_trip: time::Duration, control: &str, count: usize) -> f64 {
    const HALF: Duration = Duration::from_secs(3);
    let group = EgressGroup::create(EgressLimits { rate: Some(rate), ..EgressLimits::default() }).unwrap();
    let direction = line(1_000_000_000, round_trip / 2);
    let (bytes, _) = EmulatedPair::new().emulate(direction, |left, right| {
        left.sysctl("net.ipv4.tcp_congestion_control", control).unwrap();
        let listener = right.run(|| TcpListener::bind((address(1), 5001)).unwrap()).unwrap();
        let (end, received) = (Instant::now() + 2 * HALF, AtomicU64::new(0));
        let send = || {
            group.enter().unwrap();
            let mut stream = TcpStream::connect((address(1), 5001)).unwrap();
            while Instant::now() < end {
                stream.write_all(&[0; 16 << 10]).unwrap();
            }
        };
        thread::scope(|scope| {
            for _ in 0..count {
                scope.spawn(|| left.run(send).unwrap());
                let (mut stream, _) = listener.accept().unwrap();
                let received = &received;
                scope.spawn(move || {
                    let mut buffer = [0; 64 << 10];
                    while let Ok(length @ 1..) = stream.read(&mut buffer) {
                        if (HALF..2 * HALF).contains(&(2 * HALF).saturating_sub(end - Instant::now())) {
                            received.fetch_add(length as u64, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        received.into_inner()
    });
    bytes as f64 * 8.0 / HALF.as_secs_f64() / rate.as_f64()
}

fn tcp_reaches_the_rate_of_a_policy() {
    needs::root();
    let mut random = RandomStream::new(netstage_harness::seed("policy"), "rates");
    let permitted = fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap();
    let controls: Vec<_> = permitted.split_whitespace().collect();
    for _ in 0..needs::cases(6) {
        let rate = BitRate(2_000_000 * (5 + random.below(25)));
        let round_trip = time::Duration::from_micros(100 << random.below(10));
        let count = 1 + random.below(4) as usize;
        let control = controls[random.below(controls.len() as u64) as usize];
        let share = share_of_rate(rate, round_trip, control, count);
        println!("{count} {control} connections over {round_trip:?}: {share:.3} of {rate}");
        assert!(share > 0.75, "{count} {control} connections over {round_trip:?}: {share:.3} of {rate}");
    }
}

netstage_harness::tests![
    tcp_reaches_the_rate_of_a_policy,
    packets_dropped_by_the_policy_are_not_losses_of_the_path,
    rates_above_the_policy_with_their_headers_are_refused,
    the_budget_of_a_day_is_named_before_and_in_the_run,
];
