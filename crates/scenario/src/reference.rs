//! Generator of the reference of the scenario format, in Markdown, from the description of its tables.

use crate::error::SourceRange;
use crate::file::root_kind;
use crate::outcome::{Aggregation, Metric};
use crate::table::{Field, Presence, ValueKind};
use std::collections::BTreeSet;

/// Returns the reference section of docs/scenarios.md.
pub fn reference() -> String {
    let mut reference = describe_tables(root_kind());
    reference.metrics();
    reference.text
}

/// Returns the reference of the tables of a file, in Markdown.
pub(crate) fn tables(root: &ValueKind) -> String {
    describe_tables(root).text
}

fn describe_tables(root: &ValueKind) -> ReferenceWriter {
    let ValueKind::Table { fields, .. } = root else { unreachable!("a file is a table") };
    let mut reference =
        ReferenceWriter { text: String::new(), described: BTreeSet::new(), pending: Vec::new() };
    for field in fields.iter() {
        let kind = (field.kind)();
        let title = match &kind {
            ValueKind::Named { .. } => format!("[{}.NAME]", field.name),
            _ => format!("[{}]", field.name),
        };
        reference.heading("###", &title);
        let kind = match kind {
            ValueKind::Named { of } => of(),
            kind => kind,
        };
        reference.body(&kind, field.doc);
        if field.name == "defaults" {
            // Each of these tables has its own section.
            reference.pending.clear();
        }
        while let Some((what, about, kind)) = reference.pending.pop() {
            if reference.described.insert(what.clone()) {
                reference.heading("####", &what);
                reference.body(&kind, about);
            }
        }
    }
    reference
}

struct ReferenceWriter {
    text: String,
    described: BTreeSet<String>,
    /// Nested tables to describe next.
    pending: Vec<(String, &'static str, ValueKind)>,
}

impl ReferenceWriter {
    fn heading(&mut self, level: &str, title: &str) {
        self.text.push_str(&format!("{level} `{title}`\n\n"));
    }

    fn body(&mut self, kind: &ValueKind, about: &str) {
        match kind {
            ValueKind::Table { fields, shorthand, about: own, .. } => {
                let about = if own.is_empty() { about } else { own };
                self.text.push_str(&format!("{about}\n\n"));
                if let Some(shorthand) = shorthand {
                    self.text.push_str(&format!("A value in place of the table sets `{shorthand}`.\n\n"));
                }
                self.fields(fields);
            }
            ValueKind::Tagged(tagged) => {
                let tag = tagged.tag;
                self.text
                    .push_str(&format!("{} A string in place of the table sets `{tag}`.\n\n", tagged.about));
                for variant in tagged.variants {
                    let default = if tagged.default == Some(variant.name) { " (default)" } else { "" };
                    let doc = variant.doc;
                    self.text.push_str(&format!("`{tag} = \"{}\"`{default}: {doc}\n\n", variant.name));
                    let fields = (variant.fields)();
                    if !fields.is_empty() {
                        self.fields(fields);
                    }
                }
            }
            kind => self.text.push_str(&format!("{about} Value: {}.\n\n", kind.describe())),
        }
    }

    fn fields(&mut self, fields: &[Field]) {
        self.text.push_str("| field | value | default | description |\n|---|---|---|---|\n");
        let mut nested = Vec::new();
        for field in fields {
            let kind = (field.kind)();
            let default = match &field.presence {
                Presence::Required => "required".into(),
                Presence::Optional => String::new(),
                Presence::Default(default) => {
                    format!("`{}`", default().node(SourceRange::new(0, 0..0)).to_toml())
                }
            };
            let doc = match &kind {
                ValueKind::Choice(words) if words.iter().any(|(_, doc)| !doc.is_empty()) => {
                    let words: Vec<String> =
                        words.iter().map(|(word, doc)| format!("`{word}`: {doc}")).collect();
                    format!("{} {}", field.doc, words.join(" "))
                }
                _ => field.doc.to_owned(),
            };
            let value = self.value(kind, field.doc, &mut nested);
            self.text.push_str(&format!("| `{}` | {value} | {default} | {doc} |\n", field.name));
        }
        self.text.push('\n');
        self.pending.extend(nested.into_iter().rev());
    }

    /// Returns the description of a field's value. Tables are added to `nested`.
    fn value(
        &mut self,
        kind: ValueKind,
        doc: &'static str,
        nested: &mut Vec<(String, &'static str, ValueKind)>,
    ) -> String {
        match kind {
            ValueKind::Table { what: "reverse", .. } => "a table with the same fields".into(),
            ValueKind::Table { what, shorthand, ref fields, .. } => {
                let name = plain(what);
                let short = shorthand.and_then(|s| fields.iter().find(|f| f.name == s));
                let value = match short {
                    Some(field) => format!("{}, or a table: see `{name}`", (field.kind)().describe()),
                    None => format!("a table: see `{name}`"),
                };
                nested.push((name, doc, kind));
                value
            }
            ValueKind::Tagged(ref tagged) => {
                let value = format!("{}, or a table: see `{}`", tagged.words().describe(), tagged.what);
                nested.push((tagged.what.to_owned(), doc, kind));
                value
            }
            ValueKind::List { of, .. } if of().structure().is_some() => {
                format!("a list of values, each {}", self.value(of(), doc, nested))
            }
            ValueKind::Named { of } => {
                format!("a table of named values, each {}", self.value(of(), doc, nested))
            }
            ValueKind::Choice(words) => {
                words.iter().map(|(word, _)| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ")
            }
            kind => kind.describe(),
        }
    }

    fn metrics(&mut self) {
        self.text.push_str("### Metrics\n\n| metric | unit | layer | value of a bin | description |\n|---|---|---|---|---|\n");
        for metric in Metric::ALL {
            let info = metric.info();
            let aggregation = match info.aggregation {
                Aggregation::Mean => "mean",
                Aggregation::Sum => "sum",
                Aggregation::Last => "last",
                Aggregation::Max => "max",
            };
            let row = [info.unit, info.layer, aggregation, info.help].join(" | ");
            self.text.push_str(&format!("| `{}` | {row} |\n", info.name));
        }
    }
}

/// Removes the article: "a flow" becomes the heading "flow".
fn plain(what: &str) -> String {
    what.trim_start_matches("a ").trim_start_matches("an ").to_owned()
}
