//! Files with the limits of running processes. A killed process leaves its file, which [`super::clean`]
//! evaluates.

use aya::Pod;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Seek as _, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Folder of the files.
pub const FOLDER: &str = "/run/netstage/tcp-limits";

/// Previous limits of a connection: `struct before` of bpf/limit.bpf.c.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub(super) struct PreviousLimits {
    cwnd: u32,
    window: u32,
}

// SAFETY: integers without padding between them; every bit pattern is a value.
#[allow(unsafe_code)]
unsafe impl Pod for PreviousLimits {}

/// Entry of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum LimitEntry {
    /// Cookie and previous limits of a connection.
    Connection(u64, PreviousLimits),
    /// Route that was added.
    Route {
        /// Destination address.
        to: IpAddr,
        /// Outgoing link.
        link: String,
    },
}

/// File with a line of namespace inodes, then a line per entry. Locked while its process lives.
pub(super) struct LimitFile {
    path: PathBuf,
    file: File,
    namespaces: BTreeSet<u64>,
    entries: Vec<LimitEntry>,
}

impl LimitFile {
    /// Creates the file of this process for one kind of limit.
    pub fn new(folder: &Path, kind: &str, namespaces: BTreeSet<u64>) -> io::Result<LimitFile> {
        fs::create_dir_all(folder)?;
        let path = folder.join(format!("{}{kind}", std::process::id()));
        let file = File::options().create(true).truncate(false).read(true).write(true).open(&path)?;
        file.try_lock().map_err(|_| io::Error::other("the file is in use"))?;
        Ok(LimitFile { path, file, namespaces, entries: Vec::new() })
    }

    /// Replaces the entries.
    pub fn write(&mut self, noted: Vec<LimitEntry>) -> io::Result<()> {
        if self.entries == noted {
            return Ok(());
        }
        let line =
            |value: serde_json::Result<String>| value.expect("numbers and names are valid JSON") + "\n";
        let mut lines = line(serde_json::to_string(&self.namespaces));
        lines.extend(noted.iter().map(|entry| line(serde_json::to_string(entry))));
        self.file.rewind()?;
        self.file.write_all(lines.as_bytes())?;
        self.file.set_len(lines.len() as u64)?;
        self.entries = noted;
        Ok(())
    }

    /// Removes the file after the limits were restored.
    pub fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}
