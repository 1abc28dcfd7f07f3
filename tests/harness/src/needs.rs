//! Requirements of tests. Each function skips the test if its requirement is not met.

use crate::{SkipKind, skip, unwind};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN of capabilities(7).
const NETWORK: u64 = 1 << 12 | 1 << 13 | 1 << 21;
/// Folders of programs outside the usual search path.
const FOLDERS: [&str; 5] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/lib/frr", "/usr/libexec/frr"];

/// Returns whether this run leaves out tests that need a privilege, a namespace or more than a second.
pub fn is_quick() -> bool {
    std::env::var("NETSTAGE_TESTS").is_ok_and(|value| value == "quick")
}

fn skip_if_quick(requirement: &str) {
    if is_quick() {
        unwind(SkipKind::Slow, format!("{requirement}: run by `make test`"));
    }
}

/// Requires this many seconds of real time, if more than one.
pub fn time(seconds: u32) {
    skip_if_quick(&format!("takes {seconds} s"));
}

/// Returns the number of random cases to try: a tenth in a quick run.
pub fn cases(all: u32) -> u32 {
    if is_quick() { all.div_ceil(10) } else { all }
}

/// Requires root.
pub fn root() {
    skip_if_quick("needs root");
    if effective_user() != Some(0) {
        skip("needs root");
    }
}

/// Requires a user other than root, for permissions that root always has.
pub fn not_root() {
    if effective_user() == Some(0) {
        skip("needs a user other than root");
    }
}

/// Requires network namespaces with processes inside: CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW.
pub fn namespaces() {
    skip_if_quick("needs namespaces");
    if !holds_capabilities() {
        skip("needs CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW");
    }
}

/// Returns whether [`namespaces`] is met, for tests that check less without them.
pub fn are_namespaces_allowed() -> bool {
    !is_quick() && holds_capabilities()
}

/// Requires network namespaces, possibly those of a user namespace, as used by `--on emu`.
pub fn emulation() {
    static CAN: OnceLock<bool> = OnceLock::new();
    skip_if_quick("needs namespaces");
    let in_user_namespace = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "true"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !CAN.get_or_init(|| holds_capabilities() || in_user_namespace()) {
        skip("network namespaces are not permitted");
    }
}

/// Requires a program of a Debian package; returns its path.
pub fn program(name: &str, package: &str) -> PathBuf {
    find(name).unwrap_or_else(|| skip(format!("needs {name} (Debian: {package})")))
}

/// Returns whether the program is installed.
pub fn has_program(name: &str) -> bool {
    find(name).is_some()
}

/// Requires a kernel feature, whose presence the test has determined.
pub fn kernel(feature: &str, is_present: bool) {
    if !is_present {
        skip(format!("this kernel has no {feature}"));
    }
}

/// Requires idle processors; waits up to half a minute for them.
pub fn quiet_machine(reason: &str) {
    const LIMIT: Duration = Duration::from_secs(30);
    const INTERVAL: Duration = Duration::from_millis(500);
    skip_if_quick("needs a quiet machine");
    let begin = Instant::now();
    loop {
        let before = processors();
        // The idle share is measured over this time.
        thread::sleep(INTERVAL);
        let (Some((idle, all)), Some((idle_before, all_before))) = (processors(), before) else { return };
        if 2 * (idle - idle_before) >= all - all_before {
            return;
        }
        if begin.elapsed() > LIMIT {
            crate::skip_busy(reason);
        }
    }
}

/// Returns the idle time and total time of all processors in ticks (proc_stat(5)).
fn processors() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> =
        text.lines().next()?.split_whitespace().skip(1).filter_map(|tick| tick.parse().ok()).collect();
    Some((ticks.get(3)? + ticks.get(4)?, ticks.iter().take(8).sum()))
}

fn find(name: &str) -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&search).chain(FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn status(field: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new("/proc/self/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(field)).map(str::to_owned)
}

fn effective_user() -> Option<u32> {
    status("Uid:")?.split_whitespace().nth(1)?.parse().ok()
}

fn holds_capabilities() -> bool {
    let mask = status("CapEff:").and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    mask.is_some_and(|mask| mask & NETWORK == NETWORK)
}
