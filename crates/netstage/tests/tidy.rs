//! Holds what can be held of the house's order: modules without circles, files and functions of a size to be read,
//! and crates that open with what they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const MOST_LINES_OF_A_FILE: usize = 700;
const MOST_LINES_OF_A_FUNCTION: usize = 80;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Folders of product code, each a crate's.
fn sources() -> Vec<PathBuf> {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path().join("src"));
    let mut all: Vec<PathBuf> = crates.filter(|path| path.is_dir()).collect();
    assert!(all.len() > 10, "no crates where they are looked for");
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

/// The product files below a folder, relative to it, with their text as far as it is no test.
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

/// The modules that a file is in, from the crate's root.
fn modules(file: &Path) -> Vec<String> {
    let mut parts: Vec<String> =
        file.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

/// The names at the crate's root that a text in these modules asks for, by `crate::` or `super::`.
fn asked(text: &str, modules: &[String]) -> BTreeSet<String> {
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

/// Which modules at a crate's root know which others.
fn known(files: &[(PathBuf, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, text) in files {
        let modules = modules(file);
        if !["lib", "main"].contains(&modules[0].as_str()) {
            known.entry(modules[0].clone()).or_default().extend(asked(text, &modules));
        }
    }
    known
}

/// Everything a module knows, itself or by others.
fn reached(known: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        let others = known.get(module).into_iter().flatten();
        next.extend(
            others
                .filter(|other| *other != module && reached.insert((*other).clone()))
                .map(|other| other.as_str()),
        );
    }
    reached
}

#[test]
fn no_circle_spans_two_modules() {
    let mut circles = Vec::new();
    for source in sources() {
        let known = known(&files(&source));
        circles.extend(known.keys().filter(|module| reached(&known, module).contains(*module)).map(
            |module| {
                let mut members = reached(&known, module);
                members.retain(|other| reached(&known, other).contains(module));
                format!("{}: {members:?}", shown(&source, Path::new("")))
            },
        ));
    }
    circles.dedup();
    assert!(
        circles.is_empty(),
        "modules know each other: move what both need to one below them, or make them one folder:\n{}",
        circles.join("\n")
    );
}

#[test]
fn no_product_file_is_too_long_to_be_read() {
    let mut long = Vec::new();
    for source in sources() {
        for (file, text) in files(&source) {
            let lines = text.lines().count();
            if lines > MOST_LINES_OF_A_FILE {
                long.push(format!("{}: {lines} lines", shown(&source, &file)));
            }
        }
    }
    let most = MOST_LINES_OF_A_FILE;
    assert!(
        long.is_empty(),
        "split these files, none is to have more than {most} lines:\n{}",
        long.join("\n")
    );
}

/// Functions of a text that are too long: number of the first line, and of lines. What is formatted ends a function
/// with a brace as far in as it began.
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
        if length > MOST_LINES_OF_A_FUNCTION {
            found.push((at + 1, length));
        }
    }
    found
}

#[test]
fn no_function_is_too_long_to_be_read() {
    let mut long = Vec::new();
    for source in sources() {
        for (file, text) in files(&source) {
            let file = shown(&source, &file);
            let lines = |(line, length)| format!("{file}:{line}: {length} lines");
            long.extend(long_functions(&text).into_iter().map(lines));
        }
    }
    let most = MOST_LINES_OF_A_FUNCTION;
    assert!(
        long.is_empty(),
        "split these functions, none is to have more than {most} lines:\n{}",
        long.join("\n")
    );
}

#[test]
fn every_crate_opens_with_its_job_an_example_and_its_invariant() {
    for source in sources() {
        let Ok(text) = fs::read_to_string(source.join("lib.rs")) else { continue };
        // The Python package's is for Rust's side alone, which nobody else calls.
        if source.ends_with("python/src") {
            continue;
        }
        let opening: Vec<&str> =
            text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
        let file = shown(&source, Path::new("lib.rs"));
        let job = opening.first().is_some_and(|line| !line.is_empty() && *line != "```");
        assert!(job, "{file} is to open with a sentence that says what the crate is for");
        let has_example = opening.iter().filter(|line| **line == "```").count() >= 2;
        assert!(has_example, "{file} is to open with an example that runs, between lines of ```");
        let has_invariant = opening.iter().any(|line| line.starts_with("Invariant:"));
        assert!(has_invariant, "{file} is to open with a line `Invariant:` that says what always holds");
    }
}
