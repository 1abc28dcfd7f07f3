//! `netstage fleet`: agents on other hosts and the controller they connect to.

use super::table::{Table, counted, time};
use crate::exit::{FAILED, Failure, OK, print};
use crate::state_folders::{AgentOption, FleetOption, failure};
use netstage_agent::controller::{AgentAddress, ControlledAgents};
use netstage_agent::fleet::folder::TokenGrant;
use netstage_agent::fleet::hub::Hub;
use netstage_agent::fleet::runs::FleetRuns;
use netstage_agent::fleet::{self, AgentAvailability, AgentStatus, FleetFolder};
use netstage_core::fleet::{Receipt, run_number};
use netstage_host::log::{Level, Log};
use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const INIT_EXAMPLES: &str = "Examples:
  netstage fleet init --name lab";
const SERVE_EXAMPLES: &str = "Examples:
  netstage fleet serve --listen 0.0.0.0:4700
  netstage fleet serve --listen 192.0.2.1:4700 --metrics";
const TOKEN_EXAMPLES: &str = "Examples:
  netstage fleet token north --label edge --valid 2h";
const JOIN_EXAMPLES: &str = "Examples:
  netstage fleet join controller.example:4700 TOKEN
  ssh controller netstage fleet token north | netstage fleet join controller.example:4700 -";
const LS_EXAMPLES: &str = "Examples:
  netstage fleet ls
  netstage fleet ls --json";
const RESTORE_EXAMPLES: &str = "Examples:
  netstage fleet restore";
const REMOVE_EXAMPLES: &str = "Examples:
  netstage fleet remove north";
const ROTATE_EXAMPLES: &str = "Examples:
  netstage fleet rotate
  netstage fleet rotate --transition 1h";
const DOCTOR_EXAMPLES: &str = "Examples:
  netstage fleet doctor";
const POLICIES_EXAMPLES: &str = "Examples:
  netstage fleet policies
  netstage fleet policies --json";
const CLOCK_EXAMPLES: &str = "Examples:
  netstage fleet clock";
const RUNS_EXAMPLES: &str = "Examples:
  netstage fleet runs
  netstage fleet runs --fetch";
const CLOSE_EXAMPLES: &str = "Examples:
  netstage fleet close 12";

