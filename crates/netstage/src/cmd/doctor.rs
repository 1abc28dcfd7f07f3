//! `netstage doctor`: checks what this host supports and how to install what is missing.

use crate::exit::{self, Failure, MISSING, OK};
use netstage_host::doctor::{Finding, emulation_possible, examine};
use serde_json::json;
use std::fmt::Write as _;

const EXAMPLES: &str = "Examples:
  netstage doctor";

/// Options of `doctor`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let findings = examine();
    let emu = emulation_possible(&findings);
    let code = if emu { OK } else { MISSING };
    let text = if arguments.json {
        format!("{:#}\n", json!({ "exit": code, "emu": emu, "findings": findings }))
    } else {
        as_text(&findings, emu)
    };
    exit::print(text.as_bytes())?;
    Ok(code)
}

fn as_text(findings: &[Finding], emu: bool) -> String {
    let mut out = String::new();
    let mut group = "";
    for finding in findings {
        if finding.group != group {
            group = finding.group;
            let _ = writeln!(out, "{}{group}", if out.is_empty() { "" } else { "\n" });
        }
        let mark = match (finding.present, finding.required) {
            (true, _) => '✓',
            (false, true) => '✗',
            (false, false) => '–',
        };
        let line = format!("  {mark} {:<20} {}", finding.name, finding.detail);
        let _ = writeln!(out, "{}", line.trim_end());
        if !finding.remedy.is_empty() {
            let _ = writeln!(out, "    {:<20} fix: {}", "", finding.remedy);
        }
    }
    let verdict = if emu { "supported" } else { "not supported; items marked ✗ are missing" };
    let _ = writeln!(out, "\nnetstage run --on emu: {verdict}");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_items_are_printed_with_a_fix() {
        let finding = |name, present, required| Finding {
            group: "Network",
            name,
            present,
            required,
            detail: if present { String::new() } else { "no such device".into() },
            remedy: if present { String::new() } else { "modprobe it".into() },
        };
        let findings =
            [finding("veth", false, true), finding("netem", false, false), finding("TUN", true, false)];
        assert!(!emulation_possible(&findings));
        let text = as_text(&findings, false);
        assert!(text.starts_with("Network\n  ✗ veth                 no such device\n"), "{text}");
        assert_eq!(text.matches("fix: modprobe it").count(), 2);
        assert!(text.contains("\n  ✓ TUN\n"));
    }
}
