//! Style checks: modules without dependency cycles, readable sizes of files and functions, and crate documentation.

mod language;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const MAX_FILE_LINES: usize = 700;
const MAX_FUNCTION_LINES: usize = 80;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the source folders of all crates.
fn sources() -> Vec<PathBuf> {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path().join("src"));
    let mut all: Vec<PathBuf> = crates.filter(|path| path.is_dir()).collect();
    assert!(all.len() > 10, "crates not found");
    all.sort();
    all.extend(["bench/src", "python/src"].map(|path| root().join(path)));
    all
}

fn is_product(path: &Path) -> bool {
    let is_test = |part: &str| part == "tests" || part.ends_with("tests.rs");
    path.extension().is_some_and(|extension| extension == "rs")
        && !path.ends_with("generated.rs")
        && !path.iter().any(|part| is_test(&part.to_string_lossy()))
}

/// Returns the product files below a folder: relative path, and text without unit tests.
fn files(source: &Path) -> Vec<(PathBuf, String)> {
    let (mut found, mut folders) = (Vec::new(), vec![source.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let below = path.strip_prefix(source).unwrap();
            if path.is_dir() {
                folders.push(path);
            } else if is_product(below) {
                let text = fs::read_to_string(&path).unwrap();
                let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
                found.push((below.to_owned(), product));
            }
        }
    }
    found.sort();
    found
}

fn shown(source: &Path, file: &Path) -> String {
    source.join(file).strip_prefix(root()).unwrap().display().to_string()
}

/// Returns the module path of a file, from the crate's root.
fn modules(file: &Path) -> Vec<String> {
    let mut parts: Vec<String> =
        file.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

/// Returns the names at the crate's root that a text in this module uses by `crate::` or `super::`.
fn used_names(text: &str, modules: &[String]) -> BTreeSet<String> {
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap()).collect();
    let code = code.join("\n");
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let name = |rest: &str| rest.split(|letter| !is_name(letter)).next().unwrap().to_owned();
    let mut found: BTreeSet<String> = code.split("crate::").skip(1).map(name).collect();
    let mut rest = code.as_str();
    while let Some(at) = rest.find("super::") {
        rest = &rest[at..];
        let mut count = 0;
        while let Some(above) = rest.strip_prefix("super::") {
            (rest, count) = (above, count + 1);
        }
        if count >= modules.len() {
            found.insert(name(rest));
        }
    }
    found
}

/// Returns the dependencies between the modules at a crate's root.
fn dependencies(files: &[(PathBuf, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, text) in files {
        let modules = modules(file);
        if !["lib", "main"].contains(&modules[0].as_str()) {
            found.entry(modules[0].clone()).or_default().extend(used_names(text, &modules));
        }
    }
    found
}

/// Returns all modules on which a module depends, directly or indirectly.
fn reachable(dependencies: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        let others = dependencies.get(module).into_iter().flatten();
        next.extend(
            others
                .filter(|other| *other != module && found.insert((*other).clone()))
                .map(|other| other.as_str()),
        );
    }
    found
}

#[test]
fn modules_have_no_dependency_cycles() {
    let mut cycles = Vec::new();
    for source in sources() {
        let graph = dependencies(&files(&source));
        cycles.extend(graph.keys().filter(|module| reachable(&graph, module).contains(*module)).map(
            |module| {
                let mut members = reachable(&graph, module);
                members.retain(|other| reachable(&graph, other).contains(module));
                format!("{}: {members:?}", shown(&source, Path::new("")))
            },
        ));
    }
    cycles.dedup();
    assert!(
        cycles.is_empty(),
        "modules depend on each other: move the common part to a third module, or join them in one folder:\n{}",
        cycles.join("\n")
    );
}

#[test]
fn product_files_are_not_too_long() {
    let mut long = Vec::new();
    for source in sources() {
        for (file, text) in files(&source) {
            let lines = text.lines().count();
            if lines > MAX_FILE_LINES {
                long.push(format!("{}: {lines} lines", shown(&source, &file)));
            }
        }
    }
    assert!(long.is_empty(), "split these files, which exceed {MAX_FILE_LINES} lines:\n{}", long.join("\n"));
}

/// Returns the first line and length of each function that is too long. In formatted code, the closing brace of a
/// function has the same indentation as its first line.
fn long_functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let head = code.split('(').next().unwrap();
        let begins = code.starts_with("fn ") || code.starts_with("pub") || head.ends_with(" fn");
        if !(begins
            || code.starts_with("const ")
            || code.starts_with("async ")
            || code.starts_with("unsafe "))
            || !line.split_whitespace().any(|word| word == "fn")
            || line.ends_with([';', '}'])
        {
            continue;
        }
        let end = format!("{}}}", &line[..line.len() - code.len()]);
        let declared = format!("{})", &line[..line.len() - code.len()]);
        let is_end = |line: &&str| *line == end || (line.starts_with(&declared) && line.ends_with(';'));
        let length = lines[at..].iter().position(is_end).map_or(0, |last| last + 1);
        if length > MAX_FUNCTION_LINES {
            found.push((at + 1, length));
        }
    }
    found
}

#[test]
fn functions_are_not_too_long() {
    let mut long = Vec::new();
    for source in sources() {
        for (file, text) in files(&source) {
            let file = shown(&source, &file);
            let lines = |(line, length)| format!("{file}:{line}: {length} lines");
            long.extend(long_functions(&text).into_iter().map(lines));
        }
    }
    assert!(
        long.is_empty(),
        "split these functions, which exceed {MAX_FUNCTION_LINES} lines:\n{}",
        long.join("\n")
    );
}

#[test]
fn every_crate_documents_its_purpose_an_example_and_its_invariant() {
    for source in sources() {
        let Ok(text) = fs::read_to_string(source.join("lib.rs")) else { continue };
        // The Python package has no Rust users.
        if source.ends_with("python/src") {
            continue;
        }
        let opening: Vec<&str> =
            text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
        let file = shown(&source, Path::new("lib.rs"));
        let job = opening.first().is_some_and(|line| !line.is_empty() && *line != "```");
        assert!(job, "{file}: add a first sentence with the purpose of the crate");
        let has_example = opening.iter().filter(|line| **line == "```").count() >= 2;
        assert!(has_example, "{file}: add an example between lines of ``` to the crate documentation");
        let has_invariant = opening.iter().any(|line| line.starts_with("Invariant:"));
        assert!(has_invariant, "{file}: add a line `Invariant:` to the crate documentation");
    }
}
