//! Checks that the references in docs/ and the JSON Schema are up to date. `BLESS=1` regenerates them.

use netstage_scenario::{agent, json_schema, pe, reference, router, tester};
use std::path::{Path, PathBuf};

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

fn compare(path: &Path, expected: &str) {
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, expected).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap();
    assert!(found == expected, "{} is out of date: run the tests with BLESS=1", path.display());
}

#[test]
fn the_references_are_up_to_date() {
    for (page, tables, reference) in [
        ("scenarios.md", "file", reference()),
        ("pe.md", "pe", pe::reference()),
        ("router.md", "router", router::reference()),
        ("fleet.md", "agent", agent::reference()),
        ("router-test.md", "tester", tester::reference()),
    ] {
        let begin = format!(
            "<!-- The reference is generated: change the tables in crates/scenario/src/{tables}. -->\n"
        );
        let found = std::fs::read_to_string(docs(page)).unwrap();
        let (guide, _) = found.split_once(&begin).unwrap_or_else(|| panic!("{page} has no line {begin}"));
        compare(&docs(page), &format!("{guide}{begin}\n{}\n", reference.trim_end()));
    }
}

#[test]
fn the_schema_is_up_to_date() {
    let schema = serde_json::to_string_pretty(&json_schema()).unwrap();
    compare(&docs("scenario.schema.json"), &format!("{schema}\n"));
}
