//! Measurements between two agents of a fleet, or between this host and one that runs `netstage measure serve`. Each
//! command writes an ordinary scenario, whose text is in the record, and runs it.

pub mod rates;
pub mod rrul;
pub mod services;
pub mod transfer;

use super::{Family, KEY_VARIABLE, PORT, find_key, units};
use crate::cmd::run::{self, RunSettings};
use crate::exit::{self, Failure, OK};
use crate::stages;
use crate::state_folders::{FleetOption, failure};
use netstage_agent::fleet::{AgentStatus, FleetFolder};
use netstage_agent::measure::{LOCAL, REMOTE, source_address};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_host::shared_key::PresharedKey;
use netstage_scenario::{LoadOptions, did_you_mean};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Maximum rate of a sender without a limit of its own.
const DEFAULT_MAX_RATE: &str = "1 Gbit/s";

/// Options of all methods.
#[derive(clap::Args)]
pub struct Common {
    /// Host that runs `netstage measure serve`. Without a key, sending and receiving agent of a fleet; without FROM, the
    /// other agent of the fleet sends. NAME=ADDRESS selects an address of the agent
    #[arg(value_name = "[FROM] HOST", num_args = 1..=2, required = true, value_parser = end)]
    ends: Vec<AgentEnd>,
    /// File with the key of the server on HOST [default: environment variable NETSTAGE_KEY]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Control port of the server
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// Send from HOST
    #[arg(short = 'R', long)]
    reverse: bool,
    #[command(flatten)]
    family: Family,
    /// Line rate of the path, and maximum load at the IP layer, as 100M [default: `rate` in the sender's policy, or 1G]
    #[arg(short = 'm', long, value_name = "RATE", value_parser = units::rate)]
    max_rate: Option<BitRate>,
    /// Folder of the record [default: out/KIND-FROM-HOST, or the first free of out/KIND-FROM-HOST-2, …]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the scenario instead of running it
    #[arg(long)]
    print: bool,
    #[command(flatten)]
    fleet: FleetOption,
    /// Print the result, or the error, as JSON
    #[arg(long)]
    json: bool,
}

/// Agent at one end, with the address of its host for traffic.
#[derive(Clone)]
struct AgentEnd {
    agent: String,
    address: Option<IpAddr>,
}

/// Party that provides the other end, or both.
enum Peers {
    Fleet(FleetFolder),
    Server(SocketAddr, PresharedKey),
}

/// Ends of a measurement, for the text of its scenario.
struct MeasuredPath {
    from: AgentEnd,
    to: AgentEnd,
    /// Name of the host at the other end of the path, if it runs a server.
    server: Option<String>,
    max_rate: String,
    is_ipv6: bool,
    /// The sender's policy permits ICMP echo.
    permits_ping: bool,
}

impl Common {
    /// Writes the scenario of a measurement and runs it. `body` returns its tables other than nodes and links. Without
    /// `duration`, it has tests only.
    fn run(
        &self,
        (kind, title): (&str, &str),
        duration: Option<Duration>,
        body: impl FnOnce(&MeasuredPath) -> String,
    ) -> Result<u8, Failure> {
        let (peers, path) = self.path()?;
        let text = scenario((kind, title), duration, &path, &body(&path));
        let name = match &path.server {
            Some(host) => format!("{kind}-{}{host}", if self.reverse { "from-" } else { "" }),
            None => format!("{kind}-{}-{}", path.from.agent, path.to.agent),
        };
        let scenario =
            netstage_scenario::parse(&format!("{name}.toml"), &text, None, &LoadOptions::default())?;
        if self.print {
            return exit::print(text.as_bytes()).map(|()| OK);
        }
        let settings = RunSettings { out: self.out.clone(), json: self.json, ..RunSettings::default() };
        run::record(&scenario, Path::new(&name), &settings, |out| {
            Ok(match &peers {
                Peers::Fleet(fleet) => stages::live(fleet.clone(), out),
                Peers::Server(address, key) => stages::pair(*address, key.clone(), out),
            })
        })
    }

    /// Returns the ends: this host and a server if there is a key and one name, otherwise two agents of the fleet.
    fn path(&self) -> Result<(Peers, MeasuredPath), Failure> {
        match (&self.ends[..], find_key(self.key_file.as_deref())?) {
            ([host], Some(key)) => self.path_to_server(host, key),
            ([_, _], Some(_)) if self.key_file.is_some() => {
                Err(Failure::usage("--key-file is for a server, and FROM for agents of a fleet")
                    .help("give HOST alone, or omit --key-file"))
            }
            _ => {
                let fleet = self.fleet.open().map_err(|failure| match self.ends.len() {
                    1 => failure.help(format!(
                        "to measure to a host that runs `netstage measure serve`, give its key with --key-file or \
                         {KEY_VARIABLE}; to measure between agents, create a fleet: netstage fleet init"
                    )),
                    _ => failure,
                })?;
                let path = self.path_of_agents(&fleet)?;
                Ok((Peers::Fleet(fleet), path))
            }
        }
    }

