//! Folder of a fleet, readable only by the controller's user: certificate authority, agents, and unused
//! tokens.
//!
//! Each agent and each token has a file of its own. A token is used by removing its file, which succeeds only
//! once, however many hosts try. A host without an agent file is not an agent, whatever certificate it
//! presents.

use super::authority::{self, Authorities, Authority, is_agent_name};
use super::private;
use super::starts::{self, ChangeCounter, ControllerStart, RESTORED};
use super::status::{AgentAvailability, AgentStatus, StatusFile};
use super::token::{self, Token, sha256};
use netstage_host::lock::Lock;
use netstage_host::startup_error::StartupError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Age from which the hub's status file is stale, which means that no hub is running.
const STALE_AFTER: Duration = Duration::from_secs(5);
/// Bytes that are written to find out whether the disk is full.
const PROBE_BYTES: usize = 65_536;
/// Certificates an agent may have at a time: the current one and the next.
const MAX_CERTIFICATES: usize = 2;

/// Folder of a fleet.
#[derive(Clone, Debug)]
pub struct FleetFolder {
    folder: PathBuf,
    /// Name of the controller.
    pub name: String,
}

/// Error of a file in the fleet's folder.
pub(super) fn file_error(path: &Path, error: &io::Error) -> StartupError {
    let remedy = match error.kind() {
        _ if is_full(error) => {
            "free space there, and repeat the command; until then, reports stay with their agents"
        }
        io::ErrorKind::ReadOnlyFilesystem => "make the file system of this folder writable",
        _ => "check the owner and permissions of the fleet's folder",
    };
    let cause = if is_full(error) { "the disk is full: " } else { "" };
    StartupError::new(format!("{cause}{}: {error}", path.display()), remedy)
}

/// Returns whether a file could not be written because the disk, or the quota of its user, is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[derive(Serialize, Deserialize)]
struct FleetSettings {
    name: String,
}

/// Content of an agent's file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegisteredAgent {
    /// Labels of the agent.
    pub labels: Vec<String>,
    /// Validity of its certificates, seconds.
    pub lasting_s: u64,
    /// SHA-256 fingerprint and expiry (seconds since 1970) of each certificate.
    pub certificates: Vec<(String, u64)>,
    /// SHA-256 fingerprint of the authority of the last certificate.
    #[serde(default)]
    pub authority: String,
    /// The next certificate of the authority with its name is accepted, too, because the agent may have renewed
    /// it after the backup from which this folder was restored.
    #[serde(default)]
    pub adopts_next: bool,
}

impl RegisteredAgent {
    fn add_certificate(&mut self, fingerprint: String, expires_s: u64) {
        self.certificates.push((fingerprint, expires_s));
        let surplus = self.certificates.len().saturating_sub(MAX_CERTIFICATES);
        self.certificates.drain(..surplus);
    }
}

/// Content of a token's file.
#[derive(Serialize, Deserialize)]
struct StoredToken {
    agent: String,
    labels: Vec<String>,
    expires_s: u64,
    lasting_s: u64,
}

/// Parameters of a new token.
#[derive(Clone, Debug)]
pub struct TokenGrant {
    /// Name of the agent.
    pub agent: String,
    /// Labels of the agent.
    pub labels: Vec<String>,
    /// Validity of the token.
    pub valid: Duration,
    /// Validity of the agent's certificates.
    pub lasting: Duration,
}

/// Certificate that has been issued to an agent.
pub struct IssuedCertificate {
    /// Name of the agent.
    pub agent: String,
    /// Certificate (PEM).
    pub certificate: String,
    /// Expiry, seconds since 1970.
    pub expires_s: u64,
}

