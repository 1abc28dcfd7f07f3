//! `netstage fleet`: agents on other hosts, and the controller they dial.

use super::table::{Table, counted, time};
use crate::exit::{FAILED, Failure, OK, print};
use netstage_agent::controller::{Agents, Place};
use netstage_agent::fleet::folder::Grant;
use netstage_agent::fleet::hub::Hub;
use netstage_agent::fleet::runs::Runs;
use netstage_agent::fleet::{self, AgentStatus, Fleet, State};
use netstage_host::log::{Level, Log};
use netstage_host::obstacle::Obstacle;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Subcommands of `fleet`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Make a fleet: its certificate authority, and a folder for what is known of it
    Init {
        #[command(flatten)]
        folder: Folder,
        /// Its name, which agents' policies know it by
        #[arg(long, value_name = "NAME", default_value = "fleet")]
        name: String,
    },
    /// Be the controller: agents dial this process
    Serve {
        #[command(flatten)]
        folder: Folder,
        /// Where agents dial
        #[arg(long, value_name = "ADDRESS:PORT")]
        listen: SocketAddr,
        /// Tell metrics for Prometheus there [without an address: 127.0.0.1:4702]
        #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:4702")]
        metrics: Option<SocketAddr>,
    },
    /// Print a token that lets one host join, once
    Token {
        #[command(flatten)]
        folder: Folder,
        /// The name the agent will have
        agent: String,
        /// A label, by which scenarios may choose it; may be given several times
        #[arg(long, value_name = "LABEL")]
        label: Vec<String>,
        /// How long the token is good, as 15min, 1h or 2d
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = span)]
        valid: Duration,
        /// How long the agent's certificates last; it renews them itself
        #[arg(long, value_name = "TIME", default_value = "90d", value_parser = span)]
        certificate: Duration,
    },
    /// On the agent's host: join a fleet by a token
    Join {
        /// Where the controller listens: host and port
        controller: String,
        /// The token; `-` reads it from standard input
        token: String,
        #[command(flatten)]
        state: StateFolder,
    },
    /// List the agents
    Ls {
        #[command(flatten)]
        folder: Folder,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove an agent: its certificate is worth nothing from then on
    Remove {
        #[command(flatten)]
        folder: Folder,
        /// The agent
        agent: String,
    },
    /// Tell what is wrong with the agents, and what helps
    Doctor {
        #[command(flatten)]
        folder: Folder,
    },
    /// Compare the agents' clocks with the controller's
    Clock {
        #[command(flatten)]
        folder: Folder,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// List runs that are not closed, and fetch what agents keep of them
    Runs {
        #[command(flatten)]
        folder: Folder,
        /// Fetch reports that agents keep
        #[arg(long)]
        fetch: bool,
    },
    /// Close a run: what is missing of it is expected no more
    Close {
        #[command(flatten)]
        folder: Folder,
        /// The run's number
        run: u64,
    },
}

/// Which fleet.
#[derive(clap::Args)]
pub struct Folder {
    /// The fleet's folder [default: /var/lib/netstage/fleet for root, else ~/.local/state/netstage/fleet]
    #[arg(long = "fleet", value_name = "DIR", env = "NETSTAGE_FLEET")]
    folder: Option<PathBuf>,
}

impl Folder {
    /// Where it is, if there is one.
    pub fn path(&self) -> PathBuf {
        self.folder.clone().unwrap_or_else(fleet::folder::of_here)
    }

    /// The fleet there.
    pub fn open(&self) -> Result<Fleet, Failure> {
        Fleet::open(&self.path()).map_err(failure)
    }
}

/// Where an agent keeps what it knows of its fleet.
#[derive(clap::Args)]
pub struct StateFolder {
    /// The agent's folder [default: /var/lib/netstage/agent for root, else ~/.local/state/netstage/agent]
    #[arg(long = "state", value_name = "DIR")]
    folder: Option<PathBuf>,
}

impl StateFolder {
    /// The folder.
    pub fn path(&self) -> PathBuf {
        self.folder.clone().unwrap_or_else(|| fleet::folder::of_user("agent"))
    }
}

/// Runs the command.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Init { folder, name } => {
            let fleet = Fleet::create(&folder.path(), name).map_err(failure)?;
            let next = "next: netstage fleet serve --listen ADDRESS:PORT, and netstage fleet token AGENT";
            print(format!("fleet {} in {}\n{next}\n", fleet.name, fleet.folder().display()).as_bytes())?;
            Ok(OK)
        }
        Command::Serve { folder, listen, metrics } => serve(folder.open()?, *listen, *metrics),
        Command::Token { folder, agent, label, valid, certificate } => {
            let (agent, labels) = (agent.clone(), label.clone());
            let grant = Grant { agent, labels, valid: *valid, lasting: *certificate };
            let token = folder.open()?.token(&grant).map_err(failure)?;
            print(format!("{token}\n").as_bytes()).map(|()| OK)
        }
        Command::Join { controller, token, state } => join(controller, token, &state.path()),
        Command::Ls { folder, json } => list(&folder.open()?, *json),
        Command::Remove { folder, agent } => {
            folder.open()?.remove(agent).map_err(failure)?;
            print(format!("{agent} is no agent of this fleet any more\n").as_bytes()).map(|()| OK)
        }
        Command::Doctor { folder } => doctor(&folder.open()?),
        Command::Clock { folder, json } => clock(&folder.open()?, *json),
        Command::Runs { folder, fetch } => runs(&folder.open()?, *fetch),
        Command::Close { folder, run } => {
            let mut runs = Runs::of(&folder.open()?).map_err(failure)?;
            runs.close(*run).map_err(|_| {
                Failure::usage(format!("there is no run {run}"))
                    .help("`netstage fleet runs` lists those that are not closed")
            })?;
            print(
                format!("run {run} is closed; its reports are in {}\n", runs.path(*run).display()).as_bytes(),
            )?;
            Ok(OK)
        }
    }
}

