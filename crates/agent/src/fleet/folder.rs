//! What the controller knows of its fleet, in a folder for its user alone: the authority,
//! the agents, the tokens that were given and not used.
//!
//! One file per agent and per token: a token is used by removing its file, which succeeds
//! once, however many try. An agent without a file is none, whatever certificate it shows.

use super::authority::{Authority, is_agent_name};
use super::private;
use super::status::{AgentStatus, State, Written};
use super::token::{self, Token, sha256};
use netstage_host::lock::Lock;
use netstage_host::obstacle::Obstacle;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the hub wrote down longer ago than this is no longer so: there is no hub.
const FRESH: Duration = Duration::from_secs(5);
/// Certificates an agent may have at a time: the one it dials with, and the next.
const CERTIFICATES: usize = 2;

/// A fleet's folder.
#[derive(Clone, Debug)]
pub struct Fleet {
    folder: PathBuf,
    /// The controller's name.
    pub name: String,
}

/// A file of the fleet that cannot be read or written.
pub(super) fn file_error(path: &Path, error: &io::Error) -> Obstacle {
    Obstacle::new(format!("{}: {error}", path.display()), "see who owns the fleet's folder")
}

#[derive(Serialize, Deserialize)]
struct Settings {
    name: String,
}

/// What the file of an agent says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registered {
    /// Its labels.
    pub labels: Vec<String>,
    /// How long its certificates last, seconds.
    pub lasting_s: u64,
    /// Its certificates: SHA-256 of each, and when it ends, seconds since 1970.
    pub certificates: Vec<(String, u64)>,
}

/// What the file of a token says.
#[derive(Serialize, Deserialize)]
struct Given {
    agent: String,
    labels: Vec<String>,
    expires_s: u64,
    lasting_s: u64,
}

/// What a token is to give.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The agent's name.
    pub agent: String,
    /// Its labels.
    pub labels: Vec<String>,
    /// How long the token is good.
    pub valid: Duration,
    /// How long the agent's certificates last.
    pub lasting: Duration,
}

/// A certificate that was given.
pub struct Signed {
    /// The agent's name.
    pub agent: String,
    /// PEM.
    pub certificate: String,
    /// When it ends, seconds since 1970.
    pub expires_s: u64,
}

impl Fleet {
    /// Makes a fleet where there is none.
    pub fn create(folder: &Path, name: &str) -> Result<Fleet, Obstacle> {
        let file = |error: io::Error| file_error(folder, &error);
        if !is_agent_name(name) {
            return Err(Obstacle::new(
                format!("`{name}` cannot be the name of a fleet"),
                "use up to 63 small letters, digits and hyphens",
            ));
        }
        if folder.join(SETTINGS).exists() {
            return Err(Obstacle::new(
                format!("{} holds a fleet already", folder.display()),
                "use it as it is, or name another folder with --fleet",
            ));
        }
        for part in
            [folder.to_owned(), folder.join(AGENTS), folder.join(TOKENS), folder.join(super::runs::RUNS)]
        {
            private::folder(&part).map_err(file)?;
        }
        Authority::create(folder, name).map_err(file)?;
        // Last: with it the folder is complete.
        private::write_json(&folder.join(SETTINGS), &Settings { name: name.into() }).map_err(file)?;
        Fleet::open(folder)
    }

    /// The fleet of a folder.
    pub fn open(folder: &Path) -> Result<Fleet, Obstacle> {
        let path = folder.join(SETTINGS);
        match private::read_json::<Settings>(&path) {
            Ok(settings) => Ok(Fleet { folder: folder.to_owned(), name: settings.name }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Obstacle::new(
                format!("there is no fleet in {}", folder.display()),
                "make one with `netstage fleet init`, or name its folder with --fleet",
            )),
            Err(error) => Err(file_error(&path, &error)),
        }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the hub listens to commands.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("hub.sock")
    }