impl FleetFolder {
    /// Creates a fleet in a folder that has none.
    pub fn create(folder: &Path, name: &str) -> Result<FleetFolder, StartupError> {
        let file = |error: io::Error| file_error(folder, &error);
        if !is_agent_name(name) {
            return Err(StartupError::new(
                format!("invalid fleet name `{name}`"),
                "use up to 63 lower-case letters, digits and hyphens",
            ));
        }
        if folder.join(SETTINGS).exists() {
            return Err(StartupError::new(
                format!("{} already contains a fleet", folder.display()),
                "use this fleet, or give another folder with --fleet",
            ));
        }
        for part in
            [folder.to_owned(), folder.join(AGENTS), folder.join(TOKENS), folder.join(super::runs::RUNS)]
        {
            private::folder(&part).map_err(file)?;
        }
        Authority::create(folder, name).map_err(file)?;
        // Written last: its presence means that the folder is complete.
        private::write_json(&folder.join(SETTINGS), &FleetSettings { name: name.into() }).map_err(file)?;
        FleetFolder::open(folder)
    }

    /// Opens the fleet of a folder.
    pub fn open(folder: &Path) -> Result<FleetFolder, StartupError> {
        let path = folder.join(SETTINGS);
        match private::read_json::<FleetSettings>(&path) {
            Ok(settings) => Ok(FleetFolder { folder: folder.to_owned(), name: settings.name }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(StartupError::new(
                format!("there is no fleet in {}", folder.display()),
                "create one with `netstage fleet init`, or give its folder with --fleet",
            )),
            Err(error) => Err(file_error(&path, &error)),
        }
    }

    /// Returns the path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the socket at which the hub listens for commands.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("hub.sock")
    }

