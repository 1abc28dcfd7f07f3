//! `netstage measure rrul`: latency under load, with the flows of flent's test of this name (Real-time Response Under
//! Load).

use super::{Common, MeasuredPath, quoted, units};
use crate::exit::Failure;
use netstage_core::time::Duration;
use std::fmt::Write as _;

/// Names and DSCPs of flent's classes: best effort, background (CS1), CS5, and expedited forwarding.
const CLASSES: [(&str, u8); 4] = [("be", 0), ("bk", 8), ("cs5", 40), ("ef", 46)];
/// Traffic of a probe: 20 packets per second.
const PROBE: &str = "{ model = \"cbr\", rate = \"16 kbit/s\", packet = \"100 B\" }";
/// Time without load, before the load.
const IDLE: Duration = Duration::from_secs(5);
/// Time after the start of the load that does not count.
const RAMP: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "Examples:
  netstage measure rrul server.example --key-file key
  netstage measure rrul fra-1 -t 30 --max-delay 50ms";

/// Options of `measure rrul`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Rrul {
    #[command(flatten)]
    common: Common,
    /// Seconds of load
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "60", value_parser = units::time)]
    time: Duration,
    /// Receive window of the TCP flows, as 4M
    #[arg(short = 'w', long, value_name = "BYTES", default_value = "4M", value_parser = units::size)]
    window: u64,
    /// Maximum mean one-way delay under load, as 50ms; a longer one exits with code 3
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    max_delay: Option<Duration>,
}

impl Rrul {
    /// Runs the command.
    pub fn run(&self) -> Result<u8, Failure> {
        if self.time <= RAMP + RAMP {
            return Err(
                Failure::usage("-t is too short for a mean under load").help("give 5 seconds or more")
            );
        }
        self.common.run(("rrul", "Latency under load"), Some(IDLE + self.time), |path| self.tables(path))
    }

    /// Returns the flows, expectations and figures. Means of a run are those from the start of the first flow that is not
    /// background: under load.
    fn tables(&self, path: &MeasuredPath) -> String {
        let (near, far) = (&path.from.agent, &path.to.agent);
        let mut text = format!(
            "\n[measure]\ninterval = \"200 ms\"\ndelay = true\n\
             \n[defaults.tcp]\nwindow = \"{} B\"\nalgorithm = \"cubic\"\n",
            self.window
        );
        if path.is_ipv6 {
            text += "\n[defaults.flow]\nip = \"v6\"\n";
        }
        for (direction, from, to) in [("download", far, near), ("upload", near, far)] {
            for (class, dscp) in CLASSES {
                let _ = write!(
                    text,
                    "\n[flow.{direction}-{class}]\nfrom = \"{from}\"\nto = \"{to}\"\nstart = {}\nstop = {}\n\
                     tcp = {{ dscp = {dscp} }}\n\
                     \n[flow.probe-{direction}-{class}]\nfrom = \"{from}\"\nto = \"{to}\"\ntransport = \"udp\"\n\
                     udp = {{ dscp = {dscp} }}\nbackground = true\ntraffic = {PROBE}\n",
                    quoted(IDLE),
                    quoted(IDLE + self.time)
                );
            }
        }
        if path.permits_ping {
            let _ = write!(
                text,
                "\n[flow.ping]\nfrom = \"{near}\"\nto = \"{far}\"\ntransport = \"icmp-echo\"\nbackground = true\ntraffic = {PROBE}\n"
            );
        }
        text + &self.expectations(path.permits_ping) + &figures(path.permits_ping)
    }

    /// Returns expectations, which give the mean throughputs and delays without and under load.
    fn expectations(&self, has_ping: bool) -> String {
        let bound = |max: Option<Duration>| match max {
            Some(max) => format!("at_most = {}", quoted(max)),
            None => "at_least = 0".into(),
        };
        let loaded = [IDLE + RAMP, IDLE + self.time];
        let idle = [Duration::ZERO, IDLE];
        let mut text = String::new();
        let mut add =
            |name: String, claim: &str, metric: &str, subject: &str, over: [Duration; 2], bound: &str| {
                let [from, to] = over.map(quoted);
                let _ = write!(
                    text,
                    "\n[expect.{name}]\nclaim = \"{claim}\"\nmetric = \"{metric}\"\nsubject = \"{subject}\"\n\
                 over = [{from}, {to}]\n{bound}\n"
                );
            };
        for direction in ["download", "upload"] {
            let (flows, probes) = (format!("{direction}-*"), format!("probe-{direction}-*"));
            let (delay, unlimited) = (bound(self.max_delay), bound(None));
            let name = |what: &str| format!("{direction}-{what}");
            let (claim, rate) = ("mean throughput of each of the four flows", "flow.throughput");
            add(name("throughput"), claim, rate, &flows, loaded, &unlimited);
            add(
                name("delay-idle"),
                "mean one-way delay without load",
                "flow.delay",
                &probes,
                idle,
                &unlimited,
            );
            add(name("delay-loaded"), "mean one-way delay under load", "flow.delay", &probes, loaded, &delay);
        }
        if has_ping {
            for (name, claim, over) in [
                ("ping-idle", "mean round-trip time without load", idle),
                ("ping-loaded", "mean round-trip time under load", loaded),
            ] {
                add(name.into(), claim, "flow.round_trip", "ping", over, &bound(None));
            }
        }
        text
    }
}

/// Returns the figures: throughput in both directions, and the delays.
fn figures(has_ping: bool) -> String {
    let mut figures = vec![
        ("download", "Download throughput", "flow.throughput", "download-*"),
        ("upload", "Upload throughput", "flow.throughput", "upload-*"),
        ("delay", "One-way delay of the probes", "flow.delay", "probe-*"),
    ];
    if has_ping {
        figures.push(("ping", "Round-trip time (ICMP echo)", "flow.round_trip", "ping"));
    }
    let text = |(name, title, metric, subject): (&str, &str, &str, &str)| {
        format!("\n[plot.{name}]\ntitle = \"{title}\"\nmetric = \"{metric}\"\nsubject = \"{subject}\"\n")
    };
    figures.into_iter().map(text).collect()
}
