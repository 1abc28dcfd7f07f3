//! Learning an application from a capture: its requests and answers, or its packets each
//! way, as distributions and, up to a bound, word for word.
//!
//! Only headers are read: a capture cut at 128 bytes a packet is as good as a whole one.
//! docs/traffic.md tells what is learned and what is lost.

mod capture;
mod flows;
mod frame;
mod model;

pub use capture::{Capture, CaptureError, Packet};
pub use frame::{Segment, Skip, Transport, parse};

use flows::{Flow, Flows};
use netstage_core::traffic::application::{Application, ApplicationError};
use netstage_scenario::learned::{FORMAT, ModelFile, Read};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// Which flows of a capture are learned from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    tcp: Option<bool>,
    hosts: Vec<IpAddr>,
    port: Option<u16>,
}

impl FromStr for Filter {
    type Err = String;

    /// `tcp`, `udp`, `port N`, `host ADDRESS`, in any order; all of them must hold.
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
                    filter.port = Some(port.parse().map_err(|_| format!("`{port}` is no port"))?);
                }
                "host" => {
                    let host = value()?;
                    filter.hosts.push(host.parse().map_err(|_| format!("`{host}` is no address"))?);
                }
                _ => return Err(format!("`{word}`: expected tcp, udp, port N or host ADDRESS")),
            }
        }
        Ok(filter)
    }
}

impl Filter {
    fn takes(&self, flow: &Flow) -> bool {
        let ends = [flow.client, flow.server];
        self.tcp.is_none_or(|tcp| tcp == flow.tcp)
            && self.hosts.iter().all(|host| ends.iter().any(|end| end.ip() == *host))
            && self.port.is_none_or(|port| ends.iter().any(|end| end.port() == port))
    }
}

/// A model, and what should be said about it.
#[derive(Clone, Debug)]
pub struct Lesson {
    /// The file.
    pub file: ModelFile,
    /// In words, whom it was learned from: `tcp port 80 of 10.0.0.2`.
    pub subject: String,
    /// What a reader must know before trusting it.
    pub warnings: Vec<String>,
}

/// Why nothing was learned.
#[derive(Debug)]
pub enum LearnError {
    /// The capture cannot be read at all.
    Capture(CaptureError),
    /// It holds no packets.
    NoPackets,
    /// It holds no TCP or UDP; what it holds instead, in words.
    NoFlows(String),
    /// No flow passes the filter; the flows there are, in words.
    NothingPasses(String),
    /// The flows say nothing.
    Silent,
    /// What was learned cannot run.
    Unsound(ApplicationError),
}

impl fmt::Display for LearnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LearnError::Capture(error) => write!(f, "{error}"),
            LearnError::NoPackets => f.write_str("the capture holds no packets"),
            LearnError::NoFlows(instead) => write!(f, "the capture holds no TCP and no UDP{instead}"),
            LearnError::NothingPasses(flows) => {
                write!(f, "no flow of the capture passes the filter; it holds {flows}")
            }
            LearnError::Silent => f.write_str("the chosen flows carry no payload"),
            LearnError::Unsound(error) => write!(f, "the model learned cannot run: {error}"),
        }
    }
}

impl std::error::Error for LearnError {}

/// Learns from a capture called `name`. Without a filter, from the service with the most bytes.
pub fn learn(name: &str, reader: impl io::Read, filter: Option<&Filter>) -> Result<Lesson, LearnError> {
    let mut reading = Reading::default();
    reading.all(Capture::new(reader).map_err(LearnError::Capture)?);
    if reading.read.packets == 0 {
        return Err(match reading.ended {
            Some(error) => LearnError::Capture(error),
            None => LearnError::NoPackets,
        });
    }
    if reading.flows.flows.is_empty() {
        return Err(LearnError::NoFlows(reading.unknown_links()));
    }
    reading.lesson(name, filter)
}

/// A capture being read.
#[derive(Default)]
struct Reading {
    flows: Flows,
    read: Read,
    ended: Option<CaptureError>,
    first_broken: Option<u64>,
    links: BTreeMap<u16, u64>,
}

/// Whether TCP, and the server's port.
type Service = (bool, u16);

