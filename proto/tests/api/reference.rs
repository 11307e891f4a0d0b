//! `docs/api.md`: between two marks, a reference made from the comments of the .proto files.
//!
//! `MUSTER_BLESS=1 cargo test -p muster-proto --test api` writes it.

use std::{collections::BTreeSet, fmt::Write, fs};

use prost::Message as _;
use prost_types::FileDescriptorSet;

use crate::{
    made_up::compile,
    repository,
    schema::{self, Content, Enum, Field, File, Kind, Message, Service},
};

const PAGE: &str = "docs/api.md";
const BEGIN: &str =
    "<!-- reference:begin, written by MUSTER_BLESS=1 cargo test -p muster-proto --test api -->\n";
const END: &str = "<!-- reference:end -->\n";

/// What users do not call. What only it needs stands in a section of its own.
const AGENTS: &str = "muster.v1.AgentService";
const AGENTS_SECTION: &str = "Between agents and the coordinator";
/// What a reader looks for comes first. A file that is not named here comes last.
const ORDER: [&str; 12] = [
    "jobs.proto",
    "time.proto",
    "nodes.proto",
    "events.proto",
    "history.proto",
    "access.proto",
    "audit.proto",
    "notifications.proto",
    "usage.proto",
    "hardware.proto",
    "session.proto",
    "phases.proto",
];

fn files() -> Vec<File> {
    let set = FileDescriptorSet::decode(muster_proto::DESCRIPTORS).unwrap();
    let mut files = schema::read(&set);
    let place = |file: &File| ORDER.iter().position(|name| *name == file.name);
    files.sort_by_key(|file| place(file).unwrap_or(ORDER.len()));
    files
}

/// The messages and enums that users' services name, directly or through others.
fn used(files: &[File]) -> BTreeSet<String> {
    let services = files.iter().flat_map(|file| &file.services);
    let methods = services
        .filter(|service| service.name != AGENTS)
        .flat_map(|service| &service.methods);
    let mut next: Vec<&str> = methods
        .flat_map(|method| [&method.request, &method.answer])
        .map(|content| content.message.as_str())
        .collect();
    let messages: Vec<&Message> = files.iter().flat_map(|file| &file.messages).collect();
    let mut used = BTreeSet::new();
    while let Some(name) = next.pop() {
        if used.insert(name.to_owned()) {
            let message = messages.iter().find(|message| message.name == name);
            let fields = message.into_iter().flat_map(|message| &message.fields);
            next.extend(fields.filter_map(|field| field.kind.named()));
        }
    }
    used
}

fn reference(files: &[File]) -> String {
    let used = used(files);
    let (mut page, mut rest) = (String::new(), format!("## {AGENTS_SECTION}\n\n"));
    for file in files {
        let mut section = format!("## {}\n\n", file.name);
        if !file.intro.is_empty() {
            write!(section, "{}\n\n", prose(&file.intro)).unwrap();
        }
        let empty = section.len();
        for service in &file.services {
            let place = if service.name == AGENTS {
                &mut rest
            } else {
                &mut section
            };
            *place += &of_service(service);
        }
        let place = |name: &str| used.contains(name);
        for message in &file.messages {
            let text = of_message(message);
            *(if place(&message.name) {
                &mut section
            } else {
                &mut rest
            }) += &text;
        }
        for of in &file.enums {
            let text = of_enum(of);
            *(if place(&of.name) {
                &mut section
            } else {
                &mut rest
            }) += &text;
        }
        if section.len() > empty {
            page += &section;
        }
    }
    page + &rest
}

fn of_service(service: &Service) -> String {
    let mut text = head(&service.name, &service.comment);
    text += "| method | request | answer | meaning |\n|---|---|---|---|\n";
    for method in &service.methods {
        let (request, answer) = (content(&method.request), content(&method.answer));
        let meaning = cell(&method.comment);
        writeln!(
            text,
            "| `{}` | {request} | {answer} | {meaning} |",
            method.name
        )
        .unwrap();
    }
    text + "\n"
}

fn content(content: &Content) -> String {
    let stream = if content.is_stream { "stream of " } else { "" };
    format!("{stream}{}", link(&content.message))
}

fn of_message(message: &Message) -> String {
    let text = head(&message.name, &message.comment);
    if message.fields.is_empty() {
        return text + "It has no fields.\n\n";
    }
    let rows = message.fields.iter().map(|field| {
        let (kind, meaning) = (labelled(field), cell(&field.comment));
        format!("| `{}` | {kind} | {meaning} |\n", field.name)
    });
    text + "| field | type | meaning |\n|---|---|---|\n" + &rows.collect::<String>() + "\n"
}

fn of_enum(of: &Enum) -> String {
    let rows = of.values.iter().map(|value| {
        let meaning = cell(&value.comment);
        format!("| `{}` | {} | {meaning} |\n", value.name, value.number)
    });
    let text = head(&of.name, &of.comment);
    text + "| value | number | meaning |\n|---|---|---|\n" + &rows.collect::<String>() + "\n"
}

fn head(name: &str, comment: &str) -> String {
    format!("### {}\n\n{}\n\n", short(name), prose(comment))
}

fn labelled(field: &Field) -> String {
    let kind = kind(&field.kind);
    match field.label.split_once('=') {
        Some((_, choice)) => format!("{kind}, one of `{choice}`"),
        None if field.label.is_empty() => kind,
        None => format!("{} {kind}", field.label),
    }
}

