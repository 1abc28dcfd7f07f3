//! `netstage measure tcp`, `udp` and `quic`.

use super::{Family, PORT, key, measure, units};
use crate::exit::Failure;
use netstage_agent::measure::{MeasurementDirection, MeasurementParameters, Method};
use netstage_agent_api::task::{TcpOptions, UdpOptions};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;
use std::path::PathBuf;

/// Default payload of a UDP packet, which fits into an Ethernet frame even over IPv6, bytes.
const UDP_PAYLOAD: u64 = 1448;
/// Interval between writes of a paced stream, seconds.
const STREAM_STEP_S: f64 = 0.01;
/// Maximum write of a paced stream, bytes; the block size of iperf3.
const STREAM_MAX_WRITE: u64 = 128 << 10;
/// Time limit of a transfer with `-n` but without `-t`.
const TRANSFER_LIMIT: Duration = Duration::from_secs(3600);

/// Options of `measure tcp`, `udp` and `quic`.
#[derive(clap::Args)]
pub struct Common {
    /// Host that runs `netstage measure serve`
    target: String,
    /// Control port of the server
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// First data port at the receiver, one port per flow [default: chosen by its system]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1024..))]
    data_port: Option<u16>,
    /// Seconds to measure [default: 10]
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = units::time)]
    time: Option<Duration>,
    /// Payload rate of each flow, as 10M (bit/s)
    #[arg(short = 'b', long, value_name = "RATE", value_parser = units::rate)]
    bitrate: Option<BitRate>,
    /// Payload of a UDP packet, or size of a write with -b, as 1K
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = units::size)]
    length: Option<u64>,
    /// Stop after this payload, all flows of a direction together, as 100M
    #[arg(short = 'n', long, value_name = "BYTES", value_parser = units::size)]
    bytes: Option<u64>,
    /// Parallel flows
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=128))]
    parallel: u32,
    /// Send from the server to this host
    #[arg(short = 'R', long, conflicts_with = "bidir")]
    reverse: bool,
    /// Send in both directions at once
    #[arg(long)]
    bidir: bool,
    /// Seconds per report interval; 0 prints only the summary
    #[arg(short = 'i', long, value_name = "SECONDS", default_value = "1", value_parser = units::time)]
    interval: Duration,
    /// Omit the first seconds from the summary; a multiple of -i
    #[arg(short = 'O', long, value_name = "SECONDS", default_value = "0", value_parser = units::time)]
    omit: Duration,
    /// DSCP and ECN octet of the IP header, as 0xb8
    #[arg(short = 'S', long, value_name = "OCTET", value_parser = octet, conflicts_with = "dscp")]
    tos: Option<u8>,
    /// DSCP, as 46 or ef
    #[arg(long, value_name = "DSCP", value_parser = dscp)]
    dscp: Option<u8>,
    /// Packet spacing: cbr, poisson, on-off or pareto (phases of shape 1.5)
    #[arg(long, value_name = "PATTERN", default_value = "cbr", hide_possible_values = true)]
    pattern: PatternName,
    /// Mean on phase of on-off and pareto; -b is the rate within it
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = units::time)]
    on: Duration,
    /// Mean off phase of on-off and pareto
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = units::time)]
    off: Duration,
    /// Seed of random patterns
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    family: Family,
    /// File with the server's key [default: environment variable NETSTAGE_KEY]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Print the result, or the error, as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PatternName {
    /// Constant gaps
    Cbr,
    /// Exponential gaps
    Poisson,
    /// Constant gaps within exponential on phases
    OnOff,
    /// Constant gaps within Pareto on phases of shape 1.5 (self-similar in aggregate)
    Pareto,
}

const TCP_EXAMPLES: &str = "Examples:
  netstage measure tcp server.example --key-file key
  netstage measure tcp server.example -R -P 4 -t 30 -O 2
  netstage measure tcp server.example -C bbr -b 100M --json";

