//! `netstage measure rfc6349`: a TCP transfer compared with the capacity of its path.

use super::{Common, TestText, units};
use crate::exit::Failure;
use netstage_core::time::Duration;

const EXAMPLES: &str = "Examples:
  netstage measure rfc6349 server.example --key-file key --max-rate 100M
  netstage measure rfc6349 fra-1 --max-rate 100M -w 256K -t 60";

/// Options of `measure rfc6349`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Rfc6349 {
    #[command(flatten)]
    common: Common,
    /// Maximum seconds of the transfer [default: 30]
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = units::time)]
    time: Option<Duration>,
    /// Bytes to transfer, as 100M [default: as many as the time allows]
    #[arg(short = 'n', long, value_name = "BYTES", value_parser = units::size)]
    bytes: Option<u64>,
    /// Window of the receiver, as 64K
    #[arg(short = 'w', long, value_name = "BYTES", default_value = "4M", value_parser = units::size)]
    window: u64,
    /// Congestion control: cubic, newreno or reno
    #[arg(short = 'C', long, value_name = "NAME", default_value = "cubic", value_parser = ["cubic", "newreno", "reno"], hide_possible_values = true)]
    congestion: String,
    /// Seconds of a trial of the search for the bottleneck [default: 5]
    #[arg(long, value_name = "SECONDS", value_parser = units::time)]
    search: Option<Duration>,
}

impl Rfc6349 {
    /// Runs the command.
    pub fn run(&self) -> Result<u8, Failure> {
        self.common.run(("rfc6349", "RFC 6349"), None, |path| {
            let test = TestText::new("transfer", "rfc6349", path).time("trial", self.time);
            let test = test.text("size", self.bytes.map(|bytes| format!("{bytes} B")));
            let tcp = format!("{{ window = \"{} B\", algorithm = \"{}\" }}", self.window, self.congestion);
            test.time("search", self.search).field("tcp", Some(tcp)).0
        })
    }
}
