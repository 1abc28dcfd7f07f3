//! Declarative description of the tables of a configuration file.
//!
//! The macros of `declare` turn a struct into a [`ValueKind`], which decoding, the refusal of unknown fields, `--set`
//! paths, the JSON Schema and the reference share. This module does not depend on the scenario format.

mod declare;
mod merge;
mod nest;

use crate::error::{Problems, SourceRange, did_you_mean, nearest};
use crate::quantity::{Dimension, alternatives};
use crate::tree::{TomlNode, TomlTable, TomlValue};
use std::borrow::Cow;

/// Type of a value.
pub(crate) enum ValueKind {
    /// String, with a description of its content: "the name of a node".
    Text(&'static str),
    /// `true` or `false`.
    Boolean,
    /// Integer within inclusive bounds.
    Integer { min: u64, max: u64 },
    /// Number; the bounds in words, and as numbers for the schema.
    Number { bounds: &'static str, min: f64, max: f64 },
    /// String of a number and a unit.
    Quantity(&'static [Dimension]),
    /// One of several words, each with its documentation.
    Choice(Vec<(&'static str, &'static str)>),
    /// List.
    List { of: fn() -> ValueKind, min: usize, max: usize },
    /// Table of tables, each under a user-defined name.
    Named { of: fn() -> ValueKind },
    /// Table; a value in place of the table sets its `shorthand` field.
    Table {
        what: &'static str,
        about: &'static str,
        fields: Cow<'static, [Field]>,
        shorthand: Option<&'static str>,
    },
    /// Table whose fields depend on its tag; a string in place of the table sets the tag.
    Tagged(TaggedTable),
    /// Quoted paths, each with a value.
    Assignments { what: &'static str },
    /// One of several types.
    Either(Vec<ValueKind>),
}

pub(crate) struct TaggedTable {
    pub what: &'static str,
    pub about: &'static str,
    pub tag: &'static str,
    pub default: Option<&'static str>,
    pub variants: &'static [TaggedVariant],
}

pub(crate) struct TaggedVariant {
    pub name: &'static str,
    pub doc: &'static str,
    pub fields: fn() -> &'static [Field],
}

/// Field of a table.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    pub name: &'static str,
    pub doc: &'static str,
    pub kind: fn() -> ValueKind,
    pub presence: Presence,
}

#[derive(Clone, Copy)]
pub(crate) enum Presence {
    Required,
    Optional,
    Default(fn() -> Literal),
}

/// Default value, as written in a file.
#[derive(Clone, Debug)]
pub(crate) enum Literal {
    Text(Cow<'static, str>),
    Integer(i128),
    Float(f64),
    Boolean(bool),
}

macro_rules! literal_from {
    ($($from:ty => $variant:ident ($into:expr);)+) => {
        $(impl From<$from> for Literal {
            fn from(value: $from) -> Literal {
                Literal::$variant($into(value))
            }
        })+
    };
}

literal_from! {
    &'static str => Text(Cow::Borrowed);
    String => Text(Cow::Owned);
    i32 => Integer(i128::from);
    u32 => Integer(i128::from);
    u64 => Integer(i128::from);
    f64 => Float(std::convert::identity);
    bool => Boolean(std::convert::identity);
}

impl Literal {
    pub fn node(&self, place: SourceRange) -> TomlNode {
        let value = match self {
            Literal::Text(text) => TomlValue::Text((&**text).into()),
            Literal::Integer(number) => TomlValue::Integer(*number),
            Literal::Float(number) => TomlValue::Float(format!("{number:?}")),
            Literal::Boolean(value) => TomlValue::Boolean(*value),
        };
        TomlNode { value, place, own: false }
    }
}

/// Returns the word for a value, as declared by [`choice!`].
pub(crate) fn word<T: Decode + PartialEq>(value: T) -> &'static str {
    let ValueKind::Choice(words) = T::kind() else { unreachable!("the kind is a choice") };
    let place = SourceRange { source: 0, start: 0, end: 0 };
    let decode = |word: &'static str| T::decode(&Literal::from(word).node(place), &mut Problems::default());
    let found = words.iter().find(|(word, _)| decode(word).as_ref() == Some(&value));
    found.expect("every value has a word").0
}

/// Type that values of the file are decoded to.
pub(crate) trait Decode: Sized {
    fn kind() -> ValueKind;
    /// Decodes a value, or adds the fault to `problems` and returns `None`.
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self>;
    /// Whether a field of this type may be omitted without a default. [`Decode::missing`] then returns a value.
    const IS_OPTIONAL: bool = false;
    /// Returns the value of an omitted field without a default.
    fn missing() -> Option<Self> {
        None
    }
}

/// Set of fields: a table, or part of one.
pub(crate) trait Fields: Sized {
    const WHAT: &'static str;
    fn fields() -> &'static [Field];
    fn take(reader: &mut FieldReader<'_>) -> Option<Self>;
}

/// Table without fields except its tag.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NoFields;

impl Fields for NoFields {
    const WHAT: &'static str = "";
    fn fields() -> &'static [Field] {
        &[]
    }
    fn take(_: &mut FieldReader<'_>) -> Option<Self> {
        Some(NoFields)
    }
}

/// Reader of the fields of a table.
pub(crate) struct FieldReader<'a> {
    table: &'a TomlTable,
    fields: &'a [Field],
    place: SourceRange,
    what: &'static str,
    problems: &'a mut Problems,
}

// `field` is instantiated for every field, so its code that does not depend on the type is in functions.
impl<'a> FieldReader<'a> {
    pub fn field<T: Decode>(&mut self, name: &'static str) -> Option<T> {
        match self.node(name) {
            Some(node) => T::decode(&node, self.problems),
            None if T::IS_OPTIONAL => T::missing(),
            None => {
                self.refuse_missing(name, T::kind);
                None
            }
        }
    }

    /// Returns the field as written, or its default.
    fn node(&self, name: &str) -> Option<Cow<'a, TomlNode>> {
        if let Some(node) = self.table.get(name) {
            return Some(Cow::Borrowed(node));
        }
        match self.fields.iter().find(|field| field.name == name)?.presence {
            Presence::Default(default) => Some(Cow::Owned(default().node(self.place))),
            Presence::Required | Presence::Optional => None,
        }
    }

    fn refuse_missing(&mut self, name: &str, kind: fn() -> ValueKind) {
        let message = format!("missing field `{name}` in {}", self.what);
        let help = format!("add `{name}`: {}", kind().describe());
        self.problems.push_help(self.place, message, help);
    }
}

impl Field {
    pub const fn new<T: Decode>(
        name: &'static str,
        doc: &'static str,
        default: Option<fn() -> Literal>,
    ) -> Field {
        let presence = match default {
            Some(default) => Presence::Default(default),
            None if T::IS_OPTIONAL => Presence::Optional,
            None => Presence::Required,
        };
        Field { name, doc, kind: T::kind, presence }
    }
}

pub(crate) use declare::{choice, default, table, tagged};
pub(crate) use merge::{disowned, merge, merge_tables};
pub(crate) use nest::{Lenient, List, Located, NamedTable, NamedTables, OneOrMore};

pub(crate) fn decode_table<T: Fields + Decode>(node: &TomlNode, problems: &mut Problems) -> Option<T> {
    let kind = T::kind();
    let ValueKind::Table { shorthand, ref fields, .. } = kind else { unreachable!("the kind is a table") };
    let Some(table) = open_table(node, shorthand) else { return mismatch(node, &kind, problems) };
    let known = refuse_unknown(&table, fields, None, T::WHAT, problems);
    let taken =
        T::take(&mut FieldReader { table: &table, fields, place: node.place, what: T::WHAT, problems });
    taken.filter(|_| known)
}

/// Returns the table as written, or a table with the shorthand field if `node` is a single value.
fn open_table<'a>(node: &'a TomlNode, shorthand: Option<&str>) -> Option<Cow<'a, TomlTable>> {
    match (&node.value, shorthand) {
        (TomlValue::Table(table), _) => Some(Cow::Borrowed(&**table)),
        (TomlValue::Text(_) | TomlValue::Integer(_) | TomlValue::Float(_), Some(shorthand)) => {
            let mut table = TomlTable::default();
            table.insert(shorthand, node.place, node.clone());
            Some(Cow::Owned(table))
        }
        _ => None,
    }
}

