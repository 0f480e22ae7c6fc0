//! JSON documents are a contract with programs: each command's document has the names and types in
//! `contract.json`, and the daemon describes itself.

use super::harness::{Scene, is_left_out_in_ceph, noise, run};
use serde_json::{Map, Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/contract.json");

#[test]
fn every_document_has_its_names_and_types() {
    if is_left_out_in_ceph("'pool import-metadata' is for pools in a directory") {
        return;
    }
    let found = Value::Object(shapes());
    if std::env::var_os("ONEFOLD_WRITE_CONTRACT").is_some() {
        let text = serde_json::to_string_pretty(&found).unwrap() + "\n";
        std::fs::write(SNAPSHOT, text).unwrap();
    }
    let agreed: Value = serde_json::from_str(&std::fs::read_to_string(SNAPSHOT).unwrap()).unwrap();
    let commands = |shapes: &Value| -> Vec<String> {
        let shapes = shapes.as_object().unwrap();
        shapes.keys().cloned().collect()
    };
    assert_eq!(commands(&found), commands(&agreed));
    for command in commands(&agreed) {
        assert_eq!(
            found[&command], agreed[&command],
            "{command}: a name that went or changed its type raises SCHEMA_VERSION; \
             ONEFOLD_WRITE_CONTRACT=1 writes the new contract"
        );
    }
}

/// Runs every command that prints a document; returns the shape of each document by command.
fn shapes() -> Map<String, Value> {
    let scene = Scene::new();
    let image = scene.file("image", &noise(1, 20 * 4096));
    let mut shapes = Map::new();
    let mut keep = |words: &[&str]| {
        let document = scene.run(&[words, &["--format", "json"]].concat()).json();
        let name = format!("{} {}", words[0], words[1]);
        assert_eq!(document["schema_version"], 1, "{name}");
        shapes.insert(name, shape(&document));
    };
    keep(&["volume", "import", "vm", &image]);
    keep(&["pool", "dedup"]);
    keep(&["pool", "export-metadata", &scene.path("metadata")]);
    let daemon = scene.daemon();
    for words in [
        &["volume", "create", "new", "--size", "1M"][..],
        &["volume", "set", "new", "--quota", "1M"],
        &["volume", "rename", "new", "old"],
        &["volume", "resize", "old", "--size", "2M"],
        &["volume", "delete", "old"],
        &["snapshot", "create", "vm@a"],
        &["volume", "clone", "vm@a", "twin"],
        &["volume", "stat", "vm", "--exact"],
        &["volume", "accept-loss", "vm"],
        &["volume", "defrag", "vm"],
        &["volume", "unshare", "vm"],
        &["volume", "list"],
        &["volume", "export", "vm", &scene.path("copy")],
        &["snapshot", "list"],
        &["snapshot", "diff", "vm@a", "vm"],
        &["snapshot", "rollback", "vm@a"],
        &["snapshot", "delete", "vm@a"],
        &["pool", "stat"],
        &["pool", "set", "--when-full", "pause"],
        &["pool", "check"],
        &["pool", "resize", "--size", "5G"],
        &["pool", "scrub"],
        &["pool", "trim"],
        &["pool", "upgrade"],
        &["index", "stat"],
        &["index", "rebuild"],
        &["index", "convert", "--to", "btree"],
        &["job", "pause", "scrub"],
        &["job", "resume", "scrub"],
        &["job", "list"],
    ] {
        keep(words);
    }
    drop(daemon);
    keep(&["pool", "import-metadata", &scene.path("metadata")]);
    let created = run(&["pool", "create", &scene.path("pool-2"), "--format", "json"]).json();
    shapes.insert("pool create".to_owned(), shape(&created));
    shapes
}

/// Replaces the values of a document by their types; a list keeps the shape of its first item.
fn shape(value: &Value) -> Value {
    match value {
        Value::Null => json!("null"),
        Value::Bool(_) => json!("bool"),
        Value::Number(number) if number.is_u64() => json!("integer"),
        Value::Number(_) => json!("number"),
        Value::String(_) => json!("string"),
        Value::Array(items) => Value::Array(items.iter().take(1).map(shape).collect()),
        Value::Object(fields) => {
            let fields = fields.iter();
            Value::Object(
                fields
                    .map(|(name, value)| (name.clone(), shape(value)))
                    .collect(),
            )
        }
    }
}

#[test]
fn failures_have_kinds() {
    let scene = Scene::new();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    let cases: [(&[&str], i32, &str); 6] = [
        (&["volume", "stat", "gone"], 1, "not-found"),
        (&["volume", "create", "vm", "--size", "1M"], 1, "exists"),
        (&["volume", "create", "a b", "--size", "1M"], 2, "usage"),
        (&["volume", "create", "x", "--size", "1Q"], 2, "usage"),
        (&["volume", "snapshot"], 2, "usage"),
        (&["job", "list"], 1, "failed"),
    ];
    let check = || {
        for (words, code, kind) in &cases[..5] {
            let outcome = scene.run(&[*words, &["--format", "json"]].concat());
            outcome.is_refusal(*code, &[]);
            assert_eq!(outcome.json()["kind"], *kind, "{words:?}");
        }
    };
    check();
    let (words, code, kind) = cases[5];
    let outcome = scene.run(&[words, &["--format=json"]].concat());
    outcome.is_refusal(code, &[]);
    assert_eq!(outcome.json()["kind"], kind);
    let _daemon = scene.daemon();
    check();
    // A plan is a result, and the only document printed.
    let outcome = scene.run(&["volume", "delete", "vm", "--format", "json"]);
    assert_eq!(
        (outcome.code, &outcome.json()["done"]),
        (Some(2), &json!(false))
    );
}

#[test]
fn the_daemon_describes_itself() {
    let scene = Scene::new();
    let _daemon = scene.daemon();
    let mut socket = UnixStream::connect(scene.pool().join("control.sock")).unwrap();
    socket
        .write_all(b"GET /openapi.json HTTP/1.1\r\nHost: onefold\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("application/json"), "{head}");
    let document: Value = serde_json::from_str(body).unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 38, "{:?}", paths.keys());
}
