//! Merging of a table with its defaults.

use super::ValueKind;
use crate::tree::{TomlNode, TomlTable, TomlValue};

/// Adds the fields that `over` lacks from `under`. Tables merge field by field. If `over` has another tag,
/// nothing is added.
pub(crate) fn merge(over: &mut TomlNode, under: &TomlNode, kind: &ValueKind) {
    let structure = kind.structure();
    if let (TomlValue::Table(_), Some(shorthand)) = (&over.value, structure.and_then(ValueKind::shorthand))
        && !matches!(under.value, TomlValue::Table(_))
    {
        let mut table = TomlTable::default();
        table.insert(shorthand, under.place, under.clone());
        return merge(
            over,
            &TomlNode { value: TomlValue::Table(table), place: under.place, own: false },
            kind,
        );
    }
    let (TomlValue::Table(upper), TomlValue::Table(lower)) = (&mut over.value, &under.value) else { return };
    if let Some(ValueKind::Tagged(tagged)) = structure {
        let tag = |table: &TomlTable| table.get(tagged.tag).and_then(|n| n.text().map(str::to_owned));
        let lower_tag = tag(lower).or(tagged.default.map(str::to_owned));
        if tag(upper).is_some_and(|upper_tag| Some(upper_tag) != lower_tag) {
            return;
        }
    }
    for entry in &lower.entries {
        match (upper.get_mut(&entry.key), structure.and_then(|k| k.field(&entry.key))) {
            (Some(node), Some(kind)) => merge(node, &entry.node, &kind),
            (Some(_), None) => {}
            (None, _) => {
                let mut node = entry.node.clone();
                disown(&mut node);
                upper.insert(&entry.key, entry.key_place, node);
            }
        }
    }
}

fn disown(node: &mut TomlNode) {
    node.own = false;
    if let TomlValue::Table(table) = &mut node.value {
        table.entries.iter_mut().for_each(|entry| disown(&mut entry.node));
    }
}
