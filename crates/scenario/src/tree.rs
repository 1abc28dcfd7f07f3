//! TOML document as a tree of values with their places, and its conversion back to text.

use crate::error::{Problems, SourceRange};
use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;
use toml::de::{DeTable, DeValue};

/// Value and its place.
#[derive(Clone, Debug)]
pub(crate) struct TomlNode {
    pub value: TomlValue,
    pub place: SourceRange,
    /// Whether the table itself sets the value, rather than `[defaults]` or a built-in default.
    pub own: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum TomlValue {
    Text(Rc<str>),
    Integer(i128),
    /// Number as written, so that decimals stay exact.
    Float(String),
    Boolean(bool),
    Datetime(String),
    Array(Vec<TomlNode>),
    /// Table, shared by copies of the tree until one of them changes it.
    Table(Rc<TomlTable>),
}

/// Entries of a table, in the order of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct TomlTable {
    entries: Vec<TomlEntry>,
    memo: Memo,
}

/// Result of a change of a table; `K` identifies the change.
struct Changed<K>(Rc<TomlTable>, PhantomData<K>);

/// Values derived from a table. A copy has none.
#[derive(Default)]
struct Memo(RefCell<Vec<DerivedValue>>);

/// Value derived from a table and from `others`.
struct DerivedValue {
    others: Vec<Rc<TomlTable>>,
    value: Rc<dyn Any>,
}

impl Clone for Memo {
    fn clone(&self) -> Memo {
        Memo::default()
    }
}

impl std::fmt::Debug for Memo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memo")
    }
}

#[derive(Clone, Debug)]
pub(crate) struct TomlEntry {
    pub key: Rc<str>,
    pub key_place: SourceRange,
    pub node: TomlNode,
}

impl TomlTable {
    pub fn new(entries: Vec<TomlEntry>) -> TomlTable {
        TomlTable { entries, memo: Memo::default() }
    }

    pub fn entries(&self) -> &[TomlEntry] {
        &self.entries
    }

    /// Returns the entries for a change, which invalidates the remembered values.
    pub fn entries_mut(&mut self) -> &mut Vec<TomlEntry> {
        self.memo = Memo::default();
        &mut self.entries
    }

    /// Returns the value that was remembered for this table and these others.
    pub fn recall<T: 'static>(&self, others: &[&Rc<TomlTable>]) -> Option<Rc<T>> {
        let memo = self.memo.0.borrow();
        let known = memo.iter().find(|derived| derived.value.is::<T>())?;
        let is_same = known.others.len() == others.len()
            && known.others.iter().zip(others).all(|(known, other)| Rc::ptr_eq(known, other));
        if is_same { Rc::clone(&known.value).downcast().ok() } else { None }
    }

    /// Remembers a value derived from this table and these others, in place of an earlier one of the same type. The
    /// value must not contain this table, which would never be freed.
    pub fn remember<T: 'static>(&self, others: &[&Rc<TomlTable>], value: &Rc<T>) {
        let mut memo = self.memo.0.borrow_mut();
        memo.retain(|derived| !derived.value.is::<T>());
        let others = others.iter().map(|other| Rc::clone(other)).collect();
        memo.push(DerivedValue { others, value: Rc::<T>::clone(value) });
    }

    pub fn get(&self, key: &str) -> Option<&TomlNode> {
        self.entries.iter().find(|e| *e.key == *key).map(|e| &e.node)
    }

    pub fn get_mut(&mut self, key: &str) -> Option<&mut TomlNode> {
        self.entries_mut().iter_mut().find(|e| *e.key == *key).map(|e| &mut e.node)
    }

    pub fn insert(&mut self, key: &str, key_place: SourceRange, node: TomlNode) {
        let entry = TomlEntry { key: key.into(), key_place, node };
        match self.entries_mut().iter_mut().find(|e| *e.key == *key) {
            Some(known) => *known = entry,
            None => self.entries.push(entry),
        }
    }

    pub fn remove(&mut self, key: &str) {
        self.entries_mut().retain(|e| *e.key != *key);
    }
}

