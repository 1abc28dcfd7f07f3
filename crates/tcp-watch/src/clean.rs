//! Puts back what killed processes left limited, by their notes.

use super::note::{Before, Noted};
use super::{limit, route};
use netstage_host::netns::Namespace;
use netstage_host::obstacle::Obstacle;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

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