/// Options of `measure tcp`.
#[derive(clap::Args)]
#[command(after_help = TCP_EXAMPLES)]
pub struct Tcp {
    #[command(flatten)]
    common: Common,
    /// Receive window to advertise, as 64K
    #[arg(short = 'w', long, value_name = "BYTES", value_parser = units::size)]
    window: Option<u64>,
    /// Maximum segment size
    #[arg(short = 'M', long, value_name = "BYTES")]
    set_mss: Option<u32>,
    /// Congestion control by its kernel name, as cubic, reno or bbr
    #[arg(short = 'C', long, value_name = "NAME")]
    congestion: Option<String>,
    /// Disable the Nagle algorithm (TCP_NODELAY)
    #[arg(short = 'N', long)]
    no_delay: bool,
}

const UDP_EXAMPLES: &str = "Examples:
  netstage measure udp server.example -b 10M
  netstage measure udp server.example -b 2M -l 200 --dscp ef --pattern poisson";

/// Options of `measure udp`.
#[derive(clap::Args)]
#[command(after_help = UDP_EXAMPLES)]
pub struct Udp {
    #[command(flatten)]
    common: Common,
    /// Count bit errors; disables the UDP checksum (IPv4) to receive corrupted packets
    #[arg(long)]
    bit_errors: bool,
    /// Spin on a CPU reserved for the sender, for exact gaps at high packet rates
    #[arg(long)]
    spin: bool,
}

const QUIC_EXAMPLES: &str = "Examples:
  netstage measure quic server.example -t 30";

/// Options of `measure quic`.
#[derive(clap::Args)]
#[command(after_help = QUIC_EXAMPLES)]
pub struct Quic {
    #[command(flatten)]
    common: Common,
}

impl Tcp {
    /// Runs the command.
    pub fn run(&self) -> Result<u8, Failure> {
        let options = TcpOptions {
            congestion_control: self.congestion.clone(),
            max_segment_size: self.set_mss,
            window: self.window,
            no_delay: self.no_delay,
        };
        self.common.run(Method::Tcp(options))
    }
}

impl Udp {
    /// Runs the command.
    pub fn run(&self) -> Result<u8, Failure> {
        let options = UdpOptions {
            checksum_zero: self.bit_errors && !self.common.family.v6,
            compare_payload: self.bit_errors,
            batch: 1,
            spin: self.spin,
        };
        self.common.run(Method::Udp(options))
    }
}

impl Quic {
    /// Runs the command.
    pub fn run(&self) -> Result<u8, Failure> {
        if self.common.tos.is_some() || self.common.dscp.is_some() {
            return Err(Failure::usage(
                "-S and --dscp have no effect with QUIC, which sets DSCP and ECN itself",
            )
            .help("omit -S and --dscp, or measure with tcp or udp"));
        }
        self.common.run(Method::Quic)
    }
}

impl Common {
    fn run(&self, method: Method) -> Result<u8, Failure> {
        let order = self.order(method)?;
        let target = self.family.resolve(&self.target, self.port)?;
        measure(&order, target, Some(key(self.key_file.as_ref())?), self.json)
    }