/// What a fleet cannot do.
pub fn failure(error: Obstacle) -> Failure {
    Failure::usage(error.message).help(error.remedy)
}

/// A log to standard error.
pub fn log(of: &'static str) -> Log {
    Arc::new(move |level, line| {
        let mark = if level == Level::Alarm { "alarm: " } else { "" };
        let _ = writeln!(io::stderr(), "netstage {of}: {mark}{line}");
    })
}

fn serve(fleet: Fleet, listen: SocketAddr, metrics: Option<SocketAddr>) -> Result<u8, Failure> {
    let log = log("fleet");
    let mut hub = Hub::bind(fleet, listen, Arc::clone(&log)).map_err(failure)?;
    let ender = hub.ender();
    ctrlc::set_handler(move || ender.end()).map_err(|e| Failure::run(format!("no signal handler: {e}")))?;
    let address = hub.address().map_err(|error| Failure::run(error.to_string()))?;
    log(Level::Note, &format!("agents dial {address}"));
    if let Some(address) = metrics {
        hub.tell_metrics(address);
    }
    hub.serve().map_err(|error| Failure::run(format!("the controller failed: {error}")))?;
    Ok(OK)
}

fn join(controller: &str, token: &str, state: &Path) -> Result<u8, Failure> {
    let read = match token {
        "-" => io::read_to_string(io::stdin()).map_err(|error| Failure::usage(error.to_string()))?,
        token => token.to_owned(),
    };
    let token = read.parse::<fleet::token::Token>().map_err(|error| Failure::usage(error.to_string()))?;
    let membership = fleet::member::join(state, controller, &token).map_err(failure)?;
    let text = format!(
        "joined fleet {} as {}; its identity is in {}\nnext: netstage agent --state {}\n",
        membership.controller,
        membership.name,
        state.display(),
        state.display()
    );
    print(text.as_bytes()).map(|()| OK)
}