    /// Returns the path between this host and a server.
    fn path_to_server(&self, host: &AgentEnd, key: PresharedKey) -> Result<(Peers, MeasuredPath), Failure> {
        let server = self.family.resolve(&host.agent, self.port)?;
        let own = source_address(server)
            .map_err(|error| Failure::run(format!("no route to {}: {error}", server.ip())))?;
        let end = |agent: &str, address| AgentEnd { agent: agent.into(), address: Some(address) };
        let (mut from, mut to) = (end(LOCAL, own.ip()), end(REMOTE, server.ip()));
        if self.reverse {
            (from, to) = (to, from);
        }
        let max_rate = self.max_rate_or(DEFAULT_MAX_RATE);
        let is_ipv6 = server.is_ipv6();
        let path = MeasuredPath {
            from,
            to,
            server: Some(host.agent.clone()),
            max_rate,
            is_ipv6,
            permits_ping: false,
        };
        Ok((Peers::Server(server, key), path))
    }

    /// Returns the path between two agents of the fleet.
    fn path_of_agents(&self, fleet: &FleetFolder) -> Result<MeasuredPath, Failure> {
        let agents = fleet.agents().map_err(failure)?;
        let (mut from, mut to) = match &self.ends[..] {
            [from, to] => (from.clone(), to.clone()),
            [to] => (sender(&agents, &to.agent)?, to.clone()),
            _ => unreachable!("clap requires one or two"),
        };
        if self.reverse {
            (from, to) = (to, from);
        }
        let sender = status(&agents, &from.agent)?;
        let receiver = status(&agents, &to.agent)?;
        if from.agent == to.agent {
            return Err(Failure::usage(format!("{} is sender and receiver", from.agent))
                .help("give two agents; `netstage fleet ls` lists them"));
        }
        let rule = |wanted: &str| sender.policy().find(|(rule, _)| *rule == wanted).map(|(_, value)| value);
        let permits_ping = rule("one_ended") == Some("true");
        let is_ipv6 = self.is_ipv6([&from, &to], [sender, receiver])?;
        let limit = rule("rate").and_then(|rate| rate.parse::<BitRate>().ok());
        // Packets of IPv6 may count with the headers of fragments.
        let share = if is_ipv6 { 0.95 } else { 1.0 };
        let limit = limit.map(|limit| format!("{} bit/s", (limit.as_f64() * share) as u64));
        let max_rate = self.max_rate_or(limit.as_deref().unwrap_or(DEFAULT_MAX_RATE));
        Ok(MeasuredPath { from, to, server: None, max_rate, is_ipv6, permits_ping })
    }

    /// Returns whether agents measure over IPv6: as the options or the given addresses say, otherwise if it is the only
    /// version at whose addresses the controller sees both.
    fn is_ipv6(&self, ends: [&AgentEnd; 2], agents: [&AgentStatus; 2]) -> Result<bool, Failure> {
        let chosen = self.family.is_ipv6();
        let given = ends.into_iter().filter_map(|end| Some((&end.agent, end.address?.is_ipv6())));
        for (agent, is_ipv6) in given.clone() {
            let wanted = chosen.or_else(|| given.clone().next().map(|(_, first)| first));
            if wanted != Some(is_ipv6) {
                let version = if is_ipv6 { "IPv6" } else { "IPv4" };
                let message =
                    format!("the address of {agent} is one of {version}, and the measurement is not");
                return Err(
                    Failure::usage(message).help("give addresses of one IP version, and omit -4 and -6")
                );
            }
        }
        let both_have = |is_ipv6: bool| {
            agents.iter().all(|agent| agent.mappings.iter().any(|seen| seen.address.is_ipv6() == is_ipv6))
        };
        let only_ipv6 = both_have(true) && !both_have(false);
        Ok(chosen.or_else(|| given.clone().next().map(|(_, first)| first)).unwrap_or(only_ipv6))
    }

    /// Returns the line rate, or `default` if the user gave none.
    fn max_rate_or(&self, default: &str) -> String {
        self.max_rate.map_or_else(|| default.to_owned(), |rate| format!("{} bit/s", rate.0))
    }
}

