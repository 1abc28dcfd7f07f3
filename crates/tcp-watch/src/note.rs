//! What is limited, written down as long as it is: a process that is killed leaves its file, and [`clean`] puts back
//! what is in it.

use super::limit::{self, Before};
use super::route;
use netstage_host::netns::Namespace;
use netstage_host::obstacle::Obstacle;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Where it is written down what is limited.
pub const FOLDER: &str = "/run/netstage/tcp-limits";

/// What is limited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Noted {
    /// A connection by its cookie, and its limits before.
    Connection(u64, Before),
    /// A route that was added.
    Route {
        /// To whom.
        to: IpAddr,
        /// The link it leaves by.
        link: String,
    },
}

/// A file with a line of the numbers of namespaces, then one for each that is limited. Locked as long as its process
/// lives.
pub(super) struct Note {
    path: PathBuf,
    file: File,
    namespaces: BTreeSet<u64>,
    known: Vec<Noted>,
}

impl Note {
    /// One of this process, of this kind.
    pub fn new(folder: &Path, kind: &str, namespaces: BTreeSet<u64>) -> io::Result<Note> {
        fs::create_dir_all(folder)?;
        let path = folder.join(format!("{}{kind}", std::process::id()));
        let file = File::options().create(true).truncate(false).read(true).write(true).open(&path)?;
        file.try_lock().map_err(|_| io::Error::other("it is in use"))?;
        Ok(Note { path, file, namespaces, known: Vec::new() })
    }

    /// Notes this in place of what was noted.
    pub fn write(&mut self, noted: Vec<Noted>) -> io::Result<()> {
        if self.known == noted {
            return Ok(());
        }
        let line = |value: serde_json::Result<String>| value.expect("only numbers and names") + "\n";
        let mut lines = line(serde_json::to_string(&self.namespaces));
        lines.extend(noted.iter().map(|entry| line(serde_json::to_string(entry))));
        self.file.rewind()?;
        self.file.write_all(lines.as_bytes())?;
        self.file.set_len(lines.len() as u64)?;
        self.known = noted;
        Ok(())
    }

    /// All is put back.
    pub fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Puts back what killed processes left limited: how many connections and routes of theirs there were.
pub fn clean(folder: &Path) -> Result<usize, Obstacle> {
    let mut count = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let failed = |error| Obstacle::system(format!("{}", entry.path().display()), &error);
        let mut file = File::options().read(true).write(true).open(entry.path()).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            // It is at work.
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        // A kill in the middle of writing leaves a line that ends early.
        let (first, rest) = text.split_once('\n').unwrap_or_default();
        let noted: Vec<Noted> = rest.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let namespaces = namespaces(&serde_json::from_str(first).unwrap_or_default());
        let connections: Vec<(u64, Before)> = noted
            .iter()
            .filter_map(|noted| match noted {
                Noted::Connection(cookie, before) => Some((*cookie, *before)),
                Noted::Route { .. } => None,
            })
            .collect();
        if !connections.is_empty() {
            limit::put_back(&connections, &namespaces)?;
        }
        for noted in &noted {
            if let Noted::Route { to, link } = noted {
                namespaces.iter().for_each(|namespace| route::remove(namespace, *to, link));
            }
        }
        count += noted.len();
        fs::remove_file(entry.path()).map_err(failed)?;
    }
    Ok(count)
}

/// Those of some namespaces that are still there: they are held by names, processes, or open files.
fn namespaces(numbers: &BTreeSet<u64>) -> Vec<Namespace> {
    let entries =
        |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let of_process = |process: PathBuf| {
        let is_namespace = |file: &PathBuf| {
            fs::read_link(file).is_ok_and(|target| target.to_string_lossy().starts_with("net:["))
        };
        let open = entries(process.join("fd")).filter(is_namespace);
        std::iter::once(process.join("ns/net")).chain(open.collect::<Vec<_>>())
    };
    let processes = entries("/proc".into()).filter(|path| path.join("fd").exists());
    let places = entries("/run/netns".into()).chain(processes.flat_map(of_process));
    let mut found = BTreeMap::new();
    for place in places {
        let number = fs::metadata(&place).map_or(0, |namespace| namespace.ino());
        if numbers.contains(&number)
            && !found.contains_key(&number)
            && let Ok(namespace) = Namespace::at(&place)
        {
            found.insert(number, namespace);
        }
    }
    found.into_values().collect()
}
