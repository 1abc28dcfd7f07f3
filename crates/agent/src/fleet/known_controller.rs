//! Facts that an agent knows of its controller: the authorities it trusts, the authority that the controller announces, and
//! the last start of the controller.
//!
//! Each start of a controller has a random name, and the fleet's folder has the names of the last ones. If the folder
//! is copied and both controllers start, neither has the other's new name. An agent that has met one of them refuses the
//! other, whose registry of agents may be outdated. So are backups of before the last change that the agent has met. `netstage fleet restore` adds a name by which an agent accepts a
//! folder restored from a backup, once.

use super::private;
use super::starts::RESTORED;
use super::trust::TrustedAuthorities;
use netstage_host::log::{Level, Log};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// File with the last start of the controller.
const START_FILE: &str = "controller-start.json";

/// Facts that an agent knows of its controller.
pub struct KnownController {
    folder: PathBuf,
    trusted: Mutex<TrustedAuthorities>,
    /// Fingerprint of the controller's current authority; empty if it announced none.
    announced: watch::Sender<String>,
    start: Mutex<KnownStart>,
    log: Log,
}

#[derive(Clone, Default, Deserialize, Serialize)]
struct KnownStart {
    /// Name of the last start; empty before the first.
    name: String,
    /// Changes of the fleet's folder since that start.
    #[serde(default)]
    changes: u64,
    /// Name of the last accepted restoration; empty before the first.
    restored: String,
    /// The refusal of another controller has been logged.
    #[serde(skip)]
    is_refusal_logged: bool,
}

