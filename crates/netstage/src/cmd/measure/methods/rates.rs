//! `netstage measure rfc2544`, `mlrsearch` and `ber`: tests with packets of several frame sizes.

use super::{Common, TestText, units};
use crate::exit::Failure;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

/// Options of tests with trials of several frame sizes.
#[derive(clap::Args)]
struct Trials {
    /// Seconds of a trial [default: as the method requires, 60; 120 for latency]
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = units::time)]
    time: Option<Duration>,
    /// Ethernet frame sizes with check sequence, as 64,1518 [default: the seven of RFC 2544]
    #[arg(short = 'l', long, value_name = "BYTES,…", value_delimiter = ',', value_parser = units::size)]
    frame_sizes: Vec<u64>,
}

const RFC2544_EXAMPLES: &str = "Examples:
  netstage measure rfc2544 server.example --key-file key --max-rate 100M
  netstage measure rfc2544 ber-1 fra-1 --max-rate 100M --tests throughput,latency -t 5 -l 64,1518";

/// Tests of RFC 2544 and RFC 9004.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Rfc2544Test {
    /// Maximum rate without loss
    Throughput,
    /// Delay at that rate
    Latency,
    /// Loss at decreasing rates
    FrameLoss,
    /// Longest burst without loss
    BackToBack,
}

/// Options of `measure rfc2544`.
#[derive(clap::Args)]
#[command(after_help = RFC2544_EXAMPLES)]
pub struct Rfc2544 {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    trials: Trials,
    /// Tests to run
    #[arg(
        long,
        value_name = "TEST,…",
        value_delimiter = ',',
        default_value = "throughput,latency,frame-loss,back-to-back",
        hide_possible_values = true
    )]
    tests: Vec<Rfc2544Test>,
    /// Repeats of latency and back-to-back [default: 20 and 50, as the RFCs require]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: Option<u32>,
}

impl Rfc2544 {
    /// Runs the command.
    pub fn run(&self) -> Result<u8, Failure> {
        self.common.run(("rfc2544", "RFC 2544"), None, |path| {
            let tests = self.tests.iter().map(|test| {
                let (name, kind, repeats) = match test {
                    Rfc2544Test::Throughput => ("throughput", "rfc2544-throughput", None),
                    Rfc2544Test::Latency => ("latency", "rfc2544-latency", self.repeats),
                    Rfc2544Test::FrameLoss => ("frame-loss", "rfc2544-frame-loss", None),
                    Rfc2544Test::BackToBack => ("back-to-back", "rfc9004-back-to-back", self.repeats),
                };
                let test = TestText::new(name, kind, path).field("repeats", repeats);
                test.time("trial", self.trials.time).frame_sizes(&self.trials.frame_sizes).0
            });
            tests.collect()
        })
    }
}

const MLRSEARCH_EXAMPLES: &str = "Examples:
  netstage measure mlrsearch server.example --key-file key --max-rate 100M
  netstage measure mlrsearch fra-1 --max-rate 100M --loss 0.5 -t 30 -l 1518";

/// Options of `measure mlrsearch`.
#[derive(clap::Args)]
#[command(after_help = MLRSEARCH_EXAMPLES)]
pub struct Mlrsearch {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    trials: Trials,
    /// Loss above which a trial has high loss, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    loss: f64,
    /// Share of the time that may have high loss, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 50.0)]
    exceed: f64,
}

impl Mlrsearch {
    /// Runs the command.
    pub fn run(&self) -> Result<u8, Failure> {
        self.common.run(("mlrsearch", "MLRsearch"), None, |path| {
            let test = TestText::new("throughput", "mlrsearch", path).time("trial", self.trials.time);
            // Short trials first, but none longer than the final ones.
            let initial = self.trials.time.map(|time| time.min(Duration::from_secs(1)));
            let test = test.time("initial_trial", initial);
            let test = test.text("loss_tolerance", Some(format!("{} %", self.loss)));
            let test = test.text("exceed", Some(format!("{} %", self.exceed)));
            test.frame_sizes(&self.trials.frame_sizes).0
        })
    }
}

const BER_EXAMPLES: &str = "Examples:
  netstage measure ber server.example --key-file key -b 20M
  netstage measure ber ber-1 fra-1 -b 20M --by payload -t 30";

/// Source of a bit error ratio.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BitErrorSource {
    /// Increase of loss with the frame size
    Loss,
    /// Comparison of payloads sent without a checksum
    Payload,
}

/// Options of `measure ber`.
#[derive(clap::Args)]
#[command(after_help = BER_EXAMPLES)]
pub struct Ber {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    trials: Trials,
    /// Rate at the IP layer, below the capacity of the path, as 10M
    #[arg(short = 'b', long, value_name = "RATE", value_parser = units::rate)]
    bitrate: BitRate,
    /// Source of the ratio: loss, if damaged packets are dropped on the path, or payload
    #[arg(long, value_name = "SOURCE", default_value = "loss", hide_possible_values = true)]
    by: BitErrorSource,
}

impl Ber {
    /// Runs the command.
    pub fn run(&self) -> Result<u8, Failure> {
        self.common.run(("ber", "Bit error ratio"), None, |path| {
            let by = if self.by == BitErrorSource::Loss { "loss" } else { "payload" };
            let test = TestText::new("errors", "bit-error", path).text("by", Some(by));
            let test = test.text("rate", Some(format!("{} bit/s", self.bitrate.0)));
            test.time("trial", self.trials.time).frame_sizes(&self.trials.frame_sizes).0
        })
    }
}
