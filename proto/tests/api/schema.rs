//! The .proto files as their descriptors show them: services, messages and enums, with the comment
//! of each. It judges nothing.

use std::collections::{BTreeMap, BTreeSet};

use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, ServiceDescriptorProto,
    field_descriptor_proto::{Label, Type},
};

/// Numbers of fields in `descriptor.proto`, of which the path of a comment is made.
mod at {
    pub(super) const MESSAGE: i32 = 4;
    pub(super) const ENUM: i32 = 5;
    pub(super) const SERVICE: i32 = 6;
    pub(super) const SYNTAX: i32 = 12;
    pub(super) const FIELD: i32 = 2;
    pub(super) const NESTED_MESSAGE: i32 = 3;
    pub(super) const NESTED_ENUM: i32 = 4;
    pub(super) const VALUE: i32 = 2;
    pub(super) const METHOD: i32 = 2;
}

/// Names are whole: package, outer messages, name.
#[derive(Debug)]
pub(crate) struct File {
    /// `jobs.proto`.
    pub(crate) name: String,
    /// The comment above everything else. Empty: there is none.
    pub(crate) intro: String,
    pub(crate) services: Vec<Service>,
    pub(crate) messages: Vec<Message>,
    pub(crate) enums: Vec<Enum>,
}

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) comment: String,
    pub(crate) methods: Vec<Method>,
}

#[derive(Debug)]
pub(crate) struct Method {
    pub(crate) name: String,
    pub(crate) comment: String,
    pub(crate) request: Content,
    pub(crate) answer: Content,
}

/// What goes one way in a call.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) message: String,
    pub(crate) is_stream: bool,
}

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) name: String,
    pub(crate) comment: String,
    pub(crate) fields: Vec<Field>,
    pub(crate) reserved: Reserved,
}

#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) number: i32,
    /// Its name in JSON, if that is not made from `name` as usual.
    pub(crate) json: Option<String>,
    /// `optional`, `repeated`, `oneof=NAME`, or nothing.
    pub(crate) label: String,
    pub(crate) kind: Kind,
    pub(crate) comment: String,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// `string`, `uint64`, ...
    Scalar(String),
    /// A message or an enum.
    Named(String),
    Map(String, Box<Kind>),
}

#[derive(Debug)]
pub(crate) struct Enum {
    pub(crate) name: String,
    pub(crate) comment: String,
    pub(crate) values: Vec<Value>,
    pub(crate) reserved: Reserved,
}

#[derive(Debug)]
pub(crate) struct Value {
    pub(crate) name: String,
    pub(crate) number: i32,
    pub(crate) comment: String,
}

/// What must not be used again.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    pub(crate) numbers: BTreeSet<i32>,
    pub(crate) names: BTreeSet<String>,
}

pub(crate) fn read(set: &FileDescriptorSet) -> Vec<File> {
    set.file.iter().map(file).collect()
}

impl Kind {
    /// The message or enum that it names, if any.
    pub(crate) fn named(&self) -> Option<&str> {
        match self {
            Kind::Scalar(_) => None,
            Kind::Named(name) => Some(name),
            Kind::Map(_, value) => value.named(),
        }
    }
}

/// The comments of a file by the path of what they explain.
struct Comments(BTreeMap<Vec<i32>, String>);

impl Comments {
    fn of(file: &FileDescriptorProto) -> Self {
        let locations = file.source_code_info.iter().flat_map(|info| &info.location);
        let text = locations.filter_map(|location| {
            let above = location.leading_comments.as_ref();
            let detached = location.leading_detached_comments.first();
            let is_syntax = location.path == [at::SYNTAX];
            let found = above
                .or(location.trailing_comments.as_ref())
                .or(detached.filter(|_| is_syntax))?;
            Some((location.path.clone(), paragraphs(found)))
        });
        Self(text.collect())
    }

    fn get(&self, path: &[i32], last: &[i32]) -> String {
        let path = [path, last].concat();
        self.0.get(&path).cloned().unwrap_or_default()
    }
}

/// The text of a comment: one line for each paragraph.
fn paragraphs(comment: &str) -> String {
    let lines: Vec<&str> = comment.trim().lines().map(str::trim).collect();
    let all: Vec<String> = lines
        .split(|line| line.is_empty())
        .filter(|lines| !lines.is_empty())
        .map(|lines| lines.join(" "))
        .collect();
    all.join("\n")
}

fn file(file: &FileDescriptorProto) -> File {
    let comments = Comments::of(file);
    let (mut messages, mut enums) = (Vec::new(), Vec::new());
    let outer = file.package();
    for (i, proto) in (0..).zip(&file.message_type) {
        let place = [at::MESSAGE, i];
        gather(proto, outer, &place, &comments, &mut messages, &mut enums);
    }
    for (i, proto) in (0..).zip(&file.enum_type) {
        enums.push(of_enum(proto, outer, &[at::ENUM, i], &comments));
    }
    let services = (0..)
        .zip(&file.service)
        .map(|(i, proto)| service(proto, outer, &[at::SERVICE, i], &comments));
    File {
        name: file.name().rsplit('/').next().unwrap().to_owned(),
        intro: comments.get(&[at::SYNTAX], &[]),
        services: services.collect(),
        messages,
        enums,
    }
}

