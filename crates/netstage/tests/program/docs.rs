//! Tests of the documentation: pages without privileged commands are executed, and the commands of all others are
//! checked.

use crate::support::{TemporaryFolder, netstage, project, run_page_for_anybody};
use netstage_harness::needs;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn the_getting_started_page_works() {
    needs::time(6);
    let folder = TemporaryFolder::new("start");
    let output = run_page_for_anybody("start.md", &folder);
    for part in ["✓ line-is-used", "did you mean `weight`?", "✗ four-to-one"] {
        assert!(output.contains(part), "{part}");
    }
    assert!(folder.join("figures/fairness.svg").exists() && folder.join("scenario.schema.json").exists());
}

/// The first output that a reader sees is the present one.
fn the_readme_shows_the_output_of_its_command() {
    let folder = TemporaryFolder::new("readme");
    let output = netstage(&["run", "scenarios/examples/fair-two-vpns.toml", "--out"])
        .arg(folder.join("out"))
        .current_dir(project())
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let table: Vec<&str> = printed.lines().skip_while(|line| !line.starts_with("weight ")).take(4).collect();
    let readme = fs::read_to_string(project().join("README.md")).unwrap();
    assert!(table.len() == 4 && readme.contains(&table.join("\n")), "not in README.md:\n{printed}");
}

/// Returns the pages in a folder of the project.
fn pages_in(folder: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(project().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|e| e == "md")).collect()
}

/// Returns all pages for users.
fn pages() -> Vec<PathBuf> {
    let mut pages = pages_in("docs");
    pages.extend(["README.md", "CONTRIBUTING.md", "python/README.md"].map(|page| project().join(page)));
    pages.sort();
    pages
}

/// Returns the commands of a page's blocks that start with one of these words, without pipes and redirections.
fn commands(page: &str, words: &[&str]) -> Vec<String> {
    let blocks = page.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    let shell = blocks.filter(|(mark, _)| mark.is_empty() || mark.starts_with("sh")).map(|(_, text)| text);
    let joined: Vec<String> = shell.map(|text| text.replace("\\\n", " ")).collect();
    let lines = joined.iter().flat_map(|text| text.lines());
    // Environment variables before a command, and sudo, are skipped.
    let bare = lines.map(|line| {
        let mut words = line.trim().split(' ').peekable();
        while words.next_if(|word| *word == "sudo" || (word.contains('=') && !word.contains('\''))).is_some()
        {
        }
        words.collect::<Vec<_>>().join(" ")
    });
    let cut = bare.map(|line| simple_command(&line).to_owned());
    cut.filter(|line| words.iter().any(|word| line.starts_with(&format!("{word} ")))).collect()
}

/// Returns a shell line up to the first comment or operator outside of quotes.
fn simple_command(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (at, c) in line.char_indices() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('|' | '>' | '<' | '&' | ';', None) => return line[..at].trim_end_matches(" 2").trim_end(),
            ('#', None) if before == ' ' => return line[..at].trim_end(),
            _ => {}
        }
        before = c;
    }
    line
}

/// Replaces each shell variable with a word, as the variables have no values here.
fn replace_variables(arguments: &str) -> String {
    let mut pieces = arguments.split('$');
    let mut text = pieces.next().unwrap().to_owned();
    for piece in pieces {
        let end = match piece.strip_prefix('{') {
            Some(_) => piece.find('}').unwrap() + 1,
            None => piece.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(piece.len()),
        };
        text += "word";
        text += &piece[end..];
    }
    text
}

