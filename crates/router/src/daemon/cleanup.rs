//! Cleanup after a killed router. It leaves changed kernel settings, a socket and, if so configured, its XDP
//! program. They are recorded in a file next to the control socket, for the next router and for `netstage
//! clean`.

use netstage_host::netns::Namespace;
use netstage_host::netns::settings::TemporarySettings;
use netstage_host::startup_error::StartupError;
use nix::sys::stat::fstat;
use nix::sys::statfs::{FsType, statfs};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// BPF_FS_MAGIC of linux/magic.h.
const BPF_FILE_SYSTEM: FsType = FsType(0xcafe_4a11);

/// Cleanup record of a running router. Removed on drop, since everything has been restored by then.
#[derive(Debug)]
pub(super) struct CleanupRecord {
    path: PathBuf,
    namespace: u64,
    /// An earlier router was killed.
    is_left: bool,
    is_kept: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct CleanupFile {
    /// Inode number of the network namespace.
    namespace: u64,
    /// Changed settings with their original values.
    settings: Vec<(String, String)>,
    /// Folders with pins.
    pins: Vec<PathBuf>,
}

/// Result of a cleanup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanupResult {
    /// Restored settings.
    pub settings: Vec<String>,
    /// Removed programs.
    pub programs: Vec<PathBuf>,
}

impl CleanupRecord {
    /// Creates the record for the router with this control socket. Also returns the original settings from
    /// the record of an earlier router.
    pub fn of(control: &Path, namespace: &Namespace) -> (CleanupRecord, Vec<(String, String)>) {
        let (path, namespace) = (record_path(control), number(namespace));
        let before = read(&path).ok().filter(|record| record.namespace == namespace);
        let remains = CleanupRecord { path, namespace, is_left: before.is_some(), is_kept: false };
        (remains, before.map_or(Vec::new(), |record| record.settings))
    }

    /// Keeps the record of an earlier router when this one fails to start, because the earlier program may
    /// still forward.
    pub fn leave(&mut self, settings: &mut TemporarySettings) {
        if self.is_left {
            self.is_kept = true;
            settings.make_permanent();
        }
    }

    /// Writes the present changes to the file.
    pub fn write(&self, settings: &TemporarySettings, pins: &[PathBuf]) -> io::Result<()> {
        let (namespace, settings) = (self.namespace, settings.previous_values().to_vec());
        let record = CleanupFile { namespace, settings, pins: pins.to_vec() };
        let temporary = PathBuf::from(format!("{}.part", self.path.display()));
        fs::write(&temporary, serde_json::to_vec(&record).map_err(io::Error::other)?)?;
        fs::rename(&temporary, &self.path)
    }

    /// Returns the folder for pins of routers in this network namespace.
    pub fn pins(&self, folder: &Path) -> PathBuf {
        folder.join(format!("router-{}", self.namespace))
    }

    /// Creates the folder for pins.
    pub fn make_folder(&self, folder: &Path) -> Result<(), StartupError> {
        let own = self.pins(folder);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&own);
        let kind = made.and_then(|()| Ok(statfs(&own)?.filesystem_type()));
        let wrong = match kind {
            Ok(BPF_FILE_SYSTEM) => return Ok(()),
            Ok(_) => {
                let _ = fs::remove_dir(&own);
                "it is not in a bpffs".into()
            }
            Err(error) => error.to_string(),
        };
        Err(StartupError::new(
            format!("cannot pin programs in {}: {wrong}", own.display()),
            "mount a bpffs (mount -t bpf bpf /sys/fs/bpf), set `pins` to a folder in it, or set `when_killed` to \"stop\"",
        ))
    }
}

impl Drop for CleanupRecord {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        if let Ok(record) = read(&self.path) {
            // Other routers of the network namespace may still have pins there.
            record.pins.iter().for_each(|folder| drop(fs::remove_dir(folder)));
        }
        let _ = fs::remove_file(&self.path);
    }
}

/// Restores what the router with this control socket changed before it was killed.
pub fn clean(control: &Path) -> Result<CleanupResult, StartupError> {
    if UnixStream::connect(control).is_ok() {
        let message = format!("{}: a router is running", control.display());
        return Err(StartupError::new(message, "stop it with SIGTERM; it restores what it changed"));
    }
    let path = record_path(control);
    let record = match read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(CleanupResult::default()),
        record => record.map_err(|error| StartupError::from_system(path.display(), &error))?,
    };
    let namespace = Namespace::of_this_thread();
    let namespace = namespace.map_err(|error| StartupError::from_system("the network namespace", &error))?;
    if number(&namespace) != record.namespace {
        return Err(StartupError::new(
            format!("{}: the router was in network namespace {}", path.display(), record.namespace),
            "run this command there (nsenter, ip netns exec), or remove the file if the namespace no longer exists",
        ));
    }
    let mut cleaned = CleanupResult::default();
    for folder in &record.pins {
        for pin in fs::read_dir(folder).into_iter().flatten().flatten() {
            if fs::remove_file(pin.path()).is_ok() {
                cleaned.programs.push(pin.path());
            }
        }
        let _ = fs::remove_dir(folder);
    }
    cleaned.settings = TemporarySettings::resume(namespace, record.settings).restore(|_| true);
    // No process listens on the socket any more.
    let _ = fs::remove_file(control);
    fs::remove_file(&path).map_err(|error| StartupError::from_system(path.display(), &error))?;
    Ok(cleaned)
}

fn record_path(control: &Path) -> PathBuf {
    PathBuf::from(format!("{}.left", control.display()))
}

fn read(path: &Path) -> io::Result<CleanupFile> {
    serde_json::from_slice(&fs::read(path)?).map_err(io::Error::other)
}

/// Returns the inode number of a network namespace, unique while it exists.
fn number(namespace: &Namespace) -> u64 {
    fstat(namespace.as_fd()).map_or(0, |stat| stat.st_ino)
}
