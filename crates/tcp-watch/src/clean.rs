//! Restores limits that killed processes left behind, using their files.

use super::limit_file::{LimitEntry, PreviousLimits};
use super::{limit, route};
use netstage_host::netns::Namespace;
use netstage_host::startup_error::StartupError;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Restores limits that killed processes left behind; returns the number of connections and routes.
pub fn clean(folder: &Path) -> Result<usize, StartupError> {
    let mut count = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let system_error = |error| StartupError::from_system(format!("{}", entry.path().display()), &error);
        let mut file = File::options().read(true).write(true).open(entry.path()).map_err(system_error)?;
        match file.try_lock() {
            Ok(()) => {}
            // The process is still running.
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(error)) => return Err(system_error(error)),
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(system_error)?;
        // A kill during writing leaves an incomplete last line.
        let (first, rest) = text.split_once('\n').unwrap_or_default();
        let noted: Vec<LimitEntry> =
            rest.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let namespaces = namespaces(&serde_json::from_str(first).unwrap_or_default());
        let connections: Vec<(u64, PreviousLimits)> = noted
            .iter()
            .filter_map(|noted| match noted {
                LimitEntry::Connection(cookie, before) => Some((*cookie, *before)),
                LimitEntry::Route { .. } => None,
            })
            .collect();
        if !connections.is_empty() {
            limit::restore(&connections, &namespaces)?;
        }
        for noted in &noted {
            if let LimitEntry::Route { to, link } = noted {
                namespaces.iter().for_each(|namespace| route::remove(namespace, *to, link));
            }
        }
        count += noted.len();
        fs::remove_file(entry.path()).map_err(system_error)?;
    }
    Ok(count)
}

/// Opens those of the namespaces that still exist: namespaces are held by names, processes or open files.
fn namespaces(numbers: &BTreeSet<u64>) -> Vec<Namespace> {
    let entries =
        |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let paths_of_process = |process: PathBuf| {
        let is_namespace = |file: &PathBuf| {
            fs::read_link(file).is_ok_and(|target| target.to_string_lossy().starts_with("net:["))
        };
        let open = entries(process.join("fd")).filter(is_namespace);
        std::iter::once(process.join("ns/net")).chain(open.collect::<Vec<_>>())
    };
    let processes = entries("/proc".into()).filter(|path| path.join("fd").exists());
    let paths = entries("/run/netns".into()).chain(processes.flat_map(paths_of_process));
    let mut found = BTreeMap::new();
    for path in paths {
        let number = fs::metadata(&path).map_or(0, |namespace| namespace.ino());
        if numbers.contains(&number)
            && !found.contains_key(&number)
            && let Ok(namespace) = Namespace::at(&path)
        {
            found.insert(number, namespace);
        }
    }
    found.into_values().collect()
}
