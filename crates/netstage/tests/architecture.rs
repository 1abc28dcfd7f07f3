//! Checks of the architecture: dependencies between crates, dependencies of `core`, and licenses of linked packages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Allowed direct dependencies of each crate, from bottom to top.
const ARROWS: &[(&str, &[&str])] = &[
    ("harness", &[]),
    ("wire", &[]),
    ("core", &["wire"]),
    ("scenario", &["wire", "core"]),
    ("sim", &["wire", "core", "scenario"]),
    ("differ", &["core", "scenario", "sim", "harness"]),
    ("host", &["wire", "core"]),
    ("agent-api", &["core", "scenario"]),
    ("routing", &["wire", "core", "scenario", "host", "agent-api"]),
    ("tcp-watch", &["wire", "core", "scenario", "host", "agent-api"]),
    ("traffic", &["wire", "core", "scenario", "host", "agent-api"]),
    ("emulator", &["wire", "core", "scenario", "host", "agent-api"]),
    ("router", &["wire", "core", "scenario", "host", "routing"]),
    ("pe", &["wire", "core", "scenario", "host", "routing"]),
    ("tester", &["wire", "core", "scenario", "host", "routing", "traffic"]),
    ("agent", &["wire", "core", "scenario", "host", "agent-api", "tcp-watch", "traffic", "pe"]),
    (
        "stage",
        &[
            "wire",
            "core",
            "scenario",
            "host",
            "agent-api",
            "routing",
            "tcp-watch",
            "emulator",
            "router",
            "agent",
        ],
    ),
    ("study", &["core", "scenario", "sim", "host", "tester", "stage"]),
    ("fairness", &["core", "scenario", "differ", "harness", "study"]),
];

/// Crates above `study`, which may depend on all of them.
const TOPS: &[&str] = &["netstage", "netstage-bench", "netstage-python"];