fn documented_commands_and_their_options_exist() {
    let mut seen = 0;
    for path in pages() {
        let page = fs::read_to_string(&path).unwrap();
        for command in commands(&page, &["netstage", "target/release/netstage"]) {
            // `--help` succeeds only if all options before it are valid.
            let (_, arguments) = command.split_once(' ').unwrap();
            let arguments = replace_variables(arguments);
            let script = format!("exec {} {arguments} --help", env!("CARGO_BIN_EXE_netstage"));
            let output = Command::new("bash").args(["-fc", &script]).output().unwrap();
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{}: {command}\n{why}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 40, "only {seen} commands were found");
}

fn documented_tests_and_targets_exist() {
    let makefile = fs::read_to_string(project().join("Makefile")).unwrap();
    let targets: BTreeSet<&str> =
        makefile.lines().filter_map(|line| line.split_once(": ")).map(|t| t.0).collect();
    let mut seen = 0;
    for path in pages() {
        let page = fs::read_to_string(&path).unwrap();
        for command in commands(&page, &["make", "cargo test"]) {
            let words: Vec<&str> = command.split_whitespace().collect();
            let after = |flag| words.iter().position(|word| *word == flag).map(|at| words[at + 1]);
            let exists = match words[0] {
                "make" => words[1..].iter().all(|word| word.contains('=') || targets.contains(word)),
                _ => {
                    let package = after("-p").unwrap();
                    let folder =
                        project().join("crates").join(package.strip_prefix("netstage-").unwrap_or(package));
                    let test = |name: &str| {
                        let tests = folder.join("tests");
                        tests.join(format!("{name}.rs")).exists() || tests.join(name).join("main.rs").exists()
                    };
                    folder.exists() && after("--test").is_none_or(test)
                }
            };
            assert!(exists, "{}: {command}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 20, "only {seen} commands were found");
}

/// Returns the anchors of a page: those of its headings (words in lower case, joined by hyphens) and `<a id="…">`.
fn anchors(page: &str) -> BTreeSet<String> {
    let text = page.split("```").step_by(2).collect::<String>();
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let words = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let explicit =
        text.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned);
    words
        .map(|line| line.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>())
        .map(|line| line.replace(' ', "-"))
        .chain(explicit)
        .collect()
}

fn links_between_pages_are_valid() {
    let mut all = pages();
    all.extend(["SECURITY.md", "CHANGELOG.md", "web/README.md"].map(|page| project().join(page)));
    for folder in ["docs/results", "bench/bgp", "bench/fleet", "bench/pe", "bench/router", "bench/sim"] {
        all.extend(pages_in(folder));
    }
    let mut seen = 0;
    for path in all {
        let page = fs::read_to_string(&path).unwrap();
        let markdown = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let pictures = page.split("src=\"").skip(1).filter_map(|rest| rest.split('"').next());
        for link in markdown.chain(pictures).filter(|link| !link.contains("://") && !link.contains(' ')) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", path.display());
            let has_heading = || anchors(&fs::read_to_string(&target).unwrap()).contains(anchor);
            assert!(anchor.is_empty() || has_heading(), "{}: {link}: no such heading", path.display());
            seen += 1;
        }
    }
    assert!(seen > 150, "only {seen} links were found");
}

/// Collects the files below a folder of the project, except build output.
fn files_under(folder: PathBuf, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_file() {
            found.push(path);
        } else if !path.is_symlink()
            && !name.starts_with('.')
            && !["target", "out", "node_modules"].contains(&&*name)
        {
            files_under(path, found);
        }
    }
}

fn every_picture_is_used_by_a_page() {
    let shown = [pages(), pages_in("docs/results")].concat();
    let shown: Vec<String> = shown
        .iter()
        .filter(|page| !page.ends_with("gallery.md"))
        .map(|page| fs::read_to_string(page).unwrap())
        .collect();
    let mut files = Vec::new();
    files_under(project(), &mut files);
    files.retain(|file| file.extension().is_some_and(|e| e == "svg" || e == "png"));
    assert!(files.len() > 20, "only {} pictures were found", files.len());
    for file in files {
        let link = format!("{})", file.file_name().unwrap().to_string_lossy());
        assert!(shown.iter().any(|page| page.contains(&link)), "no page contains {}", file.display());
    }
}

fn result_pages_contain_the_text_of_their_descriptions() {
    let mut files = Vec::new();
    for folder in ["scenarios", "bench"] {
        files_under(project().join(folder), &mut files);
    }
    files.retain(|file| file.extension().is_some_and(|e| e == "md"));
    let mut described = BTreeSet::new();
    for file in files {
        let description = fs::read_to_string(&file).unwrap();
        let Some((head, body)) = description.strip_prefix("+++\n").and_then(|text| text.split_once("+++\n"))
        else {
            continue;
        };
        let name = head.split("page = \"").nth(1).unwrap().split('"').next().unwrap();
        let page = fs::read_to_string(project().join("docs/results").join(name)).unwrap();
        let lines: BTreeSet<&str> = page.lines().collect();
        for line in body.lines().filter(|line| !line.contains("{{")) {
            assert!(lines.contains(line), "docs/results/{name}: missing line of {}: {line}", file.display());
        }
        described.insert(name.to_owned());
    }
    let pages = pages_in("docs/results")
        .into_iter()
        .map(|page| page.file_name().unwrap().to_string_lossy().into_owned());
    let pages: BTreeSet<String> = pages.filter(|page| page != "README.md").collect();
    assert_eq!(described, pages, "each page of results has a description");
}

/// Returns the content of all files with these endings below a folder.
fn sources(folder: &Path, endings: &[&str], all: &mut String) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            if !["node_modules", "target", "dist"].contains(&name.as_str()) {
                sources(&path, endings, all);
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            *all += &fs::read_to_string(path).unwrap();
        }
    }
}

fn each_security_promise_has_a_test() {
    let page = fs::read_to_string(project().join("SECURITY.md")).unwrap();
    let (mut rust, mut web) = (String::new(), String::new());
    sources(&project().join("crates"), &[".rs"], &mut rust);
    sources(&project().join("web/tests"), &[".ts"], &mut web);
    let mut promises = 0;
    let table = page.lines().filter(|line| line.starts_with('|') && !line.starts_with("|-"));
    for line in table.map(|line| line.trim_matches('|')).filter(|line| line.matches('|').count() == 2) {
        let tests = line.rsplit('|').next().unwrap();
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        if tests.trim() == "tested by" {
            continue;
        }
        assert!(!named.is_empty(), "no test: {line}");
        for name in named.iter().filter(|name| !name.starts_with("make ")) {
            let exists = rust.contains(&format!("fn {name}(")) || web.contains(&format!("test('{name}'"));
            assert!(exists, "`{name}` is no test: {line}");
        }
        promises += 1;
    }
    assert!(promises >= 8, "only {promises} promises were found");
}

netstage_harness::tests![
    the_getting_started_page_works,
    the_readme_shows_the_output_of_its_command,
    documented_commands_and_their_options_exist,
    documented_tests_and_targets_exist,
    links_between_pages_are_valid,
    each_security_promise_has_a_test,
    every_picture_is_used_by_a_page,
    result_pages_contain_the_text_of_their_descriptions,
];