/// Subcommands of `fleet`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Create a fleet: its folder and certificate authority
    #[command(after_help = INIT_EXAMPLES)]
    Init {
        #[command(flatten)]
        folder: FleetOption,
        /// Name of the fleet, as in agents' policies
        #[arg(long, value_name = "NAME", default_value = "fleet")]
        name: String,
    },
    /// Run the controller that agents connect to
    #[command(after_help = SERVE_EXAMPLES)]
    Serve {
        #[command(flatten)]
        folder: FleetOption,
        /// Address to listen on for agents
        #[arg(long, value_name = "ADDRESS:PORT")]
        listen: SocketAddr,
        /// Serve Prometheus metrics [address if omitted: 127.0.0.1:4702]
        #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:4702")]
        metrics: Option<SocketAddr>,
    },
    /// Print a token for one host to join once
    #[command(after_help = TOKEN_EXAMPLES)]
    Token {
        #[command(flatten)]
        folder: FleetOption,
        /// Name of the new agent
        agent: String,
        /// Label by which scenarios select the agent; repeatable
        #[arg(long, value_name = "LABEL")]
        label: Vec<String>,
        /// Validity of the token, as 15min, 1h or 2d
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = span)]
        valid: Duration,
        /// Validity of the agent's certificates; agents renew them
        #[arg(long, value_name = "TIME", default_value = "90d", value_parser = span)]
        certificate: Duration,
    },
    /// Join a fleet with a token; run this on the agent's host
    #[command(after_help = JOIN_EXAMPLES)]
    Join {
        /// Controller, as HOST:PORT
        controller: String,
        /// Token; - reads it from standard input
        token: String,
        #[command(flatten)]
        state: AgentOption,
    },
    /// List the agents
    #[command(after_help = LS_EXAMPLES)]
    Ls {
        #[command(flatten)]
        folder: FleetOption,
        /// Print the agents as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove an agent and revoke its certificate
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove {
        #[command(flatten)]
        folder: FleetOption,
        /// Name of the agent
        agent: String,
    },
    /// Replace the certificate authority; connected agents renew their certificates
    #[command(after_help = ROTATE_EXAMPLES)]
    Rotate {
        #[command(flatten)]
        folder: FleetOption,
        /// Time for which the old authority is trusted, too, as 1h or 7d
        #[arg(long, value_name = "TIME", default_value = "7d", value_parser = span)]
        transition: Duration,
    },
    /// Accept agents that renewed their certificates after the backup from which this folder was restored
    #[command(after_help = RESTORE_EXAMPLES)]
    Restore {
        #[command(flatten)]
        folder: FleetOption,
    },
    /// Check the agents and print how to fix what is wrong
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor {
        #[command(flatten)]
        folder: FleetOption,
    },
    /// Show the policies of the agents, as they report them
    #[command(after_help = POLICIES_EXAMPLES)]
    Policies {
        #[command(flatten)]
        folder: FleetOption,
        /// Print the policies as JSON
        #[arg(long)]
        json: bool,
    },
    /// Compare the agents' clocks with the controller's
    #[command(after_help = CLOCK_EXAMPLES)]
    Clock {
        #[command(flatten)]
        folder: FleetOption,
        /// Print the clocks as JSON
        #[arg(long)]
        json: bool,
    },
    /// List open runs, and fetch the reports that agents still hold
    #[command(after_help = RUNS_EXAMPLES)]
    Runs {
        #[command(flatten)]
        folder: FleetOption,
        /// Fetch reports from the agents
        #[arg(long)]
        fetch: bool,
    },
    /// Close a run and give up its missing reports
    #[command(after_help = CLOSE_EXAMPLES)]
    Close {
        #[command(flatten)]
        folder: FleetOption,
        /// Number of the run
        run: u32,
    },
}

const NOT_RUNNING: &str =
    "the controller is not running; start it with `netstage fleet serve --listen ADDRESS:PORT`";

/// Returns why no controller answers, or why it cannot write what it knows.
fn service_problem(fleet: &FleetFolder) -> Option<String> {
    let problem = fleet.require_service().err()?;
    Some(if problem.is_missing { NOT_RUNNING.into() } else { problem.to_string() })
}

/// Runs the command.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Init { folder, name } => {
            let fleet = FleetFolder::create(&folder.path(), name).map_err(failure)?;
            let next = "next: netstage fleet serve --listen ADDRESS:PORT, and netstage fleet token AGENT";
            print(format!("fleet {} in {}\n{next}\n", fleet.name, fleet.folder().display()).as_bytes())?;
            Ok(OK)
        }
        Command::Serve { folder, listen, metrics } => serve(folder.open()?, *listen, *metrics),
        Command::Token { folder, agent, label, valid, certificate } => {
            let (agent, labels) = (agent.clone(), label.clone());
            let grant = TokenGrant { agent, labels, valid: *valid, lasting: *certificate };
            let token = folder.open()?.token(&grant).map_err(failure)?;
            print(format!("{token}\n").as_bytes()).map(|()| OK)
        }
        Command::Join { controller, token, state } => join(controller, token, &state.path()),
        Command::Ls { folder, json } => list(&folder.open()?, *json),
        Command::Remove { folder, agent } => {
            folder.open()?.remove(agent).map_err(failure)?;
            print(format!("removed agent {agent}\n").as_bytes()).map(|()| OK)
        }
        Command::Rotate { folder, transition } => rotate(&folder.open()?, *transition),
        Command::Restore { folder } => {
            let names = folder.open()?.restore().map_err(failure)?;
            let text = format!(
                "{}: each may connect once with any valid certificate of its name\n\
                 next: remove agents that you had removed after the backup: netstage fleet remove NAME\n",
                counted(names, "agent")
            );
            print(text.as_bytes()).map(|()| OK)
        }
        Command::Doctor { folder } => doctor(&folder.open()?),
        Command::Policies { folder, json } => policies(&folder.open()?, *json),
        Command::Clock { folder, json } => clock(&folder.open()?, *json),
        Command::Runs { folder, fetch } => runs(&folder.open()?, *fetch),
        Command::Close { folder, run } => {
            let mut runs = FleetRuns::read_all(&folder.open()?).map_err(failure)?;
            let id = runs.find(*run).ok_or_else(|| {
                Failure::usage(format!("unknown run {run}")).help("list open runs with `netstage fleet runs`")
            })?;
            runs.close(id).map_err(|error| Failure::run(error.to_string()))?;
            print(format!("closed run {run}; its reports are in {}\n", runs.path(id).display()).as_bytes())?;
            Ok(OK)
        }
    }
}