    /// Makes this process the fleet's only hub, as long as what is returned lives.
    pub fn lock(&self) -> Result<Lock, Obstacle> {
        let path = self.folder.join("hub.lock");
        Lock::take(&path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Obstacle::new(
                format!("another controller serves the fleet in {}", self.folder.display()),
                "a fleet has one: use it, or end it first",
            ),
            _ => file_error(&path, &error),
        })
    }

    /// Its authority.
    pub fn authority(&self) -> Result<Authority, Obstacle> {
        Authority::open(&self.folder).map_err(|error| file_error(&self.folder, &error))
    }

    /// A token that lets one host join as this agent.
    pub fn token(&self, grant: &Grant) -> Result<Token, Obstacle> {
        let Grant { agent, labels, .. } = grant;
        let usable = |label: &String| !label.is_empty() && !label.contains(['"', ',', '\n', '=']);
        if !is_agent_name(agent) {
            return Err(Obstacle::new(
                format!("`{agent}` cannot be the name of an agent"),
                "use up to 63 small letters, digits and hyphens",
            ));
        }
        if let Some(label) = labels.iter().find(|label| !usable(label)) {
            return Err(Obstacle::new(format!("`{label}` cannot be a label"), "use one plain word"));
        }
        if self.agent_file(agent).exists() {
            return Err(Obstacle::new(
                format!("there is an agent {agent} already"),
                format!("choose another name, or remove it first: netstage fleet remove {agent}"),
            ));
        }
        let token = Token::generate(&self.authority()?.fingerprint())
            .map_err(|error| Obstacle::new(error.to_string(), "try again later"))?;
        let given = Given {
            agent: agent.clone(),
            labels: labels.clone(),
            expires_s: now_s() + grant.valid.as_secs(),
            lasting_s: grant.lasting.as_secs(),
        };
        let path = self.token_file(&token.id());
        private::write_json(&path, &given).map_err(|error| file_error(&path, &error))?;
        Ok(token)
    }

    /// Takes a token's secret for a certificate. It is used up, whatever comes of it.
    pub fn join(&self, authority: &Authority, secret: &[u8], request: &[u8]) -> Result<Signed, String> {
        let path = self.token_file(&token::id(secret));
        let given: Given = private::read_json(&path).map_err(|_| "this token was used, or never given")?;
        fs::remove_file(&path).map_err(|_| "this token was used")?;
        if given.expires_s < now_s() {
            return Err("this token has expired".into());
        }
        let agent = Registered { labels: given.labels, lasting_s: given.lasting_s, certificates: Vec::new() };
        if self.agent_file(&given.agent).exists() {
            return Err(format!("there is an agent {} already", given.agent));
        }
        self.sign(authority, &given.agent, agent, request)
    }

    /// The next certificate of an agent.
    pub fn renew(&self, authority: &Authority, agent: &str, request: &[u8]) -> Result<Signed, String> {
        let registered = self.registered(agent).ok_or("this agent was removed")?;
        self.sign(authority, agent, registered, request)
    }

    fn sign(
        &self,
        authority: &Authority,
        agent: &str,
        mut registered: Registered,
        request: &[u8],
    ) -> Result<Signed, String> {
        let expires_s = now_s() + registered.lasting_s;
        let certificate = authority
            .sign(agent, request, expires_s)
            .map_err(|error| format!("the request for a certificate is none: {error}"))?;
        registered.certificates.push((sha256(certificate.der()), expires_s));
        let surplus = registered.certificates.len().saturating_sub(CERTIFICATES);
        registered.certificates.drain(..surplus);
        let path = self.agent_file(agent);
        private::write_json(&path, &registered)
            .map_err(|error| format!("the controller cannot keep it: {error}"))?;
        Ok(Signed { agent: agent.into(), certificate: certificate.pem(), expires_s })
    }

    /// Forgets an agent: its certificates, and tokens that were given for it, are worth nothing from now on.
    pub fn remove(&self, agent: &str) -> Result<(), Obstacle> {
        let path = self.agent_file(agent);
        let known = is_agent_name(agent) && path.exists();
        let tokens = self.tokens_of(agent)?;
        for token in &tokens {
            fs::remove_file(token).map_err(|error| file_error(token, &error))?;
        }
        if !known && tokens.is_empty() {
            let help = netstage_scenario::did_you_mean(agent, self.names()?.iter().map(String::as_str));
            let help = help.unwrap_or_else(|| "`netstage fleet ls` lists them".into());
            return Err(Obstacle::new(format!("there is no agent {agent}"), help));
        }
        if known {
            fs::remove_file(&path).map_err(|error| file_error(&path, &error))?;
        }
        Ok(())
    }

    /// Files of tokens that were given for an agent of this name and not used.
    fn tokens_of(&self, agent: &str) -> Result<Vec<PathBuf>, Obstacle> {
        let folder = self.folder.join(TOKENS);
        let entries = fs::read_dir(&folder).map_err(|error| file_error(&folder, &error))?;
        let is_of =
            |path: &PathBuf| private::read_json::<Given>(path).is_ok_and(|given| given.agent == agent);
        Ok(entries.flatten().map(|entry| entry.path()).filter(is_of).collect())
    }

    /// Names of its agents.
    pub fn names(&self) -> Result<Vec<String>, Obstacle> {
        let folder = self.folder.join(AGENTS);
        let entries = fs::read_dir(&folder).map_err(|error| file_error(&folder, &error))?;
        let name = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".json")?.to_owned());
        let mut names: Vec<String> =
            entries.flatten().filter_map(name).filter(|name| is_agent_name(name)).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// What is known of an agent.
    pub fn registered(&self, agent: &str) -> Option<Registered> {
        private::read_json(&self.agent_file(agent)).ok()
    }

    /// Every agent.
    pub fn all_registered(&self) -> Result<BTreeMap<String, Registered>, Obstacle> {
        let names = self.names()?.into_iter();
        Ok(names.filter_map(|name| self.registered(&name).map(|agent| (name, agent))).collect())
    }

    /// Changes whenever an agent joins, renews its certificate or is removed.
    pub fn changed_at(&self) -> Option<SystemTime> {
        fs::metadata(self.folder.join(AGENTS)).and_then(|metadata| metadata.modified()).ok()
    }

    /// How every agent is, in the order of their names.
    pub fn agents(&self) -> Result<Vec<AgentStatus>, Obstacle> {
        let written = private::read_json::<Written>(&self.status_file()).unwrap_or_default();
        let fresh = now_ns().saturating_sub(written.at_ns) < FRESH.as_nanos() as u64;
        let mut seen: BTreeMap<String, AgentStatus> =
            written.agents.into_iter().map(|agent| (agent.name.clone(), agent)).collect();
        let status = |(name, registered): (String, Registered)| {
            let mut status = seen.remove(&name).unwrap_or_else(|| AgentStatus {
                name,
                labels: Vec::new(),
                address: None,
                host: String::new(),
                version: String::new(),
                state: State::NeverSeen,
                last_seen_ns: None,
                clock: None,
                wall_clock: None,
                capabilities: Vec::new(),
                certificate_expires_s: 0,
            });
            status.labels = registered.labels;
            status.certificate_expires_s =
                registered.certificates.last().map_or(0, |(_, expires_s)| *expires_s);
            if !fresh && status.state != State::NeverSeen {
                status.state = State::Offline;
            }
            status
        };
        Ok(self.all_registered()?.into_iter().map(status).collect())
    }

    /// Whether the hub is at work.
    pub fn is_served(&self) -> bool {
        let written = private::read_json::<Written>(&self.status_file()).unwrap_or_default();
        now_ns().saturating_sub(written.at_ns) < FRESH.as_nanos() as u64
    }

    pub(super) fn write_status(&self, agents: Vec<AgentStatus>) -> io::Result<()> {
        // Not synced: it is worth nothing after a crash.
        let path = self.status_file();
        let aside = path.with_extension("part");
        fs::write(
            &aside,
            serde_json::to_vec(&Written { at_ns: now_ns(), agents }).map_err(io::Error::other)?,
        )?;
        fs::rename(aside, path)
    }

    /// What was seen of agents before this hub began.
    pub(super) fn last_status(&self) -> Vec<AgentStatus> {
        private::read_json::<Written>(&self.status_file()).unwrap_or_default().agents
    }

    fn status_file(&self) -> PathBuf {
        self.folder.join("status.json")
    }

    fn agent_file(&self, agent: &str) -> PathBuf {
        self.folder.join(AGENTS).join(format!("{agent}.json"))
    }

    fn token_file(&self, id: &str) -> PathBuf {
        self.folder.join(TOKENS).join(format!("{id}.json"))
    }
}

