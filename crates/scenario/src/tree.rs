//! TOML document as a tree of values with their places, and its conversion back to text.

use crate::error::{Place, Problems};
use toml::de::{DeTable, DeValue};

/// Value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub value: Value,
    pub place: Place,
    /// Whether the table itself sets the value, rather than `[defaults]` or a built-in default.
    pub own: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(String),
    Integer(i128),
    /// Number as written, so that decimals stay exact.
    Float(String),
    Boolean(bool),
    Datetime(String),
    Array(Vec<Node>),
    Table(Table),
}

/// Entries of a table, in the order of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub key: String,
    pub key_place: Place,
    pub node: Node,
}

impl Table {
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries.iter().find(|e| e.key == key).map(|e| &e.node)
    }

    pub fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        self.entries.iter_mut().find(|e| e.key == key).map(|e| &mut e.node)
    }

    pub fn insert(&mut self, key: &str, key_place: Place, node: Node) {
        match self.entries.iter_mut().find(|e| e.key == key) {
            Some(entry) => *entry = Entry { key: key.into(), key_place, node },
            None => self.entries.push(Entry { key: key.into(), key_place, node }),
        }
    }

    pub fn remove(&mut self, key: &str) {
        self.entries.retain(|e| e.key != key);
    }
}

impl Node {
    pub fn new(value: Value, place: Place) -> Node {
        Node { value, place, own: true }
    }

    pub fn empty_table(place: Place) -> Node {
        Node::new(Value::Table(Table::default()), place)
    }

    pub fn table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn get(&self, key: &str) -> Option<&Node> {
        self.table()?.get(key)
    }

    /// Returns the description for "found …", with article.
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Text(text) if text.chars().count() <= 40 => format!("\"{}\"", text.escape_debug()),
            Value::Text(_) => "a string".into(),
            Value::Integer(number) => format!("the number {number}"),
            Value::Float(number) if number.len() <= 40 => format!("the number {number}"),
            Value::Float(_) => "a number".into(),
            Value::Boolean(value) => format!("{value}"),
            Value::Datetime(_) => "a date".into(),
            Value::Array(_) => "a list".into(),
            Value::Table(_) => "a table".into(),
        }
    }

    /// Returns the label of the value in a cell: equal values have equal labels.
    pub fn label(&self) -> String {
        match &self.value {
            Value::Text(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.parse::<f64>().map_or(number.clone(), |n| n.to_string()),
            _ => self.to_toml(),
        }
    }

    /// Returns the value as TOML on one line.
    pub fn to_toml(&self) -> String {
        match &self.value {
            Value::Text(text) => quote(text),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) | Value::Datetime(number) => number.clone(),
            Value::Boolean(value) => value.to_string(),
            Value::Array(items) => {
                format!("[{}]", items.iter().map(Node::to_toml).collect::<Vec<_>>().join(", "))
            }
            Value::Table(table) if table.entries.is_empty() => "{}".into(),
            Value::Table(table) => {
                let fields = table.entries.iter().map(|e| format!("{} = {}", key(&e.key), e.node.to_toml()));
                format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Parses a document; syntax errors become problems.
pub(crate) fn parse_document(source: usize, problems: &mut Problems) -> Node {
    let text = problems.text(source).to_owned();
    let (document, errors) = DeTable::parse_recoverable(&text);
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        let place = Place::new(source, span.clone());
        match (error.message(), text.get(span)) {
            ("duplicate key", Some(key)) => {
                let help = "rename it, or remove one of the two";
                problems.push_help(place, format!("duplicate name `{key}`"), help);
            }
            (message, _) => problems.push(place, message),
        }
    }
    table(document.get_ref(), Place::new(source, document.span()), source, problems)
}

/// Parses a value of the command line: as TOML if valid, as a plain string otherwise.
pub(crate) fn parse_argument(text: &str, place: Place, problems: &mut Problems) -> Node {
    match DeValue::parse(text) {
        Ok(parsed) => {
            let mut node = convert(parsed.get_ref(), place, place.source as usize, problems);
            set_place(&mut node, place);
            node
        }
        Err(_) => Node::new(Value::Text(text.to_owned()), place),
    }
}

fn set_place(node: &mut Node, place: Place) {
    node.place = place;
    match &mut node.value {
        Value::Array(items) => items.iter_mut().for_each(|item| set_place(item, place)),
        Value::Table(table) => table.entries.iter_mut().for_each(|entry| {
            entry.key_place = place;
            set_place(&mut entry.node, place);
        }),
        _ => {}
    }
}

fn table(entries: &DeTable<'_>, place: Place, source: usize, problems: &mut Problems) -> Node {
    let mut entries: Vec<Entry> = entries
        .iter()
        .map(|(key, value)| Entry {
            key: key.get_ref().to_string(),
            key_place: Place::new(source, key.span()),
            node: convert(value.get_ref(), Place::new(source, value.span()), source, problems),
        })
        .collect();
    entries.sort_by_key(|e| e.key_place.start);
    Node::new(Value::Table(Table { entries }), place)
}

fn convert(value: &DeValue<'_>, place: Place, source: usize, problems: &mut Problems) -> Node {
    let value = match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Integer(number),
            Err(_) => {
                problems.push(place, "the number is too large");
                Value::Integer(0)
            }
        },
        DeValue::Float(number) => Value::Float(number.as_str().to_owned()),
        DeValue::Boolean(value) => Value::Boolean(*value),
        DeValue::Datetime(date) => Value::Datetime(date.to_string()),
        DeValue::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| convert(item.get_ref(), Place::new(source, item.span()), source, problems))
                .collect(),
        ),
        DeValue::Table(entries) => return table(entries, place, source, problems),
    };
    Node::new(value, place)
}

/// Returns a document as TOML text, with members of top-level tables as `[table.member]`.
pub(crate) fn document(root: &Node) -> String {
    let mut text = String::new();
    for entry in root.table().map_or(&[][..], |table| &table.entries) {
        section(&key(&entry.key), &entry.node, 1, &mut text);
    }
    text
}

fn section(path: &str, node: &Node, depth: usize, text: &mut String) {
    let Some(table) = node.table() else {
        text.push_str(&format!("{path} = {}\n", node.to_toml()));
        return;
    };
    let nested = |entry: &&Entry| depth == 1 && entry.node.table().is_some() && is_named(path);
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