fn service(
    proto: &ServiceDescriptorProto,
    outer: &str,
    place: &[i32],
    comments: &Comments,
) -> Service {
    let content = |message: &str, is_stream| Content {
        message: message.trim_start_matches('.').to_owned(),
        is_stream,
    };
    let methods = (0..).zip(&proto.method).map(|(i, method)| Method {
        name: method.name().to_owned(),
        comment: comments.get(place, &[at::METHOD, i]),
        request: content(method.input_type(), method.client_streaming()),
        answer: content(method.output_type(), method.server_streaming()),
    });
    Service {
        name: format!("{outer}.{}", proto.name()),
        comment: comments.get(place, &[]),
        methods: methods.collect(),
    }
}

/// Adds a message and what is declared in it.
fn gather(
    proto: &DescriptorProto,
    outer: &str,
    place: &[i32],
    comments: &Comments,
    messages: &mut Vec<Message>,
    enums: &mut Vec<Enum>,
) {
    let name = format!("{outer}.{}", proto.name());
    let is_map =
        |message: &DescriptorProto| message.options.as_ref().is_some_and(|o| o.map_entry());
    let entries = proto.nested_type.iter().filter(|nested| is_map(nested));
    let maps: BTreeMap<String, &DescriptorProto> = entries
        .map(|nested| (format!("{name}.{}", nested.name()), nested))
        .collect();
    let fields = (0..).zip(&proto.field).map(|(i, field)| Field {
        name: field.name().to_owned(),
        number: field.number(),
        json: Some(field.json_name().to_owned()).filter(|name| *name != usual_json(field.name())),
        label: if is_entry(field, &maps) {
            String::new()
        } else {
            label(field, proto)
        },
        kind: kind(field, &maps),
        comment: comments.get(place, &[at::FIELD, i]),
    });
    let ranges = proto.reserved_range.iter();
    // The end of a range of fields is the first number behind it.
    let ranges = ranges.map(|range| (range.start(), range.end() - 1));
    messages.push(Message {
        comment: comments.get(place, &[]),
        fields: fields.collect(),
        reserved: reserved(ranges, &proto.reserved_name),
        name: name.clone(),
    });
    for (i, nested) in (0..).zip(&proto.nested_type) {
        if !is_map(nested) {
            let place = [place, &[at::NESTED_MESSAGE, i]].concat();
            gather(nested, &name, &place, comments, messages, enums);
        }
    }
    for (i, nested) in (0..).zip(&proto.enum_type) {
        let place = [place, &[at::NESTED_ENUM, i]].concat();
        enums.push(of_enum(nested, &name, &place, comments));
    }
}

fn of_enum(proto: &EnumDescriptorProto, outer: &str, place: &[i32], comments: &Comments) -> Enum {
    let values = (0..).zip(&proto.value).map(|(i, value)| Value {
        name: value.name().to_owned(),
        number: value.number(),
        comment: comments.get(place, &[at::VALUE, i]),
    });
    // The end of a range of values belongs to it.
    let ranges = proto.reserved_range.iter();
    let ranges = ranges.map(|range| (range.start(), range.end()));
    Enum {
        name: format!("{outer}.{}", proto.name()),
        comment: comments.get(place, &[]),
        values: values.collect(),
        reserved: reserved(ranges, &proto.reserved_name),
    }
}

fn reserved(ranges: impl Iterator<Item = (i32, i32)>, names: &[String]) -> Reserved {
    let mut reserved = Reserved {
        names: names.iter().cloned().collect(),
        ..Reserved::default()
    };
    for (first, last) in ranges {
        assert!(
            last - first < 1_000,
            "reserve numbers, not the rest of them"
        );
        reserved.numbers.extend(first..=last);
    }
    reserved
}

fn is_entry(field: &FieldDescriptorProto, maps: &BTreeMap<String, &DescriptorProto>) -> bool {
    maps.contains_key(field.type_name().trim_start_matches('.'))
}

fn label(field: &FieldDescriptorProto, message: &DescriptorProto) -> String {
    if field.label() == Label::Repeated {
        return "repeated".into();
    }
    if field.proto3_optional() {
        return "optional".into();
    }
    match field.oneof_index {
        Some(index) => format!("oneof={}", message.oneof_decl[index as usize].name()),
        None => String::new(),
    }
}

fn kind(field: &FieldDescriptorProto, maps: &BTreeMap<String, &DescriptorProto>) -> Kind {
    let name = field.type_name().trim_start_matches('.');
    match field.r#type() {
        Type::Message => match maps.get(name) {
            Some(entry) => {
                let Kind::Scalar(key) = kind(&entry.field[0], maps) else {
                    unreachable!("keys are scalars");
                };
                Kind::Map(key, Box::new(kind(&entry.field[1], maps)))
            }
            None => Kind::Named(name.to_owned()),
        },
        Type::Enum => Kind::Named(name.to_owned()),
        // `TYPE_UINT64`.
        scalar => Kind::Scalar(scalar.as_str_name()[5..].to_lowercase()),
    }
}

/// `jobUid` for `job_uid`, as proto3's JSON mapping says.
fn usual_json(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut made, word| {
        let mut letters = word.chars();
        made.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        made + letters.as_str()
    })
}
