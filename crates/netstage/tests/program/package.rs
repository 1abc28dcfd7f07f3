//! The Debian package: what it installs runs, and goes again.

use crate::support::Folder;
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

/// Paths below a folder, apart from dpkg's own.
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

/// A root of its own, in which dpkg installs without being asked for anything else.
fn dpkg(root: &Path, arguments: &[&str]) -> Output {
    let root = format!("--root={}", root.display());
    let log = format!("--log={}/dpkg.log", &root["--root=".len()..]);
    let force = "--force-depends,not-root,script-chrootless,remove-essential";
    run("/usr/bin/dpkg", &[&[&root, &log, force], arguments].concat())
}

fn the_debian_package_installs_runs_and_goes() {
    needs::time(7);
    let folder = Folder::new("package");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/deb.sh");
    let out = folder.join("out");
    // Compressing takes longer than all else, and tells nothing.
    let made = Command::new(script)
        .args([env!("CARGO_BIN_EXE_netstage"), out.to_str().unwrap()])
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none")
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let package = String::from_utf8(made.stdout).unwrap();
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

    // Every command that help shows has a page, and no page is empty.
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
    let licences =
        String::from_utf8(run("zcat", &[docs.join("licences.gz").to_str().unwrap()]).stdout).unwrap();
    assert!(
        licences.contains("\nrustls ") && licences.contains("Permission is hereby granted"),
        "{licences}"
    );
    // An agent as the unit starts it takes the policy of the package.
    let policy = root.join("etc/netstage/agent.toml");
    let state = folder.join("agent");
    let arguments = ["agent", "--state", state.to_str().unwrap(), "--policy", policy.to_str().unwrap()];
    let refused = Command::new(&program).args(arguments).output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("join"), "{told}");
    assert!(!told.contains("agent.toml"), "{told}");

    // Its host's word stays when the package comes anew, and its key goes with the package alone.
    fs::write(&policy, "[policy]\nlongest = \"1 min\"\n").unwrap();
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

fn pages_are_not_written_where_nothing_can_be() {
    let folder = Folder::new("pages");
    fs::write(folder.join("file"), "").unwrap();
    let place = folder.join("file/man");
    let output =
        Command::new(env!("CARGO_BIN_EXE_netstage")).args(["man", place.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write"));
}

netstage_harness::tests![
    the_debian_package_installs_runs_and_goes,
    pages_are_not_written_where_nothing_can_be,
];
