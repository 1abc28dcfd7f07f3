//! JSON Schema of a scenario file, for editors.

use crate::file::root_kind;
use crate::table::{Field, Literal, Presence, ValueKind};
use serde_json::{Map, Value, json};

/// Returns the JSON Schema (draft 2020-12) of a scenario file.
///
/// Fields that `[defaults]` may set are not required by the schema; only the checks of a scenario find missing
/// fields.
pub fn json_schema() -> Value {
    let ValueKind::Table { fields, .. } = root_kind() else { unreachable!("a file is a table") };
    let mut definitions = Map::new();
    let mut properties = Map::new();
    for field in fields.iter() {
        let kind = (field.kind)();
        let mut schema = match &kind {
            ValueKind::Named { of } => {
                let completed = matches!(field.name, "node" | "link" | "vpn" | "flow");
                definitions.insert(field.name.into(), schema(&of(), !completed));
                let member = json!({ "$ref": format!("#/$defs/{}", field.name) });
                named(member)
            }
            ValueKind::Table { fields, .. } if field.name == "defaults" => defaults(fields),
            kind => schema(kind, true),
        };
        schema["description"] = field.doc.into();
        properties.insert(field.name.into(), schema);
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "netstage scenario",
        "type": "object",
        "properties": properties,
        "required": ["scenario", "node", "link", "flow"],
        "additionalProperties": false,
        "$defs": definitions,
    })
}

fn defaults(fields: &[Field]) -> Value {
    let properties: Map<String, Value> = fields
        .iter()
        .map(|field| {
            let schema = match field.name {
                "tcp" => schema(&(field.kind)(), false),
                name => json!({ "$ref": format!("#/$defs/{name}") }),
            };
            (field.name.to_owned(), schema)
        })
        .collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

fn named(member: Value) -> Value {
    json!({
        "type": "object",
        "propertyNames": { "pattern": "^[\\p{L}\\p{N}_-]{1,64}$" },
        "additionalProperties": member,
    })
}

/// Returns the schema of a value. Required fields are required only if `complete`.
fn schema(kind: &ValueKind, complete: bool) -> Value {
    match kind {
        ValueKind::Text(_) => json!({ "type": "string" }),
        ValueKind::Boolean => json!({ "type": "boolean" }),
        ValueKind::Integer { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        ValueKind::Number { bounds, min, max } => {
            let mut schema = json!({ "type": "number" });
            let (low, high) = (bounds.starts_with("above"), bounds.contains("below"));
            if min.is_finite() {
                schema[if low { "exclusiveMinimum" } else { "minimum" }] = (*min).into();
            }
            if max.is_finite() {
                schema[if high { "exclusiveMaximum" } else { "maximum" }] = (*max).into();
            }
            schema
        }
        ValueKind::Quantity(dimensions) => {
            let units: Vec<&str> = dimensions.iter().flat_map(|d| d.units()).collect();
            let number = r"\+?[0-9][0-9_]*(\.[0-9_]*[0-9])?([eE][+-]?[0-9]+)?";
            json!({ "type": "string", "pattern": format!(r"^\s*{number}\s*({})\s*$", units.join("|")) })
        }
        ValueKind::Choice(words) => {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            json!({ "enum": words })
        }
        ValueKind::List { of, min, max } => {
            json!({ "type": "array", "items": schema(&of(), complete), "minItems": min, "maxItems": max })
        }
        ValueKind::Named { of } => named(schema(&of(), complete)),
        ValueKind::Table { fields, shorthand, .. } => {
            let table = object(fields, None, complete);
            let short = shorthand.and_then(|name| fields.iter().find(|f| f.name == name));
            match short {
                Some(field) => json!({ "anyOf": [schema(&(field.kind)(), complete), table] }),
                None => table,
            }
        }
        ValueKind::Tagged(tagged) => {
            let mut any = vec![schema(&tagged.words(), complete)];
            for variant in tagged.variants {
                let optional = !complete || tagged.default == Some(variant.name);
                let mut table =
                    object((variant.fields)(), Some((tagged.tag, variant.name, optional)), complete);
                table["description"] = variant.doc.into();
                any.push(table);
            }
            json!({ "anyOf": any })
        }
        ValueKind::Assignments { .. } => json!({ "type": "object" }),
        ValueKind::Either(kinds) => {
            let any: Vec<Value> = kinds.iter().map(|kind| schema(kind, complete)).collect();
            json!({ "anyOf": any })
        }
    }
}

fn object(fields: &[Field], tag: Option<(&str, &str, bool)>, complete: bool) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    if let Some((tag, word, optional)) = tag {
        properties.insert(tag.into(), json!({ "const": word }));
        if !optional {
            required.push(tag);
        }
    }
    for field in fields {
        let mut schema = schema(&(field.kind)(), complete);
        schema["description"] = field.doc.into();
        match &field.presence {
            Presence::Required if complete => required.push(field.name),
            Presence::Default(default) => schema["default"] = default().json(),
            _ => {}
        }
        properties.insert(field.name.into(), schema);
    }
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

impl Literal {
    fn json(&self) -> Value {
        match self {
            Literal::Text(text) => (&**text).into(),
            Literal::Integer(number) => (*number as i64).into(),
            Literal::Float(number) => (*number).into(),
            Literal::Boolean(value) => (*value).into(),
        }
    }
}
