//! Folder accessible to the page, and the names of its files. No name leads out of the folder, neither by `..` nor by a
//! link.

use super::error_response::ErrorResponse;
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

/// Maximum depth of names.
const MAX_DEPTH: usize = 4;
/// Maximum number of listed names.
const MAX_NAMES: usize = 5_000;
/// Maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 200;

/// Folder of scenarios or records.
#[derive(Clone, Debug)]
pub struct PublicFolder {
    folder: PathBuf,
    /// Kind of contents: "scenario", "record".
    kind: &'static str,
}

impl PublicFolder {
    /// Creates the access to a folder.
    pub fn new(folder: PathBuf, kind: &'static str) -> PublicFolder {
        PublicFolder { folder, kind }
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a name, which need not exist.
    pub fn path(&self, name: &str) -> Result<PathBuf, ErrorResponse> {
        let is_valid = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && !part.contains(|c: char| c.is_control() || c == '\\')
        };
        if !name.split('/').all(is_valid) {
            let message = format!("\"{}\" is not a valid {} name", name.escape_debug(), self.kind);
            return Err(ErrorResponse::invalid(message)
                .help("give folders and a file, separated by /, none starting with a dot"));
        }
        if name.len() > MAX_NAME_BYTES {
            let message = format!("a {} name of {} bytes is too long", self.kind, name.len());
            return Err(ErrorResponse::invalid(message).help(format!("use at most {MAX_NAME_BYTES} bytes")));
        }
        if name.split('/').count() > MAX_DEPTH {
            let message = format!("\"{name}\": too many folders for a {}", self.kind);
            return Err(
                ErrorResponse::invalid(message).help(format!("use at most {} folders", MAX_DEPTH - 1))
            );
        }
        self.within(self.folder.join(name))
    }

    /// Returns the path, unless a link in it leads out of the folder.
    pub fn within(&self, path: PathBuf) -> Result<PathBuf, ErrorResponse> {
        // A missing file is located by its nearest existing folder.
        let existing = path.ancestors().find_map(|ancestor| fs::canonicalize(ancestor).ok());
        let folder = fs::canonicalize(&self.folder)
            .map_err(|error| ErrorResponse::io("read", &self.folder.display().to_string(), &error))?;
        match existing {
            Some(existing) if existing.starts_with(&folder) => Ok(path),
            _ => {
                let name = path.strip_prefix(&self.folder).unwrap_or(&path).display();
                Err(ErrorResponse::invalid(format!("\"{name}\" is outside the folder of {}s", self.kind)))
            }
        }
    }

    /// Returns the sorted names of all entries that `is_one` accepts. Links are not followed.
    pub fn names(&self, is_one: impl Fn(&DirEntry) -> bool) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        let mut folders = vec![(self.folder.clone(), String::new(), 0)];
        while let Some((folder, prefix, depth)) = folders.pop() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                // The top folder may not exist yet, and others may be removed at any time.
                Err(error) if depth == 0 && error.kind() != io::ErrorKind::NotFound => return Err(error),
                Err(_) => continue,
            };
            for entry in entries.filter_map(Result::ok) {
                let (Ok(kind), Some(name)) =
                    (entry.file_type(), entry.file_name().to_str().map(str::to_owned))
                else {
                    continue;
                };
                if name.starts_with('.') || kind.is_symlink() || names.len() >= MAX_NAMES {
                    continue;
                }
                if is_one(&entry) {
                    names.push(format!("{prefix}{name}"));
                } else if kind.is_dir() && depth + 1 < MAX_DEPTH {
                    folders.push((entry.path(), format!("{prefix}{name}/"), depth + 1));
                }
            }
        }
        names.sort();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn no_name_leads_out_of_the_folder() {
        let root = netstage_harness::TemporaryFolder::new("shelf");
        let folder = root.join("shelf");
        fs::create_dir_all(folder.join("sub")).unwrap();
        fs::write(root.join("secret.toml"), "secret").unwrap();
        fs::write(folder.join("sub/a.toml"), "").unwrap();
        symlink(&root, folder.join("out")).unwrap();
        symlink(root.join("secret.toml"), folder.join("link.toml")).unwrap();
        let shelf = PublicFolder::new(folder.clone(), "scenario");
        for name in [
            "../secret.toml",
            "/etc/passwd",
            "",
            ".",
            "sub/../a",
            "sub//a",
            ".a",
            "a\\b",
            "a\0b",
            "a\nb",
            "sub/",
        ] {
            assert!(shelf.path(name).is_err(), "{name:?}");
        }
        for name in ["out/secret.toml", "link.toml", "out/new.toml"] {
            assert!(shelf.path(name).is_err(), "{name:?}");
        }
        assert!(shelf.path(&"a".repeat(201)).is_err());
        assert!(shelf.path("a/b/c/d").is_ok() && shelf.path("a/b/c/d/e").is_err());
        assert_eq!(shelf.path("sub/a.toml").unwrap(), folder.join("sub/a.toml"));
        assert_eq!(shelf.path("new/b c.toml").unwrap(), folder.join("new/b c.toml"));
        let is_one = |entry: &DirEntry| entry.path().extension().is_some_and(|e| e == "toml");
        assert_eq!(shelf.names(is_one).unwrap(), ["sub/a.toml"]);
    }
}
