//! The reference in docs/scenarios.md and the JSON Schema are those of the code.
//! Run with `BLESS=1` to write them anew.

use netstage_scenario::{agent, json_schema, pe, reference, router, tester};
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- The reference is generated: change the tables in crates/scenario/src/file. -->\n";

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

fn compare(path: &Path, wanted: &str) {
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, wanted).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap();
    assert!(found == wanted, "{} is out of date: run the tests with BLESS=1", path.display());
}

#[test]
fn the_reference_is_up_to_date() {
    let path = docs("scenarios.md");
    let found = std::fs::read_to_string(&path).unwrap();
    let (guide, _) = found.split_once(BEGIN).expect("the guide ends where the reference begins");
    compare(&path, &format!("{guide}{BEGIN}\n{}\n", reference().trim_end()));
}

#[test]
fn the_reference_of_the_provider_edge_is_up_to_date() {
    let begin = BEGIN.replace("src/file", "src/pe");
    let path = docs("pe.md");
    let found = std::fs::read_to_string(&path).unwrap();
    let (guide, _) = found.split_once(&begin).expect("the guide ends where the reference begins");
    compare(&path, &format!("{guide}{begin}\n{}\n", pe::reference().trim_end()));
}

#[test]
fn the_reference_of_the_router_is_up_to_date() {
    let begin = BEGIN.replace("src/file", "src/router");
    let path = docs("router.md");
    let found = std::fs::read_to_string(&path).unwrap();
    let (guide, _) = found.split_once(&begin).expect("the guide ends where the reference begins");
    compare(&path, &format!("{guide}{begin}\n{}\n", router::reference().trim_end()));
}

#[test]
fn the_reference_of_agents_policies_is_up_to_date() {
    let begin = BEGIN.replace("src/file", "src/agent");
    let path = docs("fleet.md");
    let found = std::fs::read_to_string(&path).unwrap();
    let (guide, _) = found.split_once(&begin).expect("the guide ends where the reference begins");
    compare(&path, &format!("{guide}{begin}\n{}\n", agent::reference().trim_end()));
}

#[test]
fn the_reference_of_the_tester_is_up_to_date() {
    let begin = BEGIN.replace("src/file", "src/tester");
    let path = docs("router-test.md");
    let found = std::fs::read_to_string(&path).unwrap();
    let (guide, _) = found.split_once(&begin).expect("the guide ends where the reference begins");
    compare(&path, &format!("{guide}{begin}\n{}\n", tester::reference().trim_end()));
}

#[test]
fn the_schema_is_up_to_date() {
    let schema = serde_json::to_string_pretty(&json_schema()).unwrap();
    compare(&docs("scenario.schema.json"), &format!("{schema}\n"));
}
