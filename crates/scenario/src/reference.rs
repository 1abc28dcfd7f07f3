//! The reference of the scenario format, as Markdown, from the description of its tables.

use crate::error::Place;
use crate::file::root_kind;
use crate::outcome::{Aggregation, Metric};
use crate::table::{Field, Kind, Presence};
use std::collections::BTreeSet;

/// The reference section of docs/scenarios.md.
pub fn reference() -> String {
    let mut reference = of_tables(root_kind());
    reference.metrics();
    reference.text
}

/// The tables of a file, in Markdown.
pub(crate) fn tables(root: &Kind) -> String {
    of_tables(root).text
}

fn of_tables(root: &Kind) -> Reference {
    let Kind::Table { fields, .. } = root else { unreachable!("a file is a table") };
    let mut reference = Reference { text: String::new(), told: BTreeSet::new(), pending: Vec::new() };
    for field in fields {
        let kind = (field.kind)();
        let title = match &kind {
            Kind::Named { .. } => format!("[{}.NAME]", field.name),
            _ => format!("[{}]", field.name),
        };
        reference.heading("###", &title);
        let kind = match kind {
            Kind::Named { of } => of(),
            kind => kind,
        };
        reference.body(&kind, field.doc);
        if field.name == "defaults" {
            // Each of these tables has its own section.
            reference.pending.clear();
        }
        while let Some((what, about, kind)) = reference.pending.pop() {
            if reference.told.insert(what.clone()) {
                reference.heading("####", &what);
                reference.body(&kind, about);
            }
        }
    }
    reference
}

struct Reference {
    text: String,
    told: BTreeSet<String>,
    /// Nested tables, still to be described.
    pending: Vec<(String, &'static str, Kind)>,
}

impl Reference {
    fn heading(&mut self, level: &str, title: &str) {
        self.text.push_str(&format!("{level} `{title}`\n\n"));
    }

    fn body(&mut self, kind: &Kind, about: &str) {
        match kind {
            Kind::Table { fields, shorthand, about: own, .. } => {
                let about = if own.is_empty() { about } else { own };
                self.text.push_str(&format!("{about}\n\n"));
                if let Some(shorthand) = shorthand {
                    self.text.push_str(&format!("A lone value stands for `{shorthand}`.\n\n"));
                }
                self.fields(fields);
            }
            Kind::Tagged(tagged) => {
                let tag = tagged.tag;
                self.text.push_str(&format!("{} A lone text stands for `{tag}`.\n\n", tagged.about));
                for variant in &tagged.variants {
                    let left_out =
                        if tagged.default == Some(variant.name) { " (where left out)" } else { "" };
                    let doc = variant.doc;
                    self.text.push_str(&format!("`{tag} = \"{}\"`{left_out}: {doc}\n\n", variant.name));
                    let fields = (variant.fields)();
                    if !fields.is_empty() {
                        self.fields(&fields);
                    }
                }
            }
            kind => self.text.push_str(&format!("{about} It is {}.\n\n", kind.describe())),
        }
    }

    fn fields(&mut self, fields: &[Field]) {
        self.text.push_str("| field | takes | default | |\n|---|---|---|---|\n");
        let mut nested = Vec::new();
        for field in fields {
            let kind = (field.kind)();
            let default = match &field.presence {
                Presence::Required => "required".into(),
                Presence::Optional => String::new(),
                Presence::Default(default) => format!("`{}`", default().node(Place::new(0, 0..0)).to_toml()),
            };
            let doc = match &kind {
                Kind::Choice(words) if words.iter().any(|(_, doc)| !doc.is_empty()) => {
                    let words: Vec<String> =
                        words.iter().map(|(word, doc)| format!("`{word}`: {doc}")).collect();
                    format!("{} {}", field.doc, words.join(" "))
                }
                _ => field.doc.to_owned(),
            };
            let takes = self.takes(kind, field.doc, &mut nested);
            self.text.push_str(&format!("| `{}` | {takes} | {default} | {doc} |\n", field.name));
        }
        self.text.push('\n');
        self.pending.extend(nested.into_iter().rev());
    }

    /// What a field takes; tables are told of later.
    fn takes(
        &mut self,
        kind: Kind,
        doc: &'static str,
        nested: &mut Vec<(String, &'static str, Kind)>,
    ) -> String {
        match kind {
            Kind::Table { what: "reverse", .. } => "a table of the fields of this one".into(),
            Kind::Table { what, shorthand, ref fields, .. } => {
                let name = plain(what);
                let short = shorthand.and_then(|s| fields.iter().find(|f| f.name == s));
                let takes = match short {
                    Some(field) => format!("{}, or a table: see `{name}`", (field.kind)().describe()),
                    None => format!("a table: see `{name}`"),
                };
                nested.push((name, doc, kind));
                takes
            }
            Kind::Tagged(ref tagged) => {
                let takes = format!("{} or a table: see `{}`", tagged.words().describe(), tagged.what);
                nested.push((tagged.what.to_owned(), doc, kind));
                takes
            }
            Kind::List { of, .. } if of().structure().is_some() => {
                format!("a list, each {}", self.takes(of(), doc, nested))
            }
            Kind::Named { of } => format!("a table of names, each {}", self.takes(of(), doc, nested)),
            Kind::Choice(words) => {
                words.iter().map(|(word, _)| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ")
            }
            kind => kind.describe(),
        }
    }

    fn metrics(&mut self) {
        self.text.push_str("### Metrics\n\n| metric | unit | layer | in a bin | |\n|---|---|---|---|---|\n");
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

/// "a flow" as a heading is "flow".
fn plain(what: &str) -> String {
    what.trim_start_matches("a ").trim_start_matches("an ").to_owned()
}
