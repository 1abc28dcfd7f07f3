//! What a test needs of its machine, each by a function that ends the test as skipped where it is not met.

use crate::{Kind, skip, unwind};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN of capabilities(7).
const NETWORK: u64 = 1 << 12 | 1 << 13 | 1 << 21;
/// Programs that no user's search path leads to.
const FOLDERS: [&str; 5] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/lib/frr", "/usr/libexec/frr"];

/// Whether this run leaves out what needs a privilege, a namespace or more than a second.
pub fn is_quick() -> bool {
    std::env::var("NETSTAGE_TESTS").is_ok_and(|value| value == "quick")
}

fn not_quick(what: &str) {
    if is_quick() {
        unwind(Kind::Slow, format!("{what}: left to `make test`"));
    }
}

/// More than a second of real time: about this many.
pub fn time(seconds: u32) {
    not_quick(&format!("takes {seconds} s"));
}

/// How many random cases to try where all are so many: a tenth, where a second must do.
pub fn cases(all: u32) -> u32 {
    if is_quick() { all.div_ceil(10) } else { all }
}

/// The user root.
pub fn root() {
    not_quick("needs root");
    if effective_user() != Some(0) {
        skip("needs root");
    }
}

/// Any user but root: some things root cannot be refused.
pub fn another_user_than_root() {
    if effective_user() == Some(0) {
        skip("needs a user who is not root");
    }
}

/// Network namespaces with programs in them: CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW.
pub fn namespaces() {
    not_quick("needs namespaces");
    if !holds_capabilities() {
        skip("needs CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW");
    }
}

/// Whether [`namespaces`] is met, for tests that check less without.
pub fn are_namespaces_allowed() -> bool {
    !is_quick() && holds_capabilities()
}

/// Network namespaces, if only those of a user namespace, as `--on emu` makes them.
pub fn emulation() {
    static CAN: OnceLock<bool> = OnceLock::new();
    not_quick("needs namespaces");
    let of_a_user = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "true"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !CAN.get_or_init(|| holds_capabilities() || of_a_user()) {
        skip("network namespaces are not allowed here");
    }
}

/// A program, of a Debian package; returns where it is.
pub fn program(name: &str, package: &str) -> PathBuf {
    find(name).unwrap_or_else(|| skip(format!("needs {name} (Debian: {package})")))
}

/// Whether the program is installed.
pub fn has_program(name: &str) -> bool {
    find(name).is_some()
}

/// A feature of the kernel, which the test has looked for.
pub fn kernel(feature: &str, is_there: bool) {
    if !is_there {
        skip(format!("this kernel has no {feature}"));
    }
}

/// Processors that other programs leave alone: waits half a minute for a moment of it.
pub fn quiet_machine(reason: &str) {
    const LIMIT: Duration = Duration::from_secs(30);
    const LOOK: Duration = Duration::from_millis(500);
    not_quick("needs a quiet machine");
    let begin = Instant::now();
    loop {
        let before = processors();
        // A share of time takes time.
        thread::sleep(LOOK);
        let (Some((idle, all)), Some((idle_before, all_before))) = (processors(), before) else { return };
        if 2 * (idle - idle_before) >= all - all_before {
            return;
        }
        if begin.elapsed() > LIMIT {
            crate::skip_busy(reason);
        }
    }
}

/// Time all processors were idle, and all time, in ticks (proc_stat(5)).
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
    let held = status("CapEff:").and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    held.is_some_and(|held| held & NETWORK == NETWORK)
}