fn agents(fleet: &Fleet) -> Result<Vec<AgentStatus>, Failure> {
    fleet.agents().map_err(failure)
}

fn as_json(value: &impl serde::Serialize) -> Result<u8, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::run(error.to_string()))?;
    print(format!("{text}\n").as_bytes()).map(|()| OK)
}

fn list(fleet: &Fleet, json: bool) -> Result<u8, Failure> {
    let agents = agents(fleet)?;
    if json {
        return as_json(&agents);
    }
    let mut table =
        Table::new(&["agent", "state", "labels", "address", "version", "last seen", "certificate"]);
    for agent in &agents {
        table.row([
            agent.name.clone(),
            agent.state.to_string(),
            agent.labels.join(" "),
            agent.address.map(|address| address.to_string()).unwrap_or_default(),
            agent.version.clone(),
            agent
                .last_seen_ns
                .map(|at| format!("{} ago", time(now_ns().saturating_sub(at))))
                .unwrap_or_default(),
            expiry(agent),
        ]);
    }
    let mut text = table.text();
    if agents.is_empty() {
        text = "no agent has joined; `netstage fleet token NAME` lets one\n".into();
    } else if !fleet.is_served() {
        text.push_str("nobody serves this fleet now: netstage fleet serve --listen ADDRESS:PORT\n");
    }
    print(text.as_bytes()).map(|()| OK)
}

fn expiry(agent: &AgentStatus) -> String {
    match agent.certificate_expires_s.checked_sub(now_ns() / 1_000_000_000) {
        Some(left) => time(left * 1_000_000_000),
        None => "expired".into(),
    }
}

fn doctor(fleet: &Fleet) -> Result<u8, Failure> {
    let mut found = Vec::new();
    if !fleet.is_served() {
        found.push("nobody serves this fleet: netstage fleet serve --listen ADDRESS:PORT".to_owned());
    }
    let agents = agents(fleet)?;
    for agent in &agents {
        let mut tell = |what: &str| found.push(format!("{}: {what}", agent.name));
        match agent.state {
            State::NeverSeen => tell(
                "has joined and never dialled; start it there: netstage agent, or systemctl start netstage-agent",
            ),
            State::Offline => tell(
                "is not there; look at its log (journalctl -u netstage-agent), and at the way to the controller",
            ),
            State::Idle | State::Taken => {}
        }
        if agent.certificate_expires_s < now_ns() / 1_000_000_000 {
            tell("its certificate has expired; remove it here and join it again");
        }
        if !agent.version.is_empty() && agent.version != env!("CARGO_PKG_VERSION") {
            tell(&format!("runs netstage {}, the controller {}", agent.version, env!("CARGO_PKG_VERSION")));
        }
        for (service, lacking) in agent.services() {
            if let Some(packages) = lacking {
                tell(&format!(
                    "its policy allows {service}, which lacks programs: apt-get install {packages}"
                ));
            }
        }
        if let Some((false, _)) = agent.wall_clock {
            tell(
                "nothing keeps its wall clock right (NTP, PTP): its clock drifts against others, and one-way delays with it",
            );
        }
        if let Some(clock) = agent.clock.filter(|clock| clock.error_ns > 5_000_000) {
            tell(&format!(
                "its clock is known to ± {} only; one-way delays carry that error",
                time(clock.error_ns)
            ));
        }
    }
    let open = Runs::of(fleet).map_err(failure)?.open_runs();
    for (run, opened) in &open {
        let told = format!(
            "run {run} ({}) is not closed: netstage fleet runs --fetch, or netstage fleet close {run}",
            opened.title
        );
        found.push(told);
    }
    let mut serves = String::new();
    for agent in &agents {
        let able = agent.services().filter(|(_, lacking)| lacking.is_none()).map(|(service, _)| service);
        let able: Vec<&str> = able.collect();
        if !able.is_empty() {
            serves.push_str(&format!("{}: can be an end of services: {}\n", agent.name, able.join(", ")));
        }
    }
    let text = match found.is_empty() {
        true => format!("{}, all well\n", counted(agents.len(), "agent")),
        false => found.join("\n") + "\n",
    };
    print((serves + &text).as_bytes())?;
    Ok(if found.is_empty() { OK } else { FAILED })
}