    /// Makes this process the only hub of the fleet, until the returned lock is dropped.
    pub fn lock(&self) -> Result<Lock, StartupError> {
        let path = self.folder.join("hub.lock");
        Lock::take(&path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => StartupError::new(
                format!("another controller serves the fleet in {}", self.folder.display()),
                "use that controller, or stop it first",
            ),
            _ => file_error(&path, &error),
        })
    }

    /// Opens the certificate authorities of the fleet.
    pub fn authorities(&self) -> Result<Authorities, StartupError> {
        Authorities::open(&self.folder).map_err(|error| file_error(&self.folder, &error))
    }

    /// Replaces the certificate authority. The old one is trusted for the time of the transition, in which
    /// connected agents renew their certificates. Returns its end, seconds since 1970.
    pub fn rotate(&self, transition: Duration) -> Result<u64, StartupError> {
        if let Some((_, ends_s)) = self.authorities()?.previous {
            return Err(StartupError::new(
                format!("the last rotation is in transition for another {} s", ends_s - now_s().min(ends_s)),
                "wait until the transition has ended; `netstage fleet doctor` lists the agents without a new certificate",
            ));
        }
        authority::rotate(&self.folder, &self.name, transition)
            .map_err(|error| file_error(&self.folder, &error))
    }

    /// Records a start of the hub, and returns the last starts, this one last.
    pub(super) fn record_start(&self) -> Result<Vec<ControllerStart>, StartupError> {
        self.add_start("")
    }

    fn add_start(&self, prefix: &str) -> Result<Vec<ControllerStart>, StartupError> {
        starts::add(&self.folder, prefix).map_err(|error| file_error(&self.folder.join(starts::FILE), &error))
    }

    /// Returns the counter of changes since the last one of these starts.
    pub(super) fn change_counter(&self, starts: &[ControllerStart]) -> ChangeCounter {
        ChangeCounter::new(&self.folder, &[AGENTS, TOKENS, super::runs::RUNS], starts)
    }

    /// Creates a token with which one host can join as the given agent.
    pub fn token(&self, grant: &TokenGrant) -> Result<Token, StartupError> {
        let TokenGrant { agent, labels, .. } = grant;
        let usable = |label: &String| !label.is_empty() && !label.contains(['"', ',', '\n', '=']);
        if !is_agent_name(agent) {
            return Err(StartupError::new(
                format!("invalid agent name `{agent}`"),
                "use up to 63 lower-case letters, digits and hyphens",
            ));
        }
        if let Some(label) = labels.iter().find(|label| !usable(label)) {
            return Err(StartupError::new(
                format!("invalid label `{label}`"),
                "use a word without quotes, commas and equals signs",
            ));
        }
        if self.agent_file(agent).exists() {
            return Err(StartupError::new(
                format!("agent {agent} already exists"),
                format!("choose another name, or remove it first: netstage fleet remove {agent}"),
            ));
        }
        let authorities = self.authorities()?;
        let token = Token::generate(&authorities.presented().fingerprint())
            .map_err(|error| StartupError::new(error.to_string(), "try again later"))?;
        // The host could not authenticate the controller by this token later.
        let ends_s = authorities.previous.map_or(u64::MAX, |(_, ends_s)| ends_s);
        let given = StoredToken {
            agent: agent.clone(),
            labels: labels.clone(),
            expires_s: (now_s() + grant.valid.as_secs()).min(ends_s),
            lasting_s: grant.lasting.as_secs(),
        };
        let path = self.token_file(&token.id());
        private::write_json(&path, &given).map_err(|error| file_error(&path, &error))?;
        Ok(token)
    }

    /// Exchanges a token's secret for a certificate. The token is used up even if this fails.
    pub fn join(
        &self,
        authority: &Authority,
        secret: &[u8],
        request: &[u8],
    ) -> Result<IssuedCertificate, String> {
        let path = self.token_file(&token::id(secret));
        let given: StoredToken =
            private::read_json(&path).map_err(|_| "the token was used, or is unknown")?;
        fs::remove_file(&path).map_err(|_| "the token was used")?;
        if given.expires_s < now_s() {
            return Err("the token has expired".into());
        }
        let agent = RegisteredAgent {
            labels: given.labels,
            lasting_s: given.lasting_s,
            certificates: Vec::new(),
            authority: String::new(),
            adopts_next: false,
        };
        if self.agent_file(&given.agent).exists() {
            return Err(format!("agent {} already exists", given.agent));
        }
        self.sign(authority, &given.agent, agent, request)
    }

    /// Issues the next certificate of an agent.
    pub fn renew(
        &self,
        authority: &Authority,
        agent: &str,
        request: &[u8],
    ) -> Result<IssuedCertificate, String> {
        let registered = self.registered(agent).ok_or("the agent was removed")?;
        self.sign(authority, agent, registered, request)
    }

    fn sign(
        &self,
        authority: &Authority,
        agent: &str,
        mut registered: RegisteredAgent,
        request: &[u8],
    ) -> Result<IssuedCertificate, String> {
        let expires_s = now_s() + registered.lasting_s;
        let certificate = authority
            .sign(agent, request, expires_s)
            .map_err(|error| format!("invalid certificate request: {error}"))?;
        registered.add_certificate(sha256(certificate.der()), expires_s);
        registered.authority = authority.fingerprint();
        let path = self.agent_file(agent);
        private::write_json(&path, &registered)
            .map_err(|error| format!("the controller cannot store the certificate: {error}"))?;
        Ok(IssuedCertificate { agent: agent.into(), certificate: certificate.pem(), expires_s })
    }

    /// Prepares a folder that was restored from a backup: each agent may connect once with a certificate that the
    /// folder does not contain, and accepts the controller although its folder lacks the last starts. Returns the number
    /// of agents.
    pub fn restore(&self) -> Result<usize, StartupError> {
        self.add_start(RESTORED)?;
        let agents = self.all_registered()?;
        for (name, agent) in &agents {
            let path = self.agent_file(name);
            private::write_json(&path, &RegisteredAgent { adopts_next: true, ..agent.clone() })
                .map_err(|error| file_error(&path, &error))?;
        }
        Ok(agents.len())
    }

    /// Returns the expiry of the certificate with which an agent connects, or `None` if the certificate is not that of
    /// the agent. The certificate is one of the authority.
    pub fn admit(&self, agent: &str, fingerprint: &str) -> Option<u64> {
        let mut registered = self.registered(agent)?;
        let known = registered.certificates.iter().find(|(known, _)| known == fingerprint);
        let known = known.map(|(_, expires_s)| *expires_s);
        if !registered.adopts_next {
            return known;
        }
        let expires_s = known.unwrap_or(now_s() + registered.lasting_s);
        registered.adopts_next = false;
        if known.is_none() {
            registered.add_certificate(fingerprint.into(), expires_s);
        }
        let written = private::write_json(&self.agent_file(agent), &registered);
        // A known certificate is valid, also if the disk is full.
        (written.is_ok() || known.is_some()).then_some(expires_s)
    }

    /// Removes an agent. Its certificates, and unused tokens for its name, become invalid.
    pub fn remove(&self, agent: &str) -> Result<(), StartupError> {
        let path = self.agent_file(agent);
        let known = is_agent_name(agent) && path.exists();
        let tokens = self.unused_tokens(agent)?;
        for token in &tokens {
            fs::remove_file(token).map_err(|error| file_error(token, &error))?;
        }
        if !known && tokens.is_empty() {
            let help = netstage_scenario::did_you_mean(agent, self.names()?.iter().map(String::as_str));
            let help = help.unwrap_or_else(|| "list the agents with `netstage fleet ls`".into());
            return Err(StartupError::new(format!("there is no agent {agent}"), help));
        }
        if known {
            fs::remove_file(&path).map_err(|error| file_error(&path, &error))?;
        }
        Ok(())
    }

    /// Returns the files of unused tokens for an agent of this name.
    fn unused_tokens(&self, agent: &str) -> Result<Vec<PathBuf>, StartupError> {
        let folder = self.folder.join(TOKENS);
        let entries = fs::read_dir(&folder).map_err(|error| file_error(&folder, &error))?;
        let is_for_agent =
            |path: &PathBuf| private::read_json::<StoredToken>(path).is_ok_and(|given| given.agent == agent);
        Ok(entries.flatten().map(|entry| entry.path()).filter(is_for_agent).collect())
    }

    /// Returns the names of all agents.
    pub fn names(&self) -> Result<Vec<String>, StartupError> {
        let folder = self.folder.join(AGENTS);
        let entries = fs::read_dir(&folder).map_err(|error| file_error(&folder, &error))?;
        let name = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".json")?.to_owned());
        let mut names: Vec<String> =
            entries.flatten().filter_map(name).filter(|name| is_agent_name(name)).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Reads the file of an agent.
    pub fn registered(&self, agent: &str) -> Option<RegisteredAgent> {
        private::read_json(&self.agent_file(agent)).ok()
    }

    /// Reads the files of all agents.
    pub fn all_registered(&self) -> Result<BTreeMap<String, RegisteredAgent>, StartupError> {
        let names = self.names()?.into_iter();
        Ok(names.filter_map(|name| self.registered(&name).map(|agent| (name, agent))).collect())
    }

    /// Returns a time that changes whenever an agent joins, renews its certificate or is removed.
    pub fn changed_at(&self) -> Option<SystemTime> {
        fs::metadata(self.folder.join(AGENTS)).and_then(|metadata| metadata.modified()).ok()
    }

    /// Fails if no controller serves the fleet, or if the controller cannot write its status, which is unknown then.
    pub fn require_service(&self) -> Result<(), StartupError> {
        if self.is_served() {
            return Ok(());
        }
        // A running controller whose disk is full leaves an old status behind.
        let path = self.folder.join("writable");
        match private::write(&path, &[0; PROBE_BYTES]) {
            Err(error) if is_full(&error) || error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                return Err(file_error(&path, &error));
            }
            _ => drop(fs::remove_file(&path)),
        }
        let message = format!("no controller serves the fleet in {}", self.folder.display());
        let remedy = "netstage fleet serve --listen ADDRESS:PORT";
        Err(StartupError { is_missing: true, ..StartupError::new(message, remedy) })
    }

    /// Returns the status of every agent, in the order of their names.
    pub fn agents(&self) -> Result<Vec<AgentStatus>, StartupError> {
        let written = private::read_json::<StatusFile>(&self.status_file()).unwrap_or_default();
        let fresh = now_ns().saturating_sub(written.at_ns) < STALE_AFTER.as_nanos() as u64;
        let mut seen: BTreeMap<String, AgentStatus> =
            written.agents.into_iter().map(|agent| (agent.name.clone(), agent)).collect();
        let status = |(name, registered): (String, RegisteredAgent)| {
            let mut status = seen.remove(&name).unwrap_or_else(|| AgentStatus {
                name,
                labels: Vec::new(),
                address: None,
                host: String::new(),
                version: String::new(),
                state: AgentAvailability::NeverSeen,
                last_seen_ns: None,
                clock: None,
                wall_clock: None,
                addresses: Vec::new(),
                mappings: Vec::new(),
                capabilities: Vec::new(),
                certificate_expires_s: 0,
            });
            status.labels = registered.labels;
            status.certificate_expires_s =
                registered.certificates.last().map_or(0, |(_, expires_s)| *expires_s);
            if !fresh && status.state != AgentAvailability::NeverSeen {
                status.state = AgentAvailability::Offline;
            }
            status
        };
        Ok(self.all_registered()?.into_iter().map(status).collect())
    }

    /// Reports whether a hub is running.
    pub fn is_served(&self) -> bool {
        let written = private::read_json::<StatusFile>(&self.status_file()).unwrap_or_default();
        now_ns().saturating_sub(written.at_ns) < STALE_AFTER.as_nanos() as u64
    }

    pub(super) fn write_status(&self, agents: Vec<AgentStatus>) -> Result<(), StartupError> {
        // Not synced, because it is useless after a crash.
        let path = self.status_file();
        let temporary = path.with_extension("part");
        let text = serde_json::to_vec(&StatusFile { at_ns: now_ns(), agents }).map_err(io::Error::other);
        let written = text.and_then(|text| fs::write(&temporary, text));
        written.and_then(|()| fs::rename(temporary, &path)).map_err(|error| file_error(&path, &error))
    }

    /// Returns the status of the agents written by the previous hub.
    pub(super) fn last_status(&self) -> Vec<AgentStatus> {
        private::read_json::<StatusFile>(&self.status_file()).unwrap_or_default().agents
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

/// Returns the default folder for state called `what`: below /var/lib for root, otherwise below the user's
/// state folder.
pub fn user_state_folder(what: &str) -> PathBuf {
    let home = std::env::var_os("HOME").filter(|_| !nix::unistd::geteuid().is_root());
    let state = match (std::env::var_os("XDG_STATE_HOME"), home) {
        (Some(state), Some(_)) => PathBuf::from(state),
        (None, Some(home)) => PathBuf::from(home).join(".local/state"),
        (_, None) => PathBuf::from("/var/lib"),
    };
    state.join("netstage").join(what)
}

/// Returns the default folder of the fleet: that of `NETSTAGE_FLEET`, or the user's own.
pub fn default_fleet_folder() -> PathBuf {
    std::env::var_os("NETSTAGE_FLEET").map_or_else(|| user_state_folder("fleet"), PathBuf::from)
}

const SETTINGS: &str = "fleet.json";
const AGENTS: &str = "agents";
const TOKENS: &str = "tokens";

/// Returns the seconds since 1970.
pub(super) fn now_s() -> u64 {
    now_ns() / 1_000_000_000
}

/// Returns the nanoseconds since 1970.
pub(super) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(name: &str) -> (netstage_harness::TemporaryFolder, FleetFolder) {
        let place = netstage_harness::TemporaryFolder::new(&format!("fleet-{name}"));
        let fleet = FleetFolder::create(&place.join("fleet"), "lab").unwrap();
        (place, fleet)
    }

    fn grant(agent: &str, valid_s: u64) -> TokenGrant {
        let (valid, lasting) = (Duration::from_secs(valid_s), Duration::from_secs(3600));
        TokenGrant { agent: agent.into(), labels: vec!["berlin".into()], valid, lasting }
    }

    #[test]
    fn a_token_can_be_used_once_and_a_removed_agent_gets_no_certificate() {
        let (_place, fleet) = fleet("once");
        let authority = fleet.authorities().unwrap().current;
        let token = fleet.token(&grant("ber-1", 60)).unwrap();
        let (_, request) = authority::request().unwrap();
        let signed = fleet.join(&authority, token.secret(), &request).unwrap();
        assert_eq!(signed.agent, "ber-1");
        let again = fleet.join(&authority, token.secret(), &request).err().unwrap();
        assert!(again.contains("was used"), "{again}");
        for _ in 0..3 {
            fleet.renew(&authority, "ber-1", &request).unwrap();
        }
        assert_eq!(fleet.registered("ber-1").unwrap().certificates.len(), MAX_CERTIFICATES);
        let [agent] = &fleet.agents().unwrap()[..] else { panic!() };
        assert_eq!(
            (agent.state, &agent.labels[..]),
            (AgentAvailability::NeverSeen, &["berlin".to_owned()][..])
        );
        assert!(fleet.token(&grant("ber-1", 60)).unwrap_err().remedy.contains("fleet remove ber-1"));
        fleet.remove("ber-1").unwrap();
        assert!(fleet.renew(&authority, "ber-1", &request).is_err());
        assert!(fleet.remove("ber-1").is_err());
    }

    #[test]
    fn removing_an_agent_revokes_its_tokens() {
        let (_place, fleet) = fleet("tokens");
        let authority = fleet.authorities().unwrap().current;
        let (_, request) = authority::request().unwrap();
        let [used, left, other] = ["a", "a", "b"].map(|agent| fleet.token(&grant(agent, 60)).unwrap());
        fleet.join(&authority, used.secret(), &request).unwrap();
        fleet.remove("a").unwrap();
        assert!(fleet.join(&authority, left.secret(), &request).is_err());
        // Tokens for an agent that has not joined yet are revoked as well.
        fleet.remove("b").unwrap();
        assert!(fleet.join(&authority, other.secret(), &request).is_err());
        assert!(fleet.remove("b").is_err());
    }

    #[test]
    fn invalid_tokens_expired_tokens_and_invalid_requests_are_refused() {
        let (_place, fleet) = fleet("nothing");
        let authority = fleet.authorities().unwrap().current;
        let (_, request) = authority::request().unwrap();
        for secret in [&b""[..], b"../../fleet", &[0; 16]] {
            assert!(fleet.join(&authority, secret, &request).is_err());
        }
        let token = fleet.token(&TokenGrant { valid: Duration::ZERO, ..grant("a", 0) }).unwrap();
        let path = fleet.token_file(&token.id());
        let mut given: StoredToken = private::read_json(&path).unwrap();
        given.expires_s -= 1;
        private::write_json(&path, &given).unwrap();
        assert!(fleet.join(&authority, token.secret(), &request).err().unwrap().contains("expired"));
        let token = fleet.token(&grant("a", 60)).unwrap();
        assert!(fleet.join(&authority, token.secret(), b"garbage").err().unwrap().contains("request"));
        assert!(fleet.names().unwrap().is_empty());
    }

    #[test]
    fn a_fleet_has_one_controller_and_a_folder_has_one_fleet() {
        let (place, fleet) = fleet("one");
        let _lock = fleet.lock().unwrap();
        assert!(fleet.lock().unwrap_err().message.contains("another controller"));
        assert!(FleetFolder::create(&place.join("fleet"), "lab").unwrap_err().message.contains("already"));
        assert!(
            FleetFolder::open(&place.join("fleet").join("nowhere"))
                .unwrap_err()
                .remedy
                .contains("fleet init")
        );
        assert!(fleet.token(&grant("No", 1)).is_err() && fleet.token(&grant("../x", 1)).is_err());
    }
}
