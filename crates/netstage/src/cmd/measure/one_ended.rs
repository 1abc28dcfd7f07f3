//! `netstage measure icmp` and `udp-unreachable`: the other host has not agreed, so little is
//! sent unless more is asked for by name.

use super::{Family, measure, units};
use crate::exit::Failure;
use netstage_agent::measure::{Method, Order, Ways};
use netstage_agent_api::task::ONE_ENDED_LIMIT;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;

/// Ten packets a second of a ping's size.
const DEFAULT_RATE: BitRate = BitRate(4_480);

/// What both share.
#[derive(clap::Args)]
pub struct Common {
    /// The host
    target: String,
    /// Seconds to measure
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "10", value_parser = units::time)]
    time: Duration,
    /// Payload bits per second [default: ten packets a second]
    #[arg(short = 'b', long, value_name = "RATE", value_parser = units::rate)]
    bitrate: Option<BitRate>,
    /// Payload bytes of a packet
    #[arg(short = 'l', long, value_name = "BYTES", default_value = "56", value_parser = units::size)]
    length: u64,
    /// Send at random moments (Poisson, RFC 2330) instead of equal gaps
    #[arg(long)]
    poisson: bool,
    /// Seconds of an interval; 0 for the summary only
    #[arg(short = 'i', long, value_name = "SECONDS", default_value = "1", value_parser = units::time)]
    interval: Duration,
    /// The host agrees to as much: raises the limit of 10 Mbit/s
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    limit: Option<BitRate>,
    /// Seed of the pattern
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    family: Family,
    /// Print the result, or the error, as JSON
    #[arg(long)]
    json: bool,
}

/// Options of `measure icmp`.
#[derive(clap::Args)]
pub struct Icmp {
    #[command(flatten)]
    common: Common,
}

/// Options of `measure udp-unreachable`.
#[derive(clap::Args)]
pub struct UdpUnreachable {
    #[command(flatten)]
    common: Common,
    /// A port nobody listens on; traceroute's first by default
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
        let packet = u32::try_from(self.length).map_err(|_| Failure::usage("-l is too large"))?;
        let rate = self.bitrate.unwrap_or(BitRate(DEFAULT_RATE.0 * self.length.max(1) / 56).max(BitRate(1)));
        let limit = self.limit.unwrap_or(ONE_ENDED_LIMIT);
        if rate.0 > limit.0 {
            return Err(Failure::usage(format!(
                "{} bit/s to a host that has not agreed to receive them; without its word at most {} bit/s",
                rate.0, limit.0
            ))
            .help(format!("if it has agreed, say so: --limit {}", rate.0)));
        }
        let traffic = match self.poisson {
            true => Pattern::Poisson { rate, packet },
            false => Pattern::Cbr { rate, packet },
        };
        traffic.check().map_err(|error| Failure::usage(format!("the pattern cannot be sent: {error}")))?;
        if self.time == Duration::ZERO {
            return Err(Failure::usage("nothing can be measured in no time").help("name a time with -t"));
        }
        let order = Order {
            method,
            ways: Ways::Forward,
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
