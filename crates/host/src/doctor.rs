//! Detection of the host's features by trying them, in a thread or in temporary namespaces, so that the host
//! does not change. Owns the probes and the remedies; the caller formats the result.

mod probes;
mod tools;

use serde::Serialize;

/// Result of one probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Heading under which the feature is listed.
    pub group: &'static str,
    /// Name of the feature.
    pub name: &'static str,
    /// Whether the feature is available.
    pub present: bool,
    /// Whether `netstage run --on emu` requires the feature.
    pub required: bool,
    /// Observed detail: a number, a version or the kernel's error.
    pub detail: String,
    /// Instruction to enable the feature; empty if available.
    pub remedy: String,
}

/// Runs all probes, in about a second.
///
/// Call it before any thread starts: without root, the probes need a user namespace, which this process enters
/// permanently.
pub fn examine() -> Vec<Finding> {
    let mut findings = probes::examine();
    findings.extend(tools::examine());
    findings
}

/// Returns whether all features required for emulation are available.
pub fn emulation_possible(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.present || !finding.required)
}

impl Finding {
    fn new(group: &'static str, name: &'static str) -> Finding {
        let (detail, remedy) = Default::default();
        Finding { group, name, present: false, required: false, detail, remedy }
    }

    fn required(mut self) -> Finding {
        self.required = true;
        self
    }

    /// Records the result of a probe. The remedy is used if the probe failed.
    fn with_result<E: ToString>(mut self, tried: Result<String, E>, remedy: impl Into<String>) -> Finding {
        match tried {
            Ok(detail) => (self.present, self.detail) = (true, detail),
            Err(error) => (self.detail, self.remedy) = (error.to_string(), remedy.into()),
        }
        self
    }
}
