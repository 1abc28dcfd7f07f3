//! Language of comments, messages and pages: the field's words, the subject first, and American spelling.

use super::{files, root, shown, sources};
use std::fs;
use std::path::{Path, PathBuf};

/// Openings of relative and indirect clauses, instead of a subject. Flags may begin with "Whether", as in std.
const OPENINGS: [&str; 13] = [
    "What ",
    "Whatever ",
    "Whom ",
    "Whose ",
    "Who ",
    "Whoever ",
    "Where ",
    "Wherever ",
    "Why ",
    "How ",
    "Which ",
    "Of those ",
    "Those that ",
];

/// Paraphrases of the field's words: advertised, reported, notified, configured, requested, again.
const PARAPHRASES: [&str; 9] =
    ["told", "tell", "tells", "whom", "whoever", "anew", "lest", "hears", "there is nobody"];

/// Beginnings of words in British spelling.
const BRITISH: [&str; 24] = [
    "neighbour",
    "labelled",
    "unlabelled",
    "modelled",
    "modelling",
    "cancelled",
    "behaviour",
    "colour",
    "favour",
    "centre",
    "towards",
    "enrolment",
    "utilis",
    "organis",
    "optimis",
    "recognis",
    "synchronis",
    "initialis",
    "summaris",
    "normalis",
    "serialis",
    "minimis",
    "maximis",
    "licence",
];

/// Texts that contain such words for a reason.
const EXCEPTIONS: [(&str, &str); 4] = [
    ("link.utilisation", "the name of a metric in version 0.1"),
    ("optimistic", "not a British spelling"),
    ("Network game traffic modelling", "the title of a paper"),
    ("netlink_packet_route", "names of another project's crate"),
];

/// Part of a file that people read.
struct Passage {
    place: String,
    text: String,
    /// A sentence begins here.
    is_opening: bool,
}

/// Returns the comments and string literals of a Rust file.
fn passages_of_code(name: &str, text: &str) -> Vec<Passage> {
    let mut found = Vec::new();
    let mut was_doc = false;
    for (number, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", number + 1);
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        if let Some(comment) = doc.or_else(|| line.strip_prefix("//")) {
            let is_opening = doc.is_some() && !was_doc;
            found.push(Passage { place, text: comment.trim().to_owned(), is_opening });
        } else {
            let literals = line.split('"').skip(1).step_by(2);
            found.extend(literals.map(|literal| Passage {
                place: place.clone(),
                text: literal.to_owned(),
                is_opening: false,
            }));
        }
        was_doc = doc.is_some();
    }
    found
}

/// Returns the lines of a page outside of code blocks. Paragraphs and list items are openings, headings are not.
fn passages_of_page(name: &str, text: &str) -> Vec<Passage> {
    let (mut in_code, mut was_empty) = (false, true);
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        in_code ^= line.starts_with("```");
        let item = line.trim_start().strip_prefix("- ");
        if !in_code && !line.starts_with('|') {
            let text = item.unwrap_or(line).trim_start_matches("**").to_owned();
            let is_opening = (was_empty || item.is_some()) && !line.starts_with('#') && !line.ends_with('?');
            found.push(Passage { place: format!("{name}:{}", number + 1), text, is_opening });
        }
        was_empty = line.is_empty();
    }
    found
}

/// Returns what is wrong with a passage.
fn fault(passage: &Passage) -> Option<String> {
    let mut text = passage.text.clone();
    EXCEPTIONS.iter().for_each(|(exception, _)| text = text.replace(exception, ""));
    if let Some(opening) = OPENINGS.iter().find(|opening| passage.is_opening && text.starts_with(**opening)) {
        return Some(format!("begins with \"{}\": put the subject first", opening.trim_end()));
    }
    let lower = text.to_lowercase();
    let words = || lower.split(|letter: char| !letter.is_alphabetic());
    let paraphrase = PARAPHRASES.iter().find(|one| match one.contains(' ') {
        true => lower.contains(**one),
        false => words().any(|word| word == **one),
    });
    if let Some(paraphrase) = paraphrase {
        return Some(format!("\"{paraphrase}\": use the field's word"));
    }
    let british = BRITISH.iter().find(|beginning| words().any(|word| word.starts_with(**beginning)));
    british.map(|beginning| format!("\"{beginning}…\": use the American spelling"))
}

fn pages() -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join("docs")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.extend(path.extension().is_some_and(|e| e == "md").then_some(path)),
            }
        }
    }
    found.extend(["README.md", "CONTRIBUTING.md"].map(|name| root().join(name)));
    found
}

#[test]
fn texts_use_the_words_of_the_field() {
    let mut passages = Vec::new();
    for source in sources() {
        for (file, text) in files(&source) {
            passages.extend(passages_of_code(&shown(&source, &file), &text));
        }
    }
    let of_code = passages.len();
    for page in pages() {
        passages.extend(passages_of_page(&shown(&page, Path::new("")), &fs::read_to_string(&page).unwrap()));
    }
    assert!(of_code > 10_000 && passages.len() > of_code + 1_000, "texts not found");
    let faults: Vec<String> = passages
        .iter()
        .filter_map(|one| Some(format!("{}: {}\n    {}", one.place, fault(one)?, one.text)))
        .collect();
    assert!(faults.is_empty(), "{} texts:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn faults_of_language_are_found() {
    let code = "/// What arrives is counted.\nlet text = \"the peer is told\"; // toward the neighbour\n";
    let of_code: Vec<String> = passages_of_code("x.rs", code).iter().filter_map(fault).collect();
    assert_eq!(of_code.len(), 2, "{of_code:?}");
    let page = "Whose window it is.\n\n```\nWhat is code\n```\n\n## What next?\n\n- Why it is.\n- Colours.\n- A metric.\n";
    let of_page: Vec<String> = passages_of_page("x.md", page).iter().filter_map(fault).collect();
    assert_eq!(of_page.len(), 3, "{of_page:?}");
    let fine = "/// Returns whether `link.utilisation`, an optimistic bound, is reported.\n";
    assert!(passages_of_code("x.rs", fine).iter().all(|one| fault(one).is_none()));
}
