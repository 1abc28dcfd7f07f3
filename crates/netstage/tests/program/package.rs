//! Tests of the Debian package: installation, execution and removal.

use crate::support::TemporaryFolder;
use netstage_harness::needs;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn run(program: impl AsRef<Path>, arguments: &[&str]) -> Output {
    let output = Command::new(program.as_ref()).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{} {arguments:?}: {text}", program.as_ref().display());
    output
}

/// Returns the paths below a folder, except those of dpkg.
fn installed(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true if entry.path() == root.join("var") => {}
                true => folders.push(entry.path()),
                false => found.push(entry.path().strip_prefix(root).unwrap().to_owned()),
            }
        }
    }
    found
}

/// Runs dpkg in a separate root, without dependencies.
fn dpkg(root: &Path, arguments: &[&str]) -> Output {
    let root = format!("--root={}", root.display());
    let log = format!("--log={}/dpkg.log", &root["--root=".len()..]);
    let force = "--force-depends,not-root,script-chrootless,remove-essential";
    run("/usr/bin/dpkg", &[&[&root, &log, force], arguments].concat())
}

fn the_debian_package_installs_runs_and_is_removed() {
    needs::time(7);
    let folder = TemporaryFolder::new("package");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/deb.sh");
    let out = folder.join("out");
    // Compression takes most of the time and is not tested.
    let built = Command::new(script)
        .args([env!("CARGO_BIN_EXE_netstage"), out.to_str().unwrap()])
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none")
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let package = String::from_utf8(built.stdout).unwrap();
    let root = folder.join("root");
    fs::create_dir_all(root.join("var/lib/dpkg")).unwrap();
    for name in ["status", "available"] {
        fs::write(root.join("var/lib/dpkg").join(name), "").unwrap();
    }
    fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
    fs::create_dir_all(root.join("var/lib/dpkg/updates")).unwrap();
    dpkg(&root, &["--install", package.trim()]);

    let program = root.join("usr/bin/netstage");
    let example = root.join("usr/share/doc/netstage/scenarios/examples/two-hosts.toml");
    run(&program, &["run", example.to_str().unwrap(), "--out", folder.join("record").to_str().unwrap()]);
    assert!(folder.join("record/report.html").exists());

    // Every command in the help has a manual page, and no page is empty.
    let help = String::from_utf8(run(&program, &["--help"]).stdout).unwrap();
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    for command in commands.lines().filter_map(|line| line.split_whitespace().next()) {
        let page = root.join(format!("usr/share/man/man1/netstage-{command}.1.gz"));
        assert!(command == "help" || fs::metadata(&page).is_ok_and(|page| page.len() > 100), "{command}");
    }
    let page = run("zcat", &[root.join("usr/share/man/man1/netstage-fleet-join.1.gz").to_str().unwrap()]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.contains(".SH \"EXIT STATUS\"") && page.contains("netstage 0."), "{page}");
    run("bash", &["-n", root.join("usr/share/bash-completion/completions/netstage").to_str().unwrap()]);
    let docs = root.join("usr/share/doc/netstage");
    for file in ["copyright", "changelog.gz", "docs/scenario.schema.json", "examples/agent-router.conf"] {
        assert!(docs.join(file).exists(), "{file}");
    }
    let licenses =
        String::from_utf8(run("zcat", &[docs.join("licenses.gz").to_str().unwrap()]).stdout).unwrap();
    assert!(
        licenses.contains("\nrustls ") && licenses.contains("Permission is hereby granted"),
        "{licenses}"
    );
    // An agent with the arguments of the unit accepts the policy of the package.
    let policy = root.join("etc/netstage/agent.toml");
    let state = folder.join("agent");
    let arguments = ["agent", "--state", state.to_str().unwrap(), "--policy", policy.to_str().unwrap()];
    let output = Command::new(&program).args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("join"), "{stderr}");
    assert!(!stderr.contains("agent.toml"), "{stderr}");

    // A reinstallation preserves the edited policy; only a purge removes the agent's key.
    fs::write(&policy, "[policy]\nmax_duration = \"1 min\"\n").unwrap();
    dpkg(&root, &["--install", package.trim()]);
    assert!(fs::read_to_string(&policy).unwrap().contains("1 min"));
    let states = ["agent", "fleet"].map(|name| root.join("var/lib/netstage").join(name));
    for state in &states {
        fs::create_dir_all(state).unwrap();
        fs::write(state.join("key.pem"), "").unwrap();
    }
    dpkg(&root, &["--remove", "netstage"]);
    assert!(states[0].join("key.pem").exists());
    dpkg(&root, &["--purge", "netstage"]);
    assert!(!states[0].exists() && states[1].join("key.pem").exists());
    assert_eq!(installed(&root), [PathBuf::from("dpkg.log")]);
}

fn an_unwritable_folder_for_manual_pages_is_an_error() {
    let folder = TemporaryFolder::new("pages");
    fs::write(folder.join("file"), "").unwrap();
    let path = folder.join("file/man");
    let output =
        Command::new(env!("CARGO_BIN_EXE_netstage")).args(["man", path.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write"));
}

netstage_harness::tests![
    the_debian_package_installs_runs_and_is_removed,
    an_unwritable_folder_for_manual_pages_is_an_error,
];