/// Where a user keeps what belongs to `what`, unless another folder is named: root for the
/// whole machine, others below their home.
pub fn of_user(what: &str) -> PathBuf {
    let home = std::env::var_os("HOME").filter(|_| !nix::unistd::geteuid().is_root());
    let state = match (std::env::var_os("XDG_STATE_HOME"), home) {
        (Some(state), Some(_)) => PathBuf::from(state),
        (None, Some(home)) => PathBuf::from(home).join(".local/state"),
        (_, None) => PathBuf::from("/var/lib"),
    };
    state.join("netstage").join(what)
}

/// The fleet's folder, where no other is named: that of `NETSTAGE_FLEET`, or the user's own.
pub fn of_here() -> PathBuf {
    std::env::var_os("NETSTAGE_FLEET").map_or_else(|| of_user("fleet"), PathBuf::from)
}

const SETTINGS: &str = "fleet.json";
const AGENTS: &str = "agents";
const TOKENS: &str = "tokens";

/// Seconds since 1970.
pub(super) fn now_s() -> u64 {
    now_ns() / 1_000_000_000
}

/// Nanoseconds since 1970.
pub(super) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::authority;
    use super::*;

    fn fleet(name: &str) -> (netstage_harness::Folder, Fleet) {
        let place = netstage_harness::Folder::new(&format!("fleet-{name}"));
        let fleet = Fleet::create(&place.join("fleet"), "lab").unwrap();
        (place, fleet)
    }

    fn grant(agent: &str, valid_s: u64) -> Grant {
        let (valid, lasting) = (Duration::from_secs(valid_s), Duration::from_secs(3600));
        Grant { agent: agent.into(), labels: vec!["berlin".into()], valid, lasting }
    }

    #[test]
    fn a_token_is_good_once_and_a_removed_agent_gets_no_certificate() {
        let (_place, fleet) = fleet("once");
        let authority = fleet.authority().unwrap();
        let token = fleet.token(&grant("ber-1", 60)).unwrap();
        let (_, request) = authority::request().unwrap();
        let signed = fleet.join(&authority, token.secret(), &request).unwrap();
        assert_eq!(signed.agent, "ber-1");
        let again = fleet.join(&authority, token.secret(), &request).err().unwrap();
        assert!(again.contains("was used"), "{again}");
        for _ in 0..3 {
            fleet.renew(&authority, "ber-1", &request).unwrap();
        }
        assert_eq!(fleet.registered("ber-1").unwrap().certificates.len(), CERTIFICATES);
        let [agent] = &fleet.agents().unwrap()[..] else { panic!() };
        assert_eq!((agent.state, &agent.labels[..]), (State::NeverSeen, &["berlin".to_owned()][..]));
        assert!(fleet.token(&grant("ber-1", 60)).unwrap_err().remedy.contains("fleet remove ber-1"));
        fleet.remove("ber-1").unwrap();
        assert!(fleet.renew(&authority, "ber-1", &request).is_err());
        assert!(fleet.remove("ber-1").is_err());
    }

    #[test]
    fn a_token_goes_with_the_agent_it_was_given_for() {
        let (_place, fleet) = fleet("tokens");
        let authority = fleet.authority().unwrap();
        let (_, request) = authority::request().unwrap();
        let [used, left, other] = ["a", "a", "b"].map(|agent| fleet.token(&grant(agent, 60)).unwrap());
        fleet.join(&authority, used.secret(), &request).unwrap();
        fleet.remove("a").unwrap();
        assert!(fleet.join(&authority, left.secret(), &request).is_err());
        // An agent that has not joined yet is called back alike.
        fleet.remove("b").unwrap();
        assert!(fleet.join(&authority, other.secret(), &request).is_err());
        assert!(fleet.remove("b").is_err());
    }

    #[test]
    fn what_is_no_token_or_late_or_no_request_gives_nothing() {
        let (_place, fleet) = fleet("nothing");
        let authority = fleet.authority().unwrap();
        let (_, request) = authority::request().unwrap();
        for secret in [&b""[..], b"../../fleet", &[0; 16]] {
            assert!(fleet.join(&authority, secret, &request).is_err());
        }
        let token = fleet.token(&Grant { valid: Duration::ZERO, ..grant("a", 0) }).unwrap();
        let path = fleet.token_file(&token.id());
        let mut given: Given = private::read_json(&path).unwrap();
        given.expires_s -= 1;
        private::write_json(&path, &given).unwrap();
        assert!(fleet.join(&authority, token.secret(), &request).err().unwrap().contains("expired"));
        let token = fleet.token(&grant("a", 60)).unwrap();
        assert!(fleet.join(&authority, token.secret(), b"garbage").err().unwrap().contains("request"));
        assert!(fleet.names().unwrap().is_empty());
    }

    #[test]
    fn a_fleet_has_one_controller_and_a_folder_one_fleet() {
        let (place, fleet) = fleet("one");
        let _lock = fleet.lock().unwrap();
        assert!(fleet.lock().unwrap_err().message.contains("another controller"));
        assert!(Fleet::create(&place.join("fleet"), "lab").unwrap_err().message.contains("already"));
        assert!(Fleet::open(&place.join("fleet").join("nowhere")).unwrap_err().remedy.contains("fleet init"));
        assert!(fleet.token(&grant("No", 1)).is_err() && fleet.token(&grant("../x", 1)).is_err());
    }
}
