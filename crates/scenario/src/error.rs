//! Faults of a file and their places: all faults of a scenario at once, formatted like a compiler's.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

/// Text that problems point into: the scenario file, a command-line option or a trace file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceText {
    /// File name, or `command line` for an option.
    pub name: String,
    /// Complete text.
    pub text: String,
}

/// A problem and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    /// Index into [`Errors::sources`].
    pub source: usize,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Byte range in the source's text.
    pub span: Range<usize>,
    /// Description of the fault.
    pub message: String,
    /// Remedy, if one is known.
    pub help: Option<String>,
}

/// All faults of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors {
    /// The scenario file first, then the options and trace files.
    pub sources: Vec<SourceText>,
    /// Problems in the order of their places.
    pub problems: Vec<FileProblem>,
}

impl Errors {
    /// Returns the name of the scenario file.
    pub fn name(&self) -> &str {
        &self.sources[0].name
    }

    /// Returns the text of the scenario file.
    pub fn text(&self) -> &str {
        &self.sources[0].text
    }

    /// Returns the source a problem points into.
    pub fn source_of(&self, problem: &FileProblem) -> &SourceText {
        &self.sources[problem.source]
    }
}

impl std::error::Error for Errors {}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            let source = self.source_of(problem);
            writeln!(f, "error: {}", problem.message)?;
            let number = problem.line.to_string();
            let margin = " ".repeat(number.len());
            writeln!(f, "{margin}--> {}:{}:{}", source.name, problem.line, problem.column)?;
            if let Some(line) = source.text.lines().nth(problem.line - 1) {
                let excerpt = shorten(line, problem.column);
                writeln!(f, "{margin} |")?;
                writeln!(f, "{number} | {}", excerpt.text)?;
                let length = source.text.get(problem.span.clone()).unwrap_or("");
                let length = length.lines().next().unwrap_or("").chars().count();
                let room = excerpt.text.chars().count().saturating_sub(excerpt.column - 1);
                let carets = "^".repeat(length.min(room).max(1));
                writeln!(f, "{margin} | {}{carets}", " ".repeat(excerpt.column - 1))?;
            }
            if let Some(help) = &problem.help {
                writeln!(f, "{margin} = help: {help}")?;
            }
        }
        Ok(())
    }
}

struct Excerpt {
    text: String,
    column: usize,
}

/// Replaces control characters by spaces, and cuts a long line to the surroundings of `column`.
fn shorten(line: &str, column: usize) -> Excerpt {
    const WIDTH: usize = 160;
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    if line.chars().nth(WIDTH).is_none() {
        return Excerpt { text: line.chars().map(clean).collect(), column };
    }
    let skip = column.saturating_sub(WIDTH / 2);
    Excerpt { text: line.chars().skip(skip).take(WIDTH).map(clean).collect(), column: column - skip }
}

/// Byte range of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SourceRange {
    pub source: u32,
    pub start: u32,
    pub end: u32,
}

impl SourceRange {
    pub fn new(source: usize, span: Range<usize>) -> SourceRange {
        SourceRange { source: source as u32, start: span.start as u32, end: span.end as u32 }
    }
}

/// Sources and problems collected while a file is read. A repeated problem is stored once.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    sources: Vec<SourceText>,
    list: Vec<(SourceRange, String, Option<String>)>,
    seen: HashSet<(SourceRange, String)>,
    /// Messages that are not stored again while [`Problems::suppress`] is in effect.
    suppressed: HashSet<String>,
    is_suppressing: bool,
    /// Problems found, including those that were not stored.
    found: usize,
}

/// Maximum number of problems stored, so that a hostile file cannot fill the memory.
const MAX_PROBLEMS: usize = 500;

impl Problems {
    pub fn add_source(&mut self, name: impl Into<String>, text: impl Into<String>) -> usize {
        self.sources.push(SourceText { name: name.into(), text: text.into() });
        self.sources.len() - 1
    }

    pub fn text(&self, source: usize) -> &str {
        &self.sources[source].text
    }

    pub fn push(&mut self, place: SourceRange, message: impl Into<String>) {
        self.push_with_help(place, message, None);
    }

    pub fn push_help(&mut self, place: SourceRange, message: impl Into<String>, help: impl Into<String>) {
        self.push_with_help(place, message, Some(help.into()));
    }

    pub fn push_with_help(&mut self, place: SourceRange, message: impl Into<String>, help: Option<String>) {
        let message = message.into();
        self.found += 1;
        if self.is_suppressing && self.suppressed.contains(&message) {
            return;
        }
        if self.list.len() < MAX_PROBLEMS && self.seen.insert((place, message.clone())) {
            self.list.push((place, message, help));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the number of problems found, including repeated ones.
    pub fn found(&self) -> usize {
        self.found
    }

    /// Marks the messages of all problems so far for [`Problems::suppress`].
    pub fn mark_for_suppression(&mut self) {
        self.suppressed = self.list.iter().map(|(_, message, _)| message.clone()).collect();
    }

    /// Starts or stops the suppression of the marked messages at any place.
    pub fn suppress(&mut self, is_suppressing: bool) {
        self.is_suppressing = is_suppressing;
    }

    pub fn into_errors(mut self) -> Errors {
        self.list.sort_by_key(|(place, ..)| *place);
        let problems = self
            .list
            .into_iter()
            .map(|(place, message, help)| {
                let source = place.source as usize;
                let text = &self.sources[source].text;
                let (line, column) = line_and_column(text, place.start as usize);
                let span = place.start as usize..place.end as usize;
                FileProblem { source, line, column, span, message, help }
            })
            .collect();
        Errors { sources: self.sources, problems }
    }
}

fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let before = &text[..offset];
    let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    (line, column)
}

/// Returns the candidate nearest to `written`, or `None` if all differ in more than a third of their letters.
pub(crate) fn nearest<'a>(written: &str, candidates: &[&'a str]) -> Option<&'a str> {
    if written.len() > 64 {
        return None;
    }
    let lower = written.to_lowercase();
    candidates
        .iter()
        .map(|&candidate| {
            let distance = strsim::damerau_levenshtein(&lower, &candidate.to_lowercase());
            (distance, candidate)
        })
        .filter(|(distance, candidate)| *distance <= 1.max(written.len().max(candidate.len()) / 3))
        .filter(|(distance, candidate)| *distance < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns the help for an unknown word: the nearest candidate, or all candidates if they are few.
pub fn did_you_mean<'a>(written: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    did_you_mean_one_of(written, &candidates.into_iter().collect::<Vec<_>>())
}

fn did_you_mean_one_of(written: &str, candidates: &[&str]) -> Option<String> {
    if let Some(candidate) = nearest(written, candidates) {
        return Some(format!("did you mean `{candidate}`?"));
    }
    (1..=24).contains(&candidates.len()).then(|| format!("available: {}", candidates.join(", ")))
}
