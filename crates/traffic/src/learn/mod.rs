//! Learns the model of an application from a capture: its requests and responses, or its packets in each direction,
//! as distributions and, up to a limit, as a recording.
//!
//! Only headers are read, so a capture of 128 bytes per packet suffices. docs/traffic.md describes the contents and
//! the limits of a model.

mod capture;
mod fit;
mod flows;
mod frame;
mod model;

pub use capture::{Capture, CaptureError, CapturedPacket};
pub use frame::{CapturedSegment, SegmentTransport, SkipReason, parse};

use flows::{CapturedFlow, CapturedFlows};
use netstage_core::traffic::application::{Application, ApplicationError};
use netstage_scenario::learned::{CaptureCounts, FORMAT, ModelFile};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// Selection of flows of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    tcp: Option<bool>,
    hosts: Vec<IpAddr>,
    port: Option<u16>,
}

impl FromStr for Filter {
    type Err = String;

    /// Parses `tcp`, `udp`, `port N` and `host ADDRESS` in any order. A flow must match all of them.
    fn from_str(text: &str) -> Result<Filter, String> {
        let mut filter = Filter::default();
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("`{word}` needs a value"));
            match word {
                "tcp" => filter.tcp = Some(true),
                "udp" => filter.tcp = Some(false),
                "and" => {}
                "port" => {
                    let port = value()?;
                    filter.port = Some(port.parse().map_err(|_| format!("`{port}` is not a port"))?);
                }
                "host" => {
                    let host = value()?;
                    filter.hosts.push(host.parse().map_err(|_| format!("`{host}` is not an address"))?);
                }
                _ => return Err(format!("`{word}`: expected tcp, udp, port N or host ADDRESS")),
            }
        }
        Ok(filter)
    }
}

impl Filter {
    fn matches(&self, flow: &CapturedFlow) -> bool {
        let ends = [flow.client, flow.server];
        self.tcp.is_none_or(|tcp| tcp == flow.tcp)
            && self.hosts.iter().all(|host| ends.iter().any(|end| end.ip() == *host))
            && self.port.is_none_or(|port| ends.iter().any(|end| end.port() == port))
    }
}

/// Model learned from a capture.
#[derive(Clone, Debug)]
pub struct LearnedApplication {
    /// Model file.
    pub file: ModelFile,
    /// Service from which the model was learned, such as `tcp port 80`.
    pub subject: String,
    /// Limitations of the model.
    pub warnings: Vec<String>,
}

/// Error of learning from a capture.
#[derive(Debug)]
pub enum LearnError {
    /// The capture cannot be read.
    Capture(CaptureError),
    /// The capture has no packets.
    NoPackets,
    /// The capture has neither TCP nor UDP. The text describes its unsupported link types.
    NoFlows(String),
    /// No flow matches the filter. The text lists the existing flows.
    NoMatchingFlow(String),
    /// The flows have no payload.
    NoPayload,
    /// The learned model cannot run.
    InvalidModel(ApplicationError),
}

impl fmt::Display for LearnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LearnError::Capture(error) => write!(f, "{error}"),
            LearnError::NoPackets => f.write_str("the capture holds no packets"),
            LearnError::NoFlows(links) => write!(f, "the capture holds no TCP and no UDP{links}"),
            LearnError::NoMatchingFlow(flows) => {
                write!(f, "no flow of the capture matches the filter; it holds {flows}")
            }
            LearnError::NoPayload => f.write_str("the selected flows carry no payload"),
            LearnError::InvalidModel(error) => write!(f, "the learned model cannot run: {error}"),
        }
    }
}

impl std::error::Error for LearnError {}

/// Learns a model from a capture named `name`: from the service with the most bytes among the flows that match the
/// filter.
pub fn learn(
    name: &str,
    reader: impl io::Read,
    filter: Option<&Filter>,
) -> Result<LearnedApplication, LearnError> {
    let mut reading = CaptureContents::default();
    reading.read_packets(Capture::new(reader).map_err(LearnError::Capture)?);
    if reading.read.packets == 0 {
        return Err(match reading.end_error {
            Some(error) => LearnError::Capture(error),
            None => LearnError::NoPackets,
        });
    }
    if reading.flows.flows.is_empty() {
        return Err(LearnError::NoFlows(reading.unknown_links()));
    }
    reading.lesson(name, filter)
}

/// Contents of a capture.
#[derive(Default)]
struct CaptureContents {
    flows: CapturedFlows,
    read: CaptureCounts,
    /// Error that ended the reading early.
    end_error: Option<CaptureError>,
    first_broken: Option<u64>,
    links: BTreeMap<u16, u64>,
}

/// Transport protocol (true for TCP) and port of the server.
type ServiceKey = (bool, u16);

impl CaptureContents {
    fn read_packets(&mut self, mut capture: Capture<impl io::Read>) {
        loop {
            match capture.next_packet() {
                Ok(Some(packet)) => self.packet(&packet),
                Ok(None) => return,
                Err(error) => {
                    self.end_error = Some(error);
                    return;
                }
            }
        }
    }