/// Returns a log that writes to standard error, with the command in front of each line.
pub fn log(command: &'static str) -> Log {
    Arc::new(move |level, line| {
        let mark = if level == Level::Alarm { "alarm: " } else { "" };
        let _ = writeln!(io::stderr(), "netstage {command}: {mark}{line}");
    })
}

fn serve(fleet: FleetFolder, listen: SocketAddr, metrics: Option<SocketAddr>) -> Result<u8, Failure> {
    let log = log("fleet");
    let mut hub = Hub::bind(fleet, listen, Arc::clone(&log)).map_err(failure)?;
    let ender = hub.shutdown_handle();
    ctrlc::set_handler(move || ender.request())
        .map_err(|e| Failure::run(format!("cannot install a signal handler: {e}")))?;
    let address = hub.address().map_err(|error| Failure::run(error.to_string()))?;
    log(Level::Note, &format!("listening for agents on {address}"));
    if let Some(address) = metrics {
        hub.serve_metrics(address);
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
        "joined fleet {} as {}; keys and certificate are in {}\nnext: netstage agent --state {}\n",
        membership.controller,
        membership.name,
        state.display(),
        state.display()
    );
    print(text.as_bytes()).map(|()| OK)
}

fn rotate(fleet: &FleetFolder, transition: Duration) -> Result<u8, Failure> {
    fleet.rotate(transition).map_err(failure)?;
    let ends = time(transition.as_nanos() as u64);
    let text = format!(
        "new authority; the old one is trusted for another {ends}\n\
         Agents that connect within this time renew their certificates; all others have to join again.\n\
         next: netstage fleet doctor, which lists agents without a new certificate\n"
    );
    print(text.as_bytes()).map(|()| OK)
}

/// Returns the agents without a certificate of the new authority, during the transition after a rotation.
fn unrotated(fleet: &FleetFolder) -> Result<Vec<String>, Failure> {
    let authorities = fleet.authorities().map_err(failure)?;
    let Some((_, ends_s)) = &authorities.previous else { return Ok(Vec::new()) };
    let left = time((ends_s * 1_000_000_000).saturating_sub(now_ns()));
    let current = authorities.current.fingerprint();
    let registered = fleet.all_registered().map_err(failure)?.into_iter();
    let old = registered.filter(|(_, agent)| agent.authority != current);
    let problem = |name| {
        format!(
            "{name}: no certificate of the new authority; it has to connect within {left}, or to join again"
        )
    };
    Ok(old.map(|(name, _)| problem(name)).collect())
}

fn agents(fleet: &FleetFolder) -> Result<Vec<AgentStatus>, Failure> {
    fleet.agents().map_err(failure)
}

fn as_json(value: &impl serde::Serialize) -> Result<u8, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::run(error.to_string()))?;
    print(format!("{text}\n").as_bytes()).map(|()| OK)
}

