//! Labels where the kernel has none.
//!
//! zebra looks whether the kernel has MPLS, and drops all labels where it has not, though the forwarding plane
//! manager could tell them to a router that does without the kernel. So there, and only there, zebra is started
//! with a small library that answers in the kernel's stead (`labels.c`), built when it is needed.

use netstage_host::obstacle::Obstacle;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("labels.c");
/// A kernel that knows labels has this.
const KERNEL: &str = "/proc/sys/net/mpls";

/// Builds the library in a folder; none is needed where the kernel knows labels.
pub fn library(folder: &Path) -> Result<Option<PathBuf>, Obstacle> {
    if Path::new(KERNEL).exists() {
        return Ok(None);
    }
    let (source, library) = (folder.join("labels.c"), folder.join("labels.so"));
    let broken = |what: String| Obstacle::broken(format!("the library that has zebra keep labels: {what}"));
    std::fs::write(&source, SOURCE).map_err(|error| broken(error.to_string()))?;
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O2", "-o"]).args([&library, &source]);
    let output = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Obstacle::missing(
            "this kernel has no MPLS, and the library that has zebra keep labels all the same needs a C compiler",
            "sudo apt-get install gcc libc6-dev (Debian); or a kernel with MPLS: modprobe mpls_router",
        ),
        _ => broken(error.to_string()),
    })?;
    match output.status.success() {
        true => Ok(Some(library)),
        false => Err(broken(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_answers_for_a_kernel_without_labels() {
        let folder = netstage_harness::Folder::new("labels");
        if let Some(library) = library(&folder).unwrap() {
            let look = |preload: &Path| {
                let mut command = Command::new("/usr/bin/stat");
                command.arg(KERNEL).env("LD_PRELOAD", preload).output().unwrap().status.success()
            };
            assert!(!look(Path::new("")) && library.exists());
        }
    }
}
