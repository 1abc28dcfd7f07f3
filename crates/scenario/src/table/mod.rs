//! Tables of a configuration file, described once.
//!
//! `declare` turns a struct into such a description: decoding, the refusal of
//! unknown keys, `--set` paths, the JSON Schema and the reference all read [`Kind`].
//! Nothing here knows what a scenario is.

mod declare;
mod merge;
mod nest;

use crate::error::{Place, Problems, did_you_mean};
use crate::quantity::Dimension;
use crate::tree::{Node, Table, Value};
use std::borrow::Cow;

/// What a value may be.
pub(crate) enum Kind {
    /// Any text; says what it holds: "the name of a node".
    Text(&'static str),
    /// `true` or `false`.
    Boolean,
    /// A whole number within bounds, both included.
    Integer { min: u64, max: u64 },
    /// A number; the bounds in words, and as numbers for the schema.
    Number { bounds: &'static str, min: f64, max: f64 },
    /// A text with a unit.
    Quantity(&'static [Dimension]),
    /// One of a few words, each with its documentation.
    Choice(Vec<(&'static str, &'static str)>),
    /// A list.
    List { of: fn() -> Kind, min: usize, max: usize },
    /// A table of tables, each under a name of the user's.
    Named { of: fn() -> Kind },
    /// A table; a lone value may stand for its `shorthand` field.
    Table { what: &'static str, about: &'static str, fields: Vec<Field>, shorthand: Option<&'static str> },
    /// A table whose fields depend on its tag; a lone text stands for the tag.
    Tagged(Tagged),
    /// Paths, quoted, each with a value.
    Assignments { what: &'static str },
    /// Any one of these.
    Either(Vec<Kind>),
}

pub(crate) struct Tagged {
    pub what: &'static str,
    pub about: &'static str,
    pub tag: &'static str,
    pub default: Option<&'static str>,
    pub variants: Vec<Variant>,
}

pub(crate) struct Variant {
    pub name: &'static str,
    pub doc: &'static str,
    pub fields: fn() -> Vec<Field>,
}

/// One field of a table.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    pub name: &'static str,
    pub doc: &'static str,
    pub kind: fn() -> Kind,
    pub presence: Presence,
}

#[derive(Clone, Copy)]
pub(crate) enum Presence {
    Required,
    Optional,
    Default(fn() -> Literal),
}

/// A default, written as it would be in a file.
#[derive(Clone, Debug)]
pub(crate) enum Literal {
    Text(String),
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
    &str => Text(str::to_owned);
    String => Text(std::convert::identity);
    i32 => Integer(i128::from);
    u32 => Integer(i128::from);
    u64 => Integer(i128::from);
    f64 => Float(std::convert::identity);
    bool => Boolean(std::convert::identity);
}

impl Literal {
    pub fn node(&self, place: Place) -> Node {
        let value = match self {
            Literal::Text(text) => Value::Text(text.clone()),
            Literal::Integer(number) => Value::Integer(*number),
            Literal::Float(number) => Value::Float(format!("{number:?}")),
            Literal::Boolean(value) => Value::Boolean(*value),
        };
        Node { value, place, own: false }
    }
}

/// The word of a file for a value, as [`choice!`] declares it.
pub(crate) fn word<T: Decode + PartialEq>(value: T) -> &'static str {
    let Kind::Choice(words) = T::kind() else { unreachable!("only a choice has words") };
    let place = Place { source: 0, start: 0, end: 0 };
    let means = |word: &str| T::decode(&Literal::from(word).node(place), &mut Problems::default());
    let found = words.iter().find(|(word, _)| means(word).as_ref() == Some(&value));
    found.expect("every value has its word").0
}

/// A type that a value of the file becomes.
pub(crate) trait Decode: Sized {
    fn kind() -> Kind;
    /// The value, or `None` once the reason has been added to `problems`.
    fn decode(node: &Node, problems: &mut Problems) -> Option<Self>;
    /// Whether a field of this type may be left out without a default: [`Decode::missing`] has a value then.
    const IS_OPTIONAL: bool = false;
    /// The value where the field is left out and has no default.
    fn missing() -> Option<Self> {
        None
    }
}

/// A set of fields: a table of its own, or part of one.
pub(crate) trait Fields: Sized {
    const WHAT: &'static str;
    fn fields() -> Vec<Field>;
    fn take(reader: &mut Reader<'_>) -> Option<Self>;
}

/// A table that has no fields of its own: a tag says all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NoFields;

impl Fields for NoFields {
    const WHAT: &'static str = "";
    fn fields() -> Vec<Field> {
        Vec::new()
    }
    fn take(_: &mut Reader<'_>) -> Option<Self> {
        Some(NoFields)
    }
}

/// Hands out the fields of one table.
pub(crate) struct Reader<'a> {
    table: &'a Table,
    fields: &'a [Field],
    place: Place,
    what: &'static str,
    problems: &'a mut Problems,
}

// Every field of every table instantiates `field`, so all it can do without the type is in functions of their own.
impl<'a> Reader<'a> {
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

    /// The field as written, or its default.
    fn node(&self, name: &str) -> Option<Cow<'a, Node>> {
        if let Some(node) = self.table.get(name) {
            return Some(Cow::Borrowed(node));
        }
        match self.fields.iter().find(|field| field.name == name)?.presence {
            Presence::Default(default) => Some(Cow::Owned(default().node(self.place))),
            Presence::Required | Presence::Optional => None,
        }
    }

    fn refuse_missing(&mut self, name: &str, kind: fn() -> Kind) {
        let message = format!("{} needs `{name}`", self.what);
        let help = format!("`{name}` takes {}", kind().describe());
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
pub(crate) use merge::merge;
pub(crate) use nest::{At, Lenient, List, Member, Named, OneOrMore};

pub(crate) fn decode_table<T: Fields + Decode>(node: &Node, problems: &mut Problems) -> Option<T> {
    let kind = T::kind();
    let Kind::Table { shorthand, ref fields, .. } = kind else { unreachable!("a table's kind is a table") };
    let Some(table) = open_table(node, shorthand) else { return mismatch(node, &kind, problems) };
    let known = refuse_unknown(&table, fields, None, T::WHAT, problems);
    let taken = T::take(&mut Reader { table: &table, fields, place: node.place, what: T::WHAT, problems });
    taken.filter(|_| known)
}

/// The table as written, or the one that a lone value stands for.
fn open_table<'a>(node: &'a Node, shorthand: Option<&str>) -> Option<Cow<'a, Table>> {
    match (&node.value, shorthand) {
        (Value::Table(table), _) => Some(Cow::Borrowed(table)),
        (Value::Text(_) | Value::Integer(_) | Value::Float(_), Some(shorthand)) => {
            let mut table = Table::default();
            table.insert(shorthand, node.place, node.clone());
            Some(Cow::Owned(table))
        }
        _ => None,
    }
}

/// The fields of a tagged table, whose keys [`open_tagged`] has checked.
pub(crate) fn take_variant<T: Fields>(table: &Table, place: Place, problems: &mut Problems) -> Option<T> {
    T::take(&mut Reader { table, fields: &T::fields(), place, what: T::WHAT, problems })
}

/// Refuses keys that no field has. Says so whether all were known.
fn refuse_unknown(
    table: &Table,
    fields: &[Field],
    elsewhere: Option<&Tagged>,
    what: &str,
    problems: &mut Problems,
) -> bool {
    let before = problems.len();
    for entry in &table.entries {
        if fields.iter().any(|f| f.name == entry.key) {
            continue;
        }
        let other = elsewhere.and_then(|tagged| {
            let owner = tagged.variants.iter().find(|v| (v.fields)().iter().any(|f| f.name == entry.key))?;
            Some(format!("`{}` belongs to {} = \"{}\"", entry.key, tagged.tag, owner.name))
        });
        let help = other.or_else(|| did_you_mean(&entry.key, fields.iter().map(|f| f.name)));
        let message = format!("unknown field `{}` in {what}", entry.key.escape_debug());
        problems.push_with_help(entry.key_place, message, help);
    }
    problems.len() == before
}

/// The tag of a tagged table, and its other fields.
pub(crate) fn open_tagged(
    node: &Node,
    tagged: &Tagged,
    problems: &mut Problems,
) -> Option<(&'static str, Table)> {
    let (tag, tag_place, mut table) = match &node.value {
        Value::Text(text) => (Some(text.as_str()), node.place, Table::default()),
        Value::Table(table) => match table.get(tagged.tag) {
            Some(tag) => match tag.text() {
                Some(text) => (Some(text), tag.place, table.clone()),
                None => return mismatch(tag, &tagged.words(), problems),
            },
            None => (tagged.default, node.place, table.clone()),
        },
        _ => return mismatch(node, &tagged.words(), problems),
    };
    let Some(tag) = tag else {
        let words = tagged.words().describe();
        problems.push_help(
            node.place,
            format!("{} needs `{}`", tagged.what, tagged.tag),
            format!("one of {words}"),
        );
        return None;
    };
    let Some(variant) = tagged.variants.iter().find(|v| v.name == tag) else {
        let help = did_you_mean(tag, tagged.variants.iter().map(|v| v.name));
        problems.push_with_help(tag_place, format!("unknown {} `{}`", tagged.what, tag.escape_debug()), help);
        return None;
    };
    table.remove(tagged.tag);
    let what = format!("{} \"{}\"", tagged.what, variant.name);
    refuse_unknown(&table, &(variant.fields)(), Some(tagged), &what, problems).then_some(())?;
    Some((variant.name, table))
}

pub(crate) fn refuse_choice<T>(node: &Node, kind: &Kind, problems: &mut Problems) -> Option<T> {
    refuse_word(node, kind, problems);
    None
}

fn refuse_word(node: &Node, kind: &Kind, problems: &mut Problems) {
    let (Some(text), Kind::Choice(words)) = (node.text(), kind) else {
        return refuse(node, kind, problems);
    };
    let help = did_you_mean(text, words.iter().map(|(name, _)| *name));
    let message = format!("expected {}, found {}", kind.describe(), node.describe());
    problems.push_with_help(node.place, message, help);
}

/// The wrong type of value.
pub(crate) fn mismatch<T>(node: &Node, kind: &Kind, problems: &mut Problems) -> Option<T> {
    refuse(node, kind, problems);
    None
}

fn refuse(node: &Node, kind: &Kind, problems: &mut Problems) {
    let help = match (&node.value, kind) {
        (Value::Integer(_) | Value::Float(_), Kind::Quantity(dimensions)) => {
            let number = node.label();
            let unit = dimensions[0].usual_unit(&number);
            Some(format!("write it as text with its unit, as in \"{number} {unit}\""))
        }
        (Value::Text(text), Kind::Boolean) if matches!(text.as_str(), "true" | "false") => {
            Some("without quotation marks".into())
        }
        (Value::Text(text), Kind::Integer { .. } | Kind::Number { .. }) if text.parse::<f64>().is_ok() => {
            Some("without quotation marks".into())
        }
        _ => None,
    };
    let message = format!("expected {}, found {}", kind.describe(), node.describe());
    problems.push_with_help(node.place, message, help);
}

impl Tagged {
    pub fn words(&self) -> Kind {
        Kind::Choice(self.variants.iter().map(|v| (v.name, v.doc)).collect())
    }
}

impl Kind {
    /// What is expected, with its article.
    pub fn describe(&self) -> String {
        match self {
            Kind::Text(holds) => (*holds).into(),
            Kind::Boolean => "true or false".into(),
            Kind::Integer { min, max: u64::MAX } => format!("a whole number from {min}"),
            Kind::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Kind::Number { bounds: "", .. } => "a number".into(),
            Kind::Number { bounds, .. } => format!("a number {bounds}"),
            Kind::Quantity(dimensions) => {
                dimensions.iter().map(|d| d.describe()).collect::<Vec<_>>().join(" or ")
            }
            Kind::Choice(words) => match words.as_slice() {
                [(only, _)] => format!("\"{only}\""),
                words => {
                    let words: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
                    let (last, rest) = words.split_last().expect("a choice has words");
                    format!("{} or {last}", rest.join(", "))
                }
            },
            Kind::List { of, min, max } => match (min, max) {
                (2, 2) => format!("a list of two values, each {}", of().describe()),
                _ => format!("a list, each {}", of().describe()),
            },
            Kind::Named { of } => format!("a table of names, each {}", of().describe()),
            Kind::Table { what, fields, shorthand, .. } => {
                let short = shorthand.and_then(|s| fields.iter().find(|f| f.name == s));
                match short {
                    Some(field) => format!("{} or a table ({what})", (field.kind)().describe()),
                    None => format!("a table ({what})"),
                }
            }
            Kind::Tagged(tagged) => format!("{} or a table ({})", tagged.words().describe(), tagged.what),
            Kind::Assignments { what } => (*what).into(),
            Kind::Either(kinds) => kinds.iter().map(Kind::describe).collect::<Vec<_>>().join(", or "),
        }
    }

    /// The alternative that is a table, if one is.
    pub fn structure(&self) -> Option<&Kind> {
        match self {
            Kind::Either(kinds) => kinds.iter().find_map(Kind::structure),
            Kind::Table { .. } | Kind::Tagged(_) | Kind::Named { .. } | Kind::List { .. } => Some(self),
            _ => None,
        }
    }

    /// The key that a lone value stands for.
    pub fn shorthand(&self) -> Option<&'static str> {
        match self {
            Kind::Table { shorthand, .. } => *shorthand,
            Kind::Tagged(tagged) => Some(tagged.tag),
            _ => None,
        }
    }

    /// What the field of this name takes.
    pub fn field(&self, name: &str) -> Option<Kind> {
        match self {
            Kind::Table { fields, .. } => fields.iter().find(|f| f.name == name).map(|f| (f.kind)()),
            Kind::Tagged(tagged) if name == tagged.tag => Some(tagged.words()),
            Kind::Tagged(tagged) => {
                tagged.variants.iter().flat_map(|v| (v.fields)()).find(|f| f.name == name).map(|f| (f.kind)())
            }
            Kind::Named { of } => Some(of()),
            _ => None,
        }
    }

    /// Names of all fields.
    pub fn field_names(&self) -> Vec<&'static str> {
        match self {
            Kind::Table { fields, .. } => fields.iter().map(|f| f.name).collect(),
            Kind::Tagged(tagged) => {
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

/// Refuses unknown keys of a table that may lack required ones, at any depth.
pub(crate) fn refuse_unknown_keys(node: &Node, kind: &Kind, problems: &mut Problems) {
    let Some(kind) = kind.structure() else { return };
    match (&node.value, kind) {
        (Value::Array(items), Kind::List { of, .. }) => {
            items.iter().for_each(|item| refuse_unknown_keys(item, &of(), problems));
        }
        (Value::Table(table), kind) => {
            let names = kind.field_names();
            for entry in &table.entries {
                match kind.field(&entry.key) {
                    Some(kind) => refuse_unknown_keys(&entry.node, &kind, problems),
                    None => {
                        let what = match kind {
                            Kind::Table { what, .. } => what,
                            Kind::Tagged(tagged) => tagged.what,
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