/// Returns the status of an agent of the fleet.
fn status<'a>(agents: &'a [AgentStatus], name: &str) -> Result<&'a AgentStatus, Failure> {
    agents.iter().find(|agent| agent.name == name).ok_or_else(|| {
        let help = did_you_mean(name, agents.iter().map(|agent| agent.name.as_str()));
        Failure::usage(format!("there is no agent {name}")).help(help.unwrap_or_else(|| {
            "`netstage fleet ls` lists the agents; to add a host, run `netstage fleet token NAME`".into()
        }))
    })
}

/// Returns the only agent that can send to `receiver`.
fn sender(agents: &[AgentStatus], receiver: &str) -> Result<AgentEnd, Failure> {
    status(agents, receiver)?;
    let others: Vec<&str> =
        agents.iter().map(|agent| agent.name.as_str()).filter(|name| *name != receiver).collect();
    match others[..] {
        [name] => Ok(AgentEnd { agent: name.to_owned(), address: None }),
        [] => Err(Failure::usage(format!("{receiver} is the only agent of the fleet"))
            .help("add the sending host: netstage fleet token NAME")),
        _ => Err(Failure::usage(format!("several agents can send to {receiver}: {}", others.join(", ")))
            .help(format!("give the sender before {receiver}"))),
    }
}

/// Parses NAME or NAME=ADDRESS.
fn end(text: &str) -> Result<AgentEnd, String> {
    let (agent, address) = match text.split_once('=') {
        Some((agent, address)) => {
            let parsed = address.parse();
            (agent, Some(parsed.map_err(|_| format!("{address} is not an IP address of the agent's host"))?))
        }
        None => (text, None),
    };
    Ok(AgentEnd { agent: agent.to_owned(), address })
}

/// Returns the text of a scenario between two agents.
fn scenario(
    (kind, title): (&str, &str),
    duration: Option<Duration>,
    path: &MeasuredPath,
    body: &str,
) -> String {
    let MeasuredPath { from, to, server, max_rate, .. } = path;
    let (near, far) = (&from.agent, &to.agent);
    let (ends, remark) = match server {
        Some(host) if near == LOCAL => (format!("to {host}"), ""),
        Some(host) => (format!("from {host}"), ""),
        None => {
            let remark = " To change it, edit a copy and run `netstage run FILE --on live`.";
            (format!("from {near} to {far}"), remark)
        }
    };
    let place = |end: &AgentEnd| match end.address {
        Some(address) => format!("{{ agent = \"{}\", address = \"{address}\" }}", end.agent),
        None => format!("\"{}\"", end.agent),
    };
    let duration = duration.map_or(String::new(), |time| format!("duration = {}\n", quoted(time)));
    format!(
        "# Written by `netstage measure {kind}`.{remark}\n\
         \n[scenario]\ntitle = \"{title} {ends}\"\n{duration}\
         \n[node.{near}]\n[node.{far}]\n\
         \n# The link stands for the network between the hosts; its rate is the maximum load.\n\
         [link.path]\nends = [\"{near}\", \"{far}\"]\nrate = \"{max_rate}\"\nbuffer = \"100 packets\"\n\
         \n[place]\n{near} = {}\n{far} = {}\n{body}",
        place(from),
        place(to)
    )
}

/// Returns a time as a value in a scenario.
fn quoted(time: Duration) -> String {
    format!("\"{} s\"", time.as_secs_f64())
}

/// Text of a `[test.NAME]` table.
struct TestText(String);

impl TestText {
    fn new(name: &str, kind: &str, path: &MeasuredPath) -> TestText {
        let (from, to) = (&path.from.agent, &path.to.agent);
        let text = format!("\n[test.{name}]\nkind = \"{kind}\"\nfrom = \"{from}\"\nto = \"{to}\"\n");
        TestText(text).text("ip", path.is_ipv6.then_some("v6"))
    }

    /// Adds a field whose value is not a string, if there is a value.
    fn field(mut self, name: &str, value: Option<impl std::fmt::Display>) -> TestText {
        if let Some(value) = value {
            let _ = writeln!(self.0, "{name} = {value}");
        }
        self
    }

    /// Adds a field of text, if there is a value.
    fn text(self, name: &str, value: Option<impl std::fmt::Display>) -> TestText {
        self.field(name, value.map(|value| format!("\"{value}\"")))
    }

    fn time(self, name: &str, value: Option<Duration>) -> TestText {
        self.field(name, value.map(quoted))
    }

    fn frame_sizes(self, sizes: &[u64]) -> TestText {
        let quoted: Vec<String> = sizes.iter().map(|size| format!("\"{size} B\"")).collect();
        self.field("frame_sizes", (!sizes.is_empty()).then(|| format!("[{}]", quoted.join(", "))))
    }
}
