//! MPLS labels on kernels without MPLS.
//!
//! zebra drops all labels if the kernel has no MPLS, although it could pass them through the forwarding plane manager
//! to a router that does not need the kernel. Only on such kernels, zebra is started with a small preloaded library
//! that replies in place of the kernel (`labels.c`), which is compiled on demand.

use netstage_host::startup_error::StartupError;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("labels.c");
/// Folder that exists on kernels with MPLS.
const KERNEL: &str = "/proc/sys/net/mpls";

/// Builds the library in a folder and returns its path; `None` if the kernel has MPLS.
pub fn library(folder: &Path) -> Result<Option<PathBuf>, StartupError> {
    if Path::new(KERNEL).exists() {
        return Ok(None);
    }
    let (source, library) = (folder.join("labels.c"), folder.join("labels.so"));
    let broken = |error: String| {
        StartupError::without_remedy(format!("cannot build the MPLS library for zebra: {error}"))
    };
    std::fs::write(&source, SOURCE).map_err(|error| broken(error.to_string()))?;
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O2", "-o"]).args([&library, &source]);
    let output = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => StartupError::missing_feature(
            "this kernel has no MPLS, and no C compiler is installed to build the MPLS library for zebra",
            "sudo apt-get install gcc libc6-dev (Debian); or use a kernel with MPLS: modprobe mpls_router",
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
    fn the_library_reports_mpls_on_a_kernel_without_it() {
        let folder = netstage_harness::TemporaryFolder::new("labels");
        if let Some(library) = library(&folder).unwrap() {
            let has_mpls = |preload: &Path| {
                let mut command = Command::new("/usr/bin/stat");
                command.arg(KERNEL).env("LD_PRELOAD", preload).output().unwrap().status.success()
            };
            assert!(!has_mpls(Path::new("")) && library.exists());
        }
    }
}