/// Decodes the fields of a tagged table, whose keys were checked by [`open_tagged`].
pub(crate) fn take_variant<T: Fields>(
    table: &TomlTable,
    place: SourceRange,
    problems: &mut Problems,
) -> Option<T> {
    T::take(&mut FieldReader { table, fields: T::fields(), place, what: T::WHAT, problems })
}

/// Refuses unknown keys. Returns whether all keys are known.
fn refuse_unknown(
    table: &TomlTable,
    fields: &[Field],
    elsewhere: Option<&TaggedTable>,
    what: &str,
    problems: &mut Problems,
) -> bool {
    let before = problems.found();
    for entry in table.entries() {
        if fields.iter().any(|f| *f.name == *entry.key) || elsewhere.is_some_and(|t| *t.tag == *entry.key) {
            continue;
        }
        let other = elsewhere.and_then(|tagged| {
            let owner =
                tagged.variants.iter().find(|v| (v.fields)().iter().any(|f| *f.name == *entry.key))?;
            Some(format!("`{}` belongs to {} = \"{}\"", entry.key, tagged.tag, owner.name))
        });
        let help = other.or_else(|| did_you_mean(&entry.key, fields.iter().map(|f| f.name)));
        let message = format!("unknown field `{}` in {what}", entry.key.escape_debug());
        problems.push_with_help(entry.key_place, message, help);
    }
    problems.found() == before
}