    fn packet(&mut self, packet: &CapturedPacket) {
        self.read.packets += 1;
        match parse(packet.link, &packet.data) {
            Ok(segment) if self.flows.add(&segment, packet.time_ns) => {}
            Ok(_) | Err(SkipReason::Other) => self.read.other += 1,
            Err(SkipReason::Malformed) => {
                self.read.broken += 1;
                self.first_broken.get_or_insert(packet.number);
            }
            Err(SkipReason::UnknownLink(link)) => {
                self.read.other += 1;
                *self.links.entry(link).or_default() += 1;
            }
        }
    }

    fn unknown_links(&self) -> String {
        let links: Vec<String> =
            self.links.iter().map(|(link, count)| format!("{count} packets of link type {link}")).collect();
        if links.is_empty() {
            String::new()
        } else {
            format!(", but {}, which is not supported", links.join(", "))
        }
    }

    fn lesson(mut self, name: &str, filter: Option<&Filter>) -> Result<LearnedApplication, LearnError> {
        let mut services: BTreeMap<ServiceKey, (u64, Vec<&CapturedFlow>)> = BTreeMap::new();
        for flow in &self.flows.flows {
            let entry = services.entry((flow.tcp, flow.server.port())).or_default();
            entry.0 += flow.bytes();
            entry.1.push(flow);
        }
        let largest_services = list(&services);
        if let Some(filter) = filter {
            for (bytes, flows) in services.values_mut() {
                flows.retain(|flow| filter.matches(flow));
                *bytes = flows.iter().map(|flow| flow.bytes()).sum();
            }
            services.retain(|_, (_, flows)| !flows.is_empty());
        }
        let several = services.len() > 1;
        let largest = services.into_iter().max_by_key(|(_, (bytes, _))| *bytes);
        let Some((service, (_, flows))) = largest else {
            return Err(LearnError::NoMatchingFlow(largest_services));
        };
        let fitted = model::fit_model(&flows).ok_or(LearnError::NoPayload)?;
        let application = Application::Learned { model: Arc::new(fitted.model.clone()), replay: false };
        application.check(fitted.model.carriage).map_err(LearnError::InvalidModel)?;
        self.read.flows = flows.len() as u64;
        self.read.used = flows.iter().map(|flow| flow.packets).sum();
        self.read.other = self.read.packets - self.read.broken - self.read.used;
        (self.read.clamped, self.read.complete) = (fitted.clamped, fitted.complete);
        let mut warnings = self.warnings();
        let without = flows.iter().filter(|flow| flow.tcp && !flow.has_handshake()).count();
        if without > 0 {
            warnings.push(format!(
                "{without} of {} connections have no handshake in the capture, so their times at the client and the server \
                 include round trips; a simulation adds those of its own network",
                flows.len()
            ));
        }
        let misfits: Vec<&str> =
            fitted.fit.iter().filter(|fit| fit.held_out.differs()).map(|fit| fit.quantity.as_str()).collect();
        if !misfits.is_empty() {
            warnings.push(format!(
                "the model does not fit: {} of one part of the capture differ from the model of the others; use `replay = true`",
                misfits.join(", ")
            ));
        }
        if several {
            warnings.push(format!("learned from {}; the capture holds {largest_services}", words(service)));
        }
        let file = ModelFile {
            format: FORMAT,
            capture: name.to_owned(),
            read: self.read,
            model: Arc::new(fitted.model),
            fit: fitted.fit,
        };
        Ok(LearnedApplication { file, subject: words(service), warnings })
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(error) = &self.end_error {
            warnings.push(format!("{error}; earlier packets are used"));
        }
        if let Some(first) = self.first_broken {
            let count = self.read.broken;
            warnings.push(format!("{count} malformed packets skipped; the first is packet {first}"));
        }
        if !self.links.is_empty() {
            warnings.push(format!("left out{}", self.unknown_links().replacen(", but", ":", 1)));
        }
        if self.read.clamped > 0 {
            let min = netstage_core::traffic::application::HEADER;
            warnings.push(format!(
                "{} messages smaller than {min} bytes, or larger than the maximum, were changed to the nearest valid size",
                self.read.clamped
            ));
        }
        if !self.read.complete {
            let max = model::MAX_RECORDED;
            warnings.push(format!(
                "a replay is incomplete: it is limited to {max} turns, or {max} packets of one flow in each direction"
            ));
        }
        warnings
    }
}

fn words((tcp, port): ServiceKey) -> String {
    format!("{} port {port}", if tcp { "tcp" } else { "udp" })
}

/// Lists the five largest services.
fn list(services: &BTreeMap<ServiceKey, (u64, Vec<&CapturedFlow>)>) -> String {
    let mut largest: Vec<_> = services.iter().map(|(service, (bytes, _))| (*bytes, *service)).collect();
    largest.sort_unstable_by(|a, b| b.cmp(a));
    let shown: Vec<String> =
        largest.iter().take(5).map(|(bytes, service)| format!("{} ({bytes} B)", words(*service))).collect();
    let count = largest.len().saturating_sub(5);
    let more = if count > 0 { format!(" and {count} more") } else { String::new() };
    shown.join(", ") + &more
}
