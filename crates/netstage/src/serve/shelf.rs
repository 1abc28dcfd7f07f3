//! A folder that the page may see, and the names of what lies below it. No name leads out of it:
//! neither `..` nor a link to elsewhere.

use super::refusal::Refusal;
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

/// Folders further down are not looked into.
const DEEPEST: usize = 4;
/// More than this is not listed.
const MOST: usize = 5_000;
/// The longest name.
const LONGEST: usize = 200;

/// A folder.
#[derive(Clone, Debug)]
pub struct Shelf {
    folder: PathBuf,
    /// What lies in it: "scenario", "record".
    what: &'static str,
}

impl Shelf {
    /// Of what lies in a folder.
    pub fn new(folder: PathBuf, what: &'static str) -> Shelf {
        Shelf { folder, what }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of a name, of something that is there or not yet.
    pub fn path(&self, name: &str) -> Result<PathBuf, Refusal> {
        let is_sound = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && !part.contains(|c: char| c.is_control() || c == '\\')
        };
        if !name.split('/').all(is_sound) {
            let message = format!("\"{}\" is no name of a {}", name.escape_debug(), self.what);
            return Err(
                Refusal::bad(message).help("folders and a file, separated by /, none beginning with a dot")
            );
        }
        if name.len() > LONGEST {
            let message = format!("a name of {} bytes is too long for a {}", name.len(), self.what);
            return Err(Refusal::bad(message).help(format!("{LONGEST} bytes at most")));
        }
        if name.split('/').count() > DEEPEST {
            let message = format!("\"{name}\" lies too deep for a {}", self.what);
            return Err(Refusal::bad(message).help(format!("{} folders at most", DEEPEST - 1)));
        }
        self.within(self.folder.join(name))
    }

    /// A path, unless a link of it leads out of the folder.
    pub fn within(&self, path: PathBuf) -> Result<PathBuf, Refusal> {
        // What is not there yet is where its folder is.
        let known = path.ancestors().find_map(|ancestor| fs::canonicalize(ancestor).ok());
        let folder = fs::canonicalize(&self.folder)
            .map_err(|error| Refusal::io("read", &self.folder.display().to_string(), &error))?;
        match known {
            Some(known) if known.starts_with(&folder) => Ok(path),
            _ => {
                let name = path.strip_prefix(&self.folder).unwrap_or(&path).display();
                Err(Refusal::bad(format!("\"{name}\" leads out of the folder of {}s", self.what)))
            }
        }
    }

    /// Names of all that `is_one` accepts, sorted. Links are not followed.
    pub fn names(&self, is_one: impl Fn(&DirEntry) -> bool) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        let mut folders = vec![(self.folder.clone(), String::new(), 0)];
        while let Some((folder, prefix, depth)) = folders.pop() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                // The outermost may be yet to come, others vanish.
                Err(error) if depth == 0 && error.kind() != io::ErrorKind::NotFound => return Err(error),
                Err(_) => continue,
            };
            for entry in entries.filter_map(Result::ok) {
                let (Ok(kind), Some(name)) =
                    (entry.file_type(), entry.file_name().to_str().map(str::to_owned))
                else {
                    continue;
                };
                if name.starts_with('.') || kind.is_symlink() || names.len() >= MOST {
                    continue;
                }
                if is_one(&entry) {
                    names.push(format!("{prefix}{name}"));
                } else if kind.is_dir() && depth + 1 < DEEPEST {
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
    fn no_name_leads_out() {
        let root = netstage_harness::Folder::new("shelf");
        let folder = root.join("shelf");
        fs::create_dir_all(folder.join("sub")).unwrap();
        fs::write(root.join("secret.toml"), "secret").unwrap();
        fs::write(folder.join("sub/a.toml"), "").unwrap();
        symlink(&root, folder.join("out")).unwrap();
        symlink(root.join("secret.toml"), folder.join("link.toml")).unwrap();
        let shelf = Shelf::new(folder.clone(), "scenario");
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