impl Reading {
    fn all(&mut self, mut capture: Capture<impl io::Read>) {
        loop {
            match capture.next_packet() {
                Ok(Some(packet)) => self.packet(&packet),
                Ok(None) => return,
                Err(error) => {
                    self.ended = Some(error);
                    return;
                }
            }
        }
    }

    fn packet(&mut self, packet: &Packet) {
        self.read.packets += 1;
        match parse(packet.link, &packet.data) {
            Ok(segment) if self.flows.add(&segment, packet.time_ns) => {}
            Ok(_) | Err(Skip::Other) => self.read.other += 1,
            Err(Skip::Broken) => {
                self.read.broken += 1;
                self.first_broken.get_or_insert(packet.number);
            }
            Err(Skip::UnknownLink(link)) => {
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
            format!(", but {}, which is not known here", links.join(", "))
        }
    }

    fn lesson(mut self, name: &str, filter: Option<&Filter>) -> Result<Lesson, LearnError> {
        let mut services: BTreeMap<Service, (u64, Vec<&Flow>)> = BTreeMap::new();
        for flow in &self.flows.flows {
            let entry = services.entry((flow.tcp, flow.server.port())).or_default();
            entry.0 += flow.bytes();
            entry.1.push(flow);
        }
        let listed = list(&services);
        if let Some(filter) = filter {
            for (bytes, flows) in services.values_mut() {
                flows.retain(|flow| filter.takes(flow));
                *bytes = flows.iter().map(|flow| flow.bytes()).sum();
            }
            services.retain(|_, (_, flows)| !flows.is_empty());
        }
        let several = services.len() > 1;
        let largest = services.into_iter().max_by_key(|(_, (bytes, _))| *bytes);
        let Some((service, (_, flows))) = largest else {
            return Err(LearnError::NothingPasses(listed));
        };
        let found = model::model(&flows).ok_or(LearnError::Silent)?;
        let application = Application::Learned { model: Arc::new(found.model.clone()), replay: false };
        application.check(found.model.carriage).map_err(LearnError::Unsound)?;
        self.read.flows = flows.len() as u64;
        self.read.used = flows.iter().map(|flow| flow.packets).sum();
        self.read.other = self.read.packets - self.read.broken - self.read.used;
        (self.read.clamped, self.read.complete) = (found.clamped, found.complete);
        let mut warnings = self.warnings();
        if several {
            warnings.push(format!("learned from {}; the capture holds {listed}", words(service)));
        }
        let file = ModelFile {
            format: FORMAT,
            capture: name.to_owned(),
            read: self.read,
            model: Arc::new(found.model),
            fit: found.fit,
        };
        Ok(Lesson { file, subject: words(service), warnings })
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(error) = &self.ended {
            warnings.push(format!("{error}; what comes before it is used"));
        }
        if let Some(first) = self.first_broken {
            let count = self.read.broken;
            warnings.push(format!("{count} broken packets are skipped, the first of them packet {first}"));
        }
        if !self.links.is_empty() {
            warnings.push(format!("left out{}", self.unknown_links().replacen(", but", ":", 1)));
        }
        if self.read.clamped > 0 {
            let least = netstage_core::traffic::application::HEADER;
            warnings.push(format!(
                "{} messages were smaller than {least} bytes, or larger than a message can be, and get the nearest size",
                self.read.clamped
            ));
        }
        if !self.read.complete {
            let most = model::MOST_RECORDED;
            warnings.push(format!("a replay says only a part: {most} turns or packets each way of one flow"));
        }
        warnings
    }
}

fn words((tcp, port): Service) -> String {
    format!("{} port {port}", if tcp { "tcp" } else { "udp" })
}

/// The largest services, in words.
fn list(services: &BTreeMap<Service, (u64, Vec<&Flow>)>) -> String {
    let mut largest: Vec<_> = services.iter().map(|(service, (bytes, _))| (*bytes, *service)).collect();
    largest.sort_unstable_by(|a, b| b.cmp(a));
    let shown: Vec<String> =
        largest.iter().take(5).map(|(bytes, service)| format!("{} ({bytes} B)", words(*service))).collect();
    let more = largest.len().saturating_sub(5);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &more
}
