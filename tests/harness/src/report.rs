//! Report of skipped and repeated tests, which `scripts/test.sh` reads.

use crate::SkipKind;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;

/// Destination of the report, if any.
pub struct TestReport {
    binary: String,
    file: Option<PathBuf>,
}

impl TestReport {
    /// Creates the report requested by `NETSTAGE_TESTS_REPORT`.
    pub fn of_environment() -> TestReport {
        TestReport::new(std::env::var_os("NETSTAGE_TESTS_REPORT").map(PathBuf::from))
    }

    /// Creates a report in a file, or none.
    pub fn new(file: Option<PathBuf>) -> TestReport {
        let program = std::env::current_exe().ok();
        let name = program.as_deref().and_then(|path| path.file_stem()).unwrap_or_default().to_string_lossy();
        // Cargo appends a hash.
        let binary = name.rsplit_once('-').map_or(&*name, |(name, _)| name).to_owned();
        TestReport { binary, file }
    }

    /// Records a skipped test.
    pub fn skipped(&self, test: &str, kind: SkipKind, reason: &str) {
        self.append(test, kind.name(), reason);
    }

    /// Records a test that is run again alone.
    pub fn repeated(&self, test: &str, reason: &str) {
        self.append(test, "repeated", reason);
    }

    /// Appends a line: binary, test, kind and reason, separated by tabs.
    fn append(&self, test: &str, kind: &str, reason: &str) {
        let Some(file) = &self.file else { return };
        let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        let line = format!("{}\t{test}\t{kind}\t{reason}\n", self.binary);
        let mut file =
            OpenOptions::new().create(true).append(true).open(file).expect("NETSTAGE_TESTS_REPORT");
        // One call, so that lines of several binaries are not mixed.
        file.write_all(line.as_bytes()).expect("NETSTAGE_TESTS_REPORT");
    }
}