/// Returns the tag of a tagged table, and the table.
pub(crate) fn open_tagged<'a>(
    node: &'a TomlNode,
    tagged: &TaggedTable,
    problems: &mut Problems,
) -> Option<(&'static str, Cow<'a, TomlTable>)> {
    let (tag, tag_place, table) = match &node.value {
        TomlValue::Text(text) => (Some(&**text), node.place, Cow::default()),
        TomlValue::Table(table) => match table.get(tagged.tag) {
            Some(tag) => match tag.text() {
                Some(text) => (Some(text), tag.place, Cow::Borrowed(&**table)),
                None => return mismatch(tag, &tagged.words(), problems),
            },
            None => (tagged.default, node.place, Cow::Borrowed(&**table)),
        },
        _ => return mismatch(node, &tagged.words(), problems),
    };
    let Some(tag) = tag else {
        let words = tagged.words().describe();
        problems.push_help(
            node.place,
            format!("missing field `{}` in {}", tagged.tag, tagged.what),
            format!("add `{}`: {words}", tagged.tag),
        );
        return None;
    };
    let Some(variant) = tagged.variants.iter().find(|v| v.name == tag) else {
        let help = did_you_mean(tag, tagged.variants.iter().map(|v| v.name));
        let message = format!("unknown {} {} `{}`", tagged.what, tagged.tag, tag.escape_debug());
        problems.push_with_help(tag_place, message, help);
        return None;
    };
    let what = format!("{} \"{}\"", tagged.what, variant.name);
    refuse_unknown(&table, (variant.fields)(), Some(tagged), &what, problems).then_some(())?;
    Some((variant.name, table))
}

pub(crate) fn refuse_choice<T>(node: &TomlNode, kind: &ValueKind, problems: &mut Problems) -> Option<T> {
    refuse_word(node, kind, problems);
    None
}

