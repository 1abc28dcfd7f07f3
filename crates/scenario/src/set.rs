//! Assignments to paths such as `vpn.*.control.increase`.

use crate::error::{Problems, SourceRange, did_you_mean};
use crate::pattern::matches;
use crate::table::ValueKind;
use crate::tree::{TomlNode, TomlTable, TomlValue};
use std::rc::Rc;

/// Sets all values that match a path. An unknown path becomes a problem at `place`.
pub(crate) fn assign(
    root: &mut TomlNode,
    kind: &ValueKind,
    path: &str,
    place: SourceRange,
    value: &TomlNode,
    problems: &mut Problems,
) {
    let segments: Vec<&str> = path.split('.').collect();
    let setter = Setter { path, place, value };
    if let Err((message, help)) = setter.descend(root, kind, &segments, "the file") {
        problems.push_with_help(place, message, help);
    }
}

struct Setter<'a> {
    path: &'a str,
    place: SourceRange,
    value: &'a TomlNode,
}

type PathError = (String, Option<String>);

impl Setter<'_> {
    fn descend(
        &self,
        node: &mut TomlNode,
        kind: &ValueKind,
        rest: &[&str],
        what: &str,
    ) -> Result<(), PathError> {
        let Some((segment, rest)) = rest.split_first() else {
            *node = self.value.clone();
            return Ok(());
        };
        match kind.structure() {
            Some(ValueKind::Named { of }) => self.descend_named(node, &of(), (segment, rest), what),
            Some(ValueKind::List { of, .. }) => {
                let TomlValue::Array(items) = &mut node.value else { return Ok(()) };
                let count = items.len();
                match segment.parse::<usize>().ok().and_then(|index| items.get_mut(index)) {
                    Some(item) => self.descend(item, &of(), rest, what),
                    None => {
                        let help = format!("indexes start at 0; the list has {count} values");
                        Err((
                            format!("{}`{segment}` is not an index of {what}", self.unknown_path()),
                            Some(help),
                        ))
                    }
                }
            }
            Some(kind) => {
                let Some(field) = kind.field(segment) else {
                    let message = format!("{}unknown field `{segment}` in {what}", self.unknown_path());
                    return Err((message, did_you_mean(segment, kind.field_names())));
                };
                if matches!(field, ValueKind::Assignments { .. }) {
                    let message = format!("`{}` cannot be set", self.path);
                    return Err((message, Some("to sweep a path, use --vary path=value,value,…".into())));
                }
                self.open(node, kind);
                let Some(table) = node.table_mut() else { return Ok(()) };
                if table.get(segment).is_none() {
                    let adds = matches!(rest, [name] if self.adds(name, &[]));
                    if matches!(field, ValueKind::Named { .. }) && !adds {
                        return Err((
                            format!("{}the file has no [{segment}.NAME]", self.unknown_path()),
                            None,
                        ));
                    }
                    if rest.is_empty() {
                        table.insert(segment, self.place, self.value.clone());
                        return Ok(());
                    }
                    table.insert(segment, self.place, TomlNode::empty_table(self.value.place));
                }
                let next = match &field {
                    ValueKind::Named { .. } => (*segment).to_owned(),
                    field => describe(field, segment),
                };
                if let Some(entry) = table.entries_mut().iter_mut().find(|e| *e.key == **segment) {
                    if rest.is_empty() {
                        entry.key_place = self.place;
                    }
                    self.descend(&mut entry.node, &field, rest, &next)?;
                }
                Ok(())
            }
            None => Err((format!("{}`{what}` has no fields", self.unknown_path()), None)),
        }
    }

    /// Descends to the tables that a segment names, or adds one.
    fn descend_named(
        &self,
        node: &mut TomlNode,
        kind: &ValueKind,
        (segment, rest): (&str, &[&str]),
        what: &str,
    ) -> Result<(), PathError> {
        let Some(table) = node.table_mut() else { return Ok(()) };
        let mut found = false;
        let member = describe(kind, what);
        for entry in table.entries_mut().iter_mut().filter(|e| matches(segment, &e.key)) {
            found = true;
            self.descend(&mut entry.node, kind, rest, &member)?;
        }
        if found {
            return Ok(());
        }
        if self.adds(segment, rest) {
            table.insert(segment, self.place, self.value.clone());
            return Ok(());
        }
        let message = match segment.contains('*') {
            true => format!("{}no {what} matches `{segment}`", self.unknown_path()),
            false => format!("{}unknown {what} `{segment}`", self.unknown_path()),
        };
        let names = table.entries().iter().map(|entry| &*entry.key);
        Err((message, did_you_mean(segment, names)))
    }

    fn unknown_path(&self) -> String {
        format!("unknown path `{}`: ", self.path)
    }

    /// Returns whether the value is a complete table, which may have a new name.
    fn adds(&self, name: &str, rest: &[&str]) -> bool {
        rest.is_empty() && !name.contains('*') && matches!(self.value.value, TomlValue::Table(_))
    }

    /// Replaces a value in place of a table by a table with its shorthand field.
    fn open(&self, node: &mut TomlNode, kind: &ValueKind) {
        if let (Some(shorthand), false) = (kind.shorthand(), matches!(node.value, TomlValue::Table(_))) {
            let value = node.clone();
            let mut table = TomlTable::default();
            table.insert(shorthand, value.place, value);
            node.value = TomlValue::Table(Rc::new(table));
        }
    }
}

fn describe(kind: &ValueKind, otherwise: &str) -> String {
    match kind.structure() {
        Some(ValueKind::Table { what, .. }) => (*what).to_owned(),
        Some(ValueKind::Tagged(tagged)) => tagged.what.to_owned(),
        _ => otherwise.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;
    use crate::{LoadOptions, Scenario, parse};

    const FILE: &str = r#"[scenario]
title = "One link"
duration = "1 s"
[node.a]
[node.b]
[link.line]
ends = ["a", "b"]
rate = "1 Mbit/s"
[flow.up]
from = "a"
to = "b"
"#;

    fn set(path: &str, value: &str) -> Result<Scenario, String> {
        let options = LoadOptions { sets: vec![(path.into(), value.into())], ..LoadOptions::default() };
        parse("one.toml", FILE, None, &options).map_err(|errors| errors.problems[0].message.clone())
    }

    #[test]
    fn a_table_under_a_new_name_is_added() {
        let added = set("flow.down", "{ from = \"b\", to = \"a\" }").unwrap();
        assert_eq!(added.cells[0].plan.flows.len(), 2);
        // The file has no expectations yet.
        let expected = set("expect.used", "{ metric = \"flow.throughput\", subject = \"up\", at_least = 0 }");
        assert_eq!(expected.unwrap().expectations.len(), 1);
    }

    #[test]
    fn a_single_value_under_a_new_name_is_refused() {
        for (path, value) in [("flow.down.from", "\"b\""), ("flow.down", "3"), ("flow.x*", "{}")] {
            let message = set(path, value).unwrap_err();
            assert!(message.starts_with(&format!("unknown path `{path}`: ")), "{message}");
        }
    }

    #[test]
    fn a_star_matches_any_text() {
        assert!(matches("*", "vpn1") && matches("vpn*", "vpn1") && matches("*[*]", "bulk[3]"));
        assert!(matches("a*b*c", "a-b-b-c") && matches("vpn1", "vpn1"));
        assert!(!matches("vpn*", "wpn1") && !matches("a*bc", "abcd") && !matches("vpn", "vpn1"));
    }
}
