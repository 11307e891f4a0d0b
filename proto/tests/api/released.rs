//! What was released does not change: `released/v1.txt` has every field, value and method of the
//! last release, and all of them must still be there and mean the same on the wire and in JSON.
//!
//! To accept the present state as released: `MUSTER_ACCEPT_RELEASE=1 cargo test -p muster-proto
//! --test api`, and read the difference. A line that goes or changes breaks somebody; a new line
//! does not.

use std::{collections::BTreeMap, fmt::Write, fs};

use prost::Message;
use prost_types::FileDescriptorSet;

use crate::{
    made_up::compile,
    repository,
    schema::{self, Field, Kind, Reserved},
};

/// Everything of one message, enum or service, as a line each: `field 1` and what is behind it.
type Parts = BTreeMap<Key, String>;

/// Kind, number and name. Methods and reserved names have no number, all others are known by it.
type Key = (&'static str, i32, String);

/// By kind and name: `message muster.v1.Job`.
type Api = BTreeMap<String, Parts>;

fn api(set: &FileDescriptorSet) -> Api {
    let mut api = Api::new();
    for file in schema::read(set) {
        for message in file.messages {
            let fields = message
                .fields
                .iter()
                .map(|field| (numbered("field", field.number), shape(field)));
            let parts = fields.chain(kept_free(&message.reserved)).collect();
            api.insert(format!("message {}", message.name), parts);
        }
        for of in file.enums {
            let values = of
                .values
                .iter()
                .map(|value| (numbered("value", value.number), value.name.clone()));
            let parts = values.chain(kept_free(&of.reserved)).collect();
            api.insert(format!("enum {}", of.name), parts);
        }
        for service in file.services {
            let methods = service.methods.iter().map(|method| {
                let way = |content: &schema::Content| {
                    let stream = if content.is_stream { "stream " } else { "" };
                    format!("{stream}{}", content.message)
                };
                let ways = format!("{} -> {}", way(&method.request), way(&method.answer));
                (("method", 0, method.name.clone()), ways)
            });
            api.insert(format!("service {}", service.name), methods.collect());
        }
    }
    api
}

fn numbered(kind: &'static str, number: i32) -> Key {
    (kind, number, String::new())
}

fn kept_free(reserved: &Reserved) -> impl Iterator<Item = (Key, String)> {
    let numbers = reserved.numbers.iter().map(|n| numbered("reserved", *n));
    let names = reserved
        .names
        .iter()
        .map(|name| ("reserved name", 0, name.clone()));
    numbers.chain(names).map(|key| (key, String::new()))
}

/// Name, name in JSON if it is an unusual one, label, type.
fn shape(field: &Field) -> String {
    let json = field.json.as_ref().map(|name| format!("json={name}"));
    let words = [
        Some(field.name.clone()),
        json,
        Some(field.label.clone()).filter(|label| !label.is_empty()),
        Some(word(&field.kind)),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn word(kind: &Kind) -> String {
    match kind {
        Kind::Scalar(name) | Kind::Named(name) => name.clone(),
        Kind::Map(key, value) => format!("map<{key},{}>", word(value)),
    }
}

fn shown((kind, number, name): &Key) -> String {
    match *kind {
        "method" | "reserved name" => format!("{kind} {name}"),
        _ => format!("{kind} {number}"),
    }
}

fn write(api: &Api) -> String {
    let mut text = String::new();
    for (owner, parts) in api {
        writeln!(text, "{owner}").unwrap();
        for (key, rest) in parts {
            writeln!(text, "{}", format!("  {} {rest}", shown(key)).trim_end()).unwrap();
        }
    }
    text
}

fn parse(text: &str) -> Api {
    let mut api = Api::new();
    let mut owner = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some(part) = line.strip_prefix("  ") else {
            owner = line.to_owned();
            api.insert(owner.clone(), Parts::new());
            continue;
        };
        let (key, rest) = parse_part(part).unwrap_or_else(|| panic!("{line:?} says nothing"));
        api.get_mut(&owner).unwrap().insert(key, rest);
    }
    api
}

fn parse_part(part: &str) -> Option<(Key, String)> {
    for kind in ["method", "reserved name"] {
        if let Some(rest) = part.strip_prefix(kind) {
            let (name, rest) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
            return Some(((kind, 0, name.to_owned()), rest.to_owned()));
        }
    }
    for kind in ["field", "value", "reserved"] {
        if let Some(rest) = part.strip_prefix(kind) {
            let (number, rest) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
            return Some((numbered(kind, number.parse().ok()?), rest.to_owned()));
        }
    }
    None
}

/// What a client of the released API would notice.
///
/// A message or enum may go when nothing names it any more. That something named it is in the
/// fields and methods that did, and these are looked at.
fn broken(was: &Api, now: &Api) -> Vec<String> {
    let mut wrong = Vec::new();
    for (owner, parts) in was {
        let Some(there) = now.get(owner) else {
            if owner.starts_with("service") {
                wrong.push(format!("{owner} is gone"));
            }
            continue;
        };
        for (key, rest) in parts {
            let part = format!("{owner}: {}", shown(key));
            match there.get(key) {
                Some(same) if same == rest => {}
                Some(other) => wrong.push(format!("{part} was `{rest}` and is `{other}`")),
                None if is_kept_free(there, key, rest) => {}
                None if matches!(key.0, "field" | "value") => wrong.push(format!(
                    "{part} `{rest}` is gone, and its number and its name are not both reserved"
                )),
                None => wrong.push(format!("{part} is gone")),
            }
        }
    }
    wrong
}

/// Whether nothing can take the place of this field or value.
fn is_kept_free(there: &Parts, key: &Key, rest: &str) -> bool {
    let name = rest.split(' ').next().unwrap_or_default();
    matches!(key.0, "field" | "value")
        && there.contains_key(&numbered("reserved", key.1))
        && there.contains_key(&("reserved name", 0, name.to_owned()))
}

const HEAD: &str = "\
# The API of the last release, one line for each part that clients rely on. Written by
# MUSTER_ACCEPT_RELEASE=1 cargo test -p muster-proto --test api
";

#[test]
fn nothing_that_was_released_has_changed() {
    let path = repository("proto/released/v1.txt");
    let now = api(&FileDescriptorSet::decode(muster_proto::DESCRIPTORS).unwrap());
    if std::env::var_os("MUSTER_ACCEPT_RELEASE").is_some() {
        fs::write(&path, HEAD.to_owned() + &write(&now)).unwrap();
    }
    let was = parse(&fs::read_to_string(&path).unwrap());
    assert!(was.len() > 100, "the file is there whole");
    let wrong = broken(&was, &now);
    assert!(
        wrong.is_empty(),
        "older clients would notice:\n  {}\n\
         Give what is new a new number and a new name. What nobody needs any more becomes `reserved`, \
         number and name. If this was never released, or all its users are known: \
         MUSTER_ACCEPT_RELEASE=1 cargo test -p muster-proto --test api",
        wrong.join("\n  ")
    );
}

/// What a client of the first declarations would notice of the second.
fn between(was: &str, now: &str) -> Vec<String> {
    let was = api(&compile(was));
    assert_eq!(parse(&write(&was)), was, "it is read as it was written");
    broken(&was, &api(&compile(now)))
}

#[test]
fn what_older_clients_do_not_notice_is_allowed() {
    let was = "message M { string a = 1; E e = 2; map<string, M> m = 3; }
               enum E { NONE = 0; }
               message Unused { string a = 1; }
               service S { rpc Get(M) returns (M); }";
    let now = "// Comments and order mean nothing.
               service S { rpc Put(M) returns (stream M); rpc Get(M) returns (M); }
               enum E { NONE = 0; SOME = 1; }
               message M { map<string, M> m = 3; optional int64 new = 9; E e = 2; string a = 1; }";
    assert_eq!(between(was, now), [""; 0]);
}

#[test]
fn a_field_that_changes_is_noticed() {
    let was = "message M { int64 a = 1; reserved 7; reserved \"old\"; } message N {}";
    let same = "reserved 7; reserved \"old\";";
    for (now, says) in [
        ("string a = 1;", "field 1 was `a int64` and is `a string`"),
        ("repeated int64 a = 1;", "and is `a repeated int64`"),
        ("optional int64 a = 1;", "and is `a optional int64`"),
        ("oneof o { int64 a = 1; }", "and is `a oneof=o int64`"),
        ("int64 b = 1;", "field 1 was `a int64` and is `b int64`"),
        (
            "int64 a = 1 [json_name = \"z\"];",
            "and is `a json=z int64`",
        ),
        ("N a = 1;", "and is `a p.N`"),
        ("map<string, N> a = 1;", "and is `a map<string,p.N>`"),
        ("int64 a = 2;", "field 1 `a int64` is gone, and its number"),
        ("reserved 1;", "field 1 `a int64` is gone, and its number"),
        (
            "reserved \"a\";",
            "field 1 `a int64` is gone, and its number",
        ),
    ] {
        let wrong = between(was, &format!("message M {{ {now} {same} }} message N {{}}"));
        assert_eq!(wrong.len(), 1, "{now}: {wrong:?}");
        assert!(wrong[0].starts_with("message p.M: "), "{wrong:?}");
        assert!(wrong[0].contains(says), "{now}: {wrong:?}");
    }
    let gone = format!("message M {{ reserved 1; reserved \"a\"; {same} }} message N {{}}");
    assert_eq!(between(was, &gone), [""; 0]);
}

#[test]
fn what_is_reserved_stays_reserved() {
    let was = "message M { reserved 2 to 4, 7; reserved \"old\"; }
               enum E { NONE = 0; reserved 2 to 3; }";
    let now = "message M { reserved 2, 4; string new = 7; } enum E { NONE = 0; reserved 2; }";
    assert_eq!(
        between(was, now),
        [
            "enum p.E: reserved 3 is gone",
            "message p.M: reserved 3 is gone",
            "message p.M: reserved 7 is gone",
            "message p.M: reserved name old is gone",
        ]
    );
}

#[test]
fn an_enum_that_changes_is_noticed() {
    let was = "enum E { NONE = 0; ONE = 1; }";
    for (now, says) in [
        ("UN = 1;", "enum p.E: value 1 was `ONE` and is `UN`"),
        ("ONE = 2;", "enum p.E: value 1 `ONE` is gone"),
        ("reserved 1;", "enum p.E: value 1 `ONE` is gone"),
    ] {
        let wrong = between(was, &format!("enum E {{ NONE = 0; {now} }}"));
        assert_eq!(wrong.len(), 1, "{now}: {wrong:?}");
        assert!(wrong[0].starts_with(says), "{now}: {wrong:?}");
    }
    let gone = "enum E { NONE = 0; reserved 1; reserved \"ONE\"; }";
    assert_eq!(between(was, gone), [""; 0]);
}

#[test]
fn a_method_that_changes_is_noticed() {
    let was = "message M {} message N {} service S { rpc Get(M) returns (M); }";
    for (now, says) in [
        (
            "rpc Get(N) returns (M);",
            "`p.M -> p.M` and is `p.N -> p.M`",
        ),
        ("rpc Get(M) returns (N);", "and is `p.M -> p.N`"),
        (
            "rpc Get(stream M) returns (M);",
            "and is `stream p.M -> p.M`",
        ),
        (
            "rpc Get(M) returns (stream M);",
            "and is `p.M -> stream p.M`",
        ),
        ("rpc Put(M) returns (M);", "method Get is gone"),
    ] {
        let wrong = between(
            was,
            &format!("message M {{}} message N {{}} service S {{ {now} }}"),
        );
        assert_eq!(wrong.len(), 1, "{now}: {wrong:?}");
        assert!(wrong[0].contains(says), "{now}: {wrong:?}");
    }
    assert_eq!(between(was, "message M {}"), ["service p.S is gone"]);
}

#[test]
fn a_message_may_go_only_when_nothing_names_it() {
    let was = "message M { N n = 1; } message N { string a = 1; }";
    assert_eq!(
        between(was, "message M { O n = 1; } message O { string a = 1; }"),
        ["message p.M: field 1 was `n p.N` and is `n p.O`"]
    );
    let gone = "message M { reserved 1; reserved \"n\"; }";
    assert_eq!(between(was, gone), [""; 0]);
}
