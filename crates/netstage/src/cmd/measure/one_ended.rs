//! `netstage measure icmp` and `udp-unreachable`. The other host has not agreed to the measurement, so the rate is
//! low and limited unless the user raises it explicitly.

use super::{Family, measure, units};
use crate::exit::Failure;
use netstage_agent::measure::{MeasurementDirection, MeasurementParameters, Method};
use netstage_agent_api::task::ONE_ENDED_LIMIT;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;

/// Default rate: ten packets per second of the size of a ping.
const DEFAULT_RATE: BitRate = BitRate(4_480);

/// Options of `measure icmp` and `udp-unreachable`.
#[derive(clap::Args)]
pub struct Common {
    /// Host to measure to
    target: String,
    /// Seconds to measure
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "10", value_parser = units::time)]
    time: Duration,
    /// Payload rate, as 10K (bit/s) [default: 10 packets/s]
    #[arg(short = 'b', long, value_name = "RATE", value_parser = units::rate)]
    bitrate: Option<BitRate>,
    /// Payload of a packet, bytes
    #[arg(short = 'l', long, value_name = "BYTES", default_value = "56", value_parser = units::size)]
    length: u64,
    /// Use Poisson instead of constant gaps (RFC 2330)
    #[arg(long)]
    poisson: bool,
    /// Seconds per report interval; 0 prints only the summary
    #[arg(short = 'i', long, value_name = "SECONDS", default_value = "1", value_parser = units::time)]
    interval: Duration,
    /// Raise the limit of 10 Mbit/s, if the host's operator agrees
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    limit: Option<BitRate>,
    /// Seed of the Poisson gaps
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    family: Family,
    /// Print the result, or the error, as JSON
    #[arg(long)]
    json: bool,
}

const ICMP_EXAMPLES: &str = "Examples:
  netstage measure icmp 192.0.2.1
  netstage measure icmp 192.0.2.1 -t 60 -b 100K --poisson";

/// Options of `measure icmp`.
#[derive(clap::Args)]
#[command(after_help = ICMP_EXAMPLES)]
pub struct Icmp {
    #[command(flatten)]
    common: Common,
}

const UDP_UNREACHABLE_EXAMPLES: &str = "Examples:
  netstage measure udp-unreachable 192.0.2.1";

/// Options of `measure udp-unreachable`.
#[derive(clap::Args)]
#[command(after_help = UDP_UNREACHABLE_EXAMPLES)]
pub struct UdpUnreachable {
    #[command(flatten)]
    common: Common,
    /// Closed port; the default is the first of traceroute
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = 33434)]
    port: u16,
}

impl Icmp {
    /// Runs the command.
    pub fn run(&self) -> Result<u8, Failure> {
        self.common.run(Method::IcmpEcho { limit: self.common.limit }, 0)
    }
}

impl UdpUnreachable {
    /// Runs the command.
    pub fn run(&self) -> Result<u8, Failure> {
        self.common.run(Method::UdpUnreachable { limit: self.common.limit, port: self.port }, self.port)
    }
}

impl Common {
    fn run(&self, method: Method, port: u16) -> Result<u8, Failure> {
        let target = self.family.resolve(&self.target, port)?;
        let packet = u32::try_from(self.length).map_err(|_| Failure::usage("-l: value too large"))?;
        let rate = self.bitrate.unwrap_or(BitRate(DEFAULT_RATE.0 * self.length.max(1) / 56).max(BitRate(1)));
        let limit = self.limit.unwrap_or(ONE_ENDED_LIMIT);
        if rate.0 > limit.0 {
            return Err(Failure::usage(format!(
                "rate of {} bit/s is above the limit of {} bit/s for a host without a server",
                rate.0, limit.0
            ))
            .help(format!("if the host's operator agrees, add --limit {}", rate.0)));
        }
        let traffic = match self.poisson {
            true => Pattern::Poisson { rate, packet },
            false => Pattern::Cbr { rate, packet },
        };
        traffic.check().map_err(|error| Failure::usage(format!("invalid pattern: {error}")))?;
        if self.time == Duration::ZERO {
            return Err(Failure::usage("time is 0").help("give a time above 0 with -t"));
        }
        let order = MeasurementParameters {
            method,
            directions: MeasurementDirection::Forward,
            parallel: 1,
            traffic,
            time: self.time,
            omit: Duration::ZERO,
            interval: if self.interval == Duration::ZERO { self.time } else { self.interval },
            traffic_class: 0,
            first_port: None,
            seed: self.seed,
        };
        measure(&order, target, None, self.json)
    }
}