fn refuse_word(node: &TomlNode, kind: &ValueKind, problems: &mut Problems) {
    let (Some(text), ValueKind::Choice(words)) = (node.text(), kind) else {
        return refuse(node, kind, problems);
    };
    let words: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
    let help = nearest(text, &words).map(|word| format!("did you mean `{word}`?"));
    let message = format!("expected {}, found {}", kind.describe(), node.describe());
    problems.push_with_help(node.place, message, help);
}

/// Refuses a value of the wrong type or out of bounds.
pub(crate) fn mismatch<T>(node: &TomlNode, kind: &ValueKind, problems: &mut Problems) -> Option<T> {
    refuse(node, kind, problems);
    None
}

fn refuse(node: &TomlNode, kind: &ValueKind, problems: &mut Problems) {
    let help = match (&node.value, kind) {
        (TomlValue::Float(number), _) if number.parse::<f64>().is_ok_and(|number| !number.is_finite()) => {
            Some("the number must be finite".into())
        }
        (TomlValue::Integer(_) | TomlValue::Float(_), ValueKind::Quantity(dimensions)) => {
            let number = node.label();
            let unit = dimensions[0].usual_unit(&number);
            Some(format!("write a string with the unit, such as \"{number} {unit}\""))
        }
        (TomlValue::Text(text), ValueKind::Boolean) if matches!(&**text, "true" | "false") => {
            Some("remove the quotation marks".into())
        }
        (TomlValue::Text(text), ValueKind::Integer { .. } | ValueKind::Number { .. })
            if text.parse::<f64>().is_ok() =>
        {
            Some("remove the quotation marks".into())
        }
        (TomlValue::Table(_), ValueKind::List { .. }) => Some("write the table in brackets: [{ … }]".into()),
        (TomlValue::Text(_), ValueKind::List { min: 2.., .. }) => {
            Some("write the values in brackets: [\"…\", \"…\"]".into())
        }
        (TomlValue::Integer(_), ValueKind::Text(content)) if content.starts_with("the name") => {
            Some(format!("write a string: \"{}\"", node.label()))
        }
        (value, ValueKind::Table { .. }) if !matches!(value, TomlValue::Table(_)) => {
            Some("write a table: { field = value, … }".into())
        }
        (value, ValueKind::List { min: 0 | 1, .. }) if !matches!(value, TomlValue::Array(_)) => {
            let value = node.to_toml();
            Some(format!("write it in brackets: [{}]", if value.len() <= 60 { &value } else { "…" }))
        }
        _ => None,
    };
    let message = format!("expected {}, found {}", kind.describe(), node.describe());
    problems.push_with_help(node.place, message, help);
}

impl TaggedTable {
    pub fn words(&self) -> ValueKind {
        ValueKind::Choice(self.variants.iter().map(|v| (v.name, v.doc)).collect())
    }
}

impl ValueKind {
    /// Returns the description for "expected …", with article.
    pub fn describe(&self) -> String {
        match self {
            ValueKind::Text(holds) => (*holds).into(),
            ValueKind::Boolean => "true or false".into(),
            ValueKind::Integer { min, max: u64::MAX } => format!("a whole number from {min}"),
            ValueKind::Integer { min, max } => format!("a whole number from {min} to {max}"),
            ValueKind::Number { bounds: "", .. } => "a number".into(),
            ValueKind::Number { bounds, .. } => format!("a number {bounds}"),
            ValueKind::List { of, min, max } => match (min, max) {
                (2, 2) => format!("a list of two values, each {}", of().describe()),
                _ => format!("a list of values, each {}", of().describe()),
            },
            ValueKind::Named { of } => format!("a table of named values, each {}", of().describe()),
            ValueKind::Assignments { what } => (*what).into(),
            ValueKind::Quantity(_)
            | ValueKind::Choice(_)
            | ValueKind::Table { .. }
            | ValueKind::Tagged(_)
            | ValueKind::Either(_) => alternatives(self.alternatives()),
        }
    }