    fn order(&self, method: Method) -> Result<MeasurementParameters, Failure> {
        let is_udp = matches!(method, Method::Udp(_));
        let bitrate = match self.bitrate {
            Some(BitRate(0)) if is_udp => {
                return Err(Failure::usage("-b 0: UDP needs a rate")
                    .help("give a rate with -b, and raise it until packets are lost"));
            }
            // Rate 0 is unlimited, as with iperf3.
            Some(BitRate(0)) => None,
            None if is_udp => Some(BitRate(1_000_000)),
            given => given,
        };
        let share = self.bytes.map(|bytes| bytes.div_ceil(self.parallel.into()));
        let (traffic, transfer_time) = match bitrate {
            None => {
                if self.pattern != PatternName::Cbr {
                    return Err(Failure::usage("--pattern needs a rate").help("give a rate with -b"));
                }
                if self.length.is_some() {
                    return Err(Failure::usage("-l has no effect without a rate")
                        .help("omit -l, or give a rate with -b"));
                }
                (Pattern::Bulk { size: share }, share.map(|_| TRANSFER_LIMIT))
            }
            Some(rate) => {
                let traffic = self.pattern(rate, is_udp)?;
                let mean = traffic.mean_rate().unwrap_or(f64::MAX);
                // Rate and size determine the time.
                let time = share.map(|bytes| Duration((bytes as f64 * 8e9 / mean).round() as u64));
                (traffic, time)
            }
        };
        let time = match (self.time, transfer_time) {
            (Some(time), Some(transfer_time)) => time.min(transfer_time),
            (Some(time), None) | (None, Some(time)) => time,
            (None, None) => Duration::from_secs(10),
        };
        if time == Duration::ZERO {
            return Err(Failure::usage("time is 0").help("give a time above 0 with -t"));
        }
        let interval = if self.interval == Duration::ZERO { time + self.omit } else { self.interval };
        if !self.omit.0.is_multiple_of(interval.0) {
            return Err(
                Failure::usage("-O is not a multiple of the interval").help("give -O as a multiple of -i")
            );
        }
        Ok(MeasurementParameters {
            method,
            directions: match (self.reverse, self.bidir) {
                (true, _) => MeasurementDirection::Reverse,
                (_, true) => MeasurementDirection::Both,
                _ => MeasurementDirection::Forward,
            },
            parallel: self.parallel,
            traffic,
            time,
            omit: self.omit,
            interval,
            traffic_class: self.tos.or(self.dscp.map(|dscp| dscp << 2)).unwrap_or(0),
            first_port: self.data_port,
            seed: self.seed,
        })
    }

    fn pattern(&self, rate: BitRate, is_udp: bool) -> Result<Pattern, Failure> {
        let length = self.length.unwrap_or_else(|| {
            let step = (rate.as_f64() * STREAM_STEP_S / 8.0) as u64;
            if is_udp { UDP_PAYLOAD } else { step.clamp(UDP_PAYLOAD, STREAM_MAX_WRITE) }
        });
        let packet = u32::try_from(length).map_err(|_| Failure::usage("-l: value too large"))?;
        let (on, off) = (self.on, self.off);
        let pattern = match self.pattern {
            PatternName::Cbr => Pattern::Cbr { rate, packet },
            PatternName::Poisson => Pattern::Poisson { rate, packet },
            PatternName::OnOff => Pattern::OnOff { rate, packet, on, off },
            PatternName::Pareto => Pattern::Pareto { rate, packet, on, off, shape: 1.5 },
        };
        pattern.check().map_err(|error| Failure::usage(format!("invalid pattern: {error}")))?;
        Ok(pattern)
    }
}

fn octet(text: &str) -> Result<u8, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "expected a number from 0 to 255, or 0x00 to 0xff".into())
}

/// Parses a DSCP given as a number or a name (RFC 2474, RFC 2597, RFC 3246, RFC 5865, RFC 8622).
pub fn dscp(text: &str) -> Result<u8, String> {
    let lower = text.to_ascii_lowercase();
    let digit = |range: std::ops::RangeInclusive<u8>, at: usize| {
        let digit = lower.as_bytes().get(at)?.checked_sub(b'0')?;
        range.contains(&digit).then_some(digit)
    };
    let named = match lower.as_str() {
        "ef" => Some(46),
        "va" | "voice-admit" => Some(44),
        "le" => Some(1),
        "df" | "be" => Some(0),
        name if name.starts_with("cs") && name.len() == 3 => digit(0..=7, 2).map(|class| class * 8),
        name if name.starts_with("af") && name.len() == 4 => {
            digit(1..=4, 2).zip(digit(1..=3, 3)).map(|(class, drop)| class * 8 + drop * 2)
        }
        _ => octet(&lower).ok().filter(|value| *value < 64),
    };
    named.ok_or_else(|| "expected 0 to 63, or a name such as ef, af41, cs6, le".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dscp_parses_numbers_and_names() {
        for (text, value) in [("EF", 46), ("af11", 10), ("af43", 38), ("cs6", 48), ("46", 46), ("0x2e", 46)] {
            assert_eq!(dscp(text), Ok(value), "{text}");
        }
        for bad in ["64", "af51", "af14", "cs8", "", "x"] {
            assert!(dscp(bad).is_err(), "{bad}");
        }
    }
}
