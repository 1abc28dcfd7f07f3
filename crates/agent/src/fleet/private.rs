//! Files and folders for their owner alone. A file is written aside and renamed: under its
//! name it is complete.

use nix::unistd::geteuid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::Path;

/// Makes a folder, and those above it: others may pass these, as the service's user must, to whom
/// systemd gives the folder that root has made.
pub fn folder(path: &Path) -> io::Result<()> {
    if let Some(above) = path.parent() {
        fs::create_dir_all(above)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file. Nobody but its owner may read it, at no moment: by root, for whose the folder is.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let aside = path.with_extension(format!("{}.part", std::process::id()));
    // What is left of that name, or was put there to lead elsewhere, is not written to.
    let _ = fs::remove_file(&aside);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
        if geteuid().is_root() {
            let folder = fs::metadata(aside.parent().expect("a file is in a folder"))?;
            fchown(&file, Some(folder.uid()), Some(folder.gid()))?;
        }
        file.write_all(bytes)?;
        file.sync_data()?;
        fs::rename(&aside, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written
}

/// Writes a value as JSON.
pub fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(value).map_err(io::Error::other)?;
    text.push(b'\n');
    write(path, &text)
}

/// Reads a value that was written as JSON.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()));
    serde_json::from_slice(&fs::read(path)?).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn only_the_owner_reads_and_nothing_is_left_aside() {
        let above = netstage_harness::Folder::new("private");
        let path = above.join("agent");
        folder(&path).unwrap();
        for text in ["one", "two"] {
            write_json(&path.join("x.json"), &text).unwrap();
            assert_eq!(read_json::<String>(&path.join("x.json")).unwrap(), text);
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("x.json"))), (0o700, 0o600));
        assert_ne!(mode(&above), 0o700);
        // As systemd leaves the folder of a service with a user of its own.
        if geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(61_234), Some(61_234)).unwrap();
            write_json(&path.join("x.json"), &"three").unwrap();
            assert_eq!(fs::metadata(path.join("x.json")).unwrap().uid(), 61_234);
        }
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    }
}