    /// Returns the descriptions of the alternatives, which [`ValueKind::describe`] joins.
    fn alternatives(&self) -> Vec<String> {
        match self {
            ValueKind::Quantity(dimensions) => dimensions.iter().map(|d| d.describe().to_owned()).collect(),
            ValueKind::Choice(words) => words.iter().map(|(word, _)| format!("\"{word}\"")).collect(),
            ValueKind::Table { what, fields, shorthand, .. } => {
                let short = shorthand.and_then(|s| fields.iter().find(|f| f.name == s));
                let short = short.map_or_else(Vec::new, |field| (field.kind)().alternatives());
                [short, vec![format!("a table ({what})")]].concat()
            }
            ValueKind::Tagged(tagged) => {
                [tagged.words().alternatives(), vec![format!("a table ({})", tagged.what)]].concat()
            }
            ValueKind::Either(kinds) => kinds.iter().flat_map(ValueKind::alternatives).collect(),
            kind => vec![kind.describe()],
        }
    }

    /// Returns the alternative with fields or items, if any.
    pub fn structure(&self) -> Option<&ValueKind> {
        match self {
            ValueKind::Either(kinds) => kinds.iter().find_map(ValueKind::structure),
            ValueKind::Table { .. }
            | ValueKind::Tagged(_)
            | ValueKind::Named { .. }
            | ValueKind::List { .. } => Some(self),
            _ => None,
        }
    }

    /// Returns the field that a value in place of the table sets.
    pub fn shorthand(&self) -> Option<&'static str> {
        match self {
            ValueKind::Table { shorthand, .. } => *shorthand,
            ValueKind::Tagged(tagged) => Some(tagged.tag),
            _ => None,
        }
    }

    /// Returns the type of the field with this name.
    pub fn field(&self, name: &str) -> Option<ValueKind> {
        match self {
            ValueKind::Table { fields, .. } => fields.iter().find(|f| f.name == name).map(|f| (f.kind)()),
            ValueKind::Tagged(tagged) if name == tagged.tag => Some(tagged.words()),
            ValueKind::Tagged(tagged) => {
                tagged.variants.iter().flat_map(|v| (v.fields)()).find(|f| f.name == name).map(|f| (f.kind)())
            }
            ValueKind::Named { of } => Some(of()),
            _ => None,
        }
    }

    /// Returns the names of all fields.
    pub fn field_names(&self) -> Vec<&'static str> {
        match self {
            ValueKind::Table { fields, .. } => fields.iter().map(|f| f.name).collect(),
            ValueKind::Tagged(tagged) => {
                let mut names = vec![tagged.tag];
                for field in tagged.variants.iter().flat_map(|v| (v.fields)()) {
                    if !names.contains(&field.name) {
                        names.push(field.name);
                    }
                }
                names
            }
            _ => Vec::new(),
        }
    }
}

/// Refuses unknown fields at any depth. Required fields may be missing.
pub(crate) fn refuse_unknown_keys(node: &TomlNode, kind: &ValueKind, problems: &mut Problems) {
    let Some(kind) = kind.structure() else { return };
    match (&node.value, kind) {
        (TomlValue::Array(items), ValueKind::List { of, .. }) => {
            items.iter().for_each(|item| refuse_unknown_keys(item, &of(), problems));
        }
        (TomlValue::Table(table), kind) => {
            let names = kind.field_names();
            for entry in table.entries() {
                match kind.field(&entry.key) {
                    Some(kind) => refuse_unknown_keys(&entry.node, &kind, problems),
                    None => {
                        let what = match kind {
                            ValueKind::Table { what, .. } => what,
                            ValueKind::Tagged(tagged) => tagged.what,
                            _ => "this table",
                        };
                        let message = format!("unknown field `{}` in {what}", entry.key.escape_debug());
                        let help = did_you_mean(&entry.key, names.iter().copied());
                        problems.push_with_help(entry.key_place, message, help);
                    }
                }
            }
        }
        _ => {}
    }
}
