//! Holds the architecture: which crate may see which, what `core` may depend on, and
//! under which licences anything may be linked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What each crate may depend on directly, from the bottom to the top.
const ARROWS: &[(&str, &[&str])] = &[
    ("harness", &[]),
    ("wire", &[]),
    ("core", &["wire"]),
    ("scenario", &["wire", "core"]),
    ("sim", &["wire", "core", "scenario"]),
    ("host", &["wire", "core"]),
    ("agent-api", &["core", "scenario"]),
    ("routing", &["wire", "core", "scenario", "host", "agent-api"]),
    ("tcp-watch", &["wire", "core", "scenario", "host", "agent-api"]),
    ("traffic", &["wire", "core", "scenario", "host", "agent-api"]),
    ("emulator", &["wire", "core", "scenario", "host", "agent-api"]),
    ("router", &["wire", "core", "scenario", "host", "routing"]),
    ("pe", &["wire", "core", "scenario", "host", "routing"]),
    ("tester", &["wire", "core", "scenario", "host", "routing", "traffic"]),
    ("agent", &["core", "scenario", "host", "agent-api", "tcp-watch", "traffic", "pe"]),
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
];

/// The crates above `study`, which may see all of them.
const TOPS: &[&str] = &["netstage", "netstage-bench", "netstage-python"];

/// `no_std` does not keep a dependency from using std, so the list is short and closed.
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
    let told = cargo(&[&["metadata", "--format-version", "1"], arguments].concat());
    serde_json::from_slice(&told).expect("cargo metadata prints JSON")
}

/// Direct dependencies of each workspace crate, without those only its tests use.
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
fn crates_depend_only_along_the_arrows() {
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

/// Packages, each with the features that are asked of it.
fn built(arguments: &[&str]) -> BTreeSet<String> {
    let told = cargo(&[&["tree", "--prefix", "none", "--format", "{p} [{f}]"], arguments].concat());
    // What is shown again is marked so.
    String::from_utf8(told).unwrap().lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

/// The program, the Python package and all tests are built one after another. A package that one of them builds
/// with other features than the rest is built again, and so is all that depends on it.
#[test]
fn the_program_the_python_package_and_the_tests_ask_for_the_same_features() {
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
    let advice =
        "ask for the features that the whole workspace has: `cargo tree --workspace --edges features`";
    assert!(different.is_empty(), "built twice: {different:#?}; {advice}");
}

#[test]
fn core_and_wire_stay_small_and_without_std() {
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

/// Whether a licence expression can be met by the allowed terms. `a/b` is the old form of `a OR b`.
fn is_met(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let flat = expression.replace('/', " OR ").replace(['(', ')'], "");
    flat.split(" AND ").all(|part| part.split(" OR ").any(|term| allowed.contains(term.trim())))
}

#[test]
fn everything_linked_has_an_allowed_licence() {
    let deny = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let list = deny.split("allow = [").nth(1).unwrap().split(']').next().unwrap();
    let allowed: BTreeSet<&str> = list.split('"').skip(1).step_by(2).collect();
    assert!(allowed.contains("MIT"));
    for package in metadata(&[])["packages"].as_array().unwrap() {
        let licence = package["license"].as_str().unwrap_or("none");
        assert!(is_met(licence, &allowed), "{}: licence {licence}", package["name"]);
    }
}

#[test]
fn a_licence_expression_is_read_as_written() {
    let allowed = BTreeSet::from(["MIT", "Apache-2.0"]);
    assert!(is_met("MIT/Apache-2.0", &allowed));
    assert!(is_met("GPL-3.0 OR MIT", &allowed));
    assert!(!is_met("(MIT OR Apache-2.0) AND Unicode-3.0", &allowed));
    assert!(!is_met("GPL-3.0", &allowed));
}

/// Files that a row of the map names, from the root.
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
    assert!(rows.len() > 10, "the map has lost its paths");
    for files in rows {
        assert!(files.len() <= 6, "{files:?}: name six files at most");
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

/// A test that prints why it does nothing, and returns, counts as passed: netstage_harness::skip and its needs do not.
#[test]
fn no_test_skips_by_printing() {
    let mut found = Vec::new();
    ["crates", "python", "tests"].iter().for_each(|folder| sources(&root().join(folder), &mut found));
    assert!(found.len() > 300, "{} sources", found.len());
    for path in found.iter().filter(|path| !path.ends_with("tests/architecture.rs")) {
        let text = std::fs::read_to_string(path).unwrap();
        // A print's text may be on its next line.
        for (number, lines) in text.lines().collect::<Vec<_>>().windows(2).enumerate() {
            let prints = lines[0].contains("println!(") && lines.concat().contains("\"skipped");
            let leaves = path.components().any(|part| part.as_os_str() == "tests")
                && lines[0].contains("return println!(");
            assert!(!prints && !leaves, "{}:{}: skip by netstage_harness", path.display(), number + 1);
        }
    }
}
