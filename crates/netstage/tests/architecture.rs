//! Holds the architecture: which crate may see which, what `core` may depend on, and
//! under which licences anything may be linked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

/// Who may depend on whom inside the workspace.
const ARROWS: &[(&str, &[&str])] = &[
    ("netstage-wire", &[]),
    ("netstage-core", &["netstage-wire"]),
    ("netstage-scenario", &["netstage-wire", "netstage-core"]),
    ("netstage-sim", &["netstage-wire", "netstage-core", "netstage-scenario"]),
    ("netstage-live", &["netstage-wire", "netstage-core", "netstage-scenario"]),
    ("netstage-study", &["netstage-core", "netstage-scenario", "netstage-sim", "netstage-live"]),
    ("netstage", &["netstage-core", "netstage-scenario", "netstage-study", "netstage-sim", "netstage-live"]),
];

/// Where the Python package is.
const PYTHON: &[&str] = &["--manifest-path", "python/Cargo.toml"];

/// What the Python package, a workspace of its own, may depend on inside this one.
const PYTHON_MAY_USE: &[&str] = &["netstage-live", "netstage-scenario", "netstage-study"];

/// `no_std` does not keep a dependency from using std, so the list is short and closed.
const CORE_MAY_USE: &[&str] = &["libm", "rand_core", "rand_pcg", "serde"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn metadata(arguments: &[&str]) -> serde_json::Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

/// Direct dependencies of each workspace crate, without those only its tests use.
fn direct_dependencies(arguments: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let metadata = metadata(&[&["--no-deps"], arguments].concat());
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
    let found = direct_dependencies(&[]);
    let known: BTreeSet<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
    assert_eq!(found.keys().map(String::as_str).collect::<BTreeSet<_>>(), known);
    for (name, allowed) in ARROWS {
        for dependency in &found[*name] {
            let inside = known.contains(dependency.as_str());
            assert!(
                !inside || allowed.contains(&dependency.as_str()),
                "{name} must not depend on {dependency}"
            );
        }
    }
}

#[test]
fn the_python_package_rests_on_studies() {
    let found = direct_dependencies(PYTHON);
    let inside = found["netstage-python"].iter().filter(|name| name.starts_with("netstage-"));
    assert!(inside.eq(PYTHON_MAY_USE));
}

#[test]
fn core_and_wire_stay_small_and_without_std() {
    let found = direct_dependencies(&[]);
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
    for workspace in [&[], PYTHON] {
        for package in metadata(workspace)["packages"].as_array().unwrap() {
            let licence = package["license"].as_str().unwrap_or("none");
            assert!(is_met(licence, &allowed), "{}: licence {licence}", package["name"]);
        }
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