impl TomlNode {
    pub fn new(value: TomlValue, place: SourceRange) -> TomlNode {
        TomlNode { value, place, own: true }
    }

    pub fn empty_table(place: SourceRange) -> TomlNode {
        TomlNode::new(TomlValue::Table(Rc::default()), place)
    }

    pub fn table(&self) -> Option<&Rc<TomlTable>> {
        match &self.value {
            TomlValue::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Returns the table for a change. A shared one is copied first.
    pub fn table_mut(&mut self) -> Option<&mut TomlTable> {
        match &mut self.value {
            TomlValue::Table(table) => Some(Rc::make_mut(table)),
            _ => None,
        }
    }

    /// Changes a table by `change`, or takes the result of the last change `K` of the table with the same other tables.
    /// The change must depend on nothing else.
    pub fn change_once<K: 'static>(
        &mut self,
        others: &[&Rc<TomlTable>],
        change: impl FnOnce(&mut TomlTable),
    ) {
        let TomlValue::Table(table) = &mut self.value else { return };
        if let Some(changed) = table.recall::<Changed<K>>(others) {
            *table = Rc::clone(&changed.0);
            return;
        }
        let mut copy = TomlTable::clone(table);
        change(&mut copy);
        let before = std::mem::replace(table, Rc::new(copy));
        before.remember(others, &Rc::new(Changed::<K>(Rc::clone(table), PhantomData)));
    }

    pub fn text(&self) -> Option<&str> {
        match &self.value {
            TomlValue::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn get(&self, key: &str) -> Option<&TomlNode> {
        self.table()?.get(key)
    }

    /// Returns the description for "found …", with article.
    pub fn describe(&self) -> String {
        match &self.value {
            TomlValue::Text(text) if text.chars().count() <= 40 => format!("\"{}\"", text.escape_debug()),
            TomlValue::Text(_) => "a string".into(),
            TomlValue::Integer(number) => format!("the number {number}"),
            TomlValue::Float(number) if number.len() <= 40 => format!("the number {number}"),
            TomlValue::Float(_) => "a number".into(),
            TomlValue::Boolean(value) => format!("{value}"),
            TomlValue::Datetime(_) => "a date".into(),
            TomlValue::Array(_) => "a list".into(),
            TomlValue::Table(_) => "a table".into(),
        }
    }

    /// Returns the label of the value in a cell: equal values have equal labels.
    pub fn label(&self) -> String {
        match &self.value {
            TomlValue::Text(text) => text.to_string(),
            TomlValue::Integer(number) => number.to_string(),
            TomlValue::Float(number) => number.parse::<f64>().map_or(number.clone(), |n| n.to_string()),
            _ => self.to_toml(),
        }
    }

    /// Returns the value as TOML on one line.
    pub fn to_toml(&self) -> String {
        match &self.value {
            TomlValue::Text(text) => quote(text),
            TomlValue::Integer(number) => number.to_string(),
            TomlValue::Float(number) | TomlValue::Datetime(number) => number.clone(),
            TomlValue::Boolean(value) => value.to_string(),
            TomlValue::Array(items) => {
                format!("[{}]", items.iter().map(TomlNode::to_toml).collect::<Vec<_>>().join(", "))
            }
            TomlValue::Table(table) if table.entries.is_empty() => "{}".into(),
            TomlValue::Table(table) => {
                let fields = table.entries.iter().map(|e| format!("{} = {}", key(&e.key), e.node.to_toml()));
                format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Parses a document; syntax errors become problems.
pub(crate) fn parse_document(source: usize, problems: &mut Problems) -> TomlNode {
    let text = problems.text(source).to_owned();
    let (document, errors) = DeTable::parse_recoverable(&text);
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        let place = SourceRange::new(source, span.clone());
        match (error.message(), text.get(span)) {
            ("duplicate key", Some(key)) => {
                let help = "rename it, or remove one of the two";
                problems.push_help(place, format!("duplicate name `{key}`"), help);
            }
            (message, _) => problems.push(place, message),
        }
    }
    table(document.get_ref(), SourceRange::new(source, document.span()), source, problems)
}

/// Parses a value of the command line: as TOML if valid, as a plain string otherwise.
pub(crate) fn parse_argument(text: &str, place: SourceRange, problems: &mut Problems) -> TomlNode {
    match DeValue::parse(text) {
        Ok(parsed) => {
            let mut node = convert(parsed.get_ref(), place, place.source as usize, problems);
            set_place(&mut node, place);
            node
        }
        Err(_) => TomlNode::new(TomlValue::Text(text.into()), place),
    }
}

fn set_place(node: &mut TomlNode, place: SourceRange) {
    node.place = place;
    match &mut node.value {
        TomlValue::Array(items) => items.iter_mut().for_each(|item| set_place(item, place)),
        TomlValue::Table(table) => Rc::make_mut(table).entries_mut().iter_mut().for_each(|entry| {
            entry.key_place = place;
            set_place(&mut entry.node, place);
        }),
        _ => {}
    }
}

fn table(entries: &DeTable<'_>, place: SourceRange, source: usize, problems: &mut Problems) -> TomlNode {
    let mut entries: Vec<TomlEntry> = entries
        .iter()
        .map(|(key, value)| TomlEntry {
            key: Rc::from(&**key.get_ref()),
            key_place: SourceRange::new(source, key.span()),
            node: convert(value.get_ref(), SourceRange::new(source, value.span()), source, problems),
        })
        .collect();
    entries.sort_by_key(|e| e.key_place.start);
    TomlNode::new(TomlValue::Table(Rc::new(TomlTable::new(entries))), place)
}

fn convert(value: &DeValue<'_>, place: SourceRange, source: usize, problems: &mut Problems) -> TomlNode {
    let value = match value {
        DeValue::String(text) => TomlValue::Text((**text).into()),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => TomlValue::Integer(number),
            Err(_) => {
                problems.push(place, "the number is too large");
                TomlValue::Integer(0)
            }
        },
        DeValue::Float(number) => TomlValue::Float(number.as_str().to_owned()),
        DeValue::Boolean(value) => TomlValue::Boolean(*value),
        DeValue::Datetime(date) => TomlValue::Datetime(date.to_string()),
        DeValue::Array(items) => TomlValue::Array(
            items
                .iter()
                .map(|item| convert(item.get_ref(), SourceRange::new(source, item.span()), source, problems))
                .collect(),
        ),
        DeValue::Table(entries) => return table(entries, place, source, problems),
    };
    TomlNode::new(value, place)
}

/// Returns a document as TOML text, with members of top-level tables as `[table.member]`.
pub(crate) fn document(root: &TomlNode) -> String {
    let mut text = String::new();
    for entry in root.table().map_or(&[][..], |table| &table.entries) {
        section(&key(&entry.key), &entry.node, 1, &mut text);
    }
    text
}

fn section(path: &str, node: &TomlNode, depth: usize, text: &mut String) {
    let Some(table) = node.table() else {
        text.push_str(&format!("{path} = {}\n", node.to_toml()));
        return;
    };
    let nested = |entry: &&TomlEntry| depth == 1 && entry.node.table().is_some() && is_named(path);
    if !table.entries.iter().all(|e| nested(&e)) || table.entries.is_empty() {
        text.push_str(&format!("\n[{path}]\n"));
        for entry in table.entries.iter().filter(|e| !nested(e)) {
            text.push_str(&format!("{} = {}\n", key(&entry.key), entry.node.to_toml()));
        }
    }
    for entry in table.entries.iter().filter(nested) {
        section(&format!("{path}.{}", key(&entry.key)), &entry.node, depth + 1, text);
    }
}

fn is_named(path: &str) -> bool {
    !matches!(path, "scenario" | "measure" | "sweep")
}

fn key(key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if bare { key.to_owned() } else { quote(key) }
}

fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", c as u32)),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
