//! The OpenAPI document is the contract with programs and changes only deliberately.

#![allow(clippy::unwrap_used, reason = "how tests fail")]

use serde_json::Value;

const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

fn document() -> String {
    onefold_api::openapi::document("1")
        .to_pretty_json()
        .unwrap()
        + "\n"
}

#[test]
fn the_document_is_the_one_that_was_agreed() {
    if std::env::var_os("ONEFOLD_WRITE_CONTRACT").is_some() {
        std::fs::write(SNAPSHOT, document()).unwrap();
    }
    assert!(
        std::fs::read_to_string(SNAPSHOT).unwrap() == document(),
        "requests or replies have changed. A name that went or changed its meaning raises \
         SCHEMA_VERSION. ONEFOLD_WRITE_CONTRACT=1 writes the new document"
    );
}

#[test]
fn every_reference_resolves_and_every_field_is_described() {
    let document: Value = serde_json::from_str(&document()).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut references = Vec::new();
    collect_references(&document, &mut references);
    assert!(references.len() > 60, "{}", references.len());
    for reference in references {
        let name = reference.strip_prefix("#/components/schemas/").unwrap();
        assert!(schemas.contains_key(name), "{name}");
    }
    for (name, schema) in schemas {
        let parts = schema["allOf"].as_array().into_iter().flatten();
        for part in [schema].into_iter().chain(parts) {
            let properties = part["properties"].as_object().into_iter().flatten();
            for (field, property) in properties {
                let is_described = property["description"].is_string()
                    || property["oneOf"].is_array()
                    || property["$ref"].is_string();
                assert!(is_described, "{name}.{field}: {property}");
            }
        }
    }
}

fn collect_references(value: &Value, references: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let reference = fields.get("$ref").and_then(Value::as_str);
            references.extend(reference.map(str::to_owned));
            fields
                .values()
                .for_each(|value| collect_references(value, references));
        }
        Value::Array(items) => items
            .iter()
            .for_each(|value| collect_references(value, references)),
        _ => {}
    }
}