fn list(fleet: &FleetFolder, json: bool) -> Result<u8, Failure> {
    let agents = agents(fleet)?;
    if json {
        return as_json(&agents);
    }
    let mut table =
        Table::new(&["agent", "state", "labels", "address", "nat", "version", "last seen", "certificate"]);
    for agent in &agents {
        table.row([
            agent.name.clone(),
            agent.state.to_string(),
            agent.labels.join(" "),
            agent.address.map(|address| address.to_string()).unwrap_or_default(),
            agent.nat(),
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
        text = "no agents; create a token with `netstage fleet token NAME`\n".into();
    } else if let Some(problem) = service_problem(fleet) {
        text.push_str(&format!("{problem}\n"));
    }
    print(text.as_bytes()).map(|()| OK)
}

fn policies(fleet: &FleetFolder, json: bool) -> Result<u8, Failure> {
    let agents = agents(fleet)?;
    // A rule with several values occurs several times.
    let policies: BTreeMap<&str, BTreeMap<&str, String>> = agents
        .iter()
        .map(|agent| {
            let mut rules: BTreeMap<&str, String> = BTreeMap::new();
            for (rule, value) in agent.policy() {
                let values = rules.entry(rule).or_default();
                let separator = if values.is_empty() { "" } else { ", " };
                *values += &format!("{separator}{value}");
            }
            (agent.name.as_str(), rules)
        })
        .collect();
    if json {
        return as_json(&policies);
    }
    let mut table = Table::new(&["agent", "rule", "value"]);
    for (agent, rules) in &policies {
        if rules.is_empty() {
            table.row([(*agent).to_owned(), "unknown".into(), String::new()]);
        }
        for (rule, value) in rules {
            table.row([(*agent).to_owned(), (*rule).to_owned(), value.clone()]);
        }
    }
    print(table.text().as_bytes()).map(|()| OK)
}

fn expiry(agent: &AgentStatus) -> String {
    match agent.certificate_expires_s.checked_sub(now_ns() / 1_000_000_000) {
        Some(left) => time(left * 1_000_000_000),
        None => "expired".into(),
    }
}

fn doctor(fleet: &FleetFolder) -> Result<u8, Failure> {
    let mut found = Vec::new();
    found.extend(service_problem(fleet));
    let agents = agents(fleet)?;
    for agent in &agents {
        let mut report = |problem: &str| found.push(format!("{}: {problem}", agent.name));
        match agent.state {
            AgentAvailability::NeverSeen => report(
                "joined but never connected; on its host run `netstage agent` or `systemctl start netstage-agent`",
            ),
            AgentAvailability::Offline => report(
                "offline; check its log (journalctl -u netstage-agent) and the path from its host to the controller",
            ),
            AgentAvailability::Idle | AgentAvailability::Taken => {}
        }
        if agent.certificate_expires_s < now_ns() / 1_000_000_000 {
            report("certificate expired; remove the agent here and join it again");
        }
        if !agent.version.is_empty() && agent.version != env!("CARGO_PKG_VERSION") {
            report(&format!(
                "version mismatch: agent {}, controller {}",
                agent.version,
                env!("CARGO_PKG_VERSION")
            ));
        }
        for (service, missing) in agent.services() {
            if let Some(packages) = missing {
                report(&format!(
                    "programs of service {service} are missing; on its host run `apt-get install {packages}`"
                ));
            }
        }
        if let Some((false, _)) = agent.wall_clock {
            report("clock not synchronized; run NTP or PTP on its host, or one-way delays drift");
        }
        if let Some(clock) = agent.clock.filter(|clock| clock.error_ns > 5_000_000) {
            report(&format!("clock error is ± {}; one-way delays are off by as much", time(clock.error_ns)));
        }
    }
    found.extend(unrotated(fleet)?);
    let open = FleetRuns::read_all(fleet).map_err(failure)?.open_runs();
    for (run, opened) in &open {
        let number = run_number(*run);
        let problem = format!(
            "run {number} ({}) is open; use `netstage fleet runs --fetch` or `netstage fleet close {number}`",
            opened.title
        );
        found.push(problem);
    }
    let mut serves = String::new();
    for agent in &agents {
        let ready = agent.services().filter(|(_, missing)| missing.is_none()).map(|(service, _)| service);
        let ready: Vec<&str> = ready.collect();
        if !ready.is_empty() {
            serves.push_str(&format!("{}: can run services: {}\n", agent.name, ready.join(", ")));
        }
    }
    let text = match found.is_empty() {
        true => format!("{}: OK\n", counted(agents.len(), "agent")),
        false => found.join("\n") + "\n",
    };
    print((serves + &text).as_bytes())?;
    Ok(if found.is_empty() { OK } else { FAILED })
}

fn clock(fleet: &FleetFolder, json: bool) -> Result<u8, Failure> {
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
        let wall_clock = match agent.wall_clock {
            Some((true, error_ns)) => format!("synchronized, ± {}", time(error_ns)),
            Some((false, _)) => "not synchronized".into(),
            None => "unknown".into(),
        };
        table.row([agent.name.clone(), offset, error, wall_clock]);
    }
    print(table.text().as_bytes()).map(|()| OK)
}

fn runs(fleet: &FleetFolder, fetch: bool) -> Result<u8, Failure> {
    let mut runs = FleetRuns::read_all(fleet).map_err(failure)?;
    let mut text = String::new();
    if fetch {
        let idle = agents(fleet)?.into_iter().filter(|agent| agent.state == AgentAvailability::Idle);
        let places = idle.map(|agent| (agent.name, AgentAddress::Fleet(fleet.socket()))).collect();
        let agents = ControlledAgents::connect(places).map_err(|error| Failure::run(error.to_string()))?;
        let (mut fetched, mut problems) = (0, Vec::new());
        let losses =
            agents.fetch_stored_reports(|agent, run, report| match runs.receive(run, agent, report) {
                Ok(Receipt::Unexpected) => {
                    let number = run_number(run);
                    problems.push(format!(
                        "{agent}: its report of run {number} stays there; this controller has no such run"
                    ));
                    false
                }
                Ok(receipt) => {
                    fetched += usize::from(receipt == Receipt::New);
                    true
                }
                Err(error) => {
                    problems.push(format!(
                        "{agent}: cannot store the report of run {}: {error}",
                        run_number(run)
                    ));
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
            run_number(run).to_string(),
            opened.title.clone(),
            format!("{} ago", time(now_ns().saturating_sub(opened.opened_s * 1_000_000_000))),
            opened.agents.len().to_string(),
            runs.missing(run).len().to_string(),
            runs.path(run).display().to_string(),
        ]);
    }
    text.push_str(&table.text());
    if text.is_empty() {
        text = "no open runs\n".into();
    }
    print(text.as_bytes()).map(|()| OK)
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Parses a time such as 90s, 15min, 1h or 2d.
fn span(text: &str) -> Result<Duration, String> {
    let invalid = || "expected a time such as 90s, 15min, 1h or 2d".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(invalid)?;
    let count: u64 = text[..digits].parse().map_err(|_| invalid())?;
    let unit = match text[digits..].trim() {
        "s" => 1,
        "min" | "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(invalid()),
    };
    let seconds = count.checked_mul(unit).filter(|seconds| (1..=20 * 366 * 86_400).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "expected a time from 1 s to 20 years".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_bounds() {
        assert_eq!(span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(span("15min"), Ok(Duration::from_secs(900)));
        assert_eq!(span("2d"), Ok(Duration::from_secs(172_800)));
        for invalid in ["", "1", "h", "1w", "-1h", "0s", "99999999999999999999d", "30000d"] {
            assert!(span(invalid).is_err(), "{invalid}");
        }
    }
}