impl KnownController {
    /// Reads the state in an agent's folder.
    pub fn open(folder: &Path, log: Log) -> io::Result<KnownController> {
        let start = match private::read_json(&folder.join(START_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => KnownStart::default(),
            read => read?,
        };
        Ok(KnownController {
            folder: folder.to_owned(),
            trusted: Mutex::new(TrustedAuthorities::read(folder)?),
            announced: watch::Sender::default(),
            start: Mutex::new(start),
            log,
        })
    }

    /// Returns the trusted authorities.
    pub fn trusted(&self) -> TrustedAuthorities {
        lock(&self.trusted).clone()
    }

    /// Trusts these authorities from now on.
    pub fn trust(&self, authorities: TrustedAuthorities) -> io::Result<()> {
        authorities.write(&self.folder)?;
        *lock(&self.trusted) = authorities;
        Ok(())
    }

    /// Returns whether the controller has another authority than the one the agent trusts. A new certificate is
    /// issued by that one.
    pub fn has_new_authority(&self) -> bool {
        let announced = self.announced.borrow();
        !announced.is_empty() && *announced != lock(&self.trusted).fingerprint()
    }

    /// Waits until the controller announces another authority.
    pub async fn wait_for_announcement(&self) {
        // The sender lives as long as `self`.
        let _ = self.announced.subscribe().changed().await;
    }

    /// Checks the last starts of a controller with the changes since each, the last one being its own, and notes the
    /// fingerprint of its authority. Either is empty if the controller did not announce it.
    pub fn greeted(&self, starts: &[String], changes: &[u64], authority: &str) -> Result<(), String> {
        let changes = changes.iter().copied().chain(std::iter::repeat(0));
        self.check_start(&starts.iter().cloned().zip(changes).collect::<Vec<_>>())?;
        if !authority.is_empty() {
            self.announced.send_if_modified(|known| {
                let is_new = known != authority;
                authority.clone_into(known);
                is_new
            });
        }
        Ok(())
    }

    fn check_start(&self, starts: &[(String, u64)]) -> Result<(), String> {
        let Some((last, changes)) = starts.last() else { return Ok(()) };
        let mut known = lock(&self.start);
        let restored = starts.iter().map(|(name, _)| name).rfind(|name| name.starts_with(RESTORED));
        let is_restored = restored.is_some_and(|name| *name != known.restored);
        let found = starts.iter().find(|(name, _)| *name == known.name).map(|(_, changes)| *changes);
        let cause = match found {
            _ if known.name.is_empty() || is_restored => None,
            None => Some(
                "this agent has met another controller of the fleet, of which this one does not know: two controllers use \
                 copies of the fleet's folder, or one uses an old backup; stop one of them",
            ),
            Some(changes) if changes < known.changes => Some(
                "this controller uses an old backup of the fleet's folder, which lacks runs, tokens, or joined, renewed or \
                 removed agents that this agent's controller had recorded later; stop it",
            ),
            Some(_) => None,
        };
        if let Some(cause) = cause {
            let what = format!(
                "{cause}; to go on with this one, run `netstage fleet restore` there, or stop the agent, delete {} on its \
                 host and start it again",
                self.folder.join(START_FILE).display()
            );
            if !known.is_refusal_logged {
                (self.log)(Level::Alarm, &format!("controller refused: {what}"));
            }
            known.is_refusal_logged = true;
            return Err(what);
        }
        known.is_refusal_logged = false;
        if known.name != *last || known.changes != *changes {
            if known.name != *last {
                known.restored = restored.cloned().unwrap_or_default();
            }
            known.name.clone_from(last);
            known.changes = *changes;
            if let Err(error) = private::write_json(&self.folder.join(START_FILE), &*known) {
                (self.log)(Level::Alarm, &format!("cannot store the start of the controller: {error}"));
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::authority::{Authorities, Authority};
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_backup_that_lacks_changes_is_refused_although_the_controller_was_not_restarted() {
        let folder = netstage_harness::TemporaryFolder::new("known-changes");
        Authority::create(&folder, "lab").unwrap();
        Authorities::open(&folder).unwrap().trusted().write(&folder).unwrap();
        let open = || KnownController::open(&folder, Arc::new(|_, _| {})).unwrap();
        let greet = |starts: &[(&str, u64)]| {
            let names: Vec<String> = starts.iter().map(|(name, _)| (*name).to_owned()).collect();
            let changes: Vec<u64> = starts.iter().map(|(_, changes)| *changes).collect();
            open().greeted(&names, &changes, "")
        };
        greet(&[("a1", 7), ("a2", 3)]).unwrap();
        // The connection remains, and the folder changes.
        greet(&[("a2", 5)]).unwrap();
        let refused = greet(&[("a1", 7), ("a2", 4), ("b1", 9)]).unwrap_err();
        assert!(refused.contains("old backup") && refused.contains("netstage fleet restore"), "{refused}");
        assert!(greet(&[("a2", 4)]).is_err(), "the folder was replaced while the controller runs");
        greet(&[("a1", 7), ("a2", 4), ("restored-1", 0), ("b2", 0)]).unwrap();
        greet(&[("a1", 7), ("a2", 4), ("restored-1", 0), ("b2", 1), ("b3", 0)]).unwrap();
        assert!(greet(&[("a1", 7), ("a2", 5)]).is_err());
    }

    #[test]
    fn controllers_with_copies_of_a_folder_are_distinguished() {
        let folder = netstage_harness::TemporaryFolder::new("known-controller");
        Authority::create(&folder, "lab").unwrap();
        Authorities::open(&folder).unwrap().trusted().write(&folder).unwrap();
        let open = || KnownController::open(&folder, Arc::new(|_, _| {})).unwrap();
        let starts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let agent = open();
        agent.greeted(&starts(&["a1"]), &[], "").unwrap();
        // The copy is started, and the agent meets it first.
        agent.greeted(&starts(&["a1", "b1"]), &[], "").unwrap();
        agent.greeted(&starts(&["a1", "b1"]), &[], "").unwrap();
        assert!(
            agent.greeted(&starts(&["a1"]), &[], "").unwrap_err().contains("copies of the fleet's folder")
        );
        assert!(
            open().greeted(&starts(&["a1", "a2"]), &[], "").is_err(),
            "after a restart of agent and controller"
        );
        open().greeted(&starts(&["a1", "b1", "b2"]), &[], "").unwrap();
        // A backup from before b2, prepared for this: accepted once, and its copy is refused later.
        let refused = agent.greeted(&starts(&["a1", "a2"]), &[], "");
        assert!(refused.unwrap_err().contains("netstage fleet restore"));
        agent.greeted(&starts(&["a1", "restored-1", "a3"]), &[], "").unwrap();
        assert!(agent.greeted(&starts(&["a1", "b1", "b2"]), &[], "").is_err());
        assert!(open().greeted(&starts(&["a1", "restored-1", "c1"]), &[], "").is_err());
        open().greeted(&starts(&["a1", "restored-1", "a3", "restored-2", "d1"]), &[], "").unwrap();
        // Clients of the hub do not announce starts.
        agent.greeted(&[], &[], "").unwrap();
        assert!(!agent.has_new_authority());
        agent.greeted(&[], &[], "another").unwrap();
        assert!(agent.has_new_authority());
    }
}
