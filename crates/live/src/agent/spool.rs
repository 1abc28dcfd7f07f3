//! The spool: reports on the agent's own disk, so that a lost controller loses no results.
//! A report is written aside, synced and renamed: under its name it is complete.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// A folder that keeps reports until the controller has them.
#[derive(Debug)]
pub struct Spool(Option<PathBuf>);

impl Spool {
    /// Opens the folder, making it where it is missing.
    pub fn open(folder: &Path) -> io::Result<Spool> {
        fs::create_dir_all(folder)?;
        Ok(Spool(Some(folder.to_owned())))
    }

    /// Keeps nothing: what no controller fetches is lost.
    pub fn none() -> Spool {
        Spool(None)
    }

    /// Keeps a report, if it is one that does; the error names the file.
    pub fn keep(&self, node: &str, run: u64, report: &[u8]) -> Result<Option<PathBuf>, String> {
        let Some(folder) = &self.0 else { return Ok(None) };
        let path = folder.join(file_name(node, run));
        let aside = path.with_extension("part");
        let written = write_synced(&aside, report)
            .and_then(|()| fs::rename(&aside, &path))
            .and_then(|()| File::open(folder)?.sync_all());
        match written {
            Ok(()) => Ok(Some(path)),
            Err(error) => {
                // What could not be completed only takes the room someone else may need.
                let _ = fs::remove_file(&aside);
                Err(format!("cannot write {}: {error}", path.display()))
            }
        }
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// A name of letters and digits, whatever the node is called.
fn file_name(node: &str, run: u64) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let node: String = node.chars().take(64).map(plain).collect();
    format!("{node}-{run}.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_cannot_choose_the_folder() {
        assert_eq!(file_name("pe1", 3), "pe1-3.json");
        assert_eq!(file_name("../../etc/x[2]", 1), "______etc_x_2_-1.json");
        assert!(file_name(&"é".repeat(500), u64::MAX).len() < 100);
    }

    #[test]
    fn a_report_is_kept_whole_and_nothing_beside_it() {
        let folder = std::env::temp_dir().join(format!("netstage-spool-{}", std::process::id()));
        let spool = Spool::open(&folder).unwrap();
        let path = spool.keep("a", 1, b"{}").unwrap().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"{}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
        let error = spool.keep("a", 2, b"{}").unwrap_err();
        assert!(error.contains("a-2.json"), "{error}");
    }
}
