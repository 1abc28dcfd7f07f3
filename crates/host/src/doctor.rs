//! What this host can do, found by trying: in a thread or in namespaces of its own, so that
//! nothing of the host changes. Owns what is tried and how to get what is missing; how it
//! is shown is the caller's.

mod probes;
mod tools;

use serde::Serialize;

/// What was found of one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it belongs to, for people.
    pub group: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Whether it is there.
    pub present: bool,
    /// Whether `netstage run --on emu` cannot do without it.
    pub required: bool,
    /// What was seen: a number, a version, the kernel's answer.
    pub detail: String,
    /// How to get it; empty where it is there.
    pub remedy: String,
}

/// Tries everything, in about a second.
///
/// Call it before any thread starts: without root, what is tried needs a user namespace,
/// which this process enters for good.
pub fn examine() -> Vec<Finding> {
    let mut findings = probes::examine();
    findings.extend(tools::examine());
    findings
}

/// Whether everything the emulated stage cannot do without is there.
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

    /// It is there if `tried` succeeded; else here is how to get it.
    fn tried<E: ToString>(mut self, tried: Result<String, E>, remedy: impl Into<String>) -> Finding {
        match tried {
            Ok(detail) => (self.present, self.detail) = (true, detail),
            Err(error) => (self.detail, self.remedy) = (error.to_string(), remedy.into()),
        }
        self
    }
}
