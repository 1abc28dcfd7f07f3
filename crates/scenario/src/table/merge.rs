//! Merging of a table with its defaults.

use super::ValueKind;
use crate::tree::{TomlEntry, TomlNode, TomlTable, TomlValue};
use std::rc::Rc;

/// Adds the fields that `over` lacks from `under`. Tables merge field by field. If `over` has another tag,
/// nothing is added.
pub(crate) fn merge(over: &mut TomlNode, under: &TomlNode, kind: &ValueKind) {
    let structure = kind.structure();
    if let (TomlValue::Table(_), Some(shorthand)) = (&over.value, structure.and_then(ValueKind::shorthand))
        && !matches!(under.value, TomlValue::Table(_))
    {
        let mut table = TomlTable::default();
        table.insert(shorthand, under.place, under.clone());
        let value = TomlValue::Table(Rc::new(table));
        return merge(over, &TomlNode { value, place: under.place, own: false }, kind);
    }
    if let (Some(upper), Some(lower)) = (over.table_mut(), under.table()) {
        merge_tables(upper, lower, kind);
    }
}

/// Merges like [`merge`], between tables.
pub(crate) fn merge_tables(upper: &mut TomlTable, lower: &TomlTable, kind: &ValueKind) {
    let structure = kind.structure();
    if let Some(ValueKind::Tagged(tagged)) = structure {
        let tag = |table: &TomlTable| table.get(tagged.tag).and_then(|n| n.text().map(str::to_owned));
        let lower_tag = tag(lower).or(tagged.default.map(str::to_owned));
        if tag(upper).is_some_and(|upper_tag| Some(upper_tag) != lower_tag) {
            return;
        }
    }
    for entry in lower.entries() {
        match upper.get_mut(&entry.key) {
            Some(node) if node.table().is_some() => {
                if let Some(kind) = structure.and_then(|kind| kind.field(&entry.key)) {
                    merge(node, &entry.node, &kind);
                }
            }
            Some(_) => {}
            None => upper.entries_mut().push(TomlEntry { node: disowned(&entry.node), ..entry.clone() }),
        }
    }
}

/// The change of a table that marks its values as defaults.
struct Disown;

/// Returns a default as the value of a table that does not set it.
pub(crate) fn disowned(node: &TomlNode) -> TomlNode {
    let mut node = TomlNode { own: false, ..node.clone() };
    node.change_once::<Disown>(&[], |table| {
        table.entries_mut().iter_mut().for_each(|entry| entry.node = disowned(&entry.node));
    });
    node
}
