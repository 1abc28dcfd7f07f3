//! What a killed router leaves: settings of the kernel that nobody puts back, a socket, and, where it was
//! told to, its program in the kernel. It is written down beside the control socket, for the router that
//! begins next and for `netstage clean`.

use netstage_host::netns::Namespace;
use netstage_host::netns::settings::Settings;
use netstage_host::obstacle::Obstacle;
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

/// The record of a router that runs; removed when it is dropped, since then all is put back.
#[derive(Debug)]
pub(super) struct Remains {
    path: PathBuf,
    namespace: u64,
    /// A router before has left something.
    is_left: bool,
    is_kept: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// The number of its network namespace.
    namespace: u64,
    /// Settings, and how they were.
    settings: Vec<(String, String)>,
    /// Folders with pins.
    pins: Vec<PathBuf>,
}

/// What was cleaned up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Settings that were put back.
    pub settings: Vec<String>,
    /// Programs that were ended.
    pub programs: Vec<PathBuf>,
}

impl Remains {
    /// Of the router with this control socket; the settings one before it has left changed, as they were.
    pub fn of(control: &Path, namespace: &Namespace) -> (Remains, Vec<(String, String)>) {
        let (path, namespace) = (beside(control), number(namespace));
        let before = read(&path).ok().filter(|record| record.namespace == namespace);
        let remains = Remains { path, namespace, is_left: before.is_some(), is_kept: false };
        (remains, before.map_or(Vec::new(), |record| record.settings))
    }

    /// The router does not begin: what one before it left stays as it is, since its program may still forward.
    pub fn leave(&mut self, settings: &mut Settings) {
        if self.is_left {
            self.is_kept = true;
            settings.keep();
        }
    }

    /// Writes down what is changed at present.
    pub fn write(&self, settings: &Settings, pins: &[PathBuf]) -> io::Result<()> {
        let (namespace, settings) = (self.namespace, settings.before().to_vec());
        let record = Record { namespace, settings, pins: pins.to_vec() };
        let aside = PathBuf::from(format!("{}.part", self.path.display()));
        fs::write(&aside, serde_json::to_vec(&record).map_err(io::Error::other)?)?;
        fs::rename(&aside, &self.path)
    }

    /// The folder for pins of this namespace's routers.
    pub fn pins(&self, folder: &Path) -> PathBuf {
        folder.join(format!("router-{}", self.namespace))
    }

    /// Makes it.
    pub fn make_folder(&self, folder: &Path) -> Result<(), Obstacle> {
        let own = self.pins(folder);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&own);
        let kind = made.and_then(|()| Ok(statfs(&own)?.filesystem_type()));
        let wrong = match kind {
            Ok(BPF_FILE_SYSTEM) => return Ok(()),
            Ok(_) => {
                let _ = fs::remove_dir(&own);
                "it is in no bpffs".into()
            }
            Err(error) => error.to_string(),
        };
        Err(Obstacle::new(
            format!("nothing can be pinned in {}: {wrong}", own.display()),
            "mount one (mount -t bpf bpf /sys/fs/bpf), give `pins` a folder there, or set `when_killed` to \"stop\"",
        ))
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        if let Ok(record) = read(&self.path) {
            // Others of this namespace may still have pins there.
            record.pins.iter().for_each(|folder| drop(fs::remove_dir(folder)));
        }
        let _ = fs::remove_file(&self.path);
    }
}

/// Puts back what the router with this control socket left when it was killed.
pub fn clean(control: &Path) -> Result<Cleaned, Obstacle> {
    if UnixStream::connect(control).is_ok() {
        let message = format!("{}: a router answers there", control.display());
        return Err(Obstacle::new(message, "end it first, by SIGTERM: it puts back what it changed"));
    }
    let path = beside(control);
    let record = match read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Cleaned::default()),
        record => record.map_err(|error| Obstacle::system(path.display(), &error))?,
    };
    let namespace = Namespace::of_this_thread();
    let namespace = namespace.map_err(|error| Obstacle::system("the network namespace", &error))?;
    if number(&namespace) != record.namespace {
        return Err(Obstacle::new(
            format!("{}: the router was in network namespace {}", path.display(), record.namespace),
            "run this there (nsenter, ip netns exec), or remove the file if the namespace is gone",
        ));
    }
    let mut cleaned = Cleaned::default();
    for folder in &record.pins {
        for pin in fs::read_dir(folder).into_iter().flatten().flatten() {
            if fs::remove_file(pin.path()).is_ok() {
                cleaned.programs.push(pin.path());
            }
        }
        let _ = fs::remove_dir(folder);
    }
    cleaned.settings = Settings::changed_before(namespace, record.settings).put_back(|_| true);
    // What is left of it is a socket nobody listens at.
    let _ = fs::remove_file(control);
    fs::remove_file(&path).map_err(|error| Obstacle::system(path.display(), &error))?;
    Ok(cleaned)
}

fn beside(control: &Path) -> PathBuf {
    PathBuf::from(format!("{}.left", control.display()))
}

fn read(path: &Path) -> io::Result<Record> {
    serde_json::from_slice(&fs::read(path)?).map_err(io::Error::other)
}

/// The number by which a network namespace is told from others while it is there.
fn number(namespace: &Namespace) -> u64 {
    fstat(namespace.as_fd()).map_or(0, |stat| stat.st_ino)
}
