//! Wrappers of values: with a place, optional, in a list, under a name.

use super::{Decode, ValueKind, mismatch};
use crate::error::{Problems, SourceRange};
use crate::tree::{TomlNode, TomlValue};
use std::ops::Deref;
use std::rc::Rc;

/// Value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Located<T> {
    pub value: T,
    pub place: SourceRange,
    pub own: bool,
}

impl<T> Deref for Located<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Decode + Clone + 'static> Decode for Located<T> {
    fn kind() -> ValueKind {
        T::kind()
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let value = match node.table() {
            Some(_) => {
                remembered(node, problems, |problems| T::decode(node, problems)).map(Rc::unwrap_or_clone)
            }
            None => T::decode(node, problems),
        };
        value.map(|value| Located { value, place: node.place, own: node.own })
    }
}

impl<T: Decode> Decode for Option<T> {
    fn kind() -> ValueKind {
        T::kind()
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        T::decode(node, problems).map(Some)
    }
    const IS_OPTIONAL: bool = true;
    fn missing() -> Option<Self> {
        Some(None)
    }
}

impl<T: Decode> Decode for Rc<T> {
    fn kind() -> ValueKind {
        T::kind()
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        T::decode(node, problems).map(Rc::new)
    }
    const IS_OPTIONAL: bool = T::IS_OPTIONAL;
    fn missing() -> Option<Self> {
        T::missing().map(Rc::new)
    }
}

/// Named tables, ordered by name. A table with faults keeps its name, so that references to it are valid.
#[derive(Clone, Debug)]
pub(crate) struct NamedTables<T>(pub Rc<Vec<NamedTable<T>>>);

#[derive(Clone, Debug)]
pub(crate) struct NamedTable<T> {
    pub name: String,
    /// Place of the name.
    pub place: SourceRange,
    pub value: Option<Rc<T>>,
}

impl<T> NamedTables<T> {
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.iter().map(|m| m.name.as_str())
    }

    /// Returns whether both are the result of one decoding.
    pub fn is_same(&self, other: &NamedTables<T>) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the index of a name.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.0.binary_search_by(|m| m.name.as_str().cmp(name)).ok()
    }
}

impl<T: Decode + 'static> Decode for NamedTables<T> {
    fn kind() -> ValueKind {
        ValueKind::Named { of: T::kind }
    }

    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let Some(table) = node.table() else { return mismatch(node, &Self::kind(), problems) };
        let decoded = remembered(node, problems, |problems| {
            let mut members = Vec::with_capacity(table.entries().len());
            for entry in table.entries() {
                if !is_name(&entry.key) {
                    let message = format!("invalid name `{}`", entry.key.escape_debug());
                    let help = "use 1 to 64 letters, digits, `-` and `_`";
                    problems.push_help(entry.key_place, message, help);
                }
                let value = remembered(&entry.node, problems, |problems| T::decode(&entry.node, problems));
                members.push(NamedTable { name: entry.key.to_string(), place: entry.key_place, value });
            }
            members.sort_by(|a, b| a.name.cmp(&b.name));
            Some(members)
        });
        decoded.map(NamedTables)
    }

    const IS_OPTIONAL: bool = true;
    fn missing() -> Option<Self> {
        Some(NamedTables(Rc::default()))
    }
}

/// Decodes a table, or returns what it was decoded to before. A table with faults is decoded again, to report them.
fn remembered<T: 'static>(
    node: &TomlNode,
    problems: &mut Problems,
    decode: impl FnOnce(&mut Problems) -> Option<T>,
) -> Option<Rc<T>> {
    let table = node.table();
    if let Some(decoded) = table.and_then(|table| table.recall(&[])) {
        return Some(decoded);
    }
    let before = problems.found();
    let decoded = Rc::new(decode(problems)?);
    if let Some(table) = table.filter(|_| problems.found() == before) {
        table.remember(&[], &decoded);
    }
    Some(decoded)
}

fn is_name(key: &str) -> bool {
    let letters = key.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_');
    !key.is_empty() && letters && key.chars().count() <= 64
}

/// List of `MIN` to `MAX` values.
#[derive(Clone, Debug)]
pub(crate) struct List<T, const MIN: usize = 0, const MAX: usize = 100_000>(pub Vec<T>);

impl<T: Decode, const MIN: usize, const MAX: usize> Decode for List<T, MIN, MAX> {
    fn kind() -> ValueKind {
        ValueKind::List { of: T::kind, min: MIN, max: MAX }
    }

    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let TomlValue::Array(items) = &node.value else { return mismatch(node, &Self::kind(), problems) };
        if items.len() < MIN || items.len() > MAX {
            let expected = match (MIN, MAX) {
                (min, max) if min == max => format!("{min}"),
                (min, _) if items.len() < min => format!("at least {min}"),
                _ => format!("at most {MAX}"),
            };
            let message = format!("expected {expected} values in this list, found {}", items.len());
            problems.push(node.place, message);
            return None;
        }
        let decoded: Vec<Option<T>> = items.iter().map(|item| T::decode(item, problems)).collect();
        decoded.into_iter().collect::<Option<Vec<T>>>().map(List)
    }

    const IS_OPTIONAL: bool = MIN == 0;
    fn missing() -> Option<Self> {
        Self::IS_OPTIONAL.then_some(List(Vec::new()))
    }
}

/// A value, or a list of values.
#[derive(Clone, Debug)]
pub(crate) struct OneOrMore<T>(pub Rc<[T]>);

impl<T: Decode> Decode for OneOrMore<T> {
    fn kind() -> ValueKind {
        ValueKind::Either(vec![T::kind(), List::<T, 1, 1_000>::kind()])
    }

    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        match node.value {
            TomlValue::Array(_) => {
                List::<T, 1, 1_000>::decode(node, problems).map(|list| OneOrMore(list.0.into()))
            }
            _ => T::decode(node, problems).map(|one| OneOrMore([one].into())),
        }
    }
}

/// Table whose faults do not prevent the decoding of the table that contains it.
#[derive(Clone, Debug)]
pub(crate) struct Lenient<T>(pub Option<T>);

impl<T: Decode> Decode for Lenient<T> {
    fn kind() -> ValueKind {
        T::kind()
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        Some(Lenient(T::decode(node, problems)))
    }
    const IS_OPTIONAL: bool = T::IS_OPTIONAL;
    fn missing() -> Option<Self> {
        T::missing().map(|value| Lenient(Some(value)))
    }
}
