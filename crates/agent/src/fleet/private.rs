//! Files and folders readable only by their owner. A file is written to a temporary file and renamed, so that
//! a file under its final name is complete.

use nix::unistd::geteuid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::Path;

/// Creates a folder for the owner alone. Missing parent folders are created with the default mode, so that
/// the user of a systemd service, which becomes the owner of the folder, can reach it.
pub fn folder(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file that only its owner can read, at any time. A file written by root belongs to the owner of
/// its folder.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension(format!("{}.part", std::process::id()));
    // A leftover temporary file, or a symbolic link in its place, must not be written to.
    let _ = fs::remove_file(&temporary);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        if geteuid().is_root() {
            let folder = fs::metadata(temporary.parent().expect("the path of a file has a parent"))?;
            fchown(&file, Some(folder.uid()), Some(folder.gid()))?;
        }
        file.write_all(bytes)?;
        file.sync_data()?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Writes a value as JSON.
pub fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(value).map_err(io::Error::other)?;
    text.push(b'\n');
    write(path, &text)
}

/// Reads a value written as JSON.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()));
    serde_json::from_slice(&fs::read(path)?).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn only_the_owner_can_read_files_and_no_temporary_file_remains() {
        let parent = netstage_harness::TemporaryFolder::new("private");
        let path = parent.join("agent");
        folder(&path).unwrap();
        for text in ["one", "two"] {
            write_json(&path.join("x.json"), &text).unwrap();
            assert_eq!(read_json::<String>(&path.join("x.json")).unwrap(), text);
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("x.json"))), (0o700, 0o600));
        assert_ne!(mode(&parent), 0o700);
        // State left by systemd in the folder of a service with a user of its own.
        if geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(61_234), Some(61_234)).unwrap();
            write_json(&path.join("x.json"), &"three").unwrap();
            assert_eq!(fs::metadata(path.join("x.json")).unwrap().uid(), 61_234);
        }
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    }
}