fn clock(fleet: &Fleet, json: bool) -> Result<u8, Failure> {
    let agents = agents(fleet)?;
    if json {
        let clocks: Vec<_> = agents
            .iter()
            .map(|agent| serde_json::json!({ "name": agent.name, "clock": agent.clock, "wall_clock": agent.wall_clock }))
            .collect();
        return as_json(&clocks);
    }
    let mut table = Table::new(&["agent", ">offset ms", ">± us", "wall clock"]);
    for agent in &agents {
        let (offset, error) = match agent.clock {
            Some(clock) if clock.same_clock => ("same clock".into(), "0".into()),
            Some(clock) => (
                format!("{:.3}", clock.offset_ns as f64 / 1e6),
                format!("{:.1}", clock.error_ns as f64 / 1e3),
            ),
            None => ("unknown".into(), String::new()),
        };
        let wall = match agent.wall_clock {
            Some((true, error_ns)) => format!("synchronized, ± {}", time(error_ns)),
            Some((false, _)) => "nothing keeps it right".into(),
            None => "unknown".into(),
        };
        table.row([agent.name.clone(), offset, error, wall]);
    }
    print(table.text().as_bytes()).map(|()| OK)
}

fn runs(fleet: &Fleet, fetch: bool) -> Result<u8, Failure> {
    let mut runs = Runs::of(fleet).map_err(failure)?;
    let mut text = String::new();
    if fetch {
        let there = agents(fleet)?.into_iter().filter(|agent| agent.state == State::Idle);
        let places = there.map(|agent| (agent.name, Place::Fleet(fleet.socket()))).collect();
        let agents = Agents::connect(places).map_err(|error| Failure::run(error.to_string()))?;
        let (mut fetched, mut problems) = (0, Vec::new());
        let losses = agents.fetch_kept(|agent, run, report| match runs.receive(run, agent, report) {
            Ok(receipt) => {
                fetched += usize::from(receipt == netstage_core::fleet::Receipt::New);
                receipt != netstage_core::fleet::Receipt::Unexpected
            }
            Err(error) => {
                problems.push(format!("{agent}: the report of run {run} cannot be kept here: {error}"));
                false
            }
        });
        agents.finish();
        text.push_str(&format!("{} fetched\n", counted(fetched, "report")));
        problems.extend(losses.iter().map(ToString::to_string));
        problems.iter().for_each(|problem| text.push_str(&format!("{problem}\n")));
    }
    let mut table = Table::new(&[">run", "title", "opened", ">agents", ">missing", "folder"]);
    for (run, opened) in runs.open_runs() {
        table.row([
            run.to_string(),
            opened.title.clone(),
            format!("{} ago", time(now_ns().saturating_sub(opened.opened_s * 1_000_000_000))),
            opened.agents.len().to_string(),
            runs.missing(run).len().to_string(),
            runs.path(run).display().to_string(),
        ]);
    }
    text.push_str(&table.text());
    if text.is_empty() {
        text = "all runs are closed\n".into();
    }
    print(text.as_bytes()).map(|()| OK)
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// A time such as 90s, 15min, 1h or 2d.
fn span(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a time such as 90s, 15min, 1h or 2d".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let count: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit = match text[digits..].trim() {
        "s" => 1,
        "min" | "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let seconds = count.checked_mul(unit).filter(|seconds| (1..=20 * 366 * 86_400).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "expected a time of 1 s to 20 years".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_bounds() {
        assert_eq!(span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(span("15min"), Ok(Duration::from_secs(900)));
        assert_eq!(span("2d"), Ok(Duration::from_secs(172_800)));
        for wrong in ["", "1", "h", "1w", "-1h", "0s", "99999999999999999999d", "30000d"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }
}