fn kind(of: &Kind) -> String {
    match of {
        Kind::Scalar(name) => name.clone(),
        Kind::Named(name) => link(name),
        Kind::Map(key, value) => format!("map from {key} to {}", kind(value)),
    }
}

/// The name without its package.
fn short(name: &str) -> &str {
    name.trim_start_matches("muster.v1.")
}

fn link(name: &str) -> String {
    let name = short(name);
    let anchor: String = name.to_lowercase().replace('.', "");
    format!("[{name}](#{anchor})")
}

/// A comment as paragraphs of Markdown.
fn prose(comment: &str) -> String {
    escaped(comment).replace('\n', "\n\n")
}

/// A comment as a cell of a table.
fn cell(comment: &str) -> String {
    escaped(comment).replace('\n', "<br>").replace('|', "\\|")
}

/// Between backticks every sign stands for itself already.
fn escaped(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(i, part)| {
        if i % 2 == 1 {
            return part.to_owned();
        }
        part.replace('*', "\\*")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
    });
    parts.collect::<Vec<_>>().join("`")
}

/// Everything that has no comment.
fn unexplained(files: &[File]) -> Vec<String> {
    let mut all: Vec<(String, &str)> = Vec::new();
    for file in files {
        for service in &file.services {
            all.push((service.name.clone(), &service.comment));
            let name = |method: &schema::Method| format!("{}.{}", service.name, method.name);
            all.extend(
                service
                    .methods
                    .iter()
                    .map(|m| (name(m), m.comment.as_str())),
            );
        }
        for message in &file.messages {
            all.push((message.name.clone(), &message.comment));
            let name = |field: &Field| format!("{}.{}", message.name, field.name);
            all.extend(message.fields.iter().map(|f| (name(f), f.comment.as_str())));
        }
        for of in &file.enums {
            all.push((of.name.clone(), &of.comment));
            let name = |value: &schema::Value| format!("{}.{}", of.name, value.name);
            all.extend(of.values.iter().map(|v| (name(v), v.comment.as_str())));
        }
    }
    all.into_iter()
        .filter(|(_, comment)| comment.is_empty())
        .map(|(name, _)| name)
        .collect()
}

#[test]
fn everything_is_explained() {
    let files = files();
    assert!(files.len() >= ORDER.len(), "all files are looked at");
    let missing = unexplained(&files);
    assert!(
        missing.is_empty(),
        "write a comment above each in proto/muster/v1 (what it means, its unit, what its absence \
         means, errors):\n  {}",
        missing.join("\n  ")
    );
}

#[test]
fn whatever_has_no_comment_is_named() {
    let files = schema::read(&compile(
        "message A { string b = 1; message C { int32 d = 1; } enum E { F = 0; } }
         service G { rpc H(A) returns (A); }
         // Explained.
         message I { string j = 1; // behind it
         }",
    ));
    let names = "p.G p.G.H p.A p.A.b p.A.C p.A.C.d p.A.E p.A.E.F";
    assert_eq!(unexplained(&files).join(" "), names);
}

#[test]
fn the_page_says_what_the_proto_files_say() {
    let path = repository(PAGE);
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the first mark");
    let (_, after) = rest.split_once(END).expect("the page has the second mark");
    let wanted = [before, BEGIN, "\n", &reference(&files()), END, after].concat();
    if std::env::var_os("MUSTER_BLESS").is_some() {
        fs::write(&path, &wanted).unwrap();
    } else if page != wanted {
        let mut lines = page.lines().zip(wanted.lines());
        let first = lines.find(|(there, wanted)| there != wanted);
        panic!(
            "{PAGE} does not say what the .proto files say. To write it: MUSTER_BLESS=1 cargo test -p \
             muster-proto --test api. The first difference: {first:#?}"
        );
    }
}

#[test]
fn what_only_agents_need_stands_apart() {
    let files = files();
    let text = reference(&files);
    let (users, agents) = text.split_once(AGENTS_SECTION).unwrap();
    let declares = |text: &str, name: &str| text.contains(&format!("\n### {name}\n"));
    for name in [
        "JobService",
        "Job",
        "JobPhase",
        "Incident",
        "Gpu",
        "WarmPool",
    ] {
        assert!(declares(users, name) && !declares(agents, name), "{name}");
    }
    for name in ["AgentService", "Hello", "RunPhase", "Assignment"] {
        assert!(declares(agents, name) && !declares(users, name), "{name}");
    }
}

#[test]
fn a_comment_becomes_markdown() {
    let files = schema::read(&compile(
        "// First *part* of it,
         // in `*two*` lines.
         //
         // A <second> one.
         message A {
           // Either a|b
           //
           // or c.
           map<string, A> b = 1;
           // D.
           oneof d { N e = 2; }
           // F.
           optional uint32 f = 3;
         }
         // G.
         message N {
           // H.
           repeated A h = 1;
         }",
    ));
    assert_eq!(
        of_message(&files[0].messages[0]),
        "### p.A\n\n\
         First \\*part\\* of it, in `*two*` lines.\n\nA &lt;second&gt; one.\n\n\
         | field | type | meaning |\n|---|---|---|\n\
         | `b` | map from string to [p.A](#pa) | Either a\\|b<br>or c. |\n\
         | `e` | [p.N](#pn), one of `d` |  |\n\
         | `f` | optional uint32 | F. |\n\n"
    );
    let second = of_message(&files[0].messages[1]);
    assert!(
        second.contains("| `h` | repeated [p.A](#pa) | H. |"),
        "{second}"
    );
}
