//! Measurements between two agents of a fleet. The line is a router's token bucket in the kernel, which no fault delays.

use super::{Case, LONG, Processes, SHORT, disturb};
use crate::support::fleet::Fleet;
use crate::support::{TestProcess, output_text};
use netstage_core::rng::RandomStream;
use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::Netlink;
use netstage_host::netns::qdiscs::TokenBucket;
use std::fs;
use std::process::{Command, Output, Stdio};

/// Returns the kinds whose truth this line has: it has no bit errors.
pub fn kinds() -> Vec<&'static str> {
    SHORT.into_iter().chain(LONG).filter(|kind| !kind.starts_with("bit-error")).collect()
}

/// Packets of the line's buffer that are tokens of the bucket. They compensate a late timer of the kernel.
pub const BURST: u64 = 20;
/// Packets for which the bucket has tokens. The kernel rounds them, by less than one packet.
pub const TOKENS: u64 = BURST + 1;

const AGENTS: [&str; 2] = ["left", "right"];

const PLACES: &str = r#"
[place]
a = "left"
b = "right"
"#;

/// Makes the router's link to the second host the line of the case.
fn limit(case: &Case, router: &Namespace) {
    // The kernel counts frames with their headers of 14 bytes, without their check sequence.
    let bytes = case.frame - 4;
    let bucket = TokenBucket {
        rate: (case.rate * bytes as f64 / (case.frame - 18) as f64 / 8.0).round() as u64,
        burst: (TOKENS * bytes) as u32,
        limit: ((case.buffer - BURST) * bytes) as u32,
    };
    Netlink::open(router).unwrap().set_token_bucket("d2", bucket).unwrap();
    if case.loss > 0.0 {
        let mut rules = Command::new("nft");
        rules.arg(format!(
            "table ip line {{\nchain loss {{\ntype filter hook forward priority 0;\n\
             ip daddr 10.1.2.2 meta l4proto udp numgen random mod 1000000 < {:.0} drop\n}}\n}}",
            case.loss * 1e6
        ));
        rules.stderr(Stdio::piped());
        let output = TestProcess::spawn_in(router, rules).output();
        assert!(output.status.success(), "{}", output_text(&output));
    }
}

/// Runs a measurement with its fault. Returns its output, and whether an agent was killed or stopped for good.
pub fn run(case: &Case, random: &mut RandomStream) -> (Output, bool) {
    let fleet = Fleet::new(&format!("chaos-live-{}", case.kind), &AGENTS);
    let router = fleet.join_by_router();
    limit(case, &router);
    fleet.write_policy("max_duration = \"10 min\"");
    fs::write(fleet.folder.join("case.toml"), case.scenario() + PLACES).unwrap();
    let mut hub = fleet.serve();
    let mut agents = fleet.join_all(&AGENTS);
    let agents: Vec<u32> = agents.iter_mut().map(|agent| agent.child().id()).collect();
    let mut command = fleet.command(&["run", "case.toml", "--json", "--on", "live", "--out", "out"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut controller = TestProcess::spawn_in(&fleet.hub, command);
    let others = vec![hub.child().id(), controller.child().id()];
    let output = std::thread::spawn(|| controller.output());
    let processes = || Processes { agents: agents.clone(), others: others.clone() };
    let is_harmed = disturb(processes, || output.is_finished(), case.fault, random);
    (output.join().unwrap(), is_harmed)
}
