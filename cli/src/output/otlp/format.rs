//! `ExportTraceServiceRequest` of the OpenTelemetry protocol in its JSON encoding, as far as it is used:
//! <https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>. Names are in camel case, ids in hex, numbers of 64 bits
//! are text, and enums are numbers.

use muster_core::node_object::cut;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::ids::{Ids, SpanId, TraceId};

/// Bytes of one text at most. What ranks say in their last words is as long as they like.
pub(super) const TEXT_MAX: usize = 1024;

/// `SPAN_KIND_INTERNAL`: none of ours asks or answers another service.
const INTERNAL: u8 = 1;

/// The whole request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Export {
    resource_spans: [ResourceSpans; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans {
    resource: Resource,
    scope_spans: [ScopeSpans; 1],
}

#[derive(Debug, Serialize)]
struct Resource {
    attributes: Vec<Attribute>,
}

#[derive(Debug, Serialize)]
struct ScopeSpans {
    scope: Scope,
    spans: Vec<Span>,
}

/// The program that made the spans.
#[derive(Debug, Serialize)]
struct Scope {
    name: &'static str,
}

impl Export {
    pub(super) fn of(resource: Vec<Attribute>, spans: Vec<Span>) -> Self {
        let scope = Scope {
            name: "muster report",
        };
        Self {
            resource_spans: [ResourceSpans {
                resource: Resource {
                    attributes: resource,
                },
                scope_spans: [ScopeSpans { scope, spans }],
            }],
        }
    }
}

/// `from` and `to` are microseconds since 1970.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Span {
    pub(super) trace_id: TraceId,
    pub(super) span_id: SpanId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parent_span_id: Option<SpanId>,
    pub(super) name: String,
    pub(super) kind: u8,
    #[serde(rename = "startTimeUnixNano", serialize_with = "nanos")]
    pub(super) from: u64,
    #[serde(rename = "endTimeUnixNano", serialize_with = "nanos")]
    pub(super) to: u64,
    pub(super) attributes: Vec<Attribute>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) events: Vec<Happened>,
    /// `None`: nobody judged it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<Status>,
}

impl Span {
    /// One about which nothing is said yet.
    pub(super) fn of(
        ids: &mut Ids,
        what: &str,
        parent: Option<SpanId>,
        name: String,
        (from, to): (u64, u64),
    ) -> Self {
        Self {
            trace_id: ids.trace,
            span_id: ids.span(what),
            parent_span_id: parent,
            name,
            kind: INTERNAL,
            from,
            to,
            attributes: Vec::new(),
            events: Vec::new(),
            status: None,
        }
    }
}

/// `Span.Event`.
#[derive(Debug, Serialize)]
pub(super) struct Happened {
    #[serde(rename = "timeUnixNano", serialize_with = "nanos")]
    at: u64,
    name: String,
    attributes: Vec<Attribute>,
}

impl Happened {
    pub(super) fn at(at: u64, name: String, args: &Map<String, Value>) -> Self {
        Self {
            at,
            name,
            attributes: attributes(args),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Status {
    code: u8,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

impl Status {
    pub(super) fn ok() -> Self {
        Self {
            code: 1,
            message: String::new(),
        }
    }

    pub(super) fn error(message: &str) -> Self {
        Self {
            code: 2,
            message: cut(message, TEXT_MAX),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Attribute {
    key: String,
    value: AnyValue,
}

impl Attribute {
    pub(super) fn text(key: &str, text: &str) -> Self {
        Self::of(key, Value::String(text.to_owned()))
    }

    pub(super) fn of(key: &str, value: Value) -> Self {
        Self {
            key: key.to_owned(),
            value: value.into(),
        }
    }
}

#[derive(Debug, Serialize)]
enum AnyValue {
    #[serde(rename = "stringValue")]
    Text(String),
    #[serde(rename = "boolValue")]
    Bool(bool),
    #[serde(rename = "intValue")]
    Whole(String),
    #[serde(rename = "doubleValue")]
    Real(f64),
    #[serde(rename = "arrayValue")]
    List { values: Vec<AnyValue> },
}

/// An object becomes its JSON as text: OpenTelemetry asks that attributes are plain values and lists of them.
impl From<Value> for AnyValue {
    fn from(value: Value) -> Self {
        match value {
            Value::Bool(is) => Self::Bool(is),
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => Self::Whole(whole.to_string()),
                (None, Some(real)) => Self::Real(real),
                (None, None) => Self::Text(number.to_string()),
            },
            Value::String(text) => Self::Text(cut(&text, TEXT_MAX)),
            Value::Array(all) => Self::List {
                values: all.into_iter().map(Self::from).collect(),
            },
            other => Self::Text(cut(&other.to_string(), TEXT_MAX)),
        }
    }
}

/// The fields of our documents as attributes of our own: `fromGeneration` is `muster.from_generation`.
pub(super) fn attributes(args: &Map<String, Value>) -> Vec<Attribute> {
    let of = |(key, value): (&String, &Value)| {
        let mut name = String::from("muster.");
        for letter in key.chars() {
            if letter.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(letter.to_ascii_lowercase());
        }
        Attribute::of(&name, value.clone())
    };
    args.iter().map(of).collect()
}

fn nanos<S: Serializer>(us: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&us.saturating_mul(1_000))
}
