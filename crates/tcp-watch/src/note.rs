//! What is limited, written down as long as it is: a process that is killed leaves its file, and [`super::clean`]
//! puts back what is in it.

use aya::Pod;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Seek as _, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Where it is written down what is limited.
pub const FOLDER: &str = "/run/netstage/tcp-limits";

/// The limits of a connection before: `struct before` of bpf/limit.bpf.c.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub(super) struct Before {
    cwnd: u32,
    window: u32,
}

// SAFETY: integers without padding between them; every bit pattern is a value.
#[allow(unsafe_code)]
unsafe impl Pod for Before {}

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