/// Allowed external dependencies of `core`. `no_std` does not prevent a dependency from using std.
const CORE_MAY_USE: &[&str] = &["libm", "rand_core", "rand_pcg", "serde"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn cargo(arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(env!("CARGO")).args(arguments).arg("--locked").current_dir(root()).output();
    let output = output.expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn metadata(arguments: &[&str]) -> serde_json::Value {
    let output = cargo(&[&["metadata", "--format-version", "1"], arguments].concat());
    serde_json::from_slice(&output).expect("cargo metadata prints JSON")
}

/// Returns the direct dependencies of each workspace crate, except those of tests.
fn direct_dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = metadata(&["--no-deps"]);
    let name = |value: &serde_json::Value| value["name"].as_str().unwrap().to_string();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .map(|package| {
            let dependencies = package["dependencies"].as_array().unwrap().iter();
            let real = dependencies.filter(|dependency| dependency["kind"] != "dev");
            (name(package), real.map(name).collect())
        })
        .collect()
}

#[test]
fn crates_depend_only_on_allowed_crates() {
    let found = direct_dependencies();
    let known = ARROWS.iter().map(|(name, _)| format!("netstage-{name}"));
    let known: BTreeSet<String> = known.chain(TOPS.iter().map(|name| name.to_string())).collect();
    assert_eq!(found.keys().cloned().collect::<BTreeSet<_>>(), known);
    for (name, allowed) in ARROWS {
        for dependency in &found[&format!("netstage-{name}")] {
            let allowed = allowed.iter().any(|allowed| *dependency == format!("netstage-{allowed}"));
            assert!(!known.contains(dependency) || allowed, "{name} must not depend on {dependency}");
        }
    }
}

/// Returns the packages that are built, each with its features.
fn built(arguments: &[&str]) -> BTreeSet<String> {
    let output = cargo(&[&["tree", "--prefix", "none", "--format", "{p} [{f}]"], arguments].concat());
    // Repeated entries are marked.
    String::from_utf8(output).unwrap().lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

/// A package that the program, the Python package or the tests build with different features is built twice, with all
/// packages that depend on it.
#[test]
fn the_program_the_python_package_and_the_tests_enable_the_same_features() {
    let mut different = Vec::new();
    for [one, all] in
        [["normal,no-proc-macro", "normal,dev,no-proc-macro"], ["normal,build", "normal,build,dev"]]
    {
        let workspace = built(&["--workspace", "--edges", all]);
        let names: BTreeSet<&str> = workspace.iter().filter_map(|line| line.split(' ').next()).collect();
        for target in ["netstage", "netstage-python"] {
            for package in built(&["--package", target, "--edges", one]) {
                let is_shared = names.contains(package.split(' ').next().unwrap());
                if is_shared && !workspace.contains(&package) {
                    different.push(format!("{target} builds {package}"));
                }
            }
        }
    }
    let advice = "enable the features of the whole workspace; see `cargo tree --workspace --edges features`";
    assert!(different.is_empty(), "built twice: {different:#?}; {advice}");
}

#[test]
fn core_and_wire_have_few_dependencies_and_no_std() {
    let found = direct_dependencies();
    for dependency in &found["netstage-core"] {
        let allowed = dependency == "netstage-wire" || CORE_MAY_USE.contains(&dependency.as_str());
        assert!(allowed, "netstage-core must not depend on {dependency}");
    }
    assert!(found["netstage-wire"].is_empty());
    for name in ["core", "wire"] {
        let source = std::fs::read_to_string(root().join(format!("crates/{name}/src/lib.rs"))).unwrap();
        assert!(source.contains("#![no_std]") && source.contains("#![forbid(unsafe_code)]"), "{name}");
    }
}

/// Returns whether a license expression is met by the allowed terms. `a/b` is the old form of `a OR b`.
fn is_met(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let flat = expression.replace('/', " OR ").replace(['(', ')'], "");
    flat.split(" AND ").all(|part| part.split(" OR ").any(|term| allowed.contains(term.trim())))
}

#[test]
fn all_linked_packages_have_an_allowed_license() {
    let deny = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let list = deny.split("allow = [").nth(1).unwrap().split(']').next().unwrap();
    let allowed: BTreeSet<&str> = list.split('"').skip(1).step_by(2).collect();
    assert!(allowed.contains("MIT"));
    for package in metadata(&[])["packages"].as_array().unwrap() {
        let license = package["license"].as_str().unwrap_or("none");
        assert!(is_met(license, &allowed), "{}: license {license}", package["name"]);
    }
}

#[test]
fn license_expressions_are_evaluated() {
    let allowed = BTreeSet::from(["MIT", "Apache-2.0"]);
    assert!(is_met("MIT/Apache-2.0", &allowed));
    assert!(is_met("GPL-3.0 OR MIT", &allowed));
    assert!(!is_met("(MIT OR Apache-2.0) AND Unicode-3.0", &allowed));
    assert!(!is_met("GPL-3.0", &allowed));
}

/// Returns the files named in a row of the map.
fn named_files(row: &str) -> Vec<PathBuf> {
    let named = row.split('`').skip(1).step_by(2).zip(row.split('`').skip(2).step_by(2));
    let files = named.filter(|(name, _)| name.contains('/') && name.contains('.'));
    let below = |after: &str| if after.starts_with(" of the root") { root() } else { root().join("crates") };
    files.map(|(name, after)| below(after).join(name)).collect()
}

#[test]
fn reading_paths_name_at_most_six_files_that_exist() {
    let map = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let paths = map.split("## Reading paths").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<Vec<PathBuf>> = paths.lines().map(named_files).filter(|files| !files.is_empty()).collect();
    assert!(rows.len() > 10, "the map has no reading paths");
    for files in rows {
        assert!(files.len() <= 6, "{files:?}: name at most six files");
        let missing: Vec<&PathBuf> = files.iter().filter(|file| !file.is_file()).collect();
        assert!(missing.is_empty(), "docs/architecture.md names files that do not exist: {missing:?}");
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        match path.extension() {
            _ if path.is_dir() => sources(&path, found),
            Some(extension) if extension == "rs" => found.push(path),
            _ => {}
        }
    }
}

/// A test that prints a reason and returns counts as passed. Skips by `netstage_harness` are counted as skips.
#[test]
fn tests_do_not_skip_by_printing() {
    let mut found = Vec::new();
    ["crates", "python", "tests"].iter().for_each(|folder| sources(&root().join(folder), &mut found));
    assert!(found.len() > 300, "{} sources", found.len());
    for path in found.iter().filter(|path| !path.ends_with("tests/architecture.rs")) {
        let text = std::fs::read_to_string(path).unwrap();
        // The text of a print may be on the next line.
        for (number, lines) in text.lines().collect::<Vec<_>>().windows(2).enumerate() {
            let prints = lines[0].contains("println!(") && lines.concat().contains("\"skipped");
            let leaves = path.components().any(|part| part.as_os_str() == "tests")
                && lines[0].contains("return println!(");
            assert!(!prints && !leaves, "{}:{}: use netstage_harness::skip", path.display(), number + 1);
        }
    }
}
